//! Options of a mount.

use std::path::PathBuf;

/// Input of [`crate::Session::mount`].
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Existing directory to mount on.
    pub mount_point: PathBuf,
    /// Appearance in the mount table, and access.
    pub mount: MountOptions,
    /// Transport of requests.
    pub transport: TransportChoice,
    /// Number and placement of threads.
    pub threads: ThreadOptions,
    /// Features to negotiate with the kernel.
    pub protocol: ProtocolOptions,
}

impl SessionConfig {
    /// Returns the defaults for a mount on `mount_point`.
    pub fn new(mount_point: impl Into<PathBuf>) -> SessionConfig {
        SessionConfig {
            mount_point: mount_point.into(),
            mount: MountOptions::default(),
            transport: TransportChoice::default(),
            threads: ThreadOptions::default(),
            protocol: ProtocolOptions::default(),
        }
    }
}

/// Requested transport between kernel and daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// io_uring if the kernel has it and it is enabled (or can be enabled, by root), else `/dev/fuse`.
    #[default]
    Auto,
    /// io_uring; an error if it is unavailable.
    Uring,
    /// Reads and writes on `/dev/fuse`.
    Dev,
}

/// Transport in use between kernel and daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// FUSE over io_uring: a request is served on the CPU of its caller.
    Uring,
    /// read(2) and write(2) on `/dev/fuse`.
    Dev,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Uring => "io_uring",
            Transport::Dev => "/dev/fuse",
        })
    }
}

/// Appearance of the mount in the mount table, and access to it.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// First column of the mount table, e.g. `0@lo:/nacre`.
    pub source: String,
    /// Suffix of the file system type, which is `fuse.` and this word.
    pub subtype: String,
    /// Refuses writes.
    pub read_only: bool,
    /// Users other than the mounting one have access. Default: on for root, off for other users (which need
    /// `user_allow_other` in /etc/fuse.conf for it).
    pub allow_other: Option<bool>,
    /// The kernel checks permissions by mode bits. Costs a GETATTR of the directory for each create and
    /// unlink; the alternative is a check in the handler.
    pub default_permissions: bool,
    /// Device nodes do not work. Always set for mounts by non-root users.
    pub nodev: bool,
    /// Set-id bits do not work. Always set for mounts by non-root users.
    pub nosuid: bool,
    /// Programs cannot be executed.
    pub noexec: bool,
    /// Reads do not change access times in the kernel's cache.
    pub noatime: bool,
    /// Allows to mount over a directory with entries.
    pub allow_non_empty: bool,
    /// Unmounts a dead mount of this subtype on the mount point ("Transport endpoint is not connected")
    /// first.
    pub clear_stale: bool,
    /// Mounts through fusermount3 even as root.
    pub force_fusermount: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            source: "nacre".into(),
            subtype: "nacre".into(),
            read_only: false,
            allow_other: None,
            default_permissions: false,
            nodev: false,
            nosuid: true,
            noexec: false,
            noatime: true,
            allow_non_empty: false,
            clear_stale: true,
            force_fusermount: false,
        }
    }
}

/// Number and placement of the threads that serve requests.
#[derive(Debug, Clone, Copy)]
pub struct ThreadOptions {
    /// `/dev/fuse`: threads that wait for requests at a time; `None`: one per CPU. A thread that is about to
    /// block is replaced by another one.
    pub readers: Option<usize>,
    /// `/dev/fuse`: pins reader `i` to CPU `i` (modulo the number of CPUs). io_uring workers are always
    /// pinned.
    pub pin_readers: bool,
    /// io_uring: initial threads per CPU, at least 1.
    pub workers_per_cpu: usize,
    /// Largest number of threads per CPU (io_uring) or per reader (`/dev/fuse`), blocked ones included.
    /// Further requests wait.
    pub workers_per_cpu_max: usize,
}

impl Default for ThreadOptions {
    fn default() -> ThreadOptions {
        ThreadOptions { readers: None, pin_readers: false, workers_per_cpu: 4, workers_per_cpu_max: 64 }
    }
}

/// Features to request in INIT. Those that the kernel lacks are left out; see [`crate::InitConfig`] for the
/// result.
#[derive(Debug, Clone)]
pub struct ProtocolOptions {
    /// Largest READ and WRITE in bytes: a multiple of the page size, 4 KiB to 1 MiB.
    pub max_write: u32,
    /// Largest kernel read-ahead in bytes.
    pub max_readahead: u32,
    /// Limit on background requests (read-ahead, asynchronous direct I/O) in flight. For users other than
    /// root, the kernel's max_user_bgreq applies too.
    pub max_background: u16,
    /// Number of background requests from which on the kernel throttles read-ahead.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds, 1 to 1e9.
    pub time_granularity_ns: u32,
    /// READDIRPLUS instead of READDIR.
    pub readdirplus: bool,
    /// READDIRPLUS only while programs ask for attributes of the listed names.
    pub readdirplus_auto: bool,
    /// fcntl locks go to the handler; otherwise the kernel keeps them for this mount alone.
    pub posix_locks: bool,
    /// flock locks go to the handler; otherwise the kernel keeps them for this mount alone.
    pub flock_locks: bool,
    /// The handler looks up "." and "..", so that the mount can be exported over NFS and file handles work.
    pub export_support: bool,
    /// ENOSYS to OPEN and OPENDIR stops further such requests.
    pub no_open: bool,
    /// Targets of symbolic links are cached until invalidated.
    pub cache_symlinks: bool,
    /// Write-back cache: the kernel gathers small writes and owns size and mtime. Only if this mount is the
    /// only writer.
    pub writeback_cache: bool,
    /// Cached data is dropped when attributes show a change, at the price of a GETATTR per read. Off: the
    /// handler invalidates.
    pub auto_inval_data: bool,
    /// Reads and writes may go to backing files (root only).
    pub passthrough: bool,
    /// The kernel checks ACLs, and with them permission bits as under [`MountOptions::default_permissions`].
    pub kernel_acls: bool,
}

impl Default for ProtocolOptions {
    fn default() -> ProtocolOptions {
        ProtocolOptions {
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            time_granularity_ns: 1,
            readdirplus: true,
            readdirplus_auto: false,
            posix_locks: true,
            flock_locks: true,
            export_support: false,
            no_open: false,
            cache_symlinks: true,
            writeback_cache: false,
            auto_inval_data: false,
            passthrough: false,
            kernel_acls: false,
        }
    }
}
