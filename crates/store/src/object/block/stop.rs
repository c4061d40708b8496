//! Stopping the threads of a store.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use std::time::Duration;

/// A flag that stops threads, set once.
#[derive(Default)]
pub(super) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits for `time`, or until the flag is set: then true.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        let end = Instant::now() + time;
        while !*is_set {
            if self.changed.wait_until(&mut is_set, end).timed_out() {
                break;
            }
        }
        *is_set
    }

    pub(super) fn set(&self) {
        *self.is_set.lock() = true;
        self.changed.notify_all();
    }
}
