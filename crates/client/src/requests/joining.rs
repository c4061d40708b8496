//! MDTs that join while the client runs.

use crate::requests::Requests;
use crate::requests::mdt::Mdt;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_rpc::{ClientCallbacks, MdsEndpoint};
use nacre_types::limits::MDT_COUNT_MAX;
use nacre_types::{Status, StatusResult};
use nacre_wire::mds::LeaseGrant;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How often a wait looks whether it was interrupted.
const POLL: Duration = Duration::from_millis(100);

/// Who knows which MDTs the file system has.
pub trait Newcomers: Send + Sync {
    /// Whether the file system has this MDT, though the client does not know it yet: then it is being added. Any thread may ask.
    fn is_coming(&self, mdt_index: u16) -> bool;
}

/// What is known of MDTs that join.
#[derive(Default)]
pub(crate) struct Joining {
    newcomers: OnceLock<Arc<dyn Newcomers>>,
    /// Held while one is added, from before anything can be heard of it.
    adding: Mutex<()>,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Joining {
    /// Nobody waits any more.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}

impl Requests {
    /// Who is asked for MDTs that the client does not know. Only the first call counts.
    pub fn set_newcomers(&self, newcomers: Arc<dyn Newcomers>) {
        let _ = self.joining.newcomers.set(newcomers);
    }

    /// MDTs that the client knows; their indexes are below.
    pub fn mdt_count(&self) -> usize {
        self.mdts.len()
    }

    /// Adds the MDT with the next index. `connect` gets what it calls back, and gives the way and what may be cached.
    ///
    /// # Errors
    /// What `connect` says; `EALREADY` if it is known; `EINVAL` if one before it is not, or if there can be no such MDT.
    pub fn add_mdt(
        &self,
        index: u16,
        connect: impl FnOnce(Arc<dyn ClientCallbacks>) -> StatusResult<(Arc<dyn MdsEndpoint>, LeaseGrant)>,
    ) -> StatusResult<()> {
        let _adding = self.joining.adding.lock();
        if usize::from(index) < self.mdts.len() {
            return Err(Status::EALREADY);
        }
        if usize::from(index) != self.mdts.len() || index >= MDT_COUNT_MAX {
            return Err(Status::EINVAL);
        }
        let (endpoint, grant) = connect(self.lease.callbacks(index))?;
        // Before anybody can ask it: what it answers is kept only if it has said that nobody else is there.
        self.lease.apply(index, grant, false);
        let added = self.mdts.push(Mdt::new(endpoint));
        debug_assert!(added, "the index was looked at, and nobody else adds");
        // Not between a look and a wait of somebody who waits for it.
        drop(self.joining.stopped.lock());
        self.joining.changed.notify_all();
        Ok(())
    }

    /// The MDT with an index that the client does not know: waits for it if the file system has it.
    ///
    /// # Errors
    /// `ESTALE` if it has not, `EINTR`, `ESHUTDOWN`.
    pub(crate) fn mdt_that_joins(&self, index: u16) -> StatusResult<&Mdt> {
        let newcomers =
            self.joining.newcomers.get().filter(|_| index < MDT_COUNT_MAX).ok_or(Status::ESTALE)?;
        if !nacre_env::blocking(|| newcomers.is_coming(index)) {
            return self.mdts.get(usize::from(index)).ok_or(Status::ESTALE);
        }
        let mut stopped = self.joining.stopped.lock();
        loop {
            if let Some(mdt) = self.mdts.get(usize::from(index)) {
                return Ok(mdt);
            }
            if *stopped {
                return Err(Status::ESHUTDOWN);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| self.joining.changed.wait_for(&mut stopped, POLL));
        }
    }

    /// Waits until the client knows an MDT; false if it does not by then.
    pub fn await_mdt(&self, index: u16, deadline: Instant) -> bool {
        let is_known = || self.mdts.get(usize::from(index)).is_some();
        let mut stopped = self.joining.stopped.lock();
        while !is_known() && !*stopped {
            let wait = || self.joining.changed.wait_until(&mut stopped, deadline).timed_out();
            if nacre_env::blocking(wait) {
                break;
            }
        }
        is_known()
    }

    /// Whether there is such an MDT, also if it has joined just now.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub(crate) fn has_mdt(&self, index: u16) -> StatusResult<bool> {
        if usize::from(index) < self.mdts.len() {
            return Ok(true);
        }
        match self.mdt_that_joins(index) {
            Ok(_) => Ok(true),
            Err(Status::ESTALE) => Ok(false),
            Err(status) => Err(status),
        }
    }

    /// The MDT that calls back. It may do so before it is known here.
    pub(crate) fn mdt_once_joined(&self, index: u16) -> Option<&Mdt> {
        let index = usize::from(index);
        self.mdts.get(index).or_else(|| {
            drop(self.joining.adding.lock());
            self.mdts.get(index)
        })
    }
}
