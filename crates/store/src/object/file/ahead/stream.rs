//! State of a stream of writes and of the space reserved ahead of it. Pure.

use std::ops::Range;

/// Unit in which space is reserved and counted, in bytes.
pub(super) const BLOCK: u64 = 4096;
/// Distance in bytes from the end of the last write within which a write belongs to the same stream: several
/// threads deliver it, and clients have eight requests of 4 MiB under way.
const NEAR: u64 = 32 << 20;
/// Bytes after which writes count as a stream: smaller objects cost nothing.
const STREAM_MIN: u64 = 1 << 20;
/// Least bytes reserved at once: with fewer, the next reservation comes too soon to be worth a system call.
const RESERVATION_MIN: u64 = 4 << 20;

/// Progress of a stream of writes.
#[derive(Default)]
pub(super) struct Growth {
    end: u64,
    bytes: u64,
}

impl Growth {
    /// Notes a write, and returns the bytes to reserve after it if it needs space: as many as the stream has
    /// written so far, at most `max`, so that a release never frees more than was written.
    pub(super) fn on_write(&mut self, offset: u64, len: u64, max: u64) -> Option<u64> {
        if offset.abs_diff(self.end) > NEAR {
            (self.end, self.bytes) = (offset, 0);
        }
        self.end = self.end.max(offset + len);
        self.bytes = self.bytes.saturating_add(len);
        (self.bytes >= STREAM_MIN).then(|| self.bytes.max(RESERVATION_MIN).min(max) / BLOCK * BLOCK)
    }
}

/// Ranges of blocks that are reserved and not written yet: in order, disjoint.
#[derive(Default)]
pub(super) struct Parts(Vec<Range<u64>>);

impl Parts {
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|part| part.end - part.start).sum()
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Adds a range after all others.
    pub(super) fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Removes the blocks that a write touched; returns their bytes.
    pub(super) fn written(&mut self, offset: u64, len: u64) -> u64 {
        let (start, end) = (offset / BLOCK * BLOCK, (offset + len).div_ceil(BLOCK) * BLOCK);
        let before = self.bytes();
        let left = |part: &Range<u64>| {
            let (head, tail) = (part.start..part.end.min(start), part.start.max(end)..part.end);
            [head, tail].into_iter().filter(|some| !some.is_empty())
        };
        self.0 = self.0.iter().flat_map(left).collect();
        before - self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_stream_wishes_for_as_much_as_it_has_brought_and_small_or_scattered_writes_for_nothing() {
        let mut growth = Growth::default();
        assert_eq!(growth.on_write(0, MIB / 2, 64 * MIB), None);
        assert_eq!(growth.on_write(MIB / 2, MIB / 2, 64 * MIB), Some(4 * MIB));
        // Out of order, as several threads deliver it.
        assert_eq!(growth.on_write(5 * MIB, 4 * MIB, 64 * MIB), Some(5 * MIB));
        assert_eq!(growth.on_write(MIB, 4 * MIB, 64 * MIB), Some(9 * MIB));
        assert_eq!(growth.on_write(9 * MIB, 4 * MIB, 8 * MIB), Some(8 * MIB), "the largest");
        assert_eq!(growth.on_write(500 * MIB, 4096, 64 * MIB), None, "elsewhere");
        assert_eq!(growth.on_write(100 * MIB, 4096, 64 * MIB), None, "and elsewhere");
    }

    #[test]
    fn what_is_written_is_not_reserved_any_more_in_any_order() {
        let mut parts = Parts::default();
        parts.push(0..8 * BLOCK);
        parts.push(8 * BLOCK..16 * BLOCK);
        assert_eq!((parts.count(), parts.bytes()), (1, 16 * BLOCK));
        assert_eq!(parts.written(4 * BLOCK, BLOCK), BLOCK);
        assert_eq!(parts.written(4 * BLOCK, BLOCK), 0, "a second time");
        // A byte takes its whole block.
        assert_eq!(parts.written(10 * BLOCK - 1, 2), 2 * BLOCK);
        let left: Vec<_> = parts.iter().cloned().collect();
        assert_eq!(left, [0..4 * BLOCK, 5 * BLOCK..9 * BLOCK, 11 * BLOCK..16 * BLOCK]);
        assert_eq!(parts.written(0, 100 * BLOCK), 13 * BLOCK);
        assert_eq!((parts.count(), parts.bytes()), (0, 0));
    }
}
