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
use crate::import::ClockOffset;
use crate::stats::CountedRpc;
use crate::tcp::socket::TICK;
use crate::tcp::threads::ThreadGroup;
use crate::tunables::{Tunable, Tunables};
use nacre_env::activity::Cause;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_session::{Backoff, Import, ImportState, Life, Recovery, Ticket};
use nacre_types::{ClientUuid, Nid, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::frame::{FrameFlags, FrameKind, Header, TAG_NONE};
use nacre_wire::mds::LeaseGrant;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Evictions that one request survives by reconnecting.
const EVICTIONS_MAX: u32 = 3;

/// Identity of a client towards its servers.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Random identity of the mount.
    pub client: ClientUuid,
    /// Name of the file system, checked by servers; empty to take any.
    pub fsname: String,
    /// True for a metadata server that is a client of others: it gets no lease ([`ConnectFlags::SERVER`]).
    ///
    /// [`ConnectFlags::SERVER`]: nacre_wire::connect::ConnectFlags::SERVER
    pub is_server: bool,
}

/// Events that an endpoint reports to a metadata client.
pub trait MdsEvents: ClientCallbacks {
    /// The server restarted or dropped this client ([`Recovery`]): the client re-opens its handles
    /// ([`nacre_wire::mds::OpenFlags::REPLAY`]) through `endpoint`, on the calling thread, before any other
    /// request continues. Cached leases are invalid; `grant` is the new one.
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

/// A metadata server that is a client of another has no state there that could be lost.
impl MdsEvents for crate::api::NoCallbacks {
    fn reconnected(&self, _: &dyn MdsEndpoint, _: Recovery, _: LeaseGrant) -> StatusResult<()> {
        Ok(())
    }
}

/// Counters of an endpoint since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientStats {
    /// Number of connections that were set up.
    pub connects: u64,
    /// Requests resent after a lost connection.
    pub resends: u64,
    /// Frames to or from the server whose checksum was wrong: headers, bodies, data.
    pub damaged: u64,
    /// Recoveries: the server had restarted or dropped the client.
    pub recoveries: u64,
    /// Requests in flight.
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

/// A request with everything that a resend needs.
pub(crate) struct Request<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) body: Body<'a>,
    pub(crate) send: &'a [u8],
    pub(crate) destination: Destination<'a>,
    pub(crate) resent: bool,
    /// Statistics entry, notified when the request is sent.
    counted: Option<&'a CountedRpc<'a>>,
    /// Life of the client in which it may be sent, 0 for any.
    incarnation: u64,
    /// Does not wait for a free entry on its connection.
    is_urgent: bool,
    /// Is not run twice, also if the client is evicted between two runs.
    is_once: bool,
    /// Life of the client in which it was sent and not answered, 0 for none.
    unanswered_in: u64,
    /// Deadline of all waits, whatever is configured.
    until: Option<Instant>,
    damaged: u32,
    evictions: u32,
    losses: Losses,
}

/// Connections that ended before they delivered the answer to one request. The request may be the cause.
#[derive(Default)]
struct Losses {
    backoff: Option<Backoff>,
    /// When the request fails because of the losses.
    deadline: Option<Instant>,
}

impl Losses {
    /// Counts a loss and returns the pause before the resend: none the first time, as most losses have a
    /// cause that the next connection does not share.
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
        let (resent, is_urgent, is_once) = (false, false, false);
        let (incarnation, unanswered_in, damaged, evictions, until) = (0, 0, 0, 0, None);
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
            is_once,
            unanswered_in,
            until,
            damaged,
            evictions,
            losses,
        }
    }

    /// Sets the deadline for the server and for its answer. A deactivated server is then asked too, with one
    /// attempt to connect.
    pub(crate) fn until(self, until: Option<Instant>) -> Request<'a> {
        Request { until, ..self }
    }

    /// Makes the request urgent: other requests of this client may wait for it at the server, so it is sent
    /// even if the connection has as many in flight as allowed. The server has a few threads to spare; there
    /// are never more than a few urgent requests.
    pub(crate) fn urgent(self, is_urgent: bool) -> Request<'a> {
        Request { is_urgent, ..self }
    }

    /// Makes the request fail with `EIO` instead of a second run: its answer was lost, the server has evicted the
    /// client since, and does not know whether it ran the request.
    pub(crate) fn once(self, is_once: bool) -> Request<'a> {
        Request { is_once, ..self }
    }

    /// Sets the statistics entry.
    pub(crate) fn counted_by(self, counted: Option<&'a CountedRpc<'a>>) -> Request<'a> {
        Request { counted, ..self }
    }

    /// Restricts the request to this life of the client; 0 for any.
    pub(crate) fn in_life(self, incarnation: u64) -> Request<'a> {
        Request { incarnation, ..self }
    }

    /// Returns the number of bytes of data, in either direction.
    fn data_len(&self) -> usize {
        self.send.len().max(self.destination.len())
    }
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Callbacks of the server.
    Control,
    /// Requests, in this place.
    Requests { place: Place },
}

/// Called when the client has to re-open handles or replay locks.
type RecoveryHook = Box<dyn Fn(Recovery, Option<LeaseGrant>) -> StatusResult<()> + Send + Sync>;

/// A target and the connections to it.
pub(crate) struct Peer {
    pub(crate) target: TargetId,
    pub(crate) config: ClientConfig,
    pub(crate) tunables: Arc<Tunables>,
    identity: ClientIdentity,
    nids: Vec<Nid>,
    /// NIDs that can be connected to.
    nid_count: usize,
    pub(crate) flights: Arc<Flights>,
    /// The first endpoint of each NID, then their further ones; those in use come first.
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
    /// Incarnation of `link`, readable without its lock.
    incarnation: AtomicU64,
    /// [`Import::answers_from`] of `link`, readable without its lock.
    answers_from: AtomicU64,
    /// Approximate time at which the server last heard of this client.
    shown: Mutex<Instant>,
    /// Key of the server as of the last connect, 0 for none.
    server_key: AtomicU64,
    /// [`Revoked::version`] at the last comparison.
    ///
    /// [`Revoked::version`]: nacre_keys::Revoked::version
    revoked_version: AtomicU64,
    /// Difference of the server's clock, by the last ping of a control connection.
    clock: Mutex<Option<ClockOffset>>,
    /// A thread of a control connection pings the server continuously.
    has_control: AtomicBool,
    recovery_hook: OnceLock<RecoveryHook>,
    stopping: AtomicBool,
    /// The client is disconnecting: only callers may still connect, no background threads.
    leaving: AtomicBool,
    /// Background threads that are connecting.
    asides: AtomicUsize,
    counters: Counters,
}

/// A background thread that connects; distinguished from callers, since it must not reconnect a client that
/// has disconnected.
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
            answers_from: AtomicU64::new(1),
            shown: Mutex::new(Instant::now()),
            server_key: AtomicU64::new(0),
            clock: Mutex::new(None),
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
        // Set once, right after the peer was created.
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

    /// Returns the lease as of the last connect.
    pub(crate) fn lease(&self) -> Option<LeaseGrant> {
        *self.lease.lock()
    }

    /// Returns the number that stands for the boot of the server's host; 0 before the first connect.
    pub(crate) fn durability(&self) -> u64 {
        self.durability.load(Ordering::Acquire)
    }

    /// Returns the incarnation: from 1, one more with each eviction.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation.load(Ordering::Acquire)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Stops all requests; waiting callers get `ESHUTDOWN`.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.link_changed.notify_all();
        self.close_all();
        self.threads.join_all();
        // Connections that those threads opened at the last moment.
        self.close_all();
    }

    /// Notes a metadata server's report of its last durable transaction.
    pub(crate) fn note_committed(&self, transno: u64) {
        if self.committed.load(Ordering::Relaxed) < transno {
            self.committed.fetch_max(transno, Ordering::Relaxed);
        }
    }

    /// Ends all connections, because the server is unresponsive; waiting callers connect again.
    pub(crate) fn drop_connections(&self) {
        self.close_all();
    }

    /// Notifies the server that the client disconnects.
    pub(crate) fn say_goodbye(self: &Arc<Self>, deadline: Instant) -> StatusResult<()> {
        loop {
            let conn = self.conn(Some(deadline))?;
            let ticket = self.flights.begin(false)?;
            let header = Header::new(FrameKind::Disconnect, self.target, ticket.xid);
            // SAFETY: there is no buffer.
            let sent = unsafe { conn.submit(&header, &[], &[], Destination::none().place(), false) };
            let answered = sent.and_then(|flight| flight.wait_until(Some(deadline)));
            self.flights.finish(ticket.xid.0);
            match answered {
                Ok(_) => return Ok(()),
                // The server was killed a moment ago: the next run waits for this client otherwise.
                Err(_) if conn.is_closed() && Instant::now() < deadline => {}
                Err(_) => return Err(Status::ENOTCONN),
            }
        }
    }

    /// Notes the difference of the server's clock.
    pub(crate) fn note_clock(&self, offset: Option<ClockOffset>) {
        *self.clock.lock() = offset;
    }

    /// Notes that a control connection exists, whose pings keep the client from eviction.
    pub(crate) fn note_control(&self) {
        self.has_control.store(true, Ordering::Relaxed);
    }

    /// Returns true from the start of the disconnect on.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst) || self.is_stopping()
    }

    /// Registers a background thread that is about to connect, for as long as it does.
    pub(super) fn aside(self: &Arc<Self>) -> Aside {
        self.asides.fetch_add(1, Ordering::AcqRel);
        Aside(self.clone())
    }

    /// Forbids connects except for the goodbye. Returns false if none is needed. A client whose connection broke
    /// connects again to disconnect only if it `has_state` at the server that others may wait for.
    pub(crate) fn begin_leaving(self: &Arc<Self>, has_state: bool) -> bool {
        if self.is_stopping() || self.is_recovering_here() {
            return false;
        }
        self.leaving.store(true, Ordering::SeqCst);
        self.link_changed.notify_all();
        self.sweep_connections();
        match self.link.lock().state() {
            ImportState::Full | ImportState::Recovering => true,
            ImportState::Disconnected | ImportState::Connecting => has_state,
            ImportState::New | ImportState::Evicted => false,
        }
    }

    /// Waits until no background thread is connecting.
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

    /// Returns true if a control connection of this life belongs to the current one. If not, the server has
    /// restarted or dropped this client, and all connections are set up again.
    pub(crate) fn confirm(&self, life: Life) -> bool {
        {
            let mut link = self.link.lock();
            let current = link.life();
            if current == life {
                return true;
            }
            if current.instance == life.instance {
                if life.generation < current.generation {
                    // It took so long that the client was dropped meanwhile and has reconnected.
                    return false;
                }
                link.on_evicted(current);
            }
        }
        self.close_all();
        false
    }

    /// Returns the instance of the server as of the last connect.
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

    /// Returns the identity of the client.
    pub(crate) fn client(&self) -> ClientUuid {
        self.identity.client
    }

    /// Returns the name of the target for logs.
    pub(crate) fn name(&self) -> String {
        let fsname = if self.identity.fsname.is_empty() { "nacre" } else { &self.identity.fsname };
        format!("{fsname}-{}", self.target)
    }

    /// Sends a request on one of this CPU's ways.
    ///
    /// # Safety
    /// As [`Conn::submit`]: the buffers of `request` stay valid until the returned value has been waited for
    /// or dropped, and it is not leaked.
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
        // SAFETY: the caller keeps the contract, which is the same.
        let flight = unsafe { conn.submit(&header, body, data, place, request.is_urgent) };
        if flight.is_ok() {
            request.counted.iter().for_each(|counted| counted.sent());
        }
        Ok(flight.map_err(|why| (why, conn)))
    }

    /// Returns a connection on which the request may be sent. A connection belongs to one life for all its
    /// time, so the life compared here is the one that the server runs the request in.
    ///
    /// # Errors
    /// As [`Peer::conn_for`]; `EVICTED` if the life of the request is over; `EIO` if the server may have run the
    /// request in a life that is over, and would run it again ([`Request::once`]).
    fn conn_of_life(
        self: &Arc<Self>,
        request: &Request<'_>,
        way: Way,
        deadline: Option<Instant>,
    ) -> StatusResult<Arc<Conn>> {
        loop {
            let conn = self.conn_for(request.data_len(), way, deadline)?;
            if request.is_once
                && request.unanswered_in != 0
                && request.unanswered_in < self.answers_from.load(Ordering::Acquire)
            {
                log::warn!(
                    "request {} to {} fails: this client was evicted, and whether it was executed is not known",
                    request.ticket.xid.0,
                    self.name()
                );
                return Err(Status::EIO);
            }
            match request.incarnation {
                0 => return Ok(conn),
                own if own == conn.incarnation => return Ok(conn),
                // A connection of the previous life that is about to be closed.
                own if own > conn.incarnation && own <= self.incarnation() => {
                    conn.close(None);
                }
                _ => return Err(Status::EVICTED),
            }
        }
    }

    /// Waits until fewer reads and writes than `max_rpcs_in_flight` are in flight.
    fn enter_gate(self: &Arc<Self>, data_len: usize) -> StatusResult<()> {
        let gate = &self.flights.gate;
        // Requests that wait for a recovery are inside the gate, so recovery must not wait for them.
        if self.is_recovering_here()
            || (data_len <= self.tunables.short_io_bytes() && !self.tunables.is_set(Tunable::MaxRpcsInFlight))
        {
            gate.enter();
            return Ok(());
        }
        if gate.try_enter(self.tunables.max_rpcs_in_flight()) {
            return Ok(());
        }
        let cause = Cause::Slot { target: self.target };
        nacre_env::activity::blocking_for(cause, || {
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
                // All requests inside may be this thread's own: then no other thread receives their answers.
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

    /// Undoes [`Peer::enter_gate`] for a request that is not sent.
    fn leave_gate(&self, data_len: usize) {
        if data_len > 0 {
            self.flights.gate.leave();
        }
    }

    /// Returns the number of CPUs with connections.
    pub(crate) fn cpu_count(&self) -> usize {
        self.ends.first().map_or(1, End::cpus)
    }

    /// Sets the header's fields about the data of a request or of its answer.
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

    /// Runs a request until it is answered, over as many connections as it takes. `flight` if it was sent
    /// already.
    ///
    /// # Errors
    /// `EINTR`, `ETIMEDOUT`, `ESHUTDOWN`, `EIO` when bulk data is damaged `resend_count` times, or the
    /// reply's status.
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
                    if request.unanswered_in == 0 {
                        request.unanswered_in = conn.incarnation;
                    }
                    if let Some(pause) = request.losses.add(&self.config) {
                        let deadline = request.until.or(request.losses.deadline);
                        if let Err(status) = self.rest_until(pause, deadline) {
                            break Err(status);
                        }
                    }
                }
                Err(NoReply::NotSent) => break Err(Status::EINTR),
                // The connection finishes the xid when the reply arrives, or when it ends.
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

    /// Returns the last failure to reach the target or to get an answer.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.flights.trouble.tell()
    }

    /// Evaluates a reply: the result, or `None` to send the request again.
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
