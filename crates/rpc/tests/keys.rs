//! Admission: certificates, roles, and connections that are tampered with.

#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/services.rs"]
mod services;

#[path = "support/keys.rs"]
mod keys;

use keys::{Keys, SERVER, SERVER_KEY, serve, with_key};
use nacre_env::clock::Instant;
use nacre_keys::{ClientTls, ServerTls};
use nacre_rpc::tcp::{ClientIdentity, TcpMds, TcpMgs, TcpOss};
use nacre_rpc::{
    AuditEvent, AuditKind, AuditSink, ClientConfig, IoCall, MdsEndpoint, MgsEndpoint, OssEndpoint,
    ServerConfig, run_all,
};
use nacre_types::{Cred, Fid, Identity, KeyId, Roles, Status, StatusResult, TargetId};
use nacre_wire::mds::MdsRequest;
use nacre_wire::mgs::{Hidden, MgsReply, MgsRequest, TargetConfig};
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use proxy::{Harm, Proxy, Way};
use services::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

const HOUR: Duration = Duration::from_secs(3600);

fn oss_at(addr: SocketAddr, config: &ClientConfig) -> TcpOss {
    TcpOss::new(0, &[nid(addr)], &identity(1), config).expect("oss")
}

fn ping(addr: SocketAddr, config: &ClientConfig) -> StatusResult<OssReply> {
    oss_at(addr, config).call(&OssRequest::Ping, Bulk::None)
}

#[test]
fn data_of_every_size_comes_as_it_was_sent() {
    let keys = Keys::new();
    let (services, server, addr) = serve(keys.server(SERVER));
    let oss = oss_at(addr, &keys.client(Roles::CLIENT));
    for len in [0, 1, 100, 16_300, 16 << 10, 17 << 10, (32 << 10) - 64, 100_001, 1 << 20, 4 << 20] {
        let data = pattern(len, len as u8);
        let object = Fid::new(9, 2, 0);
        let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
        assert_eq!(written, Ok(OssReply::written(len as u32)), "{len}");
        let mut back = vec![0xee; len + 3];
        let read = oss.call(&OssRequest::plain_read(object, 0, len as u32), Bulk::Receive(&mut back));
        assert_eq!(read, Ok(OssReply::Read(len as u32)), "{len}");
        assert!(back[..len] == data[..] && back[len..] == [0xee; 3], "{len}");
        services.oss.objects.lock().unwrap().clear();
    }
    drop(oss);
    server.stop();
}

#[test]
fn threads_that_send_and_receive_at_once_get_their_own_data() {
    let keys = Keys::new();
    let (_services, _server, addr) = serve(keys.server(SERVER));
    let oss = Arc::new(oss_at(addr, &keys.client(Roles::CLIENT)));
    const LEN: usize = 70_000;
    nacre_env::thread::scope(|scope| {
        for thread in 0..4_u32 {
            let oss = &oss;
            scope.spawn(move || {
                for round in 0..30_u32 {
                    let objects: Vec<Fid> = (0..8).map(|n| Fid::new(9, (thread * 8 + n) * 2, 0)).collect();
                    let data: Vec<Vec<u8>> =
                        (0..8).map(|n| pattern(LEN, (thread * 8 + n + round) as u8)).collect();
                    let writes = objects.iter().zip(&data).map(|(object, data)| IoCall {
                        endpoint: oss.as_ref(),
                        request: OssRequest::plain_write(*object, 0),
                        bulk: Bulk::Send(data),
                    });
                    assert!(run_all(writes.collect()).iter().all(Result::is_ok));
                    let mut back = vec![vec![0; LEN]; 8];
                    let reads = objects.iter().zip(&mut back).map(|(object, back)| IoCall {
                        endpoint: oss.as_ref(),
                        request: OssRequest::plain_read(*object, 0, LEN as u32),
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
fn nobody_is_served_without_a_key() {
    let keys = Keys::new();
    let (services, _server, addr) = serve(keys.server(SERVER));
    assert_eq!(ping(addr, &quick()), Err(Status::ENOKEY));
    let mds = TcpMds::connect(0, &[nid(addr)], &identity(1), &quick(), Arc::new(Events::default()));
    assert_eq!(mds.err(), Some(Status::ENOKEY));
    let mgs = TcpMgs::new(&[nid(addr)], &identity(1), &quick());
    assert_eq!(mgs.and_then(|mgs| mgs.call(&MgsRequest::Ping)), Err(Status::ENOKEY));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 0);
    assert_eq!(services.mds.connects.load(Ordering::SeqCst), 0);
    assert_eq!(services.oss.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn keys_of_others_and_of_other_times_are_refused() {
    let (keys, others) = (Keys::new(), Keys::new());
    let (services, _server, addr) = serve(keys.server(SERVER));
    let identity = Identity::new("nacre", KeyId(2), Roles::CLIENT, "test");
    let at = |when: SystemTime, lifetime| {
        with_key(&keys.authority.make_key_at(&identity, when, lifetime).expect("a key"))
    };
    let now = nacre_env::clock::wall();
    assert_eq!(ping(addr, &others.client(Roles::CLIENT)), Err(Status::EKEYREJECTED));
    assert_eq!(ping(addr, &at(now - 4 * HOUR, HOUR)), Err(Status::EKEYEXPIRED));
    // Issued by a clock that is two days ahead. TLS has one alert for both cases; the server's log
    // distinguishes them.
    assert_eq!(ping(addr, &at(now + 48 * HOUR, HOUR)), Err(Status::EKEYEXPIRED));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 0);
    // A clock that is an hour off is tolerated.
    assert_eq!(ping(addr, &at(now + HOUR, HOUR)), Ok(OssReply::Done));
    assert_eq!(ping(addr, &at(now - HOUR, 2 * HOUR)), Ok(OssReply::Done));
    keys.revoked.set([KeyId(2)]);
    assert_eq!(ping(addr, &at(now, HOUR)), Err(Status::EKEYREVOKED));
}

#[test]
fn a_client_talks_to_servers_of_its_authority_and_with_the_right_role_alone() {
    let (keys, others) = (Keys::new(), Keys::new());
    let client = keys.client(Roles::CLIENT);
    let (services, _server, addr) = serve(others.server(SERVER));
    assert_eq!(ping(addr, &client), Err(Status::EKEYREJECTED));
    // A client's key does not authenticate a server, and neither does the key of another kind of server.
    for roles in [Roles::CLIENT, Roles::MDS, Roles::MGS] {
        let (services, _server, addr) = serve(keys.server(roles));
        assert_eq!(ping(addr, &client), Err(Status::EKEYREJECTED), "{roles}");
        assert_eq!(services.oss.requests.load(Ordering::SeqCst), 0);
    }
    // Nor does the key of another target, where the target is known to belong to one key.
    let (own, _server, addr) = serve(keys.server(SERVER));
    let of = |key| ClientConfig { server_key: Some(key), ..client.clone() };
    assert_eq!(ping(addr, &of(KeyId(9))), Err(Status::EKEYREJECTED));
    assert_eq!(own.oss.connects.load(Ordering::SeqCst), 0);
    assert_eq!(ping(addr, &of(SERVER_KEY)), Ok(OssReply::Done));
    // Nor a revoked key, whether revoked before or during the connection.
    let oss = oss_at(addr, &client);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    client.tls.as_ref().expect("keys").revoked().set([SERVER_KEY]);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::EKEYREJECTED));
    client.tls.as_ref().expect("keys").revoked().set([SERVER_KEY]);
    assert_eq!(ping(addr, &client), Err(Status::EKEYREJECTED));
    client.tls.as_ref().expect("keys").revoked().set([]);
    // The client does not fall back to an open server.
    let (open, _server, addr) = serve(ServerConfig::default());
    let client = ClientConfig { deadline: Some(Duration::from_secs(1)), ..client };
    assert!(ping(addr, &client).is_err());
    assert_eq!(open.oss.connects.load(Ordering::SeqCst) + services.oss.connects.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_with_keys_of_two_file_systems_of_one_name_gives_each_server_the_right_one() {
    let (keys, others) = (Keys::new(), Keys::new());
    let both = [keys.key(KeyId(2), Roles::CLIENT), others.key(KeyId(2), Roles::CLIENT)];
    let tls = ClientTls::new("nacre", &both).expect("settings");
    let client = ClientConfig { tls: Some(tls), ..quick() };
    for keys in [&keys, &others] {
        let (_services, _server, addr) = serve(keys.server(SERVER));
        assert_eq!(ping(addr, &client), Ok(OssReply::Done));
    }
}

#[test]
fn a_key_that_is_revoked_loses_its_connections_and_what_it_holds() {
    let keys = Keys::new();
    let (services, _server, addr) = serve(keys.server(SERVER));
    let oss = oss_at(addr, &keys.client(Roles::CLIENT));
    let other = TcpOss::new(0, &[nid(addr)], &identity(5), &with_key(&keys.key(KeyId(3), Roles::CLIENT)))
        .expect("oss");
    for oss in [&oss, &other] {
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    }
    assert!(keys.revoked.set([KeyId(2)]));
    eventually("the client goes", || services.oss.disconnects.load(Ordering::SeqCst) == 1);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::EKEYREVOKED));
    assert_eq!(other.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 2);
}

#[test]
fn a_mount_whose_key_is_revoked_does_not_ask_again_all_the_time() {
    let keys = Keys::new();
    let (_services, server, addr) = serve(keys.server(SERVER));
    let (config, events) = (keys.client(Roles::CLIENT), Arc::new(Events::default()));
    let _mds = TcpMds::connect(0, &[nid(addr)], &identity(1), &config, events).expect("served");
    keys.revoked.set([KeyId(2)]);
    eventually("it is refused", || server.audited(AuditKind::Refused) > 0);
    let refused = Instant::now();
    eventually("time passes", || refused.elapsed() > Duration::from_secs(1));
    assert!(server.audited(AuditKind::Refused) <= 3, "{}", server.audited(AuditKind::Refused));
}

#[test]
fn a_peer_without_a_key_enrols_one_and_does_nothing_else() {
    let keys = Keys::new();
    let tls = ServerTls::new(&keys.key(SERVER_KEY, SERVER), true, keys.revoked.clone()).expect("settings");
    let (services, server, addr) = serve(ServerConfig { tls: Some(tls), ..keys.server(SERVER) });
    let tls = ClientTls::unknown(keys.authority.fingerprint()).expect("settings");
    let config = ClientConfig { tls: Some(tls), deadline: Some(Duration::from_secs(2)), ..quick() };
    let mgs = TcpMgs::new(&[nid(addr)], &identity(1), &config).expect("an address");
    let enrol = |csr: Vec<u8>| {
        let (secret, name) = (Hidden(vec![0; 16]), "host".to_owned());
        mgs.call(&MgsRequest::Enrol { token: 1, secret, name, csr })
    };
    for _ in 0..3 {
        assert_eq!(enrol(vec![0; 500]), Ok(MgsReply::Done));
        eventually("the connection ends with it", || server.connection_count() == 0);
    }
    let before = mgs.stats().connects;
    assert_eq!(enrol(vec![0; 9000]), Err(Status::ETIMEDOUT), "more than an enrolment has");
    let connects = mgs.stats().connects - before;
    assert!(connects < 100, "{connects} connects for a request that ends each");
    for request in [MgsRequest::Ping, MgsRequest::ListKeys, MgsRequest::Renew { csr: Vec::new() }] {
        assert_eq!(mgs.call(&request), Err(Status::ENOKEY), "{request:?}");
    }
    assert_eq!(ping(addr, &config), Err(Status::ENOKEY));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 0);
    assert!(server.audited(AuditKind::Refused) >= 4);
}

#[test]
fn a_key_that_expires_while_connected_is_cut_off_and_goes_on_when_it_is_renewed() {
    let keys = Keys::new();
    let (_services, server, addr) = serve(keys.server(SERVER));
    let identity = Identity::new("nacre", KeyId(2), Roles::CLIENT, "test");
    let key = keys.authority.make_key(&identity, Duration::from_secs(2)).expect("a key");
    let config = with_key(&key);
    let oss = oss_at(addr, &config);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    eventually("the connections end", || server.connection_count() == 0);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::EKEYEXPIRED), "also by a ticket");
    let key = keys.authority.make_key(&identity, HOUR).expect("a key");
    config.tls.as_ref().expect("keys").renew(&key).expect("renewed");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}

#[test]
fn a_client_that_somebody_else_uses_already_is_not_taken_over() {
    let keys = Keys::new();
    let (services, _server, addr) = serve(keys.server(SERVER));
    let oss = oss_at(addr, &keys.client(Roles::CLIENT));
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    let thief = with_key(&keys.key(KeyId(3), Roles::CLIENT));
    assert_eq!(ping(addr, &thief), Err(Status::EPERM));
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    assert_eq!(services.oss.connects.load(Ordering::SeqCst), 1);
}

#[test]
fn nobody_but_a_metadata_server_is_one() {
    let keys = Keys::new();
    let (_services, _server, addr) = serve(keys.server(SERVER));
    let as_server = ClientIdentity { is_server: true, ..identity(7) };
    for roles in [Roles::CLIENT, Roles::CLIENT | Roles::ADMIN, Roles::OSS, Roles::MGS] {
        let oss = TcpOss::new(0, &[nid(addr)], &as_server, &keys.client(roles)).expect("oss");
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Err(Status::EPERM), "{roles}");
    }
    let oss = TcpOss::new(0, &[nid(addr)], &as_server, &keys.client(Roles::MDS)).expect("oss");
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}

/// Single roles, and the usual combinations.
const COMBINATIONS: [Roles; 7] = [
    Roles::MGS,
    Roles::MDS,
    Roles::OSS,
    Roles::CLIENT,
    Roles::ADMIN,
    Roles::CLIENT.union(Roles::ADMIN),
    SERVER,
];

#[test]
fn each_role_sends_its_own_requests_to_the_management_server_and_no_others() {
    let keys = Keys::new();
    let (_services, _server, addr) = serve(keys.server(SERVER));
    let target = TargetConfig { target: TargetId::ost(1), nids: vec![nid(addr)], active: true, key: None };
    let (fsname, fs_uuid) = ("nacre".to_owned(), [0; 16]);
    let servers = SERVER;
    let requests = [
        (MgsRequest::Ping, Roles::all()),
        (MgsRequest::GetConfig { fsname: fsname.clone(), newer_than: 0, wait_ms: 0 }, Roles::all()),
        (MgsRequest::RegisterTarget { fsname: fsname.clone(), fs_uuid, target: target.clone() }, servers),
        (MgsRequest::AddTarget { fsname, fs_uuid, target }, servers),
        (MgsRequest::SetParam { name: "a.b".to_owned(), value: "1".to_owned() }, Roles::ADMIN),
    ];
    for (number, roles) in COMBINATIONS.into_iter().enumerate() {
        let config = with_key(&keys.key(KeyId(10 + number as u64), roles));
        let mgs = TcpMgs::new(&[nid(addr)], &identity(20 + number as u8), &config).expect("mgs");
        for (request, needed) in &requests {
            let expected = if roles.intersects(*needed) { None } else { Some(Status::EPERM) };
            assert_eq!(mgs.call(request).err(), expected, "{roles}: {request:?}");
        }
    }
}

#[test]
fn each_role_sends_its_own_requests_to_object_and_metadata_servers_and_no_others() {
    let keys = Keys::new();
    let (services, _server, addr) = serve(keys.server(SERVER));
    let object = Fid::new(9, 2, 0);
    let requests = [
        (OssRequest::Statfs, Roles::CLIENT | Roles::MDS),
        (OssRequest::plain_read(object, 0, 1), Roles::CLIENT | Roles::MDS),
        (OssRequest::Destroy { objects: vec![object] }, Roles::MDS),
    ];
    for (number, roles) in COMBINATIONS.into_iter().enumerate() {
        let config = with_key(&keys.key(KeyId(10 + number as u64), roles));
        let oss = TcpOss::new(0, &[nid(addr)], &identity(20 + number as u8), &config).expect("oss");
        for (request, needed) in &requests {
            let mut buffer = [0; 1];
            let is_read = matches!(request, OssRequest::Read { .. });
            let bulk = if is_read { Bulk::Receive(&mut buffer) } else { Bulk::None };
            let expected = if roles.intersects(*needed) { None } else { Some(Status::EPERM) };
            assert_eq!(oss.call(request, bulk).err(), expected, "{roles}: {request:?}");
        }
        let events = Arc::new(Events::default());
        let mds = TcpMds::connect(0, &[nid(addr)], &identity(20 + number as u8), &config, events);
        let may = roles.intersects(Roles::CLIENT | Roles::MDS);
        let asked = mds.and_then(|(mds, _)| mds.call(&Cred::new(1, 1), &MdsRequest::Statfs));
        assert_eq!(asked.err(), if may { None } else { Some(Status::EPERM) }, "{roles}");
    }
    assert!(services.oss.requests.load(Ordering::SeqCst) > 0);
}

#[test]
fn damage_anywhere_in_a_handshake_or_later_is_noticed_and_requests_run_once() {
    let keys = Keys::new();
    let (services, _server, addr) = serve(keys.server(SERVER));
    let proxy = Proxy::start(addr);
    let mut round = 0_u32;
    for way in [Way::ToServer, Way::ToClient] {
        for at in (0..4000).step_by(331) {
            for harm in [Harm::Flip, Harm::Cut] {
                round += 1;
                let config = with_key(&keys.key(KeyId(100 + u64::from(round)), Roles::CLIENT));
                let client =
                    ClientIdentity { client: nacre_types::ClientUuid([round as u8; 16]), ..identity(1) };
                proxy.plan(way, at, harm, false);
                let oss = TcpOss::new(0, &[nid(proxy.addr)], &client, &config).expect("oss");
                let object = Fid::new(9, round * 2, 0);
                let data = pattern(5000, round as u8);
                let written = oss.call(&OssRequest::plain_write(object, 0), Bulk::Send(&data));
                assert_eq!(written, Ok(OssReply::written(5000)), "{way:?} {at} {harm:?}");
                let mut back = vec![0; 5000];
                let read = oss.call(&OssRequest::plain_read(object, 0, 5000), Bulk::Receive(&mut back));
                assert_eq!(read, Ok(OssReply::Read(5000)), "{way:?} {at} {harm:?}");
                assert!(back == data && services.oss.objects.lock().unwrap()[&object] == data);
                proxy.heal();
            }
        }
    }
    assert!(proxy.happened() > 0);
}

/// Records everything that one client sends, by a proxy between it and the server.
fn recorded(addr: SocketAddr, run: impl FnOnce(SocketAddr)) -> Vec<u8> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let way = listener.local_addr().expect("bound");
    let thread = nacre_env::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut server = TcpStream::connect(addr).expect("a server");
        let (mut from, mut to) = (server.try_clone().expect("dup"), client.try_clone().expect("dup"));
        let back = nacre_env::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
        });
        let (mut seen, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(len) = client.read(&mut piece)
            && len > 0
        {
            seen.extend_from_slice(&piece[..len]);
            if server.write_all(&piece[..len]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(std::net::Shutdown::Both);
        let _ = back.join();
        seen
    });
    run(way);
    thread.join().expect("no panic")
}

#[test]
fn what_was_recorded_cannot_be_sent_again() {
    let keys = Keys::new();
    let (services, server, addr) = serve(keys.server(SERVER));
    let config = keys.client(Roles::CLIENT);
    let seen = recorded(addr, |way| {
        let mgs = TcpMgs::new(&[nid(way)], &identity(1), &config).expect("mgs");
        mgs.call(&MgsRequest::Ping).expect("answered");
    });
    // The first message states in clear text what it offers; nothing else is readable.
    let hello = 5 + usize::from(u16::from_be_bytes([seen[3], seen[4]]));
    assert!(seen.len() > 1000 && !seen[hello..].windows(5).any(|bytes| bytes == b"nacre"));
    let before = services.oss.requests.load(Ordering::SeqCst);
    let mut again = TcpStream::connect(addr).expect("a connection");
    again.write_all(&seen).expect("sent");
    again.set_read_timeout(Some(TIMEOUT)).expect("option");
    let mut answer = Vec::new();
    // The server's half of the handshake, an alert and the end: without the private key the handshake cannot
    // finish.
    let _ = again.read_to_end(&mut answer);
    drop(again);
    eventually("the connection ends", || server.connection_count() + server.half_open_count() == 0);
    assert_eq!(services.oss.requests.load(Ordering::SeqCst), before);
}

#[test]
fn bytes_of_any_kind_instead_of_a_handshake_harm_nobody() {
    let keys = Keys::new();
    let (_services, server, addr) = serve(keys.server(SERVER));
    let oss = oss_at(addr, &keys.client(Roles::CLIENT));
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    let known = server.connection_count();
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..200 {
        let mut stream = TcpStream::connect(addr).expect("a connection");
        let len = round * 7 % 900 + 1;
        let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        // Half of them begin like a record.
        if round % 2 == 0 {
            let head = [22, 3, 1, 0, bytes.len() as u8];
            bytes.splice(0..0, head);
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
    }
    eventually("all are gone", || server.connection_count() + server.half_open_count() <= known);
    assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
}

/// Records events.
#[derive(Debug, Default)]
struct Book(std::sync::Mutex<Vec<String>>);

impl AuditSink for Book {
    fn note(&self, event: &AuditEvent<'_>) {
        let key = event.identity.map_or("nobody".to_owned(), |identity| identity.id.0.to_string());
        let target = event.target.map_or("nothing".to_owned(), |target| target.to_string());
        self.0.lock().unwrap().push(format!("{} {key} {target} {}", event.kind.name(), event.reason));
    }
}

#[test]
fn who_was_served_refused_and_cut_off_is_written_down() {
    let (keys, others) = (Keys::new(), Keys::new());
    let book = Arc::new(Book::default());
    let config = ServerConfig { audit: Some(book.clone()), ..keys.server(SERVER) };
    let (_services, server, addr) = serve(config);
    let oss = oss_at(addr, &keys.client(Roles::CLIENT));
    for _ in 0..3 {
        assert_eq!(oss.call(&OssRequest::Ping, Bulk::None), Ok(OssReply::Done));
    }
    assert_eq!(ping(addr, &quick()), Err(Status::ENOKEY));
    assert_eq!(ping(addr, &others.client(Roles::CLIENT)), Err(Status::EKEYREJECTED));
    assert_eq!(ping(addr, &with_key(&keys.key(KeyId(3), Roles::MGS))), Err(Status::EPERM));
    keys.revoked.set([KeyId(2)]);
    let is_lost = |line: &String| line.starts_with("key-lost 2 OST0000");
    eventually("it is cut off", || book.0.lock().unwrap().iter().any(is_lost));
    let said = book.0.lock().unwrap().clone();
    let has = |text: &str| said.iter().any(|line| line.contains(text));
    assert_eq!(said.iter().filter(|line| *line == "connected 2 OST0000 ").count(), 1, "{said:?}");
    assert!(has("refused nobody OST0000 it has no key"), "{said:?}");
    assert!(has("refused nobody nothing "), "{said:?}");
    assert!(has("refused 3 OST0000 key 0000000000000003 with role mgs has nothing"), "{said:?}");
    assert!(server.audited(AuditKind::Refused) >= 3 && server.audited(AuditKind::KeyLost) >= 1);
}
