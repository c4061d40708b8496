//! Messages and events of OSTs.

use crate::locks::Locks;
use nacre_rpc::{ClientCallbacks, OssEndpoint, OssEvents, OstEventsFactory, Recovery};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Capability, Cred, ObjectNeed, StatusResult};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::{LeaseGrant, MdsRequest};
use nacre_wire::oss::{Bulk, OssRequest};
use std::sync::Arc;

/// The events of one OST.
struct OstEvents {
    locks: Arc<Locks>,
    ost_index: u16,
}

impl OstEvents {
    fn lose_all(&self) {
        let ost_index = self.ost_index;
        log::warn!("OST{ost_index:04x} has given this client up: its locks there are lost");
        let lost = self.locks.space(ost_index).on_evicted(&self.locks);
        if let Some(holder) = self.locks.holder() {
            holder.drop_lost(ost_index, lost);
        }
    }
}

impl ClientCallbacks for OstEvents {
    /// Does nothing: OSTs grant no leases.
    fn lease_changed(&self, _: LeaseGrant) {}

    fn lock_message(&self, message: LockMessage) {
        self.locks.space(self.ost_index).on_message(&self.locks, message);
    }
}

impl OstEvents {
    /// Waits, before data on an MDT that restarted is used, until its metadata is replayed: the files of the data may
    /// be among what it has lost.
    fn await_replay(&self) -> StatusResult<()> {
        let mdt = self.ost_index.checked_sub(TARGET_INDEX_MAX);
        let Some((mdt, holder)) = mdt.zip(self.locks.holder()) else { return Ok(()) };
        // Answered once the connection to the metadata part has recovered.
        holder.mdt(mdt).map_or(Ok(()), |endpoint| endpoint.call(&Cred::system(), &MdsRequest::Ping).map(drop))
    }
}

impl OssEvents for OstEvents {
    fn reconnected(&self, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        let ost_index = self.ost_index;
        if let Some(holder) = self.locks.holder() {
            // Before the end of the replay of locks, which the OST takes for the end of all.
            holder.replay_data(ost_index, endpoint, recovery)?;
        }
        match recovery {
            Recovery::None => Ok(()),
            Recovery::ServerRestarted => {
                self.await_replay()?;
                if !self.locks.space(ost_index).replay(&self.locks, endpoint)? {
                    // A second replay would get the same answer: the OST was restored from an older copy, for
                    // example.
                    self.lose_all();
                    endpoint.call(&OssRequest::Locks { request: LockRequest::ReplayDone }, Bulk::None)?;
                }
                Ok(())
            }
            Recovery::Evicted => {
                self.lose_all();
                Ok(())
            }
        }
    }

    fn capability(
        &self,
        need: &ObjectNeed,
        refused: Option<&Capability>,
    ) -> StatusResult<Option<Capability>> {
        self.locks.holder().map_or(Ok(None), |holder| holder.capability(need, refused))
    }
}

impl Locks {
    /// Returns the factory of events of OSTs, for their endpoints.
    pub fn events(self: &Arc<Locks>) -> Arc<dyn OstEventsFactory> {
        Arc::new(Factory(self.clone()))
    }
}

/// Creates the events of OSTs for the client with these locks.
struct Factory(Arc<Locks>);

impl OstEventsFactory for Factory {
    fn events(&self, ost: u16) -> Arc<dyn OssEvents> {
        Arc::new(OstEvents { locks: self.0.clone(), ost_index: ost })
    }
}
