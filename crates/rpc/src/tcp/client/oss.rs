//! The endpoint of an object target.

use super::body::Encoded;
use super::conn::{InFlight, NoReply};
use super::control::Control;
use super::endpoints::undecodable;
use super::ends::Way;
use super::idle;
use super::peer::{ClientIdentity, ClientStats, Peer, Request};
use super::split::{self, Ways};
use super::waiter::{Destination, Reply};
use crate::api::{OssEndpoint, OssEvents, Started};
use crate::config::ClientConfig;
use crate::import::ImportInfo;
use crate::stats::RpcStats;
use crate::tunables::{Tunable, Tunables};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{Capability, Nid, Status, StatusResult, TargetId};
use nacre_wire::oss::{Bulk, OssCall, OssReply, OssRequest};
use nacre_wire::{Decode, Encode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the first lock request waits for a connection for its callbacks. Without one, the client learns
/// the result by asking again.
const WAY_BACK_MAX: Duration = Duration::from_secs(1);
/// Time limit for the disconnect when the endpoint is dropped.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// Time limit for the answer of a deactivated target. A refused connection fails at once.
const OUT_OF_USE_MAX: Duration = Duration::from_secs(5);

/// An object target over TCP. Connects on first use; dropping it disconnects the client.
///
/// With [`OssEvents`] the first [`OssRequest::Locks`], or the first request after a change that is to be kept
/// ([`OssReply::Logged`]), starts one thread, which keeps a connection for callbacks and pings and connects again to
/// a target that restarts; other clients have neither.
pub struct TcpOss {
    calls: Arc<OssCalls>,
    control: OnceLock<Control>,
    control_start: Mutex<()>,
}

impl TcpOss {
    /// Creates an endpoint for OST `index` at one of `nids`, of a client without callbacks.
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
        let calls = Arc::new(OssCalls {
            peer,
            stats: RpcStats::default(),
            events: OnceLock::new(),
            keeps: AtomicBool::new(false),
        });
        Ok(TcpOss { calls, control: OnceLock::new(), control_start: Mutex::default() })
    }

    /// Creates an endpoint whose `events` receive lock messages and recoveries.
    ///
    /// # Errors
    /// As [`TcpOss::new`].
    pub fn with_events(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
        events: Arc<dyn OssEvents>,
    ) -> StatusResult<TcpOss> {
        let oss = TcpOss::new(index, nids, identity, config)?;
        // The peer owns the hook, so the hook must not keep the peer alive.
        let (weak, hook_events) = (Arc::downgrade(&oss.calls), events.clone());
        oss.calls.peer.set_recovery_hook(Box::new(move |recovery, _| {
            let calls = weak.upgrade().ok_or(Status::ESHUTDOWN)?;
            // For its goodbye a client restores nothing: what it has at the target is to be dropped.
            if calls.peer.is_leaving() {
                return Ok(());
            }
            hook_events.reconnected(calls.as_ref(), recovery)
        }));
        let _ = oss.calls.events.set(events);
        Ok(oss)
    }

    /// Returns the counters.
    pub fn stats(&self) -> ClientStats {
        self.calls.peer.stats()
    }

    /// Ends all connections; waiting calls fail with `ESHUTDOWN`.
    pub fn close(&self) {
        self.calls.peer.stop();
    }

    /// Prepares for a request: the target must be active, and locks need a connection for callbacks.
    fn prepare(&self, request: &OssRequest) -> StatusResult<()> {
        if !self.calls.peer.tunables.is_active() {
            return Err(Status::EIO);
        }
        let Some(events) = self.calls.events.get() else { return Ok(()) };
        if matches!(request, OssRequest::Locks { .. }) {
            self.control(events)?.wait_ready(WAY_BACK_MAX);
        } else if self.calls.keeps.load(Ordering::Relaxed) {
            self.control(events)?;
        }
        Ok(())
    }

    fn control(&self, events: &Arc<dyn OssEvents>) -> StatusResult<&Control> {
        if let Some(control) = self.control.get() {
            return Ok(control);
        }
        let _starting = self.control_start.lock();
        if let Some(control) = self.control.get() {
            return Ok(control);
        }
        let control =
            Control::start(&self.calls.peer, events.clone()).map_err(|error| Status::from_io(&error))?;
        Ok(self.control.get_or_init(|| control))
    }
}

impl Drop for TcpOss {
    fn drop(&mut self) {
        self.disconnect(GOODBYE_MAX);
    }
}

impl OssEndpoint for TcpOss {
    /// After this, calls fail with `ESHUTDOWN`.
    fn disconnect(&self, limit: Duration) {
        let peer = &self.calls.peer;
        // With a control connection it has requested locks.
        if peer.begin_leaving(self.control.get().is_some()) {
            let deadline = Instant::now() + limit;
            // Threads that still connect would register the client again.
            let is_alone = self.control.get().is_none_or(|control| control.retire(deadline))
                && nacre_env::blocking(|| peer.wait_for_asides(deadline));
            if !is_alone {
                log::info!("left {} without telling it: it is just being connected", peer.name());
            } else if let Err(status) = nacre_env::blocking(|| peer.say_goodbye(deadline)) {
                log::info!("left {} without telling it: {status}", peer.name());
            }
        }
        // Also ends the wait of the control connection's thread.
        peer.stop();
    }

    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        self.prepare(request)?;
        self.calls.call(request, bulk)
    }

    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        if let Err(status) = self.prepare(request) {
            return Started::Finished(Err(status));
        }
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { self.calls.start(request, bulk) }
    }

    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        if self.calls.peer.tunables.is_active() {
            return self.call(request, Bulk::None);
        }
        match self.calls.call_by(request, OUT_OF_USE_MAX) {
            Err(Status::ETIMEDOUT) => Err(Status::EIO),
            result => result,
        }
    }

    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        self.prepare(request)?;
        self.calls.call_by(request, limit)
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        self.calls.tunables()
    }

    fn set_active(&self, active: bool) -> StatusResult<()> {
        self.calls.peer.tunables.set(Tunable::Active, active.into())?;
        if !active {
            // Callers that wait for an answer then notice.
            self.calls.peer.drop_connections();
        }
        Ok(())
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        self.calls.rpc_stats()
    }

    fn trouble(&self) -> Option<String> {
        self.calls.peer.trouble()
    }

    fn import(&self) -> Option<ImportInfo> {
        self.calls.import()
    }

    fn durability_epoch(&self) -> u64 {
        self.calls.durability_epoch()
    }

    fn incarnation(&self) -> u64 {
        self.calls.incarnation()
    }
}

/// Calls without the control connection; also used by recovery.
struct OssCalls {
    peer: Arc<Peer>,
    stats: RpcStats,
    /// Receiver of recovery and lock events, and source of capabilities.
    events: OnceLock<Arc<dyn OssEvents>>,
    /// True once the target has asked to keep a change.
    keeps: AtomicBool,
}

/// Returns the life of the client in which a request may be sent, 0 for any.
fn life_of(request: &OssRequest) -> u64 {
    match request {
        OssRequest::Write { incarnation, .. } => *incarnation,
        _ => 0,
    }
}

fn encode_request(request: &OssRequest, capability: Option<Capability>) -> Encoded {
    Encoded::new(128, |body| OssCall { request, capability }.encode(body))
}

/// Returns the bytes to send and the destination of the received bytes.
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

impl OssEndpoint for OssCalls {
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
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { self.start_by(Way::Near, request, bulk) }
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        Some(&self.peer.tunables)
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        Some(&self.stats)
    }

    fn trouble(&self) -> Option<String> {
        self.peer.trouble()
    }

    fn import(&self) -> Option<ImportInfo> {
        Some(self.peer.import(Some(&self.stats)))
    }

    fn durability_epoch(&self) -> u64 {
        if self.peer.durability() == 0 {
            // The epoch is only known from a connection; a client that cannot connect has written nothing
            // either.
            let _ = self.peer.conn(None);
        }
        self.peer.durability()
    }

    fn incarnation(&self) -> u64 {
        self.peer.incarnation()
    }
}

impl OssCalls {
    fn call_whole(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        self.call_until(request, bulk, None)
    }

    /// Runs a request without data that is answered within `limit`, or fails with `ETIMEDOUT`.
    fn call_by(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        match self.call_until(request, Bulk::None, Some(Instant::now() + limit)) {
            // The deadline interrupted it.
            Err(Status::EINTR) if !nacre_env::interrupted() => Err(Status::ETIMEDOUT),
            result => result,
        }
    }

    /// Runs a request as [`OssCalls::call_whole`], with a deadline for all waits ([`Request::until`]).
    fn call_until(
        &self,
        request: &OssRequest,
        bulk: Bulk<'_>,
        until: Option<Instant>,
    ) -> StatusResult<OssReply> {
        let counted = self.stats.prepare_request(request, &bulk);
        let (send, destination) = parts(request, bulk);
        let send_with = |capability| {
            let body = encode_request(request, capability);
            let ticket = self.peer.flights.begin(false)?;
            let is_urgent = matches!(request, OssRequest::Locks { .. });
            let sending = Request::new(ticket, body.as_body(), send, destination)
                .in_life(life_of(request))
                .counted_by(counted.as_ref());
            nacre_env::blocking(|| self.peer.run(sending.urgent(is_urgent).until(until), None))
        };
        let capability = self.capability_for(request, None)?;
        let result = self.or_allowed(request, capability, send_with(capability), send_with);
        self.finish(request, result)
    }

    /// Returns the client's capability for the object of a request.
    fn capability_for(
        &self,
        request: &OssRequest,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        let asked = self.events.get().zip(request.need());
        asked.map_or(Ok(None), |(events, need)| events.capability(&need, refused))
    }

    /// Returns the result of a request that was sent with `capability`. If the target refused that, sends the
    /// request once more with another capability, if there is one.
    fn or_allowed(
        &self,
        request: &OssRequest,
        capability: Option<Capability>,
        result: StatusResult<Reply>,
        send_with: impl FnOnce(Option<Capability>) -> StatusResult<Reply>,
    ) -> StatusResult<Reply> {
        if !matches!(result, Err(Status::NO_CAPABILITY)) {
            return result;
        }
        let refused = capability.unwrap_or(Capability::NONE);
        match self.capability_for(request, Some(&refused))? {
            Some(another) => send_with(Some(another)),
            None => result,
        }
    }

    /// Runs the parts of a large transfer in parallel.
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

    /// Starts all but the first request, runs that one on this thread, and waits for the others. Neighbouring
    /// parts alternate between the ways, so that on one host they run on different CPUs.
    fn run_parts(&self, requests: &[OssRequest], pieces: Vec<Bulk<'_>>) -> Vec<StatusResult<OssReply>> {
        let mut pieces = requests.iter().zip(pieces);
        let Some((first, first_bulk)) = pieces.next() else { return Vec::new() };
        let mut way = Way::Near;
        // Remote CPUs first: they work while this CPU is busy with its own part.
        let started: Vec<Started<'_>> = pieces
            .map(|(request, bulk)| {
                way = way.other();
                // SAFETY: it is waited for right below, or dropped by unwinding; requests and buffers outlive
                // it.
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

    /// Starts a request as [`OssEndpoint::start`], on the given way.
    ///
    /// # Safety
    /// As [`OssEndpoint::start`].
    unsafe fn start_by<'a>(&'a self, way: Way, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        let begun = check_bulk(request, &bulk)
            .and_then(|()| self.capability_for(request, None))
            .and_then(|capability| Ok((capability, self.peer.flights.begin(false)?)));
        let (capability, ticket) = match begun {
            Ok(begun) => begun,
            Err(status) => return Started::Finished(Err(status)),
        };
        let body = encode_request(request, capability);
        let counted = self.stats.prepare_request(request, &bulk);
        let (send, destination) = parts(request, bulk);
        let first = {
            let sending = Request::new(ticket, body.as_body(), send, destination)
                .in_life(life_of(request))
                .counted_by(counted.as_ref());
            let deadline = self.peer.config.deadline.map(|limit| Instant::now() + limit);
            // SAFETY: the flight moves into the returned closure, which the caller promises to call or drop
            // before the end of the buffers of `bulk`; the body is copied into the socket before this
            // returns.
            unsafe { self.peer.submit(&sending, way, deadline) }
        };
        let (flight, resent) = match first {
            Ok(Ok(flight)) => (Some(flight), false),
            // The wait sends it again.
            Ok(Err((NoReply::Lost, _))) => (None, true),
            Ok(Err(_)) => return self.not_started(ticket, Status::EINTR),
            Err(status) => return self.not_started(ticket, status),
        };
        let mut pending = Pending { peer: &self.peer, xid: ticket.xid.0, flight };
        Started::InFlight(Box::new(move || {
            let mut again = Request::new(ticket, body.as_body(), send, destination)
                .in_life(life_of(request))
                .counted_by(counted.as_ref());
            again.resent = resent;
            let flight = pending.flight.take();
            let result = nacre_env::blocking(|| self.peer.run(again, flight));
            let result = self.or_allowed(request, capability, result, |capability| {
                let body = encode_request(request, capability);
                let sending =
                    Request::new(self.peer.flights.begin(false)?, body.as_body(), send, destination)
                        .in_life(life_of(request))
                        .counted_by(counted.as_ref());
                nacre_env::blocking(|| self.peer.run(sending, None))
            });
            drop(counted);
            self.finish(request, result)
        }))
    }

    fn not_started<'a>(&self, ticket: nacre_session::Ticket, status: Status) -> Started<'a> {
        self.peer.flights.finish(ticket.xid.0);
        Started::Finished(Err(status))
    }

    fn finish(&self, request: &OssRequest, result: StatusResult<Reply>) -> StatusResult<OssReply> {
        let reply = result?;
        let answer = OssReply::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))?;
        match (request, &answer) {
            // Fewer bytes than announced would leave old data in the caller's buffer.
            (OssRequest::Read { .. }, OssReply::Read(len)) if *len != reply.header.bulk_len => {
                Err(Status::EPROTO)
            }
            (_, OssReply::Logged { .. }) => {
                self.keeps.store(true, Ordering::Relaxed);
                Ok(answer)
            }
            _ => Ok(answer),
        }
    }
}

/// A started request whose result has not been taken yet.
struct Pending<'a> {
    peer: &'a Peer,
    xid: u64,
    /// `None` if it has to be sent (again), or is being waited for.
    flight: Option<InFlight>,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        // A request in flight ends with its reply; any other ends here. A second end is harmless.
        if self.flight.is_none() {
            self.peer.flights.finish(self.xid);
        }
    }
}
