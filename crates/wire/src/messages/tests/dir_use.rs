//! Messages about inodes and space below directories.

use super::*;
use crate::dir_use::{DIR_USE_MAX, DirUseReply, DirUseRequest};
use nacre_types::DirCounts;

pub(super) fn requests() -> Vec<MdsRequest<'static>> {
    let all = [
        DirUseRequest { dirs: vec![Fid::ROOT], after: Fid::ZERO, lists: false },
        DirUseRequest { dirs: vec![fid(1), fid(2)], after: fid(3), lists: true },
    ];
    all.into_iter().map(MdsRequest::DirUse).collect()
}

pub(super) fn replies() -> Vec<MdsReply> {
    let counts = DirCounts { files: 1, directories: 2, others: 3, bytes: 1 << 40, blocks: 5 };
    let all = [
        DirUseReply { counts, is_complete: true, dirs: Vec::new(), done: 1, after: Fid::ZERO },
        DirUseReply { counts, is_complete: false, dirs: vec![fid(3)], done: 2, after: fid(4) },
    ];
    all.into_iter().map(MdsReply::DirUse).collect()
}

#[test]
fn every_message_about_directories_survives_the_journey_and_no_cut_one_does() {
    round_trip(&requests(), &encoded(&requests()));
    round_trip(&replies(), &encoded(&replies()));
}

#[test]
fn a_request_for_sums_changes_nothing() {
    assert!(requests().iter().all(|request| !request.is_modifying()));
}

#[test]
fn lists_of_directories_are_bounded() {
    let mut bytes = vec![53];
    bytes.extend_from_slice(&(DIR_USE_MAX as u32 + 1).to_le_bytes());
    bytes.resize(100_000, 0);
    assert!(matches!(MdsRequest::from_bytes(&bytes), Err(DecodeError::TooLong { .. })));
}
