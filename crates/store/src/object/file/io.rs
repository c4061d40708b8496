//! Implements [`ObjectStore`] for a file store.

use super::directory::path_error;
use super::handle::Handle;
use super::trim::is_mount_point;
use super::{FileStore, check, ops};
use crate::object::sequences::{OBJECTS, last_reserved};
use crate::object::{
    Abilities, Advice, Advise, Extents, Fallocate, Ids, ObjectAttr, ObjectError, ObjectExtent, ObjectStore,
    ObjectStoreStats, ObjectVerifyReport, Result, Seek, SetMtime, Space, Trim, Trimmed, fiemap, visit_keys,
};
use nacre_types::{Fid, Status, Timestamp};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Writes of this many bytes are assumed to block: the kernel may throttle the writer while the disk catches
/// up.
const WAITING_WRITE_MIN: usize = 128 << 10;
/// Milliseconds after which a write counts as having blocked; all writes are assumed to block for
/// [`CONGESTED_MS`] then. Above the step of the coarse clock.
const WAITED_MS: u64 = 8;
/// See [`WAITED_MS`].
const CONGESTED_MS: u64 = 1000;
/// Objects destroyed in one transaction, with their locks held.
const DESTROY_AT_ONCE: usize = 64;

/// Returns the end of a range that an object can have.
fn range_end(offset: u64, len: u64) -> Result<u64> {
    offset
        .checked_add(len)
        .filter(|&end| end <= nacre_types::limits::FILE_SIZE_MAX)
        .ok_or(ObjectError::TooLarge)
}

fn errno_of(error: ObjectError) -> Errno {
    log::error!("{error}");
    Errno::from_raw_os_error(error.status().errno())
}

fn attr_of(handle: &Handle) -> Result<ObjectAttr> {
    // Locked, so that the reserved space does not change between two reads.
    let ahead = handle.ahead.lock();
    let stat = handle.file.stat().map_err(|error| ObjectError::io("stat", handle.object, error))?;
    Ok(ObjectAttr {
        size: stat.size,
        blocks: stat.blocks.saturating_sub(ahead.blocks()),
        mtime: Some(stat.mtime),
    })
}

impl FileStore {
    /// Refuses `len` bytes at `offset` if they need space and only the reserve is left.
    fn admit(&self, handle: Option<&Handle>, offset: u64, len: u64, now_ms: u64) -> Result<()> {
        if self.reserve.admits(|| self.slots.tree().space(), len, now_ms, || 0)
            || handle.is_some_and(|handle| handle.file.is_allocated(offset, len))
        {
            return Ok(());
        }
        self.counters.refused_full.fetch_add(1, Ordering::Relaxed);
        Err(ObjectError::NoSpace)
    }

    /// Admits an allocation and returns the open object, created if it does not exist.
    fn open_to_allocate(&self, object: Fid, offset: u64, len: u64, now_ms: u64) -> Result<Arc<Handle>> {
        self.check_open()?;
        self.with_room(|| match self.find(object)? {
            Some(handle) => self.admit(Some(&handle), offset, len, now_ms).map(|()| handle),
            None => {
                self.admit(None, offset, len, now_ms)?;
                self.find_or_create(object)
            }
        })
    }

    /// Does `work`, and again if there was no space until the space reserved ahead of streams was released.
    fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        match work() {
            Err(error) if error.status() == Status::ENOSPC && self.ahead.give_all_back() => work(),
            other => other,
        }
    }

    /// Writes under the lock that excludes a release of reserved space.
    fn write_in_turn(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        data: &[u8],
        now_ms: u64,
    ) -> std::result::Result<usize, Errno> {
        let turn = handle.transferring();
        if let Some(sums) = &self.sums {
            sums.before_write(handle, offset..offset + data.len() as u64).map_err(errno_of)?;
        }
        self.ahead.before_write(handle, offset, data.len() as u64, now_ms);
        let result = self.transfers.write(handle, offset, data);
        let written = *result.as_ref().unwrap_or(&0);
        let is_crowded = self.ahead.after_write(handle, offset, written as u64);
        drop(turn);
        if is_crowded {
            self.ahead.give_back(handle);
        }
        result
    }

    /// Writes as much as there is space for, including the space reserved ahead of streams.
    fn write_with_room(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        data: &[u8],
        now_ms: u64,
    ) -> std::result::Result<usize, Errno> {
        let first = self.write_in_turn(handle, offset, data, now_ms);
        let done = match first {
            Ok(written) if written < data.len() => written,
            Err(Errno::NOSPC | Errno::DQUOT) => 0,
            other => return other,
        };
        if !self.ahead.give_all_back() {
            return first;
        }
        match self.write_in_turn(handle, offset + done as u64, &data[done..], now_ms) {
            Ok(more) => Ok(done + more),
            Err(_) if done > 0 => Ok(done),
            error => error,
        }
    }

    /// Writes an admitted range; `now_ms` is [`ops::coarse_ms`].
    fn write_admitted(&self, handle: &Arc<Handle>, offset: u64, data: &[u8], now_ms: u64) -> Result<usize> {
        let write = || self.write_with_room(handle, offset, data, now_ms);
        let is_waiting =
            data.len() >= WAITING_WRITE_MIN || now_ms < self.congested_until_ms.load(Ordering::Relaxed);
        let result = if is_waiting { nacre_env::blocking(write) } else { write() };
        let after_ms = ops::coarse_ms();
        if after_ms - now_ms > WAITED_MS {
            self.congested_until_ms.store(after_ms + CONGESTED_MS, Ordering::Relaxed);
        }
        let written = result.map_err(|error| ObjectError::io("write", handle.object, error))?;
        assert!(written <= data.len(), "nothing is written that was not given");
        Ok(written)
    }

    /// Zeroes a range where the file system has no operation for it.
    fn zero_by_punching(
        &self,
        handle: &Handle,
        offset: u64,
        len: u64,
        keep_size: bool,
    ) -> std::result::Result<(), Errno> {
        let allocate = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
        handle.file.punch(offset, len)?;
        handle.file.allocate(allocate, offset, len)
    }
}

impl ObjectStore for FileStore {
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        let now_ms = ops::coarse_ms();
        let handle = self.open_to_allocate(object, offset, data.len() as u64, now_ms)?;
        self.write_admitted(&handle, offset, data, now_ms)
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        range_end(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.check_open()?;
        let handle = match self.find(object)? {
            Some(handle) => handle,
            None => self.with_room(|| self.find_or_create(object))?,
        };
        self.write_admitted(&handle, offset, data, ops::coarse_ms())
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize> {
        if buffer.is_empty() || range_end(offset, buffer.len() as u64).is_err() {
            // No data can be there.
            let end = nacre_types::limits::FILE_SIZE_MAX;
            if buffer.is_empty() || offset >= end {
                return Ok(0);
            }
            let len = (end - offset) as usize;
            return self.read(object, offset, &mut buffer[..len], 0);
        }
        match self.find(object)? {
            None => Ok(0),
            Some(handle) => {
                let read = self.transfers.read(&handle, offset, buffer, ahead)?;
                assert!(read <= buffer.len(), "nothing is read that was not asked for");
                if let Some(sums) = &self.sums {
                    sums.check_read(&handle, offset, &buffer[..read])?;
                }
                Ok(read)
            }
        }
    }

    fn attr(&self, object: Fid) -> Result<ObjectAttr> {
        match self.find(object)? {
            None => Ok(ObjectAttr::default()),
            Some(handle) => attr_of(&handle),
        }
    }

    fn exists(&self, object: Fid) -> Result<bool> {
        Ok(self.find(object)?.is_some())
    }

    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr> {
        range_end(size, 0)?;
        self.check_open()?;
        let handle = match self.find(object)? {
            Some(handle) => handle,
            None if size == 0 => return Ok(ObjectAttr::default()),
            None => self.with_room(|| self.find_or_create(object))?,
        };
        let alone = handle.alone();
        self.ahead.give_back_alone(&handle);
        if let Some(sums) = &self.sums
            && size < attr_of(&handle)?.size
        {
            sums.before_punch(&handle, size..u64::MAX)?;
        }
        nacre_env::blocking(|| handle.file.set_size(size))
            .map_err(|error| ObjectError::io("truncate", object, error))?;
        drop(alone);
        self.reserve.look_again();
        attr_of(&handle)
    }

    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr> {
        range_end(offset, len)?;
        self.check_open()?;
        if len == 0 {
            return Err(ObjectError::Empty);
        }
        let flags = match how {
            Fallocate::Allocate { keep_size: false } => FallocateFlags::empty(),
            Fallocate::Allocate { keep_size: true } => FallocateFlags::KEEP_SIZE,
            Fallocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Fallocate::Zero { keep_size: false } => FallocateFlags::ZERO_RANGE,
            Fallocate::Zero { keep_size: true } => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        let handle = if how == Fallocate::Punch {
            match self.find(object)? {
                None => return Ok(ObjectAttr::default()),
                Some(handle) => handle,
            }
        } else {
            self.open_to_allocate(object, offset, len, ops::coarse_ms())?
        };
        self.with_room(|| {
            let _alone = handle.alone();
            // Space that the caller allocates after the end must stay.
            self.ahead.give_back_alone(&handle);
            if let (Some(sums), Fallocate::Punch | Fallocate::Zero { .. }) = (&self.sums, how) {
                sums.before_punch(&handle, offset..offset + len)?;
            }
            let result = nacre_env::blocking(|| match (handle.file.allocate(flags, offset, len), how) {
                (Err(Errno::OPNOTSUPP), Fallocate::Zero { keep_size }) => {
                    self.zero_by_punching(&handle, offset, len, keep_size)
                }
                (result, _) => result,
            });
            result.map_err(|error| ObjectError::io("allocate", object, error))
        })?;
        if how == Fallocate::Punch {
            self.reserve.look_again();
        }
        attr_of(&handle)
    }

    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        if offset > nacre_types::limits::FILE_SIZE_MAX {
            return Err(ObjectError::NoData);
        }
        let handle = self.find(object)?.ok_or(ObjectError::NoData)?;
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        match nacre_env::blocking(|| handle.file.seek(from)) {
            Ok(found) => Ok(found),
            Err(Errno::NXIO) => Err(ObjectError::NoData),
            Err(error) => Err(ObjectError::io("seek", object, error)),
        }
    }

    fn sync(&self, object: Fid) -> Result<()> {
        match self.find(object)? {
            None => Ok(()),
            Some(handle) => self.sync_handle(&handle),
        }
    }

    fn sync_all(&self) -> Result<()> {
        nacre_env::blocking(|| {
            self.slots.tree().sync_all().map_err(|error| self.sync_failed(Fid::ZERO, error))?;
            Ok(self.index.sync(self.index.last_transno())?)
        })
    }

    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        self.check_open()?;
        let mut count = 0;
        for some in objects.chunks(DESTROY_AT_ONCE) {
            count += self.destroy_some(some)?;
        }
        // Also if no object existed: a resend must not be confirmed before the removal by the original
        // request is durable.
        nacre_env::blocking(|| self.index.sync(self.index.last_transno()))?;
        Ok(count)
    }

    fn space(&self) -> Result<Space> {
        let objects = self.counters.objects.load(Ordering::Relaxed);
        let stat = self.slots.tree().space();
        let stat = stat.map_err(|error| path_error("ask for the space of", &self.dir, error))?;
        let (free_slots, ahead) = (self.slots.free_count(), self.ahead.reserved_bytes());
        let mut space = self.reserve.space(stat, objects, free_slots, ahead);
        space.is_read_only |= self.is_closed.load(Ordering::Relaxed) || self.index.stats().has_failed;
        Ok(space)
    }

    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        visit_keys(&self.index, OBJECTS, visit)
    }

    fn durability_epoch(&self) -> u64 {
        self.boot.wrapping_add(self.counters.sync_failures.load(Ordering::Relaxed))
    }

    fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        check::check(self, repair, progress)
    }

    fn stats(&self) -> ObjectStoreStats {
        let counters = &self.counters;
        let mut stats = ObjectStoreStats {
            objects: counters.objects.load(Ordering::Relaxed),
            created: counters.created.load(Ordering::Relaxed),
            destroyed: counters.destroyed.load(Ordering::Relaxed),
            files_made: self.slots.files_made(),
            files_free: self.slots.free_count(),
            files_pending: self.releaser.pending(),
            opens: self.handles.opens(),
            open_now: self.handles.count(),
            refused_full: counters.refused_full.load(Ordering::Relaxed),
            sync_failures: counters.sync_failures.load(Ordering::Relaxed),
            recovered_files: counters.recovered_files.load(Ordering::Relaxed),
            ..ObjectStoreStats::default()
        };
        self.transfers.count_into(&mut stats);
        stats
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            ids: Some(self),
            advise: Some(self),
            mtime: Some(self),
            extents: Some(self),
            trim: Some(self),
            page_cache: Some(self.transfers.policy()),
            write_ahead: self.ahead.is_of_use().then_some(&*self.ahead),
            releaser: Some(&self.releaser),
            index: Some(&self.index),
            ..Abilities::default()
        }
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.ahead.give_own_back();
        if let Some(sums) = &self.sums {
            sums.settle_older_than(std::time::Duration::ZERO);
        }
        self.releaser.drain();
        self.sync_all()
    }
}

impl Advise for FileStore {
    fn advise(&self, object: Fid, offset: u64, len: u64, advice: Advice) -> Result<()> {
        let end = range_end(offset, len)?;
        let Some(handle) = self.find(object)? else { return Ok(()) };
        match advice {
            Advice::WillRead => {
                let end = end.min(attr_of(&handle)?.size);
                nacre_env::blocking(|| handle.file.start_fetch(offset, end));
                Ok(())
            }
            Advice::DontNeed => {
                // Dirty pages would stay in the cache.
                self.sync_handle(&handle)?;
                let dropped = handle.file.drop_pages(offset, len);
                dropped.map_err(|error| ObjectError::io("advise", object, error))
            }
        }
    }
}

impl SetMtime for FileStore {
    fn set_mtime(&self, object: Fid, mtime: Timestamp) -> Result<()> {
        self.check_open()?;
        let Some(handle) = self.find(object)? else { return Ok(()) };
        handle.file.set_mtime(mtime).map_err(|error| ObjectError::io("set the time", object, error))
    }
}

/// As far as the local file system reports extents.
impl Extents for FileStore {
    fn extents(&self, object: Fid) -> Result<Option<Vec<ObjectExtent>>> {
        let Some(handle) = self.find(object)? else { return Ok(Some(Vec::new())) };
        let Some(fd) = handle.file.kernel() else { return Ok(None) };
        let mut all = Vec::new();
        let found = fiemap::each(fd, 0..u64::MAX, fiemap::SYNC, &mut |piece| {
            let (logical, physical, len) = (piece.offset, piece.place, piece.length);
            all.push(ObjectExtent { logical, physical, len });
            true
        });
        match found {
            Ok(()) => Ok(Some(all)),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::OPNOTSUPP | Errno::NOTTY)) => {
                Ok(None)
            }
            Err(source) => Err(ObjectError::Io { action: "look for the extents of", object, source }),
        }
    }
}

impl Trim for FileStore {
    fn trim(&self, from: u64, max_bytes: u64) -> Result<Trimmed> {
        self.check_open()?;
        let trimmed = self.freed.trim(self.slots.tree(), from, max_bytes);
        trimmed.map_err(|source| ObjectError::trim(&self.dir.display(), source))
    }

    fn untrimmed(&self) -> u64 {
        let Ok(stat) = self.slots.tree().space() else { return 0 };
        self.freed.look(stat.f_bfree.saturating_mul(stat.f_frsize))
    }

    fn trim_caution(&self) -> Option<&'static str> {
        let is_shared = self.options.sharers > 1 || !is_mount_point(&self.dir);
        is_shared.then_some("the target does not have the file system below it for itself")
    }
}

impl Ids for FileStore {
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        self.check_open()?;
        self.sequences.lock(&self.index).reserve(sequence, count)
    }

    fn last_reserved(&self, sequence: u64) -> Result<u32> {
        last_reserved(&self.index, sequence)
    }

    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32> {
        self.check_open()?;
        let sequences = self.sequences.lock(&self.index);
        sequences.destroy_orphans(sequence, last_used, &self.dir, |orphans| self.destroy(orphans))
    }
}
