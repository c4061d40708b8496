//! What can go wrong in an object store.

use super::block::DeviceProblem;
use super::nxd::CacheProblem;
use crate::meta::MetaError;
use nacre_ondisk::object::ObjectDirectoryError;
use nacre_types::{Fid, Status};
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Result of object store calls.
pub type Result<T> = std::result::Result<T, ObjectError>;

/// Errors of an object store.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// The operating system refused.
    #[error("{action} of object {object}: {source}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The object concerned.
        object: Fid,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The operating system refused, and no object was concerned.
    #[error("{action} {path}: {source}")]
    Path {
        /// Verb phrase of what was tried.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The index of objects refused.
    #[error("index of objects: {0}")]
    Index(#[from] MetaError),
    /// No room, or only the reserve is left.
    #[error("no space left for object data")]
    NoSpace,
    /// The range ends beyond the largest size of an object.
    #[error("objects cannot be that large")]
    TooLarge,
    /// A range of no bytes.
    #[error("the range is empty")]
    Empty,
    /// The file that the object would belong to is gone.
    #[error("object {0} belongs to no file")]
    Gone(Fid),
    /// The object was written to before, as its file's layout says, and does not exist.
    #[error(
        "object {0} was written to and is not there: the target was restored from an older copy, or lost it; \
         'nacre check' names the file"
    )]
    Lost(Fid),
    /// There is no data or hole at or after the offset.
    #[error("no data at or after the offset")]
    NoData,
    /// All ids of a sequence have been given out.
    #[error("sequence {0:#x} has no object ids left")]
    SequenceFull(u64),
    /// A record of the index, or what it says, cannot be.
    #[error("object {object} is damaged: {what}")]
    Damaged {
        /// The object.
        object: Fid,
        /// What is wrong.
        what: &'static str,
    },
    /// A record of the index that belongs to no object cannot be.
    #[error("the index of objects is damaged: {what}")]
    IndexDamaged {
        /// What is wrong.
        what: &'static str,
    },
    /// There is no object store in the directory, and making one was not asked for.
    #[error("there is no object store in {dir}")]
    Missing {
        /// Directory looked at.
        dir: PathBuf,
    },
    /// The directory holds something else.
    #[error("{dir} is not empty and not an object store")]
    Foreign {
        /// Directory looked at.
        dir: PathBuf,
    },
    /// The directory cannot be used by this program.
    #[error("the object store {dir} cannot be opened: {source}")]
    Header {
        /// Directory looked at.
        dir: PathBuf,
        /// Why.
        #[source]
        source: ObjectDirectoryError,
    },
    /// The directory belongs to another target.
    #[error("{dir} belongs to target {found}, not to {wanted}")]
    OtherTarget {
        /// Directory looked at.
        dir: PathBuf,
        /// Label found.
        found: String,
        /// Label asked for.
        wanted: String,
    },
    /// Index and files do not belong together.
    #[error("the index in {dir} belongs to another object store")]
    OtherIndex {
        /// Directory looked at.
        dir: PathBuf,
    },
    /// Another process (or another handle in this one) has the store open.
    #[error("the object store {dir} is in use by another process")]
    InUse {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// The device of a store cannot be used.
    #[error("the device {device} cannot be used: {problem}")]
    Device {
        /// Its name.
        device: String,
        /// Why.
        #[source]
        problem: DeviceProblem,
    },
    /// Data is not what was written.
    #[error(
        "object {object} is damaged: the checksum at offset {offset}, block at {at_device} of the device, does not match"
    )]
    Checksum {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
        /// Where on the device, in bytes.
        at_device: u64,
    },
    /// The same where objects are files.
    #[error("object {object} is damaged: the checksum at offset {offset} does not match")]
    Sum {
        /// The object.
        object: Fid,
        /// Where in it, in bytes.
        offset: u64,
    },
    /// The cache of small writes in front of a store cannot be used.
    #[error("the cache {device} of small writes: {problem}")]
    Cache {
        /// Its device.
        device: String,
        /// Why.
        #[source]
        problem: CacheProblem,
    },
    /// A medium does not want to know what is free.
    #[error("{medium} cannot be trimmed: {}", trim_refusal(.source))]
    NoTrim {
        /// Device, or directory of the file system.
        medium: String,
        /// What it said.
        #[source]
        source: io::Error,
    },
    /// The store was closed.
    #[error("the object store is closed")]
    Closed,
}

/// What it means that a medium refused to be told.
fn trim_refusal(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::PERM | Errno::ACCESS) => "only root may do that",
        Some(Errno::ROFS) => "it is read-only",
        Some(Errno::NOTTY) => "its file system has no such call",
        _ => "it, or what lies below it, has no way to give space back",
    }
}

impl ObjectError {
    /// What a peer is told.
    pub fn status(&self) -> Status {
        match self {
            ObjectError::Io { source, .. }
            | ObjectError::Path { source, .. }
            | ObjectError::NoTrim { source, .. } => Status::from_io(source),
            ObjectError::Index(error) => error.status(),
            ObjectError::NoSpace | ObjectError::SequenceFull(_) => Status::ENOSPC,
            ObjectError::TooLarge => Status::EFBIG,
            ObjectError::Empty => Status::EINVAL,
            ObjectError::NoData => Status::ENXIO,
            ObjectError::Gone(_) => Status::ESTALE,
            ObjectError::Lost(_) => Status::OBJECT_LOST,
            ObjectError::Missing { .. } => Status::ENOENT,
            ObjectError::InUse { .. } => Status::EBUSY,
            ObjectError::Closed => Status::ESHUTDOWN,
            ObjectError::Damaged { .. }
            | ObjectError::IndexDamaged { .. }
            | ObjectError::Foreign { .. }
            | ObjectError::Header { .. }
            | ObjectError::OtherTarget { .. }
            | ObjectError::OtherIndex { .. }
            | ObjectError::Device { .. }
            | ObjectError::Cache { .. }
            | ObjectError::Checksum { .. }
            | ObjectError::Sum { .. } => Status::EIO,
        }
    }

    /// Wraps a refusal to be told of free space; what concerns one call only stays an I/O error.
    pub(crate) fn trim(medium: &dyn std::fmt::Display, source: io::Error) -> ObjectError {
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS | Errno::ROFS | Errno::NOTTY | Errno::OPNOTSUPP) => {
                ObjectError::NoTrim { medium: medium.to_string(), source }
            }
            _ => ObjectError::Path {
                action: "report free space",
                path: PathBuf::from(medium.to_string()),
                source,
            },
        }
    }

    /// Wraps a failed system call on an object; the few that callers tell apart get their own variant.
    pub(crate) fn io(action: &'static str, object: Fid, error: rustix::io::Errno) -> ObjectError {
        match error {
            rustix::io::Errno::NOSPC => ObjectError::NoSpace,
            rustix::io::Errno::FBIG => ObjectError::TooLarge,
            _ => ObjectError::Io { action, object, source: error.into() },
        }
    }
}
