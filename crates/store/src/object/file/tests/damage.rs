//! Problems that `verify` finds and repairs.

use super::*;
use crate::object::ObjectProblem;

#[test]
fn a_missing_file_and_strays_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.reserve(SEQUENCE, 10).unwrap();
    for oid in 1..=3 {
        store.write(fid(oid), 0, b"data").unwrap();
    }
    let slot = store.lookup(fid(2)).unwrap().unwrap();
    drop(store);
    let store = open(dir.path());
    std::fs::remove_file(store.slots.path(slot)).unwrap();
    let stray = dir.path().join("objects/00/core");
    std::fs::write(&stray, b"?").unwrap();
    std::fs::create_dir(dir.path().join(LOCK_CLIENTS)).unwrap();
    let report = store.verify(true, &mut |_| {}).unwrap();
    assert_eq!((report.objects, report.problem_count, report.repaired), (3, 2, 0));
    assert!(report.problems.contains(&ObjectProblem::FileMissing { object: fid(2), slot }));
    assert!(report.problems.contains(&ObjectProblem::Stray { path: stray }));
    let mut buffer = [0; 10];
    assert!(matches!(store.read(fid(2), 0, &mut buffer, 0), Err(ObjectError::Damaged { .. })));
    assert_eq!(store.destroy(&[fid(2)]).unwrap(), 1, "a damaged object can be destroyed");
}

#[test]
fn bytes_without_owner_are_emptied_and_marks_raised_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_without_spare(dir.path());
    store.write(fid(9), 0, b"data").unwrap();
    let leftover = store.slots.path(5);
    std::fs::write(&leftover, b"old bytes").unwrap();
    let found = [
        ObjectProblem::AboveReserved { object: fid(9), last_reserved: 0 },
        ObjectProblem::FreeFileNotEmpty { slot: 5, size: 9 },
    ];
    let report = store.verify(false, &mut |_| {}).unwrap();
    assert_eq!(report.problems, found);
    assert!(!report.is_clean());
    let report = store.verify(true, &mut |_| {}).unwrap();
    assert_eq!(report.problems, found);
    assert!(report.is_clean());
    let report = store.verify(false, &mut |_| {}).unwrap();
    assert_eq!(report.problem_count, 0);
    assert_eq!(std::fs::metadata(&leftover).unwrap().len(), 0);
    assert_eq!(store.last_reserved(SEQUENCE).unwrap(), 9);
}

#[test]
fn two_objects_with_one_file_are_reported_and_destroying_one_spares_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.reserve(SEQUENCE, 10).unwrap();
    store.write(fid(1), 0, b"data").unwrap();
    let slot = store.lookup(fid(1)).unwrap().unwrap();
    let mut batch = Batch::new();
    batch.put(OBJECTS, &fid(2).to_key(), &ObjectRecord { slot }.encode());
    batch.put(OBJECTS, &fid(3).to_key(), b"rubbish");
    store.index.commit(&batch).unwrap();
    drop(store);
    let store = open(dir.path());
    let report = store.verify(true, &mut |_| {}).unwrap();
    assert_eq!((report.problem_count, report.repaired), (2, 0));
    assert!(report.problems.contains(&ObjectProblem::FileShared { object: fid(2), slot }));
    store.destroy(&[fid(2)]).unwrap();
    assert_eq!(read(&store, fid(1), 10), b"data");
    assert!(matches!(store.attr(fid(3)), Err(ObjectError::Damaged { .. })));
}

fn leave_over(store: &FileStore, slot: u32, bytes: &[u8]) {
    let path = store.slots.path(slot);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn slot_directories_are_made_when_they_are_needed() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_without_spare(dir.path());
    let made = || std::fs::read_dir(store.slots.root()).map_or(0, |names| names.count());
    assert_eq!((made(), store.verify(false, &mut |_| {}).unwrap().is_clean()), (0, true));
    for oid in 1..=300 {
        store.write(fid(oid), 0, b"data").unwrap();
    }
    assert_eq!(made(), 2, "{:?}", store.slots.root());
}

#[test]
fn a_file_left_full_beyond_the_known_slots_gives_its_new_owner_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_without_spare(dir.path());
    for slot in 0..4 {
        leave_over(&store, slot, b"left over by a power cut");
    }
    for oid in 1..=4 {
        store.truncate(fid(oid), 100).unwrap();
        assert_eq!(read(&store, fid(oid), 1000), [0; 100]);
    }
}

#[test]
fn after_a_crash_files_without_owner_are_emptied_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_without_spare(dir.path());
    store.reserve(SEQUENCE, 10).unwrap();
    store.write(fid(1), 0, b"data").unwrap();
    store.write(fid(2), 0, b"data").unwrap();
    // As if the records of new owners had been lost in a power cut, below and above the known slots.
    let lost = [0, 1000, 4000];
    store.destroy(&[fid(1)]).unwrap();
    store.releaser.drain();
    for slot in lost {
        leave_over(&store, slot, b"bytes of a lost object");
    }
    // Keeps the store from being marked clean.
    store.releaser.lose(9, Errno::IO);
    drop(store);
    let store = open_without_spare(dir.path());
    assert_eq!(store.stats().recovered_files, 3);
    for slot in lost {
        assert_eq!(std::fs::metadata(store.slots.path(slot)).unwrap().len(), 0);
    }
    assert_eq!(read(&store, fid(2), 10), b"data");
    assert!(store.verify(false, &mut |_| {}).unwrap().is_clean());
    drop(store);
    assert_eq!(
        open_without_spare(dir.path()).stats().recovered_files,
        0,
        "after an orderly stop nothing is looked at"
    );
}

#[test]
fn a_start_that_failed_leaves_the_rest_of_the_recovery_to_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let files = Arc::new(memory::Tree::default());
    let open = || {
        let options = FileStoreOptions { spare_files: 0, ..FileStoreOptions::create() };
        FileStore::open_in_memory(dir.path(), options, &files)
    };
    let store = open().unwrap();
    store.reserve(SEQUENCE, 10).unwrap();
    store.write(fid(1), 0, b"data").unwrap();
    files.limit(memory::Limits { fails: true, ..memory::Limits::default() });
    store.destroy(&[fid(1)]).unwrap();
    store.releaser.drain();
    drop(store);
    assert!(open().is_err());
    files.limit(memory::Limits::default());
    let store = open().unwrap();
    assert_eq!(store.stats().recovered_files, 1);
    assert!(store.verify(false, &mut |_| {}).unwrap().is_clean());
}
