//! Sustained overwriting of a store on simulated flash that was filled once, with and without the trim
//! policy, alternating in one run; then the cost of trimming to concurrent reads.
//!
//! `cargo run --release -p nacre-store --example trim_survey -- DIR [MEDIUM] [SIZE_MIB] [ROUNDS] [SECONDS]
//! [THREADS]`
//!
//! DIR is on a fast local file system: the devices are files there. All figures are those of simulated flash.

mod common;

use common::{number, spread};
use nacre_env::clock::Instant;
use nacre_store::object::block::device::model::{FlashStats, MediaSpec, SimulatedDevice};
use nacre_store::object::block::device::{DirectDevice, DirectDeviceOptions};
use nacre_store::object::trim::{Load, TrimSettings, Trimmer};
use nacre_store::object::{BlockStore, BlockStoreOptions, ObjectStore};
use nacre_types::Fid;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 8;
/// Part of the device that objects take, in percent.
const FILLED: u64 = 60;
/// Bytes per write.
const RECORD: u64 = 64 << 10;
/// Seconds of reads with and without trimming in each round.
const SLICES: u64 = 6;

fn fid(number: u64) -> Fid {
    Fid::ost_object(0, number as u32 + 1)
}

/// A store with its trimmer.
struct Side {
    store: Arc<dyn ObjectStore>,
    device: Arc<SimulatedDevice>,
    trimmer: Trimmer,
    in_progress: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    object_bytes: u64,
}

impl Side {
    fn new(dir: &Path, spec: MediaSpec, size: u64, is_on: bool) -> Side {
        let device_options =
            DirectDeviceOptions { create_bytes: Some(size), ..DirectDeviceOptions::default() };
        std::fs::create_dir_all(dir).expect("made");
        let inner = DirectDevice::open(&dir.join("device"), &device_options).expect("opens");
        let device = Arc::new(SimulatedDevice::new(Arc::new(inner)));
        device.set_media(Some(spec)).expect("simulated");
        let options =
            BlockStoreOptions { create: true, reserve_bytes: Some(0), ..BlockStoreOptions::default() };
        let store: Arc<dyn ObjectStore> =
            Arc::new(BlockStore::open_with(&dir.join("store"), options, device.clone()).expect("opens"));
        // One is always in progress: while the other store is measured, this one is not idle.
        let (in_progress, done) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let seen = (in_progress.clone(), done.clone());
        let load = move || Load {
            in_progress: seen.0.load(Ordering::Relaxed),
            done: seen.1.load(Ordering::Relaxed),
        };
        let trimmer = Trimmer::start("simulated".to_owned(), store.clone(), Box::new(load)).expect("starts");
        trimmer.set_settings(TrimSettings { is_on, ..TrimSettings::default() });
        let object_bytes = size * FILLED / 100 / OBJECTS / RECORD * RECORD;
        let side = Side { store, device, trimmer, in_progress, done, object_bytes };
        let data = vec![1; MIB as usize];
        for object in 0..OBJECTS {
            for at in (0..object_bytes).step_by(MIB as usize) {
                let len = MIB.min(object_bytes - at) as usize;
                side.counted(|store| store.write(fid(object), at, &data[..len]).expect("prepared"));
            }
        }
        side.store.sync_all().expect("synced");
        side
    }

    fn untrimmed(&self) -> u64 {
        self.store.abilities().trim.expect("it trims").untrimmed()
    }

    fn counted<T>(&self, work: impl FnOnce(&dyn ObjectStore) -> T) -> T {
        self.in_progress.fetch_add(1, Ordering::Relaxed);
        let result = work(&*self.store);
        self.in_progress.fetch_sub(1, Ordering::Relaxed);
        self.done.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// Runs `work` with random places repeatedly in each thread; returns how often per second.
    fn rate(
        &self,
        threads: u64,
        time: Duration,
        seed: u64,
        work: impl Fn(&dyn ObjectStore, Fid, u64) + Sync,
    ) -> f64 {
        let (begun, count) = (Instant::now(), AtomicU64::new(0));
        nacre_env::thread::scope(|scope| {
            for thread in 0..threads {
                let (work, count) = (&work, &count);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(seed * 1000 + thread + 1);
                    while begun.elapsed() < time {
                        let place = random.u64(..OBJECTS * self.object_bytes / RECORD);
                        self.counted(|store| work(store, fid(place % OBJECTS), place / OBJECTS * RECORD));
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        count.into_inner() as f64 / begun.elapsed().as_secs_f64()
    }

    /// Overwrites at random; returns MiB per second, and pages written for each page.
    fn overwrite(&self, threads: u64, time: Duration, seed: u64) -> (f64, f64) {
        let before = self.flash();
        let data = vec![seed as u8; RECORD as usize];
        let rate = self.rate(threads, time, seed, |store, object, offset| {
            store.write(object, offset, &data).expect("written");
        });
        (rate * RECORD as f64 / MIB as f64, self.flash().amplification(&before))
    }

    fn flash(&self) -> FlashStats {
        self.device.flash_stats().expect("it is flash")
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = Path::new(arguments.first().expect("a directory"));
    let spec: MediaSpec =
        arguments.get(1).map_or("flash:channels=4:full=1", String::as_str).parse().expect("a medium");
    let size = number(&arguments, 2, 1024) * MIB;
    let (rounds, seconds) = (number(&arguments, 3, 5), number(&arguments, 4, 20));
    let (threads, time) = (number(&arguments, 5, 4), Duration::from_secs(seconds));
    let sides = [false, true].map(|is_on| Side::new(&dir.join(format!("policy_{is_on}")), spec, size, is_on));
    println!(
        "simulated {spec}, {} MiB, {FILLED} % filled, {threads} threads, {} KiB records, {rounds} rounds of {seconds} s",
        size / MIB,
        RECORD >> 10
    );
    let (mut rates, mut worn) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    // The first round brings both to a steady state.
    for round in 0..=rounds {
        for (at, side) in sides.iter().enumerate() {
            let (rate, amplification) = side.overwrite(threads, time, round * 2 + at as u64 + 1);
            if round > 0 {
                rates[at].push(rate);
                worn[at].push(amplification);
            }
        }
    }
    let off = spread("simulated, overwriting, MiB/s, policy off", &rates[0]);
    let on = spread("simulated, overwriting, MiB/s, policy on", &rates[1]);
    spread("simulated, pages written for each, policy off", &worn[0]);
    spread("simulated, pages written for each, policy on", &worn[1]);
    println!("on against off {:.2} x", on / off);
    println!("{}", sides[1].trimmer.text());
    beside(&sides[1], threads, rounds);
    for side in sides {
        side.trimmer.stop();
        side.store.close().expect("closed");
    }
}

/// Measures the loss of 4 KiB reads during a run: the same store with the policy on and off, alternating.
fn beside(side: &Side, threads: u64, rounds: u64) {
    let usual = side.trimmer.settings();
    let (mut off, mut on, mut told) = (Vec::new(), Vec::new(), 0);
    let read = |store: &dyn ObjectStore, object: Fid, offset: u64| {
        let mut buffer = [0; 4096];
        store.read(object, offset, &mut buffer, 0).expect("read");
    };
    for round in 0..rounds {
        // Something to trim: all records are rewritten, without trimming.
        side.trimmer.set_settings(TrimSettings { is_on: false, ..usual });
        let data = vec![round as u8; RECORD as usize];
        for object in 0..OBJECTS {
            for at in (0..side.object_bytes).step_by(RECORD as usize) {
                side.store.write(fid(object), at, &data).expect("written");
            }
        }
        side.store.sync_all().expect("synced");
        for slice in 0..SLICES {
            // Alternating, and each first equally often.
            for is_on in [slice % 2 == 0, slice % 2 == 1] {
                side.trimmer.set_settings(TrimSettings { is_on, urgent_percent: 1, ..usual });
                let before = side.untrimmed();
                let rate = side.rate(threads, Duration::from_secs(1), round * SLICES + slice + 1, read);
                if is_on { &mut on } else { &mut off }.push(rate);
                told += before.saturating_sub(side.untrimmed());
            }
        }
    }
    side.trimmer.set_settings(usual);
    let without = spread("simulated, 4 KiB random reads per second, nothing trimmed beside", &off);
    let with = spread("simulated, 4 KiB random reads per second, trimming beside", &on);
    println!("loss {:.1} %, {} MiB told beside the reads", (1.0 - with / without) * 100.0, told / MIB);
}
