//! Settings of the policy.

use std::time::Duration;

/// When a store is trimmed, and how fast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimSettings {
    /// At all.
    pub is_on: bool,
    /// Bytes per second while little else is done; at least [`TrimSettings::RATE_MIN`].
    pub rate: u64,
    /// Bytes per second while other work is done and much waits; 0 for none.
    pub busy_rate: u64,
    /// Percent of the store that must be free and untold before a run begins; 0 begins with the first byte.
    pub start_percent: u32,
    /// Percent of the store that is so much that other work does not stop a run.
    pub urgent_percent: u32,
    /// How long there must have been little other work.
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
