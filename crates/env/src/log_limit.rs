//! A limit on lines of the log about one thing that may fail thousands of times in a second.

use crate::clock::Instant;
use std::time::Duration;

/// Shortest time between two lines.
const EVERY: Duration = Duration::from_secs(1);

/// Time of the last line, and the number of lines suppressed since.
#[derive(Debug, Default)]
pub struct LogLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl LogLimit {
    /// Returns the number of lines that were suppressed before this one; `None` if this one is to be
    /// suppressed too.
    pub fn admit(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now.duration_since(last) < EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim;

    #[test]
    fn a_line_a_second_is_admitted_and_says_how_many_were_not() {
        let admitted = sim::run(sim::Options { seed: 1, limit: Duration::from_secs(60) }, || {
            let mut limit = LogLimit::default();
            let first = [limit.admit(), limit.admit(), limit.admit()];
            crate::thread::sleep(EVERY);
            (first, limit.admit(), limit.admit())
        });
        assert_eq!(admitted.result, ([Some(0), None, None], Some(2), None));
    }
}
