//! A metadata target as the client sees it.

use crate::requests::kept::Kept;
use nacre_env::sync::Mutex;
use nacre_lock::LockHandle;
use nacre_rpc::MdsEndpoint;
use nacre_types::fid::OIDS_PER_SEQUENCE;
use nacre_types::{Attr, FailureResult, Fid, OpenHandle, Status, TransNo};
use nacre_wire::mds::{MdsReply, MdsRequest, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A metadata target as the client sees it.
pub(crate) struct Mdt {
    pub endpoint: Arc<dyn MdsEndpoint>,
    /// Last transaction that is durable there, with all before it.
    pub(super) last_committed: AtomicU64,
    /// Last transaction of this client there.
    pub last_transno: AtomicU64,
    /// Last transaction coordinated there that changed a directory of another MDT.
    pub last_elsewhere: AtomicU64,
    /// How often the open files there were re-opened.
    pub recoveries: AtomicU64,
    /// Changes that it may still lose.
    pub kept: Kept,
    pub(super) fids: Mutex<FidPool>,
}

impl Mdt {
    pub fn new(endpoint: Arc<dyn MdsEndpoint>) -> Mdt {
        Mdt {
            endpoint,
            last_committed: AtomicU64::new(0),
            last_transno: AtomicU64::new(0),
            last_elsewhere: AtomicU64::new(0),
            recoveries: AtomicU64::new(0),
            kept: Kept::default(),
            fids: Mutex::new(FidPool::default()),
        }
    }

    /// Takes over what the answers to pings have reported as durable since the last request.
    pub fn learn_committed(&self) {
        let reported = self.endpoint.import().map_or(0, |import| import.peer_committed);
        self.last_committed.fetch_max(reported, Ordering::Relaxed);
    }

    /// Returns the last transaction that is durable there, with all before it.
    pub fn last_committed(&self) -> u64 {
        self.last_committed.load(Ordering::Relaxed)
    }
}

/// Returns the directory that a request changes in addition to the one it is addressed to.
pub(super) fn second_directory(request: &MdsRequest<'_>) -> Option<Fid> {
    match request {
        MdsRequest::Rename { to_parent, .. } => Some(*to_parent),
        MdsRequest::Link { parent, .. } => Some(*parent),
        _ => None,
    }
}

/// True for errors that end a recovery, so that it starts again.
pub(crate) fn open_again_is_given_up(status: Status) -> bool {
    matches!(status, Status::EINTR | Status::ENOTCONN | Status::ESHUTDOWN | Status::ETIMEDOUT)
}

/// True for errors that end a replay of changes or locks, so that all of it is sent again after the next connect.
pub(crate) fn replay_is_given_up(status: Status) -> bool {
    open_again_is_given_up(status) || status == Status::EVICTED
}

/// Returns the request that re-opens a file at an MDT.
pub(crate) fn open_again(fid: Fid, handle: OpenHandle, flags: OpenFlags) -> MdsRequest<'static> {
    let flags = (flags & !(OpenFlags::TRUNCATE | OpenFlags::CREATED)) | OpenFlags::REPLAY;
    MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) }
}

/// FIDs for new files: object ids of one sequence after the other.
#[derive(Default)]
pub(super) struct FidPool {
    pub(super) seq: u64,
    pub(super) next_oid: u32,
}

impl FidPool {
    pub(super) fn take(&mut self) -> Option<Fid> {
        if self.seq == 0 || self.next_oid > OIDS_PER_SEQUENCE {
            return None;
        }
        self.next_oid += 1;
        Some(Fid::new(self.seq, self.next_oid - 1, 0))
    }
}

/// An MDT's reply, and the lease that was in force when the request was sent.
pub(crate) struct Answer {
    pub reply: MdsReply,
    pub transno: TransNo,
    /// Number of the exclusive lease, 0 under a shared one.
    pub lease: u64,
}

impl Answer {
    /// Returns the attributes in the reply.
    ///
    /// # Errors
    /// `EPROTO` if the MDT answered with something else.
    pub fn attr(self) -> FailureResult<Attr> {
        match self.reply {
            MdsReply::Attr(attr) => Ok(attr),
            _ => Err(Status::EPROTO.into()),
        }
    }

    /// Returns the bytes in the reply.
    ///
    /// # Errors
    /// `EPROTO` if the MDT answered with something else.
    pub fn bytes(self) -> FailureResult<Vec<u8>> {
        match self.reply {
            MdsReply::Bytes(bytes) => Ok(bytes),
            _ => Err(Status::EPROTO.into()),
        }
    }
}
