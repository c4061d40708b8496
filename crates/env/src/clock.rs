//! Time: the monotonic clock and the wall clock.
//!
//! Both are the kernel's. In a thread of a simulation ([`crate::sim`]) both are simulated, and time advances
//! only with the simulation.

use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::time::{self, Duration, SystemTime};

use crate::sim;

/// A point of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(time::Instant);

impl Instant {
    /// Returns the current time.
    #[inline]
    #[must_use]
    pub fn now() -> Instant {
        if sim::is_any()
            && let Some(instant) = sim::now()
        {
            return Instant(instant);
        }
        Instant(time::Instant::now())
    }

    /// Returns the time since this point; zero if it is in the future.
    #[inline]
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Instant::now().0.saturating_duration_since(self.0)
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub fn duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time from `earlier` to this point; zero if `earlier` is later.
    #[inline]
    #[must_use]
    pub fn saturating_duration_since(&self, earlier: Instant) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }

    /// Returns the time from `earlier` to this point; `None` if `earlier` is later.
    #[inline]
    #[must_use]
    pub fn checked_duration_since(&self, earlier: Instant) -> Option<Duration> {
        self.0.checked_duration_since(earlier.0)
    }

    /// Returns this point plus `time`; `None` beyond the clock's range.
    #[inline]
    #[must_use]
    pub fn checked_add(&self, time: Duration) -> Option<Instant> {
        self.0.checked_add(time).map(Instant)
    }

    /// Returns this point minus `time`; `None` beyond the clock's range.
    #[inline]
    #[must_use]
    pub fn checked_sub(&self, time: Duration) -> Option<Instant> {
        self.0.checked_sub(time).map(Instant)
    }

    /// Returns the same point for the standard library.
    #[inline]
    pub(crate) fn to_std(self) -> time::Instant {
        self.0
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn add(self, time: Duration) -> Instant {
        Instant(self.0 + time)
    }
}

impl AddAssign<Duration> for Instant {
    #[inline]
    fn add_assign(&mut self, time: Duration) {
        self.0 += time;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    #[inline]
    fn sub(self, time: Duration) -> Instant {
        Instant(self.0 - time)
    }
}

impl SubAssign<Duration> for Instant {
    #[inline]
    fn sub_assign(&mut self, time: Duration) {
        self.0 -= time;
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Instant) -> Duration {
        self.duration_since(earlier)
    }
}

/// Returns the time of the wall clock.
#[inline]
#[must_use]
pub fn wall() -> SystemTime {
    if sim::is_any()
        && let Some(time) = sim::wall()
    {
        return time;
    }
    SystemTime::now()
}

/// Returns the time from `then` to now by the wall clock; zero if `then` is in the future.
#[must_use]
pub fn since(then: SystemTime) -> Duration {
    wall().duration_since(then).unwrap_or_default()
}
