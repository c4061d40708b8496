//! The thread that drives time-outs in the engines. It sleeps while there are no locks.

use crate::locks::Locks;
use nacre_env::sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Resolution of the engines' timers: resends and ages of locks are in seconds.
const TICK: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    started: bool,
    stopped: bool,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Clock {
    /// True while there are locks, so that the thread runs every [`TICK`].
    awake: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    locks: OnceLock<Weak<Locks>>,
}

impl Clock {
    /// Sets the locks whose engines get the ticks.
    pub fn attach(&self, locks: &Arc<Locks>) {
        let _ = self.locks.set(Arc::downgrade(locks));
    }

    /// Starts the ticks, as there is a lock.
    pub fn wake(&self) {
        if self.awake.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut state = self.state.lock();
        if !state.started && !state.stopped {
            let weak = self.locks.get().cloned().unwrap_or_default();
            match nacre_env::thread::Builder::new().name("lock-clock".into()).spawn(move || run(&weak)) {
                Ok(_) => state.started = true,
                Err(error) => log::warn!("no thread for the clock of locks: {error}"),
            }
        }
        self.changed.notify_all();
    }

    /// Stops the thread.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next tick; false if the clock is stopped.
    fn rest(&self) -> bool {
        let mut state = self.state.lock();
        if self.awake.load(Ordering::Acquire) && !state.stopped {
            self.changed.wait_for(&mut state, TICK);
        }
        while !state.stopped && !self.awake.load(Ordering::Acquire) {
            self.changed.wait(&mut state);
        }
        !state.stopped
    }
}

fn run(weak: &Weak<Locks>) {
    while let Some(locks) = weak.upgrade() {
        if !locks.clock.rest() {
            return;
        }
        locks.clock.awake.store(false, Ordering::Release);
        for space in locks.spaces() {
            space.on_tick(&locks);
            if space.lock_count() > 0 {
                locks.clock.awake.store(true, Ordering::Release);
            }
        }
        for space in locks.layout_spaces() {
            space.on_tick();
            if space.lock_count() > 0 {
                locks.clock.awake.store(true, Ordering::Release);
            }
        }
        for space in locks.inode_spaces() {
            space.on_tick();
            if space.lock_count() > 0 {
                locks.clock.awake.store(true, Ordering::Release);
            }
        }
    }
}
