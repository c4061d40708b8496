//! Counters and the result of a check.

use crate::meta::VerifyReport;
use nacre_types::Fid;
use std::path::PathBuf;

/// A snapshot of a store's counters; sums since the store was opened unless noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectStoreStats {
    /// Objects that exist at this moment.
    pub objects: u64,
    /// Objects created.
    pub created: u64,
    /// Objects destroyed.
    pub destroyed: u64,
    /// Files that were created for objects because no free one was available.
    pub files_made: u64,
    /// Files that are free for new objects at this moment.
    pub files_free: u64,
    /// Files whose emptying is not durable yet, so that they cannot be reused at this moment.
    pub files_pending: u64,
    /// Objects that were opened because they were not open.
    pub opens: u64,
    /// Objects open at this moment.
    pub open_now: u64,
    /// Reads that waited for the medium.
    pub reads_waited: u64,
    /// Reads that bypassed the page cache, which are among those that waited.
    pub reads_direct: u64,
    /// Writes that bypassed the page cache.
    pub writes_direct: u64,
    /// Writes refused because only the reserve was left.
    pub refused_full: u64,
    /// Syncs that failed.
    pub sync_failures: u64,
    /// Files found not empty when the store was opened after a crash, and emptied.
    pub recovered_files: u64,
    /// Windows of up to 1 MiB that a device began to read ahead of a stream.
    pub read_ahead: u64,
    /// Windows that a stream used.
    pub read_ahead_used: u64,
    /// Flushes of a device.
    pub flushes: u64,
    /// Blocks whose checksum did not match.
    pub checksum_errors: u64,
    /// Bytes read by the scrub.
    pub scrubbed_bytes: u64,
    /// Blocks that were reverted after a power cut.
    pub recovered_blocks: u64,
}

/// A piece of an object on the medium. Offsets and length in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectExtent {
    /// Offset in the object, in bytes.
    pub logical: u64,
    /// Offset on the medium, in bytes.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Free extents of a range of lengths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeExtentClass {
    /// Least length in bytes, a power of two times the block size; lengths are below twice as much.
    pub min_bytes: u64,
    /// Number of extents.
    pub count: u64,
    /// Total length in bytes.
    pub bytes: u64,
}

/// Statistics of free extents.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FreeExtents {
    /// Non-empty classes, by increasing length.
    pub classes: Vec<FreeExtentClass>,
    /// Number of all extents.
    pub count: u64,
    /// Total length in bytes.
    pub bytes: u64,
    /// Length of the longest extent in bytes.
    pub largest: u64,
}

/// Result of [`ObjectStore::verify`](super::ObjectStore::verify).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectVerifyReport {
    /// Objects in the index.
    pub objects: u64,
    /// Sequences in the index.
    pub sequences: u64,
    /// Files examined.
    pub files: u64,
    /// Bytes of all objects, holes included.
    pub bytes: u64,
    /// Space of all objects in units of 512 bytes.
    pub blocks: u64,
    /// Result of the check of the index.
    pub index: VerifyReport,
    /// Damage found, the first [`ObjectVerifyReport::PROBLEMS_MAX`] of it; damage of the index is in `index`.
    pub problems: Vec<ObjectProblem>,
    /// Number of all problems found, also those beyond `problems`.
    pub problem_count: u64,
    /// Problems that were repaired.
    pub repaired: u64,
}

impl ObjectVerifyReport {
    /// Longest list of problems kept.
    pub const PROBLEMS_MAX: usize = 100;

    /// Whether no damage remains.
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

/// A problem found by the check.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectProblem {
    /// The file of an object is missing: its data is lost.
    #[error("object {object}: its file {slot:06x} is missing")]
    FileMissing {
        /// Object of the file.
        object: Fid,
        /// Number of the slot file.
        slot: u32,
    },
    /// Two objects claim one file.
    #[error("file {slot:06x} belongs to two objects, one of them {object}")]
    FileShared {
        /// Object found second.
        object: Fid,
        /// Number of the slot file.
        slot: u32,
    },
    /// A file that belongs to no object holds data. Repaired by emptying it.
    #[error("file {slot:06x} belongs to no object and holds {size} bytes")]
    FreeFileNotEmpty {
        /// Number of the slot file.
        slot: u32,
        /// Size of the file in bytes.
        size: u64,
    },
    /// An entry that does not belong to the store.
    #[error("{path} does not belong here")]
    Stray {
        /// Path of the entry.
        path: PathBuf,
    },
    /// One of the copies of the store's identity. Repaired by opening the store.
    #[error("{} is damaged, its other copy is not", path.display())]
    Copy {
        /// Path of the damaged copy.
        path: PathBuf,
    },
    /// One of the labels of a device. Repaired by rewriting it.
    #[error("the label in the {place} block of the device {what}")]
    Label {
        /// Which of the labels.
        place: &'static str,
        /// Description of the damage.
        what: String,
    },
    /// A record of the index cannot be read by this program.
    #[error("record with key {} cannot be read: {error}", hex(key))]
    Record {
        /// Key of the record.
        key: Vec<u8>,
        /// Reason.
        error: nacre_ondisk::DecodeError,
    },
    /// Records with bytes of an object that has no head.
    #[error("object {object}: bytes without its head")]
    NoHead {
        /// Object of the records.
        object: Fid,
    },
    /// The records of an object contradict its head.
    #[error("object {object}: its records hold {found} bytes, not {said}")]
    Space {
        /// Object of the records.
        object: Fid,
        /// Bytes according to its head.
        said: u64,
        /// Bytes found in its records.
        found: u64,
    },
    /// The data of an object does not match its checksum.
    #[error("object {object}: data at offset {offset} is damaged (block at {at_device} of the device)")]
    Data {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
        /// Offset on the device, in bytes.
        at_device: u64,
    },
    /// The data of an object does not match its checksum, in a store with a file per object.
    #[error("object {object}: data at offset {offset} is damaged")]
    Sum {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// The data of an object cannot be read.
    #[error("object {object}: data at offset {offset} cannot be read (block at {at_device} of the device)")]
    Unreadable {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
        /// Offset on the device, in bytes.
        at_device: u64,
    },
    /// Data of an object that only the cache of small writes has does not match its checksum.
    #[error("object {object}: the cache holds data at offset {offset} that is damaged")]
    Cached {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// A block of the device belongs to two objects, or is outside of it.
    #[error("object {object}: the block at {at_device} of the device is not its own")]
    NotItsOwn {
        /// Object found second.
        object: Fid,
        /// Offset on the device, in bytes.
        at_device: u64,
    },
    /// Blocks that are neither free nor owned by an object.
    #[error("{blocks} blocks of the device are neither free nor used")]
    Leaked {
        /// Number of blocks; negative if more are counted as free or used than there are.
        blocks: i64,
    },
    /// An object has an id that was never reserved. Repaired by raising the mark, so that the id is not
    /// allocated again.
    #[error("object {object} lies above the last reserved id {last_reserved} of its sequence")]
    AboveReserved {
        /// Object with the id.
        object: Fid,
        /// Largest id reserved in its sequence.
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
