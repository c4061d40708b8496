//! Devices: real files by rings and by system calls, and the one in memory.

use super::*;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|at| (at.wrapping_mul(31) ^ seed.wrapping_mul(0x9e37_79b9) ^ (at >> 9)) as u8)
        .collect()
}

fn open(dir: &tempfile::TempDir, system_calls_only: bool) -> DirectDevice {
    let options = DirectDeviceOptions {
        create_bytes: Some(8 << 20),
        system_calls_only,
        rings_max: 2,
        ..DirectDeviceOptions::default()
    };
    DirectDevice::open(&dir.path().join("device"), &options).expect("opens")
}

fn each_device(body: impl Fn(&dyn BlockDevice)) {
    for system_calls_only in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let device = open(&dir, system_calls_only);
        if system_calls_only {
            assert_eq!(device.info().engine, Engine::SystemCalls);
        }
        body(&device);
    }
    body(&MemoryDevice::new(8 << 20));
}

#[test]
fn batches_of_any_memory_alignment_are_read_back() {
    each_device(|device| {
        let sizes = [4096, 8192, 16384, 20480, 65536, 1 << 20, 4096];
        for shift in [0usize, 1, 512, 4095] {
            let memory: Vec<Vec<u8>> =
                sizes.iter().map(|len| [vec![0; shift], pattern(shift as u64, *len)].concat()).collect();
            let mut offset = 4096;
            let mut writes = Vec::new();
            for memory in &memory {
                writes.push(WriteOp { offset, data: &memory[shift..] });
                offset += memory.len() as u64 - shift as u64 + 4096;
            }
            device.write(&writes).expect("written");
            let mut back: Vec<Vec<u8>> = sizes.iter().map(|len| vec![0xee; len + shift]).collect();
            let mut reads: Vec<ReadOp<'_>> = back
                .iter_mut()
                .zip(&writes)
                .map(|(back, write)| ReadOp { offset: write.offset, buffer: &mut back[shift..] })
                .collect();
            device.read(&mut reads).expect("read");
            for (read, write) in reads.iter().zip(&writes) {
                assert!(*read.buffer == *write.data, "shift {shift}, offset {}", read.offset);
            }
        }
        device.flush().expect("flushed");
        let stats = device.stats();
        assert_eq!(stats.flushes, 1);
        assert_eq!(stats.read_bytes, stats.written_bytes);
        let engine = device.info().engine;
        assert_eq!(stats.ring_batches > 0, engine == Engine::IoUring);
        assert_eq!(stats.call_batches > 0, engine == Engine::SystemCalls);
    });
}

#[test]
fn aligned_reads_are_not_copied_and_a_submission_carries_many() {
    for system_calls_only in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let device = open(&dir, system_calls_only);
        let data = pattern(3, 32 * 4096);
        device.write(&[WriteOp { offset: 0, data: &data }]).expect("written");
        let before = device.stats();
        let mut back = AlignedBuffer::zeroed(data.len());
        let ops = |(at, buffer)| ReadOp { offset: at as u64 * 4096, buffer };
        let mut reads: Vec<ReadOp<'_>> = back.chunks_mut(4096).enumerate().map(ops).collect();
        device.read(&mut reads).expect("read");
        assert!(*back == *data);
        let after = device.stats();
        assert_eq!((after.reads - before.reads, after.copied_reads), (32, 0));
        if after.ring_batches > 0 {
            assert_eq!(after.ring_batches - before.ring_batches, 1);
            // One for each completion at worst, in addition to those that submit.
            let enters = after.ring_enters - before.ring_enters;
            assert!((1..=32 + 4).contains(&enters), "{enters}");
        }
        let mut shifted = AlignedBuffer::zeroed(8192);
        device.read(&mut [ReadOp { offset: 4096, buffer: &mut shifted[1..4097] }]).expect("read");
        assert!(shifted[1..4097] == data[4096..8192]);
        assert_eq!(device.stats().copied_reads, 1);
    }
}

#[test]
fn more_operations_than_a_ring_takes_at_once_are_all_done() {
    each_device(|device| {
        let data: Vec<Vec<u8>> = (0..500).map(|i| pattern(i, 4096)).collect();
        let writes: Vec<WriteOp<'_>> = data
            .iter()
            .enumerate()
            .map(|(i, data)| WriteOp { offset: (i as u64 * 7 % 500) * 4096, data })
            .collect();
        device.write(&writes).expect("written");
        let mut back = vec![0; 500 * 4096];
        device.read(&mut [ReadOp { offset: 0, buffer: &mut back }]).expect("read");
        for write in &writes {
            let at = write.offset as usize;
            assert!(back[at..at + 4096] == *write.data);
        }
    });
}

#[test]
fn threads_share_few_rings() {
    each_device(|device| {
        nacre_env::thread::scope(|scope| {
            for thread in 0..6u64 {
                scope.spawn(move || {
                    for round in 0..50 {
                        let data = pattern(thread * 1000 + round, 12288);
                        device.write(&[WriteOp { offset: thread << 16, data: &data }]).expect("written");
                        let mut back = vec![0; 12288];
                        device.read(&mut [ReadOp { offset: thread << 16, buffer: &mut back }]).expect("read");
                        assert!(back == data);
                    }
                });
            }
        });
    });
}

#[test]
fn what_is_not_aligned_or_outside_is_refused() {
    each_device(|device| {
        let size = device.size();
        let mut buffer = vec![0; 8192];
        for (offset, len) in [(1, 4096), (0, 100), (size, 4096), (size - 4096, 8192), (u64::MAX - 4095, 4096)]
        {
            assert!(device.read(&mut [ReadOp { offset, buffer: &mut buffer[..len] }]).is_err());
            assert!(device.write(&[WriteOp { offset, data: &buffer[..len] }]).is_err());
        }
        assert!(device.discard(0, 100).is_err() || device.info().engine == Engine::Memory);
        device.read(&mut []).expect("nothing to do");
    });
}

#[test]
fn discarded_ranges_give_their_space_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = open(&dir, false);
    let path = dir.path().join("device");
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).expect("there"));
    device.write(&[WriteOp { offset: 1 << 20, data: &pattern(1, 4 << 20) }]).expect("written");
    device.flush().expect("flushed");
    let full = blocks();
    assert!(full >= 8192, "{full}");
    device.discard(1 << 20, 3 << 20).expect("discarded");
    assert!(blocks() <= full - 6000, "{} of {full}", blocks());
    let mut back = vec![1; 4096];
    device.read(&mut [ReadOp { offset: 4 << 20, buffer: &mut back }]).expect("read");
    assert!(back == pattern(1, 4 << 20)[3 << 20..][..4096]);
}

#[test]
fn a_device_is_opened_by_one_at_a_time() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = open(&dir, false);
    let path = dir.path().join("device");
    let error = DirectDevice::open(&path, &DirectDeviceOptions::default()).err().expect("refused");
    assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
    drop(device);
    DirectDevice::open(&path, &DirectDeviceOptions::default()).expect("opens again");
    assert!(DirectDevice::open(&dir.path().join("none"), &DirectDeviceOptions::default()).is_err());
    assert!(DirectDevice::open(dir.path(), &DirectDeviceOptions::default()).is_err());
}

#[test]
fn a_device_that_is_given_up_meanwhile_is_waited_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = open(&dir, false);
    let path = dir.path().join("device");
    let patient = DirectDeviceOptions { timeout: std::time::Duration::from_secs(60), ..Default::default() };
    nacre_env::thread::scope(|scope| {
        let opened = scope.spawn(|| DirectDevice::open(&path, &patient).map(drop));
        drop(device);
        opened.join().expect("no panic").expect("opened");
    });
}

#[test]
fn a_power_cut_keeps_what_was_flushed_and_mixes_versions_of_the_rest() {
    let device = MemoryDevice::new(1 << 20);
    device.write(&[WriteOp { offset: 0, data: &[1; 4096] }]).expect("written");
    device.flush().expect("flushed");
    device.write(&[WriteOp { offset: 0, data: &[2; 4096] }]).expect("written");
    device.write(&[WriteOp { offset: 0, data: &[3; 4096] }]).expect("written");
    let content = |device: &MemoryDevice| {
        let mut back = vec![0; 4096];
        device.read(&mut [ReadOp { offset: 0, buffer: &mut back }]).expect("read");
        back
    };
    assert_eq!(content(&device.after_power_cut(&mut |_| 0)), [1; 4096]);
    assert_eq!(content(&device.after_power_cut(&mut |versions| versions - 1)), [3; 4096]);
    let mut next = 0;
    let mixed = device.after_power_cut(&mut |versions| {
        next += 1;
        next % versions
    });
    let mixed = content(&mixed);
    assert!([1, 2, 3].iter().all(|version| mixed.contains(version)));
    assert!(mixed.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
    device.flush().expect("flushed");
    assert_eq!(content(&device.after_power_cut(&mut |_| 0)), [3; 4096]);
}

#[test]
fn ordered_faults_happen() {
    let device = MemoryDevice::new(1 << 20);
    let write = |byte: u8| device.write(&[WriteOp { offset: 4096, data: &[byte; 4096] }]);
    let read = || {
        let mut back = vec![0; 4096];
        device.read(&mut [ReadOp { offset: 4096, buffer: &mut back }]).map(|()| back)
    };
    device.order(Fault::TornWrite(1));
    write(1).expect("the first works");
    assert!(write(2).is_err());
    let torn = read().expect("read");
    assert!(torn.contains(&1) && torn.contains(&2));
    device.order(Fault::Flush(0));
    assert!(device.flush().is_err());
    device.flush().expect("the next works");
    device.order(Fault::UnreadableBlock(1));
    assert!(read().is_err());
    write(3).expect("written");
    device.flip_bit(4096 + 17, 3);
    let flipped = read().expect("readable again");
    assert_eq!(flipped.iter().filter(|byte| **byte != 3).count(), 1);
    device.order(Fault::NoDiscard);
    assert_eq!(device.discard(0, 4096).expect_err("refused").raw_os_error(), Some(libc::EOPNOTSUPP));
    device.order(Fault::PowerAfter(1));
    write(4).expect("the last");
    assert!(write(5).is_err() && device.flush().is_err() && read().is_err());
    device.repair();
    assert_eq!(read().expect("back"), [4; 4096]);
}

#[test]
fn what_nobody_waits_for_is_there_when_it_is_wanted() {
    each_device(|device| {
        let Some(mut fetch) = device.fetcher() else {
            assert_eq!(device.info().engine, Engine::SystemCalls);
            return;
        };
        let data = pattern(4, 4 << 20);
        device.write(&[WriteOp { offset: 1 << 20, data: &data }]).expect("written");
        let bytes = |from: u64, len: usize| &data[from as usize..from as usize + len];
        fetch.begin(0, &[(1 << 20, FETCH_BYTES)]);
        let pieces: Vec<(u64, usize)> = (0..20).map(|at| ((1 << 20) + at * 12_288, 4096)).collect();
        fetch.begin(1, &pieces);
        let second: Vec<u8> = (0..20).flat_map(|at| bytes(at * 12_288, 4096).to_vec()).collect();
        assert!(fetch.finish(1).expect("read") == second);
        assert!(fetch.is_there(1));
        assert!(fetch.finish(0).expect("read") == bytes(0, FETCH_BYTES));
        // Beyond the end, and then a valid range; the other part is unaffected.
        fetch.begin(0, &[(device.size() - 4096, 8192)]);
        fetch.begin(1, &[((1 << 20) + 8192, 8192)]);
        assert_eq!(fetch.finish(0).expect_err("refused").kind(), std::io::ErrorKind::UnexpectedEof);
        fetch.begin(0, &[(2 << 20, 4096)]);
        fetch.begin(0, &[(3 << 20, 4096)]);
        assert!(fetch.finish(0).expect("read") == bytes(2 << 20, 4096), "the last that was begun");
        assert!(fetch.finish(1).expect("read") == bytes(8192, 8192));
        // Dropped with a read in flight.
        fetch.begin(0, &[(1 << 20, FETCH_BYTES)]);
        let fetch = nacre_env::thread::scope(|scope| {
            let ends = scope.spawn(move || {
                assert!(fetch.finish(0).expect("by another thread") == bytes(0, FETCH_BYTES));
                fetch.begin(1, &[(1 << 20, FETCH_BYTES)]);
                fetch
            });
            ends.join().expect("ended")
        });
        drop(fetch);
    });
}
