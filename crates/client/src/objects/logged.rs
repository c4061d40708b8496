//! The endpoint of the data part of an MDT: changes of data in the MDT's log are kept until they are durable.

use crate::requests::Requests;
use nacre_rpc::{ImportInfo, OssEndpoint, RpcStats, Started, Tunables};
use nacre_types::{Fid, StatusResult};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use nacre_wire::replay::{DataChange, MessageBytes, ReplayedChange};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// See the [module documentation](self).
pub(crate) struct Logged {
    inner: Arc<dyn OssEndpoint>,
    /// Index of the MDT.
    mdt_index: u16,
    requests: Weak<Requests>,
    /// Epoch since which all changes are in the log: what its loss takes is replayed.
    epoch: OnceLock<u64>,
}

impl Logged {
    pub fn new(inner: Arc<dyn OssEndpoint>, mdt_index: u16, requests: Weak<Requests>) -> Logged {
        Logged { inner, mdt_index, requests, epoch: OnceLock::new() }
    }

    /// Keeps a change if it is in the log; returns the reply itself.
    fn keep(&self, reply: OssReply, change: impl FnOnce() -> Option<(Fid, DataChange)>) -> OssReply {
        let OssReply::Logged { transno, last_committed, reply } = reply else { return reply };
        self.epoch.get_or_init(|| self.inner.durability_epoch());
        if let (Some(requests), Some((object, change))) = (self.requests.upgrade(), change()) {
            requests.keep_data(
                self.mdt_index,
                ReplayedChange::of_data(transno, object, change),
                last_committed,
            );
        }
        reply.into()
    }
}

/// Returns the change of a request with this data; `None` if it changes none.
fn change_of(request: &OssRequest, data: Option<&[u8]>) -> Option<(Fid, DataChange)> {
    match *request {
        OssRequest::Write { object, offset, .. } => {
            Some((object, DataChange::Write { offset, data: MessageBytes(data?.to_vec()) }))
        }
        OssRequest::Truncate { object, size, .. } => Some((object, DataChange::Truncate { size })),
        OssRequest::Fallocate { object, kind, offset, len, .. } => {
            Some((object, DataChange::Fallocate { kind, offset, len }))
        }
        _ => None,
    }
}

impl OssEndpoint for Logged {
    fn call(&self, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let data = match &bulk {
            Bulk::Send(data) => Some(*data),
            _ => None,
        };
        let reply = self.inner.call(request, bulk)?;
        Ok(self.keep(reply, || change_of(request, data)))
    }

    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        match request {
            // SAFETY: the caller keeps the contract, which is the same.
            OssRequest::Read { .. } => unsafe { self.inner.start(request, bulk) },
            _ => Started::Finished(self.call(request, bulk)),
        }
    }

    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        let reply = self.inner.call_out_of_use(request)?;
        Ok(self.keep(reply, || change_of(request, None)))
    }

    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        let reply = self.inner.call_within(request, limit)?;
        Ok(self.keep(reply, || change_of(request, None)))
    }

    fn tunables(&self) -> Option<&Arc<Tunables>> {
        self.inner.tunables()
    }

    fn set_active(&self, active: bool) -> StatusResult<()> {
        self.inner.set_active(active)
    }

    fn is_active(&self) -> bool {
        self.inner.is_active()
    }

    fn rpc_stats(&self) -> Option<&RpcStats> {
        self.inner.rpc_stats()
    }

    fn trouble(&self) -> Option<String> {
        self.inner.trouble()
    }

    fn import(&self) -> Option<ImportInfo> {
        self.inner.import()
    }

    fn disconnect(&self, limit: Duration) {
        self.inner.disconnect(limit);
    }

    fn durability_epoch(&self) -> u64 {
        self.epoch.get().copied().unwrap_or_else(|| self.inner.durability_epoch())
    }

    fn incarnation(&self) -> u64 {
        self.inner.incarnation()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
}
