//! Memory for I/O that bypasses the page cache.

/// Flag of an open that bypasses the page cache.
pub(crate) const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// Memory that begins on a page boundary, as O_DIRECT requires.
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    /// Allocates `length` bytes, none of them 0.
    pub(crate) fn new(length: usize) -> Buffer {
        const PAGE: usize = 4096;
        let bytes = vec![0x5a; length + PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Buffer { bytes, start, length }
    }

    /// Returns the whole buffer.
    pub(crate) fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
