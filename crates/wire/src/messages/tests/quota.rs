//! Messages about quotas.

use super::*;
use crate::peer::PeerRequest;
use crate::quota::{
    QuotaChange, QuotaReply, QuotaReport, QuotaRequest, QuotaResourceState, QuotaRound, QuotaSlice,
    QuotaState, QuotaUse,
};
use nacre_types::{ObjectPlace, Owners, QuotaId, QuotaKind, QuotaLimits, QuotaResource};

const ID: QuotaId = QuotaId { kind: QuotaKind::Group, id: 0x0102_0304 };

fn round() -> QuotaRound {
    let slice = QuotaSlice { id: ID, resource: QuotaResource::Inodes, limit: 77 };
    QuotaRound { seen: 5, run: 6, slices: vec![slice], defaults: [[1, 2, 3], [4, 5, u64::MAX]] }
}

fn report() -> QuotaReport {
    let used = QuotaUse { id: ID, resource: QuotaResource::Space, used: 1 << 40, wants: true };
    QuotaReport { run: 6, number: 7, is_complete: true, has_more: false, uses: vec![used] }
}

pub(super) fn requests() -> Vec<MdsRequest<'static>> {
    let pool = || "flash".to_owned();
    let limits = QuotaLimits { soft: 8, hard: 9 };
    let set = |change| QuotaRequest::Set { id: ID, pool: pool(), is_default: false, change };
    let all = [
        QuotaRequest::Get { id: ID, pool: pool(), is_default: true },
        QuotaRequest::Next { from: ID, pool: String::new() },
        QuotaRequest::Target { id: ID, is_mdt: true, index: 3 },
        set(QuotaChange::Limits { space: Some(limits), inodes: None }),
        set(QuotaChange::UseDefault),
        set(QuotaChange::Delete),
        QuotaRequest::Grace { kind: QuotaKind::Project },
        QuotaRequest::SetGrace { kind: QuotaKind::User, space_s: Some(60), inodes_s: None },
    ];
    let mut requests: Vec<MdsRequest<'static>> = all.into_iter().map(MdsRequest::Quota).collect();
    requests.push(MdsRequest::Peer(PeerRequest::QuotaRound { round: round() }));
    requests.push(MdsRequest::Peer(PeerRequest::AdmitSpace { id: ID, bytes: 7 }));
    requests
}

pub(super) fn replies() -> Vec<MdsReply> {
    let limits = QuotaLimits { soft: 8, hard: 9 };
    let space = QuotaResourceState { used: 10, limits, grace_ends_s: 11 };
    let state = QuotaState { id: ID, space, inodes: space, is_default: true, is_complete: false };
    vec![
        MdsReply::Quota(QuotaReply::State(state)),
        MdsReply::Quota(QuotaReply::Grace { space_s: 1, inodes_s: 2 }),
        MdsReply::Peer(PeerReply::Quota(report())),
    ]
}

pub(super) fn oss_requests() -> Vec<OssRequest> {
    let owners = Owners { uid: 1, gid: 2, projid: 3 };
    let file = Fid::new(0x2_0000_0401, 7, 0);
    let (start, end, stripe_size) = (1 << 20, u64::MAX, 1 << 16);
    let place = Some(ObjectPlace { file, component: 2, start, end, stripe_size, stripe_count: 4, stripe: 3 });
    let objects = vec![OwnedObject { object: Fid::ost_object(3, 9), owners, place }];
    let charge = Charge { owners, is_exempt: true, place };
    let lock = IoLock::Lease;
    vec![
        OssRequest::QuotaRound { round: round() },
        OssRequest::SetOwners { objects },
        OssRequest::Examine { objects: vec![Fid::ost_object(3, 9)] },
        OssRequest::ListObjects { after: Fid::ost_object(3, 9), count: 7 },
        OssRequest::Truncate { object: Fid::ost_object(3, 9), size: 1, lock, written: true, charge },
    ]
}

pub(super) fn oss_replies() -> Vec<OssReply> {
    let attr = ObjectAttr { size: 1, blocks: 2, mtime: None };
    let known =
        KnownObject { object: Fid::ost_object(3, 9), attr, owners: Some(Owners::default()), place: None };
    vec![
        OssReply::Quota(report()),
        OssReply::Written { bytes: 5, is_near_quota: true },
        OssReply::Known(vec![known]),
    ]
}

#[test]
fn every_message_about_quotas_survives_the_journey_and_no_cut_one_does() {
    round_trip(&requests(), &encoded(&requests()));
    round_trip(&replies(), &encoded(&replies()));
    round_trip(&oss_requests(), &encoded(&oss_requests()));
    round_trip(&oss_replies(), &encoded(&oss_replies()));
}

#[test]
fn only_changes_of_limits_are_modifying() {
    let modifying = requests().iter().filter(|request| request.is_modifying()).count();
    // Three ways to set limits, grace times, and requests of metadata servers.
    assert_eq!(modifying, 6);
}
