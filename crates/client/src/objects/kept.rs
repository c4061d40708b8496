//! Changes of objects that an OST has acknowledged and that a power loss of its host may still undo.
//!
//! An OST on another host acknowledges a change with a number when it has it in memory or on its device, and stores it
//! durably later. The client keeps each change, with its data, until the OST reports that. If the host of the OST loses
//! power before, the client replays what it has kept, before any other request ([`Kept::replay`]). Losses that are left
//! change the [epoch](Kept::epoch): `fsync` and `close` of files with data that was not synced fail, once.
//!
//! What is kept is bounded (`osc.*.max_kept_mb`). A thread asks the OST to make it durable when it is some seconds old
//! (`osc.*.max_kept_age`); a writer does that itself when the bound is reached, and waits for the disk.

use crate::requests::mdt::replay_is_given_up;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_rpc::{OssEndpoint, Recovery, Started, Tunables};
use nacre_types::{Fid, Status, StatusResult, TransNo};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a kept change takes in addition to its data.
const ENTRY_BYTES: u64 = (size_of::<Change>() + 64) as u64;

/// An acknowledged change, as it is replayed.
struct Change {
    number: TransNo,
    /// Position among the changes of this client.
    place: u64,
    object: Fid,
    request: OssRequest,
    /// Data of a write; `None` for other changes.
    data: Option<Vec<u8>>,
}

impl Change {
    fn len_bytes(&self) -> u64 {
        ENTRY_BYTES + self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

#[derive(Default)]
struct State {
    /// Nearly in the order of their numbers: threads enter them after the reply.
    all: VecDeque<Arc<Change>>,
    bytes: u64,
    /// Number of changes so far.
    entered: u64,
    /// When the first change was entered that is not durable.
    since: Option<Instant>,
    /// Acknowledged changes that are neither kept nor known to be durable, up to this place.
    gap: Option<u64>,
    /// Replays that have begun.
    replays: u64,
    /// Epoch of the OST's host that has acknowledged the changes, and the reported epoch; 0 before the first use.
    host_epoch: u64,
    epoch: u64,
}

impl State {
    fn retain(&mut self, keep: impl Fn(&Change) -> bool) {
        let bytes = &mut self.bytes;
        self.all.retain(|change| {
            let keeps = keep(change);
            if !keeps {
                *bytes -= change.len_bytes();
            }
            keeps
        });
        if self.all.is_empty() {
            self.since = None;
        }
    }

    /// Forgets what is durable. Places are those before the request that made it durable.
    fn trim(&mut self, committed: TransNo) {
        // The first ones are mostly the oldest.
        if self.all.front().is_some_and(|first| first.number <= committed) {
            self.retain(|change| change.number > committed);
            self.since = self.since.map(|_| Instant::now());
        }
    }

    /// Records that acknowledged changes are not kept.
    fn let_go(&mut self) {
        self.entered += 1;
        self.gap = Some(self.entered);
    }

    fn lose(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
    }
}

/// State before a request that changes something or makes it durable.
#[derive(Clone, Copy)]
pub(crate) struct Before {
    place: u64,
    replays: u64,
}

/// What follows from a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    Done,
    /// The reply may come from a run of the OST that has lost the change: it is to be sent again.
    Again,
    /// The OST is to be asked to make its changes durable, because there are too many to keep.
    Full,
}

/// Changes that one OST has acknowledged and may lose. See the [module documentation](self).
pub(crate) struct Kept {
    state: Mutex<State>,
    /// Called when a change is kept and there was none.
    on_first: Box<dyn Fn() + Send + Sync>,
}

/// True for a request whose effect the OST may lose with its host.
fn is_change(request: &OssRequest) -> bool {
    matches!(request, OssRequest::Write { .. } | OssRequest::Truncate { .. } | OssRequest::Fallocate { .. })
}

/// Returns the request that replays a change, and its object.
fn replay_of(request: &OssRequest, number: TransNo) -> Option<(Fid, OssRequest)> {
    let mut replay = request.clone();
    match &mut replay {
        OssRequest::Write { object, lock, sync, incarnation, .. } => {
            (*lock, *sync, *incarnation) = (IoLock::Replay(number), false, 0);
            Some((*object, replay))
        }
        OssRequest::Truncate { object, lock, .. } | OssRequest::Fallocate { object, lock, .. } => {
            *lock = IoLock::Replay(number);
            Some((*object, replay))
        }
        _ => None,
    }
}

impl Kept {
    /// Creates an empty set; `on_first` is called when a change is kept and there was none.
    pub fn new(on_first: Box<dyn Fn() + Send + Sync>) -> Kept {
        Kept { state: Mutex::default(), on_first }
    }

    /// Returns the state before a request is sent; `None` for requests that neither change something nor make it
    /// durable.
    pub fn before(&self, inner: &dyn OssEndpoint, request: &OssRequest) -> Option<Before> {
        if !is_change(request) && !matches!(request, OssRequest::Sync { .. }) {
            return None;
        }
        let mut state = self.state.lock();
        if state.host_epoch == 0 && is_change(request) {
            // Connects, and recovers, if there is no connection yet.
            drop(state);
            self.epoch(inner);
            state = self.state.lock();
        }
        Some(Before { place: state.entered, replays: state.replays })
    }

    /// Evaluates the reply to a request with this data; `bytes_max`: most bytes that are kept.
    pub fn after(
        &self,
        before: Before,
        request: &OssRequest,
        data: Option<&[u8]>,
        reply: OssReply,
        bytes_max: u64,
    ) -> (OssReply, Next) {
        let mut state = self.state.lock();
        let OssReply::Logged { transno: number, last_committed, reply } = reply else {
            match request {
                OssRequest::Sync { object: Some(object) } => {
                    state.retain(|change| change.object != *object || change.place > before.place);
                }
                OssRequest::Sync { object: None } => {
                    state.retain(|change| change.place > before.place);
                    state.since = state.since.map(|_| Instant::now());
                    state.gap = state.gap.filter(|gap| *gap > before.place);
                }
                request if is_change(request) => state.let_go(),
                _ => {}
            }
            return (reply, Next::Done);
        };
        let reply = OssReply::from(reply);
        if state.replays != before.replays {
            return (reply, Next::Again);
        }
        state.trim(last_committed);
        let Some((object, replay)) = replay_of(request, number) else { return (reply, Next::Done) };
        if matches!(request, OssRequest::Write { sync: true, .. }) {
            state.retain(|change| change.object != object || change.place > before.place);
            return (reply, Next::Done);
        }
        if bytes_max == 0 {
            state.let_go();
            return (reply, Next::Done);
        }
        let written = match reply {
            OssReply::Written { bytes, .. } => bytes as usize,
            _ => 0,
        };
        let data = data.map(|data| data[..written.min(data.len())].to_vec());
        state.entered += 1;
        let is_first = state.since.is_none();
        let change = Change { number, place: state.entered, object, request: replay, data };
        state.bytes += change.len_bytes();
        state.all.push_back(Arc::new(change));
        state.since.get_or_insert_with(Instant::now);
        let next = if state.bytes > bytes_max { Next::Full } else { Next::Done };
        drop(state);
        if is_first {
            (self.on_first)();
        }
        (reply, next)
    }

    /// Forgets the oldest changes beyond a bound, after the OST has failed to make them durable.
    pub fn let_go_beyond(&self, bytes_max: u64) {
        let mut state = self.state.lock();
        while state.bytes > bytes_max
            && let Some(first) = state.all.pop_front()
        {
            state.bytes -= first.len_bytes();
            state.let_go();
        }
    }

    /// True if the OST is to be asked to make changes durable that are as old as this.
    fn is_due(&self, age: Duration) -> bool {
        self.state.lock().since.is_some_and(|since| since.elapsed() >= age)
    }

    /// True if changes are kept.
    pub fn has_any(&self) -> bool {
        self.state.lock().since.is_some()
    }

    /// Returns the epoch of durability ([`OssEndpoint::durability_epoch`]): it changes when changes are lost that were
    /// not replayed.
    pub fn epoch(&self, inner: &dyn OssEndpoint) -> u64 {
        let host_epoch = inner.durability_epoch();
        let mut state = self.state.lock();
        if state.host_epoch == 0 {
            (state.host_epoch, state.epoch) = (host_epoch, host_epoch);
        }
        // Without kept changes no replay is needed to know that the others are lost.
        if state.host_epoch != host_epoch && host_epoch != 0 && state.all.is_empty() && state.gap.is_some() {
            (state.host_epoch, state.gap) = (host_epoch, None);
            state.replays += 1;
            state.lose();
        }
        state.epoch
    }

    /// Restores what the OST has lost, after this client has connected to it again and before other requests continue.
    ///
    /// # Errors
    /// Those after which it has to be called again.
    pub fn replay(&self, ost_index: u16, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        let host_epoch = endpoint.durability_epoch();
        let changes = {
            let mut state = self.state.lock();
            if recovery == Recovery::Evicted && !state.all.is_empty() {
                // Others may have changed the same objects since.
                state.retain(|_| false);
                state.let_go();
            }
            if state.host_epoch == host_epoch || state.host_epoch == 0 {
                return Ok(());
            }
            state.replays += 1;
            let mut changes: Vec<Arc<Change>> = state.all.iter().cloned().collect();
            changes.sort_by_key(|change| change.number);
            changes
        };
        let (mut done, mut lost) = (0, 0);
        for change in &changes {
            match send(endpoint, change) {
                Ok(()) => {
                    done += 1;
                    continue;
                }
                Err(status) if replay_is_given_up(status) => return Err(status),
                // The object was destroyed.
                Err(Status::ENOENT) => {}
                Err(status) => {
                    log::warn!("OST{ost_index:04x}: change {} is lost: {status}", change.number.0);
                    lost += 1;
                }
            }
            self.state.lock().retain(|known| known.place != change.place);
        }
        let mut state = self.state.lock();
        state.host_epoch = host_epoch;
        // Taken in any case: a gap is reported once.
        let had_gap = state.gap.take().is_some();
        if lost > 0 || had_gap {
            state.lose();
        }
        drop(state);
        if done > 0 {
            log::warn!(
                "the host of OST{ost_index:04x} was started again: {done} changes of this client are replayed"
            );
        }
        if lost > 0 {
            log::error!(
                "OST{ost_index:04x} has lost {lost} changes that it had answered, as if its host had lost power: fsync \
                 and close of files with data that was not synced fail once (EIO)"
            );
        }
        Ok(())
    }

    /// Returns the number of kept changes and their bytes.
    #[cfg(test)]
    pub fn count(&self) -> (usize, u64) {
        let state = self.state.lock();
        (state.all.len(), state.bytes)
    }
}

/// Replays a change.
fn send(endpoint: &dyn OssEndpoint, change: &Change) -> StatusResult<()> {
    let Some(data) = &change.data else { return endpoint.call(&change.request, Bulk::None).map(drop) };
    match endpoint.call(&change.request, Bulk::Send(data))? {
        OssReply::Written { bytes, .. } if bytes as usize == data.len() => Ok(()),
        OssReply::Written { .. } => Err(Status::ENOSPC),
        _ => Err(Status::EPROTO),
    }
}

/// Sends requests to an OST and keeps what is to be kept.
pub(crate) struct Keeping<'a> {
    pub inner: &'a dyn OssEndpoint,
    pub kept: &'a Kept,
}

impl<'a> Keeping<'a> {
    fn bytes_max(&self) -> u64 {
        self.inner.tunables().map_or(0, |tunables| Tunables::kept_bytes_max(tunables))
    }

    /// Runs a request with data to send, or without data, as [`OssEndpoint::call`].
    pub fn call(&self, request: &OssRequest, data: Option<&[u8]>) -> StatusResult<OssReply> {
        let Some(before) = self.kept.before(self.inner, request) else {
            return self.inner.call(request, data.map_or(Bulk::None, Bulk::Send));
        };
        let reply = self.send(request, data)?;
        self.finish(before, request, data, reply)
    }

    fn send(&self, request: &OssRequest, data: Option<&[u8]>) -> StatusResult<OssReply> {
        let bulk = data.map_or(Bulk::None, Bulk::Send);
        // The parts of a divided request would have several numbers, and the writes of others be between them.
        if !matches!(request, OssRequest::Write { lock: IoLock::Server, .. }) {
            return self.inner.call(request, bulk);
        }
        // SAFETY: the started request is waited for right here, before its buffers end.
        match unsafe { self.inner.start(request, bulk) } {
            Started::Finished(reply) => reply,
            Started::InFlight(wait) => wait(),
        }
    }

    /// Evaluates the reply to a request that was sent in the state `before`.
    pub fn finish(
        &self,
        mut before: Before,
        request: &OssRequest,
        data: Option<&[u8]>,
        mut reply: OssReply,
    ) -> StatusResult<OssReply> {
        let bytes_max = self.bytes_max();
        loop {
            match self.kept.after(before, request, data, reply, bytes_max) {
                (_, Next::Again) => {
                    before = self.kept.before(self.inner, request).unwrap_or(before);
                    reply = self.send(request, data)?;
                }
                (reply, Next::Done) => return Ok(reply),
                (reply, Next::Full) => {
                    if let Err(status) = self.sync(None)
                        && status != Status::EINTR
                    {
                        self.kept.let_go_beyond(bytes_max);
                    }
                    return Ok(reply);
                }
            }
        }
    }

    /// Asks the OST to make everything durable; within `limit` if there is one.
    fn sync(&self, limit: Option<Duration>) -> StatusResult<()> {
        let request = OssRequest::Sync { object: None };
        let before = self.kept.before(self.inner, &request);
        let reply = match limit {
            Some(limit) => self.inner.call_within(&request, limit)?,
            None => self.inner.call(&request, Bulk::None)?,
        };
        if let Some(before) = before {
            self.kept.after(before, &request, None, reply, 0);
        }
        Ok(())
    }

    /// Asks the OST to make everything durable, within `limit`, if kept changes are old enough.
    ///
    /// # Errors
    /// Those of the OST; `ETIMEDOUT`.
    pub fn sync_old(&self, limit: Duration) -> StatusResult<()> {
        let age = self.inner.tunables().map_or(Duration::MAX, |tunables| tunables.kept_age_max());
        if self.kept.is_due(age) { self.sync(Some(limit)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
