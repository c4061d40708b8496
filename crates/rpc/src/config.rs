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
    /// One attempt to reach one NID. Default 3 s.
    pub connect_timeout: Duration,
    /// The server's answer to a connect; it may have to call another client's caches back or to end its recovery first.
    /// Default 60 s.
    pub handshake_timeout: Duration,
    /// First pause between attempts; it doubles. Default 50 ms.
    pub backoff_min: Duration,
    /// Longest pause between attempts. Default 2 s.
    pub backoff_max: Duration,
    /// How long the first connect of a metadata endpoint is tried. Default 90 s.
    pub first_connect_deadline: Duration,
    /// After so long the first connect of an endpoint fails if every NID refuses it: nobody listens there. Default: refusals
    /// are tried again like everything else, as a server may be about to start.
    pub refused_deadline: Option<Duration>,
    /// How long a request waits for a server that is away before it fails with `ETIMEDOUT`. Default: for ever.
    pub deadline: Option<Duration>,
    /// A connection that somebody waits on and that has been silent for so long is pinged. Default 5 s.
    pub ping_interval: Duration,
    /// A connection is taken for dead after so much silence. Default 20 s.
    pub dead_after: Duration,
    /// An object target that was not used for so long is asked whether it is there, so that it does not take the client
    /// for gone ([`ServerConfig::object_client_grace`]). Default 10 min.
    pub show_interval: Duration,
    /// How long an interrupted request waits for the server to end it, so that the caller learns what became of it.
    /// Default 1 s.
    pub interrupt_grace: Duration,
    /// What may change while the client runs; all endpoints made with this configuration share it, and each may have its
    /// own values on top ([`crate::OssEndpoint::tunables`]).
    pub tunables: Arc<Tunables>,
    /// With what this client proves who it is, and knows servers; `None`: connections without TLS, to open servers. Default none.
    pub tls: Option<ClientTls>,
    /// With keys: servers that authenticate and do not encrypt are refused. Default: a server chooses.
    pub encrypted_only: bool,
    /// With keys: the only key that a server may prove, where the target is known to belong to one. Default: any of the target's role.
    pub server_key: Option<KeyId>,
    /// A slow fabric to simulate, for tests and benches. Default none, at no cost.
    pub shape: Option<Shape>,
    /// Where connections are made. Default by the kernel.
    pub network: Network,
    /// Requests in flight per connection; the server may ask for fewer. Default 32.
    pub in_flight_max: u32,
    /// File locks that wait at the server at the same time, per target; more of them are tried again and again by the
    /// client, so that waiting locks never fill a connection. Default 8.
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
    /// Name of the file system; clients that name another one are refused. Empty: anybody is served.
    pub fsname: String,
    /// Threads per connection; a thread is added when all others wait. Default 64.
    pub threads_max: usize,
    /// Threads per connection that stay for a while although they have nothing to do. Default 8.
    pub threads_idle_max: usize,
    /// Requests in flight that a client may have on one connection; cut to `threads_max` - 2, so that pings are always
    /// answered. Default 32.
    pub in_flight_max: u32,
    /// Connections at the same time that are served; more are closed at once. Default 4096.
    pub connections_max: usize,
    /// The same of one key. Default 1024.
    pub connections_per_key_max: usize,
    /// Half-open connections at a time; the oldest make room for more. Default 1024.
    pub half_open_max: usize,
    /// The same of one host: an address, or a network of 64 bits with IPv6. Default 256.
    pub half_open_per_host_max: usize,
    /// A client of a metadata target that has not been heard of for so long loses its handles and locks. Default 60 s.
    pub client_grace: Duration,
    /// The same for a client on this host all of whose connections are closed: no network lies between, so its process
    /// has ended. Default 2 s.
    pub client_grace_local: Duration,
    /// The same for clients of object targets, which close connections that they do not use but show themselves every
    /// [`ClientConfig::show_interval`]. Locks of one that is silent are taken from it when others want them, so this only
    /// bounds memory. One whose process has ended on this host is dropped at once. Default 1 h.
    pub object_client_grace: Duration,
    /// How long a new connection may take in all to say what it is, however little of that is missing. Default 10 s.
    pub handshake_max: Duration,
    /// A peer that stops in the middle of a frame, or does not take replies, is cut off after so long. Default 20 s.
    pub stall_max: Duration,
    /// How long [`crate::tcp::Server::stop`] lets running requests finish before it interrupts them. Default 10 s.
    pub stop_grace: Duration,
    /// Checksums on file data, if the client wants them too. Default on.
    pub bulk_checksums: bool,
    /// A thread keeps its buffers for the next request. Off only to measure what that saves. Default on.
    pub reuses_buffers: bool,
    /// With what this server proves who it is, and knows peers; `None`: it is open to all. Default none.
    pub tls: Option<ServerTls>,
    /// With keys: how connections are protected. Default encrypted.
    pub protection: Security,
    /// The same of connections that come in at these addresses of this host.
    pub protection_of: Vec<(IpAddr, Security)>,
    /// Where it is written down what happened to peers. Default nowhere.
    pub audit: Option<Arc<dyn AuditSink>>,
    /// Where it listens. Default at sockets of the kernel.
    pub network: Network,
}

impl ServerConfig {
    /// How connections are protected that come in at this address.
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
