//! Layouts that are set where no data is lost by it. Source: reference 3.6.

use super::{Amendment, check_access};
use crate::layouts::stored::{is_foreign_directory, stored_wish};
use nacre_layout::user::Foreign;
use nacre_layout::{PoolName, Wish, user};
use nacre_ondisk::InodeRecord;
use nacre_types::perm::Verdict;
use nacre_types::{AttrFlags, Cred, Fid, SizeSource, Status, StatusResult, Timestamp, perm};
use std::sync::Arc;

/// A file or directory whose layout is to be set.
#[derive(Clone, Copy)]
pub(crate) struct Laid<'a> {
    pub record: &'a InodeRecord,
    /// Of a directory that has some.
    pub shards: &'a [Arc<InodeRecord>],
    /// It is a file whose layout cannot change any more.
    pub has_it_for_good: bool,
}

/// Whether the caller may change the layout of an inode.
///
/// # Errors
/// `EACCES`; `NEED_CREDENTIALS`.
pub(crate) fn may_set_layout(record: &InodeRecord, cred: &Cred) -> StatusResult<()> {
    match perm::owner_or_capable(&record.attr, cred) {
        Verdict::Granted => Ok(()),
        _ => check_access(record, cred, perm::WRITE),
    }
}

/// Plans the default of a directory, or what a file is to get with its objects; an empty wish takes it back. A directory takes a pool that
/// the wish does not name from `pool`.
///
/// # Errors
/// `EINVAL` for what has no layout, `EACCES`, `EALREADY`.
pub(crate) fn set_layout<'a>(
    cred: &Cred,
    laid: &Laid<'_>,
    wish: &Wish,
    pool: Option<PoolName>,
    now: Timestamp,
) -> StatusResult<Amendment<'a>> {
    let record = laid.record;
    if !record.attr.is_regular() && !record.attr.is_dir() {
        return Err(Status::EINVAL);
    }
    may_set_layout(record, cred)?;
    // Nothing can be made in it that would get the default.
    if is_foreign_directory(record) {
        return Err(Status::EINVAL);
    }
    if laid.has_it_for_good {
        return Err(Status::EALREADY);
    }
    let mut amendment = Amendment::begun(record, laid.shards, now);
    let changed = &mut amendment.record;
    changed.attr.flags -= AttrFlags::HAS_OBJECTS;
    changed.attr.flags.set(AttrFlags::HAS_LAYOUT, !wish.is_empty());
    if wish.is_empty() {
        changed.attr.size_source = SizeSource::Exact;
        changed.body.clear();
        return Ok(amendment);
    }
    let wish = match record.attr.is_regular() {
        // What a file was made with came from its directory, which helps out where the wish is silent.
        true => wish.clone().or(&stored_wish(record)?.inherited()),
        false => wish.clone().with_pool(pool),
    };
    changed.body = user::encode_wish(&record.attr.fid, &wish);
    Ok(amendment)
}

/// Plans a foreign layout for a file without objects. It never gets any then: reading finds nothing, writing is refused.
///
/// # Errors
/// `EINVAL` for what is no file, `EACCES`, `EALREADY`; `EFBIG` for a file that has a size.
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

/// Plans that an empty directory becomes a foreign one, which stays one and gets no entries; `None` if there is nothing to do. Layouts over
/// MDTs, which backups bring along, are ignored.
///
/// # Errors
/// `EACCES`, `EINVAL`, `ENOTDIR`, `ENOTEMPTY`, `EBUSY` for the root; `EEXIST` if it is one and `is_new` wants it made.
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
    // What lies in shards cannot be seen from here.
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
