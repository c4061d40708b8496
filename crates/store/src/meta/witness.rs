//! A simulated medium next to the log's files, for tests and simulations: it holds flushed bytes, and remembers later writes.
//!
//! The log notifies it of a write when the kernel has it, and of the beginning and end of a flush. So it
//! knows the states that a power cut at any of these moments can leave, which the files themselves do not
//! show.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use nacre_env::sync::Mutex;

use super::log::SEGMENTS;
use super::segment::segment_path;

/// Bytes that are written atomically.
const SECTOR: usize = 512;

/// Way of a record to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By a copy into the mapping of the file.
    Mapping,
    /// By a call into the page cache.
    Call,
    /// By a call around the page cache.
    Direct,
}

/// State of one segment on the medium.
#[derive(Clone, Debug, Default)]
pub struct Image {
    flushed: Vec<u8>,
    /// Offsets and bytes of the writes that no flush has covered, in order.
    written: Vec<(usize, Vec<u8>)>,
}

impl Image {
    /// Returns a state that a power cut can leave: each sector is as it was flushed, or as one of the later
    /// writes left it. `choose` receives the number of versions of a written sector, and returns the index of
    /// one.
    pub fn after_cut(&self, choose: &mut dyn FnMut(usize) -> usize) -> Vec<u8> {
        let mut versions: Vec<Vec<[u8; SECTOR]>> = vec![Vec::new(); self.flushed.len() / SECTOR];
        for (offset, bytes) in &self.written {
            let end = offset + bytes.len();
            let first = offset / SECTOR;
            for (sector, versions) in (first..end.div_ceil(SECTOR)).zip(&mut versions[first..]) {
                let start = sector * SECTOR;
                let old = versions.last().copied();
                let mut new = old.unwrap_or_else(|| std::array::from_fn(|at| self.flushed[start + at]));
                let (from, to) = ((*offset).max(start), end.min(start + SECTOR));
                new[from - start..to - start].copy_from_slice(&bytes[from - offset..to - offset]);
                versions.push(new);
            }
        }
        let mut left = self.flushed.clone();
        for (sector, versions) in versions.iter().enumerate().filter(|(_, versions)| !versions.is_empty()) {
            if let Some(version) = choose(versions.len() + 1).checked_sub(1) {
                left[sector * SECTOR..][..SECTOR].copy_from_slice(&versions[version]);
            }
        }
        left
    }

    fn flush(&mut self, writes: usize) {
        for (offset, bytes) in self.written.drain(..writes) {
            self.flushed[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }
}

/// The medium: all segments, and counts of the writes by way.
#[derive(Clone, Debug, Default)]
pub struct Medium {
    /// States of the segments.
    pub images: [Image; SEGMENTS],
    ways: Vec<Way>,
}

impl Medium {
    /// Stores a state that a power cut can leave in the directory `dir` of the store, as [`Image::after_cut`].
    ///
    /// # Errors
    /// Those of the file system.
    pub fn cut(&self, dir: &Path, choose: &mut dyn FnMut(usize) -> usize) -> std::io::Result<()> {
        for (slot, image) in self.images.iter().enumerate() {
            std::fs::write(segment_path(dir, slot), image.after_cut(choose))?;
        }
        Ok(())
    }

    /// Returns the number of writes of this way.
    pub fn count(&self, way: Way) -> usize {
        self.ways.iter().filter(|other| **other == way).count()
    }
}

/// Called after each write, and before and after each flush.
type Look = dyn Fn(&Medium) + Send + Sync;

/// See the [module documentation](self).
pub struct Witness {
    medium: Mutex<Medium>,
    look: Box<Look>,
}

/// View of the witness from one segment.
#[derive(Clone)]
pub(crate) struct SegmentWitness {
    witness: Arc<Witness>,
    slot: usize,
}

thread_local! {
    /// Witnesses of the next segments that this thread opens.
    static NEXT: RefCell<Vec<Arc<Witness>>> = const { RefCell::new(Vec::new()) };
}

impl std::fmt::Debug for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("witness of a log")
    }
}

impl Witness {
    /// Creates a witness of an empty medium, which calls `look` after each write, and before and after each
    /// flush.
    pub fn new(look: impl Fn(&Medium) + Send + Sync + 'static) -> Arc<Witness> {
        Arc::new(Witness { medium: Mutex::default(), look: Box::new(look) })
    }

    /// Creates a witness of a medium with this state, for a store that opens again after its process ended.
    pub fn of_medium(medium: Medium) -> Arc<Witness> {
        Arc::new(Witness { medium: Mutex::new(medium), look: Box::new(|_| {}) })
    }

    /// Reports to this witness everything that the store opened by `open` on this thread does from then on.
    pub fn watch<R>(self: &Arc<Self>, open: impl FnOnce() -> R) -> R {
        NEXT.with(|next| *next.borrow_mut() = vec![self.clone(); SEGMENTS]);
        let opened = open();
        NEXT.with(|next| next.borrow_mut().clear());
        opened
    }

    /// Returns the current state of the medium.
    pub fn medium(&self) -> Medium {
        self.medium.lock().clone()
    }

    fn change(&self, change: impl FnOnce(&mut Medium)) {
        let mut medium = self.medium.lock();
        change(&mut medium);
        (self.look)(&medium);
    }
}

impl SegmentWitness {
    /// Returns the witness of the segment that is being opened, if there is one. The file's content counts as
    /// flushed, unless the medium knows the segment.
    pub(crate) fn of_next(path: &Path) -> Option<SegmentWitness> {
        let witness = NEXT.with(|next| next.borrow_mut().pop())?;
        let slot = (0..SEGMENTS).find(|slot| path.ends_with(format!("wal.{slot}"))).expect("a segment");
        let mut medium = witness.medium.lock();
        let image = &mut medium.images[slot];
        if image.flushed.is_empty() {
            image.flushed = std::fs::read(path).expect("read");
        }
        drop(medium);
        Some(SegmentWitness { witness, slot })
    }

    pub(crate) fn wrote(&self, way: Way, offset: usize, parts: &[&[u8]]) {
        self.witness.change(|medium| {
            medium.images[self.slot].written.push((offset, parts.concat()));
            medium.ways.push(way);
        });
    }

    /// Performs a flush, which covers the writes before its beginning.
    pub(crate) fn flushing(&self, flush: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
        let mut writes = 0;
        self.witness.change(|medium| writes = medium.images[self.slot].written.len());
        flush()?;
        self.witness.change(|medium| medium.images[self.slot].flush(writes));
        Ok(())
    }
}
