//! Settings of TLS: only version 1.3, certificates of one authority, session resumption, extraction of
//! traffic secrets.

use crate::error::{KeyError, Result};
use crate::files::Key;
use crate::token::Fingerprint;
use crate::verify::{Revoked, Verifier, subject_of};
use nacre_env::sync::RwLock;
use nacre_types::{Identity, Security};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{CipherSuite, ClientConfig, DistinguishedName, ServerConfig};
use std::net::SocketAddr;
use std::sync::Arc;

/// Sessions that a client remembers for resumption: one for each server address.
const SESSIONS_MAX: usize = 4096;
/// Plaintext of a sent TLS record in bytes, at most; `None` is the maximum of TLS, 16 KiB.
const FRAGMENT_MAX: Option<usize> = None;

/// Returns the provider, with AES-128-GCM first: half the CPU time of AES-256-GCM, and more strength is not
/// needed here.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.version().version == rustls::ProtocolVersion::TLSv1_3);
    let is_first = |suite: CipherSuite| suite == CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| !is_first(suite.suite()));
    Arc::new(provider)
}

/// The keys of this process, one per authority; a renewed key replaces its predecessor.
#[derive(Debug)]
struct Current(RwLock<Vec<(DistinguishedName, Arc<CertifiedKey>)>>);

impl Current {
    fn new(keys: &[Key]) -> Result<Arc<Current>> {
        let current = Current(RwLock::default());
        keys.iter().try_for_each(|key| current.replace(key))?;
        Ok(Arc::new(current))
    }

    /// Replaces the key of the same authority.
    fn replace(&self, key: &Key) -> Result<()> {
        let (authority, key) = (subject_of(&key.authority)?, Arc::new(key.certified()?));
        let mut keys = self.0.write();
        keys.retain(|(known, _)| known.as_ref() != authority.as_ref());
        keys.push((authority, key));
        Ok(())
    }
}

impl rustls::server::ResolvesServerCert for Current {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().first().map(|(_, key)| key.clone())
    }
}

impl rustls::client::ResolvesClientCert for Current {
    /// Chooses the key of the authority that the server announces.
    fn resolve(&self, hints: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let is_known = |authority: &DistinguishedName| hints.contains(&authority.as_ref());
        self.0.read().iter().find(|(authority, _)| is_known(authority)).map(|(_, key)| key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

const ENCRYPT: &[u8] = b"nacre-encrypt";
const AUTHENTICATE: &[u8] = b"nacre-authenticate";

/// Returns the name of a protection level in the handshake (ALPN), where both sides agree on it and no
/// attacker on the path can change it. Servers that admit peers without a key encrypt the traffic of peers
/// with one.
pub const fn protocol_of(security: Security) -> &'static [u8] {
    match security {
        Security::Encrypt | Security::Open => ENCRYPT,
        Security::Authenticate => AUTHENTICATE,
    }
}

/// Returns the protection level that a name in the handshake stands for.
pub fn security_of_protocol(name: &[u8]) -> Option<Security> {
    [Security::Encrypt, Security::Authenticate].into_iter().find(|one| protocol_of(*one) == name)
}

fn unusable(error: rustls::Error) -> KeyError {
    KeyError::certificate("cannot set up TLS", error)
}

/// TLS settings of a client.
#[derive(Clone)]
pub struct ClientTls {
    /// Configurations, replaced when the key is renewed: a resumed session would prove the old one.
    configs: Arc<RwLock<ClientConfigs>>,
    current: Option<Arc<Current>>,
    revoked: Arc<Revoked>,
}

/// Configurations by what the client accepts.
struct ClientConfigs {
    /// Accepts the protection that the server chooses.
    any: Arc<ClientConfig>,
    encrypted: Arc<ClientConfig>,
}

impl ClientConfigs {
    fn new(mut config: ClientConfig) -> ClientConfigs {
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        let offering = |protections: &[Security]| {
            let mut config = config.clone();
            config.alpn_protocols = protections.iter().map(|one| protocol_of(*one).to_vec()).collect();
            Arc::new(config)
        };
        ClientConfigs {
            any: offering(&[Security::Encrypt, Security::Authenticate]),
            encrypted: offering(&[Security::Encrypt]),
        }
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientTls(has keys: {})", self.current.is_some())
    }
}

impl ClientTls {
    /// Creates the settings with keys for the servers of a file system. Several keys are for file systems of
    /// the same name: a server gets the key of its authority.
    ///
    /// # Errors
    /// `Certificate` for an unusable key.
    pub fn new(fsname: &str, keys: &[Key]) -> Result<ClientTls> {
        let authorities = keys.iter().map(|key| key.authority.clone()).collect();
        let verifier = Verifier::of_authorities(authorities, fsname, false)?;
        let current = Current::new(keys)?;
        let config = builder(verifier)?.with_client_cert_resolver(current.clone());
        Ok(ClientTls::finish(config, Some(current)))
    }

    /// Creates the settings without a key, to enrol one at a server of the authority with this fingerprint.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn unknown(authority: Fingerprint) -> Result<ClientTls> {
        let config = builder(Verifier::of_fingerprint(authority))?.with_no_client_auth();
        Ok(ClientTls::finish(config, None))
    }

    fn finish(mut config: ClientConfig, current: Option<Arc<Current>>) -> ClientTls {
        config.enable_secret_extraction = true;
        config.max_fragment_size = FRAGMENT_MAX;
        // The name only identifies sessions for resumption; the server does not need it.
        config.enable_sni = false;
        let configs = Arc::new(RwLock::new(ClientConfigs::new(config)));
        ClientTls { configs, current, revoked: Arc::default() }
    }

    /// Refuses servers with these keys.
    pub fn with_revoked(self, revoked: Arc<Revoked>) -> ClientTls {
        ClientTls { revoked, ..self }
    }

    /// Returns the refused keys of servers.
    pub fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    /// Returns the configuration for a connection: encrypted, or protected as the server chooses.
    pub fn config(&self, encrypted_only: bool) -> Arc<ClientConfig> {
        let configs = self.configs.read();
        if encrypted_only { configs.encrypted.clone() } else { configs.any.clone() }
    }

    /// Replaces the key; later connections use this one.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn renew(&self, key: &Key) -> Result<()> {
        let Some(current) = &self.current else { return Ok(()) };
        current.replace(key)?;
        let mut configs = self.configs.write();
        *configs = ClientConfigs::new((*configs.any).clone());
        Ok(())
    }

    /// Returns the name under which sessions with a server are cached.
    pub fn session_name(address: SocketAddr) -> String {
        let host: String =
            address.ip().to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        format!("p{}.h{}.nacre", address.port(), host.trim_matches('-'))
    }
}

fn builder(
    verifier: Verifier,
) -> Result<rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert>> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
    Ok(builder.map_err(unusable)?.dangerous().with_custom_certificate_verifier(Arc::new(verifier)))
}

/// TLS settings of a server.
#[derive(Clone)]
pub struct ServerTls {
    encrypt: Arc<ServerConfig>,
    authenticate: Arc<ServerConfig>,
    current: Arc<Current>,
    identity: Identity,
    revoked: Arc<Revoked>,
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServerTls({})", self.identity)
    }
}

impl ServerTls {
    /// Creates the settings with a key, for peers of its file system; with `enrols`, also for peers without a
    /// certificate.
    ///
    /// # Errors
    /// `Certificate` for an unusable key.
    pub fn new(key: &Key, enrols: bool, revoked: Arc<Revoked>) -> Result<ServerTls> {
        let verifier = Verifier::of_authorities(vec![key.authority.clone()], &key.identity.fsname, enrols)?;
        let current = Current::new(std::slice::from_ref(key))?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]);
        let builder = builder.map_err(unusable)?.with_client_cert_verifier(Arc::new(verifier));
        let mut config = builder.with_cert_resolver(current.clone());
        config.enable_secret_extraction = true;
        config.max_fragment_size = FRAGMENT_MAX;
        config.ticketer = ring::Ticketer::new().map_err(unusable)?;
        // One ticket for each of the client's later connections.
        config.send_tls13_tickets = 2;
        let agreeing_to = |protection: Security| {
            let mut config = config.clone();
            config.alpn_protocols = vec![protocol_of(protection).to_vec()];
            Arc::new(config)
        };
        let (encrypt, authenticate) = (agreeing_to(Security::Encrypt), agreeing_to(Security::Authenticate));
        Ok(ServerTls { encrypt, authenticate, current, identity: key.identity.clone(), revoked })
    }

    /// Returns the configuration for a connection with this protection.
    pub fn config(&self, protection: Security) -> Arc<ServerConfig> {
        match protection {
            Security::Encrypt | Security::Open => self.encrypt.clone(),
            Security::Authenticate => self.authenticate.clone(),
        }
    }

    /// Returns the identity that the key proves.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Returns the refused keys.
    pub fn revoked(&self) -> &Arc<Revoked> {
        &self.revoked
    }

    /// Replaces the key; later connections use this one.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn renew(&self, key: &Key) -> Result<()> {
        self.current.replace(key)
    }
}
