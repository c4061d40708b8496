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

/// What goes with every call beside the request itself.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Who asks.
    pub cred: &'a Cred,
    /// For requests that must not run twice: where the server notes the result, `None` on `lo` (a call there cannot be
    /// lost without its caller).
    pub reply_slot: Option<ReplySlot>,
    /// The job that it is done for, if the client says.
    pub job: Option<JobId>,
    /// What lets the sender of an [`OssRequest`] at an object.
    pub capability: Option<Capability>,
}

/// Where a server keeps the result of a modifying request for a resend: one slot per request in flight of a client.
///
/// The service stores (slot, xid, encoded answer) in the same transaction as the change itself; after a restart the
/// reply cache is filled from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplySlot {
    /// The client.
    pub client: ClientUuid,
    /// Slot number, below 512 (reference 5.1: 512 tags).
    pub tag: u16,
    /// The request.
    pub xid: nacre_types::Xid,
}

impl<'a> Call<'a> {
    /// A call without a reply slot.
    pub fn new(cred: &'a Cred) -> Call<'a> {
        Call { cred, reply_slot: None, job: None, capability: None }
    }

    /// The call, done for a job.
    pub fn for_job(self, job: Option<JobId>) -> Call<'a> {
        Call { job, ..self }
    }

    /// The call with a capability.
    pub fn allowed_by(self, capability: Option<Capability>) -> Call<'a> {
        Call { capability, ..self }
    }
}

/// How a server reaches a client on its own account. Called from threads that hold no lock of the service.
pub trait ClientCallbacks: Send + Sync {
    /// What may be cached has changed. When `exclusive` was taken away, the client drops everything that it caches
    /// and answers with [`MdsRequest::LeaseReleased`]. Must return soon; the release itself may come later.
    fn lease_changed(&self, grant: LeaseGrant);

    /// About a lock that this client has or asks for. Must return soon and must not wait for a server. A message that
    /// does not arrive is told again.
    fn lock_message(&self, message: LockMessage) {
        let _ = message;
    }

    /// The server cannot call back until the client has reached it again: the connection for it has ended. Must return soon and must
    /// not wait for a server.
    fn callbacks_lost(&self) {}

    /// How long nothing at all has come from the client, which pings every few seconds; 0 for one in this process.
    fn silent_for(&self) -> Duration {
        Duration::ZERO
    }
}

/// Callbacks of somebody who caches nothing: servers among each other.
pub struct NoCallbacks;

impl ClientCallbacks for NoCallbacks {
    fn lease_changed(&self, _: LeaseGrant) {}
}

/// What a client of an object target is told by its endpoint.
pub trait OssEvents: ClientCallbacks {
    /// The target restarted or dropped this client ([`Recovery`]). Called on the thread that connects, before any other
    /// request goes on; what is to be done first is done through `endpoint`, which works meanwhile: after a restart locks
    /// are replayed, after an eviction nothing is left to bring back. [`OssEndpoint::incarnation`] has grown already if
    /// the client was dropped. It must not wait for other requests to this target: they wait for it.
    ///
    /// # Errors
    /// An error makes the endpoint connect once more and call this again.
    fn reconnected(&self, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()>;

    /// What a request that needs this is to be sent with; `None` if there is nothing, or nothing is needed. May ask a metadata target.
    /// `refused`: what the object target has just not accepted, [`Capability::NONE`] if there was nothing.
    ///
    /// # Errors
    /// What keeps the metadata target from answering, which is what becomes of the request then.
    fn capability(
        &self,
        need: &ObjectNeed,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        let _ = (need, refused);
        Ok(None)
    }
}

/// Of somebody who has nothing at object targets that could be lost.
impl OssEvents for NoCallbacks {
    fn reconnected(&self, _: &dyn OssEndpoint, _: Recovery) -> StatusResult<()> {
        Ok(())
    }
}

/// Makes the events of each object target that endpoints are made for. It is there before what it stands for (a client needs
/// its endpoints first), so events that come too early find nobody.
pub trait OstEventsFactory: Send + Sync {
    /// Those of the OST with this index.
    fn events(&self, ost: u16) -> Arc<dyn OssEvents>;
}

impl<F: Fn(u16) -> Arc<dyn OssEvents> + Send + Sync> OstEventsFactory for F {
    fn events(&self, ost: u16) -> Arc<dyn OssEvents> {
        self(ost)
    }
}

/// A client as a server sees it. Lives from connect to disconnect or eviction; survives lost connections.
pub struct Export {
    /// Identity of the client.
    pub client: ClientUuid,
    /// Above that of every earlier export of this server: what comes by way of an older one is of a client that was
    /// dropped meanwhile.
    pub generation: u64,
    /// Where it calls from.
    pub nid: Nid,
    /// Its process, if it runs on this server's host.
    pub process: Option<ProcessIdentity>,
    /// It is a metadata server that talks to another.
    pub is_server: bool,
    /// Who it has proved to be; `None` for one in this process, and where nothing has to be proved.
    pub identity: Option<Arc<Identity>>,
    /// What the service lets it be, if that is bounded.
    standing: RwLock<Option<Arc<Standing>>>,
    is_bounded: AtomicBool,
    /// Capabilities that it has used.
    pub verified: Verified,
    /// Way back to the client.
    pub callbacks: Arc<dyn ClientCallbacks>,
    /// What the service counts for it.
    counters: OnceLock<Arc<dyn Any + Send + Sync>>,
    /// Frames of its address whose checksum was wrong.
    damaged: OnceLock<Arc<AtomicU64>>,
    has_ended: AtomicBool,
    /// Requests that are changing something.
    changes: AtomicU64,
    /// One of them has ended after the export.
    changes_ended: (Mutex<()>, Condvar),
}

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
    /// A client that has just appeared.
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
            identity: None,
            standing: RwLock::new(None),
            is_bounded: AtomicBool::new(false),
            verified: Verified::default(),
            callbacks,
            counters: OnceLock::new(),
            damaged: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            changes_ended: (Mutex::new(()), Condvar::new()),
        }
    }

    /// The same for a metadata server that talks to another.
    pub fn of_server(self) -> Export {
        Export { is_server: true, ..self }
    }

    /// The same for one that has proved who it is.
    pub fn of_key(self, identity: Option<Arc<Identity>>) -> Export {
        Export { identity, ..self }
    }

    /// What the service lets this client be; `None`: whatever it says.
    pub fn standing(&self) -> Option<Arc<Standing>> {
        // Most clients of most file systems are not bounded.
        if self.is_bounded.load(Ordering::Acquire) { self.standing.read().clone() } else { None }
    }

    /// Bounds it from now on by what it has proved and by these nodemaps. Gives what it was before.
    pub fn bound(&self, nodemaps: &Nodemaps, trusts_groups: bool) -> Option<Arc<Standing>> {
        let (identity, is_server) = (self.identity.as_deref(), self.is_server);
        let standing = Standing::of(Proven { identity, is_server, nid: self.nid }, nodemaps, trusts_groups);
        let standing = Some(standing).filter(|standing| !standing.is_free()).map(Arc::new);
        let mut own = self.standing.write();
        self.is_bounded.store(standing.is_some(), Ordering::Release);
        std::mem::replace(&mut *own, standing)
    }

    /// Has what the service counts for this client be found again without looking for it. Only the first call counts.
    pub(crate) fn set_counters(&self, counters: Arc<dyn Any + Send + Sync>) {
        let _ = self.counters.set(counters);
    }

    /// Has its damaged frames counted there. Only the first call counts.
    pub(crate) fn set_damaged(&self, damaged: Arc<AtomicU64>) {
        let _ = self.damaged.set(damaged);
    }

    /// A frame came whose checksum was wrong.
    pub(crate) fn note_damaged(&self) {
        if let Some(damaged) = self.damaged.get() {
            damaged.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What the service counts for this client ([`crate::Exports::join`]); `None` if that is nothing, or of another type.
    pub fn counters<T: Any>(&self) -> Option<&T> {
        self.counters.get()?.downcast_ref()
    }

    /// The service has dropped this client: what still comes by way of this export is refused with `EVICTED`. There is no
    /// way back but a new export.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    /// True after [`Export::end`].
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Notes that a request of this client begins to change something, until the guard is dropped; `None` if the export
    /// has ended.
    pub fn begin_change(&self) -> Option<ExportChange<'_>> {
        // Ordered with the flag: either `await_changes` sees this one, or this one sees that the export has ended.
        self.changes.fetch_add(1, Ordering::SeqCst);
        let change = ExportChange { export: self };
        (!self.has_ended()).then_some(change)
    }

    /// Returns when nothing that the client began before [`Export::end`] goes on any more.
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

/// A metadata server's target, as its service implements it. Any thread may call any method.
pub trait MdsService: Send + Sync {
    /// A client connects, or connects again after this server restarted (then it re-opens its handles next).
    fn connect(&self, export: &Arc<Export>) -> StatusResult<LeaseGrant>;
    /// A client leaves: its handles are closed and its locks released.
    fn disconnect(&self, client: ClientUuid);
    /// Runs one request.
    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer>;
    /// The stored result of a modifying request of an earlier life of this server, if it ran (see [`ReplySlot`]).
    fn stored_answer(
        &self,
        export: &Export,
        request: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>>;
}

/// An object server's target, as its service implements it. Requests are idempotent, so a resend may run again.
pub trait OssService: Send + Sync {
    /// A client connects. It may have been here in an earlier life of this server: then it replays its locks next.
    ///
    /// # Errors
    /// `ESHUTDOWN` while the service stops.
    fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        let _ = export;
        Ok(())
    }

    /// A client leaves, or is given up: its locks go. Does nothing if it has come back under another export since.
    fn disconnect(&self, export: &Export) {
        let _ = export;
    }

    /// Space and objects, for those who run the service and are no client of it.
    ///
    /// # Errors
    /// If it cannot tell.
    fn space(&self) -> StatusResult<Statfs> {
        Err(Status::EOPNOTSUPP)
    }

    /// Runs one request. `EVICTED` if the service has dropped this export.
    fn handle(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply>;

    /// How many reads that have arrived already should be run by one [`OssService::handle_reads`]; 1 if that gains nothing.
    fn reads_at_once(&self) -> usize {
        1
    }

    /// Runs reads of one client, none of which waits for locks ([`OssRequest::waits_for_locks`]), in any order. Each gets a result of
    /// its own.
    fn handle_reads(&self, export: &Export, reads: &mut [ReadCall<'_>]) {
        for read in reads {
            read.result = self.handle(export, &read.call, read.request, Bulk::Receive(read.buffer));
        }
    }
}

/// A read that is done together with others.
pub struct ReadCall<'a> {
    /// What goes with it.
    pub call: Call<'a>,
    /// The request, an [`OssRequest::Read`].
    pub request: &'a OssRequest,
    /// Room for all that it asks for.
    pub buffer: &'a mut [u8],
    /// Its outcome, once it has run.
    pub result: StatusResult<OssReply>,
}

/// What the sender of a request to the management server has proved.
#[derive(Clone, Copy, Debug)]
pub enum MgsPeer<'a> {
    /// It is in this process.
    Local,
    /// Nothing, and nothing is asked for: the server is open.
    Open,
    /// Nothing, where a key is needed: it may enrol one.
    Unknown,
    /// What its certificate says.
    Known(&'a Identity),
}

/// The management server, as its service implements it.
pub trait MgsService: Send + Sync {
    /// Runs one request; `GetConfig` may wait (through `nacre_env::blocking`).
    fn handle(&self, peer: MgsPeer<'_>, request: &MgsRequest) -> StatusResult<MgsReply>;
}

/// A metadata target, as a client calls it. Lost connections are mended and requests resent inside; a call returns when
/// it was answered, was interrupted (`EINTR`), or its target is gone for longer than the configured deadline.
pub trait MdsEndpoint: Send + Sync {
    /// Runs one request.
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer>;
    /// Runs one request whose answer nobody waits for (close). Errors are logged by the endpoint.
    fn post(&self, cred: &Cred, request: &MdsRequest<'_>);
    /// Returns when every request that was posted before has run.
    ///
    /// # Errors
    /// `EINTR`, `ESHUTDOWN`.
    fn wait_for_posts(&self) -> StatusResult<()> {
        Ok(())
    }
    /// Why the target was last not reached or lost a request, with its address: for the report of a request that failed. `None` if
    /// nothing is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// State of the way to the target; `mdc.*.import`. `None` if it is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
    /// True if the target is in this process, so that it always answers.
    fn is_local(&self) -> bool {
        false
    }
}

/// An object target, as clients and metadata servers call it.
pub trait OssEndpoint: Send + Sync {
    /// Runs one request.
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply>;

    /// Sends a request without waiting, if this transport can have several in flight; otherwise runs it. Callers use
    /// [`crate::api::run_all`], which waits for all before it returns.
    ///
    /// # Safety
    /// The returned value is not leaked: its function is called, or it is dropped, before `'a` ends. Until then the reply's
    /// data may be written to the buffer in `bulk` by any thread.
    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        Started::Finished(self.call(request, bulk))
    }
    /// Runs a request without data even if the target is out of use ([`OssEndpoint::set_active`]). One that is in use is waited
    /// for as by [`OssEndpoint::call`]; from one that is not, the answer comes soon or not at all.
    ///
    /// # Errors
    /// `EIO` if the target is out of use and does not answer; `EINTR`; what the target answers.
    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        self.call(request, Bulk::None)
    }

    /// Runs a request without data, and waits for the target no longer than `limit`. Targets in this process always answer.
    ///
    /// # Errors
    /// `ETIMEDOUT` if it does not answer by then; `EIO` if it is out of use; `EINTR`; what the target answers.
    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        let _ = limit;
        self.call(request, Bulk::None)
    }

    /// What may be changed while the endpoint is in use; `osc.*` of one target.
    fn tunables(&self) -> Option<&Arc<Tunables>> {
        None
    }
    /// Takes the target out of use, or back into it: meanwhile requests fail with `EIO`, those too that wait for it now.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if this endpoint is always in use.
    fn set_active(&self, active: bool) -> StatusResult<()> {
        self.tunables().ok_or(Status::EOPNOTSUPP)?.set(Tunable::Active, active.into())
    }
    /// False while the target is out of use.
    fn is_active(&self) -> bool {
        self.tunables().is_none_or(|tunables| tunables.is_active())
    }
    /// Reads and writes since the endpoint was made; `osc.*.rpc_stats`.
    fn rpc_stats(&self) -> Option<&RpcStats> {
        None
    }
    /// Why the target was last not reached or lost a request, with its address: for the report of a request that failed. `None` if
    /// nothing is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// State of the way to the target; `osc.*.import`. `None` if it is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
    /// Tells the target that the client leaves, at most for `limit`; to be called last. Where it is not called, the target
    /// learns it when the endpoint is dropped, or in time.
    fn disconnect(&self, limit: Duration) {
        let _ = limit;
    }
    /// Changes whenever data that was written but not synced may have been lost (the server's host restarted).
    fn durability_epoch(&self) -> u64;
    /// Life of this client at the target: from 1, one more with each eviction. A restart of the target does not count.
    fn incarnation(&self) -> u64 {
        1
    }
    /// True if the target is in this process, so that it always answers.
    fn is_local(&self) -> bool {
        false
    }
}

/// A request that was started.
pub enum Started<'a> {
    /// It has already run.
    Finished(StatusResult<OssReply>),
    /// It is in flight; the function waits for its answer. Dropping it gives the answer up and the buffers free.
    InFlight(Box<dyn FnOnce() -> StatusResult<OssReply> + Send + 'a>),
}

/// The management server, as clients and servers call it.
pub trait MgsEndpoint: Send + Sync {
    /// Runs one request.
    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply>;

    /// Why the target was last not reached or lost a request, with its address: for the report of a request that failed. `None` if
    /// nothing is known.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// State of the way to the server; `None` if it is in this process.
    fn import(&self) -> Option<ImportInfo> {
        None
    }
}

/// One of several object requests that run at the same time.
pub struct IoCall<'a> {
    /// The target.
    pub endpoint: &'a dyn OssEndpoint,
    /// The request.
    pub request: OssRequest,
    /// Its data.
    pub bulk: Bulk<'a>,
}

/// Who lends threads to [`run_all_by`].
pub trait Helpers: Sync {
    /// Runs `work` for each of `0..items`, on the caller's thread and on others that are free, beginning with the first,
    /// and returns when all have ended.
    fn share(&self, items: usize, work: &(dyn Fn(usize) + Sync));
}

/// Nobody helps.
pub struct Alone;

impl Helpers for Alone {
    fn share(&self, items: usize, work: &(dyn Fn(usize) + Sync)) {
        (0..items).for_each(work);
    }
}

/// Runs all calls, as many at a time as their transports allow, and gives their results in order. Returns when the last
/// one is answered, so that buffers are free again.
pub fn run_all(calls: Vec<IoCall<'_>>) -> Vec<StatusResult<OssReply>> {
    run_all_by(calls, &Alone)
}

/// [`run_all`] with the help of other threads: some send, and some take answers in.
pub fn run_all_by(calls: Vec<IoCall<'_>>, helpers: &dyn Helpers) -> Vec<StatusResult<OssReply>> {
    // Requests must outlive what was started with them, so they are parted from the buffers first.
    let mut requests = Vec::with_capacity(calls.len());
    let mut rest = Vec::with_capacity(calls.len());
    for call in calls {
        requests.push(call.request);
        rest.push(Mutex::new(Stage::Planned(call.endpoint, call.bulk)));
    }
    let stages: &[Mutex<Stage<'_>>] = &rest;
    let job = nacre_env::current_job();
    helpers.share(stages.len(), &|index| {
        let _job = nacre_env::enter_job(job);
        let Some((stage, request)) = stages.get(index).zip(requests.get(index)) else { return };
        let mut stage = stage.lock();
        if let Stage::Planned(endpoint, bulk) = std::mem::replace(&mut *stage, Stage::Taken) {
            // SAFETY: what is started is called below, or dropped by unwinding; `requests` outlives it.
            *stage = Stage::Started(unsafe { endpoint.start(request, bulk) });
        }
    });
    helpers.share(stages.len(), &|index| {
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
            // Only after a panic of a helper.
            _ => Err(Status::EIO),
        })
        .collect()
}

/// How far a call is.
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
