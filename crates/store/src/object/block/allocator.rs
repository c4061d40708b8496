//! Allocation of the blocks of a device.
//!
//! Free extents are kept in memory, by address and by class of length; they are derived from the maps of all
//! objects when a store is opened. Pure and deterministic: the same calls give the same answers.
//!
//! Placement of data:
//! - a stream gets a window of its own to grow in, so that objects written concurrently stay in few pieces
//!   each; it doubles each time it is used up;
//! - small pieces are packed from the end of the device, everything else from its beginning, so that small
//!   objects with short lives leave no holes between large ones;
//! - the shortest sufficient extent, the first (small pieces: the last) of its class.

mod free;
#[cfg(test)]
mod tests;

use crate::object::{FreeExtentClass, FreeExtents};
use free::{FreeMap, Ranges};
use nacre_types::Fid;
use std::collections::HashMap;

use super::device::BLOCK;

/// Consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Number of the first block.
    pub(super) start: u64,
    /// Number of blocks.
    pub(super) len: u64,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// A request for blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocationRequest {
    /// Object that will own them.
    pub(super) owner: Fid,
    /// Block that would continue the object's last extent.
    pub(super) after: Option<u64>,
    /// Number of blocks.
    pub(super) blocks: u64,
    /// More requests will follow.
    pub(super) is_stream: bool,
}

/// First window of a stream in blocks: 1 MiB.
const WINDOW_FIRST: u64 = (1 << 20) / BLOCK;
/// Largest window: 64 MiB.
const WINDOW_MAX: u64 = (64 << 20) / BLOCK;
/// Share of the free space that a window may take, as a divisor.
const WINDOW_SHARE: u64 = 64;
/// Requests for pieces after which an unused window is released.
const WINDOW_IDLE: u64 = 256;
/// Maximum number of windows.
const WINDOWS_MAX: usize = 1024;
/// Largest small piece in blocks: 64 KiB.
const SMALL_MAX: u64 = (64 << 10) / BLOCK;

/// Part of the longest free extent that moved data may use, as a divisor.
const LONGEST_PART: u64 = 4;

/// Space reserved for an object to grow into.
#[derive(Clone, Copy, Debug)]
struct Window {
    extent: Extent,
    /// Blocks of the next window.
    next: u64,
    used_at: u64,
}

/// See the [module documentation](self).
pub(super) struct Allocator {
    blocks: u64,
    free: FreeMap,
    windows: HashMap<Fid, Window>,
    window_blocks: u64,
    /// Free blocks under discard.
    held_blocks: u64,
    /// Free space not discarded yet.
    untold: Ranges,
    untold_blocks: u64,
    /// Requests so far.
    clock: u64,
    /// Clock at the last search for idle windows.
    looked_at: u64,
}

impl Allocator {
    /// Creates an allocator for the blocks from `first` to `end` (exclusive); `used` blocks are taken,
    /// ascending and disjoint.
    pub(super) fn new(first: u64, end: u64, used: &[Extent]) -> Allocator {
        let mut allocator = Allocator {
            blocks: end - first,
            free: FreeMap::default(),
            windows: HashMap::new(),
            window_blocks: 0,
            held_blocks: 0,
            untold: Ranges::default(),
            untold_blocks: 0,
            clock: 0,
            looked_at: 0,
        };
        let mut at = first;
        for extent in used {
            if extent.start > at {
                allocator.release(Extent { start: at, len: extent.start - at });
            }
            at = at.max(extent.end());
        }
        if at < end {
            allocator.release(Extent { start: at, len: end - at });
        }
        allocator
    }

    /// Returns the number of all blocks.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of free blocks, windows included.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free.blocks() + self.window_blocks + self.held_blocks
    }

    /// Takes up to the requested number of blocks, in one piece; `None` if nothing is free outside of
    /// windows.
    pub(super) fn allocate(&mut self, requested: AllocationRequest) -> Option<Extent> {
        self.clock += 1;
        if let Some(extent) = self.take_from_window(&requested) {
            return Some(extent);
        }
        if let Some(extent) = self.take_after(&requested) {
            return Some(extent);
        }
        if requested.is_stream {
            return self.open_window(&requested);
        }
        let is_small = requested.blocks <= SMALL_MAX;
        let found = self.free.find(requested.blocks, is_small)?;
        let len = found.len.min(requested.blocks);
        let start = if is_small { found.end() - len } else { found.start };
        self.carve(Extent { start, len });
        Some(Extent { start, len })
    }

    /// Takes blocks in one piece for fragmented data that is moved: those that follow the object's preceding
    /// data, or the tightest extent. The longest free extent is left to writers: no more than a part of it is
    /// used, and only if no other is long enough.
    pub(super) fn take_whole(&mut self, blocks: u64, after: Option<u64>) -> Option<Extent> {
        let longest = self.free.largest();
        let may_give = |found: &Extent| {
            found.len >= blocks && (found.len < longest || blocks.saturating_mul(LONGEST_PART) <= longest)
        };
        let behind = after.and_then(|after| self.free.starting_at(after)).filter(may_give);
        if let Some(found) = behind {
            let taken = Extent { start: found.start, len: blocks };
            self.carve(taken);
            return Some(taken);
        }
        let is_small = blocks <= SMALL_MAX;
        let found = self.free.tightest(blocks, is_small).filter(may_give)?;
        let start = if is_small { found.end() - blocks } else { found.start };
        let taken = Extent { start, len: blocks };
        self.carve(taken);
        Some(taken)
    }

    fn take_from_window(&mut self, requested: &AllocationRequest) -> Option<Extent> {
        let window = self.windows.get_mut(&requested.owner).filter(|window| window.extent.len > 0)?;
        window.used_at = self.clock;
        let taken = Extent { start: window.extent.start, len: requested.blocks.min(window.extent.len) };
        window.extent = Extent { start: taken.end(), len: window.extent.len - taken.len };
        self.window_blocks -= taken.len;
        Some(taken)
    }

    /// Takes the blocks that follow the object's data, if they are free.
    fn take_after(&mut self, requested: &AllocationRequest) -> Option<Extent> {
        let found = self.free.starting_at(requested.after?)?;
        // The rest goes into a window for streams, so that no other object takes it.
        if found.len < requested.blocks {
            return None;
        }
        Some(self.take_with_window(requested, found))
    }

    fn open_window(&mut self, requested: &AllocationRequest) -> Option<Extent> {
        if self.clock >= self.looked_at + WINDOW_IDLE {
            self.looked_at = self.clock;
            self.close_windows(self.clock - WINDOW_IDLE);
        }
        let wanted = self.window_size(requested);
        let found = match self.free.find(wanted, false)? {
            found if found.len >= wanted => found,
            _ => self.free.find(requested.blocks, false)?,
        };
        Some(self.take_with_window(requested, found))
    }

    fn window_size(&self, requested: &AllocationRequest) -> u64 {
        let next = self.windows.get(&requested.owner).map_or(WINDOW_FIRST, |window| window.next);
        requested.blocks + next.min(self.free_blocks() / WINDOW_SHARE)
    }

    /// Takes the beginning of a free extent, and the following blocks as a window if a stream asks for one.
    fn take_with_window(&mut self, requested: &AllocationRequest, found: Extent) -> Extent {
        let taken = Extent { start: found.start, len: requested.blocks.min(found.len) };
        let window_len = match requested.is_stream {
            true => (self.window_size(requested) - requested.blocks).min(found.len - taken.len),
            false => 0,
        };
        self.carve(Extent { start: found.start, len: taken.len + window_len });
        if requested.is_stream {
            let next = self.windows.get(&requested.owner).map_or(WINDOW_FIRST, |window| window.next);
            let extent = Extent { start: taken.end(), len: window_len };
            let window = Window { extent, next: (next * 2).min(WINDOW_MAX), used_at: self.clock };
            self.window_blocks += window_len;
            self.windows.insert(requested.owner, window);
            self.limit_windows();
        }
        taken
    }

    fn limit_windows(&mut self) {
        if self.windows.len() > WINDOWS_MAX {
            let oldest = self.windows.iter().min_by_key(|(_, window)| window.used_at);
            if let Some(owner) = oldest.map(|(owner, _)| *owner) {
                self.close_window(owner);
            }
        }
    }

    /// Releases the window of an object.
    pub(super) fn close_window(&mut self, owner: Fid) {
        if let Some(window) = self.windows.remove(&owner).filter(|window| window.extent.len > 0) {
            self.window_blocks -= window.extent.len;
            self.release(window.extent);
        }
    }

    /// Releases the windows not used since the clock showed `since`, and returns the clock.
    pub(super) fn close_windows(&mut self, since: u64) -> u64 {
        let idle = |window: &Window| window.used_at <= since;
        let mut owners: Vec<Fid> =
            self.windows.iter().filter(|(_, window)| idle(window)).map(|(owner, _)| *owner).collect();
        owners.sort_unstable_by_key(Fid::to_key);
        owners.into_iter().for_each(|owner| self.close_window(owner));
        self.clock
    }

    /// Releases all windows.
    pub(super) fn close_all_windows(&mut self) {
        self.close_windows(u64::MAX);
    }

    fn carve(&mut self, extent: Extent) {
        self.free.remove(extent);
        self.untold_blocks -= self.untold.remove(extent);
    }

    /// Frees blocks.
    pub(super) fn release(&mut self, extent: Extent) {
        self.free.insert(extent);
        self.untold_blocks += self.untold.insert(extent);
    }

    /// Whether [`Allocator::take_untold`] would find blocks.
    pub(super) fn has_untold(&self, from: u64) -> bool {
        self.untold.first_from(from).is_some()
    }

    /// Free blocks not discarded yet.
    pub(super) fn untold_blocks(&self) -> u64 {
        self.untold_blocks
    }

    /// Free blocks under discard, taken by [`Allocator::take_untold`].
    pub(super) fn held_blocks(&self) -> u64 {
        self.held_blocks
    }

    /// Takes up to `max` free blocks at or after `from` that were not discarded yet out of use until
    /// [`Allocator::told`].
    pub(super) fn take_untold(&mut self, from: u64, max: u64) -> Option<Extent> {
        let first = self.untold.first_from(from)?;
        let extent = Extent { start: first.start, len: first.len.min(max) };
        if extent.len == 0 {
            return None;
        }
        self.carve(extent);
        self.held_blocks += extent.len;
        Some(extent)
    }

    /// Notes the end of an extent's discard, or that the device does not support it (`was_told` off).
    pub(super) fn told(&mut self, extent: Extent, was_told: bool) {
        self.held_blocks -= extent.len;
        self.free.insert(extent);
        if !was_told {
            self.untold_blocks += self.untold.insert(extent);
        }
    }

    /// Returns the free extents by address, windows included: these are released when other writes need the
    /// space.
    pub(super) fn extents(&self) -> Vec<Extent> {
        let mut extents = self.free.extents();
        let windows = self.windows.values().map(|window| window.extent).filter(|extent| extent.len > 0);
        extents.extend(windows);
        extents.sort_unstable_by_key(|extent| extent.start);
        extents.dedup_by(|next, last| {
            let goes_on = last.end() == next.start;
            last.len += if goes_on { next.len } else { 0 };
            goes_on
        });
        extents
    }

    /// Returns statistics of the free extents outside of windows.
    pub(super) fn report(&self) -> FreeExtents {
        let mut report = FreeExtents { largest: self.free.largest() * BLOCK, ..FreeExtents::default() };
        for (class, (count, blocks)) in self.free.classes().into_iter().enumerate() {
            if count > 0 {
                let bytes = blocks * BLOCK;
                report.classes.push(FreeExtentClass { min_bytes: BLOCK << class, count, bytes });
                report.count += count;
                report.bytes += bytes;
            }
        }
        report
    }
}
