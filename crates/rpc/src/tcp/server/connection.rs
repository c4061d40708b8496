//! One connection of a client and the threads that serve it.
//!
//! Leader and followers: the leader reads a request, runs it and sends the reply. When the request is about
//! to wait (the thread's blocking hook is called), an idle thread or a new one becomes the leader. A thread
//! that returns from a wait becomes the leader if there is none, and otherwise becomes idle or ends.

use super::admission::{Admitted, Proof};
use super::clients::{Client, Who};
use super::dispatch::Work;
use super::reads::Line;
use super::{Service, Shared};
use crate::audit::{AuditEvent, AuditKind};
use crate::config::ServerConfig;
use crate::tcp::socket::{Closed, Inbox, LinkError, Socket};
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::{BlockingHook, InterruptTarget};
use nacre_types::{Identity, StatusResult, TargetId, Xid};
use nacre_wire::Encode;
use nacre_wire::connect::{ConnectFlags, Connected, Features};
use nacre_wire::frame::{FrameKind, Header};
use nacre_wire::lock::ServerMessage;
use std::cell::Cell;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a reply waits for the socket before its thread counts as waiting.
const SEND_WAIT_MAX: Duration = Duration::from_millis(5);
/// How long a callback waits for the control connection, and then for the client to receive it.
const CALLBACK_MAX: Duration = Duration::from_millis(100);
/// Time after which an idle thread ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// Result of the connection setup.
pub(super) struct Session {
    pub(super) target: TargetId,
    pub(super) service: Service,
    /// Client, on metadata and object targets.
    pub(super) client: Option<Arc<Client>>,
    /// Features that both sides have.
    pub(super) features: Features,
    /// Authentication of the peer.
    pub(super) proof: Proof,
}

#[derive(Default)]
struct Roles {
    /// A thread leads: it reads, or handles without waiting what it has read.
    led: bool,
    idle: usize,
    threads: usize,
    /// No further frame is read.
    ended: bool,
}

/// A connection. Its threads own it; it is dropped when the last of them ends.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    id: u64,
    peer: SocketAddr,
    pub(super) socket: Socket,
    session: OnceLock<Session>,
    sending: Mutex<()>,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) reads: Mutex<Line>,
    roles: Mutex<Roles>,
    lead_free: Condvar,
    closed: AtomicBool,
    targets: Mutex<Vec<Arc<InterruptTarget>>>,
}

impl Connection {
    /// Creates the connection of a peer whose first frame was received.
    pub(super) fn new(
        shared: Arc<Shared>,
        id: u64,
        peer: SocketAddr,
        socket: Socket,
        inbox: Inbox,
    ) -> Connection {
        Connection {
            shared,
            id,
            peer,
            socket,
            session: OnceLock::new(),
            sending: Mutex::new(()),
            inbox: Mutex::new(inbox),
            reads: Mutex::default(),
            roles: Mutex::default(),
            lead_free: Condvar::new(),
            closed: AtomicBool::new(false),
            targets: Mutex::default(),
        }
    }

    /// Starts the first thread.
    pub(super) fn start(self: &Arc<Self>, admitted: Admitted) -> io::Result<()> {
        let mut roles = self.roles.lock();
        roles.led = true;
        roles.threads = 1;
        let connection = self.clone();
        let run = move || connection.run_first(admitted);
        let started = self.shared.threads.spawn(format!("rpc-{}", self.id), run);
        if started.is_err() {
            roles.threads = 0;
        }
        started
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.shared.now_ms()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns the peer's authenticated identity.
    pub(super) fn identity(&self) -> Option<&Arc<Identity>> {
        self.session.get()?.proof.identity()
    }

    /// Returns the target that it is connected to.
    pub(super) fn target(&self) -> Option<TargetId> {
        Some(self.session.get()?.target)
    }

    /// Returns true if the peer is not authenticated where a key is needed, or not yet.
    pub(super) fn may_be_unknown(&self) -> bool {
        self.session.get().is_none_or(|session| matches!(session.proof, Proof::Unknown))
    }

    /// Returns the client, on metadata and object targets.
    pub(super) fn client(&self) -> Option<&Arc<Client>> {
        self.session.get()?.client.as_ref()
    }

    pub(super) fn shut_down(&self, how: Shutdown) {
        if how == Shutdown::Both {
            self.closed.store(true, Ordering::SeqCst);
        }
        self.socket.shut_down(how);
    }

    /// Stops reading; requests that run are finished and answered.
    pub(super) fn stop_reading(&self) {
        self.roles.lock().ended = true;
        self.lead_free.notify_all();
        self.shut_down(Shutdown::Read);
    }

    /// Interrupts all running requests.
    pub(super) fn interrupt_all(&self) {
        for target in self.targets.lock().iter() {
            target.raise(target.current());
        }
    }

    /// Interrupts one request, if it runs.
    pub(super) fn cancel(&self, xid: Xid) {
        for target in self.targets.lock().iter() {
            if target.raise(xid.0) {
                return;
            }
        }
    }

    /// Sends a frame. While the peer does not take it, the thread counts as waiting.
    pub(super) fn send(&self, header: &Header, body: &[u8], bulk: &[u8]) {
        let bytes = header.to_bytes();
        self.send_parts(&[&bytes, body, bulk]);
    }

    /// Sends the parts of one or more frames, in this order.
    pub(super) fn send_parts(&self, parts: &[&[u8]]) {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let sent = match self.sending.try_lock_for(SEND_WAIT_MAX) {
            Some(guard) => match self.socket.try_send(parts, true) {
                Ok(sent) if sent == total => return,
                // The peer is slow: another thread reads on while this one waits with the lock.
                Ok(sent) => nacre_env::blocking(|| {
                    let result = self.socket.send_rest(parts, sent);
                    drop(guard);
                    result
                }),
                Err(error) => Err(error),
            },
            None => nacre_env::blocking(|| {
                let _guard = self.sending.lock();
                self.socket.send_rest(parts, 0)
            }),
        };
        if let Err(error) = sent {
            // An interrupted request must not break the connection's framing; its reply is lost with the
            // connection.
            if let LinkError::Closed(why) = error {
                log::debug!("reply to {} not sent: {why}", self.peer);
            }
            self.shut_down(Shutdown::Both);
        }
    }

    /// Sends a callback. A peer that does not take so little data is disconnected, and gets the message after
    /// its reconnect. Returns false if it was not sent.
    pub(super) fn send_callback(&self, target: TargetId, message: &ServerMessage) -> bool {
        let body = message.to_bytes();
        let mut header = Header::new(FrameKind::Callback, target, Xid(0));
        if header.set_body(&body).is_err() {
            return true;
        }
        let bytes = header.to_bytes();
        // A control connection carries little data; if it blocks, the client hangs. A burst may fill it for a
        // moment.
        let sent = match self.sending.try_lock_for(CALLBACK_MAX) {
            Some(_guard) => self.socket.send_within(&[&bytes, &body, &[]], CALLBACK_MAX),
            None => false,
        };
        if !sent {
            self.shut_down(Shutdown::Both);
        }
        sent
    }

    fn run_first(self: Arc<Self>, admitted: Admitted) {
        let end = ThreadEnd { connection: &self };
        let (header, identity) = (admitted.header, admitted.proof.identity().cloned());
        match self.accept(admitted) {
            Ok(session) => {
                if self.session.set(session).is_ok() {
                    self.serve(true);
                }
            }
            Err(status) => {
                let mut reply = Header::new(FrameKind::Connected, header.target, header.xid);
                reply.status = status;
                self.send(&reply, &[], &[]);
                self.shut_down(Shutdown::Write);
                let reason = format!("{} does not take the client: {status}", header.target);
                self.shared.refused(self.peer, identity.as_deref(), Some(header.target), &reason);
            }
        }
        drop(end);
    }

    fn run_further(self: Arc<Self>) {
        let end = ThreadEnd { connection: &self };
        if self.become_leader() {
            self.serve(true);
        }
        drop(end);
    }

    /// Reads and runs requests until the connection ends or this thread is not needed.
    fn serve(self: &Arc<Self>, leading: bool) {
        let Some(session) = self.session.get() else { return };
        let guard = InterruptTarget::install();
        let target = guard.target().clone();
        self.targets.lock().push(target.clone());
        let leader = Rc::new(LeaderHook { connection: self.clone(), leading: Cell::new(leading) });
        let hook = nacre_env::install_hook(leader.clone());
        let mut work = Work::new(self, session, &target);
        let reuses_buffers = self.shared.config.reuses_buffers;
        loop {
            if !leader.leading.get() {
                if !self.become_leader() {
                    break;
                }
                leader.leading.set(true);
            }
            let frame = work.receive(&mut self.inbox.lock());
            match frame {
                Ok(header) => {
                    if header.kind == FrameKind::Request {
                        target.begin(header.xid.0);
                    }
                    work.run(&header);
                    target.end();
                    if !reuses_buffers {
                        work.forget();
                    }
                }
                Err(LinkError::Idle | LinkError::Interrupted) => {
                    // A peer without a key has nothing to wait for.
                    if self.roles.lock().ended || matches!(session.proof, Proof::Unknown) {
                        break;
                    }
                    work.rest();
                }
                Err(LinkError::Closed(why)) => {
                    self.on_end(&why);
                    break;
                }
            }
        }
        drop(hook);
        self.targets.lock().retain(|other| !Arc::ptr_eq(other, &target));
    }

    fn on_end(&self, why: &Closed) {
        if why.is_damage()
            && let Some(client) = self.session.get().and_then(|session| session.client.as_ref())
        {
            client.export.note_damaged();
        }
        match why {
            Closed::Frame(error) => {
                log::warn!(peer:% = self.peer.ip(); "connection from {} closed: {error}", self.peer);
            }
            Closed::End | Closed::Io(_) => log::debug!("connection from {} ended: {why}", self.peer),
        }
        self.roles.lock().ended = true;
        self.lead_free.notify_all();
    }

    /// Becomes the leader, or waits as an idle thread if there are few. `false`: this thread has to end.
    fn become_leader(&self) -> bool {
        let mut roles = self.roles.lock();
        loop {
            if roles.ended {
                return false;
            }
            if !roles.led {
                roles.led = true;
                return true;
            }
            if roles.idle >= self.shared.config.threads_idle_max {
                return false;
            }
            roles.idle += 1;
            let timed_out = self.lead_free.wait_for(&mut roles, IDLE_MAX).timed_out();
            roles.idle -= 1;
            if timed_out && roles.led {
                return false;
            }
        }
    }

    /// Passes the lead to another thread, because the leader is about to wait.
    fn resign(self: &Arc<Self>) {
        let mut roles = self.roles.lock();
        roles.led = false;
        if roles.ended {
            return;
        }
        if roles.idle > 0 {
            self.lead_free.notify_one();
            return;
        }
        if roles.threads >= self.shared.config.threads_max {
            // Back-pressure: requests stay in the socket until a thread is free.
            return;
        }
        roles.threads += 1;
        drop(roles);
        let connection = self.clone();
        if let Err(error) =
            self.shared.threads.spawn(format!("rpc-{}", self.id), move || connection.run_further())
        {
            log::warn!(
                peer:% = self.peer.ip();
                "no further thread for the connection from {}: {error}", self.peer
            );
            self.roles.lock().threads -= 1;
        }
    }

    /// Connects the client to the service, and answers the connect.
    fn accept(self: &Arc<Self>, admitted: Admitted) -> StatusResult<Session> {
        let Admitted { header, connect, version, service, proof } = admitted;
        let config = &self.shared.config;
        let local = connect.process.shares_boot(&nacre_env::own_process());
        let mut features = Features::from_bits_truncate(connect.features);
        // Sealed data needs no checksum.
        if !config.bulk_checksums || self.socket.is_secured() {
            features.remove(Features::CHECKSUMS);
        }
        features.remove(Features::LOST_ANSWERS);
        let mut connected = Connected {
            version,
            features: features.bits(),
            instance: self.shared.instance,
            boot_id: self.shared.boot_id,
            known: connect.instance == self.shared.instance,
            generation: 0,
            in_flight_max: in_flight_max(config),
            lease: None,
        };
        let mut session = Session { target: header.target, service, client: None, features, proof };
        if session.service.has_clients() {
            let attached = self.shared.clients.attach(
                self,
                &session.service,
                header.target,
                Who {
                    uuid: connect.client,
                    process: local.then_some(connect.process),
                    is_server: connect.flags.contains(ConnectFlags::SERVER),
                    is_first: connect.instance == 0,
                    identity: session.proof.identity().cloned(),
                },
            )?;
            connected.known = attached.known;
            connected.generation = attached.client.export.generation;
            connected.lease = attached.lease;
            features.set(Features::LOST_ANSWERS, attached.has_lost_answers);
            connected.features = features.bits();
            session.client = Some(attached.client);
        }
        if !connected.known || session.client.is_none() {
            self.shared.audit.note(&AuditEvent {
                identity: session.proof.identity().map(AsRef::as_ref),
                target: Some(header.target),
                client: Some(connect.client),
                ..AuditEvent::new(AuditKind::Connected, self.peer)
            });
        }
        if local && !connect.flags.intersects(ConnectFlags::WIDE.union(ConnectFlags::CONTROL)) {
            self.socket.set_local();
        }
        if local && let Ok(cpu) = usize::try_from(connect.cpu) {
            // Wake-ups across CPUs cost more than a request. A CPU that this process may not use is no error.
            if let Err(error) = nacre_env::pin_to_cpu(cpu) {
                log::debug!("connection from {} stays on all CPUs: {error}", self.peer);
            }
        }
        let body = connected.to_bytes();
        let mut reply = Header::new(FrameKind::Connected, header.target, header.xid);
        reply.set_body(&body)?;
        match session.client.as_ref().filter(|_| connect.flags.contains(ConnectFlags::CONTROL)) {
            Some(client) => {
                self.shared.clients.attach_control(client, self, || self.send(&reply, &body, &[]));
            }
            None => self.send(&reply, &body, &[]),
        }
        Ok(session)
    }
}

/// Returns the requests that a client may have in flight: fewer than the largest number of threads, so that
/// one is left to read.
fn in_flight_max(config: &ServerConfig) -> u32 {
    let spare = u32::try_from(config.threads_max.saturating_sub(2)).unwrap_or(u32::MAX);
    config.in_flight_max.min(spare).max(1)
}

/// Reports the end of a thread to the connection, also after a panic.
struct ThreadEnd<'a> {
    connection: &'a Connection,
}

impl Drop for ThreadEnd<'_> {
    fn drop(&mut self) {
        let connection = self.connection;
        let mut roles = connection.roles.lock();
        roles.threads -= 1;
        if nacre_env::thread::panicking() || connection.session.get().is_none() {
            roles.ended = true;
            connection.lead_free.notify_all();
        }
        let last = roles.threads == 0;
        drop(roles);
        if last {
            connection.shut_down(Shutdown::Both);
            if let Some(client) = connection.session.get().and_then(|session| session.client.as_ref()) {
                client.heard(connection.now_ms());
            }
            connection.shared.connection_gone(connection.id);
        }
    }
}

/// The blocking hook of a serving thread.
struct LeaderHook {
    connection: Arc<Connection>,
    leading: Cell<bool>,
}

impl BlockingHook for LeaderHook {
    fn enter(&self) {
        if self.leading.replace(false) {
            self.connection.resign();
        }
    }

    fn exit(&self) {}
}
