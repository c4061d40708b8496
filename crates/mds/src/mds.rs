//! The server object: opening and stopping an MDT, and what every operation uses.

use crate::cache::InodeCache;
use crate::capabilities::Capabilities;
use crate::clients::{Clients, Expected};
use crate::config::{AppendLayout, MdsConfig};
use crate::data::{DataPart, DataWatch};
use crate::departed::Departed;
use crate::error::MdsError;
use crate::filesets::Filesets;
use crate::flocks::FileLocks;
use crate::locks::LockTable;
use crate::moving::Moving;
use crate::opens::OpenTable;
use crate::operations::{Operations, Peers};
use crate::ops::put_default;
use crate::osts::{OstSet, Pools, Qos};
use crate::service::Caller;
use crate::simulated::Simulation;
use crate::space::SpaceGuard;
use crate::stats::MdsStats;
use crate::tables::{CLIENTS, DIRENTS, INODES, META, META_KEY, ORPHANS, dirent_key, keys_of};
use crate::tenants::Tenants;
use crate::tx::Tx;
use crate::unowned::destroy_unowned;
use nacre_dlm::{LockOwner, LockService, Timer};
use nacre_env::sync::{Condvar, Mutex, RwLock};
use nacre_env::thread::JoinHandle;
use nacre_layout::dir_hash::DirHash;
use nacre_layout::{DirDefault, LayoutSpec, Wish, user};
use nacre_lock::server::ServerConfig;
use nacre_ondisk::{ClientRecord, DirentRecord, InodeRecord, MdtRecord};
use nacre_rpc::{Hold, OssEndpoint};
use nacre_store::object::{ObjectError, ObjectStore};
use nacre_store::{MetaError, MetaStore};
use nacre_types::{Attr, AttrFlags, ClientUuid, Fid, FileKind, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::mds::{MdsAnswer, MdsReply, Statfs};
use nacre_wire::mgs::PoolConfig;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The OSTs of a file system with their indexes.
pub type Osts = Vec<(u16, Arc<dyn OssEndpoint>)>;

/// Directory of the store inside the target's directory.
const STORE_DIR: &str = "meta";
/// Client sequences of MDTs other than the first begin this far into their range; those before are for their objects.
const OBJECT_SEQUENCES: u64 = 0x1_0000;
/// Inodes that are counted in one step.
const COUNT_STEP: i64 = 4096;
/// Time between two looks at space and deadlines.
const TICK: Duration = Duration::from_millis(500);

/// Longest time that a stop waits for requests to OSTs that are under way.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

/// Ends the background threads.
#[derive(Default)]
pub(crate) struct StopSignal {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl StopSignal {
    fn raise(&self) {
        *self.stopped.lock() = true;
        self.changed.notify_all();
    }

    /// Waits for `time`; true if it is time to stop.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        if !*stopped {
            self.changed.wait_for(&mut stopped, time);
        }
        *stopped
    }
}

/// See the [crate documentation](crate).
pub struct Mds {
    pub(crate) index: u16,
    pub(crate) config: MdsConfig,
    pub(crate) store: Arc<MetaStore>,
    pub(crate) cache: InodeCache,
    pub(crate) locks: Arc<LockTable>,
    pub(crate) opens: OpenTable,
    pub(crate) capabilities: Capabilities,
    pub(crate) flocks: FileLocks,
    /// What several MDTs do together.
    pub(crate) operations: Operations,
    /// What clients cache of inodes.
    pub(crate) mdlocks: Arc<LockService>,
    /// The thread that evicts those who do not give it up.
    lock_timer: Mutex<Option<Timer>>,
    pub(crate) clients: Clients,
    /// What clients may be.
    pub(crate) tenants: Tenants,
    pub(crate) filesets: Filesets,
    pub(crate) departed: Departed,
    pub(crate) osts: OstSet,
    pub(crate) space: SpaceGuard,
    /// Data of files that lies on this MDT.
    pub(crate) data: DataPart,
    /// Held by renames that give a directory another parent, so that the check for cycles sees a still tree.
    pub(crate) move_directory: Mutex<()>,
    /// The default layout of the root, if that is not on this MDT, as it was lately.
    pub(crate) root_default: RwLock<Wish>,
    /// The group that may make directories on other MDTs; 0: administrators alone, -1: everybody (`mdt.*.enable_remote_dir_gid`).
    pub(crate) remote_dir_gid: AtomicI64,
    /// Names that move between shards.
    pub(crate) moving: Moving,
    /// The MDT record as it is stored.
    pub(crate) record: Mutex<MdtRecord>,
    /// First sequence not given out; a copy of the one in `record`.
    pub(crate) next_sequence: AtomicU64,
    /// Striping where neither a file nor its directories say anything; the configuration may change it at any time.
    default_layout: RwLock<LayoutSpec>,
    /// How names are spread where nobody says how, a [`DirHash`]'s number; the configuration may change it at any time.
    default_hash: AtomicU16,
    append_layout: Mutex<AppendLayout>,
    pub(crate) hash_seed: AtomicU64,
    /// Names are hashed with the seed from now on, so it stays.
    pub(crate) has_names: Mutex<bool>,
    stats: MdsStats,
    pub(crate) boot_count: u64,
    /// Newest transno when this run began: everything in stored replies is at most this.
    pub(crate) boot_transno: TransNo,
    pub(crate) stopping: AtomicBool,
    /// A request that a test wants held.
    pub(crate) hold: Hold,
    /// Service times for measurements.
    pub(crate) simulation: Simulation,
    pub(crate) signal: Arc<StopSignal>,
    /// The thread that watches space and deadlines.
    ticker: Mutex<Option<JoinHandle<()>>>,
    /// The thread that sees to operations over several MDTs.
    pub(crate) resolver: Mutex<Option<JoinHandle<()>>>,
    /// The thread that counts inodes after a crash.
    counter: Mutex<Option<JoinHandle<()>>>,
    /// The number of inodes is known.
    counted: AtomicBool,
}

/// Path of the store of the MDT in `dir`.
pub(crate) fn store_path(dir: &Path) -> PathBuf {
    dir.join(STORE_DIR)
}

/// Reads the MDT's own record.
///
/// # Errors
/// If the store holds no MDT or the record is damaged.
pub(crate) fn read_record(store: &MetaStore, dir: &Path) -> Result<MdtRecord, MdsError> {
    let found = store.get(META, META_KEY, |value| value.map(MdtRecord::decode))?;
    match found {
        None => Err(MdsError::NotFormatted(dir.to_owned())),
        Some(Err(source)) => Err(MdsError::Damaged { what: "MDT", source }),
        Some(Ok(record)) => Ok(record),
    }
}

/// Notes durably that a run has begun. Gives whether the last one was stopped in order, and then the number of inodes.
fn begin_run(store: &MetaStore, record: &mut MdtRecord) -> Result<(bool, Option<u64>), MdsError> {
    record.boot_count += 1;
    let was_clean = std::mem::take(&mut record.clean);
    let inodes = record.inodes.take().filter(|_| was_clean);
    let mut tx = Tx::new(store.last_transno().0 + 1);
    // It replaces itself: an MDT whose disk others have filled starts, too.
    tx.batch().set_releasing(true);
    tx.batch().put(META, META_KEY, &record.encode());
    store.sync(store.commit(tx.batch())?)?;
    Ok((was_clean, inodes))
}

impl Mds {
    /// What was asked so far.
    pub fn stats(&self) -> &MdsStats {
        &self.stats
    }

    /// Makes an empty MDT in `dir` (which must exist or be creatable), with a root directory of mode 0755 if it is MDT0.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// If there is one already, or the directory cannot be used.
    pub fn format(dir: &Path, config: &MdsConfig) -> Result<(), MdsError> {
        std::fs::create_dir_all(dir).map_err(|source| MdsError::Io {
            action: "create",
            path: dir.to_owned(),
            source,
        })?;
        let mut options = config.store.clone();
        options.create = true;
        let store = MetaStore::open(&store_path(dir), options)?;
        if store.get(META, META_KEY, |value| value.is_some())? {
            return Err(MdsError::Exists(dir.to_owned()));
        }
        let first = Fid::first_sequence_of_mdt(config.index);
        let record = MdtRecord {
            index: config.index,
            hash_seed: random_seed(),
            boot_count: 0,
            next_sequence: if config.index == 0 { first + 1 } else { first + OBJECT_SEQUENCES },
            clean: true,
            // The root.
            inodes: Some(u64::from(config.index == 0)),
            data_apart: config.data_apart,
        };
        let mut tx = Tx::new(1);
        tx.batch().put(META, META_KEY, &record.encode());
        if config.index == 0 {
            let now = Timestamp::from(nacre_env::clock::wall());
            let attr = Attr {
                fid: Fid::ROOT,
                mode: FileKind::Directory.mode_bits() | 0o755,
                nlink: 2,
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                ..Attr::default()
            };
            // The root is its own parent, so `..` there needs no rule of its own.
            let mut root = InodeRecord { attr, parent: Fid::ROOT, ..InodeRecord::default() };
            put_default(&mut root, Some(DirDefault::of_root()));
            if !config.root_layout.is_empty() {
                root.body = user::encode_wish(&Fid::ROOT, &config.root_layout);
                root.attr.flags |= AttrFlags::HAS_LAYOUT;
            }
            tx.put_inode(root);
        }
        let transno = store.commit(tx.batch())?;
        store.sync(transno)?;
        store.close()?;
        Ok(())
    }

    /// Starts the MDT in `dir`, which keeps data of files in its metadata store.
    ///
    /// # Errors
    /// As [`Mds::open_with`].
    pub fn open(dir: &Path, config: MdsConfig, osts: Osts) -> Result<Arc<Mds>, MdsError> {
        Mds::open_with(dir, config, osts, None)
    }

    /// Starts the MDT in `dir`; `data` is the object store in which it keeps data of files, if it was made with one
    /// ([`MdsConfig::data_apart`]). Its opener closes it.
    ///
    /// # Errors
    /// If it is not formatted, damaged, in use, another MDT than configured, or keeps data elsewhere.
    pub fn open_with(
        dir: &Path,
        config: MdsConfig,
        osts: Osts,
        data: Option<Arc<dyn ObjectStore>>,
    ) -> Result<Arc<Mds>, MdsError> {
        let store = Arc::new(MetaStore::open(&store_path(dir), config.store.clone())?);
        let mut record = read_record(&store, dir)?;
        if record.index != config.index {
            return Err(MdsError::WrongIndex { found: record.index, expected: config.index });
        }
        let data = DataPart::open(data, &store, dir, &record, &config)?;
        let boot_transno = store.last_transno();
        let (was_clean, inodes) = begin_run(&store, &mut record)?;
        if !was_clean && record.data_apart {
            destroy_unowned(&store, &*data.store)?;
        }
        let (ended, known) = known_clients(&store)?;
        let orphans = keys_of(&store, ORPHANS)?.iter().map(Fid::from_key).collect();
        let mdlocks = inode_locks(&config, known.clone());
        let locks = Arc::new(LockTable::new());
        let operations = Operations::open(&store, &locks, (config.index, record.boot_count), was_clean)?;
        let mds = Arc::new(Mds {
            index: config.index,
            operations,
            cache: InodeCache::new(config.cached_inodes),
            locks,
            opens: OpenTable::new(),
            flocks: FileLocks::new(mdlocks.is_recovering()),
            mdlocks,
            lock_timer: Mutex::new(None),
            clients: Clients::new(&config, record.boot_count, known, orphans),
            departed: Departed::default(),
            tenants: Tenants::new(config.find_user),
            filesets: Filesets::default(),
            capabilities: Capabilities::default(),
            append_layout: Mutex::default(),
            osts: OstSet::new(config.index, store.clone(), config.qos)?,
            space: SpaceGuard::new(dir, store.clone(), config.reserve_bytes),
            data,
            move_directory: Mutex::new(()),
            root_default: RwLock::default(),
            remote_dir_gid: AtomicI64::new(0),
            moving: Moving::new(),
            next_sequence: AtomicU64::new(record.next_sequence),
            default_layout: RwLock::new(config.default_layout.clone()),
            default_hash: AtomicU16::new(config.default_hash.number()),
            hash_seed: AtomicU64::new(record.hash_seed),
            has_names: Mutex::new(false),
            stats: MdsStats::new(),
            boot_count: record.boot_count,
            record: Mutex::new(record),
            boot_transno,
            stopping: AtomicBool::new(false),
            hold: Hold::default(),
            simulation: Simulation::default(),
            signal: Arc::new(StopSignal::default()),
            ticker: Mutex::new(None),
            resolver: Mutex::new(None),
            counter: Mutex::new(None),
            counted: AtomicBool::new(false),
            config,
            store,
        });
        mds.begin_data();
        mds.set_osts(osts)?;
        mds.know_inodes(inodes)?;
        mds.serve_in_background(&ended)?;
        Ok(mds)
    }

    fn serve_in_background(self: &Arc<Mds>, ended: &[ClientUuid]) -> Result<(), MdsError> {
        self.begin_recovery(ended);
        let owner: Weak<dyn LockOwner> = Arc::downgrade(&(self.clone() as Arc<dyn LockOwner>));
        *self.lock_timer.lock() = Some(Timer::start(self.mdlocks.clone(), owner).map_err(MdsError::Thread)?);
        self.departed.start(self)?;
        self.start_ticking()
    }

    /// Begins with the number of inodes that the last run has left, or counts them.
    fn know_inodes(self: &Arc<Mds>, inodes: Option<u64>) -> Result<(), MdsError> {
        match inodes.and_then(|inodes| i64::try_from(inodes).ok()) {
            Some(inodes) => {
                self.space.count_inodes(inodes);
                self.counted.store(true, Ordering::Release);
                Ok(())
            }
            None => self.count_inodes_later(),
        }
    }

    fn start_ticking(self: &Arc<Mds>) -> Result<(), MdsError> {
        let (weak, signal) = (Arc::downgrade(self), self.signal.clone());
        let thread = nacre_env::thread::Builder::new()
            .name("mds-tick".into())
            .spawn(move || tick(&weak, &signal))
            .map_err(MdsError::Thread)?;
        *self.ticker.lock() = Some(thread);
        Ok(())
    }

    /// Tells which OSTs there are. Those that are new are made ready in the background; one whose index is known gets
    /// the new endpoint.
    ///
    /// # Errors
    /// If a thread cannot be started or the store cannot be read.
    pub fn set_osts(&self, osts: Osts) -> Result<(), MdsError> {
        self.osts.set(osts)
    }

    /// Tells which pools there are from now on.
    pub fn set_pools(&self, pools: &[PoolConfig]) {
        self.osts.set_pools(pools);
    }

    /// The OSTs, which operators take out of use and back.
    pub fn ost_set(&self) -> &OstSet {
        &self.osts
    }

    /// How OSTs are chosen.
    pub fn qos(&self) -> Qos {
        *self.osts.qos().lock()
    }

    /// Chooses OSTs so from now on.
    pub fn change_qos(&self, change: impl FnOnce(&mut Qos)) {
        change(&mut self.osts.qos().lock());
    }

    /// How often the target was started, this time included.
    pub fn run_number(&self) -> u64 {
        self.boot_count
    }

    /// Its store has lost what it was told, or may: it takes no more changes.
    pub fn has_failed(&self) -> bool {
        self.store.stats().has_failed
    }

    /// Space for clients.
    pub fn space(&self) -> Statfs {
        self.statfs()
    }

    /// Whether the target is on flash (`osd-*.*.nonrotational`), which statfs tells.
    pub fn is_nonrotational(&self) -> bool {
        self.space.is_nonrotational()
    }

    /// Says what the target is on.
    pub fn set_nonrotational(&self, is_nonrotational: bool) {
        self.space.set_nonrotational(is_nonrotational);
    }

    /// Whether clients are asked to place no new directories here (`mdt.*.no_create`).
    pub fn is_no_create(&self) -> bool {
        self.space.is_no_create()
    }

    /// Changes it.
    pub fn set_no_create(&self, no_create: bool) {
        self.space.set_no_create(no_create);
    }

    /// How pools spill over; can be changed.
    pub fn spilling(&self) -> &Pools {
        self.osts.spilling()
    }

    /// Whether a pool spills now.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_is_active(&self, pool: &str) -> StatusResult<bool> {
        self.osts.spilling().spill_is_active(pool, |osts| self.osts.used_pct(osts))
    }

    /// What files that are made to be appended to get.
    pub fn append_layout(&self) -> AppendLayout {
        *self.append_layout.lock()
    }

    /// Changes that.
    pub fn change_append_layout(&self, change: impl FnOnce(&mut AppendLayout)) {
        change(&mut self.append_layout.lock());
    }

    /// The pools that it knows, in the order of names.
    pub fn pools(&self) -> Vec<PoolConfig> {
        self.osts.pools()
    }

    /// Uses another striping from now on for files whose directories say nothing.
    pub fn set_default_layout(&self, spec: LayoutSpec) {
        *self.default_layout.write() = spec;
    }

    /// Striping where neither a file nor its directories say anything.
    pub(crate) fn default_layout(&self) -> LayoutSpec {
        self.default_layout.read().clone()
    }

    /// Spreads names of directories that get shards in this way from now on where nobody says how (`lod.*.mdt_hash`).
    pub fn set_default_hash(&self, hash: DirHash) {
        self.default_hash.store(hash.number(), Ordering::Relaxed);
    }

    /// How names are spread where nobody says how.
    pub(crate) fn default_hash(&self) -> DirHash {
        DirHash::from_number(self.default_hash.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Requests that a test wants held.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Where data of files lies on this MDT, for the service that reads and writes it.
    pub fn data_store(&self) -> Arc<dyn ObjectStore> {
        self.data.store.clone()
    }

    /// Room for clients: bytes where data of files is, names where the metadata is.
    pub fn statfs(&self) -> Statfs {
        self.data.statfs(self.space.statfs())
    }

    /// Has `watch` told of what comes with a close: the service for data here keeps versions and what its locks say up to date.
    pub fn watch_data(&self, watch: DataWatch) {
        self.data.set_watch(watch);
    }

    /// Largest component in bytes that new layouts may have on this MDT: while there is space (`lod.*.dom_stripesize`), and with
    /// the space that there is now (`dom_stripesize_cur_kb`).
    pub fn dom_limits(&self) -> (u64, u64) {
        self.data.limits()
    }

    /// The group that may make directories on other MDTs or on several; 0: administrators alone, -1: everybody.
    pub fn remote_dir_gid(&self) -> i64 {
        self.remote_dir_gid.load(Ordering::Relaxed)
    }

    /// Changes [`Mds::remote_dir_gid`].
    pub fn set_remote_dir_gid(&self, gid: i64) {
        self.remote_dir_gid.store(gid, Ordering::Relaxed);
    }

    /// Changes the limit of [`Mds::dom_limits`] while there is space.
    pub fn set_dom_limit(&self, bytes: u64) {
        self.data.set_max(bytes, &self.statfs());
    }

    /// Free space in bytes below which the limit shrinks (`lod.*.dom_threshold_free_mb`).
    pub fn dom_threshold(&self) -> u64 {
        self.data.threshold(&self.statfs())
    }

    /// Changes it.
    pub fn set_dom_threshold(&self, bytes: u64) {
        self.data.set_threshold(bytes, &self.statfs());
    }

    /// Stops in order: refuses further requests, ends background work, makes everything durable, closes the store.
    /// Clients stay known, so that they can come back after a restart.
    ///
    /// # Errors
    /// If the store cannot be closed cleanly.
    pub fn stop(&self) -> Result<(), MdsError> {
        self.hold.release();
        if self.stopping.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.end_threads();
        let threads = [&self.ticker, &self.counter, &self.resolver].map(|thread| thread.lock().take());
        for thread in threads.into_iter().flatten() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                log::error!("MDT{:04x}: the thread {name} has panicked", self.index);
            }
        }
        self.departed.join();
        if !self.moving.join() {
            log::error!("MDT{:04x}: the thread that moves names has panicked", self.index);
        }
        drop(self.lock_timer.lock().take());
        self.operations.set_peers(Peers::new());
        self.osts.wait_stopped(STOP_PATIENCE);
        let mut tx = Tx::new(0);
        tx.batch().set_releasing(true);
        {
            let mut record = self.record.lock();
            record.clean = true;
            record.inodes = self.counted.load(Ordering::Acquire).then(|| self.space.inodes());
            tx.batch().put(META, META_KEY, &record.encode());
        }
        self.store.commit(tx.batch())?;
        self.store.close()?;
        Ok(())
    }

    /// Counts the inodes in the background, in steps that hold nothing up. What is made or removed meanwhile may count
    /// twice or not at all.
    fn count_inodes_later(self: &Arc<Self>) -> Result<(), MdsError> {
        let mds = Arc::downgrade(self);
        let count = move || {
            let mut last: Option<Vec<u8>> = None;
            while let Some(mds) = mds.upgrade().filter(|mds| !mds.stopping.load(Ordering::SeqCst)) {
                match count_step(&mds.store, last.as_deref()) {
                    Ok((count, next)) => {
                        mds.space.count_inodes(count);
                        last = next;
                    }
                    Err(error) => {
                        mds.store_failed(&error);
                        return;
                    }
                }
                if last.is_none() {
                    return mds.counted.store(true, Ordering::Release);
                }
            }
        };
        let thread = nacre_env::thread::Builder::new()
            .name("mds-count".into())
            .spawn(count)
            .map_err(MdsError::Thread)?;
        *self.counter.lock() = Some(thread);
        Ok(())
    }

    fn end_threads(&self) {
        self.signal.raise();
        self.osts.stop();
        self.departed.stop();
        self.clients.wake();
        self.flocks.wake();
        self.mdlocks.stop();
        self.operations.wake();
        self.locks.stop();
        self.moving.stop();
    }

    /// What an error of the store means to a client; told to the log too, since it is not the client's fault.
    pub(crate) fn store_failed(&self, error: &MetaError) -> Status {
        if !matches!(error, MetaError::NoSpace | MetaError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// What an error of the data part means to a client.
    pub(crate) fn data_failed(&self, error: &ObjectError) -> Status {
        if !matches!(error, ObjectError::NoSpace | ObjectError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// The clock of the server.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from(nacre_env::clock::wall())
    }

    /// Refuses FIDs that live on another MDT.
    pub(crate) fn check_local(&self, fid: &Fid) -> StatusResult<()> {
        if fid.mdt_index() == self.index { Ok(()) } else { Err(Status::WRONG_TARGET) }
    }

    /// An inode's record, if it exists.
    pub(crate) fn find_inode(&self, fid: &Fid) -> StatusResult<Option<Arc<InodeRecord>>> {
        let ticket = match self.cache.get(fid) {
            Ok(record) => return Ok(Some(record)),
            Err(ticket) => ticket,
        };
        let found = self
            .store
            .get(INODES, &fid.to_key(), |value| value.map(|bytes| InodeRecord::decode(*fid, bytes)))
            .map_err(|error| self.store_failed(&error))?;
        match found {
            None => self.check_local(fid).map(|()| None),
            Some(Ok(record)) => {
                let record = Arc::new(record);
                self.cache.fill(fid, &record, ticket);
                Ok(Some(record))
            }
            Some(Err(error)) => {
                log::error!("inode record of {fid}: {error}");
                Err(Status::EUCLEAN)
            }
        }
    }

    /// An inode's record.
    ///
    /// # Errors
    /// `ENOENT` if it is gone, `WRONG_TARGET` if it lives elsewhere.
    pub(crate) fn inode(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        self.find_inode(fid)?.ok_or(Status::ENOENT)
    }

    /// A directory's record.
    ///
    /// # Errors
    /// As [`Mds::inode`], and `ENOTDIR`.
    pub(crate) fn directory(&self, fid: &Fid) -> StatusResult<Arc<InodeRecord>> {
        let record = self.inode(fid)?;
        if !record.attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        if user::is_foreign_directory(&record.body) { Err(Status::ENODATA) } else { Ok(record) }
    }

    /// What a name stands for.
    pub(crate) fn find_name(
        &self,
        directory: &Fid,
        hash: u64,
        name: &[u8],
    ) -> StatusResult<Option<DirentRecord>> {
        let key = dirent_key(directory, hash, name);
        let found = self
            .store
            .get(DIRENTS, key.as_slice(), |value| value.map(DirentRecord::decode))
            .map_err(|error| self.store_failed(&error))?;
        found.transpose().map_err(|error| {
            log::error!("a name in {directory}: {error}");
            Status::EUCLEAN
        })
    }

    /// A sequence that nobody has.
    pub(crate) fn allocate_sequence(&self, caller: &Caller<'_>) -> StatusResult<MdsAnswer> {
        self.take_sequence(|tx, sequence| self.finish(caller, tx, MdsReply::Sequence(sequence)))
    }

    /// Takes a sequence that nobody has with the transaction that `commit` commits.
    pub(crate) fn take_sequence<T>(
        &self,
        commit: impl FnOnce(Tx, u64) -> StatusResult<T>,
    ) -> StatusResult<T> {
        let mut record = self.record.lock();
        let sequence = record.next_sequence;
        let next = MdtRecord { next_sequence: sequence + 1, ..*record };
        let mut tx = self.begin();
        tx.batch().put(META, META_KEY, &next.encode());
        let outcome = commit(tx, sequence)?;
        *record = next;
        self.next_sequence.store(next.next_sequence, Ordering::Release);
        Ok(outcome)
    }
}

impl Drop for Mds {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// A number that nobody can foresee: the keys of the standard library's hasher come from the system.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The locks on inodes. Clients drop what they cache when they find that the server has restarted; until then nothing changes.
fn inode_locks(config: &MdsConfig, known: Expected) -> Arc<LockService> {
    let times = ServerConfig { callback_timeout: config.release_timeout, ..ServerConfig::default() };
    let name = format!("MDT{:04x}", config.index);
    Arc::new(LockService::new(name, times, known, config.recovery_window))
}

/// The clients of the last run: those whose processes have certainly ended, and those that may come back.
fn known_clients(store: &MetaStore) -> Result<(Vec<ClientUuid>, Expected), MdsError> {
    let (mut ended, mut known) = (Vec::new(), Expected::new());
    store.scan(CLIENTS, &[], Bound::Unbounded, &mut |key, value| {
        if let Ok(key) = <[u8; 16]>::try_from(key) {
            // Of a client whose record cannot be read nothing is known but that it was there.
            let process = ClientRecord::decode(value).ok().and_then(|record| record.process);
            match process {
                Some(process) if nacre_env::has_ended(&process) => ended.push(ClientUuid(key)),
                process => drop(known.insert(ClientUuid(key), process)),
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok((ended, known))
}

/// Counts the next inodes after a key; gives the last key as long as there are more.
fn count_step(store: &MetaStore, after: Option<&[u8]>) -> Result<(i64, Option<Vec<u8>>), MetaError> {
    let (mut count, mut last) = (0, None);
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    store.scan(INODES, &[], from, &mut |key, _| {
        count += 1;
        if count < COUNT_STEP {
            return ControlFlow::Continue(());
        }
        last = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok((count, last))
}

/// Body of the thread that watches space and deadlines.
fn tick(mds: &Weak<Mds>, signal: &StopSignal) {
    while !signal.wait(TICK) {
        let Some(mds) = mds.upgrade() else { return };
        mds.space.refresh();
        mds.data.adapt(&mds.statfs());
        mds.check_deadlines();
    }
}
