//! Clients: connect, leases, eviction, and the time after a restart in which they come back.
//!
//! The lease engine decides; this module waits for it, calls clients back and drops those that it gives up. What takes
//! time then is done by the threads of [`crate::departed`].

use crate::config::MdsConfig;
use crate::departed::FENCE_PATIENCE;
use crate::mds::Mds;
use crate::tables::{CLIENTS, REPLIES};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_lock::{Effect, Grant, LeaseEngine};
use nacre_ondisk::ClientRecord;
use nacre_rpc::Export;
use nacre_types::{ClientUuid, Fid, Nid, ProcessIdentity, Status, StatusResult};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest, OpenFlags};
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks for an interrupt, and for clients that have died, while a client waits to be let in.
const POLL: Duration = Duration::from_millis(50);
/// A client that waits longer than this to be let in is told of in the log.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// Clients of an earlier run that may come back, with their processes if those ran on this host.
pub type Expected = HashMap<ClientUuid, Option<ProcessIdentity>>;

/// What is left to do for clients and orphans of an earlier run.
struct Recovery {
    /// Clients that have not re-opened all their handles yet.
    awaited: Expected,
    /// Inodes without names found at the start, or since; those still closed at the end are destroyed.
    orphans: Vec<Fid>,
    over: bool,
}

/// See the [module documentation](self).
pub struct Clients {
    lease: Mutex<LeaseEngine>,
    changed: Condvar,
    exports: RwLock<HashMap<ClientUuid, Arc<Export>>>,
    /// Changes whenever a client goes, so that a thread may remember that its client is there.
    generation: AtomicU64,
    recovery: Mutex<Recovery>,
    recovering: AtomicBool,
    release_timeout_ms: AtomicU64,
}

thread_local! {
    /// Client that this thread served last, and the generation then.
    static SERVED: Cell<(u64, ClientUuid)> = const { Cell::new((0, ClientUuid([0; 16]))) };
}

/// Generations of all servers of a process come from one counter, so that they never mix them up.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

fn next_generation() -> u64 {
    GENERATIONS.fetch_add(1, Ordering::Relaxed)
}

fn wire(grant: Grant) -> LeaseGrant {
    LeaseGrant { exclusive: grant.exclusive, epoch: grant.epoch }
}

/// What a client waits for, in words: the number is that of clients of the last run.
struct Awaited(usize);

impl std::fmt::Display for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("another client has dropped its caches"),
            count => write!(f, "{count} clients of the last run are back or given up"),
        }
    }
}

impl Clients {
    /// The state at the start of run number `boot_count`.
    pub fn new(config: &MdsConfig, boot_count: u64, known: Expected, orphans: Vec<Fid>) -> Clients {
        let uuids: Vec<ClientUuid> = known.keys().copied().collect();
        let deadline = Instant::now() + config.recovery_window;
        // Epochs of one run are far fewer than 2^32.
        let first_epoch = boot_count << 32;
        Clients {
            lease: Mutex::new(LeaseEngine::new(first_epoch, config.release_timeout, &uuids, deadline)),
            changed: Condvar::new(),
            exports: RwLock::default(),
            generation: AtomicU64::new(next_generation()),
            recovery: Mutex::new(Recovery { awaited: known, orphans, over: false }),
            recovering: AtomicBool::new(true),
            release_timeout_ms: AtomicU64::new(
                u64::try_from(config.release_timeout.as_millis()).unwrap_or(u64::MAX),
            ),
        }
    }

    /// Wakes everybody who waits here.
    pub fn wake(&self) {
        self.changed.notify_all();
    }

    /// Refuses clients that were evicted or never connected.
    pub fn check(&self, client: &ClientUuid) -> StatusResult<()> {
        let generation = self.generation.load(Ordering::Acquire);
        if SERVED.get() == (generation, *client) {
            return Ok(());
        }
        if !self.exports.read().contains_key(client) {
            return Err(Status::EVICTED);
        }
        SERVED.set((generation, *client));
        Ok(())
    }

    /// A client that is connected.
    pub fn export_of(&self, client: &ClientUuid) -> Option<Arc<Export>> {
        self.exports.read().get(client).cloned()
    }

    /// All clients that are connected.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.read().values().cloned().collect()
    }

    fn forget(&self, client: &ClientUuid) -> Option<Arc<Export>> {
        let export = self.exports.write().remove(client);
        self.generation.store(next_generation(), Ordering::Release);
        export
    }
}

/// Longest time that a server takes to start.
const STARTS_UP_MAX: Duration = Duration::from_secs(24 * 3600);

impl Mds {
    /// Clients cannot come yet: the time for those of the last run begins with [`Mds::on_listening`].
    pub fn await_listening(&self) {
        self.clients.lease.lock().expect_until(Instant::now() + STARTS_UP_MAX);
        self.mdlocks.await_listening();
    }

    /// Clients can come from now on: the time for those of the last run begins.
    pub fn on_listening(&self) {
        self.clients.lease.lock().expect_until(Instant::now() + self.config.recovery_window);
        self.mdlocks.on_listening();
    }

    /// Lets a client in; waits until the lease allows it.
    pub(crate) fn connect_client(&self, export: &Arc<Export>) -> StatusResult<LeaseGrant> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(Status::ESHUTDOWN);
        }
        let client = export.client;
        self.clients.exports.write().insert(client, export.clone());
        self.mdlocks.connect(export)?;
        // A client in this process dies with it, so there is nothing to remember.
        if export.nid != Nid::Lo {
            self.remember_client(export)?;
        }
        self.await_greetings();
        self.begin_names();
        self.step(|lease, effects| lease.on_connect(Instant::now(), client, effects));
        let patience = self.config.recovery_window + (self.release_timeout() + FENCE_PATIENCE) * 2;
        match self.await_grant(&client, Instant::now() + patience) {
            Ok(grant) => Ok(wire(grant)),
            Err(status) => {
                self.drop_client(&client);
                Err(status)
            }
        }
    }

    fn remember_client(&self, export: &Export) -> StatusResult<()> {
        let client = &export.client;
        let known = self
            .store
            .get(CLIENTS, &client.0, |value| value.is_some())
            .map_err(|error| self.store_failed(&error))?;
        if known {
            return Ok(());
        }
        let process = export.process;
        let record = ClientRecord { connected: self.now(), boot_count: self.boot_count, process };
        let mut tx = self.begin();
        // Clients must be able to connect to a full MDT, to remove files.
        tx.batch().set_releasing(true);
        tx.batch().put(CLIENTS, &client.0, &record.encode());
        self.commit(&mut tx).map(|_| ())
    }

    fn await_grant(&self, client: &ClientUuid, deadline: Instant) -> StatusResult<Grant> {
        if let Some(grant) = self.clients.lease.lock().grant_of(client) {
            return Ok(grant);
        }
        let began = Instant::now();
        let mut told = false;
        nacre_env::blocking(|| {
            loop {
                self.drop_ended_clients();
                let mut lease = self.clients.lease.lock();
                if let Some(grant) = lease.grant_of(client) {
                    return Ok(grant);
                }
                if !told && began.elapsed() >= QUIET_WAIT {
                    told = true;
                    log::info!(
                        "MDT{:04x}: client {client} waits until {}",
                        self.index,
                        Awaited(lease.expected())
                    );
                }
                // It may have died itself.
                self.clients.check(client)?;
                if self.stopping.load(Ordering::Acquire) {
                    return Err(Status::ESHUTDOWN);
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                if Instant::now() >= deadline {
                    return Err(Status::ETIMEDOUT);
                }
                self.clients.changed.wait_for(&mut lease, POLL);
            }
        })
    }

    /// Runs one event of the lease engine and does what it asks for. No lock is held while clients are called.
    pub(crate) fn step(&self, event: impl FnOnce(&mut LeaseEngine, &mut Vec<Effect>)) {
        let mut effects = Vec::new();
        event(&mut self.clients.lease.lock(), &mut effects);
        let mut evicted = Vec::new();
        for effect in effects {
            match effect {
                Effect::Granted { .. } => self.clients.wake(),
                Effect::Callback { client, grant } => {
                    let export = self.clients.exports.read().get(&client).cloned();
                    if let Some(export) = export {
                        export.callbacks.lease_changed(wire(grant));
                    }
                }
                Effect::Evict { client } => {
                    log::warn!(
                        "MDT{:04x}: client {client} did not answer in time and is evicted",
                        self.index
                    );
                    evicted.push(client);
                }
            }
        }
        evicted.iter().for_each(|client| self.evict(client));
    }

    /// Has a client drop what it caches.
    pub(crate) fn recall(&self, client: &ClientUuid) {
        self.mdlocks.recall(client);
        self.step(|lease, effects| lease.on_recall(Instant::now(), *client, effects));
    }

    /// Drops a client that may still be alive; the lease engine knows. Others are let in when OSTs refuse what it sends.
    pub(crate) fn evict(&self, client: &ClientUuid) {
        self.give_up(client);
        self.departed.fence(*client);
    }

    /// The same for one that was late with a lock.
    pub(crate) fn evict_late(&self, client: &ClientUuid) {
        self.clients.lease.lock().on_evicted(*client);
        self.evict(client);
    }

    /// A client that was evicted can do no harm any more.
    pub(crate) fn note_fenced(&self, client: ClientUuid) {
        self.step(|lease, effects| lease.on_fenced(Instant::now(), client, effects));
    }

    /// How long a client has to drop its caches when it is called back (`ldlm_timeout`).
    pub fn release_timeout(&self) -> Duration {
        Duration::from_millis(self.clients.release_timeout_ms.load(Ordering::Relaxed))
    }

    /// Changes [`Mds::release_timeout`], for clients that are called back from now on.
    pub fn set_release_timeout(&self, timeout: Duration) {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.clients.release_timeout_ms.store(timeout_ms, Ordering::Relaxed);
        self.clients.lease.lock().set_release_timeout(timeout);
        self.mdlocks.change_config(|config| config.callback_timeout = timeout);
    }

    /// The lease of a client, for a ping.
    pub(crate) fn lease_of(&self, client: &ClientUuid) -> StatusResult<LeaseGrant> {
        self.clients.lease.lock().grant_of(client).map(wire).ok_or(Status::EVICTED)
    }

    /// A client has dropped its caches.
    pub(crate) fn lease_released(&self, client: &ClientUuid, epoch: u64) -> StatusResult<MdsAnswer> {
        self.step(|lease, effects| lease.on_released(Instant::now(), *client, epoch, effects));
        Ok(self.answer(MdsReply::Lease(self.lease_of(client)?)))
    }

    /// A client leaves.
    pub(crate) fn drop_client(&self, client: &ClientUuid) {
        self.give_up(client);
        self.step(|lease, effects| lease.on_disconnect(Instant::now(), *client, effects));
    }

    /// Forgets a client, releases its locks, and leaves its handles to be closed on another thread: a close waits for the lock of the
    /// inode, and its holder may wait for the eviction of other clients. So nothing in here takes the lock of an inode.
    fn give_up(&self, client: &ClientUuid) {
        if let Some(export) = self.clients.forget(client) {
            export.end();
        }
        self.mdlocks.evict(client);
        self.flocks.release_client(client);
        self.opens.forget_early_closes(client);
        self.departed.close_all_of(client, self.opens.abandon(client));
        if let Err(status) = self.forget_records(client) {
            log::warn!("removing what is stored about client {client}: {status}");
        }
        self.departed.destroy(self.stop_awaiting(client));
    }

    fn forget_records(&self, client: &ClientUuid) -> StatusResult<()> {
        let mut tx = self.begin();
        let mut keys = Vec::new();
        self.store
            .scan(REPLIES, &client.0, Bound::Unbounded, &mut |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .map_err(|error| self.store_failed(&error))?;
        for key in &keys {
            tx.batch().delete(REPLIES, key);
        }
        let known = self
            .store
            .get(CLIENTS, &client.0, |value| value.is_some())
            .map_err(|error| self.store_failed(&error))?;
        if known {
            tx.batch().delete(CLIENTS, &client.0);
        }
        tx.batch().set_releasing(true);
        self.commit(&mut tx).map(|_| ())
    }

    /// Notes what a request says about its client's recovery: the first one that is not part of it ends it.
    pub(crate) fn note_request(&self, client: &ClientUuid, request: &MdsRequest<'_>) {
        if !self.clients.recovering.load(Ordering::Relaxed) {
            return;
        }
        let replays = match request {
            MdsRequest::Open { flags, .. } => flags.contains(OpenFlags::REPLAY),
            MdsRequest::Ping
            | MdsRequest::RunStart
            | MdsRequest::LeaseReleased { .. }
            | MdsRequest::Locks { .. }
            | MdsRequest::ReplayFileLocks { .. }
            | MdsRequest::Close { .. }
            | MdsRequest::CloseWrite { .. } => true,
            _ => false,
        };
        if !replays {
            self.destroy_closed(self.stop_awaiting(client));
        }
    }

    /// A client of the last run has nothing to bring back any more. Gives orphans to be destroyed.
    fn stop_awaiting(&self, client: &ClientUuid) -> Vec<Fid> {
        if !self.clients.recovering.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.clients.recovery.lock().awaited.remove(client);
        self.end_recovery_if_complete()
    }

    /// True while it is not known what clients of the last run have open.
    pub(crate) fn is_awaiting_clients(&self) -> bool {
        self.clients.recovering.load(Ordering::Relaxed) && !self.clients.recovery.lock().over
    }

    /// True if a client of the last run that is not back yet may have an inode open, which has just lost its last name: it stays until
    /// all are back.
    pub(crate) fn may_be_open(&self, fid: &Fid) -> bool {
        if self.opens.is_open(fid) {
            return true;
        }
        if !self.clients.recovering.load(Ordering::Relaxed) {
            return false;
        }
        let mut recovery = self.clients.recovery.lock();
        if !recovery.over {
            recovery.orphans.push(*fid);
        }
        !recovery.over
    }

    /// Gives inodes without names once nobody is awaited any more: those that nobody has re-opened are to be destroyed.
    fn end_recovery_if_complete(&self) -> Vec<Fid> {
        let mut recovery = self.clients.recovery.lock();
        if !recovery.awaited.is_empty() || recovery.over {
            return Vec::new();
        }
        recovery.over = true;
        self.clients.recovering.store(false, Ordering::Relaxed);
        std::mem::take(&mut recovery.orphans)
    }

    /// Destroys those inodes without names that nobody has open.
    pub(crate) fn destroy_closed(&self, orphans: Vec<Fid>) {
        for fid in orphans {
            if let Err(status) = self.destroy_if_closed(&fid) {
                log::warn!("destroying {fid}, which has no name: {status}");
            }
        }
    }

    /// Forgets clients of the last run that have `ended`, and waits for the others.
    pub(crate) fn begin_recovery(&self, ended: &[ClientUuid]) {
        for client in ended {
            log::info!("MDT{:04x}: the process of client {client} has ended: it is given up", self.index);
            if let Err(status) = self.forget_records(client) {
                log::warn!("removing what is stored about client {client}: {status}");
            }
        }
        let awaited = self.clients.recovery.lock().awaited.len();
        if awaited > 0 {
            let window = self.config.recovery_window.as_secs();
            log::info!("MDT{:04x}: recovery of {awaited} clients, for {window} s at most", self.index);
        }
        self.destroy_closed(self.end_recovery_if_complete());
    }

    /// Gives up clients of this host whose processes have ended: nothing can come from them any more, and nobody has to
    /// wait for them.
    fn drop_ended_clients(&self) {
        let mut local: Vec<(ClientUuid, ProcessIdentity)> = Vec::new();
        for export in self.clients.exports.read().values() {
            local.extend(export.process.map(|process| (export.client, process)));
        }
        if self.clients.recovering.load(Ordering::Relaxed) {
            let recovery = self.clients.recovery.lock();
            local
                .extend(recovery.awaited.iter().filter_map(|(client, process)| Some((*client, (*process)?))));
        }
        for (client, process) in local {
            if nacre_env::has_ended(&process) {
                log::info!("MDT{:04x}: process {} of client {client} has ended", self.index, process.pid);
                self.drop_client(&client);
                // It writes nothing any more, but its locks are there.
                self.osts.evict_later(client);
            }
        }
    }

    /// Evicts who is late or dead.
    pub(crate) fn check_deadlines(&self) {
        self.drop_ended_clients();
        self.step(|lease, effects| lease.on_tick(Instant::now(), effects));
        self.note_recovered();
        self.clients.wake();
    }
}
