//! Locks on objects: what keeps others away while a request reads or changes bytes, and what ends with a client.

use crate::arguments::check_object;
use crate::clients::LockClients;
use crate::grants::Grants;
use crate::service::{ObjectServer, Refusal, attr};
use crate::stats::Operation;
use nacre_dlm::{LocalLock, LockOwner};
use nacre_env::sync::Mutex;
use nacre_lock::{Extent, Lvb, Mode, Need, Policy, ResourceId};
use nacre_rpc::{Export, ExportChange};
use nacre_store::object::ObjectStore;
use nacre_types::{ClientUuid, Fid, Status, StatusResult, Timestamp};
use nacre_wire::lock::{IoLock, LockRequest};
use nacre_wire::oss::ObjectAttr;
use std::sync::Arc;

/// What the locks need to know of the target, and what goes with a client.
pub(crate) struct Target {
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) index: u16,
    pub(crate) grants: Mutex<Grants>,
    pub(crate) clients: Option<LockClients>,
}

impl Target {
    /// Nothing is kept for this client any more, in memory or on disk.
    fn forget(&self, client: &ClientUuid) {
        self.grants.lock().drop_of(client);
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
        log::warn!("OST{:04x}: client {client} did not give up a lock in time and is evicted", self.index);
        self.forget(&client);
    }

    fn on_given_up(&self, client: &ClientUuid) {
        self.forget_locks(client);
    }
}

/// Keeps others from what a request changes.
pub(crate) struct ChangeGuard<'a> {
    _lock: Option<LocalLock<'a>>,
    _change: Option<ExportChange<'a>>,
}

impl ObjectServer {
    /// What a request needs before it changes these bytes: a lock of its client or of the target's own, so that the next
    /// holder waits for its end; under the lease the end of the client waits for it.
    pub(crate) fn lock_change<'a>(
        &'a self,
        export: &'a Export,
        lock: IoLock,
        object: Fid,
        extent: Option<Extent>,
    ) -> StatusResult<ChangeGuard<'a>> {
        let resource = ResourceId::of_fid(&object);
        let Some(extent) = extent else { return Ok(ChangeGuard { _lock: None, _change: None }) };
        let need = Need::extent(Mode::Pw, extent.aligned_to_pages());
        let (lock, change) = match lock {
            IoLock::Lease => (None, Some(export.begin_change().ok_or(Status::EVICTED)?)),
            IoLock::Held => (Some(self.locks.lock_held(export, &resource, need)?), None),
            IoLock::Server => (Some(self.locks.lock_local(&resource, need, Some(export))?), None),
        };
        Ok(ChangeGuard { _lock: lock, _change: change })
    }

    /// The same before bytes are looked at. What is read under a lock that is lost meanwhile does not count for the
    /// client, so nobody has to wait for it.
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
        }
    }

    /// The metadata server beside this one has written so many bytes to an object.
    pub fn note_written(&self, object: Fid, bytes: u64) {
        self.object_changed(object);
        self.counters.succeeded.count(Operation::Write as usize, bytes);
    }

    /// An object has, or may have, another size or other times than before.
    pub(crate) fn object_changed(&self, object: Fid) {
        self.versions.note_change(object);
        self.locks.object_changed(&*self.target, &ResourceId::of_fid(&object));
    }

    /// Attributes with what clients that write have not written out yet.
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

    /// Locks are on bytes of this target's objects.
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

    /// Drops a client: when this returns, nothing of it that has begun goes on, and nothing of it will begin.
    pub(crate) fn evict(&self, client: &ClientUuid) {
        let export = self.locks.evict(client);
        self.target.forget(client);
        if let Some(export) = export {
            log::info!("OST{:04x}: client {client} is dropped for its MDT", self.target.index);
            export.await_changes();
        }
    }

    /// A client leaves. A service that stops remembers who has locks: they come back when it does.
    pub(crate) fn disconnect_client(&self, export: &Export) {
        self.locks.disconnect(export);
        if !self.counters.is_stopping() && !self.locks.is_connected(&export.client) {
            self.target.forget(&export.client);
        }
    }
}
