//! Devices that are full, and blocks that must not be lost.

use super::*;
use crate::object::Fallocate;
use nacre_types::Status;

/// Fills a store with objects of `len` bytes; returns their number.
fn fill(store: &BlockStore, first: u32, len: usize) -> u32 {
    let mut count = 0;
    loop {
        let object = fid(first + count);
        match store.write(object, 0, &vec![count as u8; len]) {
            Ok(written) if written == len => count += 1,
            Ok(_) => return count + 1,
            Err(error) => {
                assert_eq!(error.status(), Status::ENOSPC, "{error}");
                return count;
            }
        }
    }
}

#[test]
fn no_block_is_lost_in_many_cycles_of_filling_and_deleting() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = in_memory(dir.path(), &device, options());
    let empty = store.space().expect("space").free;
    let mut random = fastrand::Rng::with_seed(1);
    // More by hand: see CONTRIBUTING.
    let cycles = std::env::var("NACRE_CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(1000);
    for cycle in 0..cycles {
        let len = [5000, 12_288, 65_536, 300_000, 2_000_000][random.usize(..5)];
        let count = fill(&store, 1, len);
        assert!(count > 0, "cycle {cycle}");
        if random.bool() {
            store.truncate(fid(1), 100).expect("works on a full device");
        }
        if random.u64(..4) == 0 {
            // Every second object is destroyed, others replace them in pieces, and movable parts are moved
            // together.
            let some: Vec<Fid> = (1..=count).step_by(2).map(fid).collect();
            store.destroy(&some).expect("destroyed");
            for oid in (1..=count).step_by(2) {
                match store.write(fid(oid), 0, &vec![3; len / 2]) {
                    Ok(_) | Err(ObjectError::NoSpace) => {}
                    Err(error) => panic!("cycle {cycle}: {error}"),
                }
            }
            store.defragment(&super::defrag::EAGER).expect("moved");
            while random.bool() && store.objects.volume().trim(0, 1 << 20).expect("trimmed").bytes > 0 {}
        }
        assert_clean(&store, &format!("cycle {cycle}, full"));
        let mut doomed: Vec<Fid> = (1..=count + 1).map(fid).collect();
        if random.bool() {
            doomed.reverse();
        }
        store.destroy(&doomed).expect("destroyed");
        assert_eq!(store.space().expect("space").free, empty, "cycle {cycle}, {len} bytes each");
        assert_clean(&store, &format!("cycle {cycle}, empty"));
    }
    assert!(store.defrag_stats().parts > 0);
    store.sync_all().expect("synced");
    assert_eq!(store.objects.volume().space().report().count, 1, "all free space came together again");
    drop(store);
    let store = in_memory(dir.path(), &device, options());
    assert_eq!(store.space().expect("space").free, empty);
}

#[test]
fn a_full_device_refuses_at_every_allocation_and_stays_in_order() {
    // One block less each time: a different write does not fit.
    for blocks in 0..24u64 {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(1 << 20));
        let store = in_memory(dir.path(), &device, options());
        let free = store.space().expect("space").available - blocks * BLOCK;
        let how = Fallocate::Allocate { keep_size: false };
        store.fallocate(fid(1), how, 0, free / 2 / BLOCK * BLOCK).expect("allocated");
        let mut refused = 0;
        for round in 0..30u32 {
            let object = fid(2 + round % 5);
            let result = match round % 4 {
                0 => store.write(object, u64::from(round) * 1000, &[1; 30_000]).map(|_| ()),
                1 => store.write(object, 0, &[2; 4096 * 3]).map(|_| ()),
                2 => store.fallocate(object, how, 0, 50_000).map(|_| ()),
                _ => store.fallocate(object, Fallocate::Punch, 5000, 5000).map(|_| ()),
            };
            if let Err(error) = result {
                assert_eq!(error.status(), Status::ENOSPC, "{error}");
                refused += 1;
            }
        }
        let _ = fill(&store, 100, 4096 * 2);
        assert!(refused > 0 || blocks == 0 || store.space().expect("space").free < 100 * BLOCK);
        // Reserved space can be written, and freeing works.
        store.write(fid(1), 0, &vec![3; (free / 2 / BLOCK * BLOCK) as usize]).expect("set aside");
        store.truncate(fid(1), 4097).expect("cut");
        assert_eq!(contents(&store, fid(1)), [3; 4097]);
        store.sync_all().expect("synced");
        assert_clean(&store, &format!("{blocks} blocks"));
    }
}

#[test]
fn the_reserve_is_for_promised_writes_and_rewrites() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store =
        in_memory(dir.path(), &device, BlockStoreOptions { reserve_bytes: Some(4 << 20), ..options() });
    let count = fill(&store, 1, 1 << 20);
    fill(&store, 1000, 8192);
    assert!(store.space().expect("space").available < 8192);
    assert!(store.space().expect("space").promisable >= 1 << 20);
    assert_eq!(store.write(fid(500), 0, &[1; 8192]).expect_err("refused").status(), Status::ENOSPC);
    assert_eq!(store.write_promised(fid(500), 0, &[1; 8192]).expect("promised"), 8192);
    for round in 0..20 {
        assert_eq!(store.write(fid(1), 0, &vec![round; 1 << 20]).expect("as much comes back"), 1 << 20);
    }
    assert_eq!(contents(&store, fid(1)), vec![19; 1 << 20]);
    assert!(count >= 10);
    assert_clean(&store, "full");
}

#[test]
fn a_sparse_file_takes_the_space_of_what_is_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let store =
        BlockStore::open(dir.path(), BlockStoreOptions { size: 1 << 30, ..options() }).expect("opens");
    let used = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(dir.path().join("data")).expect("there").blocks() * 512
    };
    let before = used();
    store.write(fid(1), 0, &vec![1; 8 << 20]).expect("written");
    assert!(used() - before >= 8 << 20);
    store.destroy(&[fid(1)]).expect("destroyed");
    store.sync_all().expect("synced");
    trim_all(&store);
    assert!(used() < before + (1 << 20), "{} of {before}", used());
}

#[test]
fn a_write_waits_for_space_that_the_device_is_just_being_told_of() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlockStore::open(dir.path(), options()).expect("opens");
    store.reserve(fid(1).seq, 10).expect("reserved");
    let held = store.objects.volume().space().take_untold(0, u64::MAX).expect("all of it is free");
    nacre_env::thread::scope(|scope| {
        let writer = scope.spawn(|| store.write(fid(1), 0, &vec![1; 1 << 20]));
        while store.objects.volume().space().waiting() == 0 {
            nacre_env::thread::yield_now();
        }
        store.objects.volume().space().told(held, true);
        assert_eq!(writer.join().expect("no panic").expect("there is room again"), 1 << 20);
    });
    assert_clean(&store, "told");
}
