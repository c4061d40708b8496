//! Load of other processes on the machine while an experiment ran.
//!
//! It is all CPU time of the machine less that of the experiment's processes. Processes that the experiment
//! waits for are in the times of this process's children once they have ended. Servers and mounts leave their
//! parents, so they are found by a mark in their environment, and sampled while they run.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::machine::{self, CpuTime};

/// The environment variable that marks processes of an experiment.
pub(super) const MARK: &str = "NACRE_TALKS";
/// One tick of `/proc/PID/stat` in microseconds: USER_HZ is 1/100 s on every supported architecture.
const TICK_US: f64 = 10_000.0;

/// Load while an experiment ran, as shares of the time of all CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Other processes, and the kernel's own threads.
    pub others: f64,
    /// Time in which the hypervisor ran another guest.
    pub stolen: f64,
}

/// Counters since the start of an experiment.
pub(super) struct Watch {
    began: Instant,
    cpu: CpuTime,
    ours_us: f64,
    /// Value of the mark.
    value: String,
    /// Whether a process belongs to the experiment, by process id.
    known: HashMap<u32, bool>,
    /// CPU time in microseconds of each process of the experiment that has left its parent, as of the last
    /// sample.
    apart: HashMap<u32, f64>,
}

/// Parses `/proc/PID/stat`: the parent, and CPU time in microseconds of the process and of its children that
/// have ended.
fn stat(pid: u32) -> Option<(u32, f64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may contain blanks and parentheses. After it: state, ppid; utime is the 12th.
    let words: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: f64 = words.get(11..15)?.iter().filter_map(|word| word.parse::<f64>().ok()).sum();
    Some((words.get(1)?.parse().ok()?, ticks * TICK_US))
}

impl Watch {
    /// Starts to count. Processes of the experiment get [`MARK`] with this value.
    pub(super) fn begin(value: &str) -> Watch {
        let ours_us = machine::own_cpu_us() + machine::children_cpu_us();
        let (known, apart) = (HashMap::new(), HashMap::new());
        Watch { began: Instant::now(), cpu: CpuTime::now(), ours_us, value: value.to_owned(), known, apart }
    }

    /// Returns the value of the mark.
    pub(super) fn value(&self) -> &str {
        &self.value
    }

    /// Samples the processes that have left their parents.
    pub(super) fn look(&mut self) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        self.known.retain(|pid, _| pids.contains(pid));
        let mark = format!("{MARK}={}", self.value);
        for pid in pids {
            let is_ours = *self.known.entry(pid).or_insert_with(|| {
                let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environment.split(|byte| *byte == 0).any(|one| one == mark.as_bytes())
            });
            if !is_ours {
                continue;
            }
            let Some((parent, spent_us)) = stat(pid) else { continue };
            // Any other process of the experiment is waited for: the first one by this process, the rest by
            // their parents.
            let is_apart = parent != std::process::id() && !self.known.get(&parent).copied().unwrap_or(false);
            if is_apart {
                self.apart.insert(pid, spent_us);
            }
        }
    }

    /// Returns the load.
    pub(super) fn end(self) -> Load {
        let cpu = CpuTime::now();
        let all_us = self.began.elapsed().as_secs_f64() * 1e6 * nacre_env::cpu_count() as f64;
        let ours_us = machine::own_cpu_us() + machine::children_cpu_us() - self.ours_us;
        let busy_us = cpu.busy_us.saturating_sub(self.cpu.busy_us) as f64;
        let stolen_us = cpu.stolen_us.saturating_sub(self.cpu.stolen_us) as f64;
        let part = |us: f64| (us / all_us.max(1.0)).clamp(0.0, 1.0);
        let others_us = busy_us - ours_us - self.apart.values().sum::<f64>();
        Load { others: part(others_us), stolen: part(stolen_us) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_has_left_its_parent_is_one_of_the_experiment() {
        let mut watch = Watch::begin(&format!("test-{}", std::process::id()));
        // Prints the id of a background process that is busy until it is killed.
        let script = "(while :; do :; done) </dev/null >/dev/null 2>&1 & echo $!";
        let shell =
            Command::new("sh").args(["-c", script]).env(MARK, watch.value()).stdin(Stdio::null()).output();
        let output = shell.expect("a shell");
        let pid: u32 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
        let deadline = Instant::now() + std::time::Duration::from_secs(20);
        while watch.apart.get(&pid).is_none_or(|us| *us < 100_000.0) && Instant::now() < deadline {
            watch.look();
        }
        let found = watch.apart.get(&pid).copied();
        let pid = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
        assert!(found.is_some_and(|us| us >= 100_000.0), "{found:?}");
        assert_eq!(watch.known.get(&std::process::id()), Some(&false));
        let load = watch.end();
        assert!((0.0..=1.0).contains(&load.others) && (0.0..=1.0).contains(&load.stolen), "{load:?}");
    }

    #[test]
    fn the_statistics_of_a_process_name_its_parent() {
        let (parent, spent_us) = stat(std::process::id()).expect("this process");
        assert_eq!(parent, std::os::unix::process::parent_id());
        assert!(spent_us >= 0.0);
        assert!(stat(u32::MAX).is_none());
    }
}
