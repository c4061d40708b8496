//! Measures a block store, fio on the file that is its device, and a file store, alternating in one run, so
//! that noise of the machine affects all.
//!
//! `cargo run --release -p nacre-store --example block_survey -- DIR [SIZE_MIB] [SECONDS] [ROUNDS] [OBJECTS]`

#[path = "common/create.rs"]
mod create;
#[path = "common/reads.rs"]
mod reads;

use create::create_and_sync;
use fastrand::Rng;
use nacre_env::clock::Instant;
use nacre_store::object::{
    BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectStore, ReadRequest,
};
use nacre_types::Fid;
use reads::thread_cpu;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MIB: usize = 1 << 20;
/// Reads per call.
const BATCH: usize = 1024;

/// Runs fio; returns operations and KiB per second.
fn fio(file: &Path, arguments: &[&str]) -> (f64, f64) {
    let output = Command::new("fio")
        .args(["--name=x", "--direct=1", "--ioengine=io_uring", "--registerfiles=1", "--fixedbufs=1"])
        .args(["--output-format=terse", "--terse-version=3", "--thread", "--allow_file_create=0"])
        .arg(format!("--filename={}", file.display()))
        .args(arguments)
        .output()
        .expect("fio runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("3;")).expect("a line of figures");
    let fields: Vec<&str> = line.split(';').collect();
    let at = if arguments.iter().any(|argument| argument.contains("rw=write")) { 46 } else { 5 };
    let number = |at: usize| fields[at].parse::<f64>().expect("a number");
    (number(at + 2), number(at + 1))
}

/// Returns page-aligned memory.
fn aligned(len: usize) -> &'static mut [u8] {
    let memory: &'static mut [u8] = vec![0x5au8; len + 4096].leak();
    let skip = memory.as_ptr().align_offset(4096);
    &mut memory[skip..skip + len]
}

/// Reads 4 KiB at a time in one thread; returns reads per second, and CPU us of each.
fn random_reads(store: &BlockStore, mib: usize, seconds: u64, random: &mut Rng) -> (f64, f64) {
    let memory = aligned(BATCH * 4096);
    let (start, cpu) = (Instant::now(), thread_cpu());
    let mut done = 0;
    while start.elapsed().as_secs() < seconds {
        let mut requests: Vec<ReadRequest<'_>> = memory
            .chunks_mut(4096)
            .map(|buffer| {
                let offset = random.u64(..mib as u64 * 256) * 4096;
                ReadRequest::new(Fid::ost_object(0, 1), offset, buffer)
            })
            .collect();
        store.read_many(&mut requests).expect("read");
        done += BATCH;
    }
    let cpu = thread_cpu() - cpu;
    (done as f64 / start.elapsed().as_secs_f64(), cpu.as_secs_f64() * 1e6 / done as f64)
}

/// Reads 4 KiB at a time, one after the other; returns CPU us of each in the store.
fn single_reads(store: &BlockStore, mib: usize, random: &mut Rng) -> f64 {
    let buffer = aligned(4096);
    let cpu = thread_cpu();
    for _ in 0..20_000 {
        let offset = random.u64(..mib as u64 * 256) * 4096;
        store.read(Fid::ost_object(0, 1), offset, buffer, 0).expect("read");
    }
    (thread_cpu() - cpu).as_secs_f64() * 1e6 / 20_000.0
}

/// Does the same by `pread` around the page cache, without a store; returns CPU us of each.
fn single_calls(device: &Path, first: u64, mib: usize, random: &mut Rng) -> f64 {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(device)
        .expect("open the device");
    let buffer = aligned(4096);
    let cpu = thread_cpu();
    for _ in 0..20_000 {
        let offset = first + random.u64(..mib as u64 * 256) * 4096;
        file.read_exact_at(buffer, offset).expect("read");
    }
    (thread_cpu() - cpu).as_secs_f64() * 1e6 / 20_000.0
}

fn mib_per_second(mib: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    mib as f64 / start.elapsed().as_secs_f64()
}

/// Writes and reads 1 MiB at a time, compared with fio.
fn streams(store: &BlockStore, dir: &Path, mib: usize, buffer: &mut [u8]) {
    let object = Fid::ost_object(0, 1);
    let plain = dir.join("plain");
    store.destroy(&[object]).expect("destroy");
    store.sync_all().expect("sync");
    let write = mib_per_second(mib, || {
        for at in 0..mib {
            store.write(object, (at * MIB) as u64, buffer).expect("write");
        }
        store.sync(object).expect("sync");
    });
    let _ = std::fs::remove_file(&plain);
    std::fs::File::create(&plain).and_then(|file| file.set_len((mib * MIB) as u64)).expect("make the file");
    let length = format!("--size={mib}m");
    let (_, fio_write) = fio(&plain, &["--rw=write", "--bs=1m", "--iodepth=1", "--end_fsync=1", &length]);
    let read = mib_per_second(mib, || {
        for at in 0..mib {
            store.read(object, (at * MIB) as u64, buffer, 0).expect("read");
        }
    });
    let extents =
        store.abilities().extents.expect("it tells").extents(object).expect("known").expect("known");
    let offset = format!("--offset={}", extents[0].physical);
    let device = dir.join("block/data");
    let (_, fio_read) = fio(&device, &["--rw=read", "--bs=1m", "--iodepth=1", &offset, &length]);
    let (fio_write, fio_read) = (fio_write / 1024.0, fio_read / 1024.0);
    let (two, fio_two) = two_at_once(store, &device, mib, &offset);
    println!(
        "1 MiB in {} pieces: write and sync fio {fio_write:.0} store {write:.0} MiB/s = {:.2}; read fio {fio_read:.0} store \
         {read:.0} MiB/s = {:.2}; two at once fio {fio_two:.0} store {two:.0} MiB/s = {:.2}; checksums alone {:.0} MiB/s, of data that \
         was just looked at {:.0} MiB/s",
        extents.len(),
        write / fio_write,
        read / fio_read,
        two / fio_two,
        checksums(&device, extents[0].physical, buffer, false),
        checksums(&device, extents[0].physical, buffer, true)
    );
}

/// Reads 1 MiB at a time in two threads, each of them every other MiB, compared with fio with two in flight.
fn two_at_once(store: &BlockStore, device: &Path, mib: usize, offset: &str) -> (f64, f64) {
    let object = Fid::ost_object(0, 1);
    let read = mib_per_second(mib, || {
        nacre_env::thread::scope(|scope| {
            for first in 0..2 {
                scope.spawn(move || {
                    let buffer = aligned(MIB);
                    for at in (first..mib).step_by(2) {
                        store.read(object, (at * MIB) as u64, buffer, 0).expect("read");
                    }
                });
            }
        });
    });
    let length = format!("--size={mib}m");
    let (_, fio_read) = fio(device, &["--rw=read", "--bs=1m", "--iodepth=2", offset, &length]);
    (read, fio_read / 1024.0)
}

/// Compares checksums of 1 MiB that a device has just transferred, or a second time; returns MiB per second.
fn checksums(device: &Path, first: u64, buffer: &mut [u8], again: bool) -> f64 {
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(device).expect("open");
    let sum = |buffer: &[u8]| {
        let sums = buffer.chunks(4096).map(crc_fast::crc32_iscsi);
        std::hint::black_box(sums.fold(0, |one, two| one ^ two))
    };
    let mut spent = Duration::ZERO;
    for at in 0..100 {
        file.read_exact_at(buffer, first + at * MIB as u64).expect("read");
        if again {
            sum(buffer);
        }
        let start = Instant::now();
        sum(buffer);
        spent += start.elapsed();
    }
    100.0 / spent.as_secs_f64()
}

/// Reads 4 KiB at random places, compared with fio.
fn depths(store: &BlockStore, dir: &Path, mib: usize, seconds: u64, random: &mut Rng) {
    let extents = store
        .abilities()
        .extents
        .expect("it tells")
        .extents(Fid::ost_object(0, 1))
        .expect("known")
        .expect("known");
    let offset = format!("--offset={}", extents[0].physical);
    let (length, device) = (format!("--size={mib}m"), dir.join("block/data"));
    let runtime = format!("--runtime={seconds}");
    let depth = ["--rw=randread", "--bs=4k", "--iodepth=32", "--time_based", &runtime, &offset, &length];
    let (fio_rate, _) = fio(&device, &depth);
    let (rate, cpu) = random_reads(store, mib, seconds, random);
    let single = single_reads(store, mib, random);
    let plain = single_calls(&device, extents[0].physical, mib, random);
    println!(
        "4 KiB random reads, depth: fio 32 {fio_rate:.0}/s, store 32 {rate:.0}/s = {:.2}, CPU {cpu:.2} us each; one after the \
         other CPU {single:.2} us each, of pread alone {plain:.2} = {:.2}",
        rate / fio_rate,
        single / plain
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().expect("a directory on the disk to measure");
    let dir = Path::new(&dir);
    let mut number =
        |default: usize| arguments.next().map_or(default, |text| text.parse().expect("a number"));
    let (mib, seconds, rounds, objects) = (number(1024), number(5) as u64, number(3), number(2000) as u32);
    std::fs::create_dir_all(dir).expect("make the directory");
    let store_dir = dir.join("block");
    let size = (mib as u64 * 3 + 1024) << 20;
    let options = BlockStoreOptions { create: true, size, ..BlockStoreOptions::default() };
    let store = BlockStore::open(&store_dir, options.clone()).expect("open the store");
    println!("device {:?}", store.device().info());
    let buffer = aligned(MIB);
    let file_store = FileStore::open(&dir.join("file"), FileStoreOptions::create()).expect("open the store");
    for round in 0..rounds {
        streams(&store, dir, mib, buffer);
        depths(&store, dir, mib, seconds, &mut Rng::with_seed(round as u64 * 2 + 1));
        for threads in [1, 8] {
            let first = 1000 + round as u32 * 100_000 + threads * 10_000;
            let file = create_and_sync(&file_store, first, objects, threads);
            let block = create_and_sync(&store, first, objects, threads);
            println!(
                "create, 4 KiB, sync by {threads} threads: file {file:.0}/s block {block:.0}/s = {:.2}",
                block / file
            );
        }
    }
    println!("{:?}\n{:?}", store.stats(), store.device().stats());
    drop(store);
    let start = Instant::now();
    let store =
        BlockStore::open(&store_dir, BlockStoreOptions { create: false, ..options }).expect("open again");
    println!("opened in {:.1} ms, {} objects", start.elapsed().as_secs_f64() * 1e3, store.stats().objects);
    drop((store, file_store));
    for name in ["block", "file"] {
        std::fs::remove_dir_all(dir.join(name)).expect("remove the store");
    }
    std::fs::remove_file(dir.join("plain")).expect("remove");
}
