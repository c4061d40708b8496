//! Space by owner at an OST, and the limits of its use.
//!
//! Owners and use of objects are records in the index of the store ([`IndexRecords`]); the data part of an MDT gets its
//! accounts from the metadata server, which knows the owners of files.

use crate::locks::Target;
use crate::outcome::Refusal;
use crate::service::extent;
use nacre_env::sync::Mutex;
use nacre_ondisk::quota::{OwnerRecord, UseRecord, split_use_key, use_key};
use nacre_quota::{Admission, Book, Counted, ObjectAccounts, ObjectRecord, Objects, Owned, Saved, Upkeep};
use nacre_rpc::Export;
use nacre_store::object::{OWNERS, ObjectAttr, ObjectError, ObjectStore, Seek, USES};
use nacre_store::{Batch, MetaError, MetaStore};
use nacre_types::limits::TARGET_INDEX_MAX;
use nacre_types::{Fid, IdKind, Owners, QuotaResource, Status, StatusResult, TargetId};
use nacre_wire::oss::Charge;
use std::io;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

/// Bytes of an `st_blocks` unit.
const BLOCK_BYTES: u64 = 512;

/// Bytes beyond all grants by which data of clients that held it back may exceed a limit: a client whose grant has just
/// ended is not at fault.
const GRANTED_SLACK: u64 = 64 << 20;

/// Records in the index of a store.
struct IndexRecords {
    target: TargetId,
    store: Arc<dyn ObjectStore>,
}

impl IndexRecords {
    fn index(&self) -> StatusResult<&MetaStore> {
        self.store.abilities().index.ok_or(Status::EOPNOTSUPP)
    }

    fn failed(&self, error: &MetaError) -> Status {
        log::error!("{}: records of owners: {error}", self.target);
        error.status()
    }

    fn decoded(&self, object: Fid, bytes: &[u8]) -> StatusResult<ObjectRecord> {
        let record = OwnerRecord::decode(bytes).map_err(|error| {
            log::error!("{}: the owners of object {object} are damaged: {error}", self.target);
            Status::EUCLEAN
        })?;
        let OwnerRecord { owners, counted, is_active, place } = record;
        Ok(ObjectRecord { owners, counted, is_active, place })
    }

    fn commit(&self, batch: &Batch) -> StatusResult<()> {
        self.index()?.commit(batch).map(drop).map_err(|error| self.failed(&error))
    }
}

impl Objects for IndexRecords {
    fn record(&self, object: Fid) -> StatusResult<Option<ObjectRecord>> {
        let found = self.index()?.get(OWNERS, &object.to_key(), |value| {
            value.map(|value| self.decoded(object, value)).transpose()
        });
        found.map_err(|error| self.failed(&error))?
    }

    fn put(&self, object: Fid, record: &ObjectRecord) -> StatusResult<()> {
        let ObjectRecord { owners, counted, is_active, place } = *record;
        let mut batch = Batch::new();
        // A full store must be able to count what is freed.
        batch.set_releasing(true);
        batch.put(OWNERS, &object.to_key(), &OwnerRecord { owners, counted, is_active, place }.encode());
        self.commit(&batch)
    }

    fn remove(&self, object: Fid) -> StatusResult<()> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.delete(OWNERS, &object.to_key());
        self.commit(&batch)
    }

    fn used_bytes(&self, object: Fid) -> StatusResult<u64> {
        let attr = self.store.attr(object).map_err(|error| {
            log::error!("{}: space of object {object}: {error}", self.target);
            error.status()
        })?;
        Ok(bytes_of(&attr))
    }

    fn records_after(&self, object: Fid, max: usize) -> StatusResult<Vec<(Fid, ObjectRecord)>> {
        let mut found = Vec::new();
        let mut outcome = Ok(());
        let scanned =
            self.index()?.scan(OWNERS, &[], Bound::Excluded(&object.to_key()), &mut |key, value| {
                let Some(object) = <&[u8; 16]>::try_from(key).ok().map(Fid::from_key) else {
                    return ControlFlow::Continue(());
                };
                match self.decoded(object, value) {
                    Ok(record) => found.push((object, record)),
                    // The others count; `nacre check` reports it.
                    Err(status) => outcome = Err(status),
                }
                if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        scanned.map_err(|error| self.failed(&error))?;
        if found.is_empty() { outcome.map(|()| found) } else { Ok(found) }
    }

    fn sync(&self) -> StatusResult<()> {
        let index = self.index()?;
        index.sync(index.last_transno()).map_err(|error| self.failed(&error))
    }

    fn save(&self, accounts: &[Saved]) -> StatusResult<()> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        for Saved { id, resource, used, limit } in accounts {
            let record = UseRecord { used: *used, slice: *limit };
            batch.put(USES, &use_key(*resource, *id), &record.encode());
        }
        self.commit(&batch)
    }
}

/// Returns the accounts of the last run. A damaged record only loses what was assumed about an id.
fn saved(index: &MetaStore) -> Result<Vec<Saved>, MetaError> {
    let mut saved = Vec::new();
    index.scan(USES, &[], Bound::Unbounded, &mut |key, value| {
        if let (Some((resource, id)), Ok(record)) = (split_use_key(key), UseRecord::decode(value)) {
            saved.push(Saved { id, resource, used: record.used, limit: record.slice });
        }
        ControlFlow::Continue(())
    })?;
    Ok(saved)
}

/// Returns the payer of a client's request with the ids of the file system; root for ids that the client may not have.
pub(crate) fn charge_in_fs(export: &Export, charge: &Charge) -> Charge {
    let Some(standing) = export.standing().filter(|standing| standing.maps_ids()) else { return *charge };
    let Owners { uid, gid, projid } = charge.owners;
    let id = |kind, id| standing.to_fs(kind, id).unwrap_or(0);
    let owners =
        Owners { uid: id(IdKind::Uid, uid), gid: id(IdKind::Gid, gid), projid: id(IdKind::Projid, projid) };
    Charge { owners, ..*charge }
}

/// Whether no limit applies to a write. Root of a client with restrictions is not root of the file system.
fn is_exempt(export: &Export, charge: &Charge) -> bool {
    charge.is_exempt && export.standing().is_none_or(|standing| standing.is_free())
}

fn owned(charge: &Charge) -> Owned {
    Owned { owners: charge.owners, place: charge.place }
}

fn bytes_of(attr: &ObjectAttr) -> u64 {
    attr.blocks.saturating_mul(BLOCK_BYTES)
}

/// Space by owner at a target, and its limits.
pub(crate) struct Quota {
    target: Arc<Target>,
    /// Accounts of the objects here; `None` if the store keeps no records.
    accounts: Option<Arc<ObjectAccounts>>,
    upkeep: Mutex<Option<Upkeep>>,
    /// Use by owner on the MDT whose data this target has.
    book_of_mdt: OnceLock<Arc<Book>>,
}

/// What a write has charged, and whether an owner is near a limit.
pub(crate) type Charging = (Option<Counted>, bool);

/// What a write is charged to, and its range.
pub(crate) struct Charged<'a> {
    pub object: Fid,
    pub charge: &'a Charge,
    /// The object has been written to before.
    pub written: bool,
    pub offset: u64,
    pub len: u64,
    /// The space was granted: clients have accepted the data from programs.
    pub granted: bool,
}

impl Quota {
    /// Creates accounts of nothing.
    pub fn none(target: &Arc<Target>) -> Quota {
        let (upkeep, book_of_mdt) = Default::default();
        Quota { target: target.clone(), accounts: None, upkeep, book_of_mdt }
    }

    /// Opens the accounts of the objects of a target, if its store keeps records of owners.
    ///
    /// # Errors
    /// If the records of the last run cannot be read, or the thread cannot be started.
    pub fn open(target: &Arc<Target>) -> io::Result<Quota> {
        let (store, id) = (&target.store, TargetId::ost(target.index));
        let quota = Quota::none(target);
        let Some(records) = store.abilities().index.filter(|_| target.index < TARGET_INDEX_MAX) else {
            return Ok(quota);
        };
        let book = Arc::new(Book::begin());
        book.restore(&saved(records).map_err(io::Error::other)?);
        let objects = Box::new(IndexRecords { target: id, store: store.clone() });
        let accounts = Arc::new(ObjectAccounts::new(book, objects));
        let upkeep = Mutex::new(Some(Upkeep::start(id.to_string(), accounts.clone())?));
        Ok(Quota { accounts: Some(accounts), upkeep, ..quota })
    }

    /// Stops the thread, and makes the records exact.
    pub fn stop(&self) {
        if self.upkeep.lock().take().is_some()
            && let Some(Err(status)) = self.accounts.as_ref().map(|accounts| accounts.stop())
        {
            log::warn!("use by owner is counted again at the next start: {status}");
        }
    }

    /// Sets the book by which writes of data on an MDT are admitted. The metadata server counts: a write with the next
    /// report of the file's size. Only the first call counts.
    pub fn admit_by(&self, book: Arc<Book>) {
        let _ = self.book_of_mdt.set(book);
    }

    /// Returns the use by owner that this server counts.
    pub fn accounts(&self) -> Option<&Arc<ObjectAccounts>> {
        self.accounts.as_ref()
    }

    /// Returns what clients may hold back.
    fn held_back(&self) -> u64 {
        self.target.granted_bytes.load(Ordering::Relaxed)
    }

    /// Admits or refuses a write of data on an MDT. Returns whether an owner is near a limit.
    fn admit_on_mdt(&self, export: &Export, what: &Charged<'_>) -> Result<bool, Refusal> {
        let Some(book) = self.book_of_mdt.get().filter(|book| book.has_limits()) else { return Ok(false) };
        let payers = book.payers(QuotaResource::Space, what.charge.owners);
        let admission = book.admission(QuotaResource::Space, &payers, what.len, self.held_back());
        let must_fit = !what.granted && !is_exempt(export, what.charge);
        if matches!(admission, Admission::Over(_)) && must_fit && !self.is_rewrite(what)? {
            book.wait(QuotaResource::Space, &payers, what.len, || ())?;
        }
        Ok(admission != Admission::Free)
    }

    /// Charges a write, and admits or refuses it. Returns the charge, and whether an owner is near a limit.
    pub fn charge(&self, export: &Export, what: &Charged<'_>) -> Result<Charging, Refusal> {
        let Some(accounts) = self.accounts() else { return Ok((None, self.admit_on_mdt(export, what)?)) };
        let counted = accounts.begin(what.object, owned(what.charge), !what.written, what.len)?;
        if !accounts.is_limited(&counted) {
            return Ok((Some(counted), false));
        }
        let admission = accounts.admission(&counted, self.held_back());
        let is_near = admission != Admission::Free;
        if !matches!(admission, Admission::Over(_)) || is_exempt(export, what.charge) {
            return Ok((Some(counted), is_near));
        }
        if what.granted {
            // Clients hold back no more than is granted to them, and nothing once they know that they are near a limit.
            if accounts.exceeds(&counted, self.held_back() + GRANTED_SLACK) {
                accounts.cancel(counted);
                return Err(Status::EDQUOT.into());
            }
            return Ok((Some(counted), is_near));
        }
        match self.is_rewrite(what) {
            Ok(true) => Ok((Some(counted), is_near)),
            Ok(false) => Ok((Some(Self::await_space(accounts, what, counted)?), is_near)),
            Err(error) => {
                accounts.cancel(counted);
                Err(error.into())
            }
        }
    }

    /// Waits until there is space for a write, which is charged then, or certainly none.
    fn await_space(
        accounts: &ObjectAccounts,
        what: &Charged<'_>,
        mut counted: Counted,
    ) -> Result<Counted, Refusal> {
        // What waits is no use: the master would take it for a fact.
        loop {
            let payers = counted.payers().clone();
            accounts.cancel(counted);
            accounts.wait(&payers, what.len)?;
            counted = accounts.begin(what.object, owned(what.charge), !what.written, what.len)?;
            if !matches!(accounts.admission(&counted, 0), Admission::Over(_)) {
                return Ok(counted);
            }
        }
    }

    /// Whether a range has its space already.
    fn is_rewrite(&self, what: &Charged<'_>) -> Result<bool, ObjectError> {
        match self.target.store.seek(what.object, what.offset, Seek::Hole) {
            Ok(hole) => {
                Ok(hole >= what.offset.saturating_add(what.len) && extent(what.offset, what.len).is_some())
            }
            Err(ObjectError::NoData) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Ends what [`Quota::charge`] began. Returns whether an owner is near a limit.
    pub fn charged(&self, (counted, is_near): Charging) -> bool {
        if let (Some(accounts), Some(counted)) = (self.accounts(), counted) {
            accounts.end(counted);
        }
        is_near
    }

    /// Records the space of an object after a change of its size or space. A failure is logged: the change has
    /// happened, and the next count finds it.
    pub fn count_change(&self, object: Fid, charge: &Charge, attr: &ObjectAttr) {
        if let Some(accounts) = self.accounts()
            && let Err(status) = accounts.changed(object, owned(charge), bytes_of(attr))
        {
            log::error!(
                "{}: the space of object {object} is not counted: {status}",
                TargetId::ost(self.target.index)
            );
        }
    }

    /// Records that objects are gone.
    pub fn count_destroyed(&self, counted: impl FnOnce(&ObjectAccounts) -> StatusResult<()>) {
        if let Some(Err(status)) = self.accounts().map(|accounts| counted(accounts)) {
            log::error!(
                "{}: the space of destroyed objects is still counted: {status}",
                TargetId::ost(self.target.index)
            );
        }
    }
}
