//! Changes of layouts that lose no data.

use super::{Amendment, check_access};
use crate::layouts::stored::{is_foreign_directory, stored_request};
use nacre_layout::user::Foreign;
use nacre_layout::{LayoutRequest, PoolName, user};
use nacre_ondisk::InodeRecord;
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Cred, Fid, SizeSource, Status, StatusResult, Timestamp, perm};
use std::sync::Arc;

/// A file or directory whose layout is to be set.
#[derive(Clone, Copy)]
pub(crate) struct Laid<'a> {
    pub record: &'a InodeRecord,
    /// Shards of a striped directory.
    pub shards: &'a [Arc<InodeRecord>],
    /// True for a file whose layout is final.
    pub has_it_for_good: bool,
}

/// Checks that the caller may change the layout of an inode.
///
/// # Errors
/// `EACCES`; `NEED_CREDENTIALS`.
pub(crate) fn may_set_layout(record: &InodeRecord, cred: &Cred) -> StatusResult<()> {
    match perm::owner_or_capable(&record.attr, cred) {
        Verdict::Granted => Ok(()),
        _ => check_access(record, cred, perm::WRITE),
    }
}

/// Plans the default of a directory, or the layout that a file gets with its objects; an empty specification
/// removes it. For a directory, `pool` completes a specification without a pool.
///
/// # Errors
/// `EINVAL` for inodes without layouts, `EACCES`, `EALREADY`.
pub(crate) fn set_layout<'a>(
    cred: &Cred,
    laid: &Laid<'_>,
    requested: &LayoutRequest,
    pool: Option<PoolName>,
    now: Timestamp,
) -> StatusResult<Amendment<'a>> {
    let record = laid.record;
    if !record.attr.is_regular() && !record.attr.is_dir() {
        return Err(Status::EINVAL);
    }
    may_set_layout(record, cred)?;
    // Nothing can be created in it that would inherit the default.
    if is_foreign_directory(record) {
        return Err(Status::EINVAL);
    }
    if laid.has_it_for_good {
        return Err(Status::EALREADY);
    }
    let mut amendment = Amendment::begun(record, laid.shards, now);
    let changed = &mut amendment.record;
    changed.attr.flags -= AttrFlags::HAS_OBJECTS;
    changed.attr.flags.set(AttrFlags::HAS_LAYOUT, !requested.is_empty());
    if requested.is_empty() {
        changed.attr.size_source = SizeSource::Exact;
        changed.body.clear();
        return Ok(amendment);
    }
    let requested = match record.attr.is_regular() {
        // A new file's layout came from its directory, which also completes a partial specification.
        true => requested.clone().or(&stored_request(record)?.inherited()),
        false => requested.clone().with_pool(pool),
    };
    changed.body = user::encode_request(&record.attr.fid, &requested);
    Ok(amendment)
}

/// Plans a foreign layout for a file without objects. It never gets objects then: reads return nothing,
/// writes are refused.
///
/// # Errors
/// `EINVAL` for inodes that are not files, `EACCES`, `EALREADY`; `EFBIG` for a file that has a size.
pub(crate) fn set_foreign<'a>(
    cred: &Cred,
    laid: &Laid<'_>,
    foreign: &Foreign,
    now: Timestamp,
) -> StatusResult<Amendment<'a>> {
    let attr = &laid.record.attr;
    if !attr.is_regular() {
        return Err(Status::EINVAL);
    }
    may_set_layout(laid.record, cred)?;
    if laid.has_it_for_good {
        return Err(Status::EALREADY);
    }
    if attr.size != 0 {
        return Err(Status::EFBIG);
    }
    let mut amendment = Amendment::begun(laid.record, &[], now);
    let changed = &mut amendment.record;
    changed.body = user::encode_foreign(foreign);
    changed.attr.flags -= AttrFlags::HAS_OBJECTS;
    changed.attr.flags |= AttrFlags::HAS_LAYOUT;
    changed.attr.size_source = SizeSource::Exact;
    Ok(amendment)
}

/// Plans the conversion of an empty directory to a foreign one, which is permanent and excludes entries;
/// `None` if nothing changes. Layouts over MDTs, which backups contain, are ignored.
///
/// # Errors
/// `EACCES`, `EINVAL`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY` for the root; `EEXIST` if it is one already and
/// `is_new` is set.
pub(crate) fn set_foreign_directory<'a>(
    cred: &Cred,
    record: &InodeRecord,
    value: &[u8],
    is_new: bool,
    now: Timestamp,
) -> StatusResult<Option<Amendment<'a>>> {
    may_set_layout(record, cred)?;
    if !user::is_foreign_directory(value) {
        return Ok(None);
    }
    user::decode_foreign_directory(value).map_err(|_| Status::EINVAL)?;
    if !record.attr.is_dir() {
        return Err(Status::ENOTDIR);
    }
    if is_foreign_directory(record) {
        return if is_new { Err(Status::EEXIST) } else { Ok(None) };
    }
    // Entries in shards are not visible here.
    if record.entries() != 0 || !record.lmv.is_empty() {
        return Err(Status::ENOTEMPTY);
    }
    if record.attr.fid == Fid::ROOT {
        return Err(Status::EBUSY);
    }
    let mut amendment = Amendment::begun(record, &[], now);
    amendment.record.body = value.to_vec();
    amendment.record.attr.flags |= AttrFlags::HAS_LAYOUT;
    Ok(Some(amendment))
}
