//! Security events of peers: counted here, written by a sink.

use nacre_types::{ClientUuid, Identity, TargetId};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of audit events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditKind {
    /// A new client is served, or a new connection to the management server.
    Connected,
    /// A connection or request is refused.
    Refused,
    /// A connection is closed because its key was revoked or has expired.
    KeyLost,
    /// A client is evicted and loses its handles and locks.
    Evicted,
    /// A peer changes keys, nodemaps, pools or parameters.
    Changed,
}

impl AuditKind {
    /// All kinds.
    pub const ALL: [AuditKind; 5] = [
        AuditKind::Connected,
        AuditKind::Refused,
        AuditKind::KeyLost,
        AuditKind::Evicted,
        AuditKind::Changed,
    ];

    /// Returns the name for logs.
    pub const fn name(self) -> &'static str {
        match self {
            AuditKind::Connected => "connected",
            AuditKind::Refused => "refused",
            AuditKind::KeyLost => "key-lost",
            AuditKind::Evicted => "evicted",
            AuditKind::Changed => "changed",
        }
    }
}

/// An audit event. It contains no secrets.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// Kind of the event.
    pub kind: AuditKind,
    /// Address of the peer; `None` for the owner of the file system on this host.
    pub peer: Option<SocketAddr>,
    /// Identity from the peer's certificate; `None` without a certificate.
    pub identity: Option<&'a Identity>,
    /// Target that the peer asked for, if known.
    pub target: Option<TargetId>,
    /// Client that the peer says it is.
    pub client: Option<ClientUuid>,
    /// Reason; empty where the kind says it. May contain text from the peer.
    pub reason: &'a str,
}

impl<'a> AuditEvent<'a> {
    /// Creates an event about a peer of which only the address is known.
    pub const fn new(kind: AuditKind, peer: SocketAddr) -> AuditEvent<'a> {
        AuditEvent { peer: Some(peer), ..AuditEvent::local(kind) }
    }

    /// Creates an event about the process itself.
    pub const fn local(kind: AuditKind) -> AuditEvent<'a> {
        AuditEvent { kind, peer: None, identity: None, target: None, client: None, reason: "" }
    }
}

/// A writer of events. It must not wait for peers, and bounds the amount that it writes.
pub trait AuditSink: Send + Sync + Debug {
    /// Records an event.
    fn note(&self, event: &AuditEvent<'_>);
}

/// Counts events and forwards them to the sink.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    counts: [AtomicU64; AuditKind::ALL.len()],
    sink: Option<Arc<dyn AuditSink>>,
}

impl Audit {
    pub(crate) fn new(sink: Option<Arc<dyn AuditSink>>) -> Audit {
        Audit { sink, ..Audit::default() }
    }

    pub(crate) fn note(&self, event: &AuditEvent<'_>) {
        if let Some(count) = self.counts.get(event.kind as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(sink) = &self.sink {
            sink.note(event);
        }
    }

    pub(crate) fn count(&self, kind: AuditKind) -> u64 {
        self.counts.get(kind as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}
