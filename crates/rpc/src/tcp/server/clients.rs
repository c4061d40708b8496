//! The clients of a server's targets: their state outlives connections.

use super::answers::{Answers, FormerAnswers, Holder};
use super::connection::Connection;
use super::{Service, Shared};
use crate::api::{ClientCallbacks, Export, MdsWelcome};
use crate::audit::{Audit, AuditEvent, AuditKind};
use crate::config::ServerConfig;
use crate::exports::host_of;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_types::{ClientUuid, Identity, Nid, ProcessIdentity, Status, StatusResult, TargetId, TargetKind};
use nacre_wire::lock::{LockMessage, ServerMessage};
use nacre_wire::mds::LeaseGrant;
use std::collections::{HashMap, VecDeque};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A client of one metadata or object target.
pub(super) struct Client {
    pub(super) export: Arc<Export>,
    pub(super) answers: Arc<Answers>,
    /// `answers` has those from before the client's last eviction.
    has_former_answers: bool,
    callbacks: Arc<RemoteCallbacks>,
    service: Service,
    target: TargetId,
    /// The service's answer to the client's connect. Held during that call, so that it happens once.
    connected: Mutex<Option<Welcome>>,
    /// The service dropped the client, or the client has disconnected.
    gone: AtomicBool,
    connections: Mutex<Vec<Weak<Connection>>>,
}

/// A service's answer to a new client, on metadata targets.
type Welcome = Option<MdsWelcome>;

impl Client {
    /// Notes a message of the client.
    pub(super) fn heard(&self, now_ms: u64) {
        // Connections on several CPUs share this value, so it is written only when it changes.
        let last_heard_ms = &self.callbacks.last_heard_ms;
        if last_heard_ms.load(Ordering::Relaxed) != now_ms {
            last_heard_ms.store(now_ms, Ordering::Relaxed);
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Connects the client to the service, if it is not; returns the answer, with the latest lease, and whether the
    /// client was connected.
    fn connect(&self) -> StatusResult<(Welcome, bool)> {
        let mut connected = self.connected.lock();
        if let Some(welcome) = *connected {
            let lease = self.callbacks.latest();
            return Ok((
                welcome.map(|first| MdsWelcome { lease: lease.unwrap_or(first.lease), ..first }),
                true,
            ));
        }
        let welcome = self.service.connect(&self.export)?;
        *connected = Some(welcome);
        Ok((welcome, false))
    }

    /// Ends all connections, so that the client sets them up again.
    pub(super) fn close_connections(&self) {
        for connection in self.open_connections() {
            connection.shut_down(Shutdown::Both);
        }
    }

    fn open_connections(&self) -> Vec<Arc<Connection>> {
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.iter().filter_map(Weak::upgrade).filter(|connection| !connection.is_closed()).collect()
    }

    /// Returns the time without traffic after which the client is evicted.
    fn grace(&self, config: &ServerConfig, is_connected: bool) -> Duration {
        let local = self.export.process.filter(|_| !is_connected);
        match &local {
            Some(process) if nacre_env::has_ended(process) => Duration::ZERO,
            // It closes connections that it does not need.
            _ if self.target.kind == TargetKind::Ost => config.object_client_grace,
            Some(_) => config.client_grace_local,
            None => config.client_grace,
        }
    }

    fn note_eviction(&self, audit: &Audit, reason: &str) {
        let Nid::Tcp(peer) = self.export.nid else { return };
        audit.note(&AuditEvent {
            identity: self.export.identity.as_deref(),
            target: Some(self.target),
            client: Some(self.export.client),
            reason,
            ..AuditEvent::new(AuditKind::Evicted, peer)
        });
    }

    fn holder(&self) -> Holder {
        let key = self.export.identity.as_ref().map(|identity| identity.id);
        Holder { target: self.target, client: self.export.client, key }
    }

    /// Marks the client as gone; returns true for the first caller.
    fn go(&self) -> bool {
        !self.gone.swap(true, Ordering::SeqCst)
    }
}

/// Lock messages that are kept for a client without a control connection. Beyond that the oldest are dropped;
/// the lock server repeats them as long as it waits for an answer. As many as a busy client gets in the tenth
/// of a second that a reconnect takes.
const BACKLOG_MAX: usize = 256;

/// Callbacks to a remote client over the control connection that it opened, if there is one. The mutex is
/// held during a send, so that messages are sent in order.
struct RemoteCallbacks {
    target: TargetId,
    way: Mutex<WayBack>,
    /// Origin of the server's clock.
    started: Instant,
    last_heard_ms: AtomicU64,
}

#[derive(Default)]
struct WayBack {
    control: Weak<Connection>,
    latest: Option<LeaseGrant>,
    /// Lock messages since the end of the last control connection. A client that reconnects already sends
    /// requests on its other connections before it has a new control connection.
    kept: VecDeque<LockMessage>,
}

impl WayBack {
    fn keep(&mut self, message: LockMessage) {
        // The lock server repeats callbacks until they are answered.
        if self.kept.contains(&message) {
            return;
        }
        if self.kept.len() == BACKLOG_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(message);
    }
}

impl RemoteCallbacks {
    fn latest(&self) -> Option<LeaseGrant> {
        self.way.lock().latest
    }

    /// Sends a message; returns false if the client has no control connection.
    fn send(&self, way: &WayBack, message: ServerMessage) -> bool {
        let connection = way.control.upgrade().filter(|connection| !connection.is_closed());
        connection.is_some_and(|connection| connection.send_callback(self.target, &message))
    }

    /// Registers a control connection; `greet` answers its connect. Sends the messages that were kept
    /// meanwhile. From the answer on, no message is lost.
    fn attach(&self, connection: &Arc<Connection>, greet: impl FnOnce()) {
        let mut way = self.way.lock();
        greet();
        way.control = Arc::downgrade(connection);
        if let Some(grant) = way.latest {
            self.send(&way, ServerMessage::Lease(grant));
        }
        while let Some(message) = way.kept.front().copied()
            && self.send(&way, ServerMessage::Lock(message))
        {
            way.kept.pop_front();
        }
    }
}

impl ClientCallbacks for RemoteCallbacks {
    fn lease_changed(&self, grant: LeaseGrant) {
        let mut way = self.way.lock();
        if way.latest.is_some_and(|known| known.epoch > grant.epoch) {
            return;
        }
        way.latest = Some(grant);
        self.send(&way, ServerMessage::Lease(grant));
    }

    /// Sends the message, or keeps it until there is a control connection.
    fn lock_message(&self, message: LockMessage) {
        let mut way = self.way.lock();
        if !self.send(&way, ServerMessage::Lock(message)) {
            way.keep(message);
        }
    }

    fn silent_for(&self) -> Duration {
        let last_heard = Duration::from_millis(self.last_heard_ms.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(last_heard)
    }
}

/// Identity of a connecting client.
pub(super) struct Who {
    pub(super) uuid: ClientUuid,
    /// Its process, if it is on this host.
    pub(super) process: Option<ProcessIdentity>,
    /// See [`nacre_wire::connect::ConnectFlags::SERVER`].
    pub(super) is_server: bool,
    /// See [`Export::is_first`].
    pub(super) is_first: bool,
    /// Authenticated identity.
    pub(super) identity: Option<Arc<Identity>>,
}

/// All clients of metadata and object targets.
#[derive(Default)]
pub(super) struct Clients {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    clients: HashMap<(TargetId, ClientUuid), Arc<Client>>,
    former: FormerAnswers,
}

/// How a client ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaving {
    /// It has disconnected: nothing of it remains.
    Orderly,
    /// The server drops it, and it may come back.
    Evicted,
}

impl Known {
    /// Removes a client, if it is still the one under its identity.
    fn remove(&mut self, client: &Arc<Client>, how: Leaving) {
        let key = (client.target, client.export.client);
        if !self.clients.get(&key).is_some_and(|current| Arc::ptr_eq(current, client)) {
            return;
        }
        self.clients.remove(&key);
        if how == Leaving::Evicted && client.target.kind == TargetKind::Mdt {
            self.former.keep(client.holder(), client.answers.clone());
        }
    }
}

/// A connected client.
pub(super) struct Attached {
    pub(super) client: Arc<Client>,
    pub(super) lease: Option<LeaseGrant>,
    pub(super) known: bool,
    /// The target does not have its answers to earlier requests of the client.
    pub(super) has_lost_answers: bool,
}

impl Clients {
    /// Returns the number of clients at targets of a kind.
    pub(super) fn count(&self, kind: TargetKind) -> usize {
        self.known.lock().clients.keys().filter(|(target, _)| target.kind == kind).count()
    }

    /// Registers a connection of a client.
    pub(super) fn attach(
        &self,
        connection: &Arc<Connection>,
        service: &Service,
        target: TargetId,
        who: Who,
    ) -> StatusResult<Attached> {
        let uuid = who.uuid;
        let now = connection.now_ms();
        let client = {
            let mut known = self.known.lock();
            let ended =
                known.clients.get(&(target, uuid)).filter(|client| client.export.has_ended()).cloned();
            if let Some(ended) = ended {
                // The service has dropped it, and no request has noticed that yet.
                ended.go();
                known.remove(&ended, Leaving::Evicted);
            }
            let id = |identity: &Option<Arc<Identity>>| identity.as_ref().map(|identity| identity.id);
            if let Some(client) = known.clients.get(&(target, uuid))
                && id(&client.export.identity) != id(&who.identity)
            {
                log::warn!(
                    "{target}: the client {uuid} belongs to another key than the one that asks for it"
                );
                return Err(Status::EPERM);
            }
            let Known { clients, former } = &mut *known;
            let client = clients
                .entry((target, uuid))
                .or_insert_with(|| Arc::new(new_client(service.clone(), target, &who, connection, former)));
            client.connections.lock().push(Arc::downgrade(connection));
            client.heard(now);
            client.clone()
        };
        match client.connect() {
            Ok((welcome, known)) => {
                client.heard(connection.now_ms());
                if !known {
                    // All other log lines name the client by its UUID.
                    log::info!("{target} has a new client: {uuid} at {}", client.export.nid);
                }
                let lost = welcome.is_some_and(|of| !of.is_remembered && !client.has_former_answers);
                let lease = welcome.map(|of| of.lease);
                Ok(Attached { client, lease, known, has_lost_answers: lost })
            }
            Err(status) => {
                client.go();
                let how = if client.has_former_answers { Leaving::Evicted } else { Leaving::Orderly };
                self.remove(&client, how);
                Err(status)
            }
        }
    }

    /// Registers the client's control connection; `greet` answers its connect.
    pub(super) fn attach_control(&self, client: &Client, connection: &Arc<Connection>, greet: impl FnOnce()) {
        client.callbacks.attach(connection, greet);
    }

    fn remove(&self, client: &Arc<Client>, how: Leaving) {
        self.known.lock().remove(client, how);
    }

    /// Removes a client that the service has dropped: the next connect creates a new one.
    pub(super) fn forget(&self, client: &Arc<Client>, audit: &Audit) {
        let first = client.go();
        self.remove(client, Leaving::Evicted);
        if first {
            client.note_eviction(audit, "its target has dropped it");
        }
        // A metadata service knows its clients by UUID, and this client may already have reconnected.
        if first && client.target.kind == TargetKind::Ost {
            client.service.disconnect(&client.export);
        }
    }

    /// Disconnects a client: the service releases its state.
    pub(super) fn disconnect(&self, client: &Arc<Client>, how: Leaving) {
        if client.go() {
            self.remove(client, how);
            client.service.disconnect(&client.export);
        }
    }

    /// Counts all clients as heard at this time, because the server itself was stopped.
    pub(super) fn excuse(&self, now_ms: u64) {
        self.known.lock().clients.values().for_each(|client| client.heard(now_ms));
    }

    /// Evicts clients that were unresponsive for too long.
    pub(super) fn reap(&self, shared: &Shared) {
        let clients: Vec<Arc<Client>> = self.known.lock().clients.values().cloned().collect();
        for client in clients {
            let connections = client.open_connections();
            let grace = client.grace(&shared.config, !connections.is_empty());
            let silent = client.callbacks.silent_for();
            if silent < grace || client.connected.try_lock().is_none() {
                continue;
            }
            log::warn!(
                peer:% = host_of(client.export.nid);
                "client {} of {} at {} has sent nothing for {} s: its handles and locks are dropped",
                client.export.client,
                client.target,
                client.export.nid,
                silent.as_secs()
            );
            client.note_eviction(&shared.audit, "it has not been heard of");
            self.disconnect(&client, Leaving::Evicted);
            for connection in connections {
                connection.shut_down(Shutdown::Both);
            }
        }
    }
}

fn new_client(
    service: Service,
    target: TargetId,
    who: &Who,
    connection: &Connection,
    former: &mut FormerAnswers,
) -> Client {
    let callbacks = Arc::new(RemoteCallbacks {
        target,
        way: Mutex::default(),
        started: connection.shared.started,
        last_heard_ms: AtomicU64::new(connection.now_ms()),
    });
    let export = Export::new(who.uuid, Nid::Tcp(connection.peer()), who.process, callbacks.clone());
    let export = if who.is_server { export.of_server() } else { export };
    let export = export.of_key(who.identity.clone()).at_first(who.is_first);
    let key = who.identity.as_ref().map(|identity| identity.id);
    let former = former.take(&Holder { target, client: who.uuid, key });
    let (has_former_answers, answers) = (former.is_some(), former.unwrap_or_default());
    let own = answers.clone();
    export.set_received(Box::new(move |slot| own.cache.lock().has_arrived(slot.tag, slot.xid)));
    Client {
        export: Arc::new(export),
        has_former_answers,
        answers,
        callbacks,
        service,
        target,
        connected: Mutex::new(None),
        gone: AtomicBool::new(false),
        connections: Mutex::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_lock::LockHandle;

    #[test]
    fn the_newest_messages_are_kept_each_once() {
        let mut way = WayBack::default();
        let message = |number| LockMessage::Glimpse { glimpse: number, handle: LockHandle(1) };
        for number in 0..BACKLOG_MAX as u64 + 3 {
            way.keep(message(number));
            way.keep(message(number));
        }
        assert!(way.kept.into_iter().eq((3..BACKLOG_MAX as u64 + 3).map(message)));
    }
}
