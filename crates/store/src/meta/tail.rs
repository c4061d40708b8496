//! Records as whole pages: the form in which the log writes by system calls.
//!
//! A record begins where the previous one ended, in the middle of a page. That page is written again with it,
//! from a copy of its beginning, and the rest of the last page as zeros. So transfers can bypass the page
//! cache, and those through the cache never have to fetch a page. The bytes of earlier records stay the same,
//! so a torn write leaves them intact.

use std::io;

use super::segment::{PAGE, Segment};
use crate::aligned::AlignedBuffer;

/// Longest record in bytes that is written as pages.
pub(crate) const LONGEST: usize = 64 << 10;

/// The page in which the last record ended.
#[derive(Default)]
pub(crate) struct Tail {
    /// One page, and the longest record with the page in which it ends.
    memory: Option<AlignedBuffer>,
    /// Offset in the segment of the page at the beginning of the memory; none if unknown.
    page: Option<usize>,
}

impl Tail {
    /// Forgets the page: another write has changed it.
    pub(crate) fn forget(&mut self) {
        self.page = None;
    }

    /// Writes a record of up to [`LONGEST`] bytes at `offset`, where the last one ended: around the page
    /// cache if `is_direct` is set and the segment supports it.
    ///
    /// # Errors
    /// Parts of it may have been written.
    pub(crate) fn write(
        &mut self,
        segment: &Segment,
        offset: usize,
        parts: [&[u8]; 2],
        is_direct: bool,
    ) -> io::Result<()> {
        let memory = self.memory.get_or_insert_with(|| AlignedBuffer::zeroed(LONGEST + 2 * PAGE));
        let (first, before) = (offset / PAGE * PAGE, offset % PAGE);
        if before > 0 && self.page != Some(first) {
            segment.read_at(first, &mut memory[..before])?;
        }
        self.page = None;
        let mut end = before;
        for part in parts {
            memory[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let whole = end.next_multiple_of(PAGE);
        memory[end..whole].fill(0);
        if !(is_direct && segment.write_direct(first, &memory[..whole])?) {
            segment.write(first, [&memory[..whole], &[]])?;
        }
        let last = end / PAGE * PAGE;
        memory.copy_within(last..end, 0);
        // Records end at multiples of 8: the bytes up to there are zeros, as after the record itself.
        let padding = end.next_multiple_of(super::wal::RECORD_ALIGN) - end;
        memory[end - last..end - last + padding].fill(0);
        self.page = Some(first + last);
        Ok(())
    }
}
