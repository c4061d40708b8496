//! The lease of a metadata target: whether a single client may cache everything.
//!
//! A client that is alone holds the lease *exclusive*: no other client can change anything, so it may cache
//! names, negative entries and attributes without asking. When a second client connects, the server revokes
//! the first client's lease; the first client drops its cache and confirms the release. Only then is the
//! second one admitted, and both hold the lease *shared*. The callback is repeated, and a client that does not
//! answer in time is evicted; one that answers that it is busy has more time, up to [`BUSY_MAX`], and one that has
//! sent nothing for that long before is likely to be dead, and has [`SILENT_GRACE`].
//! When all but one have left, that one gets the lease exclusive again.
//!
//! ```text
//!               connect, alone                    connect, others are there
//!   (unknown) ------------------> exclusive    (unknown) --------> shared, or waiting for the release
//!                                    | another client connects                |
//!                                    v                                        |
//!                                 releasing --released--> shared  <-----------+
//!                                    | deadline
//!                                    v
//!                                 fencing --the owner has fenced the client on all servers--> (unknown)
//! ```
//!
//! After a restart, clients of the last run are *expected* until the end of the recovery window. If there is
//! only one, it may still hold the lease exclusive, so no other client is admitted before it has reconnected
//! or is given up.
//!
//! Invariant: while a client holds the lease exclusive, is releasing it, is expected to hold it, or is being
//! fenced, no other client is granted the lease.

use nacre_env::clock::Instant;
use nacre_types::ClientUuid;
use std::collections::HashMap;
use std::time::Duration;

/// Number of callbacks within the time for a release.
const CALLBACKS: u32 = 4;
/// Time to answer for a client that has been silent before for as long as it would have otherwise, also for locks.
pub const SILENT_GRACE: Duration = Duration::from_secs(1);
/// Maximum time from a revocation to the eviction of a client that reports to be busy, also for locks.
pub const BUSY_MAX: Duration = Duration::from_secs(600);

/// Right of a client to cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// True if the client is the only one.
    pub exclusive: bool,
    /// Number that grows with every grant and revocation; of two grants the one with the larger epoch is
    /// newer.
    pub epoch: u64,
}

/// Actions for the owner of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The client's connect succeeds with this grant.
    Granted {
        /// Client to answer.
        client: ClientUuid,
        /// Its grant.
        grant: Grant,
    },
    /// Notify the client that its grant has changed. If the exclusive lease was revoked, it must answer
    /// before the deadline.
    Callback {
        /// Client to notify.
        client: ClientUuid,
        /// The new grant.
        grant: Grant,
    },
    /// Drop the client and all that it holds: it did not release, or did not reconnect after a restart. No
    /// waiting client is admitted in its place before [`LeaseEngine::on_fenced`] confirms that all servers
    /// refuse its requests.
    Evict {
        /// Client to evict.
        client: ClientUuid,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Known from before a restart, not reconnected yet.
    Expected { deadline: Instant, may_be_exclusive: bool },
    /// Waits for admission because the lease is held exclusive. The number orders waiting clients.
    Waiting { since: u64 },
    /// Connected with the shared lease: may cache only under locks.
    Shared,
    /// Connected and alone.
    Exclusive,
    /// The lease was revoked, and the client has not confirmed the release.
    Releasing(Release),
    /// Given up and not known to be fenced yet; `returns` if it has connected again meanwhile, as a new
    /// client.
    Fencing { returns: bool },
}

impl State {
    /// Returns the time at which the client is evicted.
    fn deadline(&self) -> Option<Instant> {
        match self {
            State::Expected { deadline, .. } => Some(*deadline),
            State::Releasing(asked) => Some(asked.deadline()),
            _ => None,
        }
    }

    /// Returns the time of the next action for the client.
    fn due(&self) -> Option<Instant> {
        match self {
            State::Releasing(asked) => Some(asked.deadline().min(asked.retry)),
            _ => self.deadline(),
        }
    }
}

/// A revocation that is not confirmed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Release {
    epoch: u64,
    since: Instant,
    /// Deadline of a client that is not silent.
    deadline: Instant,
    /// Time of the next callback.
    retry: Instant,
    /// See [`LeaseEngine::on_silence`].
    is_silent: bool,
}

impl Release {
    fn deadline(&self) -> Instant {
        if self.is_silent { self.deadline.min(self.since + SILENT_GRACE) } else { self.deadline }
    }
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
    /// Creates an engine. `first_epoch` must be above every epoch of earlier runs of the server. The `known`
    /// clients of the last run are expected until `recovery_deadline`.
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

    /// Returns the clients that keep others from being admitted: those that hold the lease exclusive, or are
    /// releasing it, or may still hold it after a restart.
    pub fn holders(&self) -> Vec<ClientUuid> {
        let holds = |state: &State| match state {
            State::Exclusive | State::Releasing(_) | State::Fencing { .. } => true,
            State::Expected { may_be_exclusive, .. } => *may_be_exclusive,
            State::Waiting { .. } | State::Shared => false,
        };
        self.clients.iter().filter(|(_, state)| holds(state)).map(|(client, _)| *client).collect()
    }

    /// Changes the end of the recovery window, until which clients of the last run are expected.
    pub fn expect_until(&mut self, recovery_deadline: Instant) {
        for state in self.clients.values_mut() {
            if let State::Expected { deadline, .. } = state {
                *deadline = recovery_deadline;
            }
        }
    }

    /// Admits a client that connects, for the first time or again, or lets it wait.
    pub fn on_connect(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        match self.clients.get(&client).copied() {
            Some(State::Shared) | Some(State::Exclusive) | Some(State::Releasing(_)) => {
                let grant = self.grant_of(&client);
                effects.extend(grant.map(|grant| Effect::Granted { client, grant }));
            }
            Some(State::Waiting { .. }) => {}
            Some(State::Fencing { .. }) => {
                self.clients.insert(client, State::Fencing { returns: true });
            }
            Some(State::Expected { may_be_exclusive: true, .. }) => {
                // It may have cached everything, so it continues as the exclusive holder, and its lease is
                // revoked if others wait.
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

    /// Removes a client that leaves, or is dropped for other reasons.
    pub fn on_disconnect(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        if let Some(State::Fencing { returns }) = self.clients.get_mut(&client) {
            *returns = false;
        } else if self.clients.remove(&client).is_some() {
            self.settle(now, effects);
        }
    }

    /// Records that the owner evicts a client for a reason of its own: no waiting client is admitted in its
    /// place before [`LeaseEngine::on_fenced`].
    pub fn on_evicted(&mut self, client: ClientUuid) {
        if let Some(state) = self.clients.get_mut(&client) {
            *state = State::Fencing { returns: false };
        }
    }

    /// Revokes the lease of a client although no other has connected: its rights have changed, so it must
    /// drop its cache. It gets the exclusive lease again once it has released this one, if it is still alone.
    pub fn on_recall(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        if let Some(State::Exclusive) = self.clients.get(&client) {
            self.revoke(now, client, effects);
        }
    }

    /// Removes an evicted client that is fenced: all servers refuse its requests.
    pub fn on_fenced(&mut self, now: Instant, client: ClientUuid, effects: &mut Vec<Effect>) {
        let Some(State::Fencing { returns }) = self.clients.get(&client).copied() else { return };
        self.clients.remove(&client);
        if returns {
            self.arrive(now, client, effects);
        } else {
            self.settle(now, effects);
        }
    }

    /// Sets the time that clients have to release the lease; holds from the next revocation on.
    pub fn set_release_timeout(&mut self, release_timeout: Duration) {
        self.release_timeout = release_timeout;
    }

    /// Handles a client's confirmation that it has dropped its cache under leases up to `epoch`.
    pub fn on_released(&mut self, now: Instant, client: ClientUuid, epoch: u64, effects: &mut Vec<Effect>) {
        if let Some(State::Releasing(asked)) = self.clients.get(&client)
            && epoch >= asked.epoch
        {
            self.clients.insert(client, State::Shared);
            self.settle(now, effects);
        }
    }

    /// Handles a client's answer to a repeated callback: it is still dropping its cache. Extends its deadline, up to
    /// [`BUSY_MAX`] after the revocation.
    pub fn on_busy(&mut self, now: Instant, client: ClientUuid, epoch: u64) {
        if let Some(State::Releasing(asked)) = self.clients.get_mut(&client)
            && epoch >= asked.epoch
        {
            let prolonged = (now + self.release_timeout).min(asked.since + BUSY_MAX);
            asked.deadline = asked.deadline.max(prolonged);
        }
    }

    /// Records whether a client has sent nothing for as long as it has for a release. To be called after a revocation, and
    /// before each [`LeaseEngine::on_tick`]: the client may be heard again.
    pub fn on_silence(&mut self, client: &ClientUuid, is_silent: bool) {
        if let Some(State::Releasing(asked)) = self.clients.get_mut(client) {
            asked.is_silent = is_silent;
        }
    }

    /// Repeats callbacks that were not answered, and evicts clients whose deadline has passed. Each eviction needs its
    /// [`LeaseEngine::on_fenced`].
    pub fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let late = |state: &State| state.deadline().is_some_and(|deadline| deadline <= now);
        let mut evicted: Vec<ClientUuid> =
            self.clients.iter().filter(|(_, state)| late(state)).map(|(client, _)| *client).collect();
        evicted.sort();
        for client in evicted {
            self.clients.insert(client, State::Fencing { returns: false });
            effects.push(Effect::Evict { client });
        }
        let retry = now + self.release_timeout / CALLBACKS;
        for (client, state) in &mut self.clients {
            if let State::Releasing(asked) = state
                && asked.retry <= now
            {
                asked.retry = retry;
                let grant = Grant { exclusive: false, epoch: asked.epoch };
                effects.push(Effect::Callback { client: *client, grant });
            }
        }
    }

    /// Returns the time of the next deadline or callback, when [`LeaseEngine::on_tick`] has to be called.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.clients.values().filter_map(State::due).min()
    }

    /// Returns the grant of a connected client; `None` for one that is not admitted.
    pub fn grant_of(&self, client: &ClientUuid) -> Option<Grant> {
        match self.clients.get(client)? {
            State::Shared | State::Releasing(_) => Some(Grant { exclusive: false, epoch: self.epoch }),
            State::Exclusive => Some(Grant { exclusive: true, epoch: self.epoch }),
            State::Expected { .. } | State::Waiting { .. } | State::Fencing { .. } => None,
        }
    }

    /// Returns the number of clients from before a restart that have not reconnected.
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
        let (epoch, timeout) = (self.epoch, self.release_timeout);
        let (deadline, retry) = (now + timeout, now + timeout / CALLBACKS);
        let asked = Release { epoch, since: now, deadline, retry, is_silent: false };
        self.clients.insert(client, State::Releasing(asked));
        effects.push(Effect::Callback { client, grant: Grant { exclusive: false, epoch: self.epoch } });
    }

    /// Admits waiting clients as far as the others allow; raises the only client left to exclusive.
    fn settle(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        let blocked = self.clients.values().any(|state| {
            matches!(
                state,
                State::Releasing(_) | State::Expected { may_be_exclusive: true, .. } | State::Fencing { .. }
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
