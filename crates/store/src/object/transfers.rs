//! In how many pieces the device of a store read or wrote what a thread asked for.
//!
//! Calls of a store run in the thread of whoever calls, so this needs no room in their results: who counts begins before
//! a call and looks after it. Stores that leave places to a file system note nothing.

use std::cell::Cell;

/// Pieces that lay apart on the device, since [`begin`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pieces {
    /// Read.
    pub reads: u32,
    /// Written.
    pub writes: u32,
}

thread_local! {
    static PIECES: Cell<Pieces> = const { Cell::new(Pieces { reads: 0, writes: 0 }) };
}

/// Counts of this thread from 0 again.
pub fn begin() {
    PIECES.set(Pieces::default());
}

/// As if this thread had done so much since [`begin`]: of one of several requests that it did together.
pub fn restore(pieces: Pieces) {
    PIECES.set(pieces);
}

/// What this thread did since [`begin`].
pub fn noted() -> Pieces {
    PIECES.get()
}

/// How many pieces ranges of the device are, each an offset and a length.
pub(super) fn pieces(ranges: impl Iterator<Item = (u64, usize)>) -> u32 {
    let (mut count, mut end) = (0u32, None);
    for (offset, len) in ranges {
        count = count.saturating_add(u32::from(end != Some(offset)));
        end = Some(offset + len as u64);
    }
    count
}

/// This thread has read ranges of a device.
pub(super) fn note_reads(ranges: impl Iterator<Item = (u64, usize)>) {
    let known = PIECES.get();
    PIECES.set(Pieces { reads: known.reads.saturating_add(pieces(ranges)), ..known });
}

/// This thread has written ranges of a device.
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
