//! Per-thread recycling of memory for small messages.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// Buffers that a thread keeps.
const POOL_MAX: usize = 8;
/// Size in bytes above which buffers are freed.
const BYTES_MAX: usize = 8 << 10;

thread_local! {
    static POOL: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer, empty at first, that the dropping thread recycles.
#[derive(Debug)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        // A thread in its destructors has none.
        Scratch(POOL.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default())
    }
}

impl Deref for Scratch {
    type Target = Vec<u8>;

    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mut buffer = std::mem::take(&mut self.0);
        if (1..=BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            let _ = POOL.try_with(|kept| {
                let mut kept = kept.borrow_mut();
                if kept.len() < POOL_MAX {
                    kept.push(buffer);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_empty_and_large_ones_go() {
        let mut first = Scratch::new();
        first.extend_from_slice(&[7; 100]);
        let place = first.as_ptr();
        drop(first);
        let mut again = Scratch::new();
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        again.resize(BYTES_MAX + 1, 0);
        drop(again);
        assert_eq!(Scratch::new().capacity(), 0);
    }
}
