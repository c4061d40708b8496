//! Changing attributes. Source: chmod(2), chown(2), utimensat(2), truncate(2).

use super::Attributes;
use crate::layouts::forget_written;
use crate::opens::WriteSession;
use crate::plan::{acl_of, check_access, may_keep_sgid};
use crate::tables::{XATTRS, xattr_key};
use crate::turn::Caller;
use crate::tx::Tx;
use crate::tx::now;
use nacre_ondisk::InodeRecord;
use nacre_types::attr::{S_IFMT, S_ISGID, S_ISUID};
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::{self, Verdict};
use nacre_types::{
    Attr, AttrFlags, Caps, Fid, FileKind, SetAttr, SetAttrValid, SizeSource, Status, StatusResult, Timestamp,
};
use nacre_wire::mds::{MdsAnswer, MdsReply};

/// Name of the attribute that holds file capabilities.
pub(super) const CAPABILITY: &[u8] = b"security.capability";
const S_IXGRP: u32 = 0o010;

impl Attributes {
    pub fn set_attr(&self, caller: &Caller<'_>, fid: &Fid, set: &SetAttr) -> StatusResult<MdsAnswer> {
        let held = self.distributed.lock_alike(caller, fid)?;
        let record = self.layouts.settled(&self.records.inode(fid)?)?;
        if set.valid.is_empty() {
            return Ok(self.commits.answer(MdsReply::Attr(record.shown())));
        }
        if self.is_of_a_write(caller, &record, set)? {
            return Ok(self.commits.answer(MdsReply::Attr(record.shown())));
        }
        self.check_set_attr(caller, &record, set)?;
        let now = now();
        let mut tx = self.records.begin();
        let mut changed = InodeRecord::clone(&record);
        held.take_latest_times(&mut changed)?;
        self.apply_set_attr(caller, &mut tx, &mut changed, set, now)?;
        let record = tx.put_inode(changed);
        let answer = self.distributed.finish_held(caller, held, tx, MdsReply::Attr(record.shown()))?;
        if set.valid.contains(SetAttrValid::SIZE) {
            self.opens.break_leases(fid);
            self.opens.note_unsure(fid);
        }
        Ok(answer)
    }

    /// Whether a change of nothing comes before a write: the kernel sends the same for `chown(-1, -1)` and before somebody else than the owner
    /// allocates or writes. What a write takes away its client says with it, so nothing is done here.
    fn is_of_a_write(&self, caller: &Caller<'_>, record: &InodeRecord, set: &SetAttr) -> StatusResult<bool> {
        let (cred, attr) = (caller.cred(), &record.attr);
        if set.valid != SetAttrValid::CTIME | SetAttrValid::KILL_PRIV || !has_privileges(attr) {
            return Ok(false);
        }
        match perm::owner_or_capable(attr, cred).or(Status::EPERM) {
            Err(Status::EPERM) => {}
            allowed => return allowed.map(|()| false),
        }
        let is_writer = |session: WriteSession| session.shared || session.client == caller.client;
        if self.opens.session(&attr.fid).is_some_and(is_writer) {
            return Ok(true);
        }
        match check_access(record, cred, perm::WRITE) {
            Err(Status::EACCES) => Ok(false),
            verdict => verdict.map(|()| true),
        }
    }

    fn check_set_attr(&self, caller: &Caller<'_>, record: &InodeRecord, set: &SetAttr) -> StatusResult<()> {
        let (valid, cred, attr) = (set.valid, caller.cred(), &record.attr);
        if valid.contains(SetAttrValid::SIZE) {
            match attr.kind() {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Status::EISDIR),
                _ => return Err(Status::EINVAL),
            }
            if set.size > FILE_SIZE_MAX {
                return Err(Status::EFBIG);
            }
            if set.size > 0 && set.size > self.layouts.end_of_file(record)? {
                return Err(Status::ENODATA);
            }
            if !valid.contains(SetAttrValid::OPEN_FOR_WRITE) {
                check_access(record, cred, perm::WRITE)?;
            }
        }
        // Who changes neither owner nor group needs no right, unless that takes one away. A truncation has had its check.
        let only_drops = !valid.intersects(SetAttrValid::SIZE | SetAttrValid::OPEN_FOR_WRITE);
        if valid.contains(SetAttrValid::KILL_PRIV) && only_drops && has_privileges(attr) {
            perm::owner_or_capable(attr, cred).or(Status::EPERM)?;
        }
        if valid.contains(SetAttrValid::UID) && !(cred.uid == attr.uid && set.uid == attr.uid) {
            perm::capable(cred, Caps::CHOWN).or(Status::EPERM)?;
        }
        if valid.contains(SetAttrValid::GID) {
            perm::may_change_group(cred, attr, set.gid).or(Status::EPERM)?;
        }
        let project = SetAttrValid::PROJID | SetAttrValid::PROJECT_INHERIT | SetAttrValid::NO_PROJECT_INHERIT;
        if valid.intersects(SetAttrValid::MODE | project) {
            perm::owner_or_capable(attr, cred).or(Status::EPERM)?;
        }
        let explicit = SetAttrValid::ATIME | SetAttrValid::MTIME;
        let both_now = SetAttrValid::ATIME_NOW | SetAttrValid::MTIME_NOW;
        if valid.intersects(explicit | both_now) {
            match perm::owner_or_capable(attr, cred) {
                // Touching both times to now needs only what writing would need.
                Verdict::Denied if valid.contains(both_now) && !valid.intersects(explicit) => {
                    check_access(record, cred, perm::WRITE)?;
                }
                verdict => verdict.or(Status::EPERM)?,
            }
        }
        Ok(())
    }

    fn apply_set_attr(
        &self,
        caller: &Caller<'_>,
        tx: &mut Tx,
        record: &mut InodeRecord,
        set: &SetAttr,
        now: Timestamp,
    ) -> StatusResult<()> {
        let valid = set.valid;
        let old_gid = record.attr.gid;
        record.attr.ctime = now;
        if valid.contains(SetAttrValid::UID) {
            record.attr.uid = set.uid;
        }
        if valid.contains(SetAttrValid::GID) {
            record.attr.gid = set.gid;
        }
        let drops = SetAttrValid::UID | SetAttrValid::GID | SetAttrValid::KILL_PRIV;
        if valid.intersects(drops) && !record.attr.is_dir() {
            drop_privileges(caller, tx, record, old_gid)?;
        }
        if valid.contains(SetAttrValid::MODE) {
            self.apply_mode(caller, record, set.mode)?;
        }
        if valid.contains(SetAttrValid::PROJID) {
            record.attr.projid = set.projid;
        }
        if valid.intersects(SetAttrValid::PROJECT_INHERIT | SetAttrValid::NO_PROJECT_INHERIT) {
            // Only directories hand a project down. Lustre's clients set the flag on whole trees, and it is ignored on files there, too.
            let inherit = valid.contains(SetAttrValid::PROJECT_INHERIT) && record.attr.is_dir();
            record.attr.flags.set(AttrFlags::PROJECT_INHERIT, inherit);
        }
        if valid.contains(SetAttrValid::SIZE) {
            apply_size(record, set.size)?;
            record.attr.mtime = now;
        }
        let pick = |exact, at_now, given: Timestamp, old| {
            if valid.contains(at_now) {
                now
            } else if valid.contains(exact) {
                valid_time(given)
            } else {
                old
            }
        };
        let attr = &mut record.attr;
        attr.atime = pick(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, set.atime, attr.atime);
        attr.mtime = pick(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, set.mtime, attr.mtime);
        Ok(())
    }

    fn apply_mode(&self, caller: &Caller<'_>, record: &mut InodeRecord, mode: u32) -> StatusResult<()> {
        let mut mode = mode & 0o7777;
        if mode & S_ISGID != 0 && !may_keep_sgid(caller.cred(), record.attr.gid)? {
            mode &= !S_ISGID;
        }
        record.attr.mode = (record.attr.mode & S_IFMT) | mode;
        if let Some(acl) = acl_of(record)? {
            record.acl = acl.with_mode(mode).to_xattr();
        }
        Ok(())
    }
}

/// Whether [`drop_privileges`] may take something away.
pub(crate) fn has_privileges(attr: &Attr) -> bool {
    !attr.is_dir() && (attr.mode & (S_ISUID | S_ISGID) != 0 || attr.flags.contains(AttrFlags::HAS_CAPABILITY))
}

/// A time whose nanoseconds are within a second, whatever the peer sent.
pub(crate) fn valid_time(time: Timestamp) -> Timestamp {
    Timestamp::new(time.sec, time.nsec)
}

/// A size change is only recorded: where there are objects, they tell the size until the client has cut them.
fn apply_size(record: &mut InodeRecord, size: u64) -> StatusResult<()> {
    record.attr.size = size;
    if size == 0 {
        record.attr.blocks = 0;
        forget_written(record)?;
    }
    let attr = &mut record.attr;
    if attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        attr.size_source = SizeSource::Objects;
    }
    Ok(())
}

/// Takes away what a changed or given-away file must not keep: set-id bits and file capabilities. Set-group-id without
/// group execution means something else and stays if the caller is in group `gid`, as on Linux.
///
/// # Errors
/// `NEED_CREDENTIALS`.
pub(crate) fn drop_privileges(
    caller: &Caller<'_>,
    tx: &mut Tx,
    record: &mut InodeRecord,
    gid: u32,
) -> StatusResult<()> {
    record.attr.mode &= !S_ISUID;
    let mode = record.attr.mode;
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !may_keep_sgid(caller.cred(), gid)?) {
        record.attr.mode &= !S_ISGID;
    }
    if record.attr.flags.contains(AttrFlags::HAS_CAPABILITY) {
        record.attr.flags -= AttrFlags::HAS_CAPABILITY;
        tx.batch().delete(XATTRS, xattr_key(&record.attr.fid, CAPABILITY).as_slice());
    }
    Ok(())
}
