//! Counters and the result of a check.

use crate::meta::VerifyReport;
use nacre_types::Fid;
use std::path::PathBuf;

/// A snapshot of a store's counters; sums since the store was opened unless noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStoreStats {
    /// Objects that exist now.
    pub objects: u64,
    /// Objects made.
    pub created: u64,
    /// Objects destroyed.
    pub destroyed: u64,
    /// Files that were made for objects because no free one was there.
    pub files_made: u64,
    /// Files that are free for new objects now.
    pub files_free: u64,
    /// Files whose emptying is not durable yet, so that they cannot be used again now.
    pub files_pending: u64,
    /// Objects that were opened because they were not open already.
    pub opens: u64,
    /// Objects open now.
    pub open_now: u64,
    /// Reads that had to wait for the medium.
    pub reads_waited: u64,
    /// Reads around the page cache, which are among those that waited.
    pub reads_direct: u64,
    /// Writes around the page cache.
    pub writes_direct: u64,
    /// Writes refused because only the reserve was left.
    pub refused_full: u64,
    /// Syncs that failed.
    pub sync_failures: u64,
    /// Empty files found unclean when the store was opened after a crash, and emptied.
    pub recovered_files: u64,
    /// Windows of up to 1 MiB that a device began to read before a stream asked for them.
    pub read_ahead: u64,
    /// Those that a stream got.
    pub read_ahead_used: u64,
    /// Flushes of a device.
    pub flushes: u64,
    /// Blocks whose checksum did not match.
    pub checksum_errors: u64,
    /// Bytes that were read in the background to find damage.
    pub scrubbed_bytes: u64,
    /// Blocks that went back to what they were before, after a power cut.
    pub recovered_blocks: u64,
}

/// A piece of an object on the medium. Offsets and length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectExtent {
    /// Offset in the object.
    pub logical: u64,
    /// Offset on the medium.
    pub physical: u64,
    /// Length.
    pub len: u64,
}

/// Free extents of a range of lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeExtentClass {
    /// Least length in bytes, a power of two times the block size; below twice as much.
    pub min_bytes: u64,
    /// How many there are.
    pub count: u64,
    /// Their bytes in all.
    pub bytes: u64,
}

/// How free space lies.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FreeExtents {
    /// Classes that are not empty, by growing length.
    pub classes: Vec<FreeExtentClass>,
    /// Extents in all.
    pub count: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// The longest extent in bytes.
    pub largest: u64,
}

/// What [`ObjectStore::verify`](super::ObjectStore::verify) found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVerifyReport {
    /// Objects in the index.
    pub objects: u64,
    /// Sequences in the index.
    pub sequences: u64,
    /// Files looked at.
    pub files: u64,
    /// Bytes of all objects, holes included.
    pub bytes: u64,
    /// Space of all objects in units of 512 bytes.
    pub blocks: u64,
    /// Result for the index.
    pub index: VerifyReport,
    /// Damage found, the first [`ObjectVerifyReport::PROBLEMS_MAX`] of it; damage of the index is in `index`.
    pub problems: Vec<ObjectProblem>,
    /// All damage found, also that beyond `problems`.
    pub problem_count: u64,
    /// Damage that was mended.
    pub repaired: u64,
}

impl ObjectVerifyReport {
    /// Longest list of problems kept.
    pub const PROBLEMS_MAX: usize = 100;

    /// True if nothing is damaged (any more).
    pub fn is_clean(&self) -> bool {
        self.problem_count == self.repaired && self.index.problem_count == 0
    }

    pub(crate) fn add(&mut self, problem: ObjectProblem, repaired: bool) {
        self.problem_count += 1;
        self.repaired += u64::from(repaired);
        if self.problems.len() < Self::PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectProblem {
    /// The file of an object is gone: its data is lost.
    #[error("object {object}: its file {slot:06x} is missing")]
    FileMissing {
        /// The object.
        object: Fid,
        /// Number of the file.
        slot: u32,
    },
    /// Two objects claim one file.
    #[error("file {slot:06x} belongs to two objects, one of them {object}")]
    FileShared {
        /// The object found second.
        object: Fid,
        /// Number of the file.
        slot: u32,
    },
    /// A file that belongs to no object holds data. Mended by emptying it.
    #[error("file {slot:06x} belongs to no object and holds {size} bytes")]
    FreeFileNotEmpty {
        /// Number of the file.
        slot: u32,
        /// Its size in bytes.
        size: u64,
    },
    /// Something that the store did not put there.
    #[error("{path} does not belong here")]
    Stray {
        /// Where.
        path: PathBuf,
    },
    /// One of the copies of what says what the store is. Mended by opening it.
    #[error("{} is damaged, its other copy is not", path.display())]
    Copy {
        /// The damaged one.
        path: PathBuf,
    },
    /// One of the labels of a device. Mended by writing it anew.
    #[error("the label in the {place} block of the device {what}")]
    Label {
        /// Which one.
        place: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// A record of the index cannot be read by this program.
    #[error("record with key {} cannot be read: {error}", hex(key))]
    Record {
        /// Its key.
        key: Vec<u8>,
        /// Why.
        error: nacre_ondisk::DecodeError,
    },
    /// Bytes in records without an object.
    #[error("object {object}: bytes without its head")]
    NoHead {
        /// The object.
        object: Fid,
    },
    /// The records of an object do not hold what its head says.
    #[error("object {object}: its records hold {found} bytes, not {said}")]
    Space {
        /// The object.
        object: Fid,
        /// Bytes by its head.
        said: u64,
        /// Bytes found.
        found: u64,
    },
    /// The data of an object is not what was written.
    #[error("object {object}: data at offset {offset} is damaged (block at {at_device} of the device)")]
    Data {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
        /// Where on the device, in bytes.
        at_device: u64,
    },
    /// The same where objects are files.
    #[error("object {object}: data at offset {offset} is damaged")]
    Sum {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// The data of an object cannot be read.
    #[error("object {object}: data at offset {offset} cannot be read (block at {at_device} of the device)")]
    Unreadable {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
        /// Where on the device, in bytes.
        at_device: u64,
    },
    /// Data of an object that only the cache of small writes has is not what was written.
    #[error("object {object}: the cache holds data at offset {offset} that is damaged")]
    Cached {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// A block of the device belongs to two objects, or lies outside of it.
    #[error("object {object}: the block at {at_device} of the device is not its own")]
    NotItsOwn {
        /// The object found second.
        object: Fid,
        /// Where on the device, in bytes.
        at_device: u64,
    },
    /// Blocks that are neither free nor any object's.
    #[error("{blocks} blocks of the device are neither free nor used")]
    Leaked {
        /// How many; more are free or used than there are if negative.
        blocks: i64,
    },
    /// An object has an id that was never reserved. Mended by raising the mark, so that the id is not given out again.
    #[error("object {object} lies above the last reserved id {last_reserved} of its sequence")]
    AboveReserved {
        /// The object.
        object: Fid,
        /// Largest id reserved.
        last_reserved: u32,
    },
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
