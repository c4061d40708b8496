//! Round trips and bulk throughput of the TCP transport compared to a bare socket, on one CPU and in one run.
//!
//! `cargo run --release -p nacre-rpc --example rpc_bench [SECONDS]`: each figure is measured three times for
//! SECONDS (default 0.4), alternating with its counterpart; medians are printed.

use nacre_env::clock::Instant;
use nacre_rpc::tcp::{ClientIdentity, MdsEvents, Server, Targets, TcpMds, TcpOss};
use nacre_rpc::{
    Call, ClientCallbacks, ClientConfig, Export, MdsEndpoint, MdsService, MdsWelcome, OssEndpoint,
    OssService, Recovery, ReplySlot, ServerConfig, Tunable,
};
use nacre_types::{ClientUuid, Cred, Fid, Nid, StatusResult, TransNo};
use nacre_wire::mds::{LeaseGrant, MdsAnswer, MdsReply, MdsRequest};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const MIB: usize = 1 << 20;

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
    fn handle(
        &self,
        _: &nacre_rpc::Export,
        _: &Call<'_>,
        _: &OssRequest,
        bulk: Bulk<'_>,
    ) -> StatusResult<OssReply> {
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

/// Returns operations per second of CPU time. Both ends run on one CPU in this process, so on an idle machine
/// that equals elapsed time, and on a busy one other processes do not count.
fn rate<T>(time: Duration, mut op: impl FnMut() -> T) -> f64 {
    let start = Instant::now();
    let cpu_start = cpu_time();
    let mut count = 0u64;
    while start.elapsed() < time {
        for _ in 0..8 {
            std::hint::black_box(op());
        }
        count += 8;
    }
    count as f64 / (cpu_time() - cpu_start).as_secs_f64()
}

/// Starts a peer that receives `request` bytes and answers `reply` bytes, until the end.
fn raw_peer(request: usize, reply: usize) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
    let (mut peer, _) = listener.accept().expect("accept");
    for end in [&stream, &peer] {
        end.set_nodelay(true).expect("option");
    }
    nacre_env::thread::spawn(move || {
        let (mut input, output) = (vec![0u8; request], vec![1u8; reply]);
        while peer.read_exact(&mut input).is_ok() && peer.write_all(&output).is_ok() {}
    });
    stream
}

fn raw_round_trip(stream: &mut TcpStream, request: &[u8], reply: &mut [u8]) {
    stream.write_all(request).expect("send");
    stream.read_exact(reply).expect("receive");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.4);
    let time = Duration::from_secs_f64(seconds);
    nacre_env::pin_to_cpu(0).expect("CPU 0");
    let targets = Targets::new().with_mdt(0, Arc::new(Null)).with_ost(0, Arc::new(Null));
    let server = Server::bind(&["127.0.0.1:0".parse().expect("address")], targets, ServerConfig::default())
        .expect("port");
    let nids = [Nid::Tcp(server.addrs()[0])];
    let identity = ClientIdentity { client: ClientUuid([1; 16]), fsname: String::new(), is_server: false };
    let config = ClientConfig::default();
    let (mds, _) = TcpMds::connect(0, &nids, &identity, &config, Arc::new(Null)).expect("connect");
    let oss = TcpOss::new(0, &nids, &identity, &config).expect("endpoint");
    let plain = TcpOss::new(0, &nids, &identity, &config).expect("endpoint");
    plain.tunables().expect("it has").set(Tunable::Checksums, 0).expect("a truth value");
    let cred = Cred::new(0, 0);
    let mut data = vec![7u8; MIB];
    let mut small_raw = raw_peer(128, 128);
    let mut read_raw = raw_peer(128, MIB);
    let mut write_raw = raw_peer(MIB, 128);
    let object = Fid::new(9, 1, 0);
    let read = OssRequest::plain_read(object, 0, MIB as u32);
    let write = OssRequest::plain_write(object, 0);
    let mut rows: [Vec<f64>; 8] = Default::default();
    for _ in 0..3 {
        let mut small = [0u8; 128];
        rows[0].push(rate(time, || raw_round_trip(&mut small_raw, &[1; 128], &mut small)));
        rows[1].push(rate(time, || mds.call(&cred, &MdsRequest::Statfs).expect("answer")));
        rows[2].push(rate(time, || raw_round_trip(&mut read_raw, &[1; 128], &mut data)));
        rows[3].push(rate(time, || oss.call(&read, Bulk::Receive(&mut data)).expect("read")));
        rows[4].push(rate(time, || plain.call(&read, Bulk::Receive(&mut data)).expect("read")));
        let request = data.clone();
        rows[5].push(rate(time, || raw_round_trip(&mut write_raw, &request, &mut small)));
        rows[6].push(rate(time, || oss.call(&write, Bulk::Send(&data)).expect("write")));
        rows[7].push(rate(time, || plain.call(&write, Bulk::Send(&data)).expect("write")));
    }
    let [ping, null, raw_read, read, read_plain, raw_write, write, write_plain] = rows.map(median);
    let gb = |rate: f64| rate * MIB as f64 / 1e9;
    println!("one CPU, per second of CPU time, medians of 3 x {seconds} s");
    println!("raw 128-byte ping-pong   {ping:>9.0} /s");
    println!("null request             {null:>9.0} /s   {:.2} of raw", null / ping);
    println!("raw 1 MiB reply          {:>9.2} GB/s", gb(raw_read));
    println!("read 1 MiB, checksums    {:>9.2} GB/s {:.2} of raw", gb(read), read / raw_read);
    println!("read 1 MiB, none         {:>9.2} GB/s {:.2} of raw", gb(read_plain), read_plain / raw_read);
    println!("raw 1 MiB request        {:>9.2} GB/s", gb(raw_write));
    println!("write 1 MiB, checksums   {:>9.2} GB/s {:.2} of raw", gb(write), write / raw_write);
    println!("write 1 MiB, none        {:>9.2} GB/s {:.2} of raw", gb(write_plain), write_plain / raw_write);
}
