//! Protection of connections: encrypted or authenticated, as the server decides, against a man in the middle
//! that changes the negotiation or the records.

#[path = "support/services.rs"]
mod services;

#[path = "support/keys.rs"]
mod keys;

use keys::{Keys, SERVER, serve};
use nacre_keys::{Revoked, ServerTls};
use nacre_rpc::tcp::{ClientIdentity, TcpOss};
use nacre_rpc::{ClientConfig, IoCall, OssEndpoint, ServerConfig, run_all};
use nacre_types::{ClientUuid, Fid, KeyId, Roles, Security, Status};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use services::*;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Attack of a man in the middle on a client's record.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Repeat,
    Drop,
    SwapWithNext,
    /// Replaces it by the record of another connection at this place.
    Replace,
    CutItsEnd,
    Flip,
}

/// A man in the middle that knows the bounds of records.
struct Between {
    addr: SocketAddr,
    stopping: Arc<AtomicBool>,
    plan: Arc<Mutex<Option<(usize, Harm)>>>,
    happened: Arc<AtomicUsize>,
    /// All bytes that clients sent.
    seen: Arc<Mutex<Vec<u8>>>,
}

/// A change of the first bytes of a client.
type Rewrite = fn(Vec<u8>) -> Vec<u8>;

fn record(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 5];
    from.read_exact(&mut head).ok()?;
    let len = match head {
        [b'M', a, b, c, d] => u32::from_le_bytes([a, b, c, d]) as usize + 16,
        [_, _, _, high, low] => usize::from(u16::from_be_bytes([high, low])),
    };
    let mut record = head.to_vec();
    record.resize(5 + len, 0);
    from.read_exact(&mut record[5..]).ok()?;
    Some(record)
}

impl Between {
    fn start(server: SocketAddr, rewrite: Rewrite) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let between = Between {
            addr: listener.local_addr().expect("bound"),
            stopping: Arc::default(),
            plan: Arc::default(),
            happened: Arc::default(),
            seen: Arc::default(),
        };
        let (stopping, plan) = (between.stopping.clone(), between.plan.clone());
        let (happened, seen) = (between.happened.clone(), between.seen.clone());
        nacre_env::thread::spawn(move || {
            let others: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
            for client in listener.incoming().flatten() {
                if stopping.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(upstream) = TcpStream::connect(server) else { continue };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                let (mut from, mut to) = (copy(&upstream), copy(&client));
                nacre_env::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
                let (plan, happened) = (plan.clone(), happened.clone());
                let (seen, others) = (seen.clone(), others.clone());
                nacre_env::thread::spawn(move || {
                    pass(client, upstream, (&plan, &happened), (&seen, &others), rewrite);
                });
            }
        });
        between
    }
}

fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    (plan, happened): (&Mutex<Option<(usize, Harm)>>, &AtomicUsize),
    (seen, others): (&Mutex<Vec<u8>>, &Mutex<Vec<Vec<u8>>>),
    rewrite: Rewrite,
) {
    let mut number = 0;
    while let Some(mut record) = record(&mut from) {
        seen.lock().unwrap().extend_from_slice(&record);
        if number == 0 {
            record = rewrite(record);
        }
        let harm = plan.lock().unwrap().take_if(|(at, _)| *at == number);
        let mut out = record.clone();
        if let Some((_, harm)) = harm {
            happened.fetch_add(1, Ordering::SeqCst);
            match harm {
                Harm::Repeat => out.extend_from_slice(&record),
                Harm::Drop => out.clear(),
                Harm::SwapWithNext => {
                    let Some(next) = self::record(&mut from) else { break };
                    out = [next, record.clone()].concat();
                }
                Harm::Replace => out = others.lock().unwrap().get(number).cloned().unwrap_or_default(),
                Harm::CutItsEnd => out.truncate(out.len() - 1),
                Harm::Flip => *out.last_mut().expect("a byte") ^= 1,
            }
        } else {
            let mut others = others.lock().unwrap();
            if others.len() == number {
                others.push(record);
            }
        }
        if to.write_all(&out).is_err() {
            break;
        }
        number += 1;
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
    }
}

#[test]
fn authenticated_data_of_every_size_comes_as_it_was_sent() {
    let keys = Keys::new();
    let (services, _server, addr) =
        serve(ServerConfig { protection: Security::Authenticate, ..keys.server(SERVER) });
    let oss = TcpOss::new(0, &[nid(addr)], &identity(1), &keys.client(Roles::CLIENT)).expect("oss");
    for len in [0, 1, 100, 8191, 8192, 16_300, 17 << 10, 65_536, 100_001, 131_072, 1 << 20, (4 << 20) - 1] {
        let (data, object) = (pattern(len, len as u8), Fid::new(9, 2, 0));
        let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
        assert_eq!(written, Ok(OssReply::written(len as u32)), "{len}");
        let mut back = vec![0xee; len + 3];
        let read = oss.call(&OssRequest::plain_read(object, 0, len as u32), Bulk::Receive(&mut back));
        assert_eq!(read, Ok(OssReply::Read(len as u32)), "{len}");
        assert!(back[..len] == data[..] && back[len..] == [0xee; 3], "{len}");
        services.oss.objects.lock().unwrap().clear();
    }
    nacre_env::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let oss = &oss;
            scope.spawn(move || {
                for round in 0..30_u32 {
                    let objects: Vec<Fid> = (0..8).map(|n| Fid::new(9, (thread * 8 + n) * 2, 0)).collect();
                    let data: Vec<Vec<u8>> =
                        (0..8).map(|n| pattern(70_000, (thread * 8 + n + round) as u8)).collect();
                    let call = |(object, data)| IoCall {
                        endpoint: oss,
                        request: OssRequest::plain_write(object, 0),
                        bulk: Bulk::Send(data),
                    };
                    let writes = objects.iter().copied().zip(data.iter().map(Vec::as_slice)).map(call);
                    assert!(run_all(writes.collect()).iter().all(Result::is_ok));
                    let mut back = vec![vec![0; 70_000]; 8];
                    let reads = objects.iter().zip(&mut back).map(|(object, back)| IoCall {
                        endpoint: oss,
                        request: OssRequest::plain_read(*object, 0, 70_000),
                        bulk: Bulk::Receive(back),
                    });
                    assert!(run_all(reads.collect()).iter().all(Result::is_ok));
                    assert!(back == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn records_that_are_repeated_dropped_swapped_replaced_or_cut_end_the_connection_and_requests_run_once() {
    let harms = [Harm::Repeat, Harm::Drop, Harm::SwapWithNext, Harm::Replace, Harm::CutItsEnd, Harm::Flip];
    for protection in [Security::Encrypt, Security::Authenticate] {
        let keys = Keys::new();
        let (services, _server, addr) = serve(ServerConfig { protection, ..keys.server(SERVER) });
        let between = Between::start(addr, |record| record);
        let mut round = 0_u32;
        for at in [0, 1, 2, 3, 4, 6, 9] {
            for harm in harms {
                round += 1;
                let config = keys.client(Roles::CLIENT);
                // A new client each time, so that no session can be resumed.
                let client = ClientIdentity { client: ClientUuid([round as u8; 16]), ..identity(1) };
                // Waits for bytes that never arrive must be short.
                let config = ClientConfig {
                    handshake_timeout: Duration::from_millis(300),
                    dead_after: Duration::from_millis(300),
                    ping_interval: Duration::from_millis(50),
                    ..config
                };
                *between.plan.lock().unwrap() = Some((at, harm));
                let oss = TcpOss::new(0, &[nid(between.addr)], &client, &config).expect("oss");
                let (object, data) = (Fid::new(9, round * 2, 0), pattern(50_000, round as u8));
                let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
                assert_eq!(written, Ok(OssReply::written(50_000)), "{protection:?} {at} {harm:?}");
                let mut back = vec![0; 50_000];
                let read = oss.call(&OssRequest::plain_read(object, 0, 50_000), Bulk::Receive(&mut back));
                assert_eq!(read, Ok(OssReply::Read(50_000)), "{protection:?} {at} {harm:?}");
                assert!(back == data, "{protection:?} {at} {harm:?}");
                assert!(
                    services.oss.objects.lock().unwrap()[&object] == data,
                    "{protection:?} {at} {harm:?}"
                );
            }
        }
        let happened = between.happened.load(Ordering::SeqCst);
        assert!(happened > 20, "{protection:?}: {happened}");
    }
}

#[test]
fn what_is_encrypted_cannot_be_read_and_what_is_authenticated_can() {
    for (protection, is_readable) in [(Security::Encrypt, false), (Security::Authenticate, true)] {
        let keys = Keys::new();
        let (_services, _server, addr) = serve(ServerConfig { protection, ..keys.server(SERVER) });
        let between = Between::start(addr, |record| record);
        let oss =
            TcpOss::new(0, &[nid(between.addr)], &identity(1), &keys.client(Roles::CLIENT)).expect("oss");
        let data = b"a sentence that somebody might look for".repeat(500);
        oss.call(&OssRequest::plain_write(Fid::new(9, 2, 0), 0), Bulk::Send(&data)).expect("written");
        let seen = between.seen.lock().unwrap();
        let found = seen.windows(30).any(|bytes| *bytes == data[..30]);
        assert_eq!(found, is_readable, "{protection:?}");
    }
}

/// Removes encryption from the client's offer.
fn without_encryption(mut record: Vec<u8>) -> Vec<u8> {
    let name = b"nacre-encrypt";
    if let Some(at) = record.windows(name.len()).position(|bytes| bytes == name) {
        record[at..at + name.len()].copy_from_slice(b"nacre-nothing");
    }
    record
}

#[test]
fn nobody_on_the_way_talks_two_sides_into_less_protection() {
    for protection in [Security::Encrypt, Security::Authenticate] {
        let keys = Keys::new();
        let (services, _server, addr) = serve(ServerConfig { protection, ..keys.server(SERVER) });
        let client = ClientConfig { deadline: Some(Duration::from_secs(1)), ..keys.client(Roles::CLIENT) };
        let oss =
            |addr, client: &ClientConfig| TcpOss::new(0, &[nid(addr)], &identity(1), client).expect("oss");
        let between = Between::start(addr, without_encryption);
        assert!(oss(between.addr, &client).call(&OssRequest::Ping, Bulk::None).is_err(), "{protection:?}");
        assert_eq!(services.oss.requests.load(Ordering::SeqCst), 0);
        let strict = ClientConfig { encrypted_only: true, ..client.clone() };
        let expected = match protection {
            Security::Encrypt => Ok(OssReply::Done),
            _ => Err(Status::EKEYREJECTED),
        };
        assert_eq!(oss(addr, &strict).call(&OssRequest::Ping, Bulk::None), expected);
        assert_eq!(oss(addr, &client).call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    }
}

#[test]
fn each_address_of_a_server_is_protected_as_it_says() {
    let keys = Keys::new();
    let key = keys.key(KeyId(1), Roles::MGS | Roles::MDS | Roles::OSS);
    let tls = ServerTls::new(&key, false, Arc::new(Revoked::default())).expect("settings");
    let own = |last: u8| std::net::IpAddr::from([127, 0, 0, last]);
    let config = ServerConfig {
        tls: Some(tls),
        protection_of: vec![(own(2), Security::Authenticate), (own(3), Security::Open)],
        ..ServerConfig::default()
    };
    let services = Services::default();
    let server = services.serve("0.0.0.0:0".parse().expect("an address"), config);
    let port = server.addrs()[0].port();
    let deadline = Some(Duration::from_secs(5));
    let strict = ClientConfig { encrypted_only: true, deadline, ..keys.client(Roles::CLIENT) };
    let without = ClientConfig { deadline, ..quick() };
    let ping = |last: u8, number: u8, client: &ClientConfig| {
        let oss = TcpOss::new(0, &[nid((own(last), port).into())], &identity(number), client).expect("oss");
        oss.call(&OssRequest::Ping, Bulk::None)
    };
    let served = Ok(OssReply::Done);
    let refused = |status| Err(status);
    assert_eq!([ping(1, 1, &strict), ping(1, 2, &without)], [served.clone(), refused(Status::ENOKEY)]);
    let authenticated = [refused(Status::EKEYREJECTED), refused(Status::ENOKEY), served.clone()];
    assert_eq!(
        [ping(2, 1, &strict), ping(2, 2, &without), ping(2, 1, &keys.client(Roles::CLIENT))],
        authenticated
    );
    assert_eq!([ping(3, 1, &strict), ping(3, 2, &without)], [served.clone(), served]);
}
