//! The thread that watches deadlines.

use crate::service::{LockOwner, LockService};
use nacre_env::clock::Instant;
use nacre_env::thread::JoinHandle;
use nacre_rpc::Export;
use std::io;
use std::sync::{Arc, Weak};

/// A thread that resends callbacks and evicts clients that miss a deadline. It sleeps without a deadline
/// while no answer is pending. Dropping the guard stops the service ([`LockService::stop`]) and waits for the
/// thread.
pub struct Timer {
    service: Arc<LockService>,
    thread: Option<JoinHandle<()>>,
}

impl Timer {
    /// Starts the thread. `owner` is notified of clients that are evicted or given up; the thread ends when
    /// the owner is dropped.
    ///
    /// # Errors
    /// If the system cannot create a thread.
    pub fn start(service: Arc<LockService>, owner: Weak<dyn LockOwner>) -> io::Result<Timer> {
        let ticking = service.clone();
        let run = move || while ticking.sleep_until_due() && ticking.tick(&owner) {};
        let thread = nacre_env::thread::Builder::new().name("locks".into()).spawn(run)?;
        Ok(Timer { service, thread: Some(thread) })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.service.stop();
        if let Some(thread) = self.thread.take()
            // The last reference to the owner may be dropped on this very thread, after it was notified of an
            // eviction.
            && thread.thread().id() != nacre_env::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl LockService {
    /// Sleeps until a deadline is due; `false` when the service stops.
    fn sleep_until_due(&self) -> bool {
        let mut state = self.state();
        loop {
            if state.is_stopping {
                return false;
            }
            state.timer_until = state.next_deadline();
            match state.timer_until {
                None => self.timer_changed.wait(&mut state),
                Some(due) if due > Instant::now() => {
                    self.timer_changed.wait_until(&mut state, due);
                }
                Some(_) => return true,
            }
        }
    }

    /// Handles what is due. `false` if the owner has been dropped.
    fn tick(&self, owner: &Weak<dyn LockOwner>) -> bool {
        let Some(owner) = owner.upgrade() else { return false };
        self.evict_ended();
        self.act(|state, effects| {
            let now = Instant::now();
            state.engine.on_tick(now, effects);
            state.evict_silent(now, effects);
        });
        let evicted = std::mem::take(&mut self.state().evicted);
        for export in evicted {
            owner.on_evicted(&export);
        }
        for client in self.check_recovery(Instant::now()) {
            owner.on_given_up(&client);
        }
        true
    }

    /// Evicts clients of this host whose processes have ended: they will not answer.
    fn evict_ended(&self) {
        let local: Vec<Arc<Export>> =
            self.exports().into_iter().filter(|export| export.process.is_some()).collect();
        for export in local {
            if export.process.as_ref().is_some_and(nacre_env::has_ended) {
                log::info!("{}: the process of client {} has ended", self.name(), export.client);
                self.act(|state, effects| {
                    let dropped = self.drop_client(state, &export.client, effects);
                    state.evicted.extend(dropped);
                });
            }
        }
    }
}
