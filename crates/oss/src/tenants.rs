//! Restrictions of clients by nodemaps: banned clients, and read-only clients.

use crate::service::ObjectServer;
use nacre_rpc::Export;
use nacre_types::nodemap::Nodemaps;
use nacre_types::{Standing, Status, StatusResult};
use nacre_wire::oss::OssRequest;
use std::sync::Arc;

impl ObjectServer {
    /// Applies the nodemaps to a client, by its proved identity.
    ///
    /// # Errors
    /// `EACCES` for a banned client.
    pub(crate) fn admit(&self, export: &Export) -> StatusResult<()> {
        let nodemaps = self.nodemaps.read().clone();
        // Without groups: only metadata servers check the membership of users.
        export.bound(&nodemaps, false);
        match export.standing().is_some_and(|standing| standing.is_banned()) {
            true => {
                log::warn!("{}: client {} at {} is banned", self.target_id(), export.client, export.nid);
                Err(Status::EACCES)
            }
            false => Ok(()),
        }
    }

    /// Replaces the nodemaps, applies them to all clients, and disconnects those that are banned.
    pub fn set_nodemaps(&self, nodemaps: &Arc<Nodemaps>) {
        if **self.nodemaps.read() == **nodemaps {
            return;
        }
        *self.nodemaps.write() = nodemaps.clone();
        for export in self.locks.exports() {
            if self.admit(&export).is_err() {
                self.disconnect_client(&export);
            }
        }
    }
}

/// Checks that a client may send a request.
///
/// # Errors
/// `EROFS` for a change by a read-only client.
pub(crate) fn check_standing(standing: &Standing, request: &OssRequest) -> StatusResult<()> {
    let changes = matches!(
        request,
        OssRequest::Write { .. } | OssRequest::Truncate { .. } | OssRequest::Fallocate { .. }
    );
    if changes && standing.is_read_only() { Err(Status::EROFS) } else { Ok(()) }
}
