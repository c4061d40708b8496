use super::*;
use nacre_layout::LayoutSpec;
use nacre_types::{ProcessIdentity, Xid};
use nacre_wire::mds::XattrFlags;

fn slot(f: &Fixture, tag: u16, xid: u64) -> ReplySlot {
    ReplySlot { client: f.export.client, tag, xid: Xid(xid) }
}

fn make(f: &Fixture, name: &'static str) -> MdsRequest<'static> {
    MdsRequest::Create {
        parent: Fid::ROOT,
        name: name.as_bytes(),
        fid: f.fid(),
        new: NewFile::Directory,
        mode: 0o755,
        umask: 0,
        open: None,
        exclusive: true,
    }
}

/// Creates the file "a" in the root and opens it for writing.
fn create_and_open(fid: Fid, handle: OpenHandle) -> MdsRequest<'static> {
    MdsRequest::Create {
        parent: Fid::ROOT,
        name: b"a",
        fid,
        new: NewFile::Node { rdev: 0 },
        mode: 0o644,
        umask: 0,
        open: Some((handle, OpenFlags::WRITE | OpenFlags::CREATED)),
        exclusive: true,
    }
}

fn tcp_fixture() -> Fixture {
    let dir = tempfile::tempdir().expect("a directory");
    Mds::format(dir.path(), &config()).expect("formats");
    Fixture::start(dir, vec![FakeOst::new()], export(1, tcp_nid()).0)
}

#[test]
fn the_answer_of_a_request_is_found_again_after_a_restart() {
    let f = tcp_fixture();
    let answer = f.with_slot(slot(&f, 3, 77), &make(&f, "a")).expect("made");
    f.with_slot(slot(&f, 4, 78), &make(&f, "b")).expect("made");
    assert!(f.with_slot(slot(&f, 3, 79), &make(&f, "a")).is_err());
    let f = f.restart();
    let stored = f.mds.find_stored_answer(&slot(&f, 3, 77)).expect("stored");
    assert_eq!(stored.reply, answer.reply);
    assert!(stored.transno >= answer.transno);
    assert!(f.mds.find_stored_answer(&slot(&f, 3, 80)).is_none(), "another request of the same slot");
    assert!(f.mds.find_stored_answer(&slot(&f, 9, 77)).is_none());
    f.mds.disconnect(f.export.client);
    assert!(f.mds.find_stored_answer(&slot(&f, 3, 77)).is_none(), "a client that left needs no answers");
    f.check();
}

#[test]
fn a_create_that_is_answered_after_a_restart_has_opened_its_file() {
    let f = tcp_fixture();
    let (fid, handle) = (f.fid(), f.handle());
    let create = create_and_open(fid, handle);
    f.with_slot(slot(&f, 1, 5), &create).expect("made");
    let f = f.restart();
    assert!(f.mds.find_stored_answer(&slot(&f, 1, 5)).is_some());
    f.unlink(Fid::ROOT, "a").expect("removed");
    assert_eq!(f.stat(fid).expect("open").nlink, 0);
    assert_eq!(f.close(fid, handle), Ok(MdsReply::Done));
    f.check();
}

#[test]
fn a_client_that_comes_back_keeps_its_unlinked_open_file() {
    let f = tcp_fixture();
    let kept = f.file(Fid::ROOT, "kept").expect("made").fid;
    let lost = f.file(Fid::ROOT, "lost").expect("made").fid;
    let handle = f.open(kept, OpenFlags::READ).expect("opens");
    f.open(lost, OpenFlags::READ).expect("opens");
    f.unlink(Fid::ROOT, "kept").expect("removed");
    f.unlink(Fid::ROOT, "lost").expect("removed");
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, export, .. } = f;
    drop(mds);
    let mds = Mds::open(dir.path(), config(), Vec::new()).expect("starts");
    mds.connect(&export).expect("connects");
    let cred = Cred::system();
    let run = |request: &MdsRequest<'_>| mds.handle(&export, &Call::new(&cred), request);
    run(&MdsRequest::Open {
        fid: kept,
        handle,
        flags: OpenFlags::READ | OpenFlags::REPLAY,
        lock: LockHandle(0),
    })
    .expect("replayed");
    assert!(run(&MdsRequest::Ping).is_ok());
    // The first ordinary request ends the recovery, as no other client is awaited.
    assert!(run(&MdsRequest::GetAttr { fid: kept }).is_ok());
    assert_eq!(run(&MdsRequest::GetAttr { fid: lost }), Err(Status::ENOENT));
    let close = MdsRequest::Close { fid: kept, handle, update: Default::default(), written: Vec::new() };
    assert_eq!(run(&close).map(|a| a.reply), Ok(MdsReply::Done));
    assert_eq!(run(&MdsRequest::GetAttr { fid: kept }), Err(Status::ENOENT));
    mds.stop().expect("stops");
    drop(mds);
    check_dir(dir.path());
}

#[test]
fn orphans_of_a_client_in_the_servers_own_process_go_at_the_next_start() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    f.open(fid, OpenFlags::READ).expect("opens");
    f.unlink(Fid::ROOT, "a").expect("removed");
    let f = f.restart();
    assert_eq!(f.stat(fid), Err(Status::ENOENT));
    f.check();
}

#[test]
fn a_second_client_gets_in_when_the_first_has_released_its_caches() {
    let f = Fixture::new();
    let lease = f.run(&MdsRequest::Ping);
    assert!(matches!(lease, Ok(MdsReply::Lease(LeaseGrant { exclusive: true, .. }))));
    let (second, _) = export(2, tcp_nid());
    let mds = f.mds.clone();
    let connecting =
        nacre_env::thread::spawn(move || mds.connect(&second).map(|grant| grant.lease.exclusive));
    eventually(
        "the release",
        || matches!(f.run(&MdsRequest::Ping), Ok(MdsReply::Lease(grant)) if !grant.exclusive),
    );
    assert!(!connecting.is_finished(), "the first still caches");
    f.run(&MdsRequest::LeaseReleased { epoch: u64::MAX }).expect("released");
    assert_eq!(connecting.join().expect("no panic"), Ok(false));
    f.mds.disconnect(ClientUuid([2; 16]));
    let lease = f.run(&MdsRequest::Ping);
    assert!(matches!(lease, Ok(MdsReply::Lease(LeaseGrant { exclusive: true, .. }))));
}

#[test]
fn a_client_that_does_not_release_is_evicted() {
    let f = Fixture::new();
    let (second, _) = export(2, tcp_nid());
    assert_eq!(f.mds.connect(&second).map(|grant| grant.lease.exclusive), Ok(true));
    assert_eq!(f.run(&MdsRequest::Ping), Err(Status::EVICTED));
    assert_eq!(f.stat(Fid::ROOT), Err(Status::EVICTED));
    assert!(f.mds.connect(&f.export).is_ok() || f.mds.connect(&f.export).is_ok());
}

/// The last run had stored it, and its reply was lost: the client knows of no connection, and restores nothing.
#[test]
fn nothing_waits_for_a_client_that_has_not_been_connected_as_far_as_it_knows() {
    let f = tcp_fixture();
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, export, .. } = f;
    drop(mds);
    let mds = Mds::open(dir.path(), config(), Vec::new()).expect("starts");
    assert_eq!(mds.leaves.recovery.awaited(), 1);
    let callbacks = Arc::new(nacre_rpc::NoCallbacks);
    let first = Export::new(export.client, tcp_nid(), None, callbacks).at_first(true);
    mds.connect(&Arc::new(first)).expect("let in");
    assert_eq!(mds.leaves.recovery.awaited(), 0);
    assert!(!mds.leaves.mdlocks.is_recovering());
}

/// A replay would give it other objects, and the client has written to these.
#[test]
fn objects_of_a_layout_that_a_client_has_set_are_durable() {
    let f = tcp_fixture();
    let fid = f.file(Fid::ROOT, "file").expect("made").fid;
    let spec = LayoutSpec { stripe_count: Some(1), ..LayoutSpec::default() };
    let value = nacre_layout::user::encode_spec(&fid, &spec);
    let (name, flags) = (&b"lustre.lov"[..], XattrFlags::empty());
    f.run(&MdsRequest::SetXattr { fid, name, value: &value, flags }).expect("set");
    let store = &f.mds.leaves.store;
    assert_eq!(store.last_committed(), store.last_transno());
}

/// After a power loss, the next run would wait for it.
#[test]
fn the_end_of_a_client_is_durable() {
    let f = tcp_fixture();
    f.mds.disconnect(f.export.client);
    let store = &f.mds.leaves.store;
    assert_eq!(store.last_committed(), store.last_transno());
}

/// A process of this host that ended long ago, and a running one.
fn ended_and_running() -> (ProcessIdentity, ProcessIdentity) {
    let running = nacre_env::own_process();
    (ProcessIdentity { started: running.started + 1, ..running }, running)
}

#[test]
fn a_client_whose_process_has_ended_holds_nobody_up() {
    let (ended, running) = ended_and_running();
    let f = tcp_fixture();
    f.mds.disconnect(f.export.client);
    f.mds.connect(&export_of(5, ended)).expect("alone");
    let long = Duration::from_secs(60);
    f.mds.sessions.set_release_timeout(long);
    let began = Instant::now();
    let grant = f.mds.connect(&export_of(6, running)).expect("let in");
    assert!(grant.lease.exclusive, "the other one is gone");
    assert!(began.elapsed() < long / 2, "{:?}", began.elapsed());
    f.mds.disconnect(ClientUuid([6; 16]));
}

#[test]
fn recovery_waits_for_clients_that_may_live_and_for_no_others() {
    let (ended, running) = ended_and_running();
    let elsewhere = ProcessIdentity { boot: [1; 16], machine: [2; 16], ..ended };
    for (process, waits) in [(ended, false), (running, true), (elsewhere, true)] {
        let f = tcp_fixture();
        f.mds.disconnect(f.export.client);
        let client = export_of(5, running);
        f.mds.connect(&client).expect("alone");
        let fid = f.fid();
        let create = create_and_open(fid, f.handle());
        let cred = Cred::system();
        let run = |request: &MdsRequest<'_>| f.mds.handle(&client, &Call::new(&cred), request);
        run(&create).expect("made");
        run(&MdsRequest::Unlink { parent: Fid::ROOT, name: b"a", directory: false }).expect("removed");
        let record = nacre_ondisk::ClientRecord {
            connected: Default::default(),
            boot_count: 1,
            process: Some(process),
        };
        let mut tx = f.mds.leaves.records.begin();
        tx.batch().put(crate::tables::CLIENTS, &client.client.0, &record.encode());
        f.mds.core.commits.commit(&mut tx).expect("stored");
        f.mds.stop().expect("stops");
        let Fixture { dir, mds, .. } = f;
        drop(mds);
        let began = Instant::now();
        let mds = Mds::open(dir.path(), config(), Vec::new()).expect("starts");
        let next = export(7, tcp_nid()).0;
        assert!(mds.connect(&next).expect("let in").lease.exclusive);
        let waited = began.elapsed() >= config().recovery_window;
        assert_eq!(waited, waits, "{process:?}: {:?}", began.elapsed());
        // Its handles are closed on another thread.
        eventually("a file that nobody can have open any more is gone", || {
            let orphan = mds.handle(&next, &Call::new(&cred), &MdsRequest::GetAttr { fid });
            orphan.map(drop) == Err(Status::ENOENT)
        });
        mds.stop().expect("stops");
        drop(mds);
        check_dir(dir.path());
    }
}

#[test]
fn a_stopped_server_refuses_and_a_missing_or_foreign_one_does_not_start() {
    let f = Fixture::new();
    f.mds.stop().expect("stops");
    assert_eq!(f.stat(Fid::ROOT), Err(Status::ESHUTDOWN));
    assert!(f.mds.stop().is_ok(), "stopping twice is fine");
    let Fixture { dir, mds, .. } = f;
    drop(mds);
    assert!(matches!(Mds::format(dir.path(), &config()), Err(crate::MdsError::Exists(_))));
    let other = MdsConfig { index: 1, ..config() };
    assert!(matches!(Mds::open(dir.path(), other, Vec::new()), Err(crate::MdsError::WrongIndex { .. })));
    let empty = tempfile::tempdir().expect("a directory");
    assert!(Mds::open(empty.path(), config(), Vec::new()).is_err());
}

#[test]
fn transaction_numbers_grow_and_commit_makes_them_durable() {
    let f = Fixture::new();
    let mut last = 0;
    for name in ["a", "b", "c"] {
        let answer = f.answer(&f.cred, &make(&f, name)).expect("made");
        assert!(answer.transno.0 > last && answer.last_committed <= answer.transno);
        last = answer.transno.0;
    }
    let done =
        f.answer(&f.cred, &MdsRequest::Commit { upto: nacre_types::TransNo(u64::MAX) }).expect("durable");
    assert!(done.last_committed.0 >= last && done.transno.0 == 0);
}

#[test]
fn recovery_ends_with_the_last_of_a_thousand_idle_clients() {
    const CLIENTS: u16 = 1000;
    let f = tcp_fixture();
    f.mds.disconnect(f.export.client);
    let client = |number: u16| {
        let mut uuid = [7; 16];
        uuid[..2].copy_from_slice(&number.to_le_bytes());
        let (_, callbacks) = export(0, tcp_nid());
        Arc::new(Export::new(ClientUuid(uuid), tcp_nid(), None, callbacks))
    };
    let mut tx = f.mds.leaves.records.begin();
    for number in 0..CLIENTS {
        let record =
            nacre_ondisk::ClientRecord { connected: Default::default(), boot_count: 1, process: None };
        tx.batch().put(crate::tables::CLIENTS, &client(number).client.0, &record.encode());
    }
    f.mds.core.commits.commit(&mut tx).expect("stored");
    f.mds.stop().expect("stops");
    let Fixture { dir, mds, .. } = f;
    drop(mds);
    let mds = Mds::open(dir.path(), config(), Vec::new()).expect("starts");
    let done = MdsRequest::Locks { request: nacre_wire::lock::LockRequest::ReplayDone };
    let cred = Cred::system();
    for number in 0..CLIENTS {
        assert!(mds.mdlocks.is_recovering() && mds.leaves.recovery.is_under_way(), "{number} are back");
        let export = client(number);
        mds.connect(&export).expect("let in");
        for request in [&done, &MdsRequest::RecoveryDone] {
            mds.handle(&export, &Call::new(&cred), request).expect("taken");
        }
    }
    assert!(!mds.mdlocks.is_recovering() && !mds.leaves.recovery.is_under_way());
    let report = mds.mdlocks.recovery_report().expect("there was one");
    assert_eq!((report.completed, report.given_up), (usize::from(CLIENTS), 0));
}
