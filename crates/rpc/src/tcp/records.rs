//! Records on a connection after its handshake: a sealer protects sent data, an opener verifies and opens
//! received data.
//!
//! Encrypted records are those of TLS 1.3, with the secrets of rustls; authenticated records carry their data
//! as plain text with a tag. Both directions are separate, so a thread that sends and one that receives share
//! nothing. This module does the framing into records, their numbers, and the key update before a cipher's
//! limit.

mod opener;
mod sealer;
#[cfg(test)]
mod tests;

pub(super) use opener::Opener;
pub(super) use sealer::Sealer;

use super::mac::{KEY, Mac, TAG};
use nacre_env::sync::Mutex;
use nacre_types::Security;
use ring::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey,
};
use ring::error::Unspecified;
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{ConnectionTrafficSecrets, Error};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Bytes before the content of a record of either kind: its type, and the fields for its length.
const HEADER: usize = 5;
/// Largest plain text in an encrypted record, in bytes.
const PLAIN_MAX: usize = 16 << 10;
/// Bytes after the plain text: the type of the content, and the tag.
const SEALED_TRAILER: usize = 1 + TAG;
/// Largest encrypted record after its header, in bytes: the standard's limit, of which senders here need
/// less.
const SEALED_MAX: usize = PLAIN_MAX + 256;
/// Largest authenticated record, in bytes: it fits a cache, as its data is read for the tag and again for the
/// send.
const MARKED_MAX: usize = 128 << 10;
/// Records under one secret of a cipher, far below the limit of every cipher.
const RECORDS_MAX: u64 = if cfg!(test) { 40 } else { 1 << 22 };
/// Records under one key of a MAC, after which the connection ends: 2^40 tags of 128 bits leave a forger no
/// chance.
const MARKED_RECORDS_MAX: u64 = 1 << 40;
/// Types of records: encrypted ones have the type of TLS, "application data".
const SEALED: u8 = 23;
const MARKED: u8 = b'M';
/// Types of the content of an encrypted record.
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// Messages of the handshake protocol that arrive after the handshake.
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

fn failed(error: Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// Returns the error for a wrong tag: the same as for a record that rustls cannot open.
fn forged(_: Unspecified) -> io::Error {
    failed(Error::DecryptError)
}

fn damaged(text: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// The part of rustls that continues after the handshake: key updates, and tickets for later sessions.
pub(super) enum Session {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Session {
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

/// A cipher under one secret.
struct Cipher {
    key: LessSafeKey,
    iv: [u8; 12],
}

impl Cipher {
    fn new(secret: &ConnectionTrafficSecrets) -> io::Result<Cipher> {
        let (algorithm, key, iv) = parts_of(secret)?;
        let iv = iv.try_into().map_err(|_| damaged("the cipher is not known"))?;
        let key = UnboundKey::new(algorithm, key).map_err(|_| damaged("the cipher is not known"))?;
        Ok(Cipher { key: LessSafeKey::new(key), iv })
    }

    fn nonce(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce.iter_mut().skip(4).zip(number.to_be_bytes()) {
            *byte ^= of_number;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    fn seal(&self, number: u64, header: [u8; HEADER], content: &mut [u8]) -> io::Result<Tag> {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(number), Aad::from(header), content);
        sealed.map_err(forged)
    }

    fn open(&self, number: u64, header: [u8; HEADER], tag: &[u8], content: &mut [u8]) -> io::Result<()> {
        let tag = Tag::try_from(tag).map_err(|_| damaged("a tag is cut"))?;
        let header = Aad::from(header);
        let opened = self.key.open_in_place_separate_tag(self.nonce(number), header, tag, content, 0..);
        opened.map(drop).map_err(forged)
    }
}

fn parts_of(secret: &ConnectionTrafficSecrets) -> io::Result<(&'static Algorithm, &[u8], &[u8])> {
    Ok(match secret {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key.as_ref(), iv.as_ref()),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key.as_ref(), iv.as_ref()),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (&CHACHA20_POLY1305, key.as_ref(), iv.as_ref())
        }
        _ => return Err(damaged("the cipher is not known")),
    })
}

struct KeyLen;

impl KeyType for KeyLen {
    fn len(&self) -> usize {
        KEY
    }
}

/// Returns the MAC of a direction. Its key is derived from the secret of that direction, and so from the
/// whole handshake transcript, including the agreement to authenticate and not to encrypt; the derivation is
/// one-way.
fn mac(secret: &ConnectionTrafficSecrets) -> io::Result<Mac> {
    let (_, key, iv) = parts_of(secret)?;
    let mut mac = [0; KEY];
    let derived = Salt::new(HKDF_SHA256, nacre_keys::protocol_of(Security::Authenticate))
        .extract(&[key, iv].concat())
        .expand(&[b"nacre mac"], KeyLen)
        .and_then(|derived| derived.fill(&mut mac))
        .and_then(|()| Mac::new(&mac));
    derived.map_err(|_| damaged("no key for the MAC"))
}

/// Protection of the records of one direction.
enum Way {
    Cipher(Box<Cipher>),
    Mac(Box<Mac>),
}

impl Way {
    fn new(protection: Security, secret: &ConnectionTrafficSecrets) -> io::Result<Way> {
        Ok(match protection {
            Security::Authenticate => Way::Mac(Box::new(mac(secret)?)),
            Security::Encrypt | Security::Open => Way::Cipher(Box::new(Cipher::new(secret)?)),
        })
    }

    /// Returns the largest data of a record, in bytes.
    fn data_max(&self) -> usize {
        match self {
            Way::Cipher(_) => PLAIN_MAX,
            Way::Mac(_) => MARKED_MAX,
        }
    }

    /// Returns the number of bytes after the data of a record.
    fn trailer(&self) -> usize {
        match self {
            Way::Cipher(_) => SEALED_TRAILER,
            Way::Mac(_) => TAG,
        }
    }

    /// Returns the header of a record with `len` bytes of data.
    fn header(&self, len: usize) -> [u8; HEADER] {
        match self {
            Way::Cipher(_) => {
                let [high, low] = ((len + SEALED_TRAILER) as u16).to_be_bytes();
                [SEALED, 3, 3, high, low]
            }
            Way::Mac(_) => {
                let [a, b, c, d] = (len as u32).to_le_bytes();
                [MARKED, a, b, c, d]
            }
        }
    }
}

/// Returns both directions of a connection, from the secrets of its handshake.
pub(super) fn split(
    session: Session,
    secrets: &rustls::ExtractedSecrets,
    protection: Security,
) -> io::Result<(Sealer, Opener)> {
    let session: Shared = Arc::new(Mutex::new(session));
    let (sent, secret) = &secrets.tx;
    let sealer = Sealer::new(session.clone(), Way::new(protection, secret)?, *sent);
    let (received, secret) = &secrets.rx;
    let opener = Opener::new(session, Way::new(protection, secret)?, Cipher::new(secret)?, *received);
    Ok((sealer, opener))
}
