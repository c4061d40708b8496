//! Verification of peers: certificates of the authority, within their validity, for their purpose, that name
//! an identity of the file system.

use crate::error::{KeyError, Result};
use crate::token::Fingerprint;
use nacre_env::sync::RwLock;
use nacre_types::{Identity, KeyId};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, ring as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme,
};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// Number of certificates in a peer's chain, at most.
const CHAIN_MAX: usize = 4;

/// Revoked keys. One set is shared by all verifiers and replaced atomically.
#[derive(Default, Debug)]
pub struct Revoked {
    ids: RwLock<HashSet<KeyId>>,
    version: AtomicU64,
}

impl Revoked {
    /// Returns true if the key is revoked.
    pub fn has(&self, id: KeyId) -> bool {
        self.ids.read().contains(&id)
    }

    /// Returns the version of the set, which changes with each change of it.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Replaces the set. Returns true if it revokes a key that was not revoked before.
    pub fn set(&self, ids: impl IntoIterator<Item = KeyId>) -> bool {
        let new: HashSet<KeyId> = ids.into_iter().collect();
        let mut known = self.ids.write();
        let has_more = new.difference(&known).next().is_some();
        *known = new;
        self.version.fetch_add(1, Ordering::Release);
        has_more
    }
}

/// Which certificates are trusted.
#[derive(Clone, Debug)]
enum Trust {
    /// Those signed by one of these authorities.
    Authorities(Vec<CertificateDer<'static>>),
    /// Those signed by the authority with this fingerprint, whose certificate is in the chain: a token has
    /// only the fingerprint.
    Fingerprint(Fingerprint),
}

/// Verifies certificates of peers.
#[derive(Debug)]
pub struct Verifier {
    trust: Trust,
    /// Name of the file system; empty accepts any, as a token does not have it.
    fsname: String,
    /// Accepts connections without a certificate, for enrolment.
    may_be_unknown: bool,
    names: Vec<DistinguishedName>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    /// Creates a verifier for the file system of these authorities. `may_be_unknown` accepts peers without a
    /// certificate.
    pub(crate) fn of_authorities(
        authorities: Vec<CertificateDer<'static>>,
        fsname: &str,
        may_be_unknown: bool,
    ) -> Result<Verifier> {
        let names = authorities.iter().map(subject_of).collect::<Result<_>>()?;
        Ok(Verifier { names, may_be_unknown, ..Verifier::new(Trust::Authorities(authorities), fsname) })
    }

    pub(crate) fn of_fingerprint(fingerprint: Fingerprint) -> Verifier {
        Verifier::new(Trust::Fingerprint(fingerprint), "")
    }

    fn new(trust: Trust, fsname: &str) -> Verifier {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        Verifier { trust, fsname: fsname.to_owned(), may_be_unknown: false, names: Vec::new(), algorithms }
    }

    fn verify(
        &self,
        certificate: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
        usage: KeyUsage,
    ) -> std::result::Result<(), Error> {
        if others.len() > CHAIN_MAX {
            return Err(CertificateError::BadEncoding.into());
        }
        let authorities: Vec<&CertificateDer<'_>> = match &self.trust {
            Trust::Authorities(authorities) => authorities.iter().collect(),
            Trust::Fingerprint(fingerprint) => {
                others.iter().filter(|other| Fingerprint::of(other) == *fingerprint).collect()
            }
        };
        let anchors: std::result::Result<Vec<_>, _> =
            authorities.into_iter().map(|authority| anchor_from_trusted_cert(authority)).collect();
        let anchors = anchors.map_err(rejected)?;
        let parsed = EndEntityCert::try_from(certificate).map_err(rejected)?;
        parsed
            .verify_for_usage(self.algorithms.all, &anchors, &[], now, usage, None, None)
            .map_err(rejected)?;
        let identity =
            identity_of(certificate).map_err(|_| CertificateError::ApplicationVerificationFailure)?;
        if !self.fsname.is_empty() && identity.fsname != self.fsname {
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(())
    }
}

/// Returns the name of an authority in the form in which servers announce it.
pub(crate) fn subject_of(authority: &CertificateDer<'static>) -> Result<DistinguishedName> {
    let anchor = anchor_from_trusted_cert(authority)
        .map_err(|error| KeyError::certificate("this is not the certificate of an authority", error))?;
    // The anchor has the content of the name; on the wire it is wrapped in a sequence.
    Ok(DistinguishedName::in_sequence(&anchor.subject))
}

/// Returns the identity that a certificate names. Only valid for a verified certificate.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity> {
    let parsed = EndEntityCert::try_from(certificate)
        .map_err(|error| KeyError::certificate("this is not a certificate", error))?;
    let mut uris = parsed.valid_uri_names();
    let (first, second) = (uris.next(), uris.next());
    let text =
        first.filter(|_| second.is_none()).ok_or(nacre_types::IdentityError("its certificate names none"))?;
    Ok(text.parse()?)
}

fn rejected(error: webpki::Error) -> Error {
    use webpki::Error as E;
    match error {
        E::CertExpired { .. } => CertificateError::Expired,
        E::CertNotValidYet { .. } => CertificateError::NotValidYet,
        E::UnknownIssuer => CertificateError::UnknownIssuer,
        E::InvalidSignatureForPublicKey => CertificateError::BadSignature,
        E::RequiredEkuNotFoundContext(_) => CertificateError::InvalidPurpose,
        _ => CertificateError::BadEncoding,
    }
    .into()
}

type Checked<T> = std::result::Result<T, Error>;

impl ServerCertVerifier for Verifier {
    /// Verifies a server's certificate. The server name is that of a session, not of a host, and is ignored:
    /// the identity counts.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Checked<ServerCertVerified> {
        self.verify(end_entity, intermediates, now, KeyUsage::server_auth())?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Checked<HandshakeSignatureValid> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Checked<HandshakeSignatureValid> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.may_be_unknown
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.names
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Checked<ClientCertVerified> {
        self.verify(end_entity, intermediates, now, KeyUsage::client_auth())?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Checked<HandshakeSignatureValid> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Checked<HandshakeSignatureValid> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Returns the identity that the peer has proved in a completed handshake; `None` if it has no certificate.
///
/// # Errors
/// `Identity`, which a handshake with a [`Verifier`] rules out.
pub fn peer_identity(chain: Option<&[CertificateDer<'_>]>) -> Result<Option<Arc<Identity>>> {
    chain.and_then(<[_]>::first).map(|certificate| identity_of(certificate).map(Arc::new)).transpose()
}
