//! Requests of the kernel, parsed and validated; names and data are borrowed from the transport's buffer.

mod parse;

use crate::abi::{FileLock, ForgetOne, InitFlags, SetAttrValid, Wire};

pub(crate) use parse::{Raw, argument_size, parse, replies_in_bulk, takes_no_reply};

/// A request of the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Number of the request; never 0, never reused on one connection.
    pub unique: u64,
    /// Request code, see [`crate::abi::opcode`].
    pub opcode: u32,
    /// Node id of the request's inode; that of the parent directory for operations on names.
    pub node_id: u64,
    /// User of the caller (its fsuid); `u32::MAX` if it has no number in the mount's user namespace.
    pub uid: u32,
    /// Primary group of the caller (its fsgid); `u32::MAX` as for `uid`.
    pub gid: u32,
    /// Thread id of the caller; 0 for a caller in a foreign pid namespace, and for requests of the kernel's
    /// own (write-back, read-ahead).
    pub pid: u32,
    /// Creates only, if `CREATE_SUPP_GROUP` was granted: the parent directory's group, if it is one of the
    /// caller's supplementary groups.
    pub parent_group: Option<u32>,
    /// Operation with its arguments.
    pub op: Operation<'a>,
}

/// Operation of a request.
///
/// Common fields: names are without their NUL, not empty, and contain any byte except NUL and `/` (targets of
/// symbolic links and names of attributes may contain `/`); `fh` is the handle from [`crate::Opened`];
/// `flags` of opens, reads, writes and releases are those of open(2); `mode` includes the file type where the
/// kernel sends it; `umask` is the caller's and is not applied yet; offsets and sizes are in bytes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are told above and at the variants")]
pub enum Operation<'a> {
    /// Looks up a name. Reply `entry` (a negative one has node id 0 and is cached for its timeout) or ENOENT.
    Lookup { name: &'a [u8] },
    /// Undoes `nlookup` lookups (every `entry`, `created` and READDIRPLUS entry is one). No reply.
    Forget { nlookup: u64 },
    /// Many forgets. No reply.
    BatchForget { forgets: ForgetList<'a> },
    /// Reads attributes. Reply `attr`.
    GetAttr { fh: Option<u64> },
    /// Reads attributes as statx(2), sent if the caller needs the creation time. Reply `statx`, or ENOSYS for
    /// GETATTR instead from then on.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
    /// Changes attributes. Reply `attr`.
    SetAttr(SetAttr),
    /// Reads the target of a symbolic link. Reply `bytes`, without NUL.
    ReadLink,
    /// Creates a symbolic link. Reply `entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Creates a node; `mode` has the type. Reply `entry`.
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// Creates a directory. Reply `entry`.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name. Reply `ok`.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory. Reply `ok`.
    RmDir { name: &'a [u8] },
    /// Renames; `flags` are RENAME_NOREPLACE and so on (0 for the plain request). Reply `ok`.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Creates another name of inode `node_id` in the request's directory. Reply `entry`.
    Link { node_id: u64, new_name: &'a [u8] },
    /// Opens a file; `flags` of open(2), `kill_suid_gid`: drop set-id bits, because the truncating caller may
    /// not keep them. Reply `opened`, or ENOSYS (if NO_OPEN_SUPPORT) to stop such requests.
    Open { flags: u32, kill_suid_gid: bool },
    /// Reads data. Reply with `read_buffer` and `read_done`, or `bytes`. Fewer bytes than requested mean end
    /// of file.
    Read(Read),
    /// Writes data, which is page-aligned and thus fit for O_DIRECT. Reply `written`.
    Write(Write<'a>),
    /// Returns space and limits. Reply `statfs`.
    StatFs,
    /// Last close of an open file. Reply `ok`; the caller does not wait for it.
    Release { fh: u64, flags: u32, flush: bool, flock_unlock: bool, lock_owner: u64 },
    /// Makes a file durable. Reply `ok`; ENOSYS means success from then on.
    Fsync { fh: u64, datasync: bool },
    /// Makes a directory durable. Reply `ok`; ENOSYS means success from then on.
    FsyncDir { fh: u64, datasync: bool },
    /// Sets an extended attribute. Reply `ok`; ENOSYS means EOPNOTSUPP from then on.
    SetXattr(SetXattr<'a>),
    /// Reads an extended attribute. `size` 0: reply `xattr_size`; else `bytes`, or ERANGE if it is longer.
    GetXattr { name: &'a [u8], size: u32 },
    /// Lists the names of the extended attributes, each with its NUL. Replies as for `GetXattr`.
    ListXattr { size: u32 },
    /// Removes an extended attribute. Reply `ok`.
    RemoveXattr { name: &'a [u8] },
    /// A descriptor was closed; the error is what close(2) returns. Reply `ok`; ENOSYS stops such requests.
    Flush { fh: u64, lock_owner: u64 },
    /// First request; the session answers it, handlers do not see it.
    Init(InitRequest),
    /// Opens a directory. Reply `opened`.
    OpenDir { flags: u32 },
    /// Lists names from position `offset` on, in `size` bytes at most. Reply with `directory`.
    ReadDir(ReadDir),
    /// Lists names with attributes. Reply with `directory` and its `push_plus`.
    ReadDirPlus(ReadDir),
    /// Last close of an open directory. Reply `ok`.
    ReleaseDir { fh: u64, flags: u32 },
    /// Tests a lock. Reply `lock` (type F_UNLCK: no conflict).
    GetLk { fh: u64, owner: u64, lock: FileLock, flock: bool },
    /// Sets or releases a lock; `wait`: until it is granted (interruptible). Reply `ok` or EAGAIN.
    SetLk { fh: u64, owner: u64, lock: FileLock, flock: bool, wait: bool },
    /// Checks permissions for access(2). Reply `ok`; ENOSYS means success from then on.
    Access { mask: u32 },
    /// Creates and opens a file. Reply `created`.
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, kill_suid_gid: bool },
    /// Creates and opens a file without a name. Reply `created`; ENOSYS means EOPNOTSUPP from then on.
    TmpFile { flags: u32, mode: u32, umask: u32 },
    /// Interrupts a request; the session handles it and calls [`crate::Handler::interrupt`].
    Interrupt { unique: u64 },
    /// Maps a file block to a device block (block-device file systems only). Answered with ENOSYS.
    Bmap { block: u64, blocksize: u32 },
    /// The connection ends. Reply `ok`.
    Destroy,
    /// ioctl(2). `data` is the input of the size in the command number, `out_size` the size of the output.
    /// Reply `ioctl`, or ENOTTY.
    Ioctl(Ioctl<'a>),
    /// poll(2). `wakeup`: the number for the wake-up notification. ENOSYS: always ready.
    Poll { fh: u64, wakeup: Option<u64>, events: u32 },
    /// Answer to [`crate::Notifier::retrieve`]: data of the page cache. `unique` of the request is the number
    /// passed to `retrieve`. Reply `none`.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// Allocates, punches, zeroes (FALLOC_FL_...). Reply `ok`; ENOSYS means EOPNOTSUPP from then on.
    FAllocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// Finds data or a hole. Reply `lseek`; ENOSYS: no holes, from then on.
    LSeek { fh: u64, offset: u64, whence: u32 },
    /// Copies within this file system. Reply `copied`; ENOSYS stops such requests, and the kernel copies.
    CopyFileRange(CopyFileRange),
    /// Makes the whole file system durable. Reply `ok`. Kernels send it only to virtiofs and block-device
    /// based mounts.
    SyncFs,
}

/// Arguments of SETATTR: only fields that are `Some` change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Handle of the open file for ftruncate.
    pub fh: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// User id of the owner.
    pub uid: Option<u32>,
    /// Group id of the owner.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only with a write-back cache).
    pub ctime: Option<SetTime>,
    /// Lock owner of a truncation, for mandatory locks.
    pub lock_owner: Option<u64>,
    /// Drop set-id bits (truncate and chown by a caller without the right to keep them).
    pub kill_suid_gid: bool,
    /// The bits as the kernel sent them.
    pub valid: SetAttrValid,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// Current time of the daemon's clock.
    Now,
    /// Explicit time.
    At {
        /// Seconds since 1970, may be negative.
        seconds: i64,
        /// Nanoseconds as sent (a correct kernel sends fewer than 1e9).
        nanoseconds: u32,
    },
}

/// Arguments of READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Handle of the open file.
    pub fh: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Largest number of bytes to read.
    pub size: u32,
    /// Flags of open(2).
    pub flags: u32,
    /// Lock owner of a program whose read bypasses the page cache.
    pub lock_owner: Option<u64>,
}

/// Arguments of READDIR and READDIRPLUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDir {
    /// Handle of the open directory.
    pub fh: u64,
    /// Position at which the listing starts.
    pub offset: u64,
    /// Largest reply in bytes.
    pub size: u32,
}

/// Arguments of SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// Name of the attribute.
    pub name: &'a [u8],
    /// Value of the attribute.
    pub value: &'a [u8],
    /// XATTR_CREATE and XATTR_REPLACE.
    pub flags: u32,
    /// Drop the set-group-id bit: an ACL set by a caller without the right to keep it.
    pub kill_sgid: bool,
}

/// Arguments of WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Handle of the open file.
    pub fh: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// Data, page-aligned.
    pub data: &'a [u8],
    /// Flags of open(2); with O_APPEND the offset is the kernel's guess.
    pub flags: u32,
    /// Lock owner, for mandatory locks.
    pub lock_owner: Option<u64>,
    /// Write-back of the page cache (mapped pages): handle and user are guesses.
    pub from_cache: bool,
    /// Drop set-id bits and capabilities.
    pub kill_suid_gid: bool,
}

/// Arguments of IOCTL.
#[derive(Debug, Clone, Copy)]
pub struct Ioctl<'a> {
    /// Handle of the open file.
    pub fh: u64,
    /// IOCTL_... ([`crate::abi::IOCTL_DIR`], [`crate::abi::IOCTL_COMPAT`]).
    pub flags: u32,
    /// Command number.
    pub cmd: u32,
    /// Third argument as passed by the caller.
    pub arg: u64,
    /// Data read from the caller.
    pub data: &'a [u8],
    /// Size of the caller's buffer in bytes.
    pub out_size: u32,
}

/// Arguments of COPY_FILE_RANGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Source handle; the source inode is the request's `node_id`.
    pub fh_in: u64,
    /// Offset in the source.
    pub offset_in: u64,
    /// Node id of the target.
    pub node_id_out: u64,
    /// Handle of the target.
    pub fh_out: u64,
    /// Offset in the target.
    pub offset_out: u64,
    /// Largest number of bytes to copy.
    pub len: u64,
    /// Flags, zero in all known kernels.
    pub flags: u64,
}

/// Offer of the kernel in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Major protocol version, 7.
    pub major: u32,
    /// Minor protocol version.
    pub minor: u32,
    /// Largest read-ahead in bytes.
    pub max_readahead: u32,
    /// Features of the kernel.
    pub flags: InitFlags,
}

/// The inodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy)]
pub struct ForgetList<'a> {
    bytes: &'a [u8],
}

impl ForgetList<'_> {
    /// Returns node ids with the number of lookups to undo.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.bytes
            .chunks_exact(size_of::<ForgetOne>())
            .filter_map(ForgetOne::read_from)
            .map(|one| (one.nodeid, one.nlookup))
    }

    /// Returns the number of inodes.
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<ForgetOne>()
    }

    /// Returns true if the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
