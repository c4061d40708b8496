//! Optional abilities of object stores, beyond the operations that all of them have.

use super::block;
use super::cache_policy::PolicyCell;
use super::file::{AheadBook, Releaser};
use super::simulated::Simulation;
use super::{Advice, Nxd, ObjectAttr, ObjectError, ObjectExtent, Result, Trimmed};
use crate::meta::MetaStore;
use nacre_types::{Fid, Timestamp};
use std::ops::Range;

/// Abilities of a store; each is `None`, 0 or false where the store lacks it. A store around another one
/// passes on the abilities that it does not change.
#[derive(Clone, Copy, Default)]
pub struct Abilities<'a> {
    /// Allocation of ids for new objects.
    pub ids: Option<&'a dyn Ids>,
    /// Hints about future reads.
    pub advise: Option<&'a dyn Advise>,
    /// Setting the times of objects.
    pub mtime: Option<&'a dyn SetMtime>,
    /// Extents of objects on the medium.
    pub extents: Option<&'a dyn Extents>,
    /// Trim of the medium's free space.
    pub trim: Option<&'a dyn Trim>,
    /// Number of reads that [`ObjectStore::read_all`](super::ObjectStore::read_all) does with less work than
    /// one after the other.
    pub reads_at_once: usize,
    /// Each change gives an object a new time of last change.
    pub has_versions: bool,
    /// Policy for data in the page cache.
    pub page_cache: Option<&'a PolicyCell>,
    /// Reservation of space ahead of streams of writes.
    pub write_ahead: Option<&'a AheadBook>,
    /// Deferred release of the space of destroyed objects.
    pub releaser: Option<&'a Releaser>,
    /// Simulated service times of a medium.
    pub simulation: Option<&'a Simulation>,
    /// Cache of small writes in front of the store.
    pub small_write_cache: Option<&'a Nxd>,
    /// Index of the store, for further records about its objects: [`OWNERS`](super::OWNERS),
    /// [`USES`](super::USES).
    pub index: Option<&'a MetaStore>,
    /// The device store that it is, or that is below it.
    pub device_store: Option<&'a block::Core>,
}

impl<'a> Abilities<'a> {
    /// Returns the id allocation for a sequence.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if the store allocates no ids.
    pub fn ids_of(&self, sequence: u64) -> Result<&'a dyn Ids> {
        self.ids.ok_or(ObjectError::SequenceFull(sequence))
    }

    /// Returns the version of an object's data, different after every change, if the attributes contain it:
    /// `None` where two changes may have the same time. 0 for an object that does not exist.
    pub fn version_in(&self, attr: &ObjectAttr) -> Option<u64> {
        self.has_versions.then(|| attr.mtime.map_or(0, Timestamp::nanoseconds))
    }
}

/// Allocation of ids for new objects.
pub trait Ids {
    /// Reserves up to `count` ids of `sequence` and returns them. Ids are never reserved twice; the first is
    /// 1.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if no id is left.
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>>;

    /// Returns the largest id of `sequence` that was ever reserved; 0 if none was.
    ///
    /// # Errors
    /// Those of the medium.
    fn last_reserved(&self, sequence: u64) -> Result<u32>;

    /// Destroys the objects of `sequence` above `last_used`, which are orphans, and returns the first id of
    /// the next reservation: above everything that was ever reserved, and above `last_used`.
    ///
    /// Destroys nothing if that would be more than [`ORPHANS_MAX`](super::ORPHANS_MAX) objects: then
    /// `last_used` is more likely wrong than the objects orphans.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if no id is left.
    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32>;
}

/// Hints about future reads.
pub trait Advise {
    /// Starts to fetch a range into memory, or drops it from memory once it is durable. Changes no data.
    ///
    /// # Errors
    /// Those of the medium.
    fn advise(&self, object: Fid, offset: u64, len: u64, advice: Advice) -> Result<()>;
}

/// Times set by callers.
pub trait SetMtime {
    /// Sets the time of the last change of an object that exists: the data was written elsewhere at that
    /// time.
    ///
    /// # Errors
    /// Those of the medium.
    fn set_mtime(&self, object: Fid, mtime: Timestamp) -> Result<()>;
}

/// Extents of objects on the medium.
pub trait Extents {
    /// Returns the extents of an object's data on the medium, in the order of the object; `None` if the
    /// medium does not report them. Holes are left out, reserved space that reads as zeros is not. An object
    /// that does not exist has none.
    ///
    /// # Errors
    /// Those of the index.
    fn extents(&self, object: Fid) -> Result<Option<Vec<ObjectExtent>>>;
}

/// Reports of free space to the medium (trim, discard).
pub trait Trim {
    /// Trims up to `max_bytes` of free space that was not trimmed before, beginning at the place `from` of
    /// the medium. The first call passes 0, each later one the place where the previous one ended. Space that
    /// is reused meanwhile is left alone, and space under trim is not allocated.
    ///
    /// # Errors
    /// [`ObjectError::NoTrim`] if the medium does not support it, else those of the medium.
    fn trim(&self, from: u64, max_bytes: u64) -> Result<Trimmed>;

    /// Bytes of free space not trimmed yet, as far as the store knows.
    fn untrimmed(&self) -> u64;

    /// Reason for trimming only by explicit order; `None` if there is none.
    fn trim_caution(&self) -> Option<&'static str>;

    /// Whether trimming is worthwhile under load: it makes writes cheaper, and does not delay them.
    fn trims_beside_work(&self) -> bool {
        false
    }
}

/// Delegates methods of a store to the one in a field.
macro_rules! leave_to {
    ($below:ident: $(fn $method:ident(&self $(, $name:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $method(&self $(, $name: $type)*) -> $result {
            self.$below.$method($($name),*)
        })+
    };
}

pub(super) use leave_to;
