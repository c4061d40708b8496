//! Single cases, and a comparison with an array of bytes.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FILE: ResourceId = ResourceId([1, 1, 0, 0]);
const OTHER: ResourceId = ResourceId([1, 2, 0, 0]);

fn owner(client: u8, number: u64) -> Owner {
    Owner { client: ClientUuid([client; 16]), number }
}

fn range(owner: Owner, access: Access, start: u64, last: u64) -> FileLock {
    FileLock { family: Family::Range, owner, access, extent: Extent { start, last }, pid: 7, process: 0 }
}

fn whole(owner: Owner, access: Access) -> FileLock {
    FileLock { family: Family::File, ..range(owner, access, 0, 0) }
}

fn ticket(id: u64) -> WaitTicket {
    WaitTicket { id: WaitId(id), asked: id }
}

fn table() -> FileLocks {
    FileLocks::new(FlockConfig::default(), false)
}

/// Sets without waiting, for cases in which that serves no waiting call.
fn set(locks: &mut FileLocks, resource: &ResourceId, lock: FileLock) -> StatusResult<SetOutcome> {
    let mut completions = Vec::new();
    let result = locks.on_set(resource, &lock, None, &mut completions);
    assert_eq!(completions, []);
    result
}

fn wait(locks: &mut FileLocks, resource: &ResourceId, lock: FileLock, id: u64) -> StatusResult<SetOutcome> {
    locks.on_set(resource, &lock, Some(ticket(id)), &mut Vec::new())
}

fn unlock(
    locks: &mut FileLocks,
    resource: &ResourceId,
    owner: Owner,
    start: u64,
    last: u64,
) -> Vec<(u64, bool)> {
    let mut completions = Vec::new();
    let extent = Extent { start, last };
    assert_eq!(locks.on_unlock(resource, Family::Range, owner, extent, &mut completions), Ok(()));
    completions.iter().map(|done| (done.wait.0, done.result.is_ok())).collect()
}

const DONE: StatusResult<SetOutcome> = Ok(SetOutcome::Done);
const WAITING: StatusResult<SetOutcome> = Ok(SetOutcome::Waiting);

#[test]
fn ranges_split_and_join() {
    let (mut locks, a, b) = (table(), owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 0, 99)), DONE);
    unlock(&mut locks, &FILE, a, 40, 59);
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Write, 40, 59)), DONE);
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Read, 59, 60)), Err(Status::EAGAIN));
    let found = locks.conflict(&FILE, &range(b, Access::Read, 0, u64::MAX)).expect("a holds some");
    assert_eq!((found.extent, found.pid), (Extent { start: 0, last: 39 }, 7));
    unlock(&mut locks, &FILE, b, 0, u64::MAX);
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 40, 59)), DONE);
    assert_eq!(locks.locks_of(&FILE), [range(a, Access::Write, 0, 99)]);
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Read, 10, 19)), DONE);
    assert_eq!(locks.locks_of(&FILE).len(), 3);
    unlock(&mut locks, &FILE, a, 0, u64::MAX);
    assert_eq!(locks.files(), 0);
}

#[test]
fn families_do_not_see_each_other_and_readers_share() {
    let (mut locks, a, b) = (table(), owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Write)), DONE);
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Write, 0, 9)), DONE);
    assert_eq!(set(&mut locks, &FILE, whole(b, Access::Read)), Err(Status::EAGAIN));
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Read)), DONE);
    assert_eq!(set(&mut locks, &FILE, whole(b, Access::Read)), DONE);
    locks.release_client(a.client, &mut Vec::new());
    assert_eq!(set(&mut locks, &FILE, whole(b, Access::Write)), DONE);
    locks.release_file(&FILE, b.client, &mut Vec::new());
    assert_eq!(locks.files(), 0);
}

#[test]
fn an_flock_that_cannot_be_converted_is_lost() {
    let (mut locks, a, b) = (table(), owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Read)), DONE);
    assert_eq!(set(&mut locks, &FILE, whole(b, Access::Read)), DONE);
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Write)), Err(Status::EAGAIN));
    assert_eq!(locks.locks_of(&FILE), [FileLock { extent: Extent::WHOLE, ..whole(b, Access::Read) }]);
    // Two conversions that wait for each other: the one that gave up its lock admits the other.
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Read)), DONE);
    assert_eq!(wait(&mut locks, &FILE, whole(a, Access::Write), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, whole(b, Access::Write), 2), WAITING);
    let held = locks.locks_of(&FILE);
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].owner, held[0].access), (a, Access::Write));
}

#[test]
fn waiters_are_served_in_order_and_can_be_cancelled() {
    let (mut locks, a) = (table(), owner(1, 1));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 0, 9)), DONE);
    for (client, id) in [(2, 20), (3, 30), (4, 40)] {
        assert_eq!(wait(&mut locks, &FILE, range(owner(client, 1), Access::Write, 5, 5), id), WAITING);
    }
    // Repeated: the same wait.
    assert_eq!(wait(&mut locks, &FILE, range(owner(2, 1), Access::Write, 5, 5), 20), WAITING);
    assert_eq!(locks.waiting(), 3);
    assert!(locks.on_cancel_wait(owner(3, 1).client, WaitId(30)));
    assert!(!locks.on_cancel_wait(owner(3, 1).client, WaitId(30)));
    assert_eq!(unlock(&mut locks, &FILE, a, 0, 9), [(20, true)]);
    assert_eq!(unlock(&mut locks, &FILE, owner(2, 1), 0, 9), [(40, true)]);
    let mut completions = Vec::new();
    assert_eq!(wait(&mut locks, &FILE, range(a, Access::Read, 0, 9), 50), WAITING);
    locks.release_client(owner(4, 1).client, &mut completions);
    assert_eq!(completions, [Completion { client: a.client, wait: WaitId(50), result: Ok(()) }]);
}

#[test]
fn a_write_lock_that_becomes_a_read_lock_lets_readers_in() {
    let (mut locks, a, b) = (table(), owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 0, 9)), DONE);
    assert_eq!(wait(&mut locks, &FILE, range(b, Access::Read, 0, 3), 1), WAITING);
    let mut completions = Vec::new();
    let outcome = locks.on_set(&FILE, &range(a, Access::Read, 0, 9), None, &mut completions);
    assert_eq!((outcome, completions.len()), (DONE, 1));
}

#[test]
fn circles_over_files_and_clients_are_refused() {
    let (mut locks, a, b, c) = (table(), owner(1, 1), owner(2, 1), owner(3, 1));
    let byte = |owner, offset| range(owner, Access::Write, offset, offset);
    assert_eq!(set(&mut locks, &FILE, byte(a, 0)), DONE);
    assert_eq!(set(&mut locks, &FILE, byte(b, 1)), DONE);
    assert_eq!(set(&mut locks, &OTHER, byte(c, 0)), DONE);
    assert_eq!(wait(&mut locks, &FILE, byte(a, 1), 1), WAITING);
    assert_eq!(wait(&mut locks, &OTHER, byte(b, 0), 2), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(c, 0), 3), Err(Status::EDEADLK));
    // Another owner of the same client is not part of the cycle.
    assert_eq!(wait(&mut locks, &FILE, byte(owner(3, 2), 0), 4), WAITING);
    // Two owners that upgrade a range that both read.
    let (d, e) = (owner(4, 1), owner(5, 1));
    assert_eq!(set(&mut locks, &OTHER, range(d, Access::Read, 50, 59)), DONE);
    assert_eq!(set(&mut locks, &OTHER, range(e, Access::Read, 50, 59)), DONE);
    assert_eq!(wait(&mut locks, &OTHER, range(d, Access::Write, 50, 59), 5), WAITING);
    assert_eq!(wait(&mut locks, &OTHER, range(e, Access::Write, 50, 59), 6), Err(Status::EDEADLK));
}

#[test]
fn a_circle_that_closes_when_a_lock_is_granted_ends_with_an_error_for_one() {
    // Owner a has two threads. The first waits for b; the second gets the lock that b waits for.
    let (mut locks, a, b, c) = (table(), owner(1, 1), owner(2, 1), owner(3, 1));
    let byte = |owner, offset| range(owner, Access::Write, offset, offset);
    assert_eq!(set(&mut locks, &FILE, byte(b, 0)), DONE);
    assert_eq!(set(&mut locks, &FILE, byte(c, 1)), DONE);
    assert_eq!(wait(&mut locks, &FILE, byte(a, 0), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(a, 1), 2), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(b, 1), 3), WAITING);
    assert_eq!(unlock(&mut locks, &FILE, c, 1, 1), [(2, true), (1, false)]);
    assert_eq!(unlock(&mut locks, &FILE, a, 1, 1), [(3, true)]);
}

#[test]
fn flocks_that_wait_in_a_circle_wait_as_on_linux() {
    let (mut locks, a, b) = (table(), owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, whole(a, Access::Write)), DONE);
    assert_eq!(set(&mut locks, &OTHER, whole(b, Access::Write)), DONE);
    assert_eq!(wait(&mut locks, &OTHER, whole(a, Access::Write), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, whole(b, Access::Write), 2), WAITING);
}

#[test]
fn a_circle_through_two_mounts_of_a_host_is_one_of_processes() {
    // The same two processes through the mounts 1 and 2 of their host; a process on another host has the same
    // number by chance.
    let (mut locks, a, b) = (table(), [owner(1, 1), owner(2, 7)], [owner(1, 2), owner(2, 8)]);
    let byte = |owner, offset, process| FileLock { process, ..range(owner, Access::Write, offset, offset) };
    assert_eq!(set(&mut locks, &FILE, byte(a[0], 0, 10)), DONE);
    assert_eq!(set(&mut locks, &OTHER, byte(b[1], 0, 20)), DONE);
    assert_eq!(wait(&mut locks, &OTHER, byte(a[1], 0, 10), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(b[0], 0, 20), 2), Err(Status::EDEADLK));
    let itself = byte(a[1], 0, 10);
    assert_eq!(
        wait(&mut locks, &FILE, itself, 3),
        Err(Status::EDEADLK),
        "what it holds through the other mount"
    );
    assert_eq!(
        wait(&mut locks, &FILE, byte(owner(1, 2), 0, 0), 4),
        WAITING,
        "not known: its own owner alone"
    );
    // Two open files of one process through one mount are two owners.
    assert_eq!(set(&mut locks, &FILE, byte(owner(3, 1), 5, 30)), DONE);
    assert_eq!(wait(&mut locks, &FILE, byte(owner(3, 2), 5, 30), 5), WAITING);
}

#[test]
fn a_circle_through_two_mounts_that_closes_when_a_lock_is_granted_ends() {
    let (mut locks, a, b, c) = (table(), [owner(1, 1), owner(2, 7)], owner(3, 1), owner(4, 1));
    let byte = |owner, offset, process| FileLock { process, ..range(owner, Access::Write, offset, offset) };
    assert_eq!(set(&mut locks, &FILE, byte(b, 0, 20)), DONE);
    assert_eq!(set(&mut locks, &FILE, byte(c, 1, 30)), DONE);
    assert_eq!(wait(&mut locks, &FILE, byte(a[0], 0, 10), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(a[1], 1, 10), 2), WAITING);
    assert_eq!(wait(&mut locks, &FILE, byte(b, 1, 20), 3), WAITING);
    assert_eq!(unlock(&mut locks, &FILE, c, 1, 1), [(2, true), (1, false)]);
}

#[test]
fn while_clients_bring_back_locks_nothing_new_is_granted_and_then_the_oldest_call_first() {
    let mut locks = FileLocks::new(FlockConfig::default(), true);
    let (a, b, c) = (owner(1, 1), owner(2, 1), owner(3, 1));
    assert_eq!(locks.on_replay(&FILE, &range(a, Access::Write, 0, 9), true), Ok(()));
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Read, 50, 59)), Err(Status::RECOVERING));
    let mut wait_since = |lock: FileLock, id, asked| {
        let ticket = WaitTicket { id: WaitId(id), asked };
        assert_eq!(locks.on_set(&FILE, &lock, Some(ticket), &mut Vec::new()), WAITING, "whether free or not");
    };
    wait_since(range(b, Access::Write, 0, 9), 1, 200);
    wait_since(range(c, Access::Write, 0, 9), 2, 100);
    wait_since(range(c, Access::Write, 70, 79), 3, 300);
    assert_eq!(locks.on_replay(&FILE, &range(b, Access::Write, 5, 5), true), Err(Status::ESTALE), "taken");
    assert_eq!(locks.on_replay(&FILE, &range(b, Access::Write, 60, 60), false), Err(Status::ESTALE), "late");
    assert_eq!(locks.on_replay(&FILE, &range(a, Access::Read, 2, 3), false), Ok(()), "as it holds more");
    assert_eq!(unlock(&mut locks, &FILE, a, 0, 4), [], "unlocking works, and serves nobody yet");
    let mut completions = Vec::new();
    locks.end_recovery(&mut completions);
    let served = |completions: &[Completion]| completions.iter().map(|done| done.wait.0).collect::<Vec<_>>();
    assert_eq!(served(&completions), [3]);
    assert_eq!(locks.on_replay(&FILE, &range(b, Access::Write, 60, 60), true), Err(Status::ESTALE));
    assert_eq!(unlock(&mut locks, &FILE, a, 5, 9), [(2, true)]);
    assert_eq!(unlock(&mut locks, &FILE, c, 0, 99), [(1, true)]);
    unlock(&mut locks, &FILE, b, 0, 99);
    assert_eq!((locks.files(), locks.waiting()), (0, 0));
}

#[test]
fn what_one_client_holds_and_waits_for_is_bounded_and_others_go_on() {
    let config = FlockConfig { locks_per_client_max: 3, ..FlockConfig::default() };
    let mut locks = FileLocks::new(config, false);
    let (a, b) = (owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 0, 9)), DONE);
    assert_eq!(set(&mut locks, &OTHER, range(a, Access::Write, 0, 9)), DONE);
    assert_eq!(set(&mut locks, &OTHER, range(b, Access::Write, 20, 29)), DONE);
    assert_eq!(wait(&mut locks, &OTHER, range(a, Access::Write, 20, 29), 1), WAITING);
    assert_eq!(wait(&mut locks, &OTHER, range(a, Access::Write, 21, 29), 2), Err(Status::ENOLCK));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 50, 59)), Err(Status::ENOLCK));
    let split = locks.on_unlock(&FILE, Family::Range, a, Extent { start: 5, last: 5 }, &mut Vec::new());
    assert_eq!(split, Err(Status::ENOLCK));
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Write, 50, 59)), DONE);
    // A wait that ends with a lock counts once, and released locks do not count.
    assert_eq!(unlock(&mut locks, &OTHER, b, 20, 29), [(1, true)]);
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 60, 69)), Err(Status::ENOLCK));
    assert_eq!(unlock(&mut locks, &OTHER, a, 0, 99), []);
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 60, 69)), DONE);
    locks.release_client(a.client, &mut Vec::new());
    locks.release_client(b.client, &mut Vec::new());
    assert!(locks.of_clients.is_empty() && locks.files() == 0);
}

#[test]
fn bounds_are_errors_and_nothing_is_lost() {
    let mut locks =
        FileLocks::new(FlockConfig { locks_per_file_max: 3, waits_max: 1, ..FlockConfig::default() }, false);
    let (a, b) = (owner(1, 1), owner(2, 1));
    assert_eq!(set(&mut locks, &FILE, range(a, Access::Write, 0, 99)), DONE);
    unlock(&mut locks, &FILE, a, 50, 50);
    unlock(&mut locks, &FILE, a, 60, 60);
    let split = locks.on_unlock(&FILE, Family::Range, a, Extent { start: 10, last: 10 }, &mut Vec::new());
    assert_eq!(split, Err(Status::ENOLCK));
    assert_eq!(set(&mut locks, &FILE, range(b, Access::Write, 50, 50)), Err(Status::ENOLCK));
    assert_eq!(wait(&mut locks, &FILE, range(b, Access::Write, 0, 0), 1), WAITING);
    assert_eq!(wait(&mut locks, &FILE, range(b, Access::Write, 1, 1), 2), Err(Status::ENOLCK));
    assert_eq!(locks.locks_of(&FILE).len(), 3);
    let backwards = Extent { start: 5, last: 4 };
    let lock = FileLock { extent: backwards, ..range(a, Access::Read, 0, 0) };
    assert_eq!(set(&mut locks, &OTHER, lock), Err(Status::EINVAL));
    assert_eq!(locks.files(), 1);
}

/// Locks of each owner on each byte, and waiting calls.
struct Model {
    locks: FileLocks,
    bytes: BTreeMap<(Owner, u64), Access>,
    waiting: Vec<(WaitId, FileLock)>,
}

impl Model {
    fn is_free(&self, lock: &FileLock) -> bool {
        self.bytes.iter().all(|((holder, offset), access)| {
            *holder == lock.owner
                || *offset < lock.extent.start
                || *offset > lock.extent.last
                || (*access == Access::Read && lock.access == Access::Read)
        })
    }

    fn hold(&mut self, lock: &FileLock) {
        for offset in lock.extent.start..=lock.extent.last {
            self.bytes.insert((lock.owner, offset), lock.access);
        }
    }

    fn set(&mut self, lock: &FileLock, wait: Option<WaitTicket>) {
        let (is_free, mut completions) = (self.is_free(lock), Vec::new());
        match self.locks.on_set(&FILE, lock, wait, &mut completions) {
            Ok(SetOutcome::Done) => {
                assert!(is_free);
                self.hold(lock);
            }
            Ok(SetOutcome::Waiting) => {
                assert!(!is_free);
                self.waiting.push((wait.expect("only these wait").id, *lock));
            }
            Err(status) => {
                assert!(!is_free);
                assert_eq!(status, if wait.is_some() { Status::EDEADLK } else { Status::EAGAIN });
            }
        }
        self.complete(completions);
    }

    fn unlock(&mut self, owner: Owner, extent: Extent) {
        let mut completions = Vec::new();
        self.locks.on_unlock(&FILE, Family::Range, owner, extent, &mut completions).expect("fits");
        let inside = |offset: u64| extent.start <= offset && offset <= extent.last;
        self.bytes.retain(|(holder, offset), _| *holder != owner || !inside(*offset));
        self.complete(completions);
    }

    fn release(&mut self, client: ClientUuid) {
        let mut completions = Vec::new();
        self.locks.release_client(client, &mut completions);
        self.bytes.retain(|(holder, _), _| holder.client != client);
        self.waiting.retain(|(_, waiter)| waiter.owner.client != client);
        self.complete(completions);
    }

    fn complete(&mut self, completions: Vec<Completion>) {
        for done in completions {
            let same = |(id, lock): &(WaitId, FileLock)| *id == done.wait && lock.owner.client == done.client;
            let place = self.waiting.iter().position(same).expect("it waited");
            let (_, lock) = self.waiting.remove(place);
            if done.result.is_ok() {
                assert!(self.is_free(&lock), "{lock:?} was served");
                self.hold(&lock);
            }
        }
    }

    fn check(&self) {
        assert!(self.waiting.iter().all(|(_, lock)| !self.is_free(lock)), "nobody waits for nothing");
        assert_eq!(self.locks.waiting(), self.waiting.len());
        let mut held = BTreeMap::new();
        for lock in self.locks.locks_of(&FILE) {
            for offset in lock.extent.start..=lock.extent.last {
                assert_eq!(held.insert((lock.owner, offset), lock.access), None);
            }
        }
        assert_eq!(held, self.bytes);
    }

    /// All owners that do not wait release their locks.
    fn let_go(&mut self) {
        let waits = |holder: &Owner| self.waiting.iter().any(|(_, lock)| lock.owner == *holder);
        let idle: Vec<Owner> = self.bytes.keys().map(|(holder, _)| *holder).filter(|o| !waits(o)).collect();
        for holder in idle {
            self.unlock(holder, Extent::WHOLE);
        }
    }
}

proptest! {
    #[test]
    fn the_table_does_what_an_array_of_bytes_says(
        steps in prop::collection::vec((0u8..4, 1u8..4, 1u64..3, any::<bool>(), 0u64..20, 0u64..8), 1..80),
    ) {
        let mut model = Model { locks: table(), bytes: BTreeMap::new(), waiting: Vec::new() };
        for (id, (kind, client, number, write, start, length)) in steps.into_iter().enumerate() {
            let access = if write { Access::Write } else { Access::Read };
            let lock = range(owner(client, number), access, start, start + length);
            match kind {
                0 => model.unlock(lock.owner, lock.extent),
                1 => model.release(lock.owner.client),
                2 => model.set(&lock, None),
                _ => model.set(&lock, Some(ticket(id as u64))),
            }
            model.check();
        }
        // No owner waits in a cycle, so all are served in the end.
        for _ in 0..100 {
            model.let_go();
        }
        prop_assert_eq!(model.locks.waiting(), 0);
        prop_assert_eq!(model.locks.files(), 0);
    }
}
