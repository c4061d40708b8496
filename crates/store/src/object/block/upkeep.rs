//! What a store does by itself: it makes changes durable, looks for damage, moves objects together, and tells the device what
//! is free.

use super::allocator::Extent;
use super::check::MapProblem;
use super::device::{BLOCK, BlockDevice};
use super::recover::parse_map_key;
use super::{Core, MAPS};
use crate::object::{Extents, ObjectError, ObjectExtent, Result, Trim, Trimmed};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::block::{MAP_BLOCKS, Place};
use nacre_types::Fid;
use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maps that are found at once.
const MAPS_AT_ONCE: usize = 64;
/// Bytes that one discard tells of: devices take long for large ones.
const DISCARD_MAX: u64 = (64 << 20) / BLOCK;
/// Discards of one call, so that the trimming thread looks around often enough.
const DISCARDS_AT_ONCE: u64 = 256;
/// How often an idle scrubber looks whether it is to begin.
const IDLE: Duration = Duration::from_secs(1);

/// Some maps, and the key behind which there may be more.
type SomeMaps = (Vec<(Fid, u64)>, Option<[u8; 24]>);

/// Says once that it is time to stop.
#[derive(Default)]
pub(super) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Waits, or until it is set: then true.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        let end = Instant::now() + time;
        while !*is_set {
            if self.changed.wait_until(&mut is_set, end).timed_out() {
                break;
            }
        }
        *is_set
    }
}

/// The threads of a store.
pub(super) struct Upkeep {
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
}

impl Upkeep {
    /// Nothing is done by itself.
    pub(super) fn none() -> Upkeep {
        Upkeep { stop: Arc::default(), threads: Vec::new() }
    }

    pub(super) fn start(core: &Arc<Core>, commit_interval_ms: u64) -> Result<Upkeep> {
        let mut upkeep = Upkeep { stop: Arc::default(), threads: Vec::new() };
        if commit_interval_ms > 0 {
            let (core, stop) = (core.clone(), upkeep.stop.clone());
            let interval = Duration::from_millis(commit_interval_ms);
            upkeep.spawn(&core.clone(), "ost-commit", move || core.commit_now_and_then(&stop, interval))?;
        }
        let (scrubbed, stop) = (core.clone(), upkeep.stop.clone());
        upkeep.spawn(core, "ost-scrub", move || scrubbed.scrub(&stop))?;
        let (core, stop) = (core.clone(), upkeep.stop.clone());
        upkeep.spawn(&core.clone(), "ost-defrag", move || core.defrag_now_and_then(&stop))?;
        Ok(upkeep)
    }

    fn spawn(&mut self, core: &Core, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = nacre_env::thread::Builder::new().name(name.to_owned()).spawn(body);
        let fail =
            |source| ObjectError::Path { action: "start a thread for", path: core.dir.clone(), source };
        match spawned.map_err(fail) {
            Ok(thread) => {
                self.threads.push(thread);
                Ok(())
            }
            Err(error) => {
                self.stop();
                Err(error)
            }
        }
    }

    pub(super) fn stop(&mut self) {
        *self.stop.is_set.lock() = true;
        self.stop.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a thread of an object store has panicked");
            }
        }
    }
}

impl Core {
    fn commit_now_and_then(&self, stop: &Stop, interval: Duration) {
        let mut clock = 0;
        while !stop.wait(interval) {
            clock = self.space.close_idle_windows(clock);
            self.ahead.close_idle();
            // A sync of the index alone leaves data behind, and space that waits.
            let is_due = self.index.last_transno() > self.index.last_committed()
                || self.durable.is_dirty()
                || self.space.quarantined() > 0;
            if is_due && let Err(error) = self.complete(self.durable.generation()) {
                log::error!("{}: changes could not be made durable: {error}", self.dir.display());
            }
        }
    }

    /// Bytes per second that are read in the background to find damage; 0 for none.
    pub fn set_scrub_rate(&self, bytes_per_second: u64) {
        self.scrub_rate.store(bytes_per_second, Ordering::Relaxed);
    }

    /// The rate that is set.
    pub fn scrub_rate(&self) -> u64 {
        self.scrub_rate.load(Ordering::Relaxed)
    }

    /// Reads all data again and again, at the rate that is set.
    fn scrub(&self, stop: &Stop) {
        let mut next: Option<[u8; 24]> = None;
        let mut owed = Duration::ZERO;
        loop {
            let rate = self.scrub_rate.load(Ordering::Relaxed);
            if stop.wait(if rate == 0 { IDLE } else { owed }) {
                return;
            }
            owed = Duration::ZERO;
            if rate == 0 {
                continue;
            }
            let (maps, after) = match self.some_maps(next.as_ref()) {
                Ok(found) => found,
                Err(error) => {
                    log::error!("{}: looking for damage: {error}", self.dir.display());
                    owed = IDLE;
                    continue;
                }
            };
            if after.is_none() {
                owed = IDLE;
            }
            next = after;
            for (fid, number) in maps {
                let bytes = self.scrub_map(fid, number);
                let time = Duration::from_secs_f64(bytes as f64 / rate as f64);
                if stop.wait(time) {
                    return;
                }
            }
        }
    }

    /// Reads the data of a map and returns how many bytes those were.
    fn scrub_map(&self, fid: Fid, number: u64) -> u64 {
        match self.check_map(fid, number) {
            Ok((bytes, problems)) => {
                self.counters.scrubbed_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.counters.checksum_errors.fetch_add(problems.len() as u64, Ordering::Relaxed);
                for MapProblem { offset, at_device, .. } in problems {
                    log::error!(
                        "{}: data of object {fid} at offset {offset} is damaged, the block at {at_device} of {}",
                        self.dir.display(),
                        self.device_name
                    );
                }
                bytes
            }
            Err(error) => {
                log::error!("{}: looking for damage in object {fid}: {error}", self.dir.display());
                0
            }
        }
    }

    /// Some maps after `from`, and the last key if there may be more.
    pub(super) fn some_maps(&self, from: Option<&[u8; 24]>) -> Result<SomeMaps> {
        let mut found = Vec::new();
        let mut last = None;
        let from = from.map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        self.index.scan(MAPS, &[], from, &mut |key, _| {
            found.extend(parse_map_key(key));
            last = key.try_into().ok();
            if found.len() >= MAPS_AT_ONCE { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let is_end = found.len() < MAPS_AT_ONCE;
        Ok((found, last.filter(|_| !is_end)))
    }

    /// The free extents, as ranges of bytes of the device in its order, without what waits for a sync before it can be used again.
    pub fn free_pieces(&self) -> Vec<Range<u64>> {
        self.space.pieces()
    }
}

impl Trim for Core {
    fn trim(&self, from: u64, max_bytes: u64) -> Result<Trimmed> {
        let _changing = self.change()?;
        let mut left = max_bytes / BLOCK;
        let mut trimmed = Trimmed { extents: Some(0), ..Trimmed::default() };
        let mut at = from / BLOCK;
        for extents in 1..=DISCARDS_AT_ONCE {
            let Some(extent) = self.space.take_untold(at, left.min(DISCARD_MAX)) else { break };
            let Extent { start, len } = extent;
            let result = nacre_env::blocking(|| self.device.discard(start * BLOCK, len * BLOCK));
            self.space.told(extent, result.is_ok());
            if let Err(source) = result {
                return Err(ObjectError::trim(&self.device_name, source));
            }
            at = extent.end();
            left -= len;
            trimmed.bytes += len * BLOCK;
            trimmed.extents = Some(extents);
        }
        trimmed.next = self.space.has_untold(at).then_some(at * BLOCK);
        Ok(trimmed)
    }

    fn untrimmed(&self) -> u64 {
        self.space.untold_blocks() * BLOCK
    }

    fn trim_caution(&self) -> Option<&'static str> {
        let is_allocated = self.device.info().is_allocated;
        is_allocated.then_some("the file that is the device was allocated in advance, which trimming undoes")
    }

    fn trims_beside_work(&self) -> bool {
        // A file writes no faster for its holes, and its file system keeps transfers waiting while it makes them.
        self.device.info().is_raw
    }
}

impl Extents for Core {
    fn extents(&self, object: Fid) -> Result<Option<Vec<ObjectExtent>>> {
        let Some(object) = self.object(object, false)? else { return Ok(Some(Vec::new())) };
        let _state = object.state.read();
        let mut extents: Vec<ObjectExtent> = Vec::new();
        for number in self.map_numbers(object.fid, 0, u64::MAX)? {
            let places = self.map(&object, number)?.places;
            for (block, place) in (number * MAP_BLOCKS as u64..).zip(places) {
                let (Place::Data(at, _) | Place::Reserved(at)) = place else { continue };
                let (logical, physical) = (block * BLOCK, at * BLOCK);
                match extents.last_mut() {
                    Some(last)
                        if last.logical + last.len == logical && last.physical + last.len == physical =>
                    {
                        last.len += BLOCK;
                    }
                    _ => extents.push(ObjectExtent { logical, physical, len: BLOCK }),
                }
            }
        }
        Ok(Some(extents))
    }
}
