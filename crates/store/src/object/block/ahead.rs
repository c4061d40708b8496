//! Read-ahead for streams that wait for each read.
//!
//! The medium is idle while such a reader compares checksums and returns with the next read. So the store
//! begins the next read in advance, into memory of its own, and serves the reader from there. A reader with
//! several reads under way keeps the medium busy itself, and gets no read-ahead.
//!
//! Data read ahead is never older than the object: a *window* records the object's last change when it was
//! planned, and is discarded if there was a later one. While there is none the object owns the blocks that
//! the window was read from, so no other write goes there. Checksums are compared when data is copied out; if
//! one does not match, or the medium failed, the window is discarded and the blocks are read again in the
//! usual way, which reports the error.

use super::device::{BLOCK, BlockDevice, FETCH_BYTES, FETCH_PARTS, Fetch};
use super::medium::block_crc;
use super::objects::{Object, Objects, State};
use crate::meta::TransNo;
use crate::object::{Result, transfers};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_ondisk::block::{Inline, MAP_BLOCKS, Place};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK_LEN: usize = BLOCK as usize;
/// Smaller reads do not count as streams.
const READ_MIN: usize = 128 << 10;
/// Larger reads overlap checksums with transfers on their own.
const READ_MAX: usize = FETCH_BYTES;
/// Maximum pieces of a window on the device; more scattered blocks are read on demand.
const RANGES_MAX: usize = 8;
/// With more large reads under way than this, the medium is busy anyway.
const READS_MAX: usize = 4;
/// A stream without reads for this long may lose its memory to another one.
const STALE: Duration = Duration::from_millis(100);
/// A stream without reads for this long releases its memory.
const IDLE: Duration = Duration::from_secs(5);

/// Counters of read-ahead; sums since the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReadAheadStats {
    /// Windows that were begun.
    pub begun: u64,
    /// Windows that a reader used.
    pub used: u64,
    /// Bytes of memory in use at this moment.
    pub memory_bytes: u64,
}

/// Blocks of an object that were read or are being read.
struct Window {
    /// First block.
    first: u64,
    /// The object's last change when the window was planned.
    transno: TransNo,
    /// Their ranges on the device: offset and length in bytes.
    ranges: Vec<(u64, usize)>,
    crcs: Vec<u32>,
}

/// A reader that continues where its last read ended.
struct Stream {
    object: Arc<Object>,
    fetch: Box<dyn Fetch>,
    windows: [Option<Window>; FETCH_PARTS],
    /// Part that is read next.
    turn: usize,
    /// Block with which the next read begins.
    next: u64,
    /// Block after the last window.
    planned: u64,
    /// Consecutive windows that the reader used.
    hits: u32,
    used: Instant,
}

impl Stream {
    fn windows(&self) -> usize {
        self.windows.iter().flatten().count()
    }
}

#[derive(Default)]
struct Table {
    /// Streams without a read in progress, the one idle longest first.
    streams: Vec<Stream>,
    spare: Vec<Box<dyn Fetch>>,
    /// Number of memories allocated.
    made: usize,
}

/// See the [module documentation](self).
pub(super) struct Ahead {
    table: Mutex<Table>,
    /// Maximum number of memories.
    max: AtomicUsize,
    /// Large reads under way.
    reading: AtomicUsize,
    begun: AtomicU64,
    used: AtomicU64,
}

/// A large read in progress.
struct Reading<'a> {
    all: &'a AtomicUsize,
    of_object: &'a AtomicUsize,
    /// The reader waits for each read: few other large reads of the object and of others are in progress.
    is_waited_for: bool,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
        self.of_object.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Converts bytes to a number of memories.
fn memories(bytes: u64) -> usize {
    usize::try_from(bytes / (FETCH_PARTS * FETCH_BYTES) as u64).unwrap_or(usize::MAX)
}

impl Ahead {
    /// Creates the read-ahead with at most this much memory.
    pub(super) fn new(max_bytes: u64) -> Ahead {
        Ahead {
            table: Mutex::default(),
            max: AtomicUsize::new(memories(max_bytes)),
            reading: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
            used: AtomicU64::new(0),
        }
    }

    /// Whether a read may belong to a stream.
    fn concerns(&self, offset: u64, len: usize) -> bool {
        self.max.load(Ordering::Relaxed) > 0
            && (READ_MIN..=READ_MAX).contains(&len)
            && offset.is_multiple_of(BLOCK)
    }

    fn enter<'a>(&'a self, object: &'a Object) -> Reading<'a> {
        let all = self.reading.fetch_add(1, Ordering::Relaxed);
        let of_object = object.reading.fetch_add(1, Ordering::Relaxed);
        let is_waited_for = of_object == 0 && all < READS_MAX;
        Reading { all: &self.reading, of_object: &object.reading, is_waited_for }
    }

    /// Takes the stream that continues at this block.
    fn take(&self, object: &Arc<Object>, block: u64) -> Option<Stream> {
        let mut table = self.table.lock();
        let is_it = |stream: &Stream| stream.next == block && Arc::ptr_eq(&stream.object, object);
        let at = table.streams.iter().position(is_it)?;
        Some(table.streams.remove(at))
    }

    fn put_back(&self, stream: Stream) {
        if stream.windows() > 0 {
            self.table.lock().streams.push(Stream { used: Instant::now(), ..stream });
        } else {
            // At the end of the object, for example.
            self.table.lock().spare.push(stream.fetch);
        }
    }

    /// Returns memory for a stream, if there is any left.
    fn memory(&self, device: &dyn BlockDevice) -> Option<Box<dyn Fetch>> {
        let mut table = self.table.lock();
        if let Some(fetch) = table.spare.pop() {
            return Some(fetch);
        }
        if table.streams.first().is_some_and(|stream| stream.used.elapsed() >= STALE) {
            return Some(table.streams.remove(0).fetch);
        }
        if table.made >= self.max.load(Ordering::Relaxed) {
            return None;
        }
        table.made += 1;
        drop(table);
        let made = nacre_env::blocking(|| device.fetcher());
        if made.is_none() {
            self.table.lock().made -= 1;
        }
        made
    }

    /// Releases the memory of streams without reads for `idle`.
    fn close_idle_for(&self, idle: Duration) {
        let mut table = self.table.lock();
        let kept = table.streams.iter().position(|stream| stream.used.elapsed() < idle);
        let kept = kept.unwrap_or(table.streams.len());
        let closed: Vec<Stream> = table.streams.drain(..kept).collect();
        let spare = std::mem::take(&mut table.spare);
        table.made -= closed.len() + spare.len();
        // Reads in progress are awaited, but not with the table locked.
        drop(table);
    }

    pub(super) fn close_idle(&self) {
        self.close_idle_for(IDLE);
    }

    /// Discards all streams.
    pub(super) fn close(&self) {
        self.close_idle_for(Duration::ZERO);
    }

    /// Sets the memory in bytes for read-ahead of streams, 2 MiB each; 0 for none.
    pub(super) fn set_max(&self, bytes: u64) {
        self.max.store(memories(bytes), Ordering::Relaxed);
        self.close();
    }

    /// Returns the memory for read-ahead, in bytes.
    pub(super) fn max(&self) -> u64 {
        (self.max.load(Ordering::Relaxed) as u64).saturating_mul((FETCH_PARTS * FETCH_BYTES) as u64)
    }

    /// Returns the counters.
    pub(super) fn stats(&self) -> ReadAheadStats {
        let memory = self.table.lock().made * FETCH_PARTS * FETCH_BYTES;
        ReadAheadStats {
            begun: self.begun.load(Ordering::Relaxed),
            used: self.used.load(Ordering::Relaxed),
            memory_bytes: memory as u64,
        }
    }

    /// Reads into `buffer` from `offset`, from a window if there is one; returns the number of bytes.
    pub(super) fn read(
        &self,
        objects: &Objects,
        object: &Arc<Object>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let state = object.state.read();
        if self.concerns(offset, buffer.len()) {
            return self.read_stream(objects, object, &state, offset, buffer);
        }
        objects.read_locked(object, &state, offset, buffer)
    }

    /// Reads as [`Objects::read_locked`], for a read that may belong to a stream: [`Ahead::concerns`].
    fn read_stream(
        &self,
        objects: &Objects,
        object: &Arc<Object>,
        state: &State,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        let size = state
            .head
            .as_ref()
            .filter(|head| !matches!(head.inline, Inline::All(_)))
            .map_or(0, |head| head.size);
        let len = size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        if len < READ_MIN {
            return objects.read_locked(object, state, offset, buffer);
        }
        let reading = self.enter(object);
        let is_next = object.read_end.swap(offset + buffer.len() as u64, Ordering::Relaxed) == offset;
        let first = offset / BLOCK;
        let mut stream = self.take(object, first);
        let (whole, tail) = buffer[..len].split_at_mut(len / BLOCK_LEN * BLOCK_LEN);
        let is_there = stream.as_mut().is_some_and(|stream| self.take_window(stream, state, whole));
        let read = match is_there {
            false => objects.read_locked(object, state, offset, &mut buffer[..len]),
            true if tail.is_empty() => Ok(len),
            true => objects.read_locked(object, state, offset + whole.len() as u64, tail).map(|_| len),
        };
        let goes_on = read.is_ok() && reading.is_waited_for && len == buffer.len();
        if stream.is_none() && is_next && goes_on {
            stream = self.new_stream(objects, object);
        }
        if let Some(mut stream) = stream {
            stream.next = first + (len / BLOCK_LEN) as u64;
            if !is_there {
                // Reads still under way are awaited when the memory is needed.
                stream.windows = [const { None }; FETCH_PARTS];
                stream.hits = 0;
            }
            if goes_on {
                self.go_on(objects, &mut stream, state, size / BLOCK, len / BLOCK_LEN);
            }
            self.put_back(stream);
        }
        read
    }

    fn new_stream(&self, objects: &Objects, object: &Arc<Object>) -> Option<Stream> {
        if may_not_begin(objects) {
            return None;
        }
        Some(Stream {
            object: object.clone(),
            fetch: self.memory(objects.volume().medium().device())?,
            windows: [const { None }; FETCH_PARTS],
            turn: 0,
            next: 0,
            planned: 0,
            hits: 0,
            used: Instant::now(),
        })
    }

    /// Fills `buffer` from the next window; false if it cannot be used.
    fn take_window(&self, stream: &mut Stream, state: &State, buffer: &mut [u8]) -> bool {
        let part = stream.turn;
        let Some(window) = stream.windows[part].take() else { return false };
        let is_right = window.first == stream.next
            && window.transno == state.transno
            && window.crcs.len() * BLOCK_LEN == buffer.len();
        if !is_right {
            return false;
        }
        let fetch = &mut *stream.fetch;
        let there = match fetch.is_there(part) {
            true => fetch.finish(part),
            false => nacre_env::blocking(move || fetch.finish(part)),
        };
        // The usual read reports the error.
        let Ok(bytes) = there else { return false };
        let blocks = bytes.chunks(BLOCK_LEN).zip(buffer.chunks_mut(BLOCK_LEN)).zip(&window.crcs);
        for ((from, to), crc) in blocks {
            if block_crc(from) != *crc {
                return false;
            }
            to.copy_from_slice(from);
        }
        transfers::note_reads(window.ranges.into_iter());
        self.used.fetch_add(1, Ordering::Relaxed);
        stream.turn = (part + 1) % FETCH_PARTS;
        stream.hits += 1;
        true
    }

    /// Begins windows of `blocks` blocks, up to block `end` of the object.
    fn go_on(&self, objects: &Objects, stream: &mut Stream, state: &State, end: u64, blocks: usize) {
        if may_not_begin(objects) {
            return;
        }
        if stream.windows() == 0 {
            stream.planned = stream.next;
        }
        // A second one as soon as a window was used: the first is checked while the second is under way.
        let depth = if stream.hits == 0 { 1 } else { FETCH_PARTS };
        while stream.windows() < depth && stream.planned < end {
            let part = (stream.turn + stream.windows()) % FETCH_PARTS;
            let blocks = end.saturating_sub(stream.planned).min(blocks as u64);
            let Some(window) = plan_window(objects, &stream.object, state, stream.planned, blocks) else {
                return;
            };
            let fetch = &mut *stream.fetch;
            match fetch.is_there(part) {
                true => fetch.begin(part, &window.ranges),
                // A discarded window may still be under way.
                false => nacre_env::blocking(|| fetch.begin(part, &window.ranges)),
            }
            self.begun.fetch_add(1, Ordering::Relaxed);
            stream.windows[part] = Some(window);
            stream.planned += blocks;
        }
    }
}

/// Whether read-ahead is not allowed at this moment.
fn may_not_begin(objects: &Objects) -> bool {
    objects.volume().medium().device().is_simulating() || objects.volume().is_closed()
}

/// Plans a window of blocks that all have data, in few pieces.
fn plan_window(objects: &Objects, object: &Object, state: &State, first: u64, blocks: u64) -> Option<Window> {
    let crcs = Vec::with_capacity(blocks as usize);
    let mut window = Window { first, transno: state.transno, ranges: Vec::new(), crcs };
    let mut block = first;
    while block < first + blocks {
        let index = (block % MAP_BLOCKS as u64) as usize;
        let count = (MAP_BLOCKS - index).min((first + blocks - block) as usize);
        let is_data = objects.with_map(object, block / MAP_BLOCKS as u64, |map| {
            map.places[index..index + count].iter().all(|place| window.push(*place))
        });
        if !is_data.unwrap_or(false) || window.ranges.len() > RANGES_MAX {
            return None;
        }
        block += count as u64;
    }
    Some(window)
}

impl Window {
    /// Adds a block; false if it has no data.
    fn push(&mut self, place: Place) -> bool {
        let Place::Data(block, crc) = place else { return false };
        self.crcs.push(crc);
        match self.ranges.last_mut() {
            Some((offset, len)) if *offset + *len as u64 == block * BLOCK => *len += BLOCK_LEN,
            _ => self.ranges.push((block * BLOCK, BLOCK_LEN)),
        }
        true
    }
}
