//! The endpoints of metadata targets and of the management server.

use super::body::{Body, Encoded};
use super::control::Control;
use super::peer::{ClientIdentity, ClientStats, MdsEvents, Peer, Request};
use super::waiter::{Destination, Reply};
use crate::api::{MdsEndpoint, MgsEndpoint};
use crate::config::ClientConfig;
use crate::import::ImportInfo;
use nacre_env::clock::Instant;
use nacre_types::{Cred, Nid, Status, StatusResult, TargetId};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::{Decode, Encode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// First and longest pause between attempts to get a lock that may not wait at the server.
const LOCK_PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// Interval at which a disconnecting client looks for the answers to posted requests.
const POST_PAUSE: Duration = Duration::from_millis(2);

/// Runs a request without bulk data that changes nothing.
pub(super) fn round_trip(peer: &Arc<Peer>, body: Body<'_>) -> StatusResult<Reply> {
    let ticket = peer.flights.begin(false)?;
    nacre_env::blocking(|| peer.run(Request::new(ticket, body, &[], Destination::none()), None))
}

pub(super) fn undecodable(peer: &Peer, error: nacre_wire::DecodeError) -> Status {
    log::warn!("reply of {} not understood: {error}", peer.name());
    Status::EPROTO
}

/// Calls without the control connection; also used by recovery.
struct MdsCalls {
    peer: Arc<Peer>,
    waiting_locks: AtomicU32,
}

impl MdsCalls {
    fn run(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let body = encode_call(cred, request);
        let ticket = self.peer.flights.begin(request.is_modifying())?;
        // Other requests of this client may wait for these at the server.
        let is_urgent = matches!(
            request,
            MdsRequest::Locks { .. } | MdsRequest::LeaseReleased { .. } | MdsRequest::LeaseBusy { .. }
        );
        let sent = Request::new(ticket, body.as_body(), &[], Destination::none())
            .urgent(is_urgent)
            .once(request.has_one_effect());
        let reply = nacre_env::blocking(|| self.peer.run(sent, None))?;
        let answer = MdsAnswer::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))?;
        self.peer.note_committed(answer.last_committed.0);
        Ok(answer)
    }

    /// Runs a waiting lock request. Each holds a thread of the server, so only a few may wait there; others
    /// poll.
    fn run_waiting_lock(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let MdsRequest::LockFile { fid, lock, asked_ns, .. } = *request else { return Err(Status::EINVAL) };
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
            match self.run(cred, &MdsRequest::LockFile { fid, lock, wait: false, asked_ns }) {
                Err(Status::EAGAIN) => {}
                result => return result,
            }
            self.peer.rest(pause)?;
            pause = (pause * 2).min(LOCK_PAUSE.1);
        }
    }
}

fn encode_call(cred: &Cred, request: &MdsRequest<'_>) -> Encoded {
    Encoded::new(256, |body| {
        cred.encode(body);
        request.encode(body);
    })
}

impl MdsEndpoint for MdsCalls {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match request {
            MdsRequest::LockFile { wait: true, .. } => self.run_waiting_lock(cred, request),
            _ => self.run(cred, request),
        }
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        let body = encode_call(cred, request);
        // An interrupted caller returns by this what it may have acquired without an answer: the request must
        // not get lost, and must not wait.
        let can_wait = !nacre_env::interrupted();
        let ticket = match self.peer.flights.begin(true) {
            Ok(ticket) => ticket,
            Err(status) => return log::warn!("request without waiting for its answer not sent: {status}"),
        };
        if self.peer.flights.add_post(ticket, body.as_body(), can_wait) {
            // Without a connection it stays in the list, which the next connection sends.
            if let Ok(conn) = self.peer.conn(None) {
                self.peer.send_posts(&conn);
            }
            return;
        }
        let result = nacre_env::blocking(|| {
            self.peer.run(Request::new(ticket, body.as_body(), &[], Destination::none()), None)
        });
        if let Err(status) = result {
            log::warn!("a request without a waiting caller failed: {status}");
        }
    }

    fn wait_for_posts(&self) -> StatusResult<()> {
        self.peer.wait_for_posts()
    }
}

/// A metadata target over TCP. Dropping it closes its connections; see [`TcpMds::disconnect`].
pub struct TcpMds {
    calls: Arc<MdsCalls>,
    control: Control,
}

impl TcpMds {
    /// Connects to MDT `index` at one of `nids`, trying for [`ClientConfig::first_connect_deadline`].
    /// Starts one thread, which receives callbacks, pings, and reconnects when the server is back.
    ///
    /// # Errors
    /// `ETIMEDOUT` if no NID answers, `EINTR`, `EINVAL` without a TCP NID, or the server's refusal:
    /// `WRONG_FSNAME`, `BAD_VERSION`.
    pub fn connect(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
        events: Arc<dyn MdsEvents>,
    ) -> StatusResult<(TcpMds, LeaseGrant)> {
        let (peer, calls) = TcpMds::make(index, nids, identity, config, &events)?;
        peer.conn(Some(Instant::now() + config.first_connect_deadline))?;
        let grant = peer.lease().ok_or(Status::EPROTO)?;
        let control = Control::start(&peer, events).map_err(|error| Status::from_io(&error))?;
        Ok((TcpMds { calls, control }, grant))
    }

    /// Connects as [`TcpMds::connect`], but does not wait for the server: its requests do.
    ///
    /// # Errors
    /// If the thread cannot be started; `EINVAL` without a TCP NID.
    pub fn new(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
        events: Arc<dyn MdsEvents>,
    ) -> StatusResult<TcpMds> {
        let (peer, calls) = TcpMds::make(index, nids, identity, config, &events)?;
        let control = Control::start(&peer, events).map_err(|error| Status::from_io(&error))?;
        Ok(TcpMds { calls, control })
    }

    fn make(
        index: u16,
        nids: &[Nid],
        identity: &ClientIdentity,
        config: &ClientConfig,
        events: &Arc<dyn MdsEvents>,
    ) -> StatusResult<(Arc<Peer>, Arc<MdsCalls>)> {
        let peer = Peer::new(TargetId::mdt(index), nids.to_vec(), identity.clone(), config.clone())?;
        let calls = Arc::new(MdsCalls { peer: peer.clone(), waiting_locks: AtomicU32::new(0) });
        // The peer owns the hook, so the hook must not keep the peer alive.
        let (weak, hook_events) = (Arc::downgrade(&calls), events.clone());
        peer.set_recovery_hook(Box::new(move |recovery, lease| {
            let (Some(calls), Some(grant)) = (weak.upgrade(), lease) else { return Err(Status::ESHUTDOWN) };
            hook_events.reconnected(calls.as_ref(), recovery, grant)
        }));
        Ok((peer, calls))
    }

    /// Disconnects: the server closes this client's handles and releases its locks. Waits for posted
    /// requests, at most `limit`; after this, calls fail with `ESHUTDOWN`.
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

    /// Returns the counters.
    pub fn stats(&self) -> ClientStats {
        self.calls.peer.stats()
    }
}

impl MdsEndpoint for TcpMds {
    fn trouble(&self) -> Option<String> {
        self.calls.peer.trouble()
    }

    fn import(&self) -> Option<ImportInfo> {
        Some(self.calls.peer.import(None))
    }

    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.calls.call(cred, request)
    }

    fn post(&self, cred: &Cred, request: &MdsRequest<'_>) {
        self.calls.post(cred, request);
    }

    fn wait_for_posts(&self) -> StatusResult<()> {
        self.calls.wait_for_posts()
    }
}

/// The management server over TCP. Connects on first use.
pub struct TcpMgs {
    peer: Arc<Peer>,
}

impl TcpMgs {
    /// Creates an endpoint for the management server at one of `nids`.
    ///
    /// # Errors
    /// `EINVAL` without a TCP NID.
    pub fn new(nids: &[Nid], identity: &ClientIdentity, config: &ClientConfig) -> StatusResult<TcpMgs> {
        Ok(TcpMgs { peer: Peer::new(TargetId::mgt(), nids.to_vec(), identity.clone(), config.clone())? })
    }

    /// Ends all connections; waiting calls, including those for a change of the configuration, fail with
    /// `ESHUTDOWN`.
    pub fn close(&self) {
        self.peer.stop();
    }

    /// Returns the counters.
    pub fn stats(&self) -> ClientStats {
        self.peer.stats()
    }
}

impl MgsEndpoint for TcpMgs {
    fn trouble(&self) -> Option<String> {
        self.peer.trouble()
    }

    fn call(&self, request: &MgsRequest) -> StatusResult<MgsReply> {
        let reply = round_trip(&self.peer, Body::plain(&request.to_bytes()))?;
        MgsReply::from_bytes(&reply.body).map_err(|error| undecodable(&self.peer, error))
    }

    fn import(&self) -> Option<ImportInfo> {
        Some(self.peer.import(None))
    }
}

impl Drop for TcpMgs {
    fn drop(&mut self) {
        self.peer.stop();
    }
}
