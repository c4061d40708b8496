//! Memory that requests arrive in: page-aligned, and touched only as far as it is used.

use std::io;

/// Anonymous memory of whole pages. Pages that were never written cost nothing.
pub(super) struct PageBuffer {
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone; it may be used by whichever thread owns the value.
unsafe impl Send for PageBuffer {}

impl PageBuffer {
    pub fn new(length: usize) -> io::Result<PageBuffer> {
        // SAFETY: a new private anonymous mapping touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(PageBuffer { start: start.cast(), length })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is readable, writable, zero at first, `length` bytes long, and lives as long as `self`,
        // which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.length) }
    }

    pub fn address(&mut self) -> *mut u8 {
        self.start
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and nobody borrows from it any more.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// Size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf with a valid name touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
