//! The authority of a file system, and certificates that it signs.

use crate::error::{KeyError, Result};
use crate::files::{self, Key};
use crate::token::Fingerprint;
use nacre_types::{Identity, KeyId, Roles};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Default life of a certificate. It is renewed when a third of this is left.
pub const LIFETIME: Duration = Duration::from_secs(90 * DAY_S);
const DAY_S: u64 = 24 * 60 * 60;
/// Life of the authority's own certificate: longer than file systems live.
const AUTHORITY_LIFETIME: Duration = Duration::from_secs(30 * 365 * DAY_S);
/// A certificate is valid from this long before it was signed: clocks of hosts differ.
const BACKDATED: Duration = Duration::from_secs(DAY_S);
/// Longest request for a certificate, in bytes.
const CSR_MAX: usize = 4096;

/// File of the authority's certificate.
const CERTIFICATE: &str = "authority.pem";
/// File of its private key.
const PRIVATE: &str = "authority.key";

/// Returns random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

/// The authority: its certificate, and the private key that signs.
pub struct Authority {
    fsname: String,
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate signing request: a public key, and the proof that the sender has the private one.
pub struct Csr(CertificateSigningRequestParams);

impl Csr {
    /// Parses and verifies a request in DER.
    ///
    /// # Errors
    /// `Certificate` if it is not a request, or its signature is wrong.
    pub fn read(der: &[u8]) -> Result<Csr> {
        const WHAT: &str = "this is not a request for a certificate";
        if der.len() > CSR_MAX {
            return Err(KeyError::certificate(WHAT, "it is too long"));
        }
        let read = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(der));
        read.map(Csr).map_err(|error| KeyError::certificate(WHAT, error))
    }

    /// Returns the public key in DER, by which a repeated request is recognised.
    pub fn public(&self) -> Vec<u8> {
        self.0.public_key.subject_public_key_info()
    }
}

impl Authority {
    /// Creates an authority and writes its files into `dir`, which must not contain one.
    ///
    /// # Errors
    /// `Io` if `dir` has an authority, or the files cannot be written.
    pub fn create(dir: &Path, fsname: &str) -> Result<Authority> {
        files::make_dir(dir)?;
        if Authority::is_in(dir) {
            let exists = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
            return Err(KeyError::io("make an authority in", dir)(exists));
        }
        let pair = generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "NacreFS");
        params.distinguished_name.push(DnType::CommonName, fsname);
        // Two file systems of the same name have authorities with different names.
        params
            .distinguished_name
            .push(DnType::from_oid(&SERIAL_OID), KeyId(u64::from_le_bytes(random()?)).to_string());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        set_validity(&mut params, nacre_env::clock::wall(), AUTHORITY_LIFETIME);
        let made = params
            .self_signed(&pair)
            .map_err(|error| KeyError::certificate("cannot make the authority", error))?;
        files::write_secret(&dir.join(PRIVATE), pair.serialize_pem().as_bytes())?;
        files::write_public(&dir.join(CERTIFICATE), made.pem().as_bytes())?;
        Authority::new(fsname, made.der().clone(), pair)
    }

    /// Loads the authority in `dir`.
    ///
    /// # Errors
    /// `Io`, `Damaged`; `Exposed` and `Foreign` for files that other users may read.
    pub fn load(dir: &Path, fsname: &str) -> Result<Authority> {
        let certificate = files::read_certificates(&dir.join(CERTIFICATE))?.swap_remove(0);
        let path = dir.join(PRIVATE);
        let private = files::read_secret(&path)?;
        let pair = String::from_utf8(private).ok().and_then(|pem| KeyPair::from_pem(&pem).ok());
        Authority::new(
            fsname,
            certificate,
            pair.ok_or(KeyError::Damaged { path, what: "it has no private key" })?,
        )
    }

    /// Returns true if `dir` has an authority.
    pub fn is_in(dir: &Path) -> bool {
        // The certificate is written last.
        dir.join(CERTIFICATE).exists() && dir.join(PRIVATE).exists()
    }

    fn new(fsname: &str, certificate: CertificateDer<'static>, pair: KeyPair) -> Result<Authority> {
        let issuer = Issuer::from_ca_cert_der(&certificate, pair)
            .map_err(|error| KeyError::certificate("cannot use the authority", error))?;
        Ok(Authority { fsname: fsname.to_owned(), certificate, issuer })
    }

    /// Returns the authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the fingerprint by which a token names the authority.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Signs the public key of a request: a certificate of `identity` with a new expiry, whatever else the
    /// request asks for.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn sign(
        &self,
        csr: &Csr,
        identity: &Identity,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>> {
        self.sign_at(&csr.0.public_key, identity, nacre_env::clock::wall(), lifetime)
    }

    /// Creates a key pair with a certificate, on the host of the authority.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn make_key(&self, identity: &Identity, lifetime: Duration) -> Result<Key> {
        self.make_key_at(identity, nacre_env::clock::wall(), lifetime)
    }

    /// Creates a key pair with a certificate as of `now`, for tests of clocks.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn make_key_at(&self, identity: &Identity, now: SystemTime, lifetime: Duration) -> Result<Key> {
        let pair = generate()?;
        let certificate = self.sign_at(&pair, identity, now, lifetime)?;
        let identity = crate::verify::identity_of(&certificate)?;
        Ok(Key { certificate, authority: self.certificate.clone(), private: private_of(&pair), identity })
    }

    fn sign_at(
        &self,
        public: &impl PublicKeyData,
        identity: &Identity,
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<CertificateDer<'static>> {
        assert_eq!(identity.fsname, self.fsname, "an authority signs for its own file system");
        let until = (now + lifetime).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let identity = &Identity { until_s: until.as_secs(), ..identity.clone() };
        let failed = |error: rcgen::Error| KeyError::certificate("cannot make a certificate", error);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, identity.id.to_string());
        params.subject_alt_names = vec![SanType::URI(identity.to_string().try_into().map_err(failed)?)];
        params.serial_number = Some(SerialNumber::from_slice(&positive(random()?)));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages(identity.roles);
        set_validity(&mut params, now, lifetime);
        Ok(params.signed_by(public, &self.issuer).map_err(failed)?.der().clone())
    }

    /// Draws a number for a new key.
    ///
    /// # Errors
    /// `Random`.
    pub fn draw_id() -> Result<KeyId> {
        Ok(KeyId(u64::from_le_bytes(random()?)))
    }
}

/// `serialNumber` of X.520.
const SERIAL_OID: [u64; 4] = [2, 5, 4, 5];

/// Clears the sign bit: serial numbers of certificates are positive.
fn positive(mut bytes: [u8; 16]) -> [u8; 16] {
    bytes[0] = bytes[0] & 0x7f | 0x40;
    bytes
}

/// Returns the extended key usages of roles. Clients never prove to be servers; every server is a client of
/// others.
fn usages(roles: Roles) -> Vec<ExtendedKeyUsagePurpose> {
    let mut usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if roles.intersects(Roles::MGS | Roles::MDS | Roles::OSS) {
        usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    usages
}

fn set_validity(params: &mut CertificateParams, now: SystemTime, lifetime: Duration) {
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + lifetime).into();
}

fn generate() -> Result<KeyPair> {
    KeyPair::generate().map_err(|error| KeyError::certificate("cannot make a key pair", error))
}

fn private_of(pair: &KeyPair) -> PrivateKeyDer<'static> {
    PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()))
}

/// A key pair without its certificate yet.
pub struct Request {
    pair: KeyPair,
}

impl Request {
    /// Creates a key pair.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn new() -> Result<Request> {
        Ok(Request { pair: generate()? })
    }

    /// Loads the pending key pair `name` in `dir`; creates and writes it if there is none.
    ///
    /// # Errors
    /// `Io`, `Certificate`; `Exposed` and `Foreign` for files that other users may use.
    pub fn kept(dir: &Path, name: &str) -> Result<Request> {
        files::make_dir(dir)?;
        let path = Request::path(dir, name);
        if path.exists() {
            let text = String::from_utf8(files::read_secret(&path)?).ok();
            let pair = text.and_then(|pem| KeyPair::from_pem(&pem).ok());
            let damaged = KeyError::Damaged { path, what: "it has no private key" };
            return Ok(Request { pair: pair.ok_or(damaged)? });
        }
        let request = Request::new()?;
        files::write_secret(&path, request.pair.serialize_pem().as_bytes())?;
        Ok(request)
    }

    /// Removes the pending key pair of [`Request::kept`].
    ///
    /// # Errors
    /// `Io`.
    pub fn forget(dir: &Path, name: &str) -> Result<()> {
        let path = Request::path(dir, name);
        std::fs::remove_file(&path).map_err(KeyError::io("remove", &path))
    }

    fn path(dir: &Path, name: &str) -> PathBuf {
        dir.join(format!("{name}.key"))
    }

    /// Returns the certificate signing request in DER.
    ///
    /// # Errors
    /// `Certificate`.
    pub fn csr(&self) -> Result<Vec<u8>> {
        let request = CertificateParams::default().serialize_request(&self.pair);
        let request =
            request.map_err(|error| KeyError::certificate("cannot ask for a certificate", error))?;
        Ok(request.der().to_vec())
    }

    /// Combines the key pair with the certificate that the authority returned.
    ///
    /// # Errors
    /// `Certificate` if it is not for this key pair or not signed by that authority; `Identity`.
    pub fn finish(self, certificate: &[u8], authority: &[u8]) -> Result<Key> {
        let certificate = CertificateDer::from(certificate.to_vec());
        let identity = crate::verify::identity_of(&certificate)?;
        let key = Key {
            certificate,
            authority: CertificateDer::from(authority.to_vec()),
            private: private_of(&self.pair),
            identity,
        };
        key.check()?;
        Ok(key)
    }
}
