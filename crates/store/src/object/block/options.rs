//! Settings of a block store.

use super::DefragSettings;
use crate::meta::MetaStoreOptions;
use std::path::PathBuf;

/// Settings of a [`BlockStore`](super::BlockStore); all may differ from one opening to the next, except where noted.
#[derive(Clone, Debug)]
pub struct BlockStoreOptions {
    /// Make the store if the directory is missing or empty.
    pub create: bool,
    /// Open the store for looking: what opening it would put right is put right in memory, and nothing on disk changes.
    pub read_only: bool,
    /// Name of the target, such as `nacre-OST0001`: printable ASCII, up to 48 bytes. Stored when the store is made,
    /// compared when it is opened. Empty: any.
    pub label: String,
    /// The device when the store is made: a raw one, or a file. `None`: a file in the directory. Remembered.
    pub device: Option<PathBuf>,
    /// Size in bytes of the file that is made; what there is already keeps its size.
    pub size: u64,
    /// Objects have ids that the store has given out. If not, whoever writes them names them.
    pub gives_ids: bool,
    /// Overwrite what is on the device when the store is made.
    pub force: bool,
    /// Space that writes must leave free, in bytes; the default depends on the size of the device, as in a file store.
    pub reserve_bytes: Option<u64>,
    /// Longest time in milliseconds that a change stays without durability if nobody asks for it; 0 switches that off.
    pub commit_interval_ms: u64,
    /// Maps of objects, of 256 KiB each, that are kept in memory.
    pub maps_max: usize,
    /// Bytes per second that are read in the background to find damage; 0 for none.
    pub scrub_bytes_per_second: u64,
    /// Memory in bytes for what is read ahead of streams, 2 MiB each; 0 for none. Given back when nobody reads.
    pub read_ahead_bytes: u64,
    /// What is moved in the background so that objects lie in few pieces.
    pub defrag: DefragSettings,
    /// Space in bytes that changes must leave free where the index lies; `None` chooses.
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
            // As Lustre's back ends.
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
