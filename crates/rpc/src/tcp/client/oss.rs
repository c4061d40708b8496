//! The endpoint of an object target that callers see.

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
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the first request about locks waits until there is a way back for what it will bring. Without one the client
/// learns by asking again.
const WAY_BACK_MAX: Duration = Duration::from_secs(1);
/// How long the target is told that the client leaves when the endpoint is dropped.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// How long a target that is out of use has to answer. One that nobody listens at is known not to at once.
const OUT_OF_USE_MAX: Duration = Duration::from_secs(5);

/// An object target over TCP. Connects when first used; dropping it tells the target that the client leaves.
///
/// With [`OssEvents`] the first [`OssRequest::Locks`] starts one thread, which keeps a connection for the target's messages
/// and pings; a client that asks for no locks has neither.
pub struct TcpOss {
    calls: Arc<OssCalls>,
    control: OnceLock<Control>,
    control_start: Mutex<()>,
}

impl TcpOss {
    /// An endpoint for OST `index` at one of `nids`, of a client that the target cannot reach.
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
        let calls = Arc::new(OssCalls { peer, stats: RpcStats::default(), events: OnceLock::new() });
        Ok(TcpOss { calls, control: OnceLock::new(), control_start: Mutex::default() })
    }

    /// The same, with somebody who is told about locks and recoveries.
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
        // The hook belongs to the peer, so it must not keep the peer alive.
        let (weak, hook_events) = (Arc::downgrade(&oss.calls), events.clone());
        oss.calls.peer.set_recovery_hook(Box::new(move |recovery, _| {
            let calls = weak.upgrade().ok_or(Status::ESHUTDOWN)?;
            hook_events.reconnected(calls.as_ref(), recovery)
        }));
        let _ = oss.calls.events.set(events);
        Ok(oss)
    }

    /// Counters.
    pub fn stats(&self) -> ClientStats {
        self.calls.peer.stats()
    }

    /// Ends all connections; calls that wait give `ESHUTDOWN`.
    pub fn close(&self) {
        self.calls.peer.stop();
    }

    /// Before a request: the target is in use, and locks need a way back.
    fn prepare(&self, request: &OssRequest) -> StatusResult<()> {
        if !self.calls.peer.tunables.is_active() {
            return Err(Status::EIO);
        }
        if let (OssRequest::Locks { .. }, Some(events)) = (request, self.calls.events.get()) {
            self.control(events)?.wait_ready(WAY_BACK_MAX);
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
    /// After this, calls give `ESHUTDOWN`.
    fn disconnect(&self, limit: Duration) {
        let peer = &self.calls.peer;
        if peer.begin_leaving() {
            let deadline = Instant::now() + limit;
            // Those who still connect would bring the client back.
            let is_alone = self.control.get().is_none_or(|control| control.retire(deadline))
                && nacre_env::blocking(|| peer.wait_for_asides(deadline));
            if !is_alone {
                log::info!("left {} without telling it: it is just being connected", peer.name());
            } else if let Err(status) = nacre_env::blocking(|| peer.say_goodbye(deadline)) {
                log::info!("left {} without telling it: {status}", peer.name());
            }
        }
        // Ends the wait of the control connection's thread too.
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
        // SAFETY: passed on to the caller.
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
            // Who waits for an answer finds out.
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

/// Calls without the control connection; also what a recovery works with.
struct OssCalls {
    peer: Arc<Peer>,
    stats: RpcStats,
    /// Receiver of recovery and lock events, and source of capabilities.
    events: OnceLock<Arc<dyn OssEvents>>,
}

/// Life of the client in which a request may be sent, 0 for any.
fn life_of(request: &OssRequest) -> u64 {
    match request {
        OssRequest::Write { incarnation, .. } => *incarnation,
        _ => 0,
    }
}

fn encode_request(request: &OssRequest, capability: Option<Capability>) -> Encoded {
    Encoded::new(128, |body| OssCall { request, capability }.encode(body))
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
        // SAFETY: passed on to the caller.
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
            // Only a connection can tell; what cannot connect has written nothing either.
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

    /// A request without data that is answered within `limit`, or fails with `ETIMEDOUT`.
    fn call_by(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        match self.call_until(request, Bulk::None, Some(Instant::now() + limit)) {
            // Interrupted by its deadline.
            Err(Status::EINTR) if !nacre_env::interrupted() => Err(Status::ETIMEDOUT),
            result => result,
        }
    }

    /// As [`OssCalls::call_whole`], but with an end to all waiting ([`Request::until`]).
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

    /// What the client has that lets it at the object of a request.
    fn capability_for(
        &self,
        request: &OssRequest,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        let asked = self.events.get().zip(request.need());
        asked.map_or(Ok(None), |(events, need)| events.capability(&need, refused))
    }

    /// The result of a request that was sent with `capability`. If that was not enough, it is sent once more with another, if there is one.
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
            _ => Ok(answer),
        }
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
