//! A target as a client sees it: connections per CPU, reconnects, resends.

use super::conn::{Conn, InFlight, NoReply};
use super::posts::Flights;
use super::waiter::{Destination, Reply};
use crate::api::{ClientCallbacks, MdsEndpoint};
use crate::config::ClientConfig;
use crate::tcp::handshake::{self, Greeting};
use crate::tcp::socket::TICK;
use crate::tunables::Tunables;
use nacre_session::{Backoff, Import, Recovery, Ticket};
use nacre_types::{ClientUuid, Nid, Status, StatusResult, TargetId};
use nacre_wire::frame::{FrameFlags, FrameKind, Header, TAG_NONE};
use nacre_wire::mds::LeaseGrant;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Evictions that one request survives by connecting again.
const EVICTIONS_MAX: u32 = 3;

/// Who a client is to its servers.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// Random identity of the mount.
    pub client: ClientUuid,
    /// Name of the file system, checked by servers; empty to take any.
    pub fsname: String,
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

/// Counters of one endpoint since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientStats {
    /// Connections that were set up.
    pub connects: u64,
    /// Requests that were sent again after a lost connection.
    pub resends: u64,
    /// Requests whose bulk data was damaged on its way.
    pub bulk_damaged: u64,
    /// Times that the server had restarted or dropped the client.
    pub recoveries: u64,
    /// Requests under way now.
    pub in_flight: usize,
}

#[derive(Default)]
struct Counters {
    connects: AtomicU64,
    resends: AtomicU64,
    bulk_damaged: AtomicU64,
    recoveries: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// One request with what a resend needs.
pub(crate) struct Request<'a> {
    pub(crate) ticket: Ticket,
    pub(crate) body: &'a [u8],
    pub(crate) send: &'a [u8],
    pub(crate) destination: Destination<'a>,
    pub(crate) resent: bool,
    damaged: u32,
    evictions: u32,
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        ticket: Ticket,
        body: &'a [u8],
        send: &'a [u8],
        destination: Destination<'a>,
    ) -> Request<'a> {
        Request { ticket, body, send, destination, resent: false, damaged: 0, evictions: 0 }
    }

    /// Bytes of data that go one way or the other.
    fn data_len(&self) -> usize {
        self.send.len().max(self.destination.len())
    }
}

/// Which connection a request takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The one whose server thread runs on this thread's CPU, if both are on one host: no wake-up crosses CPUs.
    Near,
    /// One whose server thread runs on another CPU, for work worth a second CPU.
    Across,
}

impl Way {
    fn slot(self, cpu: usize, cpus: usize) -> usize {
        match self {
            Way::Near => cpu % cpus,
            Way::Across => cpus + (cpu + 1) % cpus,
        }
    }
}

/// What a connection is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// Callbacks.
    Control,
    /// Requests; `slot` is its place in the peer's list.
    Requests { slot: usize },
}

/// Called when handles have to be opened again.
type RecoveryHook = Box<dyn Fn(Recovery, Option<LeaseGrant>) -> StatusResult<()> + Send + Sync>;

/// A target and the way to it.
pub(crate) struct Peer {
    pub(crate) target: TargetId,
    pub(crate) config: ClientConfig,
    pub(crate) tunables: Arc<Tunables>,
    identity: ClientIdentity,
    nids: Vec<Nid>,
    pub(crate) flights: Arc<Flights>,
    /// One connection per CPU for threads there, then one to each CPU for threads elsewhere ([`Way::Across`]).
    slots: Vec<Mutex<Option<Arc<Conn>>>>,
    link: Mutex<Import>,
    link_changed: Condvar,
    lease: Mutex<Option<LeaseGrant>>,
    durability: AtomicU64,
    recovery_hook: OnceLock<RecoveryHook>,
    stopping: AtomicBool,
    counters: Counters,
}

thread_local! {
    /// While this thread restores handles at a peer, its requests take this connection and wait for nobody.
    static RECOVERING: RefCell<Option<(usize, Arc<Conn>)>> = const { RefCell::new(None) };
}

impl Peer {
    pub(crate) fn new(
        target: TargetId,
        nids: Vec<Nid>,
        identity: ClientIdentity,
        config: ClientConfig,
    ) -> StatusResult<Arc<Peer>> {
        if !nids.iter().any(|nid| matches!(nid, Nid::Tcp(_))) {
            return Err(Status::EINVAL);
        }
        let backoff = Backoff::new(config.backoff_min, config.backoff_max);
        Ok(Arc::new(Peer {
            target,
            identity,
            nids,
            flights: Arc::new(Flights::new()),
            slots: (0..2 * nacre_env::possible_cpu_count().max(1)).map(|_| Mutex::new(None)).collect(),
            link: Mutex::new(Import::new(backoff)),
            link_changed: Condvar::new(),
            lease: Mutex::new(None),
            durability: AtomicU64::new(0),
            recovery_hook: OnceLock::new(),
            stopping: AtomicBool::new(false),
            counters: Counters::default(),
            tunables: Arc::new(Tunables::over(config.tunables.clone())),
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
            bulk_damaged: read(&self.counters.bulk_damaged),
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

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Nothing more is sent; whoever waits gets `ESHUTDOWN`.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.link_changed.notify_all();
        self.close_all();
    }

    /// Ends all connections, because the server is silent; whoever waits connects again.
    pub(crate) fn drop_connections(&self) {
        self.close_all();
    }

    /// Tells the server that the client leaves.
    pub(crate) fn say_goodbye(self: &Arc<Self>, deadline: Instant) -> StatusResult<()> {
        let conn = self.conn(Some(deadline))?;
        let ticket = self.flights.begin(false)?;
        let header = Header::new(FrameKind::Disconnect, self.target, ticket.xid);
        // SAFETY: there is no buffer.
        let sent = unsafe { conn.submit(&header, &[], &[], Destination::none().place()) };
        match sent.and_then(|flight| flight.wait_until(Some(deadline))) {
            Ok(_) => {
                self.flights.finish(ticket.xid.0);
                Ok(())
            }
            Err(_) => Err(Status::ENOTCONN),
        }
    }

    /// A side connection found that the server does not know this client: everything is set up anew.
    pub(crate) fn forgotten(&self, instance: u64) {
        self.link.lock().on_forgotten(instance);
        self.close_all();
    }

    /// Instance of the server that was last reached.
    pub(crate) fn instance(&self) -> u64 {
        self.link.lock().instance()
    }

    fn close_all(&self) {
        for slot in &self.slots {
            let conn = slot.lock().take();
            if let Some(conn) = conn {
                conn.close(None);
            }
        }
    }

    /// Looks at connections that nobody uses: answers of posted requests, lost connections; sends again what was lost.
    pub(crate) fn sweep(self: &Arc<Self>) {
        self.sweep_connections();
        if self.flights.post_count() == 0 {
            return;
        }
        if let Ok(conn) = self.conn(None) {
            self.send_posts(&conn);
        }
    }

    /// Finds out which connections have ended.
    pub(crate) fn sweep_connections(&self) {
        for slot in &self.slots {
            let conn = slot.lock().clone();
            if let Some(conn) = conn {
                conn.sweep();
                if conn.is_closed() {
                    self.report_loss(&conn);
                }
            }
        }
    }

    /// Sends posted requests that are on no connection.
    pub(crate) fn send_posts(&self, conn: &Conn) {
        for post in self.flights.take_unsent() {
            let mut header = self.header(&post.ticket, post.resent);
            if header.set_body(&post.body).is_ok() {
                conn.post(&header, &post.body);
            }
        }
    }

    fn header(&self, ticket: &Ticket, resent: bool) -> Header {
        let mut header = Header::new(FrameKind::Request, self.target, ticket.xid);
        header.tag = ticket.tag.unwrap_or(TAG_NONE);
        header.acked = self.flights.acked();
        header.flags.set(FrameFlags::RESENT, resent);
        header
    }

    /// The connection of this thread's CPU, opened if need be. `deadline` limits the wait for a server that is away.
    ///
    /// # Errors
    /// `EINTR`, `ETIMEDOUT`, `ESHUTDOWN`; on a first connect whatever the server refuses it with.
    pub(crate) fn conn(self: &Arc<Self>, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        self.conn_by(Way::Near, deadline)
    }

    /// CPUs that connections are kept for.
    pub(crate) fn cpu_count(&self) -> usize {
        self.slots.len() / 2
    }

    fn conn_by(self: &Arc<Self>, way: Way, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        let me = Arc::as_ptr(self) as usize;
        let recovering = RECOVERING.with(|slot| {
            slot.borrow().as_ref().filter(|(peer, _)| *peer == me).map(|(_, conn)| conn.clone())
        });
        if let Some(conn) = recovering {
            return if conn.is_closed() { Err(Status::ENOTCONN) } else { Ok(conn) };
        }
        let slot = way.slot(nacre_env::current_cpu(), self.cpu_count());
        match self.open_conn(slot) {
            Some(conn) => Ok(conn),
            None => nacre_env::blocking(|| self.open(slot, deadline)),
        }
    }

    fn open_conn(&self, slot: usize) -> Option<Arc<Conn>> {
        self.slots.get(slot)?.lock().as_ref().filter(|conn| !conn.is_closed()).cloned()
    }

    /// Checks what ends any wait for the server.
    fn may_wait(&self, deadline: Option<Instant>) -> StatusResult<()> {
        if self.is_stopping() {
            Err(Status::ESHUTDOWN)
        } else if nacre_env::interrupted() {
            Err(Status::EINTR)
        } else if deadline.is_some_and(|at| Instant::now() >= at) {
            Err(Status::ETIMEDOUT)
        } else {
            Ok(())
        }
    }

    /// Opens a connection; one thread at a time tries, the others wait for its result.
    fn open(self: &Arc<Self>, slot: usize, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        let began = Instant::now();
        let mut link = self.link.lock();
        loop {
            self.may_wait(deadline)?;
            if let Some(conn) = self.open_conn(slot) {
                return Ok(conn);
            }
            if !link.on_connecting() {
                self.link_changed.wait_for(&mut link, TICK);
                continue;
            }
            let first = link.instance() == 0;
            let result = MutexGuard::unlocked(&mut link, || self.attempt(slot, deadline));
            let error = match result {
                Ok(conn) => {
                    if link.take_restored() {
                        log::info!("connection to {} at {} was restored", self.name(), conn.nid);
                    }
                    self.link_changed.notify_all();
                    drop(link);
                    self.send_posts(&conn);
                    return Ok(conn);
                }
                Err(error) => error,
            };
            if matches!(error, Status::EINTR | Status::ESHUTDOWN)
                || (first && matches!(error, Status::WRONG_FSNAME | Status::BAD_VERSION))
                || (first && error == Status::ECONNREFUSED && self.gives_up_refused(began))
            {
                link.on_abandoned();
                self.link_changed.notify_all();
                return Err(error);
            }
            let (pause, report) = link.on_failed();
            if report {
                log::warn!("{} cannot be reached ({error}); operations using it will wait", self.name());
            }
            self.link_changed.notify_all();
            self.pause(&mut link, pause, deadline)?;
        }
    }

    fn gives_up_refused(&self, began: Instant) -> bool {
        self.config.refused_deadline.is_some_and(|limit| began.elapsed() >= limit)
    }

    fn pause(
        &self,
        link: &mut MutexGuard<'_, Import>,
        pause: Duration,
        deadline: Option<Instant>,
    ) -> StatusResult<()> {
        let end = Instant::now() + pause;
        loop {
            self.may_wait(deadline)?;
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || link.is_busy() {
                return Ok(());
            }
            self.link_changed.wait_for(link, left.min(TICK));
        }
    }

    /// Waits, interruptibly.
    pub(crate) fn rest(&self, pause: Duration) -> StatusResult<()> {
        let end = Instant::now() + pause;
        nacre_env::blocking(|| {
            loop {
                self.may_wait(None)?;
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(());
                }
                std::thread::sleep(left.min(TICK));
            }
        })
    }

    /// Tries every NID once, and restores what the server has lost.
    fn attempt(self: &Arc<Self>, slot: usize, deadline: Option<Instant>) -> StatusResult<Arc<Conn>> {
        let greeting = self.greet(Purpose::Requests { slot }, deadline)?;
        let connected = &greeting.connected;
        count(&self.counters.connects);
        self.durability.store(handshake::durability_epoch(&connected.boot_id), Ordering::Release);
        if connected.lease.is_some() {
            *self.lease.lock() = connected.lease;
        }
        let (instance, known, lease) = (connected.instance, connected.known, connected.lease);
        let conn = Arc::new(greeting.into_conn(self.target, &self.config, self.flights.clone()));
        let recovery = self.link.lock().on_connected(instance, known);
        if recovery != Recovery::None {
            count(&self.counters.recoveries);
            self.close_all();
            if let Some(hook) = self.recovery_hook.get() {
                let _guard = RecoveryGuard::enter(Arc::as_ptr(self) as usize, conn.clone());
                if let Err(status) = hook(recovery, lease) {
                    conn.close(None);
                    return Err(status);
                }
            }
            if conn.is_closed() {
                // Whatever the hook made of it: not all handles can be open again.
                return Err(Status::ENOTCONN);
            }
            self.link.lock().on_recovered();
        }
        if let Some(slot) = self.slots.get(slot) {
            *slot.lock() = Some(conn.clone());
        }
        if self.is_stopping() {
            conn.close(None);
            return Err(Status::ESHUTDOWN);
        }
        Ok(conn)
    }

    /// Connects to the first NID that answers. `ECONNREFUSED` only if all refuse.
    pub(crate) fn greet(&self, purpose: Purpose, deadline: Option<Instant>) -> StatusResult<Greeting> {
        let (cpu, control, wide) = match purpose {
            Purpose::Control => (u32::MAX, true, false),
            Purpose::Requests { slot } => ((slot % self.cpu_count()) as u32, false, slot >= self.cpu_count()),
        };
        let instance = self.link.lock().instance();
        let mut last = Status::ECONNREFUSED;
        for nid in &self.nids {
            self.may_wait(deadline)?;
            let asked = handshake::Asked {
                target: self.target,
                nid: *nid,
                client: self.identity.client,
                fsname: &self.identity.fsname,
                cpu,
                instance,
                control,
                wide,
            };
            match handshake::connect(&asked, &self.config, &|| self.may_wait(deadline)) {
                Ok(greeting) => return Ok(greeting),
                Err(status @ (Status::EINTR | Status::ESHUTDOWN)) => return Err(status),
                Err(Status::ECONNREFUSED) => {}
                Err(status) => last = status,
            }
        }
        Err(last)
    }

    /// Name of the target for people.
    pub(crate) fn name(&self) -> String {
        let fsname = if self.identity.fsname.is_empty() { "nacre" } else { &self.identity.fsname };
        format!("{fsname}-{}", self.target)
    }

    /// A connection was found broken.
    pub(crate) fn report_loss(&self, conn: &Conn) {
        if self.is_stopping() || !conn.take_loss() {
            return;
        }
        if self.link.lock().on_lost() {
            log::warn!(
                "connection to {} at {} was lost; operations using it will wait until it is restored",
                self.name(),
                conn.nid
            );
        }
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
        let conn = self.conn_by(way, deadline)?;
        let mut header = self.header(&request.ticket, request.resent);
        header.set_body(request.body)?;
        self.set_data(&mut header, request, &conn)?;
        // SAFETY: passed on to the caller.
        let flight = unsafe { conn.submit(&header, request.body, request.send, request.destination.place()) };
        Ok(flight.map_err(|why| (why, conn)))
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
                    let deadline = self.config.deadline.map(|limit| Instant::now() + limit);
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
                    (flight.wait(), conn)
                }
                Err((why, conn)) => (Err(why), conn),
            };
            match outcome {
                Ok(reply) => {
                    if let Some(result) = self.judge(&mut request, reply, &conn) {
                        break result;
                    }
                }
                Err(NoReply::Lost) => {
                    self.report_loss(&conn);
                    count(&self.counters.resends);
                    request.resent = true;
                }
                Err(NoReply::NotSent) => break Err(Status::EINTR),
                // The connection finishes the xid when the reply comes, or when it ends.
                Err(NoReply::Interrupted) => return Err(Status::EINTR),
            }
        };
        self.flights.finish(xid);
        result
    }

    /// What a reply means: the result, or `None` to send the request again.
    fn judge(
        &self,
        request: &mut Request<'_>,
        reply: Reply,
        conn: &Arc<Conn>,
    ) -> Option<StatusResult<Reply>> {
        if !reply.bulk_intact || reply.header.flags.contains(FrameFlags::BULK_DAMAGED) {
            count(&self.counters.bulk_damaged);
            request.damaged += 1;
            log::warn!("data to or from {} at {} was damaged on its way", self.name(), conn.nid);
            return (request.damaged > self.tunables.resend_count()).then_some(Err(Status::EIO));
        }
        match reply.header.status {
            Status::OK => Some(Ok(reply)),
            Status::EVICTED => {
                request.evictions += 1;
                self.link.lock().on_evicted();
                log::warn!("{} has dropped this client: connecting again", self.name());
                conn.close(None);
                self.close_all();
                (request.evictions > EVICTIONS_MAX).then_some(Err(Status::EIO))
            }
            status => Some(Err(status)),
        }
    }
}

/// Lets this thread's requests through to a peer that is being restored.
struct RecoveryGuard {
    previous: Option<(usize, Arc<Conn>)>,
}

impl RecoveryGuard {
    fn enter(peer: usize, conn: Arc<Conn>) -> RecoveryGuard {
        RecoveryGuard { previous: RECOVERING.with(|slot| slot.borrow_mut().replace((peer, conn))) }
    }
}

impl Drop for RecoveryGuard {
    fn drop(&mut self) {
        let previous = self.previous.take();
        RECOVERING.with(|slot| *slot.borrow_mut() = previous);
    }
}
