//! Memory for bulk data, aligned so that files can be read and written around the page cache.

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

/// Size of a page in bytes, which is also an alignment that every block device accepts.
const PAGE: usize = 4096;

/// A reusable buffer that grows to what is asked for.
///
/// Its memory is mapped and not allocated: a page is taken from the system when something is put into it, so a peer
/// that announces megabytes and sends nothing costs address space alone. (An aligned, zeroed allocation touches every
/// page; 600 such announcements of 4 MiB were 2.4 GB.)
pub(super) struct BulkBuffer {
    memory: Option<Mapping>,
}

impl BulkBuffer {
    pub(super) const fn new() -> BulkBuffer {
        BulkBuffer { memory: None }
    }

    /// The first `len` bytes, mapped if they are not; whatever an earlier use left is in them.
    ///
    /// # Errors
    /// The system gives no memory.
    pub(super) fn reserve(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.capacity() < len {
            // First the old one, so that there are never both.
            self.memory = None;
            self.memory = Some(Mapping::new(len.next_multiple_of(PAGE))?);
        }
        Ok(self.bytes().get_mut(..len).unwrap_or_default())
    }

    /// The first `len` bytes of what is reserved, all of it if that is less.
    pub(super) fn filled(&mut self, len: usize) -> &[u8] {
        let bytes = self.bytes();
        let len = len.min(bytes.len());
        bytes.get(..len).unwrap_or_default()
    }

    /// Gives the memory back to the system.
    pub(super) fn release(&mut self) {
        self.memory = None;
    }

    fn capacity(&self) -> usize {
        self.memory.as_ref().map_or(0, |memory| memory.len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], Mapping::bytes)
    }
}

/// Anonymous memory of its own, zeroes at first.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value and is given out only through `&mut self`.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no memory that is in use.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        // SAFETY: the range is the mapping that was just made. Huge pages would take 2 MiB for the first byte that arrives;
        // a kernel that knows none refuses this, and there is nothing to be done then.
        let _ = unsafe { mm::madvise(start, len, Advice::LinuxNoHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` bytes, readable, writable and initialised, and is borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrows from it any more.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of a buffer that are in memory.
    fn resident(buffer: &mut BulkBuffer) -> usize {
        let Some(memory) = &buffer.memory else { return 0 };
        let mut pages = vec![0u8; memory.len / PAGE];
        // SAFETY: the range is a mapping, and there is one byte for each of its pages.
        let result = unsafe { libc::mincore(memory.start.as_ptr().cast(), memory.len, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn a_buffer_takes_memory_for_what_is_put_into_it_and_gives_it_back() {
        let mut buffer = BulkBuffer::new();
        assert_eq!(buffer.reserve(4 << 20).expect("memory").len(), 4 << 20);
        assert_eq!(resident(&mut buffer), 0);
        buffer.reserve(4 << 20).expect("memory")[..5000].fill(7);
        assert_eq!(resident(&mut buffer), 2);
        assert_eq!(buffer.filled(5000), [7; 5000], "kept until it grows");
        assert_eq!(buffer.reserve(1).expect("memory").as_ptr().align_offset(PAGE), 0);
        buffer.release();
        assert_eq!((resident(&mut buffer), buffer.filled(5000).len()), (0, 0));
        assert!(buffer.reserve(0).expect("nothing").is_empty());
    }
}
