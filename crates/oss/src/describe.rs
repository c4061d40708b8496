//! Requests as other parts know them: their counters, reports of what waits, fault points, and the store's words.

use crate::stats::Operation;
use nacre_env::activity;
use nacre_env::fault::{self, Point};
use nacre_rpc::{Call, Export};
use nacre_store::object::{Fallocate, Seek};
use nacre_types::{Status, StatusResult, TargetId};
use nacre_wire::oss::{FallocateKind, OssRequest, SeekKind};

/// Describes a request for reports of what waits.
pub(crate) fn described(
    target: TargetId,
    export: &Export,
    call: &Call<'_>,
    request: &OssRequest,
) -> activity::Operation {
    activity::Operation {
        target: Some(target),
        name: operation_of(request).service_row().name,
        fid: request.object(),
        lock: 0,
        origin: activity::Origin::Client { client: export.client, nid: export.nid, xid: call.xid },
    }
}

/// Fault points of requests.
pub(crate) fn make_faults(request: &OssRequest) -> StatusResult<()> {
    match request {
        OssRequest::Read { .. } => fault::fail(Point::OstRead, Status::EIO),
        OssRequest::Write { .. } => {
            fault::fail(Point::OstEnospc, Status::ENOSPC)?;
            fault::fail(Point::OstErofs, Status::EROFS)?;
            fault::fail(Point::OstWrite, Status::EIO)
        }
        OssRequest::Sync { .. } => fault::fail(Point::OstSync, Status::EIO),
        OssRequest::Destroy { .. } => fault::fail(Point::OstDestroy, Status::EIO),
        _ => Ok(()),
    }
}

/// Returns the counter of a request.
pub(crate) fn operation_of(request: &OssRequest) -> Operation {
    match request {
        OssRequest::Write { .. } => Operation::Write,
        OssRequest::Read { .. } => Operation::Read,
        OssRequest::GetAttr { .. } | OssRequest::DataVersion { .. } => Operation::GetAttr,
        OssRequest::Examine { .. } | OssRequest::ListObjects { .. } => Operation::Info,
        OssRequest::Truncate { .. } => Operation::Truncate,
        OssRequest::Fallocate { .. } => Operation::Fallocate,
        OssRequest::Seek { .. } => Operation::Seek,
        OssRequest::Sync { .. } => Operation::Sync,
        OssRequest::Statfs => Operation::Statfs,
        OssRequest::Precreate { .. } => Operation::Precreate,
        OssRequest::DestroyOrphans { .. } => Operation::DestroyOrphans,
        OssRequest::Destroy { .. } => Operation::Destroy,
        OssRequest::Ping => Operation::Ping,
        OssRequest::Grant { .. } => Operation::Grant,
        OssRequest::Locks { .. } => Operation::Locks,
        OssRequest::Evict { .. } => Operation::Evict,
        OssRequest::Advise { .. } => Operation::Advise,
        OssRequest::QuotaRound { .. } | OssRequest::SetOwners { .. } => Operation::Quota,
    }
}

/// Returns the store's word for a kind of seek.
pub(crate) fn seek(kind: SeekKind) -> Seek {
    match kind {
        SeekKind::Data => Seek::Data,
        SeekKind::Hole => Seek::Hole,
    }
}

/// Returns the store's word for a kind of allocation.
pub(crate) fn fallocate(kind: FallocateKind) -> Fallocate {
    match kind {
        FallocateKind::Allocate => Fallocate::Allocate { keep_size: false },
        FallocateKind::AllocateKeepSize => Fallocate::Allocate { keep_size: true },
        FallocateKind::Punch => Fallocate::Punch,
        FallocateKind::Zero => Fallocate::Zero { keep_size: false },
        FallocateKind::ZeroKeepSize => Fallocate::Zero { keep_size: true },
    }
}
