//! An ordered map of recent changes whose values lie in a few large blocks instead of an allocation each.
//!
//! Grows only: a value replaced by a longer one leaves its old place unused until the whole map is dropped after its
//! checkpoint. [`Map::bytes`] counts such places too.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::key::Key;

/// Size of a map's first block; each next one doubles up to the maximum.
const BLOCK_BYTES_FIRST: usize = 1 << 10;
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Memory of an entry beside its value: key, place, and its part of a tree node that is two thirds full.
const ENTRY_BYTES: u64 = 96;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Map {
    tree: BTreeMap<Key, Place>,
    blocks: Vec<Vec<u8>>,
    bytes: u64,
}

/// Where a value lies. A deleted key has no place but keeps its entry, which hides what the base holds.
#[derive(Clone, Copy)]
struct Place {
    block: u32,
    offset: u32,
    /// Length of the value, or [`DELETED`].
    len: u32,
}

const DELETED: Place = Place { block: 0, offset: 0, len: u32::MAX };

/// A change: key, and new value or `None` for a delete.
pub(crate) type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Map {
    /// Estimated memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.tree.len()
    }

    /// `None` if the map does not know the key; `Some(None)` if it knows it as deleted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.tree.get(key).map(|&place| self.value(place))
    }

    fn value(&self, place: Place) -> Option<&[u8]> {
        if place.len == DELETED.len {
            return None;
        }
        let (start, end) = (place.offset as usize, place.offset as usize + place.len as usize);
        Some(&self.blocks[place.block as usize][start..end])
    }

    /// Records a change.
    pub(crate) fn apply(&mut self, key: &[u8], value: Option<&[u8]>) {
        let Some(old) = self.tree.get_mut(key) else {
            let place = value.map_or(DELETED, |value| store(&mut self.blocks, &mut self.bytes, value));
            self.bytes += ENTRY_BYTES + Key::heap_len(key) as u64;
            self.tree.insert(Key::from(key), place);
            return;
        };
        match value {
            None => *old = DELETED,
            // Most values are rewritten with the same length: inodes.
            Some(value) if value.len() <= old.len as usize && old.len != DELETED.len => {
                let start = old.offset as usize;
                self.blocks[old.block as usize][start..start + value.len()].copy_from_slice(value);
                old.len = value.len() as u32;
            }
            Some(value) => *old = store(&mut self.blocks, &mut self.bytes, value),
        }
    }

    /// All changes in order of keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Change<'_>> {
        self.tree.iter().map(|(key, &place)| (key.as_slice(), self.value(place)))
    }

    /// The changes from `from` on whose keys begin with `prefix`.
    pub(crate) fn range<'a>(
        &'a self,
        from: Bound<&'a [u8]>,
        prefix: &'a [u8],
    ) -> impl Iterator<Item = Change<'a>> {
        self.tree
            .range::<[u8], _>((from, Bound::Unbounded))
            .take_while(move |(key, _)| key.as_slice().starts_with(prefix))
            .map(|(key, &place)| (key.as_slice(), self.value(place)))
    }
}

/// Puts a value at the end of the last block, or of a new one.
fn store(blocks: &mut Vec<Vec<u8>>, bytes: &mut u64, value: &[u8]) -> Place {
    let has_room = blocks.last().is_some_and(|block| block.capacity() - block.len() >= value.len());
    if !has_room {
        let size = (BLOCK_BYTES_FIRST << blocks.len().min(6)).min(BLOCK_BYTES_MAX).max(value.len());
        blocks.push(Vec::with_capacity(size));
        *bytes += size as u64;
    }
    let index = blocks.len() - 1;
    let block = &mut blocks[index];
    let offset = block.len() as u32;
    block.extend_from_slice(value);
    Place { block: index as u32, offset, len: value.len() as u32 }
}
