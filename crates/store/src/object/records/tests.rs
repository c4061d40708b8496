//! Tests of objects in records.

use super::*;
use crate::meta::MetaStoreOptions;
use crate::object::conformance;
use std::path::PathBuf;

const DATA: Table = Table(11);
const OBJECT: Fid = Fid::new(0x2_0000_0401, 7, 0);

fn open_with(dir: &Path, options: MetaStoreOptions) -> RecordStore {
    std::fs::create_dir_all(dir).unwrap();
    let meta = MetaStore::open(&dir.join("meta"), MetaStoreOptions { create: true, ..options }).unwrap();
    RecordStore::new(Arc::new(meta), DATA, dir, 0).unwrap()
}

fn open(dir: &Path) -> RecordStore {
    open_with(dir, MetaStoreOptions::small())
}

fn bytes(store: &RecordStore, object: Fid) -> Vec<u8> {
    let mut buffer = vec![0xee; 4 << 20];
    let read = store.read(object, 0, &mut buffer, 0).unwrap();
    buffer.truncate(read);
    buffer
}

/// Returns the number of records of the store, heads included.
fn records(store: &RecordStore) -> usize {
    let mut count = 0;
    store
        .meta
        .scan(DATA, &[], Bound::Unbounded, &mut |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    count
}

#[test]
fn every_change_has_a_version_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut last = store.abilities().version_in(&store.attr(OBJECT).expect("readable"));
    assert_eq!(last, Some(0));
    for _ in 0..100 {
        store.write(OBJECT, 0, b"same").expect("written");
        let version = store.abilities().version_in(&store.attr(OBJECT).expect("readable"));
        assert!(version > last, "{version:?} after {last:?}");
        last = version;
    }
}

#[test]
fn objects_in_records_conform() {
    let dir = tempfile::tempdir().unwrap();
    conformance::run_without_ids(dir.path(), &|dir| Box::new(open(dir)));
}

#[test]
fn what_fits_one_chunk_is_one_record_and_returns_to_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.write(OBJECT, 100, b"abc").unwrap();
    assert_eq!(records(&store), 1);
    assert_eq!(store.small(OBJECT, 103).unwrap().map(|data| data.len()), Some(103));
    assert_eq!(store.small(OBJECT, 102).unwrap(), None);
    store.write(OBJECT, CHUNK_BYTES - 1, b"xy").unwrap();
    assert_eq!(records(&store), 3);
    assert_eq!(store.small(OBJECT, 1 << 20).unwrap(), None, "in several records");
    assert_eq!(&bytes(&store, OBJECT)[99..104], b"\0abc\0");
    store.truncate(OBJECT, 50_000).unwrap();
    store.truncate(OBJECT, 102).unwrap();
    assert_eq!(records(&store), 1);
    assert_eq!(store.small(OBJECT, 102).unwrap().map(|data| data[100..].to_vec()), Some(b"ab".to_vec()));
    // A hole costs nothing wherever it ends.
    store.truncate(OBJECT, 1 << 30).unwrap();
    assert_eq!((records(&store), store.attr(OBJECT).unwrap().blocks), (1, 8));
    store.truncate(OBJECT, 103).unwrap();
    assert_eq!(&bytes(&store, OBJECT)[100..], b"ab\0");
}

#[test]
fn an_edit_takes_part_in_a_transaction_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let mut edit = store.edit(OBJECT).unwrap();
    edit.write(0, b"with a name").unwrap();
    let mut batch = Batch::new();
    assert_eq!(edit.stage(&mut batch).size, 11);
    batch.put(Table(1), b"name", b"file");
    drop(edit);
    assert_eq!(bytes(&store, OBJECT), b"", "not committed");
    store.meta.commit(&batch).unwrap();
    assert_eq!(bytes(&store, OBJECT), b"with a name");
    store.write(OBJECT, 1 << 20, b"far").unwrap();
    let mut batch = Batch::new();
    assert!(store.stage_destroy(OBJECT, &mut batch).unwrap());
    store.meta.commit(&batch).unwrap();
    assert_eq!((records(&store), store.attr(OBJECT).unwrap()), (0, ObjectAttr::default()));
}

#[test]
fn damage_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    store.write(OBJECT, 0, &[1; 100_000]).unwrap();
    let is_clean = || store.verify(false, &mut |_| {}).unwrap().is_clean();
    assert!(is_clean());
    let mut batch = Batch::new();
    batch.delete(DATA, &chunk_key(OBJECT, 1));
    store.meta.commit(&batch).unwrap();
    assert!(!is_clean());
    batch.clear();
    batch.put(DATA, &OBJECT.to_key(), b"nonsense");
    store.meta.commit(&batch).unwrap();
    assert!(!is_clean());
    assert!(
        store.read(OBJECT, 0, &mut [0; 8], 0).is_err(),
        "a damaged head is an error, not an empty object"
    );
    batch.delete(DATA, &OBJECT.to_key());
    store.meta.commit(&batch).unwrap();
    assert!(!is_clean(), "chunks without a head");
}

#[test]
fn a_full_file_system_refuses_writes_but_not_what_was_promised_or_frees() {
    let dir = tempfile::tempdir().unwrap();
    let options = MetaStoreOptions { create: true, ..MetaStoreOptions::small() };
    let meta = Arc::new(MetaStore::open(&dir.path().join("meta"), options).unwrap());
    let path: PathBuf = dir.path().to_owned();
    let roomy = RecordStore::new(meta.clone(), DATA, &path, 0).unwrap();
    roomy.write(OBJECT, 0, b"before").unwrap();
    let full = RecordStore::new(meta, DATA, &path, u64::MAX).unwrap();
    assert!(matches!(full.write(OBJECT, 0, b"after"), Err(ObjectError::NoSpace)));
    let keep = Fallocate::Allocate { keep_size: true };
    assert!(matches!(full.fallocate(OBJECT, keep, 0, 1 << 20), Err(ObjectError::NoSpace)));
    assert_eq!(full.stats().refused_full, 2);
    assert_eq!(full.write_promised(OBJECT, 0, b"promised").unwrap(), 8);
    full.truncate(OBJECT, 3).unwrap();
    assert_eq!(bytes(&full, OBJECT), b"pro");
    assert_eq!(full.destroy(&[OBJECT]).unwrap(), 1);
}
