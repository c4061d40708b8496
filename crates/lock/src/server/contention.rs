//! When clients fight over an object.
//!
//! A resource on which 16 requests within 4 s had to call back another client is contended for 30 s: requests that say so
//! are refused, and their clients let the server lock for the time of each I/O. Source: Lustre reference 4.2.

use super::ServerConfig;
use std::collections::VecDeque;
use std::time::Instant;

/// The events of one resource.
#[derive(Debug, Default)]
pub(super) struct Contention {
    events: VecDeque<Instant>,
    until: Option<Instant>,
}

impl Contention {
    /// A request had to call back another client. Says when the contention that this begins will be over.
    pub(super) fn on_conflict(&mut self, now: Instant, config: &ServerConfig) -> Option<Instant> {
        while self.events.front().is_some_and(|first| now.duration_since(*first) > config.contention_window) {
            self.events.pop_front();
        }
        self.events.push_back(now);
        if self.events.len() < config.contention_events {
            return None;
        }
        self.events.clear();
        self.until = Some(now + config.contention_time);
        self.until
    }

    /// Milliseconds that the resource stays contended; `None` if it is not.
    pub(super) fn left_ms(&self, now: Instant) -> Option<u64> {
        let left = self.until?.checked_duration_since(now)?;
        Some(left.as_millis() as u64).filter(|left| *left > 0)
    }
}
