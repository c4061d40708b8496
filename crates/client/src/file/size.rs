//! The size of an open file, and the proof that it is true.

use nacre_layout::{Layout, object_ranges};

/// Space is shown in units of this many bytes (`st_blocks`).
const BLOCK_UNIT: u64 = 512;
/// Allocation unit of the file systems below OSTs, in bytes.
const ALLOCATION_UNIT: u64 = 4096;

/// How well the size is known. Eras are those of [`FileState::lock_era`](super::FileState::lock_era).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Known {
    /// The size has to be requested.
    #[default]
    Unsure,
    /// The size was learned under the lease with this number, and is true while that is exclusive and in
    /// force.
    UnderLease(u64),
    /// The file has at least this size under the exclusive lease with this number.
    AtLeastUnderLease(u64),
    /// With other clients: the file has at least this size, while the locks of this era are held.
    AtLeast(u64),
    /// With other clients: all objects are locked to their ends in this era, so the file has exactly this
    /// size.
    Exactly(u64),
}

/// Size and space of a file.
#[derive(Default)]
pub(crate) struct Size {
    /// Size in bytes, as last learned, plus what this client wrote since.
    pub bytes: u64,
    known: Known,
    /// Space in units of 512 bytes, if known.
    pub blocks: Option<u64>,
    /// Bytes from the start of the file that this client wrote sequentially since the file was empty.
    dense: u64,
}

impl Size {
    /// True if it was learned under the exclusive lease with this number, which is in force.
    pub fn is_of(&self, lease: u64) -> bool {
        lease != 0 && self.known == Known::UnderLease(lease)
    }

    /// True if the file has at least this size under the locks of this era.
    pub fn is_floor(&self, era: u64) -> bool {
        matches!(self.known, Known::AtLeast(known) | Known::Exactly(known) if known == era)
    }

    /// True if the file has at least this size under the lease with this number (0: a shared one), or under the locks
    /// of this era. Otherwise other clients may have truncated the file since.
    pub fn is_lower_bound(&self, lease: u64, era: u64) -> bool {
        let is_under_lease =
            matches!(self.known, Known::UnderLease(of) | Known::AtLeastUnderLease(of) if of == lease);
        (lease != 0 && is_under_lease) || self.is_floor(era)
    }

    /// Returns the size as far as it [is a lower bound](Size::is_lower_bound).
    pub fn lower_bound(&self, lease: u64, era: u64) -> u64 {
        if self.is_lower_bound(lease, era) { self.bytes } else { 0 }
    }

    /// Records under this lease that the file has at least this size.
    pub fn note_lower_bound(&mut self, bytes: u64, lease: u64, era: u64) {
        if !self.is_lower_bound(lease, era) {
            (self.bytes, self.known, self.dense) = (0, Known::AtLeastUnderLease(lease), 0);
        }
        self.bytes = self.bytes.max(bytes);
    }

    /// True if the file has exactly this size under the locks of this era.
    pub fn is_exact(&self, era: u64) -> bool {
        self.known == Known::Exactly(era)
    }

    /// Records size and space from a server, requested under this lease (0: a shared one).
    pub fn learn(&mut self, bytes: u64, blocks: u64, lease: u64) {
        (self.bytes, self.blocks) = (bytes, Some(blocks));
        self.hangs_on(lease);
    }

    /// Makes the size valid under this lease; under none if it is a shared one (0).
    pub fn hangs_on(&mut self, lease: u64) {
        match (lease, self.known) {
            (0, Known::UnderLease(_) | Known::AtLeastUnderLease(_)) => self.known = Known::Unsure,
            (0, _) => {}
            _ => self.known = Known::UnderLease(lease),
        }
    }

    /// Makes the size valid under the locks of this era.
    pub fn hangs_on_locks(&mut self, era: u64) {
        if !self.is_exact(era) {
            self.known = Known::AtLeast(era);
        }
    }

    /// Records that all objects are locked to their ends, in the era in which the size was a lower bound.
    pub fn is_all_locked(&mut self, era: u64) {
        debug_assert!(self.is_floor(era), "nothing else says that the bytes are there");
        self.known = Known::Exactly(era);
    }

    /// Records that no lock guarantees the size any more.
    pub fn locks_say_nothing(&mut self) {
        if !matches!(self.known, Known::UnderLease(_) | Known::AtLeastUnderLease(_)) {
            self.known = Known::Unsure;
        }
    }

    /// Records a write of `[offset, end)`.
    pub fn on_written(&mut self, offset: u64, end: u64) {
        if offset <= self.dense && end > self.dense {
            self.dense = end;
        }
        self.bytes = self.bytes.max(end);
        self.blocks = None;
    }

    /// Records a write up to `end` under locks of this era: other clients cannot truncate it while they are
    /// held.
    pub fn on_written_beside(&mut self, end: u64, era: u64) {
        if !self.is_floor(era) {
            // The previously known size may be outdated.
            (self.bytes, self.known, self.dense) = (end, Known::AtLeast(era), 0);
        }
    }

    /// Records a write from `offset` on that may have arrived or not: only the objects know the size.
    pub fn on_written_in_part(&mut self, offset: u64) {
        self.hangs_on(0);
        self.dense = self.dense.min(offset);
    }

    /// Records that the size was set under this lease.
    pub fn on_truncated(&mut self, bytes: u64, lease: u64) {
        self.bytes = bytes;
        self.hangs_on(lease);
        self.dense = self.dense.min(bytes);
        self.blocks = (bytes == 0).then_some(0);
    }

    /// Records that space was allocated or freed in some way other than by writing.
    pub fn on_allocated(&mut self) {
        (self.dense, self.blocks) = (0, None);
    }

    /// Returns the space used, as far as it is known without a request: from a reply, or because this client
    /// wrote every byte.
    pub fn known_blocks(&self, layout: Option<&Layout>) -> Option<u64> {
        if self.blocks.is_some() {
            return self.blocks;
        }
        let layout = layout.filter(|_| self.dense >= self.bytes)?;
        Some(object_ranges(layout, 0, self.bytes).map(|part| blocks_of(part.end - part.start)).sum())
    }
}

/// Returns the space of a dense object of `bytes`.
fn blocks_of(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALLOCATION_UNIT) / BLOCK_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_that_a_size_is_true_changes_with_the_lease() {
        let mut size = Size::default();
        size.learn(10, 8, 3);
        assert!(size.is_of(3) && !size.is_of(4) && !size.is_of(0));
        size.locks_say_nothing();
        assert!(size.is_of(3), "the lease does");
        size.hangs_on_locks(5);
        assert!(size.is_floor(5) && !size.is_exact(5) && !size.is_of(3));
        size.is_all_locked(5);
        size.hangs_on_locks(5);
        assert!(size.is_exact(5) && size.is_floor(5) && !size.is_floor(6));
        size.on_truncated(4, 0);
        assert!(size.is_exact(5), "the locks are still there");
        size.on_written_beside(20, 6);
        assert!(size.is_floor(6) && !size.is_exact(6) && size.bytes == 20);
        size.learn(7, 8, 9);
        size.on_written_in_part(0);
        assert!(!size.is_of(9));
    }

    #[test]
    fn a_size_from_before_an_exclusive_lease_says_nothing_about_the_size_after_a_write_under_it() {
        let mut size = Size::default();
        size.learn(100, 8, 0);
        size.hangs_on_locks(5);
        assert_eq!((size.lower_bound(0, 5), size.lower_bound(0, 6), size.lower_bound(7, 6)), (100, 0, 0));
        size.note_lower_bound(20, 7, 6);
        size.on_written(10, 20);
        assert_eq!((size.bytes, size.lower_bound(7, 6), size.lower_bound(8, 6)), (20, 20, 0));
        assert!(!size.is_of(7), "there may be more");
        size.note_lower_bound(15, 7, 6);
        assert_eq!(size.lower_bound(7, 6), 20);
        size.learn(30, 8, 7);
        size.note_lower_bound(25, 7, 6);
        assert!(size.is_of(7) && size.bytes == 30);
        size.hangs_on(0);
        assert_eq!((size.lower_bound(7, 6), size.lower_bound(0, 0)), (0, 0));
    }
}
