//! The traits that clients call and services implement.

use crate::import::ImportInfo;
use crate::stats::RpcStats;
use crate::tunables::{Tunable, Tunables};
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_keys::Verified;
use nacre_session::Recovery;
use nacre_types::nodemap::Nodemaps;
use nacre_types::standing::Proven;
use nacre_types::{
    Capability, ClientUuid, Cred, Identity, JobId, Nid, ObjectNeed, ProcessIdentity, Standing, Status,
    StatusResult,
};
use nacre_wire::lock::LockMessage;
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsRequest, Statfs};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Context of a call, in addition to the request.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Credentials of the caller.
    pub cred: &'a Cred,
    /// Place of the stored result, for requests that must not run twice; `None` on `lo`, where a call cannot
    /// be lost without its caller.
    pub reply_slot: Option<ReplySlot>,
    /// Job that the request belongs to, if the client names one.
    pub job: Option<JobId>,
    /// Proof of access to the object of an [`OssRequest`].
    pub capability: Option<Capability>,
    /// Id of the request; 0 on `lo`.
    pub xid: u64,
}

/// Place at a server for the result of a modifying request, for a resend: one slot per request in flight of a
/// client.
///
/// The service stores (slot, xid, encoded answer) in the same transaction as the change; after a restart, the
/// server fills its reply cache from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplySlot {
    /// Identity of the client.
    pub client: ClientUuid,
    /// Slot number, below 512.
    pub tag: u16,
    /// Id of the request.
    pub xid: nacre_types::Xid,
}

impl<'a> Call<'a> {
    /// Creates a call without a reply slot.
    pub fn new(cred: &'a Cred) -> Call<'a> {
        Call { cred, reply_slot: None, job: None, capability: None, xid: 0 }
    }

    /// Sets the job of the call.
    pub fn for_job(self, job: Option<JobId>) -> Call<'a> {
        Call { job, ..self }
    }

    /// Sets the id of the request.
    pub fn numbered(self, xid: nacre_types::Xid) -> Call<'a> {
        Call { xid: xid.0, ..self }
    }

    /// Sets the capability of the call.
    pub fn allowed_by(self, capability: Option<Capability>) -> Call<'a> {
        Call { capability, ..self }
    }
}

/// Messages that a server sends to a client unasked. Called from threads that hold no lock of the service.
pub trait ClientCallbacks: Send + Sync {
    /// The lease has changed. When `exclusive` is revoked, the client drops everything that it caches and
    /// answers with [`MdsRequest::LeaseReleased`]. Must return soon; the release may follow later.
    fn lease_changed(&self, grant: LeaseGrant);

    /// Delivers a message about a lock that this client holds or waits for. Must return soon and must not
    /// wait for a server. The server repeats a message that does not arrive.
    fn lock_message(&self, message: LockMessage) {
        let _ = message;
    }

    /// The connection for callbacks has ended: the server cannot send callbacks until the client has
    /// connected again. Must return soon and must not wait for a server.
    fn callbacks_lost(&self) {}

    /// Returns the time since the last message of the client, which pings every few seconds; 0 for a client
    /// in this process.
    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }
}

/// Callbacks of a client without a cache: a server that connects to another server.
pub struct NoCallbacks;

impl ClientCallbacks for NoCallbacks {
    fn lease_changed(&self, _: LeaseGrant) {}
}

/// Events that an endpoint reports to a client of an object target.
pub trait OssEvents: ClientCallbacks {
    /// The target restarted or dropped this client ([`Recovery`]). Called on the connecting thread, before
    /// any other request continues; recovery requests go through `endpoint`, which works meanwhile: after a
    /// restart locks are replayed, after an eviction there is nothing to restore. If the client was dropped,
    /// [`OssEndpoint::incarnation`] has already grown. Must not wait for other requests to this target: they
    /// wait for this function.
    ///
    /// # Errors
    /// An error makes the endpoint connect once more and call this again.
    fn reconnected(&self, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()>;

    /// Returns the capability to send with a request; `None` if the client has none, or needs none. May ask a
    /// metadata target. `refused`: the capability that the object target has just refused,
    /// [`Capability::NONE`] if none was sent.
    ///
    /// # Errors
    /// The error of the metadata target, which the request then fails with.
    fn capability(
        &self,
        need: &ObjectNeed,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        let _ = (need, refused);
        Ok(None)
    }
}

/// A client without state at object targets that could be lost.
impl OssEvents for NoCallbacks {
    fn reconnected(&self, _: &dyn OssEndpoint, _: Recovery) -> StatusResult<()> {
        Ok(())
    }
}

/// Creates the event receivers of object targets, one for each endpoint. It exists before the client that it
/// stands for (a client needs its endpoints first), so events that arrive too early are dropped.
pub trait OstEventsFactory: Send + Sync {
    /// Returns the receiver for the OST with this index.
    fn events(&self, ost: u16) -> Arc<dyn OssEvents>;
}

impl<F: Fn(u16) -> Arc<dyn OssEvents> + Send + Sync> OstEventsFactory for F {
    fn events(&self, ost: u16) -> Arc<dyn OssEvents> {
        self(ost)
    }
}

/// A client as a server sees it: from connect to disconnect or eviction, across lost connections.
pub struct Export {
    /// Identity of the client.
    pub client: ClientUuid,
    /// Number above that of every earlier export of this server: requests of an older one belong to a client
    /// that was dropped meanwhile.
    pub generation: u64,
    /// Address of the client.
    pub nid: Nid,
    /// Process of the client, if it runs on this server's host.
    pub process: Option<ProcessIdentity>,
    /// True for a metadata server that is a client of another.
    pub is_server: bool,
    /// True if the client has been connected to no run of the target before, as far as it knows: it restores nothing.
    pub is_first: bool,
    /// Authenticated identity; `None` for a client in this process, and on servers without authentication.
    pub identity: Option<Arc<Identity>>,
    /// Bounds that the service sets on the client's rights, if any.
    standing: RwLock<Option<Arc<Standing>>>,
    is_bounded: AtomicBool,
    /// Capabilities that the service has verified for this client.
    pub verified: Verified,
    /// Way for callbacks to the client.
    pub callbacks: Arc<dyn ClientCallbacks>,
    /// The service's counters for this client.
    counters: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Counter of damaged frames (wrong checksum) from its address.
    damaged: OnceLock<Arc<AtomicU64>>,
    has_ended: AtomicBool,
    /// See [`Export::has_answer_to`].
    received: OnceLock<Box<Received>>,
    /// Requests that are changing something.
    changes: AtomicU64,
    /// Signals the end of a change after the end of the export.
    changes_ended: (Mutex<()>, Condvar),
}

/// Returns true if a client has the answer to a request.
pub type Received = dyn Fn(&ReplySlot) -> bool + Send + Sync;

/// See [`Export::begin_change`].
#[must_use = "the change ends when the guard is dropped"]
pub struct ExportChange<'a> {
    export: &'a Export,
}

impl Drop for ExportChange<'_> {
    fn drop(&mut self) {
        self.export.changes.fetch_sub(1, Ordering::SeqCst);
        if self.export.has_ended() {
            let _ended = self.export.changes_ended.0.lock();
            self.export.changes_ended.1.notify_all();
        }
    }
}

impl Export {
    /// Creates the export of a client that has just connected.
    pub fn new(
        client: ClientUuid,
        nid: Nid,
        process: Option<ProcessIdentity>,
        callbacks: Arc<dyn ClientCallbacks>,
    ) -> Export {
        static GENERATIONS: AtomicU64 = AtomicU64::new(1);
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        Export {
            client,
            generation,
            nid,
            process,
            is_server: false,
            is_first: false,
            identity: None,
            standing: RwLock::new(None),
            is_bounded: AtomicBool::new(false),
            verified: Verified::default(),
            callbacks,
            counters: OnceLock::new(),
            damaged: OnceLock::new(),
            received: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            changes_ended: (Mutex::new(()), Condvar::new()),
        }
    }

    /// Marks the client as a metadata server.
    pub fn of_server(self) -> Export {
        Export { is_server: true, ..self }
    }

    /// Sets whether the client has been connected to no run of the target before.
    pub fn at_first(self, is_first: bool) -> Export {
        Export { is_first, ..self }
    }

    /// Sets the authenticated identity.
    pub fn of_key(self, identity: Option<Arc<Identity>>) -> Export {
        Export { identity, ..self }
    }

    /// Returns the bounds on the client's rights; `None`: unbounded.
    pub fn standing(&self) -> Option<Arc<Standing>> {
        // Fast path: most clients of most file systems are unbounded.
        if self.is_bounded.load(Ordering::Acquire) { self.standing.read().clone() } else { None }
    }

    /// Sets the bounds from the client's identity and these nodemaps, and returns the previous ones.
    pub fn bound(&self, nodemaps: &Nodemaps, trusts_groups: bool) -> Option<Arc<Standing>> {
        let (identity, is_server) = (self.identity.as_deref(), self.is_server);
        let standing = Standing::of(Proven { identity, is_server, nid: self.nid }, nodemaps, trusts_groups);
        let standing = Some(standing).filter(|standing| !standing.is_free()).map(Arc::new);
        let mut own = self.standing.write();
        self.is_bounded.store(standing.is_some(), Ordering::Release);
        std::mem::replace(&mut *own, standing)
    }

    /// Stores the service's counters for this client, which saves a look-up per request. Only the first call
    /// has an effect.
    pub(crate) fn set_counters(&self, counters: Arc<dyn Any + Send + Sync>) {
        let _ = self.counters.set(counters);
    }

    /// Returns true if the client has the answer to a modifying request, as far as its later ones show; false for a
    /// client in this process.
    pub fn has_answer_to(&self, slot: &ReplySlot) -> bool {
        self.received.get().is_some_and(|received| received(slot))
    }

    /// Sets what [`Export::has_answer_to`] asks. Only the first call has an effect.
    pub fn set_received(&self, received: Box<Received>) {
        let _ = self.received.set(received);
    }

    /// Sets the counter of damaged frames. Only the first call has an effect.
    pub(crate) fn set_damaged(&self, damaged: Arc<AtomicU64>) {
        let _ = self.damaged.set(damaged);
    }

    /// Counts a frame whose checksum was wrong.
    pub(crate) fn note_damaged(&self) {
        if let Some(damaged) = self.damaged.get() {
            damaged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the service's counters for this client ([`crate::Exports::join`]); `None` if there are none,
    /// or of another type.
    pub fn counters<T: Any>(&self) -> Option<&T> {
        self.counters.get()?.downcast_ref()
    }

    /// Ends the export, because the service has dropped this client: requests that still arrive under this
    /// export fail with `EVICTED`. The client needs a new export.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// Returns true after [`Export::end`].
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Registers a change by a request of this client, until the guard is dropped; `None` if the export has
    /// ended.
    pub fn begin_change(&self) -> Option<ExportChange<'_>> {
        // SeqCst with the flag: either `await_changes` counts this change, or this thread sees that the
        // export has ended.
        self.changes.fetch_add(1, Ordering::SeqCst);
        let change = ExportChange { export: self };
        (!self.has_ended()).then_some(change)
    }

    /// Waits until every change that began before [`Export::end`] has ended.
    pub fn await_changes(&self) {
        if self.changes.load(Ordering::SeqCst) > 0 {
            nacre_env::blocking(|| {
                let mut guard = self.changes_ended.0.lock();
                while self.changes.load(Ordering::SeqCst) > 0 {
                    self.changes_ended.1.wait(&mut guard);
                }
            });
        }
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("client", &self.client).field("nid", &self.nid).finish()
    }
}

/// Answer of a metadata service to a client's connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MdsWelcome {
    /// Lease of the client.
    pub lease: LeaseGrant,
    /// The service has what it stored about the client before a restart, above all [`MdsService::stored_answer`].
    /// False for a new client, and for one that was evicted.
    pub is_remembered: bool,
}

/// The service of a metadata target. Any thread may call any method.
pub trait MdsService: Send + Sync {
    /// Connects a client, for the first time or after a restart of this server (then the client re-opens its
    /// handles next).
    fn connect(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome>;
    /// Disconnects a client: its handles are closed and its locks released.
    fn disconnect(&self, client: ClientUuid);
    /// Runs a request.
    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer>;
    /// Returns the stored result of a modifying request from before a restart of this server, if the request
    /// ran (see [`ReplySlot`]).
    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>>;
}

/// The service of an object target. Requests are idempotent, so a resend may run again.
pub trait OssService: Send + Sync {
    /// Connects a client. A client from before a restart of this server replays its locks next.
    ///
    /// # Errors
    /// `ESHUTDOWN` while the service stops.
    fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        let _ = export;
        Ok(())
    }

    /// Disconnects a client, on its request or by eviction, and releases its locks. Does nothing if the
    /// client has reconnected under another export since.
    fn disconnect(&self, export: &Export) {
        let _ = export;
    }

    /// Returns space and objects, for administration without a client.
    ///
    /// # Errors
    /// If the store cannot be read.
    fn space(&self) -> StatusResult<Statfs> {
        Err(Status::EOPNOTSUPP)
    }

    /// Runs a request. `EVICTED` if the service has dropped this export.
    fn handle(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply>;

    /// Returns how many reads that have already arrived should share one [`OssService::handle_reads`]; 1 if
    /// batches gain nothing.
    fn reads_at_once(&self) -> usize {
        1
    }

    /// Runs reads of one client in any order; none waits for locks ([`OssRequest::waits_for_locks`]). Each
    /// gets a result of its own.
    fn handle_reads(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        for read in reads {
            read.result = self.handle(export, &read.call, read.request, Bulk::Receive(read.buffer));
        }
    }
}

/// A read in a batch.
pub struct ReadCall<'a> {
    /// Context of the call.
    pub call: Call<'a>,
    /// Request, an [`OssRequest::Read`].
    pub request: &'a OssRequest,
    /// Buffer for all requested bytes.
    pub buffer: &'a mut [u8],
    /// Result, valid once the read has run.
    pub result: StatusResult<OssReply>,
}

/// Authentication of a caller of the management server.
#[derive(Clone, Copy, Debug)]
pub enum MgsPeer<'a> {
    /// Caller in this process.
    Local,
    /// None, on a server without authentication.
    Open,
    /// None, on a server with authentication: the caller may only enrol a key.
    Unknown,
    /// Identity from the caller's certificate.
    Known(&'a Identity),
}

/// The service of the management target.
pub trait MgsService: Send + Sync {
    /// Runs a request; `GetConfig` may wait (through `nacre_env::blocking`).
    fn handle(&self, peer: MgsPeer<'_>, request: &MgsRequest) -> StatusResult<MgsReply>;
}

/// A metadata target, as a client calls it. The endpoint reconnects and resends: a call returns when it is
/// answered or interrupted (`EINTR`), or when the target has been unreachable for longer than the configured
/// deadline.
pub trait MdsEndpoint: Send + Sync {
    /// Runs a request.
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer>;
    /// Sends a request whose answer no caller waits for (close). The endpoint logs errors.
    fn post(&self, cred: &Cred, request: &MdsRequest<'_>);
    /// Waits until every request that was posted before has run.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    fn wait_for_posts(&self) -> StatusResult<()> {
        Ok(())
    }
    /// Returns the last failure to reach the target or to get an answer, with its address, for error reports;
    /// `None` if there is none.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the state of the import; `mdc.*.import`. `None` if the target is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
    /// Returns true if the target is in this process, where it always answers.
    fn is_local(&self) -> bool {
        false
    }
}

/// An object target, as clients and metadata servers call it.
pub trait OssEndpoint: Send + Sync {
    /// Runs a request.
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply>;

    /// Sends a request without waiting if this transport can have several in flight; otherwise runs it.
    /// Callers use [`crate::api::run_all`], which waits for all before it returns.
    ///
    /// # Safety
    /// The returned value is not leaked: its function is called, or it is dropped, before `'a` ends. Until
    /// then any thread may write the reply's data to the buffer in `bulk`.
    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        Started::Finished(self.call(request, bulk))
    }
    /// Runs a request without data even if the target is deactivated ([`OssEndpoint::set_active`]). Waits for
    /// an active target as [`OssEndpoint::call`] does; for a deactivated one only briefly.
    ///
    /// # Errors
    /// `EIO` if the target is deactivated and does not answer; `EINTR`; the target's status.
    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        self.call(request, Bulk::None)
    }

    /// Runs a request without data and waits at most `limit` for the target. Targets in this process always
    /// answer.
    ///
    /// # Errors
    /// `ETIMEDOUT` if the target does not answer in time; `EIO` if it is deactivated; `EINTR`; the target's
    /// status.
    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        let _ = limit;
        self.call(request, Bulk::None)
    }

    /// Returns the parameters that may change while the endpoint is in use; `osc.*` of one target.
    fn tunables(&self) -> Option<&Arc<Tunables>> {
        None
    }
    /// Deactivates or reactivates the target. While it is deactivated, requests fail with `EIO`, including
    /// those that already wait.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if this endpoint cannot be deactivated.
    fn set_active(&self, active: bool) -> StatusResult<()> {
        self.tunables().ok_or(Status::EOPNOTSUPP)?.set(Tunable::Active, active.into())
    }
    /// Returns false while the target is deactivated.
    fn is_active(&self) -> bool {
        self.tunables().is_none_or(|tunables| tunables.is_active())
    }
    /// Returns the histograms of reads and writes since the endpoint was created; `osc.*.rpc_stats`.
    fn rpc_stats(&self) -> Option<&RpcStats> {
        None
    }
    /// Returns the last failure to reach the target or to get an answer, with its address, for error reports;
    /// `None` if there is none.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the state of the import; `osc.*.import`. `None` if the target is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
    /// Disconnects from the target, within `limit`; the last call on the endpoint. Without it, the target
    /// learns of the disconnect when the endpoint is dropped, or by timeout.
    fn disconnect(&self, limit: Duration) {
        let _ = limit;
    }
    /// Returns a value that changes whenever data that was written but not synced may have been lost (the
    /// server's host restarted).
    fn durability_epoch(&self) -> u64;
    /// Returns the client's incarnation at the target: from 1, one more with each eviction. A restart of the
    /// target does not count.
    fn incarnation(&self) -> u64 {
        1
    }
    /// Returns true if the target is in this process, where it always answers.
    fn is_local(&self) -> bool {
        false
    }
}

/// A started request.
pub enum Started<'a> {
    /// Finished request with its result.
    Finished(StatusResult<OssReply>),
    /// Request in flight; the function waits for the answer. Dropping it abandons the answer and frees the
    /// buffers.
    InFlight(Box<dyn FnOnce() -> StatusResult<OssReply> + Send + 'a>),
}

/// The management server, as clients and servers call it.
pub trait MgsEndpoint: Send + Sync {
    /// Runs a request.
    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply>;

    /// Returns the last failure to reach the server or to get an answer, with its address, for error reports;
    /// `None` if there is none.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Returns the state of the import; `None` if the server is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
}

/// One of several object requests that run in parallel.
pub struct IoCall<'a> {
    /// Target of the request.
    pub endpoint: &'a dyn OssEndpoint,
    /// Request.
    pub request: OssRequest,
    /// Data of the request.
    pub bulk: Bulk<'a>,
}

/// A pool of threads for [`run_all_by`].
pub trait Helpers: Sync {
    /// Runs `work` for each of `0..items`, starting with the first, on the caller's thread and on idle
    /// threads of the pool; returns when all have ended.
    fn share(&self, items: usize, work: &(dyn Fn(usize) + Sync));
}

/// No additional threads.
pub struct Alone;

impl Helpers for Alone {
    fn share(&self, items: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..items).for_each(work);
    }
}

/// Runs all calls, as many in parallel as their transports allow, and returns their results in order. Returns
/// after the last answer, so the buffers are free again.
pub fn run_all(calls: Vec<IoCall<'_>>) -> Vec<StatusResult<OssReply>> {
    run_all_by(calls, &Alone)
}

/// Runs all calls as [`run_all`], with additional threads that share the sending and receiving.
pub fn run_all_by(calls: Vec<IoCall<'_>>, helpers: &dyn Helpers) -> Vec<StatusResult<OssReply>> {
    // Requests must outlive the started calls, which borrow them, so requests and buffers are separated
    // first.
    let mut requests = Vec::with_capacity(calls.len());
    let mut rest = Vec::with_capacity(calls.len());
    for call in calls {
        requests.push(call.request);
        rest.push(Mutex::new(Stage::Planned(call.endpoint, call.bulk)));
    }
    let stages: &[Mutex<Stage<'_>>] = &rest;
    let (job, parent) = (nacre_env::current_job(), nacre_env::activity::current());
    helpers.share(stages.len(), &|index| {
        let _job = nacre_env::enter_job(job);
        let _serving = nacre_env::activity::serve(parent);
        let Some((stage, request)) = stages.get(index).zip(requests.get(index)) else { return };
        let mut stage = stage.lock();
        if let Stage::Planned(endpoint, bulk) = std::mem::replace(&mut *stage, Stage::Taken) {
            // SAFETY: the started call is called below, or dropped by unwinding; `requests` outlives it.
            *stage = Stage::Started(unsafe { endpoint.start(request, bulk) });
        }
    });
    helpers.share(stages.len(), &|index| {
        let _serving = nacre_env::activity::serve(parent);
        let Some(stage) = stages.get(index) else { return };
        let mut stage = stage.lock();
        if let Stage::Started(started) = std::mem::replace(&mut *stage, Stage::Taken) {
            *stage = Stage::Ended(match started {
                Started::Finished(result) => result,
                Started::InFlight(wait) => wait(),
            });
        }
    });
    rest.into_iter()
        .map(|stage| match stage.into_inner() {
            Stage::Ended(result) => result,
            // Reached only after a panic of a helper.
            _ => Err(Status::EIO),
        })
        .collect()
}

/// Progress of a call.
enum Stage<'a> {
    Planned(&'a dyn OssEndpoint, Bulk<'a>),
    Started(Started<'a>),
    Ended(StatusResult<OssReply>),
    Taken,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_drops_a_client_waits_for_what_it_has_begun_and_nothing_begins_after_that() {
        let export = Export::new(ClientUuid([1; 16]), Nid::Lo, None, Arc::new(NoCallbacks));
        export.await_changes();
        let (first, second) = (export.begin_change(), export.begin_change());
        assert!(first.is_some() && second.is_some());
        export.end();
        assert!(export.begin_change().is_none());
        nacre_env::thread::scope(|scope| {
            let waiter = scope.spawn(|| export.await_changes());
            drop(first);
            assert!(!waiter.is_finished());
            drop(second);
            waiter.join().expect("no panic");
        });
    }
}
