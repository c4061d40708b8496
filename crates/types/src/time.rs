//! Time stamps of files.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds and nanoseconds since 1970; seconds may be negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    /// Whole seconds.
    pub sec: i64,
    /// Nanoseconds in `[0, 1_000_000_000)`.
    pub nsec: u32,
}

impl Timestamp {
    /// Creates a time stamp; nanoseconds beyond a second are capped at the largest valid value.
    pub const fn new(sec: i64, nsec: u32) -> Timestamp {
        Timestamp { sec, nsec: if nsec > 999_999_999 { 999_999_999 } else { nsec } }
    }

    /// Returns nanoseconds since 1970, 0 for earlier times; wraps after the year 2554.
    pub fn nanoseconds(self) -> u64 {
        let seconds = u64::try_from(self.sec).unwrap_or(0);
        seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(self.nsec))
    }

    /// Returns the smallest time after this one.
    pub const fn next(self) -> Timestamp {
        match self.nsec {
            999_999_999.. => Timestamp { sec: self.sec.saturating_add(1), nsec: 0 },
            nsec => Timestamp { sec: self.sec, nsec: nsec + 1 },
        }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(error) => {
                let before: Duration = error.duration();
                let sec = -(before.as_secs() as i64);
                match before.subsec_nanos() {
                    0 => Timestamp::new(sec, 0),
                    nanos => Timestamp::new(sec - 1, 1_000_000_000 - nanos),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_positive_nanoseconds() {
        let time = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(Timestamp::from(time), Timestamp::new(-2, 500_000_000));
    }

    #[test]
    fn the_next_time_is_a_nanosecond_later() {
        for time in [Timestamp::new(5, 6), Timestamp::new(5, 999_999_999)] {
            assert_eq!(time.next().nanoseconds(), time.nanoseconds() + 1);
        }
    }
}
