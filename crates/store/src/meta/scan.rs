//! Ordered reading of a range over overlay and base.
//!
//! Works in chunks: copy the next entries of the overlay under the shards' locks, then read the base, in that
//! order, because entries are in the base before they leave the overlay. No lock is held while the caller's
//! function runs.

use std::ops::{Bound, ControlFlow, Range};

use super::Table;
use super::engine::Engine;
use super::error::Result;
use super::map::Map;
use super::overlay::{SHARD_PREFIX_LEN, SHARDS, shard_of};

/// Overlay entries copied per map and chunk. Copies that are not visited are wasted, and each chunk begins
/// with two searches: a page of a directory of names has about a thousand.
const CHUNK_ENTRIES: usize = 256;
/// Overlay bytes copied per map and chunk.
const CHUNK_BYTES_MAX: usize = 256 << 10;

/// Receives the keys (without table byte) and values that a scan finds, and decides whether to continue.
pub type Visitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Copied overlay entries in key order, complete up to `last`.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<Copied>,
    /// Key up to which every overlay entry is here; `None` means up to the end of the range.
    last: Option<Vec<u8>>,
    /// Number of maps that the entries came from.
    maps: usize,
}

struct Copied {
    key: Range<usize>,
    value: Option<Range<usize>>,
    /// 0 for the active map, 1 for the frozen one, which it hides.
    age: u8,
}

impl Chunk {
    fn key(&self, entry: &Copied) -> &[u8] {
        &self.bytes[entry.key.clone()]
    }

    fn append(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn copy(&mut self, map: &Map, age: u8, from: Bound<&[u8]>, prefix: &[u8]) {
        let (first_entry, first_byte) = (self.entries.len(), self.bytes.len());
        let mut is_full = false;
        map.visit(from, prefix, |key, value| {
            let start = self.bytes.len();
            key.append_to(&mut self.bytes);
            let key = start..self.bytes.len();
            let value = value.map(|value| self.append(value));
            self.entries.push(Copied { key, value, age });
            is_full = self.entries.len() - first_entry >= CHUNK_ENTRIES
                || self.bytes.len() - first_byte >= CHUNK_BYTES_MAX;
            !is_full
        });
        self.maps += usize::from(self.entries.len() > first_entry);
        if let Some(entry) = self.entries.last().filter(|_| is_full) {
            let key = &self.bytes[entry.key.clone()];
            if self.last.as_deref().is_none_or(|last| key < last) {
                self.last = Some(key.to_vec());
            }
        }
    }

    /// Sorts entries from several maps, and drops hidden entries and those beyond `last`. Entries from one
    /// map are in order and end there.
    fn finish(&mut self) {
        if self.maps < 2 {
            return;
        }
        let (bytes, last) = (&self.bytes, self.last.as_deref());
        self.entries.retain(|entry| last.is_none_or(|last| &bytes[entry.key.clone()] <= last));
        self.entries.sort_by(|a, b| (&bytes[a.key.clone()], a.age).cmp(&(&bytes[b.key.clone()], b.age)));
        self.entries.dedup_by(|later, earlier| bytes[later.key.clone()] == bytes[earlier.key.clone()]);
    }
}

impl Engine {
    pub(crate) fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        from: Bound<&[u8]>,
        visit: &mut Visitor<'_>,
    ) -> Result<()> {
        let with_table = |key: &[u8]| [&[table.0], key].concat();
        let shards = match prefix.len() {
            SHARD_PREFIX_LEN.. => {
                let shard = shard_of(table, prefix);
                shard..=shard
            }
            _ => 0..=(SHARDS - 1) as u16,
        };
        let prefix = with_table(prefix);
        let mut from = match from {
            Bound::Included(key) => Bound::Included(with_table(key)),
            Bound::Excluded(key) => Bound::Excluded(with_table(key)),
            Bound::Unbounded => Bound::Unbounded,
        };
        if !matches!(&from, Bound::Included(key) | Bound::Excluded(key) if *key >= prefix) {
            from = Bound::Included(prefix.clone());
        }
        let mut chunk = Chunk::default();
        loop {
            self.check_open()?;
            let start = from.as_ref().map(|key| &key[..]);
            chunk.bytes.clear();
            chunk.entries.clear();
            (chunk.last, chunk.maps) = (None, 0);
            for shard in shards.clone() {
                let maps = self.overlay.shard(shard).maps.read();
                chunk.copy(&maps.active, 0, start, &prefix);
                chunk.copy(&maps.frozen, 1, start, &prefix);
            }
            chunk.finish();
            if self.merge(&chunk, start, &prefix, visit)?.is_break() {
                return Ok(());
            }
            let Some(last) = chunk.last.take() else { return Ok(()) };
            from = Bound::Excluded(last);
        }
    }

    /// Visits the entries of chunk and base in order up to the chunk's end.
    fn merge(
        &self,
        chunk: &Chunk,
        from: Bound<&[u8]>,
        prefix: &[u8],
        visit: &mut Visitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        let mut copied = chunk.entries.iter().peekable();
        self.base.scan(prefix, from, &mut |key, value| {
            if chunk.last.as_deref().is_some_and(|last| key > last) {
                return false;
            }
            while let Some(entry) = copied.next_if(|entry| chunk.key(entry) < key) {
                flow = visit_copied(chunk, entry, visit);
                if flow.is_break() {
                    return false;
                }
            }
            flow = match copied.next_if(|entry| chunk.key(entry) == key) {
                Some(entry) => visit_copied(chunk, entry, visit),
                None => visit(&key[1..], value),
            };
            flow.is_continue()
        })?;
        for entry in copied {
            if flow.is_break() {
                break;
            }
            flow = visit_copied(chunk, entry, visit);
        }
        Ok(flow)
    }
}

fn visit_copied(chunk: &Chunk, entry: &Copied, visit: &mut Visitor<'_>) -> ControlFlow<()> {
    match &entry.value {
        Some(value) => visit(&chunk.key(entry)[1..], &chunk.bytes[value.clone()]),
        None => ControlFlow::Continue(()),
    }
}
