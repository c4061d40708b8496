//! A disk that fills up: refusals change nothing, nothing is lost, and deletes free space.

use std::path::Path;

use super::{Model, contents, tiny_options};
use crate::meta::{Batch, MetaError, MetaStore, MetaStoreOptions, Table};

/// A tmpfs of its own, unmounted when dropped. `None` where the test may not mount.
struct TinyDisk(tempfile::TempDir);

impl TinyDisk {
    fn new(bytes: u64) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = std::ffi::CString::new(dir.path().to_str().unwrap()).unwrap();
        let data = std::ffi::CString::new(format!("size={bytes}")).unwrap();
        let kind = c"tmpfs".as_ptr();
        // SAFETY: all pointers are to C strings that live across the call.
        let result = unsafe { libc::mount(kind, path.as_ptr(), kind, 0, data.as_ptr().cast()) };
        if result == 0 {
            return Some(TinyDisk(dir));
        }
        eprintln!("skipped: mounting a tmpfs needs more rights: {}", std::io::Error::last_os_error());
        None
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.0.path().to_str().unwrap()).unwrap();
        // SAFETY: the pointer is to a C string that lives across the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn options() -> MetaStoreOptions {
    MetaStoreOptions {
        wal_segment_bytes: 256 << 10,
        overlay_bytes: 128 << 10,
        reserve_bytes: 1 << 20,
        ..tiny_options()
    }
}

/// Commits new entries until the store refuses; returns the key of the next.
fn fill(store: &MetaStore, model: &mut Model, mut next: u32) -> u32 {
    let (mut batch, start) = (Batch::new(), next);
    loop {
        batch.clear();
        let key = next.to_be_bytes().to_vec();
        let value = vec![next as u8; 300];
        batch.put(Table(1), &key, &value);
        let before = store.last_transno();
        match store.commit(&batch) {
            Ok(_) => _ = model.insert((1, key), value),
            Err(MetaError::NoSpace) => {
                assert_eq!(store.last_transno(), before);
                return next;
            }
            Err(error) => panic!("{error}"),
        }
        next += 1;
        assert!(next - start < 100_000, "the disk never fills");
    }
}

#[test]
fn full_disk_refuses_without_change_and_loses_nothing() {
    let Some(disk) = TinyDisk::new(6 << 20) else { return };
    let dir = disk.path().join("store");
    let mut model = Model::new();
    {
        let store = MetaStore::open(&dir, options()).unwrap();
        let next = fill(&store, &mut model, 0);
        assert!(next > 3000, "{next} entries before the disk was full");
        assert!(store.stats().is_full && !store.stats().has_failed);
        assert_eq!(contents(&store), model);
        store.sync(store.last_transno()).unwrap();
    }
    let store = MetaStore::open(&dir, options()).unwrap();
    assert_eq!(contents(&store), model);
}

#[test]
fn deletes_go_on_when_the_disk_is_full_and_bring_it_back() {
    let Some(disk) = TinyDisk::new(6 << 20) else { return };
    let store = MetaStore::open(&disk.path().join("store"), options()).unwrap();
    let mut model = Model::new();
    let next = fill(&store, &mut model, 0);
    let mut batch = Batch::new();
    for key in 0..next / 2 {
        batch.clear();
        batch.delete(Table(1), &key.to_be_bytes());
        batch.set_releasing(true);
        // A checkpoint that is being retried may leave no space for a moment.
        while let Err(error) = store.commit(&batch) {
            assert!(matches!(error, MetaError::NoSpace), "{error}");
            store.checkpoint().unwrap();
        }
        model.remove(&(1, key.to_be_bytes().to_vec()));
    }
    store.checkpoint().unwrap();
    assert_eq!(contents(&store), model);
    let more = fill(&store, &mut model, next);
    assert!(
        more - next > next / 8,
        "the space of {} deleted entries took {} new ones",
        next / 2,
        more - next
    );
    assert_eq!(contents(&store), model);
}

#[test]
fn space_freed_by_others_is_used_again() {
    let Some(disk) = TinyDisk::new(8 << 20) else { return };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1u8; 3 << 20]).unwrap();
    let store = MetaStore::open(&disk.path().join("store"), options()).unwrap();
    let mut model = Model::new();
    let next = fill(&store, &mut model, 0);
    assert!(store.stats().is_full);
    std::fs::remove_file(&ballast).unwrap();
    store.checkpoint().unwrap();
    assert!(!store.stats().is_full);
    let more = fill(&store, &mut model, next);
    assert!(more - next > 1000, "{next} then {more}");
    assert_eq!(contents(&store), model);
}

#[test]
fn creation_on_a_full_disk_is_refused_and_can_be_repeated() {
    let Some(disk) = TinyDisk::new(3 << 20) else { return };
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![1u8; (3 << 20) - (300 << 10)]).unwrap();
    let dir = disk.path().join("store");
    assert!(matches!(MetaStore::open(&dir, options()), Err(MetaError::NoSpace)));
    std::fs::remove_file(&ballast).unwrap();
    MetaStore::open(&dir, options()).unwrap();
}

#[test]
fn pages_of_what_was_deleted_count_as_free_once_it_has_moved_to_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let store = MetaStore::open(&dir.path().join("store"), options()).unwrap();
    let mut batch = Batch::new();
    let mut change = |is_there: bool| {
        for key in 0..5_000u32 {
            batch.clear();
            match is_there {
                true => batch.put(Table(1), &key.to_be_bytes(), &[7; 300]),
                false => batch.delete(Table(1), &key.to_be_bytes()),
            }
            store.commit(&batch).unwrap();
        }
    };
    change(true);
    store.checkpoint().unwrap();
    assert!(store.free_inside() < 500_000, "{} bytes", store.free_inside());
    change(false);
    let deadline = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(60);
    while store.free_inside() < 1_500_000 {
        assert!(nacre_env::clock::Instant::now() < deadline, "{} bytes", store.free_inside());
        store.begin_checkpoint();
        nacre_env::thread::yield_now();
    }
}

#[test]
fn a_full_store_that_was_emptied_takes_entries_without_a_checkpoint_being_asked_for() {
    let Some(disk) = TinyDisk::new(6 << 20) else { return };
    let roomy = MetaStoreOptions { overlay_bytes: 2 << 20, ..options() };
    let store = MetaStore::open(&disk.path().join("store"), roomy).unwrap();
    let mut model = Model::new();
    let first = fill(&store, &mut model, 0);
    let mut batch = Batch::new();
    for key in 0..first {
        batch.clear();
        batch.delete(Table(1), &key.to_be_bytes());
        batch.set_releasing(true);
        store.commit(&batch).unwrap();
    }
    let deadline = nacre_env::clock::Instant::now() + std::time::Duration::from_secs(60);
    let mut count = 0;
    while count < first / 10 * 8 {
        assert!(nacre_env::clock::Instant::now() < deadline, "{count} of {first} entries");
        count += fill(&store, &mut model, count) - count;
        nacre_env::thread::yield_now();
    }
}
