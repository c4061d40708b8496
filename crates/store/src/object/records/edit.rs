//! A change of one object: its state before and after, and the operations for it.

use super::{CHUNK_BYTES, RecordStore, chunk_key, coarse_now};
use crate::meta::Batch;
use crate::object::{ObjectAttr, ObjectError, Result};
use nacre_env::sync::RwLockWriteGuard;
use nacre_ondisk::DataRecord;
use nacre_types::{Fid, Timestamp};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, Range};

/// Unit of space accounting in bytes, as in file systems below OSTs.
const ALLOCATION_UNIT: u64 = 4096;

/// Head of an object, without its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub size: u64,
    pub allocated: u64,
    pub mtime: Timestamp,
    pub is_inline: bool,
}

impl Head {
    pub fn attr(&self) -> ObjectAttr {
        ObjectAttr { size: self.size, blocks: self.allocated / 512, mtime: Some(self.mtime) }
    }
}

/// An object that is being changed. Other threads wait for it until this is dropped, which must be after the
/// commit.
pub struct Edit<'a> {
    store: &'a RecordStore,
    object: Fid,
    /// Head as stored.
    before: Option<Head>,
    size: u64,
    allocated: u64,
    /// Changed chunks with their new content; empty ones are deleted.
    chunks: BTreeMap<u32, Vec<u8>>,
    _locked: RwLockWriteGuard<'a, ()>,
}

impl<'a> Edit<'a> {
    pub(super) fn begin(
        store: &'a RecordStore,
        object: Fid,
        locked: RwLockWriteGuard<'a, ()>,
    ) -> Result<Edit<'a>> {
        let mut chunks = BTreeMap::new();
        let before = store.head(object, |data| {
            if let Some(data) = data {
                chunks.insert(0, data.to_vec());
            }
        })?;
        let (size, allocated) = before.map_or((0, 0), |head| (head.size, head.allocated));
        Ok(Edit { store, object, before, size, allocated, chunks, _locked: locked })
    }

    /// Whether the object exists.
    pub fn exists(&self) -> bool {
        self.before.is_some()
    }

    /// Returns the new size.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the new bytes of a chunk; the missing rest is zeros.
    fn bytes(&mut self, number: u32) -> Result<Vec<u8>> {
        if let Some(bytes) = self.chunks.get(&number) {
            return Ok(bytes.clone());
        }
        match self.before {
            Some(Head { is_inline: false, .. }) => {
                self.store.chunk(self.object, number, |bytes| bytes.to_vec())
            }
            _ => Ok(Vec::new()),
        }
    }

    fn set(&mut self, number: u32, before: usize, bytes: Vec<u8>) {
        let space = |len: usize| (len as u64).next_multiple_of(ALLOCATION_UNIT);
        self.allocated = self.allocated.saturating_sub(space(before)) + space(bytes.len());
        self.chunks.insert(number, bytes);
    }

    /// Calls `change` with the bytes of each chunk that `range` touches and the part that it touches.
    fn each(&mut self, range: Range<u64>, change: impl Fn(&mut Vec<u8>, Range<usize>, u64)) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let number = at / CHUNK_BYTES;
            let start = (at % CHUNK_BYTES) as usize;
            let len = (CHUNK_BYTES - at % CHUNK_BYTES).min(range.end - at);
            let mut bytes = self.bytes(number as u32)?;
            let before = bytes.len();
            change(&mut bytes, start..start + len as usize, at);
            self.set(number as u32, before, bytes);
            at += len;
        }
        Ok(())
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset + data.len() as u64;
        self.each(offset..end, |bytes, part, at| {
            if bytes.len() < part.end {
                bytes.resize(part.end, 0);
            }
            let from = (at - offset) as usize;
            bytes[part.clone()].copy_from_slice(&data[from..from + part.len()]);
        })?;
        self.size = self.size.max(end);
        Ok(())
    }

    /// Zeroes a range and frees its space where possible.
    pub(super) fn punch(&mut self, range: Range<u64>) -> Result<()> {
        // Nothing is stored beyond the chunks ever allocated there, so a long range costs no more than a
        // short one.
        let numbers = self.numbers()?;
        for number in numbers {
            let start = u64::from(number) * CHUNK_BYTES;
            let part = range.start.max(start)..range.end.min(start + CHUNK_BYTES);
            if part.is_empty() {
                continue;
            }
            self.each(part, |bytes, part, _| {
                if part.end >= bytes.len() {
                    bytes.truncate(part.start);
                } else {
                    bytes[part].fill(0);
                }
            })?;
        }
        Ok(())
    }

    /// Allocates space for a range.
    pub(super) fn allocate(&mut self, range: Range<u64>) -> Result<()> {
        self.each(range, |bytes, part, _| {
            if bytes.len() < part.end {
                bytes.resize(part.end, 0);
            }
        })
    }

    /// Sets the size.
    ///
    /// # Errors
    /// Those of the store.
    pub fn set_size(&mut self, size: u64) -> Result<()> {
        if size < self.size || self.allocated > 0 {
            self.punch(size..u64::MAX)?;
        }
        self.size = size;
        Ok(())
    }

    /// Sets the size as [`Edit::set_size`] does, but never decreases it.
    pub(super) fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// Returns the numbers of the chunks that hold bytes at this moment.
    fn numbers(&self) -> Result<Vec<u32>> {
        let mut numbers: Vec<u32> = match self.before {
            Some(Head { is_inline: false, .. }) => self.store.numbers(self.object)?,
            _ => Vec::new(),
        };
        numbers.retain(|number| !self.chunks.contains_key(number));
        numbers.extend(self.chunks.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(number, _)| *number));
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Adds the changes to a batch and returns the new attributes.
    pub fn stage(&mut self, batch: &mut Batch) -> ObjectAttr {
        let was_inline = self.before.is_none_or(|head| head.is_inline);
        let first = self.chunks.get(&0);
        let in_first = first.map_or(0, |bytes| (bytes.len() as u64).next_multiple_of(ALLOCATION_UNIT));
        let is_inline = self.allocated == in_first && (was_inline || first.is_some());
        // Never the same twice: it is the version of the data.
        let mtime = self.before.map_or(coarse_now(), |before| coarse_now().max(before.mtime.next()));
        let none = Vec::new();
        let mut head = Vec::new();
        let inline = is_inline.then(|| first.unwrap_or(&none).as_slice());
        DataRecord { size: self.size, allocated: self.allocated, mtime, inline }.encode(&mut head);
        let table = self.store.table;
        batch.put(table, &self.object.to_key(), &head);
        for (number, bytes) in &self.chunks {
            let key = chunk_key(self.object, *number);
            match bytes.is_empty() || (is_inline && *number == 0) {
                // An inline object has had no other chunks.
                true if was_inline => {}
                true => batch.delete(table, &key),
                false => batch.put(table, &key, bytes),
            }
        }
        Head { size: self.size, allocated: self.allocated, mtime, is_inline }.attr()
    }
}

impl RecordStore {
    /// Adds the destruction of an object to a batch; false if it does not exist. Its bytes are not read. It
    /// must not change between this call and the commit.
    ///
    /// # Errors
    /// [`ObjectError::Closed`]; those of the store.
    pub fn stage_destroy(&self, object: Fid, batch: &mut Batch) -> Result<bool> {
        let _locked = self.lock_to_change(object)?;
        self.stage_destroy_locked(object, batch)
    }

    /// Adds an empty object to a batch of the caller, if it does not exist.
    ///
    /// # Errors
    /// [`ObjectError::Closed`]; those of the store.
    pub fn stage_empty(&self, object: Fid, batch: &mut Batch) -> Result<()> {
        let mut edit = self.edit(object)?;
        if !edit.exists() {
            edit.stage(batch);
        }
        Ok(())
    }

    /// Removes an object that was created while its file was being removed.
    ///
    /// # Errors
    /// [`ObjectError::Closed`]; those of the store.
    pub fn destroy_left(&self, object: Fid) -> Result<()> {
        let _locked = self.lock_to_change(object)?;
        let mut batch = Batch::new();
        if self.stage_destroy_locked(object, &mut batch)? {
            self.meta.commit(&batch)?;
        }
        Ok(())
    }

    pub(super) fn stage_destroy_locked(&self, object: Fid, batch: &mut Batch) -> Result<bool> {
        let Some(head) = self.head(object, |_| ())? else { return Ok(false) };
        batch.set_releasing(true);
        batch.delete(self.table, &object.to_key());
        if !head.is_inline {
            for number in self.numbers(object)? {
                batch.delete(self.table, &chunk_key(object, number));
            }
        }
        Ok(true)
    }

    /// Returns the numbers of the chunks in records of their own.
    pub(super) fn numbers(&self, object: Fid) -> Result<Vec<u32>> {
        let mut numbers = Vec::new();
        self.meta.scan(self.table, &object.to_key(), Bound::Unbounded, &mut |key, _| {
            numbers.extend(key.get(16..).and_then(|n| n.try_into().ok()).map(u32::from_be_bytes));
            ControlFlow::Continue(())
        })?;
        Ok(numbers)
    }

    /// Returns the head of an object; `inline` receives its bytes if they are in it.
    pub(super) fn head(&self, object: Fid, inline: impl FnOnce(Option<&[u8]>)) -> Result<Option<Head>> {
        let read = self.meta.get(self.table, &object.to_key(), |value| {
            value.map(|value| {
                let record = DataRecord::decode(value)?;
                inline(record.inline);
                let is_inline = record.inline.is_some();
                let DataRecord { size, allocated, mtime, .. } = record;
                Ok::<Head, nacre_ondisk::DecodeError>(Head { size, allocated, mtime, is_inline })
            })
        })?;
        let damaged = |_| ObjectError::Damaged { object, what: "its record cannot be read" };
        read.transpose().map_err(damaged)
    }

    /// Calls `f` with the bytes of a chunk.
    pub(super) fn chunk<R>(&self, object: Fid, number: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        Ok(self.meta.get(self.table, &chunk_key(object, number), |value| f(value.unwrap_or(&[])))?)
    }
}
