//! The log on the flash device: a ring of batches.
//!
//! One batch is written at a time, with all items that threads bring meanwhile (group commit): so everything
//! before a valid batch is valid itself, as long as the process lives or the device was flushed. Positions
//! count blocks since the creation of the cache and never recur; the place on the device is the position
//! modulo the size of the ring.

use super::pieces::{Lost, Record};
use super::walk::{BATCH_BLOCKS, End, Found, MARK_EVERY, on_device, walk};
use crate::object::block::device::{AlignedBuffer, BLOCK, BlockDevice, ReadOp, WriteOp};
use nacre_env::sync::{Condvar, Mutex};
use nacre_ondisk::nxd::{
    NXD_ENTRIES_MAX, NXD_SUPERBLOCK_LEN, NxdBatch, NxdEntry, NxdError, NxdSuperblock, data_crc,
};
use nacre_types::{Fid, Timestamp};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks reserved for batches of forget entries only: without those no change would be possible.
const CONTROL_ROOM: u64 = 32;

/// An item for the log.
pub(super) enum Item {
    Data { object: Fid, offset: u64, mtime: Timestamp, bytes: Vec<u8> },
    Forget { object: Fid, offset: u64, end: u64 },
}

/// Reason why nothing was appended.
#[derive(Debug)]
pub(super) enum AppendError {
    /// There is no space; nothing was done.
    Full,
    /// The device returned an error: its kind, and errno if there is one.
    Io(io::ErrorKind, Option<i32>),
}

impl AppendError {
    pub fn io(&self) -> io::Error {
        match self {
            AppendError::Full => io::ErrorKind::StorageFull.into(),
            AppendError::Io(_, Some(code)) => io::Error::from_raw_os_error(*code),
            AppendError::Io(kind, None) => (*kind).into(),
        }
    }
}

type Appended = Result<Vec<Record>, AppendError>;

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Vec<Item>)>,
    done: HashMap<u64, Appended>,
    next: u64,
    is_busy: bool,
}

struct Batch {
    /// Bytes that only the log has.
    live: u64,
}

struct State {
    /// Position at which the next batch begins.
    head: u64,
    /// Position at which the oldest batch still needed begins.
    tail: u64,
    /// Position before which no reader uses the log and to which the superblock does not point: the space
    /// before it may be overwritten.
    reusable: u64,
    /// Blocks promised to batches of forget entries only.
    promised: u64,
    batches: BTreeMap<u64, Batch>,
    superblock: NxdSuperblock,
}

/// See the [module documentation](self).
pub(super) struct Log {
    device: Arc<dyn BlockDevice>,
    ring: u64,
    queue: Mutex<Queue>,
    written: Condvar,
    state: Mutex<State>,
    /// Signalled when space was freed.
    room: Condvar,
    /// Position up to which the log is durable; locked during a flush.
    flushed: Mutex<u64>,
    flushed_seen: AtomicU64,
    /// A batch failed and may be at the head nevertheless.
    is_torn: AtomicBool,
    /// Serialises changes of the superblock.
    superblock: Mutex<()>,
    /// Flushes that failed and that no caller had requested.
    pub failures: AtomicU64,
    pub batches: AtomicU64,
    pub flushes: AtomicU64,
}

/// Blocks promised by [`Log::promise`]; returned when dropped.
pub(super) struct Promise<'a> {
    log: &'a Log,
    blocks: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.log.state.lock().promised -= self.blocks;
    }
}

/// Returns the place of an item's data after `end` bytes of a batch: small items share blocks, but none
/// touches more than it needs.
fn place(end: u64, len: u64) -> u64 {
    let left = BLOCK - end % BLOCK;
    if end.is_multiple_of(BLOCK) || len <= left { end } else { end + left }
}

/// Returns the bytes of a batch with these items after `end`.
fn end_of(end: u64, items: &[Item]) -> u64 {
    items.iter().fold(end, |end, item| match item {
        Item::Data { bytes, .. } => place(end, bytes.len() as u64) + bytes.len() as u64,
        Item::Forget { .. } => end,
    })
}

/// Takes items that fit into one batch from the queue.
fn take_group(waiting: &mut VecDeque<(u64, Vec<Item>)>) -> Vec<(u64, Vec<Item>)> {
    let (mut group, mut count, mut end) = (Vec::new(), 0, BLOCK);
    while let Some((_, items)) = waiting.front() {
        let next = end_of(end, items);
        if !group.is_empty() && (count + items.len() > NXD_ENTRIES_MAX || next > BATCH_BLOCKS * BLOCK) {
            break;
        }
        (count, end) = (count + items.len(), next);
        group.extend(waiting.pop_front());
    }
    group
}

type FoundSuperblock = Result<NxdSuperblock, NxdError>;

/// Reads both copies of the superblock. A copy that the device fails to read counts as damaged if the other
/// one is valid.
///
/// # Errors
/// Those of the device, if it leaves no copy.
pub(super) fn superblock_copies(device: &dyn BlockDevice) -> io::Result<[FoundSuperblock; 2]> {
    let decode = |offset| -> io::Result<_> {
        let mut block = AlignedBuffer::zeroed(BLOCK as usize);
        device.read(&mut [ReadOp { offset, buffer: &mut block }])?;
        Ok(NxdSuperblock::decode(&block))
    };
    match (decode(0), decode(device.size() - BLOCK)) {
        (Ok(first), Ok(last)) => Ok([first, last]),
        (Ok(Ok(first)), Err(_)) => Ok([Ok(first), Err(NxdError::Damaged)]),
        (Err(_), Ok(Ok(last))) => Ok([Err(NxdError::Damaged), Ok(last)]),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Reads the superblock: the newer of its valid copies.
pub(super) fn read_superblock(device: &dyn BlockDevice) -> io::Result<FoundSuperblock> {
    Ok(match superblock_copies(device)?.into() {
        (Ok(first), Ok(last)) if last.counter > first.counter && last.cache == first.cache => Ok(last),
        (Ok(first), _) => Ok(first),
        (Err(_), Ok(last)) if last.size == device.size() => Ok(last),
        (Err(error), _) => Err(error),
    })
}

/// Writes both copies of a superblock; it is durable with the first.
pub(super) fn write_superblock(device: &dyn BlockDevice, superblock: &NxdSuperblock) -> io::Result<()> {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..NXD_SUPERBLOCK_LEN].copy_from_slice(&superblock.encode());
    device.write(&[WriteOp { offset: 0, data: &block }])?;
    device.flush()?;
    device.write(&[WriteOp { offset: superblock.size - BLOCK, data: &block }])
}

impl Log {
    pub(super) fn device(&self) -> &dyn BlockDevice {
        &*self.device
    }

    /// Creates the log of a superblock, with unknown content before [`Log::read_back`].
    pub fn new(device: Arc<dyn BlockDevice>, superblock: NxdSuperblock) -> Log {
        let tail = superblock.tail;
        let state =
            State { head: tail, tail, reusable: tail, promised: 0, batches: BTreeMap::new(), superblock };
        Log {
            device,
            ring: superblock.size / BLOCK - 2,
            queue: Mutex::default(),
            written: Condvar::new(),
            state: Mutex::new(state),
            room: Condvar::new(),
            flushed: Mutex::new(0),
            flushed_seen: AtomicU64::new(0),
            is_torn: AtomicBool::new(false),
            superblock: Mutex::default(),
            failures: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
        }
    }

    /// Reads the log; `found` receives everything in it, in order. Changes nothing on the device.
    pub fn read_back(&self, found: &mut dyn FnMut(&Found<'_>)) -> io::Result<End> {
        let mut state = self.state.lock();
        let superblock = state.superblock;
        let end = walk(&*self.device, &superblock, &mut |part| {
            if let Found::Batch { batch, .. } = &part {
                let live = batch.entries.iter().map(|entry| match entry {
                    NxdEntry::Data { len, .. } => u64::from(*len),
                    NxdEntry::Forget { .. } => 0,
                });
                state.batches.insert(batch.position, Batch { live: live.sum() });
            }
            found(&part);
        })?;
        state.head = end.position;
        Ok(end)
    }

    /// Makes the content read back durable, and begins a new epoch: from now on nothing that an earlier run
    /// wrote after the end is taken for a part of the log.
    pub fn begin(&self) -> io::Result<()> {
        // The superblock must not record anything as durable before it is.
        self.device.flush()?;
        let head = self.state.lock().head;
        *self.flushed.lock() = head;
        self.flushed_seen.store(head, Ordering::Release);
        self.change_superblock(|superblock| superblock.epoch += 1)
    }

    /// Rewrites the superblock with a change, and with the durable position.
    fn change_superblock(&self, change: impl FnOnce(&mut NxdSuperblock)) -> io::Result<()> {
        let _one_at_a_time = self.superblock.lock();
        let mut next = self.state.lock().superblock;
        next.counter += 1;
        next.durable = next.durable.max(self.flushed_seen.load(Ordering::Acquire));
        change(&mut next);
        write_superblock(&*self.device, &next)?;
        self.state.lock().superblock = next;
        Ok(())
    }

    /// Records the durable position in the superblock, if it is newer: so damage before it is distinguished
    /// from a regular end.
    pub fn note_durable(&self) -> io::Result<()> {
        let said = self.state.lock().superblock.durable;
        if self.flushed_seen.load(Ordering::Acquire) <= said {
            return Ok(());
        }
        self.change_superblock(|_| {})
    }

    /// Records it before the log gets longer than the range that is searched after its end. A failure does
    /// not prevent the batch.
    fn note_before(&self, end: u64) {
        if end <= self.state.lock().superblock.durable.saturating_add(MARK_EVERY) {
            return;
        }
        if let Err(error) = self.flush().and_then(|()| self.note_durable()) {
            self.failures.fetch_add(1, Ordering::Relaxed);
            log::warn!("{}: could not be flushed: {error}", self.device.info().name);
        }
    }

    /// Reads the data of records and compares its checksums; `InvalidData` for damage.
    pub fn read(&self, records: &[Record]) -> io::Result<Vec<Vec<u8>>> {
        let aligned = |record: &Record| {
            let start = record.at / BLOCK * BLOCK;
            (start, (record.at + u64::from(record.len)).next_multiple_of(BLOCK) - start)
        };
        let mut buffers: Vec<AlignedBuffer> =
            records.iter().map(|record| AlignedBuffer::zeroed(aligned(record).1 as usize)).collect();
        let mut ops = Vec::with_capacity(records.len());
        for (record, buffer) in records.iter().zip(&mut buffers) {
            let (start, len) = aligned(record);
            let [(first, head_len), (second, _)] = on_device(self.ring, start, len);
            let (head, rest) = buffer.split_at_mut(head_len as usize);
            ops.push(ReadOp { offset: first, buffer: head });
            if !rest.is_empty() {
                ops.push(ReadOp { offset: second, buffer: rest });
            }
        }
        nacre_env::blocking(|| self.device.read(&mut ops))?;
        let cut = |(record, buffer): (&Record, &AlignedBuffer)| {
            let skip = (record.at % BLOCK) as usize;
            let bytes = buffer[skip..skip + record.len as usize].to_vec();
            if data_crc(&bytes) == record.crc { Ok(bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
        };
        records.iter().zip(&buffers).map(cut).collect()
    }

    /// Promises space for `blocks` batches of forget entries; `None` if there is none at this moment.
    pub fn promise(&self, blocks: u64) -> Option<Promise<'_>> {
        let mut state = self.state.lock();
        let free = self.ring - (state.head - state.reusable);
        if free < state.promised + blocks {
            return None;
        }
        state.promised += blocks;
        Some(Promise { log: self, blocks })
    }

    /// Writes items, in this order, so that they survive the end of this process. Data is refused when the
    /// log is full; other items need a [`Log::promise`]. No more than [`NXD_ENTRIES_MAX`] items.
    pub fn append(&self, items: Vec<Item>) -> Appended {
        nacre_env::blocking(|| {
            let mut queue = self.queue.lock();
            let ticket = queue.next;
            queue.next += 1;
            queue.waiting.push_back((ticket, items));
            loop {
                if let Some(result) = queue.done.remove(&ticket) {
                    return result;
                }
                if queue.is_busy {
                    self.written.wait(&mut queue);
                    continue;
                }
                queue.is_busy = true;
                let group = take_group(&mut queue.waiting);
                drop(queue);
                let results = self.write_group(group);
                queue = self.queue.lock();
                queue.is_busy = false;
                queue.done.extend(results);
                self.written.notify_all();
            }
        })
    }

    /// Writes a batch; data that does not fit is left out.
    fn write_group(&self, group: Vec<(u64, Vec<Item>)>) -> Vec<(u64, Appended)> {
        let (position, free, promised, superblock) = {
            let state = self.state.lock();
            let free = self.ring - (state.head - state.reusable);
            (state.head, free, state.promised, state.superblock)
        };
        let room = free.saturating_sub(promised + CONTROL_ROOM.min(self.ring / 4)) * BLOCK;
        let (mut results, mut taken, mut end) = (Vec::new(), Vec::new(), BLOCK);
        for (ticket, items) in group {
            let next = end_of(end, &items);
            if next > end && next.next_multiple_of(BLOCK) > room {
                results.push((ticket, Err(AppendError::Full)));
            } else {
                end = next;
                taken.push((ticket, items));
            }
        }
        if taken.is_empty() {
            return results;
        }
        let blocks = end.div_ceil(BLOCK);
        self.note_before(position + blocks);
        let durable = self.flushed_seen.load(Ordering::Acquire);
        let (buffer, records, live) = build(&taken, position, blocks, durable, &superblock);
        if let Err(error) = self.write_batch(position, &buffer) {
            log::error!("{}: the log of the cache cannot be written: {error}", self.device.info().name);
            let fail = |(ticket, _)| (ticket, Err(AppendError::Io(error.kind(), error.raw_os_error())));
            results.extend(taken.into_iter().map(fail));
            return results;
        }
        let mut state = self.state.lock();
        state.batches.insert(position, Batch { live });
        state.head = position + blocks;
        self.batches.fetch_add(1, Ordering::Relaxed);
        results.extend(taken.iter().map(|(ticket, _)| *ticket).zip(records.into_iter().map(Ok)));
        results
    }

    fn write_batch(&self, position: u64, buffer: &[u8]) -> io::Result<()> {
        let [(first, len), (second, _)] = on_device(self.ring, position * BLOCK, buffer.len() as u64);
        let (head, rest) = buffer.split_at(len as usize);
        let mut ops = vec![WriteOp { offset: first, data: head }];
        if !rest.is_empty() {
            ops.push(WriteOp { offset: second, data: rest });
        }
        let was_torn = self.is_torn.load(Ordering::SeqCst);
        // A batch that failed here before must not reappear.
        let flush = || if was_torn { self.device.flush() } else { Ok(()) };
        let result = self.device.write(&ops).and_then(|()| flush());
        if was_torn || result.is_err() {
            self.is_torn.store(result.is_err(), Ordering::SeqCst);
        }
        result
    }

    /// Ensures that no batch whose writers received an error is found later.
    pub fn heal(&self) -> io::Result<()> {
        if !self.is_torn.load(Ordering::SeqCst) {
            return Ok(());
        }
        let promise = self.promise(1).ok_or(io::ErrorKind::StorageFull)?;
        let result = self.append(Vec::new()).map(drop).map_err(|error| error.io());
        drop(promise);
        result
    }

    /// Makes all earlier appends durable.
    pub fn flush(&self) -> io::Result<()> {
        let head = self.state.lock().head;
        if self.flushed_seen.load(Ordering::Acquire) >= head {
            return Ok(());
        }
        nacre_env::blocking(|| {
            let mut flushed = self.flushed.lock();
            if *flushed >= head {
                return Ok(());
            }
            let head = self.state.lock().head;
            self.device.flush()?;
            self.flushes.fetch_add(1, Ordering::Relaxed);
            *flushed = head;
            self.flushed_seen.store(head, Ordering::Release);
            Ok(())
        })
    }

    /// Notes that batches lost bytes that only they had.
    pub fn lose(&self, lost: &Lost) {
        let mut state = self.state.lock();
        for (position, bytes) in lost {
            if let Some(batch) = state.batches.get_mut(position) {
                debug_assert!(batch.live >= *bytes);
                batch.live = batch.live.saturating_sub(*bytes);
            }
        }
    }

    /// Moves the tail past all batches that are not needed, durably, and returns it if it moved. The space is
    /// reused after [`Log::release`].
    pub fn move_tail(&self) -> io::Result<Option<u64>> {
        let next = {
            let mut state = self.state.lock();
            while let Some((position, batch)) = state.batches.first_key_value() {
                if batch.live > 0 {
                    break;
                }
                let position = *position;
                state.batches.remove(&position);
            }
            state.tail = state.batches.keys().next().copied().unwrap_or(state.head);
            if state.tail == state.superblock.tail {
                return Ok(None);
            }
            state.tail
        };
        // The data that replaced batches before the new tail must be as durable as they were.
        self.flush()?;
        self.change_superblock(|superblock| superblock.tail = next)?;
        Ok(Some(next))
    }

    /// Releases the space before `position`.
    pub fn release(&self, position: u64) {
        let mut state = self.state.lock();
        state.reusable = state.reusable.max(position);
        self.room.notify_all();
    }

    /// Waits for [`Log::release`], at most until `end`. True if something was released.
    pub fn wait_for_room(&self, seen: u64, end: nacre_env::clock::Instant) -> bool {
        nacre_env::blocking(|| {
            let mut state = self.state.lock();
            while state.reusable <= seen {
                if self.room.wait_until(&mut state, end).timed_out() {
                    return state.reusable > seen;
                }
            }
            true
        })
    }

    /// Returns beginning and end of the log, and its maximum blocks.
    pub fn extent(&self) -> (u64, u64, u64) {
        let state = self.state.lock();
        (state.reusable, state.head, self.ring)
    }

    /// Returns the bytes that only the log has.
    pub fn live_bytes(&self) -> u64 {
        self.state.lock().batches.values().map(|batch| batch.live).sum()
    }
}

/// Builds a batch: returns its bytes, the place of each item, and the number of data bytes.
fn build(
    group: &[(u64, Vec<Item>)],
    position: u64,
    blocks: u64,
    durable: u64,
    superblock: &NxdSuperblock,
) -> (AlignedBuffer, Vec<Vec<Record>>, u64) {
    let mut buffer = AlignedBuffer::zeroed((blocks * BLOCK) as usize);
    let (mut entries, mut all, mut end, mut live) = (Vec::new(), Vec::new(), BLOCK, 0);
    for (_, items) in group {
        let mut records = Vec::new();
        for item in items {
            match item {
                Item::Data { object, offset, mtime, bytes } => {
                    let (at, len) = (place(end, bytes.len() as u64), bytes.len() as u32);
                    end = at + u64::from(len);
                    buffer[at as usize..end as usize].copy_from_slice(bytes);
                    let crc = data_crc(bytes);
                    live += u64::from(len);
                    let (object, offset, mtime) = (*object, *offset, *mtime);
                    entries.push(NxdEntry::Data { object, offset, len, at: at as u32, crc, mtime });
                    records.push(Record { at: position * BLOCK + at, len, crc, offset, batch: position });
                }
                Item::Forget { object, offset, end } => {
                    entries.push(NxdEntry::Forget { object: *object, offset: *offset, end: *end });
                }
            }
        }
        all.push(records);
    }
    let batch = NxdBatch {
        cache: superblock.cache,
        epoch: superblock.epoch,
        position,
        durable,
        blocks: blocks as u32,
        entries,
    };
    buffer[..BLOCK as usize].copy_from_slice(&batch.encode());
    (buffer, all, live)
}
