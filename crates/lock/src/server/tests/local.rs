//! Locks and glimpses of the target itself.

use super::*;

/// Lets the target lock bytes of the file on behalf of a client.
fn lock_for(world: &mut World, client: u8, need: Need) -> (LockHandle, Outcome) {
    let handle = world.server.local_handle();
    let flags = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
    let request = Enqueue { handle, resource: FILE, need, optional: InodeBits::NONE, flags };
    let for_client = Some(peer(client).client);
    (handle, world.server.on_local_enqueue(world.now, &request, for_client, None, &mut world.effects))
}

fn glimpse_for(world: &mut World, client: u8) -> Outcome {
    let handle = world.server.local_handle();
    let except = Some(peer(client).client);
    world.server.on_local_glimpse(world.now, handle, &FILE, except, &mut world.effects)
}

#[test]
fn what_is_done_for_a_client_that_is_called_back_does_not_wait_behind_those_who_wait_for_it() {
    let mut world = World::new(3);
    granted(world.enqueue(1, 1, write(Extent::WHOLE)));
    assert_eq!(world.enqueue(2, 1, read(pages(0, 1))), Outcome::Waiting);
    assert_eq!(world.sent(), [('b', 1, 1)]);
    let (handle, outcome) = lock_for(&mut world, 1, write(pages(0, 1)));
    granted(outcome);
    // A lock on behalf of another client waits in the queue.
    assert_eq!(lock_for(&mut world, 3, write(pages(0, 1))).1, Outcome::Waiting);
    assert_eq!(world.sent(), [('b', 1, 1)], "now for a writer, too");
    world.cancel(1, 1);
    assert_eq!(world.sent(), [], "the write is not over");
    world.server.on_cancel(world.now, Peer::LOCAL, &[handle], &mut world.effects);
    assert_eq!(world.sent(), [('c', 2, 1), ('b', 2, 1)]);
    // The revocation of the first client's lock is over, so a lock on its behalf waits, too.
    assert_eq!(lock_for(&mut world, 1, read(pages(0, 1))).1, Outcome::Waiting);
}

#[test]
fn what_is_done_for_one_client_is_ordered_by_that_client() {
    let mut world = World::new(2);
    granted(lock_for(&mut world, 1, write(pages(0, 2))).1);
    granted(lock_for(&mut world, 1, write(pages(1, 2))).1);
    assert_eq!(lock_for(&mut world, 2, write(pages(2, 1))).1, Outcome::Waiting);
    assert_eq!(world.enqueue(1, 1, write(pages(0, 1))), Outcome::Waiting, "its own request waits");
}

#[test]
fn the_target_asks_all_writers_but_one_and_takes_no_lock() {
    let mut world = World::new(2);
    assert_eq!(glimpse_for(&mut world, 1), Outcome::Glimpsed(Lvb::default()));
    granted(world.enqueue(1, 1, write(pages(0, 1))));
    assert_eq!(glimpse_for(&mut world, 1), Outcome::Glimpsed(lvb(0)), "its own lock is not asked");
    assert_eq!(glimpse_for(&mut world, 2), Outcome::Waiting);
    assert_eq!(world.sent(), [('g', 1, 1)]);
    let (now, id) = (world.now, GlimpseId(1));
    world.server.on_glimpse_answer(now, peer(1), id, LockHandle(1), Some(lvb(77)), &mut world.effects);
    let ends = |effect: &Effect| matches!(effect, Effect::Glimpsed { lvb, .. } if lvb.size_bytes == 77);
    assert!(world.effects.iter().any(ends), "{:?}", world.effects);
    assert_eq!(world.server.locks(), 1);
}

#[test]
fn a_lock_of_the_target_does_not_hide_the_writer_below_it() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(Extent::WHOLE)));
    world.server.update_lvb(&FILE, |block| block.size_bytes = 100 * 4096);
    granted(lock_for(&mut world, 1, write(pages(50, 1))).1);
    assert_eq!(glimpse_for(&mut world, 2), Outcome::Waiting);
    assert_eq!(world.sent(), [('g', 1, 1)]);
}

#[test]
fn what_a_client_has_replayed_it_may_use_before_the_recovery_is_over() {
    let mut world = World::new(0);
    world.server = LockServer::new(ServerConfig::default(), true);
    for number in 1..=2 {
        world.server.on_connect(world.now, peer(number), &mut world.effects);
    }
    granted(world.server.on_replay(peer(1), LockHandle(4), &FILE, &write(pages(0, 4)), None));
    assert_eq!(world.enqueue(2, 1, read(pages(0, 1))), Outcome::Waiting);
    granted(lock_for(&mut world, 1, write(pages(0, 1))).1);
    assert_eq!(lock_for(&mut world, 1, write(pages(4, 1))).1, Outcome::Waiting);
    assert_eq!(lock_for(&mut world, 2, read(pages(9, 1))).1, Outcome::Waiting);
    assert_eq!(glimpse_for(&mut world, 2), Outcome::Refused(Refusal::Recovering));
    world.server.end_recovery(world.now, &mut world.effects);
    assert_eq!(world.sent(), [('c', 0, 2), ('c', 0, 3), ('b', 1, 4)]);
}

#[test]
fn times_and_bounds_change_while_locks_are_held() {
    let mut world = World::new(2);
    granted(world.enqueue(1, 1, write(Extent::WHOLE)));
    let config = ServerConfig { callback_timeout: Duration::from_secs(1), ..*world.server.config() };
    world.server.set_config(config);
    assert_eq!(world.enqueue(2, 1, write(Extent::WHOLE)), Outcome::Waiting);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.sent(), [('b', 1, 1), ('e', 1, 0), ('c', 2, 1)]);
}
