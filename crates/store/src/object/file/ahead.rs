//! Space reserved ahead of streams of writes, so that streams that are written beside each other do not lie between each other.
//!
//! A local file system gives space out in the order in which data comes: eight objects that are written at the same time end up in
//! pieces of a few MiB, or less. So an object that grows by a stream gets space behind its end with `fallocate`, as much as the
//! stream has brought so far and at most [`FileStoreOptions::ahead_max_bytes`](super::FileStoreOptions::ahead_max_bytes); its size does
//! not change. Invariants:
//!
//! - space is reserved behind the end of an object only, and only if nothing is allocated there: so what was reserved and not written
//!   is known exactly ([`Parts`]), and is neither counted as the object's nor as used;
//! - it is given back when the stream rests for [`REST_MS`], before anything else than a write changes the object, before its file may be
//!   closed, and whenever somebody is about to be told that there is no space: of all stores of this process on the file system;
//! - all of them together reserve no more than a part of what is available ([`SHARE`]);
//! - the index knows which objects have some (a record that is committed before), so that a start after a crash gives it back;
//! - giving back leaves the time of the last change as it is.
//!
//! Giving back cuts the file at its size, so nobody may write meanwhile: writes hold [`Handle::transfers`] shared, whoever gives back has it
//! alone.

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
/// A stream that brought nothing for so long has ended, in milliseconds: clients send what they hold back within a second.
pub(super) const REST_MS: u64 = 5000;
/// Time between two looks for streams that rest.
const LOOK_EVERY: Duration = Duration::from_millis(1000);
/// All streams on a file system together reserve at most one in so many bytes of what is available: others that fill it at the same
/// time, also other processes, are not to find it full before the next look.
const SHARE: u64 = 8;
/// Time in milliseconds for which a stream that got nothing does not ask again.
const REFUSED_MS: u64 = 1000;
/// Pieces between what was written that are kept in mind; with more the writes are no stream.
const PARTS_MAX: usize = 32;

/// What is reserved ahead of one object.
#[derive(Default)]
pub(super) struct Ahead {
    growth: Growth,
    parts: Parts,
    /// Where the last reservation ends; 0 without one.
    end: u64,
    /// The index knows that there is, or was, something.
    is_recorded: bool,
    /// Somebody else's space lies behind the end.
    is_barred: bool,
    written_ms: u64,
    refused_until_ms: u64,
}

impl Ahead {
    /// Somebody has to give it back.
    pub(super) fn is_recorded(&self) -> bool {
        self.is_recorded
    }

    /// Of what the file takes, in units of 512 bytes, this is not the object's.
    pub(super) fn blocks(&self) -> u64 {
        self.parts.bytes() / 512
    }
}

/// What all stores of this process on one file system have reserved.
#[derive(Default)]
pub(super) struct Shared {
    bytes: AtomicU64,
    books: Mutex<Vec<Weak<AheadBook>>>,
}

/// By the number of the file system's device.
static SHARED: LazyLock<Mutex<HashMap<u64, Weak<Shared>>>> = LazyLock::new(Mutex::default);

impl Shared {
    /// That of the file system on which slot files lie.
    pub(super) fn of(tree: &Tree) -> Arc<Shared> {
        // Without a number it is for this store alone.
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

/// File systems whose space for a file is worth reserving, by their magic numbers: ext4, xfs, btrfs. Source: linux/magic.h. One in memory
/// would clear what is reserved.
pub(super) const WORTH_IT: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

/// What a store reserves ahead of streams of writes.
pub struct AheadBook {
    index: Arc<MetaStore>,
    slots: Arc<Slots>,
    reserve: Arc<Reserve>,
    /// Largest reservation; 0 for none at all.
    max_bytes: AtomicU64,
    /// The file system cannot reserve.
    is_off: AtomicBool,
    shared: Arc<Shared>,
    /// Objects that the index knows to have something.
    holders: Mutex<Vec<Weak<Handle>>>,
    changed: Condvar,
    is_stopping: AtomicBool,
}

impl AheadBook {
    /// Of a store whose streams get up to `max_bytes` each; `everywhere`: whatever the file system is. `shared` with others there.
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

    /// Bytes that all stores of this process have reserved on this file system and not used.
    pub(super) fn reserved_bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Whether the file system can reserve, and that is of use.
    pub(super) fn is_of_use(&self) -> bool {
        !self.is_off.load(Ordering::Relaxed)
    }

    /// Most bytes that are reserved ahead of a stream, 0 for none.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes.load(Ordering::Relaxed)
    }

    /// Changes it for writes that begin from now on. With 0 all is given back that is reserved.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        self.max_bytes.store(max_bytes, Ordering::Relaxed);
        if max_bytes == 0 {
            self.give_own_back();
        }
    }

    /// Starts the thread that gives back what rests.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let book = self.clone();
        nacre_env::thread::Builder::new().name("ost-ahead".into()).spawn(move || book.run())
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // Under the lock: the thread looks at the flag and sleeps under it.
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

    /// Gives back what belongs to streams that have ended by `now_ms` ([`ops::coarse_ms`]), or all if space is short.
    pub(super) fn give_back_rested(&self, now_ms: u64) {
        let is_short = self.available().is_some_and(|bytes| bytes / SHARE < self.reserved_bytes() / 2);
        for handle in self.holders() {
            let rests = now_ms.saturating_sub(handle.ahead.lock().written_ms) >= REST_MS;
            if rests || is_short {
                self.give_back(&handle);
            }
        }
    }

    /// Objects that have something.
    #[cfg(test)]
    pub(super) fn holding(&self) -> usize {
        self.holders().len()
    }

    fn holders(&self) -> Vec<Arc<Handle>> {
        let mut holders = self.holders.lock();
        // Those that are about to go see to it themselves.
        holders.retain(|handle| handle.strong_count() > 0);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Gives back what all stores of this process have reserved on this file system; whether that was anything. The caller is in no
    /// transfer.
    pub(super) fn give_all_back(&self) -> bool {
        let books: Vec<Arc<AheadBook>> = self.shared.books.lock().iter().filter_map(Weak::upgrade).collect();
        let given: u64 = books.iter().map(|book| book.give_own_back()).sum();
        if given > 0 {
            books.iter().for_each(|book| book.reserve.look_again());
        }
        given > 0
    }

    /// Gives back what this store has reserved: bytes.
    pub(super) fn give_own_back(&self) -> u64 {
        self.holders().iter().map(|handle| self.give_back(handle)).sum()
    }

    fn available(&self) -> Option<u64> {
        let stat = self.slots.tree().space().ok()?;
        Some(self.reserve.available(&stat, 0))
    }

    /// Makes sure that a write of a stream finds space in one piece, as far as that is possible. The caller holds
    /// [`Handle::transfers`].
    pub(super) fn before_write(self: &Arc<Self>, handle: &Arc<Handle>, offset: u64, len: u64, now_ms: u64) {
        let max_bytes = self.max_bytes();
        if !self.is_of_use() || max_bytes == 0 {
            return;
        }
        let mut ahead = handle.ahead.lock();
        ahead.written_ms = now_ms;
        let Some(wish) = ahead.growth.on_write(offset, len, max_bytes) else { return };
        if offset + len <= ahead.end || ahead.is_barred || now_ms < ahead.refused_until_ms {
            return;
        }
        nacre_env::blocking(|| match self.extend(handle, &mut ahead, offset + len, wish) {
            Ok(true) => {}
            Ok(false) | Err(Errno::NOSPC | Errno::DQUOT) => ahead.refused_until_ms = now_ms + REFUSED_MS,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => self.is_off.store(true, Ordering::Relaxed),
            Err(_) => ahead.is_barred = true,
        });
    }

    /// Reserves so that a write up to `end` and `wish` bytes behind it have space; false if there is too little of it.
    fn extend(
        self: &Arc<Self>,
        handle: &Arc<Handle>,
        ahead: &mut Ahead,
        end: u64,
        wish: u64,
    ) -> std::result::Result<bool, Errno> {
        let size = handle.file.stat()?.size;
        let from = size.max(ahead.end).div_ceil(BLOCK) * BLOCK;
        if end <= from {
            return Ok(true);
        }
        let most = (self.available().unwrap_or(0) / SHARE).saturating_sub(self.reserved_bytes());
        let to = (end.div_ceil(BLOCK) * BLOCK + wish).min(from.saturating_add(most / BLOCK * BLOCK));
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

    /// Whether something lies behind the end of an object, which was allocated by its user or by the file system itself.
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
            // The next start finds nothing to give back.
            log::debug!("object {object}: the record of its reserved space stays: {error}");
        }
    }

    /// Notes what was written. The caller holds [`Handle::transfers`]. True if too many pieces are between what was written: then all is
    /// to be given back, outside of the transfer.
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

    /// Gives back what is reserved ahead of an object: bytes.
    pub(super) fn give_back(&self, handle: &Handle) -> u64 {
        let _alone = handle.alone();
        self.give_back_alone(handle)
    }

    /// The same for a caller who has the object's transfers for himself.
    pub(super) fn give_back_alone(&self, handle: &Handle) -> u64 {
        let mut ahead = handle.ahead.lock();
        if !ahead.is_recorded {
            return 0;
        }
        let bytes = ahead.parts.bytes();
        if bytes > 0
            && let Err(error) = nacre_env::blocking(|| cut(&handle.file, &ahead.parts))
        {
            // Tried again when it rests once more; if nothing helps, by the next start, to which the record leads.
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

    /// The last user of an object lets go of its file, which is emptied if the object was destroyed. Others are closed with nothing
    /// reserved, or when the store goes.
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

/// Frees parts of a file inside of its size, and all behind it. The time of the last change stays.
fn cut(file: &SlotFile, parts: &Parts) -> std::result::Result<(), Errno> {
    let stat = file.stat()?;
    for part in parts.iter().filter(|part| part.start < stat.size) {
        file.punch(part.start, part.end - part.start)?;
    }
    cut_tail(file, stat)
}

/// Frees what is allocated behind the end. The time of the last change stays.
fn cut_tail(file: &SlotFile, stat: FileStat) -> std::result::Result<(), Errno> {
    // An empty file may keep its space in a truncation to the size that it has.
    if stat.size == 0 {
        file.empty()?
    } else {
        file.set_size(stat.size)?
    }
    file.set_mtime(stat.mtime)
}

/// Gives back what an earlier run has left reserved ahead of objects: because it crashed, or could not.
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
