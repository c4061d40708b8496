//! Lustre's ioctls, as programs built for Lustre call them: command numbers, and their structures.
//!
//! Structures are packed, little-endian, with fixed offsets, so they are encoded by hand.
//!
//! The command number encodes the bytes that the kernel copies for a FUSE mount. For many of these ioctls it
//! is wrong: the call passes a pointer to something larger, which can only be reached in the memory of the
//! caller. A few pass a number instead of a pointer; those never reach a daemon, and the preload library
//! translates them to [`ByValue`].

use crate::attr::Attr;
use crate::fid::{FID_BYTES, Fid};
use crate::ioctl::Payload;

mod quota;

pub use quota::{QUOTA_BYTES, QUOTA_POOL_BYTES, QUOTACTL, QuotaCall, QuotaNumbers, QuotaTimes};

/// Returns the generation of the inode.
pub const GETVERSION: u32 = 0x8008_6603;
/// Returns the flags of the descriptor.
pub const GETFLAGS: u32 = 0x8008_6697;
/// Sets the layout of a file, or the default of a directory: `lov_user_md`.
pub const LOV_SETSTRIPE: u32 = 0x4008_669a;
/// `LOV_SETSTRIPE` with another size in the number.
pub const LOV_SETSTRIPE_NEW: u32 = 0xc020_669a;
/// Returns the layout of a file, or the default of a directory.
pub const LOV_GETSTRIPE: u32 = 0x4008_669b;
/// `LOV_GETSTRIPE` with another size in the number.
pub const LOV_GETSTRIPE_NEW: u32 = 0x8020_669b;
/// Creates a file with given objects, which clients may not do in NacreFS.
pub const LOV_SETEA: u32 = 0x4008_669c;
/// Takes a group lock; the group by value.
pub const GROUP_LOCK: u32 = 0x4008_669e;
/// Releases a group lock; the group by value.
pub const GROUP_UNLOCK: u32 = 0x4008_669f;
/// Takes or returns a lease; the mode by value.
pub const SET_LEASE_OLD: u32 = 0xc008_66f3;
/// Directs reads and writes of the descriptor to one mirror; its id by value.
pub const FLR_SET_MIRROR: u32 = 0x4008_66b1;
/// Returns the space of one target: `obd_ioctl_data`.
pub const OBD_STATFS: u32 = 0xc008_66a4;
/// Drops security contexts; no argument.
pub const FLUSHCTX: u32 = 0x4008_66a6;
/// Returns the number of targets, u32; input 0 for OSTs, else MDTs.
pub const GETOBDCOUNT: u32 = 0x8008_66a8;
/// Returns the FID of the file.
pub const PATH2FID: u32 = 0x8008_66ad;
/// Returns the connect flags that client and MDT have negotiated, u64.
pub const GET_CONNECT_FLAGS: u32 = 0xc008_66ae;
/// Returns the MDT index of the inode, i32.
pub const GET_MDTIDX: u32 = 0x8004_66af;
/// Sets the three times: six u64.
pub const FUTIMES_3: u32 = 0xc030_66b0;
/// Returns the state in the archive: `hsm_user_state`.
pub const HSM_STATE_GET: u32 = 0x8020_66d3;
/// Returns the current action of the archive on the file: `hsm_current_action`.
pub const HSM_ACTION: u32 = 0x8018_66dc;
/// Creates a directory with a directory layout: `obd_ioctl_data` on the parent.
pub const LMV_SETSTRIPE: u32 = 0xc030_66f0;
/// Returns the directory layout, or the default one.
pub const LMV_GETSTRIPE: u32 = 0xc030_66f1;
/// Migrates the inode with a name to other MDTs: `obd_ioctl_data` with a directory layout on the parent.
pub const MIGRATE: u32 = 0x8004_66f7;
/// Sets the default for new subdirectories of a directory: `lmv_user_md`.
pub const LMV_SET_DEFAULT_STRIPE: u32 = 0xc030_66f6;
/// Removes files by FID: `fid_array`.
pub const RMFID: u32 = 0x8010_66f2;
/// Returns the MDT index of a FID, as the call's result.
pub const FID2MDTIDX: u32 = 0xc010_66f8;
/// Returns a parent and name of the inode: `getparent`.
pub const GETPARENT: u32 = 0xc018_66f9;
/// Looks a name up in the directory: `obd_ioctl_data`.
pub const MDC_LOOKUP: u32 = 0xc008_6914;
/// Returns the layout of a name in the directory, written over the name.
pub const MDC_GETFILESTRIPE: u32 = 0xc008_6915;
/// Returns attributes and layout of a name in the directory, written over the name: `lov_user_mds_data_v1`.
pub const MDC_GETFILEINFO_V1: u32 = 0xc008_6916;
/// `MDC_GETFILEINFO_V1` with `lov_user_mds_data_v2`.
pub const MDC_GETFILEINFO_V2: u32 = 0xc140_6916;
/// Returns attributes and default layout of the directory itself: `lov_user_mds_data_v1`.
pub const MDC_GETINFO_V1: u32 = 0xc008_6917;
/// `MDC_GETINFO_V1` with `lov_user_mds_data_v2`.
pub const MDC_GETINFO_V2: u32 = 0xc140_6917;
/// Returns the name of the mount's OST side; callers have smaller buffers than the number encodes.
pub const GETDTNAME: u32 = 0x8080_667f;
/// Returns the UUID of the mount.
pub const GETUUID: u32 = 0x8028_667f;
/// Returns the name of the mount's MDT side.
pub const GETMDNAME: u32 = 0x8080_6683;
/// Returns a path of a FID: `getinfo_fid2path` followed by a buffer for the path.
pub const FID2PATH: u32 = 0xc008_6696;

/// Returns the version of the data: `ioc_data_version`, whose flags are read although the number encodes no
/// input.
pub const DATA_VERSION: u32 = 0x8010_66da;
/// Exchanges the objects of two open files: `lustre_swap_layouts`.
pub const SWAP_LAYOUTS: u32 = 0x4020_66db;
/// Takes or returns a lease: `ll_ioc_lease`.
pub const SET_LEASE: u32 = 0xc00c_66f3;
/// Returns the current lease, as the call's result.
pub const GET_LEASE: u32 = 0x0000_66f4;
/// Gives hints about data: `llapi_ladvise_hdr` and the hints.
pub const LADVISE: u32 = 0x8020_66fa;
/// Sets or returns the project of a name in the directory, or of the directory itself: `lu_project`.
pub const PROJECT: u32 = 0x4110_66fd;
/// Permits the removal of a foreign file or directory; no argument.
pub const UNLOCK_FOREIGN: u32 = 0x0000_66f2;
/// Sets flags of the descriptor.
pub const SETFLAGS: u32 = 0x4008_6698;
/// Clears flags of the descriptor.
pub const CLRFLAGS: u32 = 0x4008_6699;
/// Flag of a descriptor ([`GETFLAGS`]): it holds a group lock.
pub const FLAG_GROUP_LOCKED: u32 = 2;

/// Magic of `lmv_foreign_md`: a directory whose entries are in another store.
pub const LMV_MAGIC_FOREIGN: u32 = 0x0CD5_0CD0;

/// Ioctls of Lustre that NacreFS does not implement: archives, copies on the client, heat. The error is "not
/// supported" rather than "no such ioctl", which tools take for a sign of another file system.
pub const WITHOUT_COUNTERPART: &[u32] = &[
    LOV_SETEA,
    0x4018_66d4,
    0x4018_66d5,
    0x4008_66d6,
    0x4008_66d7,
    0x4018_66d8,
    0x4018_66d9,
    0xc030_66f5,
    0xc030_66f6,
    0xc008_66f2,
    0x4008_66fb,
    0xc008_66fb,
    0x4008_66fc,
    0xc004_66fc,
    0xc014_66fc,
    0x9010_66fc,
    0x4010_66fe,
    0x4120_66fa,
];

/// Bytes of the fixed part of `obd_ioctl_data`.
const OBD_FIXED: usize = 576;
/// Only version of `obd_ioctl_data`.
const OBD_VERSION: u32 = 0x0001_0004;
/// Longest accepted `obd_ioctl_data` in bytes; the longest real one contains a name and a directory layout.
pub const OBD_LEN_MAX: u32 = 65536;
/// Bytes of `obd_statfs`.
pub const OBD_STATFS_LEN: usize = 144;
/// Bytes of `obd_uuid`.
pub const OBD_UUID_LEN: usize = 40;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The used part of `obd_ioctl_data`: two inline buffers, two pointers, a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObdIoctl {
    /// `ioc_type`: permission bits of a new directory.
    pub kind: u32,
    /// Contents of the inline buffers 1 and 2.
    pub inline: [Vec<u8>; 2],
    /// Addresses and sizes in bytes of the caller's buffers for results 1 and 2.
    pub room: [(u64, u32); 2],
}

impl ObdIoctl {
    /// Returns the length of the whole structure, from its first eight bytes; `None` if it is too short, too
    /// long, or of another version.
    pub fn length(head: &[u8]) -> Option<usize> {
        let (len, version) = (u32_at(head, 0)?, u32_at(head, 4)?);
        let fits = (OBD_FIXED as u32..=OBD_LEN_MAX).contains(&len);
        (version == OBD_VERSION && fits).then_some(len as usize)
    }

    /// Reads the structure and checks each length.
    pub fn from_bytes(bytes: &[u8]) -> Option<ObdIoctl> {
        let mut at = OBD_FIXED;
        let mut inline = [Vec::new(), Vec::new()];
        for (index, field) in inline.iter_mut().enumerate() {
            let len = u32_at(bytes, 512 + 16 * index)? as usize;
            let end = at.checked_add(len)?;
            *field = bytes.get(at..end)?.to_vec();
            at = end.checked_next_multiple_of(8)?;
        }
        let room = |at| Some((u64_at(bytes, at + 8)?, u32_at(bytes, at)?));
        Some(ObdIoctl { kind: u32_at(bytes, 476)?, inline, room: [room(480)?, room(496)?] })
    }

    /// Returns the name in inline buffer 1: it ends with its first NUL, and is one part of a path.
    pub fn name(&self) -> Option<&[u8]> {
        name_in(&self.inline[0])
    }

    /// Returns the number in an inline buffer.
    pub fn number(&self, index: usize) -> Option<u32> {
        let field = self.inline.get(index).filter(|field| field.len() == 4)?;
        u32_at(field, 0)
    }
}

/// Returns the name at the start of a buffer: up to the first NUL, one part of a path, neither empty nor too
/// long.
pub fn name_in(bytes: &[u8]) -> Option<&[u8]> {
    let name = &bytes[..bytes.iter().position(|&byte| byte == 0)?];
    let good = !name.is_empty() && name.len() <= crate::limits::NAME_MAX && !name.contains(&b'/');
    good.then_some(name)
}

/// Space of a target as in `obd_statfs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ObdStatfs {
    /// Unit of the block counts in bytes.
    pub block_size: u32,
    /// Number of blocks: total, free, and free for unprivileged users.
    pub blocks: [u64; 3],
    /// Number of inodes or objects: total and free.
    pub files: [u64; 2],
    /// State bits (`OS_STATFS_*`).
    pub state: u32,
}

impl ObdStatfs {
    /// Value of `f_type` for Lustre.
    const MAGIC: u64 = 0x0BD0_0BD0;

    /// Returns the structure's bytes.
    pub fn to_bytes(&self) -> [u8; OBD_STATFS_LEN] {
        let mut out = [0; OBD_STATFS_LEN];
        let [blocks, free, available] = self.blocks;
        let [files, files_free] = self.files;
        for (place, value) in [Self::MAGIC, blocks, free, available, files, files_free].iter().enumerate() {
            out[8 * place..8 * place + 8].copy_from_slice(&value.to_le_bytes());
        }
        out[88..92].copy_from_slice(&self.block_size.to_le_bytes());
        out[92..96].copy_from_slice(&(crate::limits::NAME_MAX as u32).to_le_bytes());
        out[96..104].copy_from_slice(&crate::limits::FILE_SIZE_MAX.to_le_bytes());
        out[104..108].copy_from_slice(&self.state.to_le_bytes());
        out
    }
}

/// An ioctl that passes a number instead of a pointer, as the preload library sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByValue {
    /// Command number of Lustre's ioctl.
    pub command: u32,
    /// Number that the program passed.
    pub value: u64,
}

impl Payload for ByValue {
    const COMMAND: u32 = crate::ioctl::number(crate::ioctl::WRITE, 64, Self::SIZE);
    const SIZE: usize = 16;

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = u64::from(self.command).to_le_bytes().to_vec();
        out.extend_from_slice(&self.value.to_le_bytes());
        out
    }

    fn from_bytes(bytes: &[u8]) -> Option<ByValue> {
        let command = u32::try_from(u64_at(bytes, 0)?).ok()?;
        Some(ByValue { command, value: u64_at(bytes, 8)? })
    }
}

/// Reads a `lu_fid` at an offset.
pub fn fid_in(bytes: &[u8], at: usize) -> Option<Fid> {
    bytes.get(at..)?.first_chunk::<FID_BYTES>().map(Fid::from_le_bytes)
}

/// `ioc_data_version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataVersionCall {
    /// Output: version of the data.
    pub version: u64,
    /// Output: version of the layout of a mirrored file; always 0, as there are none.
    pub layout_version: u32,
    /// Actions before the version is read: 1 clients write out held-back data, 2 they also drop all caches.
    /// Other bits are ignored.
    pub flags: u32,
}

impl DataVersionCall {
    /// Size of the structure in bytes.
    pub const SIZE: usize = 16;

    /// Returns the structure's bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put(&mut out, 0, &self.version.to_le_bytes());
        put(&mut out, 8, &self.layout_version.to_le_bytes());
        put(&mut out, 12, &self.flags.to_le_bytes());
        out
    }

    /// Reads the structure; `None` if the bytes are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<DataVersionCall> {
        let (version, layout_version) = (u64_at(bytes, 0)?, u32_at(bytes, 8)?);
        Some(DataVersionCall { version, layout_version, flags: u32_at(bytes, 12)? })
    }
}

/// `lustre_swap_layouts`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapCall {
    /// Flags of the exchange: the constants of this type.
    pub flags: u64,
    /// File descriptor of the other file.
    pub fd: u32,
    /// Group whose lock the caller holds, or 0.
    pub gid: u32,
    /// Expected versions of the data of this file and of the other one.
    pub versions: [u64; 2],
}

impl SwapCall {
    /// Compare the first version.
    pub const CHECK_FIRST: u64 = 1;
    /// Compare the second version.
    pub const CHECK_SECOND: u64 = 2;
    /// Keep the time of modification with the file.
    pub const KEEP_MTIME: u64 = 4;
    /// Keep the time of access with the file.
    pub const KEEP_ATIME: u64 = 8;
    /// Require the lease on this file, which ends.
    pub const CLOSE: u64 = 0x10;
    /// All known flags.
    pub const KNOWN: u64 = 0x1f;

    /// Reads the structure; `None` if the bytes are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<SwapCall> {
        Some(SwapCall {
            flags: u64_at(bytes, 0)?,
            fd: u32_at(bytes, 8)?,
            gid: u32_at(bytes, 12)?,
            versions: [u64_at(bytes, 16)?, u64_at(bytes, 24)?],
        })
    }
}

/// Bytes of `llapi_ladvise_hdr`, which the hints follow.
pub const LADVISE_HEADER: usize = 32;
/// Bytes of each hint after the header.
pub const LADVISE_BYTES: usize = 32;
/// Largest number of hints in one call.
pub const LADVISE_MAX: u32 = 1024;
/// Offset in a hint where its result is written (`lla_lockahead_result`), 4 bytes.
pub const LADVISE_RESULT: usize = 24;
const LADVISE_MAGIC: u32 = 0x1ADF_1CE0;
/// Flag of a call: the caller does not wait for the effect.
pub const LADVISE_ASYNC: u64 = 1;
/// Flag of a hint: cancels earlier hints.
pub const LADVISE_UNSET: u64 = 2;

/// `llapi_ladvise_hdr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LadviseHeader {
    /// Number of hints that follow.
    pub count: u32,
    /// Flags of the call.
    pub flags: u64,
}

impl LadviseHeader {
    /// Reads the structure; `None` for another magic, or a count of hints that is 0 or too large.
    pub fn from_bytes(bytes: &[u8]) -> Option<LadviseHeader> {
        let (magic, count, flags) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u64_at(bytes, 8)?);
        (magic == LADVISE_MAGIC && (1..=LADVISE_MAX).contains(&count))
            .then_some(LadviseHeader { count, flags })
    }
}

/// `llapi_lu_ladvise`: a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ladvise {
    /// Lustre's number of the hint.
    pub advice: u16,
    /// Mode of a lock-ahead: 1 to read, 2 to write.
    pub mode: u16,
    /// Flags of this hint, including those of the call.
    pub flags: u32,
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last byte.
    pub end: u64,
}

impl Ladvise {
    /// Reads the structure; `None` if the bytes are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Ladvise> {
        let word = u32_at(bytes, 0)?;
        let (advice, mode, flags) = (word as u16, (word >> 16) as u16, u32_at(bytes, 4)?);
        Some(Ladvise { advice, mode, flags, start: u64_at(bytes, 8)?, end: u64_at(bytes, 16)? })
    }
}

/// `lu_project`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProjectCall {
    /// Operation: [`ProjectCall::SET`] or [`ProjectCall::GET`].
    pub kind: u32,
    /// Project id.
    pub id: u32,
    /// Extended inode flags: whether the project is inherited (`FS_XFLAG_PROJINHERIT`).
    pub xflags: u32,
    /// Name in the directory that the call is made on, up to [`crate::limits::NAME_MAX`] bytes; empty for
    /// that inode itself.
    pub name: Vec<u8>,
}

impl ProjectCall {
    /// Set the project.
    pub const SET: u32 = 1;
    /// Return the project.
    pub const GET: u32 = 2;
    /// Size of the structure in bytes.
    pub const BYTES: usize = 272;
    /// Bytes before the name.
    pub const HEADER: usize = 16;

    /// Returns the structure's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        for word in [self.kind, self.id, self.xflags, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.name[..self.name.len().min(crate::limits::NAME_MAX)]);
        out.resize(Self::BYTES, 0);
        out
    }

    /// Reads the structure; `None` if the bytes are too few, or the name is unterminated or has more than one
    /// part.
    pub fn from_bytes(bytes: &[u8]) -> Option<ProjectCall> {
        let field = bytes.get(Self::HEADER..Self::BYTES)?;
        let name = if field[0] == 0 { &[][..] } else { name_in(field)? };
        Some(ProjectCall {
            kind: u32_at(bytes, 0)?,
            id: u32_at(bytes, 4)?,
            xflags: u32_at(bytes, 8)?,
            name: name.to_vec(),
        })
    }
}

/// Bytes of a `fid_array` before its FIDs.
pub const FID_ARRAY_HEADER: usize = 16;
/// Largest number of FIDs in one `fid_array`.
pub const FID_ARRAY_MAX: u32 = 4096;

/// Returns the number of FIDs after the header of a `fid_array`; `None` if it is too short.
pub fn fid_array_count(header: &[u8]) -> Option<u32> {
    u32_at(header, 0)
}

/// Bytes of `struct statx`.
const STATX_LEN: usize = 256;
/// Bytes of `struct stat` on x86-64.
const STAT_LEN: usize = 144;
/// Offset of the layout in `lov_user_mds_data_v1` and `_v2`.
const LMD_V1_LAYOUT: usize = STAT_LEN;
const LMD_V2_LAYOUT: usize = 288;
/// Fewest bytes of a layout in these structures: `lov_user_md_v1` without objects.
const LAYOUT_LEN_MIN: usize = 32;
/// Block size reported to programs.
const PAGE_BYTES: u32 = 4096;
/// Mask of the basic fields of `statx`, and the time of birth.
const STATX_MASK: u32 = 0xfff;
/// Mask of the attributes that are exact (`OBD_MD_FL*`): id, times, size, blocks, block size, mode, type,
/// owner, group, flags, links, device, project, birth.
const VALID: u64 = 0x1100_0000_0001_2fff;

fn put(out: &mut [u8], at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn statx(attr: &Attr) -> [u8; STATX_LEN] {
    let mut out = [0; STATX_LEN];
    let words = [(0, STATX_MASK), (4, PAGE_BYTES), (16, attr.nlink), (20, attr.uid), (24, attr.gid)];
    words.iter().for_each(|(at, word)| put(&mut out, *at, &word.to_le_bytes()));
    put(&mut out, 28, &(attr.mode as u16).to_le_bytes());
    for (at, word) in [(32, attr.fid.inode_number()), (40, attr.size), (48, attr.blocks)] {
        put(&mut out, at, &word.to_le_bytes());
    }
    for (at, time) in [(64, attr.atime), (80, attr.btime), (96, attr.ctime), (112, attr.mtime)] {
        put(&mut out, at, &time.sec.to_le_bytes());
        put(&mut out, at + 8, &time.nsec.to_le_bytes());
    }
    // Linux has 12 bits of major and 20 of minor number, the latter in two parts.
    put(&mut out, 128, &((attr.rdev >> 8) & 0xfff).to_le_bytes());
    put(&mut out, 132, &(attr.rdev & 0xff | (attr.rdev >> 12) & 0xf_ff00).to_le_bytes());
    out
}

fn stat(attr: &Attr) -> [u8; STAT_LEN] {
    let mut out = [0; STAT_LEN];
    for (at, word) in [(8, attr.fid.inode_number()), (16, u64::from(attr.nlink)), (40, u64::from(attr.rdev))]
    {
        put(&mut out, at, &word.to_le_bytes());
    }
    for (at, word) in [(24, attr.mode), (28, attr.uid), (32, attr.gid)] {
        put(&mut out, at, &word.to_le_bytes());
    }
    for (at, word) in [(48, attr.size), (56, u64::from(PAGE_BYTES)), (64, attr.blocks)] {
        put(&mut out, at, &word.to_le_bytes());
    }
    for (at, time) in [(72, attr.atime), (88, attr.mtime), (104, attr.ctime)] {
        put(&mut out, at, &time.sec.to_le_bytes());
        put(&mut out, at + 8, &u64::from(time.nsec).to_le_bytes());
    }
    out
}

/// Encodes `lov_user_mds_data_v1`: attributes as `struct stat` of x86-64, and the layout, empty if there is
/// none.
pub fn mds_data_v1(attr: &Attr, layout: &[u8]) -> Vec<u8> {
    let mut out = stat(attr).to_vec();
    out.extend_from_slice(layout);
    out.resize(out.len().max(LMD_V1_LAYOUT + LAYOUT_LEN_MIN), 0);
    out
}

/// Encodes `lov_user_mds_data_v2`: FID, attributes as `struct statx` without the device of the mount, and the
/// layout, empty if there is none.
pub fn mds_data_v2(attr: &Attr, layout: &[u8]) -> Vec<u8> {
    let mut out = attr.fid.to_le_bytes().to_vec();
    out.extend_from_slice(&statx(attr));
    out.extend_from_slice(&VALID.to_le_bytes());
    out.extend_from_slice(&(layout.len() as u32).to_le_bytes());
    out.resize(LMD_V2_LAYOUT, 0);
    out.extend_from_slice(layout);
    out.resize(out.len().max(LMD_V2_LAYOUT + LAYOUT_LEN_MIN), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn obd(kind: u32, name: &[u8], second: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; OBD_FIXED];
        for field in [name, second] {
            bytes.extend_from_slice(field);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        let len = bytes.len() as u32;
        for (at, word) in
            [(0, len), (4, OBD_VERSION), (476, kind), (480, 144), (496, 40), (512, name.len() as u32)]
        {
            put(&mut bytes, at, &word.to_le_bytes());
        }
        put(&mut bytes, 488, &0x1000u64.to_le_bytes());
        put(&mut bytes, 504, &0x2000u64.to_le_bytes());
        put(&mut bytes, 528, &(second.len() as u32).to_le_bytes());
        bytes
    }

    #[test]
    fn packed_questions_are_read_and_their_lengths_checked() {
        let bytes = obd(0o755, b"dir\0", &2u32.to_le_bytes());
        assert_eq!(bytes.len(), 592);
        assert_eq!(ObdIoctl::length(&bytes), Some(592));
        let read = ObdIoctl::from_bytes(&bytes).expect("good");
        assert_eq!((read.kind, read.name(), read.number(1)), (0o755, Some(&b"dir"[..]), Some(2)));
        assert_eq!(read.room, [(0x1000, 144), (0x2000, 40)]);
        let with = |at: usize, word: u32| {
            let mut bytes = bytes.clone();
            put(&mut bytes, at, &word.to_le_bytes());
            (ObdIoctl::length(&bytes), ObdIoctl::from_bytes(&bytes).is_some())
        };
        assert_eq!((with(0, 575).0, with(0, OBD_LEN_MAX + 1).0, with(4, 1).0), (None, None, None));
        assert!(!with(512, 17).1 && !with(512, u32::MAX).1 && !with(528, 9).1);
        assert_eq!(ObdIoctl::from_bytes(&bytes[..500]), None);
        for (name, good) in
            [(&b"a\0"[..], true), (b"a", false), (b"\0", false), (b"a/b\0", false), (&[b'a'; 300], false)]
        {
            assert_eq!(name_in(name).is_some(), good, "{name:?}");
        }
    }

    #[test]
    fn structures_have_lustres_sizes_and_offsets() {
        let attr = Attr {
            fid: Fid::new(0x2_0000_0401, 7, 0),
            mode: 0o100_644,
            uid: 5,
            nlink: 2,
            rdev: 0x0010_0803,
            size: 77,
            mtime: Timestamp::new(-1, 9),
            ..Attr::default()
        };
        let v2 = mds_data_v2(&attr, &[1; 56]);
        assert_eq!((v2.len(), mds_data_v2(&attr, b"").len()), (288 + 56, 320));
        assert_eq!(fid_in(&v2, 0), Some(attr.fid));
        assert_eq!(
            (u64_at(&v2, 16 + 40), u32_at(&v2, 16 + 20), u32_at(&v2, 280)),
            (Some(77), Some(5), Some(56))
        );
        assert_eq!((u64_at(&v2, 16 + 112), u32_at(&v2, 16 + 120)), (Some(u64::MAX), Some(9)));
        assert_eq!((u32_at(&v2, 16 + 128), u32_at(&v2, 16 + 132)), (Some(8), Some(0x103)));
        let v1 = mds_data_v1(&attr, b"");
        assert_eq!((v1.len(), u64_at(&v1, 48), u32_at(&v1, 24)), (176, Some(77), Some(0o100_644)));
        let space = ObdStatfs { block_size: 4096, blocks: [3, 2, 1], files: [9, 8], state: 4 }.to_bytes();
        assert_eq!(
            (u64_at(&space, 8), u64_at(&space, 40), u32_at(&space, 88)),
            (Some(3), Some(8), Some(4096))
        );
        assert_eq!((u32_at(&space, 92), u32_at(&space, 104)), (Some(255), Some(4)));
        let version = DataVersionCall { version: u64::MAX, layout_version: 3, flags: 2 };
        assert_eq!(DataVersionCall::from_bytes(&version.to_bytes()), Some(version));
        let project = ProjectCall { kind: 1, id: 7, xflags: 0x200, name: b"name".to_vec() };
        assert_eq!(ProjectCall::from_bytes(&project.to_bytes()), Some(project.clone()));
        assert_eq!(ProjectCall::from_bytes(&[b'a'; ProjectCall::BYTES]), None, "no end");
        let mut swap = [0; 32];
        put(&mut swap, 0, &0x13u64.to_le_bytes());
        put(&mut swap, 8, &[9, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        let wanted = SwapCall { flags: 0x13, fd: 9, gid: 5, versions: [1, 2] };
        assert_eq!((SwapCall::from_bytes(&swap), SwapCall::from_bytes(&swap[..31])), (Some(wanted), None));
        let header = |magic: u32, count: u32| {
            let mut bytes = [0; 32];
            put(&mut bytes, 0, &magic.to_le_bytes());
            put(&mut bytes, 4, &count.to_le_bytes());
            LadviseHeader::from_bytes(&bytes).map(|header| header.count)
        };
        assert_eq!((header(0x1ADF_1CE0, 2), header(0x1ADF_1CE0, 1024)), (Some(2), Some(1024)));
        assert_eq!((header(0x1ADF_1CE0, 0), header(0x1ADF_1CE0, 1025), header(1, 1)), (None, None, None));
        let value = ByValue { command: GROUP_LOCK, value: u64::MAX };
        assert_eq!(ByValue::from_bytes(&value.to_bytes()), Some(value));
        assert_eq!(ByValue::from_bytes(&[0xff; 16]), None);
    }
}
