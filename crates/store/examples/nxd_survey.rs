//! Measures a store on a simulated disk with and without a cache of small writes, alternating in one run.
//!
//! `cargo run --release -p nacre-store --example nxd_survey -- DIR [MEDIUM] [CACHE_MIB] [OBJECT_MIB] [ROUNDS]
//! [THREADS]`
//!
//! DIR is on a fast local file system: its time counts, too. All figures are those of a simulated disk; the
//! cache is a file in DIR around the page cache.

mod common;

use common::{number, spread};
use nacre_env::clock::Instant;
use nacre_store::object::block::device::{DirectDevice, DirectDeviceOptions};
use nacre_store::object::simulated::{Medium, Simulated};
use nacre_store::object::{FileStore, FileStoreOptions, Nxd, NxdMode, NxdOptions, NxdSettings, ObjectStore};
use nacre_types::Fid;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const OBJECTS: u64 = 8;

fn fid(number: u64) -> Fid {
    Fid::ost_object(0, number as u32 + 1)
}

/// Writes 4 KiB at random places of all objects for a time, or until `stop` returns true; returns writes per
/// second.
fn small_writes(
    store: &dyn ObjectStore,
    threads: u64,
    object_bytes: u64,
    seed: u64,
    stop: &(dyn Fn(Duration) -> bool + Sync),
) -> f64 {
    let (begun, done) = (Instant::now(), AtomicU64::new(0));
    nacre_env::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed * 1000 + thread + 1);
                let data = [thread as u8; 4096];
                while !stop(begun.elapsed()) {
                    let place = random.u64(..OBJECTS * object_bytes / 4096);
                    let (object, offset) = (place % OBJECTS, place / OBJECTS * 4096);
                    store.write(fid(object), offset, &data).expect("written");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.into_inner() as f64 / begun.elapsed().as_secs_f64()
}

/// Writes streams of 1 MiB writes to new places, one per thread; returns MiB per second.
fn streams(store: &dyn ObjectStore, first: u64, threads: u64, mib: u64) -> f64 {
    let begun = Instant::now();
    nacre_env::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let data = vec![thread as u8; MIB as usize];
                for at in 0..mib {
                    store.write(fid(first + thread), at * MIB, &data).expect("written");
                }
            });
        }
    });
    let rate = (threads * mib) as f64 / begun.elapsed().as_secs_f64();
    let objects: Vec<Fid> = (0..threads).map(|thread| fid(first + thread)).collect();
    store.destroy(&objects).expect("destroyed");
    rate
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = Path::new(arguments.first().expect("a directory"));
    let medium: Medium =
        arguments.get(1).map_or("seek=8ms:bandwidth=150M", String::as_str).parse().expect("a medium");
    let (cache, object_bytes) = (number(&arguments, 2, 64) * MIB, number(&arguments, 3, 64) * MIB);
    let (rounds, threads) = (number(&arguments, 4, 3), number(&arguments, 5, 4));
    let inner = FileStore::open(&dir.join("store"), FileStoreOptions::create()).expect("opens");
    let inner = Arc::new(Simulated::new(Box::new(inner)));
    for object in 0..OBJECTS {
        for at in 0..object_bytes / MIB {
            inner.write(fid(object), at * MIB, &vec![1; MIB as usize]).expect("prepared");
        }
    }
    inner.sync_all().expect("synced");
    let options = DirectDeviceOptions { create_bytes: Some(cache), ..DirectDeviceOptions::default() };
    let device = Arc::new(DirectDevice::open(&dir.join("flash"), &options).expect("opens"));
    let settings = NxdSettings { idle_ms: u64::MAX, full_wait_ms: 60_000, ..NxdSettings::default() };
    let nxd = Nxd::open(
        &dir.join("store"),
        inner.clone(),
        device,
        &NxdOptions { settings, ..NxdOptions::default() },
    )
    .expect("opens");
    inner.abilities().simulation.expect("there is one").set_medium(Some(medium));
    println!(
        "simulated disk {medium}, cache {} MiB, {OBJECTS} objects of {} MiB, {threads} threads",
        cache / MIB,
        object_bytes / MIB
    );
    let mode = |mode| nxd.set_settings(NxdSettings { mode, ..settings });
    let (mut off, mut until_full, mut beyond) = (Vec::new(), Vec::new(), Vec::new());
    let (mut stream_off, mut stream_on) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        mode(NxdMode::Off);
        off.push(small_writes(&nxd, threads, object_bytes, round * 3 + 1, &|time| time.as_secs() >= 5));
        stream_off.push(streams(&nxd, 100, 2, 128));
        mode(NxdMode::On);
        stream_on.push(streams(&nxd, 200, 2, 128));
        let is_full = |_| nxd.cache_stats().used * 100 >= nxd.cache_stats().size * 49;
        until_full.push(small_writes(&nxd, threads, object_bytes, round * 3 + 2, &is_full));
        // Several times the size of the cache, so that write-back dominates.
        let before = nxd.cache_stats().flushed_bytes;
        let is_long = |_| nxd.cache_stats().flushed_bytes - before >= 2 * cache;
        beyond.push(small_writes(&nxd, threads, object_bytes, round * 3 + 3, &is_long));
        nxd.flush_now().expect("drained");
    }
    let off = spread("simulated, 4 KiB random writes per second, off", &off);
    let full =
        spread("simulated, 4 KiB random writes per second, on, until half of the log is full", &until_full);
    let beyond = spread("simulated, 4 KiB random writes per second, on, beyond", &beyond);
    let stream_off = spread("simulated, streams of 1 MiB writes, MiB/s, off", &stream_off);
    let stream_on = spread("simulated, streams of 1 MiB writes, MiB/s, on", &stream_on);
    println!(
        "until full {:.1} x, beyond {:.1} x, streams {:.3} x",
        full / off,
        beyond / off,
        stream_on / stream_off
    );
    println!("{:?}", nxd.cache_stats());
    nxd.close().expect("closed");
}
