//! Threads that are joined before their owner goes.

use nacre_env::sync::Mutex;
use nacre_env::thread::{Builder, JoinHandle, current};
use std::io;

/// Ended threads are joined when so many more handles than this are kept.
const REAP_AT: usize = 32;

/// A set of threads.
#[derive(Default)]
pub(crate) struct ThreadGroup {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl ThreadGroup {
    /// Starts a thread that [`ThreadGroup::join_all`] waits for.
    pub(crate) fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut handles = self.handles.lock();
        if handles.len() >= REAP_AT {
            handles.retain(|handle| !handle.is_finished());
        }
        handles.push(Builder::new().name(name).spawn(run)?);
        Ok(())
    }

    /// Waits for all threads, also those that are started meanwhile; one that calls this itself is left to end.
    pub(crate) fn join_all(&self) {
        loop {
            // Taken out one by one, so that ending threads may still start others.
            let Some(handle) = self.handles.lock().pop() else { return };
            if handle.thread().id() != current().id() {
                // A panic was reported by the thread itself.
                let _ = handle.join();
            }
        }
    }
}
