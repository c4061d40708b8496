//! Which other MDTs there are: told at the start, when one joins, and asked for when somebody names one that is not known.

use super::resolve::{TICK, resolve};
use super::{Newcomers, Peers};
use crate::error::MdsError;
use crate::mds::Mds;
use nacre_env::clock::Instant;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Mds {
    /// Tells which other MDTs there are from now on, by index, as a server to each. Names and inodes may then lie on any of
    /// them. A thread asks those that are new what this one has to know.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn set_peers(self: &Arc<Self>, peers: Peers) -> Result<(), MdsError> {
        self.operations.set_peers(peers);
        self.start_threads()
    }

    fn start_threads(self: &Arc<Self>) -> Result<(), MdsError> {
        if !self.stopping.load(Ordering::Acquire) {
            self.start_moving().map_err(MdsError::Thread)?;
        }
        let mut resolver = self.resolver.lock();
        // What is prepared is to be decided or given up also where no other MDT is left.
        let is_needed = self.operations.has_peers() || self.operations.has_prepared();
        if resolver.is_none() && is_needed && !self.stopping.load(Ordering::Acquire) {
            let (weak, signal) = (Arc::downgrade(self), self.signal.clone());
            let body = move || resolve(&weak, &signal);
            let thread = nacre_env::thread::Builder::new().name("mds-resolve".into()).spawn(body);
            *resolver = Some(thread.map_err(MdsError::Thread)?);
        }
        Ok(())
    }

    /// Who is asked for MDTs that are not known: `look` may make them known with [`Mds::set_peers`]. Only the first call counts.
    pub fn set_newcomers(&self, look: Box<Newcomers>) {
        self.operations.set_newcomers(look);
    }

    /// Waits until this MDT knows from MDT 0 what it must know before it takes the first name: with what names are hashed, and what the
    /// root says to the whole file system. False if it does not by then.
    pub fn await_acquaintance(&self, deadline: Instant) -> bool {
        let mut state = self.operations.state.lock();
        while self.index != 0 && !(state.seed_learned && state.root_seen.is_some()) {
            if Instant::now() >= deadline || self.stopping.load(Ordering::Acquire) {
                return false;
            }
            nacre_env::blocking(|| self.operations.changed.wait_for(&mut state, TICK));
        }
        true
    }
}
