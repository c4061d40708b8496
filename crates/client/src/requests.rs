//! Requests to servers: the choice of the server, the credentials, and waiting for a server that is not
//! ready.

pub(crate) mod capabilities;
mod changelog;
pub(crate) mod dir_use;
pub(crate) mod fan_out;
pub(crate) mod joining;
pub(crate) mod keepers;
pub(crate) mod kept;
pub(crate) mod mdt;
mod quota;
pub(crate) mod recovery;
pub(crate) mod silent;
pub(crate) mod statfs;
pub(crate) mod targets;

use crate::caller::Caller;
use crate::faults::Faults;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::objects::logged::Logged;
use crate::quotas::Quotas;
use crate::requests::capabilities::CapabilityTable;
use crate::requests::joining::Joining;
use crate::requests::keepers::Keepers;
use crate::requests::mdt::{Answer, FidPool, Mdt, second_directory};
use crate::requests::silent::{Signs, Silent};
use crate::requests::targets::{MdtTable, OstTable};
use crate::tasks::Tasks;
use nacre_env::clock::Instant;
use nacre_env::sync::RwLock;
use nacre_layout::{Layout, StripeObject};
use nacre_rpc::{IoCall, LinkState, MdsEndpoint, OssEndpoint, run_all};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Context, Cred, Explain, FailureResult, Fid, Status, StatusResult, TargetId, TransNo};
use nacre_wire::mds::{MdsReply, MdsRequest};
use nacre_wire::mgs::PoolConfig;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The servers of a file system, and all requests to them.
pub struct Requests {
    pub(crate) mdts: MdtTable,
    pub(crate) osts: OstTable,
    /// MDTs that are about to join.
    joining: Joining,
    pub(crate) silent: Silent,
    /// MDTs that answer, for the placement of directories.
    pub(crate) signs: Signs,
    pub(crate) faults: Faults,
    pub(crate) capabilities: CapabilityTable,
    pub(crate) quotas: Quotas,
    /// Changes that OSTs may lose.
    pub(crate) keepers: Arc<Keepers>,
    lease: Arc<Lease>,
    nodes: Arc<NodeTable>,
    tasks: Arc<Tasks>,
    /// Number of changes that this client made to the namespace or attributes; shows whether a fetched page
    /// is still true.
    pub(crate) changes: AtomicU64,
    /// Pools of the file system, for reports to users.
    pools: RwLock<Vec<PoolConfig>>,
    /// Handle to this, for work on other threads than the caller's.
    me: Weak<Requests>,
}

/// Returns the target for an index in requests for objects: an OST, or an MDT that has data of files.
pub(crate) fn target_of(index: u16) -> TargetId {
    index.checked_sub(TARGET_INDEX_MAX).map_or(TargetId::ost(index), TargetId::mdt)
}

impl Requests {
    /// Creates the set of servers over connected endpoints: `mdts` by index, `osts` as far as they are known.
    ///
    /// # Errors
    /// `EINVAL` without any MDT or with too many.
    pub(crate) fn new(
        mdts: Vec<Arc<dyn MdsEndpoint>>,
        osts: BTreeMap<u16, Arc<dyn OssEndpoint>>,
        lease: Arc<Lease>,
        nodes: Arc<NodeTable>,
        tasks: Arc<Tasks>,
    ) -> StatusResult<Arc<Requests>> {
        let known = MdtTable::new();
        if mdts.is_empty() || !mdts.into_iter().all(|endpoint| known.push(Mdt::new(endpoint))) {
            return Err(Status::EINVAL);
        }
        let new = Arc::new_cyclic(|me| Requests {
            mdts: known,
            osts: OstTable::new(),
            joining: Joining::default(),
            silent: Silent::default(),
            signs: Signs::default(),
            faults: Faults::default(),
            capabilities: CapabilityTable::new(),
            quotas: Quotas::default(),
            keepers: Keepers::new(),
            lease,
            nodes,
            tasks,
            changes: AtomicU64::new(0),
            pools: RwLock::default(),
            me: me.clone(),
        });
        for (index, endpoint) in osts {
            new.add_ost(index, endpoint);
        }
        Ok(new)
    }

    /// Ends all waits for MDTs, and the thread for kept changes.
    pub(crate) fn stop(&self) {
        self.joining.stop();
        self.keepers.stop();
    }

    /// Adds an OST that appeared while the client runs; false if the index is known already.
    pub fn add_ost(&self, index: u16, endpoint: Arc<dyn OssEndpoint>) -> bool {
        let endpoint = match index.checked_sub(TARGET_INDEX_MAX) {
            _ if endpoint.is_local() => endpoint,
            Some(mdt) => Arc::new(Logged::of_mdt(endpoint, mdt, self.me.clone())),
            None => {
                let kept = self.keepers.add(index, &endpoint);
                Arc::new(Logged::of_ost(endpoint, kept))
            }
        };
        self.osts.add(index, endpoint)
    }

    /// Returns the endpoint of an OST, if it is known.
    pub fn ost_endpoint(&self, index: u16) -> Option<&dyn OssEndpoint> {
        self.osts.get(index)
    }

    /// Returns the endpoint of an MDT, if it is known.
    pub fn mdt_endpoint(&self, index: u16) -> Option<&dyn MdsEndpoint> {
        self.mdts.get(usize::from(index)).map(|mdt| &*mdt.endpoint)
    }

    /// True if the servers are in this process: requests cost a call, not a message.
    pub fn is_embedded(&self) -> bool {
        self.mdts.iter().all(|mdt| mdt.endpoint.is_local())
    }

    /// Asks every MDT for its lease; used at the start and after a reconnection.
    ///
    /// # Errors
    /// The error of an MDT.
    pub fn refresh_lease(&self) -> StatusResult<()> {
        self.faults.edge("get the lease", || {
            let system = Cred::system();
            for (index, mdt) in self.mdts.iter().enumerate() {
                let answer = mdt.endpoint.call(&system, &MdsRequest::Ping);
                let answer = answer.explain(|context| context.target(TargetId::mdt(index as u16)));
                if let MdsReply::Lease(grant) = answer?.reply {
                    self.lease.apply(index as u16, grant, false);
                }
            }
            Ok(())
        })
    }

    /// Returns the MDT of a FID. Waits for one that is joining.
    pub(crate) fn mdt(&self, fid: Fid) -> StatusResult<&Mdt> {
        let index = fid.mdt_index();
        self.mdts.get(usize::from(index)).map_or_else(|| self.mdt_that_joins(index), Ok)
    }

    /// Sends a request to the MDT of `fid`. Groups and capabilities are fetched only if the MDT cannot decide
    /// without.
    pub(crate) fn call(&self, caller: &Caller, fid: Fid, request: &MdsRequest<'_>) -> FailureResult<Answer> {
        self.with_space(fid, || match self.call_as(&caller.cred(), fid, request) {
            Err(failure) if failure == Status::NEED_CREDENTIALS => {
                self.call_as(&caller.full_cred(), fid, request)
            }
            outcome => outcome,
        })
    }

    /// Sends a request of a program that waits for the reply: an unreachable MDT or a refusal is an expected result, and
    /// no fault.
    ///
    /// # Errors
    /// `EAGAIN` if the MDT of `fid` is unreachable, or has not answered within `limit`; those of the MDT.
    pub(crate) fn call_within(
        &self,
        cred: &Cred,
        fid: Fid,
        request: &MdsRequest<'_>,
        limit: Duration,
    ) -> StatusResult<MdsReply> {
        if !self.is_connected(fid.mdt_index()) {
            return Err(Status::EAGAIN);
        }
        match nacre_env::until(Instant::now() + limit, || self.call_as(cred, fid, request)) {
            Ok(answer) => Ok(answer.reply),
            Err(failure) if failure == Status::EINTR => Err(Status::EAGAIN),
            Err(failure) => Err(failure.status()),
        }
    }

    /// Sends a request with complete credentials.
    pub(crate) fn call_as(&self, cred: &Cred, fid: Fid, request: &MdsRequest<'_>) -> FailureResult<Answer> {
        let mdt = self.mdt(fid)?;
        let lease = self.lease.number();
        let answer = mdt.endpoint.call(cred, request).explain(|context| {
            let context = context.fid(fid).target(TargetId::mdt(fid.mdt_index()));
            match mdt.endpoint.trouble() {
                Some(trouble) => context.cause(trouble),
                None => context,
            }
        })?;
        if let Some(given) = &answer.capabilities {
            self.note_capabilities(given);
        }
        mdt.last_committed.fetch_max(answer.last_committed.0, Ordering::Relaxed);
        if answer.transno.0 != 0 {
            mdt.last_transno.fetch_max(answer.transno.0, Ordering::Relaxed);
            if second_directory(request).is_some_and(|second| second.mdt_index() != fid.mdt_index()) {
                mdt.last_elsewhere.fetch_max(answer.transno.0, Ordering::Relaxed);
            }
            self.changes.fetch_add(1, Ordering::Release);
            self.keep(cred, fid, request, &answer);
        }
        Ok(Answer { reply: answer.reply, transno: answer.transno, lease })
    }

    /// Sends a request of the client itself, with the system's credentials.
    pub(crate) fn call_system(&self, fid: Fid, request: &MdsRequest<'_>) -> FailureResult<Answer> {
        self.call_as(&Cred::system(), fid, request)
    }

    /// Makes changes of directories durable that another MDT than the directory's coordinated: the commit of
    /// a coordinator covers all participants.
    pub(crate) fn commit_elsewhere(&self) -> FailureResult<()> {
        for index in 0..self.mdts.len() as u16 {
            let place = Fid::new(Fid::first_sequence_of_mdt(index), 1, 0);
            let upto = self.mdt(place)?.last_elsewhere.load(Ordering::Relaxed);
            self.commit(place, TransNo(upto))?;
        }
        Ok(())
    }

    /// Makes everything up to `upto` durable at the MDT of `fid`, if it is not yet.
    pub(crate) fn commit(&self, fid: Fid, upto: TransNo) -> FailureResult<()> {
        let mdt = self.mdt(fid)?;
        // A transaction that an MDT has lost is no position in its log any more.
        let upto = match upto.0 {
            u64::MAX => upto,
            known => TransNo(known.min(mdt.last_transno.load(Ordering::Relaxed))),
        };
        if upto.0 <= mdt.last_committed.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.call_system(fid, &MdsRequest::Commit { upto })?;
        // "Everything" is no position that later changes could be compared with.
        if upto.0 != u64::MAX {
            mdt.last_committed.fetch_max(upto.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns a FID for a new inode on an MDT.
    pub(crate) fn fresh_fid(&self, index: u16) -> FailureResult<Fid> {
        let place = Fid::new(Fid::first_sequence_of_mdt(index), 1, 0);
        let mdt = self.mdt(place)?;
        loop {
            if let Some(fid) = mdt.fids.lock().take() {
                return Ok(fid);
            }
            let MdsReply::Sequence(seq) = self.call_system(place, &MdsRequest::AllocateSequence)?.reply
            else {
                return Err(Status::EPROTO.into());
            };
            let mut pool = mdt.fids.lock();
            // Another thread may have fetched one meanwhile; the rest of that is used first, and this
            // sequence is dropped, which is no loss.
            if let Some(fid) = pool.take() {
                return Ok(fid);
            }
            *pool = FidPool { seq, next_oid: 1 };
        }
    }

    /// True if a read of the file is a message to another process.
    pub(crate) fn is_far(&self, layout: &Layout) -> bool {
        let first = layout.objects().next();
        first.and_then(|stripe| self.osts.get(stripe.ost_index)).is_some_and(|ost| !ost.is_local())
    }

    pub(crate) fn ost(&self, index: u16) -> FailureResult<&dyn OssEndpoint> {
        // An OST that the configuration does not name yet counts as unreachable.
        self.osts.get(index).ok_or(Status::EIO).explain(self.about_ost(index))
    }

    /// Returns the context of a failed request for an object.
    pub(crate) fn about_object(&self, stripe: &StripeObject) -> impl FnOnce(&mut Context) -> &mut Context {
        move |context| {
            self.about_ost(stripe.ost_index)(context).cause(format_args!("object {}", stripe.object))
        }
    }

    /// Returns the context of a failed request to an OST, or to the data part of an MDT.
    pub(crate) fn about_ost(&self, index: u16) -> impl FnOnce(&mut Context) -> &mut Context {
        move |context| {
            context.target(target_of(index));
            match self.osts.get(index) {
                None => context.cause("this client does not know the target"),
                Some(endpoint) if !endpoint.is_active() => context.cause("the target is out of use"),
                Some(endpoint) => match endpoint.trouble() {
                    Some(trouble) => context.cause(trouble),
                    None => context,
                },
            }
        }
    }

    /// Runs requests without data on several objects and returns their replies in order, or the first failure
    /// once all have ended. `requests` returns the same ones each time.
    pub(crate) fn on_objects<I: Iterator<Item = (u16, OssRequest)>>(
        &self,
        action: &'static str,
        requests: impl Fn() -> I,
    ) -> FailureResult<Vec<OssReply>> {
        let mut calls = Vec::new();
        for (ost_index, request) in requests() {
            calls.push(IoCall { endpoint: self.ost(ost_index)?, request, bulk: Bulk::None });
        }
        let replies = run_all(calls).into_iter().enumerate();
        let explained = |(place, reply): (usize, StatusResult<OssReply>)| {
            reply.explain(|context| match requests().nth(place) {
                Some((ost_index, _)) => self.about_ost(ost_index)(context.action(action)),
                None => context,
            })
        };
        replies.map(explained).collect()
    }

    /// Sends a request to one object, without the allocations of [`Requests::on_objects`].
    pub(crate) fn on_object(
        &self,
        action: &'static str,
        ost_index: u16,
        request: &OssRequest,
    ) -> FailureResult<OssReply> {
        let reply = self.ost(ost_index)?.call(request, Bulk::None);
        reply.explain(|context| self.about_ost(ost_index)(context.action(action)))
    }

    /// True for an OST that an operator has taken out of use.
    pub(crate) fn is_out_of_use(&self, ost_index: u16) -> bool {
        self.osts.get(ost_index).is_some_and(|endpoint| !endpoint.is_active())
    }

    /// Returns the epoch of an OST, to be taken before writing there.
    pub(crate) fn epoch_of(&self, ost_index: u16) -> u64 {
        self.osts.get(ost_index).map_or(0, |endpoint| endpoint.durability_epoch())
    }

    /// Repeats `attempt` if it finds no space, once the space of removed files is free again.
    pub(crate) fn with_space<R>(
        &self,
        fid: Fid,
        mut attempt: impl FnMut() -> FailureResult<R>,
    ) -> FailureResult<R> {
        match attempt() {
            Err(failure) if failure == Status::ENOSPC => {
                self.call_system(fid, &MdsRequest::Commit { upto: TransNo(u64::MAX) })?;
                attempt()
            }
            outcome => outcome,
        }
    }

    /// False while operations have to wait for an MDT.
    pub(super) fn is_connected(&self, mdt: u16) -> bool {
        let import = self.mdts.get(usize::from(mdt)).and_then(|mdt| mdt.endpoint.import());
        import.is_none_or(|import| matches!(import.state, LinkState::New | LinkState::Full | LinkState::Idle))
    }

    pub(crate) fn recoveries(&self, fid: Fid) -> u64 {
        self.mdt(fid).map_or(0, |mdt| mdt.recoveries.load(Ordering::Acquire))
    }
}
