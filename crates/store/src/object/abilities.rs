//! What an object store may be able to do beyond what each of them does.

use super::block;
use super::cache_policy::PolicyCell;
use super::file::{AheadBook, Releaser};
use super::simulated::Simulation;
use super::{Advice, Nxd, ObjectAttr, ObjectError, ObjectExtent, Result, Trimmed};
use nacre_types::{Fid, Timestamp};
use std::ops::Range;

/// What a store can do; each is `None`, 0 or false where it cannot. A store around another one hands on those that it does not change.
#[derive(Clone, Copy, Default)]
pub struct Abilities<'a> {
    /// It gives out ids for new objects.
    pub ids: Option<&'a dyn Ids>,
    /// It may be told what will be read.
    pub advise: Option<&'a dyn Advise>,
    /// Times of objects can be set.
    pub mtime: Option<&'a dyn SetMtime>,
    /// It knows where objects lie.
    pub extents: Option<&'a dyn Extents>,
    /// It tells its medium what is free.
    pub trim: Option<&'a dyn Trim>,
    /// How many reads [`ObjectStore::read_all`](super::ObjectStore::read_all) does with less work than one after the other.
    pub reads_at_once: usize,
    /// The time of the last change is another one after each change.
    pub has_versions: bool,
    /// Data goes through the page cache by a rule.
    pub page_cache: Option<&'a PolicyCell>,
    /// Space is reserved ahead of streams of writes.
    pub write_ahead: Option<&'a AheadBook>,
    /// Space of what was destroyed is there later only.
    pub releaser: Option<&'a Releaser>,
    /// Service times of a medium that is not there.
    pub simulation: Option<&'a Simulation>,
    /// The cache of small writes in front of it.
    pub small_write_cache: Option<&'a Nxd>,
    /// The store on a device that it is, or that lies below it.
    pub device_store: Option<&'a block::Core>,
}

impl<'a> Abilities<'a> {
    /// Gives out ids of a sequence.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if the store gives none out.
    pub fn ids_of(&self, sequence: u64) -> Result<&'a dyn Ids> {
        self.ids.ok_or(ObjectError::SequenceFull(sequence))
    }

    /// The version of an object's data, another one after every change, if the attributes tell it: `None` where two changes may
    /// have the same time. 0 for one that does not exist.
    pub fn version_in(&self, attr: &ObjectAttr) -> Option<u64> {
        self.has_versions.then(|| attr.mtime.map_or(0, Timestamp::nanoseconds))
    }
}

/// Ids of new objects.
pub trait Ids {
    /// Reserves up to `count` ids of `sequence` and returns them. Ids are never reserved twice; the first is 1.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if no id is left.
    fn reserve(&self, sequence: u64, count: u32) -> Result<Range<u32>>;

    /// The largest id of `sequence` that was ever reserved; 0 if none was.
    ///
    /// # Errors
    /// Those of the medium.
    fn last_reserved(&self, sequence: u64) -> Result<u32>;

    /// Destroys the objects of `sequence` above `last_used`, which belong to nobody, and returns the first id that the
    /// next reservation will give: above everything that was ever reserved, and above `last_used`.
    ///
    /// Destroys nothing if that would be more than [`ORPHANS_MAX`](super::ORPHANS_MAX) objects: then `last_used` is wrong
    /// rather than the objects orphans.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`ObjectError::SequenceFull`] if no id is left.
    fn destroy_orphans(&self, sequence: u64, last_used: u32) -> Result<u32>;
}

/// Memory for what will be read.
pub trait Advise {
    /// Starts to fetch a range into memory, or lets go of it there once it is durable. Changes no data.
    ///
    /// # Errors
    /// Those of the medium.
    fn advise(&self, object: Fid, offset: u64, len: u64, advice: Advice) -> Result<()>;
}

/// Times that are given.
pub trait SetMtime {
    /// Sets the time of the last change of an object that exists: what was written now had been changed then.
    ///
    /// # Errors
    /// Those of the medium.
    fn set_mtime(&self, object: Fid, mtime: Timestamp) -> Result<()>;
}

/// Where objects lie.
pub trait Extents {
    /// Where the data of an object lies on the medium, in the order of the object; `None` if the medium does not tell. Holes are
    /// left out, reserved space that reads as zeros is not. An object that does not exist has none.
    ///
    /// # Errors
    /// Those of the index.
    fn extents(&self, object: Fid) -> Result<Option<Vec<ObjectExtent>>>;
}

/// What media are told of free space.
pub trait Trim {
    /// Tells the medium of free space that it has not been told of: up to `max_bytes`, beginning at the place `from` of the
    /// medium. The first call gets 0, each other one the place where the last one ended. Space that is used again
    /// meanwhile is left alone, and nobody gets any while it is told of.
    ///
    /// # Errors
    /// [`ObjectError::NoTrim`] if the medium does not want to know, else those of the medium.
    fn trim(&self, from: u64, max_bytes: u64) -> Result<Trimmed>;

    /// Bytes that are free and that the medium was not told of, as far as the store knows.
    fn untrimmed(&self) -> u64;

    /// Why free space should be told of only if somebody orders it; `None` if nothing speaks against it.
    fn trim_caution(&self) -> Option<&'static str>;

    /// Whether telling of free space is worth it while others work: it makes writes cheaper, and does not keep them waiting.
    fn trims_beside_work(&self) -> bool {
        false
    }
}

/// Leaves methods of a store to the one that it keeps in a field.
macro_rules! leave_to {
    ($below:ident: $(fn $method:ident(&self $(, $name:ident: $type:ty)*) -> $result:ty;)+) => {
        $(fn $method(&self $(, $name: $type)*) -> $result {
            self.$below.$method($($name),*)
        })+
    };
}

pub(super) use leave_to;
