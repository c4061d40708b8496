//! Durability and file locks.

use crate::mds::Mds;
use crate::service::Caller;
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::mds::{FileLock, MdsAnswer, MdsReply};
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

    pub(crate) fn set_lock(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        lock: &FileLock,
        wait: bool,
    ) -> StatusResult<MdsAnswer> {
        self.check_lockable(fid)?;
        self.flocks.set(fid, caller.client, lock, wait)?;
        // Dropped meanwhile: its locks may have been released before this one was set.
        if let Err(status) = self.clients.check(&caller.client) {
            self.flocks.release_client(&caller.client);
            return Err(status);
        }
        Ok(self.answer(MdsReply::Done))
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
        Ok(self.answer(MdsReply::Lock(self.flocks.conflict(fid, caller.client, lock))))
    }

    fn check_lockable(&self, fid: &Fid) -> StatusResult<()> {
        self.inode(fid).map(|_| ())
    }
}
