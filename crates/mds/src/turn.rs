//! Operations that have to wait for clients before they commit.
//!
//! An operation on names does all that it does under latches ([`crate::locks`]), in tens of microseconds. If it finds at its end that a
//! client has to give something up first, or that a test wants it held, it lets go of everything, [keeps](crate::locks::Kept) its names and
//! what it changes beside them, waits, and is done again from its beginning. Operations on other names of its directories go on
//! meanwhile; those that want the same wait for it.

use crate::locks::{Kept, LockTable, Locked, Want};
use crate::tx::Tx;
use nacre_rpc::{Call, Export};
use nacre_types::{ClientUuid, Fid, Standing, Status, StatusResult};
use nacre_wire::mds::{MdsRequest, NewFile};
use std::cell::RefCell;
use std::sync::Arc;

/// What every operation knows of its caller.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    pub client: ClientUuid,
    pub export: &'a Export,
    pub call: &'a Call<'a>,
    pub request: &'a MdsRequest<'a>,
    /// What is kept for the request while it waits for clients.
    pub turn: &'a Turn,
    /// What the client may be, if that is bounded.
    pub standing: Option<&'a Standing>,
}

impl<'a> Caller<'a> {
    /// The caller's credentials.
    pub fn cred(&self) -> &'a nacre_types::Cred {
        self.call.cred
    }

    /// True if the client acts for some users only, so that what it says of itself is to be checked.
    pub fn is_bounded(&self) -> bool {
        self.standing.is_some_and(|standing| !standing.is_trusted())
    }
}

/// How often an operation is begun again before it waits as it is: what its names stand for may change while it keeps nothing.
pub(crate) const ATTEMPTS: usize = 8;
/// Most that an operation on this MDT wants: two names, and what they lead to.
const WANTS_MAX: usize = 4;

/// See the [module documentation](self).
#[derive(Default)]
pub(crate) struct Turn {
    kept: RefCell<Option<Kept>>,
    /// What the operation would have committed when it stopped.
    stopped: RefCell<Option<Tx>>,
    may_stop: bool,
}

impl Turn {
    /// For a request, which is done as a whole.
    pub fn of(request: &MdsRequest<'_>) -> Turn {
        let may_stop = matches!(
            request,
            MdsRequest::Create { .. }
                | MdsRequest::Link { .. }
                | MdsRequest::Unlink { .. }
                | MdsRequest::Rename { .. }
                | MdsRequest::SetAttr { .. }
        );
        Turn { may_stop, ..Turn::default() }
    }

    /// Keeps nothing any more. To be called before anything is asked for that is locked in an order over several MDTs.
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
            && let Some(locked) = locks.lock_kept(wants, kept)
        {
            return Ok(locked);
        }
        // It leads elsewhere by now, where others were before.
        self.give_up();
        locks.lock(wants)
    }

    /// Whether the operation should stop rather than wait.
    pub fn may_stop(&self) -> bool {
        self.may_stop && self.kept.borrow().is_none()
    }

    /// Keeps what a request is about from now on.
    pub fn keep(&self, kept: Kept) {
        *self.kept.borrow_mut() = Some(kept);
    }

    /// What the operation would have committed, if it has stopped.
    pub fn take_stopped(&self) -> Option<Tx> {
        self.stopped.take()
    }

    /// The operation stops before its commit.
    pub fn stop(&self, tx: Tx) -> Status {
        *self.stopped.borrow_mut() = Some(tx);
        Status::EAGAIN
    }
}

/// The names that a request is about.
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
