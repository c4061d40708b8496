//! File locks that all mounts share.

use crate::caller::Caller;
use crate::client::Client;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{FileLock, LockFamily, LockMode, MdsReply, MdsRequest};
use std::time::{Duration, Instant};

/// How long a release may take to arrive after its descriptor was closed.
const RELEASE_PATIENCE: Duration = Duration::from_millis(100);

impl Client {
    /// Sets or releases a lock; with `wait` until it is granted.
    ///
    /// # Errors
    /// `EAGAIN` if another holds it and `wait` is false; `EINTR`; `EDEADLK`; `ENOLCK`.
    pub fn set_lock(&self, caller: &Caller, fid: Fid, lock: FileLock, wait: bool) -> StatusResult<()> {
        if lock.family == LockFamily::Range
            && lock.mode != LockMode::Unlock
            && let Some(file) = self.nodes.file(fid.inode_number())
        {
            // Before the request: a lock that was granted although the answer got lost must be given back too.
            file.lock().range_locked = true;
        }
        let request = MdsRequest::SetLock { fid, lock, wait };
        match self.call(caller, fid, &request) {
            // What is in the way may belong to a descriptor that was closed before: the kernel tells of the end of an open
            // file, with which its lock goes, only after close(2) has returned.
            Err(Status::EAGAIN) if lock.family == LockFamily::File && self.await_closes(fid)? => {
                self.call(caller, fid, &request).map(drop)
            }
            outcome => outcome.map(drop),
        }
    }

    /// Waits for opens of the file whose descriptors are closed to be released; false if there are none.
    fn await_closes(&self, fid: Fid) -> StatusResult<bool> {
        let Some(file) = self.nodes.file(fid.inode_number()) else { return Ok(false) };
        if file.lock().closing == 0 {
            return Ok(false);
        }
        // Another descriptor of the same open file may still be there, so not for ever.
        let deadline = Instant::now() + RELEASE_PATIENCE;
        file.wait_for(|inner| (inner.closing == 0 || Instant::now() >= deadline).then_some(true))
    }

    /// True if closing a descriptor of the open file may have to give `fcntl` locks back. Most files never have one, so
    /// most closes need no server.
    pub fn may_hold_range_locks(&self, handle: u64) -> bool {
        self.handles.file(handle).is_ok_and(|open| open.file.lock().range_locked)
    }

    /// The lock that keeps `lock` from being granted, if there is one.
    ///
    /// # Errors
    /// What the MDT answers.
    pub fn get_lock(&self, caller: &Caller, fid: Fid, lock: FileLock) -> StatusResult<Option<FileLock>> {
        match self.call(caller, fid, &MdsRequest::GetLock { fid, lock })?.reply {
            MdsReply::Lock(conflict) => Ok(conflict),
            _ => Err(Status::EPROTO),
        }
    }

    /// FID of an open file or directory.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn fid_of_handle(&self, handle: u64) -> StatusResult<Fid> {
        match self.handles.file(handle) {
            Ok(open) => Ok(open.file.fid),
            Err(_) => Ok(self.handles.dir(handle)?.fid),
        }
    }

    /// True if the handle is an open for writing.
    pub fn is_writable(&self, handle: u64) -> bool {
        self.handles.file(handle).is_ok_and(|open| open.writable())
    }
}
