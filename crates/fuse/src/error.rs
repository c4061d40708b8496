//! Errors of mounts and sessions. Each message is one sentence that names the remedy.

use std::io;
use std::path::PathBuf;

/// Failure of a mount, an unmount or a session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no FUSE.
    #[error(
        "/dev/fuse does not exist; load the module with \"modprobe fuse\" or give the container the device"
    )]
    NoDevice,
    /// The device cannot be opened.
    #[error(
        "/dev/fuse cannot be opened by this user; make it accessible (mode 0666 is usual) or mount as root"
    )]
    DeviceDenied(#[source] io::Error),
    /// The mount point is missing.
    #[error("mount point {0} does not exist; create the directory first")]
    NoMountPoint(PathBuf),
    /// The mount point is a file.
    #[error("mount point {0} is not a directory; choose a directory")]
    NotADirectory(PathBuf),
    /// The directory has entries.
    #[error("mount point {0} is not empty; choose an empty directory or allow a non-empty one explicitly")]
    NotEmpty(PathBuf),
    /// The mount point has a live FUSE mount.
    #[error("{0} is already a mount point of {1}; unmount it first or choose another directory")]
    InUse(PathBuf, String),
    /// The mount point has a dead FUSE mount that was not (or may not be) cleared.
    #[error("{0} is a dead mount of {1}; run \"umount -l\" on it and mount again")]
    Stale(PathBuf, String),
    /// The helper for non-root mounts is missing.
    #[error("fusermount3 was not found; install the package fuse3 or mount as root")]
    NoFusermount,
    /// The helper for non-root mounts refused.
    #[error("fusermount3 refused to mount or unmount {path}: {message}")]
    Fusermount {
        /// Mount point.
        path: PathBuf,
        /// Message of the helper, without its name.
        message: String,
    },
    /// `allow_other` without permission.
    #[error(
        "allow_other needs a line \"user_allow_other\" in /etc/fuse.conf; add it, mount as root, or leave it off"
    )]
    AllowOtherDenied,
    /// mount(2) failed.
    #[error("mounting on {path} failed ({source}); mount needs root or CAP_SYS_ADMIN in the mount namespace")]
    Mount {
        /// Mount point.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Unmounting failed because files are open.
    #[error("{0} is busy; close the files and working directories in it, or unmount lazily")]
    Busy(PathBuf),
    /// It was unmounted in this mount namespace, but another one still has a copy; the session continues.
    #[error(
        "{0} is unmounted here, but another mount namespace (a container, a service) still has it; end that, or cut it off"
    )]
    Elsewhere(PathBuf),
    /// umount2(2) failed otherwise.
    #[error("unmounting {path} failed ({source}); see \"mount\" for its state")]
    Unmount {
        /// Mount point.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// io_uring was requested and is unavailable.
    #[error("FUSE over io_uring is not available ({0}); choose the transport auto or dev")]
    NoUring(&'static str),
    /// An option has an invalid value.
    #[error("option {name}: {reason}")]
    Option {
        /// Name of the option.
        name: &'static str,
        /// Constraint on the value.
        reason: &'static str,
    },
    /// The kernel's protocol version is not supported.
    #[error(
        "the kernel speaks FUSE protocol {major}.{minor}, but 7.31 or newer is needed; use Linux 5.15 or newer"
    )]
    Protocol {
        /// Major version of the kernel's protocol.
        major: u32,
        /// Minor version of the kernel's protocol.
        minor: u32,
    },
    /// The kernel did not start with INIT, or its INIT was truncated.
    #[error("the kernel did not start the connection properly; unmount and mount again")]
    Handshake,
    /// A system call failed for another reason.
    #[error("{action} failed ({source}); check limits on threads, memory and open files")]
    System {
        /// Operation that failed.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::System { action, source }
    }
}
