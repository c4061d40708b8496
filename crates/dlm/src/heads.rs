//! Order in which a target executes the changes that clients replay: that of their numbers, whichever client sends
//! them. Each client has sent one change that is next; the earliest of these is executed once all clients that may
//! still replay have sent one.

use nacre_env::sync::Condvar;
use nacre_types::{ClientUuid, TransNo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The next change of each client, under the lock of the owner.
#[derive(Default)]
pub struct Heads {
    heads: BTreeMap<ClientUuid, Head>,
    /// Requests so far.
    requests: u64,
}

struct Head {
    number: TransNo,
    request: u64,
    woken: Arc<Condvar>,
}

/// Place of a request in the order, until [`Heads::leave`].
pub struct Ticket {
    client: ClientUuid,
    request: u64,
    /// Notified when the change of this request may have become the first. Used with the lock of the owner.
    pub woken: Arc<Condvar>,
}

impl Heads {
    /// Enters a request of a client, whose next change has this number, in the place of an earlier request, of a
    /// connection that was lost.
    pub fn enter(&mut self, client: ClientUuid, number: TransNo) -> Ticket {
        self.requests += 1;
        let (request, woken) = (self.requests, Arc::new(Condvar::new()));
        if let Some(before) = self.heads.insert(client, Head { number, request, woken: woken.clone() }) {
            before.woken.notify_all();
        }
        self.wake_first();
        Ticket { client, request, woken }
    }

    /// Moves on to a later change of the same request. False if a newer request has taken its place.
    pub fn advance(&mut self, ticket: &Ticket, number: TransNo) -> bool {
        let Some(head) = self.heads.get_mut(&ticket.client).filter(|head| head.request == ticket.request)
        else {
            return false;
        };
        if head.number != number {
            head.number = number;
            self.wake_first();
        }
        true
    }

    /// Removes a request, unless a newer one has taken its place.
    pub fn leave(&mut self, ticket: &Ticket) {
        if self.heads.get(&ticket.client).is_some_and(|head| head.request == ticket.request) {
            self.heads.remove(&ticket.client);
        }
        self.wake_first();
    }

    /// Returns true if the change of this request is the earliest, and each client that is `awaited` has sent one.
    pub fn is_first(&self, ticket: &Ticket, awaited: &[ClientUuid]) -> bool {
        let first = self.heads.values().min_by_key(|head| head.number);
        self.is_complete(awaited) && first.is_some_and(|head| head.request == ticket.request)
    }

    /// Returns true if no client that is `awaited` may still send an earlier change than the known ones.
    pub fn is_complete(&self, awaited: &[ClientUuid]) -> bool {
        awaited.iter().all(|client| self.heads.contains_key(client))
    }

    /// Returns the number of the earliest change.
    pub fn first(&self) -> Option<TransNo> {
        self.heads.values().map(|head| head.number).min()
    }

    /// Wakes the request with the earliest change alone: others have nothing to do.
    pub fn wake_first(&self) {
        if let Some(head) = self.heads.values().min_by_key(|head| head.number) {
            head.woken.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ClientUuid = ClientUuid([1; 16]);
    const B: ClientUuid = ClientUuid([2; 16]);

    #[test]
    fn the_earliest_change_is_first_once_no_client_may_have_an_earlier_one() {
        let mut heads = Heads::default();
        let a = heads.enter(A, TransNo(12));
        assert!(!heads.is_first(&a, &[A, B]), "B has sent none");
        let b = heads.enter(B, TransNo(11));
        assert!(heads.is_first(&b, &[A, B]) && !heads.is_first(&a, &[A, B]));
        assert!(heads.advance(&b, TransNo(13)));
        assert!(heads.is_first(&a, &[A, B]));
        heads.leave(&a);
        assert!(!heads.is_first(&b, &[A, B]), "A may have another one");
        assert!(heads.is_first(&b, &[B]));
    }

    #[test]
    fn a_newer_request_of_a_client_takes_the_place_of_one_of_a_lost_connection() {
        let mut heads = Heads::default();
        let old = heads.enter(A, TransNo(5));
        let new = heads.enter(A, TransNo(5));
        assert!(!heads.is_first(&old, &[A]) && heads.is_first(&new, &[A]));
        assert!(!heads.advance(&old, TransNo(6)));
        heads.leave(&old);
        assert_eq!(heads.first(), Some(TransNo(5)));
    }
}
