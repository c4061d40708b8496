//! Execution of the frames of a connection.

use super::Service;
use super::admission::Proof;
use super::answers::StoredReply;
use super::clients::{Client, Leaving};
use super::connection::{Connection, Session};
use super::reads::Gathered;
use crate::api::{Call, MdsService, OssService, ReplySlot};
use crate::audit::{AuditEvent, AuditKind};
use crate::import::wall_us;
use crate::tcp::buffer::BulkBuffer;
use crate::tcp::socket::{Closed, Inbox, LinkError, TICK};
use crate::tunables::SHORT_IO_MAX;
use nacre_env::InterruptTarget;
use nacre_env::fault::{self, Point};
use nacre_session::Begin;
use nacre_types::limits::{BULK_MAX, SHORT_IO_BYTES};
use nacre_types::{Cred, JobId, Roles, Status, StatusResult, TargetKind, TransNo, Xid};
use nacre_wire::connect::Features;
use nacre_wire::frame::{ChecksumType, FrameFlags, FrameKind, Header, TAG_NONE, split_job};
use nacre_wire::mds::{MdsAnswer, MdsRequest};
use nacre_wire::oss::{Bulk, OssCall, OssReply, OssRequest};
use nacre_wire::{Decode, DecodeError, Encode, MgsRequest, Reader};
use std::net::Shutdown;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Largest body of a request in bytes: fits credentials with all groups (256 KiB) and an extended attribute
/// (64 KiB).
const REQUEST_BODY_MAX: u32 = 1 << 20;
/// Largest request of a peer without a key, in bytes: an enrolment.
const ENROLMENT_MAX: u32 = 8 << 10;
/// Bytes that an idle thread keeps for requests, and as many for replies.
const REUSED_MESSAGE_MAX: usize = 64 << 10;

/// State of one thread, whose buffers are used again for each request.
pub(super) struct Work<'a> {
    pub(super) connection: &'a Arc<Connection>,
    pub(super) session: &'a Session,
    pub(super) interrupt: &'a InterruptTarget,
    body: Vec<u8>,
    pub(super) bulk: BulkBuffer,
    bulk_intact: bool,
    pub(super) reply: Vec<u8>,
    pub(super) system: Cred,
    /// Reads that run as a batch.
    pub(super) gathered: Vec<Gathered>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        connection: &'a Arc<Connection>,
        session: &'a Session,
        interrupt: &'a InterruptTarget,
    ) -> Work<'a> {
        Work {
            connection,
            interrupt,
            session,
            body: Vec::new(),
            bulk: BulkBuffer::new(),
            bulk_intact: true,
            reply: Vec::new(),
            system: Cred::system(),
            gathered: Vec::new(),
        }
    }

    /// Receives the next frame, its body and its bulk data.
    pub(super) fn receive(&mut self, inbox: &mut Inbox) -> Result<Header, LinkError> {
        let socket = &self.connection.socket;
        let header = inbox.header(socket, true)?;
        let (len, max) = match self.session.proof {
            Proof::Unknown => (header.body_len.saturating_add(header.bulk_len), ENROLMENT_MAX),
            Proof::Open | Proof::Known(_) => (header.body_len, REQUEST_BODY_MAX),
        };
        if len > max {
            let (len, max) = (len.into(), max.into());
            let error = DecodeError::TooLong { what: "request", len, max };
            return Err(LinkError::Closed(Closed::Frame(error.into())));
        }
        inbox.body(socket, &header, &mut self.body)?;
        self.bulk_intact = match header.bulk_len {
            0 => true,
            len => {
                let room =
                    self.bulk.reserve(len as usize).map_err(|error| LinkError::Closed(Closed::Io(error)))?;
                inbox.bulk(socket, &header, room)?
            }
        };
        if header.bulk_len > 0 {
            // The next request is likely to be like this one.
            let is_short = header.flags.contains(FrameFlags::SHORT_IO);
            let likely = (header.bulk_len as usize).clamp(SHORT_IO_BYTES, SHORT_IO_MAX as usize);
            inbox.expect_short(if is_short { likely } else { 0 });
        }
        if header.target != self.session.target {
            let error = DecodeError::Invalid { what: "target of a frame on this connection" };
            return Err(LinkError::Closed(Closed::Frame(error.into())));
        }
        Ok(header)
    }

    /// Frees the memory of large messages on an idle connection: it must not keep the memory of its busiest
    /// moment.
    pub(super) fn rest(&mut self) {
        self.bulk.release();
        self.connection.socket.rest();
        if let Some(mut inbox) = self.connection.inbox.try_lock() {
            inbox.rest();
        }
        for buffer in [&mut self.body, &mut self.reply] {
            buffer.clear();
            buffer.shrink_to(REUSED_MESSAGE_MAX);
        }
    }

    /// Frees all memory of a request.
    pub(super) fn forget(&mut self) {
        self.bulk.release();
        (self.body, self.reply) = (Vec::new(), Vec::new());
    }

    /// Runs a received frame and answers it.
    pub(super) fn run(&mut self, header: &Header) {
        if let Some(client) = &self.session.client {
            client.heard(self.connection.now_ms());
        }
        match header.kind {
            FrameKind::Request => self.run_request(header),
            FrameKind::Ping => match self.committed() {
                Some(TransNo(committed)) => {
                    let pong = Header {
                        acked: Xid(wall_us()),
                        ..Header::new(FrameKind::Pong, header.target, Xid(committed))
                    };
                    self.connection.send(&pong, &[], &[]);
                }
                None => self.connection.shut_down(Shutdown::Both),
            },
            FrameKind::Cancel => self.connection.cancel(header.xid),
            FrameKind::Disconnect => {
                if let Some(client) = &self.session.client {
                    self.connection.shared.clients.disconnect(client, Leaving::Orderly);
                }
                self.answer(header, Status::OK, 0);
            }
            FrameKind::Connect
            | FrameKind::Connected
            | FrameKind::Reply
            | FrameKind::Callback
            | FrameKind::Pong => {
                let peer = self.connection.peer();
                log::warn!(
                    peer:% = peer.ip();
                    "connection from {peer} closed: a client does not send {:?}", header.kind
                );
                self.connection.shut_down(Shutdown::Both);
            }
        }
    }

    /// Returns the last durable transaction of an MDT, 0 of another service. `None` if the service has dropped the client:
    /// an idle one must notice that, too.
    fn committed(&self) -> Option<TransNo> {
        let Some(client) = &self.session.client else { return Some(TransNo(0)) };
        let ping = || self.session.service.ping(&client.export, &self.system);
        let answer = if client.is_gone() { Err(Status::EVICTED) } else { guarded(ping) };
        if answer == Err(Status::EVICTED) {
            self.connection.shared.clients.forget(client, &self.connection.shared.audit);
            client.close_connections();
            return None;
        }
        Some(answer.unwrap_or(TransNo(0)))
    }

    fn run_request(&mut self, header: &Header) {
        if !self.bulk_intact || (header.bulk_len > 0 && fault::is_hit(Point::RpcBulk)) {
            self.session.client.iter().for_each(|client| client.export.note_damaged());
            let peer = self.connection.peer();
            log::warn!(peer:% = peer.ip(); "data from {peer} was damaged on its way: it is sent again");
            let mut reply = Header::new(FrameKind::Reply, header.target, header.xid);
            reply.flags = FrameFlags::BULK_DAMAGED;
            reply.status = Status::EBADMSG;
            self.connection.send(&reply, &[], &[]);
            return;
        }
        let session = self.session;
        if self.is_lost_before(header) {
            return self.connection.shut_down(Shutdown::Both);
        }
        match (&session.service, &session.client) {
            (Service::Mds(service), Some(client)) => self.run_mds(header, service.as_ref(), client),
            (Service::Oss(service), Some(client)) => self.run_oss(header, service.as_ref(), client),
            (Service::Mgs(service), _) => {
                self.reply.clear();
                let result = MgsRequest::from_bytes(&self.body)
                    .map_err(|error| self.undecodable(error))
                    .and_then(|request| self.may(request.roles()).map(|()| request))
                    .and_then(|request| {
                        let reply = guarded(|| service.handle(session.proof.peer(), &request))?;
                        request.change().iter().for_each(|change| self.note(AuditKind::Changed, change));
                        Ok(reply)
                    });
                let status = encode_result(&result, &mut self.reply);
                self.answer(header, status, 0);
                if matches!(session.proof, Proof::Unknown) {
                    self.end_enrolment(status);
                }
            }
            (Service::Mds(_) | Service::Oss(_), None) => self.answer(header, Status::ENOTCONN, 0),
        }
    }

    /// Fault points: the request is lost with its connection.
    fn is_lost_before(&self, header: &Header) -> bool {
        match self.session.target.kind {
            TargetKind::Mdt => {
                (header.tag != TAG_NONE && fault::is_hit(Point::MdsReintNet))
                    || fault::is_hit(Point::MdsAllRequestNet)
            }
            TargetKind::Ost => {
                fault::delay(Point::OstDelay);
                fault::is_hit(Point::OstAllRequestNet)
            }
            TargetKind::Mgt => false,
        }
    }

    /// Fault points: the reply is lost with its connection.
    fn is_lost_after(&self, header: &Header) -> bool {
        match self.session.target.kind {
            TargetKind::Mdt => {
                (header.tag != TAG_NONE && fault::is_hit(Point::MdsReintNetRep))
                    || fault::is_hit(Point::MdsAllReplyNet)
            }
            TargetKind::Ost => fault::is_hit(Point::OstAllReplyNet),
            TargetKind::Mgt => false,
        }
    }

    /// Ends a connection without a key after its first request.
    fn end_enrolment(&self, status: Status) {
        if status != Status::OK {
            let peer = self.connection.peer();
            log::warn!(peer:% = peer.ip(); "no key is enrolled for {peer}: {status}");
            self.note(AuditKind::Refused, &format!("enrolment: {status}"));
        }
        self.connection.stop_reading();
    }

    fn run_mds(&mut self, header: &Header, service: &dyn MdsService, client: &Arc<Client>) {
        self.reply.clear();
        if client.is_gone() {
            return self.answer(header, Status::EVICTED, 0);
        }
        let body = std::mem::take(&mut self.body);
        let decoded = job_of(header, &body).and_then(|(body, job)| {
            let mut reader = Reader::new(body);
            let cred = Cred::decode(&mut reader)?;
            let request = MdsRequest::decode(&mut reader)?;
            reader.finish()?;
            Ok((cred, job, request))
        });
        match decoded {
            Err(error) => {
                let status = self.undecodable(error);
                self.answer(header, status, 0);
            }
            Ok((_, _, request)) if let Err(status) = self.may(request.roles()) => {
                self.answer(header, status, 0);
            }
            Ok((cred, job, request)) if request.is_modifying() && header.tag != TAG_NONE => {
                self.run_once(
                    header,
                    service,
                    client,
                    &Call::new(&cred).for_job(job).numbered(header.xid),
                    &request,
                );
            }
            Ok((cred, job, request)) => {
                let call = Call::new(&cred).for_job(job).numbered(header.xid);
                let result = guarded(|| service.handle(&client.export, &call, &request));
                self.answer_mds(header, client, &result);
            }
        }
        self.body = body;
    }

    /// Runs a modifying request unless it has run before; then its reply is sent again.
    fn run_once(
        &mut self,
        header: &Header,
        service: &dyn MdsService,
        client: &Arc<Client>,
        call: &Call<'_>,
        request: &MdsRequest<'_>,
    ) {
        match self.begin_once(header, client) {
            Begin::Execute => {}
            Begin::Answered(stored) => {
                self.reply.extend_from_slice(&stored.body);
                return self.answer(header, stored.status, 0);
            }
            Begin::Refused => return self.answer(header, Status::EPROTO, 0),
            Begin::Stale | Begin::Wait => return,
        }
        let slot = ReplySlot { client: client.export.client, tag: header.tag, xid: header.xid };
        let stored = header
            .flags
            .contains(FrameFlags::RESENT)
            .then(|| service.stored_answer(&client.export, request, &slot))
            .flatten();
        let result = stored.unwrap_or_else(|| {
            let call = Call { reply_slot: Some(slot), ..*call };
            guarded(|| service.handle(&client.export, &call, request))
        });
        let mut replies = client.answers.cache.lock();
        if matches!(result, Err(Status::EVICTED)) {
            replies.forget(header.tag, header.xid);
        } else {
            let status = encode_result(&result, &mut self.reply);
            let stored = StoredReply { status, body: self.reply.clone() };
            replies.finish(header.tag, header.xid, Arc::new(stored));
        }
        drop(replies);
        client.answers.stored.notify_all();
        self.reply.clear();
        self.answer_mds(header, client, &result);
    }

    /// Asks the reply cache, and waits while the first run of the request is under way.
    fn begin_once(&self, header: &Header, client: &Client) -> Begin<Arc<StoredReply>> {
        let mut replies = client.answers.cache.lock();
        loop {
            match replies.begin(header.tag, header.xid, header.acked) {
                Begin::Wait if !client.is_gone() && !nacre_env::interrupted() => {}
                begin => return begin,
            }
            nacre_env::blocking(|| client.answers.stored.wait_for(&mut replies, TICK));
        }
    }

    fn answer_mds(&mut self, header: &Header, client: &Arc<Client>, result: &StatusResult<MdsAnswer>) {
        let status = encode_result(result, &mut self.reply);
        self.answer_client(header, client, status, 0);
    }

    /// Answers as [`Work::answer`]; if the service has dropped the client, removes it here too.
    pub(super) fn answer_client(
        &mut self,
        header: &Header,
        client: &Arc<Client>,
        status: Status,
        bulk_len: usize,
    ) {
        if status != Status::EVICTED {
            return self.answer(header, status, bulk_len);
        }
        // Before the answer: otherwise the client could reconnect to the state that is about to be removed.
        self.connection.shared.clients.forget(client, &self.connection.shared.audit);
        self.answer(header, status, 0);
        client.close_connections();
    }

    fn run_oss(&mut self, header: &Header, service: &dyn OssService, client: &Arc<Client>) {
        self.reply.clear();
        if client.is_gone() {
            return self.answer(header, Status::EVICTED, 0);
        }
        let decoded = job_of(header, &self.body)
            .and_then(|(body, job)| OssCall::<OssRequest>::from_bytes(body).map(|call| (call, job)));
        let (call, job) = match decoded {
            Ok(decoded) => decoded,
            Err(error) => {
                let status = self.undecodable(error);
                return self.answer(header, status, 0);
            }
        };
        if let Err(status) = self.may(call.request.roles()) {
            return self.answer(header, status, 0);
        }
        if !self.join_reads(service, client, header, &call, job) {
            self.run_one(header, service, client, &call, job);
        }
    }

    /// Runs a single request of an object target and answers it.
    pub(super) fn run_one(
        &mut self,
        header: &Header,
        service: &dyn OssService,
        client: &Arc<Client>,
        OssCall { request, capability }: &OssCall<OssRequest>,
        job: Option<JobId>,
    ) {
        let export = client.export.as_ref();
        let call = Call::new(&self.system).for_job(job).allowed_by(*capability).numbered(header.xid);
        let result = match request {
            OssRequest::Read { len, .. } if *len as usize > BULK_MAX => Err(Status::E2BIG),
            OssRequest::Read { len, .. } => match self.bulk.reserve(*len as usize) {
                Ok(buffer) => guarded(|| service.handle(export, &call, request, Bulk::Receive(buffer))),
                Err(error) => Err(Status::from_io(&error)),
            },
            OssRequest::Write { .. } => {
                let data = self.bulk.filled(header.bulk_len as usize);
                guarded(|| service.handle(export, &call, request, Bulk::Send(data)))
            }
            _ => guarded(|| service.handle(export, &call, request, Bulk::None)),
        };
        let bulk_len = match (request, &result) {
            (OssRequest::Read { len, .. }, Ok(OssReply::Read(got))) => (*got).min(*len) as usize,
            _ => 0,
        };
        let status = encode_result(&result, &mut self.reply);
        self.answer_client(header, client, status, bulk_len);
    }

    /// Checks whether the peer has one of the roles that a request needs.
    fn may(&self, needed: Roles) -> StatusResult<()> {
        let proof = &self.session.proof;
        if proof.allows(needed) {
            return Ok(());
        }
        let peer = self.connection.peer();
        self.note(AuditKind::Refused, &format!("a request that needs role {needed}"));
        let Some(identity) = proof.identity() else {
            log::warn!(peer:% = peer.ip(); "request from {peer} refused: it has no key, and {needed} is needed");
            return Err(Status::ENOKEY);
        };
        log::warn!(
            peer:% = peer.ip();
            "request from {peer} refused: key {} has role {}, and {needed} is needed", identity.id, identity.roles
        );
        Err(Status::EPERM)
    }

    /// Records an audit event about the peer.
    fn note(&self, kind: AuditKind, reason: &str) {
        let event = AuditEvent::new(kind, self.connection.peer());
        let identity = self.session.proof.identity().map(AsRef::as_ref);
        let target = Some(self.session.target);
        self.connection.shared.audit.note(&AuditEvent { identity, target, reason, ..event });
    }

    fn undecodable(&self, error: DecodeError) -> Status {
        let peer = self.connection.peer();
        log::warn!(peer:% = peer.ip(); "request from {peer} refused: {error}");
        Status::EPROTO
    }

    /// Sends the reply in the reply buffer, with the first `bulk_len` bytes of the bulk buffer.
    fn answer(&mut self, request: &Header, status: Status, bulk_len: usize) {
        if self.is_lost_after(request) {
            return self.connection.shut_down(Shutdown::Both);
        }
        // The request has ended; an interrupt must not stop its answer.
        self.interrupt.end();
        let bulk = self.bulk.filled(bulk_len);
        match reply_header(self.session, request, status, &self.reply, bulk) {
            Ok(header) => self.connection.send(&header, &self.reply, bulk),
            Err(header) => self.connection.send(&header, &[], &[]),
        }
    }
}

/// Returns the header of an answer with this body and data; errors have neither.
pub(super) fn reply_header(
    session: &Session,
    request: &Header,
    status: Status,
    body: &[u8],
    bulk: &[u8],
) -> Result<Header, Header> {
    let mut header = Header::new(FrameKind::Reply, request.target, request.xid);
    header.status = status;
    // Only agreed features are used, whatever the request says.
    let agreed = |kind: &ChecksumType| session.features.contains(Features::of_checksum(*kind));
    let checksum = request.checksum().filter(|kind| !bulk.is_empty() && agreed(kind));
    let checked = header.set_body(body).and_then(|()| header.set_bulk(bulk, checksum));
    checked.map(|()| header).map_err(|status| {
        let mut header = Header::new(FrameKind::Reply, request.target, request.xid);
        header.status = status;
        header
    })
}

/// Splits the body of a request into the request and the job id at its end, if any.
pub(super) fn job_of<'a>(header: &Header, body: &'a [u8]) -> Result<(&'a [u8], Option<JobId>), DecodeError> {
    if header.flags.contains(FrameFlags::JOB_ID) { split_job(body) } else { Ok((body, None)) }
}

/// Appends the reply and returns the status; errors have no body.
pub(super) fn encode_result<T: Encode>(result: &StatusResult<T>, out: &mut Vec<u8>) -> Status {
    match result {
        Ok(reply) => {
            reply.encode(out);
            Status::OK
        }
        // A service that returns "no error" as an error has a bug.
        Err(Status::OK) => Status::EIO,
        Err(status) => *status,
    }
}

/// Runs a service. A panic fails its request, not the connection of the client.
pub(super) fn guarded<T>(run: impl FnOnce() -> StatusResult<T>) -> StatusResult<T> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        log::error!("a request failed because of a fault in this program");
        Err(Status::EIO)
    })
}
