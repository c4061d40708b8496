//! Generations: what is durable.
//!
//! Every change of blocks belongs to the generation in which it was committed. A flush ends the present generation, flushes the
//! device, and then commits and syncs a record in the index that says so. Because the index comes back as a prefix of its
//! transactions, that record proves that the data of the generation is on the medium, and that everything that the generation
//! took out of use may be used again.
//!
//! Many callers share one flush.

use super::device::BlockDevice;
use super::{Core, STORE, STORE_KEY};
use crate::meta::Batch;
use crate::object::{ObjectError, Result};
use crate::together::Together;
use nacre_env::sync::RwLock;
use nacre_ondisk::block::BlockStoreRecord;
use nacre_types::Fid;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// See the [module documentation](self).
pub(super) struct Durable {
    /// Held while a change is committed, and for writing while the generation changes: so no change of an old
    /// generation is committed after its end.
    pub(super) gate: RwLock<()>,
    generation: AtomicU64,
    completed: AtomicU64,
    /// Data was written to the device since the last flush began.
    is_dirty: AtomicBool,
    together: Together,
    pub(super) flushes: AtomicU64,
    pub(super) failures: AtomicU64,
}

impl Durable {
    /// Everything up to `completed` is durable, and there are changes up to generation `newest`.
    pub(super) fn new(completed: u64, newest: u64) -> Durable {
        Durable {
            gate: RwLock::new(()),
            generation: AtomicU64::new(newest.max(completed) + 1),
            completed: AtomicU64::new(completed),
            is_dirty: AtomicBool::new(true),
            together: Together::default(),
            flushes: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// The present generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The last one that is durable.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Was data written to the device that no flush has begun to make durable?
    pub(super) fn is_dirty(&self) -> bool {
        self.is_dirty.load(Ordering::Acquire)
    }

    /// Data was written to the device; to be called before the change is committed.
    pub(super) fn note_written(&self) {
        if !self.is_dirty.load(Ordering::Acquire) {
            self.is_dirty.store(true, Ordering::Release);
        }
    }
}

impl Core {
    /// Makes all generations up to `upto` durable, with whatever else the index holds.
    pub(super) fn complete(&self, upto: u64) -> Result<()> {
        if self.durable.completed() >= upto {
            return Ok(());
        }
        nacre_env::blocking(|| {
            self.durable.together.until(upto, || self.durable.completed(), || self.flush())
        })
    }

    fn flush(&self) -> Result<()> {
        let durable = &self.durable;
        let (ended, is_dirty) = {
            let _gate = durable.gate.write();
            let ended = durable.generation.fetch_add(1, Ordering::AcqRel);
            (ended, durable.is_dirty.swap(false, Ordering::AcqRel))
        };
        durable.flushes.fetch_add(1, Ordering::Relaxed);
        if is_dirty && let Err(source) = self.device.flush() {
            durable.is_dirty.store(true, Ordering::Release);
            durable.failures.fetch_add(1, Ordering::Relaxed);
            log::error!(
                "{}: the device {} could not be flushed: {source}",
                self.dir.display(),
                self.device_name
            );
            return Err(ObjectError::Io { action: "flush the device", object: Fid::ZERO, source });
        }
        self.write_state(ended, false).inspect_err(|_| {
            durable.failures.fetch_add(1, Ordering::Relaxed);
        })?;
        durable.completed.store(ended, Ordering::Release);
        self.space.complete(ended);
        Ok(())
    }

    /// Says durably that `generation` is.
    pub(super) fn write_state(&self, generation: u64, clean: bool) -> Result<()> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.put(STORE, STORE_KEY, &BlockStoreRecord { uuid: self.uuid, clean, generation }.encode());
        let transno = self.index.commit(&batch)?;
        Ok(self.index.sync(transno)?)
    }
}
