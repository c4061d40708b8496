//! A **fake** store: objects have sizes, data is discarded, reads return zeros, and nothing is durable.
//!
//! It is for measuring the cost of the object server above it, as Lustre's fake I/O is. No target can be
//! created on it and no parameter enables it: only `nacre bench` creates one, in memory.

use nacre_env::sync::{Mutex, RwLock};
use nacre_store::object::{
    Abilities, Fallocate, Ids, ORPHANS_MAX, ObjectAttr, ObjectError, ObjectStore, ObjectStoreStats,
    ObjectVerifyReport, Result, Seek, Space,
};
use nacre_types::{Fid, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Name of the store in all output.
pub const NAME: &str = "FAKE null store (no I/O)";
/// Free space that it reports, in bytes; there is no other limit.
const TOTAL: u64 = 1 << 50;
/// Unit of allocation that it reports, in bytes.
const BLOCK: u32 = 4096;

#[derive(Clone, Copy, Default)]
struct Object {
    size: u64,
    mtime: Timestamp,
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct NullStore {
    objects: RwLock<BTreeMap<Fid, Object>>,
    reserved: Mutex<HashMap<u64, u32>>,
    created: AtomicU64,
    destroyed: AtomicU64,
    is_closed: AtomicBool,
    reads_at_once: usize,
}

impl NullStore {
    /// Creates an empty store that batches as many reads as the store that it replaces, so that requests take
    /// the same path.
    pub fn in_place_of(reads_at_once: usize) -> NullStore {
        NullStore { reads_at_once, ..NullStore::default() }
    }

    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::SeqCst) { Err(ObjectError::Closed) } else { Ok(()) }
    }

    /// Sets the size of an object to `new` of the old one, and creates it if needed.
    fn resize(&self, object: Fid, new: impl FnOnce(u64) -> u64) -> Result<ObjectAttr> {
        self.check_open()?;
        let now = Timestamp::from(nacre_env::clock::wall());
        let mut objects = self.objects.write();
        let before = objects.len();
        let entry = objects.entry(object).or_default();
        *entry = Object { size: new(entry.size), mtime: now };
        let attr = attr_of(*entry);
        self.created.fetch_add((objects.len() - before) as u64, Ordering::Relaxed);
        Ok(attr)
    }

    fn remove(&self, objects: &[Fid]) -> u64 {
        let mut held = self.objects.write();
        let removed = objects.iter().filter(|object| held.remove(object).is_some()).count() as u64;
        self.destroyed.fetch_add(removed, Ordering::Relaxed);
        removed
    }
}

fn attr_of(object: Object) -> ObjectAttr {
    ObjectAttr { size: object.size, blocks: 0, mtime: Some(object.mtime) }
}

/// Returns the end of a range that an object grows to.
fn end_of(offset: u64, len: u64) -> Result<u64> {
    offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok()).ok_or(ObjectError::TooLarge)
}

impl ObjectStore for NullStore {
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        let end = end_of(offset, data.len() as u64)?;
        if !data.is_empty() {
            self.resize(object, |size| size.max(end))?;
        }
        Ok(data.len())
    }

    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize> {
        self.write(object, offset, data)
    }

    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], _ahead: u32) -> Result<usize> {
        let size = self.objects.read().get(&object).map_or(0, |object| object.size);
        let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        buffer[..len].fill(0);
        Ok(len)
    }

    fn attr(&self, object: Fid) -> Result<ObjectAttr> {
        Ok(self.objects.read().get(&object).copied().map_or_else(ObjectAttr::default, attr_of))
    }

    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr> {
        end_of(size, 0)?;
        if size == 0 && !self.objects.read().contains_key(&object) {
            return Ok(ObjectAttr::default());
        }
        self.resize(object, |_| size)
    }

    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr> {
        let end = end_of(offset, len)?;
        match how {
            _ if len == 0 => Err(ObjectError::Empty),
            Fallocate::Punch => self.attr(object),
            Fallocate::Allocate { keep_size } | Fallocate::Zero { keep_size } => {
                self.resize(object, |size| if keep_size { size } else { size.max(end) })
            }
        }
    }

    /// The whole object counts as data, although none is stored.
    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64> {
        let size = self.attr(object)?.size;
        match what {
            _ if offset >= size => Err(ObjectError::NoData),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn sync(&self, _object: Fid) -> Result<()> {
        Ok(())
    }

    fn sync_all(&self) -> Result<()> {
        Ok(())
    }

    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        self.check_open()?;
        Ok(self.remove(objects))
    }

    fn space(&self) -> Result<Space> {
        let objects = self.objects.read().len() as u64;
        Ok(Space {
            block_size: BLOCK,
            total: TOTAL,
            free: TOTAL,
            available: TOTAL,
            promisable: TOTAL / 2,
            objects: u64::from(u32::MAX),
            objects_free: u64::from(u32::MAX).saturating_sub(objects),
            is_read_only: self.is_closed.load(Ordering::SeqCst),
        })
    }

    fn durability_epoch(&self) -> u64 {
        0
    }

    fn verify(&self, _repair: bool, _progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport> {
        Ok(ObjectVerifyReport::default())
    }

    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()> {
        self.objects.read().keys().for_each(|object| visit(*object));
        Ok(())
    }

    fn stats(&self) -> ObjectStoreStats {
        ObjectStoreStats {
            objects: self.objects.read().len() as u64,
            created: self.created.load(Ordering::Relaxed),
            destroyed: self.destroyed.load(Ordering::Relaxed),
            ..ObjectStoreStats::default()
        }
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities { ids: Some(self), reads_at_once: self.reads_at_once, ..Abilities::default() }
    }

    fn close(&self) -> Result<()> {
        self.is_closed.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl Ids for NullStore {
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        self.check_open()?;
        let mut reserved = self.reserved.lock();
        let last = reserved.entry(sequence).or_default();
        let first = last.checked_add(1).ok_or(ObjectError::SequenceFull(sequence))?;
        *last = last.saturating_add(count);
        Ok(first..last.saturating_add(1))
    }

    fn last_reserved(&self, sequence: u64) -> Result<u32> {
        Ok(self.reserved.lock().get(&sequence).copied().unwrap_or(0))
    }

    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32> {
        self.check_open()?;
        let mut reserved = self.reserved.lock();
        let last = reserved.entry(sequence).or_default();
        let next = (*last).max(last_used).checked_add(1).ok_or(ObjectError::SequenceFull(sequence))?;
        *last = next - 1;
        let is_orphan = |object: &&Fid| object.seq == sequence && object.oid > last_used;
        let orphans: Vec<Fid> = self.objects.read().keys().filter(is_orphan).copied().collect();
        if orphans.len() as u64 <= ORPHANS_MAX {
            self.remove(&orphans);
        }
        Ok(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_kept_data_is_not_and_reads_give_zeros() {
        let store = NullStore::default();
        assert_eq!(store.reserve(2, 3).expect("ids"), 1..4);
        let object = Fid::new(2, 1, 0);
        assert_eq!(store.write(object, 4096, &[7; 100]).expect("taken"), 100);
        let mut buffer = [9; 200];
        assert_eq!(store.read(object, 4096, &mut buffer, 0).expect("read"), 100);
        assert!(buffer[..100].iter().all(|byte| *byte == 0) && buffer[100..].iter().all(|byte| *byte == 9));
        assert_eq!(store.read(object, 4196, &mut buffer, 0).expect("the end"), 0);
        assert_eq!(store.truncate(object, 10).expect("cut").size, 10);
        assert_eq!((store.seek(object, 3, Seek::Hole).expect("the end")), 10);
        assert!(matches!(store.write(object, u64::MAX, &[1]), Err(ObjectError::TooLarge)));
        assert_eq!(store.stats().objects, 1);
        let wanted = |store: &NullStore| store.abilities().reads_at_once;
        assert_eq!((wanted(&store), wanted(&NullStore::in_place_of(32))), (0, 32));
    }

    #[test]
    fn ids_and_orphans_are_counted_as_in_a_real_store() {
        let store = NullStore::default();
        for oid in 1..=4 {
            store.write(Fid::new(2, oid, 0), 0, &[1]).expect("taken");
        }
        store.write(Fid::new(3, 9, 0), 0, &[1]).expect("another sequence");
        assert_eq!(store.reserve(2, 6).expect("ids"), 1..7);
        assert_eq!(store.destroy_orphans(2, 2).expect("destroyed"), 7);
        assert_eq!(store.reserve(2, 1).expect("an id"), 7..8);
        assert_eq!(store.stats().objects, 3);
        assert_eq!(store.destroy(&[Fid::new(3, 9, 0), Fid::new(3, 10, 0)]).expect("destroyed"), 1);
        store.close().expect("closed");
        assert!(matches!(store.write(Fid::new(2, 1, 0), 0, &[1]), Err(ObjectError::Closed)));
        assert!(store.space().expect("told").is_read_only);
    }
}
