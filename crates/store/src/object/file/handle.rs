//! Open objects, and the bounded set of them.
//!
//! At most one [`Handle`] exists per object, so that destroying it can find every user: they all hold the
//! same `Arc`. The last holder of a destroyed object's handle empties the file; until then the slot is not
//! reused.

use super::ahead::{Ahead, AheadBook};
use super::local::SlotFile;
use super::release::Releaser;
use super::slots::Slots;
use super::stream::{ReadStream, WriteStream};
use super::sums::Unsettled;
use super::transfer::DIRECT_ALIGN;
use nacre_env::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use nacre_types::Fid;
use rustix::fs::{self, AtFlags, OFlags, StatxFlags};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// An object whose file is open.
pub(super) struct Handle {
    pub(super) object: Fid,
    pub(super) slot: u32,
    pub(super) file: SlotFile,
    /// The same file opened for direct I/O, on first use; `None` if the file system does not support it.
    direct: OnceLock<Option<Direct>>,
    /// Transaction up to which the index must be durable for the object to be; 0 if it is known to be.
    pub(super) mapped_by: AtomicU64,
    /// The file's name in its directory may not be durable yet.
    pub(super) is_new_file: AtomicBool,
    /// The object was destroyed: the last user empties the file.
    is_destroyed: AtomicBool,
    pub(super) writes: Mutex<WriteStream>,
    pub(super) reads: Mutex<ReadStream>,
    /// Space reserved ahead of a stream of writes. Locked after `transfers`.
    pub(super) ahead: Mutex<Ahead>,
    /// Writes whose checksums are not recorded yet. Locked after `transfers`.
    pub(super) unsettled: Mutex<Unsettled>,
    /// Held shared by writes, exclusively while the file is truncated.
    transfers: RwLock<()>,
    releaser: Arc<Releaser>,
    book: Arc<AheadBook>,
}

impl Handle {
    pub(super) fn new(
        object: Fid,
        slot: u32,
        file: SlotFile,
        is_new_file: bool,
        mapped_by: u64,
        releaser: Arc<Releaser>,
        book: Arc<AheadBook>,
    ) -> Handle {
        Handle {
            object,
            slot,
            file,
            direct: OnceLock::new(),
            mapped_by: AtomicU64::new(mapped_by),
            is_new_file: AtomicBool::new(is_new_file),
            is_destroyed: AtomicBool::new(false),
            writes: Mutex::default(),
            reads: Mutex::default(),
            ahead: Mutex::default(),
            unsettled: Mutex::default(),
            transfers: RwLock::new(()),
            releaser,
            book,
        }
    }

    /// Notes that the object has no record any more.
    pub(super) fn set_destroyed(&self) {
        self.is_destroyed.store(true, Ordering::Release);
    }

    /// Whether the object has no record any more.
    pub(super) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Acquire)
    }

    /// Whether space may be reserved ahead of it.
    fn holds_space(&self) -> bool {
        self.ahead.try_lock().is_none_or(|ahead| ahead.is_recorded())
    }

    /// Locks for a write: the file is not truncated meanwhile.
    pub(super) fn transferring(&self) -> RwLockReadGuard<'_, ()> {
        self.transfers.try_read().unwrap_or_else(|| nacre_env::blocking(|| self.transfers.read()))
    }

    /// Locks for a truncation: no write runs meanwhile.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.transfers.try_write().unwrap_or_else(|| nacre_env::blocking(|| self.transfers.write()))
    }

    /// Returns the file for direct I/O, if the file system supports it.
    pub(super) fn direct(&self) -> Option<&Direct> {
        self.direct.get_or_init(|| Direct::open(self.releaser.slots(), self.slot)).as_ref()
    }
}

/// A file open for direct I/O.
pub(super) struct Direct {
    pub(super) file: SlotFile,
    /// Alignment in bytes of offset and length.
    pub(super) offset_align: u32,
    /// Alignment in bytes of the memory's address.
    pub(super) memory_align: u32,
}

impl Direct {
    fn open(slots: &Slots, slot: u32) -> Option<Direct> {
        let file = slots.open_file(slot, OFlags::DIRECT).ok()?;
        // Kernels before 6.1 do not report the alignment; nearly all of them require sectors of 512 bytes for
        // memory.
        let stat = fs::statx(file.kernel()?, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
        let mut direct = Direct { file, offset_align: DIRECT_ALIGN, memory_align: 512 };
        if StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
            if stat.stx_dio_offset_align == 0 || stat.stx_dio_mem_align == 0 {
                return None;
            }
            direct.offset_align = stat.stx_dio_offset_align.max(DIRECT_ALIGN);
            direct.memory_align = stat.stx_dio_mem_align;
        }
        Some(direct)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let is_destroyed = self.is_destroyed.load(Ordering::Acquire);
        self.book.on_close(self, is_destroyed);
        if is_destroyed {
            self.releaser.release(self.slot, &self.file);
        }
    }
}

/// Shards of open objects, each with its own lock; a power of two.
const SHARDS: usize = 16;
/// Locks for opening, creating and destroying objects; a power of two.
const STRIPES: usize = 256;

#[derive(Default)]
struct Shard {
    by_object: HashMap<Fid, usize>,
    /// Handles in no order; `hand` circulates to find one unused since its last pass (CLOCK).
    entries: Vec<Entry>,
    hand: usize,
}

struct Entry {
    handle: Arc<Handle>,
    was_used: bool,
}

/// The set of open objects.
pub(super) struct Handles {
    shards: Vec<Mutex<Shard>>,
    stripes: Vec<Mutex<()>>,
    per_shard_max: usize,
    opens: AtomicU64,
}

fn hash(object: Fid) -> usize {
    let mixed = (object.seq ^ (u64::from(object.oid) << 32) ^ u64::from(object.oid))
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 32) as usize
}

impl Handles {
    pub(super) fn new(open_files_max: usize) -> Handles {
        Handles {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            per_shard_max: (open_files_max / SHARDS).max(4),
            opens: AtomicU64::new(0),
        }
    }

    fn shard(&self, object: Fid) -> &Mutex<Shard> {
        &self.shards[hash(object) % SHARDS]
    }

    /// Returns the handle of an object that is open.
    pub(super) fn get(&self, object: Fid) -> Option<Arc<Handle>> {
        let mut shard = self.shard(object).lock();
        let index = *shard.by_object.get(&object)?;
        let entry = &mut shard.entries[index];
        entry.was_used = true;
        Some(entry.handle.clone())
    }

    /// Adds a handle. The caller holds [`Handles::lock`] for the object and has checked that it is not open.
    pub(super) fn insert(&self, handle: Handle) -> Arc<Handle> {
        let handle = Arc::new(handle);
        self.opens.fetch_add(1, Ordering::Relaxed);
        let mut shard = self.shard(handle.object).lock();
        let evicted = if shard.entries.len() >= self.per_shard_max { shard.evict() } else { None };
        let index = shard.entries.len();
        shard.by_object.insert(handle.object, index);
        shard.entries.push(Entry { handle: handle.clone(), was_used: true });
        drop(shard);
        // Closes the file, outside of the lock.
        drop(evicted);
        handle
    }

    /// Removes a handle. The caller holds [`Handles::lock`] for the object.
    pub(super) fn remove(&self, object: Fid) -> Option<Arc<Handle>> {
        let mut shard = self.shard(object).lock();
        let index = shard.by_object.get(&object).copied()?;
        Some(shard.remove(index))
    }

    /// Closes unused files, to free descriptors.
    pub(super) fn shrink(&self) {
        for shard in &self.shards {
            let evicted: Vec<_> = {
                let mut shard = shard.lock();
                (0..shard.entries.len() / 2).filter_map(|_| shard.evict()).collect()
            };
            drop(evicted);
        }
    }

    /// Keeps other threads from opening, creating or destroying the object.
    pub(super) fn lock(&self, object: Fid) -> MutexGuard<'_, ()> {
        self.stripe(stripe_of(object))
    }

    /// Like [`Handles::lock`] for several objects at once; always in the same order, so that two callers
    /// cannot deadlock.
    pub(super) fn lock_all(&self, objects: &[Fid]) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<usize> = objects.iter().map(|&object| stripe_of(object)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.into_iter().map(|stripe| self.stripe(stripe)).collect()
    }

    fn stripe(&self, stripe: usize) -> MutexGuard<'_, ()> {
        let lock = &self.stripes[stripe];
        lock.try_lock().unwrap_or_else(|| nacre_env::blocking(|| lock.lock()))
    }

    /// Returns the number of objects opened so far.
    pub(super) fn opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    /// Returns the number of open objects.
    pub(super) fn count(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().entries.len() as u64).sum()
    }
}

fn stripe_of(object: Fid) -> usize {
    (hash(object) / SHARDS) % STRIPES
}

impl Shard {
    fn remove(&mut self, index: usize) -> Arc<Handle> {
        let entry = self.entries.swap_remove(index);
        self.by_object.remove(&entry.handle.object);
        if let Some(moved) = self.entries.get(index) {
            self.by_object.insert(moved.handle.object, index);
        }
        entry.handle
    }

    /// Removes a handle that has no holder and was not used recently; `None` if all are held.
    fn evict(&mut self) -> Option<Arc<Handle>> {
        for _ in 0..self.entries.len() * 2 {
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            let entry = &mut self.entries[self.hand];
            // Only this list hands out handles to writers, and it is locked: a count of one stays one.
            // Reserved space is released before: closing would release it while a writer that reopens the
            // object writes after its end.
            if Arc::strong_count(&entry.handle) == 1
                && !std::mem::take(&mut entry.was_used)
                && !entry.handle.holds_space()
            {
                return Some(self.remove(self.hand));
            }
        }
        None
    }
}

/// Descriptors of a process per object that may be open: an object can have two, and other parts of the
/// process, such as further stores, need some too.
const DESCRIPTORS_PER_OBJECT: u64 = 4;

/// Returns the number of objects that may be open within the descriptor limit of this process, at most
/// `wanted`.
pub(super) fn open_files_allowed(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    wanted.min(usize::try_from(limit / DESCRIPTORS_PER_OBJECT).unwrap_or(usize::MAX)).max(64)
}

impl Handle {
    /// Starts write-out if a stream of writes has left enough dirty data.
    pub(super) fn note_write(&self, offset: u64, len: u64, threshold: u64) {
        let range = self.writes.lock().on_write(offset, len, threshold);
        if let Some(range) = range {
            nacre_env::blocking(|| self.file.start_write_out(range.start, range.end));
        }
    }

    /// Returns the range to fetch for a reader that will soon request `ahead` bytes more.
    pub(super) fn note_read(&self, offset: u64, len: u64, ahead: u32) -> Option<Range<u64>> {
        self.reads.lock().on_read(offset..offset.saturating_add(len), u64::from(ahead))
    }
}
