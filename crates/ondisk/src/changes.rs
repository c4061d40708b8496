//! Records of an object target about acknowledged changes that are not durable yet: which ones clients replay if the
//! host loses power. Byte tables: `docs/formats/ost.md`.

use crate::codec::{DecodeError, Reader};

/// Format version of [`DataRunRecord`] and [`DataMarkRecord`].
pub const CHANGES_VERSION: u8 = 1;

/// The last run of an object target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataRunRecord {
    /// True if the run has ended in order: all changes are durable.
    pub clean: bool,
    /// True if clients on other hosts have changed something in the run.
    pub has_keepers: bool,
    /// Boot id of its host.
    pub boot_id: [u8; 16],
    /// Number after which its changes are numbered.
    pub first: u64,
    /// Number up to which all changes are durable.
    pub committed: u64,
    /// `first` of the run that began without acknowledged changes and still waits for their replay; 0 if there is none.
    pub lacking: u64,
}

/// Bytes of an encoded [`DataRunRecord`].
pub const DATA_RUN_LEN: usize = 48;

impl DataRunRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; DATA_RUN_LEN] {
        let mut out = [0u8; DATA_RUN_LEN];
        out[0] = CHANGES_VERSION;
        out[1] = u8::from(self.clean);
        out[2] = u8::from(self.has_keepers);
        out[8..24].copy_from_slice(&self.boot_id);
        out[24..32].copy_from_slice(&self.first.to_le_bytes());
        out[32..40].copy_from_slice(&self.committed.to_le_bytes());
        out[40..].copy_from_slice(&self.lacking.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<DataRunRecord, DecodeError> {
        let mut reader = Reader::new(bytes, CHANGES_VERSION)?;
        let mut flag = |name| match reader.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Field(name)),
        };
        let (clean, has_keepers) = (flag("clean")?, flag("has_keepers")?);
        reader.reserved::<5>()?;
        let boot_id = reader.array()?;
        let (first, committed, lacking) = (reader.u64()?, reader.u64()?, reader.u64()?);
        reader.end()?;
        Ok(DataRunRecord { clean, has_keepers, boot_id, first, committed, lacking })
    }
}

/// A position in the changes of an object target: of an object, changes up to `number` are not replayed, and `run` is
/// 0; of a client, changes up to `number` have been replayed since the run that began with `run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DataMarkRecord {
    /// [`DataRunRecord::lacking`] for which the mark of a client holds.
    pub run: u64,
    /// Number of a change.
    pub number: u64,
}

/// Bytes of an encoded [`DataMarkRecord`].
pub const DATA_MARK_LEN: usize = 24;

impl DataMarkRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; DATA_MARK_LEN] {
        let mut out = [0u8; DATA_MARK_LEN];
        out[0] = CHANGES_VERSION;
        out[8..16].copy_from_slice(&self.run.to_le_bytes());
        out[16..].copy_from_slice(&self.number.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<DataMarkRecord, DecodeError> {
        let mut reader = Reader::new(bytes, CHANGES_VERSION)?;
        reader.reserved::<7>()?;
        let record = DataMarkRecord { run: reader.u64()?, number: reader.u64()? };
        reader.end()?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_have_these_bytes() {
        let run = DataRunRecord {
            clean: true,
            has_keepers: true,
            boot_id: [7; 16],
            first: 5,
            committed: 1 << 32,
            lacking: 9,
        };
        let mut bytes = vec![1, 1, 1, 0, 0, 0, 0, 0];
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((run.encode().to_vec(), DataRunRecord::decode(&bytes)), (bytes.clone(), Ok(run)));
        assert!(DataRunRecord::decode(&bytes[1..]).is_err());
        bytes[1] = 2;
        assert_eq!(DataRunRecord::decode(&bytes), Err(DecodeError::Field("clean")));
        let mark = DataMarkRecord { run: 5, number: 0x0102 };
        let bytes = [1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!((mark.encode(), DataMarkRecord::decode(&bytes)), (bytes, Ok(mark)));
        assert!(DataMarkRecord::decode(&bytes[..23]).is_err());
    }
}
