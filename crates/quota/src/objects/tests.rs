use super::*;
use nacre_types::{QuotaKind, Status};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A store in memory, whose objects have space and records.
#[derive(Default)]
struct Store {
    used: Mutex<BTreeMap<Fid, u64>>,
    records: Mutex<BTreeMap<Fid, ObjectRecord>>,
    saved: Mutex<Vec<Saved>>,
}

impl Objects for Arc<Store> {
    fn record(&self, object: Fid) -> StatusResult<Option<ObjectRecord>> {
        Ok(self.records.lock().get(&object).copied())
    }

    fn put(&self, object: Fid, record: &ObjectRecord) -> StatusResult<()> {
        self.records.lock().insert(object, *record);
        Ok(())
    }

    fn remove(&self, object: Fid) -> StatusResult<()> {
        self.records.lock().remove(&object);
        Ok(())
    }

    fn used_bytes(&self, object: Fid) -> StatusResult<u64> {
        Ok(self.used.lock().get(&object).copied().unwrap_or(0))
    }

    fn records_after(&self, object: Fid, max: usize) -> StatusResult<Vec<(Fid, ObjectRecord)>> {
        let records = self.records.lock();
        let after = records.range(object..).filter(|(found, _)| **found > object);
        Ok(after.take(max).map(|(found, record)| (*found, *record)).collect())
    }

    fn sync(&self) -> StatusResult<()> {
        Ok(())
    }

    fn save(&self, accounts: &[Saved]) -> StatusResult<()> {
        self.saved.lock().extend_from_slice(accounts);
        Ok(())
    }
}

const MIB: u64 = 1 << 20;

fn of(owners: Owners) -> Owned {
    Owned { owners, place: None }
}

fn owned_by(uid: u32) -> Owners {
    Owners { uid, gid: 100, projid: 0 }
}

fn accounts(store: &Arc<Store>) -> ObjectAccounts {
    ObjectAccounts::new(Arc::new(Book::new(1)), Box::new(store.clone()))
}

fn used_by(accounts: &ObjectAccounts, uid: u32) -> u64 {
    accounts.book.used(SPACE, QuotaId { kind: QuotaKind::User, id: uid }).0
}

fn write(accounts: &ObjectAccounts, store: &Store, object: Fid, uid: u32, bytes: u64, grows: u64) {
    let counted = accounts.begin(object, of(owned_by(uid)), false, bytes).expect("charged");
    *store.used.lock().entry(object).or_default() += grows;
    accounts.end(counted);
}

#[test]
fn a_write_counts_in_full_until_the_store_says_what_it_used() {
    let store = Arc::<Store>::default();
    let accounts = accounts(&store);
    assert_eq!(accounts.count_some(), Ok(false));
    let object = Fid::new(1, 1, 0);
    write(&accounts, &store, object, 7, MIB, MIB);
    write(&accounts, &store, object, 7, MIB, 0);
    assert_eq!(used_by(&accounts, 7), 2 * MIB, "an overwrite might have taken space");
    accounts.tick().expect("recounted");
    assert_eq!(used_by(&accounts, 7), MIB);
    assert!(store.records.lock()[&object].is_active);
    (0..3).for_each(|_| accounts.tick().expect("idle"));
    let record = ObjectRecord { owners: owned_by(7), counted: MIB, is_active: false, place: None };
    assert_eq!(store.records.lock()[&object], record);
    assert!(accounts.shards.iter().all(|shard| shard.lock().entries.is_empty()));
}

#[test]
fn the_owners_of_the_first_write_stay_until_an_mdt_changes_them() {
    let store = Arc::<Store>::default();
    let accounts = accounts(&store);
    accounts.count_some().expect("counted");
    let object = Fid::new(1, 1, 0);
    write(&accounts, &store, object, 7, MIB, MIB);
    write(&accounts, &store, object, 8, MIB, MIB);
    assert_eq!((used_by(&accounts, 7), used_by(&accounts, 8)), (2 * MIB, 0));
    accounts.set_owners([(object, of(owned_by(8)))]).expect("set");
    assert_eq!((used_by(&accounts, 7), used_by(&accounts, 8)), (0, 2 * MIB));
    (0..4).for_each(|_| accounts.tick().expect("idle"));
    accounts.set_owners([(object, of(owned_by(9)))]).expect("set");
    assert_eq!((used_by(&accounts, 8), used_by(&accounts, 9)), (0, 2 * MIB));
    store.used.lock().clear();
    accounts.destroyed(&[object]).expect("gone");
    assert_eq!(used_by(&accounts, 9), 0);
    assert!(store.records.lock().is_empty());
}

#[test]
fn owners_that_are_set_before_the_first_write_count_for_it() {
    let store = Arc::<Store>::default();
    let accounts = accounts(&store);
    accounts.count_some().expect("counted");
    let object = Fid::new(1, 1, 0);
    accounts.set_owners([(object, of(owned_by(8)))]).expect("set");
    write(&accounts, &store, object, 7, MIB, MIB);
    assert_eq!((used_by(&accounts, 7), used_by(&accounts, 8)), (0, MIB));
}

#[test]
fn orphans_of_a_sequence_are_not_counted_any_more() {
    let store = Arc::<Store>::default();
    let accounts = accounts(&store);
    accounts.count_some().expect("counted");
    for oid in 1..=2000 {
        write(&accounts, &store, Fid::new(1, oid, 0), 7, 10, 10);
    }
    write(&accounts, &store, Fid::new(2, 5, 0), 7, 10, 10);
    accounts.destroyed_above(1, 3).expect("gone");
    assert_eq!(used_by(&accounts, 7), 40);
}

#[test]
fn a_failing_store_fails_the_write_and_charges_nothing() {
    struct Broken;
    impl Objects for Broken {
        fn record(&self, _: Fid) -> StatusResult<Option<ObjectRecord>> {
            Err(Status::EIO)
        }
        fn put(&self, _: Fid, _: &ObjectRecord) -> StatusResult<()> {
            Err(Status::EIO)
        }
        fn remove(&self, _: Fid) -> StatusResult<()> {
            Err(Status::EIO)
        }
        fn used_bytes(&self, _: Fid) -> StatusResult<u64> {
            Err(Status::EIO)
        }
        fn records_after(&self, _: Fid, _: usize) -> StatusResult<Vec<(Fid, ObjectRecord)>> {
            Err(Status::EIO)
        }
        fn sync(&self) -> StatusResult<()> {
            Err(Status::EIO)
        }
        fn save(&self, _: &[Saved]) -> StatusResult<()> {
            Err(Status::EIO)
        }
    }
    let accounts = ObjectAccounts::new(Arc::new(Book::new(1)), Box::new(Broken));
    assert_eq!(accounts.begin(Fid::new(1, 1, 0), of(owned_by(7)), true, 5).err(), Some(Status::EIO));
    assert_eq!(used_by(&accounts, 7), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Write { oid: u32, uid: u32, kib: u64, grows: u64 },
    Truncate { oid: u32, kib: u64 },
    Destroy { oid: u32 },
    SetOwners { oid: u32, uid: u32 },
    CountSome,
    Tick,
    Crash,
    CleanStop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (oid, uid, kib) = (1u32..8, 5u32..8, 0u64..20_000);
    let step = prop_oneof![
        8 => (oid.clone(), uid.clone(), kib.clone(), 0u64..5000)
            .prop_map(|(oid, uid, kib, grows)| Step::Write { oid, uid, kib, grows: grows.min(kib) }),
        2 => (oid.clone(), kib).prop_map(|(oid, kib)| Step::Truncate { oid, kib }),
        2 => oid.clone().prop_map(|oid| Step::Destroy { oid }),
        2 => (oid, uid).prop_map(|(oid, uid)| Step::SetOwners { oid, uid }),
        2 => Just(Step::CountSome),
        3 => Just(Step::Tick),
        1 => Just(Step::Crash),
        1 => Just(Step::CleanStop),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #[test]
    fn whatever_happens_each_owner_pays_for_its_objects_in_the_end(steps in steps()) {
        let store = Arc::<Store>::default();
        let mut accounts = accounts(&store);
        let mut owners: BTreeMap<u32, u32> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Write { oid, uid, kib, grows } => {
                    write(&accounts, &store, Fid::new(1, oid, 0), uid, kib << 10, grows << 10);
                    owners.entry(oid).or_insert(uid);
                }
                Step::Truncate { oid, kib } => {
                    let object = Fid::new(1, oid, 0);
                    if let Some(used) = store.used.lock().get_mut(&object) {
                        *used = (*used).min(kib << 10);
                    }
                    let used = store.used_bytes_of(object);
                    accounts.changed(object, of(owned_by(5)), used).expect("changed");
                    if used > 0 || store.records.lock().contains_key(&object) {
                        owners.entry(oid).or_insert(5);
                    }
                }
                Step::Destroy { oid } => {
                    let object = Fid::new(1, oid, 0);
                    store.used.lock().remove(&object);
                    accounts.destroyed(&[object]).expect("gone");
                    owners.remove(&oid);
                }
                Step::SetOwners { oid, uid } => {
                    accounts.set_owners([(Fid::new(1, oid, 0), of(owned_by(uid)))]).expect("set");
                    owners.insert(oid, uid);
                }
                Step::CountSome => drop(accounts.count_some().expect("counted")),
                Step::Tick => accounts.tick().expect("worked"),
                Step::Crash => accounts = super::tests::accounts(&store),
                Step::CleanStop => {
                    accounts.stop().expect("stopped");
                    let is_exact = store.records.lock().values().all(|record| !record.is_active);
                    prop_assert!(is_exact || !accounts.is_counted.load(Ordering::Relaxed));
                    accounts = super::tests::accounts(&store);
                }
            }
        }
        while accounts.count_some().expect("counted") {}
        accounts.tick().expect("worked");
        for uid in 5..8 {
            let of = owners.iter().filter(|(_, owner)| **owner == uid);
            let expected: u64 = of.map(|(oid, _)| store.used_bytes_of(Fid::new(1, *oid, 0))).sum();
            prop_assert_eq!(used_by(&accounts, uid), expected, "user {}", uid);
        }
    }
}

impl Store {
    fn used_bytes_of(&self, object: Fid) -> u64 {
        self.used.lock().get(&object).copied().unwrap_or(0)
    }
}
