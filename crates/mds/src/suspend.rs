//! Operations that have to wait for clients before they commit.
//!
//! An operation on names works under latches ([`crate::locks`]), for tens of microseconds. If it finds before
//! its commit that a client has to release a lock first, or that a test holds it up, it releases all latches,
//! [keeps](crate::locks::LongLock) its names and the inodes that it changes in addition, waits, and restarts from
//! its beginning. Operations on other names of its directories continue meanwhile; those on the same names
//! wait for it.

use crate::locks::{LockTable, Locked, LongLock, Want};
use crate::tx::Tx;
use nacre_rpc::{Call, Export};
use nacre_types::{ClientUuid, Fid, Standing, Status, StatusResult};
use nacre_wire::mds::{MdsRequest, NewFile};
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// The origin of an operation: its caller and call.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub client: ClientUuid,
    pub export: &'a Export,
    pub call: &'a Call<'a>,
    pub request: &'a MdsRequest<'a>,
    /// Locks kept for the request while it waits for clients.
    pub suspended: &'a Suspended,
    /// Restrictions of the client, if it has any.
    pub standing: Option<&'a Standing>,
}

impl<'a> Caller<'a> {
    /// Returns the caller's credentials.
    pub fn cred(&self) -> &'a nacre_types::Cred {
        self.call.cred
    }

    /// Returns true if the client acts for some users only, so that its claims have to be checked.
    pub fn is_bounded(&self) -> bool {
        self.standing.is_some_and(|standing| !standing.is_trusted())
    }
}

/// How often an operation stops and restarts before it waits without stopping: the inodes of its names may
/// change while it keeps nothing, so restarts alone need not end.
pub(crate) const ATTEMPTS: usize = 8;
/// Largest number of locks of an operation on this MDT: two names, and their inodes.
const WANTS_MAX: usize = 4;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Suspended {
    kept: RefCell<Option<LongLock>>,
    /// The transaction of the operation when it stopped.
    stopped: RefCell<Option<Tx>>,
    may_stop: Cell<bool>,
}

impl Suspended {
    /// Creates the state of a request that has not stopped.
    pub fn of(request: &MdsRequest<'_>) -> Suspended {
        let may_stop = matches!(
            request,
            MdsRequest::Create { .. }
                | MdsRequest::Link { .. }
                | MdsRequest::Unlink { .. }
                | MdsRequest::Rename { .. }
                | MdsRequest::SetAttr { .. }
        );
        Suspended { may_stop: Cell::new(may_stop), ..Suspended::default() }
    }

    /// Releases everything that is kept. Called before any request for locks that are taken in an order over
    /// several MDTs.
    pub fn give_up(&self) {
        drop(self.kept.take());
    }

    /// Locks what an operation on this MDT needs.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn lock<'t, 'b>(
        &self,
        locks: &'t Arc<LockTable>,
        wants: impl IntoIterator<Item = Want<'b>>,
    ) -> StatusResult<Locked<'t>> {
        let (mut all, mut count) = ([Want::Still(Fid::ZERO); WANTS_MAX], 0);
        for (place, want) in all.iter_mut().zip(wants) {
            *place = want;
            count += 1;
        }
        let wants = &all[..count];
        if let Some(kept) = &*self.kept.borrow()
            && let Some(locked) = locks.lock_under(wants, kept)
        {
            return Ok(locked);
        }
        // The name refers to another inode meanwhile.
        self.give_up();
        locks.lock(wants)
    }

    /// Returns true if the operation should stop rather than wait.
    pub fn may_stop(&self) -> bool {
        self.may_stop.get() && self.kept.borrow().is_none()
    }

    /// Makes the operation wait without a stop from now on.
    pub fn stop_no_more(&self) {
        self.may_stop.set(false);
    }

    /// Keeps these locks for the request.
    pub fn keep(&self, kept: LongLock) {
        *self.kept.borrow_mut() = Some(kept);
    }

    /// Takes the transaction of a stopped operation.
    pub fn take_stopped(&self) -> Option<Tx> {
        self.stopped.take()
    }

    /// Stops the operation before its commit.
    pub fn stop(&self, tx: Tx) -> Status {
        *self.stopped.borrow_mut() = Some(tx);
        Status::EAGAIN
    }
}

/// Returns the names in a request.
pub(crate) fn names_of<'a>(request: &'a MdsRequest<'a>) -> Vec<Want<'a>> {
    match request {
        MdsRequest::Create { new: NewFile::Unnamed, .. } => Vec::new(),
        MdsRequest::Create { parent, name, .. }
        | MdsRequest::Link { parent, name, .. }
        | MdsRequest::Unlink { parent, name, .. } => vec![Want::Name(*parent, name)],
        MdsRequest::Rename { from_parent, from_name, to_parent, to_name, .. } => {
            vec![Want::Name(*from_parent, from_name), Want::Name(*to_parent, to_name)]
        }
        _ => Vec::new(),
    }
}
