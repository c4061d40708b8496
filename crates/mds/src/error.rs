//! Why a metadata target cannot be formatted or started.

use nacre_ondisk::DecodeError;
use nacre_store::MetaError;
use nacre_store::object::ObjectError;
use std::path::PathBuf;

/// An error of [`crate::Mds::format`], [`crate::Mds::open`] and the offline check.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The metadata store reported an error.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// The store for data of files cannot be used.
    #[error("data of files on the metadata target: {0}")]
    Data(#[from] ObjectError),
    /// The directory could not be created or examined.
    #[error("{action} {path}: {source}")]
    Io {
        /// Verb phrase of the failed action.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The directory already has an MDT.
    #[error("{0} already holds a metadata target")]
    Exists(PathBuf),
    /// The store has no MDT.
    #[error("{0} holds no metadata target: format it first")]
    NotFormatted(PathBuf),
    /// A record of the MDT itself cannot be decoded.
    #[error("the {what} record of the metadata target is damaged: {source}")]
    Damaged {
        /// Name of the record.
        what: &'static str,
        /// Reason of the decoder.
        #[source]
        source: DecodeError,
    },
    /// The directory belongs to another MDT.
    #[error("this is MDT{found:04x}, not MDT{expected:04x}")]
    WrongIndex {
        /// Index on disk.
        found: u16,
        /// Index in the configuration.
        expected: u16,
    },
    /// The store for data of files does not match the format of the MDT: it is missing, or the MDT was
    /// formatted without it.
    #[error("{0}")]
    DataPlace(&'static str),
    /// A repair failed at a step that requests of clients take as well.
    #[error("{action}: {status}")]
    Status {
        /// Verb phrase of the failed action.
        action: &'static str,
        /// Reason.
        status: nacre_types::Status,
    },
    /// A thread could not be started.
    #[error("starting a thread of the metadata server: {0}")]
    Thread(#[source] std::io::Error),
}
