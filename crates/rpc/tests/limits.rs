//! Interrupts, refusals, malformed peers, clients that disconnect, and a clean stop.

#[path = "support/services.rs"]
mod services;

use nacre_env::InterruptTarget;
use nacre_env::clock::Instant;
use nacre_rpc::tcp::{Server, Targets, TcpMds, TcpOss};
use nacre_rpc::{ClientConfig, MdsEndpoint, OssEndpoint, ServerConfig};
use nacre_types::{Cred, Fid, Status, TargetId, Xid};
use nacre_wire::frame::{FrameKind, HEADER_BYTES, Header};
use nacre_wire::mds::{FileLock, LockMode, LockOwner, MdsRequest, ProcessLock};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use nacre_wire::{Decode, Encode, connect};
use services::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

fn mds_at(addr: SocketAddr, number: u8, config: &ClientConfig) -> TcpMds {
    TcpMds::connect(0, &[nid(addr)], &identity(number), config, Arc::new(Events::default()))
        .expect("connect")
        .0
}

fn lock_request() -> MdsRequest<'static> {
    let lock = FileLock {
        family: nacre_wire::mds::LockFamily::File,
        owner: LockOwner(1),
        mode: LockMode::Write,
        start: 0,
        last: u64::MAX,
        pid: 1,
    };
    MdsRequest::LockFile { fid: Fid::ROOT, lock: ProcessLock { lock, process: 0 }, wait: true, asked_ns: 0 }
}

/// Runs `work` as an interruptible request and interrupts it once `ready` holds.
fn interrupted<T: Send>(work: impl FnOnce() -> T + Send, ready: impl FnMut() -> bool) -> T {
    let (send, receive) = nacre_env::sync::mpsc::channel();
    nacre_env::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let guard = InterruptTarget::install();
            guard.target().begin(77);
            send.send(guard.target().clone()).expect("receiver waits");
            let result = work();
            guard.target().end();
            result
        });
        let target = receive.recv().expect("target");
        eventually("the request waits", ready);
        assert!(target.raise(77));
        worker.join().expect("worker")
    })
}

#[test]
fn an_interrupted_lock_stops_waiting_at_the_server_too() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let mds = mds_at(server.addrs()[0], 1, &quick());
    let _closed = services.mds.gate.close();
    let result = interrupted(
        || mds.call(&Cred::new(0, 0), &lock_request()),
        || services.mds.gate.waiting.load(Ordering::SeqCst) == 1,
    );
    assert_eq!(result, Err(Status::EINTR));
    eventually("nobody waits", || services.mds.gate.waiting.load(Ordering::SeqCst) == 0);
    eventually("nothing is under way", || mds.stats().in_flight == 0);
}

#[test]
fn an_interrupted_read_leaves_its_buffer_alone() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let config = ClientConfig { interrupt_grace: Duration::ZERO, ..quick() };
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &config).expect("oss");
    let object = Fid::new(9, 1, 0);
    let data = vec![7u8; 300_000];
    oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data)).expect("write");
    let closed = services.oss.gate.close();
    let mut buffer = vec![1u8; data.len()];
    let read = OssRequest::plain_read(object, 0, data.len() as u32);
    let result = interrupted(
        || oss.call(&read, Bulk::Receive(&mut buffer)),
        || services.oss.gate.waiting.load(Ordering::SeqCst) == 1,
    );
    assert_eq!(result, Err(Status::EINTR));
    drop(closed);
    // The next caller reads the late answer and discards it.
    for _ in 0..10 {
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    }
    assert!(buffer.iter().all(|&byte| byte == 1));
}

#[test]
fn a_caller_that_waits_for_a_server_that_is_away_can_be_interrupted() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    oss.call(&OssRequest::Ping, Bulk::None).expect("ping");
    drop(server);
    let start = Instant::now();
    let result = interrupted(
        || oss.call(&OssRequest::Ping, Bulk::None),
        || start.elapsed() > Duration::from_millis(50),
    );
    assert_eq!(result, Err(Status::EINTR));
    assert_eq!(oss.stats().in_flight, 0);
}

#[test]
fn more_waiting_locks_than_the_server_has_threads_do_not_block_others() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig { threads_max: 12, ..ServerConfig::default() });
    let mds = mds_at(server.addrs()[0], 1, &quick());
    nacre_env::thread::scope(|scope| {
        let closed = services.mds.gate.close();
        let lockers: Vec<_> = (0..8)
            .map(|_| {
                let mds = &mds;
                scope.spawn(move || mds.call(&Cred::new(0, 0), &lock_request()))
            })
            .collect();
        eventually("locks wait", || services.mds.gate.waiting.load(Ordering::SeqCst) == 8);
        assert!(mds.call(&Cred::new(0, 0), &MdsRequest::Statfs).is_ok());
        drop(closed);
        for locker in lockers {
            assert!(locker.join().expect("locker").is_ok());
        }
    });
}

#[test]
fn servers_refuse_what_they_do_not_serve() {
    let services = Services::default();
    let config = ServerConfig { fsname: "other".to_owned(), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let nids = [nid(server.addrs()[0])];
    let refused = TcpMds::connect(0, &nids, &identity(1), &quick(), Arc::new(Events::default()));
    assert!(matches!(refused, Err(Status::WRONG_FSNAME)));
    let impatient = ClientConfig { first_connect_deadline: Duration::from_millis(100), ..quick() };
    let mut other = identity(1);
    other.fsname = "other".to_owned();
    let refused = TcpMds::connect(7, &nids, &other, &impatient, Arc::new(Events::default()));
    assert!(matches!(refused, Err(Status::ETIMEDOUT)), "MDT0007 is not served, but may come");
    let error =
        Server::bind(server.addrs(), Targets::new(), ServerConfig::default()).err().expect("port in use");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains(&server.addrs()[0].to_string()), "{error}");
}

fn first_frame(addr: SocketAddr, connect: &connect::Connect) -> (Header, Vec<u8>) {
    let mut stream = TcpStream::connect(addr).expect("connect");
    let body = connect.to_bytes();
    let mut header = Header::new(FrameKind::Connect, TargetId::mdt(0), Xid(0));
    header.set_body(&body).expect("small");
    stream.write_all(&header.to_bytes()).expect("send");
    stream.write_all(&body).expect("send");
    let mut bytes = [0u8; HEADER_BYTES];
    stream.read_exact(&mut bytes).expect("an answer");
    let header = Header::from_bytes(&bytes).expect("a frame");
    let mut body = vec![0; header.body_len as usize];
    stream.read_exact(&mut body).expect("the body");
    (header, body)
}

#[test]
fn versions_that_do_not_meet_are_told_on_both_sides() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let connect = connect::Connect {
        version_min: 900,
        version_max: 901,
        features: u64::MAX,
        flags: connect::ConnectFlags::empty(),
        client: identity(1).client,
        fsname: String::new(),
        process: nacre_types::ProcessIdentity::default(),
        cpu: u32::MAX,
        instance: 0,
    };
    let (header, body) = first_frame(server.addrs()[0], &connect);
    assert_eq!((header.kind, header.status), (FrameKind::Connected, Status::BAD_VERSION));
    let refusal = connect::Refusal::from_bytes(&body).expect("a refusal");
    assert_eq!((refusal.version_min, refusal.version_max), (connect::VERSION_MIN, connect::VERSION_MAX));
    // Unknown features, of the future, are ignored.
    let connect = connect::Connect { version_min: 1, ..connect };
    let (header, body) = first_frame(server.addrs()[0], &connect);
    assert_eq!(header.status, Status::OK);
    let connected = connect::Connected::from_bytes(&body).expect("an answer");
    assert_eq!(connected.features, connect::Features::all().bits());
}

#[test]
fn malformed_peers_are_cut_off_and_others_served() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..60 {
        let mut stream = TcpStream::connect(server.addrs()[0]).expect("connect");
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(200).collect();
        let mut header = Header::new(FrameKind::Connect, TargetId::mdt(0), Xid(0)).to_bytes();
        if round % 2 == 0 {
            header[round % HEADER_BYTES] ^= 0x10;
        }
        let _ = stream.write_all(&header);
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let mds = mds_at(server.addrs()[0], 1, &quick());
    assert!(mds.call(&Cred::new(0, 0), &MdsRequest::Statfs).is_ok());
    drop(mds);
    eventually("their connections end", || server.connection_count() + server.half_open_count() == 0);
}

#[test]
fn a_connect_has_to_be_there_in_time_however_it_comes() {
    let services = Services::default();
    let config = ServerConfig { handshake_max: Duration::from_millis(300), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let connect = Header::new(FrameKind::Connect, TargetId::mdt(0), Xid(0));
    let announces_a_body = Header { body_len: 4000, ..connect }.to_bytes();
    let nothing: &[u8] = &[];
    for begin in [nothing, &announces_a_body] {
        let mut stream = TcpStream::connect(server.addrs()[0]).expect("connect");
        stream.write_all(begin).expect("send");
        stream.set_read_timeout(Some(Duration::from_millis(10))).expect("a time");
        // A byte now and then is progress, but the total time is bounded.
        let drops = announces_a_body.iter().cycle().take(1000);
        let taken = drops.take_while(|byte| {
            let waits = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
            stream.write_all(&[**byte]).is_ok() && stream.read(&mut [0]).is_err_and(waits)
        });
        assert!((2..200).contains(&taken.count()), "not at once, and not for ever");
    }
    eventually("their connections end", || server.connection_count() + server.half_open_count() == 0);
}

#[test]
fn a_client_that_went_is_disconnected_after_its_grace() {
    let services = Services::default();
    let config = ServerConfig { client_grace_local: Duration::from_millis(300), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let mds = mds_at(server.addrs()[0], 1, &quick());
    assert_eq!(server.client_count(), 1);
    drop(mds);
    eventually("the client is given up", || services.mds.disconnects.load(Ordering::SeqCst) == 1);
    assert_eq!(server.client_count(), 0);
}

#[test]
fn an_idle_client_learns_from_pings_what_its_mdt_has_made_durable() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let mds = mds_at(server.addrs()[0], 1, &quick());
    let committed = || mds.import().expect("a connection").peer_committed;
    assert_eq!(committed(), 0, "no answer to a request has reported it");
    eventually("a ping is answered", || committed() == 1);
}

#[test]
fn a_silent_client_is_disconnected_although_its_connections_are_open() {
    let services = Services::default();
    let config = ServerConfig { client_grace: Duration::from_millis(500), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let lazy = ClientConfig { ping_interval: Duration::from_secs(1000), ..quick() };
    let lively = mds_at(server.addrs()[0], 1, &quick());
    let mds = mds_at(server.addrs()[0], 2, &lazy);
    eventually("the silent one is given up", || services.mds.disconnects.load(Ordering::SeqCst) == 1);
    assert!(
        services.mds.exports.lock().unwrap().contains_key(&identity(1).client),
        "the one that pings stays"
    );
    drop((lively, mds));
}

#[test]
fn stopping_finishes_running_requests_and_interrupts_those_that_wait_for_ever() {
    let services = Services::default();
    let config = ServerConfig { stop_grace: Duration::from_millis(300), ..ServerConfig::default() };
    let server = services.serve(any_port(), config);
    let deadline = ClientConfig { deadline: Some(Duration::from_millis(100)), ..quick() };
    let mds = mds_at(server.addrs()[0], 1, &deadline);
    nacre_env::thread::scope(|scope| {
        let closed = services.mds.gate.close();
        let finished = scope.spawn(|| mds.call(&Cred::new(0, 0), &create(b"slow")));
        eventually("it runs", || services.mds.gate.waiting.load(Ordering::SeqCst) == 1);
        let stopper = scope.spawn(|| server.stop());
        drop(closed);
        assert!(finished.join().expect("caller").is_ok(), "answered although the server stops");
        stopper.join().expect("stop");
    });
    let server = services
        .serve(any_port(), ServerConfig { stop_grace: Duration::from_millis(100), ..Default::default() });
    let mds = mds_at(server.addrs()[0], 1, &deadline);
    nacre_env::thread::scope(|scope| {
        let _closed = services.mds.gate.close();
        let waiting = scope.spawn(|| mds.call(&Cred::new(0, 0), &lock_request()));
        eventually("it waits", || services.mds.gate.waiting.load(Ordering::SeqCst) == 1);
        server.stop();
        assert_eq!(services.mds.gate.waiting.load(Ordering::SeqCst), 0);
        assert!(waiting.join().expect("caller").is_err());
    });
}

#[test]
fn started_requests_that_are_dropped_leave_nothing_behind() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    let closed = services.oss.gate.close();
    let read = OssRequest::plain_read(Fid::new(9, 1, 0), 0, 100_000);
    let mut buffer = vec![1u8; 100_000];
    // SAFETY: dropped at once.
    drop(unsafe { oss.start(&read, Bulk::Receive(&mut buffer)) });
    drop(closed);
    eventually("its answer is thrown away", || {
        oss.call(&OssRequest::Ping, Bulk::None).is_ok() && oss.stats().in_flight == 0
    });
    assert!(buffer.iter().all(|&byte| byte == 1));
}

#[test]
fn closing_an_endpoint_ends_calls_that_wait() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let oss = TcpOss::new(0, &[nid(server.addrs()[0])], &identity(1), &quick()).expect("oss");
    nacre_env::thread::scope(|scope| {
        let closed = services.oss.gate.close();
        let caller = scope.spawn(|| {
            let mut buffer = [0u8; 10];
            let read = OssRequest::plain_read(Fid::new(9, 1, 0), 0, 10);
            oss.call(&read, Bulk::Receive(&mut buffer))
        });
        eventually("it waits", || services.oss.gate.waiting.load(Ordering::SeqCst) == 1);
        oss.close();
        assert_eq!(caller.join().expect("caller"), Err(Status::ESHUTDOWN));
        drop(closed);
    });
}

#[test]
fn a_target_out_of_use_is_asked_once_and_nobody_waits_for_a_dead_one() {
    let services = Services::default();
    let server = services.serve(any_port(), ServerConfig::default());
    let addr = server.addrs()[0];
    let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &quick()).expect("oss");
    let ask = || oss.call_out_of_use(&OssRequest::Ping);
    assert!(ask().is_ok(), "it is in use");
    oss.set_active(false).expect("set");
    for _ in 0..2 {
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::EIO));
        assert!(ask().is_ok());
    }
    drop(server);
    let begin = Instant::now();
    assert_eq!(ask(), Err(Status::EIO));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    // A server that accepts connections and sends nothing.
    let silent = std::net::TcpListener::bind(any_port()).expect("bind");
    let oss =
        TcpOss::new(0, &[nid(silent.local_addr().expect("bound"))], &identity(1), &quick()).expect("oss");
    oss.set_active(false).expect("set");
    let begin = Instant::now();
    assert_eq!(oss.call_out_of_use(&OssRequest::Ping), Err(Status::EIO));
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let waits = ClientConfig { handshake_timeout: Duration::from_secs(600), ..quick() };
    let silent_one = nid(silent.local_addr().expect("bound"));
    let oss = TcpOss::new(0, &[silent_one], &identity(1), &waits).expect("oss");
    oss.set_active(false).expect("set");
    assert_eq!(oss.call_out_of_use(&OssRequest::Ping), Err(Status::EIO), "by its own deadline");
}
