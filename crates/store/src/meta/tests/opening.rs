//! Openings that succeed, and the errors of the others.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::superblock::Superblock;
use super::super::wal::crc32c;
use super::{contents, noise, tiny_options};
use crate::meta::{Batch, MetaError, MetaStore, MetaStoreOptions, Table, TransNo};

fn open(dir: &Path) -> Result<MetaStore, MetaError> {
    MetaStore::open(dir, MetaStoreOptions { create: false, ..tiny_options() })
}

fn refusal(dir: &Path) -> String {
    open(dir).err().expect("must be refused").to_string()
}

fn make(dir: &Path) {
    let store = MetaStore::open(dir, tiny_options()).unwrap();
    let mut batch = Batch::new();
    batch.put(Table(1), b"key", b"value");
    store.commit(&batch).unwrap();
}

#[test]
fn missing_store_is_not_made_unasked() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refusal(dir.path()).starts_with("there is no metadata store in"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn directory_with_other_files_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), b"precious").unwrap();
    let error = MetaStore::open(dir.path(), tiny_options()).err().unwrap();
    assert!(matches!(error, MetaError::Foreign { .. }), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn unfinished_creation_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    std::fs::remove_file(dir.path().join("superblock")).unwrap();
    std::fs::remove_file(dir.path().join("superblock.copy")).unwrap();
    let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
    assert_eq!(store.last_transno(), TransNo(0));
    assert!(contents(&store).is_empty());
}

#[test]
fn second_opening_is_refused_while_the_first_lasts() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let first = open(dir.path()).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(matches!(error, MetaError::InUse { .. }));
    assert!(error.to_string().ends_with("is in use by another process"), "{error}");
    drop(first);
    open(dir.path()).unwrap();
}

#[test]
fn only_the_owner_may_read_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("store");
    make(&dir);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join("base")), 0o700);
    for file in ["superblock", "lock", "wal.0", "wal.1", "reserve", "base/data.mdb", "base/lock.mdb"] {
        assert_eq!(mode(&dir.join(file)), 0o600, "{file}");
    }
}

#[test]
fn superblock_of_another_version_or_kind_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let path = dir.path().join("superblock");
    std::fs::remove_file(dir.path().join("superblock.copy")).unwrap();
    let good = std::fs::read(&path).unwrap();
    let rewrite = |change: &dyn Fn(&mut Vec<u8>), fix_checksum: bool| {
        let mut bytes = good.clone();
        change(&mut bytes);
        if fix_checksum {
            bytes[12..16].fill(0);
            let crc = crc32c(&bytes[..64]);
            bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        std::fs::write(&path, bytes).unwrap();
        refusal(dir.path())
    };
    let text = rewrite(&|bytes| bytes[8] = 3, true);
    assert_eq!(text, "metadata store format 3 is newer than this program supports (1): use a newer nacre");
    let text = rewrite(&|bytes| bytes[8] = 0, true);
    assert!(text.contains("format 0 is older than this program reads (1)"), "{text}");
    let text = rewrite(&|bytes| bytes[0] = b'X', true);
    assert!(text.ends_with("is not part of a NacreFS metadata store"), "{text}");
    let text = rewrite(&|bytes| bytes[20] ^= 1, false);
    assert!(text.contains("superblock checksum"), "{text}");
    let text = rewrite(&|bytes| bytes[20] ^= 1, true);
    assert!(text.contains("another store"), "{text}");
    let text = rewrite(&|bytes| bytes.truncate(10), false);
    assert!(text.ends_with("is not part of a NacreFS metadata store"), "{text}");
    std::fs::write(&path, &good).unwrap();
    assert_eq!(contents(&open(dir.path()).unwrap()).len(), 1);
}

#[test]
fn any_bytes_as_superblock_are_refused_without_a_panic() {
    let mut rng = fastrand::Rng::with_seed(7);
    let good = Superblock { uuid: [9; 16], wal_segment_bytes: 65_536 }.encode();
    for round in 0..20_000 {
        let mut bytes = good.to_vec();
        if round % 2 == 0 {
            let len = rng.usize(..100);
            bytes = noise(&mut rng, len);
        } else {
            let at = rng.usize(..64);
            bytes[at] ^= 1 << rng.u64(..8);
        }
        assert!(Superblock::decode(&bytes, Path::new("x")).is_err());
    }
}

#[test]
fn missing_parts_are_damage_not_an_empty_store() {
    for part in ["wal.0", "wal.1", "base/data.mdb"] {
        let dir = tempfile::tempdir().unwrap();
        make(dir.path());
        std::fs::remove_file(dir.path().join(part)).unwrap();
        open(dir.path()).err().unwrap_or_else(|| panic!("opened without {part}"));
    }
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    std::fs::File::options().write(true).open(dir.path().join("wal.1")).unwrap().set_len(4096).unwrap();
    assert!(refusal(dir.path()).contains("wrong length of a log segment"));
}

#[test]
fn segment_size_of_the_store_wins_over_the_option() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store =
        MetaStore::open(dir.path(), MetaStoreOptions { wal_segment_bytes: 1 << 20, ..tiny_options() });
    assert_eq!(contents(&store.unwrap()).len(), 1);
}

#[test]
fn impossible_options_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let bad = [
        (MetaStoreOptions { wal_segment_bytes: 1000, ..tiny_options() }, "wal_segment_bytes"),
        (MetaStoreOptions { overlay_bytes: 0, ..tiny_options() }, "overlay_bytes"),
        (MetaStoreOptions { map_bytes: 4096, ..tiny_options() }, "map_bytes"),
    ];
    for (options, name) in bad {
        let text = MetaStore::open(dir.path(), options).err().unwrap().to_string();
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn closed_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = open(dir.path()).unwrap();
    store.close().unwrap();
    store.close().unwrap();
    let mut batch = Batch::new();
    batch.put(Table(0), b"k", b"v");
    assert!(matches!(store.commit(&batch), Err(MetaError::Closed)));
    assert!(matches!(store.get(Table(1), b"key", |_| ()), Err(MetaError::Closed)));
    assert!(matches!(store.checkpoint(), Err(MetaError::Closed)));
}

#[test]
fn damaged_entry_of_the_base_is_reported_by_get_and_verify() {
    let dir = tempfile::tempdir().unwrap();
    {
        let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
        let mut batch = Batch::new();
        batch.put(Table(1), b"good", b"untouched");
        batch.put(Table(1), b"hurt", b"find this value in the file");
        store.commit(&batch).unwrap();
    }
    let path = dir.path().join("base/data.mdb");
    let mut bytes = std::fs::read(&path).unwrap();
    let needle = b"find this value";
    let places: Vec<usize> = bytes
        .windows(needle.len())
        .enumerate()
        .filter(|(_, part)| part == needle)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| bytes[at] ^= 0x20);
    std::fs::write(&path, bytes).unwrap();
    let store = open(dir.path()).unwrap();
    let error = store.get(Table(1), b"hurt", |_| ()).unwrap_err();
    assert!(matches!(error, MetaError::Corrupt { .. }), "{error}");
    assert!(store.get(Table(1), b"good", |value| value == Some(b"untouched")).unwrap());
    let report = store.verify(&mut |_| {}).unwrap();
    assert_eq!((report.entries, report.problem_count), (2, 1));
    assert_eq!(report.tables, [(1, 2)]);
    assert_eq!(
        report.problems[0].to_string(),
        "entry of table 1 with key 68757274 does not match its checksum"
    );
}

#[test]
fn failed_store_refuses_changes_and_still_reads() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path());
    let store = open(dir.path()).unwrap();
    let mut batch = Batch::new();
    batch.put(Table(1), b"late", b"accepted before the failure");
    let transno = store.commit(&batch).unwrap();
    store.engine.log.latch().set(&"sync wal.0: device lost");
    for result in [store.commit(&batch).map(|_| ()), store.sync(transno), store.checkpoint(), store.close()] {
        let text = result.unwrap_err().to_string();
        assert!(text.ends_with("until it is opened again: sync wal.0: device lost"), "{text}");
    }
    assert!(store.stats().has_failed);
    drop(store);
    // Reads continue while the failure lasts; reopening replays the log.
    let store = open(dir.path()).unwrap();
    assert_eq!(store.stats().replayed, 1);
    store.engine.log.latch().set(&"again");
    assert!(store.get(Table(1), b"late", |value| value.is_some()).unwrap());
    assert_eq!(contents(&store).len(), 2);
}

#[test]
fn callers_of_sync_share_flushes() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let store =
        MetaStore::open(dir.path(), MetaStoreOptions { wal_segment_bytes: 8 << 20, ..tiny_options() })
            .unwrap();
    nacre_env::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                let mut batch = Batch::new();
                for round in 0..ROUNDS {
                    batch.clear();
                    batch.put(Table(0), &[thread as u8; 16], &round.to_le_bytes());
                    let transno = store.commit(&batch).unwrap();
                    store.sync(transno).unwrap();
                    assert!(store.last_committed() >= transno);
                }
            });
        }
    });
    let stats = store.stats();
    assert!(stats.syncs <= THREADS * ROUNDS, "{} flushes for {} calls", stats.syncs, THREADS * ROUNDS);
    assert_eq!(stats.last_committed, stats.last_transno);
    // A number that no transaction has yet: all existing ones become durable, and the call returns.
    store.sync(TransNo(1 << 40)).unwrap();
}

#[test]
fn a_store_on_a_small_disk_takes_a_small_part_of_it_and_opens_again() {
    let options = MetaStoreOptions::default();
    assert_eq!(options.segment_that_fits(4 << 30), 64 << 20);
    assert_eq!(options.segment_that_fits(2 << 30), 32 << 20);
    assert_eq!(options.segment_that_fits(50 << 20), 4 << 20);
    assert_eq!(options.segment_that_fits((1 << 30) + 12345) % 4096, 0);
    assert_eq!(tiny_options().segment_that_fits(0), tiny_options().wal_segment_bytes);

    let smaller = options.clone().with_segment(4 << 20);
    assert_eq!((smaller.overlay_bytes, smaller.reserve_bytes), (2 << 20, 6 << 20));
    smaller.check().expect("good");
    let larger = tiny_options().with_segment(1 << 30);
    assert_eq!(larger.reserve_bytes, tiny_options().reserve_bytes);
}
