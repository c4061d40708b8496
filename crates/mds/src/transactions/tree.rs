//! The lock of the tree, which MDT 0 holds: one directory at a time gets another parent, on all MDTs, so that
//! the tree does not change during a check for cycles.

use super::state::{TIMEOUT, Transactions, cause_of};
use crate::leaves::Leaves;
use crate::locks::unless_interrupted;
use crate::signal::StopSignal;
use nacre_env::activity::blocking_for;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_types::{Status, StatusResult};
use nacre_wire::peer::{PeerReply, PeerRequest, TransactionId};
use std::sync::Arc;
use std::time::Duration;

/// Interval of checks for an interrupt or a stop.
const POLL: Duration = Duration::from_millis(50);

/// See the [module documentation](self).
pub(crate) struct TreeLock {
    index: u16,
    transactions: Arc<Transactions>,
    signal: Arc<StopSignal>,
    /// Held by the rename of this MDT that gives a directory another parent.
    own: Mutex<()>,
    /// On MDT 0: transaction of any MDT that gives a directory another parent.
    holder: Mutex<Option<TransactionId>>,
    released: Condvar,
}

/// Guard: no directory gets another parent until it is dropped.
pub(crate) struct StillTree<'a> {
    tree: &'a TreeLock,
    op: Option<TransactionId>,
    _own: MutexGuard<'a, ()>,
}

impl Drop for StillTree<'_> {
    fn drop(&mut self) {
        let Some(op) = self.op else { return };
        self.tree.transactions.decided(&op);
        if self.tree.index == 0 {
            self.tree.unlock(&op);
        } else if let Err(status) = self.tree.transactions.ask(0, PeerRequest::UnlockTree { op }) {
            log::warn!("MDT0000 did not hear that no directory moves any more: {status}");
        }
    }
}

impl TreeLock {
    pub fn new(leaves: &Leaves) -> TreeLock {
        TreeLock {
            index: leaves.index,
            transactions: leaves.transactions.clone(),
            signal: leaves.signal.clone(),
            own: Mutex::new(()),
            holder: Mutex::new(None),
            released: Condvar::new(),
        }
    }

    /// Keeps directories from getting other parents, on all MDTs, until the guard is dropped.
    ///
    /// # Errors
    /// Those of MDT 0.
    pub fn still(&self) -> StatusResult<StillTree<'_>> {
        let own = self.lock_own()?;
        // MDT 0 takes the lock even if it is the only MDT: others may join and request it meanwhile.
        if self.index != 0 && !self.transactions.has_peers() {
            return Ok(StillTree { tree: self, op: None, _own: own });
        }
        // The id lets MDT 0 ask whether the lock is still needed.
        let op = self.transactions.begin();
        let still = StillTree { tree: self, op: Some(op), _own: own };
        match self.index {
            0 => drop(self.lock(op)?),
            _ => drop(self.transactions.ask(0, PeerRequest::LockTree { op })?),
        }
        Ok(still)
    }

    /// Waits until this MDT gives no other directory another parent, which may take long: that rename may
    /// wait for other MDTs.
    fn lock_own(&self) -> StatusResult<MutexGuard<'_, ()>> {
        loop {
            if let Some(own) = self.own.try_lock() {
                return Ok(own);
            }
            self.unless_stopped()?;
            if let Some(own) = nacre_env::blocking(|| self.own.try_lock_for(POLL)) {
                return Ok(own);
            }
        }
    }

    fn unless_stopped(&self) -> StatusResult<()> {
        unless_interrupted()?;
        if self.signal.is_stopping() { Err(Status::ESHUTDOWN) } else { Ok(()) }
    }

    /// On MDT 0: grants the lock to a transaction.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    pub fn lock(&self, op: TransactionId) -> StatusResult<PeerReply> {
        let mut holder = self.holder.lock();
        let mut asked = Instant::now();
        while let Some(other) = holder.filter(|other| *other != op) {
            if asked.elapsed() >= TIMEOUT {
                drop(holder);
                self.ask_holder(&other);
                (holder, asked) = (self.holder.lock(), Instant::now());
                continue;
            }
            self.unless_stopped()?;
            blocking_for(cause_of(&other), || self.released.wait_for(&mut holder, POLL));
        }
        *holder = Some(op);
        Ok(PeerReply::Done)
    }

    /// Asks whether the holder still needs the lock: the message of its release may have been lost.
    fn ask_holder(&self, holder: &TransactionId) {
        let outcome = match holder.mdt == self.index {
            true => self.transactions.outcome(holder),
            false => self.transactions.ask(holder.mdt, PeerRequest::Outcome { op: *holder }),
        };
        if outcome.is_ok() {
            self.unlock(holder);
        }
    }

    /// Releases the lock of an MDT that has restarted and thereby lost it.
    pub fn free_of(&self, mdt: u16) {
        self.release_if(|holder| holder.mdt == mdt);
    }

    /// Releases the lock of a transaction.
    pub fn unlock(&self, op: &TransactionId) -> PeerReply {
        self.release_if(|holder| holder == op);
        PeerReply::Done
    }

    fn release_if(&self, is_over: impl FnOnce(&TransactionId) -> bool) {
        let mut holder = self.holder.lock();
        if holder.as_ref().is_some_and(is_over) {
            *holder = None;
            self.released.notify_all();
        }
    }
}
