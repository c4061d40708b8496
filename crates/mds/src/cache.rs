//! Cache of inode records, so that a path search reads the store only for names.
//!
//! Writers replace entries after their commit, under the inode's lock. A reader that misses reads the store
//! and inserts the record, unless a writer has changed its shard in the meantime, since the record may then
//! be outdated. Each shard has two generations; when the young one is full, the old one is dropped as a
//! whole.

use nacre_env::sync::Mutex;
use nacre_ondisk::InodeRecord;
use nacre_types::Fid;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const SHARDS: usize = 256;
/// Shards over which the FIDs of a run are distributed, a power of two. A thread that creates files has
/// consecutive FIDs, so it stays with these shards for a while, and threads with other FIDs mostly use
/// different ones.
const LANES: usize = 16;
/// FIDs of a run; few, compared with the records in the cache.
const RUN: u32 = 256;

/// Hashes FIDs by multiplication: servers assign FIDs, so no client gains by choosing them.
#[derive(Default)]
pub struct FidHasher(u64);

impl Hasher for FidHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

/// A hash map with FIDs as keys.
pub type FidMap<V> = HashMap<Fid, V, BuildHasherDefault<FidHasher>>;

/// Returns the shard of a FID among `count`, a power of two.
pub fn shard_of(fid: &Fid, count: usize) -> usize {
    let mut hasher = FidHasher::default();
    hasher.write_u64(fid.seq);
    hasher.write_u32(fid.oid);
    (hasher.finish() >> 48) as usize & (count - 1)
}

/// Returns the shard of a record.
fn cache_shard_of(fid: &Fid) -> usize {
    let run = Fid { oid: fid.oid & !(RUN - 1), ..*fid };
    shard_of(&run, SHARDS / LANES) * LANES + (fid.oid as usize & (LANES - 1))
}

#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Generations>);

#[derive(Default)]
struct Generations {
    young: FidMap<Arc<InodeRecord>>,
    old: FidMap<Arc<InodeRecord>>,
    /// Number of replacements by writers.
    writes: u64,
}

/// State of a shard at a miss; a reader presents it to insert the record.
#[derive(Clone, Copy)]
pub struct Ticket(u64);

/// See the [module documentation](self).
pub struct InodeCache {
    shards: Box<[Shard]>,
    young_max: usize,
}

impl InodeCache {
    /// Builds a cache of about `capacity` records.
    pub fn new(capacity: usize) -> InodeCache {
        InodeCache {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            young_max: (capacity / SHARDS / 2).max(4),
        }
    }

    fn shard(&self, fid: &Fid) -> &Mutex<Generations> {
        &self.shards[cache_shard_of(fid)].0
    }

    /// Returns the record, or a ticket for [`InodeCache::fill`].
    pub fn get(&self, fid: &Fid) -> Result<Arc<InodeRecord>, Ticket> {
        let mut shard = self.shard(fid).lock();
        if let Some(record) = shard.young.get(fid) {
            return Ok(record.clone());
        }
        match shard.old.remove(fid) {
            Some(record) => {
                self.insert(&mut shard, *fid, record.clone());
                Ok(record)
            }
            None => Err(Ticket(shard.writes)),
        }
    }

    /// Inserts a record read from the store, unless it may be outdated.
    pub fn fill(&self, fid: &Fid, record: &Arc<InodeRecord>, ticket: Ticket) {
        let mut shard = self.shard(fid).lock();
        if shard.writes == ticket.0 {
            self.insert(&mut shard, *fid, record.clone());
        }
    }

    /// Stores a writer's new record, or removes it if `None`: the inode was removed. Called under the inode's
    /// lock.
    pub fn replace(&self, fid: &Fid, record: Option<Arc<InodeRecord>>) {
        let mut shard = self.shard(fid).lock();
        shard.writes += 1;
        let Some(record) = record else {
            shard.young.remove(fid);
            shard.old.remove(fid);
            return;
        };
        // The old generation may have an older copy, of two concurrent readers; it is never read, and is
        // dropped with its generation.
        if let Some(found) = shard.young.get_mut(fid) {
            *found = record;
        } else {
            shard.old.remove(fid);
            self.insert(&mut shard, *fid, record);
        }
    }

    fn insert(&self, shard: &mut Generations, fid: Fid, record: Arc<InodeRecord>) {
        if shard.young.len() >= self.young_max && !shard.young.contains_key(&fid) {
            // Tables are reused, so that a busy cache does not allocate.
            std::mem::swap(&mut shard.young, &mut shard.old);
            shard.young.clear();
        }
        shard.young.insert(fid, record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(version: u64) -> Arc<InodeRecord> {
        let mut record = InodeRecord::default();
        record.attr.version = version;
        Arc::new(record)
    }

    #[test]
    fn a_reader_that_was_overtaken_by_a_writer_does_not_bring_back_the_old_record() {
        let cache = InodeCache::new(1000);
        let fid = Fid::new(1, 2, 0);
        let Err(ticket) = cache.get(&fid) else { panic!("empty") };
        cache.replace(&fid, Some(record(2)));
        cache.fill(&fid, &record(1), ticket);
        assert_eq!(cache.get(&fid).map(|r| r.attr.version).ok(), Some(2));
        cache.replace(&fid, None);
        let Err(ticket) = cache.get(&fid) else { panic!("removed") };
        cache.fill(&fid, &record(3), ticket);
        assert_eq!(cache.get(&fid).map(|r| r.attr.version).ok(), Some(3));
    }

    #[test]
    fn what_two_readers_put_into_both_generations_is_outdated_in_both_by_a_writer() {
        // A generation is four records.
        let cache = InodeCache::new(1);
        let fid = Fid::new(1, 2, 0);
        let neighbours: Vec<Fid> = (3..2000)
            .map(|oid| Fid::new(1, oid, 0))
            .filter(|other| cache_shard_of(other) == cache_shard_of(&fid))
            .collect();
        for removes in [true, false] {
            let (Err(first), Err(second)) = (cache.get(&fid), cache.get(&fid)) else { panic!("empty") };
            let mut others = neighbours.iter().map(|other| (other, cache.get(other).err()));
            cache.fill(&fid, &record(1), first);
            for (other, ticket) in others.by_ref().take(4) {
                cache.fill(other, &record(1), ticket.expect("not there"));
            }
            cache.fill(&fid, &record(1), second);
            drop(others);
            cache.replace(&fid, (!removes).then(|| record(2)));
            assert_eq!(cache.get(&fid).map(|found| found.attr.version).ok(), (!removes).then_some(2));
            cache.replace(&fid, None);
            neighbours.iter().for_each(|other| cache.replace(other, None));
        }
    }

    #[test]
    fn records_of_a_run_share_few_shards_and_runs_take_all_of_them() {
        let shards_of =
            |run: u32| (run * RUN..(run + 1) * RUN).map(|oid| cache_shard_of(&Fid::new(7, oid, 0)));
        let mut counts = [0; SHARDS];
        for run in 0..512 {
            let mut shards: Vec<usize> = shards_of(run).collect();
            shards.iter().for_each(|&shard| counts[shard] += 1);
            shards.sort_unstable();
            shards.dedup();
            assert_eq!(shards.len(), LANES);
        }
        let mean = 512 * RUN as usize / SHARDS;
        assert!(counts.iter().all(|&count| count > mean / 2 && count < mean * 2), "{counts:?}");
    }

    #[test]
    fn the_cache_stays_within_its_bound_and_keeps_what_is_used() {
        let cache = InodeCache::new(6400);
        let hot = Fid::new(9, 9, 0);
        cache.replace(&hot, Some(record(7)));
        for oid in 0..100_000 {
            cache.replace(&Fid::new(1, oid, 0), Some(record(1)));
            assert!(cache.get(&hot).is_ok());
        }
        let count = |shard: &Shard| {
            let generations = shard.0.lock();
            generations.young.len() + generations.old.len()
        };
        let total: usize = cache.shards.iter().map(count).sum();
        assert!(total <= 6400, "{total}");
    }
}
