//! What a client does when a metadata server in another process reports something, or was away.

use crate::client::Client;
use crate::locks::Locks;
use nacre_rpc::tcp::MdsEvents;
use nacre_rpc::{ClientCallbacks, MdsEndpoint, Recovery};
use nacre_types::{Cred, StatusResult, TargetId};
use nacre_wire::lock::{LockMessage, LockRequest};
use nacre_wire::mds::{LeaseGrant, MdsRequest};
use std::sync::{Arc, OnceLock, Weak};

/// Events from a metadata server in another process.
pub struct RemoteEvents {
    index: u16,
    lease: Arc<dyn ClientCallbacks>,
    locks: Arc<Locks>,
    client: OnceLock<Weak<Client>>,
}

impl RemoteEvents {
    /// Creates the events of the metadata target with this index, for a client with `locks`; `lease` receives
    /// changes of the lease.
    pub fn new(index: u16, lease: Arc<dyn ClientCallbacks>, locks: Arc<Locks>) -> RemoteEvents {
        RemoteEvents { index, lease, locks, client: OnceLock::new() }
    }

    /// Attaches the client, which exists only after its first endpoints.
    pub fn attach(&self, client: &Arc<Client>) {
        let _ = self.client.set(Arc::downgrade(client));
        if let Some(endpoint) = client.requests.mdt_endpoint(self.index)
            && let Err(status) = client.requests.meet_run(self.index, endpoint, false)
        {
            log::warn!("MDT{:04x} was not asked what it began with: {status}", self.index);
        }
    }
}

impl ClientCallbacks for RemoteEvents {
    fn lease_changed(&self, grant: LeaseGrant) {
        self.lease.lease_changed(grant);
    }

    fn lock_message(&self, message: LockMessage) {
        self.lease.lock_message(message);
    }

    /// An MDT that was killed applies transactions that their coordinators committed as soon as it restarts,
    /// and learns of this client later: until then the client would show names that are removed.
    fn callbacks_lost(&self) {
        self.locks.drop_unused(TargetId::mdt(self.index));
    }
}

impl MdsEvents for RemoteEvents {
    fn reconnected(
        &self,
        endpoint: &dyn MdsEndpoint,
        recovery: Recovery,
        grant: LeaseGrant,
    ) -> StatusResult<()> {
        let client = self.client.get().and_then(Weak::upgrade);
        let mut has_lost = false;
        if recovery != Recovery::None {
            // No cached state is protected any more. A restarted server permits no change until all clients
            // have reported that, so it precedes every request that changes something.
            self.locks.lose_inodes(self.index);
            match recovery {
                // Reads and writes in progress use these locks, so they are not dropped with the rest.
                Recovery::ServerRestarted => self.locks.replay_layouts(self.index, endpoint)?,
                _ => {
                    self.locks.lose_layouts(self.index);
                    client.iter().for_each(|client| client.opens.lose_file_locks(self.index));
                }
            }
            if let Some(client) = &client {
                // The server executes the lost changes of all clients in their order, before any new one.
                let replays = recovery == Recovery::ServerRestarted;
                has_lost = client.requests.meet_run(self.index, endpoint, replays)?;
                if replays {
                    // After the changes: one of them may have made the file.
                    client.opens.replay_file_locks(self.index, endpoint)?;
                }
            }
            endpoint.call(&Cred::system(), &MdsRequest::Locks { request: LockRequest::ReplayDone })?;
        }
        if let Some(client) = client.as_ref().filter(|_| recovery == Recovery::Evicted) {
            client.write_back.lose_dirty_data(TargetId::mdt(self.index));
        }
        if recovery == Recovery::Evicted || has_lost {
            // Other clients may have changed what is cached here, or the MDT's state is older than before:
            // the whole cache is invalid, whatever the new lease permits.
            self.lease.lease_changed(LeaseGrant { exclusive: false, ..grant });
        }
        self.lease.lease_changed(grant);
        if recovery == Recovery::None {
            return Ok(());
        }
        if let Some(client) = client {
            log::warn!("MDT{:04x} is back ({recovery:?}): opening files again", self.index);
            client.opens.reopen_handles(self.index, endpoint)?;
        }
        // Also while it is being mounted, and has no open files: others wait for that.
        endpoint.call(&Cred::system(), &MdsRequest::RecoveryDone).map(drop)
    }
}
