//! The client itself: its parts, and how it calls servers.

use crate::caller::Caller;
use crate::capabilities::CapabilityTable;
use crate::config::ClientConfig;
use crate::flocks::FileLocks;
use crate::handles::{Asked, HandleTable};
use crate::io::ahead::Ahead;
use crate::io::dirty::idle::Pace;
use crate::io::dirty::writers::WriteBack;
use crate::io::layout::Relayouts;
use crate::io::ranges::Use;
use crate::io::silent::Silent;
use crate::jobs::Jobs;
use crate::joining::Joining;
use crate::lease::{KernelCaches, Lease, serve_releases};
use crate::locks::inodes::RETRY;
use crate::node::{self, NodeTable};
use crate::ops::absent::Absences;
use crate::ops::mkdir::Placement;
use crate::ops::root::Root;
use crate::ops::statahead::Statahead;
use crate::ops::striped::ShardLists;
use crate::targets::{MdtTable, OstTable};
use crate::tasks::Tasks;
use crate::tunables::Tunables;
use crate::unsynced::Unsynced;
use nacre_env::clock::Instant;
use nacre_env::sync::{Mutex, RwLock};
use nacre_layout::dir_hash::DirHash;
use nacre_lock::LockHandle;
use nacre_rpc::{MdsEndpoint, OssEndpoint};
use nacre_types::fid::OIDS_PER_SEQUENCE;
use nacre_types::{Attr, Cred, Fid, OpenHandle, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};
use nacre_wire::mgs::PoolConfig;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

/// A mount. Any thread may call any method.
pub struct Client {
    pub(crate) config: ClientConfig,
    pub(crate) mdts: MdtTable,
    /// Those that are about to be there.
    pub(crate) joining: Joining,
    pub(crate) osts: OstTable,
    pub(crate) silent: Silent,
    pub(crate) capabilities: CapabilityTable,
    pub(crate) nodes: NodeTable,
    pub(crate) handles: HandleTable,
    /// Locks of programs on files.
    pub(crate) flocks: FileLocks,
    pub(crate) lease: Arc<Lease>,
    pub(crate) kernel: OnceLock<Arc<dyn KernelCaches>>,
    /// Changes that this client made to the namespace or attributes; tells whether a fetched page is still true.
    pub(crate) changes: AtomicU64,
    /// Opens for writing and cuts of files: between two equal numbers no file began to be changed here.
    pub(crate) data_changes: AtomicU64,
    /// Bytes of files that came with opens.
    pub(crate) opened_bytes: Arc<AtomicU64>,
    pub(crate) relayouts: Relayouts,
    pub(crate) tunables: Tunables,
    pub(crate) jobs: Jobs,
    /// Where new directories go.
    pub(crate) placement: Placement,
    pub(crate) root: Root,
    pub(crate) ahead: Ahead,
    pub(crate) statahead: Statahead,
    pub(crate) absences: Absences,
    pub(crate) shard_lists: ShardLists,
    /// How long large reads take.
    pub(crate) read_pace: Pace,
    pub(crate) tasks: Arc<Tasks>,
    /// For work that goes on on other threads than the caller's.
    pub(crate) me: OnceLock<Weak<Client>>,
    /// How names are spread over MDTs where nobody says how, a [`DirHash`]'s number.
    pub(crate) default_hash: AtomicU16,
    /// Pools of the file system, for those who ask.
    pub(crate) pools: RwLock<Vec<PoolConfig>>,
    /// Written data that has not reached its objects.
    pub(crate) dirty: Arc<WriteBack>,
}

/// A metadata target as the client sees it.
pub(crate) struct Mdt {
    pub endpoint: Arc<dyn MdsEndpoint>,
    /// Everything up to here is durable there.
    last_committed: AtomicU64,
    /// Last transaction of this client there.
    pub last_transno: AtomicU64,
    /// How often what is open there was opened again.
    pub recoveries: AtomicU64,
    /// What it may still lose.
    pub unsynced: Unsynced,
    fids: Mutex<FidPool>,
}

impl Mdt {
    pub fn new(endpoint: Arc<dyn MdsEndpoint>) -> Mdt {
        Mdt {
            endpoint,
            last_committed: AtomicU64::new(0),
            last_transno: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            unsynced: Unsynced::default(),
            fids: Mutex::new(FidPool::default()),
        }
    }

    /// Everything up to here is durable there.
    pub fn last_committed(&self) -> u64 {
        self.last_committed.load(Ordering::Relaxed)
    }

    /// It has begun a run with this as the newest transaction.
    pub fn forget_later(&self, newest: u64) {
        self.last_committed.fetch_min(newest, Ordering::Relaxed);
        self.last_transno.fetch_min(newest, Ordering::Relaxed);
    }
}

/// What keeps a recovery from going on, so that it begins again.
pub(crate) fn open_again_is_given_up(status: Status) -> bool {
    matches!(status, Status::EINTR | Status::ENOTCONN | Status::ESHUTDOWN | Status::ETIMEDOUT)
}

/// The request that opens again what an MDT had open.
pub(crate) fn open_again(fid: Fid, handle: OpenHandle, flags: OpenFlags) -> MdsRequest<'static> {
    let flags = (flags & !(OpenFlags::TRUNCATE | OpenFlags::CREATED)) | OpenFlags::REPLAY;
    MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) }
}

/// FIDs for new files: object ids of one sequence after the other.
#[derive(Default)]
struct FidPool {
    seq: u64,
    next_oid: u32,
}

impl FidPool {
    fn take(&mut self) -> Option<Fid> {
        if self.seq == 0 || self.next_oid > OIDS_PER_SEQUENCE {
            return None;
        }
        self.next_oid += 1;
        Some(Fid::new(self.seq, self.next_oid - 1, 0))
    }
}

/// An MDT's answer, and the lease that was in force when the question was sent.
pub(crate) struct Answer {
    pub reply: MdsReply,
    pub transno: TransNo,
    /// Number of the exclusive lease, 0 under a shared one.
    pub lease: u64,
}

impl Answer {
    /// # Errors
    /// `EPROTO` if the MDT answered something else than attributes.
    pub fn attr(self) -> StatusResult<Attr> {
        match self.reply {
            MdsReply::Attr(attr) => Ok(attr),
            _ => Err(Status::EPROTO),
        }
    }

    /// # Errors
    /// `EPROTO` if the MDT answered something else than bytes.
    pub fn bytes(self) -> StatusResult<Vec<u8>> {
        match self.reply {
            MdsReply::Bytes(bytes) => Ok(bytes),
            _ => Err(Status::EPROTO),
        }
    }
}

impl Client {
    /// A client over connected endpoints: `mdts` by index, `osts` those that are known now. `lease` is what the MDTs
    /// call back. Asks each MDT what may be cached.
    ///
    /// # Errors
    /// What an MDT answers; `EINVAL` without any MDT or with too many; `EAGAIN` if no thread can be started.
    pub fn new(
        config: ClientConfig,
        lease: Arc<Lease>,
        mdts: Vec<Arc<dyn MdsEndpoint>>,
        osts: BTreeMap<u16, Arc<dyn OssEndpoint>>,
    ) -> StatusResult<Arc<Client>> {
        if mdts.is_empty() {
            return Err(Status::EINVAL);
        }
        let table = OstTable::new();
        for (index, endpoint) in osts {
            table.add(index, endpoint);
        }
        let known = MdtTable::new();
        if !mdts.into_iter().all(|endpoint| known.push(Mdt::new(endpoint))) {
            return Err(Status::EINVAL);
        }
        let dirty = Arc::new(WriteBack::new(config.instance));
        let flocks = FileLocks::new(config.instance);
        let client = Arc::new(Client {
            config,
            mdts: known,
            joining: Joining::default(),
            osts: table,
            silent: Silent::default(),
            capabilities: CapabilityTable::new(),
            nodes: NodeTable::new(),
            handles: HandleTable::new(),
            flocks,
            lease,
            kernel: OnceLock::new(),
            changes: AtomicU64::new(0),
            data_changes: AtomicU64::new(0),
            opened_bytes: Arc::default(),
            relayouts: Relayouts::default(),
            tunables: Tunables::of_host(),
            jobs: Jobs::default(),
            placement: Placement::new(),
            root: Root::default(),
            ahead: Ahead::default(),
            statahead: Statahead::default(),
            absences: Absences::default(),
            shard_lists: ShardLists::default(),
            read_pace: Pace::default(),
            tasks: Tasks::of_process(),
            me: OnceLock::new(),
            default_hash: AtomicU16::new(DirHash::default().number()),
            pools: RwLock::default(),
            dirty,
        });
        client.dirty.attach(&client);
        client.lease.locks().attach(&client);
        let _ = client.me.set(Arc::downgrade(&client));
        client.refresh_lease()?;
        let (lease, weak) = (client.lease.clone(), Arc::downgrade(&client));
        nacre_env::thread::Builder::new()
            .name("lease".into())
            .spawn(move || serve_releases(&lease, &weak))
            .map_err(|error| Status::from_io(&error))?;
        Ok(client)
    }

    /// Who caches on this client's word; told to drop when the lease becomes shared. Only the first call counts.
    pub fn set_kernel_caches(&self, kernel: Arc<dyn KernelCaches>) {
        let _ = self.kernel.set(kernel);
    }

    /// Adds an OST that appeared while the client runs; false if the index is known already.
    pub fn add_ost(&self, index: u16, endpoint: Arc<dyn OssEndpoint>) -> bool {
        self.osts.add(index, endpoint)
    }

    /// The way to an OST, if it is known.
    pub fn ost_endpoint(&self, index: u16) -> Option<&dyn OssEndpoint> {
        self.osts.get(index)
    }

    /// The way to an MDT, if it is known.
    pub fn mdt_endpoint(&self, index: u16) -> Option<&dyn MdsEndpoint> {
        self.mdts.get(usize::from(index)).map(|mdt| &*mdt.endpoint)
    }

    /// What may be cached now.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// True if the servers are in this process: requests cost a call, not a message.
    pub fn is_embedded(&self) -> bool {
        self.mdts.iter().all(|mdt| mdt.endpoint.is_local())
    }

    /// How this client was configured.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// Parameters that can be changed while it runs.
    pub fn tunables(&self) -> &Tunables {
        &self.tunables
    }

    /// How jobs are named.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// Inodes in the client's table, for statistics.
    pub fn known_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Asks every MDT what may be cached; used at the start and after a reconnection.
    ///
    /// # Errors
    /// What an MDT answers.
    pub fn refresh_lease(&self) -> StatusResult<()> {
        let system = Cred::system();
        for (index, mdt) in self.mdts.iter().enumerate() {
            if let MdsReply::Lease(grant) = mdt.endpoint.call(&system, &MdsRequest::Ping)?.reply {
                self.lease.apply(index as u16, grant, false);
            }
        }
        Ok(())
    }

    /// Files and directories that are open now, those included that the kernel closes without waiting.
    pub fn open_count(&self) -> usize {
        self.handles.count()
    }

    /// Opens all handles of an MDT again over `endpoint`, after it restarted and forgot them, those included that are just being opened or
    /// closed. Handles that the MDT refuses are logged; I/O goes on, since objects are named by the layout.
    ///
    /// # Errors
    /// If the connection is lost meanwhile or the thread interrupted: what is left is to be opened then, before anything else is asked for.
    pub fn reopen_handles(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        // Before the list is made: who is not on it finds out by this.
        if let Some(mdt) = self.mdts.get(usize::from(mdt_index)) {
            mdt.recoveries.fetch_add(1, Ordering::AcqRel);
        }
        for (handle, Asked { fid, flags, opener }) in self.handles.opens() {
            if fid.mdt_index() != mdt_index {
                continue;
            }
            match endpoint.call(&opener.cred(), &open_again(fid, handle, flags)) {
                Ok(_) => {}
                Err(status) if open_again_is_given_up(status) => return Err(status),
                Err(status) => log::warn!("handle {} of {fid} could not be opened again: {status}", handle.0),
            }
        }
        Ok(())
    }

    /// Sets the file locks of this mount's programs again at an MDT that has restarted and forgot them, over `endpoint`: before it is told
    /// that this client has brought back all its locks.
    ///
    /// # Errors
    /// As [`Client::reopen_handles`].
    pub fn replay_file_locks(&self, mdt_index: u16, endpoint: &dyn MdsEndpoint) -> StatusResult<()> {
        self.flocks.replay(mdt_index, endpoint)
    }

    /// An MDT has dropped this client: file locks there are lost, which their holders learn as `EIO`.
    pub fn lose_file_locks(&self, mdt_index: u16) {
        self.flocks.lose(mdt_index);
    }

    /// Stops threads; what [`Client::write_back_all`] has not written is lost. Open handles are the MDTs' to close when the
    /// connection ends.
    pub fn shutdown(&self) {
        self.joining.stop();
        self.lease.stop();
        self.lease.locks().stop();
        self.dirty.stop();
    }

    /// The MDT of a FID. One that is joining is waited for.
    pub(crate) fn mdt(&self, fid: Fid) -> StatusResult<&Mdt> {
        let index = fid.mdt_index();
        self.mdts.get(usize::from(index)).map_or_else(|| self.mdt_that_joins(index), Ok)
    }

    /// Asks the MDT of `fid`. Groups and capabilities are fetched only if the MDT cannot decide without.
    pub(crate) fn call(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> StatusResult<Answer> {
        self.with_space(fid, || self.call_once(caller, fid, request))
    }

    fn call_once(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> StatusResult<Answer> {
        self.call_as(&caller.cred(), fid, request).or_else(|status| match status {
            Status::NEED_CREDENTIALS => self.call_as(&caller.full_cred(), fid, request),
            other => Err(other),
        })
    }

    /// Asks as somebody whose credentials are complete.
    pub(crate) fn call_as(&self, cred: &Cred, fid: Fid, request: &MdsRequest<'_>) -> StatusResult<Answer> {
        let mdt = self.mdt(fid)?;
        let lease = self.lease.number();
        let answer = mdt.endpoint.call(cred, request)?;
        if let Some(given) = &answer.capabilities {
            self.note_capabilities(given);
        }
        mdt.last_committed.fetch_max(answer.last_committed.0, Ordering::Relaxed);
        if answer.transno.0 != 0 {
            mdt.last_transno.fetch_max(answer.transno.0, Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Release);
            self.note_unsynced(fid, request, &answer.reply, answer.transno.0);
        }
        Ok(Answer { reply: answer.reply, transno: answer.transno, lease })
    }

    /// Asks on the client's own account.
    pub(crate) fn call_system(&self, fid: Fid, request: &MdsRequest<'_>) -> StatusResult<Answer> {
        self.call_as(&Cred::system(), fid, request)
    }

    /// Makes everything up to `upto` durable at the MDT of `fid`, if it is not yet.
    pub(crate) fn commit(&self, fid: Fid, upto: TransNo) -> StatusResult<()> {
        let mdt = self.mdt(fid)?;
        // What an MDT has lost is no position in its log any more.
        let upto = match upto.0 {
            u64::MAX => upto,
            known => TransNo(known.min(mdt.last_transno.load(Ordering::Relaxed))),
        };
        if upto.0 <= mdt.last_committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.call_system(fid, &MdsRequest::Commit { upto })?;
        // "Everything" is no position that later changes could be compared with.
        if upto.0 != u64::MAX {
            mdt.last_committed.fetch_max(upto.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// A FID for a new inode on an MDT.
    pub(crate) fn fresh_fid(&self, index: u16) -> StatusResult<Fid> {
        let place = Fid::new(Fid::first_sequence_of_mdt(index), 1, 0);
        let mdt = self.mdt(place)?;
        loop {
            if let Some(fid) = mdt.fids.lock().take() {
                return Ok(fid);
            }
            let MdsReply::Sequence(seq) = self.call_system(place, &MdsRequest::AllocateSequence)?.reply
            else {
                return Err(Status::EPROTO);
            };
            let mut pool = mdt.fids.lock();
            // Another thread may have fetched one meanwhile; what is left of it comes first, a sequence is no loss.
            if let Some(fid) = pool.take() {
                return Ok(fid);
            }
            *pool = FidPool { seq, next_oid: 1 };
        }
    }

    /// The FID behind a node id of the kernel.
    ///
    /// # Errors
    /// `ESTALE` for a number that no FID has.
    pub fn fid_of(&self, node: u64) -> StatusResult<Fid> {
        node::fid_of(node).ok_or(Status::ESTALE)
    }

    /// The time that changes get.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from(nacre_env::clock::wall())
    }

    /// Takes note of attributes that an operation brought.
    pub(crate) fn note(&self, attr: &Attr, lease: u64) {
        let node = attr.fid.inode_number();
        self.nodes.note(node, attr, lease.into());
        if let Some(file) = self.nodes.file(node) {
            file.lock().learn(attr, lease, false);
        }
    }

    /// Has the kernel drop attributes and data of all inodes, those included that it is about to learn of.
    fn drop_known_inodes(&self, kernel: &dyn KernelCaches) {
        let (began, mut unknown) = (Instant::now(), Vec::new());
        let is_dropped = |node| self.reaches_kernel(node, began, |node| kernel.drop_inode(node));
        self.nodes.for_each_known(|node| {
            if !is_dropped(node) {
                unknown.push(node);
            }
        });
        while !unknown.is_empty() {
            nacre_env::thread::sleep(RETRY);
            unknown.retain(|node| !is_dropped(*node));
        }
    }

    /// Everything cached under an exclusive lease goes, then the MDT is told that it is gone.
    pub(crate) fn release_lease(&self, mdt_index: u16, epoch: u64) {
        if let Some(kernel) = self.kernel.get() {
            kernel.expire_names();
            self.drop_known_inodes(&**kernel);
            // Answers that were on their way to the kernel during the first round may have brought names back.
            kernel.expire_names();
        }
        self.statahead.clear();
        for file in self.nodes.open_files() {
            self.forget_ahead(&file);
            // Writes that began alone hold their ranges; those that begin from now on hold nothing back.
            if let Err(status) = file.take_range_ungated(Use::Exclusive, |_| (0, u64::MAX, ())) {
                log::warn!("writes to {} were not waited for: {status}", file.fid);
            }
            if let Err(status) = self.settle(&file, 0, u64::MAX) {
                log::warn!("data of {} could not be written: {status}", file.fid);
            }
            // What is known of the size was known because nobody else was there.
            file.lock_era.fetch_add(1, Ordering::AcqRel);
            if let Err(status) = self.push_size(&file) {
                log::warn!("size of {} could not be told to the MDT: {status}", file.fid);
            }
        }
        let Some(mdt) = self.mdt_once_joined(mdt_index) else { return };
        match mdt.endpoint.call(&Cred::system(), &MdsRequest::LeaseReleased { epoch }) {
            Ok(answer) => {
                if let MdsReply::Lease(grant) = answer.reply {
                    self.lease.apply(mdt_index, grant, false);
                }
            }
            Err(status) => {
                log::warn!("the release of lease {epoch} did not reach MDT{mdt_index:04x}: {status}")
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shutdown();
    }
}
