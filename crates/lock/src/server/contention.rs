//! When clients fight over an object.
//!
//! A resource on which 16 requests within 4 s had to call back another client is contended for 30 s: requests that say so
//! are refused, and their clients let the server lock for the time of each I/O. Source: Lustre reference 4.2.

use super::ServerConfig;
use nacre_env::clock::Instant;
use std::collections::VecDeque;

/// The events of one resource.
#[derive(Debug, Default)]
pub(super) struct Contention {
    events: VecDeque<Instant>,
    until: Option<Instant>,
    /// Events count also when nothing is locked in between: on an inode nobody holds anything while it changes.
    pub(super) keeps_events: bool,
    /// A timer runs until somebody has to look whether it is time to forget.
    pub(super) is_watched: bool,
}

impl Contention {
    /// A request had to call back another client.
    pub(super) fn on_conflict(&mut self, now: Instant, config: &ServerConfig) {
        while self.events.front().is_some_and(|first| now.duration_since(*first) > config.contention_window) {
            self.events.pop_front();
        }
        self.events.push_back(now);
        if self.events.len() >= config.contention_events {
            self.events.clear();
            self.until = Some(now + config.contention_time);
        }
    }

    /// Until when this counts for something; `None` if it does not any more.
    pub(super) fn counts_until(&self, now: Instant, config: &ServerConfig) -> Option<Instant> {
        let last = self.events.back().filter(|_| self.keeps_events);
        let last = last.map(|last| *last + config.contention_window);
        last.max(self.until).filter(|until| *until > now)
    }

    /// Milliseconds that the resource stays contended; `None` if it is not.
    pub(super) fn left_ms(&self, now: Instant) -> Option<u64> {
        let left = self.until?.checked_duration_since(now)?;
        Some(left.as_millis() as u64).filter(|left| *left > 0)
    }
}
