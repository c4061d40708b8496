//! The quota master on MDT0000: stored limits, rounds with all targets, and requests about limits and use.

use crate::core::Core;
use crate::error::MdsError;
use crate::leaves::Leaves;
use crate::signal::StopSignal;
use crate::suspend::Caller;
use crate::tables::{META, QUOTA_GRACES_KEY, QUOTA_LIMITS};
use crate::tx::Tx;
use nacre_env::clock::Instant;
use nacre_env::sync::{Condvar, Mutex};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::quota::{GraceRecord, LimitRecord, limit_key, split_limit_key};
use nacre_quota::{Key, Ledger, Limit, Rounds, Target};
use nacre_store::{Batch, MetaStore};
use nacre_types::quota::GRACE_MAX_S;
use nacre_types::{Caps, IdKind, QuotaId, QuotaKind, QuotaLimits, QuotaResource, Status, StatusResult, perm};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use nacre_wire::peer::{PeerReply, PeerRequest};
use nacre_wire::quota::{QuotaChange, QuotaReply, QuotaReport, QuotaRequest, QuotaRound, QuotaState};
use std::collections::{BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

/// Interval of rounds while there are limits.
const INTERVAL: Duration = Duration::from_millis(500);
/// Pause between rounds while a target waits for an answer.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for which rounds follow each other at short intervals after a target has waited.
const HURRY: Duration = Duration::from_secs(1);
/// Most rounds after which new limits are in force at all targets that answer: they learn what shrinks, then what
/// grows.
const ROUNDS_MAX: usize = 4;
/// Timeout of one message of a round. A target that takes longer is asked by a thread of its own, so that it does not
/// delay the others.
const SOON: Duration = Duration::from_millis(100);
/// Timeout of a message to such a target.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a target that did not answer is left out.
const REST: Duration = Duration::from_secs(5);
/// Interval at which that thread looks for targets to ask.
const SLOW_INTERVAL: Duration = Duration::from_millis(20);

/// Owners of each kind with most space that are watched, with most inodes, and beyond a soft limit.
const WATCHED: usize = 20;
/// Interval at which the watched owners are chosen and their uses are gathered.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);
/// Time after a reader of the watched owners for which they are gathered.
const WATCH_TIME: Duration = Duration::from_secs(60);

/// The largest owners, for monitoring.
#[derive(Default)]
struct Watched {
    owners: Vec<QuotaState>,
    /// Time of the last reader.
    read: Option<Instant>,
    /// Time at which they were gathered.
    gathered: Option<Instant>,
}

/// See the [module documentation](self).
pub(crate) struct QuotaMaster {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    ledger: Arc<Mutex<Ledger>>,
    /// Held for a round with all targets.
    round: Mutex<()>,
    /// Targets that rounds leave out, as they did not answer soon; with the time at which they are asked again, after
    /// they have not answered in time either.
    slow: Mutex<HashMap<Target, Option<Instant>>>,
    /// Wakes callers that wait for slow targets.
    answered: Condvar,
    watched: Mutex<Watched>,
}

pub(super) fn now_s() -> u64 {
    nacre_env::clock::wall().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the ledger with the stored limits.
///
/// # Errors
/// If they cannot be read.
pub(super) fn stored(store: &MetaStore) -> Result<Ledger, MdsError> {
    let mut limits = Vec::new();
    let mut damaged = Ok(());
    store.scan(QUOTA_LIMITS, &[], Bound::Unbounded, &mut |key, value| {
        match (split_limit_key(key), LimitRecord::decode(value)) {
            (Some((pool, kind, id)), Ok(record)) => {
                let LimitRecord { limits: of_it, grace_ends_s, is_default } = record;
                let key = Key { pool: pool.to_owned(), kind, id };
                limits.push((key, Limit { limits: of_it, grace_ends_s, is_default }));
            }
            (_, Err(source)) => damaged = Err(MdsError::Damaged { what: "quota", source }),
            (None, _) => log::error!("a quota has a damaged key and is ignored"),
        }
        ControlFlow::Continue(())
    })?;
    damaged?;
    let graces = store.get(META, QUOTA_GRACES_KEY, |value| value.map(GraceRecord::decode))?;
    let graces = graces.transpose().map_err(|source| MdsError::Damaged { what: "quota", source })?;
    Ok(Ledger::new(limits, graces.unwrap_or_default().0))
}

fn put_limit(batch: &mut Batch, key: &Key, limit: Option<Limit>) {
    let bytes = limit_key(&key.pool, key.kind, key.id);
    match limit {
        Some(Limit { limits, grace_ends_s, is_default }) => {
            batch.put(QUOTA_LIMITS, &bytes, &LimitRecord { limits, grace_ends_s, is_default }.encode());
        }
        None => batch.delete(QUOTA_LIMITS, &bytes),
    }
}

impl QuotaMaster {
    /// Creates the master with the limits of this MDT; `None` on other MDTs than MDT0000.
    pub fn of(leaves: &Arc<Leaves>, core: &Arc<Core>) -> Option<QuotaMaster> {
        Some(QuotaMaster {
            ledger: leaves.quotas.ledger()?.clone(),
            round: Mutex::default(),
            slow: Mutex::default(),
            answered: Condvar::new(),
            watched: Mutex::default(),
            leaves: leaves.clone(),
            core: core.clone(),
        })
    }

    /// Starts the threads of the rounds and of slow targets.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start(self: &Arc<Self>, signal: &Arc<StopSignal>) -> Result<[JoinHandle<()>; 2], MdsError> {
        Ok([self.start_rounds(signal)?, self.start_slow(signal)?])
    }

    fn start_rounds(self: &Arc<Self>, signal: &Arc<StopSignal>) -> Result<JoinHandle<()>, MdsError> {
        let (weak, signal) = (Arc::downgrade(self), signal.clone());
        let run = move || {
            let (mut pause, mut hurried) = (PAUSE, None::<Instant>);
            while !signal.wait(pause) {
                let Some(master) = weak.upgrade() else { return };
                let rounds = master.ledger.lock().rounds();
                pause = match rounds {
                    Rounds::None => INTERVAL,
                    Rounds::Regular | Rounds::AtOnce => {
                        master.round_all();
                        if master.ledger.lock().rounds() == Rounds::AtOnce {
                            hurried = Some(Instant::now());
                        }
                        // One that has waited will soon wait again.
                        let hurries = hurried.is_some_and(|since| since.elapsed() < HURRY);
                        if hurries { PAUSE } else { INTERVAL }
                    }
                };
                master.watch(rounds != Rounds::None);
            }
        };
        nacre_env::thread::Builder::new().name("mds-quota".into()).spawn(run).map_err(MdsError::Thread)
    }

    /// Returns the largest owners, as of a few seconds ago; none at first, since they are gathered on demand.
    pub fn owners(&self) -> Vec<QuotaState> {
        let mut watched = self.watched.lock();
        watched.read = Some(Instant::now());
        watched.owners.clone()
    }

    /// Gathers the largest owners, if they are read and those at hand are old. `is_recent`: a round has just ended.
    fn watch(&self, is_recent: bool) {
        {
            let mut watched = self.watched.lock();
            if watched.read.is_none_or(|read| read.elapsed() > WATCH_TIME) {
                *watched = Watched::default();
                return;
            }
            if watched.gathered.is_some_and(|gathered| gathered.elapsed() < WATCH_INTERVAL) {
                return;
            }
        }
        if !is_recent {
            self.round_all();
        }
        let owners = self.ledger.lock().largest(WATCHED);
        let mut watched = self.watched.lock();
        (watched.owners, watched.gathered) = (owners, Some(Instant::now()));
    }

    /// Asks slow targets one after the other; those that answer take part in rounds again.
    fn start_slow(self: &Arc<Self>, signal: &Arc<StopSignal>) -> Result<JoinHandle<()>, MdsError> {
        let (weak, signal) = (Arc::downgrade(self), signal.clone());
        let run = move || {
            while !signal.wait(SLOW_INTERVAL) {
                let Some(master) = weak.upgrade() else { return };
                let now = Instant::now();
                let is_due = |at: &Option<Instant>| at.is_none_or(|at| at <= now);
                let due: Vec<Target> = {
                    let slow = master.slow.lock();
                    slow.iter().filter(|(_, at)| is_due(at)).map(|(target, _)| *target).collect()
                };
                for target in due {
                    let outcome = master.exchange(target, TIMEOUT);
                    let mut slow = master.slow.lock();
                    match outcome {
                        Ok(()) => drop(slow.remove(&target)),
                        Err(_) => drop(slow.insert(target, Some(Instant::now() + REST))),
                    }
                    drop(slow);
                    master.answered.notify_all();
                    if signal.is_stopping() {
                        return;
                    }
                }
            }
        };
        nacre_env::thread::Builder::new().name("mds-quota-slow".into()).spawn(run).map_err(MdsError::Thread)
    }

    /// Exchanges slices for uses with a target.
    fn exchange(&self, target: Target, timeout: Duration) -> StatusResult<()> {
        loop {
            let round = self.ledger.lock().round_for(target);
            let report = self.ask(target, &round, timeout)?;
            if !self.ledger.lock().report(target, &round, &report) {
                return Ok(());
            }
        }
    }

    /// As [`QuotaMaster::round_all`], with targets that answer late.
    fn round_with_slow(&self) {
        self.round_all();
        let until = Instant::now() + TIMEOUT;
        let mut waited = false;
        let mut slow = self.slow.lock();
        while slow.values().any(Option::is_none) && Instant::now() < until && !nacre_env::interrupted() {
            waited = true;
            nacre_env::blocking(|| _ = self.answered.wait_for(&mut slow, SLOW_INTERVAL));
        }
        drop(slow);
        if waited {
            self.round_all();
        }
    }

    /// Exchanges slices for uses with all targets that answer soon, and divides what is left.
    pub(crate) fn round_all(&self) {
        let _round = self.round.lock();
        let targets = self.targets();
        self.slow.lock().retain(|target, _| targets.contains(target));
        for target in targets {
            if self.slow.lock().contains_key(&target) {
                continue;
            }
            let start = Instant::now();
            if self.exchange(target, SOON).is_err() {
                // One that is unreachable fails at once.
                let again = (start.elapsed() < SOON).then(|| Instant::now() + REST);
                self.slow.lock().insert(target, again);
            }
        }
        let changed = {
            let mut ledger = self.ledger.lock();
            ledger.divide(now_s());
            ledger.take_changed()
        };
        if !changed.is_empty() {
            let mut batch = Batch::new();
            batch.set_releasing(true);
            changed.iter().for_each(|(key, limit)| put_limit(&mut batch, key, *limit));
            if let Err(error) = self.leaves.store.commit(&batch) {
                let status = self.leaves.records.store_failed(&error);
                log::warn!("MDT{:04x}: grace times of quotas are not stored: {status}", self.leaves.index);
            }
        }
    }

    /// Brings new limits into force at all targets that answer.
    fn enforce(&self) {
        self.ledger.lock().divide(now_s());
        for _ in 0..ROUNDS_MAX {
            self.round_with_slow();
            if !self.ledger.lock().has_news() {
                return;
            }
        }
    }

    /// Returns all targets, and tells the ledger about them.
    fn targets(&self) -> Vec<Target> {
        let osts = self.leaves.osts.indexes().into_iter().map(|index| Target { is_mdt: false, index });
        let mdts =
            self.leaves.transactions.all_mdts().into_iter().map(|index| Target { is_mdt: true, index });
        let targets: Vec<Target> = osts.chain(mdts).collect();
        let pools = self.leaves.osts.pools().into_iter();
        let pools =
            pools.map(|pool| (pool.name.to_string(), pool.osts.iter().copied().collect::<BTreeSet<u16>>()));
        self.ledger.lock().set_targets(&targets, pools.collect());
        targets
    }

    fn ask(&self, target: Target, round: &QuotaRound, timeout: Duration) -> StatusResult<QuotaReport> {
        match target {
            Target { is_mdt: false, index } => self.leaves.osts.quota_round(index, round, timeout),
            Target { index, .. } if index == self.leaves.index => Ok(self.leaves.quotas.book().round(round)),
            Target { index, .. } => {
                let request = || PeerRequest::QuotaRound { round: round.clone() };
                let ask = || self.leaves.transactions.ask(index, request());
                match nacre_env::until(Instant::now() + timeout, ask)? {
                    PeerReply::Quota(report) => Ok(report),
                    _ => Err(Status::EPROTO),
                }
            }
        }
    }

    /// Serves a client.
    ///
    /// # Errors
    /// `EPERM` for changes by users that do not administrate the file system, and for ids of others; those of
    /// [`QuotaRequest`].
    pub fn serve(&self, caller: &Caller<'_>, request: &QuotaRequest) -> StatusResult<MdsAnswer> {
        let administrates = || {
            // Ids of the whole file system are no business of its tenants.
            let is_tenant =
                caller.is_bounded() || caller.standing.is_some_and(|standing| !standing.is_free());
            if is_tenant {
                Err(Status::EPERM)
            } else {
                perm::capable(caller.cred(), Caps::SYS_ADMIN).or(Status::EPERM)
            }
        };
        match request {
            QuotaRequest::Get { id, pool, is_default } => {
                let id = self.mapped(caller, *id)?;
                if !*is_default && !is_own(caller, id) {
                    administrates()?;
                }
                self.check_pool(pool)?;
                self.round_with_slow();
                let state = match is_default {
                    true => self.default_state(pool, id),
                    false => self.ledger.lock().state(pool, id),
                };
                Ok(self.answer_state(QuotaState { id: request_id(request).unwrap_or(id), ..state }))
            }
            QuotaRequest::Next { from, pool } => {
                administrates()?;
                self.check_pool(pool)?;
                self.round_with_slow();
                let ledger = self.ledger.lock();
                let id = ledger.next(pool, *from).ok_or(Status::ENOENT)?;
                Ok(self.answer_state(ledger.state(pool, id)))
            }
            QuotaRequest::Target { id, is_mdt, index } => {
                let id = self.mapped(caller, *id)?;
                if !is_own(caller, id) {
                    administrates()?;
                }
                self.round_with_slow();
                let target = Target { is_mdt: *is_mdt, index: *index };
                let state = self.ledger.lock().state_at(target, id).ok_or(Status::ENODEV)?;
                Ok(self.answer_state(QuotaState { id: request_id(request).unwrap_or(id), ..state }))
            }
            QuotaRequest::Set { id, pool, is_default, change } => {
                administrates()?;
                self.set(caller, *id, pool, *is_default, change)
            }
            QuotaRequest::Grace { kind } => {
                let reply = self.graces(*kind);
                Ok(self.core.commits.answer(MdsReply::Quota(reply)))
            }
            QuotaRequest::SetGrace { kind, space_s, inodes_s } => {
                administrates()?;
                self.set_graces(caller, *kind, *space_s, *inodes_s)
            }
        }
    }

    fn answer_state(&self, state: QuotaState) -> MdsAnswer {
        self.core.commits.answer(MdsReply::Quota(QuotaReply::State(state)))
    }

    /// Returns the id in the file system for one of a client.
    fn mapped(&self, caller: &Caller<'_>, id: QuotaId) -> StatusResult<QuotaId> {
        let Some(standing) = caller.standing else { return Ok(id) };
        let kind = match id.kind {
            QuotaKind::User => IdKind::Uid,
            QuotaKind::Group => IdKind::Gid,
            QuotaKind::Project => IdKind::Projid,
        };
        Ok(QuotaId { id: standing.to_fs(kind, id.id)?, ..id })
    }

    fn check_pool(&self, pool: &str) -> StatusResult<()> {
        let is_known =
            pool.is_empty() || self.leaves.osts.pools().iter().any(|known| known.name.to_string() == pool);
        if is_known { Ok(()) } else { Err(Status::ENOENT) }
    }

    fn default_state(&self, pool: &str, id: QuotaId) -> QuotaState {
        let ledger = self.ledger.lock();
        let limit =
            ledger.stored(&Key { pool: pool.to_owned(), kind: id.kind, id: None }).unwrap_or_default();
        let mut state = ledger.state(pool, id);
        (state.space.used, state.inodes.used) = (0, 0);
        (state.space.grace_ends_s, state.inodes.grace_ends_s) = (0, 0);
        [state.space.limits, state.inodes.limits] = limit.limits;
        QuotaState { is_default: true, ..state }
    }

    fn graces(&self, kind: QuotaKind) -> QuotaReply {
        let ledger = self.ledger.lock();
        let of = |resource| ledger.grace_s(kind, resource);
        QuotaReply::Grace { space_s: of(QuotaResource::Space), inodes_s: of(QuotaResource::Inodes) }
    }

    fn set(
        &self,
        caller: &Caller<'_>,
        id: QuotaId,
        pool: &str,
        is_default: bool,
        change: &QuotaChange,
    ) -> StatusResult<MdsAnswer> {
        self.check_pool(pool)?;
        let key = Key { pool: pool.to_owned(), kind: id.kind, id: (!is_default).then_some(id.id) };
        let known = self.ledger.lock().stored(&key);
        let limit = match change {
            QuotaChange::Limits { space, inodes } => {
                let mut limit = known.filter(|known| !known.is_default).unwrap_or_default();
                limit.grace_ends_s = known.map_or([0; 2], |known| known.grace_ends_s);
                for (slot, new) in limit.limits.iter_mut().zip([space, inodes]) {
                    *slot = new.unwrap_or(*slot);
                }
                if !limit.limits.iter().all(QuotaLimits::is_consistent) {
                    return Err(Status::EINVAL);
                }
                let is_nothing = space.is_none() && inodes.is_none() && known.is_none();
                (!is_nothing).then_some(limit)
            }
            QuotaChange::UseDefault | QuotaChange::Delete => None,
        };
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        put_limit(tx.batch(), &key, limit);
        // The ledger is changed after the commit; rounds that run meanwhile use the old limits.
        let answer = self.conclude(caller, tx, |ledger| ledger.set(key.clone(), limit))?;
        self.enforce();
        let state =
            if is_default { self.default_state(pool, id) } else { self.ledger.lock().state(pool, id) };
        log::info!("MDT{:04x}: quota of {} changed", self.leaves.index, shown(&key));
        Ok(MdsAnswer { transno: answer.transno, ..self.answer_state(state) })
    }

    fn set_graces(
        &self,
        caller: &Caller<'_>,
        kind: QuotaKind,
        space_s: Option<u64>,
        inodes_s: Option<u64>,
    ) -> StatusResult<MdsAnswer> {
        let all = [(QuotaResource::Space, space_s), (QuotaResource::Inodes, inodes_s)];
        let mut graces = self.ledger.lock().graces();
        for (resource, grace_s) in all {
            match grace_s {
                Some(grace_s) if grace_s > GRACE_MAX_S => return Err(Status::EINVAL),
                Some(grace_s) => graces[kind as usize][resource as usize] = grace_s,
                None => {}
            }
        }
        let mut tx = self.leaves.records.begin();
        tx.batch().set_releasing(true);
        tx.batch().put(META, QUOTA_GRACES_KEY, &GraceRecord(graces).encode());
        let answer = self.conclude(caller, tx, |ledger| {
            for (resource, grace_s) in all {
                grace_s.iter().for_each(|grace_s| ledger.set_grace(kind, resource, *grace_s));
            }
        })?;
        let reply = MdsReply::Quota(self.graces(kind));
        Ok(MdsAnswer { transno: answer.transno, ..self.core.commits.answer(reply) })
    }

    /// Commits a change durably, and applies it to the ledger.
    fn conclude(
        &self,
        caller: &Caller<'_>,
        tx: Tx,
        apply: impl FnOnce(&mut Ledger),
    ) -> StatusResult<MdsAnswer> {
        // One change at a time, in the order of their commits.
        let mut ledger = self.ledger.lock();
        let answer = self.core.commits.finish(caller, tx, MdsReply::Done)?;
        apply(&mut ledger);
        drop(ledger);
        self.leaves.records.sync(answer.transno)?;
        Ok(answer)
    }
}

/// Returns the id as the client has named it.
fn request_id(request: &QuotaRequest) -> Option<QuotaId> {
    match request {
        QuotaRequest::Get { id, .. } | QuotaRequest::Target { id, .. } | QuotaRequest::Set { id, .. } => {
            Some(*id)
        }
        QuotaRequest::Next { .. } | QuotaRequest::Grace { .. } | QuotaRequest::SetGrace { .. } => None,
    }
}

/// Returns true if a user may know the use of an id: its own, its groups', and that of projects.
fn is_own(caller: &Caller<'_>, id: QuotaId) -> bool {
    let cred = caller.cred();
    match id.kind {
        QuotaKind::User => cred.uid == id.id,
        QuotaKind::Group => {
            cred.gid == id.id || cred.full.as_ref().is_some_and(|full| full.groups.contains(&id.id))
        }
        QuotaKind::Project => true,
    }
}

fn shown(key: &Key) -> String {
    let of = key.id.map_or_else(|| "all others".to_owned(), |id| id.to_string());
    let pool = if key.pool.is_empty() { String::new() } else { format!(" in pool {}", key.pool) };
    format!("{} {of}{pool}", key.kind.name())
}
