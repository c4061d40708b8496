//! Attributes of an inode by FID.

use super::Lookups;
use crate::layouts::stored_request;
use crate::locks::Want;
use crate::plan::check_access;
use crate::suspend::Caller;
use nacre_lock::LockHandle;
use nacre_types::{Fid, FileKind, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::sync::Arc;

impl Lookups {
    pub fn get_attr(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        self.leaves.locks.await_decision(&Want::Still(*fid))?;
        Ok(self
            .core
            .commits
            .answer(MdsReply::Attr(self.core.layouts.told(&self.leaves.records.inode(fid)?)?)))
    }

    /// Returns the attributes of the client's root, or the MDT that has it.
    pub fn get_root(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        if fid.mdt_index() == self.leaves.index {
            return self.get_attr(fid);
        }
        let (public, names, directory) = (false, None, LockHandle(0));
        Ok(self.core.commits.answer(MdsReply::Remote { fid: *fid, public, names, directory }))
    }

    pub fn access(&self, caller: &Caller<'_>, fid: &Fid, mask: u8) -> StatusResult<MdsAnswer> {
        if mask > 7 {
            return Err(Status::EINVAL);
        }
        let record = self.leaves.records.inode(fid)?;
        if mask != 0 {
            check_access(&record, caller.cred(), mask)?;
        }
        Ok(self.core.commits.answer(MdsReply::Attr(record.shown())))
    }

    pub fn read_link(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.leaves.records.inode(fid)?;
        if record.attr.kind() != FileKind::Symlink {
            return Err(Status::EINVAL);
        }
        Ok(self.core.commits.answer(MdsReply::Bytes(record.body.clone())))
    }

    pub fn get_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.leaves.records.inode(fid)?;
        Ok(self.core.commits.answer(MdsReply::Layout(self.core.layouts.layout_of(&record)?.map(Arc::new))))
    }

    pub fn get_default_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.leaves.records.directory(fid)?;
        let requested = if record.body.is_empty() { None } else { Some(stored_request(&record)?) };
        Ok(self.core.commits.answer(MdsReply::DefaultLayout(requested)))
    }
}
