//! The exact bytes of the format. A change of a golden string is a change of format: raise FORMAT_VERSION and
//! edit docs/formats/metadata-store.md.

use std::path::PathBuf;

use super::super::batch::{Batch, Ops};
use super::super::log::SEGMENTS;
use super::super::recovery::replay;
use super::super::superblock::Superblock;
use super::super::wal::{
    RecordHeader, Records, SEGMENT_HEADER_LEN, SegmentHeader, crc32c, decode_record, record_len,
};
use crate::meta::Table;

const UUID: [u8; 16] = *b"0123456789abcdef";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(sequence: u64) -> SegmentHeader {
    SegmentHeader { uuid: UUID, sequence, base_transno: 6, durable_transno: 5 }
}

fn sample_batch() -> Batch {
    let mut batch = Batch::new();
    batch.put(Table(1), b"name", b"value");
    batch.delete(Table(2), b"gone");
    batch
}

/// Returns a record as the log writes it, padding included.
fn record(batch: &Batch, transno: u64, durable_transno: u64, segment: &SegmentHeader) -> Vec<u8> {
    let header = RecordHeader {
        body_len: batch.bytes.len() as u32,
        transno,
        durable_transno,
        sequence: segment.sequence as u32,
        body_crc: crc32c(&batch.bytes),
        op_count: batch.len() as u32,
    };
    let mut bytes = header.encode(segment.salt()).to_vec();
    bytes.extend_from_slice(&batch.bytes);
    bytes.resize(record_len(batch.bytes.len()), 0);
    bytes
}

#[test]
fn checksum_is_crc32c() {
    // The check value of the catalogue of parametrised CRC algorithms, CRC-32/ISCSI.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn superblock_bytes_are_as_specified() {
    let superblock = Superblock { uuid: UUID, wal_segment_bytes: 64 << 20 };
    let bytes = superblock.encode();
    assert_eq!(hex(&bytes), SUPERBLOCK);
    assert_eq!(Superblock::decode(&bytes, "x".as_ref()).unwrap(), superblock);
}

#[test]
fn segment_header_bytes_are_as_specified() {
    let bytes = header(0x1_0000_0002).encode();
    assert_eq!(hex(&bytes), SEGMENT_HEADER);
    assert_eq!(SegmentHeader::decode(&bytes), Some(header(0x1_0000_0002)));
}

#[test]
fn record_bytes_are_as_specified() {
    let segment = header(0x1_0000_0002);
    let bytes = record(&sample_batch(), 7, 5, &segment);
    assert_eq!(hex(&bytes), RECORD);
    let decoded = decode_record(&bytes, segment.sequence, segment.salt()).unwrap();
    assert_eq!((decoded.transno, decoded.durable_transno, decoded.len()), (7, 5, bytes.len()));
    let ops: Vec<_> = Ops::new(decoded.body).map(|op| (op.full_key, op.value)).collect();
    assert_eq!(ops, [(&b"\x01name"[..], Some(&b"value"[..])), (&b"\x02gone"[..], None)]);
}

#[test]
fn record_of_another_use_of_the_segment_is_not_taken() {
    let (old, new) = (header(2), header(4));
    let bytes = record(&sample_batch(), 7, 5, &old);
    assert!(decode_record(&bytes, new.sequence, new.salt()).is_none());
    let foreign = SegmentHeader { uuid: [1; 16], ..old };
    assert!(decode_record(&bytes, old.sequence, foreign.salt()).is_none());
    // The same low half of the sequence number: the salt still distinguishes them.
    let later = header(2 + (1 << 32));
    assert!(decode_record(&bytes, later.sequence, later.salt()).is_none());
}

#[test]
fn flipped_bit_anywhere_makes_a_record_or_header_invalid() {
    let segment = header(2);
    let good = record(&sample_batch(), 7, 5, &segment);
    let used = 40 + sample_batch().bytes.len();
    for bit in 0..used * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(decode_record(&bytes, segment.sequence, segment.salt()).is_none(), "bit {bit}");
    }
    for bit in 0..64 * 8 {
        let mut bytes = segment.encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&bytes).is_none(), "bit {bit}");
    }
}

#[test]
fn damage_before_a_record_that_knew_it_durable_is_corruption_and_a_torn_tail_is_not() {
    let paths: [PathBuf; SEGMENTS] = [PathBuf::from("wal.0"), PathBuf::from("wal.1")];
    let idle = SegmentHeader { sequence: 1, base_transno: 0, durable_transno: 0, uuid: UUID };
    let segment = header(2);
    let build = |durable_of_last: u64| {
        let mut bytes = segment.encode().to_vec();
        bytes.resize(SEGMENT_HEADER_LEN, 0);
        for transno in 7..=9 {
            bytes.extend(record(
                &sample_batch(),
                transno,
                if transno == 9 { durable_of_last } else { 6 },
                &segment,
            ));
        }
        let second = SEGMENT_HEADER_LEN + record_len(sample_batch().bytes.len());
        bytes[second + 45] ^= 1;
        bytes.resize(8192, 0);
        bytes
    };
    let mut old = idle.encode().to_vec();
    old.resize(8192, 0);
    let torn = replay(&[&old, &build(7)], &paths, &UUID, 6).unwrap();
    assert_eq!(torn.0.last_transno, 7);
    let error = replay(&[&old, &build(8)], &paths, &UUID, 6).err().unwrap().to_string();
    assert!(error.starts_with("metadata store damaged: log record in wal.1 at offset"), "{error}");
}

#[test]
fn segment_that_follows_lost_records_is_dropped_unless_they_had_been_durable() {
    let paths: [PathBuf; SEGMENTS] = [PathBuf::from("wal.0"), PathBuf::from("wal.1")];
    let first = header(2);
    let mut old = first.encode().to_vec();
    old.resize(SEGMENT_HEADER_LEN, 0);
    old.extend(record(&sample_batch(), 7, 6, &first));
    old.resize(8192, 0);
    for (durable, is_damage) in [(7, false), (8, true)] {
        let next = SegmentHeader { uuid: UUID, sequence: 3, base_transno: 9, durable_transno: durable };
        let mut new = next.encode().to_vec();
        new.resize(SEGMENT_HEADER_LEN, 0);
        new.extend(record(&sample_batch(), 10, durable, &next));
        new.resize(8192, 0);
        match replay(&[&new, &old], &paths, &UUID, 6) {
            Ok((recovered, _)) => assert!(!is_damage && recovered.last_transno == 7),
            Err(error) => assert!(is_damage && error.to_string().contains("missing before"), "{error}"),
        }
    }
}

#[test]
fn walk_stops_at_the_end_of_the_segment() {
    let segment = header(2);
    let mut bytes = segment.encode().to_vec();
    bytes.resize(SEGMENT_HEADER_LEN, 0);
    let one = record(&sample_batch(), 7, 5, &segment);
    bytes.extend(&one);
    // The second record is cut by the end of the file.
    bytes.extend(&record(&sample_batch(), 8, 5, &segment)[..one.len() - 8]);
    let mut records = Records::new(&bytes, &segment);
    assert_eq!(records.by_ref().count(), 1);
    assert_eq!(records.offset, SEGMENT_HEADER_LEN + one.len());
    assert!(!records.proves_loss_after(7, usize::MAX));
}

const SUPERBLOCK: &str = "4e414352454b56000100000023d29d6430313233343536373839616263646566\
    0000000400000000000000000000000000000000000000000000000000000000";
const SEGMENT_HEADER: &str = "4e4143524557414c01000000ca931b8430313233343536373839616263646566\
    0200000001000000060000000000000005000000000000000000000000000000";
const RECORD: &str = "4e5245431f0000000700000000000000050000000000000002000000ac1340b102000000443decc1\
    0100050005000000016e616d6576616c7565020005000000000002676f6e6500";
