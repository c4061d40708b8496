//! Power cuts and kills of the process at any point, of both devices at once.
//!
//! Each sector of either device that was not flushed holds any of its versions afterwards, and the index of
//! the disk's store is the newest or the one of its last sync. Afterwards each sector of each object holds a
//! version from its last sync on.

use super::*;
use crate::object::abilities::leave_to;
use crate::object::{Abilities, Fallocate, ObjectAttr, ObjectStoreStats, ObjectVerifyReport, Seek, Space};

/// Objects that change.
const OBJECTS: u64 = 4;
/// Largest objects in bytes.
const LIMIT: u64 = 200_000;
const SECTOR: usize = 512;

/// Keeps a copy of a store's directory from the last sync.
struct Watched {
    inner: BlockStore,
    live: PathBuf,
    synced: PathBuf,
    is_watching: AtomicBool,
    on_sync: OnSync,
}

/// Called once at the end of the next sync of everything.
type OnSync = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

impl Watched {
    fn keep<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_ok() && self.is_watching.load(Ordering::SeqCst) {
            let _ = std::fs::remove_dir_all(&self.synced);
            copy_dir(&self.live, &self.synced);
        }
        result
    }
}

impl ObjectStore for Watched {
    fn sync(&self, object: Fid) -> Result<()> {
        self.keep(self.inner.sync(object))
    }
    fn sync_all(&self) -> Result<()> {
        let result = self.keep(self.inner.sync_all());
        let hook = self.on_sync.lock().take();
        if let Some(hook) = hook {
            hook();
        }
        result
    }
    fn destroy(&self, objects: &[Fid]) -> Result<u64> {
        self.keep(self.inner.destroy(objects))
    }
    fn close(&self) -> Result<()> {
        self.keep(self.inner.close())
    }
    fn abilities(&self) -> Abilities<'_> {
        Abilities { ids: Some(self), ..self.inner.abilities() }
    }
    leave_to! { inner:
        fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;
        fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;
        fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize>;
        fn attr(&self, object: Fid) -> Result<ObjectAttr>;
        fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr>;
        fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr>;
        fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64>;
        fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()>;
        fn space(&self) -> Result<Space>;
        fn durability_epoch(&self) -> u64;
        fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport>;
        fn stats(&self) -> ObjectStoreStats;
    }
}

impl Ids for Watched {
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>> {
        self.keep(self.inner.reserve(sequence, count))
    }
    fn last_reserved(&self, sequence: u64) -> Result<u32> {
        self.inner.last_reserved(sequence)
    }
    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32> {
        self.keep(self.inner.destroy_orphans(sequence, last_used))
    }
}

/// Contents that a store may show for an object.
#[derive(Clone, Default)]
struct Expected {
    now: Option<Vec<u8>>,
    /// Versions since the last sync, the synced one first.
    versions: Vec<Option<Vec<u8>>>,
}

struct Trial {
    store: Nxd,
    disk: Arc<MemoryDevice>,
    flash: Arc<MemoryDevice>,
    dir: tempfile::TempDir,
    objects: BTreeMap<Fid, Expected>,
    random: fastrand::Rng,
}

impl Trial {
    fn new(seed: u64, flash_bytes: u64) -> Trial {
        let dir = tempfile::tempdir().expect("a directory");
        let (live, synced) = (dir.path().join("live"), dir.path().join("synced"));
        let disk = Arc::new(MemoryDevice::new(16 << 20));
        let flash = Arc::new(MemoryDevice::new(flash_bytes));
        let inner = BlockStore::open_with(&live, block_options(), disk.clone()).expect("opens");
        inner.reserve(fid(1).seq, 1000).expect("reserved");
        let is_watching = AtomicBool::new(true);
        let on_sync = OnSync::default();
        let inner = Watched { inner, live: live.clone(), synced, is_watching, on_sync };
        let store = Nxd::open(&live, Arc::new(inner), flash.clone(), &quiet()).expect("opens");
        let objects = (1..=OBJECTS).map(|oid| (fid(oid as u32), Expected::default())).collect();
        let mut trial = Trial { store, disk, flash, dir, objects, random: fastrand::Rng::with_seed(seed) };
        trial.sync();
        trial
    }

    fn sync(&mut self) {
        self.store.sync_all().expect("synced");
        self.note_sync(None);
    }

    fn note_sync(&mut self, one: Option<Fid>) {
        for (object, expected) in &mut self.objects {
            if one.is_none_or(|one| one == *object) {
                expected.versions = vec![expected.now.clone()];
            }
        }
    }

    /// Changes an object, or makes something durable; false if that failed.
    fn step(&mut self) -> bool {
        let random = &mut self.random;
        let object = fid(random.u64(..OBJECTS) as u32 + 1);
        match random.u64(..20) {
            0 => {
                let is_done = self.store.sync(object).is_ok();
                if is_done {
                    self.note_sync(Some(object));
                }
                return is_done;
            }
            1 => return self.store.round(&flush::Pace::Fast).is_ok(),
            _ => {}
        }
        let grain = [1, 512, 4096][random.usize(..3)];
        let limit = [5000, 40_000, LIMIT][random.usize(..3)];
        let offset = random.u64(..limit) / grain * grain;
        let most = [3000, 20_000, 60_000][random.usize(..3)];
        let len = (random.u64(..most) / grain * grain).max(grain) as usize;
        let what = random.u64(..12);
        let byte = random.u8(..255) + 1;
        let expected = self.objects.get_mut(&object).expect("all are there");
        let (result, now) = change(&self.store, object, expected.now.clone(), what, offset, len, byte);
        expected.now = now;
        expected.versions.push(expected.now.clone());
        if result && what == 3 {
            expected.versions = vec![None];
        }
        result
    }

    /// Cuts the power and checks the rest. The index is the newest one, or that of the last sync.
    fn cut(&mut self, is_old_index: bool, chances: (u64, u64), context: &str) {
        let random = &mut self.random;
        let mut after = |device: &MemoryDevice, chance: u64| {
            Arc::new(device.after_power_cut(&mut |versions| match random.u64(..8) < chance {
                true => random.usize(..versions),
                false => 0,
            }))
        };
        let (disk, flash) = (after(&self.disk, chances.0), after(&self.flash, chances.1));
        let copy = self.dir.path().join("copy");
        let _ = std::fs::remove_dir_all(&copy);
        let live = self.dir.path().join("live");
        copy_dir(&if is_old_index { self.dir.path().join("synced") } else { live.clone() }, &copy);
        // It is durable whenever it changes.
        std::fs::copy(live.join(MARK), copy.join(MARK)).expect("copied");
        let mut contents_before = Vec::new();
        for round in 0..2 {
            let context = format!("{context}, opened {round} times before");
            let survey = LogSurvey::of(&*flash).expect("walked");
            assert_eq!(survey.damage, [], "{context}: a power cut is in order");
            let inner = BlockStore::open_with(&copy, block_options(), disk.clone())
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let store = Nxd::open(&copy, Arc::new(inner), flash.clone(), &quiet())
                .unwrap_or_else(|error| panic!("{context}: {error}"));
            let found: Vec<Option<Vec<u8>>> = self
                .objects
                .keys()
                .map(|object| store.attr(*object).expect("attr").mtime.map(|_| contents(&store, *object)))
                .collect();
            for ((object, expected), found) in self.objects.iter().zip(&found) {
                check_object(&expected.versions, found.as_deref(), &format!("{context}, object {object}"));
            }
            assert_clean(&store, &context);
            if round > 0 {
                assert!(contents_before == found, "{context}: another content");
                store.flush_now().expect("written back");
                assert!(!store.cache_stats().is_needed);
                for (object, before) in self.objects.keys().zip(&found) {
                    assert!(
                        contents(store.store(), *object) == before.clone().unwrap_or_default(),
                        "{context}"
                    );
                }
            }
            contents_before = found;
            // The store is usable.
            store.write(fid(99), 0, &[9; 3000]).expect("written");
            store.sync_all().expect("synced");
        }
    }
}

/// Changes the store, and a copy of its expected content.
fn change(
    store: &Nxd,
    object: Fid,
    before: Option<Vec<u8>>,
    what: u64,
    offset: u64,
    len: usize,
    byte: u8,
) -> (bool, Option<Vec<u8>>) {
    let mut data = before.clone().unwrap_or_default();
    let (start, end) = (offset as usize, offset as usize + len);
    match what {
        0 => {
            let is_done = store.truncate(object, offset).is_ok();
            data.resize(start, 0);
            (is_done, if before.is_some() || offset > 0 { Some(data) } else { None })
        }
        1 => {
            let is_done = store.fallocate(object, Fallocate::Punch, offset, len as u64).is_ok();
            let end = end.min(data.len());
            data[start.min(end)..end].fill(0);
            (is_done, before.map(|_| data))
        }
        2 => {
            let how = Fallocate::Zero { keep_size: false };
            let is_done = store.fallocate(object, how, offset, len as u64).is_ok();
            data.resize(data.len().max(end), 0);
            data[start..end].fill(0);
            (is_done, Some(data))
        }
        3 => (store.destroy(&[object]).is_ok(), None),
        _ => {
            data.resize(data.len().max(end), 0);
            data[start..end].fill(byte);
            (store.write(object, offset, &vec![byte; len]).is_ok(), Some(data))
        }
    }
}

/// Checks that each sector holds a version, and that the size is that of a version, too.
fn check_object(versions: &[Option<Vec<u8>>], found: Option<&[u8]>, context: &str) {
    let sizes: Vec<Option<usize>> = versions.iter().map(|version| version.as_ref().map(Vec::len)).collect();
    assert!(sizes.contains(&found.map(<[u8]>::len)), "{context}: {:?} of {sizes:?}", found.map(<[u8]>::len));
    let Some(found) = found else { return };
    for (number, sector) in found.chunks(SECTOR).enumerate() {
        let is_version = |version: &[u8]| {
            let there = version.get(number * SECTOR..).unwrap_or(&[]);
            let there = &there[..there.len().min(sector.len())];
            sector[..there.len()] == *there && sector[there.len()..].iter().all(|byte| *byte == 0)
        };
        // The end of a sector is truncated with the size, which may be newer than the sector.
        let is_cut = |version: &[u8]| {
            sizes.iter().flatten().any(|size| is_version(&version[..(*size).min(version.len())]))
        };
        let fits = versions.iter().any(|version| is_cut(version.as_deref().unwrap_or(&[])));
        if !fits {
            let bytes: Vec<u8> = sector.iter().copied().step_by(16).collect();
            let all: Vec<Option<&[u8]>> = versions
                .iter()
                .map(|version| {
                    version
                        .as_ref()
                        .and_then(|data| data.get(number * SECTOR..).map(|data| &data[..data.len().min(4)]))
                })
                .collect();
            panic!("{context}: sector {number} holds no version: {bytes:?} of {all:?}");
        }
    }
}

#[test]
fn after_a_power_cut_synced_data_is_there_and_the_rest_is_old_or_new() {
    for seed in 0..10 {
        let mut trial = Trial::new(seed, 4 << 20);
        let steps = 20 + trial.random.u64(..60);
        for _ in 0..steps {
            assert!(trial.step());
            if trial.random.u64(..15) == 0 {
                trial.sync();
            }
        }
        for chances in [(0, 0), (4, 4), (8, 8), (0, 8), (8, 0)] {
            trial.cut(false, chances, &format!("seed {seed}, newest index, chances {chances:?}"));
        }
        trial.cut(true, (8, 8), &format!("seed {seed}, old index"));
    }
}

#[test]
fn the_process_may_end_anywhere_and_nothing_is_lost() {
    for seed in 100..105 {
        let mut trial = Trial::new(seed, 2 << 20);
        for step in 0..120 {
            assert!(trial.step());
            if step % 40 == 39 {
                for expected in trial.objects.values_mut() {
                    expected.versions = vec![expected.now.clone()];
                }
                // The newest version of everything.
                let newest = (&*trial.disk, &*trial.flash);
                let (disk, flash) = (
                    newest.0.after_power_cut(&mut |versions| versions - 1),
                    newest.1.after_power_cut(&mut |versions| versions - 1),
                );
                let (old_disk, old_flash) = (trial.disk.clone(), trial.flash.clone());
                (trial.disk, trial.flash) = (Arc::new(disk), Arc::new(flash));
                trial.cut(false, (0, 0), &format!("seed {seed}, step {step}"));
                (trial.disk, trial.flash) = (old_disk, old_flash);
            }
        }
    }
}

#[test]
fn the_power_may_go_at_every_transfer_of_either_device() {
    for (seed, is_flash) in [(200, true), (201, false), (202, true), (203, false)] {
        let mut point = 0;
        loop {
            let mut trial = Trial::new(seed, 2 << 20);
            for _ in 0..10 {
                assert!(trial.step());
            }
            trial.sync();
            let device = if is_flash { &trial.flash } else { &trial.disk };
            device.order(Fault::PowerAfter(point));
            let is_off = (0..25).any(|_| !trial.step());
            // Both lose power at the same time.
            let chances = (trial.random.u64(..9), trial.random.u64(..9));
            let context = format!("seed {seed}, flash {is_flash}, power goes at {point}");
            trial.flash.order(Fault::PowerAfter(0));
            trial.disk.order(Fault::PowerAfter(0));
            trial.cut(false, chances, &context);
            if !is_off || point > 60 {
                break;
            }
            point += 1 + point / 12;
        }
    }
}

#[test]
fn what_was_synced_and_overwritten_during_a_round_is_there_after_a_power_cut() {
    // In the middle of the device's work at that point: a flush, two copies of the superblock with a flush
    // between.
    for point in 0..6 {
        let dir = tempfile::tempdir().expect("a directory");
        let (live, copy) = (dir.path().join("live"), dir.path().join("copy"));
        let (disk, flash) = (Arc::new(MemoryDevice::new(16 << 20)), Arc::new(MemoryDevice::new(2 << 20)));
        let inner = BlockStore::open_with(&live, block_options(), disk.clone()).expect("opens");
        inner.reserve(fid(1).seq, 1000).expect("reserved");
        let on_sync = OnSync::default();
        let synced = dir.path().join("synced");
        let is_watching = AtomicBool::new(false);
        let inner = Watched { inner, live: live.clone(), synced, is_watching, on_sync: on_sync.clone() };
        let store = Arc::new(Nxd::open(&live, Arc::new(inner), flash.clone(), &quiet()).expect("opens"));
        store.write(fid(1), 0, &[1; 4096]).expect("written");
        store.write(fid(2), 0, &[1; 4096]).expect("written");
        let (writer, device) = (store.clone(), flash.clone());
        *on_sync.lock() = Some(Box::new(move || {
            writer.write(fid(2), 0, &[2; 4096]).expect("written");
            writer.sync(fid(2)).expect("synced");
            writer.write(fid(2), 0, &[3; 4096]).expect("written");
            device.order(Fault::PowerAfter(point));
        }));
        let result = store.round(&flush::Pace::Fast);
        assert!(result.is_err() || point > 2, "the power went before the end");
        assert!(on_sync.lock().is_none(), "it was written meanwhile");
        copy_dir(&live, &copy);
        let newest = Arc::new(disk.after_power_cut(&mut |versions| versions - 1));
        // The medium has the first block, and none after it.
        let mut sectors = 0;
        let flash = Arc::new(flash.after_power_cut(&mut |versions| {
            sectors += 1;
            if sectors <= 8 { versions - 1 } else { 0 }
        }));
        let inner = BlockStore::open_with(&copy, block_options(), newest).expect("opens");
        let after = Nxd::open(&copy, Arc::new(inner), flash, &quiet()).expect("opens");
        let found = contents(&after, fid(2));
        assert!(found == [2; 4096] || found == [3; 4096], "power goes at {point}: {:?}", &found[..4]);
        assert_eq!(contents(&after, fid(1)), [1; 4096]);
    }
}
