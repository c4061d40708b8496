//! Single events, one for each test.

use super::*;
use crate::check::check_dir;
use crate::tables::{INODES, PREPARED, decode_op_key};
use crate::tx::now;
use nacre_layout::dir_layout::MOVED_ALL;
use nacre_ondisk::InodeRecord;
use nacre_rpc::ReplySlot;
use nacre_types::Xid;
use nacre_wire::peer::{Name, Part, Transaction, TransactionId, Update};
use std::rc::Rc;

pub(super) fn rename<'a>(from: (Fid, &'a str), to: (Fid, &'a str)) -> MdsRequest<'a> {
    MdsRequest::Rename {
        from_parent: from.0,
        from_name: from.1.as_bytes(),
        to_parent: to.0,
        to_name: to.1.as_bytes(),
        flags: RenameFlags::empty(),
    }
}

/// The log of a server may lose its end in a power loss. Other MDTs return the transactions in which they
/// took part, whichever coordinated them.
#[test]
fn a_part_that_was_lost_with_the_power_is_done_again() {
    for lost in [0u16, 1] {
        let mut world = World::new(2, 3);
        let (here, there) = (world.fid(0), world.fid(1));
        world.make(Fid::ROOT, "here", here, true).expect("made");
        world.make(Fid::ROOT, "there", there, true).expect("made");
        let (file, other, third) = (world.fid(0), world.fid(1), world.fid(1));
        world.make(here, "file", file, false).expect("made");
        world.make(there, "other", other, false).expect("made");
        world.make(there, "third", third, false).expect("made");
        world.recover();
        let old = world.synced_image(lost);

        world.run(0, &rename((here, "file"), (there, "moved"))).expect("moved");
        world.run(1, &rename((there, "other"), (here, "came"))).expect("moved");
        let link = MdsRequest::Link { fid: third, parent: Fid::ROOT, name: b"link" };
        world.run(0, &link).expect("linked");
        let expected = world.tree();

        assert!(world.lose_power(old), "something was synced");
        world.recover();
        assert_eq!(world.tree(), expected, "MDT {lost} lost its end");
        world.check();
    }
}

/// Otherwise names on another MDT could lead to what no MDT has.
#[test]
fn what_a_transaction_depends_on_is_durable_before_it_as_far_as_that_is_new() {
    let world = World::new(2, 3);
    let there = world.fid(1);
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.recover();
    let synced = |mdt| world.net.get(mdt).expect("alive").leaves.store.last_committed();
    let (directory, below) = (world.fid(0), world.fid(1));
    let old = synced(0);
    world.make(Fid::ROOT, "directory", directory, true).expect("made");
    assert_eq!(synced(0), old, "one MDT alone syncs later");
    world.make(directory, "below", below, true).expect("made");
    assert!(synced(0) > old, "the coordinator has the directory");
    let (with_directory, file) = (synced(0), world.fid(1));
    world.make(directory, "another", world.fid(1), true).expect("made");
    assert_eq!(synced(0), with_directory, "the directory was there already");

    let old = synced(1);
    world.make(there, "file", file, false).expect("made");
    assert_eq!(synced(1), old);
    let link = MdsRequest::Link { fid: file, parent: Fid::ROOT, name: b"link" };
    world.run(0, &link).expect("linked");
    assert!(synced(1) > old, "the participant has the file");
    world.check();
}

/// The answer is restored with it: its client has not received it, and resends the request.
#[test]
fn an_answer_that_was_lost_with_the_power_is_known_again() {
    let mut world = World::new(2, 3);
    world.recover();
    let old = world.synced_image(0);
    let (client, cred) = (export(1, Nid::Lo).0, Cred::system());
    let make = |name: &str, fid: Fid, slot: ReplySlot| {
        let (name, new) = (name.as_bytes(), NewFile::Directory);
        let (open, exclusive) = (None, true);
        let request =
            MdsRequest::Create { parent: Fid::ROOT, name, fid, new, mode: 0o755, umask: 0, open, exclusive };
        let mds = world.net.get(0).expect("alive");
        mds.connect(&client).expect("connects");
        mds.handle(&client, &Call { reply_slot: Some(slot), ..Call::new(&cred) }, &request).expect("made")
    };
    let slot = |tag, xid| ReplySlot { client: client.client, tag, xid: Xid(xid) };
    make("a", world.fid(1), slot(3, 10));
    let last = make("b", world.fid(1), slot(3, 11));
    let other = make("c", world.fid(1), slot(4, 12));

    assert!(world.lose_power(old), "something was synced");
    world.recover();
    let mds = world.net.get(0).expect("alive");
    let found = |tag, xid| mds.find_stored_answer(&slot(tag, xid)).map(|answer| answer.reply);
    assert_eq!(found(3, 11), Some(last.reply));
    assert_eq!(found(4, 12), Some(other.reply));
    assert_eq!(found(3, 10), None, "its client has heard it, or it would not have asked for more");
    drop(mds);
    world.check();
}

#[test]
fn files_move_together_and_each_moves_or_stays_on_its_own_account() {
    let world = World::new(3, 3);
    let directory = world.fid(1);
    world.make(Fid::ROOT, "directory", directory, true).expect("made");
    let files: Vec<Fid> = (0..5).map(|_| world.fid(0)).collect();
    for (number, fid) in files.iter().enumerate() {
        let name = format!("{number}");
        world.make(Fid::ROOT, &name, *fid, false).expect("made");
        world.run(0, &rename((Fid::ROOT, &name), (directory, &name))).expect("renamed");
    }
    let link = MdsRequest::Link { fid: files[1], parent: Fid::ROOT, name: b"link" };
    world.run(0, &link).expect("linked");
    let open = MdsRequest::Open {
        fid: files[3],
        handle: OpenHandle(1),
        flags: OpenFlags::READ,
        lock: LockHandle(0),
    };
    world.run(0, &open).expect("opened");
    world.recover();

    let inside = world.fid(0);
    world.make(Fid::ROOT, "inside", inside, true).expect("made");
    let absent = world.fid(0);
    let mut moves: Vec<(Fid, Fid)> = files.iter().map(|fid| (*fid, world.fid(1))).collect();
    moves[2].1 = world.fid(2);
    moves.extend([
        (inside, world.fid(1)),
        (absent, world.fid(1)),
        (files[4], world.fid(1)),
        (absent, Fid::ROOT),
    ]);
    moves.push((world.fid(0), moves[0].1));
    let request = MdsRequest::MigrateFiles { moves: moves.clone() };
    let messages = world.net.endangered.load(Ordering::Relaxed);
    let outcomes = [None, None, None, Some(Status::EBUSY), None]
        .into_iter()
        .chain([Status::EISDIR, Status::ENOENT, Status::EINVAL, Status::EINVAL, Status::EINVAL].map(Some))
        .collect::<Vec<Option<Status>>>();
    assert_eq!(world.run(0, &request), Ok(MdsReply::Outcomes(outcomes.clone())));
    let spent = world.net.endangered.load(Ordering::Relaxed) - messages;
    assert!(spent <= 12, "one transaction over two other MDTs, not one for each file: {spent} messages");

    let tree = world.tree();
    let lead = |parent: &Fid, name: &str| tree[parent][name].fid;
    let expected = [moves[0].1, moves[1].1, moves[2].1, files[3], moves[4].1];
    for (number, fid) in expected.iter().enumerate() {
        assert_eq!(lead(&directory, &format!("{number}")), *fid);
    }
    assert_eq!(lead(&Fid::ROOT, "link"), moves[1].1);
    // As after a lost answer. If the inode is not found, another request may have moved it, to another FID.
    let again = world.run(0, &request);
    assert_eq!(again, Ok(MdsReply::Outcomes(outcomes)), "those that have moved are where they should be");
    world.recover();
    assert_eq!(world.tree(), tree);
    world.check();
}

/// Creates a directory on MDT 1, and the parts of a transaction of MDT 0 that adds a name there.
fn one_name_elsewhere() -> (World, Fid, Vec<Part>) {
    let world = World::new(2, 4);
    let fid = world.fid(1);
    world.make(Fid::ROOT, "there", fid, true).expect("made");
    world.recover();
    let at = Name { parent: fid, name: b"not yet".to_vec() };
    let name = Update::PutName { at, fid: Fid::ROOT, kind: FileKind::Directory };
    (world, fid, vec![Part { mdt: 0, updates: Vec::new() }, Part { mdt: 1, updates: vec![name] }])
}

/// A commit may wait for clients, and fail. Until then a restarted MDT must not get the transaction, nor may
/// its coordinator treat it as done.
#[test]
fn a_transaction_that_is_about_to_be_committed_is_done_nowhere_else() {
    let (world, fid, parts) = one_name_elsewhere();
    let coordinator = world.net.get(0).expect("alive");
    let id = coordinator.leaves.transactions.be_about_to_commit(parts).id;

    coordinator.resolver.resolve_once();
    world.net.kill(1);
    world.start(1);
    world.meet();
    let lookup = MdsRequest::Lookup { parent: fid, name: b"not yet" };
    let found = world.run(1, &lookup);
    assert!(matches!(found, Ok(MdsReply::Entry { attr: None, .. })), "{found:?}");
    let way = Way { net: world.net.clone(), from: 1, to: 0 };
    let asked = way.call(&Cred::system(), &MdsRequest::Peer(PeerRequest::Outcome { op: id }));
    assert_eq!(asked.map(|answer| answer.reply), Err(Status::EAGAIN), "it is still known, and not decided");
}

/// A sync of everything waits for the decision, and does not make it. The transaction may still abort.
#[test]
fn a_transaction_that_is_about_to_be_committed_is_not_done_because_somebody_syncs() {
    let (world, fid, parts) = one_name_elsewhere();
    let coordinator = world.net.get(0).expect("alive");
    let everything = MdsRequest::Commit { upto: TransNo(u64::MAX) };
    assert_eq!(world.run(0, &everything), Ok(MdsReply::Done));
    let id = coordinator.leaves.transactions.be_about_to_commit(parts).id;

    nacre_env::thread::scope(|scope| {
        let (send, waits) = mpsc::channel();
        let (world, everything) = (&world, &everything);
        let syncer = scope.spawn(move || {
            let _hook = nacre_env::install_hook(Rc::new(Tell(send)));
            world.run(0, everything)
        });
        waits.recv().expect("it waits for something");
        coordinator.leaves.transactions.let_fail(&id);
        assert_eq!(syncer.join().expect("no panic"), Ok(MdsReply::Done));
    });
    let lookup = MdsRequest::Lookup { parent: fid, name: b"not yet" };
    let found = world.run(1, &lookup);
    assert!(matches!(found, Ok(MdsReply::Entry { attr: None, .. })), "{found:?}");
}

/// Nothing can have been lost, so clients need not wait for the MDTs that would know of it. After an unclean
/// end they do.
#[test]
fn an_mdt_that_was_stopped_in_order_lets_clients_in_though_no_other_answers() {
    for in_order in [true, false] {
        let world = World::new(2, 5);
        world.make(Fid::ROOT, "d", world.fid(1), true).expect("made");
        world.recover();
        let mds = world.net.alive.lock()[0].take().expect("alive");
        if in_order {
            mds.stop().expect("stops");
        } else {
            mds.leaves.store.close().expect("closes");
        }
        drop(mds);
        world.net.kill(1);
        world.start(0);
        world.meet();
        let before = Instant::now();
        world.run(0, &MdsRequest::Lookup { parent: Fid::ROOT, name: b"none" }).expect("served");
        let waited = before.elapsed() >= Duration::from_secs(4);
        assert_eq!(waited, !in_order, "after {:?}", before.elapsed());
    }
}

/// Each request to an unresponsive MDT takes seconds, and a server that stops waits for them.
#[test]
fn an_mdt_that_is_away_is_not_asked_for_each_operation() {
    let world = World::new(2, 1);
    for number in 0..20 {
        world.make(Fid::ROOT, &format!("d{number}"), world.fid(1), true).expect("made");
    }
    let mds = world.net.get(0).expect("alive");
    mds.leaves.records.sync_all().expect("synced");
    world.net.kill(1);
    let before = world.net.messages.load(Ordering::Relaxed);
    mds.resolver.resolve_once();
    let asked = world.net.messages.load(Ordering::Relaxed) - before;
    assert!(asked <= 3, "{asked} questions");
    drop(mds);
    world.recover();
    world.check();
}

/// The repair of one MDT does not treat unknown names on other MDTs as damage.
#[test]
fn a_repair_of_one_mdt_leaves_inodes_alone_whose_names_lie_on_others() {
    let world = World::new(2, 6);
    let (there, striped) = (world.fid(1), world.striped(0, &[0, 1], DirHash::Fnv1a64));
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.make(there, "striped", striped, true).expect("made");
    let file = world.fid(0);
    world.make(Fid::ROOT, "file", file, false).expect("made");
    let link = MdsRequest::Link { fid: file, parent: there, name: b"link" };
    world.run(1, &link).expect("linked");
    world.run(0, &rename((Fid::ROOT, "file"), (there, "moved"))).expect("moved");
    world.recover();
    let dirs = world.stop();
    {
        let store = MetaStore::open(&store_path(dirs[0].path()), config().store).expect("opened");
        let root = store
            .get(INODES, &Fid::ROOT.to_key(), |value| InodeRecord::decode(Fid::ROOT, value.expect("there")));
        let mut root = root.expect("read").expect("a record");
        root.attr.nlink += 5;
        let (mut bytes, mut batch) = (Vec::new(), nacre_store::Batch::default());
        root.encode(&mut bytes);
        batch.put(INODES, &Fid::ROOT.to_key(), &bytes);
        let transno = store.commit(&batch).expect("stored");
        store.sync(transno).expect("synced");
        store.close().expect("closed");
    }
    let report = check_dir(dirs[0].path(), &config_of(0), true, &mut |_| {}).expect("repaired");
    assert_eq!(report.repaired, 1, "{:#?}", report.problems);
    check_dirs_of(&dirs);
}

#[test]
fn a_name_on_another_mdt_is_told_to_be_there() {
    let world = World::new(2, 1);
    let fid = world.fid(1);
    world.make(Fid::ROOT, "there", fid, true).expect("made");
    let lookup = MdsRequest::Lookup { parent: Fid::ROOT, name: b"there" };
    match world.run(0, &lookup).expect("looked up") {
        MdsReply::Remote { fid: found, public, .. } => assert_eq!((found, public), (fid, true)),
        other => panic!("{other:?}"),
    }
    let up = world.run(1, &MdsRequest::Lookup { parent: fid, name: b".." }).expect("looked up");
    assert!(matches!(up, MdsReply::Remote { fid: Fid::ROOT, .. }), "{up:?}");
    let path = world.run(1, &MdsRequest::FidToPath { fid, index: 0 }).expect("a path");
    assert_eq!(path, MdsReply::Path { top: Fid::ROOT, path: b"there".to_vec() });
    let inner = world.fid(1);
    world.make(fid, "inner", inner, true).expect("made");
    let path = world.run(1, &MdsRequest::FidToPath { fid: inner, index: 0 }).expect("a path");
    assert_eq!(path, MdsReply::Path { top: Fid::ROOT, path: b"there/inner".to_vec() });
    let (middle, last) = (world.fid(0), world.fid(0));
    world.make(inner, "middle", middle, true).expect("made");
    world.make(middle, "last", last, true).expect("made");
    let path = world.run(0, &MdsRequest::FidToPath { fid: last, index: 0 }).expect("a path");
    assert_eq!(path, MdsReply::Path { top: inner, path: b"middle/last".to_vec() });
}

/// An MDT may get a request that names another one which has joined before its configuration has it.
#[test]
fn an_mdt_that_is_not_known_is_looked_for_before_it_is_missing() {
    let world = World::new(3, 5);
    let mds = world.net.get(0).expect("alive");
    let way =
        |net: &Arc<Net>, to| (to, Arc::new(Way { net: net.clone(), from: 0, to }) as Arc<dyn MdsEndpoint>);
    mds.leaves.transactions.set_peers([way(&world.net, 1)].into_iter().collect());
    let asked = Arc::new(Mutex::new(Vec::new()));
    // The network has the server, and the server must not own the network.
    let (seen, weak, net) = (asked.clone(), Arc::downgrade(&mds), Arc::downgrade(&world.net));
    mds.set_newcomers(Box::new(move |index| {
        seen.lock().push(index);
        if let (2, Some(mds), Some(net)) = (index, weak.upgrade(), net.upgrade()) {
            mds.leaves.transactions.set_peers([1, 2].map(|to| way(&net, to)).into_iter().collect());
        }
        Ok(index == 2)
    }));
    drop(mds);
    world.make(Fid::ROOT, "there", world.fid(2), true).expect("made on the one that has joined");
    let unknown = Fid::new(Fid::first_sequence_of_mdt(7) + 1, 1, 0);
    assert_eq!(world.make(Fid::ROOT, "nowhere", unknown, true), Err(Status::ENODEV));
    let mut asked = std::mem::take(&mut *asked.lock());
    asked.dedup();
    assert_eq!(asked, [2, 7]);
    world.meet();
    world.recover();
    world.check();
}

/// An MDT that joins accepts no names before it has the seed with which others hash them.
#[test]
fn an_mdt_is_acquainted_when_the_first_one_has_told_it_what_it_must_know() {
    let world = World::new(2, 6);
    world.net.kill(1);
    world.net.kill(0);
    world.start(1);
    world.meet();
    let mds = world.net.get(1).expect("alive");
    assert!(!mds.resolver.await_acquaintance(Instant::now()), "nobody tells it anything");
    world.start(0);
    world.meet();
    assert!(mds.resolver.await_acquaintance(Instant::now()));
    assert_eq!(mds.leaves.records.hash_seed(), world.net.get(0).expect("alive").leaves.records.hash_seed());
    drop(mds);
    world.recover();
}

/// Its connections to others are pinged while they are idle.
#[test]
fn a_server_is_known_without_a_lease() {
    let world = World::new(2, 7);
    let way = Way { net: world.net.clone(), from: 1, to: 0 };
    let answer = way.call(&Cred::system(), &MdsRequest::Ping).expect("it is known");
    assert!(matches!(answer.reply, MdsReply::Lease(grant) if !grant.exclusive));
    let other = way.call(&Cred::system(), &MdsRequest::GetAttr { fid: Fid::ROOT });
    assert_eq!(other.map(|answer| answer.reply), Err(Status::EVICTED), "it is no client");
}

/// Its place among the changes that clients of the last run replay is known, and the server listens before.
#[test]
fn what_others_have_decided_is_done_while_clients_of_the_last_run_are_awaited() {
    let mut world = World::new(2, 5);
    let there = world.fid(1);
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.recover();
    let mds = world.net.get(1).expect("alive");
    mds.disconnect(ClientUuid([1; 16]));
    mds.connect(&export(9, tcp_nid()).0).expect("let in");
    mds.leaves.records.sync_all().expect("synced");
    drop(mds);
    let old = world.synced_image(1);
    let file = world.fid(0);
    world.make(Fid::ROOT, "file", file, false).expect("made");
    world.run(0, &rename((Fid::ROOT, "file"), (there, "moved"))).expect("moved");
    assert!(world.lose_power(old), "something was synced");
    world.start(1);
    world.meet();
    let mds = world.net.get(1).expect("alive");
    assert!(mds.mdlocks.is_recovering(), "nobody has waited for the client");
    // It may have changes from before.
    let client = export(9, tcp_nid()).0;
    mds.connect(&client).expect("let in");
    end_replay(&mds, &client);
    mds.replayer.apply_due();
    let found =
        mds.leaves.records.find_name(&there, mds.leaves.records.hash(b"moved"), b"moved").expect("read");
    assert_eq!(found.map(|found| found.fid), Some(file));
    drop(mds);
    world.check();
}

/// A client of the last run has nothing to replay.
fn end_replay(mds: &Mds, client: &Export) {
    let done = MdsRequest::Locks { request: nacre_wire::lock::LockRequest::ReplayDone };
    mds.handle(client, &Call::new(&Cred::system()), &done).expect("taken");
}

/// Whether a client has a file open is known only when the clients of the last run have reconnected.
#[test]
fn a_file_whose_last_name_goes_before_its_opener_is_back_stays_for_it() {
    let mut world = World::new(2, 5);
    let (there, victim, file) = (world.fid(1), world.fid(1), world.fid(0));
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.make(there, "victim", victim, false).expect("made");
    world.make(Fid::ROOT, "file", file, false).expect("made");
    world.recover();
    let (client, handle, cred) = (export(9, tcp_nid()).0, OpenHandle(1), Cred::system());
    let open = |mds: &Mds, flags| {
        let request = MdsRequest::Open { fid: victim, handle, flags, lock: LockHandle(0) };
        mds.handle(&client, &Call::new(&cred), &request)
    };
    let mds = world.net.get(1).expect("alive");
    mds.disconnect(ClientUuid([1; 16]));
    mds.connect(&client).expect("let in");
    open(&mds, OpenFlags::READ).expect("opened");
    mds.leaves.records.sync_all().expect("synced");
    drop(mds);
    let old = world.synced_image(1);
    world.run(0, &rename((Fid::ROOT, "file"), (there, "victim"))).expect("moved");
    assert!(world.lose_power(old), "something was synced");
    world.start(1);
    world.meet();
    let mds = world.net.get(1).expect("alive");
    mds.connect(&client).expect("let in");
    end_replay(&mds, &client);
    open(&mds, OpenFlags::READ | OpenFlags::REPLAY).expect("opened again");
    let run = |request: &MdsRequest<'_>| mds.handle(&client, &Call::new(&cred), request);
    let attr = run(&MdsRequest::GetAttr { fid: victim }).map(|answer| attr_of(answer.reply));
    assert_eq!(attr.expect("there").expect("attributes").nlink, 0);
    run(&MdsRequest::Close { fid: victim, handle, update: Default::default(), written: Vec::new() })
        .expect("closed");
    assert_eq!(run(&MdsRequest::GetAttr { fid: victim }).map(drop), Err(Status::ENOENT));
    drop(mds);
    world.check();
}

/// Returns the transactions known to an MDT.
fn stored(mds: &Mds) -> Vec<Transaction> {
    let mut found = Vec::new();
    let mut take = |_: &[u8], value: &[u8]| {
        found.extend(crate::transactions::state::decode_transaction(value));
        std::ops::ControlFlow::Continue(())
    };
    mds.leaves
        .store
        .scan(crate::tables::TRANSACTIONS, &[], std::ops::Bound::Unbounded, &mut take)
        .expect("read");
    found
}

/// A request may be sent twice, and the second copy arrive late: after its transactions are durable and while
/// others of its coordinator are not.
#[test]
fn a_transaction_is_not_done_again_when_it_was_forgotten_before_an_older_one() {
    let world = World::new(2, 8);
    let (there, file) = (world.fid(1), world.fid(0));
    world.make(Fid::ROOT, "there", there, true).expect("made");
    world.make(Fid::ROOT, "file", file, false).expect("made");
    world.recover();
    world.run(0, &rename((Fid::ROOT, "file"), (there, "moved"))).expect("moved");
    let mds = world.net.get(1).expect("alive");
    let transaction = stored(&mds).pop().expect("it is not durable yet");
    let ask = |request| {
        let way = Way { net: world.net.clone(), from: 0, to: 1 };
        way.call(&Cred::system(), &MdsRequest::Peer(request)).map(drop)
    };
    ask(PeerRequest::Sync { op: transaction.id }).expect("durable");
    ask(PeerRequest::Forget { ops: vec![transaction.id], below: transaction.id }).expect("forgotten");
    let unlink = MdsRequest::Unlink { parent: there, name: b"moved", directory: false };
    world.run(1, &unlink).expect("removed");
    ask(PeerRequest::Apply { transaction: transaction.clone(), transno: TransNo(0) }).expect("done long ago");
    drop(mds);
    world.net.kill(1);
    world.start(1);
    world.meet();
    ask(PeerRequest::Apply { transaction, transno: TransNo(0) }).expect("done long ago");
    assert_eq!(world.tree()[&there], BTreeMap::new());
    world.recover();
    world.check();
}

/// Transactions forgotten between the answer to a greeting and its end would count as lost, and be applied
/// twice.
#[test]
fn nothing_is_forgotten_before_it_was_asked_what_is_to_be_done_again() {
    let world = World::new(2, 7);
    world.make(Fid::ROOT, "there", world.fid(1), true).expect("made");
    let mds = world.net.get(1).expect("alive");
    let open =
        |mds: &Mds| stored(mds).into_iter().map(|transaction| transaction.id).collect::<Vec<TransactionId>>();
    let ops = open(&mds);
    assert_eq!(ops.len(), 1, "it is not durable yet");
    drop(mds);
    world.net.kill(1);
    world.start(1);
    let forget = || {
        let way = Way { net: world.net.clone(), from: 0, to: 1 };
        let request = PeerRequest::Forget { ops: ops.clone(), below: ops[0] };
        way.call(&Cred::system(), &MdsRequest::Peer(request)).map(drop)
    };
    assert_eq!(forget(), Err(Status::EAGAIN));
    assert_eq!(open(&world.net.get(1).expect("alive")), ops, "it is still known");
    world.meet();
    assert_eq!(forget(), Ok(()));
    world.recover();
    world.check();
}

/// A rename was acknowledged, and one of the MDTs was unreachable when the decision was sent: a client that
/// lists the directories finds the name in one of them. Undecided transactions delay no listing.
#[test]
fn a_listing_shows_what_another_mdt_has_decided() {
    let world = World::new(2, 12);
    let (here, there) = (world.fid(0), world.fid(1));
    world.make(Fid::ROOT, "here", here, true).expect("made");
    world.make(Fid::ROOT, "there", there, true).expect("made");
    for (name, parent) in [("a", here), ("b", there), ("c", here)] {
        world.make(parent, name, world.fid(parent.mdt_index()), false).expect("made");
    }
    let listed = |directory: Fid| {
        let request = MdsRequest::ReadDir {
            fid: directory,
            cookie: 0,
            max_bytes: 1 << 16,
            plus: false,
            locks: LockRange::default(),
        };
        let Ok(MdsReply::Directory(page)) = world.run(directory.mdt_index(), &request) else {
            panic!("a page")
        };
        let mut names: Vec<String> =
            page.entries().map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect();
        names.sort();
        names
    };
    let coordinator = world.net.get(0).expect("alive");
    world.net.loses_decisions.store(true, Ordering::Relaxed);
    world.run(0, &rename((here, "a"), (there, "a"))).expect("moved");
    world.run(1, &rename((there, "b"), (here, "b"))).expect("moved");
    let gathered =
        coordinator.core.coordinator.gather(&[], &[(here, b"c"), (there, b"c")]).expect("nobody has them");
    assert_eq!((listed(here), listed(there)), (vec!["b".to_owned(), "c".to_owned()], vec!["a".to_owned()]));
    drop(gathered);
    // Aborted transactions are resolved, too.
    assert_eq!(listed(there), ["a"]);
    world.net.loses_decisions.store(false, Ordering::Relaxed);
    world.run(0, &rename((here, "c"), (there, "c"))).expect("nobody has the names any more");
    assert_eq!(listed(there), ["a", "c"]);
    drop(coordinator);
    world.recover();
    world.check();
}

/// Creates a directory on MDT 0 with names.
fn with_names(world: &World, name: &str) -> Fid {
    let dir = world.fid(0);
    world.make(Fid::ROOT, name, dir, true).expect("made");
    for number in 0..8 {
        world.make(dir, &format!("n{number}"), world.fid(0), false).expect("made");
    }
    dir
}

/// Returns the number of its shards; 0 if it is not striped.
fn shards(world: &World, dir: Fid) -> usize {
    world.list_of(dir).map_or(0, |list| list.shards.len())
}

fn restripe(world: &World, fid: Fid, mdts: &[u16]) -> StatusResult<MdsReply> {
    let requested = DirDefault { count: mdts.len() as i32, mdts: mdts.to_vec(), ..DirDefault::default() };
    world.run(fid.mdt_index(), &MdsRequest::Restripe { fid, requested: &requested.encode() })
}

#[test]
fn a_second_change_is_refused_while_names_move_and_so_are_mdts_that_there_are_not() {
    let world = World::new(2, 8);
    let dir = with_names(&world, "dir");
    assert_eq!(restripe(&world, dir, &[0, 7]), Err(Status::EINVAL));
    assert_eq!(shards(&world, dir), 0);
    assert_eq!(restripe(&world, dir, &[0, 1]), Ok(MdsReply::Done));
    assert_eq!(restripe(&world, dir, &[0, 1]), Err(Status::EBUSY));
    world.settle();
    assert_eq!(shards(&world, dir), 2);
    assert_eq!(restripe(&world, dir, &[0, 1]), Err(Status::EALREADY));
    world.check();
}

#[test]
fn a_directory_that_grows_is_split_over_mdts_that_take_something_new_unless_it_is_fixed() {
    let world = World::new(3, 9);
    let grow = |dir: Fid| {
        world.net.get(0).expect("alive").moving.note_grown(dir);
        world.settle();
    };
    let full = |no_create: [bool; 3]| {
        for (index, no_create) in (0..).zip(no_create) {
            world.net.get(index).expect("alive").space.set_no_create(no_create);
        }
    };
    let dir = with_names(&world, "dir");
    full([false, true, true]);
    grow(dir);
    assert_eq!(shards(&world, dir), 0, "one shard alone would be no gain");
    full([false, true, false]);
    grow(dir);
    let mdts: Vec<u16> = world.parts(dir).iter().map(Fid::mdt_index).collect();
    assert_eq!(mdts, [0, 2]);
    let fixed = with_names(&world, "fixed");
    full([false; 3]);
    let flags = nacre_layout::dir_layout::DirFlags::FIXED;
    let requested = DirDefault { count: 2, mdts: vec![0, 1], flags, ..DirDefault::default() };
    let request = MdsRequest::Restripe { fid: fixed, requested: &requested.encode() };
    world.run(0, &request).expect("begins");
    world.settle();
    grow(fixed);
    assert_eq!(shards(&world, fixed), 2);
    grow(dir);
    assert_eq!(world.parts(dir).len(), 3);
    world.check();
}

#[test]
fn a_shard_that_is_given_up_while_it_is_listed_says_that_its_names_are_elsewhere() {
    let world = World::new(2, 10);
    let dir = with_names(&world, "dir");
    restripe(&world, dir, &[0, 1]).expect("begins");
    world.settle();
    let there = |fid: &&Fid| fid.mdt_index() == 1;
    let shard = *world.parts(dir).iter().find(there).expect("a shard on the other MDT");
    let mds = world.net.get(1).expect("alive");
    let seen = mds.leaves.records.find_inode(&shard).expect("read").expect("there");
    let requested = DirDefault { count: 1, mdts: vec![0], ..DirDefault::default() };
    world.run(0, &MdsRequest::Restripe { fid: dir, requested: &requested.encode() }).expect("begins");
    world.settle();
    assert_eq!(mds.leaves.records.find_inode(&shard), Ok(None));
    // Every listing that updates the access time has waited for its end.
    assert_eq!(mds.lookups.touch_directory(&seen, None), Err(Status::WRONG_SHARD));
    drop(mds);
    world.check();
}

/// A name that leaves is removed from the store a moment before the record in memory changes.
#[test]
fn a_listing_that_misses_names_that_have_just_left_says_that_they_have() {
    let world = World::new(2, 11);
    let dir = with_names(&world, "dir");
    restripe(&world, dir, &[0, 1]).expect("begins");
    let mds = world.net.get(0).expect("alive");
    let names = (0..8).map(|number| format!("n{number}").into_bytes()).collect();
    let update = Update::NamesOut { fid: dir, upto: MOVED_ALL, subdirs: 0, names };
    let latched = mds.leaves.locks.latch_all([dir].iter());
    let mut tx = mds.leaves.records.begin();
    mds.core.staging.stage(&mut tx, &Part { mdt: 0, updates: vec![update] }, now()).expect("they can leave");
    mds.leaves.store.commit(tx.batch()).expect("committed");
    let request = MdsRequest::ReadDir {
        fid: dir,
        cookie: 1,
        max_bytes: 1 << 16,
        plus: false,
        locks: LockRange::default(),
    };
    let answer = nacre_env::thread::scope(|scope| {
        let listing = scope.spawn(|| world.run(0, &request));
        while mds.leaves.locks.waiting() == 0 && !listing.is_finished() {
            nacre_env::thread::yield_now();
        }
        tx.take_cached().for_each(|(fid, record)| mds.leaves.records.note_committed(&fid, record));
        drop(latched);
        listing.join().expect("no panic")
    });
    let MdsReply::Shard { page, moved, .. } = answer.expect("listed") else { panic!("a shard") };
    assert_eq!((page.entries().count(), moved), (0, MOVED_ALL));
}

/// A participant never aborts a transaction that a coordinator may have decided, and waits for no coordinator
/// that does not exist.
#[test]
fn what_is_prepared_for_a_coordinator_that_does_not_exist_or_has_forgotten_it_expires() {
    let world = World::new(2, 5);
    let [nobody, away] = [7, 1].map(|mdt| TransactionId { mdt, boot: 1, number: 999 });
    let prepare = |mds: &Arc<Mds>, op: TransactionId| {
        let way = LoMds::connect_server(mds.clone(), ClientUuid([101; 16])).expect("connected");
        let request = PeerRequest::Prepare { op, fids: vec![Fid::ROOT], names: Vec::new(), replays: false };
        way.call(&Cred::system(), &MdsRequest::Peer(request)).map(drop)
    };
    let prepared = |world: &World| {
        let mds = world.net.get(0).expect("alive");
        let mut found = Vec::new();
        let keep = &mut |key: &[u8], _: &[u8]| {
            found.extend(decode_op_key(key));
            ControlFlow::Continue(())
        };
        mds.leaves.store.scan(PREPARED, &[], Bound::Unbounded, keep).expect("readable");
        found
    };
    let resolve = |world: &World| {
        let mds = world.net.get(0).expect("alive");
        nacre_env::thread::sleep(TIMEOUT);
        mds.resolver.resolve_once();
    };
    let first = world.net.get(0).expect("alive");
    assert_eq!(prepare(&first, TransactionId { mdt: 0, ..nobody }), Err(Status::EPROTO), "its own");
    // The list of MDTs is unknown, so it may be one that has just joined.
    prepare(&first, nobody).expect("prepared");
    drop(first);
    world.net.kill(0);
    world.recover();
    assert_eq!(prepared(&world), [nobody]);

    let answer = Arc::new(Mutex::new(Err(Status::ETIMEDOUT)));
    let said = answer.clone();
    world.net.get(0).expect("alive").set_newcomers(Box::new(move |_| *said.lock()));
    resolve(&world);
    assert_eq!(prepared(&world), [nobody], "the MGS does not answer");
    *answer.lock() = Ok(false);
    resolve(&world);
    assert!(prepared(&world).is_empty(), "the file system has no such MDT");
    assert_eq!(prepare(&world.net.get(0).expect("alive"), nobody), Err(Status::EPROTO));

    prepare(&world.net.get(0).expect("alive"), away).expect("prepared");
    world.net.kill(1);
    resolve(&world);
    assert_eq!(prepared(&world), [away], "it may have decided");
    world.start(1);
    world.meet();
    resolve(&world);
    assert!(prepared(&world).is_empty(), "it knows nothing of it");
    world.make(Fid::ROOT, "made", world.fid(0), true).expect("the root is not locked");
    world.recover();
    world.check();
}
