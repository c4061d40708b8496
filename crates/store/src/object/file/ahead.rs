//! Space reserved ahead of streams of writes, so that streams written concurrently do not interleave on disk.
//!
//! A local file system allocates space in the order in which data arrives: eight objects that are written at
//! the same time end up in pieces of a few MiB, or less. So an object that grows by a stream gets space after
//! its end with `fallocate`, as much as the stream has written so far and at most
//! [`FileStoreOptions::ahead_max_bytes`](super::FileStoreOptions::ahead_max_bytes); its size does not change.
//! Invariants:
//!
//! - space is reserved after the end of an object only, and only if nothing is allocated there: so the
//!   reserved and unwritten ranges are known exactly ([`Parts`]), and counted neither as the object's nor as
//!   used;
//! - it is released when the stream is idle for [`REST_MS`], before any change of the object other than a
//!   write, before its file may be closed, and whenever a call is about to fail for lack of space: that of
//!   all stores of this process on the file system;
//! - all of them together reserve no more than a part of the available space ([`SHARE`]);
//! - the index records the objects that have some (before the reservation), so that a start after a crash
//!   releases it;
//! - a release keeps the time of the last change.
//!
//! A release truncates the file to its size, so no write may run meanwhile: writes hold [`Handle::transfers`]
//! shared, a release holds it exclusively.

mod stream;

use super::handle::Handle;
use super::local::{FileStat, SlotFile, Tree};
use super::ops;
use super::slots::Slots;
use super::space::Reserve;
use crate::meta::{Batch, MetaStore, Table};
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result};
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::object::{AheadRecord, ObjectRecord};
use nacre_types::Fid;
use rustix::fs::{self, FallocateFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;
use stream::{BLOCK, Growth, Parts};

/// Objects that may have space reserved ahead of them: FID in key form -> [`AheadRecord`].
pub(super) const AHEAD: Table = Table(4);
/// Milliseconds without a write after which a stream has ended: clients send held-back data within a second.
pub(super) const REST_MS: u64 = 5000;
/// Interval between two searches for idle streams.
const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// Divisor of the available space that all streams on a file system together may reserve: concurrent writers,
/// including other processes, must not find it full before the next check.
const SHARE: u64 = 8;
/// Milliseconds for which a stream whose reservation was refused does not retry.
const REFUSED_MS: u64 = 1000;
/// Maximum gaps between written ranges that are tracked; with more, the writes are no stream.
const PARTS_MAX: usize = 32;

/// Space reserved ahead of one object.
#[derive(Default)]
pub(super) struct Ahead {
    growth: Growth,
    parts: Parts,
    /// End of the last reservation; 0 without one.
    end: u64,
    /// The index has a record for the object.
    is_recorded: bool,
    /// Space allocated by another user is after the end.
    is_barred: bool,
    written_ms: u64,
    refused_until_ms: u64,
}

impl Ahead {
    /// Whether there may be space to release.
    pub(super) fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Returns the reserved space, in units of 512 bytes, that the file takes and the object does not own.
    pub(super) fn blocks(&self) -> u64 {
        self.parts.bytes() / 512
    }
}

/// Space that all stores of this process have reserved on one file system.
#[derive(Default)]
pub(super) struct Shared {
    bytes: AtomicU64,
    books: Mutex<Vec<Weak<AheadBook>>>,
}

/// Shared states, by the device number of the file system.
static SHARED: LazyLock<Mutex<HashMap<u64, Weak<Shared>>>> = LazyLock::new(Mutex::default);

impl Shared {
    /// Returns the shared state of the file system of the slot files.
    pub(super) fn of(tree: &Tree) -> Arc<Shared> {
        // Without a device number the state is for this store alone.
        let Some(stat) = tree.kernel().and_then(|fd| fs::fstat(fd).ok()) else { return Arc::default() };
        let mut all = SHARED.lock();
        all.retain(|_, shared| shared.strong_count() > 0);
        let known = all.get(&stat.st_dev).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let new = Arc::new(Shared::default());
            all.insert(stat.st_dev, Arc::downgrade(&new));
            new
        })
    }
}

/// File systems on which a reservation is worthwhile, by their magic numbers (`linux/magic.h`): ext4, xfs,
/// btrfs. One in memory would zero reserved space.
pub(super) const WORTH_IT: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// Reservations of a store ahead of streams of writes.
pub struct AheadBook {
    index: Arc<MetaStore>,
    slots: Arc<Slots>,
    reserve: Arc<Reserve>,
    /// Largest reservation in bytes; 0 for none.
    max_bytes: AtomicU64,
    /// The file system cannot reserve space.
    is_off: AtomicBool,
    shared: Arc<Shared>,
    /// Objects with a record in the index.
    holders: Mutex<Vec<Weak<Handle>>>,
    changed: Condvar,
    is_stopping: AtomicBool,
}

impl AheadBook {
    /// Creates the book of a store whose streams get up to `max_bytes` each; `everywhere`: on any file
    /// system. `shared` is the state shared with other stores there.
    pub(super) fn new(
        slots: Arc<Slots>,
        index: Arc<MetaStore>,
        reserve: Arc<Reserve>,
        max_bytes: u64,
        everywhere: bool,
        shared: Arc<Shared>,
    ) -> Arc<AheadBook> {
        let found = slots.tree().kernel().and_then(|fd| fs::fstatfs(fd).ok());
        let is_worth_it = everywhere || found.is_some_and(|found| WORTH_IT.contains(&found.f_type));
        let book = Arc::new(AheadBook {
            index,
            slots,
            reserve,
            max_bytes: AtomicU64::new(max_bytes),
            is_off: AtomicBool::new(!is_worth_it),
            shared,
            holders: Mutex::default(),
            changed: Condvar::new(),
            is_stopping: AtomicBool::new(false),
        });
        let mut books = book.shared.books.lock();
        books.retain(|book| book.strong_count() > 0);
        books.push(Arc::downgrade(&book));
        drop(books);
        book
    }

    /// Returns the bytes that all stores of this process have reserved on this file system and not used.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether the file system can reserve space, and reservations are worthwhile on it.
    pub(super) fn is_of_use(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
    }

    /// Returns the maximum bytes reserved ahead of a stream, 0 for none.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Sets that maximum for writes that begin from now on. 0 releases all reserved space.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        if max_bytes == 0 {
            self.give_own_back();
        }
    }

    /// Starts the thread that releases the space of idle streams.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let book = self.clone();
        nacre_env::thread::Builder::new().name("ost-ahead".into()).spawn(move || book.run())
    }

    /// Stops the thread.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // Under the lock: the thread checks the flag and sleeps under it.
        drop(self.holders.lock());
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            let mut holders = self.holders.lock();
            while holders.is_empty() && !self.is_stopping.load(Ordering::Relaxed) {
                self.changed.wait(&mut holders);
            }
            if !self.is_stopping.load(Ordering::Relaxed) {
                self.changed.wait_for(&mut holders, LOOK_EVERY);
            }
            drop(holders);
            if self.is_stopping.load(Ordering::Relaxed) {
                return;
            }
            self.give_back_rested(ops::coarse_ms());
        }
    }

    /// Releases the space of streams that have ended by `now_ms` ([`ops::coarse_ms`]), or all if space is
    /// short.
    pub(super) fn give_back_rested(&self, now_ms: u64) {
        let is_short = self.available().is_some_and(|bytes| bytes / SHARE < self.reserved_bytes() / 2);
        for handle in self.holders() {
            let rests = now_ms.saturating_sub(handle.ahead.lock().written_ms) >= REST_MS;
            if rests || is_short {
                self.give_back(&handle);
            }
        }
    }

    /// Returns the number of objects with reserved space.
    #[cfg(test)]
    pub(super) fn holding(&self) -> usize {
        self.holders().len()
    }

    fn holders(&self) -> Vec<Arc<Handle>> {
        let mut holders = self.holders.lock();
        // Handles that are being dropped release their space themselves.
        holders.retain(|handle| handle.strong_count() > 0);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Releases the space that all stores of this process have reserved on this file system; returns whether
    /// there was any. The caller holds no transfer lock.
    pub(super) fn give_all_back(&self) -> bool {
        let books: Vec<Arc<AheadBook>> = self.shared.books.lock().iter().filter_map(Weak::upgrade).collect();
        let given: u64 = books.iter().map(|book| book.give_own_back()).sum();
        if given > 0 {
            books.iter().for_each(|book| book.reserve.look_again());
        }
        given > 0
    }

    /// Releases the space that this store has reserved; returns the bytes.
    pub(super) fn give_own_back(&self) -> u64 {
        self.holders().iter().map(|handle| self.give_back(handle)).sum()
    }

    fn available(&self) -> Option<u64> {
        let stat = self.slots.tree().space().ok()?;
        Some(self.reserve.available(&stat, 0))
    }

    /// Provides contiguous space for a write of a stream, as far as possible. The caller holds
    /// [`Handle::transfers`].
    pub(super) fn before_write(self: &Arc<Self>, handle: &Arc<Handle>, offset: u64, len: u64, now_ms: u64) {
        let max_bytes = self.max_bytes();
        if !self.is_of_use() || max_bytes == 0 {
            return;
        }
        let mut ahead = handle.ahead.lock();
        ahead.written_ms = now_ms;
        let Some(requested) = ahead.growth.on_write(offset, len, max_bytes) else { return };
        if offset + len <= ahead.end || ahead.is_barred || now_ms < ahead.refused_until_ms {
            return;
        }
        nacre_env::blocking(|| match self.extend(handle, &mut ahead, offset + len, requested) {
            Ok(true) => {}
            Ok(false) | Err(Errno::NOSPC | Errno::DQUOT) => ahead.refused_until_ms = now_ms + REFUSED_MS,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.is_off.store(true, Ordering::Relaxed),
            Err(_) => ahead.is_barred = true,
        });
    }

    /// Reserves space for a write up to `end` and `requested` bytes after it; false if there is too little.
    fn extend(
        self: &Arc<Self>,
        handle: &Arc<Handle>,
        ahead: &mut Ahead,
        end: u64,
        requested: u64,
    ) -> std::result::Result<bool, Errno> {
        let size = handle.file.stat()?.size;
        let from = size.max(ahead.end).div_ceil(BLOCK) * BLOCK;
        if end <= from {
            return Ok(true);
        }
        let most = (self.available().unwrap_or(0) / SHARE).saturating_sub(self.reserved_bytes());
        let to = (end.div_ceil(BLOCK) * BLOCK + requested).min(from.saturating_add(most / BLOCK * BLOCK));
        if to <= end || to > nacre_types::limits::FILE_SIZE_MAX {
            return Ok(false);
        }
        if !ahead.is_recorded {
            if self.has_more(handle, size)? {
                ahead.is_barred = true;
                return Ok(false);
            }
            self.record(handle.object).map_err(|_| Errno::NOSPC)?;
            ahead.is_recorded = true;
            self.holders.lock().push(Arc::downgrade(handle));
            self.changed.notify_all();
        }
        handle.file.allocate(FallocateFlags::KEEP_SIZE, from, to - from)?;
        ahead.parts.push(from..to);
        ahead.end = to;
        self.shared.bytes.fetch_add(to - from, Ordering::Relaxed);
        Ok(true)
    }

    /// Whether space after the end of an object is allocated, by its user or by the file system itself.
    fn has_more(&self, handle: &Handle, size: u64) -> std::result::Result<bool, Errno> {
        if let Some(found) = handle.file.has_more(size.div_ceil(BLOCK) * BLOCK) {
            return Ok(found);
        }
        Ok(handle.file.stat()?.blocks * 512 > size.div_ceil(BLOCK) * BLOCK)
    }

    pub(super) fn record(&self, object: Fid) -> Result<()> {
        let mut batch = Batch::new();
        batch.put(AHEAD, &object.to_key(), &AheadRecord.encode());
        self.index.commit(&batch)?;
        Ok(())
    }

    fn forget_record(&self, object: Fid) {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.delete(AHEAD, &object.to_key());
        if let Err(error) = self.index.commit(&batch) {
            // The next start finds nothing to release.
            log::debug!("object {object}: the record of its reserved space stays: {error}");
        }
    }

    /// Notes written bytes. The caller holds [`Handle::transfers`]. Returns true if there are too many gaps
    /// between written ranges: then all space must be released, outside of the transfer.
    #[must_use]
    pub(super) fn after_write(&self, handle: &Handle, offset: u64, written: u64) -> bool {
        if !self.is_of_use() {
            return false;
        }
        let mut ahead = handle.ahead.lock();
        if ahead.end == 0 {
            return false;
        }
        let used = ahead.parts.written(offset, written);
        self.shared.bytes.fetch_sub(used, Ordering::Relaxed);
        ahead.parts.count() > PARTS_MAX
    }

    /// Releases the space reserved ahead of an object; returns the bytes.
    pub(super) fn give_back(&self, handle: &Handle) -> u64 {
        let _alone = handle.alone();
        self.give_back_alone(handle)
    }

    /// Releases it likewise, for a caller that holds the object's transfers exclusively.
    pub(super) fn give_back_alone(&self, handle: &Handle) -> u64 {
        let mut ahead = handle.ahead.lock();
        if !ahead.is_recorded {
            return 0;
        }
        let bytes = ahead.parts.bytes();
        if bytes > 0
            && let Err(error) = nacre_env::blocking(|| cut(&handle.file, &ahead.parts))
        {
            // Retried when the stream is idle again; in the last resort by the next start, which follows the
            // record.
            log::warn!("object {}: space reserved ahead of it is not given back: {error}", handle.object);
            (ahead.is_barred, ahead.written_ms) = (true, ops::coarse_ms());
            return 0;
        }
        self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
        (ahead.parts, ahead.end, ahead.growth) = (Parts::default(), 0, Growth::default());
        ahead.is_recorded = false;
        drop(ahead);
        self.holders.lock().retain(|holder| !std::ptr::eq(holder.as_ptr(), handle));
        self.forget_record(handle.object);
        bytes
    }

    /// Handles the last user's release of an object's file, which is emptied if the object was destroyed.
    /// Other files are closed without reserved space, or when the store closes.
    pub(super) fn on_close(&self, handle: &Handle, is_destroyed: bool) {
        if !is_destroyed {
            self.give_back_alone(handle);
            return;
        }
        let mut ahead = handle.ahead.lock();
        self.shared.bytes.fetch_sub(ahead.parts.bytes(), Ordering::Relaxed);
        ahead.parts = Parts::default();
        if std::mem::take(&mut ahead.is_recorded) {
            self.forget_record(handle.object);
        }
    }
}

/// Frees parts of a file within its size, and everything after it. The time of the last change stays.
fn cut(file: &SlotFile, parts: &Parts) -> std::result::Result<(), Errno> {
    let stat = file.stat()?;
    for part in parts.iter().filter(|part| part.start < stat.size) {
        file.punch(part.start, part.end - part.start)?;
    }
    cut_tail(file, stat)
}

/// Frees space allocated after the end. The time of the last change stays.
fn cut_tail(file: &SlotFile, stat: FileStat) -> std::result::Result<(), Errno> {
    // An empty file may keep its space in a truncation to its current size.
    if stat.size == 0 {
        file.empty()?
    } else {
        file.set_size(stat.size)?
    }
    file.set_mtime(stat.mtime)
}

/// Releases space that an earlier run left reserved ahead of objects, because it crashed or a release failed.
pub(super) fn recover(
    index: &MetaStore,
    slots: &Slots,
    shared_slots: &HashSet<u32>,
    dir: &Path,
) -> Result<()> {
    let mut keys: Vec<[u8; 16]> = Vec::new();
    index.scan(AHEAD, &[], Bound::Unbounded, &mut |key, _| {
        keys.extend(<[u8; 16]>::try_from(key));
        ControlFlow::Continue(())
    })?;
    let mut batch = Batch::new();
    batch.set_releasing(true);
    for key in &keys {
        let object = Fid::from_key(key);
        let slot = index.get(OBJECTS, key, |value| value.map(ObjectRecord::decode))?;
        if let Some(Ok(ObjectRecord { slot })) = slot
            && !shared_slots.contains(&slot)
        {
            let cut =
                slots.open_file(slot, fs::OFlags::empty()).and_then(|file| cut_tail(&file, file.stat()?));
            cut.map_err(|error| ObjectError::io("give back space reserved ahead of", object, error))?;
        }
        batch.delete(AHEAD, key);
    }
    if !keys.is_empty() {
        index.commit(&batch)?;
        log::info!("{}: gave back space ahead of {} objects", dir.display(), keys.len());
    }
    Ok(())
}
