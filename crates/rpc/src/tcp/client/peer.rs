//! A target as a client sees it: connections per CPU, reconnects, resends.

mod link;

pub(crate) use link::is_refusal;

use super::body::Body;
use super::conn::{Conn, InFlight, NoReply};
use super::ends::{End, LANES_MAX, Place, Way};
use super::posts::Flights;
use super::waiter::{Destination, Reply};
use crate::api::{ClientCallbacks, MdsEndpoint};
use crate::config::ClientConfig;
use crate::stats::CountedRpc;
use crate::tcp::socket::TICK;
use crate::tcp::threads::ThreadGroup;
use crate::tunables::{Tunable, Tunables};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_session::{Backoff, Import, ImportState, Life, Recovery, Ticket};
use nacre_types::{ClientUuid, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::frame::{FrameFlags, FrameKind, Header, TAG_NONE};
use nacre_wire::mds::LeaseGrant;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Evictions that one request survives by connecting again.
const EVICTIONS_MAX: u32 = 3;

/// Who a client is to its servers.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Random identity of the mount.
    pub client: ClientUuid,
    /// Name of the file system, checked by servers; empty to take any.
    pub fsname: String,
    /// It is a metadata server that talks to others: it gets no lease ([`ConnectFlags::SERVER`]).
    ///
    /// [`ConnectFlags::SERVER`]: nacre_wire::connect::ConnectFlags::SERVER
    pub is_server: bool,
}

/// What a metadata client is told by its connection.
pub trait MdsEvents: ClientCallbacks {
    /// The server restarted or dropped this client ([`Recovery`]): open handles are to be opened again
    /// ([`nacre_wire::mds::OpenFlags::REPLAY`]) through `endpoint`, on the calling thread, before any other request
    /// goes on. Cached leases count no more; `grant` is the new one.
    ///
    /// # Errors
    /// An error makes the client connect once more and call this again.
    fn reconnected(
        &self,
        endpoint: &dyn MdsEndpoint,
        recovery: Recovery,
        grant: LeaseGrant,
    ) -> StatusResult<()>;
}

/// Of a metadata server that talks to another: it has nothing there that could be lost.
impl MdsEvents for crate::api::NoCallbacks {
    fn reconnected(&self, _: &dyn MdsEndpoint, _: Recovery, _: LeaseGrant) -> StatusResult<()> {
        Ok(())
    }
}

/// Counters of one endpoint since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientStats {
    /// Connections that were set up.
    pub connects: u64,
    /// Requests that were sent again after a lost connection.
    pub resends: u64,
    /// Frames to or from the server whose checksum was wrong: headers, bodies, data.
    pub damaged: u64,
    /// Times that the server had restarted or dropped the client.
    pub recoveries: u64,
    /// Requests under way now.
    pub in_flight: usize,
}

#[derive(Default)]
struct Counters {
    connects: AtomicU64,
    resends: AtomicU64,
    recoveries: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One request with what a resend needs.
pub(crate) struct Request<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) body: Body<'a>,
    pub(crate) send: &'a [u8],
    pub(crate) destination: Destination<'a>,
    pub(crate) resent: bool,
    /// Learns that it was sent.
    counted: Option<&'a CountedRpc<'a>>,
    /// Life of the client in which it may be sent, 0 for any.
    incarnation: u64,
    /// Does not wait for room on its connection.
    is_urgent: bool,
    /// It is answered by then or fails, whatever is configured.
    until: Option<Instant>,
    damaged: u32,
    evictions: u32,
    losses: Losses,
}

/// Connections that ended before they brought the answer of one request. The request itself may be why.
#[derive(Default)]
struct Losses {
    backoff: Option<Backoff>,
    /// When the request fails, if so.
    deadline: Option<Instant>,
}

impl Losses {
    /// One more: how long to wait before the request is sent again. Not at all the first time, as most connections end
    /// for reasons that have gone with the next one.
    fn add(&mut self, config: &ClientConfig) -> Option<Duration> {
        if let Some(backoff) = &mut self.backoff {
            return Some(backoff.next_pause());
        }
        self.backoff = Some(Backoff::new(config.backoff_min, config.backoff_max));
        self.deadline = config.deadline.map(|limit| Instant::now() + limit);
        None
    }
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        ticket: Ticket,
        body: Body<'a>,
        send: &'a [u8],
        destination: Destination<'a>,
    ) -> Request<'a> {
        let (resent, is_urgent) = (false, false);
        let (incarnation, damaged, evictions, until) = (0, 0, 0, None);
        let (counted, losses) = (None, Losses::default());
        Request {
            ticket,
            body,
            send,
            destination,
            resent,
            counted,
            incarnation,
            is_urgent,
            until,
            damaged,
            evictions,
            losses,
        }
    }

    /// Waits no longer than until then, for the server or for its answer. Also a server that is out of use is asked then, with
    /// one try to connect.
    pub(crate) fn until(self, until: Option<Instant>) -> Request<'a> {
        Request { until, ..self }
    }

    /// Others of this client may wait at the server for what it says: it goes out although as many are under way as may be. The
    /// server has threads for some more; there are never more than a few of these.
    pub(crate) fn urgent(self, is_urgent: bool) -> Request<'a> {
        Request { is_urgent, ..self }
    }

    /// Has its way counted.
    pub(crate) fn counted_by(self, counted: Option<&'a CountedRpc<'a>>) -> Request<'a> {
        Request { counted, ..self }
    }

    /// To be sent in this life of the client only; 0 for any.
    pub(crate) fn in_life(self, incarnation: u64) -> Request<'a> {
        Request { incarnation, ..self }
    }

    /// Bytes of data that go one way or the other.
    fn data_len(&self) -> usize {
        self.send.len().max(self.destination.len())
    }
}

/// What a connection is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Callbacks.
    Control,
    /// Requests, in this place.
    Requests { place: Place },
}

/// Called when handles have to be opened or locks to be brought back.
type RecoveryHook = Box<dyn Fn(Recovery, Option<LeaseGrant>) -> StatusResult<()> + Send + Sync>;

/// A target and the way to it.
pub(crate) struct Peer {
    pub(crate) target: TargetId,
    pub(crate) config: ClientConfig,
    pub(crate) tunables: Arc<Tunables>,
    identity: ClientIdentity,
    nids: Vec<Nid>,
    /// NIDs that can be connected to.
    nid_count: usize,
    pub(crate) flights: Arc<Flights>,
    /// First one of each NID, then their further ones; those in use come first.
    ends: Vec<End>,
    /// The server is on this host.
    shares_host: AtomicBool,
    /// Last transaction that is known to be durable.
    committed: AtomicU64,
    /// Threads that connect endpoints.
    threads: ThreadGroup,
    link: Mutex<Import>,
    link_changed: Condvar,
    lease: Mutex<Option<LeaseGrant>>,
    durability: AtomicU64,
    /// That of `link`, to be read without waiting.
    incarnation: AtomicU64,
    /// When the server last saw that this client is there, about.
    shown: Mutex<Instant>,
    /// Key of the server as of the last connect, 0 for none.
    server_key: AtomicU64,
    /// [`Revoked::version`] when it was last compared.
    ///
    /// [`Revoked::version`]: nacre_keys::Revoked::version
    revoked_version: AtomicU64,
    /// A thread of the control connection pings all the time.
    has_control: AtomicBool,
    recovery_hook: OnceLock<RecoveryHook>,
    stopping: AtomicBool,
    /// The client says goodbye: nobody connects any more who is not asked by a caller.
    leaving: AtomicBool,
    /// Threads that connect on their own account now.
    asides: AtomicUsize,
    counters: Counters,
}

/// A thread that connects on its own account; told apart from callers, since a client that has left must not come back
/// by it.
pub(super) struct Aside(Arc<Peer>);

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.asides.fetch_sub(1, Ordering::AcqRel);
        self.0.link_changed.notify_all();
    }
}

impl Peer {
    pub(crate) fn new(
        target: TargetId,
        nids: Vec<Nid>,
        identity: ClientIdentity,
        config: ClientConfig,
    ) -> StatusResult<Arc<Peer>> {
        let nid_count = nids.iter().filter(|nid| matches!(nid, Nid::Tcp(_))).count();
        if nid_count == 0 {
            return Err(Status::EINVAL);
        }
        let lanes = if target.kind == TargetKind::Ost { LANES_MAX } else { 1 };
        let backoff = Backoff::new(config.backoff_min, config.backoff_max);
        Ok(Arc::new(Peer {
            target,
            identity,
            flights: Arc::new(Flights::new()),
            ends: End::all_of(&nids, lanes, &config),
            nid_count,
            shares_host: AtomicBool::new(false),
            committed: AtomicU64::new(0),
            threads: ThreadGroup::default(),
            link: Mutex::new(Import::new(backoff)),
            link_changed: Condvar::new(),
            lease: Mutex::new(None),
            durability: AtomicU64::new(0),
            incarnation: AtomicU64::new(1),
            shown: Mutex::new(Instant::now()),
            server_key: AtomicU64::new(0),
            revoked_version: AtomicU64::new(0),
            has_control: AtomicBool::new(false),
            recovery_hook: OnceLock::new(),
            stopping: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            asides: AtomicUsize::new(0),
            counters: Counters::default(),
            tunables: Arc::new(Tunables::over(config.tunables.clone())),
            nids,
            config,
        }))
    }

    pub(crate) fn set_recovery_hook(&self, hook: RecoveryHook) {
        // Set once, right after the peer was made.
        let _ = self.recovery_hook.set(hook);
    }

    pub(crate) fn stats(&self) -> ClientStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientStats {
            connects: read(&self.counters.connects),
            resends: read(&self.counters.resends),
            damaged: read(&self.flights.damaged),
            recoveries: read(&self.counters.recoveries),
            in_flight: self.flights.count(),
        }
    }

    /// What may be cached, as of the last connect.
    pub(crate) fn lease(&self) -> Option<LeaseGrant> {
        *self.lease.lock()
    }

    /// Number that stands for the server host's boot; 0 before the first connect.
    pub(crate) fn durability(&self) -> u64 {
        self.durability.load(Ordering::Acquire)
    }

    /// From 1, one more with each eviction.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Nothing more is sent; callers that wait get `ESHUTDOWN`.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.link_changed.notify_all();
        self.close_all();
        self.threads.join_all();
        // What they opened at the last moment.
        self.close_all();
    }

    /// A metadata server has told up to where its changes are durable.
    pub(crate) fn note_committed(&self, transno: u64) {
        if self.committed.load(Ordering::Relaxed) < transno {
            self.committed.fetch_max(transno, Ordering::Relaxed);
        }
    }

    /// Ends all connections, because the server is silent; callers that wait connect again.
    pub(crate) fn drop_connections(&self) {
        self.close_all();
    }

    /// Tells the server that the client leaves.
    pub(crate) fn say_goodbye(self: &Arc<Self>, deadline: Instant) -> StatusResult<()> {
        let conn = self.conn(Some(deadline))?;
        let ticket = self.flights.begin(false)?;
        let header = Header::new(FrameKind::Disconnect, self.target, ticket.xid);
        // SAFETY: there is no buffer.
        let sent = unsafe { conn.submit(&header, &[], &[], Destination::none().place(), false) };
        match sent.and_then(|flight| flight.wait_until(Some(deadline))) {
            Ok(_) => {
                self.flights.finish(ticket.xid.0);
                Ok(())
            }
            Err(_) => Err(Status::ENOTCONN),
        }
    }

    /// There is a control connection from now on: it shows the server that the client is there.
    pub(crate) fn note_control(&self) {
        self.has_control.store(true, Ordering::Relaxed);
    }

    /// True while a goodbye is said and from then on.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) || self.is_stopping()
    }

    /// For a thread that is about to connect on its own account, as long as it does.
    pub(super) fn aside(self: &Arc<Self>) -> Aside {
        self.asides.fetch_add(1, Ordering::AcqRel);
        Aside(self.clone())
    }

    /// Nothing is connected any more but for a goodbye. False if none is to be said: nobody connects to a server that is away
    /// just to say so.
    pub(crate) fn begin_leaving(self: &Arc<Self>) -> bool {
        if self.is_stopping() || self.is_recovering_here() {
            return false;
        }
        self.leaving.store(true, Ordering::SeqCst);
        self.link_changed.notify_all();
        self.sweep_connections();
        matches!(self.link.lock().state(), ImportState::Full | ImportState::Recovering)
    }

    /// Waits until nobody connects on his own account any more.
    pub(crate) fn wait_for_asides(&self, deadline: Instant) -> bool {
        let mut link = self.link.lock();
        while self.asides.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            self.link_changed
                .wait_for(&mut link, TICK.min(deadline.saturating_duration_since(Instant::now())));
        }
        true
    }

    /// True if a side connection of this life belongs to the current one. If not, the server has restarted or dropped this
    /// client, and everything is set up anew.
    pub(crate) fn confirm(&self, life: Life) -> bool {
        {
            let mut link = self.link.lock();
            let current = link.life();
            if current == life {
                return true;
            }
            if current.instance == life.instance {
                if life.generation < current.generation {
                    // It took so long that we have been dropped and are back since.
                    return false;
                }
                link.on_evicted(current);
            }
        }
        self.close_all();
        false
    }

    /// Instance of the server that was last reached.
    pub(crate) fn instance(&self) -> u64 {
        self.link.lock().instance()
    }

    fn header(&self, ticket: &Ticket, resent: bool) -> Header {
        let mut header = Header::new(FrameKind::Request, self.target, ticket.xid);
        header.tag = ticket.tag.unwrap_or(TAG_NONE);
        header.acked = self.flights.acked();
        header.flags.set(FrameFlags::RESENT, resent);
        header
    }

    /// Name of the target for people.
    pub(crate) fn name(&self) -> String {
        let fsname = if self.identity.fsname.is_empty() { "nacre" } else { &self.identity.fsname };
        format!("{fsname}-{}", self.target)
    }

    /// Sends a request by one of this CPU's ways.
    ///
    /// # Safety
    /// As [`Conn::submit`]: the buffers of `request` stay valid until the returned value was waited for or dropped, and
    /// it is not leaked.
    pub(crate) unsafe fn submit(
        self: &Arc<Self>,
        request: &Request<'_>,
        way: Way,
        deadline: Option<Instant>,
    ) -> StatusResult<Result<InFlight, (NoReply, Arc<Conn>)>> {
        let data_len = request.data_len();
        if self.config.shape.is_some() {
            self.flights.release_due();
        }
        if data_len > 0 {
            self.enter_gate(data_len)?;
        }
        let conn = match self.conn_of_life(request, way, deadline) {
            Ok(conn) => conn,
            Err(status) => {
                self.leave_gate(data_len);
                return Err(status);
            }
        };
        let mut header = self.header(&request.ticket, request.resent);
        let body = request.body.for_conn(&conn, &mut header);
        if let Err(status) = header.set_body(body).and_then(|()| self.set_data(&mut header, request, &conn)) {
            self.leave_gate(data_len);
            return Err(status);
        }
        let (data, place) = (request.send, request.destination.place());
        // SAFETY: passed on to the caller.
        let flight = unsafe { conn.submit(&header, body, data, place, request.is_urgent) };
        if flight.is_ok() {
            request.counted.iter().for_each(|counted| counted.sent());
        }
        Ok(flight.map_err(|why| (why, conn)))
    }

    /// A connection on which the request may be sent. A connection belongs to one life from its begin to its end, so what
    /// is compared here is what the server will take the request for.
    ///
    /// # Errors
    /// As [`Peer::conn_for`]; `EVICTED` if the life that the request belongs to is over.
    fn conn_of_life(
        self: &Arc<Self>,
        request: &Request<'_>,
        way: Way,
        deadline: Option<Instant>,
    ) -> StatusResult<Arc<Conn>> {
        loop {
            let conn = self.conn_for(request.data_len(), way, deadline)?;
            match request.incarnation {
                0 => return Ok(conn),
                own if own == conn.incarnation => return Ok(conn),
                // It is left over from the life before, just being closed.
                own if own > conn.incarnation && own <= self.incarnation() => {
                    conn.close(None);
                }
                _ => return Err(Status::EVICTED),
            }
        }
    }

    /// Waits until fewer reads and writes than `max_rpcs_in_flight` are under way.
    fn enter_gate(self: &Arc<Self>, data_len: usize) -> StatusResult<()> {
        let gate = &self.flights.gate;
        // Those who wait for a recovery are inside, so who recovers must not wait for them.
        if self.is_recovering_here()
            || (data_len <= self.tunables.short_io_bytes() && !self.tunables.is_set(Tunable::MaxRpcsInFlight))
        {
            gate.enter();
            return Ok(());
        }
        if gate.try_enter(self.tunables.max_rpcs_in_flight()) {
            return Ok(());
        }
        nacre_env::blocking(|| {
            loop {
                let due = self.flights.release_due();
                if gate.try_enter(self.tunables.max_rpcs_in_flight()) {
                    return Ok(());
                }
                if self.is_stopping() {
                    return Err(Status::ESHUTDOWN);
                }
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
                // Those inside may all be ours: then nobody but us takes their answers in.
                let limit = due.map_or(TICK, |at| at.saturating_duration_since(Instant::now()).min(TICK));
                if due.is_none() && self.ends.iter().flat_map(End::conns).any(|conn| conn.read_once()) {
                    continue;
                }
                if gate.enter_within(self.tunables.max_rpcs_in_flight(), limit) {
                    return Ok(());
                }
            }
        })
    }

    /// Takes back [`Peer::enter_gate`] for a request that is not sent.
    fn leave_gate(&self, data_len: usize) {
        if data_len > 0 {
            self.flights.gate.leave();
        }
    }

    /// CPUs that connections are kept for.
    pub(crate) fn cpu_count(&self) -> usize {
        self.ends.first().map_or(1, End::cpus)
    }

    /// Sets what a header says about the data of a request or of its answer.
    fn set_data(&self, header: &mut Header, request: &Request<'_>, conn: &Conn) -> StatusResult<()> {
        let data_len = request.data_len();
        if data_len == 0 {
            return Ok(());
        }
        header.set_bulk(request.send, conn.checksum(self.tunables.checksum()))?;
        let short_bytes = self.tunables.short_io_bytes();
        let is_short = data_len <= short_bytes;
        header.flags.set(FrameFlags::SHORT_IO, is_short);
        if request.destination.len() > 0 {
            conn.expect_short(if is_short { short_bytes } else { 0 });
        }
        Ok(())
    }

    /// Runs a request until it is answered, over as many connections as it takes. `flight` if it was sent already.
    ///
    /// # Errors
    /// `EINTR`, `ETIMEDOUT`, `ESHUTDOWN`, `EIO` when bulk data is damaged again and again, or the reply's status.
    pub(crate) fn run(
        self: &Arc<Self>,
        mut request: Request<'_>,
        mut flight: Option<InFlight>,
    ) -> StatusResult<Reply> {
        let xid = request.ticket.xid.0;
        let result = loop {
            let sent = match flight.take() {
                Some(flight) => Ok(flight),
                None => {
                    let configured = self.config.deadline.map(|limit| Instant::now() + limit);
                    let deadline = request.until.or(request.losses.deadline).or(configured);
                    // SAFETY: the flight is waited for right below, on this stack frame.
                    match unsafe { self.submit(&request, Way::Near, deadline) } {
                        Ok(sent) => sent,
                        Err(status) => break Err(status),
                    }
                }
            };
            let (outcome, conn) = match sent {
                Ok(flight) => {
                    let conn = flight.conn().clone();
                    (flight.wait_until(request.until), conn)
                }
                Err((why, conn)) => (Err(why), conn),
            };
            match outcome {
                Ok(reply) => {
                    self.note_answer(&conn);
                    if let Some(result) = self.judge(&mut request, reply, &conn) {
                        break result;
                    }
                }
                Err(NoReply::Lost) => {
                    self.report_loss(&conn);
                    count(&self.counters.resends);
                    request.resent = true;
                    if let Some(pause) = request.losses.add(&self.config) {
                        let deadline = request.until.or(request.losses.deadline);
                        if let Err(status) = self.rest_until(pause, deadline) {
                            break Err(status);
                        }
                    }
                }
                Err(NoReply::NotSent) => break Err(Status::EINTR),
                // The connection finishes the xid when the reply comes, or when it ends.
                Err(NoReply::Interrupted) => return Err(Status::EINTR),
            }
        };
        self.flights.finish(xid);
        if let Err(status) = &result
            && status.is_fault()
            && let Some(trouble) = self.trouble()
        {
            log::debug!("request {xid} to {} failed: {status}: {trouble}", self.name());
        }
        result
    }

    /// Why the target was last not reached, or lost a request.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.flights.trouble.tell()
    }

    /// What a reply means: the result, or `None` to send the request again.
    fn judge(
        &self,
        request: &mut Request<'_>,
        reply: Reply,
        conn: &Arc<Conn>,
    ) -> Option<StatusResult<Reply>> {
        if !reply.bulk_intact || reply.header.flags.contains(FrameFlags::BULK_DAMAGED) {
            count(&self.flights.damaged);
            request.damaged += 1;
            self.flights.trouble.note(conn.nid, format_args!("data was damaged {} times", request.damaged));
            log::warn!(peer:% = conn.nid; "data to or from {} at {} was damaged on its way", self.name(), conn.nid);
            return (request.damaged > self.tunables.resend_count()).then_some(Err(Status::EIO));
        }
        match reply.header.status {
            Status::OK => Some(Ok(reply)),
            Status::EVICTED => {
                request.evictions += 1;
                conn.close(None);
                if self.link.lock().on_evicted(conn.life) {
                    log::warn!("{} has dropped this client: connecting again", self.name());
                    self.close_all();
                }
                (request.evictions > EVICTIONS_MAX).then_some(Err(Status::EIO))
            }
            status => Some(Err(status)),
        }
    }
}
