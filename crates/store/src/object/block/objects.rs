//! Objects in memory: their heads, and recently used maps.
//!
//! Everything here can be dropped and read from the index again, except the generation in which an object was
//! changed last: an object that is read again counts as just changed.

use super::change::Locked;
use super::space::WriteStream;
use super::volume::Volume;
use crate::meta::{MetaStore, Table, TransNo};
use crate::object::records::Owned;
use crate::object::sequences::OBJECTS;
use crate::object::{ObjectError, Result, visit_keys};
use nacre_env::sync::{Mutex, RwLock};
use nacre_ondisk::block::{BlockHeadRecord, BlockMapRecord, MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Maps: FID in key form, number of the map, big-endian -> [`BlockMapRecord`].
pub(super) const MAPS: Table = Table(4);

/// Maps that are looked up at once.
const MAPS_AT_ONCE: usize = 64;
/// Shards of the table, against lock contention.
const SHARDS: usize = 64;
/// Maximum objects in memory, apart from those in use.
const OBJECTS_MAX: usize = 64 << 10;

/// An object in memory.
pub(super) struct Object {
    pub(super) fid: Fid,
    pub(super) state: RwLock<State>,
    pub(super) stream: Mutex<WriteStream>,
    /// Offset at which the last large read ended, in bytes.
    pub(super) read_end: AtomicU64,
    /// Large reads under way.
    pub(super) reading: AtomicUsize,
    maps: Mutex<HashMap<u64, Arc<BlockMapRecord>>>,
}

/// State of an object.
pub(super) struct State {
    /// Head record; `None` if the object does not exist.
    pub(super) head: Option<BlockHeadRecord>,
    /// Last generation in which its blocks changed.
    pub(super) generation: u64,
    /// Transaction of its last change.
    pub(super) transno: TransNo,
}

/// A shard of the objects.
type Shard = HashMap<Fid, Arc<Object>>;

/// Some maps, and the key after which there may be more.
pub(super) type SomeMaps = (Vec<(Fid, u64)>, Option<[u8; 24]>);

/// The objects of a store: their records in the index of a volume, and the subset that is in memory.
pub(super) struct Objects {
    volume: Volume,
    shards: Box<[Mutex<Shard>]>,
    objects: AtomicUsize,
    maps: AtomicUsize,
    maps_max: usize,
    next_to_shrink: AtomicUsize,
    counts: Counts,
    /// Check before an object is created.
    owned: OnceLock<Box<Owned>>,
}

/// Counts of objects: existing, created and destroyed since the store was opened.
#[derive(Default)]
pub(super) struct Counts {
    existing: AtomicU64,
    created: AtomicU64,
    destroyed: AtomicU64,
}

impl Counts {
    /// Counts a committed change, given whether the object existed before and exists afterwards.
    fn note(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => {
                self.existing.fetch_add(1, Ordering::Relaxed);
                self.created.fetch_add(1, Ordering::Relaxed);
            }
            (true, false) => {
                self.existing.fetch_sub(1, Ordering::Relaxed);
                self.destroyed.fetch_add(1, Ordering::Relaxed);
            }
            (false, false) | (true, true) => {}
        }
    }

    pub(super) fn existing(&self) -> u64 {
        self.existing.load(Ordering::Relaxed)
    }

    pub(super) fn created(&self) -> u64 {
        self.created.load(Ordering::Relaxed)
    }

    pub(super) fn destroyed(&self) -> u64 {
        self.destroyed.load(Ordering::Relaxed)
    }
}

/// Parses a key into object and map number.
pub(super) fn parse_map_key(key: &[u8]) -> Option<(Fid, u64)> {
    let (fid, number) = key.split_first_chunk::<16>()?;
    Some((Fid::from_key(fid), u64::from_be_bytes(number.try_into().ok()?)))
}

/// Returns the key of a map.
pub(super) fn map_key(object: Fid, number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&object.to_key());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

impl Objects {
    /// Creates the objects of a volume, with at most `maps_max` maps in memory.
    pub(super) fn new(volume: Volume, maps_max: usize) -> Result<Objects> {
        let mut existing = 0;
        visit_keys(volume.index(), OBJECTS, &mut |_| existing += 1)?;
        let counts = Counts { existing: AtomicU64::new(existing), ..Counts::default() };
        Ok(Objects {
            volume,
            counts,
            owned: OnceLock::new(),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            objects: AtomicUsize::new(0),
            maps: AtomicUsize::new(0),
            maps_max: maps_max.max(16),
            next_to_shrink: AtomicUsize::new(0),
        })
    }

    pub(super) fn volume(&self) -> &Volume {
        &self.volume
    }

    pub(super) fn index(&self) -> &MetaStore {
        self.volume.index()
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sets the check that runs before an object is created. Only the first call counts.
    pub(super) fn set_owned(&self, owned: Box<Owned>) {
        let _ = self.owned.set(owned);
    }

    /// Whether the object may be created, if it does not exist.
    pub(super) fn may_be_made(&self, object: Fid) -> Result<bool> {
        self.owned.get().map_or(Ok(true), |owned| owned(&object))
    }

    /// Locks an object against all other threads.
    pub(super) fn lock<'a>(&'a self, object: &'a Object) -> Locked<'a> {
        let state = object.state.try_write().unwrap_or_else(|| nacre_env::blocking(|| object.state.write()));
        Locked::new(self, object, state)
    }

    fn shard(&self, object: Fid) -> &Mutex<Shard> {
        let hash = (object.seq ^ u64::from(object.oid)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    /// Returns the number of objects in memory.
    pub(super) fn in_memory(&self) -> u64 {
        self.objects.load(Ordering::Relaxed) as u64
    }

    fn is_full(&self) -> bool {
        self.maps.load(Ordering::Relaxed) > self.maps_max
            || self.objects.load(Ordering::Relaxed) > OBJECTS_MAX
    }

    /// Returns the object; `None` if it is not in memory and does not exist, unless `make` is on.
    pub(super) fn object(&self, fid: Fid, make: bool) -> Result<Option<Arc<Object>>> {
        let found = {
            let mut shard = self.shard(fid).lock();
            if let Some(object) = shard.get(&fid) {
                return Ok(Some(object.clone()));
            }
            // Under the lock: no other thread may create it meanwhile.
            let head = self.read_head(fid)?;
            if head.is_none() && !make {
                return Ok(None);
            }
            let state =
                State { head, generation: self.volume.generation(), transno: self.index().last_transno() };
            let object = Arc::new(Object {
                fid,
                state: RwLock::new(state),
                stream: Mutex::default(),
                read_end: AtomicU64::new(u64::MAX),
                reading: AtomicUsize::new(0),
                maps: Mutex::default(),
            });
            shard.insert(fid, object.clone());
            self.objects.fetch_add(1, Ordering::Relaxed);
            object
        };
        self.shrink();
        Ok(Some(found))
    }

    fn read_head(&self, fid: Fid) -> Result<Option<BlockHeadRecord>> {
        let read = self
            .index()
            .get(OBJECTS, &fid.to_key(), |value| value.map(BlockHeadRecord::decode).transpose())?;
        read.map_err(|_| ObjectError::Damaged { object: fid, what: "its record cannot be read" })
    }

    /// Returns a map of an object, whose state the caller has locked in either mode.
    pub(super) fn map(&self, object: &Object, number: u64) -> Result<Arc<BlockMapRecord>> {
        if let Some(map) = object.maps.lock().get(&number) {
            return Ok(map.clone());
        }
        let read = self
            .index()
            .get(MAPS, &map_key(object.fid, number), |value| value.map(BlockMapRecord::decode).transpose())?;
        let damaged = |_| ObjectError::Damaged { object: object.fid, what: "a map of it cannot be read" };
        let map = Arc::new(read.map_err(damaged)?.unwrap_or_default());
        self.remember_map(object, number, Some(map.clone()));
        Ok(map)
    }

    /// Passes a map to `f` as [`Objects::map`] returns it, but without touching its reference count if it is
    /// in memory.
    pub(super) fn with_map<R>(
        &self,
        object: &Object,
        number: u64,
        look: impl FnOnce(&BlockMapRecord) -> R,
    ) -> Result<R> {
        if let Some(map) = object.maps.lock().get(&number) {
            return Ok(look(map));
        }
        self.map(object, number).map(|map| look(&map))
    }

    /// Returns the place of block `block` of an object, whose state the caller has locked in either mode.
    pub(super) fn place(&self, object: &Object, block: u64) -> Result<Place> {
        self.with_map(object, block / MAP_BLOCKS as u64, |map| {
            map.places[(block % MAP_BLOCKS as u64) as usize]
        })
    }

    /// Keeps a map in memory, or drops it.
    pub(super) fn remember_map(&self, object: &Object, number: u64, map: Option<Arc<BlockMapRecord>>) {
        let mut maps = object.maps.lock();
        let (was, is) = match map {
            Some(map) => (maps.insert(number, map).is_some(), true),
            None => (maps.remove(&number).is_some(), false),
        };
        match (was, is) {
            (false, true) => self.maps.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.maps.fetch_sub(1, Ordering::Relaxed),
            (false, false) | (true, true) => 0,
        };
    }

    fn forget_maps(&self, object: &Object) {
        let mut maps = object.maps.lock();
        self.maps.fetch_sub(maps.len(), Ordering::Relaxed);
        maps.clear();
    }

    /// Drops objects and maps if there are too many: one shard at a time, round-robin.
    fn shrink(&self) {
        for _ in 0..SHARDS {
            if !self.is_full() {
                return;
            }
            let next = self.next_to_shrink.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let Some(mut shard) = self.shards[next].try_lock() else { continue };
            shard.retain(|fid, object| {
                self.forget_maps(object);
                let is_used = Arc::strong_count(object) > 1;
                if !is_used {
                    self.volume.space().close_window(*fid);
                    self.objects.fetch_sub(1, Ordering::Relaxed);
                }
                is_used
            });
        }
    }

    /// Returns the numbers of an object's maps from `from` to `end` (exclusive).
    pub(super) fn map_numbers(&self, object: Fid, from: u64, end: u64) -> Result<Vec<u64>> {
        let start = map_key(object, from);
        let mut numbers = Vec::new();
        self.index().scan(MAPS, &object.to_key(), Bound::Included(&start), &mut |key, _| match key
            .get(16..)
            .and_then(|number| number.try_into().ok())
            .map(u64::from_be_bytes)
        {
            Some(number) if number < end => {
                numbers.push(number);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        })?;
        Ok(numbers)
    }

    /// Returns some maps after `from`, and the last key if there may be more.
    pub(super) fn some_maps(&self, from: Option<&[u8; 24]>) -> Result<SomeMaps> {
        let mut found = Vec::new();
        let mut last = None;
        let from = from.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        self.index().scan(MAPS, &[], from, &mut |key, _| {
            found.extend(parse_map_key(key));
            last = key.try_into().ok();
            if found.len() >= MAPS_AT_ONCE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let is_end = found.len() < MAPS_AT_ONCE;
        Ok((found, last.filter(|_| !is_end)))
    }

    /// Notes a committed change of an object: whether it existed before, and exists afterwards.
    pub(super) fn note_change(&self, was: bool, is: bool) {
        self.counts.note(was, is);
        self.shrink();
    }
}
