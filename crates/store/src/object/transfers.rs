//! Number of pieces on the device of a store that the requests of a thread read or wrote.
//!
//! Calls of a store run in the thread of the caller, so their results need no field for this: the caller
//! begins a count before a call and reads it afterwards. Stores that leave placement to a file system count
//! nothing.

use std::cell::Cell;

/// Pieces at separate places on the device, since [`begin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    /// Number of pieces read.
    pub reads: u32,
    /// Number of pieces written.
    pub writes: u32,
}

thread_local! {
    static PIECES: Cell<Pieces> = const { Cell::new(Pieces { reads: 0, writes: 0 }) };
}

/// Resets the counts of this thread to 0.
pub fn begin() {
    PIECES.set(Pieces::default());
}

/// Sets the counts of this thread: to those of one of several requests that it did together.
pub fn restore(pieces: Pieces) {
    PIECES.set(pieces);
}

/// Returns the counts of this thread since [`begin`].
pub fn noted() -> Pieces {
    PIECES.get()
}

/// Returns the number of pieces of ranges of the device, each an offset and a length.
pub(super) fn pieces(ranges: impl Iterator<Item = (u64, usize)>) -> u32 {
    let (mut count, mut end) = (0u32, None);
    for (offset, len) in ranges {
        count = count.saturating_add(u32::from(end != Some(offset)));
        end = Some(offset + len as u64);
    }
    count
}

/// Notes that this thread has read ranges of a device.
pub(super) fn note_reads(ranges: impl Iterator<Item = (u64, usize)>) {
    let known = PIECES.get();
    PIECES.set(Pieces { reads: known.reads.saturating_add(pieces(ranges)), ..known });
}

/// Notes that this thread has written ranges of a device.
pub(super) fn note_writes(ranges: impl Iterator<Item = (u64, usize)>) {
    let known = PIECES.get();
    PIECES.set(Pieces { writes: known.writes.saturating_add(pieces(ranges)), ..known });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_follow_on_each_other_are_one_piece() {
        begin();
        assert_eq!(noted(), Pieces::default());
        note_reads([(0, 4096), (4096, 8192), (20_480, 4096), (0, 4096)].into_iter());
        note_writes([(4096, 4096)].into_iter());
        note_writes(std::iter::empty());
        assert_eq!(noted(), Pieces { reads: 3, writes: 1 });
        begin();
        assert_eq!(noted(), Pieces::default());
        restore(Pieces { reads: 2, writes: 0 });
        assert_eq!(noted().reads, 2);
    }
}
