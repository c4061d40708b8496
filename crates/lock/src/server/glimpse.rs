//! Glimpses: the size of an object under write locks of other clients, without revoking those.
//!
//! The holder of the highest write lock usually knows the size, as it took the lock to write there. If its
//! answer does not reach into its lock (it has not written yet), the holders below are asked next, so that
//! written data is never overlooked; Lustre asks only the first. A lock that ends below the size known so far
//! cannot change it, and no client is asked twice.

use super::timeouts::{Called, Timer};
use super::{Effect, GlimpseId, LockServer};
use crate::extent::Extent;
use crate::mode::Mode;
use crate::resource::{LockHandle, Lvb, Need, Outcome, Peer, Refusal, ResourceId, Wanted};
use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use std::ops::ControlFlow;

/// A glimpse of a client that waits for the writers' answers.
#[derive(Debug)]
pub(super) struct PendingGlimpse {
    pub(super) peer: Peer,
    pub(super) handle: LockHandle,
    pub(super) resource: u32,
    /// Clients that were asked, or are excluded.
    asked: Vec<ClientUuid>,
    /// Locks whose holders have not answered.
    pub(super) outstanding: Vec<(Peer, LockHandle)>,
    /// The answers, merged.
    answers: Lvb,
    pub(super) called: Called,
}

impl LockServer {
    /// Handles the answer to a glimpse callback: the size and times that the holder knows, or `None` if it
    /// has no such lock, which is as good as a cancel, since handles are never reused.
    pub fn on_glimpse_answer(
        &mut self,
        now: Instant,
        peer: Peer,
        glimpse: GlimpseId,
        handle: LockHandle,
        answer: Option<Lvb>,
        effects: &mut Vec<Effect>,
    ) {
        match answer {
            Some(lvb) => self.answered(now, glimpse, peer, handle, Some(lvb), effects),
            None => self.on_cancel(now, peer, &[handle], effects),
        }
    }

    fn answered(
        &mut self,
        now: Instant,
        glimpse: GlimpseId,
        peer: Peer,
        handle: LockHandle,
        answer: Option<Lvb>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(pending) = self.glimpses.get_mut(&glimpse) else { return };
        let Some(place) = pending.outstanding.iter().position(|asked| *asked == (peer, handle)) else {
            return;
        };
        pending.outstanding.swap_remove(place);
        match answer {
            // Not into the resource's own block: a late answer may be older than a truncate of the same
            // client.
            Some(lvb) => pending.answers = pending.answers.merged(&lvb),
            // The client may have written under other locks of its own, which this answer does not cover.
            None => pending.asked.retain(|client| *client != peer.client),
        }
        self.advance_glimpse(now, glimpse, effects);
    }

    /// Asks the writers of an object, all but `except`, for size and times on behalf of the target itself;
    /// takes no lock. Returns `Glimpsed` at once, with an empty block if no client can know more than the
    /// object itself, or `Waiting`, which [`Effect::Glimpsed`] or [`LockServer::on_cancel`] ends. `handle` is
    /// a new one from [`LockServer::local_handle`].
    pub fn on_local_glimpse(
        &mut self,
        now: Instant,
        handle: LockHandle,
        id: &ResourceId,
        except: Option<ClientUuid>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if self.recovering {
            return Outcome::Refused(Refusal::Recovering);
        }
        match self.by_id.get(id) {
            Some(&resource) => self.start_glimpse(now, Peer::LOCAL, handle, resource, except, effects),
            None => Outcome::Glimpsed(Lvb::default()),
        }
    }

    /// Starts a glimpse that could not have the lock: asks the writers that may know the size, if there are
    /// any.
    pub(super) fn start_glimpse(
        &mut self,
        now: Instant,
        peer: Peer,
        handle: LockHandle,
        resource: u32,
        except: Option<ClientUuid>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let known = self.resources[resource].lvb.unwrap_or_default();
        let asked = Vec::from_iter(except);
        let targets = self.glimpse_targets(resource, known.size_bytes, &asked);
        if targets.is_empty() {
            self.drop_if_unused(now, resource);
            return Outcome::Glimpsed(known);
        }
        self.glimpses_started += 1;
        let id = GlimpseId(self.glimpses_started);
        let pending = PendingGlimpse {
            peer,
            handle,
            resource,
            asked,
            outstanding: Vec::new(),
            answers: Lvb::default(),
            called: Called::new(now, Wanted::by(&Need::extent(Mode::Pr, Extent::WHOLE)), &self.config),
        };
        self.glimpses.insert(id, pending);
        self.resources[resource].glimpses.push(id);
        if let Some(client) = self.clients.get_mut(&peer.client) {
            client.glimpses.insert(handle, id);
        }
        self.ask(now, id, targets, effects);
        Outcome::Waiting
    }

    /// Drops a glimpse whose client does not wait any more; its entry at the client is removed already.
    pub(super) fn drop_glimpse(&mut self, id: GlimpseId) {
        if let Some(pending) = self.glimpses.remove(&id) {
            self.timers.remove(&(pending.called.due(), Timer::Glimpse(id)));
            self.resources[pending.resource].glimpses.retain(|other| *other != id);
        }
    }

    /// Handles the removal of a lock that a glimpse may have asked for: what its holder knew is in the object
    /// by now, or lost.
    pub(super) fn glimpsed_lock_is_gone(
        &mut self,
        now: Instant,
        resource: u32,
        peer: Peer,
        handle: LockHandle,
        effects: &mut Vec<Effect>,
    ) {
        for id in self.resources[resource].glimpses.clone() {
            self.answered(now, id, peer, handle, None, effects);
        }
    }

    fn ask(
        &mut self,
        now: Instant,
        id: GlimpseId,
        targets: Vec<(Peer, LockHandle)>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(pending) = self.glimpses.get_mut(&id) else { return };
        let resource = self.resources[pending.resource].id;
        self.timers.remove(&(pending.called.due(), Timer::Glimpse(id)));
        pending.called = Called::new(now, pending.called.wanted, &self.config);
        self.timers.insert((pending.called.due(), Timer::Glimpse(id)));
        for (peer, handle) in &targets {
            pending.asked.push(peer.client);
            self.stats.glimpses += 1;
            effects.push(Effect::Glimpse { peer: *peer, handle: *handle, resource, glimpse: id });
        }
        pending.outstanding = targets;
    }

    /// Continues a glimpse: asks the next writers, or answers.
    fn advance_glimpse(&mut self, now: Instant, id: GlimpseId, effects: &mut Vec<Effect>) {
        let Some(pending) = self.glimpses.get(&id) else { return };
        if !pending.outstanding.is_empty() {
            return;
        }
        let resource = pending.resource;
        let known = pending.answers.merged(&self.resources[resource].lvb.unwrap_or_default());
        let targets = self.glimpse_targets(resource, known.size_bytes, &pending.asked);
        if !targets.is_empty() {
            return self.ask(now, id, targets, effects);
        }
        let (peer, handle) = (pending.peer, pending.handle);
        self.drop_glimpse(id);
        if let Some(client) = self.clients.get_mut(&peer.client) {
            client.glimpses.remove(&handle);
        }
        effects.push(Effect::Glimpsed { peer, handle, lvb: known });
        self.drop_if_unused(now, resource);
    }

    /// Returns the locks to ask for next: of each writing mode, from the highest range down to the first lock
    /// that was taken to write there. Skips locks below `size_bytes` and clients in `asked`.
    fn glimpse_targets(
        &self,
        resource: u32,
        size_bytes: u64,
        asked: &[ClientUuid],
    ) -> Vec<(Peer, LockHandle)> {
        let mut targets: Vec<(Peer, LockHandle)> = Vec::new();
        let trees = self.resources[resource].granted.trees();
        for (mode, tree) in trees.iter().filter(|(mode, _)| mode.writes()) {
            let _ = tree.descending(&mut |key, extent| {
                let lock = &self.locks[key];
                // Locks of the target itself overlap those of the client on whose behalf they are.
                if lock.peer.is_local() {
                    return ControlFlow::Continue(());
                }
                // Locks of Cw and Group overlap, so a lower start does not mean a lower end.
                let alone = matches!(mode, Mode::Ex | Mode::Pw);
                if extent.last < size_bytes {
                    return if alone { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                }
                let client = lock.peer.client;
                let known = asked.contains(&client) || targets.iter().any(|(peer, _)| peer.client == client);
                if known {
                    return ControlFlow::Continue(());
                }
                targets.push((lock.peer, lock.handle));
                if alone && !lock.no_expansion { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        }
        targets
    }
}
