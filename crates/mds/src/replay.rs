//! Replay of changes that this MDT acknowledged and lost with its host: the order, and what differs while a change is
//! executed again. [`serve`] executes them.
//!
//! Clients keep acknowledged changes until these are durable, and send the lost ones after a restart. All lost changes
//! are executed in the order of their transnos, whichever client sends them, and between them the parts of distributed
//! transactions that other MDTs return. So each change finds what it found the first time.

mod layout;
mod scope;
mod serve;

pub(crate) use scope::{Scope, check_reply, is_running, mark, time};
pub(crate) use serve::Replayer;

use nacre_dlm::{Heads, Ticket};
use nacre_env::sync::{Condvar, Mutex};
use nacre_ondisk::{RUNS_MAX, RunsRecord};
use nacre_types::{ClientUuid, TransNo};
use nacre_wire::connect::{RUN_GAP, is_in_gap};
use nacre_wire::peer::Transaction;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which a waiting replay checks for interrupts and for clients that were given up.
const TICK: Duration = Duration::from_millis(100);

/// Boot id of a record while clients may still replay what the run lacks.
pub(crate) const LACKING: [u8; 16] = [0; 16];

/// Runs of an MDT, from the store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs {
    /// Newest transactions found at the starts after which some may be lost, in ascending order.
    pub losses: Vec<TransNo>,
    /// True if this run may lack acknowledged transactions: the host was booted since the last run, or the last run
    /// ended before clients had replayed what it lacked.
    pub may_lack: bool,
}

impl Runs {
    /// Adds the start of a run on a host with this boot id, which found `newest`, to the record of earlier runs. Returns
    /// the first transno of the run.
    pub fn begin(
        record: &mut RunsRecord,
        was_clean: bool,
        newest: TransNo,
        boot_id: [u8; 16],
    ) -> (Runs, TransNo) {
        let may_lack = record.boot_id == LACKING || (!was_clean && record.boot_id != boot_id);
        record.boot_id = if may_lack { LACKING } else { boot_id };
        if !was_clean {
            let surplus = (record.newest.len() + 1).saturating_sub(RUNS_MAX);
            record.newest.drain(..surplus);
            record.newest.push(newest.0);
        }
        let first = if was_clean { newest.0 + 1 } else { newest.0 + RUN_GAP + 1 };
        let losses = record.newest.iter().map(|newest| TransNo(*newest)).collect();
        (Runs { losses, may_lack }, TransNo(first))
    }
}

/// What a client that has the next change to replay is to do.
pub(crate) enum Turn {
    /// Execute it.
    Own,
    /// Apply this part of a distributed transaction first.
    Restored(Returned),
    /// Wait for earlier changes.
    Wait,
    /// Nothing: the client has connected again, and sent its changes once more.
    Replaced,
}

/// A part of a distributed transaction that another MDT has returned.
pub(crate) struct Returned {
    place: Place,
    pub transaction: Box<Transaction>,
}

impl Returned {
    /// Returns the transno that the part had here, or that of the part before it if it is not known.
    pub fn transno(&self) -> TransNo {
        self.place.transno
    }
}

/// Place of a returned part of a transaction: right before the change with the same transno.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    transno: TransNo,
    /// Order among the parts with this transno.
    number: u64,
}

#[derive(Default)]
struct State {
    /// Clients of the last run that have not reported the end of their replay.
    entitled: BTreeSet<ClientUuid>,
    /// The next change of each client that has sent some.
    heads: Heads,
    /// Parts of distributed transactions that other MDTs have returned, by their places.
    restored: BTreeMap<Place, Box<Transaction>>,
    /// Transnos of those that have been applied, as far as they are known.
    applied: BTreeSet<TransNo>,
    /// Number of returned parts.
    returned: u64,
    /// True while a change is executed.
    is_busy: bool,
}

/// Order of replayed changes.
pub(crate) struct Replays {
    runs: Runs,
    state: Mutex<State>,
    /// False while changes may be replayed, so that requests need no lock.
    are_over: AtomicBool,
    /// True while the store says that this run lacks changes.
    is_lack_recorded: AtomicBool,
    changed: Condvar,
    replayed: AtomicU64,
    refused: AtomicU64,
}

impl Replays {
    /// Builds the order of a run, in which these clients of the last one may replay changes.
    pub fn new(runs: Runs, clients: impl Iterator<Item = ClientUuid>) -> Replays {
        Replays {
            are_over: AtomicBool::new(!runs.may_lack),
            is_lack_recorded: AtomicBool::new(runs.may_lack),
            runs,
            state: Mutex::new(State { entitled: clients.collect(), ..State::default() }),
            changed: Condvar::new(),
            replayed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Returns the newest transactions found at starts after which some may be lost.
    pub fn losses(&self) -> &[TransNo] {
        &self.runs.losses
    }

    /// Returns true if a client may replay changes: others would evade quotas with old transnos.
    pub fn is_entitled(&self, client: &ClientUuid) -> bool {
        self.state.lock().entitled.contains(client)
    }

    /// Records that a client has replayed everything, or is gone.
    pub fn end_replay_of(&self, client: &ClientUuid) {
        self.state.lock().entitled.remove(client);
    }

    /// Returns true if this run began without changes that the last one had answered.
    pub fn may_lack(&self) -> bool {
        self.runs.may_lack
    }

    /// Returns true once: the caller records that this run lacks nothing any more, as the next one would wait for
    /// clients otherwise.
    pub fn take_lack(&self) -> bool {
        self.is_lack_recorded.swap(false, Ordering::AcqRel)
    }

    /// Returns true if this run began with a gap in which a transaction of this number is lost.
    pub fn is_lost(&self, transno: TransNo) -> bool {
        is_in_gap(self.losses(), transno)
    }

    /// Returns true while changes are replayed, or clients of the last run may still send some (`is_recovering`).
    pub fn are_pending(&self, is_recovering: bool) -> bool {
        if is_recovering && self.runs.may_lack {
            return true;
        }
        let state = self.state.lock();
        let are_pending = state.is_busy || state.heads.first().is_some() || !state.restored.is_empty();
        if !is_recovering && !are_pending {
            self.are_over.store(true, Ordering::Release);
        }
        are_pending
    }

    /// Returns true if no changes are replayed, and no client of the last run may send any.
    pub fn are_over(&self) -> bool {
        self.are_over.load(Ordering::Acquire)
    }

    /// Adds a part of a distributed transaction that another MDT has returned, whose transno here was `transno`, 0 if
    /// unknown. Called in the order of stamps, and conflicting transactions have the same order in both. Gives the
    /// transaction back if it is to be applied at once.
    pub fn restore(&self, transno: TransNo, transaction: Transaction) -> Option<Transaction> {
        let mut state = self.state.lock();
        let last = state.restored.keys().next_back().map(|place| place.transno);
        let transno = match last {
            _ if self.is_lost(transno) => transno,
            // Not before the ones with earlier stamps.
            Some(last) if transno == TransNo(0) => last,
            _ => return Some(transaction),
        };
        state.returned += 1;
        let place = Place { transno, number: state.returned };
        state.restored.insert(place, Box::new(transaction));
        self.are_over.store(false, Ordering::Release);
        self.wake_all(&state);
        None
    }

    /// Returns true if returned parts are not applied yet, or one is being applied.
    pub fn has_restored(&self) -> bool {
        let state = self.state.lock();
        state.is_busy || !state.restored.is_empty()
    }

    /// Wakes waiting replays: a client is not awaited any more.
    pub fn wake(&self) {
        self.wake_all(&self.state.lock());
    }

    fn wake_all(&self, state: &State) {
        state.heads.wake_first();
        self.changed.notify_all();
    }

    /// Enters a request of a client whose first change is this one, until [`Replays::leave`].
    pub fn enter(&self, client: ClientUuid, transno: TransNo) -> Ticket {
        let mut state = self.state.lock();
        self.are_over.store(false, Ordering::Release);
        state.heads.enter(client, transno)
    }

    /// Decides what to do before the change `transno` of a request is executed; `awaited` are the clients of the last
    /// run that may replay changes. [`Turn::Wait`] follows after a wait of `tick` at most, and is to be repeated. After
    /// [`Turn::Own`] the caller calls [`Replays::end`], after [`Turn::Restored`] [`Replays::end_restored`].
    pub fn next(&self, ticket: &Ticket, transno: TransNo, awaited: &[ClientUuid], tick: Duration) -> Turn {
        let mut state = self.state.lock();
        if !state.heads.advance(ticket, transno) {
            return Turn::Replaced;
        }
        if !state.is_busy && state.heads.is_complete(awaited) {
            if let Some(part) = take_restored(&mut state) {
                return Turn::Restored(part);
            }
            if state.heads.is_first(ticket, awaited) {
                state.is_busy = true;
                return Turn::Own;
            }
        }
        ticket.woken.wait_for(&mut state, tick);
        Turn::Wait
    }

    /// Returns a part to apply that precedes all changes of clients, if no client is `awaited` that has sent none.
    pub fn next_restored(&self, awaited: &[ClientUuid]) -> Option<Returned> {
        let mut state = self.state.lock();
        if state.is_busy || !state.heads.is_complete(awaited) {
            return None;
        }
        take_restored(&mut state)
    }

    /// Ends the application of a returned part. A part that `failed` is applied again later, before everything after it.
    pub fn end_restored(&self, part: Returned, failed: bool) {
        let mut state = self.state.lock();
        state.is_busy = false;
        if failed {
            state.restored.insert(part.place, part.transaction);
        }
        self.wake_all(&state);
    }

    /// Ends the execution of a change. Its request keeps its place until its next change, or until it leaves.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.is_busy = false;
        state.heads.wake_first();
    }

    /// Removes a request whose changes have ended.
    pub fn leave(&self, ticket: &Ticket) {
        let mut state = self.state.lock();
        state.heads.leave(ticket);
        self.changed.notify_all();
    }

    /// Records that the part with this transno has been applied.
    pub fn note_applied(&self, transno: TransNo) {
        self.state.lock().applied.insert(transno);
    }

    /// Returns true if the part of a distributed transaction with this transno has been applied in this run.
    pub fn has_applied(&self, transno: TransNo) -> bool {
        self.state.lock().applied.contains(&transno)
    }

    /// Waits a moment for a change of the order.
    pub fn wait(&self) {
        let mut state = self.state.lock();
        self.changed.wait_for(&mut state, TICK);
    }

    /// Counts a replayed change.
    pub fn count(&self, is_refused: bool) {
        let counter = if is_refused { &self.refused } else { &self.replayed };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the numbers of changes that were replayed, and that were refused because of conflicts.
    pub fn counts(&self) -> (u64, u64) {
        (self.replayed.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Takes the first returned part if it precedes all changes of clients.
fn take_restored(state: &mut State) -> Option<Returned> {
    let (place, _) = state.restored.first_key_value()?;
    if state.heads.first().is_some_and(|head| head < place.transno) {
        return None;
    }
    let (place, transaction) = state.restored.pop_first()?;
    state.is_busy = true;
    Some(Returned { place, transaction })
}

#[cfg(test)]
mod tests;
