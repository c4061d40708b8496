//! The store against an ordered map, with checkpoints and reopening at random moments.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Model, contents, noise, random_batch, random_key, tiny_options};
use crate::meta::{Batch, MetaStore, MetaStoreOptions, Table, TransNo};
use fastrand::Rng;

fn check_get(store: &MetaStore, model: &Model, rng: &mut Rng) {
    let (table, key) = (rng.u8(..3), random_key(rng));
    let found = store.get(Table(table), &key, |value| value.map(<[u8]>::to_vec)).unwrap();
    assert_eq!(found.as_ref(), model.get(&(table, key)));
}

fn check_scan(store: &MetaStore, model: &Model, rng: &mut Rng) {
    let table = rng.u8(..3);
    let mut prefix = random_key(rng);
    prefix.truncate(rng.usize(..20));
    let start = random_key(rng);
    let from = match rng.u64(..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(&start[..]),
        _ => Bound::Excluded(&start[..]),
    };
    let limit = 1 + rng.usize(..40);
    let mut found = Vec::new();
    store
        .scan(Table(table), &prefix, from, &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .unwrap();
    let expected: Vec<_> = model
        .iter()
        .filter(|((t, key), _)| *t == table && key.starts_with(&prefix))
        .filter(|((_, key), _)| match from {
            Bound::Unbounded => true,
            Bound::Included(start) => key.as_slice() >= start,
            Bound::Excluded(start) => key.as_slice() > start,
        })
        .take(limit)
        .map(|((_, key), value)| (key.clone(), value.clone()))
        .collect();
    assert_eq!(found, expected);
}

fn run_against_model(seed: u64, steps: u64, options: &MetaStoreOptions) {
    let mut rng = Rng::with_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut store = MetaStore::open(dir.path(), options.clone()).unwrap();
    let (mut model, mut batch, mut last) = (Model::new(), Batch::new(), TransNo(0));
    for _ in 0..steps {
        match rng.u64(..100) {
            0..60 => {
                random_batch(&mut rng, &mut batch, &mut model);
                let transno = store.commit(&batch).unwrap();
                assert!(transno > last, "seed {seed}");
                last = transno;
            }
            60..80 => check_get(&store, &model, &mut rng),
            80..95 => check_scan(&store, &model, &mut rng),
            95 => {
                store.sync(last).unwrap();
                assert!(store.last_committed() >= last);
            }
            96 | 97 => store.checkpoint().unwrap(),
            98 => last = store.commit_at_least(&Batch::new(), TransNo(0)).unwrap(),
            _ => {
                assert_eq!(store.last_transno(), last);
                drop(store);
                store = MetaStore::open(dir.path(), options.clone()).unwrap();
                assert_eq!(store.last_transno(), last, "seed {seed}");
                assert_eq!(store.last_committed(), last);
            }
        }
    }
    assert_eq!(contents(&store), model, "seed {seed}");
    let report = store.verify(&mut |_| {}).unwrap();
    assert_eq!(report.problem_count, 0);
    store.close().unwrap();
}

#[test]
fn store_agrees_with_an_ordered_map() {
    for seed in 0..12 {
        run_against_model(seed, 1500, &tiny_options());
    }
}

#[test]
fn store_agrees_with_an_ordered_map_when_all_stays_in_the_overlay() {
    let options = MetaStoreOptions { overlay_bytes: 8 << 20, wal_segment_bytes: 4 << 20, ..tiny_options() };
    for seed in 100..103 {
        run_against_model(seed, 2000, &options);
    }
}

#[test]
fn store_agrees_with_an_ordered_map_when_the_log_is_written_by_calls() {
    let options = MetaStoreOptions { wal_mapped: Some(false), ..tiny_options() };
    for seed in 200..204 {
        run_against_model(seed, 1500, &options);
    }
}

#[test]
fn scan_crosses_many_chunks_of_overlay_and_base() {
    let dir = tempfile::tempdir().unwrap();
    let options = MetaStoreOptions { overlay_bytes: 64 << 20, wal_segment_bytes: 16 << 20, ..tiny_options() };
    let store = MetaStore::open(dir.path(), options).unwrap();
    let (mut batch, mut model) = (Batch::new(), Model::new());
    for round in 0..3u8 {
        for i in 0..20_000u32 {
            let number = i.wrapping_mul(2_654_435_761) % 30_000;
            let mut key = vec![7u8; 16];
            key.extend_from_slice(&number.to_be_bytes());
            batch.clear();
            if number % 5 == u32::from(round) {
                batch.delete(Table(1), &key);
                model.remove(&(1, key));
            } else {
                batch.put(Table(1), &key, &[round; 30]);
                model.insert((1, key), vec![round; 30]);
            }
            store.commit(&batch).unwrap();
        }
        assert_eq!(contents(&store), model);
        if round < 2 {
            store.checkpoint().unwrap();
            assert_eq!(contents(&store), model);
        }
    }
}

#[test]
fn large_values_pass_through_log_overlay_and_base() {
    let dir = tempfile::tempdir().unwrap();
    let options = MetaStoreOptions { wal_segment_bytes: 4 << 20, ..tiny_options() };
    let store = MetaStore::open(dir.path(), options.clone()).unwrap();
    let mut batch = Batch::new();
    let value = noise(&mut Rng::with_seed(1), super::super::VALUE_LEN_MAX);
    for i in 0..8u8 {
        batch.clear();
        batch.put(Table(0), &[i], &value);
        batch.put(Table(0), &[i, i], &value[..65_536]);
        store.commit(&batch).unwrap();
    }
    drop(store);
    let store = MetaStore::open(dir.path(), options).unwrap();
    for i in 0..8u8 {
        assert!(store.get(Table(0), &[i], |found| found == Some(&value[..])).unwrap());
        assert!(store.get(Table(0), &[i, i], |found| found == Some(&value[..65_536])).unwrap());
    }
}

#[test]
fn refused_batches_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
    let mut batch = Batch::new();
    let too_long = vec![0u8; super::super::KEY_LEN_MAX + 1];
    let refuse = |batch: &Batch, wanted: &str| {
        let text = store.commit(batch).unwrap_err().to_string();
        assert!(text.contains(wanted), "{text}");
        assert_eq!(store.last_transno(), TransNo(0));
    };
    batch.put(Table(0), b"fine", b"1");
    batch.put(Table(0), &too_long, b"1");
    refuse(&batch, "511 bytes is outside 1..=510");
    batch.clear();
    batch.delete(Table(0), b"");
    refuse(&batch, "0 bytes is outside");
    batch.clear();
    batch.put(Table(0), b"k", &vec![0; super::super::VALUE_LEN_MAX + 1]);
    refuse(&batch, "is longer than 1048576");
    batch.clear();
    batch.put(Table(0), b"k", &vec![0; 64 << 10]);
    refuse(&batch, "metadata batch of");
    assert_eq!(contents(&store), Model::new());
    assert!(store.get(Table(0), &too_long, |value| value.is_none()).unwrap());
}

#[test]
fn numbers_follow_the_floor_of_replayed_requests() {
    let dir = tempfile::tempdir().unwrap();
    let mut batch = Batch::new();
    batch.put(Table(0), b"k", b"v");
    {
        let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
        assert_eq!(store.commit(&batch).unwrap(), TransNo(1));
        assert_eq!(store.commit_at_least(&batch, TransNo(50)).unwrap(), TransNo(50));
        assert_eq!(store.commit_at_least(&batch, TransNo(20)).unwrap(), TransNo(51));
    }
    let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
    assert_eq!(store.commit(&batch).unwrap(), TransNo(52));
}

#[test]
fn threads_see_their_own_writes_and_whole_directories_meanwhile() {
    const WRITERS: u8 = 3;
    const ROUNDS: u32 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let store = MetaStore::open(dir.path(), tiny_options()).unwrap();
    let (stop, scans) = (AtomicBool::new(false), AtomicU64::new(0));
    nacre_env::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let store = &store;
                scope.spawn(move || {
                    let mut batch = Batch::new();
                    for round in 0..ROUNDS {
                        batch.clear();
                        let mut key = vec![writer; 16];
                        key.extend_from_slice(&round.to_be_bytes());
                        batch.put(Table(0), &key, &round.to_be_bytes());
                        batch.put(Table(1), &[writer; 16], &round.to_be_bytes());
                        let transno = store.commit(&batch).unwrap();
                        let seen = store.get(Table(1), &[writer; 16], |v| v.map(<[u8]>::to_vec)).unwrap();
                        assert_eq!(seen.unwrap(), round.to_be_bytes());
                        if round % 500 == 0 {
                            store.sync(transno).unwrap();
                            assert!(store.last_committed() >= transno);
                        }
                    }
                })
            })
            .collect();
        let (store, stop, scans) = (&store, &stop, &scans);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for writer in 0..WRITERS {
                    // Entries are only added, in order, so every scan must find 0..n without a gap.
                    let mut next = 0u32;
                    store
                        .scan(Table(0), &[writer; 16], Bound::Unbounded, &mut |key, value| {
                            assert_eq!(key[16..], next.to_be_bytes());
                            assert_eq!(value, next.to_be_bytes());
                            let nested = store.get(Table(0), key, |found| found.is_some()).unwrap();
                            assert!(nested);
                            next += 1;
                            ControlFlow::Continue(())
                        })
                        .unwrap();
                    scans.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(scans.load(Ordering::Relaxed) > 0);
    assert!(store.stats().checkpoints > 1, "the run must cross checkpoints to prove anything");
    assert_eq!(contents(&store).len(), usize::from(WRITERS) * (ROUNDS as usize + 1));
    assert_eq!(store.stats().commits, u64::from(WRITERS) * u64::from(ROUNDS));
}
