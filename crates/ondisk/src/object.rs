//! Records of an object target: the slot file of each object, the ids already allocated, and the identity of
//! the directory.
//!
//! Byte tables and the invariants between them: `docs/formats/ost.md`.

use crate::codec::{DecodeError, Reader};
use crate::head::{Form, Head, HeadError, LABEL_MAX};
use nacre_types::Timestamp;

/// Format version of [`ObjectRecord`], [`SequenceRecord`] and [`ObjectStoreRecord`].
pub const OBJECT_VERSION: u8 = 1;

/// Location of the data of an object. Key: the FID in key form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectRecord {
    /// Number of the slot file.
    pub slot: u32,
}

/// Bytes of an encoded [`ObjectRecord`].
pub const OBJECT_LEN: usize = 8;

impl ObjectRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; OBJECT_LEN] {
        let mut out = [0u8; OBJECT_LEN];
        out[0] = OBJECT_VERSION;
        out[4..].copy_from_slice(&self.slot.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ObjectRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OBJECT_VERSION)?;
        reader.reserved::<3>()?;
        let record = ObjectRecord { slot: reader.u32()? };
        reader.end()?;
        Ok(record)
    }
}

/// High-water mark of the object ids of a sequence. Key: the sequence, 8 bytes, big-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SequenceRecord {
    /// Largest id ever reserved; 0 for none.
    pub last_reserved: u32,
}

/// Bytes of an encoded [`SequenceRecord`].
pub const SEQUENCE_LEN: usize = 8;

impl SequenceRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; SEQUENCE_LEN] {
        let mut out = [0u8; SEQUENCE_LEN];
        out[0] = OBJECT_VERSION;
        out[4..].copy_from_slice(&self.last_reserved.to_le_bytes());
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<SequenceRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OBJECT_VERSION)?;
        reader.reserved::<3>()?;
        let record = SequenceRecord { last_reserved: reader.u32()? };
        reader.end()?;
        Ok(record)
    }
}

/// Marks an object for which space may be preallocated behind its end, for a stream and not on a user's
/// request. The next start releases it. Key: the FID in key form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AheadRecord;

/// Bytes of an encoded [`AheadRecord`].
pub const AHEAD_LEN: usize = 4;

impl AheadRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; AHEAD_LEN] {
        [OBJECT_VERSION, 0, 0, 0]
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<AheadRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OBJECT_VERSION)?;
        reader.reserved::<3>()?;
        reader.end()?;
        Ok(AheadRecord)
    }
}

/// Bytes that one checksum covers.
pub const SUM_BLOCK: u64 = 4096;
/// Checksums per record.
pub const SUMS_MAX: usize = 256;

/// Known checksums (CRC-32C) of the blocks of 1 MiB of an object; bytes behind its end count as zeros. Key:
/// the FID in key form, and the number of the MiB, 4 bytes, big-endian.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SumsRecord {
    known: [u64; SUMS_MAX / 64],
    sums: [u32; SUMS_MAX],
}

impl Default for SumsRecord {
    fn default() -> SumsRecord {
        SumsRecord { known: [0; SUMS_MAX / 64], sums: [0; SUMS_MAX] }
    }
}

impl SumsRecord {
    /// Returns the checksum of a block, if it is known.
    pub fn get(&self, block: usize) -> Option<u32> {
        let is_known = self.known.get(block / 64)? & (1 << (block % 64)) != 0;
        is_known.then(|| self.sums[block])
    }

    /// Sets the checksum of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn set(&mut self, block: usize, sum: u32) {
        self.known[block / 64] |= 1 << (block % 64);
        self.sums[block] = sum;
    }

    /// Forgets the checksum of a block.
    ///
    /// # Panics
    /// If there is no such block.
    pub fn clear(&mut self, block: usize) {
        self.known[block / 64] &= !(1 << (block % 64));
        self.sums[block] = 0;
    }

    /// Returns whether no checksum is known.
    pub fn is_empty(&self) -> bool {
        self.known == [0; SUMS_MAX / 64]
    }

    /// Encodes the record.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![OBJECT_VERSION, 0, 0, 0];
        self.known.iter().for_each(|word| out.extend(word.to_le_bytes()));
        (0..SUMS_MAX).filter_map(|block| self.get(block)).for_each(|sum| out.extend(sum.to_le_bytes()));
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<SumsRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OBJECT_VERSION)?;
        reader.reserved::<3>()?;
        let mut record = SumsRecord::default();
        for word in &mut record.known {
            *word = u64::from_le_bytes(reader.array()?);
        }
        for block in 0..SUMS_MAX {
            if record.known[block / 64] & (1 << (block % 64)) != 0 {
                record.sums[block] = reader.u32()?;
            }
        }
        reader.end()?;
        Ok(record)
    }
}

/// State of the index as a whole; one per store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectStoreRecord {
    /// Identity of the object directory to which the index belongs.
    pub uuid: [u8; 16],
    /// The last run was shut down in order: every slot without an owner is durably empty.
    pub clean: bool,
}

/// Bytes of an encoded [`ObjectStoreRecord`].
pub const OBJECT_STORE_LEN: usize = 24;

impl ObjectStoreRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; OBJECT_STORE_LEN] {
        let mut out = [0u8; OBJECT_STORE_LEN];
        out[0] = OBJECT_VERSION;
        out[1] = u8::from(self.clean);
        out[8..].copy_from_slice(&self.uuid);
        out
    }

    /// Reads a record.
    ///
    /// # Errors
    /// If the bytes are not a record of this version.
    pub fn decode(bytes: &[u8]) -> Result<ObjectStoreRecord, DecodeError> {
        let mut reader = Reader::new(bytes, OBJECT_VERSION)?;
        let clean = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("clean")),
        };
        reader.reserved::<6>()?;
        let record = ObjectStoreRecord { clean, uuid: reader.array()? };
        reader.end()?;
        Ok(record)
    }
}

/// First bytes of an [`ObjectDirectoryHeader`].
pub const OBJECT_DIRECTORY_MAGIC: [u8; 8] = *b"NACREOST";
/// Format version of object directories that this program writes, and the only one that it reads.
pub const OBJECT_DIRECTORY_VERSION: u32 = 1;
/// Bytes of an encoded [`ObjectDirectoryHeader`].
pub const OBJECT_DIRECTORY_LEN: usize = 128;
/// Longest label in bytes.
pub const OBJECT_LABEL_MAX: usize = LABEL_MAX;

const FORM: Form<OBJECT_DIRECTORY_LEN> =
    Form { magic: OBJECT_DIRECTORY_MAGIC, version: OBJECT_DIRECTORY_VERSION, label_at: 48 };

/// Identity of an object directory: the file `superblock` at its top.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectDirectoryHeader {
    /// Random identity, stored in the index too.
    pub uuid: [u8; 16],
    /// Time of formatting.
    pub created: Timestamp,
    /// Name of the target, such as `nacre-OST0001`: printable ASCII, empty if none was given.
    pub label: String,
    /// The index holds checksums of data ([`SumsRecord`]).
    pub checksums: bool,
}

/// Offset of the flags in the header; bit 0: the index holds checksums.
const FLAGS_AT: usize = 44;
const FLAG_CHECKSUMS: u8 = 1;

/// Why bytes are not a usable header of an object directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ObjectDirectoryError {
    /// Wrong magic: the directory belongs to something else.
    #[error("it does not begin like an object directory's superblock")]
    Foreign,
    /// The magic is right, the rest is damaged.
    #[error("its superblock is damaged: {0}")]
    Damaged(&'static str),
    /// Unknown format version.
    #[error(
        "its format {found} is not the one that this program reads ({OBJECT_DIRECTORY_VERSION}): use the nacre that wrote it"
    )]
    Version {
        /// Version found.
        found: u32,
    },
}

impl From<HeadError> for ObjectDirectoryError {
    fn from(error: HeadError) -> ObjectDirectoryError {
        match error {
            HeadError::Foreign => ObjectDirectoryError::Foreign,
            HeadError::Damaged(what) => ObjectDirectoryError::Damaged(what),
            HeadError::Version { found } => ObjectDirectoryError::Version { found },
        }
    }
}

impl ObjectDirectoryHeader {
    /// Encodes the header. A label longer than [`OBJECT_LABEL_MAX`] is truncated.
    pub fn encode(&self) -> [u8; OBJECT_DIRECTORY_LEN] {
        FORM.encode((&self.uuid, self.created, &self.label), |out| {
            out[FLAGS_AT] = if self.checksums { FLAG_CHECKSUMS } else { 0 };
        })
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// The version is checked before the checksum, so that an unknown format is reported as such.
    pub fn decode(bytes: &[u8]) -> Result<ObjectDirectoryHeader, ObjectDirectoryError> {
        let (Head { uuid, created, label }, bytes) = FORM.decode(bytes)?;
        let flags = bytes[FLAGS_AT];
        if flags & !FLAG_CHECKSUMS != 0 {
            return Err(ObjectDirectoryError::Damaged("flags that are not known"));
        }
        let header = ObjectDirectoryHeader { uuid, created, label, checksums: flags & FLAG_CHECKSUMS != 0 };
        match header.encode() == *bytes {
            true => Ok(header),
            false => Err(ObjectDirectoryError::Damaged("reserved bytes are not zero")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn header() -> ObjectDirectoryHeader {
        ObjectDirectoryHeader {
            uuid: *b"0123456789abcdef",
            created: Timestamp::new(1_700_000_000, 5),
            label: "nacre-OST0001".to_owned(),
            checksums: false,
        }
    }

    #[test]
    fn checksums_of_a_chunk_are_read_back_and_others_refused() {
        let mut sums = SumsRecord::default();
        for (block, sum) in [(0, 7), (63, 0), (64, u32::MAX), (255, 9)] {
            sums.set(block, sum);
        }
        sums.set(3, 1);
        sums.clear(3);
        let bytes = sums.encode();
        assert_eq!(bytes.len(), 36 + 4 * 4);
        assert_eq!(SumsRecord::decode(&bytes), Ok(sums.clone()));
        assert_eq!(
            [0, 1, 3, 63, 64, 255].map(|block| sums.get(block)),
            [Some(7), None, None, Some(0), Some(u32::MAX), Some(9)]
        );
        assert_eq!(SumsRecord::decode(&bytes[..bytes.len() - 1]), Err(DecodeError::Short));
        assert_eq!(SumsRecord::decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Trailing));
        let with = ObjectDirectoryHeader { checksums: true, ..header() };
        assert_eq!(ObjectDirectoryHeader::decode(&with.encode()), Ok(with));
    }

    #[test]
    fn golden_bytes() {
        let object = ObjectRecord { slot: 0x0102_0304 };
        assert_eq!(hex(&object.encode()), "0100000004030201");
        assert_eq!(ObjectRecord::decode(&object.encode()), Ok(object));
        let sequence = SequenceRecord { last_reserved: 0x1ff_ffff };
        assert_eq!(hex(&sequence.encode()), "01000000ffffff01");
        assert_eq!(SequenceRecord::decode(&sequence.encode()), Ok(sequence));
        assert_eq!(hex(&AheadRecord.encode()), "01000000");
        assert_eq!(AheadRecord::decode(&AheadRecord.encode()), Ok(AheadRecord));
        let store = ObjectStoreRecord { uuid: *b"0123456789abcdef", clean: true };
        assert_eq!(hex(&store.encode()), "010100000000000030313233343536373839616263646566");
        assert_eq!(ObjectStoreRecord::decode(&store.encode()), Ok(store));
        let bytes = header().encode();
        assert_eq!(
            hex(&bytes[..64]),
            concat!(
                "4e414352454f53540100000080000000303132333435363738396162636465660",
                "0f153650000000005000000000000006e616372652d4f535430303031000000"
            )
        );
        assert!(bytes[64..OBJECT_DIRECTORY_LEN - 4].iter().all(|&b| b == 0));
        assert_eq!(hex(&bytes[OBJECT_DIRECTORY_LEN - 4..]), "1071ffcf");
        assert_eq!(ObjectDirectoryHeader::decode(&bytes), Ok(header()));
    }

    #[test]
    fn another_format_is_named_before_the_checksum_is_looked_at() {
        let mut bytes = header().encode();
        bytes[8] = 2;
        assert_eq!(ObjectDirectoryHeader::decode(&bytes), Err(ObjectDirectoryError::Version { found: 2 }));
        assert_eq!(ObjectDirectoryHeader::decode(b""), Err(ObjectDirectoryError::Foreign));
        assert!(matches!(
            ObjectDirectoryHeader::decode(&OBJECT_DIRECTORY_MAGIC),
            Err(ObjectDirectoryError::Damaged(_))
        ));
    }

    #[test]
    fn every_flipped_bit_and_every_length_of_a_header_is_noticed() {
        let good = header().encode();
        for bit in 0..OBJECT_DIRECTORY_LEN * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ObjectDirectoryHeader::decode(&bad).is_err(), "bit {bit}");
        }
        for len in 0..OBJECT_DIRECTORY_LEN {
            assert!(ObjectDirectoryHeader::decode(&good[..len]).is_err(), "length {len}");
        }
    }

    proptest! {
        #[test]
        fn headers_survive_a_round_trip(
            uuid: [u8; 16], sec: i64, nsec in 0u32..1_000_000_000, label in "[!-~]{0,48}",
        ) {
            let checksums = sec % 2 == 0;
            let header = ObjectDirectoryHeader { uuid, created: Timestamp::new(sec, nsec), label, checksums };
            prop_assert_eq!(ObjectDirectoryHeader::decode(&header.encode()), Ok(header));
        }
    }
}
