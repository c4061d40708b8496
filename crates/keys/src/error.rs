//! What goes wrong with keys.

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
        /// Such as "read".
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Others than its owner may use a file that holds a secret.
    #[error("{} may be read or changed by others (mode {mode:03o}): 'chmod go= {}' and consider its key known", path.display(), path.display())]
    Exposed {
        /// The file or directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file that holds a secret belongs to somebody else.
    #[error("{} belongs to user {owner}, not to user {user} or root: it is not used", path.display())]
    Foreign {
        /// The file or directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// A file has something else in it than it should.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        what: &'static str,
    },
    /// A certificate names no identity.
    #[error("{0}")]
    Identity(#[from] IdentityError),
    /// A certificate or a request for one is not accepted, or cannot be made.
    #[error("{what}: {reason}")]
    Certificate {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// A text is not a token.
    #[error("this is not a token of 'nacre key token': {0}")]
    Token(&'static str),
    /// The system gives no random numbers.
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
