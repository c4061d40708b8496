//! Limits beyond which idle users of the changelog are deregistered. Names and defaults are Lustre's.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Longest time without a clear, in seconds: 30 days.
const MAX_IDLE_TIME_S: u64 = 30 * 24 * 3600;
/// Most records that a user has not cleared.
const MAX_IDLE_INDEXES: u64 = 2_097_446_912;
/// Interval of the checks, in seconds.
const MIN_GC_INTERVAL_S: u64 = 3600;

/// See the [module documentation](self).
pub struct Settings {
    collects: AtomicBool,
    max_idle_time_s: AtomicU64,
    max_idle_indexes: AtomicU64,
    min_interval_s: AtomicU64,
    max_mb: AtomicU64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            collects: AtomicBool::new(true),
            max_idle_time_s: AtomicU64::new(MAX_IDLE_TIME_S),
            max_idle_indexes: AtomicU64::new(MAX_IDLE_INDEXES),
            min_interval_s: AtomicU64::new(MIN_GC_INTERVAL_S),
            max_mb: AtomicU64::new(0),
        }
    }
}

macro_rules! numbers {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $field:ident;)*) => {
        impl Settings {
            $(
                $(#[$doc])*
                pub fn $get(&self) -> u64 {
                    self.$field.load(Ordering::Relaxed)
                }

                /// Sets it.
                pub fn $set(&self, value: u64) {
                    self.$field.store(value, Ordering::Relaxed);
                }
            )*
        }
    };
}

numbers! {
    /// Returns the longest time without a clear, in seconds.
    max_idle_time_s, set_max_idle_time_s, max_idle_time_s;
    /// Returns the largest number of records that a user has not cleared.
    max_idle_indexes, set_max_idle_indexes, max_idle_indexes;
    /// Returns the interval of the checks, in seconds.
    min_gc_interval_s, set_min_gc_interval_s, min_interval_s;
    /// Returns the largest size of all records in MiB; 0 for a quarter of the MDT's space.
    max_mb, set_max_mb, max_mb;
}

impl Settings {
    /// Returns true if idle users are deregistered.
    pub fn collects(&self) -> bool {
        self.collects.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_collects(&self, collects: bool) {
        self.collects.store(collects, Ordering::Relaxed);
    }
}
