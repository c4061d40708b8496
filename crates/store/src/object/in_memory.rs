//! Files whose file system keeps them in memory.
//!
//! A transfer of theirs is a copy, so there is nothing to wait for and no wait to report: on a connection of
//! an OST a report brings in another thread, which costs more than the copy. tmpfs has no reads without
//! waiting (`RWF_NOWAIT` returns `EOPNOTSUPP`, Linux 6.18), and for such files `io_uring` has a thread of the
//! kernel do each transfer. So short reads are plain calls.

use rustix::fs;
use std::os::fd::AsFd;

/// `f_type` of tmpfs (`linux/magic.h`).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// Bytes that a thread copies before it reports that it is busy: 0.1 ms.
pub(super) const AT_ONCE: usize = 512 << 10;

/// Whether a file is in memory.
pub(super) fn is_in_memory(fd: impl AsFd) -> bool {
    fs::fstatfs(fd).is_ok_and(|found| found.f_type as u64 == TMPFS_MAGIC)
}

/// Budget of [`AT_ONCE`] bytes for copies of one call; a transfer beyond it is reported as a wait.
pub(super) struct CopyBudget {
    left: usize,
}

impl CopyBudget {
    /// Creates the budget for the transfers of one call, which are copies if `is_memory`.
    pub(super) fn new(is_memory: bool) -> CopyBudget {
        CopyBudget { left: if is_memory { AT_ONCE } else { 0 } }
    }

    /// Does a transfer of `len` bytes; all but short copies in [`nacre_env::blocking`].
    pub(super) fn transfer<R>(&mut self, len: usize, work: impl FnOnce() -> R) -> R {
        match self.left.checked_sub(len) {
            Some(left) if self.left > 0 => {
                self.left = left;
                work()
            }
            _ => nacre_env::blocking(work),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nacre_env::BlockingHook;
    use std::cell::Cell;
    use std::rc::Rc;

    #[derive(Default)]
    struct Counter(Cell<u32>);

    impl BlockingHook for Counter {
        fn enter(&self) {
            self.0.set(self.0.get() + 1);
        }
        fn exit(&self) {}
    }

    /// Returns how often this thread reports that it waits.
    pub(in crate::object) fn waits_told(work: impl FnOnce()) -> u32 {
        let counter = Rc::new(Counter::default());
        let _hook = nacre_env::install_hook(counter.clone());
        work();
        counter.0.get()
    }

    /// Returns a directory in memory; `None` where there is no tmpfs.
    pub(in crate::object) fn memory_dir() -> Option<tempfile::TempDir> {
        let dir = tempfile::tempdir_in("/dev/shm").ok()?;
        is_in_memory(std::fs::File::open(dir.path()).ok()?).then_some(dir)
    }

    #[test]
    fn short_copies_are_no_waits_and_everything_else_is() {
        let of = |is_memory: bool, lens: &[usize]| {
            let mut timeout = CopyBudget::new(is_memory);
            waits_told(|| lens.iter().for_each(|len| timeout.transfer(*len, || ())))
        };
        assert_eq!(of(false, &[0, 1, 4096]), 3);
        assert_eq!(of(true, &[4096; 32]), 0);
        assert_eq!(of(true, &[AT_ONCE, 1]), 1);
        assert_eq!(of(true, &[AT_ONCE + 1, 4096]), 1, "the short one has its turn");
    }
}
