//! Ranges of bytes that locks cover.

use std::fmt;

/// Alignment of extent locks in bytes: a page is never under the write locks of two clients.
pub const LOCK_PAGE_BYTES: u64 = 4096;

/// Bytes from `start` to `last`, both included, as in Lustre: the last byte of the largest object has an
/// offset in 64 bits, the end after it has none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset of the last byte, not below `start`; [`Extent::EOF`] for "to the end, wherever that is".
    pub last: u64,
}

impl Extent {
    /// The end of an object, however long it gets.
    pub const EOF: u64 = u64::MAX;
    /// The whole object.
    pub const WHOLE: Extent = Extent { start: 0, last: Extent::EOF };

    /// Returns the bytes from `start` to `last`, both included; `None` if `last` is below `start`.
    pub const fn new(start: u64, last: u64) -> Option<Extent> {
        if start <= last { Some(Extent { start, last }) } else { None }
    }

    /// True if the extents have a byte in common.
    pub const fn overlaps(&self, other: &Extent) -> bool {
        self.start <= other.last && other.start <= self.last
    }

    /// True if all bytes of `other` are in this extent.
    pub const fn contains(&self, other: &Extent) -> bool {
        self.start <= other.start && other.last <= self.last
    }

    /// Returns the smallest extent that contains both.
    pub fn hull(&self, other: &Extent) -> Extent {
        Extent { start: self.start.min(other.start), last: self.last.max(other.last) }
    }

    /// Returns the extent widened to whole pages of [`LOCK_PAGE_BYTES`].
    pub const fn aligned_to_pages(&self) -> Extent {
        let mask = LOCK_PAGE_BYTES - 1;
        Extent { start: self.start & !mask, last: self.last | mask }
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Extent {
    /// Writes `[0, 4095]`, `[4096, EOF]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Extent::EOF => write!(f, "[{}, EOF]", self.start),
            last => write!(f, "[{}, {last}]", self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_the_end_of_file_stays() {
        let extent = |start, last| Extent::new(start, last).expect("not empty");
        assert_eq!(extent(1, 4095).aligned_to_pages(), extent(0, 4095));
        assert_eq!(extent(4096, 4096).aligned_to_pages(), extent(4096, 8191));
        assert_eq!(extent(5000, Extent::EOF).aligned_to_pages(), extent(4096, Extent::EOF));
        assert_eq!(Extent::new(1, 0), None);
        assert_eq!(extent(4096, Extent::EOF).to_string(), "[4096, EOF]");
    }
}
