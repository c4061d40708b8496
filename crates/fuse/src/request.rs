//! Requests of the kernel, parsed and checked; names and data are borrowed from the transport's buffer.

mod parse;

use crate::abi::{FileLock, ForgetOne, InitFlags, SetAttrValid, Wire};

pub(crate) use parse::{Raw, argument_size, parse, replies_in_bulk, takes_no_reply};

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Number of the request; never 0, never used twice on one connection.
    pub unique: u64,
    /// Request code, see [`crate::abi::opcode`].
    pub opcode: u32,
    /// The inode that the request is about; the parent directory for operations on names.
    pub node_id: u64,
    /// User of the caller (its fsuid); `u32::MAX` if it has no number in the mount's user namespace.
    pub uid: u32,
    /// Primary group of the caller (its fsgid); `u32::MAX` as for `uid`.
    pub gid: u32,
    /// Thread id of the caller; 0 if it lives in a foreign pid namespace, or for requests of the kernel's own
    /// (write-back, read-ahead).
    pub pid: u32,
    /// Creates only, if `CREATE_SUPP_GROUP` was granted: the parent directory's group, when the caller is a member of
    /// it through its supplementary groups.
    pub parent_group: Option<u32>,
    /// What is asked, with its arguments.
    pub op: Operation<'a>,
}

/// What is asked.
///
/// Fields that many have: names come without their NUL, are not empty, and hold any byte except NUL and `/` (targets of
/// symbolic links and names of attributes may hold `/`); `fh` is the handle from [`crate::Opened`]; `flags` of opens,
/// reads, writes and releases are those of open(2); `mode` has the file type where the kernel sends it; `umask` is the
/// caller's and is not applied yet; offsets and sizes are in bytes.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are told above and at the variants")]
pub enum Operation<'a> {
    /// Name to inode. Reply `entry` (a negative one has node id 0 and is cached for its timeout) or ENOENT.
    Lookup { name: &'a [u8] },
    /// Undoes `nlookup` lookups (every `entry`, `created` and READDIRPLUS entry is one). No reply.
    Forget { nlookup: u64 },
    /// Many forgets. No reply.
    BatchForget { forgets: ForgetList<'a> },
    /// Attributes. Reply `attr`.
    GetAttr { fh: Option<u64> },
    /// Attributes as of statx(2), asked for when the creation time is wanted. Reply `statx`, or ENOSYS to have
    /// GETATTR instead for ever.
    Statx { fh: Option<u64>, flags: u32, mask: u32 },
    /// Changes attributes. Reply `attr`.
    SetAttr(SetAttr),
    /// Target of a symbolic link. Reply `bytes`, without NUL.
    ReadLink,
    /// Makes a symbolic link. Reply `entry`.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Makes a node; `mode` has the type. Reply `entry`.
    MkNod { name: &'a [u8], mode: u32, rdev: u32, umask: u32 },
    /// Makes a directory. Reply `entry`.
    MkDir { name: &'a [u8], mode: u32, umask: u32 },
    /// Removes a name. Reply `ok`.
    Unlink { name: &'a [u8] },
    /// Removes an empty directory. Reply `ok`.
    RmDir { name: &'a [u8] },
    /// Renames; `flags` are RENAME_NOREPLACE and so on (0 for the plain request). Reply `ok`.
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    /// Gives inode `node_id` another name in the request's directory. Reply `entry`.
    Link { node_id: u64, new_name: &'a [u8] },
    /// Opens a file; `flags` of open(2), `kill_suid_gid`: drop set-id bits, because it is truncated by one who may not
    /// keep them. Reply `opened`, or ENOSYS (if NO_OPEN_SUPPORT) to never be asked again.
    Open { flags: u32, kill_suid_gid: bool },
    /// Reads. Reply with `read_buffer` and `read_done`, or `bytes`. Fewer bytes than asked mean end of file.
    Read(Read),
    /// Writes. The data is aligned to a page and may be handed to O_DIRECT. Reply `written`.
    Write(Write<'a>),
    /// Space and limits. Reply `statfs`.
    StatFs,
    /// Last close of an open file. Reply `ok`; the caller does not wait for it.
    Release { fh: u64, flags: u32, flush: bool, flock_unlock: bool, lock_owner: u64 },
    /// Makes a file durable. Reply `ok`; ENOSYS means success for ever.
    Fsync { fh: u64, datasync: bool },
    /// Makes a directory durable. Reply `ok`; ENOSYS means success for ever.
    FsyncDir { fh: u64, datasync: bool },
    /// Sets an extended attribute. Reply `ok`; ENOSYS means EOPNOTSUPP for ever.
    SetXattr(SetXattr<'a>),
    /// Reads an extended attribute. `size` 0: reply `xattr_size`; else `bytes`, or ERANGE if it is longer.
    GetXattr { name: &'a [u8], size: u32 },
    /// Names of the extended attributes, each ended by NUL. Replies as for `GetXattr`.
    ListXattr { size: u32 },
    /// Removes an extended attribute. Reply `ok`.
    RemoveXattr { name: &'a [u8] },
    /// A descriptor was closed; its error is what close(2) returns. Reply `ok`; ENOSYS: never ask again.
    Flush { fh: u64, lock_owner: u64 },
    /// First request; answered by the session, handlers do not see it.
    Init(InitRequest),
    /// Opens a directory. Reply `opened`.
    OpenDir { flags: u32 },
    /// Names from position `offset` on, in `size` bytes at most. Reply with `directory`.
    ReadDir(ReadDir),
    /// Names with attributes. Reply with `directory` and its `push_plus`.
    ReadDirPlus(ReadDir),
    /// Last close of an open directory. Reply `ok`.
    ReleaseDir { fh: u64, flags: u32 },
    /// Tests a lock. Reply `lock` (type F_UNLCK: it could be had).
    GetLk { fh: u64, owner: u64, lock: FileLock, flock: bool },
    /// Sets or drops a lock; `wait`: until it can be had (interruptible). Reply `ok` or EAGAIN.
    SetLk { fh: u64, owner: u64, lock: FileLock, flock: bool, wait: bool },
    /// access(2). Reply `ok`; ENOSYS means success for ever.
    Access { mask: u32 },
    /// Makes and opens a file. Reply `created`.
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32, kill_suid_gid: bool },
    /// Makes and opens a file without a name. Reply `created`; ENOSYS means EOPNOTSUPP for ever.
    TmpFile { flags: u32, mode: u32, umask: u32 },
    /// A request is called off; dealt with by the session, which tells [`crate::Handler::interrupt`].
    Interrupt { unique: u64 },
    /// File block to device block (block-device file systems only). Answered with ENOSYS.
    Bmap { block: u64, blocksize: u32 },
    /// The connection ends. Reply `ok`.
    Destroy,
    /// ioctl(2). `data` is what the command number says is read from the caller, `out_size` what it says is written
    /// to it. Reply `ioctl`, or ENOTTY.
    Ioctl(Ioctl<'a>),
    /// poll(2). `wakeup`: the number by which the kernel knows those who wait. ENOSYS: always ready.
    Poll { fh: u64, wakeup: Option<u64>, events: u32 },
    /// Answer to [`crate::Notifier::retrieve`]: data of the page cache. `unique` of the request is the number that
    /// `retrieve` was given. Reply `none`.
    NotifyReply { offset: u64, data: &'a [u8] },
    /// Allocates, punches, zeroes (FALLOC_FL_...). Reply `ok`; ENOSYS means EOPNOTSUPP for ever.
    FAllocate { fh: u64, offset: u64, length: u64, mode: u32 },
    /// Finds data or a hole. Reply `lseek`; ENOSYS: no holes, for ever.
    LSeek { fh: u64, offset: u64, whence: u32 },
    /// Copies inside of this file system. Reply `copied`; ENOSYS: never ask again, the kernel copies.
    CopyFileRange(CopyFileRange),
    /// Makes everything durable. Reply `ok`. Kernels send it only to mounts that asked for it by being virtiofs or
    /// block-device based.
    SyncFs,
}

/// Arguments of SETATTR: only what is `Some` changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The open file through which it is done (ftruncate).
    pub fh: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time (only with a writeback cache).
    pub ctime: Option<SetTime>,
    /// Lock owner of a truncation, for mandatory locks.
    pub lock_owner: Option<u64>,
    /// Set-id bits are to be dropped (truncate and chown by one who may not keep them).
    pub kill_suid_gid: bool,
    /// The bits as the kernel sent them.
    pub valid: SetAttrValid,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The daemon's clock.
    Now,
    /// This time.
    At {
        /// Seconds since 1970, may be negative.
        seconds: i64,
        /// Nanoseconds, as sent (a sane kernel sends fewer than 1e9).
        nanoseconds: u32,
    },
}

/// Arguments of READ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// Handle.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes at most.
    pub size: u32,
    /// Flags of open(2).
    pub flags: u32,
    /// Lock owner, of a program that reads around the page cache.
    pub lock_owner: Option<u64>,
}

/// Arguments of READDIR and READDIRPLUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadDir {
    /// Handle.
    pub fh: u64,
    /// Position to begin at.
    pub offset: u64,
    /// Room for the answer in bytes.
    pub size: u32,
}

/// Arguments of SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'a> {
    /// Name of the attribute.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
    /// XATTR_CREATE and XATTR_REPLACE.
    pub flags: u32,
    /// An ACL by one who may not keep the set-group-id bit.
    pub kill_sgid: bool,
}

/// Arguments of WRITE.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// Handle.
    pub fh: u64,
    /// First byte.
    pub offset: u64,
    /// The data, aligned to a page.
    pub data: &'a [u8],
    /// Flags of open(2); with O_APPEND the offset is the kernel's guess.
    pub flags: u32,
    /// Lock owner, for mandatory locks.
    pub lock_owner: Option<u64>,
    /// Comes from the page cache (mapped pages): handle and user are guesses.
    pub from_cache: bool,
    /// Set-id bits and capabilities are to be dropped.
    pub kill_suid_gid: bool,
}

/// Arguments of IOCTL.
#[derive(Debug, Clone, Copy)]
pub struct Ioctl<'a> {
    /// Handle.
    pub fh: u64,
    /// IOCTL_... ([`crate::abi::IOCTL_DIR`], [`crate::abi::IOCTL_COMPAT`]).
    pub flags: u32,
    /// Command number.
    pub cmd: u32,
    /// Third argument as the caller passed it.
    pub arg: u64,
    /// Data read from the caller.
    pub data: &'a [u8],
    /// Room for data to the caller.
    pub out_size: u32,
}

/// Arguments of COPY_FILE_RANGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFileRange {
    /// Source handle; the source inode is the request's `node_id`.
    pub fh_in: u64,
    /// Source offset.
    pub offset_in: u64,
    /// Target inode.
    pub node_id_out: u64,
    /// Target handle.
    pub fh_out: u64,
    /// Target offset.
    pub offset_out: u64,
    /// Bytes at most.
    pub len: u64,
    /// Zero today.
    pub flags: u64,
}

/// What the kernel offers in INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Major protocol version, 7.
    pub major: u32,
    /// Minor protocol version.
    pub minor: u32,
    /// Largest read-ahead in bytes.
    pub max_readahead: u32,
    /// Everything that the kernel can do.
    pub flags: InitFlags,
}

/// The inodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy)]
pub struct ForgetList<'a> {
    bytes: &'a [u8],
}

impl ForgetList<'_> {
    /// Node ids with the number of lookups to undo.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.bytes
            .chunks_exact(size_of::<ForgetOne>())
            .filter_map(ForgetOne::read_from)
            .map(|one| (one.nodeid, one.nlookup))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.bytes.len() / size_of::<ForgetOne>()
    }

    /// Are there none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
