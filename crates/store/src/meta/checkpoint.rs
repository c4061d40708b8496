//! Freezing the overlay, and moving the frozen changes to the base in the background.
//!
//! ```text
//! commits -> active overlay + active segment -freeze-> frozen overlay + pending segment -checkpoint-> base
//! ```
//! At most one freeze is outstanding. Meanwhile commits continue in the active pair until the segment is
//! full, then wait.

use nacre_env::clock::Instant;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nacre_env::sync::{Condvar, Mutex, MutexGuard};

use super::engine::Engine;
use super::error::{MetaError, Result};
use super::map::Change;
use super::overlay::ShardSet;

/// Time between two attempts to write a checkpoint that a full disk refused.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Entries per transaction when a full disk refuses one transaction for all: few enough that the copies of
/// their pages fit into the space that the previous piece freed.
const PIECE_ENTRIES: usize = 512;

/// State shared between commits and the checkpoint thread.
#[derive(Default)]
pub(crate) struct Checkpointer {
    state: Mutex<State>,
    /// Wakes the checkpoint thread for work.
    wake: Condvar,
    /// Wakes waiters at the end of an attempt.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Frozen changes are not in the base yet.
    is_pending: bool,
    /// Newest frozen transaction.
    frozen_transno: u64,
    /// The last attempt found the disk full.
    is_refused: bool,
    /// A refused attempt is repeated at once.
    retries_now: bool,
    attempts: u64,
    successes: u64,
    failures: u64,
    stops: bool,
}

impl Checkpointer {
    /// Numbers of successful and failed attempts.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.successes, state.failures)
    }
}

/// Time after which a shorter interval of the periodic sync takes effect.
const INTERVAL_TICK: Duration = Duration::from_secs(1);

impl Engine {
    /// Starts with changes that a recovery left frozen.
    pub(crate) fn set_pending(&self, transno: u64) {
        let mut state = self.checkpointer.state.lock();
        state.is_pending = true;
        state.frozen_transno = transno;
    }

    /// Freezes unless a freeze is outstanding or another thread is deciding about one.
    pub(crate) fn try_freeze(&self) {
        if let Some(mut state) = self.checkpointer.state.try_lock()
            && !state.is_pending
            && let Err(error) = self.freeze(&mut state)
        {
            // The commit that led here succeeded; the next one that needs the space reports the error.
            log::debug!("cannot begin a new log segment: {error}");
        }
    }

    fn freeze(&self, state: &mut State) -> Result<()> {
        assert!(!state.is_pending, "one freeze at a time");
        let mut locked = self.overlay.lock(ShardSet::ALL);
        if self.log.is_active_empty() {
            return Ok(());
        }
        self.log.activate()?;
        locked.freeze();
        state.frozen_transno = self.log.base_transno();
        state.is_pending = true;
        self.checkpointer.wake.notify_one();
        Ok(())
    }

    /// Called when a batch did not fit: freezes, waits for the checkpoint, or reports that the disk is full.
    pub(crate) fn make_room(&self) -> Result<()> {
        let mut state = self.checkpointer.state.lock();
        if !state.is_pending {
            // Does nothing if another thread has just done it; the batch fits into any empty segment.
            return self.freeze(&mut state);
        }
        if state.is_refused {
            return Err(MetaError::NoSpace);
        }
        self.stalls.fetch_add(1, Ordering::Relaxed);
        nacre_env::blocking(|| {
            while state.is_pending && !state.is_refused && !state.stops && !self.log.latch().is_set() {
                self.checkpointer.ended.wait(&mut state);
            }
        });
        Ok(())
    }

    /// Moves everything committed before the call to the base.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        self.log.latch().check()?;
        let mut state = self.checkpointer.state.lock();
        self.wait_for_pending(&mut state)?;
        self.freeze(&mut state)?;
        self.wait_for_pending(&mut state)?;
        drop(state);
        if self.reserve.is_full() {
            self.reserve.update(self.base.sizes()?.free_bytes);
        }
        Ok(())
    }

    fn wait_for_pending(&self, state: &mut MutexGuard<'_, State>) -> Result<()> {
        let before = state.attempts;
        state.retries_now |= state.is_refused;
        self.checkpointer.wake.notify_one();
        while state.is_pending && !(state.is_refused && state.attempts > before) {
            self.log.latch().check()?;
            if state.stops {
                return Err(MetaError::Closed);
            }
            self.checkpointer.ended.wait(state);
        }
        if state.is_pending { Err(MetaError::NoSpace) } else { Ok(()) }
    }

    /// Asks the checkpoint thread to end.
    pub(crate) fn stop_checkpoints(&self) {
        self.checkpointer.state.lock().stops = true;
        self.checkpointer.wake.notify_one();
    }

    /// Body of the checkpoint thread.
    pub(crate) fn run_checkpoints(&self) {
        let mut state = self.checkpointer.state.lock();
        loop {
            let mut retry_at = Instant::now() + RETRY_INTERVAL;
            while !(state.stops || state.is_pending && (!state.is_refused || state.retries_now)) {
                if !state.is_refused {
                    self.checkpointer.wake.wait(&mut state);
                    retry_at = Instant::now() + RETRY_INTERVAL;
                } else if self.checkpointer.wake.wait_until(&mut state, retry_at).timed_out() {
                    state.retries_now = true;
                }
            }
            if state.stops || self.log.latch().is_set() {
                self.checkpointer.ended.notify_all();
                return;
            }
            state.retries_now = false;
            self.attempt(&mut state);
            self.checkpointer.ended.notify_all();
            if !state.is_pending {
                nacre_env::sync::unlocked(&mut state, || self.grow_log());
            }
        }
    }

    /// Makes one attempt; the opening thread also makes one after a replay.
    pub(crate) fn attempt_pending(&self) {
        nacre_env::fault::delay(nacre_env::fault::Point::StoreCheckpoint);
        let mut state = self.checkpointer.state.lock();
        self.attempt(&mut state);
    }

    fn attempt(&self, state: &mut MutexGuard<'_, State>) {
        let transno = state.frozen_transno;
        let result = nacre_env::sync::unlocked(state, || self.move_frozen(transno)).and_then(|()| {
            // After a replay both segments were waiting for this attempt.
            if self.log.has_active() { Ok(()) } else { self.log.activate() }
        });
        state.attempts += 1;
        match result {
            Ok(()) => {
                state.successes += 1;
                state.is_pending = false;
                state.is_refused = false;
            }
            Err(MetaError::NoSpace) => {
                state.failures += 1;
                state.is_refused = true;
            }
            Err(error) => {
                state.failures += 1;
                self.log.latch().set(&error);
            }
        }
    }

    /// Writes the frozen maps to the base and drops them.
    fn move_frozen(&self, transno: u64) -> Result<()> {
        let maps = self.overlay.frozen();
        let mut entries: Vec<Change<'_>> = Vec::with_capacity(maps.iter().map(|map| map.len()).sum());
        maps.iter().for_each(|map| entries.extend(map.iter()));
        // Neighbours in the tree are written together, whatever shards they came from. The sort is stable
        // because a stable sort recognises that each shard's entries are in order already. Heads are stored
        // inline here; the bytes after them are scattered over memory.
        entries.sort_by_key(|(key, _)| *key);
        let target = Some((&self.uuid, transno));
        match self.base.write(&mut entries.iter().copied(), target) {
            Err(MetaError::NoSpace) => self.move_in_pieces(&entries, transno)?,
            result => result?,
        }
        // Readers of the old state must end before the overlay stops hiding it.
        self.base.retire_readers();
        self.log.release_pending(transno);
        self.overlay.clear_frozen();
        self.reserve.update(self.base.sizes()?.free_bytes);
        Ok(())
    }

    /// Writes many small transactions, which need little new space: each reuses the pages that the previous
    /// one freed.
    fn move_in_pieces(&self, entries: &[Change<'_>], transno: u64) -> Result<()> {
        self.reserve.release();
        // The base will contain part of the log's changes for a while, which is sound only if the log cannot
        // lose them.
        self.log.sync(transno)?;
        for piece in entries.chunks(PIECE_ENTRIES) {
            self.base.retire_readers();
            self.base.write(&mut piece.iter().copied(), None)?;
        }
        self.base.write(&mut std::iter::empty(), Some((&self.uuid, transno)))
    }

    /// Extends the free segment if it was full, and the reserve with it. On a disk without space the log
    /// stays as it is.
    fn grow_log(&self) {
        let Some(growth) = self.log.growth() else { return };
        let grown = match self.reserve.grow(self.options.reserve_for(growth.part())) {
            true => self.log.grow(&growth),
            false => return,
        };
        if let Err(error) = grown {
            log::debug!("a segment of the log does not grow: {error}");
        }
    }

    /// Body of the periodic sync thread.
    pub(crate) fn run_periodic_syncs(&self, stop: &StopSignal) {
        let interval = || Duration::from_millis(self.commit_interval_ms.load(Ordering::Relaxed));
        let mut last = Instant::now();
        // In pieces, as the interval may become shorter.
        while !stop.wait(interval().saturating_sub(last.elapsed()).min(INTERVAL_TICK)) {
            if last.elapsed() < interval() {
                continue;
            }
            last = Instant::now();
            if self.log.durable_transno() < self.log.last_transno()
                && let Err(error) = self.log.sync(self.log.last_transno())
            {
                // The latch has logged the failure; commits return the error.
                log::debug!("periodic sync ends: {error}");
                return;
            }
        }
    }
}

/// Lets a thread sleep until it is asked to end.
#[derive(Clone, Default)]
pub(crate) struct StopSignal(Arc<(Mutex<bool>, Condvar)>);

impl StopSignal {
    /// Waits up to `interval`; true if the thread must end.
    fn wait(&self, interval: Duration) -> bool {
        let mut stops = self.0.0.lock();
        let until = Instant::now() + interval;
        while !*stops && !self.0.1.wait_until(&mut stops, until).timed_out() {}
        *stops
    }

    pub(crate) fn set(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}
