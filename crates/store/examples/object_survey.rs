//! Measures a file store and the disk below it, in one run, so that noise of the machine affects both.
//!
//! `cargo run --release -p nacre-store --example object_survey -- DIR [SIZE_MIB] [ROUNDS]
//! [never|large|always]`

use nacre_env::clock::Instant;
use nacre_store::object::{DirectIo, FileStore, FileStoreOptions, ObjectStore};
use nacre_types::Fid;
use rustix::fs::{Advice, Mode, OFlags};
use std::os::fd::OwnedFd;
use std::path::Path;

const MIB: usize = 1 << 20;
/// Read-ahead hint of the example's reader, in bytes.
const AHEAD: u32 = 4 << 20;

/// Returns memory that O_DIRECT accepts.
fn aligned(len: usize) -> &'static mut [u8] {
    let memory: &'static mut [u8] = vec![0x5au8; len + 4096].leak();
    let skip = memory.as_ptr().align_offset(4096);
    &mut memory[skip..skip + len]
}

fn mib_per_second(mib: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    mib as f64 / start.elapsed().as_secs_f64()
}

fn forget(fd: &OwnedFd) {
    rustix::fs::fadvise(fd, 0, None, Advice::DontNeed).expect("drop the cached pages");
}

/// Measures the disk itself: O_DIRECT, one request at a time.
fn disk(path: &Path, mib: usize, buffer: &mut [u8]) -> (f64, f64) {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).expect("open");
    rustix::fs::ftruncate(&fd, 0).expect("empty");
    let write = mib_per_second(mib, || {
        for i in 0..mib {
            assert_eq!(rustix::io::pwrite(&fd, buffer, (i * MIB) as u64).expect("write"), MIB);
        }
        rustix::fs::fdatasync(&fd).expect("sync");
    });
    let read = mib_per_second(mib, || {
        for i in 0..mib {
            assert_eq!(rustix::io::pread(&fd, &mut *buffer, (i * MIB) as u64).expect("read"), MIB);
        }
    });
    (write, read)
}

fn store_stream(store: &FileStore, object: Fid, dir: &Path, mib: usize, buffer: &mut [u8]) -> (f64, f64) {
    let write = mib_per_second(mib, || {
        for i in 0..mib {
            store.write(object, (i * MIB) as u64, buffer).expect("write");
        }
        store.sync(object).expect("sync");
    });
    forget_all(dir);
    let read = mib_per_second(mib, || {
        for i in 0..mib {
            let left = ((mib - i - 1) * MIB).min(AHEAD as usize) as u32;
            assert_eq!(store.read(object, (i * MIB) as u64, buffer, left).expect("read"), MIB);
        }
    });
    (write, read)
}

/// Drops the cached pages of all slot files.
fn forget_all(dir: &Path) {
    for sub in std::fs::read_dir(dir.join("objects")).expect("list") {
        for file in std::fs::read_dir(sub.expect("entry").path()).expect("list") {
            let path = file.expect("entry").path();
            forget(&rustix::fs::open(&path, OFlags::RDONLY, Mode::empty()).expect("open"));
        }
    }
}

fn microseconds_each(count: u32, mut work: impl FnMut(u32)) -> f64 {
    let start = Instant::now();
    (0..count).for_each(&mut work);
    start.elapsed().as_secs_f64() * 1e6 / f64::from(count)
}

fn small(store: &FileStore, dir: &Path) {
    let data = [1u8; 4096];
    let mut back = [0u8; 4096];
    let path = dir.join("plain");
    let flags = OFlags::CREATE | OFlags::RDWR;
    let fd = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).expect("open");
    let object = Fid::ost_object(0, 5_000_000);
    store.write(object, 0, &[0; 1 << 20]).expect("write");
    rustix::io::pwrite(&fd, &[0; 1 << 20], 0).expect("write");
    let at = |i: u32| u64::from(i % 256) * 4096;
    for _ in 0..3 {
        let plain = microseconds_each(100_000, |i| {
            rustix::io::pwrite(&fd, &data, at(i)).expect("write");
        });
        let through = microseconds_each(100_000, |i| {
            store.write(object, at(i), &data).expect("write");
        });
        let plain_read = microseconds_each(100_000, |i| {
            rustix::io::pread(&fd, &mut back, at(i)).expect("read");
        });
        let through_read = microseconds_each(100_000, |i| {
            store.read(object, at(i), &mut back, 0).expect("read");
        });
        println!(
            "4 KiB overwrite: pwrite {plain:.2} us, store {through:.2} us; cached read: pread {plain_read:.2} us, \
             store {through_read:.2} us"
        );
    }
    let plain = microseconds_each(1000, |i| {
        rustix::io::pwrite(&fd, &data, (1 << 20) + u64::from(i) * 4096).expect("write");
        rustix::fs::fdatasync(&fd).expect("sync");
    });
    let through = microseconds_each(1000, |i| {
        store.write(object, (1 << 20) + u64::from(i) * 4096, &data).expect("write");
        store.sync(object).expect("sync");
    });
    println!("append 4 KiB + sync: pwrite and fdatasync {plain:.1} us, store {through:.1} us");
    drop(fd);
    std::fs::remove_file(&path).expect("remove");
    // First writes: to new files in the first round, to reused ones afterwards.
    for round in 0..3 {
        let first = 1_000_000 + round * 100_000;
        let count = 20_000;
        let create = microseconds_each(count, |i| {
            store.write(Fid::ost_object(0, first + i), 0, &data).expect("write");
        });
        let missing = microseconds_each(count, |i| {
            store.attr(Fid::ost_object(0, 3_000_000 + i)).expect("attr");
        });
        let objects: Vec<Fid> = (0..count).map(|i| Fid::ost_object(0, first + i)).collect();
        let destroy = microseconds_each(count / 64, |i| {
            store.destroy(&objects[i as usize * 64..][..64]).expect("destroy");
        }) / 64.0;
        store.destroy(&objects).expect("destroy the rest");
        store.verify(false, &mut |_| {}).expect("verify waits until the files are free");
        println!(
            "first 4 KiB write {create:.2} us, attr of a missing object {missing:.2} us, destroy {destroy:.2} us"
        );
    }
    println!("{:?}", store.stats());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("a directory on the disk to measure");
    let dir = Path::new(&dir);
    let mut number = |default| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (mib, rounds) = (number(1024), number(3));
    let direct = match arguments.next().as_deref() {
        None | Some("large") => DirectIo::LargeWrites,
        Some("never") => DirectIo::Never,
        Some("always") => DirectIo::Always,
        Some(other) => panic!("{other}: write never, large or always"),
    };
    std::fs::create_dir_all(dir).expect("make the directory");
    let options = FileStoreOptions { direct, ..FileStoreOptions::create() };
    let store_dir = dir.join("store");
    let store = FileStore::open(&store_dir, options).expect("open the store");
    let buffer = aligned(MIB);
    for round in 0..rounds {
        let (disk_write, disk_read) = disk(&dir.join("disk"), mib, buffer);
        let object = Fid::ost_object(0, round as u32 + 1);
        let (write, read) = store_stream(&store, object, &store_dir, mib, buffer);
        store.destroy(&[object]).expect("destroy");
        println!(
            "{mib} MiB: write+sync disk {disk_write:.0} store {write:.0} MiB/s = {:.2}; cold read disk {disk_read:.0} \
             store {read:.0} MiB/s = {:.2}",
            write / disk_write,
            read / disk_read
        );
    }
    std::fs::remove_file(dir.join("disk")).expect("remove");
    small(&store, dir);
    drop(store);
    std::fs::remove_dir_all(&store_dir).expect("remove the store");
}
