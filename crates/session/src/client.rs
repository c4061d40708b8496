//! Requests of a client that are in flight to one target.

use crate::TAGS_MAX;
use nacre_types::Xid;
use std::collections::VecDeque;

/// Numbers of a request; a resend uses the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Request number, unique for this client and target.
    pub xid: Xid,
    /// Reply slot of a modifying request.
    pub tag: Option<u16>,
}

/// Assigns xids and tags, and knows the lowest xid in flight.
#[derive(Debug)]
pub struct Requests {
    next_xid: u64,
    /// Requests in flight, by xid. There are as many as waiting threads, so a list is as fast as a tree, and
    /// it keeps its memory.
    under_way: VecDeque<(u64, Option<u16>)>,
    /// Free tags. The one that became free last is used next: that tells the server soon that its reply arrived, and
    /// servers keep few slots for clients with few requests in flight.
    free: Vec<u16>,
}

impl Requests {
    /// Creates the state without requests. `first_xid` is at least 1; a client that may have connected before
    /// under the same identity must choose it above every xid that it used.
    pub fn new(first_xid: u64) -> Requests {
        let free = (0..TAGS_MAX).rev().collect();
        Requests { next_xid: first_xid.max(1), under_way: VecDeque::new(), free }
    }

    /// Starts a request; `None` if it modifies and all tags are in use (wait for one to finish).
    pub fn begin(&mut self, modifying: bool) -> Option<Ticket> {
        let tag = if modifying { Some(self.free.pop()?) } else { None };
        let xid = self.next_xid;
        self.next_xid += 1;
        self.under_way.push_back((xid, tag));
        Some(Ticket { xid: Xid(xid), tag })
    }

    /// Ends a request that has its reply, or will never be resent. Returns true if a tag became free.
    pub fn finish(&mut self, xid: Xid) -> bool {
        let Ok(index) = self.under_way.binary_search_by_key(&xid.0, |(xid, _)| *xid) else { return false };
        match self.under_way.remove(index) {
            Some((_, Some(tag))) => {
                debug_assert!(!self.free.contains(&tag));
                self.free.push(tag);
                true
            }
            _ => false,
        }
    }

    /// Returns the xid below which all requests are finished: the server may drop their replies.
    pub fn acked(&self) -> Xid {
        Xid(self.under_way.front().map_or(self.next_xid, |(xid, _)| *xid))
    }

    /// Returns the number of requests in flight.
    pub fn len(&self) -> usize {
        self.under_way.len()
    }

    /// True if no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn xids_grow_and_the_lowest_outstanding_one_is_known() {
        let mut requests = Requests::new(1);
        let a = requests.begin(true).expect("free");
        let b = requests.begin(false).expect("free");
        assert!(a.xid < b.xid);
        assert_eq!((a.tag, b.tag), (Some(0), None));
        assert_eq!(requests.acked(), a.xid);
        assert!(requests.finish(a.xid));
        assert!(!requests.finish(a.xid), "a second finish changes nothing");
        assert_eq!(requests.acked(), b.xid);
        assert!(!requests.finish(b.xid));
        assert_eq!(requests.acked(), Xid(3));
        assert!(requests.is_empty());
    }

    #[test]
    fn the_tag_of_the_last_reply_is_used_next() {
        let mut requests = Requests::new(1);
        let [post, change, _other] = [(); 3].map(|()| requests.begin(true).expect("free"));
        requests.finish(change.xid);
        assert_eq!(requests.begin(true).expect("free").tag, change.tag);
        requests.finish(post.xid);
        assert_eq!(requests.begin(true).expect("free").tag, post.tag);
    }

    #[test]
    fn tags_are_bounded_and_come_back() {
        let mut requests = Requests::new(1);
        let all: Vec<_> = (0..TAGS_MAX).map(|_| requests.begin(true).expect("free")).collect();
        assert_eq!(requests.begin(true), None);
        assert!(requests.begin(false).is_some(), "reading requests need no tag");
        requests.finish(all[77].xid);
        assert_eq!(requests.begin(true).expect("one came back").tag, Some(77));
    }
}
