//! The suite that every store passes, on a file and on memory; crashes, damage, full devices, opening.

mod ageing;
mod ahead;
mod crash;
mod damage;
mod defrag;
mod full;
mod inspect;
mod opening;

use super::device::MemoryDevice;
use super::*;
use crate::object::ReadRequest;
use crate::object::in_memory::tests::{memory_dir, waits_told};
use crate::object::testing::{block_options as options, copy_dir};
use crate::object::{Extents, Ids, ObjectStore, Trim, conformance};
use nacre_env::sync::Mutex;
use nacre_types::Fid;
use std::collections::HashMap;
use std::path::PathBuf;

fn fid(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

/// Opens a store on a device in memory, with the ids of its objects reserved.
fn in_memory(dir: &Path, device: &Arc<MemoryDevice>, options: BlockStoreOptions) -> BlockStore {
    let store = BlockStore::open_with(dir, options, device.clone()).expect("opens");
    store.reserve(fid(1).seq, 100_000).expect("reserved");
    store
}

fn assert_clean(store: &BlockStore, context: &str) {
    let report = store.verify(false, &mut |_| {}).expect("verify runs");
    assert!(report.is_clean(), "{context}: {report:?}");
}

fn contents(store: &BlockStore, object: Fid) -> Vec<u8> {
    let size = store.attr(object).expect("attr").size as usize;
    let mut buffer = vec![0xee; size];
    assert_eq!(store.read(object, 0, &mut buffer, 0).expect("read"), size);
    buffer
}

#[test]
fn a_store_on_a_file_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    conformance::run(dir.path(), &|dir| Box::new(BlockStore::open(dir, options()).expect("opens")));
}

#[test]
fn a_store_on_a_file_in_memory_passes_the_conformance_suite() {
    let Some(dir) = memory_dir() else { return };
    conformance::run(dir.path(), &|dir| Box::new(BlockStore::open(dir, options()).expect("opens")));
}

#[test]
fn reads_of_a_file_in_memory_are_no_waits_unless_they_are_long_and_others_are() {
    let told = |dir: &Path| {
        let store = BlockStore::open(dir, options()).expect("opens");
        store.write(fid(1), 0, &vec![7; 2 << 20]).expect("written");
        let mut buffer = vec![0; 1 << 20];
        let alone = waits_told(|| {
            assert_eq!(store.read(fid(1), 4096, &mut buffer[..4096], 0).expect("read"), 4096);
        });
        let many = waits_told(|| {
            let mut requests: Vec<ReadRequest<'_>> = buffer
                .chunks_mut(4096)
                .enumerate()
                .map(|(at, buffer)| ReadRequest::new(fid(1), at as u64 * 8192, buffer))
                .take(32)
                .collect();
            store.read_many(&mut requests).expect("read");
        });
        let long = waits_told(|| {
            assert_eq!(store.read(fid(1), 0, &mut buffer, 0).expect("read"), 1 << 20);
        });
        assert!(buffer.iter().all(|byte| *byte == 7));
        (alone, many, long > 0)
    };
    let dir = tempfile::tempdir().expect("a directory");
    let on_disk = memory_dir().is_none_or(|memory| memory.path().parent() != dir.path().parent());
    if on_disk {
        assert_eq!(told(dir.path()), (1, 1, true));
    }
    let Some(dir) = memory_dir() else { return };
    assert_eq!(told(dir.path()), (0, 0, true));
}

#[test]
fn a_store_in_memory_that_remembers_little_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    let devices: Mutex<HashMap<PathBuf, Arc<MemoryDevice>>> = Mutex::default();
    conformance::run(dir.path(), &|dir| {
        let new = || Arc::new(MemoryDevice::new(64 << 20));
        let device = devices.lock().entry(dir.to_owned()).or_insert_with(new).clone();
        let options = BlockStoreOptions { maps_max: 1, ..options() };
        Box::new(BlockStore::open_with(dir, options, device).expect("opens")) as Box<dyn ObjectStore>
    });
}

#[test]
fn objects_have_a_largest_size() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = in_memory(dir.path(), &Arc::new(MemoryDevice::new(16 << 20)), options());
    let max = (1u64 << 44) - BLOCK;
    let status = |result: Result<usize>| result.expect_err("refused").status();
    assert_eq!(status(store.write(fid(1), max - 1, b"ab")), nacre_types::Status::EFBIG);
    assert_eq!(status(store.truncate(fid(1), max + 1).map(|_| 0)), nacre_types::Status::EFBIG);
    assert_eq!(store.attr(fid(1)).expect("attr").mtime, None);
    store.write(fid(1), max - 2, b"ab").expect("fits");
    let mut end = [0; 9];
    assert_eq!(store.read(fid(1), max - 3, &mut end, 0).expect("read"), 3);
    assert_eq!(&end[..3], b"\0ab");
    let how = crate::object::Fallocate::Punch;
    store.fallocate(fid(1), how, 4096, i64::MAX as u64 - 4096).expect("more than there can be");
    assert_eq!(store.attr(fid(1)).expect("attr").blocks, 0);
    assert_clean(&store, "punched");
}

#[test]
fn many_reads_at_once_give_what_single_ones_give() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlockStore::open(dir.path(), options()).expect("opens");
    let mut random = fastrand::Rng::with_seed(3);
    for oid in 1..20 {
        let data: Vec<u8> = (0..random.u64(..300_000)).map(|_| random.u8(..)).collect();
        store.write(fid(oid), random.u64(..3) * 5000, &data).expect("written");
    }
    let mut buffers = vec![vec![0u8; 8192]; 200];
    let mut requests: Vec<ReadRequest<'_>> = buffers
        .iter_mut()
        .map(|buffer| {
            let len = if random.bool() { 4096 } else { random.usize(..8192) };
            let offset = random.u64(..70) * if random.bool() { 4096 } else { 3000 };
            let object = fid(random.u32(..22));
            ReadRequest::new(object, offset, &mut buffer[..len])
        })
        .collect();
    store.read_many(&mut requests).expect("read");
    for request in &requests {
        let mut single = vec![1; request.buffer.len()];
        let read = store.read(request.object, request.offset, &mut single, 0).expect("read");
        assert_eq!(read, request.read);
        assert!(single[..read] == request.buffer[..read]);
    }
}

#[test]
fn objects_that_are_written_side_by_side_lie_in_few_pieces() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let store = in_memory(dir.path(), &device, options());
    for at in 0..16 {
        for oid in 1..=8 {
            store.write(fid(oid), at << 20, &vec![oid as u8; 1 << 20]).expect("written");
        }
    }
    for oid in 1..=8 {
        let extents = store.objects.extents(fid(oid)).expect("read").expect("known");
        assert!(extents.len() <= 6, "object {oid} lies in {} pieces", extents.len());
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), 16 << 20);
        assert!(extents.is_sorted_by_key(|extent| extent.logical));
    }
    let free = store.objects.volume().space().report();
    assert_eq!(free.classes.iter().map(|class| class.bytes).sum::<u64>(), free.bytes);
    assert!(free.largest >= 64 << 20);
}

fn trim_all(store: &BlockStore) {
    let mut from = Some(0);
    while let Some(at) = from {
        from = store.objects.volume().trim(at, u64::MAX).expect("trimmed").next;
    }
}

#[test]
fn trimming_gives_the_space_of_destroyed_objects_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let store = in_memory(dir.path(), &device, options());
    trim_all(&store);
    store.write(fid(1), 0, &vec![1; 8 << 20]).expect("written");
    store.write(fid(2), 0, &vec![2; 8 << 20]).expect("written");
    store.sync_all().expect("synced");
    assert!(device.used_bytes() >= 16 << 20);
    store.destroy(&[fid(1)]).expect("destroyed");
    store.sync_all().expect("synced");
    assert!(store.objects.volume().untrimmed() >= 8 << 20);
    let (mut told, mut from) = (0, Some(0));
    while let Some(at) = from {
        let trimmed = store.objects.volume().trim(at, 1 << 20).expect("trimmed");
        assert!(trimmed.bytes <= 1 << 20 && trimmed.extents.is_some_and(|extents| extents > 0));
        told += trimmed.bytes;
        from = trimmed.next;
    }
    assert!(told >= 8 << 20, "{told}");
    assert_eq!(store.objects.volume().untrimmed(), 0);
    assert!(device.used_bytes() < 9 << 20, "{}", device.used_bytes());
    assert_eq!(contents(&store, fid(2)), vec![2; 8 << 20]);
    assert_clean(&store, "trimmed");
    device.order(device::Fault::NoDiscard);
    store.destroy(&[fid(2)]).expect("destroyed");
    store.sync_all().expect("synced");
    let untrimmed = store.objects.volume().untrimmed();
    let refused = store.objects.volume().trim(0, u64::MAX).expect_err("refused");
    assert_eq!(refused.status(), nacre_types::Status::EOPNOTSUPP);
    assert_eq!(
        refused.to_string(),
        "memory cannot be trimmed: it, or what lies below it, has no way to give space back"
    );
    assert_eq!(store.objects.volume().untrimmed(), untrimmed);
    assert_clean(&store, "what cannot be told is free all the same");
}
