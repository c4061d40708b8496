//! Changes that are not in the base yet: ordered maps, sharded so that threads seldom contend.
//!
//! Each shard has an *active* map, which commits change, and a *frozen* one, which the checkpointer moves to
//! the base. A reader looks at active, then frozen, then the base; a deleted key is kept as an entry without
//! a value, so that it hides what the base still holds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nacre_env::sync::{RwLock, RwLockWriteGuard};

use super::batch::Op;
use super::map::Map;
use super::spin::spin_then_block;
use super::{KEY_LEN_MAX, Table};

/// Number of shards: enough that two threads, each with three locked, seldom need the same one.
pub(crate) const SHARDS: usize = 512;

/// A set of shards.
#[derive(Clone, Copy, Default)]
pub(crate) struct ShardSet([u64; SHARDS / 64]);

impl ShardSet {
    /// The set of all shards.
    pub(crate) const ALL: ShardSet = ShardSet([u64::MAX; SHARDS / 64]);

    pub(crate) fn insert(&mut self, shard: u16) {
        self.0[usize::from(shard) / 64] |= 1 << (shard % 64);
    }

    /// Returns the shards in ascending order.
    fn iter(self) -> impl Iterator<Item = u16> {
        self.0.into_iter().enumerate().flat_map(|(word, bits)| {
            let next = |bits: &u64| Some(bits & (bits - 1)).filter(|&rest| rest != 0);
            std::iter::successors(Some(bits).filter(|&bits| bits != 0), next)
                .map(move |bits| (word * 64) as u16 + bits.trailing_zeros() as u16)
        })
    }
}

/// Bytes at the start of a key that choose its shard: a FID, so that a directory's entries share one shard.
pub(crate) const SHARD_PREFIX_LEN: usize = 16;
/// Shards over which the FIDs of a run are spread, a power of two. A client that creates files has
/// consecutive FIDs: they use these few shards for a while, whose ends stay in the CPU's cache, while another
/// thread with other FIDs mostly uses other shards. Directories that were created in succession are in
/// different lanes.
const LANES: usize = 32;
/// FIDs of a run. Small compared to the entries in memory, so that no shard gets much more than others.
const RUN: u32 = 512;

/// Returns the shard of a key. Only memory depends on it, so it may change between versions.
pub(crate) fn shard_of(table: Table, key: &[u8]) -> u16 {
    let mut words = [0u8; SHARD_PREFIX_LEN];
    let len = key.len().min(SHARD_PREFIX_LEN);
    words[..len].copy_from_slice(&key[..len]);
    // For a FID: the sequence; then object id and version.
    let both = u128::from_be_bytes(words);
    let (sequence, rest) = ((both >> 64) as u64, both as u64);
    let run = rest & !(u64::from(RUN - 1) << 32);
    let mixed = (sequence ^ (u64::from(table.0) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ run.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let group = (mixed >> (u64::BITS - (SHARDS / LANES).ilog2())) as usize;
    // Keys that are not FIDs may have the same bytes there.
    let lane = ((rest >> 32) ^ (mixed >> 16)) as usize & (LANES - 1);
    (group * LANES + lane) as u16
}

/// Longest full key built without an allocation: a name of 71 bytes in a directory, or a link of one of 63.
const SHORT_LEN: usize = 96;

/// Table byte and key in one buffer: the form of keys in overlay and base.
pub(crate) enum FullKey {
    Short { len: u8, bytes: [u8; SHORT_LEN] },
    Long(Box<[u8]>),
}

impl FullKey {
    /// Returns `None` if the key is longer than the maximum.
    pub(crate) fn new(table: Table, key: &[u8]) -> Option<Self> {
        let len = key.len() + 1;
        if len > SHORT_LEN {
            let long = || FullKey::Long([&[table.0], key].concat().into());
            return (key.len() <= KEY_LEN_MAX).then(long);
        }
        let mut bytes = [0; SHORT_LEN];
        bytes[0] = table.0;
        bytes[1..len].copy_from_slice(key);
        Some(FullKey::Short { len: len as u8, bytes })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            FullKey::Short { len, bytes } => &bytes[..usize::from(*len)],
            FullKey::Long(bytes) => bytes,
        }
    }
}

/// One shard, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Shard {
    pub(crate) maps: RwLock<Maps>,
    /// Estimated memory of the active map; written under the write lock, read without.
    active_bytes: AtomicU64,
}

/// Active and frozen map of a shard.
#[derive(Default)]
pub(crate) struct Maps {
    pub(crate) active: Map,
    pub(crate) frozen: Arc<Map>,
}

impl Maps {
    /// Returns `None` if neither map has the key; `Some(None)` if it is deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        match self.active.get(key) {
            None if self.frozen.is_empty() => None,
            None => self.frozen.get(key),
            found => found,
        }
    }
}

/// All shards.
pub(crate) struct Overlay {
    shards: Box<[Shard; SHARDS]>,
}

/// Write locks on some shards, taken in ascending order, so that two commits never deadlock.
pub(crate) struct Locked<'a> {
    overlay: &'a Overlay,
    /// The first locks, inline: a batch has few shards.
    few: [Option<Guard<'a>>; FEW],
    more: Vec<Guard<'a>>,
}

/// A shard's number and its lock.
type Guard<'a> = (u16, RwLockWriteGuard<'a, Maps>);
/// Shards that a batch locks without an allocation: names, inodes and parents of a rename.
const FEW: usize = 6;

impl Overlay {
    pub(crate) fn new() -> Self {
        let shards: Vec<Shard> = (0..SHARDS).map(|_| Shard::default()).collect();
        let shards: Box<[Shard; SHARDS]> =
            shards.into_boxed_slice().try_into().unwrap_or_else(|_| unreachable!("made with this length"));
        Overlay { shards }
    }

    pub(crate) fn shard(&self, index: u16) -> &Shard {
        &self.shards[usize::from(index)]
    }

    pub(crate) fn lock(&self, shards: ShardSet) -> Locked<'_> {
        let mut locked = Locked { overlay: self, few: [const { None }; FEW], more: Vec::new() };
        for (count, shard) in shards.iter().enumerate() {
            let maps = &self.shard(shard).maps;
            let guard = (shard, spin_then_block(|| maps.try_write(), || maps.write()));
            match locked.few.get_mut(count) {
                Some(slot) => *slot = Some(guard),
                None => locked.more.push(guard),
            }
        }
        locked
    }

    /// Returns the estimated bytes of both maps.
    pub(crate) fn bytes(&self) -> u64 {
        self.active_bytes() + self.frozen().iter().map(|map| map.bytes()).sum::<u64>()
    }

    /// Returns the estimated bytes of the active maps.
    pub(crate) fn active_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.active_bytes.load(Ordering::Relaxed)).sum()
    }

    /// Returns the frozen maps of all shards; they do not change until [`Overlay::clear_frozen`].
    pub(crate) fn frozen(&self) -> Vec<Arc<Map>> {
        self.shards.iter().map(|shard| shard.maps.read().frozen.clone()).collect()
    }

    /// Drops the frozen maps, whose content is visible in the base.
    pub(crate) fn clear_frozen(&self) {
        for shard in self.shards.iter() {
            let old = std::mem::take(&mut shard.maps.write().frozen);
            drop(old);
        }
    }

    /// Installs replayed maps as frozen.
    pub(crate) fn set_frozen(&self, maps: Vec<Map>) {
        for (shard, map) in self.shards.iter().zip(maps) {
            shard.maps.write().frozen = Arc::new(map);
        }
    }
}

impl<'a> Locked<'a> {
    /// Applies one operation; its shard must be among those locked.
    pub(crate) fn apply(&mut self, shard: u16, op: &Op<'_>) {
        let (_, maps) = self
            .all()
            .find(|(index, _)| *index == shard)
            .expect("the mask of a batch covers the shards of its operations");
        maps.active.apply(op.full_key, op.value);
        let bytes = maps.active.bytes();
        self.overlay.shard(shard).active_bytes.store(bytes, Ordering::Relaxed);
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Guard<'a>> {
        self.few.iter_mut().flatten().chain(&mut self.more)
    }

    /// Makes the active maps the frozen ones. All shards must be locked and none may have a frozen map.
    pub(crate) fn freeze(&mut self) {
        let overlay = self.overlay;
        let mut count = 0;
        for (index, maps) in self.all() {
            assert!(maps.frozen.is_empty(), "the frozen map was moved to the base");
            maps.frozen = Arc::new(std::mem::take(&mut maps.active));
            overlay.shard(*index).active_bytes.store(0, Ordering::Relaxed);
            count += 1;
        }
        assert_eq!(count, SHARDS, "freezing locks all shards");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn fid(sequence: u64, number: u32) -> [u8; 16] {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&sequence.to_be_bytes());
        key[8..12].copy_from_slice(&number.to_be_bytes());
        key
    }

    #[test]
    fn fids_of_a_run_share_few_shards_and_neighbours_none() {
        for (sequence, first) in [(0x2_0000_0401, 0), (0x2_0000_0402, 3 * RUN), (0x2_4000_0404, 9 * RUN)] {
            let shards: Vec<u16> =
                (first..first + RUN).map(|number| shard_of(Table(2), &fid(sequence, number))).collect();
            assert!(shards.windows(LANES).all(|next| next.iter().collect::<HashSet<_>>().len() == LANES));
            assert_eq!(shards.iter().collect::<HashSet<_>>().len(), LANES);
        }
    }

    #[test]
    fn all_shards_get_about_as_many_fids_and_other_keys() {
        let mut counts: HashMap<u16, usize> = HashMap::new();
        for sequence in 0..8 {
            for number in (0..0x20000).step_by(8) {
                // Not all in the same lanes, as directories may be created between files.
                let key = fid(0x2_0000_0401 + sequence, number + number / 64 % 8);
                *counts.entry(shard_of(Table(2), &key)).or_default() += 1;
            }
        }
        let mean = 8 * (0x20000 / 8) / SHARDS;
        assert_eq!(counts.len(), SHARDS);
        assert!(counts.values().all(|&count| count > mean / 2 && count < mean * 2), "{counts:?}");
        // Keys that begin with the number of a target, as those of objects to be destroyed.
        let shards: HashSet<u16> = (0..100 * SHARDS as u32)
            .map(|number| shard_of(Table(9), &[&[0, 1], &fid(0x1_0000_0000, number)[..]].concat()))
            .collect();
        assert!(shards.len() > SHARDS * 9 / 10, "{}", shards.len());
    }
}
