//! Threads that are joined before their owner is dropped.

use nacre_env::sync::Mutex;
use nacre_env::thread::{Builder, JoinHandle, current};
use std::io;

/// Number of additional handles at which ended threads are joined.
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

    /// Waits for all threads, including those started meanwhile; the calling thread itself is not joined.
    pub(crate) fn join_all(&self) {
        loop {
            // Taken out one by one, so that ending threads may still start others.
            let Some(handle) = self.handles.lock().pop() else { return };
            if handle.thread().id() != current().id() {
                // The thread itself has reported its panic.
                let _ = handle.join();
            }
        }
    }
}
