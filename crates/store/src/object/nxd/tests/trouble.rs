//! Routing of writes, failing and foreign devices, full logs.

use super::*;
use crate::object::block::device::{AlignedBuffer, BLOCK, WriteOp};
use nacre_types::Status;

fn message(result: Result<Nxd>) -> String {
    match result {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

fn flash(mib: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(mib << 20))
}

fn below(store: &Nxd, object: Fid) -> Vec<u8> {
    contents(store.store(), object)
}

#[test]
fn small_writes_go_to_the_cache_and_large_ones_and_streams_to_the_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut options = quiet();
    options.settings.stream_writes = 4;
    let store = in_memory(dir.path(), &flash(4), &options);
    store.write(fid(1), 40_960, &[1; 4096]).expect("small");
    assert_eq!(store.attr(fid(1)).expect("attr").size, 45_056);
    assert_eq!(below(&store, fid(1)), vec![0; 45_056], "the disk has only the size");
    store.write(fid(1), 0, &[2; 32 << 10]).expect("as large as the threshold");
    store.write(fid(2), 0, &[3; (32 << 10) + 1]).expect("larger");
    assert_eq!(below(&store, fid(2)), [3; (32 << 10) + 1]);
    for at in 0..10u64 {
        store.write(fid(3), at * 4096, &[4; 4096]).expect("a stream");
    }
    let stats = store.cache_stats();
    assert_eq!((stats.writes, stats.bypassed_large, stats.bypassed_stream), (2 + 3, 1, 7));
    assert_eq!(stats.dirty, 4096 + (32 << 10) + 3 * 4096);
    assert!(stats.is_needed);
    let mut buffer = [0; 100];
    for (object, offset) in [(1, 100), (1, 36_860), (2, 0)] {
        store.read(fid(object), offset, &mut buffer, 0).expect("read");
    }
    let mut long = [0; 8192];
    store.read(fid(1), 36_860, &mut long, 0).expect("read");
    let stats = store.cache_stats();
    assert_eq!((stats.read_hits, stats.read_parts, stats.read_misses), (1, 1, 2));
    assert_eq!(stats.read_hit_bytes, 100 + 4092);
    store.flush_now().expect("written back");
    let stats = store.cache_stats();
    assert_eq!((stats.dirty, stats.used, stats.is_needed), (0, 0, false));
    // Neighbours are written in one transfer: two of object 1, one of object 3.
    assert_eq!(stats.flush_writes, 3);
    assert_eq!(below(&store, fid(3)), [4; 40_960]);
    assert_clean(&store, "written back");
}

#[test]
fn times_and_versions_stay_what_they_are_when_data_is_written_back() {
    for base in [file_store, block_store] {
        let dir = tempfile::tempdir().expect("a directory");
        let inner = base(dir.path());
        ids(&*inner).reserve(fid(1).seq, 100).expect("reserved");
        let store = Nxd::open(dir.path(), inner, flash(4), &quiet()).expect("opens");
        store.write(fid(1), 0, &[1; 4096]).expect("written");
        let first = store.attr(fid(1)).expect("attr");
        store.write(fid(1), 0, &[2; 4096]).expect("written");
        let second = store.attr(fid(1)).expect("attr");
        assert!(second.mtime >= first.mtime);
        store.flush_now().expect("written back");
        assert_eq!(store.attr(fid(1)).expect("attr").mtime, second.mtime);
        assert_eq!(store.store().attr(fid(1)).expect("attr").mtime, second.mtime);
        store.write(fid(1), 0, &vec![3; 100_000]).expect("written");
        assert!(store.attr(fid(1)).expect("attr").mtime >= second.mtime);
    }
}

#[test]
fn a_cache_is_switched_off_and_drained_while_it_is_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let (device, options) = (flash(4), quiet());
    let store = in_memory(dir.path(), &device, &options);
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.set_settings(NxdSettings { mode: NxdMode::Off, ..options.settings });
    store.write(fid(1), 8192, &[2; 4096]).expect("written");
    assert_eq!(below(&store, fid(1))[8192..], [2; 4096]);
    store.write(fid(1), 100, &[3; 100]).expect("over what is cached");
    let expected = [&[1; 100][..], &[3; 100], &[1; 3896], &[0; 4096], &[2; 4096]].concat();
    assert!(contents(&store, fid(1)) == expected);
    store.set_settings(NxdSettings { mode: NxdMode::Drain, ..options.settings });
    let end = Instant::now() + Duration::from_secs(30);
    while store.cache_stats().is_needed {
        assert!(Instant::now() < end, "{:?}", store.cache_stats());
        nacre_env::thread::yield_now();
    }
    assert!(below(&store, fid(1)) == expected);
    store.close().expect("closed");
    drop(store);
    // Its device may be lost from here on.
    check_without(dir.path()).expect("not needed");
    let store = in_memory(dir.path(), &flash(2), &options);
    assert!(contents(&store, fid(1)) == expected);
    store.write(fid(1), 0, &[4; 512]).expect("written");
    assert!(store.cache_stats().is_needed);
}

#[test]
fn a_cache_that_holds_nothing_is_taken_away_for_good_and_no_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, device) = (dir.path().join("store"), flash(4));
    let store = in_memory(&path, &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.close().expect("closed");
    drop(store);
    let writes = device.stats().writes;
    let text = remove(&path, Some(&*device), false).expect_err("it holds data").to_string();
    assert!(text.contains("without it they are lost"), "{text}");
    assert_eq!(device.stats().writes, writes);
    let store = in_memory(&path, &device, &quiet());
    store.flush_now().expect("written back");
    store.close().expect("closed");
    drop(store);
    // The cache of another store is not touched, whatever its path.
    let other = flash(4);
    let store = in_memory(&dir.path().join("other"), &other, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.flush_now().expect("written back");
    drop(store);
    let writes = other.stats().writes;
    assert!(!remove(&path, Some(&*other), false).expect("taken away"));
    assert_eq!(other.stats().writes, writes);
    assert_eq!(cache_of(&path).expect("readable"), None);
    assert!(!remove(&path, Some(&*device), false).expect("there is none"));
    assert_eq!(contents(&*block_store(&path), fid(1)), [1; 4096]);
    // With its own device, which is free for any use afterwards.
    let dir = dir.path().join("other");
    assert!(check_unused(&*other).is_err());
    assert!(remove(&dir, Some(&*other), false).expect("taken away"));
    check_unused(&*other).expect("nobody's");
    assert_clean(&*block_store(&dir), "without its cache");
}

#[test]
fn a_store_whose_cache_holds_data_is_not_used_without_it_unless_it_is_forced() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, device) = (dir.path().join("store"), flash(4));
    let store = in_memory(&path, &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.close().expect("closed");
    drop(store);
    let text = check_without(&path).expect_err("needed").to_string();
    assert!(text.contains("only there, not in the store") && text.contains("4194304 bytes"), "{text}");
    let open = |device: &Arc<MemoryDevice>, force| {
        Nxd::open(&path, block_store(&path), device.clone(), &NxdOptions { force, ..quiet() })
    };
    let text = message(open(&flash(4), false));
    assert!(text.contains("only there"), "{text}");
    // With the right one the data is there, and the wrong one was not written to.
    let store = open(&device, false).expect("opens");
    assert_eq!(contents(&store, fid(1)), [1; 4096]);
    drop(store);
    // The store is not marked complete before its cache is removed.
    device.order(Fault::PowerAfter(0));
    remove(&path, Some(&*device), true).expect_err("the device cannot be wiped");
    check_without(&path).expect_err("still needed");
    device.repair();
    assert!(remove(&path, Some(&*device), true).expect("given up"));
    check_without(&path).expect("nothing more to lose");
    check_unused(&*device).expect("nobody's");
    let inner = block_store(&path);
    assert_eq!(contents(&*inner, fid(1)), [0; 4096]);
}

#[test]
fn devices_of_others_are_refused_and_not_overwritten() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let (first, second) = (flash(4), flash(4));
    let store = in_memory(&one, &first, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    drop(store);
    drop(in_memory(&two, &second, &quiet()));
    let open = |path: &Path, device: &Arc<MemoryDevice>, options| {
        Nxd::open(path, block_store(path), device.clone(), &options)
    };
    for (path, device) in [(&one, &second), (&two, &first), (&dir.path().join("three"), &first)] {
        let writes = device.stats().writes;
        let text = message(open(path, device, quiet()));
        assert!(text.contains("another store"), "{text}");
        assert_eq!(device.stats().writes, writes);
    }
    let foreign = flash(4);
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    block[..4].copy_from_slice(b"XFSB");
    foreign.write(&[WriteOp { offset: 0, data: &block }]).expect("written");
    let text = message(open(&dir.path().join("four"), &foreign, quiet()));
    assert!(text.contains("XFS") && text.contains("nothing was overwritten"), "{text}");
    let text = message(open(&dir.path().join("five"), &Arc::new(MemoryDevice::new(65536)), quiet()));
    assert!(text.contains("less than"), "{text}");
    drop(open(&dir.path().join("four"), &foreign, NxdOptions { force: true, ..quiet() }).expect("forced"));
    let store = open(&one, &first, quiet()).expect("opens");
    assert_eq!(contents(&store, fid(1)), [1; 4096]);
    drop(store);
    // One copy of the superblock is enough.
    first.flip_bit(20, 0);
    drop(open(&one, &first, quiet()).expect("opens"));
    first.flip_bit(20, 0);
    first.flip_bit((4 << 20) - BLOCK + 20, 0);
    let text = message(open(&one, &first, quiet()));
    assert!(text.contains("another store") || text.contains("only there"), "{text}");
}

#[test]
fn damaged_data_in_the_log_is_an_error_and_is_found() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = flash(4);
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    store.write(fid(2), 0, &[2; 4096]).expect("written");
    // The superblock, the header of the first batch, its data.
    device.flip_bit(2 * BLOCK + 50, 3);
    let mut buffer = [0; 4096];
    assert_eq!(store.read(fid(1), 0, &mut buffer, 0).expect_err("damaged").status(), Status::EIO);
    store.read(fid(2), 0, &mut buffer, 0).expect("whole");
    assert_eq!(buffer, [2; 4096]);
    let report = store.verify(false, &mut |_| {}).expect("runs");
    assert_eq!(report.problems, [crate::object::ObjectProblem::Cached { object: fid(1), offset: 0 }]);
    assert_eq!(store.flush_now().expect_err("not written back").status(), Status::EIO);
    assert_eq!(below(&store, fid(1)), [0; 4096], "damaged data does not reach the disk");
    assert!(store.cache_stats().is_needed);
    device.flip_bit(2 * BLOCK + 50, 3);
    store.flush_now().expect("whole again");
    assert_eq!(below(&store, fid(1)), [1; 4096]);
}

#[test]
fn a_superblock_that_cannot_be_written_is_no_failure_of_writing_back_and_is_tried_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = flash(4);
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    let before = device.operations();
    // The next write of the device is that of the superblock, when the log is idle.
    device.order(Fault::TornWrite(0));
    store.sync(fid(1)).expect("synced");
    let end = Instant::now() + Duration::from_secs(30);
    let flush_and_refused_write = 2;
    while device.operations() <= before + flush_and_refused_write {
        assert!(Instant::now() < end);
        nacre_env::thread::yield_now();
    }
    assert_eq!(store.cache_stats().flush_failures, 0);
}

#[test]
fn a_write_that_the_log_refuses_goes_to_the_disk_and_does_not_come_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = flash(4);
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    device.order(Fault::TornWrite(0));
    store.write(fid(2), 0, &[2; 4096]).expect("goes to the disk");
    assert_eq!(below(&store, fid(2)), [2; 4096]);
    assert_eq!(store.cache_stats().bypassed_other, 1);
    store.write(fid(2), 0, &vec![3; 40_000]).expect("written");
    let epoch = store.durability_epoch();
    device.order(Fault::Flush(0));
    assert_eq!(store.sync(fid(1)).expect_err("fails").status(), Status::EIO);
    assert_ne!(store.durability_epoch(), epoch);
    store.sync(fid(1)).expect("the next one works");
    drop(store);
    let store = in_memory(dir.path(), &device, &quiet());
    assert_eq!(contents(&store, fid(1)), [1; 4096]);
    assert!(contents(&store, fid(2)) == [3; 40_000]);
}

#[test]
fn nothing_is_changed_below_a_log_that_cannot_say_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = flash(4);
    let store = in_memory(dir.path(), &device, &quiet());
    store.write(fid(1), 0, &[1; 4096]).expect("written");
    device.order(Fault::PowerAfter(0));
    for refused in [
        store.write(fid(1), 0, &vec![2; 40_000]).map(drop),
        store.truncate(fid(1), 0).map(drop),
        store.write(fid(1), 0, &[3; 4096]).map(drop),
        store.write(fid(2), 0, &[3; 4096]).map(drop),
    ] {
        assert_eq!(refused.expect_err("refused").status(), Status::EIO);
    }
    assert!(store.read(fid(1), 0, &mut [0; 10], 0).is_err(), "not the old bytes of the disk");
    device.repair();
    assert_eq!(contents(&store, fid(1)), [1; 4096]);
    store.truncate(fid(1), 10).expect("cut");
    assert_eq!(contents(&store, fid(1)), [1; 10]);
}

#[test]
fn a_full_log_is_written_back_for_those_who_wait_or_gone_around() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &flash(1), &quiet());
    let mut random = fastrand::Rng::with_seed(5);
    let mut model = vec![0u8; 8 << 20];
    store.truncate(fid(1), model.len() as u64).expect("sized");
    for round in 0..1500u64 {
        let at = random.usize(..2048) * 4096;
        model[at..at + 4096].fill(round as u8);
        store.write(fid(1), at as u64, &[round as u8; 4096]).expect("written");
    }
    let stats = store.cache_stats();
    assert_eq!((stats.writes, stats.bypassed_full), (1500, 0));
    assert!(stats.flushed_bytes > 4 << 20);
    assert!(contents(&store, fid(1)) == model);
    // A write that does not wait goes to the disk.
    store.set_settings(NxdSettings { full_wait_ms: 0, ..quiet().settings });
    for round in 0..1500u64 {
        let at = random.usize(..2048) * 4096;
        model[at..at + 4096].fill(round as u8);
        store.write(fid(1), at as u64, &[round as u8; 4096]).expect("written");
    }
    assert!(store.cache_stats().bypassed_full > 0);
    assert!(contents(&store, fid(1)) == model);
}

#[test]
fn a_full_disk_takes_back_all_that_the_cache_took() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = Arc::new(MemoryDevice::new(8 << 20));
    // A store that writes elsewhere needs some free blocks for that.
    let with_reserve = BlockStoreOptions { reserve_bytes: Some(1 << 20), ..block_options() };
    let inner = BlockStore::open_with(dir.path(), with_reserve, disk).expect("opens");
    inner.reserve(fid(1).seq, 10_000).expect("reserved");
    let store = Nxd::open(dir.path(), Arc::new(inner), flash(16), &quiet()).expect("opens");
    let mut taken = 0;
    let refused = loop {
        match store.write(fid(1), taken * 4096, &[7; 4096]) {
            Ok(4096) => taken += 1,
            Ok(_) => {}
            Err(error) => break error,
        }
        assert!(taken < 3000);
    };
    assert_eq!(refused.status(), Status::ENOSPC);
    assert!(taken > 1000 && taken < 1800, "{taken}");
    store.flush_now().expect("all of it has its space");
    assert!(below(&store, fid(1)) == vec![7; taken as usize * 4096]);
    store.write(fid(1), 0, &[8; 4096]).expect("an overwrite needs no space");
    store.flush_now().expect("written back");
    assert_eq!(below(&store, fid(1))[..4096], [8; 4096]);
    assert_clean(&store, "full");
}

#[test]
fn threads_that_write_at_the_same_time_share_transfers_of_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &flash(16), &quiet());
    store.truncate(fid(1), 1 << 20).expect("sized");
    nacre_env::thread::scope(|scope| {
        for thread in 0..8u64 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..100u64 {
                    let offset = (round % 4 * 8 + thread) * 4096;
                    store.write(fid(1), offset, &[thread as u8 + 1; 4096]).expect("written");
                    store.sync(fid(1)).expect("synced");
                    let mut back = [0; 4096];
                    store.read(fid(1), offset, &mut back, 0).expect("read");
                    assert_eq!(back, [thread as u8 + 1; 4096]);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..20 {
                store.flush_now().expect("written back");
            }
        });
    });
    let stats = store.cache_stats();
    assert_eq!(stats.writes, 800);
    assert!(stats.batches <= 800);
    for thread in 0..8usize {
        assert_eq!(contents(&store, fid(1))[thread * 4096..][..4096], [thread as u8 + 1; 4096]);
    }
    assert_clean(&store, "after threads");
}
