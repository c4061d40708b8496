//! Roles that may send each request: checked against the certificate of a connection, before a service sees
//! the request. The service then checks the rights of the client's user.

use crate::mds::MdsRequest;
use crate::mgs::MgsRequest;
use crate::oss::OssRequest;
use nacre_types::Roles;

/// Metadata servers are trusted: they may send each other and object servers all that clients may.
const CLIENTS: Roles = Roles::CLIENT.union(Roles::MDS);
/// All holders of a key of the file system.
const ALL: Roles = Roles::all();
/// Servers of targets.
const SERVERS: Roles = Roles::MGS.union(Roles::MDS).union(Roles::OSS);

impl MdsRequest<'_> {
    /// Returns the roles of which a sender needs at least one.
    pub fn roles(&self) -> Roles {
        match self {
            MdsRequest::Peer(_) => Roles::MDS,
            MdsRequest::RunStart
            | MdsRequest::Replay { .. }
            | MdsRequest::RecoveryDone
            | MdsRequest::DataChange { .. }
            | MdsRequest::Statfs
            | MdsRequest::AllocateSequence
            | MdsRequest::Lookup { .. }
            | MdsRequest::GetAttr { .. }
            | MdsRequest::SetAttr { .. }
            | MdsRequest::Create { .. }
            | MdsRequest::Link { .. }
            | MdsRequest::Unlink { .. }
            | MdsRequest::Rename { .. }
            | MdsRequest::Open { .. }
            | MdsRequest::Close { .. }
            | MdsRequest::CloseWrite { .. }
            | MdsRequest::UpdateData { .. }
            | MdsRequest::LayoutIntent { .. }
            | MdsRequest::GetLayout { .. }
            | MdsRequest::Capabilities { .. }
            | MdsRequest::SetLayout { .. }
            | MdsRequest::GetDefaultLayout { .. }
            | MdsRequest::ReadDir { .. }
            | MdsRequest::Scan { .. }
            | MdsRequest::LookupMany { .. }
            | MdsRequest::ReadLink { .. }
            | MdsRequest::GetXattr { .. }
            | MdsRequest::ListXattr { .. }
            | MdsRequest::SetXattr { .. }
            | MdsRequest::RemoveXattr { .. }
            | MdsRequest::Access { .. }
            | MdsRequest::Commit { .. }
            | MdsRequest::FidToLink { .. }
            | MdsRequest::FidToPath { .. }
            | MdsRequest::RemoveFid { .. }
            | MdsRequest::SetLock { .. }
            | MdsRequest::LockFile { .. }
            | MdsRequest::ReplayFileLocks { .. }
            | MdsRequest::GetLock { .. }
            | MdsRequest::Ping
            | MdsRequest::LeaseReleased { .. }
            | MdsRequest::LeaseBusy { .. }
            | MdsRequest::Locks { .. }
            | MdsRequest::Intent { .. }
            | MdsRequest::LayoutAccess { .. }
            | MdsRequest::SwapLayouts { .. }
            | MdsRequest::OpenLease { .. }
            | MdsRequest::FilesOn { .. }
            | MdsRequest::Restripe { .. }
            | MdsRequest::ListInodes { .. }
            | MdsRequest::Migrate { .. }
            | MdsRequest::MigrateFiles { .. }
            | MdsRequest::Changelog(_)
            | MdsRequest::Quota(_)
            | MdsRequest::DirUse(_)
            | MdsRequest::Inodes { .. } => CLIENTS,
        }
    }
}

impl OssRequest {
    /// Returns the roles of which a sender needs at least one.
    pub fn roles(&self) -> Roles {
        match self {
            OssRequest::Precreate { .. }
            | OssRequest::DestroyOrphans { .. }
            | OssRequest::Destroy { .. }
            | OssRequest::Evict { .. }
            | OssRequest::QuotaRound { .. }
            | OssRequest::SetOwners { .. }
            | OssRequest::Examine { .. }
            | OssRequest::ListObjects { .. } => Roles::MDS,
            OssRequest::Write { .. }
            | OssRequest::Read { .. }
            | OssRequest::GetAttr { .. }
            | OssRequest::Truncate { .. }
            | OssRequest::Fallocate { .. }
            | OssRequest::Seek { .. }
            | OssRequest::Sync { .. }
            | OssRequest::Statfs
            | OssRequest::Ping
            | OssRequest::Grant { .. }
            | OssRequest::Locks { .. }
            | OssRequest::Advise { .. }
            | OssRequest::DataVersion { .. } => CLIENTS,
        }
    }
}

impl MgsRequest {
    /// Returns the roles of which a sender needs at least one.
    pub fn roles(&self) -> Roles {
        match self {
            MgsRequest::GetConfig { .. } | MgsRequest::Ping | MgsRequest::Renew { .. } => ALL,
            MgsRequest::Enrol { .. } => Roles::empty(),
            MgsRequest::RegisterTarget { .. } | MgsRequest::AddTarget { .. } => SERVERS,
            MgsRequest::SetParam { .. }
            | MgsRequest::ChangePool { .. }
            | MgsRequest::ChangeNodemap { .. }
            | MgsRequest::CreateToken { .. }
            | MgsRequest::ListKeys
            | MgsRequest::RevokeKey { .. } => Roles::ADMIN,
        }
    }
}
