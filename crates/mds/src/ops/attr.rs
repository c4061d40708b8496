//! Reading attributes of an inode by FID.

use crate::locks::Want;
use crate::mds::Mds;
use crate::plan::check_access;
use crate::service::Caller;
use nacre_types::{Fid, FileKind, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};

impl Mds {
    pub(crate) fn get_attr(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        self.await_decision(&Want::Still(*fid))?;
        Ok(self.answer(MdsReply::Attr(self.told(&self.inode(fid)?)?)))
    }

    /// Waits while an operation over several MDTs has an inode or a name: nobody is to see half of it.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub(crate) fn await_decision(&self, of: &Want<'_>) -> StatusResult<()> {
        self.locks.await_decision(of)
    }

    pub(crate) fn access(&self, caller: &Caller<'_>, fid: &Fid, mask: u8) -> StatusResult<MdsAnswer> {
        if mask > 7 {
            return Err(Status::EINVAL);
        }
        let record = self.inode(fid)?;
        if mask != 0 {
            check_access(&record, caller.cred(), mask)?;
        }
        Ok(self.answer(MdsReply::Attr(record.shown())))
    }

    pub(crate) fn read_link(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.inode(fid)?;
        if record.attr.kind() != FileKind::Symlink {
            return Err(Status::EINVAL);
        }
        Ok(self.answer(MdsReply::Bytes(record.body.clone())))
    }
}
