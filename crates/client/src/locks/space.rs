//! The locks of this client at one OST: the engine, its messages, and the operations that wait for it.

use crate::locks::{FLUSH_THREADS, Locks, MESSAGE_THREADS};
use crate::tasks::Tasks;
use nacre_env::activity::{Cause, blocking_for};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_layout::Layout;
use nacre_lock::client::{Acquire, ClientConfig, Effect, LockClient};
use nacre_lock::{
    EnqueueFlags, InodeBits, LockHandle, Lvb, Mode, Need, Outcome, Policy, Refusal, ResourceId,
};
use nacre_rpc::OssEndpoint;
use nacre_types::{Explain, FailureResult, Status, StatusResult, TargetId};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How often a wait checks for an interrupt.
const POLL: Duration = Duration::from_millis(10);
/// Refusals that are kept until the waiting threads have seen them.
const REFUSALS_MAX: usize = 1024;
/// Rounds of replay before the reconnection is abandoned and started again.
const REPLAY_ROUNDS: usize = 8;

/// The file and the layout under which the data of an object is cached.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    /// Node id of the file.
    pub node: u64,
    /// Layout that says which bytes of the file the object has.
    pub layout: Arc<Layout>,
}

struct State {
    engine: LockClient,
    /// Files of the objects on which there are locks.
    homes: HashMap<ResourceId, Home>,
    /// Reasons of failed requests, newest last.
    refusals: VecDeque<(LockHandle, Refusal)>,
}

/// What a lost lock covered, and the file whose data was cached under it.
pub(crate) type LostLock = (ResourceId, Need, Option<Home>);

/// The locks of one client at one OST.
pub(crate) struct Namespace {
    /// Index of the OST.
    pub ost_index: u16,
    /// Threads for flushes.
    pub flushes: Tasks,
    /// Threads for messages without reply.
    pub messages: Tasks,
    state: Mutex<State>,
    changed: Condvar,
}

/// A lock that an operation needs.
#[derive(Clone, Copy)]
pub(crate) struct EnqueueRequest<'a> {
    pub resource: ResourceId,
    pub need: Need,
    pub flags: EnqueueFlags,
    /// Locks that this client has cancelled before the OST may have got the message.
    pub cancelled: &'a [LockHandle],
}

/// How an operation on an object is locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// By this lock, to be released.
    Held(LockHandle),
    /// By the server during the operation.
    Server,
}

impl Namespace {
    pub fn new(ost_index: u16) -> Namespace {
        // To turn a write lock into a read lock, the mapped pages would have to be made read-only first.
        let config = ClientConfig { downgrade: false, ..ClientConfig::default() };
        let mut engine = LockClient::new(config);
        // Requests wait in the endpoint until there is a connection.
        engine.on_connected(Instant::now(), &mut Vec::new());
        let state = State { engine, homes: HashMap::new(), refusals: VecDeque::new() };
        Namespace {
            ost_index,
            flushes: Tasks::new(FLUSH_THREADS),
            messages: Tasks::new(MESSAGE_THREADS),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Stops the threads.
    pub fn stop(&self) {
        self.flushes.stop();
        self.messages.stop();
    }

    /// Changes the engine, then performs its effects.
    fn step<R>(
        self: &Arc<Namespace>,
        locks: &Locks,
        event: impl FnOnce(&mut State, &mut Vec<Effect>) -> R,
    ) -> R {
        let mut effects = Vec::new();
        let result = event(&mut self.state.lock(), &mut effects);
        self.perform(locks, effects);
        result
    }

    /// Performs the engine's effects. Those that may wait are left to threads of the client.
    fn perform(self: &Arc<Namespace>, locks: &Locks, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Ready { .. } | Effect::Glimpsed { .. } => {
                    self.changed.notify_all();
                }
                Effect::Failed { handle, refusal } => {
                    let mut state = self.state.lock();
                    if state.refusals.len() == REFUSALS_MAX {
                        state.refusals.pop_front();
                    }
                    state.refusals.push_back((handle, refusal));
                    drop(state);
                    self.changed.notify_all();
                }
                other => locks.later(self, other),
            }
        }
    }

    /// Acquires a lock on an object. Waits for it, or with `flags.deny_on_contention` reports that the server
    /// is to lock.
    ///
    /// # Errors
    /// `EINTR`; `ENOLCK` if there are too many locks; the error of the OST.
    pub fn acquire(
        self: &Arc<Namespace>,
        locks: &Locks,
        endpoint: &dyn OssEndpoint,
        EnqueueRequest { resource, need, flags, cancelled }: EnqueueRequest<'_>,
        home: impl Fn() -> Home,
    ) -> FailureResult<Use> {
        loop {
            let mut effects = Vec::new();
            let acquired = {
                let mut state = self.state.lock();
                let (now, bits) = (Instant::now(), InodeBits::NONE);
                let acquired = state.engine.acquire(now, &resource, &need, bits, flags, &mut effects);
                if matches!(acquired, Acquire::Pending(_)) {
                    state.homes.entry(resource).or_insert_with(&home);
                    locks.clock.wake();
                }
                acquired
            };
            let handle = match acquired {
                Acquire::Held(handle) => return Ok(Use::Held(handle)),
                Acquire::Contended => return Ok(Use::Server),
                Acquire::Pending(handle) => handle,
            };
            let asked = self.ask(locks, endpoint, cancelled, effects);
            match asked.and_then(|()| self.wait(handle, &resource)) {
                Ok(None) => return Ok(Use::Held(handle)),
                Ok(Some(Refusal::Contended { .. })) if flags.deny_on_contention => {
                    return Ok(Use::Server);
                }
                // The client was evicted meanwhile, and has reconnected as a new one.
                Ok(Some(Refusal::Stale)) | Err(Status::EVICTED) => {
                    self.release(locks, handle);
                    if nacre_env::interrupted() {
                        return Err(Status::EINTR.into());
                    }
                }
                Ok(Some(Refusal::TooMany)) => return Err(Status::ENOLCK.into()),
                Ok(Some(Refusal::WouldBlock)) => return Err(Status::EAGAIN.into()),
                Ok(Some(refusal)) => {
                    return Err(Status::EIO).explain(|context| {
                        context.action("lock").cause(format_args!("the lock was refused: {refusal:?}"))
                    });
                }
                Err(status) => {
                    self.release(locks, handle);
                    return Err(status).explain(|context| context.action("lock"));
                }
            }
        }
    }

    /// Sends the messages of an acquire, on this thread.
    fn ask(
        self: &Arc<Namespace>,
        locks: &Locks,
        endpoint: &dyn OssEndpoint,
        cancelled: &[LockHandle],
        effects: Vec<Effect>,
    ) -> StatusResult<()> {
        let mut others = Vec::new();
        for effect in effects {
            match effect {
                Effect::SendEnqueue(request) => {
                    let handle = request.handle;
                    let request = LockRequest::Enqueue { request, cancels: cancelled.to_vec() };
                    let outcome = outcome_of(endpoint, request)?;
                    self.on_outcome(locks, handle, &outcome);
                }
                other => others.push(other),
            }
        }
        self.perform(locks, others);
        Ok(())
    }

    /// Waits until a request is granted, or returns why it was refused.
    fn wait(&self, handle: LockHandle, resource: &ResourceId) -> StatusResult<Option<Refusal>> {
        let mut state = self.state.lock();
        if let Some(answer) = answer(&state, handle) {
            return Ok(answer);
        }
        let target = TargetId::ost(self.ost_index);
        let cause = Cause::Lock { target, resource: resource.0, handle: handle.0 };
        blocking_for(cause, || {
            loop {
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                self.changed.wait_for(&mut state, POLL);
                if let Some(answer) = answer(&state, handle) {
                    return Ok(answer);
                }
            }
        })
    }

    /// Releases a reference.
    pub fn release(self: &Arc<Namespace>, locks: &Locks, handle: LockHandle) {
        self.step(locks, |state, effects| state.engine.release(Instant::now(), handle, effects));
    }

    /// True if the lock was not lost.
    pub fn is_valid(&self, handle: LockHandle) -> bool {
        self.state.lock().engine.is_valid(handle)
    }

    /// Returns what a cached lock covers that serves `need`.
    pub fn cached(&self, resource: &ResourceId, need: &Need) -> Option<Need> {
        self.state.lock().engine.cached(resource, need)
    }

    /// True if a cached lock serves `need`.
    pub fn is_covered(&self, resource: &ResourceId, need: &Need) -> bool {
        self.state.lock().engine.is_covered(resource, need)
    }

    /// True if a lock covers `need`, even if it is being cancelled.
    pub fn is_still_held(&self, resource: &ResourceId, need: &Need) -> bool {
        self.state.lock().engine.is_still_held(resource, need)
    }

    /// Cancels all locks of a mode on an object and waits until none is left here; returns which they were.
    /// Another thread sends the cancels to the OST: a request that must not conflict with the locks there
    /// names them.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub fn surrender(
        self: &Arc<Namespace>,
        locks: &Locks,
        resource: &ResourceId,
        mode: Mode,
    ) -> StatusResult<Vec<LockHandle>> {
        let handles = self.step(locks, |state, effects| state.engine.surrender(resource, mode, effects));
        if !handles.is_empty() {
            self.wait_gone(resource, mode)?;
        }
        Ok(handles)
    }

    /// Waits until no lock of a mode is left on an object.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub fn wait_gone(&self, resource: &ResourceId, mode: Mode) -> StatusResult<()> {
        let mut state = self.state.lock();
        nacre_env::blocking(|| {
            while state.engine.has_mode(resource, mode) {
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                self.changed.wait_for(&mut state, POLL);
            }
            Ok(())
        })
    }

    /// Returns the file of an object.
    pub fn home(&self, resource: &ResourceId) -> Option<Home> {
        self.state.lock().homes.get(resource).cloned()
    }

    /// Handles a message of the OST. Returns without waiting.
    pub fn on_message(self: &Arc<Namespace>, locks: &Locks, message: LockMessage) {
        match message {
            LockMessage::Completion { handle, outcome } => self.on_outcome(locks, handle, &outcome),
            LockMessage::Blocking { handle, wanted } => {
                self.step(locks, |state, effects| state.engine.on_callback(handle, &wanted, effects));
            }
            LockMessage::Glimpse { glimpse, handle } => {
                let resource = self.state.lock().engine.resource_of(handle);
                locks.glimpsed(self, glimpse, handle, resource);
            }
        }
    }

    /// Handles the reply to an enqueue.
    pub fn on_outcome(self: &Arc<Namespace>, locks: &Locks, handle: LockHandle, outcome: &Outcome) {
        self.step(locks, |state, effects| {
            state.engine.on_outcome(Instant::now(), handle, outcome, effects);
            // Under the same mutex, so that no thread finds the lock and trusts information from before it
            // was granted.
            if effects.iter().any(|effect| matches!(effect, Effect::Ready { .. }))
                && let Some(resource) = state.engine.resource_of(handle)
                && let Some(home) = state.homes.get(&resource)
            {
                locks.lock_came(home.node);
            }
        });
    }

    /// Records that the data under a lock is written back and dropped.
    pub fn on_flushed(self: &Arc<Namespace>, locks: &Locks, handle: LockHandle, resource: &ResourceId) {
        self.step(locks, |state, effects| {
            state.engine.on_flushed(Instant::now(), handle, effects);
            if state.engine.locks_on(resource) == 0 {
                state.homes.remove(resource);
            }
        });
        self.changed.notify_all();
    }

    /// Drives the engine's time-outs.
    pub fn on_tick(self: &Arc<Namespace>, locks: &Locks) {
        self.step(locks, |state, effects| state.engine.on_tick(Instant::now(), effects));
    }

    /// Returns the number of locks in any state.
    pub fn lock_count(&self) -> usize {
        self.state.lock().engine.locks()
    }

    /// Returns the number of locks that are cached and not used.
    pub fn unused_count(&self) -> usize {
        self.state.lock().engine.unused()
    }

    /// Returns the counters since the start.
    pub fn stats(&self) -> nacre_lock::client::ClientStats {
        self.state.lock().engine.stats()
    }

    /// Returns the bounds of the cache of locks.
    pub fn config(&self) -> ClientConfig {
        self.state.lock().engine.config()
    }

    /// Sets how many unused locks are kept, at most.
    pub fn set_lru_size(self: &Arc<Namespace>, locks: &Locks, count: usize) {
        self.step(locks, |state, effects| state.engine.set_lru_size(count, effects));
    }

    /// Sets how long unused locks are kept, at most.
    pub fn set_lru_max_age(&self, age: Duration) {
        self.state.lock().engine.set_lru_max_age(age);
    }

    /// Cancels every lock that no operation uses at the moment.
    pub fn drop_unused(self: &Arc<Namespace>, locks: &Locks) {
        self.step(locks, |state, effects| state.engine.drop_unused(effects));
    }

    /// Handles an eviction by the OST: all locks are lost. Returns what was cached under them.
    pub fn on_evicted(self: &Arc<Namespace>, locks: &Locks) -> Vec<LostLock> {
        let mut effects = Vec::new();
        let mut lost = Vec::new();
        {
            let mut state = self.state.lock();
            state.engine.on_evicted(&mut effects);
            effects.retain(|effect| match effect {
                Effect::Discard { resource, need, .. } => {
                    lost.push((*resource, *need, state.homes.get(resource).cloned()));
                    false
                }
                _ => true,
            });
            state.homes.clear();
            state.engine.on_connected(Instant::now(), &mut effects);
        }
        self.perform(locks, effects);
        self.changed.notify_all();
        lost
    }

    /// Replays all locks to an OST that has restarted, on this thread and through `endpoint`. False if the
    /// OST rejects them because it has no record that this client had any: then none is left, as after an
    /// eviction.
    ///
    /// # Errors
    /// The error of the OST.
    pub fn replay(self: &Arc<Namespace>, locks: &Locks, endpoint: &dyn OssEndpoint) -> StatusResult<bool> {
        let (mut effects, mut lost) = (Vec::new(), Vec::new());
        self.state.lock().engine.on_restarted(Instant::now(), &mut effects);
        for _ in 0..REPLAY_ROUNDS {
            let mut next = Vec::new();
            let mut others = Vec::new();
            for effect in std::mem::take(&mut effects) {
                match effect {
                    Effect::SendReplay { handle, resource, need } => {
                        let outcome = outcome_of(endpoint, LockRequest::Replay { handle, resource, need });
                        let mut state = self.state.lock();
                        match outcome {
                            // The file was removed, for example.
                            Err(Status::NO_CAPABILITY) => {
                                lost.push((resource, need, state.homes.get(&resource).cloned()));
                                state.engine.on_replay_given_up(Instant::now(), handle, &mut next);
                            }
                            outcome => {
                                state.engine.on_replay_outcome(Instant::now(), handle, &outcome?, &mut next);
                            }
                        }
                    }
                    Effect::SendReplayDone => {
                        let request = OssRequest::Locks { request: LockRequest::ReplayDone };
                        endpoint.call(&request, Bulk::None)?;
                    }
                    Effect::Reconnect => return Ok(false),
                    other => others.push(other),
                }
            }
            self.perform(locks, others);
            if next.is_empty() {
                if let Some(holder) = locks.holder().filter(|_| !lost.is_empty()) {
                    holder.drop_lost(self.ost_index, lost);
                    self.changed.notify_all();
                }
                return Ok(true);
            }
            effects = next;
        }
        Err(Status::EIO)
    }

    /// Sends a message without reply, or resends a request; for threads that may wait.
    pub fn send(self: &Arc<Namespace>, locks: &Locks, endpoint: &dyn OssEndpoint, effect: Effect) {
        let request = match effect {
            Effect::SendEnqueue(request) => {
                let handle = request.handle;
                let request = LockRequest::Enqueue { request, cancels: Vec::new() };
                match outcome_of(endpoint, request) {
                    Ok(outcome) => self.on_outcome(locks, handle, &outcome),
                    // The engine resends it when it is due.
                    Err(status) => {
                        log::debug!("OST{:04x}: asking for a lock again: {status}", self.ost_index)
                    }
                }
                return;
            }
            Effect::SendCancel(handle) => LockRequest::Cancel { handles: vec![handle] },
            Effect::SendConvert { handle, mode, policy } => LockRequest::Convert { handle, mode, policy },
            Effect::SendBusy(handle) => LockRequest::Busy { handle },
            _ => return,
        };
        // The next callback for the lock leads to another cancel.
        if let Err(status) = endpoint.call(&OssRequest::Locks { request }, Bulk::None) {
            log::debug!("OST{:04x}: giving up a lock: {status}", self.ost_index);
        }
    }
}

/// Returns the outcome of a request, if that is known.
fn answer(state: &MutexGuard<'_, State>, handle: LockHandle) -> Option<Option<Refusal>> {
    if state.engine.is_valid(handle) {
        return Some(None);
    }
    let refused = state.refusals.iter().rev().find(|(known, _)| *known == handle);
    match refused {
        Some((_, refusal)) => Some(Some(*refusal)),
        // It was granted, and lost with all other locks before this thread saw it.
        None if !state.engine.knows(handle) => Some(Some(Refusal::Stale)),
        None => None,
    }
}

fn outcome_of(endpoint: &dyn OssEndpoint, request: LockRequest) -> StatusResult<Outcome> {
    match endpoint.call(&OssRequest::Locks { request }, Bulk::None)? {
        OssReply::Locked(outcome) => Ok(outcome),
        _ => Err(Status::EPROTO),
    }
}

/// Answers a glimpse, on a thread that may wait.
pub(crate) fn answer_glimpse(endpoint: &dyn OssEndpoint, glimpse: u64, handle: LockHandle, lvb: Option<Lvb>) {
    let request = LockRequest::GlimpseAnswer { glimpse, handle, lvb };
    if let Err(status) = endpoint.call(&OssRequest::Locks { request }, Bulk::None) {
        log::debug!("answering for a lock: {status}");
    }
}

/// Returns the bytes that an extent lock covers, `[start, end)`.
pub(crate) fn bytes_of(need: &Need) -> (u64, u64) {
    match need.policy {
        Policy::Extent(extent) => (extent.start, extent.last.saturating_add(1)),
        Policy::Bits(_) => (0, 0),
    }
}
