//! Files of keys: their permissions, and how they are replaced.

use crate::error::{KeyError, Result};
use crate::verify::identity_of;
use nacre_types::Identity;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Largest file of a key or certificate, in bytes.
const FILE_MAX: u64 = 64 << 10;

/// A private key with its certificate.
pub struct Key {
    /// Identity that the certificate proves.
    pub identity: Identity,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) private: PrivateKeyDer<'static>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.identity)
    }
}

impl Key {
    /// Loads the key `name` in `dir`.
    ///
    /// # Errors
    /// `Io`, `Damaged`, `Identity`; `Exposed` and `Foreign` for files that other users may use.
    pub fn load(dir: &Path, name: &str) -> Result<Key> {
        check_private(dir, &fs::metadata(dir).map_err(KeyError::io("read", dir))?)?;
        let path = certificate_path(dir, name);
        let mut chain = read_certificates(&path)?;
        if chain.len() != 2 {
            return Err(KeyError::Damaged {
                path,
                what: "it has not a certificate and that of the authority",
            });
        }
        let (authority, certificate) = (chain.swap_remove(1), chain.swap_remove(0));
        let path = dir.join(format!("{name}.key"));
        let private = PrivateKeyDer::from_pem_slice(&read_secret(&path)?)
            .map_err(|_| KeyError::Damaged { path, what: "it has no private key" })?;
        let identity = identity_of(&certificate)?;
        let key = Key { identity, certificate, authority, private };
        key.check()?;
        Ok(key)
    }

    /// Returns the certificate of its authority as PEM.
    pub fn authority_pem(&self) -> String {
        pem("CERTIFICATE", &self.authority)
    }

    /// Returns true if `dir` has a key of this name.
    pub fn is_in(dir: &Path, name: &str) -> bool {
        certificate_path(dir, name).exists()
    }

    /// Writes the key, replacing an earlier one of the same name.
    ///
    /// # Errors
    /// `Io`.
    pub fn save(&self, dir: &Path, name: &str) -> Result<()> {
        make_dir(dir)?;
        let PrivateKeyDer::Pkcs8(private) = &self.private else {
            return Err(KeyError::certificate("cannot write a key", "it is not in the form PKCS #8"));
        };
        let private = pem("PRIVATE KEY", private.secret_pkcs8_der());
        let certificate = pem("CERTIFICATE", &self.certificate) + &pem("CERTIFICATE", &self.authority);
        // The certificate is written last: its existence means that the key is complete.
        write_secret(&dir.join(format!("{name}.key")), private.as_bytes())?;
        write_public(&certificate_path(dir, name), certificate.as_bytes())
    }

    /// Checks that the private key belongs to the certificate.
    pub(crate) fn check(&self) -> Result<()> {
        self.certified().map(drop)
    }

    pub(crate) fn certified(&self) -> Result<CertifiedKey> {
        let chain = vec![self.certificate.clone(), self.authority.clone()];
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, self.private.clone_key(), &provider).map_err(|error| {
            KeyError::certificate("the private key does not belong to its certificate", error)
        })
    }
}

fn certificate_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.pem"))
}

/// Creates a directory that only its owner may read, unless it exists; refuses one that other users may write
/// to.
pub(crate) fn make_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(KeyError::io("make", dir))?;
    check_private(dir, &fs::metadata(dir).map_err(KeyError::io("read", dir))?)
}

/// Checks that only this user and root have access.
fn check_private(path: &Path, found: &fs::Metadata) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user && found.uid() != 0 {
        return Err(KeyError::Foreign { path: path.to_owned(), owner: found.uid(), user });
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 == 0 { Ok(()) } else { Err(KeyError::Exposed { path: path.to_owned(), mode }) }
}

/// Reads a file to which no other user has access.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>> {
    read(path, true)
}

fn read(path: &Path, is_secret: bool) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(KeyError::io("read", path))?;
    if is_secret {
        check_private(path, &file.metadata().map_err(KeyError::io("read", path))?)?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(KeyError::io("read", path))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(KeyError::Damaged { path: path.to_owned(), what: "it is too long" });
    }
    Ok(bytes)
}

/// Reads the certificates in a file; an error if there are none.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path, false)?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(KeyError::Damaged { path: path.to_owned(), what: "it has no certificate" }),
    }
}

pub(crate) fn write_secret(path: &Path, content: &[u8]) -> Result<()> {
    replace(path, content, 0o600).map_err(KeyError::io("write", path))
}

pub(crate) fn write_public(path: &Path, content: &[u8]) -> Result<()> {
    replace(path, content, 0o644).map_err(KeyError::io("write", path))
}

/// Replaces a file atomically: after a power cut it has the old content or the new.
fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    // The umask may have removed permissions, it never adds any.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

fn pem(label: &str, der: &[u8]) -> String {
    pem::encode_config(
        &pem::Pem::new(label, der),
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    )
}
