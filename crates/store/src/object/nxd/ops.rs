//! Implements [`ObjectStore`] for a store with a cache.

use super::log::{AppendError, Item};
use super::pieces::{Lost, Piece, Record};
use super::{Cache, Full, Nxd, NxdMode, Stop, Stream, Stripe};
use crate::object::abilities::leave_to;
use crate::object::{
    Abilities, Fallocate, Ids, ObjectAttr, ObjectError, ObjectProblem, ObjectStore, ObjectStoreStats,
    ObjectVerifyReport, Result, Seek, Space,
};
use nacre_env::clock::Instant;
use nacre_ondisk::nxd::NXD_ENTRIES_MAX;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::{Fid, Timestamp};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Streams that a stripe tracks.
const STREAMS_MAX: usize = 256;
/// Bytes that a device writes atomically.
const SECTOR: u64 = 512;
/// Times that [`Cache::attr_of`] retries after a concurrent change.
const LOOKS_MAX: u32 = 100;

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Cache {
    fn write_any(&self, object: Fid, offset: u64, data: &[u8], is_promised: bool) -> Result<usize> {
        self.check_open()?;
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= FILE_SIZE_MAX);
        let Some(end) = end.filter(|_| !data.is_empty()) else {
            return self.write_below(object, offset, data, is_promised);
        };
        self.note_use();
        if self.is_for_cache(object, offset..end) && self.write_cached(object, offset, data)? {
            count(&self.counters.writes);
            self.counters.write_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            return Ok(data.len());
        }
        self.write_through(object, offset..end, data, is_promised)
    }

    fn write_below(&self, object: Fid, offset: u64, data: &[u8], is_promised: bool) -> Result<usize> {
        self.stripe(object).unsynced.lock().note(object);
        match is_promised {
            true => self.inner.write_promised(object, offset, data),
            false => self.inner.write(object, offset, data),
        }
    }

    /// Whether a write belongs into the cache: it is small, and not a part of a stream.
    fn is_for_cache(&self, object: Fid, range: Range<u64>) -> bool {
        let settings = self.settings();
        let joined = {
            let mut streams = self.stripe(object).streams.lock();
            if streams.len() >= STREAMS_MAX && !streams.contains_key(&object) {
                streams.clear();
            }
            let stream = streams.entry(object).or_default();
            let joined = if stream.next == range.start { stream.joined.saturating_add(1) } else { 0 };
            *stream = Stream { next: range.end, joined };
            joined
        };
        if settings.mode != NxdMode::On {
            count(&self.counters.bypassed_other);
        } else if range.end - range.start > u64::from(settings.threshold) {
            count(&self.counters.bypassed_large);
        } else if settings.stream_writes > 0 && joined >= settings.stream_writes {
            count(&self.counters.bypassed_stream);
        } else {
            return true;
        }
        false
    }

    /// Writes to the log; false if the write has to go to the disk.
    fn write_cached(&self, object: Fid, offset: u64, data: &[u8]) -> Result<bool> {
        let end = Instant::now() + Duration::from_millis(self.settings().full_wait_ms);
        loop {
            let (seen, ..) = self.log.extent();
            match self.try_cached(object, offset, data) {
                Ok(is_cached) => return Ok(is_cached),
                Err(Stop::Error(error)) => return Err(error),
                Err(Stop::Full) => {}
            }
            self.alarm.ring();
            if !self.log.wait_for_room(seen, end) {
                count(&self.counters.bypassed_full);
                return Ok(false);
            }
        }
    }

    fn try_cached(&self, object: Fid, offset: u64, data: &[u8]) -> std::result::Result<bool, Stop> {
        let stripe = self.stripe(object);
        let _gate = stripe.gate.read();
        let range = offset..offset + data.len() as u64;
        // The rest of its sector could be older than this write after a power cut.
        let is_part = !range.start.is_multiple_of(SECTOR) || !range.end.is_multiple_of(SECTOR);
        if (is_part && stripe.unsynced.lock().has(object)) || !self.set_aside(stripe, object, range) {
            count(&self.counters.bypassed_other);
            return Ok(false);
        }
        let mut mark = self.mark.read();
        while !mark.is_dirty {
            drop(mark);
            self.mark_dirty()?;
            mark = self.mark.read();
        }
        let mtime = {
            let objects = stripe.objects.lock();
            let now = super::now();
            objects.get(&object).map_or(now, |pieces| now.max(pieces.mtime))
        };
        match self.log.append(vec![Item::Data { object, offset, mtime, bytes: data.to_vec() }]) {
            Ok(records) => {
                self.put(stripe, object, &records, mtime);
                Ok(true)
            }
            Err(AppendError::Full) => Err(Stop::Full),
            Err(error) => {
                // If even this fails, changes must stop: the write might reappear after a crash.
                self.log.heal().map_err(|_| self.io_error(error.io()))?;
                count(&self.counters.bypassed_other);
                Ok(false)
            }
        }
    }

    fn put(&self, stripe: &Stripe, object: Fid, records: &[Record], mtime: Timestamp) {
        let mut lost = Lost::new();
        let mut objects = stripe.objects.lock();
        let pieces = objects.entry(object).or_default();
        records.iter().for_each(|record| pieces.insert(*record, &mut lost));
        pieces.mtime = pieces.mtime.max(mtime);
        drop(objects);
        if !lost.is_empty() {
            self.log.lose(&lost);
        }
    }

    /// Ensures that the disk has the object, its size, and space for a range.
    fn set_aside(&self, stripe: &Stripe, object: Fid, range: Range<u64>) -> bool {
        if stripe.objects.lock().get(&object).is_some_and(|pieces| pieces.covers(range.clone())) {
            return true;
        }
        if self.inner.seek(object, range.start, Seek::Hole).is_ok_and(|hole| hole >= range.end) {
            return true;
        }
        let how = Fallocate::Allocate { keep_size: false };
        self.inner.fallocate(object, how, range.start, range.end - range.start).is_ok()
    }

    /// Writes to the disk, after settling the range.
    fn write_through(&self, object: Fid, range: Range<u64>, data: &[u8], is_promised: bool) -> Result<usize> {
        let stripe = self.stripe(object);
        {
            let _gate = stripe.gate.read();
            if !self.touches(object, range.clone()) {
                let _disk = stripe.disk.read();
                return self.write_below(object, range.start, data, is_promised);
            }
        }
        self.with_room(|| {
            let _gate = stripe.gate.write();
            self.settle(stripe, object, range.clone())?;
            Ok(self.write_below(object, range.start, data, is_promised)?)
        })
    }

    /// Changes a range of an object below, after settling it.
    fn change<T>(&self, object: Fid, range: Range<u64>, change: impl Fn() -> Result<T>) -> Result<T> {
        self.check_open()?;
        self.note_use();
        let stripe = self.stripe(object);
        self.with_room(|| {
            let _gate = stripe.gate.write();
            self.settle(stripe, object, range.clone())?;
            stripe.unsynced.lock().note(object);
            Ok(change()?)
        })
    }

    fn read_any(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize> {
        self.note_use();
        let stripe = self.stripe(object);
        let range = offset..offset.saturating_add(buffer.len() as u64);
        if !self.touches(object, range.clone()) {
            count(&self.counters.read_misses);
            return self.inner.read(object, offset, buffer, ahead);
        }
        let _gate = stripe.gate.read();
        let (pieces, is_whole) = match stripe.objects.lock().get(&object) {
            Some(pieces) => (pieces.within(range.clone()), pieces.covers(range)),
            None => (Vec::new(), false),
        };
        let mut read = buffer.len();
        if is_whole {
            count(&self.counters.read_hits);
        } else {
            read = self.inner.read(object, offset, buffer, ahead)?;
            count(if pieces.is_empty() { &self.counters.read_misses } else { &self.counters.read_parts });
        }
        self.overlay(&pieces, offset, &mut buffer[..read])?;
        Ok(read)
    }

    fn overlay(&self, pieces: &[Piece], offset: u64, buffer: &mut [u8]) -> Result<()> {
        let records: Vec<Record> = pieces.iter().map(|piece| piece.record).collect();
        let data = self.log.read(&records).map_err(|error| self.io_error(error))?;
        for (piece, data) in pieces.iter().zip(&data) {
            let skip = (piece.start - piece.record.offset) as usize;
            let start = ((piece.start - offset) as usize).min(buffer.len());
            let end = ((piece.end - offset) as usize).min(buffer.len());
            buffer[start..end].copy_from_slice(&data[skip..skip + end - start]);
            self.counters.read_hit_bytes.fetch_add((end - start) as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the attributes of the disk, with time and space of cached data.
    fn with_overlay(&self, stripe: &Stripe, object: Fid, mut attr: ObjectAttr) -> ObjectAttr {
        let Some(below) = attr.mtime else { return attr };
        if let Some(pieces) = stripe.objects.lock().get(&object) {
            attr.mtime = Some(below.max(pieces.mtime));
            // Reserved space counts already where the file system below counts it; no object gets more than
            // its size.
            let most = attr.size.div_ceil(512).max(attr.blocks);
            attr.blocks = (attr.blocks + pieces.dirty_bytes() / 512).min(most);
        }
        attr
    }

    fn attr_of(&self, object: Fid) -> Result<ObjectAttr> {
        let stripe = self.stripe(object);
        for _ in 0..LOOKS_MAX {
            let before = stripe.write_backs.load(Ordering::SeqCst);
            let writing = *stripe.writing.lock();
            let mut attr = self.inner.attr(object)?;
            match writing {
                // Write-back changes the time for a moment.
                Some((fid, mtime)) if fid == object && attr.mtime.is_some() => attr.mtime = Some(mtime),
                _ if stripe.write_backs.load(Ordering::SeqCst) != before => continue,
                _ => {}
            }
            return Ok(self.with_overlay(stripe, object, attr));
        }
        Ok(self.with_overlay(stripe, object, self.inner.attr(object)?))
    }

    fn look_for(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        let stripe = self.stripe(object);
        let _gate = stripe.gate.read();
        let size = self.inner.attr(object)?.size;
        let pieces = match stripe.objects.lock().get(&object) {
            Some(pieces) if offset < size => pieces.within(offset..size),
            _ => Vec::new(),
        };
        if pieces.is_empty() {
            return self.inner.seek(object, offset, what);
        }
        if what == Seek::Data {
            let below = match self.inner.seek(object, offset, what) {
                Err(ObjectError::NoData) => u64::MAX,
                found => found?,
            };
            return Ok(below.min(pieces[0].start));
        }
        let mut at = offset;
        loop {
            let before = at;
            for piece in &pieces {
                if piece.start <= at && at < piece.end {
                    at = piece.end;
                }
            }
            if at >= size {
                return Ok(size);
            }
            at = self.inner.seek(object, at, what)?;
            if at == before || !pieces.iter().any(|piece| piece.start <= at && at < piece.end) {
                return Ok(at);
            }
        }
    }

    fn destroy_all(&self, objects: &[Fid]) -> Result<u64> {
        self.check_open()?;
        self.with_room(|| {
            let mut numbers: Vec<usize> = objects.iter().map(|object| self.stripe_number(*object)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            let _gates: Vec<_> = numbers.iter().map(|number| self.stripes[*number].gate.write()).collect();
            let mut cached: Vec<Fid> =
                objects.iter().copied().filter(|object| self.touches(*object, 0..u64::MAX)).collect();
            cached.sort_unstable();
            cached.dedup();
            self.destroy_with(&cached, || self.inner.destroy(objects))
        })
    }

    /// Destroys objects below that have data in the log, and drops the data of those that were destroyed.
    fn destroy_with<T>(
        &self,
        cached: &[Fid],
        destroy: impl FnOnce() -> Result<T>,
    ) -> std::result::Result<T, Stop> {
        if cached.is_empty() {
            return Ok(destroy()?);
        }
        let promise = self.log.promise(cached.len().div_ceil(NXD_ENTRIES_MAX) as u64).ok_or(Full)?;
        let result = destroy();
        let mut gone = Vec::with_capacity(cached.len());
        for object in cached {
            if self.inner.attr(*object)?.mtime.is_none() {
                gone.push(*object);
            }
        }
        if !gone.is_empty() {
            self.forget_destroyed(&gone, promise)?;
        }
        Ok(result?)
    }

    /// Compares the checksums of all data that only the log has.
    fn check_pieces(&self, report: &mut ObjectVerifyReport) {
        for stripe in &self.stripes {
            let _gate = stripe.gate.read();
            let mut all: Vec<(Fid, Piece)> = Vec::new();
            for (object, pieces) in &*stripe.objects.lock() {
                all.extend(pieces.iter().map(|piece| (*object, *piece)));
            }
            for (object, piece) in all {
                if self.log.read(&[piece.record]).is_err() {
                    report.add(ObjectProblem::Cached { object, offset: piece.start }, false);
                }
            }
        }
    }

    fn flush_log(&self) -> Result<()> {
        self.log.flush().map_err(|error| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.io_error(error)
        })
    }
}

impl ObjectStore for Nxd {
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_any(object, offset, data, false)
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_any(object, offset, data, true)
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize> {
        self.read_any(object, offset, buffer, ahead)
    }

    fn attr(&self, object: Fid) -> Result<ObjectAttr> {
        self.attr_of(object)
    }

    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr> {
        let attr = self.change(object, size..u64::MAX, || self.inner.truncate(object, size))?;
        Ok(self.with_overlay(self.stripe(object), object, attr))
    }

    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr> {
        let range = match how {
            Fallocate::Allocate { .. } => 0..0,
            Fallocate::Punch | Fallocate::Zero { .. } => offset..offset.saturating_add(len),
        };
        let attr = self.change(object, range, || self.inner.fallocate(object, how, offset, len))?;
        Ok(self.with_overlay(self.stripe(object), object, attr))
    }

    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        self.look_for(object, offset, what)
    }

    fn sync(&self, object: Fid) -> Result<()> {
        self.flush_log()?;
        let unsynced = &self.stripe(object).unsynced;
        let changes = unsynced.lock().changes;
        self.inner.sync(object)?;
        unsynced.lock().synced_one(object, changes);
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        self.flush_log()?;
        self.sync_below()
    }

    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        self.destroy_all(objects)
    }

    fn durability_epoch(&self) -> u64 {
        let failures = self.failures.load(Ordering::Relaxed) + self.log.failures.load(Ordering::Relaxed);
        self.inner.durability_epoch().wrapping_add(failures)
    }

    fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        let mut report = self.inner.verify(repair, progress)?;
        self.check_pieces(&mut report);
        Ok(report)
    }

    fn abilities(&self) -> Abilities<'_> {
        let below = self.inner.abilities();
        let ids = below.ids.map(|_| self as &dyn Ids);
        Abilities { ids, mtime: None, reads_at_once: 0, small_write_cache: Some(self), ..below }
    }

    leave_to! { inner:
        fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()>;
        fn space(&self) -> Result<Space>;
        fn stats(&self) -> ObjectStoreStats;
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.flusher.stop();
        self.flush_log()?;
        self.log.note_durable().map_err(|error| self.io_error(error))?;
        self.inner.close()
    }
}

impl Ids for Nxd {
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        self.inner.abilities().ids_of(sequence)?.reserve(sequence, count)
    }

    fn last_reserved(&self, sequence: u64) -> Result<u32> {
        self.inner.abilities().ids_of(sequence)?.last_reserved(sequence)
    }

    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32> {
        self.check_open()?;
        let ids = self.inner.abilities().ids_of(sequence)?;
        self.with_room(|| {
            let _gates: Vec<_> = self.stripes.iter().map(|stripe| stripe.gate.write()).collect();
            let mut cached = Vec::new();
            for stripe in &self.stripes {
                let is_doomed = |object: &&Fid| object.seq == sequence && object.oid > last_used;
                cached.extend(stripe.objects.lock().keys().filter(is_doomed).copied());
            }
            self.destroy_with(&cached, || ids.destroy_orphans(sequence, last_used))
        })
    }
}
