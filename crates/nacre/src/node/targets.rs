//! Targets of a process: format, open, follow the configuration, close.

use super::links::{Links, remote_nids};
use super::params::Params;
use crate::backend::{Backend, Backends};
use crate::device_words::DeviceWords;
use crate::failure::{Failure, Result};
use crate::instance::{Instance, random_uuid};
use crate::keys;
use crate::ost_cache::{OstCaches, look_with_cache, with_cache};
use crate::ost_class;
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, RwLock};
use nacre_keys::CapabilityKeys;
use nacre_layout::LayoutSpec;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_mds::{Mds, MdsConfig};
use nacre_mgs::{Enrolment, Mgs};
use nacre_oss::{ObjectServer, OssConfig};
use nacre_rpc::tcp::Targets;
use nacre_rpc::{LoMds, LoOss, MdsEndpoint, MdsService, MgsService, NoCallbacks, OssEndpoint, OssService};
use nacre_store::object::block::{DefragSettings, is_block_store};
use nacre_store::object::{
    BlockStore, BlockStoreOptions, FileStore, FileStoreOptions, ObjectError, ObjectStore,
};
use nacre_types::{
    ClientUuid, Cred, Fid, KeyId, Nid, Nodemaps, SetAttr, SetAttrValid, Status, StatusResult, TargetId,
    TargetKind,
};
use nacre_wire::mds::MdsRequest;
use nacre_wire::mgs::{FsConfig, PoolConfig};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Timeout for the disconnects of metadata targets from all object servers together; they would notice the
/// end in time.
const OST_GOODBYE_LIMIT: Duration = Duration::from_secs(1);
/// Timeout of a joining metadata target for MDT0000.
const ACQUAINTANCE_LIMIT: Duration = Duration::from_secs(20);
/// Timeout for the requests of an object server to end at its stop.
const OST_STOP_LIMIT: Duration = Duration::from_secs(20);
/// Longest time that a killed process that has not ended yet may hold the directory of an OST: as long as its
/// device.
const KILLED_LIMIT: Duration = Duration::from_secs(10);
/// Poll interval for it.
const KILLED_POLL: Duration = Duration::from_millis(20);
/// Scrub rate of a store on a device, in bytes per second: a tebibyte in six days.
const SCRUB_RATE: u64 = 2 << 20;

/// Fills the directory of a new target, with the requested back end.
pub fn format_target_on(instance: &Instance, target: TargetId, backends: &Backends) -> Result<()> {
    let dir = instance.target_dir(target);
    let what = format!("format {target}");
    let superblock = &instance.superblock;
    match target.kind {
        TargetKind::Mgt => {
            Mgs::format(&dir, &superblock.fsname, superblock.fs_uuid).map_err(Failure::because(what))
        }
        TargetKind::Mdt => {
            let (root_layout, backend) = (nacre_mds::first_layout(), backends.of(target));
            let data_apart = backend != Backend::Plain;
            let config = MdsConfig { index: target.index, root_layout, data_apart, ..MdsConfig::default() };
            if data_apart && TargetId::mdt_data(target.index).is_none() {
                return Err(Failure::new(format!(
                    "{target} keeps no data of files: leave --mdt-backend out for it"
                )));
            }
            // First, as the device may be refused.
            let data = match backend {
                Backend::Plain | Backend::Summed => None,
                Backend::Block { device, words } => Some(format_block(instance, target, device, words)?),
            };
            Mds::format(&dir, &config).map_err(Failure::because(what.clone()))?;
            let data = data.map(Arc::new);
            give_root_to_formatter(&dir, config, data.clone().map(|data| data as Arc<dyn ObjectStore>))?;
            data.map_or(Ok(()), |data| data.close()).map_err(Failure::because(what))
        }
        TargetKind::Ost => match backends.of(target) {
            plain @ (Backend::Plain | Backend::Summed) => {
                let checksums = plain == Backend::Summed;
                let options =
                    FileStoreOptions { create: true, checksums, ..object_options(instance, target) };
                FileStore::open(&dir, options).and_then(|store| store.close()).map_err(Failure::because(what))
            }
            Backend::Block { device, words } => {
                let store = format_block(instance, target, device, words)?;
                store.close().map_err(Failure::because(what))
            }
        },
    }
}

/// Creates the store of a target on a device.
fn format_block(
    instance: &Instance,
    target: TargetId,
    device: Option<PathBuf>,
    words: DeviceWords,
) -> Result<BlockStore> {
    let size = words.size.unwrap_or_else(|| default_size(instance, target, device.as_deref()));
    let force = words.force;
    let options = BlockStoreOptions { create: true, device, size, force, ..block_options(instance, target) };
    BlockStore::open(&instance.objects_dir(target), options)
        .map_err(Failure::because(format!("format {target}")))
}

/// Returns the default size of the file that is the device of a target: its share of the available space,
/// less a tenth for the index; for an MDT, whose metadata is on the same file system, half of that. The file
/// is sparse. 0 for an existing device.
fn default_size(instance: &Instance, target: TargetId, device: Option<&Path>) -> u64 {
    if device.is_some() {
        return 0;
    }
    let stat = rustix::fs::statvfs(instance.target_dir(target));
    let available = stat.map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let share = available / u64::from(targets_beside(instance, target));
    let share = if target.kind == TargetKind::Mdt { share / 2 } else { share };
    (share - share / 10) >> 20 << 20
}

fn block_options(instance: &Instance, target: TargetId) -> BlockStoreOptions {
    let (name, index_reserve_bytes) = match target.kind {
        TargetKind::Mdt => {
            (TargetId::mdt_data(target.index), Some(nacre_mds::data_reserve(&instance.target_dir(target))))
        }
        _ => (None, None),
    };
    BlockStoreOptions {
        label: format!("{}-{}", instance.superblock.fsname, name.unwrap_or(target)),
        index_reserve_bytes,
        gives_ids: target.kind == TargetKind::Ost,
        scrub_bytes_per_second: SCRUB_RATE,
        defrag: DefragSettings::USUAL,
        ..BlockStoreOptions::default()
    }
}

/// Gives the root directory to the user that creates the file system, as mkfs does for ordinary users:
/// otherwise only root could create the first file.
fn give_root_to_formatter(dir: &Path, config: MdsConfig, data: Option<Arc<dyn ObjectStore>>) -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() || config.index != 0 {
        return Ok(());
    }
    let mds = Mds::open_with(dir, config, Vec::new(), data);
    let mds = mds.map_err(Failure::because("open the new MDT0000"))?;
    let set = SetAttr {
        valid: SetAttrValid::UID | SetAttrValid::GID,
        uid: uid.as_raw(),
        gid: gid.as_raw(),
        ..SetAttr::default()
    };
    let request = MdsRequest::SetAttr { fid: Fid::ROOT, set };
    let client = ClientUuid(random_uuid()?);
    // A new MDT has no other clients.
    let changed = LoMds::connect(mds.clone(), client, Arc::new(NoCallbacks))
        .and_then(|(endpoint, _)| endpoint.call(&Cred::system(), &request));
    changed
        .map_err(|status| Failure::new(format!("cannot set the owner of the root directory: {status}")))?;
    mds.stop().map_err(Failure::because("close the new MDT0000"))
}

fn object_options(instance: &Instance, target: TargetId) -> FileStoreOptions {
    FileStoreOptions {
        label: format!("{}-{target}", instance.superblock.fsname),
        sharers: targets_beside(instance, target),
        ..FileStoreOptions::default()
    }
}

/// Returns how many targets of its kind of this directory are on the local file system of `target`, itself
/// included.
fn targets_beside(instance: &Instance, target: TargetId) -> u32 {
    let device = |target| {
        // A target that does not exist yet will be on the same file system as the others.
        let dir = instance.target_dir(target);
        std::fs::metadata(&dir).or_else(|_| std::fs::metadata(&instance.dir)).map(|meta| meta.dev()).ok()
    };
    let own = device(target);
    let alike = instance.targets().into_iter().filter(|other| other.kind == target.kind);
    let others = alike.filter(|&other| other != target && own.is_some() && device(other) == own).count();
    // A target that is being added is not listed yet.
    u32::try_from(others + 1).unwrap_or(u32::MAX)
}

/// Opens the object store of a target without its cache of small writes.
///
/// # Errors
/// If it cannot be opened, or another process has it.
pub fn open_uncached(
    instance: &Instance,
    target: TargetId,
) -> nacre_store::object::Result<Box<dyn ObjectStore>> {
    let dir = instance.objects_dir(target);
    Ok(match is_block_store(&dir) {
        true => Box::new(BlockStore::open(&dir, block_options(instance, target))?),
        false => Box::new(FileStore::open(&dir, object_options(instance, target))?),
    })
}

/// Like [`open_objects`], read-only: nothing on disk changes, and the file system may be read-only.
///
/// # Errors
/// If it cannot be read, or a process has it.
pub fn look_at_objects(
    instance: &Instance,
    target: TargetId,
) -> nacre_store::object::Result<Box<dyn ObjectStore>> {
    let dir = instance.objects_dir(target);
    let store: Box<dyn ObjectStore> = match is_block_store(&dir) {
        true => {
            let options = BlockStoreOptions {
                create: false,
                read_only: true,
                scrub_bytes_per_second: 0,
                ..block_options(instance, target)
            };
            Box::new(BlockStore::open(&dir, options)?)
        }
        false => {
            let options = object_options(instance, target);
            Box::new(FileStore::open(&dir, FileStoreOptions { read_only: true, ..options })?)
        }
    };
    look_with_cache(&instance.target_dir(target), store)
}

/// Opens the object store of an OST, with its cache of small writes if it has one; or that of an MDT with
/// one.
pub fn open_objects(instance: &Instance, target: TargetId) -> Result<Box<dyn ObjectStore>> {
    let opened = open_uncached(instance, target);
    let opened = opened.and_then(|store| with_cache(&instance.target_dir(target), store));
    opened.map_err(Failure::because(format!("open {target}")))
}

/// Like [`open_objects`], for the process that will serve it and knows that no other does: threads of a
/// killed one may still be ending and hold the directory for up to [`KILLED_LIMIT`]. A program such as `nacre
/// check` holds it longer, and is named in the error.
fn open_served(instance: &Instance, target: TargetId) -> Result<Box<dyn ObjectStore>> {
    let opened = once_free(|| {
        open_uncached(instance, target).and_then(|store| with_cache(&instance.target_dir(target), store))
    });
    opened.map_err(Failure::because(format!("open {target}")))
}

/// Opens once no other process holds it. The end of a process sends no event, so the open is retried.
fn once_free<T>(
    mut open: impl FnMut() -> std::result::Result<T, ObjectError>,
) -> std::result::Result<T, ObjectError> {
    let deadline = Instant::now() + KILLED_LIMIT;
    loop {
        match open() {
            Err(ObjectError::InUse { .. }) if Instant::now() < deadline => {
                nacre_env::thread::sleep(KILLED_POLL)
            }
            opened => return opened,
        }
    }
}

/// Attaches caches of small writes to OSTs that do not run; running ones with the same caches are left alone.
///
/// # Errors
/// If an OST cannot be opened, or its cache cannot be used.
pub fn attach_caches(instance: &Instance, caches: &OstCaches) -> Result<()> {
    for target in caches.indexes().map(TargetId::ost) {
        let Some(cache) = caches.of(target.index) else { continue };
        let dir = instance.target_dir(target);
        let store = match open_uncached(instance, target) {
            Err(ObjectError::InUse { .. }) if cache.is_of(&dir) => continue,
            Err(ObjectError::InUse { .. }) => {
                return Err(Failure::new(format!(
                    "{target} gets no cache while it is in use: stop the file system first with 'nacre down {}'",
                    instance.dir.display()
                )));
            }
            opened => opened.map_err(Failure::because(format!("open {target}")))?,
        };
        if let Some(missed) = cache.attach(&dir, store)? {
            eprintln!("nacre: {target}: discarded as requested: {missed}");
        }
    }
    Ok(())
}

/// Returns the settings of an MDT from the shared parameters.
fn config_of_mdt(index: u16, config: &FsConfig) -> MdsConfig {
    MdsConfig {
        index,
        default_layout: default_layout(config),
        default_hash: default_hash(config),
        scrub_rate: nacre_mds::SCRUB_RATE,
        ..MdsConfig::default()
    }
}

/// Returns the default hash that spreads names over MDTs, from `lov.mdt_hash`.
pub fn default_hash(config: &FsConfig) -> DirHash {
    let name = config.params.iter().find(|(known, _)| known == "lov.mdt_hash").map(|(_, name)| name);
    name.and_then(|name| DirHash::from_name(name)).unwrap_or_default()
}

/// Returns the default striping, from `lov.stripe*`. Values were checked when they were set.
fn default_layout(config: &FsConfig) -> LayoutSpec {
    let value = |name: &str| {
        config.params.iter().find(|(known, _)| known == name).and_then(|(_, value)| value.parse::<i64>().ok())
    };
    LayoutSpec {
        stripe_size: value("lov.stripesize").and_then(|size| u32::try_from(size).ok()),
        stripe_count: value("lov.stripecount").and_then(|count| match count {
            -1 => Some(STRIPE_COUNT_ALL),
            count => u16::try_from(count).ok(),
        }),
        first_ost: value("lov.stripeoffset").and_then(|index| u16::try_from(index).ok()),
        ..LayoutSpec::default()
    }
}

/// NIDs of an MDT, and the key that it belongs to.
type PlaceOfMdt = (Vec<Nid>, Option<KeyId>);
/// An endpoint and its destination.
type WayTo = (PlaceOfMdt, Arc<dyn MdsEndpoint>);

/// Endpoints of this process's MDTs to other MDTs.
#[derive(Default)]
struct MdtWays {
    /// Newest configuration that they were created for.
    version: u64,
    /// Endpoints by both indexes, and the addresses of the other MDT.
    ways: BTreeMap<(u16, u16), WayTo>,
}

/// Services by target; targets may be added at run time.
#[derive(Default)]
pub struct Services {
    mgs: OnceLock<Arc<Mgs>>,
    mdts: RwLock<BTreeMap<u16, Arc<Mds>>>,
    osts: RwLock<BTreeMap<u16, Arc<ObjectServer>>>,
    /// Data on metadata targets, by the index that requests use for it.
    mdt_data: RwLock<BTreeMap<u16, Arc<ObjectServer>>>,
    mdt_ways: Mutex<MdtWays>,
    /// Endpoints of this process's MDTs to OSTs.
    ost_ways: Mutex<Vec<Weak<dyn OssEndpoint>>>,
    /// Keys that sign and verify capabilities here.
    capability_keys: Arc<CapabilityKeys>,
    /// The process is going to listen, and does not yet: clients that have to reconnect cannot.
    is_to_listen: AtomicBool,
}

impl Services {
    /// Announces that the process will listen when everything is open: the recovery window for clients of the
    /// previous run starts then.
    pub fn await_listening(&self) {
        self.is_to_listen.store(true, Ordering::Relaxed);
    }

    /// Starts the recovery window: the process listens.
    pub fn on_listening(&self) {
        self.is_to_listen.store(false, Ordering::Relaxed);
        self.mdts.read().values().for_each(|mds| mds.sessions.on_listening());
        self.osts.read().values().for_each(|server| server.on_listening());
        self.mdt_data.read().values().for_each(|server| server.on_listening());
    }

    /// Opens the management and object targets among `wanted`.
    pub fn open_mgt_and_osts(&self, instance: &Instance, wanted: &[TargetId]) -> Result<()> {
        for &target in wanted {
            match target.kind {
                TargetKind::Mgt => {
                    let dir = instance.target_dir(target);
                    let mgs = Mgs::open(&dir).map_err(Failure::because(format!("open {target}")))?;
                    if let Some(keys) = keys::authority_of(&instance.dir) {
                        let enrolment = Enrolment::load(&keys, &instance.superblock.fsname)
                            .map_err(|error| Failure::new(error.to_string()))?;
                        mgs.enrol_with(enrolment)
                            .map_err(Failure::because("store the key of capabilities"))?;
                    }
                    let _ = self.mgs.set(Arc::new(mgs));
                }
                TargetKind::Ost => {
                    let store = Arc::from(open_served(instance, target)?);
                    let dir = instance.target_dir(target);
                    let server = ObjectServer::open(store, target.index, &dir, &OssConfig::default())
                        .map_err(Failure::because(format!("open {target}")))?;
                    if self.is_to_listen.load(Ordering::Relaxed) {
                        server.await_listening();
                    }
                    server.set_nonrotational(ost_class::is_flash(&dir));
                    server.ask_for_capabilities(self.capability_keys.clone());
                    let started = server.start_trimming().and_then(|()| server.start_scrub(SCRUB_RATE));
                    started.map_err(Failure::because(format!("open {target}")))?;
                    self.osts.write().insert(target.index, Arc::new(server));
                }
                TargetKind::Mdt => {}
            }
        }
        Ok(())
    }

    /// Opens the metadata targets among `wanted`, which need endpoints of the OSTs.
    pub fn open_mdts(
        self: &Arc<Services>,
        instance: &Instance,
        wanted: &[TargetId],
        config: &FsConfig,
        links: &Arc<Links>,
    ) -> Result<()> {
        for &target in wanted.iter().filter(|target| target.kind == TargetKind::Mdt) {
            let osts = self.ways_to_osts(links, config)?;
            let data = match is_block_store(&instance.objects_dir(target)) {
                true => Some(Arc::from(open_served(instance, target)?)),
                false => None,
            };
            let config_of_it = config_of_mdt(target.index, config);
            let mds = Mds::open_with(&instance.target_dir(target), config_of_it, osts, data)
                .map_err(Failure::because(format!("open {target}")))?;
            if self.is_to_listen.load(Ordering::Relaxed) {
                mds.sessions.await_listening();
            }
            mds.capabilities.sign_with(self.capability_keys.clone());
            mds.osts.set_pools(&config.pools);
            mds.space.set_nonrotational(ost_class::is_flash(&instance.target_dir(target)));
            self.open_data(instance, target, &mds)?;
            let (services, links) = (Arc::downgrade(self), links.clone());
            mds.set_newcomers(Box::new(move |index| {
                services.upgrade().ok_or(Status::ESHUTDOWN)?.look_for_mdt(index, &links)
            }));
            self.mdts.write().insert(target.index, mds);
        }
        self.introduce_mdts(config, links)
    }

    /// Applies these nodemaps to the clients of all targets of this process.
    pub fn set_nodemaps(&self, nodemaps: &Nodemaps) {
        let nodemaps = Arc::new(nodemaps.clone());
        self.osts.read().values().for_each(|ost| ost.set_nodemaps(&nodemaps));
        self.mdt_data.read().values().for_each(|data| data.set_nodemaps(&nodemaps));
        self.mds_here().iter().for_each(|(_, mds)| mds.tenants.set_nodemaps(&nodemaps));
    }

    /// Returns the metadata targets of this process.
    fn mds_here(&self) -> Vec<(u16, Arc<Mds>)> {
        self.mdts.read().iter().map(|(index, mds)| (*index, mds.clone())).collect()
    }

    /// Looks up an MDT that a metadata target here does not know, and introduces it. Returns true if the
    /// configuration has it.
    fn look_for_mdt(&self, index: u16, links: &Links) -> StatusResult<bool> {
        let config = links.config(0, 0).inspect_err(|status| {
            log::warn!("whether there is an MDT{index:04x} is not known: {status}");
        })?;
        let is_there = config.targets.iter().any(|known| known.target == TargetId::mdt(index));
        if is_there && let Err(failure) = self.introduce_mdts(&config, links) {
            log::error!("{failure}");
        }
        Ok(is_there)
    }

    /// Introduces the metadata targets of this process to each other and to those of other processes.
    pub fn introduce_mdts(&self, config: &FsConfig, links: &Links) -> Result<()> {
        let registered = config.targets.iter().filter(|target| target.target.kind == TargetKind::Mdt);
        let mut places: BTreeMap<u16, PlaceOfMdt> =
            registered.map(|mdt| (mdt.target.index, (remote_nids(mdt), mdt.key))).collect();
        let mut known = self.mdt_ways.lock();
        if config.version < known.version {
            return Ok(());
        }
        known.version = config.version;
        let here = self.mds_here();
        // MDTs of this process before their first registration.
        for (index, _) in &here {
            places.entry(*index).or_default();
        }
        for (own, mds) in here {
            let mut peers = BTreeMap::new();
            for (&other, place) in places.iter().filter(|(other, _)| **other != own) {
                let way = match known.ways.get(&(own, other)).filter(|(known, _)| known == place) {
                    Some((_, way)) => Some(way.clone()),
                    None => links.mdt_of_server(other, self.mdt(other), &place.0, place.1)?,
                };
                if let Some(way) = way {
                    known.ways.insert((own, other), (place.clone(), way.clone()));
                    peers.insert(other, way);
                }
            }
            mds.set_peers(peers).map_err(Failure::because(format!("announce other MDTs to MDT{own:04x}")))?;
        }
        Ok(())
    }

    /// Waits until a metadata target has the state from MDT0000 that it needs before it takes names.
    ///
    /// # Errors
    /// If MDT0000 does not supply it.
    pub fn await_acquaintance(&self, target: TargetId) -> Result<()> {
        let Some(mds) =
            self.mdts.read().get(&target.index).cloned().filter(|_| target.kind == TargetKind::Mdt)
        else {
            return Ok(());
        };
        if mds.await_acquaintance(Instant::now() + ACQUAINTANCE_LIMIT) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "MDT0000 does not answer, without which {target} cannot join: start it first"
        )))
    }

    /// Closes a target that could not join.
    pub fn close(&self, target: TargetId) {
        let outcome = match target.kind {
            TargetKind::Mdt => {
                let mds = self.mdts.write().remove(&target.index);
                let is_of = |(own, other): &(u16, u16)| *own == target.index || *other == target.index;
                self.mdt_ways.lock().ways.retain(|key, _| !is_of(key));
                let data = TargetId::mdt_data(target.index);
                let data = data.and_then(|data| self.mdt_data.write().remove(&data.index));
                let stopped = data.map_or(Ok(()), |data| data.stop(OST_STOP_LIMIT));
                let closed = mds.map_or(Ok(()), |mds| mds.stop().map_err(|error| error.to_string()));
                stopped.map_err(|error| error.to_string()).and(closed)
            }
            _ => {
                let ost = self.osts.write().remove(&target.index);
                ost.map_or(Ok(()), |ost| ost.stop(OST_STOP_LIMIT).map_err(|error| error.to_string()))
            }
        };
        if let Err(error) = outcome {
            log::error!("{target} was not closed cleanly: {error}");
        }
    }

    /// Opens the service for data on a metadata target, which persists locks in the target's directory.
    fn open_data(&self, instance: &Instance, target: TargetId, mds: &Arc<Mds>) -> Result<()> {
        let Some(data) = TargetId::mdt_data(target.index) else { return Ok(()) };
        let dir = instance.target_dir(target);
        let server = ObjectServer::open(mds.data_store(), data.index, &dir, &OssConfig::default());
        let server = Arc::new(server.map_err(Failure::because(format!("open {data}")))?);
        server.admit_by(mds.book());
        server.ask_for_capabilities(self.capability_keys.clone());
        let objects = instance.objects_dir(target);
        if is_block_store(&objects) {
            server.set_nonrotational(ost_class::is_flash(&objects));
            server.start_trimming().map_err(Failure::because(format!("open {data}")))?;
        }
        if self.is_to_listen.load(Ordering::Relaxed) {
            server.await_listening();
        }
        // The metadata server reports clients that it has dropped to it.
        let way = LoOss::connect(server.clone(), ClientUuid(random_uuid()?), Arc::new(NoCallbacks))
            .map_err(|status| Failure::new(format!("{data} cannot be reached: {status}")))?;
        mds.osts.set(vec![(data.index, Arc::new(way))]).map_err(Failure::because(format!("open {data}")))?;
        mds.lead_recovery_of(server.locks());
        server.follow(mds.replay_gate());
        let told = Arc::downgrade(&server);
        mds.watch_data(Box::new(move |object, bytes| {
            told.upgrade().iter().for_each(|server| server.note_written(object, bytes));
        }));
        self.mdt_data.write().insert(data.index, server);
        Ok(())
    }

    /// Returns the services for data on the metadata targets of this process.
    pub fn mdt_data(&self) -> BTreeMap<u16, Arc<dyn OssService>> {
        let data = self.mdt_data.read();
        data.iter().map(|(index, data)| (*index, data.clone() as Arc<dyn OssService>)).collect()
    }

    /// Returns endpoints of an MDT to its OSTs, and notes them for the disconnect at the end.
    fn ways_to_osts(&self, links: &Links, config: &FsConfig) -> Result<Vec<(u16, Arc<dyn OssEndpoint>)>> {
        let ways = links.osts_of_server(config)?;
        let mut noted = self.ost_ways.lock();
        // Endpoints of earlier configurations are replaced.
        noted.retain(|way| way.strong_count() > 0);
        noted.extend(ways.values().map(Arc::downgrade));
        Ok(ways.into_iter().collect())
    }

    /// Returns the management server, if it is in this process.
    pub fn mgs_here(&self) -> Option<&Arc<Mgs>> {
        self.mgs.get()
    }

    /// Returns the management service, if it is in this process.
    pub fn mgs(&self) -> Option<Arc<dyn MgsService>> {
        self.mgs.get().cloned().map(|mgs| mgs as Arc<dyn MgsService>)
    }

    /// Returns the metadata service with this index, if it is in this process.
    pub fn mdt(&self, index: u16) -> Option<Arc<dyn MdsService>> {
        self.mdts.read().get(&index).cloned().map(|mds| mds as Arc<dyn MdsService>)
    }

    /// Returns the metadata target with this index, if it is in this process.
    pub fn mds(&self, index: u16) -> Option<Arc<Mds>> {
        self.mdts.read().get(&index).cloned()
    }

    /// Returns the object service with this index, if it is in this process.
    pub fn ost(&self, index: u16) -> Option<Arc<ObjectServer>> {
        self.osts.read().get(&index).cloned()
    }

    /// Returns the service for data on the metadata target with this index, if it is in this process.
    pub fn data_of_mdt(&self, index: u16) -> Option<Arc<ObjectServer>> {
        let data = TargetId::mdt_data(index)?;
        self.mdt_data.read().get(&data.index).cloned()
    }

    /// Returns the service for objects that requests name by this index, of an OST or for data on an MDT, if
    /// it is in this process.
    pub fn objects(&self, index: u16) -> Option<Arc<ObjectServer>> {
        self.ost(index).or_else(|| self.mdt_data.read().get(&index).cloned())
    }

    /// Returns the object services of this process.
    pub fn osts(&self) -> BTreeMap<u16, Arc<dyn OssService>> {
        let osts = self.osts.read();
        osts.iter().map(|(index, ost)| (*index, ost.clone() as Arc<dyn OssService>)).collect()
    }

    /// Returns the number of frames to the targets of this process with a wrong checksum.
    pub fn checksum_errors(&self) -> u64 {
        let osts = self.osts.read();
        let mdts = self.mdts.read();
        let of_osts = osts.values().map(|ost| ost.exports().all_damaged());
        let of_mdts = mdts.values().map(|mds| mds.stats.exports().all_damaged());
        of_osts.chain(of_mdts).sum()
    }

    /// Returns the pools that the metadata targets of this process know.
    pub fn pools(&self) -> Vec<PoolConfig> {
        self.mdts.read().values().next().map_or_else(Vec::new, |mds| mds.osts.pools())
    }

    /// Enters the parameters of targets.
    pub fn enter_params(&self, targets: &[TargetId], params: &Params, fsname: &str, links: &Arc<Links>) {
        for target in targets {
            match target.kind {
                TargetKind::Ost => {
                    let ost = self.osts.read().get(&target.index).cloned();
                    ost.iter().for_each(|ost| params.enter_ost(fsname, target.index, ost));
                }
                TargetKind::Mdt => {
                    let mds = self.mdts.read().get(&target.index).cloned();
                    let data = self.data_of_mdt(target.index);
                    mds.iter()
                        .for_each(|mds| params.enter_mdt(fsname, target.index, mds, data.as_ref(), links));
                }
                TargetKind::Mgt => self.mgs.get().iter().for_each(|mgs| params.enter_mgs(fsname, mgs)),
            }
        }
        self.enter_osts(params, fsname);
    }

    /// Enters the parameters of metadata targets' connections to new OSTs.
    pub fn enter_osts(&self, params: &Params, fsname: &str) {
        self.mds_here().iter().for_each(|(index, mds)| params.enter_osts_of_mdt(fsname, *index, mds));
    }

    /// Returns these services in the form that a server takes.
    pub fn offered(&self, targets: &[TargetId]) -> Targets {
        let mut offered = Targets::new();
        for target in targets {
            offered = match target.kind {
                TargetKind::Mgt => {
                    self.mgs.get().into_iter().fold(offered, |all, mgs| all.with_mgt(mgs.clone()))
                }
                TargetKind::Mdt => {
                    let mds = self.mdt(target.index);
                    let all = mds.into_iter().fold(offered, |all, mds| all.with_mdt(target.index, mds));
                    let data = TargetId::mdt_data(target.index).map(|data| data.index);
                    let found =
                        data.and_then(|index| Some((index, self.mdt_data.read().get(&index)?.clone())));
                    found.into_iter().fold(all, |all, (index, data)| all.with_ost(index, data))
                }
                TargetKind::Ost => {
                    let ost = self.osts.read().get(&target.index).cloned();
                    ost.into_iter().fold(offered, |all, ost| all.with_ost(target.index, ost))
                }
            };
        }
        offered
    }

    /// Returns the keys that sign and verify capabilities here.
    pub fn capability_keys(&self) -> &Arc<CapabilityKeys> {
        &self.capability_keys
    }

    /// Adopts the capability keys of this configuration.
    pub fn use_capability_keys(&self, config: &FsConfig) {
        self.capability_keys
            .set(config.capability_keys.iter().map(|key| (key.epoch, key.made_s, key.secret)));
    }

    /// Passes the OSTs of the configuration, and the parameters that concern them, to the metadata targets.
    pub fn use_configuration(&self, config: &FsConfig, links: &Links) -> Result<()> {
        self.set_nodemaps(&config.nodemaps);
        for (index, mds) in self.mds_here() {
            mds.layouts.set_default_layout(default_layout(config));
            mds.placement.set_default_hash(default_hash(config));
            mds.osts.set_pools(&config.pools);
            mds.osts
                .set(self.ways_to_osts(links, config)?)
                .map_err(Failure::because(format!("announce new OSTs to MDT{index:04x}")))?;
        }
        self.introduce_mdts(config, links)
    }

    /// Ends requests that wait for an event, so that a server can stop.
    pub fn end_waits(&self) {
        if let Some(mgs) = self.mgs.get() {
            mgs.stop();
        }
    }

    /// Closes all targets: metadata first, since it still sends requests to OSTs. The configuration is always
    /// durable.
    pub fn stop(&self) -> Result<()> {
        let mut result = Ok(());
        let mut keep = |outcome: std::result::Result<(), String>, target: TargetId| {
            if let Err(error) = outcome {
                log::error!("{target} was not closed cleanly: {error}");
                result = Err(Failure::new(format!("{target} was not closed cleanly: {error}")));
            }
        };
        // Its store belongs to the metadata server.
        for (index, data) in &*self.mdt_data.read() {
            keep(data.stop(OST_STOP_LIMIT).map_err(|error| error.to_string()), TargetId::ost(*index));
        }
        self.mdt_ways.lock().ways.clear();
        for (index, mds) in &*self.mdts.read() {
            keep(mds.stop().map_err(|error| error.to_string()), TargetId::mdt(*index));
        }
        let deadline = Instant::now() + OST_GOODBYE_LIMIT;
        for way in self.ost_ways.lock().iter().filter_map(Weak::upgrade) {
            way.disconnect(deadline.saturating_duration_since(Instant::now()));
        }
        for (index, ost) in &*self.osts.read() {
            keep(ost.stop(OST_STOP_LIMIT).map_err(|error| error.to_string()), TargetId::ost(*index));
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::FormatOptions;

    #[test]
    fn parameters_become_the_default_layout() {
        let param = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let config = FsConfig {
            params: vec![
                param("lov.stripecount", "-1"),
                param("lov.stripeoffset", "-1"),
                param("lov.stripesize", "1048576"),
            ],
            ..FsConfig::default()
        };
        let spec = default_layout(&config);
        assert_eq!(spec.stripe_count, Some(STRIPE_COUNT_ALL));
        assert_eq!(spec.stripe_size, Some(1 << 20));
        assert_eq!(spec.first_ost, None);
        assert!(default_layout(&FsConfig::default()).is_empty());
    }

    #[test]
    fn the_directory_of_an_ost_is_waited_for_by_who_is_to_serve_it_and_by_nobody_else() {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = FormatOptions { fsname: "nacre".to_owned(), mdt_count: 1, ost_count: 1, joins: None };
        let make = |instance: &Instance, target: TargetId| match target.kind {
            TargetKind::Ost => format_target_on(instance, target, &Backends::default()),
            _ => Ok(()),
        };
        let instance = Instance::format(&scratch.path().join("fs"), &options, make, |_| ()).expect("made");
        let ost = TargetId::ost(0);
        let held = open_objects(&instance, ost).expect("nobody has it");
        let refused = open_objects(&instance, ost).err().expect("it is in use");
        assert!(refused.message.contains("in use"), "{refused}");
        let (mut held, mut tries) = (Some(held), 0);
        let opened = once_free(|| {
            tries += 1;
            if tries == 3 {
                held = None;
            }
            open_uncached(&instance, ost)
        });
        assert!(opened.is_ok());
        assert_eq!(tries, 3, "as long as it is in use");
        drop(opened);
        open_served(&instance, ost).expect("it is free");
    }
}
