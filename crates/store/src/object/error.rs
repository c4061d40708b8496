//! Errors of an object store.

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
    /// The operating system returned an error.
    #[error("{action} of object {object}: {source}")]
    Io {
        /// Verb phrase of the attempted action.
        action: &'static str,
        /// Object concerned.
        object: Fid,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The operating system returned an error for no particular object.
    #[error("{action} {path}: {source}")]
    Path {
        /// Verb phrase of the attempted action.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The index of objects returned an error.
    #[error("index of objects: {0}")]
    Index(#[from] MetaError),
    /// No free space, or only the reserve is left.
    #[error("no space left for object data")]
    NoSpace,
    /// The range ends beyond the maximum size of an object.
    #[error("objects cannot be that large")]
    TooLarge,
    /// The range is empty.
    #[error("the range is empty")]
    Empty,
    /// The file that owns the object was removed.
    #[error("object {0} belongs to no file")]
    Gone(Fid),
    /// The object was written before, according to its file's layout, and does not exist.
    #[error(
        "object {0} was written to and is not there: the target was restored from an older copy, or lost it; \
         'nacre check' names the file"
    )]
    Lost(Fid),
    /// There is no data or hole at or after the offset.
    #[error("no data at or after the offset")]
    NoData,
    /// All ids of a sequence are allocated.
    #[error("sequence {0:#x} has no object ids left")]
    SequenceFull(u64),
    /// A record of the index, or its content, is invalid.
    #[error("object {object} is damaged: {what}")]
    Damaged {
        /// Object of the record.
        object: Fid,
        /// Description of the damage.
        what: &'static str,
    },
    /// A record of the index that belongs to no object is invalid.
    #[error("the index of objects is damaged: {what}")]
    IndexDamaged {
        /// Description of the damage.
        what: &'static str,
    },
    /// The directory contains no object store, and creating one was not requested.
    #[error("there is no object store in {dir}")]
    Missing {
        /// Directory that was examined.
        dir: PathBuf,
    },
    /// The directory contains something else.
    #[error("{dir} is not empty and not an object store")]
    Foreign {
        /// Directory that was examined.
        dir: PathBuf,
    },
    /// The header of the directory is not usable by this program.
    #[error("the object store {dir} cannot be opened: {source}")]
    Header {
        /// Directory that was examined.
        dir: PathBuf,
        /// Reason.
        #[source]
        source: ObjectDirectoryError,
    },
    /// The directory belongs to another target.
    #[error("{dir} belongs to target {found}, not to {wanted}")]
    OtherTarget {
        /// Directory that was examined.
        dir: PathBuf,
        /// Label found.
        found: String,
        /// Label asked for.
        wanted: String,
    },
    /// Index and files do not belong together.
    #[error("the index in {dir} belongs to another object store")]
    OtherIndex {
        /// Directory that was examined.
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
        /// Name of the device.
        device: String,
        /// Reason.
        #[source]
        problem: DeviceProblem,
    },
    /// Data does not match its checksum.
    #[error(
        "object {object} is damaged: the checksum at offset {offset}, block at {at_device} of the device, does not match"
    )]
    Checksum {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
        /// Offset on the device, in bytes.
        at_device: u64,
    },
    /// Data does not match its checksum, in a store with a file per object.
    #[error("object {object} is damaged: the checksum at offset {offset} does not match")]
    Sum {
        /// Object of the data.
        object: Fid,
        /// Offset in the object, in bytes.
        offset: u64,
    },
    /// The cache of small writes in front of a store cannot be used.
    #[error("the cache {device} of small writes: {problem}")]
    Cache {
        /// Device of the cache.
        device: String,
        /// Reason.
        #[source]
        problem: CacheProblem,
    },
    /// A medium does not want to know what is free.
    #[error("{medium} cannot be trimmed: {}", trim_refusal(.source))]
    NoTrim {
        /// Device, or directory of the file system.
        medium: String,
        /// Error that it returned.
        #[source]
        source: io::Error,
    },
    /// The store was closed.
    #[error("the object store is closed")]
    Closed,
}

/// Returns the meaning of a medium's refusal of trim.
fn trim_refusal(source: &io::Error) -> &'static str {
    match Errno::from_io_error(source) {
        Some(Errno::PERM | Errno::ACCESS) => "only root may do that",
        Some(Errno::ROFS) => "it is read-only",
        Some(Errno::NOTTY) => "its file system has no such call",
        _ => "it, or what lies below it, has no way to give space back",
    }
}

/// Returns the status of a failed call on the medium. The errno is the server's own: of a disk that fails, the file system
/// on it returns `EIO`, `EROFS`, `ENOMEM` or others, and peers know `EIO`.
fn failed_call(source: &io::Error) -> Status {
    match Errno::from_io_error(source) {
        Some(Errno::NOSPC | Errno::DQUOT) => Status::ENOSPC,
        _ => Status::EIO,
    }
}

impl ObjectError {
    /// Returns the status that a peer receives.
    pub fn status(&self) -> Status {
        match self {
            ObjectError::Io { source, .. } | ObjectError::Path { source, .. } => failed_call(source),
            ObjectError::NoTrim { source, .. } => Status::from_io(source),
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

    /// Wraps a refusal of trim; an error that concerns one call only stays an I/O error.
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

    /// Wraps a failed system call on an object; the few errors that callers distinguish get variants of their
    /// own.
    pub(crate) fn io(action: &'static str, object: Fid, error: rustix::io::Errno) -> ObjectError {
        match error {
            rustix::io::Errno::NOSPC => ObjectError::NoSpace,
            rustix::io::Errno::FBIG => ObjectError::TooLarge,
            _ => ObjectError::Io { action, object, source: error.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_receive_eio_for_every_error_of_the_medium_but_a_full_one() {
        let of = |errno: Errno| {
            let path = PathBuf::from("objects");
            let status = ObjectError::Path { action: "write", path, source: errno.into() }.status();
            assert_eq!(ObjectError::io("write", Fid::ZERO, errno).status(), status, "{errno:?}");
            status
        };
        for errno in [Errno::IO, Errno::ROFS, Errno::NOMEM, Errno::NXIO, Errno::ACCESS, Errno::MFILE] {
            assert_eq!(of(errno), Status::EIO, "{errno:?}");
        }
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            assert_eq!(of(errno), Status::ENOSPC, "{errno:?}");
        }
    }
}
