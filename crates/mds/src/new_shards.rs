//! New shards of directories.

use crate::records::Records;
use crate::tables::ACL_DEFAULT;
use nacre_layout::dir_default::PER_MDT_MAX;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::dir_layout::{DirFlags, DirLayout};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use std::collections::BTreeMap;

/// Flags of a directory that its shards have too.
pub(crate) const MIRRORED: AttrFlags = AttrFlags::HAS_ACL
    .union(AttrFlags::HAS_DEFAULT_ACL)
    .union(AttrFlags::HAS_LAYOUT)
    .union(AttrFlags::PROJECT_INHERIT)
    .union(AttrFlags::HAS_DIR_DEFAULT);

/// Builds the record of a shard of a directory, without names.
pub(crate) fn new_shard(master: &InodeRecord, fid: &Fid, lmv: Vec<u8>) -> InodeRecord {
    let mut shard = InodeRecord { parent: master.attr.fid, name: Vec::new(), lmv, ..master.clone() };
    let attr = &mut shard.attr;
    (attr.fid, attr.size, attr.nlink) = (*fid, 0, 2);
    attr.flags &= MIRRORED;
    shard
}

/// Returns the extended attributes of a directory that its shards have too.
///
/// # Errors
/// Those of the store.
pub(crate) fn handed_to_shards(
    records: &Records,
    record: &InodeRecord,
) -> StatusResult<Vec<(Vec<u8>, Vec<u8>)>> {
    if !record.attr.flags.contains(AttrFlags::HAS_DEFAULT_ACL) {
        return Ok(Vec::new());
    }
    let acl = records.default_acl(&record.attr.fid)?;
    Ok(acl.into_iter().map(|acl| (ACL_DEFAULT.to_vec(), acl.to_xattr())).collect())
}

/// Checks and returns the shards of a new directory.
///
/// # Errors
/// `EINVAL` if a new directory cannot have them.
pub(crate) fn check_new_shards(records: &Records, fid: &Fid, lmv: &[u8]) -> StatusResult<DirLayout> {
    let layout = DirLayout::decode(lmv).map_err(|_| Status::EINVAL)?;
    let impossible = DirFlags::all() - DirFlags::OVERSTRIPED - DirFlags::FIXED;
    if layout.flags.intersects(impossible)
        || DirHash::from_number(layout.hash).is_none()
        || layout.master_mdt != fid.mdt_index()
        || layout.shards.contains(fid)
    {
        return Err(Status::EINVAL);
    }
    let mut counts: BTreeMap<u16, i32> = BTreeMap::new();
    for shard in &layout.shards {
        if records.check_local(shard).is_ok() {
            records.check_own_fid(shard)?;
        }
        let count = counts.entry(shard.mdt_index()).or_default();
        *count += 1;
        if *count > PER_MDT_MAX {
            return Err(Status::EINVAL);
        }
    }
    Ok(layout)
}
