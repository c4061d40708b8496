//! Tests of the server through its requests. [`Fixture`] is an MDT in a directory of its own with OSTs that
//! only count.

mod acls;
mod capabilities;
mod changelog;
mod concurrency;
mod crash;
mod data;
mod data_apart;
mod data_to_come;
mod dir_defaults;
mod dir_use;
mod distributed;
mod eviction;
mod files;
mod heads;
mod layouts;
mod layouts_grow;
mod mdlocks;
mod model;
mod namespace;
mod permissions;
mod pools;
mod projects;
mod quota;
mod recovery;
mod relayout;
mod renames;
mod replay;
mod silent;
mod tenants;
mod xattrs;

use crate::{Mds, MdsConfig};
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex, mpsc};
use nacre_lock::LockHandle;
use nacre_rpc::{Call, ClientCallbacks, Export, MdsService, OssEndpoint, ReplySlot};
use nacre_store::object::block::is_block_store;
use nacre_store::object::{BlockStore, BlockStoreOptions, ObjectError, ObjectStore};
use nacre_store::{MetaStore, MetaStoreOptions};
use nacre_types::{
    Attr, Caps, ClientUuid, Cred, Fid, FileKind, FullCred, Nid, OpenHandle, Owners, Status, StatusResult,
    TargetId,
};
use nacre_wire::mds::{
    DataUpdate, LeaseGrant, LockRange, MdsAnswer, MdsReply, MdsRequest, NewFile, OpenFlags,
};
use nacre_wire::oss::{Bulk, ObjectAttr, OssReply, OssRequest, Statfs};
use nacre_wire::quota::QuotaReport;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// An OST that records its requests.
#[derive(Default)]
pub(crate) struct FakeOst {
    pub next: AtomicU32,
    pub statfs: Mutex<Statfs>,
    pub fail: Mutex<Option<Status>>,
    pub orphan_calls: Mutex<Vec<(u64, u32)>>,
    /// Destroyed objects; a set, since objects may be destroyed again.
    pub destroyed: Mutex<BTreeSet<Fid>>,
    /// Served requests, in order.
    pub served: Mutex<Vec<OssRequest>>,
    /// Objects with the owners that were set.
    pub owned: Mutex<Vec<(Fid, Owners)>>,
    /// Attributes of objects, with the versions of their data.
    pub data: Mutex<HashMap<Fid, (ObjectAttr, u64)>>,
    pub calls: AtomicU64,
    /// How it answers quota rounds: not at all, by a report, or never in time.
    pub rounds: Mutex<Rounds>,
    /// Quota rounds that it was asked for.
    pub rounds_asked: AtomicU64,
}

/// Behaviour of an OST in quota rounds.
#[derive(Clone, Copy, Default)]
pub(crate) enum Rounds {
    #[default]
    Unknown,
    Answered,
    Silent,
}

impl FakeOst {
    pub fn new() -> Arc<FakeOst> {
        let statfs = Statfs {
            block_size: 4096,
            blocks: 1 << 20,
            blocks_free: 1 << 20,
            blocks_available: 1 << 20,
            files: 1 << 20,
            files_free: 1 << 20,
            state: 0,
        };
        Arc::new(FakeOst { next: AtomicU32::new(1), statfs: Mutex::new(statfs), ..FakeOst::default() })
    }
}

impl OssEndpoint for FakeOst {
    fn call(&self, request: &OssRequest, _bulk: Bulk<'_>) -> StatusResult<OssReply> {
        if *request == OssRequest::Ping {
            // This request is sent whenever the OST has not answered for a while.
            return self.fail.lock().map_or(Ok(OssReply::Done), Err);
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        {
            // In one step, so that a test that makes it fail knows what was served before.
            let fail = self.fail.lock();
            if let Some(status) = *fail {
                return Err(status);
            }
            self.served.lock().push(request.clone());
        }
        match request {
            OssRequest::Precreate { count, .. } => {
                let first = self.next.fetch_add(*count, Ordering::Relaxed);
                Ok(OssReply::Precreated { first, count: *count })
            }
            OssRequest::DestroyOrphans { sequence, last_used } => {
                self.orphan_calls.lock().push((*sequence, *last_used));
                Ok(OssReply::Precreated { first: self.next.load(Ordering::Relaxed), count: 0 })
            }
            OssRequest::Destroy { objects } => {
                self.destroyed.lock().extend(objects);
                Ok(OssReply::Done)
            }
            OssRequest::Evict { .. } => Ok(OssReply::Done),
            OssRequest::SetOwners { objects } => {
                self.owned.lock().extend(objects.iter().map(|it| (it.object, it.owners)));
                Ok(OssReply::Done)
            }
            // It counts nothing.
            OssRequest::QuotaRound { .. } => Err(Status::EOPNOTSUPP),
            OssRequest::DataVersion { object } => {
                let (attr, version) = self.data.lock().get(object).copied().unwrap_or_default();
                Ok(OssReply::Version { attr, version })
            }
            OssRequest::Statfs => Ok(OssReply::Statfs(*self.statfs.lock())),
            other => panic!("an MDS does not send {other:?}"),
        }
    }

    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        if !matches!(request, OssRequest::QuotaRound { .. }) {
            return self.call(request, Bulk::None);
        }
        let number = 1 + self.rounds_asked.fetch_add(1, Ordering::Relaxed);
        let rounds = *self.rounds.lock();
        match rounds {
            Rounds::Unknown => Err(Status::EOPNOTSUPP),
            Rounds::Answered => Ok(OssReply::Quota(QuotaReport { run: 1, number, ..QuotaReport::default() })),
            Rounds::Silent => {
                // Nothing wakes it: it is as slow as its caller permits.
                let (lock, never) = (Mutex::new(()), Condvar::new());
                never.wait_for(&mut lock.lock(), limit);
                Err(Status::ETIMEDOUT)
            }
        }
    }

    fn durability_epoch(&self) -> u64 {
        0
    }
}

/// Callbacks that are only recorded.
#[derive(Default)]
pub(crate) struct Noted {
    pub grants: Mutex<Vec<LeaseGrant>>,
    /// Seconds for which nothing was heard of the client.
    pub silent_s: AtomicU64,
}

impl ClientCallbacks for Noted {
    fn lease_changed(&self, grant: LeaseGrant) {
        self.grants.lock().push(grant);
    }

    fn silent_for(&self) -> Duration {
        Duration::from_secs(self.silent_s.load(Ordering::Relaxed))
    }
}

pub(crate) fn export(number: u8, nid: Nid) -> (Arc<Export>, Arc<Noted>) {
    let noted = Arc::new(Noted::default());
    (Arc::new(Export::new(ClientUuid([number; 16]), nid, None, noted.clone())), noted)
}

/// Builds a client in process `process` of this host.
pub(crate) fn export_of(number: u8, process: nacre_types::ProcessIdentity) -> Arc<Export> {
    let callbacks = Arc::new(Noted::default());
    Arc::new(Export::new(ClientUuid([number; 16]), tcp_nid(), Some(process), callbacks))
}

pub(crate) fn tcp_nid() -> Nid {
    "127.0.0.1@tcp".parse().expect("a NID")
}

/// Builds complete credentials.
pub(crate) fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid, full: Some(FullCred { groups: groups.to_vec(), caps: Caps::empty() }) }
}

/// User database: user 1000 is in group 100, the primary one, and in 7; user 1001 in group 101 alone; others
/// are unknown.
fn find_user(uid: u32) -> std::io::Result<Option<nacre_types::User>> {
    let user = |gid, groups: &[u32]| Some(nacre_types::User { gid, groups: groups.to_vec() });
    Ok(match uid {
        1000 => user(100, &[100, 7]),
        1001 => user(101, &[101]),
        _ => None,
    })
}

pub(crate) fn config() -> MdsConfig {
    MdsConfig {
        store: MetaStoreOptions::small(),
        reserve_bytes: Some(0),
        release_timeout: Duration::from_secs(2),
        recovery_window: Duration::from_secs(5),
        object_wait: Duration::from_millis(300),
        find_user,
        ..MdsConfig::default()
    }
}

/// Directory of an MDT's separate object store.
const DATA_DIR: &str = "data";

/// Opens the object store of the MDT in `dir`. It syncs nothing on its own.
fn data_store(dir: &std::path::Path, create: bool) -> BlockStore {
    let options = BlockStoreOptions {
        create,
        size: 16 << 20,
        reserve_bytes: Some(0),
        commit_interval_ms: 0,
        gives_ids: false,
        ..BlockStoreOptions::default()
    };
    let mut opened = BlockStore::open(&dir.join(DATA_DIR), options.clone());
    // Threads of the last run may still be ending.
    let deadline = Instant::now() + Duration::from_secs(20);
    while matches!(opened, Err(ObjectError::InUse { .. })) && Instant::now() < deadline {
        nacre_env::thread::yield_now();
        opened = BlockStore::open(&dir.join(DATA_DIR), options.clone());
    }
    opened.expect("opens")
}

/// The service for data of such an MDT, as far as the MDT itself uses it.
struct DataOf {
    store: std::sync::Weak<dyn ObjectStore>,
}

impl OssEndpoint for DataOf {
    fn call(&self, request: &OssRequest, _bulk: Bulk<'_>) -> StatusResult<OssReply> {
        match request {
            OssRequest::Destroy { objects } => {
                let store = self.store.upgrade().ok_or(Status::ESHUTDOWN)?;
                store.destroy(objects).map(|_| OssReply::Done).map_err(|error| error.status())
            }
            OssRequest::Evict { .. } => Ok(OssReply::Done),
            other => panic!("an MDS does not send {other:?} to its own data"),
        }
    }

    fn durability_epoch(&self) -> u64 {
        0
    }
}

/// Reports each wait of a thread.
pub(crate) struct Tell(pub mpsc::Sender<()>);

impl nacre_env::BlockingHook for Tell {
    fn enter(&self) {
        let _ = self.0.send(());
    }

    fn exit(&self) {}
}

/// See the module documentation.
pub(crate) struct Fixture {
    pub mds: Arc<Mds>,
    pub export: Arc<Export>,
    pub osts: Vec<Arc<FakeOst>>,
    pub dir: tempfile::TempDir,
    pub cred: Cred,
    sequence: u64,
    next_oid: AtomicU32,
    next_handle: AtomicU64,
}

impl Fixture {
    pub fn new() -> Fixture {
        Fixture::with_osts(1)
    }

    pub fn with_osts(count: usize) -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        Mds::format(dir.path(), &config()).expect("formats");
        Fixture::start(dir, (0..count).map(|_| FakeOst::new()).collect(), export(1, Nid::Lo).0)
    }

    /// Builds a fixture with a separate object store for data of files.
    pub fn with_data_apart() -> Fixture {
        let dir = tempfile::tempdir().expect("a directory");
        data_store(dir.path(), true).close().expect("made");
        Mds::format(dir.path(), &MdsConfig { data_apart: true, ..config() }).expect("formats");
        Fixture::start(dir, vec![FakeOst::new()], export(1, Nid::Lo).0)
    }

    pub fn start(dir: tempfile::TempDir, osts: Vec<Arc<FakeOst>>, export: Arc<Export>) -> Fixture {
        let mut endpoints: Vec<(u16, Arc<dyn OssEndpoint>)> =
            osts.iter().enumerate().map(|(i, o)| (i as u16, o.clone() as Arc<dyn OssEndpoint>)).collect();
        let data: Option<Arc<dyn ObjectStore>> = is_block_store(&dir.path().join(DATA_DIR)).then(|| {
            let store: Arc<dyn ObjectStore> = Arc::new(data_store(dir.path(), false));
            let service = Arc::new(DataOf { store: Arc::downgrade(&store) });
            endpoints.push((TargetId::mdt_data(0).expect("it has data").index, service));
            store
        });
        let mds = Mds::open_with(dir.path(), config(), endpoints, data).expect("starts");
        mds.connect(&export).expect("connects");
        let mut fixture = Fixture {
            mds,
            export,
            osts,
            dir,
            cred: Cred::system(),
            sequence: 0,
            next_oid: AtomicU32::new(1),
            next_handle: AtomicU64::new(1),
        };
        let Ok(MdsReply::Sequence(sequence)) = fixture.run(&MdsRequest::AllocateSequence) else {
            panic!("a sequence")
        };
        fixture.sequence = sequence;
        fixture
    }

    /// Stops cleanly and starts again with the same client.
    pub fn restart(self) -> Fixture {
        self.mds.stop().expect("stops");
        let Fixture { dir, osts, export, mds, .. } = self;
        drop(mds);
        Fixture::start(dir, osts, export)
    }

    /// Ends without a clean stop; commits survive.
    pub fn crash(self) -> Fixture {
        self.crash_and(|_| ())
    }

    /// Crashes as [`Fixture::crash`], with `then` applied to the directory before the next start.
    pub fn crash_and(self, then: impl FnOnce(&std::path::Path)) -> Fixture {
        let Fixture { dir, osts, export, mds, .. } = self;
        drop(mds);
        let store = crate::records::store_path(dir.path());
        eventually("the store is closed", || MetaStore::open(&store, config().store).is_ok());
        then(dir.path());
        Fixture::start(dir, osts, export)
    }

    pub fn fid(&self) -> Fid {
        Fid::new(self.sequence, self.next_oid.fetch_add(1, Ordering::Relaxed), 0)
    }

    pub fn handle(&self) -> OpenHandle {
        OpenHandle(self.next_handle.fetch_add(1, Ordering::Relaxed))
    }

    pub fn answer(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.mds.handle(&self.export, &Call::new(cred), request)
    }

    pub fn with_slot(&self, slot: ReplySlot, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.mds.handle(&self.export, &Call { reply_slot: Some(slot), ..Call::new(&self.cred) }, request)
    }

    pub fn run_as(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        self.answer(cred, request).map(|answer| answer.reply)
    }

    pub fn run(&self, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        self.run_as(&self.cred, request)
    }

    pub fn attr(&self, request: &MdsRequest<'_>) -> StatusResult<Attr> {
        attr_of(self.run(request)?)
    }

    pub fn create_as(
        &self,
        cred: &Cred,
        parent: Fid,
        name: &str,
        new: NewFile<'_>,
        mode: u32,
    ) -> StatusResult<Attr> {
        let request = MdsRequest::Create {
            parent,
            name: name.as_bytes(),
            fid: self.fid(),
            new,
            mode,
            umask: 0o022,
            open: None,
            exclusive: true,
        };
        attr_of(self.run_as(cred, &request)?)
    }

    pub fn file(&self, parent: Fid, name: &str) -> StatusResult<Attr> {
        self.create_as(
            &self.cred,
            parent,
            name,
            NewFile::Node { rdev: 0 },
            FileKind::Regular.mode_bits() | 0o644,
        )
    }

    pub fn dir(&self, parent: Fid, name: &str) -> StatusResult<Attr> {
        self.create_as(&self.cred, parent, name, NewFile::Directory, 0o755)
    }

    pub fn symlink(&self, parent: Fid, name: &str, target: &str) -> StatusResult<Attr> {
        self.create_as(&self.cred, parent, name, NewFile::Symlink { target: target.as_bytes() }, 0)
    }

    pub fn lookup(&self, parent: Fid, name: &str) -> StatusResult<Option<Attr>> {
        match self.run(&MdsRequest::Lookup { parent, name: name.as_bytes() })? {
            MdsReply::Entry { attr, .. } => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn stat(&self, fid: Fid) -> StatusResult<Attr> {
        self.attr(&MdsRequest::GetAttr { fid })
    }

    pub fn unlink(&self, parent: Fid, name: &str) -> StatusResult<Option<Attr>> {
        removed(self.run(&MdsRequest::Unlink { parent, name: name.as_bytes(), directory: false })?)
    }

    pub fn rmdir(&self, parent: Fid, name: &str) -> StatusResult<Option<Attr>> {
        removed(self.run(&MdsRequest::Unlink { parent, name: name.as_bytes(), directory: true })?)
    }

    pub fn open(&self, fid: Fid, flags: OpenFlags) -> StatusResult<OpenHandle> {
        let handle = self.handle();
        self.run(&MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) })?;
        Ok(handle)
    }

    /// Returns the update as a client sends it that knows the newest size of the MDT.
    pub fn up_to_date(&self, fid: Fid, update: DataUpdate) -> DataUpdate {
        DataUpdate { size_stamp: self.stat(fid).expect("there").size_stamp, ..update }
    }

    pub fn close(&self, fid: Fid, handle: OpenHandle) -> StatusResult<MdsReply> {
        self.run(&MdsRequest::Close { fid, handle, update: Default::default(), written: Vec::new() })
    }

    /// Returns all names of a directory, read in pages of `max_bytes`.
    pub fn names(&self, fid: Fid, max_bytes: u32) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let reply = self.run(&MdsRequest::ReadDir {
                fid,
                cookie,
                max_bytes,
                plus: true,
                locks: LockRange::default(),
            });
            let Ok(MdsReply::Directory(page)) = reply else { panic!("{reply:?}") };
            for entry in page.entries() {
                assert_eq!(entry.attr.expect("asked for").fid, entry.fid);
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                cookie = entry.cookie;
            }
            if page.end {
                return names;
            }
        }
    }

    /// Checks that the store is consistent. Consumes the server, since the check is offline.
    pub fn check(self) {
        self.mds.stop().expect("stops");
        let Fixture { dir, mds, .. } = self;
        drop(mds);
        check_dir(dir.path());
    }
}

pub(crate) fn check_dir(dir: &std::path::Path) {
    let report = crate::check::check_dir(dir, &config(), false, &mut |_| {}).expect("checks");
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
}

pub(crate) fn attr_of(reply: MdsReply) -> StatusResult<Attr> {
    match reply {
        MdsReply::Attr(attr) | MdsReply::Created { attr, .. } | MdsReply::Opened { attr, .. } => Ok(attr),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn removed(reply: MdsReply) -> StatusResult<Option<Attr>> {
    match reply {
        MdsReply::Removed { attr, .. } => Ok(attr),
        other => panic!("{other:?}"),
    }
}

/// Waits until `done` returns true; fails after a while.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        nacre_env::thread::yield_now();
    }
}
