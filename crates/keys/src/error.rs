//! Errors of keys.

use nacre_types::IdentityError;
use std::io;
use std::path::{Path, PathBuf};

/// Results of this crate.
pub type Result<T> = std::result::Result<T, KeyError>;

/// An error about a key, a certificate or a token: one sentence that names it. None shows a secret.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Attempted action, such as "read".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Users other than the owner have access to a file that holds a secret.
    #[error("{} may be read or changed by others (mode {mode:03o}): 'chmod go= {}' and consider its key known", path.display(), path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file that holds a secret belongs to another user.
    #[error("{} belongs to user {owner}, not to user {user} or root: it is not used", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// User of this process.
        user: u32,
    },
    /// A file does not have the expected content.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The missing part.
        what: &'static str,
    },
    /// A certificate does not name an identity.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// A certificate or a signing request was rejected, or could not be created.
    #[error("{what}: {reason}")]
    Certificate {
        /// Attempted action.
        what: &'static str,
        /// Reason of the failure.
        reason: String,
    },
    /// A text is not a token.
    #[error("this is not a token of 'nacre key token': {0}")]
    Token(&'static str),
    /// The system returned no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

impl KeyError {
    pub(crate) fn io<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> KeyError + 'a {
        move |source| KeyError::Io { what, path: path.to_owned(), source }
    }

    pub(crate) fn certificate(what: &'static str, reason: impl ToString) -> KeyError {
        KeyError::Certificate { what, reason: reason.to_string() }
    }
}
