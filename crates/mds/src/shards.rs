//! Directories whose names lie in shards: which inode a name is stored with, and which directory it is said to be in.
//!
//! The directory itself, the master, has attributes and the list of its shards, but no names. A shard is an inode of its own on
//! some MDT; its parent is the master, and owner, rights and defaults are kept as the master's ([`crate::ops`]'s `striped`). Inodes know
//! the master as the directory of their names, so nothing of theirs changes when names move between shards ([`crate::moving`]).
//! While a directory becomes striped, or whole again, it is one of its own shards.
//!
//! A directory that moves to another MDT gets another inode, with another FID. Until all names have moved there, the former one stays, with
//! the same list; names that are still in the old shards are said to be in it.

use crate::mds::Mds;
use nacre_layout::dir_layout::{DirLayout, DirShard, Home};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use std::sync::Arc;

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

impl Mds {
    /// Whether a name is, or would be, stored with this directory or shard.
    ///
    /// # Errors
    /// `WRONG_SHARD` if it is with another one, or if that is not known here ([`Mds::learn_moved`]); `EUCLEAN`.
    pub(crate) fn check_home(&self, record: &InodeRecord, name: &[u8]) -> StatusResult<()> {
        let Some(shard) = place_of(record)? else { return Ok(()) };
        let position = self.hash(name);
        let is_here = match shard.home(name, position) {
            Home::Here => true,
            Home::Elsewhere => false,
            Home::IfMoved { from } => {
                self.moving.has_moved(&named_in(record), (shard.version, from), position)
            }
        };
        if is_here { Ok(()) } else { Err(Status::WRONG_SHARD) }
    }

    /// A directory or shard that names are looked for in.
    ///
    /// # Errors
    /// As [`Mds::directory`], and `WRONG_SHARD` if there is none: it may be a shard that was given up.
    pub(crate) fn with_names(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.directory(fid).map_err(|status| match status {
            Status::ENOENT => Status::WRONG_SHARD,
            other => other,
        })
    }

    /// The record of the directory or shard that a name is, or would be, stored with.
    ///
    /// # Errors
    /// As [`Mds::with_names`] and [`Mds::check_home`].
    pub(crate) fn home_of(&self, fid: &Fid, name: &[u8]) -> StatusResult<Arc<InodeRecord>> {
        let record = self.with_names(fid)?;
        self.check_home(&record, name)?;
        Ok(record)
    }
}
