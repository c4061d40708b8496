//! File systems of real processes for tests: started, mounted, killed, checked, and always cleaned up.
//!
//! - [`Cluster`] starts the `nacre` binary in a directory of its own, in any [`Shape`], and returns its mount
//!   points.
//! - [`run`]: processes, mounts and files of a test belong to a [`run::Run`]. It is cleaned up when dropped,
//!   on a panic, on a signal, or, after a crash, when the next test starts.
//! - [`requirements`]: requirements on the machine; a missing one is reported, and is a failure in CI.
//! - [`wait`]: conditions with deadlines; no test sleeps for a fixed time instead.
//! - [`program`]: programs with deadlines; [`identity`]: closures run as another user; [`exerciser`]: random
//!   operations on a file, compared with a model in memory.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NACRE_BINARY` | the binary to test, with `nacre-bench` next to it; if unset, both are built first |
//! | `NACRE_TEST_DIRECTORY` | run the tests on this directory of another file system, to test the tests |
//! | `NACRE_TEST_OST_BACKEND` | back end of OSTs, as for `nacre up --ost-backend`, such as `block,size=4G` |
//! | `NACRE_TEST_LAYOUT` | default layout of every file system: options of `lfs setstripe` |
//! | `NACRE_TEST_KEEP` | keep the directories and logs of failed tests |
//! | `NACRE_TOOLS` | where `pjdfstest` and `fsx` are installed, default `target/tools` |
//! | `CI` | `true`: missing requirements fail |

pub mod binary;
pub mod cluster;
pub mod exerciser;
pub mod hosts;
pub mod http;
pub mod identity;
pub mod mounts;
pub mod power;
pub mod program;
pub mod requirements;
pub mod run;
mod shapes;
mod stopped;
pub mod wait;
mod work;

use std::collections::BTreeSet;
use std::path::Path;

pub use cluster::{Cluster, Ports, Shape};
pub use power::PowerDisk;
pub use shapes::{on_each_shape, on_each_shape_of, on_each_shape_with, on_each_shape_with_mdts};
pub use stopped::Stopped;
pub use work::work_in;

/// Returns the errno of a failed call. Panics if the call succeeded, with its result.
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

/// Returns a path as an argument of a command.
///
/// # Panics
///
/// If it is not UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("test directories have plain names")
}

/// Returns the names in a directory.
///
/// # Panics
///
/// If it cannot be listed, or the listing has a name twice.
#[track_caller]
pub fn names_in(path: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(path).expect("listed") {
        let name = entry.expect("an entry").file_name().into_string().expect("plain");
        assert!(names.insert(name.clone()), "{name} was listed twice");
    }
    names
}

/// Defines two tests for each function, one on an embedded file system and one on separate processes. Each
/// call gets a new `&mut Cluster`, whose targets are checked afterwards.
///
/// ```no_run
/// nacre_testkit::on_every_shape! {
///     fn a_file_can_be_made(cluster) {
///         std::fs::write(cluster.mount().join("file"), "text").expect("write");
///     }
/// }
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! on_every_shape {
    ($(fn $name:ident($cluster:ident) $body:block)*) => {
        mod cases {
            #[allow(unused_imports, reason = "small test files use little of what is around them")]
            use super::*;
            $(pub fn $name($cluster: &mut $crate::Cluster) $body)*
        }
        mod embedded {
            $(#[test] fn $name() { $crate::in_shape($crate::Shape::Embedded, super::cases::$name); })*
        }
        mod separate {
            $(#[test] fn $name() { $crate::in_shape($crate::Shape::Separate, super::cases::$name); })*
        }
    };
}

/// Runs `case` on a new file system of this shape and checks its targets afterwards. If a requirement of
/// mounts is missing, it reports that and returns.
///
/// # Panics
///
/// If the case does, if the check finds a defect, and in CI if a requirement is missing.
pub fn in_shape(shape: Shape, case: fn(&mut Cluster)) {
    if !requirements::have(&["/dev/fuse", "fusermount3"]) || !requirements::have_root() {
        return;
    }
    let mut cluster = Cluster::start(shape);
    case(&mut cluster);
    cluster.stop_and_check();
}
