//! Recovery after a restart.

use crate::support::*;
use nacre_dlm::Expected;
use nacre_env::clock::Instant;
use nacre_lock::{EnqueueFlags, Extent, LockHandle, Outcome, Refusal};
use nacre_types::{ClientUuid, ProcessIdentity, Status};
use nacre_wire::lock::LockRequest;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

fn expected(numbers: &[u8]) -> Expected {
    numbers.iter().map(|number| (ClientUuid([*number; 16]), None)).collect()
}

fn replay(client: &Client, handle: u64, first_page: u64) -> Outcome {
    let (handle, need) = (LockHandle(handle), write(pages(first_page, 1)));
    let request = LockRequest::Replay { handle, resource: FILE, need };
    client.request(request).expect("it is connected").expect("replays have outcomes")
}

#[test]
fn others_wait_until_all_who_are_expected_have_replayed() {
    let target = Target::expecting(patient(), expected(&[1, 2]), LONG);
    let (first, second, new) = (target.client(1), target.client(2), target.client(3));
    assert_eq!(new.enqueue(1, write(pages(0, 4))), Ok(Outcome::Waiting));
    let no_wait = EnqueueFlags { no_wait: true, ..EnqueueFlags::default() };
    let refused = Ok(Outcome::Refused(Refusal::Recovering));
    assert_eq!(new.flagged(2, write(pages(9, 1)), no_wait), refused);
    assert!(matches!(replay(&first, 7, 0), Outcome::Granted(_)));
    assert!(matches!(replay(&first, 7, 0), Outcome::Granted(_)), "told twice");
    assert_eq!(replay(&new, 7, 2), Outcome::Refused(Refusal::ReplayRefused), "it was not here");
    drop(target.service.lock_held(&first.export, &FILE, write(pages(0, 1))).expect("it was replayed"));
    assert_eq!(first.request(LockRequest::ReplayDone), Ok(None));
    assert!(target.service.is_recovering());
    let report = target.service.recovery_report().expect("clients are expected");
    assert_eq!((report.expected, report.completed, report.given_up, report.took), (2, 1, 0, None));
    assert!(report.remaining > Duration::ZERO && report.replaying == 1);
    assert_eq!(replay(&first, 8, 1), Outcome::Refused(Refusal::ReplayRefused), "it had said that was all");
    assert_eq!(second.request(LockRequest::ReplayDone), Ok(None));
    assert!(!target.service.is_recovering());
    let report = target.service.recovery_report().expect("there was a recovery");
    assert!(report.completed == 2 && report.took.is_some() && report.remaining == Duration::ZERO);
    assert_eq!(Target::new(patient()).service.recovery_report(), None);
    first.next_is_blocking(7);
    first.cancel(7);
    new.next_is_completion(1);
}

#[test]
fn what_a_client_sends_before_its_replay_waits_for_it() {
    let target = Target::expecting(patient(), expected(&[1, 2]), LONG);
    let (first, second) = (target.client(1), target.client(2));
    nacre_env::thread::scope(|scope| {
        let write_out = |client| {
            let service = &target.service;
            scope.spawn(move || service.lock_held(client, &FILE, write(pages(5, 1))).map(drop))
        };
        let (of_first, of_second) = (write_out(&first.export), write_out(&second.export));
        assert!(matches!(replay(&first, 7, 5), Outcome::Granted(_)));
        assert_eq!(first.request(LockRequest::ReplayDone), Ok(None));
        assert_eq!(of_first.join().expect("no panic"), Ok(()));
        assert!(!of_second.is_finished());
        assert_eq!(second.request(LockRequest::ReplayDone), Ok(None));
        assert_eq!(of_second.join().expect("no panic"), Err(Status::EIO));
    });
}

#[test]
fn locks_of_the_target_and_glimpses_wait_for_the_end_of_recovery() {
    let target = Target::expecting(patient(), expected(&[1]), LONG);
    let (first, second) = (target.client(1), target.client(2));
    nacre_env::thread::scope(|scope| {
        let (target, second) = (&target, &second);
        let lock = scope.spawn(|| target.service.lock_local(&FILE, read(pages(0, 1)), None).map(drop));
        let size = scope.spawn(|| target.service.glimpse(&*target.owner, &FILE, &second.export));
        until("the lock waits", || target.service.lock_count() == 1);
        assert!(!lock.is_finished() && !size.is_finished());
        target.service.disconnect(&first.export);
        assert_eq!(lock.join().expect("no panic"), Ok(()));
        assert!(size.join().expect("no panic").is_ok());
    });
}

#[test]
fn who_does_not_come_back_in_time_is_given_up() {
    let target = Target::expecting(patient(), expected(&[1, 2]), Duration::from_millis(50));
    let here = target.client(2);
    until("the window is over", || !target.service.is_recovering());
    until("the owner is told", || !target.owner.given_up.lock().is_empty());
    assert_eq!(*target.owner.given_up.lock(), [ClientUuid([1; 16])], "the other one is connected");
    assert_eq!(replay(&here, 7, 0), Outcome::Refused(Refusal::ReplayRefused));
    here.lock(8, write(Extent::WHOLE));
}

#[test]
fn a_client_whose_process_has_ended_is_not_waited_for() {
    let gone = ProcessIdentity { pid: i32::MAX as u32, ..nacre_env::own_process() };
    let expected = Expected::from([(ClientUuid([1; 16]), Some(gone))]);
    let target = Target::expecting(patient(), expected, LONG);
    until("it is given up", || !target.service.is_recovering());
    until("the owner is told", || !target.owner.given_up.lock().is_empty());
    let report = target.service.recovery_report().expect("there was a recovery");
    assert_eq!((report.completed, report.given_up), (0, 1));
}

#[test]
fn connected_clients_are_awaited_beyond_the_window_as_long_as_changes_are_replayed() {
    let window = Duration::from_secs(3);
    let target = Target::expecting(patient(), expected(&[1, 2]), window);
    let data = Target::expecting(patient(), expected(&[1]), window);
    target.service.lead(&data.service);
    let (first, of_data) = (target.client(1), data.client(1));
    until("the client that is not connected is given up", || {
        target.service.note_progress();
        !target.service.awaits(&ClientUuid([2; 16]))
    });
    assert!(target.service.awaits(&first.export.client), "it may wait for its turn");
    let begin = Instant::now();
    until("another window passes", || {
        target.service.note_progress();
        begin.elapsed() > window
    });
    assert!(target.service.awaits(&first.export.client));
    assert!(data.service.awaits(&of_data.export.client), "it recovers at the other target first");
    until("nothing happens for a window", || {
        !target.service.is_recovering() && !data.service.is_recovering()
    });
    let report = target.service.recovery_report().expect("there was a recovery");
    assert_eq!((report.expected, report.completed, report.given_up), (2, 0, 2));
}
