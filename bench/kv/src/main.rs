//! The metadata workload on several embedded stores. One phase per process, so that memory and opening are measured clean.
//!
//! `nacre-bench-kv STORE create DIR THREADS INODES` fills a new store and ends without closing it, as a crash would;
//! `nacre-bench-kv STORE read DIR THREADS INODES` opens it, measures stat and readdir, closes, and opens it again.
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

fn create(store: &dyn Store, threads: u64, inodes: u64) -> Duration {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
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
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("worker");
        }
        stop.store(true, Ordering::Relaxed);
        syncer.thread().unpark();
    });
    start.elapsed()
}

fn stat_some(store: &dyn Store, thread: u64, files: u64, count: u64, seed: u64) {
    let (mut key, mut state) = (Vec::new(), seed);
    for _ in 0..count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        dirent_key(thread, (state >> 33) % files, &mut key);
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

/// Processor time of all threads of this process so far, user and system.
fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole rusage, and all-zero bytes are a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
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
            blocks += meta.blocks() * 512 >> 20;
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
        let time = create(&*store, threads, inodes);
        let (anon, file) = memory();
        println!(
            r#"{{"store":"{name}","phase":"create","threads":{threads},"creates_per_s":{:.0},"creates_per_cpu_s":{:.0},"rss_anon_mib":{anon},"rss_file_mib":{file},"disk_mib":{}}}"#,
            inodes as f64 / time.as_secs_f64(),
            inodes as f64 / cpu_time().as_secs_f64(),
            disk_mib(dir)
        );
        store.print_stats();
        // SAFETY: ends the process at once, which is the point: nothing is closed.
        unsafe { libc::_exit(0) };
    }
    let files = inodes / threads;
    stat(&*store, threads, files, STATS / 4);
    let time = stat(&*store, threads, files, STATS);
    readdir(&*store);
    let (entries, listed) = readdir(&*store);
    assert_eq!(entries, files.min(DIR_ENTRIES), "all entries");
    let (anon, file) = memory();
    store.close();
    println!(
        r#"{{"store":"{name}","phase":"read","threads":{threads},"reopen_ms":{:.0},"stats_per_s":{:.0},"readdir_entries_per_s":{:.0},"rss_anon_mib":{anon},"rss_file_mib":{file}}}"#,
        opened.as_secs_f64() * 1e3,
        (STATS * threads) as f64 / time.as_secs_f64(),
        entries as f64 / listed.as_secs_f64(),
    );
}
