//! Admission of connections: the rights that a certificate grants.

use super::{Service, Shared, service_of};
use crate::api::MgsPeer;
use crate::tcp::handshake::versions;
use nacre_env::fault::{self, Point};
use nacre_keys::ServerTls;
use nacre_types::{Identity, Roles, Status, TargetKind};
use nacre_wire::connect::{Connect, ConnectFlags, Refusal, VERSION_MAX, VERSION_MIN, agree_version};
use nacre_wire::frame::Header;
use nacre_wire::{Decode, Encode};
use std::sync::Arc;
use std::time::SystemTime;

/// Authentication of a new connection.
pub(super) enum Peer {
    /// None, on a server without authentication.
    Open,
    /// A connection without TLS to a server that requires it.
    Plain,
    /// TLS without a certificate.
    Unknown,
    /// Authenticated identity.
    Known(Arc<Identity>),
}

/// Authentication of an admitted connection.
pub(super) enum Proof {
    /// None, on a server without authentication.
    Open,
    /// None, on a server with authentication: the peer may only enrol a key.
    Unknown,
    /// Authenticated identity.
    Known(Arc<Identity>),
}

impl Proof {
    /// Returns the identity, if there is one.
    pub(super) fn identity(&self) -> Option<&Arc<Identity>> {
        match self {
            Proof::Known(identity) => Some(identity),
            Proof::Open | Proof::Unknown => None,
        }
    }

    /// Returns true if the peer may send a request that needs one of these roles; without roles, a connection
    /// without a key may.
    pub(super) fn allows(&self, needed: Roles) -> bool {
        match self {
            Proof::Open => true,
            Proof::Unknown => needed.is_empty(),
            Proof::Known(identity) => needed.is_empty() || identity.roles.intersects(needed),
        }
    }

    /// Returns the peer as the management server sees it.
    pub(super) fn peer(&self) -> MgsPeer<'_> {
        match self {
            Proof::Open => MgsPeer::Open,
            Proof::Unknown => MgsPeer::Unknown,
            Proof::Known(identity) => MgsPeer::Known(identity),
        }
    }
}

/// Reason of a refusal: the status for the peer, and the text for the log.
pub(super) struct Refused {
    pub(super) status: Status,
    pub(super) body: Vec<u8>,
    pub(super) reason: String,
}

fn refused(status: Status, reason: impl Into<String>) -> Refused {
    Refused { status, body: Vec::new(), reason: reason.into() }
}

/// Returns the seconds since 1970.
fn now_s() -> u64 {
    nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns why this key is not accepted any more, if so.
pub(super) fn lapsed(tls: &ServerTls, identity: &Identity) -> Option<Status> {
    if tls.revoked().has(identity.id) {
        return Some(Status::EKEYREVOKED);
    }
    (identity.until_s <= now_s()).then_some(Status::EKEYEXPIRED)
}

/// Decides whether a peer may connect to a target, and as a metadata server if it says it is one.
///
/// # Errors
/// The refusal, for the peer and for the log.
fn admit(
    tls: Option<&ServerTls>,
    peer: Peer,
    target: TargetKind,
    connect: &Connect,
) -> Result<Proof, Refused> {
    let identity = match peer {
        Peer::Open => return Ok(Proof::Open),
        // The handshake admits a peer without a key only where keys are enrolled.
        Peer::Unknown if target == TargetKind::Mgt => return Ok(Proof::Unknown),
        Peer::Plain => return Err(refused(Status::ENOKEY, "it has no key and speaks without TLS")),
        Peer::Unknown => return Err(refused(Status::ENOKEY, "it has no key")),
        Peer::Known(identity) => identity,
    };
    let id = identity.id;
    match tls.and_then(|tls| lapsed(tls, &identity)) {
        Some(Status::EKEYREVOKED) => {
            return Err(refused(Status::EKEYREVOKED, format!("key {id} was revoked")));
        }
        Some(status) => return Err(refused(status, format!("key {id} has expired"))),
        None => {}
    }
    let needed = match target {
        TargetKind::Mgt => Roles::all(),
        TargetKind::Mdt | TargetKind::Ost => Roles::CLIENT | Roles::MDS,
    };
    if !identity.roles.intersects(needed) {
        let reason = format!("key {id} with role {} has nothing to ask for here", identity.roles);
        return Err(refused(Status::EPERM, reason));
    }
    if connect.flags.contains(ConnectFlags::SERVER) && !identity.roles.contains(Roles::MDS) {
        let reason = format!("key {id} with role {} is not that of a metadata server", identity.roles);
        return Err(refused(Status::EPERM, reason));
    }
    Ok(Proof::Known(identity))
}

/// A first frame that was admitted.
pub(super) struct Admitted {
    pub(super) header: Header,
    pub(super) connect: Connect,
    pub(super) version: u16,
    pub(super) service: Service,
    pub(super) proof: Proof,
}

/// Decides whether a connect may be served, as far as possible without waiting.
///
/// # Errors
/// The refusal, for the peer and for the log.
pub(super) fn judge(shared: &Shared, header: &Header, body: &[u8], peer: Peer) -> Result<Admitted, Refused> {
    let connect = Connect::from_bytes(body).map_err(|error| refused(Status::EPROTO, error.to_string()))?;
    if fault::is_hit(Point::RpcConnect) {
        return Err(refused(Status::EAGAIN, "fault point"));
    }
    let Some(version) = agree_version(connect.version_min, connect.version_max) else {
        let body = Refusal { version_min: VERSION_MIN, version_max: VERSION_MAX }.to_bytes();
        let reason = format!(
            "it speaks protocol {}, this server {}",
            versions(connect.version_min, connect.version_max),
            versions(VERSION_MIN, VERSION_MAX)
        );
        return Err(Refused { body, ..refused(Status::BAD_VERSION, reason) });
    };
    let proof = admit(shared.config.tls.as_ref(), peer, header.target.kind, &connect)?;
    let fsname = &shared.config.fsname;
    if !fsname.is_empty() && !connect.fsname.is_empty() && *fsname != connect.fsname {
        let reason = format!("it wants file system '{}', this is '{fsname}'", connect.fsname);
        return Err(refused(Status::WRONG_FSNAME, reason));
    }
    let service = service_of(shared, header.target)
        .ok_or_else(|| refused(Status::ENODEV, format!("target {} is not served here", header.target)))?;
    Ok(Admitted { header: *header, connect, version, service, proof })
}
