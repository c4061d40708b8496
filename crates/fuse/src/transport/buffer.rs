//! Page-aligned memory for requests, touched only as far as it is used.

use std::io;

use rustix::mm::{self, MapFlags, ProtFlags};

/// Anonymous memory of whole pages. Pages that were never written cost nothing.
pub(super) struct PageBuffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: this value owns the mapping; the thread that owns the value may use it.
unsafe impl Send for PageBuffer {}

impl PageBuffer {
    pub fn new(length: usize) -> io::Result<PageBuffer> {
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new private anonymous mapping touches no existing memory.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), length, protection, flags)? };
        Ok(PageBuffer { start: start.cast(), length })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable, initially zero, `length` bytes long, and lives as long
        // as `self`, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    pub fn address(&mut self) -> *mut u8 {
        self.start
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping with this length, and no borrow of it is left.
        let _ = unsafe { mm::munmap(self.start.cast(), self.length) };
    }
}
