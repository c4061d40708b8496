//! Helpers for the tests of several stores.

use super::BlockStoreOptions;
use crate::meta::MetaStoreOptions;
use std::path::Path;

/// Returns options of a store on a device of 64 MiB without background work.
pub(crate) fn block_options() -> BlockStoreOptions {
    // Small logs, so that opening takes little time.
    let index = MetaStoreOptions {
        wal_segment_bytes: 2 << 20,
        overlay_bytes: 1 << 20,
        map_bytes: 1 << 30,
        reserve_bytes: 64 << 10,
        ..MetaStoreOptions::default()
    };
    BlockStoreOptions {
        create: true,
        size: 64 << 20,
        reserve_bytes: Some(0),
        commit_interval_ms: 0,
        index: Some(index),
        ..BlockStoreOptions::default()
    }
}

/// Copies a directory with its content.
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("made");
    for entry in std::fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("known").is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("copied")),
        }
    }
}
