//! Why a metadata target cannot be made or started.

use nacre_ondisk::DecodeError;
use nacre_store::MetaError;
use nacre_store::object::ObjectError;
use std::path::PathBuf;

/// An error of [`crate::Mds::format`], [`crate::Mds::open`] and the offline check.
#[derive(Debug, thiserror::Error)]
pub enum MdsError {
    /// The store said no.
    #[error(transparent)]
    Store(#[from] MetaError),
    /// The place for data of files cannot be used.
    #[error("data of files on the metadata target: {0}")]
    Data(#[from] ObjectError),
    /// The directory could not be made or looked at.
    #[error("{action} {path}: {source}")]
    Io {
        /// Verb phrase of what was tried.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
    /// There is an MDT already.
    #[error("{0} already holds a metadata target")]
    Exists(PathBuf),
    /// The store holds no MDT.
    #[error("{0} holds no metadata target: format it first")]
    NotFormatted(PathBuf),
    /// A record of the MDT itself cannot be read.
    #[error("the {what} record of the metadata target is damaged: {source}")]
    Damaged {
        /// Which record.
        what: &'static str,
        /// The cause.
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
    /// The store for data of files that the MDT was made with is missing, or there is one that it was not made with.
    #[error("{0}")]
    DataPlace(&'static str),
    /// A thread could not be started.
    #[error("starting a thread of the metadata server: {0}")]
    Thread(#[source] std::io::Error),
}
