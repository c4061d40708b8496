//! The inode record: everything that `stat`, an open and a path lookup need, in one value.

use crate::codec::{DecodeError, Reader};
use nacre_types::limits::{NAME_MAX, SYMLINK_MAX};
use nacre_types::{Attr, AttrFlags, Fid, FileKind, SizeSource, Timestamp};

/// Format version of inodes without a part for directories.
pub const INODE_VERSION: u8 = 1;
/// Format version of directories with shards or with a default for new subdirectories.
pub const INODE_VERSION_DIRECTORY: u8 = 2;
/// Bytes before the variable part.
pub const INODE_HEADER_LEN: usize = 128;
/// Longest `lmv` and `default_lmv` in bytes (2000 shards of 16 bytes and a header).
const LMV_LEN_MAX: usize = 48 << 10;
/// Longest access ACL in bytes (8188 entries of 8 bytes and a header).
const ACL_LEN_MAX: usize = 4 + 8 * nacre_types::limits::ACL_ENTRIES_MAX;
/// Longest layout in bytes (2000 stripes of 24 bytes and a header, with a reserve for composite ones).
const BODY_LEN_MAX: usize = 256 << 10;

/// An inode. The key is its FID, so the value does not repeat it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InodeRecord {
    /// Attributes as stored. `size` of a directory is its number of entries; see [`InodeRecord::shown`].
    pub attr: Attr,
    /// Directory that holds the first name; [`Fid::ZERO`] if the inode has no name.
    pub parent: Fid,
    /// First name; empty if the inode has none, and for the root.
    pub name: Vec<u8>,
    /// Access ACL in the kernel's xattr form; empty if the mode bits are equivalent to it.
    pub acl: Vec<u8>,
    /// Version in the FID of this file's next object on the MDT: how often such an object was passed to
    /// another file.
    pub data_generation: u32,
    /// Target of a symlink; layout of a file or default layout of a directory, as `lov_user_md`; otherwise
    /// empty.
    pub body: Vec<u8>,
    /// As `lmv_mds_md_v1`: the list of shards in the master of a striped directory; the shard's own index in
    /// a shard; otherwise empty.
    pub lmv: Vec<u8>,
    /// Default placement of new subdirectories, as `lmv_user_md`; empty if there is none.
    pub default_lmv: Vec<u8>,
}

/// Size that `stat` reports for directories, in bytes.
pub const DIRECTORY_SIZE: u64 = 4096;
/// Space that `stat` reports for directories, in units of 512 bytes.
pub const DIRECTORY_BLOCKS: u64 = 8;

impl InodeRecord {
    /// Returns the attributes as programs see them: directories have a constant size, which does not change
    /// with their entries.
    pub fn shown(&self) -> Attr {
        let mut attr = self.attr;
        if attr.is_dir() {
            attr.size = DIRECTORY_SIZE;
            attr.blocks = DIRECTORY_BLOCKS;
        }
        attr
    }

    /// Returns the number of entries of a directory.
    pub fn entries(&self) -> u64 {
        self.attr.size
    }

    /// Returns whether the first name is `name` in `parent`.
    pub fn is_first_link(&self, parent: &Fid, name: &[u8]) -> bool {
        self.parent == *parent && self.name == name
    }

    /// Returns whether the record needs [`INODE_VERSION_DIRECTORY`].
    fn has_directory_part(&self) -> bool {
        !self.lmv.is_empty() || !self.default_lmv.is_empty()
    }

    /// Appends the encoded record to `out`.
    ///
    /// # Panics
    /// If a part is longer than the limits of the file system; callers check names, ACLs and layouts first.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.name.len() <= NAME_MAX, "a name longer than NAME_MAX reached the disk");
        assert!(self.acl.len() <= ACL_LEN_MAX, "an ACL with too many entries reached the disk");
        assert!(self.body.len() <= BODY_LEN_MAX, "a layout with too many stripes reached the disk");
        let attr = &self.attr;
        let mut head = [0u8; INODE_HEADER_LEN];
        head[0] = if self.has_directory_part() { INODE_VERSION_DIRECTORY } else { INODE_VERSION };
        head[1] = attr.size_source as u8;
        head[2..4].copy_from_slice(&(attr.flags.bits() as u16).to_le_bytes());
        let device_or_stamp = if attr.is_regular() { attr.size_stamp } else { attr.rdev };
        let words = [attr.mode, attr.uid, attr.gid, attr.projid, attr.nlink, device_or_stamp];
        for (slot, word) in head[4..28].chunks_exact_mut(4).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        head[28..32].copy_from_slice(&self.data_generation.to_le_bytes());
        let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
        let longs = [attr.size, attr.blocks, attr.version];
        for (slot, long) in head[32..56].chunks_exact_mut(8).zip(longs) {
            slot.copy_from_slice(&long.to_le_bytes());
        }
        for (slot, time) in head[56..88].chunks_exact_mut(8).zip(times) {
            slot.copy_from_slice(&time.sec.to_le_bytes());
        }
        for (slot, time) in head[88..104].chunks_exact_mut(4).zip(times) {
            slot.copy_from_slice(&time.nsec.to_le_bytes());
        }
        head[104..120].copy_from_slice(&self.parent.to_le_bytes());
        head[120] = self.name.len() as u8;
        // Byte 121 is reserved.
        head[122..124].copy_from_slice(&(self.acl.len() as u16).to_le_bytes());
        head[124..128].copy_from_slice(&(self.body.len() as u32).to_le_bytes());
        out.reserve(INODE_HEADER_LEN + self.name.len() + self.acl.len() + self.body.len());
        out.extend_from_slice(&head);
        out.extend_from_slice(&self.name);
        out.extend_from_slice(&self.acl);
        out.extend_from_slice(&self.body);
        if self.has_directory_part() {
            for part in [&self.lmv, &self.default_lmv] {
                assert!(part.len() <= LMV_LEN_MAX, "a directory with too many shards reached the disk");
                out.extend_from_slice(&(part.len() as u32).to_le_bytes());
                out.extend_from_slice(part);
            }
        }
    }

    /// Decodes the record of inode `fid`.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(fid: Fid, bytes: &[u8]) -> Result<InodeRecord, DecodeError> {
        let has_directory_part = bytes.first() == Some(&INODE_VERSION_DIRECTORY);
        let version = if has_directory_part { INODE_VERSION_DIRECTORY } else { INODE_VERSION };
        let mut reader = Reader::new(bytes, version)?;
        let size_source = match reader.u8()? {
            0 => SizeSource::Exact,
            1 => SizeSource::Objects,
            _ => return Err(DecodeError::Field("size source")),
        };
        let flags =
            AttrFlags::from_bits(u32::from(reader.u16()?)).ok_or(DecodeError::Field("attribute flags"))?;
        let mode = reader.u32()?;
        let kind = FileKind::from_mode(mode).ok_or(DecodeError::Field("mode"))?;
        if mode & !0o177777 != 0 {
            return Err(DecodeError::Field("mode"));
        }
        let (uid, gid, projid) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (nlink, device_or_stamp) = (reader.u32()?, reader.u32()?);
        let (rdev, size_stamp) = match kind {
            FileKind::Regular => (0, device_or_stamp),
            _ => (device_or_stamp, 0),
        };
        let data_generation = reader.u32()?;
        let (size, blocks, version) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let [atime, mtime, ctime, btime] = decode_times(&mut reader)?;
        let parent = reader.fid()?;
        let name_len = usize::from(reader.u8()?);
        reader.reserved::<1>()?;
        let acl_len = usize::from(reader.u16()?);
        let body_len = reader.u32()? as usize;
        if body_len > if kind == FileKind::Symlink { SYMLINK_MAX } else { BODY_LEN_MAX } {
            return Err(DecodeError::Field("body length"));
        }
        let name = reader.bytes(name_len)?.to_vec();
        let acl = reader.bytes(acl_len)?.to_vec();
        let body = reader.bytes(body_len)?.to_vec();
        let (mut lmv, mut default_lmv) = (Vec::new(), Vec::new());
        if has_directory_part {
            lmv = decode_lmv(&mut reader)?;
            default_lmv = decode_lmv(&mut reader)?;
            if kind != FileKind::Directory || lmv.is_empty() && default_lmv.is_empty() {
                return Err(DecodeError::Field("directory part"));
            }
        }
        reader.end()?;
        let attr = Attr {
            fid,
            mode,
            uid,
            gid,
            projid,
            nlink,
            rdev,
            size_stamp,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            btime,
            flags,
            size_source,
            version,
        };
        let record = InodeRecord { attr, parent, name, acl, data_generation, body, lmv, default_lmv };
        record.check_flags()?;
        Ok(record)
    }

    /// Checks that each optional part is there exactly if its flag says so.
    fn check_flags(&self) -> Result<(), DecodeError> {
        let flags = self.attr.flags;
        if self.default_lmv.is_empty() == flags.contains(AttrFlags::HAS_DIR_DEFAULT)
            || self.lmv.is_empty() && flags.contains(AttrFlags::STRIPED)
        {
            return Err(DecodeError::Field("attribute flags"));
        }
        if self.acl.is_empty() == flags.contains(AttrFlags::HAS_ACL) || self.acl.len() > ACL_LEN_MAX {
            return Err(DecodeError::Field("ACL length"));
        }
        Ok(())
    }
}

fn decode_lmv(reader: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
    let len = reader.u32()? as usize;
    if len > LMV_LEN_MAX {
        return Err(DecodeError::Field("length of shards"));
    }
    Ok(reader.bytes(len)?.to_vec())
}

fn decode_times(reader: &mut Reader<'_>) -> Result<[Timestamp; 4], DecodeError> {
    let mut times = [Timestamp::default(); 4];
    for time in &mut times {
        time.sec = reader.i64()?;
    }
    for time in &mut times {
        time.nsec = reader.u32()?;
        if time.nsec > 999_999_999 {
            return Err(DecodeError::Field("nanoseconds"));
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> InodeRecord {
        let attr = Attr {
            fid: Fid::new(0x2_0000_0401, 5, 0),
            mode: FileKind::Regular.mode_bits() | 0o640,
            uid: 1000,
            gid: 100,
            projid: 7,
            nlink: 1,
            rdev: 0,
            size_stamp: 0x0102_0304,
            size: 12345,
            blocks: 32,
            atime: Timestamp::new(1, 2),
            mtime: Timestamp::new(-3, 4),
            ctime: Timestamp::new(5, 6),
            btime: Timestamp::new(7, 8),
            flags: AttrFlags::HAS_XATTRS | AttrFlags::HAS_LAYOUT,
            size_source: SizeSource::Objects,
            version: 99,
        };
        let (name, body) = (b"file".to_vec(), vec![1, 2, 3]);
        let record = InodeRecord { attr, parent: Fid::ROOT, name, body, ..InodeRecord::default() };
        InodeRecord { data_generation: 9, ..record }
    }

    fn directory() -> InodeRecord {
        let mut record = sample();
        record.attr.size_stamp = 0;
        record.attr.mode = FileKind::Directory.mode_bits() | 0o750;
        record.attr.flags |= AttrFlags::STRIPED | AttrFlags::HAS_DIR_DEFAULT;
        InodeRecord { lmv: vec![7, 8, 9], default_lmv: vec![5], ..record }
    }

    #[test]
    fn directories_with_shards_or_a_default_have_bytes_of_version_2() {
        let mut plain = Vec::new();
        InodeRecord { lmv: Vec::new(), default_lmv: Vec::new(), ..directory() }.encode(&mut plain);
        let mut bytes = Vec::new();
        directory().encode(&mut bytes);
        plain[0] = 2;
        let expected = [&plain[..], &[3, 0, 0, 0, 7, 8, 9, 1, 0, 0, 0, 5]].concat();
        assert_eq!(bytes, expected);
        assert_eq!(InodeRecord::decode(directory().attr.fid, &bytes), Ok(directory()));
        // Each flag requires its field and vice versa, and only directories have either.
        for change in [
            |record: &mut InodeRecord| record.default_lmv.clear(),
            |record: &mut InodeRecord| record.attr.flags -= AttrFlags::HAS_DIR_DEFAULT,
            |record: &mut InodeRecord| record.lmv.clear(),
            |record: &mut InodeRecord| record.attr.mode = FileKind::Regular.mode_bits(),
        ] {
            let (mut record, mut bytes) = (directory(), Vec::new());
            change(&mut record);
            record.encode(&mut bytes);
            assert!(matches!(InodeRecord::decode(record.attr.fid, &bytes), Err(DecodeError::Field(_))));
        }
    }

    #[test]
    fn bytes_are_those_of_version_1() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let expected: Vec<u8> = [
            &[1u8, 1, 12, 0][..],
            &0o100640u32.to_le_bytes(),
            &[0xe8, 3, 0, 0, 100, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 4, 3, 2, 1, 9, 0, 0, 0],
            &[0x39, 0x30, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0, 0, 0, 0, 0xfd, 255, 255, 255, 255, 255, 255, 255],
            &[5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0],
            &[2, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 8, 0, 0, 0],
            &[7, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            &[4, 0, 0, 0, 3, 0, 0, 0],
            b"file",
            &[1, 2, 3],
        ]
        .concat();
        assert_eq!(bytes, expected, "inode record version {INODE_VERSION} has changed: bump the version");
        assert_eq!(InodeRecord::decode(sample().attr.fid, &bytes), Ok(sample()));
    }

    #[test]
    fn reserved_bytes_and_other_versions_are_refused() {
        let mut bytes = Vec::new();
        sample().encode(&mut bytes);
        let decode = |bytes: &[u8]| InodeRecord::decode(Fid::ROOT, bytes);
        bytes[121] = 1;
        assert_eq!(decode(&bytes), Err(DecodeError::Field("reserved")));
        bytes[121] = 0;
        bytes[0] = 9;
        assert_eq!(decode(&bytes), Err(DecodeError::Version { found: 9, known: INODE_VERSION }));
        bytes[0] = INODE_VERSION;
        bytes.push(0);
        assert_eq!(decode(&bytes), Err(DecodeError::Trailing));
        assert_eq!(decode(&bytes[..40]), Err(DecodeError::Short));
    }
}
