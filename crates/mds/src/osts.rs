//! The dialogue with the OSTs: which ones new files use, object ids in stock, and the destruction of objects.
//!
//! Each OST has a thread of its own, so that one that is down holds up nobody else. The thread prepares the OST after a
//! start (destroys objects of transactions that were lost), keeps object ids in stock, refreshes its free space and sends
//! it what the destroy log holds. Clients that were evicted come first: what they still write is to be refused. Requests take ids from the stock under the OST's lock, which they hold until their
//! transaction is committed, so that the stored mark of the last used id never goes back.

mod choose;
mod ost;
mod worker;

use crate::error::MdsError;
use crate::mds::Osts;
use crate::tables::OST_MARKS;
use choose::Candidate;
use nacre_layout::layout::STRIPE_COUNT_ALL;
use nacre_layout::{LayoutSpec, StripeObject};
use nacre_ondisk::OstMarkRecord;
use nacre_store::{Batch, MetaStore};
use nacre_types::fid::SEQ_IDIF;
use nacre_types::limits::STRIPE_COUNT_MAX;
use nacre_types::{ClientUuid, Fid, Status, StatusResult, TransNo};
use ost::{Ost, OstState};
use parking_lot::{MutexGuard, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Sequence of the objects that MDT `mdt_index` makes on OST `ost_index`.
fn object_sequence(mdt_index: u16, ost_index: u16) -> u64 {
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
    even_within_percent: u8,
    osts: RwLock<Vec<Arc<Ost>>>,
    /// Position of the next round-robin allocation, and the source of random numbers for the weighted one.
    turn: AtomicU64,
}

/// The marks that must be stored with a layout.
pub struct Marks(Vec<(u16, OstMarkRecord)>);

impl Marks {
    /// Adds them to the batch that stores the layout.
    pub fn put(&self, batch: &mut Batch) {
        for (index, mark) in &self.0 {
            batch.put(OST_MARKS, &index.to_be_bytes(), &mark.encode());
        }
    }
}

impl OstSet {
    /// A set without OSTs.
    ///
    /// # Errors
    /// None yet; marks are read as OSTs are added.
    pub fn new(mdt_index: u16, store: Arc<MetaStore>, even_within_percent: u8) -> Result<OstSet, MdsError> {
        Ok(OstSet { mdt_index, store, even_within_percent, osts: RwLock::default(), turn: AtomicU64::new(0) })
    }

    /// Adds OSTs, or gives known ones a new endpoint.
    pub fn set(&self, osts: Osts) -> Result<(), MdsError> {
        for (index, endpoint) in osts {
            let known = self.osts.read().iter().find(|ost| ost.index == index).cloned();
            if let Some(ost) = known {
                ost.set_endpoint(endpoint);
                continue;
            }
            let ost = Arc::new(Ost::new(index, endpoint, self.stored_mark(index)?));
            worker::start(&ost, &self.store)?;
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

    /// True if there is an OST with this index.
    pub fn exists(&self, index: u16) -> bool {
        self.osts.read().iter().any(|ost| ost.index == index)
    }

    /// Waits for the threads to end, but no longer than `patience`.
    pub fn wait_stopped(&self, patience: Duration) {
        let until = Instant::now() + patience;
        for ost in self.osts.read().iter() {
            ost.wait_finished(until);
        }
    }

    /// Ends the threads; those in the middle of a request end after it.
    pub fn stop(&self) {
        for ost in self.osts.read().iter() {
            ost.stop();
        }
    }

    /// Has everything destroyed that waits for it, and waits until it is, but no longer than `patience`.
    pub fn drain(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let all = self.osts.read().clone();
        all.iter().for_each(|ost| ost.hurry());
        all.iter().for_each(|ost| ost.wait_destroyed(until));
    }

    /// Has every OST drop these clients, whose data and locks are not to count any more. Gives the indexes of those that
    /// have not heard of it after `patience`; they hear of it before they are asked for anything else.
    pub fn evict(&self, clients: &[ClientUuid], patience: Duration) -> Vec<u16> {
        let until = Instant::now() + patience;
        let all = self.osts.read().clone();
        for ost in &all {
            clients.iter().for_each(|client| ost.evict_later(*client));
        }
        all.iter().filter(|ost| !ost.wait_evicted(until)).map(|ost| ost.index).collect()
    }

    /// The same without waiting, for a client that can send nothing any more.
    pub fn evict_later(&self, client: ClientUuid) {
        self.osts.read().iter().for_each(|ost| ost.evict_later(client));
    }

    /// Destroys an object once the transaction that logged it is durable.
    pub fn destroy_later(&self, ost_index: u16, transno: TransNo, object: Fid) {
        if let Some(ost) = self.osts.read().iter().find(|ost| ost.index == ost_index) {
            ost.destroy_later(transno, object);
        }
    }

    /// Picks OSTs and object ids for `spec` and runs `commit` with them, which must store the layout and the marks in one
    /// transaction. If it fails, the ids go back.
    ///
    /// # Errors
    /// `EINVAL` if the wanted first OST does not exist, `ENOSPC` if all OSTs are full, `EIO` if none can be reached in
    /// time, `EINTR`, or what `commit` says.
    pub fn with_objects<R>(
        &self,
        spec: &LayoutSpec,
        patience: Duration,
        commit: impl FnOnce(Vec<StripeObject>, &Marks) -> StatusResult<R>,
    ) -> StatusResult<R> {
        let deadline = Instant::now() + patience;
        loop {
            let all = self.osts.read().clone();
            if spec.first_ost.is_some_and(|index| !all.iter().any(|ost| ost.index == index)) {
                return Err(Status::EINVAL);
            }
            let candidates: Vec<Candidate> = all.iter().map(|ost| ost.candidate()).collect();
            if !candidates.is_empty() && candidates.iter().all(|candidate| candidate.full) {
                return Err(Status::ENOSPC);
            }
            let wanted = match spec.stripe_count {
                Some(STRIPE_COUNT_ALL) => STRIPE_COUNT_MAX,
                Some(count) => count,
                None => 1,
            };
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            let chosen = choose::choose(&candidates, wanted, spec.first_ost, self.even_within_percent, turn);
            let chosen: Vec<&Arc<Ost>> = chosen.into_iter().map(|place| &all[place]).collect();
            if let Some((mut locked, objects, marks)) = take_ids(&chosen) {
                let result = commit(objects, &marks);
                if result.is_err() {
                    locked.iter_mut().for_each(|(_, state)| state.give_back());
                }
                for (ost, state) in locked {
                    ost.refill_if_low(&state);
                }
                return result;
            }
            let patient = nacre_env::blocking(|| prepare_one(&chosen, &all, deadline));
            if nacre_env::interrupted() {
                return Err(Status::EINTR);
            }
            if !patient {
                return Err(Status::EIO);
            }
        }
    }
}

type Taken<'a> = (Vec<(&'a Arc<Ost>, MutexGuard<'a, OstState>)>, Vec<StripeObject>, Marks);

/// Takes one id of each OST, all or none. Locks are taken by index, so that requests do not deadlock.
fn take_ids<'a>(chosen: &[&'a Arc<Ost>]) -> Option<Taken<'a>> {
    if chosen.is_empty() {
        return None;
    }
    let mut order: Vec<&Arc<Ost>> = chosen.to_vec();
    order.sort_by_key(|ost| ost.index);
    let mut locked: Vec<(&Arc<Ost>, MutexGuard<'_, OstState>)> =
        order.into_iter().map(|ost| (ost, ost.state.lock())).collect();
    if !locked.iter().all(|(_, state)| state.has_ids()) {
        return None;
    }
    let mut marks = Vec::with_capacity(locked.len());
    let mut objects = vec![None; chosen.len()];
    for (ost, state) in &mut locked {
        let oid = state.take()?;
        marks.push((ost.index, OstMarkRecord { sequence: state.sequence, last_used: oid }));
        let place = chosen.iter().position(|other| other.index == ost.index)?;
        let object = Fid::new(state.sequence, oid, 0);
        objects[place] = Some(StripeObject { ost_index: ost.index, object });
    }
    Some((locked, objects.into_iter().flatten().collect(), Marks(marks)))
}

/// Fills the stock of the OSTs that lack ids, or waits a little if that fails; false when time is up.
fn prepare_one(chosen: &[&Arc<Ost>], all: &[Arc<Ost>], deadline: Instant) -> bool {
    let mut any = false;
    for ost in chosen {
        any |= ost.prepare().is_ok();
    }
    if any {
        return true;
    }
    // Those chosen are out of reach, so another round chooses others; if there are none, wait for a change.
    if all.iter().all(|ost| ost.candidate().down || ost.candidate().full) {
        let Some(ost) = all.first() else { return false };
        ost.wait_for_change(deadline.min(Instant::now() + Duration::from_millis(200)));
    }
    Instant::now() < deadline
}
