//! Object stores: file data on an OST, under FIDs.
//!
//! An object is a sparse array of bytes. It exists from the first change that needs space or a size (write,
//! extending truncate, allocation) until it is destroyed; one that does not exist reads as empty. Object ids
//! are reserved per sequence before their use, so that ids that were allocated but never recorded (an MDT
//! that crashed) can be found and destroyed.
//!
//! [`FileStore`] keeps one sparse file per object in a directory of a local file system, [`BlockStore`] all
//! objects of a store on one device. Back ends implement one trait and pass `conformance` (feature
//! `conformance`).
//!
//! Guarantees:
//! - a change is visible to every thread when its call returns, and survives a crash of this process;
//! - it is durable (survives a power cut) after [`ObjectStore::sync`] of the object or
//!   [`ObjectStore::sync_all`];
//! - reservation and destruction are durable when their call returns;
//! - an object never shows bytes of another one, neither after a crash nor after a power cut;
//! - overlapping writes at the same time leave either data in each byte, in no particular order.

mod abilities;
pub mod block;
mod cache_policy;
mod error;
pub mod fiemap;
pub mod file;
mod in_memory;
pub mod nxd;
pub mod records;
mod report;
mod sequences;
pub mod simulated;
pub mod transfers;
pub mod trim;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
#[cfg(test)]
mod testing;

pub use abilities::{Abilities, Advise, Extents, Ids, SetMtime, Trim};
pub use block::{BlockStore, BlockStoreOptions};
pub use cache_policy::{CachePolicy, PolicyCell};
pub use error::{ObjectError, Result};
pub use file::{ADDRESS, CLASS, DirectIo, FileStore, FileStoreOptions, JOINING, LOCK_CLIENTS};
pub use nxd::{Nxd, NxdMode, NxdOptions, NxdSettings, NxdStats};
pub use records::{Edit, RecordStore};
pub use report::{
    FreeExtentClass, FreeExtents, ObjectExtent, ObjectProblem, ObjectStoreStats, ObjectVerifyReport,
};
pub use trim::Trimmed;

use crate::meta::{MetaStore, Table};
use nacre_types::{Fid, Timestamp, TransNo};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// Attributes of an object; the default is that of one that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectAttr {
    /// Size in bytes.
    pub size: u64,
    /// Space used in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last change of data; `None` if the object does not exist.
    pub mtime: Option<Timestamp>,
}

/// Space in the store. Counts of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Unit of allocation in bytes.
    pub block_size: u32,
    /// Total bytes.
    pub total: u64,
    /// Free bytes, the reserve included.
    pub free: u64,
    /// Bytes that writes may still use: free bytes less the reserve.
    pub available: u64,
    /// Total bytes that may be promised to writers ([`ObjectStore::write_promised`]): half of this store's
    /// share of the reserve.
    pub promisable: u64,
    /// Objects that exist, and those that could still be created.
    pub objects: u64,
    /// Objects that can still be created.
    pub objects_free: u64,
    /// Changes are impossible: the medium is read-only, or the store has failed.
    pub is_read_only: bool,
}

/// Operation of [`ObjectStore::fallocate`] on a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Allocates space; the object grows if the range ends beyond it and `keep_size` is off.
    Allocate {
        /// Keep the size.
        keep_size: bool,
    },
    /// Frees the space; the size stays.
    Punch,
    /// Zeroes the range; the object grows if the range ends beyond it and `keep_size` is off.
    Zero {
        /// Keep the size.
        keep_size: bool,
    },
}

/// Expected use of a range, for [`Advise::advise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It will be read soon.
    WillRead,
    /// It will not be read soon.
    DontNeed,
}

/// Target of [`ObjectStore::seek`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Next byte that holds data.
    Data,
    /// Next hole; the end of the object counts as one.
    Hole,
}

/// A read of a batch.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// Object to read.
    pub object: Fid,
    /// Offset in the object, in bytes.
    pub offset: u64,
    /// Memory to fill.
    pub buffer: &'a mut [u8],
    /// Bytes that were read, once the read is done.
    pub read: usize,
    /// Number of pieces on the device that they were stored in; 0 if the store does not know.
    pub pieces: u32,
}

impl<'a> ReadRequest<'a> {
    /// Creates a read that is not done yet.
    pub fn new(object: Fid, offset: u64, buffer: &'a mut [u8]) -> ReadRequest<'a> {
        ReadRequest { object, offset, buffer, read: 0, pieces: 0 }
    }
}

/// A store of objects: the operations that all back ends have. Every method may be called from any thread at
/// any time; calls block.
pub trait ObjectStore: Send + Sync {
    /// Returns the transaction of the last change by this thread, 0 for none since the last call, and the newest durable
    /// transaction; `None` for stores that do not keep their data in a log of transactions.
    fn last_change(&self) -> Option<(TransNo, TransNo)> {
        None
    }

    /// Writes `data` at `offset` and returns the number of bytes written: all, unless the medium became full
    /// after a part. Creates the object if it does not exist. Writing nothing changes nothing.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`] if allocation would eat into the reserve or the medium is full,
    /// [`ObjectError::TooLarge`].
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;

    /// Writes as [`ObjectStore::write`], but may use the reserve: the space was promised while
    /// [`Space::available`] was not 0, and no more than [`Space::promisable`] at a time. So there is enough
    /// of it, whatever others write.
    ///
    /// # Errors
    /// As [`ObjectStore::write`].
    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;

    /// Reads into `buffer` from `offset` and returns the number of bytes read: fewer than requested only at
    /// the end of the object. A reader will soon request `ahead` bytes beyond the range: the store may start
    /// to fetch them.
    ///
    /// # Errors
    /// Those of the medium.
    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize>;

    /// Does reads of several callers, in any order, as [`ObjectStore::read`] does. `failed` receives the
    /// number and error of each read that fails; the content of its buffer is undefined.
    fn read_all(&self, reads: &mut [ReadRequest<'_>], failed: &mut dyn FnMut(usize, ObjectError)) {
        for (number, request) in reads.iter_mut().enumerate() {
            transfers::begin();
            match self.read(request.object, request.offset, request.buffer, 0) {
                Ok(read) => request.read = read,
                Err(error) => failed(number, error),
            }
            request.pieces = transfers::noted().reads;
        }
    }

    /// Returns size, space and time of the last change.
    ///
    /// # Errors
    /// Those of the medium.
    fn attr(&self, object: Fid) -> Result<ObjectAttr>;

    /// Whether an object exists: it has been written or sized, and not been destroyed.
    ///
    /// # Errors
    /// Those of the index.
    fn exists(&self, object: Fid) -> Result<bool> {
        Ok(self.attr(object)?.mtime.is_some())
    }

    /// Sets the size, up or down, and returns the new attributes. Works on a full disk.
    ///
    /// # Errors
    /// [`ObjectError::TooLarge`].
    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr>;

    /// Allocates, frees or zeroes `[offset, offset + len)` and returns the new attributes. Freeing works on a
    /// full disk.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`], [`ObjectError::TooLarge`], [`ObjectError::Empty`] for a `len` of 0,
    /// `EOPNOTSUPP` if the medium cannot do it.
    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr>;

    /// Returns the offset of the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`ObjectError::NoData`] if there is none, or `offset` is not inside the object.
    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64>;

    /// Makes an object durable: data, size and existence. Does nothing for one that does not exist.
    ///
    /// # Errors
    /// Those of the medium. Data that could not be written may be lost: see
    /// [`ObjectStore::durability_epoch`].
    fn sync(&self, object: Fid) -> Result<()>;

    /// Makes every change before the call durable.
    ///
    /// # Errors
    /// As [`ObjectStore::sync`].
    fn sync_all(&self) -> Result<()>;

    /// Destroys objects and frees their space; those that do not exist are skipped. Returns the number of
    /// those that existed. Works on a full disk.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// Those of the medium; a part may have been destroyed.
    fn destroy(&self, objects: &[Fid]) -> Result<u64>;

    /// Returns the space in the store.
    ///
    /// # Errors
    /// Those of the medium.
    fn space(&self) -> Result<Space>;

    /// Returns a number that changes whenever written but not synced data may have been lost: after a restart
    /// of the host, and after a failed sync.
    fn durability_epoch(&self) -> u64;

    /// Reads the whole index, compares it with the medium and, if `repair` is set, repairs damage as far as
    /// that loses no data that has an owner. `progress` is called from time to time with the number of
    /// objects and files checked.
    ///
    /// # Errors
    /// Only if reading itself fails; damage is listed in the report.
    fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport>;

    /// Visits every object, in the order of their FIDs.
    ///
    /// # Errors
    /// Those of the index.
    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()>;

    /// Returns the counters.
    fn stats(&self) -> ObjectStoreStats;

    /// Returns its optional abilities.
    fn abilities(&self) -> Abilities<'_> {
        Abilities::default()
    }

    /// Makes everything durable and refuses later changes ([`ObjectError::Closed`]). The caller has awaited
    /// all calls in progress.
    ///
    /// # Errors
    /// As [`ObjectStore::sync_all`].
    fn close(&self) -> Result<()>;
}

/// Records of the owners of objects in the index of a store: FID in key form -> owner record.
pub const OWNERS: Table = Table(6);
/// Uses of the last run in the index of a store: resource and id -> use record.
pub const USES: Table = Table(7);
/// The run of the object server in the index of a store: `run` -> run record.
pub const DATA_RUN: Table = Table(8);
/// Changes that clients do not replay in the index of a store: FID in key form -> mark record.
pub const DATA_MARKS: Table = Table(9);
/// Progress of the replay of clients in the index of a store: UUID -> mark record.
pub const DATA_REPLAYED: Table = Table(10);

/// Most objects that [`Ids::destroy_orphans`] takes for orphans: five times the largest reservation (20000),
/// as in Lustre.
pub const ORPHANS_MAX: u64 = 100_000;

/// Repairs the damage in the index of the store in `dir` that has exactly one right answer, and returns the
/// number of problems repaired. No process may use the store meanwhile.
///
/// # Errors
/// As [`MetaStore::repair`].
pub fn repair_index(dir: &Path) -> Result<u64> {
    let index = dir.join(file::INDEX);
    let options = crate::meta::MetaStoreOptions { map_bytes: 1 << 40, ..Default::default() };
    Ok(MetaStore::repair(&index, &options)?)
}

/// Returns up to `max` objects in the index of a store after one, in the order of their FIDs; those that only a cache of small writes
/// has are not among them.
///
/// # Errors
/// Those of the index.
pub fn objects_after(index: &MetaStore, after: Fid, max: usize) -> Result<Vec<Fid>> {
    let mut found = Vec::new();
    index.scan(sequences::OBJECTS, &[], Bound::Excluded(&after.to_key()), &mut |key, _| {
        found.extend(<&[u8; 16]>::try_from(key).ok().map(Fid::from_key));
        if found.len() < max { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok(found)
}

/// Visits the objects that have a record in a table of the index of a store, in the order of their FIDs.
///
/// # Errors
/// If the index cannot be read.
fn visit_keys(index: &MetaStore, table: Table, visit: &mut dyn FnMut(Fid)) -> Result<()> {
    index.scan(table, &[], Bound::Unbounded, &mut |key, _| {
        if let Ok(key) = <&[u8; 16]>::try_from(key) {
            visit(Fid::from_key(key));
        }
        ControlFlow::Continue(())
    })?;
    Ok(())
}
