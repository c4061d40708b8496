//! Native ioctls of a mount: queries of `lfs` about targets, paths and FIDs, and operations on files. They
//! work on any file or directory of the mount; other file systems answer `ENOTTY`.
//!
//! Structures are fixed-size byte strings, little-endian, so that no padding can differ. The kernel copies
//! the number of bytes that is encoded in the command, at most 16383.

use crate::attr::SizeSource;
use crate::fid::{FID_BYTES, Fid};
use crate::ids::{TargetId, TargetKind};
use crate::limits::NAME_MAX;
use crate::lustre::ProjectCall;

mod dir_use;
mod inodes;

pub use dir_use::DirUse;
pub use inodes::{FILES_MAX, FilesOn, FilesWanted, MIGRATED_MAX, MigrateFiles};

/// Type byte of all native ioctls.
pub const MAGIC: u8 = b'N';
/// Longest path that [`FidToPath`] returns, in bytes.
pub const PATH_MAX: usize = 4096;
/// Pool names in one [`PoolList`].
pub const POOLS_MAX: usize = 512;
/// Target indexes in one [`TargetList`].
pub const LIST_MAX: usize = 4096;

/// Bytes of entries in one [`ScanDirectory`]: the rest of the kernel's limit for the structure.
pub const SCAN_BYTES_MAX: usize = 16_360;

pub(crate) const WRITE: u32 = 1;
const READ: u32 = 2;
pub(crate) const READ_WRITE: u32 = 3;

/// Returns the command number for ioctl(2) (Linux `_IOC`).
pub(crate) const fn number(direction: u32, nr: u32, size: usize) -> u32 {
    assert!(size <= 16383, "the kernel encodes sizes in 14 bits");
    direction << 30 | (size as u32) << 16 | (MAGIC as u32) << 8 | nr
}

/// A structure that an ioctl copies in and out.
pub trait Payload: Sized {
    /// Command number of the ioctl.
    const COMMAND: u32;
    /// Size of the structure in bytes.
    const SIZE: usize;
    /// Returns the structure's bytes, exactly [`Payload::SIZE`].
    fn to_bytes(&self) -> Vec<u8>;
    /// Reads the structure; `None` if the bytes are too few or invalid.
    fn from_bytes(bytes: &[u8]) -> Option<Self>;
}

/// Identifies the mounted file system and the mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountInfo {
    /// Name of the file system, up to 16 bytes.
    pub fsname: String,
    /// Identity of the mount in hexadecimal, up to 32 bytes.
    pub instance: String,
}

/// Returns the FID of the file or directory that the ioctl is called on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PathToFid {
    /// Output: the FID.
    pub fid: Fid,
}

/// Returns a path of an inode, relative to the root of the mount. Needs `CAP_DAC_READ_SEARCH`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FidToPath {
    /// Inode to name.
    pub fid: Fid,
    /// Number of the link, from 0; `ENODATA` past the last.
    pub link: u32,
    /// Output: path without a leading slash, at most [`PATH_MAX`] bytes.
    pub path: Vec<u8>,
}

/// Lists the indexes of targets of one kind, in ascending order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TargetList {
    /// Kind of the targets.
    pub kind: TargetKind,
    /// First index to list.
    pub from: u16,
    /// Output: at most [`LIST_MAX`] indexes; if there are as many, repeat the call after the last.
    pub indexes: Vec<u16>,
    /// Output: indexes among them that are inactive at this mount, in the same order.
    pub inactive: Vec<u16>,
}

/// Returns space and inodes of one target. `ENODEV` if there is no such target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TargetStatfs {
    /// Target to query.
    pub target: TargetId,
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Number of blocks: total, free, and free for unprivileged users.
    pub blocks: [u64; 3],
    /// Number of inodes or objects: total and free.
    pub files: [u64; 2],
    /// State bits (Lustre `OS_STATFS_*`).
    pub state: u32,
}

/// Lists names of pools, in order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolList {
    /// Position of the first name to list.
    pub from: u32,
    /// Output: at most [`POOLS_MAX`] names, each up to 15 bytes; if there are as many, repeat the call after
    /// the last.
    pub names: Vec<String>,
}

/// Lists the OSTs of a pool, in the order in which they were added. `ENOENT` if there is no such pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolMembers {
    /// Name of the pool, up to 15 bytes.
    pub pool: String,
    /// Position of the first OST to list.
    pub from: u32,
    /// Output: at most [`LIST_MAX`] indexes; if there are as many, repeat the call after the last.
    pub indexes: Vec<u16>,
}

/// Gives a hint about a range of the file that the ioctl is called on. `EOPNOTSUPP` for hints without an
/// effect in this file system, or with one on the open file only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Advise {
    /// Lustre's number of the hint: 1 will be read, 2 not needed, 4 lock ahead.
    pub advice: u16,
    /// Mode of the lock for hint 4: 1 to read, 2 to write.
    pub mode: u16,
    /// Bit 0: for hint 4, lock only if no other client holds a conflicting lock.
    pub flags: u32,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte; all ones for the end of the file.
    pub end: u64,
}

/// Returns the size of a file as its MDT has it, without asking OSTs or writers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SizeOnMdt {
    /// Size in bytes.
    pub size: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks: u64,
    /// Exact, or a value that the objects may contradict.
    pub source: SizeSource,
}

/// Lists entries of a directory with their attributes and layouts; needs the directory open for reading, and
/// permission to search it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanDirectory {
    /// Position after which entries are listed; 0 for the start.
    pub cookie: u64,
    /// Information to return in addition to the attributes that the MDT has.
    pub wanted: ScanWanted,
    /// Output: true if nothing follows these entries.
    pub end: bool,
    /// Output: entries encoded as in a listing between client and MDT (`nacre_wire::mds::DirPage`), at most
    /// [`SCAN_BYTES_MAX`] bytes.
    pub entries: Vec<u8>,
}

bitflags::bitflags! {
    /// Optional information of a [`ScanDirectory`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ScanWanted: u32 {
        /// Layouts of files and default layouts of directories.
        const LAYOUTS = 1;
        /// Sizes, blocks and times of files that this mount has open. Those that other mounts write to stay
        /// as the MDT has them (`SizeSource::Objects`).
        const SIZES = 2;
    }
}

/// Operation of a [`FileCall`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum FileOperation {
    /// Return the version of the data: flags 0 as stored on the OSTs, 1 after the held-back data was written,
    /// 2 after all caches were dropped. Output: the version.
    DataVersion = 1,
    /// Exchange the objects with those of the other file; flags as in [`FileCall`].
    Swap = 2,
    /// Take the lease whose number is in the flags: 0 none, 1 read, 2 write, 3 frozen; or
    /// [`FileCall::ASK_LEASE`]. Output: the number of the previous lease.
    Lease = 3,
    /// Find the next byte of data from the first value on: as lseek(2), but without queueing behind a write
    /// that waits while the file is frozen.
    SeekData = 4,
    /// Find the next hole, in the same way.
    SeekHole = 5,
    /// Return the size.
    Size = 6,
    /// Copy as copy_file_range(2) does, from the offset in the first value to the same offset in the other
    /// file, which this mount has open for writing and the caller may write to; as many bytes as the second
    /// value. Output: bytes copied.
    Copy = 7,
}

/// Performs an operation on the data of an open file. `EACCES` or `EPERM` without the rights for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileCall {
    /// Operation to perform.
    pub operation: FileOperation,
    /// Flags of the operation; of an exchange [`FileCall::FIRST`], [`FileCall::SECOND`],
    /// [`FileCall::KEEP_TIMES`], [`FileCall::LEASED`].
    pub flags: u32,
    /// FID of the other file.
    pub other: Fid,
    /// Expected versions of the data of this file and of the other one; the first is also the output.
    pub values: [u64; 2],
}

impl FileCall {
    /// Compare the first version.
    pub const FIRST: u32 = 1;
    /// Compare the second version.
    pub const SECOND: u32 = 2;
    /// Keep the times with the files.
    pub const KEEP_TIMES: u32 = 4;
    /// Require the lease on this file.
    pub const LEASED: u32 = 8;
    /// For a lease: return the current one without changing it.
    pub const ASK_LEASE: u32 = 4;
}

/// Removes all names of a file. Needs `CAP_DAC_READ_SEARCH`, and for each name the rights for unlink(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoveFid {
    /// File to remove.
    pub fid: Fid,
}

/// Creates a directory on chosen MDTs, in the one that the ioctl is called on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MakeDirectory {
    /// Name of the directory, up to 255 bytes.
    pub name: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Umask of the caller; not applied where a default ACL exists.
    pub umask: u32,
    /// Number of MDTs to spread its names over; negative: that many times all MDTs. 0 and 1: not spread.
    pub count: i32,
    /// Hash that spreads the names, in Lustre's numbers (1 all_char, 2 fnv_1a_64, 3 crush, 4 crush2; 0:
    /// default), with Lustre's flags.
    pub hash: u32,
    /// Number of levels for which subdirectories stay on its MDT, in Lustre's numbers (0 all, 255 none).
    pub max_inherit: u8,
    /// True if an existing directory gets the number of shards and the hash.
    pub restripes: bool,
    /// True to create nothing but to move the inode with the name: a directory itself to the first of the
    /// MDTs, its names to all of them.
    pub migrates: bool,
    /// Indexes of the MDTs, up to [`MDTS_MAX`]; if there are fewer than `count`, others are added. Empty:
    /// chosen by free space.
    pub mdts: Vec<u16>,
}

/// MDTs in one [`MakeDirectory`].
pub const MDTS_MAX: usize = 2000;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn fid_at(bytes: &[u8], at: usize) -> Option<Fid> {
    Some(Fid::from_le_bytes(bytes.get(at..at + FID_BYTES)?.try_into().ok()?))
}

fn put_text(out: &mut Vec<u8>, text: &str, len: usize) {
    let end = out.len() + len;
    out.extend_from_slice(&text.as_bytes()[..text.len().min(len)]);
    out.resize(end, 0);
}

fn text_at(bytes: &[u8], at: usize, len: usize) -> Option<String> {
    let field = bytes.get(at..at + len)?;
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(len);
    String::from_utf8(field[..end].to_vec()).ok()
}

fn kind_to_u32(kind: TargetKind) -> u32 {
    match kind {
        TargetKind::Mgt => 0,
        TargetKind::Mdt => 1,
        TargetKind::Ost => 2,
    }
}

fn kind_at(bytes: &[u8], at: usize) -> Option<TargetKind> {
    match u32_at(bytes, at)? {
        0 => Some(TargetKind::Mgt),
        1 => Some(TargetKind::Mdt),
        2 => Some(TargetKind::Ost),
        _ => None,
    }
}

impl Payload for MountInfo {
    const COMMAND: u32 = number(READ, 1, Self::SIZE);
    const SIZE: usize = 48;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::SIZE);
        put_text(&mut out, &self.fsname, 16);
        put_text(&mut out, &self.instance, 32);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<MountInfo> {
        Some(MountInfo { fsname: text_at(bytes, 0, 16)?, instance: text_at(bytes, 16, 32)? })
    }
}

impl Payload for PathToFid {
    const COMMAND: u32 = number(READ, 2, Self::SIZE);
    const SIZE: usize = FID_BYTES;

    fn to_bytes(&self) -> Vec<u8> {
        self.fid.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<PathToFid> {
        Some(PathToFid { fid: fid_at(bytes, 0)? })
    }
}

impl Payload for FidToPath {
    const COMMAND: u32 = number(READ_WRITE, 3, Self::SIZE);
    const SIZE: usize = FID_BYTES + 8 + PATH_MAX;

    fn to_bytes(&self) -> Vec<u8> {
        let path = &self.path[..self.path.len().min(PATH_MAX)];
        let mut out = self.fid.to_le_bytes().to_vec();
        out.extend_from_slice(&self.link.to_le_bytes());
        out.extend_from_slice(&(path.len() as u32).to_le_bytes());
        out.extend_from_slice(path);
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<FidToPath> {
        let len = u32_at(bytes, 20)? as usize;
        let path = bytes.get(24..Self::SIZE)?.get(..len)?.to_vec();
        Some(FidToPath { fid: fid_at(bytes, 0)?, link: u32_at(bytes, 16)?, path })
    }
}

/// Offset of the bitmap of inactive targets in a [`TargetList`].
const LIST_INACTIVE: usize = 12 + 2 * LIST_MAX;

impl Payload for TargetList {
    const COMMAND: u32 = number(READ_WRITE, 4, Self::SIZE);
    const SIZE: usize = LIST_INACTIVE + LIST_MAX / 8;

    fn to_bytes(&self) -> Vec<u8> {
        let indexes = &self.indexes[..self.indexes.len().min(LIST_MAX)];
        let mut out = kind_to_u32(self.kind).to_le_bytes().to_vec();
        out.extend_from_slice(&u32::from(self.from).to_le_bytes());
        out.extend_from_slice(&(indexes.len() as u32).to_le_bytes());
        out.extend(indexes.iter().flat_map(|index| index.to_le_bytes()));
        out.resize(Self::SIZE, 0);
        let mut inactive = self.inactive.iter().peekable();
        for (place, index) in indexes.iter().enumerate() {
            if inactive.next_if_eq(&index).is_some() {
                out[LIST_INACTIVE + place / 8] |= 1 << (place % 8);
            }
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<TargetList> {
        let len = u32_at(bytes, 8)? as usize;
        let (pairs, _) = bytes.get(12..LIST_INACTIVE)?.as_chunks::<2>();
        let indexes: Vec<u16> = pairs.get(..len)?.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        let bits = bytes.get(LIST_INACTIVE..Self::SIZE)?;
        let is_inactive = |place: &usize| bits[place / 8] & 1 << (place % 8) != 0;
        let inactive = (0..len).filter(is_inactive).map(|place| indexes[place]).collect();
        let from = u16::try_from(u32_at(bytes, 4)?).ok()?;
        Some(TargetList { kind: kind_at(bytes, 0)?, from, indexes, inactive })
    }
}

impl Payload for TargetStatfs {
    const COMMAND: u32 = number(READ_WRITE, 5, Self::SIZE);
    const SIZE: usize = 56;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::SIZE);
        for word in [kind_to_u32(self.target.kind), u32::from(self.target.index), self.block_size, self.state]
        {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in self.blocks.iter().chain(&self.files) {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<TargetStatfs> {
        let index = u16::try_from(u32_at(bytes, 4)?).ok()?;
        Some(TargetStatfs {
            target: TargetId { kind: kind_at(bytes, 0)?, index },
            block_size: u32_at(bytes, 8)?,
            state: u32_at(bytes, 12)?,
            blocks: [u64_at(bytes, 16)?, u64_at(bytes, 24)?, u64_at(bytes, 32)?],
            files: [u64_at(bytes, 40)?, u64_at(bytes, 48)?],
        })
    }
}

/// Bytes of a pool's name in a structure, NUL-terminated.
const POOL_BYTES: usize = 16;

impl Payload for PoolList {
    const COMMAND: u32 = number(READ_WRITE, 6, Self::SIZE);
    const SIZE: usize = 8 + POOL_BYTES * POOLS_MAX;

    fn to_bytes(&self) -> Vec<u8> {
        let names = &self.names[..self.names.len().min(POOLS_MAX)];
        let mut out = self.from.to_le_bytes().to_vec();
        out.extend_from_slice(&(names.len() as u32).to_le_bytes());
        names.iter().for_each(|name| put_text(&mut out, name, POOL_BYTES));
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<PoolList> {
        let len = u32_at(bytes, 4)? as usize;
        if bytes.len() < Self::SIZE || len > POOLS_MAX {
            return None;
        }
        let names = (0..len).map(|place| text_at(bytes, 8 + POOL_BYTES * place, POOL_BYTES));
        Some(PoolList { from: u32_at(bytes, 0)?, names: names.collect::<Option<Vec<String>>>()? })
    }
}

impl Payload for PoolMembers {
    const COMMAND: u32 = number(READ_WRITE, 7, Self::SIZE);
    const SIZE: usize = POOL_BYTES + 8 + 2 * LIST_MAX;

    fn to_bytes(&self) -> Vec<u8> {
        let indexes = &self.indexes[..self.indexes.len().min(LIST_MAX)];
        let mut out = Vec::with_capacity(Self::SIZE);
        put_text(&mut out, &self.pool, POOL_BYTES);
        out.extend_from_slice(&self.from.to_le_bytes());
        out.extend_from_slice(&(indexes.len() as u32).to_le_bytes());
        out.extend(indexes.iter().flat_map(|index| index.to_le_bytes()));
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<PoolMembers> {
        let len = u32_at(bytes, POOL_BYTES + 4)? as usize;
        let (pairs, _) = bytes.get(POOL_BYTES + 8..Self::SIZE)?.as_chunks::<2>();
        let indexes = pairs.get(..len)?.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        Some(PoolMembers { pool: text_at(bytes, 0, POOL_BYTES)?, from: u32_at(bytes, POOL_BYTES)?, indexes })
    }
}

impl Payload for Advise {
    const COMMAND: u32 = number(READ_WRITE, 10, Self::SIZE);
    const SIZE: usize = 24;

    fn to_bytes(&self) -> Vec<u8> {
        let how = u64::from(self.advice) | u64::from(self.mode) << 16 | u64::from(self.flags) << 32;
        let words = [how, self.start, self.end];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Advise> {
        let how = u64_at(bytes, 0)?;
        let (advice, mode, flags) = (how as u16, (how >> 16) as u16, (how >> 32) as u32);
        Some(Advise { advice, mode, flags, start: u64_at(bytes, 8)?, end: u64_at(bytes, 16)? })
    }
}

impl Payload for SizeOnMdt {
    const COMMAND: u32 = number(READ, 9, Self::SIZE);
    const SIZE: usize = 24;

    fn to_bytes(&self) -> Vec<u8> {
        let words = [self.size, self.blocks, u64::from(self.source == SizeSource::Objects)];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<SizeOnMdt> {
        let source = match u64_at(bytes, 16)? {
            0 => SizeSource::Exact,
            1 => SizeSource::Objects,
            _ => return None,
        };
        Some(SizeOnMdt { size: u64_at(bytes, 0)?, blocks: u64_at(bytes, 8)?, source })
    }
}

impl Payload for ScanDirectory {
    const COMMAND: u32 = number(READ_WRITE, 8, Self::SIZE);
    const SIZE: usize = 20 + SCAN_BYTES_MAX;

    fn to_bytes(&self) -> Vec<u8> {
        let entries = &self.entries[..self.entries.len().min(SCAN_BYTES_MAX)];
        let mut out = Vec::with_capacity(Self::SIZE);
        out.extend_from_slice(&self.cookie.to_le_bytes());
        for word in [self.wanted.bits(), u32::from(self.end), entries.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(entries);
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<ScanDirectory> {
        let len = u32_at(bytes, 16)? as usize;
        Some(ScanDirectory {
            cookie: u64_at(bytes, 0)?,
            wanted: ScanWanted::from_bits(u32_at(bytes, 8)?)?,
            end: u32_at(bytes, 12)? != 0,
            entries: bytes.get(20..Self::SIZE)?.get(..len)?.to_vec(),
        })
    }
}

impl Payload for FileCall {
    const COMMAND: u32 = number(READ_WRITE, 32, Self::SIZE);
    const SIZE: usize = 8 + FID_BYTES + 16;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = (self.operation as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(&self.other.to_le_bytes());
        out.extend(self.values.iter().flat_map(|value| value.to_le_bytes()));
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<FileCall> {
        let operation = match u32_at(bytes, 0)? {
            1 => FileOperation::DataVersion,
            2 => FileOperation::Swap,
            3 => FileOperation::Lease,
            4 => FileOperation::SeekData,
            5 => FileOperation::SeekHole,
            6 => FileOperation::Size,
            7 => FileOperation::Copy,
            _ => return None,
        };
        let values = [u64_at(bytes, 24)?, u64_at(bytes, 32)?];
        Some(FileCall { operation, flags: u32_at(bytes, 4)?, other: fid_at(bytes, 8)?, values })
    }
}

impl Payload for RemoveFid {
    const COMMAND: u32 = number(WRITE, 34, Self::SIZE);
    const SIZE: usize = FID_BYTES;

    fn to_bytes(&self) -> Vec<u8> {
        self.fid.to_le_bytes().to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> Option<RemoveFid> {
        Some(RemoveFid { fid: fid_at(bytes, 0)? })
    }
}

/// Offset of the name in a [`MakeDirectory`].
const MKDIR_NAME: usize = 28;

impl Payload for MakeDirectory {
    const COMMAND: u32 = number(WRITE, 36, Self::SIZE);
    const SIZE: usize = MKDIR_NAME + NAME_MAX + 1 + 2 * MDTS_MAX;

    fn to_bytes(&self) -> Vec<u8> {
        let name = &self.name[..self.name.len().min(NAME_MAX)];
        let mdts = &self.mdts[..self.mdts.len().min(MDTS_MAX)];
        let mut out = Vec::with_capacity(Self::SIZE);
        let lens = [name.len() as u32, mdts.len() as u32];
        let flags = u32::from(self.restripes) << 8 | u32::from(self.migrates) << 9;
        let last = u32::from(self.max_inherit) | flags;
        let numbers = [self.mode, self.umask, self.count as u32, self.hash, last];
        for number in numbers.into_iter().chain(lens) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(name);
        out.resize(MKDIR_NAME + NAME_MAX + 1, 0);
        mdts.iter().for_each(|mdt| out.extend_from_slice(&mdt.to_le_bytes()));
        out.resize(Self::SIZE, 0);
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<MakeDirectory> {
        let name = bytes.get(MKDIR_NAME..MKDIR_NAME + NAME_MAX)?.get(..u32_at(bytes, 20)? as usize)?.to_vec();
        let mdts = bytes.get(MKDIR_NAME + NAME_MAX + 1..Self::SIZE)?;
        let mdts = mdts.get(..2 * u32_at(bytes, 24)? as usize)?;
        let mdts = mdts.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        let (mode, umask, hash) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u32_at(bytes, 12)?);
        let (count, last) = (u32_at(bytes, 8)? as i32, u32_at(bytes, 16)?);
        let (max_inherit, restripes, migrates) = (last as u8, last & 0x100 != 0, last & 0x200 != 0);
        let directory =
            MakeDirectory { name, mode, umask, count, hash, max_inherit, restripes, migrates, mdts };
        Some(directory).filter(|_| last < 0x400)
    }
}

/// Lustre's structure, under a number with which the kernel copies the result, so that the daemon need not
/// access the caller's memory.
impl Payload for ProjectCall {
    const COMMAND: u32 = number(READ_WRITE, 35, Self::SIZE);
    const SIZE: usize = ProjectCall::BYTES;

    fn to_bytes(&self) -> Vec<u8> {
        ProjectCall::to_bytes(self)
    }

    fn from_bytes(bytes: &[u8]) -> Option<ProjectCall> {
        ProjectCall::from_bytes(bytes)
    }
}

impl TargetStatfs {
    /// Creates the query for `target`.
    pub fn question(target: TargetId) -> TargetStatfs {
        TargetStatfs { target, block_size: 0, blocks: [0; 3], files: [0; 2], state: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: Payload + PartialEq + std::fmt::Debug>(value: T) {
        let bytes = value.to_bytes();
        assert_eq!(bytes.len(), T::SIZE);
        assert_eq!((T::COMMAND >> 16) & 0x3fff, T::SIZE as u32);
        assert_eq!(T::from_bytes(&bytes), Some(value));
        assert_eq!(T::from_bytes(&bytes[..T::SIZE - 1]), None);
    }

    #[test]
    fn structures_come_back_as_they_were() {
        round_trip(MountInfo { fsname: "nacre".into(), instance: "0123456789abcdef".into() });
        round_trip(PathToFid { fid: Fid::new(0x2_0000_0400, 3, 0) });
        round_trip(FidToPath { fid: Fid::ROOT, link: 2, path: b"a/b c".to_vec() });
        let indexes: Vec<u16> = (1..=20).chain([0xffdf]).collect();
        round_trip(TargetList { kind: TargetKind::Ost, from: 1, indexes, inactive: vec![1, 9, 0xffdf] });
        round_trip(PoolList { from: 2, names: vec!["flash".into(), "123456789012345".into()] });
        round_trip(PoolMembers { pool: "flash".into(), from: 0, indexes: vec![3, 0] });
        round_trip(Advise { advice: 4, mode: 2, flags: 1, start: 1, end: u64::MAX });
        round_trip(SizeOnMdt { size: 5, blocks: u64::MAX, source: SizeSource::Objects });
        let wanted = ScanWanted::LAYOUTS;
        round_trip(ScanDirectory { cookie: u64::MAX, wanted, end: true, entries: vec![7; SCAN_BYTES_MAX] });
        round_trip(FileCall {
            operation: FileOperation::Swap,
            flags: FileCall::FIRST | FileCall::KEEP_TIMES,
            other: Fid::new(0x2_0000_0400, 3, 0),
            values: [7, u64::MAX],
        });
        round_trip(RemoveFid { fid: Fid::ROOT });
        let mdts = (0..MDTS_MAX as u16).collect();
        round_trip(MakeDirectory {
            name: vec![b'x'; NAME_MAX],
            mode: 0o755,
            umask: 0o22,
            count: -2,
            hash: 3,
            max_inherit: 255,
            restripes: true,
            migrates: true,
            mdts,
        });
        round_trip(MakeDirectory { name: b"d".to_vec(), mdts: vec![7], ..MakeDirectory::default() });
        round_trip(ProjectCall { kind: 2, id: 1, xflags: 0, name: Vec::new() });
        let fids = vec![Fid::new(0x2_0000_0400, 4, 0), Fid::new(0x2_0000_0400, 9, 0)];
        let on_ost = FilesOn {
            wanted: FilesWanted::Objects(3),
            after: Fid::ROOT,
            next: fids[1],
            fids: vec![fids[0]; FILES_MAX],
        };
        round_trip(FilesOn { wanted: FilesWanted::Directories(0xffff), ..on_ost.clone() });
        round_trip(FilesOn { wanted: FilesWanted::Files { mdt: 1, named_on: 0xfffe }, ..on_ost.clone() });
        round_trip(on_ost);
        round_trip(MigrateFiles { mdt: 7, fids: fids.clone(), outcomes: Vec::new() });
        let outcomes = (0..MIGRATED_MAX as u16).collect();
        round_trip(MigrateFiles { mdt: 0xffff, fids: vec![fids[1]; MIGRATED_MAX], outcomes });
        let mut statfs = TargetStatfs::question(TargetId::mdt(3));
        (statfs.blocks, statfs.files, statfs.block_size) = ([1, 2, u64::MAX], [4, 5], 4096);
        round_trip(statfs);
    }

    #[test]
    fn damaged_structures_are_refused() {
        assert_eq!(TargetList::from_bytes(&[0xff; TargetList::SIZE]), None);
        assert_eq!(PoolList::from_bytes(&[0xff; PoolList::SIZE]), None);
        assert_eq!(PoolMembers::from_bytes(&[0xff; PoolMembers::SIZE]), None);
        assert_eq!(ScanDirectory::from_bytes(&[0xff; ScanDirectory::SIZE]), None);
        assert_eq!(FidToPath::from_bytes(&[0xff; FidToPath::SIZE]), None);
        assert_eq!(FilesOn::from_bytes(&[0xff; FilesOn::SIZE]), None);
        assert_eq!(MigrateFiles::from_bytes(&[0xff; MigrateFiles::SIZE]), None);
        assert_eq!(MountInfo::from_bytes(&[0xff; MountInfo::SIZE]), None);
    }
}
