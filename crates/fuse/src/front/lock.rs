//! File locks that the MDT keeps for all mounts.

use nacre_client::{Caller, FileLock, LockFamily, LockMode, LockOwner};
use nacre_types::{Fid, Status, StatusResult};

use super::data::Files;
use super::done;
use crate::abi;
use crate::reply::Reply;

/// The kernel's value for "to the end of the file".
const KERNEL_END: u64 = i64::MAX as u64;

/// Converts a lock of the kernel.
///
/// # Errors
/// `EINVAL` for an unknown lock type.
pub(super) fn to_lock(lock: &abi::FileLock, owner: u64, flock: bool) -> StatusResult<FileLock> {
    let mode = match lock.typ as i32 {
        libc::F_RDLCK => LockMode::Read,
        libc::F_WRLCK => LockMode::Write,
        libc::F_UNLCK => LockMode::Unlock,
        _ => return Err(Status::EINVAL),
    };
    let last = if lock.end >= KERNEL_END { u64::MAX } else { lock.end };
    Ok(FileLock {
        family: family(flock),
        owner: LockOwner(owner),
        mode,
        start: lock.start,
        last,
        pid: lock.pid,
    })
}

fn family(flock: bool) -> LockFamily {
    if flock { LockFamily::File } else { LockFamily::Range }
}

fn to_wire(lock: Option<FileLock>) -> abi::FileLock {
    let Some(lock) = lock else {
        return abi::FileLock { typ: libc::F_UNLCK as u32, ..abi::FileLock::default() };
    };
    let typ = if lock.mode == LockMode::Write { libc::F_WRLCK } else { libc::F_RDLCK };
    abi::FileLock { start: lock.start, end: lock.last.min(KERNEL_END), typ: typ as u32, pid: lock.pid }
}

impl Files {
    pub(super) fn getlk(
        &self,
        caller: &Caller,
        fid: Fid,
        lock: FileLock,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        reply.lock(&to_wire(self.client.opens.get_lock(caller, fid, lock)?));
        Ok(())
    }

    pub(super) fn setlk(
        &self,
        caller: &Caller,
        fh: u64,
        lock: FileLock,
        wait: bool,
        reply: &mut Reply<'_>,
    ) -> StatusResult<()> {
        // Before the request: a lock that was granted although the answer got lost must be released too.
        if lock.mode != LockMode::Unlock {
            self.client.opens.note_locker(fh, lock.family, lock.owner)?;
        }
        done(self.client.opens.set_lock(caller, fh, lock, wait), reply)
    }

    /// Releases the locks of an open file whose last descriptor was closed.
    pub(super) fn unlock_all(&self, caller: &Caller, fh: u64) -> StatusResult<()> {
        self.client.opens.unlock_with_open(fh, |family, owner| self.unlock(caller, fh, family, owner))
    }

    /// Releases the locks of an owner that has closed a descriptor.
    pub(super) fn unlock(
        &self,
        caller: &Caller,
        fh: u64,
        family: LockFamily,
        owner: LockOwner,
    ) -> StatusResult<()> {
        let mode = LockMode::Unlock;
        let lock = FileLock { family, owner, mode, start: 0, last: u64::MAX, pid: caller.pid };
        self.client.opens.set_lock(caller, fh, lock, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_file_is_translated_both_ways() {
        let kernel = abi::FileLock { start: 5, end: KERNEL_END, typ: libc::F_WRLCK as u32, pid: 9 };
        let lock = to_lock(&kernel, 1, false).expect("a write lock");
        assert_eq!((lock.start, lock.last, lock.mode), (5, u64::MAX, LockMode::Write));
        assert_eq!(to_wire(Some(lock)), kernel);
        assert_eq!(to_wire(None).typ, libc::F_UNLCK as u32);
        assert_eq!(to_lock(&abi::FileLock { typ: 77, ..kernel }, 1, false), Err(Status::EINVAL));
    }
}
