//! Damaged stores: opening them read-only finds the damage and changes nothing, and repairs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::crash::copy_store;
use super::{Model, contents, noise, random_batch, tiny_options};
use crate::meta::{Batch, MetaError, MetaStore, MetaStoreOptions, Table, VerifyProblem, VerifyReport};
use fastrand::Rng;

fn looking() -> MetaStoreOptions {
    MetaStoreOptions { create: false, read_only: true, ..tiny_options() }
}

/// Creates a store with `batches` batches, with free pages, branches and overflow pages, closed in order or
/// not.
fn make(dir: &Path, seed: u64, batches: u64, is_closed: bool) -> Model {
    let (mut rng, mut batch, mut model) = (Rng::with_seed(seed), Batch::new(), Model::new());
    let store = MetaStore::open(dir, tiny_options()).expect("opens");
    for number in 0..batches {
        random_batch(&mut rng, &mut batch, &mut model);
        // A wide table, part of which is deleted again.
        let key = (rng.u64(..) % 700).to_be_bytes();
        if rng.u64(..3) == 0 {
            batch.delete(Table(3), &key);
            model.remove(&(3, key.to_vec()));
        } else {
            let value = noise(&mut rng, 300);
            batch.put(Table(3), &key, &value);
            model.insert((3, key.to_vec()), value);
        }
        store.commit(&batch).expect("committed");
        if number % 97 == 0 {
            store.checkpoint().expect("done");
        }
    }
    if is_closed {
        store.close().expect("closed");
    } else {
        let left = dir.with_extension("left");
        copy_store(dir, &left);
        drop(store);
        fs::remove_dir_all(dir).expect("removed");
        fs::rename(&left, dir).expect("renamed");
    }
    model
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        match path.is_dir() {
            true => found.append(&mut files(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).expect("read"))),
        }
    }
    found
}

/// Opens the store read-only; returns its report and its readable content. Nothing may have changed.
fn look(dir: &Path) -> Result<(VerifyReport, Model), MetaError> {
    let before = files(dir);
    let looked = MetaStore::open(dir, looking()).map(|store| {
        let found = (store.verify(&mut |_| ()).expect("goes on"), contents(&store));
        store.close().expect("nothing to write");
        found
    });
    assert!(files(dir) == before, "looking changes nothing");
    looked
}

#[test]
fn looking_at_a_store_shows_all_of_it_and_changes_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    for seed in 0..12 {
        let dir = scratch.path().join(seed.to_string());
        let model = make(&dir, seed, 50 + 150 * seed, seed % 2 == 0);
        let (report, found) = look(&dir).expect("opens");
        assert_eq!(report.problems, [], "seed {seed}");
        assert!(found == model, "seed {seed}");
        let live = MetaStore::open(&dir, tiny_options()).expect("opens");
        let error = MetaStore::open(&dir, looking()).err().expect("in use");
        assert!(matches!(error, MetaError::InUse { .. }), "{error}");
        assert_eq!(live.verify(&mut |_| ()).expect("verified").problems, []);
    }
}

#[test]
fn what_is_committed_to_a_store_that_is_looked_at_is_seen_and_gone_afterwards() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("store");
    let model = make(&dir, 5, 300, false);
    let store = MetaStore::open(&dir, looking()).expect("opens");
    let before = (store.last_transno(), files(&dir));
    let mut batch = Batch::new();
    batch.put(Table(1), b"new", b"value");
    let transno = store.commit(&batch).expect("in memory");
    assert!(transno > before.0);
    store.sync(transno).and_then(|()| store.checkpoint()).expect("nothing to do");
    assert_eq!(
        store.get(Table(1), b"new", |value| value.map(<[u8]>::to_vec)).expect("read").as_deref(),
        Some(&b"value"[..])
    );
    let second = MetaStore::open(&dir, looking()).expect("several may look");
    assert!(contents(&second) == model);
    drop((store, second));
    assert!(files(&dir) == before.1);
}

#[test]
fn a_store_is_looked_at_where_nothing_can_be_written() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("store");
    let model = make(&dir, 6, 200, false);
    // Root can write nevertheless; a write would show.
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o500)).expect("protected");
    let (report, found) = look(&dir).expect("opens");
    assert!(report.problems.is_empty() && found == model);
    // The copy has none.
    assert!(!dir.join("lock").exists());
}

#[test]
fn zeros_in_the_list_of_free_pages_are_found_refused_by_a_start_and_repaired() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("store");
    let model = make(&dir, 3, 900, true);
    let data = dir.join("base/data.mdb");
    let whole = fs::read(&data).expect("read");
    let page = free_list_leaf(&whole);
    let mut tried = 0;
    for at in (page + 24..page + 4096 - 16).step_by(56) {
        let mut bytes = whole.clone();
        if bytes[at..at + 16].iter().all(|byte| *byte == 0) {
            continue;
        }
        bytes[at..at + 16].fill(0);
        fs::write(&data, &bytes).expect("damaged");
        let (report, found) = look(&dir).expect("opens");
        assert!(found == model, "no entry is concerned");
        if report.problem_count == 0 {
            // The place is between the nodes of the page.
            continue;
        }
        tried += 1;
        assert!(report.keeps_entries(), "{:?}", report.problems);
        if tried % 8 == 1 {
            assert!(MetaStore::repair(&dir, &tiny_options()).expect("repaired") > 0);
            let (report, found) = look(&dir).expect("opens");
            assert_eq!(report.problems, []);
            assert!(found == model);
            let store = MetaStore::open(&dir, tiny_options()).expect("opens");
            assert!(contents(&store) == model);
        }
    }
    assert!(tried > 5, "{tried}");
}

/// Returns the offset of a leaf of the free list.
fn free_list_leaf(bytes: &[u8]) -> usize {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("inside"));
    // From the newer meta page: its free list's tree, whose root is a leaf in a small store.
    let meta = [0, 4096].into_iter().max_by_key(|meta| word(meta + 16 + 24 + 96 + 8)).expect("two");
    let root = word(meta + 16 + 24 + 40) as usize * 4096;
    assert_eq!(bytes[root + 10], 2, "a leaf");
    root
}

#[test]
fn a_start_refuses_a_list_of_free_pages_that_names_others() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("store");
    make(&dir, 3, 900, true);
    let data = dir.join("base/data.mdb");
    let mut bytes = fs::read(&data).expect("read");
    let page = free_list_leaf(&bytes);
    let node = page + usize::from(u16::from_le_bytes([bytes[page + 16], bytes[page + 17]]));
    // The first id of the first list: beyond the end of the file.
    bytes[node + 8 + 8 + 8 + 6] ^= 1;
    fs::write(&data, &bytes).expect("damaged");
    let error = MetaStore::open(&dir, tiny_options()).err().expect("refused").to_string();
    assert!(error.contains("free pages") && error.contains("nacre check"), "{error}");
}

/// Flips a bit of any file; if a read-only opening finds nothing, all entries must be there, and the store
/// usable.
#[test]
fn a_flipped_bit_anywhere_is_found_or_harms_nothing() {
    let rounds = std::env::var("NACRE_FLIPS").ok().and_then(|text| text.parse().ok()).unwrap_or(50);
    let scratch = tempfile::tempdir().expect("a directory");
    let (mut rng, mut unseen, mut found) = (Rng::with_seed(77), 0, 0);
    for store in 0..2 {
        let dir = scratch.path().join(format!("store{store}"));
        let model = make(&dir, 20 + store, 700, store == 0);
        let whole = files(&dir);
        for round in 0..rounds {
            let used: Vec<_> = whole
                .iter()
                .filter(|(path, bytes)| !bytes.is_empty() && !path.ends_with("reserve"))
                .collect();
            // The base half of the time, and often its first pages.
            let (path, bytes) = match rng.u64(..2) {
                0 => *used.iter().find(|(path, _)| path.ends_with("data.mdb")).expect("there"),
                _ => used[rng.usize(..used.len())],
            };
            let span = if rng.u64(..4) == 0 { bytes.len().min(8192 + 256) } else { bytes.len() };
            let (at, bit) = (rng.usize(..span), 1 << rng.u64(..8));
            let mut damaged = bytes.clone();
            damaged[at] ^= bit;
            fs::write(path, &damaged).expect("damaged");
            let said = format!("store {store} round {round}: bit {bit:#x} at {at} of {}", path.display());
            match look(&dir) {
                Err(_) => found += 1,
                Ok((report, _)) if report.problem_count > 0 => found += 1,
                // Damage to the last flushed records looks like a torn end of the log.
                Ok((_, now)) if now != model && store == 1 && path.to_string_lossy().contains("wal.") => {}
                Ok((_, now)) => {
                    unseen += 1;
                    assert!(now == model, "{said}");
                    check_use(&dir, scratch.path(), &model, &said);
                }
            }
            fs::write(path, bytes).expect("as before");
        }
    }
    assert!(found > rounds / 5 && unseen > 0, "{found} of {rounds} found, {unseen} harmless");
}

/// Checks that a copy of the store opens, and takes changes without losing anything.
fn check_use(dir: &Path, scratch: &Path, model: &Model, said: &str) {
    let copy = scratch.join("copy");
    copy_store(dir, &copy);
    let store = MetaStore::open(&copy, MetaStoreOptions { create: false, ..tiny_options() });
    let store = store.unwrap_or_else(|error| panic!("{said}: {error}"));
    let (mut rng, mut batch, mut model) = (Rng::with_seed(1), Batch::new(), model.clone());
    for _ in 0..3 {
        for _ in 0..40 {
            random_batch(&mut rng, &mut batch, &mut model);
            store.commit(&batch).expect(said);
        }
        store.checkpoint().expect(said);
    }
    assert!(contents(&store) == model, "{said}");
    drop(store);
    let (report, found) = look(&copy).expect(said);
    assert_eq!(report.problems, [], "{said}");
    assert!(found == model, "{said}");
    fs::remove_dir_all(&copy).expect("removed");
}

#[test]
fn either_superblock_is_enough_and_the_other_is_written_anew() {
    let scratch = tempfile::tempdir().expect("a directory");
    let dir = scratch.path().join("store");
    let model = make(&dir, 9, 100, true);
    for name in ["superblock", "superblock.copy"] {
        let path = dir.join(name);
        let whole = fs::read(&path).expect("read");
        let mut bytes = whole.clone();
        bytes[20] ^= 4;
        fs::write(&path, &bytes).expect("damaged");
        let (report, found) = look(&dir).expect("opens");
        assert_eq!(report.problems, [VerifyProblem::Copy { path: path.clone() }]);
        assert!(found == model);
        assert_eq!(MetaStore::repair(&dir, &tiny_options()).expect("repaired"), 1);
        assert_eq!(look(&dir).expect("opens").0.problems, []);
        assert_eq!(fs::read(&path).expect("read"), whole);
        fs::write(&path, &bytes).expect("damaged");
        drop(MetaStore::open(&dir, tiny_options()).expect("starts"));
        assert_eq!(fs::read(&path).expect("read"), whole);
    }
}
