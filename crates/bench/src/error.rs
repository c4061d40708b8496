use std::io;
use std::path::{Path, PathBuf};

/// An error while measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a path failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Attempted action, a verb.
        action: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A worker process failed or sent something unexpected.
    #[error("worker process: {0}")]
    Worker(String),
    /// A file system under test did not start or ended early.
    #[error("{what}: {reason}")]
    Server {
        /// Name of the file system or program.
        what: String,
        /// Its error message.
        reason: String,
    },
    /// The FUSE channel failed.
    #[error(transparent)]
    Fuse(#[from] nacre_fuse::Error),
    /// An object store reported an error.
    #[error(transparent)]
    Objects(#[from] nacre_store::object::ObjectError),
    /// Ctrl-C; finished results are kept.
    #[error("interrupted")]
    Interrupted,
    /// The options make no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// Returns a closure for `map_err` that names the attempted action and the path.
    pub(crate) fn io<E: Into<io::Error>>(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(E) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { action, path, source: source.into() }
    }

    /// For `map_err`: the options make no sense, for this reason.
    pub(crate) fn usage(reason: impl std::fmt::Display) -> Error {
        Error::Usage(reason.to_string())
    }
}
