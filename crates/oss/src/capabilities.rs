//! Access control of clients to objects: a client presents a capability that a metadata server has signed.
//! Required of peers that have proved to be clients, as soon as there are keys to verify with.

use crate::seldom::Seldom;
use nacre_keys::CapabilityKeys;
use nacre_rpc::Export;
use nacre_types::{Capability, Roles, Status, StatusResult, TargetId};
use nacre_wire::oss::OssRequest;
use std::sync::{Arc, OnceLock};

/// State to verify capabilities with.
#[derive(Default)]
pub(crate) struct Capabilities {
    keys: OnceLock<Arc<CapabilityKeys>>,
    refusals: Seldom,
}

impl Capabilities {
    /// Capabilities are signed with these keys. Only the first call counts.
    pub(crate) fn set_keys(&self, keys: Arc<CapabilityKeys>) {
        let _ = self.keys.set(keys);
    }

    /// Whether the sender may do this to `target`.
    ///
    /// # Errors
    /// [`Status::NO_CAPABILITY`].
    pub(crate) fn check(
        &self,
        target: TargetId,
        export: &Export,
        request: &OssRequest,
        capability: Option<&Capability>,
    ) -> StatusResult<()> {
        // First, so that open peers and metadata servers, which need no capability, pay nothing.
        let Some(identity) = &export.identity else { return Ok(()) };
        if identity.roles.contains(Roles::MDS) {
            return Ok(());
        }
        let Some(keys) = self.keys.get().filter(|keys| keys.are_known()) else { return Ok(()) };
        let Some(need) = request.need() else { return Ok(()) };
        keys.check(identity.id, &need, capability, keys.clock().now_s(), &export.verified).map_err(|error| {
            if let Some(unlogged) = self.refusals.pass() {
                log::warn!(
                    "{target}: a request of key {} at {} for object {} refused: {error} ({unlogged} before not shown)",
                    identity.id,
                    export.nid,
                    need.object
                );
            }
            Status::NO_CAPABILITY
        })
    }
}

#[cfg(test)]
mod tests;
