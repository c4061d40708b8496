//! Renames, with the rules of rename(2) and POSIX.1-2017 rename().

use super::Place;
use super::{
    Change, Plan, check_access, check_empty, check_removal, check_same_project, drop_shards, without_a_name,
};
use crate::shards::named_in;
use nacre_ondisk::InodeRecord;
use nacre_types::{Cred, Fid, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::{MdsReply, RenameFlags};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A name to move.
#[derive(Clone, Copy)]
pub(crate) struct Move<'a> {
    /// Directories or shards that store the names.
    pub from_home: &'a InodeRecord,
    pub from_name: &'a [u8],
    pub to_home: &'a InodeRecord,
    pub to_name: &'a [u8],
    /// Inodes of the old and the new name, if these exist.
    pub source: Option<&'a InodeRecord>,
    pub target: Option<&'a InodeRecord>,
    /// Shards of `target`, if it is a striped directory.
    pub shards: &'a [Arc<InodeRecord>],
    pub flags: RenameFlags,
}

impl<'a> Move<'a> {
    fn from(&self) -> Place<'a> {
        Place { parent: named_in(self.from_home), name: self.from_name }
    }

    fn to(&self) -> Place<'a> {
        Place { parent: named_in(self.to_home), name: self.to_name }
    }

    fn is_exchange(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }
}

/// Result of the search from both directories to the root, while the tree did not change.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cycles {
    /// The new directory is the moved inode, or is below it.
    pub target_in_source: bool,
    /// The old directory is the replaced inode, or is below it.
    pub source_in_target: bool,
}

/// Plans a rename; `None` if nothing changes.
///
/// # Errors
/// `EEXIST`, `ENOENT`, `EINVAL`, `ENOTEMPTY`, `EACCES`, `EPERM`, `ENOTDIR`, `EISDIR`, `EXDEV`.
pub(crate) fn rename<'a>(
    cred: &Cred,
    m: &Move<'a>,
    cycles: Cycles,
    now: Timestamp,
) -> StatusResult<Option<Plan<'a>>> {
    check_access(m.from_home, cred, perm::EXEC)?;
    check_access(m.to_home, cred, perm::EXEC)?;
    let source = m.source.ok_or(Status::ENOENT)?;
    if m.target.is_some() && m.flags.contains(RenameFlags::NOREPLACE) {
        return Err(Status::EEXIST);
    }
    if m.target.is_none() && m.is_exchange() {
        return Err(Status::ENOENT);
    }
    if cycles.target_in_source {
        return Err(Status::EINVAL);
    }
    if cycles.source_in_target {
        return Err(if m.is_exchange() { Status::EINVAL } else { Status::ENOTEMPTY });
    }
    if m.target.is_some_and(|target| target.attr.fid == source.attr.fid) {
        // Two names of one inode, or the same name twice: POSIX requires no change.
        return Ok(None);
    }
    check_rights(cred, m, source)?;
    check_kinds(m, source)?;
    let plan = match m.target.filter(|_| m.is_exchange()) {
        Some(target) => exchange(m, source, target),
        None => replace(m, source, now),
    };
    Ok(Some(plan))
}

fn check_rights(cred: &Cred, m: &Move<'_>, source: &InodeRecord) -> StatusResult<()> {
    let source_is_dir = source.attr.is_dir();
    check_removal(cred, m.from_home, source, source_is_dir)?;
    match m.target {
        None => check_access(m.to_home, cred, perm::WRITE)?,
        Some(target) if m.is_exchange() => check_removal(cred, m.to_home, target, target.attr.is_dir())?,
        Some(target) => check_removal(cred, m.to_home, target, source_is_dir)?,
    }
    if m.from().parent == m.to().parent {
        return Ok(());
    }
    // A directory with a new parent changes its `..`, which needs the right to write.
    if source_is_dir {
        check_access(source, cred, perm::WRITE)?;
    }
    match m.target.filter(|target| m.is_exchange() && target.attr.is_dir()) {
        Some(target) => check_access(target, cred, perm::WRITE),
        None => Ok(()),
    }
}

fn check_kinds(m: &Move<'_>, source: &InodeRecord) -> StatusResult<()> {
    check_same_project(&m.to_home.attr, &source.attr)?;
    match m.target {
        Some(target) if m.is_exchange() => check_same_project(&m.from_home.attr, &target.attr),
        Some(target) => check_empty(target, m.shards),
        None => Ok(()),
    }
}

fn replace<'a>(m: &Move<'a>, source: &InodeRecord, now: Timestamp) -> Plan<'a> {
    let (from, to) = (m.from(), m.to());
    let (fid, kind) = (source.attr.fid, source.attr.kind());
    let moved = i64::from(source.attr.is_dir());
    let replaced = m.target.map_or(0, |target| i64::from(target.attr.is_dir()));
    let mut changes: SmallVec<_> = smallvec![
        Change::MoveName { fid, from, to },
        Change::DeleteName { home: m.from_home.attr.fid, name: from.name },
        Change::PutName { home: m.to_home.attr.fid, name: to.name, fid, kind },
        Change::Directory { fid: m.from_home.attr.fid, entries: -1, subdirs: -moved },
        Change::Directory {
            fid: m.to_home.attr.fid,
            entries: i64::from(m.target.is_none()),
            subdirs: moved - replaced,
        },
    ];
    if let Some(target) = m.target {
        changes.push(Change::DropName { fid: target.attr.fid, at: to, replaced: true });
        changes.extend(drop_shards(target, m.shards));
    }
    let removed = m.target.map(|target| without_a_name(target, now));
    let reply =
        MdsReply::Removed { fid: m.target.map_or(Fid::ZERO, |target| target.attr.fid), attr: removed };
    Plan { changes, inodes: SmallVec::new(), reply }
}

fn exchange<'a>(m: &Move<'a>, source: &InodeRecord, target: &InodeRecord) -> Plan<'a> {
    let (from, to) = (m.from(), m.to());
    let (from_home, to_home) = (m.from_home.attr.fid, m.to_home.attr.fid);
    let (first, second) = (&source.attr, &target.attr);
    let moved = i64::from(second.is_dir()) - i64::from(first.is_dir());
    let changes: SmallVec<_> = smallvec![
        Change::MoveName { fid: first.fid, from, to },
        Change::MoveName { fid: second.fid, from: to, to: from },
        Change::PutName { home: to_home, name: to.name, fid: first.fid, kind: first.kind() },
        Change::PutName { home: from_home, name: from.name, fid: second.fid, kind: second.kind() },
        Change::Directory { fid: from_home, entries: 0, subdirs: moved },
        Change::Directory { fid: to_home, entries: 0, subdirs: -moved },
    ];
    let reply = MdsReply::Removed { fid: Fid::ZERO, attr: None };
    Plan { changes, inodes: SmallVec::new(), reply }
}
