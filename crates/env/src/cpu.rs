//! CPUs: their number, the current one, and pinning.

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
    // SAFETY: cpu_set_t is plain data for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // The main thread's mask, not this thread's: a pinned worker must still see all CPUs of the process.
    let process = std::process::id() as libc::pid_t;
    // SAFETY: `set` is valid for writes of the size that is passed.
    let result = unsafe { libc::sched_getaffinity(process, size_of::<libc::cpu_set_t>(), &mut set) };
    if result != 0 {
        return vec![0];
    }
    // SAFETY: CPU_ISSET reads bit `cpu` of the set; `cpu` is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
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
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: cpu_set_t is plain data for which all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below CPU_SETSIZE, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: `set` is valid for reads of the size that is passed; 0 means the current thread.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the CPU that this thread runs on; the thread may have moved before the caller uses the number.
pub fn current_cpu() -> usize {
    // The kernel may move threads of a simulation, whatever its seed.
    if crate::sim::is_here() {
        return 0;
    }
    // SAFETY: sched_getcpu takes no arguments and accesses no memory of the program.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
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
