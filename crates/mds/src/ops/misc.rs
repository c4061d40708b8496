//! Durability and file locks.

use crate::mds::Mds;
use crate::service::Caller;
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::mds::{FileLock, MdsAnswer, MdsReply, MdsRequest, ProcessLock};
use std::time::Duration;

/// Longest wait for objects to be destroyed when everything is to be made durable.
const DESTROY_PATIENCE: Duration = Duration::from_secs(5);

impl Mds {
    pub(crate) fn commit_upto(&self, upto: TransNo) -> StatusResult<MdsAnswer> {
        let all = upto == TransNo(u64::MAX);
        let upto = upto.min(self.store.last_transno());
        self.sync_store(upto)?;
        self.settle_operations(upto)?;
        if all {
            nacre_env::blocking(|| self.osts.drain(DESTROY_PATIENCE));
            // OSTs may be on the same disk.
            self.space.refresh();
        }
        Ok(self.answer(MdsReply::Done))
    }

    /// What a client says about file locks.
    pub(crate) fn serve_file_locks(
        &self,
        caller: &Caller<'_>,
        request: &MdsRequest<'_>,
    ) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::SetLock { fid, lock, wait } => {
                self.set_lock(caller, fid, &ProcessLock { lock: *lock, process: 0 }, *wait, 0)
            }
            MdsRequest::LockFile { fid, lock, wait, asked_ns } => {
                self.set_lock(caller, fid, lock, *wait, *asked_ns)
            }
            MdsRequest::ReplayFileLocks { fid, locks } => self.replay_file_locks(caller, fid, locks),
            MdsRequest::GetLock { fid, lock } => self.get_lock(caller, fid, lock),
            _ => Err(Status::EPROTO),
        }
    }

    fn set_lock(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        lock: &ProcessLock,
        wait: bool,
        asked_ns: u64,
    ) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        self.note_recovered();
        self.flocks.set(fid, caller.client, lock, wait, asked_ns)?;
        // Dropped meanwhile: its locks may have been released before this one was set.
        if let Err(status) = self.clients.check(&caller.client) {
            self.flocks.release_client(&caller.client);
            return Err(status);
        }
        Ok(self.answer(MdsReply::Done))
    }

    /// Takes back locks that a client held in the last run. The end of the replay comes with the end of that of its other locks.
    fn replay_file_locks(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        locks: &[ProcessLock],
    ) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        let may_restore = self.mdlocks.awaits(&caller.client);
        let refused = self.flocks.replay(fid, caller.client, locks, may_restore);
        Ok(self.answer(MdsReply::RefusedLocks(refused)))
    }

    fn get_lock(&self, caller: &Caller<'_>, fid: &Fid, lock: &FileLock) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        if lock.start > lock.last {
            return Err(Status::EINVAL);
        }
        self.note_recovered();
        Ok(self.answer(MdsReply::Lock(self.flocks.conflict(fid, caller.client, lock)?)))
    }

    fn check_lockable(&self, fid: &Fid) -> StatusResult<()> {
        self.inode(fid).map(|_| ())
    }
}
