//! CPUs: their number, the current one, and pinning.

use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::io;

/// CPUs of the hosts of a simulation: enough for pools to have several threads.
const SIMULATED_CPUS: usize = 2;

/// Returns the number of CPUs that this process may run on, at least 1; in a simulation always the same.
pub fn cpu_count() -> usize {
    if crate::sim::is_here() {
        return SIMULATED_CPUS;
    }
    online_cpus().len().max(1)
}

/// Returns the CPUs that this process may run on (its affinity mask), in ascending order.
pub fn online_cpus() -> Vec<usize> {
    // The main thread's mask, not this thread's: a pinned worker must still see all CPUs of the process.
    let main = Some(rustix::process::getpid());
    match rustix::thread::sched_getaffinity(main) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Returns the number of CPUs that may ever come online, the bound for CPU numbers; the kernel has one FUSE
/// queue for each.
pub fn possible_cpu_count() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    match parse_cpu_list_end(&text) {
        Some(last) => last + 1,
        None => online_cpus().last().map_or(1, |last| last + 1),
    }
}

/// Returns the highest number in a kernel CPU list such as `0-3,8-11`.
fn parse_cpu_list_end(text: &str) -> Option<usize> {
    text.trim().rsplit(['-', ',']).next()?.parse().ok()
}

/// Pins the current thread to `cpu`.
///
/// # Errors
///
/// `EINVAL` when the CPU is offline, does not exist or is not in the process's cpuset; the thread's affinity
/// is then unchanged.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Keeps a thread, and those that it starts, on the CPU that it runs on, until this is dropped.
pub(crate) struct Pinned {
    /// CPUs of the thread before.
    before: CpuSet,
}

impl Pinned {
    /// Pins the current thread; `None` where the system does not allow it.
    pub(crate) fn new() -> Option<Pinned> {
        let before = rustix::thread::sched_getaffinity(None).ok()?;
        pin_to_cpu(current_cpu()).is_ok().then_some(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Fails only if all of these CPUs are gone: the thread stays on this one.
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

/// Returns the CPU that this thread runs on; the thread may have moved before the caller uses the number.
pub fn current_cpu() -> usize {
    // The kernel may move threads of a simulation, whatever its seed.
    if crate::sim::is_here() {
        return 0;
    }
    rustix::thread::sched_getcpu()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_end_where_they_say() {
        assert_eq!(parse_cpu_list_end("0-1\n"), Some(1));
        assert_eq!(parse_cpu_list_end("0\n"), Some(0));
        assert_eq!(parse_cpu_list_end("0-3,8-11"), Some(11));
        assert_eq!(parse_cpu_list_end("0-3,8"), Some(8));
        assert_eq!(parse_cpu_list_end(""), None);
    }

    #[test]
    fn a_pinned_thread_runs_there() {
        for cpu in online_cpus() {
            std::thread::spawn(move || {
                pin_to_cpu(cpu).expect("a CPU of our own mask can be pinned to");
                assert_eq!(current_cpu(), cpu);
                assert!(cpu_count() >= 1, "pinning one thread does not hide the others");
            })
            .join()
            .expect("pinning thread");
        }
        assert!(pin_to_cpu(1 << 20).is_err());
        assert!(possible_cpu_count() >= cpu_count());
    }
}
