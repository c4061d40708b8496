//! Inodes and space on this MDT by owner, and the limits of their use.
//!
//! Each commit adds the difference between the old and the new records of its inodes ([`crate::counting`]). The space
//! of a file on this MDT is what its record says of the component here, so it follows a write with the next report of
//! its size. At a clean stop the uses are stored; after a crash all records are read again, in the background.

pub(crate) mod master;

use crate::error::MdsError;
use crate::records::Records;
use crate::suspend::Caller;
use crate::tables::QUOTA_USES;
use crate::tx::Tx;
use nacre_env::sync::Mutex;
use nacre_layout::user;
use nacre_ondisk::InodeRecord;
use nacre_ondisk::quota::{UseRecord, split_use_key, use_key};
use nacre_quota::{Admission, Book, Ledger, Payers, Saved};
use nacre_store::{Batch, MetaError, MetaStore};
use nacre_types::{AttrFlags, Owners, QuotaId, QuotaResource, Status, StatusResult};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of an `st_blocks` unit.
const BLOCK_BYTES: u64 = 512;
/// Interval at which uses are stored for a start after a crash.
const SAVED_EVERY: Duration = Duration::from_secs(5);

/// What an inode costs its owners.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cost {
    pub owners: Owners,
    /// Bytes of its data on this MDT.
    bytes: u64,
}

impl Cost {
    /// Returns the cost of an inode.
    pub fn of(record: &InodeRecord) -> Cost {
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

/// See the [module documentation](self).
pub(crate) struct Quotas {
    index: u16,
    store: Arc<MetaStore>,
    book: Arc<Book>,
    saved: Mutex<HashMap<(QuotaResource, QuotaId), Saved>>,
    /// Limits and uses of the whole file system, on MDT0000.
    ledger: Option<Arc<Mutex<Ledger>>>,
}

impl Quotas {
    /// Opens the uses of the last run, which are exact if it `was_clean`.
    ///
    /// # Errors
    /// Those of the store.
    pub fn open(store: &Arc<MetaStore>, index: u16, was_clean: bool) -> Result<Quotas, MdsError> {
        let book = Arc::new(Book::begin());
        let (saved, is_whole) = saved(store)?;
        let is_exact = was_clean && is_whole;
        match is_exact {
            true => book.adopt(&saved),
            false => book.restore(&saved),
        }
        if is_exact {
            book.complete();
        }
        Ok(Quotas {
            index,
            store: store.clone(),
            book,
            ledger: (index == 0)
                .then(|| master::stored(store).map(|ledger| Arc::new(Mutex::new(ledger))))
                .transpose()?,
            saved: Mutex::new(saved.into_iter().map(|saved| ((saved.resource, saved.id), saved)).collect()),
        })
    }

    /// Returns what this MDT has counted.
    pub fn book(&self) -> &Arc<Book> {
        &self.book
    }

    /// Returns the ledger of the quota master, on MDT0000.
    pub fn ledger(&self) -> Option<&Arc<Mutex<Ledger>>> {
        self.ledger.as_ref()
    }

    /// Admits space of files that an id gets from another owner, by the ledger here.
    ///
    /// # Errors
    /// `EDQUOT`; `WRONG_TARGET` on other MDTs than MDT0000.
    pub fn admit_space_here(&self, id: QuotaId, bytes: u64) -> StatusResult<()> {
        let mut ledger = self.ledger().ok_or(Status::WRONG_TARGET)?.lock();
        if ledger.admit_space(id, bytes, master::now_s()) { Ok(()) } else { Err(Status::EDQUOT) }
    }

    /// Returns the ids that get space from other owners by a transaction of a client, with the bytes.
    ///
    /// # Errors
    /// Those of the store.
    pub fn gains(
        &self,
        caller: &Caller<'_>,
        tx: &Tx,
        records: &Records,
    ) -> StatusResult<SmallVec<[(QuotaId, u64); 3]>> {
        let mut gains = SmallVec::new();
        if self.is_unlimited(caller) {
            return Ok(gains);
        }
        for (fid, new) in tx.cached() {
            let Some(new) = new.as_ref().filter(|new| new.attr.is_regular() && !tx.is_new(fid)) else {
                continue;
            };
            let Some(old) = records.find_inode(fid)? else { continue };
            let bytes = old.attr.blocks.saturating_mul(BLOCK_BYTES);
            let (old, new) = (Owners::from(&old.attr).ids(), Owners::from(&new.attr).ids());
            let changed = old.iter().zip(new).filter(|(old, new)| bytes > 0 && **old != *new);
            gains.extend(changed.map(|(_, new)| (new, bytes)));
        }
        Ok(gains)
    }

    /// Adds the cost of an inode, or subtracts it, in one of the ways of a [`Book`].
    pub fn change(&self, how: fn(&Book, QuotaResource, Owners, i64), cost: Option<&Cost>, sign: i64) {
        let Some(Cost { owners, bytes }) = cost else { return };
        how(&self.book, QuotaResource::Inodes, *owners, sign);
        if *bytes > 0 {
            how(&self.book, QuotaResource::Space, *owners, sign * i64::try_from(*bytes).unwrap_or(i64::MAX));
        }
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
            let old = old.map(|old| Owners::from(&old.attr));
            if old == Some(owners) {
                continue;
            }
            let payers = self.book.payers(QuotaResource::Inodes, owners);
            self.admit_for(QuotaResource::Inodes, &payers.gained_from(old), 1)?;
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
        self.admit_for(resource, &self.book.payers(resource, owners), amount)
    }

    fn admit_for(&self, resource: QuotaResource, payers: &Payers, amount: u64) -> StatusResult<()> {
        match self.book.admission(resource, payers, amount, 0) {
            Admission::Free | Admission::Near => Ok(()),
            Admission::Over(_) => self.book.wait(resource, payers, amount, || ()),
        }
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
        if self.book.is_complete() {
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
pub(crate) fn is_same_cost(old: &InodeRecord, new: &InodeRecord) -> bool {
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
