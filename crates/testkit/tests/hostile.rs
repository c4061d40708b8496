//! Malicious peers: lengths that they announce cost a server no memory, and their requests do not flood the
//! log.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::Exercise;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program, wait};
use nacre_types::{ClientUuid, Cred, Fid, ProcessIdentity, TargetId, TargetKind, Xid};
use nacre_wire::connect::{Connect, ConnectFlags, VERSION_MAX, VERSION_MIN};
use nacre_wire::frame::{FrameFlags, FrameKind, HEADER_BYTES, Header, TAG_NONE};
use nacre_wire::mgs::MgsRequest;
use nacre_wire::oss::{OssCall, OssRequest};
use nacre_wire::{Decode, Encode};

#[path = "../../../fuzz/mutate.rs"]
mod mutate;

/// Longest data and longest body that a server accepts with one request.
const BULK: usize = 4 << 20;
const BODY: usize = 1 << 20;
const MIB: u64 = 1 << 20;

/// Returns the resident memory of a process in bytes.
fn resident(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// Returns a connection to a target after its connect.
fn connected(server: SocketAddr, target: TargetId, number: u8) -> TcpStream {
    let mut stream = TcpStream::connect(server).expect("connect");
    let connect = Connect {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: 0,
        flags: ConnectFlags::empty(),
        client: ClientUuid([number; 16]),
        fsname: String::new(),
        process: ProcessIdentity::default(),
        cpu: u32::MAX,
        instance: 0,
    };
    let body = connect.to_bytes();
    let mut header = Header::new(FrameKind::Connect, target, Xid(0));
    header.set_body(&body).expect("short");
    stream.write_all(&[&header.to_bytes()[..], &body].concat()).expect("send");
    let mut answer = [0; HEADER_BYTES];
    stream.read_exact(&mut answer).expect("an answer");
    let answer = Header::from_bytes(&answer).expect("a header");
    assert_eq!((answer.kind, answer.status), (FrameKind::Connected, nacre_types::Status::OK));
    stream.read_exact(&mut vec![0; answer.body_len as usize]).expect("its body");
    stream
}

/// Returns the header of a frame that announces these lengths.
fn announcement(body: usize, bulk: usize) -> [u8; HEADER_BYTES] {
    let mut header = Header::new(FrameKind::Ping, TargetId::ost(0), Xid(0));
    (header.body_len, header.bulk_len) = (body as u32, bulk as u32);
    header.to_bytes()
}

fn address_of(cluster: &Cluster, target: &str) -> SocketAddr {
    let text = cluster.nacre(&["status".as_ref(), "--json".as_ref(), cluster.data().as_os_str()]).stdout;
    let after = text.split_once(&format!("\"{target}\"")).map(|(_, after)| after).unwrap_or_default();
    let nid = after.split('"').find_map(|word| word.strip_suffix("@tcp")).expect("an address");
    let (host, port) = nid.split_once(':').expect("a port of the test");
    SocketAddr::new(host.parse().expect("an address"), port.parse().expect("a port"))
}

/// Peers that announce much and send little, or have sent much and are idle.
fn memory_follows_what_arrived(cluster: &Cluster, server: SocketAddr) {
    let pid = cluster.pid("ost0000");
    let before = resident(pid);
    let mut peers: Vec<TcpStream> = (0..300).map(|_| connected(server, TargetId::ost(0), 1)).collect();
    for (index, peer) in peers.iter_mut().enumerate() {
        let header = if index % 2 == 0 { announcement(0, BULK) } else { announcement(BODY, 0) };
        peer.write_all(&header).and_then(|()| peer.write_all(&[7; 1000])).expect("send");
    }
    // Another client's I/O works meanwhile.
    let file = cluster.mount().join("between");
    fs::write(&file, vec![7; 3 * BULK]).expect("write");
    assert_eq!(fs::read(&file).expect("read").len(), 3 * BULK);
    let grown = resident(pid).saturating_sub(before);
    // 100 KiB for each: a thread, buffers of a connection. The peers announced 750 MiB.
    assert!(grown < 30 * MIB + 64 * MIB, "grown by {} MiB", grown / MIB);
    drop(peers);

    let mut peers: Vec<TcpStream> = (0..40).map(|_| connected(server, TargetId::ost(0), 2)).collect();
    let frame = [&announcement(0, BULK)[..], &vec![7; BULK]].concat();
    for peer in &mut peers {
        peer.write_all(&frame).expect("send");
        peer.read_exact(&mut [0; HEADER_BYTES]).expect("answered: it was all received");
    }
    let busy = resident(pid);
    assert!(busy > before + 100 * MIB, "the buffers are there: {} MiB", busy / MIB);
    wait::until(wait::SOON, "idle connections have given their memory back", || {
        (resident(pid) + 100 * MIB < busy).then_some(())
    });
    for peer in &mut peers {
        peer.write_all(&announcement(0, 0)).expect("send");
        peer.read_exact(&mut [0; HEADER_BYTES]).expect("they go on");
    }
}

/// A peer that sends invalid frames again and again.
fn a_peer_fills_no_log(cluster: &Cluster, server: SocketAddr) {
    const PEERS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];
    for peer in PEERS {
        let script = format!(
            "import socket\nfor n in range(100):\n  s=socket.create_connection(('{}',{}),source_address=('{peer}',0))\n  \
             s.send(b'x'*100)\n  s.recv(1)\n  s.close()\n",
            server.ip(),
            server.port()
        );
        program::run("python3", ["-c", &script]).success();
    }
    let log = fs::read_to_string(cluster.data().join("run/ost0000.log")).expect("the log");
    for peer in PEERS {
        let lines = log.lines().filter(|line| line.contains(&format!("connection from {peer}:"))).count();
        assert!((5..=20).contains(&lines), "{lines} lines about {peer}");
    }
}

#[test]
fn what_peers_announce_costs_a_server_nothing_and_their_nonsense_fills_no_log() {
    if !(have(&["/dev/fuse", "python3"]) && have_root()) {
        return;
    }
    // Without security, as peers with a key are restricted further.
    let options =
        Options { osts: 1, fsname: "hostile".to_owned(), security: Some("open"), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let server = address_of(&cluster, "OST0000");
    memory_follows_what_arrived(&cluster, server);
    a_peer_fills_no_log(&cluster, server);
    cluster.stop_and_check();
}

/// A client that sends mutated requests in sound frames to one target.
struct Mutant {
    server: SocketAddr,
    target: TargetId,
    /// The connection, the thread that reads its replies, and the number of requests on it.
    way: Option<(TcpStream, JoinHandle<u64>, u64)>,
    random: fastrand::Rng,
    sent: u64,
    received_bytes: u64,
}

impl Mutant {
    fn new(cluster: &Cluster, target: TargetId, name: &str) -> Mutant {
        let (server, random) = (address_of(cluster, name), fastrand::Rng::with_seed(7));
        Mutant { server, target, way: None, random, sent: 0, received_bytes: 0 }
    }

    fn send(&mut self, body: &[u8]) {
        const REQUESTS: u64 = 200;
        self.sent += 1;
        if self.way.as_ref().is_some_and(|(_, _, sent)| *sent == REQUESTS) {
            self.leave();
        }
        let (stream, _, sent) = self.way.get_or_insert_with(|| {
            let stream = connected(self.server, self.target, self.random.u8(3..));
            let mut replies = stream.try_clone().expect("a socket");
            let read = move || std::io::copy(&mut replies, &mut std::io::sink()).unwrap_or(0);
            (stream, std::thread::spawn(read), 0)
        });
        *sent += 1;
        let mut header = Header::new(FrameKind::Request, self.target, Xid(*sent));
        header.tag = [TAG_NONE, 0, 1][self.random.usize(..3)];
        header.flags.set(FrameFlags::RESENT, self.random.u8(..8) == 0);
        header.flags.set(FrameFlags::JOB_ID, self.random.u8(..8) == 0);
        let data = match self.target.kind {
            TargetKind::Ost => vec![7; [0, 0, 100, 4096][self.random.usize(..4)]],
            TargetKind::Mdt | TargetKind::Mgt => Vec::new(),
        };
        header.flags.set(FrameFlags::SHORT_IO, !data.is_empty() && self.random.bool());
        header.bulk_len = data.len() as u32;
        header.set_body(body).expect("short");
        // A server may close the connection.
        if stream.write_all(&[&header.to_bytes()[..], body, &data].concat()).is_err() {
            self.leave();
        }
    }

    /// Disconnects, so that the server releases what the client holds.
    fn leave(&mut self) {
        let Some((mut stream, reader, _)) = self.way.take() else { return };
        let header = Header::new(FrameKind::Disconnect, self.target, Xid(u64::MAX));
        let _ = stream.write_all(&header.to_bytes()).and_then(|()| stream.shutdown(Shutdown::Write));
        // Requests under way may wait for locks; the answers of the others have arrived.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
        drop(stream);
        self.received_bytes += reader.join().expect("no panic");
    }
}

/// Returns false for sound requests that may change files or the configuration: in an open file system clients without a
/// key may do that.
fn is_harmless(target: TargetId, body: &[u8]) -> bool {
    let of_files = Fid::ost_object(target.index, 1).seq;
    match target.kind {
        TargetKind::Mdt => true,
        TargetKind::Ost => !OssCall::<OssRequest>::from_bytes(body).is_ok_and(|call| match &call.request {
            OssRequest::Destroy { .. }
            | OssRequest::DestroyOrphans { .. }
            | OssRequest::SetOwners { .. }
            | OssRequest::Evict { .. } => true,
            OssRequest::Write { object, .. }
            | OssRequest::Truncate { object, .. }
            | OssRequest::Fallocate { object, .. } => object.seq == of_files,
            _ => false,
        }),
        TargetKind::Mgt => !MgsRequest::from_bytes(body).is_ok_and(|request| request.change().is_some()),
    }
}

/// Numbers of the decoders in the corpus of messages.
const MDS_REQUEST: u8 = 0;
const OSS_REQUEST: u8 = 3;
const OSS_CALL: u8 = 5;
const MGS_REQUEST: u8 = 11;

#[test]
fn servers_go_on_and_lose_nothing_while_clients_send_mutated_requests() {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return;
    }
    let options =
        Options { osts: 2, fsname: "mutants".to_owned(), security: Some("open"), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let before = cluster.processes();
    let directory = cluster.directory("files");
    let content = |number: usize| vec![number as u8; 100_000];
    (0..20)
        .for_each(|number| fs::write(directory.join(number.to_string()), content(number)).expect("written"));
    let targets = ["MDT0000", "OST0000", "OST0001", "MGT"];
    let mutants =
        targets.map(|name| RefCell::new(Mutant::new(&cluster, name.parse().expect("a target"), name)));
    let user = Cred::new(12_345, 12_345).to_bytes();
    let rounds = Cell::new(0_usize);
    let count = std::env::var("NACRE_MUTATIONS").map_or(100_000, |count| count.parse().expect("a number"));
    mutate::exercise("wire", &[], count, |bytes| {
        let Some((&kind, body)) = bytes.split_first() else { return };
        let (mutant, body) = match kind {
            MDS_REQUEST => (&mutants[0], [&user[..], body].concat()),
            // Without a capability.
            OSS_REQUEST => (&mutants[1], [body, &[0]].concat()),
            OSS_CALL => (&mutants[2], body.to_vec()),
            MGS_REQUEST => (&mutants[3], body.to_vec()),
            _ => return,
        };
        let mut mutant = mutant.borrow_mut();
        if is_harmless(mutant.target, &body) {
            mutant.send(&body);
        }
        rounds.set(rounds.get() + 1);
        if rounds.get().is_multiple_of(count / 10) {
            let path = directory.join(format!("exercised{}", rounds.get()));
            Exercise::new(rounds.get() as u64, 50).run(&path);
        }
    });
    for mutant in &mutants {
        mutant.borrow_mut().leave();
        let Mutant { target, sent, received_bytes, .. } = &*mutant.borrow();
        assert!(*sent > 500, "{sent} requests to {target}");
        assert!(*received_bytes > sent * HEADER_BYTES as u64 / 2, "{target} has answered most");
    }
    assert_eq!(cluster.processes(), before, "none was started again");
    for entry in fs::read_dir(cluster.data().join("run")).expect("logs") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "log") {
            let log = fs::read_to_string(&path).expect("a log");
            assert!(!log.contains("panic"), "{}: {log}", path.display());
        }
    }
    for number in 0..20 {
        assert!(fs::read(directory.join(number.to_string())).expect("read") == content(number), "{number}");
    }
    cluster.stop();
    // Without keys a client may write to objects that no MDT has made.
    let checked = cluster.nacre(&["check".as_ref(), cluster.data().as_os_str()]).stdout;
    let of_files = [0, 1].map(|ost| format!("object [{:#x}:", Fid::ost_object(ost, 1).seq));
    let is_of_file = |line: &str| of_files.iter().any(|prefix| line.contains(prefix));
    let is_expected = |line: &str| {
        !line.starts_with(' ')
            || line.contains("lies above the last reserved id")
            || line.contains("belongs to no file") && !is_of_file(line)
    };
    assert!(checked.lines().all(is_expected), "{checked}");
}

#[test]
fn every_process_may_have_as_many_files_open_as_the_system_allows() {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return;
    }
    let run = nacre_testkit::run::Run::new();
    let (data, mount) = (run.directory().join("data"), run.make("mnt"));
    let mut up = run.command("sh");
    up.args(["-c", "ulimit -Sn 256 && exec \"$0\" up \"$1\" --mount \"$2\" --osts 1"]);
    up.arg(nacre_testkit::binary::nacre()).arg(&data).arg(&mount);
    program::run_command(up, Duration::from_secs(60)).success();
    let processes = run.processes();
    assert!(!processes.is_empty());
    for (pid, words) in processes {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("its limits");
        let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
        let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
        assert_eq!(numbers[0], numbers[1], "{words:?}");
    }
    let mut down = run.command(nacre_testkit::binary::nacre());
    down.arg("down").arg(&data);
    program::run_command(down, Duration::from_secs(60)).success();
}
