//! Slot files: the files that hold objects, reused by one object after another.
//!
//! Slot `n` is the file `objects/XX/NNNNNN`: XX the bits 8 to 15 of n, NNNNNN all of n, both in hexadecimal,
//! so that files created together are stored together and few directories have to be synced for them. Files
//! are never unlinked: on file systems without a journal, creating a file after many were unlinked is very
//! slow (ext4 scans past the inodes that were deleted in the last minutes), and a warm inode is cheaper
//! anyway.
//!
//! A slot is *busy* from the moment it is taken for an object until its file is empty again, durably. So a
//! free slot never holds bytes that a new owner could show, whatever part of recent changes a power cut
//! undoes.

use super::local::{FileStat, SlotFile, Tree};
use crate::object::{ObjectError, Result};
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of directories that slot files are spread over.
pub(super) const SLOT_DIRECTORIES: u32 = 256;
/// Recently freed slots that are preferred for reuse; their inodes are warm.
const RECENT_MAX: usize = 4096;

/// Returns the name of a slot's file inside its directory.
pub(super) fn file_name(slot: u32) -> String {
    format!("{slot:06x}")
}

/// Returns the directory of a slot's file.
fn directory_of(slot: u32) -> u32 {
    (slot >> 8) % SLOT_DIRECTORIES
}

/// Returns the path of a slot's file below the directory of objects.
fn relative_path(slot: u32) -> String {
    format!("{:02x}/{slot:06x}", directory_of(slot))
}

/// Returns the name of slot directory `index`.
pub(super) fn directory_name(index: u32) -> String {
    format!("{index:02x}")
}

/// Returns the slot of a file in directory `index`; `None` if no slot has that name there.
pub(super) fn parse_name(index: u32, name: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(name).ok()?;
    let slot = u32::from_str_radix(text, 16).ok()?;
    (directory_of(slot) == index && file_name(slot) == text).then_some(slot)
}

/// Slots in use.
#[derive(Default)]
struct Map {
    /// Bitmap of the slots below `end`, set if busy.
    busy: Vec<u64>,
    /// First slot that was never used as far as is known.
    end: u32,
    /// Number of clear bits below `end`.
    free: u32,
    /// Word below which no bit is clear.
    search_from: usize,
    /// Recently freed slots, newest last; a slot that a search took meanwhile is busy again.
    recent: Vec<u32>,
    /// Free slots whose file was created in advance, so that its name may not be durable.
    made: HashSet<u32>,
}

impl Map {
    fn is_busy(&self, slot: u32) -> bool {
        slot < self.end && self.busy[slot as usize / 64] & (1 << (slot % 64)) != 0
    }

    fn set_busy(&mut self, slot: u32) {
        if slot >= self.end {
            self.free += slot - self.end;
            self.end = slot + 1;
            self.busy.resize(self.end.div_ceil(64) as usize, 0);
            self.busy[slot as usize / 64] |= 1 << (slot % 64);
        } else if !self.is_busy(slot) {
            self.busy[slot as usize / 64] |= 1 << (slot % 64);
            self.free -= 1;
        }
    }

    fn set_free(&mut self, slot: u32) {
        if !self.is_busy(slot) {
            return;
        }
        let word = slot as usize / 64;
        self.busy[word] &= !(1 << (slot % 64));
        self.free += 1;
        self.search_from = self.search_from.min(word);
        if self.recent.len() < RECENT_MAX {
            self.recent.push(slot);
        }
    }

    fn take(&mut self) -> Option<Taken> {
        while let Some(slot) = self.recent.pop() {
            if !self.is_busy(slot) {
                return Some(self.taken(slot));
            }
        }
        if self.free > 0 {
            while let Some(word) = self.busy.get(self.search_from) {
                let slot = self.search_from as u32 * 64 + word.trailing_ones();
                if *word != u64::MAX && slot < self.end {
                    return Some(self.taken(slot));
                }
                self.search_from += 1;
            }
        }
        self.take_new()
    }

    fn take_new(&mut self) -> Option<Taken> {
        let slot = self.end;
        if slot == u32::MAX {
            return None;
        }
        self.set_busy(slot);
        Some(Taken { slot, has_file: false, is_new: false, free_left: self.free })
    }

    fn taken(&mut self, slot: u32) -> Taken {
        self.set_busy(slot);
        Taken { slot, has_file: true, is_new: self.made.remove(&slot), free_left: self.free }
    }
}

/// A slot taken for a new owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub(super) slot: u32,
    /// Its file probably exists.
    pub(super) has_file: bool,
    /// Its file was created in advance, and its name may not be durable.
    pub(super) is_new: bool,
    /// Free slots left.
    pub(super) free_left: u32,
}

/// A file opened for a new owner.
pub(super) struct FreshFile {
    pub(super) file: SlotFile,
    /// The file was created recently: its name may not be durable.
    pub(super) is_new: bool,
}

/// The slot files of one store.
pub(super) struct Slots {
    root: PathBuf,
    /// Open flags of files.
    access: OFlags,
    tree: Tree,
    map: Mutex<Map>,
    files_made: AtomicU64,
    /// By directory: it was created since the store was opened, so its name may not be durable.
    is_unsure: [AtomicBool; SLOT_DIRECTORIES as usize],
}

impl Slots {
    /// Creates the set of slot files below a directory. Directories in between are created on first use: all
    /// at once they would be most of the work of creating a store.
    pub(super) fn new(root: PathBuf, tree: Tree, read_only: bool) -> Slots {
        Slots {
            root,
            access: if read_only { OFlags::RDONLY } else { OFlags::RDWR },
            tree,
            map: Mutex::new(Map::default()),
            files_made: AtomicU64::new(0),
            is_unsure: [const { AtomicBool::new(false) }; SLOT_DIRECTORIES as usize],
        }
    }

    /// Returns the directory above all slot files.
    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Makes the name of a slot's file durable.
    pub(super) fn sync_name(&self, slot: u32) -> std::result::Result<(), Errno> {
        let index = directory_of(slot);
        self.tree.sync_directory(&directory_name(index))?;
        let is_unsure = &self.is_unsure[index as usize];
        if is_unsure.load(Ordering::Acquire) {
            self.tree.sync_top()?;
            is_unsure.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Returns the attributes of a slot's file; `None` if it does not exist.
    pub(super) fn stat(&self, slot: u32) -> std::result::Result<Option<FileStat>, Errno> {
        self.tree.stat(&relative_path(slot))
    }

    /// Returns the path of a slot's file, for messages.
    pub(super) fn path(&self, slot: u32) -> PathBuf {
        self.root.join(relative_path(slot))
    }

    /// Returns the path of the directory above all slot files, for messages.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a slot directory, for messages.
    pub(super) fn directory_path(&self, index: u32) -> PathBuf {
        self.root.join(directory_name(index))
    }

    /// Marks a slot as owned; used while the index is read. Returns false if it had an owner already.
    pub(super) fn claim(&self, slot: u32) -> bool {
        let mut map = self.map.lock();
        let first = !map.is_busy(slot);
        map.set_busy(slot);
        first
    }

    /// Takes a free slot; `None` if all numbers are used.
    pub(super) fn take(&self) -> Option<Taken> {
        self.map.lock().take()
    }

    /// Creates files in advance until `wanted` slots are free, or `is_enough` returns true; their names are
    /// durable then.
    pub(super) fn make_spare(&self, wanted: u32, is_enough: impl Fn() -> bool) -> Result<()> {
        let mut made = Vec::new();
        let mut result = Ok(());
        while !is_enough() {
            let taken = {
                let mut map = self.map.lock();
                if map.free >= wanted { None } else { map.take_new() }
            };
            let Some(taken) = taken else { break };
            let fresh = self.open_fresh(taken, Fid::ZERO);
            let is_new = fresh.as_ref().is_ok_and(|fresh| fresh.is_new);
            self.give_back_unused(taken.slot, is_new);
            if is_new {
                made.push(taken.slot);
            }
            if let Err(error) = fresh {
                result = Err(error);
                break;
            }
        }
        // Slots of one directory follow each other.
        for slots in made.chunk_by(|a, b| directory_of(*a) == directory_of(*b)) {
            let slot = slots[0];
            self.sync_name(slot).map_err(|error| ObjectError::Path {
                action: "sync",
                path: self.directory_path(directory_of(slot)),
                source: error.into(),
            })?;
            let mut map = self.map.lock();
            for slot in slots {
                map.made.remove(slot);
            }
        }
        result
    }

    /// Returns slots whose files are durably empty to the free ones.
    pub(super) fn give_back(&self, slots: &[u32]) {
        let mut map = self.map.lock();
        slots.iter().for_each(|&slot| map.set_free(slot));
    }

    /// Returns a slot that got no owner; its file, if it has one, was created recently if `is_new`.
    pub(super) fn give_back_unused(&self, slot: u32, is_new: bool) {
        let mut map = self.map.lock();
        if is_new {
            map.made.insert(slot);
        }
        map.set_free(slot);
    }

    /// Whether the slot has no owner, and its file is empty as far as is known.
    pub(super) fn is_free(&self, slot: u32) -> bool {
        !self.map.lock().is_busy(slot)
    }

    /// Returns the end of the range of slots that were ever used as far as is known.
    pub(super) fn end(&self) -> u32 {
        self.map.lock().end
    }

    /// Returns the number of free slots below [`Slots::end`].
    pub(super) fn free_count(&self) -> u64 {
        u64::from(self.map.lock().free)
    }

    /// Returns the number of files created since the store was opened.
    pub(super) fn files_made(&self) -> u64 {
        self.files_made.load(Ordering::Relaxed)
    }

    /// Opens the file of a slot; `ENOENT` if it does not exist.
    pub(super) fn open_file(&self, slot: u32, extra: OFlags) -> std::result::Result<SlotFile, Errno> {
        self.tree.open_file(&relative_path(slot), self.access | extra)
    }

    /// Opens the file of a slot that was just taken for `object`, creating it if it does not exist.
    pub(super) fn open_fresh(&self, taken: Taken, object: Fid) -> Result<FreshFile> {
        let fail = |error| ObjectError::io("open file for new object", object, error);
        let make = || self.make_file(taken.slot);
        if !taken.has_file {
            match make() {
                Ok(file) => return Ok(self.made(file)),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(fail(error)),
            }
        }
        match self.open_file(taken.slot, OFlags::empty()) {
            Ok(file) => {
                // Free slots are empty. One beyond the known end may have content from before a power cut.
                if !file.stat().map_err(fail)?.is_empty() {
                    file.empty().map_err(fail)?;
                    nacre_env::blocking(|| file.sync()).map_err(fail)?;
                }
                Ok(FreshFile { file, is_new: taken.is_new })
            }
            Err(Errno::NOENT) => make().map(|file| self.made(file)).map_err(fail),
            Err(error) => Err(fail(error)),
        }
    }

    /// Creates the file of a slot, and its directory if that is missing.
    fn make_file(&self, slot: u32) -> std::result::Result<SlotFile, Errno> {
        let flags = OFlags::CREATE | OFlags::EXCL;
        match self.open_file(slot, flags) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let index = directory_of(slot);
        // Before the directory is visible: a thread that makes a file in it durable must know.
        self.is_unsure[index as usize].store(true, Ordering::Release);
        self.tree.make_directory(&directory_name(index))?;
        self.open_file(slot, flags)
    }

    /// Empties the file of a slot without owner. `None` if there is no file, else whether it held anything.
    pub(super) fn empty_leftover(&self, slot: u32) -> Result<Option<bool>> {
        let fail =
            |error: Errno| ObjectError::Path { action: "empty", path: self.path(slot), source: error.into() };
        let Some(stat) = self.stat(slot).map_err(fail)? else { return Ok(None) };
        if stat.is_empty() {
            return Ok(Some(false));
        }
        let file = self.open_file(slot, OFlags::empty()).map_err(fail)?;
        file.empty().map_err(fail)?;
        Ok(Some(true))
    }

    fn made(&self, file: SlotFile) -> FreshFile {
        self.files_made.fetch_add(1, Ordering::Relaxed);
        FreshFile { file, is_new: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_slots_parse_back_and_no_other_name_does() {
        for slot in [0, 1, 255, 256, 0xabcdef, 0x0123_4567, u32::MAX] {
            let index = directory_of(slot);
            assert_eq!(parse_name(index, file_name(slot).as_bytes()), Some(slot));
            assert_eq!(parse_name((index + 1) % SLOT_DIRECTORIES, file_name(slot).as_bytes()), None);
        }
        assert_eq!((directory_of(0xabcd12), &*relative_path(0xabcd12)), (0xcd, "cd/abcd12"));
        for bad in ["", "1", "0001", "0000001", "00000A", "+00001", "zzzzzz", "100000000"] {
            assert_eq!(parse_name(0, bad.as_bytes()), None, "{bad}");
            assert_eq!(parse_name(1, bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn no_slot_is_taken_twice_and_free_ones_come_before_new_ones() {
        let mut map = Map::default();
        map.set_busy(200);
        assert_eq!((map.free, map.end), (200, 201));
        let mut taken: Vec<u32> = (0..200).map(|_| map.take().unwrap().slot).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..200).collect::<Vec<_>>());
        let next = |map: &mut Map| map.take().map(|taken| (taken.slot, taken.has_file));
        assert_eq!(next(&mut map), Some((201, false)));
        map.set_free(77);
        map.set_free(77);
        assert_eq!(map.free, 1);
        assert_eq!(next(&mut map), Some((77, true)));
        assert_eq!(next(&mut map), Some((202, false)));
    }
}
