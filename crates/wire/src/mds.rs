//! Requests to a metadata server.

pub use crate::dir::{DirEntry, DirPage, ListedLayout};
pub use crate::file_lock::{FileLock, LockFamily, LockMode, LockOwner, ProcessLock, REPLAYED_LOCKS_MAX};
use crate::lock::LockRequest;
use crate::peer::{PeerReply, PeerRequest};
use bitflags::bitflags;
use nacre_layout::{Layout, Wish};
use nacre_lock::{LockHandle, Outcome};
use nacre_types::{Attr, Fid, OpenHandle, Rights, SetAttr, Status, Timestamp, TransNo};
use std::sync::Arc;

pub use crate::capabilities::{CAPABILITIES_MAX, FileCapabilities};

bitflags! {
    /// How a file is opened.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// For reading; needs read permission.
        const READ = 1;
        /// For writing; needs write permission.
        const WRITE = 2;
        /// For execution; needs execute permission.
        const EXEC = 4;
        /// Cut to size 0; needs write permission. The reply's layout tells the client which objects to cut.
        const TRUNCATE = 8;
        /// Every write goes to the end.
        const APPEND = 16;
        /// Re-opens a handle after the server restarted: no permission check, orphans allowed.
        const REPLAY = 32;
        /// No permission check: the caller has just created the file.
        const CREATED = 64;
        /// Drop set-id bits because of the truncation (unprivileged caller).
        const KILL_PRIV = 128;
    }

    /// How a rename treats an existing target.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// Fail with `EEXIST` if the new name exists (`RENAME_NOREPLACE`).
        const NOREPLACE = 1;
        /// Swap the two names (`RENAME_EXCHANGE`).
        const EXCHANGE = 2;
    }

    /// How an extended attribute is set.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct XattrFlags: u32 {
        /// Fail with `EEXIST` if it exists (`XATTR_CREATE`).
        const CREATE = 1;
        /// Fail with `ENODATA` if it does not (`XATTR_REPLACE`).
        const REPLACE = 2;
        /// An access ACL is set by a caller without rights to the group: drop the set-group-id bit.
        const KILL_SGID = 4;
    }
}

/// Names of one [`MdsRequest::LookupMany`] (the largest `statahead_batch_max`, reference 5).
pub const LOOKUP_MANY_MAX: usize = 1024;

/// Inodes of one [`MdsRequest::ListInodes`]. Guess: as many as a page of a listing has names.
pub const LIST_INODES_MAX: usize = 4096;

/// What a create makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewFile<'a> {
    /// A regular file, or with `rdev` a device, pipe or socket according to the mode.
    Node {
        /// Device number for device files.
        rdev: u32,
    },
    /// A directory, where the client's rules put it.
    Directory,
    /// A symbolic link.
    Symlink {
        /// Where it points.
        target: &'a [u8],
    },
    /// A regular file without a name (`O_TMPFILE`): an orphan until it is linked. The name of the request is empty.
    Unnamed,
    /// A directory whose names lie in shards.
    Striped {
        /// Which these are, as `lmv_mds_md_v1`: FIDs that nobody has.
        lmv: &'a [u8],
        /// The caller has chosen the MDTs, which needs the right to; it inherits no default then.
        chosen: bool,
    },
    /// A directory whose place the caller has chosen, which needs the right to.
    ChosenDirectory {
        /// What directories in it get (`lmv_user_md`), in place of what it would inherit.
        default: &'a [u8],
    },
}

/// What the client knows of a file's data when it closes or syncs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataUpdate {
    /// Size and blocks (512 bytes), if the client wrote or truncated.
    pub size_blocks: Option<(u64, u64)>,
    /// Last modification, if the client wrote.
    pub mtime: Option<Timestamp>,
    /// Last access, if the client read.
    pub atime: Option<Timestamp>,
    /// Grows with each update that a client makes of a file: updates may overtake each other on their way, and an older one
    /// that comes later does not count.
    pub order: u64,
}

/// Longest data that a close carries, in bytes: what one record of the MDT's data part holds.
pub const CLOSING_DATA_MAX: usize = 32 << 10;

/// A file for which only the whole file system's default asks begins on an MDT if its first data ends here or before, in bytes;
/// otherwise on OSTs (`docs/design/data-on-mdt.md`).
pub const HEAD_DATA_MAX: u64 = CLOSING_DATA_MAX as u64;

/// Data of a small file on the MDT that was held back until the close and goes with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClosingData<'a> {
    /// The file's only object, which is on the MDT.
    pub object: Fid,
    /// Where it is written, in bytes from the beginning of the object.
    pub offset: u64,
    /// At most [`CLOSING_DATA_MAX`] bytes.
    pub bytes: &'a [u8],
}

/// One request to a metadata server. FIDs of new files are chosen by the client from a sequence that it was given, so
/// that a resend names the same file.
#[derive(Clone, PartialEq, Debug)]
pub enum MdsRequest<'a> {
    /// Space and inodes of the MDT. Reply: `Statfs`.
    Statfs,
    /// A fresh FID sequence for the client. Reply: `Sequence`.
    AllocateSequence,
    /// Attributes of a name; needs search permission on the parent. `.` and `..` work. Reply: `Entry`.
    Lookup {
        /// The directory.
        parent: Fid,
        /// The name in it.
        name: &'a [u8],
    },
    /// Attributes of an inode; needs no permission. Reply: `Attr`.
    GetAttr {
        /// The inode.
        fid: Fid,
    },
    /// Changes attributes. A size change is only recorded: the client cuts the objects. Reply: `Attr`.
    SetAttr {
        /// The inode.
        fid: Fid,
        /// The change.
        set: SetAttr,
    },
    /// Makes a file, directory, symlink or node, and may open it. Reply: `Created`.
    Create {
        /// The directory.
        parent: Fid,
        /// The new name.
        name: &'a [u8],
        /// FID that the client chose.
        fid: Fid,
        /// What to make.
        new: NewFile<'a>,
        /// Type and permission bits, before umask.
        mode: u32,
        /// The caller's umask; not applied where a default ACL exists.
        umask: u32,
        /// Opens it under this handle at once.
        open: Option<(OpenHandle, OpenFlags)>,
        /// Fail with `EEXIST` if the name exists; otherwise an existing regular file is opened (with its permission
        /// check) and `created` in the reply is false.
        exclusive: bool,
    },
    /// Adds a name to an inode. Reply: `Attr` (of the inode).
    Link {
        /// The inode.
        fid: Fid,
        /// Directory of the new name.
        parent: Fid,
        /// The new name.
        name: &'a [u8],
    },
    /// Removes a name. Reply: `Removed`.
    Unlink {
        /// The directory.
        parent: Fid,
        /// The name.
        name: &'a [u8],
        /// True for `rmdir`.
        directory: bool,
    },
    /// Moves a name. Reply: `Removed` (what the new name named before, if anything).
    Rename {
        /// Old directory.
        from_parent: Fid,
        /// Old name.
        from_name: &'a [u8],
        /// New directory.
        to_parent: Fid,
        /// New name.
        to_name: &'a [u8],
        /// How to treat an existing target.
        flags: RenameFlags,
    },
    /// Opens a regular file under a handle that the client chose. Reply: `Opened`.
    Open {
        /// The file.
        fid: Fid,
        /// The handle.
        handle: OpenHandle,
        /// How.
        flags: OpenFlags,
        /// Name of a lock on the layout that the client would like to have with the answer; 0: none.
        lock: LockHandle,
    },
    /// Closes a handle and tells what became of the data. Reply: `Attr`, or `Done` if the file is gone.
    Close {
        /// The file.
        fid: Fid,
        /// The handle.
        handle: OpenHandle,
        /// Size and times, if they changed.
        update: DataUpdate,
        /// Objects that the client wrote to and whose layout did not say so; at most 4096.
        written: Vec<Fid>,
    },
    /// As `Close`, with data that is written in the same transaction, or nothing happens: `EAGAIN` if the client is not the only
    /// one or the file has other objects, `EBADF` if the handle is not known. Then the client writes it as data of any object, and
    /// closes. Reply: `Attr`.
    CloseWrite {
        /// The file.
        fid: Fid,
        /// The handle.
        handle: OpenHandle,
        /// Size and times; size and blocks are those of the object afterwards, whatever is said here.
        update: DataUpdate,
        /// What the client has held back.
        data: ClosingData<'a>,
    },
    /// Tells size and times while the file stays open (fsync, stat by others). Reply: `Attr`.
    UpdateData {
        /// The file.
        fid: Fid,
        /// Size and times.
        update: DataUpdate,
        /// Record the size as exact although writers have the file open (used after a recovery by glimpse).
        exact: bool,
        /// As for [`MdsRequest::Close`].
        written: Vec<Fid>,
    },
    /// Makes sure that `[start, end)` has objects, and everything before it, for a write or an extending truncate. What lies behind
    /// the last component is left out. Reply: `Layout`; `ENODATA` if all of it lies there.
    LayoutIntent {
        /// The file.
        fid: Fid,
        /// First byte to be written.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// The layout of a file as it is. Reply: `Layout`.
    GetLayout {
        /// The file.
        fid: Fid,
    },
    /// Capabilities for the objects that a file has, with the rights that the client's opens of it give, and those of `wanted` that the
    /// caller's permissions do. Waits for nobody. Reply: `Done`, with capabilities unless there are no objects.
    Capabilities {
        /// The file.
        fid: Fid,
        /// Rights that the caller's permissions may add to those of open handles.
        wanted: Rights,
    },
    /// Sets the layout of a file without objects, or the default of a directory (an empty wish removes it); needs write
    /// permission or ownership. Reply: `Attr`. `EALREADY` if the file has objects.
    SetLayout {
        /// File or directory.
        fid: Fid,
        /// The wish.
        wish: Wish,
    },
    /// Default layout wishes of a directory as stored, without resolving inheritance. Reply: `DefaultLayout`.
    GetDefaultLayout {
        /// The directory.
        fid: Fid,
    },
    /// A page of a directory; needs read permission only if `check` says so (an open directory was checked). Reply:
    /// `Directory`.
    ReadDir {
        /// The directory.
        fid: Fid,
        /// Entries after this position; 0 for the beginning. `.` and `..` are not included.
        cookie: u64,
        /// Bytes of the encoded page at most.
        max_bytes: u32,
        /// With attributes of each entry.
        plus: bool,
        /// For a client that wants to keep the answer: names of the locks on the directory and on the entries' inodes, which are
        /// granted at once or not at all. Then attributes come with a lock or not at all.
        locks: LockRange,
    },
    /// A page of a directory with the attributes of each entry, for programs that look at all of them: needs permission to
    /// search, as each entry's attributes would. Reply: `Directory`.
    Scan {
        /// The directory.
        fid: Fid,
        /// As in `ReadDir`.
        cookie: u64,
        /// As in `ReadDir`.
        max_bytes: u32,
        /// With the layouts of files and the default layouts of directories.
        layouts: bool,
    },
    /// Many names of one directory, looked up as `Lookup` does it. Reply: `Directory` with those that exist, in the order
    /// of the request and with attributes, as many as a page has room for.
    LookupMany {
        /// The directory.
        parent: Fid,
        /// The names, each ended by NUL: [`LOOKUP_MANY_MAX`] at most, more are left out.
        names: &'a [u8],
        /// As in `ReadDir`.
        locks: LockRange,
    },
    /// Target of a symbolic link. Reply: `Bytes`.
    ReadLink {
        /// The link.
        fid: Fid,
    },
    /// Value of an extended attribute. Reply: `Bytes`.
    GetXattr {
        /// The inode.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
    },
    /// Names of all extended attributes that the caller may see, each ended by NUL. Reply: `Bytes`.
    ListXattr {
        /// The inode.
        fid: Fid,
    },
    /// Sets an extended attribute. Reply: `Attr`.
    SetXattr {
        /// The inode.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
        /// Value, up to 64 KiB.
        value: &'a [u8],
        /// How.
        flags: XattrFlags,
    },
    /// Removes an extended attribute. Reply: `Attr`.
    RemoveXattr {
        /// The inode.
        fid: Fid,
        /// Full name with prefix.
        name: &'a [u8],
    },
    /// Whether the caller has all rights in `mask` (see `nacre_types::perm`). Reply: `Attr`.
    Access {
        /// The inode.
        fid: Fid,
        /// Rights.
        mask: u8,
    },
    /// Makes everything up to a transno durable; `TransNo(u64::MAX)` for all, which also waits a few
    /// seconds at most for objects of removed files to be destroyed, so that their space is free. Reply: `Done`.
    Commit {
        /// Up to and including this one.
        upto: TransNo,
    },
    /// One of the names of an inode: link number `index` from 0. Reply: `Link`; `ENODATA` past the last.
    FidToLink {
        /// The inode.
        fid: Fid,
        /// Which of its names.
        index: u32,
    },
    /// A path of an inode through link number `index` from 0, as far up as this MDT has its directories. Reply: `Path`; `ENODATA` past the
    /// last link, `ENAMETOOLONG` for one that has too many parts.
    FidToPath {
        /// The inode.
        fid: Fid,
        /// Which of its names.
        index: u32,
    },
    /// Removes one of the names of a file, whatever it is: who asks has found it by its FID. Reply: `Removed`; `ENOENT` if there is none.
    RemoveFid {
        /// The file.
        fid: Fid,
    },
    /// [`MdsRequest::LockFile`] of clients that know neither processes nor recovery. Reply: `Done`.
    SetLock {
        /// The file.
        fid: Fid,
        /// The lock.
        lock: FileLock,
        /// Wait for conflicting locks to go away.
        wait: bool,
    },
    /// Sets or releases a lock. Without `wait` a conflict gives `EAGAIN`, and `RECOVERING` while clients of the last run
    /// may still bring back locks; with it the request blocks (interruptible) until granted. Reply: `Done`.
    LockFile {
        /// The file.
        fid: Fid,
        /// The lock.
        lock: ProcessLock,
        /// Wait for conflicting locks to go away.
        wait: bool,
        /// When the program asked, in nanoseconds since the epoch by the client's clock: the order in which calls that
        /// waited when the MDT restarted wait on.
        asked_ns: u64,
    },
    /// Brings back locks that programs of this client held on a file when the MDT restarted. Reply: `RefusedLocks`.
    ReplayFileLocks {
        /// The file.
        fid: Fid,
        /// At most [`REPLAYED_LOCKS_MAX`]; none of them a release.
        locks: Vec<ProcessLock>,
    },
    /// The first lock that conflicts with the given one; `RECOVERING` as for `LockFile`. Reply: `Lock`.
    GetLock {
        /// The file.
        fid: Fid,
        /// The lock to try.
        lock: FileLock,
    },
    /// Still here. Reply: `Lease`: what the client may cache now.
    Ping,
    /// The client has dropped what it cached under leases up to this epoch. Reply: `Lease`.
    LeaseReleased {
        /// Epoch of the callback that asked for it.
        epoch: u64,
    },
    /// About locks on inodes. Reply: `Locked`, or `Done`.
    Locks {
        /// What is asked.
        request: LockRequest,
    },
    /// Like `Lookup`, or without a name like `GetAttr`, for a client that wants to keep the answer: it asks for read locks on
    /// what the answer says. They are granted at once or not at all. Reply: `Intent`.
    Intent {
        /// The directory to search, or the inode.
        fid: Fid,
        /// The name; neither `.` nor `..`.
        name: Option<&'a [u8]>,
        /// Name of the lock on the directory; the next one is that of the lock on the inode.
        handle: LockHandle,
    },
    /// Like `GetLayout`, or with a range like `LayoutIntent`, for a client that wants to keep the answer: it asks for a read lock on
    /// the layout, which is granted at once or not at all. Reply: `LockedLayout`.
    LayoutAccess {
        /// The file.
        fid: Fid,
        /// Bytes that are about to be written, `[start, end)`; `None` to read.
        range: Option<(u64, u64)>,
        /// Name of the lock.
        lock: LockHandle,
    },
    /// Exchanges the objects of two files with the same owner, durably; needs write permission on both. Reply: `Done`. `EAGAIN` if the
    /// data of one is not what was expected, `EBUSY` if the lease is not there any more.
    SwapLayouts {
        /// One file.
        first: Fid,
        /// The other.
        second: Fid,
        /// Versions that their data is expected to have, see [`crate::oss::OssRequest::DataVersion`].
        versions: (Option<u64>, Option<u64>),
        /// The times of change stay with the files instead of going with the data.
        keep_times: bool,
        /// A handle of the caller on the first file, whose lease must be there.
        lease: Option<OpenHandle>,
    },
    /// Takes a lease on an open file, or gives it up. Reply: `OpenLease`: what was there before. `EBUSY` if others have the file open in
    /// a way that the lease excludes.
    OpenLease {
        /// The file.
        fid: Fid,
        /// A handle of the caller.
        handle: OpenHandle,
        /// What is wanted; `None`: what there is, as it is.
        kind: Option<LeaseKind>,
    },
    /// Files that have objects on an OST, in the order of their FIDs; for administrators. Reply: `Files`.
    FilesOn {
        /// The OST.
        ost_index: u16,
        /// Files after this one.
        after: Fid,
        /// How many at most.
        count_max: u32,
    },
    /// Spreads the names of a directory over more or fewer shards. Reply: `Done`, when it has begun: names move in the background, and can
    /// be used meanwhile. `EBUSY` while they move already, `EALREADY` if they lie as is wanted.
    Restripe {
        /// The directory.
        fid: Fid,
        /// Number of shards (1: whole), the hash, and the MDTs of which those that are needed are taken in turn
        /// ([`nacre_layout::DirDefault`]).
        wish: &'a [u8],
    },
    /// Attributes of many inodes of one MDT, and perhaps layouts, as `Scan` gives them: for names that lie on another MDT. Reply:
    /// `Directory`, with entries called `.` in the order asked for; those that are gone are left out. The page may be full before the
    /// last, which `end` tells.
    ListInodes {
        /// Which, up to [`LIST_INODES_MAX`].
        fids: Vec<Fid>,
        /// With layouts.
        layouts: bool,
        /// As in `ReadDir`, though the first one is used for no directory.
        locks: LockRange,
    },
    /// Gives an inode another FID, and with that another MDT. Reply: `Done`; of a directory when that has begun: its names move in the
    /// background, and can be used meanwhile. `EBUSY` while anybody has a file open, while names of a directory move, and of the root;
    /// `EMLINK` for a file with too many names; `EALREADY` if that is its MDT.
    Migrate {
        /// The inode.
        fid: Fid,
        /// Its FID from then on, of the caller.
        to: Fid,
        /// Of a directory: the shards that it is to have there ([`nacre_layout::DirLayout`]); nothing: it is to be whole.
        lmv: &'a [u8],
    },
    /// `Migrate` for files and whatever else holds no names: the MDT moves as many as it can in one operation. Reply: `Outcomes`,
    /// in the order of the request; `EISDIR` for a directory.
    MigrateFiles {
        /// FID now, and from then on; up to [`nacre_types::ioctl::MIGRATED_MAX`].
        moves: Vec<(Fid, Fid)>,
    },
    /// Inodes of the asked MDT that have names; for administrators. Reply: `Files`.
    Inodes {
        /// Those after this one.
        after: Fid,
        /// How many at most.
        count_max: u32,
        /// Which of them.
        kind: InodeKind,
    },
    /// Of another metadata server. Reply: `Peer`. `EPERM` for anybody else.
    Peer(PeerRequest),
    /// What the server began its present run with. Part of a client's recovery. Reply: `RunStart`.
    RunStart,
}

/// A part of the inodes of an MDT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InodeKind {
    /// Directories; for a shard, the directory that it is a shard of.
    Directories,
    /// Whatever else has its first name on the MDT with this index.
    NamedOn(u16),
}

/// What the owner of an open file is sure of as long as its lease is there. A lease ends without a word when somebody does what it
/// excludes; its owner finds out when he asks, gives it up or uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum LeaseKind {
    /// Nothing.
    #[default]
    None = 0,
    /// Nobody else has opened the file for writing.
    Read = 1,
    /// Nobody else has opened the file.
    Write = 2,
    /// Nobody reads or writes the data: all others wait. Cannot be broken, ends with the handle.
    Frozen = 3,
}

impl MdsRequest<'_> {
    /// True if the request changes something, so that a resend must not run twice.
    pub fn is_modifying(&self) -> bool {
        !matches!(
            self,
            MdsRequest::Statfs
                | MdsRequest::Lookup { .. }
                | MdsRequest::GetAttr { .. }
                | MdsRequest::GetLayout { .. }
                | MdsRequest::Capabilities { .. }
                | MdsRequest::GetDefaultLayout { .. }
                | MdsRequest::ReadDir { .. }
                | MdsRequest::Scan { .. }
                | MdsRequest::LookupMany { .. }
                | MdsRequest::ListInodes { .. }
                | MdsRequest::ReadLink { .. }
                | MdsRequest::GetXattr { .. }
                | MdsRequest::ListXattr { .. }
                | MdsRequest::Access { .. }
                | MdsRequest::Commit { .. }
                | MdsRequest::FidToLink { .. }
                | MdsRequest::FidToPath { .. }
                | MdsRequest::GetLock { .. }
                | MdsRequest::ReplayFileLocks { .. }
                | MdsRequest::Ping
                | MdsRequest::LeaseReleased { .. }
                | MdsRequest::Locks { .. }
                | MdsRequest::Intent { .. }
                | MdsRequest::OpenLease { .. }
                | MdsRequest::FilesOn { .. }
                | MdsRequest::Inodes { .. }
                | MdsRequest::RunStart
        )
    }
}

/// Space and inodes of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statfs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for unprivileged users, less what is kept in reserve.
    pub blocks_available: u64,
    /// Inodes or objects in all.
    pub files: u64,
    /// Free inodes or objects.
    pub files_free: u64,
    /// State bits (Lustre `OS_STATFS_*`: 1 degraded, 2 read-only, 4 no-create, 0x20 out of space, 0x40 out of inodes).
    pub state: u32,
}

/// What a client may cache, see the `lock` crate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeaseGrant {
    /// True if the client is the only one, so that everything may be cached until it is called back.
    pub exclusive: bool,
    /// Grows with every change of `exclusive` at this server.
    pub epoch: u64,
}

/// The answer to a request; the request's doc says which variant.
#[derive(Clone, PartialEq, Debug)]
pub enum MdsReply {
    /// Nothing to tell.
    Done,
    /// Space.
    Statfs(Statfs),
    /// A FID sequence that is the client's alone.
    Sequence(u64),
    /// Attributes after the request.
    Attr(Attr),
    /// A looked-up name.
    Entry {
        /// The inode; `None` if there is no such name (not an error, so that its absence can be cached).
        attr: Option<Attr>,
        /// True if everybody may search the directory, so that a cache need not know who looks
        /// (`nacre_types::perm::searchable_by_all`).
        public: bool,
    },
    /// A create.
    Created {
        /// Attributes of the file.
        attr: Attr,
        /// False if an existing file was opened.
        created: bool,
        /// Layout if opened.
        layout: Option<Arc<Layout>>,
        /// Attributes of the parent after the change, so that the client need not ask.
        parent: Attr,
    },
    /// An open.
    Opened {
        /// Attributes.
        attr: Attr,
        /// The layout, with objects if it has any; after `TRUNCATE` the client must cut them.
        layout: Option<Arc<Layout>>,
        /// All bytes of a small file whose data is on the MDT, for a client that is alone: as they were at this open.
        data: Option<Vec<u8>>,
        /// The lock on the layout: the one that was asked for, or one that the client has already; 0 for none.
        lock: LockHandle,
    },
    /// A layout; `None` for files that have none stored yet (created with defaults and never written).
    Layout(Option<Arc<Layout>>),
    /// Wishes of a directory; `None` if it has none of its own.
    DefaultLayout(Option<Wish>),
    /// What lost a name.
    Removed {
        /// The inode that lost its name, if one did.
        fid: Fid,
        /// Its attributes after that; `nlink` 0 if it is gone or lives on as an open orphan.
        attr: Option<Attr>,
    },
    /// A page of a directory.
    Directory(DirPage),
    /// A page of a shard of a directory, or of one that is a shard of its own while its names move.
    Shard {
        /// The page.
        page: DirPage,
        /// Version of the list that the shard is in.
        version: u32,
        /// Names before this position may have moved to other shards before the page was read to its end.
        moved: u64,
    },
    /// A value.
    Bytes(Vec<u8>),
    /// A path of an inode below a directory.
    Path {
        /// The directory: the root, or one that another MDT has.
        top: Fid,
        /// Names of one directory and file after the other, with slashes between.
        path: Vec<u8>,
    },
    /// A name of an inode.
    Link {
        /// Its directory.
        parent: Fid,
        /// The name.
        name: Vec<u8>,
    },
    /// The conflicting lock; `None` if the lock could be set.
    Lock(Option<FileLock>),
    /// File locks that were not taken back: they are lost.
    RefusedLocks(Vec<ProcessLock>),
    /// What may be cached.
    Lease(LeaseGrant),
    /// What became of a request for a lock.
    Locked(Outcome),
    /// A name that was looked up, or an inode, and the locks that came with it.
    Intent {
        /// The inode; `None` if there is no such name.
        attr: Option<Attr>,
        /// As in [`MdsReply::Entry`]; false without a name.
        public: bool,
        /// How many names the directory that was searched has.
        names: Option<u64>,
        /// The lock on the content of the directory: the one that was asked for, or one that the client has already; 0 for none.
        directory: LockHandle,
        /// The lock on the inode.
        inode: LockHandle,
    },
    /// What lease there is, or was before it changed.
    OpenLease(LeaseKind),
    /// For each part of a request: `None` if it was done, or why not.
    Outcomes(Vec<Option<Status>>),
    /// Files.
    Files {
        /// Them.
        fids: Vec<Fid>,
        /// Ask again from behind this one; `None`: these were all.
        next: Option<Fid>,
    },
    /// A layout as in `Layout`, and the lock that came with it.
    LockedLayout {
        /// The layout.
        layout: Option<Arc<Layout>>,
        /// The lock: the one that was asked for, or one that the client has already; 0 for none.
        lock: LockHandle,
    },
    /// To another metadata server.
    Peer(PeerReply),
    /// What the present run began with.
    RunStart(crate::connect::RunStart),
    /// A looked-up name that leads to an inode of another MDT, which knows the rest.
    Remote {
        /// The inode.
        fid: Fid,
        /// As in [`MdsReply::Entry`].
        public: bool,
        /// How many names the directory has; `None` if it was not asked for.
        names: Option<u64>,
        /// The lock on the content of the directory, as in [`MdsReply::Intent`].
        directory: LockHandle,
    },
}

/// A reply and where it stands in the target's history.
#[derive(Clone, PartialEq, Debug)]
pub struct MdsAnswer {
    /// Transaction of this request, 0 if it changed nothing.
    pub transno: TransNo,
    /// Everything up to here is durable at the target.
    pub last_committed: TransNo,
    /// The answer proper.
    pub reply: MdsReply,
    /// What lets the client at the objects of a file whose layout the answer has. None for clients that need none.
    pub capabilities: Option<Box<FileCapabilities>>,
}

impl From<MdsReply> for MdsAnswer {
    /// Of a request that changed nothing, as far as a transaction counts.
    fn from(reply: MdsReply) -> MdsAnswer {
        MdsAnswer { transno: TransNo(0), last_committed: TransNo(0), reply, capabilities: None }
    }
}

/// Consecutive names of locks that the answer to a request may bring; none if there are 0 of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockRange {
    /// The first one, that of the lock on the directory.
    pub first: LockHandle,
    /// How many.
    pub count: u32,
}
