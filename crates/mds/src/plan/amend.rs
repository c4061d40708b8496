//! Attributes of an inode that is there. Source: chmod(2), chown(2), utimensat(2), truncate(2).

use super::{acl_of, check_access, may_keep_sgid};
use crate::layouts::stored::forget_written;
use crate::tables::CAPABILITY;
use nacre_ondisk::InodeRecord;
use nacre_types::attr::{S_IFMT, S_ISGID, S_ISUID};
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::{self, Verdict};
use nacre_types::{
    Attr, AttrFlags, Caps, Cred, FileKind, SetAttr, SetAttrValid, SizeSource, Status, StatusResult, Timestamp,
};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;

const S_IXGRP: u32 = 0o010;

/// What an inode says of itself from now on.
#[derive(Debug)]
pub(crate) struct Amendment<'a> {
    pub record: InodeRecord,
    /// Extended attributes that are stored apart.
    pub xattrs: SmallVec<[XattrChange<'a>; 1]>,
    /// It gives space back: then it may happen where there is none.
    pub is_releasing: bool,
}

/// An extended attribute that an inode gets; without a value, that it loses.
#[derive(Debug)]
pub(crate) struct XattrChange<'a> {
    pub name: &'a [u8],
    pub value: Option<Cow<'a, [u8]>>,
}

impl Amendment<'_> {
    /// Another record alone.
    pub fn of(record: InodeRecord) -> Self {
        Amendment { record, xattrs: SmallVec::new(), is_releasing: false }
    }

    /// A copy of a directory or file that changes now. A directory gets the latest of its and its shards' times, as all of them are about to
    /// get what it has.
    pub fn begun(record: &InodeRecord, shards: &[Arc<InodeRecord>], now: Timestamp) -> Self {
        let mut changed = record.clone();
        for shard in shards {
            changed.attr.atime = changed.attr.atime.max(shard.attr.atime);
            changed.attr.mtime = changed.attr.mtime.max(shard.attr.mtime);
        }
        changed.attr.ctime = now;
        Amendment::of(changed)
    }
}

/// An inode whose attributes are to change.
#[derive(Clone, Copy)]
pub(crate) struct Amended<'a> {
    /// With the size that it is known to have.
    pub record: &'a InodeRecord,
    /// Of a directory that has some.
    pub shards: &'a [Arc<InodeRecord>],
    /// One past the last byte that a file can have; counts where its size changes.
    pub end: u64,
    /// The caller is about to write; counts where [`may_be_of_a_write`].
    pub is_writer: bool,
}

/// Whether a change may only announce a write: the kernel sends the same for `chown(-1, -1)` and before somebody else than the owner
/// allocates or writes.
pub(crate) fn may_be_of_a_write(set: &SetAttr) -> bool {
    set.valid == SetAttrValid::CTIME | SetAttrValid::KILL_PRIV
}

/// Plans a change of attributes; `None` if there is nothing to do.
///
/// # Errors
/// `EPERM`, `EACCES`; `EISDIR`, `EINVAL`, `EFBIG`, `ENODATA` for sizes; `EUCLEAN` for what is damaged.
pub(crate) fn set_attr<'a>(
    cred: &Cred,
    amended: &Amended<'_>,
    set: &SetAttr,
    now: Timestamp,
) -> StatusResult<Option<Amendment<'a>>> {
    if set.valid.is_empty() || is_of_a_write(cred, amended, set)? {
        return Ok(None);
    }
    check_size(cred, amended, set)?;
    check_owner(cred, &amended.record.attr, set)?;
    check_times(cred, amended.record, set)?;
    let mut amendment = Amendment::begun(amended.record, amended.shards, now);
    let record = &mut amendment.record;
    let (valid, old_gid) = (set.valid, record.attr.gid);
    if valid.contains(SetAttrValid::UID) {
        record.attr.uid = set.uid;
    }
    if valid.contains(SetAttrValid::GID) {
        record.attr.gid = set.gid;
    }
    let drops = SetAttrValid::UID | SetAttrValid::GID | SetAttrValid::KILL_PRIV;
    if valid.intersects(drops) && !record.attr.is_dir() && drop_privileges(cred, record, old_gid)? {
        amendment.xattrs.push(XattrChange { name: CAPABILITY, value: None });
    }
    if valid.contains(SetAttrValid::MODE) {
        apply_mode(cred, record, set.mode)?;
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
    let pick = |exact, at_now, given, old| match () {
        () if valid.contains(at_now) => now,
        () if valid.contains(exact) => valid_time(given),
        () => old,
    };
    let attr = &mut record.attr;
    attr.atime = pick(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, set.atime, attr.atime);
    attr.mtime = pick(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, set.mtime, attr.mtime);
    Ok(Some(amendment))
}

/// What a write takes away its client says with it, so nothing is done for the announcement.
fn is_of_a_write(cred: &Cred, amended: &Amended<'_>, set: &SetAttr) -> StatusResult<bool> {
    let record = amended.record;
    if !may_be_of_a_write(set) || !has_privileges(&record.attr) {
        return Ok(false);
    }
    match perm::owner_or_capable(&record.attr, cred).or(Status::EPERM) {
        Err(Status::EPERM) if amended.is_writer => return Ok(true),
        Err(Status::EPERM) => {}
        allowed => return allowed.map(|()| false),
    }
    match check_access(record, cred, perm::WRITE) {
        Err(Status::EACCES) => Ok(false),
        verdict => verdict.map(|()| true),
    }
}

fn check_size(cred: &Cred, amended: &Amended<'_>, set: &SetAttr) -> StatusResult<()> {
    if !set.valid.contains(SetAttrValid::SIZE) {
        return Ok(());
    }
    match amended.record.attr.kind() {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Status::EISDIR),
        _ => return Err(Status::EINVAL),
    }
    if set.size > FILE_SIZE_MAX {
        return Err(Status::EFBIG);
    }
    if set.size > 0 && set.size > amended.end {
        return Err(Status::ENODATA);
    }
    match set.valid.contains(SetAttrValid::OPEN_FOR_WRITE) {
        true => Ok(()),
        false => check_access(amended.record, cred, perm::WRITE),
    }
}

/// Whether the caller may change owner, group, rights and project as wanted.
fn check_owner(cred: &Cred, attr: &Attr, set: &SetAttr) -> StatusResult<()> {
    let valid = set.valid;
    // A change of neither owner nor group needs no right, unless that takes one away. A truncation has had its check.
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
    match valid.intersects(SetAttrValid::MODE | project) {
        true => perm::owner_or_capable(attr, cred).or(Status::EPERM),
        false => Ok(()),
    }
}

fn check_times(cred: &Cred, record: &InodeRecord, set: &SetAttr) -> StatusResult<()> {
    let explicit = SetAttrValid::ATIME | SetAttrValid::MTIME;
    let both_now = SetAttrValid::ATIME_NOW | SetAttrValid::MTIME_NOW;
    if !set.valid.intersects(explicit | both_now) {
        return Ok(());
    }
    match perm::owner_or_capable(&record.attr, cred) {
        // Touching both times to now needs only what writing would need.
        Verdict::Denied if set.valid.contains(both_now) && !set.valid.intersects(explicit) => {
            check_access(record, cred, perm::WRITE)
        }
        verdict => verdict.or(Status::EPERM),
    }
}

fn apply_mode(cred: &Cred, record: &mut InodeRecord, mode: u32) -> StatusResult<()> {
    let mut mode = mode & 0o7777;
    if mode & S_ISGID != 0 && !may_keep_sgid(cred, record.attr.gid)? {
        mode &= !S_ISGID;
    }
    record.attr.mode = (record.attr.mode & S_IFMT) | mode;
    if let Some(acl) = acl_of(record)? {
        record.acl = acl.with_mode(mode).to_xattr();
    }
    Ok(())
}

/// A size change is only recorded: where there are objects, they tell the size until the client has cut them.
fn apply_size(record: &mut InodeRecord, size: u64) -> StatusResult<()> {
    record.attr.size = size;
    if size == 0 {
        record.attr.blocks = 0;
        forget_written(record)?;
    }
    if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        record.attr.size_source = SizeSource::Objects;
    }
    Ok(())
}

/// Whether [`drop_privileges`] may take something away.
pub(crate) fn has_privileges(attr: &Attr) -> bool {
    !attr.is_dir() && (attr.mode & (S_ISUID | S_ISGID) != 0 || attr.flags.contains(AttrFlags::HAS_CAPABILITY))
}

/// A time whose nanoseconds are within a second, whatever the peer sent.
pub(crate) fn valid_time(time: Timestamp) -> Timestamp {
    Timestamp::new(time.sec, time.nsec)
}

/// Takes away what a changed or given-away file must not keep: set-id bits and file capabilities. Set-group-id without
/// group execution means something else and stays if the caller is in group `gid`, as on Linux. True if it had a capability, whose
/// extended attribute has to go.
///
/// # Errors
/// `NEED_CREDENTIALS`.
pub(crate) fn drop_privileges(cred: &Cred, record: &mut InodeRecord, gid: u32) -> StatusResult<bool> {
    record.attr.mode &= !S_ISUID;
    let mode = record.attr.mode;
    if mode & S_ISGID != 0 && (mode & S_IXGRP != 0 || !may_keep_sgid(cred, gid)?) {
        record.attr.mode &= !S_ISGID;
    }
    let had_capability = record.attr.flags.contains(AttrFlags::HAS_CAPABILITY);
    record.attr.flags -= AttrFlags::HAS_CAPABILITY;
    Ok(had_capability)
}
