//! Power cuts at every write of the log, and before and after every flush: bytes that only the kernel had may
//! not be on the medium.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::super::witness::{Medium, Way, Witness};
use super::crash::copy_store;
use super::{Model, contents, random_batch, tiny_options};
use crate::meta::{Batch, MetaStore, MetaStoreOptions, Table, TransNo};
use fastrand::Rng;

/// Large enough that nothing moves to the base, whose files are copied once.
fn options() -> MetaStoreOptions {
    let wal_mapped = Some(true);
    MetaStoreOptions { wal_segment_bytes: 4 << 20, overlay_bytes: 16 << 20, wal_mapped, ..tiny_options() }
}

/// A store whose power is cut repeatedly, in copies.
struct Trial {
    /// The store as it was created.
    fresh: PathBuf,
    /// Directory in which copies are opened.
    crashed: PathBuf,
    /// Content after each transaction, including one that is being committed.
    states: Mutex<Vec<Model>>,
    /// Newest transaction promised to be durable.
    promised: AtomicU64,
    rng: Mutex<Rng>,
    /// Cuts that lost none, some and all of the transactions not promised.
    seen: [AtomicU64; 3],
}

impl Trial {
    fn cut(&self, medium: &Medium) {
        let mut rng = self.rng.lock().expect("nobody panicked");
        // Of the written sectors, this many of 8 reach the medium in some version.
        let chance = [0, 1, 4, 7, 8][rng.usize(..5)];
        copy_store(&self.fresh, &self.crashed);
        for (slot, image) in medium.images.iter().enumerate() {
            let bytes = image.after_cut(&mut |versions| match rng.u64(..8) < chance {
                true if chance == 8 => versions - 1,
                true => rng.usize(..versions),
                false => 0,
            });
            std::fs::write(self.crashed.join(format!("wal.{slot}")), bytes).expect("written");
        }
        let store = MetaStore::open(&self.crashed, options()).expect("a power cut damages nothing");
        let reached = store.last_transno().0;
        let promised = self.promised.load(Ordering::SeqCst);
        assert!(reached >= promised, "{reached} lacks {promised}");
        let states = self.states.lock().expect("nobody panicked");
        assert!(contents(&store) == states[reached as usize], "transaction {reached} of {}", states.len());
        let what = match reached {
            _ if reached == promised => 0,
            _ if reached < states.len() as u64 - 1 => 1,
            _ => 2,
        };
        self.seen[what].fetch_add(1, Ordering::SeqCst);
    }
}

fn trial(dir: &Path, seed: u64) -> (Arc<Trial>, Arc<Witness>, MetaStore) {
    let fresh = dir.join("fresh");
    drop(MetaStore::open(&fresh, options()).expect("made"));
    let live = dir.join("live");
    copy_store(&fresh, &live);
    let trial = Arc::new(Trial {
        fresh,
        crashed: dir.join("crashed"),
        states: Mutex::new(vec![Model::new()]),
        promised: AtomicU64::new(0),
        rng: Mutex::new(Rng::with_seed(seed)),
        seen: Default::default(),
    });
    let witness = Witness::new({
        let trial = trial.clone();
        move |medium| trial.cut(medium)
    });
    let store = witness.watch(|| MetaStore::open(&live, options())).expect("opens");
    (trial, witness, store)
}

#[test]
fn the_power_may_go_at_every_write_and_every_flush_of_the_log() {
    let dir = tempfile::tempdir().expect("a directory");
    let (mut seen, mut ways) = ([0; 3], [0; 3]);
    for seed in 0..3 {
        let (trial, witness, store) = trial(&dir.path().join(seed.to_string()), seed);
        let (mut rng, mut batch, mut model) = (Rng::with_seed(seed + 50), Batch::new(), Model::new());
        // Records that are flushed one at a time, then several at a time, then one at a time again.
        for (rounds, records) in [(16, 1), (5, 6), (14, 1), (2, 3)] {
            for _ in 0..rounds {
                let mut last = TransNo(0);
                for _ in 0..records {
                    random_batch(&mut rng, &mut batch, &mut model);
                    trial.states.lock().expect("nobody panicked").push(model.clone());
                    last = store.commit(&batch).expect("committed");
                }
                store.sync(last).expect("synced");
                trial.promised.store(last.0, Ordering::SeqCst);
            }
        }
        assert_eq!(contents(&store), model);
        let medium = witness.medium();
        for (count, way) in ways.iter_mut().zip([Way::Mapping, Way::Call, Way::Direct]) {
            *count += medium.count(way);
        }
        seen.iter_mut().zip(&trial.seen).for_each(|(all, seen)| *all += seen.load(Ordering::SeqCst));
    }
    assert!(seen.iter().all(|&count| count > 5), "nothing, some, all of what was not promised: {seen:?}");
    // Not every file system supports direct I/O.
    let log = dir.path().join("0/live/wal.0");
    let direct = std::fs::File::options().write(true).custom_flags(libc::O_DIRECT).open(log);
    let needs = usize::from(direct.is_ok());
    assert!(
        ways[0] > 0 && ways[1] > 20 && ways[2] >= needs,
        "by mapping, by call, around the page cache: {ways:?}"
    );
}

#[test]
fn what_many_were_promised_at_once_survives_a_power_cut_at_any_moment() {
    const THREADS: usize = 4;
    let dir = tempfile::tempdir().expect("a directory");
    let fresh = dir.path().join("fresh");
    drop(MetaStore::open(&fresh, options()).expect("made"));
    let live = dir.path().join("live");
    copy_store(&fresh, &live);
    let promised: Arc<[AtomicU64; THREADS]> = Arc::default();
    let cuts = Arc::new(AtomicU64::new(0));
    let witness = Witness::new({
        let (promised, cuts, crashed) = (promised.clone(), cuts.clone(), dir.path().join("crashed"));
        let rng = Mutex::new(Rng::with_seed(9));
        move |medium| {
            if cuts.fetch_add(1, Ordering::SeqCst) % 3 != 0 {
                return;
            }
            let before = promised.each_ref().map(|count| count.load(Ordering::SeqCst));
            let mut rng = rng.lock().expect("nobody panicked");
            copy_store(&fresh, &crashed);
            for (slot, image) in medium.images.iter().enumerate() {
                let bytes = image.after_cut(&mut |versions| rng.usize(..versions));
                std::fs::write(crashed.join(format!("wal.{slot}")), bytes).expect("written");
            }
            let store = MetaStore::open(&crashed, options()).expect("a power cut damages nothing");
            for (thread, before) in before.into_iter().enumerate() {
                let has = |round: u64| {
                    store
                        .get(Table(thread as u8), &round.to_be_bytes(), |value| value.is_some())
                        .expect("read")
                };
                assert!((1..=before).all(has), "thread {thread} was promised {before}");
                // No later one without the earlier ones.
                let end = (1..).find(|round| !has(*round)).expect("an end");
                assert!((end..end + 5).all(|round| !has(round)), "thread {thread}");
            }
        }
    });
    let store = witness.watch(|| MetaStore::open(&live, options())).expect("opens");
    nacre_env::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (store, promised) = (&store, &promised);
            scope.spawn(move || {
                let mut batch = Batch::new();
                for round in 1..=25u64 {
                    batch.clear();
                    batch.put(Table(thread as u8), &round.to_be_bytes(), &[round as u8; 700]);
                    let transno = store.commit(&batch).expect("committed");
                    store.sync(transno).expect("synced");
                    promised[thread].store(round, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(cuts.load(Ordering::SeqCst) > 150);
}
