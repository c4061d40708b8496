//! Errors of the metadata store, distinguished by what the caller can do about them.

use std::io;
use std::path::PathBuf;

use nacre_types::Status;

/// Shorthand for results of the metadata store.
pub type Result<T> = std::result::Result<T, MetaError>;

/// Errors of [`MetaStore`](super::MetaStore).
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// A system call on one of the store's files failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// Verb phrase of the attempted action.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The base (LMDB) returned an error.
    #[error("{action} in the base of the metadata store: {source}")]
    Base {
        /// Verb phrase of the attempted action.
        action: &'static str,
        /// Cause.
        #[source]
        source: heed::Error,
    },
    /// No space for the batch. Nothing was changed; deletes marked with
    /// [`Batch::set_releasing`](super::Batch::set_releasing) are accepted longer than other batches, so that
    /// space can be freed.
    #[error("no space left for the metadata store")]
    NoSpace,
    /// An earlier write or sync failed, so durability can no longer be promised. Reads continue; every later
    /// commit and sync returns this until the store is opened again.
    #[error("the metadata store has failed and accepts no changes until it is opened again: {cause}")]
    Failed {
        /// Text of the first failure.
        cause: std::sync::Arc<str>,
    },
    /// Another process (or another handle in this one) has the store open.
    #[error("the metadata store {dir} is in use by another process")]
    InUse {
        /// Directory of the store.
        dir: PathBuf,
    },
    /// The directory holds no store and [`MetaStoreOptions::create`](super::MetaStoreOptions) is off.
    #[error("there is no metadata store in {dir}")]
    Missing {
        /// Directory that was examined.
        dir: PathBuf,
    },
    /// The directory holds something that is not a NacreFS metadata store.
    #[error("{path} is not part of a NacreFS metadata store")]
    Foreign {
        /// Path of the file or directory.
        path: PathBuf,
    },
    /// The store was written by a newer program.
    #[error(
        "metadata store format {found} is newer than this program supports ({supported}): use a newer nacre"
    )]
    TooNew {
        /// Version on disk.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// The store was written by a program whose format is no longer read.
    #[error(
        "metadata store format {found} is older than this program reads ({supported}): upgrade it with an older nacre first"
    )]
    TooOld {
        /// Version on disk.
        found: u32,
        /// Oldest version that this program reads.
        supported: u32,
    },
    /// Bytes that were durable do not match their checksum or contradict each other.
    #[error("metadata store damaged: {what} in {path} at offset {offset}")]
    Corrupt {
        /// Description of the damage.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Byte offset in the file, 0 if unknown.
        offset: u64,
    },
    /// The free list of the base names pages that are in use or do not exist. Stored entries are unaffected,
    /// but writing is not possible.
    #[error(
        "metadata store damaged: {what} in {path} at offset {offset}: 'nacre check' lists the damage, with --repair it rebuilds the base"
    )]
    FreePages {
        /// Description of the damage.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Byte offset in the file.
        offset: u64,
    },
    /// A key is empty or longer than [`KEY_LEN_MAX`](super::KEY_LEN_MAX). Nothing was changed.
    #[error("metadata key of {len} bytes is outside 1..={}", super::KEY_LEN_MAX)]
    KeyLength {
        /// Length of the key in bytes.
        len: usize,
    },
    /// A value is longer than [`VALUE_LEN_MAX`](super::VALUE_LEN_MAX). Nothing was changed.
    #[error("metadata value of {len} bytes is longer than {}", super::VALUE_LEN_MAX)]
    ValueLength {
        /// Length of the value in bytes.
        len: usize,
    },
    /// A batch does not fit into one log segment. Nothing was changed.
    #[error("metadata batch of {len} bytes is longer than {max}")]
    BatchLength {
        /// Encoded length of the batch in bytes.
        len: usize,
        /// Maximum length in bytes that this store accepts.
        max: usize,
    },
    /// The store was opened read-only.
    #[error("the metadata store was opened for looking only")]
    ReadOnly,
    /// The store was closed.
    #[error("the metadata store is closed")]
    Closed,
    /// An option has an invalid value.
    #[error("metadata store option {option} must be {requirement}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Requirement that the value violates.
        requirement: &'static str,
    },
}

impl MetaError {
    /// Returns the status that a peer receives.
    pub fn status(&self) -> Status {
        match self {
            MetaError::NoSpace => Status::ENOSPC,
            MetaError::KeyLength { .. } | MetaError::Option { .. } => Status::EINVAL,
            MetaError::ValueLength { .. } | MetaError::BatchLength { .. } => Status::E2BIG,
            MetaError::Closed => Status::ESHUTDOWN,
            MetaError::InUse { .. } => Status::EBUSY,
            MetaError::ReadOnly => Status::EROFS,
            MetaError::Missing { .. } => Status::ENOENT,
            _ => Status::EIO,
        }
    }
}
