//! What opening a store does beyond reading its header: learning which slots are taken, and cleaning up after a crash.

use super::slots::Slots;
use crate::meta::MetaStore;
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result};
use nacre_ondisk::object::ObjectRecord;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// Missing files in a row after which no more are looked for beyond the slots that are known: a crash can lose the making
/// of some files, not of this many with later ones kept.
const MISSING_MAX: u32 = 4096;

/// What the index says of slots.
#[derive(Default)]
pub(super) struct Known {
    /// Records of objects.
    pub(super) objects: u64,
    /// Slots that it gives to two objects: damage.
    pub(super) shared_slots: HashSet<u32>,
}

/// Reads the index to learn which slots have owners.
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

/// After a crash: empties every file that has no owner, so that each free slot is empty, durably. How many held something.
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
    // Emptied by the process that crashed, or just now: durable from here on.
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
