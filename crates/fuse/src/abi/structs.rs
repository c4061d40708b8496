//! Structures of the protocol. Names follow the kernel's without the prefix.

use super::Wire;

macro_rules! wire {
    ($($(#[$meta:meta])* $name:ident($size:literal) { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $ty,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $(+ size_of::<$ty>())* == $size, "padding");
        // SAFETY: repr(C), without padding (asserted above), made of integers only.
        unsafe impl Wire for $name {}
    )*};
}

wire! {
    /// Starts every request.
    InHeader(40) {
        /// Length of header, arguments and data in bytes.
        len: u32,
        /// What is asked, see [`super::opcode`].
        opcode: u32,
        /// Number of the request.
        unique: u64,
        /// The inode that it is about.
        nodeid: u64,
        /// User of the caller; all ones if it cannot be expressed.
        uid: u32,
        /// Group of the caller.
        gid: u32,
        /// Process of the caller, 0 if it cannot be expressed.
        pid: u32,
        /// Length of the extensions at the end, in units of 8 bytes.
        total_extlen: u16,
        /// Zero.
        padding: u16,
    }
    /// Starts every reply and notification.
    OutHeader(16) {
        /// Length of header and data in bytes.
        len: u32,
        /// 0 or a negative errno; the code of a notification.
        error: i32,
        /// Number of the request, 0 for a notification.
        unique: u64,
    }
    /// Attributes of an inode.
    Attr(88) {
        /// Inode number that users see.
        ino: u64,
        /// Size in bytes.
        size: u64,
        /// Space used in units of 512 bytes.
        blocks: u64,
        /// Access time, seconds since 1970 as two's complement.
        atime: u64,
        /// Modification time, likewise.
        mtime: u64,
        /// Change time, likewise.
        ctime: u64,
        /// Nanoseconds of the access time.
        atimensec: u32,
        /// Nanoseconds of the modification time.
        mtimensec: u32,
        /// Nanoseconds of the change time.
        ctimensec: u32,
        /// Type and permissions.
        mode: u32,
        /// Number of names.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number of device nodes.
        rdev: u32,
        /// Preferred I/O size in bytes.
        blksize: u32,
        /// [`super::ATTR_SUBMOUNT`] or 0.
        flags: u32,
    }
    /// Reply to LOOKUP and creates.
    EntryOut(128) {
        /// Node id, 0 for a negative entry.
        nodeid: u64,
        /// Generation: node id and generation together are never used again.
        generation: u64,
        /// Seconds for which the name is valid.
        entry_valid: u64,
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanoseconds of the former.
        entry_valid_nsec: u32,
        /// Nanoseconds of the latter.
        attr_valid_nsec: u32,
        /// Attributes.
        attr: Attr,
    }
    /// Reply to GETATTR and SETATTR.
    AttrOut(104) {
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanoseconds of it.
        attr_valid_nsec: u32,
        /// Zero.
        dummy: u32,
        /// Attributes.
        attr: Attr,
    }
    /// A time of statx.
    SxTime(16) {
        /// Seconds since 1970.
        tv_sec: i64,
        /// Nanoseconds.
        tv_nsec: u32,
        /// Zero.
        reserved: i32,
    }
    /// Attributes as of statx(2).
    Statx(256) {
        /// Which fields are valid (STATX_...).
        mask: u32,
        /// Preferred I/O size in bytes.
        blksize: u32,
        /// STATX_ATTR_...
        attributes: u64,
        /// Number of names.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Type and permissions.
        mode: u16,
        /// Zero.
        spare0: u16,
        /// Inode number.
        ino: u64,
        /// Size in bytes.
        size: u64,
        /// Space used in units of 512 bytes.
        blocks: u64,
        /// Which bits of `attributes` are supported.
        attributes_mask: u64,
        /// Access time.
        atime: SxTime,
        /// Creation time.
        btime: SxTime,
        /// Change time.
        ctime: SxTime,
        /// Modification time.
        mtime: SxTime,
        /// Device number of device nodes, major.
        rdev_major: u32,
        /// Device number of device nodes, minor.
        rdev_minor: u32,
        /// Device of the file system, major.
        dev_major: u32,
        /// Device of the file system, minor.
        dev_minor: u32,
        /// Zero.
        spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut(288) {
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanoseconds of it.
        attr_valid_nsec: u32,
        /// Zero.
        flags: u32,
        /// Zero.
        spare: [u64; 2],
        /// Attributes.
        stat: Statx,
    }
    /// Space and limits of the file system; reply to STATFS.
    StatFs(80) {
        /// Size in units of `frsize`.
        blocks: u64,
        /// Free blocks.
        bfree: u64,
        /// Blocks that ordinary users may take.
        bavail: u64,
        /// Inodes.
        files: u64,
        /// Free inodes.
        ffree: u64,
        /// Preferred I/O size in bytes.
        bsize: u32,
        /// Longest name in bytes.
        namelen: u32,
        /// Size of a block in bytes.
        frsize: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        spare: [u32; 6],
    }
    /// A byte-range lock. `end` is inclusive, `u64::MAX >> 1` means to the end of the file.
    FileLock(24) {
        /// First byte.
        start: u64,
        /// Last byte.
        end: u64,
        /// F_RDLCK, F_WRLCK or F_UNLCK.
        typ: u32,
        /// Process that holds it (in replies).
        pid: u32,
    }
    /// FORGET.
    ForgetIn(8) {
        /// Number of lookups to undo.
        nlookup: u64,
    }
    /// One of BATCH_FORGET.
    ForgetOne(16) {
        /// Inode.
        nodeid: u64,
        /// Number of lookups to undo.
        nlookup: u64,
    }
    /// BATCH_FORGET.
    BatchForgetIn(8) {
        /// How many [`ForgetOne`] follow.
        count: u32,
        /// Zero.
        dummy: u32,
    }
    /// GETATTR.
    GetAttrIn(16) {
        /// [`super::GETATTR_FH`].
        getattr_flags: u32,
        /// Zero.
        dummy: u32,
        /// Handle if the flag is set.
        fh: u64,
    }
    /// STATX.
    StatxIn(24) {
        /// [`super::GETATTR_FH`].
        getattr_flags: u32,
        /// Zero.
        reserved: u32,
        /// Handle if the flag is set.
        fh: u64,
        /// AT_STATX_...
        sx_flags: u32,
        /// STATX_...
        sx_mask: u32,
    }
    /// SETATTR.
    SetAttrIn(88) {
        /// Which fields count, see [`super::SetAttrValid`].
        valid: u32,
        /// Zero.
        padding: u32,
        /// Handle.
        fh: u64,
        /// New size.
        size: u64,
        /// Lock owner.
        lock_owner: u64,
        /// Access time, seconds.
        atime: u64,
        /// Modification time, seconds.
        mtime: u64,
        /// Change time, seconds.
        ctime: u64,
        /// Nanoseconds of the access time.
        atimensec: u32,
        /// Nanoseconds of the modification time.
        mtimensec: u32,
        /// Nanoseconds of the change time.
        ctimensec: u32,
        /// Permissions.
        mode: u32,
        /// Zero.
        unused4: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Zero.
        unused5: u32,
    }
    /// MKNOD.
    MkNodIn(16) {
        /// Type and permissions.
        mode: u32,
        /// Device number.
        rdev: u32,
        /// Caller's umask.
        umask: u32,
        /// Zero.
        padding: u32,
    }
    /// MKDIR.
    MkDirIn(8) {
        /// Permissions.
        mode: u32,
        /// Caller's umask.
        umask: u32,
    }
    /// RENAME.
    RenameIn(8) {
        /// New parent.
        newdir: u64,
    }
    /// RENAME2.
    Rename2In(16) {
        /// New parent.
        newdir: u64,
        /// RENAME_...
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// LINK.
    LinkIn(8) {
        /// Inode that gets another name.
        oldnodeid: u64,
    }
    /// OPEN and OPENDIR.
    OpenIn(8) {
        /// Flags of open(2).
        flags: u32,
        /// [`super::OPEN_KILL_SUIDGID`].
        open_flags: u32,
    }
    /// CREATE and TMPFILE.
    CreateIn(16) {
        /// Flags of open(2).
        flags: u32,
        /// Type and permissions.
        mode: u32,
        /// Caller's umask.
        umask: u32,
        /// [`super::OPEN_KILL_SUIDGID`].
        open_flags: u32,
    }
    /// Reply to OPEN, OPENDIR and, after an entry, CREATE.
    OpenOut(16) {
        /// Handle.
        fh: u64,
        /// See [`super::OpenFlags`].
        open_flags: u32,
        /// Id of a registered backing file.
        backing_id: i32,
    }
    /// RELEASE and RELEASEDIR.
    ReleaseIn(24) {
        /// Handle.
        fh: u64,
        /// Flags of open(2).
        flags: u32,
        /// RELEASE_...
        release_flags: u32,
        /// Lock owner.
        lock_owner: u64,
    }
    /// FLUSH.
    FlushIn(24) {
        /// Handle.
        fh: u64,
        /// Zero.
        unused: u32,
        /// Zero.
        padding: u32,
        /// Lock owner whose fcntl locks go.
        lock_owner: u64,
    }
    /// READ, READDIR and READDIRPLUS.
    ReadIn(40) {
        /// Handle.
        fh: u64,
        /// First byte.
        offset: u64,
        /// Bytes at most.
        size: u32,
        /// [`super::READ_LOCKOWNER`].
        read_flags: u32,
        /// Lock owner.
        lock_owner: u64,
        /// Flags of open(2).
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// WRITE.
    WriteIn(40) {
        /// Handle.
        fh: u64,
        /// First byte.
        offset: u64,
        /// Bytes that follow.
        size: u32,
        /// WRITE_...
        write_flags: u32,
        /// Lock owner.
        lock_owner: u64,
        /// Flags of open(2).
        flags: u32,
        /// Zero.
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut(8) {
        /// Bytes taken.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// FSYNC and FSYNCDIR.
    FsyncIn(16) {
        /// Handle.
        fh: u64,
        /// [`super::FSYNC_FDATASYNC`].
        fsync_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// SETXATTR in its short form.
    SetXattrCompatIn(8) {
        /// Length of the value.
        size: u32,
        /// XATTR_...
        flags: u32,
    }
    /// SETXATTR.
    SetXattrIn(16) {
        /// Length of the value.
        size: u32,
        /// XATTR_...
        flags: u32,
        /// [`super::SETXATTR_ACL_KILL_SGID`].
        setxattr_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// GETXATTR and LISTXATTR.
    GetXattrIn(8) {
        /// Room for the value, 0 asks for its length.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// Reply to GETXATTR and LISTXATTR that ask for a length.
    GetXattrOut(8) {
        /// Length in bytes.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// GETLK, SETLK and SETLKW.
    LkIn(48) {
        /// Handle.
        fh: u64,
        /// Lock owner.
        owner: u64,
        /// The lock.
        lk: FileLock,
        /// [`super::LK_FLOCK`].
        lk_flags: u32,
        /// Zero.
        padding: u32,
    }
    /// ACCESS.
    AccessIn(8) {
        /// R_OK, W_OK, X_OK.
        mask: u32,
        /// Zero.
        padding: u32,
    }
    /// INIT, first part.
    InitIn(16) {
        /// Major version of the kernel.
        major: u32,
        /// Minor version of the kernel.
        minor: u32,
        /// Largest read-ahead in bytes.
        max_readahead: u32,
        /// Lower half of [`super::InitFlags`].
        flags: u32,
    }
    /// INIT, second part with [`super::InitFlags::INIT_EXT`].
    InitInExt(48) {
        /// Upper half of [`super::InitFlags`].
        flags2: u32,
        /// Zero.
        unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut(64) {
        /// Major version.
        major: u32,
        /// Minor version.
        minor: u32,
        /// Largest read-ahead in bytes.
        max_readahead: u32,
        /// Lower half of [`super::InitFlags`].
        flags: u32,
        /// Background requests (read-ahead, asynchronous I/O) under way at most.
        max_background: u16,
        /// Background requests from which on the mount counts as congested.
        congestion_threshold: u16,
        /// Largest WRITE in bytes.
        max_write: u32,
        /// Granularity of times in nanoseconds.
        time_gran: u32,
        /// Largest request in pages.
        max_pages: u16,
        /// DAX only.
        map_alignment: u16,
        /// Upper half of [`super::InitFlags`].
        flags2: u32,
        /// How deep backing file systems may stack (passthrough).
        max_stack_depth: u32,
        /// Seconds after which the kernel gives up on a request.
        request_timeout: u16,
        /// Zero.
        unused: [u16; 11],
    }
    /// INTERRUPT.
    InterruptIn(8) {
        /// The request that is called off.
        unique: u64,
    }
    /// BMAP.
    BmapIn(16) {
        /// Block of the file.
        block: u64,
        /// Size of a block.
        blocksize: u32,
        /// Zero.
        padding: u32,
    }
    /// Reply to BMAP.
    BmapOut(8) {
        /// Block of the device.
        block: u64,
    }
    /// IOCTL.
    IoctlIn(32) {
        /// Handle.
        fh: u64,
        /// IOCTL_...
        flags: u32,
        /// Command.
        cmd: u32,
        /// Argument as passed by the caller (an address in its memory or a number).
        arg: u64,
        /// Bytes that follow.
        in_size: u32,
        /// Room for the answer.
        out_size: u32,
    }
    /// Reply to IOCTL.
    IoctlOut(16) {
        /// Result of ioctl(2).
        result: i32,
        /// IOCTL_...
        flags: u32,
        /// Zero for restricted ioctls.
        in_iovs: u32,
        /// Zero for restricted ioctls.
        out_iovs: u32,
    }
    /// POLL.
    PollIn(24) {
        /// Handle.
        fh: u64,
        /// Number to send in a wake-up.
        kh: u64,
        /// [`super::POLL_SCHEDULE_NOTIFY`].
        flags: u32,
        /// POLL... that are waited for.
        events: u32,
    }
    /// Reply to POLL.
    PollOut(8) {
        /// POLL... that are true now.
        revents: u32,
        /// Zero.
        padding: u32,
    }
    /// FALLOCATE.
    FallocateIn(32) {
        /// Handle.
        fh: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// FALLOC_FL_...
        mode: u32,
        /// Zero.
        padding: u32,
    }
    /// LSEEK.
    LseekIn(24) {
        /// Handle.
        fh: u64,
        /// Where to start.
        offset: u64,
        /// SEEK_DATA or SEEK_HOLE.
        whence: u32,
        /// Zero.
        padding: u32,
    }
    /// Reply to LSEEK.
    LseekOut(8) {
        /// What was found.
        offset: u64,
    }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn(56) {
        /// Source handle.
        fh_in: u64,
        /// Source offset.
        off_in: u64,
        /// Target inode.
        nodeid_out: u64,
        /// Target handle.
        fh_out: u64,
        /// Target offset.
        off_out: u64,
        /// Bytes.
        len: u64,
        /// Zero.
        flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut(8) {
        /// Bytes copied.
        bytes_copied: u64,
    }
    /// SYNCFS.
    SyncFsIn(8) {
        /// Zero.
        padding: u64,
    }
    /// Starts each entry of READDIR; the name follows, filled up to 8 bytes.
    Dirent(24) {
        /// Inode number.
        ino: u64,
        /// Position of the next entry.
        off: u64,
        /// Length of the name.
        namelen: u32,
        /// DT_...
        typ: u32,
    }
    /// Starts each extension at the end of a request.
    ExtHeader(8) {
        /// Length with header.
        size: u32,
        /// [`super::EXT_GROUPS`], or a number of security contexts.
        typ: u32,
    }
    /// Notification: drop attributes and data.
    NotifyInvalInodeOut(24) {
        /// Inode.
        ino: u64,
        /// First byte, negative: attributes only.
        off: i64,
        /// Bytes, 0: to the end.
        len: i64,
    }
    /// Notification: drop a name; the name follows.
    NotifyInvalEntryOut(16) {
        /// Directory.
        parent: u64,
        /// Length of the name without its NUL.
        namelen: u32,
        /// [`super::EXPIRE_ONLY`].
        flags: u32,
    }
    /// Notification: a name was deleted; the name follows.
    NotifyDeleteOut(24) {
        /// Directory.
        parent: u64,
        /// Inode that the name stood for.
        child: u64,
        /// Length of the name without its NUL.
        namelen: u32,
        /// Zero.
        padding: u32,
    }
    /// Notification: put data into the page cache; the data follows.
    NotifyStoreOut(24) {
        /// Inode.
        nodeid: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// Notification: send data of the page cache.
    NotifyRetrieveOut(32) {
        /// Number that comes back.
        notify_unique: u64,
        /// Inode.
        nodeid: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        size: u32,
        /// Zero.
        padding: u32,
    }
    /// NOTIFY_REPLY: the data that was asked for.
    NotifyRetrieveIn(40) {
        /// Zero.
        dummy1: u64,
        /// First byte.
        offset: u64,
        /// Bytes that follow.
        size: u32,
        /// Zero.
        dummy2: u32,
        /// Zero.
        dummy3: u64,
        /// Zero.
        dummy4: u64,
    }
    /// Notification: wake a poller.
    NotifyPollWakeupOut(8) {
        /// Number from [`PollIn`].
        kh: u64,
    }
    /// Notification: drop unused inodes; the node ids follow.
    NotifyPruneOut(16) {
        /// How many.
        count: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        spare: u64,
    }
    /// Argument of [`super::ioctl::BACKING_OPEN`].
    BackingMap(16) {
        /// Descriptor of the file.
        fd: i32,
        /// Zero.
        flags: u32,
        /// Zero.
        padding: u64,
    }
    /// Third part of an io_uring buffer's header.
    UringEntInOut(32) {
        /// Zero.
        flags: u64,
        /// Number that commits this request.
        commit_id: u64,
        /// Bytes in the payload buffer.
        payload_sz: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        reserved: u64,
    }
    /// Command area of an io_uring submission (the kernel reads the first 24 of its 80 bytes).
    UringCmdReq(24) {
        /// Zero.
        flags: u64,
        /// The request that is answered.
        commit_id: u64,
        /// Queue.
        qid: u16,
        /// Zero.
        padding: [u16; 3],
    }
}
