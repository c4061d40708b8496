//! Keys of the processes of this host: where they are, who makes them, and when they are renewed.
//!
//! A file system that has an authority in `keys` of its directory serves no peer without a key. Its processes on this host make their
//! keys themselves; so do mounts by the user that it belongs to, for whom commands find it.

use crate::failure::{Failure, Result};
use crate::instance::Instance;
use crate::node::Plan;
use crate::process::RunDir;
use crate::registry;
use nacre_keys::{Authority, ClientTls, Key, LIFETIME, Revoked, ServerTls};
use nacre_types::{Identity, Roles, TargetId};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Directory of keys in that of a file system.
const DIR: &str = "keys";
/// Key of mounts that are no part of `nacre up`.
const LOCAL: &str = "local";

/// An authority on this host.
#[derive(Clone, Debug)]
struct Place {
    dir: PathBuf,
    fsname: String,
}

impl Place {
    /// That of the file system in `dir`, if it has one.
    fn of(dir: &Path) -> Option<Place> {
        let keys = dir.join(DIR);
        if !Authority::is_in(&keys) {
            return None;
        }
        let instance = Instance::open(dir).ok().flatten()?;
        Some(Place { dir: keys, fsname: instance.superblock.fsname })
    }

    /// Those of file systems of this name that this user's commands know.
    fn known(fsname: &str) -> Vec<Place> {
        let dirs = registry::running().into_iter().filter_map(|run| parent_of(&run));
        let mut places: Vec<Place> = dirs.filter_map(|dir| Place::of(&dir)).collect();
        places.retain(|place| place.fsname == fsname);
        places.sort_by(|a, b| a.dir.cmp(&b.dir));
        places.dedup_by(|a, b| a.dir == b.dir);
        places
    }

    /// The key of this name, made or renewed if that is due.
    fn key(&self, name: &str, roles: Roles) -> Result<Key> {
        // Two mounts that begin together make one key.
        let lock = self.dir.join("lock");
        let mut options = fs::OpenOptions::new();
        let lock = options.create(true).append(true).mode(0o600).open(&lock).and_then(|file| {
            file.lock()?;
            Ok(file)
        });
        let _lock = lock.map_err(Failure::because(format!("lock {}", self.dir.display())))?;
        let known = if Key::is_in(&self.dir, name) {
            Some(Key::load(&self.dir, name).map_err(unusable)?)
        } else {
            None
        };
        let id = match known {
            Some(key) if key.identity.roles == roles && !is_due(key.identity.until_s) => return Ok(key),
            Some(key) => key.identity.id,
            None => Authority::draw_id().map_err(unusable)?,
        };
        let authority = Authority::load(&self.dir, &self.fsname).map_err(unusable)?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let identity = Identity::new(&self.fsname, id, roles, &format!("{name} on {host}"));
        let key = authority.make_key(&identity, LIFETIME).map_err(unusable)?;
        key.save(&self.dir, name).map_err(unusable)?;
        Ok(key)
    }
}

fn unusable(error: nacre_keys::KeyError) -> Failure {
    Failure::new(error.to_string())
}

/// The directory of the file system that a run directory is in.
fn parent_of(run: &RunDir) -> Option<PathBuf> {
    run.path.parent().map(Path::to_owned)
}

/// Less than a third of the life of a key that ends then is left.
fn is_due(until_s: u64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Duration::from_secs(until_s).saturating_sub(now) < LIFETIME / 3
}

/// What a process that serves these targets does, and what the owner of the file system may on its host.
fn roles_of(targets: &[TargetId]) -> Roles {
    targets.iter().map(|target| target.role()).fold(Roles::CLIENT | Roles::ADMIN, Roles::union)
}

/// A key of this process.
#[derive(Debug)]
struct Own {
    place: Place,
    name: String,
    roles: Roles,
    /// When the one that is used ends, in seconds since 1970.
    until_s: AtomicU64,
}

/// What a process proves, and whom it believes.
#[derive(Debug)]
pub struct Keys {
    own: Vec<Own>,
    client: ClientTls,
    server: Option<ServerTls>,
}

impl Keys {
    /// Those of a process; `None`: its file system has none.
    ///
    /// # Errors
    /// If there are some that cannot be used.
    pub fn of(plan: &Plan) -> Result<Option<Keys>> {
        let own = parent_of(&plan.run).and_then(|dir| Place::of(&dir));
        if plan.targets.is_empty() {
            return match own {
                Some(place) => Keys::new(
                    &plan.fsname,
                    vec![(place, plan.name.clone())],
                    Roles::CLIENT | Roles::ADMIN,
                    false,
                ),
                None => Keys::local(&plan.fsname),
            };
        }
        match own {
            Some(place) => {
                Keys::new(&plan.fsname, vec![(place, plan.name.clone())], roles_of(&plan.targets), true)
            }
            None => Ok(None),
        }
    }

    /// Those of a client that is no part of a file system's directory.
    ///
    /// # Errors
    /// As [`Keys::of`].
    pub fn local(fsname: &str) -> Result<Option<Keys>> {
        let places = Place::known(fsname).into_iter().map(|place| (place, LOCAL.to_owned())).collect();
        Keys::new(fsname, places, Roles::CLIENT | Roles::ADMIN, false)
    }

    fn new(fsname: &str, places: Vec<(Place, String)>, roles: Roles, serves: bool) -> Result<Option<Keys>> {
        let keys = places.iter().map(|(place, name)| place.key(name, roles)).collect::<Result<Vec<Key>>>()?;
        let Some(first) = keys.first() else { return Ok(None) };
        let client = ClientTls::new(fsname, &keys).map_err(unusable)?;
        let server = match serves {
            true => Some(ServerTls::new(first, false, Arc::new(Revoked::default())).map_err(unusable)?),
            false => None,
        };
        let ends = keys.iter().map(|key| AtomicU64::new(key.identity.until_s));
        let own =
            places.into_iter().zip(ends).map(|((place, name), until_s)| Own { place, name, roles, until_s });
        let own = own.collect();
        Ok(Some(Keys { own, client, server }))
    }

    /// For connections to servers.
    pub fn client(&self) -> ClientTls {
        self.client.clone()
    }

    /// For connections of others, if this process serves.
    pub fn server(&self) -> Option<ServerTls> {
        self.server.clone()
    }

    /// Renews what is due; to be called now and then.
    ///
    /// # Errors
    /// The first key that could not be renewed.
    pub fn renew(&self) -> Result<()> {
        for own in self.own.iter().filter(|own| is_due(own.until_s.load(Ordering::Relaxed))) {
            let key = own.place.key(&own.name, own.roles)?;
            self.client.renew(&key).map_err(unusable)?;
            if let Some(server) = &self.server {
                server.renew(&key).map_err(unusable)?;
            }
            own.until_s.store(key.identity.until_s, Ordering::Relaxed);
            log::info!("key {} was renewed", key.identity.id);
        }
        Ok(())
    }
}

/// Gives the file system in `dir` an authority; says its fingerprint.
///
/// # Errors
/// If there is none, or it has one.
pub fn init(dir: &Path) -> Result<String> {
    let instance = Instance::open_existing(dir)?;
    let keys = instance.dir.join(DIR);
    if Authority::is_in(&keys) {
        return Err(Failure::new(format!("the file system in {} has keys already", instance.dir.display())));
    }
    if instance.is_outlying() {
        return Err(Failure::new(format!(
            "{} has targets of a file system whose management server is elsewhere: make the keys there",
            instance.dir.display()
        )));
    }
    let authority = Authority::create(&keys, &instance.superblock.fsname).map_err(unusable)?;
    Ok(authority.fingerprint().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_renewed_under_its_number_before_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place { dir: dir.path().join(DIR), fsname: "fs".to_owned() };
        let authority = Authority::create(&place.dir, "fs").expect("an authority");
        let roles = Roles::CLIENT | Roles::ADMIN;
        let first = place.key("mount", roles).expect("a key").identity;
        assert_eq!(place.key("mount", roles).expect("the same").identity, first);
        let old = authority.make_key(&first, LIFETIME / 4).expect("a key");
        old.save(&place.dir, "mount").expect("written");
        let renewed = place.key("mount", roles).expect("a key").identity;
        assert!(renewed.id == first.id && renewed.until_s >= first.until_s);
        // A process that serves more than before needs more.
        let more = place.key("mount", roles | Roles::OSS).expect("a key").identity;
        assert_eq!((more.id, more.roles), (first.id, roles | Roles::OSS));
    }

    #[test]
    fn a_process_goes_on_with_a_renewed_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = Place { dir: dir.path().join(DIR), fsname: "fs".to_owned() };
        Authority::create(&place.dir, "fs").expect("an authority");
        let places = vec![(place.clone(), "ost0000".to_owned())];
        let keys = Keys::new("fs", places, Roles::OSS, true).expect("keys").expect("some");
        let until = || keys.own[0].until_s.load(Ordering::Relaxed);
        let first = until();
        keys.renew().expect("nothing is due");
        assert_eq!(until(), first);
        keys.own[0].until_s.store(0, Ordering::Relaxed);
        keys.renew().expect("renewed");
        assert_eq!(until(), first, "another process had renewed it already");
    }
}
