//! Deadlines: callbacks and glimpses are resent until they are answered, and a client that misses its
//! deadline is evicted.

use super::glimpse::PendingGlimpse;
use super::{Effect, GlimpseId, LockServer, ServerConfig};
use crate::extent::Extent;
use crate::mode::Mode;
use crate::resource::{LockHandle, Need, Peer, ResourceId, Wanted};
use nacre_env::clock::Instant;
use std::ops::ControlFlow;
use std::time::Duration;

/// An action that is due at some time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Timer {
    /// Resend this lock's callback, or evict its holder.
    Callback(u32),
    /// Resend this glimpse, or evict the clients that have not answered it.
    Glimpse(GlimpseId),
    /// Check whether this resource is still contended or may be forgotten.
    Contention(u32),
}

/// A callback or glimpse that has not been answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    since: Instant,
    /// `None` if there is no time limit.
    deadline: Option<Instant>,
    retry: Instant,
    /// Needs of the conflicting requests; not used for glimpses.
    pub(super) wanted: Wanted,
}

impl Called {
    pub(super) fn new(now: Instant, wanted: Wanted, config: &ServerConfig) -> Called {
        let deadline = Some(now + config.callback_timeout);
        Called { since: now, deadline, retry: now + config.callback_retry, wanted }
    }

    /// Creates a call that no client is evicted for.
    pub(super) fn without_deadline(now: Instant, wanted: Wanted, config: &ServerConfig) -> Called {
        Called { deadline: None, ..Called::new(now, wanted, config) }
    }

    /// Returns the time since the first callback.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Returns the time left until the deadline, if there is one.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(now))
    }

    /// Returns the time of the next resend or of the deadline, whichever is earlier.
    pub(super) fn due(&self) -> Instant {
        self.deadline.map_or(self.retry, |deadline| deadline.min(self.retry))
    }

    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    pub(super) fn is_repeated(&mut self, now: Instant, config: &ServerConfig) {
        self.retry = now + config.callback_retry;
    }

    /// Extends the deadline of an active holder, up to a bound.
    fn prolong(&mut self, now: Instant, config: &ServerConfig) {
        let bound = self.since + config.callback_total_max;
        let prolonged = |deadline: Instant| deadline.max(now + config.callback_timeout).min(bound);
        self.deadline = self.deadline.map(prolonged);
    }
}

impl LockServer {
    /// Resends callbacks and evicts clients whose deadline has passed.
    pub fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let mut late = Vec::new();
        while let Some((at, timer)) = self.timers.first().copied()
            && at <= now
        {
            self.timers.pop_first();
            match timer {
                Timer::Callback(key) => self.on_callback_due(now, key, &mut late, effects),
                Timer::Glimpse(id) => self.on_glimpse_due(now, id, &mut late, effects),
                Timer::Contention(resource) => self.on_contention_due(now, resource),
            }
        }
        late.sort();
        late.dedup();
        for peer in late {
            // Evicting one client may have answered the call that another missed, but that one was late
            // nevertheless.
            self.evict(now, peer, effects);
        }
    }

    fn evict(&mut self, now: Instant, peer: Peer, effects: &mut Vec<Effect>) {
        self.stats.evictions += 1;
        effects.push(Effect::Evict { peer });
        self.on_disconnect(now, peer.client, effects);
    }

    /// Evicts a client that is known to be down at once, if an answer from it is pending.
    pub fn on_lost(&mut self, now: Instant, peer: Peer, effects: &mut Vec<Effect>) {
        if self.is_awaited(peer) {
            self.evict(now, peer, effects);
        }
    }

    /// Returns the time at which [`LockServer::on_tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// True if an answer from this client is pending: to a blocking callback or a glimpse.
    fn is_awaited(&self, peer: Peer) -> bool {
        let Some(client) = self.clients.get(&peer.client).filter(|c| c.generation == peer.generation) else {
            return false;
        };
        let has_deadline = |called: &Called| called.deadline.is_some();
        let is_called = |key: &u32| self.locks[*key].called.as_ref().is_some_and(has_deadline);
        let is_asked = |pending: &PendingGlimpse| pending.outstanding.iter().any(|(asked, _)| *asked == peer);
        (client.called_back > 0 && client.locks.values().any(is_called))
            || self.glimpses.values().any(is_asked)
    }

    /// Extends the deadline of a lock under revocation, which its holder reports to be busy.
    pub fn on_activity(&mut self, now: Instant, peer: Peer, handle: LockHandle) {
        if !self.timers.is_empty()
            && let Some(key) = self.find(peer, handle)
        {
            self.prolong(now, key);
        }
    }

    /// Extends the deadlines of the client's locks under revocation on these bytes, which it reads or writes.
    pub fn on_io(&mut self, now: Instant, peer: Peer, resource: &ResourceId, extent: &Extent) {
        if self.timers.is_empty() {
            return;
        }
        let Some(found) = self.by_id.get(resource) else { return };
        let mut own = Vec::new();
        // An exclusive need conflicts with all modes but null.
        let all = Need::extent(Mode::Ex, *extent);
        let _ = self.resources[*found].granted.conflicting(&all, &mut |key| {
            if self.locks[key].peer == peer && self.locks[key].called.is_some() {
                own.push(key);
            }
            ControlFlow::Continue(())
        });
        for key in own {
            self.prolong(now, key);
        }
    }

    fn prolong(&mut self, now: Instant, key: u32) {
        if let Some(called) = &mut self.locks[key].called {
            self.timers.remove(&(called.due(), Timer::Callback(key)));
            called.prolong(now, &self.config);
            self.timers.insert((called.due(), Timer::Callback(key)));
        }
    }

    /// Ends the revocation of a lock, which is removed or has changed.
    pub(super) fn end_callback(&mut self, key: u32) {
        if let Some(called) = self.locks[key].called.take() {
            self.timers.remove(&(called.due(), Timer::Callback(key)));
            // A client that is removed leaves the table before its locks do.
            if let Some(client) = self.clients.get_mut(&self.locks[key].peer.client) {
                client.called_back -= 1;
            }
        }
    }

    fn on_callback_due(&mut self, now: Instant, key: u32, late: &mut Vec<Peer>, effects: &mut Vec<Effect>) {
        let lock = &mut self.locks[key];
        let Some(called) = &mut lock.called else { return };
        if called.is_late(now) {
            late.push(lock.peer);
            return;
        }
        called.is_repeated(now, &self.config);
        self.timers.insert((called.due(), Timer::Callback(key)));
        let (wanted, resource) = (called.wanted, self.resources[lock.resource].id);
        effects.push(Effect::Callback { peer: lock.peer, handle: lock.handle, resource, wanted });
    }

    fn on_glimpse_due(
        &mut self,
        now: Instant,
        id: GlimpseId,
        late: &mut Vec<Peer>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(PendingGlimpse { called, outstanding, resource, .. }) = self.glimpses.get_mut(&id) else {
            return;
        };
        if called.is_late(now) {
            late.extend(outstanding.iter().map(|(peer, _)| *peer));
            return;
        }
        called.is_repeated(now, &self.config);
        self.timers.insert((called.due(), Timer::Glimpse(id)));
        let resource = self.resources[*resource].id;
        effects.extend(outstanding.iter().map(|(peer, handle)| Effect::Glimpse {
            peer: *peer,
            handle: *handle,
            resource,
            glimpse: id,
        }));
    }
}
