//! What may be cached, and the thread that drops it when another client connects.

use crate::kernel::KernelCaches;
use crate::locks::Locks;
use crate::locks::inodes::InodeSpace;
use crate::locks::layouts::is_of_layout;
use crate::validity::Validity;
use nacre_env::sync::{Condvar, Mutex};
use nacre_rpc::ClientCallbacks;
use nacre_types::Fid;
use nacre_wire::lock::LockMessage;
use nacre_wire::mds::LeaseGrant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The lease of one mount, over all its MDTs: exclusive only while each of them grants it.
///
/// Created before the client, because connecting to an MDT needs a receiver for its callbacks.
pub struct Lease {
    /// Number of the lease in force, shifted left by one; the lowest bit is set if the lease is exclusive.
    word: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
    /// Locks that allow caching while the lease is shared.
    locks: Arc<Locks>,
}

#[derive(Default)]
struct State {
    /// Grants by MDT index.
    grants: Vec<Option<LeaseGrant>>,
    /// MDTs that wait for a release, with the epoch to answer with.
    releases: Vec<(u16, u64)>,
    /// The release under way.
    releasing: Option<(u16, u64)>,
    /// Releases under way or to come for which an MDT has asked again.
    busy: Vec<(u16, u64)>,
    stopped: bool,
}

impl Lease {
    /// Creates a lease under which nothing may be cached, until a grant arrives.
    pub fn new() -> Arc<Lease> {
        Arc::new(Lease {
            word: AtomicU64::new(2),
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
            locks: Locks::new(),
        })
    }

    /// Returns the locks under which this client caches while the lease is shared; they also receive the
    /// callbacks of OSTs.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Sets the caches that this client has to invalidate when the lease becomes shared. Only the first call
    /// counts.
    pub fn set_kernel_caches(&self, kernel: Arc<dyn KernelCaches>) {
        let _ = self.locks.kernel.set(kernel);
    }

    /// Returns the caches set by [`Lease::set_kernel_caches`].
    pub(crate) fn kernel(&self) -> Option<&Arc<dyn KernelCaches>> {
        self.locks.kernel.get()
    }

    /// Returns the locks on inodes of the MDT of a FID.
    pub(crate) fn inodes(&self, fid: Fid) -> Arc<InodeSpace> {
        self.locks.inodes(fid.mdt_index())
    }

    /// True if information about an inode, or about the entries of a directory, is still true.
    pub fn is_in_force(&self, validity: Validity, fid: Fid) -> bool {
        match validity {
            Validity::None => false,
            Validity::Lease(number) => number == self.number(),
            Validity::Lock(handle) => self.inodes(fid).is_usable(handle),
        }
    }

    /// Returns the receiver of callbacks from the MDT with this index.
    pub fn callbacks(self: &Arc<Lease>, mdt_index: u16) -> Arc<dyn ClientCallbacks> {
        Arc::new(MdtCallbacks { lease: self.clone(), mdt_index })
    }

    /// True while this client is the only one, so that nothing has to be locked. A read or write checks this
    /// under a byte range of the file: the end of the lease waits for those.
    pub fn exclusive(&self) -> bool {
        self.word.load(Ordering::Acquire) & 1 == 1
    }

    /// Returns the number of the lease if it is exclusive, 0 otherwise. Information that was obtained under a
    /// number is true while this function returns that number.
    pub fn number(&self) -> u64 {
        let word = self.word.load(Ordering::Acquire);
        if word & 1 == 1 { word >> 1 } else { 0 }
    }

    /// Applies a grant that arrived in a callback or a reply. A shared one is acknowledged once caches are
    /// dropped.
    pub(crate) fn apply(&self, mdt_index: u16, grant: LeaseGrant, release: bool) {
        let mut state = self.state.lock();
        let slot = usize::from(mdt_index);
        if state.grants.len() <= slot {
            state.grants.resize(slot + 1, None);
        }
        if state.grants[slot].is_some_and(|old| old.epoch > grant.epoch) {
            return;
        }
        state.grants[slot] = Some(grant);
        let exclusive = state.grants.iter().all(|grant| grant.is_some_and(|grant| grant.exclusive));
        if exclusive != self.exclusive() {
            // A new number each time, so that no information from an earlier exclusive lease counts again.
            let number = (self.word.load(Ordering::Relaxed) >> 1) + 1;
            self.word.store((number << 1) | u64::from(exclusive), Ordering::Release);
        }
        if release && !grant.exclusive {
            let asked = (mdt_index, grant.epoch);
            let is_known = state.releasing == Some(asked) || state.releases.contains(&asked);
            let answers = if is_known { &mut state.busy } else { &mut state.releases };
            if !answers.contains(&asked) {
                answers.push(asked);
            }
            self.changed.notify_all();
        }
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next revocation to acknowledge: the MDT and the epoch. `None` once the lease is stopped.
    pub(crate) fn next_release(&self) -> Option<(u16, u64)> {
        let mut state = self.state.lock();
        state.releasing = None;
        while !state.stopped && state.releases.is_empty() {
            self.changed.wait(&mut state);
        }
        if state.stopped {
            return None;
        }
        state.releasing = Some(state.releases.remove(0));
        state.releasing
    }

    /// Waits for the next revocation that an MDT repeats before it is acknowledged, likewise.
    pub(crate) fn next_busy(&self) -> Option<(u16, u64)> {
        let mut state = self.state.lock();
        while !state.stopped && state.busy.is_empty() {
            self.changed.wait(&mut state);
        }
        if state.stopped { None } else { Some(state.busy.remove(0)) }
    }
}

struct MdtCallbacks {
    lease: Arc<Lease>,
    mdt_index: u16,
}

impl ClientCallbacks for MdtCallbacks {
    fn lease_changed(&self, grant: LeaseGrant) {
        self.lease.apply(self.mdt_index, grant, true);
    }

    fn lock_message(&self, message: LockMessage) {
        match message {
            LockMessage::Blocking { handle, .. } if is_of_layout(handle) => {
                self.lease.locks.layouts(self.mdt_index).on_message(message);
            }
            message => self.lease.locks.inodes(self.mdt_index).on_message(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_exclusive_only_if_every_mdt_says_so() {
        let lease = Lease::new();
        assert!(!lease.exclusive());
        lease.apply(0, LeaseGrant { exclusive: true, epoch: 1 }, false);
        assert!(lease.exclusive());
        let first = lease.number();
        lease.apply(1, LeaseGrant { exclusive: false, epoch: 1 }, false);
        assert_eq!(lease.number(), 0);
        lease.apply(1, LeaseGrant { exclusive: true, epoch: 2 }, false);
        assert!(lease.number() > first, "what was learned before counts no longer");
        lease.apply(1, LeaseGrant { exclusive: false, epoch: 1 }, false);
        assert!(lease.exclusive(), "an old grant that arrives late changes nothing");
    }
}
