//! The MDT's state and dialogue for one OST.

use super::choose::Candidate;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_ondisk::OstMarkRecord;
use nacre_rpc::OssEndpoint;
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{ClientUuid, Fid, Nid, Status, StatusResult, TransNo};
use nacre_wire::oss::{Bulk, OssReply, OssRequest, OwnedObject, Statfs};
use std::collections::{BTreeSet, VecDeque};
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Ids precreated at first.
const STOCK_MIN: u32 = 32;
/// Largest number of ids precreated at a time.
pub const STOCK_MAX: u32 = 20000;
/// Pause after a failure of an OST.
const REST: Duration = Duration::from_secs(1);
/// Age of the last answer up to which an OST counts as responsive; after a longer time it is asked before a
/// file gets objects on it.
const HEARD_AGE: Duration = Duration::from_millis(50);
/// Longest wait for that answer; after it other OSTs are chosen, as far as there are any.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Timeout of requests that cost an OST little, and that a client's request may wait for.
const SOON: Duration = Duration::from_secs(5);
/// Timeout of requests before which an OST may have much other work.
const IN_TIME: Duration = Duration::from_secs(60);
/// Maximum number of objects to be destroyed that are kept in memory; further ones are read from the log
/// later.
const PENDING_MAX: usize = 64 << 10;
/// `OS_STATFS_*` bits that exclude new objects: read-only, no-create, out of space, out of inodes.
const STATE_REFUSES: u32 = 2 | 4;
const STATE_FULL: u32 = 0x20 | 0x40;
const STATE_DEGRADED: u32 = 1;
/// Interval of checks for an interrupt while a thread waits until an OST has the evictions.
const EVICTION_TICK: Duration = Duration::from_millis(100);
/// Age up to which free space is not read again when all OSTs seem full.
pub const LOOKED_AGE: Duration = Duration::from_millis(500);

/// An object whose destruction, or whose new owners are logged.
#[derive(Clone, Copy)]
pub struct Pending {
    pub transno: TransNo,
    pub since: Instant,
    pub object: Fid,
    /// Its new owners and place; `None` to destroy it.
    pub owned: Option<OwnedObject>,
}

/// Object ids precreated at an OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserved {
    /// Sequence of the objects.
    pub sequence: u64,
    /// The next id to use; beyond `last` if none is precreated.
    pub next: u32,
    /// The last id that is precreated, or was used.
    pub last: u32,
    /// Number of ids of the next precreation.
    pub refill: u32,
    /// True if the OST refused the last precreation for lack of space.
    pub no_space: bool,
}

/// The mutable state of an OST.
pub struct OstState {
    /// Sequence of its objects.
    pub sequence: u64,
    /// Largest id that a file uses.
    pub last_used: u32,
    /// The same at the start.
    mark: u32,
    /// Larger ids that replayed layouts use.
    claimed: BTreeSet<u32>,
    /// Precreated ids as [first, end), in order.
    stock: VecDeque<(u32, u32)>,
    /// Number of ids of the next precreation.
    refill: u32,
    /// True if the OST knows which ids were allocated before it, or this MDT, was last started: objects of
    /// lost transactions have been destroyed, and precreated ids are above all that files use.
    pub prepared: bool,
    /// Number of restarts of the OST that were detected.
    restarts: u64,
    statfs: Option<(Instant, Statfs)>,
    /// True if a thread needs the free space.
    pub statfs_wanted: bool,
    resting_until: Option<Instant>,
    /// Time of the last answer.
    heard: Option<Instant>,
    /// True if it does not answer ([`super::watch`]): it gets no requests except the check whether it is
    /// back.
    away: bool,
    /// True if it refused the last precreation for lack of space.
    no_space: bool,
    /// Objects to be destroyed, oldest first.
    pub pending: VecDeque<Pending>,
    /// Number of objects that the thread is destroying.
    pub destroying: usize,
    /// Number of objects destroyed so far.
    pub destroyed: u64,
    /// True if a request waits for space: destroys then sync the log instead of waiting for their
    /// transactions to become durable.
    pub hurried: bool,
    /// True if an administrator has deactivated it: it gets no requests, and nothing waits for it.
    pub inactive: bool,
    /// Largest number of ids precreated at a time; 0: no new objects (`max_create_count`).
    pub create_count_max: u32,
    /// Evicted clients that the OST must fence, oldest first. It gets these before any other request.
    pub evictions: VecDeque<ClientUuid>,
    /// True if the log has more than `pending`.
    pub rescan: bool,
    /// True while the thread reads the log.
    pub scanning: bool,
    /// True if the thread is to end.
    pub stopped: bool,
    /// True if the thread has ended.
    finished: bool,
}

impl OstState {
    fn in_stock(&self) -> u32 {
        self.stock.iter().map(|(first, end)| end - first).sum()
    }

    /// Returns true if `count` ids are available.
    pub fn has_ids(&self, count: u32) -> bool {
        self.in_stock() >= count
    }

    /// Takes an id from the stock.
    pub fn take(&mut self) -> Option<u32> {
        let (first, end) = self.stock.front_mut()?;
        let oid = *first;
        *first += 1;
        if first == end {
            self.stock.pop_front();
        }
        self.last_used = oid;
        Some(oid)
    }

    /// Returns the ids taken last to the stock; `before` is the largest id that was in use before them.
    pub fn give_back(&mut self, before: u32, ids: &[u32]) {
        self.last_used = before;
        for &oid in ids.iter().rev() {
            match self.stock.front_mut() {
                Some((first, _)) if *first == oid + 1 => *first = oid,
                _ => self.stock.push_front((oid, oid + 1)),
            }
        }
    }

    /// Returns true if more ids should be precreated before a request has to wait for them.
    pub fn is_low(&self) -> bool {
        let mark = if self.refill > 1024 { self.refill / 4 * 3 } else { self.refill / 2 };
        self.in_stock() < mark
    }

    /// Returns true while the OST gets no requests: after a failure, or because it does not answer.
    pub fn is_resting(&self, now: Instant) -> bool {
        self.away || self.resting_until.is_some_and(|until| now < until)
    }
}

/// An OST as the MDT sees it.
pub struct Ost {
    /// Index of the OST.
    pub index: u16,
    /// True while clients may replay layouts with objects above the mark.
    awaits_replay: Arc<AtomicBool>,
    endpoint: RwLock<Arc<dyn OssEndpoint>>,
    /// Id of the OST's server, the same for all OSTs of a server.
    server: Mutex<u64>,
    pub state: Mutex<OstState>,
    /// Wakes the thread.
    pub work: Condvar,
    /// Wakes the threads that wait for ids.
    changed: Condvar,
    /// Held during a precreation, so that threads which need ids do not all send one.
    reserving: Mutex<()>,
    /// Held while evictions are sent to the OST.
    telling: Mutex<()>,
    /// Held while the OST is asked whether it is responsive.
    asking: Mutex<()>,
}

impl Ost {
    /// Builds the state of an OST whose ids are used up to `mark`, as far as is known while `awaits_replay`.
    pub fn new(
        index: u16,
        endpoint: Arc<dyn OssEndpoint>,
        mark: OstMarkRecord,
        awaits_replay: &Arc<AtomicBool>,
    ) -> Ost {
        let gives_ids = gives_ids(index);
        Ost {
            index,
            awaits_replay: awaits_replay.clone(),
            server: Mutex::new(server_of(&*endpoint, false)),
            endpoint: RwLock::new(endpoint),
            state: Mutex::new(OstState {
                sequence: mark.sequence,
                last_used: mark.last_used,
                mark: mark.last_used,
                claimed: BTreeSet::new(),
                stock: VecDeque::new(),
                refill: if gives_ids { STOCK_MIN } else { 0 },
                prepared: !gives_ids,
                restarts: 0,
                statfs: None,
                statfs_wanted: gives_ids,
                resting_until: None,
                heard: None,
                away: false,
                no_space: false,
                pending: VecDeque::new(),
                destroying: 0,
                destroyed: 0,
                hurried: false,
                inactive: false,
                create_count_max: STOCK_MAX,
                evictions: VecDeque::new(),
                rescan: true,
                scanning: false,
                stopped: false,
                finished: false,
            }),
            work: Condvar::new(),
            changed: Condvar::new(),
            reserving: Mutex::new(()),
            telling: Mutex::new(()),
            asking: Mutex::new(()),
        }
    }

    /// Returns the precreated ids.
    pub fn reserved(&self) -> Reserved {
        let state = self.state.lock();
        Reserved {
            sequence: state.sequence,
            next: state.stock.front().map_or(state.last_used.saturating_add(1), |(first, _)| *first),
            last: state.stock.back().map_or(state.last_used, |(_, end)| end - 1),
            refill: state.refill.min(state.create_count_max),
            no_space: state.no_space,
        }
    }

    /// Replaces the endpoint of the OST.
    pub fn set_endpoint(&self, endpoint: Arc<dyn OssEndpoint>) {
        *self.server.lock() = server_of(&*endpoint, false);
        if self.state.lock().inactive {
            // An endpoint without this switch gets no requests anyway.
            let _ = endpoint.set_active(false);
        }
        *self.endpoint.write() = endpoint;
        {
            let mut state = self.state.lock();
            state.resting_until = None;
            // The new endpoint is checked.
            state.away = false;
        }
        self.work.notify_all();
    }

    /// Records whether it answers.
    pub fn note_away(&self, away: bool) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.away, away) == away {
            return;
        }
        match away {
            true => log::warn!("OST{:04x} does not answer: it gets no new objects until it does", self.index),
            false => log::info!("OST{:04x} answers again", self.index),
        }
        state.resting_until = None;
        drop(state);
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Sends a ping, and waits for the answer no longer than `limit`.
    ///
    /// # Errors
    /// `ETIMEDOUT`, `EINTR`.
    pub fn ping(&self, limit: Duration) -> StatusResult<()> {
        self.endpoint().call_within(&OssRequest::Ping, limit)?;
        self.state.lock().heard = Some(Instant::now());
        Ok(())
    }

    /// Returns true if it has answered just now, or answers a ping: writes to its objects will then reach it.
    /// An unresponsive OST gets a pause. Called without locks.
    pub fn answers(&self) -> bool {
        let is_there = |state: &OstState| state.heard.is_some_and(|at| at.elapsed() < HEARD_AGE);
        if is_there(&self.state.lock()) {
            return true;
        }
        // Only an endpoint on the network can fail.
        if self.endpoint().is_local() {
            return true;
        }
        let _only_one = self.asking.lock();
        {
            let state = self.state.lock();
            if is_there(&state) || state.is_resting(Instant::now()) {
                return is_there(&state);
            }
        }
        match self.ping(ANSWER_MAX) {
            // An interrupted ping has no information about the OST.
            Ok(()) | Err(Status::EINTR) => true,
            Err(_) => {
                self.state.lock().resting_until = Some(Instant::now() + REST);
                false
            }
        }
    }

    /// Waits for `time`; returns false if the OST is stopped.
    pub fn wait_unless_stopped(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        let mut state = self.state.lock();
        while !state.stopped && !self.changed.wait_until(&mut state, deadline).timed_out() {}
        !state.stopped
    }

    /// Deactivates or reactivates the OST.
    pub fn set_active(&self, active: bool) {
        self.state.lock().inactive = !active;
        // An endpoint without this switch gets no requests anyway.
        let _ = self.endpoint().set_active(active);
        let mut state = self.state.lock();
        state.resting_until = None;
        state.statfs_wanted = true;
        drop(state);
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Returns true while clients may replay layouts with objects that are not known here.
    pub fn awaits_replay(&self) -> bool {
        self.awaits_replay.load(Ordering::Acquire)
    }

    /// Takes an object for a replayed layout: one with an id that no known file uses. Returns the new mark.
    ///
    /// # Errors
    /// `ESTALE` if another file may use it, or it was destroyed.
    pub fn claim(&self, object: &Fid) -> StatusResult<OstMarkRecord> {
        let mut state = self.state.lock();
        let is_free = object.seq == state.sequence && object.oid > state.mark && object.ver == 0;
        if !is_free || !self.awaits_replay() || !state.claimed.insert(object.oid) {
            return Err(Status::ESTALE);
        }
        state.last_used = state.last_used.max(object.oid);
        Ok(OstMarkRecord { sequence: state.sequence, last_used: state.last_used })
    }

    /// Wakes the thread, and those that wait for ids.
    pub fn look_again_later(&self) {
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.changed.notify_all();
    }

    /// Records that the thread has ended.
    pub fn note_finished(&self) {
        self.state.lock().finished = true;
        self.changed.notify_all();
    }

    /// Waits until the thread has ended, unless it is stuck in a request beyond `until`.
    pub fn wait_finished(&self, until: Instant) {
        let mut state = self.state.lock();
        while !state.finished && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// Returns the state for the choice of OSTs; requests new figures if the known ones are older than `age`.
    pub fn candidate(&self, age: Duration) -> Candidate {
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.statfs.is_none_or(|(at, _)| now.duration_since(at) >= age) && !state.statfs_wanted {
            state.statfs_wanted = true;
            self.work.notify_one();
        }
        let statfs = state.statfs.map(|(_, statfs)| statfs);
        // An OST with less free space than a thousandth of its size counts as full.
        let full = (state.no_space && !state.has_ids(1))
            || statfs.is_some_and(|s| {
                s.state & STATE_FULL != 0 || s.blocks_available <= s.blocks / 1000 || s.files_free == 0
            });
        let state_has = |bits: u32| statfs.is_some_and(|s| s.state & bits != 0);
        let bytes = |blocks: u64, s: &Statfs| blocks.saturating_mul(u64::from(s.block_size));
        Candidate {
            index: self.index,
            server: *self.server.lock(),
            available: statfs.as_ref().map(|s| bytes(s.blocks_available, s)),
            used: statfs.as_ref().map(|s| bytes(s.blocks.saturating_sub(s.blocks_free), s)),
            full: full || state_has(STATE_REFUSES) || state.inactive || state.create_count_max == 0,
            inactive: state.inactive,
            down: state.is_resting(now),
            away: state.away,
            degraded: state_has(STATE_DEGRADED),
            ready: state.has_ids(1),
        }
    }

    /// Returns the endpoint of the OST.
    pub fn endpoint(&self) -> Arc<dyn OssEndpoint> {
        self.endpoint.read().clone()
    }

    /// Sends a request; a failure starts a pause.
    pub fn call(&self, request: &OssRequest) -> StatusResult<OssReply> {
        let endpoint = self.endpoint.read().clone();
        let result = match request {
            // Only the OST's thread waits for destroys, which have no time limit.
            OssRequest::Destroy { .. } => endpoint.call(request, Bulk::None),
            OssRequest::Statfs | OssRequest::Precreate { .. } => endpoint.call_within(request, SOON),
            _ => endpoint.call_within(request, IN_TIME),
        };
        if result.is_ok() {
            *self.server.lock() = server_of(&*endpoint, true);
        }
        let restarts = endpoint.import().map_or(0, |import| import.generation);
        let mut state = self.state.lock();
        match &result {
            Ok(_) => {
                state.resting_until = None;
                state.heard = Some(Instant::now());
                if restarts != state.restarts && gives_ids(self.index) {
                    // It may have restarted from an older copy of its directory.
                    (state.restarts, state.prepared) = (restarts, false);
                    self.work.notify_one();
                }
            }
            Err(status) => {
                if state.resting_until.is_none() {
                    log::warn!("OST{:04x}: {status}", self.index);
                }
                state.resting_until = Some(Instant::now() + REST);
            }
        }
        result
    }

    /// Prepares the OST if it is not prepared, and precreates ids if there are few, or fewer than `needed`.
    pub fn prepare(&self, needed: u32) -> StatusResult<()> {
        // Checked before the wait for other threads that are asking it.
        if self.state.lock().away || self.awaits_replay() {
            return Err(Status::EAGAIN);
        }
        let _only_one = self.reserving.lock();
        let (sequence, resting) = {
            let state = self.state.lock();
            if state.prepared && state.has_ids(needed) && !state.is_low() {
                return Ok(());
            }
            (state.sequence, state.is_resting(Instant::now()))
        };
        if resting {
            return Err(Status::EAGAIN);
        }
        if self.state.lock().inactive {
            return Err(Status::EIO);
        }
        self.tell_evictions()?;
        self.tell_last_id(sequence)?;
        match self.reserve(sequence, needed) {
            // The OST's mark is below the allocated ids, and has to be raised first.
            Err(Status::EPROTO) if !self.state.lock().prepared => {
                self.tell_last_id(sequence)?;
                self.reserve(sequence, needed)
            }
            outcome => outcome,
        }
    }

    /// Sends the id up to which objects may belong to files, if the OST does not have it since its start: it
    /// assigns none of these ids again, and objects with larger ids belong to no file.
    fn tell_last_id(&self, sequence: u64) -> StatusResult<()> {
        let (restarts, last_used) = {
            let state = self.state.lock();
            if state.prepared {
                return Ok(());
            }
            // Ids in stock may be allocated to a file at any moment.
            (state.restarts, state.stock.back().map_or(state.last_used, |(_, end)| end - 1))
        };
        self.call(&OssRequest::DestroyOrphans { sequence, last_used })?;
        let mut state = self.state.lock();
        state.prepared = state.restarts == restarts;
        Ok(())
    }

    fn reserve(&self, sequence: u64, needed: u32) -> StatusResult<()> {
        let count = {
            let mut state = self.state.lock();
            // Used up since the last precreation: the demand is high, so the next one is larger.
            if !state.has_ids(1) || state.is_low() {
                state.refill = (state.refill * 2).min(state.create_count_max.max(STOCK_MIN));
            }
            state.refill.max(needed.min(STOCK_MAX))
        };
        let reply = self.call(&OssRequest::Precreate { sequence, count });
        self.state.lock().no_space = reply == Err(Status::ENOSPC);
        let reply = reply?;
        let OssReply::Precreated { first, count } = reply else { return Err(Status::EPROTO) };
        let end = first.checked_add(count).ok_or(Status::EPROTO)?;
        let mut state = self.state.lock();
        let floor = state.stock.back().map_or(state.last_used + 1, |(_, end)| *end);
        if count == 0 || first < floor {
            log::error!(
                "OST{:04x} offers ids from {first} again, and those below {floor} are in use: it was restored from an older copy; \
                 'nacre check' names the files whose data is lost",
                self.index
            );
            // With its mark raised it continues above; until then it gets no new objects.
            let is_first = std::mem::take(&mut state.prepared);
            if !is_first {
                state.resting_until = Some(Instant::now() + REST);
            }
            return Err(Status::EPROTO);
        }
        match state.stock.back_mut() {
            Some((_, last)) if *last == first => *last = end,
            _ => state.stock.push_back((first, end)),
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Wakes the thread if the stock is low.
    pub fn refill_if_low(&self, state: &OstState) {
        if state.is_low() {
            self.work.notify_one();
        }
    }

    /// Waits until ids arrive, but not beyond `until`.
    pub fn wait_for_change(&self, until: Instant) {
        let mut state = self.state.lock();
        if !state.has_ids(1) && !state.stopped {
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Reads the free space.
    pub fn refresh_statfs(&self) -> StatusResult<()> {
        let reply = self.call(&OssRequest::Statfs)?;
        let OssReply::Statfs(statfs) = reply else { return Err(Status::EPROTO) };
        let mut state = self.state.lock();
        state.statfs = Some((Instant::now(), statfs));
        state.statfs_wanted = false;
        // It may have free space again; otherwise the next precreation fails.
        state.no_space &= statfs.blocks_available == 0;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until the free space is known as of `since`, but not beyond `until` and not for a failing OST.
    pub fn wait_fresh(&self, since: Instant, until: Instant) {
        let mut state = self.state.lock();
        while state.statfs.is_none_or(|(at, _)| at < since)
            && !state.stopped
            && !state.inactive
            && !state.is_resting(Instant::now())
        {
            state.statfs_wanted = true;
            self.work.notify_one();
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Reads the free space if it is uncertain; failures are logged where they occur.
    pub fn look_again(&self) {
        let now = Instant::now();
        let (is_fresh, resting) = {
            let state = self.state.lock();
            let at = state.statfs.map(|(at, _)| at);
            (at.is_some_and(|at| now.duration_since(at) < LOOKED_AGE), state.is_resting(now))
        };
        if !is_fresh && !resting && !self.state.lock().inactive {
            let _ = self.refresh_statfs();
        }
    }

    /// Destroys the queued objects without waiting for their transactions to become durable on their own.
    pub fn hurry(&self) {
        let mut state = self.state.lock();
        state.hurried = !state.is_resting(Instant::now());
        self.work.notify_one();
    }

    /// Waits until the objects queued at present are destroyed, but not beyond `until` and not for a failing
    /// OST. Then checks again whether it is full.
    pub fn wait_destroyed(&self, until: Instant) {
        self.wait_while(until, |state| state.rescan || state.scanning);
        let target = {
            let state = self.state.lock();
            state.destroyed + (state.pending.len() + state.destroying) as u64
        };
        self.hurry();
        self.wait_while(until, |state| state.destroyed < target);
        // The data part of an MDT gets no new objects from here.
        if gives_ids(self.index) && self.candidate(Duration::ZERO).full {
            // Failures are logged where they occur.
            let _ = self.refresh_statfs().and_then(|()| self.prepare(1));
        }
    }

    fn wait_while(&self, until: Instant, busy: impl Fn(&OstState) -> bool) {
        let mut state = self.state.lock();
        while busy(&state) && !state.stopped && !state.inactive && !state.is_resting(Instant::now()) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }

    /// Queues the eviction of a client for the thread.
    pub fn evict_later(&self, client: ClientUuid) {
        let mut state = self.state.lock();
        if !state.evictions.contains(&client) {
            state.evictions.push_back(client);
        }
        self.work.notify_one();
    }

    /// Waits until the OST has all evictions; returns false if it does not have them by `until`.
    pub fn wait_evicted(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        // A deactivated OST gets them before any other request once it is active again.
        while !state.evictions.is_empty() && !state.stopped && !state.inactive {
            if self.changed.wait_until(&mut state, until).timed_out() {
                return state.evictions.is_empty();
            }
        }
        state.evictions.is_empty() || state.inactive
    }

    /// Sends all evictions to the OST before it is asked about objects, as far as it is reachable.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`; `EIO` if it is deactivated and unresponsive.
    pub fn hear_evictions(&self) -> StatusResult<()> {
        loop {
            let (is_told, inactive, stopped) = {
                let state = self.state.lock();
                (state.evictions.is_empty(), state.inactive, state.stopped)
            };
            if is_told {
                return Ok(());
            }
            if inactive {
                return self.tell_evictions_by(|request| self.endpoint().call_out_of_use(request));
            }
            if stopped {
                return Err(Status::ESHUTDOWN);
            }
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            nacre_env::blocking(|| self.wait_evicted(Instant::now() + EVICTION_TICK));
        }
    }

    /// Sends the outstanding evictions to the OST.
    pub fn tell_evictions(&self) -> StatusResult<()> {
        self.tell_evictions_by(|request| self.call(request))
    }

    fn tell_evictions_by(&self, call: impl Fn(&OssRequest) -> StatusResult<OssReply>) -> StatusResult<()> {
        if self.state.lock().evictions.is_empty() {
            return Ok(());
        }
        let _in_order = self.telling.lock();
        loop {
            let Some(client) = self.state.lock().evictions.front().copied() else { return Ok(()) };
            match call(&OssRequest::Evict { client }) {
                // `EOPNOTSUPP`: it has no state of clients to drop.
                Ok(_) | Err(Status::EOPNOTSUPP) => {}
                Err(status) => return Err(status),
            }
            self.state.lock().evictions.pop_front();
            self.changed.notify_all();
        }
    }

    /// Records that the thread has read the log; the result is in `pending` when the lock on `state` is
    /// released.
    pub fn note_scanned(&self, state: &mut OstState) {
        state.scanning = false;
        self.changed.notify_all();
    }

    /// Records that the thread has destroyed `count` objects that it took from `pending`.
    pub fn note_destroyed(&self, count: usize) {
        let mut state = self.state.lock();
        state.destroying = 0;
        state.destroyed += count as u64;
        state.hurried &= count > 0 && !state.pending.is_empty();
        self.changed.notify_all();
    }

    /// Queues an object to be destroyed.
    pub fn destroy_later(&self, transno: TransNo, object: Fid) {
        self.do_later(Pending { transno, since: Instant::now(), object, owned: None });
    }

    /// Queues new owners of an object.
    pub fn set_owners_later(&self, transno: TransNo, owned: OwnedObject) {
        self.do_later(Pending { transno, since: Instant::now(), object: owned.object, owned: Some(owned) });
    }

    fn do_later(&self, pending: Pending) {
        let mut state = self.state.lock();
        if state.pending.len() >= PENDING_MAX {
            state.rescan = true;
            return;
        }
        let was_idle = state.pending.is_empty();
        state.pending.push_back(pending);
        if was_idle {
            self.work.notify_one();
        }
    }
}

/// Returns true if a target assigns ids of objects: the data part of an MDT uses the FIDs of files.
fn gives_ids(index: u16) -> bool {
    index < TARGET_INDEX_MAX
}

/// Returns a number for the host of an endpoint; 0 for this process. After the first answer it identifies the
/// host's boot, which all its addresses share; before that, an address.
fn server_of(endpoint: &dyn OssEndpoint, has_answered: bool) -> u64 {
    if has_answered && let epoch @ 1.. = endpoint.durability_epoch() {
        return epoch;
    }
    let nid = endpoint.import().and_then(|import| import.nids.first().copied());
    match nid {
        Some(Nid::Tcp(addr)) => {
            std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default().hash_one(addr.ip())
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
