//! Devices that fail or return wrong data.

use super::*;
use crate::object::ObjectProblem;
use device::Fault;
use nacre_types::Status;

#[test]
fn a_flipped_bit_is_an_error_that_names_the_place_and_never_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    let data: Vec<u8> = (0..200_000u32).map(|at| (at / 7) as u8).collect();
    store.write(fid(1), 0, &data).expect("written");
    store.write(fid(2), 0, &data).expect("written");
    let extents = store.objects.extents(fid(1)).expect("read").expect("known");
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..50 {
        let at = random.u64(..extents[0].len);
        let bit = random.u8(..8);
        device.flip_bit(extents[0].physical + at, bit);
        let mut buffer = vec![0; data.len()];
        let block = at / BLOCK * BLOCK;
        for (offset, len) in [(0, data.len()), (block as usize + 5, 10)] {
            let result = store.read(fid(1), offset as u64, &mut buffer[..len], 0);
            match result.expect_err("noticed") {
                ObjectError::Checksum { object, offset, at_device } => {
                    assert_eq!((object, offset), (fid(1), extents[0].logical + block));
                    assert_eq!(at_device, extents[0].physical + block);
                }
                other => panic!("{other}"),
            }
        }
        let mut many = [ReadRequest::new(fid(1), block, &mut buffer[..4096])];
        assert_eq!(store.read_many(&mut many).expect_err("noticed").status(), Status::EIO);
        let (mut damaged, mut whole) = (vec![0; 4096], vec![0; 4096]);
        let mut both =
            [ReadRequest::new(fid(1), block, &mut damaged), ReadRequest::new(fid(2), block, &mut whole)];
        let mut failed = Vec::new();
        store.read_all(&mut both, &mut |number, error| failed.push((number, error.status())));
        assert_eq!(failed, [(0, Status::EIO)], "the damage of one is no error of the other");
        let there = both[1].read;
        assert_eq!(whole[..there], data[block as usize..][..there]);
        assert!(there > 0);
        let report = store.verify(false, &mut |_| {}).expect("verify runs");
        let named = ObjectProblem::Data {
            object: fid(1),
            offset: extents[0].logical + block,
            at_device: extents[0].physical + block,
        };
        assert_eq!(report.problems, [named], "round {round}");
        // A partial write needs the rest of the block, which is unreadable; a write of the whole block
        // repairs it.
        if !at.is_multiple_of(BLOCK) {
            let offset = extents[0].logical + block + 100;
            assert_eq!(store.write(fid(1), offset, b"x").expect_err("refused").status(), Status::EIO);
        }
        device.flip_bit(extents[0].physical + at, bit);
        assert_eq!(contents(&store, fid(1)), data);
    }
    assert_eq!(contents(&store, fid(2)), data, "others are not concerned");
    assert!(store.stats().checksum_errors >= 100);
    assert_clean(&store, "flipped back");
}

#[test]
fn a_block_that_cannot_be_read_is_an_error_until_it_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    store.write(fid(1), 0, &[5; 65536]).expect("written");
    let physical = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    device.order(Fault::UnreadableBlock(physical / BLOCK + 2));
    let mut buffer = vec![0; 65536];
    assert_eq!(store.read(fid(1), 0, &mut buffer, 0).expect_err("noticed").status(), Status::EIO);
    assert_eq!(store.read(fid(1), 0, &mut buffer[..8192], 0).expect("the rest is there"), 8192);
    let report = store.verify(false, &mut |_| {}).expect("verify runs");
    let at_device = physical + 2 * BLOCK;
    assert_eq!(report.problems, [ObjectProblem::Unreadable { object: fid(1), offset: 8192, at_device }]);
    store.write(fid(1), 8192, &[6; 4096]).expect("goes elsewhere");
    assert_eq!(store.read(fid(1), 0, &mut buffer, 0).expect("readable"), 65536);
    assert_clean(&store, "written anew");
}

#[test]
fn a_write_that_fails_changes_nothing_and_leaks_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    store.write(fid(1), 0, &[5; 65536]).expect("written");
    let free = store.space().expect("space").free;
    for (offset, len) in [(0, 65536), (100, 5000), (70_000, 9000)] {
        device.order(Fault::TornWrite(0));
        let error = store.write(fid(1), offset, &vec![6; len]).expect_err("fails");
        assert_eq!(error.status(), Status::EIO);
        assert_eq!(contents(&store, fid(1)), [5; 65536]);
        assert_eq!(store.space().expect("space").free, free);
    }
    assert_clean(&store, "after failures");
}

#[test]
fn a_flush_that_fails_is_told_and_changes_the_epoch() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    store.write(fid(1), 0, &[5; 65536]).expect("written");
    let epoch = store.durability_epoch();
    device.order(Fault::Flush(0));
    assert_eq!(store.sync(fid(1)).expect_err("fails").status(), Status::EIO);
    assert_ne!(store.durability_epoch(), epoch);
    store.sync(fid(1)).expect("the next one works");
    assert_eq!(contents(&store, fid(1)), [5; 65536]);
    assert_eq!(store.stats().sync_failures, 1);
}

#[test]
fn the_scrubber_finds_damage_that_nobody_reads() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    store.write(fid(1), 0, &[5; 1 << 20]).expect("written");
    let physical = store.objects.extents(fid(1)).expect("read").expect("known")[0].physical;
    device.flip_bit(physical + 300_000, 1);
    store.set_scrub_rate(1 << 30);
    let end = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(30);
    while store.stats().checksum_errors == 0 {
        assert!(nacre_env::clock::Instant::now() < end, "{:?}", store.stats());
        nacre_env::thread::yield_now();
    }
    assert!(store.stats().scrubbed_bytes > 0);
}
