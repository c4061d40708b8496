//! Unused locks that the client gives up on its own: those over its limits, and those whose cancels travel in
//! a request that is sent anyway. Also the bytes of an object that other locks still cover.

use super::{ClientConfig, Effect, Lock, LockClient, Lru, State};
use crate::extent::Extent;
use crate::mode::Mode;
use crate::resource::{LockHandle, Need, Policy, ResourceId};
use nacre_env::clock::Instant;
use std::ops::ControlFlow;
use std::time::Duration;

/// A lock removed from the cache, whose cancel travels in the next request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlyCancel {
    /// Lock to cancel.
    pub handle: LockHandle,
    /// Resource of the lock.
    pub resource: ResourceId,
    /// The lock as it was held: drop the cache under it before the request is sent.
    pub need: Need,
}

impl LockClient {
    /// Changes the number of unused locks that stay cached, and gives up those above it.
    pub fn set_lru_size(&mut self, locks: usize, effects: &mut Vec<Effect>) {
        self.config.lru_size = locks;
        self.shrink_to_size(effects);
    }

    /// Returns the current bounds and times.
    pub fn config(&self) -> ClientConfig {
        self.config
    }

    /// Changes the time after which an unused lock is given up; takes effect at the next tick.
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

    /// Gives up locks that have been unused for too long.
    pub(super) fn drop_aged(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some(since) = self.lru.oldest(&self.locks)
            && since + self.config.lru_max_age <= now
            && let Some(key) = self.lru.first()
        {
            self.give_up(key, effects);
        }
    }

    /// Removes up to `count_max` unused locks that the target would revoke for an operation that needs `need`
    /// on the resource, so that their cancels travel with the request. Locks under which data may be dirty
    /// are skipped: writing it out takes time.
    pub fn early_cancels(
        &mut self,
        resource: &ResourceId,
        need: &Need,
        count_max: usize,
    ) -> Vec<EarlyCancel> {
        let Some(&place) = self.by_id.get(resource) else { return Vec::new() };
        let mut found = Vec::new();
        let _ = self.resources[place].granted.conflicting(need, &mut |key| {
            if is_droppable(&self.locks[key]) && self.locks[key].need.conflicts_with(need) {
                found.push(key);
            }
            if found.len() < count_max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        found.truncate(count_max);
        found.into_iter().map(|key| self.cancel_early(key)).collect()
    }

    /// Removes up to `count_max` of the locks that have been unused for longest, as far as the cache is more
    /// than three quarters full: their cancels travel with an enqueue.
    pub fn lru_cancels(&mut self, count_max: usize) -> Vec<EarlyCancel> {
        let over = self.lru.len().saturating_sub(self.config.lru_size / 4 * 3);
        let (mut found, mut next) = (Vec::new(), self.lru.first());
        // Write locks are skipped; the bound limits the cost of that.
        for _ in 0..2 * count_max {
            let Some(key) = next else { break };
            next = Lru::next(&self.locks, key);
            if found.len() < count_max.min(over) && is_droppable(&self.locks[key]) {
                found.push(key);
            }
        }
        found.into_iter().map(|key| self.cancel_early(key)).collect()
    }

    /// Returns the bytes under an extent lock that no other granted lock covers: only these have to be
    /// dropped from a cache.
    pub fn uncovered(&self, handle: LockHandle) -> Vec<Extent> {
        let Some(&key) = self.by_handle.get(&handle) else { return Vec::new() };
        let lock = &self.locks[key];
        let Policy::Extent(extent) = lock.need.policy else { return Vec::new() };
        let mut others: Vec<Extent> = Vec::new();
        let trees = self.resources[lock.resource].granted.trees();
        for (_, tree) in trees.iter().filter(|(mode, _)| *mode != Mode::Nl) {
            let _ = tree.overlapping(&extent, &mut |other, held| {
                if other != key {
                    others.push(held);
                }
                ControlFlow::Continue(())
            });
        }
        others.sort();
        let (mut left, mut start) = (Vec::new(), Some(extent.start));
        for other in others {
            let Some(from) = start else { break };
            if other.start > from {
                left.push(Extent { start: from, last: other.start - 1 });
            }
            if other.last >= from {
                start = other.last.checked_add(1).filter(|next| *next <= extent.last);
            }
        }
        left.extend(start.map(|from| Extent { start: from, last: extent.last }));
        left
    }

    fn cancel_early(&mut self, key: u32) -> EarlyCancel {
        let lock = &self.locks[key];
        let resource = self.resources[lock.resource].id;
        let cancel = EarlyCancel { handle: lock.handle, resource, need: lock.need };
        self.remove(key);
        cancel
    }
}

/// True if the lock can be given up without writing anything out.
fn is_droppable(lock: &Lock) -> bool {
    lock.state == State::Granted && lock.users == 0 && !lock.need.mode.writes()
}
