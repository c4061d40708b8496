//! The dirty windows of one file.
//!
//! A window is the part of an object that one RPC may write: [`WINDOW_BYTES`], at a multiple of that. At most
//! one request for a window is in flight at a time, so data of one place arrives in the order in which it was
//! written; meanwhile new data gathers in a second buffer.
//!
//! A thread fills a window without the lock: it holds the bytes' range of the file exclusively, so no two
//! threads touch the same byte, and the window counts it in `fillers`, so that no thread sends the buffer
//! meanwhile. Spans name only bytes that are complete.

use crate::write_back::budget::Budget;
use crate::write_back::pool::{Buffer, WINDOW_BYTES};
use crate::write_back::spans::Spans;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_layout::StripeObject;
use nacre_types::Fid;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// How often a wait checks for an interrupt.
pub(super) const POLL: Duration = Duration::from_millis(10);
/// Numbers windows in the order in which they began.
static BORN: AtomicU64 = AtomicU64::new(1);

/// Place of a window: an object, and a part of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Key {
    pub object: Fid,
    /// Offset in the object, in units of [`WINDOW_BYTES`].
    pub number: u64,
}

impl Key {
    /// Returns the offset of the window in its object, in bytes.
    pub fn offset(&self) -> u64 {
        self.number * WINDOW_BYTES
    }

    /// Returns the part of the object range `[start, end)` that is in this window, as offsets into it.
    pub fn overlap(&self, start: u64, end: u64) -> Option<(u32, u32)> {
        let (from, to) = (self.offset(), self.offset() + WINDOW_BYTES);
        let (start, end) = (start.max(from), end.min(to));
        (start < end).then(|| ((start - from) as u32, (end - from) as u32))
    }
}

/// Data of one window that was not sent.
pub(crate) struct Window {
    pub buffer: Buffer,
    pub budget: Arc<Budget>,
    /// The object, as in the layout at the time of the write.
    pub stripe: StripeObject,
    pub spans: Spans,
    pub since: Instant,
    /// Incarnation of the client at the OST when the first of it was written.
    pub incarnation: u64,
    /// True if some of it was written while the client was the only one, without a lock.
    pub alone: bool,
    born: u64,
    fillers: u32,
    queued: bool,
}

impl Window {
    pub fn new(
        buffer: Buffer,
        budget: Arc<Budget>,
        stripe: StripeObject,
        since: Instant,
        incarnation: u64,
    ) -> Window {
        let born = BORN.fetch_add(1, Ordering::Relaxed);
        Window {
            buffer,
            budget,
            stripe,
            spans: Spans::default(),
            since,
            incarnation,
            alone: false,
            born,
            fillers: 0,
            queued: false,
        }
    }
}

#[derive(Default)]
struct Slot {
    window: Option<Window>,
    /// Number (`born`) of the window that is being sent.
    in_flight: Option<u64>,
    /// Where the last span of that window ends.
    in_flight_end: u32,
}

/// A window that is to be sent; its place counts as in flight until [`Table::sent`].
pub(crate) struct Job {
    pub key: Key,
    pub window: Window,
}

/// Which windows an operation concerns.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    /// All windows of the file.
    All,
    /// Windows that overlap one of the ranges `[start, end)` of objects.
    Ranges(Vec<(Fid, u64, u64)>),
}

impl Scope {
    fn overlap(&self, key: &Key) -> Option<(u32, u32)> {
        match self {
            Scope::All => Some((0, WINDOW_BYTES as u32)),
            Scope::Ranges(ranges) => ranges
                .iter()
                .find(|(object, start, end)| *object == key.object && key.overlap(*start, *end).is_some())
                .and_then(|(_, start, end)| key.overlap(*start, *end)),
        }
    }
}

/// Result of [`Table::take`].
pub(crate) enum Taken {
    /// Windows to send.
    Jobs(Vec<Job>),
    /// All windows left are being filled or sent by other threads.
    Busy,
    /// No window is left.
    Clean,
}

/// Result of [`Table::begin_fill`].
pub(crate) enum Fill {
    /// The window's first byte; to be filled, then [`Table::end_fill`].
    Into(*mut u8),
    /// There is no window yet.
    NeedsWindow,
}

/// The windows of one file.
#[derive(Default)]
pub(crate) struct Table {
    slots: Mutex<BTreeMap<Key, Slot>>,
    /// Number of slots, to be read without the lock.
    count: AtomicUsize,
    /// True if the file is in the list of files with ageing data.
    pub listed: std::sync::atomic::AtomicBool,
    changed: Condvar,
    waiters: AtomicUsize,
}

impl Table {
    /// True if nothing is dirty or in flight. Reliable for a thread that holds the range in question, at the
    /// time of the call.
    pub fn is_clean(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// True if nothing in `scope` is dirty or in flight.
    pub fn is_clean_in(&self, scope: &Scope) -> bool {
        let slots = self.slots.lock();
        slots.keys().all(|key| scope.overlap(key).is_none())
    }

    /// Begins to fill the window at `key`; `fresh` is a new one in case there is none, and taken only then.
    pub fn begin_fill(&self, key: Key, fresh: &mut Option<Window>) -> Fill {
        let mut slots = self.slots.lock();
        if fresh.is_none() && slots.get(&key).is_none_or(|slot| slot.window.is_none()) {
            return Fill::NeedsWindow;
        }
        let slot = slots.entry(key).or_default();
        if slot.window.is_none() {
            slot.window = fresh.take();
        }
        let start = match &mut slot.window {
            Some(window) => {
                window.fillers += 1;
                window.buffer.start()
            }
            None => return Fill::NeedsWindow,
        };
        self.count.store(slots.len(), Ordering::Release);
        Fill::Into(start)
    }

    /// True if data of `[start, end)` of the object would all join windows that exist.
    pub fn has_windows(&self, object: Fid, start: u64, end: u64) -> bool {
        let slots = self.slots.lock();
        (start / WINDOW_BYTES..end.div_ceil(WINDOW_BYTES))
            .all(|number| slots.get(&Key { object, number }).is_some_and(|slot| slot.window.is_some()))
    }

    /// Copies the bytes of the window from `start` on, if all of them are dirty. The caller holds their
    /// range, so no thread is filling them; other bytes of the window may be filled meanwhile.
    ///
    /// The lock is held over the copy: if readers were counted like fillers, a series of them could keep the
    /// window from being sent for ever.
    pub fn copy_out(&self, key: Key, start: u32, to: &mut [u8]) -> bool {
        let slots = self.slots.lock();
        let Some(window) = slots.get(&key).and_then(|slot| slot.window.as_ref()) else { return false };
        let Some(end) = u32::try_from(to.len()).ok().and_then(|len| start.checked_add(len)) else {
            return false;
        };
        if !window.spans.contains(start, end) {
            return false;
        }
        // SAFETY: spans end within the buffer and name bytes that were written; the range excludes writers,
        // and the lock keeps the window where it is.
        unsafe {
            let from = window.buffer.start().add(start as usize);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
        true
    }

    /// Records that these bytes of the window were filled, `alone` or under a lock. True if it is to be
    /// queued for sending at once.
    pub fn end_fill(&self, key: Key, filled: Range<u32>, alone: bool) -> bool {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.get_mut(&key) else { return false };
        let Some(window) = &mut slot.window else { return false };
        debug_assert!(window.fillers > 0 && filled.end as u64 <= WINDOW_BYTES, "begin_fill counted it");
        window.fillers -= 1;
        window.spans.insert(filled.start, filled.end);
        window.alone |= alone;
        let ready = is_ready(slot);
        self.notify();
        ready
    }

    /// Takes out the windows that can be sent: those in `scope` that began before `born`.
    pub fn take(&self, scope: &Scope, born: u64, older_than: Option<Instant>) -> Taken {
        let mut slots = self.slots.lock();
        let (mut jobs, mut busy) = (Vec::new(), false);
        for (key, slot) in slots.iter_mut().filter(|(key, _)| scope.overlap(key).is_some()) {
            if slot.in_flight.is_some_and(|number| number < born) {
                busy = true;
                continue;
            }
            let Some(window) = &slot.window else { continue };
            if window.born >= born || older_than.is_some_and(|limit| window.since > limit) {
                continue;
            }
            match window.fillers > 0 || slot.in_flight.is_some() {
                true => busy = true,
                false => jobs.extend(take_window(*key, slot)),
            }
        }
        match (jobs.is_empty(), busy) {
            (false, _) => Taken::Jobs(jobs),
            (true, true) => Taken::Busy,
            (true, false) => Taken::Clean,
        }
    }

    /// Takes out one window, if it can be sent.
    pub fn take_one(&self, key: Key) -> Option<Job> {
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&key)?;
        if slot.in_flight.is_some() || slot.window.as_ref()?.fillers > 0 {
            // It is queued again when the request or the fill has ended.
            slot.window.as_mut()?.queued = false;
            return None;
        }
        take_window(key, slot)
    }

    /// Takes out the only window if nothing else is dirty or in flight, and its only span is one from the
    /// beginning of `object` to at most `end_max`.
    pub fn take_sole(&self, object: Fid, end_max: u32) -> Option<Job> {
        let mut slots = self.slots.lock();
        let mut found = slots.iter_mut();
        let (Some((key, slot)), None) = (found.next(), found.next()) else { return None };
        let window = slot.window.as_ref().filter(|_| slot.in_flight.is_none())?;
        let is_meant = *key == Key { object, number: 0 } && window.fillers == 0;
        let fits = window.spans.iter().count() == 1 && window.spans.end() <= end_max;
        if is_meant && fits { take_window(*key, slot) } else { None }
    }

    /// Returns a lower bound of the numbers of windows that begin later.
    pub fn now() -> u64 {
        BORN.load(Ordering::Relaxed)
    }

    /// Returns where the unsent data of an object ends; 0 if there is none.
    pub fn object_end(&self, object: &Fid) -> u64 {
        let slots = self.slots.lock();
        let ends = slots.iter().filter(|(key, _)| key.object == *object).map(|(key, slot)| {
            let filled = slot.window.as_ref().map_or(0, |window| window.spans.end());
            let sent = if slot.in_flight.is_some() { slot.in_flight_end } else { 0 };
            match filled.max(sent) {
                0 => 0,
                end => key.offset() + u64::from(end),
            }
        });
        ends.max().unwrap_or(0)
    }

    /// Returns when the oldest window began.
    pub fn oldest(&self) -> Option<Instant> {
        self.slots.lock().values().filter_map(|slot| Some(slot.window.as_ref()?.since)).min()
    }

    /// Records that a window which was taken out has been sent, or is lost. True if newer data of its place
    /// is to be queued.
    pub fn sent(&self, key: Key) -> bool {
        let mut slots = self.slots.lock();
        let ready = match slots.get_mut(&key) {
            Some(slot) => {
                slot.in_flight = None;
                is_ready(slot)
            }
            None => false,
        };
        self.tidy(slots, key);
        ready
    }

    /// Puts back a window that was taken out and could not be sent. Newer data of its place wins.
    pub fn put_back(&self, mut job: Job) {
        let mut slots = self.slots.lock();
        loop {
            let slot = slots.entry(job.key).or_default();
            let Some(newer) = &mut slot.window else {
                job.window.queued = false;
                slot.window = Some(job.window);
                break;
            };
            if newer.fillers > 0 {
                self.wait_locked(&mut slots);
                continue;
            }
            let mut old = job.window.spans.clone();
            newer.spans.iter().for_each(|(start, end)| old.remove(start, end));
            for (start, end) in old.iter() {
                // SAFETY: both buffers have WINDOW_BYTES, spans end within; no thread fills the newer one and
                // no other thread has the older one, and the lock is held.
                unsafe {
                    let from = job.window.buffer.start().add(start as usize);
                    let to = newer.buffer.start().add(start as usize);
                    std::ptr::copy_nonoverlapping(from, to, (end - start) as usize);
                }
                newer.spans.insert(start, end);
            }
            newer.alone |= job.window.alone;
            newer.incarnation = newer.incarnation.min(job.window.incarnation);
            newer.since = newer.since.min(job.window.since);
            newer.born = newer.born.min(job.window.born);
            job.window.budget.give_back(false);
            break;
        }
        if let Some(slot) = slots.get_mut(&job.key) {
            slot.in_flight = None;
        }
        self.notify();
    }

    /// Drops dirty data in `scope`. True if nothing of it is in flight any more; otherwise the caller tries
    /// again.
    pub fn discard(&self, scope: &Scope) -> bool {
        let mut slots = self.slots.lock();
        let mut done = true;
        let mut empty = Vec::new();
        for (key, slot) in slots.iter_mut() {
            let Some((start, end)) = scope.overlap(key) else { continue };
            done &= slot.in_flight.is_none();
            if let Some(window) = &mut slot.window {
                window.spans.remove(start, end);
                if window.spans.is_empty() && window.fillers == 0 {
                    window.budget.give_back(false);
                    slot.window = None;
                    empty.push(*key);
                }
            }
        }
        for key in empty {
            if slots.get(&key).is_some_and(|slot| slot.in_flight.is_none()) {
                slots.remove(&key);
            }
        }
        self.count.store(slots.len(), Ordering::Release);
        self.notify();
        done
    }

    /// Waits a moment for a change.
    pub fn wait(&self) {
        let mut slots = self.slots.lock();
        if !slots.is_empty() {
            self.wait_locked(&mut slots);
        }
    }

    fn wait_locked(&self, slots: &mut MutexGuard<'_, BTreeMap<Key, Slot>>) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        nacre_env::blocking(|| self.changed.wait_for(slots, POLL));
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of dirty bytes, without those in flight.
    pub fn bytes(&self) -> u64 {
        let slots = self.slots.lock();
        slots.values().filter_map(|slot| Some(slot.window.as_ref()?.spans.bytes())).sum()
    }

    fn tidy(&self, mut slots: MutexGuard<'_, BTreeMap<Key, Slot>>, key: Key) {
        if slots.get(&key).is_some_and(|slot| slot.window.is_none() && slot.in_flight.is_none()) {
            slots.remove(&key);
        }
        self.count.store(slots.len(), Ordering::Release);
        self.notify();
    }

    fn notify(&self) {
        if self.waiters.load(Ordering::Relaxed) > 0 {
            self.changed.notify_all();
        }
    }
}

fn take_window(key: Key, slot: &mut Slot) -> Option<Job> {
    let window = slot.window.take()?;
    slot.in_flight = Some(window.born);
    slot.in_flight_end = window.spans.end();
    Some(Job { key, window })
}

/// True, once, if the window's stream has passed its end and the window can be sent.
fn is_ready(slot: &mut Slot) -> bool {
    match &mut slot.window {
        Some(window)
            if window.fillers == 0
                && !window.queued
                && slot.in_flight.is_none()
                && window.spans.is_run_to(WINDOW_BYTES as u32) =>
        {
            window.queued = true;
            true
        }
        _ => false,
    }
}
