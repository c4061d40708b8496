//! Locks on objects: the exclusion around a request that reads or changes bytes, the numbers of changes under it and
//! their replay, and the cleanup when a client ends.

use crate::arguments::{check_object, check_range};
use crate::clients::LockClients;
use crate::describe::fallocate;
use crate::grants::Grants;
use crate::outcome::{Outcome, Refusal};
use crate::quota::Charged;
use crate::replay::{awaits_replay, replayed_by};
use crate::service::{ObjectServer, attr, extent};
use crate::stats::Operation;
use nacre_dlm::{LocalLock, LockOwner};
use nacre_env::sync::Mutex;
use nacre_lock::{Extent, Lvb, Mode, Need, Policy, ResourceId};
use nacre_rpc::{Export, ExportChange};
use nacre_store::object::{ObjectAttr as StoredAttr, ObjectError, ObjectStore};
use nacre_types::{ClientUuid, Fid, Status, StatusResult, Timestamp, TransNo};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::oss::{Bulk, Charge, FallocateKind, ObjectAttr, OssReply, OssRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Parts of the target that its locks use, and state that is dropped with a client.
pub(crate) struct Target {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) index: u16,
    pub(crate) grants: Mutex<Grants>,
    /// Sum of the grants as of their last change, for writes, which do not wait for the lock.
    pub(crate) granted_bytes: AtomicU64,
    pub(crate) clients: Option<LockClients>,
}

impl Target {
    /// Records the sum of the grants after a change of them.
    pub(crate) fn note_grants(&self, grants: &Grants) {
        self.granted_bytes.store(grants.bytes(), Ordering::Relaxed);
    }

    /// Drops all state of a client, in memory and on disk.
    fn forget(&self, client: &ClientUuid) {
        let mut grants = self.grants.lock();
        grants.drop_of(client);
        self.note_grants(&grants);
        drop(grants);
        self.forget_locks(client);
    }

    fn forget_locks(&self, client: &ClientUuid) {
        if let Some(clients) = &self.clients
            && let Err(error) = clients.remove(client)
        {
            log::warn!("OST{:04x}: forgetting that client {client} has locks: {error}", self.index);
        }
    }
}

impl LockOwner for Target {
    fn lvb(&self, resource: &ResourceId) -> StatusResult<Option<Lvb>> {
        let found = self.store.attr(resource.fid()).map_err(|error| error.status())?;
        let time = found.mtime.unwrap_or_default();
        let (size_bytes, blocks) = (found.size, found.blocks);
        Ok(Some(Lvb { size_bytes, blocks, atime: time, mtime: time, ctime: time }))
    }

    fn on_first_lock(&self, export: &Export) -> StatusResult<()> {
        let Some(clients) = &self.clients else { return Ok(()) };
        clients.add(export).map_err(|error| {
            log::error!("OST{:04x}: noting that client {} has locks: {error}", self.index, export.client);
            Status::EIO
        })
    }

    fn on_evicted(&self, export: &Arc<Export>) {
        let client = export.client;
        log::warn!("OST{:04x}: client {client} did not release a lock in time and is evicted", self.index);
        self.forget(&client);
    }

    fn on_given_up(&self, client: &ClientUuid) {
        self.forget_locks(client);
    }
}

/// Excludes conflicting holders while a request changes bytes.
pub(crate) struct ChangeGuard<'a> {
    _lock: Option<LocalLock<'a>>,
    _change: Option<ExportChange<'a>>,
    /// True if the client keeps the change until it is durable.
    keeps: bool,
    /// Number of the change that is replayed.
    pub(crate) replayed: Option<TransNo>,
}

impl ObjectServer {
    /// Takes a lock of the target on the bytes that a request changes, under the client's own lock if it has
    /// one, so that the next holder waits until the request ends. Under the lease, the end of the client
    /// waits for the request instead.
    pub(crate) fn lock_change<'a>(
        &'a self,
        export: &'a Export,
        lock: IoLock,
        object: Fid,
        extent: Option<Extent>,
    ) -> StatusResult<ChangeGuard<'a>> {
        let resource = ResourceId::of_fid(&object);
        let replayed = replayed_by(lock);
        let keeps = replayed.is_none() && self.is_keeper(export);
        let Some(extent) = extent else {
            return Ok(ChangeGuard { _lock: None, _change: None, keeps, replayed });
        };
        let need = Need::extent(Mode::Pw, extent.aligned_to_pages());
        let (lock, change) = match lock {
            // Nobody else gets to the data before the replay is over.
            IoLock::Lease | IoLock::Replay(_) => (None, Some(export.begin_change().ok_or(Status::EVICTED)?)),
            IoLock::Held => (Some(self.locks.lock_held(export, &resource, need)?), None),
            IoLock::Server => (Some(self.locks.lock_local(&resource, need, Some(export))?), None),
        };
        Ok(ChangeGuard { _lock: lock, _change: change, keeps, replayed })
    }

    /// True for a client that keeps its changes: it is on the list of clients that the next run waits for.
    fn is_keeper(&self, export: &Export) -> bool {
        let Some((changes, clients)) = self.changes.as_ref().zip(self.target.clients.as_ref()) else {
            return false;
        };
        if !changes.note_keeper(export) {
            return false;
        }
        let added = clients.add(export);
        if let Err(error) = &added {
            log::warn!("OST{:04x}: client {} keeps no changes: {error}", self.target.index, export.client);
        }
        added.is_ok()
    }

    /// Numbers a change, and adds to the reply what its client needs to keep it.
    pub(crate) fn numbered(
        &self,
        export: &Export,
        object: Fid,
        change: &ChangeGuard<'_>,
        reply: OssReply,
    ) -> OssReply {
        let Some(changes) = &self.changes else { return reply };
        let numbers = changes.note(export.client, object, change.replayed);
        if changes.is_crowded()
            && let Err(error) = changes.sync_all()
        {
            log::warn!("OST{:04x}: making all changes durable: {error}", self.target.index);
        }
        match numbers {
            Some((number, committed)) if change.keeps => reply.logged(number, committed),
            _ => reply,
        }
    }

    /// Waits, before a new request, for the replay of what this run lacks.
    ///
    /// # Errors
    /// As [`Replays::await_end`](crate::replay::Replays::await_end).
    pub(crate) fn await_replay(&self, export: &Export, request: &OssRequest) -> StatusResult<()> {
        if let Some(lead) = self.lead.get().filter(|_| awaits_replay(request)) {
            lead()?;
        }
        match &self.changes {
            Some(changes) if changes.is_lacking() && awaits_replay(request) => {
                let is_stopping = || self.counters.is_stopping();
                self.replays.await_end(changes, &self.locks, export, &is_stopping)
            }
            _ => Ok(()),
        }
    }

    /// Executes a replayed change in its turn, unless the target has it.
    pub(crate) fn replay(
        &self,
        export: &Export,
        request: &OssRequest,
        number: TransNo,
        bulk: Bulk<'_>,
    ) -> Outcome {
        let (Some(changes), Some(object)) = (&self.changes, request.object()) else {
            return Err(Status::EPERM.into());
        };
        check_object(object, self.target.index)?;
        if changes.has(&export.client, object, number) {
            return match bulk {
                Bulk::Send(data) => Ok((OssReply::written(data.len() as u32), 0)),
                _ => Ok((OssReply::Attr(attr(self.target.store.attr(object)?)), 0)),
            };
        }
        let is_stopping = || self.counters.is_stopping();
        let _turn = self.replays.await_turn(number, changes, &self.locks, export, &is_stopping)?;
        let outcome = self.run_request(export, request, bulk);
        // A refused change is lost; one that was interrupted is sent again.
        if !matches!(&outcome, Err(Refusal::Argument(Status::EVICTED | Status::EINTR | Status::ESHUTDOWN))) {
            changes.note_replayed(&export.client, number)?;
            self.locks.note_progress();
        }
        outcome
    }

    /// Completes a request that changes an object's size or space: the object may have changed even if the
    /// request failed.
    fn changed(
        &self,
        object: Fid,
        charge: &Charge,
        after: Result<StoredAttr, ObjectError>,
    ) -> Result<OssReply, Refusal> {
        self.object_changed(object);
        let after = after?;
        self.refuse_destroyed(object)?;
        self.quota.count_change(object, charge, &after);
        Ok(OssReply::Attr(attr(after)))
    }

    /// Sets the size of an object, which must exist if it was `written` before.
    pub(crate) fn truncate(
        &self,
        export: &Export,
        lock: IoLock,
        (object, written): (Fid, bool),
        size: u64,
        charge: &Charge,
    ) -> Outcome {
        check_object(object, self.target.index)?;
        check_range(size, 0)?;
        self.check_there(object, written)?;
        let change = self.lock_change(export, lock, object, Extent::new(size, Extent::EOF))?;
        let changed = self.changed(object, charge, self.target.store.truncate(object, size))?;
        Ok((self.numbered(export, object, &change, changed), 0))
    }

    /// Allocates, frees or zeroes a range of an object.
    pub(crate) fn fallocate(
        &self,
        export: &Export,
        lock: IoLock,
        kind: FallocateKind,
        what: &Charged<'_>,
    ) -> Outcome {
        let Charged { object, charge, written, offset, len, .. } = *what;
        check_object(object, self.target.index)?;
        check_range(offset, len)?;
        self.check_there(object, written)?;
        let change = self.lock_change(export, lock, object, extent(offset, len))?;
        let charged = match kind {
            FallocateKind::Punch => (None, false),
            _ => self.quota.charge(export, what)?,
        };
        let after = self.target.store.fallocate(object, fallocate(kind), offset, len);
        self.quota.charged(charged);
        let changed = self.changed(object, charge, after)?;
        Ok((self.numbered(export, object, &change, changed), len))
    }

    /// Makes an object durable.
    pub(crate) fn sync_object(&self, object: Fid) -> Result<(), ObjectError> {
        match &self.changes {
            Some(changes) => changes.sync(object),
            None => self.target.store.sync(object),
        }
    }

    /// Takes the lock that a request needs to read these bytes. A client discards what it reads under a lock
    /// that it loses meanwhile, so nothing waits for a read under the client's own lock.
    pub(crate) fn lock_read(
        &self,
        export: &Export,
        lock: IoLock,
        object: Fid,
        extent: Option<Extent>,
    ) -> StatusResult<Option<LocalLock<'_>>> {
        let resource = ResourceId::of_fid(&object);
        let Some(extent) = extent else { return Ok(None) };
        let need = Need::extent(Mode::Pr, extent.aligned_to_pages());
        match lock {
            IoLock::Lease => Ok(None),
            IoLock::Held => self.locks.check_held(export, &resource, need).map(|()| None),
            IoLock::Server => self.locks.lock_local(&resource, need, Some(export)).map(Some),
            IoLock::Replay(_) => Err(Status::EPROTO),
        }
    }

    /// Notes that the metadata server in this process has written `bytes` bytes to an object.
    pub fn note_written(&self, object: Fid, bytes: u64) {
        self.object_changed(object);
        self.counters.succeeded.count(Operation::Write as usize, bytes);
    }

    /// Notes that the size or times of an object have, or may have, changed.
    pub(crate) fn object_changed(&self, object: Fid) {
        self.versions.note_change(object);
        self.locks.object_changed(&*self.target, &ResourceId::of_fid(&object));
    }

    /// Returns attributes that include what writing clients have not written back yet.
    pub(crate) fn glimpse(&self, export: &Export, object: Fid) -> Result<ObjectAttr, Refusal> {
        let known = self.locks.glimpse(&*self.target, &ResourceId::of_fid(&object), export)?;
        let own = attr(self.target.store.attr(object)?);
        let mtime = (known.mtime > Timestamp::default()).then_some(known.mtime);
        Ok(ObjectAttr {
            size: known.size_bytes.max(own.size),
            blocks: known.blocks.max(own.blocks),
            mtime: mtime.max(own.mtime),
        })
    }

    /// Checks that a lock request is for an extent of an object of this target.
    pub(crate) fn check_lock_request(&self, request: &LockRequest) -> StatusResult<()> {
        let (resource, need) = match request {
            LockRequest::Enqueue { request, .. } => (&request.resource, &request.need),
            LockRequest::Replay { resource, need, .. } => (resource, need),
            _ => return Ok(()),
        };
        let fid = resource.fid();
        if ResourceId::of_fid(&fid) != *resource || !matches!(need.policy, Policy::Extent(_)) {
            return Err(Status::EINVAL);
        }
        check_object(fid, self.target.index)
    }

    /// Evicts a client. On return its changes under the lease have ended, and it starts no further requests.
    /// A change under a lock may still run: the next conflicting holder waits for that.
    pub(crate) fn evict(&self, client: &ClientUuid) {
        let export = self.locks.evict(client);
        self.target.forget(client);
        if let Some(export) = export {
            log::info!("OST{:04x}: client {client} is dropped for its MDT", self.target.index);
            export.await_changes();
        }
    }

    /// Disconnects a client. A service that is stopping keeps the list of clients with locks, which replay
    /// them to its next run.
    pub(crate) fn disconnect_client(&self, export: &Export) {
        self.locks.disconnect(export);
        if !self.counters.is_stopping() && !self.locks.is_connected(&export.client) {
            self.target.forget(&export.client);
        }
    }
}
