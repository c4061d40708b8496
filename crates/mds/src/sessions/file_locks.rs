//! File locks of clients' sessions.

use super::Sessions;
use crate::suspend::Caller;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{FileLock, MdsAnswer, MdsReply, ProcessLock};

impl Sessions {
    pub(crate) fn set_lock(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        lock: &FileLock,
        wait: bool,
    ) -> StatusResult<MdsAnswer> {
        self.lock(caller, fid, &ProcessLock { lock: *lock, process: 0 }, wait, 0)
    }

    pub(crate) fn lock(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        lock: &ProcessLock,
        wait: bool,
        asked_ns: u64,
    ) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        self.note_recovered();
        self.leaves.flocks.set(fid, caller.client, lock, wait, asked_ns)?;
        // If the client was removed meanwhile, its locks may have been released before this one was set.
        if let Err(status) = self.leaves.clients.check(&caller.client) {
            self.leaves.flocks.release_client(&caller.client);
            return Err(status);
        }
        Ok(self.core.commits.answer(MdsReply::Done))
    }

    /// Replays the file locks that a client held in the last run. Their replay ends with that of its other
    /// locks.
    pub(crate) fn replay_file_locks(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        locks: &[ProcessLock],
    ) -> StatusResult<MdsAnswer> {
        let may_restore = self.leaves.mdlocks.awaits(&caller.client);
        // Another client may be about to replay the creation of the file.
        if !may_restore || !self.leaves.replays.may_lack() {
            self.check_lockable(fid)?;
        }
        let refused = self.leaves.flocks.replay(fid, caller.client, locks, may_restore);
        Ok(self.core.commits.answer(MdsReply::RefusedLocks(refused)))
    }

    pub(crate) fn get_lock(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        lock: &FileLock,
    ) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        if lock.start > lock.last {
            return Err(Status::EINVAL);
        }
        self.note_recovered();
        Ok(self.core.commits.answer(MdsReply::Lock(self.leaves.flocks.conflict(fid, caller.client, lock)?)))
    }

    fn check_lockable(&self, fid: &Fid) -> StatusResult<()> {
        self.leaves.records.inode(fid).map(|_| ())
    }
}
