//! The MDT's dialogue with the OSTs: allocation on OSTs, precreated object ids, and the destruction of
//! objects.
//!
//! Each OST has a thread of its own, so that an OST that is down does not delay others. The thread prepares
//! the OST after a start (destroys objects of lost transactions), keeps object ids in stock, refreshes its
//! free space and sends it the destroys in the log. Another thread monitors whether the OST answers
//! ([`watch`]). Evictions of clients are sent first, so that the OST fences them. Requests take ids from the
//! stock under the OST's lock, which they hold until their transaction is committed, so that the stored mark
//! of the last used id never decreases.

mod choose;
mod ost;
mod pools;
mod room;
mod rotation;
mod watch;
mod worker;

use crate::error::MdsError;
use crate::tables::OST_MARKS;
use choose::{Candidate, Chooser, Wanted};
use nacre_env::sync::{Mutex, MutexGuard, RwLock};
use nacre_layout::layout::stripes_per_ost;
use nacre_layout::{LayoutSpec, Pattern, PoolName, StripeObject};
use nacre_ondisk::OstMarkRecord;
use nacre_rpc::{ImportInfo, IoCall, OssEndpoint};
use nacre_store::{Batch, MetaStore};
use nacre_types::fid::SEQ_IDIF;
use nacre_types::limits::{STRIPE_COUNT_MAX, TARGET_INDEX_MAX};
use nacre_types::{ClientUuid, Fid, Status, StatusResult, TransNo};
use nacre_wire::mgs::PoolConfig;
use nacre_wire::oss::{Bulk, ObjectAttr, OssReply, OssRequest, OwnedObject};
use nacre_wire::quota::{QuotaReport, QuotaRound};
pub use ost::Reserved;
use ost::{Ost, OstState};

pub use choose::Qos;
use nacre_env::clock::Instant;
pub use pools::Pools;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The OSTs of a file system with their indexes.
pub type Osts = Vec<(u16, Arc<dyn OssEndpoint>)>;

/// Returns the sequence of the objects that MDT `mdt_index` creates on OST `ost_index`.
pub fn object_sequence(mdt_index: u16, ost_index: u16) -> u64 {
    match mdt_index {
        0 => SEQ_IDIF | (u64::from(ost_index) << 16),
        // The head of the MDT's own range, which clients never get.
        _ => Fid::first_sequence_of_mdt(mdt_index) + u64::from(ost_index),
    }
}

/// See the [module documentation](self).
pub struct OstSet {
    mdt_index: u16,
    store: Arc<MetaStore>,
    /// True while clients may replay layouts with objects above the marks.
    awaits_replay: Arc<AtomicBool>,
    qos: Mutex<Qos>,
    osts: RwLock<Vec<Arc<Ost>>>,
    pools: Pools,
    chooser: Mutex<Chooser>,
    /// Origin of the chooser's clock.
    began: Instant,
}

/// A component that needs objects.
pub struct Need {
    /// Its specification; the stripe count may stand for all OSTs, or a multiple of them.
    pub spec: LayoutSpec,
    /// Largest number of stripes that fits the layout.
    pub stripes_max: u16,
    /// Bytes that each OST must have free, as far as there are such OSTs.
    pub free_bytes: u64,
}

/// Returns the OSTs of a list, which must exist and have free space, in its order and, as in Lustre, from
/// `first` on.
fn exactly(candidates: &[Candidate], osts: &[u16], first: Option<u16>) -> StatusResult<Vec<u16>> {
    for index in osts {
        let found = candidates.iter().find(|candidate| candidate.index == *index);
        match found.ok_or(Status::EINVAL)? {
            found if found.inactive || found.away => return Err(Status::EREMOTEIO),
            found if found.full => return Err(Status::ENOSPC),
            _ => {}
        }
    }
    let mut osts = osts.to_vec();
    let begin = first.and_then(|first| osts.iter().position(|index| *index == first));
    osts.rotate_left(begin.unwrap_or(0));
    Ok(osts)
}

/// Marks of used ids that must be stored with a layout.
pub struct Marks(Vec<(u16, OstMarkRecord)>);

impl Marks {
    /// Adds the marks to the batch that stores the layout.
    pub fn put(&self, batch: &mut Batch) {
        for (index, mark) in &self.0 {
            batch.put(OST_MARKS, &index.to_be_bytes(), &mark.encode());
        }
    }
}

impl OstSet {
    /// Builds a set without OSTs. While it `awaits_replay`, clients may replay layouts with objects that are not
    /// known here, so OSTs destroy none ([`OstSet::end_replay`]).
    ///
    /// # Errors
    /// None yet; marks are read as OSTs are added.
    pub fn new(
        mdt_index: u16,
        store: Arc<MetaStore>,
        qos: Qos,
        awaits_replay: bool,
    ) -> Result<OstSet, MdsError> {
        Ok(OstSet {
            mdt_index,
            awaits_replay: Arc::new(AtomicBool::new(awaits_replay)),
            store,
            qos: Mutex::new(qos),
            osts: RwLock::default(),
            pools: Pools::default(),
            chooser: Mutex::new(Chooser::new(RandomState::new().hash_one(mdt_index))),
            began: Instant::now(),
        })
    }

    /// Records that no client replays a layout any more.
    pub fn end_replay(&self) {
        if self.awaits_replay.swap(false, Ordering::AcqRel) {
            self.osts.read().iter().for_each(|ost| ost.look_again_later());
        }
    }

    /// Takes objects for a replayed layout; returns the marks to be stored with it.
    ///
    /// # Errors
    /// `ESTALE` if one may belong to another file.
    pub fn claim(&self, objects: &[(u16, Fid)]) -> StatusResult<Marks> {
        let mut marks = Vec::new();
        for (index, object) in objects {
            let ost = self.osts.read().iter().find(|ost| ost.index == *index).cloned();
            marks.push((*index, ost.ok_or(Status::ESTALE)?.claim(object)?));
        }
        Ok(Marks(marks))
    }

    /// Adds OSTs, or replaces the endpoints of known ones.
    pub fn set(&self, osts: Osts) -> Result<(), MdsError> {
        for (index, endpoint) in osts {
            let known = self.osts.read().iter().find(|ost| ost.index == index).cloned();
            if let Some(ost) = known {
                ost.set_endpoint(endpoint);
                continue;
            }
            let ost = Arc::new(Ost::new(index, endpoint, self.stored_mark(index)?, &self.awaits_replay));
            worker::start(&ost, &self.store)?;
            watch::start(&ost)?;
            let mut all = self.osts.write();
            all.push(ost);
            all.sort_by_key(|ost| ost.index);
        }
        Ok(())
    }

    fn stored_mark(&self, index: u16) -> Result<OstMarkRecord, MdsError> {
        let found =
            self.store.get(OST_MARKS, &index.to_be_bytes(), |value| value.map(OstMarkRecord::decode))?;
        match found {
            Some(Ok(mark)) => Ok(mark),
            Some(Err(source)) => Err(MdsError::Damaged { what: "OST mark", source }),
            None => Ok(OstMarkRecord { sequence: object_sequence(self.mdt_index, index), last_used: 0 }),
        }
    }

    /// Sets the pools.
    pub fn set_pools(&self, pools: &[PoolConfig]) {
        self.pools.set(pools);
        self.chooser.lock().retain_pools(|name| pools.iter().any(|pool| pool.name == *name));
    }

    /// Returns the pools with their spill rules.
    pub fn spilling(&self) -> &Pools {
        &self.pools
    }

    /// Returns the parameters for the choice of OSTs.
    pub fn qos(&self) -> Qos {
        *self.qos.lock()
    }

    /// Changes the parameters for the choice of OSTs.
    pub fn change_qos(&self, change: impl FnOnce(&mut Qos)) {
        change(&mut self.qos.lock());
    }

    /// Returns the used space of these OSTs in percent, rounded down; 0 if it is unknown.
    pub fn used_pct(&self, osts: &[u16]) -> u8 {
        let all = self.osts.read().clone();
        let age = self.qos.lock().statfs_age;
        let candidates = all.iter().filter(|ost| osts.contains(&ost.index)).map(|ost| ost.candidate(age));
        let (mut used, mut whole) = (0u128, 0u128);
        for (in_use, available) in candidates.filter_map(|c| c.used.zip(c.available)) {
            used += u128::from(in_use);
            whole += u128::from(in_use) + u128::from(available);
        }
        u8::try_from((used * 100).checked_div(whole).unwrap_or(0)).unwrap_or(100)
    }

    /// Returns true if a pool spills at present.
    ///
    /// # Errors
    /// `ENOENT` without the pool.
    pub fn spill_is_active(&self, pool: &str) -> StatusResult<bool> {
        self.pools.spill_is_active(pool, |osts| self.used_pct(osts))
    }

    /// Returns the pool that new objects for `pool` come from: itself, or the one it spills to.
    pub fn spilled(&self, pool: Option<PoolName>) -> Option<PoolName> {
        pool.map(|pool| self.pools.spill(pool, |osts| self.used_pct(osts)))
    }

    /// Returns the configuration of all pools.
    pub fn pools(&self) -> Vec<PoolConfig> {
        self.pools.all()
    }

    /// Returns true if there is an OST with this index and, if a pool with OSTs is given, in that pool.
    pub fn exists(&self, index: u16, pool: Option<PoolName>) -> bool {
        index < TARGET_INDEX_MAX
            && self.osts.read().iter().any(|ost| ost.index == index)
            && self.pools.members(pool).is_none_or(|members| members.contains(&index))
    }

    /// Returns the indexes of the OSTs.
    pub fn indexes(&self) -> Vec<u16> {
        self.usable().iter().map(|ost| ost.index).collect()
    }

    fn with<R>(&self, index: u16, act: impl FnOnce(&Ost) -> R) -> StatusResult<R> {
        let found = self.usable().into_iter().find(|ost| ost.index == index);
        found.map(|ost| act(&ost)).ok_or(Status::ENODEV)
    }

    /// Returns false for a deactivated OST.
    ///
    /// # Errors
    /// `ENODEV` without such an OST.
    pub fn is_active(&self, index: u16) -> StatusResult<bool> {
        self.with(index, |ost| !ost.state.lock().inactive)
    }

    /// Deactivates or reactivates an OST. A deactivated OST gets no new objects, requests do not wait for it,
    /// and destroys are queued until it is active again.
    ///
    /// # Errors
    /// `ENODEV` without such an OST.
    pub fn set_active(&self, index: u16, active: bool) -> StatusResult<()> {
        self.with(index, |ost| ost.set_active(active))
    }

    /// Returns the largest number of ids precreated at a time; 0 for an OST that gets no new objects.
    ///
    /// # Errors
    /// `ENODEV` without such an OST.
    pub fn create_count_max(&self, index: u16) -> StatusResult<u32> {
        self.with(index, |ost| ost.state.lock().create_count_max)
    }

    /// Sets that number.
    ///
    /// # Errors
    /// `ENODEV` without such an OST, `ERANGE` beyond the limit.
    pub fn set_create_count_max(&self, index: u16, count: u32) -> StatusResult<()> {
        if count > ost::STOCK_MAX {
            return Err(Status::ERANGE);
        }
        self.with(index, |ost| ost.state.lock().create_count_max = count)
    }

    /// Returns the object ids precreated at an OST.
    ///
    /// # Errors
    /// `ENODEV` without such an OST.
    pub fn reserved(&self, index: u16) -> StatusResult<Reserved> {
        self.with(index, Ost::reserved)
    }

    /// Returns the state of the import of an OST; `None` if the OST is in this process.
    ///
    /// # Errors
    /// `ENODEV` without such an OST.
    pub fn import(&self, index: u16) -> StatusResult<Option<ImportInfo>> {
        self.with(index, |ost| ost.endpoint().import())
    }

    /// Returns the OSTs that take objects: all but the data part of this MDT, which only gets evictions.
    fn usable(&self) -> Vec<Arc<Ost>> {
        self.osts.read().iter().filter(|ost| ost.index < TARGET_INDEX_MAX).cloned().collect()
    }

    /// Waits for the end of the threads, at most for `timeout`.
    pub fn wait_stopped(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        for ost in self.osts.read().iter() {
            ost.wait_finished(until);
        }
    }

    /// Ends the threads, each after its current request.
    pub fn stop(&self) {
        for ost in self.osts.read().iter() {
            ost.stop();
        }
    }

    /// Waits until all queued destroys are done, at most for `timeout`.
    pub fn drain(&self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let all = self.osts.read().clone();
        all.iter().for_each(|ost| ost.hurry());
        all.iter().for_each(|ost| ost.wait_destroyed(until));
    }

    /// Reports these evicted clients to every OST, which fences them and drops their locks. Returns the
    /// indexes of the OSTs that have not acknowledged that within `timeout`; they get it before any other
    /// request.
    pub fn evict(&self, clients: &[ClientUuid], timeout: Duration) -> Vec<u16> {
        let until = Instant::now() + timeout;
        let all = self.osts.read().clone();
        for ost in &all {
            clients.iter().for_each(|client| ost.evict_later(*client));
        }
        all.iter().filter(|ost| !ost.wait_evicted(until)).map(|ost| ost.index).collect()
    }

    /// Reports an eviction without waiting, for a client that can send nothing any more.
    pub fn evict_later(&self, client: ClientUuid) {
        self.osts.read().iter().for_each(|ost| ost.evict_later(client));
    }

    /// Destroys an object once the transaction that logged it is durable.
    pub fn destroy_later(&self, ost_index: u16, transno: TransNo, object: Fid) {
        if let Some(ost) = self.osts.read().iter().find(|ost| ost.index == ost_index) {
            ost.destroy_later(transno, object);
        }
    }

    /// Sends new owners of an object once the transaction that logged them is durable.
    pub fn set_owners_later(&self, ost_index: u16, transno: TransNo, owned: OwnedObject) {
        if let Some(ost) = self.osts.read().iter().find(|ost| ost.index == ost_index) {
            ost.set_owners_later(transno, owned);
        }
    }

    /// Sends a request to an OST that is not deactivated, and waits for a limited time.
    ///
    /// # Errors
    /// `ENODEV` without such an OST; those of the OST.
    pub fn call(&self, index: u16, request: &OssRequest) -> StatusResult<OssReply> {
        let ost = self.usable().into_iter().find(|ost| ost.index == index).ok_or(Status::ENODEV)?;
        nacre_env::blocking(|| ost.call(request))
    }

    /// Exchanges quota slices for uses with an OST, within `timeout`.
    ///
    /// # Errors
    /// `ENODEV` without such an OST, `EIO` for a deactivated one, `EPROTO`; those of the OST.
    pub fn quota_round(
        &self,
        index: u16,
        round: &QuotaRound,
        timeout: Duration,
    ) -> StatusResult<QuotaReport> {
        let endpoint =
            self.with(
                index,
                |ost| {
                    if ost.state.lock().inactive { Err(Status::EIO) } else { Ok(ost.endpoint()) }
                },
            )??;
        let request = OssRequest::QuotaRound { round: round.clone() };
        match nacre_env::blocking(|| endpoint.call_within(&request, timeout))? {
            OssReply::Quota(report) => Ok(report),
            _ => Err(Status::EPROTO),
        }
    }

    /// Chooses the OSTs for `spec`, in stripe order; none if no OST is usable at present but one may be soon.
    fn choose(&self, candidates: &[Candidate], need: &Need, used: &[u16]) -> StatusResult<Vec<u16>> {
        let spec = &need.spec;
        let members = self.pools.members(spec.real_pool());
        let is_member = |c: &&Candidate| members.as_ref().is_none_or(|members| members.contains(&c.index));
        let mut candidates: Vec<Candidate> = candidates.iter().filter(is_member).copied().collect();
        if candidates.iter().any(|c| c.has_free(need.free_bytes)) {
            candidates.iter_mut().for_each(|c| c.full |= !c.has_free(need.free_bytes));
        }
        if spec.first_ost.is_some_and(|first| !candidates.iter().any(|c| c.index == first)) {
            return Err(Status::EINVAL);
        }
        if !spec.osts.is_empty() {
            return exactly(&candidates, &spec.osts, spec.first_ost);
        }
        if candidates.iter().all(|c| c.full) && (members.is_some() || !candidates.is_empty()) {
            return Err(Status::ENOSPC);
        }
        let up = candidates.iter().filter(|c| !c.full && !c.down).count();
        let count = match spec.stripe_count.map(|count| (count, stripes_per_ost(count))) {
            None => 1,
            Some((count, None)) => usize::from(count),
            // As many as the chooser finds; overstriping would repeat them up to that number.
            Some((_, Some(1))) if spec.pattern != Pattern::Overstriped => usize::from(STRIPE_COUNT_MAX),
            Some((_, Some(several))) => up.max(1) * usize::from(several),
        };
        let count = count.min(usize::from(need.stripes_max)) as u16;
        let pool = spec.real_pool().filter(|_| members.is_some());
        let wanted = Wanted { count, first: spec.first_ost, used, pool };
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let qos = *self.qos.lock();
        let places = self.chooser.lock().choose(&candidates, &wanted, &qos, now_ms);
        let osts: Vec<u16> = places.into_iter().map(|place| candidates[place].index).collect();
        Ok(match spec.pattern {
            // Repeated rounds over the same OSTs.
            Pattern::Overstriped => osts.iter().copied().cycle().take(usize::from(count)).collect(),
            _ => osts,
        })
    }

    /// Reads the attributes of objects from their OSTs, with the versions of their data, in the given order.
    ///
    /// A deactivated OST is asked too: its objects can be read, so they can be moved away.
    ///
    /// # Errors
    /// `EIO` for an OST that is unknown, or deactivated and unresponsive; `EINTR`; those of an OST.
    pub fn ask<'a>(
        &self,
        objects: impl Iterator<Item = &'a StripeObject>,
    ) -> StatusResult<Vec<(ObjectAttr, u64)>> {
        let all = self.osts.read().clone();
        let (mut asked, mut heard) = (Vec::new(), Vec::new());
        for object in objects {
            let ost = all.iter().find(|ost| ost.index == object.ost_index).ok_or(Status::EIO)?;
            if !heard.contains(&ost.index) {
                ost.hear_evictions()?;
                heard.push(ost.index);
            }
            asked.push((ost, OssRequest::DataVersion { object: object.object }));
        }
        let known = |reply| match reply {
            Ok(OssReply::Version { attr, version }) => Ok((attr, version)),
            Ok(_) => Err(Status::EPROTO),
            Err(status) => Err(status),
        };
        // One OST that does not answer determines the result, so deactivated ones are asked first, one after
        // the other.
        let is_out = |ost: &Ost| ost.state.lock().inactive;
        let mut answers = Vec::with_capacity(asked.len());
        for (ost, request) in &asked {
            let answer = is_out(ost).then(|| known(ost.endpoint().call_out_of_use(request)));
            answers.push(answer.transpose()?);
        }
        let missing = asked.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let endpoints: Vec<_> = missing.map(|((ost, request), _)| (ost.endpoint(), request)).collect();
        let calls = endpoints.iter().map(|(endpoint, request)| IoCall {
            endpoint: &**endpoint,
            request: (*request).clone(),
            bulk: Bulk::None,
        });
        let mut others = nacre_rpc::run_all(calls.collect()).into_iter().map(known);
        answers.into_iter().map(|known| known.map_or_else(|| others.next().ok_or(Status::EIO)?, Ok)).collect()
    }

    /// Returns true for an OST that is unresponsive or deactivated. Called without locks on OSTs.
    pub fn is_silent(&self, index: u16) -> bool {
        nacre_env::blocking(|| self.with(index, |ost| ost.state.lock().inactive || !ost.answers()))
            .unwrap_or(false)
    }

    /// Picks OSTs and object ids for each of `wanted`, avoiding the OSTs in `used` and each other's as far as
    /// there are enough, and runs `commit` with them, which must store the layout and the marks in one
    /// transaction. If it fails, the ids return to the stock.
    ///
    /// # Errors
    /// `EINVAL` if a requested OST does not exist or is not in the pool, `ENOSPC` if all OSTs that may be
    /// used are full, `EIO` if none can be reached in time, `EINTR`, or those of `commit`.
    pub fn with_objects<R>(
        &self,
        wanted: &[Need],
        used: &[u16],
        timeout: Duration,
        commit: impl FnOnce(Vec<Vec<StripeObject>>, &Marks) -> StatusResult<R>,
    ) -> StatusResult<R> {
        let deadline = Instant::now() + timeout;
        let mut looked_again = false;
        let mut asked: Vec<u16> = Vec::new();
        'again: loop {
            let all = self.usable();
            let age = self.qos.lock().statfs_age;
            let candidates: Vec<Candidate> = all.iter().map(|ost| ost.candidate(age)).collect();
            let mut used = used.to_vec();
            let mut chosen: Vec<Vec<&Arc<Ost>>> = Vec::with_capacity(wanted.len());
            for need in wanted {
                let osts = match self.choose(&candidates, need, &used) {
                    // The known free space may be outdated.
                    Err(Status::ENOSPC) if !looked_again => {
                        looked_again = true;
                        nacre_env::blocking(|| all.iter().for_each(|ost| ost.look_again()));
                        continue 'again;
                    }
                    chosen => chosen?,
                };
                used.extend(&osts);
                chosen.push(
                    osts.iter().filter_map(|index| all.iter().find(|ost| ost.index == *index)).collect(),
                );
            }
            if nacre_env::blocking(|| any_is_silent(&chosen, &mut asked)) {
                continue 'again;
            }
            if let Some(mut taken) = Taken::take(&chosen) {
                let objects = std::mem::take(&mut taken.objects);
                let result = commit(objects, &taken.marks());
                taken.end(result.is_ok());
                return result;
            }
            let patient = nacre_env::blocking(|| prepare_some(&chosen, &all, deadline));
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            if !patient {
                return Err(Status::EIO);
            }
        }
    }
}

/// An OST whose ids are being allocated, with those allocated so far.
struct Source<'a> {
    ost: &'a Arc<Ost>,
    state: MutexGuard<'a, OstState>,
    /// Largest id in use before.
    before: u32,
    ids: Vec<u32>,
}

/// Ids for several components, held until the transaction that stores them has ended.
struct Taken<'a> {
    sources: Vec<Source<'a>>,
    objects: Vec<Vec<StripeObject>>,
}

impl<'a> Taken<'a> {
    /// Takes one id for each place, all or none. Locks are taken by index, so that requests do not deadlock.
    fn take(chosen: &[Vec<&'a Arc<Ost>>]) -> Option<Taken<'a>> {
        if chosen.iter().any(Vec::is_empty) {
            return None;
        }
        let needs = needs(chosen);
        let mut sources: Vec<Source<'_>> = Vec::with_capacity(needs.len());
        for (ost, count) in needs {
            let state = ost.state.lock();
            if !state.has_ids(count) {
                return None;
            }
            sources.push(Source { ost, before: state.last_used, state, ids: Vec::new() });
        }
        let mut objects: Vec<Vec<StripeObject>> = Vec::with_capacity(chosen.len());
        for osts in chosen {
            let mut stripes = Vec::with_capacity(osts.len());
            for ost in osts {
                let place = sources.binary_search_by_key(&ost.index, |source| source.ost.index).ok()?;
                let source = &mut sources[place];
                let oid = source.state.take()?;
                source.ids.push(oid);
                let object = Fid::new(source.state.sequence, oid, 0);
                stripes.push(StripeObject::new(ost.index, object));
            }
            objects.push(stripes);
        }
        Some(Taken { sources, objects })
    }

    fn marks(&self) -> Marks {
        let mark = |source: &Source<'_>| {
            let OstState { sequence, last_used, .. } = *source.state;
            (source.ost.index, OstMarkRecord { sequence, last_used })
        };
        Marks(self.sources.iter().map(mark).collect())
    }

    fn end(self, committed: bool) {
        for mut source in self.sources {
            if !committed {
                source.state.give_back(source.before, &source.ids);
            }
            source.ost.refill_if_low(&source.state);
        }
    }
}

/// Returns the chosen OSTs, by index, with the number of ids needed from each.
fn needs<'a>(chosen: &[Vec<&'a Arc<Ost>>]) -> Vec<(&'a Arc<Ost>, u32)> {
    let mut needs: Vec<(&Arc<Ost>, u32)> = Vec::new();
    for ost in chosen.iter().flatten() {
        match needs.binary_search_by_key(&ost.index, |(known, _)| known.index) {
            Ok(place) => needs[place].1 += 1,
            Err(place) => needs.insert(place, (ost, 1)),
        }
    }
    needs
}

/// Returns true if one of the chosen OSTs turns out to be unresponsive: then others are chosen. Each is asked
/// once, so that it is used regardless if no other is left.
fn any_is_silent(chosen: &[Vec<&Arc<Ost>>], asked: &mut Vec<u16>) -> bool {
    let mut any = false;
    for (ost, _) in needs(chosen) {
        if !asked.contains(&ost.index) {
            asked.push(ost.index);
            any |= !ost.answers();
        }
    }
    any
}

/// Refills the stock of the OSTs that lack ids, or waits for a short time if that fails; returns false after
/// the deadline.
fn prepare_some(chosen: &[Vec<&Arc<Ost>>], all: &[Arc<Ost>], deadline: Instant) -> bool {
    let mut any = false;
    for (ost, count) in needs(chosen) {
        any |= ost.prepare(count).is_ok();
    }
    if any {
        return true;
    }
    // The chosen OSTs are unreachable, so another round chooses others; without others it waits for a change, as it
    // does while clients may replay layouts.
    // Their state has not changed since they were chosen.
    let is_out = |ost: &Arc<Ost>| {
        let candidate = ost.candidate(Duration::MAX);
        candidate.down || candidate.full
    };
    if all.iter().all(is_out) || chosen.iter().flatten().any(|ost| ost.awaits_replay()) {
        let Some(ost) = all.first() else { return false };
        ost.wait_for_change(deadline.min(Instant::now() + Duration::from_millis(200)));
    }
    Instant::now() < deadline
}
