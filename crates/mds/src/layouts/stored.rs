//! The layout in the record of a file or directory.

use nacre_layout::{Layout, LayoutRequest, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};

/// Decodes the specification stored in a directory, or in a file without objects.
pub(crate) fn stored_request(record: &InodeRecord) -> StatusResult<LayoutRequest> {
    if record.body.is_empty() || user::is_foreign(&record.body) {
        return Ok(LayoutRequest::default());
    }
    user::decode_request(&record.body).map_err(|error| damaged(&record.attr.fid, &error))
}

/// Returns true for a directory whose entries are in another store.
pub(crate) fn is_foreign_directory(record: &InodeRecord) -> bool {
    record.attr.is_dir() && user::is_foreign_directory(&record.body)
}

/// Records which objects of a file have been written to.
pub(crate) fn mark_written(record: &mut InodeRecord, objects: &[Fid]) -> StatusResult<()> {
    edit_objects(record, !objects.is_empty(), |layout| layout.mark_written(objects))
}

/// Clears the record of written objects, so that a missing one is no error.
pub(crate) fn forget_written(record: &mut InodeRecord) -> StatusResult<()> {
    edit_objects(record, true, Layout::forget_written)
}

/// Changes the stored layout of a file, if it has objects and `edit` returns true for a change.
fn edit_objects(
    record: &mut InodeRecord,
    is_wanted: bool,
    edit: impl FnOnce(&mut Layout) -> bool,
) -> StatusResult<()> {
    if !is_wanted || !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        return Ok(());
    }
    let fid = record.attr.fid;
    let mut layout = user::decode_layout(&record.body).map_err(|error| damaged(&fid, &error))?;
    if edit(&mut layout) {
        record.body = user::encode_layout(&fid, &layout);
    }
    Ok(())
}

/// Returns the status of a layout that cannot be decoded.
pub(super) fn damaged(fid: &Fid, error: &user::UserMdError) -> Status {
    log::error!("layout of {fid}: {error}");
    Status::EUCLEAN
}
