//! Messages about changelogs.

use super::*;
use crate::changelog::{ChangeUser, ChangelogReply, ChangelogRequest};
use crate::peer::{Part, PeerRequest, RecordBytes, Transaction, TransactionId, Update};
use nacre_types::{ChangeKind, ChangeMask};

pub(super) fn requests() -> Vec<MdsRequest<'static>> {
    let mask = ChangeMask::LEAST.with(ChangeKind::Unlink);
    let logged = Update::LogChange { record: RecordBytes(b"record".to_vec()) };
    let transaction = Transaction {
        id: TransactionId { mdt: 1, boot: 2, number: 3 },
        stamp: 4,
        client: ClientUuid([5; 16]),
        now: Timestamp { sec: 6, nsec: 7 },
        parts: vec![Part { mdt: 1, updates: vec![logged] }],
    };
    vec![
        MdsRequest::Changelog(ChangelogRequest::Register { name: "audit".to_owned(), mask }),
        MdsRequest::Changelog(ChangelogRequest::Deregister { user: "cl1".to_owned() }),
        MdsRequest::Changelog(ChangelogRequest::Clear { user: "cl1".to_owned(), upto: 9 }),
        MdsRequest::Changelog(ChangelogRequest::Read { after: 9, bytes_max: 4096 }),
        MdsRequest::Changelog(ChangelogRequest::Users),
        MdsRequest::Peer(PeerRequest::Apply { transaction, transno: TransNo(0x77) }),
    ]
}

pub(super) fn replies() -> Vec<MdsReply> {
    let user = ChangeUser { id: 1, name: "audit".to_owned(), mask: ChangeMask::NONE, cleared: 8, idle_s: 3 };
    let records = vec![(10, RecordBytes(b"record".to_vec()))];
    let settled = Timestamp { sec: 6, nsec: 7 };
    vec![
        MdsReply::Changelog(ChangelogReply::User(user.clone())),
        MdsReply::Changelog(ChangelogReply::Users { current: 12, users: vec![user] }),
        MdsReply::Changelog(ChangelogReply::Changes { records, upto: 11, settled }),
    ]
}

#[test]
fn every_message_about_changelogs_survives_the_journey_and_no_cut_one_does() {
    round_trip(&requests(), &encoded(&requests()));
    round_trip(&replies(), &encoded(&replies()));
}

#[test]
fn masks_of_unknown_types_are_refused() {
    let MdsRequest::Changelog(request) = requests().remove(0) else { panic!("a request") };
    let mut bytes = request.to_bytes();
    if let Some(last) = bytes.last_mut() {
        *last = 0x80;
    }
    assert!(ChangelogRequest::from_bytes(&bytes).is_err());
}
