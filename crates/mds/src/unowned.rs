//! Orphan objects in an MDT's separate object store, which no file names.
//!
//! A separate store has a log of its own, which may be durable before that of the metadata. So a power loss
//! may leave data of files that do not exist: they were created a moment before. (The end of the process
//! leaves none: commits survive it, and a file names its object before that has data.) The start of an MDT
//! that was not stopped cleanly destroys such objects, before any client can create or move a file.

use crate::error::MdsError;
use crate::tables::{INODES, PREPARED};
use crate::transactions::state::decode_prepared;
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_store::object::{ORPHANS_MAX, ObjectStore};
use nacre_store::{MetaError, MetaStore};
use nacre_types::{AttrFlags, Fid};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};

/// Maximum number of objects destroyed by one call.
const AT_ONCE: usize = 1000;

/// Destroys objects of `data` that no file of the MDT in `store` names, and returns their number. The caller
/// excludes changes of both, and `store` is durable.
///
/// Destroys none if there are more than recently created files can have, or if a record that may name objects
/// cannot be decoded.
///
/// # Errors
/// Those of the stores.
pub(crate) fn destroy_unowned(store: &MetaStore, data: &dyn ObjectStore) -> Result<u64, MdsError> {
    let unowned = unowned(store, data)?;
    let count = unowned.len() as u64;
    if count > ORPHANS_MAX {
        log::error!("{count} objects with data belong to no file, which is too many to destroy: run a check");
        return Ok(0);
    }
    let unowned: Vec<Fid> = unowned.into_iter().collect();
    // Not through the log of objects to destroy: a resent request may create a lost file again, or the FID
    // may be used again.
    for some in unowned.chunks(AT_ONCE) {
        data.destroy(some)?;
    }
    if count > 0 {
        log::info!("{count} objects with data of files that were lost are destroyed");
    }
    Ok(count)
}

fn unowned(store: &MetaStore, data: &dyn ObjectStore) -> Result<HashSet<Fid>, MdsError> {
    let mut found = HashSet::new();
    let mut failed: Option<MetaError> = None;
    data.for_each_object(&mut |object| {
        // Nearly all objects belong to the file that they were created for.
        let file = Fid { ver: 0, ..object };
        let named =
            store.get(INODES, &file.to_key(), |value| value.and_then(|value| object_of(file, value).ok()));
        match named {
            Ok(named) if named.flatten() == Some(object) => {}
            Ok(_) => drop(found.insert(object)),
            Err(error) => drop(failed.get_or_insert(error)),
        }
    })?;
    failed.map_or(Ok(()), Err)?;
    if found.is_empty() {
        return Ok(found);
    }
    // Layouts may have been swapped, and data that is to move here from another MDT has no file yet.
    let mut is_readable = true;
    store.scan(INODES, &[], Bound::Unbounded, &mut |key, value| {
        let named =
            <[u8; 16]>::try_from(key).map_err(|_| ()).and_then(|key| object_of(Fid::from_key(&key), value));
        match named {
            Ok(object) => drop(object.map(|object| found.remove(&object))),
            Err(()) => is_readable = false,
        }
        ControlFlow::Continue(())
    })?;
    store.scan(PREPARED, &[], Bound::Unbounded, &mut |_, value| {
        match decode_prepared(value) {
            Some((fids, _)) => found.retain(|object| !fids.contains(object)),
            None => is_readable = false,
        }
        ControlFlow::Continue(())
    })?;
    if !is_readable {
        log::error!(
            "objects with data that seem to belong to no file stay: records cannot be read, run a check"
        );
        found.clear();
    }
    Ok(found)
}

/// Returns the object on this MDT that the record of an inode names.
fn object_of(fid: Fid, value: &[u8]) -> Result<Option<Fid>, ()> {
    let record = InodeRecord::decode(fid, value).map_err(|_| ())?;
    if !record.attr.is_regular() || !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        return Ok(None);
    }
    let layout = user::decode_layout(&record.body).map_err(|_| ())?;
    Ok(layout.object_on_mdt().map(|object| object.object))
}

/// Returns true if an object that does not exist belongs to a file: only to the one that it was named after.
/// A file that gets the object by a layout swap finds it existing, if only empty ([`crate::layout_changes`]).
///
/// # Errors
/// Those of the store.
pub(crate) fn is_object_of_a_file(store: &MetaStore, object: &Fid) -> nacre_store::object::Result<bool> {
    let own = Fid { ver: 0, ..*object };
    if store.get(INODES, &own.to_key(), |value| value.is_some())? {
        return Ok(true);
    }
    // Data that moves here from another MDT arrives before its file.
    let mut is_found = false;
    store.scan(PREPARED, &[], Bound::Unbounded, &mut |_, value| {
        is_found |= decode_prepared(value).is_some_and(|(fids, _)| fids.contains(object));
        if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_found)
}
