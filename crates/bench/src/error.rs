use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong while measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on a path failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was attempted, a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A worker process failed or said something unexpected.
    #[error("worker process: {0}")]
    Worker(String),
    /// A file system under test did not come up or ended early.
    #[error("{what}: {reason}")]
    Server {
        /// Which one.
        what: String,
        /// What it said.
        reason: String,
    },
    /// The FUSE channel failed.
    #[error(transparent)]
    Fuse(#[from] nacre_fuse::Error),
    /// An object store refused.
    #[error(transparent)]
    Objects(#[from] nacre_store::object::ObjectError),
    /// Ctrl-C; what was done is kept.
    #[error("interrupted")]
    Interrupted,
    /// The wish makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    /// For `map_err`: names what was attempted on which path.
    pub(crate) fn io<E: Into<io::Error>>(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(E) -> Error {
        let path = path.as_ref().to_owned();
        move |source| Error::Io { action, path, source: source.into() }
    }

    /// For `map_err`: the wish makes no sense, for this reason.
    pub(crate) fn usage(reason: impl std::fmt::Display) -> Error {
        Error::Usage(reason.to_string())
    }
}
