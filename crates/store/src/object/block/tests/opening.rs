//! Creating and opening stores, and refusals.

use super::*;
use device::{AlignedBuffer, WriteOp};

fn message(result: Result<BlockStore>) -> String {
    match result {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    }
}

fn poke(device: &MemoryDevice, offset: u64, bytes: &[u8]) {
    let mut block = AlignedBuffer::zeroed(BLOCK as usize);
    let at = (offset % BLOCK) as usize;
    block[at..at + bytes.len()].copy_from_slice(bytes);
    device.write(&[WriteOp { offset: offset / BLOCK * BLOCK, data: &block }]).expect("written");
}

#[test]
fn a_device_with_a_signature_is_not_overwritten_unless_it_is_forced() {
    let signatures: &[(u64, &[u8], &str)] = &[
        (0, b"XFSB", "XFS"),
        (0x438, &[0x53, 0xef], "ext"),
        (0x10040, b"_BHRfS_M", "btrfs"),
        (0x200, b"LABELONE", "LVM"),
        (0xff6, b"SWAPSPACE2", "swap"),
        (0x1fe, &[0x55, 0xaa], "partition table"),
        (700_000, b"x", "unknown"),
        ((16 << 20) - 100, b"x", "unknown"),
    ];
    for (offset, magic, name) in signatures {
        let dir = tempfile::tempdir().expect("a directory");
        let device = Arc::new(MemoryDevice::new(16 << 20));
        poke(&device, *offset, magic);
        let writes = device.stats().writes;
        let text = message(BlockStore::open_with(dir.path(), options(), device.clone()));
        assert!(text.contains(name) && text.contains("nothing was overwritten"), "{text}");
        assert_eq!(device.stats().writes, writes, "{name}");
        let forced = BlockStoreOptions { force: true, ..options() };
        let store = BlockStore::open_with(dir.path(), forced, device).expect("forced");
        store.write(fid(1), 0, &[1; 10_000]).expect("written");
    }
}

#[test]
fn a_device_of_another_store_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let named = |label: &str| BlockStoreOptions { label: label.to_owned(), ..options() };
    let devices = [Arc::new(MemoryDevice::new(16 << 20)), Arc::new(MemoryDevice::new(16 << 20))];
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    drop(BlockStore::open_with(&one, named("a-OST0000"), devices[0].clone()).expect("made"));
    drop(BlockStore::open_with(&two, named("b-OST0000"), devices[1].clone()).expect("made"));
    let text = message(BlockStore::open_with(&one, named("a-OST0000"), devices[1].clone()));
    assert!(text.contains("belongs to target b-OST0000, not to a-OST0000"), "{text}");
    let text = message(BlockStore::open_with(&one, named("b-OST0000"), devices[0].clone()));
    assert!(text.contains("a-OST0000"), "{text}");
    let text = message(BlockStore::open_with(&dir.path().join("new"), named(""), devices[0].clone()));
    assert!(text.contains("an object store") && text.contains("nothing was overwritten"), "{text}");
    let third = Arc::new(MemoryDevice::new(16 << 20));
    drop(BlockStore::open_with(&dir.path().join("three"), named("a-OST0000"), third.clone()).expect("made"));
    let text = message(BlockStore::open_with(&one, named("a-OST0000"), third));
    assert!(text.contains("different stores"), "{text}");
    let empty = Arc::new(MemoryDevice::new(16 << 20));
    let text = message(BlockStore::open_with(&one, named(""), empty));
    assert!(text.contains("does not begin like a device of an object store"), "{text}");
}

#[test]
fn a_device_that_is_too_short_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("store");
    drop(BlockStore::open(&path, options()).expect("made"));
    let file = std::fs::OpenOptions::new().write(true).open(path.join("data")).expect("opens");
    file.set_len(32 << 20).expect("cut");
    let text = message(BlockStore::open(&path, options()));
    assert!(text.contains(&format!("{} bytes, but had {}", 32 << 20, 64 << 20)), "{text}");
    file.set_len(64 << 20).expect("grown");
    drop(BlockStore::open(&path, options()).expect("opens"));
    let small = Arc::new(MemoryDevice::new(64 << 10));
    let text = message(BlockStore::open_with(&dir.path().join("small"), options(), small));
    assert!(text.contains("less than"), "{text}");
}

#[test]
fn a_damaged_label_is_mended_from_its_copy() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let store = in_memory(dir.path(), &device, options());
    store.write(fid(1), 0, &[3; 50_000]).expect("written");
    drop(store);
    device.flip_bit(100, 0);
    let store = BlockStore::open_with(dir.path(), options(), device.clone()).expect("opens");
    assert_eq!(contents(&store, fid(1)), [3; 50_000]);
    drop(store);
    // And the copy alone is enough to detect that both are damaged.
    device.flip_bit(100, 0);
    device.flip_bit((16 << 20) - BLOCK + 9, 0);
    let text = message(BlockStore::open_with(dir.path(), options(), device.clone()));
    assert!(text.contains("damaged"), "{text}");
    device.flip_bit((16 << 20) - BLOCK + 9, 0);
    device.flip_bit(100, 0);
    drop(BlockStore::open_with(dir.path(), options(), device).expect("whole again"));
}

#[test]
fn a_label_of_another_version_is_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    drop(in_memory(dir.path(), &device, options()));
    device.flip_bit(8, 1);
    let text = message(BlockStore::open_with(dir.path(), options(), device));
    assert!(text.contains("format 3"), "{text}");
}

#[test]
fn directories_that_hold_something_else_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("mine"), "data").expect("written");
    let text = message(BlockStore::open(dir.path(), options()));
    assert!(text.contains("not empty"), "{text}");
    let none = BlockStoreOptions { create: false, ..options() };
    let text = message(BlockStore::open(&dir.path().join("none"), none.clone()));
    assert!(text.contains("no object store"), "{text}");
    let store = dir.path().join("store");
    let open = BlockStore::open(&store, options()).expect("made");
    assert!(is_block_store(&store) && !is_block_store(dir.path()));
    let text = message(BlockStore::open(&store, none));
    assert!(text.contains("in use"), "{text}");
    drop(open);
    // The other back end recognises that it is not its store.
    let file = crate::object::FileStore::open(&store, crate::object::FileStoreOptions::create());
    assert!(file.is_err_and(|error| error.to_string().contains("does not begin like")));
}

#[test]
fn a_device_elsewhere_is_remembered() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = dir.path().join("elsewhere");
    let path = dir.path().join("store");
    let named = BlockStoreOptions { device: Some(device.clone()), ..options() };
    let store = BlockStore::open(&path, named).expect("made");
    store.write(fid(1), 0, &[3; 50_000]).expect("written");
    drop(store);
    assert!(device.exists() && !path.join("data").exists());
    let store = BlockStore::open(&path, BlockStoreOptions { create: false, ..options() }).expect("opens");
    assert_eq!(contents(&store, fid(1)), [3; 50_000]);
    let other = dir.path().join("other");
    let text = message(BlockStore::open(&other, BlockStoreOptions { device: Some(device), ..options() }));
    assert!(text.contains("cannot be used"), "{text}");
}

/// Creates a store on a file of its own, closed, with an object in it; returns the path of the file.
fn stopped(dir: &Path) -> PathBuf {
    let store = BlockStore::open(dir, options()).expect("made");
    store.reserve(fid(1).seq, 10).expect("reserved");
    store.write(fid(1), 0, &[7; 1 << 20]).expect("written");
    store.close().expect("closed");
    dir.join("data")
}

fn set_size(path: &Path, bytes: u64) {
    std::fs::OpenOptions::new().write(true).open(path).expect("there").set_len(bytes).expect("sized");
}

/// Opens a store whose device has `bytes`, fills it to its end and checks it.
fn fills_all_of(dir: &Path, bytes: u64, context: &str) {
    let store = BlockStore::open(dir, options()).expect(context);
    let space = store.space().expect("told");
    assert_eq!(space.total, bytes - 2 * BLOCK, "{context}: less the label and its copy");
    assert_eq!(contents(&store, fid(1)), vec![7; 1 << 20], "{context}");
    let mut end = 0;
    while let Ok(written @ 1..) = store.write(fid(2), end, &[9; 1 << 20]) {
        end += written as u64;
    }
    assert!(end + (3 << 20) > space.available, "{context}: {end} of {space:?}");
    assert_clean(&store, context);
    store.close().expect("closed");
    drop(store);
    let store = BlockStore::open(dir, options()).expect(context);
    assert_eq!(contents(&store, fid(2)), vec![9; end as usize], "{context}");
    assert_clean(&store, context);
    store.destroy(&[fid(2)]).expect("removed");
    store.close().expect("closed");
}

const GROWN: u64 = 96 << 20;

#[test]
fn a_device_that_grew_is_used_to_its_new_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = stopped(dir.path());
    // Not a multiple of a block: bytes after the last whole block are unused.
    set_size(&device, GROWN + 777);
    fills_all_of(dir.path(), GROWN, "grown");
    set_size(&device, 2 * GROWN);
    fills_all_of(dir.path(), 2 * GROWN, "grown again");
}

#[test]
fn growing_that_was_broken_off_is_done_by_the_next_opening() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = stopped(dir.path());
    let superblock = dir.path().join("superblock");
    let first_block = |device: &Path| std::fs::read(device).expect("read")[..BLOCK as usize].to_vec();
    let put = |block: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&device).expect("there");
        file.write_all_at(block, 0).expect("written");
    };
    let (old_label, old_block) = (std::fs::read(&superblock).expect("read"), first_block(&device));
    set_size(&device, GROWN);
    BlockStore::open(dir.path(), options()).and_then(|store| store.close()).expect("grown");
    let new_block = first_block(&device);
    assert_ne!(old_block, new_block);
    // A power cut after the write of the copy at the new end.
    put(&old_block);
    std::fs::write(&superblock, &old_label).expect("written");
    fills_all_of(dir.path(), GROWN, "after the copy");
    assert_eq!(first_block(&device), new_block);
    // After the directory was updated.
    put(&old_block);
    fills_all_of(dir.path(), GROWN, "after the directory");
    assert_eq!(first_block(&device), new_block);
    // And during the write of block 0.
    put(&[0xee; BLOCK as usize]);
    fills_all_of(dir.path(), GROWN, "in the middle of block 0");
    assert_eq!(first_block(&device), new_block);
}

#[test]
fn a_device_that_shrank_is_refused_whatever_its_label_says() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = stopped(dir.path());
    let old_block = std::fs::read(&device).expect("read")[..BLOCK as usize].to_vec();
    set_size(&device, GROWN);
    BlockStore::open(dir.path(), options()).and_then(|store| store.close()).expect("grown");
    let refused = |context: &str| {
        let error = BlockStore::open(dir.path(), options()).err().expect(context).to_string();
        assert!(error.contains(&format!("but had {GROWN} when")), "{context}: {error}");
    };
    set_size(&device, GROWN - BLOCK);
    refused("a block less");
    // The label from before the growth is valid, but the size in the directory differs.
    set_size(&device, 64 << 20);
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(&device).expect("there"),
        &old_block,
        0,
    )
    .expect("written");
    refused("an old label");
    set_size(&device, GROWN);
    fills_all_of(dir.path(), GROWN, "long enough again");
}

/// Objects of an MDT have the FIDs of files: none of them is an orphan because its id was not allocated.
#[test]
fn a_store_that_gives_no_ids_takes_any_and_takes_none_for_an_orphan() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = Arc::new(MemoryDevice::new(16 << 20));
    let named = BlockStoreOptions { gives_ids: false, ..options() };
    let store = BlockStore::open_with(dir.path(), named, device.clone()).expect("made");
    let file = Fid::new(0x2_0000_0401, 9, 0);
    store.write(file, 0, &[1; 10_000]).expect("written");
    assert!(matches!(store.abilities().ids_of(file.seq).err(), Some(ObjectError::SequenceFull(_))));
    assert_eq!(store.attr(file).expect("there").size, 10_000);
    let report = store.verify(true, &mut |_| {}).expect("readable");
    assert!(report.problems.is_empty() && report.sequences == 0, "{:?}", report.problems);
    drop(store);
    let store = BlockStore::open_with(dir.path(), options(), device).expect("opened");
    let report = store.verify(false, &mut |_| {}).expect("readable");
    assert_eq!(report.problem_count, 1, "whoever gives ids knows of all: {:?}", report.problems);
}
