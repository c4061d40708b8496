//! Bytes of the write-ahead log: segment header and record. Pure encoding; specified in
//! `docs/formats/metadata-store.md`.
//!
//! Each checksum of a header is mixed with a salt made of the store's uuid and the segment's sequence number,
//! so that bytes of an earlier use of the segment, of another store, or inside a user's value are never taken
//! for a record.

use super::batch::Ops;

/// Version of superblock, log and base together; raised when any of them changes.
pub(crate) const FORMAT_VERSION: u32 = 1;
/// First byte of the first record: the header has a page of its own.
pub(crate) const SEGMENT_HEADER_LEN: usize = 4096;
/// Used bytes of the segment header; the rest of its page is zero.
pub(crate) const SEGMENT_HEADER_USED: usize = 64;
/// Bytes before the body of a record.
pub(crate) const RECORD_HEADER_LEN: usize = 40;
/// Records start at multiples of this.
pub(crate) const RECORD_ALIGN: usize = 8;

const SEGMENT_MAGIC: [u8; 8] = *b"NACREWAL";
const RECORD_MAGIC: [u8; 4] = *b"NREC";

/// Returns the CRC-32C (Castagnoli).
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Returns the bytes that a record with this body occupies in the log, padding included.
pub(crate) const fn record_len(body_len: usize) -> usize {
    (RECORD_HEADER_LEN + body_len).next_multiple_of(RECORD_ALIGN)
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

/// Content of a segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Identity of the store.
    pub(crate) uuid: [u8; 16],
    /// Grows by one with every use of a segment file; distinguishes old bytes from new ones.
    pub(crate) sequence: u64,
    /// Newest transaction before the first record of this segment.
    pub(crate) base_transno: u64,
    /// Newest transaction known to be durable at the beginning of the segment.
    pub(crate) durable_transno: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_USED] {
        let mut bytes = [0; SEGMENT_HEADER_USED];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.uuid);
        bytes[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.base_transno.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.durable_transno.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not one of this format version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut copy: [u8; SEGMENT_HEADER_USED] = *bytes.first_chunk()?;
        let crc = u32_at(&copy, 12);
        copy[12..16].fill(0);
        if copy[..8] != SEGMENT_MAGIC || crc32c(&copy) != crc || u32_at(&copy, 8) != FORMAT_VERSION {
            return None;
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&copy[16..32]);
        Some(SegmentHeader {
            uuid,
            sequence: u64_at(&copy, 32),
            base_transno: u64_at(&copy, 40),
            durable_transno: u64_at(&copy, 48),
        })
    }

    /// Returns the salt that the checksums of this segment's records are mixed with.
    pub(crate) fn salt(&self) -> u32 {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(&self.uuid);
        bytes[16..].copy_from_slice(&self.sequence.to_le_bytes());
        crc32c(&bytes)
    }
}

/// The fixed part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub(crate) body_len: u32,
    pub(crate) transno: u64,
    /// Newest transaction known to be durable when the record was written: evidence that a damaged record
    /// before it was durable.
    pub(crate) durable_transno: u64,
    /// Low half of the segment's sequence number.
    pub(crate) sequence: u32,
    pub(crate) body_crc: u32,
    pub(crate) op_count: u32,
}

impl RecordHeader {
    pub(crate) fn encode(&self, salt: u32) -> [u8; RECORD_HEADER_LEN] {
        let mut bytes = [0; RECORD_HEADER_LEN];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4..8].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.transno.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.durable_transno.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.op_count.to_le_bytes());
        let crc = crc32c(&bytes[..36]) ^ salt;
        bytes[36..40].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// A record that passed all checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) transno: u64,
    pub(crate) durable_transno: u64,
    /// Encoded operations, well formed.
    pub(crate) body: &'a [u8],
}

impl Record<'_> {
    /// Returns the offset from here to the next record.
    pub(crate) fn len(&self) -> usize {
        record_len(self.body.len())
    }
}

/// Decodes the record at the start of `bytes`; `None` if there is no valid record of the segment `sequence`.
pub(crate) fn decode_record(bytes: &[u8], sequence: u64, salt: u32) -> Option<Record<'_>> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER_LEN>()?;
    if header[..4] != RECORD_MAGIC
        || u32_at(header, 24) != sequence as u32
        || u32_at(header, 36) != crc32c(&header[..36]) ^ salt
    {
        return None;
    }
    let body = rest.get(..u32_at(header, 4) as usize)?;
    if crc32c(body) != u32_at(header, 28) {
        return None;
    }
    let mut ops = Ops::new(body);
    let count = ops.by_ref().count();
    if !ops.is_at_end() || count != u32_at(header, 32) as usize {
        return None;
    }
    Some(Record { transno: u64_at(header, 8), durable_transno: u64_at(header, 16), body })
}

/// Walks the records of one segment from a byte offset; ends at the first invalid one.
pub(crate) struct Records<'a> {
    segment: &'a [u8],
    sequence: u64,
    salt: u32,
    /// Offset of the next record.
    pub(crate) offset: usize,
    last_transno: u64,
}

impl<'a> Records<'a> {
    /// Creates the walk over all records of `segment` (header page included), which must carry `header`.
    pub(crate) fn new(segment: &'a [u8], header: &SegmentHeader) -> Self {
        Records {
            segment,
            sequence: header.sequence,
            salt: header.salt(),
            offset: SEGMENT_HEADER_LEN,
            last_transno: header.base_transno,
        }
    }

    /// Whether, after the walk has ended, a later record, which begins before `data_end`, proves that a transaction
    /// newer than `last_transno` was durable.
    pub(crate) fn proves_loss_after(&self, last_transno: u64, data_end: usize) -> bool {
        let mut offset = self.offset;
        while offset < data_end
            && let Some(rest) = self.segment.get(offset..)
            && rest.len() >= RECORD_HEADER_LEN
        {
            if let Some(record) = decode_record(rest, self.sequence, self.salt)
                && record.durable_transno > last_transno
            {
                return true;
            }
            offset += RECORD_ALIGN;
        }
        false
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let record = decode_record(self.segment.get(self.offset..)?, self.sequence, self.salt)?;
        if record.transno <= self.last_transno {
            return None;
        }
        self.last_transno = record.transno;
        self.offset += record.len();
        Some(record)
    }
}
