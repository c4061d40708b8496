//! Removal of names, with the rules of unlink(2) and rmdir(2).

use super::Place;
use super::{Change, Plan, check_access, check_empty, check_removal, drop_shards, without_a_name};
use crate::shards::named_in;
use nacre_ondisk::InodeRecord;
use nacre_types::{Cred, Status, StatusResult, Timestamp, perm};
use nacre_wire::mds::MdsReply;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A name to remove.
#[derive(Clone, Copy)]
pub(crate) struct Removal<'a> {
    /// Directory or shard that stores the name.
    pub home: &'a InodeRecord,
    pub name: &'a [u8],
    /// Inode of the name, if the name exists.
    pub victim: Option<&'a InodeRecord>,
    /// Shards of a striped directory that is to be removed.
    pub shards: &'a [Arc<InodeRecord>],
    /// True for rmdir, false for unlink.
    pub as_directory: bool,
}

/// Plans a removal.
///
/// # Errors
/// `ENOENT`, `EACCES`, `EPERM` (sticky), `ENOTDIR`, `EISDIR`, `ENOTEMPTY`.
pub(crate) fn remove<'a>(cred: &Cred, removal: &Removal<'a>, now: Timestamp) -> StatusResult<Plan<'a>> {
    let Removal { home, name, victim, shards, as_directory } = *removal;
    check_access(home, cred, perm::EXEC)?;
    let victim = victim.ok_or(Status::ENOENT)?;
    check_removal(cred, home, victim, as_directory)?;
    check_empty(victim, shards)?;
    let fid = victim.attr.fid;
    let mut changes: SmallVec<_> = smallvec![
        Change::DeleteName { home: home.attr.fid, name },
        Change::Directory { fid: home.attr.fid, entries: -1, subdirs: -i64::from(victim.attr.is_dir()) },
        Change::DropName { fid, at: Place { parent: named_in(home), name }, replaced: false },
    ];
    changes.extend(drop_shards(victim, shards));
    let reply = MdsReply::Removed { fid, attr: Some(without_a_name(victim, now)) };
    Ok(Plan { changes, inodes: SmallVec::new(), reply })
}
