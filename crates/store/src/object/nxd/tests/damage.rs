//! Damage of the log on its device, distinguished from regular ends.

use super::*;
use crate::object::block::device::BLOCK;
use nacre_types::Status;

const BLOCK_LEN: usize = BLOCK as usize;

/// Creates a store with batches of two blocks: header and data of 4 KiB of objects 1, 2 and so on.
fn with_batches(dir: &Path, device: &Arc<MemoryDevice>, objects: u32) -> Nxd {
    let store = in_memory(dir, device, &quiet());
    for object in 1..=objects {
        store.write(fid(object), 0, &[object as u8; BLOCK_LEN]).expect("written");
    }
    store
}

/// Returns the offset of an object's batch on the device.
fn batch_of(object: u64) -> u64 {
    (1 + (object - 1) * 2) * BLOCK
}

fn open(dir: &Path, device: &Arc<MemoryDevice>, options: NxdOptions) -> Result<Nxd> {
    Nxd::open(dir, block_store(dir), device.clone(), &options)
}

fn survey(device: &MemoryDevice) -> LogSurvey {
    LogSurvey::of(device).expect("walked")
}

fn closed(objects: u32) -> (tempfile::TempDir, Arc<MemoryDevice>) {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    with_batches(dir.path(), &device, objects).close().expect("closed");
    (dir, device)
}

fn bytes_of(object: u32) -> ObjectRange {
    ObjectRange { object: fid(object), range: 0..BLOCK }
}

#[test]
fn a_damaged_header_of_a_durable_batch_is_named_and_the_store_refused_without_a_change() {
    let (dir, device) = closed(3);
    // Magic, version, number of entries, blocks, cache, epoch, position, durable, an entry, zeros, checksum.
    for at in [0, 8, 10, 12, 20, 33, 41, 49, 70, 3000, 4093] {
        for object in 1..=3 {
            device.flip_bit(batch_of(object) + at, 2);
            let found = survey(&device);
            assert!(found.is_refused(), "{at} of {object}: {found:?}");
            assert_eq!((found.batches, found.lost_blocks, found.damage_count), (2, 2, 1), "{found:?}");
            let hidden: Vec<Fid> = (object as u32 + 1..=3).map(fid).collect();
            assert_eq!(found.hidden.keys().copied().collect::<Vec<_>>(), hidden);
            let LogDamage::Batches { at_device, seems, .. } = &found.damage[0] else { panic!("{found:?}") };
            assert_eq!(*at_device, batch_of(object));
            if ![12, 70].contains(&at) {
                assert_eq!(*seems, [bytes_of(object as u32)], "byte {at}");
            }
            let writes = device.stats().writes;
            let text = open(dir.path(), &device, quiet()).err().expect("refused").to_string();
            assert!(
                text.contains(&format!("2 blocks of its log from {} on were durable", batch_of(object))),
                "{text}"
            );
            assert!(text.contains(&format!("{} objects", hidden.len())), "{text}");
            assert_eq!(device.stats().writes, writes, "nothing was changed");
            device.flip_bit(batch_of(object) + at, 2);
        }
    }
    assert_eq!(survey(&device).damage, []);
    let store = open(dir.path(), &device, quiet()).expect("opens");
    for object in 1..=3u8 {
        assert_eq!(contents(&store, fid(object.into())), [object; BLOCK_LEN]);
    }
}

#[test]
fn damaged_data_of_a_durable_batch_is_an_error_for_its_bytes_and_nothing_else() {
    for object in 1..=3u32 {
        let (dir, device) = closed(3);
        device.flip_bit(batch_of(object.into()) + BLOCK + 77, 1);
        let found = survey(&device);
        assert!(!found.is_refused());
        let at_device = batch_of(object.into());
        assert_eq!(found.damage, [LogDamage::Data { at_device, bytes: bytes_of(object) }]);
        let store = open(dir.path(), &device, quiet()).expect("opens");
        let mut buffer = [0; BLOCK_LEN];
        for other in (1..=3).filter(|other| *other != object) {
            assert_eq!(contents(&store, fid(other)), [other as u8; BLOCK_LEN]);
        }
        assert_eq!(store.read(fid(object), 0, &mut buffer, 0).expect_err("damaged").status(), Status::EIO);
        let report = store.verify(false, &mut |_| {}).expect("runs");
        assert_eq!(
            report.problems,
            [crate::object::ObjectProblem::Cached { object: fid(object), offset: 0 }]
        );
        // It stays an error in the next opening, and disappears with the object.
        drop(store);
        let store = open(dir.path(), &device, quiet()).expect("opens");
        assert_eq!(store.read(fid(object), 0, &mut buffer, 0).expect_err("damaged").status(), Status::EIO);
        store.destroy(&[fid(object)]).expect("destroyed");
        store.flush_now().expect("the others are written back");
        assert!(!store.cache_stats().is_needed);
    }
}

#[test]
fn either_copy_of_the_superblock_does_and_the_other_is_made_anew() {
    let (dir, device) = closed(2);
    for at_device in [0, (4 << 20) - BLOCK] {
        device.flip_bit(at_device + 50, 0);
        let found = survey(&device);
        assert!(
            matches!(&found.damage[..], [LogDamage::Superblock { at_device: at, .. }] if *at == at_device)
        );
        let store = open(dir.path(), &device, quiet()).expect("opens");
        assert_eq!(contents(&store, fid(2)), [2; BLOCK_LEN]);
        store.close().expect("closed");
        drop(store);
        assert_eq!(survey(&device).damage, []);
    }
}

#[test]
fn a_superblock_that_leads_nowhere_is_an_error() {
    let (_dir, device) = closed(2);
    let good = survey(&device).superblock;
    let nowhere = [
        NxdSuperblock { tail: u64::MAX, ..good },
        NxdSuperblock { tail: 1 << 60, durable: u64::MAX, ..good },
        NxdSuperblock { size: 2 * BLOCK, ..good },
    ];
    for (number, superblock) in nowhere.into_iter().enumerate() {
        let device = MemoryDevice::new(if number == 2 { 2 * BLOCK } else { 4 << 20 });
        log::write_superblock(&device, &superblock).expect("written");
        LogSurvey::of(&device).expect_err("refused");
    }
    // It records more as durable than is possible.
    log::write_superblock(&*device, &NxdSuperblock { durable: u64::MAX, counter: 99, ..good })
        .expect("written");
    assert!(survey(&device).is_refused());
}

#[test]
fn what_lies_beyond_the_log_is_no_damage() {
    let (dir, device) = closed(2);
    for object in 3..10 {
        device.flip_bit(batch_of(object) + 5, 0);
    }
    assert_eq!(survey(&device).damage, []);
    let store = open(dir.path(), &device, quiet()).expect("opens");
    assert_eq!(contents(&store, fid(2)), [2; BLOCK_LEN]);
}

#[test]
fn a_last_batch_that_nobody_synced_ends_the_log_in_order() {
    for (part, whole) in [(10, 2), (BLOCK + 10, 2)] {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(4 << 20));
        let store = with_batches(dir.path(), &device, 2);
        store.sync(fid(1)).expect("synced");
        store.write(fid(3), 0, &[3; BLOCK_LEN]).expect("written");
        drop(store);
        device.flip_bit(batch_of(3) + part, 0);
        let found = survey(&device);
        assert_eq!((found.damage.len(), found.batches), (0, whole), "{found:?}");
        let store = open(dir.path(), &device, quiet()).expect("opens");
        assert_eq!(contents(&store, fid(2)), [2; BLOCK_LEN]);
        assert_eq!(contents(&store, fid(3)), [0; BLOCK_LEN]);
        assert_clean(&store, "an end in order");
    }
}

#[test]
fn a_batch_that_was_written_after_a_sync_tells_of_what_was_durable_before_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = with_batches(dir.path(), &device, 2);
    let before = survey(&device).superblock.durable;
    store.sync(fid(1)).expect("synced");
    store.write(fid(3), 0, &[3; BLOCK_LEN]).expect("written");
    drop(store);
    assert_eq!(before, 0, "nothing was durable when the log began");
    device.flip_bit(batch_of(2) + 10, 0);
    assert_eq!(survey(&device).lost_blocks, 2);
    assert!(open(dir.path(), &device, quiet()).is_err());
    // Data that was not durable then is no evidence.
    device.flip_bit(batch_of(2) + 10, 0);
    device.flip_bit(batch_of(3) + 10, 0);
    assert_eq!(survey(&device).damage, []);
}

#[test]
fn a_sync_that_nothing_follows_is_noted_when_the_log_is_quiet() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = with_batches(dir.path(), &device, 2);
    store.sync(fid(1)).expect("synced");
    let end = Instant::now() + Duration::from_secs(30);
    while survey(&device).superblock.durable < 4 {
        assert!(Instant::now() < end, "{:?}", survey(&device));
        nacre_env::thread::yield_now();
    }
    drop(store);
    device.flip_bit(batch_of(2) + 10, 0);
    assert!(survey(&device).is_refused());
}

#[test]
fn a_long_log_says_how_far_it_is_durable_so_that_its_beginning_is_missed() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(96 << 20));
    let store = in_memory(dir.path(), &device, &quiet());
    store.truncate(fid(1), 8 << 20).expect("sized");
    for round in 0..1200u64 {
        store.write(fid(1), round % 256 * (32 << 10), &[round as u8; 32 << 10]).expect("written");
    }
    drop(store);
    let found = survey(&device);
    assert_eq!((found.batches, found.damage.len()), (1200, 0));
    let (end, said) = (found.end, found.superblock.durable);
    assert!(said > 0 && end - said <= walk::MARK_EVERY + walk::BATCH_BLOCKS, "{said} of {end}");
    device.flip_bit(BLOCK + 10, 0);
    let found = survey(&device);
    assert!(found.is_refused());
    assert_eq!((found.batches, found.end), (1199, end), "all behind it are found");
}

#[test]
fn what_can_be_read_of_a_damaged_log_is_salvaged_when_that_is_ordered() {
    let (dir, device) = closed(5);
    device.flip_bit(batch_of(2) + 10, 0);
    device.flip_bit(batch_of(4) + BLOCK + 10, 0);
    assert!(open(dir.path(), &device, quiet()).is_err());
    let store = open(dir.path(), &device, NxdOptions { salvage: true, ..quiet() }).expect("opens");
    store.flush_now().expect("written back");
    assert!(!store.cache_stats().is_needed);
    for (object, byte) in [(1, 1), (2, 0), (3, 3), (4, 0), (5, 5)] {
        assert_eq!(contents(store.store(), fid(object)), [byte; BLOCK_LEN], "object {object}");
    }
    store.close().expect("closed");
    drop(store);
    assert_eq!(survey(&device).damage, [], "the log is empty");
    let store = open(dir.path(), &device, quiet()).expect("opens");
    assert_eq!(contents(&store, fid(5)), [5; BLOCK_LEN]);
}

#[test]
fn any_bit_of_a_log_may_flip_and_nothing_wrong_is_read_in_silence() {
    let mut random = fastrand::Rng::with_seed(11);
    let (dir, device) = closed(4);
    for _ in 0..300 {
        let (at, bit) = (BLOCK + random.u64(..8 * BLOCK), random.u8(..8));
        device.flip_bit(at, bit);
        let found = survey(&device);
        assert_eq!(found.damage_count, 1, "byte {at}, bit {bit}: {found:?}");
        match open(dir.path(), &device, quiet()) {
            Err(error) => assert!(found.is_refused(), "byte {at}: {error}"),
            Ok(store) => {
                for object in 1..=4u8 {
                    let mut buffer = [0xee; BLOCK_LEN];
                    match store.read(fid(object.into()), 0, &mut buffer, 0) {
                        Ok(_) => assert_eq!(buffer, [object; BLOCK_LEN], "byte {at}"),
                        Err(error) => assert_eq!(error.status(), Status::EIO, "byte {at}"),
                    }
                }
                store.close().expect("closed");
            }
        }
        device.flip_bit(at, bit);
    }
}

#[test]
fn a_batch_behind_a_damaged_one_that_was_not_durable_either_is_not_counted_as_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(4 << 20));
    let store = with_batches(dir.path(), &device, 2);
    store.sync(fid(1)).expect("synced");
    store.write(fid(3), 0, &[3; BLOCK_LEN]).expect("written");
    store.write(fid(4), 0, &[4; BLOCK_LEN]).expect("written");
    drop(store);
    device.flip_bit(batch_of(2) + 10, 0);
    device.flip_bit(batch_of(3) + 10, 0);
    let found = survey(&device);
    assert_eq!((found.batches, found.lost_blocks, found.end), (1, 2, 4), "{found:?}");
}

#[test]
fn blocks_that_cannot_be_read_behind_the_log_are_no_hindrance() {
    let (dir, device) = closed(2);
    for object in 3..6 {
        device.order(Fault::UnreadableBlock(batch_of(object) / BLOCK));
    }
    // The last block of the ring alone, too.
    device.order(Fault::UnreadableBlock((4 << 20) / BLOCK - 2));
    assert_eq!(survey(&device).damage, []);
    let store = open(dir.path(), &device, quiet()).expect("opens");
    store.write(fid(3), 0, &[3; BLOCK_LEN]).expect("written over it");
    for object in 1..=3u8 {
        assert_eq!(contents(&store, fid(object.into())), [object; BLOCK_LEN]);
    }
}

#[test]
fn a_block_of_the_log_that_cannot_be_read_is_damage_of_its_batch_alone() {
    let (dir, device) = closed(3);
    device.order(Fault::UnreadableBlock(batch_of(2) / BLOCK + 1));
    let found = survey(&device);
    let damage = LogDamage::Data { at_device: batch_of(2), bytes: bytes_of(2) };
    assert_eq!((found.damage, found.damaged_data), (vec![damage], 1));
    let store = open(dir.path(), &device, quiet()).expect("opens");
    assert_eq!(contents(&store, fid(3)), [3; BLOCK_LEN]);
    let error = store.read(fid(2), 0, &mut [0; BLOCK_LEN], 0).expect_err("unreadable");
    assert_eq!(error.status(), Status::EIO);
    store.flush_now().expect_err("not all can be written back");
    assert_eq!(contents(store.store(), fid(3)), [3; BLOCK_LEN]);
    store.close().expect("closed");
    drop(store);
    // The header of a batch.
    let (dir, device) = closed(3);
    device.order(Fault::UnreadableBlock(batch_of(2) / BLOCK));
    let found = survey(&device);
    assert_eq!((found.batches, found.lost_blocks, found.damage_count), (2, 2, 1), "{found:?}");
    assert!(open(dir.path(), &device, quiet()).is_err());
    let store = open(dir.path(), &device, NxdOptions { salvage: true, ..quiet() }).expect("opens");
    store.flush_now().expect("written back");
    for (object, byte) in [(1, 1), (2, 0), (3, 3)] {
        assert_eq!(contents(store.store(), fid(object)), [byte; BLOCK_LEN], "object {object}");
    }
}

#[test]
fn a_copy_of_the_superblock_that_cannot_be_read_is_damaged_and_a_dead_device_an_error() {
    let (dir, device) = closed(2);
    for at_device in [0, (4 << 20) - BLOCK] {
        device.order(Fault::UnreadableBlock(at_device / BLOCK));
        let damage = LogDamage::Superblock { at_device, error: nacre_ondisk::nxd::NxdError::Damaged };
        assert_eq!(survey(&device).damage, [damage]);
        let store = open(dir.path(), &device, quiet()).expect("opens");
        assert_eq!(contents(&store, fid(2)), [2; BLOCK_LEN]);
        store.close().expect("closed");
        drop(store);
        assert_eq!(survey(&device).damage, [], "it was written anew");
    }
    for block in 0..(4 << 20) / BLOCK {
        device.order(Fault::UnreadableBlock(block));
    }
    LogSurvey::of(&*device).expect_err("nothing can be read");
}

#[test]
fn all_but_what_is_damaged_is_written_back() {
    let (dir, device) = closed(3);
    let store = open(dir.path(), &device, quiet()).expect("opens");
    // Neighbours of the damaged data, which go to the disk with it.
    for at in 1..5u64 {
        store.write(fid(1), at * 2 * BLOCK, &[9; BLOCK_LEN]).expect("written");
    }
    device.flip_bit(batch_of(1) + BLOCK + 77, 1);
    assert_eq!(store.flush_now().expect_err("damaged").status(), Status::EIO);
    let below = contents(store.store(), fid(1));
    for at in 1..5 {
        assert_eq!(below[at * 2 * BLOCK_LEN..][..BLOCK_LEN], [9; BLOCK_LEN], "piece {at}");
    }
    assert_eq!(below[..BLOCK_LEN], [0; BLOCK_LEN]);
    for object in 2..=3u8 {
        assert_eq!(contents(store.store(), fid(object.into())), [object; BLOCK_LEN]);
    }
    assert_eq!(store.cache_stats().dirty, BLOCK, "only the damaged bytes are left");
    // The data that replaced them lets the tail move.
    store.write(fid(1), 0, &[7; BLOCK_LEN]).expect("written over it");
    store.flush_now().expect("written back");
    assert!(!store.cache_stats().is_needed);
    assert_eq!(contents(store.store(), fid(1))[..BLOCK_LEN], [7; BLOCK_LEN]);
}

#[test]
fn what_cannot_be_written_back_is_named_and_all_else_is_written_when_that_is_ordered() {
    let (dir, device) = closed(200);
    let store = open(dir.path(), &device, quiet()).expect("opens");
    // More than a round tolerates.
    for object in 1..=150u64 {
        device.order(Fault::UnreadableBlock(batch_of(object) / BLOCK + 1));
    }
    store.flush_now().expect_err("unreadable");
    let mut failed = Vec::new();
    store.flush_what_can_be(&mut |object, bytes, _| failed.push((object, bytes))).expect_err("unreadable");
    assert_eq!(failed, (1..=150).map(|object| (fid(object), 0..BLOCK)).collect::<Vec<_>>());
    assert_eq!(store.cache_stats().dirty, 150 * BLOCK);
    for object in 151..=200u8 {
        assert_eq!(contents(store.store(), fid(object.into())), [object; BLOCK_LEN]);
    }
}
