//! Settings of a metadata store.

use super::error::{MetaError, Result};

/// Settings of a [`MetaStore`](super::MetaStore); all may differ from one opening to the next, except where
/// noted.
#[derive(Clone, Debug)]
pub struct MetaStoreOptions {
    /// Create the store if the directory is missing or empty.
    pub create: bool,
    /// Open the store read-only: nothing on disk changes, whatever is damaged. Commits change memory only and
    /// are lost when the store is closed. Several processes may open it so at the same time.
    pub read_only: bool,
    /// Bytes of recent changes (keys, values and bookkeeping) kept in memory before a checkpoint moves them
    /// to the base. Twice as much can be in memory during a checkpoint. Reopening replays at most about twice
    /// this much.
    pub overlay_bytes: u64,
    /// Maximum bytes of one log segment; there are two, which begin with 4 MiB and grow. A multiple of 4096
    /// from 64 KiB to 2 GiB. Fixed when the store is created, smaller on a small disk; the value on disk wins
    /// afterwards, and `overlay_bytes` and `reserve_bytes` are adapted to it.
    pub wal_segment_bytes: u64,
    /// Whether the log is written through a shared mapping where it is not flushed often (cheap), or always
    /// by system calls (safe on file systems that do not overwrite in place, where a mapped write could find
    /// no space and kill the process). `None` chooses by file system.
    pub wal_mapped: Option<bool>,
    /// Longest time in milliseconds that an acknowledged change stays volatile if no caller syncs; 0 switches
    /// the periodic sync off.
    pub commit_interval_ms: u64,
    /// Address space reserved for the base, in bytes; also the largest size it can grow to. Costs neither
    /// memory nor disk.
    pub map_bytes: u64,
    /// Bytes reserved on disk, when the segments have their full size, so that a full file system can still
    /// be emptied. When the disk is full, the changes already accepted must fit into them: one and a half
    /// times two segments is always enough.
    pub reserve_bytes: u64,
}

impl Default for MetaStoreOptions {
    fn default() -> Self {
        MetaStoreOptions {
            create: false,
            read_only: false,
            overlay_bytes: 32 << 20,
            wal_segment_bytes: 64 << 20,
            wal_mapped: None,
            commit_interval_ms: 1000,
            map_bytes: 1 << 40,
            reserve_bytes: 96 << 20,
        }
    }
}

/// Part of the available space that a new store's segment may take, as a divisor: with its reserve a store
/// takes an eighteenth of a small disk.
const SEGMENT_PART: u64 = 64;
/// Smallest segment: a transaction has to fit into one.
const SEGMENT_LEAST_BYTES: u64 = 4 << 20;

impl MetaStoreOptions {
    /// Returns the segment size in bytes for a new store with this much space available.
    pub(crate) fn segment_that_fits(&self, available_bytes: u64) -> u64 {
        let most = (available_bytes / SEGMENT_PART).max(SEGMENT_LEAST_BYTES) & !4095;
        self.wal_segment_bytes.min(most)
    }

    /// Adapts the settings to segments of this size: memory and reserve fit a smaller log.
    pub(crate) fn with_segment(self, bytes: u64) -> Self {
        if bytes >= self.wal_segment_bytes {
            return self;
        }
        let part = |of: u64| (u128::from(of) * u128::from(bytes) / u128::from(self.wal_segment_bytes)) as u64;
        let (overlay_bytes, reserve_bytes) = (part(self.overlay_bytes), part(self.reserve_bytes));
        MetaStoreOptions { overlay_bytes, reserve_bytes, wal_segment_bytes: bytes, ..self }
    }

    /// Returns the reserve in bytes for segments of which `part_bytes` are used.
    pub(crate) fn reserve_for(&self, part_bytes: usize) -> u64 {
        let share = u128::from(self.reserve_bytes) * part_bytes as u128 / u128::from(self.wal_segment_bytes);
        (share as u64).min(self.reserve_bytes)
    }

    /// Returns small sizes for an index of a few thousand entries, such as that of an OST, and for tests.
    pub fn small() -> Self {
        MetaStoreOptions {
            overlay_bytes: 4 << 20,
            wal_segment_bytes: 8 << 20,
            map_bytes: 64 << 30,
            reserve_bytes: 12 << 20,
            ..Default::default()
        }
    }

    /// # Errors
    /// [`MetaError::Option`] names the first value that cannot work.
    pub fn check(&self) -> Result<()> {
        let refuse = |option, requirement| Err(MetaError::Option { option, requirement });
        if !self.wal_segment_bytes.is_multiple_of(4096)
            || !(64 << 10..=2 << 30).contains(&self.wal_segment_bytes)
        {
            return refuse("wal_segment_bytes", "a multiple of 4096 from 64 KiB to 2 GiB");
        }
        if self.overlay_bytes < 16 << 10 {
            return refuse("overlay_bytes", "at least 16 KiB");
        }
        if !self.map_bytes.is_multiple_of(1 << 20) || self.map_bytes < 16 << 20 {
            return refuse("map_bytes", "a multiple of 1 MiB, at least 16 MiB");
        }
        Ok(())
    }
}
