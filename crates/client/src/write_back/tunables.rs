//! Settings and statistics of write-back while a client runs.

use crate::write_back::pool::WINDOW_BYTES;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Settings of write-back; all may be changed at any time and apply to later writes.
#[derive(Debug)]
pub struct WriteBackTunables {
    enabled: AtomicBool,
    max_dirty_bytes: AtomicU64,
    max_dirty_per_ost_bytes: AtomicU64,
    age_ms: AtomicU64,
    idle_per_cent: AtomicU32,
    threads: AtomicUsize,
}

impl Default for WriteBackTunables {
    fn default() -> Self {
        WriteBackTunables {
            enabled: AtomicBool::new(true),
            // Arithmetic of decision 0007, not measured: 16 MiB are eight requests in flight and as many
            // being filled, and memory that has left the CPU's cache when it is sent costs time.
            max_dirty_bytes: AtomicU64::new(64 << 20),
            max_dirty_per_ost_bytes: AtomicU64::new(16 << 20),
            age_ms: AtomicU64::new(1000),
            idle_per_cent: AtomicU32::new(25),
            threads: AtomicUsize::new(nacre_env::cpu_count().max(1)),
        }
    }
}

impl WriteBackTunables {
    /// Switches caching of writes; dirty data is written out when it is due.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    /// Sets how many bytes of memory may hold dirty data of all OSTs, and of one (`osc.*.max_dirty_mb`).
    /// Below 1 MiB nothing is cached.
    pub fn set_max_dirty(&self, total_bytes: u64, per_ost_bytes: u64) {
        self.max_dirty_bytes.store(total_bytes, Ordering::Relaxed);
        self.max_dirty_per_ost_bytes.store(per_ost_bytes, Ordering::Relaxed);
    }

    /// Sets the age at which data is written out though it could grow to a larger request.
    pub fn set_age(&self, age: Duration) {
        self.age_ms.store(u64::try_from(age.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sets the idle share of the machine's CPUs from which on large writes are cached, in per cent: 0
    /// always, above 100 never. Below that they are cached as well if servers keep writers waiting.
    pub fn set_idle_per_cent(&self, per_cent: u32) {
        self.idle_per_cent.store(per_cent, Ordering::Relaxed);
    }

    /// Returns the value of [`WriteBackTunables::set_idle_per_cent`].
    pub fn idle_per_cent(&self) -> u32 {
        self.idle_per_cent.load(Ordering::Relaxed)
    }

    /// Sets how many threads write dirty data out, at most.
    pub(crate) fn set_threads(&self, threads: usize) {
        self.threads.store(threads, Ordering::Relaxed);
    }

    /// Returns the value of [`WriteBackTunables::set_threads`].
    pub(crate) fn threads(&self) -> usize {
        self.threads.load(Ordering::Relaxed)
    }

    /// True if writes are cached.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed) && self.max_dirty().min(self.max_dirty_per_ost()) >= WINDOW_BYTES
    }

    /// Returns the total of [`WriteBackTunables::set_max_dirty`].
    pub fn max_dirty(&self) -> u64 {
        self.max_dirty_bytes.load(Ordering::Relaxed)
    }

    /// Returns the limit of one OST of [`WriteBackTunables::set_max_dirty`].
    pub fn max_dirty_per_ost(&self) -> u64 {
        self.max_dirty_per_ost_bytes.load(Ordering::Relaxed)
    }

    /// Returns the value of [`WriteBackTunables::set_age`].
    pub fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms.load(Ordering::Relaxed))
    }
}

/// Statistics of write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteBackStats {
    /// Bytes of dirty data that were not sent yet.
    pub dirty_bytes: u64,
    /// Bytes of memory that hold dirty data, sent or not.
    pub buffer_bytes: u64,
    /// Bytes in flight.
    pub in_flight_bytes: u64,
    /// Bytes granted by OSTs.
    pub grant_bytes: u64,
    /// Requests sent since the start.
    pub rpcs: u64,
    /// Requests that wrote a whole window.
    pub full_rpcs: u64,
    /// Bytes sent since the start.
    pub sent_bytes: u64,
    /// Writes that waited for memory or a grant.
    pub waits: u64,
    /// Windows that were lost because an OST rejected them.
    pub failures: u64,
}

/// Statistics of write-back to one OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OstWriteBack {
    /// Most bytes of memory that may hold dirty data (`osc.*.max_dirty_mb`).
    pub max_dirty_bytes: u64,
    /// Bytes of memory that hold dirty data, sent or not (`osc.*.cur_dirty_bytes`).
    pub dirty_bytes: u64,
    /// Bytes granted by the OST (`osc.*.cur_grant_bytes`).
    pub grant_bytes: u64,
}

/// Counters behind [`WriteBackStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub in_flight_bytes: AtomicU64,
    pub rpcs: AtomicU64,
    pub full_rpcs: AtomicU64,
    pub sent_bytes: AtomicU64,
    pub waits: AtomicU64,
    pub failures: AtomicU64,
}
