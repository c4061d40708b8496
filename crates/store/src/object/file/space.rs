//! The reserve: limits the space that writes may still allocate.
//!
//! A statfs before each write would cost more than the write, so writes draw on a budget: part of the space
//! available at the last check. When it is used up or a second old, the next write checks again.

use super::ops;
use crate::object::Space;
use rustix::fs::{StatVfs, StatVfsMountFlags};
use rustix::io::Errno;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Age in milliseconds at which the check of the file system is repeated, because other users fill it too.
const LOOK_EVERY_MS: u64 = 1000;
/// Share of the available space that a budget may use, as a divisor: others allocate at the same time, and
/// file systems need space for their own bookkeeping.
const BUDGET_SHARE: u64 = 4;

/// Admits or refuses writes by the free space.
pub(in crate::object) struct Reserve {
    reserve_bytes: u64,
    /// Stores on this file system.
    sharers: u64,
    budget: AtomicI64,
    looked_ms: AtomicU64,
}

impl Reserve {
    /// Creates a guard that keeps `reserve_bytes` free on a file system that `sharers` stores use.
    pub(in crate::object) fn new(reserve_bytes: u64, sharers: u32) -> Reserve {
        let sharers = u64::from(sharers.max(1));
        Reserve { reserve_bytes, sharers, budget: AtomicI64::new(0), looked_ms: AtomicU64::new(0) }
    }

    /// Whether `len` more bytes may be allocated. `look` queries the file system, `now_ms` is
    /// [`ops::coarse_ms`]; `inside` returns the free bytes in space that the store holds.
    pub(in crate::object) fn admits(
        &self,
        look: impl FnOnce() -> Result<StatVfs, Errno>,
        len: u64,
        now_ms: u64,
        inside: impl FnOnce() -> u64,
    ) -> bool {
        let len = i64::try_from(len).unwrap_or(i64::MAX);
        let fresh = now_ms.wrapping_sub(self.looked_ms.load(Ordering::Relaxed)) < LOOK_EVERY_MS;
        if fresh && self.budget.load(Ordering::Relaxed) >= len {
            // Several threads may overdraw at once, each by one write: the reserve is far larger than that.
            self.budget.fetch_sub(len, Ordering::Relaxed);
            return true;
        }
        // If the file system cannot report its space, its own error has to suffice.
        let Ok(stat) = look() else { return true };
        let available = self.available(&stat, inside());
        self.looked_ms.store(now_ms, Ordering::Relaxed);
        let Some(left) = available.checked_sub(len as u64) else {
            self.budget.store(0, Ordering::Relaxed);
            return false;
        };
        self.budget.store(i64::try_from(left / BUDGET_SHARE).unwrap_or(i64::MAX), Ordering::Relaxed);
        true
    }

    /// Drops the budget, so that the next write checks again: space was freed.
    pub(in crate::object) fn look_again(&self) {
        self.looked_ms.store(ops::coarse_ms().wrapping_sub(LOOK_EVERY_MS), Ordering::Relaxed);
    }

    /// Returns the bytes that may be allocated, where `inside` are free in space that the store holds.
    pub(super) fn available(&self, stat: &StatVfs, inside: u64) -> u64 {
        let outside = stat.f_bavail.saturating_mul(stat.f_frsize);
        outside.saturating_add(inside).saturating_sub(self.reserve_bytes)
    }

    /// Returns the space as clients see it; `objects` exist and `free_slots` files are ready for more.
    /// `inside` bytes of the file system count as free though the store holds them: they are reserved for
    /// streams of writes, or are free pages.
    pub(in crate::object) fn space(
        &self,
        mut stat: StatVfs,
        objects: u64,
        free_slots: u64,
        inside: u64,
    ) -> Space {
        let inside = inside / stat.f_frsize.max(1);
        // The two values come from different moments.
        stat.f_bfree = stat.f_bfree.saturating_add(inside).min(stat.f_blocks);
        stat.f_bavail = stat.f_bavail.saturating_add(inside).min(stat.f_bfree);
        let available = self.available(&stat, 0);
        // File systems that allocate inodes on demand report 0: then each needs at least a block.
        let inodes_free = if stat.f_files == 0 { available / stat.f_frsize.max(1) } else { stat.f_favail };
        let share = |bytes: u64| bytes / self.sharers;
        let objects_free = share(inodes_free).saturating_add(free_slots).min(u64::from(u32::MAX) - objects);
        Space {
            block_size: u32::try_from(stat.f_frsize).unwrap_or(4096),
            total: share(stat.f_blocks.saturating_mul(stat.f_frsize)),
            free: share(stat.f_bfree.saturating_mul(stat.f_frsize)),
            available: share(available),
            promisable: share(self.reserve_bytes / 2),
            objects: objects.saturating_add(objects_free),
            objects_free,
            is_read_only: stat.f_flag.contains(StatVfsMountFlags::RDONLY),
        }
    }
}
