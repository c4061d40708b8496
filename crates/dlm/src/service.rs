//! The service: the engine, its clients, and the effects of each event.

use crate::exports::{Connected, peer_of};
use crate::local::LocalWait;
use crate::recovery::{Expected, Recovery, Tally};
use nacre_env::activity::OperationId;
use nacre_env::activity::events::{self, What};
use nacre_env::clock::Instant;
use nacre_env::fault::{self, Point};
use nacre_env::sync::{Condvar, Mutex, MutexGuard};
use nacre_lock::server::{Effect, LockServer, ServerConfig, ServerStats};
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockHandle, Lvb, Need, Outcome, Peer, Refusal, ResourceId,
    SILENT_GRACE,
};
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Status, StatusResult};
use nacre_wire::lock::LockMessage;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Services of a target for its lock service.
pub trait LockOwner: Send + Sync {
    /// Returns the current size and times of an object on the target; `None` for inodes. Called under the
    /// mutex of the engine (after a first call without it, which takes the time of a disk access), so it must
    /// not call the service.
    ///
    /// # Errors
    /// Any error of the target; the enqueue is refused with it.
    fn lvb(&self, resource: &ResourceId) -> StatusResult<Option<Lvb>> {
        let _ = resource;
        Ok(None)
    }

    /// Records, if the target has to for its next run, that a client is about to get its first lock since it
    /// connected. May be called repeatedly.
    ///
    /// # Errors
    /// If it cannot be recorded; the enqueue is refused with the error.
    fn on_first_lock(&self, export: &Export) -> StatusResult<()> {
        let _ = export;
        Ok(())
    }

    /// Drops what the target keeps for a client that was evicted, because it missed a deadline or its process
    /// has ended: its locks are removed and its export has ended. Called by the [`Timer`](crate::Timer)
    /// thread.
    fn on_evicted(&self, export: &Arc<Export>);

    /// Notifies the target that a client of the last run did not reconnect in the recovery window and is
    /// given up.
    fn on_given_up(&self, client: &ClientUuid) {
        let _ = client;
    }
}

/// State under the service's one mutex.
pub(crate) struct State {
    pub(crate) engine: LockServer,
    pub(crate) exports: HashMap<ClientUuid, Arc<Connected>>,
    pub(crate) waits: HashMap<LockHandle, LocalWait>,
    /// Operations that hold locks of the target itself, or wait for them.
    pub(crate) holders: HashMap<LockHandle, OperationId>,
    pub(crate) recovery: Option<Recovery>,
    pub(crate) tally: Tally,
    /// Number of requests in which clients released locks.
    pub(crate) cancels: u64,
    /// Unresponsive clients with a pending callback, the oldest first, with the time when each is given up.
    pub(crate) silent: VecDeque<(Instant, Peer)>,
    /// Clients that the engine has evicted, until the owner is notified.
    pub(crate) evicted: Vec<Arc<Export>>,
    /// Time until which the timer thread sleeps; `None` while it sleeps without a deadline, or does not run.
    pub(crate) timer_until: Option<Instant>,
    pub(crate) is_stopping: bool,
}

/// See the [crate documentation](crate).
pub struct LockService {
    name: String,
    /// Length of the recovery window.
    pub(crate) window: Duration,
    state: Mutex<State>,
    /// Notified when the timer thread has to check its deadlines again.
    pub(crate) timer_changed: Condvar,
    /// Notified when a client has replayed its locks, or the recovery is over.
    pub(crate) recovery_changed: Condvar,
    /// False while nothing is locked: then changes of objects need not be reported.
    has_resources: AtomicBool,
    /// True during the recovery window.
    is_recovering: AtomicBool,
    /// Lock server of the data on the same target: its clients recover here first.
    pub(crate) companion: OnceLock<Weak<LockService>>,
}

/// Clients ping every five seconds: a client that has sent nothing for this long is suspect, if this is
/// longer than its callback timeout.
const SILENT_MIN: Duration = Duration::from_secs(10);

/// Returns true if a client has sent nothing for as long as it has to answer a callback: it is likely to be dead, and has
/// [`SILENT_GRACE`] for the next one. So clients that die at the same moment cost others one deadline, not one after the
/// other.
pub fn is_silent(export: &Export, callback_timeout: Duration) -> bool {
    export.callbacks.silent_for() >= callback_timeout.max(SILENT_MIN)
}

/// Bound on the time that a server takes to start.
const STARTS_UP_MAX: Duration = Duration::from_secs(24 * 3600);

impl LockService {
    /// Creates the service of the target `name` (for the log). `expected` are clients of the last run that
    /// may hold locks; until they have replayed them, or `window` is over, nothing else is granted.
    pub fn new(
        name: impl Into<String>,
        config: ServerConfig,
        expected: Expected,
        window: Duration,
    ) -> LockService {
        let tally = Tally::new(expected.len());
        let recovery = Recovery::begin(expected, Instant::now() + window);
        let is_recovering = AtomicBool::new(recovery.is_some());
        let state = State {
            engine: LockServer::new(config, recovery.is_some()),
            exports: HashMap::new(),
            waits: HashMap::new(),
            holders: HashMap::new(),
            recovery,
            tally,
            cancels: 0,
            silent: VecDeque::new(),
            evicted: Vec::new(),
            timer_until: None,
            is_stopping: false,
        };
        LockService {
            name: name.into(),
            window,
            state: Mutex::new(state),
            timer_changed: Condvar::new(),
            recovery_changed: Condvar::new(),
            has_resources: AtomicBool::new(false),
            is_recovering,
            companion: OnceLock::new(),
        }
    }

    /// Clients cannot connect yet: the recovery window starts with [`LockService::on_listening`].
    pub fn await_listening(&self) {
        self.act(|state, _| state.restart_window(Instant::now() + STARTS_UP_MAX));
    }

    /// Clients can connect from now on: the recovery window starts.
    pub fn on_listening(&self) {
        self.act(|state, _| state.restart_window(Instant::now() + self.window));
    }

    /// Returns the name of the target.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of the lock server in this process.
    pub(crate) fn number(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    pub(crate) fn try_state(&self, patience: Duration) -> Option<MutexGuard<'_, State>> {
        self.state.try_lock_for(patience)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Handles one event: `work` calls the engine, and the effects are performed after the mutex is released.
    pub(crate) fn act<R>(&self, work: impl FnOnce(&mut State, &mut Vec<Effect>) -> R) -> R {
        let mut effects = Vec::new();
        let mut state = self.state.lock();
        let result = work(&mut state, &mut effects);
        let receivers = state.sort_out(effects);
        self.has_resources.store(state.engine.resources() > 0, Ordering::SeqCst);
        self.is_recovering.store(state.engine.is_recovering(), Ordering::SeqCst);
        self.wake_timer_for(&mut state);
        drop(state);
        receivers.iter().for_each(|receiver| receiver.deliver());
        result
    }

    fn wake_timer_for(&self, state: &mut State) {
        if let Some(next) = state.next_deadline()
            && state.timer_until.is_none_or(|until| next < until)
        {
            state.timer_until = Some(next);
            self.timer_changed.notify_one();
        }
    }

    /// Connects a client; locks of an earlier export of it are dropped. If it is expected from the last run,
    /// it replays its locks next.
    ///
    /// # Errors
    /// `ESHUTDOWN` while the service stops.
    pub fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        self.act(|state, effects| {
            if state.is_stopping {
                return Err(Status::ESHUTDOWN);
            }
            if let Some(known) = state.exports.get(&export.client) {
                if known.export.generation >= export.generation {
                    return Ok(());
                }
                known.export.end();
                state.fail_waits_of(&export.client);
            }
            state.exports.insert(export.client, Arc::new(Connected::new(export.clone())));
            state.engine.on_connect(Instant::now(), peer_of(export), effects);
            Ok(())
        })
    }

    /// Disconnects a client, at its request or its owner's: its locks are removed, and the export has ended.
    /// Does nothing to a later export of the same client.
    pub fn disconnect(&self, export: &Export) {
        export.end();
        self.act(|state, effects| {
            let is_known = state
                .exports
                .get(&export.client)
                .is_some_and(|known| known.export.generation == export.generation);
            if is_known {
                self.drop_client(state, &export.client, effects);
            }
        });
    }

    /// Drops a client, whichever export it has; returns that. The caller drops everything else that it keeps
    /// for the client.
    pub fn evict(&self, client: &ClientUuid) -> Option<Arc<Export>> {
        self.act(|state, effects| self.drop_client(state, client, effects))
    }

    /// Revokes all locks of a client.
    pub fn recall(&self, client: &ClientUuid) {
        self.act(|state, effects| state.engine.on_recall(Instant::now(), client, effects));
    }

    pub(crate) fn drop_client(
        &self,
        state: &mut State,
        client: &ClientUuid,
        effects: &mut Vec<Effect>,
    ) -> Option<Arc<Export>> {
        let known = state.exports.remove(client);
        if let Some(known) = &known {
            known.export.end();
        }
        state.fail_waits_of(client);
        state.engine.on_disconnect(Instant::now(), *client, effects);
        self.no_longer_awaited(state, client, effects);
        known.map(|known| known.export.clone())
    }

    /// True unless the export has ended. An export that was never connected counts as current, and has no
    /// locks.
    pub fn is_current(&self, export: &Export) -> bool {
        !export.has_ended()
    }

    /// True if a client is connected, through any export.
    pub fn is_connected(&self, client: &ClientUuid) -> bool {
        self.state.lock().exports.contains_key(client)
    }

    /// Returns the connected clients, in no order.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.state.lock().exports.values().map(|known| known.export.clone()).collect()
    }

    /// False if certainly no client has a lock that was granted before this call, nor may replay one; reads
    /// two flags.
    pub fn has_locks(&self) -> bool {
        self.has_resources.load(Ordering::SeqCst) || self.is_recovering.load(Ordering::SeqCst)
    }

    /// Grants a client a lock on an inode, if that needs no revocation and the inode is not contended; or
    /// returns the lock of the client that serves already.
    ///
    /// # Errors
    /// `EVICTED` if the client was removed.
    pub fn grant_now(
        &self,
        export: &Export,
        handle: LockHandle,
        resource: &ResourceId,
        need: Need,
    ) -> StatusResult<Option<LockHandle>> {
        let flags = EnqueueFlags { no_wait: true, deny_on_contention: true, ..EnqueueFlags::default() };
        self.grant_at_once(export, handle, resource, need, flags)
    }

    /// Does the same even if the inode is contended.
    ///
    /// # Errors
    /// As for [`LockService::grant_now`].
    pub fn grant_always(
        &self,
        export: &Export,
        handle: LockHandle,
        resource: &ResourceId,
        need: Need,
    ) -> StatusResult<Option<LockHandle>> {
        let flags = EnqueueFlags { no_wait: true, ..EnqueueFlags::default() };
        self.grant_at_once(export, handle, resource, need, flags)
    }

    fn grant_at_once(
        &self,
        export: &Export,
        handle: LockHandle,
        resource: &ResourceId,
        need: Need,
        flags: EnqueueFlags,
    ) -> StatusResult<Option<LockHandle>> {
        if export.has_ended() {
            return Err(Status::EVICTED);
        }
        let peer = peer_of(export);
        let request = Enqueue { handle, resource: *resource, need, optional: InodeBits::NONE, flags };
        self.act(|state, effects| {
            if let Some(held) = state.engine.held_by(peer, resource, &need) {
                return Ok(Some(held));
            }
            match state.engine.on_enqueue(Instant::now(), peer, &request, None, effects) {
                Outcome::Granted(_) => Ok(Some(handle)),
                Outcome::Refused(Refusal::Stale) => Err(Status::EVICTED),
                _ => Ok(None),
            }
        })
    }

    /// True if locks of the client allow `need` on the resource.
    pub fn is_held(&self, export: &Export, resource: &ResourceId, need: &Need) -> bool {
        self.state.lock().engine.is_held(peer_of(export), resource, need)
    }

    /// Extends the deadlines of the client's locks under revocation on these bytes, which it reads or writes.
    pub fn touch(&self, export: &Export, resource: &ResourceId, extent: &Extent) {
        self.state.lock().engine.on_io(Instant::now(), peer_of(export), resource, extent);
    }

    /// Reads again the value block that is sent with an object's locks, as the object has changed. Called
    /// after the change and before its reply; reads one flag while nothing is locked.
    pub fn object_changed(&self, owner: &dyn LockOwner, resource: &ResourceId) {
        // Ordered after the change and with `enqueue`, which sets the flag before it reads: one of the two
        // sees the other.
        std::sync::atomic::fence(Ordering::SeqCst);
        if !self.has_resources.load(Ordering::SeqCst) {
            return;
        }
        let mut state = self.state.lock();
        if state.engine.lvb(resource).is_some() {
            match owner.lvb(resource) {
                Ok(Some(fresh)) => state.engine.update_lvb(resource, |block| *block = fresh),
                Ok(None) => {}
                Err(status) => log::warn!("{}: size of {resource} after a change: {status}", self.name),
            }
        }
    }

    /// Returns the value block for a grant on this resource, if the engine does not have it. `state` is
    /// locked.
    pub(crate) fn lvb_for(
        &self,
        state: &State,
        owner: &dyn LockOwner,
        resource: &ResourceId,
    ) -> StatusResult<Option<Lvb>> {
        if !state.engine.needs_lvb(resource) {
            return Ok(None);
        }
        self.has_resources.store(true, Ordering::SeqCst);
        owner.lvb(resource)
    }

    /// Returns the times and bounds in force.
    pub fn config(&self) -> ServerConfig {
        *self.state.lock().engine.config()
    }

    /// Changes times and bounds; running deadlines stay as they are.
    pub fn change_config(&self, change: impl FnOnce(&mut ServerConfig)) {
        let mut state = self.state.lock();
        let mut config = *state.engine.config();
        change(&mut config);
        state.engine.set_config(config);
    }

    /// Returns the counters since the start of the service.
    pub fn stats(&self) -> ServerStats {
        self.state.lock().engine.stats()
    }

    /// Returns the number of requests in which clients released locks, since the start.
    pub fn cancels(&self) -> u64 {
        self.state.lock().cancels
    }

    /// Returns the number of locks and requests, those of the target itself included.
    pub fn lock_count(&self) -> usize {
        self.state.lock().engine.locks()
    }

    /// Returns the number of resources in memory.
    pub fn resource_count(&self) -> usize {
        self.state.lock().engine.resources()
    }

    /// Describes pairs of granted locks that exclude each other, of which there are none: for tests.
    pub fn conflicts(&self) -> Vec<String> {
        self.state.lock().engine.conflicts()
    }

    /// Refuses new clients and ends all waits of the target's own threads (`ESHUTDOWN`).
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.is_stopping = true;
        state.waits.values().for_each(LocalWait::wake);
        self.timer_changed.notify_all();
        self.recovery_changed.notify_all();
    }
}

/// Fault points: a message to a client is lost.
fn is_lost(message: &LockMessage) -> bool {
    fault::is_hit(match message {
        LockMessage::Blocking { .. } => Point::LdlmBlCallback,
        LockMessage::Completion { .. } => Point::LdlmCpCallback,
        LockMessage::Glimpse { .. } => Point::LdlmGlCallback,
    })
}

/// Adds a message about a lock to the recent events.
fn note(what: &'static str, peer: Peer, handle: LockHandle) {
    events::note(What::Lock { what, client: peer.client, handle: handle.0 });
}

impl State {
    /// Returns the time of the timer thread's next deadline.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let recovery = self.recovery.as_ref().map(Recovery::due);
        let silent = self.silent.front().map(|(due, _)| *due);
        [self.engine.next_deadline(), recovery, silent].into_iter().flatten().min()
    }

    /// Queues the messages of effects and wakes local waits; returns the clients that messages were queued
    /// for.
    fn sort_out(&mut self, effects: Vec<Effect>) -> Vec<Arc<Connected>> {
        let mut receivers: Vec<Arc<Connected>> = Vec::new();
        for effect in effects {
            let (peer, message) = match effect {
                Effect::Completion { peer, handle, grant } => {
                    (peer, LockMessage::Completion { handle, outcome: Outcome::Granted(grant) })
                }
                Effect::Glimpsed { peer, handle, lvb } => {
                    (peer, LockMessage::Completion { handle, outcome: Outcome::Glimpsed(lvb) })
                }
                Effect::Callback { peer, handle, wanted, .. } => {
                    note("blocking callback to", peer, handle);
                    (peer, LockMessage::Blocking { handle, wanted })
                }
                Effect::Glimpse { peer, handle, glimpse, .. } => {
                    (peer, LockMessage::Glimpse { glimpse: glimpse.0, handle })
                }
                Effect::Evict { peer } => {
                    note("eviction of", peer, LockHandle(0));
                    self.note_evicted(peer);
                    continue;
                }
            };
            if peer.is_local() {
                self.end_wait(message);
                continue;
            }
            let Some(known) = self.exports.get(&peer.client) else { continue };
            if known.export.generation != peer.generation {
                continue;
            }
            if is_lost(&message) {
                continue;
            }
            known.push(message);
            let is_call = matches!(message, LockMessage::Blocking { .. } | LockMessage::Glimpse { .. });
            if is_call
                && is_silent(&known.export, self.engine.config().callback_timeout)
                && !self.silent.iter().any(|(_, it)| *it == peer)
            {
                self.silent.push_back((Instant::now() + SILENT_GRACE, peer));
            }
            if !receivers.iter().any(|receiver| Arc::ptr_eq(receiver, known)) {
                receivers.push(known.clone());
            }
        }
        receivers
    }

    /// Evicts unresponsive clients that had their time for a callback and still have sent nothing.
    pub(crate) fn evict_silent(&mut self, now: Instant, effects: &mut Vec<Effect>) {
        while let Some((due, peer)) = self.silent.front().copied()
            && due <= now
        {
            self.silent.pop_front();
            let known = self.exports.get(&peer.client).filter(|known| peer_of(&known.export) == peer);
            if known.is_some_and(|known| is_silent(&known.export, self.engine.config().callback_timeout)) {
                self.engine.on_lost(now, peer, effects);
            }
        }
    }

    /// Queues the notification that the engine has evicted a client.
    fn note_evicted(&mut self, peer: Peer) {
        if self.exports.get(&peer.client).is_some_and(|known| known.export.generation == peer.generation)
            && let Some(known) = self.exports.remove(&peer.client)
        {
            known.export.end();
            self.fail_waits_of(&peer.client);
            self.evicted.push(known.export.clone());
        }
    }
}
