//! The superblock of a file system directory: format, name and identity of the file system in it.
//!
//! A small file at the top of the directory that is passed to `nacre up`. A directory without a valid one is
//! never modified. All numbers are little-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `NACREFS\n` |
//! | 8 | 4 | format version |
//! | 12 | 4 | length of the whole, 128 |
//! | 16 | 16 | file system UUID |
//! | 32 | 8 | created, seconds since 1970 |
//! | 40 | 4 | created, nanoseconds |
//! | 44 | 2 | MDTs when formatted |
//! | 46 | 2 | OSTs when formatted |
//! | 48 | 8 | file system name, padded with NUL |
//! | 56 | 68 | zero |
//! | 124 | 4 | CRC32C of bytes 0 to 123 |

use crate::codec::crc32c;
use nacre_types::Timestamp;
use nacre_types::limits::{FSNAME_MAX, TARGET_INDEX_MAX};
use nacre_types::nid::check_fsname;

/// Size of an encoded superblock in bytes.
pub const SUPERBLOCK_BYTES: usize = 128;
/// First bytes of a superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"NACREFS\n";
/// Format version of directories that hold all targets of a file system as it was formatted: those that the
/// superblock counts.
pub const FORMAT_VERSION: u32 = 1;
/// Format version of directories with a separate list of their targets: some were added, or others are
/// elsewhere.
pub const FORMAT_VERSION_LISTED: u32 = 2;
/// Oldest format version that this program reads.
pub const FORMAT_VERSION_OLDEST: u32 = 1;

const CRC_AT: usize = SUPERBLOCK_BYTES - 4;
const NAME_AT: usize = 48;

/// Identity and shape of a file system directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Format version of the directory.
    pub version: u32,
    /// Random identity of the file system.
    pub fs_uuid: [u8; 16],
    /// Time of formatting.
    pub created: Timestamp,
    /// MDTs when formatted; at least 1 in format 1.
    pub mdt_count: u16,
    /// OSTs when formatted; at least 1 in format 1.
    pub ost_count: u16,
    /// Name of the file system.
    pub fsname: String,
}

/// Why bytes are not a usable superblock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// Wrong length or magic: the file belongs to something else.
    #[error("it does not begin with a NacreFS superblock")]
    Foreign,
    /// The magic is right, the rest is damaged.
    #[error("its superblock is damaged: {0}")]
    Damaged(&'static str),
    /// Written by a newer program.
    #[error("its format {found} is newer than this program knows ({supported}): use a newer nacre")]
    TooNew {
        /// Version found.
        found: u32,
        /// Newest version that this program reads.
        supported: u32,
    },
    /// Written by an older program, in a format that is not read.
    #[error(
        "its format {found} is older than this program reads ({supported}): copy the data with an older nacre"
    )]
    TooOld {
        /// Version found.
        found: u32,
        /// Oldest version that this program reads.
        supported: u32,
    },
}

impl Superblock {
    /// Encodes the superblock.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0u8; SUPERBLOCK_BYTES];
        bytes[..8].copy_from_slice(&SUPERBLOCK_MAGIC);
        bytes[8..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(SUPERBLOCK_BYTES as u32).to_le_bytes());
        bytes[16..32].copy_from_slice(&self.fs_uuid);
        bytes[32..40].copy_from_slice(&self.created.sec.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.created.nsec.to_le_bytes());
        bytes[44..46].copy_from_slice(&self.mdt_count.to_le_bytes());
        bytes[46..48].copy_from_slice(&self.ost_count.to_le_bytes());
        let name = self.fsname.as_bytes();
        let len = name.len().min(FSNAME_MAX);
        bytes[NAME_AT..NAME_AT + len].copy_from_slice(&name[..len]);
        let crc = crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// The version is checked before the checksum, so that an unknown format is reported as such.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        if bytes.get(..8) != Some(&SUPERBLOCK_MAGIC[..]) {
            return Err(SuperblockError::Foreign);
        }
        let version = u32::from_le_bytes(field(bytes, 8)?);
        if version > FORMAT_VERSION_LISTED {
            return Err(SuperblockError::TooNew { found: version, supported: FORMAT_VERSION_LISTED });
        }
        if version < FORMAT_VERSION_OLDEST {
            return Err(SuperblockError::TooOld { found: version, supported: FORMAT_VERSION_OLDEST });
        }
        if bytes.len() != SUPERBLOCK_BYTES || u32::from_le_bytes(field(bytes, 12)?) != SUPERBLOCK_BYTES as u32
        {
            return Err(SuperblockError::Damaged("wrong length"));
        }
        if u32::from_le_bytes(field(bytes, CRC_AT)?) != crc32c(&bytes[..CRC_AT]) {
            return Err(SuperblockError::Damaged("checksum does not match"));
        }
        let superblock = Superblock {
            version,
            fs_uuid: field(bytes, 16)?,
            created: Timestamp::new(
                i64::from_le_bytes(field(bytes, 32)?),
                u32::from_le_bytes(field(bytes, 40)?),
            ),
            mdt_count: u16::from_le_bytes(field(bytes, 44)?),
            ost_count: u16::from_le_bytes(field(bytes, 46)?),
            fsname: name_of(&bytes[NAME_AT..NAME_AT + FSNAME_MAX])?,
        };
        let counts = u16::from(version == FORMAT_VERSION)..=TARGET_INDEX_MAX;
        if !counts.contains(&superblock.mdt_count) || !counts.contains(&superblock.ost_count) {
            return Err(SuperblockError::Damaged("impossible number of targets"));
        }
        match superblock.encode()[..] == *bytes {
            true => Ok(superblock),
            false => Err(SuperblockError::Damaged("reserved bytes are not zero")),
        }
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], SuperblockError> {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).ok_or(SuperblockError::Damaged("cut off"))
}

fn name_of(padded: &[u8]) -> Result<String, SuperblockError> {
    let end = padded.iter().position(|&b| b == 0).unwrap_or(padded.len());
    let name = std::str::from_utf8(&padded[..end]).map_err(|_| SuperblockError::Damaged("bad name"))?;
    check_fsname(name).map_err(|_| SuperblockError::Damaged("bad name"))?;
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Superblock {
        Superblock {
            version: 1,
            fs_uuid: *b"0123456789abcdef",
            created: Timestamp::new(1_700_000_000, 5),
            mdt_count: 1,
            ost_count: 4,
            fsname: "nacre".to_owned(),
        }
    }

    #[test]
    fn golden_bytes() {
        let bytes = example().encode();
        let text: String = bytes[..56].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            text,
            concat!(
                "4e414352454653 0a 01000000 80000000 30313233343536373839616263646566",
                " 00f1536500000000 05000000 0100 0400 6e61637265000000"
            )
            .replace(' ', "")
        );
        assert_eq!(bytes[CRC_AT..], [196, 164, 227, 187]);
        assert_eq!(Superblock::decode(&bytes), Ok(example()));
    }

    #[test]
    fn other_formats_are_named_before_the_checksum_is_looked_at() {
        let newer = Superblock { version: 3, ..example() }.encode();
        assert_eq!(Superblock::decode(&newer), Err(SuperblockError::TooNew { found: 3, supported: 2 }));
        let older = Superblock { version: 0, ..example() }.encode();
        assert_eq!(Superblock::decode(&older), Err(SuperblockError::TooOld { found: 0, supported: 1 }));
        assert_eq!(Superblock::decode(b""), Err(SuperblockError::Foreign));
        assert_eq!(Superblock::decode(b"#!/bin/sh\n"), Err(SuperblockError::Foreign));
        assert!(matches!(Superblock::decode(&SUPERBLOCK_MAGIC), Err(SuperblockError::Damaged(_))));
    }

    #[test]
    fn a_directory_that_lists_its_targets_may_be_made_without_some() {
        let listed = Superblock { version: FORMAT_VERSION_LISTED, mdt_count: 1, ost_count: 0, ..example() };
        assert_eq!(Superblock::decode(&listed.encode()), Ok(listed.clone()));
        let counted = Superblock { version: FORMAT_VERSION, ..listed };
        assert!(matches!(Superblock::decode(&counted.encode()), Err(SuperblockError::Damaged(_))));
    }

    #[test]
    fn every_flipped_bit_and_every_length_is_noticed() {
        let good = example().encode();
        for bit in 0..SUPERBLOCK_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Superblock::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..SUPERBLOCK_BYTES {
            assert!(Superblock::decode(&good[..len]).is_err(), "length {len}");
        }
    }
}
