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
        // SAFETY: repr(C), without padding (asserted above), only integers.
        unsafe impl Wire for $name {}
    )*};
}

wire! {
    /// Header of every request.
    InHeader(40) {
        /// Length of header, arguments and data in bytes.
        len: u32,
        /// Request code, see [`super::opcode`].
        opcode: u32,
        /// Number of the request.
        unique: u64,
        /// Node id of the inode that the request is about.
        nodeid: u64,
        /// User of the caller; all ones if it cannot be expressed.
        uid: u32,
        /// Group of the caller.
        gid: u32,
        /// Process of the caller, 0 if it cannot be expressed.
        pid: u32,
        /// Length of the extensions at the end, in units of 8 bytes.
        total_extlen: u16,
        /// Reserved, zero.
        padding: u16,
    }
    /// Header of every reply and notification.
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
        /// Modification time, in the same form.
        mtime: u64,
        /// Change time, in the same form.
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
        /// User id of the owner.
        uid: u32,
        /// Group id of the owner.
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
        /// Generation: a pair of node id and generation is never reused.
        generation: u64,
        /// Seconds for which the name is valid.
        entry_valid: u64,
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanosecond part of `entry_valid`.
        entry_valid_nsec: u32,
        /// Nanosecond part of `attr_valid`.
        attr_valid_nsec: u32,
        /// Attributes of the inode.
        attr: Attr,
    }
    /// Reply to GETATTR and SETATTR.
    AttrOut(104) {
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanosecond part of `attr_valid`.
        attr_valid_nsec: u32,
        /// Reserved, zero.
        dummy: u32,
        /// Attributes of the inode.
        attr: Attr,
    }
    /// A time of statx.
    SxTime(16) {
        /// Seconds since 1970.
        tv_sec: i64,
        /// Nanosecond part.
        tv_nsec: u32,
        /// Reserved, zero.
        reserved: i32,
    }
    /// Attributes as of statx(2).
    Statx(256) {
        /// Valid fields (STATX_...).
        mask: u32,
        /// Preferred I/O size in bytes.
        blksize: u32,
        /// STATX_ATTR_...
        attributes: u64,
        /// Number of names.
        nlink: u32,
        /// User id of the owner.
        uid: u32,
        /// Group id of the owner.
        gid: u32,
        /// Type and permissions.
        mode: u16,
        /// Reserved, zero.
        spare0: u16,
        /// Inode number that users see.
        ino: u64,
        /// Size in bytes.
        size: u64,
        /// Space used in units of 512 bytes.
        blocks: u64,
        /// Supported bits of `attributes`.
        attributes_mask: u64,
        /// Access time of the inode.
        atime: SxTime,
        /// Creation time of the inode.
        btime: SxTime,
        /// Change time of the inode.
        ctime: SxTime,
        /// Modification time of the inode.
        mtime: SxTime,
        /// Device number of device nodes, major.
        rdev_major: u32,
        /// Device number of device nodes, minor.
        rdev_minor: u32,
        /// Device of the file system, major.
        dev_major: u32,
        /// Device of the file system, minor.
        dev_minor: u32,
        /// Reserved, zero.
        spare2: [u64; 14],
    }
    /// Reply to STATX.
    StatxOut(288) {
        /// Seconds for which the attributes are valid.
        attr_valid: u64,
        /// Nanosecond part of `attr_valid`.
        attr_valid_nsec: u32,
        /// Reserved, zero.
        flags: u32,
        /// Reserved, zero.
        spare: [u64; 2],
        /// Attributes of the inode.
        stat: Statx,
    }
    /// Space and limits of the file system; reply to STATFS.
    StatFs(80) {
        /// Size in units of `frsize`.
        blocks: u64,
        /// Number of free blocks.
        bfree: u64,
        /// Blocks available to ordinary users.
        bavail: u64,
        /// Total number of inodes.
        files: u64,
        /// Number of free inodes.
        ffree: u64,
        /// Preferred I/O size in bytes.
        bsize: u32,
        /// Longest name in bytes.
        namelen: u32,
        /// Size of a block in bytes.
        frsize: u32,
        /// Reserved, zero.
        padding: u32,
        /// Reserved, zero.
        spare: [u32; 6],
    }
    /// A byte-range lock. `end` is inclusive, `u64::MAX >> 1` means to the end of the file.
    FileLock(24) {
        /// Offset of the first byte.
        start: u64,
        /// Offset of the last byte.
        end: u64,
        /// F_RDLCK, F_WRLCK or F_UNLCK.
        typ: u32,
        /// Process that holds it (in replies).
        pid: u32,
    }
    /// Argument of FORGET.
    ForgetIn(8) {
        /// Number of lookups to undo.
        nlookup: u64,
    }
    /// One inode of BATCH_FORGET.
    ForgetOne(16) {
        /// Node id of the inode.
        nodeid: u64,
        /// Number of lookups to undo.
        nlookup: u64,
    }
    /// Argument of BATCH_FORGET.
    BatchForgetIn(8) {
        /// Number of [`ForgetOne`] structures that follow.
        count: u32,
        /// Reserved, zero.
        dummy: u32,
    }
    /// Argument of GETATTR.
    GetAttrIn(16) {
        /// [`super::GETATTR_FH`].
        getattr_flags: u32,
        /// Reserved, zero.
        dummy: u32,
        /// Handle, if the flag is set.
        fh: u64,
    }
    /// Argument of STATX.
    StatxIn(24) {
        /// [`super::GETATTR_FH`].
        getattr_flags: u32,
        /// Reserved, zero.
        reserved: u32,
        /// Handle, if the flag is set.
        fh: u64,
        /// AT_STATX_...
        sx_flags: u32,
        /// STATX_...
        sx_mask: u32,
    }
    /// Argument of SETATTR.
    SetAttrIn(88) {
        /// Fields to change, see [`super::SetAttrValid`].
        valid: u32,
        /// Reserved, zero.
        padding: u32,
        /// Handle of the open file.
        fh: u64,
        /// New size in bytes.
        size: u64,
        /// Id of the lock owner.
        lock_owner: u64,
        /// Access time in seconds since 1970.
        atime: u64,
        /// Modification time in seconds since 1970.
        mtime: u64,
        /// Change time in seconds since 1970.
        ctime: u64,
        /// Nanoseconds of the access time.
        atimensec: u32,
        /// Nanoseconds of the modification time.
        mtimensec: u32,
        /// Nanoseconds of the change time.
        ctimensec: u32,
        /// Permission bits.
        mode: u32,
        /// Reserved, zero.
        unused4: u32,
        /// User id of the owner.
        uid: u32,
        /// Group id of the owner.
        gid: u32,
        /// Reserved, zero.
        unused5: u32,
    }
    /// Argument of MKNOD.
    MkNodIn(16) {
        /// Type and permissions.
        mode: u32,
        /// Device number of a device node.
        rdev: u32,
        /// Caller's umask.
        umask: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of MKDIR.
    MkDirIn(8) {
        /// Permission bits.
        mode: u32,
        /// Caller's umask.
        umask: u32,
    }
    /// Argument of RENAME.
    RenameIn(8) {
        /// Node id of the new parent.
        newdir: u64,
    }
    /// Argument of RENAME2.
    Rename2In(16) {
        /// Node id of the new parent.
        newdir: u64,
        /// RENAME_...
        flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of LINK.
    LinkIn(8) {
        /// Node id of the inode that gets another name.
        oldnodeid: u64,
    }
    /// Argument of OPEN and OPENDIR.
    OpenIn(8) {
        /// Flags of open(2).
        flags: u32,
        /// [`super::OPEN_KILL_SUIDGID`].
        open_flags: u32,
    }
    /// Argument of CREATE and TMPFILE.
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
        /// Handle of the open file.
        fh: u64,
        /// See [`super::OpenFlags`].
        open_flags: u32,
        /// Id of a registered backing file.
        backing_id: i32,
    }
    /// Argument of RELEASE and RELEASEDIR.
    ReleaseIn(24) {
        /// Handle of the open file.
        fh: u64,
        /// Flags of open(2).
        flags: u32,
        /// RELEASE_...
        release_flags: u32,
        /// Id of the lock owner.
        lock_owner: u64,
    }
    /// Argument of FLUSH.
    FlushIn(24) {
        /// Handle of the open file.
        fh: u64,
        /// Reserved, zero.
        unused: u32,
        /// Reserved, zero.
        padding: u32,
        /// Lock owner whose fcntl locks are released.
        lock_owner: u64,
    }
    /// Argument of READ, READDIR and READDIRPLUS.
    ReadIn(40) {
        /// Handle of the open file.
        fh: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Largest reply in bytes.
        size: u32,
        /// [`super::READ_LOCKOWNER`].
        read_flags: u32,
        /// Id of the lock owner.
        lock_owner: u64,
        /// Flags of open(2).
        flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of WRITE.
    WriteIn(40) {
        /// Handle of the open file.
        fh: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes of data that follow.
        size: u32,
        /// WRITE_...
        write_flags: u32,
        /// Id of the lock owner.
        lock_owner: u64,
        /// Flags of open(2).
        flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut(8) {
        /// Number of bytes written.
        size: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of FSYNC and FSYNCDIR.
    FsyncIn(16) {
        /// Handle of the open file.
        fh: u64,
        /// [`super::FSYNC_FDATASYNC`].
        fsync_flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of SETXATTR in its short form.
    SetXattrCompatIn(8) {
        /// Length of the value in bytes.
        size: u32,
        /// XATTR_...
        flags: u32,
    }
    /// Argument of SETXATTR.
    SetXattrIn(16) {
        /// Length of the value in bytes.
        size: u32,
        /// XATTR_...
        flags: u32,
        /// [`super::SETXATTR_ACL_KILL_SGID`].
        setxattr_flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of GETXATTR and LISTXATTR.
    GetXattrIn(8) {
        /// Size of the caller's buffer in bytes, 0 requests the length of the value.
        size: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Reply to GETXATTR and LISTXATTR of size 0.
    GetXattrOut(8) {
        /// Length in bytes.
        size: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of GETLK, SETLK and SETLKW.
    LkIn(48) {
        /// Handle of the open file.
        fh: u64,
        /// Id of the lock owner.
        owner: u64,
        /// Lock to test or set.
        lk: FileLock,
        /// [`super::LK_FLOCK`].
        lk_flags: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of ACCESS.
    AccessIn(8) {
        /// R_OK, W_OK, X_OK.
        mask: u32,
        /// Reserved, zero.
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
        /// Reserved, zero.
        unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut(64) {
        /// Major version in use.
        major: u32,
        /// Minor version in use.
        minor: u32,
        /// Largest read-ahead in bytes.
        max_readahead: u32,
        /// Lower half of [`super::InitFlags`].
        flags: u32,
        /// Limit on background requests (read-ahead, asynchronous I/O) in flight.
        max_background: u16,
        /// Number of background requests from which on the mount counts as congested.
        congestion_threshold: u16,
        /// Largest WRITE in bytes.
        max_write: u32,
        /// Granularity of times in nanoseconds.
        time_gran: u32,
        /// Largest request in pages.
        max_pages: u16,
        /// Alignment of DAX mappings, unused.
        map_alignment: u16,
        /// Upper half of [`super::InitFlags`].
        flags2: u32,
        /// Depth to which backing file systems may stack (passthrough).
        max_stack_depth: u32,
        /// Seconds after which the kernel aborts a request.
        request_timeout: u16,
        /// Reserved, zero.
        unused: [u16; 11],
    }
    /// Argument of INTERRUPT.
    InterruptIn(8) {
        /// Number of the interrupted request.
        unique: u64,
    }
    /// Argument of BMAP.
    BmapIn(16) {
        /// Block number in the file.
        block: u64,
        /// Size of a block in bytes.
        blocksize: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Reply to BMAP.
    BmapOut(8) {
        /// Block number on the device.
        block: u64,
    }
    /// Argument of IOCTL.
    IoctlIn(32) {
        /// Handle of the open file.
        fh: u64,
        /// IOCTL_...
        flags: u32,
        /// Command number.
        cmd: u32,
        /// Argument as passed by the caller (an address in its memory, or a number).
        arg: u64,
        /// Bytes of data that follow.
        in_size: u32,
        /// Size of the caller's buffer for the answer, in bytes.
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
    /// Argument of POLL.
    PollIn(24) {
        /// Handle of the open file.
        fh: u64,
        /// Number for the wake-up notification.
        kh: u64,
        /// [`super::POLL_SCHEDULE_NOTIFY`].
        flags: u32,
        /// POLL... events of interest to the caller.
        events: u32,
    }
    /// Reply to POLL.
    PollOut(8) {
        /// POLL... events that are ready.
        revents: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of FALLOCATE.
    FallocateIn(32) {
        /// Handle of the open file.
        fh: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        length: u64,
        /// FALLOC_FL_...
        mode: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of LSEEK.
    LseekIn(24) {
        /// Handle of the open file.
        fh: u64,
        /// Offset at which the search starts.
        offset: u64,
        /// SEEK_DATA or SEEK_HOLE.
        whence: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Reply to LSEEK.
    LseekOut(8) {
        /// Offset of the data or hole found.
        offset: u64,
    }
    /// Argument of COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn(56) {
        /// Handle of the source.
        fh_in: u64,
        /// Offset in the source.
        off_in: u64,
        /// Node id of the target.
        nodeid_out: u64,
        /// Handle of the target.
        fh_out: u64,
        /// Offset in the target.
        off_out: u64,
        /// Length in bytes.
        len: u64,
        /// Reserved, zero.
        flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut(8) {
        /// Number of copied bytes.
        bytes_copied: u64,
    }
    /// Argument of SYNCFS.
    SyncFsIn(8) {
        /// Reserved, zero.
        padding: u64,
    }
    /// Header of each entry of READDIR; the name follows, padded to 8 bytes.
    Dirent(24) {
        /// Inode number that users see.
        ino: u64,
        /// Position of the next entry.
        off: u64,
        /// Length of the name in bytes.
        namelen: u32,
        /// DT_...
        typ: u32,
    }
    /// Header of each extension at the end of a request.
    ExtHeader(8) {
        /// Length with header, in bytes.
        size: u32,
        /// [`super::EXT_GROUPS`], or a number of security contexts.
        typ: u32,
    }
    /// Notification: drop attributes and data.
    NotifyInvalInodeOut(24) {
        /// Node id of the inode.
        ino: u64,
        /// First byte; negative: attributes only.
        off: i64,
        /// Length in bytes; 0: to the end.
        len: i64,
    }
    /// Notification: drop a name; the name follows.
    NotifyInvalEntryOut(16) {
        /// Node id of the directory.
        parent: u64,
        /// Length of the name without its NUL, in bytes.
        namelen: u32,
        /// [`super::EXPIRE_ONLY`].
        flags: u32,
    }
    /// Notification: a name was deleted; the name follows.
    NotifyDeleteOut(24) {
        /// Node id of the directory.
        parent: u64,
        /// Node id of the inode that the name belonged to.
        child: u64,
        /// Length of the name without its NUL, in bytes.
        namelen: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Notification: put data into the page cache; the data follows.
    NotifyStoreOut(24) {
        /// Node id of the inode.
        nodeid: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        size: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Notification: request data of the page cache.
    NotifyRetrieveOut(32) {
        /// Number that the reply carries.
        notify_unique: u64,
        /// Node id of the inode.
        nodeid: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        size: u32,
        /// Reserved, zero.
        padding: u32,
    }
    /// Argument of NOTIFY_REPLY: the retrieved data.
    NotifyRetrieveIn(40) {
        /// Reserved, zero.
        dummy1: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Bytes of data that follow.
        size: u32,
        /// Reserved, zero.
        dummy2: u32,
        /// Reserved, zero.
        dummy3: u64,
        /// Reserved, zero.
        dummy4: u64,
    }
    /// Notification: wake a poller.
    NotifyPollWakeupOut(8) {
        /// Number from [`PollIn`].
        kh: u64,
    }
    /// Notification: drop unused inodes; the node ids follow.
    NotifyPruneOut(16) {
        /// Number of node ids.
        count: u32,
        /// Reserved, zero.
        padding: u32,
        /// Reserved, zero.
        spare: u64,
    }
    /// Argument of [`super::ioctl::BACKING_OPEN`].
    BackingMap(16) {
        /// Descriptor of the file.
        fd: i32,
        /// Reserved, zero.
        flags: u32,
        /// Reserved, zero.
        padding: u64,
    }
    /// Third part of the header of an io_uring buffer.
    UringEntInOut(32) {
        /// Reserved, zero.
        flags: u64,
        /// Number that commits this request.
        commit_id: u64,
        /// Bytes in the payload buffer.
        payload_sz: u32,
        /// Reserved, zero.
        padding: u32,
        /// Reserved, zero.
        reserved: u64,
    }
    /// Command area of an io_uring submission (the kernel reads the first 24 of its 80 bytes).
    UringCmdReq(24) {
        /// Reserved, zero.
        flags: u64,
        /// Number of the answered request.
        commit_id: u64,
        /// Number of the queue.
        qid: u16,
        /// Reserved, zero.
        padding: [u16; 3],
    }
}
