//! The server object: opens and stops an MDT.

use crate::attributes::Attributes;
use crate::capabilities::Capabilities;
use crate::changelog::{Changelog, ChangelogService};
use crate::clients::Clients;
use crate::config::MdsConfig;
use crate::core::Core;
use crate::counting::Counting;
use crate::data::{DataPart, DataWatch};
use crate::dir_use::{DirSums, DirUse};
use crate::error::MdsError;
use crate::faults::Faults;
use crate::filesets::Filesets;
use crate::flocks::FileLocks;
use crate::layout_changes::LayoutChanges;
use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::LockTable;
use crate::lookups::Lookups;
use crate::moving::Moves;
use crate::moving::progress::Moving;
use crate::namespace::NameSpace;
use crate::open_files::OpenFiles;
use crate::opens::OpenTable;
use crate::osts::{OstSet, Osts};
use crate::placement::{Placement, put_default};
use crate::quota::Quotas;
use crate::quota::master::QuotaMaster;
use crate::records::{Records, read_record, read_runs, store_path};
use crate::recovery::{Expected, Recovery};
use crate::replay::{LACKING, Replayer, Replays, Runs};
use crate::scrub::Scrub;
use crate::sessions::Sessions;
use crate::sharing::Sharing;
use crate::signal::StopSignal;
use crate::simulated::Simulation;
use crate::space::SpaceGuard;
use crate::stats::MdsStats;
use crate::tables::{CLIENTS, META, META_KEY, ORPHANS, RUNS_KEY, keys_of};
use crate::tenants::Tenants;
use crate::transactions::Resolver;
use crate::transactions::state::{Newcomers, Peers, Transactions};
use crate::tx::Tx;
use crate::tx::now;
use crate::unowned::{destroy_unowned, is_object_of_a_file};
use nacre_dlm::{LockOwner, LockService, Timer};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_layout::{DirDefault, user};
use nacre_lock::server::ServerConfig;
use nacre_ondisk::{ClientRecord, InodeRecord, MdtRecord, RunsRecord};
use nacre_quota::Book;
use nacre_rpc::Hold;
use nacre_store::MetaStore;
use nacre_store::object::{ObjectError, ObjectStore};
use nacre_types::{Attr, AttrFlags, ClientUuid, Fid, FileKind, Status, StatusResult, TransNo};
use nacre_wire::changelog::{ChangelogReply, ChangelogRequest};
use nacre_wire::mds::{MdsReply, Statfs};
use nacre_wire::quota::QuotaState;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Offset of the first client sequence in the range of an MDT other than the first; sequences below are for
/// its objects.
const OBJECT_SEQUENCES: u64 = 0x1_0000;
/// Interval of checks of space and deadlines.
const TICK: Duration = Duration::from_millis(500);
/// Longest time that a stop waits for outstanding requests to OSTs.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// See the [crate documentation](crate). Each part owns its state, and gets references to the parts that it
/// may use when it is built.
pub struct Mds {
    pub(crate) leaves: Arc<Leaves>,
    pub(crate) core: Arc<Core>,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) resolver: Arc<Resolver>,
    pub(crate) moves: Arc<Moves>,
    pub(crate) filesets: Arc<Filesets>,
    pub(crate) relayout: Arc<LayoutChanges>,
    pub(crate) attrs: Attributes,
    pub(crate) lookups: Arc<Lookups>,
    pub(crate) names: NameSpace,
    /// Inode locks, and the clients' locks on inodes.
    pub mdlocks: Arc<LockService>,
    /// The OSTs, which administrators can deactivate and reactivate.
    pub osts: Arc<OstSet>,
    /// Free space for metadata.
    pub space: Arc<SpaceGuard>,
    /// Default layouts of files without a specification.
    pub layouts: Arc<Layouts>,
    /// Placement of new directories.
    pub placement: Arc<Placement>,
    /// Moves of names between shards.
    pub moving: Arc<Moving>,
    /// Connects, disconnects and evictions of clients.
    pub sessions: Arc<Sessions>,
    /// Restrictions on the credentials of clients.
    pub tenants: Tenants,
    /// Capabilities for objects of files.
    pub capabilities: Capabilities,
    /// The changelog.
    pub changelog: Arc<Changelog>,
    pub(crate) changelogs: ChangelogService,
    pub(crate) dir_sums: DirSums,
    pub(crate) replayer: Arc<Replayer>,
    /// The quota master, on MDT0000.
    pub(crate) quota_master: Option<Arc<QuotaMaster>>,
    /// Check in use.
    pub scrub: Arc<Scrub>,
    /// Counters of requests.
    pub stats: MdsStats,
    pub(crate) sharing: Sharing,
    /// Requests that a test holds up.
    pub hold: Arc<Hold>,
    /// Simulated service times for measurements.
    pub simulation: Simulation,
    pub(crate) faults: Faults,
    pub(crate) boot_count: u64,
    /// Thread that evicts clients which do not answer blocking callbacks.
    lock_timer: Mutex<Option<Timer>>,
    /// Threads that check space and deadlines, and count inodes.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What is known at the start of a run.
struct RunBegun {
    /// True if the last run was stopped cleanly.
    was_clean: bool,
    /// Number of inodes, known after a clean stop.
    inodes: Option<u64>,
    runs: Runs,
}

/// Sequences that are skipped at a start after which some may be lost that clients use: more than clients get before
/// that is durable.
const SEQUENCES_SKIPPED: u64 = 1 << 10;

/// Records durably that a run has begun.
fn begin_run(store: &MetaStore, record: &mut MdtRecord) -> Result<RunBegun, MdsError> {
    record.boot_count += 1;
    let was_clean = std::mem::take(&mut record.clean);
    let inodes = record.inodes.take().filter(|_| was_clean);
    let boot_id = nacre_env::own_process().boot;
    let unknown = || RunsRecord { boot_id: if was_clean { boot_id } else { LACKING }, newest: Vec::new() };
    let mut earlier = read_runs(store)?.unwrap_or_else(unknown);
    let (runs, first) = Runs::begin(&mut earlier, was_clean, store.last_transno(), boot_id);
    if !was_clean {
        record.next_sequence += SEQUENCES_SKIPPED;
    }
    let mut tx = Tx::new(store.last_transno().0 + 1);
    // The record replaces itself, so an MDT on a full disk can start too.
    tx.batch().set_releasing(true);
    tx.batch().put(META, META_KEY, &record.encode());
    tx.batch().put(META, RUNS_KEY, &earlier.encode());
    store.sync(store.commit_at_least(tx.batch(), first)?)?;
    Ok(RunBegun { was_clean, inodes, runs })
}

/// What the parts of an MDT are built from.
struct Begun<'a> {
    dir: &'a Path,
    config: &'a MdsConfig,
    store: Arc<MetaStore>,
    data: Arc<DataPart>,
    record: MdtRecord,
    known: Expected,
    was_clean: bool,
    runs: Runs,
    boot_transno: TransNo,
}

impl Mds {
    /// Formats an empty MDT in `dir` (which must exist or be creatable), with a root directory of mode 0755
    /// if it is MDT0.
    ///
    /// # Durability
    /// The MDT is durable on return.
    ///
    /// # Errors
    /// If the directory already has an MDT, or the directory cannot be used.
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
            // The root counts.
            inodes: Some(u64::from(config.index == 0)),
            data_apart: config.data_apart,
        };
        let mut tx = Tx::new(1);
        tx.batch().put(META, META_KEY, &record.encode());
        if config.index == 0 {
            let now = now();
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
            // The root is its own parent, so `..` there needs no special case.
            let mut root = InodeRecord { attr, parent: Fid::ROOT, ..InodeRecord::default() };
            put_default(&mut root, Some(DirDefault::of_root()));
            if !config.root_layout.is_empty() {
                root.body = user::encode_request(&Fid::ROOT, &config.root_layout);
                root.attr.flags |= AttrFlags::HAS_LAYOUT;
            }
            tx.put_inode(root);
        }
        let transno = store.commit(tx.batch())?;
        store.sync(transno)?;
        store.close()?;
        Ok(())
    }

    /// Starts the MDT in `dir`, which stores data of files in its metadata store.
    ///
    /// # Errors
    /// As [`Mds::open_with`].
    pub fn open(dir: &Path, config: MdsConfig, osts: Osts) -> Result<Arc<Mds>, MdsError> {
        Mds::open_with(dir, config, osts, None)
    }

    /// Starts the MDT in `dir`; `data` is the object store for data of files, if the MDT was formatted with
    /// one ([`MdsConfig::data_apart`]). The caller closes it.
    ///
    /// # Errors
    /// If it is not formatted, damaged, in use, another MDT than configured, or formatted with the other kind
    /// of data store.
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
        let data = Arc::new(DataPart::open(data, &store, dir, &record, &config)?);
        let boot_transno = store.last_transno();
        let RunBegun { was_clean, inodes, runs } = begin_run(&store, &mut record)?;
        if !was_clean && record.data_apart {
            destroy_unowned(&store, &*data.store)?;
        }
        let (ended, known) = known_clients(&store)?;
        let config = &config;
        let mds =
            Mds::assemble(Begun { dir, config, store, data, record, known, was_clean, runs, boot_transno })?;
        mds.leaves.data.adapt(&mds.statfs());
        // The data store may outlive the MDT.
        let store = Arc::downgrade(&mds.leaves.store);
        mds.leaves.data.set_owned(Box::new(move |object| match store.upgrade() {
            Some(store) => is_object_of_a_file(&store, object),
            None => Err(ObjectError::Closed),
        }));
        mds.osts.set(osts)?;
        mds.threads.lock().extend(mds.space.know_inodes(inodes, &mds.leaves.records, &mds.leaves.signal)?);
        mds.start_count()?;
        mds.sessions.begin_recovery(&ended);
        let owner: Arc<dyn LockOwner> = mds.sessions.clone();
        let timer = Timer::start(mds.mdlocks.clone(), Arc::downgrade(&owner)).map_err(MdsError::Thread)?;
        *mds.lock_timer.lock() = Some(timer);
        mds.leaves.departed.start(&mds.sessions, Sessions::fence, Sessions::close_left)?;
        let (weak, signal) = (Arc::downgrade(&mds), mds.leaves.signal.clone());
        let ticker =
            nacre_env::thread::Builder::new().name("mds-tick".into()).spawn(move || tick(&weak, &signal));
        mds.threads.lock().push(ticker.map_err(MdsError::Thread)?);
        let (scrub, signal) = (mds.scrub.clone(), mds.leaves.signal.clone());
        let scrubber =
            nacre_env::thread::Builder::new().name("mds-scrub".into()).spawn(move || scrub.run(&signal));
        mds.threads.lock().push(scrubber.map_err(MdsError::Thread)?);
        if let Some(master) = &mds.quota_master {
            mds.threads.lock().extend(master.start(&mds.leaves.signal)?);
        }
        Ok(mds)
    }

    /// Builds the parts, in the order of their dependencies.
    fn assemble(begun: Begun<'_>) -> Result<Arc<Mds>, MdsError> {
        let Begun { dir, config, store, data, record, known, was_clean, runs, boot_transno } = begun;
        let (index, boot_count) = (record.index, record.boot_count);
        let orphans = keys_of(&store, ORPHANS)?.iter().map(Fid::from_key).collect();
        let mdlocks = inode_locks(config, known.clone());
        let locks = Arc::new(LockTable::new());
        let is_whole = was_clean && !runs.may_lack;
        let transactions = Transactions::open(&store, &locks, index, boot_count, is_whole)?;
        let osts = OstSet::new(index, store.clone(), config.qos, !is_whole && !known.is_empty())?;
        let moving = Arc::new(Moving::new());
        let quotas = Arc::new(Quotas::open(&store, index, was_clean)?);
        let dir_use = Arc::new(DirUse::new());
        let leaves = Leaves {
            index,
            changelog: Arc::new(Changelog::open(&store)?),
            counting: Arc::new(Counting::new(&store, index, &quotas, &dir_use)),
            quotas,
            dir_use,
            signal: Arc::default(),
            hold: Arc::default(),
            departed: Arc::default(),
            opens: Arc::new(OpenTable::new()),
            flocks: Arc::new(FileLocks::new(mdlocks.is_recovering())),
            replays: Arc::new(Replays::new(runs, known.keys().copied())),
            transactions: Arc::new(transactions),
            osts: Arc::new(osts),
            space: Arc::new(SpaceGuard::new(dir, store.clone(), config.reserve_bytes)),
            clients: Arc::new(Clients::new(config, boot_count, &known)),
            recovery: Arc::new(Recovery::new(known, orphans)),
            replaced: Arc::default(),
            records: Arc::new(Records::new(store.clone(), record, config.cached_inodes, moving.clone())),
            moving,
            mdlocks,
            locks,
            store,
            data,
        };
        Ok(Arc::new(Mds::join(Arc::new(leaves), config, boot_count, boot_transno)?))
    }

    /// Builds the parts that depend on others.
    fn join(
        leaves: Arc<Leaves>,
        config: &MdsConfig,
        boot_count: u64,
        boot_transno: TransNo,
    ) -> Result<Mds, MdsError> {
        let core = Arc::new(Core::new(&leaves, config, boot_transno));
        let relayout = Arc::new(LayoutChanges::new(&leaves, &core, config.object_wait));
        let files = Arc::new(OpenFiles::new(&leaves, &core, &relayout));
        let lookups = Arc::new(Lookups::new(&leaves, &core));
        let filesets = Arc::new(Filesets::new(&leaves, &core.coordinator));
        let sessions = Arc::new(Sessions::new(&leaves, &core, boot_count, config.recovery_window, &files));
        let replayer = Arc::new(Replayer::new(&leaves, &core, &files, config.recovery_window));
        let quota_master = QuotaMaster::of(&leaves, &core).map(Arc::new);
        Ok(Mds {
            attrs: Attributes::new(&leaves, &core, &lookups, &relayout),
            names: NameSpace::new(&leaves, &core, &files),
            moves: Arc::new(Moves::new(&leaves, &core)),
            resolver: Arc::new(Resolver::new(
                &leaves,
                &core.layouts,
                &core.participant,
                &core.coordinator,
                &replayer,
            )),
            replayer,
            tenants: Tenants::new(&leaves, config.find_user, &lookups, &filesets, &sessions),
            capabilities: Capabilities::new(&leaves, &core.layouts),
            changelog: leaves.changelog.clone(),
            changelogs: ChangelogService::new(&leaves, &core),
            dir_sums: DirSums::new(&leaves, &core),
            quota_master,
            scrub: Arc::new(Scrub::new(&leaves, &core, config.scrub_rate)),
            stats: MdsStats::new(),
            sharing: Sharing::new(&leaves.clients, &leaves.records, &leaves.store),
            simulation: Simulation::default(),
            faults: Faults::new(leaves.index),
            lock_timer: Mutex::new(None),
            threads: Mutex::default(),
            mdlocks: leaves.mdlocks.clone(),
            osts: leaves.osts.clone(),
            space: leaves.space.clone(),
            moving: leaves.moving.clone(),
            hold: leaves.hold.clone(),
            layouts: core.layouts.clone(),
            placement: core.placement.clone(),
            leaves,
            core,
            boot_count,
            files,
            filesets,
            relayout,
            lookups,
            sessions,
        })
    }

    /// Sets the other MDTs, by index, with an endpoint for each. Names and inodes may then be on any of them.
    /// A thread exchanges state with new ones.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn set_peers(&self, peers: Peers) -> Result<(), MdsError> {
        self.resolver.set_peers(peers)?;
        if self.leaves.signal.is_stopping() { Ok(()) } else { self.moves.start().map_err(MdsError::Thread) }
    }

    /// Sets the lookup for unknown MDTs: `look` may add them with [`Mds::set_peers`]. Only the first call has
    /// an effect.
    pub fn set_newcomers(&self, look: Box<Newcomers>) {
        self.leaves.transactions.set_newcomers(look);
    }

    /// Waits until this MDT has what it needs from MDT 0 before it accepts the first name: the seed for the
    /// hash of names, and the defaults of the root for the whole file system. Returns false if it does not
    /// have them by `deadline`.
    pub fn await_acquaintance(&self, deadline: Instant) -> bool {
        self.resolver.await_acquaintance(deadline)
    }

    /// Returns the number of requests that wait for names or inodes kept by other operations.
    pub fn lock_waiters(&self) -> usize {
        self.leaves.locks.waiting()
    }

    /// Returns the files that a client has open, one entry for each handle.
    pub fn open_files(&self, client: &ClientUuid) -> Vec<Fid> {
        self.leaves.opens.handles_of(client).into_iter().map(|(fid, _)| fid).collect()
    }

    /// Returns true if the store has lost acknowledged changes, or may have: it accepts no more changes.
    pub fn has_failed(&self) -> bool {
        self.leaves.store.stats().has_failed
    }

    /// Serves the owner of this process about the changelog.
    ///
    /// # Errors
    /// Those of the request.
    pub fn administrate_changelog(&self, request: &ChangelogRequest) -> StatusResult<ChangelogReply> {
        match self.changelogs.run(None, request)?.reply {
            MdsReply::Changelog(reply) => Ok(reply),
            _ => Err(Status::EPROTO),
        }
    }

    /// Returns the use by owner on this MDT, for the service for data of files, which admits writes by it.
    pub fn book(&self) -> Arc<Book> {
        self.leaves.quotas.book().clone()
    }

    /// Returns the users, groups and projects with most space and inodes in the whole file system, and those beyond
    /// a soft limit; empty on other MDTs than MDT0000, and at the first call, which starts to gather them.
    pub fn largest_owners(&self) -> Vec<QuotaState> {
        self.quota_master.as_ref().map_or_else(Vec::new, |master| master.owners())
    }

    /// Returns true if the MDT counts inodes and space of directories (`mdt.*.dir_use`).
    pub fn counts_directories(&self) -> bool {
        self.leaves.dir_use.is_on()
    }

    /// Returns which changes are durable before another client learns of them (`mdt.*.commit_on_sharing`): 0 for none,
    /// 1 for all, 2 for those whose own client may not have its answer.
    pub fn commit_on_sharing(&self) -> u8 {
        self.sharing.mode()
    }

    /// Sets which.
    pub fn set_commit_on_sharing(&self, mode: u8) {
        self.sharing.set_mode(mode);
    }

    /// Returns how often the log was synced for that.
    pub fn shared_commits(&self) -> u64 {
        self.sharing.commits()
    }

    /// Switches that count. The inodes are read in the background after it was switched on.
    pub fn set_counts_directories(&self, on: bool) {
        if self.leaves.counting.set_dirs_on(on)
            && let Err(error) = self.start_count()
        {
            log::error!("MDT{:04x}: inodes of directories are not counted: {error}", self.leaves.index);
        }
    }

    fn start_count(&self) -> Result<(), MdsError> {
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.extend(self.leaves.counting.start(&self.leaves.signal)?);
        Ok(())
    }

    /// Returns the longest time in milliseconds until an acknowledged change is durable (`osd-file.*.commit_interval_ms`).
    pub fn commit_interval_ms(&self) -> u64 {
        self.leaves.store.commit_interval_ms()
    }

    /// Sets that time.
    pub fn set_commit_interval_ms(&self, interval_ms: u64) {
        self.leaves.store.set_commit_interval_ms(interval_ms);
    }

    /// Returns the numbers of lost changes that clients have replayed since the start, and that were refused because of
    /// conflicts; and the newest transaction.
    pub fn replayed(&self) -> (u64, u64, TransNo) {
        let (replayed, refused) = self.leaves.replays.counts();
        (replayed, refused, self.leaves.store.last_transno())
    }

    /// Returns the number of starts of the target, including this one.
    pub fn run_number(&self) -> u64 {
        self.boot_count
    }

    /// Returns the store with data of files on this MDT, for the service that reads and writes it.
    pub fn data_store(&self) -> Arc<dyn ObjectStore> {
        self.leaves.data.store.clone()
    }

    /// Sets the callback for data that arrives with a close: the service for data here updates its versions
    /// and lock value blocks.
    pub fn watch_data(&self, watch: DataWatch) {
        self.leaves.data.set_watch(watch);
    }

    /// Ties the recovery of data on this MDT to that of the metadata, which precedes it for each client.
    pub fn lead_recovery_of(&self, data: &Arc<LockService>) {
        self.mdlocks.lead(data);
    }

    /// Returns a function that waits until clients have replayed what this MDT had lost with its host; it fails with
    /// `EINTR` and `ESHUTDOWN`.
    pub fn replay_gate(&self) -> Box<dyn Fn() -> StatusResult<()> + Send + Sync> {
        let replayer = Arc::downgrade(&self.replayer);
        Box::new(move || replayer.upgrade().map_or(Ok(()), |replayer| replayer.await_all()))
    }

    /// Returns the largest component in bytes that new layouts may have on this MDT: while there is enough
    /// space (`lod.*.dom_stripesize`), and with the current free space (`dom_stripesize_cur_kb`).
    pub fn dom_limits(&self) -> (u64, u64) {
        self.leaves.data.limits()
    }

    /// Sets the first limit of [`Mds::dom_limits`] in bytes.
    pub fn set_dom_limit(&self, bytes: u64) {
        self.leaves.data.set_max(bytes, &self.statfs());
    }

    /// Returns the free space in bytes below which the limit shrinks (`lod.*.dom_threshold_free_mb`).
    pub fn dom_threshold(&self) -> u64 {
        self.leaves.data.threshold(&self.statfs())
    }

    /// Sets that threshold in bytes.
    pub fn set_dom_threshold(&self, bytes: u64) {
        self.leaves.data.set_threshold(bytes, &self.statfs());
    }

    /// Returns the space for clients: bytes of the store with data of files, names of the metadata store.
    pub fn statfs(&self) -> Statfs {
        self.leaves.data.statfs(self.space.statfs())
    }

    /// Stops cleanly: refuses further requests, ends background work, makes everything durable, closes the
    /// store. Clients stay recorded, so that they can reconnect after a restart.
    ///
    /// # Errors
    /// If the store cannot be closed cleanly.
    pub fn stop(&self) -> Result<(), MdsError> {
        self.hold.release();
        if !self.leaves.signal.refuse() {
            return Ok(());
        }
        self.end_threads();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                log::error!("MDT{:04x}: the thread {name} has panicked", self.leaves.index);
            }
        }
        if !self.resolver.join() {
            log::error!("MDT{:04x}: the thread mds-resolve has panicked", self.leaves.index);
        }
        self.leaves.departed.join();
        if !self.moves.join() {
            log::error!("MDT{:04x}: the thread that moves names has panicked", self.leaves.index);
        }
        drop(self.lock_timer.lock().take());
        self.leaves.transactions.set_peers(Peers::new());
        self.osts.wait_stopped(STOP_TIMEOUT);
        if let Err(status) = self.leaves.quotas.stop() {
            log::warn!(
                "MDT{:04x}: use by owner is counted again at the next start: {status}",
                self.leaves.index
            );
        }
        self.leaves.records.close(self.space.known_inodes())
    }

    fn end_threads(&self) {
        self.leaves.signal.raise();
        self.osts.stop();
        self.leaves.departed.stop();
        self.leaves.clients.wake();
        self.leaves.flocks.wake();
        self.mdlocks.stop();
        self.leaves.transactions.wake();
        self.leaves.locks.stop();
        self.moving.stop();
    }
}

impl Drop for Mds {
    fn drop(&mut self) {
        self.end_threads();
    }
}

/// Returns an unpredictable number: the standard library's hasher gets its keys from the system.
fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Builds the lock service for inodes. Clients drop what they cache when they notice the restart of the
/// server; until then nothing changes.
fn inode_locks(config: &MdsConfig, known: Expected) -> Arc<LockService> {
    let times = ServerConfig { callback_timeout: config.release_timeout, ..ServerConfig::default() };
    let name = format!("MDT{:04x}", config.index);
    Arc::new(LockService::new(name, times, known, config.recovery_window))
}

/// Returns the clients of the last run: those whose processes have certainly ended, and those that may
/// reconnect.
fn known_clients(store: &MetaStore) -> Result<(Vec<ClientUuid>, Expected), MdsError> {
    let (mut ended, mut known) = (Vec::new(), Expected::new());
    store.scan(CLIENTS, &[], Bound::Unbounded, &mut |key, value| {
        if let Ok(key) = <[u8; 16]>::try_from(key) {
            // A record that cannot be decoded only proves that the client existed.
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

/// Body of the thread that checks space and deadlines.
fn tick(mds: &Weak<Mds>, signal: &StopSignal) {
    let mut ticks = 0;
    while !signal.wait(TICK) {
        let Some(mds) = mds.upgrade() else { return };
        ticks += 1;
        mds.leaves.quotas.tick(ticks, TICK);
        mds.space.refresh();
        mds.leaves.data.adapt(&mds.statfs());
        mds.sessions.check_deadlines();
        mds.replayer.apply_due();
        mds.changelogs.tick();
        mds.leaves.departed.destroy(mds.leaves.replaced.take_old());
    }
}
