//! State of the streams through one open object: when to start write-out, what to read ahead.

use std::ops::Range;

/// Writes since the last start of write-out.
#[derive(Default)]
pub(super) struct WriteStream {
    start: u64,
    end: u64,
    bytes: u64,
}

impl WriteStream {
    /// Notes a write; returns a range whose write-out should start now.
    ///
    /// Only dense ranges: scattered writes are left to the kernel, which sorts them better when it has more.
    pub(super) fn on_write(&mut self, offset: u64, len: u64, threshold: u64) -> Option<Range<u64>> {
        let end = offset + len;
        if self.bytes == 0 {
            (self.start, self.end) = (offset, end);
        } else {
            self.start = self.start.min(offset);
            self.end = self.end.max(end);
        }
        self.bytes += len;
        if threshold == 0 || self.bytes < threshold {
            return None;
        }
        let is_dense = self.end - self.start <= self.bytes.saturating_mul(2);
        self.bytes = 0;
        is_dense.then_some(self.start..self.end)
    }
}

/// Ranges already fetched ahead of reads.
#[derive(Default)]
pub(super) struct ReadStream {
    fetched: Range<u64>,
}

/// Smallest piece that is fetched at once, in bytes: smaller ones would cost a system call per small read.
const FETCH_MIN: u64 = 512 << 10;

impl ReadStream {
    /// Notes a read of `range` whose reader will soon request `ahead` bytes more; returns the range to start
    /// fetching now.
    pub(super) fn on_read(&mut self, range: Range<u64>, ahead: u64) -> Option<Range<u64>> {
        let wanted = range.end..range.end.saturating_add(ahead);
        let continues = self.fetched.start <= range.end && range.end <= self.fetched.end;
        if !continues {
            self.fetched = wanted.clone();
            return Some(wanted);
        }
        let missing = self.fetched.end..wanted.end;
        if missing.end < missing.start.saturating_add(FETCH_MIN.min(ahead / 2)) || missing.is_empty() {
            return None;
        }
        self.fetched = range.start..wanted.end;
        Some(missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_of_writes_is_written_out_in_pieces_and_scattered_writes_are_not() {
        let mut stream = WriteStream::default();
        assert_eq!(stream.on_write(0, 2, 4), None);
        assert_eq!(stream.on_write(2, 2, 4), Some(0..4));
        // Out of order, as several threads deliver it.
        assert_eq!(stream.on_write(6, 2, 4), None);
        assert_eq!(stream.on_write(4, 2, 4), Some(4..8));
        assert_eq!(stream.on_write(0, 2, 4), None);
        assert_eq!(stream.on_write(1000, 2, 4), None);
        assert_eq!(stream.on_write(8, 8, 4), Some(8..16));
        assert_eq!(stream.on_write(0, 100, 0), None, "0 switches it off");
    }

    #[test]
    fn reads_in_sequence_fetch_each_byte_once() {
        let mut stream = ReadStream::default();
        let mib = 1u64 << 20;
        assert_eq!(stream.on_read(0..mib, 4 * mib), Some(mib..5 * mib));
        assert_eq!(stream.on_read(mib..2 * mib, 4 * mib), Some(5 * mib..6 * mib));
        assert_eq!(stream.on_read(2 * mib..2 * mib + 4096, 4 * mib), None, "too little to be worth a call");
        assert_eq!(stream.on_read(100 * mib..101 * mib, mib), Some(101 * mib..102 * mib), "a new stream");
    }
}
