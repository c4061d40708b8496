//! The endpoints that callers see.

use super::conn::{InFlight, NoReply};
use super::control::Control;
use super::ends::Way;
use super::idle;
use super::peer::{ClientIdentity, ClientStats, MdsEvents, Peer, Request};
use super::split::{self, Ways};
use super::waiter::{Destination, Reply};
use crate::api::{MdsEndpoint, MgsEndpoint, OssEndpoint, Started};
use crate::config::ClientConfig;
use crate::import::ImportInfo;
use crate::stats::RpcStats;
use crate::tcp::scratch::Scratch;
use crate::tunables::Tunables;
use nacre_types::{Cred, Nid, Status, StatusResult, TargetId};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use nacre_wire::{Decode, Encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// First and longest pause between tries of a lock that may not wait at the server.
const LOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Time between two looks for the answers of posted requests when a client leaves.
const POST_PAUSE: Duration = Duration::from_millis(2);

/// Runs a request without bulk data.
fn round_trip(peer: &Arc<Peer>, modifying: bool, body: &[u8]) -> StatusResult<Reply> {
    let ticket = peer.flights.begin(modifying)?;
    nacre_env::blocking(|| peer.run(Request::new(ticket, body, &[], Destination::none()), None))
}

fn undecodable(peer: &Peer, error: nacre_wire::DecodeError) -> Status {
    log::warn!("reply of {} not understood: {error}", peer.name());
    Status::EPROTO
}

/// Calls without the control connection; also what a recovery works with.
struct MdsCalls {
    peer: Arc<Peer>,
    waiting_locks: AtomicU32,
}

impl MdsCalls {
    fn run(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let body = encode_call(cred, request);
        let reply = round_trip(&self.peer, request.is_modifying(), &body)?;
        let answer = MdsAnswer::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))?;
        self.peer.note_committed(answer.last_committed.0);
        Ok(answer)
    }

    /// A lock that waits holds a thread of the server, so only a few may.
    fn run_waiting_lock(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let MdsRequest::SetLock { fid, lock, .. } = *request else { return Err(Status::EINVAL) };
        let allowed = self.peer.config.waiting_locks_max;
        let mut pause = LOCK_PAUSE.0;
        loop {
            let took = self
                .waiting_locks
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < allowed).then_some(n + 1));
            if took.is_ok() {
                let result = self.run(cred, request);
                self.waiting_locks.fetch_sub(1, Ordering::AcqRel);
                return result;
            }
            match self.run(cred, &MdsRequest::SetLock { fid, lock, wait: false }) {
                Err(Status::EAGAIN) => {}
                result => return result,
            }
            self.peer.rest(pause)?;
            pause = (pause * 2).min(LOCK_PAUSE.1);
        }
    }
}

fn encode_call(cred: &Cred, request: &MdsRequest<'_>) -> Scratch {
    let mut body = Scratch::new();
    body.reserve(256);
    cred.encode(&mut body);
    request.encode(&mut body);
    body
}

impl MdsEndpoint for MdsCalls {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::SetLock { wait: true, .. } => self.run_waiting_lock(cred, request),
            _ => self.run(cred, request),
        }
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        let body = encode_call(cred, request);
        let ticket = match self.peer.flights.begin(true) {
            Ok(ticket) => ticket,
            Err(status) => return log::warn!("request without waiting for its answer not sent: {status}"),
        };
        if self.peer.flights.add_post(ticket, &body) {
            // Without a connection it stays in the list, which the next one takes up.
            if let Ok(conn) = self.peer.conn(None) {
                self.peer.send_posts(&conn);
            }
            return;
        }
        let result = nacre_env::blocking(|| {
            self.peer.run(Request::new(ticket, &body, &[], Destination::none()), None)
        });
        if let Err(status) = result {
            log::warn!("a request whose answer nobody waits for failed: {status}");
        }
    }
}

/// A metadata target over TCP. Dropping it closes its connections; see [`TcpMds::disconnect`].
pub struct TcpMds {
    calls: Arc<MdsCalls>,
    control: Control,
}

impl TcpMds {
    /// Connects to MDT `index` at one of `nids`, trying for [`ClientConfig::first_connect_deadline`].
    ///
    /// Starts one thread, which receives callbacks, pings, and reconnects when the server comes back.
    ///
    /// # Errors
    /// `ETIMEDOUT` if no NID answers, `EINTR`, `EINVAL` without a TCP NID, or what the server refuses the client with:
    /// `WRONG_FSNAME`, `BAD_VERSION`.
    pub fn connect(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
        events: Arc<dyn MdsEvents>,
    ) -> StatusResult<(TcpMds, LeaseGrant)> {
        let peer = Peer::new(TargetId::mdt(index), nids.to_vec(), identity.clone(), config.clone())?;
        let calls = Arc::new(MdsCalls { peer: peer.clone(), waiting_locks: AtomicU32::new(0) });
        // The hook belongs to the peer, so it must not keep the peer alive.
        let (weak, hook_events) = (Arc::downgrade(&calls), events.clone());
        peer.set_recovery_hook(Box::new(move |recovery, lease| {
            let (Some(calls), Some(grant)) = (weak.upgrade(), lease) else { return Err(Status::ESHUTDOWN) };
            hook_events.reconnected(calls.as_ref(), recovery, grant)
        }));
        peer.conn(Some(Instant::now() + config.first_connect_deadline))?;
        let grant = peer.lease().ok_or(Status::EPROTO)?;
        let control = Control::start(&peer, events).map_err(|error| Status::from_io(&error))?;
        Ok((TcpMds { calls, control }, grant))
    }

    /// Leaves: the server closes this client's handles and releases its locks. Posted requests are waited for, at most
    /// `limit`; after this, calls give `ESHUTDOWN`.
    pub fn disconnect(&self, limit: Duration) {
        let peer = &self.calls.peer;
        let deadline = Instant::now() + limit;
        while peer.flights.post_count() > 0 && Instant::now() < deadline {
            peer.sweep();
            if peer.rest(POST_PAUSE).is_err() {
                break;
            }
        }
        if let Err(status) = peer.say_goodbye(deadline) {
            log::info!("left {} without telling it: {status}", peer.name());
        }
        self.control.stop();
    }

    /// Counters.
    pub fn stats(&self) -> ClientStats {
        self.calls.peer.stats()
    }
}

impl MdsEndpoint for TcpMds {
    fn import(&self) -> Option<ImportInfo> {
        Some(self.calls.peer.import(None))
    }

    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.calls.call(cred, request)
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        self.calls.post(cred, request);
    }
}

/// An object target over TCP. Connects when first used.
pub struct TcpOss {
    peer: Arc<Peer>,
    stats: RpcStats,
}

impl TcpOss {
    /// An endpoint for OST `index` at one of `nids`.
    ///
    /// # Errors
    /// `EINVAL` without a TCP NID.
    pub fn new(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
    ) -> StatusResult<TcpOss> {
        let peer = Peer::new(TargetId::ost(index), nids.to_vec(), identity.clone(), config.clone())?;
        idle::watch(&peer);
        Ok(TcpOss { peer, stats: RpcStats::default() })
    }

    /// Counters.
    pub fn stats(&self) -> ClientStats {
        self.peer.stats()
    }

    fn finish(&self, request: &OssRequest, result: StatusResult<Reply>) -> StatusResult<OssReply> {
        let reply = result?;
        let answer = OssReply::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))?;
        match (request, &answer) {
            // Fewer bytes than announced would leave old data in the caller's buffer.
            (OssRequest::Read { .. }, OssReply::Read(len)) if *len != reply.header.bulk_len => {
                Err(Status::EPROTO)
            }
            _ => Ok(answer),
        }
    }
}

fn encode_request(request: &OssRequest) -> Scratch {
    let mut body = Scratch::new();
    body.reserve(64);
    request.encode(&mut body);
    body
}

/// The bytes to send and the place to receive of a request.
fn parts<'a>(request: &OssRequest, bulk: Bulk<'a>) -> (&'a [u8], Destination<'a>) {
    match (request, bulk) {
        (_, Bulk::None) => (&[], Destination::none()),
        (_, Bulk::Send(data)) => (data, Destination::none()),
        (OssRequest::Read { len, .. }, Bulk::Receive(buffer)) => {
            let wanted = buffer.len().min(*len as usize);
            (&[], Destination::new(buffer.split_at_mut(wanted).0))
        }
        (_, Bulk::Receive(_)) => (&[], Destination::none()),
    }
}

fn check_bulk(request: &OssRequest, bulk: &Bulk<'_>) -> StatusResult<()> {
    let fits = match (request, bulk) {
        (OssRequest::Read { len, .. }, Bulk::Receive(buffer)) => buffer.len() >= *len as usize,
        (OssRequest::Write { .. }, Bulk::Send(_)) => true,
        (OssRequest::Read { .. } | OssRequest::Write { .. }, _) => false,
        (_, bulk) => matches!(bulk, Bulk::None),
    };
    if fits { Ok(()) } else { Err(Status::EINVAL) }
}

impl OssEndpoint for TcpOss {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        check_bulk(request, &bulk)?;
        let ways = Ways {
            cpus: self.peer.cpu_count(),
            endpoints: self.peer.active_ends(),
            near: self.peer.is_near() || self.peer.durability() == 0,
            rpc_bytes_max: self.peer.tunables.rpc_bytes_max(),
        };
        let (requests, parts) = split::cut(request, &bulk, &ways);
        if requests.is_empty() {
            return self.call_whole(request, bulk);
        }
        nacre_env::blocking(|| self.call_parts(&requests, &parts, bulk))
    }

    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        // SAFETY: passed on to the caller.
        unsafe { self.start_by(Way::Near, request, bulk) }
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        Some(&self.peer.tunables)
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        Some(&self.stats)
    }

    fn import(&self) -> Option<ImportInfo> {
        Some(self.peer.import(Some(&self.stats)))
    }

    fn durability_epoch(&self) -> u64 {
        if self.peer.durability() == 0 {
            // Only a connection can tell; what cannot connect has written nothing either.
            let _ = self.peer.conn(None);
        }
        self.peer.durability()
    }
}

impl TcpOss {
    fn call_whole(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let body = encode_request(request);
        let _counted = self.stats.begin_request(request, &bulk);
        let (send, destination) = parts(request, bulk);
        let ticket = self.peer.flights.begin(false)?;
        let result =
            nacre_env::blocking(|| self.peer.run(Request::new(ticket, &body, send, destination), None));
        self.finish(request, result)
    }

    /// Runs the parts of a large transfer at the same time.
    fn call_parts(&self, requests: &[OssRequest], parts: &[usize], bulk: Bulk<'_>) -> StatusResult<OssReply> {
        match bulk {
            Bulk::Receive(buffer) => {
                let mut rest = &mut *buffer;
                let mut pieces = Vec::with_capacity(parts.len());
                for &part in parts {
                    let (head, tail) = rest.split_at_mut_checked(part).ok_or(Status::EINVAL)?;
                    pieces.push(Bulk::Receive(head));
                    rest = tail;
                }
                let results = self.run_parts(requests, pieces);
                split::join_reads(buffer, parts, results)
            }
            Bulk::Send(data) => {
                let mut rest = data;
                let mut pieces = Vec::with_capacity(parts.len());
                for &part in parts {
                    let (head, tail) = rest.split_at_checked(part).ok_or(Status::EINVAL)?;
                    pieces.push(Bulk::Send(head));
                    rest = tail;
                }
                split::join_writes(parts, self.run_parts(requests, pieces))
            }
            Bulk::None => Err(Status::EINVAL),
        }
    }

    /// Starts all but the first request, runs that one on this thread, and waits for the others. Neighbours go different
    /// ways, so that on one host they run on different CPUs.
    fn run_parts(&self, requests: &[OssRequest], pieces: Vec<Bulk<'_>>) -> Vec<StatusResult<OssReply>> {
        let mut pieces = requests.iter().zip(pieces);
        let Some((first, first_bulk)) = pieces.next() else { return Vec::new() };
        let mut way = Way::Near;
        // Farther ones first: they run while this CPU is busy with the nearer ones.
        let started: Vec<Started<'_>> = pieces
            .map(|(request, bulk)| {
                way = way.other();
                // SAFETY: it is waited for right below, or dropped by unwinding; requests and buffers outlive it.
                unsafe { self.start_by(way, request, bulk) }
            })
            .collect();
        let near = self.call_whole(first, first_bulk);
        let others = started.into_iter().map(|started| match started {
            Started::Finished(result) => result,
            Started::InFlight(wait) => wait(),
        });
        std::iter::once(near).chain(others).collect()
    }

    /// [`OssEndpoint::start`] on one of the ways.
    ///
    /// # Safety
    /// As there.
    unsafe fn start_by<'a>(&'a self, way: Way, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        let begun = check_bulk(request, &bulk).and_then(|()| self.peer.flights.begin(false));
        let ticket = match begun {
            Ok(ticket) => ticket,
            Err(status) => return Started::Finished(Err(status)),
        };
        let body = encode_request(request);
        let counted = self.stats.begin_request(request, &bulk);
        let (send, destination) = parts(request, bulk);
        let first = {
            let sending = Request::new(ticket, &body, send, destination);
            let deadline = self.peer.config.deadline.map(|limit| Instant::now() + limit);
            // SAFETY: the flight goes into the returned closure, which our caller promises to call or drop before the
            // buffers of `bulk` go; the body is copied into the socket before this returns.
            unsafe { self.peer.submit(&sending, way, deadline) }
        };
        let (flight, resent) = match first {
            Ok(Ok(flight)) => (Some(flight), false),
            // It is sent again when it is waited for.
            Ok(Err((NoReply::Lost, _))) => (None, true),
            Ok(Err(_)) => return self.not_started(ticket, Status::EINTR),
            Err(status) => return self.not_started(ticket, status),
        };
        let mut pending = Pending { peer: &self.peer, xid: ticket.xid.0, flight };
        Started::InFlight(Box::new(move || {
            let mut again = Request::new(ticket, &body, send, destination);
            again.resent = resent;
            let flight = pending.flight.take();
            let result = nacre_env::blocking(|| self.peer.run(again, flight));
            drop(counted);
            self.finish(request, result)
        }))
    }
}

/// A started request that nobody has waited for yet.
struct Pending<'a> {
    peer: &'a Peer,
    xid: u64,
    /// `None` if it has to be sent (again), or is waited for.
    flight: Option<InFlight>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        // What is in flight ends with its reply; what is not, ends here. To end twice does no harm.
        if self.flight.is_none() {
            self.peer.flights.finish(self.xid);
        }
    }
}

impl TcpOss {
    /// Ends all connections; calls that wait give `ESHUTDOWN`.
    pub fn close(&self) {
        self.peer.stop();
    }

    fn not_started<'a>(&self, ticket: nacre_session::Ticket, status: Status) -> Started<'a> {
        self.peer.flights.finish(ticket.xid.0);
        Started::Finished(Err(status))
    }
}

impl Drop for TcpOss {
    fn drop(&mut self) {
        self.peer.stop();
    }
}

/// The management server over TCP. Connects when first used.
pub struct TcpMgs {
    peer: Arc<Peer>,
}

impl TcpMgs {
    /// An endpoint for the management server at one of `nids`.
    ///
    /// # Errors
    /// `EINVAL` without a TCP NID.
    pub fn new(nids: &[Nid], identity: &ClientIdentity, config: &ClientConfig) -> StatusResult<TcpMgs> {
        Ok(TcpMgs { peer: Peer::new(TargetId::mgt(), nids.to_vec(), identity.clone(), config.clone())? })
    }

    /// Ends all connections; calls that wait, for a change of the configuration too, give `ESHUTDOWN`.
    pub fn close(&self) {
        self.peer.stop();
    }
}

impl MgsEndpoint for TcpMgs {
    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply> {
        let reply = round_trip(&self.peer, false, &request.to_bytes())?;
        MgsReply::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))
    }
}

impl Drop for TcpMgs {
    fn drop(&mut self) {
        self.peer.stop();
    }
}
