//! The management service: holds the configuration in memory and on disk, and wakes callers that wait for a
//! change.

use crate::enrolment::{Enrolment, TokenRequest};
use crate::error::Error;
use crate::{nodemaps, record, state};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::twice;
use nacre_keys::SharedClock;
use nacre_params::{Event, EventStats};
use nacre_rpc::{MgsPeer, MgsService};
use nacre_types::{KeyId, Roles, Status, StatusResult, TargetKind};
use nacre_wire::mgs::{FsConfig, MgsReply, MgsRequest, TargetConfig};
use ring::rand::{SecureRandom, SystemRandom};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// Longest time for which `GetConfig` waits for a change.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Interval at which a waiting request checks for an interrupt and for the end of the service.
const WAIT_STEP: Duration = Duration::from_secs(1);
const CONFIG_FILE: &str = "config";

const fn requests(name: &'static str) -> Event {
    Event { name, unit: "reqs" }
}

/// Counted requests, under Lustre's names.
const EVENTS: &[Event] = &[
    requests("mgs_config_read"),
    requests("mgs_target_reg"),
    requests("mgs_set_info"),
    requests("mgs_keys"),
    requests("obd_ping"),
];

/// The management server of one file system. Any thread may call it.
pub struct Mgs {
    stats: EventStats,
    dir: PathBuf,
    shared: Mutex<Shared>,
    changed: Condvar,
    /// Issues keys; set if the file system has an authority.
    enrolment: OnceLock<Enrolment>,
    /// Time base that all servers of the file system share.
    clock: SharedClock,
}

struct Shared {
    config: FsConfig,
    stopping: bool,
}

impl Mgs {
    /// Creates the first configuration of a file system, without targets.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is one, [`Error::Io`].
    pub fn format(dir: &Path, fsname: &str, fs_uuid: [u8; 16]) -> Result<(), Error> {
        fs::create_dir_all(dir).map_err(|source| Error::Io { action: "create", path: dir.into(), source })?;
        if dir.join(CONFIG_FILE).exists() || twice::copy_path(dir, CONFIG_FILE).exists() {
            return Err(Error::Exists { dir: dir.into() });
        }
        persist(dir, &state::new_config(fsname, fs_uuid))
    }

    /// Opens the configuration that is stored in `dir`, and restores a damaged copy of it.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Io`].
    pub fn open(dir: &Path) -> Result<Mgs, Error> {
        let found = load_copies(dir)?;
        if let Err(error) = twice::restore(dir, CONFIG_FILE, &found) {
            log::warn!("cannot write the copy of the configuration in {}: {error}", dir.display());
        }
        let config = found.value;
        Ok(Mgs {
            stats: EventStats::new(EVENTS),
            dir: dir.into(),
            shared: Mutex::new(Shared { config, stopping: false }),
            changed: Condvar::new(),
            enrolment: OnceLock::new(),
            clock: SharedClock::default(),
        })
    }

    /// Enables enrolment, and the distribution of capability keys to servers. Only the first call has an
    /// effect.
    ///
    /// # Errors
    /// Those of storing the configuration.
    pub fn enrol_with(&self, enrolment: Enrolment) -> StatusResult<()> {
        let _ = self.enrolment.set(enrolment);
        self.rotate_capability_keys()
    }

    /// Removes all state of an authority that is being replaced: the key of each target, the revoked keys,
    /// and the capability keys.
    ///
    /// # Errors
    /// Those of storing the configuration.
    pub fn forget_keys(&self) -> StatusResult<()> {
        self.change(|config| Ok(state::plan_forget_keys(config))).map(drop)
    }

    /// Adds a new capability key if the newest is due for rotation; to be called periodically.
    ///
    /// # Errors
    /// Those of storing the configuration.
    pub fn rotate_capability_keys(&self) -> StatusResult<()> {
        let now = self.clock.now_s();
        if self.enrolment.get().is_none() || !state::is_capability_key_due(&self.shared.lock().config, now) {
            return Ok(());
        }
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| Status::EIO)?;
        self.change(|config| {
            let is_due = state::is_capability_key_due(config, now);
            Ok(is_due.then(|| state::plan_capability_key(config, now, secret)))
        })
        .map(drop)
    }

    fn enrolment(&self) -> StatusResult<&Enrolment> {
        self.enrolment.get().ok_or(Status::EOPNOTSUPP)
    }

    /// Revokes a key.
    fn revoke(&self, id: KeyId) -> StatusResult<MgsReply> {
        if !self.enrolment()?.knows(id)? {
            return Err(Status::ENOENT);
        }
        log::warn!("key {id} was revoked");
        self.change(|config| Ok(state::plan_revoke(config, id)))
    }

    /// Returns the counts of requests by kind, failed ones included.
    pub fn stats(&self) -> &EventStats {
        &self.stats
    }

    /// Returns the current configuration.
    pub fn config(&self) -> FsConfig {
        self.shared.lock().config.clone()
    }

    /// Ends all current and future waits with `ESHUTDOWN`. To be called before the stop of the server that
    /// offers this service: that waits for running requests.
    pub fn stop(&self) {
        self.shared.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Waits until the configuration is newer than `version` or `wait` has passed.
    ///
    /// # Errors
    /// `EINTR` if the caller's request is interrupted, `ESHUTDOWN` if the service stops.
    pub fn wait_newer(&self, version: u64, wait: Duration) -> StatusResult<FsConfig> {
        let deadline = Instant::now() + wait.min(WAIT_MAX);
        let mut shared = self.shared.lock();
        if shared.config.version > version {
            return Ok(shared.config.clone());
        }
        nacre_env::blocking(|| {
            while shared.config.version <= version {
                let now = Instant::now();
                if now >= deadline {
                    break;
                }
                if shared.stopping {
                    return Err(Status::ESHUTDOWN);
                }
                self.changed.wait_until(&mut shared, deadline.min(now + WAIT_STEP));
                if nacre_env::interrupted() {
                    return Err(Status::EINTR);
                }
            }
            Ok(shared.config.clone())
        })
    }

    /// Computes a new configuration, stores it, then publishes it. The lock is held across the write, as
    /// changes are rare: no request may see, or build on, a configuration that is not durable.
    fn change(
        &self,
        plan: impl FnOnce(&FsConfig) -> StatusResult<Option<FsConfig>>,
    ) -> StatusResult<MgsReply> {
        let mut shared = self.shared.lock();
        if let Some(next) = plan(&shared.config)? {
            nacre_env::blocking(|| persist(&self.dir, &next)).map_err(|error| {
                log::error!("the configuration was not changed: {error}");
                match error {
                    Error::Io { source, .. } => Status::from_io(&source),
                    _ => Status::EIO,
                }
            })?;
            shared.config = next;
            self.changed.notify_all();
        }
        Ok(self.config_reply(shared.config.clone()))
    }

    fn config_reply(&self, config: FsConfig) -> MgsReply {
        MgsReply::Config { config, now_s: self.clock.now_s() }
    }
}

/// Returns the target with the key that its server has proved to have. A process that contains the management
/// server is trusted to state its own key.
fn proved(target: &TargetConfig, peer: MgsPeer<'_>) -> StatusResult<TargetConfig> {
    let key = match peer {
        MgsPeer::Local => target.key,
        MgsPeer::Open => None,
        MgsPeer::Unknown => return Err(Status::ENOKEY),
        MgsPeer::Known(identity) => {
            let needed = match target.target.kind {
                TargetKind::Mdt => Roles::MDS,
                TargetKind::Ost => Roles::OSS,
                TargetKind::Mgt => Roles::MGS,
            };
            if !identity.roles.contains(needed) {
                return Err(Status::EPERM);
            }
            Some(identity.id)
        }
    };
    Ok(TargetConfig { key, ..target.clone() })
}

/// Removes the parts of a reply that are for servers only.
fn for_peer(reply: MgsReply, peer: MgsPeer<'_>) -> MgsReply {
    let MgsReply::Config { mut config, now_s } = reply else { return reply };
    match peer {
        MgsPeer::Local => {}
        MgsPeer::Known(identity) if identity.roles.intersects(Roles::MDS | Roles::OSS | Roles::MGS) => {}
        // Without keys servers, which need nodemaps, cannot be distinguished from clients.
        MgsPeer::Open => config.capability_keys.clear(),
        MgsPeer::Unknown | MgsPeer::Known(_) => config = config.without_secrets(),
    }
    MgsReply::Config { config, now_s }
}

impl Mgs {
    /// Returns whether the sender's key may replace the key that registered a target: both must belong to the
    /// owner of the file system, on this host.
    fn may_take_over(
        &self,
        config: &FsConfig,
        target: &TargetConfig,
        peer: MgsPeer<'_>,
    ) -> StatusResult<bool> {
        let owner = config.targets.iter().find(|known| known.target == target.target);
        let Some(owner) = owner.and_then(|known| known.key) else { return Ok(true) };
        let Some(enrolment) = self.enrolment.get() else { return Ok(matches!(peer, MgsPeer::Local)) };
        match peer {
            MgsPeer::Local => enrolment.is_home(owner),
            MgsPeer::Known(identity) => Ok(enrolment.is_home(owner)? && enrolment.is_home(identity.id)?),
            MgsPeer::Open | MgsPeer::Unknown => Ok(false),
        }
    }

    fn run(&self, peer: MgsPeer<'_>, request: &MgsRequest) -> StatusResult<MgsReply> {
        match request {
            MgsRequest::GetConfig { fsname, newer_than, wait_ms } => {
                if *fsname != self.shared.lock().config.fsname {
                    return Err(Status::ENOENT);
                }
                let wait = Duration::from_millis(u64::from(*wait_ms));
                self.wait_newer(*newer_than, wait).map(|config| self.config_reply(config))
            }
            MgsRequest::RegisterTarget { fsname, fs_uuid, target } => {
                let target = proved(target, peer)?;
                self.change(|config| {
                    let may_take_over = self.may_take_over(config, &target, peer)?;
                    state::plan_register(config, fsname, fs_uuid, &target, may_take_over)
                })
            }
            MgsRequest::AddTarget { fsname, fs_uuid, target } => {
                let target = proved(target, peer)?;
                self.change(|config| state::plan_add(config, fsname, fs_uuid, &target))
            }
            MgsRequest::SetParam { name, value } => {
                self.change(|config| state::plan_set_param(config, name, value))
            }
            MgsRequest::ChangePool { pool, change } => {
                self.change(|config| state::plan_change_pool(config, pool, *change).map(Some))
            }
            MgsRequest::ChangeNodemap { name, change } => {
                log::warn!("nodemap {name}: {change}");
                self.change(|config| nodemaps::plan_change(config, name, change))
            }
            MgsRequest::Ping => Ok(MgsReply::Done),
            MgsRequest::Enrol { token, secret, name, csr } => {
                self.enrolment()?.enrol(*token, secret, name, csr)
            }
            MgsRequest::Renew { csr } => match peer {
                MgsPeer::Known(identity) => self.enrolment()?.renew(identity, csr),
                MgsPeer::Local | MgsPeer::Open | MgsPeer::Unknown => Err(Status::ENOKEY),
            },
            MgsRequest::CreateToken { grants, expires_s, uses, lifetime_s } => {
                let fsname = self.shared.lock().config.fsname.clone();
                let requested =
                    TokenRequest { grants, expires_s: *expires_s, uses: *uses, lifetime_s: *lifetime_s };
                self.enrolment()?.make_token(&fsname, &requested)
            }
            MgsRequest::ListKeys => {
                let revoked = self.shared.lock().config.revoked.clone();
                self.enrolment()?.keys(&revoked)
            }
            MgsRequest::RevokeKey { id } => self.revoke(*id),
        }
    }
}

impl MgsService for Mgs {
    fn handle(&self, peer: MgsPeer<'_>, request: &MgsRequest) -> StatusResult<MgsReply> {
        let name = match request {
            MgsRequest::GetConfig { .. } => "mgs_config_read",
            MgsRequest::RegisterTarget { .. } | MgsRequest::AddTarget { .. } => "mgs_target_reg",
            MgsRequest::SetParam { .. }
            | MgsRequest::ChangePool { .. }
            | MgsRequest::ChangeNodemap { .. } => "mgs_set_info",
            MgsRequest::Ping => "obd_ping",
            MgsRequest::Enrol { .. }
            | MgsRequest::Renew { .. }
            | MgsRequest::CreateToken { .. }
            | MgsRequest::ListKeys
            | MgsRequest::RevokeKey { .. } => "mgs_keys",
        };
        self.stats.count(Event::index_of(EVENTS, name), 0);
        self.run(peer, request).map(|reply| for_peer(reply, peer))
    }
}

/// Loads the stored configuration of `dir` without a service; for tools that inspect a stopped file system.
///
/// # Errors
/// [`Error::Missing`], [`Error::Damaged`], [`Error::Io`].
pub fn load(dir: &Path) -> Result<FsConfig, Error> {
    Ok(load_copies(dir)?.value)
}

/// Loads as [`load`] does, and reports which of the two copies of the configuration are damaged.
///
/// # Errors
/// As [`load`].
pub fn load_copies(dir: &Path) -> Result<twice::Found<FsConfig>, Error> {
    let format = twice::Format {
        decode: |bytes, path| {
            let damaged = |line, what| Error::Damaged { path: path.to_owned(), line, what };
            let text = std::str::from_utf8(bytes).map_err(|_| damaged(0, "it is not text"))?;
            if let Some(found) = record::version_of(text).filter(|found| *found != record::VERSION) {
                return Err(Error::Version { path: path.to_owned(), found, known: record::VERSION });
            }
            record::decode(text).map_err(|error| damaged(error.line, error.what))
        },
        unreadable: |source, path| Error::Io { action: "read", path: path.to_owned(), source },
        // The other copy must not replace what a newer program has written.
        is_final: |error| matches!(error, Error::Version { .. }),
    };
    twice::read(dir, CONFIG_FILE, &format)?.ok_or_else(|| Error::Missing { dir: dir.into() })
}

/// Restores a damaged copy of the configuration from the other one.
///
/// # Durability
/// Durable on return.
///
/// # Errors
/// As [`load`]; those of the system.
pub fn restore(dir: &Path) -> Result<(), Error> {
    let fail = |source| Error::Io { action: "write", path: dir.join(CONFIG_FILE), source };
    twice::restore(dir, CONFIG_FILE, &load_copies(dir)?).map_err(fail)
}

/// Writes a new file and renames it into place; each step is made durable.
fn persist(dir: &Path, config: &FsConfig) -> Result<(), Error> {
    let path = dir.join(CONFIG_FILE);
    let fresh = dir.join("config.new");
    let fail = |action, path: &Path| {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    };
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let mut file = file.map_err(fail("create", &fresh))?;
    file.write_all(record::encode(config).as_bytes()).map_err(fail("write", &fresh))?;
    file.sync_all().map_err(fail("sync", &fresh))?;
    fs::rename(&fresh, &path).map_err(fail("rename into place", &path))?;
    File::open(dir).and_then(|d| d.sync_all()).map_err(fail("sync", dir))?;
    // The new configuration is already in effect; a failure to write its copy does not change that. The next
    // open writes the copy too.
    if let Err(error) = twice::write_copy(dir, CONFIG_FILE, record::encode(config).as_bytes()) {
        log::warn!("cannot write the copy of {}: {error}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::{Nid, TargetId};
    use nacre_wire::mgs::TargetConfig;
    use std::sync::Arc;

    fn fresh() -> (tempfile::TempDir, Arc<Mgs>) {
        let dir = tempfile::tempdir().expect("a directory");
        Mgs::format(dir.path(), "nacre", [1; 16]).expect("format");
        let mgs = Arc::new(Mgs::open(dir.path()).expect("open"));
        (dir, mgs)
    }

    fn set(mgs: &Mgs, value: &str) -> StatusResult<MgsReply> {
        mgs.handle(
            MgsPeer::Local,
            &MgsRequest::SetParam { name: "lov.stripecount".into(), value: value.into() },
        )
    }

    fn get(newer_than: u64, wait_ms: u32) -> MgsRequest {
        MgsRequest::GetConfig { fsname: "nacre".into(), newer_than, wait_ms }
    }

    #[test]
    fn what_was_answered_is_there_after_reopening() {
        let (dir, mgs) = fresh();
        let target = TargetConfig { target: TargetId::ost(3), nids: vec![Nid::Lo], active: true, key: None };
        let register =
            MgsRequest::RegisterTarget { fsname: "nacre".into(), fs_uuid: [1; 16], target: target.clone() };
        mgs.handle(MgsPeer::Local, &register).expect("register");
        set(&mgs, "2").expect("set");
        let reopened = Mgs::open(dir.path()).expect("reopen");
        assert_eq!(reopened.config(), mgs.config());
        assert_eq!(reopened.config().targets, [target]);
        assert!(matches!(Mgs::format(dir.path(), "nacre", [1; 16]), Err(Error::Exists { .. })));
    }

    #[test]
    fn a_wait_ends_with_the_change() {
        let (_dir, mgs) = fresh();
        let waiter = Arc::clone(&mgs);
        let wait = nacre_env::thread::spawn(move || waiter.handle(MgsPeer::Local, &get(1, 60_000)));
        set(&mgs, "2").expect("set");
        let reply = wait.join().expect("waiting thread").expect("reply");
        assert!(matches!(reply, MgsReply::Config { config, .. } if config.version == 2));
    }

    #[test]
    fn a_wait_ends_with_its_time_and_with_the_service() {
        let (_dir, mgs) = fresh();
        let reply = mgs.handle(MgsPeer::Local, &get(1, 10)).expect("reply");
        assert!(matches!(reply, MgsReply::Config { config, .. } if config.version == 1));
        mgs.stop();
        assert_eq!(mgs.handle(MgsPeer::Local, &get(1, 60_000)), Err(Status::ESHUTDOWN));
        mgs.handle(MgsPeer::Local, &get(0, 60_000)).expect("what is known is told until the end");
        let other = MgsRequest::GetConfig { fsname: "other".into(), newer_than: 0, wait_ms: 0 };
        assert_eq!(mgs.handle(MgsPeer::Local, &other), Err(Status::ENOENT));
    }

    #[test]
    fn a_change_that_cannot_be_stored_is_not_shown() {
        let (dir, mgs) = fresh();
        fs::remove_dir_all(dir.path()).expect("take the directory away");
        assert_eq!(set(&mgs, "2"), Err(Status::ENOENT));
        assert_eq!(mgs.config().version, 1);
    }

    #[test]
    fn a_damaged_or_missing_file_is_restored_from_its_copy_and_named_without_one() {
        let (dir, mgs) = fresh();
        set(&mgs, "2").expect("set");
        let config = mgs.config();
        drop(mgs);
        let (file, copy) = (dir.path().join(CONFIG_FILE), twice::copy_path(dir.path(), CONFIG_FILE));
        for path in [&file, &copy] {
            let whole = fs::read(path).expect("read");
            fs::write(path, "nacre-config 1\nversion 1\n").expect("damage");
            assert_eq!(load_copies(dir.path()).expect("loaded").damaged, std::slice::from_ref(path));
            assert_eq!(Mgs::open(dir.path()).expect("opens").config(), config);
            assert_eq!(fs::read(path).expect("read"), whole);
        }
        fs::remove_file(&copy).expect("remove");
        fs::write(dir.path().join(CONFIG_FILE), "nacre-config 1\nversion 1\n").expect("damage");
        assert!(matches!(Mgs::open(dir.path()), Err(Error::Damaged { .. })));
        fs::write(dir.path().join(CONFIG_FILE), b"\xff\xfe").expect("damage");
        assert!(matches!(Mgs::open(dir.path()), Err(Error::Damaged { .. })));
        fs::remove_file(dir.path().join(CONFIG_FILE)).expect("remove");
        assert!(matches!(Mgs::open(dir.path()), Err(Error::Missing { .. })));
    }

    #[test]
    fn what_a_newer_program_has_written_is_not_replaced_by_an_older_copy() {
        let (dir, _mgs) = fresh();
        let path = dir.path().join(CONFIG_FILE);
        let newer = fs::read_to_string(&path).expect("read").replacen("nacre-config 1", "nacre-config 2", 1);
        fs::write(&path, &newer).expect("write");
        let error = Mgs::open(dir.path()).err().expect("refused");
        assert!(error.to_string().contains("has format 2, and this program reads 1: use "), "{error}");
        assert_eq!(fs::read_to_string(path).expect("read"), newer);
    }
}
