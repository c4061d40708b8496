//! Object stores: file data on an OST, under FIDs.
//!
//! An object is a sparse array of bytes. It exists from the first change that needs space or a size (write, extending
//! truncate, allocation) until it is destroyed; one that does not exist reads as empty. Object ids are reserved per
//! sequence before anybody uses them, so that ids that were handed out but never recorded (an MDT that crashed) can be
//! found and destroyed.
//!
//! [`FileStore`] keeps one sparse file per object in a directory of a local file system, [`BlockStore`] all objects on one device.
//! Back ends implement one trait and pass `conformance` (feature `conformance`).
//!
//! What is promised:
//! - a change is visible to every thread when its call returns, and survives a crash of this process;
//! - it is durable (survives a power cut) after [`ObjectStore::sync`] of the object or [`ObjectStore::sync_all`];
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
use nacre_types::{Fid, Timestamp};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// Attributes of an object; the default is that of one that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObjectAttr {
    /// Size in bytes.
    pub size: u64,
    /// Space used in units of 512 bytes.
    pub blocks: u64,
    /// Last change of data; `None` if the object does not exist.
    pub mtime: Option<Timestamp>,
}

/// Room in the store. Counts of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Space {
    /// Unit of allocation in bytes.
    pub block_size: u32,
    /// Bytes in all.
    pub total: u64,
    /// Free bytes, the reserve included.
    pub free: u64,
    /// Bytes that writes may still use: free bytes less the reserve.
    pub available: u64,
    /// Bytes that may be promised to writers in all ([`ObjectStore::write_promised`]): half of this store's share of the
    /// reserve.
    pub promisable: u64,
    /// Objects that exist and could exist.
    pub objects: u64,
    /// Objects that could still be made.
    pub objects_free: u64,
    /// No change is possible: the medium is read-only, or the store has failed.
    pub is_read_only: bool,
}

/// What [`ObjectStore::fallocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fallocate {
    /// Allocates; the object grows if the range ends beyond it and `keep_size` is off.
    Allocate {
        /// Leave the size as it is.
        keep_size: bool,
    },
    /// Frees; the size stays.
    Punch,
    /// Makes the range read as zeros; the object grows if the range ends beyond it and `keep_size` is off.
    Zero {
        /// Leave the size as it is.
        keep_size: bool,
    },
}

/// What [`Advise::advise`] is told of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// It will be read soon.
    WillRead,
    /// It will not be read soon.
    DontNeed,
}

/// What [`ObjectStore::seek`] looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// The next byte that holds data.
    Data,
    /// The next hole, the end of the object counting as one.
    Hole,
}

/// One of several reads.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The object.
    pub object: Fid,
    /// Where in it.
    pub offset: u64,
    /// What to fill.
    pub buffer: &'a mut [u8],
    /// How many bytes there were, when it is done.
    pub read: usize,
    /// In how many pieces they lay on the device; 0 if the store does not know.
    pub pieces: u32,
}

impl<'a> ReadRequest<'a> {
    /// One that is not done.
    pub fn new(object: Fid, offset: u64, buffer: &'a mut [u8]) -> ReadRequest<'a> {
        ReadRequest { object, offset, buffer, read: 0, pieces: 0 }
    }
}

/// A store of objects: what each of them can do. Every method may be called from any thread at any time; calls block.
pub trait ObjectStore: Send + Sync {
    /// Writes `data` at `offset` and says how much: all of it, unless the medium ran full after a part. Makes the object if it
    /// does not exist. Writing nothing changes nothing.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`] if allocation would eat into the reserve or the medium is full,
    /// [`ObjectError::TooLarge`].
    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;

    /// As [`ObjectStore::write`], but the reserve may be used: the space was promised while [`Space::available`] was not
    /// 0, and no more than [`Space::promisable`] at a time. So it is there, whatever others write.
    ///
    /// # Errors
    /// As [`ObjectStore::write`].
    fn write_promised(&self, object: Fid, offset: u64, data: &[u8]) -> Result<usize>;

    /// Reads into `buffer` from `offset` and returns how many bytes there were: fewer than asked for only at the end
    /// of the object. `ahead` bytes beyond the range will soon be asked for: the store may start to fetch them.
    ///
    /// # Errors
    /// Those of the medium.
    fn read(&self, object: Fid, offset: u64, buffer: &mut [u8], ahead: u32) -> Result<usize>;

    /// Does reads of several callers, in any order, as [`ObjectStore::read`] would. Those that fail are told to `failed` by their
    /// number; what their buffers hold is not known then.
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

    /// Size, space and time of the last change.
    ///
    /// # Errors
    /// Those of the medium.
    fn attr(&self, object: Fid) -> Result<ObjectAttr>;

    /// Whether an object exists: something has written to it, or sized it, and it was not destroyed.
    ///
    /// # Errors
    /// Those of the index.
    fn exists(&self, object: Fid) -> Result<bool> {
        Ok(self.attr(object)?.mtime.is_some())
    }

    /// Sets the size, up or down, and returns the attributes afterwards. Works on a full disk.
    ///
    /// # Errors
    /// [`ObjectError::TooLarge`].
    fn truncate(&self, object: Fid, size: u64) -> Result<ObjectAttr>;

    /// Allocates, frees or zeroes `[offset, offset + len)` and returns the attributes afterwards. Freeing works on a
    /// full disk.
    ///
    /// # Errors
    /// [`ObjectError::NoSpace`], [`ObjectError::TooLarge`], [`ObjectError::Empty`] for a `len` of 0, `EOPNOTSUPP` if the
    /// medium cannot do it.
    fn fallocate(&self, object: Fid, how: Fallocate, offset: u64, len: u64) -> Result<ObjectAttr>;

    /// The offset of the next data or hole at or after `offset`.
    ///
    /// # Errors
    /// [`ObjectError::NoData`] if there is none, or `offset` is not inside the object.
    fn seek(&self, object: Fid, offset: u64, what: Seek) -> Result<u64>;

    /// Makes an object durable: data, size and existence. Nothing to do for one that does not exist.
    ///
    /// # Errors
    /// Those of the medium. Data that could not be written may be lost: see [`ObjectStore::durability_epoch`].
    fn sync(&self, object: Fid) -> Result<()>;

    /// Makes everything durable that was changed before the call.
    ///
    /// # Errors
    /// As [`ObjectStore::sync`].
    fn sync_all(&self) -> Result<()>;

    /// Destroys objects and frees their space; those that do not exist are skipped. Returns how many existed. Works on
    /// a full disk.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// Those of the medium; a part may have been destroyed.
    fn destroy(&self, objects: &[Fid]) -> Result<u64>;

    /// Room in the store.
    ///
    /// # Errors
    /// Those of the medium.
    fn space(&self) -> Result<Space>;

    /// Changes whenever data that was written but not synced may have been lost: after the host was started again, and
    /// after a failed sync.
    fn durability_epoch(&self) -> u64;

    /// Reads the whole index, compares it with the medium and, if `repair` is set, mends what can be mended without
    /// losing data that has an owner. `progress` gets the number of objects and files looked at so far now and then.
    ///
    /// # Errors
    /// Only if reading itself fails; damage is listed in the report.
    fn verify(&self, repair: bool, progress: &mut dyn FnMut(u64)) -> Result<ObjectVerifyReport>;

    /// Visits every object, in the order of their FIDs.
    ///
    /// # Errors
    /// Those of the index.
    fn for_each_object(&self, visit: &mut dyn FnMut(Fid)) -> Result<()>;

    /// Counters.
    fn stats(&self) -> ObjectStoreStats;

    /// What it can do beyond this.
    fn abilities(&self) -> Abilities<'_> {
        Abilities::default()
    }

    /// Makes everything durable and refuses changes from now on ([`ObjectError::Closed`]). The caller has let calls in
    /// progress return.
    ///
    /// # Errors
    /// As [`ObjectStore::sync_all`].
    fn close(&self) -> Result<()>;
}

/// Most objects that [`Ids::destroy_orphans`] takes for orphans: five times the largest reservation (20000), as
/// in Lustre (reference 4.5).
pub const ORPHANS_MAX: u64 = 100_000;

/// Repairs what has one right answer in the index of the store in `dir`, which nobody uses, and returns how many problems that were.
///
/// # Errors
/// As [`MetaStore::repair`].
pub fn repair_index(dir: &Path) -> Result<u64> {
    let index = dir.join(file::INDEX);
    let options = crate::meta::MetaStoreOptions { map_bytes: 1 << 40, ..Default::default() };
    Ok(MetaStore::repair(&index, &options)?)
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
