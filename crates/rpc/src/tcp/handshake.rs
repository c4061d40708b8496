//! The client's half of the connection setup.

use super::net::Network;
use super::socket::{Closed, Inbox, LinkError, Socket, TICK};
use super::tls;
use crate::config::ClientConfig;
use nacre_env::clock::Instant;
use nacre_keys::ClientTls;
use nacre_session::Life;
use nacre_types::{ClientUuid, Failure, FailureResult, KeyId, Nid, Status, StatusResult, TargetId, Xid};
use nacre_wire::connect::{Connect, ConnectFlags, Connected, Features, Refusal, VERSION_MAX, VERSION_MIN};
use nacre_wire::frame::{FrameKind, HEADER_BYTES, Header};
use nacre_wire::{Decode, Encode};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::time::Duration;

/// Largest accepted answer to a connect, in bytes.
const ANSWER_MAX: u32 = 4096;

/// Parameters of a client's connect.
pub(crate) struct Asked<'a> {
    pub(crate) target: TargetId,
    pub(crate) nid: Nid,
    pub(crate) client: ClientUuid,
    pub(crate) fsname: &'a str,
    pub(crate) cpu: u32,
    pub(crate) instance: u64,
    pub(crate) control: bool,
    /// See [`ConnectFlags::WIDE`].
    pub(crate) wide: bool,
    /// See [`ConnectFlags::SERVER`].
    pub(crate) is_server: bool,
}

/// A connection after a successful connect.
pub(crate) struct Greeting {
    pub(crate) nid: Nid,
    pub(crate) connected: Connected,
    pub(crate) socket: Socket,
    pub(crate) inbox: Inbox,
    /// Authenticated key of the server.
    pub(crate) server_key: Option<KeyId>,
    /// The server is on this host.
    pub(crate) is_local: bool,
}

impl Greeting {
    /// Returns the client's life at the server.
    pub(crate) fn life(&self) -> Life {
        Life { instance: self.connected.instance, generation: self.connected.generation }
    }
}

/// Connects to one NID. `may_wait` is asked at intervals and ends the attempt with its error.
///
/// # Errors
/// The error of `may_wait`, the operating system's, `ETIMEDOUT`, or the status of the server's refusal.
pub(crate) fn connect(
    asked: &Asked<'_>,
    config: &ClientConfig,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> FailureResult<Greeting> {
    let Nid::Tcp(addr) = asked.nid else { return Err(Status::EINVAL.into()) };
    let timeout = config.connect_timeout;
    let stream = config.network.connect(addr, Instant::now() + timeout, may_wait).map_err(|status| {
        let late = status == Status::ETIMEDOUT;
        Failure::from(status).explain(|context| {
            if late {
                context.cause(format_args!("no connection within {} s", timeout.as_secs_f32()))
            } else {
                context
            }
        })
    })?;
    let tick = if asked.control { config.ping_interval.min(Duration::from_secs(1)) } else { TICK };
    let socket = Socket::new(stream, config.dead_after, tick).map_err(|error| Status::from_io(&error))?;
    let mut flags = ConnectFlags::empty();
    flags.set(ConnectFlags::CONTROL, asked.control);
    flags.set(ConnectFlags::WIDE, asked.wide);
    flags.set(ConnectFlags::SERVER, asked.is_server);
    let connect = Connect {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: Features::all().bits(),
        flags,
        client: asked.client,
        fsname: asked.fsname.to_owned(),
        process: nacre_env::own_process(),
        cpu: asked.cpu,
        instance: asked.instance,
    };
    let body = connect.to_bytes();
    let mut header = Header::new(FrameKind::Connect, asked.target, Xid(0));
    header.set_body(&body)?;
    let bytes: [u8; HEADER_BYTES] = header.to_bytes();
    let mut inbox = Inbox::new();
    let deadline = Instant::now() + config.handshake_timeout;
    let server_key = match &config.tls {
        Some(tls) => {
            Some(secure(asked, &socket, &mut inbox, Keys { tls, config, address: addr }, deadline, may_wait)?)
        }
        None => None,
    };
    socket.send_rest(&[&bytes, &body, &[]], 0).map_err(failure_of)?;
    let connected = answer(asked, &socket, &mut inbox, deadline, may_wait)?;
    let local = connected.boot_id == nacre_env::own_process().boot && connected.boot_id != [0; 16];
    if local && !asked.wide {
        socket.set_local();
    }
    Ok(Greeting { nid: asked.nid, connected, socket, inbox, server_key, is_local: local })
}

/// Keys and roles for the verification of a server.
struct Keys<'a> {
    tls: &'a ClientTls,
    config: &'a ClientConfig,
    address: SocketAddr,
}

/// Runs mutual authentication and returns the server's key. The server proves the role that its target needs,
/// and the target's key if that is known.
fn secure(
    asked: &Asked<'_>,
    socket: &Socket,
    inbox: &mut Inbox,
    keys: Keys<'_>,
    deadline: Instant,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> FailureResult<KeyId> {
    let Asked { target, nid, .. } = asked;
    let Keys { tls, config, address } = keys;
    let secured =
        tls::connect(socket, tls, config.encrypted_only, address, deadline, may_wait).map_err(|error| {
            let status = error.status();
            match status {
                Status::EKEYREJECTED | Status::EKEYEXPIRED | Status::ENOKEY => {
                    log::error!("{target} at {nid}: {error}");
                }
                _ => log::debug!("connect to {target} at {nid}: {error}"),
            }
            Failure::from(status).explain(|context| context.cause(&error))
        })?;
    let refused = |status: Status, why: String| {
        log::error!("{target} at {nid}: what answers there {why}");
        Err(status.into())
    };
    let needed = target.role();
    let Some(peer) = secured.peer.as_ref().filter(|peer| peer.roles.contains(needed)) else {
        return refused(Status::EKEYREJECTED, format!("has not the key of a server with role {needed}"));
    };
    if let Some(key) = config.server_key.filter(|key| peer.id != *key) {
        return refused(Status::EKEYREJECTED, format!("has not key {key}, which the target belongs to"));
    }
    let key = peer.id;
    if tls.revoked().has(key) {
        return refused(Status::EKEYREJECTED, format!("has key {key}, which was revoked"));
    }
    socket.seal_with(secured.sealer);
    inbox.open_with(secured.opener);
    Ok(key)
}

/// Pings a server at a NID, whatever targets it has, and returns the time that it took.
///
/// # Errors
/// `ECONNREFUSED` if no server listens there, `ETIMEDOUT` if no answer arrives within `limit`, `EPROTO` for
/// an answer in another protocol, or the operating system's error.
pub fn ping(nid: Nid, limit: Duration) -> StatusResult<Duration> {
    let Nid::Tcp(addr) = nid else { return Err(Status::EINVAL) };
    let start = Instant::now();
    Network::Host.connect(addr, start + limit, &|| Ok(()))?;
    let asked = Asked {
        target: TargetId::mgt(),
        nid,
        client: ClientUuid([0xff; 16]),
        fsname: "",
        cpu: u32::MAX,
        instance: 0,
        control: false,
        wide: false,
        is_server: false,
    };
    let no_answer = [Errno::TIMEDOUT, Errno::CONNREFUSED, Errno::CONNRESET, Errno::PROTO];
    let left = limit.saturating_sub(start.elapsed());
    let config = ClientConfig { connect_timeout: left, handshake_timeout: left, ..ClientConfig::default() };
    match connect(&asked, &config, &|| Ok(())) {
        Err(failure) if no_answer.iter().any(|errno| errno.raw_os_error() == failure.status().errno()) => {
            Err(failure.status())
        }
        // A refusal is an answer, too.
        _ => Ok(start.elapsed()),
    }
}

fn answer(
    asked: &Asked<'_>,
    socket: &Socket,
    inbox: &mut Inbox,
    deadline: Instant,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> FailureResult<Connected> {
    inbox.end_at(Some(deadline));
    let header = loop {
        match inbox.header(socket, true) {
            Ok(header) => break header,
            Err(LinkError::Closed(why)) => {
                log::debug!("connect to {} at {}: {why}", asked.target, asked.nid);
                return Err(failure_of(LinkError::Closed(why)));
            }
            Err(_) => may_wait()?,
        }
    };
    if header.kind != FrameKind::Connected || header.bulk_len != 0 || header.body_len > ANSWER_MAX {
        return Err(Status::EPROTO.into());
    }
    let mut body = Vec::new();
    inbox.body(socket, &header, &mut body).map_err(failure_of)?;
    inbox.end_at(None);
    match header.status {
        Status::OK => {}
        Status::BAD_VERSION => {
            let refusal = Refusal::from_bytes(&body).ok();
            return Err(other_version(asked, refusal.map(|of| (of.version_min, of.version_max))));
        }
        status => return Err(status.into()),
    }
    let connected = Connected::from_bytes(&body).map_err(|_| Status::EPROTO)?;
    if !(VERSION_MIN..=VERSION_MAX).contains(&connected.version) {
        return Err(other_version(asked, Some((connected.version, connected.version))));
    }
    Ok(connected)
}

/// Logs and returns that a server speaks none of the protocol versions of this program.
fn other_version(asked: &Asked<'_>, served: Option<(u16, u16)>) -> Failure {
    let Asked { target, nid, .. } = asked;
    let served = served.map_or_else(|| "others".to_owned(), |(min, max)| versions(min, max));
    let own = versions(VERSION_MIN, VERSION_MAX);
    let why = format!(
        "{target} at {nid} speaks protocol {served}, this program {own}: use the same release of NacreFS on both hosts"
    );
    log::error!("{why}");
    Failure::from(Status::BAD_VERSION).explain(|context| context.cause(&why))
}

/// Returns a range of protocol versions as text.
pub(crate) fn versions(min: u16, max: u16) -> String {
    if min == max { format!("version {min}") } else { format!("versions {min} to {max}") }
}

fn failure_of(error: LinkError) -> Failure {
    let (status, why) = match error {
        LinkError::Idle => return Status::ETIMEDOUT.into(),
        LinkError::Interrupted => return Status::EINTR.into(),
        LinkError::Closed(why) => (
            match &why {
                Closed::Io(error) => tls::status_of_io(error),
                Closed::End => Status::ECONNREFUSED,
                Closed::Frame(_) => Status::EPROTO,
            },
            why,
        ),
    };
    Failure::from(status).explain(|context| context.cause(why))
}

/// Returns a number that stands for a boot of a host; never 0.
pub(crate) fn durability_epoch(boot_id: &[u8; 16]) -> u64 {
    // Boot ids are random, so folding them keeps them distinct.
    let (low, high) = boot_id.split_at(8);
    let number = |half: &[u8]| half.iter().fold(0u64, |sum, &byte| (sum << 8) | u64::from(byte));
    (number(low) ^ number(high).rotate_left(1)).max(1)
}
