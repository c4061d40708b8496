//! What TLS costs: requests and data over loopback, open and encrypted in turn, on one CPU.
//!
//! `cargo run --release -p nacre-rpc --example security_bench [SECONDS]`: each figure is measured five times for so long
//! (default 0.4) in turn with its counterpart; medians of the rate per second of CPU time of both ends.

use nacre_keys::{Authority, ClientTls, LIFETIME, Revoked, ServerTls};
use nacre_rpc::tcp::{ClientIdentity, MdsEvents, Server, Targets, TcpMds, TcpMgs, TcpOss};
use nacre_rpc::{
    Call, ClientCallbacks, ClientConfig, Export, MdsEndpoint, MdsService, MgsEndpoint, MgsPeer, MgsService,
    OssEndpoint, OssService, Recovery, ReplySlot, ServerConfig,
};
use nacre_types::{ClientUuid, Cred, Fid, Identity, KeyId, Nid, Roles, StatusResult, TransNo};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::mgs::{MgsReply, MgsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const ROUNDS: usize = 5;

struct Null;

impl MdsService for Null {
    fn connect(&self, _export: &Arc<Export>) -> StatusResult<LeaseGrant> {
        Ok(LeaseGrant { exclusive: true, epoch: 1 })
    }
    fn disconnect(&self, _client: ClientUuid) {}
    fn handle(&self, _: &Export, _: &Call<'_>, _: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        Ok(MdsAnswer { transno: TransNo(1), last_committed: TransNo(1), reply: MdsReply::Done })
    }
    fn stored_answer(&self, _: &ReplySlot) -> Option<StatusResult<MdsAnswer>> {
        None
    }
}

impl OssService for Null {
    fn handle(&self, _: &Export, _: &Call<'_>, _: &OssRequest, bulk: Bulk<'_>) -> StatusResult<OssReply> {
        Ok(match bulk {
            Bulk::None => OssReply::Done,
            Bulk::Send(data) => OssReply::Written(data.len() as u32),
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

/// CPU time that this process has used.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on every Linux, and the structure is valid for writes.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Operations per second of CPU time of both ends.
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
    _server: Server,
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
        Side { _server: server, nids, identity, config: client, mds, oss }
    }

    fn connect(&self, config: &ClientConfig) {
        let mgs = TcpMgs::new(&self.nids, &self.identity, config).expect("endpoint");
        mgs.call(&MgsRequest::Ping).expect("answer");
    }
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
    let server = ServerTls::new(&own, false, Arc::new(Revoked::default())).expect("settings");
    let client_key = key(2, Roles::CLIENT);
    let client = || Some(ClientTls::new("fs", std::slice::from_ref(&client_key)).expect("settings"));
    let open = Side::new(1, ServerConfig::default(), ClientConfig::default());
    let encrypt = Side::new(
        2,
        ServerConfig { tls: Some(server), ..ServerConfig::default() },
        ClientConfig { tls: client(), ..ClientConfig::default() },
    );
    let cred = Cred::new(0, 0);
    let mut data = vec![7u8; MIB];
    let object = Fid::new(9, 1, 0);
    let mut rows: [[Vec<f64>; 2]; 6] = Default::default();
    for _ in 0..ROUNDS {
        for (mode, side) in [&open, &encrypt].into_iter().enumerate() {
            let mut note = |row: usize, value: f64| rows[row][mode].push(value);
            note(0, rate(time, || side.mds.call(&cred, &MdsRequest::Statfs).expect("answer")));
            for (row, len) in [(1, 4096), (2, MIB)] {
                let request = OssRequest::plain_read(object, 0, len as u32);
                note(
                    row,
                    rate(time, || side.oss.call(&request, Bulk::Receive(&mut data[..len])).expect("read")),
                );
            }
            let request = OssRequest::plain_write(object, 0);
            note(3, rate(time, || side.oss.call(&request, Bulk::Send(&data)).expect("write")));
            note(4, rate(time, || side.connect(&side.config)));
            // Keys of its own each time: nothing to resume.
            note(
                5,
                rate(time, || {
                    let tls = side.config.tls.as_ref().and_then(|_| client());
                    side.connect(&ClientConfig { tls, ..side.config.clone() });
                }),
            );
        }
    }
    println!("one CPU, us of CPU time of both ends, medians of {ROUNDS} x {seconds} s");
    println!("{:<28} {:>9} {:>9} {:>7}", "", "open", "encrypt", "times");
    let names =
        ["null request", "read 4 KiB", "read 1 MiB", "write 1 MiB", "connect, resumed", "connect, in full"];
    for (name, [open, encrypt]) in names.into_iter().zip(rows) {
        let (open, encrypt) = (1e6 / median(open), 1e6 / median(encrypt));
        println!("{name:<28} {open:>9.1} {encrypt:>9.1} {:>7.2}", encrypt / open);
    }
}
