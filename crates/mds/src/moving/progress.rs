//! What an MDT knows of names that move: how far they are, what is to be looked at next, and the requests that wait for it.

use super::turns::Turns;
use crate::shards::named_in;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_layout::dir_layout::MOVED_ALL;
use nacre_ondisk::InodeRecord;
use nacre_types::Fid;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Names that a step moves. Guess: others wait for the shard for as long as a step takes: two messages for each target, one sync, and
/// about 2 us for each name.
const STEP_NAMES: usize = 256;
/// Directories of which it is kept how far names have moved; then all is forgotten.
const KNOWN_MAX: usize = 256;
/// Names above [`MovingLimits::split_count`] after which a directory that was not split is looked at again. Guess: a look costs less than
/// one of so many creates.
const LOOK_EVERY: u64 = 64;

/// When directories change by themselves, and whether they may be changed. The numbers are Lustre's (reference 4.17), which does nothing
/// unless it is told to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovingLimits {
    /// Directories may get more or fewer shards (`mdt.*.enable_dir_restripe`).
    pub may_restripe: bool,
    /// Those that grow get more by themselves (`mdt.*.enable_dir_auto_split`).
    pub splits: bool,
    /// Names in one shard from which on (`mdt.*.dir_split_count`).
    pub split_count: u64,
    /// Shards more each time (`mdt.*.dir_split_delta`).
    pub split_delta: u64,
}

impl Default for MovingLimits {
    fn default() -> MovingLimits {
        MovingLimits { may_restripe: true, splits: true, split_count: 50_000, split_delta: 4 }
    }
}

/// How far old shards of one directory have moved their names, by place in the list with a version.
#[derive(Default)]
struct Known {
    version: u32,
    upto: HashMap<u32, u64>,
}

/// How a look at all changes has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Pace {
    /// Nothing changes.
    Idle,
    /// Others have something to do first.
    Waiting,
    /// There is more to do at once.
    Busy,
}

/// Where the thread that moves names waits.
#[derive(Default)]
pub(super) struct Bell {
    state: Mutex<Rung>,
    changed: Condvar,
}

#[derive(Default)]
struct Rung {
    /// There is something to look at.
    due: bool,
    /// The thread is to end.
    ended: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().due = true;
        self.changed.notify_all();
    }

    /// Waits until there is something to look at, or for `limit`; false if it is time to end.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state.lock();
        while !state.due && !state.ended {
            match deadline {
                None => self.changed.wait(&mut state),
                Some(deadline) if self.changed.wait_until(&mut state, deadline).timed_out() => break,
                Some(_) => {}
            }
        }
        state.due = false;
        !state.ended
    }

    /// Rests for `time`; false if it is time to end.
    pub fn rest(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.ended && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        !state.ended
    }
}

/// What an MDT knows of names that move.
#[derive(Default)]
pub struct Moving {
    known: Mutex<HashMap<Fid, Known>>,
    /// Directories that should get more shards.
    grown: Mutex<BTreeSet<Fid>>,
    /// Names in one shard from which on it is split; `u64::MAX` if it never is.
    split_count: AtomicU64,
    limits: Mutex<MovingLimits>,
    /// Names that a step moves.
    step_names: AtomicUsize,
    bell: Arc<Bell>,
    turns: Turns,
}

impl Moving {
    pub(crate) fn new() -> Moving {
        let moving = Moving { step_names: AtomicUsize::new(STEP_NAMES), ..Moving::default() };
        moving.change_limits(|limits| *limits = MovingLimits::default());
        moving
    }

    /// Moves so many names in a step.
    #[cfg(test)]
    pub fn step_by(&self, names: usize) {
        self.step_names.store(names, Ordering::Relaxed);
    }

    pub fn change_limits(&self, change: impl FnOnce(&mut MovingLimits)) {
        let mut limits = self.limits.lock();
        change(&mut limits);
        let count = if limits.splits { limits.split_count } else { u64::MAX };
        self.split_count.store(count, Ordering::Relaxed);
    }

    /// When directories change by themselves, and whether they may be changed.
    pub fn limits(&self) -> MovingLimits {
        *self.limits.lock()
    }

    /// Names that a step moves.
    pub(super) fn step_names(&self) -> usize {
        self.step_names.load(Ordering::Relaxed)
    }

    /// Where the thread that moves names waits.
    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Directories that should get more shards, which is said once.
    pub(super) fn take_grown(&self) -> BTreeSet<Fid> {
        std::mem::take(&mut *self.grown.lock())
    }

    /// A step has moved names of a shard up to a position, and has passed so many.
    pub(super) fn note_step(&self, shard: Fid, upto: u64, passed: usize) {
        match upto {
            MOVED_ALL => self.turns.on_end(shard),
            _ => self.turns.on_step(shard, passed),
        }
    }

    /// True if the old shard in a place of the list of a version is known to have moved its names up to behind a position.
    pub fn has_moved(&self, master: &Fid, version: u32, place: u32, position: u64) -> bool {
        let known = self.known.lock();
        let known = known.get(master).filter(|known| known.version == version);
        known.and_then(|known| known.upto.get(&place)).is_some_and(|upto| position < *upto)
    }

    pub fn note_moved(&self, master: Fid, version: u32, place: u32, upto: u64) {
        let mut all = self.known.lock();
        if all.len() >= KNOWN_MAX && !all.contains_key(&master) {
            all.clear();
        }
        let known = all.entry(master).or_default();
        if known.version != version {
            *known = Known { version, ..Known::default() };
        }
        let known = known.upto.entry(place).or_default();
        *known = upto.max(*known);
    }

    /// A directory or shard was changed.
    pub fn note_size(&self, record: &InodeRecord) {
        let count = self.split_count.load(Ordering::Relaxed);
        let names = record.entries();
        if names >= count && (names - count).is_multiple_of(LOOK_EVERY) {
            self.note_grown(named_in(record));
        }
    }

    /// A directory should get more shards.
    pub fn note_grown(&self, fid: Fid) {
        self.grown.lock().insert(fid);
        self.bell.ring();
    }

    /// Names have to move, or a change is to be ended.
    pub fn note_change(&self) {
        self.bell.ring();
    }

    /// Before a name is made in a directory or shard, with nothing locked: waits if names come to it faster than they move out of it.
    pub fn await_turn(&self, parent: &Fid) {
        self.turns.wait(parent);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.bell.state.lock().ended = true;
        self.bell.changed.notify_all();
    }
}
