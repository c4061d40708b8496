//! Errors of reading and storing the configuration.

use std::io;
use std::path::PathBuf;

/// An error of the management server's own storage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The failed action, as a verb phrase.
        action: &'static str,
        /// File or directory concerned.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The file exists but is malformed.
    #[error("{} is damaged at line {line}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Line, from 1; 0 if the file as a whole is malformed.
        line: usize,
        /// The defect.
        what: &'static str,
    },
    /// The file has a form of another version.
    #[error("{} has format {found}, and this program reads {known}: use the nacre that wrote it", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Version found.
        found: u32,
        /// Version that this program reads.
        known: u32,
    },
    /// The directory holds no configuration.
    #[error("there is no configuration in {}", dir.display())]
    Missing {
        /// Directory that was searched.
        dir: PathBuf,
    },
    /// The directory holds a configuration already.
    #[error("there is a configuration in {} already", dir.display())]
    Exists {
        /// Directory that was searched.
        dir: PathBuf,
    },
}
