//! Fragmented objects become less fragmented, and nothing else changes.

use super::crash::{Trial, at_every_transfer};
use super::*;
use crate::object::{Fallocate, ObjectExtent};
use device::Fault;

/// Bytes of a map.
const MAP_BYTES: u64 = 64 * BLOCK;

/// Moves every part that saves a transfer, at once.
pub(super) const EAGER: DefragSettings = DefragSettings {
    is_on: true,
    bytes_per_second: 1 << 40,
    threshold_percent: 0,
    rest_seconds: 0,
    idle_ms: 0,
};

fn extents(store: &BlockStore, object: Fid) -> Vec<ObjectExtent> {
    store.objects.extents(object).expect("read").expect("known")
}

/// Writes two objects whose blocks alternate.
fn interleave(store: &BlockStore, blocks: u64) {
    // Backwards, so that no write continues another.
    for at in (0..blocks).rev() {
        for oid in 1..=2 {
            store
                .write(fid(oid), at * BLOCK, &[(at % 250) as u8 + oid as u8; BLOCK as usize])
                .expect("written");
        }
    }
}

#[test]
fn an_object_of_scattered_blocks_becomes_few_extents_with_the_same_data_and_version() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let store = in_memory(dir.path(), &device, options());
    interleave(&store, 2000);
    let how = Fallocate::Punch;
    store.fallocate(fid(1), how, 100 * BLOCK, 300 * BLOCK).expect("a hole");
    let before = extents(&store, fid(1)).len();
    assert!(before >= 1500, "{before}");
    let (data, attr) = (contents(&store, fid(1)), store.attr(fid(1)).expect("attr"));
    let free = store.space().expect("space").free;
    let moved = store.defragment(&EAGER).expect("moved");
    assert_eq!(moved, (1700 + 2000) * BLOCK);
    for oid in 1..=2 {
        let after = extents(&store, fid(oid)).len();
        assert!(after <= 3, "object {oid} lies in {after} pieces");
    }
    assert!(contents(&store, fid(1)) == data);
    assert_eq!(store.attr(fid(1)).expect("attr"), attr, "size, space and time");
    assert_eq!(store.space().expect("space").free, free);
    let stats = store.defrag_stats();
    assert_eq!((stats.passes, stats.objects, stats.bytes), (1, 2, moved));
    assert!(stats.extents_before >= 3500 && stats.extents_after <= 6, "{stats:?}");
    assert_eq!(store.defragment(&EAGER).expect("looked"), 0, "what lies well is left");
    assert_clean(&store, "moved");
    drop(store);
    let store = in_memory(dir.path(), &device, options());
    assert!(contents(&store, fid(1)) == data);
    assert_eq!(store.attr(fid(1)).expect("attr"), attr);
}

#[test]
fn free_space_that_was_cut_up_comes_together_when_what_cut_it_is_moved() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(64 << 20)), options());
    interleave(&store, 3000);
    let longest = store.objects.volume().space().report().largest;
    store.destroy(&[fid(2)]).expect("destroyed");
    store.sync_all().expect("synced");
    let before = store.objects.volume().space().report();
    assert!(before.count >= 1000, "{before:?}");
    store.defragment(&EAGER).expect("moved");
    store.sync_all().expect("synced");
    let after = store.objects.volume().space().report();
    assert!(after.count <= 4, "{after:?}");
    assert_eq!(after.bytes, before.bytes);
    assert!(after.largest >= longest * 3 / 4, "{after:?}");
    assert_clean(&store, "moved");
}

#[test]
fn space_set_aside_moves_without_a_transfer() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, options());
    let how = Fallocate::Allocate { keep_size: false };
    for at in (0..200).rev() {
        for oid in 1..=2 {
            store.fallocate(fid(oid), how, at * BLOCK, BLOCK).expect("set aside");
        }
    }
    store.write(fid(1), 50 * BLOCK, &[7; BLOCK as usize]).expect("written");
    let (data, written) = (contents(&store, fid(1)), device.stats().written_bytes);
    assert!(extents(&store, fid(1)).len() > 100);
    store.defragment(&EAGER).expect("moved");
    assert_eq!(extents(&store, fid(1)).len(), 1);
    assert_eq!(device.stats().written_bytes - written, BLOCK);
    assert!(contents(&store, fid(1)) == data);
    store.write(fid(1), 0, &[8; 50 * BLOCK as usize]).expect("what was set aside is still there");
    assert_eq!(extents(&store, fid(1)).len(), 1);
    assert_clean(&store, "moved");
}

#[test]
fn what_changed_a_moment_ago_or_is_damaged_stays() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, options());
    interleave(&store, 100);
    let resting = DefragSettings { rest_seconds: 3600, ..EAGER };
    assert_eq!(store.defragment(&resting).expect("looked"), 0);
    let place = extents(&store, fid(1))[3];
    device.flip_bit(place.physical + 5, 1);
    let before = extents(&store, fid(1));
    store.defragment(&EAGER).expect("goes on with others");
    assert_eq!(extents(&store, fid(1)), before, "damage is not carried to another place");
    assert_eq!(extents(&store, fid(2)).len(), 1);
    assert_eq!(store.defrag_stats().failed, 1);
    let mut buffer = [0; 4096];
    let error = store.read(fid(1), place.logical, &mut buffer, 0).expect_err("still damaged");
    assert_eq!(error.status(), nacre_types::Status::EIO);
}

#[test]
fn a_device_without_room_stays_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(8 << 20)), options());
    // Whole maps: a part of one would still find space.
    interleave(&store, 6 * 64);
    let mut oid = 10;
    while store.write(fid(oid), 0, &[3; 65536]).is_ok_and(|written| written == 65536) {
        oid += 1;
    }
    let before = extents(&store, fid(1));
    let moved = store.defragment(&EAGER).expect("looked");
    assert!(moved < MAP_BYTES, "{moved}");
    assert!(extents(&store, fid(1)) == before, "{:?}", store.defrag_stats());
    assert!(store.defrag_stats().no_room > 0);
    assert_clean(&store, "full");
}

#[test]
fn a_transfer_that_fails_while_data_is_moved_changes_and_leaks_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, options());
    interleave(&store, 100);
    let (before, free, data) =
        (extents(&store, fid(1)), store.space().expect("space").free, contents(&store, fid(1)));
    device.order(Fault::TornWrite(0));
    store.defragment(&EAGER).expect("goes on");
    assert_eq!(extents(&store, fid(1)), before);
    assert_eq!(store.defrag_stats().failed, 1);
    assert_eq!(store.space().expect("space").free, free);
    assert!(contents(&store, fid(1)) == data);
    assert_clean(&store, "after the failure");
}

#[test]
fn a_part_that_changes_while_it_is_moved_is_left_or_keeps_the_change() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(64 << 20)), options());
    interleave(&store, 600);
    let is_over = AtomicBool::new(false);
    nacre_env::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                store.defragment(&EAGER).expect("moved");
            }
        });
        let mut random = fastrand::Rng::with_seed(11);
        let mut expected = contents(&store, fid(1));
        for round in 0..3000u32 {
            let at = random.u64(..600) * BLOCK;
            let byte = (round % 251) as u8;
            store.write(fid(1), at, &[byte; BLOCK as usize]).expect("written");
            expected[at as usize..(at + BLOCK) as usize].fill(byte);
            if round % 100 == 0 {
                store.sync_all().expect("synced");
            }
        }
        is_over.store(true, Ordering::Release);
        mover.join().expect("no panic");
        assert!(contents(&store, fid(1)) == expected);
    });
    store.defragment(&EAGER).expect("moved");
    assert_eq!(extents(&store, fid(1)).len(), 1);
    let stats = store.defrag_stats();
    assert!(stats.parts > 2, "{stats:?}");
    assert_clean(&store, "after a race");
}

#[test]
fn random_operations_with_data_moving_after_each_of_them() {
    let mut moved = 0;
    for seed in 500..520 {
        let mut trial = Trial::new(seed);
        for step in 0..40 {
            assert!(trial.step());
            moved += trial.store.defragment(&EAGER).expect("moved");
            for (object, expected) in &trial.objects {
                let found =
                    trial.store.attr(*object).expect("attr").mtime.map(|_| contents(&trial.store, *object));
                assert!(found == expected.now, "seed {seed}, step {step}, object {object}");
            }
            if trial.random.u64(..6) == 0 {
                trial.sync();
            }
        }
        assert_clean(&trial.store, &format!("seed {seed}"));
    }
    assert!(moved > 1 << 20, "{moved} bytes were moved");
}

#[test]
fn a_power_cut_after_data_was_moved_leaves_old_or_new() {
    for seed in 600..620 {
        let mut trial = Trial::new(seed);
        for _ in 0..20 {
            assert!(trial.step());
            if trial.random.u64(..5) == 0 {
                trial.sync();
            }
        }
        for _ in 0..1 + trial.random.u64(..5) {
            assert!(trial.step());
            trial.store.defragment(&EAGER).expect("moved");
        }
        for chance in [0, 4, 8] {
            let latest = trial.copy("latest");
            trial.cut(&latest, chance, &format!("seed {seed}, newest index, chance {chance}"));
        }
    }
}

#[test]
fn the_power_may_go_at_every_transfer_while_data_is_moved() {
    let mut moved = 0;
    at_every_transfer(700..704, (12, 12), |trial, step| {
        // A part that cannot be moved is an error in the log, due to the device's failures.
        moved += trial.store.defragment(&EAGER).unwrap_or(0);
        step % 4 == 3 && trial.store.sync_all().is_err()
    });
    assert!(moved > 0);
}

/// Waits for work of a background thread of the store.
fn await_that(store: &BlockStore, what: &str, is_so: impl Fn(&DefragStats) -> bool) {
    let end = nacre_env::clock::Instant::now() + Duration::from_secs(60);
    while !is_so(&store.defrag_stats()) {
        assert!(nacre_env::clock::Instant::now() < end, "{what}: {:?}", store.defrag_stats());
        nacre_env::thread::yield_now();
    }
}

#[test]
fn the_thread_moves_when_it_is_on_and_nobody_uses_the_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(64 << 20)), options());
    interleave(&store, 500);
    assert_eq!(store.defrag_stats(), DefragStats::default(), "off unless it is said");
    store.set_defrag_settings(DefragSettings { idle_ms: 200, ..EAGER });
    let is_over = AtomicBool::new(false);
    nacre_env::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 4096];
            while !is_over.load(Ordering::Acquire) {
                store.read(fid(1), 0, &mut buffer, 0).expect("read");
            }
        });
        await_that(&store, "it waits for the reader", |stats| stats.pauses > 0);
        assert_eq!(store.defrag_stats().bytes, 0);
        is_over.store(true, Ordering::Release);
    });
    await_that(&store, "the reader is gone", |stats| stats.passes > 0);
    assert_eq!(extents(&store, fid(1)).len(), 1);
    assert_clean(&store, "moved");
}

#[test]
fn the_rate_bounds_what_is_moved() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(64 << 20)), options());
    interleave(&store, 2000);
    let begin = nacre_env::clock::Instant::now();
    // Two parts each: after the first one the rate is reached, and after the last one.
    store.set_defrag_settings(DefragSettings { bytes_per_second: 16 << 20, ..EAGER });
    await_that(&store, "both are moved", |stats| stats.passes > 0);
    let bytes = store.defrag_stats().bytes;
    assert_eq!(bytes, 4000 * BLOCK);
    let least = bytes as f64 / f64::from(16 << 20);
    assert!(begin.elapsed().as_secs_f64() >= least, "{:?} for {bytes}", begin.elapsed());
}

#[test]
fn a_store_whose_data_moves_all_the_time_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    let devices: Mutex<HashMap<PathBuf, Arc<MemoryDevice>>> = Mutex::default();
    conformance::run(dir.path(), &|dir| {
        let new = || Arc::new(MemoryDevice::new(64 << 20));
        let device = devices.lock().entry(dir.to_owned()).or_insert_with(new).clone();
        let options = BlockStoreOptions { defrag: EAGER, commit_interval_ms: 5, ..options() };
        Box::new(BlockStore::open_with(dir, options, device).expect("opens")) as Box<dyn ObjectStore>
    });
}
