//! The common form of the superblocks of object directories and of block devices: magic, version, length,
//! identity and time of creation at the beginning, a label at an offset of its own, a checksum at the end.

use crate::codec::crc32c;
use nacre_types::Timestamp;

/// Longest label in bytes.
pub(crate) const LABEL_MAX: usize = 48;

/// A kind of superblock, of `N` bytes.
pub(crate) struct Form<const N: usize> {
    pub magic: [u8; 8],
    /// Version that is written, and the only one that is read.
    pub version: u32,
    /// Offset of the label in bytes; the bytes between the time and the label are specific to the kind.
    pub label_at: usize,
}

/// Fields that all kinds have.
pub(crate) struct Head {
    pub uuid: [u8; 16],
    pub created: Timestamp,
    pub label: String,
}

/// Why bytes are not a superblock of the kind.
pub(crate) enum HeadError {
    Foreign,
    Damaged(&'static str),
    Version { found: u32 },
}

impl<const N: usize> Form<N> {
    const CRC_AT: usize = N - 4;

    /// Encodes a superblock; `own` adds the fields of the kind. A label longer than [`LABEL_MAX`] is
    /// truncated.
    pub fn encode(
        &self,
        (uuid, created, label): (&[u8; 16], Timestamp, &str),
        own: impl FnOnce(&mut [u8; N]),
    ) -> [u8; N] {
        let mut out = [0u8; N];
        out[..8].copy_from_slice(&self.magic);
        out[8..12].copy_from_slice(&self.version.to_le_bytes());
        out[12..16].copy_from_slice(&(N as u32).to_le_bytes());
        out[16..32].copy_from_slice(uuid);
        out[32..40].copy_from_slice(&created.sec.to_le_bytes());
        out[40..44].copy_from_slice(&created.nsec.to_le_bytes());
        let len = label.len().min(LABEL_MAX);
        out[self.label_at..self.label_at + len].copy_from_slice(&label.as_bytes()[..len]);
        own(&mut out);
        let crc = crc32c(&out[..Self::CRC_AT]);
        out[Self::CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the common fields, and returns all bytes for the fields of the kind.
    ///
    /// # Errors
    /// The version is checked before the checksum, so that an unknown format is reported as such.
    pub fn decode<'a>(&self, bytes: &'a [u8]) -> Result<(Head, &'a [u8; N]), HeadError> {
        if bytes.get(..8) != Some(&self.magic[..]) {
            return Err(HeadError::Foreign);
        }
        let found = number(bytes, 8)?;
        if found != self.version {
            return Err(HeadError::Version { found });
        }
        let len = number(bytes, 12)? as usize;
        let bytes: &[u8; N] =
            bytes.try_into().ok().filter(|_| len == N).ok_or(HeadError::Damaged("wrong length"))?;
        if u32::from_le_bytes(field(bytes, Self::CRC_AT)) != crc32c(&bytes[..Self::CRC_AT]) {
            return Err(HeadError::Damaged("checksum does not match"));
        }
        let padded = &bytes[self.label_at..self.label_at + LABEL_MAX];
        let end = padded.iter().position(|&b| b == 0).unwrap_or(padded.len());
        let label = std::str::from_utf8(&padded[..end])
            .ok()
            .filter(|label| label.bytes().all(|b| b.is_ascii_graphic()))
            .ok_or(HeadError::Damaged("bad label"))?;
        let created =
            Timestamp::new(i64::from_le_bytes(field(bytes, 32)), u32::from_le_bytes(field(bytes, 40)));
        Ok((Head { uuid: field(bytes, 16), created, label: label.to_owned() }, bytes))
    }
}

/// Reads a number from bytes that may end too early.
fn number(bytes: &[u8], at: usize) -> Result<u32, HeadError> {
    let field = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    field.map(u32::from_le_bytes).ok_or(HeadError::Damaged("cut off"))
}

/// Returns `M` bytes at offset `at`.
///
/// # Panics
/// If the field ends beyond the bytes: offsets are constants.
pub(crate) fn field<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    *bytes[at..].first_chunk().expect("fields lie inside")
}
