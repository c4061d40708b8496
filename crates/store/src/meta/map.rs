//! An ordered map of recent changes: short ones in the nodes of a tree, long ones in a few large blocks, none
//! with an allocation of its own.
//!
//! The tree's nodes hold the first bytes of each key as numbers, so that a search follows no pointers and
//! calls no byte comparison: in the first bytes (table, FID and hash are 25 bytes) hardly two keys are equal.
//! Those that are, links of one file in one directory, are kept apart in a map of their own. The rest of a
//! name and its value are in the node too, so that listing a directory reads one node after the other and
//! nothing else: names are created in an order unrelated to their hashes, so bytes outside the node would be
//! at a different place for each.
//!
//! A map only grows: a value replaced by a longer one leaves its old place unused until the whole map is
//! dropped after its checkpoint. [`Map::bytes`] counts such places too.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::{Bound, RangeInclusive};

/// Size of a map's first block; each next one doubles up to the maximum.
const BLOCK_BYTES_FIRST: usize = 1 << 8;
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Memory of an entry in addition to its bytes in blocks: its part of a tree node that is two thirds full,
/// and of the filter.
const ENTRY_BYTES: u64 = 124;
/// Memory of an entry among keys with the same head: its part of a tree node, and the key outside the node.
const ALIKE_BYTES: u64 = 64;
/// Bytes of the first node of a map of such keys.
const ALIKE_NODE_BYTES: u64 = 330;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Map {
    tree: BTreeMap<Head, Leaf>,
    filter: Filter,
    blocks: Blocks,
    len: usize,
}

/// The first bytes of a key, padded with zeros. Ordered as keys are, except for keys that are equal in these
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Head(u128, u128);

const HEAD_LEN: usize = 32;

impl Head {
    fn of(key: &[u8]) -> Head {
        Head::padded(key, 0)
    }

    /// Builds a head, padded with `pad` if the key is shorter.
    fn padded(key: &[u8], pad: u8) -> Head {
        let mut bytes = [pad; HEAD_LEN];
        match key.first_chunk() {
            Some(first) => bytes = *first,
            None => bytes[..key.len()].copy_from_slice(key),
        }
        let half = |at: usize| u128::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        Head(half(0), half(HEAD_LEN / 2))
    }

    fn bytes(self) -> [u8; HEAD_LEN] {
        let mut bytes = [0; HEAD_LEN];
        bytes[..HEAD_LEN / 2].copy_from_slice(&self.0.to_be_bytes());
        bytes[HEAD_LEN / 2..].copy_from_slice(&self.1.to_be_bytes());
        bytes
    }
}

/// A key in memory: the first bytes, and the following ones if there are more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<'a> {
    head: Head,
    len: u16,
    /// Usually empty. Empty slices are not compared: `memcmp` of no bytes at an unmapped address made a stat
    /// of the store alone half as long again.
    rest: &'a [u8],
}

impl<'a> Key<'a> {
    fn of(key: &'a [u8]) -> Key<'a> {
        Key { head: Head::of(key), len: key.len() as u16, rest: key.get(HEAD_LEN..).unwrap_or_default() }
    }

    fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Appends the bytes of the key to `out`.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.len().min(HEAD_LEN);
        out.extend_from_slice(&self.head.bytes());
        out.truncate(end);
        out.extend_from_slice(self.rest);
    }

    fn starts_with(&self, prefix: &Prefix<'_>) -> bool {
        prefix.heads.contains(&self.head)
            && self.len() >= prefix.len
            && (prefix.rest.is_empty() || self.rest.starts_with(prefix.rest))
    }
}

impl PartialEq for Key<'_> {
    fn eq(&self, other: &Key<'_>) -> bool {
        self.head == other.head && self.len == other.len && (self.rest.is_empty() || self.rest == other.rest)
    }
}

impl Eq for Key<'_> {}

impl Ord for Key<'_> {
    /// Orders as bytes are ordered: of keys with one head, the shorter one ends within the zeros that
    /// continue in the longer one.
    fn cmp(&self, other: &Key<'_>) -> Ordering {
        let by_rest = || match self.rest.is_empty() || other.rest.is_empty() {
            true => self.len.cmp(&other.len),
            false => self.rest.cmp(other.rest),
        };
        self.head.cmp(&other.head).then_with(by_rest)
    }
}

impl PartialOrd for Key<'_> {
    fn partial_cmp(&self, other: &Key<'_>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A common beginning of keys.
struct Prefix<'a> {
    len: usize,
    /// Heads that begin with it.
    heads: RangeInclusive<Head>,
    rest: &'a [u8],
}

impl<'a> Prefix<'a> {
    fn of(prefix: &'a [u8]) -> Prefix<'a> {
        let rest = prefix.get(HEAD_LEN..).unwrap_or_default();
        let heads = Head::padded(prefix, 0)..=Head::padded(prefix, u8::MAX);
        Prefix { len: prefix.len(), heads, rest }
    }
}

/// A Bloom filter of one word per key: it rules out most heads that are not in the tree with one access to
/// memory. Most keys that are read are in the base or do not exist.
#[derive(Default)]
struct Filter {
    /// Length is a power of two, or 0 at first.
    words: Vec<u64>,
    count: usize,
}

impl Filter {
    /// Heads for each word: with 16 bits each, of which three are set, 1 of 60 absent heads passes.
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

    /// Whether one more head fits; otherwise all move to a larger filter.
    fn has_room(&self) -> bool {
        self.count < self.words.len() * Self::HEADS_PER_WORD
    }

    fn add(&mut self, head: Head) {
        let (word, bits) = self.place(head);
        self.words[word] |= bits;
        self.count += 1;
    }
}

/// Entry or entries with one head.
enum Leaf {
    Short(Short),
    One { key_len: u16, rest: Place, value: Place },
    Many(BTreeMap<Box<[u8]>, Place>),
}

/// Bytes of a key's rest and its value in a node: a name of 32 bytes and its value.
const SHORT_LEN: usize = 45;

/// A short key and its value.
struct Short {
    key_len: u8,
    /// Length of the value, or [`Short::DELETED`].
    value_len: u8,
    /// Rest of the key after its head, followed by the value.
    bytes: [u8; SHORT_LEN],
}

impl Short {
    const DELETED: u8 = u8::MAX;

    /// Returns `None` if key and value do not fit.
    fn new(key: Key<'_>, value: Option<&[u8]>) -> Option<Short> {
        let mut short = Short { key_len: key.len.try_into().ok()?, value_len: 0, bytes: [0; SHORT_LEN] };
        short.bytes.get_mut(..key.rest.len())?.copy_from_slice(key.rest);
        short.set(value).then_some(short)
    }

    fn rest_len(&self) -> usize {
        usize::from(self.key_len).saturating_sub(HEAD_LEN)
    }

    fn rest(&self) -> &[u8] {
        &self.bytes[..self.rest_len()]
    }

    fn value(&self) -> Option<&[u8]> {
        let start = self.rest_len();
        (self.value_len != Self::DELETED).then(|| &self.bytes[start..start + usize::from(self.value_len)])
    }

    /// Replaces the value; false if the new one does not fit.
    fn set(&mut self, value: Option<&[u8]>) -> bool {
        let start = self.rest_len();
        self.value_len = match value {
            None => Self::DELETED,
            Some(value) => match self.bytes.get_mut(start..start + value.len()) {
                None => return false,
                Some(place) => {
                    place.copy_from_slice(value);
                    value.len() as u8
                }
            },
        };
        true
    }
}

/// Place of bytes in the blocks. A deleted key has no place for a value but keeps its entry, which hides that
/// of the base.
#[derive(Clone, Copy)]
struct Place {
    block: u32,
    offset: u32,
    /// Length in bytes, or that of [`DELETED`].
    len: u32,
}

const DELETED: Place = Place { block: 0, offset: 0, len: u32::MAX };
const NOTHING: Place = Place { block: 0, offset: 0, len: 0 };

/// A change: key, and new value or `None` for a delete.
pub(crate) type Change<'a> = (Key<'a>, Option<&'a [u8]>);

/// Keys and values, one after the other.
#[derive(Default)]
struct Blocks {
    blocks: Vec<Vec<u8>>,
    /// Estimated memory of the whole map.
    bytes: u64,
}

impl Blocks {
    fn get(&self, place: Place) -> &[u8] {
        if place.len == 0 {
            return &[];
        }
        let (start, end) = (place.offset as usize, place.offset as usize + place.len as usize);
        &self.blocks[place.block as usize][start..end]
    }

    fn value(&self, place: Place) -> Option<&[u8]> {
        if place.len == DELETED.len { None } else { Some(self.get(place)) }
    }

    /// Appends bytes to the last block, or to a new one.
    fn store(&mut self, bytes: &[u8]) -> Place {
        if bytes.is_empty() {
            return NOTHING;
        }
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

    /// Writes another value to the place of `old`, if it fits.
    fn replace(&mut self, old: &mut Place, value: Option<&[u8]>) {
        match value {
            // Most values are rewritten with the same length: inodes.
            Some(value) if value.len() <= old.len as usize && old.len != DELETED.len && !value.is_empty() => {
                let start = old.offset as usize;
                self.blocks[old.block as usize][start..start + value.len()].copy_from_slice(value);
                old.len = value.len() as u32;
            }
            value => *old = self.store_value(value),
        }
    }

    /// Creates a leaf.
    fn leaf(&mut self, key: Key<'_>, value: Option<&[u8]>) -> Leaf {
        match Short::new(key, value) {
            Some(short) => Leaf::Short(short),
            None => {
                Leaf::One { key_len: key.len, rest: self.store(key.rest), value: self.store_value(value) }
            }
        }
    }
}

impl Leaf {
    /// Returns the key, if the leaf has a single one.
    fn key<'a>(&'a self, head: Head, blocks: &'a Blocks) -> Option<Key<'a>> {
        match self {
            Leaf::Short(short) => Some(Key { head, len: u16::from(short.key_len), rest: short.rest() }),
            Leaf::One { key_len, rest, .. } => Some(Key { head, len: *key_len, rest: blocks.get(*rest) }),
            Leaf::Many(_) => None,
        }
    }

    /// Returns the value of the key, if the leaf has a single one.
    fn value<'a>(&'a self, blocks: &'a Blocks) -> Option<&'a [u8]> {
        match self {
            Leaf::Short(short) => short.value(),
            Leaf::One { value, .. } => blocks.value(*value),
            Leaf::Many(_) => None,
        }
    }
}

impl Map {
    /// Returns the estimated memory in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns `None` if the map does not have the key; `Some(None)` if it is deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let wanted = Key::of(key);
        if !self.filter.may_have(wanted.head) {
            return None;
        }
        let leaf = self.tree.get(&wanted.head)?;
        match leaf {
            Leaf::Many(all) => all.get(key).map(|place| self.blocks.value(*place)),
            one => {
                let is_it = one.key(wanted.head, &self.blocks).is_some_and(|found| found == wanted);
                is_it.then(|| one.value(&self.blocks))
            }
        }
    }

    /// Records a change.
    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>) {
        let (wanted, blocks) = (Key::of(key), &mut self.blocks);
        let leaf = match self.tree.entry(wanted.head) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                self.len += 1;
                blocks.bytes += ENTRY_BYTES;
                entry.insert(blocks.leaf(wanted, value));
                return self.note(wanted.head);
            }
        };
        if leaf.key(wanted.head, blocks) == Some(wanted) {
            let is_set = match leaf {
                Leaf::Short(short) => short.set(value),
                Leaf::One { value: old, .. } => {
                    blocks.replace(old, value);
                    true
                }
                Leaf::Many(_) => unreachable!("there is one key"),
            };
            if !is_set {
                *leaf = blocks.leaf(wanted, value);
            }
            return;
        }
        if let Some(found) = leaf.key(wanted.head, blocks) {
            let mut first = Vec::with_capacity(found.len());
            found.append_to(&mut first);
            let place = match leaf {
                Leaf::Short(short) => blocks.store_value(short.value()),
                Leaf::One { value, .. } => *value,
                Leaf::Many(_) => unreachable!("there is one key"),
            };
            blocks.bytes += ALIKE_NODE_BYTES + ALIKE_BYTES + first.len() as u64;
            *leaf = Leaf::Many(BTreeMap::from([(first.into_boxed_slice(), place)]));
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

    /// Notes a new head in the filter.
    fn note(&mut self, head: Head) {
        if self.filter.has_room() {
            return self.filter.add(head);
        }
        self.filter = Filter { words: vec![0; (self.filter.words.len() * 2).max(4)], count: 0 };
        self.tree.keys().for_each(|head| self.filter.add(*head));
    }

    fn changes<'a>(&'a self, head: Head, leaf: &'a Leaf) -> impl Iterator<Item = Change<'a>> {
        let one = leaf.key(head, &self.blocks).map(|key| (key, leaf.value(&self.blocks)));
        let many = match leaf {
            Leaf::Many(all) => Some(all.iter()),
            _ => None,
        };
        let many = many.into_iter().flatten().map(|(key, place)| (Key::of(key), self.blocks.value(*place)));
        one.into_iter().chain(many)
    }

    /// Returns all changes in order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        self.tree.iter().flat_map(|(head, leaf)| self.changes(*head, leaf))
    }

    /// Calls `visit` with the changes from `from` on whose keys begin with `prefix`, in order of keys, until
    /// it returns false.
    pub(crate) fn visit(
        &self,
        from: Bound<&[u8]>,
        prefix: &[u8],
        mut visit: impl FnMut(Key<'_>, Option<&[u8]>) -> bool,
    ) {
        let (from, prefix) = (from.map(Key::of), Prefix::of(prefix));
        let first = match from {
            Bound::Included(key) | Bound::Excluded(key) => Bound::Included(key.head),
            Bound::Unbounded => Bound::Unbounded,
        };
        // Keys with the head of `from` may precede it.
        let is_before = |key: &Key<'_>| match from {
            Bound::Included(from) => *key < from,
            Bound::Excluded(from) => *key <= from,
            Bound::Unbounded => false,
        };
        let mut has_begun = false;
        let mut each = |key: Key<'_>, value: Option<&[u8]>| {
            if !has_begun && is_before(&key) {
                return true;
            }
            has_begun = true;
            key.starts_with(&prefix) && visit(key, value)
        };
        for (head, leaf) in self.tree.range((first, Bound::Unbounded)) {
            let goes_on = match leaf {
                Leaf::Many(_) => self.changes(*head, leaf).all(|(key, value)| each(key, value)),
                one => one.key(*head, &self.blocks).is_none_or(|key| each(key, one.value(&self.blocks))),
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

    /// Keys that share their first 32 bytes, differ in zeros at their ends, or are prefixes of each other.
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
    fn a_value_that_does_not_fit_into_its_node_any_more_moves_out_and_shorter_ones_stay_there() {
        let key = [&[3; 25][..], b"a name of some length"].concat();
        let mut map = Map::default();
        for len in [20, 31, 0, 30, 200, 20, 0] {
            let value = vec![len as u8; len];
            map.apply(&key, Some(&value));
            assert_eq!(map.get(&key), Some(Some(&value[..])));
            assert_eq!(map.get(&key[..45]), None);
            map.apply(&key, None);
            assert_eq!(map.get(&key), Some(None));
        }
        assert_eq!(map.len(), 1);
        // A name's value takes no memory outside its entry.
        let (mut map, name) = (Map::default(), [&[3; 25][..], &[b'x'; 32]].concat());
        map.apply(&name, Some(&[1; 20]));
        assert_eq!(map.bytes(), ENTRY_BYTES);
        map.apply(&name, Some(&[1; 21]));
        assert!(map.bytes() > ENTRY_BYTES);
    }

    #[test]
    fn keys_with_equal_heads_are_told_apart_and_kept_in_order() {
        let (mut map, mut model) = (Map::default(), BTreeMap::new());
        let mut random = fastrand::Rng::with_seed(1);
        for step in 0..3000u64 {
            let key = key(random.u64(..1 << 31));
            // Some fit into nodes, and some of those stop fitting when they are replaced.
            let value = (step % 5 != 0).then(|| vec![step as u8; (step % 61) as usize]);
            map.apply(&key, value.as_deref());
            model.insert(key, value);
        }
        assert_eq!(map.len(), model.len());
        let whole = |key: Key<'_>| {
            let mut bytes = vec![1];
            key.append_to(&mut bytes);
            bytes.split_off(1)
        };
        let expected: Vec<_> = model.iter().map(|(key, value)| (key.clone(), value.as_deref())).collect();
        assert_eq!(map.iter().map(|(key, value)| (whole(key), value)).collect::<Vec<_>>(), expected);
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
                    let key = whole(key);
                    assert_eq!(Some(&value.map(<[u8]>::to_vec)), model.get(&key));
                    found.push(key);
                    found.len() < 50
                });
                let expected: Vec<&[u8]> = expected.into_iter().take(50).collect();
                assert_eq!(found, expected);
            }
        }
    }
}
