//! Opening a store beyond reading its header: finding the slots in use, and cleaning up after a crash.

use super::slots::Slots;
use crate::meta::MetaStore;
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result};
use nacre_ondisk::object::ObjectRecord;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// Consecutive missing files after which the search beyond the known slots ends: a crash can lose the
/// creation of some files, not of this many while later ones are kept.
const MISSING_MAX: u32 = 4096;

/// Slots according to the index.
#[derive(Default)]
pub(super) struct Known {
    /// Number of object records.
    pub(super) objects: u64,
    /// Slots that it assigns to two objects: damage.
    pub(super) shared_slots: HashSet<u32>,
}

/// Reads the index to find the slots with owners.
pub(super) fn load(index: &MetaStore, slots: &Slots, dir: &Path) -> Result<Known> {
    let mut known = Known::default();
    let mut damaged = 0u64;
    index.scan(OBJECTS, &[], Bound::Unbounded, &mut |_, value| {
        known.objects += 1;
        match ObjectRecord::decode(value) {
            Ok(record) if !slots.claim(record.slot) => {
                damaged += 1;
                known.shared_slots.insert(record.slot);
            }
            Ok(_) => {}
            Err(_) => damaged += 1,
        }
        ControlFlow::Continue(())
    })?;
    if damaged > 0 {
        log::error!("{}: {damaged} records of objects are damaged; `nacre check` lists them", dir.display());
    }
    Ok(known)
}

/// Empties, after a crash, every file without owner, so that each free slot is empty, durably. Returns the
/// number of files that held anything.
pub(super) fn empty_unowned(slots: &Slots, dir: &Path) -> Result<u64> {
    let mut emptied = 0u64;
    let mut missing = 0;
    let mut slot = 0;
    loop {
        let is_known = slot < slots.end();
        if !is_known && missing >= MISSING_MAX {
            break;
        }
        if slots.is_free(slot) {
            match slots.empty_leftover(slot)? {
                None => missing += u32::from(!is_known),
                Some(was_full) => {
                    missing = 0;
                    emptied += u64::from(was_full);
                }
            }
        }
        let Some(next) = slot.checked_add(1) else { break };
        slot = next;
    }
    // Files emptied by the process that crashed, or just now, are durably empty from here on.
    slots.tree().sync_all().map_err(|error| ObjectError::Path {
        action: "sync the file system of",
        path: dir.to_owned(),
        source: error.into(),
    })?;
    if emptied > 0 {
        log::info!("{}: emptied {emptied} files that a crash left without owner", dir.display());
    }
    Ok(emptied)
}
