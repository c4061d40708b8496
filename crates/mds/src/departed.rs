//! What is left to do for clients that are gone.
//!
//! Giving a client up ([`crate::sessions`]) takes its locks at once. The rest may wait, on a thread for each kind of wait:
//! object servers learn of the evictions, which grants waiting locks, and handles are closed. A close needs the lock of the
//! inode, and its holder may wait for the eviction of another client; so the threads that evict only queue the work here.
//! Work that has queued up is done together.

use crate::error::MdsError;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_types::{ClientUuid, Fid, OpenHandle};
use std::sync::Arc;
use std::time::Duration;

/// How long others wait at most for OSTs to hear that a client was evicted. One that does not answer for this long can
/// hardly be written to by that client either.
pub(crate) const FENCE_PATIENCE: Duration = Duration::from_secs(5);

/// Something that waits for an inode.
pub(crate) enum Left {
    /// A handle of a client that is gone.
    Handle(ClientUuid, Fid, OpenHandle),
    /// An inode without a name that nobody may have open any more.
    Orphan(Fid),
}

/// Work for one thread.
struct Queue<T> {
    /// `None` when there will be no more.
    waiting: Mutex<Option<Vec<T>>>,
    changed: Condvar,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { waiting: Mutex::new(Some(Vec::new())), changed: Condvar::new() }
    }
}

impl<T> Queue<T> {
    fn extend(&self, work: impl IntoIterator<Item = T>) {
        if let Some(waiting) = &mut *self.waiting.lock() {
            waiting.extend(work);
            self.changed.notify_all();
        }
    }

    /// All that waits; `None` if the thread is to end.
    fn take(&self) -> Option<Vec<T>> {
        let mut waiting = self.waiting.lock();
        while waiting.as_ref().is_some_and(Vec::is_empty) {
            self.changed.wait(&mut waiting);
        }
        waiting.as_mut().map(std::mem::take)
    }

    fn end(&self) {
        *self.waiting.lock() = None;
        self.changed.notify_all();
    }
}

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Departed {
    fencing: Arc<Queue<ClientUuid>>,
    closing: Arc<Queue<Left>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Departed {
    /// Starts the threads, which do what there is with `fence` and `close`; they end when the MDT stops, or `owner` is gone.
    pub fn start<O: Send + Sync + 'static>(
        &self,
        owner: &Arc<O>,
        fence: fn(&O, Vec<ClientUuid>),
        close: fn(&O, Vec<Left>),
    ) -> Result<(), MdsError> {
        let fence = run("mds-fence", owner, &self.fencing, fence)?;
        self.threads.lock().push(fence);
        let close = run("mds-close", owner, &self.closing, close)?;
        self.threads.lock().push(close);
        Ok(())
    }

    /// Has OSTs told that a client was evicted, and then the lease engine.
    pub fn fence(&self, client: ClientUuid) {
        self.fencing.extend([client]);
    }

    /// Has these handles of a client closed.
    pub fn close_all_of(&self, client: &ClientUuid, handles: Vec<(Fid, OpenHandle)>) {
        self.closing.extend(handles.into_iter().map(|(fid, handle)| Left::Handle(*client, fid, handle)));
    }

    /// Has inodes without names destroyed if nobody has them open.
    pub fn destroy(&self, orphans: Vec<Fid>) {
        self.closing.extend(orphans.into_iter().map(Left::Orphan));
    }

    /// Lets the threads end.
    pub fn stop(&self) {
        self.fencing.end();
        self.closing.end();
    }

    /// Waits until they have ended.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                log::error!("the thread {name} has panicked");
            }
        }
    }
}

/// A thread that does what comes by a queue.
fn run<O: Send + Sync + 'static, T: Send + 'static>(
    name: &str,
    owner: &Arc<O>,
    queue: &Arc<Queue<T>>,
    work: impl Fn(&O, Vec<T>) + Send + 'static,
) -> Result<JoinHandle<()>, MdsError> {
    // It must not keep a server that was dropped.
    let (owner, queue) = (Arc::downgrade(owner), queue.clone());
    let run = move || {
        while let Some(some) = queue.take() {
            let Some(owner) = owner.upgrade() else { return };
            work(&owner, some);
        }
    };
    nacre_env::thread::Builder::new().name(name.into()).spawn(run).map_err(MdsError::Thread)
}
