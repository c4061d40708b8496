//! Clients that are bounded: those that are banned, and those that may change nothing.

use crate::service::ObjectServer;
use nacre_rpc::Export;
use nacre_types::nodemap::Nodemaps;
use nacre_types::{Standing, Status, StatusResult};
use nacre_wire::oss::OssRequest;
use std::sync::Arc;

impl ObjectServer {
    /// Bounds a client by what it has proved.
    ///
    /// # Errors
    /// `EACCES` for one that is banned.
    pub(crate) fn admit(&self, export: &Export) -> StatusResult<()> {
        let nodemaps = self.nodemaps.read().clone();
        // Whose groups are whose is the metadata servers' affair.
        export.bound(&nodemaps, false);
        match export.standing().is_some_and(|standing| standing.is_banned()) {
            true => {
                log::warn!("{}: client {} at {} is banned", self.target_id(), export.client, export.nid);
                Err(Status::EACCES)
            }
            false => Ok(()),
        }
    }

    /// Bounds clients by these nodemaps from now on. Those that are banned are dropped.
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

/// Whether a client may send a request.
///
/// # Errors
/// `EROFS` for what changes data where nothing may be changed.
pub(crate) fn check_standing(standing: &Standing, request: &OssRequest) -> StatusResult<()> {
    let changes = matches!(
        request,
        OssRequest::Write { .. } | OssRequest::Truncate { .. } | OssRequest::Fallocate { .. }
    );
    if changes && standing.is_read_only() { Err(Status::EROFS) } else { Ok(()) }
}
