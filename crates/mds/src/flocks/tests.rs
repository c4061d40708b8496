use super::*;
use nacre_env::clock::Instant;
use nacre_env::thread::JoinHandle;

const FILE: Fid = Fid::new(1, 1, 0);
const A: ClientUuid = ClientUuid([1; 16]);
const B: ClientUuid = ClientUuid([2; 16]);
const C: ClientUuid = ClientUuid([3; 16]);

fn range(owner: u64, mode: LockMode, start: u64, last: u64) -> ProcessLock {
    let lock = FileLock { family: LockFamily::Range, owner: LockOwner(owner), mode, start, last, pid: 9 };
    ProcessLock { lock, process: 0 }
}

fn whole(owner: u64, mode: LockMode) -> ProcessLock {
    let lock = range(owner, mode, 0, u64::MAX).lock;
    ProcessLock { lock: FileLock { family: LockFamily::File, ..lock }, process: 0 }
}

/// Sets a lock for a call that begins at this moment.
fn set(locks: &FileLocks, fid: &Fid, client: ClientUuid, lock: &ProcessLock, wait: bool) -> StatusResult<()> {
    locks.set(fid, client, lock, wait, 0)
}

fn conflict(locks: &FileLocks, fid: &Fid, client: ClientUuid, lock: &ProcessLock) -> Option<FileLock> {
    locks.conflict(fid, client, &lock.lock).expect("nobody is awaited")
}

/// Sets a lock in a thread, and returns when the thread waits.
fn begin_wait(
    locks: &Arc<FileLocks>,
    fid: Fid,
    client: ClientUuid,
    lock: ProcessLock,
) -> JoinHandle<StatusResult<()>> {
    let before = locks.state.lock().engine.waiting();
    let thread = {
        let locks = locks.clone();
        nacre_env::thread::spawn(move || locks.set(&fid, client, &lock, true, 0))
    };
    while locks.state.lock().engine.waiting() == before && !thread.is_finished() {
        nacre_env::thread::yield_now();
    }
    thread
}

fn join(thread: JoinHandle<StatusResult<()>>) -> StatusResult<()> {
    thread.join().expect("no panic")
}

#[test]
fn ranges_split_and_only_overlapping_ones_conflict() {
    let locks = FileLocks::new(false);
    assert_eq!(set(&locks, &FILE, A, &range(1, LockMode::Write, 0, 99), false), Ok(()));
    assert_eq!(set(&locks, &FILE, A, &range(1, LockMode::Unlock, 40, 59), false), Ok(()));
    assert_eq!(set(&locks, &FILE, B, &range(1, LockMode::Write, 40, 59), false), Ok(()));
    assert_eq!(set(&locks, &FILE, B, &range(1, LockMode::Read, 59, 60), false), Err(Status::EAGAIN));
    let found = conflict(&locks, &FILE, B, &range(1, LockMode::Read, 0, u64::MAX)).expect("A holds some");
    assert_eq!((found.start, found.last), (0, 39));
    assert_eq!(set(&locks, &FILE, A, &range(1, LockMode::Unlock, 0, u64::MAX), false), Ok(()));
    assert_eq!(conflict(&locks, &FILE, B, &range(1, LockMode::Write, 0, u64::MAX)), None);
}

#[test]
fn flock_and_fcntl_do_not_see_each_other_and_readers_share() {
    let locks = FileLocks::new(false);
    assert_eq!(set(&locks, &FILE, A, &whole(1, LockMode::Write), false), Ok(()));
    assert_eq!(set(&locks, &FILE, B, &range(1, LockMode::Write, 0, 9), false), Ok(()));
    assert_eq!(set(&locks, &FILE, B, &whole(1, LockMode::Read), false), Err(Status::EAGAIN));
    assert_eq!(set(&locks, &FILE, A, &whole(1, LockMode::Read), false), Ok(()));
    assert_eq!(set(&locks, &FILE, B, &whole(1, LockMode::Read), false), Ok(()));
    locks.release_client(&A);
    assert_eq!(set(&locks, &FILE, B, &whole(1, LockMode::Write), false), Ok(()));
}

#[test]
fn an_flock_that_cannot_be_converted_at_once_is_lost() {
    let locks = FileLocks::new(false);
    for client in [A, B] {
        assert_eq!(set(&locks, &FILE, client, &whole(1, LockMode::Read), false), Ok(()));
    }
    assert_eq!(set(&locks, &FILE, A, &whole(1, LockMode::Write), false), Err(Status::EAGAIN));
    assert_eq!(set(&locks, &FILE, B, &whole(1, LockMode::Write), false), Ok(()), "A has nothing any more");
}

#[test]
fn a_circle_of_three_clients_is_refused_and_the_others_go_on() {
    let locks = Arc::new(FileLocks::new(false));
    let other = Fid::new(1, 2, 0);
    set(&locks, &FILE, A, &range(1, LockMode::Write, 0, 0), false).expect("free");
    set(&locks, &FILE, B, &range(1, LockMode::Write, 1, 1), false).expect("free");
    set(&locks, &other, C, &range(1, LockMode::Write, 0, 9), false).expect("free");
    let a = begin_wait(&locks, FILE, A, range(1, LockMode::Read, 1, 1));
    let b = begin_wait(&locks, other, B, range(1, LockMode::Write, 5, 5));
    assert_eq!(set(&locks, &FILE, C, &range(1, LockMode::Write, 0, 5), true), Err(Status::EDEADLK));
    locks.release_client(&C);
    assert_eq!(join(b), Ok(()));
    locks.release_file(&FILE, &B);
    assert_eq!(join(a), Ok(()));
    assert!(conflict(&locks, &FILE, C, &range(1, LockMode::Write, 0, 1)).is_some());
    assert_eq!(locks.state.lock().waiters.len(), 0);
}

#[test]
fn those_who_wait_are_served_in_the_order_of_their_arrival() {
    let locks = Arc::new(FileLocks::new(false));
    set(&locks, &FILE, A, &whole(1, LockMode::Write), false).expect("free");
    let waits: Vec<_> =
        (2..8).map(|owner| begin_wait(&locks, FILE, B, whole(owner, LockMode::Write))).collect();
    locks.release_client(&A);
    for (owner, wait) in (2..8).zip(waits) {
        assert_eq!(join(wait), Ok(()), "owner {owner}");
        let held = conflict(&locks, &FILE, C, &whole(1, LockMode::Read)).expect("it is held");
        assert_eq!(held.owner, LockOwner(owner));
        set(&locks, &FILE, B, &whole(owner, LockMode::Unlock), false).expect("a release");
    }
}

#[test]
fn a_client_that_dies_while_it_waits_leaves_nothing() {
    let locks = Arc::new(FileLocks::new(false));
    set(&locks, &FILE, A, &range(1, LockMode::Write, 0, 9), false).expect("free");
    set(&locks, &FILE, B, &range(1, LockMode::Write, 20, 29), false).expect("free");
    let b = begin_wait(&locks, FILE, B, range(1, LockMode::Write, 0, 29));
    let c = begin_wait(&locks, FILE, C, range(1, LockMode::Write, 20, 20));
    locks.release_client(&B);
    assert_eq!(join(b), Err(Status::EVICTED));
    assert_eq!(join(c), Ok(()));
    locks.release_client(&A);
    assert_eq!(conflict(&locks, &FILE, A, &range(1, LockMode::Write, 0, 19)), None);
}

#[test]
fn waits_end_when_the_server_stops() {
    let locks = Arc::new(FileLocks::new(false));
    set(&locks, &FILE, A, &range(1, LockMode::Write, 0, 9), false).expect("free");
    let b = begin_wait(&locks, FILE, B, range(1, LockMode::Write, 0, 29));
    locks.wake();
    assert_eq!(join(b), Err(Status::ESHUTDOWN));
    assert_eq!(locks.state.lock().engine.waiting(), 0);
}

#[test]
fn ten_thousand_locks_of_a_client_are_set_found_and_released_soon() {
    let began = Instant::now();
    let locks = Arc::new(FileLocks::new(false));
    for index in 0..10_000u64 {
        let owner = index % 7;
        let lock = range(owner, LockMode::Write, index * 10, index * 10 + 4);
        assert_eq!(set(&locks, &FILE, A, &lock, false), Ok(()));
    }
    for index in 0..10_000u64 {
        let first = conflict(&locks, &FILE, B, &range(1, LockMode::Read, index * 10, index * 10 + 9));
        assert_eq!(first.map(|lock| lock.owner), Some(LockOwner(index % 7)));
    }
    let b = begin_wait(&locks, FILE, B, range(1, LockMode::Write, 0, u64::MAX));
    locks.release_client(&A);
    assert_eq!(join(b), Ok(()));
    // It takes 10 ms; quadratic growth would take far longer.
    assert!(began.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_range_that_ends_before_it_starts_is_invalid() {
    let locks = FileLocks::new(false);
    assert_eq!(set(&locks, &FILE, A, &range(1, LockMode::Read, 5, 4), false), Err(Status::EINVAL));
    assert_eq!(set(&locks, &FILE, A, &range(1, LockMode::Unlock, 5, 4), false), Err(Status::EINVAL));
}
