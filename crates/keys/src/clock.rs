//! The common clock of all servers of a file system, independent of their hosts' clocks.

use nacre_env::clock::Instant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// Seconds since 1970, those of this host until [`SharedClock::set`]. Monotonic: a step of the host's clock
/// does not change it.
#[derive(Debug)]
pub struct SharedClock {
    start: Instant,
    /// Seconds since 1970 at `start`.
    start_s: AtomicU64,
}

impl Default for SharedClock {
    fn default() -> SharedClock {
        let now_s =
            nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        SharedClock { start: Instant::now(), start_s: AtomicU64::new(now_s) }
    }
}

impl SharedClock {
    /// Sets the clock: it is `now_s` at the host of the management server.
    pub fn set(&self, now_s: u64) {
        self.start_s.store(now_s.saturating_sub(self.start.elapsed().as_secs()), Ordering::Relaxed);
    }

    /// Returns the time in seconds since 1970.
    pub fn now_s(&self) -> u64 {
        self.start_s.load(Ordering::Relaxed).saturating_add(self.start.elapsed().as_secs())
    }
}
