//! Tests of the file store as a whole.

use super::*;
use crate::object::in_memory::tests::{memory_dir, waits_told};
use crate::object::{Ids, ObjectStore, ObjectStoreStats, conformance};

fn options(direct: DirectIo) -> FileStoreOptions {
    FileStoreOptions { direct, direct_write_min: 4096, ..FileStoreOptions::create() }
}

#[test]
fn store_in_the_page_cache_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), &|dir| Box::new(FileStore::open(dir, options(DirectIo::Never)).unwrap()));
}

#[test]
fn store_in_memory_conforms_and_its_short_reads_are_no_waits() {
    let Some(dir) = memory_dir() else { return };
    for direct in [DirectIo::Never, DirectIo::Always] {
        let dir = tempfile::tempdir_in(dir.path()).unwrap();
        conformance::run(dir.path(), &|dir| Box::new(FileStore::open(dir, options(direct)).unwrap()));
        let dir = tempfile::tempdir_in(dir.path()).unwrap();
        let store = FileStore::open(dir.path(), options(direct)).unwrap();
        store.write(fid(1), 0, &vec![7; 1 << 20]).unwrap();
        let mut buffer = vec![0; 1 << 20];
        let read = |buffer: &mut [u8]| assert_eq!(store.read(fid(1), 0, buffer, 0).unwrap(), buffer.len());
        assert_eq!(waits_told(|| (0..20).for_each(|_| read(&mut buffer[..4096]))), 0);
        assert_eq!(waits_told(|| read(&mut buffer)), 1);
    }
}

#[test]
fn store_with_direct_writes_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), &|dir| {
        Box::new(FileStore::open(dir, options(DirectIo::LargeWrites)).unwrap())
    });
}

#[test]
fn store_that_reserves_ahead_of_streams_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { ahead_everywhere: true, ..options(DirectIo::LargeWrites) };
    conformance::run(dir.path(), &|dir| Box::new(FileStore::open(dir, options.clone()).unwrap()));
}

#[test]
fn store_around_the_page_cache_conforms() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run(dir.path(), &|dir| Box::new(FileStore::open(dir, options(DirectIo::Always)).unwrap()));
}

mod ahead;
mod crash;
mod damage;
mod full;
mod opening;
mod power;
mod sums;

const SEQUENCE: u64 = nacre_types::fid::SEQ_IDIF;

fn fid(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

fn open(dir: &Path) -> FileStore {
    FileStore::open(dir, FileStoreOptions::create()).unwrap()
}

fn open_without_spare(dir: &Path) -> FileStore {
    FileStore::open(dir, FileStoreOptions { spare_files: 0, ..FileStoreOptions::create() }).unwrap()
}

fn read(store: &FileStore, object: Fid, len: usize) -> Vec<u8> {
    let mut buffer = vec![0xee; len];
    let read = store.read(object, 0, &mut buffer, 0).unwrap();
    buffer.truncate(read);
    buffer
}

#[test]
fn more_objects_than_open_files_are_served_and_files_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { open_files_max: 64, spare_files: 0, ..FileStoreOptions::create() };
    let store = FileStore::open(dir.path(), options).unwrap();
    for round in 0..3u32 {
        let objects: Vec<Fid> = (1..=500).map(|oid| fid(round * 1000 + oid)).collect();
        for (i, &object) in objects.iter().enumerate() {
            store.write(object, 0, &[i as u8; 100]).unwrap();
        }
        for (i, &object) in objects.iter().enumerate() {
            assert_eq!(read(&store, object, 1000), [i as u8; 100]);
        }
        assert!(store.stats().open_now <= 64);
        store.destroy(&objects).unwrap();
        store.releaser.drain();
    }
    assert_eq!(store.stats().files_made, 500, "later rounds use the files of the first");
    assert_eq!(store.stats().files_free, 500);
}

#[test]
fn who_waits_for_the_space_of_destroyed_objects_finds_it_free_or_is_let_go_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_without_spare(dir.path());
    let objects: Vec<Fid> = (1..=20).map(fid).collect();
    for object in &objects {
        store.write(*object, 0, &[7; 100_000]).unwrap();
    }
    let now = nacre_env::clock::Instant::now;
    let long = std::time::Duration::from_secs(60);
    assert!(store.releaser.drain_until(now()), "nothing is on its way");
    store.destroy(&objects).unwrap();
    assert!(store.releaser.drain_until(now() + long));
    assert_eq!((store.stats().files_pending, store.stats().files_free), (0, 20));
    // A file that could not be emptied does not count as pending.
    store.releaser.lose(9, Errno::IO);
    assert!(store.releaser.drain_until(now() + long));
    assert_eq!(store.stats().files_pending, 1);
    // Slots released to this one stay in its queue: its thread was not started.
    let idle = Releaser::new(store.slots.clone(), store.index.clone(), store.reserve.clone(), 0);
    idle.release(3, &store.slots.open_file(3, OFlags::RDWR).unwrap());
    assert!(!idle.drain_until(now() + std::time::Duration::from_millis(20)));
}

#[test]
fn files_made_in_advance_are_used_and_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { spare_files: 100, ..FileStoreOptions::create() };
    let store = FileStore::open(dir.path(), options).unwrap();
    let wait_until = |is_reached: fn(&ObjectStoreStats) -> bool| {
        let until = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(60);
        while !is_reached(&store.stats()) {
            assert!(nacre_env::clock::Instant::now() < until, "{:?}", store.stats());
            nacre_env::thread::yield_now();
        }
    };
    wait_until(|stats| stats.files_made >= 32);
    for oid in 1..=60 {
        store.write(fid(oid), 0, b"data").unwrap();
        store.sync(fid(oid)).unwrap();
    }
    // At 16 left, 64 are requested. At half of those, 100: whether that happens depends on how many of the 60
    // were taken while the 64 were being created.
    wait_until(|stats| stats.files_free > 32);
    assert_eq!(store.stats().objects, 60);
    store.reserve(SEQUENCE, 60).unwrap();
    assert!(store.verify(false, &mut |_| {}).unwrap().is_clean());
}

#[test]
fn a_second_sync_of_an_object_needs_no_sync_of_the_index() {
    let dir = tempfile::tempdir().unwrap();
    let index = MetaStoreOptions { commit_interval_ms: 0, ..MetaStoreOptions::small() };
    let options = FileStoreOptions { index: Some(index), ..FileStoreOptions::create() };
    let store = FileStore::open(dir.path(), options).unwrap();
    store.write(fid(1), 0, b"a").unwrap();
    assert!(store.index.last_committed() < store.index.last_transno());
    store.sync(fid(1)).unwrap();
    assert_eq!(store.index.last_committed(), store.index.last_transno());
    let syncs = store.index.stats().syncs;
    store.write(fid(2), 0, b"b").unwrap();
    for i in 1..10 {
        store.write(fid(1), i, b"a").unwrap();
        store.sync(fid(1)).unwrap();
    }
    assert_eq!(store.index.stats().syncs, syncs);
}

#[test]
fn the_epoch_of_durability_stays_over_a_restart_of_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let epoch = open(dir.path()).durability_epoch();
    let store = open(dir.path());
    assert_eq!(store.durability_epoch(), epoch);
    store.counters.sync_failures.fetch_add(1, Ordering::Relaxed);
    assert_ne!(store.durability_epoch(), epoch, "a failed sync is a loss");
}
