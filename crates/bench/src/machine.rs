//! The machine and its load.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Properties of the machine that figures depend on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model as the kernel names it.
    pub cpu: String,
    /// CPUs of this process's affinity mask.
    pub cpu_count: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Processes ready to run, averaged over the last minute: load of other users affects every figure.
    pub load: f64,
}

impl Machine {
    /// Reads the current state of the machine.
    pub fn look() -> Machine {
        let cpu_info = read("/proc/cpuinfo");
        let cpu = field(&cpu_info, "model name").unwrap_or("unknown").to_owned();
        let load = read("/proc/loadavg");
        Machine {
            cpu,
            cpu_count: nacre_env::cpu_count(),
            memory_mib: kib(&read("/proc/meminfo"), "MemTotal").unwrap_or(0) / 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: load.split_whitespace().next().and_then(|value| value.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Formats one line for the head of tables.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cpu_count, memory_mib, kernel, load } = self;
        write!(f, "{cpu_count} CPUs ({cpu}), {memory_mib} MiB, Linux {kernel}, load {load:.1} at the start")
    }
}

/// Returns the memory available without swapping, in MiB.
pub fn available_mib() -> u64 {
    kib(&read("/proc/meminfo"), "MemAvailable").unwrap_or(0) / 1024
}

/// Returns a field that is a number of KiB.
fn kib(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.split_whitespace().next()?.parse().ok()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim())
}

/// CPU time of the whole machine since boot.
#[derive(Debug, Clone, Copy)]
pub struct CpuTime {
    /// Time of user, system and interrupts, in microseconds; advances in ticks of 10 ms.
    pub busy_us: u64,
    /// Time in which a CPU was ready but the hypervisor ran another guest, in microseconds.
    pub stolen_us: u64,
}

impl CpuTime {
    /// Reads the current values.
    pub fn now() -> CpuTime {
        // One tick of /proc/stat is USER_HZ, 1/100 s on every supported architecture.
        const TICK_US: u64 = 10_000;
        let text = read("/proc/stat");
        let ticks: Vec<u64> = text
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
        // user, nice, system, irq and softirq; idle (3) and iowait (4) are not work.
        let busy = at(0) + at(1) + at(2) + at(5) + at(6);
        CpuTime { busy_us: busy * TICK_US, stolen_us: at(7) * TICK_US }
    }
}

/// Returns the resident memory of a process in bytes, shared pages included; `None` if it has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(kib(&status, "VmRSS")? * 1024)
}

/// Returns the CPU time of a process in microseconds, its ended threads included, with the kernel's full
/// precision; `None` if it has ended.
pub fn process_cpu_us(pid: u32) -> Option<f64> {
    let mut clock: libc::clockid_t = 0;
    // SAFETY: the call writes `clock`, which outlives it; any process id is allowed.
    if unsafe { libc::clock_getcpuclockid(libc::pid_t::try_from(pid).ok()?, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes `time`, which outlives it.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3)
}

fn spent_us(who: libc::c_int) -> f64 {
    // SAFETY: all zeros is a valid value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes `usage`, which outlives it; it fails only for other values of `who`.
    unsafe { libc::getrusage(who, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Returns the CPU time of this process in microseconds, its ended threads included.
pub fn own_cpu_us() -> f64 {
    spent_us(libc::RUSAGE_SELF)
}

/// Returns the CPU time in microseconds of the children that this process has waited for, and of their
/// children.
pub fn children_cpu_us() -> f64 {
    spent_us(libc::RUSAGE_CHILDREN)
}

/// Returns the CPU time of the calling thread in microseconds.
pub fn thread_cpu_us() -> f64 {
    spent_us(libc::RUSAGE_THREAD)
}

/// Returns the resident anonymous memory of this process in bytes: memory that the kernel cannot drop.
pub fn own_anonymous_bytes() -> u64 {
    kib(&read("/proc/self/status"), "RssAnon").unwrap_or(0) * 1024
}

/// Drops the kernel's cached pages, names and inodes of every file system, so that the next access reaches
/// the file system.
///
/// # Errors
///
/// EACCES unless root.
pub fn drop_caches() -> Result<(), Error> {
    const SWITCH: &str = "/proc/sys/vm/drop_caches";
    // Dirty pages cannot be dropped, so they are written first.
    rustix::fs::sync();
    fs::write(SWITCH, "3").map_err(Error::io("write", SWITCH))
}

/// Removes a file; a missing one is not an error.
///
/// # Errors
///
/// Errors of the file system.
pub fn remove_file(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let machine = Machine::look();
        assert!(machine.cpu_count >= 1);
        assert!(machine.memory_mib > 0);
        assert!(!machine.kernel.is_empty());
    }

    #[test]
    fn busy_time_advances_with_work_and_this_process_is_resident() {
        let before = CpuTime::now();
        let mut sum = 0u64;
        while CpuTime::now().busy_us == before.busy_us {
            sum = sum.wrapping_mul(3).wrapping_add(1);
        }
        assert!(std::hint::black_box(sum) != 7);
        assert!(resident_bytes(std::process::id()).is_some_and(|bytes| bytes > 4096));
        assert_eq!(resident_bytes(u32::MAX), None);
        assert!(process_cpu_us(std::process::id()).is_some_and(|spent| spent > 0.0));
        assert_eq!(process_cpu_us(u32::MAX), None);
    }
}
