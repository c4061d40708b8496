//! The head of an object whose data is stored in records of a metadata store.

use crate::codec::{DecodeError, Reader};
use nacre_types::Timestamp;

/// Format version of [`DataRecord`].
pub const DATA_VERSION: u8 = 1;
/// Bytes of the head before inline data.
pub const DATA_HEAD_LEN: usize = 32;

/// Attributes of an object, and its data if it is small. Key: the FID in key form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRecord<'a> {
    /// Size in bytes; ranges without a record read as zeros.
    pub size: u64,
    /// Bytes that the object's data records hold, each rounded up to 4096.
    pub allocated: u64,
    /// Last change of data.
    pub mtime: Timestamp,
    /// All data of the object, from offset 0; `None` if it is stored in records of its own.
    pub inline: Option<&'a [u8]>,
}

impl<'a> DataRecord<'a> {
    /// Appends the encoded record to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let data = self.inline.unwrap_or(&[]);
        out.reserve(DATA_HEAD_LEN + data.len());
        out.extend_from_slice(&[DATA_VERSION, u8::from(self.inline.is_some()), 0, 0]);
        out.extend_from_slice(&self.mtime.nsec.to_le_bytes());
        out.extend_from_slice(&self.mtime.sec.to_le_bytes());
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(&self.allocated.to_le_bytes());
        out.extend_from_slice(data);
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &'a [u8]) -> Result<DataRecord<'a>, DecodeError> {
        let mut reader = Reader::new(bytes, DATA_VERSION)?;
        let is_inline = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("place of the data")),
        };
        reader.reserved::<2>()?;
        let nsec = reader.u32()?;
        if nsec > 999_999_999 {
            return Err(DecodeError::Field("nanoseconds"));
        }
        let mtime = Timestamp { sec: reader.i64()?, nsec };
        let (size, allocated) = (reader.u64()?, reader.u64()?);
        let data = reader.remainder();
        if !is_inline && !data.is_empty() {
            return Err(DecodeError::Trailing);
        }
        Ok(DataRecord { size, allocated, mtime, inline: is_inline.then_some(data) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_format() {
        let record =
            DataRecord { size: 0x0102, allocated: 4096, mtime: Timestamp::new(-2, 5), inline: Some(b"abc") };
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let expected = [
            &[1u8, 1, 0, 0, 5, 0, 0, 0, 0xfe, 255, 255, 255, 255, 255, 255, 255][..],
            &[2, 1, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0],
            b"abc",
        ]
        .concat();
        assert_eq!(bytes, expected, "the format of data records has changed: bump its version");
        assert_eq!(DataRecord::decode(&bytes), Ok(record));
        bytes[1] = 0;
        assert_eq!(DataRecord::decode(&bytes), Err(DecodeError::Trailing));
        bytes[1] = 2;
        assert_eq!(DataRecord::decode(&bytes), Err(DecodeError::Field("place of the data")));
        assert_eq!(
            DataRecord::decode(&bytes[..20]).map(|_| ()),
            Err(DecodeError::Field("place of the data"))
        );
    }
}
