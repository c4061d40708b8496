//! What happened to peers, for an audit: counted here, written down by others.

use nacre_types::{ClientUuid, Identity, TargetId};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What can happen to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AuditKind {
    /// A client that was not known before is served, or a connection to the management server.
    Connected,
    /// It is not.
    Refused,
    /// A connection was closed because its key was revoked or has expired.
    KeyLost,
    /// A client loses its handles and locks.
    Evicted,
    /// It has changed keys, nodemaps, pools or parameters.
    Changed,
}

impl AuditKind {
    /// All of them.
    pub const ALL: [AuditKind; 5] = [
        AuditKind::Connected,
        AuditKind::Refused,
        AuditKind::KeyLost,
        AuditKind::Evicted,
        AuditKind::Changed,
    ];

    /// Its name in logs.
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

/// An event. Nothing in it is a secret.
#[derive(Clone, Copy, Debug)]
pub struct AuditEvent<'a> {
    /// What happened.
    pub kind: AuditKind,
    /// Where the peer is; `None` for the owner of the file system on this host.
    pub peer: Option<SocketAddr>,
    /// Identity of its certificate; `None` without one.
    pub identity: Option<&'a Identity>,
    /// What it asked for, as far as that is known.
    pub target: Option<TargetId>,
    /// As which client.
    pub client: Option<ClientUuid>,
    /// Why; empty where that is clear. It may contain what the peer has said.
    pub reason: &'a str,
}

impl<'a> AuditEvent<'a> {
    /// Of a peer of which nothing else is known.
    pub const fn new(kind: AuditKind, peer: SocketAddr) -> AuditEvent<'a> {
        AuditEvent { peer: Some(peer), ..AuditEvent::local(kind) }
    }

    /// Of the process itself, for its owner.
    pub const fn local(kind: AuditKind) -> AuditEvent<'a> {
        AuditEvent { kind, peer: None, identity: None, target: None, client: None, reason: "" }
    }
}

/// Writes events down. It must not wait for peers, and bounds what it writes.
pub trait AuditSink: Send + Sync + Debug {
    /// An event has happened.
    fn note(&self, event: &AuditEvent<'_>);
}

/// Counts events and passes them on.
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
