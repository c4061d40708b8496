//! An ordered map of recent changes whose keys and values lie in a few large blocks instead of an allocation each.
//!
//! The tree's nodes hold the first bytes of each key as numbers, so that a search follows no pointers and calls no comparison of
//! bytes: behind table, FID and hash (25 bytes) hardly two keys are alike. Those that are, links of one file in one directory, are
//! told apart in a map of their own.
//!
//! Grows only: a value replaced by a longer one leaves its old place unused until the whole map is dropped after its
//! checkpoint. [`Map::bytes`] counts such places too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

/// Size of a map's first block; each next one doubles up to the maximum.
const BLOCK_BYTES_FIRST: usize = 1 << 8;
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Memory of an entry beside its key and value: its part of a tree node that is two thirds full, and of the filter.
const ENTRY_BYTES: u64 = 100;
/// Memory of an entry among keys with the same head: a tree node's part, and the key outside the node.
const ALIKE_BYTES: u64 = 64;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Map {
    tree: BTreeMap<Head, Leaf>,
    filter: Filter,
    blocks: Blocks,
    len: usize,
}

/// The first bytes of a key, with zeros behind a shorter one. Ordered as keys are, but for keys that are equal this far.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Head(u128, u128);

const HEAD_LEN: usize = 32;

impl Head {
    fn of(key: &[u8]) -> Head {
        let mut bytes = [0; HEAD_LEN];
        match key.first_chunk() {
            Some(first) => bytes = *first,
            None => bytes[..key.len()].copy_from_slice(key),
        }
        let half = |at: usize| u128::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        Head(half(0), half(HEAD_LEN / 2))
    }
}

/// Says of most heads that are not in the tree that they are not: most keys that are read lie in the base, or nowhere. A Bloom
/// filter of one word per key, so that the answer costs one access to memory.
#[derive(Default)]
struct Filter {
    /// A power of two, or none yet.
    words: Vec<u64>,
    count: usize,
}

impl Filter {
    /// Heads for each word: 16 bits each, of which three are set, let 1 of 60 absent ones through.
    const HEADS_PER_WORD: usize = 4;

    fn place(&self, head: Head) -> (usize, u64) {
        let low = |half: u128| (half as u64 ^ (half >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (low(head.0).rotate_left(29) ^ low(head.1)).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        let hash = hash ^ (hash >> 32);
        let bits = 1 << (hash >> 46 & 63) | 1 << (hash >> 52 & 63) | 1 << (hash >> 58);
        (hash as usize & (self.words.len() - 1), bits)
    }

    fn may_have(&self, head: Head) -> bool {
        if self.words.is_empty() {
            return false;
        }
        let (word, bits) = self.place(head);
        self.words[word] & bits == bits
    }

    /// True if there is room for one more; otherwise all have to go into a larger one.
    fn has_room(&self) -> bool {
        self.count < self.words.len() * Self::HEADS_PER_WORD
    }

    fn add(&mut self, head: Head) {
        let (word, bits) = self.place(head);
        self.words[word] |= bits;
        self.count += 1;
    }
}

/// The keys with one head.
enum Leaf {
    One { key: Place, value: Place },
    Many(BTreeMap<Box<[u8]>, Place>),
}

/// Where bytes lie. A deleted key has no value's place but keeps its entry, which hides what the base holds.
#[derive(Clone, Copy)]
struct Place {
    block: u32,
    offset: u32,
    /// Length, or that of [`DELETED`].
    len: u32,
}

const DELETED: Place = Place { block: 0, offset: 0, len: u32::MAX };

/// A change: key, and new value or `None` for a delete.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

/// Keys and values, one after the other.
#[derive(Default)]
struct Blocks {
    blocks: Vec<Vec<u8>>,
    /// Estimated memory of the whole map.
    bytes: u64,
}

impl Blocks {
    fn get(&self, place: Place) -> &[u8] {
        let (start, end) = (place.offset as usize, place.offset as usize + place.len as usize);
        &self.blocks[place.block as usize][start..end]
    }

    fn value(&self, place: Place) -> Option<&[u8]> {
        if place.len == DELETED.len { None } else { Some(self.get(place)) }
    }

    /// Puts bytes at the end of the last block, or of a new one.
    fn store(&mut self, bytes: &[u8]) -> Place {
        let has_room = self.blocks.last().is_some_and(|block| block.capacity() - block.len() >= bytes.len());
        if !has_room {
            let size = (BLOCK_BYTES_FIRST << self.blocks.len().min(8)).min(BLOCK_BYTES_MAX).max(bytes.len());
            self.blocks.push(Vec::with_capacity(size));
            self.bytes += size as u64;
        }
        let index = self.blocks.len() - 1;
        let block = &mut self.blocks[index];
        let offset = block.len() as u32;
        block.extend_from_slice(bytes);
        Place { block: index as u32, offset, len: bytes.len() as u32 }
    }

    fn store_value(&mut self, value: Option<&[u8]>) -> Place {
        value.map_or(DELETED, |value| self.store(value))
    }

    /// Puts another value in the place of `old`, if it fits.
    fn replace(&mut self, old: &mut Place, value: Option<&[u8]>) {
        match value {
            // Most values are rewritten with the same length: inodes.
            Some(value) if value.len() <= old.len as usize && old.len != DELETED.len => {
                let start = old.offset as usize;
                self.blocks[old.block as usize][start..start + value.len()].copy_from_slice(value);
                old.len = value.len() as u32;
            }
            value => *old = self.store_value(value),
        }
    }

    /// Whether `key`, whose head is that of the key at `place`, is that key.
    fn is_same(&self, place: Place, key: &[u8]) -> bool {
        // Heads say all of short keys but how many zeros are at the end.
        place.len as usize == key.len() && (key.len() <= HEAD_LEN || self.get(place) == key)
    }

    fn change<'a>(&'a self, (key, value): (&'a [u8], Place)) -> Change<'a> {
        (key, self.value(value))
    }
}

impl Map {
    /// Estimated memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// `None` if the map does not know the key; `Some(None)` if it knows it as deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let head = Head::of(key);
        if !self.filter.may_have(head) {
            return None;
        }
        let place = match self.tree.get(&head)? {
            Leaf::One { key: found, value } => self.blocks.is_same(*found, key).then_some(*value)?,
            Leaf::Many(all) => *all.get(key)?,
        };
        Some(self.blocks.value(place))
    }

    /// Records a change.
    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (head, blocks) = (Head::of(key), &mut self.blocks);
        let leaf = match self.tree.entry(head) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.len += 1;
                blocks.bytes += ENTRY_BYTES;
                let key = blocks.store(key);
                entry.insert(Leaf::One { key, value: blocks.store_value(value) });
                return self.note(head);
            }
        };
        if let Leaf::One { key: found, value: old } = leaf {
            if blocks.is_same(*found, key) {
                return blocks.replace(old, value);
            }
            let first = (Box::from(blocks.get(*found)), *old);
            *leaf = Leaf::Many(BTreeMap::from([first]));
        }
        let Leaf::Many(all) = leaf else { unreachable!("there are two keys") };
        match all.get_mut(key) {
            Some(old) => blocks.replace(old, value),
            None => {
                self.len += 1;
                blocks.bytes += ALIKE_BYTES + key.len() as u64;
                all.insert(Box::from(key), blocks.store_value(value));
            }
        }
    }

    /// There is a new head in the tree.
    fn note(&mut self, head: Head) {
        if self.filter.has_room() {
            return self.filter.add(head);
        }
        self.filter = Filter { words: vec![0; (self.filter.words.len() * 2).max(4)], count: 0 };
        self.tree.keys().for_each(|head| self.filter.add(*head));
    }

    fn changes<'a>(&'a self, leaf: &'a Leaf) -> impl Iterator<Item = Change<'a>> {
        let (one, many) = match leaf {
            Leaf::One { key, value } => (Some((self.blocks.get(*key), *value)), None),
            Leaf::Many(all) => (None, Some(all.iter().map(|(key, &place)| (&**key, place)))),
        };
        one.into_iter().chain(many.into_iter().flatten()).map(|entry| self.blocks.change(entry))
    }

    /// All changes in order of keys, each with the head of its key.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Head, Change<'_>)> {
        self.tree.iter().flat_map(|(head, leaf)| self.changes(leaf).map(|change| (*head, change)))
    }

    /// Calls `visit` with the changes from `from` on whose keys begin with `prefix`, in order of keys, until it returns false.
    pub(crate) fn visit(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        mut visit: impl FnMut(&[u8], Option<&[u8]>) -> bool,
    ) {
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => Bound::Included(Head::of(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        // Keys with the head of `from` may lie before it.
        let is_before = |key: &[u8]| match from {
            Bound::Included(from) => key < from,
            Bound::Excluded(from) => key <= from,
            Bound::Unbounded => false,
        };
        let mut has_begun = false;
        let mut each = |key: &[u8], value: Place| {
            if !has_begun && is_before(key) {
                return true;
            }
            has_begun = true;
            key.starts_with(prefix) && visit(key, self.blocks.value(value))
        };
        for (_, leaf) in self.tree.range((first, Bound::Unbounded)) {
            let goes_on = match leaf {
                Leaf::One { key, value } => each(self.blocks.get(*key), *value),
                Leaf::Many(all) => all.iter().all(|(key, &value)| each(key, value)),
            };
            if !goes_on {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys that share their first 32 bytes, differ in zeros at their ends, or are each other's beginnings.
    fn key(number: u64) -> Vec<u8> {
        let mut key = vec![7; [1, 16, 31, 32, 33, 40][number as usize % 6]];
        match number / 6 % 4 {
            0 => key.push(0),
            1 => key.extend([0, 0]),
            2 => *key.last_mut().expect("not empty") = (number / 24 % 3) as u8,
            _ => key.extend(format!("{}", number / 24 % 7).bytes()),
        }
        key
    }

    #[test]
    fn keys_with_equal_heads_are_told_apart_and_kept_in_order() {
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        let mut number = 1u64;
        for step in 0..3000u64 {
            number = number.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let key = key(number >> 33);
            let value = (step % 5 != 0).then(|| vec![step as u8; (step % 40) as usize]);
            map.apply(&key, value.as_deref());
            model.insert(key, value);
        }
        assert_eq!(map.len(), model.len());
        let expected: Vec<Change<'_>> =
            model.iter().map(|(key, value)| (&key[..], value.as_deref())).collect();
        assert_eq!(map.iter().map(|(_, change)| change).collect::<Vec<_>>(), expected);
        for number in 0..300 {
            let key = key(number);
            assert_eq!(map.get(&key), model.get(&key).map(Option::as_deref));
            for from in [Bound::Included(&key[..]), Bound::Excluded(&key[..])] {
                let range = (from, Bound::Unbounded);
                let expected: Vec<&[u8]> = model
                    .range::<[u8], _>(range)
                    .map(|(key, _)| &key[..])
                    .take_while(|key| key.starts_with(&[7, 7]))
                    .collect();
                let mut found = Vec::new();
                map.visit(from, &[7, 7], |key, value| {
                    assert_eq!(Some(&value.map(<[u8]>::to_vec)), model.get(key));
                    found.push(key.to_vec());
                    found.len() < 50
                });
                let expected: Vec<&[u8]> = expected.into_iter().take(50).collect();
                assert_eq!(found, expected);
            }
        }
    }
}
