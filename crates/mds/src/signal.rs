//! The stop of a server, for its threads and requests.

use nacre_env::sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct StopSignal {
    /// True if the server refuses requests.
    stopping: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Makes the server refuse requests; returns false if it does so already.
    pub fn refuse(&self) -> bool {
        !self.stopping.swap(true, Ordering::SeqCst)
    }

    /// Returns true if requests are refused.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Ends the background threads.
    pub fn raise(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`; returns true after the stop.
    pub fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }
}
