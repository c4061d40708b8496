//! The cost of protection: requests and data over loopback, alternately open, authenticated and encrypted, on
//! one CPU; and the effect of a flood of half-open connections on a client.
//!
//! `cargo run --release -p nacre-rpc --example security_bench [SECONDS]`: each figure is measured five times
//! for SECONDS (default 0.4), alternating with its counterparts; medians of the CPU time of both ends.

use nacre_env::clock::Instant;
use nacre_keys::{Authority, ClientTls, LIFETIME, Revoked, ServerTls};
use nacre_rpc::tcp::{ClientIdentity, MdsEvents, Server, Targets, TcpMds, TcpMgs, TcpOss};
use nacre_rpc::{
    Call, ClientCallbacks, ClientConfig, Export, IoCall, MdsEndpoint, MdsService, MdsWelcome, MgsEndpoint,
    MgsPeer, MgsService, OssEndpoint, OssService, Recovery, ReplySlot, ServerConfig, run_all,
};
use nacre_types::Security;
use nacre_types::{ClientUuid, Cred, Fid, Identity, KeyId, Nid, Roles, StatusResult, TransNo};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;
const ROUNDS: usize = 5;

struct Null;

impl MdsService for Null {
    fn connect(&self, _export: &Arc<Export>) -> StatusResult<MdsWelcome> {
        Ok(MdsWelcome { lease: LeaseGrant { exclusive: true, epoch: 1 }, is_remembered: true })
    }
    fn disconnect(&self, _client: ClientUuid) {}
    fn handle(&self, _: &Export, _: &Call<'_>, _: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        Ok(MdsAnswer { transno: TransNo(1), last_committed: TransNo(1), ..MdsReply::Done.into() })
    }
    fn stored_answer(
        &self,
        _: &Export,
        _: &MdsRequest<'_>,
        _: &ReplySlot,
    ) -> Option<StatusResult<MdsAnswer>> {
        None
    }
}

impl OssService for Null {
    fn handle(&self, _: &Export, _: &Call<'_>, _: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        Ok(match bulk {
            Bulk::None => OssReply::Done,
            Bulk::Send(data) => OssReply::written(data.len() as u32),
            Bulk::Receive(buffer) => {
                // Memory that was never written would be one page of zeros, always in the cache.
                buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
                OssReply::Read(buffer.len() as u32)
            }
        })
    }
}

impl MgsService for Null {
    fn handle(&self, _: MgsPeer<'_>, _: &MgsRequest) -> StatusResult<MgsReply> {
        Ok(MgsReply::Done)
    }
}

impl ClientCallbacks for Null {
    fn lease_changed(&self, _grant: LeaseGrant) {}
}

impl MdsEvents for Null {
    fn reconnected(&self, _: &dyn MdsEndpoint, _: Recovery, _: LeaseGrant) -> StatusResult<()> {
        Ok(())
    }
}

/// Returns the CPU time that this process has used.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the structure is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns operations per second of CPU time of both ends.
fn rate<T>(time: Duration, mut op: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let cpu_start = cpu_time();
    let mut count = 0u64;
    while start.elapsed() < time {
        (0..8).for_each(|_| drop(std::hint::black_box(op())));
        count += 8;
    }
    count as f64 / (cpu_time() - cpu_start).as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A server and a client of one mode.
struct Side {
    server: Server,
    nids: [Nid; 1],
    identity: ClientIdentity,
    config: ClientConfig,
    mds: TcpMds,
    oss: TcpOss,
}

impl Side {
    fn new(number: u8, server: ServerConfig, client: ClientConfig) -> Side {
        let targets =
            Targets::new().with_mdt(0, Arc::new(Null)).with_ost(0, Arc::new(Null)).with_mgt(Arc::new(Null));
        let server = Server::bind(&["127.0.0.1:0".parse().expect("address")], targets, server).expect("port");
        let nids = [Nid::Tcp(server.addrs()[0])];
        let identity =
            ClientIdentity { client: ClientUuid([number; 16]), fsname: String::new(), is_server: false };
        let (mds, _) = TcpMds::connect(0, &nids, &identity, &client, Arc::new(Null)).expect("connect");
        let oss = TcpOss::new(0, &nids, &identity, &client).expect("endpoint");
        Side { server, nids, identity, config: client, mds, oss }
    }

    fn connect(&self, config: &ClientConfig) {
        let mgs = TcpMgs::new(&self.nids, &self.identity, config).expect("endpoint");
        mgs.call(&MgsRequest::Ping).expect("answer");
    }
}

/// Opens connections that send nothing, from many addresses of this host.
fn flood(server: std::net::SocketAddr, count: usize) -> Vec<TcpStream> {
    let std::net::SocketAddr::V4(server) = server else { unreachable!("the benchmark uses IPv4") };
    let address = |ip: Ipv4Addr, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) },
        sin_zero: [0; 8],
    };
    let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
    let to = address(*server.ip(), server.port());
    let one = |number: usize| {
        let from = address(Ipv4Addr::from(0x7f00_0002 + number as u32), 0);
        // SAFETY: both addresses live for the calls and have the length that is passed; this thread owns the
        // descriptor.
        unsafe {
            let raw = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(raw >= 0, "a socket: {}", std::io::Error::last_os_error());
            let stream = TcpStream::from(OwnedFd::from_raw_fd(raw));
            assert_eq!(libc::bind(raw, (&raw const from).cast(), len), 0);
            assert_eq!(libc::connect(raw, (&raw const to).cast(), len), 0);
            stream
        }
    };
    (0..count).map(one).collect()
}

/// Returns requests per second of a client, before and while ten thousand connections are half open.
fn under_flood(side: &Side, time: Duration) {
    const FLOOD: usize = 10_000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is valid for reads and writes.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    if limit.rlim_cur < FLOOD as u64 + 2000 {
        println!("no flood: this process may open {} files only", limit.rlim_cur);
        return;
    }
    let cred = Cred::new(0, 0);
    let per_second = || {
        let (start, mut count) = (Instant::now(), 0_u32);
        while start.elapsed() < time {
            side.mds.call(&cred, &MdsRequest::Statfs).expect("answer");
            count += 1;
        }
        f64::from(count) / start.elapsed().as_secs_f64()
    };
    let before = median((0..ROUNDS).map(|_| per_second()).collect());
    let start = Instant::now();
    let flood = flood(side.server.addrs()[0], FLOOD);
    let took = start.elapsed();
    let during = median((0..ROUNDS).map(|_| per_second()).collect());
    println!(
        "requests per second: {before:.0}; with {} connections half open (made in {:.2} s, {} still kept by the server): {during:.0}, {:.2} times",
        flood.len(),
        took.as_secs_f64(),
        side.server.half_open_count(),
        during / before
    );
}

/// Returns the milliseconds until a client has `count` connections again after a restart of its server.
fn reconnect_ms(side: &Side, count: usize) -> f64 {
    let start = Instant::now();
    (0..count).for_each(|_| side.connect(&side.config));
    start.elapsed().as_secs_f64() * 1e3
}

const DEPTH: usize = 16;

/// Measures all rows of one mode once.
fn measure(side: &Side, time: Duration, data: &mut [u8], new_client: &dyn Fn() -> ClientTls) -> Vec<f64> {
    let (cred, object) = (Cred::new(0, 0), Fid::new(9, 1, 0));
    let us = |rate: f64| 1e6 / rate;
    let mut row = vec![us(rate(time, || side.mds.call(&cred, &MdsRequest::Statfs).expect("answer")))];
    for len in [4096, MIB] {
        let request = OssRequest::plain_read(object, 0, len as u32);
        row.push(us(rate(time, || side.oss.call(&request, Bulk::Receive(&mut data[..len])).expect("read"))));
        let request = OssRequest::plain_write(object, 0);
        row.push(us(rate(time, || side.oss.call(&request, Bulk::Send(&data[..len])).expect("write"))));
    }
    let all = rate(time, || {
        let call = |(number, buffer)| IoCall {
            endpoint: &side.oss,
            request: OssRequest::plain_read(object, number as u64 * 4096, 4096),
            bulk: Bulk::Receive(buffer),
        };
        let calls = data[..DEPTH * 4096].chunks_mut(4096).enumerate().map(call);
        assert!(run_all(calls.collect()).iter().all(Result::is_ok));
    });
    row.push(us(all) / DEPTH as f64);
    row.push(us(rate(time, || side.connect(&side.config))));
    // New keys each time: no session to resume.
    row.push(us(rate(time, || {
        let tls = side.config.tls.as_ref().map(|_| new_client());
        side.connect(&ClientConfig { tls, ..side.config.clone() });
    })));
    row.push(1e3 * reconnect_ms(side, 8));
    row
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.4);
    let time = Duration::from_secs_f64(seconds);
    nacre_env::pin_to_cpu(0).expect("CPU 0");
    let dir = tempfile::tempdir().expect("a directory");
    let authority = Authority::create(&dir.path().join("keys"), "fs").expect("an authority");
    let key = |id, roles| {
        authority.make_key(&Identity::new("fs", KeyId(id), roles, "bench"), LIFETIME).expect("a key")
    };
    let own = key(1, Roles::MGS | Roles::MDS | Roles::OSS);
    let client_key = key(2, Roles::CLIENT);
    let client = || ClientTls::new("fs", std::slice::from_ref(&client_key)).expect("settings");
    let with_keys = |number, protection| {
        let tls = ServerTls::new(&own, false, Arc::new(Revoked::default())).expect("settings");
        Side::new(
            number,
            ServerConfig { tls: Some(tls), protection, ..ServerConfig::default() },
            ClientConfig { tls: Some(client()), ..ClientConfig::default() },
        )
    };
    let sides = [
        Side::new(1, ServerConfig::default(), ClientConfig::default()),
        with_keys(2, Security::Authenticate),
        with_keys(3, Security::Encrypt),
    ];
    let mut data = vec![7u8; MIB];
    let mut rounds: [Vec<Vec<f64>>; 3] = Default::default();
    for _ in 0..ROUNDS {
        for (side, rounds) in sides.iter().zip(&mut rounds) {
            rounds.push(measure(side, time, &mut data, &client));
        }
    }
    println!("one CPU, us of CPU time of both ends (reconnect: of time), medians of {ROUNDS} x {seconds} s");
    println!(
        "{:<24} {:>9} {:>12} {:>7} {:>9} {:>7}",
        "", "open", "authenticate", "times", "encrypt", "times"
    );
    let names = [
        "null request",
        "read 4 KiB",
        "write 4 KiB",
        "read 1 MiB",
        "write 1 MiB",
        "read 4 KiB, depth 16",
        "connect, resumed",
        "connect, in full",
        "reconnect, 8 connections",
    ];
    for (row, name) in names.into_iter().enumerate() {
        let [open, authenticate, encrypt] =
            [0, 1, 2].map(|mode: usize| median(rounds[mode].iter().map(|round| round[row]).collect()));
        println!(
            "{name:<24} {open:>9.1} {authenticate:>12.1} {:>7.2} {encrypt:>9.1} {:>7.2}",
            authenticate / open,
            encrypt / open
        );
    }
    under_flood(&sides[2], time);
}
