//! Clients replay changes that an MDT acknowledged and lost with its host.

use super::mdlocks::chmod;
use super::*;
use crate::tables::{DIRENTS, INODES, LINKS, META, RUNS_KEY, XATTRS};
use nacre_layout::Layout;
use nacre_ondisk::{InodeRecord, RunsRecord};
use nacre_rpc::ReplySlot;
use nacre_store::Batch;
use nacre_types::{SetAttr, SetAttrValid, TransNo, Xid};
use nacre_wire::connect::RunStart;
use nacre_wire::lock::LockRequest;
use nacre_wire::mds::{RenameFlags, XattrFlags};
use nacre_wire::peer::PeerRequest;
use nacre_wire::replay::ReplayedChange;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

/// An MDT with remote clients that keep their changes.
struct Farm {
    mds: Arc<Mds>,
    osts: Vec<Arc<FakeOst>>,
    dir: tempfile::TempDir,
    clients: Vec<Client>,
}

struct Client {
    export: Arc<Export>,
    sequence: u64,
    next: u32,
    kept: Vec<ReplayedChange>,
}

fn open(dir: &Path, osts: &[Arc<FakeOst>]) -> Arc<Mds> {
    let endpoints = osts.iter().enumerate().map(|(index, ost)| {
        let endpoint: Arc<dyn OssEndpoint> = ost.clone();
        (index as u16, endpoint)
    });
    Mds::open(dir, config(), endpoints.collect()).expect("starts")
}

fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(copied.success());
}

impl Farm {
    fn new(clients: u8) -> Farm {
        let dir = tempfile::tempdir().expect("a directory");
        Mds::format(dir.path(), &config()).expect("formats");
        let osts = vec![FakeOst::new()];
        let mds = open(dir.path(), &osts);
        let mut farm = Farm { mds, osts, dir, clients: Vec::new() };
        for number in 1..=clients {
            // The ones before release what they cache under the lease.
            let exports: Vec<_> = farm.clients.iter().map(|client| client.export.clone()).collect();
            let (export, _) = export(number, tcp_nid());
            let (mds, own) = (farm.mds.clone(), export.clone());
            let connecting = nacre_env::thread::spawn(move || mds.connect(&own).map(drop));
            eventually("the connect", || {
                for known in &exports {
                    let _ = farm.call(known, &MdsRequest::LeaseReleased { epoch: u64::MAX });
                }
                connecting.is_finished()
            });
            connecting.join().expect("no panic").expect("connects");
            let Ok(MdsReply::Sequence(sequence)) =
                farm.call(&export, &MdsRequest::AllocateSequence).map(|answer| answer.reply)
            else {
                panic!("a sequence")
            };
            farm.clients.push(Client { export, sequence, next: 1, kept: Vec::new() });
        }
        farm
    }

    fn call(&self, export: &Export, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.mds.handle(export, &Call::new(&Cred::system()), request)
    }

    /// Executes a request of a client, which keeps it if it changed something.
    fn run(&mut self, client: usize, request: &MdsRequest<'_>) -> StatusResult<MdsReply> {
        let answer = self.call(&self.clients[client].export, request)?;
        if answer.transno.0 != 0 {
            self.clients[client].kept.push(ReplayedChange::new(&Cred::system(), request, &answer));
        }
        Ok(answer.reply)
    }

    fn fid(&mut self, client: usize) -> Fid {
        let client = &mut self.clients[client];
        client.next += 1;
        Fid::new(client.sequence, client.next - 1, 0)
    }

    fn make(&mut self, client: usize, parent: Fid, name: &str, new: &NewFile<'_>) -> StatusResult<Fid> {
        let (fid, name) = (self.fid(client), name.as_bytes());
        let new = *new;
        let request =
            MdsRequest::Create { parent, name, fid, new, mode: 0o644, umask: 0, open: None, exclusive: true };
        self.run(client, &request).map(|_| fid)
    }

    fn file(&mut self, client: usize, parent: Fid, name: &str) -> Fid {
        self.make(client, parent, name, &NewFile::Node { rdev: 0 }).expect("made")
    }

    /// Copies what is durable.
    fn snapshot(&mut self) -> tempfile::TempDir {
        let all = MdsRequest::Commit { upto: TransNo(u64::MAX) };
        self.call(&self.clients[0].export, &all).expect("durable");
        self.clients.iter_mut().for_each(|client| client.kept.clear());
        let disk = tempfile::tempdir().expect("a directory");
        copy(&crate::records::store_path(self.dir.path()), disk.path());
        disk
    }

    /// Makes what is on a disk that of an earlier boot of the host.
    fn boot(&self, disk: &tempfile::TempDir) {
        let own = crate::records::store_path(self.dir.path());
        let path = disk.path().join(own.file_name().expect("a name"));
        let store = MetaStore::open(&path, config().store).expect("opens");
        let found = store.get(META, RUNS_KEY, |value| RunsRecord::decode(value?).ok()).expect("read");
        let mut batch = Batch::new();
        batch.put(META, RUNS_KEY, &RunsRecord { boot_id: [9; 16], ..found.expect("a record") }.encode());
        let transno = store.commit(&batch).expect("committed");
        store.sync(transno).expect("durable");
        store.close().expect("closes");
    }

    /// Starts the MDT with what was on its disk at the time of the snapshot.
    fn lose_power(self, disk: &tempfile::TempDir) -> Farm {
        let Farm { mds, osts, dir, clients } = self;
        let store = crate::records::store_path(dir.path());
        mds.leaves.store.close().expect("closes");
        drop(mds);
        eventually("the store is closed", || MetaStore::open(&store, config().store).is_ok());
        std::fs::remove_dir_all(&store).expect("removed");
        let name = store.file_name().expect("a name");
        copy(&disk.path().join(name), &store);
        let mds = open(dir.path(), &osts);
        for client in &clients {
            mds.connect(&client.export).expect("connects");
        }
        Farm { mds, osts, dir, clients }
    }

    fn run_start(&self, client: usize) -> RunStart {
        match self.call(&self.clients[client].export, &MdsRequest::RunStart).expect("answers").reply {
            MdsReply::RunStart(start) => start,
            other => panic!("{other:?}"),
        }
    }

    /// Replays what a client has kept and the MDT lacks, in pieces of this many.
    fn replay(&self, client: usize, pieces: usize) -> Vec<Option<Status>> {
        let start = self.run_start(client);
        let kept = &self.clients[client].kept;
        let lost: Vec<_> = kept.iter().filter(|change| start.has_lost(change.transno)).cloned().collect();
        let mut outcomes = Vec::new();
        for piece in lost.chunks(pieces) {
            let request = MdsRequest::Replay { changes: piece.to_vec() };
            match self.call(&self.clients[client].export, &request).expect("replayed").reply {
                MdsReply::Outcomes(some) => outcomes.extend(some),
                other => panic!("{other:?}"),
            }
        }
        outcomes
    }

    fn end_replay(&self, client: usize) {
        let done = MdsRequest::Locks { request: LockRequest::ReplayDone };
        self.call(&self.clients[client].export, &done).expect("taken");
    }

    /// Replays the changes of all clients at the same time.
    #[expect(
        clippy::disallowed_methods,
        reason = "only threads of std can borrow, and nothing is simulated here"
    )]
    fn replay_all(&self, pieces: usize) -> Vec<Option<Status>> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.clients.len())
                .map(|client| {
                    scope.spawn(move || {
                        let outcomes = self.replay(client, pieces);
                        self.end_replay(client);
                        outcomes
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        })
    }

    /// Returns everything that the MDT stores about inodes with names, without versions, and without the times
    /// that a rename sets: no reply shows them.
    fn content(&self) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        for table in [INODES, DIRENTS, LINKS, XATTRS] {
            let mut add = |key: &[u8], value: &[u8]| {
                let fid = Fid::from_key(key[..16].try_into().expect("a FID"));
                let mut text = format!("{value:?}");
                if table == INODES {
                    let mut record = InodeRecord::decode(fid, value).expect("sound");
                    record.attr.version = 0;
                    record.attr.ctime = Default::default();
                    if record.attr.is_dir() {
                        record.attr.mtime = Default::default();
                    }
                    if record.attr.nlink == 0 {
                        return ControlFlow::Continue(());
                    }
                    text = format!("{record:?}");
                }
                all.insert(format!("{} {fid} {:?}", table.0, &key[16..]), text);
                ControlFlow::Continue(())
            };
            self.mds.leaves.store.scan(table, &[], Bound::Unbounded, &mut add).expect("read");
        }
        // Attributes of inodes without names stay until these are destroyed.
        let named: BTreeSet<String> =
            all.keys().filter(|key| key.starts_with("2 ")).map(|key| word(key)).collect();
        all.retain(|key, _| !key.starts_with("4 ") || named.contains(&word(key)));
        all
    }

    fn objects(&mut self, client: usize, fid: Fid) -> Arc<Layout> {
        match self.run(client, &MdsRequest::LayoutIntent { fid, start: 0, end: 1 << 20 }) {
            Ok(MdsReply::Layout(Some(layout))) => layout,
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the FID in a key of [`Farm::content`].
fn word(key: &str) -> String {
    key.split(' ').nth(1).expect("a FID").to_owned()
}

/// Returns up to three differences.
fn differences<'a>(
    one: &'a BTreeMap<String, String>,
    other: &'a BTreeMap<String, String>,
) -> Vec<(&'a str, Option<&'a String>, Option<&'a String>)> {
    let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
    let all = keys.into_iter().map(|key| (key.as_str(), one.get(key), other.get(key)));
    all.filter(|(_, one, other)| one != other).take(3).collect()
}

const UNLINKED: fn(Fid, &str) -> MdsRequest<'_> =
    |parent, name| MdsRequest::Unlink { parent, name: name.as_bytes(), directory: false };

#[test]
fn changes_of_several_clients_that_depend_on_each_other_are_replayed_in_their_order() {
    let mut farm = Farm::new(2);
    let disk = farm.snapshot();
    let dir = farm.make(0, Fid::ROOT, "d", &NewFile::Directory).expect("made");
    let file = farm.file(1, dir, "f");
    let flags = RenameFlags::empty();
    let rename = MdsRequest::Rename {
        from_parent: Fid::ROOT,
        from_name: b"d",
        to_parent: Fid::ROOT,
        to_name: b"e",
        flags,
    };
    farm.run(0, &rename).expect("renamed");
    farm.run(1, &MdsRequest::Link { fid: file, parent: Fid::ROOT, name: b"d" }).expect("linked");
    farm.run(0, &UNLINKED(dir, "f")).expect("removed");
    let set = SetAttr { valid: SetAttrValid::MODE, mode: 0o600, ..SetAttr::default() };
    farm.run(1, &MdsRequest::SetAttr { fid: file, set }).expect("set");
    let before = farm.content();
    let farm = farm.lose_power(&disk);
    assert_ne!(farm.content(), before, "the changes are lost");
    assert_eq!(farm.replay_all(2), [None; 6]);
    assert_eq!(differences(&farm.content(), &before), []);
    assert_eq!(farm.mds.replayed().0, 6);
}

/// Carries out a random change of a client on the inodes that it finds; those that fail change nothing.
fn random_change(farm: &mut Farm, dice: &mut fastrand::Rng, dirs: &mut Vec<Fid>, files: &mut Vec<Fid>) {
    let client = dice.usize(..farm.clients.len());
    let parent = dirs[dice.usize(..dirs.len())];
    let (name, other) = (format!("n{}", dice.u8(..6)), format!("n{}", dice.u8(..6)));
    let fid = files.get(dice.usize(..files.len().max(1))).copied().unwrap_or(Fid::ROOT);
    match dice.u8(..10) {
        0 => dirs.extend(farm.make(client, parent, &name, &NewFile::Directory)),
        1..4 => files.extend(farm.make(client, parent, &name, &NewFile::Node { rdev: 0 })),
        4 => drop(farm.make(client, parent, &name, &NewFile::Symlink { target: b"to" })),
        5 => drop(farm.run(client, &MdsRequest::Link { fid, parent, name: name.as_bytes() })),
        6 => {
            let directory = dice.bool();
            drop(farm.run(client, &MdsRequest::Unlink { parent, name: name.as_bytes(), directory }));
        }
        7 => {
            let request = MdsRequest::Rename {
                from_parent: parent,
                from_name: name.as_bytes(),
                to_parent: dirs[dice.usize(..dirs.len())],
                to_name: other.as_bytes(),
                flags: RenameFlags::empty(),
            };
            drop(farm.run(client, &request));
        }
        8 => {
            let (mode, value) = (u32::from(dice.u8(..)), dice.u8(..));
            let set = SetAttr { valid: SetAttrValid::MODE, mode, ..SetAttr::default() };
            drop(farm.run(client, &MdsRequest::SetAttr { fid, set }));
            let flags = XattrFlags::empty();
            let request = MdsRequest::SetXattr { fid, name: b"user.a", value: &[value], flags };
            drop(farm.run(client, &request));
        }
        _ if fid != Fid::ROOT => {
            drop(farm.run(client, &MdsRequest::LayoutIntent { fid, start: 0, end: 1 << 20 }))
        }
        _ => {}
    }
}

#[test]
fn random_changes_of_three_clients_are_all_there_after_their_replay() {
    for seed in 0..8 {
        let mut dice = fastrand::Rng::with_seed(seed);
        let mut farm = Farm::new(3);
        let (mut dirs, mut files) = (vec![Fid::ROOT], Vec::new());
        for _ in 0..40 {
            random_change(&mut farm, &mut dice, &mut dirs, &mut files);
        }
        let disk = farm.snapshot();
        for _ in 0..120 {
            random_change(&mut farm, &mut dice, &mut dirs, &mut files);
        }
        let (before, count) = (farm.content(), farm.clients.iter().map(|client| client.kept.len()).sum());
        let farm = farm.lose_power(&disk);
        let outcomes = farm.replay_all(dice.usize(1..20));
        assert_eq!(outcomes, vec![None; count], "seed {seed}");
        assert_eq!(differences(&farm.content(), &before), [], "seed {seed}");
    }
}

#[test]
fn a_change_that_depends_on_one_of_a_client_that_does_not_return_is_refused_and_others_are_not() {
    let mut farm = Farm::new(2);
    let disk = farm.snapshot();
    let dir = farm.make(0, Fid::ROOT, "d", &NewFile::Directory).expect("made");
    farm.file(1, dir, "f");
    farm.file(1, Fid::ROOT, "g");
    let farm = farm.lose_power(&disk);
    let began = Instant::now();
    let outcomes = farm.replay(1, 10);
    assert!(matches!(outcomes[..], [Some(_), None]), "{outcomes:?}");
    assert!(began.elapsed() > config().recovery_window / 2, "it waited for the other one");
    farm.end_replay(1);
    assert_eq!(farm.mds.replayed().1, 1);
}

/// The first request was answered with `EVICTED`, which ended the client for its new connection too: it lost what it
/// had to replay.
#[test]
fn a_replay_that_is_sent_again_on_another_connection_replaces_the_first_one_and_evicts_nobody() {
    let mut farm = Farm::new(2);
    let disk = farm.snapshot();
    farm.file(0, Fid::ROOT, "a");
    farm.file(1, Fid::ROOT, "b");
    let farm = Arc::new(farm.lose_power(&disk));
    let (send, receive) = mpsc::channel();
    for _ in 0..2 {
        let (farm, send) = (farm.clone(), send.clone());
        nacre_env::thread::spawn(move || {
            let request = MdsRequest::Replay { changes: farm.clients[1].kept.clone() };
            let answer = farm.call(&farm.clients[1].export, &request);
            let _ = send
                .send(answer.map(|answer| matches!(answer.reply, MdsReply::Outcomes(all) if all == [None])));
        });
    }
    assert_eq!(receive.recv().expect("an answer"), Err(Status::EINTR), "both wait for the other client");
    assert_eq!(farm.replay(0, 10), [None]);
    farm.end_replay(0);
    assert_eq!(receive.recv().expect("an answer"), Ok(true));
}

#[test]
fn a_name_that_leads_elsewhere_than_before_is_not_removed_by_a_replay() {
    let mut farm = Farm::new(2);
    let old = farm.file(0, Fid::ROOT, "a");
    farm.file(0, Fid::ROOT, "b");
    let disk = farm.snapshot();
    let flags = RenameFlags::empty();
    let rename = MdsRequest::Rename {
        from_parent: Fid::ROOT,
        from_name: b"b",
        to_parent: Fid::ROOT,
        to_name: b"a",
        flags,
    };
    farm.run(0, &rename).expect("renamed");
    farm.run(1, &UNLINKED(Fid::ROOT, "a")).expect("removed");
    let farm = farm.lose_power(&disk);
    farm.end_replay(0);
    assert_eq!(farm.replay(1, 10), [Some(Status::ESTALE)]);
    farm.end_replay(1);
    let found = farm.call(&farm.clients[0].export, &MdsRequest::Lookup { parent: Fid::ROOT, name: b"a" });
    let Ok(MdsReply::Entry { attr: Some(attr), .. }) = found.map(|answer| answer.reply) else {
        panic!("there")
    };
    assert_eq!(attr.fid, old);
}

#[test]
fn a_client_learns_after_another_crash_which_changes_have_been_replayed() {
    let mut farm = Farm::new(1);
    let disk = farm.snapshot();
    for name in ["a", "b", "c"] {
        farm.file(0, Fid::ROOT, name);
    }
    let before = farm.content();
    let mut farm = farm.lose_power(&disk);
    let lost: Vec<_> = farm.clients[0].kept.clone();
    farm.clients[0].kept.truncate(2);
    assert_eq!(farm.replay(0, 10), [None; 2]);
    // Another client keeps nothing, so this is the last change that is durable.
    let disk = tempfile::tempdir().expect("a directory");
    copy(&crate::records::store_path(farm.dir.path()), disk.path());
    farm.clients[0].kept = lost;
    let farm = farm.lose_power(&disk);
    assert_eq!(farm.run_start(0).replayed, farm.clients[0].kept[1].transno);
    assert_eq!(farm.replay_all(10), [None]);
    assert_eq!(differences(&farm.content(), &before), []);
}

#[test]
fn objects_of_lost_layouts_are_not_destroyed_and_belong_to_one_file() {
    let mut farm = Farm::new(1);
    let (known, file) = (farm.file(0, Fid::ROOT, "known"), farm.file(0, Fid::ROOT, "f"));
    let old = farm.objects(0, known).objects().next().expect("an object").object;
    let disk = farm.snapshot();
    let layout = farm.objects(0, file);
    let object = layout.objects().next().expect("an object").object;
    farm.osts[0].orphan_calls.lock().clear();
    let farm = farm.lose_power(&disk);
    assert_eq!(farm.replay(0, 10), [None]);
    assert!(farm.osts[0].orphan_calls.lock().is_empty(), "objects of other clients may be missing still");

    // Another file cannot have the object, nor one that is known.
    let claim = |transno: u64, fid: Fid, object: Fid| {
        let mut layout = Layout::clone(&layout);
        layout.components[0].objects[0].object = object;
        let reply = MdsReply::Layout(Some(Arc::new(layout)));
        let answer = MdsAnswer { transno: TransNo(transno), ..reply.into() };
        let request = MdsRequest::LayoutIntent { fid, start: 0, end: 1 };
        let changes = vec![ReplayedChange::new(&Cred::system(), &request, &answer)];
        match farm.call(&farm.clients[0].export, &MdsRequest::Replay { changes }).expect("answered").reply {
            MdsReply::Outcomes(outcomes) => outcomes[0],
            other => panic!("{other:?}"),
        }
    };
    let next = farm.clients[0].kept[0].transno.0 + 1;
    assert_eq!(claim(next, known, object), Some(Status::ESTALE));
    assert_eq!(claim(next + 1, file, old), Some(Status::ESTALE));

    farm.end_replay(0);
    let again = MdsRequest::Replay { changes: vec![farm.clients[0].kept[0].clone()] };
    assert_eq!(
        farm.call(&farm.clients[0].export, &again).map(drop),
        Err(Status::EPERM),
        "it has ended its replay"
    );
    eventually("the OST learns which objects are in use", || !farm.osts[0].orphan_calls.lock().is_empty());
    let (sequence, last_used) = farm.osts[0].orphan_calls.lock()[0];
    assert!((sequence, last_used) >= (object.seq, object.oid), "{sequence:#x} {last_used}");
}

/// The replay comes before the client opens its handles again, so nobody has the file open.
#[test]
fn an_open_that_cut_a_removed_file_is_replayed() {
    let mut farm = Farm::new(2);
    let file = farm.file(1, Fid::ROOT, "f");
    let open = |farm: &mut Farm, handle, flags| {
        let request = MdsRequest::Open { fid: file, handle: OpenHandle(handle), flags, lock: LockHandle(0) };
        farm.run(0, &request).expect("opens");
    };
    open(&mut farm, 1, OpenFlags::READ | OpenFlags::WRITE);
    farm.run(1, &UNLINKED(Fid::ROOT, "f")).expect("removed");
    let disk = farm.snapshot();
    open(&mut farm, 2, OpenFlags::WRITE | OpenFlags::TRUNCATE);
    assert_eq!(farm.clients[0].kept.len(), 1, "it changed something");
    let farm = farm.lose_power(&disk);
    assert_eq!(farm.replay_all(1), [None]);
}

/// The replay may wait for what that MDT asks.
#[test]
fn a_request_of_another_mdt_that_is_sent_again_does_not_wait_for_the_replay() {
    let mut farm = Farm::new(1);
    let disk = farm.snapshot();
    farm.boot(&disk);
    let farm = farm.lose_power(&disk);
    let (mds, client) = (&farm.mds, &farm.clients[0].export);
    let slot = ReplySlot { client: client.client, tag: 1, xid: Xid(1) };
    assert!(mds.stored_answer(client, &MdsRequest::Peer(PeerRequest::HashSeed), &slot).is_none());
    assert!(
        mds.leaves.replays.are_pending(mds.leaves.mdlocks.is_recovering()),
        "the client may replay changes"
    );
}

/// What others were answered after a change must not depend on it if nobody may replay it.
#[test]
fn a_change_is_durable_before_another_client_learns_of_it_unless_its_own_has_the_answer() {
    let farm = Farm::new(2);
    let store = &farm.mds.leaves.store;
    store.set_commit_interval_ms(0);
    let own = &farm.clients[0];
    let acked = Arc::new(AtomicU64::new(0));
    let known = acked.clone();
    own.export.set_received(Box::new(move |slot| slot.xid.0 < known.load(Ordering::Relaxed)));
    let execute = |xid: u32, request: &MdsRequest<'_>| {
        let slot = ReplySlot { client: own.export.client, tag: 0, xid: Xid(xid.into()) };
        let cred = Cred::system();
        let call = Call { reply_slot: Some(slot), ..Call::new(&cred) };
        farm.mds.handle(&own.export, &call, request).expect("done").transno
    };
    let make = |xid: u32, name: &str| {
        let (parent, fid, new) = (Fid::ROOT, Fid::new(own.sequence, xid, 0), NewFile::Node { rdev: 0 });
        let (name, open, exclusive) = (name.as_bytes(), None, true);
        execute(xid, &MdsRequest::Create { parent, name, fid, new, mode: 0o644, umask: 0, open, exclusive })
    };
    let asks = |client: usize, request: &MdsRequest<'_>| {
        let _ = farm.call(&farm.clients[client].export, request);
    };
    let looks_up =
        |client, name: &str| asks(client, &MdsRequest::Lookup { parent: Fid::ROOT, name: name.as_bytes() });
    let is_durable = |transno| store.last_committed() >= transno;

    let made = make(10, "a");
    looks_up(0, "a");
    looks_up(1, "b");
    assert!(!is_durable(made), "nobody else knows of it");
    looks_up(1, "a");
    assert!(is_durable(made));
    assert_eq!(farm.mds.shared_commits(), 1);

    let made = make(11, "b");
    acked.store(12, Ordering::Relaxed);
    looks_up(1, "b");
    assert!(!is_durable(made), "its client would replay it");
    farm.mds.set_commit_on_sharing(1);
    looks_up(1, "b");
    assert!(is_durable(made));
    farm.mds.set_commit_on_sharing(2);

    let removed = execute(12, &MdsRequest::Unlink { parent: Fid::ROOT, name: b"a", directory: false });
    assert!(!is_durable(removed));
    asks(1, &MdsRequest::Unlink { parent: Fid::ROOT, name: b"a", directory: false });
    assert!(is_durable(removed), "a failure shows it, too");

    let changed = execute(13, &chmod(Fid::new(own.sequence, 11, 0), 0o600));
    asks(1, &MdsRequest::GetAttr { fid: Fid::new(own.sequence, 11, 0) });
    assert!(is_durable(changed));

    let made = make(14, "c");
    let (fid, locks) = (Fid::ROOT, nacre_wire::mds::LockRange::default());
    asks(1, &MdsRequest::ReadDir { fid, cookie: 0, max_bytes: 4096, plus: false, locks });
    assert!(is_durable(made), "a listing shows it");
}
