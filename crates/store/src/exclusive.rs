//! Exclusion of other processes from a store.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A file or directory that is locked against other processes, and against this one; unlocked when dropped.
///
/// Dropping unlocks before it closes: a child process between `fork` and `exec` has a copy of the descriptor,
/// and a lock lasts as long as its last copy.
#[derive(Debug)]
pub(crate) struct Exclusive(OwnedFd);

impl Exclusive {
    /// Locks the file that `fd` is open on; `None` if another holder has the lock.
    ///
    /// # Errors
    /// Those of `flock(2)`, on file systems without locks.
    pub fn take(fd: OwnedFd) -> Result<Option<Exclusive>, Errno> {
        Exclusive::lock(fd, FlockOperation::NonBlockingLockExclusive)
    }

    /// Takes a shared lock; `None` if another process has an exclusive one.
    ///
    /// # Errors
    /// As [`Exclusive::take`].
    pub fn share(fd: OwnedFd) -> Result<Option<Exclusive>, Errno> {
        Exclusive::lock(fd, FlockOperation::NonBlockingLockShared)
    }

    fn lock(fd: OwnedFd, how: FlockOperation) -> Result<Option<Exclusive>, Errno> {
        match flock(&fd, how) {
            Ok(()) => Ok(Some(Exclusive(fd))),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for Exclusive {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        // If this fails, the close that follows unlocks.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn what_was_given_up_can_be_taken_while_a_process_that_starts_has_a_copy_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let open = || OwnedFd::from(File::open(dir.path()).unwrap());
        let first = Exclusive::take(open()).unwrap().expect("nobody has it");
        assert!(Exclusive::take(open()).unwrap().is_none());
        let copy = first.as_fd().try_clone_to_owned().unwrap();
        drop(first);
        assert!(Exclusive::take(open()).unwrap().is_some());
        drop(copy);
    }
}
