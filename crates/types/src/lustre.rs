//! Lustre's ioctls, as programs that were built for Lustre call them: numbers, and the structures that travel. Source:
//! reference 3.5 and 3.6.
//!
//! Structures are packed, little-endian, with fixed offsets, so they are read and written by hand.
//!
//! The number encodes how many bytes the kernel moves for a FUSE mount. For many of these it lies: the call passes a pointer
//! to something larger, which can only be reached in the memory of the caller. A few pass a number in place of a pointer; those never reach a daemon, and
//! the preload library turns them into [`ByValue`].

use crate::attr::Attr;
use crate::fid::{FID_BYTES, Fid};
use crate::ioctl::Payload;

/// Generation of the inode.
pub const GETVERSION: u32 = 0x8008_6603;
/// Flags of the descriptor.
pub const GETFLAGS: u32 = 0x8008_6697;
/// Sets the layout of a file, or the default of a directory: `lov_user_md`.
pub const LOV_SETSTRIPE: u32 = 0x4008_669a;
/// The same with another size in the number.
pub const LOV_SETSTRIPE_NEW: u32 = 0xc020_669a;
/// Layout of a file, or the default of a directory.
pub const LOV_GETSTRIPE: u32 = 0x4008_669b;
/// The same with another size in the number.
pub const LOV_GETSTRIPE_NEW: u32 = 0x8020_669b;
/// Makes a file with given objects; nothing that a client may do here.
pub const LOV_SETEA: u32 = 0x4008_669c;
/// Takes a group lock; the group by value.
pub const GROUP_LOCK: u32 = 0x4008_669e;
/// Gives it back; the group by value.
pub const GROUP_UNLOCK: u32 = 0x4008_669f;
/// Takes a lease, or gives it back; the mode by value.
pub const SET_LEASE_OLD: u32 = 0xc008_66f3;
/// Has reads and writes of the descriptor go to one mirror; its id by value.
pub const FLR_SET_MIRROR: u32 = 0x4008_66b1;
/// Space of one target: `obd_ioctl_data`.
pub const OBD_STATFS: u32 = 0xc008_66a4;
/// Forgets security contexts; no argument.
pub const FLUSHCTX: u32 = 0x4008_66a6;
/// Number of targets: in 0 for OSTs, else MDTs; out the number, u32.
pub const GETOBDCOUNT: u32 = 0x8008_66a8;
/// FID of the file.
pub const PATH2FID: u32 = 0x8008_66ad;
/// What client and MDT have agreed on, u64.
pub const GET_CONNECT_FLAGS: u32 = 0xc008_66ae;
/// MDT of the inode, i32.
pub const GET_MDTIDX: u32 = 0x8004_66af;
/// Sets three times: six u64.
pub const FUTIMES_3: u32 = 0xc030_66b0;
/// State in the archive: `hsm_user_state`.
pub const HSM_STATE_GET: u32 = 0x8020_66d3;
/// What the archive does with the file: `hsm_current_action`.
pub const HSM_ACTION: u32 = 0x8018_66dc;
/// Makes a directory with a directory layout: `obd_ioctl_data` on the parent.
pub const LMV_SETSTRIPE: u32 = 0xc030_66f0;
/// Directory layout, or default one.
pub const LMV_GETSTRIPE: u32 = 0xc030_66f1;
/// Moves what has a name to other MDTs: `obd_ioctl_data` with a directory layout on the parent.
pub const MIGRATE: u32 = 0x8004_66f7;
/// Sets what new directories in a directory get: `lmv_user_md`.
pub const LMV_SET_DEFAULT_STRIPE: u32 = 0xc030_66f6;
/// Removes files by FID: `fid_array`.
pub const RMFID: u32 = 0x8010_66f2;
/// MDT of a FID, as result.
pub const FID2MDTIDX: u32 = 0xc010_66f8;
/// A parent and name of the inode: `getparent`.
pub const GETPARENT: u32 = 0xc018_66f9;
/// Looks a name up in the directory: `obd_ioctl_data`.
pub const MDC_LOOKUP: u32 = 0xc008_6914;
/// Layout of a name in the directory, put over the name.
pub const MDC_GETFILESTRIPE: u32 = 0xc008_6915;
/// Attributes and layout of a name in the directory, put over the name: `lov_user_mds_data_v1`.
pub const MDC_GETFILEINFO_V1: u32 = 0xc008_6916;
/// The same: `lov_user_mds_data_v2`.
pub const MDC_GETFILEINFO_V2: u32 = 0xc140_6916;
/// Attributes and default layout of the directory itself: `lov_user_mds_data_v1`.
pub const MDC_GETINFO_V1: u32 = 0xc008_6917;
/// The same: `lov_user_mds_data_v2`.
pub const MDC_GETINFO_V2: u32 = 0xc140_6917;
/// Name of the mount's OST side; callers have less room than the number says.
pub const GETDTNAME: u32 = 0x8080_667f;
/// UUID of the mount.
pub const GETUUID: u32 = 0x8028_667f;
/// Name of the mount's MDT side.
pub const GETMDNAME: u32 = 0x8080_6683;
/// A path of a FID: `getinfo_fid2path` and room for the path.
pub const FID2PATH: u32 = 0xc008_6696;

/// Version of the data: `ioc_data_version`, whose flags are read although the number says that nothing is.
pub const DATA_VERSION: u32 = 0x8010_66da;
/// Exchanges the objects of two open files: `lustre_swap_layouts`.
pub const SWAP_LAYOUTS: u32 = 0x4020_66db;
/// Takes a lease, or gives it back: `ll_ioc_lease`.
pub const SET_LEASE: u32 = 0xc00c_66f3;
/// The lease that there is, as result.
pub const GET_LEASE: u32 = 0x0000_66f4;
/// Says what will become of data: `llapi_ladvise_hdr` and the pieces of advice.
pub const LADVISE: u32 = 0x8020_66fa;
/// Project of a name in the directory, or of the directory itself: `lu_project`.
pub const PROJECT: u32 = 0x4110_66fd;
/// Lets a foreign file or directory be removed; no argument.
pub const UNLOCK_FOREIGN: u32 = 0x0000_66f2;
/// Sets flags of the descriptor.
pub const SETFLAGS: u32 = 0x4008_6698;
/// Clears flags of the descriptor.
pub const CLRFLAGS: u32 = 0x4008_6699;
/// Flag of a descriptor ([`GETFLAGS`]): it has a group lock.
pub const FLAG_GROUP_LOCKED: u32 = 2;

/// Magic of `lmv_foreign_md`: a directory whose entries another store has.
pub const LMV_MAGIC_FOREIGN: u32 = 0x0CD5_0CD0;

/// Ioctls of Lustre that have no counterpart here: archives, quotas, copies on the client, heat. They answer "not
/// supported" rather than "no such ioctl", which tools take for another file system.
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
    0xc0b0_66a2,
    0x4120_66fa,
];

/// Bytes of the fixed part of `obd_ioctl_data`.
const OBD_FIXED: usize = 576;
/// The only version of it.
const OBD_VERSION: u32 = 0x0001_0004;
/// Longest `obd_ioctl_data` that is read; the longest real one holds a name and a directory layout.
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

/// What of `obd_ioctl_data` is used: two inline buffers, two pointers, a number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObdIoctl {
    /// `ioc_type`: permission bits of a directory that is made.
    pub kind: u32,
    /// The inline buffers 1 and 2.
    pub inline: [Vec<u8>; 2],
    /// Where the caller wants answers 1 and 2, and how much room there is.
    pub room: [(u64, u32); 2],
}

impl ObdIoctl {
    /// Bytes of the whole, from the first eight; `None` if it is too short, too long, or of another version.
    pub fn length(head: &[u8]) -> Option<usize> {
        let (len, version) = (u32_at(head, 0)?, u32_at(head, 4)?);
        let fits = (OBD_FIXED as u32..=OBD_LEN_MAX).contains(&len);
        (version == OBD_VERSION && fits).then_some(len as usize)
    }

    /// The structure in `bytes`, each length checked.
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

    /// An inline buffer that is a name: ends with its first NUL, and is one part of a path.
    pub fn name(&self) -> Option<&[u8]> {
        name_in(&self.inline[0])
    }

    /// An inline buffer that is a number.
    pub fn number(&self, index: usize) -> Option<u32> {
        let field = self.inline.get(index).filter(|field| field.len() == 4)?;
        u32_at(field, 0)
    }
}

/// The name at the beginning of a buffer: up to the first NUL, one part of a path, neither empty nor too long.
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
    /// Blocks in all, free, and free for ordinary users.
    pub blocks: [u64; 3],
    /// Inodes or objects in all, and free.
    pub files: [u64; 2],
    /// State bits (`OS_STATFS_*`).
    pub state: u32,
}

impl ObdStatfs {
    /// `f_type` of Lustre.
    const MAGIC: u64 = 0x0BD0_0BD0;

    /// The structure's bytes.
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

/// An ioctl that passes a number in place of a pointer, as the preload library sends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByValue {
    /// Number of Lustre's ioctl.
    pub command: u32,
    /// The number that was passed.
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

/// The FID in the bytes of a `lu_fid`.
pub fn fid_in(bytes: &[u8], at: usize) -> Option<Fid> {
    bytes.get(at..)?.first_chunk::<FID_BYTES>().map(Fid::from_le_bytes)
}

/// `ioc_data_version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataVersionCall {
    /// The answer: version of the data.
    pub version: u64,
    /// The answer: version of the layout of a mirrored file, of which there are none: 0.
    pub layout_version: u32,
    /// What is written out first: 1 what clients hold back, 2 the same and all caches are dropped. Others do not count.
    pub flags: u32,
}

impl DataVersionCall {
    /// Bytes of the structure.
    pub const SIZE: usize = 16;

    /// The structure's bytes.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        put(&mut out, 0, &self.version.to_le_bytes());
        put(&mut out, 8, &self.layout_version.to_le_bytes());
        put(&mut out, 12, &self.flags.to_le_bytes());
        out
    }

    /// The structure in `bytes`; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<DataVersionCall> {
        let (version, layout_version) = (u64_at(bytes, 0)?, u32_at(bytes, 8)?);
        Some(DataVersionCall { version, layout_version, flags: u32_at(bytes, 12)? })
    }
}

/// `lustre_swap_layouts`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapCall {
    /// How; the constants of this type.
    pub flags: u64,
    /// Descriptor of the other file.
    pub fd: u32,
    /// Group whose lock the caller has, or 0.
    pub gid: u32,
    /// Versions that the data of this file and of the other one is expected to have.
    pub versions: [u64; 2],
}

impl SwapCall {
    /// The first version counts.
    pub const CHECK_FIRST: u64 = 1;
    /// The second version counts.
    pub const CHECK_SECOND: u64 = 2;
    /// The time of modification stays with the file.
    pub const KEEP_MTIME: u64 = 4;
    /// The time of access stays with the file.
    pub const KEEP_ATIME: u64 = 8;
    /// The lease on this file must be there, and ends.
    pub const CLOSE: u64 = 0x10;
    /// All of them.
    pub const KNOWN: u64 = 0x1f;

    /// The structure in `bytes`; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<SwapCall> {
        Some(SwapCall {
            flags: u64_at(bytes, 0)?,
            fd: u32_at(bytes, 8)?,
            gid: u32_at(bytes, 12)?,
            versions: [u64_at(bytes, 16)?, u64_at(bytes, 24)?],
        })
    }
}

/// Bytes of `llapi_ladvise_hdr`, and of each piece of advice after it.
pub const LADVISE_HEADER: usize = 32;
/// See [`LADVISE_HEADER`].
pub const LADVISE_BYTES: usize = 32;
/// Pieces of advice in one call at most.
pub const LADVISE_MAX: u32 = 1024;
/// Where in a piece of advice its result is written (`lla_lockahead_result`), 4 bytes.
pub const LADVISE_RESULT: usize = 24;
const LADVISE_MAGIC: u32 = 0x1ADF_1CE0;
/// Flag of a call: it need not be waited for.
pub const LADVISE_ASYNC: u64 = 1;
/// Flag of a piece of advice: what was said before holds no more.
pub const LADVISE_UNSET: u64 = 2;

/// `llapi_ladvise_hdr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LadviseHeader {
    /// Pieces of advice that follow.
    pub count: u32,
    /// How.
    pub flags: u64,
}

impl LadviseHeader {
    /// The structure in `bytes`; `None` if it has another magic, or says that none or too many follow.
    pub fn from_bytes(bytes: &[u8]) -> Option<LadviseHeader> {
        let (magic, count, flags) = (u32_at(bytes, 0)?, u32_at(bytes, 4)?, u64_at(bytes, 8)?);
        (magic == LADVISE_MAGIC && (1..=LADVISE_MAX).contains(&count))
            .then_some(LadviseHeader { count, flags })
    }
}

/// `llapi_lu_ladvise`: a piece of advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ladvise {
    /// Number of the advice.
    pub advice: u16,
    /// Of locks that are asked for ahead: 1 to read, 2 to write.
    pub mode: u16,
    /// Flags of this piece, those of a call among them.
    pub flags: u32,
    /// First byte.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl Ladvise {
    /// The structure in `bytes`; `None` if they are too few.
    pub fn from_bytes(bytes: &[u8]) -> Option<Ladvise> {
        let word = u32_at(bytes, 0)?;
        let (advice, mode, flags) = (word as u16, (word >> 16) as u16, u32_at(bytes, 4)?);
        Some(Ladvise { advice, mode, flags, start: u64_at(bytes, 8)?, end: u64_at(bytes, 16)? })
    }
}

/// `lu_project`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProjectCall {
    /// What to do: [`ProjectCall::SET`] or [`ProjectCall::GET`].
    pub kind: u32,
    /// Number of the project.
    pub id: u32,
    /// Extended inode flags: whether it is inherited (`FS_XFLAG_PROJINHERIT`).
    pub xflags: u32,
    /// A name in the directory that the call is made on, up to [`crate::limits::NAME_MAX`] bytes; empty for that inode itself.
    pub name: Vec<u8>,
}

impl ProjectCall {
    /// Set the project.
    pub const SET: u32 = 1;
    /// Show it.
    pub const GET: u32 = 2;
    /// Bytes of the structure.
    pub const BYTES: usize = 272;
    /// Bytes before the name.
    pub const HEADER: usize = 16;

    /// The structure's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Self::BYTES);
        for word in [self.kind, self.id, self.xflags, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&self.name[..self.name.len().min(crate::limits::NAME_MAX)]);
        out.resize(Self::BYTES, 0);
        out
    }

    /// The structure in `bytes`; `None` if they are too few, or the name has no end or more than one part.
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
/// FIDs in one `fid_array` at most.
pub const FID_ARRAY_MAX: u32 = 4096;

/// How many FIDs follow the header of a `fid_array`; `None` if it is too short.
pub fn fid_array_count(header: &[u8]) -> Option<u32> {
    u32_at(header, 0)
}

/// Bytes of `struct statx`.
const STATX_LEN: usize = 256;
/// Bytes of `struct stat` on x86-64.
const STAT_LEN: usize = 144;
/// Where the layout begins in `lov_user_mds_data_v1` and `_v2`.
const LMD_V1_LAYOUT: usize = STAT_LEN;
const LMD_V2_LAYOUT: usize = 288;
/// Least bytes of a layout that these structures have room for: `lov_user_md_v1` without objects.
const LAYOUT_LEN_MIN: usize = 32;
/// Block size that programs are told.
const PAGE_BYTES: u32 = 4096;
/// All that `statx` calls basic, and the time of birth.
const STATX_MASK: u32 = 0xfff;
/// What of the attributes is exact (`OBD_MD_FL*`): id, times, size, blocks, block size, mode, type, owner, group, flags, links,
/// device, project, birth.
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

/// `lov_user_mds_data_v1`: attributes as `struct stat` of x86-64, and the layout, empty if there is none.
pub fn mds_data_v1(attr: &Attr, layout: &[u8]) -> Vec<u8> {
    let mut out = stat(attr).to_vec();
    out.extend_from_slice(layout);
    out.resize(out.len().max(LMD_V1_LAYOUT + LAYOUT_LEN_MIN), 0);
    out
}

/// `lov_user_mds_data_v2`: FID, attributes as `struct statx` without the device of the mount, and the layout, empty if there is none.
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
