//! Walks the log on a device from its tail to its end, and distinguishes a regular end from damage.
//!
//! A power cut may lose any batch that was not flushed, so an incomplete batch ends the log. It is damage if
//! the superblock, or a batch after that place, records that the log was durable beyond it: both were written
//! after the flush. `docs/formats/nxd.md` has the rules.

use super::log::superblock_copies;
use crate::object::block::device::{BLOCK, BlockDevice, ReadOp};
use nacre_ondisk::nxd::{NxdBatch, NxdEntry, NxdSuperblock, data_crc};
use std::io;
use std::ops::Range;

/// Maximum blocks of a batch.
pub(super) const BATCH_BLOCKS: u64 = 256;
/// Maximum blocks of log beyond the durable position in the superblock: so no more of a ring has to be
/// searched for batches after the end.
pub(super) const MARK_EVERY: u64 = 4096;
/// Largest position: more than any device can have written.
const POSITION_MAX: u64 = 1 << 50;
/// Blocks read at once.
const WINDOW: u64 = 256;

/// An item of the log, in order.
pub(super) enum Found<'a> {
    /// A batch, and its entries whose durable data is damaged.
    Batch { batch: &'a NxdBatch, damaged: &'a [usize] },
    /// Blocks of durable batches that cannot be read. `entries` is the probable content of the first of them.
    Gap { range: Range<u64>, entries: Vec<NxdEntry> },
}

/// End of a walk.
pub(super) struct End {
    /// Position after the last batch.
    pub position: u64,
    /// Position up to which the log is known to have been durable.
    pub durable: u64,
    /// Batches after the end that are not a part of the log.
    pub behind: u64,
}

/// Splits a range of a log, in bytes at block boundaries, where its ring ends: offset on the device and
/// length.
pub(super) fn on_device(ring: u64, at: u64, len: u64) -> [(u64, u64); 2] {
    let (at, ring) = (at % (ring * BLOCK), ring * BLOCK);
    let first = len.min(ring - at);
    [(BLOCK + at, first), (BLOCK, len - first)]
}

/// Reads a range of a log.
pub(super) fn read_range(device: &dyn BlockDevice, ring: u64, at: u64, buffer: &mut [u8]) -> io::Result<()> {
    let [(first, len), (second, _)] = on_device(ring, at, buffer.len() as u64);
    let (head, rest) = buffer.split_at_mut(len as usize);
    let mut ops = vec![ReadOp { offset: first, buffer: head }];
    if !rest.is_empty() {
        ops.push(ReadOp { offset: second, buffer: rest });
    }
    device.read(&mut ops)
}

/// Reads it block by block: those that the device fails to read are zeros, as damaged as any other. Returns
/// `error` if it reads nothing at all, not even a superblock.
fn read_each(
    device: &dyn BlockDevice,
    ring: u64,
    at: u64,
    buffer: &mut [u8],
    error: io::Error,
) -> io::Result<()> {
    let mut is_any_read = false;
    for (at, block) in (at..).step_by(BLOCK as usize).zip(buffer.chunks_mut(BLOCK as usize)) {
        match read_range(device, ring, at, block) {
            Ok(()) => is_any_read = true,
            Err(_) => block.fill(0),
        }
    }
    if is_any_read || superblock_copies(device).is_ok() { Ok(()) } else { Err(error) }
}

/// Batches after a place without a valid one.
struct Behind {
    /// Position up to which the log was durable.
    durable: u64,
    /// Positions and epochs of headers, in order.
    headers: Vec<(u64, u64)>,
}

struct Walker<'a> {
    device: &'a dyn BlockDevice,
    superblock: &'a NxdSuperblock,
    ring: u64,
    window: (u64, Vec<u8>),
    behind: Option<Behind>,
}

/// Walks the log of a superblock; `found` receives everything in it, in order.
///
/// # Errors
/// Those of the device.
pub(super) fn walk(
    device: &dyn BlockDevice,
    superblock: &NxdSuperblock,
    found: &mut dyn FnMut(Found<'_>),
) -> io::Result<End> {
    let ring = (superblock.size / BLOCK).saturating_sub(2);
    if ring == 0 || superblock.tail > POSITION_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its superblock leads to where no log can be",
        ));
    }
    let mut walker = Walker { device, superblock, ring, window: (0, Vec::new()), behind: None };
    let (mut position, mut epoch) = (superblock.tail, 0);
    while position < superblock.tail + ring {
        if let Some((batch, damaged)) = walker.batch(position, epoch)? {
            if damaged.is_empty() || walker.durable(position)? > position {
                found(Found::Batch { batch: &batch, damaged: &damaged });
                (position, epoch) = (position + u64::from(batch.blocks), batch.epoch);
                continue;
            }
            break;
        }
        let durable = walker.durable(position)?;
        if durable <= position {
            break;
        }
        let range = position..walker.next_header(position, epoch).map_or(durable, |at| at.min(durable));
        position = range.end;
        let entries = walker.guess(&range)?;
        found(Found::Gap { range, entries });
    }
    let durable = walker.durable(position)?;
    let behind = walker.behind.map_or(0, |behind| behind.after(position));
    Ok(End { position, durable, behind })
}

impl Behind {
    fn after(&self, position: u64) -> u64 {
        self.headers.iter().filter(|(at, _)| *at >= position).count() as u64
    }
}

impl Walker<'_> {
    /// Returns the maximum end of the log.
    fn limit(&self) -> u64 {
        self.superblock.tail + self.ring
    }

    /// Returns the header that belongs to this position.
    fn header(&mut self, position: u64) -> io::Result<Option<NxdBatch>> {
        let (cache, limit) = (self.superblock.cache, self.limit());
        let Ok(batch) = NxdBatch::decode(self.read(position, 1)?) else { return Ok(None) };
        // Batches beyond the superblock's durable position were written after it: in its epoch.
        let newest = self.superblock.epoch;
        let is_new = self.superblock.durable > 0 && position >= self.superblock.durable;
        let oldest = if is_new { newest } else { 0 };
        let is_here = batch.cache == cache
            && batch.position == position
            && (oldest..=newest).contains(&batch.epoch)
            && u64::from(batch.blocks) <= limit - position;
        Ok(is_here.then_some(batch))
    }

    /// Returns the next batch of the log if its header is valid, and the entries whose data is not.
    fn batch(&mut self, position: u64, epoch: u64) -> io::Result<Option<(NxdBatch, Vec<usize>)>> {
        let Some(batch) = self.header(position)?.filter(|batch| batch.epoch >= epoch) else {
            return Ok(None);
        };
        let bytes = self.read(position, u64::from(batch.blocks))?;
        let is_damaged = |(number, entry): (usize, &NxdEntry)| match *entry {
            NxdEntry::Data { at, len, crc, .. } => {
                (data_crc(&bytes[at as usize..][..len as usize]) != crc).then_some(number)
            }
            NxdEntry::Forget { .. } => None,
        };
        let damaged = batch.entries.iter().enumerate().filter_map(is_damaged).collect();
        Ok(Some((batch, damaged)))
    }

    /// Returns the position up to which the log was durable, by the superblock and batches after a position.
    fn durable(&mut self, position: u64) -> io::Result<u64> {
        if self.behind.is_none() {
            let from = position.max(self.superblock.durable);
            let end = self.limit().min(from.saturating_add(MARK_EVERY + 2 * BATCH_BLOCKS));
            let mut behind = Behind { durable: self.superblock.durable, headers: Vec::new() };
            let mut at = position;
            while at < end {
                if let Some(batch) = self.header(at)? {
                    behind.durable = behind.durable.max(batch.durable);
                    behind.headers.push((at, batch.epoch));
                }
                at += 1;
            }
            self.behind = Some(behind);
        }
        Ok(self.behind.as_ref().map_or(0, |behind| behind.durable.min(self.limit())))
    }

    fn next_header(&self, position: u64, epoch: u64) -> Option<u64> {
        let headers = &self.behind.as_ref()?.headers;
        headers.iter().find(|(at, of)| *at > position && *of >= epoch).map(|(at, _)| *at)
    }

    /// Returns the probable entries of a damaged header, if their data is valid or they have none.
    fn guess(&mut self, range: &Range<u64>) -> io::Result<Vec<NxdEntry>> {
        let bytes = self.read(range.start, (range.end - range.start).min(BATCH_BLOCKS))?;
        let mut entries = NxdBatch::entries_of_damaged(bytes);
        entries.retain(|entry| match *entry {
            NxdEntry::Data { at, len, crc, .. } => {
                bytes.get(at as usize..at as usize + len as usize).is_some_and(|data| data_crc(data) == crc)
            }
            NxdEntry::Forget { .. } => true,
        });
        Ok(entries)
    }

    fn read(&mut self, position: u64, blocks: u64) -> io::Result<&[u8]> {
        let left = self.limit() - position;
        let (start, bytes) = &mut self.window;
        let have = bytes.len() as u64 / BLOCK;
        if position < *start || position + blocks > *start + have {
            bytes.resize((WINDOW.max(blocks).min(left) * BLOCK) as usize, 0);
            *start = position;
            if let Err(error) = read_range(self.device, self.ring, position * BLOCK, bytes) {
                read_each(self.device, self.ring, position * BLOCK, bytes, error)?;
            }
        }
        let at = ((position - *start) * BLOCK) as usize;
        Ok(&bytes[at..at + (blocks * BLOCK) as usize])
    }
}
