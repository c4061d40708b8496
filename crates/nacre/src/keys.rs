//! Keys of the processes of this host: their directories, their origin, and their renewal.
//!
//! A file system that has an authority in `keys` of its directory serves no peer without a key. Its processes
//! on this host create their keys themselves; so do mounts by its owner, whose registry names the directory.
//! Other hosts and users enrol a key by a token ([`enrol`]): hosts that serve targets keep it in `keys` of
//! their directory, clients in the key directory of their user.

use crate::failure::{Failure, Result};
use crate::instance::{Instance, if_there, random_uuid};
use crate::node::Plan;
use crate::process::{NODE, RunDir};
use crate::registry;
use nacre_keys::{
    Authority, ClientTls, Fingerprint, Key, LIFETIME, Origin, Registry, Request, Revoked, ServerTls, Token,
};
use nacre_mgs::Mgs;
use nacre_rpc::tcp::{ClientIdentity, TcpMgs};
use nacre_rpc::{ClientConfig, MgsEndpoint};
use nacre_types::{ClientUuid, Identity, KeyId, Nid, Roles, Status, TargetId};
use nacre_wire::mgs::{Hidden, MgsReply, MgsRequest};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Subdirectory for keys in the directory of a file system.
pub const DIR: &str = "keys";
/// Name of the key for mounts outside `nacre up`, on the host of the authority.
const LOCAL: &str = "local";
/// Name of the enrolled key.
const ENROLLED: &str = "host";
/// Environment variable with another directory for keys of clients than the user's own.
const STORE_VARIABLE: &str = "NACRE_KEYS";
/// Timeout for the management server to enrol a key.
const ENROL_LIMIT: Duration = Duration::from_secs(10);

/// Origin of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// This host has the authority, which signs the key.
    Authority,
    /// The key was enrolled; the management server renews it.
    Enrolled,
}

/// A directory of keys.
#[derive(Clone, Debug)]
struct Place {
    dir: PathBuf,
    fsname: String,
    source: Source,
}

impl Place {
    /// Returns the place of the file system in `dir`, if it has keys.
    fn of(dir: &Path) -> Option<Place> {
        let keys = dir.join(DIR);
        let source = match () {
            () if Authority::is_in(&keys) => Source::Authority,
            () if Key::is_in(&keys, ENROLLED) => Source::Enrolled,
            () => return None,
        };
        let instance = Instance::open(dir).ok().flatten()?;
        Some(Place { dir: keys, fsname: instance.superblock.fsname, source })
    }

    /// Returns the places for clients of file systems of this name: authorities of this user, and enrolled
    /// keys.
    fn known(fsname: &str) -> Vec<Place> {
        let dirs = registry::running().into_iter().filter_map(|run| parent_of(&run));
        let mut places: Vec<Place> = dirs.filter_map(|dir| Place::of(&dir)).collect();
        places.retain(|place| place.fsname == fsname && place.source == Source::Authority);
        places.extend(enrolled(fsname));
        places.sort_by(|a, b| a.dir.cmp(&b.dir));
        places.dedup_by(|a, b| a.dir == b.dir);
        places
    }

    /// Returns the authority of the file system whose further targets the directory holds, if the same user
    /// has it on this host.
    fn of_whole(instance: &Instance) -> Option<Place> {
        let part = &instance.superblock;
        let is_whole = |dir: &PathBuf| {
            let whole = Instance::open(dir).ok().flatten();
            whole.is_some_and(|whole| whole.superblock.fs_uuid == part.fs_uuid)
        };
        let dirs = registry::running().into_iter().filter_map(|run| parent_of(&run));
        let mut places = dirs.filter(is_whole).filter_map(|dir| Place::of(&dir));
        places.find(|place| place.source == Source::Authority)
    }

    /// Serialises processes that start at the same time, so that they create one key.
    fn lock(&self) -> Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        let lock = options.create(true).append(true).mode(0o600).open(self.dir.join("lock"));
        let lock = lock.and_then(|file| file.lock().map(|()| file));
        lock.map_err(Failure::because(format!("lock {}", self.dir.display())))
    }

    /// Returns the key of this name, created or renewed if that is due and the authority is on this host.
    fn key(&self, name: &str, roles: Roles) -> Result<Key> {
        if self.source == Source::Enrolled {
            return Key::load(&self.dir, ENROLLED).map_err(unusable);
        }
        let _lock = self.lock()?;
        let registry = Registry::of(&self.dir);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let shown = format!("{name} on {host}");
        let known = if Key::is_in(&self.dir, name) {
            Some(Key::load(&self.dir, name).map_err(unusable)?)
        } else {
            None
        };
        let id = match known {
            Some(key) if key.identity.roles == roles && !is_due(key.identity.until_s) => return Ok(key),
            Some(key) => key.identity.id,
            // A target belongs to the number of the key that registered it: a key file that was removed is
            // recreated under its number.
            None => match registry.keys().map_err(unusable)?.into_iter().find(|key| key.name == shown) {
                Some(issued) => issued.id,
                None => Authority::draw_id().map_err(unusable)?,
            },
        };
        let authority = Authority::load(&self.dir, &self.fsname).map_err(unusable)?;
        let identity = Identity::new(&self.fsname, id, roles, &shown);
        let key = authority.make_key(&identity, LIFETIME).map_err(unusable)?;
        key.save(&self.dir, name).map_err(unusable)?;
        registry.note(&key.identity, Origin::Home).map_err(unusable)?;
        Ok(key)
    }

    /// Returns a key with a later end from the management server, or the one that another process of this
    /// host fetched meanwhile.
    fn renewed(&self, old: &Own, mgs: &dyn MgsEndpoint) -> Result<Key> {
        let _lock = self.lock()?;
        let kept = Key::load(&self.dir, ENROLLED).map_err(unusable)?;
        if kept.identity.until_s > old.until_s.load(Ordering::Relaxed) {
            return Ok(kept);
        }
        let request = Request::new().map_err(unusable)?;
        let csr = request.csr().map_err(unusable)?;
        let key = match mgs.call(&MgsRequest::Renew { csr }) {
            Ok(MgsReply::Certificate { certificate, authority }) => {
                request.finish(&certificate, &authority).map_err(unusable)?
            }
            Ok(_) => return Err(refused(Status::EPROTO)),
            Err(status) => return Err(refused(status)),
        };
        if key.identity.id != kept.identity.id {
            return Err(Failure::new(
                "the management server sent a certificate of another key: it is not used",
            ));
        }
        key.save(&self.dir, ENROLLED).map_err(unusable)?;
        Ok(key)
    }
}

fn refused(status: Status) -> Failure {
    Failure::new(format!("the management server did not renew the key: {status}"))
}

fn unusable(error: nacre_keys::KeyError) -> Failure {
    Failure::new(error.to_string())
}

/// Returns the directory of the file system that contains a run directory.
fn parent_of(run: &RunDir) -> Option<PathBuf> {
    run.path.parent().map(Path::to_owned)
}

/// Returns true if less than a third of the life of a key that ends then is left.
fn is_due(until_s: u64) -> bool {
    let now = nacre_env::clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(until_s).saturating_sub(now) < LIFETIME / 3
}

/// Returns the roles of a process: to serve its targets, and to mount if it does so for the owner of the file
/// system. Servers without a mount are not clients.
fn roles_of(plan: &Plan) -> Roles {
    let client = Roles::CLIENT | Roles::ADMIN;
    let is_client = plan.targets.is_empty() || plan.mount.is_some() || plan.name == NODE;
    let own = if is_client { client } else { Roles::empty() };
    plan.targets.iter().map(|target: &TargetId| target.role()).fold(own, Roles::union)
}

/// Returns the directory of this user's enrolled keys.
fn store() -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os(STORE_VARIABLE) {
        return Ok(dir.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/nacre/keys"));
    }
    let data = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/share"));
    data.or_else(home).map(|dir| dir.join("nacre/keys")).ok_or_else(|| {
        Failure::new(format!("there is no directory for keys of this user: set HOME, or {STORE_VARIABLE}"))
    })
}

/// Returns the enrolled keys of this user for file systems of this name. Each authority has a directory of
/// its own.
fn enrolled(fsname: &str) -> Vec<Place> {
    let Ok(entries) = store().and_then(|dir| fs::read_dir(dir).map_err(Failure::because("read"))) else {
        return Vec::new();
    };
    let is_of = |name: &str| name.rsplit_once('-').is_some_and(|(of, _)| of == fsname);
    let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
    dirs.filter(|dir| dir.file_name().is_some_and(|name| is_of(&name.to_string_lossy())))
        .filter(|dir| Key::is_in(dir, ENROLLED))
        .map(|dir| Place { dir, fsname: fsname.to_owned(), source: Source::Enrolled })
        .collect()
}

/// A key of this process.
#[derive(Debug)]
struct Own {
    place: Place,
    name: String,
    roles: Roles,
    /// End of the key in use, in seconds since 1970; `u64::MAX` for a key that is not renewed.
    until_s: AtomicU64,
    /// End of the key in use, whether or not it is renewed, in seconds since 1970.
    expires_s: AtomicU64,
}

/// Credentials of a process, and the revoked keys that it refuses.
#[derive(Debug)]
pub struct Keys {
    own: Vec<Own>,
    client: ClientTls,
    server: Option<ServerTls>,
    revoked: Arc<Revoked>,
}

impl Keys {
    /// Returns the keys of a process; `None` if its file system has none.
    ///
    /// # Errors
    /// If there are keys that cannot be used.
    pub fn of(plan: &Plan) -> Result<Option<Keys>> {
        let own = parent_of(&plan.run).and_then(|dir| Place::of(&dir));
        let serves = !plan.targets.is_empty();
        match own {
            Some(place) => {
                let places = vec![(place, plan.name.clone())];
                Keys::new(&plan.fsname, places, roles_of(plan), serves)
            }
            None if serves => Ok(None),
            None => Keys::local(&plan.fsname),
        }
    }

    /// Returns the keys of a client that does not belong to the directory of a file system.
    ///
    /// # Errors
    /// As [`Keys::of`].
    pub fn local(fsname: &str) -> Result<Option<Keys>> {
        let places = Place::known(fsname).into_iter().map(|place| (place, LOCAL.to_owned())).collect();
        Keys::new(fsname, places, Roles::CLIENT | Roles::ADMIN, false)
    }

    /// Returns the enrolled keys of the servers in `dir`.
    ///
    /// # Errors
    /// As [`Keys::of`].
    pub fn of_dir(dir: &Path, fsname: &str) -> Result<Option<Keys>> {
        let keys = dir.join(DIR);
        if !Key::is_in(&keys, ENROLLED) {
            return Keys::local(fsname);
        }
        let place = Place { dir: keys, fsname: fsname.to_owned(), source: Source::Enrolled };
        Keys::new(fsname, vec![(place, ENROLLED.to_owned())], Roles::empty(), false)
    }

    fn new(fsname: &str, places: Vec<(Place, String)>, roles: Roles, serves: bool) -> Result<Option<Keys>> {
        if !places.is_empty() {
            hide_memory()?;
        }
        let keys = places.iter().map(|(place, name)| place.key(name, roles)).collect::<Result<Vec<Key>>>()?;
        let Some(first) = keys.first() else { return Ok(None) };
        let revoked = Arc::new(Revoked::default());
        let client = ClientTls::new(fsname, &keys).map_err(unusable)?.with_revoked(revoked.clone());
        let enrols = roles.contains(Roles::MGS);
        let server = match serves {
            true => Some(ServerTls::new(first, enrols, revoked.clone()).map_err(unusable)?),
            false => None,
        };
        // A final key is not renewed, so it is never due.
        let end = |identity: &Identity| if identity.is_final { u64::MAX } else { identity.until_s };
        let ends = keys.iter().map(|key| AtomicU64::new(end(&key.identity)));
        let own = places.into_iter().zip(ends).zip(&keys).map(|(((place, name), until_s), key)| {
            let expires_s = AtomicU64::new(key.identity.until_s);
            Own { place, name, roles, until_s, expires_s }
        });
        let own = own.collect();
        Ok(Some(Keys { own, client, server, revoked }))
    }

    /// Returns the TLS settings for connections to servers.
    pub fn client(&self) -> ClientTls {
        self.client.clone()
    }

    /// Returns the TLS settings for incoming connections, if this process serves.
    pub fn server(&self) -> Option<ServerTls> {
        self.server.clone()
    }

    /// Returns the number of the key that this process serves with.
    pub fn server_id(&self) -> Option<KeyId> {
        self.server.as_ref().map(|server| server.identity().id)
    }

    /// Returns the certificate of the first key's authority, as PEM.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn authority(&self) -> Result<String> {
        let own = self.own.first().ok_or_else(|| Failure::new("there is no key"))?;
        let key = own.place.key(&own.name, own.roles)?;
        Ok(key.authority_pem())
    }

    /// Returns the end of the key that expires first, in seconds since 1970; `None` if all are valid for ever.
    pub fn expires_s(&self) -> Option<u64> {
        let ends = self.own.iter().map(|own| own.expires_s.load(Ordering::Relaxed));
        ends.min().filter(|end_s| *end_s != u64::MAX)
    }

    /// Replaces the list of revoked keys, which are refused from then on.
    pub fn revoke(&self, revoked: &[KeyId]) {
        if self.revoked.set(revoked.iter().copied()) {
            log::info!("{} keys are revoked", revoked.len());
        }
    }

    /// Renews keys that are due; called periodically.
    ///
    /// # Errors
    /// The first failure to renew a key.
    pub fn renew(&self, mgs: &dyn MgsEndpoint) -> Result<()> {
        for own in self.own.iter().filter(|own| is_due(own.until_s.load(Ordering::Relaxed))) {
            let key = match own.place.source {
                Source::Authority => own.place.key(&own.name, own.roles)?,
                Source::Enrolled => own.place.renewed(own, mgs)?,
            };
            self.client.renew(&key).map_err(unusable)?;
            if let Some(server) = &self.server {
                server.renew(&key).map_err(unusable)?;
            }
            own.until_s.store(key.identity.until_s, Ordering::Relaxed);
            own.expires_s.store(key.identity.until_s, Ordering::Relaxed);
            log::info!("key {} was renewed", key.identity.id);
        }
        Ok(())
    }
}

/// Returns the directory of the authority of the file system in `dir`, if it has one.
pub fn authority_of(dir: &Path) -> Option<PathBuf> {
    Some(dir.join(DIR)).filter(|keys| Authority::is_in(keys))
}

/// Keeps the memory of this process out of core dumps, and from other processes of its user, before it holds
/// keys. Commands can still read its state, its name and its mounts.
fn hide_memory() -> Result<()> {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .and_then(|()| setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }))
        .map_err(Failure::because("keep keys out of core dumps"))
}

/// Creates the authority of a file system and returns its fingerprint.
///
/// # Errors
/// If its management server is in another directory, or it has an authority.
pub fn init(instance: &Instance) -> Result<String> {
    check_home(instance)?;
    if authority_of(&instance.dir).is_some() {
        return Err(Failure::new(format!("the file system in {} has keys already", instance.dir.display())));
    }
    hide_memory()?;
    let authority =
        Authority::create(&instance.dir.join(DIR), &instance.superblock.fsname).map_err(unusable)?;
    Ok(authority.fingerprint().to_string())
}

/// Replaces the authority of a stopped file system and returns the fingerprint of the new one. Keys of the
/// old authority are invalid from then on.
///
/// # Errors
/// If its management server is in another directory, or it has no authority.
pub fn rotate(instance: &Instance) -> Result<String> {
    check_home(instance)?;
    let keys = instance.dir.join(DIR);
    if authority_of(&instance.dir).is_none() {
        let dir = instance.dir.display();
        return Err(Failure::new(format!(
            "the file system in {dir} has no keys: 'nacre key init {dir}' makes them"
        )));
    }
    hide_memory()?;
    let new = instance.dir.join("keys.new");
    remove_all(&new)?;
    let authority = Authority::create(&new, &instance.superblock.fsname).map_err(unusable)?;
    forget(instance)?;
    // One atomic exchange: without an authority the servers would be open.
    rustix::fs::renameat_with(
        rustix::fs::CWD,
        &new,
        rustix::fs::CWD,
        &keys,
        rustix::fs::RenameFlags::EXCHANGE,
    )
    .map_err(Failure::because(format!("replace {}", keys.display())))?;
    remove_all(&new)?;
    Ok(authority.fingerprint().to_string())
}

/// Removes the keys of servers from the configuration of a stopped file system, so that its targets can
/// register with new ones.
///
/// # Errors
/// If its configuration cannot be read or written.
pub fn forget(instance: &Instance) -> Result<()> {
    let mgs = Mgs::open(&instance.target_dir(TargetId::mgt()));
    let mgs = mgs.map_err(Failure::because("open the management target"))?;
    mgs.forget_keys().map_err(Failure::because("write the configuration"))
}

fn remove_all(dir: &Path) -> Result<()> {
    let removed = if_there(fs::remove_dir_all(dir));
    removed.map(drop).map_err(Failure::because(format!("remove {}", dir.display())))
}

fn check_home(instance: &Instance) -> Result<()> {
    if !instance.is_outlying() {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has targets of a file system whose management server is elsewhere: make the keys there",
        instance.dir.display()
    )))
}

/// Enrols a key for a directory with further targets of a file system, if the same user has the authority on
/// this host. Does nothing if it has one, or the authority is on another host. The sandbox limits the servers
/// to their own directory, so that they cannot create a key themselves.
///
/// # Errors
/// If the key cannot be created or stored.
pub fn enrol_here(instance: &Instance) -> Result<()> {
    let dir = instance.dir.join(DIR);
    let Some(whole) = Place::of_whole(instance).filter(|_| !Key::is_in(&dir, ENROLLED)) else {
        return Ok(());
    };
    hide_memory()?;
    let authority = Authority::load(&whole.dir, &whole.fsname).map_err(unusable)?;
    let name = format!("targets in {}", instance.dir.display());
    let id = Authority::draw_id().map_err(unusable)?;
    let identity = Identity::new(&whole.fsname, id, Roles::MDS | Roles::OSS, &name);
    let key = authority.make_key(&identity, LIFETIME).map_err(unusable)?;
    Registry::of(&whole.dir).note(&key.identity, Origin::Home).map_err(unusable)?;
    key.save(&dir, ENROLLED).map_err(unusable)
}

/// Holder of an enrolled key, which determines its directory.
#[derive(Clone, Copy, Debug)]
pub enum Holder<'a> {
    /// This user, for mounts.
    Client,
    /// Servers of this directory.
    Servers(&'a Path),
}

/// Enrols a key for this host or user at the management server `mgs`, by a token.
///
/// The private key is stored before the request is sent: if the answer is lost, the same command obtains the
/// key.
///
/// # Errors
/// If the server does not answer, is not that of the token, or refuses the token; if the key cannot be
/// stored.
pub fn enrol(token: &Token, mgs: &[Nid], fsname: &str, holder: Holder<'_>) -> Result<Identity> {
    let dir = match holder {
        Holder::Client => store()?.join(format!("{fsname}-{}", &token.authority.to_string()[..16])),
        Holder::Servers(dir) => dir.join(DIR),
    };
    let pending = format!("pending-{}", token.id);
    hide_memory()?;
    let request = Request::kept(&dir, &pending).map_err(unusable)?;
    let csr = request.csr().map_err(unusable)?;
    let tls = ClientTls::unknown(token.authority).map_err(unusable)?;
    let client = ClientUuid(random_uuid()?);
    let identity = ClientIdentity { client, fsname: fsname.to_owned(), is_server: false };
    let config = ClientConfig {
        tls: Some(tls),
        first_connect_deadline: ENROL_LIMIT,
        refused_deadline: Some(Duration::ZERO),
        deadline: Some(ENROL_LIMIT),
        ..ClientConfig::default()
    };
    let server = TcpMgs::new(mgs, &identity, &config).map_err(|status| {
        Failure::new(format!("the management server's address cannot be used: {status}"))
    })?;
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let enrol = MgsRequest::Enrol { token: token.id.0, secret: Hidden(token.secret.0.to_vec()), name, csr };
    let nids: Vec<String> = mgs.iter().map(ToString::to_string).collect();
    let (certificate, authority) = match server.call(&enrol) {
        Ok(MgsReply::Certificate { certificate, authority }) => (certificate, authority),
        Ok(_) => return Err(not_enrolled(Status::EPROTO, &nids.join(", "))),
        Err(status) => return Err(not_enrolled(status, &nids.join(", "))),
    };
    if Fingerprint::of(&authority) != token.authority {
        return Err(not_enrolled(Status::EPROTO, &nids.join(", ")));
    }
    let key = request.finish(&certificate, &authority).map_err(unusable)?;
    if key.identity.fsname != fsname {
        return Err(Failure::new(format!(
            "the token is for file system '{}', not for '{fsname}': name that one, or ask for another token",
            key.identity.fsname
        )));
    }
    key.save(&dir, ENROLLED).map_err(unusable)?;
    Request::forget(&dir, &pending).map_err(unusable)?;
    Ok(key.identity)
}

fn not_enrolled(status: Status, nids: &str) -> Failure {
    Failure::new(match status {
        Status::EKEYREJECTED => format!(
            "the management server at {nids} does not take the token: it was used, has expired, or is of another file system; ask \
             its administrator for another one ('nacre key token')"
        ),
        Status::ETIMEDOUT | Status::ECONNREFUSED => {
            format!("no management server answers at {nids}: check the address and that it runs")
        }
        Status::EOPNOTSUPP => format!("the file system at {nids} has no keys, so that it needs no token"),
        status => format!("the management server at {nids} enrols no key: {status}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> (Place, Authority) {
        let place = Place { dir: dir.join(DIR), fsname: "fs".to_owned(), source: Source::Authority };
        let authority = Authority::create(&place.dir, "fs").expect("an authority");
        (place, authority)
    }

    #[test]
    fn a_key_is_made_once_and_renewed_under_its_number_before_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let (place, authority) = place(dir.path());
        let roles = Roles::CLIENT | Roles::ADMIN;
        let first = place.key("mount", roles).expect("a key").identity;
        assert_eq!(place.key("mount", roles).expect("the same").identity, first);
        let old = authority.make_key(&first, LIFETIME / 4).expect("a key");
        old.save(&place.dir, "mount").expect("written");
        let renewed = place.key("mount", roles).expect("a key").identity;
        assert!(renewed.id == first.id && renewed.until_s >= first.until_s);
        // A process with more roles than before needs a new key.
        let more = place.key("mount", roles | Roles::OSS).expect("a key").identity;
        assert_eq!((more.id, more.roles), (first.id, roles | Roles::OSS));
        // A removed key file keeps its number.
        fs::remove_file(place.dir.join("mount.pem")).expect("removed");
        assert_eq!(place.key("mount", roles).expect("a key").identity.id, first.id);
        let issued = Registry::of(&place.dir).keys().expect("listed");
        assert_eq!(issued.iter().map(|key| key.id).collect::<Vec<_>>(), [first.id]);
    }

    /// A management server that is unreachable.
    struct Nobody;

    impl MgsEndpoint for Nobody {
        fn call(&self, _: &MgsRequest) -> nacre_types::StatusResult<MgsReply> {
            Err(Status::ETIMEDOUT)
        }
    }

    /// A management server that signs every request, under another number if set.
    struct Signs<'a>(&'a Authority, Identity);

    impl MgsEndpoint for Signs<'_> {
        fn call(&self, request: &MgsRequest) -> nacre_types::StatusResult<MgsReply> {
            let MgsRequest::Renew { csr } = request else { return Err(Status::EPROTO) };
            let csr = nacre_keys::Csr::read(csr).expect("a request");
            let certificate = self.0.sign(&csr, &self.1, LIFETIME).expect("signed").to_vec();
            Ok(MgsReply::Certificate { certificate, authority: self.0.certificate().to_vec() })
        }
    }

    #[test]
    fn an_enrolled_key_is_renewed_by_the_management_server_before_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_, authority) = place(&dir.path().join("home"));
        let host = Place { dir: dir.path().join("host"), fsname: "fs".to_owned(), source: Source::Enrolled };
        let identity = Identity::new("fs", KeyId(7), Roles::OSS, "host");
        let save = |identity: &Identity, life| {
            let key = authority.make_key(identity, life).expect("a key");
            key.save(&host.dir, ENROLLED).expect("written");
        };
        save(&identity, LIFETIME / 4);
        let processes = [(); 2].map(|()| {
            let places = vec![(host.clone(), "ost0000".to_owned())];
            Keys::new("fs", places, Roles::empty(), true).expect("keys").expect("some")
        });
        let until = |keys: &Keys| keys.own[0].until_s.load(Ordering::Relaxed);
        let first = until(&processes[0]);
        let other = Signs(&authority, Identity { id: KeyId(8), ..identity.clone() });
        assert!(processes[0].renew(&other).is_err(), "the certificate of another key");
        assert_eq!(Key::load(&host.dir, ENROLLED).expect("kept").identity.id, KeyId(7));
        processes[0].renew(&Signs(&authority, identity.clone())).expect("renewed");
        let kept = Key::load(&host.dir, ENROLLED).expect("kept").identity;
        assert!(
            until(&processes[0]) > first && kept.until_s == until(&processes[0]) && kept.id == identity.id
        );
        // Another process of the host adopts the renewed key without a request.
        processes[1].renew(&Nobody).expect("there is one");
        assert_eq!(until(&processes[1]), kept.until_s);
        // A final key (`--key-expires`) is never renewed.
        save(&Identity { is_final: true, ..identity }, Duration::from_secs(60));
        let places = vec![(host.clone(), "mount".to_owned())];
        let keys = Keys::new("fs", places, Roles::empty(), false).expect("keys").expect("some");
        keys.renew(&Nobody).expect("nothing is due");
    }

    #[test]
    fn a_process_goes_on_with_a_renewed_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let (place, _) = place(dir.path());
        let places = vec![(place.clone(), "ost0000".to_owned())];
        let keys = Keys::new("fs", places, Roles::OSS, true).expect("keys").expect("some");
        let until = || keys.own[0].until_s.load(Ordering::Relaxed);
        let first = until();
        keys.renew(&Nobody).expect("nothing is due");
        assert_eq!(until(), first);
        keys.own[0].until_s.store(0, Ordering::Relaxed);
        keys.renew(&Nobody).expect("renewed");
        assert_eq!(until(), first, "another process had renewed it already");
    }
}
