//! Power cuts and kills of the process, at any point.
//!
//! Objects are changed at random, and synced from time to time. A power cut leaves the index as any prefix of
//! its transactions not below the last one synced, here the two extremes, and each sector of the device that
//! was not flushed as any of its versions. Afterwards each block of each object holds a version from the last
//! sync on.

use super::*;
use crate::object::Fallocate;
use device::Fault;
use std::collections::BTreeMap;

/// Objects that change.
const OBJECTS: u64 = 4;
/// Blocks of an object.
const BLOCKS: usize = 80;
const BLOCK_LEN: usize = BLOCK as usize;

/// Contents that a store may show for an object.
#[derive(Clone, Default)]
pub(super) struct Expected {
    pub(super) now: Option<Vec<u8>>,
    /// Versions since the last sync, the synced one first.
    versions: Vec<Option<Vec<u8>>>,
}

/// A store and its expected content.
pub(super) struct Trial {
    pub(super) store: BlockStore,
    pub(super) device: Arc<MemoryDevice>,
    dir: tempfile::TempDir,
    pub(super) objects: BTreeMap<Fid, Expected>,
    pub(super) random: fastrand::Rng,
}

impl Trial {
    pub(super) fn new(seed: u64) -> Trial {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(16 << 20));
        let store = in_memory(&dir.path().join("live"), &device, options());
        let objects = (1..=OBJECTS).map(|oid| (fid(oid as u32), Expected::default())).collect();
        let mut trial = Trial { store, device, dir, objects, random: fastrand::Rng::with_seed(seed) };
        trial.sync();
        trial
    }

    pub(super) fn copy(&self, name: &str) -> PathBuf {
        let to = self.dir.path().join(name);
        let _ = std::fs::remove_dir_all(&to);
        copy_dir(&self.dir.path().join("live"), &to);
        to
    }

    /// Makes everything durable and keeps a copy of the index.
    pub(super) fn sync(&mut self) {
        self.store.sync_all().expect("synced");
        for expected in self.objects.values_mut() {
            expected.versions = vec![expected.now.clone()];
        }
        self.copy("synced");
    }

    /// Changes an object; after an error any version before or after is valid.
    pub(super) fn step(&mut self) -> bool {
        let random = &mut self.random;
        let object = fid(random.u64(..OBJECTS) as u32 + 1);
        let grain = [1, 512, BLOCK][random.usize(..3)];
        let limit = [4096, 20_000, (BLOCKS * BLOCK_LEN) as u64][random.usize(..3)];
        let offset = random.u64(..limit) / grain * grain;
        let len = (random.u64(..limit / 2 + 1) / grain * grain).max(grain) as usize;
        let expected = self.objects.get_mut(&object).expect("all are there");
        let before = expected.now.clone();
        let mut data = before.clone().unwrap_or_default();
        let end = offset as usize + len;
        let result = match random.u64(..8) {
            0 => {
                if before.is_some() || offset > 0 {
                    data.resize(offset as usize, 0);
                    expected.now = Some(data);
                }
                self.store.truncate(object, offset).map(drop)
            }
            1 => {
                if before.is_some() {
                    let end = end.min(data.len());
                    data[(offset as usize).min(end)..end].fill(0);
                    expected.now = Some(data);
                }
                self.store.fallocate(object, Fallocate::Punch, offset, len as u64).map(drop)
            }
            2 => {
                if data.len() < end {
                    data.resize(end, 0);
                }
                expected.now = Some(data);
                let how = Fallocate::Allocate { keep_size: false };
                self.store.fallocate(object, how, offset, len as u64).map(drop)
            }
            3 => {
                expected.now = None;
                self.store.destroy(&[object]).map(drop)
            }
            _ => {
                let byte = random.u8(..255) + 1;
                if data.len() < end {
                    data.resize(end, 0);
                }
                data[offset as usize..end].fill(byte);
                expected.now = Some(data);
                self.store.write(object, offset, &vec![byte; len]).map(drop)
            }
        };
        expected.versions.push(expected.now.clone());
        result.is_ok()
    }

    /// Cuts the power and checks the rest; `index` is the copy of the directory that goes with it.
    pub(super) fn cut(&mut self, index: &Path, chance: u64, context: &str) {
        let random = &mut self.random;
        let device = self.device.after_power_cut(&mut |versions| match random.u64(..8) < chance {
            true => random.usize(..versions),
            false => 0,
        });
        let store = BlockStore::open_with(index, options(), Arc::new(device))
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        for (object, expected) in &self.objects {
            let found = store.attr(*object).expect("attr").mtime.map(|_| contents(&store, *object));
            check_object(&expected.versions, found.as_deref(), &format!("{context}, object {object}"));
        }
        assert_clean(&store, context);
        // The store is usable, and reverted blocks stay reverted.
        let before: Vec<Vec<u8>> = self.objects.keys().map(|object| contents(&store, *object)).collect();
        store.write(fid(99), 0, &[9; 30_000]).expect("written");
        store.sync_all().expect("synced");
        assert_eq!(contents(&store, fid(99)), [9; 30_000]);
        for (object, before) in self.objects.keys().zip(before) {
            assert!(contents(&store, *object) == before, "{context}, object {object}");
        }
    }
}

/// Checks that each block holds a version, and that the size is that of a version, too.
fn check_object(versions: &[Option<Vec<u8>>], found: Option<&[u8]>, context: &str) {
    let sizes: Vec<Option<usize>> = versions.iter().map(|version| version.as_ref().map(Vec::len)).collect();
    assert!(sizes.contains(&found.map(<[u8]>::len)), "{context}: {:?} of {sizes:?}", found.map(<[u8]>::len));
    let Some(found) = found else { return };
    for (number, block) in found.chunks(BLOCK_LEN).enumerate() {
        let is_version = |version: &Option<Vec<u8>>| {
            let empty = Vec::new();
            let version = version.as_ref().unwrap_or(&empty);
            let there = version.get(number * BLOCK_LEN..).unwrap_or(&[]);
            let there = &there[..there.len().min(block.len())];
            block[..there.len()] == *there && block[there.len()..].iter().all(|byte| *byte == 0)
        };
        // The end of a block is truncated with the size, which may be newer than the block.
        let is_cut_version = |version: &Option<Vec<u8>>| {
            versions.iter().filter_map(Option::as_ref).map(Vec::len).any(|size| {
                let mut cut = version.clone().unwrap_or_default();
                cut.truncate(size);
                is_version(&Some(cut))
            })
        };
        let fits = versions.iter().any(|version| is_version(version) || is_cut_version(version));
        let bytes: Vec<u8> = block.iter().copied().step_by(512).collect();
        assert!(fits, "{context}: block {number} holds no version: {bytes:?}");
    }
}

#[test]
fn after_a_power_cut_synced_data_is_there_and_the_rest_is_old_or_new() {
    for seed in 0..30 {
        let mut trial = Trial::new(seed);
        let steps = 10 + trial.random.u64(..40);
        for _ in 0..steps {
            assert!(trial.step());
            if trial.random.u64(..6) == 0 {
                trial.sync();
            }
        }
        let unsynced = 1 + trial.random.u64(..12);
        for _ in 0..unsynced {
            assert!(trial.step());
        }
        // The newest index with data that is missing, and with data that is there.
        for chance in [0, 4, 8] {
            let latest = trial.copy("latest");
            trial.cut(&latest, chance, &format!("seed {seed}, newest index, chance {chance}"));
        }
    }
}

#[test]
fn after_a_power_cut_an_index_that_is_old_finds_the_old_data() {
    for seed in 100..120 {
        let mut trial = Trial::new(seed);
        for _ in 0..20 {
            assert!(trial.step());
        }
        trial.sync();
        for _ in 0..15 {
            // Destruction is durable at once, with all changes before it.
            let object = fid(trial.random.u64(..OBJECTS) as u32 + 1);
            let byte = trial.random.u8(..200) + 1;
            let offset = trial.random.u64(..40_000);
            let expected = trial.objects.get_mut(&object).expect("all are there");
            let mut data = expected.now.clone().unwrap_or_default();
            let end = offset as usize + 50_000;
            data.resize(data.len().max(end), 0);
            data[offset as usize..end].fill(byte);
            expected.now = Some(data);
            trial.store.write(object, offset, &[byte; 50_000]).expect("written");
        }
        // Only synced versions may be seen.
        for expected in trial.objects.values_mut() {
            expected.versions.truncate(1);
        }
        let synced = trial.dir.path().join("synced");
        trial.cut(&synced, 8, &format!("seed {seed}"));
    }
}

/// Cuts the power at each transfer and flush of a run: `before` steps and a sync, then `steps` of them.
/// `more` does further work of a step, and returns whether it noticed the cut.
pub(super) fn at_every_transfer(
    seeds: std::ops::Range<u64>,
    (before, steps): (usize, usize),
    mut more: impl FnMut(&Trial, usize) -> bool,
) {
    for seed in seeds {
        for point in 0..60 {
            let mut trial = Trial::new(seed);
            for _ in 0..before {
                assert!(trial.step());
            }
            trial.sync();
            trial.device.order(Fault::PowerAfter(point));
            let mut is_off = false;
            for step in 0..steps {
                is_off |= !trial.step();
                is_off |= more(&trial, step);
                if is_off {
                    break;
                }
            }
            let latest = trial.copy("latest");
            let chance = trial.random.u64(..9);
            trial.cut(&latest, chance, &format!("seed {seed}, power goes at {point}"));
            if !is_off {
                break;
            }
        }
    }
}

#[test]
fn the_power_may_go_at_every_transfer_and_every_flush() {
    // Which changes a sync made durable before it failed is unknown.
    at_every_transfer(200..203, (6, 20), |trial, step| step % 5 == 4 && trial.store.sync_all().is_err());
}

#[test]
fn an_end_of_the_process_loses_nothing() {
    for seed in 300..310 {
        let mut trial = Trial::new(seed);
        for step in 0..40 {
            assert!(trial.step());
            if step % 13 == 12 {
                trial.sync();
            }
        }
        // The newest version only.
        for expected in trial.objects.values_mut() {
            expected.versions = vec![expected.now.clone()];
        }
        let device = trial.device.after_power_cut(&mut |versions| versions - 1);
        let latest = trial.copy("latest");
        let store = BlockStore::open_with(&latest, options(), Arc::new(device)).expect("opens");
        for (object, expected) in &trial.objects {
            let found = store.attr(*object).expect("attr").mtime.map(|_| contents(&store, *object));
            assert!(found == expected.now, "seed {seed}, object {object}");
        }
        assert_clean(&store, &format!("seed {seed}"));
        assert_eq!(store.stats().recovered_blocks, 0);
    }
}

#[test]
fn a_power_cut_during_recovery_is_recovered_from() {
    for seed in 400..406 {
        let mut trial = Trial::new(seed);
        for _ in 0..15 {
            assert!(trial.step());
        }
        trial.sync();
        for _ in 0..8 {
            assert!(trial.step());
        }
        for point in 0..12 {
            let latest = trial.copy("latest");
            let random = &mut trial.random;
            let cut = Arc::new(trial.device.after_power_cut(&mut |versions| random.usize(..versions)));
            cut.order(Fault::PowerAfter(point));
            let opened = BlockStore::open_with(&latest, options(), cut.clone());
            let is_open = opened.is_ok();
            drop(opened);
            cut.repair();
            let random = &mut trial.random;
            let again = Arc::new(cut.after_power_cut(&mut |versions| random.usize(..versions)));
            let store = BlockStore::open_with(&latest, options(), again).expect("opens");
            for (object, expected) in &trial.objects {
                let found = store.attr(*object).expect("attr").mtime.map(|_| contents(&store, *object));
                let context = format!("seed {seed}, power goes at {point} of recovery, object {object}");
                check_object(&expected.versions, found.as_deref(), &context);
            }
            assert_clean(&store, "recovered twice");
            if is_open {
                break;
            }
        }
    }
}

#[test]
fn data_that_lay_in_the_index_is_not_lost_when_its_object_grows() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let live = dir.path().join("live");
    let store = in_memory(&live, &device, options());
    store.write(fid(1), 0, &[7; 3000]).expect("written");
    store.sync(fid(1)).expect("synced");
    store.write(fid(1), 3000, &[8; 9000]).expect("grows");
    let cut = device.after_power_cut(&mut |_| 0);
    copy_dir(&live, &dir.path().join("cut"));
    let again = BlockStore::open_with(&dir.path().join("cut"), options(), Arc::new(cut)).expect("opens");
    assert_eq!(contents(&again, fid(1))[..3000], [7; 3000]);
    assert!(again.stats().recovered_blocks > 0);
    assert_clean(&again, "after the cut");
}
