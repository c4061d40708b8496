//! Clients and a server whose network and threads are simulated: a seed determines the schedule, and
//! connections break in the middle of requests.

#[path = "support/services.rs"]
mod services;

use nacre_env::sim::{self, Options, Outcome};
use nacre_rpc::tcp::{Network, SimulatedNetwork, TcpMds, TcpOss, Way};
use nacre_rpc::{ClientConfig, MdsEndpoint, OssEndpoint, ServerConfig};
use nacre_types::{Cred, Fid, Status};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const DELAY: Duration = Duration::from_millis(2);
const CLIENTS: usize = 3;
const REQUESTS: usize = 12;

fn name(client: usize, number: usize) -> Vec<u8> {
    format!("file {client}.{number}").into_bytes()
}

/// Outcome of a run.
#[derive(PartialEq, Eq, Debug)]
struct Told {
    created: Vec<(Vec<u8>, u32)>,
    broken: usize,
    resends: u64,
    requests: u64,
}

fn simulate<R>(seed: u64, work: impl FnOnce() -> R) -> Outcome<R> {
    sim::run(Options { seed, limit: Duration::from_secs(3600) }, work)
}

/// Starts a server on a network of its own, and returns how clients reach it.
fn serve(services: &Services) -> (Arc<SimulatedNetwork>, nacre_rpc::tcp::Server, SocketAddr, ClientConfig) {
    let network = SimulatedNetwork::new(DELAY);
    let place = || Network::Simulated(network.clone());
    let server = services.serve(any_port(), ServerConfig { network: place(), ..ServerConfig::default() });
    let addr = server.addrs()[0];
    let config = ClientConfig { network: place(), ..quick() };
    (network, server, addr, config)
}

/// Clients create files while their connections break repeatedly.
fn create_under_losses() -> Told {
    let services = Services::default();
    let (network, server, addr, config) = serve(&services);
    let connect = |client: usize| {
        let events = Arc::new(Events::default());
        TcpMds::connect(0, &[nid(addr)], &identity(client as u8 + 1), &config, events).expect("mds").0
    };
    let clients: Vec<TcpMds> = (0..CLIENTS).map(connect).collect();
    let broken = nacre_env::thread::scope(|scope| {
        for (client, mds) in clients.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..REQUESTS {
                    mds.call(&Cred::system(), &create(&name(client, number))).expect("created in the end");
                }
            });
        }
        let breaker = scope.spawn(|| {
            let mut broken = 0;
            for round in 0..6 {
                // Requests and answers take 2 ms each: the break hits either of them.
                nacre_env::thread::sleep(Duration::from_millis(7) + Duration::from_micros(900) * round);
                broken += network.break_connections(addr);
            }
            broken
        });
        breaker.join().expect("the one that breaks connections")
    });
    let resends = clients.iter().map(|mds| mds.stats().resends).sum();
    drop(clients);
    server.stop();
    let mut created: Vec<_> = services.mds.created.lock().unwrap().clone().into_iter().collect();
    created.sort();
    Told { created, broken, resends, requests: services.mds.requests.load(Ordering::SeqCst) }
}

#[test]
fn requests_take_effect_once_although_connections_break_and_a_seed_repeats_it() {
    let (first, again) = (simulate(1, create_under_losses), simulate(1, create_under_losses));
    assert_eq!(first.result, again.result);
    assert_eq!(first.steps, again.steps);
    assert_eq!(first.time, again.time);
    assert_eq!((&first.left, &again.left), (&Vec::new(), &Vec::new()), "threads that did not end");
    let told = first.result;
    let mut expected: Vec<_> =
        (0..CLIENTS).flat_map(|client| (0..REQUESTS).map(move |number| (name(client, number), 1))).collect();
    expected.sort();
    assert_eq!(told.created, expected);
    assert!(told.broken > 0 && told.resends > 0, "nothing was lost: {told:?}");
}

#[test]
fn requests_take_effect_once_in_whatever_order_threads_run() {
    let orders: BTreeSet<Vec<u32>> = (2..10)
        .map(|seed| {
            let outcome = simulate(seed, create_under_losses);
            assert!(outcome.result.created.iter().all(|(_, times)| *times == 1), "seed {seed}");
            assert_eq!(outcome.result.created.len(), CLIENTS * REQUESTS, "seed {seed}");
            outcome.steps.iter().map(|step| step.thread).collect()
        })
        .collect();
    assert!(orders.len() > 2, "{} orders of 8 seeds", orders.len());
}

#[test]
fn a_server_whose_answers_do_not_arrive_is_given_up_and_reached_again_later() {
    let outcome = simulate(1, || {
        let services = Services::default();
        let (network, server, addr, config) = serve(&services);
        let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &config).expect("oss");
        let data = pattern(300_000, 7);
        let object = Fid::new(9, 2, 0);
        let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
        assert_eq!(written, Ok(OssReply::written(300_000)));
        network.cut(addr, Way::ToClient);
        let start = nacre_env::clock::Instant::now();
        let read = nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                nacre_env::thread::sleep(Duration::from_secs(40));
                network.join(addr, Way::ToClient);
            });
            let mut back = vec![0; data.len()];
            let read = oss.call(&OssRequest::plain_read(object, 0, 300_000), Bulk::Receive(&mut back));
            assert!(back == data);
            read
        });
        assert_eq!(read, Ok(OssReply::Read(300_000)));
        let waited = start.elapsed();
        assert!(waited >= Duration::from_secs(40) && waited < Duration::from_secs(60), "{waited:?}");
        assert!(oss.stats().connects > 1, "it was given up");
        drop(oss);
        server.stop();
    });
    assert!(outcome.time > Duration::from_secs(40));
}

#[test]
fn a_request_that_fails_for_the_network_names_the_address_and_the_reason() {
    simulate(1, || {
        let services = Services::default();
        let (network, server, addr, config) = serve(&services);
        let config = ClientConfig { deadline: Some(Duration::from_secs(7)), ..config };
        let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &config).expect("oss");
        let write = OssRequest::plain_write(Fid::new(9, 2, 0), 0);
        assert_eq!(oss.call(&write, Bulk::Send(b"some")), Ok(OssReply::written(4)));
        assert_eq!(oss.trouble(), None);
        network.cut(addr, Way::ToServer);
        assert_eq!(oss.call(&write, Bulk::Send(b"some")), Err(Status::ETIMEDOUT));
        let trouble = oss.trouble().expect("there is some");
        let refused = "connect on OST0000: timed out (ETIMEDOUT): no connection within 3 s";
        assert!(trouble.starts_with(&format!("{}: {refused}, ", nid(addr))), "{trouble}");
        server.stop();
        network.join(addr, Way::ToServer);
        network.break_connections(addr);
        assert_eq!(oss.call(&write, Bulk::Send(b"some")), Err(Status::ETIMEDOUT));
        let trouble = oss.trouble().expect("there is some");
        assert!(trouble.contains("connection refused (ECONNREFUSED)"), "{trouble}");
    });
}

/// The caller had tried in vain 5 s after the control thread, and waited its own pause to the end.
#[test]
fn a_caller_continues_as_soon_as_another_thread_has_reached_the_server_again() {
    simulate(1, || {
        let services = Services::default();
        let (network, server, addr, config) = serve(&services);
        let pause = Duration::from_secs(10);
        let config = ClientConfig { backoff_min: pause, backoff_max: pause, ..config };
        let events = Arc::new(Events::default());
        let mds = TcpMds::connect(0, &[nid(addr)], &identity(1), &config, events).expect("mds").0;
        mds.call(&Cred::system(), &create(b"before")).expect("created");
        server.stop();
        let start = nacre_env::clock::Instant::now();
        let again = nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                // Simulated time. The pause is polled each 100 ms, and no poll is to meet the other thread's attempt.
                nacre_env::thread::sleep(Duration::from_millis(5050));
                mds.call(&Cred::system(), &create(b"after")).expect("created once the server is back");
                let waited = start.elapsed();
                assert!(waited > Duration::from_secs(8) && waited < Duration::from_secs(12), "{waited:?}");
            });
            // After the caller's attempt, before the next one of the control thread.
            nacre_env::thread::sleep(Duration::from_secs(8));
            let place = Network::Simulated(network.clone());
            services.serve(addr, ServerConfig { network: place, ..ServerConfig::default() })
        });
        drop(mds);
        again.stop();
    });
}
