//! File systems with keys: everything on their host works, and nobody without a key is served.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, wait};
use nacre_types::{ClientUuid, ProcessIdentity, Status, TargetId, Xid};
use nacre_wire::Encode;
use nacre_wire::connect::{Connect, ConnectFlags, VERSION_MAX, VERSION_MIN};
use nacre_wire::frame::{FrameKind, HEADER_BYTES, Header};

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// A cluster whose servers need keys; `None` where there can be none.
fn with_keys(fsname: &str) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { osts: 2, mdts: 2, fsname: fsname.to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return None;
    }
    let said = cluster.nacre(&["key", "init", text(cluster.data())]).success().stdout;
    assert!(said.contains("SHA-256") && said.contains("is open until"), "{said}");
    cluster.stop();
    cluster.start_all();
    Some(cluster)
}

/// Where the servers are reached.
fn addresses(cluster: &Cluster) -> Vec<(TargetId, SocketAddr)> {
    let shown = cluster.nacre(&["status", "--json", text(cluster.data())]).stdout;
    let targets = [TargetId::mgt(), TargetId::mdt(0), TargetId::mdt(1), TargetId::ost(0), TargetId::ost(1)];
    let address = |target: &TargetId| {
        let (_, after) = shown.split_once(&format!("\"{target}\"")).expect("it is shown");
        let nid = after.split('"').find_map(|word| word.strip_suffix("@tcp")).expect("an address");
        (*target, nid.parse().expect("host and port"))
    };
    targets.iter().map(address).collect()
}

/// The answer to a connect without TLS.
fn answer_to_stranger(target: TargetId, address: SocketAddr, flags: ConnectFlags) -> Status {
    let mut stream = TcpStream::connect(address).expect("connect");
    let connect = Connect {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        features: 0,
        flags,
        client: ClientUuid([7; 16]),
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
    assert_eq!(answer.kind, FrameKind::Connected);
    // Nothing further is served on it.
    let mut ping = Header::new(FrameKind::Ping, target, Xid(1));
    ping.set_body(&[]).expect("short");
    let _ = stream.write_all(&ping.to_bytes());
    assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "the connection ends");
    answer.status
}

#[test]
fn nobody_without_a_key_is_served_by_any_server() {
    let Some(mut cluster) = with_keys("keya") else { return };
    for (target, address) in addresses(&cluster) {
        for flags in [ConnectFlags::empty(), ConnectFlags::SERVER, ConnectFlags::CONTROL] {
            assert_eq!(answer_to_stranger(target, address, flags), Status::ENOKEY, "{target} {flags:?}");
        }
    }
    let status = cluster.nacre(&["status", text(cluster.data())]).success().stdout;
    assert!(status.contains("connections are encrypted and need a key"), "{status}");
    assert!(!status.contains("whoever reaches"), "{status}");
    cluster.stop_and_check();
}

#[test]
fn a_file_system_without_keys_says_that_it_is_open() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { fsname: "keyopen".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let status = cluster.nacre(&["status", text(cluster.data())]).success().stdout;
    assert!(status.contains("whoever reaches mgs, mdt0000, ost0000"), "{status}");
    cluster.stop_and_check();
}

#[test]
fn everything_on_the_host_of_a_file_system_with_keys_works() {
    let Some(mut cluster) = with_keys("keyb") else { return };
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    let data: Vec<u8> = (0..9_000_000_u32).map(|byte| (byte / 3) as u8).collect();
    let wide = first.join("wide");
    cluster.lfs(&["setstripe", "-c", "2", text(&wide)]).success();
    fs::write(&wide, &data).expect("written");
    assert!(fs::read(second.join("wide")).expect("read") == data);
    // A directory on the other MDT, and an operation over both.
    cluster.lfs(&["mkdir", "-i", "1", text(&first.join("far"))]).success();
    fs::write(second.join("small"), "data").expect("written");
    fs::rename(second.join("small"), second.join("far/small")).expect("moved");
    assert_eq!(fs::read(first.join("far/small")).expect("read"), b"data");
    cluster.lctl(&["set_param", "-P", "osc.*.max_rpcs_in_flight=9"]).success();
    let said = cluster.add_target("ost", &[]).success().stdout;
    assert!(said.starts_with("OST0002 has joined"), "{said}");
    wait::until(wait::SOON, "the new OST is used", || {
        let path = first.join("three");
        let _ = fs::remove_file(&path);
        cluster.lfs(&["setstripe", "-c", "3", text(&path)]).success();
        (cluster.lfs(&["getstripe", "-c", text(&path)]).success().stdout.trim() == "3").then_some(())
    });
    // A server that dies comes back with its key, and clients go on.
    for role in ["ost0000", "mdt0000"] {
        cluster.kill(role);
        cluster.start_all();
        assert!(fs::read(second.join("wide")).expect("read") == data, "{role}");
        fs::write(first.join(role), role).expect("written");
        assert_eq!(fs::read(second.join(role)).expect("read"), role.as_bytes());
    }
    cluster.stop();
    cluster.start_all();
    assert!(fs::read(&wide).expect("read") == data);
    cluster.stop_and_check();
}

#[test]
fn keys_that_others_can_read_are_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let Some(mut cluster) = with_keys("keyc") else { return };
    cluster.stop();
    let key = cluster.data().join("keys/mdt0000.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("chmod");
    let said = cluster.nacre(&["up", text(cluster.data())]).fails_with(1).stderr;
    assert!(said.contains("mdt0000.key may be read or changed by others"), "{said}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("chmod");
    cluster.start_all();
    cluster.stop_and_check();
    let said = cluster.nacre(&["key", "init", text(cluster.data())]).fails_with(1).stderr;
    assert!(said.contains("has keys already"), "{said}");
}
