//! Striped directories: the shard that stores a name, and the directory that the name belongs to.
//!
//! The directory itself, the master, has the attributes and the list of its shards, but no names. A shard is
//! an inode of its own on some MDT; its parent is the master, and owner, rights and defaults are replicated
//! from the master ([`crate::transactions`]). Inodes have the master as the directory of their names, so their
//! records do not change when names move between shards ([`crate::moving`]). While a directory becomes
//! striped, or unstriped again, it is one of its own shards.
//!
//! A directory that moves to another MDT gets another inode, with another FID. Until all names have moved
//! there, the former one stays, with the same list; names that are still in the old shards belong to it.

use nacre_layout::dir_layout::{DirLayout, DirShard, Home};
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};

/// Returns true for a directory whose names are in shards.
pub(crate) fn is_striped(record: &InodeRecord) -> bool {
    record.attr.flags.contains(AttrFlags::STRIPED)
}

/// Returns true for a shard that is not the directory itself.
pub(crate) fn is_shard(record: &InodeRecord) -> bool {
    !record.lmv.is_empty() && !is_striped(record)
}

/// Returns the directory that names in `record` belong to.
pub(crate) fn named_in(record: &InodeRecord) -> Fid {
    if is_shard(record) { record.parent } else { record.attr.fid }
}

/// Returns the shards of a directory; `None` if it is not striped.
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

/// Returns true for a directory that is being replaced by another one: its name refers to that one, and names
/// move there.
pub(crate) fn is_former(record: &InodeRecord) -> bool {
    is_striped(record) && DirLayout::decode(&record.lmv).is_ok_and(|list| list.former == record.attr.fid)
}

/// Returns the place of a directory or shard with names in the list of shards; `None` for a directory that is
/// not striped.
///
/// # Errors
/// `WRONG_SHARD` if its names are in others; `EUCLEAN`.
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

/// Returns true if a name with this position may be stored in this directory or shard.
pub(crate) fn may_have(record: &InodeRecord, name: &[u8], position: u64) -> bool {
    place_of(record)
        .is_ok_and(|place| place.is_none_or(|shard| shard.home(name, position) != Home::Elsewhere))
}

/// Returns true if an inode moves together with names in it.
pub(crate) fn holds_names(record: &InodeRecord) -> bool {
    record.attr.is_dir() && !user::is_foreign_directory(&record.body)
}
