//! Cursor over untrusted bytes, and the error that every decoder shares.

use nacre_types::Fid;
use nacre_types::fid::FID_BYTES;

/// Why bytes are not a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The record ends too early.
    #[error("the record is cut short")]
    Short,
    /// Bytes follow the end of the record.
    #[error("bytes follow the end of the record")]
    Trailing,
    /// The format version is not known to this program.
    #[error(
        "record version {found} is not the one that this program reads ({known}): use the nacre that wrote it"
    )]
    Version {
        /// Version found.
        found: u8,
        /// Newest version that this program reads.
        known: u8,
    },
    /// A field has a value that it cannot have.
    #[error("field {0} has an impossible value")]
    Field(&'static str),
}

/// Returns the checksum of records and headers.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Takes fields from the front of a record.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts after the version byte, which must be `version`.
    pub(crate) fn new(bytes: &'a [u8], version: u8) -> Result<Reader<'a>, DecodeError> {
        match bytes.split_first() {
            None => Err(DecodeError::Short),
            Some((found, rest)) if *found == version => Ok(Reader { rest }),
            Some((found, _)) => Err(DecodeError::Version { found: *found, known: version }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    pub(crate) fn fid(&mut self) -> Result<Fid, DecodeError> {
        Ok(Fid::from_le_bytes(&self.array::<FID_BYTES>()?))
    }

    /// Skips reserved bytes, which must be zero.
    pub(crate) fn reserved<const N: usize>(&mut self) -> Result<(), DecodeError> {
        if self.array::<N>()?.iter().any(|&b| b != 0) { Err(DecodeError::Field("reserved")) } else { Ok(()) }
    }

    /// Returns all bytes that are left.
    pub(crate) fn remainder(self) -> &'a [u8] {
        self.rest
    }

    /// Checks that the record ends here.
    pub(crate) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}
