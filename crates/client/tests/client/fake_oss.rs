//! An OST in memory that counts requests and fails on demand. Its locks are real.

use nacre_dlm::{LockOwner, LockService};
use nacre_lock::server::ServerConfig;
use nacre_lock::{Extent, Lvb, Mode, Need, ResourceId};
use nacre_rpc::{Export, OssEndpoint, OssEvents};
use nacre_types::{ClientUuid, Fid, Nid, Status, StatusResult, Timestamp};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::Statfs;
use nacre_wire::oss::{Bulk, FallocateKind, ObjectAttr, OssReply, OssRequest, SeekKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const PAGE: u64 = 4096;

#[derive(Default)]
struct Object {
    data: Vec<u8>,
    /// Pages that were written and not punched since.
    pages: BTreeSet<u64>,
}

impl Object {
    fn resize(&mut self, size: u64) {
        self.data.resize(size as usize, 0);
        self.pages.retain(|page| page * PAGE < size);
    }

    fn fill(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        if self.data.len() < end as usize {
            self.data.resize(end as usize, 0);
        }
        self.data[offset as usize..end as usize].copy_from_slice(bytes);
        self.pages.extend(offset / PAGE..end.div_ceil(PAGE));
    }

    fn zero(&mut self, offset: u64, len: u64, keep: bool) {
        let end = if keep { (offset + len).min(self.data.len() as u64) } else { offset + len };
        if offset < end {
            self.fill(offset, &vec![0; (end - offset) as usize]);
        }
    }

    fn punch(&mut self, offset: u64, len: u64) {
        self.zero(offset, len, true);
        self.pages.retain(|page| page * PAGE < offset || (page + 1) * PAGE > offset + len);
    }

    fn seek(&self, offset: u64, kind: SeekKind) -> StatusResult<u64> {
        let size = self.data.len() as u64;
        if offset >= size {
            return Err(Status::ENXIO);
        }
        let wanted = kind == SeekKind::Data;
        let first = offset / PAGE;
        let found = (first..size.div_ceil(PAGE)).find(|page| self.pages.contains(page) == wanted);
        match (found, kind) {
            (Some(page), _) => Ok((page * PAGE).max(offset)),
            (None, SeekKind::Hole) => Ok(size),
            (None, SeekKind::Data) => Err(Status::ENXIO),
        }
    }

    fn fallocate(&mut self, kind: FallocateKind, offset: u64, len: u64) {
        match kind {
            FallocateKind::Allocate => {
                let size = self.data.len() as u64;
                self.resize(size.max(offset + len));
                self.pages.extend(offset / PAGE..(offset + len).div_ceil(PAGE));
            }
            FallocateKind::AllocateKeepSize => {}
            FallocateKind::Punch => self.punch(offset, len),
            FallocateKind::Zero => self.zero(offset, len, false),
            FallocateKind::ZeroKeepSize => self.zero(offset, len, true),
        }
    }

    fn attr(&self) -> ObjectAttr {
        ObjectAttr {
            size: self.data.len() as u64,
            blocks: self.pages.len() as u64 * (PAGE / 512),
            mtime: Some(Timestamp::new(1_000, 0)),
        }
    }
}

fn statfs() -> Statfs {
    Statfs {
        block_size: 4096,
        blocks: 1000,
        blocks_free: 900,
        blocks_available: 800,
        files: 100,
        files_free: 90,
        state: 0,
    }
}

/// The OST under test, shared by its clients' endpoints.
pub struct FakeOss {
    objects: Mutex<BTreeMap<Fid, Object>>,
    locks: LockService,
    /// Number of the last power failure.
    pub epoch: AtomicU64,
    /// Status with which the next write fails.
    pub fail_write: Mutex<Option<Status>>,
    /// Called when the next write arrives, before it is applied.
    pub at_write: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The same for the next read.
    pub at_read: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    pub syncs: AtomicU64,
    pub writes: AtomicU64,
    /// Bytes that are never granted: a client gets what it requests less this.
    pub ungranted: AtomicU64,
    /// Bytes granted.
    pub granted: AtomicU64,
    pub attrs: AtomicU64,
    pub reads: AtomicU64,
    /// True to fail reads of more than a page.
    pub fail_large_reads: AtomicBool,
    /// Status with which reads fail.
    pub fail_reads: Mutex<Option<Status>>,
    /// Reason that its endpoints report for failures.
    pub trouble: Mutex<Option<String>>,
}

impl Default for FakeOss {
    fn default() -> FakeOss {
        let config = ServerConfig::default();
        FakeOss {
            objects: Mutex::default(),
            locks: LockService::new("OST", config, Default::default(), std::time::Duration::ZERO),
            epoch: AtomicU64::default(),
            fail_write: Mutex::default(),
            at_write: Mutex::default(),
            at_read: Mutex::default(),
            syncs: AtomicU64::default(),
            writes: AtomicU64::default(),
            ungranted: AtomicU64::default(),
            granted: AtomicU64::default(),
            attrs: AtomicU64::default(),
            reads: AtomicU64::default(),
            fail_large_reads: AtomicBool::default(),
            fail_reads: Mutex::default(),
            trouble: Mutex::default(),
        }
    }
}

impl LockOwner for FakeOss {
    fn lvb(&self, resource: &ResourceId) -> StatusResult<Option<Lvb>> {
        let objects = self.objects.lock().expect("no test panics inside");
        let attr = objects.get(&resource.fid()).map(Object::attr).unwrap_or_default();
        Ok(Some(Lvb { size_bytes: attr.size, blocks: attr.blocks, ..Lvb::default() }))
    }

    fn on_evicted(&self, _: &Arc<Export>) {}
}

/// Endpoint of one client.
pub struct Way {
    oss: Arc<FakeOss>,
    export: Arc<Export>,
}

impl Way {
    pub fn new(oss: &Arc<FakeOss>, client: ClientUuid, events: Arc<dyn OssEvents>) -> Way {
        let export = Arc::new(Export::new(client, Nid::Lo, None, events));
        oss.locks.connect(&export).expect("clients are let in");
        Way { oss: oss.clone(), export }
    }
}

/// Returns what a request reads or changes, and how it is locked.
fn need_of(request: &OssRequest) -> Option<(Fid, Need, IoLock)> {
    let need = |mode, start: u64, len: u64| {
        let last = start.saturating_add(len).max(1) - 1;
        Need::extent(mode, Extent { start, last: last.max(start) }.aligned_to_pages())
    };
    match request {
        OssRequest::Write { object, lock, .. } => Some((*object, need(Mode::Pw, 0, u64::MAX), *lock)),
        OssRequest::Read { object, offset, len, lock, .. } => {
            Some((*object, need(Mode::Pr, *offset, u64::from(*len)), *lock))
        }
        OssRequest::Truncate { object, size, lock, .. } => {
            Some((*object, need(Mode::Pw, *size, u64::MAX), *lock))
        }
        OssRequest::Fallocate { object, offset, len, lock, .. } => {
            Some((*object, need(Mode::Pw, *offset, *len), *lock))
        }
        OssRequest::Seek { object, lock, .. } => Some((*object, need(Mode::Pr, 0, u64::MAX), *lock)),
        _ => None,
    }
}

impl OssEndpoint for Way {
    fn trouble(&self) -> Option<String> {
        self.oss.trouble.lock().expect("no panic inside").clone()
    }

    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let locks = &self.oss.locks;
        if let OssRequest::Locks { request } = request {
            let outcome = locks.handle(&*self.oss, &self.export, request)?;
            return Ok(outcome.map_or(OssReply::Done, OssReply::Locked));
        }
        if let OssRequest::GetAttr { object, glimpse: true } = request {
            self.oss.attrs.fetch_add(1, Ordering::Relaxed);
            let lvb = locks.glimpse(&*self.oss, &ResourceId::of_fid(object), &self.export)?;
            let objects = self.oss.objects.lock().expect("no test panics inside");
            let mtime = objects.get(object).and_then(|object| object.attr().mtime);
            let attr = ObjectAttr { size: lvb.size_bytes, blocks: lvb.blocks, mtime };
            return Ok(OssReply::Attr(attr));
        }
        let _locked = match need_of(request) {
            Some((object, need, IoLock::Server)) => {
                Some(locks.lock_local(&ResourceId::of_fid(&object), need, Some(&self.export))?)
            }
            _ => None,
        };
        let reply = self.oss.call(request, bulk);
        if let Some((object, need, _)) = need_of(request)
            && need.mode == Mode::Pw
        {
            locks.object_changed(&*self.oss, &ResourceId::of_fid(&object));
        }
        reply
    }

    fn durability_epoch(&self) -> u64 {
        self.oss.epoch.load(Ordering::Relaxed)
    }
}

/// Returns the object that a request names as written before.
fn has_to_be_there(request: &OssRequest) -> Option<Fid> {
    match request {
        OssRequest::Write { object, written: true, .. }
        | OssRequest::Read { object, written: true, .. }
        | OssRequest::Truncate { object, written: true, .. }
        | OssRequest::Fallocate { object, written: true, .. }
        | OssRequest::Seek { object, written: true, .. } => Some(*object),
        _ => None,
    }
}

impl FakeOss {
    /// Returns the existing objects.
    pub fn names(&self) -> Vec<Fid> {
        self.objects.lock().expect("no test panics inside").keys().copied().collect()
    }

    /// Loses all objects.
    pub fn lose_all(&self) {
        self.objects.lock().expect("no test panics inside").clear();
    }

    /// Writes to an object as its own server does.
    pub fn put(&self, object: Fid, offset: u64, bytes: &[u8]) {
        self.objects.lock().expect("no test panics inside").entry(object).or_default().fill(offset, bytes);
    }

    /// Calls what a test wants to happen when this request arrives.
    fn call_hook(&self, request: &OssRequest) {
        let hook = match request {
            OssRequest::Write { .. } => &self.at_write,
            OssRequest::Read { .. } => &self.at_read,
            _ => return,
        };
        let meanwhile = hook.lock().expect("no panic inside").take();
        meanwhile.into_iter().for_each(|meanwhile| meanwhile());
    }

    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        self.call_hook(request);
        let mut objects = self.objects.lock().expect("no test panics inside");
        if has_to_be_there(request).is_some_and(|object| !objects.contains_key(&object)) {
            return Err(Status::OBJECT_LOST);
        }
        match (request, bulk) {
            (OssRequest::Write { object, offset, .. }, Bulk::Send(data)) => {
                if let Some(status) = self.fail_write.lock().expect("no panic inside").take() {
                    return Err(status);
                }
                self.writes.fetch_add(1, Ordering::Relaxed);
                objects.entry(*object).or_default().fill(*offset, data);
                Ok(OssReply::written(data.len() as u32))
            }
            (OssRequest::Read { object, offset, len, .. }, Bulk::Receive(buffer)) => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                if let Some(status) = *self.fail_reads.lock().expect("no panic inside") {
                    return Err(status);
                }
                if u64::from(*len) > PAGE && self.fail_large_reads.load(Ordering::Relaxed) {
                    return Err(Status::EIO);
                }
                assert_eq!(*len as usize, buffer.len());
                let data = objects.get(object).map_or(&[][..], |object| &object.data);
                let rest = data.get(*offset as usize..).unwrap_or(&[]);
                let bytes = rest.len().min(buffer.len());
                buffer[..bytes].copy_from_slice(&rest[..bytes]);
                // Bytes beyond the reported length must not be trusted.
                buffer[bytes..].fill(0xee);
                Ok(OssReply::Read(bytes as u32))
            }
            (OssRequest::Ping, _) => Ok(OssReply::Done),
            (OssRequest::GetAttr { object, .. }, _) => {
                self.attrs.fetch_add(1, Ordering::Relaxed);
                Ok(OssReply::Attr(objects.get(object).map(Object::attr).unwrap_or_default()))
            }
            (OssRequest::Truncate { object, size: 0, .. }, _) if !objects.contains_key(object) => {
                Ok(OssReply::Attr(ObjectAttr::default()))
            }
            (OssRequest::Truncate { object, size, .. }, _) => {
                objects.entry(*object).or_default().resize(*size);
                Ok(OssReply::Attr(objects[object].attr()))
            }
            (OssRequest::Fallocate { object, kind, offset, len, .. }, _) => {
                let entry = objects.entry(*object).or_default();
                entry.fallocate(*kind, *offset, *len);
                Ok(OssReply::Attr(entry.attr()))
            }
            (OssRequest::Seek { object, offset, kind, .. }, _) => {
                let object = objects.get(object).ok_or(Status::ENXIO)?;
                object.seek(*offset, *kind).map(OssReply::Position)
            }
            (OssRequest::Sync { .. }, _) => {
                self.syncs.fetch_add(1, Ordering::Relaxed);
                Ok(OssReply::Done)
            }
            (OssRequest::Grant { want, .. }, _) => {
                let total = want.saturating_sub(self.ungranted.load(Ordering::Relaxed));
                self.granted.store(total, Ordering::Relaxed);
                Ok(OssReply::Granted(total))
            }
            (OssRequest::Statfs, _) => Ok(OssReply::Statfs(statfs())),
            _ => Err(Status::EOPNOTSUPP),
        }
    }
}
