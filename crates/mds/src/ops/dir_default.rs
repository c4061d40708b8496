//! Where directories that are made in a directory go: stored with the directory, handed down level by level, followed by clients. See
//! `docs/design/dne.md`. Source: reference 2.3 and 3.6.

use crate::mds::Mds;
use crate::service::Caller;
use nacre_layout::DirDefault;
use nacre_ondisk::InodeRecord;
use nacre_types::perm::{self, Verdict};
use nacre_types::{AttrFlags, Caps, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};

impl Mds {
    /// Whether the caller may say on which MDTs something is to be: administrators and members of one group
    /// (`mdt.*.enable_remote_dir_gid`).
    ///
    /// # Errors
    /// `EPERM`.
    pub(crate) fn may_choose_mdts(&self, caller: &Caller<'_>) -> StatusResult<()> {
        let allowed = self.remote_dir_gid();
        if allowed == -1 {
            return Ok(());
        }
        let verdict = match perm::capable(caller.cred(), Caps::SYS_ADMIN) {
            Verdict::Denied if allowed != 0 => {
                u32::try_from(allowed).map_or(Verdict::Denied, |gid| perm::in_group(caller.cred(), gid))
            }
            verdict => verdict,
        };
        verdict.or(Status::EPERM)
    }

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
        self.may_choose_mdts(caller)?;
        let held = self.lock_alike(caller, fid)?;
        let record = self.inode(fid)?;
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
            return Ok(self.answer(MdsReply::Attr(self.told(&record)?)));
        }
        changed.attr.ctime = self.now();
        let mut tx = self.begin();
        let record = tx.put_inode(changed);
        self.finish_held(caller, held, tx, MdsReply::Attr(record.shown()))
    }
}

/// What a new directory gets of its parent's default, `Some(None)` for nothing of it; `None` if there is none to be handed down. The root's
/// stands for the whole file system and is followed where it is.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
pub(crate) fn inherited_default(parent: &InodeRecord) -> StatusResult<Option<Option<DirDefault>>> {
    match parent.default_lmv.is_empty() || parent.attr.fid == Fid::ROOT {
        true => Ok(None),
        false => Ok(Some(stored_default(parent)?.inherited())),
    }
}

/// The default that a directory has stored, which is not empty.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
fn stored_default(record: &InodeRecord) -> StatusResult<DirDefault> {
    DirDefault::decode(&record.default_lmv).map_err(|error| {
        log::error!("the default of {} for new directories: {error}", record.attr.fid);
        Status::EUCLEAN
    })
}

/// Stores a default with a directory, or none.
pub(crate) fn put_default(record: &mut InodeRecord, default: Option<DirDefault>) {
    record.attr.flags.set(AttrFlags::HAS_DIR_DEFAULT, default.is_some());
    record.default_lmv = default.map_or_else(Vec::new, |default| default.encode());
}
