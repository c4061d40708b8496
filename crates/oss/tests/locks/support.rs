//! A target with a file store, and simulated clients.

use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_lock::{
    Enqueue, EnqueueFlags, Extent, InodeBits, LockGrant, LockHandle, Lvb, Mode, Need, Outcome, ResourceId,
};
use nacre_oss::{ObjectServer, OssConfig};
use nacre_rpc::{Call, ClientCallbacks, Export, OssService};
use nacre_store::object::{FileStore, FileStoreOptions};
use nacre_types::{ClientUuid, Cred, Fid, Nid, ProcessIdentity, StatusResult};
use nacre_wire::lock::{IoLock, LockMessage, LockRequest};
use nacre_wire::mds::LeaseGrant;
use nacre_wire::oss::{Bulk, Charge, ObjectAttr, OssReply, OssRequest};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);
pub const PAGE: u64 = 4096;

pub fn object() -> Fid {
    Fid::ost_object(3, 7)
}

pub fn pages(first: u64, count: u64) -> Extent {
    Extent { start: first * PAGE, last: (first + count) * PAGE - 1 }
}

/// Waits for a condition that another thread is about to meet.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        nacre_env::thread::yield_now();
    }
}

pub struct Target {
    pub server: Arc<ObjectServer>,
    dir: Arc<tempfile::TempDir>,
}

impl Target {
    pub fn new() -> Target {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let store = FileStore::open(&dir.path().join("ost"), FileStoreOptions::create()).unwrap();
        Target { server: Target::serve(store, dir.path()), dir }
    }

    fn path(dir: &Path) -> PathBuf {
        dir.join("ost")
    }

    fn serve(store: FileStore, dir: &Path) -> Arc<ObjectServer> {
        let mut config = OssConfig { recovery_window: Duration::from_secs(600), ..OssConfig::default() };
        // Long enough that no client is evicted.
        config.locks.callback_timeout = Duration::from_secs(600);
        Arc::new(ObjectServer::open(Arc::new(store), 3, &Target::path(dir), &config).unwrap())
    }

    /// Restarts the target without notice to its clients.
    pub fn restart(self) -> Target {
        let Target { server, dir } = self;
        server.stop(TIMEOUT).unwrap();
        drop(server);
        let store = FileStore::open(&Target::path(dir.path()), FileStoreOptions::default()).unwrap();
        Target { server: Target::serve(store, dir.path()), dir }
    }

    /// A client on the host of the target: what it changes is not numbered for replay.
    pub fn client(&self, number: u8) -> Client {
        self.client_of(number, Some(nacre_env::own_process()))
    }

    pub fn client_of(&self, number: u8, process: Option<ProcessIdentity>) -> Client {
        let inbox = Arc::new(Inbox::default());
        let nid: Nid = "10.0.0.9@tcp".parse().unwrap();
        let export = Arc::new(Export::new(ClientUuid([number; 16]), nid, process, inbox.clone()));
        self.server.connect(&export).unwrap();
        Client { server: self.server.clone(), export, inbox }
    }
}

#[derive(Default)]
struct Inbox {
    messages: Mutex<Vec<LockMessage>>,
    arrived: Condvar,
}

impl ClientCallbacks for Inbox {
    fn lease_changed(&self, _: LeaseGrant) {}

    fn lock_message(&self, message: LockMessage) {
        self.messages.lock().push(message);
        self.arrived.notify_all();
    }
}

pub struct Client {
    pub server: Arc<ObjectServer>,
    pub export: Arc<Export>,
    inbox: Arc<Inbox>,
}

impl Client {
    pub fn call(&self, request: OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let cred = Cred::system();
        self.server.handle(&self.export, &Call::new(&cred), &request, bulk)
    }

    pub fn write(&self, page: u64, data: &[u8], lock: IoLock) -> StatusResult<OssReply> {
        let (object, offset) = (object(), page * PAGE);
        let request = OssRequest::Write {
            object,
            offset,
            sync: false,
            granted: false,
            lock,
            incarnation: 0,
            written: false,
            charge: Charge::ROOT,
        };
        self.call(request, Bulk::Send(data))
    }

    pub fn read(&self, page: u64, lock: IoLock) -> StatusResult<Vec<u8>> {
        let mut buffer = vec![0; PAGE as usize];
        let (object, offset, len) = (object(), page * PAGE, PAGE as u32);
        let request = OssRequest::Read { object, offset, len, ahead: 0, lock, written: false };
        match self.call(request, Bulk::Receive(&mut buffer))? {
            OssReply::Read(read) => {
                buffer.truncate(read as usize);
                Ok(buffer)
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn truncate(&self, size: u64, lock: IoLock) -> StatusResult<OssReply> {
        self.call(
            OssRequest::Truncate { object: object(), size, lock, written: false, charge: Charge::ROOT },
            Bulk::None,
        )
    }

    pub fn attr(&self, glimpse: bool) -> StatusResult<ObjectAttr> {
        match self.call(OssRequest::GetAttr { object: object(), glimpse }, Bulk::None)? {
            OssReply::Attr(attr) => Ok(attr),
            other => panic!("{other:?}"),
        }
    }

    pub fn locks(&self, request: LockRequest) -> StatusResult<OssReply> {
        self.call(OssRequest::Locks { request }, Bulk::None)
    }

    pub fn enqueue(&self, handle: u64, mode: Mode, extent: Extent) -> StatusResult<OssReply> {
        let request = Enqueue {
            handle: LockHandle(handle),
            resource: ResourceId::of_fid(&object()),
            need: Need::extent(mode, extent),
            optional: InodeBits::NONE,
            flags: EnqueueFlags { no_expansion: true, ..EnqueueFlags::default() },
        };
        self.locks(LockRequest::Enqueue { request, cancels: Vec::new() })
    }

    #[track_caller]
    pub fn lock(&self, handle: u64, mode: Mode, extent: Extent) -> LockGrant {
        match self.enqueue(handle, mode, extent) {
            Ok(OssReply::Locked(Outcome::Granted(grant))) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub fn replay(&self, handle: u64, mode: Mode, extent: Extent) -> StatusResult<OssReply> {
        let (resource, need) = (ResourceId::of_fid(&object()), Need::extent(mode, extent));
        self.locks(LockRequest::Replay { handle: LockHandle(handle), resource, need })
    }

    pub fn cancel(&self, handle: u64) {
        let done = self.locks(LockRequest::Cancel { handles: vec![LockHandle(handle)] });
        assert_eq!(done, Ok(OssReply::Done));
    }

    /// Waits for the next message and returns it.
    #[track_caller]
    pub fn next(&self) -> LockMessage {
        let deadline = Instant::now() + TIMEOUT;
        let mut messages = self.inbox.messages.lock();
        while messages.is_empty() {
            assert!(!self.inbox.arrived.wait_until(&mut messages, deadline).timed_out(), "no message came");
        }
        messages.remove(0)
    }

    #[track_caller]
    pub fn next_is_blocking(&self, handle: u64) {
        let message = self.next();
        assert!(matches!(message, LockMessage::Blocking { handle: called, .. } if called.0 == handle));
    }

    /// Waits for a glimpse and answers it with a size.
    #[track_caller]
    pub fn answer_glimpse(&self, size_bytes: u64) {
        let LockMessage::Glimpse { glimpse, handle } = self.next() else { panic!("a glimpse") };
        let lvb = Some(Lvb { size_bytes, ..Lvb::default() });
        assert_eq!(self.locks(LockRequest::GlimpseAnswer { glimpse, handle, lvb }), Ok(OssReply::Done));
    }

    pub fn pending(&self) -> usize {
        self.inbox.messages.lock().len()
    }
}
