//! File systems of real processes for tests: started, mounted, killed, checked, and always cleaned up.
//!
//! - [`Cluster`] starts the `nacre` binary in a directory of its own, in any [`Shape`], and gives its mount points.
//! - [`run`]: everything of a run (processes, mounts, files) belongs to a [`run::Run`], which ends with its value, on a
//!   panic, on a signal, or, after a crash, when the next test starts.
//! - [`requirements`]: what the tests need of the machine; what is missing is said loudly, and is a failure in CI.
//! - [`wait`]: conditions with deadlines; nothing here sleeps and hopes.
//! - [`program`]: programs with deadlines; [`identity`]: closures as another user; [`exerciser`]: random operations on
//!   a file against a model in memory.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NACRE_BINARY` | the binary to test; without it, it is built first |
//! | `NACRE_TEST_DIRECTORY` | run the tests on this directory of any file system instead, to test the tests |
//! | `NACRE_TEST_KEEP` | keep the directories and logs of failed tests |
//! | `NACRE_TOOLS` | where `pjdfstest` and `fsx` are installed, default `target/tools` |
//! | `CI` | `true`: missing requirements fail |

pub mod binary;
pub mod cluster;
pub mod exerciser;
pub mod identity;
pub mod mounts;
pub mod program;
pub mod requirements;
pub mod run;
pub mod wait;

pub use cluster::{Cluster, Shape};

/// The error number of a failed call; panics when it did not fail, saying what it returned.
///
/// ```
/// let result = std::fs::metadata("/no/such/file");
/// assert_eq!(nacre_testkit::errno(result), libc::ENOENT);
/// ```
#[track_caller]
pub fn errno<T: std::fmt::Debug, E: Into<std::io::Error>>(result: Result<T, E>) -> i32 {
    match result {
        Ok(value) => panic!("expected an error, got {value:?}"),
        Err(error) => {
            let error = error.into();
            error.raw_os_error().unwrap_or_else(|| panic!("{error} has no error number"))
        }
    }
}
