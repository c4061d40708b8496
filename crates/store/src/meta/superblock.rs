//! The small file that identifies a directory as a store. Specified in `docs/formats/metadata-store.md`.

use std::path::Path;

use super::error::{MetaError, Result};
use super::wal::{FORMAT_VERSION, crc32c};

/// Name of the file inside the store's directory.
pub(crate) const SUPERBLOCK_NAME: &str = "superblock";
/// Length of the file in bytes. All versions keep magic, checksum and version in the same places, within
/// these bytes.
pub(crate) const SUPERBLOCK_LEN: usize = 64;

const MAGIC: [u8; 8] = *b"NACREKV\0";

/// Facts fixed when a store is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    /// Identity of the store, random.
    pub(crate) uuid: [u8; 16],
    /// Length of each segment file in bytes.
    pub(crate) wal_segment_bytes: u64,
}

impl Superblock {
    pub(crate) fn encode(&self) -> [u8; SUPERBLOCK_LEN] {
        let mut bytes = [0; SUPERBLOCK_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.wal_segment_bytes.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// # Errors
    /// [`MetaError::Foreign`], [`MetaError::Corrupt`], [`MetaError::TooNew`], [`MetaError::TooOld`]; `path`
    /// is for their text.
    pub(crate) fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        let foreign = || MetaError::Foreign { path: path.to_owned() };
        let mut copy: [u8; SUPERBLOCK_LEN] = *bytes.first_chunk().ok_or_else(foreign)?;
        let word = |at: usize| [copy[at], copy[at + 1], copy[at + 2], copy[at + 3]];
        let (version, crc) = (u32::from_le_bytes(word(8)), u32::from_le_bytes(word(12)));
        if copy[..8] != MAGIC {
            return Err(foreign());
        }
        copy[12..16].fill(0);
        let damaged = |what| MetaError::Corrupt { what, path: path.to_owned(), offset: 0 };
        if crc32c(&copy) != crc {
            return Err(damaged("superblock checksum"));
        }
        if version > FORMAT_VERSION {
            return Err(MetaError::TooNew { found: version, supported: FORMAT_VERSION });
        }
        if version < FORMAT_VERSION {
            return Err(MetaError::TooOld { found: version, supported: FORMAT_VERSION });
        }
        if copy[40..].iter().any(|&byte| byte != 0) {
            return Err(damaged("superblock reserved bytes"));
        }
        let (mut uuid, mut length) = ([0; 16], [0; 8]);
        uuid.copy_from_slice(&copy[16..32]);
        length.copy_from_slice(&copy[32..40]);
        Ok(Superblock { uuid, wal_segment_bytes: u64::from_le_bytes(length) })
    }
}
