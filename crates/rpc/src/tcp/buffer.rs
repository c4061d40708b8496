//! Memory for bulk data, aligned for direct I/O on files.

use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::io;
use std::ptr::NonNull;

/// Size of a page in bytes; also an alignment that every block device accepts.
const PAGE: usize = 4096;

/// A reusable buffer that grows to the requested length.
///
/// Its memory is mapped and not allocated: a page is taken from the system on the first write to it, so a
/// peer that announces megabytes and sends nothing costs address space alone. (An aligned, zeroed allocation
/// touches every page; 600 such announcements of 4 MiB were 2.4 GB.)
pub(super) struct BulkBuffer {
    memory: Option<Mapping>,
}

impl BulkBuffer {
    pub(super) const fn new() -> BulkBuffer {
        BulkBuffer { memory: None }
    }

    /// Returns the first `len` bytes, mapped if needed; their contents are left over from an earlier use.
    ///
    /// # Errors
    /// If the system has no memory.
    pub(super) fn reserve(&mut self, len: usize) -> io::Result<&mut [u8]> {
        if self.capacity() < len {
            // The old mapping first, so that both never exist at once.
            self.memory = None;
            self.memory = Some(Mapping::new(len.next_multiple_of(PAGE))?);
        }
        Ok(self.bytes().get_mut(..len).unwrap_or_default())
    }

    /// Returns the first `len` bytes of the reserved memory, all of it if that is less.
    pub(super) fn filled(&mut self, len: usize) -> &[u8] {
        let bytes = self.bytes();
        let len = len.min(bytes.len());
        bytes.get(..len).unwrap_or_default()
    }

    /// Returns the memory to the system.
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

/// A private anonymous mapping, initially zero.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value owns the mapping, and lends it only through `&mut self`.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(len: usize) -> io::Result<Mapping> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        // SAFETY: the range is the new mapping. Huge pages would take 2 MiB for the first byte that arrives;
        // a kernel without huge pages refuses this, and the error needs no action.
        let _ = unsafe { mm::madvise(start, len, Advice::LinuxNoHugepage) };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` readable, writable, initialised bytes, borrowed through `&mut self`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping has this length, and no borrow of it is left.
        let _ = unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of resident pages of a buffer.
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
