//! Messages between metadata servers.

use super::*;
use crate::peer::{
    Found, MovedName, Name, Part, PeerReply, PeerRequest, RecordBytes, Transaction, TransactionId, Update,
};
use nacre_types::{Timestamp, Xid};

fn op(number: u64) -> TransactionId {
    TransactionId { mdt: 1, boot: 2, number }
}

fn name() -> Name {
    Name { parent: Fid::ROOT, name: b"name".to_vec() }
}

fn transaction() -> Transaction {
    let updates = vec![
        Update::PutName { at: name(), fid: fid(1), kind: FileKind::Regular },
        Update::DeleteName { at: name() },
        Update::Directory { fid: Fid::ROOT, entries: -1, subdirs: 1 },
        Update::NewInode {
            fid: fid(1),
            record: RecordBytes(b"record".to_vec()),
            xattrs: vec![(b"user.a".to_vec(), b"value".to_vec())],
        },
        Update::AddName { fid: fid(1), at: name() },
        Update::MoveName { fid: fid(1), from: name(), to: Name { parent: fid(1), name: b"to".to_vec() } },
        Update::DropName { fid: fid(1), at: name(), replaced: true },
    ];
    let parts = vec![Part { mdt: 0, updates }, Part { mdt: 1, updates: Vec::new() }];
    Transaction {
        id: op(3),
        stamp: 4,
        client: ClientUuid([5; 16]),
        now: Timestamp { sec: 6, nsec: 7 },
        parts,
    }
}

/// A transaction that changes shards of directories.
fn striped_transaction() -> Transaction {
    let xattrs = vec![(b"system.posix_acl_default".to_vec(), Vec::new())];
    let record = RecordBytes(b"record".to_vec());
    let updates = vec![Update::DropShard { fid: fid(1) }, Update::Mirror { fid: fid(2), record, xattrs }];
    Transaction { parts: vec![Part { mdt: 0, updates }], ..transaction() }
}

/// A transaction that moves names between shards.
fn step() -> Transaction {
    let moved = MovedName { name: b"name".to_vec(), fid: fid(3), kind: FileKind::Regular };
    let lmv = RecordBytes(b"lmv".to_vec());
    let updates = vec![
        Update::SetShards { fid: fid(1), lmv, is_master: true },
        Update::NamesOut { fid: fid(1), upto: 9, subdirs: 1, names: vec![b"name".to_vec()] },
        Update::NamesIn { fid: fid(2), names: vec![moved] },
    ];
    Transaction { parts: vec![Part { mdt: 0, updates }], ..transaction() }
}

/// A transaction that moves an inode to another MDT.
fn migration() -> Transaction {
    let record = RecordBytes(b"record".to_vec());
    let xattrs = vec![(b"user.a".to_vec(), b"value".to_vec())];
    let updates = vec![
        Update::InodeIn { fid: fid(2), record, xattrs, links: vec![name()] },
        Update::InodeOut { fid: fid(1) },
        Update::Retarget { at: name(), fid: fid(2), kind: FileKind::Regular },
        Update::NewParent { fid: fid(3), name: b"name".to_vec(), from: fid(1), to: fid(2) },
        Update::Replaced { fid: fid(1), by: fid(2), lmv: RecordBytes(b"lmv".to_vec()) },
    ];
    Transaction { parts: vec![Part { mdt: 0, updates }], ..transaction() }
}

/// A transaction with a stored reply.
fn kept() -> Transaction {
    let answer = RecordBytes(b"answer".to_vec());
    let updates = vec![Update::KeepAnswer { client: ClientUuid([5; 16]), tag: 8, xid: Xid(9), answer }];
    Transaction { parts: vec![Part { mdt: 1, updates }], ..transaction() }
}

pub(super) fn requests() -> Vec<PeerRequest> {
    vec![
        PeerRequest::Hello { mdt: 1, after: Some(op(3)) },
        PeerRequest::Prepare { op: op(3), fids: vec![Fid::ROOT, fid(1)], names: vec![name()], replays: true },
        PeerRequest::Apply { transaction: transaction(), transno: TransNo(0x77) },
        PeerRequest::Abort { op: op(3) },
        PeerRequest::Outcome { op: op(3) },
        PeerRequest::Sync { op: op(3) },
        PeerRequest::Forget { ops: vec![op(3), op(4)], below: op(5) },
        PeerRequest::Record { fid: fid(1) },
        PeerRequest::ResolveName { at: name() },
        PeerRequest::LockTree { op: op(3) },
        PeerRequest::UnlockTree { op: op(3) },
        PeerRequest::Apply { transaction: striped_transaction(), transno: TransNo(0x77) },
        PeerRequest::HashSeed,
        PeerRequest::Apply { transaction: step(), transno: TransNo(0x77) },
        PeerRequest::Moved { fid: fid(1) },
        PeerRequest::NewFid,
        PeerRequest::Split { fid: fid(1) },
        PeerRequest::Apply { transaction: migration(), transno: TransNo(0x77) },
        PeerRequest::PutData {
            op: op(3),
            fid: fid(2),
            offset: 5,
            bytes: RecordBytes(b"bytes".to_vec()),
            size: Some(10),
        },
        PeerRequest::Apply { transaction: kept(), transno: TransNo(0x77) },
    ]
}

pub(super) fn replies() -> Vec<PeerReply> {
    let found = Found { fid: fid(1), record: Some(RecordBytes(b"record".to_vec())) };
    vec![
        PeerReply::Done,
        PeerReply::Transactions(vec![transaction()]),
        PeerReply::Prepared {
            found: vec![found.clone(), Found { fid: Fid::ROOT, record: None }],
            names: vec![None, Some((fid(1), FileKind::Directory))],
            clock: 9,
        },
        PeerReply::Record(found),
        PeerReply::Greeting {
            transactions: vec![transaction()],
            transnos: vec![TransNo(0x78)],
            finished: vec![op(8)],
        },
        PeerReply::Applied { transno: TransNo(0x79) },
        PeerReply::HashSeed(0x0102_0304_0506_0708),
        PeerReply::Moved { version: 3, upto: 9 },
        PeerReply::Fid(fid(1)),
    ]
}

#[test]
fn every_message_of_a_peer_survives_the_journey_and_no_cut_one_does() {
    round_trip(&requests(), &encoded(&requests()));
    round_trip(&replies(), &encoded(&replies()));
}
