//! The write-ahead log: two alternating segments, appended under one short lock, made durable by group
//! commit.
//!
//! One segment is *active*. When it is full, or the overlay is, the other becomes active and the old one is
//! *pending*: it must not be reused before the base holds its transactions durably
//! ([`Log::release_pending`]).
//!
//! Appending hands the record to the kernel while the lock is held, so no acknowledged record can follow a
//! record that a killed process left half-written.

use nacre_env::clock::Instant;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nacre_env::fault::{self, Point};
use nacre_env::sync::Mutex;

use super::base::is_no_space;
use super::batch::Batch;
use super::error::{MetaError, Result};
use super::segment::{FIRST_PART, Segment};
use super::spin::spin_then_block;
use super::tail::{LONGEST, Tail};
use super::wal::{
    RECORD_HEADER_LEN, RecordHeader, Records, SEGMENT_HEADER_LEN, SegmentHeader, crc32c, record_len,
};
use crate::group_commit::GroupCommit;

/// Number of segment files of a store.
pub(crate) const SEGMENTS: usize = 2;
/// With fewer bytes than this between flushes, records are written by system calls: with a flush after each
/// record, 6,548 records per second against 2,713 through a mapping
/// (`docs/measurements/2026-11-23-ost-devices.md`).
const BY_CALL_BYTES: usize = 256 << 10;
/// After this many flushes that covered one record each, right after it was written, the next record is
/// written around the page cache.
const ALONE_FLUSHES: u32 = 8;
/// Longest time between a record and its flush that counts as "right after".
const ALONE_WITHIN: Duration = Duration::from_millis(1);
/// A write around the page cache that takes longer delays concurrent readers: the next ones go through the
/// cache again, until a single caller has flushed alone as often as before. An estimate: flash takes a fifth
/// of it.
const DIRECT_WITHIN: Duration = Duration::from_micros(500);

/// The log of an open store.
pub(crate) struct Log {
    /// Empty in a store opened read-only.
    segments: Box<[Segment]>,
    segment_bytes: usize,
    /// Usable bytes of the segment that has fewer of them.
    part_least: AtomicUsize,
    uuid: [u8; 16],
    front: Front,
    /// Newest durable transaction.
    durable: AtomicU64,
    group_commit: GroupCommit,
    latch: Latch,
    pub(crate) syncs: AtomicU64,
}

/// Fields that every commit changes, on cache lines of their own: two that CPUs fetch together, shared with
/// no read-only field.
#[repr(C, align(128))]
struct Front {
    /// Copy of the newest transaction's number, for readers that need nothing else.
    last: AtomicU64,
    state: Mutex<LogState>,
}

/// Fields that an append uses come first.
#[repr(C)]
struct LogState {
    /// Slot that records are appended to; none after a recovery until the base contains the replayed changes.
    active: Option<usize>,
    last_transno: u64,
    commits: u64,
    slots: [Slot; SEGMENTS],
    /// Bytes of the segment that the last flush made durable.
    flushed_bytes: usize,
    /// Bytes of records in segments that were active earlier.
    earlier_bytes: u64,
    tail: Tail,
    /// Time at which the last record was written.
    appended_at: Instant,
    /// Consecutive flushes that covered one record each, just written: a single caller writes, and waits for
    /// each record.
    alone: u32,
    /// Records counted at the last flush.
    flushed_commits: u64,
    salt: u32,
    header: SegmentHeader,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    /// Usable bytes of the segment: the rest is not filled yet.
    part: usize,
    /// Offset after the last record.
    end: usize,
    /// Offset up to which the segment is durable.
    synced: usize,
    /// Contains transactions that the base lacks, and is not active.
    is_pending: bool,
    /// Sequence number of its current use.
    sequence: u64,
}

impl Slot {
    fn record_bytes(&self) -> u64 {
        (self.end - SEGMENT_HEADER_LEN) as u64
    }
}

/// A segment that is to be extended.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    slot: usize,
    part: Range<usize>,
}

impl Growth {
    /// Usable bytes of the segment after the extension.
    pub(crate) fn part(&self) -> usize {
        self.part.end
    }
}

/// Position of an appended batch.
pub(crate) struct Appended {
    pub(crate) transno: u64,
    /// Offset after the record, for the occasional decision whether to freeze.
    pub(crate) end: usize,
    pub(crate) len: usize,
}

/// Records the first failure after which durability cannot be promised.
#[derive(Default)]
pub(crate) struct Latch {
    is_set: AtomicBool,
    cause: Mutex<Option<Arc<str>>>,
}

impl Latch {
    pub(crate) fn set(&self, cause: &dyn std::fmt::Display) -> MetaError {
        let mut slot = self.cause.lock();
        let cause = slot.get_or_insert_with(|| {
            log::error!("metadata store failed: {cause}");
            Arc::from(cause.to_string())
        });
        let error = MetaError::Failed { cause: cause.clone() };
        self.is_set.store(true, Ordering::Release);
        error
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_set() {
            return Ok(());
        }
        let cause = self.cause.lock().clone().expect("the cause is stored before the flag");
        Err(MetaError::Failed { cause })
    }
}

impl Log {
    /// Creates a log whose segments may all hold transactions up to `last_transno`; nothing can be appended
    /// before [`Log::activate`]. Slots that the base does not cover are pending.
    pub(crate) fn new(segments: [Segment; SEGMENTS], uuid: [u8; 16], recovered: &Recovered) -> Self {
        let segment_bytes = segments[0].len();
        Log::with(segments.into(), segment_bytes, uuid, recovered)
    }

    /// Creates a log that accepts no records, for a store opened read-only. Its segments have
    /// `segment_bytes`.
    pub(crate) fn silent(segment_bytes: usize, recovered: &Recovered) -> Self {
        Log::with(Box::default(), segment_bytes, [0; 16], recovered)
    }

    fn with(segments: Box<[Segment]>, segment_bytes: usize, uuid: [u8; 16], recovered: &Recovered) -> Self {
        let slots: [Slot; SEGMENTS] = std::array::from_fn(|i| Slot {
            part: segments.get(i).map_or(segment_bytes, Segment::filled),
            end: recovered.ends[i],
            // Records read back may be in the page cache only: after a crash of the process alone, they were
            // never flushed.
            synced: 0,
            is_pending: recovered.is_pending,
            sequence: recovered.sequences[i],
        });
        let header = SegmentHeader {
            uuid,
            sequence: recovered.sequences.iter().copied().max().unwrap_or(0),
            base_transno: recovered.last_transno,
            durable_transno: recovered.durable_transno,
        };
        Log {
            segments,
            segment_bytes,
            // A smaller part is filled only when a segment is activated.
            part_least: AtomicUsize::new(part_least(&slots).max(FIRST_PART.min(segment_bytes))),
            uuid,
            front: Front {
                last: AtomicU64::new(recovered.last_transno),
                state: Mutex::new(LogState {
                    active: None,
                    last_transno: recovered.last_transno,
                    commits: 0,
                    slots,
                    // No flush has been observed yet.
                    flushed_bytes: usize::MAX,
                    earlier_bytes: 0,
                    tail: Tail::default(),
                    appended_at: Instant::now(),
                    alone: 0,
                    flushed_commits: 0,
                    salt: 0,
                    header,
                }),
            },
            durable: AtomicU64::new(recovered.durable_transno),
            group_commit: GroupCommit::default(),
            latch: Latch::default(),
            syncs: AtomicU64::new(0),
        }
    }

    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Returns the length of the longest body that fits into an empty segment.
    pub(crate) fn body_len_max(&self) -> usize {
        self.part() - SEGMENT_HEADER_LEN - RECORD_HEADER_LEN
    }

    /// Returns the usable bytes of each segment.
    pub(crate) fn part(&self) -> usize {
        self.part_least.load(Ordering::Relaxed)
    }

    /// Returns the segment that is free, if it was full and can be extended.
    pub(crate) fn growth(&self) -> Option<Growth> {
        let state = self.front.state.lock();
        let slot = (0..SEGMENTS).find(|&i| state.active != Some(i) && !state.slots[i].is_pending)?;
        let Slot { part, end, .. } = state.slots[slot];
        let longest = state.slots.iter().map(|slot| slot.part).max().unwrap_or(part);
        let wanted = if end > part / 4 * 3 { longest.max(2 * part) } else { longest };
        let wanted = wanted.min(self.segment_bytes);
        (wanted > part && state.active.is_some()).then_some(Growth { slot, part: part..wanted })
    }

    /// Extends a segment. It may be activated meanwhile.
    ///
    /// # Errors
    /// Those of writing; nothing has changed then.
    pub(crate) fn grow(&self, growth: &Growth) -> std::io::Result<()> {
        self.segments[growth.slot].fill(growth.part.clone())?;
        let mut state = self.front.state.lock();
        state.slots[growth.slot].part = growth.part.end;
        self.part_least.store(part_least(&state.slots), Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn last_transno(&self) -> u64 {
        self.front.last.load(Ordering::Acquire)
    }

    pub(crate) fn durable_transno(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the batches and bytes appended since the store was opened.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let state = self.front.state.lock();
        (state.commits, state.appended_bytes())
    }

    /// Appends a batch, or returns `None`, with nothing changed, if it does not fit into the active segment.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] changes nothing; any other failure sets the latch.
    pub(crate) fn append(&self, batch: &Batch, body_crc: u32, floor: u64) -> Result<Option<Appended>> {
        let len = record_len(batch.bytes.len());
        let mut state = spin_then_block(|| self.front.state.try_lock(), || self.front.state.lock());
        let Some(slot) = state.active else { return Ok(None) };
        let offset = state.slots[slot].end;
        if len > state.slots[slot].part - offset {
            return Ok(None);
        }
        let transno = (state.last_transno + 1).max(floor);
        let header = RecordHeader {
            body_len: batch.bytes.len() as u32,
            transno,
            durable_transno: self.durable.load(Ordering::Relaxed),
            sequence: state.header.sequence as u32,
            body_crc,
            op_count: batch.shards.len() as u32,
        };
        let parts = [&header.encode(state.salt)[..], &batch.bytes];
        let written = match fault::is_hit(Point::StoreLogWrite) {
            true => Err(std::io::Error::from_raw_os_error(libc::EIO)),
            false => state.write(&self.segments[slot], slot, parts),
        };
        written.map_err(|source| self.write_failed(slot, source))?;
        state.slots[slot].end = offset + len;
        state.last_transno = transno;
        self.front.last.store(transno, Ordering::Release);
        state.commits += 1;
        Ok(Some(Appended { transno, end: offset + len, len }))
    }

    /// Returns the number for a transaction that changes memory only.
    pub(crate) fn count(&self, floor: u64) -> u64 {
        let mut state = self.front.state.lock();
        state.last_transno = (state.last_transno + 1).max(floor);
        self.front.last.store(state.last_transno, Ordering::Release);
        state.last_transno
    }

    /// A full disk is temporary; after any other error the state of the log is unknown.
    fn write_failed(&self, slot: usize, source: std::io::Error) -> MetaError {
        if is_no_space(&source) {
            return MetaError::NoSpace;
        }
        self.latch.set(&MetaError::Io {
            action: "write",
            path: self.segments[slot].path().to_owned(),
            source,
        })
    }

    /// Whether there is a segment to append to.
    pub(crate) fn has_active(&self) -> bool {
        self.front.state.lock().active.is_some()
    }

    /// Returns the newest transaction before the active segment.
    pub(crate) fn base_transno(&self) -> u64 {
        self.front.state.lock().header.base_transno
    }

    /// Whether the active segment holds no record.
    pub(crate) fn is_active_empty(&self) -> bool {
        let state = self.front.state.lock();
        state.active.is_none_or(|slot| state.slots[slot].end == SEGMENT_HEADER_LEN)
    }

    /// Makes the active segment pending and a free one active. The caller excludes commits and has frozen the
    /// overlay.
    ///
    /// # Errors
    /// As [`Log::append`]; on a full disk nothing has changed.
    ///
    /// # Panics
    /// If no segment is free.
    pub(crate) fn activate(&self) -> Result<()> {
        let mut state = self.front.state.lock();
        let old = state.active;
        let next = match old {
            Some(slot) => (slot + 1) % SEGMENTS,
            None => (0..SEGMENTS).min_by_key(|&i| state.slots[i].sequence).expect("there are two segments"),
        };
        assert!(!state.slots[next].is_pending, "a segment is reused only when the base has its content");
        let part = state.slots[next].part;
        let first = FIRST_PART.min(self.segment_bytes);
        if part < first {
            // The file was copied without its zeros, for example.
            let filled = self.segments[next].fill(part..first);
            filled.map_err(|source| self.write_failed(next, source))?;
        }
        let header = SegmentHeader {
            uuid: self.uuid,
            sequence: state.header.sequence + 1,
            base_transno: state.last_transno,
            durable_transno: self.durable_transno(),
        };
        let header_bytes = header.encode();
        let mut page = [0; SEGMENT_HEADER_LEN];
        page[..header_bytes.len()].copy_from_slice(&header_bytes);
        let written = self.segments[next].write(0, [&page, &[]]);
        written.map_err(|source| self.write_failed(next, source))?;
        state.tail.forget();
        if let Some(slot) = old {
            state.slots[slot].is_pending = true;
            state.earlier_bytes += state.slots[slot].record_bytes();
        }
        state.header = header;
        state.salt = header.salt();
        state.slots[next] = Slot {
            part: part.max(first),
            end: SEGMENT_HEADER_LEN,
            synced: 0,
            is_pending: false,
            sequence: state.header.sequence,
        };
        state.active = Some(next);
        Ok(())
    }

    /// Releases the pending segments: the base contains everything up to `transno` durably.
    pub(crate) fn release_pending(&self, transno: u64) {
        let was_pending: [bool; SEGMENTS] = {
            let mut state = self.front.state.lock();
            std::array::from_fn(|i| std::mem::take(&mut state.slots[i].is_pending))
        };
        self.durable.fetch_max(transno, Ordering::AcqRel);
        // No flush covers the transactions that the base made durable, nor the last piece of a segment.
        for (segment, _) in self.segments.iter().zip(was_pending).filter(|(_, was_pending)| *was_pending) {
            segment.forget(0..segment.len());
        }
    }

    /// Makes everything up to `upto` durable. Group commit: one caller flushes for all that wait.
    pub(crate) fn sync(&self, upto: u64) -> Result<()> {
        // A transaction that does not exist yet is not waited for.
        let upto = upto.min(self.last_transno());
        let flush = || {
            self.latch.check()?;
            let reached = self.flush_all()?;
            assert!(reached >= upto, "a flush covers everything appended before it");
            Ok(())
        };
        self.group_commit.until(upto, || self.durable_transno(), flush)
    }

    /// Flushes old segments before newer ones, so that the durable transactions are a prefix whenever this
    /// returns.
    fn flush_all(&self) -> Result<u64> {
        let (target, mut slots) = {
            let mut state = self.front.state.lock();
            state.note_flush();
            let slots: [(usize, Slot); SEGMENTS] = std::array::from_fn(|i| (i, state.slots[i]));
            (state.last_transno, slots)
        };
        slots.sort_by_key(|(_, slot)| slot.sequence);
        for (i, seen) in slots {
            if seen.synced >= seen.end {
                continue;
            }
            let persisted = match fault::is_hit(Point::StoreLogSync) {
                true => Err(std::io::Error::from_raw_os_error(libc::EIO)),
                false => self.segments[i].persist(),
            };
            if let Err(source) = persisted {
                let path = self.segments[i].path().to_owned();
                return Err(self.latch.set(&MetaError::Io { action: "sync", path, source }));
            }
            self.segments[i].forget(seen.synced..seen.end);
            let mut state = self.front.state.lock();
            if state.slots[i].sequence == seen.sequence {
                state.slots[i].synced = seen.end;
                state.flushed_bytes = seen.end - seen.synced;
            }
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.durable.fetch_max(target, Ordering::AcqRel);
        Ok(target)
    }

    /// Reads the active segment again and returns the number of valid records, and the place of the first
    /// invalid one.
    ///
    /// # Errors
    /// Only if reading fails.
    pub(crate) fn verify_active(&self) -> Result<(u64, Option<(u32, u64)>)> {
        let state = self.front.state.lock();
        let Some(slot) = state.active else { return Ok((0, None)) };
        // The lock keeps the segment from being reused for another sequence meanwhile.
        let bytes = self.segments[slot].read()?.bytes;
        let mut records = Records::new(&bytes[..state.slots[slot].end], &state.header);
        let count = records.by_ref().count() as u64;
        let bad = (records.offset < state.slots[slot].end).then_some((slot as u32, records.offset as u64));
        Ok((count, bad))
    }
}

fn part_least(slots: &[Slot; SEGMENTS]) -> usize {
    slots.iter().map(|slot| slot.part).min().unwrap_or_default()
}

impl LogState {
    /// Returns the bytes appended since the store was opened.
    fn appended_bytes(&self) -> u64 {
        self.earlier_bytes + self.active.map_or(0, |slot| self.slots[slot].record_bytes())
    }

    /// Writes a record after the last one, in the cheapest way.
    ///
    /// A flush makes each page of a mapping fault again, so system calls are cheaper where flushes are
    /// frequent. After a write around the page cache a flush has nothing to write, but the lock is held until
    /// the device has the record; so only a single caller that will wait for the device anyway writes this
    /// way.
    fn write(&mut self, segment: &Segment, slot: usize, parts: [&[u8]; 2]) -> std::io::Result<()> {
        let Slot { end: offset, synced, .. } = self.slots[slot];
        let is_often_flushed = self.flushed_bytes.max(offset - synced) < BY_CALL_BYTES;
        // SAFETY: writes happen only with the state borrowed, and its lock admits one thread at a time.
        if !is_often_flushed && unsafe { segment.copy_in(offset, parts) } {
            self.tail.forget();
            return Ok(());
        }
        if parts[0].len() + parts[1].len() > LONGEST {
            self.tail.forget();
            return segment.write(offset, parts);
        }
        let is_alone = self.alone >= ALONE_FLUSHES && synced == offset;
        let began = Instant::now();
        match is_alone {
            // The thread is blocked and serves no other request meanwhile.
            true => nacre_env::blocking(|| self.tail.write(segment, offset, parts, true))?,
            false => self.tail.write(segment, offset, parts, false)?,
        }
        self.appended_at = Instant::now();
        if is_alone && self.appended_at - began > DIRECT_WITHIN {
            // Readers of the keys that this commit changes wait for the device, too.
            self.alone = 0;
        }
        Ok(())
    }

    /// Notes that a flush begins.
    fn note_flush(&mut self) {
        let is_one = self.commits == self.flushed_commits + 1;
        self.flushed_commits = self.commits;
        self.alone = if is_one && self.appended_at.elapsed() < ALONE_WITHIN {
            self.alone.saturating_add(1)
        } else {
            0
        };
    }
}

/// What a recovery learned about the segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovered {
    /// Offset after the last valid record, per slot.
    pub(crate) ends: [usize; SEGMENTS],
    /// Sequence number per slot.
    pub(crate) sequences: [u64; SEGMENTS],
    /// Whether the segments contain transactions that the base lacks.
    pub(crate) is_pending: bool,
    /// Newest transaction, of base and log together.
    pub(crate) last_transno: u64,
    /// Newest transaction in the base.
    pub(crate) durable_transno: u64,
    /// Number of batches replayed from the log.
    pub(crate) replayed: u64,
}

/// Returns the checksum of a batch's body; called before any lock is taken.
pub(crate) fn body_crc(batch: &Batch) -> u32 {
    crc32c(&batch.bytes)
}
