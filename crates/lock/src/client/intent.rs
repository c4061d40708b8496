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

use super::reserved::Fate;
use super::{Effect, Link, Lock, LockClient, State};
use crate::bits::InodeBits;
use crate::resource::{EnqueueFlags, LockHandle, Need, Policy, ResourceId};

impl LockClient {
    /// A handle for a lock that the answer to a request may bring. It is given back by [`LockClient::adopt`] or
    /// [`LockClient::forget_reserved`].
    pub fn reserve(&mut self) -> LockHandle {
        self.reserve_many(1)
    }

    /// The first of `count` consecutive handles for locks that the answer to one request may bring. More than one are given back
    /// by [`LockClient::forget_reserved`] when the answer has been dealt with.
    pub fn reserve_many(&mut self, count: u64) -> LockHandle {
        let first = LockHandle(self.handles + 1);
        self.handles += count;
        self.reserved.add(first, count);
        first
    }

    /// The request whose first handle this is brings no further locks, or has failed. If the server has granted one all the
    /// same, it hears so when it calls it back.
    pub fn forget_reserved(&mut self, first: LockHandle) {
        self.reserved.remove(first);
    }

    /// True if a request is on its way that may bring a lock under this handle.
    pub fn is_reserved(&self, handle: LockHandle) -> bool {
        self.reserved.contains(handle)
    }

    /// The answer says that the lock was granted. True if it is held from now on: the caller has a reference, puts what came
    /// with the answer into its cache, and then calls [`LockClient::release`]. False if it was called back on the way, or
    /// belongs to a life of this client that has ended: what came may be used once and not kept. An answer may name one lock
    /// twice (an inode with two names in a page): false for the second time, and the lock stays.
    pub fn adopt(
        &mut self,
        handle: LockHandle,
        resource: &ResourceId,
        need: &Need,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let fate = self.reserved.adopt(handle);
        if fate == Fate::Adopted {
            return false;
        }
        let makes_sense = need.is_valid() && matches!(need.policy, Policy::Bits(_));
        if fate != Fate::Open || !makes_sense {
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
