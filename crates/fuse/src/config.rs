//! Options of a mount.

use std::path::PathBuf;

/// Everything that [`crate::Session::mount`] wants to know.
#[derive(Debug, Clone)]
pub struct SessionConfig {
    /// Existing directory to mount on.
    pub mount_point: PathBuf,
    /// How it appears in the mount table, and who may use it.
    pub mount: MountOptions,
    /// How requests travel.
    pub transport: TransportChoice,
    /// How many threads, and where.
    pub threads: ThreadOptions,
    /// What is negotiated with the kernel.
    pub protocol: ProtocolOptions,
}

impl SessionConfig {
    /// Defaults for a mount on `mount_point`.
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

/// How requests travel between kernel and daemon, as wished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// io_uring if the kernel has it and it is enabled (or can be enabled, by root), else `/dev/fuse`.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// `/dev/fuse`.
    Dev,
}

/// How requests travel between kernel and daemon, in fact.
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

/// How the mount appears in the mount table, and who may use it.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// First column of the mount table, e.g. `0@lo:/nacre`.
    pub source: String,
    /// The file system type is `fuse.` and this word.
    pub subtype: String,
    /// No writes.
    pub read_only: bool,
    /// Other users than the one who mounts may use it. Default: on for root, off for others (who need
    /// `user_allow_other` in /etc/fuse.conf for it).
    pub allow_other: Option<bool>,
    /// The kernel checks permissions by mode bits. Costs a GETATTR of the directory for each create and unlink; leave
    /// it off and check in the handler.
    pub default_permissions: bool,
    /// Device nodes do not work. Mounts by non-root users are always so.
    pub nodev: bool,
    /// Set-id bits do not work. Mounts by non-root users are always so.
    pub nosuid: bool,
    /// No programs can be started.
    pub noexec: bool,
    /// Reads do not change access times in the kernel's cache.
    pub noatime: bool,
    /// Mount over a directory that has entries.
    pub allow_non_empty: bool,
    /// A dead mount of this subtype on the mount point ("Transport endpoint is not connected") is unmounted first.
    pub clear_stale: bool,
    /// Mount through fusermount3 even as root.
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

/// How many threads serve requests, and where they run.
#[derive(Debug, Clone, Copy)]
pub struct ThreadOptions {
    /// `/dev/fuse`: threads that wait for requests at a time; `None`: one for each CPU. A thread that is about to block
    /// hands its place to another one.
    pub readers: Option<usize>,
    /// `/dev/fuse`: keep reader `i` on CPU `i` (modulo their number). io_uring workers are always pinned.
    pub pin_readers: bool,
    /// io_uring: threads per CPU to start with, at least 1.
    pub workers_per_cpu: usize,
    /// Threads per CPU (io_uring), or per reader (`/dev/fuse`), at most, counting blocked ones. Requests beyond that wait.
    pub workers_per_cpu_max: usize,
}

impl Default for ThreadOptions {
    fn default() -> ThreadOptions {
        ThreadOptions { readers: None, pin_readers: false, workers_per_cpu: 4, workers_per_cpu_max: 64 }
    }
}

/// What is asked of the kernel in INIT. Features that it lacks are left out; see [`crate::InitConfig`] for the outcome.
#[derive(Debug, Clone)]
pub struct ProtocolOptions {
    /// Largest READ and WRITE in bytes: a multiple of the page size, 4 KiB to 1 MiB.
    pub max_write: u32,
    /// Largest kernel read-ahead in bytes.
    pub max_readahead: u32,
    /// Background requests (read-ahead, asynchronous direct I/O) under way at most. Users other than root are held to
    /// the kernel's max_user_bgreq.
    pub max_background: u16,
    /// Background requests from which on the kernel holds read-ahead back.
    pub congestion_threshold: u16,
    /// Granularity of times in nanoseconds, 1 to 1e9.
    pub time_granularity_ns: u32,
    /// READDIRPLUS instead of READDIR.
    pub readdirplus: bool,
    /// READDIRPLUS only while somebody asks for attributes of the listed names.
    pub readdirplus_auto: bool,
    /// fcntl locks go to the handler; else the kernel keeps them for this mount alone.
    pub posix_locks: bool,
    /// flock locks go to the handler; else the kernel keeps them for this mount alone.
    pub flock_locks: bool,
    /// The handler looks up "." and "..", so that the mount can be exported over NFS and file handles work.
    pub export_support: bool,
    /// ENOSYS to OPEN and OPENDIR means "never ask again".
    pub no_open: bool,
    /// Targets of symbolic links are cached until invalidated.
    pub cache_symlinks: bool,
    /// The kernel gathers small writes and owns size and mtime. Only if this mount alone writes.
    pub writeback_cache: bool,
    /// Cached data is dropped when attributes show a change, at the price of a GETATTR per read. Off: the handler
    /// invalidates.
    pub auto_inval_data: bool,
    /// Reads and writes may be passed to backing files (root only).
    pub passthrough: bool,
    /// The kernel checks ACLs, and permission bits with them, as with [`MountOptions::default_permissions`].
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
