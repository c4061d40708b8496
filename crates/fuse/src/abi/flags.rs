//! Flag sets of the protocol.

use bitflags::bitflags;

bitflags! {
    /// Features that kernel and daemon negotiate in INIT. The upper 32 bits travel in `flags2` (7.36).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct InitFlags: u64 {
        /// Several concurrent reads of one open file.
        const ASYNC_READ = 1 << 0;
        /// The daemon decides fcntl locks.
        const POSIX_LOCKS = 1 << 1;
        /// Unused by kernels.
        const FILE_OPS = 1 << 2;
        /// O_TRUNC is part of OPEN instead of a SETATTR before it.
        const ATOMIC_O_TRUNC = 1 << 3;
        /// The daemon answers lookups of "." and "..", so the mount can be exported over NFS.
        const EXPORT_SUPPORT = 1 << 4;
        /// Writes larger than one page.
        const BIG_WRITES = 1 << 5;
        /// The kernel sends the umask instead of applying it.
        const DONT_MASK = 1 << 6;
        /// splice(2) to the device.
        const SPLICE_WRITE = 1 << 7;
        /// Pages may be moved by splice.
        const SPLICE_MOVE = 1 << 8;
        /// splice(2) from the device.
        const SPLICE_READ = 1 << 9;
        /// The daemon decides flock locks.
        const FLOCK_LOCKS = 1 << 10;
        /// ioctl on directories.
        const HAS_IOCTL_DIR = 1 << 11;
        /// Cached data is dropped whenever attributes show a change: costs a GETATTR per read.
        const AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS instead of READDIR.
        const DO_READDIRPLUS = 1 << 13;
        /// READDIRPLUS only while programs ask for attributes.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Asynchronous direct I/O.
        const ASYNC_DIO = 1 << 15;
        /// Write-back: the page cache gathers small writes, and the kernel owns size and mtime.
        const WRITEBACK_CACHE = 1 << 16;
        /// ENOSYS to OPEN stops further OPEN requests.
        const NO_OPEN_SUPPORT = 1 << 17;
        /// Concurrent lookups and reads of one directory.
        const PARALLEL_DIROPS = 1 << 18;
        /// First version of dropping set-id bits.
        const HANDLE_KILLPRIV = 1 << 19;
        /// The kernel checks ACLs; forces default_permissions.
        const POSIX_ACL = 1 << 20;
        /// Reads of the device after an abort fail with ECONNABORTED.
        const ABORT_ERROR = 1 << 21;
        /// `max_pages` is valid.
        const MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        const CACHE_SYMLINKS = 1 << 23;
        /// ENOSYS to OPENDIR stops further OPENDIR requests.
        const NO_OPENDIR_SUPPORT = 1 << 24;
        /// Cached data is dropped only on request of the daemon.
        const EXPLICIT_INVAL_DATA = 1 << 25;
        /// Alignment of DAX mappings.
        const MAP_ALIGNMENT = 1 << 26;
        /// Directories may be roots of submounts.
        const SUBMOUNTS = 1 << 27;
        /// The daemon drops set-id bits and capabilities when flags of a request demand it.
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has its longer form.
        const SETXATTR_EXT = 1 << 29;
        /// `flags2` is valid.
        const INIT_EXT = 1 << 30;
        /// Reserved, never set.
        const INIT_RESERVED = 1 << 31;
        /// Creates carry security contexts.
        const SECURITY_CTX = 1 << 32;
        /// DAX is decided per inode.
        const HAS_INODE_DAX = 1 << 33;
        /// Creates carry the group of the parent directory if the caller is a member.
        const CREATE_SUPP_GROUP = 1 << 34;
        /// Names can be expired without being dropped.
        const HAS_EXPIRE_ONLY = 1 << 35;
        /// Files open for direct I/O may be mapped shared.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Reads and writes may go to a backing file.
        const PASSTHROUGH = 1 << 37;
        /// File handles are refused instead of being valid only while cached.
        const NO_EXPORT_SUPPORT = 1 << 38;
        /// The daemon can request a resend of unanswered requests.
        const HAS_RESEND = 1 << 39;
        /// Idmapped mounts.
        const ALLOW_IDMAP = 1 << 40;
        /// Requests travel over io_uring.
        const OVER_IO_URING = 1 << 41;
        /// The kernel aborts requests after a timeout.
        const REQUEST_TIMEOUT = 1 << 42;
    }
}

bitflags! {
    /// Options of an open file, in replies to OPEN, OPENDIR, CREATE and TMPFILE.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct OpenFlags: u32 {
        /// Bypasses the page cache.
        const DIRECT_IO = 1 << 0;
        /// Data cached by earlier opens stays valid.
        const KEEP_CACHE = 1 << 1;
        /// The file cannot seek.
        const NONSEEKABLE = 1 << 2;
        /// The directory's names may be cached.
        const CACHE_DIR = 1 << 3;
        /// The file has no position.
        const STREAM = 1 << 4;
        /// No FLUSH on close, unless data has to be written back.
        const NOFLUSH = 1 << 5;
        /// Direct writes of one file run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
        /// Reads and writes go to the backing file.
        const PASSTHROUGH = 1 << 7;
    }
}

bitflags! {
    /// Selects the attributes that SETATTR changes.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct SetAttrValid: u32 {
        /// Permission bits.
        const MODE = 1 << 0;
        /// User id of the owner.
        const UID = 1 << 1;
        /// Group id of the owner.
        const GID = 1 << 2;
        /// Size: truncate.
        const SIZE = 1 << 3;
        /// Access time.
        const ATIME = 1 << 4;
        /// Modification time.
        const MTIME = 1 << 5;
        /// The file handle is valid.
        const FH = 1 << 6;
        /// Access time is set to the current time.
        const ATIME_NOW = 1 << 7;
        /// Modification time is set to the current time.
        const MTIME_NOW = 1 << 8;
        /// The lock owner is valid.
        const LOCKOWNER = 1 << 9;
        /// Change time (only with a write-back cache).
        const CTIME = 1 << 10;
        /// Drop set-id bits.
        const KILL_SUIDGID = 1 << 11;
    }
}

/// The file handle of GETATTR is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// RELEASE: includes a FLUSH.
pub const RELEASE_FLUSH: u32 = 1 << 0;
/// RELEASE: drop the flock locks of the owner.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// The lock is a flock lock, not an fcntl lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// WRITE from the page cache: the handle is a guess, and the user is not the writer.
pub const WRITE_CACHE: u32 = 1 << 0;
/// WRITE: the lock owner is valid.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE: drop set-id bits and capabilities.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// READ: the lock owner is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// OPEN and CREATE with O_TRUNC: drop set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// SETXATTR of an ACL: drop the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// FSYNC: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// IOCTL by a 32-bit program.
pub const IOCTL_COMPAT: u32 = 1 << 0;
/// IOCTL on a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// POLL: the caller needs a wake-up.
pub const POLL_SCHEDULE_NOTIFY: u32 = 1 << 0;
/// Inode attribute: root of a submount.
pub const ATTR_SUBMOUNT: u32 = 1 << 0;
/// Invalidation of a name: keep it, but look it up again before use.
pub const EXPIRE_ONLY: u32 = 1 << 0;
/// Extension: the group of the parent directory, if the caller is a member.
pub const EXT_GROUPS: u32 = 32;
