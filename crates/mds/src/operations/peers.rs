//! Which other MDTs there are: told at the start, when one joins, and asked for when somebody names one that is not known.

use super::Distributed;
use super::resolve::{TICK, resolve};
use super::state::Peers;
use crate::error::MdsError;
use nacre_env::clock::Instant;
use std::sync::Arc;

impl Distributed {
    /// Uses these other MDTs from now on. A thread asks those that are new what this one has to know.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn set_peers(self: &Arc<Self>, peers: Peers) -> Result<(), MdsError> {
        self.operations.set_peers(peers);
        let mut resolver = self.resolver.lock();
        // What is prepared is to be decided or given up also where no other MDT is left.
        let is_needed = self.operations.has_peers() || self.operations.has_prepared();
        if resolver.is_none() && is_needed && !self.signal.is_stopping() {
            let (weak, signal) = (Arc::downgrade(self), self.signal.clone());
            let body = move || resolve(&weak, &signal);
            let thread = nacre_env::thread::Builder::new().name("mds-resolve".into()).spawn(body);
            *resolver = Some(thread.map_err(MdsError::Thread)?);
        }
        Ok(())
    }

    /// Waits for the end of the thread; false if it has panicked.
    pub fn join(&self) -> bool {
        // Not under the lock: it may be about to ask for MDTs that are not known, and set them.
        let thread = self.resolver.lock().take();
        thread.is_none_or(|thread| thread.join().is_ok())
    }

    /// Waits until this MDT knows from MDT 0 what it must know before it takes the first name: with what names are hashed, and what the
    /// root says to the whole file system. False if it does not by then.
    pub fn await_acquaintance(&self, deadline: Instant) -> bool {
        let mut state = self.operations.state.lock();
        while self.index != 0 && !(state.seed_learned && state.root_seen.is_some()) {
            if Instant::now() >= deadline || self.signal.is_stopping() {
                return false;
            }
            nacre_env::blocking(|| self.operations.changed.wait_for(&mut state, TICK));
        }
        true
    }
}
