//! Deferred work of evictions and disconnects.
//!
//! The eviction of a client ([`crate::sessions`]) takes its locks at once. The rest is deferred to one thread
//! for each kind of wait: one reports evictions to object servers, which then grant waiting locks, the other
//! closes handles. A close needs the lock of the inode, whose holder may wait for the eviction of another
//! client; so the threads that evict only queue the work here. Queued work is done in batches.

use crate::error::MdsError;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_types::{ClientUuid, Fid, OpenHandle};
use std::sync::Arc;
use std::time::Duration;

/// How long other clients wait at most until OSTs know of an eviction. An OST that does not answer for this
/// long is most likely unreachable for the evicted client too.
pub(crate) const FENCE_TIMEOUT: Duration = Duration::from_secs(5);

/// Work that needs the lock of an inode.
pub(crate) enum Left {
    /// An open handle of a removed client.
    Handle(ClientUuid, Fid, OpenHandle),
    /// An inode without a name that is to be destroyed unless a client has it open.
    Orphan(Fid),
}

/// Work queue of one thread.
struct Queue<T> {
    /// Queued work; `None` after the end.
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

    /// Takes all queued work; `None` if the thread is to end.
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
    /// Starts the threads, which process the work with `fence` and `close`; they end when the MDT stops, or
    /// `owner` is dropped.
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

    /// Queues the report of an eviction to OSTs and then to the lease engine.
    pub fn fence(&self, client: ClientUuid) {
        self.fencing.extend([client]);
    }

    /// Queues the close of these handles of a client.
    pub fn close_all_of(&self, client: &ClientUuid, handles: Vec<(Fid, OpenHandle)>) {
        self.closing.extend(handles.into_iter().map(|(fid, handle)| Left::Handle(*client, fid, handle)));
    }

    /// Queues the destruction of inodes without names, for those that no client has open.
    pub fn destroy(&self, orphans: Vec<Fid>) {
        self.closing.extend(orphans.into_iter().map(Left::Orphan));
    }

    /// Ends the threads after their current work.
    pub fn stop(&self) {
        self.fencing.end();
        self.closing.end();
    }

    /// Waits for the end of the threads.
    pub fn join(&self) {
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                log::error!("the thread {name} has panicked");
            }
        }
    }
}

/// Runs a thread that processes the work of a queue.
fn run<O: Send + Sync + 'static, T: Send + 'static>(
    name: &str,
    owner: &Arc<O>,
    queue: &Arc<Queue<T>>,
    work: impl Fn(&O, Vec<T>) + Send + 'static,
) -> Result<JoinHandle<()>, MdsError> {
    // The thread must not keep a dropped server alive.
    let (owner, queue) = (Arc::downgrade(owner), queue.clone());
    let run = move || {
        while let Some(some) = queue.take() {
            let Some(owner) = owner.upgrade() else { return };
            work(&owner, some);
        }
    };
    nacre_env::thread::Builder::new().name(name.into()).spawn(run).map_err(MdsError::Thread)
}
