//! A disk with one head.
//!
//! A transfer that does not continue where the last one ended takes a seek, longer with the distance, and
//! half a turn. A disk with several queued transfers serves the nearest first; the model keeps the order and
//! shortens positioning by the square root of their number instead, up to the length of the queue.

use super::{Kind, Model, number, parts, put, some_bytes};
use crate::object::simulated::duration;
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Part of the maximum seek time that even the shortest seek takes.
const SHORTEST: f64 = 0.1;

/// Times of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskSpec {
    /// Mean seek time: over a third of the disk.
    pub seek: Duration,
    /// Time of one turn.
    pub turn: Duration,
    /// Bytes per second.
    pub bandwidth: u64,
    /// Transfers in its queue.
    pub queue: u64,
}

impl DiskSpec {
    pub(super) fn parse(text: &str) -> Result<DiskSpec, ()> {
        let mut spec = DiskSpec {
            seek: Duration::from_millis(8),
            turn: Duration::from_micros(8333),
            bandwidth: 150 << 20,
            queue: 32,
        };
        parts(text, |name, value| match name {
            "seek" => put(&mut spec.seek, duration(value)),
            "turn" => put(&mut spec.turn, duration(value)),
            "bandwidth" => put(&mut spec.bandwidth, some_bytes(value)),
            "queue" => put(&mut spec.queue, number(value, 256)),
            _ => None,
        })?;
        Ok(spec)
    }
}

impl DiskSpec {
    /// Returns the time that a caller needs for successive transfers on a disk of `disk_bytes` bytes whose
    /// head is at its beginning. Each transfer consists of pieces, as offsets and lengths in bytes, that are
    /// requested together. The call does not wait.
    pub fn time_of(self, disk_bytes: u64, transfers: impl IntoIterator<Item = Vec<(u64, u64)>>) -> Duration {
        let mut disk = Disk::new(self, disk_bytes);
        transfers.into_iter().fold(Duration::ZERO, |now, pieces| {
            let ends = pieces.into_iter().map(|(offset, len)| disk.submit(now, Kind::Read, offset, len));
            ends.max().unwrap_or(now)
        })
    }
}

impl fmt::Display for DiskSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskSpec { seek, turn, bandwidth, queue } = self;
        let (seek, turn) = (seek.as_micros(), turn.as_micros());
        write!(f, "disk:seek={seek}us:turn={turn}us:bandwidth={bandwidth}:queue={queue}")
    }
}

pub(super) struct Disk {
    spec: DiskSpec,
    size: u64,
    /// Offset at which the last transfer ended.
    head: u64,
    free_at: Duration,
    /// End times of the transfers under way.
    waiting: VecDeque<Duration>,
}

impl Disk {
    pub(super) fn new(spec: DiskSpec, size: u64) -> Disk {
        Disk { spec, size: size.max(1), head: 0, free_at: Duration::ZERO, waiting: VecDeque::new() }
    }

    fn position(&self, offset: u64, waiting: u64) -> Duration {
        if offset == self.head {
            return Duration::ZERO;
        }
        let distance = offset.abs_diff(self.head) as f64 / self.size as f64;
        // The root of a third is that of a mean seek.
        let seek = self.spec.seek.mul_f64(SHORTEST + (1.0 - SHORTEST) * (distance * 3.0).sqrt());
        (seek + self.spec.turn / 2).div_f64((waiting.clamp(1, self.spec.queue) as f64).sqrt())
    }
}

impl Model for Disk {
    fn submit(&mut self, now: Duration, kind: Kind, offset: u64, len: u64) -> Duration {
        if kind == Kind::Discard {
            return now;
        }
        while self.waiting.front().is_some_and(|end| *end <= now) {
            self.waiting.pop_front();
        }
        let position = self.position(offset, self.waiting.len() as u64 + 1);
        let transfer = Duration::from_secs_f64(len as f64 / self.spec.bandwidth as f64);
        self.free_at = self.free_at.max(now) + position + transfer;
        self.head = offset.saturating_add(len);
        self.waiting.push_back(self.free_at);
        self.free_at
    }
}
