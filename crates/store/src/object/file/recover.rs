//! What opening a store does beyond reading its header: learning which slots are taken, and cleaning up after a crash.

use super::{FileStore, OBJECTS, ops};
use crate::object::{ObjectError, Result};
use nacre_ondisk::object::ObjectRecord;
use rustix::fs::{self, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

/// Missing files in a row after which no more are looked for beyond the slots that are known: a crash can lose the making
/// of some files, not of this many with later ones kept.
const MISSING_MAX: u32 = 4096;

impl FileStore {
    /// Reads the index to learn which slots have owners.
    pub(super) fn load(&mut self) -> Result<()> {
        let mut objects = 0u64;
        let mut damaged = 0u64;
        let mut shared = HashSet::new();
        self.index.scan(OBJECTS, &[], Bound::Unbounded, &mut |_, value| {
            objects += 1;
            match ObjectRecord::decode(value) {
                Ok(record) if !self.slots.claim(record.slot) => {
                    damaged += 1;
                    shared.insert(record.slot);
                }
                Ok(_) => {}
                Err(_) => damaged += 1,
            }
            ControlFlow::Continue(())
        })?;
        if damaged > 0 {
            log::error!(
                "{}: {damaged} records of objects are damaged; `nacre check` lists them",
                self.dir.display()
            );
        }
        self.shared_slots = shared;
        self.counters.objects.store(objects, Ordering::Relaxed);
        Ok(())
    }

    /// After a crash: empties every file that has no owner, so that each free slot is empty, durably.
    pub(super) fn recover(&self) -> Result<()> {
        let mut emptied = 0u64;
        let mut missing = 0;
        let mut slot = 0;
        loop {
            let is_known = slot < self.slots.end();
            if !is_known && missing >= MISSING_MAX {
                break;
            }
            if self.slots.is_free(slot) {
                match self.empty_leftover(slot)? {
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
        fs::syncfs(self.slots.objects_fd()).map_err(|error| ObjectError::Path {
            action: "sync the file system of",
            path: self.dir.clone(),
            source: error.into(),
        })?;
        self.counters.recovered_files.store(emptied, Ordering::Relaxed);
        if emptied > 0 {
            log::info!("{}: emptied {emptied} files that a crash left without owner", self.dir.display());
        }
        Ok(())
    }

    /// Empties the file of a slot without owner. `None` if there is no file, else whether it held anything.
    pub(super) fn empty_leftover(&self, slot: u32) -> Result<Option<bool>> {
        let fail = |error: Errno| ObjectError::Path {
            action: "empty",
            path: self.slots.path(slot),
            source: error.into(),
        };
        let Some(stat) = self.slots.stat(slot).map_err(fail)? else { return Ok(None) };
        if ops::is_empty(&stat) {
            return Ok(Some(false));
        }
        let fd = self.slots.open_file(slot, OFlags::empty()).map_err(fail)?;
        ops::empty(fd.as_fd()).map_err(fail)?;
        Ok(Some(true))
    }
}
