//! The end of a server, as its threads and its requests learn of it.

use nacre_env::sync::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct StopSignal {
    /// The server refuses requests.
    stopping: AtomicBool,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    /// Has requests refused from now on; false if that is so already.
    pub fn refuse(&self) -> bool {
        !self.stopping.swap(true, Ordering::SeqCst)
    }

    /// True if requests are refused.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Ends the background threads.
    pub fn raise(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`; true if it is time to stop.
    pub fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }
}
