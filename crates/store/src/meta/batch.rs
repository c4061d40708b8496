//! A list of changes that are committed as one transaction.

use super::error::MetaError;
use super::overlay::{ShardSet, shard_of};
use super::{KEY_LEN_MAX, Table, VALUE_LEN_MAX};

/// Bytes before the key of each operation: kind, zero, key length (u16, table byte included), value length
/// (u32).
pub(crate) const OP_HEADER_LEN: usize = 8;
/// Kind byte of a put.
pub(crate) const OP_PUT: u8 = 1;
/// Kind byte of a delete.
pub(crate) const OP_DELETE: u8 = 2;

/// Puts and deletes that are committed as one transaction, applied in the order given.
///
/// Keeps its memory across [`Batch::clear`], so a reused batch allocates nothing once warm. The bytes inside
/// are exactly the body of the log record (`docs/formats/metadata-store.md`).
#[derive(Default)]
pub struct Batch {
    /// Encoded operations.
    pub(crate) bytes: Vec<u8>,
    /// Shard of each operation, in the order of operations.
    pub(crate) shards: Vec<u16>,
    /// Set of these shards.
    pub(crate) shard_set: ShardSet,
    pub(crate) releasing: bool,
    /// First refused argument; reported by commit so that building a batch needs no error paths.
    pub(crate) refused: Option<Refused>,
}

/// Reason why a batch cannot be committed.
#[derive(Clone, Copy)]
pub(crate) enum Refused {
    Key(usize),
    Value(usize),
}

impl Refused {
    pub(crate) fn error(self) -> MetaError {
        match self {
            Refused::Key(len) => MetaError::KeyLength { len },
            Refused::Value(len) => MetaError::ValueLength { len },
        }
    }
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets `key` of `table` to `value`. A key or value of a length that is not allowed makes the commit
    /// fail.
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        if value.len() > VALUE_LEN_MAX {
            self.refused.get_or_insert(Refused::Value(value.len()));
            return;
        }
        self.push(OP_PUT, table, key, value);
    }

    /// Removes `key` of `table`; a missing key is no error.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.push(OP_DELETE, table, key, &[]);
    }

    fn push(&mut self, kind: u8, table: Table, key: &[u8], value: &[u8]) {
        if key.is_empty() || key.len() > KEY_LEN_MAX {
            self.refused.get_or_insert(Refused::Key(key.len()));
            return;
        }
        let shard = shard_of(table, key);
        self.shards.push(shard);
        self.shard_set.insert(shard);
        let key_len = (key.len() as u16 + 1).to_le_bytes();
        let value_len = (value.len() as u32).to_le_bytes();
        self.bytes.reserve(OP_HEADER_LEN + 1 + key.len() + value.len());
        let [v0, v1, v2, v3] = value_len;
        self.bytes.extend_from_slice(&[kind, 0, key_len[0], key_len[1], v0, v1, v2, v3, table.0]);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
    }

    /// Marks this batch as one that frees space (an unlink), so that a full disk accepts it while it refuses
    /// others.
    pub fn set_releasing(&mut self, releasing: bool) {
        self.releasing = releasing;
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// Whether the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// Returns the encoded size in bytes.
    pub fn encoded_len(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of operations that fit into the memory it has.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shards.clear();
        self.shard_set = ShardSet::default();
        self.releasing = false;
        self.refused = None;
    }

    /// Returns the operations in order.
    pub(crate) fn ops(&self) -> Ops<'_> {
        Ops { rest: &self.bytes }
    }
}

/// One operation of a batch or log record; `value` is `None` for a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op<'a> {
    /// Table byte and key: the form of keys in overlay and base.
    pub(crate) full_key: &'a [u8],
    pub(crate) value: Option<&'a [u8]>,
}

impl Op<'_> {
    /// Returns the shard of the key.
    pub(crate) fn shard(&self) -> u16 {
        shard_of(Table(self.full_key[0]), &self.full_key[1..])
    }
}

/// Walks encoded operations; ends at the first that is not well formed, see [`Ops::is_at_end`].
pub(crate) struct Ops<'a> {
    rest: &'a [u8],
}

impl<'a> Ops<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Ops { rest: bytes }
    }

    /// Whether every byte was consumed; false after the iterator ended means malformed input.
    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Op<'a>;

    fn next(&mut self) -> Option<Op<'a>> {
        let (header, rest) = self.rest.split_first_chunk::<OP_HEADER_LEN>()?;
        let [kind, zero, k0, k1, v0, v1, v2, v3] = *header;
        let key_len = usize::from(u16::from_le_bytes([k0, k1]));
        let value_len = u32::from_le_bytes([v0, v1, v2, v3]) as usize;
        let (full_key, rest) = rest.split_at_checked(key_len)?;
        let (value, rest) = rest.split_at_checked(value_len)?;
        let value = match kind {
            OP_PUT if value_len <= VALUE_LEN_MAX => Some(value),
            OP_DELETE if value_len == 0 => None,
            _ => return None,
        };
        // Table byte, and at least one byte of key.
        if zero != 0 || !(2..=KEY_LEN_MAX + 1).contains(&key_len) {
            return None;
        }
        self.rest = rest;
        Some(Op { full_key, value })
    }
}
