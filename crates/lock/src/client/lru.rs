//! Unused locks in the order in which they were released.
//!
//! The list is linked through the locks themselves, so removing one from the middle (it is used again) is
//! O(1).

use super::Lock;
use crate::slab::Slab;
use nacre_env::clock::Instant;

/// A lock's place in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    /// Time since which it is unused; `None` if it is not in the list.
    since: Option<Instant>,
    before: Option<u32>,
    after: Option<u32>,
}

/// Both ends of the list; the first lock has been unused for longest.
#[derive(Debug, Default)]
pub(super) struct Lru {
    first: Option<u32>,
    last: Option<u32>,
    len: usize,
}

impl Lru {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn first(&self) -> Option<u32> {
        self.first
    }

    pub(super) fn push(&mut self, locks: &mut Slab<Lock>, key: u32, now: Instant) {
        self.remove(locks, key);
        locks[key].link = Link { since: Some(now), before: self.last, after: None };
        match self.last {
            Some(last) => locks[last].link.after = Some(key),
            None => self.first = Some(key),
        }
        self.last = Some(key);
        self.len += 1;
    }

    /// Removes a lock from the list, if it is in it.
    pub(super) fn remove(&mut self, locks: &mut Slab<Lock>, key: u32) {
        let Link { since: Some(_), before, after } = std::mem::take(&mut locks[key].link) else { return };
        match before {
            Some(before) => locks[before].link.after = after,
            None => self.first = after,
        }
        match after {
            Some(after) => locks[after].link.before = before,
            None => self.last = before,
        }
        self.len -= 1;
    }

    /// Returns the lock after this one.
    pub(super) fn next(locks: &Slab<Lock>, key: u32) -> Option<u32> {
        locks[key].link.after
    }

    /// Returns the time since which the first lock is unused.
    pub(super) fn oldest(&self, locks: &Slab<Lock>) -> Option<Instant> {
        locks[self.first?].link.since
    }
}
