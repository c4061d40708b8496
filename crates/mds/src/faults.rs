//! The edge of the service: requests that end with a fault leave a line in the log. Lines where the fault was
//! detected have its details.

use crate::filesets::fids_of;
use crate::stats::service_name;
use nacre_env::LogLimit;
use nacre_env::sync::Mutex;
use nacre_rpc::Export;
use nacre_types::{Status, TargetId};
use nacre_wire::mds::MdsRequest;
use std::fmt::Write;

/// See the [module documentation](self).
pub(crate) struct Faults {
    target: TargetId,
    limit: Mutex<LogLimit>,
}

impl Faults {
    /// Creates the edge of the MDT with this index.
    pub fn new(index: u16) -> Faults {
        Faults { target: TargetId::mdt(index), limit: Mutex::default() }
    }

    /// Logs the status of a request if it is a fault of a server; other results, and those that the client
    /// handles by connecting anew or asking another MDT, are expected.
    pub fn note(&self, export: &Export, request: &MdsRequest<'_>, status: Status) {
        let is_of_client = matches!(
            status,
            Status::EVICTED | Status::WRONG_TARGET | Status::WRONG_FSNAME | Status::BAD_VERSION
        );
        if !status.is_fault() || is_of_client {
            return;
        }
        let Some(suppressed) = self.limit.lock().admit() else { return };
        let mut line = format!("{}: {}", self.target, service_name(request));
        for fid in fids_of(request).into_iter().flatten() {
            let _ = write!(line, " of {fid}");
        }
        let _ = write!(line, " for client {} at {}: {status}", export.client, export.nid);
        match suppressed {
            0 => log::error!("{line}"),
            suppressed => log::error!("{line} ({suppressed} failures before not shown)"),
        }
    }
}
