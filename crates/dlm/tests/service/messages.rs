//! Messages to clients, and their timing.

use crate::support::*;
use nacre_env::clock::Instant;
use nacre_lock::server::ServerConfig;
use nacre_lock::{EnqueueFlags, Extent, LockHandle, Lvb, Outcome};
use nacre_types::{ClientUuid, Status};
use nacre_wire::lock::{LockMessage, LockRequest};
use std::time::Duration;

#[test]
fn a_conflict_is_called_back_and_its_end_completes_who_waits() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, write(Extent::WHOLE));
    assert_eq!(second.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    first.next_is_blocking(1);
    assert_eq!(second.pending(), 0);
    first.cancel(1);
    assert!(matches!(second.next_is_completion(1), Outcome::Granted(_)));
    assert_eq!(target.service.lock_count(), 1);
    second.cancel(1);
    assert_eq!((target.service.lock_count(), target.service.resource_count()), (0, 0));
}

#[test]
fn a_client_may_answer_from_within_the_callback() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.obey();
    second.obey();
    first.lock(1, write(Extent::WHOLE));
    for round in 1..50 {
        let (asks, handle) = if round % 2 == 1 { (&second, round) } else { (&first, round) };
        assert_eq!(asks.enqueue(handle, write(Extent::WHOLE)), Ok(Outcome::Waiting));
        until("it is granted", || asks.pending() > 0);
        asks.next_is_completion(handle);
        let other = if round % 2 == 1 { &first } else { &second };
        other.next();
    }
}

#[test]
fn messages_of_one_client_come_in_the_order_of_the_engine() {
    let target = Target::new(patient());
    let (first, second, third) = (target.client(1), target.client(2), target.client(3));
    first.obey();
    first.lock(1, write(Extent::WHOLE));
    assert_eq!(third.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    third.next_is_completion(1);
    assert_eq!(second.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    assert_eq!(first.enqueue(2, read(pages(0, 1))), Ok(Outcome::Waiting));
    third.next_is_blocking(1);
    third.cancel(1);
    // Granted, and revoked at once for the next waiting request.
    second.next_is_completion(1);
    second.next_is_blocking(1);
}

#[test]
fn clients_of_which_nothing_is_heard_for_long_cost_others_no_deadline_each() {
    let target = Target::new(ServerConfig { callback_timeout: Duration::from_secs(60), ..patient() });
    let waiting = target.client(9);
    // Each client has a minute to answer; 30 s without a message are less than that.
    for (number, silent_s) in [(1, 61), (2, 3600), (3, 61), (4, 30)] {
        let client = target.client(number);
        let exactly = EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() };
        let granted = client.flagged(1, write(pages(u64::from(number), 1)), exactly);
        assert!(matches!(granted, Ok(Outcome::Granted(_))), "{granted:?}");
        client.was_silent_for(Duration::from_secs(silent_s));
    }
    let began = Instant::now();
    for number in 1..4 {
        assert_eq!(waiting.enqueue(number, write(pages(number, 1))), Ok(Outcome::Waiting));
        waiting.next_is_completion(number);
    }
    assert!(began.elapsed() < Duration::from_secs(30), "a second each");
    // The waiting request's completion is sent before the owner is notified of the eviction.
    while target.owner.evicted.lock().len() < 3 && began.elapsed() < Duration::from_secs(30) {
        nacre_env::thread::yield_now();
    }
    let evicted = target.owner.evicted.lock().clone();
    assert_eq!(evicted, [1, 2, 3].map(|number| ClientUuid([number; 16])));
    assert_eq!(waiting.enqueue(4, write(pages(4, 1))), Ok(Outcome::Waiting));
    assert_eq!((waiting.pending(), target.service.stats().evictions), (0, 3));
    target.stop();
}

#[test]
fn a_callback_without_an_answer_is_repeated_and_its_client_evicted() {
    let config = ServerConfig {
        callback_timeout: Duration::from_millis(300),
        callback_retry: Duration::from_millis(20),
        ..ServerConfig::default()
    };
    let target = Target::new(config);
    let (deaf, second) = (target.client(1), target.client(2));
    deaf.lock(1, write(Extent::WHOLE));
    assert_eq!(second.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    for _ in 0..3 {
        deaf.next_is_blocking(1);
    }
    assert!(matches!(second.next_is_completion(1), Outcome::Granted(_)));
    until("the owner is told", || !target.owner.evicted.lock().is_empty());
    assert_eq!(*target.owner.evicted.lock(), [deaf.export.client]);
    assert!(deaf.export.has_ended() && !target.service.is_connected(&deaf.export.client));
    assert_eq!(deaf.enqueue(2, read(pages(0, 1))), Err(Status::EVICTED));
    assert!(!target.service.is_held(&deaf.export, &FILE, &write(pages(0, 1))));
    assert_eq!(target.service.stats().evictions, 1);
}

#[test]
fn whoever_works_under_a_lock_is_not_late() {
    let config = ServerConfig {
        callback_timeout: Duration::from_millis(1500),
        callback_retry: Duration::from_millis(50),
        ..ServerConfig::default()
    };
    let target = Target::new(config);
    let (busy, second) = (target.client(1), target.client(2));
    busy.lock(1, write(Extent::WHOLE));
    assert_eq!(second.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    // Each callback comes 50 ms after the last one; together they take longer than the timeout.
    for number in 0..80 {
        busy.next_is_blocking(1);
        if number % 40 < 20 {
            assert_eq!(target.service.check_held(&busy.export, &FILE, write(pages(7, 1))), Ok(()));
        } else {
            assert_eq!(busy.request(LockRequest::Busy { handle: LockHandle(1) }), Ok(None));
        }
    }
    busy.cancel(1);
    second.next_is_completion(1);
    assert_eq!(target.service.stats().evictions, 0);
}

#[test]
fn a_client_that_comes_again_has_lost_what_its_last_life_held() {
    let target = Target::new(patient());
    let first = target.client(1);
    first.lock(1, write(Extent::WHOLE));
    let again = target.client(1);
    assert!(first.export.has_ended());
    assert_eq!(first.enqueue(2, read(pages(0, 1))), Err(Status::EVICTED));
    assert_eq!(target.service.lock_count(), 0);
    again.lock(1, write(Extent::WHOLE));
    target.service.disconnect(&first.export);
    assert_eq!(target.service.lock_count(), 1, "the end of the old export does not touch the new one");
    target.service.disconnect(&again.export);
    assert_eq!(target.service.lock_count(), 0);
    assert_eq!(again.enqueue(2, read(pages(0, 1))), Err(Status::EVICTED));
}

#[test]
fn a_client_that_is_dropped_lets_others_in() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, write(Extent::WHOLE));
    assert_eq!(second.enqueue(1, write(pages(0, 1))), Ok(Outcome::Waiting));
    let dropped = target.service.evict(&first.export.client).expect("it is connected");
    assert_eq!(dropped.generation, first.export.generation);
    assert!(matches!(second.next_is_completion(1), Outcome::Granted(_)));
    assert!(target.service.evict(&first.export.client).is_none());
}

#[test]
fn the_first_lock_of_a_client_is_noted_before_it_is_granted() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    for handle in 1..4 {
        first.lock(handle, read(Extent::WHOLE));
    }
    second.lock(1, read(Extent::WHOLE));
    assert_eq!(*target.owner.noted.lock(), [first.export.client, second.export.client]);
}

#[test]
fn a_grant_brings_the_size_that_the_object_has_then() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    *target.owner.size.lock() = 100;
    let size = |grant: nacre_lock::LockGrant| grant.lvb.expect("objects have sizes").size_bytes;
    assert_eq!(size(first.lock(1, read(pages(0, 1)))), 100);
    *target.owner.size.lock() = 9000;
    assert_eq!(size(second.lock(1, read(pages(0, 1)))), 100, "nobody has told");
    target.service.object_changed(&*target.owner, &FILE);
    assert_eq!(size(second.lock(2, read(pages(0, 1)))), 9000);
    *target.owner.size.lock() = 10;
    target.service.object_changed(&*target.owner, &FILE);
    assert_eq!(size(second.lock(3, read(pages(0, 1)))), 10, "it may also shrink");
}

#[test]
fn a_glimpse_asks_the_writer_and_leaves_it_its_lock() {
    let target = Target::new(patient());
    let (writer, reader) = (target.client(1), target.client(2));
    writer.lock(1, write(Extent::WHOLE));
    let flags = EnqueueFlags { glimpse: true, ..EnqueueFlags::default() };
    assert_eq!(reader.flagged(1, read(Extent::WHOLE), flags), Ok(Outcome::Waiting));
    let LockMessage::Glimpse { glimpse, handle } = writer.next() else { panic!("a glimpse") };
    let lvb = Some(Lvb { size_bytes: 777, ..Lvb::default() });
    assert_eq!(writer.request(LockRequest::GlimpseAnswer { glimpse, handle, lvb }), Ok(None));
    let Outcome::Glimpsed(known) = reader.next_is_completion(1) else { panic!("what the writer said") };
    assert_eq!(known.size_bytes, 777);
    assert!(target.service.is_held(&writer.export, &FILE, &write(Extent::WHOLE)));
    assert_eq!(handle, LockHandle(1));
}
