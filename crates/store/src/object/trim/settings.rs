//! Settings of the trim policy.

use std::time::Duration;

/// Conditions and rates of trimming a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimSettings {
    /// Trimming is switched on.
    pub is_on: bool,
    /// Bytes per second while there is little other work; at least [`TrimSettings::RATE_MIN`].
    pub rate: u64,
    /// Bytes per second while there is other work and much is untrimmed; 0 for none.
    pub busy_rate: u64,
    /// Percent of the store that must be free and untrimmed before a run begins; 0 begins with the first
    /// byte.
    pub start_percent: u32,
    /// Percent of the store that, free and untrimmed, keeps a run going in spite of other work.
    pub urgent_percent: u32,
    /// Time for which there must have been little other work.
    pub idle: Duration,
    /// Transfers per second that count as little.
    pub quiet_iops: u32,
}

impl TrimSettings {
    /// Least rate in bytes per second.
    pub const RATE_MIN: u64 = 1 << 20;
}

impl Default for TrimSettings {
    fn default() -> TrimSettings {
        TrimSettings {
            is_on: true,
            rate: 256 << 20,
            busy_rate: 32 << 20,
            start_percent: 1,
            urgent_percent: 20,
            idle: Duration::from_secs(2),
            quiet_iops: 16,
        }
    }
}
