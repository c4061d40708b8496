//! Lost connections, damaged bytes, restarts and evictions.

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/services.rs"]
mod services;

use nacre_env::clock::Instant;
use nacre_rpc::tcp::{TcpMds, TcpOss};
use nacre_rpc::{ChecksumType, ClientConfig, MdsEndpoint, OssEndpoint, Recovery, ServerConfig, Tunable};
use nacre_types::{Cred, Fid, Status, StatusResult};
use nacre_wire::frame::HEADER_BYTES;
use nacre_wire::mds::{MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use proxy::{Harm, Proxy, Way};
use services::*;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn connect(addr: SocketAddr, events: &Arc<Events>) -> TcpMds {
    TcpMds::connect(0, &[nid(addr)], &identity(1), &quick(), events.clone()).expect("connect").0
}

fn times_created(services: &Services, name: &[u8]) -> u32 {
    services.mds.created.lock().unwrap().get(name).copied().unwrap_or(0)
}

#[test]
fn a_connection_that_is_cut_at_any_byte_runs_each_request_once() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let mds = connect(proxy.addr, &Arc::default());
    let cred = Cred::new(0, 0);
    let mut number = 0;
    for way in [Way::ToServer, Way::ToClient] {
        for at in (0..400).step_by(11) {
            number += 1;
            let name = format!("file{number}").into_bytes();
            proxy.plan(way, at, Harm::Cut, false);
            let reply = mds.call(&cred, &create(&name)).expect("answered after all").reply;
            assert!(matches!(reply, MdsReply::Created { created: true, .. }), "cut at {at} {way:?}");
            proxy.heal();
            assert_eq!(times_created(&services, &name), 1, "cut at {at} {way:?}");
        }
    }
    assert!(proxy.happened() > 20);
    assert_eq!(services.mds.connects.load(Ordering::SeqCst), 1, "the client stayed known");
    assert_eq!(mds.stats().in_flight, 0);
}

#[test]
fn damage_to_headers_and_bodies_is_noticed_and_the_request_runs_once() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let mds = connect(proxy.addr, &Arc::default());
    let cred = Cred::new(0, 0);
    for (number, (way, at)) in [Way::ToServer, Way::ToClient]
        .iter()
        .flat_map(|way| (0..80).step_by(5).map(move |at| (*way, at)))
        .enumerate()
    {
        let name = format!("file{number}").into_bytes();
        proxy.plan(way, at, Harm::Flip, false);
        mds.call(&cred, &create(&name)).expect("answered after all");
        proxy.heal();
        assert_eq!(times_created(&services, &name), 1, "byte {at} {way:?}");
    }
    let damaged = mds.stats().damaged;
    assert!((10..=16).contains(&damaged), "what came to this side was counted: {damaged}");
}

#[test]
fn damaged_data_is_sent_again_and_in_the_end_an_error() {
    for kind in ChecksumType::ALL {
        damage_is_noticed_by(kind);
    }
}

fn damage_is_noticed_by(kind: ChecksumType) {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let oss = TcpOss::new(0, &[nid(proxy.addr)], &identity(1), &quick()).expect("oss");
    let tunables = oss.tunables().expect("it has");
    tunables.set(Tunable::ResendCount, 3).expect("in range");
    tunables.set(Tunable::ChecksumType, kind as u64).expect("known");
    let object = Fid::new(9, 2, 0);
    let data: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
    let write = OssRequest::plain_write(object, 0);
    let read = OssRequest::plain_read(object, 0, data.len() as u32);
    oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    proxy.plan(Way::ToServer, 50_000, Harm::Flip, false);
    assert_eq!(oss.call(&write, Bulk::Send(&data)), Ok(OssReply::written(data.len() as u32)));
    assert_eq!(oss.stats().damaged, 1);
    assert!(services.oss.objects.lock().unwrap()[&object] == data);
    let mut back = vec![0; data.len()];
    proxy.plan(Way::ToClient, (HEADER_BYTES + 5 + 100) as u64, Harm::Flip, false);
    assert_eq!(oss.call(&read, Bulk::Receive(&mut back)), Ok(OssReply::Read(data.len() as u32)));
    assert_eq!(oss.stats().damaged, 2);
    assert!(back == data);
    proxy.plan(Way::ToClient, 100_000, Harm::Flip, true);
    assert_eq!(oss.call(&read, Bulk::Receive(&mut back)), Err(Status::EIO));
    assert_eq!(oss.stats().damaged, 2 + 4);
    proxy.heal();
    assert_eq!(oss.call(&read, Bulk::Receive(&mut back)), Ok(OssReply::Read(data.len() as u32)));
}

#[test]
fn without_checksums_damaged_data_is_not_noticed() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let oss = TcpOss::new(0, &[nid(proxy.addr)], &identity(1), &quick()).expect("oss");
    let checksums = |on| oss.tunables().expect("it has").set(Tunable::Checksums, on).expect("truth value");
    let object = Fid::new(9, 2, 0);
    let data = vec![7u8; 200_000];
    let write = OssRequest::plain_write(object, 0);
    let read = OssRequest::plain_read(object, 0, data.len() as u32);
    let wrong = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte != 7).count();
    oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    checksums(0);
    proxy.plan(Way::ToServer, 50_000, Harm::Flip, false);
    assert!(oss.call(&write, Bulk::Send(&data)).is_ok());
    assert_eq!(wrong(&services.oss.objects.lock().unwrap()[&object]), 1);
    let mut back = vec![0; data.len()];
    proxy.plan(Way::ToClient, 100_000, Harm::Flip, false);
    assert!(oss.call(&read, Bulk::Receive(&mut back)).is_ok());
    assert_eq!(wrong(&back), 2);
    assert_eq!(oss.stats().damaged, 0);
    // Once enabled, it applies to the next request.
    checksums(1);
    proxy.plan(Way::ToClient, 100_000, Harm::Flip, false);
    assert!(oss.call(&read, Bulk::Receive(&mut back)).is_ok());
    assert_eq!((oss.stats().damaged, wrong(&back)), (1, 1));
}

#[test]
fn data_transfers_survive_cuts_at_any_stage() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let oss = TcpOss::new(0, &[nid(proxy.addr)], &identity(1), &quick()).expect("oss");
    let object = Fid::new(9, 2, 0);
    let data: Vec<u8> = (0..100_000u32).map(|i| (i % 253) as u8).collect();
    for at in [0, 30, 64, 90, 5000, 60_000, 99_000] {
        proxy.plan(Way::ToServer, at, Harm::Cut, false);
        let write = OssRequest::plain_write(object, 0);
        assert_eq!(
            oss.call(&write, Bulk::Send(&data)),
            Ok(OssReply::written(data.len() as u32)),
            "cut at {at}"
        );
        proxy.plan(Way::ToClient, at, Harm::Cut, false);
        let mut back = vec![0; data.len()];
        let read = OssRequest::plain_read(object, 0, data.len() as u32);
        assert_eq!(
            oss.call(&read, Bulk::Receive(&mut back)),
            Ok(OssReply::Read(data.len() as u32)),
            "cut at {at}"
        );
        assert!(back == data);
        proxy.heal();
    }
}

#[test]
fn a_server_that_restarts_answers_from_its_store_after_handles_are_open_again() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    // On one CPU, so that the open connection is also the one in use.
    nacre_env::pin_to_cpu(nacre_env::online_cpus()[0]).expect("a CPU of ours");
    let mds = connect(proxy.addr, &events);
    // The answer is lost in transit, then the server restarts: only its store knows that the request has run.
    proxy.plan(Way::ToClient, 10, Harm::Cut, true);
    let caller = nacre_env::thread::spawn({
        let mds = Arc::new(mds);
        move || {
            let reply = mds.call(&Cred::new(0, 0), &create(b"once"));
            (mds, reply)
        }
    });
    eventually("the request ran", || times_created(&services, b"once") == 1);
    let server = services.restart(server);
    proxy.heal();
    let (mds, reply) = caller.join().expect("caller");
    assert!(matches!(reply.expect("stored answer").reply, MdsReply::Created { created: true, .. }));
    assert_eq!(times_created(&services, b"once"), 1);
    // The thread that has recovered may note it after the caller has its answer.
    eventually("the recovery", || *events.recoveries.lock().unwrap() == [Recovery::ServerRestarted]);
    eventually("its count", || mds.stats().recoveries == 1);
    drop(server);
}

#[test]
fn an_idle_client_restores_its_handles_without_being_asked() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let mds = connect(server.addrs()[0], &events);
    let server = services.restart(server);
    eventually("the recovery", || events.recoveries.lock().unwrap().len() == 1);
    assert_eq!(server.client_count(), 1);
    drop(mds);
}

#[test]
fn an_evicted_client_comes_back_as_a_new_one_and_its_request_runs() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let mds = connect(server.addrs()[0], &events);
    services.mds.evict_next.store(true, Ordering::SeqCst);
    mds.call(&Cred::new(0, 0), &create(b"late")).expect("answered after all");
    assert_eq!(*events.recoveries.lock().unwrap(), [Recovery::Evicted]);
    assert_eq!(services.mds.connects.load(Ordering::SeqCst), 2);
    assert_eq!(times_created(&services, b"late"), 1);
}

/// Runs a create whose answer is lost, and `meanwhile` after the server has stored it, while the client cannot connect.
fn create_unanswered<T>(
    services: &Services,
    proxy: &Proxy,
    mds: &TcpMds,
    meanwhile: impl FnOnce() -> T,
) -> (StatusResult<MdsAnswer>, T) {
    let upstream = proxy.upstream();
    nacre_env::thread::scope(|scope| {
        let gate = services.mds.gate.close();
        let caller = scope.spawn(|| mds.call(&Cred::new(0, 0), &create(b"once")));
        eventually("the request runs", || services.mds.gate.waiting.load(Ordering::SeqCst) == 1);
        proxy.lead_to(any_port());
        proxy.cut_all();
        drop(gate);
        eventually("it is stored", || !services.mds.stored.lock().unwrap().is_empty());
        let done = meanwhile();
        proxy.lead_to(upstream);
        (caller.join().expect("no panic"), done)
    })
}

#[test]
fn a_request_that_ran_before_an_eviction_gets_its_answer_afterwards() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    let mds = connect(proxy.addr, &events);
    let evict = || services.mds.evict(identity(1).client);
    let (answer, ()) = create_unanswered(&services, &proxy, &mds, evict);
    assert!(matches!(answer.expect("answered after all").reply, MdsReply::Created { created: true, .. }));
    assert_eq!(times_created(&services, b"once"), 1);
    assert_eq!(*events.recoveries.lock().unwrap(), [Recovery::Evicted]);
}

#[test]
fn a_connect_that_is_refused_takes_no_answers_from_the_next_one() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let mds = connect(proxy.addr, &Arc::default());
    let (answer, ()) = create_unanswered(&services, &proxy, &mds, || {
        services.mds.evict(identity(1).client);
        services.mds.refuse_next.store(true, Ordering::SeqCst);
    });
    assert!(!services.mds.refuse_next.load(Ordering::SeqCst), "one was refused");
    assert!(matches!(answer.expect("answered after all").reply, MdsReply::Created { created: true, .. }));
    assert_eq!(times_created(&services, b"once"), 1);
}

#[test]
fn a_request_that_ran_before_an_eviction_and_a_restart_fails_and_does_not_run_again() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    let mds = connect(proxy.addr, &events);
    let (answer, _server) = create_unanswered(&services, &proxy, &mds, || {
        services.mds.evict(identity(1).client);
        services.restart(server)
    });
    assert_eq!(answer.map(|answer| answer.reply), Err(Status::EIO));
    assert_eq!(times_created(&services, b"once"), 1);
    assert_eq!(
        *events.recoveries.lock().unwrap(),
        [Recovery::Evicted],
        "the server does not remember the client"
    );
    mds.call(&Cred::new(0, 0), &create(b"after")).expect("a client again");
}

#[test]
fn an_idle_client_learns_that_it_was_evicted() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let mds = connect(server.addrs()[0], &events);
    services.mds.exports.lock().unwrap().clear();
    eventually("the recovery", || events.recoveries.lock().unwrap().len() == 1);
    assert_eq!(*events.recoveries.lock().unwrap(), [Recovery::Evicted]);
    mds.call(&Cred::new(0, 0), &create(b"after")).expect("a client again");
}

#[test]
fn posted_requests_survive_a_restart_of_the_server() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let mds = connect(proxy.addr, &Arc::default());
    for number in 0..50 {
        if number % 10 == 3 {
            proxy.cut_all();
        }
        mds.post(&Cred::new(0, 0), &create(format!("file{number}").as_bytes()));
    }
    eventually("all posted requests ran", || services.mds.created.lock().unwrap().len() == 50);
    eventually("all were answered", || mds.stats().in_flight == 0);
    assert!(services.mds.created.lock().unwrap().values().all(|&count| count == 1));
}

#[test]
fn posted_requests_can_be_waited_for_also_over_lost_connections() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let mds = connect(proxy.addr, &Arc::default());
    for number in 1..=20 {
        mds.post(&Cred::new(0, 0), &create(format!("file{number}").as_bytes()));
        if number % 10 == 5 {
            proxy.cut_all();
        }
        mds.wait_for_posts().expect("the server is there");
        assert_eq!(services.mds.created.lock().unwrap().len(), number);
    }
    mds.wait_for_posts().expect("nothing to wait for");
}

#[test]
fn another_nid_is_tried_when_one_does_not_answer() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let nowhere = std::net::TcpListener::bind(any_port()).and_then(|l| l.local_addr()).expect("a free port");
    let nids = [nid(nowhere), nid(server.addrs()[0])];
    let oss = TcpOss::new(0, &nids, &identity(1), &quick()).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}

#[test]
fn a_server_that_is_away_for_longer_than_the_deadline_is_an_error() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let config = ClientConfig { deadline: Some(Duration::from_millis(300)), ..quick() };
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &config).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    drop(server);
    let start = Instant::now();
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::ETIMEDOUT));
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!(oss.stats().in_flight, 0);
}

#[test]
fn a_silent_server_is_given_up_and_the_request_goes_to_its_successor() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let silence_max = Duration::from_millis(500);
    let config = ClientConfig { dead_after: silence_max, handshake_timeout: silence_max, ..quick() };
    let oss = TcpOss::new(0, &[nid(proxy.addr)], &identity(1), &config).expect("oss");
    oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    // The direction to the client drops everything from here on, silently. It may drop the ping of another
    // connection, or the greeting of a new connection when this thread has moved to another CPU.
    eventually("a request was given up and sent again", || {
        proxy.plan(Way::ToClient, 0, Harm::Hold, false);
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
        oss.stats().resends >= 1
    });
}

#[test]
fn lookups_of_a_service_that_panics_fail_and_others_go_on() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let mds = connect(server.addrs()[0], &Arc::default());
    let cred = Cred::new(0, 0);
    assert_eq!(mds.call(&cred, &MdsRequest::Lookup { parent: Fid::ROOT, name: b"panic" }), Err(Status::EIO));
    assert!(mds.call(&cred, &MdsRequest::Statfs).is_ok());
    assert_eq!(mds.stats().resends, 0);
}
