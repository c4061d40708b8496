//! What can be set, and what is counted.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether small writes go to the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NxdMode {
    /// They do.
    #[default]
    On,
    /// They go to the disk; what the cache holds is written back as usual.
    Off,
    /// They go to the disk, and what the cache holds is written back at once, so that it is not needed any more.
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

/// What can be changed while a cache is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NxdSettings {
    /// Whether small writes go to the cache.
    pub mode: NxdMode,
    /// Largest write in bytes that goes to the cache; at most [`NxdSettings::THRESHOLD_MAX`].
    pub threshold: u32,
    /// A small write goes to the disk if so many before it in its object each began where the last one ended; 0 for never.
    pub stream_writes: u32,
    /// Percent of the log in use from which it is written back as fast as the disk can.
    pub high_percent: u32,
    /// Percent down to which that goes on.
    pub low_percent: u32,
    /// Milliseconds without a read or write after which it is written back, too.
    pub idle_ms: u64,
    /// Bytes per second that are written back while idle; 0 for no limit.
    pub idle_bytes_per_second: u64,
    /// Milliseconds that a write waits for room in the log before it goes to the disk.
    pub full_wait_ms: u64,
}

impl NxdSettings {
    /// Largest threshold in bytes: a batch of the log has to hold it.
    pub const THRESHOLD_MAX: u32 = 512 << 10;

    /// With impossible values cut to possible ones.
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

/// How a cache is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NxdOptions {
    /// What can be changed later.
    pub settings: NxdSettings,
    /// Overwrite what is on the device, and give up what a cache of this store that is not there held.
    pub force: bool,
    /// Take what can be read of a damaged log, and leave what cannot.
    pub salvage: bool,
    /// Look only: nothing is written back, and the mark stays as it is. The device is to keep in memory what is written to it.
    pub read_only: bool,
}

/// A snapshot of a cache's counters; sums since it was opened unless noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NxdStats {
    /// Whether small writes go to the cache now.
    pub mode: NxdMode,
    /// Bytes of the log.
    pub size: u64,
    /// Bytes of the log in use now.
    pub used: u64,
    /// Bytes now that only the cache has.
    pub dirty: u64,
    /// The store cannot be used without the cache now.
    pub is_needed: bool,
    /// Reads that found all their bytes in the cache.
    pub read_hits: u64,
    /// Reads that found a part of them.
    pub read_parts: u64,
    /// Reads that found none.
    pub read_misses: u64,
    /// Bytes read from the cache.
    pub read_hit_bytes: u64,
    /// Writes to the cache.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// Writes to the disk because of their size.
    pub bypassed_large: u64,
    /// Because they went on with a stream.
    pub bypassed_stream: u64,
    /// Because there was no room in the log.
    pub bypassed_full: u64,
    /// Because the mode says so, the disk had no space to set aside, or the log failed.
    pub bypassed_other: u64,
    /// Times that data had to be written back at once because something else changed it.
    pub settled: u64,
    /// Bytes written back.
    pub flushed_bytes: u64,
    /// In so many transfers.
    pub flush_writes: u64,
    /// Bytes per second of the last round of writing back.
    pub flush_rate: u64,
    /// Rounds that failed.
    pub flush_failures: u64,
    /// Batches written to the log.
    pub batches: u64,
    /// Flushes of its device.
    pub flushes: u64,
    /// Entries of the log that were read back when it was opened.
    pub replayed: u64,
    /// Flushes of its device that failed.
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
