//! Attributes of an existing inode, with the rules of chmod(2), chown(2), utimensat(2), truncate(2).

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

/// Changed attributes of an inode.
#[derive(Debug)]
pub(crate) struct Amendment<'a> {
    pub record: InodeRecord,
    /// Extended attributes, which have records of their own.
    pub xattrs: SmallVec<[XattrChange<'a>; 1]>,
    /// True if it frees space: then it is allowed on a full MDT.
    pub is_releasing: bool,
}

/// An extended attribute that an inode gets or, without a value, loses.
#[derive(Debug)]
pub(crate) struct XattrChange<'a> {
    pub name: &'a [u8],
    pub value: Option<Cow<'a, [u8]>>,
}

impl Amendment<'_> {
    /// Builds a change of the record alone.
    pub fn of(record: InodeRecord) -> Self {
        Amendment { record, xattrs: SmallVec::new(), is_releasing: false }
    }

    /// Copies the record of a directory or file for a change. A directory gets the latest of its and its
    /// shards' times, since all of them get the directory's.
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
    /// Its record, with the known size.
    pub record: &'a InodeRecord,
    /// Shards of a striped directory.
    pub shards: &'a [Arc<InodeRecord>],
    /// One past the last byte that a file can have; used if its size changes.
    pub end: u64,
    /// True if the caller is about to write; used if [`may_be_of_a_write`].
    pub is_writer: bool,
}

/// Returns true if a change may only announce a write: the kernel sends the same for `chown(-1, -1)` and
/// before a user other than the owner allocates or writes.
pub(crate) fn may_be_of_a_write(set: &SetAttr) -> bool {
    set.valid == SetAttrValid::CTIME | SetAttrValid::KILL_PRIV
}

/// Plans a change of attributes; `None` if nothing changes.
///
/// # Errors
/// `EPERM`, `EACCES`; `EISDIR`, `EINVAL`, `EFBIG`, `ENODATA` for sizes; `EUCLEAN` for damaged records.
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
        // Only directories pass on a project. Lustre's clients set the flag on whole trees, and it is ignored
        // on files there, too.
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

/// Returns true for the announcement of a write, which changes nothing: the client reports the privileges
/// that the write removes together with it.
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

/// Checks that the caller may change owner, group, rights and project as requested.
fn check_owner(cred: &Cred, attr: &Attr, set: &SetAttr) -> StatusResult<()> {
    let valid = set.valid;
    // A change of neither owner nor group needs no right, unless it removes one. A truncation has been
    // checked.
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
        // Setting both times to now needs only the right to write.
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

/// Records a change of the size: where there are objects, these determine the size until the client has
/// truncated them.
fn apply_size(record: &mut InodeRecord, size: u64) -> StatusResult<()> {
    record.attr.size = size;
    record.attr.size_stamp = Attr::NEW_STAMP;
    if size == 0 {
        record.attr.blocks = 0;
        forget_written(record)?;
    }
    if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        record.attr.size_source = SizeSource::Objects;
    }
    Ok(())
}

/// Returns true if [`drop_privileges`] may remove something.
pub(crate) fn has_privileges(attr: &Attr) -> bool {
    !attr.is_dir() && (attr.mode & (S_ISUID | S_ISGID) != 0 || attr.flags.contains(AttrFlags::HAS_CAPABILITY))
}

/// Returns a time whose nanoseconds are within a second, whatever the peer sent.
pub(crate) fn valid_time(time: Timestamp) -> Timestamp {
    Timestamp::new(time.sec, time.nsec)
}

/// Removes the privileges that a changed or given-away file must not keep: set-id bits and file capabilities.
/// Set-group-id without group execution has another meaning and stays if the caller is in group `gid`, as on
/// Linux. Returns true if the file had a capability, whose extended attribute the caller has to remove.
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
