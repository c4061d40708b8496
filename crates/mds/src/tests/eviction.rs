//! Evicted clients, and the reports of evictions to object servers.

use super::mdlocks::{Cacher, chmod};
use super::*;
use nacre_types::ProcessIdentity;

/// Returns the clients whose eviction an OST has received.
fn evicted(ost: &FakeOst) -> Vec<ClientUuid> {
    let served = ost.served.lock();
    let evicted = |request: &OssRequest| match request {
        OssRequest::Evict { client } => Some(*client),
        _ => None,
    };
    served.iter().filter_map(evicted).collect()
}

fn ready(f: &Fixture) {
    for ost in &f.osts {
        let ids = |request: &OssRequest| matches!(request, OssRequest::Precreate { .. });
        eventually("ids in stock", || ost.served.lock().iter().any(ids));
    }
}

#[test]
fn osts_drop_a_client_before_another_gets_its_lease() {
    let f = Fixture::with_osts(2);
    f.mds.sessions.set_release_timeout(Duration::from_millis(100));
    assert_eq!(f.mds.sessions.release_timeout(), Duration::from_millis(100));
    let (second, _) = export(2, tcp_nid());
    assert_eq!(f.mds.connect(&second).map(|welcome| welcome.lease.exclusive), Ok(true));
    for ost in &f.osts {
        assert_eq!(evicted(ost), [f.export.client]);
    }
    assert_eq!(f.run(&MdsRequest::Ping), Err(Status::EVICTED));
}

#[test]
fn a_client_of_which_nothing_is_heard_for_long_keeps_the_next_one_waiting_for_a_moment() {
    let f = Fixture::new();
    f.mds.disconnect(f.export.client);
    f.mds.sessions.set_release_timeout(Duration::from_secs(60));
    let (dead, noted) = export(5, tcp_nid());
    assert_eq!(f.mds.connect(&dead).map(|welcome| welcome.lease.exclusive), Ok(true));
    noted.silent_s.store(61, Ordering::Relaxed);
    let began = Instant::now();
    let (next, _) = export(6, tcp_nid());
    assert_eq!(f.mds.connect(&next).map(|welcome| welcome.lease.exclusive), Ok(true));
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(evicted(&f.osts[0]), [dead.client]);
}

#[test]
fn an_ost_that_is_away_holds_others_up_for_a_while_and_hears_of_it_first() {
    let f = Fixture::with_osts(2);
    ready(&f);
    f.mds.sessions.set_release_timeout(Duration::from_millis(100));
    {
        let mut fail = f.osts[1].fail.lock();
        *fail = Some(Status::ETIMEDOUT);
        f.osts[1].served.lock().clear();
    }
    let began = Instant::now();
    let (second, _) = export(2, tcp_nid());
    assert_eq!(f.mds.connect(&second).map(|welcome| welcome.lease.exclusive), Ok(true));
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(5) && waited < Duration::from_secs(30), "{waited:?}");
    assert_eq!(evicted(&f.osts[0]), [f.export.client]);
    *f.osts[1].fail.lock() = None;
    eventually("the OST hears of it", || !f.osts[1].served.lock().is_empty());
    let first = f.osts[1].served.lock()[0].clone();
    assert_eq!(first, OssRequest::Evict { client: f.export.client });
}

#[test]
fn osts_hear_of_a_client_that_died_but_not_of_one_that_left() {
    let running = nacre_env::own_process();
    let ended = ProcessIdentity { started: running.started + 1, ..running };
    let f = Fixture::new();
    f.mds.disconnect(f.export.client);
    let dead = export_of(5, ended);
    f.mds.connect(&dead).expect("alone");
    f.mds.connect(&export_of(6, running)).expect("let in");
    eventually("the OST hears of it", || evicted(&f.osts[0]) == [dead.client]);
}

/// Number of clients that hold files open and cache one each, and then stop answering.
const DEAD: u8 = 5;

/// Connects `DEAD` clients, each with all the files open; each alone caches the file with its number.
fn silent_clients(f: &Fixture) -> Vec<(Arc<Cacher>, Fid)> {
    let files: Vec<Fid> = (0..DEAD).map(|n| f.file(Fid::ROOT, &format!("f{n}")).expect("made").fid).collect();
    let clients: Vec<Arc<Cacher>> = (0..DEAD).map(|number| Cacher::connect(f, 10 + number)).collect();
    for client in &clients {
        for fid in &files {
            let open = MdsRequest::Open {
                fid: *fid,
                handle: f.handle(),
                flags: OpenFlags::READ,
                lock: LockHandle(0),
            };
            client.run(&open).expect("open");
        }
    }
    clients
        .into_iter()
        .zip(files)
        .map(|(client, fid)| {
            client.caches(fid);
            client.falls_silent();
            (client, fid)
        })
        .collect()
}

#[test]
fn clients_that_die_together_are_evicted_whatever_their_files_are_waited_for() {
    let f = Fixture::new();
    let timeout = Duration::from_millis(100);
    // The client that is late first, and the client whose file a change already waits for when the first
    // one's handles are closed: neighbours and the ends of the table, in both orders.
    for (first, second) in [(0, 1), (1, 0), (0, DEAD - 1), (DEAD - 1, 0)] {
        let dead = silent_clients(&f);
        f.mds.sessions.set_release_timeout(timeout);
        let began = Instant::now();
        nacre_env::thread::scope(|scope| {
            let change = |number: u8, mode: u32| {
                let f = &f;
                let fid = dead[usize::from(number)].1;
                scope.spawn(move || f.attr(&chmod(fid, mode)).map(|attr| attr.mode & 0o777))
            };
            let one = change(first, 0o600);
            eventually("the first is called back", || !dead[usize::from(first)].0.called_back().is_empty());
            let another = change(second, 0o640);
            assert_eq!(one.join().expect("no panic"), Ok(0o600));
            assert_eq!(another.join().expect("no panic"), Ok(0o640));
            let rest: Vec<_> =
                (0..DEAD).filter(|n| ![first, second].contains(n)).map(|n| change(n, 0o660)).collect();
            rest.into_iter().for_each(|change| assert_eq!(change.join().expect("no panic"), Ok(0o660)));
        });
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        for (client, fid) in &dead {
            eventually("the eviction", || client.run(&MdsRequest::Ping) == Err(Status::EVICTED));
            eventually("the close", || !f.mds.leaves.opens.is_open(fid));
        }
        for number in 0..DEAD {
            f.unlink(Fid::ROOT, &format!("f{number}")).expect("removed");
        }
    }
    f.check();
}

#[test]
fn evictions_do_not_wait_for_an_ost_that_is_away_one_after_the_other() {
    let f = Fixture::with_osts(2);
    ready(&f);
    let dead = silent_clients(&f);
    f.mds.sessions.set_release_timeout(Duration::from_millis(100));
    *f.osts[1].fail.lock() = Some(Status::ETIMEDOUT);
    let began = Instant::now();
    for (_, fid) in &dead {
        f.attr(&chmod(*fid, 0o600)).expect("changed");
    }
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    *f.osts[1].fail.lock() = None;
    eventually("both OSTs hear of all", || f.osts.iter().all(|ost| evicted(ost).len() == usize::from(DEAD)));
}

#[test]
fn a_client_that_comes_back_at_once_keeps_what_it_opens_again() {
    let f = Fixture::new();
    let fid = f.file(Fid::ROOT, "a").expect("made").fid;
    let late = Cacher::connect(&f, 2);
    let handle = f.handle();
    let open = |flags| MdsRequest::Open { fid, handle, flags, lock: LockHandle(0) };
    late.run(&open(OpenFlags::READ)).expect("open");
    // Its handles are closed under the lock of the inode, which this holds.
    let keeps = f.mds.leaves.locks.lock(&[crate::locks::Want::Whole(fid)]).expect("free");
    f.mds.sessions.evict_late(&ClientUuid([2; 16]));
    assert_eq!(late.run(&MdsRequest::Ping), Err(Status::EVICTED));
    let (back, _) = export(2, tcp_nid());
    // The first client is alone for a moment, and then has to release what it caches.
    let (mds, own) = (f.mds.clone(), back.clone());
    let connecting = nacre_env::thread::spawn(move || mds.connect(&own).map(drop));
    eventually("the connect", || {
        f.run(&MdsRequest::LeaseReleased { epoch: u64::MAX }).expect("released");
        connecting.is_finished()
    });
    connecting.join().expect("no panic").expect("let in");
    drop(keeps);
    let run = |request| f.mds.handle(&back, &Call::new(&f.cred), &request).map(|answer| answer.reply);
    run(open(OpenFlags::READ | OpenFlags::REPLAY)).expect("open again");
    f.unlink(Fid::ROOT, "a").expect("removed");
    // The work of its earlier life is done once that of another client, which left later, is done.
    let other = Cacher::connect(&f, 3);
    let second = f.file(Fid::ROOT, "b").expect("made").fid;
    let request = MdsRequest::Open { fid: second, handle, flags: OpenFlags::READ, lock: LockHandle(0) };
    other.run(&request).expect("open");
    f.mds.disconnect(ClientUuid([3; 16]));
    eventually("the close", || !f.mds.leaves.opens.is_open(&second));
    assert_eq!(run(MdsRequest::GetAttr { fid }).map(|_| ()), Ok(()), "it has no name and is open");
    run(MdsRequest::Close { fid, handle, update: Default::default(), written: Default::default() })
        .expect("it was open");
    assert_eq!(run(MdsRequest::GetAttr { fid }), Err(Status::ENOENT));
    f.check();
}
