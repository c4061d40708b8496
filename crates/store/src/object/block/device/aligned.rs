//! Memory that transfers around the page cache accept.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment in bytes: a page, which satisfies every device.
const ALIGN: usize = 4096;

/// Bytes at the beginning of a page.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer owns its memory like a `Box<[u8]>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// A buffer of `len` zeros, at least one page of memory.
    pub fn zeroed(len: usize) -> AlignedBuffer {
        let layout = AlignedBuffer::layout(len);
        // SAFETY: the layout has a size that is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuffer { start, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(ALIGN), ALIGN).expect("lengths of buffers are far below isize::MAX")
    }

    /// Address of the first byte, through which the kernel may write while nobody looks at the buffer.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `zeroed` with the same layout.
        unsafe { dealloc(self.start.as_ptr(), AlignedBuffer::layout(self.len)) }
    }
}
