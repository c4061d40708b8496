//! Messages of the replay of lost changes.

use super::*;
use crate::connect::RunStart;
use crate::replay::{DataChange, MessageBytes, ReplayedChange};

pub(super) fn requests() -> Vec<MdsRequest<'static>> {
    vec![
        MdsRequest::Replay {
            changes: vec![ReplayedChange::new(
                &cred(),
                &MdsRequest::Unlink { parent: fid(1), name: b"name", directory: false },
                &MdsAnswer {
                    transno: TransNo(0x1235),
                    ..MdsReply::Removed { fid: fid(2), attr: None }.into()
                },
            )],
        },
        MdsRequest::RecoveryDone,
        MdsRequest::DataChange {
            object: fid(1),
            change: DataChange::Write { offset: 5, data: MessageBytes(b"bytes".to_vec()) },
        },
        MdsRequest::DataChange { object: fid(1), change: DataChange::Truncate { size: 7 } },
        MdsRequest::DataChange {
            object: fid(1),
            change: DataChange::Fallocate { kind: FallocateKind::Punch, offset: 1, len: 2 },
        },
    ]
}

pub(super) fn replies() -> Vec<MdsReply> {
    vec![
        MdsReply::RunStart(RunStart {
            run: 7,
            boot_id: [9; 16],
            losses: vec![TransNo(0x1234)],
            replayed: TransNo(0x1235),
        }),
        MdsReply::Outcomes(vec![None, Some(Status::ESTALE)]),
    ]
}

pub(super) fn oss_replies() -> Vec<OssReply> {
    vec![
        OssReply::written(5).logged(TransNo(8), TransNo(7)),
        OssReply::Attr(ObjectAttr { size: 5, blocks: 8, mtime: None }).logged(TransNo(8), TransNo(7)),
    ]
}

pub(super) fn golden_lines_of_all(out: &mut String) {
    golden_lines("mds-request", &requests(), out);
    golden_lines("mds-reply", &replies(), out);
    golden_lines("oss-reply", &oss_replies(), out);
}

#[test]
fn every_message_about_replay_survives_the_journey_and_no_cut_one_does() {
    let (asked, told, written) = (requests(), replies(), oss_replies());
    round_trip(&asked, &encoded(&asked));
    round_trip(&told, &encoded(&told));
    round_trip(&written, &encoded(&written));
}

#[test]
fn as_many_outcomes_as_replayed_changes_fit_a_reply() {
    let outcomes = |count| MdsReply::Outcomes(vec![None; count]).to_bytes();
    assert!(MdsReply::from_bytes(&outcomes(crate::replay::REPLAYED_MAX)).is_ok());
    assert!(MdsReply::from_bytes(&outcomes(crate::replay::REPLAYED_MAX + 1)).is_err());
}
