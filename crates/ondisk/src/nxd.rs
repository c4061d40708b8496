//! Records of the cache of small writes: its device, the batches of its log, and the mark in the store that
//! it caches.
//!
//! Byte tables and the invariants between them: `docs/formats/nxd.md`.

use crate::codec::{DecodeError, Reader, crc32c};
use nacre_types::Fid;
use nacre_types::Timestamp;

/// Format version of superblocks and batches that is written; version 1 is read too.
pub const NXD_VERSION: u8 = 2;
/// Format version of marks.
pub const NXD_MARK_VERSION: u8 = 1;
/// First bytes of a [`NxdSuperblock`].
pub const NXD_MAGIC: [u8; 8] = *b"NACRENXD";
/// First bytes of a [`NxdBatch`].
pub const NXD_BATCH_MAGIC: [u8; 8] = *b"NACRENXB";
/// First bytes of a [`NxdMark`].
pub const NXD_MARK_MAGIC: [u8; 8] = *b"NACRENXM";
/// Bytes of a [`NxdSuperblock`].
pub const NXD_SUPERBLOCK_LEN: usize = 96;
/// Bytes of the header of a batch; its data follows.
pub const NXD_HEADER_LEN: usize = 4096;
/// Most entries in a batch.
pub const NXD_ENTRIES_MAX: usize = (NXD_HEADER_LEN - FIXED_LEN) / ENTRY_LEN;
/// Longest path in a [`NxdMark`].
const PATH_MAX: usize = 4096;

const FIXED_LEN: usize = 64;
const ENTRY_LEN: usize = 64;
const KIND_DATA: u8 = 1;
const KIND_FORGET: u8 = 2;

/// Why bytes are not a usable record of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NxdError {
    /// Wrong magic: the bytes belong to something else.
    #[error("it does not begin like a cache of small writes")]
    Foreign,
    /// The magic is right, the rest is damaged.
    #[error("its superblock is damaged")]
    Damaged,
    /// Unknown format version, or a field with an impossible value.
    #[error("{0}")]
    Record(#[from] DecodeError),
}

/// Superblock of a cache's device, stored in its first and its last block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NxdSuperblock {
    /// Random identity of the cache.
    pub cache: [u8; 16],
    /// Identity of the store that is cached.
    pub store: [u8; 16],
    /// Size of the device in bytes when it was formatted.
    pub size: u64,
    /// Incremented with each write of the superblock.
    pub counter: u64,
    /// Incremented each time the cache is opened.
    pub epoch: u64,
    /// Start of the live log, in blocks of 4 KiB since the creation of the cache.
    pub tail: u64,
    /// Position up to which the log was durable; 0 if unknown.
    pub durable: u64,
}

/// An entry of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NxdEntry {
    /// Data of an object.
    Data {
        /// The object.
        object: Fid,
        /// Offset in the object in bytes.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Offset of the data in the batch in bytes.
        at: u32,
        /// CRC-32C of the data.
        crc: u32,
        /// Time of the write.
        mtime: Timestamp,
    },
    /// Invalidates a range of an object in earlier batches and entries.
    Forget {
        /// The object.
        object: Fid,
        /// First byte of the range.
        offset: u64,
        /// Byte after the range; `u64::MAX` for no limit.
        end: u64,
    },
}

/// Header of a batch: the unit in which the log is written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NxdBatch {
    /// Identity of the cache; batches of an earlier cache on the device have another.
    pub cache: [u8; 16],
    /// Epoch of the superblock at the time of the write.
    pub epoch: u64,
    /// Start of the batch, in blocks of 4 KiB since the creation of the cache.
    pub position: u64,
    /// Position up to which the log was durable before this write; 0 if unknown.
    pub durable: u64,
    /// Blocks of header and data, of 4 KiB each.
    pub blocks: u32,
    /// Entries, oldest first: a later one overrides an earlier one.
    pub entries: Vec<NxdEntry>,
}

/// File in the directory of a store that names the cache in front of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NxdMark {
    /// Identity of the cache.
    pub cache: [u8; 16],
    /// Identity of the store.
    pub store: [u8; 16],
    /// The cache may hold data that the store does not have.
    pub is_dirty: bool,
    /// Time of the last change of `is_dirty`.
    pub changed: Timestamp,
    /// Size of the device in bytes.
    pub size: u64,
    /// Path of the device.
    pub device: String,
}

/// Sets the last four bytes to the checksum of all bytes before them.
fn seal(bytes: &mut [u8]) {
    let at = bytes.len() - 4;
    let crc = crc32c(&bytes[..at]);
    bytes[at..].copy_from_slice(&crc.to_le_bytes());
}

/// Checks magic, version and the checksum in the last four bytes, in this order. Returns a reader behind the
/// version, and the version.
fn unseal<'a>(bytes: &'a [u8], magic: &[u8; 8], newest: u8) -> Result<(Reader<'a>, u8), NxdError> {
    let rest = bytes.strip_prefix(magic.as_slice()).ok_or(NxdError::Foreign)?;
    let version = *rest.first().ok_or(NxdError::Damaged)?;
    if !(1..=newest).contains(&version) {
        return Err(DecodeError::Version { found: version, known: newest }.into());
    }
    let (body, crc) = bytes.split_last_chunk::<4>().ok_or(NxdError::Damaged)?;
    if crc32c(body) != u32::from_le_bytes(*crc) || body.len() < magic.len() {
        return Err(NxdError::Damaged);
    }
    Ok((Reader::new(&body[magic.len()..], version)?, version))
}

/// Reads a durable position, which version 1 does not have, and the reserved bytes behind it.
fn durable_position(reader: &mut Reader<'_>, version: u8) -> Result<u64, DecodeError> {
    if version == 1 {
        reader.reserved::<12>()?;
        return Ok(0);
    }
    let durable = reader.u64()?;
    reader.reserved::<4>()?;
    Ok(durable)
}

/// Returns the CRC-32C of the data of an entry.
pub fn data_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes)
}

impl NxdSuperblock {
    /// Encodes the superblock.
    pub fn encode(&self) -> [u8; NXD_SUPERBLOCK_LEN] {
        let mut out = Vec::with_capacity(NXD_SUPERBLOCK_LEN);
        out.extend_from_slice(&NXD_MAGIC);
        out.extend_from_slice(&[NXD_VERSION, 0, 0, 0, 0, 0, 0, 0]);
        out.extend_from_slice(&self.cache);
        out.extend_from_slice(&self.store);
        for field in [self.size, self.counter, self.epoch, self.tail, self.durable] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        let mut bytes = [0; NXD_SUPERBLOCK_LEN];
        bytes[..out.len()].copy_from_slice(&out);
        seal(&mut bytes);
        bytes
    }

    /// Decodes a superblock.
    ///
    /// # Errors
    /// The version is checked before the checksum, so that an unknown format is reported as such.
    pub fn decode(bytes: &[u8]) -> Result<NxdSuperblock, NxdError> {
        let bytes = bytes.get(..NXD_SUPERBLOCK_LEN).ok_or(NxdError::Foreign)?;
        let (mut reader, version) = unseal(bytes, &NXD_MAGIC, NXD_VERSION)?;
        reader.reserved::<7>()?;
        let (cache, store) = (reader.array()?, reader.array()?);
        let superblock = NxdSuperblock {
            cache,
            store,
            size: reader.u64()?,
            counter: reader.u64()?,
            epoch: reader.u64()?,
            tail: reader.u64()?,
            durable: durable_position(&mut reader, version)?,
        };
        reader.end()?;
        Ok(superblock)
    }
}

impl NxdEntry {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, at, object, offset, second, mtime, crc) = match *self {
            NxdEntry::Data { object, offset, len, at, crc, mtime } => {
                (KIND_DATA, at, object, offset, u64::from(len), mtime, crc)
            }
            NxdEntry::Forget { object, offset, end } => {
                (KIND_FORGET, 0, object, offset, end, Timestamp::default(), 0)
            }
        };
        out.extend_from_slice(&[kind, 0, 0, 0]);
        out.extend_from_slice(&at.to_le_bytes());
        out.extend_from_slice(&object.to_le_bytes());
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&second.to_le_bytes());
        out.extend_from_slice(&mtime.sec.to_le_bytes());
        out.extend_from_slice(&mtime.nsec.to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
    }

    fn decode(reader: &mut Reader<'_>, batch_len: u64) -> Result<NxdEntry, DecodeError> {
        let kind = reader.u8()?;
        reader.reserved::<3>()?;
        let at = reader.u32()?;
        let (object, offset, second) = (reader.fid()?, reader.u64()?, reader.u64()?);
        let (sec, nsec, crc) = (reader.i64()?, reader.u32()?, reader.u32()?);
        reader.reserved::<8>()?;
        if nsec >= 1_000_000_000 {
            return Err(DecodeError::Field("nanoseconds"));
        }
        match kind {
            KIND_DATA => {
                let len = u32::try_from(second).map_err(|_| DecodeError::Field("length"))?;
                let is_inside = u64::from(at) >= NXD_HEADER_LEN as u64 && u64::from(at) + second <= batch_len;
                if len == 0 || !is_inside || offset.checked_add(second).is_none() {
                    return Err(DecodeError::Field("range"));
                }
                Ok(NxdEntry::Data { object, offset, len, at, crc, mtime: Timestamp::new(sec, nsec) })
            }
            KIND_FORGET if at == 0 && crc == 0 && sec == 0 && nsec == 0 && offset < second => {
                Ok(NxdEntry::Forget { object, offset, end: second })
            }
            _ => Err(DecodeError::Field("kind")),
        }
    }
}

impl NxdBatch {
    /// Encodes the header. The caller limits the entries to [`NXD_ENTRIES_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        debug_assert!(self.entries.len() <= NXD_ENTRIES_MAX);
        let mut out = Vec::with_capacity(NXD_HEADER_LEN);
        out.extend_from_slice(&NXD_BATCH_MAGIC);
        out.extend_from_slice(&[NXD_VERSION, 0]);
        out.extend_from_slice(&(self.entries.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.cache);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.durable.to_le_bytes());
        // Reserved bytes up to the table of entries; the checksum is at the end of the header.
        out.extend_from_slice(&[0; FIXED_LEN - 4 - 56]);
        for entry in &self.entries {
            entry.encode(&mut out);
        }
        out.resize(NXD_HEADER_LEN, 0);
        seal(&mut out);
        out
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// If the bytes are not a header of a known version, are damaged, or have a field with an impossible
    /// value.
    pub fn decode(bytes: &[u8]) -> Result<NxdBatch, NxdError> {
        let bytes = bytes.get(..NXD_HEADER_LEN).ok_or(NxdError::Foreign)?;
        let (mut reader, version) = unseal(bytes, &NXD_BATCH_MAGIC, NXD_VERSION)?;
        reader.reserved::<1>()?;
        let count = usize::from(reader.u16()?);
        let blocks = reader.u32()?;
        let cache = reader.array()?;
        let (epoch, position) = (reader.u64()?, reader.u64()?);
        let durable = durable_position(&mut reader, version)?;
        if count > NXD_ENTRIES_MAX || blocks == 0 {
            return Err(DecodeError::Field("count").into());
        }
        let batch_len = u64::from(blocks) * NXD_HEADER_LEN as u64;
        let entries = (0..count).map(|_| NxdEntry::decode(&mut reader, batch_len));
        let entries = entries.collect::<Result<Vec<NxdEntry>, DecodeError>>()?;
        if reader.remainder().iter().any(|byte| *byte != 0) {
            return Err(DecodeError::Trailing.into());
        }
        Ok(NxdBatch { cache, epoch, position, durable, blocks, entries })
    }

    /// Returns the entries that a damaged header still seems to have, up to the first invalid one. They are a
    /// hint at the lost ranges and must not be used as data.
    pub fn entries_of_damaged(bytes: &[u8]) -> Vec<NxdEntry> {
        let Some(bytes) = bytes.get(..NXD_HEADER_LEN) else { return Vec::new() };
        let batch_len = u64::from(u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]))
            .saturating_mul(NXD_HEADER_LEN as u64);
        let entry = |bytes: &[u8]| {
            let bytes = [&[NXD_VERSION], bytes].concat();
            let mut reader = Reader::new(&bytes, NXD_VERSION).ok()?;
            NxdEntry::decode(&mut reader, batch_len).ok()
        };
        let table = &bytes[FIXED_LEN - 4..NXD_HEADER_LEN - 4];
        table.chunks_exact(ENTRY_LEN).map_while(entry).take(NXD_ENTRIES_MAX).collect()
    }
}

impl NxdMark {
    /// Encodes the mark.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(88 + self.device.len());
        out.extend_from_slice(&NXD_MARK_MAGIC);
        out.extend_from_slice(&[NXD_MARK_VERSION, u8::from(self.is_dirty), 0, 0]);
        out.extend_from_slice(&self.changed.nsec.to_le_bytes());
        out.extend_from_slice(&self.changed.sec.to_le_bytes());
        out.extend_from_slice(&self.cache);
        out.extend_from_slice(&self.store);
        out.extend_from_slice(&self.size.to_le_bytes());
        out.extend_from_slice(self.device.as_bytes());
        out.extend_from_slice(&[0; 4]);
        seal(&mut out);
        out
    }

    /// Decodes a mark.
    ///
    /// # Errors
    /// As [`NxdSuperblock::decode`].
    pub fn decode(bytes: &[u8]) -> Result<NxdMark, NxdError> {
        let (mut reader, _) = unseal(bytes, &NXD_MARK_MAGIC, NXD_MARK_VERSION)?;
        let is_dirty = match reader.u8()? {
            0 => false,
            1 => true,
            _ => return Err(DecodeError::Field("state").into()),
        };
        reader.reserved::<2>()?;
        let nsec = reader.u32()?;
        if nsec >= 1_000_000_000 {
            return Err(DecodeError::Field("nanoseconds").into());
        }
        let changed = Timestamp::new(reader.i64()?, nsec);
        let (cache, store, size) = (reader.array()?, reader.array()?, reader.u64()?);
        let device = std::str::from_utf8(reader.remainder()).map_err(|_| DecodeError::Field("path"))?;
        if device.len() > PATH_MAX || device.contains('\0') {
            return Err(DecodeError::Field("path").into());
        }
        Ok(NxdMark { cache, store, is_dirty, changed, size, device: device.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> NxdSuperblock {
        NxdSuperblock {
            cache: *b"0123456789abcdef",
            store: *b"ghijklmnopqrstuv",
            size: 1 << 30,
            counter: 2,
            epoch: 3,
            tail: 4,
            durable: 6,
        }
    }

    fn batch() -> NxdBatch {
        let object = Fid::new(0x1_0000_0400, 7, 0);
        let mtime = Timestamp::new(1_700_000_000, 5);
        NxdBatch {
            cache: *b"0123456789abcdef",
            epoch: 3,
            position: 4,
            durable: 2,
            blocks: 2,
            entries: vec![
                NxdEntry::Data { object, offset: 8192, len: 4096, at: 4096, crc: 0xdead_beef, mtime },
                NxdEntry::Forget { object, offset: 1, end: u64::MAX },
            ],
        }
    }

    fn mark() -> NxdMark {
        NxdMark {
            cache: *b"0123456789abcdef",
            store: *b"ghijklmnopqrstuv",
            is_dirty: true,
            changed: Timestamp::new(1_700_000_000, 5),
            size: 1 << 30,
            device: "/dev/nvme0n1".to_owned(),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn the_bytes_of_each_record_stay_what_they_are() {
        assert_eq!(
            hex(&superblock().encode()),
            "4e414352454e58440200000000000000303132333435363738396162636465666768696a6b6c6d6e6f7071727374757600000040000000000200000000000000030000000000000004000000000000000600000000000000000000004fd2d932"
        );
        let bytes = batch().encode();
        assert_eq!(bytes.len(), NXD_HEADER_LEN);
        assert!(bytes[192..4092].iter().all(|byte| *byte == 0));
        assert_eq!(
            hex(&[&bytes[..192], &bytes[4092..]].concat()),
            "4e414352454e5842020002000200000030313233343536373839616263646566030000000000000004000000000000000200000000000000000000000100000000100000000400000100000007000000000000000020000000000000001000000000000000f153650000000005000000efbeadde00000000000000000200000000000000000400000100000007000000000000000100000000000000ffffffffffffffff00000000000000000000000000000000000000000000000000000000f2b7fc52"
        );
        assert_eq!(
            hex(&mark().encode()),
            "4e414352454e584d010100000500000000f1536500000000303132333435363738396162636465666768696a6b6c6d6e6f7071727374757600000040000000002f6465762f6e766d65306e3147387fd4"
        );
    }

    /// Converts a record with a checksum at its end to version 1, which has reserved bytes where version 2
    /// has the durable position.
    fn as_version_1(mut bytes: Vec<u8>, position: usize) -> Vec<u8> {
        bytes[8] = 1;
        bytes[position..position + 8].fill(0);
        seal(&mut bytes);
        bytes
    }

    #[test]
    fn records_of_version_1_are_read_and_tell_of_no_durable_position() {
        let old = as_version_1(superblock().encode().to_vec(), 80);
        assert_eq!(
            hex(&old),
            "4e414352454e58440100000000000000303132333435363738396162636465666768696a6b6c6d6e6f7071727374757600000040000000000200000000000000030000000000000004000000000000000000000000000000000000002a443ab1"
        );
        assert_eq!(NxdSuperblock::decode(&old), Ok(NxdSuperblock { durable: 0, ..superblock() }));
        let old = as_version_1(batch().encode(), 48);
        assert_eq!(
            hex(&[&old[..192], &old[4092..]].concat()),
            "4e414352454e5842010002000200000030313233343536373839616263646566030000000000000004000000000000000000000000000000000000000100000000100000000400000100000007000000000000000020000000000000001000000000000000f153650000000005000000efbeadde00000000000000000200000000000000000400000100000007000000000000000100000000000000ffffffffffffffff00000000000000000000000000000000000000000000000000000000d097f48e"
        );
        assert_eq!(NxdBatch::decode(&old), Ok(NxdBatch { durable: 0, ..batch() }));
        for (mut bytes, at) in [(superblock().encode().to_vec(), 88), (batch().encode(), 56)] {
            bytes[at] = 1;
            seal(&mut bytes);
            let (first, second) = (NxdSuperblock::decode(&bytes), NxdBatch::decode(&bytes));
            assert!(first.is_err() && second.is_err(), "reserved bytes are checked");
        }
    }

    #[test]
    fn a_damaged_header_still_tells_of_the_entries_that_can_be() {
        let mut bytes = batch().encode();
        bytes[30] ^= 1;
        assert_eq!(NxdBatch::entries_of_damaged(&bytes), batch().entries);
        bytes[60 + 64] ^= 0x80;
        assert_eq!(NxdBatch::entries_of_damaged(&bytes), batch().entries[..1]);
        assert_eq!(NxdBatch::entries_of_damaged(&[0; NXD_HEADER_LEN]), []);
        assert_eq!(NxdBatch::entries_of_damaged(&[1; 100]), []);
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        assert_eq!(NxdSuperblock::decode(&superblock().encode()), Ok(superblock()));
        assert_eq!(NxdBatch::decode(&batch().encode()), Ok(batch()));
        assert_eq!(NxdMark::decode(&mark().encode()), Ok(mark()));
        let clean = NxdMark { is_dirty: false, device: String::new(), ..mark() };
        assert_eq!(NxdMark::decode(&clean.encode()), Ok(clean));
        let entry = batch().entries[0];
        let full = NxdBatch { entries: vec![entry; NXD_ENTRIES_MAX], ..batch() };
        assert_eq!(NxdBatch::decode(&full.encode()), Ok(full));
    }

    #[test]
    fn another_format_is_named() {
        let mut bytes = superblock().encode();
        bytes[8] = 9;
        assert_eq!(
            NxdSuperblock::decode(&bytes),
            Err(NxdError::Record(DecodeError::Version { found: 9, known: NXD_VERSION }))
        );
        assert_eq!(NxdSuperblock::decode(&[0; 96]), Err(NxdError::Foreign));
        assert_eq!(NxdBatch::decode(&superblock().encode()), Err(NxdError::Foreign));
    }

    #[test]
    fn entries_that_lie_outside_of_their_batch_are_refused() {
        for (at, len) in [(0, 10), (4096, 4097), (8191, 2), (u32::MAX, 1), (4096, 0)] {
            let mut wrong = batch();
            if let NxdEntry::Data { at: place, len: length, .. } = &mut wrong.entries[0] {
                (*place, *length) = (at, len);
            }
            assert!(NxdBatch::decode(&wrong.encode()).is_err(), "{at} {len}");
        }
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_found(bit in 0usize..NXD_SUPERBLOCK_LEN * 8, other in 0usize..NXD_HEADER_LEN * 8) {
            let mut bytes = superblock().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(NxdSuperblock::decode(&bytes).is_err());
            let mut bytes = batch().encode();
            bytes[other / 8] ^= 1 << (other % 8);
            prop_assert!(NxdBatch::decode(&bytes).is_err());
            let mut bytes = mark().encode();
            let bit = bit % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(NxdMark::decode(&bytes).is_err());
        }
    }
}
