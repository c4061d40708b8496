//! The policy on a simulated clock, and the thread on a device in memory.

use super::*;
use crate::object::block::device::{BLOCK, BlockDevice, Fault, MemoryDevice};
use crate::object::{BlockStore, BlockStoreOptions, Ids};
use nacre_types::Fid;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn settings() -> TrimSettings {
    TrimSettings {
        is_on: true,
        rate: 100 * MIB,
        busy_rate: 10 * MIB,
        start_percent: 1,
        urgent_percent: 20,
        idle: Duration::from_secs(2),
        quiet_iops: 16,
    }
}

/// A store of 100 GiB that is only a number, and its other load.
struct Scene {
    policy: Policy,
    settings: TrimSettings,
    sight: Sight,
    told: u64,
    pieces: Vec<u64>,
    /// Bytes of an extent.
    extent: u64,
    /// Transfers per second of other callers.
    iops: u64,
}

impl Scene {
    fn new(untold: u64) -> Scene {
        let sight = Sight { untold, total: 100 * GIB, ..Sight::default() };
        let (policy, settings) = (Policy::default(), settings());
        Scene { policy, settings, sight, told: 0, pieces: Vec::new(), extent: 64 * MIB, iops: 0 }
    }

    /// Lets time pass, and returns the bytes trimmed.
    fn pass(&mut self, time: Duration) -> u64 {
        let (before, end) = (self.told, self.sight.now + time);
        while self.sight.now < end {
            match self.policy.look(&self.settings, &self.sight) {
                Step::Rest(rest) => self.advance(rest.min(end - self.sight.now)),
                Step::Tell { from, max_bytes } => {
                    let bytes = max_bytes.min(self.sight.untold).min(256 * self.extent);
                    self.sight.untold -= bytes;
                    self.told += bytes;
                    self.pieces.push(bytes);
                    let next = (self.sight.untold > 0).then_some(from + bytes);
                    let extents = Some(bytes.div_ceil(self.extent));
                    self.policy.told(self.sight.now, &Trimmed { bytes, extents, next });
                }
            }
        }
        self.told - before
    }

    fn advance(&mut self, time: Duration) {
        self.sight.now += time;
        self.sight.load.done += (self.iops as f64 * time.as_secs_f64()).round() as u64;
    }
}

#[test]
fn little_is_left_alone_and_much_is_told_at_the_rate() {
    let mut scene = Scene::new(GIB - MIB);
    assert_eq!(scene.pass(Duration::from_secs(60)), 0);
    assert_eq!((scene.policy.state(), scene.policy.runs()), (TrimState::Idle, 0));
    scene.sight.untold = 2 * GIB;
    let told = scene.pass(Duration::from_secs(10));
    assert!((900 * MIB..=1011 * MIB).contains(&told), "{} MiB", told / MIB);
    assert!(scene.pieces.iter().all(|piece| *piece <= 10 * MIB), "a tenth of a second each");
    assert_eq!(scene.policy.state(), TrimState::Trimming);
    scene.pass(Duration::from_secs(15));
    assert_eq!((scene.sight.untold, scene.policy.state()), (0, TrimState::Idle), "to the end");
    assert_eq!((scene.policy.runs(), scene.policy.pauses()), (1, 0));
}

#[test]
fn a_run_waits_for_others_and_pauses_for_them() {
    let mut scene = Scene::new(2 * GIB);
    scene.iops = 500;
    assert_eq!(scene.pass(Duration::from_secs(60)), 0);
    assert_eq!(scene.policy.state(), TrimState::Waiting);
    scene.iops = 0;
    assert_eq!(scene.pass(Duration::from_millis(1900)), 0, "not at once");
    assert!(scene.pass(Duration::from_secs(2)) > 0);
    scene.iops = 500;
    let left = scene.sight.untold;
    assert!(scene.pass(Duration::from_secs(60)) <= 10 * MIB, "one piece before it was noticed");
    assert_eq!((scene.policy.state(), scene.policy.pauses()), (TrimState::Paused, 1));
    scene.iops = 0;
    scene.pass(Duration::from_secs(60));
    assert!(left > GIB && scene.sight.untold == 0);
    assert_eq!((scene.policy.runs(), scene.policy.pauses()), (1, 1), "it went on where it was");
}

#[test]
fn a_few_transfers_are_no_work_but_one_that_lasts_is() {
    let mut scene = Scene::new(2 * GIB);
    scene.iops = 10;
    assert!(scene.pass(Duration::from_secs(10)) > 0);
    let mut scene = Scene::new(2 * GIB);
    scene.sight.load.in_progress = 1;
    assert_eq!(scene.pass(Duration::from_secs(10)), 0);
}

#[test]
fn when_very_much_waits_a_run_goes_on_slowly_until_half_of_it_is_told() {
    let mut scene = Scene::new(21 * GIB);
    scene.iops = 500;
    let told = scene.pass(Duration::from_secs(100));
    assert!((990 * MIB..=1001 * MIB).contains(&told), "{} MiB", told / MIB);
    assert_eq!(scene.policy.state(), TrimState::Busy);
    scene.sight.untold = 11 * GIB;
    assert!(scene.pass(Duration::from_secs(10)) > 0, "not only just below the mark");
    scene.sight.untold = 9 * GIB;
    assert_eq!(scene.pass(Duration::from_secs(100)), 0);
    assert_eq!(scene.policy.state(), TrimState::Paused);
    let mut scene = Scene::new(21 * GIB);
    (scene.iops, scene.settings.busy_rate) = (500, 0);
    assert_eq!(scene.pass(Duration::from_secs(100)), 0, "nobody wants that");
}

#[test]
fn many_small_extents_count_as_the_work_that_they_are() {
    let mut scene = Scene::new(21 * GIB);
    scene.extent = 4096;
    scene.iops = 500;
    let told = scene.pass(Duration::from_secs(100));
    let commands = told / 4096;
    // 10 MiB/s are 80 commands per second, whatever they trim.
    assert!((7900..=8300).contains(&commands), "{commands}");
    assert!(scene.pieces[1..].iter().all(|piece| *piece <= 8 * 4096), "{:?}", &scene.pieces[..4]);
}

#[test]
fn off_is_off_and_a_refusal_is_kept_until_it_is_forgiven() {
    let mut scene = Scene::new(50 * GIB);
    scene.settings.is_on = false;
    assert_eq!(scene.pass(Duration::from_secs(60)), 0);
    assert_eq!(scene.policy.state(), TrimState::Off);
    scene.settings.is_on = true;
    scene.policy.failed(scene.sight.now, Some("no".to_owned()));
    assert_eq!(scene.pass(Duration::from_secs(1000)), 0);
    assert_eq!((scene.policy.state(), scene.policy.refusal()), (TrimState::Failed, Some("no")));
    scene.policy.forgive();
    assert!(scene.pass(Duration::from_secs(60)) > 0);
    scene.policy.failed(scene.sight.now, None);
    assert_eq!(scene.pass(Duration::from_secs(59)), 0);
    assert!(scene.pass(Duration::from_secs(10)) > 0, "what fails once is tried again");
}

fn fid(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

fn untrimmed(store: &dyn ObjectStore) -> u64 {
    store.abilities().trim.expect("it trims").untrimmed()
}

fn store(dir: &std::path::Path, device: &Arc<MemoryDevice>) -> Arc<dyn ObjectStore> {
    let options = BlockStoreOptions { create: true, reserve_bytes: Some(0), ..BlockStoreOptions::default() };
    let store = BlockStore::open_with(dir, options, device.clone()).expect("opens");
    store.reserve(fid(1).seq, 100).expect("reserved");
    Arc::new(store)
}

/// Waits for the work of another thread.
fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        nacre_env::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_thread_tells_a_device_of_what_was_destroyed_when_nobody_works() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = store(dir.path(), &device);
    let in_progress = Arc::new(AtomicU64::new(1));
    let seen = in_progress.clone();
    let load = move || Load { in_progress: seen.load(Ordering::Relaxed), done: 0 };
    let trimmer = Trimmer::start("test".to_owned(), store.clone(), Box::new(load)).expect("starts");
    let usual = trimmer.settings();
    assert!(usual.is_on && usual.busy_rate == 0, "what is no device is left alone while others work");
    trimmer.set_settings(TrimSettings { idle: Duration::ZERO, ..usual });
    until("it sees that others work", || trimmer.text().contains("waiting"));
    assert_eq!(device.stats().discarded_bytes, 0);
    in_progress.store(0, Ordering::Relaxed);
    until("everything is told", || untrimmed(&*store) == 0);
    store.write(fid(1), 0, &vec![1; 8 << 20]).expect("written");
    store.sync_all().expect("synced");
    assert!(device.used_bytes() >= 8 << 20);
    store.destroy(&[fid(1)]).expect("destroyed");
    store.sync_all().expect("synced");
    until("the space goes back", || device.used_bytes() < 1 << 20);
    until("the run ends", || trimmer.text().contains("idle"));
    let text = trimmer.text();
    assert!(text.contains("failures            0\n") && !text.contains("note"), "{text}");
    trimmer.clear();
    assert!(trimmer.text().contains("trimmed_bytes       0\n"));
    trimmer.stop();
    store.close().expect("closed");
}

#[test]
fn a_device_that_does_not_want_to_know_is_asked_once_and_again_when_told_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    device.order(Fault::NoDiscard);
    let store = store(dir.path(), &device);
    let trimmer = Trimmer::start("test".to_owned(), store.clone(), Box::new(Load::default)).expect("starts");
    let settings = TrimSettings { idle: Duration::ZERO, ..trimmer.settings() };
    trimmer.set_settings(settings);
    until("it gives up", || trimmer.text().contains("no way to give space back"));
    assert!(trimmer.text().starts_with("state               failed\n"), "{}", trimmer.text());
    let failures = || trimmer.text().contains("failures            1\n");
    assert!(failures() || trimmer.text().contains("failures            2\n"), "{}", trimmer.text());
    let error = trimmer.trim_for(0, Duration::ZERO).expect_err("refused too");
    assert!(matches!(error, ObjectError::NoTrim { .. }), "{error}");
    trimmer.stop();
    store.close().expect("closed");
}

#[test]
fn by_order_everything_is_told_that_was_freed_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = store(dir.path(), &device);
    store.write(fid(1), 0, &vec![1; 8 << 20]).expect("written");
    store.destroy(&[fid(1)]).expect("destroyed");
    let trimmed = trim_for(&*store, 0, Duration::from_secs(30)).expect("trimmed");
    assert_eq!(trimmed.next, None);
    assert_eq!(trimmed.bytes, (64 << 20) - 2 * BLOCK, "all between the labels");
    assert_eq!(untrimmed(&*store), 0);
    assert!(device.used_bytes() < 1 << 20);
    let again = trim_for(&*store, 0, Duration::from_secs(30)).expect("trimmed");
    assert_eq!(again, Trimmed { bytes: 0, extents: Some(0), next: None });
    store.close().expect("closed");
}
