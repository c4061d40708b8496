//! Log of operations that took long, with the time that they spent in each stage.

use super::{Operation, Spent, Stage};
use crate::clock::wall;
use crate::sync::Mutex;
use nacre_types::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Operations in the log at most.
pub const SLOW_MAX: usize = 256;

/// Time from which an operation is slow, in nanoseconds; 0 for never.
static AFTER_NS: AtomicU64 = AtomicU64::new(1_000_000_000);
static SLOW: Mutex<VecDeque<SlowOperation>> = Mutex::new(VecDeque::new());

/// An operation that took long.
#[derive(Clone, Debug)]
pub struct SlowOperation {
    /// Time of its end.
    pub at: SystemTime,
    /// Description of the operation.
    pub operation: Operation,
    /// Result.
    pub status: Status,
    /// Its whole duration.
    pub took: Duration,
    /// Time spent in each stage.
    pub spent: Spent,
}

impl SlowOperation {
    /// Returns the stages with a share in the time, the longest first.
    pub fn stages(&self) -> Vec<(Stage, Duration)> {
        stages(&self.spent)
    }
}

/// Returns the stages with a share in the time, the longest first.
pub(super) fn stages(spent: &Spent) -> Vec<(Stage, Duration)> {
    let mut stages: Vec<(Stage, Duration)> = Stage::ALL
        .into_iter()
        .zip(spent)
        .filter(|(_, ns)| **ns > 0)
        .map(|(stage, ns)| (stage, Duration::from_nanos(*ns)))
        .collect();
    stages.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    stages
}

/// Returns the time from which an operation is slow; zero: none is.
pub fn slow_after() -> Duration {
    Duration::from_nanos(AFTER_NS.load(Ordering::Relaxed))
}

/// Sets the time from which an operation is slow; zero: none is.
pub fn set_slow_after(time: Duration) {
    AFTER_NS.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Returns the log, the oldest operation first.
pub fn slow() -> Vec<SlowOperation> {
    SLOW.lock().iter().cloned().collect()
}

/// Empties the log.
pub fn clear_slow() {
    SLOW.lock().clear();
}

/// Adds an operation that has ended to the log if it took long.
#[inline]
pub(super) fn consider(operation: &Operation, status: Status, took: Duration, spent: &Spent) {
    let after = slow_after();
    if after.is_zero() || took < after {
        return;
    }
    let mut slow = SLOW.lock();
    if slow.len() >= SLOW_MAX {
        slow.pop_front();
    }
    slow.push_back(SlowOperation { at: wall(), operation: *operation, status, took, spent: *spent });
}
