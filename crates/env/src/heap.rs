//! Return of freed memory to the system after a burst of work.
//!
//! The allocator keeps the memory that each of many threads has freed, which after a burst is more than what
//! is in use. [`Heap`] returns it once the process has become idle: during the work, the pages would be
//! allocated again at once.

use std::time::Duration;

/// CPU time of an idle process as a share of the time between two checks, in percent, at most.
const QUIET_PERCENT: u32 = 2;
/// CPU time since the allocator was last trimmed that makes another trim worthwhile.
const WORK_MIN: Duration = Duration::from_millis(500);

/// Trims the allocator of an idle process. One thread calls it every few seconds.
#[derive(Debug, Default)]
pub struct Heap {
    /// CPU time at the last check.
    seen: Duration,
    /// CPU time when the allocator was last trimmed.
    emptied: Duration,
}

impl Heap {
    /// Checks the process, `since` after the last check, and trims the allocator if that is due. Returns true
    /// if it did.
    pub fn look(&mut self, since: Duration) -> bool {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu = Duration::try_from(cpu).unwrap_or_default();
        let is_due = self.is_due(cpu, since);
        if is_due {
            give_back();
        }
        is_due
    }

    fn is_due(&mut self, cpu: Duration, since: Duration) -> bool {
        let spent = cpu.saturating_sub(std::mem::replace(&mut self.seen, cpu));
        let is_quiet = spent * 100 <= since * QUIET_PERCENT;
        let is_due = is_quiet && cpu.saturating_sub(self.emptied) >= WORK_MIN;
        if is_due {
            self.emptied = cpu;
        }
        is_due
    }
}

#[cfg(target_env = "gnu")]
fn give_back() {
    // SAFETY: the call takes the allocator's own locks, and changes no memory that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other allocators have no such call.
#[cfg(not(target_env = "gnu"))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_given_back_once_after_work_when_it_is_quiet() {
        let mut heap = Heap::default();
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert!(!heap.is_due(ms(100), second), "little was done");
        assert!(!heap.is_due(ms(1000), second), "busy");
        assert!(heap.is_due(ms(1010), second), "quiet after work");
        assert!(!heap.is_due(ms(1020), second), "nothing was done since");
        assert!(!heap.is_due(ms(1600), second) && heap.is_due(ms(1605), second));
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn what_many_threads_have_freed_goes_back_to_the_system() {
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").expect("readable");
            pages.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a number") * 4096
        };
        let threads = (0..4).map(|_| {
            crate::thread::spawn(|| {
                let mut pieces: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 512]).collect();
                // One live block at the end keeps the allocator from shrinking automatically.
                let last = pieces.pop();
                drop(pieces);
                last
            })
        });
        let kept: Vec<_> = threads.map(|thread| thread.join().expect("no panic")).collect();
        let before = resident();
        give_back();
        let after = resident();
        assert!(before - after > 10 << 20, "{before} {after}");
        assert_eq!(kept.len(), 4);
    }
}
