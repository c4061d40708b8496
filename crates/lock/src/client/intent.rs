//! Intents: locks that come with the reply to a request about something else.
//!
//! The request names a handle, and the server may grant a lock under it, at once or not at all. Replies and
//! callbacks travel on different paths: a callback that overtakes the reply finds the handle reserved, and
//! the lock is released unused.
//!
//! ```text
//!   reserve --request--> adopt: granted, used by the caller --release--> granted, unused
//!      |                   |
//!      |                   +-- callback meanwhile, or the client was evicted: cancelled
//!      +--reply without a lock, or no reply--> forget_reserved
//! ```

use super::reserved::Fate;
use super::{Effect, Link, Lock, LockClient, State};
use crate::bits::InodeBits;
use crate::resource::{EnqueueFlags, LockHandle, Need, Policy, ResourceId};

impl LockClient {
    /// Reserves a handle for a lock that the reply to a request may bring. [`LockClient::adopt`] or
    /// [`LockClient::forget_reserved`] ends the reservation.
    pub fn reserve(&mut self) -> LockHandle {
        self.reserve_many(1)
    }

    /// Reserves `count` consecutive handles for locks that the reply to one request may bring, and returns
    /// the first. With more than one, [`LockClient::forget_reserved`] ends the reservation when the reply has
    /// been processed.
    pub fn reserve_many(&mut self, count: u64) -> LockHandle {
        let first = LockHandle(self.handles + 1);
        self.handles += count;
        self.reserved.add(first, count);
        first
    }

    /// Ends the reservation of a request, named by its first handle: it brings no further locks, or has
    /// failed. If the server has granted one nevertheless, the answer to its next callback is a cancel.
    pub fn forget_reserved(&mut self, first: LockHandle) {
        self.reserved.remove(first);
    }

    /// True if a request in flight may bring a lock under this handle.
    pub fn is_reserved(&self, handle: LockHandle) -> bool {
        self.reserved.contains(handle)
    }

    /// Adopts a lock that the reply says was granted. True if it is held from now on: the caller has a
    /// reference, caches what came with the reply, and then calls [`LockClient::release`]. False if a
    /// callback came first, or the lock belongs to an earlier connection of this client that has ended: what
    /// came may be used once and not cached. A reply may name one lock twice (an inode with two names in a
    /// page): false for the second time, and the lock stays.
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
