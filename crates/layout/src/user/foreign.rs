//! `lov_foreign_md`: a text in place of a layout, which another store interprets.
//!
//! ```text
//!  0 magic u32    4 bytes of the text u32    8 type u32    12 flags u32    16 the text
//! ```

use super::UserMdError;
use nacre_types::limits::XATTR_VALUE_MAX;

/// Magic of a foreign layout.
pub const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
/// Magic of a foreign layout of a directory (`lmv_foreign_md`), which has the same fields.
pub const MAGIC_FOREIGN_DIRECTORY: u32 = 0x0CD5_0CD0;
/// Bytes of the header, which precedes the text.
const HEADER: usize = 16;

/// Types with a name (Lustre: `LU_FOREIGN_TYPE_*`).
pub const FOREIGN_TYPES: [(&str, u32); 6] =
    [("none", 0), ("posix", 1), ("pccrw", 2), ("pccro", 3), ("s3", 4), ("symlink", 0xda05)];

/// A foreign layout: type, flags and text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Foreign {
    /// Type of the store, see [`FOREIGN_TYPES`]; other values are stored unchanged.
    pub kind: u32,
    /// Flags for the store, not interpreted here.
    pub flags: u32,
    /// The text: any bytes, at least one.
    pub text: Vec<u8>,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, UserMdError> {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(UserMdError::Short)?;
    Ok(u32::from_le_bytes(*word))
}

/// Returns true if the bytes begin with the magic of a foreign layout.
pub fn is_foreign(bytes: &[u8]) -> bool {
    word(bytes, 0) == Ok(MAGIC_FOREIGN)
}

/// Reads a foreign layout.
///
/// # Errors
/// If the bytes are not a foreign layout, or their number differs from the header's.
pub fn decode_foreign(bytes: &[u8]) -> Result<Foreign, UserMdError> {
    decode(bytes, MAGIC_FOREIGN)
}

/// Returns true if the bytes begin with the magic of a foreign layout of a directory.
pub fn is_foreign_directory(bytes: &[u8]) -> bool {
    word(bytes, 0) == Ok(MAGIC_FOREIGN_DIRECTORY)
}

/// Reads a foreign layout of a directory.
///
/// # Errors
/// As for [`decode_foreign`].
pub fn decode_foreign_directory(bytes: &[u8]) -> Result<Foreign, UserMdError> {
    decode(bytes, MAGIC_FOREIGN_DIRECTORY)
}

fn decode(bytes: &[u8], magic: u32) -> Result<Foreign, UserMdError> {
    match word(bytes, 0)? {
        found if found == magic => {}
        other => return Err(UserMdError::Magic(other)),
    }
    let (length, kind, flags) = (word(bytes, 4)? as usize, word(bytes, 8)?, word(bytes, 12)?);
    let text = bytes.get(HEADER..).ok_or(UserMdError::Short)?;
    if text.len() < length {
        return Err(UserMdError::Short);
    }
    if text.len() > length || length == 0 || bytes.len() > XATTR_VALUE_MAX {
        return Err(UserMdError::Field("length"));
    }
    Ok(Foreign { kind, flags, text: text.to_vec() })
}

/// Encodes a foreign layout.
pub fn encode_foreign(foreign: &Foreign) -> Vec<u8> {
    encode(foreign, MAGIC_FOREIGN)
}

/// Encodes a foreign layout of a directory.
pub fn encode_foreign_directory(foreign: &Foreign) -> Vec<u8> {
    encode(foreign, MAGIC_FOREIGN_DIRECTORY)
}

fn encode(foreign: &Foreign, magic: u32) -> Vec<u8> {
    let mut out = magic.to_le_bytes().to_vec();
    for word in [foreign.text.len() as u32, foreign.kind, foreign.flags] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&foreign.text);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_lustres_and_lengths_are_checked() {
        let foreign = Foreign { kind: 0xda05, flags: 0xda08, text: b"PUUID:CUUID".to_vec() };
        let bytes = encode_foreign(&foreign);
        assert_eq!(bytes[..16], [0xd0, 0x0b, 0xd7, 0x0b, 11, 0, 0, 0, 5, 0xda, 0, 0, 8, 0xda, 0, 0]);
        assert!(is_foreign(&bytes) && !is_foreign(b"\xd0\x0b"));
        assert_eq!(decode_foreign(&bytes[..26]), Err(UserMdError::Short));
        assert_eq!(decode_foreign(&bytes[..12]), Err(UserMdError::Short));
        assert_eq!(decode_foreign(&[&bytes[..], b"x"].concat()), Err(UserMdError::Field("length")));
        assert_eq!(
            decode_foreign(&encode_foreign(&Foreign { text: Vec::new(), ..foreign })),
            Err(UserMdError::Field("length"))
        );
        assert_eq!(decode_foreign(&[0; 16]), Err(UserMdError::Magic(0)));
        let foreign = Foreign { kind: 0xda05, flags: 0, text: b"text".to_vec() };
        let bytes = encode_foreign_directory(&foreign);
        assert_eq!(bytes[..8], [0xd0, 0x0c, 0xd5, 0x0c, 4, 0, 0, 0]);
        assert_eq!(decode_foreign_directory(&bytes), Ok(foreign));
        assert!(is_foreign_directory(&bytes) && !is_foreign(&bytes));
        assert_eq!(decode_foreign(&bytes), Err(UserMdError::Magic(MAGIC_FOREIGN_DIRECTORY)));
    }
}
