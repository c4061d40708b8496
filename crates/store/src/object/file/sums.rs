//! Checksums of data, 4 KiB each, of a store that was created with them.
//!
//! The index has a record of the known checksums of each MiB of an object. Data and records do not reach the
//! disk together, so a record contains only checksums that no crash can invalidate:
//!
//! - before a block with a known checksum is written, the record of its MiB is deleted, durably; the MiB is
//!   *unsettled* then;
//! - an unsettled MiB is *settled* when it was synced and not written since: the checksums of written blocks
//!   are computed from the page cache, those of the others are kept, and the record is put;
//! - the file of a destroyed object is emptied when the removal of its records is durable.
//!
//! After a crash an unsettled MiB has no checksums until it is written again. A new object costs no sync
//! until it is settled, which a thread does some time after the last write; overwriting a settled MiB costs
//! one sync of the index for each MiB and period of writing.
//!
//! A read compares blocks that have a record. Writes may run concurrently, so it checks again, with the
//! object locked exclusively, before it reports damage.

use super::handle::Handle;
use crate::meta::{Batch, MetaStore, Table};
use crate::object::{ObjectError, Result};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::object::{SUM_BLOCK, SUMS_MAX, SumsRecord};
use nacre_types::Fid;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;
use std::time::Duration;

/// Checksums of data: FID in key form, number of the MiB, big-endian -> [`SumsRecord`].
const SUMS: Table = Table(5);
/// Bytes covered by one record.
const CHUNK: u64 = SUM_BLOCK * SUMS_MAX as u64;
/// Chunks settled in one transaction, with the object locked exclusively.
const SETTLED_AT_ONCE: usize = 8;
/// Records that are deleted in one transaction.
const DELETED_AT_ONCE: usize = 4096;
/// Number of objects with unsettled chunks at which writers settle their own, so that the number of open
/// files stays bounded.
const WAITING_MAX: usize = 2048;

/// Chunks of an open object whose records were deleted because of writes.
#[derive(Default)]
pub(super) struct Unsettled {
    chunks: HashMap<u32, Chunk>,
    /// Time of the first write to one of them.
    since: Option<Instant>,
    /// Writes begun so far.
    writes: u64,
}

#[derive(Default)]
struct Chunk {
    /// Checksums of blocks that were not written.
    before: SumsRecord,
    /// Bitmap of the blocks that were written.
    written: [u64; SUMS_MAX / 64],
    /// Number of the last write begun.
    last_write: u64,
}

impl Chunk {
    fn write(&mut self, blocks: Range<usize>, number: u64) {
        self.last_write = number;
        for block in blocks {
            self.written[block / 64] |= 1 << (block % 64);
            self.before.clear(block);
        }
    }

    fn is_written(&self, block: usize) -> bool {
        self.written[block / 64] & (1 << (block % 64)) != 0
    }
}

fn key_of(object: Fid, chunk: u32) -> [u8; 20] {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&object.to_key());
    key[16..].copy_from_slice(&chunk.to_be_bytes());
    key
}

fn sum_of(block: &[u8]) -> u32 {
    crate::meta::crc32c(block)
}

/// Returns the chunks that a range of bytes touches, with the blocks in each.
fn chunks_of(range: Range<u64>) -> impl Iterator<Item = (u32, Range<usize>)> {
    let first = range.start / CHUNK;
    let chunks = first..if range.is_empty() { first } else { range.end.div_ceil(CHUNK) };
    chunks.map(move |chunk| {
        let start = range.start.saturating_sub(chunk * CHUNK) / SUM_BLOCK;
        let end = (range.end - chunk * CHUNK).min(CHUNK).div_ceil(SUM_BLOCK);
        (chunk as u32, start as usize..end as usize)
    })
}

/// The objects with unsettled chunks, and the thread that settles them.
pub(super) struct Book {
    index: Arc<MetaStore>,
    age: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: HashMap<Fid, Arc<Handle>>,
    is_stopping: bool,
}

impl Book {
    pub(super) fn new(index: Arc<MetaStore>, settle_ms: u64) -> Arc<Book> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Book { index, age: Duration::from_millis(settle_ms), state, changed })
    }

    fn load(&self, object: Fid, chunk: u32) -> Result<Option<SumsRecord>> {
        match self.index.get(SUMS, &key_of(object, chunk), |value| value.map(SumsRecord::decode))? {
            None => Ok(None),
            Some(Ok(record)) => Ok(Some(record)),
            Some(Err(_)) => Err(ObjectError::Damaged { object, what: "its checksums cannot be read" }),
        }
    }

    /// Prepares a write, under its lock.
    ///
    /// # Errors
    /// [`ObjectError::Sum`] if a partially written block is damaged; those of the index. Nothing may be
    /// written then.
    pub(super) fn before_write(&self, handle: &Arc<Handle>, range: Range<u64>) -> Result<()> {
        let mut unsettled = handle.unsettled.lock();
        let (mut batch, mut begun) = (Batch::new(), Vec::new());
        for (chunk, blocks) in chunks_of(range.clone()) {
            if unsettled.chunks.contains_key(&chunk) {
                continue;
            }
            let record = self.load(handle.object, chunk)?;
            if let Some(record) = &record {
                self.check_edges(handle, chunk, &blocks, &range, record)?;
                batch.delete(SUMS, &key_of(handle.object, chunk));
            }
            begun.push((chunk, Chunk { before: record.unwrap_or_default(), ..Chunk::default() }));
        }
        if !batch.is_empty() {
            batch.set_releasing(true);
            let transno = self.index.commit(&batch)?;
            nacre_env::blocking(|| self.index.sync(transno))?;
        }
        unsettled.chunks.extend(begun);
        unsettled.writes += 1;
        let number = unsettled.writes;
        for (chunk, blocks) in chunks_of(range) {
            if let Some(chunk) = unsettled.chunks.get_mut(&chunk) {
                chunk.write(blocks, number);
            }
        }
        let is_first = unsettled.since.is_none() && !unsettled.chunks.is_empty();
        if is_first {
            unsettled.since = Some(Instant::now());
        }
        drop(unsettled);
        if is_first {
            let mut state = self.state.lock();
            state.waiting.insert(handle.object, handle.clone());
            if state.waiting.len() >= WAITING_MAX {
                self.changed.notify_one();
            }
        }
        Ok(())
    }

    /// Checks blocks that a write changes in part: otherwise the new checksum would hide their damage.
    fn check_edges(
        &self,
        handle: &Handle,
        chunk: u32,
        blocks: &Range<usize>,
        range: &Range<u64>,
        record: &SumsRecord,
    ) -> Result<()> {
        let at = |block: usize| u64::from(chunk) * CHUNK + block as u64 * SUM_BLOCK;
        let edges = [blocks.start, blocks.end - 1];
        for block in
            edges.into_iter().filter(|block| range.start > at(*block) || range.end < at(*block) + SUM_BLOCK)
        {
            if !self.is_good(handle, at(block), record.get(block))? {
                return Err(ObjectError::Sum { object: handle.object, offset: at(block) });
            }
        }
        Ok(())
    }

    /// Whether the block at `offset` matches its checksum.
    fn is_good(&self, handle: &Handle, offset: u64, sum: Option<u32>) -> Result<bool> {
        let Some(sum) = sum else { return Ok(true) };
        let mut block = [0; SUM_BLOCK as usize];
        let read = nacre_env::blocking(|| handle.file.read_full(offset, &mut block));
        read.map_err(|error| ObjectError::io("read", handle.object, error))?;
        Ok(sum_of(&block) == sum)
    }

    /// Compares data that was read from `offset` on.
    ///
    /// # Errors
    /// [`ObjectError::Sum`] if a block does not match its checksum.
    pub(super) fn check_read(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<()> {
        for (chunk, blocks) in chunks_of(offset..offset + data.len() as u64) {
            let Some(record) = self.load(handle.object, chunk)? else { continue };
            for block in blocks {
                let Some(sum) = record.get(block) else { continue };
                let at = u64::from(chunk) * CHUNK + block as u64 * SUM_BLOCK;
                let whole = at
                    .checked_sub(offset)
                    .and_then(|from| data.get(from as usize..)?.get(..SUM_BLOCK as usize));
                let is_good = match whole {
                    Some(bytes) => sum_of(bytes) == sum,
                    None => self.is_good(handle, at, Some(sum))?,
                };
                if !is_good {
                    self.look_again(handle, chunk, block)?;
                }
            }
        }
        Ok(())
    }

    /// Compares a block again: a write may have come between the reads of data and record.
    fn look_again(&self, handle: &Handle, chunk: u32, block: usize) -> Result<()> {
        let _alone = handle.alone();
        let at = u64::from(chunk) * CHUNK + block as u64 * SUM_BLOCK;
        let sum = self.load(handle.object, chunk)?.and_then(|record| record.get(block));
        match self.is_good(handle, at, sum)? {
            true => Ok(()),
            false => {
                log::error!(
                    "object {}: data at offset {at} is damaged: its checksum does not match",
                    handle.object
                );
                Err(ObjectError::Sum { object: handle.object, offset: at })
            }
        }
    }

    /// Compares all data of an object that has checksums; passes the offsets of damaged blocks to `found`.
    pub(super) fn check_all(&self, handle: &Handle, found: &mut dyn FnMut(u64)) -> Result<()> {
        let object = handle.object;
        let mut chunks = Vec::new();
        self.index.scan(SUMS, &object.to_key(), Bound::Unbounded, &mut |key, _| {
            chunks.extend(key.last_chunk().map(|chunk| u32::from_be_bytes(*chunk)));
            ControlFlow::Continue(())
        })?;
        for chunk in chunks {
            let Some(record) = self.load(object, chunk)? else { continue };
            for block in (0..SUMS_MAX).filter(|block| record.get(*block).is_some()) {
                let at = u64::from(chunk) * CHUNK + block as u64 * SUM_BLOCK;
                if !self.is_good(handle, at, record.get(block))?
                    && matches!(self.look_again(handle, chunk, block), Err(ObjectError::Sum { .. }))
                {
                    found(at);
                }
            }
        }
        Ok(())
    }

    /// Prepares zeroing or truncating a range, for a caller that has the object locked exclusively.
    /// `u64::MAX` as the end means up to the end of the object.
    ///
    /// # Errors
    /// As [`Book::before_write`].
    pub(super) fn before_punch(&self, handle: &Arc<Handle>, range: Range<u64>) -> Result<()> {
        let (first, last) = (range.start.next_multiple_of(CHUNK).min(range.end), range.end / CHUNK * CHUNK);
        let edges = if first > last { vec![range] } else { vec![range.start..first, last..range.end] };
        for edge in edges.into_iter().filter(|edge| !edge.is_empty() && edge.end != u64::MAX) {
            self.before_write(handle, edge)?;
        }
        if first >= last {
            return Ok(());
        }
        let whole = first / CHUNK..last / CHUNK;
        handle.unsettled.lock().chunks.retain(|chunk, _| !whole.contains(&u64::from(*chunk)));
        match self.forget(handle.object, first..last)? {
            0 => Ok(()),
            _ => Ok(nacre_env::blocking(|| self.index.sync(self.index.last_transno()))?),
        }
    }

    /// Deletes the checksums of whole chunks; returns their number. Durable only with a later sync of the
    /// index.
    fn forget(&self, object: Fid, range: Range<u64>) -> Result<usize> {
        let chunk_at = |offset: u64| u32::try_from(offset / CHUNK).unwrap_or(u32::MAX);
        let (from, to) = (key_of(object, chunk_at(range.start)), key_of(object, chunk_at(range.end)));
        let mut forgotten = 0;
        loop {
            let mut batch = Batch::new();
            batch.set_releasing(true);
            let mut count = 0;
            self.index.scan(SUMS, &object.to_key(), Bound::Included(&from), &mut |key, _| {
                if key >= &to[..] || count == DELETED_AT_ONCE {
                    return ControlFlow::Break(());
                }
                batch.delete(SUMS, key);
                count += 1;
                ControlFlow::Continue(())
            })?;
            if count > 0 {
                self.index.commit(&batch)?;
            }
            forgotten += count;
            if count < DELETED_AT_ONCE {
                return Ok(forgotten);
            }
        }
    }

    /// Forgets an object that is to be destroyed; `handle` if it is open.
    pub(super) fn forget_object(&self, object: Fid, handle: Option<&Handle>) -> Result<()> {
        self.state.lock().waiting.remove(&object);
        // No thread may be about to put a record.
        let _alone = handle.map(Handle::alone);
        handle.iter().for_each(|handle| handle.unsettled.lock().chunks.clear());
        self.forget(object, 0..u64::MAX).map(drop)
    }

    /// Records the checksums of data written before the call; `sync` makes the object durable.
    pub(super) fn settle(&self, handle: &Handle, sync: impl FnOnce() -> Result<()>) -> Result<()> {
        let seen: Vec<(u32, u64)> = {
            // The lock waits for writes in progress.
            let _alone = handle.alone();
            handle.unsettled.lock().chunks.iter().map(|(chunk, state)| (*chunk, state.last_write)).collect()
        };
        sync()?;
        for some in seen.chunks(SETTLED_AT_ONCE) {
            let _alone = handle.alone();
            if handle.is_destroyed() {
                break;
            }
            let mut unsettled = handle.unsettled.lock();
            let mut batch = Batch::new();
            let is_same = |(chunk, last): &&(u32, u64)| {
                unsettled.chunks.get(chunk).is_some_and(|state| state.last_write == *last)
            };
            let quiet: Vec<u32> = some.iter().filter(is_same).map(|(chunk, _)| *chunk).collect();
            for chunk in &quiet {
                let Some(state) = unsettled.chunks.get(chunk) else { continue };
                let record = nacre_env::blocking(|| summed(handle, *chunk, state))?;
                if !record.is_empty() {
                    batch.put(SUMS, &key_of(handle.object, *chunk), &record.encode());
                }
            }
            if !batch.is_empty() {
                self.index.commit(&batch)?;
            }
            unsettled.chunks.retain(|chunk, _| !quiet.contains(chunk));
        }
        let mut unsettled = handle.unsettled.lock();
        unsettled.since = (!unsettled.chunks.is_empty() && !handle.is_destroyed()).then(Instant::now);
        if unsettled.since.is_none() {
            self.state.lock().waiting.remove(&handle.object);
        }
        Ok(())
    }

    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let book = self.clone();
        nacre_env::thread::Builder::new().name("ost-sums".into()).spawn(move || book.run())
    }

    /// Stops the thread, which settles all chunks first.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopping = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            let is_last = {
                let mut state = self.state.lock();
                if !state.is_stopping && state.waiting.len() < WAITING_MAX {
                    self.changed.wait_for(&mut state, self.age / 2);
                }
                state.is_stopping
            };
            self.settle_older_than(if is_last { Duration::ZERO } else { self.age });
            if is_last {
                self.state.lock().waiting.clear();
                return;
            }
        }
    }

    /// Settles objects whose first unsettled write is at least this old; all if there are too many.
    pub(super) fn settle_older_than(&self, age: Duration) {
        let waiting: Vec<Arc<Handle>> = self.state.lock().waiting.values().cloned().collect();
        let is_all = waiting.len() >= WAITING_MAX;
        for handle in waiting {
            let since = handle.unsettled.lock().since;
            if !is_all && since.is_some_and(|since| since.elapsed() < age) {
                continue;
            }
            let sync = || {
                let synced = nacre_env::blocking(|| handle.file.sync_data());
                synced.map_err(|error| ObjectError::io("sync", handle.object, error))
            };
            if let Err(error) = self.settle(&handle, sync) {
                log::warn!("checksums of object {} are not kept: {error}", handle.object);
                handle.unsettled.lock().since = None;
                self.state.lock().waiting.remove(&handle.object);
            }
        }
    }
}

/// Returns the record of a chunk whose data is in the file.
fn summed(handle: &Handle, chunk: u32, state: &Chunk) -> Result<SumsRecord> {
    let mut record = state.before.clone();
    let mut block_bytes = [0; SUM_BLOCK as usize];
    for block in (0..SUMS_MAX).filter(|block| state.is_written(*block)) {
        let at = u64::from(chunk) * CHUNK + block as u64 * SUM_BLOCK;
        block_bytes.fill(0);
        let read = handle.file.read_full(at, &mut block_bytes);
        let read = read.map_err(|error| ObjectError::io("read", handle.object, error))?;
        if read > 0 {
            record.set(block, sum_of(&block_bytes));
        }
    }
    Ok(record)
}
