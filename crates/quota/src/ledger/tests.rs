use super::*;
use crate::{Admission, Book};
use nacre_types::Owners;
use proptest::prelude::*;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const SPACE: QuotaResource = QuotaResource::Space;
const INODES: QuotaResource = QuotaResource::Inodes;
const MINE: Owners = Owners { uid: 7, gid: 8, projid: 9 };
const USER: QuotaId = QuotaId { kind: QuotaKind::User, id: 7 };

fn ost(index: u16) -> Target {
    Target { is_mdt: false, index }
}

fn mdt(index: u16) -> Target {
    Target { is_mdt: true, index }
}

fn hard(resource: QuotaResource, hard: u64) -> Limit {
    let mut limit = Limit::default();
    limit.limits[resource as usize].hard = hard;
    limit
}

/// A master with targets, and the time.
struct World {
    ledger: Ledger,
    books: Vec<(Target, Arc<Book>)>,
    now_s: u64,
}

impl World {
    fn new(targets: &[Target], pools: &[(&str, &[u16])]) -> World {
        let mut ledger = Ledger::new([], [[0; 2]; 3]);
        let pools = pools.iter().map(|(name, osts)| ((*name).to_owned(), osts.iter().copied().collect()));
        ledger.set_targets(targets, pools.collect());
        let books = targets.iter().map(|target| (*target, Arc::new(Book::new(1)))).collect::<Vec<_>>();
        books.iter().for_each(|(_, book)| book.complete());
        World { ledger, books, now_s: 1000 }
    }

    fn round_of(&mut self, place: usize) {
        let (target, book) = self.books[place].clone();
        let round = self.ledger.round_for(target);
        let report = book.round(&round);
        self.ledger.report(target, &round, &report);
        self.ledger.divide(self.now_s);
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            (0..self.books.len()).for_each(|place| self.round_of(place));
        }
    }

    /// Uses as much as the target admits, up to `bytes` in steps; returns that.
    fn write(&mut self, place: usize, resource: QuotaResource, step: u64, count: u64) -> u64 {
        let book = self.books[place].1.clone();
        let payers = book.payers(resource, MINE);
        let mut written = 0;
        for _ in 0..count {
            if let Admission::Over(_) = book.admission(resource, &payers, step, 0) {
                break;
            }
            payers.add(step as i64);
            written += step;
        }
        written
    }

    fn used(&self) -> u64 {
        self.books.iter().map(|(_, book)| book.used(SPACE, USER).0).sum()
    }
}

fn key(pool: &str, id: Option<u32>) -> Key {
    Key { pool: pool.to_owned(), kind: QuotaKind::User, id }
}

#[test]
fn writers_of_all_targets_together_reach_the_limit_and_not_more() {
    let mut world = World::new(&[ost(0), ost(1), ost(2), mdt(0)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, 1000 * MIB)));
    world.rounds(2);
    for _ in 0..40 {
        for place in 0..3 {
            world.write(place, SPACE, MIB, 400);
        }
        world.rounds(1);
    }
    assert_eq!(world.used(), 1000 * MIB);
    assert_eq!(world.ledger.state("", USER).space.used, 1000 * MIB);
}

#[test]
fn one_writer_gets_all_of_the_limit_whichever_targets_are_idle() {
    let mut world = World::new(&[ost(0), ost(1), ost(2), ost(3)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, 100 * MIB)));
    world.rounds(2);
    for _ in 0..30 {
        world.write(2, SPACE, MIB, 100);
        world.rounds(1);
    }
    assert_eq!(world.used(), 100 * MIB);
}

#[test]
fn space_that_is_freed_at_one_target_is_available_at_another() {
    let mut world = World::new(&[ost(0), ost(1)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, 10 * MIB)));
    world.rounds(2);
    for _ in 0..10 {
        world.write(0, SPACE, MIB, 10);
        world.rounds(1);
    }
    assert_eq!(world.used(), 10 * MIB);
    assert_eq!(world.write(1, SPACE, MIB, 10), 0);
    world.books[0].1.add(SPACE, MINE, -(10 * MIB as i64));
    world.rounds(3);
    for _ in 0..10 {
        world.write(1, SPACE, MIB, 10);
        world.rounds(1);
    }
    assert_eq!(world.used(), 10 * MIB);
}

#[test]
fn a_raised_limit_helps_a_target_that_was_refused_more_and_does_not_ask_again() {
    let mut world = World::new(&[ost(0), ost(1)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, 10 * MIB)));
    for _ in 0..10 {
        world.rounds(1);
        world.write(0, SPACE, MIB, 10);
    }
    world.rounds(3);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, 90 * MIB)));
    world.ledger.divide(world.now_s);
    world.rounds(2);
    assert_eq!(world.write(0, SPACE, MIB, 4), 4 * MIB);
}

#[test]
fn a_limit_for_a_pool_concerns_its_osts_only() {
    let mut world = World::new(&[ost(0), ost(1), ost(2)], &[("flash", &[0, 1])]);
    world.ledger.set(key("flash", Some(7)), Some(hard(SPACE, 8 * MIB)));
    world.rounds(2);
    for _ in 0..20 {
        (0..3).for_each(|place| _ = world.write(place, SPACE, MIB, 100));
        world.rounds(1);
    }
    let used = |place: usize| world.books[place].1.used(SPACE, USER).0;
    assert_eq!(used(0) + used(1), 8 * MIB);
    assert_eq!(used(2), 2000 * MIB, "not limited");
    assert_eq!(world.ledger.state("flash", USER).space.used, 8 * MIB);
}

#[test]
fn inodes_are_limited_at_mdts_only() {
    let mut world = World::new(&[ost(0), mdt(0), mdt(1)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(INODES, 1000)));
    world.rounds(2);
    for _ in 0..40 {
        (1..3).for_each(|place| _ = world.write(place, INODES, 1, 600));
        world.rounds(1);
    }
    let used: u64 = world.books.iter().map(|(_, book)| book.used(INODES, USER).0).sum();
    assert_eq!(used, 1000);
}

#[test]
fn a_soft_limit_counts_after_its_grace_and_again_from_the_start_once_use_was_below() {
    let mut world = World::new(&[ost(0)], &[]);
    let mut limit = hard(SPACE, 100 * MIB);
    limit.limits[SPACE as usize].soft = 10 * MIB;
    world.ledger.set(key("", Some(7)), Some(limit));
    world.ledger.set_grace(QuotaKind::User, SPACE, 60);
    world.rounds(2);
    assert_eq!(world.write(0, SPACE, MIB, 20), 20 * MIB);
    world.rounds(2);
    assert_eq!(world.ledger.state("", USER).space.grace_ends_s, 1060);
    assert_eq!(world.ledger.take_changed().len(), 1, "it survives a restart of the master");
    assert_eq!(world.write(0, SPACE, MIB, 1), MIB, "within the grace");
    world.now_s = 1061;
    world.rounds(2);
    assert_eq!(world.write(0, SPACE, MIB, 1), 0);
    world.books[0].1.add(SPACE, MINE, -(15 * MIB as i64));
    world.rounds(2);
    assert_eq!(world.ledger.state("", USER).space.grace_ends_s, 0);
    assert_eq!(world.write(0, SPACE, MIB, 20), 20 * MIB);
}

#[test]
fn defaults_apply_to_ids_without_limits_of_their_own_and_not_to_root() {
    let mut world = World::new(&[ost(0), ost(1)], &[]);
    world.ledger.set(key("", None), Some(hard(SPACE, 16 * MIB)));
    world.rounds(2);
    for _ in 0..20 {
        (0..2).for_each(|place| _ = world.write(place, SPACE, MIB, 100));
        world.rounds(1);
    }
    assert_eq!(world.used(), 16 * MIB);
    assert!(world.ledger.state("", USER).is_default);
    let root = world.books[0].1.payers(SPACE, Owners::default());
    assert_eq!(world.books[0].1.admission(SPACE, &root, 1 << 40, 0), Admission::Free);
    world.ledger.set(key("", Some(7)), Some(Limit::default()));
    world.rounds(3);
    assert_eq!(world.write(0, SPACE, MIB, 100), 100 * MIB, "an own record without limits");
}

#[test]
fn a_removed_limit_is_removed_at_the_targets() {
    let mut world = World::new(&[ost(0), ost(1)], &[]);
    world.ledger.set(key("", Some(7)), Some(hard(SPACE, MIB)));
    world.rounds(2);
    assert_eq!(world.write(0, SPACE, MIB, 5), 0, "a part is kept for the other one");
    world.ledger.set(key("", Some(7)), None);
    assert_ne!(world.ledger.rounds(), Rounds::None);
    world.rounds(3);
    assert_eq!(world.write(0, SPACE, MIB, 5), 5 * MIB);
    assert_eq!(world.ledger.rounds(), Rounds::None);
}

#[test]
fn ids_with_use_or_limits_are_listed_in_order() {
    let mut world = World::new(&[ost(0)], &[]);
    world.ledger.set(key("", Some(3)), Some(hard(SPACE, MIB)));
    world.write(0, SPACE, MIB, 1);
    world.rounds(2);
    let first = QuotaId { kind: QuotaKind::User, id: 0 };
    assert_eq!(world.ledger.next("", first).map(|id| id.id), Some(3));
    assert_eq!(world.ledger.next("", QuotaId { id: 4, ..first }).map(|id| id.id), Some(7));
    assert_eq!(world.ledger.next("", QuotaId { id: 8, ..first }), None);
}

#[derive(Clone, Debug)]
enum Step {
    Write { place: usize, kib: u64 },
    Free { place: usize, kib: u64 },
    Round { place: usize },
    LostReport { place: usize },
    LostRound { place: usize },
    Restart { place: usize },
    SetLimit { mib: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = 0usize..4;
    let step = prop_oneof![
        6 => (place.clone(), 1u64..9000).prop_map(|(place, kib)| Step::Write { place, kib }),
        2 => (place.clone(), 1u64..9000).prop_map(|(place, kib)| Step::Free { place, kib }),
        6 => place.clone().prop_map(|place| Step::Round { place }),
        1 => place.clone().prop_map(|place| Step::LostReport { place }),
        1 => place.clone().prop_map(|place| Step::LostRound { place }),
        1 => place.prop_map(|place| Step::Restart { place }),
        1 => (1u64..200).prop_map(|mib| Step::SetLimit { mib }),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn use_exceeds_neither_the_limit_nor_what_it_was_when_the_limit_was_set(steps in steps()) {
        let mut world = World::new(&[ost(0), ost(1), ost(2), ost(3)], &[]);
        world.ledger.set(key("", Some(7)), Some(hard(SPACE, 50 * MIB)));
        world.rounds(3);
        let mut bound = 50 * MIB;
        for step in steps {
            match step {
                Step::Write { place, kib } => drop(world.write(place, SPACE, kib << 10, 1)),
                Step::Free { place, kib } => {
                    let used = world.books[place].1.used(SPACE, USER).0;
                    world.books[place].1.add(SPACE, MINE, -(used.min(kib << 10) as i64));
                }
                Step::Round { place } => world.round_of(place),
                Step::LostReport { place } => {
                    let (target, book) = world.books[place].clone();
                    book.round(&world.ledger.round_for(target));
                }
                Step::LostRound { place } => drop(world.ledger.round_for(world.books[place].0)),
                Step::Restart { place } => {
                    let saved = world.books[place].1.saved();
                    let run = world.books[place].1.round(&QuotaRound::default()).run;
                    let next = Book::new(run + 1);
                    next.restore(&saved);
                    let of_mine = saved.iter().find(|saved| saved.id == USER);
                    next.add(SPACE, MINE, of_mine.map_or(0, |saved| saved.used as i64));
                    next.complete();
                    world.books[place].1 = Arc::new(next);
                }
                Step::SetLimit { mib } => {
                    // A lower limit takes effect when all targets have their slices.
                    world.rounds(3);
                    world.ledger.set(key("", Some(7)), Some(hard(SPACE, mib * MIB)));
                    world.rounds(4);
                    bound = world.used().max(mib * MIB);
                }
            }
            prop_assert!(world.used() <= bound, "{} of {bound}", world.used());
            bound = bound.max(world.used());
        }
        // Nothing is left unused while somebody wants it.
        let state = world.ledger.state("", USER);
        let limit = state.space.limits.hard;
        for _ in 0..40 {
            world.rounds(2);
            (0..4).for_each(|place| _ = world.write(place, SPACE, 64 << 10, 1000));
        }
        prop_assert!(world.used() + 4 * (64 << 10) >= limit, "{} of {limit}", world.used());
    }
}

#[test]
fn the_largest_owners_are_those_with_most_space_or_inodes_or_beyond_a_soft_limit() {
    let mut world = World::new(&[ost(0), ost(1), mdt(0)], &[]);
    for uid in 1..=9u32 {
        let owners = Owners { uid, gid: 1, projid: 0 };
        for place in 0..2 {
            world.books[place].1.add(SPACE, owners, i64::from(uid) << 20);
        }
        world.books[2].1.add(INODES, owners, i64::from(100 - uid));
    }
    let key = Key { pool: String::new(), kind: QuotaKind::User, id: Some(5) };
    let mut limit = Limit::default();
    limit.limits[SPACE as usize].soft = MIB;
    world.ledger.set(key, Some(limit));
    world.rounds(3);
    let users = |count| -> Vec<u32> {
        let largest = world.ledger.largest(count);
        largest.iter().filter(|state| state.id.kind == QuotaKind::User).map(|state| state.id.id).collect()
    };
    assert_eq!(users(1), [9, 5, 1], "most space, beyond its soft limit, most inodes");
    assert_eq!(users(2), [9, 8, 5, 2, 1]);
    let all = world.ledger.largest(20);
    assert_eq!((all[0].space.used, all[0].inodes.used), (18 * MIB, 91));
    assert_eq!(all.len(), 9 + 1 + 1, "users, the group, and project 0");
    assert_eq!(world.ledger.largest(0), []);
}

#[test]
fn space_of_files_with_a_new_owner_is_admitted_up_to_its_limit_and_counts_at_once() {
    let mut world = World::new(&[ost(0), mdt(0)], &[]);
    world.books[0].1.add(SPACE, MINE, 4 * MIB as i64);
    world.rounds(2);
    assert!(world.ledger.admit_space(USER, 1 << 50, 1000), "without a limit");
    let key = Key { pool: String::new(), kind: QuotaKind::User, id: Some(7) };
    let mut limit = hard(SPACE, 10 * MIB);
    limit.limits[SPACE as usize].soft = 5 * MIB;
    world.ledger.set(key.clone(), Some(limit));
    assert!(!world.ledger.admit_space(USER, 7 * MIB, 1000), "4 are used, 6 are left");
    assert!(world.ledger.admit_space(USER, 4 * MIB, 1000));
    assert!(!world.ledger.admit_space(USER, 3 * MIB, 1001), "the targets have not reported the others yet");
    assert!(world.ledger.admit_space(USER, 2 * MIB, 1001));
    // The files were removed at once.
    assert!(world.ledger.admit_space(USER, 6 * MIB, 1005));
    // After the grace time the soft limit counts.
    limit.grace_ends_s[SPACE as usize] = 1010;
    world.ledger.set(key, Some(limit));
    assert!(world.ledger.admit_space(USER, MIB, 1015));
    assert!(!world.ledger.admit_space(USER, MIB, 1015));
    let other = QuotaId { kind: QuotaKind::Group, id: 7 };
    assert!(world.ledger.admit_space(other, 1 << 50, 1015));
}
