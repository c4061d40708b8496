//! The handshake of TLS on a connected socket, for both sides, within a deadline.

use super::records::{self, Opener, Sealer, Session};
use super::socket::Socket;
use nacre_keys::{ClientTls, ServerTls};
use nacre_types::{Identity, Status, StatusResult};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// First byte of a connection with TLS: a record of the handshake protocol. Frames begin with another one.
pub(super) const FIRST_BYTE: u8 = 22;
/// Most bytes that a peer may send before it is known.
const RECEIVED_MAX: usize = 64 << 10;
/// Bytes of a record's header.
const HEADER: usize = 5;

/// What a handshake brought.
pub(super) struct Secured {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// Who the peer has proved to be; `None`: it has no certificate.
    pub(super) peer: Option<Arc<Identity>>,
}

/// Why there was none.
#[derive(Debug)]
pub(super) enum Unsecured {
    /// The caller does not want to wait any longer.
    GivenUp(Status),
    /// The connection has ended.
    Io(io::Error),
    /// One side does not accept the other.
    Tls(rustls::Error),
    /// The certificate names no identity.
    Identity(nacre_keys::KeyError),
}

impl std::fmt::Display for Unsecured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unsecured::GivenUp(status) => status.fmt(f),
            Unsecured::Io(error) if error.kind() == ErrorKind::TimedOut => {
                f.write_str("it did not prove in time who it is")
            }
            Unsecured::Io(error) => error.fmt(f),
            Unsecured::Tls(error) => f.write_str(&reason(error)),
            Unsecured::Identity(error) => error.fmt(f),
        }
    }
}

impl Unsecured {
    /// What the caller of a request is told.
    pub(super) fn status(&self) -> Status {
        match self {
            Unsecured::GivenUp(status) => *status,
            Unsecured::Io(error) => status_of_io(error),
            Unsecured::Tls(error) => status_of(error),
            Unsecured::Identity(_) => Status::EKEYREJECTED,
        }
    }
}

/// The status of an error of a secured connection.
pub(super) fn status_of_io(error: &io::Error) -> Status {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(error) => status_of(error),
        None if error.kind() == ErrorKind::TimedOut => Status::ETIMEDOUT,
        None => Status::from_io(error),
    }
}

fn status_of(error: &rustls::Error) -> Status {
    use rustls::Error as E;
    match error {
        E::AlertReceived(AlertDescription::CertificateExpired)
        | E::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            Status::EKEYEXPIRED
        }
        E::AlertReceived(AlertDescription::CertificateRequired) | E::NoCertificatesPresented => {
            Status::ENOKEY
        }
        E::AlertReceived(
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied,
        )
        | E::InvalidCertificate(_) => Status::EKEYREJECTED,
        // Damage on the way, say: another attempt may do better.
        _ => Status::EPROTO,
    }
}

/// In words: what each side may say of the other.
fn reason(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let text = match error {
        E::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired"
        }
        E::InvalidCertificate(
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. },
        ) => "its certificate is not valid yet: compare the clocks of both hosts",
        E::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate is of another authority"
        }
        E::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is of another file system",
        E::InvalidCertificate(
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. },
        ) => "its certificate is not for this purpose",
        E::NoCertificatesPresented => "it has no certificate",
        error => return error.to_string(),
    };
    text.to_owned()
}

/// What both kinds of connections do.
trait Handshake {
    type Data;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn is_under_way(&self) -> bool;
}

impl Handshake for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_under_way(&self) -> bool {
        self.is_handshaking()
    }
}

impl Handshake for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn is_under_way(&self) -> bool {
        self.is_handshaking()
    }
}

/// What is to be done next.
enum Next {
    Continue,
    Send,
    Receive,
    Finished,
}

/// Bytes that come and go during a handshake.
struct Wire<'a> {
    socket: &'a Socket,
    deadline: Instant,
    may_wait: &'a dyn Fn() -> StatusResult<()>,
    received: Vec<u8>,
    received_in_all: usize,
    /// Records that rustls sees: not more than it needs, so that what follows the handshake stays sealed.
    shown: usize,
    to_send: Vec<u8>,
}

impl Wire<'_> {
    /// Goes on until both sides are known.
    fn run<H: Handshake>(&mut self, connection: &mut H) -> Result<(), Unsecured> {
        loop {
            let (discarded, next) = {
                let UnbufferedStatus { discard, state, .. } =
                    connection.step(self.received.get_mut(..self.shown).unwrap_or_default());
                (discard, next_of(state, &mut self.to_send))
            };
            self.received.drain(..discarded);
            self.shown -= discarded;
            let next = match next {
                Ok(next) => next,
                Err(error) => {
                    // The peer is told why.
                    self.say_why(connection);
                    return Err(Unsecured::Tls(error));
                }
            };
            match next {
                Next::Continue => {}
                Next::Send => self.send()?,
                Next::Finished if !connection.is_under_way() => return Ok(()),
                Next::Receive | Next::Finished => self.show_more()?,
            }
        }
    }

    /// Sends the alert that an error has left.
    fn say_why<H: Handshake>(&mut self, connection: &mut H) {
        let UnbufferedStatus { state, .. } = connection.step(&mut []);
        if let Ok(Next::Continue) = next_of(state, &mut self.to_send) {
            let _ = self.send();
        }
    }

    fn send(&mut self) -> Result<(), Unsecured> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        if self.socket.send_within(&[&self.to_send], left) {
            self.to_send.clear();
            return Ok(());
        }
        Err(Unsecured::Io(ErrorKind::TimedOut.into()))
    }

    /// Lets rustls see one record more, which is received if it is not there.
    fn show_more(&mut self) -> Result<(), Unsecured> {
        loop {
            let rest = self.received.get(self.shown..).unwrap_or_default();
            if let Some(&[_, _, _, high, low]) = rest.first_chunk::<HEADER>() {
                let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
                if rest.len() >= len {
                    self.shown += len;
                    return Ok(());
                }
            }
            self.receive()?;
        }
    }

    fn receive(&mut self) -> Result<(), Unsecured> {
        let mut piece = [0; 4096];
        let got = match self.socket.receive_by(Some(self.deadline), &mut piece, 0) {
            Ok(0) => {
                return Err(Unsecured::Io(io::Error::new(ErrorKind::UnexpectedEof, "closed by the peer")));
            }
            Ok(got) => got,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return (self.may_wait)().map_err(Unsecured::GivenUp);
            }
            Err(error) => return Err(Unsecured::Io(error)),
        };
        self.received_in_all += got;
        if self.received_in_all > RECEIVED_MAX {
            let error = io::Error::new(ErrorKind::InvalidData, "it says too much before it says who it is");
            return Err(Unsecured::Io(error));
        }
        self.received.extend_from_slice(piece.get(..got).unwrap_or_default());
        Ok(())
    }
}

/// Takes what is to be sent out of a state.
fn next_of<D>(
    state: Result<ConnectionState<'_, '_, D>, rustls::Error>,
    out: &mut Vec<u8>,
) -> Result<Next, rustls::Error> {
    match state? {
        ConnectionState::EncodeTlsData(mut data) => {
            let start = out.len();
            let mut size = 1024;
            let used = loop {
                out.resize(start + size, 0);
                match data.encode(out.get_mut(start..).unwrap_or_default()) {
                    Ok(used) => break used,
                    Err(EncodeError::InsufficientSize(error)) => size = error.required_size,
                    Err(EncodeError::AlreadyEncoded) => break 0,
                }
            };
            out.truncate(start + used);
            Ok(Next::Continue)
        }
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Next::Send)
        }
        ConnectionState::BlockedHandshake => Ok(Next::Receive),
        ConnectionState::WriteTraffic(_) => Ok(Next::Finished),
        _ => Err(rustls::Error::General("the handshake ends with something else".to_owned())),
    }
}

fn wire<'a>(socket: &'a Socket, deadline: Instant, may_wait: &'a dyn Fn() -> StatusResult<()>) -> Wire<'a> {
    let (received, to_send) = (Vec::new(), Vec::new());
    Wire { socket, deadline, may_wait, received, received_in_all: 0, shown: 0, to_send }
}

/// The client's side.
///
/// # Errors
/// `may_wait`'s, and why the sides do not accept each other.
pub(super) fn connect(
    socket: &Socket,
    tls: &ClientTls,
    address: SocketAddr,
    deadline: Instant,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> Result<Secured, Unsecured> {
    let name = ServerName::try_from(ClientTls::session_name(address));
    let name = name.map_err(|error| Unsecured::Io(io::Error::new(ErrorKind::InvalidInput, error)))?;
    let mut connection = UnbufferedClientConnection::new(tls.config(), name).map_err(Unsecured::Tls)?;
    let mut wire = wire(socket, deadline, may_wait);
    wire.run(&mut connection)?;
    let peer = peer_of(connection.peer_certificates())?;
    let (secrets, session) = connection.dangerous_into_kernel_connection().map_err(Unsecured::Tls)?;
    finish(Session::Client(session), secrets, &wire, peer)
}

/// The server's side.
///
/// # Errors
/// As [`connect`].
pub(super) fn accept(
    socket: &Socket,
    tls: &ServerTls,
    deadline: Instant,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> Result<Secured, Unsecured> {
    let mut connection = UnbufferedServerConnection::new(tls.config()).map_err(Unsecured::Tls)?;
    let mut wire = wire(socket, deadline, may_wait);
    wire.run(&mut connection)?;
    let peer = peer_of(connection.peer_certificates())?;
    let (secrets, session) = connection.dangerous_into_kernel_connection().map_err(Unsecured::Tls)?;
    finish(Session::Server(session), secrets, &wire, peer)
}

fn peer_of(chain: Option<&[CertificateDer<'_>]>) -> Result<Option<Arc<Identity>>, Unsecured> {
    nacre_keys::peer_identity(chain).map_err(Unsecured::Identity)
}

fn finish(
    session: Session,
    secrets: rustls::ExtractedSecrets,
    wire: &Wire<'_>,
    peer: Option<Arc<Identity>>,
) -> Result<Secured, Unsecured> {
    let (sealer, mut opener) = records::split(session, secrets).map_err(Unsecured::Io)?;
    opener.preset(&wire.received);
    Ok(Secured { sealer, opener, peer })
}
