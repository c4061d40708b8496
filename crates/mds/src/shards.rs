//! Directories whose names lie in shards: which inode a name is stored with, and which directory it is said to be in.
//!
//! The directory itself, the master, has attributes and the list of its shards, but no names. A shard is an inode of its own on
//! some MDT; its parent is the master, and owner, rights and defaults are kept as the master's ([`crate::ops`]'s `striped`). Inodes know
//! the master as the directory of their names, so nothing of theirs changes when names move between shards.

use crate::mds::Mds;
use nacre_layout::dir_layout::{DirLayout, DirShard};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use std::sync::Arc;

/// True for a directory whose names lie in shards.
pub(crate) fn is_striped(record: &InodeRecord) -> bool {
    record.attr.flags.contains(AttrFlags::STRIPED)
}

/// True for a shard.
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

/// Whether names are stored with this directory.
///
/// # Errors
/// `WRONG_SHARD` if they are with its shards.
pub(crate) fn check_has_names(record: &InodeRecord) -> StatusResult<()> {
    if is_striped(record) { Err(Status::WRONG_SHARD) } else { Ok(()) }
}

/// Whether a name is, or would be, stored with this directory or shard.
///
/// # Errors
/// `WRONG_SHARD` if it is with another one; `EUCLEAN`.
pub(crate) fn check_home(record: &InodeRecord, name: &[u8]) -> StatusResult<()> {
    check_has_names(record)?;
    if record.lmv.is_empty() {
        return Ok(());
    }
    let shard = DirShard::decode(&record.lmv).map_err(|error| {
        log::error!("shard {}: {error}", record.attr.fid);
        Status::EUCLEAN
    })?;
    if shard.may_have(name) { Ok(()) } else { Err(Status::WRONG_SHARD) }
}

impl Mds {
    /// The record of the directory or shard that a name is, or would be, stored with.
    ///
    /// # Errors
    /// As [`Mds::directory`], and `WRONG_SHARD` if it is with another shard.
    pub(crate) fn home_of(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        let record = self.directory(fid)?;
        check_home(&record, name)?;
        Ok(record)
    }
}
