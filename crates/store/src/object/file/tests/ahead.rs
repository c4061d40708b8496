//! Space reserved ahead of streams.

use super::*;
use crate::object::Fallocate;
use crate::object::fiemap;
use crate::object::file::ahead::{AHEAD, AheadBook, REST_MS, WORTH_IT};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

/// On any file system, so that the counters can be tested everywhere.
fn everywhere() -> FileStoreOptions {
    FileStoreOptions { ahead_everywhere: true, ..FileStoreOptions::create() }
}

/// Opens a store that shares no state with those of concurrent tests in this process.
fn alone(dir: &Path, options: FileStoreOptions) -> FileStore {
    FileStore::open_on(dir, options, Tree::open, |_| Arc::default()).unwrap()
}

/// Returns bytes that no two objects have in common.
fn pattern(object: Fid) -> Vec<u8> {
    (0..MIB as u32).map(|place| (place.wrapping_mul(object.oid * 2 + 1) >> 7) as u8).collect()
}

fn stream(store: &FileStore, object: Fid, from_mib: usize, mib: usize) {
    let data = pattern(object);
    for piece in from_mib..from_mib + mib {
        assert_eq!(store.write(object, (piece * MIB) as u64, &data).unwrap(), MIB);
    }
}

/// Returns the bytes that the file of an object takes, whichever owner they are counted for.
fn taken(store: &FileStore, object: Fid) -> u64 {
    let handle = store.find(object).unwrap().unwrap();
    handle.file.stat().unwrap().blocks * 512
}

/// Metadata of the file system for the places of data, in addition to the data.
const MAPS: u64 = 128 << 10;

#[test]
fn what_is_reserved_is_counted_neither_as_the_objects_nor_as_used() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    let before = store.space().unwrap();
    stream(&store, fid(1), 0, 9);
    let reserved = store.ahead.reserved_bytes();
    assert!(reserved >= MIB as u64, "{reserved}");
    assert!(taken(&store, fid(1)) >= 9 * MIB as u64 + reserved);
    let attr = store.attr(fid(1)).unwrap();
    assert_eq!(attr.size, 9 * MIB as u64);
    assert!((attr.blocks * 512).abs_diff(attr.size) <= MAPS, "{attr:?}");
    // Other processes use the file system too: the test can only show that reserved space is not missing.
    let after = store.space().unwrap();
    let raw = store.slots.tree().space().unwrap();
    let bare = store.reserve.available(&raw, 0);
    assert!(after.available >= bare + reserved / 2, "{before:?} {after:?} {bare}");
}

#[test]
fn a_stream_that_rests_gives_back_what_it_has_and_nothing_else_of_it_changes() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    stream(&store, fid(1), 0, 6);
    store.write(fid(1), 6 * MIB as u64, b"the end").unwrap();
    let attr = store.attr(fid(1)).unwrap();
    store.ahead.give_back_rested(ops::coarse_ms());
    assert!(store.ahead.reserved_bytes() > 0, "it does not rest yet");
    store.ahead.give_back_rested(ops::coarse_ms() + REST_MS);
    assert_eq!(store.ahead.reserved_bytes(), 0);
    assert!(taken(&store, fid(1)) <= attr.size + MAPS);
    let after = store.attr(fid(1)).unwrap();
    assert_eq!((after.size, after.mtime), (attr.size, attr.mtime));
    assert_eq!(read(&store, fid(1), 7 * MIB)[6 * MIB..], *b"the end");
    // And restarts.
    stream(&store, fid(1), 7, 6);
    assert!(store.ahead.reserved_bytes() > 0);
}

#[test]
fn reserving_is_switched_off_and_on_and_bounded_while_streams_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    assert_eq!(store.abilities().write_ahead.map(AheadBook::max_bytes), Some(64 << 20));
    stream(&store, fid(1), 0, 9);
    assert!(store.ahead.holding() > 0);
    store.ahead.set_max_bytes(0);
    assert_eq!((store.ahead.max_bytes(), store.ahead.holding()), (0, 0));
    stream(&store, fid(1), 9, 9);
    assert!(taken(&store, fid(1)) <= 18 * MIB as u64 + MAPS, "nothing is reserved");
    store.ahead.set_max_bytes(4 << 20);
    stream(&store, fid(1), 18, 20);
    assert!(store.ahead.holding() > 0, "again");
    assert!(taken(&store, fid(1)) <= (38 + 4) * MIB as u64 + MAPS, "no more than was set");
    let (expected, found) = (pattern(fid(1)), read(&store, fid(1), 39 * MIB));
    assert!(found.len() == 38 * MIB && found.chunks(MIB).all(|piece| piece == expected));
}

#[test]
fn gaps_that_a_stream_has_left_are_holes_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    stream(&store, fid(1), 0, 4);
    // One MiB of the space reserved after 4 MiB is left out permanently.
    stream(&store, fid(1), 5, 2);
    assert!((store.attr(fid(1)).unwrap().blocks * 512).abs_diff(6 * MIB as u64) <= MAPS);
    store.ahead.give_back_rested(u64::MAX);
    assert!(taken(&store, fid(1)).abs_diff(6 * MIB as u64) <= MAPS, "{}", taken(&store, fid(1)));
    assert!(read(&store, fid(1), 5 * MIB)[4 * MIB..].iter().all(|&byte| byte == 0));
}

#[test]
fn scattered_writes_small_objects_and_other_changes_reserve_and_keep_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    store.reserve(SEQUENCE, 10).unwrap();
    store.write(fid(1), 0, &[1; MIB / 2]).unwrap();
    for place in 0..8u64 {
        store.write(fid(2), place << 30, &[1; MIB / 2]).unwrap();
    }
    assert_eq!(store.ahead.reserved_bytes(), 0);
    // Space that a user allocated after the end stays the user's, before a stream and after it.
    let keep_size = Fallocate::Allocate { keep_size: true };
    store.fallocate(fid(3), keep_size, 0, 32 * MIB as u64).unwrap();
    stream(&store, fid(3), 0, 4);
    assert_eq!(store.ahead.reserved_bytes(), 0);
    stream(&store, fid(4), 0, 4);
    assert!(store.ahead.reserved_bytes() > 0);
    store.fallocate(fid(4), keep_size, 0, 32 * MIB as u64).unwrap();
    assert_eq!(store.ahead.reserved_bytes(), 0);
    for object in [fid(3), fid(4)] {
        let attr = store.attr(object).unwrap();
        assert!((attr.blocks * 512).abs_diff(32 * MIB as u64) <= MAPS, "{attr:?}");
    }
    stream(&store, fid(5), 0, 4);
    assert_eq!(store.truncate(fid(5), 64 << 20).unwrap().size, 64 << 20);
    assert!((store.attr(fid(5)).unwrap().blocks * 512).abs_diff(4 * MIB as u64) <= MAPS);
    stream(&store, fid(6), 0, 4);
    store.destroy(&[fid(6)]).unwrap();
    assert_eq!(store.ahead.reserved_bytes(), 0);
    store.close().unwrap();
    drop(store);
    let store = alone(dir.path(), everywhere());
    let report = store.verify(false, &mut |_| {}).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn streams_find_all_the_space_there_is() {
    let Some(disk) = super::full::SmallDisk::mount("96m") else { return };
    let fill = |options: FileStoreOptions, name: &str| {
        let store = alone(&disk.dir.path().join(name), options);
        let data = vec![1; MIB];
        let (mut mib, mut most) = (0, 0);
        // Two concurrent streams until neither can write a byte.
        while (1..3).any(|oid| matches!(store.write(fid(oid), (mib * MIB) as u64, &data), Ok(MIB))) {
            mib += 1;
            most = most.max(store.ahead.reserved_bytes());
        }
        let attrs = [store.attr(fid(1)).unwrap(), store.attr(fid(2)).unwrap()];
        assert_eq!(store.ahead.reserved_bytes(), 0, "given back before anybody was refused");
        store.destroy(&[fid(1), fid(2)]).unwrap();
        store.close().unwrap();
        drop(store);
        std::fs::remove_dir_all(disk.dir.path().join(name)).unwrap();
        (attrs.map(|attr| attr.size).iter().sum::<u64>(), most)
    };
    let (without, none) = fill(FileStoreOptions { ahead_max_bytes: 0, ..everywhere() }, "without");
    let (with, most) = fill(everywhere(), "with");
    assert!(none == 0 && most > 0, "{none} {most}");
    assert!(with + MIB as u64 >= without, "{with} of {without}");
}

#[test]
fn stores_on_one_file_system_give_back_for_each_other() {
    let Some(disk) = super::full::SmallDisk::mount("96m") else { return };
    let open = |name: &str| FileStore::open(&disk.dir.path().join(name), everywhere()).unwrap();
    let (one, other) = (open("one"), open("other"));
    stream(&one, fid(1), 0, 4);
    let reserved = one.ahead.reserved_bytes();
    assert!(reserved > 0 && other.ahead.reserved_bytes() == reserved, "{reserved}");
    assert!(other.ahead.give_all_back());
    assert!(one.ahead.reserved_bytes() == 0 && taken(&one, fid(1)) == 4 * MIB as u64);
    assert!(!other.ahead.give_all_back(), "nothing is left");
}

#[test]
fn a_stream_keeps_every_byte_while_files_are_closed_and_space_is_given_back_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { open_files_max: 64, spare_files: 0, ..everywhere() };
    let store = alone(dir.path(), options);
    let stop = AtomicBool::new(false);
    let pieces = 300;
    nacre_env::thread::scope(|scope| {
        // More objects than may be open, so that the streams' objects would be closed between two writes.
        scope.spawn(|| {
            for oid in (0..2000).map(|count| 100 + count % 500) {
                store.write(fid(oid), 0, b"small").unwrap();
            }
            while !stop.load(Ordering::Relaxed) {
                for oid in 100..600 {
                    store.attr(fid(oid)).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                store.ahead.give_back_rested(u64::MAX);
                store.ahead.give_all_back();
            }
        });
        let streams: Vec<_> = (1..5)
            .map(|oid| {
                let store = &store;
                scope.spawn(move || {
                    let data = &pattern(fid(oid))[..MIB / 4 + 100];
                    for piece in 0..pieces {
                        let offset = (piece * data.len()) as u64;
                        assert_eq!(store.write(fid(oid), offset, data).unwrap(), data.len());
                    }
                })
            })
            .collect();
        let ended: Vec<_> = streams.into_iter().map(|stream| stream.join()).collect();
        stop.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|outcome| outcome.unwrap());
    });
    for oid in 1..5 {
        let data = &pattern(fid(oid))[..MIB / 4 + 100];
        let found = read(&store, fid(oid), pieces * data.len() + 1);
        assert_eq!(found.len(), pieces * data.len());
        assert!(found.chunks(data.len()).all(|piece| piece == data), "object {oid}");
    }
    store.close().unwrap();
    assert_eq!(store.ahead.holding(), 0);
}

#[test]
fn a_file_with_space_ahead_of_it_is_not_closed_before_that_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let options = FileStoreOptions { open_files_max: 64, spare_files: 0, ..everywhere() };
    let store = alone(dir.path(), options);
    stream(&store, fid(1), 0, 4);
    let handle = Arc::downgrade(&store.find(fid(1)).unwrap().unwrap());
    let open_others =
        || (100..700).for_each(|oid| assert_eq!(store.write(fid(oid), 0, b"small").unwrap(), 5));
    open_others();
    assert!(handle.strong_count() > 0 && store.ahead.reserved_bytes() > 0);
    store.ahead.give_back_rested(u64::MAX);
    open_others();
    assert_eq!(handle.strong_count(), 0);
}

#[test]
fn what_a_run_could_not_give_back_the_next_start_does() {
    let dir = tempfile::tempdir().unwrap();
    let store = alone(dir.path(), everywhere());
    store.write(fid(1), 0, &[7; 100_000]).unwrap();
    let handle = store.find(fid(1)).unwrap().unwrap();
    let behind = rustix::fs::FallocateFlags::KEEP_SIZE;
    handle.file.allocate(behind, MIB as u64, 8 * MIB as u64).unwrap();
    store.ahead.record(fid(1)).unwrap();
    drop(handle);
    let attr = store.attr(fid(1)).unwrap();
    store.close().unwrap();
    drop(store);
    let store = alone(dir.path(), everywhere());
    assert!(taken(&store, fid(1)) <= MIB as u64);
    let after = store.attr(fid(1)).unwrap();
    assert_eq!((after.size, after.mtime), (attr.size, attr.mtime));
    assert_eq!(read(&store, fid(1), 200_000), [7; 100_000]);
}

/// Names the store's directory in the victim's environment.
const VICTIM_DIR: &str = "NACRE_TEST_AHEAD";

#[test]
fn victim() {
    let Some(dir) = std::env::var_os(VICTIM_DIR) else { return };
    let store = alone(Path::new(&dir), everywhere());
    stream(&store, fid(1), 0, 9);
    stream(&store, fid(2), 0, 3);
    println!("reserved {}", store.ahead.reserved_bytes());
    nacre_env::thread::park();
}

#[test]
fn the_start_after_a_kill_gives_back_what_was_reserved() {
    let dir = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "object::file::tests::ahead::victim", "--nocapture"])
        .env(VICTIM_DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(victim.stdout.take().unwrap()).lines();
    let reserved = output.find_map(|line| line.unwrap().strip_prefix("reserved ")?.parse::<u64>().ok());
    assert!(reserved.is_some_and(|bytes| bytes > 0), "{reserved:?}");
    victim.kill().unwrap();
    victim.wait().unwrap();
    let store = alone(dir.path(), everywhere());
    for (object, mib) in [(fid(1), 9), (fid(2), 3)] {
        assert_eq!(store.attr(object).unwrap().size, (mib * MIB) as u64);
        assert!(taken(&store, object).abs_diff((mib * MIB) as u64) <= MAPS);
        let data = pattern(object);
        assert!(read(&store, object, mib * MIB).chunks(MIB).all(|piece| piece == data));
    }
    let mut records = 0;
    let count = &mut |_: &[u8], _: &[u8]| {
        records += 1;
        std::ops::ControlFlow::Continue(())
    };
    store.index.scan(AHEAD, &[], std::ops::Bound::Unbounded, count).unwrap();
    assert_eq!(records, 0);
}

/// Returns the pieces of eight objects, each written by a thread of its own.
fn pieces_of_streams(dir: &Path, ahead_max_bytes: u64) -> usize {
    let store = alone(dir, FileStoreOptions { ahead_max_bytes, ..FileStoreOptions::create() });
    nacre_env::thread::scope(|scope| {
        for oid in 1..9 {
            let store = &store;
            scope.spawn(move || stream(store, fid(oid), 0, 32));
        }
    });
    store.sync_all().unwrap();
    store.ahead.give_own_back();
    let pieces = |oid| {
        let handle = store.find(fid(oid)).unwrap().unwrap();
        let (mut count, mut end) = (0, None);
        let told = fiemap::each(handle.file.kernel().unwrap(), 0..u64::MAX, 0, &mut |piece| {
            count += usize::from(end != Some(piece.place));
            end = Some(piece.place + piece.length);
            true
        });
        told.expect("this file system tells");
        count
    };
    (1..9).map(pieces).sum()
}

#[test]
fn streams_beside_each_other_lie_in_fewer_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let kind = rustix::fs::statfs(dir.path()).unwrap().f_type;
    if !WORTH_IT.contains(&kind) {
        return;
    }
    let with = pieces_of_streams(&dir.path().join("with"), 64 << 20);
    // Each doubling of 32 MiB, from 4 on, may begin a piece, and so may the free extents of the file system.
    assert!(with <= 8 * 12, "{with} pieces of 8 objects");
}
