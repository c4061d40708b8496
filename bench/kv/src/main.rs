//! The metadata workload on several embedded stores. One phase per process, so that memory and opening are measured clean.
//!
//! `nacre-bench-kv STORE create DIR THREADS INODES` fills a new store and ends without closing it, as a crash would;
//! `nacre-bench-kv STORE read DIR THREADS INODES` opens it, measures stat and readdir, closes, and opens it again.
//! With STAT_AFTER_CREATE set, `create` also measures stat on what it has just made.
//! Each prints one line of JSON. `run.sh` repeats both and prints medians.

mod lmdb;
mod stores;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nacre_store::Batch;
use stores::{DIRENT, INODE, Store};

/// Entries per directory, and of the directory that readdir reads.
const DIR_ENTRIES: u64 = 100_000;
/// Time between two syncs while creating.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);
/// stat calls per thread that are timed, after a quarter as many to warm up.
const STATS: u64 = 400_000;

fn fid(sequence: u64, object: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..].copy_from_slice(&object.to_be_bytes());
    bytes
}

/// Key of the entry of the `index`th file that `thread` makes; names come in no order, as hashes do.
fn dirent_key(thread: u64, index: u64, key: &mut Vec<u8>) {
    key.clear();
    key.extend_from_slice(&fid(0x10 + thread, index / DIR_ENTRIES));
    let name = (index as u32).wrapping_mul(2_654_435_761);
    for shift in (0..8).rev() {
        key.push(b"0123456789abcdef"[(name >> (shift * 4)) as usize & 15]);
    }
    key.extend_from_slice(b".dat");
}

/// Fills the store; returns the time it took and the processor time of the creating threads.
fn create(store: &dyn Store, threads: u64, inodes: u64) -> (Duration, Duration) {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let mut workers_cpu = Duration::ZERO;
    std::thread::scope(|scope| {
        let stop = &stop;
        let syncer = scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(SYNC_INTERVAL);
                store.sync();
            }
        });
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let (mut scratch, mut key) = (Batch::new(), Vec::new());
                    let (mut dirent, mut inode) = ([0u8; 32], [7u8; 200]);
                    for index in 0..inodes / threads {
                        let child = fid(0x1000 + thread, index);
                        dirent_key(thread, index, &mut key);
                        dirent[..16].copy_from_slice(&child);
                        inode[..8].copy_from_slice(&index.to_le_bytes());
                        let parent = fid(0x10 + thread, index / DIR_ENTRIES);
                        let puts = [
                            (DIRENT, &key[..], &dirent[..]),
                            (INODE, &child[..], &inode[..]),
                            (INODE, &parent[..], &inode[..]),
                        ];
                        store.commit(&mut scratch, &puts);
                    }
                    cpu_time(libc::RUSAGE_THREAD)
                })
            })
            .collect();
        for worker in workers {
            workers_cpu += worker.join().expect("worker");
        }
        stop.store(true, Ordering::Relaxed);
        syncer.thread().unpark();
    });
    (start.elapsed(), workers_cpu)
}

fn stat_some(store: &dyn Store, thread: u64, files: u64, count: u64, seed: u64) {
    let (mut key, mut random) = (Vec::new(), fastrand::Rng::with_seed(seed));
    for _ in 0..count {
        dirent_key(thread, random.u64(..files), &mut key);
        let mut child = [0; 16];
        assert!(store.get(DIRENT, &key, &mut |value| child.copy_from_slice(&value[..16])), "entry");
        let mut sum = 0u64;
        assert!(store.get(INODE, &child, &mut |value| sum += u64::from(value[0])), "inode");
        std::hint::black_box(sum);
    }
}

fn stat(store: &dyn Store, threads: u64, files: u64, count: u64) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || stat_some(store, thread, files, count, thread + 1));
        }
    });
    start.elapsed()
}

fn readdir(store: &dyn Store) -> (u64, Duration) {
    let start = Instant::now();
    let (mut entries, mut sum) = (0, 0u64);
    store.scan(DIRENT, &fid(0x10, 0), &mut |_, value| {
        entries += 1;
        assert!(store.get(INODE, &value[..16], &mut |inode| sum += u64::from(inode[0])), "inode");
    });
    std::hint::black_box(sum);
    (entries, start.elapsed())
}

/// Processor time so far, user and system, of the process (RUSAGE_SELF) or the calling thread (RUSAGE_THREAD).
fn cpu_time(whose: libc::c_int) -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole rusage, and all-zero bytes are a valid one.
    let usage = unsafe {
        libc::getrusage(whose, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Resident memory in MiB: anonymous, and mapped files.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("field");
        line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok()).expect("number") / 1024
    };
    (field("RssAnon:"), field("RssFile:") + field("RssShmem:"))
}

fn disk_mib(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut blocks = 0;
    for entry in std::fs::read_dir(dir).expect("list") {
        let entry = entry.expect("list");
        let meta = entry.metadata().expect("stat");
        if meta.is_dir() {
            blocks += disk_mib(&entry.path());
        } else {
            blocks += (meta.blocks() * 512) >> 20;
        }
    }
    blocks
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, name, phase, dir, threads, inodes] = &args[..] else {
        panic!("usage: nacre-bench-kv STORE create|read DIR THREADS INODES");
    };
    let (dir, threads, inodes) =
        (Path::new(dir), threads.parse().expect("THREADS"), inodes.parse::<u64>().expect("INODES"));
    std::fs::create_dir_all(dir).expect("DIR");
    let start = Instant::now();
    let store = stores::open(name, dir);
    let opened = start.elapsed();
    if phase == "create" {
        let before = cpu_time(libc::RUSAGE_SELF);
        let (time, workers_cpu) = create(&*store, threads, inodes);
        let all_cpu = cpu_time(libc::RUSAGE_SELF) - before;
        let (anon, file) = memory();
        println!(
            r#"{{"store":"{name}","phase":"create","threads":{threads},"creates_per_s":{:.0},"worker_cpu_us_per_create":{:.2},"cpu_us_per_create":{:.2},"rss_anon_mib":{anon},"rss_file_mib":{file},"disk_mib":{}}}"#,
            inodes as f64 / time.as_secs_f64(),
            workers_cpu.as_secs_f64() * 1e6 / inodes as f64,
            all_cpu.as_secs_f64() * 1e6 / inodes as f64,
            disk_mib(dir)
        );
        if std::env::var_os("STAT_AFTER_CREATE").is_some() {
            stat(&*store, threads, inodes / threads, STATS / 4);
            let time = stat(&*store, threads, inodes / threads, STATS);
            println!(
                r#"{{"store":"{name}","phase":"stat-after-create","threads":{threads},"stats_per_s":{:.0}}}"#,
                (STATS * threads) as f64 / time.as_secs_f64()
            );
        }
        store.print_stats();
        // SAFETY: ends the process at once, which is the point: nothing is closed.
        unsafe { libc::_exit(0) };
    }
    let files = inodes / threads;
    stat(&*store, threads, files, STATS / 4);
    let before = cpu_time(libc::RUSAGE_SELF);
    let time = stat(&*store, threads, files, STATS);
    let stat_cpu = cpu_time(libc::RUSAGE_SELF) - before;
    readdir(&*store);
    let before = cpu_time(libc::RUSAGE_SELF);
    let (entries, listed) = readdir(&*store);
    let listed_cpu = cpu_time(libc::RUSAGE_SELF) - before;
    assert_eq!(entries, files.min(DIR_ENTRIES), "all entries");
    let (anon, file) = memory();
    store.close();
    println!(
        r#"{{"store":"{name}","phase":"read","threads":{threads},"reopen_ms":{:.0},"stats_per_s":{:.0},"cpu_us_per_stat":{:.2},"readdir_entries_per_s":{:.0},"cpu_us_per_entry":{:.2},"rss_anon_mib":{anon},"rss_file_mib":{file}}}"#,
        opened.as_secs_f64() * 1e3,
        (STATS * threads) as f64 / time.as_secs_f64(),
        stat_cpu.as_secs_f64() * 1e6 / (STATS * threads) as f64,
        entries as f64 / listed.as_secs_f64(),
        listed_cpu.as_secs_f64() * 1e6 / entries as f64,
    );
}
