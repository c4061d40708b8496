//! Enrolment: the authority signs certificates for tokens and renewals, and registers the keys.

use nacre_env::sync::Mutex;
use nacre_keys::{
    Authority, Csr, Fingerprint, Grant, KeyError, LIFETIME, Origin, Registry, Secret, TokenId, USES_MAX,
};
use nacre_types::{Identity, KeyId, Roles, Status, StatusResult};
use nacre_wire::mgs::{Hidden, IssuedKey, MgsReply};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Shortest lifetime of a certificate that a token may request.
const LIFETIME_MIN: Duration = Duration::from_secs(60);
/// Longest lifetime of a certificate or token.
const LIFETIME_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);
/// Longest stored name of a host or process, in bytes; longer ones are truncated.
const NAME_MAX: usize = 128;

/// Requested properties of a token.
pub(crate) struct TokenRequest<'a> {
    pub(crate) grants: &'a Identity,
    pub(crate) expires_s: u64,
    pub(crate) uses: u32,
    pub(crate) lifetime_s: u64,
}

/// The authority of a file system, on the host of its management server.
pub struct Enrolment {
    authority: Authority,
    /// Held while a token is redeemed, so that concurrent requests cannot exceed its uses.
    registry: Mutex<Registry>,
}

impl Enrolment {
    /// Loads the authority in `dir`.
    ///
    /// # Errors
    /// As [`Authority::load`].
    pub fn load(dir: &Path, fsname: &str) -> Result<Enrolment, KeyError> {
        Ok(Enrolment { authority: Authority::load(dir, fsname)?, registry: Mutex::new(Registry::of(dir)) })
    }

    /// Creates a token, in its text form for the host that enrols.
    pub(crate) fn make_token(&self, fsname: &str, requested: &TokenRequest<'_>) -> StatusResult<MgsReply> {
        let lifetime = match requested.lifetime_s {
            0 => LIFETIME,
            seconds => Duration::from_secs(seconds),
        };
        let life = Duration::from_secs(requested.expires_s);
        let fits = (LIFETIME_MIN..=LIFETIME_MAX).contains(&lifetime)
            && !life.is_zero()
            && life <= LIFETIME_MAX
            && (1..=USES_MAX).contains(&requested.uses)
            && !requested.grants.roles.contains(Roles::MGS)
            && is_consistent(requested.grants);
        if !fits {
            return Err(Status::EINVAL);
        }
        let identity = Identity {
            fsname: fsname.to_owned(),
            id: KeyId(0),
            until_s: u64::MAX,
            is_final: requested.lifetime_s != 0,
            ..requested.grants.clone()
        };
        let until_s = now_s().saturating_add(requested.expires_s);
        let grant = Grant { identity, until_s, uses: requested.uses, lifetime };
        let made = self.registry.lock().make_token(self.authority.fingerprint(), grant, now_s());
        let token = made.map_err(|error| failed(&error))?;
        log::info!(
            "token {} was made: {} for {} s, {} uses",
            token.id,
            requested.grants.roles,
            requested.expires_s,
            requested.uses
        );
        Ok(MgsReply::Token(Hidden(token.reveal().into_bytes())))
    }

    /// Redeems a token for a certificate.
    pub(crate) fn enrol(
        &self,
        token: u64,
        secret: &Hidden,
        name: &str,
        csr: &[u8],
    ) -> StatusResult<MgsReply> {
        let refused = Status::EKEYREJECTED;
        let (token, now_s) = (TokenId(token), now_s());
        let secret = secret.0.as_slice().try_into().map(Secret).map_err(|_| refused)?;
        let registry = self.registry.lock();
        // Before the signature of the request is verified: any host may send one.
        if !registry.accepts(token, &secret, now_s).map_err(|error| failed(&error))? {
            return Err(refused);
        }
        let csr = Csr::read(csr).map_err(|_| Status::EINVAL)?;
        let redeemed =
            registry.redeem(token, &secret, &csr.public(), now_s).map_err(|error| failed(&error))?;
        let (identity, lifetime) = redeemed.ok_or(refused)?;
        let identity = Identity { name: shown(name), ..identity };
        let reply = self.issue(&registry, &csr, &identity, lifetime)?;
        log::info!(
            "key {} ({}) was enrolled for '{}' by token {}",
            identity.id,
            identity.roles,
            identity.name,
            token
        );
        Ok(reply)
    }

    /// Issues a certificate with a new expiry for a key that has one.
    pub(crate) fn renew(&self, identity: &Identity, csr: &[u8]) -> StatusResult<MgsReply> {
        if identity.is_final {
            return Err(Status::EKEYEXPIRED);
        }
        let csr = Csr::read(csr).map_err(|_| Status::EINVAL)?;
        self.issue(&self.registry.lock(), &csr, identity, LIFETIME)
    }

    fn issue(
        &self,
        registry: &Registry,
        csr: &Csr,
        identity: &Identity,
        lifetime: Duration,
    ) -> StatusResult<MgsReply> {
        let certificate = self.authority.sign(csr, identity, lifetime).map_err(|error| failed(&error))?;
        let until_s = now_s() + lifetime.as_secs();
        registry
            .note(&Identity { until_s, ..identity.clone() }, Origin::Token)
            .map_err(|error| failed(&error))?;
        let authority = self.authority.certificate().to_vec();
        Ok(MgsReply::Certificate { certificate: certificate.to_vec(), authority })
    }

    /// Lists all keys ever issued, and marks those in `revoked`.
    pub(crate) fn keys(&self, revoked: &[KeyId]) -> StatusResult<MgsReply> {
        let keys = self.registry.lock().keys().map_err(|error| failed(&error))?;
        let revoked: BTreeSet<_> = revoked.iter().collect();
        let issued = |identity: Identity| IssuedKey { is_revoked: revoked.contains(&identity.id), identity };
        Ok(MgsReply::Keys(keys.into_iter().map(issued).collect()))
    }

    /// Returns whether a key was issued by this authority.
    pub(crate) fn knows(&self, id: KeyId) -> StatusResult<bool> {
        self.registry.lock().key(id).map(|key| key.is_some()).map_err(|error| failed(&error))
    }

    /// Returns whether a key belongs to the owner of the file system on this host.
    pub(crate) fn is_home(&self, id: KeyId) -> StatusResult<bool> {
        self.registry
            .lock()
            .origin(id)
            .map(|origin| origin == Some(Origin::Home))
            .map_err(|error| failed(&error))
    }

    /// Returns the fingerprint of the authority, which tokens contain.
    pub fn fingerprint(&self) -> Fingerprint {
        self.authority.fingerprint()
    }
}

/// Returns whether the roles obey the bounds: only clients are bounded, so bounds with another role would
/// have no effect.
fn is_consistent(grants: &Identity) -> bool {
    let is_bounded = grants.uid.is_some() || grants.root.is_some() || grants.read_only;
    !is_bounded || grants.roles == Roles::CLIENT
}

fn shown(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(NAME_MAX / 4).collect()
}

fn now_s() -> u64 {
    nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn failed(error: &KeyError) -> Status {
    log::error!("the authority cannot do its work: {error}");
    match error {
        KeyError::Io { source, .. } => Status::from_io(source),
        _ => Status::EIO,
    }
}
