//! Reply cache: the replies that a target keeps for one client, so that a resent request does not run twice.

use crate::TAGS_MAX;
use nacre_types::Xid;

/// Number of requests between two sweeps for replies that the client has acknowledged.
const TRIM_INTERVAL: u32 = 256;

/// Decision for a modifying request that has arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begin<R> {
    /// Run it, then call [`ReplyCache::finish`].
    Execute,
    /// It, or the request before it in its slot, is running: wait until that has finished and ask again.
    Wait,
    /// It has run: this is its reply.
    Answered(R),
    /// Its client has received the reply long ago: ignore it.
    Stale,
    /// There is no such slot: the client violates the protocol.
    Refused,
}

#[derive(Debug)]
enum Slot<R> {
    Free,
    Running(u64),
    Done(u64, R),
}

/// Reply slots of one client, by tag. A reply is kept until the client acknowledges it (`acked`) or reuses
/// the tag.
#[derive(Debug)]
pub struct ReplyCache<R> {
    slots: Vec<Slot<R>>,
    /// Xid below which all requests are finished at the client.
    acked: u64,
    since_trim: u32,
}

impl<R> Default for ReplyCache<R> {
    fn default() -> ReplyCache<R> {
        ReplyCache { slots: Vec::new(), acked: 0, since_trim: 0 }
    }
}

impl<R: Clone> ReplyCache<R> {
    /// Decides what to do with a modifying request that has arrived, for the first time or again.
    pub fn begin(&mut self, tag: u16, xid: Xid, acked: Xid) -> Begin<R> {
        if tag >= TAGS_MAX {
            return Begin::Refused;
        }
        self.acked = self.acked.max(acked.0);
        self.since_trim += 1;
        if self.since_trim >= TRIM_INTERVAL {
            self.trim();
        }
        if xid.0 < self.acked {
            return Begin::Stale;
        }
        let index = usize::from(tag);
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || Slot::Free);
        }
        let slot = &mut self.slots[index];
        match slot {
            Slot::Running(running) if xid.0 >= *running => Begin::Wait,
            Slot::Done(done, reply) if xid.0 == *done => Begin::Answered(reply.clone()),
            Slot::Running(other) | Slot::Done(other, _) if xid.0 < *other => Begin::Stale,
            _ => {
                *slot = Slot::Running(xid.0);
                Begin::Execute
            }
        }
    }

    /// Returns true if the client has the reply to a request, as far as its later requests show.
    pub fn has_arrived(&self, tag: u16, xid: Xid) -> bool {
        let is_reused = match self.slots.get(usize::from(tag)) {
            Some(Slot::Running(other) | Slot::Done(other, _)) => *other > xid.0,
            Some(Slot::Free) | None => false,
        };
        xid.0 < self.acked || is_reused
    }

    /// Stores the reply of a request that was to be executed.
    pub fn finish(&mut self, tag: u16, xid: Xid, reply: R) {
        if let Some(slot) = self.running(tag, xid) {
            *slot = Slot::Done(xid.0, reply);
        }
    }

    /// Frees the slot of a request that ended without a reply to keep (it changed nothing): a resend runs it.
    pub fn forget(&mut self, tag: u16, xid: Xid) {
        if let Some(slot) = self.running(tag, xid) {
            *slot = Slot::Free;
        }
    }

    /// Drops replies that the client has acknowledged. Also runs automatically, every few hundred requests.
    pub fn trim(&mut self) {
        self.since_trim = 0;
        let acked = self.acked;
        for slot in &mut self.slots {
            if matches!(slot, Slot::Done(done, _) if *done < acked) {
                *slot = Slot::Free;
            }
        }
    }

    /// Returns the number of stored replies.
    pub fn stored(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Done(..))).count()
    }

    fn running(&mut self, tag: u16, xid: Xid) -> Option<&mut Slot<R>> {
        self.slots.get_mut(usize::from(tag)).filter(|slot| matches!(slot, Slot::Running(x) if *x == xid.0))
    }
}

#[cfg(test)]
mod tests;
