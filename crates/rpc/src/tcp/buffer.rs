//! Memory for bulk data, aligned so that files can be read and written around the page cache.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Alignment in bytes: the page size, which every block device accepts.
const ALIGN: usize = 4096;

/// A reusable buffer that grows to what is asked for, up to the limit of bulk data.
pub(super) struct AlignedBuffer {
    memory: Option<(NonNull<u8>, Layout)>,
}

// SAFETY: the buffer owns its memory and gives it out only through `&mut self`.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    pub(super) fn new() -> AlignedBuffer {
        AlignedBuffer { memory: None }
    }

    /// The first `len` bytes; whatever an earlier use left is in them.
    pub(super) fn get(&mut self, len: usize) -> &mut [u8] {
        if len == 0 {
            return &mut [];
        }
        let memory = match self.memory {
            Some((memory, layout)) if layout.size() >= len => memory,
            _ => self.grow(len),
        };
        // SAFETY: the memory was allocated zeroed with at least `len` bytes and is borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), len) }
    }

    fn grow(&mut self, len: usize) -> NonNull<u8> {
        self.release();
        let layout = Layout::from_size_align(len.next_multiple_of(ALIGN), ALIGN)
            .expect("bulk data is limited to a few megabytes, so size and alignment are valid");
        // SAFETY: the size is not 0: `len` is at least 1.
        let Some(memory) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        self.memory = Some((memory, layout));
        memory
    }

    fn release(&mut self) {
        if let Some((memory, layout)) = self.memory.take() {
            // SAFETY: the memory came from `alloc_zeroed` with this layout and is given back once.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        self.release();
    }
}
