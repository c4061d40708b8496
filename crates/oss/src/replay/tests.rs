//! Runs of a target whose host is booted in between.

use super::*;
use crate::service::{ObjectServer, OssConfig};
use nacre_ondisk::DataRunRecord;
use nacre_rpc::{Call, NoCallbacks, OssService};
use nacre_store::Batch;
use nacre_store::object::{DATA_RUN, FileStore, FileStoreOptions, ObjectStore};
use nacre_types::{ClientUuid, Cred, Fid, Nid};
use nacre_wire::lock::LockRequest;
use nacre_wire::oss::{Bulk, OssReply};
use std::sync::Arc;

/// A target on a disk that outlives its runs.
struct Disk {
    dir: tempfile::TempDir,
    store: Arc<dyn ObjectStore>,
}

struct Run {
    server: Arc<ObjectServer>,
    clients: Vec<Arc<Export>>,
}

fn disk() -> Disk {
    let dir = tempfile::tempdir().expect("a directory");
    let store = FileStore::open(&dir.path().join("ost"), FileStoreOptions::create()).expect("a store");
    Disk { dir, store: Arc::new(store) }
}

impl Disk {
    /// Starts a run with clients on other hosts. A store that stays open stands for the state of the disk.
    fn run(&self, clients: u8) -> Run {
        let config = OssConfig::default();
        let server = ObjectServer::open(self.store.clone(), 3, &self.dir.path().join("ost"), &config)
            .expect("a target");
        let server = Arc::new(server);
        let connect = |number| {
            let nid: Nid = "10.0.0.9@tcp".parse().expect("a NID");
            let export = Arc::new(Export::new(ClientUuid([number; 16]), nid, None, Arc::new(NoCallbacks)));
            server.connect(&export).expect("connected");
            export
        };
        Run { clients: (1..=clients).map(connect).collect(), server }
    }

    /// Makes the last run one of an earlier boot of the host.
    fn boot(&self) {
        let index = self.store.abilities().index.expect("it has an index");
        let record = index.get(DATA_RUN, b"run", |value| value.map(DataRunRecord::decode));
        let mut record = record.expect("read").expect("a run was recorded").expect("decoded");
        record.boot_id = [9; 16];
        let mut batch = Batch::new();
        batch.put(DATA_RUN, b"run", &record.encode());
        index.commit(&batch).expect("committed");
    }
}

fn object(oid: u32) -> Fid {
    Fid::ost_object(3, oid)
}

impl Run {
    fn changes(&self) -> &Changes {
        self.server.changes.as_ref().expect("changes are numbered")
    }

    fn call(&self, client: usize, request: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        let cred = Cred::system();
        self.server.handle(&self.clients[client], &Call::new(&cred), request, bulk)
    }

    /// Writes, and returns the number of the change and of the newest durable one.
    fn write(&self, client: usize, oid: u32, data: &[u8]) -> (TransNo, TransNo) {
        match self.call(client, &OssRequest::plain_write(object(oid), 0), Bulk::Send(data)) {
            Ok(OssReply::Logged { transno, last_committed, .. }) => (transno, last_committed),
            other => panic!("{other:?}"),
        }
    }

    fn replay(&self, client: usize, oid: u32, number: TransNo, data: &[u8]) -> StatusResult<OssReply> {
        let mut request = OssRequest::plain_write(object(oid), 0);
        if let OssRequest::Write { lock, .. } = &mut request {
            *lock = IoLock::Replay(number);
        }
        self.call(client, &request, Bulk::Send(data))
    }

    fn end_replay(&self, client: usize) {
        let request = OssRequest::Locks { request: LockRequest::ReplayDone };
        assert_eq!(self.call(client, &request, Bulk::None), Ok(OssReply::Done));
    }

    fn sync(&self, client: usize, oid: Option<u32>) {
        let request = OssRequest::Sync { object: oid.map(object) };
        assert_eq!(self.call(client, &request, Bulk::None), Ok(OssReply::Done));
    }

    fn read(&self, client: usize, oid: u32) -> Vec<u8> {
        let mut buffer = [0; 16];
        let request = OssRequest::plain_read(object(oid), 0, 16);
        match self.call(client, &request, Bulk::Receive(&mut buffer)) {
            Ok(OssReply::Read(len)) => buffer[..len as usize].to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

const WRITTEN: StatusResult<OssReply> = Ok(OssReply::written(4));

#[test]
fn changes_of_clients_on_other_hosts_are_numbered_and_a_sync_of_all_makes_them_durable() {
    let disk = disk();
    let run = disk.run(2);
    let (first, committed) = run.write(0, 1, b"data");
    assert!(committed < first);
    let (second, _) = run.write(1, 2, b"data");
    assert!(second > first);
    run.sync(0, None);
    assert_eq!(run.write(0, 1, b"data").1, second);
    let local = Export::new(ClientUuid([7; 16]), Nid::Lo, None, Arc::new(NoCallbacks));
    let cred = Cred::system();
    let request = OssRequest::plain_write(object(3), 0);
    let reply = run.server.handle(&local, &Call::new(&cred), &request, Bulk::Send(b"data"));
    assert_eq!(reply, WRITTEN, "it ends with the host");
}

#[test]
fn lost_changes_are_replayed_in_the_order_of_their_numbers_before_anything_else() {
    let disk = disk();
    let run = disk.run(2);
    let numbers = [run.write(0, 1, b"aaaa").0, run.write(1, 1, b"bbbb").0, run.write(0, 1, b"cccc").0];
    drop(run);
    disk.boot();
    let run = Arc::new(disk.run(2));
    assert!(run.changes().is_lacking());
    nacre_env::thread::scope(|scope| {
        let read = scope.spawn(|| run.read(1, 1));
        let second = scope.spawn(|| {
            assert_eq!(run.replay(1, 1, numbers[1], b"bbbb"), WRITTEN);
            run.end_replay(1);
        });
        assert_eq!(run.replay(0, 1, numbers[0], b"aaaa"), WRITTEN);
        assert_eq!(run.replay(0, 1, numbers[2], b"cccc"), WRITTEN);
        second.join().expect("replayed");
        assert!(!read.is_finished(), "a client may still replay changes");
        run.end_replay(0);
        assert_eq!(read.join().expect("read"), b"cccc");
    });
    assert!(run.write(0, 1, b"dddd").0 > numbers[2], "no number is used twice");
    assert_eq!(run.replay(0, 1, TransNo(numbers[2].0 + 1), b"eeee"), Err(Status::EPERM), "it is over");
    assert_eq!(run.read(0, 1), b"dddd");
}

#[test]
fn a_change_is_not_replayed_over_later_data_that_another_client_has_synced() {
    let disk = disk();
    let run = disk.run(2);
    let (own, other) = (run.write(0, 1, b"aaaa").0, run.write(0, 2, b"aaaa").0);
    run.write(1, 1, b"bbbb");
    run.sync(1, Some(1));
    drop(run);
    disk.boot();
    let run = disk.run(2);
    run.end_replay(1);
    assert_eq!(run.replay(0, 1, own, b"aaaa"), WRITTEN);
    assert_eq!(run.replay(0, 2, other, b"cccc"), WRITTEN);
    run.end_replay(0);
    assert_eq!((run.read(0, 1), run.read(0, 2)), (b"bbbb".to_vec(), b"cccc".to_vec()));
    run.sync(0, None);
    assert!(run.changes().has(&ClientUuid([1; 16]), object(2), other));
}

#[test]
fn the_end_of_the_process_alone_loses_nothing_and_an_ended_replay_goes_on_in_the_next_run() {
    let disk = disk();
    let run = disk.run(1);
    let number = run.write(0, 1, b"aaaa").0;
    drop(run);
    let run = disk.run(1);
    assert_eq!(run.replay(0, 1, number, b"bbbb"), WRITTEN);
    assert_eq!(run.read(0, 1), b"aaaa", "it was there");
    let numbers = [run.write(0, 1, b"cccc").0, run.write(0, 2, b"dddd").0];
    drop(run);
    disk.boot();
    let run = disk.run(1);
    assert_eq!(run.replay(0, 1, numbers[0], b"cccc"), WRITTEN);
    drop(run);
    let run = disk.run(1);
    assert!(run.changes().is_lacking());
    assert_eq!(run.replay(0, 1, numbers[0], b"xxxx"), WRITTEN);
    assert_eq!(run.replay(0, 2, numbers[1], b"dddd"), WRITTEN);
    run.end_replay(0);
    assert_eq!((run.read(0, 1), run.read(0, 2)), (b"cccc".to_vec(), b"dddd".to_vec()));
}

#[test]
fn an_object_that_was_destroyed_is_not_made_again() {
    let disk = disk();
    let run = disk.run(1);
    let number = run.write(0, 1, b"aaaa").0;
    assert_eq!(
        run.call(0, &OssRequest::Destroy { objects: vec![object(1)] }, Bulk::None),
        Ok(OssReply::Done)
    );
    drop(run);
    disk.boot();
    let run = disk.run(1);
    assert_eq!(run.replay(0, 1, number, b"aaaa"), WRITTEN);
    run.end_replay(0);
    assert_eq!(run.read(0, 1), b"");
    assert!(!disk.store.exists(object(1)).expect("looked up"));
}

#[test]
fn a_change_that_its_client_sends_again_on_another_connection_is_replayed_and_the_client_remains() {
    let disk = disk();
    let run = disk.run(2);
    let number = run.write(0, 1, b"aaaa").0;
    run.write(1, 2, b"bbbb");
    drop(run);
    disk.boot();
    let run = disk.run(2);
    nacre_env::thread::scope(|scope| {
        let first = scope.spawn(|| run.replay(0, 1, number, b"aaaa"));
        while !run.server.replays.order.lock().heads.is_complete(&[run.clients[0].client]) {
            nacre_env::thread::yield_now();
        }
        let second = scope.spawn(|| run.replay(0, 1, number, b"aaaa"));
        // `EVICTED` would drop the client.
        assert_eq!(first.join().expect("ended"), Err(Status::EINTR));
        run.end_replay(1);
        assert_eq!(second.join().expect("replayed"), WRITTEN);
    });
    run.end_replay(0);
    assert_eq!(run.read(0, 1), b"aaaa");
}
