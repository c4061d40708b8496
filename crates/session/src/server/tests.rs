use super::*;
use crate::client::{Requests, Ticket};
use proptest::prelude::*;
use std::collections::HashMap;

#[test]
fn a_resend_gets_the_stored_reply() {
    let mut cache = ReplyCache::default();
    assert_eq!(cache.begin(3, Xid(10), Xid(10)), Begin::Execute);
    assert_eq!(cache.begin(3, Xid(10), Xid(10)), Begin::Wait);
    cache.finish(3, Xid(10), "made");
    assert_eq!(cache.begin(3, Xid(10), Xid(10)), Begin::Answered("made"));
    assert_eq!(cache.begin(3, Xid(11), Xid(11)), Begin::Execute);
    assert_eq!(cache.begin(3, Xid(10), Xid(10)), Begin::Stale);
}

#[test]
fn the_next_request_of_a_slot_waits_for_the_one_before() {
    let mut cache = ReplyCache::default();
    assert_eq!(cache.begin(0, Xid(1), Xid(1)), Begin::Execute);
    assert_eq!(cache.begin(0, Xid(2), Xid(2)), Begin::Wait);
    cache.finish(0, Xid(1), ());
    assert_eq!(cache.begin(0, Xid(2), Xid(2)), Begin::Execute);
}

#[test]
fn a_reply_has_arrived_if_the_client_acknowledges_it_or_uses_its_slot_again() {
    let mut cache = ReplyCache::default();
    for (tag, xid) in [(0, 1), (1, 2)] {
        assert_eq!(cache.begin(tag, Xid(xid), Xid(1)), Begin::Execute);
        cache.finish(tag, Xid(xid), ());
    }
    assert!(!cache.has_arrived(0, Xid(1)) && !cache.has_arrived(1, Xid(2)) && !cache.has_arrived(7, Xid(1)));
    assert_eq!(cache.begin(1, Xid(3), Xid(1)), Begin::Execute);
    assert!(!cache.has_arrived(0, Xid(1)) && cache.has_arrived(1, Xid(2)) && !cache.has_arrived(1, Xid(3)));
    assert_eq!(cache.begin(2, Xid(4), Xid(3)), Begin::Execute);
    assert!(cache.has_arrived(0, Xid(1)) && !cache.has_arrived(1, Xid(3)));
}

#[test]
fn a_request_that_did_nothing_may_run_again() {
    let mut cache = ReplyCache::<()>::default();
    assert_eq!(cache.begin(0, Xid(1), Xid(1)), Begin::Execute);
    cache.forget(0, Xid(1));
    assert_eq!(cache.begin(0, Xid(1), Xid(1)), Begin::Execute);
}

#[test]
fn slots_are_bounded_and_acknowledged_replies_go() {
    let mut cache = ReplyCache::default();
    assert_eq!(cache.begin(TAGS_MAX, Xid(1), Xid(0)), Begin::Refused);
    for tag in 0..TAGS_MAX {
        let xid = Xid(u64::from(tag) + 1);
        assert_eq!(cache.begin(tag, xid, Xid(1)), Begin::Execute);
        cache.finish(tag, xid, ());
    }
    assert_eq!(cache.stored(), usize::from(TAGS_MAX));
    assert_eq!(cache.begin(0, Xid(1000), Xid(1000)), Begin::Execute);
    cache.trim();
    assert_eq!(cache.stored(), 0);
    assert_eq!(cache.begin(5, Xid(6), Xid(6)), Begin::Stale, "acknowledged, so it cannot be a resend");
}

/// One step of a faulty network and its client.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client starts a request.
    Send,
    /// The network delivers one of its messages, and keeps it for another delivery if `keep`.
    Deliver { pick: usize, keep: bool },
    /// A running request finishes at the server, and its reply may get lost.
    Finish { pick: usize, lost: bool },
    /// The client resends an unanswered request.
    Resend { pick: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => Just(Step::Send),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(pick, keep)| Step::Deliver { pick, keep }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(pick, lost)| Step::Finish { pick, lost }),
        2 => any::<usize>().prop_map(|pick| Step::Resend { pick }),
    ];
    prop::collection::vec(step, 0..400)
}

struct World {
    requests: Requests,
    cache: ReplyCache<u64>,
    network: Vec<(Ticket, Xid)>,
    unanswered: Vec<Ticket>,
    running: Vec<Ticket>,
    executed: HashMap<u64, u32>,
}

impl World {
    fn answer(&mut self, ticket: Ticket, reply: u64) {
        assert_eq!(reply, ticket.xid.0, "a reply belongs to its request");
        self.requests.finish(ticket.xid);
        self.unanswered.retain(|t| t.xid != ticket.xid);
    }

    fn deliver(&mut self, ticket: Ticket, acked: Xid) {
        let tag = ticket.tag.expect("all requests here modify");
        match self.cache.begin(tag, ticket.xid, acked) {
            Begin::Execute => {
                *self.executed.entry(ticket.xid.0).or_default() += 1;
                self.running.push(ticket);
            }
            Begin::Answered(reply) => self.answer(ticket, reply),
            Begin::Wait => self.network.push((ticket, acked)),
            Begin::Stale => {
                assert!(!self.unanswered.contains(&ticket), "a request that is waited for is never stale");
            }
            Begin::Refused => panic!("tags come from the client half"),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send => {
                if let Some(ticket) = self.requests.begin(true) {
                    self.unanswered.push(ticket);
                    self.network.push((ticket, self.requests.acked()));
                }
            }
            Step::Deliver { pick, keep } => {
                if !self.network.is_empty() {
                    let index = pick % self.network.len();
                    let (ticket, acked) = self.network[index];
                    if !keep {
                        self.network.swap_remove(index);
                    }
                    self.deliver(ticket, acked);
                }
            }
            Step::Finish { pick, lost } => {
                if !self.running.is_empty() {
                    let ticket = self.running.swap_remove(pick % self.running.len());
                    self.cache.finish(ticket.tag.expect("modifies"), ticket.xid, ticket.xid.0);
                    if !lost {
                        self.answer(ticket, ticket.xid.0);
                    }
                }
            }
            Step::Resend { pick } => {
                if !self.unanswered.is_empty() {
                    let ticket = self.unanswered[pick % self.unanswered.len()];
                    self.network.push((ticket, self.requests.acked()));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn every_request_runs_at_most_once_and_is_answered_in_the_end(steps in steps()) {
        let mut world = World {
            requests: Requests::new(1),
            cache: ReplyCache::default(),
            network: Vec::new(),
            unanswered: Vec::new(),
            running: Vec::new(),
            executed: HashMap::new(),
        };
        for step in steps {
            world.step(step);
        }
        // The network recovers: pending requests are resent until they are answered.
        for _ in 0..4 {
            while let Some(ticket) = world.running.pop() {
                world.cache.finish(ticket.tag.expect("modifies"), ticket.xid, ticket.xid.0);
            }
            for ticket in world.unanswered.clone() {
                let acked = world.requests.acked();
                world.deliver(ticket, acked);
            }
        }
        prop_assert!(world.unanswered.is_empty());
        prop_assert!(world.executed.values().all(|&count| count == 1));
    }
}
