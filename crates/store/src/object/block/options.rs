//! Settings of a block store.

use super::DefragSettings;
use crate::meta::MetaStoreOptions;
use std::path::PathBuf;

/// Settings of a [`BlockStore`](super::BlockStore); all may differ from one opening to the next, except where
/// noted.
#[derive(Clone, Debug)]
pub struct BlockStoreOptions {
    /// Create the store if the directory is missing or empty.
    pub create: bool,
    /// Open the store read-only: repairs that opening makes stay in memory, and nothing on disk changes.
    pub read_only: bool,
    /// Name of the target, such as `nacre-OST0001`: printable ASCII, up to 48 bytes. Stored when the store is
    /// created, compared when it is opened. Empty: any.
    pub label: String,
    /// Path of the device of a new store: a raw device, or a file. `None`: a file in the directory. Recorded
    /// in the directory.
    pub device: Option<PathBuf>,
    /// Size in bytes of a file that is created; an existing one keeps its size.
    pub size: u64,
    /// The store allocates the ids of objects. If not, writers choose them.
    pub gives_ids: bool,
    /// Overwrite data on the device when the store is created.
    pub force: bool,
    /// Space that writes must leave free, in bytes; the default depends on the size of the device, as in a
    /// file store.
    pub reserve_bytes: Option<u64>,
    /// Longest time in milliseconds that a change stays volatile if no caller syncs; 0 switches the periodic
    /// sync off.
    pub commit_interval_ms: u64,
    /// Maximum maps of objects in memory, each of 256 KiB of data.
    pub maps_max: usize,
    /// Scrub rate in bytes per second; 0 for none.
    pub scrub_bytes_per_second: u64,
    /// Memory in bytes for read-ahead of streams, 2 MiB each; 0 for none. Released while there are no reads.
    pub read_ahead_bytes: u64,
    /// Settings of the background defragmenter.
    pub defrag: DefragSettings,
    /// Space in bytes that changes must leave free on the file system of the index; `None` chooses.
    pub index_reserve_bytes: Option<u64>,
    /// Settings of the index; `None` chooses.
    pub index: Option<MetaStoreOptions>,
}

impl Default for BlockStoreOptions {
    fn default() -> Self {
        BlockStoreOptions {
            create: false,
            read_only: false,
            label: String::new(),
            device: None,
            size: 0,
            gives_ids: true,
            force: false,
            reserve_bytes: None,
            // As in Lustre's back ends.
            commit_interval_ms: 5000,
            // About 1.3 KiB each: 40 MiB for 8 GiB of objects in use.
            maps_max: 32 << 10,
            scrub_bytes_per_second: 0,
            read_ahead_bytes: 16 << 20,
            defrag: DefragSettings::default(),
            index_reserve_bytes: None,
            index: None,
        }
    }
}
