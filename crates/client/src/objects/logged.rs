//! The endpoint of an object target on another host: acknowledged changes are kept until they are durable. Those of
//! the data part of an MDT are in the MDT's log, and replayed with its other changes.

use crate::objects::kept::{Keeping, Kept};
use crate::requests::Requests;
use nacre_rpc::{ImportInfo, OssEndpoint, RpcStats, Started, Tunables};
use nacre_types::{Fid, StatusResult, TransNo};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use nacre_wire::replay::{DataChange, MessageBytes, ReplayedChange};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The data part of an MDT.
struct MdtData {
    /// Index of the MDT.
    mdt_index: u16,
    requests: Weak<Requests>,
    /// Epoch at the first connection.
    first_epoch: OnceLock<u64>,
    /// Set by the first change that is not in the log of the MDT: its data is on a device of its own. What the loss of
    /// the log takes is replayed, so the epoch stays.
    is_unlogged: AtomicBool,
}

impl MdtData {
    fn new(mdt_index: u16, requests: Weak<Requests>) -> MdtData {
        MdtData { mdt_index, requests, first_epoch: OnceLock::new(), is_unlogged: AtomicBool::new(false) }
    }

    /// As [`OssEndpoint::durability_epoch`].
    fn epoch(&self, inner: &dyn OssEndpoint) -> u64 {
        let current = || inner.durability_epoch();
        if self.is_unlogged.load(Ordering::Acquire) {
            return current();
        }
        match self.first_epoch.get() {
            Some(first) => *first,
            None => match current() {
                0 => 0,
                epoch => *self.first_epoch.get_or_init(|| epoch),
            },
        }
    }

    /// Keeps a change if it is in the log; returns the reply itself.
    fn keep(&self, reply: OssReply, request: &OssRequest, data: Option<&[u8]>) -> OssReply {
        let OssReply::Logged { transno, last_committed, reply } = reply else {
            if is_change(request) {
                self.is_unlogged.store(true, Ordering::Release);
            }
            return reply;
        };
        if transno != TransNo(0)
            && let (Some(requests), Some((object, change))) =
                (self.requests.upgrade(), change_of(request, data))
        {
            requests.keep_data(
                self.mdt_index,
                ReplayedChange::of_data(transno, object, change),
                last_committed,
            );
        }
        reply.into()
    }
}

/// How changes are kept.
enum Keeper {
    Mdt(MdtData),
    Ost(Arc<Kept>),
}

/// See the [module documentation](self).
pub(crate) struct Logged {
    inner: Arc<dyn OssEndpoint>,
    keeper: Keeper,
}

impl Logged {
    /// Wraps the endpoint of the data part of an MDT.
    pub fn of_mdt(inner: Arc<dyn OssEndpoint>, mdt_index: u16, requests: Weak<Requests>) -> Logged {
        Logged { inner, keeper: Keeper::Mdt(MdtData::new(mdt_index, requests)) }
    }

    /// Wraps the endpoint of an OST whose changes are entered in `kept`.
    pub fn of_ost(inner: Arc<dyn OssEndpoint>, kept: Arc<Kept>) -> Logged {
        Logged { inner, keeper: Keeper::Ost(kept) }
    }

    /// Runs a request by `run`; `data` is what it sends.
    fn keep(
        &self,
        request: &OssRequest,
        data: Option<&[u8]>,
        run: impl FnOnce() -> StatusResult<OssReply>,
    ) -> StatusResult<OssReply> {
        match &self.keeper {
            Keeper::Mdt(mdt) => Ok(mdt.keep(run()?, request, data)),
            Keeper::Ost(kept) => match kept.before(&*self.inner, request) {
                Some(before) => Keeping { inner: &*self.inner, kept }.finish(before, request, data, run()?),
                None => run(),
            },
        }
    }
}

fn is_change(request: &OssRequest) -> bool {
    matches!(request, OssRequest::Write { .. } | OssRequest::Truncate { .. } | OssRequest::Fallocate { .. })
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
        let data = match bulk {
            Bulk::Send(data) => Some(data),
            Bulk::None => None,
            Bulk::Receive(_) => return self.inner.call(request, bulk),
        };
        match &self.keeper {
            Keeper::Ost(kept) => Keeping { inner: &*self.inner, kept }.call(request, data),
            Keeper::Mdt(_) => self.keep(request, data, || self.inner.call(request, bulk)),
        }
    }

    unsafe fn start<'a>(&'a self, request: &'a OssRequest, bulk: Bulk<'a>) -> Started<'a> {
        let (data, kept) = match (&bulk, &self.keeper) {
            // SAFETY: the caller keeps the contract, which is the same.
            (Bulk::Receive(_), _) => return unsafe { self.inner.start(request, bulk) },
            (_, Keeper::Mdt(_)) => return Started::Finished(self.call(request, bulk)),
            (Bulk::Send(data), Keeper::Ost(kept)) => (Some(*data), kept),
            (Bulk::None, Keeper::Ost(kept)) => (None, kept),
        };
        let keeping = Keeping { inner: &*self.inner, kept };
        let before = kept.before(keeping.inner, request);
        // SAFETY: the caller keeps the contract, which is the same.
        let started = unsafe { self.inner.start(request, bulk) };
        let Some(before) = before else { return started };
        match started {
            Started::Finished(reply) => {
                Started::Finished(reply.and_then(|reply| keeping.finish(before, request, data, reply)))
            }
            Started::InFlight(wait) => {
                Started::InFlight(Box::new(move || keeping.finish(before, request, data, wait()?)))
            }
        }
    }

    fn call_out_of_use(&self, request: &OssRequest) -> StatusResult<OssReply> {
        self.keep(request, None, || self.inner.call_out_of_use(request))
    }

    fn call_within(&self, request: &OssRequest, limit: Duration) -> StatusResult<OssReply> {
        self.keep(request, None, || self.inner.call_within(request, limit))
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
        match &self.keeper {
            Keeper::Mdt(mdt) => mdt.epoch(&*self.inner),
            Keeper::Ost(kept) => kept.epoch(&*self.inner),
        }
    }

    fn incarnation(&self) -> u64 {
        self.inner.incarnation()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
}
