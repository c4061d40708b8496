//! Tests of the metadata store: against a model, through crashes, on full disks, and of its format.

mod crash;
mod damage;
mod format;
mod full_disk;
mod growth;
mod medium;
mod model;
mod opening;

use fastrand::Rng;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use super::{Batch, MetaStore, MetaStoreOptions, Table};

/// Expected content of a store: (table, key) to value.
type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// Returns random bytes.
fn noise(rng: &mut Rng, len: usize) -> Vec<u8> {
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

fn tiny_options() -> MetaStoreOptions {
    MetaStoreOptions {
        create: true,
        read_only: false,
        overlay_bytes: 32 << 10,
        wal_segment_bytes: 64 << 10,
        wal_mapped: None,
        commit_interval_ms: 0,
        map_bytes: 1 << 30,
        reserve_bytes: 64 << 10,
    }
}

fn contents(store: &MetaStore) -> Model {
    let mut found = Model::new();
    for table in 0..4 {
        store
            .scan(Table(table), &[], Bound::Unbounded, &mut |key, value| {
                found.insert((table, key.to_vec()), value.to_vec());
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    found
}

/// Returns a key from a small space, so that keys recur often; about half begin with one of four "FIDs".
fn random_key(rng: &mut Rng) -> Vec<u8> {
    let mut key = match rng.u64(..4) {
        0 => noise(rng, 1),
        1 => vec![b'k'; 1 + rng.usize(..3)],
        _ => vec![rng.u8(..4); 16],
    };
    for _ in 0..rng.u64(..3) {
        key.push(b'a' + rng.u8(..4));
    }
    if rng.u64(..100) == 0 {
        key.resize(super::KEY_LEN_MAX, b'z');
    }
    key
}

/// Fills a batch with random operations and applies them to the model.
fn random_batch(rng: &mut Rng, batch: &mut Batch, model: &mut Model) {
    batch.clear();
    for _ in 0..1 + rng.u64(..4) {
        let (table, key) = (rng.u8(..3), random_key(rng));
        if rng.u64(..3) == 0 {
            batch.delete(Table(table), &key);
            model.remove(&(table, key));
        } else {
            let len = match rng.u64(..50) {
                0 => 5000,
                _ => rng.usize(..200),
            };
            let value = noise(rng, len);
            batch.put(Table(table), &key, &value);
            model.insert((table, key), value);
        }
    }
}

#[test]
fn a_log_that_is_flushed_now_often_and_now_seldom_comes_back_whole() {
    let dir = tempfile::tempdir().expect("a directory");
    let store_dir = dir.path().join("store");
    // Large enough that the base, which is copied below, does not change.
    let options = MetaStoreOptions { wal_segment_bytes: 8 << 20, overlay_bytes: 16 << 20, ..tiny_options() };
    let store = MetaStore::open(&store_dir, options.clone()).expect("opens");
    let (mut rng, mut batch, mut model) = (Rng::with_seed(11), Batch::new(), Model::new());
    for phase in 0..12u64 {
        // Records of one phase are written by calls, those of the next through the mapping; some share a
        // page.
        let (records, is_flushed) = if phase % 2 == 0 { (40, true) } else { (1 + rng.u64(..900), false) };
        for _ in 0..records {
            random_batch(&mut rng, &mut batch, &mut model);
            let value = noise(&mut rng, 400);
            batch.put(Table(3), &phase.to_be_bytes(), &value);
            model.insert((3, phase.to_be_bytes().to_vec()), value);
            let transno = store.commit(&batch).expect("committed");
            if is_flushed {
                store.sync(transno).expect("synced");
                assert_eq!(store.last_committed(), transno);
            }
        }
        assert!(store.verify(&mut |_| {}).expect("verify runs").problems.is_empty());
        // As after a kill of the process.
        let copy = dir.path().join(format!("copy-{phase}"));
        crash::copy_store(&store_dir, &copy);
        let copied = MetaStore::open(&copy, options.clone()).expect("opens");
        assert!(contents(&copied) == model, "phase {phase}");
    }
    assert!(contents(&store) == model);
}
