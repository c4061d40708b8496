//! Memory for dirty data: buffers of one size, reused while their memory is in the CPU's caches.
//!
//! A page that was never used costs up to 2 us on the machines this was measured on, as much as writing it to
//! a disk there. So the buffer returned last is used first.

use nacre_env::sync::Mutex;
use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size of a window: most bytes that one RPC writes, and the size of every buffer here.
pub(crate) const WINDOW_BYTES: u64 = 1 << 20;
/// Alignment that transfers around a page cache need.
const ALIGN: usize = 4096;

const LAYOUT: Layout = match Layout::from_size_align(WINDOW_BYTES as usize, ALIGN) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

/// Memory of [`WINDOW_BYTES`], aligned to pages. Returns to its pool when dropped.
///
/// Does not guard access to its bytes: the table does that, see [`super::table`].
pub(crate) struct Buffer {
    memory: NonNull<u8>,
    pool: Arc<Pool>,
}

// SAFETY: the memory belongs to the buffer alone; accesses are ordered by the lock of the table that owns it.
unsafe impl Send for Buffer {}

// SAFETY: as above; a shared reference only yields a pointer, and reading through it is unsafe.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns a pointer to the first byte.
    pub fn start(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.pool.in_use.fetch_sub(1, Ordering::Relaxed);
        self.pool.free.lock().push(Memory(self.memory));
    }
}

/// Unused memory.
struct Memory(NonNull<u8>);

// SAFETY: there is no other copy of the pointer.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `Pool::take`, and freed once: a `Memory` is never copied.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) }
    }
}

/// The buffers of a client.
#[derive(Default)]
pub(crate) struct Pool {
    free: Mutex<Vec<Memory>>,
    in_use: AtomicUsize,
}

impl Pool {
    /// Takes a buffer with undefined content; `None` if `max_bytes` are in use already or the system has no
    /// memory.
    pub fn take(self: &Arc<Pool>, max_bytes: u64) -> Option<Buffer> {
        let max = usize::try_from(max_bytes / WINDOW_BYTES).unwrap_or(usize::MAX);
        let claim = |used: usize| (used < max).then_some(used + 1);
        self.in_use.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).ok()?;
        let pooled = self.free.lock().pop();
        let memory = match pooled {
            Some(memory) => {
                let start = memory.0;
                std::mem::forget(memory);
                Some(start)
            }
            // SAFETY: the layout is not of size zero.
            None => NonNull::new(unsafe { alloc(LAYOUT) }),
        };
        if memory.is_none() {
            self.in_use.fetch_sub(1, Ordering::Relaxed);
        }
        Some(Buffer { memory: memory?, pool: self.clone() })
    }

    /// Returns the bytes in buffers that are in use.
    pub fn used_bytes(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed) as u64 * WINDOW_BYTES
    }

    /// Frees unused buffers until at most `keep_bytes` of them are left.
    pub fn trim(&self, keep_bytes: u64) {
        let keep = (keep_bytes / WINDOW_BYTES) as usize;
        let mut free = self.free.lock();
        let from = keep.min(free.len());
        let surplus = free.split_off(from);
        drop(free);
        drop(surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_bounded_aligned_and_used_again() {
        let pool = Arc::new(Pool::default());
        let max = 2 * WINDOW_BYTES;
        let first = pool.take(max).expect("room");
        let second = pool.take(max).expect("room");
        assert!(pool.take(max).is_none());
        assert_eq!(pool.used_bytes(), max);
        assert!((first.start() as usize).is_multiple_of(ALIGN));
        let address = first.start() as usize;
        drop(first);
        assert_eq!(pool.take(max).expect("room").start() as usize, address, "the warm one");
        drop(second);
        pool.trim(WINDOW_BYTES);
        assert_eq!((pool.free.lock().len(), pool.used_bytes()), (1, 0));
    }
}
