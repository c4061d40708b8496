//! Scrub: searching for damage in the background.

use super::objects::Objects;
use super::read::MapProblem;
use super::stop::Stop;
use nacre_types::Fid;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which an idle scrub checks whether it is to start.
const IDLE: Duration = Duration::from_secs(1);

/// See the [module documentation](self).
pub(super) struct Scrub {
    /// Rate in bytes per second, 0 for none.
    rate: AtomicU64,
    /// Bytes read.
    bytes: AtomicU64,
}

impl Scrub {
    pub(super) fn new(bytes_per_second: u64) -> Scrub {
        Scrub { rate: AtomicU64::new(bytes_per_second), bytes: AtomicU64::new(0) }
    }

    /// Returns the bytes read since the store was opened.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the rate in bytes per second; 0 for none.
    pub(super) fn set_rate(&self, bytes_per_second: u64) {
        self.rate.store(bytes_per_second, Ordering::Relaxed);
    }

    /// Returns the rate.
    pub(super) fn rate(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }

    /// Reads all data repeatedly, at the configured rate.
    pub(super) fn run(&self, objects: &Objects, stop: &Stop) {
        let mut next: Option<[u8; 24]> = None;
        let mut owed = Duration::ZERO;
        loop {
            let rate = self.rate.load(Ordering::Relaxed);
            if stop.wait(if rate == 0 { IDLE } else { owed }) {
                return;
            }
            owed = Duration::ZERO;
            if rate == 0 {
                continue;
            }
            let (maps, after) = match objects.some_maps(next.as_ref()) {
                Ok(found) => found,
                Err(error) => {
                    log::error!("{}: looking for damage: {error}", objects.volume().dir().display());
                    owed = IDLE;
                    continue;
                }
            };
            if after.is_none() {
                owed = IDLE;
            }
            next = after;
            for (fid, number) in maps {
                let bytes = self.scrub_map(objects, fid, number);
                let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
                if stop.wait(time) {
                    return;
                }
            }
        }
    }

    /// Reads the data of a map and returns the number of bytes.
    fn scrub_map(&self, objects: &Objects, fid: Fid, number: u64) -> u64 {
        match objects.check_map(fid, number) {
            Ok((bytes, problems)) => {
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
                objects.volume().medium().note_damage(problems.len() as u64);
                for MapProblem { offset, at_device, .. } in problems {
                    log::error!(
                        "{}: data of object {fid} at offset {offset} is damaged, the block at {at_device} of {}",
                        objects.volume().dir().display(),
                        objects.volume().medium().name()
                    );
                }
                bytes
            }
            Err(error) => {
                log::error!(
                    "{}: looking for damage in object {fid}: {error}",
                    objects.volume().dir().display()
                );
                0
            }
        }
    }
}
