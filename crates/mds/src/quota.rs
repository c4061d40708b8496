//! Inodes and space on this MDT by owner, and the limits of their use.
//!
//! Each commit adds the difference between the old and the new records of its inodes. The space of a file on this MDT
//! is what its record says of the component here, so it follows a write with the next report of its size. At a clean
//! stop the uses are stored; after a crash all records are read again, in the background: a commit counts for inodes
//! that the reader has passed.

pub(crate) mod master;

use crate::error::MdsError;
use crate::records::Records;
use crate::signal::StopSignal;
use crate::suspend::Caller;
use crate::tables::{INODES, QUOTA_USES};
use crate::tx::Tx;
use nacre_env::sync::{Mutex, RwLock, RwLockReadGuard};
use nacre_env::thread::JoinHandle;
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_ondisk::quota::{UseRecord, split_use_key, use_key};
use nacre_quota::{Admission, Book, Saved};
use nacre_store::{Batch, MetaError, MetaStore};
use nacre_types::{AttrFlags, Fid, Owners, QuotaId, QuotaResource, Status, StatusResult};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Inodes that one step of the count after a crash reads.
const COUNT_STEP: usize = 1024;
/// Bytes of an `st_blocks` unit.
const BLOCK_BYTES: u64 = 512;
/// Interval at which uses are stored for a start after a crash.
const SAVED_EVERY: Duration = Duration::from_secs(5);

/// What an inode costs its owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cost {
    owners: Owners,
    /// Bytes of its data on this MDT.
    bytes: u64,
}

impl Cost {
    fn of(record: &InodeRecord) -> Cost {
        Cost { owners: Owners::from(&record.attr), bytes: data_here(record) }
    }
}

/// Returns the bytes that a file takes on its MDT: all of its space, up to the end of the component there.
fn data_here(record: &InodeRecord) -> u64 {
    if !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) || !record.attr.is_regular() {
        return 0;
    }
    // A damaged layout is reported by those who need it.
    let Ok(layout) = user::decode_layout(&record.body) else { return 0 };
    if layout.object_on_mdt().is_none() {
        return 0;
    }
    let room = layout.components.first().map_or(0, |component| component.extent.end);
    record.attr.blocks.saturating_mul(BLOCK_BYTES).min(room)
}

/// The change of one inode's cost.
struct Change {
    fid: Fid,
    old: Option<Cost>,
    new: Option<Cost>,
}

/// How far the count after a crash has come.
enum Counting {
    /// All inodes up to this one are counted.
    Upto(Option<Fid>),
    Done,
}

impl Counting {
    fn has_passed(&self, fid: &Fid) -> bool {
        match self {
            Counting::Done => true,
            Counting::Upto(last) => last.is_some_and(|last| *fid <= last),
        }
    }
}

/// See the [module documentation](self).
pub(crate) struct Quotas {
    index: u16,
    store: Arc<MetaStore>,
    book: Arc<Book>,
    counting: RwLock<Counting>,
    is_counted: AtomicBool,
    saved: Mutex<HashMap<(QuotaResource, QuotaId), Saved>>,
}

/// Changes of a transaction, which take effect with its commit.
#[must_use = "the changes are counted after the commit"]
pub(crate) struct Uncommitted<'a> {
    quotas: &'a Quotas,
    changes: SmallVec<[Change; 2]>,
    counting: Option<RwLockReadGuard<'a, Counting>>,
}

impl Uncommitted<'_> {
    /// Returns the files with objects that get other owners.
    pub fn moved(&self) -> impl Iterator<Item = (Fid, Owners)> + '_ {
        self.changes.iter().filter_map(|change| {
            let (old, new) = (change.old?, change.new?);
            (old.owners != new.owners).then_some((change.fid, new.owners))
        })
    }

    /// Counts the changes, which are committed.
    pub fn commit(self) {
        for Change { fid, old, new } in &self.changes {
            let is_passed = self.counting.as_ref().is_none_or(|counting| counting.has_passed(fid));
            let how = if is_passed { Book::add } else { Book::assume };
            self.quotas.change(how, old.as_ref(), -1);
            self.quotas.change(how, new.as_ref(), 1);
        }
    }
}

impl Quotas {
    /// Opens the uses of the last run, which are exact if it `was_clean`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(store: &Arc<MetaStore>, index: u16, was_clean: bool) -> Result<Quotas, MdsError> {
        // The standard library's hasher gets its keys from the system.
        let book = Arc::new(Book::new(RandomState::new().build_hasher().finish() | 1, 1));
        let (saved, is_whole) = saved(store)?;
        let is_exact = was_clean && is_whole;
        match is_exact {
            true => book.adopt(&saved),
            false => book.restore(&saved),
        }
        if is_exact {
            book.complete_part();
        }
        let counting = if is_exact { Counting::Done } else { Counting::Upto(None) };
        Ok(Quotas {
            index,
            store: store.clone(),
            book,
            counting: RwLock::new(counting),
            is_counted: AtomicBool::new(is_exact),
            saved: Mutex::new(saved.into_iter().map(|saved| ((saved.resource, saved.id), saved)).collect()),
        })
    }

    /// Returns what this MDT has counted.
    pub fn book(&self) -> &Arc<Book> {
        &self.book
    }

    fn change(&self, how: fn(&Book, QuotaResource, Owners, i64), cost: Option<&Cost>, sign: i64) {
        let Some(Cost { owners, bytes }) = cost else { return };
        how(&self.book, QuotaResource::Inodes, *owners, sign);
        if *bytes > 0 {
            how(&self.book, QuotaResource::Space, *owners, sign * i64::try_from(*bytes).unwrap_or(i64::MAX));
        }
    }

    /// Collects what a transaction changes, before its commit.
    pub fn begin(&self, tx: &Tx, records: &Records) -> Uncommitted<'_> {
        let mut changes: SmallVec<[Change; 2]> = SmallVec::new();
        for (place, (fid, new)) in tx.cached().iter().enumerate() {
            // The last record of an inode counts.
            if tx.cached()[place + 1..].iter().any(|(later, _)| later == fid) {
                continue;
            }
            // A damaged record must not keep its inode from being repaired or removed; the next count is right.
            let old = if tx.is_new(fid) { None } else { records.find_inode(fid).unwrap_or_default() };
            let change = match (&old, new) {
                (Some(old), Some(new)) if is_same_cost(old, new) => continue,
                (old, new) => {
                    Change { fid: *fid, old: old.as_deref().map(Cost::of), new: new.as_deref().map(Cost::of) }
                }
            };
            if change.old != change.new {
                changes.push(change);
            }
        }
        let is_counted = changes.is_empty() || self.is_counted.load(Ordering::Acquire);
        let counting = (!is_counted).then(|| self.counting.read());
        Uncommitted { quotas: self, changes, counting }
    }

    /// Admits the new inodes and owners of a transaction of a client, or waits until it is clear that it may not.
    ///
    /// # Errors
    /// `EDQUOT`; `EINTR`; those of the store.
    pub fn admit(&self, caller: &Caller<'_>, tx: &Tx, records: &Records) -> StatusResult<()> {
        if self.is_unlimited(caller) {
            return Ok(());
        }
        for (fid, new) in tx.cached() {
            let Some(new) = new else { continue };
            let owners = Owners::from(&new.attr);
            let old = if tx.is_new(fid) { None } else { records.find_inode(fid)? };
            if old.is_some_and(|old| Owners::from(&old.attr) == owners) {
                continue;
            }
            self.admit_one(QuotaResource::Inodes, owners, 1)?;
        }
        Ok(())
    }

    /// Admits a new inode of these owners, which may be on another MDT: the slice here shows whether there is more.
    ///
    /// # Errors
    /// `EDQUOT`; `EINTR`.
    pub fn admit_new(&self, caller: &Caller<'_>, owners: Owners) -> StatusResult<()> {
        if self.is_unlimited(caller) { Ok(()) } else { self.admit_one(QuotaResource::Inodes, owners, 1) }
    }

    /// Whether no limit applies to a caller: root.
    fn is_unlimited(&self, caller: &Caller<'_>) -> bool {
        !self.book.has_limits() || caller.cred().uid == 0 || caller.export.is_server
    }

    /// Admits more use of a resource by owners.
    ///
    /// # Errors
    /// `EDQUOT`; `EINTR`.
    pub fn admit_one(&self, resource: QuotaResource, owners: Owners, amount: u64) -> StatusResult<()> {
        if !self.book.has_limits() {
            return Ok(());
        }
        let payers = self.book.payers(resource, owners);
        match self.book.admission(resource, &payers, amount, 0) {
            Admission::Free | Admission::Near => Ok(()),
            Admission::Over(_) => self.book.wait(resource, &payers, amount, || ()),
        }
    }

    /// Counts all inodes after a crash, in steps that delay no request for long. Returns the counting thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start_count(
        self: &Arc<Self>,
        signal: &Arc<StopSignal>,
    ) -> Result<Option<JoinHandle<()>>, MdsError> {
        if self.is_counted.load(Ordering::Acquire) {
            return Ok(None);
        }
        let (weak, signal) = (Arc::downgrade(self), signal.clone());
        let count = move || {
            while let Some(quotas) = weak.upgrade()
                && !signal.is_stopping()
            {
                match quotas.count_step() {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(error) => {
                        log::error!("MDT{:04x}: inodes by owner cannot be counted: {error}", quotas.index);
                        return;
                    }
                }
            }
        };
        let builder = nacre_env::thread::Builder::new().name("mds-quota-count".into());
        builder.spawn(count).map(Some).map_err(MdsError::Thread)
    }

    /// Counts the next inodes; returns true if there are more.
    fn count_step(&self) -> Result<bool, MetaError> {
        let mut counting = self.counting.write();
        let Counting::Upto(last) = &*counting else { return Ok(false) };
        let key = last.map(|last| last.to_key());
        let from = key.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
        let (mut seen, mut last) = (0, *last);
        self.store.scan(INODES, &[], from, &mut |key, value| {
            let Some(fid) = key.first_chunk::<16>().map(Fid::from_key) else {
                return ControlFlow::Continue(());
            };
            // `nacre check` reports damaged records.
            if let Ok(record) = InodeRecord::decode(fid, value) {
                self.change(Book::count, Some(&Cost::of(&record)), 1);
            }
            (seen, last) = (seen + 1, Some(fid));
            if seen < COUNT_STEP { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        if seen == COUNT_STEP {
            *counting = Counting::Upto(last);
            return Ok(true);
        }
        *counting = Counting::Done;
        self.is_counted.store(true, Ordering::Release);
        self.book.complete_part();
        Ok(false)
    }

    /// Stores the uses that have changed.
    ///
    /// # Errors
    /// Those of the store.
    pub fn save(&self) -> StatusResult<()> {
        let mut saved = self.saved.lock();
        let mut changed = self.book.saved();
        changed.retain(|now| now.is_news(saved.get(&(now.resource, now.id))));
        if changed.is_empty() {
            return Ok(());
        }
        let mut batch = Batch::new();
        batch.set_releasing(true);
        for Saved { id, resource, used, limit } in &changed {
            let record = UseRecord { used: *used, slice: *limit };
            batch.put(QUOTA_USES, &use_key(*resource, *id), &record.encode());
        }
        self.store.commit(&batch).map_err(|error| error.status())?;
        saved.extend(changed.into_iter().map(|now| ((now.resource, now.id), now)));
        Ok(())
    }

    /// Stores the uses for a start after a crash, from time to time.
    pub fn tick(&self, ticks: u64, interval: Duration) {
        let every = SAVED_EVERY.as_millis().div_ceil(interval.as_millis().max(1)) as u64;
        if ticks.is_multiple_of(every.max(1))
            && let Err(status) = self.save()
            && status != Status::ESHUTDOWN
        {
            log::warn!("MDT{:04x}: uses by owner are not stored: {status}", self.index);
        }
    }

    /// Stores the uses at a clean stop; they are exact then, if everything is counted.
    ///
    /// # Errors
    /// Those of the store.
    pub fn stop(&self) -> StatusResult<()> {
        if self.is_counted.load(Ordering::Acquire) {
            return self.save();
        }
        // Without the records, the next start counts.
        let mut batch = Batch::new();
        batch.set_releasing(true);
        let saved = self.saved.lock();
        saved.keys().for_each(|(resource, id)| batch.delete(QUOTA_USES, &use_key(*resource, *id)));
        if batch.is_empty() {
            Ok(())
        } else {
            self.store.commit(&batch).map(drop).map_err(|error| error.status())
        }
    }
}

/// Returns true if two records of an inode certainly have the same cost: no layout is decoded for it.
fn is_same_cost(old: &InodeRecord, new: &InodeRecord) -> bool {
    let of = |record: &InodeRecord| (Owners::from(&record.attr), record.attr.blocks);
    of(old) == of(new) && (!new.attr.is_regular() || old.body == new.body)
}

/// Returns the stored uses, and whether there are any: an MDT has at least one inode.
fn saved(store: &MetaStore) -> Result<(Vec<Saved>, bool), MetaError> {
    let mut saved = Vec::new();
    store.scan(QUOTA_USES, &[], Bound::Unbounded, &mut |key, value| {
        if let (Some((resource, id)), Ok(record)) = (split_use_key(key), UseRecord::decode(value)) {
            saved.push(Saved { id, resource, used: record.used, limit: record.slice });
        }
        ControlFlow::Continue(())
    })?;
    let is_whole = !saved.is_empty();
    Ok((saved, is_whole))
}
