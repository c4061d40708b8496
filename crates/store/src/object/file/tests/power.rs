//! Power cuts, with the slot files in memory.
//!
//! Objects are changed at random, and synced from time to time. At a random change or sync of a file the
//! power is cut: files keep any version of unsynced data, and the index, whose log has a witness, any sectors
//! that it had not flushed.

use super::*;
use crate::meta::witness::{Medium, Witness};
use crate::object::file::ahead::Shared;
use crate::object::file::local::Tree;
use crate::object::file::memory::Tree as MemoryTree;
use crate::object::testing::copy_dir;
use crate::object::{Fallocate, ObjectProblem};
use nacre_env::sync::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// Objects that change.
const OBJECTS: u32 = 6;
/// Largest of them, in bytes.
const SIZE: u64 = 40_000;

/// Possible contents of an object: as it was synced last, and after each change since.
type Expected = BTreeMap<Fid, Vec<Option<Vec<u8>>>>;

/// State after a cut: files, the index, and the expected objects.
struct Left {
    files: MemoryTree,
    index: Medium,
    expected: Expected,
}

fn options(checksums: bool, spare_files: u32) -> FileStoreOptions {
    // Large enough that nothing moves to the base of the index, whose files are copied once.
    let index = MetaStoreOptions {
        wal_segment_bytes: 4 << 20,
        overlay_bytes: 16 << 20,
        map_bytes: 64 << 20,
        reserve_bytes: 0,
        commit_interval_ms: 0,
        ..MetaStoreOptions::small()
    };
    FileStoreOptions {
        checksums,
        settle_ms: 1,
        spare_files,
        ahead_everywhere: true,
        index: Some(index),
        ..FileStoreOptions::create()
    }
}

fn open_in(dir: &Path, files: &Arc<MemoryTree>, options: FileStoreOptions) -> FileStore {
    let tree = |_: &Path, _: bool| Ok(Tree::Memory(files.clone()));
    FileStore::open_on(dir, options, tree, |_| Arc::<Shared>::default()).expect("opens")
}

/// Changes an object, whose `versions` are known.
fn change(store: &FileStore, object: Fid, expected: &Mutex<Expected>, random: &mut fastrand::Rng) {
    let offset = random.u64(..SIZE);
    let len = random.u64(1..SIZE / 2);
    let (from, to) = (offset as usize, (offset + len) as usize);
    let mut data = expected.lock().get(&object).and_then(|versions| versions.last().cloned()).flatten();
    let (before, kind) = (data.clone(), random.u8(..8));
    let byte = random.u8(1..);
    match kind {
        0 => data = None,
        1 if before.is_some() || from > 0 => data.get_or_insert_default().resize(from, 0),
        1 => {}
        2 => {
            if let Some(data) = &mut data {
                let len = data.len();
                data[from.min(len)..to.min(len)].fill(0);
            }
        }
        3 | 4 => {
            let data = data.get_or_insert_default();
            data.resize(data.len().max(to), 0);
            if kind == 4 {
                data[from..to].fill(0);
            }
        }
        _ => {
            let data = data.get_or_insert_default();
            data.resize(data.len().max(to), 0);
            data[from..to].fill(byte);
        }
    }
    // Before the change: from then on a cut may leave it.
    expected.lock().entry(object).or_insert_with(|| vec![None]).push(data);
    let done = match kind {
        0 => store.destroy(&[object]).map(drop),
        1 => store.truncate(object, offset).map(drop),
        2 => store.fallocate(object, Fallocate::Punch, offset, len).map(drop),
        3 => store.fallocate(object, Fallocate::Allocate { keep_size: false }, offset, len).map(drop),
        4 => store.fallocate(object, Fallocate::Zero { keep_size: false }, offset, len).map(drop),
        _ => store.write(object, offset, &vec![byte; len as usize]).map(drop),
    };
    done.expect("done");
    if kind == 0 {
        expected.lock().insert(object, vec![None]);
    }
}

fn sync(store: &FileStore, object: Option<Fid>, expected: &Mutex<Expected>) {
    match object {
        Some(object) => store.sync(object).expect("synced"),
        None => store.sync_all().expect("synced"),
    }
    for (of, versions) in expected.lock().iter_mut() {
        if object.is_none_or(|object| object == *of) {
            versions.drain(..versions.len() - 1);
        }
    }
}

/// Whether a cut may leave `found` of an object with these versions.
fn is_possible(found: Option<&[u8]>, versions: &[Option<Vec<u8>>]) -> bool {
    let Some(found) = found else { return versions.iter().any(Option::is_none) };
    let there: Vec<&Vec<u8>> = versions.iter().flatten().collect();
    let is_of_one = |at: usize| {
        let in_version = |version: &&Vec<u8>| version.get(at).copied().unwrap_or(0) == found[at];
        there.iter().any(in_version) || versions.iter().any(Option::is_none) && found[at] == 0
    };
    let is_size = |len: usize| there.iter().any(|version| version.len() == len);
    (is_size(found.len()) || versions.iter().any(Option::is_none) && found.is_empty())
        && (0..found.len()).all(is_of_one)
}

/// Opens the state after a cut. False if an object has an impossible content.
fn is_kept(dir: &Path, fresh: &Path, left: Left, options: FileStoreOptions, context: &str) -> bool {
    copy_dir(fresh, dir);
    let mut random = fastrand::Rng::with_seed(left.expected.len() as u64);
    for (slot, image) in left.index.images.iter().enumerate() {
        let bytes = image.after_cut(&mut |versions| random.usize(..versions));
        std::fs::write(dir.join("index").join(format!("wal.{slot}")), bytes).expect("written");
    }
    let store = open_in(dir, &Arc::new(left.files), options);
    let mut lost = Vec::new();
    for (object, versions) in &left.expected {
        let found = match store.exists(*object) {
            Ok(there) => there.then(|| {
                let mut data = vec![0; 2 * SIZE as usize];
                store.read(*object, 0, &mut data, 0).map(|read| data[..read].to_vec())
            }),
            // Its record reached the disk and the name of its file did not: it was never synced.
            Err(ObjectError::Damaged { .. }) if versions[0].is_none() => {
                lost.push(*object);
                continue;
            }
            Err(error) => panic!("{context}, object {object}: {error}"),
        };
        match found.transpose() {
            Ok(found) if is_possible(found.as_deref(), versions) => {}
            other => {
                eprintln!(
                    "{context}, object {object}: {:?}",
                    other.map(|found| found.map(|data| data.len()))
                );
                return false;
            }
        }
    }
    let report = store.verify(false, &mut |_| {}).expect("verified");
    let is_lost = |problem: &ObjectProblem| matches!(problem, ObjectProblem::FileMissing { object, .. } if lost.contains(object));
    if !report.problems.iter().all(is_lost) {
        eprintln!("{context}: {report:?}");
        return false;
    }
    // The store is usable: no object gets a slot with bytes of another one.
    store.destroy(&lost).expect("destroyed");
    for oid in 100..110 {
        store.write(fid(oid), 9000, &[1; 10]).expect("written");
        assert!(read(&store, fid(oid), 9000).iter().all(|byte| *byte == 0), "{context}");
    }
    true
}

/// Cuts the power once. Returns whether all objects have possible contents; `None` if the run ended before.
fn is_kept_by_trial(dir: &Path, seed: u64, forgets: bool) -> Option<bool> {
    let mut random = fastrand::Rng::with_seed(seed);
    let options = options(random.bool(), [0, 4][random.usize(..2)]);
    let files = Arc::new(MemoryTree::default());
    let [fresh, live, crashed] = ["fresh", "live", "crashed"].map(|name| dir.join(format!("{name}{seed}")));
    open_in(&fresh, &files, options.clone()).reserve(SEQUENCE, 1000).expect("reserved");
    copy_dir(&fresh, &live);
    let files = Arc::new(files.copy());
    files.forgets.store(forgets, Ordering::Relaxed);
    let witness = Witness::new(|_| {});
    let store = witness.watch(|| open_in(&live, &files, options.clone()));
    let expected: Arc<Mutex<Expected>> = Arc::default();
    let left: Arc<Mutex<Option<Left>>> = Arc::default();
    files.cut_after(random.u64(1..80), {
        let (expected, left) = (expected.clone(), left.clone());
        move |files| {
            // Held over both: a sync that ends between them would be expected, and not in the index.
            let expected = expected.lock();
            let (files, index) = (files.copy(), witness.medium());
            *left.lock() = Some(Left { files, index, expected: expected.clone() });
        }
    });
    for _ in 0..60 {
        let object = fid(random.u32(1..=OBJECTS));
        match random.u8(..6) {
            0 if !forgets => sync(&store, None, &expected),
            0..=2 => sync(&store, Some(object), &expected),
            _ => change(&store, object, &expected, &mut random),
        }
    }
    drop(store);
    let left = left.lock().take()?;
    Some(is_kept(&crashed, &fresh, left, options, &format!("seed {seed}")))
}

#[test]
fn what_was_synced_survives_a_power_cut_at_any_change_of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut cuts = 0;
    for seed in 0..60 {
        let is_kept = is_kept_by_trial(dir.path(), seed, false);
        assert_ne!(is_kept, Some(false), "seed {seed}");
        cuts += u32::from(is_kept.is_some());
    }
    assert!(cuts > 35, "{cuts}");
}

/// The emptying of a file may reach the disk before the removal of its object's record.
#[test]
fn a_power_cut_while_objects_are_destroyed_damages_none_of_them() {
    let data = vec![7; SIZE as usize];
    for count in 2..10 {
        let dir = tempfile::tempdir().expect("a directory");
        let [fresh, live, crashed] = ["fresh", "live", "crashed"].map(|name| dir.path().join(name));
        // Only the test records checksums.
        let options = FileStoreOptions { settle_ms: 3_600_000, ..options(true, 0) };
        let files = Arc::new(MemoryTree::default());
        open_in(&fresh, &files, options.clone()).reserve(SEQUENCE, 1000).expect("reserved");
        copy_dir(&fresh, &live);
        let witness = Witness::new(|_| {});
        let store = witness.watch(|| open_in(&live, &files, options.clone()));
        let objects: Vec<Fid> = (1..=count).map(fid).collect();
        for object in &objects {
            store.write(*object, 0, &data).expect("written");
        }
        store.sync_all().expect("synced");
        store.sums.as_ref().expect("it has checksums").settle_older_than(Duration::ZERO);
        store.sync_all().expect("synced");
        let left: Arc<Mutex<Option<(MemoryTree, Medium)>>> = Arc::default();
        // One file is empty, and the next is about to be.
        files.cut_after(2, {
            let left = left.clone();
            move |files| *left.lock() = Some((files.copy(), witness.medium()))
        });
        store.destroy(&objects).expect("destroyed");
        // A thread of the store may have been the last user of a file, and have emptied it later.
        drop(store);
        let (files, index) = left.lock().take().expect("two files were emptied");
        let versions = vec![Some(data.clone()), None];
        let expected = objects.iter().map(|object| (*object, versions.clone())).collect();
        assert!(is_kept(&crashed, &fresh, Left { files, index, expected }, options, "destroyed"));
    }
}

#[test]
fn syncs_that_do_nothing_are_found_by_a_power_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut trials = (0..60).map(|seed| is_kept_by_trial(dir.path(), seed, true));
    assert!(trials.any(|is_kept| is_kept == Some(false)));
}
