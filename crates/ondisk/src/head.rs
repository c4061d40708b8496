//! What the superblocks of object directories and of devices of object stores have in common: magic, version, length, identity and time
//! at the begin, a label somewhere, a checksum at the end.

use crate::codec::crc32c;
use nacre_types::Timestamp;

/// Longest label in bytes.
pub(crate) const LABEL_MAX: usize = 48;

/// One kind of them, of `N` bytes.
pub(crate) struct Form<const N: usize> {
    pub magic: [u8; 8],
    /// The version that is written and the only one that is read.
    pub version: u32,
    /// Where the label is; what lies between it and the time is the kind's own.
    pub label_at: usize,
}

/// The fields that all kinds have.
pub(crate) struct Head {
    pub uuid: [u8; 16],
    pub created: Timestamp,
    pub label: String,
}

/// Why bytes are none of a kind.
pub(crate) enum HeadError {
    Foreign,
    Damaged(&'static str),
    Version { found: u32 },
}

impl<const N: usize> Form<N> {
    const CRC_AT: usize = N - 4;

    /// The bytes with what `own` adds. A label that is too long is cut.
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

    /// Reads the fields that all kinds have, and gives the bytes for the others.
    ///
    /// # Errors
    /// The version is looked at before the checksum, so that another format is named as such.
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

/// A number of bytes that may be fewer than they should be.
fn number(bytes: &[u8], at: usize) -> Result<u32, HeadError> {
    let field = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    field.map(u32::from_le_bytes).ok_or(HeadError::Damaged("cut off"))
}

/// A field of bytes whose length is known.
///
/// # Panics
/// If it does not lie in them: places are constants.
pub(crate) fn field<const N: usize, const M: usize>(bytes: &[u8; N], at: usize) -> [u8; M] {
    *bytes[at..].first_chunk().expect("fields lie inside")
}
