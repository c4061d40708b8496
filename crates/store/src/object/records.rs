//! Objects in records of a metadata store: data of small files on an MDT.
//!
//! ```text
//! FID                    head: size, space, time, and the bytes if all of them are in the first chunk
//! FID, number (u32)      bytes of chunk `number`, otherwise; the missing rest is zeros
//! ```
//!
//! The store belongs to the metadata server, which may put changes of objects into transactions of its own
//! ([`Edit`]): data of a file and its attributes then change together. So a crash tears no change, and a sync
//! is a sync of the log.
//!
//! The time of an object's last change increases with each change, so that it serves as its version.
//!
//! There are no sequences: an object has the FID of a file. Bytes: `docs/formats/mdt.md`.

mod edit;
#[cfg(test)]
mod tests;

pub use edit::Edit;

use super::file::space::Reserve;
use super::file::{boot_identity, ops};
use super::{
    Abilities, Fallocate, ObjectAttr, ObjectError, ObjectProblem, ObjectStore, ObjectStoreStats,
    ObjectVerifyReport, Result, Seek, Space,
};
use crate::meta::{Batch, MetaStore, Table};
use edit::Head;
use nacre_env::sync::{RwLock, RwLockWriteGuard};
use nacre_ondisk::DataRecord;
use nacre_types::fid::FID_BYTES;
use nacre_types::{Fid, Timestamp, TransNo};
use rustix::fs::fstatvfs;
use std::cell::Cell;
use std::ops::{Bound, ControlFlow, Range};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of a chunk. A change rewrites the chunks that it touches, so small ones suit small writes; each
/// costs a record, so large ones suit streams.
pub const CHUNK_BYTES: u64 = 32 << 10;
/// Maximum bytes that one transaction changes.
const STEP_BYTES: u64 = 1 << 20;
/// Largest object in bytes: more chunks cannot be numbered.
const SIZE_MAX: u64 = u32::MAX as u64 * CHUNK_BYTES;
/// Locks, which objects share by hash.
const LOCKS: usize = 64;

thread_local! {
    /// Transaction of the last change by this thread.
    static LAST_CHANGE: Cell<u64> = const { Cell::new(0) };
}

/// Decides whether an object that does not exist belongs to a file.
pub type Owned = dyn Fn(&Fid) -> Result<bool> + Send + Sync;

/// See the [module documentation](self).
pub struct RecordStore {
    meta: Arc<MetaStore>,
    table: Table,
    /// Directory on the file system whose space limits the store.
    dir: OwnedFd,
    reserve: Reserve,
    locks: Box<[RwLock<()>]>,
    /// Check before an object is created.
    owned: OnceLock<Box<Owned>>,
    is_closed: AtomicBool,
    boot: u64,
    created: AtomicU64,
    destroyed: AtomicU64,
    refused_full: AtomicU64,
}

fn chunk_key(object: Fid, number: u32) -> [u8; FID_BYTES + 4] {
    let mut key = [0; FID_BYTES + 4];
    key[..FID_BYTES].copy_from_slice(&object.to_key());
    key[FID_BYTES..].copy_from_slice(&number.to_be_bytes());
    key
}

fn coarse_now() -> Timestamp {
    Timestamp::from(nacre_env::clock::wall())
}

/// Returns the end of a range that an object can have.
fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(ObjectError::TooLarge)
}

impl RecordStore {
    /// Creates the store of objects in `table` of `meta`. Writes are refused when the file system of `dir`
    /// has less than `reserve_bytes` left.
    ///
    /// # Errors
    /// If the directory cannot be opened.
    pub fn new(meta: Arc<MetaStore>, table: Table, dir: &Path, reserve_bytes: u64) -> Result<RecordStore> {
        let fail = |source| ObjectError::Path { action: "open", path: dir.to_owned(), source };
        let dir = OwnedFd::from(std::fs::File::open(dir).map_err(fail)?);
        Ok(RecordStore {
            meta,
            table,
            dir,
            reserve: Reserve::new(reserve_bytes, 1),
            locks: (0..LOCKS).map(|_| RwLock::new(())).collect(),
            owned: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            boot: boot_identity(),
            created: AtomicU64::new(0),
            destroyed: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
        })
    }

    fn lock_of(&self, object: Fid) -> &RwLock<()> {
        let number = (object.seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize ^ object.oid as usize;
        &self.locks[number % LOCKS]
    }

    /// Sets the check that runs before an object is created: a client's late write must not recreate the
    /// object of a removed file. Changes by [`Edit`] are not checked. Only the first call counts.
    pub fn set_owned(&self, owned: Box<Owned>) {
        let _ = self.owned.set(owned);
    }

    /// Begins a change of an object.
    ///
    /// # Errors
    /// [`ObjectError::Closed`]; those of the store.
    pub fn edit(&self, object: Fid) -> Result<Edit<'_>> {
        let locked = self.lock_to_change(object)?;
        Edit::begin(self, object, locked)
    }

    fn lock_to_change(&self, object: Fid) -> Result<RwLockWriteGuard<'_, ()>> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(ObjectError::Closed);
        }
        let lock = self.lock_of(object);
        Ok(lock.try_write().unwrap_or_else(|| nacre_env::blocking(|| lock.write())))
    }

    /// Returns the free bytes in space that the store holds.
    fn free_inside(&self) -> u64 {
        self.meta.free_inside().saturating_sub(self.meta.recent_bytes())
    }

    /// Checks whether `len` more bytes may be allocated.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`].
    pub fn check_room(&self, len: u64) -> Result<()> {
        if self.reserve.admits(|| fstatvfs(&self.dir), len, ops::coarse_ms(), || self.free_inside()) {
            return Ok(());
        }
        self.refused_full.fetch_add(1, Ordering::Relaxed);
        Err(ObjectError::NoSpace)
    }

    /// Returns all bytes of an object that holds at most `max` of them; `None` if there are more or they are
    /// in several records.
    ///
    /// # Errors
    /// Those of the store.
    pub fn small(&self, object: Fid, max: u64) -> Result<Option<Vec<u8>>> {
        let _locked = self.lock_of(object).read();
        let mut found = None;
        let head = self.head(object, |data| found = data.map(<[u8]>::to_vec))?;
        let size = match head {
            Some(head) if head.size <= max => head.size,
            _ => return Ok(None),
        };
        if let Some(bytes) = &mut found {
            bytes.resize(size as usize, 0);
        }
        Ok(found)
    }

    /// Changes an object in one transaction.
    fn change(&self, object: Fid, change: impl FnOnce(&mut Edit<'_>) -> Result<()>) -> Result<ObjectAttr> {
        let mut edit = self.edit(object)?;
        let existed = edit.exists();
        // Under the lock of the object, which a thread that removes the file takes after that.
        if !existed
            && let Some(owned) = self.owned.get().filter(|_| !self.is_closed.load(Ordering::Relaxed))
            && !owned(&object)?
        {
            return Err(ObjectError::Gone(object));
        }
        change(&mut edit)?;
        let mut batch = Batch::new();
        let attr = edit.stage(&mut batch);
        let transno = self.meta.commit(&batch)?;
        LAST_CHANGE.set(transno.0);
        self.created.fetch_add(u64::from(!existed), Ordering::Relaxed);
        Ok(attr)
    }

    fn write_all(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        for piece in data.chunks(STEP_BYTES as usize) {
            let at = offset + done as u64;
            match self.change(object, |edit| edit.write(at, piece)) {
                Ok(_) => done += piece.len(),
                Err(error) if done > 0 && matches!(error.status(), nacre_types::Status::ENOSPC) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Runs `change` for pieces of a range, one transaction each, and returns the new attributes.
    fn in_steps(
        &self,
        object: Fid,
        range: Range<u64>,
        change: impl Fn(&mut Edit<'_>, Range<u64>) -> Result<()>,
    ) -> Result<ObjectAttr> {
        let mut at = range.start;
        loop {
            let end = range.end.min(at + STEP_BYTES);
            let attr = self.change(object, |edit| change(edit, at..end))?;
            at = end;
            if at >= range.end {
                return Ok(attr);
            }
        }
    }

    fn extent(&self, object: Fid, what: Seek, offset: u64) -> Result<u64> {
        let _locked = self.lock_of(object).read();
        let mut first = None;
        let head = self.head(object, |data| first = data.map(<[u8]>::len))?;
        let size = head.map_or(0, |head| head.size);
        if offset >= size {
            return Err(ObjectError::NoData);
        }
        let mut found: Vec<(u64, u64)> = Vec::new();
        match first {
            Some(len) => found.push((0, len as u64)),
            None => {
                for number in self.numbers(object)? {
                    let start = u64::from(number) * CHUNK_BYTES;
                    let len = self.chunk(object, number, <[u8]>::len)? as u64;
                    found.push((start, start + len));
                }
            }
        }
        let mut at = offset;
        for (start, end) in found {
            match what {
                Seek::Data if at < end && at.max(start) < size => return Ok(at.max(start)),
                Seek::Hole if start <= at && at < end => at = end,
                _ => {}
            }
        }
        match what {
            Seek::Data => Err(ObjectError::NoData),
            Seek::Hole => Ok(at.min(size)),
        }
    }
}

impl ObjectStore for RecordStore {
    fn last_change(&self) -> Option<(TransNo, TransNo)> {
        Some((TransNo(LAST_CHANGE.take()), self.meta.last_committed()))
    }

    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return Ok(0);
        }
        self.check_room(data.len() as u64)?;
        self.write_all(object, offset, data)
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        end_of(offset, data.len() as u64)?;
        self.write_all(object, offset, data)
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], _ahead: u32) -> Result<usize> {
        let _locked = self.lock_of(object).read();
        let mut done = 0;
        let head = self.head(object, |data| {
            let data = data.and_then(|data| data.get(usize::try_from(offset).ok()?..)).unwrap_or(&[]);
            done = data.len().min(buffer.len());
            buffer[..done].copy_from_slice(&data[..done]);
        })?;
        let Some(Head { size, is_inline, .. }) = head else { return Ok(0) };
        let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if is_inline {
            buffer[done.min(len)..len].fill(0);
            return Ok(len);
        }
        let mut at = 0;
        while at < len {
            let place = offset + at as u64;
            let start = (place % CHUNK_BYTES) as usize;
            let piece = (CHUNK_BYTES as usize - start).min(len - at);
            let target = &mut buffer[at..at + piece];
            self.chunk(object, (place / CHUNK_BYTES) as u32, |bytes| {
                let bytes = bytes.get(start..).unwrap_or(&[]);
                let there = bytes.len().min(piece);
                target[..there].copy_from_slice(&bytes[..there]);
                target[there..].fill(0);
            })?;
            at += piece;
        }
        Ok(len)
    }

    fn attr(&self, object: Fid) -> Result<ObjectAttr> {
        Ok(self.head(object, |_| ())?.map_or(ObjectAttr::default(), |head| head.attr()))
    }

    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr> {
        end_of(size, 0)?;
        if size == 0 && self.attr(object)?.mtime.is_none() && !self.is_closed.load(Ordering::Relaxed) {
            return Ok(ObjectAttr::default());
        }
        self.change(object, |edit| edit.set_size(size))
    }

    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr> {
        if len == 0 {
            return Err(ObjectError::Empty);
        }
        let end = match how {
            Fallocate::Punch => offset.saturating_add(len).min(SIZE_MAX).max(offset),
            _ => end_of(offset, len)?,
        };
        match how {
            Fallocate::Punch => match self.attr(object)?.mtime {
                None => Ok(ObjectAttr::default()),
                Some(_) => self.change(object, |edit| edit.punch(offset..end)),
            },
            Fallocate::Zero { keep_size } => self.change(object, |edit| {
                edit.punch(offset..end)?;
                if !keep_size {
                    edit.grow(end);
                }
                Ok(())
            }),
            Fallocate::Allocate { keep_size } => {
                self.check_room(len)?;
                self.in_steps(object, offset..end, |edit, part| {
                    let end = part.end;
                    edit.allocate(part)?;
                    if !keep_size {
                        edit.grow(end);
                    }
                    Ok(())
                })
            }
        }
    }

    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        self.extent(object, what, offset)
    }

    fn sync(&self, _object: Fid) -> Result<()> {
        self.sync_all()
    }

    fn sync_all(&self) -> Result<()> {
        Ok(self.meta.sync(self.meta.last_transno())?)
    }

    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        let mut count = 0;
        for object in objects {
            let _locked = self.lock_to_change(*object)?;
            let mut batch = Batch::new();
            if self.stage_destroy_locked(*object, &mut batch)? {
                self.meta.commit(&batch)?;
                count += 1;
            }
        }
        self.sync_all()?;
        self.destroyed.fetch_add(count, Ordering::Relaxed);
        self.reserve.look_again();
        Ok(count)
    }

    fn space(&self) -> Result<Space> {
        fstatvfs(&self.dir)
            .map(|stat| self.reserve.space(stat, 0, 0, self.free_inside()))
            .map_err(|error| ObjectError::io("ask for the space", Fid::ZERO, error))
    }

    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        self.meta.scan(self.table, &[], Bound::Unbounded, &mut |key, _| {
            // Longer keys belong to chunks.
            if let Ok(key) = <&[u8; FID_BYTES]>::try_from(key) {
                visit(Fid::from_key(key));
            }
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn durability_epoch(&self) -> u64 {
        self.boot
    }

    fn verify(&self, _repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        let mut report = ObjectVerifyReport::default();
        let mut read = 0;
        // Chunks follow their heads directly.
        let mut last: Option<(Fid, u64, u64)> = None;
        let settle = |last: Option<(Fid, u64, u64)>, report: &mut ObjectVerifyReport| {
            if let Some((object, said, found)) = last.filter(|(_, said, found)| said != found) {
                report.add(ObjectProblem::Space { object, said, found }, false);
            }
        };
        self.meta.scan(self.table, &[], Bound::Unbounded, &mut |key, value| {
            read += 1;
            if read % 10_000 == 0 {
                progress(read);
            }
            let space = |len: usize| (len as u64).next_multiple_of(4096);
            let fid = key.first_chunk::<FID_BYTES>().map(Fid::from_key);
            match (fid, key.len(), DataRecord::decode(value)) {
                (Some(object), FID_BYTES, Ok(record)) => {
                    settle(last, &mut report);
                    report.objects += 1;
                    report.bytes += record.size;
                    report.blocks += record.allocated / 512;
                    last =
                        Some((object, record.allocated, record.inline.map_or(0, |data| space(data.len()))));
                }
                (Some(_), FID_BYTES, Err(error)) => {
                    report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
                }
                (Some(object), len, _) if len == FID_BYTES + 4 => match &mut last {
                    Some((owner, _, found)) if *owner == object => *found += space(value.len()),
                    _ => report.add(ObjectProblem::NoHead { object }, false),
                },
                _ => {
                    let error = nacre_ondisk::DecodeError::Field("key");
                    report.add(ObjectProblem::Record { key: key.to_vec(), error }, false);
                }
            }
            ControlFlow::Continue(())
        })?;
        settle(last, &mut report);
        Ok(report)
    }

    fn stats(&self) -> ObjectStoreStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ObjectStoreStats {
            created: load(&self.created),
            destroyed: load(&self.destroyed),
            refused_full: load(&self.refused_full),
            ..ObjectStoreStats::default()
        }
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { has_versions: true, ..Abilities::default() }
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::Relaxed);
        self.sync_all()
    }
}
