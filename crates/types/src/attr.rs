//! Attributes of files, as sent between client and metadata server.

use crate::fid::Fid;
use crate::time::Timestamp;
use bitflags::bitflags;

/// Type bits of `mode` (Linux `S_IFMT`).
pub const S_IFMT: u32 = 0o170000;
/// Set-user-id bit.
pub const S_ISUID: u32 = 0o4000;
/// Set-group-id bit.
pub const S_ISGID: u32 = 0o2000;
/// Sticky bit: in such a directory only the owner of an entry may remove it.
pub const S_ISVTX: u32 = 0o1000;

/// Type of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// Named pipe.
    Fifo = 1,
    /// Character device.
    CharDevice = 2,
    /// Directory.
    Directory = 4,
    /// Block device.
    BlockDevice = 6,
    /// Regular file.
    Regular = 8,
    /// Symbolic link.
    Symlink = 10,
    /// Unix socket.
    Socket = 12,
}

impl FileKind {
    /// Returns the kind in a mode's type bits; `None` for invalid bits.
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        FileKind::from_dirent_type(((mode & S_IFMT) >> 12) as u8)
    }

    /// Returns the kind with this `d_type` number (Linux `DT_*`).
    pub const fn from_dirent_type(value: u8) -> Option<FileKind> {
        Some(match value {
            1 => FileKind::Fifo,
            2 => FileKind::CharDevice,
            4 => FileKind::Directory,
            6 => FileKind::BlockDevice,
            8 => FileKind::Regular,
            10 => FileKind::Symlink,
            12 => FileKind::Socket,
            _ => return None,
        })
    }

    /// Returns the type bits of `mode`.
    pub const fn mode_bits(self) -> u32 {
        (self as u32) << 12
    }
}

bitflags! {
    /// Optional properties of an inode; they save requests for properties that do not exist.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct AttrFlags: u32 {
        /// An access ACL beyond the mode bits exists.
        const HAS_ACL = 1;
        /// A default ACL exists (directories).
        const HAS_DEFAULT_ACL = 2;
        /// Extended attributes other than ACLs and layouts exist.
        const HAS_XATTRS = 4;
        /// A layout is stored: stripes of a file, or the default of a directory.
        const HAS_LAYOUT = 8;
        /// The layout has objects, so data may exist on OSTs.
        const HAS_OBJECTS = 16;
        /// A `security.capability` attribute exists, to be dropped on write and chown.
        const HAS_CAPABILITY = 32;
        /// The file has no name left; it exists until its last close.
        const ORPHAN = 64;
        /// New entries of this directory get its project, and new subdirectories also this flag
        /// (`FS_PROJINHERIT_FL`).
        const PROJECT_INHERIT = 128;
        /// The names of this directory are stored in shards.
        const STRIPED = 256;
        /// A default for new subdirectories of this directory is stored.
        const HAS_DIR_DEFAULT = 512;
    }
}

/// Source of the size in an [`Attr`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum SizeSource {
    /// `size` and `blocks` are exact: no client has the file open for writing.
    #[default]
    Exact = 0,
    /// A client writes, or a writer died: the size has to be taken from the objects on the OSTs (glimpse).
    Objects = 1,
}

/// Attributes of one inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr {
    /// FID of the inode.
    pub fid: Fid,
    /// Type and permission bits.
    pub mode: u32,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the file.
    pub gid: u32,
    /// Project id, 0 if none.
    pub projid: u32,
    /// Number of hard links; 0 for an orphan.
    pub nlink: u32,
    /// Device number (Linux `makedev` encoding) of device files, otherwise 0.
    pub rdev: u32,
    /// Differs after each change of the size of a regular file that its MDT has recorded; 0 before the first one, and
    /// of other inodes. A client reports a size with the stamp from before it determined the size.
    pub size_stamp: u32,
    /// Size in bytes; see `size_source`.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of data.
    pub mtime: Timestamp,
    /// Time of the last change of data or attributes.
    pub ctime: Timestamp,
    /// Time of creation.
    pub btime: Timestamp,
    /// Optional properties of the inode.
    pub flags: AttrFlags,
    /// Source of `size`, `blocks` and `mtime`: exact, or the objects.
    pub size_source: SizeSource,
    /// Transno of the inode's last change at its MDT; orders concurrent replies.
    pub version: u64,
}

impl Attr {
    /// Value of `size_stamp` that the MDT's transaction replaces by a new stamp.
    pub const NEW_STAMP: u32 = u32::MAX;

    /// Returns the file's kind; decoders accept only valid modes, any other mode counts as regular.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// True for directories.
    pub fn is_dir(&self) -> bool {
        self.mode & S_IFMT == FileKind::Directory.mode_bits()
    }

    /// True for regular files.
    pub fn is_regular(&self) -> bool {
        self.mode & S_IFMT == FileKind::Regular.mode_bits()
    }
}

bitflags! {
    /// Fields of a [`SetAttr`] that are applied.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SetAttrValid: u32 {
        /// Permission bits (type bits are kept).
        const MODE = 1;
        /// Owner.
        const UID = 2;
        /// Group.
        const GID = 4;
        /// Size: a truncation or extension by the caller, with its permission check.
        const SIZE = 8;
        /// Access time to the given value (owner only).
        const ATIME = 16;
        /// Modification time to the given value (owner only).
        const MTIME = 32;
        /// Access time to the server's clock (write permission is enough).
        const ATIME_NOW = 64;
        /// Modification time to the server's clock (write permission is enough).
        const MTIME_NOW = 128;
        /// Change time to the given value (sent by kernels that own ctime; servers may ignore it).
        const CTIME = 256;
        /// Project id (owner only).
        const PROJID = 512;
        /// Drop set-id bits and capabilities because of a write, truncate or chown by an unprivileged caller.
        const KILL_PRIV = 1024;
        /// The caller has the file open for writing, so a size change needs no permission check.
        const OPEN_FOR_WRITE = 2048;
        /// Make new entries of the directory inherit its project (owner only).
        const PROJECT_INHERIT = 4096;
        /// Make new entries of the directory not inherit its project (owner only).
        const NO_PROJECT_INHERIT = 8192;
    }
}

/// A change of attributes. Only fields named in `valid` count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Fields to apply.
    pub valid: SetAttrValid,
    /// New permission bits.
    pub mode: u32,
    /// New owner.
    pub uid: u32,
    /// New group.
    pub gid: u32,
    /// New project.
    pub projid: u32,
    /// New size in bytes.
    pub size: u64,
    /// New access time.
    pub atime: Timestamp,
    /// New modification time.
    pub mtime: Timestamp,
    /// New change time.
    pub ctime: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_the_mode_bits() {
        for kind in
            [FileKind::Fifo, FileKind::Directory, FileKind::Regular, FileKind::Symlink, FileKind::Socket]
        {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(FileKind::Directory.mode_bits(), 0o040000);
        assert_eq!(FileKind::from_mode(0), None);
    }
}
