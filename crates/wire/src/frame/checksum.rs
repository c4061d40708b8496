//! Checksums of frames and their data.

use crc_fast::{CrcAlgorithm, Digest};
use nacre_types::{Status, StatusResult};
use simd_adler32::Adler32;

/// Checksum algorithm of bulk data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ChecksumType {
    /// CRC-32C (Castagnoli): preferred.
    Crc32c = 0,
    /// Adler-32 (RFC 1950). Weak for data of a few bytes.
    Adler = 1,
}

impl ChecksumType {
    /// All types, the preferred one first.
    pub const ALL: [ChecksumType; 2] = [ChecksumType::Crc32c, ChecksumType::Adler];

    /// Returns the name in Lustre's `checksum_type`.
    pub const fn name(self) -> &'static str {
        match self {
            ChecksumType::Crc32c => "crc32c",
            ChecksumType::Adler => "adler",
        }
    }

    /// Returns the type with this name.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn from_name(name: &str) -> StatusResult<ChecksumType> {
        ChecksumType::ALL.into_iter().find(|kind| kind.name() == name).ok_or(Status::EINVAL)
    }
}

/// Returns the CRC-32C (Castagnoli) of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Checksum of data that arrives in pieces.
#[derive(Clone)]
pub struct Checksum(Sum);

#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "one at a time, on the stack of the receiver; a box would be dearer"
)]
enum Sum {
    Crc32c(Digest),
    Adler(Adler32),
}

impl Checksum {
    /// Creates a checksum of no data.
    pub fn new(kind: ChecksumType) -> Checksum {
        Checksum(match kind {
            ChecksumType::Crc32c => Sum::Crc32c(Digest::new(CrcAlgorithm::Crc32Iscsi)),
            ChecksumType::Adler => Sum::Adler(Adler32::new()),
        })
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Sum::Crc32c(digest) => digest.update(bytes),
            Sum::Adler(adler) => adler.write(bytes),
        }
    }

    /// Returns the checksum of all pieces so far.
    pub fn finish(&self) -> u32 {
        match &self.0 {
            Sum::Crc32c(digest) => digest.finalize() as u32,
            Sum::Adler(adler) => adler.finish(),
        }
    }
}
