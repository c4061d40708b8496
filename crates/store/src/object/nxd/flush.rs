//! Write-back: in the order of the disk, driven by the fill level of the log and by idleness.

use super::pieces::Piece;
use super::{Cache, CacheProblem, NxdMode, NxdSettings};
use crate::object::block::device::BLOCK;
use crate::object::{ObjectError, Result};
use ::log::warn;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_types::Fid;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Bytes and pieces of an object that are written back under one lock.
const GROUP_BYTES: u64 = 1 << 20;
const GROUP_PIECES: usize = 64;
/// Number of pieces that the device of the log fails to read after which a round ends: the device may have
/// failed as a whole.
const UNREADABLE_MAX: u32 = 64;
/// Interval of the thread without a signal.
const TICK: Duration = Duration::from_millis(100);
/// Time for which the thread waits after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Calls {
    is_rung: bool,
    is_stopping: bool,
}

/// Wakes the thread.
#[derive(Default)]
pub(super) struct Alarm {
    calls: Mutex<Calls>,
    changed: Condvar,
}

impl Alarm {
    /// Wakes the thread for a caller that waits for space.
    pub fn ring(&self) {
        self.calls.lock().is_rung = true;
        self.changed.notify_all();
    }

    fn stop(&self) {
        self.calls.lock().is_stopping = true;
        self.changed.notify_all();
    }

    fn is_stopping(&self) -> bool {
        self.calls.lock().is_stopping
    }

    /// Waits; `None` if the thread must stop, else whether it was rung.
    fn wait(&self, time: Duration, ends_when_rung: bool) -> Option<bool> {
        let end = Instant::now() + time;
        let mut calls = self.calls.lock();
        while !(calls.is_stopping || ends_when_rung && calls.is_rung) {
            if self.changed.wait_until(&mut calls, end).timed_out() {
                break;
            }
        }
        if calls.is_stopping {
            return None;
        }
        Some(ends_when_rung && std::mem::take(&mut calls.is_rung))
    }
}

/// Rate of a round.
pub(super) enum Pace {
    /// As fast as the disk can.
    Fast,
    /// Bytes per second.
    Rate(u64),
}

/// The thread that writes back.
pub(super) struct Flusher {
    alarm: Arc<Alarm>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Flusher {
    /// Creates a flusher without write-back.
    pub fn none(core: &Arc<Cache>) -> Flusher {
        Flusher { alarm: core.alarm.clone(), thread: Mutex::new(None) }
    }

    pub fn start(core: &Arc<Cache>) -> Result<Flusher> {
        let own = core.clone();
        let thread = nacre_env::thread::Builder::new().name("ost-nxd".to_owned()).spawn(move || own.run());
        let fail =
            |source| ObjectError::Path { action: "start a thread for", path: core.dir.clone(), source };
        Ok(Flusher { alarm: core.alarm.clone(), thread: Mutex::new(Some(thread.map_err(fail)?)) })
    }

    pub fn stop(&self) {
        self.alarm.stop();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            ::log::error!("the thread of a cache has panicked");
        }
    }
}

impl Cache {
    fn run(&self) {
        let (mut is_above, mut seen) = (false, 0);
        while let Some(is_rung) = self.alarm.wait(TICK, true) {
            if self.note_durable(&mut seen).is_err() && self.alarm.wait(AFTER_FAILURE, false).is_none() {
                return;
            }
            let Some(pace) = self.wanted(is_rung, &mut is_above) else {
                self.look_whether_clean();
                continue;
            };
            match self.round(&pace) {
                Ok(true) if is_above => self.alarm.ring(),
                Ok(_) => self.look_whether_clean(),
                Err(error) => {
                    self.note_flush_failure(&error);
                    if self.alarm.wait(AFTER_FAILURE, false).is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Records the durable position in the superblock: without further writes, no batch of the log records
    /// that the last ones are durable.
    fn note_durable(&self, seen: &mut u64) -> io::Result<()> {
        let (_, end, _) = self.log.extent();
        if end != std::mem::replace(seen, end) {
            return Ok(());
        }
        self.log.note_durable().inspect_err(|error| {
            warn!("{}: could not write what is durable into the superblock of the log: {error}", self.name);
        })
    }

    /// Marks the store clean if the log of an idle or disused cache is empty.
    fn look_whether_clean(&self) {
        let settings = self.settings();
        let is_quiet = settings.mode != NxdMode::On || self.is_idle(&settings);
        if is_quiet && let Err(error) = self.mark_clean() {
            self.note_flush_failure(&error);
        }
    }

    fn is_idle(&self, settings: &NxdSettings) -> bool {
        let now = self.started.elapsed().as_millis() as u64;
        now.saturating_sub(self.last_use.load(Ordering::Relaxed)) >= settings.idle_ms
    }

    fn wanted(&self, is_rung: bool, is_above: &mut bool) -> Option<Pace> {
        let (start, end, ring) = self.log.extent();
        let settings = self.settings();
        let percent = (end - start) * 100 / ring;
        if percent >= u64::from(settings.high_percent) {
            *is_above = true;
        } else if percent <= u64::from(settings.low_percent) {
            *is_above = false;
        }
        if start == end {
            None
        } else if *is_above || is_rung || settings.mode == NxdMode::Drain {
            Some(Pace::Fast)
        } else if self.is_idle(&settings) {
            Some(match settings.idle_bytes_per_second {
                0 => Pace::Fast,
                rate => Pace::Rate(rate),
            })
        } else {
            None
        }
    }

    /// Writes back the whole content of the log.
    ///
    /// # Errors
    /// Those of the store and of the device; data that could not be written stays in the log.
    pub fn flush_now(&self) -> Result<()> {
        while self.round(&Pace::Fast)? {}
        self.mark_clean()
    }

    /// Writes back likewise, but continues after pieces that fail for any reason, and passes these to
    /// `failed`.
    ///
    /// # Errors
    /// The first of those passed to `failed`, or one that concerns all.
    pub fn flush_what_can_be(&self, failed: &mut dyn FnMut(Fid, Range<u64>, &ObjectError)) -> Result<()> {
        let mut go_on = |object, piece: &Piece, error: &ObjectError| {
            failed(object, piece.start..piece.end, error);
            true
        };
        while self.round_with(&Pace::Fast, &mut go_on)? {}
        self.mark_clean()
    }

    /// Writes back data that only the log has, makes it durable, and moves the tail of the log. Returns
    /// whether anything was done. Damaged data stays in the log, and all data after it is written back
    /// nevertheless.
    pub(super) fn round(&self, pace: &Pace) -> Result<bool> {
        let mut unreadable = 0;
        self.round_with(pace, &mut |_, _, error| match error {
            ObjectError::Cache { problem: CacheProblem::Damaged, .. } => true,
            ObjectError::Cache { .. } => {
                unreadable += 1;
                unreadable < UNREADABLE_MAX
            }
            _ => false,
        })
    }

    /// Makes a round; `go_on` receives each piece that cannot be written back.
    fn round_with(&self, pace: &Pace, go_on: GoOn<'_>) -> Result<bool> {
        let _one_at_a_time = self.rounds.lock();
        let (start, end, _) = self.log.extent();
        if start == end {
            return Ok(false);
        }
        let begun = Instant::now();
        // The disk may not show a part of a write before the log contains all of it.
        self.log.flush().map_err(|error| self.io_error(error))?;
        let mut dirty = self.dirty_pieces(end * BLOCK);
        dirty.sort_unstable_by_key(|(object, piece)| (*object, piece.start));
        let mut done = Done::default();
        let mut rest = dirty.as_slice();
        while !rest.is_empty() && !self.alarm.is_stopping() {
            let (group, after) = rest.split_at(group_len(rest));
            if !self.try_group(group, &mut done, go_on) {
                break;
            }
            rest = after;
            if let Pace::Rate(rate) = pace {
                let due = Duration::from_secs_f64(done.bytes as f64 / *rate as f64);
                self.alarm.wait(due.saturating_sub(begun.elapsed()), false);
            }
        }
        if !done.written.is_empty() {
            self.sync_below()?;
            for (object, pieces) in &done.written {
                self.clean(self.stripe(*object), *object, pieces);
            }
            let rate = done.bytes as f64 / begun.elapsed().as_secs_f64().max(1e-6);
            self.counters.flush_rate.store(rate as u64, Ordering::Relaxed);
        }
        let moved = self.log.move_tail().map_err(|error| self.io_error(error))?;
        if let Some(tail) = moved {
            self.sweep(tail);
            self.log.release(tail);
        }
        match done.failure {
            Some(error) => Err(error),
            None => Ok(moved.is_some() || done.bytes > 0),
        }
    }

    /// Writes a group back; if that fails, each piece of it alone. False if the round must end.
    fn try_group(&self, group: &[(Fid, Piece)], done: &mut Done, go_on: GoOn<'_>) -> bool {
        let error = match self.write_group_back(group) {
            Ok(pieces) => {
                done.bytes += pieces.iter().map(Piece::len).sum::<u64>();
                done.written.push((group[0].0, pieces));
                return true;
            }
            Err(error) => error,
        };
        if let [(object, piece)] = group {
            let goes_on = go_on(*object, piece, &error);
            done.failure.get_or_insert(error);
            return goes_on;
        }
        group.chunks(1).all(|piece| self.try_group(piece, done, go_on))
    }

    fn dirty_pieces(&self, limit: u64) -> Vec<(Fid, Piece)> {
        let mut all = Vec::new();
        for stripe in &self.stripes {
            for (object, pieces) in &*stripe.objects.lock() {
                let is_wanted = |piece: &&Piece| !piece.is_clean && piece.record.at < limit;
                all.extend(pieces.iter().filter(is_wanted).map(|piece| (*object, *piece)));
            }
        }
        all
    }

    /// Writes the remaining parts of pieces of one object to the disk, and returns those.
    fn write_group_back(&self, group: &[(Fid, Piece)]) -> Result<Vec<Piece>> {
        let object = group[0].0;
        let stripe = self.stripe(object);
        let _gate = stripe.gate.read();
        let _disk = stripe.disk.write();
        let mut left = Vec::with_capacity(group.len());
        if let Some(pieces) = stripe.objects.lock().get(&object) {
            for (_, piece) in group {
                let same = |now: &Piece| now.record.at == piece.record.at && !now.is_clean;
                left.extend(pieces.within(piece.start..piece.end).into_iter().filter(same));
            }
        }
        if !left.is_empty() {
            self.write_back(stripe, object, &left)?;
        }
        Ok(left)
    }

    /// Drops pieces before the tail, and returns when no reader uses the log before it any more.
    fn sweep(&self, tail: u64) {
        for stripe in &self.stripes {
            // Also without pieces: a reader may still use some that others have replaced.
            let _gate = stripe.gate.write();
            stripe.objects.lock().retain(|_, pieces| {
                pieces.forget_before(tail * BLOCK);
                !pieces.is_empty()
            });
        }
    }
}

/// Progress of a round.
#[derive(Default)]
struct Done {
    written: Vec<(Fid, Vec<Piece>)>,
    bytes: u64,
    /// First failure.
    failure: Option<ObjectError>,
}

/// Receives a piece that cannot be written back, and decides whether to continue with the next.
type GoOn<'a> = &'a mut dyn FnMut(Fid, &Piece, &ObjectError) -> bool;

/// Returns the number of pieces in the next group: of one object, within the limits.
fn group_len(pieces: &[(Fid, Piece)]) -> usize {
    let mut bytes = 0;
    let fits = |(object, piece): &&(Fid, Piece)| {
        bytes += piece.len();
        *object == pieces[0].0 && bytes <= GROUP_BYTES
    };
    pieces.iter().take(GROUP_PIECES).take_while(fits).count().max(1)
}
