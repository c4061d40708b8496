//! The server side: listening, and the state that all connections share.

mod admission;
mod answers;
mod clients;
mod connection;
mod dispatch;
mod limits;
mod lobby;
mod reads;

use super::host::random_instance;
use super::socket::{Inbox, Socket};
use super::threads::ThreadGroup;
use crate::api::{Call, Export, MdsService, MdsWelcome, MgsService, OssService};
use crate::audit::{Audit, AuditEvent, AuditKind};
use crate::config::ServerConfig;
use admission::Admitted;
use admission::Proof;
use clients::{Clients, Leaving};
use connection::Connection;
use lobby::Lobby;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_types::{Cred, Identity, Status, StatusResult, TargetId, TargetKind, TransNo};
use nacre_wire::mds::MdsRequest;
use nacre_wire::oss::{Bulk, OssRequest};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Time between two scans for clients to evict.
const REAP_INTERVAL: Duration = Duration::from_millis(500);
/// A longer time between two scans means that the server process was stopped meanwhile, and that messages of
/// clients are unread.
const AWAY_MIN: Duration = Duration::from_secs(2);

/// Connections without a key at a time, which may enrol one. Each ends with its first request.
const ENROLLING_MAX: usize = 32;

/// Service of a target.
#[derive(Clone)]
enum Service {
    Mds(Arc<dyn MdsService>),
    Oss(Arc<dyn OssService>),
    Mgs(Arc<dyn MgsService>),
}

impl Service {
    /// Returns true if the service keeps state of clients.
    fn has_clients(&self) -> bool {
        !matches!(self, Service::Mgs(_))
    }

    /// Connects a client. Only metadata targets answer.
    fn connect(&self, export: &Arc<Export>) -> StatusResult<Option<MdsWelcome>> {
        match self {
            Service::Mds(service) => service.connect(export).map(Some),
            Service::Oss(service) => service.connect(export).map(|()| None),
            Service::Mgs(_) => Ok(None),
        }
    }

    /// Disconnects a client, on its request or by eviction.
    fn disconnect(&self, export: &Export) {
        match self {
            Service::Mds(service) => service.disconnect(export.client),
            Service::Oss(service) => service.disconnect(export),
            Service::Mgs(_) => {}
        }
    }

    /// Checks that the service still knows a client; the error if not. Returns the last durable transaction of an MDT,
    /// and 0 for other services.
    fn ping(&self, export: &Export, cred: &Cred) -> StatusResult<TransNo> {
        let call = Call::new(cred);
        match self {
            Service::Mds(service) => {
                service.handle(export, &call, &MdsRequest::Ping).map(|answer| answer.last_committed)
            }
            Service::Oss(service) => {
                service.handle(export, &call, &OssRequest::Ping, Bulk::None).map(|_| TransNo(0))
            }
            Service::Mgs(_) => Ok(TransNo(0)),
        }
    }
}

/// The targets of a server.
#[derive(Clone, Default)]
pub struct Targets {
    services: HashMap<TargetId, Service>,
}

impl Targets {
    /// Creates an empty set.
    pub fn new() -> Targets {
        Targets::default()
    }

    /// Adds a metadata target.
    pub fn with_mdt(mut self, index: u16, service: Arc<dyn MdsService>) -> Targets {
        self.services.insert(TargetId::mdt(index), Service::Mds(service));
        self
    }

    /// Adds an object target.
    pub fn with_ost(mut self, index: u16, service: Arc<dyn OssService>) -> Targets {
        self.services.insert(TargetId::ost(index), Service::Oss(service));
        self
    }

    /// Adds the management target.
    pub fn with_mgt(mut self, service: Arc<dyn MgsService>) -> Targets {
        self.services.insert(TargetId::mgt(), Service::Mgs(service));
        self
    }

    /// Returns the targets, in order.
    pub fn ids(&self) -> Vec<TargetId> {
        let mut ids: Vec<_> = self.services.keys().copied().collect();
        ids.sort();
        ids
    }
}

/// State that all connections of a server share.
struct Shared {
    pub(super) config: ServerConfig,
    targets: RwLock<Targets>,
    /// Distinguishes this start of the server from others.
    pub(super) instance: u64,
    pub(super) boot_id: [u8; 16],
    pub(super) clients: Clients,
    pub(super) lobby: Lobby,
    pub(super) audit: Audit,
    pub(super) threads: ThreadGroup,
    pub(super) stopping: AtomicBool,
    started: Instant,
    /// In order of arrival, so that a simulation ends them in the same order each time.
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    connection_ended: Condvar,
    next_connection: AtomicU64,
}

impl Shared {
    /// Returns the milliseconds since the start of the server.
    pub(super) fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Closes connections of keys that were revoked or have expired meanwhile. Clients of revoked keys are
    /// evicted; a client with an expired key may come back with a new one.
    fn close_lapsed(&self) {
        let Some(tls) = &self.config.tls else { return };
        let connections: Vec<_> = self.connections.lock().values().cloned().collect();
        for connection in connections {
            let Some(identity) = connection.identity() else { continue };
            let Some(status) = admission::lapsed(tls, identity) else { continue };
            log::warn!("connection of key {} ({}) closed: {status}", identity.id, identity.name);
            self.audit.note(&AuditEvent {
                identity: Some(identity),
                target: connection.target(),
                client: connection.client().map(|client| client.export.client),
                reason: &status.to_string(),
                ..AuditEvent::new(AuditKind::KeyLost, connection.peer())
            });
            if let Some(client) = connection.client().filter(|_| status == Status::EKEYREVOKED) {
                self.clients.disconnect(client, Leaving::Orderly);
            }
            connection.shut_down(Shutdown::Both);
        }
    }

    pub(super) fn connection_gone(&self, id: u64) {
        let gone = self.connections.lock().remove(&id);
        self.connection_ended.notify_all();
        if let Some(connection) = gone {
            self.lobby.disconnected(connection.peer());
        }
    }

    /// Serves a peer whose first frame was admitted.
    fn serve(self: &Arc<Self>, peer: SocketAddr, socket: Socket, inbox: Inbox, admitted: Admitted) {
        let mut connections = self.connections.lock();
        if let Some(reason) = self.full(&connections, &admitted.proof) {
            drop(connections);
            self.refused(
                peer,
                admitted.proof.identity().map(AsRef::as_ref),
                Some(admitted.header.target),
                &reason,
            );
            return;
        }
        let id = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection::new(self.clone(), id, peer, socket, inbox));
        connections.insert(id, connection.clone());
        drop(connections);
        self.lobby.connected(peer);
        if let Err(error) = connection.start(admitted) {
            log::warn!(peer:% = peer.ip(); "no thread for the connection from {peer}: {error}");
            self.connection_gone(id);
        }
        if self.is_stopping() {
            // A concurrent stop may have missed it.
            connection.stop_reading();
        }
    }

    /// Logs and audits a refused connection.
    pub(super) fn refused(
        &self,
        peer: SocketAddr,
        identity: Option<&Identity>,
        target: Option<TargetId>,
        reason: &str,
    ) {
        log::warn!(peer:% = peer.ip(); "connection from {peer} refused: {reason}");
        let event = AuditEvent::new(AuditKind::Refused, peer);
        self.audit.note(&AuditEvent { identity, target, reason, ..event });
    }

    /// Returns why no further connection is served, if so.
    fn full(&self, connections: &BTreeMap<u64, Arc<Connection>>, proof: &Proof) -> Option<String> {
        if connections.len() >= self.config.connections_max {
            return Some(format!("{} are open already", connections.len()));
        }
        let id = match proof {
            Proof::Open => return None,
            Proof::Unknown => {
                let enrolling = connections.values().filter(|connection| connection.may_be_unknown()).count();
                return (enrolling >= ENROLLING_MAX)
                    .then(|| format!("{enrolling} without a key are open already"));
            }
            Proof::Known(identity) => identity.id,
        };
        let is_same =
            |connection: &&Arc<Connection>| connection.identity().is_some_and(|identity| identity.id == id);
        // Counted only where the limit could be reached.
        let max = self.config.connections_per_key_max;
        (connections.len() >= max && connections.values().filter(is_same).count() >= max)
            .then(|| format!("key {id} has {max} open already"))
    }
}

/// A server that listens on one or more addresses. Dropping it stops it.
///
/// Clients of metadata targets stay connected for [`ServerConfig::client_grace`] after the end of their last
/// connection, those of object targets for [`ServerConfig::object_client_grace`]. The server keeps the
/// replies of modifying metadata requests per client, so that a resend is answered and not run again.
pub struct Server {
    shared: Arc<Shared>,
    addrs: Vec<SocketAddr>,
    reaper_stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Server {
    /// Listens on `addrs` (port 0 picks a free one) and serves `targets`.
    ///
    /// # Errors
    /// The first address that cannot be listened on, named in the error; `AddrInUse` if another process
    /// listens there.
    pub fn bind(addrs: &[SocketAddr], targets: Targets, config: ServerConfig) -> io::Result<Server> {
        if addrs.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on"));
        }
        let mut listeners = Vec::with_capacity(addrs.len());
        for addr in addrs {
            let listener = config
                .network
                .listen(*addr)
                .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {addr}: {error}")))?;
            listeners.push(listener);
        }
        let addrs = listeners.iter().map(|l| l.own_addr()).collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            lobby: Lobby::new(listeners, &config)?,
            audit: Audit::new(config.audit.clone()),
            config,
            targets: RwLock::new(targets),
            instance: random_instance(),
            boot_id: nacre_env::own_process().boot,
            clients: Clients::default(),
            threads: ThreadGroup::default(),
            stopping: AtomicBool::new(false),
            started: Instant::now(),
            connections: Mutex::default(),
            connection_ended: Condvar::new(),
            next_connection: AtomicU64::new(1),
        });
        let server = Server { shared, addrs, reaper_stop: Arc::default() };
        server.start_threads()?;
        Ok(server)
    }

    fn start_threads(&self) -> io::Result<()> {
        for _ in 0..lobby::threads() {
            let shared = self.shared.clone();
            self.shared.threads.spawn("rpc-accept".into(), move || lobby::run(&shared))?;
        }
        let (shared, stop) = (self.shared.clone(), self.reaper_stop.clone());
        self.shared.threads.spawn("rpc-clients".into(), move || {
            let mut stopped = stop.0.lock();
            let mut looked = Instant::now();
            while !*stopped {
                stop.1.wait_for(&mut stopped, REAP_INTERVAL);
                nacre_env::sync::unlocked(&mut stopped, || {
                    if looked.elapsed() >= AWAY_MIN {
                        shared.clients.excuse(shared.now_ms());
                    }
                    looked = Instant::now();
                    shared.clients.reap(&shared);
                    shared.close_lapsed();
                });
            }
        })
    }

    /// Returns the addresses that the server listens on, with the ports that port 0 became.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// Adds targets to a running server.
    pub fn add(&self, targets: Targets) {
        self.shared.targets.write().services.extend(targets.services);
    }

    /// Returns the number of this start of the server, by which clients notice a restart.
    pub fn instance(&self) -> u64 {
        self.shared.instance
    }

    /// Returns the number of served connections.
    pub fn connection_count(&self) -> usize {
        self.shared.connections.lock().len()
    }

    /// Returns the number of events of a kind since the start of the server.
    pub fn audited(&self, kind: AuditKind) -> u64 {
        self.shared.audit.count(kind)
    }

    /// Returns the number of half-open connections.
    pub fn half_open_count(&self) -> usize {
        self.shared.lobby.half_open()
    }

    /// Returns the number of clients that are connected to metadata targets.
    pub fn client_count(&self) -> usize {
        self.shared.clients.count(TargetKind::Mdt)
    }

    /// Returns the number of clients that are connected to object targets, servers among them.
    pub fn object_client_count(&self) -> usize {
        self.shared.clients.count(TargetKind::Ost)
    }

    /// Stops: no new connections or requests; running requests are finished and answered, or interrupted
    /// after [`ServerConfig::stop_grace`]; all threads are joined. Clients stay connected at the services, as
    /// in a crash: they reconnect on their own. Returns at once if the server has already stopped.
    pub fn stop(&self) {
        if self.shared.stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        self.shared.lobby.close();
        *self.reaper_stop.0.lock() = true;
        self.reaper_stop.1.notify_all();
        for connection in self.connections() {
            connection.stop_reading();
        }
        self.wait_for_connections(self.shared.config.stop_grace);
        for connection in self.connections() {
            connection.interrupt_all();
        }
        self.wait_for_connections(self.shared.config.stop_grace);
        for connection in self.connections() {
            connection.shut_down(Shutdown::Both);
        }
        self.shared.threads.join_all();
    }

    fn connections(&self) -> Vec<Arc<Connection>> {
        self.shared.connections.lock().values().cloned().collect()
    }

    fn wait_for_connections(&self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut connections = self.shared.connections.lock();
        while !connections.is_empty() {
            if self.shared.connection_ended.wait_until(&mut connections, deadline).timed_out() {
                return;
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns the service of a target, if it exists and is of the target's kind.
fn service_of(shared: &Shared, target: TargetId) -> Option<Service> {
    let targets = shared.targets.read();
    let service = targets.services.get(&target)?;
    let fits = matches!(
        (target.kind, service),
        (TargetKind::Mdt, Service::Mds(_))
            | (TargetKind::Ost, Service::Oss(_))
            | (TargetKind::Mgt, Service::Mgs(_))
    );
    fits.then(|| service.clone())
}
