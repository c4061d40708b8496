//! Who is connected, and whether a single client may cache everything.
//!
//! A client that is alone gets the lease *exclusive*: nobody else can change anything, so it may cache names, absences
//! and attributes without asking. When a second client comes, the first is called back, drops what it caches and
//! says so; only then does the second one get in, and both hold the lease *shared*. A client that does not
//! answer in time is evicted. When all but one have left, that one gets the lease exclusive again.
//!
//! ```text
//!               connect, alone                    connect, others are there
//!   (unknown) ------------------> exclusive    (unknown) --------> shared, or waiting for the exclusive one's release
//!                                    | somebody else connects                 |
//!                                    v                                        |
//!                                 releasing --released--> shared  <-----------+
//!                                    | deadline
//!                                    v
//!                                 fencing --the owner has seen to it that it can do no harm--> (unknown)
//! ```
//!
//! After a restart, clients known from before are *expected* until the recovery deadline. If there is one only, it may
//! still hold the lease exclusive, so nobody else gets in before it is back or given up.
//!
//! Invariant: while a client holds the lease exclusive, is releasing it, is expected to hold it, or is being fenced, no other
//! is granted.

use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use std::collections::HashMap;
use std::time::Duration;

/// What a client may cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// It is the only client.
    pub exclusive: bool,
    /// Grows with every grant and revocation; the larger one is the newer.
    pub epoch: u64,
}

/// What the owner of the engine has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The client's connect succeeds with this grant.
    Granted {
        /// Who.
        client: ClientUuid,
        /// What.
        grant: Grant,
    },
    /// Tell the client that its grant has changed. If `exclusive` was taken away, it must answer before the deadline.
    Callback {
        /// Who.
        client: ClientUuid,
        /// The new grant.
        grant: Grant,
    },
    /// Drop the client and all that it holds: it did not release, or did not come back after a restart. Nobody is let in
    /// because of that before [`LeaseEngine::on_fenced`] says that whatever it still sends is refused everywhere.
    Evict {
        /// Who.
        client: ClientUuid,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Known from before a restart, not back yet.
    Expected { deadline: Instant, may_be_exclusive: bool },
    /// Wants in, but the lease is held exclusive. The number orders those that wait.
    Waiting { since: u64 },
    /// Connected, may cache nothing for long.
    Shared,
    /// Connected and alone.
    Exclusive,
    /// Was called back under this epoch and has not answered.
    Releasing { epoch: u64, deadline: Instant },
    /// Was given up and is not known to be harmless yet; it may have come back already, as somebody new.
    Fencing { returns: bool },
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct LeaseEngine {
    clients: HashMap<ClientUuid, State>,
    epoch: u64,
    release_timeout: Duration,
    arrivals: u64,
}

impl LeaseEngine {
    /// A new engine. `first_epoch` must be above every epoch of earlier lives of the server. `known` clients of the
    /// last life are expected until `recovery_deadline`.
    pub fn new(
        first_epoch: u64,
        release_timeout: Duration,
        known: &[ClientUuid],
        recovery_deadline: Instant,
    ) -> LeaseEngine {
        let state = State::Expected { deadline: recovery_deadline, may_be_exclusive: known.len() == 1 };
        LeaseEngine {
            clients: known.iter().map(|client| (*client, state)).collect(),
            epoch: first_epoch,
            release_timeout,
            arrivals: 0,
        }
    }

    /// Clients of the last life are expected until `recovery_deadline`, which is another one than at the beginning.
    pub fn expect_until(&mut self, recovery_deadline: Instant) {
        for state in self.clients.values_mut() {
            if let State::Expected { deadline, .. } = state {
                *deadline = recovery_deadline;
            }
        }
    }

    /// A client connects, for the first time or again.
    pub fn on_connect(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        match self.clients.get(&client).copied() {
            Some(State::Shared) | Some(State::Exclusive) | Some(State::Releasing { .. }) => {
                let grant = self.grant_of(&client);
                effects.extend(grant.map(|grant| Effect::Granted { client, grant }));
            }
            Some(State::Waiting { .. }) => {}
            Some(State::Fencing { .. }) => {
                self.clients.insert(client, State::Fencing { returns: true });
            }
            Some(State::Expected { may_be_exclusive: true, .. }) => {
                // It may have cached everything, so it goes on as the exclusive one and is called back if others wait.
                let grant = self.enter(client, State::Exclusive);
                effects.push(Effect::Granted { client, grant });
                if self.clients.len() > 1 {
                    self.revoke(now, client, effects);
                }
            }
            Some(State::Expected { .. }) | None => self.arrive(now, client, effects),
        }
    }

    fn arrive(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        self.arrivals += 1;
        self.clients.insert(client, State::Waiting { since: self.arrivals });
        self.settle(now, effects);
    }

    /// A client leaves, or is dropped for other reasons.
    pub fn on_disconnect(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        if let Some(State::Fencing { returns }) = self.clients.get_mut(&client) {
            *returns = false;
        } else if self.clients.remove(&client).is_some() {
            self.settle(now, effects);
        }
    }

    /// The owner evicts a client for a reason of its own: nobody is let in because of that before
    /// [`LeaseEngine::on_fenced`].
    pub fn on_evicted(&mut self, client: ClientUuid) {
        if let Some(state) = self.clients.get_mut(&client) {
            *state = State::Fencing { returns: false };
        }
    }

    /// A client is to drop what it caches although nobody else has come: what it may see has changed. It gets the lease
    /// exclusive again once it has, if it is still alone.
    pub fn on_recall(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        if let Some(State::Exclusive) = self.clients.get(&client) {
            self.revoke(now, client, effects);
        }
    }

    /// What a client that was evicted still sends is refused from now on.
    pub fn on_fenced(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        let Some(State::Fencing { returns }) = self.clients.get(&client).copied() else { return };
        self.clients.remove(&client);
        if returns {
            self.arrive(now, client, effects);
        } else {
            self.settle(now, effects);
        }
    }

    /// Gives clients another time to release the lease, from the next revocation on.
    pub fn set_release_timeout(&mut self, release_timeout: Duration) {
        self.release_timeout = release_timeout;
    }

    /// A client has dropped what it cached under leases up to `epoch`.
    pub fn on_released(&mut self, now: Instant, client: ClientUuid, epoch: u64, effects: &mut Vec<Effect>) {
        if let Some(State::Releasing { epoch: asked, .. }) = self.clients.get(&client)
            && epoch >= *asked
        {
            self.clients.insert(client, State::Shared);
            self.settle(now, effects);
        }
    }

    /// Time has passed: evicts who is late. Each needs its [`LeaseEngine::on_fenced`].
    pub fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let late = |state: &State| match state {
            State::Expected { deadline, .. } | State::Releasing { deadline, .. } => *deadline <= now,
            _ => false,
        };
        let mut evicted: Vec<ClientUuid> =
            self.clients.iter().filter(|(_, state)| late(state)).map(|(client, _)| *client).collect();
        evicted.sort();
        for client in evicted {
            self.clients.insert(client, State::Fencing { returns: false });
            effects.push(Effect::Evict { client });
        }
    }

    /// When [`LeaseEngine::on_tick`] has something to do next.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.clients
            .values()
            .filter_map(|state| match state {
                State::Expected { deadline, .. } | State::Releasing { deadline, .. } => Some(*deadline),
                _ => None,
            })
            .min()
    }

    /// The grant of a connected client; `None` for one that is not let in.
    pub fn grant_of(&self, client: &ClientUuid) -> Option<Grant> {
        match self.clients.get(client)? {
            State::Shared | State::Releasing { .. } => Some(Grant { exclusive: false, epoch: self.epoch }),
            State::Exclusive => Some(Grant { exclusive: true, epoch: self.epoch }),
            State::Expected { .. } | State::Waiting { .. } | State::Fencing { .. } => None,
        }
    }

    /// Number of clients known from before a restart that are not back.
    pub fn expected(&self) -> usize {
        self.clients.values().filter(|state| matches!(state, State::Expected { .. })).count()
    }

    fn enter(&mut self, client: ClientUuid, state: State) -> Grant {
        self.clients.insert(client, state);
        self.epoch += 1;
        Grant { exclusive: state == State::Exclusive, epoch: self.epoch }
    }

    fn revoke(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        self.epoch += 1;
        let deadline = now + self.release_timeout;
        self.clients.insert(client, State::Releasing { epoch: self.epoch, deadline });
        effects.push(Effect::Callback { client, grant: Grant { exclusive: false, epoch: self.epoch } });
    }

    /// Lets in who waits, as far as the others allow; raises the last one left to exclusive.
    fn settle(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let blocked = self.clients.values().any(|state| {
            matches!(
                state,
                State::Releasing { .. }
                    | State::Expected { may_be_exclusive: true, .. }
                    | State::Fencing { .. }
            )
        });
        let mut waiting: Vec<(u64, ClientUuid)> = self
            .clients
            .iter()
            .filter_map(|(client, state)| match state {
                State::Waiting { since } => Some((*since, *client)),
                _ => None,
            })
            .collect();
        if blocked {
            return;
        }
        let exclusive =
            self.clients.iter().find(|(_, state)| **state == State::Exclusive).map(|(client, _)| *client);
        if let Some(holder) = exclusive {
            if !waiting.is_empty() {
                self.revoke(now, holder, effects);
            }
            return;
        }
        waiting.sort();
        let alone = self.clients.len() == 1;
        for (_, client) in waiting {
            let grant = self.enter(client, if alone { State::Exclusive } else { State::Shared });
            effects.push(Effect::Granted { client, grant });
        }
        if let (true, Some((client, State::Shared))) =
            (alone, self.clients.iter().next().map(|(c, s)| (*c, *s)))
        {
            let grant = self.enter(client, State::Exclusive);
            effects.push(Effect::Callback { client, grant });
        }
    }
}

#[cfg(test)]
mod tests;
