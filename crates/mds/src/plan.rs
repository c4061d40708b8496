//! The rules of names, attributes and extended attributes, as pure functions.
//!
//! A planner takes the records that an operation needs, whichever MDTs store them, the caller's credentials
//! and the time; its plan has the changes and the reply. It uses no store, locks, clock or other servers.
//! [`crate::perform`] locks and reads the records for a planner, and carries out the plan: on one MDT as one
//! transaction, on several by two-phase commit.
//!
//! Decisions that depend on more than names are made when a change is staged: whether an inode without names
//! lives on (open files), and which objects are destroyed with it.

mod amend;
mod create;
mod layout;
mod link;
mod remove;
mod rename;
mod xattr;

#[cfg(test)]
mod tests;

pub(crate) use amend::{
    Amended, Amendment, XattrChange, drop_privileges, has_privileges, may_be_of_a_write, set_attr, valid_time,
};
pub(crate) use create::{Creation, Handed, inode, make, make_unnamed, may_keep_sgid};
pub(crate) use layout::{Laid, may_set_layout, set_foreign, set_foreign_directory, set_layout};
pub(crate) use link::{Linking, link};
pub(crate) use remove::{Removal, remove};
pub(crate) use rename::{Cycles, Move, rename};
pub(crate) use xattr::{
    ACL_ACCESS, AclChange, Class, Plain, check_xattr_read, check_xattr_write, remove_xattr, set_acl,
    set_dir_default, set_xattr,
};

use nacre_ondisk::InodeRecord;
use nacre_types::acl::Acl;
use nacre_types::{Attr, Cred, Fid, FileKind, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::MdsReply;
use nacre_wire::peer::{Name, RecordBytes, Update};
use smallvec::SmallVec;
use std::sync::Arc;

/// Number of changes that fit without an allocation, enough for operations without shards.
const CHANGES: usize = 6;

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// FID of the directory.
    pub parent: Fid,
    /// Bytes of the name.
    pub name: &'a [u8],
}

/// The changes of an operation, and its reply.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Changes of existing inodes and names.
    pub changes: SmallVec<[Change<'a>; CHANGES]>,
    /// Inodes to create.
    pub inodes: SmallVec<[NewInode; 1]>,
    /// The reply. Its attributes have the versions that were read; a commit on this MDT replaces them by
    /// those that it stores.
    pub reply: MdsReply,
}

/// Encodes an inode's record for a message.
pub(crate) fn encoded(record: &InodeRecord) -> RecordBytes {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    RecordBytes(bytes)
}

/// An inode to create.
#[derive(Debug)]
pub(crate) struct NewInode {
    pub record: Arc<InodeRecord>,
    /// Default ACL of a directory in the kernel's form; empty for none.
    pub default_acl: Vec<u8>,
}

/// One change of the name space.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change<'a> {
    /// A directory or shard stores a name, or changes the inode of one.
    PutName { home: Fid, name: &'a [u8], fid: Fid, kind: FileKind },
    /// A directory or shard removes a name.
    DeleteName { home: Fid, name: &'a [u8] },
    /// Times and counts of a directory or shard whose names change.
    Directory { fid: Fid, entries: i64, subdirs: i64 },
    /// An inode gets one more name.
    AddName { fid: Fid, at: Place<'a> },
    /// A name of an inode moves to another place.
    MoveName { fid: Fid, from: Place<'a>, to: Place<'a> },
    /// An inode loses a name, which leads to another inode if it is `replaced`; with the last one it is removed, or
    /// lives on while it is open.
    DropName { fid: Fid, at: Place<'a>, replaced: bool },
    /// A shard is removed with its directory.
    DropShard { fid: Fid },
}

impl Plan<'_> {
    /// Returns true if the change frees space: then it is allowed on a full MDT.
    pub fn is_releasing(&self) -> bool {
        let removes =
            |change: &Change<'_>| matches!(change, Change::DropName { .. } | Change::DropShard { .. });
        self.changes.iter().any(removes)
    }

    /// Converts the change to updates for other MDTs.
    pub fn updates(&self) -> Vec<Update> {
        let changes = self.changes.iter().map(Change::update);
        changes.chain(self.inodes.iter().map(NewInode::update)).collect()
    }
}

impl<'a> Change<'a> {
    /// Converts another MDT's update; `None` if it is no change of the name space.
    pub fn of(update: &'a Update) -> Option<Change<'a>> {
        let place = |name: &'a Name| Place { parent: name.parent, name: &name.name };
        Some(match update {
            Update::PutName { at, fid, kind } => {
                Change::PutName { home: at.parent, name: &at.name, fid: *fid, kind: *kind }
            }
            Update::DeleteName { at } => Change::DeleteName { home: at.parent, name: &at.name },
            Update::Directory { fid, entries, subdirs } => {
                Change::Directory { fid: *fid, entries: *entries, subdirs: *subdirs }
            }
            Update::AddName { fid, at } => Change::AddName { fid: *fid, at: place(at) },
            Update::MoveName { fid, from, to } => {
                Change::MoveName { fid: *fid, from: place(from), to: place(to) }
            }
            Update::DropName { fid, at, replaced } => {
                Change::DropName { fid: *fid, at: place(at), replaced: *replaced }
            }
            Update::DropShard { fid } => Change::DropShard { fid: *fid },
            _ => return None,
        })
    }

    fn update(&self) -> Update {
        let name_at = |place: Place<'_>| Name { parent: place.parent, name: place.name.to_vec() };
        let stored = |home: Fid, name: &[u8]| Name { parent: home, name: name.to_vec() };
        match *self {
            Change::PutName { home, name, fid, kind } => {
                Update::PutName { at: stored(home, name), fid, kind }
            }
            Change::DeleteName { home, name } => Update::DeleteName { at: stored(home, name) },
            Change::Directory { fid, entries, subdirs } => Update::Directory { fid, entries, subdirs },
            Change::AddName { fid, at } => Update::AddName { fid, at: name_at(at) },
            Change::MoveName { fid, from, to } => {
                Update::MoveName { fid, from: name_at(from), to: name_at(to) }
            }
            Change::DropName { fid, at, replaced } => Update::DropName { fid, at: name_at(at), replaced },
            Change::DropShard { fid } => Update::DropShard { fid },
        }
    }
}

impl NewInode {
    fn new(record: InodeRecord, default_acl: Vec<u8>) -> NewInode {
        NewInode { record: Arc::new(record), default_acl }
    }

    fn update(&self) -> Update {
        let mut xattrs = Vec::new();
        if !self.default_acl.is_empty() {
            xattrs.push((crate::tables::ACL_DEFAULT.to_vec(), self.default_acl.clone()));
        }
        Update::NewInode { fid: self.record.attr.fid, record: encoded(&self.record), xattrs }
    }
}

/// Checks that the caller has the rights in `mask`.
///
/// # Errors
/// `EACCES`, or `NEED_CREDENTIALS`; `EUCLEAN` for a damaged ACL.
pub(crate) fn check_access(record: &InodeRecord, cred: &Cred, mask: u8) -> StatusResult<()> {
    let acl = acl_of(record)?;
    perm::access(&record.attr, acl.as_ref(), cred, mask).or(Status::EACCES)
}

/// Returns the access ACL of an inode, if it has one beyond its mode.
///
/// # Errors
/// `EUCLEAN` if it is damaged.
pub(crate) fn acl_of(record: &InodeRecord) -> StatusResult<Option<Acl>> {
    if record.acl.is_empty() {
        return Ok(None);
    }
    Acl::parse_xattr(&record.acl).map_err(|_| {
        log::error!("access ACL of {} is damaged", record.attr.fid);
        Status::EUCLEAN
    })
}

/// Checks that the caller may remove `victim` from `home`, and that it is of the requested kind.
fn check_removal(
    cred: &Cred,
    home: &InodeRecord,
    victim: &InodeRecord,
    as_directory: bool,
) -> StatusResult<()> {
    check_access(home, cred, perm::WRITE)?;
    perm::check_sticky(&home.attr, &victim.attr, cred)?;
    match (as_directory, victim.attr.is_dir()) {
        (true, false) => Err(Status::ENOTDIR),
        (false, true) => Err(Status::EISDIR),
        _ => Ok(()),
    }
}

/// Checks projects: a name in a directory that passes on its project must not refer to an inode of another
/// project, which would be charged to the wrong one (as in ext4).
fn check_same_project(directory: &Attr, inode: &Attr) -> StatusResult<()> {
    let inherits = directory.flags.contains(nacre_types::AttrFlags::PROJECT_INHERIT);
    if inherits && directory.projid != inode.projid { Err(Status::EXDEV) } else { Ok(()) }
}

/// Checks that a directory and its shards are empty.
///
/// # Errors
/// `ENOTEMPTY`.
fn check_empty(victim: &InodeRecord, shards: &[Arc<InodeRecord>]) -> StatusResult<()> {
    let is_empty = victim.entries() == 0 && shards.iter().all(|shard| shard.entries() == 0);
    if !victim.attr.is_dir() || is_empty { Ok(()) } else { Err(Status::ENOTEMPTY) }
}

/// Returns the changes that remove the shards of a directory, which may be one of its own.
fn drop_shards<'a>(victim: &InodeRecord, shards: &[Arc<InodeRecord>]) -> impl Iterator<Item = Change<'a>> {
    let own = victim.attr.fid;
    let others = shards.iter().map(|shard| shard.attr.fid).filter(move |fid| *fid != own);
    others.map(|fid| Change::DropShard { fid })
}

/// Returns the attributes of an inode that has lost a name, for programs.
fn without_a_name(record: &InodeRecord, now: Timestamp) -> Attr {
    let nlink = if record.attr.is_dir() { 0 } else { record.attr.nlink.saturating_sub(1) };
    Attr { nlink, ctime: now, ..record.shown() }
}
