//! Memory that a busy time has left: freed, and kept by the allocator.
//!
//! The allocator keeps what each of many threads has freed, which after a burst is more than what is in use. [`Heap`] gives it back once the process
//! has become quiet: while it works, the pages would be taken from the system again at once.

use std::time::Duration;

/// Part of the time between two looks, in percent, that a quiet process computes at most.
const QUIET_PERCENT: u32 = 2;
/// CPU time since the allocator was last emptied that is worth doing it again.
const WORK_MIN: Duration = Duration::from_millis(500);

/// Gives back what a quiet process does not use. Looked after every few seconds by one thread.
#[derive(Debug, Default)]
pub struct Heap {
    /// CPU time at the last look.
    seen: Duration,
    /// CPU time when the allocator was last emptied.
    emptied: Duration,
}

impl Heap {
    /// Looks at the process, `since` after the last time, and empties the allocator if it is due. True if it was.
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
    // SAFETY: it takes the allocator's own locks, and changes nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

/// Other allocators have no such call.
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
                // One piece at the end keeps the allocator from shrinking by itself.
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
