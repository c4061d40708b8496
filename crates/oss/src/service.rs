//! The service itself.

use crate::arguments::{check_bulk, check_count, check_object, check_objects, check_range, check_sequence};
use crate::grants::Grants;
use crate::stats::{BrwStats, Counters, Operation};
use nacre_params::EventStats;
use nacre_rpc::{Call, Direction, Export, OssService};
use nacre_store::object::{Fallocate, ObjectAttr, ObjectError, ObjectStore, Seek, Space};
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::oss::{self, Bulk, FallocateKind, OssReply, OssRequest, SeekKind, Statfs};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Most objects that one request destroys.
pub const DESTROY_MAX: usize = 4096;
/// Most ids that one request reserves (reference 4.5).
pub const PRECREATE_MAX: u32 = 20_000;
/// Most bytes that are fetched ahead of one read; wishes beyond are cut.
pub const AHEAD_MAX: u32 = 32 << 20;
/// Age up to which an answer about space is given again.
pub const STATFS_AGE_MAX: Duration = Duration::from_secs(1);
/// Time between two messages about failing requests; those between are counted.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// State bits of [`Statfs`] (reference: `OS_STATFS_*`).
const STATE_READ_ONLY: u32 = 0x02;
const STATE_NO_SPACE: u32 = 0x20;
const STATE_NO_INODES: u32 = 0x40;
/// Bits that an operator sets: degraded and no-create.
const STATE_OPERATOR: u32 = 0x01 | 0x04;

/// Why a service did not stop in order.
#[derive(Debug)]
pub enum StopError {
    /// Requests were still in progress at the deadline; their number. Nothing was closed.
    InProgress(u64),
    /// The store could not make everything durable.
    Store(ObjectError),
}

impl std::fmt::Display for StopError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StopError::InProgress(count) => write!(f, "{count} requests are still in progress"),
            StopError::Store(error) => write!(f, "close the object store: {error}"),
        }
    }
}

impl std::error::Error for StopError {}

/// One OST. See the [crate documentation](crate).
pub struct ObjectServer {
    store: Arc<dyn ObjectStore>,
    index: u16,
    counters: Counters,
    brw: BrwStats,
    statfs: Mutex<Option<(Instant, Statfs)>>,
    grants: Mutex<Grants>,
    operator_state: AtomicU32,
    /// When a failing request was last logged, and how many were not since.
    logged: Mutex<Option<Instant>>,
    unlogged: AtomicU64,
}

impl ObjectServer {
    /// A service for the OST with this index.
    pub fn new(store: Arc<dyn ObjectStore>, index: u16) -> ObjectServer {
        ObjectServer {
            store,
            index,
            counters: Counters::default(),
            brw: BrwStats::default(),
            statfs: Mutex::new(None),
            grants: Mutex::default(),
            operator_state: AtomicU32::new(0),
            logged: Mutex::new(None),
            unlogged: AtomicU64::new(0),
        }
    }

    /// The store below.
    pub fn store(&self) -> &Arc<dyn ObjectStore> {
        &self.store
    }

    /// Requests that succeeded, by [`Operation`]; `obdfilter.*.stats`.
    pub fn stats(&self) -> &EventStats {
        &self.counters.succeeded
    }

    /// Requests of a kind that failed since the service was made.
    pub fn failed(&self, operation: Operation) -> u64 {
        self.counters.failed(operation)
    }

    /// Reads and writes by size, time and number in progress: the text of `obdfilter.*.brw_stats`.
    pub fn brw_stats(&self) -> String {
        self.brw.text()
    }

    /// Sets what [`ObjectServer::brw_stats`] shows to 0.
    pub fn clear_brw_stats(&self) {
        self.brw.clear();
    }

    /// Changes whenever data that was written but not synced may have been lost.
    pub fn durability_epoch(&self) -> u64 {
        self.store.durability_epoch()
    }

    /// Tells MDTs to prefer other targets (`obdfilter.*.degraded`), or to make no new objects here
    /// (`obdfilter.*.no_create`).
    pub fn set_state(&self, is_degraded: bool, is_no_create: bool) {
        let state = u32::from(is_degraded) | (u32::from(is_no_create) << 2);
        self.operator_state.store(state & STATE_OPERATOR, Ordering::Relaxed);
        *self.statfs.lock() = None;
    }

    /// Refuses new requests (`ESHUTDOWN`), waits for those in progress, and makes everything durable.
    ///
    /// # Errors
    /// [`StopError::InProgress`] if requests have not ended after `patience`: the call may be repeated.
    pub fn stop(&self, patience: Duration) -> Result<(), StopError> {
        self.counters.stop(patience).map_err(StopError::InProgress)?;
        self.store.close().map_err(StopError::Store)
    }

    fn run(&self, request: &OssRequest, bulk: Bulk<'_>) -> Outcome {
        match request {
            OssRequest::Write { object, offset, sync, granted, .. } => {
                self.write(*object, *offset, (*sync, *granted), bulk)
            }
            OssRequest::Read { object, offset, len, ahead, .. } => {
                self.read(*object, *offset, *len, *ahead, bulk)
            }
            OssRequest::GetAttr { object, .. } => {
                check_object(*object, self.index)?;
                Ok((OssReply::Attr(attr(self.store.attr(*object)?)), 0))
            }
            OssRequest::Truncate { object, size, .. } => {
                check_object(*object, self.index)?;
                check_range(*size, 0)?;
                Ok((OssReply::Attr(attr(self.store.truncate(*object, *size)?)), 0))
            }
            OssRequest::Fallocate { object, kind, offset, len, .. } => {
                check_object(*object, self.index)?;
                check_range(*offset, *len)?;
                let after = self.store.fallocate(*object, fallocate(*kind), *offset, *len)?;
                Ok((OssReply::Attr(attr(after)), *len))
            }
            OssRequest::Seek { object, offset, kind, .. } => {
                check_object(*object, self.index)?;
                let what = match kind {
                    SeekKind::Data => Seek::Data,
                    SeekKind::Hole => Seek::Hole,
                };
                Ok((OssReply::Position(self.store.seek(*object, *offset, what)?), 0))
            }
            OssRequest::Sync { object } => {
                match object {
                    Some(object) => {
                        check_object(*object, self.index)?;
                        self.store.sync(*object)?;
                    }
                    None => self.store.sync_all()?,
                }
                Ok((OssReply::Done, 0))
            }
            OssRequest::Statfs => Ok((OssReply::Statfs(self.statfs()?), 0)),
            OssRequest::Precreate { sequence, count } => {
                check_sequence(*sequence, self.index)?;
                check_count(*count)?;
                let ids = self.store.reserve(*sequence, *count)?;
                let count = ids.end - ids.start;
                Ok((OssReply::Precreated { first: ids.start, count }, u64::from(count)))
            }
            OssRequest::DestroyOrphans { sequence, last_used } => {
                check_sequence(*sequence, self.index)?;
                let first = self.store.destroy_orphans(*sequence, *last_used)?;
                *self.statfs.lock() = None;
                Ok((OssReply::Precreated { first, count: 0 }, 0))
            }
            OssRequest::Destroy { objects } => {
                check_objects(objects, self.index)?;
                let count = self.store.destroy(objects)?;
                *self.statfs.lock() = None;
                Ok((OssReply::Done, count))
            }
            OssRequest::Ping => Ok((OssReply::Done, 0)),
            OssRequest::Grant { client, kept, want } => {
                Ok((OssReply::Granted(self.grant(*client, *kept, *want)?), 0))
            }
            // Locks are not served yet, so nobody has any.
            OssRequest::Locks { .. } => Err(Status::EOPNOTSUPP.into()),
            OssRequest::Evict { .. } => Ok((OssReply::Done, 0)),
        }
    }

    fn write(&self, object: Fid, offset: u64, (sync, granted): (bool, bool), bulk: Bulk<'_>) -> Outcome {
        check_object(object, self.index)?;
        let Bulk::Send(data) = bulk else { return Err(Status::EPROTO.into()) };
        check_bulk(data.len())?;
        check_range(offset, data.len() as u64)?;
        let transfer = self.brw.begin(Direction::Write, offset, data.len() as u64);
        match granted {
            true => self.store.write_promised(object, offset, data)?,
            false => self.store.write(object, offset, data)?,
        }
        drop(transfer);
        if sync {
            self.store.sync(object)?;
        }
        // Cannot be cut: check_bulk.
        Ok((OssReply::Written(data.len() as u32), data.len() as u64))
    }

    fn read(&self, object: Fid, offset: u64, len: u32, ahead: u32, bulk: Bulk<'_>) -> Outcome {
        check_object(object, self.index)?;
        let Bulk::Receive(buffer) = bulk else { return Err(Status::EPROTO.into()) };
        check_bulk(len as usize)?;
        let Some(buffer) = buffer.get_mut(..len as usize) else { return Err(Status::EINVAL.into()) };
        let _transfer = self.brw.begin(Direction::Read, offset, buffer.len() as u64);
        let read = self.store.read(object, offset, buffer, ahead.min(AHEAD_MAX))?;
        Ok((OssReply::Read(read as u32), read as u64))
    }

    fn grant(&self, client: u64, kept: u64, want: u64) -> Result<u64, Refusal> {
        // Held while the store is asked, so that two clients are not promised the same space.
        let mut grants = self.grants.lock();
        let space = self.store.space()?;
        let room = if space.available > 0 && !space.is_read_only { space.promisable } else { 0 };
        Ok(grants.ask(client, kept, want, room, Instant::now()))
    }

    /// Bytes that are kept for clients now.
    pub fn granted_bytes(&self) -> u64 {
        self.grants.lock().bytes()
    }

    fn statfs(&self) -> Result<Statfs, Refusal> {
        // Held while the store is asked, so that many who ask at once cost one look.
        let mut cached = self.statfs.lock();
        let now = Instant::now();
        if let Some((when, statfs)) = &*cached
            && now.duration_since(*when) < STATFS_AGE_MAX
        {
            return Ok(*statfs);
        }
        let statfs = statfs_of(&self.store.space()?, self.operator_state.load(Ordering::Relaxed));
        *cached = Some((now, statfs));
        Ok(statfs)
    }

    /// Logs a failure of the store, at most one in [`LOG_EVERY`]: a broken disk fails every request.
    fn log_failure(&self, request: &OssRequest, error: &ObjectError) {
        let mut logged = self.logged.lock();
        if logged.is_some_and(|when| when.elapsed() < LOG_EVERY) {
            self.unlogged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        *logged = Some(Instant::now());
        drop(logged);
        let unlogged = self.unlogged.swap(0, Ordering::Relaxed);
        let operation = operation_of(request).row().name;
        log::error!(
            "OST{:04x}: {operation} failed: {error} ({unlogged} failures before not shown)",
            self.index
        );
    }
}

/// Reply and amount for the counters.
type Outcome = Result<(OssReply, u64), Refusal>;

/// Why a request failed.
enum Refusal {
    /// It made no sense.
    Argument(Status),
    /// The store could not do it.
    Store(ObjectError),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal::Argument(status)
    }
}

impl From<ObjectError> for Refusal {
    fn from(error: ObjectError) -> Refusal {
        Refusal::Store(error)
    }
}

/// Failures that say something about the request or about a full disk, not about a broken one.
fn is_expected(status: Status) -> bool {
    matches!(
        status,
        Status::ENOSPC
            | Status::EFBIG
            | Status::ENXIO
            | Status::EINVAL
            | Status::EINTR
            | Status::EOPNOTSUPP
            | Status::ESHUTDOWN
    )
}

impl OssService for ObjectServer {
    fn space(&self) -> StatusResult<Statfs> {
        self.statfs().map_err(|refusal| match refusal {
            Refusal::Argument(status) => status,
            Refusal::Store(error) => error.status(),
        })
    }

    fn handle(
        &self,
        _export: &Export,
        _call: &Call<'_>,
        request: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
        let Some(in_progress) = self.counters.enter() else { return Err(Status::ESHUTDOWN) };
        let operation = operation_of(request);
        match self.run(request, bulk) {
            Ok((reply, amount)) => {
                in_progress.count(operation, Some(amount));
                if matches!(request, OssRequest::Write { sync: true, .. }) {
                    in_progress.count(Operation::Sync, Some(0));
                }
                Ok(reply)
            }
            Err(refusal) => {
                in_progress.count(operation, None);
                Err(match refusal {
                    Refusal::Argument(status) => status,
                    Refusal::Store(error) => {
                        let status = error.status();
                        if !is_expected(status) {
                            self.log_failure(request, &error);
                        }
                        status
                    }
                })
            }
        }
    }
}

fn operation_of(request: &OssRequest) -> Operation {
    match request {
        OssRequest::Write { .. } => Operation::Write,
        OssRequest::Read { .. } => Operation::Read,
        OssRequest::GetAttr { .. } => Operation::GetAttr,
        OssRequest::Truncate { .. } => Operation::Truncate,
        OssRequest::Fallocate { .. } => Operation::Fallocate,
        OssRequest::Seek { .. } => Operation::Seek,
        OssRequest::Sync { .. } => Operation::Sync,
        OssRequest::Statfs => Operation::Statfs,
        OssRequest::Precreate { .. } => Operation::Precreate,
        OssRequest::DestroyOrphans { .. } => Operation::DestroyOrphans,
        OssRequest::Destroy { .. } => Operation::Destroy,
        OssRequest::Ping => Operation::Ping,
        OssRequest::Grant { .. } => Operation::Grant,
        OssRequest::Locks { .. } => Operation::Locks,
        OssRequest::Evict { .. } => Operation::Evict,
    }
}

fn fallocate(kind: FallocateKind) -> Fallocate {
    match kind {
        FallocateKind::Allocate => Fallocate::Allocate { keep_size: false },
        FallocateKind::AllocateKeepSize => Fallocate::Allocate { keep_size: true },
        FallocateKind::Punch => Fallocate::Punch,
        FallocateKind::Zero => Fallocate::Zero { keep_size: false },
        FallocateKind::ZeroKeepSize => Fallocate::Zero { keep_size: true },
    }
}

fn attr(attr: ObjectAttr) -> oss::ObjectAttr {
    oss::ObjectAttr { size: attr.size, blocks: attr.blocks, mtime: attr.mtime }
}

fn statfs_of(space: &Space, operator_state: u32) -> Statfs {
    let block_size = space.block_size.max(1);
    let blocks = |bytes: u64| bytes / u64::from(block_size);
    let mut state = operator_state;
    if space.is_read_only {
        state |= STATE_READ_ONLY;
    }
    if blocks(space.available) == 0 {
        state |= STATE_NO_SPACE;
    }
    if space.objects_free == 0 {
        state |= STATE_NO_INODES;
    }
    Statfs {
        block_size,
        blocks: blocks(space.total),
        blocks_free: blocks(space.free),
        blocks_available: blocks(space.available),
        files: space.objects,
        files_free: space.objects_free,
        state,
    }
}

#[cfg(test)]
mod tests;
