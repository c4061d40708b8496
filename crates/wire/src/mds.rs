//! Requests to a metadata server.

use crate::changelog::{ChangelogReply, ChangelogRequest};
pub use crate::dir::{DirEntry, DirPage, InodeKind, ListedLayout};
use crate::dir_use::{DirUseReply, DirUseRequest};
pub use crate::file_lock::{FileLock, LockFamily, LockMode, LockOwner, ProcessLock, REPLAYED_LOCKS_MAX};
pub use crate::lease::{LeaseGrant, LeaseKind};
use crate::lock::LockRequest;
use crate::peer::{PeerReply, PeerRequest};
use crate::quota::{QuotaReply, QuotaRequest};
use crate::replay::{DataChange, ReplayedChange};
pub use crate::statfs::Statfs;
use bitflags::bitflags;
use nacre_layout::{Layout, LayoutRequest};
use nacre_lock::{LockHandle, Outcome};
use nacre_types::{Attr, Fid, OpenHandle, Owners, Rights, SetAttr, Status, Timestamp, TransNo};
use std::sync::Arc;

pub use crate::capabilities::{CAPABILITIES_MAX, FileCapabilities};

bitflags! {
    /// Access mode and options of an open.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// Open for reading; needs read permission.
        const READ = 1;
        /// Open for writing; needs write permission.
        const WRITE = 2;
        /// Open for execution; needs execute permission.
        const EXEC = 4;
        /// Truncate to size 0; needs write permission. The client truncates the objects of the reply.
        const TRUNCATE = 8;
        /// All writes go to the end of the file.
        const APPEND = 16;
        /// Replay: re-opens a handle after the server restarted; no permission check, orphans allowed.
        const REPLAY = 32;
        /// Skip the permission check: the caller has just created the file.
        const CREATED = 64;
        /// Drop set-id bits because of the truncation (unprivileged caller).
        const KILL_PRIV = 128;
    }

    /// Treatment of an existing target of a rename.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` if the new name exists (`RENAME_NOREPLACE`).
        const NOREPLACE = 1;
        /// Swap the two names (`RENAME_EXCHANGE`).
        const EXCHANGE = 2;
    }

    /// Conditions and side effects of setting an extended attribute.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct XattrFlags: u32 {
        /// Fail with `EEXIST` if the attribute exists (`XATTR_CREATE`).
        const CREATE = 1;
        /// Fail with `ENODATA` if the attribute does not exist (`XATTR_REPLACE`).
        const REPLACE = 2;
        /// Drop the set-group-id bit: an access ACL is set by a caller without rights to the group.
        const KILL_SGID = 4;
    }
}

/// Names of one [`MdsRequest::LookupMany`], the largest `statahead_batch_max`.
pub const LOOKUP_MANY_MAX: usize = 1024;

/// Inodes of one [`MdsRequest::ListInodes`]: about as many as a page of a listing has names.
pub const LIST_INODES_MAX: usize = 4096;

/// Type of a new file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewFile<'a> {
    /// A regular file, or with `rdev` a device, pipe or socket according to the mode.
    Node {
        /// Device number for device files.
        rdev: u32,
    },
    /// A directory, placed by the client's rules.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Path that the link contains.
        target: &'a [u8],
    },
    /// A regular file without a name (`O_TMPFILE`): an orphan until it is linked. The request has no name.
    Unnamed,
    /// A directory whose names are stored in shards.
    Striped {
        /// The list of shards as `lmv_mds_md_v1`, with unused FIDs.
        lmv: &'a [u8],
        /// True if the caller has chosen the MDTs, which needs the right to; excludes inherited defaults.
        chosen: bool,
    },
    /// A directory on an MDT that the caller has chosen, which needs the right to.
    ChosenDirectory {
        /// Default for directories created in it (`lmv_user_md`), instead of the inherited one.
        default: &'a [u8],
    },
}

/// The client's knowledge of a file's data when it closes or syncs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataUpdate {
    /// Size in bytes and blocks of 512 bytes, if the client wrote or truncated.
    pub size_blocks: Option<(u64, u64)>,
    /// Time of the last modification, if the client wrote.
    pub mtime: Option<Timestamp>,
    /// Time of the last access, if the client read.
    pub atime: Option<Timestamp>,
    /// Sequence number of the client's updates of this file: updates may overtake each other in transit, and
    /// an older one that arrives later is ignored.
    pub order: u64,
    /// [`Attr::size_stamp`] from before the client determined the size: a size is ignored if the MDT has recorded
    /// another change since, as either may be the newer one.
    pub size_stamp: u32,
}

/// Longest data of a close in bytes: as much as one record of the MDT's data part holds.
pub const CLOSING_DATA_MAX: usize = 32 << 10;

/// Largest size in bytes of a file's first data that is stored on an MDT if only the whole file system's
/// default asks for it; longer data goes to OSTs (`docs/design/data-on-mdt.md`).
pub const HEAD_DATA_MAX: u64 = CLOSING_DATA_MAX as u64;

/// Data of a small file on the MDT that the client held back until the close.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosingData<'a> {
    /// The file's only object, on the MDT.
    pub object: Fid,
    /// Offset of the data in the object, in bytes.
    pub offset: u64,
    /// Data, at most [`CLOSING_DATA_MAX`] bytes.
    pub bytes: &'a [u8],
}

/// Request to a metadata server. The client chooses FIDs of new files from a sequence that it was given, so
/// that a resend names the same file.
#[derive(Clone, PartialEq, Debug)]
pub enum MdsRequest<'a> {
    /// Returns space and inodes of the MDT. Reply: `Statfs`.
    Statfs,
    /// Allocates a new FID sequence for the client. Reply: `Sequence`.
    AllocateSequence,
    /// Looks up a name; needs search permission on the parent. `.` and `..` work. Reply: `Entry`.
    Lookup {
        /// Directory to search.
        parent: Fid,
        /// Name in the directory.
        name: &'a [u8],
    },
    /// Returns the attributes of an inode; needs no permission. Reply: `Attr`.
    GetAttr {
        /// Inode to read.
        fid: Fid,
    },
    /// Changes attributes. A new size is only recorded: the client truncates the objects. Reply: `Attr`.
    SetAttr {
        /// Inode to change.
        fid: Fid,
        /// New values.
        set: SetAttr,
    },
    /// Creates a file, directory, symlink or node, and optionally opens it. Reply: `Created`.
    Create {
        /// Directory of the new name.
        parent: Fid,
        /// Name of the new file.
        name: &'a [u8],
        /// FID that the client has chosen.
        fid: Fid,
        /// Type of the new file.
        new: NewFile<'a>,
        /// Type and permission bits, before the umask.
        mode: u32,
        /// Umask of the caller; not applied where a default ACL exists.
        umask: u32,
        /// Handle and flags to open it under in the same request.
        open: Option<(OpenHandle, OpenFlags)>,
        /// True to fail with `EEXIST` if the name exists; otherwise an existing regular file is opened (with
        /// its permission check) and `created` in the reply is false.
        exclusive: bool,
    },
    /// Adds a name to an inode. Reply: `Attr` (of the inode).
    Link {
        /// Inode that gets the name.
        fid: Fid,
        /// Directory of the new name.
        parent: Fid,
        /// Name to add.
        name: &'a [u8],
    },
    /// Removes a name. Reply: `Removed`.
    Unlink {
        /// Directory of the name.
        parent: Fid,
        /// Name to remove.
        name: &'a [u8],
        /// True for `rmdir`.
        directory: bool,
    },
    /// Moves a name. Reply: `Removed` (the inode that the new name named before, if any).
    Rename {
        /// Old directory.
        from_parent: Fid,
        /// Old name.
        from_name: &'a [u8],
        /// New directory.
        to_parent: Fid,
        /// New name.
        to_name: &'a [u8],
        /// Treatment of an existing target.
        flags: RenameFlags,
    },
    /// Opens a regular file under a handle that the client has chosen. Reply: `Opened`; `Done` for a handle that is opened
    /// again before another client has replayed the creation of the file.
    Open {
        /// File to open.
        fid: Fid,
        /// Handle of the open.
        handle: OpenHandle,
        /// Access mode and options.
        flags: OpenFlags,
        /// Handle for a layout lock to be granted with the reply, if possible; 0 for none.
        lock: LockHandle,
    },
    /// Closes a handle; reports size, times, written objects. Reply: `Attr`, `Done` for a removed file.
    Close {
        /// File of the handle.
        fid: Fid,
        /// Handle to close.
        handle: OpenHandle,
        /// Size and times, if they changed.
        update: DataUpdate,
        /// Objects that the client wrote to and that the layout does not record as written; at most 4096.
        written: Vec<Fid>,
    },
    /// Closes with data that is written in the same transaction, or does nothing: `EAGAIN` if the client is
    /// not the only one or the file has other objects, `EBADF` if the handle is unknown. Then the client
    /// writes the data like that of any object, and closes. Reply: `Attr`.
    CloseWrite {
        /// File of the handle.
        fid: Fid,
        /// Handle to close.
        handle: OpenHandle,
        /// Size and times; size and blocks are ignored: those of the object after the write count.
        update: DataUpdate,
        /// Data that the client has held back.
        data: ClosingData<'a>,
    },
    /// Reports size and times while the file stays open (fsync, stat by others). Reply: `Attr`.
    UpdateData {
        /// File that is open.
        fid: Fid,
        /// Size and times.
        update: DataUpdate,
        /// True to record the size as exact although the file has writers (after a recovery by glimpse).
        exact: bool,
        /// Written objects as for [`MdsRequest::Close`].
        written: Vec<Fid>,
    },
    /// Ensures that the bytes `[start, end)`, and all before them, have objects, for a write or an extending
    /// truncate. Bytes beyond the last component are left out. Reply: `Layout`; `ENODATA` if all of them are.
    LayoutIntent {
        /// File to be written.
        fid: Fid,
        /// Offset of the first byte to be written.
        start: u64,
        /// Offset after the last byte.
        end: u64,
    },
    /// Returns the current layout of a file. Reply: `Layout`.
    GetLayout {
        /// File to read the layout of.
        fid: Fid,
    },
    /// Returns capabilities for the existing objects of a file, with the rights of the client's opens of it,
    /// and those of `wanted` that the caller's permissions allow. Never waits for locks. Reply: `Done`, with
    /// capabilities unless there are no objects.
    Capabilities {
        /// File that the objects belong to.
        fid: Fid,
        /// Rights that the caller's permissions may add to those of open handles.
        wanted: Rights,
    },
    /// Sets the layout of a file without objects, or the default of a directory (an empty specification
    /// removes it); needs write permission or ownership. Reply: `Attr`. `EALREADY` if the file has objects.
    SetLayout {
        /// File or directory to change.
        fid: Fid,
        /// Requested layout.
        requested: LayoutRequest,
    },
    /// Returns a directory's default layout as stored, without inheritance. Reply: `DefaultLayout`.
    GetDefaultLayout {
        /// Directory to read.
        fid: Fid,
    },
    /// Lists a page of a directory. Checks no permission: the open of the directory did. Reply: `Directory`.
    ReadDir {
        /// Directory to list.
        fid: Fid,
        /// Position after which entries are listed; 0 for the start. `.` and `..` are not included.
        cookie: u64,
        /// Limit of the encoded page in bytes.
        max_bytes: u32,
        /// True to include the attributes of each entry.
        plus: bool,
        /// Handles for locks on the directory and on the entries' inodes, for a client that caches the reply;
        /// locks are granted at once or not at all. Then attributes come with a lock or not at all.
        locks: LockRange,
    },
    /// Lists a page of a directory with the attributes of each entry, for programs that read them all: needs
    /// search permission, as reading each entry's attributes would. Reply: `Directory`.
    Scan {
        /// Directory to list.
        fid: Fid,
        /// Position as in `ReadDir`.
        cookie: u64,
        /// Limit in bytes as in `ReadDir`.
        max_bytes: u32,
        /// True to include the layouts of files and the default layouts of directories.
        layouts: bool,
    },
    /// Looks up many names of one directory like `Lookup`. Reply: `Directory` with those that exist, in the
    /// order of the request and with attributes, as many as fit into a page.
    LookupMany {
        /// Directory to search.
        parent: Fid,
        /// Names, each ended by NUL: [`LOOKUP_MANY_MAX`] at most, further ones are left out.
        names: &'a [u8],
        /// Lock handles as in `ReadDir`.
        locks: LockRange,
    },
    /// Returns the target of a symbolic link. Reply: `Bytes`.
    ReadLink {
        /// Link to read.
        fid: Fid,
    },
    /// Returns the value of an extended attribute. Reply: `Bytes`.
    GetXattr {
        /// Inode to read.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
    },
    /// Lists the extended attributes that the caller may see, each ended by NUL. Reply: `Bytes`.
    ListXattr {
        /// Inode to read.
        fid: Fid,
    },
    /// Sets an extended attribute. Reply: `Attr`.
    SetXattr {
        /// Inode to change.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
        /// Value, up to 64 KiB.
        value: &'a [u8],
        /// Condition on the existing attribute.
        flags: XattrFlags,
    },
    /// Removes an extended attribute. Reply: `Attr`.
    RemoveXattr {
        /// Inode to change.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
    },
    /// Checks whether the caller has all rights in `mask` (see `nacre_types::perm`). Reply: `Attr`.
    Access {
        /// Inode to check.
        fid: Fid,
        /// Bits of the rights.
        mask: u8,
    },
    /// Makes everything up to a transno durable; `TransNo(u64::MAX)` for all, which also waits a few seconds
    /// at most for objects of removed files to be destroyed, so that their space is free. Reply: `Done`.
    Commit {
        /// Last transaction to be made durable.
        upto: TransNo,
    },
    /// Returns one name of an inode: link number `index` from 0. Reply: `Link`; `ENODATA` past the last.
    FidToLink {
        /// Inode to name.
        fid: Fid,
        /// Number of the link.
        index: u32,
    },
    /// Returns a path of an inode through link number `index` from 0, as far up as this MDT has directories.
    /// Reply: `Path`; `ENODATA` past the last link, `ENAMETOOLONG` for a path with too many parts.
    FidToPath {
        /// Inode to name.
        fid: Fid,
        /// Number of the link.
        index: u32,
    },
    /// Removes any name of a file, given only its FID. Reply: `Removed`; `ENOENT` if there is none.
    RemoveFid {
        /// File to remove a name of.
        fid: Fid,
    },
    /// [`MdsRequest::LockFile`] of clients that support neither process numbers nor recovery. Reply: `Done`.
    SetLock {
        /// File to lock.
        fid: Fid,
        /// Lock to set.
        lock: FileLock,
        /// True to wait for conflicting locks to be released.
        wait: bool,
    },
    /// Sets or releases a lock. Without `wait`: `EAGAIN` on a conflict, `RECOVERING` while clients of the
    /// last run may replay locks; with it the request blocks (interruptible) until granted. Reply: `Done`.
    LockFile {
        /// File to lock.
        fid: Fid,
        /// Lock to set.
        lock: ProcessLock,
        /// True to wait for conflicting locks to be released.
        wait: bool,
        /// Time of the call in nanoseconds since the epoch (client's clock): orders calls after a restart.
        asked_ns: u64,
    },
    /// Replays locks on a file that programs of this client held at a restart. Reply: `RefusedLocks`.
    ReplayFileLocks {
        /// File with the locks.
        fid: Fid,
        /// Locks, at most [`REPLAYED_LOCKS_MAX`]; none of them a release.
        locks: Vec<ProcessLock>,
    },
    /// Returns the first lock that conflicts with this one; `RECOVERING` as `LockFile`. Reply: `Lock`.
    GetLock {
        /// File to check.
        fid: Fid,
        /// Lock to compare with.
        lock: FileLock,
    },
    /// Keeps the connection alive. Reply: `Lease`: the client's current lease.
    Ping,
    /// The client has dropped what it cached under leases up to this epoch. Reply: `Lease`.
    LeaseReleased {
        /// Epoch of the revocation.
        epoch: u64,
    },
    /// The client has not dropped all of it yet: requests may wait for servers that are away. Answers a revocation
    /// that is repeated. Reply: `Done`.
    LeaseBusy {
        /// Epoch of the revocation.
        epoch: u64,
    },
    /// Requests about locks on inodes. Reply: `Locked`, or `Done`.
    Locks {
        /// Lock request.
        request: LockRequest,
    },
    /// Looks up like `Lookup`, or without a name like `GetAttr`, for a client that caches the reply: it asks
    /// for read locks on what the reply contains. They are granted at once or not at all. Reply: `Intent`.
    Intent {
        /// Directory to search, or the inode.
        fid: Fid,
        /// Name to look up; neither `.` nor `..`.
        name: Option<&'a [u8]>,
        /// Handle of the lock on the directory; the next one is that of the lock on the inode.
        handle: LockHandle,
    },
    /// Reads like `GetLayout`, or with a range like `LayoutIntent`, for a client that caches the reply: it
    /// asks for a read lock on the layout, which is granted at once or not at all. Reply: `LockedLayout`.
    LayoutAccess {
        /// File to read the layout of.
        fid: Fid,
        /// Bytes that are about to be written, `[start, end)`; `None` to read.
        range: Option<(u64, u64)>,
        /// Handle of the lock.
        lock: LockHandle,
        /// Owners of the file as far as the client knows: those of new objects, unless the MDT corrects them.
        owners: Owners,
    },
    /// Exchanges the objects of two files with the same owner, durably; needs write permission on both.
    /// Reply: `Done`. `EAGAIN` for an unexpected data version, `EBUSY` if the lease has ended.
    SwapLayouts {
        /// First file.
        first: Fid,
        /// Second file.
        second: Fid,
        /// Expected versions of their data, see [`crate::oss::OssRequest::DataVersion`].
        versions: (Option<u64>, Option<u64>),
        /// True if the times stay with the files instead of moving with the data.
        keep_times: bool,
        /// Handle of the caller on the first file, whose lease must still hold.
        lease: Option<OpenHandle>,
    },
    /// Takes a lease on an open file, or returns it. Reply: `OpenLease`: the lease before the request.
    /// `EBUSY` if others have the file open in a way that the lease excludes.
    OpenLease {
        /// File to take the lease on.
        fid: Fid,
        /// Handle of the caller.
        handle: OpenHandle,
        /// Requested lease; `None` to read the current one.
        kind: Option<LeaseKind>,
    },
    /// Lists files with objects on an OST, in the order of FIDs; for administrators. Reply: `Files`.
    FilesOn {
        /// Index of the OST.
        ost_index: u16,
        /// FID after which files are listed.
        after: Fid,
        /// Largest number of files in the reply.
        count_max: u32,
    },
    /// Spreads the names of a directory over more or fewer shards. Reply: `Done`, when it has started: names
    /// move in the background, and can be used meanwhile. `EBUSY` while they move already, `EALREADY` if the
    /// directory has the requested form.
    Restripe {
        /// Directory to spread.
        fid: Fid,
        /// Number of shards (1: no shards), the hash, and the MDTs that shards are created on in rotation
        /// ([`nacre_layout::DirDefault`]).
        requested: &'a [u8],
    },
    /// Returns attributes of many inodes of one MDT, and optionally layouts, as `Scan` does: for names that
    /// are stored on another MDT. Reply: `Directory`, with entries called `.` in the order of the request;
    /// removed inodes are left out. The page may be full before the last one, which `end` shows.
    ListInodes {
        /// Inodes to read, up to [`LIST_INODES_MAX`].
        fids: Vec<Fid>,
        /// True to include layouts.
        layouts: bool,
        /// Lock handles as in `ReadDir`; the first one, for a directory, is unused.
        locks: LockRange,
    },
    /// Gives an inode another FID, and with that another MDT. Reply: `Done`; for a directory when the move
    /// has started: its names move in the background, and can be used meanwhile. `EBUSY` while the file is
    /// open anywhere, while names of a directory move, and for the root; `EMLINK` for a file with too many
    /// names; `EALREADY` if it is on that MDT.
    Migrate {
        /// Inode to move.
        fid: Fid,
        /// New FID, from a sequence of the caller.
        to: Fid,
        /// For a directory: its shards on the new MDT ([`nacre_layout::DirLayout`]); empty for none.
        lmv: &'a [u8],
    },
    /// Moves files and other inodes without names in them like `Migrate`: the MDT moves as many as it can in
    /// one transaction. Reply: `Outcomes`, in the order of the request; `EISDIR` for a directory.
    MigrateFiles {
        /// Current and new FIDs; up to [`nacre_types::ioctl::MIGRATED_MAX`].
        moves: Vec<(Fid, Fid)>,
    },
    /// Lists inodes of the MDT that have names; for administrators. Reply: `Files`.
    Inodes {
        /// FID after which inodes are listed.
        after: Fid,
        /// Largest number of inodes in the reply.
        count_max: u32,
        /// Inodes to list.
        kind: InodeKind,
    },
    /// Request of another metadata server. Reply: `Peer`. `EPERM` for all other senders.
    Peer(PeerRequest),
    /// Returns the state of the server at its start, for a client's recovery. Reply: `RunStart`.
    RunStart,
    /// Request about the changelog; for administrators. Reply: `Changelog`.
    Changelog(ChangelogRequest),
    /// Request about quotas, to MDT0000. Reply: `Quota`.
    Quota(QuotaRequest),
    /// Request about inodes and space below directories. Reply: `DirUse`.
    DirUse(DirUseRequest),
    /// Replays changes of the client that the target has lost, in the order of their transnos. The target executes
    /// the changes of all clients in that order, and waits for clients of its last run that may have earlier ones. On
    /// reply they are durable. Reply: `Outcomes`, in the order of the request.
    Replay {
        /// Changes, each later than the one before; at most [`crate::replay::REPLAYED_MAX`].
        changes: Vec<ReplayedChange>,
    },
    /// A change of data on the target, within `Replay` only: [`crate::oss::OssReply::Logged`]. Reply: `Done`.
    DataChange {
        /// Object of the file.
        object: Fid,
        /// Change of its data.
        change: DataChange,
    },
    /// Ends the client's recovery: it has replayed everything and reopened its files. Reply: `Done`.
    RecoveryDone,
}

/// Reply to a request; the request's doc names the variant.
#[derive(Clone, PartialEq, Debug)]
pub enum MdsReply {
    /// Success without a result.
    Done,
    /// Space and inodes of the MDT.
    Statfs(Statfs),
    /// A FID sequence for this client alone.
    Sequence(u64),
    /// Attributes after the request.
    Attr(Attr),
    /// Result of a lookup.
    Entry {
        /// Attributes; `None` if there is no such name (no error, so that clients can cache it as absent).
        attr: Option<Attr>,
        /// True if all users may search the directory, so that a cache need not distinguish users
        /// (`nacre_types::perm::searchable_by_all`).
        public: bool,
    },
    /// Result of a create.
    Created {
        /// Attributes of the file.
        attr: Attr,
        /// False if an existing file was opened.
        created: bool,
        /// Layout of the file if it was opened.
        layout: Option<Arc<Layout>>,
        /// Attributes of the parent after the change, which save the client a request.
        parent: Attr,
    },
    /// Result of an open.
    Opened {
        /// Attributes of the file.
        attr: Attr,
        /// Layout, with objects if it has any; after `TRUNCATE` the client must truncate them.
        layout: Option<Arc<Layout>>,
        /// All bytes of a small file on the MDT, as of this open; only for a client that is alone.
        data: Option<Vec<u8>>,
        /// Layout lock: the requested one, or one that the client holds already; 0 for none.
        lock: LockHandle,
    },
    /// A layout; `None` for files that have none stored yet (created with defaults and never written).
    Layout(Option<Arc<Layout>>),
    /// Default layout of a directory; `None` if it has none of its own.
    DefaultLayout(Option<LayoutRequest>),
    /// Result of the removal of a name.
    Removed {
        /// Inode that lost a name, if one did.
        fid: Fid,
        /// Attributes of the inode afterwards; `nlink` 0 if it is removed or stays as an open orphan.
        attr: Option<Attr>,
    },
    /// A page of a directory.
    Directory(DirPage),
    /// A page of a shard of a directory, or of a directory that is its own shard while its names move.
    Shard {
        /// Page of the shard.
        page: DirPage,
        /// Version of the list of shards.
        version: u32,
        /// Position before which names may have moved to other shards by the end of the read.
        moved: u64,
    },
    /// A value of an attribute, names of attributes, or the target of a link.
    Bytes(Vec<u8>),
    /// A path of an inode below a directory.
    Path {
        /// Directory where the path starts: the root, or one on another MDT.
        top: Fid,
        /// Names of directories and of the inode, separated by slashes.
        path: Vec<u8>,
    },
    /// A name of an inode.
    Link {
        /// Directory of the name.
        parent: Fid,
        /// Name of the inode.
        name: Vec<u8>,
    },
    /// The conflicting lock; `None` if the lock could be set.
    Lock(Option<FileLock>),
    /// File locks whose replay was refused: they are lost.
    RefusedLocks(Vec<ProcessLock>),
    /// Current lease of the client.
    Lease(LeaseGrant),
    /// Outcome of a lock request.
    Locked(Outcome),
    /// Result of a lookup, or an inode, and the locks granted with it.
    Intent {
        /// Attributes of the inode; `None` if there is no such name.
        attr: Option<Attr>,
        /// As in [`MdsReply::Entry`]; false without a name.
        public: bool,
        /// Number of names in the searched directory.
        names: Option<u64>,
        /// Lock on the content of the directory: requested, or held by the client already; 0 for none.
        directory: LockHandle,
        /// Lock on the inode, in the same way.
        inode: LockHandle,
    },
    /// Open lease, current or before the change.
    OpenLease(LeaseKind),
    /// Result of each part of a request: `None` on success, or its error.
    Outcomes(Vec<Option<Status>>),
    /// A part of a list of files.
    Files {
        /// FIDs of the files.
        fids: Vec<Fid>,
        /// FID to continue the list after; `None` at the end.
        next: Option<Fid>,
    },
    /// A layout as in `Layout`, and the lock granted with it.
    LockedLayout {
        /// Layout of the file.
        layout: Option<Arc<Layout>>,
        /// Layout lock: the requested one, or one that the client holds already; 0 for none.
        lock: LockHandle,
    },
    /// Reply to another metadata server.
    Peer(PeerReply),
    /// Reply about the changelog.
    Changelog(ChangelogReply),
    /// Quotas.
    Quota(QuotaReply),
    /// Inodes and space below directories.
    DirUse(DirUseReply),
    /// State of the server at the start of its run.
    RunStart(crate::connect::RunStart),
    /// Result of a lookup that leads to an inode of another MDT, which has its attributes.
    Remote {
        /// FID of the inode.
        fid: Fid,
        /// As in [`MdsReply::Entry`].
        public: bool,
        /// Number of names in the directory; `None` if it was not requested.
        names: Option<u64>,
        /// Lock on the content of the directory, as in [`MdsReply::Intent`].
        directory: LockHandle,
    },
}

/// A reply with its position in the target's history.
#[derive(Clone, PartialEq, Debug)]
pub struct MdsAnswer {
    /// Transaction of this request, 0 if it changed nothing.
    pub transno: TransNo,
    /// Transaction up to which everything is durable at the target.
    pub last_committed: TransNo,
    /// The reply itself.
    pub reply: MdsReply,
    /// Capabilities for the objects of the layout in the reply; `None` for clients that need none.
    pub capabilities: Option<Box<FileCapabilities>>,
}

impl From<MdsReply> for MdsAnswer {
    /// Wraps the reply of a request that committed no transaction.
    fn from(reply: MdsReply) -> MdsAnswer {
        MdsAnswer { transno: TransNo(0), last_committed: TransNo(0), reply, capabilities: None }
    }
}

/// Consecutive handles for locks that may be granted with a reply; none if `count` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockRange {
    /// First handle, for the lock on the directory.
    pub first: LockHandle,
    /// Number of handles.
    pub count: u32,
}
