//! Options of the TCP transport.

use crate::audit::AuditSink;
use crate::shape::Shape;
use crate::tcp::Network;
use crate::tunables::Tunables;
use nacre_keys::{ClientTls, ServerTls};
use nacre_types::{KeyId, Security};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Options of a client's connections.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// Time limit for one attempt to reach one NID. Default 3 s.
    pub connect_timeout: Duration,
    /// Time limit for the server's answer to a connect; the server may first have to revoke another client's
    /// locks or to end its recovery. Default 60 s.
    pub handshake_timeout: Duration,
    /// First pause between attempts; each is an eighth longer. Default 50 ms.
    pub backoff_min: Duration,
    /// Longest pause between attempts. Default 2 s.
    pub backoff_max: Duration,
    /// Deadline of the first connect of a metadata endpoint. Default 90 s.
    pub first_connect_deadline: Duration,
    /// Deadline after which the first connect of an endpoint fails if every NID refuses it (no server
    /// listens). Default: refusals are retried like other failures, as a server may be about to start.
    pub refused_deadline: Option<Duration>,
    /// How long a request waits for an unreachable server before it fails with `ETIMEDOUT`. Default: for
    /// ever.
    pub deadline: Option<Duration>,
    /// Time without traffic after which a connection with waiting callers is pinged. Default 5 s.
    pub ping_interval: Duration,
    /// Time without traffic after which a connection counts as dead. Default 20 s.
    pub dead_after: Duration,
    /// Interval at which an unused object target is pinged, so that it does not evict the client
    /// ([`ServerConfig::object_client_grace`]). Default 10 min.
    pub show_interval: Duration,
    /// How long an interrupted request waits for the server to end it, so that the caller learns the outcome.
    /// Default 1 s.
    pub interrupt_grace: Duration,
    /// Parameters that may change while the client runs; all endpoints with this configuration share them,
    /// and each may override them ([`crate::OssEndpoint::tunables`]).
    pub tunables: Arc<Tunables>,
    /// Keys that authenticate this client and verify servers; `None`: connections without TLS, to open
    /// servers. Default none.
    pub tls: Option<ClientTls>,
    /// With keys: the client refuses servers that authenticate and do not encrypt. Default: the server
    /// chooses.
    pub encrypted_only: bool,
    /// With keys: the only accepted key of the server, where the target is known to belong to one. Default:
    /// any key with the target's role.
    pub server_key: Option<KeyId>,
    /// Slow fabric to simulate, for tests and benchmarks. Default none, at no cost.
    pub shape: Option<Shape>,
    /// Network in which connections are set up. Default the kernel's.
    pub network: Network,
    /// Requests in flight per connection; the server may lower it. Default 32.
    pub in_flight_max: u32,
    /// File locks that wait at the server at the same time, per target; the client polls for further ones, so
    /// that waiting locks never fill a connection. Default 8.
    pub waiting_locks_max: u32,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            connect_timeout: Duration::from_secs(3),
            handshake_timeout: Duration::from_secs(60),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            first_connect_deadline: Duration::from_secs(90),
            refused_deadline: None,
            deadline: None,
            ping_interval: Duration::from_secs(5),
            dead_after: Duration::from_secs(20),
            show_interval: Duration::from_secs(600),
            interrupt_grace: Duration::from_secs(1),
            tunables: Arc::default(),
            tls: None,
            encrypted_only: false,
            server_key: None,
            shape: None,
            network: Network::Host,
            in_flight_max: 32,
            waiting_locks_max: 8,
        }
    }
}

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Name of the file system; the server refuses clients that name another one. Empty: serves every client.
    pub fsname: String,
    /// Threads per connection; the pool grows while all threads wait. Default 64.
    pub threads_max: usize,
    /// Idle threads that a connection keeps for a while. Default 8.
    pub threads_idle_max: usize,
    /// Requests in flight per connection of a client; capped at `threads_max` - 2, so that pings are always
    /// answered. Default 32.
    pub in_flight_max: u32,
    /// Served connections; further ones are closed at once. Default 4096.
    pub connections_max: usize,
    /// Served connections of one key. Default 1024.
    pub connections_per_key_max: usize,
    /// Half-open connections; a new one evicts the oldest. Default 1024.
    pub half_open_max: usize,
    /// Half-open connections of one host: an address, or an IPv6 network of 64 bits. Default 256.
    pub half_open_per_host_max: usize,
    /// Time without traffic after which a metadata target evicts a client. Default 60 s.
    pub client_grace: Duration,
    /// The same for a client on this host without open connections: no network lies between, so its process
    /// has ended. Default 2 s.
    pub client_grace_local: Duration,
    /// The same for clients of object targets, which close unused connections but ping every
    /// [`ClientConfig::show_interval`]. The lock server revokes the locks of an unresponsive client when
    /// other clients need them, so this only bounds memory. A client on this host whose process has ended is
    /// dropped at once. Default 1 h.
    pub object_client_grace: Duration,
    /// Time limit for the whole handshake of a new connection, in however many pieces it arrives. Default 10
    /// s.
    pub handshake_max: Duration,
    /// Time after which a peer is disconnected that stalls inside a frame or does not take replies. Default
    /// 20 s.
    pub stall_max: Duration,
    /// How long [`crate::tcp::Server::stop`] waits for running requests before it interrupts them. Default 10
    /// s.
    pub stop_grace: Duration,
    /// Checksums on file data, if the client asks for them too. Default on.
    pub bulk_checksums: bool,
    /// Threads keep their buffers for the next request. Off only to measure what that saves. Default on.
    pub reuses_buffers: bool,
    /// Keys that authenticate this server and verify peers; `None`: the server is open to all. Default none.
    pub tls: Option<ServerTls>,
    /// With keys: protection of connections. Default encrypted.
    pub protection: Security,
    /// Protection of connections that arrive at these addresses of this host.
    pub protection_of: Vec<(IpAddr, Security)>,
    /// Sink of audit events. Default none.
    pub audit: Option<Arc<dyn AuditSink>>,
    /// Network in which the server listens. Default the kernel's.
    pub network: Network,
}

impl ServerConfig {
    /// Returns the protection of connections that arrive at this address.
    pub fn protection_at(&self, address: IpAddr) -> Security {
        let own = self.protection_of.iter().find(|(own, _)| own.to_canonical() == address.to_canonical());
        own.map_or(self.protection, |(_, protection)| *protection)
    }
}

impl Default for ServerConfig {
    fn default() -> ServerConfig {
        ServerConfig {
            fsname: String::new(),
            threads_max: 64,
            threads_idle_max: 8,
            in_flight_max: 32,
            connections_max: 4096,
            connections_per_key_max: 1024,
            half_open_max: 1024,
            half_open_per_host_max: 256,
            client_grace: Duration::from_secs(60),
            client_grace_local: Duration::from_secs(2),
            object_client_grace: Duration::from_secs(3600),
            handshake_max: Duration::from_secs(10),
            stall_max: Duration::from_secs(20),
            stop_grace: Duration::from_secs(10),
            bulk_checksums: true,
            reuses_buffers: true,
            tls: None,
            protection: Security::default(),
            protection_of: Vec::new(),
            audit: None,
            network: Network::Host,
        }
    }
}
