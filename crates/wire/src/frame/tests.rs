use super::*;
use proptest::prelude::*;

fn sample() -> Header {
    let mut header = Header::new(FrameKind::Request, TargetId::ost(0x1f), Xid(0x0102_0304_0506_0708));
    header.tag = 5;
    header.acked = Xid(0x0102_0304_0506_0700);
    header.flags = FrameFlags::RESENT;
    header.set_body(b"body").expect("small");
    header.set_bulk(b"bulk data", Some(ChecksumType::Crc32c)).expect("small");
    header
}

#[test]
fn checksums_are_castagnoli() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    for (kind, sum) in [(ChecksumType::Crc32c, 0xe306_9283), (ChecksumType::Adler, 0x091e_01de)] {
        let mut pieces = Checksum::new(kind);
        pieces.update(b"1234");
        pieces.update(b"");
        pieces.update(b"56789");
        assert_eq!(pieces.finish(), sum, "{kind:?}");
    }
}

#[test]
fn a_frame_names_one_checksum_or_none() {
    let mut header = sample();
    assert_eq!(header.checksum(), Some(ChecksumType::Crc32c));
    header.set_bulk(b"bulk data", Some(ChecksumType::Adler)).expect("small");
    assert_eq!(header.checksum(), Some(ChecksumType::Adler));
    assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
    assert!(!header.bulk_matches(crc32c(b"bulk data")));
    header.flags |= FrameFlags::BULK_CRC;
    assert!(Header::from_bytes(&header.to_bytes()).is_err(), "two checksums");
    header.set_bulk(b"bulk data", None).expect("small");
    assert_eq!((header.checksum(), header.bulk_crc), (None, 0));
    assert!(header.bulk_matches(7));
    assert_eq!(ChecksumType::from_name("adler"), Ok(ChecksumType::Adler));
    assert_eq!(ChecksumType::from_name("t10"), Err(Status::EINVAL));
}

#[test]
fn headers_have_the_bytes_of_the_table_in_the_protocol_description() {
    let bytes = sample().to_bytes();
    assert_eq!(&bytes[..4], b"NCRE");
    assert_eq!(bytes[4..16], [1, 0, 3, 2, 0x1f, 0, 5, 0, 0, 0, 3, 0]);
    assert_eq!(bytes[BODY_LEN_OFFSET..BODY_LEN_OFFSET + 4], [4, 0, 0, 0]);
    assert_eq!(bytes[24..28], crc32c(b"body").to_le_bytes());
    assert_eq!(bytes[BULK_LEN_OFFSET..BULK_LEN_OFFSET + 4], [9, 0, 0, 0]);
    assert_eq!(bytes[32..36], crc32c(b"bulk data").to_le_bytes());
    assert_eq!(bytes[36..40], [0; 4]);
    assert_eq!(bytes[40..48], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[48..56], [0, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(bytes[56..], [0; 8]);
    assert_eq!(Header::from_bytes(&bytes), Ok(sample()));
}

#[test]
fn any_flipped_bit_is_noticed() {
    let good = sample().to_bytes();
    for bit in 0..HEADER_BYTES * 8 {
        let mut bytes = good;
        bytes[bit / 8] ^= 1 << (bit % 8);
        let error = Header::from_bytes(&bytes).expect_err("damaged");
        match bit / 8 {
            0..4 => assert!(matches!(error, FrameError::Magic { .. })),
            4..6 => assert!(matches!(error, FrameError::Version { .. })),
            _ => assert!(matches!(error, FrameError::HeaderChecksum { .. }), "bit {bit}: {error}"),
        }
    }
}

#[test]
fn lengths_over_their_limits_are_refused_although_the_checksum_is_right() {
    let mut header = sample();
    header.body_len = BODY_MAX as u32 + 1;
    assert!(matches!(
        Header::from_bytes(&header.to_bytes()),
        Err(FrameError::Field(DecodeError::TooLong { what: "body", .. }))
    ));
    let mut header = sample();
    header.bulk_len = BULK_MAX as u32 + 1;
    assert!(matches!(
        Header::from_bytes(&header.to_bytes()),
        Err(FrameError::Field(DecodeError::TooLong { .. }))
    ));
    assert_eq!(sample().set_bulk(&vec![0; BULK_MAX + 1], None), Err(Status::E2BIG));
}

#[test]
fn bodies_are_checked() {
    let header = sample();
    assert_eq!(header.check_body(b"body"), Ok(()));
    assert!(matches!(header.check_body(b"bodz"), Err(FrameError::BodyChecksum { .. })));
    assert!(header.bulk_matches(crc32c(b"bulk data")));
    assert!(!header.bulk_matches(crc32c(b"bulk datb")));
}

#[test]
fn a_job_stands_at_the_end_of_a_body() {
    let job = JobId::new(b"dd.0").expect("a name");
    let mut body = b"request".to_vec();
    push_job(&job, &mut body);
    assert_eq!(body[..11], *b"requestdd.0");
    assert_eq!(body[11..], [0; 28]);
    assert_eq!(split_job(&body), Ok((&b"request"[..], Some(job))));
    assert_eq!(split_job(&[0; JOB_ID_BYTES]), Ok((&[][..], None)));
    assert!(split_job(&[1; JOB_ID_BYTES - 1]).is_err());
    let mut header = sample();
    header.flags = FrameFlags::JOB_ID;
    assert_eq!(header.to_bytes()[14..16], [32, 0]);
    assert_eq!(Header::from_bytes(&header.to_bytes()), Ok(header));
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in prop::array::uniform32(any::<u8>()), magic in any::<bool>()) {
        let mut header = [0u8; HEADER_BYTES];
        header[..32].copy_from_slice(&bytes);
        if magic {
            header[..6].copy_from_slice(b"NCRE\x01\0");
        }
        let _ = Header::from_bytes(&header);
    }
}
