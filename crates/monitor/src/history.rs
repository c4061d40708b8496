//! The last minutes, in memory.

use crate::view::View;
use serde::Serialize;
use std::collections::VecDeque;

/// Points of each curve: ten minutes at a point every 2 s.
const POINTS: usize = 300;

/// Curves with a point for each moment, the oldest first.
#[derive(Debug, Default, Serialize)]
pub struct History {
    /// Milliseconds since 1970.
    at_ms: VecDeque<u64>,
    /// Bytes read per second.
    read: VecDeque<f64>,
    /// Bytes written per second.
    write: VecDeque<f64>,
    /// Metadata operations per second.
    metadata: VecDeque<f64>,
    /// Time below which 99 of 100 requests at OSTs stayed, in seconds; 0 without requests.
    ost_p99_s: VecDeque<f64>,
    /// The same at MDTs.
    mdt_p99_s: VecDeque<f64>,
}

impl History {
    /// Adds a moment, and drops the oldest beyond the bound.
    pub fn push(&mut self, view: &View) {
        self.at_ms.push_back(view.at_ms);
        if self.at_ms.len() > POINTS {
            self.at_ms.pop_front();
        }
        let total = &view.total;
        for (curve, value) in [
            (&mut self.read, total.read),
            (&mut self.write, total.write),
            (&mut self.metadata, total.metadata),
            (&mut self.ost_p99_s, total.ost_p99_s.unwrap_or(0.0)),
            (&mut self.mdt_p99_s, total.mdt_p99_s.unwrap_or(0.0)),
        ] {
            curve.push_back(value);
            if curve.len() > POINTS {
                curve.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let mut history = History::default();
        for at_ms in 0..POINTS as u64 + 5 {
            history.push(&View { at_ms, ..View::default() });
        }
        assert_eq!(
            (history.at_ms.len(), history.read.len(), history.at_ms.front()),
            (POINTS, POINTS, Some(&5))
        );
    }
}
