//! A ring of recent events: operations that have ended, long waits, lock messages and lines of the log.
//!
//! The ring consists of shards, which threads are distributed over, so that they rarely contend. An event is a
//! copy under an uncontended mutex.

use super::{Cause, Operation, THREADS};
use crate::clock::{Instant, wall};
use crate::sim;
use crate::sync::Mutex;
use nacre_types::{ClientUuid, Status};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

/// Shortest wait that is an event.
pub const WAIT_MIN: Duration = Duration::from_millis(1);
/// Memory of the ring in MiB: at the start, and at most.
pub const MB_DEFAULT: usize = 1;
/// See [`MB_DEFAULT`].
pub const MB_MAX: usize = 256;
/// Longest text of an event in bytes.
const TEXT_MAX: usize = 400;
const SHARDS: usize = 8;
/// Texts are counted as part of an entry: few events have one.
const ENTRY_BYTES: usize = size_of::<Entry>();

/// An event.
#[derive(Clone, Debug)]
pub enum What {
    /// An operation has ended.
    Ended {
        /// Its description.
        operation: Operation,
        /// Result.
        status: Status,
        /// Duration.
        took: Duration,
    },
    /// A wait has ended.
    Waited {
        /// What was waited for.
        cause: Cause,
        /// Duration.
        took: Duration,
    },
    /// A message about a lock.
    Lock {
        /// Kind of the message.
        what: &'static str,
        /// Client.
        client: ClientUuid,
        /// Handle of the lock.
        handle: u64,
    },
    /// A line of the log.
    Text(Box<str>),
}

/// An event, when and on which thread.
#[derive(Clone, Debug)]
pub struct Event {
    /// Time of the event.
    pub at: SystemTime,
    /// The kernel's id of the thread, 0 if it has ended.
    pub tid: i32,
    /// The event.
    pub what: What,
}

#[derive(Clone)]
struct Entry {
    at: Instant,
    thread: u32,
    what: What,
}

struct Shard {
    entries: Vec<Entry>,
    next: usize,
}

/// On cache lines of its own, so that threads do not contend for them.
#[repr(align(128))]
struct Place(Mutex<Shard>);

static RING: [Place; SHARDS] = [const { Place(Mutex::new(Shard { entries: Vec::new(), next: 0 })) }; SHARDS];
static CAPACITY: AtomicUsize = AtomicUsize::new(MB_DEFAULT * (1 << 20) / ENTRY_BYTES / SHARDS);

/// Returns the memory of the ring in MiB.
pub fn mb() -> usize {
    (CAPACITY.load(Ordering::Relaxed) * SHARDS * ENTRY_BYTES).div_ceil(1 << 20)
}

/// Sets the memory of the ring, from 1 to [`MB_MAX`] MiB, and empties it.
pub fn set_mb(mb: usize) {
    let entries = mb.clamp(1, MB_MAX) * (1 << 20) / ENTRY_BYTES / SHARDS;
    CAPACITY.store(entries, Ordering::Relaxed);
    clear();
}

/// Removes all events and frees their memory.
pub fn clear() {
    for Place(shard) in &RING {
        *shard.lock() = Shard { entries: Vec::new(), next: 0 };
    }
}

/// Adds an event of this thread.
pub fn note(what: What) {
    if let Some(thread) = super::with_own(|thread, _| thread.number) {
        note_at(Instant::now(), thread, what);
    }
}

/// Adds a text, of which at most some hundred bytes are kept.
pub fn note_text(text: &str) {
    if sim::is_any() {
        return;
    }
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    note(What::Text(text[..end].into()));
}

/// Adds an event of a thread.
#[inline]
pub(super) fn note_at(at: Instant, thread: u32, what: What) {
    let capacity = CAPACITY.load(Ordering::Relaxed);
    let mut shard = RING[thread as usize % SHARDS].0.lock();
    let (entry, next) = (Entry { at, thread, what }, shard.next);
    if shard.entries.len() < capacity {
        shard.entries.push(entry);
    } else if let Some(place) = shard.entries.get_mut(next) {
        *place = entry;
        shard.next = (next + 1) % capacity.max(1);
    }
}

/// Returns the events, the oldest first.
pub fn all() -> Vec<Event> {
    let tids: Vec<(u32, i32)> = THREADS.lock().iter().map(|thread| (thread.number, thread.tid)).collect();
    let (now, wall) = (Instant::now(), wall());
    let mut entries: Vec<Entry> = Vec::new();
    for Place(shard) in &RING {
        entries.extend_from_slice(&shard.lock().entries);
    }
    entries.sort_by_key(|entry| entry.at);
    let tid_of = |number| tids.iter().find(|(known, _)| *known == number).map_or(0, |(_, tid)| *tid);
    let time_of = |at| wall.checked_sub(now.saturating_duration_since(at)).unwrap_or(wall);
    entries
        .into_iter()
        .map(|entry| Event { at: time_of(entry.at), tid: tid_of(entry.thread), what: entry.what })
        .collect()
}
