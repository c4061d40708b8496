//! Implements [`ObjectStore`] for a block store.

use super::device::{BLOCK, BlockDevice};
use super::objects::Object;
use super::shape::attr_of;
use super::space::Share;
use super::{BlockStore, Core, check};
use crate::object::sequences::{OBJECTS, last_reserved};
use crate::object::{
    Abilities, Advice, Advise, Fallocate, Ids, ObjectAttr, ObjectError, ObjectStore, ObjectStoreStats,
    ObjectVerifyReport, ReadRequest, Result, Seek, Space, visit_keys,
};
use nacre_types::Fid;
use nacre_types::limits::FILE_SIZE_MAX;
use std::ops::Range;
use std::sync::Arc;

/// Maximum reads of callers in one batch: as many as a ring has in flight.
const READS_AT_ONCE: usize = 32;
/// Largest object in bytes, as on ext4: 16 TiB less a block. Larger files are striped.
const SIZE_MAX: u64 = (1 << 44) - BLOCK;

/// Returns the end of a range to which an object can grow.
fn grown_end(offset: u64, len: u64) -> Result<u64> {
    range_end(offset, len).ok().filter(|&end| end <= SIZE_MAX).ok_or(ObjectError::TooLarge)
}

/// Returns the end of a range that a file can have.
fn range_end(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX).ok_or(ObjectError::TooLarge)
}

impl Core {
    /// Destroys objects, durably.
    fn destroy_all(&self, objects: &[Fid]) -> Result<u64> {
        let mut count = 0;
        for object in objects {
            count += u64::from(self.objects.end(*object)?);
        }
        // Also if no object existed: a resend must not be confirmed before the removal by the original
        // request is durable.
        let volume = self.objects.volume();
        volume.sync_index(volume.index().last_transno())?;
        Ok(count)
    }

    /// Does many reads as one batch of the device, so that one thread keeps it busy.
    ///
    /// # Errors
    /// That of the first read that failed; the content of the other buffers is undefined then.
    pub fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        self.defrag.note_use();
        let read_at = |object: &Arc<Object>, offset, buffer: &mut [u8]| {
            self.ahead.read(&self.objects, object, offset, buffer)
        };
        self.objects.read_many(requests, read_at)
    }
}

impl BlockStore {
    fn write_shared(&self, object: Fid, offset: u64, data: &[u8], share: Share) -> Result<usize> {
        grown_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        let _changing = self.objects.volume().change()?;
        self.defrag.note_use();
        self.objects.write_all(object, offset, data, share)
    }
}

impl ObjectStore for BlockStore {
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_shared(object, offset, data, Share::Usual)
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_shared(object, offset, data, Share::Promised)
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], _ahead: u32) -> Result<usize> {
        self.defrag.note_use();
        match self.objects.object(object, false)? {
            None => Ok(0),
            Some(object) => self.ahead.read(&self.objects, &object, offset, buffer),
        }
    }

    fn read_all(&self, reads: &mut [ReadRequest<'_>], failed: &mut dyn FnMut(usize, ObjectError)) {
        if self.read_many(reads).is_ok() {
            return;
        }
        // The state of the other reads is unknown then, so each is repeated alone.
        for (number, request) in reads.iter_mut().enumerate() {
            match self.read(request.object, request.offset, request.buffer, 0) {
                Ok(read) => request.read = read,
                Err(error) => failed(number, error),
            }
        }
    }

    fn attr(&self, object: Fid) -> Result<ObjectAttr> {
        match self.objects.object(object, false)? {
            None => Ok(ObjectAttr::default()),
            Some(object) => Ok(attr_of(object.state.read().head.as_ref())),
        }
    }

    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr> {
        grown_end(size, 0)?;
        let _changing = self.objects.volume().change()?;
        self.defrag.note_use();
        let Some(object) = self.objects.object(object, size > 0)? else { return Ok(ObjectAttr::default()) };
        let mut locked = self.objects.lock(&object);
        if locked.state().head.is_some() || size > 0 {
            locked.set_size(size)?;
        }
        Ok(attr_of(locked.state().head.as_ref()))
    }

    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr> {
        let end = match how {
            Fallocate::Punch => range_end(offset, len)?,
            _ => grown_end(offset, len)?,
        };
        let _changing = self.objects.volume().change()?;
        self.defrag.note_use();
        if len == 0 {
            return Err(ObjectError::Empty);
        }
        let found = match how {
            Fallocate::Punch => self.objects.object(object, false)?,
            Fallocate::Allocate { .. } => {
                self.objects.admit_range(object, offset, len)?;
                self.objects.object(object, true)?
            }
            Fallocate::Zero { .. } => self.objects.object(object, true)?,
        };
        found.map_or(Ok(ObjectAttr::default()), |object| self.objects.shape(&object, how, offset..end))
    }

    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        let object = self.objects.object(object, false)?.ok_or(ObjectError::NoData)?;
        self.objects.look_for(&object, offset, what)
    }

    fn sync(&self, object: Fid) -> Result<()> {
        self.defrag.note_use();
        let Some(object) = self.objects.object(object, false)? else { return Ok(()) };
        let (generation, transno) = {
            let state = object.state.read();
            (state.generation, state.transno)
        };
        let volume = self.objects.volume();
        if generation > volume.completed() {
            return volume.complete(generation);
        }
        volume.sync_index(transno)
    }

    fn sync_all(&self) -> Result<()> {
        let volume = self.objects.volume();
        let transno = volume.index().last_transno();
        volume.complete(volume.generation())?;
        volume.sync_index(transno)
    }

    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        let _changing = self.objects.volume().change()?;
        self.defrag.note_use();
        self.destroy_all(objects)
    }

    fn space(&self) -> Result<Space> {
        let (total, free, available, reserve) = self.objects.volume().space().counts();
        let objects = self.objects.counts().existing();
        let objects_free = available.min(u64::from(u32::MAX).saturating_sub(objects));
        Ok(Space {
            block_size: BLOCK as u32,
            total: total * BLOCK,
            free: free * BLOCK,
            available: available * BLOCK,
            promisable: reserve * BLOCK / 2,
            objects: objects + objects_free,
            objects_free,
            is_read_only: self.objects.volume().is_closed() || self.objects.index().stats().has_failed,
        })
    }

    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        visit_keys(self.objects.index(), OBJECTS, visit)
    }

    fn durability_epoch(&self) -> u64 {
        self.boot.wrapping_add(self.objects.volume().failures())
    }

    fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        let sequences = self.gives_ids.then_some(&self.sequences);
        check::check(&self.objects, &self.directory, sequences, repair, progress)
    }

    fn stats(&self) -> ObjectStoreStats {
        let (counts, volume) = (self.objects.counts(), self.objects.volume());
        let (device, ahead) = (volume.medium().device().stats(), self.ahead.stats());
        ObjectStoreStats {
            objects: counts.existing(),
            created: counts.created(),
            destroyed: counts.destroyed(),
            open_now: self.objects.in_memory(),
            reads_waited: device.reads,
            reads_direct: device.reads,
            writes_direct: device.writes,
            refused_full: volume.space().refused(),
            sync_failures: volume.failures(),
            read_ahead: ahead.begun,
            read_ahead_used: ahead.used,
            flushes: device.flushes,
            checksum_errors: volume.medium().checksum_errors(),
            scrubbed_bytes: self.scrub.bytes(),
            recovered_blocks: self.recovered_blocks,
            ..ObjectStoreStats::default()
        }
    }

    fn abilities(&self) -> Abilities<'_> {
        let core = &**self;
        Abilities {
            ids: self.gives_ids.then_some(core as &dyn Ids),
            advise: Some(self),
            mtime: Some(&self.objects),
            extents: Some(&self.objects),
            trim: Some(self.objects.volume()),
            reads_at_once: READS_AT_ONCE,
            has_versions: true,
            index: Some(self.objects.index()),
            device_store: Some(core),
            ..Abilities::default()
        }
    }

    fn close(&self) -> Result<()> {
        self.close_in_order()
    }
}

impl Ids for Core {
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        self.objects.volume().check_open()?;
        self.sequences.lock(self.objects.index()).reserve(sequence, count)
    }

    fn last_reserved(&self, sequence: u64) -> Result<u32> {
        last_reserved(self.objects.index(), sequence)
    }

    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32> {
        let _changing = self.objects.volume().change()?;
        let sequences = self.sequences.lock(self.objects.index());
        sequences.destroy_orphans(sequence, last_used, self.dir(), |orphans| self.destroy_all(orphans))
    }
}

impl Advise for BlockStore {
    fn advise(&self, object: Fid, offset: u64, len: u64, advice: Advice) -> Result<()> {
        range_end(offset, len)?;
        match advice {
            // The store has no data cache.
            Advice::WillRead => Ok(()),
            Advice::DontNeed => self.sync(object),
        }
    }
}
