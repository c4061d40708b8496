//! Events from the target, from the cache that is being flushed, and from the clock.

use super::{ClientConfig, Effect, LockClient, State, downgraded};
use crate::mode::Mode;
use crate::resource::{LockGrant, LockHandle, Need, Outcome, Refusal, ResourceId, Wanted};
use nacre_env::clock::Instant;
use std::time::Duration;

impl LockClient {
    /// Handles the answer to a request, a completion callback, or the end of a glimpse; in any order, and
    /// possibly repeated.
    ///
    /// The owner handles [`Refusal::Stale`] itself: the client has been evicted, see
    /// [`LockClient::on_evicted`].
    pub fn on_outcome(
        &mut self,
        now: Instant,
        handle: LockHandle,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        let Some(&key) = self.by_handle.get(&handle) else {
            // No thread waits for it any more, or it was cancelled before a resend reached the server.
            if matches!(outcome, Outcome::Granted(_) | Outcome::Waiting) {
                self.send(effects, Effect::SendCancel(handle));
            }
            return;
        };
        if !matches!(self.locks[key].state, State::Asking(_)) {
            return;
        }
        match outcome {
            Outcome::Granted(grant) => self.granted(key, grant, effects),
            Outcome::Glimpsed(lvb) => {
                self.remove(key);
                effects.push(Effect::Glimpsed { handle, lvb: *lvb });
            }
            Outcome::Waiting | Outcome::Refused(Refusal::Recovering | Refusal::Stale) => {}
            Outcome::Refused(refusal) => {
                if let Refusal::Contended { for_ms } = refusal {
                    let id = self.resources[self.locks[key].resource].id;
                    self.contended.insert(id, now + Duration::from_millis(*for_ms));
                }
                self.remove(key);
                effects.push(Effect::Failed { handle, refusal: *refusal });
            }
        }
    }

    fn granted(&mut self, key: u32, grant: &LockGrant, effects: &mut Vec<Effect>) {
        let lock = &mut self.locks[key];
        let State::Asking(due) = lock.state else { return };
        self.resend.remove(&(due, key));
        let resource = &mut self.resources[lock.resource];
        resource.asking.retain(|other| *other != key);
        if !grant.need.serves(&lock.need) {
            // The server sent an invalid grant; the request is over, whatever was meant.
            let handle = lock.handle;
            self.remove(key);
            self.send(effects, Effect::SendCancel(handle));
            effects.push(Effect::Failed { handle, refusal: Refusal::Invalid });
            return;
        }
        lock.need = grant.need;
        lock.lvb = grant.lvb;
        lock.state = State::Granted;
        resource.granted.insert(grant.need.mode, &grant.need.policy, key);
        effects.push(Effect::Ready { handle: lock.handle });
    }

    /// Handles a blocking callback: the lock gets no new users, and when the last reference is released, the
    /// part that conflicts is given up. May come before the grant, after the cancel, and repeatedly; until then repeated
    /// ones are answered by [`Effect::SendBusy`].
    pub fn on_callback(&mut self, handle: LockHandle, wanted: &Wanted, effects: &mut Vec<Effect>) {
        self.stats.callbacks += 1;
        let is_wanted = |key: &u32| self.locks[*key].wanted.is_some();
        let was_wanted = self.by_handle.get(&handle).is_some_and(is_wanted);
        let effects_before = effects.len();
        self.give_up_for(handle, wanted, effects);
        let is_held = |key: &u32| !matches!(self.locks[*key].state, State::Asking(_));
        if was_wanted && effects.len() == effects_before && self.by_handle.get(&handle).is_some_and(is_held) {
            self.send(effects, Effect::SendBusy(handle));
        }
    }

    /// Does what a callback for these needs would do, for an operation of this client.
    pub fn give_up_for(&mut self, handle: LockHandle, wanted: &Wanted, effects: &mut Vec<Effect>) {
        if self.reserved.call_back(handle) {
            // The reply may be lost, and the request that is sent again may wait for the one that wants the lock.
            return self.send(effects, Effect::SendCancel(handle));
        }
        let Some(&key) = self.by_handle.get(&handle) else {
            return self.send(effects, Effect::SendCancel(handle));
        };
        let lock = &mut self.locks[key];
        let Need { mode, policy, .. } = lock.need;
        if mode == Mode::Group {
            // Held until its user releases it; the server only asks whether it still exists.
            return;
        }
        if lock.state == State::Granted && !wanted.conflicts_with(mode, &policy) {
            // The conversion has not reached the server.
            return self.send(effects, Effect::SendConvert { handle, mode, policy });
        }
        lock.wanted = Some(lock.wanted.map_or(*wanted, |before| before.union(wanted)));
        if lock.state == State::Granted && lock.users == 0 {
            self.give_up(key, effects);
        }
    }

    /// Returns the resource of a lock; `None` if there is no such lock. A glimpse callback is answered with
    /// what the owner knows of it, dirty data included, or with "no such lock".
    pub fn resource_of(&self, handle: LockHandle) -> Option<ResourceId> {
        Some(self.resources[self.locks[*self.by_handle.get(&handle)?].resource].id)
    }

    /// Handles the completion of an [`Effect::Flush`].
    pub fn on_flushed(&mut self, now: Instant, handle: LockHandle, effects: &mut Vec<Effect>) {
        let Some(&key) = self.by_handle.get(&handle) else { return };
        let lock = &mut self.locks[key];
        let State::Leaving(keep) = lock.state else { return };
        let Some(keep) = keep else {
            self.remove(key);
            return self.send(effects, Effect::SendCancel(handle));
        };
        lock.need = keep;
        if lock.wanted.is_some_and(|wanted| wanted.conflicts_with(keep.mode, &keep.policy)) {
            // A callback meanwhile asked for more.
            return self.give_up(key, effects);
        }
        lock.wanted = None;
        lock.state = State::Granted;
        let resource = &mut self.resources[lock.resource];
        resource.leaving.retain(|other| *other != key);
        resource.granted.insert(keep.mode, &keep.policy, key);
        self.lru.push(&mut self.locks, key, now);
        self.stats.converted += 1;
        self.send(effects, Effect::SendConvert { handle, mode: keep.mode, policy: keep.policy });
        self.shrink_to_size(effects);
    }

    /// Writes out an unused write lock and turns it into a read lock, for callers that will only read from
    /// now on. False if the lock is used, or is not a write lock.
    pub fn downgrade(&mut self, handle: LockHandle, effects: &mut Vec<Effect>) -> bool {
        let Some(&key) = self.by_handle.get(&handle) else { return false };
        let lock = &mut self.locks[key];
        let readers = Wanted::by(&Need { mode: Mode::Pr, ..lock.need });
        if lock.state != State::Granted
            || lock.users > 0
            || downgraded(&lock.need, &readers, &ClientConfig { downgrade: true, ..self.config }).is_none()
        {
            return false;
        }
        // As if readers had requested it; all inode bits stay, as the readers need them all.
        lock.wanted = Some(readers);
        self.give_up(key, effects);
        true
    }

    /// Resends requests and gives up locks that are too old.
    pub fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.drop_aged(now, effects);
        self.contended.retain(|_, until| *until > now);
        while let Some((due, key)) = self.resend.first().copied()
            && due <= now
        {
            self.resend.pop_first();
            self.ask_again(now, key, effects);
        }
        self.replay_again(now, effects);
    }

    /// Returns the time at which [`LockClient::on_tick`] has to be called next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let aged = self.lru.oldest(&self.locks).map(|since| since + self.config.lru_max_age);
        let resend = self.resend.first().map(|(due, _)| *due);
        [aged, resend, self.replay_again].into_iter().flatten().min()
    }

    /// Sends a request, again or for the first time on this connection. Its entry in the resend queue is
    /// removed already.
    pub(super) fn ask_again(&mut self, now: Instant, key: u32, effects: &mut Vec<Effect>) {
        let due = now + self.config.resend_after;
        let lock = &mut self.locks[key];
        lock.state = State::Asking(due);
        self.resend.insert((due, key));
        if self.replaying.is_empty() {
            let request = lock.request(self.resources[lock.resource].id);
            self.send(effects, Effect::SendEnqueue(request));
        }
    }
}
