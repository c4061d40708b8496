//! Broken connections, restarted servers, and evictions.

use super::{Effect, LockClient, State};
use crate::resource::{LockHandle, Outcome, Refusal};
use nacre_env::clock::Instant;

impl LockClient {
    /// Resends unanswered requests on a connection to a server that has this client's locks (all of them, or
    /// there are none).
    pub fn on_connected(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.connected = true;
        effects.extend(self.unsent.drain(..).map(Effect::SendCancel));
        let asked: Vec<(Instant, u32)> = self.resend.iter().copied().collect();
        self.resend.clear();
        for (_, key) in asked {
            self.ask_again(now, key, effects);
        }
    }

    /// Stops sending until there is a new connection. Locks stay.
    pub fn on_disconnected(&mut self) {
        self.connected = false;
    }

    /// Replays all locks to a server that has restarted, then resends requests.
    pub fn on_restarted(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.connected = true;
        self.unsent.clear();
        self.reserved.clear();
        let held = self.locks.iter().filter(|(_, lock)| !matches!(lock.state, State::Asking(_)));
        self.replaying = held.map(|(_, lock)| lock.handle).collect();
        self.replay_again = Some(now);
        self.replay_again(now, effects);
    }

    /// Handles the answer to a replay.
    pub fn on_replay_outcome(
        &mut self,
        now: Instant,
        handle: LockHandle,
        outcome: &Outcome,
        effects: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Granted(_) if !self.by_handle.contains_key(&handle) => {
                self.send(effects, Effect::SendCancel(handle));
            }
            Outcome::Granted(_) => {}
            // The connection has been lost again, and with it this replay.
            Outcome::Refused(Refusal::Stale) => return,
            // The lock is lost, and which others are is unknown: connect as a new client.
            _ if self.by_handle.contains_key(&handle) => return effects.push(Effect::Reconnect),
            _ => {}
        }
        if self.replaying.remove(&handle) && self.replaying.is_empty() {
            self.replay_is_done(now, effects);
        }
    }

    /// Drops a lock that is not replayed after all, since this client has lost the right to it: it alone is
    /// lost, with its cache.
    pub fn on_replay_given_up(&mut self, now: Instant, handle: LockHandle, effects: &mut Vec<Effect>) {
        if let Some(key) = self.by_handle.get(&handle).copied() {
            self.remove(key);
        }
        if self.replaying.remove(&handle) && self.replaying.is_empty() {
            self.replay_is_done(now, effects);
        }
    }

    /// Drops all locks after an eviction, and wakes threads that wait for one with a failure. Connect as a
    /// new client, then call [`LockClient::on_connected`].
    pub fn on_evicted(&mut self, effects: &mut Vec<Effect>) {
        self.connected = false;
        self.replay_again = None;
        self.replaying.clear();
        self.unsent.clear();
        self.reserved.clear();
        let mut all: Vec<(LockHandle, u32)> =
            self.locks.iter().map(|(key, lock)| (lock.handle, key)).collect();
        all.sort();
        for (handle, key) in all {
            let lock = &self.locks[key];
            let (need, resource) = (lock.need, self.resources[lock.resource].id);
            effects.push(match lock.state {
                State::Asking(_) => Effect::Failed { handle, refusal: Refusal::Stale },
                State::Granted | State::Leaving(_) => Effect::Discard { handle, resource, need },
            });
            self.remove(key);
        }
    }

    /// Resends unanswered replays, if it is time.
    pub(super) fn replay_again(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        if self.replay_again.is_none_or(|due| due > now) {
            return;
        }
        // Locks that were removed meanwhile need no answer.
        self.replaying.retain(|handle| self.by_handle.contains_key(handle));
        if self.replaying.is_empty() {
            return self.replay_is_done(now, effects);
        }
        if self.connected {
            let keys = self.replaying.iter().filter_map(|handle| self.by_handle.get(handle));
            effects.extend(keys.map(|key| {
                let lock = &self.locks[*key];
                let resource = self.resources[lock.resource].id;
                Effect::SendReplay { handle: lock.handle, resource, need: lock.need }
            }));
        }
        self.replay_again = Some(now + self.config.resend_after);
    }

    fn replay_is_done(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        self.replay_again = None;
        self.send(effects, Effect::SendReplayDone);
        self.on_connected(now, effects);
    }
}
