//! Recovery after a restart: clients replay the locks that they held before other locks are granted.

use crate::service::{LockService, State};
use nacre_env::clock::Instant;
use nacre_lock::server::Effect;
use nacre_types::{ClientUuid, ProcessIdentity};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

/// Clients of the last run that may hold locks, with their processes if those ran on this host.
pub type Expected = HashMap<ClientUuid, Option<ProcessIdentity>>;

/// Interval between checks for clients whose processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Progress or result of the recovery after the last start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryReport {
    /// Time from which clients could connect.
    pub began: SystemTime,
    /// Duration of the recovery; `None` while it lasts.
    pub took: Option<Duration>,
    /// Time until unrecovered clients are given up; zero after the end.
    pub remaining: Duration,
    /// Number of clients of the last run.
    pub expected: usize,
    /// Number of them that are connected and replay.
    pub replaying: usize,
    /// Number of them that replayed all their locks, or disconnected.
    pub completed: usize,
    /// Number of them that were given up.
    pub given_up: usize,
}

/// State of a recovery that stays after its end.
pub(crate) struct Tally {
    began: SystemTime,
    began_at: Instant,
    took: Option<Duration>,
    expected: usize,
    given_up: usize,
}

impl Tally {
    pub(crate) fn new(expected: usize) -> Tally {
        Tally { began: nacre_env::clock::wall(), began_at: Instant::now(), took: None, expected, given_up: 0 }
    }
}

/// The recovery window.
pub(crate) struct Recovery {
    awaited: Expected,
    until: Instant,
    /// Last time at which a client has replayed a change.
    progress: Option<Instant>,
    next_look: Instant,
}

impl Recovery {
    /// Starts a recovery; `None` if no client is expected.
    pub(crate) fn begin(expected: Expected, until: Instant) -> Option<Recovery> {
        let next_look = Instant::now();
        (!expected.is_empty()).then_some(Recovery { awaited: expected, until, progress: None, next_look })
    }

    /// Returns the time of the timer thread's next check.
    pub(crate) fn due(&self) -> Instant {
        self.until.min(self.next_look)
    }
}

impl State {
    /// Restarts the recovery window for the clients that are awaited.
    pub(crate) fn restart_window(&mut self, until: Instant) {
        if let Some(recovery) = &mut self.recovery {
            recovery.until = until;
            self.tally = Tally::new(self.tally.expected);
        }
    }

    pub(crate) fn awaited_clients(&self) -> Vec<ClientUuid> {
        self.recovery.as_ref().map_or_else(Vec::new, |recovery| recovery.awaited.keys().copied().collect())
    }

    /// True if the client had locks in the last run and has not replayed them all yet.
    pub(crate) fn is_awaited(&self, client: &ClientUuid) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| recovery.awaited.contains_key(client))
    }
}

impl LockService {
    /// True if the client had locks in the last run and has not reported yet that it has replayed them all.
    pub fn awaits(&self, client: &ClientUuid) -> bool {
        self.state().is_awaited(client)
    }

    /// Returns the clients of the last run that have not reported yet that they have replayed all their locks.
    pub fn awaited(&self) -> Vec<ClientUuid> {
        self.state().awaited_clients()
    }

    /// True during the recovery window, while clients of the last run are awaited.
    pub fn is_recovering(&self) -> bool {
        self.state().engine.is_recovering()
    }

    /// Returns the progress or result of the recovery after the last start; `None` if no client was expected.
    pub fn recovery_report(&self) -> Option<RecoveryReport> {
        let state = self.state();
        let tally = &state.tally;
        let awaited = state.recovery.as_ref().map_or(0, |recovery| recovery.awaited.len());
        let until = state.recovery.as_ref().map(|recovery| recovery.until);
        let is_replaying = |client: &&ClientUuid| state.exports.contains_key(*client);
        let replaying = state
            .recovery
            .as_ref()
            .map_or(0, |recovery| recovery.awaited.keys().filter(is_replaying).count());
        (tally.expected > 0).then(|| RecoveryReport {
            began: tally.began,
            took: tally.took,
            remaining: until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now())),
            expected: tally.expected,
            replaying,
            completed: tally.expected.saturating_sub(awaited + tally.given_up),
            given_up: tally.given_up,
        })
    }

    /// Records that a client has replayed all its locks, or has none.
    pub fn end_replay_of(&self, client: &ClientUuid) {
        self.act(|state, effects| self.no_longer_awaited(state, client, effects));
    }

    /// Stops awaiting a client that has replayed all its locks, or was removed.
    pub(crate) fn no_longer_awaited(
        &self,
        state: &mut State,
        client: &ClientUuid,
        effects: &mut Vec<Effect>,
    ) {
        let Some(recovery) = &mut state.recovery else { return };
        if recovery.awaited.remove(client).is_some() {
            // Requests of this client need not wait for its replay any more.
            self.recovery_changed.notify_all();
        }
        if recovery.awaited.is_empty() {
            log::info!("{}: all clients of the last run are back or given up", self.name());
            self.end_recovery(state, effects);
        }
    }

    /// Records that a client has replayed a change: clients that are connected, and may be waiting for their turn, are
    /// not given up before another window has passed. Holds for the companion too.
    pub fn note_progress(&self) {
        if let Some(recovery) = &mut self.state().recovery {
            recovery.progress = Some(Instant::now());
        }
        if let Some(companion) = self.companion.get().and_then(Weak::upgrade) {
            companion.note_progress();
        }
    }

    /// Sets the lock server of the data on the same target, whose clients recover here first.
    pub fn lead(&self, companion: &Arc<LockService>) {
        let _ = self.companion.set(Arc::downgrade(companion));
    }

    fn end_recovery(&self, state: &mut State, effects: &mut Vec<Effect>) {
        state.recovery = None;
        state.tally.took = Some(state.tally.began_at.elapsed());
        state.engine.end_recovery(Instant::now(), effects);
        self.recovery_changed.notify_all();
    }

    /// Gives up clients whose processes have ended; at the end of the window those that are not connected; and all,
    /// once none has replayed anything for another window. Returns those that are not connected.
    pub(crate) fn check_recovery(&self, now: Instant) -> Vec<ClientUuid> {
        let suspects: Vec<(ClientUuid, ProcessIdentity)> = match &mut self.state().recovery {
            Some(recovery) if recovery.due() <= now => {
                recovery.next_look = now + LOOK_EVERY;
                recovery.awaited.iter().filter_map(|(client, process)| Some((*client, (*process)?))).collect()
            }
            _ => return Vec::new(),
        };
        let ended = suspects.iter().filter(|(_, process)| nacre_env::has_ended(process));
        let mut given_up: Vec<ClientUuid> = ended.map(|(client, _)| *client).collect();
        self.act(|state, effects| {
            for client in &given_up {
                log::info!("{}: the process of client {client} has ended: it is abandoned", self.name());
                state.tally.given_up += usize::from(state.is_awaited(client));
                self.no_longer_awaited(state, client, effects);
            }
            if let Some(recovery) = &mut state.recovery
                && recovery.until <= now
            {
                let until =
                    recovery.progress.map(|progress| progress + self.window).filter(|until| *until > now);
                recovery.until = until.unwrap_or(now);
                let goes_on = |client: &ClientUuid| until.is_some() && state.exports.contains_key(client);
                let late: Vec<ClientUuid> =
                    recovery.awaited.keys().copied().filter(|client| !goes_on(client)).collect();
                if !late.is_empty() {
                    log::warn!("{}: {} clients of the last run did not come back", self.name(), late.len());
                }
                state.tally.given_up += late.len();
                for client in &late {
                    self.no_longer_awaited(state, client, effects);
                }
                given_up.extend(late);
            }
            given_up.retain(|client| !state.exports.contains_key(client));
        });
        given_up
    }
}
