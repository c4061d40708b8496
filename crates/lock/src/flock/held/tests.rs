//! Single cases, and programs of several clients at a server that restarts repeatedly.

use super::*;
use crate::flock::{Completion, FileLocks, FlockConfig, SetOutcome, WaitId, WaitTicket};
use nacre_types::ClientUuid;
use proptest::prelude::*;
use std::collections::BTreeMap;

const FILE: ResourceId = ResourceId([1, 1, 0, 0]);
/// Open file of all calls in tests that do not depend on it.
const HANDLE: u64 = 5;

fn owner(client: u8, number: u64) -> Owner {
    Owner { client: ClientUuid([client; 16]), number }
}

fn range(owner: Owner, access: Access, start: u64, last: u64) -> FileLock {
    FileLock { family: Family::Range, owner, access, extent: Extent { start, last }, pid: 7, process: 0 }
}

fn whole(owner: Owner, access: Access) -> FileLock {
    FileLock { family: Family::File, extent: Extent::WHOLE, ..range(owner, access, 0, 0) }
}

fn unlock(lock: &FileLock) -> Change {
    Change::Unlock(lock.family, lock.owner, lock.extent)
}

/// Records a call that was answered with success.
fn hold(held: &mut HeldLocks, lock: FileLock) {
    let call = held.begin(&FILE, Change::Set(lock), HANDLE).expect("nothing is lost");
    assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
}

/// Returns the locks to replay, in order.
fn replayed(held: &mut HeldLocks) -> Vec<FileLock> {
    let mut locks: Vec<FileLock> = held.replay(|_| true).into_iter().flat_map(|(_, locks)| locks).collect();
    locks.sort_by_key(|lock| (lock.family, lock.owner, lock.extent.start));
    locks
}

#[test]
fn what_is_held_is_brought_back_and_what_was_given_back_is_not() {
    let (mut held, a, b) = (HeldLocks::default(), owner(1, 1), owner(1, 2));
    hold(&mut held, range(a, Access::Write, 0, 99));
    hold(&mut held, whole(b, Access::Read));
    let middle = unlock(&range(a, Access::Write, 40, 59));
    let call = held.begin(&FILE, middle, HANDLE).expect("an unlock");
    assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
    let (low, high) = (range(a, Access::Write, 0, 39), range(a, Access::Write, 60, 99));
    assert_eq!(replayed(&mut held), [low, high, whole(b, Access::Read)]);
    for lock in [low, high, whole(b, Access::Read)] {
        let call = held.begin(&FILE, unlock(&lock), HANDLE).expect("an unlock");
        assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
    }
    assert_eq!((replayed(&mut held), held.files()), (Vec::new(), 0));
}

#[test]
fn a_replay_brings_back_what_is_true_whatever_became_of_the_calls_under_way() {
    let a = owner(1, 1);
    let cases: [(FileLock, Change, Vec<FileLock>); 6] = [
        (
            range(a, Access::Write, 0, 9),
            unlock(&range(a, Access::Write, 5, 9)),
            vec![range(a, Access::Write, 0, 4)],
        ),
        (
            range(a, Access::Write, 0, 9),
            Change::Set(range(a, Access::Read, 0, 4)),
            vec![range(a, Access::Read, 0, 4), range(a, Access::Write, 5, 9)],
        ),
        (
            range(a, Access::Read, 0, 9),
            Change::Set(range(a, Access::Write, 0, 9)),
            vec![range(a, Access::Read, 0, 9)],
        ),
        (whole(a, Access::Read), Change::Set(whole(a, Access::Write)), Vec::new()),
        (whole(a, Access::Write), Change::Set(whole(a, Access::Write)), vec![whole(a, Access::Write)]),
        (whole(a, Access::Write), unlock(&whole(a, Access::Write)), Vec::new()),
    ];
    for (before, change, expected) in cases {
        let mut held = HeldLocks::default();
        hold(&mut held, before);
        let call = held.begin(&FILE, change, HANDLE).expect("nothing is lost");
        assert_eq!(replayed(&mut held), expected, "{change:?}");
        assert_eq!(held.end(&FILE, call, Ok(())), End::Again, "an answer of the last run does not count");
        assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
    }
}

#[test]
fn a_write_lock_that_a_refused_call_had_made_doubtful_is_lost() {
    let (mut held, a) = (HeldLocks::default(), owner(1, 1));
    hold(&mut held, range(a, Access::Write, 0, 4));
    let wider = range(a, Access::Read, 0, 9);
    let call = held.begin(&FILE, Change::Set(wider), HANDLE).expect("nothing is lost");
    assert_eq!(replayed(&mut held), [range(a, Access::Read, 0, 4)]);
    assert_eq!(held.end(&FILE, call, Err(Status::EAGAIN)), End::Over(Err(Status::EAGAIN)));
    assert!(held.is_lost(&FILE, HANDLE, None), "the program believes that it may write");
    assert!(!held.is_lost(&FILE, HANDLE + 1, None));
}

#[test]
fn a_call_that_another_one_of_its_owner_has_overtaken_is_made_once_more() {
    let (mut held, a) = (HeldLocks::default(), owner(1, 1));
    let lock = range(a, Access::Write, 0, 9);
    let waiting = held.begin(&FILE, Change::Set(lock), HANDLE).expect("nothing is lost");
    let apart = held.begin(&FILE, unlock(&range(a, Access::Write, 20, 29)), HANDLE).expect("an unlock");
    assert_eq!(held.end(&FILE, apart, Ok(())), End::Over(Ok(())));
    let over = held.begin(&FILE, unlock(&range(a, Access::Write, 5, 29)), HANDLE).expect("an unlock");
    assert_eq!(held.end(&FILE, over, Ok(())), End::Over(Ok(())));
    assert_eq!(held.end(&FILE, waiting, Ok(())), End::Again);
    assert_eq!(held.end(&FILE, waiting, Ok(())), End::Over(Ok(())));
    assert_eq!(replayed(&mut held), [lock]);
}

#[test]
fn who_has_lost_a_lock_gets_errors_until_it_is_unlocked() {
    let (mut held, a, b) = (HeldLocks::default(), owner(1, 1), owner(1, 2));
    hold(&mut held, range(a, Access::Write, 0, 9));
    hold(&mut held, range(b, Access::Write, 10, 19));
    assert_eq!(held.lose(|_| true), [(FILE, 2)]);
    assert!(held.has_lost() && held.is_lost(&FILE, HANDLE, None) && held.is_lost(&FILE, 9, Some(a)));
    for _ in 0..2 {
        let again = held.begin(&FILE, Change::Set(range(a, Access::Read, 50, 59)), HANDLE);
        assert_eq!(again, Err(Status::EIO), "as often as it asks");
    }
    for lock in [range(a, Access::Write, 0, 4), range(a, Access::Write, 5, 9)] {
        assert!(held.is_lost(&FILE, 9, Some(a)));
        let call = held.begin(&FILE, unlock(&lock), HANDLE).expect("an unlock");
        assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
    }
    assert!(!held.is_lost(&FILE, 9, Some(a)) && held.is_lost(&FILE, 9, Some(b)));
    hold(&mut held, range(a, Access::Read, 50, 59));
    let call = held.begin(&FILE, unlock(&range(b, Access::Write, 0, u64::MAX)), HANDLE).expect("an unlock");
    assert_eq!(held.end(&FILE, call, Ok(())), End::Over(Ok(())));
    assert!(!held.has_lost() && !held.is_lost(&FILE, HANDLE, None));
}

#[test]
fn a_lock_that_is_granted_beside_a_lost_one_ends_with_an_error() {
    let (mut held, a) = (HeldLocks::default(), owner(1, 1));
    hold(&mut held, range(a, Access::Write, 0, 9));
    let waiting =
        held.begin(&FILE, Change::Set(range(a, Access::Write, 50, 59)), HANDLE).expect("nothing is lost");
    held.lose(|_| true);
    assert_eq!(held.end(&FILE, waiting, Ok(())), End::Again);
    assert_eq!(held.end(&FILE, waiting, Ok(())), End::Over(Err(Status::EIO)));
}

/// A call of a program, from its request until the program has the answer.
#[derive(Clone, Copy)]
struct Asked {
    id: CallId,
    change: Change,
    waits: bool,
    ticket: WaitTicket,
    /// True while the call waits at the server.
    is_waiting: bool,
    /// Answer of the server, in flight.
    answer: Option<StatusResult<()>>,
}

/// Two clients with two programs each, and a server.
struct World {
    server: FileLocks,
    clients: BTreeMap<ClientUuid, HeldLocks>,
    asked: Vec<Asked>,
    turns: u64,
    /// Locks that programs may rely on: granted, and not being given up.
    relied_on: File,
}

impl World {
    fn new() -> World {
        World {
            server: FileLocks::new(FlockConfig::default(), false),
            clients: (1..=2).map(|client| (ClientUuid([client; 16]), HeldLocks::default())).collect(),
            asked: Vec::new(),
            turns: 0,
            relied_on: File::new(FILE),
        }
    }

    fn ask(&mut self, change: Change, waits: bool) {
        let (family, owner, extent) = change.place();
        // Owners have one thread each.
        if self.asked.iter().any(|asked| asked.change.place().1 == owner) {
            return;
        }
        let held = self.clients.get_mut(&owner.client).expect("one of the two");
        let Ok(id) = held.begin(&FILE, change, HANDLE) else {
            return self.ask(Change::Unlock(family, owner, Extent::WHOLE), false);
        };
        match change {
            Change::Unlock(..) => self.relied_on.unlock(family, owner, extent),
            Change::Set(lock) => {
                Known::make_certain(&mut self.relied_on, &Change::Set(lock));
            }
        }
        self.turns += 1;
        let ticket = WaitTicket { id: WaitId(self.turns), asked: self.turns };
        self.asked.push(Asked { id, change, waits, ticket, is_waiting: false, answer: None });
    }

    /// A request reaches the server.
    fn arrive(&mut self, place: usize) {
        let asked = self.asked[place];
        if asked.is_waiting || asked.answer.is_some() {
            return;
        }
        let mut completions = Vec::new();
        let answer = match asked.change {
            Change::Unlock(family, owner, extent) => {
                Some(self.server.on_unlock(&FILE, family, owner, extent, &mut completions))
            }
            Change::Set(lock) => {
                match self.server.on_set(&FILE, &lock, asked.waits.then_some(asked.ticket), &mut completions)
                {
                    // The call is repeated.
                    Err(Status::RECOVERING) => return,
                    Ok(SetOutcome::Waiting) => None,
                    Ok(SetOutcome::Done) => Some(Ok(())),
                    Err(status) => Some(Err(status)),
                }
            }
        };
        self.asked[place].is_waiting = answer.is_none();
        self.asked[place].answer = answer;
        self.complete(completions);
    }

    fn complete(&mut self, completions: Vec<Completion>) {
        for done in completions {
            let same = |asked: &&mut Asked| asked.ticket.id == done.wait;
            let asked = self.asked.iter_mut().find(same).expect("it waits");
            (asked.is_waiting, asked.answer) = (false, Some(done.result));
        }
    }

    /// An answer reaches its program.
    fn answer(&mut self, place: usize) {
        let Some(result) = self.asked[place].answer.take() else { return };
        let Asked { id, change, .. } = self.asked[place];
        let (_, owner, _) = change.place();
        let held = self.clients.get_mut(&owner.client).expect("one of the two");
        let End::Over(result) = held.end(&FILE, id, result) else { return };
        // Writes of owners that have lost these locks fail.
        for lock in held.files.get(&FILE).into_iter().flat_map(|known| known.lost.locks()) {
            self.relied_on.unlock(lock.family, lock.owner, lock.extent);
        }
        self.asked.remove(place);
        if let (Ok(()), Change::Set(lock)) = (result, change) {
            self.relied_on.set(&lock);
        }
        let locks: Vec<FileLock> = self.relied_on.locks().collect();
        for lock in &locks {
            let others: Vec<FileLock> = self.relied_on.blockers(lock).collect();
            assert!(others.is_empty(), "{lock:?} and {others:?}");
        }
    }

    /// The server is killed; messages in flight, or answers that the clients have just received, are lost.
    fn restart(&mut self, loses_answers: bool) {
        self.server = FileLocks::new(FlockConfig::default(), true);
        for asked in &mut self.asked {
            asked.is_waiting = false;
            asked.answer = asked.answer.filter(|_| !loses_answers);
        }
        for held in self.clients.values_mut() {
            for (resource, locks) in held.replay(|_| true) {
                for lock in locks {
                    // Also the second time, when the connection broke in between.
                    assert_eq!(self.server.on_replay(&resource, &lock, true), Ok(()), "{lock:?}");
                    assert_eq!(self.server.on_replay(&resource, &lock, false), Ok(()), "{lock:?}");
                }
            }
        }
    }

    fn end_recovery(&mut self) {
        let mut completions = Vec::new();
        self.server.end_recovery(&mut completions);
        self.complete(completions);
    }

    /// All calls are answered, and all programs give up their locks.
    fn come_to_rest(&mut self) {
        self.end_recovery();
        for round in 0..200 {
            // Programs may wait for each other in cycles over both families, which a signal ends, as on
            // Linux.
            let stuck = self.asked.iter_mut().find(|asked| round % 10 == 9 && asked.is_waiting);
            if let Some(stuck) = stuck {
                assert!(self.server.on_cancel_wait(stuck.change.place().1.client, stuck.ticket.id));
                (stuck.is_waiting, stuck.answer) = (false, Some(Err(Status::EINTR)));
            }
            (0..self.asked.len()).for_each(|place| self.arrive(place));
            (0..self.asked.len()).rev().for_each(|place| self.answer(place));
            let locks: Vec<FileLock> = self.relied_on.locks().collect();
            locks.iter().for_each(|lock| self.ask(unlock(lock), false));
        }
        assert_eq!(self.asked.len(), 0, "nobody waits for ever");
        // Programs that give up unlock what is lost or part of an unfinished conversion.
        for family in [Family::File, Family::Range] {
            for (client, number) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
                self.ask(Change::Unlock(family, owner(client, number), Extent::WHOLE), false);
            }
            (0..self.asked.len()).for_each(|place| self.arrive(place));
            (0..self.asked.len()).rev().for_each(|place| self.answer(place));
        }
        assert_eq!(self.server.locks_of(&FILE), [], "nobody has what no program has");
        assert!(self.clients.values().all(|held| held.files() == 0));
    }
}

proptest! {
    #[test]
    fn no_two_programs_rely_on_locks_that_exclude_each_other_however_often_the_server_restarts(
        steps in prop::collection::vec((0u8..14, 1u8..=2, 1u64..=2, any::<(bool, bool)>(), 0u64..8, 0u64..6), 1..150),
    ) {
        let mut world = World::new();
        for (kind, client, number, (write, flag), start, length) in steps {
            let access = if write { Access::Write } else { Access::Read };
            let owner = owner(client, number);
            let range = range(owner, access, start, start + length);
            let places = world.asked.len().max(1);
            let place = start as usize % places;
            match kind {
                0 | 1 => world.ask(Change::Set(range), flag),
                2 => world.ask(Change::Set(whole(owner, access)), flag),
                3 => world.ask(unlock(&range), false),
                4 => world.ask(unlock(&whole(owner, access)), false),
                5..=7 if place < world.asked.len() => world.arrive(place),
                8..=11 if place < world.asked.len() => world.answer(place),
                12 => world.restart(flag),
                13 => world.end_recovery(),
                _ => {}
            }
        }
        world.come_to_rest();
    }
}
