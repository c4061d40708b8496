//! Global state of an MDT, and its high-water mark on each OST.

use crate::codec::{DecodeError, Reader};

/// Format version of [`MdtRecord`] of an MDT that stores data of files in its metadata store. Version 1 had
/// no count of inodes.
pub const MDT_VERSION: u8 = 2;
/// Format version of [`MdtRecord`] of an MDT with a separate object store for data of files. Its own number
/// makes programs without support for that refuse the MDT.
pub const MDT_APART_VERSION: u8 = 3;
/// Format version of [`OstMarkRecord`].
pub const OST_MARK_VERSION: u8 = 1;
/// Encodes an unknown count of inodes.
const UNKNOWN: u64 = u64::MAX;

/// State of an MDT; one record per MDT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MdtRecord {
    /// Index of this MDT.
    pub index: u16,
    /// Seed of the name hash: random, fixed when the MDT is formatted.
    pub hash_seed: u64,
    /// Starts of the MDT, this one included.
    pub boot_count: u64,
    /// Next FID sequence to allocate. Any lower sequence may be in use.
    pub next_sequence: u64,
    /// The last run was shut down in order, so no recovery is needed.
    pub clean: bool,
    /// Inodes in the store; only known after an orderly shutdown.
    pub inodes: Option<u64>,
    /// Data of files is in an object store of its own, next to the metadata store.
    pub data_apart: bool,
}

/// Bytes of an encoded [`MdtRecord`].
pub const MDT_LEN: usize = 40;

impl MdtRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; MDT_LEN] {
        let mut out = [0u8; MDT_LEN];
        out[0] = if self.data_apart { MDT_APART_VERSION } else { MDT_VERSION };
        out[1] = u8::from(self.clean);
        out[2..4].copy_from_slice(&self.index.to_le_bytes());
        out[8..16].copy_from_slice(&self.hash_seed.to_le_bytes());
        out[16..24].copy_from_slice(&self.boot_count.to_le_bytes());
        out[24..32].copy_from_slice(&self.next_sequence.to_le_bytes());
        out[32..].copy_from_slice(&self.inodes.unwrap_or(UNKNOWN).to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of versions 1 to 3.
    pub fn decode(bytes: &[u8]) -> Result<MdtRecord, DecodeError> {
        let version = match bytes.first() {
            Some(&known @ (1 | MDT_APART_VERSION)) => known,
            _ => MDT_VERSION,
        };
        let mut reader = Reader::new(bytes, version)?;
        let clean = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("clean")),
        };
        let index = reader.u16()?;
        reader.reserved::<4>()?;
        let mut record = MdtRecord {
            index,
            clean,
            hash_seed: reader.u64()?,
            boot_count: reader.u64()?,
            next_sequence: reader.u64()?,
            inodes: None,
            data_apart: version == MDT_APART_VERSION,
        };
        if version > 1 {
            record.inodes = Some(reader.u64()?).filter(|&inodes| inodes != UNKNOWN);
        }
        reader.end()?;
        Ok(record)
    }
}

/// Format version of [`RunsRecord`].
pub const RUNS_VERSION: u8 = 1;
/// Starts that [`RunsRecord`] keeps.
pub const RUNS_MAX: usize = 64;

/// Earlier runs of an MDT, from which clients learn what it has lost.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunsRecord {
    /// Boot id of the host of the last run; zeros if it is unknown, or if clients had not replayed all that this run
    /// lacked.
    pub boot_id: [u8; 16],
    /// Newest transactions found at the last starts that followed no orderly shutdown, in ascending order; at most
    /// [`RUNS_MAX`].
    pub newest: Vec<u64>,
}

impl RunsRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![RUNS_VERSION, 0, 0, 0, 0, 0, 0, 0];
        out.extend_from_slice(&self.boot_id);
        for newest in &self.newest {
            out.extend_from_slice(&newest.to_le_bytes());
        }
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<RunsRecord, DecodeError> {
        let mut reader = Reader::new(bytes, RUNS_VERSION)?;
        reader.reserved::<7>()?;
        let boot_id = reader.array()?;
        let (all, rest) = reader.remainder().as_chunks::<8>();
        if all.len() > RUNS_MAX || !rest.is_empty() {
            return Err(DecodeError::Field("starts"));
        }
        let newest: Vec<u64> = all.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        if !newest.is_sorted() {
            return Err(DecodeError::Field("starts"));
        }
        Ok(RunsRecord { boot_id, newest })
    }
}

/// High-water mark of an MDT on one OST; written with each layout that uses objects of the OST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OstMarkRecord {
    /// Sequence of the MDT's objects on this OST.
    pub sequence: u64,
    /// Largest object id that a layout uses; 0 for none.
    pub last_used: u32,
}

/// Bytes of an encoded [`OstMarkRecord`].
pub const OST_MARK_LEN: usize = 16;

impl OstMarkRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; OST_MARK_LEN] {
        let mut out = [0u8; OST_MARK_LEN];
        out[0] = OST_MARK_VERSION;
        out[4..8].copy_from_slice(&self.last_used.to_le_bytes());
        out[8..].copy_from_slice(&self.sequence.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<OstMarkRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OST_MARK_VERSION)?;
        reader.reserved::<3>()?;
        let last_used = reader.u32()?;
        let sequence = reader.u64()?;
        reader.end()?;
        Ok(OstMarkRecord { sequence, last_used })
    }
}

/// Format version of [`ScrubRecord`].
const SCRUB_VERSION: u8 = 1;
/// Longest position in bytes: an OST, or a table, and the longest key of the tables that are walked.
const SCRUB_CURSOR_MAX: usize = 512;

/// Position of the check of a metadata target in use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScrubRecord {
    /// Part of the walk: 0 inodes, 1 other records, 2 objects.
    pub phase: u8,
    /// Key after which the walk continues; empty at the beginning of the part.
    pub cursor: Vec<u8>,
}

impl ScrubRecord {
    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![SCRUB_VERSION, self.phase, 0, 0];
        out.extend_from_slice(&self.cursor);
        out
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ScrubRecord, DecodeError> {
        let mut reader = Reader::new(bytes, SCRUB_VERSION)?;
        let phase = reader.u8()?;
        reader.reserved::<2>()?;
        let cursor = reader.remainder().to_vec();
        if phase > 2 || cursor.len() > SCRUB_CURSOR_MAX {
            return Err(DecodeError::Field("position"));
        }
        Ok(ScrubRecord { phase, cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_of_a_check_has_these_bytes() {
        let record = ScrubRecord { phase: 2, cursor: vec![7, 8] };
        assert_eq!(record.encode(), [1, 2, 0, 0, 7, 8]);
        assert_eq!(ScrubRecord::decode(&record.encode()), Ok(record));
        for bad in [&[1, 3, 0, 0][..], &[1, 0, 1, 0], &[2, 0, 0, 0], &[1; 600]] {
            assert!(ScrubRecord::decode(bad).is_err());
        }
    }

    #[test]
    fn bytes_are_those_of_the_format() {
        let mdt = MdtRecord {
            index: 3,
            hash_seed: 0x0102,
            boot_count: 4,
            next_sequence: 0x2_0000_0401,
            clean: true,
            inodes: Some(5),
            data_apart: false,
        };
        let mut bytes = vec![2u8, 1, 3, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([1, 4, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(mdt.encode()[..], bytes);
        assert_eq!(MdtRecord::decode(&bytes), Ok(mdt));
        let unknown = MdtRecord { inodes: None, ..mdt };
        assert_eq!(MdtRecord::decode(&unknown.encode()), Ok(unknown));
        bytes[0] = 3;
        let apart = MdtRecord { data_apart: true, ..mdt };
        assert_eq!((apart.encode().to_vec(), MdtRecord::decode(&bytes)), (bytes.clone(), Ok(apart)));
        bytes[0] = 4;
        assert!(MdtRecord::decode(&bytes).is_err());
        bytes[0] = 1;
        assert_eq!(MdtRecord::decode(&bytes[..32]), Ok(unknown), "version 1");
        assert!(MdtRecord::decode(&bytes).is_err());
        let runs = RunsRecord { boot_id: [7; 16], newest: vec![5, 0x1_0000_0009] };
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([7; 16]);
        bytes.extend([5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!((runs.encode(), RunsRecord::decode(&bytes)), (bytes.clone(), Ok(runs)));
        assert!(RunsRecord::decode(&bytes[..bytes.len() - 1]).is_err());
        let mark = OstMarkRecord { sequence: 0x1_0001_0000, last_used: 9 };
        let bytes = [1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0];
        assert_eq!(mark.encode(), bytes);
        assert_eq!(OstMarkRecord::decode(&bytes), Ok(mark));
    }
}
