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
        if !is_fault_here(status) {
            return;
        }
        let Some(suppressed) = self.limit.lock().admit() else { return };
        let line = self.line(export, request, status);
        match suppressed {
            0 => log::error!("{line}"),
            suppressed => log::error!("{line} ({suppressed} failures before not shown)"),
        }
    }

    fn line(&self, export: &Export, request: &MdsRequest<'_>, status: Status) -> String {
        let mut line = format!("{}: {}", self.target, service_name(request));
        for (fid, word) in fids_of(request).into_iter().flatten().zip(["of", "and"]) {
            let _ = write!(line, " {word} {fid}");
        }
        let _ = write!(line, " for client {} at {}: {status}", export.client, export.nid);
        line
    }
}

/// Returns true for a fault of the server, not of the client's state or configuration.
fn is_fault_here(status: Status) -> bool {
    status.is_fault()
        && !matches!(
            status,
            Status::EVICTED | Status::WRONG_TARGET | Status::WRONG_FSNAME | Status::BAD_VERSION
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{export, tcp_nid};
    use nacre_types::Fid;
    use nacre_wire::mds::RenameFlags;

    #[test]
    fn a_fault_names_request_files_client_and_address() {
        let (from, to) = (Fid::new(0x2_0000_0401, 1, 0), Fid::new(0x2_0000_0401, 2, 0));
        let request = MdsRequest::Rename {
            from_parent: from,
            from_name: b"a",
            to_parent: to,
            to_name: b"b",
            flags: RenameFlags::empty(),
        };
        let line = Faults::new(1).line(&export(7, tcp_nid()).0, &request, Status::EUCLEAN);
        assert_eq!(
            line,
            "MDT0001: mds_reint_rename of [0x200000401:0x1:0x0] and [0x200000401:0x2:0x0] for client \
             07070707-0707-0707-0707-070707070707 at 127.0.0.1@tcp: stored structure needs cleaning (EUCLEAN)"
        );
    }

    #[test]
    fn results_that_programs_and_clients_expect_are_no_faults() {
        assert!(is_fault_here(Status::EIO) && is_fault_here(Status::EUCLEAN));
        for expected in [Status::ENOENT, Status::ENOSPC, Status::EVICTED, Status::WRONG_TARGET] {
            assert!(!is_fault_here(expected), "{expected}");
        }
    }
}
