//! Operations that have to wait for clients before they commit.
//!
//! An operation on names does all that it does under latches ([`crate::locks`]), in tens of microseconds. If it finds at its end that a
//! client has to give something up first, or that a test wants it held, it lets go of everything, [keeps](crate::locks::Kept) its names and
//! what it changes beside them, waits, and is done again from its beginning. Operations on other names of its directories go on
//! meanwhile; those that want the same wait for it.

use crate::locks::{Kept, Locked, Reach, Want, unless_interrupted};
use crate::mds::Mds;
use crate::service::Caller;
use crate::tx::Tx;
use nacre_rpc::Moment;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsRequest, NewFile};
use std::cell::RefCell;

/// How often an operation is begun again before it waits as it is: what its names stand for may change while it keeps nothing.
const ATTEMPTS: usize = 8;
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

    /// Whether the operation should stop rather than wait.
    pub fn may_stop(&self) -> bool {
        self.may_stop && self.kept.borrow().is_none()
    }

    /// The operation stops before its commit.
    pub fn stop(&self, tx: Tx) -> Status {
        *self.stopped.borrow_mut() = Some(tx);
        Status::EAGAIN
    }
}

/// The names that a request is about.
fn names_of<'a>(request: &'a MdsRequest<'a>) -> Vec<Want<'a>> {
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

impl Mds {
    /// How many requests wait for names or inodes that other operations keep.
    pub fn lock_waiters(&self) -> usize {
        self.locks.waiting()
    }

    /// Locks what an operation on this MDT needs.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub(crate) fn lock_for<'b>(
        &self,
        caller: &Caller<'_>,
        wants: impl IntoIterator<Item = Want<'b>>,
    ) -> StatusResult<Locked<'_>> {
        let (mut all, mut count) = ([Want::Still(Fid::ZERO); WANTS_MAX], 0);
        for (place, want) in all.iter_mut().zip(wants) {
            *place = want;
            count += 1;
        }
        let wants = &all[..count];
        if let Some(kept) = &*caller.turn.kept.borrow()
            && let Some(locked) = self.locks.lock_kept(wants, kept)
        {
            return Ok(locked);
        }
        // It leads elsewhere by now, where others were before.
        caller.turn.give_up();
        self.locks.lock(wants)
    }

    /// Does what a request asks for, and again after each time that it has stopped.
    pub(crate) fn run(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        for _ in 0..ATTEMPTS {
            let outcome = self.run_through(caller, request);
            match caller.turn.stopped.take() {
                Some(tx) => self.keep_turn(caller, request, &tx)?,
                None => return outcome,
            }
        }
        // It has its names as long as it lasts, however others change what they lead to.
        let turn = Turn::default();
        self.run_through(&Caller { turn: &turn, ..*caller }, request)
    }

    /// Keeps what an operation that has stopped is about, and has clients give up what is in its way.
    fn keep_turn(&self, caller: &Caller<'_>, request: &MdsRequest<'_>, tx: &Tx) -> StatusResult<()> {
        caller.turn.give_up();
        let mut wants = names_of(request);
        for (fid, _) in tx.cached() {
            let is_parent = wants.iter().any(|want| matches!(want, Want::Name(parent, _) if parent == fid));
            if !is_parent && self.find_inode(fid)?.is_some() {
                wants.push(Want::Whole(*fid));
            }
        }
        let kept = self.locks.keep(&wants, Reach::Here, &unless_interrupted)?;
        *caller.turn.kept.borrow_mut() = Some(kept);
        self.call_back(tx, Some(caller.export))?;
        self.hold.pass(Moment::Locked, request);
        Ok(())
    }
}
