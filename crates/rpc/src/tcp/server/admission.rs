//! Who may connect: the handshake of TLS, and what a certificate allows.

use super::connection::Connection;
use crate::api::MgsPeer;
use crate::tcp::socket::Inbox;
use crate::tcp::tls::{self, FIRST_BYTE};
use nacre_keys::ServerTls;
use nacre_types::{Identity, Roles, Status, TargetKind};
use nacre_wire::connect::{Connect, ConnectFlags};
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// What a new connection has proved.
pub(super) enum Peer {
    /// Nothing, and nothing is asked for: the server is open.
    Open,
    /// It speaks without TLS to a server that does not.
    Plain,
    /// It has no certificate.
    Unknown,
    /// Who it is.
    Known(Arc<Identity>),
}

/// What the peer of a connection that was let in has proved.
pub(super) enum Proof {
    /// Nothing, and nothing is asked for.
    Open,
    /// Nothing: it may enrol a key and do no more.
    Unknown,
    /// Its identity.
    Known(Arc<Identity>),
}

impl Proof {
    /// The identity, if there is one.
    pub(super) fn identity(&self) -> Option<&Arc<Identity>> {
        match self {
            Proof::Known(identity) => Some(identity),
            Proof::Open | Proof::Unknown => None,
        }
    }

    /// True if a request may be sent that needs one of these roles; none: a connection without a key will do.
    pub(super) fn allows(&self, needed: Roles) -> bool {
        match self {
            Proof::Open => true,
            Proof::Unknown => needed.is_empty(),
            Proof::Known(identity) => needed.is_empty() || identity.roles.intersects(needed),
        }
    }

    /// What the management server is told of the peer.
    pub(super) fn peer(&self) -> MgsPeer<'_> {
        match self {
            Proof::Open => MgsPeer::Open,
            Proof::Unknown => MgsPeer::Unknown,
            Proof::Known(identity) => MgsPeer::Known(identity),
        }
    }
}

/// Why a connection is refused: what the peer is told, and the log.
pub(super) struct Refused {
    pub(super) status: Status,
    pub(super) reason: String,
}

fn refused(status: Status, reason: impl Into<String>) -> Refused {
    Refused { status, reason: reason.into() }
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Why this key is not accepted any more, if so.
pub(super) fn lapsed(tls: &ServerTls, identity: &Identity) -> Option<Status> {
    if tls.revoked().has(identity.id) {
        return Some(Status::EKEYREVOKED);
    }
    (identity.until_s <= now_s()).then_some(Status::EKEYEXPIRED)
}

/// What an identity may connect to, and as what.
///
/// # Errors
/// The refusal, for the peer and for the log.
pub(super) fn admit(
    tls: Option<&ServerTls>,
    peer: Peer,
    target: TargetKind,
    connect: &Connect,
) -> Result<Proof, Refused> {
    let identity = match peer {
        Peer::Open => return Ok(Proof::Open),
        // The handshake lets nobody through without a key but where keys are enrolled.
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

impl Connection {
    /// The handshake of TLS, where this server asks for it.
    ///
    /// # Errors
    /// Why there is none, for the log.
    pub(super) fn secure(&self, inbox: &mut Inbox, deadline: Instant) -> Result<Peer, String> {
        let Some(tls) = &self.shared.config.tls else { return Ok(Peer::Open) };
        let stopping = || if self.shared.is_stopping() { Err(Status::ESHUTDOWN) } else { Ok(()) };
        let first = loop {
            match self.socket.first_byte(deadline) {
                Ok(byte) => break byte,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    stopping().map_err(|status| status.to_string())?;
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    return Err("it did not say in time what it is".to_owned());
                }
                Err(error) => return Err(error.to_string()),
            }
        };
        if first != FIRST_BYTE {
            return Ok(Peer::Plain);
        }
        let secured =
            tls::accept(&self.socket, tls, deadline, &stopping).map_err(|error| error.to_string())?;
        self.socket.seal_with(secured.sealer);
        inbox.open_with(secured.opener);
        Ok(secured.peer.map_or(Peer::Unknown, Peer::Known))
    }
}
