//! Locks that come with the answer to a request about something else (intents).
//!
//! The request names a handle, and the server may grant a lock under it, at once or not at all. Answers and callbacks travel
//! different ways: a callback that overtakes the answer finds the handle reserved, and the lock is given back unused.
//!
//! ```text
//!   reserve --request--> adopt: granted, used by the caller --release--> granted, unused
//!      |                   |
//!      |                   +-- called back meanwhile, or the client was evicted: cancelled
//!      +--answer without a lock, or no answer--> forget_reserved
//! ```

use super::{Effect, Link, Lock, LockClient, State};
use crate::bits::InodeBits;
use crate::resource::{EnqueueFlags, LockHandle, Need, Policy, ResourceId};

impl LockClient {
    /// A handle for a lock that the answer to a request may bring. It is given back by [`LockClient::adopt`] or
    /// [`LockClient::forget_reserved`].
    pub fn reserve(&mut self) -> LockHandle {
        self.handles += 1;
        let handle = LockHandle(self.handles);
        self.reserved.insert(handle, false);
        handle
    }

    /// The request brought no lock, or has failed. If the server has granted one all the same, it hears so when it calls it
    /// back.
    pub fn forget_reserved(&mut self, handle: LockHandle) {
        self.reserved.remove(&handle);
    }

    /// True if a request is on its way that may bring a lock under this handle.
    pub fn is_reserved(&self, handle: LockHandle) -> bool {
        self.reserved.contains_key(&handle)
    }

    /// The answer says that the lock was granted. True if it is held from now on: the caller has a reference, puts what came
    /// with the answer into its cache, and then calls [`LockClient::release`]. False if it was called back on the way, or
    /// belongs to a life of this client that has ended: what came may be used once and not kept.
    pub fn adopt(
        &mut self,
        handle: LockHandle,
        resource: &ResourceId,
        need: &Need,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let called_back = self.reserved.remove(&handle);
        let makes_sense = need.is_valid() && matches!(need.policy, Policy::Bits(_));
        if called_back != Some(false) || !makes_sense {
            self.send(effects, Effect::SendCancel(handle));
            return false;
        }
        self.stats.enqueued += 1;
        let place = self.resource_for(resource, &need.policy);
        let key = self.locks.insert(Lock {
            handle,
            resource: place,
            need: *need,
            optional: InodeBits::NONE,
            flags: EnqueueFlags::default(),
            state: State::Granted,
            users: 1,
            wanted: None,
            lvb: None,
            link: Link::default(),
        });
        self.by_handle.insert(handle, key);
        self.resources[place].locks += 1;
        self.resources[place].granted.insert(need.mode, &need.policy, key);
        true
    }
}
