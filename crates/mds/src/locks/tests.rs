use super::*;
use nacre_env::sync::mpsc;
use std::sync::atomic::AtomicI64;

const DIR: Fid = Fid::new(1, 1, 0);
const CHILD: Fid = Fid::new(1, 2, 0);
/// Long enough for a thread that can continue to do so.
const DEADLINE: Duration = Duration::from_secs(30);

fn name(name: &str) -> Want<'_> {
    Want::Name(DIR, name.as_bytes())
}

fn always() -> StatusResult<()> {
    Ok(())
}

fn has_kept(table: &LockTable) -> bool {
    let is_empty = |slot: usize| table.latch_slots(vec![slot]).entries(slot).is_empty();
    table.over_several.load(Ordering::SeqCst) > 0 || !(0..LOCKS).all(is_empty)
}

/// Waits until this many tickets were taken.
fn await_turns(table: &LockTable, turns: u64) {
    let deadline = nacre_env::clock::Instant::now() + DEADLINE;
    while table.next.load(Ordering::SeqCst) <= turns {
        assert!(nacre_env::clock::Instant::now() < deadline, "nobody has taken turn {turns}");
        nacre_env::thread::yield_now();
    }
}

#[test]
fn threads_that_lock_the_same_inodes_in_any_order_exclude_each_other_and_finish() {
    let table = Arc::new(LockTable::new());
    let counter = AtomicU64::new(0);
    nacre_env::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (table, counter) = (&table, &counter);
            scope.spawn(move || {
                for i in 0..2000u32 {
                    let a = Want::Whole(Fid::new(1, (i + thread) % 7, 0));
                    let b = Want::Whole(Fid::new(1, (i * 3 + thread) % 7, 0));
                    let last = Want::Whole(Fid::new(1, 100, 0));
                    let mut locked = table.lock(&[a, b]).expect("nobody stops it");
                    if !locked.add(&last) {
                        drop(locked);
                        locked = table.lock(&[a, b, last]).expect("nobody stops it");
                    }
                    let before = counter.load(Ordering::Relaxed);
                    std::hint::spin_loop();
                    counter.store(before + 1, Ordering::Relaxed);
                    drop(locked);
                }
            });
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), 8000);
}

#[test]
fn while_a_name_is_kept_others_of_the_directory_and_the_directory_itself_are_to_be_had() {
    let table = Arc::new(LockTable::new());
    let kept = table.keep(&[name("a"), Want::Whole(CHILD)], Reach::Several, &always).expect("free");
    assert!(has_kept(&table));
    drop(table.lock(&[name("b"), Want::Still(DIR)]).expect("another name"));
    let other = table.keep(&[name("b")], Reach::Several, &always).expect("another name is kept too");
    let locked = table.lock(&[Want::Still(DIR)]).expect("the directory is read");
    assert!(locked.is_locked_long(&DIR), "nobody is to remember what is about to change");
    drop((locked, other, kept));
    assert!(!has_kept(&table));
    assert!(!table.lock(&[Want::Still(DIR)]).expect("free").is_locked_long(&DIR));
}

#[test]
fn the_same_name_the_whole_directory_and_what_the_name_leads_to_wait_for_who_keeps_the_name() {
    for wanted in [name("a"), Want::Whole(DIR), Want::Whole(CHILD), Want::Still(CHILD)] {
        let table = Arc::new(LockTable::new());
        let kept = table.keep(&[name("a"), Want::Whole(CHILD)], Reach::Several, &always).expect("free");
        let (done, is_done) = mpsc::channel();
        nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                let locked = table.lock(&[wanted]);
                done.send(locked.is_ok()).expect("heard");
            });
            await_turns(&table, 2);
            assert!(is_done.try_recv().is_err(), "{wanted:?} did not wait");
            drop(kept);
            assert_eq!(is_done.recv_timeout(DEADLINE), Ok(true), "{wanted:?}");
        });
    }
}

#[test]
fn who_wants_the_whole_directory_is_not_passed_by_those_who_come_later() {
    let table = Arc::new(LockTable::new());
    let kept = table.keep(&[name("a")], Reach::Several, &always).expect("free");
    let order = Mutex::new(Vec::new());
    nacre_env::thread::scope(|scope| {
        scope.spawn(|| {
            let whole = table.keep(&[Want::Whole(DIR)], Reach::Several, &always).expect("its turn");
            order.lock().push("whole");
            drop(whole);
        });
        await_turns(&table, 2);
        scope.spawn(|| {
            let locked = table.lock(&[name("b")]).expect("its turn");
            order.lock().push("b");
            drop(locked);
        });
        await_turns(&table, 3);
        assert!(order.lock().is_empty());
        drop(kept);
    });
    assert_eq!(*order.lock(), ["whole", "b"]);
}

#[test]
fn who_is_called_off_while_it_waits_keeps_nothing_and_is_in_nobodys_way() {
    let table = Arc::new(LockTable::new());
    let kept = table.keep(&[name("a")], Reach::Several, &always).expect("free");
    let refused = table.keep(&[Want::Whole(DIR), Want::Whole(CHILD)], Reach::Several, &|| Err(Status::EINTR));
    assert_eq!(refused.map(drop), Err(Status::EINTR));
    drop(
        table
            .keep(&[name("b"), Want::Whole(CHILD)], Reach::Several, &|| Err(Status::EINTR))
            .expect("nobody is in the way"),
    );
    table.stop();
    assert_eq!(table.keep(&[name("a")], Reach::Several, &always).map(drop), Err(Status::ESHUTDOWN));
    drop(kept);
    assert!(!has_kept(&table));
}

#[test]
fn who_keeps_something_locks_it_and_asks_for_nothing_more_that_others_keep() {
    let table = Arc::new(LockTable::new());
    let kept = table.keep(&[name("a")], Reach::Several, &always).expect("free");
    let other = table.keep(&[Want::Whole(CHILD)], Reach::Several, &always).expect("free");
    assert!(table.lock_under(&[name("a"), Want::Still(DIR)], &kept).is_some());
    assert!(table.lock_under(&[name("a"), Want::Whole(CHILD)], &kept).is_none());
    let mut locked = table.lock_under(&[name("a")], &kept).expect("its own");
    assert!(!locked.add(&Want::Whole(CHILD)));
    drop((locked, other));
    assert!(table.lock_under(&[name("a"), Want::Whole(CHILD)], &kept).is_some());
}

const DIRS: usize = 3;
const NAMES: [&str; 3] = ["a", "b", "c"];

/// A directory by its number: as a whole, or one name in it.
type Thing = (usize, Option<usize>);

/// Owners at this moment: of each directory the threads that have it as a whole, and those that have each
/// name.
#[derive(Default)]
struct Owners {
    whole: [AtomicI64; DIRS],
    names: [[AtomicI64; NAMES.len()]; DIRS],
}

impl Owners {
    fn change(&self, things: &[Thing], by: i64) {
        for &(dir, name) in things {
            let count = name.map_or(&self.whole[dir], |name| &self.names[dir][name]);
            count.fetch_add(by, Ordering::SeqCst);
        }
    }

    /// Checks that no other owner has anything that excludes one of these.
    fn check(&self, things: &[Thing]) {
        for &(dir, name) in things {
            let all = |name: &AtomicI64| name.load(Ordering::SeqCst);
            assert_eq!(self.whole[dir].load(Ordering::SeqCst), i64::from(name.is_none()));
            match name {
                None => assert_eq!(self.names[dir].iter().map(all).sum::<i64>(), 0),
                Some(name) => assert_eq!(self.names[dir][name].load(Ordering::SeqCst), 1),
            }
        }
    }

    fn have(&self, things: &[Thing]) {
        self.change(things, 1);
        nacre_env::thread::yield_now();
        self.check(things);
        self.change(things, -1);
    }
}

fn want((dir, name): Thing) -> Want<'static> {
    let fid = Fid::new(1, 10 + dir as u32, 0);
    name.map_or(Want::Whole(fid), |name| Want::Name(fid, NAMES[name].as_bytes()))
}

/// Threads lock and keep names of three directories and the directories themselves, several at once; each
/// records what it has, and finds no other with anything that excludes it.
#[test]
fn nobody_ever_has_what_excludes_what_another_one_has_and_all_finish() {
    let (table, owners) = (Arc::new(LockTable::new()), Owners::default());
    nacre_env::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (table, owners) = (&table, &owners);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut roll = |below: usize| random.usize(..below);
                for _ in 0..2000 {
                    let mut things: Vec<Thing> = Vec::new();
                    for dir in 0..DIRS {
                        match roll(8) {
                            0 => things.push((dir, None)),
                            1..4 => things.push((dir, Some(roll(3)))),
                            _ => {}
                        }
                    }
                    let wants: Vec<Want<'_>> = things.iter().copied().map(want).collect();
                    if roll(2) == 0 {
                        let _locked = table.lock(&wants).expect("nobody stops it");
                        owners.have(&things);
                    } else {
                        let _kept = table.keep(&wants, Reach::Several, &always).expect("nobody stops it");
                        owners.have(&things);
                    }
                }
            });
        }
    });
    assert!(!has_kept(&table));
}

#[test]
fn who_reads_waits_for_operations_over_several_mdts_alone() {
    let table = Arc::new(LockTable::new());
    let here = table.keep(&[name("a"), Want::Whole(CHILD)], Reach::Here, &always).expect("free");
    let several = table.keep(&[name("b")], Reach::Several, &always).expect("free");
    for of in [name("a"), Want::Still(CHILD), Want::Still(DIR)] {
        table.await_decision(&of).expect("nothing is half done");
    }
    let (done, is_done) = mpsc::channel();
    nacre_env::thread::scope(|scope| {
        scope.spawn(|| done.send(table.await_decision(&name("b"))).expect("heard"));
        await_turns(&table, 3);
        assert!(is_done.try_recv().is_err());
        drop(several);
        assert_eq!(is_done.recv_timeout(DEADLINE), Ok(Ok(())));
    });
    drop(here);
    assert!(!has_kept(&table));
}
