//! Several endpoints of one target, requests in parts, limits on requests in flight: observed by counters.

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/services.rs"]
mod services;

use nacre_env::clock::Instant;
use nacre_rpc::import::{EndpointState, EndpointStats, LinkState};
use nacre_rpc::tcp::TcpOss;
use nacre_rpc::{ClientConfig, Direction, Loss, OssEndpoint, ServerConfig, Shape, Tunable};
use nacre_types::{Fid, Nid, Status};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use proxy::{Harm, Proxy, Way};
use services::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn object() -> Fid {
    Fid::new(9, 2, 0)
}

fn write(offset: u64) -> OssRequest {
    OssRequest::plain_write(object(), offset)
}

fn read(offset: u64, len: usize) -> OssRequest {
    OssRequest::plain_read(object(), offset, len as u32)
}

fn oss_at(nids: &[Nid], config: &ClientConfig) -> TcpOss {
    let oss = TcpOss::new(0, nids, &identity(1), config).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    oss
}

fn set(oss: &TcpOss, tunable: Tunable, value: u64) {
    oss.tunables().expect("it has").set(tunable, value).expect("in range");
}

fn ends(oss: &TcpOss) -> Vec<EndpointStats> {
    oss.import().expect("it has").endpoints
}

/// Adds a fabric that makes endpoints matter: anything but this host's own loopback.
fn shaped(config: ClientConfig) -> ClientConfig {
    ClientConfig { shape: Some(Shape { latency: Duration::from_micros(10), ..Shape::default() }), ..config }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 9) as u8).collect()
}

/// Writes and reads back until each endpoint has carried data.
fn use_all(oss: &TcpOss) {
    let data = pattern(4 * MIB);
    eventually("all endpoints carry data", || {
        assert_eq!(oss.call(&write(0), Bulk::Send(&data)), Ok(OssReply::written(data.len() as u32)));
        let mut back = vec![0; data.len()];
        let got = oss.call(&read(0, data.len()), Bulk::Receive(&mut back));
        assert_eq!(got, Ok(OssReply::Read(data.len() as u32)));
        assert!(back == data);
        ends(oss).iter().all(|end| end.sent_bytes > MIB as u64 / 4 && end.received_bytes > MIB as u64 / 4)
    });
}

#[test]
fn large_transfers_are_shared_by_the_endpoints_and_small_ones_stay_on_the_first() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = oss_at(&[nid(server.addrs()[0])], &shaped(quick()));
    set(&oss, Tunable::ConnsPerPeer, 4);
    assert_eq!(ends(&oss).len(), 4);
    use_all(&oss);
    let before = ends(&oss);
    for _ in 0..100 {
        oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
        oss.call(&read(0, 4096), Bulk::Receive(&mut [0; 4096])).expect("short");
    }
    let after = ends(&oss);
    assert!(after[0].requests >= before[0].requests + 200);
    for (before, after) in before.iter().zip(&after).skip(1) {
        assert_eq!(after.requests, before.requests, "lane {}", after.lane);
        assert_eq!((after.state, after.in_flight, after.queued_bytes), (EndpointState::Up, 0, 0));
    }
    // Fewer again: the others become idle.
    set(&oss, Tunable::ConnsPerPeer, 1);
    oss.call(&write(0), Bulk::Send(&pattern(4 * MIB))).expect("write");
    set(&oss, Tunable::ConnsPerPeer, 4);
    assert_eq!(ends(&oss)[1..], after[1..]);
}

#[test]
fn several_nids_are_used_together() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let other = Proxy::start(server.addrs()[0]);
    let oss = oss_at(&[nid(server.addrs()[0]), nid(other.addr)], &shaped(quick()));
    use_all(&oss);
    let nids: Vec<Nid> = ends(&oss).iter().map(|end| end.nid).collect();
    assert_eq!(nids, [nid(server.addrs()[0]), nid(other.addr)]);
}

#[test]
fn an_endpoint_that_fails_is_left_out_and_comes_back_without_an_error() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let proxies = [Proxy::start(server.addrs()[0]), Proxy::start(server.addrs()[0])];
    let oss = oss_at(&[nid(proxies[0].addr), nid(proxies[1].addr)], &shaped(quick()));
    use_all(&oss);
    for (number, bad) in proxies.iter().enumerate() {
        // Every received byte ends its connection: the endpoint never connects.
        bad.plan(Way::ToClient, 0, Harm::Cut, true);
        bad.cut_all();
        let before = ends(&oss);
        let data = pattern(4 * MIB);
        for _ in 0..20 {
            assert_eq!(oss.call(&write(0), Bulk::Send(&data)), Ok(OssReply::written(data.len() as u32)));
            assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
        }
        eventually("it was tried again in vain", || {
            oss.call(&write(0), Bulk::Send(&data)).expect("the other one works");
            ends(&oss)[number].failures >= before[number].failures + 3
        });
        let now = ends(&oss);
        assert_eq!(now[number].state, EndpointState::Down);
        assert_eq!(now[1 - number].state, EndpointState::Up);
        bad.heal();
        eventually("it is used again", || {
            oss.call(&write(0), Bulk::Send(&data)).expect("write");
            let end = ends(&oss)[number];
            end.state == EndpointState::Up && end.sent_bytes > now[number].sent_bytes + MIB as u64
        });
    }
}

#[test]
fn a_silent_endpoint_costs_some_pings_and_no_error() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let silent = Proxy::start(server.addrs()[0]);
    let config = ClientConfig { dead_after: Duration::from_secs(600), ..shaped(quick()) };
    let oss = oss_at(&[nid(server.addrs()[0]), nid(silent.addr)], &config);
    use_all(&oss);
    silent.plan(Way::ToClient, 0, Harm::Hold, true);
    let data = pattern(4 * MIB);
    let start = Instant::now();
    eventually("its silence was noticed", || {
        assert_eq!(oss.call(&write(0), Bulk::Send(&data)), Ok(OssReply::written(data.len() as u32)));
        ends(&oss)[1].failures > 0
    });
    assert!(start.elapsed() < Duration::from_secs(15), "not the ten minutes of a peer without alternatives");
    assert!(oss.stats().resends > 0);
    for _ in 0..5 {
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    }
}

#[test]
fn a_restarted_server_is_found_again_on_all_endpoints() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let addr = server.addrs()[0];
    let oss = oss_at(&[nid(addr)], &shaped(quick()));
    set(&oss, Tunable::ConnsPerPeer, 3);
    use_all(&oss);
    drop(server);
    let server = services.serve(addr, ServerConfig::default());
    let before = ends(&oss);
    eventually("all endpoints are connected again", || {
        use_all(&oss);
        ends(&oss).iter().zip(&before).all(|(now, before)| now.connects > before.connects)
    });
    drop(server);
}

#[test]
fn requests_are_no_longer_than_max_pages_per_rpc_from_the_next_one_on() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = oss_at(&[nid(server.addrs()[0])], &quick());
    let data = pattern(4 * MIB);
    let requests = |pages: u64| {
        set(&oss, Tunable::MaxPagesPerRpc, pages);
        let stats = oss.rpc_stats().expect("it has");
        stats.clear();
        let before = services.oss.requests.load(Ordering::SeqCst);
        oss.call(&write(0), Bulk::Send(&data)).expect("write");
        let sent = services.oss.requests.load(Ordering::SeqCst) - before;
        let rows = stats.pages_per_rpc()[Direction::Write as usize];
        assert_eq!(rows.iter().sum::<u64>(), sent);
        (sent, rows.iter().rposition(|&count| count > 0))
    };
    assert_eq!(requests(256), (4, Some(8)));
    assert_eq!(requests(64), (16, Some(6)));
    assert_eq!(requests(16), (64, Some(4)));
    assert!(services.oss.objects.lock().unwrap()[&object()] == data);
}

#[test]
fn no_more_than_max_rpcs_in_flight_are_under_way() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = oss_at(&[nid(server.addrs()[0])], &quick());
    for max in [1, 3, 8, 20] {
        set(&oss, Tunable::MaxRpcsInFlight, max);
        nacre_env::thread::scope(|scope| {
            let closed = services.oss.gate.close();
            // One thread starts more than may be in flight, and others add to it.
            for _ in 0..3 {
                scope.spawn(|| ten_reads_at_once(&oss));
            }
            let waiting = || services.oss.gate.waiting.load(Ordering::SeqCst);
            eventually("as many as allowed are at the server", || waiting() == max);
            // Requests without a limit still run, and no further read arrives meanwhile.
            assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
            assert_eq!(waiting(), max);
            // A thread counts its request only after the send.
            let in_flight = || oss.rpc_stats().map(|stats| stats.in_flight(Direction::Read));
            eventually("what waits for its turn was not sent", || in_flight() == Some(max));
            drop(closed);
        });
        assert_eq!(oss.stats().in_flight, 0);
    }
}

#[test]
fn data_arrives_whole_whatever_short_io_bytes_is() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = oss_at(&[nid(server.addrs()[0])], &quick());
    for short in [0, 64, 4096, 16 << 10, 64 << 10, 0] {
        set(&oss, Tunable::ShortIoBytes, short);
        for len in [1, 63, 64, 65, 4095, 4096, 4097, 16 << 10, 64 << 10, (64 << 10) + 1, 4096] {
            let data = pattern(len);
            assert_eq!(oss.call(&write(0), Bulk::Send(&data)), Ok(OssReply::written(len as u32)));
            let mut back = vec![0; len];
            assert_eq!(oss.call(&read(0, len), Bulk::Receive(&mut back)), Ok(OssReply::Read(len as u32)));
            assert!(back == data, "{len} bytes, short up to {short}");
        }
    }
}

#[test]
fn connections_that_nobody_uses_are_closed_and_opened_again() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = oss_at(&[nid(server.addrs()[0])], &quick());
    assert_eq!(oss.import().expect("it has").state, LinkState::Full);
    let other = oss_at(&[nid(server.addrs()[0])], &quick());
    set(&other, Tunable::IdleTimeout, 0);
    set(&oss, Tunable::IdleTimeout, 1);
    eventually("it is idle", || oss.import().expect("it has").state == LinkState::Idle);
    assert_eq!(other.import().expect("it has").state, LinkState::Full, "0 is never");
    drop(other);
    eventually("the server knows", || server.connection_count() == 0);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    assert_eq!(oss.import().expect("it has").state, LinkState::Full);
}

/// Returns the time of `count` writes of 1 MiB each.
fn time_of_writes(oss: &TcpOss, count: usize) -> Duration {
    let data = pattern(MIB);
    let start = Instant::now();
    for _ in 0..count {
        assert_eq!(oss.call(&write(0), Bulk::Send(&data)), Ok(OssReply::written(MIB as u32)));
    }
    start.elapsed()
}

#[test]
fn a_simulated_fabric_gives_each_endpoint_its_bandwidth() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    // Slow enough that the speed of the machine does not matter.
    let shape = Shape { latency: Duration::from_millis(1), bytes_per_second: 20_000_000, ..Shape::default() };
    assert!(shape.describe().contains("simulated"));
    let config = ClientConfig { shape: Some(shape), ..quick() };
    let oss = oss_at(&[nid(server.addrs()[0])], &config);
    let one = time_of_writes(&oss, 4);
    // 4 MiB at 20 MB/s.
    assert!(one >= Duration::from_millis(209), "{one:?}");
    set(&oss, Tunable::ConnsPerPeer, 4);
    use_all(&oss);
    let four = time_of_writes(&oss, 4);
    assert!(four >= Duration::from_millis(50), "{four:?}");
    assert!(one.as_secs_f64() / four.as_secs_f64() > 2.0, "one endpoint {one:?}, four {four:?}");
    let start = Instant::now();
    oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    assert!(start.elapsed() >= Duration::from_millis(2), "there and back");
}

#[test]
fn waiting_for_a_simulated_fabric_costs_no_cpu_time() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let shape = Shape { latency: Duration::from_millis(20), ..Shape::default() };
    let oss = oss_at(&[nid(server.addrs()[0])], &ClientConfig { shape: Some(shape), ..quick() });
    let cpu_time = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists on every Linux, and the structure is valid for writes.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let (start, cpu_start) = (Instant::now(), cpu_time());
    for _ in 0..10 {
        oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    }
    let (passed, used) = (start.elapsed(), cpu_time() - cpu_start);
    assert!(passed >= Duration::from_millis(400));
    assert!(used < passed / 10, "{used:?} of {passed:?}");
}

#[test]
fn requests_that_the_simulated_fabric_loses_are_sent_again() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    for (loss, timeout) in [(Loss::Cut, 2000), (Loss::Silence, 300)] {
        let shape = Shape { loss_ppm: 50_000, loss, seed: 3, ..Shape::default() };
        let config = ClientConfig {
            shape: Some(shape),
            ping_interval: Duration::from_millis(50),
            dead_after: Duration::from_millis(timeout),
            ..quick()
        };
        let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &config).expect("oss");
        for _ in 0..60 {
            assert_eq!(oss.call(&write(0), Bulk::Send(&[7; 5000])), Ok(OssReply::written(5000)), "{loss:?}");
        }
        assert!(oss.stats().resends > 0, "{loss:?}");
        assert_eq!(oss.call(&read(0, MIB), Bulk::None), Err(Status::EINVAL));
    }
}
