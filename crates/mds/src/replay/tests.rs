use super::*;
use nacre_types::Timestamp;
use nacre_wire::peer::TransactionId;

const A: ClientUuid = ClientUuid([1; 16]);
const B: ClientUuid = ClientUuid([2; 16]);

fn transaction(number: u64) -> Transaction {
    let id = TransactionId { mdt: 1, boot: 1, number };
    Transaction { id, stamp: number, client: A, now: Timestamp::default(), parts: Vec::new() }
}

fn is_own(replays: &Replays, client: &ClientUuid, transno: u64, awaited: &[ClientUuid]) -> bool {
    matches!(replays.next(client, TransNo(transno), awaited), Turn::Own)
}

#[test]
fn the_earliest_change_is_first_once_no_client_may_have_an_earlier_one() {
    let replays = Replays::new(Runs::default(), [A, B].into_iter());
    assert!(!is_own(&replays, &A, 12, &[A, B]), "B has sent none");
    assert!(is_own(&replays, &B, 11, &[A, B]));
    assert!(!is_own(&replays, &A, 12, &[A]), "B's is executed");
    replays.end(&B);
    assert!(!is_own(&replays, &A, 12, &[A, B]), "B may have another one");
    assert!(is_own(&replays, &A, 12, &[A]));
    assert!(replays.are_pending(false));
    replays.end(&A);
    assert!(!replays.are_pending(false));
}

#[test]
fn a_returned_part_of_a_transaction_has_its_place_among_the_changes_of_clients() {
    let replays = Replays::new(Runs { losses: vec![TransNo(10)], may_lack: false }, [A].into_iter());
    assert!(replays.restore(TransNo(0), transaction(0)).is_some(), "nothing is known about its place");
    assert!(replays.restore(TransNo(12), transaction(1)).is_none());
    assert!(replays.restore(TransNo(0), transaction(2)).is_none(), "not before one with an earlier stamp");
    assert!(replays.next_restored(&[A]).is_none(), "A may have an earlier change");
    assert!(is_own(&replays, &A, 11, &[A]));
    replays.end(&A);
    for (number, failed) in [(1, true), (1, false), (2, false)] {
        let Turn::Restored(part) = replays.next(&A, TransNo(13), &[A]) else { panic!("a part") };
        assert_eq!((part.transno(), part.transaction.stamp), (TransNo(12), number));
        replays.end_restored(part, failed);
    }
    assert!(is_own(&replays, &A, 13, &[A]));
    replays.end(&A);
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
    let mut record = RunsRecord::default();
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
