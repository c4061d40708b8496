//! The gain from endpoints and short I/O: rates over plain loopback and over a simulated fabric, in one run.
//!
//! `cargo run --release -p nacre-rpc --example endpoint_bench [SECONDS]`: each figure is measured three times
//! for SECONDS (default 0.3), alternating with the other figures of its row; medians are printed.

use nacre_env::clock::Instant;
use nacre_rpc::tcp::{ClientIdentity, Server, Targets, TcpOss};
use nacre_rpc::{Call, ClientConfig, OssEndpoint, OssService, ServerConfig, Shape, Tunable};
use nacre_types::{ClientUuid, Fid, Nid, StatusResult};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::sync::Arc;
use std::time::Duration;

const ENDPOINTS: [u64; 3] = [1, 2, 4];
const KIB: usize = 1 << 10;

struct Null;

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

/// Returns the calls per second of one thread.
fn rate(oss: &TcpOss, is_write: bool, data: &mut [u8], time: Duration) -> f64 {
    let object = Fid::new(9, 1, 0);
    let start = Instant::now();
    let mut count = 0u32;
    while start.elapsed() < time {
        let result = if is_write {
            oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(data))
        } else {
            let read = OssRequest::plain_read(object, 0, data.len() as u32);
            oss.call(&read, Bulk::Receive(data))
        };
        result.expect("answer");
        count += 1;
    }
    f64::from(count) / start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the medians of the rates of one thread at each of several endpoints, measured alternately.
fn rates(all: &[TcpOss], is_write: bool, len: usize, time: Duration) -> Vec<f64> {
    let mut data = vec![7u8; len];
    let mut rows = vec![Vec::new(); all.len()];
    for _ in 0..4 {
        for (row, oss) in rows.iter_mut().zip(all) {
            row.push(rate(oss, is_write, &mut data, time));
        }
    }
    // The first round opens connections.
    rows.into_iter().map(|row| median(row[1..].to_vec())).collect()
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(0.3);
    let time = Duration::from_secs_f64(seconds);
    let targets = Targets::new().with_ost(0, Arc::new(Null));
    let address = "127.0.0.1:0".parse().expect("address");
    let server = Server::bind(&[address], targets, ServerConfig::default()).expect("port");
    let identity = ClientIdentity { client: ClientUuid([1; 16]), fsname: String::new(), is_server: false };
    let endpoint = |shape, tunable, value| {
        let config = ClientConfig { shape, ..ClientConfig::default() };
        let oss = TcpOss::new(0, &[Nid::Tcp(server.addrs()[0])], &identity, &config).expect("endpoint");
        oss.tunables().expect("it has").set(tunable, value).expect("in range");
        oss
    };
    let fabric =
        Shape { latency: Duration::from_micros(200), bytes_per_second: 1_000_000_000, ..Shape::default() };
    println!("one thread, MB/s by endpoints, medians of 3 x {seconds} s");
    for shape in [None, Some(fabric)] {
        println!("{}", shape.map_or("plain loopback".to_owned(), |shape| shape.describe()));
        let all = ENDPOINTS.map(|count| endpoint(shape, Tunable::ConnsPerPeer, count));
        for (name, is_write) in [("read", false), ("write", true)] {
            for len in [4 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB] {
                let rates = rates(&all, is_write, len, time);
                let mb = |rate: f64| rate * len as f64 / 1e6;
                print!("  {name:<5} {:>5} KiB", len / KIB);
                for (count, rate) in ENDPOINTS.iter().zip(&rates) {
                    print!("   {count}: {:>6.0} ({:.2})", mb(*rate), rate / rates[0]);
                }
                println!();
            }
        }
    }
    println!("short I/O, 4 KiB, requests per second, plain loopback");
    let all = [0, 16 << 10].map(|bytes| endpoint(None, Tunable::ShortIoBytes, bytes));
    for (name, is_write) in [("read", false), ("write", true)] {
        let rates = rates(&all, is_write, 4096, time);
        println!("  {name:<5} off {:>6.0}  on {:>6.0}  ({:.2})", rates[0], rates[1], rates[1] / rates[0]);
    }
}
