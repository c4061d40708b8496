//! The suite that every store passes, on a file and on memory.

use super::device::MemoryDevice;
use super::*;
use crate::object::{ObjectStore, conformance};
use std::collections::HashMap;

pub(super) fn options() -> BlockStoreOptions {
    BlockStoreOptions {
        create: true,
        size: 64 << 20,
        reserve_bytes: Some(0),
        commit_interval_ms: 0,
        ..BlockStoreOptions::default()
    }
}

#[test]
fn a_store_on_a_file_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    conformance::run(dir.path(), &|dir| Box::new(BlockStore::open(dir, options()).expect("opens")));
}

#[test]
fn a_store_in_memory_passes_the_conformance_suite() {
    let dir = tempfile::tempdir().expect("a directory");
    let devices: Mutex<HashMap<PathBuf, Arc<MemoryDevice>>> = Mutex::default();
    conformance::run(dir.path(), &|dir| {
        let device = devices
            .lock()
            .entry(dir.to_owned())
            .or_insert_with(|| Arc::new(MemoryDevice::new(64 << 20)))
            .clone();
        Box::new(BlockStore::open_with(dir, options(), device).expect("opens")) as Box<dyn ObjectStore>
    });
}
