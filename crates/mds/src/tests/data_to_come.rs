//! Offline check of an MDT that was killed while a file was moving to it from another MDT.

use super::data::{closing, content, create, directory, wrote};
use super::{Fixture, config};
use crate::check::{CheckReport, ObjectReferences, check_dir, object_references};
use crate::plan::encoded;
use crate::records::store_path;
use crate::tables::{INODES, PREPARED};
use nacre_layout::{StripeObject, user};
use nacre_ondisk::InodeRecord;
use nacre_rpc::{LoMds, MdsEndpoint};
use nacre_store::{Batch, MetaStore};
use nacre_types::{ClientUuid, Cred, Fid, FileKind, Timestamp};
use nacre_wire::mds::{MdsRequest, OpenFlags};
use nacre_wire::peer::{Name, Part, PeerRequest, RecordBytes, Transaction, TransactionId, Update};
use std::path::Path;

const OP: TransactionId = TransactionId { mdt: 1, boot: 1, number: 1 };

/// Sends a request of MDT 1.
fn ask(f: &Fixture, request: PeerRequest) {
    let way = LoMds::connect_server(f.mds.clone(), ClientUuid([101; 16])).expect("connected");
    way.call(&Cred::system(), &MdsRequest::Peer(request)).expect("done");
}

fn transaction(parts: Vec<Part>) -> Transaction {
    Transaction { id: OP, stamp: 1, client: ClientUuid([9; 16]), now: Timestamp::default(), parts }
}

/// Creates a file with data on the MDT and an object on an OST.
fn file(f: &Fixture) -> InodeRecord {
    let dir = directory(f);
    let (attr, handle, _) = create(f, dir, "f", OpenFlags::WRITE);
    let fid = attr.fid;
    f.run(&closing(&attr, handle, wrote(5, 5), 0, b"bytes")).expect("closed");
    f.run(&MdsRequest::LayoutIntent { fid, start: 0, end: 2 << 20 }).expect("given");
    let record = f
        .mds
        .leaves
        .store
        .get(INODES, &fid.to_key(), |value| InodeRecord::decode(fid, value.expect("there")));
    record.expect("readable").expect("a record")
}

/// Builds the record of the same file with its new FID.
fn as_it_comes(record: &InodeRecord, to: Fid) -> InodeRecord {
    let mut layout = user::decode_layout(&record.body).expect("a layout");
    layout.components[0].objects[0] = StripeObject::on_mdt(to);
    let mut moved = InodeRecord { body: user::encode_layout(&to, &layout), ..record.clone() };
    (moved.attr.fid, moved.name) = (to, b"came".to_vec());
    moved
}

fn repair(dir: &Path) -> (CheckReport, ObjectReferences) {
    let report = check_dir(dir, &config(), true, &mut |_| {}).expect("checks");
    (report, object_references(dir, &config()).expect("readable"))
}

fn name_of(object: Fid) -> (u16, Fid) {
    (StripeObject::on_mdt(object).ost_index, object)
}

/// MDT 1 has sent the data of a file, and has not received the acknowledgement.
fn with_data_of_a_file_to_come(f: &Fixture) -> (InodeRecord, Fid) {
    let (record, to) = (file(f), f.fid());
    ask(f, PeerRequest::Prepare { op: OP, fids: vec![to], names: Vec::new(), replays: false });
    let bytes = RecordBytes(b"came".to_vec());
    ask(f, PeerRequest::PutData { op: OP, fid: to, offset: 0, bytes, size: Some(4) });
    (as_it_comes(&record, to), to)
}

fn data_stays_until_its_file_comes(f: Fixture) {
    let (mut moved, to) = with_data_of_a_file_to_come(&f);
    moved.attr.size = 4;
    let f = f.crash_and(|dir| {
        let (report, known) = repair(dir);
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        assert!(known.awaited.contains(&name_of(to)) && known.knows(&name_of(to)));
        assert!(!known.is_partial);
    });
    assert_eq!(content(&f, to), b"came");
    let at = Name { parent: moved.parent, name: moved.name.clone() };
    let comes = Update::InodeIn { fid: to, record: encoded(&moved), xattrs: Vec::new(), links: Vec::new() };
    let directory = Update::Directory { fid: at.parent, entries: 1, subdirs: 0 };
    let updates = vec![comes, Update::PutName { at, fid: to, kind: FileKind::Regular }, directory];
    ask(
        &f,
        PeerRequest::Apply {
            transaction: transaction(vec![Part { mdt: 0, updates }]),
            transno: nacre_types::TransNo(0),
        },
    );
    assert_eq!((f.stat(to).expect("there").size, content(&f, to)), (4, b"came".to_vec()));
    // From here on the file itself names it.
    f.crash_and(|dir| {
        let (report, known) = repair(dir);
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        assert_eq!(known.used.get(&name_of(to)), Some(&to));
    });
}

#[test]
fn repair_leaves_data_alone_whose_file_is_to_come() {
    data_stays_until_its_file_comes(Fixture::new());
}

#[test]
fn repair_leaves_data_apart_alone_whose_file_is_to_come() {
    data_stays_until_its_file_comes(Fixture::with_data_apart());
}

/// Damages a record that determines what data may belong to.
fn overwrite(dir: &Path, table: nacre_store::Table, key: &[u8]) {
    let store = MetaStore::open(&store_path(dir), config().store).expect("opens");
    let mut batch = Batch::new();
    batch.put(table, key, &[99, 1, 2]);
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
}

#[test]
fn repair_destroys_no_data_while_it_cannot_read_what_is_prepared() {
    for f in [Fixture::new(), Fixture::with_data_apart()] {
        let (_, to) = with_data_of_a_file_to_come(&f);
        let f = f.crash_and(|dir| {
            overwrite(dir, PREPARED, crate::tables::op_key(&OP).as_slice());
            let (report, known) = repair(dir);
            let text = "the record of a prepared transaction is damaged";
            assert!(report.is_damaged(), "{:#?}", report.problems);
            assert!(report.problems.iter().any(|found| found.text == text), "{:#?}", report.problems);
            assert_eq!((report.repaired, known.is_partial), (0, true));
        });
        assert_eq!(content(&f, to), b"came");
    }
}

#[test]
fn repair_destroys_no_data_while_it_cannot_read_a_file() {
    for (f, is_apart) in [(Fixture::new(), false), (Fixture::with_data_apart(), true)] {
        let fid = file(&f).attr.fid;
        let f = f.crash_and(|dir| {
            overwrite(dir, INODES, &fid.to_key());
            let (report, known) = repair(dir);
            // Data in records is read with them, and the file is rebuilt.
            let state = (report.is_damaged(), known.is_partial);
            assert_eq!(state, (is_apart, is_apart), "{:#?}", report.problems);
        });
        assert_eq!(content(&f, fid), b"bytes");
    }
}

/// MDT 1 has committed that a file moves there, and the inode is removed here. Its objects on OSTs are those
/// of the file to arrive.
#[test]
fn objects_of_a_file_that_is_on_its_way_are_known() {
    let f = Fixture::new();
    let (record, to) = (file(&f), Fid::new(Fid::first_sequence_of_mdt(1), 1, 0));
    let fid = record.attr.fid;
    let moved = as_it_comes(&record, to);
    let layout = user::decode_layout(&moved.body).expect("a layout");
    let on_ost = *layout.objects().find(|object| !object.is_on_mdt()).expect("one");
    ask(&f, PeerRequest::Prepare { op: OP, fids: vec![fid], names: Vec::new(), replays: false });
    let at = Name { parent: record.parent, name: record.name.clone() };
    let goes = vec![Update::InodeOut { fid }, Update::Retarget { at, fid: to, kind: FileKind::Regular }];
    let comes = Update::InodeIn { fid: to, record: encoded(&moved), xattrs: Vec::new(), links: Vec::new() };
    let parts = vec![Part { mdt: 0, updates: goes }, Part { mdt: 1, updates: vec![comes] }];
    ask(&f, PeerRequest::Apply { transaction: transaction(parts), transno: nacre_types::TransNo(0) });
    f.crash_and(|dir| {
        let (report, known) = repair(dir);
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        let name = (on_ost.ost_index, on_ost.object);
        assert!(!known.used.contains_key(&name) && !known.destroying.contains(&name));
        assert!(known.awaited.contains(&name) && known.awaited.contains(&name_of(to)));
        assert!(!known.is_partial);
    });
}
