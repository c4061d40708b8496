//! The clients of a server's targets: kept while connections come and go.

use super::connection::Connection;
use super::{Service, Shared};
use crate::api::{ClientCallbacks, Export, MdsService};
use nacre_session::ReplyCache;
use nacre_types::{ClientUuid, Nid, ProcessIdentity, Status, StatusResult, TargetId};
use nacre_wire::lock::{LockMessage, ServerMessage};
use nacre_wire::mds::LeaseGrant;
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A reply that is kept for a resend.
#[derive(Debug)]
pub(super) struct StoredReply {
    pub(super) status: Status,
    pub(super) body: Vec<u8>,
}

/// One client of one metadata target.
pub(super) struct Client {
    pub(super) export: Arc<Export>,
    pub(super) replies: Mutex<ReplyCache<Arc<StoredReply>>>,
    pub(super) reply_stored: Condvar,
    callbacks: Arc<RemoteCallbacks>,
    service: Arc<dyn MdsService>,
    target: TargetId,
    /// Held by whoever makes the service know the client, so that it happens once.
    connected: Mutex<Option<LeaseGrant>>,
    /// The service dropped the client, or it left.
    gone: AtomicBool,
    last_heard_ms: AtomicU64,
    connections: Mutex<Vec<Weak<Connection>>>,
}

impl Client {
    /// Something came from the client.
    pub(super) fn heard(&self, now_ms: u64) {
        self.last_heard_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Makes the service know the client, if it does not; says what may be cached and whether the client was known.
    fn connect(&self) -> StatusResult<(LeaseGrant, bool)> {
        let mut connected = self.connected.lock();
        if let Some(grant) = *connected {
            return Ok((self.callbacks.latest().unwrap_or(grant), true));
        }
        let grant = self.service.connect(&self.export)?;
        *connected = Some(grant);
        Ok((grant, false))
    }

    /// Ends all connections, so that the client sets them up anew.
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
}

/// Way back to a client: the control connection that it opened, if it has one now. The mutex is held while something is
/// sent, so that messages leave in the order in which they were told.
#[derive(Default)]
struct RemoteCallbacks {
    way: Mutex<WayBack>,
}

#[derive(Default)]
struct WayBack {
    control: Weak<Connection>,
    latest: Option<LeaseGrant>,
}

impl WayBack {
    fn send(&self, message: ServerMessage) {
        if let Some(connection) = self.control.upgrade() {
            connection.send_callback(&message);
        }
    }
}

impl RemoteCallbacks {
    fn latest(&self) -> Option<LeaseGrant> {
        self.way.lock().latest
    }

    /// A control connection was opened; what changed while there was none is told now.
    fn attach(&self, connection: &Arc<Connection>) {
        let mut way = self.way.lock();
        way.control = Arc::downgrade(connection);
        if let Some(grant) = way.latest {
            way.send(ServerMessage::Lease(grant));
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
        way.send(ServerMessage::Lease(grant));
    }

    /// Dropped if there is no way at the moment.
    fn lock_message(&self, message: LockMessage) {
        self.way.lock().send(ServerMessage::Lock(message));
    }
}

/// All clients of metadata targets.
#[derive(Default)]
pub(super) struct Clients {
    known: Mutex<HashMap<(TargetId, ClientUuid), Arc<Client>>>,
}

/// A client that is served now.
pub(super) struct Attached {
    pub(super) client: Arc<Client>,
    pub(super) grant: LeaseGrant,
    pub(super) known: bool,
}

impl Clients {
    pub(super) fn len(&self) -> usize {
        self.known.lock().len()
    }

    /// A connection of a client is set up.
    pub(super) fn attach(
        &self,
        connection: &Arc<Connection>,
        service: &Arc<dyn MdsService>,
        target: TargetId,
        uuid: ClientUuid,
        process: Option<ProcessIdentity>,
    ) -> StatusResult<Attached> {
        let now = connection.now_ms();
        let client = {
            let mut known = self.known.lock();
            let client = known.entry((target, uuid)).or_insert_with(|| {
                Arc::new(new_client(service.clone(), target, uuid, connection.peer(), process))
            });
            client.connections.lock().push(Arc::downgrade(connection));
            client.heard(now);
            client.clone()
        };
        match client.connect() {
            Ok((grant, known)) => {
                client.heard(connection.now_ms());
                Ok(Attached { client, grant, known })
            }
            Err(status) => {
                self.forget(&client);
                Err(status)
            }
        }
    }

    /// The client has opened its control connection.
    pub(super) fn attach_control(&self, client: &Client, connection: &Arc<Connection>) {
        client.callbacks.attach(connection);
    }

    /// The client is no longer known here; the next connect starts afresh.
    pub(super) fn forget(&self, client: &Arc<Client>) {
        client.gone.store(true, Ordering::SeqCst);
        let key = (client.target, client.export.client);
        let mut known = self.known.lock();
        if known.get(&key).is_some_and(|current| Arc::ptr_eq(current, client)) {
            known.remove(&key);
        }
    }

    /// The client leaves: the service closes what it holds.
    pub(super) fn disconnect(&self, client: &Arc<Client>) {
        if client.is_gone() {
            return;
        }
        self.forget(client);
        client.service.disconnect(client.export.client);
    }

    /// Disconnects clients that have not been heard of for too long.
    pub(super) fn reap(&self, shared: &Shared) {
        let clients: Vec<Arc<Client>> = self.known.lock().values().cloned().collect();
        for client in clients {
            let connections = client.open_connections();
            let config = &shared.config;
            let local = client.export.process.filter(|_| connections.is_empty());
            let grace = match &local {
                Some(process) if nacre_env::has_ended(process) => Duration::ZERO,
                Some(_) => config.client_grace_local,
                None => config.client_grace,
            };
            let silent = shared.now_ms().saturating_sub(client.last_heard_ms.load(Ordering::Relaxed));
            if Duration::from_millis(silent) < grace || client.connected.try_lock().is_none() {
                continue;
            }
            log::warn!(
                "client {} of {} at {} has not been heard of for {} s: its handles and locks are given up",
                client.export.client,
                client.target,
                client.export.nid,
                silent / 1000
            );
            self.disconnect(&client);
            for connection in connections {
                connection.shut_down(Shutdown::Both);
            }
        }
    }
}

fn new_client(
    service: Arc<dyn MdsService>,
    target: TargetId,
    uuid: ClientUuid,
    peer: SocketAddr,
    process: Option<ProcessIdentity>,
) -> Client {
    let callbacks = Arc::new(RemoteCallbacks::default());
    Client {
        export: Arc::new(Export::new(uuid, Nid::Tcp(peer), process, callbacks.clone())),
        replies: Mutex::default(),
        reply_stored: Condvar::new(),
        callbacks,
        service,
        target,
        connected: Mutex::new(None),
        gone: AtomicBool::new(false),
        last_heard_ms: AtomicU64::new(0),
        connections: Mutex::default(),
    }
}

impl Service {
    /// The metadata service, if it is one.
    pub(super) fn as_mds(&self) -> Option<&Arc<dyn MdsService>> {
        match self {
            Service::Mds(service) => Some(service),
            Service::Oss(_) | Service::Mgs(_) => None,
        }
    }
}
