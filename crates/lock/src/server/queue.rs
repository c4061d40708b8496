//! Granting and queueing of requests, revocation of conflicting locks, and conversions.

use super::timeouts::{Called, Timer};
use super::{Contention, Effect, LockServer, grow};
use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::mode::Mode;
use crate::resource::{LockGrant, LockHandle, Need, Peer, Policy, Refusal, ResourceId, Wanted};
use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use std::ops::ControlFlow;

impl LockServer {
    /// True if `need` conflicts with a granted lock, or with one of the first `ahead` waiting requests,
    /// unless those may be waiting for the client on whose behalf it is.
    pub(super) fn is_blocked(
        &self,
        resource: u32,
        need: &Need,
        on_behalf_of: Option<ClientUuid>,
        ahead: usize,
    ) -> bool {
        if self.has_granted_conflict(resource, need, on_behalf_of) {
            return true;
        }
        if on_behalf_of.is_some_and(|client| self.is_waited_for(&client)) {
            return false;
        }
        let queue = &self.resources[resource].waiting;
        let mut ahead = queue[..ahead.min(queue.len())].iter();
        // A member of the group that holds the lock passes requests that wait for the group's end, which may
        // depend on that member.
        !self.joins_group(resource, need) && ahead.any(|key| self.locks[*key].requested.conflicts_with(need))
    }

    /// Returns the group whose lock the client holds on all of these bytes. Members of a group write
    /// concurrently.
    pub fn group_held(&self, peer: Peer, resource: &ResourceId, extent: &Extent) -> Option<u64> {
        let granted = &self.resources[*self.by_id.get(resource)?].granted;
        let mut found = None;
        for (_, tree) in granted.trees().iter().filter(|(mode, _)| *mode == Mode::Group) {
            let _ = tree.overlapping(extent, &mut |key, held| {
                let lock = &self.locks[key];
                if lock.peer == peer && held.contains(extent) {
                    found = lock.granted.map(|need| need.group);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
        }
        found
    }

    /// True if a lock of the client is being revoked.
    fn is_waited_for(&self, client: &ClientUuid) -> bool {
        self.clients.get(client).is_some_and(|known| known.called_back > 0)
    }

    fn joins_group(&self, resource: u32, need: &Need) -> bool {
        let same = |key: u32| self.locks[key].granted.is_some_and(|held| held.group == need.group);
        let mut found = false;
        if need.mode == Mode::Group {
            let _ = self.resources[resource].granted.conflicting(need, &mut |key| {
                found |= same(key);
                ControlFlow::Continue(())
            });
        }
        found
    }

    pub(super) fn has_granted_conflict(
        &self,
        resource: u32,
        need: &Need,
        on_behalf_of: Option<ClientUuid>,
    ) -> bool {
        let visit = &mut |key| {
            if self.is_in_the_way(key, need, on_behalf_of) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        self.resources[resource].granted.conflicting(need, visit).is_break()
    }

    /// Checks what modes and parts alone do not decide: groups, and the owner of the lock.
    pub(super) fn is_in_the_way(&self, key: u32, need: &Need, on_behalf_of: Option<ClientUuid>) -> bool {
        let lock = &self.locks[key];
        lock.granted.is_some_and(|held| held.conflicts_with(need))
            && on_behalf_of
                .is_none_or(|client| lock.peer.client != client && lock.on_behalf_of != Some(client))
    }

    /// Grants a lock that has no conflicts and is not in the queue.
    pub(super) fn grant(&mut self, key: u32) -> LockGrant {
        let lock = &self.locks[key];
        let (requested, resource) = (lock.requested, lock.resource);
        let policy = match requested.policy {
            Policy::Extent(extent) if lock.no_expansion || requested.mode == Mode::Group => {
                Policy::Extent(extent)
            }
            Policy::Extent(extent) => {
                let found = &self.resources[resource];
                let waiting = found.waiting.iter().map(|waiter| &self.locks[*waiter].requested);
                Policy::Extent(grow::grown(requested.mode, extent, found.granted.trees(), waiting))
            }
            Policy::Bits(bits) => Policy::Bits(bits.union(self.free_bits(key))),
        };
        let granted = Need { policy, ..requested };
        self.locks[key].granted = Some(granted);
        self.resources[resource].granted.insert(granted.mode, &policy, key);
        self.stats.granted += 1;
        self.grant_of(resource, granted)
    }

    /// Returns the optional bits of a request that conflict with no granted lock and no waiting request.
    fn free_bits(&self, key: u32) -> InodeBits {
        let lock = &self.locks[key];
        let is_free = |bit: &InodeBits| {
            let need = Need::bits(lock.requested.mode, *bit);
            !self.is_blocked(lock.resource, &need, lock.on_behalf_of, usize::MAX)
        };
        let wanted = lock.optional.indices().map(InodeBits::of_index);
        wanted.filter(is_free).fold(InodeBits::NONE, InodeBits::union)
    }

    pub(super) fn grant_of(&self, resource: u32, need: Need) -> LockGrant {
        LockGrant { need, lvb: self.resources[resource].lvb }
    }

    /// Revokes all locks that conflict with a request that starts to wait.
    pub(super) fn call_back_for(&mut self, now: Instant, waiter: u32, effects: &mut Vec<Effect>) {
        let lock = &self.locks[waiter];
        let (need, resource, peer) = (lock.requested, lock.resource, lock.peer);
        let mut holders = Vec::new();
        let _ = self.resources[resource].granted.conflicting(&need, &mut |key| {
            if self.is_in_the_way(key, &need, lock.on_behalf_of) {
                holders.push(key);
            }
            ControlFlow::Continue(())
        });
        let foreign = |key: &u32| {
            let holder = self.locks[*key].peer;
            !holder.is_local() && holder.client != peer.client
        };
        // Inodes are changed by the target itself, objects by clients under their locks.
        let of_inode = matches!(need.policy, Policy::Bits(_));
        if (of_inode || !peer.is_local()) && holders.iter().any(foreign) {
            self.note_conflict(now, resource, of_inode);
        }
        let wanted = Wanted::by(&need);
        for key in holders {
            self.call_back(now, key, &wanted, effects);
        }
    }

    /// Sends a blocking callback for a lock. The target's own locks end with their operations. A group lock
    /// stays until its last member releases it, as the user who requested it expects: its callback only
    /// detects locks that their client does not have any more, and has no deadline.
    pub(super) fn call_back(&mut self, now: Instant, key: u32, wanted: &Wanted, effects: &mut Vec<Effect>) {
        let lock = &mut self.locks[key];
        let Some(held) = lock.granted else { return };
        if lock.peer.is_local() {
            return;
        }
        let wanted = match &mut lock.called {
            Some(called) => {
                let all = called.wanted.union(wanted);
                // The holder of an extent gives it up as a whole, however much of it is requested.
                let nothing_new = match all.policy {
                    Policy::Extent(_) => all.modes == called.wanted.modes,
                    Policy::Bits(_) => all == called.wanted,
                };
                called.wanted = all;
                if nothing_new {
                    return;
                }
                all
            }
            None => {
                let called = match held.mode {
                    Mode::Group => Called::without_deadline(now, *wanted, &self.config),
                    _ => Called::new(now, *wanted, &self.config),
                };
                self.timers.insert((called.due(), Timer::Callback(key)));
                lock.called = Some(called);
                if let Some(client) = self.clients.get_mut(&lock.peer.client) {
                    client.called_back += 1;
                }
                self.stats.callbacks += 1;
                *wanted
            }
        };
        let resource = self.resources[lock.resource].id;
        effects.push(Effect::Callback { peer: lock.peer, handle: lock.handle, resource, wanted });
    }

    /// Grants waiting requests in order after a lock of the resource was removed or has become weaker.
    /// Requests that stay in the queue may not have revoked the locks in `fresh` yet; locks granted here are
    /// added to them.
    pub(super) fn reprocess(
        &mut self,
        now: Instant,
        resource: u32,
        mut fresh: Vec<u32>,
        effects: &mut Vec<Effect>,
    ) {
        if self.resources.get(resource).is_none() {
            return;
        }
        let mut place = 0;
        while !self.recovering && place < self.resources[resource].waiting.len() {
            let key = self.resources[resource].waiting[place];
            let lock = &self.locks[key];
            if self.is_blocked(resource, &lock.requested, lock.on_behalf_of, place) {
                place += 1;
                continue;
            }
            self.resources[resource].waiting.remove(place);
            let grant = self.grant(key);
            let lock = &self.locks[key];
            effects.push(Effect::Completion { peer: lock.peer, handle: lock.handle, grant });
            fresh.push(key);
        }
        if fresh.is_empty() {
            return self.drop_if_unused(now, resource);
        }
        for place in 0..self.resources[resource].waiting.len() {
            let waiter = &self.locks[self.resources[resource].waiting[place]];
            let (need, on_behalf_of) = (waiter.requested, waiter.on_behalf_of);
            for key in &fresh {
                if self.is_in_the_way(*key, &need, on_behalf_of) {
                    self.call_back(now, *key, &Wanted::by(&need), effects);
                }
            }
        }
    }

    fn note_conflict(&mut self, now: Instant, resource: u32, of_inode: bool) {
        let contention = self.resources[resource].contention.get_or_insert_with(Box::<Contention>::default);
        contention.keeps_events = of_inode;
        contention.on_conflict(now, &self.config);
        if !contention.is_watched
            && let Some(until) = contention.counts_until(now, &self.config)
        {
            contention.is_watched = true;
            self.timers.insert((until, Timer::Contention(resource)));
        }
    }

    /// Forgets the contention of a resource if it has ended.
    pub(super) fn on_contention_due(&mut self, now: Instant, key: u32) {
        let Some(contention) = self.resources.get_mut(key).and_then(|known| known.contention.as_mut()) else {
            return;
        };
        match contention.counts_until(now, &self.config) {
            Some(until) => drop(self.timers.insert((until, Timer::Contention(key)))),
            None => {
                contention.is_watched = false;
                self.drop_if_unused(now, key);
            }
        }
    }

    /// Returns the milliseconds for which a resource stays contended; `None` if it is not.
    pub(super) fn contended_ms(&self, now: Instant, id: &ResourceId) -> Option<u64> {
        self.resources[*self.by_id.get(id)?].contention.as_ref()?.left_ms(now)
    }

    /// Converts a lock of which a client keeps only `mode` and `policy`: it drops inode bits, or turns a
    /// write lock into a read lock. Bits that the lock does not have any more stay dropped, so conversions
    /// may be repeated or late. Extents stay as they are.
    ///
    /// # Errors
    /// `Stale`; `Invalid` if the lock is not granted, or the new mode allows what the old one did not.
    pub fn on_convert(
        &mut self,
        now: Instant,
        peer: Peer,
        handle: LockHandle,
        mode: Mode,
        policy: &Policy,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        if !self.is_current(peer) {
            return Err(Refusal::Stale);
        }
        let Some(key) = self.find(peer, handle) else { return Ok(()) };
        let Some(held) = self.locks[key].granted else { return Err(Refusal::Invalid) };
        let mode = if mode.serves(held.mode) { held.mode } else { mode };
        let left = match (held.policy, policy) {
            (Policy::Bits(bits), Policy::Bits(keep)) => Policy::Bits(bits.intersection(*keep)),
            (Policy::Extent(extent), Policy::Extent(_)) => Policy::Extent(extent),
            _ => return Err(Refusal::Invalid),
        };
        if !held.mode.serves(mode) || held.mode == Mode::Group {
            return Err(Refusal::Invalid);
        }
        if left == Policy::Bits(InodeBits::NONE) {
            self.on_cancel(now, peer, &[handle], effects);
            return Ok(());
        }
        let resource = self.locks[key].resource;
        let kept = Need { mode, policy: left, group: 0 };
        if kept != held {
            self.resources[resource].granted.remove(held.mode, &held.policy, key);
            self.resources[resource].granted.insert(kept.mode, &kept.policy, key);
            self.locks[key].granted = Some(kept);
            self.end_callback(key);
            self.reprocess(now, resource, vec![key], effects);
        }
        Ok(())
    }
}
