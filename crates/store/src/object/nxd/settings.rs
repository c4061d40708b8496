//! Settings and counters of a cache.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Destination of small writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NxdMode {
    /// They go to the cache.
    #[default]
    On,
    /// They go to the disk; the cache's content is written back as usual.
    Off,
    /// They go to the disk, and the cache's content is written back at once, so that it is not needed any
    /// more.
    Drain,
}

impl fmt::Display for NxdMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NxdMode::On => "on",
            NxdMode::Off => "off",
            NxdMode::Drain => "drain",
        })
    }
}

impl FromStr for NxdMode {
    type Err = ();

    fn from_str(text: &str) -> Result<NxdMode, ()> {
        match text {
            "on" => Ok(NxdMode::On),
            "off" => Ok(NxdMode::Off),
            "drain" => Ok(NxdMode::Drain),
            _ => Err(()),
        }
    }
}

/// Settings that can be changed while a cache is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NxdSettings {
    /// Destination of small writes.
    pub mode: NxdMode,
    /// Largest write in bytes that goes to the cache; at most [`NxdSettings::THRESHOLD_MAX`].
    pub threshold: u32,
    /// Number of consecutive writes before a small one in its object, each beginning at the end of the last,
    /// that send it to the disk; 0 for never.
    pub stream_writes: u32,
    /// Percent of the log in use from which it is written back as fast as the disk can.
    pub high_percent: u32,
    /// Percent in use at which that ends.
    pub low_percent: u32,
    /// Milliseconds without a read or write after which the log is written back, too.
    pub idle_ms: u64,
    /// Bytes per second of write-back while idle; 0 for no limit.
    pub idle_bytes_per_second: u64,
    /// Milliseconds that a write waits for space in the log before it goes to the disk.
    pub full_wait_ms: u64,
}

impl NxdSettings {
    /// Largest threshold in bytes: a batch of the log has to hold it.
    pub const THRESHOLD_MAX: u32 = 512 << 10;

    /// Limits all values to their valid ranges.
    pub(super) fn checked(mut self) -> NxdSettings {
        self.threshold = self.threshold.min(NxdSettings::THRESHOLD_MAX);
        self.high_percent = self.high_percent.clamp(1, 95);
        self.low_percent = self.low_percent.min(self.high_percent - 1);
        self
    }
}

impl Default for NxdSettings {
    fn default() -> NxdSettings {
        NxdSettings {
            mode: NxdMode::On,
            threshold: 32 << 10,
            stream_writes: 8,
            high_percent: 50,
            low_percent: 10,
            idle_ms: 1000,
            idle_bytes_per_second: 64 << 20,
            full_wait_ms: 5000,
        }
    }
}

/// Options of opening a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NxdOptions {
    /// Settings that can be changed later.
    pub settings: NxdSettings,
    /// Overwrite data on the device, and give up the content of a missing cache of this store.
    pub force: bool,
    /// Recover the readable part of a damaged log, and skip the rest.
    pub salvage: bool,
    /// Open read-only: nothing is written back, and the mark stays as it is. The device must keep writes to
    /// it in memory.
    pub read_only: bool,
}

/// A snapshot of a cache's counters; sums since it was opened unless noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NxdStats {
    /// Destination of small writes at this moment.
    pub mode: NxdMode,
    /// Size of the log in bytes.
    pub size: u64,
    /// Bytes of the log in use at this moment.
    pub used: u64,
    /// Bytes at this moment that only the cache has.
    pub dirty: u64,
    /// The store cannot be used without the cache at this moment.
    pub is_needed: bool,
    /// Reads that found all their bytes in the cache.
    pub read_hits: u64,
    /// Reads that found a part of their bytes in the cache.
    pub read_parts: u64,
    /// Reads that found no bytes in the cache.
    pub read_misses: u64,
    /// Bytes read from the cache.
    pub read_hit_bytes: u64,
    /// Writes to the cache.
    pub writes: u64,
    /// Bytes written to the cache.
    pub write_bytes: u64,
    /// Writes to the disk because of their size.
    pub bypassed_large: u64,
    /// Writes to the disk because they continued a stream.
    pub bypassed_stream: u64,
    /// Writes to the disk because the log was full.
    pub bypassed_full: u64,
    /// Writes to the disk because of the mode, because the disk had no space to reserve, or because the log
    /// failed.
    pub bypassed_other: u64,
    /// Times that data had to be written back at once because of another change.
    pub settled: u64,
    /// Bytes written back.
    pub flushed_bytes: u64,
    /// Transfers of write-back.
    pub flush_writes: u64,
    /// Bytes per second of the last round of write-back.
    pub flush_rate: u64,
    /// Rounds of write-back that failed.
    pub flush_failures: u64,
    /// Batches written to the log.
    pub batches: u64,
    /// Flushes of the device of the log.
    pub flushes: u64,
    /// Entries of the log that were replayed when it was opened.
    pub replayed: u64,
    /// Flushes of the device of the log that failed.
    pub sync_failures: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    pub read_hits: AtomicU64,
    pub read_parts: AtomicU64,
    pub read_misses: AtomicU64,
    pub read_hit_bytes: AtomicU64,
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    pub bypassed_large: AtomicU64,
    pub bypassed_stream: AtomicU64,
    pub bypassed_full: AtomicU64,
    pub bypassed_other: AtomicU64,
    pub settled: AtomicU64,
    pub flushed_bytes: AtomicU64,
    pub flush_writes: AtomicU64,
    pub flush_rate: AtomicU64,
    pub flush_failures: AtomicU64,
    pub replayed: AtomicU64,
}

impl Counters {
    pub fn read(&self) -> NxdStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NxdStats {
            read_hits: read(&self.read_hits),
            read_parts: read(&self.read_parts),
            read_misses: read(&self.read_misses),
            read_hit_bytes: read(&self.read_hit_bytes),
            writes: read(&self.writes),
            write_bytes: read(&self.write_bytes),
            bypassed_large: read(&self.bypassed_large),
            bypassed_stream: read(&self.bypassed_stream),
            bypassed_full: read(&self.bypassed_full),
            bypassed_other: read(&self.bypassed_other),
            settled: read(&self.settled),
            flushed_bytes: read(&self.flushed_bytes),
            flush_writes: read(&self.flush_writes),
            flush_rate: read(&self.flush_rate),
            flush_failures: read(&self.flush_failures),
            replayed: read(&self.replayed),
            ..NxdStats::default()
        }
    }
}
