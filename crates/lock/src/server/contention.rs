//! Contention of a resource.
//!
//! A resource on which 16 requests within 4 s had to revoke a lock of another client is contended for 30 s:
//! requests with the flag for it are refused, and their clients let the server lock for the duration of each
//! I/O. The numbers are Lustre's.

use super::ServerConfig;
use nacre_env::clock::Instant;
use std::collections::VecDeque;

/// Conflicts on one resource.
#[derive(Debug, Default)]
pub(super) struct Contention {
    events: VecDeque<Instant>,
    until: Option<Instant>,
    /// Events count even while nothing is locked: on an inode, no lock is held while it changes.
    pub(super) keeps_events: bool,
    /// A timer is running that will check whether the contention can be forgotten.
    pub(super) is_watched: bool,
}

impl Contention {
    /// Records that a request had to revoke a lock of another client.
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

    /// Returns the time until which the events matter; `None` if they do not any more.
    pub(super) fn counts_until(&self, now: Instant, config: &ServerConfig) -> Option<Instant> {
        let last = self.events.back().filter(|_| self.keeps_events);
        let last = last.map(|last| *last + config.contention_window);
        last.max(self.until).filter(|until| *until > now)
    }

    /// Returns the milliseconds for which the resource stays contended; `None` if it is not.
    pub(super) fn left_ms(&self, now: Instant) -> Option<u64> {
        let left = self.until?.checked_duration_since(now)?;
        Some(left.as_millis() as u64).filter(|left| *left > 0)
    }
}
