//! After an MDT was killed, it knows the opens that the client replays.

use super::*;
use nacre_client::RemoteEvents;
use nacre_rpc::tcp::MdsEvents;
use nacre_rpc::{NoCallbacks, Recovery};
use nacre_types::{Cred, Status};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use std::sync::Mutex;

/// Restarts the MDT, and replays the client's opens there, as the connection does.
fn restart(mds: &FakeMds, client: &Client) {
    mds.forget_opens();
    client
        .opens
        .reopen_handles(0, client.requests.mdt_endpoint(0).expect("it is known"))
        .expect("the MDT answers");
    mds.end_recovery();
}

/// Returns a closure that does the same later.
fn restarting(world: &World, client: &Arc<Client>) -> Box<dyn FnOnce() + Send> {
    let (mds, client) = (world.mds.clone(), client.clone());
    Box::new(move || restart(&mds, &client))
}

/// Writes data that is held back until the file is closed.
fn write_pieces(client: &Client, handle: u64) -> Vec<u8> {
    client.write_back.settings.set_age(std::time::Duration::from_secs(3600));
    let bytes: Vec<u8> = (0..32 << 10).map(|at| (at / 100 % 250) as u8 + 1).collect();
    for (piece, at) in bytes.chunks(4 << 10).zip((0..).step_by(4 << 10)) {
        assert_eq!(write(client, handle, at, piece), Ok(piece.len()));
    }
    bytes
}

#[test]
fn a_file_is_open_at_an_mdt_that_restarts_between_its_answer_and_the_end_of_the_open() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, made) = create(&client, "file");
    assert_eq!(write(&client, made, 0, b"data"), Ok(4));
    client.opens.release(made).expect("open");
    *world.mds.after_open.lock().expect("no panic") = Some(restarting(&world, &client));
    let handle = open(&client, fid, READ_WRITE);
    assert_eq!(world.mds.opens(fid), 1);
    client.names.unlink(&root(), Fid::ROOT, b"file", false).expect("there");
    restart(&world.mds, &client);
    assert_eq!(write(&client, handle, 4, b" more"), Ok(5));
    assert_eq!(read(&client, handle, 0, 100), b"data more");
    assert_eq!(world.mds.opens(fid), 1, "it is there as long as it is open");
    client.opens.release(handle).expect("open");
    assert!(!world.mds.has(fid));
}

#[test]
fn a_file_that_is_made_is_open_at_an_mdt_that_restarts_before_the_open_ends() {
    let world = World::new(65536, 1);
    let client = world.client();
    *world.mds.after_open.lock().expect("no panic") = Some(restarting(&world, &client));
    let what = Created { new: NewFile::Unnamed, mode: 0o100600, umask: 0 };
    let (found, opened) =
        client.opens.create_open(&root(), Fid::ROOT, b"", &what, (READ_WRITE, false), true).expect("made");
    assert_eq!(world.mds.opens(found.attr.fid), 1, "without a name nothing else keeps it");
    client.opens.release(opened.handle).expect("open");
    assert_eq!(world.mds.opens(found.attr.fid), 0);
}

/// The client requests a create, and the restart replays the existing file as open.
#[test]
fn a_file_that_was_there_is_open_at_an_mdt_that_restarts_before_it_is_opened_instead_of_made() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, made) = create(&client, "file");
    client.opens.release(made).expect("open");
    *world.mds.after_open.lock().expect("no panic") = Some(restarting(&world, &client));
    let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100644, umask: 0 };
    let made = client.opens.create_open(&root(), Fid::ROOT, b"file", &what, (READ_WRITE, false), false);
    let (found, opened) = made.expect("opened");
    assert_eq!((found.attr.fid, opened.created, world.mds.opens(fid)), (fid, false, 1));
    client.opens.release(opened.handle).expect("open");
    assert_eq!(world.mds.opens(fid), 0);
}

#[test]
fn an_open_fails_whose_file_lost_its_name_while_the_mdt_knew_nothing_of_it() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (_, made) = create(&client, "file");
    client.opens.release(made).expect("open");
    let (mds, other) = (world.mds.clone(), client.clone());
    *world.mds.after_open.lock().expect("no panic") = Some(Box::new(move || {
        restart(&mds, &other);
        other.names.unlink(&root(), Fid::ROOT, b"file", false).expect("there");
    }));
    let what = Created { new: NewFile::Node { rdev: 0 }, mode: 0o100644, umask: 0 };
    let made = client.opens.create_open(&root(), Fid::ROOT, b"file", &what, (READ_WRITE, false), false);
    assert_eq!(made.map(drop), Err(Status::ESTALE), "the name is looked up again");
}

#[test]
fn an_open_that_is_refused_after_a_restart_leaves_nothing_open() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, made) = create(&client, "file");
    client.opens.release(made).expect("open");
    let (mds, other) = (world.mds.clone(), client.clone());
    *world.mds.at_open.lock().expect("no panic") = Some(Box::new(move || {
        restart(&mds, &other);
        Err(Status::EACCES)
    }));
    assert_eq!(client.opens.open(&root(), fid, READ_WRITE, false).map(drop), Err(Status::EACCES));
    assert_eq!(world.mds.opens(fid), 0);
    restart(&world.mds, &client);
    assert_eq!(world.mds.opens(fid), 0);
}

/// The client does not know then whether the MDT has opened it.
#[test]
fn an_open_that_was_interrupted_is_closed_at_the_mdt() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, made) = create(&client, "file");
    client.opens.release(made).expect("open");
    *world.mds.held_closes.lock().expect("no panic") = Some(Vec::new());
    *world.mds.at_open.lock().expect("no panic") = Some(Box::new(|| Err(Status::EINTR)));
    assert_eq!(client.opens.open(&root(), fid, READ_WRITE, false).map(drop), Err(Status::EINTR));
    let told = world.mds.held_closes.lock().expect("no panic").take().expect("a list");
    assert_eq!(told.iter().map(|(_, closed, ..)| *closed).collect::<Vec<Fid>>(), [fid]);
}

#[test]
fn a_file_stays_open_at_an_mdt_that_restarts_until_what_was_written_has_arrived() {
    let world = World::new(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    write_pieces(&client, handle);
    client.names.unlink(&root(), Fid::ROOT, b"file", false).expect("there");
    let seen = Arc::new(AtomicU64::new(0));
    let (again, mds, opens) = (restarting(&world, &client), world.mds.clone(), seen.clone());
    *world.osts[0].at_write.lock().expect("no panic") = Some(Box::new(move || {
        again();
        opens.store(mds.opens(fid) as u64, Ordering::Relaxed);
    }));
    client.opens.release(handle).expect("open");
    assert_eq!(seen.load(Ordering::Relaxed), 1, "while the data was on its way");
    assert!(!world.mds.has(fid));
}

/// The reply may be the one that the MDT has kept from before.
#[test]
fn a_close_with_data_that_is_answered_after_a_restart_leaves_nothing_open() {
    let world = World::with_heads(65536, 1);
    let client = world.client();
    let (fid, handle) = create(&client, "file");
    let bytes = write_pieces(&client, handle);
    *world.mds.after_close.lock().expect("no panic") = Some(restarting(&world, &client));
    client.opens.release(handle).expect("open");
    assert!(world.mds.after_close.lock().expect("no panic").is_none(), "it went with the close");
    assert_eq!(world.mds.opens(fid), 0);
    let reader = open(&client, fid, OpenFlags::READ);
    assert!(read(&client, reader, 0, 100_000) == bytes);
}

/// The endpoint of an MDT on a thread whose program is interrupted: the second request gets no reply.
struct Interrupted(Arc<Client>, AtomicU64);

impl MdsEndpoint for Interrupted {
    fn call(&self, cred: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        match self.1.fetch_add(1, Ordering::Relaxed) {
            1 => Err(Status::EINTR),
            _ => self.0.requests.mdt_endpoint(0).expect("it is known").call(cred, request),
        }
    }

    fn post(&self, _: &Cred, _: &MdsRequest<'_>) {}
}

#[test]
fn files_that_are_not_open_again_when_the_thread_is_interrupted_are_left_to_the_next_one() {
    let world = World::new(65536, 1);
    let client = world.client();
    let files = ["a", "b", "c"].map(|name| create(&client, name).0);
    let open = || files.iter().filter(|fid| world.mds.opens(**fid) == 1).count();
    world.mds.forget_opens();
    let way = Interrupted(client.clone(), AtomicU64::new(0));
    assert_eq!(client.opens.reopen_handles(0, &way), Err(Status::EINTR));
    assert_eq!(open(), 1);
    assert_eq!(client.opens.reopen_handles(0, &way), Ok(()));
    assert_eq!(open(), 3);
}

/// An MDT that has restarted, and the requests that it got.
struct Restarted(Mutex<Vec<String>>);

impl MdsEndpoint for Restarted {
    fn call(&self, _: &Cred, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        self.0.lock().expect("no panic").push(format!("{request:?}"));
        Ok(MdsReply::Done.into())
    }

    fn post(&self, _: &Cred, _: &MdsRequest<'_>) {}
}

/// All clients wait for it at the MDT.
#[test]
fn a_client_that_is_being_mounted_reports_to_a_restarted_mdt_that_it_has_no_open_files() {
    let world = World::new(65536, 1);
    let client = world.client();
    let events = RemoteEvents::new(0, Arc::new(NoCallbacks), client.lease.locks().clone());
    let mdt = Restarted(Mutex::default());
    let grant = LeaseGrant { exclusive: false, epoch: 1 };
    events.reconnected(&mdt, Recovery::ServerRestarted, grant).expect("it answers");
    assert_eq!(mdt.0.lock().expect("no panic").last().map(String::as_str), Some("RecoveryDone"));
}
