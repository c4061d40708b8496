//! Sessions of clients: connect, leases, eviction, the recovery window after a restart, and their locks.
//!
//! The lease engine decides; this module waits for it, sends blocking callbacks and evicts clients that it
//! gives up. The threads of [`crate::departed`] do the work that takes time.

mod file_locks;

use crate::clients::wire;
use crate::core::Core;
use crate::departed::{FENCE_TIMEOUT, Left};
use crate::leaves::Leaves;
use crate::mdlocks::LAYOUT;
use crate::open_files::OpenFiles;
use crate::suspend::Caller;
use crate::tables::{CLIENTS, REPLAYED, REPLIES};
use crate::tx::now;
use nacre_dlm::LockOwner;
use nacre_env::clock::Instant;
use nacre_lock::Need;
use nacre_lock::{Effect, InodeBits, LeaseEngine, Mode, Policy};
use nacre_ondisk::ClientRecord;
use nacre_rpc::{Export, MdsWelcome};
use nacre_types::{ClientUuid, Fid, Nid, Status, StatusResult, TransNo};
use nacre_wire::lock::LockRequest;
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest, OpenFlags};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

/// Wait for admission after which a client is logged.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The reason of a client's wait, for the log: the number is that of clients of the last run.
struct Awaited(usize);

impl std::fmt::Display for Awaited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            0 => f.write_str("another client has dropped its caches"),
            count => write!(f, "{count} clients of the last run are back or abandoned"),
        }
    }
}

/// Longest time that a server takes to start.
const STARTS_UP_MAX: Duration = Duration::from_secs(24 * 3600);

/// See the [module documentation](self).
pub struct Sessions {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    boot_count: u64,
    /// Recovery window: time for clients of an earlier run to reconnect.
    window: Duration,
    files: Arc<OpenFiles>,
}

impl LockOwner for Sessions {
    fn on_evicted(&self, export: &Arc<Export>) {
        let client = export.client;
        log::warn!(
            "MDT{:04x}: client {client} did not release a lock in time and is evicted",
            self.leaves.index
        );
        self.evict_late(&client);
    }

    fn on_given_up(&self, client: &ClientUuid) {
        log::warn!(
            "MDT{:04x}: client {client} did not reconnect to release its cached locks",
            self.leaves.index
        );
    }
}

impl Sessions {
    pub(crate) fn new(
        leaves: &Arc<Leaves>,
        core: &Arc<Core>,
        boot_count: u64,
        window: Duration,
        files: &Arc<OpenFiles>,
    ) -> Sessions {
        Sessions { leaves: leaves.clone(), core: core.clone(), boot_count, window, files: files.clone() }
    }

    /// Defers the recovery window: clients cannot connect yet, it begins with [`Sessions::on_listening`].
    pub fn await_listening(&self) {
        self.leaves.clients.expect_until(Instant::now() + STARTS_UP_MAX);
        self.leaves.mdlocks.await_listening();
    }

    /// Begins the recovery window, since clients can connect from here on.
    pub fn on_listening(&self) {
        self.leaves.clients.expect_until(Instant::now() + self.window);
        self.leaves.mdlocks.on_listening();
    }

    /// Admits a client; waits until the lease allows it.
    pub(crate) fn connect_client(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        if self.leaves.signal.is_stopping() {
            return Err(Status::ESHUTDOWN);
        }
        let client = export.client;
        self.leaves.clients.add(export);
        self.leaves.mdlocks.connect(export)?;
        // The last run may have stored it, and not answered.
        if export.is_first {
            self.leaves.replays.end_replay_of(&client);
            self.leaves.mdlocks.end_replay_of(&client);
            self.destroy_closed(self.leaves.recovery.stop_awaiting(&client));
        }
        // A client in this process dies with it, so it needs no record.
        let is_remembered = export.nid != Nid::Lo && self.remember_client(export)?;
        self.leaves.transactions.await_greetings();
        self.leaves.records.begin_names();
        self.step(|lease, effects| lease.on_connect(Instant::now(), client, effects));
        self.note_silence();
        let timeout = self.window + (self.leaves.clients.release_timeout() + FENCE_TIMEOUT) * 2;
        match self.await_grant(&client, Instant::now() + timeout) {
            Ok(lease) => Ok(MdsWelcome { lease, is_remembered }),
            Err(status) => {
                self.drop_client(&client);
                Err(status)
            }
        }
    }

    /// Stores a record of the client; returns true if there was one.
    fn remember_client(&self, export: &Export) -> StatusResult<bool> {
        let client = &export.client;
        let known = self
            .leaves
            .store
            .get(CLIENTS, &client.0, |value| value.is_some())
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        if known {
            return Ok(true);
        }
        let process = export.process;
        let record = ClientRecord { connected: now(), boot_count: self.boot_count, process };
        let mut tx = self.leaves.records.begin();
        // Clients must be able to connect to a full MDT, to remove files.
        tx.batch().set_releasing(true);
        tx.batch().put(CLIENTS, &client.0, &record.encode());
        // Durable, so that the next run awaits the client's replay.
        let transno = self.core.commits.commit(&mut tx)?;
        self.leaves.records.sync(transno)?;
        Ok(false)
    }

    fn await_grant(&self, client: &ClientUuid, deadline: Instant) -> StatusResult<LeaseGrant> {
        if let Ok(grant) = self.leaves.clients.lease_of(client) {
            return Ok(grant);
        }
        let began = Instant::now();
        let mut told = false;
        nacre_env::activity::blocking_for(nacre_env::activity::Cause::Lease, || {
            loop {
                self.drop_ended_clients();
                let goes_on = |expected| {
                    if !told && began.elapsed() >= QUIET_WAIT {
                        told = true;
                        log::info!(
                            "MDT{:04x}: client {client} waits until {}",
                            self.leaves.index,
                            Awaited(expected)
                        );
                    }
                    // The client itself may have died.
                    self.leaves.clients.check(client)?;
                    if self.leaves.signal.is_stopping() {
                        return Err(Status::ESHUTDOWN);
                    }
                    if nacre_env::interrupted() {
                        return Err(Status::EINTR);
                    }
                    if Instant::now() >= deadline { Err(Status::ETIMEDOUT) } else { Ok(()) }
                };
                if let Some(grant) = self.leaves.clients.wait_for_grant(client, goes_on)? {
                    return Ok(grant);
                }
            }
        })
    }

    /// Passes one event to the lease engine and executes its effects. Callbacks to clients are sent without
    /// locks.
    pub(crate) fn step(&self, event: impl FnOnce(&mut LeaseEngine, &mut Vec<Effect>)) {
        let mut evicted = Vec::new();
        for effect in self.leaves.clients.step(event) {
            match effect {
                Effect::Granted { .. } => self.leaves.clients.wake(),
                Effect::Callback { client, grant } => {
                    if let Some(export) = self.leaves.clients.export_of(&client) {
                        export.callbacks.lease_changed(wire(grant));
                    }
                }
                Effect::Evict { client } => {
                    log::warn!(
                        "MDT{:04x}: client {client} did not answer in time and is evicted",
                        self.leaves.index
                    );
                    evicted.push(client);
                }
            }
        }
        evicted.iter().for_each(|client| self.evict(client));
    }

    /// Finds clients that others wait for and that are likely to be dead.
    fn note_silence(&self) {
        let timeout = self.release_timeout();
        for client in self.leaves.clients.lease_holders() {
            let export = self.leaves.clients.export_of(&client);
            let is_silent = export.is_some_and(|export| nacre_dlm::is_silent(&export, timeout));
            self.leaves.clients.step(|lease, _| lease.on_silence(&client, is_silent));
        }
    }

    /// Requests a client to drop what it caches.
    pub(crate) fn recall(&self, client: &ClientUuid) {
        self.leaves.mdlocks.recall(client);
        self.step(|lease, effects| lease.on_recall(Instant::now(), *client, effects));
    }

    /// Evicts a client that may still be alive, as the lease engine has decided. Others are admitted once
    /// OSTs fence it.
    pub(crate) fn evict(&self, client: &ClientUuid) {
        self.give_up(client);
        self.leaves.departed.fence(*client);
    }

    /// Evicts a client that did not release a lock in time.
    pub(crate) fn evict_late(&self, client: &ClientUuid) {
        self.leaves.clients.step(|lease, _| lease.on_evicted(*client));
        self.evict(client);
    }

    /// Records that OSTs fence an evicted client.
    pub(crate) fn note_fenced(&self, client: ClientUuid) {
        self.step(|lease, effects| lease.on_fenced(Instant::now(), client, effects));
    }

    /// Returns how long a client has to drop its caches after a blocking callback (`ldlm_timeout`).
    pub fn release_timeout(&self) -> Duration {
        self.leaves.clients.release_timeout()
    }

    /// Sets that time for later callbacks.
    pub fn set_release_timeout(&self, timeout: Duration) {
        self.leaves.clients.set_release_timeout(timeout);
        self.leaves.mdlocks.change_config(|config| config.callback_timeout = timeout);
    }

    /// Records that a client has dropped its caches.
    pub(crate) fn lease_released(&self, client: &ClientUuid, epoch: u64) -> StatusResult<MdsAnswer> {
        self.step(|lease, effects| lease.on_released(Instant::now(), *client, epoch, effects));
        Ok(self.core.commits.answer(MdsReply::Lease(self.leaves.clients.lease_of(client)?)))
    }

    /// Records that a client is still dropping its caches.
    pub(crate) fn lease_busy(&self, client: &ClientUuid, epoch: u64) -> MdsAnswer {
        self.step(|lease, _| lease.on_busy(Instant::now(), *client, epoch));
        self.core.commits.answer(MdsReply::Done)
    }

    /// Disconnects a client. Returns the transno of the removal of what was stored about it, or 0.
    pub(crate) fn drop_client(&self, client: &ClientUuid) -> TransNo {
        let removal = self.give_up(client);
        self.step(|lease, effects| lease.on_disconnect(Instant::now(), *client, effects));
        removal
    }

    /// Disconnects a client that leaves, durably: a next run would await it.
    pub(crate) fn disconnect(&self, client: &ClientUuid) {
        let removal = self.drop_client(client);
        if let Err(status) = self.leaves.records.sync(removal) {
            log::warn!("making the end of client {client} durable: {status}");
        }
    }

    /// Removes a client, releases its locks, and leaves its handles to another thread to close: a close waits
    /// for the lock of the inode, and its holder may wait for the eviction of other clients. So nothing here
    /// takes the lock of an inode. Returns the transno of the removal of what was stored about it, or 0.
    fn give_up(&self, client: &ClientUuid) -> TransNo {
        if let Some(export) = self.leaves.clients.forget(client) {
            export.end();
        }
        self.leaves.mdlocks.evict(client);
        self.leaves.flocks.release_client(client);
        self.leaves.replays.end_replay_of(client);
        self.leaves.opens.forget_early_closes(client);
        self.leaves.departed.close_all_of(client, self.leaves.opens.abandon(client));
        let removal = self.forget_records(client);
        self.leaves.departed.destroy(self.leaves.recovery.stop_awaiting(client));
        removal
    }

    /// Removes what is stored about a client. Returns the transno, or 0 if nothing is stored or the store has failed.
    fn forget_records(&self, client: &ClientUuid) -> TransNo {
        self.try_forget_records(client).unwrap_or_else(|status| {
            log::warn!("removing what is stored about client {client}: {status}");
            TransNo(0)
        })
    }

    fn try_forget_records(&self, client: &ClientUuid) -> StatusResult<TransNo> {
        let mut tx = self.leaves.records.begin();
        let mut keys = Vec::new();
        self.leaves
            .store
            .scan(REPLIES, &client.0, Bound::Unbounded, &mut |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        for key in &keys {
            tx.batch().delete(REPLIES, key);
        }
        let known = self
            .leaves
            .store
            .get(CLIENTS, &client.0, |value| value.is_some())
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        if known {
            tx.batch().delete(CLIENTS, &client.0);
            tx.batch().delete(REPLAYED, &client.0);
        }
        tx.batch().set_releasing(true);
        self.core.commits.commit(&mut tx)
    }

    /// Tracks a client's recovery by its requests: the first one that is not part of recovery ends it.
    pub(crate) fn note_request(&self, client: &ClientUuid, request: &MdsRequest<'_>) {
        if !self.leaves.recovery.is_under_way() {
            return;
        }
        if !is_of_recovery(request) {
            self.destroy_closed(self.leaves.recovery.stop_awaiting(client));
        }
    }

    /// Destroys those inodes without names that no client has open.
    pub(crate) fn destroy_closed(&self, orphans: Vec<Fid>) {
        for fid in orphans {
            if let Err(status) = self.files.destroy_if_closed(&fid) {
                log::warn!("destroying {fid}, which has no name: {status}");
            }
        }
    }

    /// Removes clients of the last run that have `ended`, and begins to wait for the others.
    pub(crate) fn begin_recovery(&self, ended: &[ClientUuid]) {
        for client in ended {
            log::info!(
                "MDT{:04x}: the process of client {client} has ended: it is abandoned",
                self.leaves.index
            );
            self.forget_records(client);
        }
        let awaited = self.leaves.recovery.awaited();
        if awaited > 0 {
            let window = self.window.as_secs();
            log::info!("MDT{:04x}: recovery of {awaited} clients, for {window} s at most", self.leaves.index);
        }
        self.destroy_closed(self.leaves.recovery.end_if_complete());
    }

    /// Removes clients of this host whose processes have ended: they send nothing more, and recovery need not
    /// wait for them.
    fn drop_ended_clients(&self) {
        let mut local = self.leaves.clients.processes();
        if self.leaves.recovery.is_under_way() {
            local.extend(self.leaves.recovery.processes());
        }
        for (client, process) in local {
            if nacre_env::has_ended(&process) {
                log::info!(
                    "MDT{:04x}: process {} of client {client} has ended",
                    self.leaves.index,
                    process.pid
                );
                self.drop_client(&client);
                // The client writes nothing more, but the OST still has its locks.
                self.leaves.osts.evict_later(client);
            }
        }
    }

    /// Evicts clients that missed a deadline or have died.
    pub(crate) fn check_deadlines(&self) {
        self.drop_ended_clients();
        self.note_silence();
        self.step(|lease, effects| lease.on_tick(Instant::now(), effects));
        self.note_recovered();
        self.leaves.clients.wake();
    }

    /// Has OSTs fence evicted clients, then admits others.
    pub(crate) fn fence(&self, clients: Vec<ClientUuid>) {
        for ost_index in self.leaves.osts.evict(&clients, FENCE_TIMEOUT) {
            log::error!(
                "OST{ost_index:04x} has not been told within {FENCE_TIMEOUT:?} that a client was evicted: until it is, that \
                 client can still write there"
            );
        }
        clients.iter().for_each(|client| self.note_fenced(*client));
    }

    pub(crate) fn close_left(&self, left: Vec<Left>) {
        for left in left {
            match left {
                Left::Orphan(fid) => self.destroy_closed(vec![fid]),
                Left::Handle(client, fid, handle) => {
                    if let Err(status) = self.files.close_abandoned(&client, &fid, handle) {
                        log::warn!("closing {fid} for client {client}, which has left: {status}");
                    }
                }
            }
        }
    }

    /// Serves a client's messages about its locks.
    pub(crate) fn serve_locks(&self, caller: &Caller<'_>, request: &LockRequest) -> StatusResult<MdsReply> {
        match request {
            LockRequest::Replay { need, .. } if *need == Need::bits(Mode::Pr, replayable(need)) => {
                let outcome = self.leaves.mdlocks.handle(self, caller.export, request)?;
                Ok(outcome.map_or(MdsReply::Done, MdsReply::Locked))
            }
            // Locks come with answers; a separate enqueue would have to wait while operations keep inodes.
            LockRequest::Enqueue { .. } | LockRequest::Replay { .. } | LockRequest::GlimpseAnswer { .. } => {
                Err(Status::EOPNOTSUPP)
            }
            LockRequest::Cancel { .. }
            | LockRequest::Convert { .. }
            | LockRequest::Busy { .. }
            | LockRequest::ReplayDone => {
                self.leaves.mdlocks.handle(self, caller.export, request)?;
                if matches!(request, LockRequest::ReplayDone) {
                    self.leaves.replays.end_replay_of(&caller.client);
                }
                self.note_recovered();
                Ok(MdsReply::Done)
            }
        }
    }

    /// Grants file locks, and lets OSTs destroy objects without files, once no client may replay any lock or change:
    /// all have ended their replay or were given up.
    pub(crate) fn note_recovered(&self) {
        // A replay may wait for a client that is not awaited any more.
        self.leaves.replays.wake();
        if self.leaves.mdlocks.is_recovering() {
            return;
        }
        if self.leaves.flocks.is_recovering() {
            self.leaves.flocks.end_recovery();
        }
        if !self.leaves.replays.are_pending(false) {
            if self.leaves.replays.take_lack()
                && let Err(status) = self.leaves.records.record_whole()
            {
                log::warn!("MDT{:04x}: the next start waits for clients: {status}", self.leaves.index);
            }
            self.leaves.osts.end_replay();
        }
    }
}

/// Returns true for requests that a client may send before it has reopened everything.
pub(crate) fn is_of_recovery(request: &MdsRequest<'_>) -> bool {
    match request {
        MdsRequest::Open { flags, .. } => flags.contains(OpenFlags::REPLAY),
        MdsRequest::Ping
        | MdsRequest::RunStart
        | MdsRequest::Replay { .. }
        | MdsRequest::LeaseReleased { .. }
        | MdsRequest::LeaseBusy { .. }
        | MdsRequest::Locks { .. }
        | MdsRequest::ReplayFileLocks { .. }
        | MdsRequest::Close { .. }
        | MdsRequest::CloseWrite { .. } => true,
        _ => false,
    }
}

/// Returns the parts of a lock that a client may replay after a restart.
fn replayable(need: &Need) -> InodeBits {
    match need.policy {
        Policy::Bits(bits) => bits.intersection(LAYOUT),
        Policy::Extent(_) => InodeBits::NONE,
    }
}
