//! Sets of blocks: free extents by address and by class, and plain ranges.

use super::Extent;
use std::collections::{BTreeMap, BTreeSet};

/// Extents of a class that are examined for one that is just long enough.
const LOOKS: usize = 8;
/// The same where there is time for more.
const TIGHT_LOOKS: usize = 256;
/// Number of classes: 2^31 blocks and more are one.
const CLASSES: usize = 32;

/// Returns the class of a length: the integer part of its logarithm.
fn class_of(len: u64) -> usize {
    (len.ilog2() as usize).min(CLASSES - 1)
}

/// Ranges of blocks that neither overlap nor touch.
#[derive(Default)]
pub(super) struct Ranges {
    by_address: BTreeMap<u64, u64>,
}

impl Ranges {
    /// Adds a range that is disjoint from the set, and returns the merged range and the neighbours that it
    /// replaces.
    fn join(&mut self, extent: Extent) -> (Extent, [Option<Extent>; 2]) {
        let mut joined = extent;
        let mut gone = [None; 2];
        if let Some((&start, &len)) = self.by_address.range(..extent.start).next_back() {
            debug_assert!(start + len <= extent.start, "blocks {extent:?} are there already");
            if start + len == extent.start {
                joined = Extent { start, len: len + joined.len };
                gone[0] = Some(Extent { start, len });
            }
        }
        if let Some(len) = self.by_address.remove(&extent.end()) {
            gone[1] = Some(Extent { start: extent.end(), len });
            joined.len += len;
        }
        self.by_address.insert(joined.start, joined.len);
        (joined, gone)
    }

    /// Adds a range, and returns the number of new blocks.
    pub(super) fn insert(&mut self, extent: Extent) -> u64 {
        // Parts may be in the set: space that was given to a window and returned unused.
        let there = self.remove(extent);
        self.join(extent);
        extent.len - there
    }

    /// Removes the part of a range that is in the set, and returns its number of blocks.
    pub(super) fn remove(&mut self, extent: Extent) -> u64 {
        let mut removed = 0;
        if let Some((&start, &len)) = self.by_address.range(..extent.start).next_back()
            && start + len > extent.start
        {
            self.by_address.insert(start, extent.start - start);
            removed += (start + len).min(extent.end()) - extent.start;
            if start + len > extent.end() {
                self.by_address.insert(extent.end(), start + len - extent.end());
            }
        }
        while let Some((&start, &len)) = self.by_address.range(extent.start..extent.end()).next() {
            self.by_address.remove(&start);
            removed += (start + len).min(extent.end()) - start;
            if start + len > extent.end() {
                self.by_address.insert(extent.end(), start + len - extent.end());
            }
        }
        removed
    }

    /// Returns the first range that ends after `from`, cut to begin there.
    pub(super) fn first_from(&self, from: u64) -> Option<Extent> {
        let before = self.by_address.range(..from).next_back().filter(|&(&start, &len)| start + len > from);
        let (&start, &len) = before.or_else(|| self.by_address.range(from..).next())?;
        Some(Extent { start: start.max(from), len: start + len - start.max(from) })
    }
}

/// Free extents, by address and by class.
#[derive(Default)]
pub(super) struct FreeMap {
    ranges: Ranges,
    by_class: [BTreeSet<u64>; CLASSES],
    blocks: u64,
}

impl FreeMap {
    pub(super) fn blocks(&self) -> u64 {
        self.blocks
    }

    fn len_of(&self, start: u64) -> u64 {
        self.ranges.by_address.get(&start).copied().unwrap_or(0)
    }

    /// Adds blocks that are not in the map.
    pub(super) fn insert(&mut self, extent: Extent) {
        let (joined, gone) = self.ranges.join(extent);
        for gone in gone.into_iter().flatten() {
            self.by_class[class_of(gone.len)].remove(&gone.start);
        }
        self.by_class[class_of(joined.len)].insert(joined.start);
        self.blocks += extent.len;
    }

    /// Removes blocks that are in one extent of the map.
    pub(super) fn remove(&mut self, extent: Extent) {
        let Some((&start, &len)) = self.ranges.by_address.range(..=extent.start).next_back() else { return };
        debug_assert!(start + len >= extent.end(), "blocks {extent:?} are not there");
        self.by_class[class_of(len)].remove(&start);
        self.ranges.by_address.remove(&start);
        let parts = [(start, extent.start - start), (extent.end(), start + len - extent.end())];
        for (start, len) in parts.into_iter().filter(|(_, len)| *len > 0) {
            self.ranges.by_address.insert(start, len);
            self.by_class[class_of(len)].insert(start);
        }
        self.blocks -= extent.len;
    }

    pub(super) fn starting_at(&self, start: u64) -> Option<Extent> {
        self.ranges.by_address.get(&start).map(|&len| Extent { start, len })
    }

    /// Returns the first or last extent of the shortest class that is long enough; if there is none, one of
    /// the longest.
    pub(super) fn find(&self, len: u64, last: bool) -> Option<Extent> {
        let class = class_of(len);
        let extent = |start: &u64| Extent { start: *start, len: self.len_of(*start) };
        let starts = &self.by_class[class];
        let fits = |extent: &Extent| extent.len >= len;
        let own = match last {
            true => starts.iter().rev().take(LOOKS).map(extent).find(fits),
            false => starts.iter().take(LOOKS).map(extent).find(fits),
        };
        let end =
            |starts: &BTreeSet<u64>| if last { starts.last().copied() } else { starts.first().copied() };
        let longer = || self.by_class[class + 1..].iter().find_map(end);
        let shorter = || self.by_class[..=class].iter().rev().find_map(end);
        own.or_else(|| longer().or_else(shorter).map(|start| extent(&start)))
    }

    /// Returns the shortest sufficient extent, among the first (the last) of the shortest class that has one.
    pub(super) fn tightest(&self, len: u64, last: bool) -> Option<Extent> {
        let extent = |start: &u64| Extent { start: *start, len: self.len_of(*start) };
        let tightest = |starts: &mut dyn Iterator<Item = &u64>| {
            let fits = starts.take(TIGHT_LOOKS).map(extent).filter(|extent| extent.len >= len);
            fits.min_by_key(|extent| extent.len)
        };
        self.by_class[class_of(len)..].iter().find_map(|starts| match last {
            true => tightest(&mut starts.iter().rev()),
            false => tightest(&mut starts.iter()),
        })
    }

    pub(super) fn largest(&self) -> u64 {
        let longest = self.by_class.iter().rev().find(|starts| !starts.is_empty());
        longest.and_then(|starts| starts.iter().map(|start| self.len_of(*start)).max()).unwrap_or(0)
    }

    /// Returns all extents, by address.
    pub(super) fn extents(&self) -> Vec<Extent> {
        self.ranges.by_address.iter().map(|(&start, &len)| Extent { start, len }).collect()
    }

    /// Returns count and blocks of each class.
    pub(super) fn classes(&self) -> Vec<(u64, u64)> {
        let sum = |starts: &BTreeSet<u64>| starts.iter().map(|start| self.len_of(*start)).sum();
        self.by_class.iter().map(|starts| (starts.len() as u64, sum(starts))).collect()
    }
}
