use super::*;
use nacre_env::clock::Instant;
use nacre_types::Timestamp;
use nacre_wire::peer::TransactionId;

const A: ClientUuid = ClientUuid([1; 16]);
const B: ClientUuid = ClientUuid([2; 16]);

fn transaction(number: u64) -> Transaction {
    let id = TransactionId { mdt: 1, boot: 1, number };
    Transaction { id, stamp: number, client: A, now: Timestamp::default(), parts: Vec::new() }
}

fn is_own(replays: &Replays, ticket: &Ticket, transno: u64, awaited: &[ClientUuid]) -> bool {
    matches!(replays.next(ticket, TransNo(transno), awaited, Duration::ZERO), Turn::Own)
}

#[test]
fn one_change_is_executed_at_a_time_in_the_order_of_all_clients() {
    let replays = Replays::new(Runs::default(), [A, B].into_iter());
    let a = replays.enter(A, TransNo(12));
    assert!(!is_own(&replays, &a, 12, &[A, B]), "B has sent none");
    let b = replays.enter(B, TransNo(11));
    assert!(is_own(&replays, &b, 11, &[A, B]));
    assert!(!is_own(&replays, &a, 12, &[A]), "B's is executed");
    replays.end();
    replays.leave(&b);
    assert!(!is_own(&replays, &a, 12, &[A, B]), "B may have another one");
    assert!(is_own(&replays, &a, 12, &[A]));
    assert!(replays.are_pending(false));
    replays.end();
    replays.leave(&a);
    assert!(!replays.are_pending(false));
}

#[test]
fn clients_whose_changes_alternate_wake_each_other() {
    let replays = Replays::new(Runs::default(), [A, B].into_iter());
    let begin = Instant::now();
    let replay = |client, first: u64| {
        let ticket = replays.enter(client, TransNo(first));
        for transno in (first..first + 200).step_by(2) {
            // Each wait but those for another thread's first change ends by a notification.
            while !matches!(
                replays.next(&ticket, TransNo(transno), &[A, B], Duration::from_secs(60)),
                Turn::Own
            ) {}
            replays.end();
        }
        // So that the other one's last change is the earliest.
        let is_next = replays.state.lock().heads.advance(&ticket, TransNo(1000 + first));
        assert!(is_next);
    };
    nacre_env::thread::scope(|scope| {
        scope.spawn(|| replay(A, 10));
        scope.spawn(|| replay(B, 11));
    });
    assert!(begin.elapsed() < Duration::from_secs(50));
}

#[test]
fn a_returned_part_of_a_transaction_has_its_place_among_the_changes_of_clients() {
    let replays = Replays::new(Runs { losses: vec![TransNo(10)], may_lack: false }, [A].into_iter());
    assert!(replays.restore(TransNo(0), transaction(0)).is_some(), "nothing is known about its place");
    assert!(replays.restore(TransNo(12), transaction(1)).is_none());
    assert!(replays.restore(TransNo(0), transaction(2)).is_none(), "not before one with an earlier stamp");
    assert!(replays.next_restored(&[A]).is_none(), "A may have an earlier change");
    let a = replays.enter(A, TransNo(11));
    assert!(is_own(&replays, &a, 11, &[A]));
    replays.end();
    for (number, failed) in [(1, true), (1, false), (2, false)] {
        let Turn::Restored(part) = replays.next(&a, TransNo(13), &[A], Duration::ZERO) else {
            panic!("a part")
        };
        assert_eq!((part.transno(), part.transaction.stamp), (TransNo(12), number));
        replays.end_restored(part, failed);
    }
    assert!(is_own(&replays, &a, 13, &[A]));
    replays.end();
    replays.leave(&a);
    assert!(replays.restore(TransNo(14), transaction(3)).is_none());
    assert!(replays.are_pending(false) && replays.next_restored(&[]).is_some());
}

#[test]
fn only_clients_of_the_last_run_replay_and_only_until_they_say_that_they_have() {
    let replays = Replays::new(Runs::default(), [A].into_iter());
    assert!(replays.is_entitled(&A) && !replays.is_entitled(&B));
    replays.end_replay_of(&A);
    assert!(!replays.is_entitled(&A));
}

#[test]
fn no_transaction_number_is_used_again_after_a_run_that_may_have_lost_some() {
    let mut record = RunsRecord { boot_id: [1; 16], ..RunsRecord::default() };
    let (runs, first) = Runs::begin(&mut record, true, TransNo(10), [1; 16]);
    assert_eq!((runs.losses.len(), first, runs.may_lack), (0, TransNo(11), false));
    let (runs, first) = Runs::begin(&mut record, false, TransNo(20), [1; 16]);
    assert_eq!((runs.losses, first, runs.may_lack), (vec![TransNo(20)], TransNo(21 + RUN_GAP), false));
    let (runs, _) = Runs::begin(&mut record, false, first, [2; 16]);
    assert!(runs.may_lack, "the host was booted");
    for run in 0..2 * RUNS_MAX as u64 {
        Runs::begin(&mut record, false, TransNo(first.0 + (run + 1) * RUN_GAP), [2; 16]);
    }
    assert_eq!(record.newest.len(), RUNS_MAX);
    assert_eq!(RunsRecord::decode(&record.encode()), Ok(record));
}

#[test]
fn a_run_lacks_what_the_last_one_lacked_to_its_end_however_that_ended() {
    let boot = [2; 16];
    let mut record = RunsRecord { boot_id: [1; 16], ..RunsRecord::default() };
    for was_clean in [false, false, true] {
        let (runs, _) = Runs::begin(&mut record, was_clean, TransNo(10), boot);
        assert!(runs.may_lack, "no client has replayed anything");
        let replays = Replays::new(runs, [A].into_iter());
        assert!(replays.are_pending(true) && replays.take_lack() && !replays.take_lack());
    }
    record.boot_id = boot;
    let (runs, _) = Runs::begin(&mut record, false, TransNo(20), boot);
    assert!(!runs.may_lack && !Replays::new(runs, [A].into_iter()).take_lack());
}
