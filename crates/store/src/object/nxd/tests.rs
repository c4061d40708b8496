//! The suite that every store passes, over both back ends; write-back, pairing, faults, crashes.

mod again;
mod crash;
mod damage;
mod trouble;

use super::*;
use crate::object::block::device::{Fault, MemoryDevice};
use crate::object::testing::{block_options, copy_dir};
use crate::object::{BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, Ids, conformance};

fn fid(oid: u32) -> Fid {
    Fid::ost_object(0, oid)
}

/// No write-back in the background, and no stream bypasses the cache.
fn quiet() -> NxdOptions {
    let settings = NxdSettings {
        high_percent: 95,
        idle_ms: u64::MAX,
        stream_writes: 0,
        full_wait_ms: 60_000,
        ..NxdSettings::default()
    };
    NxdOptions { settings, ..NxdOptions::default() }
}

/// Flash devices by the directory of their store: they outlive a closed store.
#[derive(Default)]
struct Devices(Mutex<HashMap<PathBuf, Arc<MemoryDevice>>>);

impl Devices {
    fn get(&self, dir: &Path, size: u64) -> Arc<MemoryDevice> {
        self.0.lock().entry(dir.to_owned()).or_insert_with(|| Arc::new(MemoryDevice::new(size))).clone()
    }
}

fn file_store(dir: &Path) -> Arc<dyn ObjectStore> {
    let options = FileStoreOptions { create: true, reserve_bytes: Some(0), ..FileStoreOptions::default() };
    Arc::new(FileStore::open(dir, options).expect("opens"))
}

fn block_store(dir: &Path) -> Arc<dyn ObjectStore> {
    Arc::new(BlockStore::open(dir, block_options()).expect("opens"))
}

/// Opens a block store with a cache of `size` bytes.
fn in_memory(dir: &Path, flash: &Arc<MemoryDevice>, options: &NxdOptions) -> Nxd {
    let store = block_store(dir);
    ids(&*store).reserve(fid(1).seq, 1000).expect("reserved");
    Nxd::open(dir, store, flash.clone(), options).expect("opens")
}

fn ids(store: &dyn ObjectStore) -> &dyn Ids {
    store.abilities().ids.expect("it gives out ids")
}

fn contents(store: &dyn ObjectStore, object: Fid) -> Vec<u8> {
    let size = store.attr(object).expect("attr").size as usize;
    let mut buffer = vec![0xee; size];
    assert_eq!(store.read(object, 0, &mut buffer, 0).expect("read"), size);
    buffer
}

fn assert_clean(store: &dyn ObjectStore, context: &str) {
    let report = store.verify(false, &mut |_| {}).expect("verify runs");
    assert!(report.is_clean(), "{context}: {report:?}");
}

fn conforms(base: fn(&Path) -> Arc<dyn ObjectStore>, size: u64, options: NxdOptions) {
    let dir = tempfile::tempdir().expect("a directory");
    let devices = Devices::default();
    conformance::run(dir.path(), &|dir| {
        let store = base(dir);
        Box::new(Nxd::open(dir, store, devices.get(dir, size), &options).expect("opens"))
    });
}

#[test]
fn a_file_store_with_a_cache_passes_the_conformance_suite() {
    conforms(file_store, 16 << 20, quiet());
}

#[test]
fn a_block_store_with_a_cache_passes_the_conformance_suite() {
    conforms(block_store, 16 << 20, quiet());
}

#[test]
fn a_store_with_a_small_cache_that_is_always_written_back_passes_the_conformance_suite() {
    let mut options = quiet();
    (options.settings.high_percent, options.settings.low_percent) = (2, 0);
    conforms(block_store, 1 << 20, options);
    conforms(file_store, 1 << 20, options);
}
