//! Settings of a file store.

use crate::meta::MetaStoreOptions;
use crate::object::CachePolicy;

/// Transfers that bypass the page cache (`O_DIRECT`), if their offset and length are multiples of 4096 and
/// their memory has the alignment that the file system needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectIo {
    /// No transfer: for disks that are much slower than memory.
    Never,
    /// Large writes; reads go through the cache.
    LargeWrites,
    /// All transfers.
    Always,
}

/// Settings of a [`FileStore`](super::FileStore); all may differ from one opening to the next.
#[derive(Clone, Debug)]
pub struct FileStoreOptions {
    /// Create the store if the directory is missing or empty.
    pub create: bool,
    /// Open the store read-only: nothing on disk changes, and changes are refused. Several processes may open
    /// it so at the same time.
    pub read_only: bool,
    /// Name of the target, such as `nacre-OST0001`: printable ASCII, up to 48 bytes. Stored when the store is
    /// created, compared when it is opened. Empty: any.
    pub label: String,
    /// Transfers that bypass the page cache.
    pub direct: DirectIo,
    /// Least bytes of a large write, for [`DirectIo::LargeWrites`].
    pub direct_write_min: usize,
    /// Space of the file system that writes must leave free, in bytes; the default depends on its size, see
    /// [`default_reserve`].
    pub reserve_bytes: Option<u64>,
    /// Stores on the same local file system, this one included. Each reports a share of the file system's
    /// space, so that the sum is right.
    pub sharers: u32,
    /// Objects that may be open at once; limited to a quarter of the descriptors that the process may have.
    pub open_files_max: usize,
    /// Bytes of a stream of writes after which their write-out is started, so that a later sync has little
    /// left to write. 0 leaves it to the kernel.
    pub write_out_bytes: u64,
    /// Maximum bytes reserved ahead of a stream of writes, on file systems where that keeps streams apart
    /// (ext4, xfs, btrfs); 0 for none.
    pub ahead_max_bytes: u64,
    /// Reserve space on any file system.
    pub ahead_everywhere: bool,
    /// Files that are created in advance, so that new objects need not create theirs; 0 for none.
    pub spare_files: u32,
    /// Create a new store with checksums of data; no effect on an existing one.
    pub checksums: bool,
    /// Age in milliseconds at which the checksums of written data are recorded, which needs a sync of the
    /// object.
    pub settle_ms: u64,
    /// Settings of the index; `None` chooses by the size of the file system.
    pub index: Option<MetaStoreOptions>,
}

/// Reads of this size or more bypass the cache: 8 MiB, as in Lustre.
const READ_MAX_BYTES: u64 = 8 << 20;

impl FileStoreOptions {
    /// Returns the initial cache policy of a store.
    pub(super) fn cache_policy(&self) -> CachePolicy {
        let usual = CachePolicy { read_max_bytes: READ_MAX_BYTES, ..CachePolicy::ALL };
        match self.direct {
            DirectIo::Never => CachePolicy::ALL,
            DirectIo::LargeWrites => CachePolicy { write_max_bytes: self.direct_write_min as u64, ..usual },
            DirectIo::Always => CachePolicy { read: false, write: false, ..usual },
        }
    }
}

impl Default for FileStoreOptions {
    fn default() -> Self {
        FileStoreOptions {
            create: false,
            read_only: false,
            label: String::new(),
            direct: DirectIo::LargeWrites,
            direct_write_min: 512 << 10,
            reserve_bytes: None,
            sharers: 1,
            open_files_max: 8192,
            // Measured (2 CPUs, virtual disk): without it 1 GiB + fsync runs at 0.2-0.3 GB/s because the
            // kernel throttles the writer; at 1, 4, 16 and 32 MiB at 1.4-2.6, 2.0-2.9, 2.1-2.4 and 1.9-2.6
            // GB/s, O_DIRECT 1.9-2.4 GB/s.
            write_out_bytes: 4 << 20,
            ahead_max_bytes: 64 << 20,
            ahead_everywhere: false,
            // A file in advance costs an inode; creating one costs a new object 10-30 us (ext4).
            spare_files: 1024,
            checksums: false,
            settle_ms: 2000,
            index: None,
        }
    }
}

impl FileStoreOptions {
    /// Returns the defaults, with creation of a missing store.
    pub fn create() -> Self {
        FileStoreOptions { create: true, ..Default::default() }
    }
}

/// Size of a file system in bytes below which the index uses little: its logs would fill a large part of it.
const SMALL_TOTAL: u64 = 1 << 30;

/// Returns the settings of the index for a file system of `total` bytes.
pub(super) fn default_index(total: u64) -> MetaStoreOptions {
    let small = MetaStoreOptions::small();
    if total >= SMALL_TOTAL {
        return small;
    }
    MetaStoreOptions {
        wal_segment_bytes: 1 << 20,
        overlay_bytes: 512 << 10,
        reserve_bytes: 256 << 10,
        ..small
    }
}

/// Returns the reserve for a file system of `total` bytes: 1 %, at least 64 MiB and at most 1 GiB. Of a small
/// one a 24th, of one below 384 MiB up to 16 MiB, and never more than a sixteenth.
pub fn default_reserve(total: u64) -> u64 {
    let floor = (total / 24).clamp(16 << 20, 64 << 20).min(total / 16);
    (total / 100).clamp(floor, (1 << 30).max(floor))
}
