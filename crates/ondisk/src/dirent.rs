//! Directory entries, additional hard links and extended attributes.

use crate::codec::{DecodeError, Reader};
use nacre_types::limits::XATTR_VALUE_MAX;
use nacre_types::{Fid, FileKind};

/// Format version of all three records.
pub const NAME_VERSION: u8 = 1;

/// A directory entry. The key holds directory, hash and name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirentRecord {
    /// FID of the inode, on this MDT or another.
    pub fid: Fid,
    /// Kind of the inode, so that a listing does not read inodes.
    pub kind: FileKind,
}

/// Bytes of an encoded [`DirentRecord`].
pub const DIRENT_LEN: usize = 20;

impl DirentRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; DIRENT_LEN] {
        let mut out = [0u8; DIRENT_LEN];
        out[0] = NAME_VERSION;
        out[1] = self.kind as u8;
        out[4..].copy_from_slice(&self.fid.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<DirentRecord, DecodeError> {
        let mut reader = Reader::new(bytes, NAME_VERSION)?;
        let kind = FileKind::from_dirent_type(reader.u8()?).ok_or(DecodeError::Field("kind"))?;
        reader.reserved::<2>()?;
        let fid = reader.fid()?;
        reader.end()?;
        if fid.is_zero() {
            return Err(DecodeError::Field("fid"));
        }
        Ok(DirentRecord { fid, kind })
    }
}

/// A hard link in addition to an inode's first name. The key holds everything; the value only carries the
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkRecord;

impl LinkRecord {
    /// Encodes the record.
    pub const fn encode() -> [u8; 1] {
        [NAME_VERSION]
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<LinkRecord, DecodeError> {
        Reader::new(bytes, NAME_VERSION)?.end()?;
        Ok(LinkRecord)
    }
}

/// The value of an extended attribute. The key holds inode and name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XattrRecord<'a> {
    /// The value, up to 64 KiB.
    pub value: &'a [u8],
}

impl<'a> XattrRecord<'a> {
    /// Appends the encoded record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(1 + self.value.len());
        out.push(NAME_VERSION);
        out.extend_from_slice(self.value);
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<XattrRecord<'a>, DecodeError> {
        let value = Reader::new(bytes, NAME_VERSION)?.remainder();
        if value.len() > XATTR_VALUE_MAX {
            return Err(DecodeError::Field("value length"));
        }
        Ok(XattrRecord { value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_version_1() {
        let dirent = DirentRecord { fid: Fid::new(0x2_0000_0401, 2, 0), kind: FileKind::Directory };
        let bytes = [1, 4, 0, 0, 1, 4, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(dirent.encode(), bytes);
        assert_eq!(DirentRecord::decode(&bytes), Ok(dirent));
        assert_eq!(LinkRecord::decode(&LinkRecord::encode()), Ok(LinkRecord));
        let mut out = Vec::new();
        XattrRecord { value: b"v" }.encode(&mut out);
        assert_eq!(out, [1, b'v']);
        assert_eq!(XattrRecord::decode(&out), Ok(XattrRecord { value: b"v" }));
    }

    #[test]
    fn a_name_of_nothing_is_refused() {
        let dirent = DirentRecord { fid: Fid::ZERO, kind: FileKind::Regular };
        assert_eq!(DirentRecord::decode(&dirent.encode()), Err(DecodeError::Field("fid")));
    }
}
