//! Measures the reads of a block store and of a bare ring on the file that is its device: a stream of 1 MiB
//! reads that waits for each, and 4 KiB at random with 32 in flight. All alternate in short runs, so that
//! other load of the machine affects all; figures are medians over rounds, of rates as ratios within a round.
//!
//! `cargo run --release -p nacre-store --example read_survey -- DIR [SIZE_MIB] [ROUNDS] [MIB_OF_A_RUN]`

mod common;
#[path = "common/reads.rs"]
mod reads;

use common::{number, spread};
use fastrand::Rng;
use io_uring::{IoUring, opcode, types};
use nacre_env::clock::Instant;
use nacre_store::object::{BlockStore, BlockStoreOptions, ObjectStore, ReadRequest};
use nacre_types::Fid;
use reads::thread_cpu;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
const DEPTH: usize = 32;
/// Reads per call.
const BATCH: usize = 1024;
/// Memory for read-ahead, in bytes.
const READ_AHEAD: u64 = 16 << 20;
const OBJECT: Fid = Fid::ost_object(0, 1);

/// Configuration of a bare ring.
#[derive(Clone, Copy)]
struct Bare {
    name: &'static str,
    /// Its memory is registered.
    is_registered: bool,
    /// Its memory may be in large pages.
    is_huge: bool,
    /// CRC-32C of each block is computed.
    has_checksums: bool,
}

/// Registered memory, and data that is not accessed: as fio does.
const AS_FIO: Bare =
    Bare { name: "bare ring, registered", is_registered: true, is_huge: false, has_checksums: false };
const BARES: [Bare; 5] = [
    AS_FIO,
    Bare { name: "bare ring, not registered", is_registered: false, ..AS_FIO },
    Bare { name: "bare ring, registered, checksums", has_checksums: true, ..AS_FIO },
    Bare {
        name: "bare ring, not registered, checksums",
        is_registered: false,
        has_checksums: true,
        ..AS_FIO
    },
    Bare {
        name: "bare ring, registered large pages, checksums",
        is_huge: true,
        has_checksums: true,
        ..AS_FIO
    },
];

/// Returns page-aligned memory, in small or large pages.
fn aligned(len: usize, is_huge: bool) -> &'static mut [u8] {
    const LARGE: usize = 2 * MIB;
    let memory: &'static mut [u8] = vec![0u8; len + LARGE].leak();
    let skip = memory.as_ptr().align_offset(if is_huge { LARGE } else { BLOCK });
    let memory = &mut memory[skip..skip + len];
    if is_huge {
        // SAFETY: advice about memory of this program, which nothing else uses.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), len, libc::MADV_HUGEPAGE) };
    }
    memory.fill(0x5a);
    memory
}

/// A ring with file and memory of its own.
struct BareRing {
    how: Bare,
    ring: IoUring,
    _file: std::fs::File,
    memory: &'static mut [u8],
}

impl BareRing {
    fn new(how: Bare, device: &Path) -> BareRing {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
            .open(device)
            .expect("open the device");
        let ring = IoUring::builder().setup_coop_taskrun().build(DEPTH as u32).expect("a ring");
        ring.submitter().register_files(&[file.as_raw_fd()]).expect("registered");
        let memory = aligned(MIB, how.is_huge);
        if how.is_registered {
            let vector = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
            // SAFETY: the memory is never freed.
            unsafe { ring.submitter().register_buffers(&[vector]) }.expect("registered");
        }
        BareRing { how, ring, _file: file, memory }
    }

    fn push(&mut self, slot: usize, offset: u64, len: usize) {
        let memory = self.memory[slot * len..].as_mut_ptr();
        let fd = types::Fixed(0);
        let entry = match self.how.is_registered {
            true => opcode::ReadFixed::new(fd, memory, len as u32, 0).offset(offset).build(),
            false => opcode::Read::new(fd, memory, len as u32).offset(offset).build(),
        };
        // SAFETY: the memory is never freed, and each slot has one read at a time.
        unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) }.expect("room");
    }

    fn look_at(&self, slot: usize, len: usize) {
        if self.how.has_checksums {
            let bytes = &self.memory[slot * len..(slot + 1) * len];
            let sums = bytes.chunks(BLOCK).map(crc_fast::crc32_iscsi);
            std::hint::black_box(sums.fold(0, |one, two| one ^ two));
        }
    }

    /// Reads at the offsets, with `depth` reads in flight.
    fn read(&mut self, offsets: &mut dyn Iterator<Item = u64>, len: usize, depth: usize) {
        let mut in_flight = 0;
        for slot in 0..depth {
            let Some(offset) = offsets.next() else { break };
            self.push(slot, offset, len);
            in_flight += 1;
        }
        while in_flight > 0 {
            self.ring.submit_and_wait(1).expect("waited");
            let done: Vec<(usize, i32)> =
                self.ring.completion().map(|entry| (entry.user_data() as usize, entry.result())).collect();
            for (slot, result) in done {
                assert_eq!(result, len as i32, "read whole");
                self.look_at(slot, len);
                in_flight -= 1;
                if let Some(offset) = offsets.next() {
                    self.push(slot, offset, len);
                    in_flight += 1;
                }
            }
        }
    }
}

/// Cost of a run: wall time in seconds, and CPU time of the thread in us for each read.
#[derive(Clone, Copy)]
struct Took {
    seconds: f64,
    cpu: f64,
}

fn timed(reads: usize, work: impl FnOnce()) -> Took {
    let (start, cpu) = (Instant::now(), thread_cpu());
    work();
    let cpu = (thread_cpu() - cpu).as_secs_f64() * 1e6 / reads as f64;
    Took { seconds: start.elapsed().as_secs_f64(), cpu }
}

/// Prints each variant's rate as a ratio to the first one's, and its CPU time.
fn show(what: &str, names: &[&str], rounds: &[Vec<Took>]) {
    println!("{what}");
    for (at, name) in names.iter().enumerate() {
        let ratios: Vec<f64> = rounds.iter().map(|round| round[0].seconds / round[at].seconds).collect();
        spread(&format!("  {name}: ratio to the first"), &ratios);
        let cpu: Vec<f64> = rounds.iter().map(|round| round[at].cpu).collect();
        spread(&format!("  {name}: CPU us of a read"), &cpu);
    }
}

struct Survey {
    store: BlockStore,
    /// Offset of the object on the device.
    first: u64,
    mib: usize,
    run: usize,
    rings: Vec<BareRing>,
    buffer: &'static mut [u8],
    random: Rng,
}

impl Survey {
    /// Reads 1 MiB at a time, one after the other: each bare ring, then the store.
    fn streams(&mut self) -> Vec<Took> {
        let from = self.random.usize(..self.mib - self.run + 1);
        let mut round = Vec::new();
        for ring in &mut self.rings {
            let mut offsets = (from..from + self.run).map(|at| self.first + (at * MIB) as u64);
            round.push(timed(self.run, || ring.read(&mut offsets, MIB, 1)));
        }
        for read_ahead in [0, READ_AHEAD] {
            self.store.set_read_ahead(read_ahead);
            round.push(timed(self.run, || {
                for at in from..from + self.run {
                    let read = self.store.read(OBJECT, (at * MIB) as u64, &mut self.buffer[..MIB], 0);
                    assert_eq!(read.expect("read"), MIB);
                }
            }));
        }
        round
    }

    /// Reads 4 KiB at random places, 32 at a time: each bare ring, then the store.
    fn random(&mut self) -> Vec<Took> {
        let blocks = self.mib as u64 * 256;
        let reads = self.run * 64 / BATCH * BATCH;
        let mut round = Vec::new();
        for ring in &mut self.rings {
            let (random, first) = (&mut self.random, self.first);
            let mut offsets =
                std::iter::repeat_with(|| first + random.u64(..blocks) * BLOCK as u64).take(reads);
            round.push(timed(reads, || ring.read(&mut offsets, BLOCK, DEPTH)));
        }
        round.push(timed(reads, || {
            for _ in 0..reads / BATCH {
                let mut requests: Vec<ReadRequest<'_>> = self.buffer[..BATCH * BLOCK]
                    .chunks_mut(BLOCK)
                    .map(|buffer| ReadRequest::new(OBJECT, self.random.u64(..blocks) * BLOCK as u64, buffer))
                    .collect();
                self.store.read_many(&mut requests).expect("read");
            }
        }));
        round
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let dir = Path::new(arguments.first().expect("a directory on the disk to measure"));
    let mib = number(&arguments, 1, 1024) as usize;
    let rounds = number(&arguments, 2, 15);
    let run = (number(&arguments, 3, 64) as usize).clamp(16, mib);
    std::fs::create_dir_all(dir).expect("make the directory");
    let store_dir = dir.join("block");
    let options =
        BlockStoreOptions { create: true, size: (mib as u64 * 2 + 1024) << 20, ..Default::default() };
    let store = BlockStore::open(&store_dir, options).expect("open the store");
    let buffer = aligned(4 * MIB, false);
    for at in 0..mib {
        store.write(OBJECT, (at * MIB) as u64, &buffer[..MIB]).expect("write");
    }
    store.sync_all().expect("sync");
    let extents =
        store.abilities().extents.expect("it tells").extents(OBJECT).expect("known").expect("known");
    println!("device {:?}, {mib} MiB in {} pieces", store.device().info(), extents.len());
    let device = store_dir.join("data");
    let rings = BARES.iter().map(|how| BareRing::new(*how, &device)).collect();
    let names: Vec<&str> = BARES.iter().map(|how| how.name).chain(["store"]).collect();
    let first = extents[0].physical;
    let mut survey =
        Survey { store, first, mib, run, rings, buffer, random: Rng::with_seed(88_172_645_463_325_252) };
    let (mut streams, mut random) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        streams.push(survey.streams());
        random.push(survey.random());
    }
    let mut both = names.clone();
    both.insert(names.len() - 1, "store, nothing read ahead");
    show("1 MiB one after the other", &both, &streams);
    show("4 KiB at random, 32 at a time", &names, &random);
    println!("{:?}", survey.store.device().stats());
    drop(survey);
    std::fs::remove_dir_all(&store_dir).expect("remove the store");
}
