//! What an opening store reads besides its base, from bytes instead of files: for tests with random input and for
//! fuzzing.

use super::batch::Ops;
use super::log::SEGMENTS;
use super::recovery::replay;
use super::superblock::{SUPERBLOCK_LEN, Superblock};
use super::wal::{
    RECORD_HEADER_LEN, SEGMENT_HEADER_LEN, SEGMENT_HEADER_USED, SegmentHeader, crc32c, record_len,
};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Identity of the store that the log belongs to, and its newest transaction in the base.
const UUID: [u8; 16] = *b"0123456789abcdef";
const BASE_TRANSNO: u64 = 6;

/// Decodes a superblock (first byte 0), or replays a log (first byte 1, then the bytes of the first segment as u16,
/// then both segments, without the unused part of their header pages). Both are also read with the right
/// checksums, as damage that those detect reaches no other check.
///
/// # Panics
/// If a decoded superblock does not survive encoding, or the replay counts other transactions than it returns.
pub fn read(bytes: &[u8]) {
    match bytes.split_first() {
        Some((0, rest)) => {
            let mut sealed = rest.to_vec();
            seal(&mut sealed, 12..16, SUPERBLOCK_LEN, 0);
            [rest, &sealed].iter().for_each(|bytes| read_superblock(bytes));
        }
        Some((1, rest)) => {
            let Some((len, rest)) = rest.split_first_chunk() else { return };
            let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
            let (first, second) = rest.split_at(len);
            let mut segments = [segment(first), segment(second)];
            read_log(&segments);
            segments.iter_mut().for_each(|segment| seal_segment(segment));
            read_log(&segments);
        }
        _ => {}
    }
}

fn read_superblock(bytes: &[u8]) {
    if let Ok(superblock) = Superblock::decode(bytes, Path::new("superblock")) {
        assert_eq!(superblock.encode()[..], bytes[..SUPERBLOCK_LEN]);
    }
}

fn read_log(segments: &[Vec<u8>; SEGMENTS]) {
    let paths = ["wal.0", "wal.1"].map(PathBuf::from);
    let Ok((recovered, maps)) = replay(&[&segments[0], &segments[1]], &paths, &UUID, BASE_TRANSNO) else {
        return;
    };
    assert!(recovered.last_transno - BASE_TRANSNO >= recovered.replayed);
    assert!(recovered.replayed > 0 || maps.iter().all(|map| map.is_empty()));
    assert!(recovered.ends.iter().zip(segments).all(|(end, segment)| *end <= segment.len()));
}

/// Returns the segment with its whole header page, in whole records' units as files have.
fn segment(bytes: &[u8]) -> Vec<u8> {
    let (header, records) = bytes.split_at(bytes.len().min(SEGMENT_HEADER_USED));
    let mut segment = header.to_vec();
    segment.resize(SEGMENT_HEADER_LEN, 0);
    segment.extend_from_slice(records);
    segment.resize(segment.len().next_multiple_of(8), 0);
    segment
}

/// Sets the checksum in `at` to that of the first `len` bytes with zeros in its place, mixed with `salt`.
fn seal(bytes: &mut [u8], at: Range<usize>, len: usize, salt: u32) {
    let Some(bytes) = bytes.get_mut(..len) else { return };
    bytes[at.clone()].fill(0);
    let crc = crc32c(bytes) ^ salt;
    bytes[at].copy_from_slice(&crc.to_le_bytes());
}

/// Gives header and records their checksums, and the records their segment and numbers of operations.
fn seal_segment(segment: &mut [u8]) {
    seal(segment, 12..16, SEGMENT_HEADER_USED, 0);
    let Some(header) = SegmentHeader::decode(segment) else { return };
    let mut rest = &mut segment[SEGMENT_HEADER_LEN..];
    while let Some(len) = rest.get(4..8).and_then(|len| len.try_into().ok()).map(u32::from_le_bytes) {
        let len = len as usize;
        let Some(body) = rest.get(RECORD_HEADER_LEN..RECORD_HEADER_LEN + len) else { return };
        let (crc, count) = (crc32c(body), Ops::new(body).count() as u32);
        rest[24..28].copy_from_slice(&(header.sequence as u32).to_le_bytes());
        rest[28..32].copy_from_slice(&crc.to_le_bytes());
        rest[32..36].copy_from_slice(&count.to_le_bytes());
        let crc = crc32c(&rest[..36]) ^ header.salt();
        rest[36..40].copy_from_slice(&crc.to_le_bytes());
        rest = &mut rest[record_len(len)..];
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/mutate.rs"]
mod mutate;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::wal::RecordHeader;
    use crate::meta::{Batch, Table};

    /// A segment with three records.
    fn encoded(sequence: u64, base_transno: u64) -> Vec<u8> {
        let header = SegmentHeader { uuid: UUID, sequence, base_transno, durable_transno: 5 };
        let mut bytes = header.encode().to_vec();
        for transno in base_transno + 1..=base_transno + 3 {
            let mut batch = Batch::new();
            batch.put(Table(1), b"name", b"value");
            batch.put(Table(3), &transno.to_be_bytes(), &[7; 40]);
            batch.delete(Table(2), b"gone");
            let record = RecordHeader {
                body_len: batch.bytes.len() as u32,
                transno,
                durable_transno: 5,
                sequence: sequence as u32,
                body_crc: crc32c(&batch.bytes),
                op_count: 3,
            };
            let end = bytes.len() + record_len(batch.bytes.len());
            bytes.extend(record.encode(header.salt()));
            bytes.extend(&batch.bytes);
            bytes.resize(end, 0);
        }
        bytes
    }

    #[test]
    fn mutated_superblocks_and_logs_never_panic() {
        let superblock = Superblock { uuid: UUID, wal_segment_bytes: 64 << 20 };
        let log = |first: Vec<u8>, second: Vec<u8>| {
            [&[1][..], &(first.len() as u16).to_le_bytes(), &first, &second].concat()
        };
        let valid = [
            [&[0][..], &superblock.encode()].concat(),
            log(encoded(2, 6), encoded(3, 9)),
            log(encoded(5, 9), encoded(4, 6)),
            log(encoded(2, 0), encoded(3, 20)),
        ];
        mutate::exercise("store", &valid, 60_000, read);
    }
}
