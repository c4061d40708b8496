//! Unused locks in the order in which they were let go.
//!
//! The list runs through the locks themselves, so taking one out of the middle (it is used again) costs nothing.

use super::{ClientConfig, Effect, Lock, LockClient};
use crate::slab::Slab;
use nacre_env::clock::Instant;
use std::time::Duration;

/// A lock's place in the list.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    /// Since when it is unused; `None` if it is not in the list.
    since: Option<Instant>,
    before: Option<u32>,
    after: Option<u32>,
}

/// Both ends of the list; the first one was let go first.
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

    /// Takes a lock out, if it is in.
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

    /// The lock after this one.
    pub(super) fn next(locks: &Slab<Lock>, key: u32) -> Option<u32> {
        locks[key].link.after
    }

    /// Since when the first lock is unused.
    pub(super) fn oldest(&self, locks: &Slab<Lock>) -> Option<Instant> {
        locks[self.first?].link.since
    }
}

impl LockClient {
    /// Changes the number of unused locks that are kept and gives up what is over it.
    pub fn set_lru_size(&mut self, locks: usize, effects: &mut Vec<Effect>) {
        self.config.lru_size = locks;
        self.shrink_to_size(effects);
    }

    /// Bounds and times as they are now.
    pub fn config(&self) -> ClientConfig {
        self.config
    }

    /// Changes the time after which an unused lock is given up; counts from the next look at the clock.
    pub fn set_lru_max_age(&mut self, age: Duration) {
        self.config.lru_max_age = age;
    }

    /// Gives up every unused lock (Lustre: `lru_size=clear`).
    pub fn drop_unused(&mut self, effects: &mut Vec<Effect>) {
        while let Some(key) = self.lru.first() {
            self.give_up(key, effects);
        }
    }

    pub(super) fn shrink_to_size(&mut self, effects: &mut Vec<Effect>) {
        while self.lru.len() > self.config.lru_size
            && let Some(key) = self.lru.first()
        {
            self.give_up(key, effects);
        }
    }

    /// Gives up what has not been used for too long.
    pub(super) fn drop_aged(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(since) = self.lru.oldest(&self.locks)
            && since + self.config.lru_max_age <= now
            && let Some(key) = self.lru.first()
        {
            self.give_up(key, effects);
        }
    }
}
