//! A proxy between client and server that breaks connections and damages bytes.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Direction of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToServer,
    ToClient,
}

/// Fault of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Harm {
    /// Both directions end before byte `at` is forwarded.
    Cut,
    /// Byte `at` is changed.
    Flip,
    /// Byte `at` and all that follow on this connection are dropped.
    Hold,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    way: Way,
    /// Offset from the time when the fault was planned, over all connections.
    at: u64,
    harm: Harm,
    /// Repeats `at` bytes later.
    again: bool,
}

#[derive(Default)]
struct Plan {
    fault: Mutex<Option<Fault>>,
    /// Bytes forwarded in each direction since the fault was planned.
    passed: [AtomicU64; 2],
    happened: AtomicU64,
    stopping: AtomicBool,
    streams: Mutex<Vec<TcpStream>>,
}

/// Forwards connections to a server.
pub struct Proxy {
    pub addr: SocketAddr,
    plan: Arc<Plan>,
    upstream: Arc<Mutex<SocketAddr>>,
}

impl Proxy {
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let plan = Arc::new(Plan::default());
        let upstream = Arc::new(Mutex::new(upstream));
        let (accept_plan, accept_upstream) = (plan.clone(), upstream.clone());
        nacre_env::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if accept_plan.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let addr = *accept_upstream.lock().unwrap();
                let Ok(server) = TcpStream::connect(addr) else { continue };
                forward(&accept_plan, &client, &server);
            }
        });
        Proxy { addr, plan, upstream }
    }

    /// Returns the server that further connections are forwarded to.
    pub fn upstream(&self) -> SocketAddr {
        *self.upstream.lock().unwrap()
    }

    /// Forwards further connections to another server.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *self.upstream.lock().unwrap() = upstream;
    }

    pub fn plan(&self, way: Way, at: u64, harm: Harm, again: bool) {
        let mut fault = self.plan.fault.lock().unwrap();
        self.plan.passed.iter().for_each(|count| count.store(0, Ordering::SeqCst));
        *fault = Some(Fault { way, at, harm, again });
    }

    pub fn heal(&self) {
        *self.plan.fault.lock().unwrap() = None;
    }

    /// Returns how often a planned fault has happened.
    pub fn happened(&self) -> u64 {
        self.plan.happened.load(Ordering::SeqCst)
    }

    /// Ends all connections.
    pub fn cut_all(&self) {
        for stream in self.plan.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.plan.stopping.store(true, Ordering::SeqCst);
        self.cut_all();
        let _ = TcpStream::connect(self.addr);
    }
}

fn forward(plan: &Arc<Plan>, client: &TcpStream, server: &TcpStream) {
    let copy = |stream: &TcpStream| {
        stream.set_nodelay(true).expect("option");
        stream.try_clone().expect("a descriptor")
    };
    plan.streams.lock().unwrap().extend([copy(client), copy(server)]);
    for (way, from, to) in
        [(Way::ToServer, copy(client), copy(server)), (Way::ToClient, copy(server), copy(client))]
    {
        let plan = plan.clone();
        nacre_env::thread::spawn(move || pass(&plan, way, from, to));
    }
}

fn pass(plan: &Plan, way: Way, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0u8; 64 << 10];
    loop {
        let len = match from.read(&mut buffer) {
            Ok(len) if len > 0 => len,
            _ => break,
        };
        let (keep, hold) = harm(plan, way, &mut buffer[..len]);
        if hold {
            // The stream stays open without traffic until the reader closes it.
            while from.read(&mut buffer).is_ok_and(|len| len > 0) {}
            break;
        }
        if to.write_all(&buffer[..keep]).is_err() || keep < len {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

/// Applies the plan to these bytes; returns how many are forwarded.
fn harm(plan: &Plan, way: Way, bytes: &mut [u8]) -> (usize, bool) {
    let mut fault = plan.fault.lock().unwrap();
    let passed = &plan.passed[way as usize];
    let start = passed.fetch_add(bytes.len() as u64, Ordering::SeqCst);
    let Some(planned) = *fault else { return (bytes.len(), false) };
    let end = start + bytes.len() as u64;
    if planned.way != way || planned.at < start || planned.at >= end {
        return (bytes.len(), false);
    }
    plan.happened.fetch_add(1, Ordering::SeqCst);
    passed.store(0, Ordering::SeqCst);
    if !planned.again {
        *fault = None;
    }
    let position = (planned.at - start) as usize;
    match planned.harm {
        Harm::Cut => (position, false),
        Harm::Hold => (position, true),
        Harm::Flip => {
            bytes[position] ^= 0x40;
            (bytes.len(), false)
        }
    }
}
