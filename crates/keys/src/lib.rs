//! Keys of a file system: its authority, certificates that carry identities, tokens that enrol keys, and the
//! settings of TLS.
//!
//! The design is in `docs/design/security.md`. Cryptography is from `ring`, certificates from `rcgen` and
//! `webpki`, TLS from `rustls`; this crate decides which identities are trusted.

mod authority;
mod capability;
mod clock;
mod error;
mod files;
mod registry;
#[cfg(test)]
mod tests;
mod tls;
mod token;
pub mod untrusted;
mod verify;

pub use authority::{Authority, Csr, LIFETIME, Request};
pub use capability::{CapabilityError, CapabilityKeys, Signer, Verified};
pub use clock::SharedClock;
pub use error::{KeyError, Result};
pub use files::Key;
pub use registry::{Grant, Origin, Registry, USES_MAX};
pub use tls::{ClientTls, ServerTls, protocol_of, security_of_protocol};
pub use token::{Fingerprint, Secret, SecretHash, Token, TokenId};
pub use verify::{Revoked, Verifier, peer_identity};
