//! What clients need to be let at objects: a capability that a metadata server signed. Asked of those that have proved to be clients, where
//! there are keys to verify with.

use crate::service::ObjectServer;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_keys::{CapabilityError, CapabilityKeys};
use nacre_rpc::Export;
use nacre_types::{Capability, KeyId, ObjectNeed, Roles, Status, StatusResult, TargetId};
use nacre_wire::oss::OssRequest;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Time between two messages about refused requests; those between are counted.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// What verifies capabilities.
#[derive(Default)]
pub(crate) struct Capabilities {
    keys: OnceLock<Arc<CapabilityKeys>>,
    /// When a refusal was last logged, and how many were not since.
    logged: Mutex<(Option<Instant>, u64)>,
}

impl ObjectServer {
    /// Clients need capabilities signed with these keys, as soon as there are some. Only the first call counts.
    pub fn ask_for_capabilities(&self, keys: Arc<CapabilityKeys>) {
        let _ = self.capabilities.keys.set(keys);
    }

    /// Whether the sender may do this.
    ///
    /// # Errors
    /// [`Status::NO_CAPABILITY`].
    pub(crate) fn check_capability(
        &self,
        export: &Export,
        request: &OssRequest,
        capability: Option<&Capability>,
    ) -> StatusResult<()> {
        // Open peers and metadata servers first: they need no capability and pay nothing.
        let Some(identity) = &export.identity else { return Ok(()) };
        if identity.roles.contains(Roles::MDS) {
            return Ok(());
        }
        let Some(keys) = self.capabilities.keys.get().filter(|keys| keys.are_known()) else { return Ok(()) };
        let Some(need) = request.need() else { return Ok(()) };
        keys.check(identity.id, &need, capability, keys.clock().now_s(), &export.verified).map_err(|error| {
            self.log_refusal(export, identity.id, &need, error);
            Status::NO_CAPABILITY
        })
    }

    fn log_refusal(&self, export: &Export, key: KeyId, need: &ObjectNeed, error: CapabilityError) {
        let mut logged = self.capabilities.logged.lock();
        if logged.0.is_some_and(|when| when.elapsed() < LOG_EVERY) {
            logged.1 += 1;
            return;
        }
        let unlogged = std::mem::take(&mut logged.1);
        logged.0 = Some(Instant::now());
        drop(logged);
        log::warn!(
            "{}: a request of key {key} at {} for object {} refused: {error} ({unlogged} before not shown)",
            self.target_id(),
            export.nid,
            need.object
        );
    }

    fn target_id(&self) -> TargetId {
        TargetId::ost(self.target.index)
    }
}

#[cfg(test)]
mod tests;
