//! The server as single clients and small groups of them see it.

use super::*;
use crate::bits::InodeBits;
use crate::extent::Extent;
use crate::mode::ModeSet;
use crate::resource::EnqueueFlags;

mod local;
mod model;

const FILE: ResourceId = ResourceId([1, 2, 0, 0]);
const INODE: ResourceId = ResourceId([7, 1, 0, 0]);

/// Client `number`; 0 is the target itself.
fn peer(number: u8) -> Peer {
    if number == 0 {
        return Peer::LOCAL;
    }
    Peer { client: ClientUuid([number; 16]), generation: 1 }
}

fn pages(first: u64, count: u64) -> Extent {
    Extent { start: first * 4096, last: (first + count) * 4096 - 1 }
}

fn lvb(size_bytes: u64) -> Lvb {
    Lvb { size_bytes, ..Lvb::default() }
}

/// A server, a clock, and the effects so far.
struct World {
    server: LockServer,
    now: Instant,
    effects: Vec<Effect>,
}

impl World {
    fn new(clients: u8) -> World {
        World::with(ServerConfig::default(), clients)
    }

    fn with(config: ServerConfig, clients: u8) -> World {
        let mut world =
            World { server: LockServer::new(config, false), now: Instant::now(), effects: Vec::new() };
        for number in 1..=clients {
            world.server.on_connect(world.now, peer(number), &mut world.effects);
        }
        world
    }

    fn request(&mut self, from: Peer, request: Enqueue) -> Outcome {
        self.server.on_enqueue(self.now, from, &request, Some(lvb(0)), &mut self.effects)
    }

    fn enqueue(&mut self, client: u8, handle: u64, need: Need) -> Outcome {
        self.flagged(client, handle, need, EnqueueFlags::default())
    }

    fn flagged(&mut self, client: u8, handle: u64, need: Need, flags: EnqueueFlags) -> Outcome {
        let resource = if matches!(need.policy, Policy::Extent(_)) { FILE } else { INODE };
        let handle = LockHandle(handle);
        self.request(peer(client), Enqueue { handle, resource, need, optional: InodeBits::NONE, flags })
    }

    fn cancel(&mut self, client: u8, handle: u64) {
        self.server.on_cancel(self.now, peer(client), &[LockHandle(handle)], &mut self.effects);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.server.on_tick(self.now, &mut self.effects);
    }

    /// Returns the effects so far: `c` for completions, `b` for blocking callbacks, `g` for glimpses, `a` for
    /// their answers, `e` for evictions, with client and handle.
    fn sent(&mut self) -> Vec<(char, u8, u64)> {
        let describe = |effect: Effect| match effect {
            Effect::Completion { peer, handle, .. } => ('c', peer.client.0[0], handle.0),
            Effect::Callback { peer, handle, .. } => ('b', peer.client.0[0], handle.0),
            Effect::Glimpse { peer, handle, .. } => ('g', peer.client.0[0], handle.0),
            Effect::Glimpsed { peer, handle, .. } => ('a', peer.client.0[0], handle.0),
            Effect::Evict { peer } => ('e', peer.client.0[0], 0),
        };
        std::mem::take(&mut self.effects).into_iter().map(describe).collect()
    }
}

#[track_caller]
fn granted(outcome: Outcome) -> Need {
    match outcome {
        Outcome::Granted(grant) => grant.need,
        other => panic!("not granted: {other:?}"),
    }
}

fn write(extent: Extent) -> Need {
    Need::extent(Mode::Pw, extent)
}

fn read(extent: Extent) -> Need {
    Need::extent(Mode::Pr, extent)
}

#[test]
fn a_conflict_calls_the_holder_back_and_its_cancel_completes_the_waiter() {
    let mut world = World::new(2);
    assert_eq!(granted(world.enqueue(1, 1, write(pages(0, 1)))).policy, Policy::Extent(Extent::WHOLE));
    assert_eq!(world.enqueue(2, 1, read(pages(9, 1))), Outcome::Waiting);
    assert_eq!(world.sent(), [('b', 1, 1)]);
    world.cancel(1, 1);
    assert_eq!(world.sent(), [('c', 2, 1)]);
    world.cancel(2, 1);
    assert_eq!((world.server.locks(), world.server.resources()), (0, 0));
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn a_client_gives_up_all_that_it_holds_when_it_is_asked_to_although_nobody_waits() {
    let mut world = World::new(2);
    world.enqueue(1, 1, read(pages(0, 1)));
    world.enqueue(1, 2, Need { mode: Mode::Pr, policy: Policy::Bits(InodeBits::UPDATE), group: 0 });
    world.enqueue(2, 1, read(pages(0, 1)));
    for called in [&[('b', 1, 1), ('b', 1, 2)][..], &[]] {
        world.server.on_recall(world.now, &peer(1).client, &mut world.effects);
        assert_eq!(world.sent(), called);
    }
    world.cancel(1, 1);
    world.pass(world.server.config().callback_timeout);
    assert!(world.sent().contains(&('e', 1, 0)), "one that keeps a lock is late");
    assert_eq!(world.server.locks(), 1);
}

#[test]
fn waiters_are_served_in_order_and_those_who_do_not_conflict_may_pass() {
    let mut world = World::new(4);
    granted(world.flagged(
        1,
        1,
        write(pages(0, 4)),
        EnqueueFlags { no_expansion: true, ..Default::default() },
    ));
    assert_eq!(world.enqueue(2, 1, write(pages(0, 2))), Outcome::Waiting);
    assert_eq!(world.enqueue(3, 1, read(pages(1, 1))), Outcome::Waiting);
    // Beyond both: nothing conflicts, and growth stops at waiting requests.
    let passed = granted(world.enqueue(4, 1, write(pages(8, 1))));
    assert_eq!(passed.policy, Policy::Extent(Extent { start: 8 * 4096, last: Extent::EOF }));
    world.sent();
    world.cancel(1, 1);
    // The first waiting request is granted and at once revoked for the second.
    assert_eq!(world.sent(), [('c', 2, 1), ('b', 2, 1)]);
    world.cancel(2, 1);
    assert_eq!(world.sent(), [('c', 3, 1)]);
}

#[test]
fn readers_behind_a_waiting_writer_do_not_starve_it() {
    let mut world = World::new(3);
    granted(world.enqueue(1, 1, read(pages(0, 1))));
    assert_eq!(world.enqueue(2, 1, write(pages(0, 1))), Outcome::Waiting);
    assert_eq!(world.enqueue(3, 1, read(pages(0, 1))), Outcome::Waiting);
    world.sent();
    world.cancel(1, 1);
    assert_eq!(world.sent(), [('c', 2, 1), ('b', 2, 1)]);
}

#[test]
fn repeated_messages_change_nothing() {
    let mut world = World::new(2);
    let first = world.enqueue(1, 1, write(pages(0, 1)));
    assert_eq!(world.enqueue(1, 1, write(pages(0, 1))), first);
    assert_eq!(world.enqueue(2, 5, read(pages(0, 1))), Outcome::Waiting);
    assert_eq!(world.enqueue(2, 5, read(pages(0, 1))), Outcome::Waiting);
    assert_eq!(world.server.locks(), 2);
    assert_eq!(world.sent(), [('b', 1, 1)]);
    world.cancel(1, 1);
    world.cancel(1, 1);
    assert_eq!(world.sent(), [('c', 2, 5)]);
    // A handle that names one lock cannot name another.
    assert_eq!(world.enqueue(2, 5, write(pages(0, 1))), Outcome::Refused(Refusal::Invalid));
}

#[test]
fn a_client_that_does_not_answer_is_called_again_and_then_evicted_with_all_its_locks() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    granted(world.enqueue(1, 2, Need::bits(Mode::Ex, InodeBits::ALL)));
    assert_eq!(world.enqueue(2, 1, write(pages(0, 1))), Outcome::Waiting);
    world.sent();
    world.pass(Duration::from_secs(2));
    assert_eq!(world.sent(), [('b', 1, 1)]);
    world.pass(Duration::from_secs(18));
    assert_eq!(world.sent(), [('e', 1, 0), ('c', 2, 1)]);
    assert!(!world.server.is_current(peer(1)));
    assert_eq!(world.enqueue(1, 3, read(pages(0, 1))), Outcome::Refused(Refusal::Stale));
    granted(world.enqueue(2, 2, Need::bits(Mode::Ex, InodeBits::ALL)));
}

#[test]
fn activity_under_a_lock_prolongs_its_time_up_to_a_bound() {
    let config = ServerConfig { callback_total_max: Duration::from_secs(60), ..ServerConfig::default() };
    let mut world = World::with(config, 2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    world.enqueue(2, 1, write(pages(0, 1)));
    for _ in 0..5 {
        world.pass(Duration::from_secs(11));
        world.server.on_io(world.now, peer(1), &FILE, &pages(3, 1));
        assert!(world.server.is_current(peer(1)));
    }
    world.server.on_activity(world.now, peer(1), LockHandle(1));
    world.pass(Duration::from_secs(5));
    assert!(!world.server.is_current(peer(1)), "60 s are over");
}

#[test]
fn no_wait_is_refused_without_a_callback() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    let flags = EnqueueFlags { no_wait: true, ..EnqueueFlags::default() };
    assert_eq!(world.flagged(2, 1, read(pages(0, 1)), flags), Outcome::Refused(Refusal::WouldBlock));
    let agl = EnqueueFlags { no_wait: true, glimpse: true, ..EnqueueFlags::default() };
    assert_eq!(world.flagged(2, 2, read(pages(0, 1)), agl), Outcome::Refused(Refusal::WouldBlock));
    assert_eq!(world.sent(), []);
    assert_eq!(world.server.locks(), 1);
}

#[test]
fn members_of_a_group_share_and_get_in_past_those_who_wait_for_its_end() {
    let mut world = World::new(3);
    assert_eq!(granted(world.enqueue(1, 1, Need::group(9))).group, 9);
    assert_eq!(world.enqueue(2, 1, write(pages(0, 1))), Outcome::Waiting);
    granted(world.enqueue(3, 1, Need::group(9)));
    assert_eq!(world.enqueue(3, 2, Need::group(8)), Outcome::Waiting);
    // An operation of the target for one member does not wait for the others.
    let held = |client| world.server.group_held(peer(client), &FILE, &pages(3, 2));
    assert_eq!((held(1), held(2), held(3)), (Some(9), None, Some(9)));
    let request = Enqueue {
        handle: LockHandle(77),
        resource: FILE,
        need: Need { policy: Policy::Extent(pages(3, 2)), ..Need::group(9) },
        optional: InodeBits::NONE,
        flags: EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() },
    };
    let client = Some(peer(1).client);
    let mut effects = Vec::new();
    let own = world.server.on_local_enqueue(world.now, &request, client, None, &mut effects);
    assert!(matches!(own, Outcome::Granted(_)) && effects.is_empty());
    world.server.on_cancel(world.now, Peer::LOCAL, &[request.handle], &mut effects);
    // Groups get callbacks that check whether their locks still exist, but no deadline.
    world.pass(Duration::from_secs(3600));
    let called = world.sent();
    assert!(called.iter().all(|(kind, ..)| *kind == 'b'), "{called:?}");
    assert!(world.server.is_current(peer(1)) && world.server.is_current(peer(3)));
    world.cancel(1, 1);
    world.cancel(3, 1);
    // The write lock is granted, and revoked for the other group.
    assert_eq!(world.sent(), [('c', 2, 1), ('b', 2, 1)]);
}

#[test]
fn inode_bits_conflict_only_with_themselves_and_optional_ones_are_left_out_when_taken() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, Need::bits(Mode::Ex, InodeBits::LAYOUT)));
    let request = Enqueue {
        handle: LockHandle(1),
        resource: INODE,
        need: Need::bits(Mode::Pr, InodeBits::LOOKUP),
        optional: InodeBits::LAYOUT.union(InodeBits::PERM),
        flags: EnqueueFlags::default(),
    };
    let lock = granted(world.request(peer(2), request));
    assert_eq!(lock.policy, Policy::Bits(InodeBits::LOOKUP.union(InodeBits::PERM)));
    assert_eq!(world.sent(), []);
}

#[test]
fn dropping_bits_lets_the_waiter_in_and_late_conversions_do_not_bring_them_back() {
    let mut world = World::new(2);
    let all = InodeBits::LOOKUP.union(InodeBits::UPDATE).union(InodeBits::PERM);
    granted(world.enqueue(1, 1, Need::bits(Mode::Pr, all)));
    assert_eq!(world.enqueue(2, 1, Need::bits(Mode::Pw, InodeBits::UPDATE)), Outcome::Waiting);
    let Some(Effect::Callback { wanted, .. }) = world.effects.first().copied() else {
        panic!("called back: {:?}", world.effects)
    };
    assert_eq!(wanted.policy, Policy::Bits(InodeBits::UPDATE));
    assert_eq!(wanted.modes, ModeSet::only(Mode::Pw));
    world.sent();
    // A second request needs another bit before the first is given up: the callback is resent with both.
    assert_eq!(world.enqueue(2, 2, Need::bits(Mode::Pw, InodeBits::PERM)), Outcome::Waiting);
    assert_eq!(world.sent(), [('b', 1, 1)]);
    let keep = Policy::Bits(InodeBits::LOOKUP.union(InodeBits::PERM));
    let converted =
        world.server.on_convert(world.now, peer(1), LockHandle(1), Mode::Pr, &keep, &mut world.effects);
    assert_eq!(converted, Ok(()));
    assert_eq!(world.sent(), [('c', 2, 1), ('b', 1, 1)]);
    let keep = Policy::Bits(all);
    let repeated =
        world.server.on_convert(world.now, peer(1), LockHandle(1), Mode::Pr, &keep, &mut world.effects);
    assert_eq!(repeated, Ok(()));
    let held = world.server.granted(peer(1), LockHandle(1)).expect("held");
    assert_eq!(held.policy, Policy::Bits(InodeBits::LOOKUP.union(InodeBits::PERM)));
}

#[test]
fn a_writer_that_becomes_a_reader_lets_readers_in() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(world.enqueue(2, 1, read(pages(0, 1))), Outcome::Waiting);
    world.sent();
    let whole = Policy::Extent(Extent::WHOLE);
    let mut convert =
        |mode| world.server.on_convert(world.now, peer(1), LockHandle(1), mode, &whole, &mut world.effects);
    assert_eq!(convert(Mode::Group), Err(Refusal::Invalid));
    assert_eq!(convert(Mode::Pr), Ok(()));
    assert_eq!(convert(Mode::Pr), Ok(()));
    // A stronger mode has no effect and is no error: it may be an old message.
    assert_eq!(convert(Mode::Pw), Ok(()));
    assert_eq!(world.sent(), [('c', 2, 1)]);
    assert_eq!(world.server.granted(peer(1), LockHandle(1)).map(|held| held.mode), Some(Mode::Pr));
}

#[test]
fn a_fight_turns_into_refusals_for_those_who_can_do_without() {
    let mut world = World::new(2);
    let deny = EnqueueFlags { deny_on_contention: true, ..EnqueueFlags::default() };
    granted(world.flagged(1, 1, write(pages(0, 1)), deny));
    for round in 0..16u64 {
        let (holder, waiter) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        assert_eq!(world.flagged(waiter, round + 2, write(pages(0, 1)), deny), Outcome::Waiting, "{round}");
        world.cancel(holder, round + 1);
        world.now += Duration::from_millis(200);
    }
    let refused = world.flagged(2, 100, write(pages(0, 1)), deny);
    assert!(
        matches!(refused, Outcome::Refused(Refusal::Contended { for_ms }) if for_ms > 29_000),
        "{refused:?}"
    );
    // Other clients still get locks, and after a while all do.
    assert_eq!(world.enqueue(2, 101, write(pages(0, 1))), Outcome::Waiting);
    world.cancel(2, 101);
    world.cancel(1, 17);
    assert_eq!(world.server.resources(), 1, "contention is remembered");
    world.pass(Duration::from_secs(31));
    assert_eq!(world.server.resources(), 0);
    granted(world.flagged(2, 102, write(pages(0, 1)), deny));
}

#[test]
fn slow_conflicts_are_no_contention() {
    let mut world = World::new(2);
    let deny = EnqueueFlags { deny_on_contention: true, ..EnqueueFlags::default() };
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    for round in 0..40u64 {
        let (holder, waiter) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        assert_eq!(world.flagged(waiter, round + 2, write(pages(0, 1)), deny), Outcome::Waiting, "{round}");
        world.cancel(holder, round + 1);
        world.now += Duration::from_millis(300);
    }
}

#[test]
fn a_glimpse_is_granted_when_nobody_writes_and_asks_the_highest_writer_otherwise() {
    let mut world = World::new(3);
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    granted(world.flagged(3, 1, read(Extent::WHOLE), glimpse));
    world.cancel(3, 1);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(world.enqueue(2, 1, write(pages(100, 1))), Outcome::Waiting);
    assert_eq!(world.enqueue(1, 2, write(pages(0, 1))), Outcome::Waiting);
    world.cancel(1, 1);
    assert!(world.server.granted(peer(2), LockHandle(1)).is_some());
    assert!(world.server.granted(peer(1), LockHandle(2)).is_some());
    world.sent();
    assert_eq!(world.flagged(3, 2, read(Extent::WHOLE), glimpse), Outcome::Waiting);
    let Some(Effect::Glimpse { peer: asked, glimpse: id, .. }) = world.effects.first().copied() else {
        panic!("asked: {:?}", world.effects)
    };
    assert_eq!(world.sent(), [('g', 2, 1)]);
    let answer = Some(lvb(101 * 4096));
    world.server.on_glimpse_answer(world.now, asked, id, LockHandle(1), answer, &mut world.effects);
    let Some(Effect::Glimpsed { lvb, .. }) = world.effects.first() else {
        panic!("answered: {:?}", world.effects)
    };
    assert_eq!(lvb.size_bytes, 101 * 4096);
    assert_eq!(world.server.client_locks(&peer(3).client), 0);
}

#[test]
fn a_glimpse_goes_on_below_a_writer_that_has_not_written_yet() {
    let mut world = World::new(3);
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(world.enqueue(2, 1, write(pages(100, 1))), Outcome::Waiting);
    assert_eq!(world.enqueue(1, 2, write(pages(0, 1))), Outcome::Waiting);
    world.cancel(1, 1);
    assert!(world.server.granted(peer(2), LockHandle(1)).is_some());
    assert!(world.server.granted(peer(1), LockHandle(2)).is_some());
    world.sent();
    assert_eq!(world.flagged(3, 2, read(Extent::WHOLE), glimpse), Outcome::Waiting);
    let id = GlimpseId(1);
    assert_eq!(world.sent(), [('g', 2, 1)]);
    world.server.on_glimpse_answer(world.now, peer(2), id, LockHandle(1), Some(lvb(0)), &mut world.effects);
    assert_eq!(world.sent(), [('g', 1, 2)]);
    // The lock is cancelled meanwhile: what its holder wrote has reached the object.
    world.server.update_lvb(&FILE, |known| *known = lvb(50));
    world.cancel(1, 2);
    assert!(
        matches!(world.effects[0], Effect::Glimpsed { lvb, .. } if lvb.size_bytes == 50),
        "{:?}",
        world.effects
    );
}

#[test]
fn a_client_that_has_lost_one_lock_is_asked_for_its_others() {
    let mut world = World::new(2);
    let ahead = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    granted(world.flagged(1, 1, write(pages(0, 1)), ahead));
    granted(world.flagged(1, 2, write(pages(9, 1)), ahead));
    assert_eq!(world.flagged(2, 1, read(Extent::WHOLE), glimpse), Outcome::Waiting);
    assert_eq!(world.sent(), [('g', 1, 2)]);
    // The cancel of the upper lock was lost.
    let (id, now) = (GlimpseId(1), world.now);
    world.server.on_glimpse_answer(now, peer(1), id, LockHandle(2), None, &mut world.effects);
    assert_eq!(world.sent(), [('g', 1, 1)]);
    assert_eq!(world.server.client_locks(&peer(1).client), 1);
    world.server.on_glimpse_answer(now, peer(1), id, LockHandle(1), Some(lvb(77)), &mut world.effects);
    assert!(matches!(world.effects[0], Effect::Glimpsed { lvb, .. } if lvb.size_bytes == 77));
}

#[test]
fn locks_below_the_known_size_are_not_asked_and_lock_ahead_does_not_end_the_search() {
    let mut world = World::new(4);
    let ahead = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    for (client, first) in [(1, 0), (2, 10), (3, 20)] {
        granted(world.flagged(client, 1, write(pages(first, 1)), ahead));
    }
    world.server.update_lvb(&FILE, |known| *known = lvb(4096));
    assert_eq!(world.flagged(4, 1, read(Extent::WHOLE), glimpse), Outcome::Waiting);
    assert_eq!(world.sent(), [('g', 3, 1), ('g', 2, 1)]);
    world.server.update_lvb(&FILE, |known| *known = lvb(1 << 30));
    let known = world.flagged(4, 2, read(Extent::WHOLE), glimpse);
    assert_eq!(known, Outcome::Glimpsed(lvb(1 << 30)));
}

#[test]
fn who_does_not_answer_a_glimpse_is_evicted_and_the_rest_goes_on() {
    let mut world = World::new(2);
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(world.flagged(2, 1, read(Extent::WHOLE), glimpse), Outcome::Waiting);
    world.pass(Duration::from_secs(20));
    let sent = world.sent();
    assert_eq!(sent.first(), Some(&('g', 1, 1)));
    assert_eq!(sent[sent.len() - 2..], [('e', 1, 0), ('a', 2, 1)]);
    assert_eq!((world.server.locks(), world.server.resources()), (0, 0));
    assert_eq!(world.server.next_deadline(), None);
}

#[test]
fn bounds_are_refusals() {
    let config = ServerConfig { locks_per_client_max: 2, locks_max: 3, ..ServerConfig::default() };
    let mut world = World::with(config, 2);
    granted(world.enqueue(1, 1, read(pages(0, 1))));
    granted(world.enqueue(1, 2, read(pages(0, 1))));
    assert_eq!(world.enqueue(1, 3, read(pages(0, 1))), Outcome::Refused(Refusal::TooMany));
    granted(world.enqueue(2, 1, read(pages(0, 1))));
    assert_eq!(world.enqueue(2, 2, read(pages(0, 1))), Outcome::Refused(Refusal::TooMany));
    world.cancel(1, 1);
    granted(world.enqueue(2, 2, read(pages(0, 1))));
}

#[test]
fn requests_that_make_no_sense_are_refused_and_leave_nothing() {
    let mut world = World::new(1);
    let invalid = Outcome::Refused(Refusal::Invalid);
    assert_eq!(world.enqueue(1, 0, read(pages(0, 1))), invalid);
    assert_eq!(world.enqueue(1, 1, read(Extent { start: 9, last: 1 })), invalid);
    assert_eq!(world.enqueue(1, 1, Need::bits(Mode::Pr, InodeBits::NONE)), invalid);
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    assert_eq!(world.flagged(1, 1, Need::bits(Mode::Pr, InodeBits::ALL), glimpse), invalid);
    assert_eq!(world.server.resources(), 0);
    granted(world.enqueue(1, 1, read(pages(0, 1))));
    let request = Enqueue {
        handle: LockHandle(2),
        resource: FILE,
        need: Need::bits(Mode::Pr, InodeBits::ALL),
        optional: InodeBits::NONE,
        flags: EnqueueFlags::default(),
    };
    assert_eq!(world.request(peer(1), request), invalid);
    assert_eq!(world.request(Peer::LOCAL, request), Outcome::Refused(Refusal::Stale));
    assert_eq!(world.request(peer(9), request), Outcome::Refused(Refusal::Stale));
}

#[test]
fn the_target_locks_on_behalf_of_a_client_beside_that_clients_own_locks() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, Need::bits(Mode::Pr, InodeBits::UPDATE)));
    granted(world.enqueue(2, 1, Need::bits(Mode::Pr, InodeBits::UPDATE)));
    let request = Enqueue {
        handle: world.server.local_handle(),
        resource: INODE,
        need: Need::bits(Mode::Pw, InodeBits::UPDATE),
        optional: InodeBits::NONE,
        flags: EnqueueFlags::default(),
    };
    let (now, on_behalf_of) = (world.now, Some(peer(1).client));
    let outcome = world.server.on_local_enqueue(now, &request, on_behalf_of, None, &mut world.effects);
    assert_eq!(outcome, Outcome::Waiting);
    assert_eq!(world.sent(), [('b', 2, 1)]);
    world.cancel(2, 1);
    assert_eq!(world.sent(), [('c', 0, 1)]);
    // Clients wait for the target's lock, which is not revoked.
    assert_eq!(world.enqueue(2, 2, Need::bits(Mode::Pr, InodeBits::UPDATE)), Outcome::Waiting);
    assert_eq!(world.sent(), []);
    world.server.on_cancel(world.now, Peer::LOCAL, &[request.handle], &mut world.effects);
    assert_eq!(world.sent(), [('c', 2, 2)]);
}

#[test]
fn locks_are_replayed_before_anything_else_is_granted() {
    let mut world = World::new(0);
    world.server = LockServer::new(ServerConfig::default(), true);
    for number in 1..=3 {
        world.server.on_connect(world.now, peer(number), &mut world.effects);
    }
    let whole = write(Extent::WHOLE);
    assert_eq!(world.enqueue(2, 1, read(pages(0, 1))), Outcome::Waiting);
    let glimpse = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    let outcome = world.flagged(2, 2, read(Extent::WHOLE), glimpse);
    assert_eq!(outcome, Outcome::Refused(Refusal::Recovering));
    let replay = |world: &mut World, number, need| {
        world.server.on_replay(peer(number), LockHandle(7), &FILE, &need, Some(lvb(5)))
    };
    assert_eq!(granted(replay(&mut world, 1, whole)), whole);
    assert_eq!(granted(replay(&mut world, 1, whole)), whole);
    let conflict = replay(&mut world, 3, read(pages(0, 1)));
    assert_eq!(conflict, Outcome::Refused(Refusal::ReplayRefused));
    assert_eq!(world.sent(), []);
    world.server.end_recovery(world.now, &mut world.effects);
    assert_eq!(world.sent(), [('b', 1, 7)]);
    world.cancel(1, 7);
    assert_eq!(world.sent(), [('c', 2, 1)]);
    let late = replay(&mut world, 3, read(pages(0, 1)));
    assert_eq!(late, Outcome::Refused(Refusal::ReplayRefused));
}

#[test]
fn a_new_generation_drops_what_the_old_one_held() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(world.enqueue(2, 1, write(pages(0, 1))), Outcome::Waiting);
    world.sent();
    world.server.on_connect(world.now, peer(1), &mut world.effects);
    assert_eq!(world.sent(), [], "the same generation again is no news");
    let newer = Peer { generation: 2, ..peer(1) };
    world.server.on_connect(world.now, newer, &mut world.effects);
    assert_eq!(world.sent(), [('c', 2, 1)]);
    assert!(world.server.is_current(newer) && !world.server.is_current(peer(1)));
}

#[test]
fn what_a_client_sends_is_believed_only_under_a_lock() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert!(world.server.is_held(peer(1), &FILE, &write(pages(7, 1))));
    assert!(world.server.is_held(peer(1), &FILE, &read(pages(7, 1))));
    assert!(!world.server.is_held(peer(2), &FILE, &read(pages(7, 1))));
    world.cancel(1, 1);
    assert!(!world.server.is_held(peer(1), &FILE, &write(pages(7, 1))));
}

#[test]
fn records_in_turn_by_two_clients_settle_on_locks_that_do_not_touch() {
    // Two processes that write 1 MiB records alternately into one file.
    let mut world = World::new(2);
    let record = |index: u64| write(Extent { start: index << 20, last: ((index + 1) << 20) - 1 });
    let (mut callbacks, mut handle) = (0, 0);
    let mut held: Vec<(u8, u64)> = Vec::new();
    for index in 0..64u64 {
        let client = 1 + (index % 2) as u8;
        if world.server.is_held(peer(client), &FILE, &record(index)) {
            continue;
        }
        handle += 1;
        let mut outcome = world.enqueue(client, handle, record(index));
        while outcome == Outcome::Waiting {
            for (kind, other, lock) in world.sent() {
                if kind == 'b' {
                    callbacks += 1;
                    world.cancel(other, lock);
                    held.retain(|known| *known != (other, lock));
                }
            }
            outcome = world.enqueue(client, handle, record(index));
        }
        granted(outcome);
        held.push((client, handle));
    }
    assert!(callbacks <= 64, "{callbacks} callbacks for 64 records");
}

#[test]
fn what_lies_under_several_locks_of_a_client_is_believed_if_there_is_no_gap() {
    let mut world = World::new(2);
    let tight = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
    for (handle, page) in [(1, 0), (2, 1), (3, 3)] {
        granted(world.flagged(1, handle, write(pages(page, 1)), tight));
    }
    granted(world.flagged(2, 1, write(pages(2, 1)), tight));
    assert!(world.server.is_held(peer(1), &FILE, &write(pages(0, 2))));
    assert!(world.server.is_held(peer(1), &FILE, &write(Extent { start: 5000, last: 8191 })));
    assert!(!world.server.is_held(peer(1), &FILE, &write(pages(0, 4))), "a page between is another client's");
    assert!(!world.server.is_held(peer(1), &FILE, &write(pages(3, 2))), "the last one covers a page");
}

#[test]
fn a_report_names_what_is_in_the_way_of_each_waiting_request() {
    let mut world = World::new(3);
    let write = Need::extent(Mode::Pw, pages(0, 4));
    world.enqueue(1, 11, write);
    world.enqueue(2, 12, write);
    world.enqueue(3, 13, write);
    world.pass(Duration::from_secs(3));
    let waiting = waits(&world.server, world.now);
    let mut found: Vec<(u64, Vec<(u64, bool)>)> = waiting
        .iter()
        .map(|wait| (wait.handle.0, wait.blockers.iter().map(|one| (one.handle.0, one.is_granted)).collect()))
        .collect();
    found.sort();
    assert_eq!(found, [(12, vec![(11, true)]), (13, vec![(11, true), (12, false)])]);
    let holder = &waiting[0].blockers[0];
    assert_eq!((holder.peer, holder.called_for), (peer(1), Some(Duration::from_secs(3))));
    assert!(holder.evicted_in.is_some_and(|left| left <= Duration::from_secs(17)), "{holder:?}");
    world.cancel(1, 11);
    assert_eq!(waits(&world.server, world.now).len(), 1, "the second one has the lock");
}

#[test]
fn a_report_names_the_writer_that_a_glimpse_waits_for() {
    let mut world = World::new(2);
    world.enqueue(1, 11, Need::extent(Mode::Pw, pages(0, 4)));
    let outcome = world.server.on_local_glimpse(world.now, LockHandle(99), &FILE, None, &mut world.effects);
    assert!(matches!(outcome, Outcome::Waiting), "{outcome:?}");
    let waiting = waits(&world.server, world.now);
    assert_eq!(waiting.len(), 1);
    assert_eq!((waiting[0].handle, waiting[0].blockers[0].peer), (LockHandle(99), peer(1)));
}
