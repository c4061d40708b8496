//! Objects in memory: their heads, and the maps that were used lately.
//!
//! Everything here can be forgotten and read from the index again, except which generation an object was changed in: one that is
//! read again counts as changed just now.

use super::{Core, MAPS, OBJECTS};
use crate::meta::TransNo;
use crate::object::{ObjectError, Result};
use nacre_env::sync::{Mutex, RwLock};
use nacre_ondisk::block::{BlockHeadRecord, BlockMapRecord};
use nacre_types::Fid;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Parts of the table, so that threads do not wait for each other.
const SHARDS: usize = 64;
/// Objects in memory at most, apart from those in use.
const OBJECTS_MAX: usize = 64 << 10;

/// An object in memory.
pub(super) struct Object {
    pub(super) fid: Fid,
    pub(super) state: RwLock<State>,
    pub(super) stream: Mutex<Stream>,
    /// Where the last large read ended, in bytes.
    pub(super) read_end: AtomicU64,
    /// Large reads under way.
    pub(super) reading: AtomicUsize,
    maps: Mutex<HashMap<u64, Arc<BlockMapRecord>>>,
}

/// What an object is.
pub(super) struct State {
    /// `None` if it does not exist.
    pub(super) head: Option<BlockHeadRecord>,
    /// The last generation in which its blocks changed.
    pub(super) generation: u64,
    /// Its last change.
    pub(super) transno: TransNo,
}

/// Where the last write ended.
#[derive(Default)]
pub(super) struct Stream {
    /// Block of the object.
    pub(super) next: u64,
    /// Block of the device.
    pub(super) after: Option<u64>,
    /// Its blocks.
    pub(super) blocks: u64,
}

/// A part of the objects.
type Shard = HashMap<Fid, Arc<Object>>;

/// All objects in memory.
pub(super) struct Objects {
    shards: Box<[Mutex<Shard>]>,
    objects: AtomicUsize,
    maps: AtomicUsize,
    maps_max: usize,
    next_to_shrink: AtomicUsize,
}

/// Key of a map.
pub(super) fn map_key(object: Fid, number: u64) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&object.to_key());
    key[16..].copy_from_slice(&number.to_be_bytes());
    key
}

impl Objects {
    pub(super) fn new(maps_max: usize) -> Objects {
        Objects {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            objects: AtomicUsize::new(0),
            maps: AtomicUsize::new(0),
            maps_max: maps_max.max(16),
            next_to_shrink: AtomicUsize::new(0),
        }
    }

    fn shard(&self, object: Fid) -> &Mutex<Shard> {
        let hash = (object.seq ^ u64::from(object.oid)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    /// Objects and maps in memory.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.objects.load(Ordering::Relaxed) as u64, self.maps.load(Ordering::Relaxed) as u64)
    }

    fn is_full(&self) -> bool {
        self.maps.load(Ordering::Relaxed) > self.maps_max
            || self.objects.load(Ordering::Relaxed) > OBJECTS_MAX
    }
}

impl Core {
    /// The object; `None` if it is not in memory and does not exist, unless `make` is on.
    pub(super) fn object(&self, fid: Fid, make: bool) -> Result<Option<Arc<Object>>> {
        let found = {
            let mut shard = self.objects.shard(fid).lock();
            if let Some(object) = shard.get(&fid) {
                return Ok(Some(object.clone()));
            }
            // Under the lock: nobody else may make it meanwhile.
            let head = self.read_head(fid)?;
            if head.is_none() && !make {
                return Ok(None);
            }
            let state =
                State { head, generation: self.durable.generation(), transno: self.index.last_transno() };
            let object = Arc::new(Object {
                fid,
                state: RwLock::new(state),
                stream: Mutex::default(),
                read_end: AtomicU64::new(u64::MAX),
                reading: AtomicUsize::new(0),
                maps: Mutex::default(),
            });
            shard.insert(fid, object.clone());
            self.objects.objects.fetch_add(1, Ordering::Relaxed);
            object
        };
        self.shrink();
        Ok(Some(found))
    }

    fn read_head(&self, fid: Fid) -> Result<Option<BlockHeadRecord>> {
        let read =
            self.index.get(OBJECTS, &fid.to_key(), |value| value.map(BlockHeadRecord::decode).transpose())?;
        read.map_err(|_| ObjectError::Damaged { object: fid, what: "its record cannot be read" })
    }

    /// A map of an object, whose state the caller has locked in any way.
    pub(super) fn map(&self, object: &Object, number: u64) -> Result<Arc<BlockMapRecord>> {
        if let Some(map) = object.maps.lock().get(&number) {
            return Ok(map.clone());
        }
        let read = self
            .index
            .get(MAPS, &map_key(object.fid, number), |value| value.map(BlockMapRecord::decode).transpose())?;
        let damaged = |_| ObjectError::Damaged { object: object.fid, what: "a map of it cannot be read" };
        let map = Arc::new(read.map_err(damaged)?.unwrap_or_default());
        self.remember_map(object, number, Some(map.clone()));
        Ok(map)
    }

    /// Looks at a map as [`Core::map`] gives it, with no count of its users touched where it is in memory.
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

    /// Keeps a map in memory, or forgets it.
    pub(super) fn remember_map(&self, object: &Object, number: u64, map: Option<Arc<BlockMapRecord>>) {
        let mut maps = object.maps.lock();
        let (was, is) = match map {
            Some(map) => (maps.insert(number, map).is_some(), true),
            None => (maps.remove(&number).is_some(), false),
        };
        match (was, is) {
            (false, true) => self.objects.maps.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.objects.maps.fetch_sub(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    fn forget_maps(&self, object: &Object) {
        let mut maps = object.maps.lock();
        self.objects.maps.fetch_sub(maps.len(), Ordering::Relaxed);
        maps.clear();
    }

    /// Forgets objects and maps if there are too many: a part of the table at a time, in turn.
    pub(super) fn shrink(&self) {
        for _ in 0..SHARDS {
            if !self.objects.is_full() {
                return;
            }
            let next = self.objects.next_to_shrink.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let Some(mut shard) = self.objects.shards[next].try_lock() else { continue };
            shard.retain(|fid, object| {
                self.forget_maps(object);
                let is_used = Arc::strong_count(object) > 1;
                if !is_used {
                    self.space.close_window(*fid);
                    self.objects.objects.fetch_sub(1, Ordering::Relaxed);
                }
                is_used
            });
        }
    }
}
