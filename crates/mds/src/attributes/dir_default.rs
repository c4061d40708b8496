//! Where directories that are made in a directory go: stored with the directory, handed down level by level, followed by clients. See
//! `docs/design/dne.md`. Source: reference 2.3 and 3.6.

use super::Attributes;
use crate::placement::put_default;
use crate::turn::Caller;
use crate::tx::now;
use nacre_layout::DirDefault;
use nacre_ondisk::InodeRecord;
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};

impl Attributes {
    /// Sets or, with an empty value or Lustre's word for it, removes the default.
    ///
    /// # Errors
    /// `EPERM` without the right to choose MDTs, and to who does not own the directory; `ENOTDIR`; `EINVAL`.
    pub(super) fn set_dir_default(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        value: &[u8],
    ) -> StatusResult<MdsAnswer> {
        self.placement.may_choose_mdts(caller)?;
        let held = self.distributed.lock_alike(caller, fid)?;
        let record = self.records.inode(fid)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        perm::owner_or_capable(&record.attr, caller.cred()).or(Status::EPERM)?;
        let mut changed = InodeRecord::clone(&record);
        held.take_latest_times(&mut changed)?;
        match value {
            [] => put_default(&mut changed, None),
            value => {
                let default = DirDefault::decode(value).map_err(|_| Status::EINVAL)?;
                put_default(&mut changed, Some(default).filter(|default| !default.is_removal()));
            }
        }
        if changed.default_lmv == record.default_lmv {
            return Ok(self.commits.answer(MdsReply::Attr(self.layouts.told(&record)?)));
        }
        changed.attr.ctime = now();
        let mut tx = self.records.begin();
        let record = tx.put_inode(changed);
        self.distributed.finish_held(caller, held, tx, MdsReply::Attr(record.shown()))
    }
}
