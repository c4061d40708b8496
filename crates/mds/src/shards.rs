//! Directories whose names lie in shards: which inode a name is stored with, and which directory it is said to be in.
//!
//! The directory itself, the master, has attributes and the list of its shards, but no names. A shard is an inode of its own on
//! some MDT; its parent is the master, and owner, rights and defaults are kept as the master's ([`crate::operations`]). Inodes know
//! the master as the directory of their names, so nothing of theirs changes when names move between shards ([`crate::moving`]).
//! While a directory becomes striped, or whole again, it is one of its own shards.
//!
//! A directory that moves to another MDT gets another inode, with another FID. Until all names have moved there, the former one stays, with
//! the same list; names that are still in the old shards are said to be in it.

use nacre_layout::dir_layout::{DirLayout, DirShard, Home};
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};

/// True for a directory whose names lie in shards.
pub(crate) fn is_striped(record: &InodeRecord) -> bool {
    record.attr.flags.contains(AttrFlags::STRIPED)
}

/// True for a shard that is not the directory itself.
pub(crate) fn is_shard(record: &InodeRecord) -> bool {
    !record.lmv.is_empty() && !is_striped(record)
}

/// The directory that names in `record` are said to be in.
pub(crate) fn named_in(record: &InodeRecord) -> Fid {
    if is_shard(record) { record.parent } else { record.attr.fid }
}

/// The shards of a directory; `None` if it is whole.
///
/// # Errors
/// `EUCLEAN` if the list is damaged.
pub(crate) fn shards_of(record: &InodeRecord) -> StatusResult<Option<DirLayout>> {
    if !is_striped(record) {
        return Ok(None);
    }
    DirLayout::decode(&record.lmv).map(Some).map_err(|error| {
        log::error!("shards of {}: {error}", record.attr.fid);
        Status::EUCLEAN
    })
}

/// True for a directory that another one takes the place of: its name leads there, and names move there.
pub(crate) fn is_former(record: &InodeRecord) -> bool {
    is_striped(record) && DirLayout::decode(&record.lmv).is_ok_and(|list| list.former == record.attr.fid)
}

/// Which place a directory or shard with names has in the list of shards; `None` for one that is whole.
///
/// # Errors
/// `WRONG_SHARD` if its names lie with others; `EUCLEAN`.
pub(crate) fn place_of(record: &InodeRecord) -> StatusResult<Option<DirShard>> {
    if record.lmv.is_empty() {
        return Ok(None);
    }
    let fid = record.attr.fid;
    if let Some(layout) = shards_of(record)?
        && !layout.shards.contains(&fid)
    {
        return Err(Status::WRONG_SHARD);
    }
    DirShard::decode(&fid, &record.lmv).map(Some).map_err(|error| {
        log::error!("shard {fid}: {error}");
        Status::EUCLEAN
    })
}

/// True if a name with this position may be stored with this directory or shard.
pub(crate) fn may_have(record: &InodeRecord, name: &[u8], position: u64) -> bool {
    place_of(record)
        .is_ok_and(|place| place.is_none_or(|shard| shard.home(name, position) != Home::Elsewhere))
}

/// Whether an inode moves with names that it holds.
pub(crate) fn holds_names(record: &InodeRecord) -> bool {
    record.attr.is_dir() && !user::is_foreign_directory(&record.body)
}
