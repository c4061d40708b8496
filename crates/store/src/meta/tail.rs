//! Records as whole pages: what the log writes by calls.
//!
//! A record begins where the one before ended, in the middle of a page. That page is written again with it, from a copy of its beginning,
//! and the rest of its last page as zeros. So transfers can go around the page cache, and those that do not need nothing that it lacks. The
//! bytes of earlier records stay the same, so a write that is torn between sectors does them no harm.

use std::io;

use super::segment::{PAGE, Segment};
use crate::aligned::AlignedBuffer;

/// Records up to this are written as pages.
pub(crate) const LONGEST: usize = 64 << 10;

/// The page in which the last record ended.
#[derive(Default)]
pub(crate) struct Tail {
    /// One page, and the longest record with the page in which it ends.
    memory: Option<AlignedBuffer>,
    /// Where the page is in the segment whose beginning is at the beginning of the memory; none if that is not known.
    page: Option<usize>,
}

impl Tail {
    /// Something else was written.
    pub(crate) fn forget(&mut self) {
        self.page = None;
    }

    /// Writes a record of up to [`LONGEST`] bytes at `offset`, where the last one ended: around the page cache if that `is_direct` and can be.
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
