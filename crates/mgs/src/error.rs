//! What can go wrong when the configuration is read or stored.

use std::io;
use std::path::PathBuf;

/// An error of the management server's own storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// Verb phrase of what was tried.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file is there but does not say what it should.
    #[error("{} is damaged at line {line}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 if it concerns the whole.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The directory holds no configuration.
    #[error("there is no configuration in {}", dir.display())]
    Missing {
        /// Directory looked at.
        dir: PathBuf,
    },
    /// The directory holds a configuration already.
    #[error("there is a configuration in {} already", dir.display())]
    Exists {
        /// Directory looked at.
        dir: PathBuf,
    },
}
