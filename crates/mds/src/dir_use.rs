//! Inodes and space of each directory, in memory ([`crate::counting`] keeps them up to date).
//!
//! Each directory that has inodes of this MDT counts those whose first names are in it, and has the set of its
//! subdirectories with inodes here: the sums below a directory need a step for each directory, and none for files. A
//! directory takes about 200 bytes. Names in shards belong to the directory itself, so shards do not appear. A
//! directory that is being replaced by another one (`crate::shards::is_former`) appears below that one, uncounted,
//! as names are still in it.

mod serve;

pub(crate) use serve::DirSums;

use crate::shards::{is_former, is_shard};
use nacre_env::sync::Mutex;
use nacre_ondisk::InodeRecord;
use nacre_types::{DirCounts, Fid, Status, StatusResult};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};

/// Directories and subdirectories that a request passes before it lets commits change the counts.
const BATCH: usize = 1024;
/// Number of directories below which memory of removed ones is kept.
const KEEP: usize = 1024;

/// Kind of an inode, as far as counts differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    File,
    Directory,
    Other,
    /// Directory that is being replaced.
    Former,
}

/// What an inode counts for, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    parent: Fid,
    kind: Kind,
    bytes: u64,
    blocks: u64,
}

impl Place {
    /// Returns the place of an inode; `None` for one that is in no directory: the root, shards, inodes without names.
    pub fn of(record: &InodeRecord) -> Option<Place> {
        let attr = &record.attr;
        if record.parent.is_zero() || attr.fid == Fid::ROOT || is_shard(record) {
            return None;
        }
        let kind = if attr.is_regular() {
            Kind::File
        } else if !attr.is_dir() {
            Kind::Other
        } else if record.name.is_empty() && is_former(record) {
            Kind::Former
        } else {
            Kind::Directory
        };
        let bytes = if kind == Kind::File { attr.size } else { 0 };
        let blocks = if attr.is_dir() { 0 } else { attr.blocks };
        Some(Place { parent: record.parent, kind, bytes, blocks })
    }
}

/// The inodes in one directory. Sizes come from clients: sums of them must not overflow.
#[derive(Default, PartialEq, Eq, Debug)]
struct Entry {
    files: u64,
    directories: u64,
    others: u64,
    bytes: u128,
    blocks: u128,
    /// Subdirectories whose inodes are on this MDT.
    subdirs: BTreeSet<Fid>,
}

impl Entry {
    fn add(&mut self, fid: &Fid, place: &Place) {
        match place.kind {
            Kind::File => self.files += 1,
            Kind::Directory => self.directories += 1,
            Kind::Other => self.others += 1,
            Kind::Former => {}
        }
        if matches!(place.kind, Kind::Directory | Kind::Former) {
            self.subdirs.insert(*fid);
        }
        self.bytes += u128::from(place.bytes);
        self.blocks += u128::from(place.blocks);
    }

    /// Saturates: a damaged record that the reader skipped may be removed later.
    fn remove(&mut self, fid: &Fid, place: &Place) {
        let count = match place.kind {
            Kind::File => Some(&mut self.files),
            Kind::Directory => Some(&mut self.directories),
            Kind::Other => Some(&mut self.others),
            Kind::Former => None,
        };
        if let Some(count) = count {
            *count = count.saturating_sub(1);
        }
        self.subdirs.remove(fid);
        self.bytes = self.bytes.saturating_sub(u128::from(place.bytes));
        self.blocks = self.blocks.saturating_sub(u128::from(place.blocks));
    }

    fn is_empty(&self) -> bool {
        (self.files, self.directories, self.others) == (0, 0, 0) && self.subdirs.is_empty()
    }

    fn counts(&self) -> DirCounts {
        let fitting = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        DirCounts {
            files: self.files,
            directories: self.directories,
            others: self.others,
            bytes: fitting(self.bytes),
            blocks: fitting(self.blocks),
        }
    }
}

/// Result of [`DirUse::below`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Below {
    pub counts: DirCounts,
    /// Directories that were found, in the order in which they are done.
    pub found: Vec<Fid>,
    /// Number of directories that are done: first the requested ones, then those that were found.
    pub done: usize,
    /// Subdirectory of the next one after which it is to be continued; zero if it was not begun.
    pub after: Fid,
}

/// See the [module documentation](self).
pub(crate) struct DirUse {
    entries: Mutex<HashMap<Fid, Entry>>,
    is_on: AtomicBool,
    is_complete: AtomicBool,
}

impl DirUse {
    pub fn new() -> DirUse {
        DirUse {
            entries: Mutex::default(),
            is_on: AtomicBool::new(true),
            is_complete: AtomicBool::new(false),
        }
    }

    /// Returns true if directories are counted.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Returns true if all inodes are counted.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// Records that all inodes are counted.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }

    /// Begins without counts, or ends counting.
    pub(crate) fn reset(&self, on: bool) {
        self.is_complete.store(false, Ordering::Release);
        self.is_on.store(on, Ordering::Release);
        *self.entries.lock() = HashMap::new();
    }

    /// Counts the change of an inode.
    pub(crate) fn change(&self, fid: &Fid, old: Option<&Place>, new: Option<&Place>) {
        let mut entries = self.entries.lock();
        if let Some(old) = old
            && let Some(entry) = entries.get_mut(&old.parent)
        {
            entry.remove(fid, old);
        }
        if let Some(new) = new {
            entries.entry(new.parent).or_default().add(fid, new);
        }
        let left = old.map(|old| old.parent).filter(|left| new.is_none_or(|new| new.parent != *left));
        if let Some(left) = left.filter(|left| entries.get(left).is_some_and(Entry::is_empty)) {
            entries.remove(&left);
            if entries.capacity() > KEEP && entries.capacity() / 8 > entries.len() {
                entries.shrink_to_fit();
            }
        }
    }

    /// Returns the sums of these directories and of all below them. Continues the first one after the subdirectory
    /// `after`, and ends when `found_max` directories were found.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if directories are not counted; `EINTR`.
    pub fn below(&self, dirs: &[Fid], after: &Fid, found_max: usize) -> StatusResult<Below> {
        let mut below = Below { after: *after, ..Below::default() };
        // Directories that move meanwhile may be found twice.
        let mut known: HashSet<Fid> = dirs.iter().copied().collect();
        loop {
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            let entries = self.entries.lock();
            if !self.is_on() {
                return Err(Status::EOPNOTSUPP);
            }
            let mut budget = BATCH;
            while budget > 0 {
                let found = below.done.checked_sub(dirs.len()).map(|place| below.found.get(place));
                let Some(dir) = found.unwrap_or_else(|| dirs.get(below.done)).copied() else {
                    return Ok(below);
                };
                budget -= 1;
                let Some(entry) = entries.get(&dir) else {
                    (below.done, below.after) = (below.done + 1, Fid::ZERO);
                    continue;
                };
                if below.after.is_zero() {
                    if below.found.len() >= found_max && !entry.subdirs.is_empty() {
                        return Ok(below);
                    }
                    below.counts.add(&entry.counts());
                }
                if !below.find_in(entry, &mut known, &mut budget, found_max) {
                    if below.found.len() >= found_max {
                        return Ok(below);
                    }
                    break;
                }
                (below.done, below.after) = (below.done + 1, Fid::ZERO);
            }
        }
    }
}

impl Below {
    /// Adds the next subdirectories of a directory, at least one if it was not begun; returns true if these are all.
    fn find_in(
        &mut self,
        entry: &Entry,
        known: &mut HashSet<Fid>,
        budget: &mut usize,
        found_max: usize,
    ) -> bool {
        for subdir in entry.subdirs.range((Bound::Excluded(self.after), Bound::Unbounded)) {
            let is_begun = !self.after.is_zero();
            if is_begun && (*budget == 0 || self.found.len() >= found_max) {
                return false;
            }
            *budget = budget.saturating_sub(1);
            self.after = *subdir;
            if known.insert(*subdir) {
                self.found.push(*subdir);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
