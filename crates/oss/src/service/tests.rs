//! Requests to a service on a file store.

use super::*;
use crate::room::statfs_of;
use nacre_rpc::{Export, NoCallbacks};
use nacre_store::object::{FileStore, FileStoreOptions, Space};
use nacre_types::Cred;
use nacre_types::limits::BULK_MAX;
use nacre_types::{ClientUuid, Nid};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{FallocateKind, SeekKind};
use proptest::prelude::*;

struct World {
    server: ObjectServer,
    export: Export,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(&dir.path().join("ost"), FileStoreOptions::create()).unwrap();
    let export = Export::new(ClientUuid([1; 16]), Nid::Lo, None, Arc::new(NoCallbacks));
    World { server: ObjectServer::new(Arc::new(store), 3), export, _dir: dir }
}

impl World {
    fn call(&self, request: OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let cred = Cred::system();
        self.server.handle(&self.export, &Call::new(&cred), &request, bulk)
    }

    fn ask(&self, request: OssRequest) -> StatusResult<OssReply> {
        self.call(request, Bulk::None)
    }

    fn write(&self, object: Fid, offset: u64, data: &[u8]) -> StatusResult<OssReply> {
        self.call(OssRequest::plain_write(object, offset), Bulk::Send(data))
    }

    fn read(&self, object: Fid, offset: u64, len: u32) -> StatusResult<Vec<u8>> {
        let mut buffer = vec![0xee; len as usize];
        let request =
            OssRequest::Read { object, offset, len, ahead: u32::MAX, lock: IoLock::Lease, written: false };
        match self.call(request, Bulk::Receive(&mut buffer))? {
            OssReply::Read(read) => {
                buffer.truncate(read as usize);
                Ok(buffer)
            }
            other => panic!("{other:?}"),
        }
    }
}

fn fid(oid: u32) -> Fid {
    Fid::ost_object(3, oid)
}

#[test]
fn reads_and_writes_show_up_in_brw_stats_until_it_is_cleared() {
    let world = world();
    world.write(fid(1), 0, &[7; 8192]).unwrap();
    let shown = world.server.brw_stats();
    assert!(shown.contains("2:\t\t         0   0   0   |    1 100 100\n"), "{shown}");
    assert!(shown.contains("8K:\t\t         0   0   0   |    1 100 100\n"), "{shown}");
    world.server.clear_brw_stats();
    assert!(!world.server.brw_stats().contains("8K:"));
}

#[test]
fn objects_are_written_read_measured_and_destroyed() {
    let world = world();
    let reserve = OssRequest::Precreate { sequence: fid(1).seq, count: 32 };
    assert_eq!(world.ask(reserve.clone()), Ok(OssReply::Precreated { first: 1, count: 32 }));
    assert_eq!(world.ask(reserve), Ok(OssReply::Precreated { first: 33, count: 32 }));
    assert_eq!(world.write(fid(1), 3, b"abc"), Ok(OssReply::written(3)));
    assert_eq!(world.read(fid(1), 0, 100), Ok(b"\0\0\0abc".to_vec()));
    let synced = OssRequest::Write {
        object: fid(1),
        offset: 6,
        sync: true,
        granted: false,
        lock: IoLock::Lease,
        incarnation: 0,
        written: true,
        charge: Charge::ROOT,
    };
    assert_eq!(world.call(synced, Bulk::Send(b"d")), Ok(OssReply::written(1)));
    match world.ask(OssRequest::GetAttr { object: fid(1), glimpse: false }) {
        Ok(OssReply::Attr(attr)) => assert_eq!((attr.size, attr.mtime.is_some()), (7, true)),
        other => panic!("{other:?}"),
    }
    let seek = OssRequest::Seek {
        object: fid(1),
        offset: 0,
        kind: SeekKind::Hole,
        lock: IoLock::Lease,
        written: false,
    };
    assert_eq!(world.ask(seek), Ok(OssReply::Position(7)));
    assert!(matches!(
        world.ask(OssRequest::Truncate {
            object: fid(1),
            size: 2,
            lock: IoLock::Lease,
            written: false,
            charge: Charge::ROOT
        }),
        Ok(OssReply::Attr(oss::ObjectAttr { size: 2, .. }))
    ));
    assert_eq!(world.ask(OssRequest::Sync { object: Some(fid(1)) }), Ok(OssReply::Done));
    assert_eq!(world.ask(OssRequest::Sync { object: None }), Ok(OssReply::Done));
    assert_eq!(world.ask(OssRequest::Destroy { objects: vec![fid(1), fid(2)] }), Ok(OssReply::Done));
    assert_eq!(world.read(fid(1), 0, 100), Ok(vec![]));
    let orphans = OssRequest::DestroyOrphans { sequence: fid(1).seq, last_used: 5 };
    assert_eq!(world.ask(orphans), Ok(OssReply::Precreated { first: 65, count: 0 }));
    let stats = world.server.stats();
    let row = |operation: Operation| stats.row(operation as usize);
    assert_eq!((row(Operation::Write).samples, row(Operation::Write).sum), (2, 4));
    assert_eq!((row(Operation::Sync).samples, row(Operation::Destroy).sum), (3, 1));
    assert_eq!((row(Operation::Precreate).sum, world.server.counters.in_progress()), (64, 0));
}

#[test]
fn senseless_requests_are_refused_and_change_nothing() {
    let world = world();
    assert_eq!(world.write(Fid::ost_object(4, 1), 0, b"x"), Err(Status::WRONG_TARGET));
    assert_eq!(world.write(Fid::ZERO, 0, b"x"), Err(Status::EINVAL));
    assert_eq!(world.write(fid(1), u64::MAX, b"x"), Err(Status::EFBIG));
    assert_eq!(world.write(fid(1), 0, &vec![0; BULK_MAX + 1]), Err(Status::E2BIG));
    assert_eq!(world.ask(OssRequest::plain_write(fid(1), 0)), Err(Status::EPROTO));
    let read = OssRequest::plain_read(fid(1), 0, 10);
    assert_eq!(world.call(read.clone(), Bulk::Receive(&mut [0; 9])), Err(Status::EINVAL));
    assert_eq!(world.call(read, Bulk::Send(b"x")), Err(Status::EPROTO));
    let huge = OssRequest::Precreate { sequence: fid(1).seq, count: PRECREATE_MAX + 1 };
    assert_eq!(world.ask(huge), Err(Status::E2BIG));
    assert_eq!(world.ask(OssRequest::Destroy { objects: vec![fid(1); DESTROY_MAX + 1] }), Err(Status::E2BIG));
    let foreign = OssRequest::Destroy { objects: vec![fid(1), Fid::ost_object(4, 1)] };
    assert_eq!(world.ask(foreign), Err(Status::WRONG_TARGET));
    assert_eq!(
        world.ask(OssRequest::Truncate {
            object: fid(1),
            size: u64::MAX,
            lock: IoLock::Lease,
            written: false,
            charge: Charge::ROOT,
        }),
        Err(Status::EFBIG)
    );
    assert_eq!(world.server.store().stats().objects, 0);
    assert_eq!(world.server.failed(Operation::Write), 5);
}

#[test]
fn space_is_told_in_blocks_with_the_states_of_the_target() {
    let world = world();
    let statfs = || match world.ask(OssRequest::Statfs) {
        Ok(OssReply::Statfs(statfs)) => statfs,
        other => panic!("{other:?}"),
    };
    let first = statfs();
    assert!(first.blocks_available <= first.blocks_free && first.blocks_free <= first.blocks);
    assert!(first.files_free > 0 && first.files_free <= first.files);
    assert_eq!(first.state, 0);
    world.server.set_state(true, true);
    assert_eq!(statfs().state, 5);
    let full = Space { block_size: 4096, is_read_only: true, ..Space::default() };
    assert_eq!(statfs_of(&full, 0).state, 0x62);
}

#[test]
fn a_stopped_service_refuses_and_has_everything_durable() {
    let world = world();
    world.write(fid(1), 0, b"kept").unwrap();
    world.server.stop(Duration::from_secs(10)).unwrap();
    assert_eq!(world.ask(OssRequest::Ping), Err(Status::ESHUTDOWN));
    assert_eq!(world.server.store().stats().objects, 1);
}

fn any_fid() -> impl Strategy<Value = Fid> {
    prop_oneof![
        (1u32..6).prop_map(fid),
        any::<(u64, u32, u32)>().prop_map(|(seq, oid, ver)| Fid::new(seq, oid, ver)),
        Just(Fid::ZERO),
    ]
}

fn any_offset() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..1 << 20, any::<u64>(), Just(u64::MAX), Just(i64::MAX as u64)]
}

#[test]
fn an_object_that_was_written_to_and_is_gone_is_an_error_and_is_not_made_anew() {
    let world = world();
    world.write(fid(1), 0, b"data").expect("written");
    let (object, lock) = (fid(1), IoLock::Lease);
    let requests = |written| {
        let write = OssRequest::Write {
            object,
            offset: 9,
            sync: false,
            granted: true,
            lock,
            incarnation: 0,
            written,
            charge: Charge::ROOT,
        };
        let read = OssRequest::Read { object, offset: 0, len: 8, ahead: 0, lock, written };
        let kind = FallocateKind::AllocateKeepSize;
        let others = [
            OssRequest::Truncate { object, size: 20, lock, written, charge: Charge::ROOT },
            OssRequest::Fallocate { object, kind, offset: 0, len: 8, lock, written, charge: Charge::ROOT },
            OssRequest::Seek { object, offset: 0, kind: SeekKind::Hole, lock, written },
        ];
        (write, read, others)
    };
    let run = |written| {
        let (write, read, others) = requests(written);
        let mut buffer = [0; 8];
        let mut results =
            vec![world.call(read, Bulk::Receive(&mut buffer)), world.call(write, Bulk::Send(b"more"))];
        results.extend(others.map(|request| world.ask(request)));
        results
    };
    assert!(run(true).iter().all(Result::is_ok));
    world.server.store().destroy(&[object]).expect("lost");
    assert_eq!(run(true), vec![Err(Status::OBJECT_LOST); 5]);
    let attr = world.ask(OssRequest::GetAttr { object, glimpse: false }).expect("answered");
    assert_eq!(attr, OssReply::Attr(Default::default()), "nothing was made");
    assert!(run(false).iter().all(Result::is_ok), "it is made by who is not known to have written");
    world.ask(OssRequest::Destroy { objects: vec![object] }).expect("destroyed");
    let changes = run(false).into_iter().filter(|result| *result == Err(Status::ENOENT)).count();
    assert_eq!(changes, 3, "changes that come later do not make it again");
    let attr = world.ask(OssRequest::GetAttr { object, glimpse: false }).expect("answered");
    assert_eq!(attr, OssReply::Attr(Default::default()), "nothing was made");
}

fn any_request() -> impl Strategy<Value = OssRequest> {
    prop_oneof![
        (any_fid(), any_offset(), any::<bool>()).prop_map(|(object, offset, sync)| OssRequest::Write {
            object,
            offset,
            sync,
            granted: offset % 2 == 0,
            lock: IoLock::Lease,
            incarnation: 0,
            written: offset % 3 == 0,
            charge: Charge::ROOT,
        }),
        (any_fid(), any_offset(), any::<u32>(), any::<u32>()).prop_map(|(object, offset, len, ahead)| {
            OssRequest::Read { object, offset, len, ahead, lock: IoLock::Lease, written: false }
        }),
        (any_fid(), any_offset()).prop_map(|(object, size)| OssRequest::Truncate {
            object,
            size,
            lock: IoLock::Lease,
            written: false,
            charge: Charge::ROOT,
        }),
        (any_fid(), any_offset(), any_offset(), 0u8..5).prop_map(|(object, offset, len, kind)| {
            // Zeroing and punching of huge ranges is cheap; allocation is left out, as its limits are those
            // of the file system.
            let kind = match kind {
                0 => FallocateKind::Punch,
                1 => FallocateKind::Zero,
                _ => FallocateKind::ZeroKeepSize,
            };
            OssRequest::Fallocate {
                object,
                kind,
                offset,
                len: len % (1 << 30),
                lock: IoLock::Lease,
                written: false,
                charge: Charge::ROOT,
            }
        }),
        (any_fid(), any_offset()).prop_map(|(object, offset)| OssRequest::Seek {
            object,
            offset,
            kind: SeekKind::Data,
            lock: IoLock::Lease,
            written: false,
        }),
        any_fid().prop_map(|object| OssRequest::GetAttr { object, glimpse: false }),
        (any::<u64>(), any::<u32>()).prop_map(|(sequence, count)| OssRequest::Precreate { sequence, count }),
        (any::<u64>(), any::<u32>())
            .prop_map(|(sequence, last_used)| OssRequest::DestroyOrphans { sequence, last_used }),
        proptest::collection::vec(any_fid(), 0..10).prop_map(|objects| OssRequest::Destroy { objects }),
        Just(OssRequest::Statfs),
    ]
}

#[test]
fn no_request_whatever_its_numbers_brings_the_service_down() {
    let world = world();
    proptest!(ProptestConfig::with_cases(300), |(request in any_request(), data in proptest::collection::vec(any::<u8>(), 0..9000))| {
        let mut buffer = data.clone();
        let bulk = if matches!(request, OssRequest::Read { .. }) { Bulk::Receive(&mut buffer) } else { Bulk::Send(&data) };
        let _ = world.call(request, bulk);
    });
    let report = world.server.store().verify(true, &mut |_| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
