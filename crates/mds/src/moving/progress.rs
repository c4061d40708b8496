//! State of moving names at an MDT: progress of shards, changes to process next, and the requests that wait
//! for them.

use super::throttle::CreateThrottle;
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

/// Names that a step moves. Estimate: other operations wait for the shard during a step: two messages for
/// each target, one sync, and about 2 us for each name.
const STEP_NAMES: usize = 256;
/// Number of directories with cached progress; at more, the whole cache is dropped.
const KNOWN_MAX: usize = 256;
/// Names above [`MovingLimits::split_count`] after which a directory that was not split is checked again.
/// Estimate: a check costs less than one of this many creates.
const LOOK_EVERY: u64 = 64;

/// Limits for automatic and requested changes of directories. The numbers are Lustre's, which are disabled by
/// default there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MovingLimits {
    /// Users may change the number of shards (`mdt.*.enable_dir_restripe`).
    pub may_restripe: bool,
    /// Growing directories are split automatically (`mdt.*.enable_dir_auto_split`).
    pub splits: bool,
    /// Names in one shard from which a directory is split (`mdt.*.dir_split_count`).
    pub split_count: u64,
    /// Shards added by a split (`mdt.*.dir_split_delta`).
    pub split_delta: u64,
}

impl Default for MovingLimits {
    fn default() -> MovingLimits {
        MovingLimits { may_restripe: true, splits: true, split_count: 50_000, split_delta: 4 }
    }
}

/// Progress of the old shards of one directory, by place in the list of a version.
#[derive(Default)]
struct Known {
    version: u32,
    upto: HashMap<u32, u64>,
}

/// Result of one pass over all changes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Pace {
    /// No change is under way.
    Idle,
    /// Other MDTs have to act first.
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
    /// True if there are changes to process.
    due: bool,
    /// True if the thread is to end.
    ended: bool,
}

impl Bell {
    fn ring(&self) {
        self.state.lock().due = true;
        self.changed.notify_all();
    }

    /// Waits until there are changes to process, or for `limit`; returns false at the end of the thread.
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

    /// Rests for `time`; returns false at the end of the thread.
    pub fn rest(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.ended && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        !state.ended
    }
}

/// State of moving names at an MDT.
#[derive(Default)]
pub struct Moving {
    known: Mutex<HashMap<Fid, Known>>,
    /// Directories to split.
    grown: Mutex<BTreeSet<Fid>>,
    /// Names in one shard from which a directory is split; `u64::MAX` disables splits.
    split_count: AtomicU64,
    limits: Mutex<MovingLimits>,
    /// Names that a step moves.
    step_names: AtomicUsize,
    bell: Arc<Bell>,
    turns: CreateThrottle,
}

impl Moving {
    pub(crate) fn new() -> Moving {
        let moving = Moving { step_names: AtomicUsize::new(STEP_NAMES), ..Moving::default() };
        moving.change_limits(|limits| *limits = MovingLimits::default());
        moving
    }

    /// Sets the number of names that a step moves.
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

    /// Returns the limits for changes of directories.
    pub fn limits(&self) -> MovingLimits {
        *self.limits.lock()
    }

    /// Returns the number of names that a step moves.
    pub(super) fn step_names(&self) -> usize {
        self.step_names.load(Ordering::Relaxed)
    }

    /// Returns the bell at which the thread waits.
    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Takes the directories to split; each is returned once.
    pub(super) fn take_grown(&self) -> BTreeSet<Fid> {
        std::mem::take(&mut *self.grown.lock())
    }

    /// Records that a step has moved names of a shard up to a position, and has passed this many.
    pub(super) fn note_step(&self, shard: Fid, upto: u64, passed: usize) {
        match upto {
            MOVED_ALL => self.turns.on_end(shard),
            _ => self.turns.on_step(shard, passed),
        }
    }

    /// Returns true if the old shard at a place of the list of a version is known to have moved its names up
    /// to and including a position.
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

    /// Records the size of a changed directory or shard.
    pub fn note_size(&self, record: &InodeRecord) {
        let count = self.split_count.load(Ordering::Relaxed);
        let names = record.entries();
        if names >= count && (names - count).is_multiple_of(LOOK_EVERY) {
            self.note_grown(named_in(record));
        }
    }

    /// Queues a directory for a split.
    pub fn note_grown(&self, fid: Fid) {
        self.grown.lock().insert(fid);
        self.bell.ring();
    }

    /// Wakes the thread: names have to move, or a change is to be ended.
    pub fn note_change(&self) {
        self.bell.ring();
    }

    /// Called before a name is created in a directory or shard, with nothing locked: waits if names are
    /// created faster than they move out of it.
    pub fn await_permit(&self, parent: &Fid) {
        self.turns.wait(parent);
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.bell.state.lock().ended = true;
        self.bell.changed.notify_all();
    }
}
