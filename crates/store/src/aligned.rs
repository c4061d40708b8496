//! Aligned memory for transfers that bypass the page cache.

use rustix::mm::Advice;
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Alignment in bytes: a page, which is enough for every device.
const ALIGN: usize = 4096;
/// Alignment of a large page, in bytes.
const LARGE: usize = 2 << 20;

/// Page-aligned bytes.
pub struct AlignedBuffer {
    start: NonNull<u8>,
    len: usize,
    layout: Layout,
}

// SAFETY: the buffer owns its memory like a `Box<[u8]>`.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// Allocates a buffer of `len` zeros, at least one page of memory.
    pub fn zeroed(len: usize) -> AlignedBuffer {
        let layout = AlignedBuffer::layout(len, ALIGN);
        // SAFETY: the layout has a size that is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        AlignedBuffer { start, len, layout }
    }

    /// Allocates a buffer of `len` zeros, in large pages if the kernel has some.
    pub(crate) fn large(len: usize) -> AlignedBuffer {
        let layout = AlignedBuffer::layout(len, LARGE);
        // SAFETY: the layout has a size that is not zero.
        let start = unsafe { alloc(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        // Before the first touch. The call is only advice, so its result is ignored.
        // SAFETY: the range was just allocated and holds no data.
        let _ = unsafe { rustix::mm::madvise(start.as_ptr().cast(), layout.size(), Advice::LinuxHugepage) };
        // SAFETY: covers the whole allocation, to which no other reference exists.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        AlignedBuffer { start, len, layout }
    }

    fn layout(len: usize, align: usize) -> Layout {
        Layout::from_size_align(len.max(ALIGN), align).expect("lengths of buffers are far below isize::MAX")
    }

    /// Address of the first byte; the kernel may write through it while no reference to the buffer is in use.
    pub(crate) fn address(&self) -> *mut u8 {
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
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
