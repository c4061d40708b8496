//! Measures objects that are created, written with 4 KiB and synced, in a `block` store, in a `file` store,
//! and the speed of the disk for a program that appends as much to a preallocated file, in four ways. All
//! alternate in short runs; figures are medians over rounds, of rates as ratios within a round; and the cost
//! of each piece of work: CPU time, sleeps, transfers of the disk. With ONLY, just those whose names begin
//! with it run, for a profiler.
//!
//! `cargo run --release -p nacre-store --example sync_survey -- DIR [ROUNDS] [OBJECTS_OF_A_RUN] [THREADS]
//! [ONLY]`

mod common;
#[path = "common/cost.rs"]
mod cost;
#[path = "common/create.rs"]
mod create;

use common::{number, spread};
use cost::{Cost, Costs};
use create::create_and_sync;
use nacre_store::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectStore};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const MIB: usize = 1 << 20;
/// Bytes of the file that is appended to.
const LOG: usize = 32 * MIB;
/// Approximate bytes of a log record with 4 KiB of data.
const RECORD: usize = 4320;

/// Way of appending.
#[derive(Clone, Copy)]
enum Append {
    Call,
    Mapping,
    Direct,
    DirectDurable,
}

const APPENDS: [(&str, Append); 4] = [
    ("pwrite, fdatasync", Append::Call),
    ("copy into a mapping, fdatasync", Append::Mapping),
    ("pwrite around the page cache, fdatasync", Append::Direct),
    ("pwrite around the page cache, RWF_DSYNC", Append::DirectDurable),
];

struct Log {
    file: File,
    direct: File,
    map: *mut u8,
    end: usize,
    block: &'static mut [u8],
}

impl Log {
    fn new(path: &Path) -> Log {
        let block: &'static mut [u8] = vec![0x5au8; 4 * 4096].leak();
        let skip = block.as_ptr().align_offset(4096);
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(path).expect("made");
        (0..LOG / MIB).for_each(|at| file.write_all_at(&vec![0; MIB], (at * MIB) as u64).expect("written"));
        file.sync_all().expect("synced");
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let direct = File::options().write(true).custom_flags(flags).open(path).expect("opened");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address chosen by the kernel.
        let map = unsafe { rustix::mm::mmap(std::ptr::null_mut(), LOG, access, MapFlags::SHARED, &file, 0) };
        Log { file, direct, map: map.expect("mapped").cast(), end: 0, block: &mut block[skip..skip + 8192] }
    }

    fn append(&mut self, how: Append) {
        if self.end + 8192 + RECORD > LOG {
            self.end = 0;
        }
        let at = self.end;
        self.end += RECORD;
        // The pages that a record touches.
        let (first, last) = (at / 4096 * 4096, (at + RECORD).next_multiple_of(4096));
        match how {
            Append::Call => self.file.write_all_at(&self.block[..RECORD], at as u64).expect("written"),
            Append::Mapping => {
                // SAFETY: the mapping is longer than that, and no other thread writes to it.
                unsafe { self.map.add(at).copy_from_nonoverlapping(self.block.as_ptr(), RECORD) }
            }
            Append::Direct => {
                let block = &self.block[..(last - first).min(8192)];
                self.direct.write_all_at(block, first as u64).expect("written");
            }
            Append::DirectDurable => {
                let block = &self.block[..(last - first).min(8192)];
                let slices = [std::io::IoSlice::new(block)];
                let flags = rustix::io::ReadWriteFlags::DSYNC;
                rustix::io::pwritev2(&self.direct, &slices, first as u64, flags).expect("written");
                return;
            }
        }
        self.file.sync_data().expect("synced");
    }
}

/// Results of each kind of work in each round.
#[derive(Default)]
struct Found(Vec<(String, Vec<Cost>)>);

impl Found {
    fn add(&mut self, name: String, cost: Cost) {
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, costs)) => costs.push(cost),
            None => self.0.push((name, vec![cost])),
        }
    }

    /// Prints rates, their ratios to those of the `file` store with as many threads, and the cost of a piece
    /// of work.
    fn tell(&self, threads: u32) {
        let rates = |name: &str| {
            let costs = self.0.iter().find(|(known, _)| known == name).map(|(_, costs)| costs);
            costs.map(|costs| costs.iter().map(|cost| cost.per_second).collect::<Vec<f64>>())
        };
        for (name, costs) in &self.0 {
            let own: Vec<f64> = costs.iter().map(|cost| cost.per_second).collect();
            spread(&format!("{name}: per second"), &own);
            // Programs that append have one thread, so their base is the store with one thread.
            let beside = if name.ends_with(&format!(", {threads} at once")) { threads } else { 1 };
            if let Some(base) = rates(&format!("file, {beside} at once")) {
                let ratios: Vec<f64> = own.iter().zip(&base).map(|(one, other)| one / other).collect();
                spread(&format!("{name}: ratio to the file store"), &ratios);
            }
            println!("{name}: {}", Cost::median(costs));
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = Path::new(arguments.first().expect("a directory on the disk to measure"));
    let (rounds, objects) = (number(&arguments, 1, 9), number(&arguments, 2, 300) as u32);
    let threads = number(&arguments, 3, 8) as u32;
    let only = arguments.get(4);
    let is_wanted = |name: &str| only.is_none_or(|only| name.starts_with(only.as_str()));
    std::fs::create_dir_all(dir).expect("make the directory");
    let options = BlockStoreOptions { create: true, size: 2 << 30, ..Default::default() };
    let block = BlockStore::open(&dir.join("block"), options).expect("open the store");
    let file = FileStore::open(&dir.join("file"), FileStoreOptions::create()).expect("open the store");
    let mut log = Log::new(&dir.join("plain"));
    let (costs, mut found) = (Costs::new(dir), Found::default());
    let mut first = 1;
    for round in 0..rounds {
        for threads in [1, threads] {
            let stores: [(&str, &dyn ObjectStore); 2] = [("file", &file), ("block", &block)];
            for (kind, store) in stores {
                let name = format!("{kind}, {threads} at once");
                if !is_wanted(&name) {
                    continue;
                }
                let before = (block.index_syncs(), block.device().stats().flushes);
                let work = || _ = create_and_sync(store, first, objects, threads);
                found.add(name.clone(), costs.of(objects, work));
                let after = (block.index_syncs(), block.device().stats().flushes);
                if round == 0 && kind == "block" {
                    let syncs = (after.0 - before.0) as f64 / f64::from(objects);
                    println!(
                        "{name}: {syncs:.2} syncs of the log, {} flushes of the device",
                        after.1 - before.1
                    );
                }
            }
            first += objects;
        }
        for (name, how) in APPENDS.into_iter().filter(|(name, _)| is_wanted(name)) {
            let work = || (0..objects).for_each(|_| log.append(how));
            found.add(name.to_owned(), costs.of(objects, work));
        }
    }
    found.tell(threads);
    drop((block, file));
    std::fs::remove_dir_all(dir).expect("removed");
}
