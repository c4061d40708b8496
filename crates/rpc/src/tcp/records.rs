//! Records of TLS 1.3 on a connection whose handshake has ended: one object seals what is sent, another opens what comes.
//!
//! The ciphers and the secrets are those of rustls; both directions are apart, so that a thread that sends and one that receives
//! share nothing. What is here: cutting into records, sequence numbers, and new secrets before a cipher's limit.

use parking_lot::Mutex;
use rustls::client::ClientConnectionData;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
    Tls13AeadAlgorithm,
};
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, ContentType, Error, ProtocolVersion, SupportedCipherSuite};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Bytes before the content of a record.
const HEADER: usize = 5;
/// Most plain bytes in a record.
const PLAIN_MAX: usize = 16 << 10;
/// Most bytes of a sealed record after its header.
const SEALED_MAX: usize = PLAIN_MAX + 256;
/// Most bytes that are sealed before they are sent: what a send buffer takes, and a cache holds.
const SEAL_AHEAD: usize = 64 << 10;
/// Smallest buffer that receives: every record fits.
const RECEIVE_MIN: usize = HEADER + SEALED_MAX;
/// Buffer for data that comes in many records.
const RECEIVE_LARGE: usize = 128 << 10;
/// Records under one secret, far below the limit of every cipher.
const RECORDS_MAX: u64 = 1 << 22;
/// Messages of the handshake protocol that come after the handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

fn failed(error: Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

fn damaged(text: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// What rustls goes on to do for a connection: new secrets, and tickets for later sessions.
pub(super) enum Session {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Session {
    fn suite(&self) -> SupportedCipherSuite {
        match self {
            Session::Client(session) => session.negotiated_cipher_suite(),
            Session::Server(session) => session.negotiated_cipher_suite(),
        }
    }

    fn update_sent(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Session::Client(session) => session.update_tx_secret(),
            Session::Server(session) => session.update_tx_secret(),
        }
    }

    fn update_received(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Session::Client(session) => session.update_rx_secret(),
            Session::Server(session) => session.update_rx_secret(),
        }
    }

    fn ticket(&mut self, payload: &[u8]) -> Result<(), Error> {
        match self {
            Session::Client(session) => session.handle_new_session_ticket(payload),
            Session::Server(_) => Err(Error::General("a client sends no tickets".to_owned())),
        }
    }
}

type Shared = Arc<Mutex<Session>>;

fn algorithm(suite: SupportedCipherSuite) -> io::Result<&'static dyn Tls13AeadAlgorithm> {
    suite.tls13().map(|suite| suite.aead_alg).ok_or_else(|| damaged("the cipher is not one of TLS 1.3"))
}

/// Both directions of a connection, from the secrets of its handshake.
pub(super) fn split(session: Session, secrets: rustls::ExtractedSecrets) -> io::Result<(Sealer, Opener)> {
    let algorithm = algorithm(session.suite())?;
    let session: Shared = Arc::new(Mutex::new(session));
    let (sent, secret) = secrets.tx;
    let cipher = encrypter(algorithm, secret)?;
    let sealer =
        Sealer { session: session.clone(), algorithm, cipher, sequence: sent, waiting: Waiting::default() };
    let (received, secret) = secrets.rx;
    let cipher = decrypter(algorithm, secret)?;
    let opener = Opener {
        session,
        algorithm,
        cipher,
        sequence: received,
        buffer: Vec::new(),
        plain: (0, 0),
        next: 0,
        end: 0,
    };
    Ok((sealer, opener))
}

/// Keys of a secret, by a macro because each variant has the same two fields.
macro_rules! keyed {
    ($secret:expr, $make:expr) => {
        match $secret {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => Ok($make(key, iv)),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => Ok($make(key, iv)),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok($make(key, iv)),
            _ => Err(damaged("the cipher is not known")),
        }
    };
}

fn encrypter(
    algorithm: &dyn Tls13AeadAlgorithm,
    secret: ConnectionTrafficSecrets,
) -> io::Result<Box<dyn MessageEncrypter>> {
    keyed!(secret, |key, iv| algorithm.encrypter(key, iv))
}

fn decrypter(
    algorithm: &dyn Tls13AeadAlgorithm,
    secret: ConnectionTrafficSecrets,
) -> io::Result<Box<dyn MessageDecrypter>> {
    keyed!(secret, |key, iv| algorithm.decrypter(key, iv))
}

/// Sealed records that are not sent yet, or in part.
#[derive(Default)]
struct Waiting {
    records: Vec<Vec<u8>>,
    /// Bytes of the first one that are out.
    sent: usize,
    /// Plain bytes that are in them.
    plain: usize,
}

/// Seals what is sent. One thread at a time uses it.
pub(super) struct Sealer {
    session: Shared,
    algorithm: &'static dyn Tls13AeadAlgorithm,
    cipher: Box<dyn MessageEncrypter>,
    sequence: u64,
    waiting: Waiting,
}

impl Sealer {
    /// True if something was sealed that is not sent: it has to be before anything else.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.records.is_empty()
    }

    /// Seals what follows the first `skip` bytes of `parts`, as much as is sent in one go.
    pub(super) fn seal(&mut self, parts: &[&[u8]], skip: usize) -> io::Result<()> {
        assert!(!self.has_waiting(), "records leave in the order of their numbers");
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let chunks = OutboundChunks::new(parts);
        let (_, mut rest) = chunks.split_at(skip);
        self.waiting.plain = (total - skip).min(SEAL_AHEAD);
        let mut left = self.waiting.plain;
        while left > 0 {
            if self.sequence >= RECORDS_MAX {
                self.renew()?;
            }
            let len = left.min(PLAIN_MAX);
            let (this, later) = rest.split_at(len);
            self.push(ContentType::ApplicationData, this)?;
            rest = later;
            left -= len;
        }
        Ok(())
    }

    fn push(&mut self, typ: ContentType, payload: OutboundChunks<'_>) -> io::Result<()> {
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let sealed = self.cipher.encrypt(message, self.sequence).map_err(failed)?;
        self.sequence += 1;
        self.waiting.records.push(sealed.encode());
        Ok(())
    }

    /// Tells the peer that a new secret follows, and takes it.
    fn renew(&mut self) -> io::Result<()> {
        self.push(ContentType::Handshake, OutboundChunks::Single(&[KEY_UPDATE, 0, 0, 1, 0]))?;
        let (sequence, secret) = self.session.lock().update_sent().map_err(failed)?;
        self.cipher = encrypter(self.algorithm, secret)?;
        self.sequence = sequence;
        Ok(())
    }

    /// What is to be sent next.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.waiting.sent;
        self.waiting
            .records
            .iter()
            .map(move |record| record.get(std::mem::take(&mut skip)..).unwrap_or_default())
    }

    /// So many bytes of it were sent. The number of plain bytes that are out with the last of them; 0 before.
    pub(super) fn note_sent(&mut self, bytes: usize) -> usize {
        let waiting = &mut self.waiting;
        waiting.sent += bytes;
        let mut done = 0;
        for record in &waiting.records {
            if waiting.sent < record.len() {
                break;
            }
            waiting.sent -= record.len();
            done += 1;
        }
        waiting.records.drain(..done);
        if waiting.records.is_empty() { std::mem::take(&mut waiting.plain) } else { 0 }
    }
}

/// Opens what comes. One thread at a time uses it.
pub(super) struct Opener {
    session: Shared,
    algorithm: &'static dyn Tls13AeadAlgorithm,
    cipher: Box<dyn MessageDecrypter>,
    sequence: u64,
    buffer: Vec<u8>,
    /// Plain bytes of the last record that nobody has taken.
    plain: (usize, usize),
    /// Sealed bytes begin here.
    next: usize,
    /// And end here.
    end: usize,
}

impl Opener {
    /// Bytes that came behind the handshake.
    pub(super) fn preset(&mut self, bytes: &[u8]) {
        assert_eq!(self.end, 0, "nothing was received yet");
        self.buffer = vec![0; RECEIVE_MIN.max(bytes.len())];
        let (head, _) = self.buffer.split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.end = bytes.len();
    }

    /// Plain bytes into `target`: as many as are there. 0: a whole record has to be received first.
    pub(super) fn take(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < target.len() {
            let (start, end) = self.plain;
            if start == end {
                if !self.open_next()? {
                    break;
                }
                continue;
            }
            let count = (end - start).min(target.len() - taken);
            let (from, to) = (self.buffer.get(start..start + count), target.get_mut(taken..taken + count));
            if let (Some(from), Some(to)) = (from, to) {
                to.copy_from_slice(from);
            }
            self.plain.0 += count;
            taken += count;
        }
        Ok(taken)
    }

    /// Room for what is received next; `wanted` plain bytes are still to come.
    pub(super) fn room(&mut self, wanted: usize) -> &mut [u8] {
        debug_assert_eq!(self.plain.0, self.plain.1, "plain bytes are taken first");
        let size = if wanted > PLAIN_MAX { RECEIVE_LARGE } else { RECEIVE_MIN };
        if self.next > 0 {
            self.buffer.copy_within(self.next..self.end, 0);
            self.end -= self.next;
            self.next = 0;
            self.plain = (0, 0);
        }
        if self.buffer.len() < size {
            self.buffer.resize(size, 0);
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were received.
    pub(super) fn note_received(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.buffer.len());
    }

    /// Gives back the memory of large data, if there is nothing in it.
    pub(super) fn rest(&mut self) {
        if self.next == self.end && self.plain.0 == self.plain.1 {
            (self.next, self.end, self.plain) = (0, 0, (0, 0));
            self.buffer = Vec::new();
        }
    }

    /// Opens the next record; false if it is not there as a whole.
    fn open_next(&mut self) -> io::Result<bool> {
        let sealed = self.buffer.get(self.next..self.end).unwrap_or_default();
        let Some(&[typ, _, _, high, low]) = sealed.first_chunk::<HEADER>() else { return Ok(false) };
        let len = usize::from(u16::from_be_bytes([high, low]));
        if len > SEALED_MAX {
            return Err(damaged("a record is too long"));
        }
        if sealed.len() < HEADER + len {
            return Ok(false);
        }
        let start = self.next + HEADER;
        self.next = start + len;
        let body = self.buffer.get_mut(start..start + len).unwrap_or_default();
        let message = InboundOpaqueMessage::new(ContentType::from(typ), ProtocolVersion::TLSv1_2, body);
        let opened = self.cipher.decrypt(message, self.sequence).map_err(failed)?;
        self.sequence += 1;
        let (typ, len) = (opened.typ, opened.payload.len());
        match typ {
            ContentType::ApplicationData => self.plain = (start, start + len),
            ContentType::Handshake => self.on_handshake(start, len)?,
            ContentType::Alert => return Err(alert(self.buffer.get(start..start + len).unwrap_or_default())),
            _ => return Err(damaged("a record is of a kind that has no place here")),
        }
        Ok(true)
    }

    fn on_handshake(&mut self, start: usize, len: usize) -> io::Result<()> {
        let message = self.buffer.get(start..start + len).unwrap_or_default();
        let mut rest = message;
        while let Some((&[typ, a, b, c], body)) = rest.split_first_chunk::<4>() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            let (this, later) = body.split_at_checked(len).ok_or_else(|| damaged("a message is cut"))?;
            match typ {
                // A ticket that cannot be used costs the next connection a full handshake.
                NEW_SESSION_TICKET => {
                    if let Err(error) = self.session.lock().ticket(this) {
                        log::debug!("ticket not kept: {error}");
                    }
                }
                KEY_UPDATE if later.is_empty() => {
                    let (sequence, secret) = self.session.lock().update_received().map_err(failed)?;
                    self.cipher = decrypter(self.algorithm, secret)?;
                    self.sequence = sequence;
                }
                _ => return Err(damaged("a message has no place here")),
            }
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(damaged("a message is cut")) }
    }
}

/// What the peer says before it closes.
fn alert(body: &[u8]) -> io::Error {
    match body {
        [_, 0] => io::Error::new(ErrorKind::ConnectionAborted, "the peer has closed the connection"),
        [_, description] => failed(Error::AlertReceived(rustls::AlertDescription::from(*description))),
        _ => damaged("an alert is cut"),
    }
}
