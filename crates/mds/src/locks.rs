//! Locks on inodes: an operation holds those of every inode it changes from its first read to its answer.
//!
//! Inodes share a fixed table of locks by hash. Locks are taken in the order of the table; which child a name stands for
//! is known only under its directory's lock, so an operation that needs the child too [adds](Locked::add) it, and if that
//! would break the order and the lock is busy, starts again with both.

use nacre_types::Fid;
use parking_lot::RawMutex;
use parking_lot::lock_api::{RawMutex as _, RawMutexTimed as _};
use std::sync::Arc;
use std::time::Duration;

/// Locks in the table; a power of two. Collisions only cost waiting. Guess: many times the threads of a server.
const LOCKS: usize = 2048;
/// Most locks that one operation holds: rename has two directories, what is moved and what it replaces, which may be a directory with
/// five shards here.
pub const HELD_MAX: usize = 16;

/// Operations that wait for nobody outside are over by then: they take tens of microseconds.
const SHORT: Duration = Duration::from_micros(200);

/// One lock on a cache line of its own, so that neighbours do not slow each other. Bare, since an operation over several
/// MDTs takes it on one thread and gives it back on another.
#[repr(align(64))]
struct Slot(RawMutex);

impl Slot {
    /// Whoever holds it may be waiting for a client, whose answer another thread has to take: so a long wait is made known.
    fn wait(&self) {
        if !self.0.try_lock_for(SHORT) {
            nacre_env::blocking(|| self.0.lock());
        }
    }
}

/// See the [module documentation](self).
pub struct LockTable {
    slots: Box<[Slot]>,
}

/// Locks that an operation holds; released when dropped.
pub struct Locked<'a> {
    table: &'a LockTable,
    held: [usize; HELD_MAX],
    len: usize,
}

/// Locks of an operation that no thread runs: it waits for what another MDT decides. Released when dropped.
pub struct Kept {
    table: Arc<LockTable>,
    held: Vec<usize>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: each was locked when this was made, and only this unlocks it.
        self.held.iter().for_each(|&slot| unsafe { self.table.slots[slot].0.unlock() });
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: each was locked by `push`'s callers, and only this unlocks it.
        self.held[..self.len].iter().for_each(|&slot| unsafe { self.table.slots[slot].0.unlock() });
    }
}

fn slot_of(fid: &Fid) -> usize {
    let mixed =
        (fid.seq ^ (u64::from(fid.oid) << 32) ^ u64::from(fid.oid)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 40) as usize & (LOCKS - 1)
}

impl LockTable {
    /// A table with no lock held.
    pub fn new() -> LockTable {
        LockTable { slots: (0..LOCKS).map(|_| Slot(RawMutex::INIT)).collect() }
    }

    /// Locks all of `fids`.
    ///
    /// # Panics
    /// If they are more than an operation may need.
    pub fn lock(&self, fids: &[Fid]) -> Locked<'_> {
        assert!(fids.len() <= HELD_MAX, "an operation wants {} inodes", fids.len());
        let mut wanted = [usize::MAX; HELD_MAX];
        for (slot, fid) in wanted.iter_mut().zip(fids) {
            *slot = slot_of(fid);
        }
        wanted.sort_unstable();
        let mut locked = Locked { table: self, held: [0; HELD_MAX], len: 0 };
        for slot in wanted.into_iter().take(fids.len()) {
            if !locked.holds(slot) {
                self.slots[slot].wait();
                locked.push(slot);
            }
        }
        locked
    }

    /// Locks all of `fids` for longer than a thread runs.
    pub fn keep(self: &Arc<Self>, fids: &[Fid]) -> Kept {
        let mut wanted: Vec<usize> = fids.iter().map(slot_of).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut kept = Kept { table: self.clone(), held: Vec::with_capacity(wanted.len()) };
        for slot in wanted {
            self.slots[slot].wait();
            kept.held.push(slot);
        }
        kept
    }
}

impl Locked<'_> {
    fn holds(&self, slot: usize) -> bool {
        self.held[..self.len].contains(&slot)
    }

    /// `slot` was just locked.
    fn push(&mut self, slot: usize) {
        self.held[self.len] = slot;
        self.len += 1;
    }

    /// Locks one more inode. `false` if that could deadlock: drop everything, lock all together and look again.
    pub fn add(&mut self, fid: &Fid) -> bool {
        let slot = slot_of(fid);
        if self.holds(slot) {
            return true;
        }
        let in_order = self.held[..self.len].iter().all(|held| *held < slot);
        let lock = &self.table.slots[slot];
        if in_order {
            lock.wait();
        } else if !lock.0.try_lock() {
            return false;
        }
        self.push(slot);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn threads_that_lock_the_same_inodes_in_any_order_exclude_each_other_and_finish() {
        let table = LockTable::new();
        let counter = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let (table, counter) = (&table, &counter);
                scope.spawn(move || {
                    for i in 0..2000u32 {
                        let a = Fid::new(1, (i + thread) % 7, 0);
                        let b = Fid::new(1, (i * 3 + thread) % 7, 0);
                        let mut locked = table.lock(&[a, b]);
                        if !locked.add(&Fid::new(1, 100, 0)) {
                            drop(locked);
                            locked = table.lock(&[a, b, Fid::new(1, 100, 0)]);
                        }
                        let before = counter.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        counter.store(before + 1, Ordering::Relaxed);
                        drop(locked);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 8000);
    }
}
