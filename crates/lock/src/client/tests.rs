//! Reactions of the lock cache to each message.

use super::*;
use crate::extent::Extent;
use crate::resource::{LockGrant, Outcome};

const OBJECT: ResourceId = ResourceId([1, 2, 0, 0]);
const INODE: ResourceId = ResourceId([7, 1, 0, 0]);

fn pages(first: u64, count: u64) -> Extent {
    Extent { start: first * 4096, last: (first + count) * 4096 - 1 }
}

fn read(extent: Extent) -> Need {
    Need::extent(Mode::Pr, extent)
}

fn write(extent: Extent) -> Need {
    Need::extent(Mode::Pw, extent)
}

fn wanted(need: Need) -> Wanted {
    Wanted::by(&need)
}

/// A cache, a clock, and the effects so far.
struct World {
    client: LockClient,
    now: Instant,
    effects: Vec<Effect>,
}

impl World {
    fn new() -> World {
        World::with(ClientConfig::default())
    }

    fn with(config: ClientConfig) -> World {
        let mut world = World { client: LockClient::new(config), now: Instant::now(), effects: Vec::new() };
        world.client.on_connected(world.now, &mut world.effects);
        world
    }

    fn acquire(&mut self, need: Need) -> Acquire {
        let resource = if matches!(need.policy, Policy::Extent(_)) { OBJECT } else { INODE };
        let flags = EnqueueFlags::default();
        self.client.acquire(self.now, &resource, &need, InodeBits::NONE, flags, &mut self.effects)
    }

    fn outcome(&mut self, handle: LockHandle, outcome: Outcome) {
        self.client.on_outcome(self.now, handle, &outcome, &mut self.effects);
    }

    fn grant(&mut self, handle: LockHandle, need: Need) {
        self.outcome(handle, Outcome::Granted(LockGrant { need, lvb: None }));
    }

    /// Acquires a lock that stays in use, with one reference.
    fn held(&mut self, asked: Need, got: Need) -> LockHandle {
        let Acquire::Pending(handle) = self.acquire(asked) else { panic!("nothing serves {asked:?} yet") };
        self.grant(handle, got);
        self.effects.clear();
        handle
    }

    /// Acquires a lock and releases it, so that it is cached and unused.
    fn cached(&mut self, asked: Need, got: Need) -> LockHandle {
        let handle = self.held(asked, got);
        self.release(handle);
        self.effects.clear();
        handle
    }

    fn release(&mut self, handle: LockHandle) {
        self.client.release(self.now, handle, &mut self.effects);
    }

    fn call_back(&mut self, handle: LockHandle, need: Need) {
        self.client.on_callback(handle, &wanted(need), &mut self.effects);
    }

    fn flushed(&mut self, handle: LockHandle) {
        self.client.on_flushed(self.now, handle, &mut self.effects);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.on_tick(self.now, &mut self.effects);
    }

    fn taken(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}

#[test]
fn a_cached_lock_serves_whatever_it_covers_in_weaker_modes() {
    let mut world = World::new();
    let handle = world.cached(write(pages(4, 1)), write(Extent::WHOLE));
    for need in [write(pages(9, 9)), read(pages(0, 1)), Need::extent(Mode::Cr, Extent::WHOLE)] {
        assert_eq!(world.acquire(need), Acquire::Held(handle), "{need:?}");
    }
    assert!(matches!(world.acquire(Need::extent(Mode::Ex, pages(0, 1))), Acquire::Pending(_)));
    let bits = world.cached(
        Need::bits(Mode::Pr, InodeBits::LOOKUP),
        Need::bits(Mode::Pr, InodeBits::LOOKUP.union(InodeBits::PERM)),
    );
    assert_eq!(world.acquire(Need::bits(Mode::Cr, InodeBits::PERM)), Acquire::Held(bits));
    assert!(matches!(world.acquire(Need::bits(Mode::Pr, InodeBits::UPDATE)), Acquire::Pending(_)));
    assert_eq!(world.client.stats().matched, 4);
}

#[test]
fn those_who_want_the_same_wait_for_one_request() {
    let mut world = World::new();
    let Acquire::Pending(first) = world.acquire(write(pages(0, 4))) else { panic!("empty cache") };
    assert_eq!(world.acquire(write(pages(1, 1))), Acquire::Pending(first));
    assert_eq!(world.taken().len(), 1);
    world.grant(first, write(pages(0, 4)));
    assert_eq!(world.taken(), [Effect::Ready { handle: first }]);
    world.call_back(first, write(pages(0, 1)));
    world.release(first);
    assert_eq!(world.taken(), [], "the second one still uses it");
    world.release(first);
    assert!(matches!(world.taken()[..], [Effect::Flush { .. }]));
}

#[test]
fn a_callback_lets_nobody_new_in_and_the_cancel_waits_for_the_flush() {
    let mut world = World::new();
    let handle = world.held(write(pages(0, 1)), write(Extent::WHOLE));
    world.call_back(handle, write(pages(8, 1)));
    assert_eq!(world.taken(), []);
    assert!(matches!(world.acquire(read(pages(0, 1))), Acquire::Pending(_)), "no new users");
    world.taken();
    world.release(handle);
    let need = write(Extent::WHOLE);
    assert_eq!(world.taken(), [Effect::Flush { handle, resource: OBJECT, need, keep: None }]);
    assert!(world.client.is_valid(handle), "until it is flushed");
    world.flushed(handle);
    assert_eq!(world.taken(), [Effect::SendCancel(handle)]);
    assert!(!world.client.is_valid(handle));
}

#[test]
fn repeated_callbacks_are_answered_while_the_lock_is_used_or_flushed() {
    let mut world = World::new();
    let handle = world.held(write(pages(0, 1)), write(Extent::WHOLE));
    world.call_back(handle, write(pages(8, 1)));
    assert_eq!(world.taken(), [], "the first one needs no answer");
    world.call_back(handle, write(pages(8, 1)));
    assert_eq!(world.taken(), [Effect::SendBusy(handle)], "used");
    world.client.give_up_for(handle, &wanted(write(pages(8, 1))), &mut world.effects);
    assert_eq!(world.taken(), [], "nobody else asked");
    world.release(handle);
    assert!(matches!(world.taken()[..], [Effect::Flush { .. }]));
    world.call_back(handle, write(pages(8, 1)));
    assert_eq!(world.taken(), [Effect::SendBusy(handle)], "flushed");
    world.flushed(handle);
    world.call_back(handle, write(pages(8, 1)));
    assert_eq!(world.taken(), [Effect::SendCancel(handle); 2]);
    let group = world.held(Need::group(1), Need::group(1));
    for _ in 0..3 {
        world.call_back(group, write(pages(0, 1)));
    }
    assert_eq!(world.taken(), [], "it has no deadline");
}

#[test]
fn a_write_lock_that_readers_want_becomes_a_read_lock() {
    let mut world = World::new();
    let handle = world.cached(write(pages(0, 1)), write(Extent::WHOLE));
    world.call_back(handle, read(pages(8, 1)));
    let keep = Some(read(Extent::WHOLE));
    assert!(matches!(world.taken()[..], [Effect::Flush { keep: kept, .. }] if kept == keep));
    world.flushed(handle);
    let policy = Policy::Extent(Extent::WHOLE);
    assert_eq!(world.taken(), [Effect::SendConvert { handle, mode: Mode::Pr, policy }]);
    assert_eq!(world.acquire(read(pages(3, 1))), Acquire::Held(handle));
    // The server resent the callback before the conversion reached it.
    world.call_back(handle, read(pages(8, 1)));
    assert_eq!(world.taken(), [Effect::SendConvert { handle, mode: Mode::Pr, policy }]);
}

#[test]
fn bits_that_others_want_go_and_more_may_go_while_they_do() {
    let mut world = World::new();
    let all = InodeBits::LOOKUP.union(InodeBits::UPDATE).union(InodeBits::PERM);
    let handle = world.cached(Need::bits(Mode::Pr, all), Need::bits(Mode::Pr, all));
    world.call_back(handle, Need::bits(Mode::Pw, InodeBits::UPDATE));
    let kept = |bits: InodeBits| Some(Need::bits(Mode::Pr, bits));
    let first = InodeBits::LOOKUP.union(InodeBits::PERM);
    assert!(matches!(world.taken()[..], [Effect::Flush { keep, .. }] if keep == kept(first)));
    world.call_back(handle, Need::bits(Mode::Pw, InodeBits::PERM));
    assert_eq!(world.taken(), [Effect::SendBusy(handle)]);
    world.flushed(handle);
    assert!(matches!(world.taken()[..], [Effect::Flush { keep, .. }] if keep == kept(InodeBits::LOOKUP)));
    world.flushed(handle);
    let policy = Policy::Bits(InodeBits::LOOKUP);
    assert_eq!(world.taken(), [Effect::SendConvert { handle, mode: Mode::Pr, policy }]);
    world.call_back(handle, Need::bits(Mode::Ex, InodeBits::ALL));
    assert!(matches!(world.taken()[..], [Effect::Flush { keep: None, .. }]));
}

#[test]
fn messages_in_any_order_and_about_locks_that_are_gone_are_answered() {
    let mut world = World::new();
    let Acquire::Pending(handle) = world.acquire(write(pages(0, 1))) else { panic!("empty cache") };
    world.taken();
    // Callback, completion, then the answer "waiting".
    world.call_back(handle, write(pages(0, 1)));
    world.grant(handle, write(pages(0, 1)));
    world.outcome(handle, Outcome::Waiting);
    assert_eq!(world.taken(), [Effect::Ready { handle }]);
    world.release(handle);
    world.flushed(handle);
    world.taken();
    world.grant(handle, write(pages(0, 1)));
    world.call_back(handle, write(pages(0, 1)));
    world.outcome(handle, Outcome::Waiting);
    assert_eq!(world.taken(), [Effect::SendCancel(handle); 3]);
    world.outcome(handle, Outcome::Refused(Refusal::WouldBlock));
    assert_eq!(world.taken(), []);
    assert_eq!(world.client.resource_of(handle), None);
    // A grant that does not fit the request.
    let Acquire::Pending(handle) = world.acquire(write(pages(0, 1))) else { panic!("empty cache") };
    world.taken();
    world.grant(handle, read(pages(0, 1)));
    let failed = Effect::Failed { handle, refusal: Refusal::Invalid };
    assert_eq!(world.taken(), [Effect::SendCancel(handle), failed]);
}

#[test]
fn who_is_interrupted_cancels_and_lost_messages_are_asked_for_again() {
    let mut world = World::new();
    let Acquire::Pending(handle) = world.acquire(write(pages(0, 1))) else { panic!("empty cache") };
    let sent = world.taken();
    world.outcome(handle, Outcome::Waiting);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.taken(), sent, "the completion may be lost");
    world.release(handle);
    assert_eq!(world.taken(), [Effect::SendCancel(handle)]);
    assert_eq!((world.client.locks(), world.client.next_deadline()), (0, None));
}

#[test]
fn unused_locks_go_by_number_and_by_age_the_oldest_first() {
    let config = ClientConfig { lru_size: 2, ..ClientConfig::default() };
    let mut world = World::with(config);
    let one = world.cached(read(pages(0, 1)), read(pages(0, 1)));
    let two = world.cached(read(pages(1, 1)), read(pages(1, 1)));
    assert_eq!(world.acquire(read(pages(0, 1))), Acquire::Held(one));
    world.release(one);
    let three = world.held(read(pages(2, 1)), read(pages(2, 1)));
    world.release(three);
    assert!(matches!(world.taken()[..], [Effect::Flush { handle, .. }] if handle == two));
    world.flushed(two);
    world.taken();
    world.pass(Duration::from_secs(599));
    assert_eq!(world.acquire(read(pages(2, 1))), Acquire::Held(three));
    assert_eq!(world.taken(), []);
    world.pass(Duration::from_secs(1));
    assert!(matches!(world.taken()[..], [Effect::Flush { handle, .. }] if handle == one));
    world.release(three);
    assert_eq!(world.client.unused(), 1);
    world.client.set_lru_size(0, &mut world.effects);
    assert_eq!(world.client.unused(), 0);
}

#[test]
fn early_cancels_take_unused_read_locks_that_are_in_the_way() {
    let mut world = World::new();
    let lookup = Need::bits(Mode::Pr, InodeBits::LOOKUP);
    let update = Need::bits(Mode::Pr, InodeBits::UPDATE);
    let first = world.cached(lookup, lookup);
    let second = world.cached(update, update);
    let dom = world.cached(Need::bits(Mode::Pw, InodeBits::DOM), Need::bits(Mode::Pw, InodeBits::DOM));
    let found = world.client.early_cancels(&INODE, &Need::bits(Mode::Ex, InodeBits::UPDATE), 8);
    assert_eq!(found, [EarlyCancel { handle: second, resource: INODE, need: update }]);
    let found = world.client.early_cancels(&INODE, &Need::bits(Mode::Ex, InodeBits::ALL), 8);
    assert_eq!(found.iter().map(|cancel| cancel.handle).collect::<Vec<_>>(), [first]);
    assert!(world.client.is_valid(dom), "data may be dirty");
    assert_eq!(world.taken(), []);
}

#[test]
fn cancels_of_old_locks_travel_along_when_the_cache_is_nearly_full() {
    let mut world = World::with(ClientConfig { lru_size: 8, ..ClientConfig::default() });
    for page in 0..8 {
        world.cached(read(pages(page, 1)), read(pages(page, 1)));
    }
    let found = world.client.lru_cancels(16);
    assert_eq!(found.iter().map(|cancel| cancel.handle.0).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.client.lru_cancels(16), []);
    assert_eq!(world.client.unused(), 6);
}

#[test]
fn only_what_no_other_lock_covers_has_to_be_dropped() {
    let mut world = World::new();
    let wide = world.cached(read(pages(0, 10)), read(pages(0, 10)));
    world.call_back(wide, write(pages(0, 1)));
    world.cached(read(pages(2, 2)), read(pages(2, 2)));
    world.cached(write(pages(8, 8)), write(pages(8, 8)));
    assert_eq!(world.client.uncovered(wide), [pages(0, 2), pages(4, 4)]);
    world.flushed(wide);
    assert_eq!(world.client.uncovered(wide), []);
}

#[test]
fn a_group_lock_is_kept_while_it_is_used_and_not_cached() {
    let mut world = World::new();
    let handle = world.held(Need::group(5), Need::group(5));
    world.call_back(handle, write(pages(0, 1)));
    assert_eq!(world.acquire(Need::group(5)), Acquire::Held(handle));
    world.release(handle);
    assert_eq!(world.taken(), []);
    world.release(handle);
    assert!(matches!(world.taken()[..], [Effect::Flush { .. }]));
}

#[test]
fn what_a_group_kept_others_from_is_protected_until_it_is_flushed() {
    let mut world = World::new();
    let handle = world.held(Need::group(5), Need::group(5));
    world.release(handle);
    for need in [read(pages(0, 1)), write(pages(8, 8))] {
        assert!(!world.client.is_covered(&OBJECT, &need) && world.client.is_still_held(&OBJECT, &need));
    }
    assert!(
        !world.client.is_still_held(&OBJECT, &Need::group(6)),
        "another group was not kept from anything"
    );
    world.client.on_flushed(world.now, handle, &mut world.effects);
    assert!(!world.client.is_still_held(&OBJECT, &read(pages(0, 1))));
}

#[test]
fn a_fought_over_resource_is_not_asked_for_again_before_its_time() {
    let mut world = World::new();
    let flags = EnqueueFlags { deny_on_contention: true, ..EnqueueFlags::default() };
    let acquire = |world: &mut World| {
        let need = write(pages(0, 1));
        world.client.acquire(world.now, &OBJECT, &need, InodeBits::NONE, flags, &mut world.effects)
    };
    let Acquire::Pending(handle) = acquire(&mut world) else { panic!("empty cache") };
    let refusal = Refusal::Contended { for_ms: 30_000 };
    world.outcome(handle, Outcome::Refused(refusal));
    assert_eq!(world.taken().last(), Some(&Effect::Failed { handle, refusal }));
    assert_eq!(acquire(&mut world), Acquire::Contended);
    world.pass(Duration::from_secs(30));
    assert!(matches!(acquire(&mut world), Acquire::Pending(_)));
}

#[test]
fn after_a_restart_locks_are_replayed_before_requests() {
    let mut world = World::new();
    let kept = world.cached(write(pages(0, 1)), write(Extent::WHOLE));
    let bits = Need::bits(Mode::Pr, InodeBits::ALL);
    let leaving = world.cached(bits, bits);
    world.call_back(leaving, Need::bits(Mode::Ex, InodeBits::ALL));
    world.taken();
    world.client.on_disconnected();
    let Acquire::Pending(asked) = world.acquire(Need::extent(Mode::Ex, Extent::WHOLE)) else {
        panic!("nothing that strong is cached")
    };
    assert_eq!(world.taken(), []);
    world.client.on_restarted(world.now, &mut world.effects);
    let replayed: Vec<LockHandle> = world
        .taken()
        .iter()
        .map(|effect| match effect {
            Effect::SendReplay { handle, .. } => *handle,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(replayed, [kept, leaving]);
    // One lock is cancelled meanwhile, the answer for the other is lost once.
    world.flushed(leaving);
    world.taken();
    world.pass(Duration::from_secs(5));
    assert!(matches!(world.taken()[..], [Effect::SendReplay { handle, .. }] if handle == kept));
    let grant = Outcome::Granted(LockGrant { need: write(Extent::WHOLE), lvb: None });
    world.client.on_replay_outcome(world.now, kept, &grant, &mut world.effects);
    let effects = world.taken();
    assert_eq!(effects[0], Effect::SendReplayDone);
    assert!(matches!(effects[1..], [Effect::SendEnqueue(request)] if request.handle == asked));
    let refused = Outcome::Refused(Refusal::ReplayRefused);
    world.client.on_replay_outcome(world.now, kept, &refused, &mut world.effects);
    assert_eq!(world.taken(), [Effect::Reconnect]);
}

#[test]
fn a_lock_that_may_not_be_brought_back_is_lost_and_the_others_stay() {
    let mut world = World::new();
    let gone = world.cached(write(pages(0, 1)), write(pages(0, 1)));
    let kept = world.cached(write(pages(8, 1)), write(pages(8, 1)));
    world.client.on_disconnected();
    world.client.on_restarted(world.now, &mut world.effects);
    assert_eq!(world.taken().len(), 2);
    world.client.on_replay_given_up(world.now, gone, &mut world.effects);
    assert_eq!(world.taken(), []);
    let grant = Outcome::Granted(LockGrant { need: write(pages(8, 1)), lvb: None });
    world.client.on_replay_outcome(world.now, kept, &grant, &mut world.effects);
    assert_eq!(world.taken(), [Effect::SendReplayDone]);
    assert!(!world.client.is_valid(gone) && world.client.is_valid(kept));
}

#[test]
fn what_is_cancelled_without_a_connection_is_sent_when_there_is_one() {
    let mut world = World::new();
    let handle = world.cached(read(pages(0, 1)), read(pages(0, 1)));
    world.client.on_disconnected();
    world.client.drop_unused(&mut world.effects);
    world.flushed(handle);
    world.taken();
    world.client.on_connected(world.now, &mut world.effects);
    assert_eq!(world.taken(), [Effect::SendCancel(handle)]);
    world.client.on_connected(world.now, &mut world.effects);
    assert_eq!(world.taken(), []);
}

#[test]
fn an_eviction_loses_everything_and_tells_who_waits() {
    let mut world = World::new();
    let used = world.held(write(pages(0, 1)), write(pages(0, 1)));
    let Acquire::Pending(asked) = world.acquire(write(pages(9, 1))) else { panic!("not covered") };
    world.taken();
    world.client.on_evicted(&mut world.effects);
    let need = write(pages(0, 1));
    assert_eq!(
        world.taken(),
        [
            Effect::Discard { handle: used, resource: OBJECT, need },
            Effect::Failed { handle: asked, refusal: Refusal::Stale }
        ]
    );
    assert!(!world.client.is_valid(used));
    world.release(used);
    assert_eq!((world.client.locks(), world.taken()), (0, vec![]));
}

#[test]
fn the_value_block_stays_with_the_lock() {
    let mut world = World::new();
    let Acquire::Pending(handle) = world.acquire(write(pages(0, 1))) else { panic!("empty cache") };
    let lvb = Lvb { size_bytes: 10, ..Lvb::default() };
    world.outcome(handle, Outcome::Granted(LockGrant { need: write(Extent::WHOLE), lvb: Some(lvb) }));
    world.client.update_lvb(handle, |known| known.size_bytes = known.size_bytes.max(4096));
    assert_eq!(world.client.lvb(handle).map(|known| known.size_bytes), Some(4096));
    assert_eq!(world.client.resource_of(handle), Some(OBJECT));
}

#[test]
fn an_unused_write_lock_can_be_turned_into_a_read_lock_at_will() {
    let mut world = World::new();
    let handle = world.held(write(pages(0, 1)), write(pages(0, 1)));
    assert!(!world.client.downgrade(handle, &mut world.effects), "it is used");
    world.release(handle);
    assert!(world.client.downgrade(handle, &mut world.effects));
    world.flushed(handle);
    assert_eq!(world.client.held(handle), Some(read(pages(0, 1))));
}

#[test]
fn a_lock_that_is_called_back_still_stands_until_it_is_flushed() {
    let mut world = World::new();
    let need = write(pages(0, 1));
    let handle = world.held(need, need);
    world.client.on_callback(handle, &wanted(write(Extent::WHOLE)), &mut world.effects);
    assert!(!world.client.is_covered(&OBJECT, &need) && world.client.is_still_held(&OBJECT, &need));
    world.release(handle);
    assert!(matches!(world.effects[..], [Effect::Flush { .. }]));
    assert!(world.client.is_still_held(&OBJECT, &need), "what is flushed is still protected");
    world.client.on_flushed(world.now, handle, &mut world.effects);
    assert!(!world.client.is_still_held(&OBJECT, &need));
    assert_eq!(world.client.locks_on(&OBJECT), 0);
}

#[test]
fn locks_of_one_mode_can_be_surrendered() {
    let mut world = World::new();
    let reading = world.held(read(pages(0, 1)), read(pages(0, 1)));
    let writing = world.cached(write(pages(2, 1)), write(pages(2, 1)));
    assert_eq!(world.client.surrender(&OBJECT, Mode::Pr, &mut world.effects), [reading]);
    assert_eq!(world.effects, [], "its user goes first");
    world.release(reading);
    assert!(matches!(world.effects[..], [Effect::Flush { handle, .. }] if handle == reading));
    assert!(world.client.has_mode(&OBJECT, Mode::Pr));
    world.client.on_flushed(world.now, reading, &mut world.effects);
    assert!(!world.client.has_mode(&OBJECT, Mode::Pr) && world.client.is_valid(writing));
    assert!(world.client.surrender(&OBJECT, Mode::Pr, &mut world.effects).is_empty(), "none is left");
}

fn update() -> Need {
    Need::bits(Mode::Pr, InodeBits::UPDATE)
}

#[test]
fn a_lock_that_comes_with_an_answer_is_cached_like_any_other() {
    let mut world = World::new();
    let handle = world.client.reserve();
    assert!(world.client.adopt(handle, &INODE, &update(), &mut world.effects));
    assert_eq!(world.acquire(update()), Acquire::Held(handle));
    world.call_back(handle, Need::bits(Mode::Pw, InodeBits::UPDATE));
    assert_eq!(world.effects, [], "it is used twice");
    world.release(handle);
    world.release(handle);
    assert_eq!(world.effects, [Effect::Flush { handle, resource: INODE, need: update(), keep: None }]);
    world.effects.clear();
    world.client.on_flushed(world.now, handle, &mut world.effects);
    assert_eq!((&world.effects[..], world.client.locks()), (&[Effect::SendCancel(handle)][..], 0));
}

#[test]
fn a_lock_that_is_called_back_before_its_answer_comes_is_not_adopted() {
    let mut world = World::new();
    let (handle, other) = (world.client.reserve(), world.client.reserve());
    assert_ne!(handle, other);
    world.call_back(handle, Need::bits(Mode::Pw, InodeBits::UPDATE));
    assert_eq!(world.taken(), [Effect::SendCancel(handle)], "the server does not wait for the reply");
    assert!(!world.client.adopt(handle, &INODE, &update(), &mut world.effects));
    assert_eq!(world.effects, [Effect::SendCancel(handle)]);
    assert!(!world.client.is_covered(&INODE, &update()));
    world.effects.clear();
    assert!(world.client.adopt(other, &INODE, &update(), &mut world.effects));
    assert!(world.client.is_covered(&INODE, &update()));
}

#[test]
fn an_answer_that_never_came_leaves_nothing_and_its_lock_is_cancelled_when_it_is_called_back() {
    let mut world = World::new();
    let handle = world.client.reserve();
    world.client.forget_reserved(handle);
    world.call_back(handle, Need::bits(Mode::Pw, InodeBits::UPDATE));
    assert_eq!(world.effects, [Effect::SendCancel(handle)]);
    world.effects.clear();
    assert!(!world.client.adopt(handle, &INODE, &update(), &mut world.effects), "it comes too late");
}

#[test]
fn an_answer_about_a_page_brings_the_locks_that_nobody_has_called_back_on_the_way() {
    let mut world = World::new();
    let first = world.client.reserve_many(4);
    let handle = |number: u64| LockHandle(first.0 + number);
    world.call_back(handle(1), Need::bits(Mode::Pw, InodeBits::UPDATE));
    assert_eq!(world.taken(), [Effect::SendCancel(handle(1))]);
    let node = |number: u64| ResourceId([7, number, 0, 0]);
    let adopted: Vec<bool> = (0..3)
        .map(|number| world.client.adopt(handle(number), &node(number), &update(), &mut world.effects))
        .collect();
    assert_eq!(
        (&adopted[..], &world.effects[..]),
        (&[true, false, true][..], &[Effect::SendCancel(handle(1))][..])
    );
    world.effects.clear();
    assert!(!world.client.adopt(handle(2), &node(2), &update(), &mut world.effects), "named twice");
    assert_eq!((&world.effects[..], world.client.locks()), (&[][..], 2));
    assert!(world.client.is_reserved(handle(3)) && !world.client.is_reserved(handle(4)));
    world.client.forget_reserved(first);
    for number in 0..4 {
        world.client.release(world.now, handle(number), &mut world.effects);
    }
    // Adopted, cancelled by its callback, adopted, and never named by the reply.
    for (number, is_known) in [(0, true), (1, false), (2, true), (3, false)] {
        world.effects.clear();
        world.call_back(handle(number), Need::bits(Mode::Pw, InodeBits::UPDATE));
        let expected = if is_known {
            matches!(world.effects[..], [Effect::Flush { .. }])
        } else {
            world.effects == [Effect::SendCancel(handle(number))]
        };
        assert!(expected, "{number}: {:?}", world.effects);
    }
    assert_eq!(world.client.reserve(), handle(4));
}

#[test]
fn an_answer_of_a_life_that_has_ended_brings_no_lock() {
    for restarted in [false, true] {
        let mut world = World::new();
        let handle = world.client.reserve();
        match restarted {
            true => world.client.on_restarted(world.now, &mut world.effects),
            false => {
                world.client.on_evicted(&mut world.effects);
                world.client.on_connected(world.now, &mut world.effects);
            }
        }
        world.effects.clear();
        assert!(!world.client.adopt(handle, &INODE, &update(), &mut world.effects));
        assert_eq!((&world.effects[..], world.client.locks()), (&[Effect::SendCancel(handle)][..], 0));
        assert!(world.client.reserve() > handle, "handles are never used again");
    }
}

#[test]
fn a_grant_that_makes_no_sense_is_given_back() {
    let mut world = World::new();
    let handle = world.client.reserve();
    assert!(!world.client.adopt(handle, &OBJECT, &write(pages(0, 1)), &mut world.effects));
    assert_eq!(world.effects, [Effect::SendCancel(handle)]);
}
