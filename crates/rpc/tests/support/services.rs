//! Services and a client that only count and record.

#![allow(dead_code, reason = "each test file uses a part")]

use nacre_lock::LockHandle;
use nacre_rpc::tcp::{ClientIdentity, MdsEvents, Server, Targets};
use nacre_rpc::{
    Call, ClientCallbacks, ClientConfig, Export, IoCall, MdsEndpoint, MdsService, MdsWelcome, MgsPeer,
    MgsService, OssEndpoint, OssEvents, OssService, Recovery, ReplySlot, ServerConfig, run_all,
};
use nacre_types::{Attr, ClientUuid, Cred, Fid, FileKind, JobId, Nid, Status, StatusResult, TransNo};
use nacre_wire::lock::{IoLock, LockMessage, LockRequest};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::mgs::{FsConfig, MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, Charge, OssReply, OssRequest};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Time limit of waits in tests.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// A gate that requests wait at.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    pub waiting: AtomicU64,
}

impl Gate {
    fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    /// Closes the gate until the result is dropped, also by a panic, so that a failed assertion leaves no
    /// thread waiting.
    pub fn close(&self) -> Closed<'_> {
        self.set_closed(true);
        Closed(self)
    }

    /// Waits while the gate is closed; `EINTR` if the request is interrupted.
    pub fn pass(&self) -> StatusResult<()> {
        let mut closed = self.closed.lock().unwrap();
        if !*closed {
            return Ok(());
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut result = Ok(());
        while *closed {
            if nacre_env::interrupted() {
                result = Err(Status::EINTR);
                break;
            }
            closed = nacre_env::blocking(|| {
                self.changed.wait_timeout(closed, Duration::from_millis(10)).unwrap().0
            });
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

/// Keeps a gate closed until it is dropped.
pub struct Closed<'a>(&'a Gate);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

/// The last result of each slot of a client, with its xid.
type StoredAnswers = HashMap<(ClientUuid, u16), (u64, StatusResult<MdsAnswer>)>;

/// Counts how often each name was created. Survives restarts of its server, like a disk.
#[derive(Default)]
pub struct FakeMds {
    pub created: Mutex<HashMap<Vec<u8>, u32>>,
    pub stored: Mutex<StoredAnswers>,
    pub connects: AtomicU64,
    pub disconnects: AtomicU64,
    pub requests: AtomicU64,
    pub evict_next: AtomicBool,
    pub refuse_next: AtomicBool,
    pub gate: Gate,
    pub exports: Mutex<HashMap<ClientUuid, Arc<Export>>>,
    /// Clients with a record, and with stored answers.
    remembered: Mutex<HashSet<ClientUuid>>,
    /// Jobs of the requests that ran.
    pub jobs: Mutex<Vec<Option<JobId>>>,
}

pub fn answer(reply: MdsReply) -> MdsAnswer {
    MdsAnswer { transno: TransNo(1), last_committed: TransNo(1), ..reply.into() }
}

pub fn attr() -> Attr {
    Attr { mode: FileKind::Regular.mode_bits() | 0o644, ..Attr::default() }
}

impl FakeMds {
    /// Evicts a client: nothing of it remains.
    pub fn evict(&self, client: ClientUuid) {
        if let Some(export) = self.exports.lock().unwrap().remove(&client) {
            export.end();
        }
        self.forget(client);
    }

    fn forget(&self, client: ClientUuid) {
        self.remembered.lock().unwrap().remove(&client);
        self.stored.lock().unwrap().retain(|(of, _), _| *of != client);
    }
}

impl MdsService for FakeMds {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        if self.refuse_next.swap(false, Ordering::SeqCst) {
            return Err(Status::EAGAIN);
        }
        let number = self.connects.fetch_add(1, Ordering::SeqCst);
        self.exports.lock().unwrap().insert(export.client, export.clone());
        let is_remembered = !self.remembered.lock().unwrap().insert(export.client);
        Ok(MdsWelcome { lease: LeaseGrant { exclusive: number == 0, epoch: number + 1 }, is_remembered })
    }

    fn disconnect(&self, client: ClientUuid) {
        self.disconnects.fetch_add(1, Ordering::SeqCst);
        self.exports.lock().unwrap().remove(&client);
        self.forget(client);
    }

    fn handle(&self, export: &Export, call: &Call<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.requests.fetch_add(1, Ordering::SeqCst);
        self.jobs.lock().unwrap().push(call.job);
        if !self.exports.lock().unwrap().contains_key(&export.client) {
            return Err(Status::EVICTED);
        }
        if self.evict_next.swap(false, Ordering::SeqCst) {
            return Err(Status::EVICTED);
        }
        match request {
            MdsRequest::Create { name, .. } => {
                *self.created.lock().unwrap().entry(name.to_vec()).or_default() += 1;
                self.gate.pass()?;
                let reply = MdsReply::Created { attr: attr(), created: true, layout: None, parent: attr() };
                let result = Ok(answer(reply));
                let slot = call.reply_slot.expect("modifying requests over a network have a slot");
                assert_eq!(slot.client, export.client);
                self.stored.lock().unwrap().insert((slot.client, slot.tag), (slot.xid.0, result.clone()));
                result
            }
            MdsRequest::LockFile { .. } => {
                self.gate.pass()?;
                Ok(answer(MdsReply::Done))
            }
            MdsRequest::Lookup { name, .. } if *name == b"absent" => Err(Status::ENOENT),
            MdsRequest::Lookup { name, .. } if *name == b"panic" => panic!("on purpose"),
            MdsRequest::GetXattr { name, .. } => Ok(answer(MdsReply::Bytes(name.to_vec()))),
            _ => Ok(answer(MdsReply::Done)),
        }
    }

    fn stored_answer(
        &self,
        _: &Export,
        _: &MdsRequest<'_>,
        slot: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        let stored = self.stored.lock().unwrap();
        stored
            .get(&(slot.client, slot.tag))
            .filter(|(xid, _)| *xid == slot.xid.0)
            .map(|(_, result)| result.clone())
    }
}

/// Objects in memory, and the connected clients.
#[derive(Default)]
pub struct FakeOss {
    pub objects: Mutex<HashMap<Fid, Vec<u8>>>,
    pub requests: AtomicU64,
    /// Reads of objects with an odd number wait here.
    pub gate: Gate,
    /// Writes of objects with an odd number wait here.
    pub write_gate: Gate,
    pub connects: AtomicU64,
    pub disconnects: AtomicU64,
    pub exports: Mutex<HashMap<ClientUuid, Arc<Export>>>,
    /// Requests that ran, with the generation of their client.
    pub ran: Mutex<Vec<(u64, &'static str)>>,
    /// Jobs of the requests that ran.
    pub jobs: Mutex<Vec<Option<JobId>>>,
}

impl FakeOss {
    fn knows(&self, export: &Export) -> StatusResult<()> {
        let exports = self.exports.lock().unwrap();
        let known = exports.get(&export.client).is_some_and(|known| known.generation == export.generation);
        if known { Ok(()) } else { Err(Status::EVICTED) }
    }

    /// Evicts a client.
    pub fn evict(&self, client: ClientUuid) {
        self.exports.lock().unwrap().remove(&client).expect("it is known");
    }

    pub fn export_of(&self, client: ClientUuid) -> Arc<Export> {
        self.exports.lock().unwrap().get(&client).expect("it is known").clone()
    }
}

fn kind_of(request: &OssRequest) -> &'static str {
    match request {
        OssRequest::Write { .. } => "write",
        OssRequest::Read { .. } => "read",
        OssRequest::Locks { .. } => "locks",
        _ => "other",
    }
}

impl OssService for FakeOss {
    fn connect(&self, export: &Arc<Export>) -> StatusResult<()> {
        self.connects.fetch_add(1, Ordering::SeqCst);
        self.exports.lock().unwrap().insert(export.client, export.clone());
        Ok(())
    }

    fn disconnect(&self, export: &Export) {
        self.disconnects.fetch_add(1, Ordering::SeqCst);
        if self.knows(export).is_ok() {
            self.exports.lock().unwrap().remove(&export.client);
        }
    }

    fn handle(
        &self,
        export: &Export,
        call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        self.knows(export)?;
        self.jobs.lock().unwrap().push(call.job);
        if !matches!(request, OssRequest::Read { .. } | OssRequest::Ping) {
            self.ran.lock().unwrap().push((export.generation, kind_of(request)));
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        match (request, bulk) {
            (OssRequest::Write { object, offset, .. }, Bulk::Send(data)) => {
                if object.oid % 2 == 1 {
                    self.write_gate.pass()?;
                    self.knows(export)?;
                }
                let mut objects = self.objects.lock().unwrap();
                let content = objects.entry(*object).or_default();
                let end = *offset as usize + data.len();
                content.resize(content.len().max(end), 0);
                content[*offset as usize..end].copy_from_slice(data);
                Ok(OssReply::written(data.len() as u32))
            }
            (OssRequest::Read { object, offset, .. }, Bulk::Receive(buffer)) => {
                if object.oid % 2 == 1 {
                    self.gate.pass()?;
                }
                let objects = self.objects.lock().unwrap();
                let content =
                    objects.get(object).map_or(&[][..], |c| c.get(*offset as usize..).unwrap_or(&[]));
                let len = content.len().min(buffer.len());
                buffer[..len].copy_from_slice(&content[..len]);
                Ok(OssReply::Read(len as u32))
            }
            _ => Ok(OssReply::Done),
        }
    }
}

#[derive(Default)]
pub struct FakeMgs;

impl MgsService for FakeMgs {
    fn handle(&self, _: MgsPeer<'_>, request: &MgsRequest) -> StatusResult<MgsReply> {
        match request {
            MgsRequest::GetConfig { fsname, .. } => {
                let config = FsConfig { fsname: fsname.clone(), version: 3, ..FsConfig::default() };
                Ok(MgsReply::Config { config, now_s: 0 })
            }
            _ => Ok(MgsReply::Done),
        }
    }
}

/// Events that a client received.
#[derive(Default)]
pub struct Events {
    pub grants: Mutex<Vec<LeaseGrant>>,
    pub messages: Mutex<Vec<LockMessage>>,
    pub recoveries: Mutex<Vec<Recovery>>,
    /// How often the connection for callbacks was lost.
    pub losses: AtomicUsize,
}

impl ClientCallbacks for Events {
    fn lease_changed(&self, grant: LeaseGrant) {
        self.grants.lock().unwrap().push(grant);
    }

    fn lock_message(&self, message: LockMessage) {
        self.messages.lock().unwrap().push(message);
    }

    fn callbacks_lost(&self) {
        self.losses.fetch_add(1, Ordering::SeqCst);
    }
}

impl MdsEvents for Events {
    fn reconnected(
        &self,
        endpoint: &dyn MdsEndpoint,
        recovery: Recovery,
        _grant: LeaseGrant,
    ) -> StatusResult<()> {
        endpoint.call(&Cred::system(), &MdsRequest::GetAttr { fid: Fid::ROOT })?;
        self.recoveries.lock().unwrap().push(recovery);
        Ok(())
    }
}

impl OssEvents for Events {
    fn reconnected(&self, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        let replay = OssRequest::Locks { request: LockRequest::ReplayDone };
        endpoint.call(&replay, Bulk::None)?;
        self.recoveries.lock().unwrap().push(recovery);
        Ok(())
    }
}

/// Returns a write of data that was accepted in a given life of the client.
pub fn write_of_life(oid: u32, incarnation: u64) -> OssRequest {
    let (object, lock) = (Fid::new(9, oid, 0), IoLock::Lease);
    OssRequest::Write {
        object,
        offset: 0,
        sync: false,
        granted: false,
        lock,
        incarnation,
        written: false,
        charge: Charge::ROOT,
    }
}

/// Returns a distinguishable message.
pub fn message(number: u64) -> LockMessage {
    LockMessage::Glimpse { glimpse: number, handle: LockHandle(7) }
}

fn number_of(message: &LockMessage) -> u64 {
    match message {
        LockMessage::Glimpse { glimpse, .. } => *glimpse,
        other => panic!("nobody sent {other:?}"),
    }
}

/// Returns the numbers of the received messages.
pub fn numbers(events: &Events) -> Vec<u64> {
    events.messages.lock().unwrap().iter().map(number_of).collect()
}

/// All three services of one server.
#[derive(Default, Clone)]
pub struct Services {
    pub mds: Arc<FakeMds>,
    pub oss: Arc<FakeOss>,
}

impl Services {
    pub fn serve(&self, addr: SocketAddr, config: ServerConfig) -> Server {
        let targets = Targets::new()
            .with_mdt(0, self.mds.clone())
            .with_ost(0, self.oss.clone())
            .with_mgt(Arc::new(FakeMgs));
        Server::bind(&[addr], targets, config).expect("a free port")
    }

    /// Stops a server and starts another one in its place.
    pub fn restart(&self, server: Server) -> Server {
        let addr = server.addrs()[0];
        server.stop();
        drop(server);
        self.serve(addr, ServerConfig::default())
    }
}

/// Returns an address of its own, with any port: no other test listens there after its server has stopped.
pub fn any_port() -> SocketAddr {
    static COUNT: AtomicU16 = AtomicU16::new(0);
    let [high, low] = COUNT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    let host = Ipv4Addr::new(127, 1 + (std::process::id() % 254) as u8, high, low.wrapping_add(1));
    SocketAddr::from((host, 0))
}

pub fn nid(addr: SocketAddr) -> Nid {
    Nid::Tcp(addr)
}

pub fn identity(number: u8) -> ClientIdentity {
    ClientIdentity { client: ClientUuid([number; 16]), fsname: "nacre".to_owned(), is_server: false }
}

/// Returns a configuration with short timeouts, so that tests are quick.
pub fn quick() -> ClientConfig {
    ClientConfig {
        backoff_min: Duration::from_millis(5),
        backoff_max: Duration::from_millis(50),
        ping_interval: Duration::from_millis(200),
        dead_after: Duration::from_secs(2),
        ..ClientConfig::default()
    }
}

pub fn create(name: &[u8]) -> MdsRequest<'_> {
    MdsRequest::Create {
        parent: Fid::ROOT,
        name,
        fid: Fid::new(0x200000400, 7, 0),
        new: nacre_wire::mds::NewFile::Node { rdev: 0 },
        mode: 0o100644,
        umask: 0,
        open: None,
        exclusive: true,
    }
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = nacre_env::clock::Instant::now() + TIMEOUT;
    while !condition() {
        assert!(nacre_env::clock::Instant::now() < deadline, "{what} did not happen");
        nacre_env::thread::yield_now();
    }
}

/// Runs ten reads of 100 bytes in parallel.
pub fn ten_reads_at_once(oss: &dyn OssEndpoint) {
    let mut buffers = vec![vec![0u8; 100]; 10];
    let request = OssRequest::plain_read(Fid::new(9, 1, 0), 0, 100);
    let calls = buffers
        .iter_mut()
        .map(|buffer| IoCall { endpoint: oss, request: request.clone(), bulk: Bulk::Receive(buffer) })
        .collect();
    assert!(run_all(calls).iter().all(Result::is_ok));
}

/// Returns data that differs by position and by seed.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}
