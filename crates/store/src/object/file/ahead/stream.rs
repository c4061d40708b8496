//! What is known of a stream of writes and of the space that is reserved ahead of it. Pure.

use std::ops::Range;

/// Unit in which space is reserved and counted, in bytes.
pub(super) const BLOCK: u64 = 4096;
/// As far from where the last write ended another one may begin and still be of the same stream: several threads deliver it, and
/// clients have eight requests of 4 MiB under way.
const NEAR: u64 = 32 << 20;
/// Bytes after which writes are a stream: smaller objects cost nothing.
const STREAM_MIN: u64 = 1 << 20;
/// Least space that is reserved at once: with less, the next reservation comes too soon to be worth a system call.
const WISH_MIN: u64 = 4 << 20;

/// How far a stream of writes has come.
#[derive(Default)]
pub(super) struct Growth {
    end: u64,
    bytes: u64,
}

impl Growth {
    /// Notes a write, and says how much to reserve behind it if it needs space: as much as the stream has brought so far, at most
    /// `max`, so that what is given back is never more than what was written.
    pub(super) fn on_write(&mut self, offset: u64, len: u64, max: u64) -> Option<u64> {
        if offset.abs_diff(self.end) > NEAR {
            (self.end, self.bytes) = (offset, 0);
        }
        self.end = self.end.max(offset + len);
        self.bytes = self.bytes.saturating_add(len);
        (self.bytes >= STREAM_MIN).then(|| self.bytes.max(WISH_MIN).min(max) / BLOCK * BLOCK)
    }
}

/// Ranges of blocks that are reserved and not written yet: in order, apart from each other.
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

    /// Adds a range behind all others.
    pub(super) fn push(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Takes out what a write has touched, in whole blocks; bytes that were taken out.
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
        // A byte takes its block.
        assert_eq!(parts.written(10 * BLOCK - 1, 2), 2 * BLOCK);
        let left: Vec<_> = parts.iter().cloned().collect();
        assert_eq!(left, [0..4 * BLOCK, 5 * BLOCK..9 * BLOCK, 11 * BLOCK..16 * BLOCK]);
        assert_eq!(parts.written(0, 100 * BLOCK), 13 * BLOCK);
        assert_eq!((parts.count(), parts.bytes()), (0, 0));
    }
}
