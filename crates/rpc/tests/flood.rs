//! Floods of half-open connections: clients continue, and the server's memory and threads are bounded.

#[path = "support/services.rs"]
mod services;

#[path = "support/keys.rs"]
mod keys;

use keys::{Keys, SERVER};
use nacre_keys::ClientTls;
use nacre_rpc::tcp::TcpOss;
use nacre_rpc::{ClientConfig, OssEndpoint, ServerConfig};
use nacre_types::{Fid, KeyId, Roles};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

const FLOOD: usize = 10_000;

/// Returns the first message of a handshake, as a client with a key sends it.
fn hello(config: &ClientConfig) -> Vec<u8> {
    let tls = config.tls.as_ref().expect("keys").config(false);
    let mut connection =
        rustls::ClientConnection::new(tls, "a.nacre".try_into().expect("a name")).expect("a handshake");
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).expect("written");
    bytes
}

/// Raises the limit on open files of this process; false if the system refuses.
fn may_open(files: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for reads and writes.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    limit.rlim_max >= files
}

/// Connects from another address of this host.
fn connect_from(source: Ipv4Addr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let SocketAddr::V4(server) = server else { unreachable!("tests use IPv4") };
    let address = |ip: Ipv4Addr, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let (from, to) = (address(source, 0), address(*server.ip(), server.port()));
    // SAFETY: both addresses live for the calls and have the length that is passed.
    unsafe {
        let raw = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if raw < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let stream = TcpStream::from(OwnedFd::from_raw_fd(raw));
        if libc::bind(raw, (&raw const from).cast(), len) < 0
            || libc::connect(raw, (&raw const to).cast(), len) < 0
        {
            return Err(std::io::Error::last_os_error());
        }
        Ok(stream)
    }
}

/// Returns the resident memory of this process in MiB, and its number of threads.
fn size() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").expect("this process is there");
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
    };
    (number("VmRSS:") / 1024, number("Threads:"))
}

/// Writes, reads and compares until `stop`; returns how often.
fn work(oss: &TcpOss, number: u32, stop: &AtomicBool) -> u32 {
    let object = Fid::new(9, number * 2, 0);
    let mut rounds = 0_u32;
    while !stop.load(Ordering::SeqCst) {
        let data: Vec<u8> = (0..50_000_u32).map(|at| (at * 7 + rounds) as u8).collect();
        let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
        assert_eq!(written, Ok(OssReply::written(50_000)));
        let mut back = vec![0; 50_000];
        let read = oss.call(&OssRequest::plain_read(object, 0, 50_000), Bulk::Receive(&mut back));
        assert_eq!(read, Ok(OssReply::Read(50_000)));
        assert!(back == data, "round {rounds}");
        rounds += 1;
    }
    rounds
}

#[test]
fn clients_work_and_come_and_go_while_ten_thousand_connections_stay_half_open() {
    if !may_open(FLOOD as u64 + 2000) {
        return;
    }
    let keys = Keys::new();
    let services = Services::default();
    let config = keys.server(SERVER);
    let (total, per_host) = (config.half_open_max, config.half_open_per_host_max);
    let server = services.serve(any_port(), config);
    let (addr, client) = (server.addrs()[0], keys.client(Roles::CLIENT));
    let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &client).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    let hello = hello(&client);
    let before = size();
    let stop = AtomicBool::new(false);
    nacre_env::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&oss, 1, &stop));
        // Some send nothing, some a little, some start a handshake that costs the server a signature, some
        // another protocol.
        let says: [&[u8]; 4] = [&[], &hello[..1], &hello, b"GET / HTTP/1.1\r\n\r\n"];
        let mut flood = Vec::with_capacity(FLOOD);
        for number in 0..FLOOD {
            // Most from addresses of their own, some from the address of the clients.
            let host = if number % 5 == 0 { 1 } else { 2 + number as u32 };
            let source = Ipv4Addr::from(0x7f00_0000 + host);
            let mut stream = connect_from(source, addr).expect("connected");
            let _ = stream.write_all(says[number % 4]);
            flood.push(stream);
            if number % 1000 == 999 {
                let (memory, threads) = size();
                assert!(server.half_open_count() <= total);
                assert!(threads <= before.1 + 16, "{threads} threads after {}", before.1);
                // The streams of this side are in the kernel's memory.
                assert!(memory <= before.0 + 64, "{memory} MiB after {}", before.0);
                // A new client can still connect.
                let config = keys.client(Roles::CLIENT);
                let other = TcpOss::new(0, &[nid(addr)], &identity(2), &config).expect("oss");
                assert_eq!(other.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done), "{number}");
            }
        }
        assert!(per_host < server.half_open_count());
        stop.store(true, Ordering::SeqCst);
        assert!(worker.join().expect("no panic") > 0);
        drop(flood);
    });
    eventually("nobody waits any more", || server.half_open_count() == 0);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}

#[test]
fn a_host_holds_no_more_half_open_connections_than_its_share_and_those_that_are_late_go() {
    let services = Services::default();
    let config = ServerConfig {
        half_open_per_host_max: 20,
        handshake_max: std::time::Duration::from_millis(500),
        ..ServerConfig::default()
    };
    let server = services.serve(any_port(), config);
    let addr = server.addrs()[0];
    let flood: Vec<_> = (0..200).map(|_| connect_from(Ipv4Addr::new(127, 0, 0, 7), addr)).collect();
    eventually("as many as may be", || server.half_open_count() <= 20);
    let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &quick()).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    eventually("none", || server.half_open_count() == 0);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    assert_eq!(flood.len(), 200);
}

#[test]
fn a_key_has_so_many_connections_and_others_are_served() {
    let keys = Keys::new();
    let services = Services::default();
    let server =
        services.serve(any_port(), ServerConfig { connections_per_key_max: 3, ..keys.server(SERVER) });
    let addr = server.addrs()[0];
    let client =
        ClientConfig { deadline: Some(std::time::Duration::from_millis(300)), ..keys.client(Roles::CLIENT) };
    let endpoints: Vec<_> = (10..14)
        .map(|number| TcpOss::new(0, &[nid(addr)], &identity(number), &client).expect("oss"))
        .collect();
    let answers: Vec<_> =
        endpoints.iter().map(|oss| oss.call(&OssRequest::Ping, Bulk::None).is_ok()).collect();
    assert_eq!(answers, [true, true, true, false]);
    let key = keys.key(KeyId(3), Roles::CLIENT);
    let tls = ClientTls::new("nacre", std::slice::from_ref(&key)).expect("settings");
    let other = ClientConfig { tls: Some(tls), ..quick() };
    let oss = TcpOss::new(0, &[nid(addr)], &identity(20), &other).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}
