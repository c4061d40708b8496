//! Clients of object targets: connect, eviction, reconnect.

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/services.rs"]
mod services;

use nacre_rpc::tcp::TcpOss;
use nacre_rpc::{
    ClientCallbacks, ClientConfig, IoCall, LinkState, OssEndpoint, OssEvents, Recovery, ServerConfig,
    Tunable, run_all,
};
use nacre_types::{Status, StatusResult};
use nacre_wire::lock::LockRequest;
use nacre_wire::mds::LeaseGrant;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use proxy::Proxy;
use services::*;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn client(addr: SocketAddr, events: &Arc<Events>) -> TcpOss {
    TcpOss::with_events(0, &[nid(addr)], &identity(1), &quick(), events.clone()).expect("oss")
}

fn locks() -> OssRequest {
    OssRequest::Locks { request: LockRequest::Cancel { handles: Vec::new() } }
}

fn call(oss: &dyn OssEndpoint, request: &OssRequest) -> StatusResult<OssReply> {
    let bulk = if matches!(request, OssRequest::Write { .. }) { Bulk::Send(b"data") } else { Bulk::None };
    oss.call(request, bulk)
}

const WRITTEN: StatusResult<OssReply> = Ok(OssReply::written(4));

fn recoveries(events: &Events) -> Vec<Recovery> {
    events.recoveries.lock().unwrap().clone()
}

fn evict(services: &Services) {
    services.oss.evict(identity(1).client);
}

/// Returns the requests that ran in the newest life of the client.
fn ran_in_newest(services: &Services) -> Vec<&'static str> {
    let newest = services.oss.export_of(identity(1).client).generation;
    let ran = services.oss.ran.lock().unwrap();
    ran.iter().filter(|(generation, _)| *generation == newest).map(|(_, kind)| *kind).collect()
}

#[test]
fn connections_of_one_client_are_one_client_until_it_leaves() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = client(server.addrs()[0], &Arc::default());
    nacre_env::thread::scope(|scope| {
        for cpu in nacre_env::online_cpus() {
            let oss = &oss;
            scope.spawn(move || {
                nacre_env::pin_to_cpu(cpu).expect("a CPU of ours");
                let data = vec![1; 4 << 20];
                assert!(oss.call(&write_of_life(2, 0), Bulk::Send(&data)).is_ok());
            });
        }
    });
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    assert!(server.connection_count() > 2, "one per CPU, and one for callbacks");
    let other = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(2), &quick()).expect("oss");
    assert_eq!(call(&other, &OssRequest::Ping), Ok(OssReply::Done));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 2);
    assert_eq!((server.object_client_count(), server.client_count()), (2, 0));
    drop(oss);
    assert_eq!(services.oss.disconnects.load(Ordering::SeqCst), 1);
    assert_eq!(call(&other, &OssRequest::Ping), Ok(OssReply::Done));
    drop(other);
    assert_eq!(services.oss.disconnects.load(Ordering::SeqCst), 2);
    assert!(services.oss.exports.lock().unwrap().is_empty());
    assert_eq!(server.object_client_count(), 0);
    eventually("their connections end", || server.connection_count() == 0);
}

#[test]
fn a_client_whose_connections_are_idle_says_goodbye_all_the_same() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = client(server.addrs()[0], &Arc::default());
    oss.tunables().expect("it has").set(Tunable::IdleTimeout, 1).expect("in range");
    assert_eq!(call(&oss, &OssRequest::Ping), Ok(OssReply::Done));
    eventually("its connection is closed", || server.connection_count() == 0);
    assert_eq!(server.object_client_count(), 1);
    drop(oss);
    assert_eq!(services.oss.disconnects.load(Ordering::SeqCst), 1);
}

#[test]
fn a_client_that_was_disconnected_is_not_known_and_calls_nobody() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = client(server.addrs()[0], &Arc::default());
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    oss.disconnect(Duration::from_secs(5));
    assert_eq!(services.oss.disconnects.load(Ordering::SeqCst), 1);
    assert_eq!(call(&oss, &locks()), Err(Status::ESHUTDOWN));
    drop(oss);
    assert_eq!(server.object_client_count(), 0);
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 1);
}

/// The target kept its locks for an hour.
#[test]
fn a_client_that_leaves_while_it_just_connects_again_says_goodbye_all_the_same() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let oss = client(proxy.addr, &Arc::default());
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    proxy.lead_to(silent.local_addr().expect("bound"));
    proxy.cut_all();
    nacre_env::thread::scope(|scope| {
        let waiting = scope.spawn(|| call(&oss, &OssRequest::Ping));
        let state = || oss.import().expect("another host").state;
        eventually("it connects again", || state() == LinkState::Connecting);
        let leaving = scope.spawn(|| oss.disconnect(Duration::from_secs(30)));
        eventually("the request is given up", || waiting.is_finished() || leaving.is_finished());
        proxy.lead_to(server.addrs()[0]);
        // Connections to it end, also one that is just being made.
        drop(silent);
    });
    assert_eq!(services.oss.disconnects.load(Ordering::SeqCst), 1);
}

#[test]
fn a_client_that_was_never_connected_leaves_without_connecting() {
    let nowhere = any_port();
    let start = nacre_env::clock::Instant::now();
    drop(client(nowhere, &Arc::default()));
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = client(server.addrs()[0], &Arc::default());
    assert_eq!(call(&oss, &OssRequest::Ping), Ok(OssReply::Done));
    drop(server);
    // The drop does not wait for an unreachable server.
    drop(oss);
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_way_back_is_there_from_the_first_request_about_locks_on_and_not_before() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    nacre_env::pin_to_cpu(nacre_env::online_cpus()[0]).expect("a CPU of ours");
    let deaf = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(2), &quick()).expect("oss");
    assert_eq!(call(&deaf, &locks()), Ok(OssReply::Done));
    assert_eq!(server.connection_count(), 1, "nobody wants to hear anything");
    drop(deaf);
    eventually("it is gone", || server.connection_count() == 0);
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    assert_eq!(server.connection_count(), 1, "no locks, no way back");
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    assert_eq!(server.connection_count(), 2);
    // The connection for callbacks existed before the request was sent, so no callback is lost.
    let export = services.oss.export_of(identity(1).client);
    for number in 0..1000 {
        export.callbacks.lock_message(message(number));
    }
    eventually("all messages", || events.messages.lock().unwrap().len() == 1000);
    assert!(numbers(&events).into_iter().eq(0..1000), "in order");
    assert_eq!(recoveries(&events), []);
}

#[test]
fn a_lost_way_back_is_opened_again_and_messages_that_are_told_again_arrive() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    let oss = client(proxy.addr, &events);
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    for round in 0..5 {
        proxy.cut_all();
        let export = services.oss.export_of(identity(1).client);
        eventually("the message arrives", || {
            export.callbacks.lock_message(message(round));
            numbers(&events).contains(&round)
        });
    }
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 1);
    assert_eq!((oss.incarnation(), recoveries(&events)), (1, vec![]));
}

#[test]
fn what_is_told_before_an_evicted_client_has_a_way_back_again_arrives() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    for round in 0..3 {
        assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
        evict(&services);
        assert_eq!(call(&oss, &write_of_life(2, 0)), WRITTEN);
        let export = services.oss.export_of(identity(1).client);
        let told = 100 * round..100 * round + 100;
        for number in told.clone() {
            export.callbacks.lock_message(message(number));
            // As the lock server does while it waits for an answer.
            export.callbacks.lock_message(message(told.start));
        }
        let of_round =
            || numbers(&events).into_iter().filter(|number| told.contains(number)).collect::<Vec<_>>();
        eventually("all messages", || of_round().contains(&(told.end - 1)));
        let mut found = of_round();
        found.retain(|number| *number != told.start);
        assert!(found.into_iter().eq(told.skip(1)), "in order");
    }
}

#[test]
fn an_evicted_client_writes_nothing_of_its_former_life() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    assert_eq!(oss.incarnation(), 1);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    evict(&services);
    assert_eq!(call(&oss, &write_of_life(2, 1)), Err(Status::EVICTED));
    assert_eq!((oss.incarnation(), recoveries(&events)), (2, vec![Recovery::Evicted]));
    assert_eq!(call(&oss, &write_of_life(2, 1)), Err(Status::EVICTED), "for ever");
    assert_eq!(call(&oss, &write_of_life(2, 3)), Err(Status::EVICTED), "a life that was not yet is none");
    assert_eq!(call(&oss, &write_of_life(2, 2)), WRITTEN);
    assert_eq!(call(&oss, &write_of_life(2, 0)), WRITTEN);
    assert_eq!(ran_in_newest(&services), ["locks", "write", "write"]);
    // Requests that belong to no life survive an eviction.
    evict(&services);
    assert_eq!(call(&oss, &write_of_life(2, 0)), WRITTEN);
    assert_eq!((oss.incarnation(), recoveries(&events)), (3, vec![Recovery::Evicted; 2]));
    assert_eq!(ran_in_newest(&services), ["locks", "write"]);
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 3);
    assert_eq!(oss.stats().in_flight, 0);
}

#[test]
fn writes_that_were_under_way_at_an_eviction_fail_and_those_of_no_life_do_not() {
    for lost in [false, true] {
        let services = Services::default();
        let server = services.serve(any_port(), ServerConfig::default());
        let proxy = Proxy::start(server.addrs()[0]);
        let events = Arc::new(Events::default());
        let oss = client(proxy.addr, &events);
        nacre_env::thread::scope(|scope| {
            let closed = services.oss.write_gate.close();
            let writers: Vec<_> = (0..6)
                .map(|number| {
                    let oss = &oss;
                    scope.spawn(move || {
                        let incarnation = number % 2;
                        let request = write_of_life(1 + 2 * number as u32, incarnation);
                        // Both ways to send.
                        let result = if number < 4 {
                            call(oss, &request)
                        } else {
                            let bulk = Bulk::Send(b"data");
                            run_all(vec![IoCall { endpoint: oss, request, bulk }]).remove(0)
                        };
                        (incarnation, result)
                    })
                })
                .collect();
            let waiting = || services.oss.write_gate.waiting.load(Ordering::SeqCst);
            eventually("all are at the server", || waiting() == 6);
            evict(&services);
            if lost {
                // Their answers never arrive, so they have to be resent.
                proxy.cut_all();
            }
            drop(closed);
            for writer in writers {
                let (incarnation, result) = writer.join().expect("writer");
                let expected = if incarnation == 0 { WRITTEN } else { Err(Status::EVICTED) };
                assert_eq!(result, expected, "lost: {lost}");
            }
        });
        assert_eq!(services.oss.objects.lock().unwrap().len(), 3, "lost: {lost}");
        assert_eq!((oss.incarnation(), recoveries(&events)), (2, vec![Recovery::Evicted]), "lost: {lost}");
        assert_eq!(ran_in_newest(&services)[0], "locks", "before all others");
    }
}

#[test]
fn an_eviction_is_noticed_although_the_client_is_known_again_by_another_connection() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    let side = client(server.addrs()[0], &Arc::default());
    assert_eq!(call(&side, &OssRequest::Ping), Ok(OssReply::Done));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 1, "one client");
    evict(&services);
    assert_eq!(call(&side, &OssRequest::Ping), Ok(OssReply::Done));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 2);
    // The server knows the client again, but none of its earlier state.
    assert_eq!(call(&oss, &write_of_life(2, 1)), Err(Status::EVICTED));
    assert_eq!((oss.incarnation(), recoveries(&events)), (2, vec![Recovery::Evicted]));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 2);
}

#[test]
fn a_client_that_connects_after_its_eviction_begins_anew_at_once() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = client(server.addrs()[0], &Arc::default());
    assert_eq!(call(&oss, &OssRequest::Ping), Ok(OssReply::Done));
    services.oss.export_of(identity(1).client).end();
    evict(&services);
    let side = client(server.addrs()[0], &Arc::default());
    assert_eq!(call(&side, &write_of_life(2, 1)), WRITTEN);
    assert_eq!(side.stats().connects, 1, "without being refused first");
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 2);
    assert_eq!(call(&oss, &write_of_life(2, 1)), Err(Status::EVICTED));
    assert_eq!((oss.incarnation(), side.incarnation()), (2, 1));
}

#[test]
fn an_idle_client_with_locks_learns_that_it_was_evicted() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    evict(&services);
    eventually("the recovery", || recoveries(&events) == [Recovery::Evicted]);
    assert_eq!(oss.incarnation(), 2);
    let export = services.oss.export_of(identity(1).client);
    eventually("its new life has a way back", || {
        export.callbacks.lock_message(message(1));
        numbers(&events).contains(&1)
    });
}

#[test]
fn a_restart_of_the_server_is_restored_first_and_ends_no_life() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Events::default());
    let oss = client(server.addrs()[0], &events);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    let server = services.restart(server);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    assert_eq!((oss.incarnation(), recoveries(&events)), (1, vec![Recovery::ServerRestarted]));
    assert_eq!(ran_in_newest(&services), ["locks", "write"]);
    // With locks, the client is restored automatically.
    assert_eq!(call(&oss, &locks()), Ok(OssReply::Done));
    let server = services.restart(server);
    eventually("the recovery", || recoveries(&events).len() == 2);
    assert_eq!((oss.incarnation(), recoveries(&events)), (1, vec![Recovery::ServerRestarted; 2]));
    drop(oss);
    assert_eq!(server.object_client_count(), 0);
}

/// Fails a number of times, then checks the contract of the endpoint during the restore.
#[derive(Default)]
struct Strict {
    failures_left: AtomicU64,
    told: Mutex<Vec<(Recovery, u64)>>,
}

impl ClientCallbacks for Strict {
    fn lease_changed(&self, _: LeaseGrant) {}
}

impl OssEvents for Strict {
    fn reconnected(&self, endpoint: &dyn OssEndpoint, recovery: Recovery) -> StatusResult<()> {
        self.told.lock().unwrap().push((recovery, endpoint.incarnation()));
        call(endpoint, &locks())?;
        let fails = |left: u64| left.checked_sub(1);
        match self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails) {
            Ok(_) => Err(Status::EIO),
            // With data, however many requests wait for the recovery.
            Err(_) => call(endpoint, &write_of_life(2, endpoint.incarnation())).map(drop),
        }
    }
}

#[test]
fn nothing_goes_on_before_the_recovery_has_succeeded() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let events = Arc::new(Strict { failures_left: AtomicU64::new(3), ..Strict::default() });
    let oss = TcpOss::with_events(0, &[nid(server.addrs()[0])], &identity(1), &quick(), events.clone());
    let oss = oss.expect("oss");
    oss.tunables().expect("it has").set(Tunable::MaxRpcsInFlight, 1).expect("in range");
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    evict(&services);
    nacre_env::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert_eq!(call(&oss, &write_of_life(4, 0)), WRITTEN));
        }
    });
    assert_eq!(*events.told.lock().unwrap(), [(Recovery::Evicted, 2); 4]);
    let ran = ran_in_newest(&services);
    assert_eq!(ran[..5], ["locks", "locks", "locks", "locks", "write"]);
    assert_eq!(ran.len(), 5 + 8);
    assert_eq!(oss.incarnation(), 2);
}

#[test]
fn a_client_that_is_idle_for_long_stays_known_and_one_that_went_does_not() {
    let services = Services::default();
    let config = ServerConfig { object_client_grace: Duration::from_secs(3), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let proxy = Proxy::start(server.addrs()[0]);
    let events = Arc::new(Events::default());
    let config = ClientConfig { show_interval: Duration::from_secs(1), ..quick() };
    let oss = TcpOss::with_events(0, &[nid(proxy.addr)], &identity(1), &config, events.clone());
    let oss = oss.expect("oss");
    oss.tunables().expect("it has").set(Tunable::IdleTimeout, 1).expect("in range");
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    let gone = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(2), &quick()).expect("oss");
    assert_eq!(call(&gone, &OssRequest::Ping), Ok(OssReply::Done));
    // As if its host had failed.
    gone.close();
    eventually("the one that went is given up", || services.oss.disconnects.load(Ordering::SeqCst) == 1);
    eventually("the idle one has shown itself for longer", || oss.stats().connects > 4);
    assert_eq!(server.object_client_count(), 1);
    assert_eq!(call(&oss, &write_of_life(2, 1)), WRITTEN);
    assert_eq!((oss.incarnation(), recoveries(&events)), (1, vec![]));
}
