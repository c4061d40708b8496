//! Which requests to a metadata server change something.

use crate::mds::MdsRequest;

impl MdsRequest<'_> {
    /// True if the request changes something, so that a resend must not run twice.
    pub fn is_modifying(&self) -> bool {
        match self {
            MdsRequest::Changelog(request) => return request.is_modifying(),
            MdsRequest::Quota(request) => return request.is_modifying(),
            _ => {}
        }
        !matches!(
            self,
            MdsRequest::Statfs
                | MdsRequest::Lookup { .. }
                | MdsRequest::GetAttr { .. }
                | MdsRequest::GetLayout { .. }
                | MdsRequest::Capabilities { .. }
                | MdsRequest::GetDefaultLayout { .. }
                | MdsRequest::ReadDir { .. }
                | MdsRequest::Scan { .. }
                | MdsRequest::LookupMany { .. }
                | MdsRequest::ListInodes { .. }
                | MdsRequest::ReadLink { .. }
                | MdsRequest::GetXattr { .. }
                | MdsRequest::ListXattr { .. }
                | MdsRequest::Access { .. }
                | MdsRequest::Commit { .. }
                | MdsRequest::FidToLink { .. }
                | MdsRequest::FidToPath { .. }
                | MdsRequest::GetLock { .. }
                | MdsRequest::ReplayFileLocks { .. }
                | MdsRequest::Ping
                | MdsRequest::LeaseReleased { .. }
                | MdsRequest::LeaseBusy { .. }
                | MdsRequest::Locks { .. }
                | MdsRequest::Intent { .. }
                | MdsRequest::OpenLease { .. }
                | MdsRequest::FilesOn { .. }
                | MdsRequest::Inodes { .. }
                | MdsRequest::DirUse(_)
                | MdsRequest::RunStart
                | MdsRequest::Replay { .. }
                | MdsRequest::RecoveryDone
        )
    }

    /// True if the request changes names or inodes: run twice, it may fail, or undo what others did in between.
    pub fn has_one_effect(&self) -> bool {
        matches!(
            self,
            MdsRequest::SetAttr { .. }
                | MdsRequest::Create { .. }
                | MdsRequest::Link { .. }
                | MdsRequest::Unlink { .. }
                | MdsRequest::Rename { .. }
                | MdsRequest::SetLayout { .. }
                | MdsRequest::SetXattr { .. }
                | MdsRequest::RemoveXattr { .. }
                | MdsRequest::RemoveFid { .. }
                | MdsRequest::SwapLayouts { .. }
                | MdsRequest::Restripe { .. }
                | MdsRequest::Migrate { .. }
                | MdsRequest::MigrateFiles { .. }
        ) || matches!(self, MdsRequest::Changelog(request) if request.is_modifying())
    }
}
