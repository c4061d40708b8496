//! Locks that the target takes itself.

use crate::support::*;
use nacre_env::InterruptTarget;
use nacre_env::sync::mpsc;
use nacre_lock::{Extent, Lvb, Outcome};
use nacre_types::Status;
use nacre_wire::lock::{LockMessage, LockRequest};

#[test]
fn a_lock_of_the_target_waits_for_the_holder_and_holds_others_up() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, read(Extent::WHOLE));
    nacre_env::thread::scope(|scope| {
        let service = &target.service;
        let other = &second.export;
        let waiter = scope.spawn(move || service.lock_local(&FILE, write(pages(0, 1)), Some(other)));
        first.next_is_blocking(1);
        first.cancel(1);
        let lock = waiter.join().expect("no panic").expect("granted");
        assert_eq!(first.enqueue(2, read(pages(0, 1))), Ok(Outcome::Waiting));
        first.lock(3, read(pages(1, 1)));
        drop(lock);
        first.next_is_completion(2);
    });
}

#[test]
fn what_a_flush_writes_passes_the_request_that_waits_for_the_flush() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, write(Extent::WHOLE));
    assert_eq!(second.enqueue(1, read(pages(0, 1))), Ok(Outcome::Waiting));
    first.next_is_blocking(1);
    drop(target.service.lock_local(&FILE, write(pages(0, 1)), Some(&first.export)).expect("at once"));
    drop(target.service.lock_held(&first.export, &FILE, write(pages(0, 1))).expect("at once"));
    first.cancel(1);
    second.next_is_completion(1);
}

#[test]
fn a_wait_ends_with_an_interrupt_and_leaves_nothing() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, read(Extent::WHOLE));
    nacre_env::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let (service, other) = (&target.service, &second.export);
        let waiter = scope.spawn(move || {
            let guard = InterruptTarget::install();
            guard.target().begin(7);
            tell.send(guard.target().clone()).expect("somebody listens");
            service.lock_local(&FILE, write(pages(0, 1)), Some(other)).map(drop)
        });
        let thread = told.recv().expect("it has begun");
        first.next_is_blocking(1);
        assert!(thread.raise(7));
        assert_eq!(waiter.join().expect("no panic"), Err(Status::EINTR));
    });
    assert_eq!(target.service.lock_count(), 1);
}

#[test]
fn a_wait_ends_when_its_client_is_dropped_and_when_the_service_stops() {
    let target = Target::new(patient());
    let (first, second, third) = (target.client(1), target.client(2), target.client(3));
    first.lock(1, read(Extent::WHOLE));
    nacre_env::thread::scope(|scope| {
        let wait_for = |client| {
            let service = &target.service;
            scope.spawn(move || service.lock_local(&FILE, write(pages(0, 1)), Some(client)).map(drop))
        };
        let (of_second, of_third) = (wait_for(&second.export), wait_for(&third.export));
        until("both wait", || target.service.lock_count() == 3);
        target.service.evict(&second.export.client);
        assert_eq!(of_second.join().expect("no panic"), Err(Status::EVICTED));
        assert!(!of_third.is_finished());
        target.stop();
        assert_eq!(of_third.join().expect("no panic"), Err(Status::ESHUTDOWN));
    });
    assert_eq!(target.service.lock_count(), 1);
    let refused = target.service.lock_local(&FILE, read(pages(0, 1)), None).map(drop);
    assert_eq!(refused, Err(Status::ESHUTDOWN));
}

#[test]
fn what_is_not_held_is_not_done() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    let held = |need| target.service.lock_held(&first.export, &FILE, need).map(drop);
    assert_eq!(held(write(pages(0, 1))), Err(Status::EIO));
    first.lock(1, read(Extent::WHOLE));
    assert_eq!(held(write(pages(0, 1))), Err(Status::EIO));
    assert_eq!(held(read(pages(0, 1))), Ok(()));
    let other = target.service.check_held(&second.export, &FILE, read(pages(0, 1)));
    assert_eq!(other, Err(Status::EIO), "the lock of somebody else does not count");
    target.service.evict(&first.export.client);
    assert_eq!(held(read(pages(0, 1))), Err(Status::EVICTED));
}

#[test]
fn a_write_that_has_begun_ends_before_the_next_holder_gets_the_lock() {
    let target = Target::new(patient());
    let (first, second) = (target.client(1), target.client(2));
    first.lock(1, write(Extent::WHOLE));
    let writing = target.service.lock_held(&first.export, &FILE, write(pages(3, 1))).expect("it is held");
    target.service.evict(&first.export.client);
    assert_eq!(second.enqueue(1, read(pages(3, 1))), Ok(Outcome::Waiting));
    second.lock(2, read(pages(8, 1)));
    assert_eq!(second.pending(), 0);
    drop(writing);
    second.next_is_completion(1);
}

#[test]
fn a_question_of_the_target_reaches_the_writers_but_not_who_asks() {
    let target = Target::new(patient());
    let (writer, reader) = (target.client(1), target.client(2));
    *target.owner.size.lock() = 5;
    let ask = |client: &Client| target.service.glimpse(&*target.owner, &FILE, &client.export);
    assert_eq!(ask(&reader).expect("known").size_bytes, 5);
    writer.lock(1, write(Extent::WHOLE));
    assert_eq!(ask(&writer).expect("known").size_bytes, 5);
    writer.react(|client, message| {
        if let LockMessage::Glimpse { glimpse, handle } = *message {
            let lvb = Some(Lvb { size_bytes: 123_456, ..Lvb::default() });
            let heard = client.request(LockRequest::GlimpseAnswer { glimpse, handle, lvb });
            assert_eq!(heard, Ok(None));
        }
    });
    assert_eq!(ask(&reader).expect("known").size_bytes, 123_456);
    assert_eq!(target.service.lock_count(), 1);
}
