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

/// How often a wait checks for an interrupt.
const POLL: Duration = Duration::from_millis(100);

/// Source of the MDTs that the file system has.
pub trait Newcomers: Send + Sync {
    /// True if the file system has this MDT, though the client does not know it yet: then it is being added.
    /// Any thread may call this.
    fn is_coming(&self, mdt_index: u16) -> bool;
}

/// State of MDTs that join.
#[derive(Default)]
pub(crate) struct Joining {
    newcomers: OnceLock<Arc<dyn Newcomers>>,
    /// Held while an MDT is added, from before it can send anything.
    adding: Mutex<()>,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Joining {
    /// Ends all waits.
    pub fn stop(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }
}

impl Requests {
    /// Sets the source for MDTs that the client does not know. Only the first call counts.
    pub fn set_newcomers(&self, newcomers: Arc<dyn Newcomers>) {
        let _ = self.joining.newcomers.set(newcomers);
    }

    /// Returns the number of MDTs that the client knows; they have the indexes below it.
    pub fn mdt_count(&self) -> usize {
        self.mdts.len()
    }

    /// Adds the MDT with the next index. `connect` gets the receiver of its callbacks, and returns the
    /// endpoint and the lease.
    ///
    /// # Errors
    /// The error of `connect`; `EALREADY` if the MDT is known; `EINVAL` if one before it is not, or if the
    /// index is too large.
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
        // Before any request can reach it: its replies are cached only if it has granted an exclusive lease.
        self.lease.apply(index, grant, false);
        let added = self.mdts.push(Mdt::new(endpoint));
        debug_assert!(added, "the index was checked, and this thread alone adds");
        // Serialises with a waiting thread, which checks and then waits under this lock.
        drop(self.joining.stopped.lock());
        self.joining.changed.notify_all();
        Ok(())
    }

    /// Returns the MDT with an index that the client does not know: waits for it if the file system has it.
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

    /// Waits until the client knows an MDT; false if it does not at the deadline.
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

    /// True if there is such an MDT, including one that has just joined.
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

    /// Returns the MDT that has sent a callback. It may send one before it is known here.
    pub(crate) fn mdt_once_joined(&self, index: u16) -> Option<&Mdt> {
        let index = usize::from(index);
        self.mdts.get(index).or_else(|| {
            drop(self.joining.adding.lock());
            self.mdts.get(index)
        })
    }
}
