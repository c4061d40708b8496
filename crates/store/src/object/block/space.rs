//! Free space, and space that becomes free when a generation is durable.

use super::allocator::{AllocationRequest, Allocator, Extent};
use super::device::BLOCK;
use crate::object::{ObjectError, Result};
use nacre_env::sync::{Condvar, Mutex};
use nacre_types::Fid;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Share of the free space that a write may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    /// All but the reserve.
    Usual,
    /// Also the reserve, except for the part that freeing needs: the space was promised, or as much will be
    /// freed.
    Promised,
    /// Everything: the change frees space.
    Freeing,
}

/// Blocks that a write needs.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) blocks: u64,
    pub(super) share: Share,
}

/// Blocks that only changes that free space may use.
const FOR_FREEING: u64 = 64;
/// Distance in blocks from the end of the last write within which a write continues a stream: 16 MiB, as
/// clients send out of order.
const NEAR: u64 = (16 << 20) / BLOCK;
/// Least blocks of a write that starts a stream: 64 KiB.
const STREAM_MIN: u64 = 16;

/// Part of the device, in addition to the reserve, that must be free for data to be moved, as a divisor.
const SPARE_PART: u64 = 64;

/// Freed blocks, by the generation that must be durable before their reuse.
#[derive(Default)]
struct Quarantine {
    lists: VecDeque<(u64, Vec<Extent>)>,
}

/// See the [module documentation](self).
pub(super) struct SpaceBook {
    allocator: Mutex<Allocator>,
    /// Signals space whose discard has ended.
    returned: Condvar,
    /// Writes that wait for such space.
    waiting: AtomicU64,
    quarantine: Mutex<Quarantine>,
    quarantined: AtomicU64,
    reserve_blocks: u64,
    /// Writes refused because the device is full.
    refused: AtomicU64,
}

/// End of the last write of an object.
#[derive(Default)]
pub(super) struct WriteStream {
    /// Next block of the object.
    next: u64,
    /// Next block of the device.
    after: Option<u64>,
    /// Blocks of the write.
    blocks: u64,
}

impl SpaceBook {
    pub(super) fn new(allocator: Allocator, reserve_blocks: u64) -> SpaceBook {
        SpaceBook {
            allocator: Mutex::new(allocator),
            returned: Condvar::new(),
            waiting: AtomicU64::new(0),
            quarantine: Mutex::default(),
            quarantined: AtomicU64::new(0),
            reserve_blocks,
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns numbers of blocks: in all, free, available to writes, and in the reserve.
    pub(super) fn counts(&self) -> (u64, u64, u64, u64) {
        let allocator = self.allocator.lock();
        let free = allocator.free_blocks() + self.quarantined();
        (allocator.blocks(), free, free.saturating_sub(self.reserve_blocks), self.reserve_blocks)
    }

    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined.load(Ordering::Acquire)
    }

    /// Quarantines blocks freed in `generation`; the caller holds the gate.
    pub(super) fn free(&self, generation: u64, extents: Vec<Extent>) {
        let blocks: u64 = extents.iter().map(|extent| extent.len).sum();
        if blocks == 0 {
            return;
        }
        let mut quarantine = self.quarantine.lock();
        match quarantine.lists.back_mut() {
            Some((last, list)) if *last == generation => list.extend(extents),
            _ => quarantine.lists.push_back((generation, extents)),
        }
        self.quarantined.fetch_add(blocks, Ordering::AcqRel);
    }

    /// Notes that `generation` and all earlier ones are durable.
    pub(super) fn complete(&self, generation: u64) {
        let mut ready = Vec::new();
        {
            let mut quarantine = self.quarantine.lock();
            while quarantine.lists.front().is_some_and(|(freed, _)| *freed <= generation) {
                ready.extend(quarantine.lists.pop_front().map(|(_, list)| list).unwrap_or_default());
            }
        }
        let mut allocator = self.allocator.lock();
        for extent in ready {
            allocator.release(extent);
            // Under the allocator's lock, so that the sum is never too low.
            self.quarantined.fetch_sub(extent.len, Ordering::AcqRel);
        }
    }

    /// Returns allocated blocks that no record refers to.
    pub(super) fn give_back(&self, extents: &[Extent]) {
        let mut allocator = self.allocator.lock();
        extents.iter().for_each(|extent| allocator.release(*extent));
    }

    pub(super) fn close_window(&self, object: Fid) {
        self.allocator.lock().close_window(object);
    }

    /// Takes blocks for data that is moved, in one piece, if there is one and enough is left for writers.
    pub(super) fn take_whole(&self, blocks: u64, after: Option<u64>) -> Option<Extent> {
        let mut allocator = self.allocator.lock();
        let spare = self.reserve_blocks + allocator.blocks() / SPARE_PART;
        if allocator.free_blocks() < blocks + spare {
            return None;
        }
        allocator.take_whole(blocks, after)
    }

    /// Releases windows unused since the clock showed `since`.
    pub(super) fn close_idle_windows(&self, since: u64) -> u64 {
        self.allocator.lock().close_windows(since)
    }

    #[cfg(test)]
    pub(super) fn report(&self) -> crate::object::FreeExtents {
        self.allocator.lock().report()
    }

    /// Returns the free extents, as ranges of bytes.
    pub(super) fn pieces(&self) -> Vec<Range<u64>> {
        let extents = self.allocator.lock().extents();
        extents.iter().map(|extent| extent.start * BLOCK..extent.end() * BLOCK).collect()
    }

    pub(super) fn take_untold(&self, from: u64, max_blocks: u64) -> Option<Extent> {
        self.allocator.lock().take_untold(from, max_blocks)
    }

    pub(super) fn has_untold(&self, from: u64) -> bool {
        self.allocator.lock().has_untold(from)
    }

    /// Returns the number of writes that wait for space under discard.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn untold_blocks(&self) -> u64 {
        self.allocator.lock().untold_blocks()
    }

    pub(super) fn told(&self, extent: Extent, was_told: bool) {
        self.allocator.lock().told(extent, was_told);
        self.returned.notify_all();
    }

    fn is_left(&self, allocator: &Allocator, blocks: u64, share: Share) -> bool {
        let floor = match share {
            Share::Usual => self.reserve_blocks.max(FOR_FREEING.min(allocator.blocks() / 16)),
            Share::Promised => FOR_FREEING.min(allocator.blocks() / 16),
            Share::Freeing => 0,
        };
        allocator.free_blocks() + self.quarantined() >= blocks + floor
    }

    /// Checks whether `blocks` more may be used.
    pub(super) fn admit(&self, blocks: u64, share: Share) -> Result<()> {
        if self.is_left(&self.allocator.lock(), blocks, share) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(ObjectError::NoSpace)
    }

    /// Takes blocks for a write of `owner` at its block `first`, in few pieces. The caller returns them if it
    /// does not commit them. `complete` makes the current generation durable.
    pub(super) fn take(
        &self,
        owner: Fid,
        stream: &Mutex<WriteStream>,
        first: u64,
        wanted: Wanted,
        complete: impl Fn() -> Result<()>,
    ) -> Result<Vec<Extent>> {
        let Wanted { blocks, share } = wanted;
        if blocks == 0 {
            return Ok(Vec::new());
        }
        self.admit(blocks, share)?;
        let mut stream = stream.lock();
        let is_next = stream.next == first;
        let is_stream =
            blocks >= STREAM_MIN && stream.next.abs_diff(first) <= NEAR || is_next && first >= STREAM_MIN;
        // The first write of an object is often all of it, and a write that is shorter than the previous one
        // is often the last: no window is reserved after these. A stream that continues has lost one chance
        // of contiguity, at the end of a whole transfer.
        let is_last = is_next && first > 0 && blocks < stream.blocks;
        let is_stream = is_stream && first > 0 && !is_last;
        let mut after = stream.after.filter(|_| is_next && first > 0);
        let mut taken: Vec<Extent> = Vec::new();
        let mut left = blocks;
        let mut tries = 0;
        while left > 0 {
            let requested = AllocationRequest { owner, after, blocks: left, is_stream };
            let got = self.allocator.lock().allocate(requested);
            let Some(got) = got else {
                tries += 1;
                if let Err(error) = self.make_room(tries, &complete) {
                    self.give_back(&taken);
                    return Err(error);
                }
                continue;
            };
            left -= got.len;
            after = Some(got.end());
            match taken.last_mut() {
                Some(last) if last.end() == got.start => last.len += got.len,
                _ => taken.push(got),
            }
        }
        (stream.next, stream.after, stream.blocks) = (first + blocks, after, blocks);
        if is_last {
            self.close_window(owner);
        }
        Ok(taken)
    }

    /// Provides space when nothing is free outside of windows and quarantine: takes some from there, waits
    /// for space under discard, or for the durability of the generation that freed some.
    fn make_room(&self, tries: u32, complete: &impl Fn() -> Result<()>) -> Result<()> {
        let mut allocator = self.allocator.lock();
        allocator.close_all_windows();
        if tries <= 1 {
            return Ok(());
        }
        if allocator.held_blocks() > 0 {
            self.waiting.fetch_add(1, Ordering::Relaxed);
            nacre_env::blocking(|| self.returned.wait(&mut allocator));
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        drop(allocator);
        if tries > 8 || self.quarantined() == 0 {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return Err(ObjectError::NoSpace);
        }
        complete()
    }
}
