//! Integers at offsets of a byte string, in either byte order.

use super::composite::MAGIC_COMPOSITE;
use super::{MAGIC_V1, MAGIC_V3, UserMdError};
use nacre_types::Fid;

/// Bytes with their byte order.
#[derive(Clone, Copy)]
pub struct Raw<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    swapped: bool,
}

impl<'a> Raw<'a> {
    /// Takes the byte order from the magic at the beginning.
    pub fn new(bytes: &'a [u8]) -> Result<Raw<'a>, UserMdError> {
        let plain = Raw { bytes, swapped: false };
        let known = |magic| matches!(magic, MAGIC_V1 | MAGIC_V3 | MAGIC_COMPOSITE);
        let swapped = known(plain.u32(0)?.swap_bytes());
        Ok(Raw { bytes, swapped })
    }

    fn at<const N: usize>(&self, at: usize) -> Result<[u8; N], UserMdError> {
        let mut field = *self.bytes.get(at..).and_then(|b| b.first_chunk()).ok_or(UserMdError::Short)?;
        if self.swapped {
            <[u8]>::reverse(&mut field);
        }
        Ok(field)
    }

    pub fn u16(&self, at: usize) -> Result<u16, UserMdError> {
        self.at(at).map(u16::from_le_bytes)
    }

    pub fn u32(&self, at: usize) -> Result<u32, UserMdError> {
        self.at(at).map(u32::from_le_bytes)
    }

    pub fn u64(&self, at: usize) -> Result<u64, UserMdError> {
        self.at(at).map(u64::from_le_bytes)
    }

    pub fn fid(&self, at: usize) -> Result<Fid, UserMdError> {
        Ok(Fid::new(self.u64(at)?, self.u32(at + 8)?, self.u32(at + 12)?))
    }

    /// Returns the bytes `[start, end)`.
    pub fn part(&self, start: usize, end: usize) -> Result<Raw<'a>, UserMdError> {
        let bytes = self.bytes.get(start..end).ok_or(UserMdError::Short)?;
        Ok(Raw { bytes, swapped: self.swapped })
    }
}
