//! Read-ahead into the page cache, on a thread of its own.
//!
//! Requesting pages from the kernel is work: it allocates memory for them and sends the disk its commands, at
//! up to 400 us of CPU time per MiB on a virtual machine. The reader's thread copies data meanwhile, so that
//! both CPUs of a small host are used.

use super::handle::Handle;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Maximum waiting ranges; beyond that the reader fetches itself, which slows it down to the speed of the
/// disk.
const QUEUE_MAX: usize = 64;

/// A range of an object. Weak, because the last holder of a destroyed object frees its space.
struct PrefetchRequest {
    handle: Weak<Handle>,
    range: Range<u64>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<PrefetchRequest>,
    is_stopping: bool,
}

/// See the [module documentation](self).
#[derive(Default)]
pub(super) struct Fetcher {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Fetcher {
    /// Starts the thread.
    pub(super) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let fetcher = self.clone();
        nacre_env::thread::Builder::new().name("ost-fetch".into()).spawn(move || fetcher.run())
    }

    /// Queues a range to be fetched into the page cache. Advice only.
    pub(super) fn fetch(&self, handle: &Arc<Handle>, range: Range<u64>) {
        let mut queue = self.queue.lock();
        if queue.requests.len() >= QUEUE_MAX || queue.is_stopping {
            drop(queue);
            return handle.file.start_fetch(range.start, range.end);
        }
        queue.requests.push_back(PrefetchRequest { handle: Arc::downgrade(handle), range });
        drop(queue);
        self.changed.notify_one();
    }

    /// Stops the thread; ranges that still wait are not fetched.
    pub(super) fn stop(&self) {
        self.queue.lock().is_stopping = true;
        self.changed.notify_all();
    }

    fn next(&self) -> Option<PrefetchRequest> {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_stopping {
                return None;
            }
            if let Some(requested) = queue.requests.pop_front() {
                return Some(requested);
            }
            self.changed.wait(&mut queue);
        }
    }

    fn run(&self) {
        while let Some(requested) = self.next() {
            if let Some(handle) = requested.handle.upgrade() {
                handle.file.start_fetch(requested.range.start, requested.range.end);
            }
        }
    }
}
