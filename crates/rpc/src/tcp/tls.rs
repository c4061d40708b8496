//! The TLS handshake: for a client as one call, for a server step by step as bytes arrive.

use super::records::{self, Opener, Sealer, Session};
use super::socket::Socket;
use nacre_env::clock::Instant;
use nacre_keys::{ClientTls, ServerTls};
use nacre_types::Security;
use nacre_types::{Identity, Status, StatusResult};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CertificateError, CommonState, ExtractedSecrets};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// First byte of a connection with TLS: a record of the handshake protocol. Frames begin with another one.
pub(super) const FIRST_BYTE: u8 = 22;
/// Bytes that a peer may send before it is authenticated, at most.
const RECEIVED_MAX: usize = 16 << 10;
/// Bytes of a record's header.
const HEADER: usize = 5;

/// Result of a handshake.
pub(super) struct Secured {
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
    /// Authenticated identity of the peer; `None`: it has no certificate.
    pub(super) peer: Option<Arc<Identity>>,
}

/// Why a handshake failed.
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
                f.write_str("it did not prove its identity in time")
            }
            Unsecured::Io(error) => error.fmt(f),
            Unsecured::Tls(error) => f.write_str(&reason(error)),
            Unsecured::Identity(error) => error.fmt(f),
        }
    }
}

impl Unsecured {
    /// Returns the status for the caller of a request.
    pub(super) fn status(&self) -> Status {
        match self {
            Unsecured::GivenUp(status) => *status,
            Unsecured::Io(error) => status_of_io(error),
            Unsecured::Tls(error) => status_of(error),
            Unsecured::Identity(_) => Status::EKEYREJECTED,
        }
    }
}

/// Returns the status of an error of a secured connection.
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
            | AlertDescription::AccessDenied
            | AlertDescription::NoApplicationProtocol,
        )
        | E::NoApplicationProtocol
        | E::InvalidCertificate(_) => Status::EKEYREJECTED,
        // For example damage in transit: another attempt may succeed.
        _ => Status::EPROTO,
    }
}

/// Returns the reason in words: what each side may say of the other.
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
        E::NoApplicationProtocol | E::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "one side wants encryption, and the other authenticates only"
        }
        error => return error.to_string(),
    };
    text.to_owned()
}

/// Operations of both kinds of rustls connections.
pub(super) trait Side: Sized {
    type Data;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn state(&self) -> &CommonState;

    /// Returns the secrets of a finished handshake.
    fn finish(self) -> Result<(ExtractedSecrets, Session), rustls::Error>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn state(&self) -> &CommonState {
        self
    }

    fn finish(self) -> Result<(ExtractedSecrets, Session), rustls::Error> {
        self.dangerous_into_kernel_connection().map(|(secrets, session)| (secrets, Session::Client(session)))
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn state(&self) -> &CommonState {
        self
    }

    fn finish(self) -> Result<(ExtractedSecrets, Session), rustls::Error> {
        self.dangerous_into_kernel_connection().map(|(secrets, session)| (secrets, Session::Server(session)))
    }
}

/// Next step of a handshake.
enum Next {
    Continue,
    Receive,
    Finished,
}

/// A handshake in progress, without I/O: its owner carries the bytes in both directions.
pub(super) struct Handshake<S> {
    side: S,
    received: Vec<u8>,
    received_in_all: usize,
    /// Bytes shown to rustls: no more records than it needs, so that what follows the handshake stays sealed.
    shown: usize,
    /// Bytes to send before the next wait; also after an error, to report the reason to the peer.
    pub(super) to_send: Vec<u8>,
}

impl Handshake<UnbufferedServerConnection> {
    /// Creates the server's side.
    ///
    /// # Errors
    /// `Tls`.
    pub(super) fn of_server(tls: &ServerTls, protection: Security) -> Result<Self, Unsecured> {
        UnbufferedServerConnection::new(tls.config(protection)).map(Handshake::new).map_err(Unsecured::Tls)
    }
}

impl Handshake<UnbufferedClientConnection> {
    /// Creates the client's side.
    ///
    /// # Errors
    /// `Tls`.
    pub(super) fn of_client(
        tls: &ClientTls,
        encrypted_only: bool,
        address: SocketAddr,
    ) -> Result<Self, Unsecured> {
        let name = ServerName::try_from(ClientTls::session_name(address));
        let name = name.map_err(|error| Unsecured::Io(io::Error::new(ErrorKind::InvalidInput, error)))?;
        let connection = UnbufferedClientConnection::new(tls.config(encrypted_only), name);
        connection.map(Handshake::new).map_err(Unsecured::Tls)
    }
}

impl<S: Side> Handshake<S> {
    fn new(side: S) -> Handshake<S> {
        Handshake { side, received: Vec::new(), received_in_all: 0, shown: 0, to_send: Vec::new() }
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// If there are more than a peer may send before it is authenticated.
    pub(super) fn take_in(&mut self, bytes: &[u8]) -> Result<(), Unsecured> {
        self.received_in_all += bytes.len();
        if self.received_in_all > RECEIVED_MAX {
            let error =
                io::Error::new(ErrorKind::InvalidData, "it sends too much before it identifies itself");
            return Err(Unsecured::Io(error));
        }
        self.received.extend_from_slice(bytes);
        Ok(())
    }

    /// Continues as far as the received bytes allow; returns true if both sides are authenticated.
    ///
    /// # Errors
    /// `Tls`.
    pub(super) fn advance(&mut self) -> Result<bool, Unsecured> {
        loop {
            let (discarded, next) = {
                let UnbufferedStatus { discard, state, .. } =
                    self.side.step(self.received.get_mut(..self.shown).unwrap_or_default());
                (discard, next_of(state, &mut self.to_send))
            };
            self.received.drain(..discarded);
            self.shown -= discarded;
            match next {
                Ok(Next::Continue) => {}
                Ok(Next::Finished) if !self.side.state().is_handshaking() => return Ok(true),
                Ok(Next::Receive | Next::Finished) if self.show_more() => {}
                Ok(Next::Receive | Next::Finished) => return Ok(false),
                Err(error) => {
                    // The alert for the peer follows the bytes that were to be sent before. rustls remembers
                    // its position in the bytes, and reads on where nothing is left to send: no second alert.
                    let bytes = self.received.get_mut(..self.shown).unwrap_or_default();
                    while self.side.state().wants_write()
                        && let UnbufferedStatus {
                            state: state @ Ok(ConnectionState::EncodeTlsData(_)), ..
                        } = self.side.step(bytes)
                    {
                        let _ = next_of(state, &mut self.to_send);
                    }
                    return Err(Unsecured::Tls(error));
                }
            }
        }
    }

    /// Shows rustls one more record, if it has arrived.
    fn show_more(&mut self) -> bool {
        let rest = self.received.get(self.shown..).unwrap_or_default();
        let Some(&[_, _, _, high, low]) = rest.first_chunk::<HEADER>() else { return false };
        let len = HEADER + usize::from(u16::from_be_bytes([high, low]));
        if rest.len() < len {
            return false;
        }
        self.shown += len;
        true
    }

    /// Returns both directions of the connection after a finished handshake.
    ///
    /// # Errors
    /// `Tls`, or `Identity`, which the verification of the certificate rules out.
    pub(super) fn secured(self) -> Result<Secured, Unsecured> {
        let peer =
            nacre_keys::peer_identity(self.side.state().peer_certificates()).map_err(Unsecured::Identity)?;
        let agreed = self.side.state().alpn_protocol().and_then(nacre_keys::security_of_protocol);
        let protection = agreed.ok_or(Unsecured::Tls(rustls::Error::NoApplicationProtocol))?;
        let (secrets, session) = self.side.finish().map_err(Unsecured::Tls)?;
        let (sealer, mut opener) = records::split(session, &secrets, protection).map_err(Unsecured::Io)?;
        opener.preset(&self.received);
        Ok(Secured { sealer, opener, peer })
    }
}

/// Moves the bytes to send out of a state.
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
            Ok(Next::Continue)
        }
        ConnectionState::BlockedHandshake => Ok(Next::Receive),
        ConnectionState::WriteTraffic(_) => Ok(Next::Finished),
        _ => Err(rustls::Error::General("the handshake ends with something else".to_owned())),
    }
}

/// Runs the client's side of the handshake to its end.
///
/// # Errors
/// The error of `may_wait`, and why the sides do not accept each other.
pub(super) fn connect(
    socket: &Socket,
    tls: &ClientTls,
    encrypted_only: bool,
    address: SocketAddr,
    deadline: Instant,
    may_wait: &dyn Fn() -> StatusResult<()>,
) -> Result<Secured, Unsecured> {
    let mut handshake = Handshake::of_client(tls, encrypted_only, address)?;
    loop {
        let is_finished = handshake.advance();
        if !handshake.to_send.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let is_sent = socket.send_within(&[&handshake.to_send], left);
            handshake.to_send.clear();
            if !is_sent && is_finished.is_ok() {
                return Err(Unsecured::Io(ErrorKind::TimedOut.into()));
            }
        }
        if is_finished? {
            return handshake.secured();
        }
        let mut piece = [0; 4096];
        match socket.receive_by(Some(deadline), &mut piece, true) {
            Ok(0) => {
                return Err(Unsecured::Io(io::Error::new(ErrorKind::UnexpectedEof, "closed by the peer")));
            }
            Ok(got) => handshake.take_in(piece.get(..got).unwrap_or_default())?,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                may_wait().map_err(Unsecured::GivenUp)?;
            }
            Err(error) => return Err(Unsecured::Io(error)),
        }
    }
}
