//! Which blocks of a device are free, and which of them a writer gets.
//!
//! Free extents are kept in memory, by address and by class of length; they are found anew from the maps of all objects
//! when a store is opened. Pure and deterministic: the same calls give the same answers.
//!
//! Where data goes:
//! - streams get a window of their own to grow in, so that objects that are written side by side stay in few pieces each; it
//!   doubles each time it is used up;
//! - small pieces are packed from the end of the device, everything else lies at its beginning, so that small objects
//!   that come and go leave no holes between large ones;
//! - the shortest extent that is long enough, the first (small pieces: the last) of its class.

mod free;
#[cfg(test)]
mod tests;

use crate::object::{FreeExtentClass, FreeExtents};
use free::{FreeMap, Ranges};
use nacre_types::Fid;
use std::collections::HashMap;

use super::device::BLOCK;

/// Blocks in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Extent {
    /// Number of the first.
    pub(super) start: u64,
    /// How many.
    pub(super) len: u64,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// What a writer wants.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The object.
    pub(super) owner: Fid,
    /// The block that would go on with what the object has.
    pub(super) after: Option<u64>,
    /// How many blocks.
    pub(super) blocks: u64,
    /// More will follow.
    pub(super) is_stream: bool,
}

/// First window of a stream in blocks: 1 MiB.
const WINDOW_FIRST: u64 = (1 << 20) / BLOCK;
/// Largest window: 64 MiB.
const WINDOW_MAX: u64 = (64 << 20) / BLOCK;
/// Share of the free space that a window may take, as a divisor.
const WINDOW_SHARE: u64 = 64;
/// A window that was not used while so many pieces were asked for is given up.
const WINDOW_IDLE: u64 = 256;
/// Windows at a time.
const WINDOWS_MAX: usize = 1024;
/// Pieces of up to so many blocks are small: 64 KiB.
const SMALL_MAX: u64 = (64 << 10) / BLOCK;

/// Part of the longest free extent that moved data may get, as a divisor.
const LONGEST_PART: u64 = 4;

/// Space set aside for an object to grow into.
#[derive(Clone, Copy, Debug)]
struct Window {
    extent: Extent,
    /// Size of the next one.
    next: u64,
    used_at: u64,
}

/// See the [module documentation](self).
pub(super) struct Allocator {
    blocks: u64,
    free: FreeMap,
    windows: HashMap<Fid, Window>,
    window_blocks: u64,
    /// Free blocks that are being discarded.
    held_blocks: u64,
    /// Free space that the device has not been told of.
    untold: Ranges,
    untold_blocks: u64,
    /// Pieces that were asked for.
    clock: u64,
    /// When idle windows were looked for.
    looked_at: u64,
}

impl Allocator {
    /// For blocks `first` up to and without `end`; `used` are taken, ascending and apart from each other.
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

    /// Blocks in all.
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Blocks that nobody has, windows included.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free.blocks() + self.window_blocks + self.held_blocks
    }

    /// Takes up to as many blocks as wanted, in one piece; `None` if nothing is free outside of windows.
    pub(super) fn allocate(&mut self, wish: Wish) -> Option<Extent> {
        self.clock += 1;
        if let Some(extent) = self.take_from_window(&wish) {
            return Some(extent);
        }
        if let Some(extent) = self.take_after(&wish) {
            return Some(extent);
        }
        if wish.is_stream {
            return self.open_window(&wish);
        }
        let is_small = wish.blocks <= SMALL_MAX;
        let found = self.free.find(wish.blocks, is_small)?;
        let len = found.len.min(wish.blocks);
        let start = if is_small { found.end() - len } else { found.start };
        self.carve(Extent { start, len });
        Some(Extent { start, len })
    }

    /// Takes blocks in one piece for data that lies in many and is moved: behind what the object has before it, or the tightest extent. The
    /// longest free extent is for writers: no more than a part of it is given, and only if nothing else is long enough.
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

    fn take_from_window(&mut self, wish: &Wish) -> Option<Extent> {
        let window = self.windows.get_mut(&wish.owner).filter(|window| window.extent.len > 0)?;
        window.used_at = self.clock;
        let taken = Extent { start: window.extent.start, len: wish.blocks.min(window.extent.len) };
        window.extent = Extent { start: taken.end(), len: window.extent.len - taken.len };
        self.window_blocks -= taken.len;
        Some(taken)
    }

    /// Goes on right behind what the object has, if that is free.
    fn take_after(&mut self, wish: &Wish) -> Option<Extent> {
        let found = self.free.starting_at(wish.after?)?;
        // The rest goes into a window for streams, so that others do not take it.
        if found.len < wish.blocks {
            return None;
        }
        Some(self.take_with_window(wish, found))
    }

    fn open_window(&mut self, wish: &Wish) -> Option<Extent> {
        if self.clock >= self.looked_at + WINDOW_IDLE {
            self.looked_at = self.clock;
            self.close_windows(self.clock - WINDOW_IDLE);
        }
        let wanted = self.window_size(wish);
        let found = match self.free.find(wanted, false)? {
            found if found.len >= wanted => found,
            _ => self.free.find(wish.blocks, false)?,
        };
        Some(self.take_with_window(wish, found))
    }

    fn window_size(&self, wish: &Wish) -> u64 {
        let next = self.windows.get(&wish.owner).map_or(WINDOW_FIRST, |window| window.next);
        wish.blocks + next.min(self.free_blocks() / WINDOW_SHARE)
    }

    /// Takes the beginning of a free extent, and what follows as a window if a stream wants it.
    fn take_with_window(&mut self, wish: &Wish, found: Extent) -> Extent {
        let taken = Extent { start: found.start, len: wish.blocks.min(found.len) };
        let window_len = match wish.is_stream {
            true => (self.window_size(wish) - wish.blocks).min(found.len - taken.len),
            false => 0,
        };
        self.carve(Extent { start: found.start, len: taken.len + window_len });
        if wish.is_stream {
            let next = self.windows.get(&wish.owner).map_or(WINDOW_FIRST, |window| window.next);
            let extent = Extent { start: taken.end(), len: window_len };
            let window = Window { extent, next: (next * 2).min(WINDOW_MAX), used_at: self.clock };
            self.window_blocks += window_len;
            self.windows.insert(wish.owner, window);
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

    /// Gives up the window of an object.
    pub(super) fn close_window(&mut self, owner: Fid) {
        if let Some(window) = self.windows.remove(&owner).filter(|window| window.extent.len > 0) {
            self.window_blocks -= window.extent.len;
            self.release(window.extent);
        }
    }

    /// Gives up the windows that were not used since the clock showed `since`, and says what it shows now.
    pub(super) fn close_windows(&mut self, since: u64) -> u64 {
        let idle = |window: &Window| window.used_at <= since;
        let mut owners: Vec<Fid> =
            self.windows.iter().filter(|(_, window)| idle(window)).map(|(owner, _)| *owner).collect();
        owners.sort_unstable_by_key(Fid::to_key);
        owners.into_iter().for_each(|owner| self.close_window(owner));
        self.clock
    }

    /// Gives up all windows.
    pub(super) fn close_all_windows(&mut self) {
        self.close_windows(u64::MAX);
    }

    fn carve(&mut self, extent: Extent) {
        self.free.remove(extent);
        self.untold_blocks -= self.untold.remove(extent);
    }

    /// Gives blocks back.
    pub(super) fn release(&mut self, extent: Extent) {
        self.free.insert(extent);
        self.untold_blocks += self.untold.insert(extent);
    }

    /// Whether there is something for [`Allocator::take_untold`].
    pub(super) fn has_untold(&self, from: u64) -> bool {
        self.untold.first_from(from).is_some()
    }

    /// Free blocks that the device has not been told of.
    pub(super) fn untold_blocks(&self) -> u64 {
        self.untold_blocks
    }

    /// Free blocks that [`Allocator::take_untold`] took out of use for a moment.
    pub(super) fn held_blocks(&self) -> u64 {
        self.held_blocks
    }

    /// Takes up to `max` free blocks at `from` or behind it, of which the device has not been told, out of use until
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

    /// The device has been told of an extent, or does not want to know (`was_told` off).
    pub(super) fn told(&mut self, extent: Extent, was_told: bool) {
        self.held_blocks -= extent.len;
        self.free.insert(extent);
        if !was_told {
            self.untold_blocks += self.untold.insert(extent);
        }
    }

    /// Free extents by address, windows among them: they are given up when somebody else needs the space.
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

    /// How the free space outside of windows lies.
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
