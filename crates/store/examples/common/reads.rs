//! Helpers of surveys of reads.

use std::time::Duration;

/// Returns the CPU time of this thread.
pub fn thread_cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
