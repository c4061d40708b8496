//! The log begins small and grows with use.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::super::segment::{FIRST_PART, Segment};
use super::{Model, contents, tiny_options};
use crate::meta::{Batch, MetaStore, MetaStoreOptions, Table};

const SEGMENT: u64 = 16 << 20;
const FILES: [&str; 3] = ["wal.0", "wal.1", "reserve"];

fn options() -> MetaStoreOptions {
    let (overlay_bytes, reserve_bytes) = (SEGMENT / 2, SEGMENT / 2 * 3);
    MetaStoreOptions { wal_segment_bytes: SEGMENT, overlay_bytes, reserve_bytes, ..tiny_options() }
}

/// Returns the MiB on disk of each file.
fn taken(dir: &Path) -> [u64; 3] {
    FILES.map(|name| fs::metadata(dir.join(name)).expect("there").blocks() * 512 / (1 << 20))
}

/// Commits `count` entries of 8 KiB; the values of a round overwrite those of the previous one.
fn put(store: &MetaStore, model: &mut Model, count: u32, round: u8) {
    let mut batch = Batch::new();
    for key in 0..count {
        batch.clear();
        let (key, value) = (key.to_be_bytes().to_vec(), vec![round; 8 << 10]);
        batch.put(Table(1), &key, &value);
        store.commit(&batch).expect("committed");
        model.insert((1, key), value);
    }
}

/// Returns the MiB of files in this directory that are mapped in the memory of this process.
fn mapped_mib(dir: &Path) -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").expect("readable");
    let (mut is_log, mut kib) = (false, 0);
    for line in maps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Rss:") if is_log => {
                kib += words.next().and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
            }
            Some(range) if !range.ends_with(':') => {
                is_log = line.contains(&*dir.join("wal.").to_string_lossy())
            }
            _ => {}
        }
    }
    kib / 1024
}

#[test]
fn durable_records_do_not_stay_in_the_memory_of_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = MetaStore::open(dir.path(), options()).expect("made");
    let mut model = Model::new();
    let mut most = 0;
    for round in 0..8 {
        put(&store, &mut model, 500, round);
        most = most.max(mapped_mib(dir.path()));
        store.sync(nacre_types::TransNo(u64::MAX)).expect("durable");
    }
    // Writes of 31 MiB, in rounds of 4 MiB.
    let mapped = mapped_mib(dir.path());
    assert!(mapped <= 8, "{mapped} MiB");
    assert!(most >= 3, "records go through the mapping at all: {most} MiB");
    assert_eq!(contents(&store), model);
    store.checkpoint().expect("checkpoint");
    let mapped = mapped_mib(dir.path());
    assert!(mapped <= 1, "{mapped} MiB of records that the base holds");
}

#[test]
fn a_log_begins_small_grows_while_it_is_full_and_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut model = Model::new();
    let store = MetaStore::open(dir.path(), options()).expect("made");
    assert_eq!(taken(dir.path()), [4, 4, 6]);
    put(&store, &mut model, 100, 1);
    store.checkpoint().expect("checkpoint");
    assert_eq!(taken(dir.path()), [4, 4, 6], "it was never full");
    for round in 2..60 {
        put(&store, &mut model, 700, round);
        if taken(dir.path()) == [16, 16, 24] {
            break;
        }
    }
    assert_eq!(taken(dir.path()), [16, 16, 24]);
    assert_eq!(contents(&store), model);
    // As a kill leaves the files.
    let copy = tempfile::tempdir().expect("a directory");
    copy_all(dir.path(), copy.path(), false);
    drop(store);
    for dir in [dir.path(), copy.path()] {
        let store = MetaStore::open(dir, options()).expect("opened");
        assert_eq!(contents(&store), model);
        assert_eq!(taken(dir), [16, 16, 24]);
    }
}

/// Copies a store; `sparse`: without blocks of zeros.
fn copy_all(from: &Path, to: &Path, sparse: bool) {
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if from.is_dir() {
            fs::create_dir(&to).expect("made");
            copy_all(&from, &to, sparse);
            continue;
        }
        let bytes = fs::read(&from).expect("read");
        let file = File::create(&to).expect("made");
        file.set_len(bytes.len() as u64).expect("sized");
        for (index, block) in bytes.chunks(4096).enumerate() {
            if !sparse || block.iter().any(|byte| *byte != 0) {
                file.write_all_at(block, index as u64 * 4096).expect("written");
            }
        }
    }
}

#[test]
fn a_copy_without_its_zeros_is_filled_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut model = Model::new();
    let store = MetaStore::open(dir.path(), options()).expect("made");
    put(&store, &mut model, 50, 1);
    // Records with blocks of zeros in them.
    put(&store, &mut model, 20, 0);
    let copy = tempfile::tempdir().expect("a directory");
    copy_all(dir.path(), copy.path(), true);
    drop(store);
    let store = MetaStore::open(copy.path(), options()).expect("opened");
    assert_eq!(contents(&store), model);
    for round in 1..4 {
        put(&store, &mut model, 700, round);
    }
    assert_eq!(contents(&store), model);
    drop(store);
    assert_eq!(contents(&MetaStore::open(copy.path(), options()).expect("opened")), model);
}

#[test]
fn no_record_is_looked_for_behind_the_last_bytes_of_a_segment_that_are_not_zero() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, len) = (dir.path().join("wal.0"), SEGMENT as usize);
    Segment::create(&path, len, b"header").expect("created");
    let read = || Segment::open(&path, len, None).expect("opened").load().expect("read");
    let loaded = read();
    assert_eq!(&loaded.bytes[..6], b"header");
    assert!((6..FIRST_PART / 2).contains(&loaded.data_end), "{}", loaded.data_end);
    // A power cut can lose what is between.
    let later = FIRST_PART as u64 + (2 << 20);
    let file = File::options().write(true).open(&path).expect("opened");
    file.write_all_at(b"record", later).expect("written");
    let loaded = read();
    assert!((later as usize + 6..len).contains(&loaded.data_end), "{}", loaded.data_end);
    assert!(loaded.bytes == fs::read(&path).expect("read"));
}
