//! Request codes.

macro_rules! opcodes {
    ($($(#[$meta:meta])* $name:ident = $value:literal,)*) => {
        $($(#[$meta])* pub const $name: u32 = $value;)*

        /// Returns the name of a request code, for messages.
        pub fn name(opcode: u32) -> &'static str {
            match opcode {
                $($name => stringify!($name),)*
                _ => "unknown",
            }
        }

        /// All known request codes.
        pub const ALL: &[u32] = &[$($name),*];
    };
}

opcodes! {
    /// Name to inode.
    LOOKUP = 1,
    /// The kernel dropped references; no reply.
    FORGET = 2,
    /// Reads attributes.
    GETATTR = 3,
    /// Changes attributes.
    SETATTR = 4,
    /// Target of a symbolic link.
    READLINK = 5,
    /// Creates a symbolic link.
    SYMLINK = 6,
    /// Creates a file, device, pipe or socket.
    MKNOD = 8,
    /// Creates a directory.
    MKDIR = 9,
    /// Removes a name of an inode that is no directory.
    UNLINK = 10,
    /// Removes an empty directory.
    RMDIR = 11,
    /// Renames without flags.
    RENAME = 12,
    /// Creates a hard link.
    LINK = 13,
    /// Opens a file.
    OPEN = 14,
    /// Reads data.
    READ = 15,
    /// Writes data.
    WRITE = 16,
    /// Returns space and limits of the file system.
    STATFS = 17,
    /// Last close of an open file.
    RELEASE = 18,
    /// Makes a file durable.
    FSYNC = 20,
    /// Sets an extended attribute.
    SETXATTR = 21,
    /// Reads an extended attribute.
    GETXATTR = 22,
    /// Lists extended attributes.
    LISTXATTR = 23,
    /// Removes an extended attribute.
    REMOVEXATTR = 24,
    /// A descriptor of an open file was closed.
    FLUSH = 25,
    /// First request of a connection.
    INIT = 26,
    /// Opens a directory.
    OPENDIR = 27,
    /// Reads names.
    READDIR = 28,
    /// Last close of an open directory.
    RELEASEDIR = 29,
    /// Makes a directory durable.
    FSYNCDIR = 30,
    /// Tests a lock.
    GETLK = 31,
    /// Sets a lock or fails.
    SETLK = 32,
    /// Sets a lock, waits for it.
    SETLKW = 33,
    /// Checks permissions for access(2).
    ACCESS = 34,
    /// Creates and opens a file.
    CREATE = 35,
    /// Interrupts a request.
    INTERRUPT = 36,
    /// Maps a file block to a device block.
    BMAP = 37,
    /// Last request of some connections.
    DESTROY = 38,
    /// ioctl(2).
    IOCTL = 39,
    /// poll(2).
    POLL = 40,
    /// Data that a retrieve notification requested.
    NOTIFY_REPLY = 41,
    /// Many forgets; no reply.
    BATCH_FORGET = 42,
    /// Allocates or punches space.
    FALLOCATE = 43,
    /// Reads names with attributes.
    READDIRPLUS = 44,
    /// Renames with flags.
    RENAME2 = 45,
    /// Finds data or holes.
    LSEEK = 46,
    /// Copies between files of this file system; 32-bit result.
    COPY_FILE_RANGE = 47,
    /// Maps into a DAX window (virtiofs only).
    SETUPMAPPING = 48,
    /// Unmaps from a DAX window (virtiofs only).
    REMOVEMAPPING = 49,
    /// Makes the whole file system durable.
    SYNCFS = 50,
    /// Creates and opens a file without a name.
    TMPFILE = 51,
    /// Reads attributes as statx(2).
    STATX = 52,
    /// Copies between files of this file system; 64-bit result (7.45).
    COPY_FILE_RANGE_64 = 53,
}
