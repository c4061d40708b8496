//! Data fetched ahead: blocks of one file, from creation to removal.
//!
//! A block is created for a range, filled once by the thread that fetches it, and read by any number of
//! readers. It is removed from its file's list when all of it was read, when a program writes to its range,
//! and when its reader ends or continues elsewhere; its memory is freed with the last reference, so a fetch
//! in flight keeps the memory it writes to.

use crate::read_ahead::stats::{AheadStats, Counter};
use nacre_env::sync::{Condvar, Mutex};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often a wait for a fetch checks for an interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);
/// Buffers that are kept for reuse, at most.
const SPARE_BUFFERS: usize = 16;
/// Buffers larger than this are freed.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// State that all files of a client share: memory, and counters.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Bytes of all blocks, fetched or not.
    used: AtomicU64,
    spare: Mutex<Vec<Vec<u8>>>,
    pub stats: AheadStats,
}

impl Memory {
    /// Takes `bytes` of the budget `limit`; false if less is left.
    fn reserve(&self, bytes: u64, limit: u64) -> bool {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Returns the bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns a buffer of `len` bytes with any content; one whose pages have been used before if possible,
    /// since new ones are expensive.
    pub fn buffer(&self, len: usize) -> Vec<u8> {
        let mut buffer = self.spare.lock().pop().unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    fn give_back(&self, buffer: Vec<u8>) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_BUFFERS && buffer.capacity() <= SPARE_BYTES_MAX {
            spare.push(buffer);
        }
    }

    /// Frees buffers kept for reuse.
    pub fn shrink(&self) {
        self.spare.lock().clear();
    }
}

#[derive(Debug)]
enum Content {
    /// Created, and not to be fetched yet.
    New,
    /// To be fetched.
    Queued,
    /// Being fetched.
    Fetching,
    Ready(Vec<u8>),
    /// The fetch has failed.
    Failed,
}

/// Result of a read from a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// This many bytes were copied, without waiting.
    Copied(usize),
    /// This many bytes were copied after a wait.
    CopiedLate(usize),
    /// No thread has begun to fetch it.
    NotBegun,
    /// It has no data and will have none.
    Nothing,
    /// The caller was interrupted.
    Interrupted,
}

/// The range `[start, end)` of a file.
#[derive(Debug)]
pub(crate) struct Block {
    pub start: u64,
    pub end: u64,
    /// Handle of the open file for which it is fetched.
    pub owner: u64,
    /// Exclusive lease under which it is valid.
    pub lease: u64,
    /// Bytes of it that were read; bytes that were read twice count twice.
    read: AtomicU64,
    content: Mutex<Content>,
    changed: Condvar,
    memory: Arc<Memory>,
}

impl Block {
    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// Lets threads fetch the block.
    pub fn enqueue(&self) {
        let mut content = self.content.lock();
        if matches!(*content, Content::New) {
            *content = Content::Queued;
        }
    }

    /// Begins a fetch by the caller, unless another thread fetches it or has; [`Block::finish`] must follow.
    pub fn begin(&self) -> bool {
        let mut content = self.content.lock();
        let mine = matches!(*content, Content::Queued);
        if mine {
            *content = Content::Fetching;
        }
        mine
    }

    /// Ends a fetch: with the data, or without.
    pub fn finish(&self, data: Option<Vec<u8>>) {
        *self.content.lock() = data.map_or(Content::Failed, Content::Ready);
        self.changed.notify_all();
    }

    /// Copies bytes from `offset` on into `buffer` by `copy`, waiting for a fetch in flight.
    pub fn serve(&self, offset: u64, buffer: &mut [u8], copy: impl Fn(&[u8], &mut [u8])) -> Served {
        let mut content = self.content.lock();
        let mut late = false;
        if matches!(*content, Content::Fetching) {
            late = true;
            nacre_env::blocking(|| {
                while matches!(*content, Content::Fetching) && !nacre_env::interrupted() {
                    self.changed.wait_for(&mut content, INTERRUPT_POLL);
                }
            });
        }
        match &*content {
            Content::Ready(data) => {
                let from = (offset - self.start) as usize;
                let bytes = buffer.len().min(data.len() - from);
                copy(&data[from..from + bytes], &mut buffer[..bytes]);
                self.read.fetch_add(bytes as u64, Ordering::Relaxed);
                if late { Served::CopiedLate(bytes) } else { Served::Copied(bytes) }
            }
            Content::Queued => Served::NotBegun,
            Content::New | Content::Failed => Served::Nothing,
            Content::Fetching => Served::Interrupted,
        }
    }

    /// True if all of it was read.
    pub fn is_used_up(&self) -> bool {
        self.read.load(Ordering::Relaxed) >= self.end - self.start
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let len = self.end - self.start;
        self.memory.used.fetch_sub(len, Ordering::Relaxed);
        if let Content::Ready(data) = std::mem::replace(self.content.get_mut(), Content::Failed) {
            let unread = len.saturating_sub(self.read.load(Ordering::Relaxed));
            self.memory.stats.add_bytes(Counter::Discarded, unread);
            self.memory.give_back(data);
        }
    }
}

/// Blocks of one file: in order, without overlaps. Changed under the lock of the file's state.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    list: Vec<Arc<Block>>,
}

/// The reader for which blocks are created, and their budget.
pub(crate) struct Origin<'a> {
    /// Handle of the open that reads.
    pub owner: u64,
    /// Lease or locks under which the blocks are valid.
    pub lease: u64,
    pub memory: &'a Arc<Memory>,
    /// Bytes of that memory that may be used.
    pub limit: u64,
}

impl Blocks {
    /// Returns the block that holds the byte at `offset`.
    pub fn find(&self, offset: u64) -> Option<&Arc<Block>> {
        let behind = self.list.partition_point(|block| block.start <= offset);
        self.list[..behind].last().filter(|block| offset < block.end)
    }

    /// Creates blocks of up to `piece` bytes, ending at multiples of it, for the missing parts of `[start,
    /// end)`, as far as `memory` allows, and adds them to `made`. False if the budget was too small for all.
    pub fn make(
        &mut self,
        Range { start, end }: Range<u64>,
        piece: u64,
        &Origin { owner, lease, memory, limit }: &Origin<'_>,
        made: &mut Vec<Arc<Block>>,
    ) -> bool {
        let mut at = start;
        while at < end {
            let index = self.list.partition_point(|block| block.end <= at);
            let next = self.list.get(index).map(|block| (block.start, block.end));
            if let Some((_, known_end)) = next.filter(|&(known, _)| known <= at) {
                at = known_end;
                continue;
            }
            let border = (at / piece + 1) * piece;
            let until = end.min(border).min(next.map_or(end, |(known, _)| known));
            if !memory.reserve(until - at, limit) {
                return false;
            }
            let block = Arc::new(Block {
                start: at,
                end: until,
                owner,
                lease,
                read: AtomicU64::new(0),
                content: Mutex::new(Content::New),
                changed: Condvar::new(),
                memory: memory.clone(),
            });
            self.list.insert(index, block.clone());
            made.push(block);
            at = until;
        }
        true
    }

    /// Removes blocks in `[start, end)`, whose bytes change: no block may show the old ones.
    pub fn invalidate(&mut self, start: u64, end: u64) {
        if !self.list.is_empty() {
            self.list.retain(|block| block.end <= start || end <= block.start);
        }
    }

    /// Removes a block.
    pub fn remove(&mut self, block: &Arc<Block>) {
        self.list.retain(|known| !Arc::ptr_eq(known, block));
    }

    /// Removes blocks of an open file that ends, reads elsewhere, or has passed `before`.
    pub fn forget(&mut self, owner: u64, before: u64) {
        if !self.list.is_empty() {
            self.list.retain(|block| block.owner != owner || block.end > before);
        }
    }

    /// Removes all blocks.
    pub fn clear(&mut self) {
        self.list = Vec::new();
    }

    /// True if there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PIECE: u64 = 10;

    fn plain(from: &[u8], to: &mut [u8]) {
        to.copy_from_slice(from);
    }

    fn make(blocks: &mut Blocks, memory: &Arc<Memory>, start: u64, end: u64, limit: u64) -> bool {
        let mut made = Vec::new();
        let all = blocks.make(start..end, PIECE, &Origin { owner: 1, lease: 1, memory, limit }, &mut made);
        for block in made {
            block.enqueue();
            assert!(block.begin() && !block.begin());
            let bytes = (block.start..block.end).map(|at| at as u8).collect();
            block.finish(Some(bytes));
        }
        all
    }

    #[test]
    fn memory_is_bounded_and_comes_back() {
        let memory = Arc::new(Memory::default());
        let mut blocks = Blocks::default();
        assert!(!make(&mut blocks, &memory, 0, 100, 35));
        assert_eq!(memory.used(), 30, "whole blocks");
        let held = blocks.find(5).expect("made").clone();
        blocks.clear();
        assert_eq!(memory.used(), 10, "somebody still reads one");
        drop(held);
        assert_eq!((memory.used(), memory.stats.get(Counter::Discarded)), (0, 3));
    }

    #[test]
    fn a_block_that_nobody_fetches_is_not_waited_for() {
        let memory = Arc::new(Memory::default());
        let mut blocks = Blocks::default();
        let mut made = Vec::new();
        let origin = Origin { owner: 1, lease: 1, memory: &memory, limit: 100 };
        blocks.make(0..10, PIECE, &origin, &mut made);
        let mut buffer = [0; 4];
        assert_eq!(made[0].serve(0, &mut buffer, plain), Served::Nothing);
        made[0].enqueue();
        assert_eq!(made[0].serve(0, &mut buffer, plain), Served::NotBegun);
        assert!(made[0].begin());
        let block = made[0].clone();
        let waiter = nacre_env::thread::spawn(move || {
            let mut buffer = [0; 4];
            (block.serve(8, &mut buffer, plain), buffer)
        });
        made[0].finish(Some(vec![7; 10]));
        let (served, bytes) = waiter.join().expect("no panic");
        assert!(matches!(served, Served::CopiedLate(2) | Served::Copied(2)));
        assert_eq!(bytes, [7, 7, 0, 0]);
    }

    proptest! {
        /// Compared with a set of bytes: a byte is found if and only if it was created and not invalidated,
        /// and blocks are never split wrongly.
        #[test]
        fn blocks_cover_what_was_made_less_what_was_invalidated(
            steps in prop::collection::vec((0u64..200, 1u64..60, any::<bool>()), 1..40),
        ) {
            let memory = Arc::new(Memory::default());
            let mut blocks = Blocks::default();
            for (start, len, keep) in steps {
                let end = start + len;
                if keep {
                    prop_assert!(make(&mut blocks, &memory, start, end, u64::MAX));
                    prop_assert!((start..end).all(|at| blocks.find(at).is_some()));
                } else {
                    blocks.invalidate(start, end);
                    prop_assert!((start..end).all(|at| blocks.find(at).is_none()));
                }
                let mut last = 0;
                for block in &blocks.list {
                    prop_assert!(last <= block.start && block.start < block.end);
                    prop_assert!(block.start / PIECE == (block.end - 1) / PIECE);
                    last = block.end;
                    let mut byte = [0];
                    prop_assert_eq!(block.serve(block.start, &mut byte, plain), Served::Copied(1));
                    prop_assert_eq!(u64::from(byte[0]), block.start);
                }
                prop_assert_eq!(memory.used(), blocks.list.iter().map(|block| block.end - block.start).sum::<u64>());
            }
        }
    }
}
