//! Failures of `nacre` commands: one sentence for people, one number for scripts.

use rustix::io::Errno;
use std::fmt;

/// Exit code of a failure at run time.
pub const EXIT_FAILURE: i32 = 1;
/// Exit code of a wrong call.
pub const EXIT_USAGE: i32 = 2;

/// Failure that ends a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Exit code.
    pub exit: i32,
    /// One sentence that says what is wrong and what to do.
    pub message: String,
}

/// Shorthand for results of commands.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// Returns a failure at run time.
    pub fn new(message: impl Into<String>) -> Failure {
        Failure { exit: EXIT_FAILURE, message: message.into() }
    }

    /// Returns the failure of a wrong call.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { exit: EXIT_USAGE, message: message.into() }
    }

    /// Returns a failure that was already reported.
    pub fn told(exit: i32) -> Failure {
        Failure { exit, message: String::new() }
    }

    /// Returns a closure for `map_err`: `what` is a verb phrase such as "create /srv/fs".
    pub fn because<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Failure {
        move |error| Failure::new(format!("cannot {what}: {error}"))
    }
}

/// Returns the C library's text for an errno, as other tools print it.
pub fn error_text(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
