//! Data read ahead of streams equals the data of plain reads, at any time.

use super::defrag::EAGER;
use super::*;
use crate::object::Fallocate;
use device::model::MediaSpec;
use device::{BlockDevice, FETCH_BYTES, Fault};
use nacre_types::Status;
use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::AtomicU64;

const MIB: usize = 1 << 20;
/// Bytes of a read.
const READ: usize = 256 << 10;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed * 2 + 1);
    (0..len / 8).flat_map(|_| random.u64(..).to_le_bytes()).collect()
}

/// Returns a store with an object of `reads` reads.
fn store_with(device: &Arc<MemoryDevice>, dir: &Path, reads: usize) -> (BlockStore, Vec<u8>) {
    let store = in_memory(dir, device, options());
    let data = pattern(1, reads * READ);
    data.chunks(MIB).zip(0..).for_each(|(data, at)| {
        store.write(fid(1), at * MIB as u64, data).expect("written");
    });
    (store, data)
}

fn read(store: &BlockStore, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut buffer = vec![0xee; len];
    let read = store.read(fid(1), offset as u64, &mut buffer, 0)?;
    buffer.truncate(read);
    Ok(buffer)
}

/// Reads one after the other and compares.
fn read_on(store: &BlockStore, data: &[u8], reads: Range<usize>) {
    for number in reads {
        let offset = number * READ;
        let end = (offset + READ).min(data.len());
        assert!(read(store, offset, READ).expect("read") == data[offset..end], "read {number}");
    }
}

#[test]
fn what_a_stream_reads_next_is_there_before_it_is_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, mut data) = store_with(&device, dir.path(), 20);
    // An end that is not block-aligned.
    data.extend_from_slice(&pattern(9, 150_000)[..149_001]);
    store.write(fid(1), (20 * READ) as u64, &data[20 * READ..]).expect("written");
    let before = device.stats().read_bytes;
    read_on(&store, &data, 0..21);
    let stats = store.read_ahead_stats();
    // Two consecutive reads show that there is a stream; at the end there is nothing more to begin.
    assert_eq!((stats.begun, stats.used), (19, 19));
    assert_eq!(stats.memory_bytes, 2 << 20);
    let (reads, bytes) = (device.stats().reads, device.stats().read_bytes);
    assert_eq!(bytes - before, (20 * READ + 37 * 4096) as u64, "nothing is read twice");
    read_on(&store, &data, 5..8);
    assert!(device.stats().reads > reads);
    assert_eq!(store.read_ahead_stats().used, 20);
}

#[test]
fn a_stream_on_a_file_gets_what_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlockStore::open(dir.path(), options()).expect("opens");
    let data = pattern(3, 12 * MIB + 4096);
    data.chunks(MIB).zip(0..).for_each(|(data, at)| {
        store.write(fid(1), at * MIB as u64, data).expect("written");
    });
    for len in [128 << 10, 384 << 10, FETCH_BYTES] {
        for offset in (0..data.len()).step_by(len) {
            let end = (offset + len).min(data.len());
            assert!(read(&store, offset, len).expect("read") == data[offset..end], "{len} at {offset}");
        }
    }
    let stats = store.read_ahead_stats();
    match store.device().info().engine {
        device::Engine::IoUring => assert!(stats.used >= 12 * 8 + 12 * 2 + 12 - 6, "{stats:?}"),
        // A kernel without rings.
        _ => assert_eq!(stats.begun, 0),
    }
    // Closed with reads in flight: the device is free for the next opener.
    read(&store, 0, MIB).expect("read");
    read(&store, MIB, MIB).expect("read");
    drop(store);
    let store = BlockStore::open(dir.path(), options()).expect("opens again");
    assert!(contents(&store, fid(1)) == data);
}

#[test]
fn whatever_changes_an_object_makes_what_was_read_ahead_of_it_forgotten() {
    type Change = fn(&BlockStore, &mut Vec<u8>);
    let at = 4 * READ;
    let changes: [(&str, Change); 8] = [
        ("write", |store, data| {
            data[4 * READ + 5..4 * READ + 9].copy_from_slice(b"fish");
            store.write(fid(1), (4 * READ + 5) as u64, b"fish").expect("written");
        }),
        ("write of whole blocks", |store, data| {
            data[5 * READ..6 * READ].copy_from_slice(&pattern(7, READ));
            store.write(fid(1), (5 * READ) as u64, &data[5 * READ..6 * READ]).expect("written");
        }),
        ("truncate", |store, data| {
            data.truncate(4 * READ + 140_000);
            store.truncate(fid(1), data.len() as u64).expect("truncated");
        }),
        ("truncate and grow", |store, data| {
            data[4 * READ + 100..].fill(0);
            store.truncate(fid(1), (4 * READ + 100) as u64).expect("truncated");
            store.truncate(fid(1), data.len() as u64).expect("grown");
        }),
        ("punch", |store, data| {
            data[4 * READ + 4096..4 * READ + 9000].fill(0);
            store.fallocate(fid(1), Fallocate::Punch, (4 * READ + 4096) as u64, 4904).expect("punched");
        }),
        ("zero", |store, data| {
            data[4 * READ..5 * READ].fill(0);
            let how = Fallocate::Zero { keep_size: true };
            store.fallocate(fid(1), how, (4 * READ) as u64, READ as u64).expect("zeroed");
        }),
        ("destroy and make", |store, data| {
            store.destroy(&[fid(1)]).expect("destroyed");
            *data = pattern(11, data.len());
            store.write(fid(1), 0, data).expect("written");
        }),
        ("move", |store, _| {
            assert!(store.defragment(&EAGER).expect("moved") > 0);
        }),
    ];
    for (name, change) in changes {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let (store, mut data) = store_with(&device, dir.path(), 8);
        if name == "move" {
            // In two pieces, so that there is something to defragment.
            store.write(fid(2), 0, &vec![7; READ]).expect("written");
            store.write(fid(1), (3 * READ) as u64, &data[3 * READ..4 * READ]).expect("written");
        }
        read_on(&store, &data, 0..4);
        let used = store.read_ahead_stats().used;
        assert_eq!(used, 2, "{name}");
        change(&store, &mut data);
        // Freed blocks get another owner, and other bytes.
        store.sync_all().expect("synced");
        for oid in 10..40 {
            store.write(fid(oid), 0, &pattern(u64::from(oid), MIB)).expect("written");
        }
        assert!(read(&store, at, READ).expect("read") == data[at..data.len().min(at + READ)], "{name}");
        assert_eq!(store.read_ahead_stats().used, used, "{name}: from the device");
        read_on(&store, &data, 5..data.len().div_ceil(READ).max(5));
        assert!(contents(&store, fid(1)) == data, "{name}");
    }
}

#[test]
fn who_waits_for_memory_or_what_is_under_way_in_it_says_so_before() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, mut data) = store_with(&device, dir.path(), 12);
    read_on(&store, &data, 0..6);
    // Two windows are in flight, and useless: their memory is needed for others.
    data[..4].copy_from_slice(b"fish");
    store.write(fid(1), 0, b"fish").expect("written");
    read_on(&store, &data, 6..12);
    assert_eq!(store.read_ahead_stats().used, 4 + 5);
    assert_eq!(device.untold_waits(), 0);
}

#[test]
fn damage_in_what_was_read_ahead_is_an_error_that_names_the_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, data) = store_with(&device, dir.path(), 12);
    let first = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    let bad = (6 * READ + 8192) as u64;
    device.flip_bit(first + bad + 77, 3);
    read_on(&store, &data, 0..6);
    for _ in 0..2 {
        match read(&store, 6 * READ, READ).expect_err("noticed") {
            ObjectError::Checksum { object, offset, at_device } => {
                assert_eq!((object, offset, at_device), (fid(1), bad, first + bad));
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(store.stats().checksum_errors, 2, "counted once for each read");
    device.flip_bit(first + bad + 77, 3);
    read_on(&store, &data, 6..12);
}

#[test]
fn a_block_that_cannot_be_read_fails_the_reads_of_it_and_no_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, data) = store_with(&device, dir.path(), 12);
    let first = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    device.order(Fault::UnreadableBlock((first + (6 * READ) as u64) / BLOCK + 3));
    read_on(&store, &data, 0..6);
    assert_eq!(read(&store, 6 * READ, READ).expect_err("unreadable").status(), Status::EIO);
    read_on(&store, &data, 7..9);
    device.repair();
    read_on(&store, &data, 6..12);
}

#[test]
fn damage_that_is_gone_when_a_block_is_read_again_is_no_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, data) = store_with(&device, dir.path(), 12);
    let first = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    device.flip_bit(first + (4 * READ) as u64, 0);
    read_on(&store, &data, 0..4);
    device.flip_bit(first + (4 * READ) as u64, 0);
    read_on(&store, &data, 4..12);
    assert_eq!(store.stats().checksum_errors, 0);
}

#[test]
fn memory_is_bounded_and_given_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, BlockStoreOptions { read_ahead_bytes: 5 << 20, ..options() });
    let data = pattern(1, 8 * READ);
    for oid in 1..=6 {
        store.write(fid(oid), 0, &data).expect("written");
    }
    let mut buffer = vec![0; READ];
    for number in 0..8 {
        for oid in 1..=6 {
            let offset = number * READ;
            assert_eq!(store.read(fid(oid), offset as u64, &mut buffer, 0).expect("read"), READ);
            assert!(buffer == data[offset..offset + READ]);
        }
    }
    let stats = store.read_ahead_stats();
    assert_eq!(stats.memory_bytes, 4 << 20, "two streams of six");
    assert!(stats.used >= 12, "{stats:?}");
    store.set_read_ahead(0);
    assert_eq!(store.read_ahead_stats().memory_bytes, 0);
    store.read(fid(1), 0, &mut buffer, 0).expect("read");
    store.read(fid(1), READ as u64, &mut buffer, 0).expect("read");
    assert_eq!(store.read_ahead_stats(), ReadAheadStats { memory_bytes: 0, ..stats });
}

#[test]
fn what_is_no_stream_that_waits_for_each_read_gets_nothing_ahead() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let (store, data) = store_with(&device, dir.path(), 16);
    // Backwards, far apart, small, across holes.
    for number in (0..16).rev().chain([3, 9, 1]) {
        read_on(&store, &data, number..number + 1);
    }
    (0..100).for_each(|at| drop(read(&store, at * 65536 % data.len(), 65536).expect("read")));
    (0..16).for_each(|number| drop(read(&store, number * READ + 100, READ / 2).expect("read")));
    store.truncate(fid(1), 64 << 20).expect("grown");
    (20..40).for_each(|number| drop(read(&store, number * READ, READ).expect("read")));
    assert_eq!(store.read_ahead_stats(), ReadAheadStats { memory_bytes: 2 << 20, ..Default::default() });
    // A simulated medium could not report the end of asynchronous reads.
    let media: MediaSpec = "throttle:latency=1us".parse().expect("a medium");
    store.simulated_device().set_media(Some(media)).expect("set");
    read_on(&store, &data, 0..12);
    assert_eq!(store.read_ahead_stats().begun, 0);
}

#[test]
fn a_stream_beside_changes_gets_nothing_older_than_what_was_there_when_it_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, options());
    const READS: usize = 16;
    // Each read of the object is written as a whole, filled with the number of the write.
    let latest: [AtomicU64; READS] = Default::default();
    let write = |number: usize, write: u64| {
        let data = write.to_le_bytes().repeat(READ / 8);
        store.write(fid(1), (number * READ) as u64, &data).expect("written");
        latest[number].store(write, Ordering::SeqCst);
    };
    (0..READS).for_each(|number| write(number, 1));
    (0..READS).for_each(|number| drop(read(&store, number * READ, READ).expect("read")));
    let alone = store.read_ahead_stats();
    assert_eq!((alone.begun, alone.used), (READS as u64 - 2, READS as u64 - 2));
    let start = Barrier::new(2);
    let is_over = AtomicBool::new(false);
    nacre_env::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            let mut random = fastrand::Rng::with_seed(77);
            for round in 2..600 {
                write(random.usize(..READS), round);
                if round % 50 == 0 {
                    store.sync_all().expect("synced");
                    store.defragment(&EAGER).expect("moved");
                }
            }
            is_over.store(true, Ordering::SeqCst);
        });
        start.wait();
        for number in (0..READS).cycle() {
            let least = latest[number].load(Ordering::SeqCst);
            let bytes = read(&store, number * READ, READ).expect("read");
            let mut words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("whole")));
            let first = words.next().expect("some");
            assert!(words.all(|word| word == first), "read {number} is of one write");
            assert!(bytes.len() == READ && first >= least, "read {number} of write {first}, not {least}");
            if is_over.load(Ordering::SeqCst) && number == READS - 1 {
                break;
            }
        }
    });
    assert!(store.read_ahead_stats().begun > alone.begun, "beside changes too");
    assert_clean(&store, "beside changes");
}

#[test]
fn random_streams_and_changes_give_what_a_copy_in_memory_gives() {
    for seed in 1..=8 {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let (store, mut data) = store_with(&device, dir.path(), 12);
        let mut random = fastrand::Rng::with_seed(seed * 1_000_003);
        let mut at = 0;
        for step in 0..400 {
            match random.u64(..40) {
                0 => at = random.usize(..12) * READ,
                1 | 2 => {
                    let offset = random.u64(..data.len() as u64 + 1) as usize;
                    let piece = pattern(step, random.usize(..60_000) + 8);
                    data.resize(data.len().max(offset + piece.len()), 0);
                    data[offset..offset + piece.len()].copy_from_slice(&piece);
                    store.write(fid(1), offset as u64, &piece).expect("written");
                }
                3 => {
                    let size = (1 << 20) + random.u64(..2 << 20) as usize;
                    data.resize(size, 0);
                    store.truncate(fid(1), size as u64).expect("truncated");
                }
                4 => {
                    let offset = random.u64(..data.len() as u64 + 1) as usize;
                    let end = data.len().min(offset + 100_000);
                    data[offset..end].fill(0);
                    store.fallocate(fid(1), Fallocate::Punch, offset as u64, 100_000).expect("punched");
                }
                5 => drop(store.defragment(&EAGER).expect("moved")),
                6 => store.sync_all().expect("synced"),
                _ => {
                    let end = data.len().min(at + READ);
                    let there = data.get(at..end).unwrap_or(&[]);
                    assert!(read(&store, at, READ).expect("read") == there, "seed {seed}, step {step}");
                    at = if end < at + READ { 0 } else { end };
                }
            }
        }
        assert!(store.read_ahead_stats().used > 5, "{:?}", store.read_ahead_stats());
        assert!(contents(&store, fid(1)) == data);
        assert_clean(&store, "after all");
    }
}
