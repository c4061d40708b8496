//! File systems with keys: everything works on their host, and clients without a key are refused.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::hosts::Hosts;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Shape, binary, text, wait};
use nacre_types::{ClientUuid, ProcessIdentity, Status, TargetId, Xid};
use nacre_wire::Encode;
use nacre_wire::connect::{Connect, ConnectFlags, VERSION_MAX, VERSION_MIN};
use nacre_wire::frame::{FrameKind, HEADER_BYTES, Header};

/// Starts a cluster of separate processes; `None` if that is not possible.
fn with_security(fsname: &str, security: Option<&'static str>) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { osts: 2, mdts: 2, fsname: fsname.to_owned(), security, ..Options::default() };
    Some(Cluster::start_with(Shape::Separate, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Starts a cluster whose servers require keys, which is the default.
fn with_keys(fsname: &str) -> Option<Cluster> {
    with_security(fsname, None)
}

/// Returns the addresses of the servers.
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

/// Returns the reply to a connect without TLS.
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
    // The connection serves nothing else.
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
    assert!(status.contains("encrypted, with a key: mgs"), "{status}");
    assert!(!status.contains("OPEN"), "{status}");
    cluster.stop_and_check();
}

#[test]
fn a_file_system_without_keys_says_that_it_is_open_and_gets_some() {
    let Some(mut cluster) = with_security("keyopen", Some("open")) else { return };
    let data = text(cluster.data()).to_owned();
    let status = cluster.nacre(&["status", &data]).success().stdout;
    assert!(status.contains("OPEN, every peer is served: mgs (127."), "{status}");
    assert!(status.contains("'nacre key init' makes keys"), "{status}");
    assert!(cluster.nacre(&["key", "list", &data]).fails_with(1).stderr.contains("has no keys"));
    assert!(!cluster.data().join("keys").exists());
    let said = cluster.nacre(&["key", "init", &data]).success().stdout;
    assert!(said.contains("SHA-256") && said.contains("is open until"), "{said}");
    fs::write(cluster.mount().join("before"), "data").expect("written");
    cluster.stop();
    let mount = text(cluster.mount()).to_owned();
    cluster.nacre(&["up", &data, "--mount", &mount, "--security", "encrypt"]).success();
    let status = cluster.nacre(&["status", &data]).success().stdout;
    assert!(status.contains("encrypted, with a key: mgs") && !status.contains("OPEN"), "{status}");
    assert_eq!(fs::read(cluster.mount().join("before")).expect("read"), b"data");
    cluster.nacre(&["down", &data]).success();
    // The last setting is kept.
    let status = cluster.nacre(&["up", &data]).success().stdout;
    assert!(status.contains("is up"), "{status}");
    cluster.nacre(&["down", &data]).success();
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
    // A directory on the other MDT, and a distributed transaction over both.
    cluster.lfs(&["mkdir", "-i", "1", text(&first.join("far"))]).success();
    fs::write(second.join("small"), "data").expect("written");
    fs::rename(second.join("small"), second.join("far/small")).expect("moved");
    assert_eq!(fs::read(first.join("far/small")).expect("read"), b"data");
    let setting = "osc.*.max_rpcs_in_flight=9";
    cluster.lctl(&["--fs", text(cluster.mount()), "set_param", "-P", setting]).success();
    let said = cluster.add_target("ost", &[]).success().stdout;
    assert!(said.starts_with("OST0002 has joined"), "{said}");
    wait::until(wait::SOON, "the new OST is used", || {
        let path = first.join("three");
        let _ = fs::remove_file(&path);
        cluster.lfs(&["setstripe", "-c", "3", text(&path)]).success();
        (cluster.lfs(&["getstripe", "-c", text(&path)]).success().stdout.trim() == "3").then_some(())
    });
    // A restarted server has its key, and clients continue.
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

/// Starts a file system with one OST on the first of `count` hosts.
fn on_hosts(run: &Run, count: usize) -> Option<Hosts> {
    if !have(&["/dev/fuse", "unshare", "nsenter", "ip", "findmnt"]) || !have_root() {
        return None;
    }
    let hosts = Hosts::new(run, count);
    let (data, mount) = (run.directory().join("fs"), run.directory().join("mnt"));
    let address = hosts.address(0);
    let up = ["up", text(&data), "--mount", text(&mount), "--osts", "1", "--separate", "--listen", &address];
    hosts.nacre(run, 0, &up).success();
    Some(hosts)
}

/// Creates a token of the file system of [`on_hosts`].
fn token(hosts: &Hosts, run: &Run, options: &[&str]) -> String {
    let data = run.directory().join("fs");
    let words = [&["key", "token", text(&data)], options].concat();
    hosts.nacre(run, 0, &words).success().stdout.trim().to_owned()
}

#[test]
fn three_hosts_serve_one_file_system_and_a_fourth_mounts_it() {
    let run = Run::new();
    let Some(hosts) = on_hosts(&run, 4) else { return };
    let source = format!("{}:/nacre", hosts.address(0));
    // As in the guide.
    let (second, third) = (run.directory().join("second"), run.directory().join("third"));
    let server = token(&hosts, &run, &["--role", "server"]);
    let address = hosts.address(1);
    let join = ["join", "--token", &server, &source, text(&second), "--listen", &address, "--osts", "2"];
    let said = hosts.nacre(&run, 1, &join).success().stdout;
    assert!(said.contains("OST0001 has joined") && said.contains("OST0002 has joined"), "{said}");
    let address = hosts.address(2);
    let join =
        ["join", "--token", &server, &source, text(&third), "--listen", &address, "--mdt", "--osts", "1"];
    let said = hosts.nacre(&run, 2, &join).fails_with(1).stderr;
    assert!(said.contains("does not take the token: it was used"), "{said}");
    let server = token(&hosts, &run, &["--role", "server"]);
    fs::write(run.directory().join("token"), &server).expect("written");
    let file = run.directory().join("token");
    let join = [
        "join",
        "--token-file",
        text(&file),
        &source,
        text(&third),
        "--listen",
        &address,
        "--mdt",
        "--osts",
        "1",
    ];
    let said = hosts.nacre(&run, 2, &join).success().stdout;
    assert!(said.contains("OST0003 has joined") && said.contains("MDT0001 has joined"), "{said}");
    let mount = run.make("far");
    let said = hosts.nacre(&run, 3, &["mount", &source, text(&mount)]).fails_with(1).stderr;
    assert!(said.contains("serve no peer without a key") && said.contains("--token"), "{said}");
    let client = token(&hosts, &run, &["--role", "admin"]);
    hosts.nacre(&run, 3, &["mount", "--token", &client, &source, text(&mount)]).success();
    let work = |what: &str| {
        let script = format!("cd {} && {what} && sync -f . && md5sum wide | cut -d' ' -f1", mount.display());
        hosts.shell(&run, 3, &script).success().stdout
    };
    let lfs = format!("{} lfs", binary::nacre().display());
    let sum = work(&format!(
        "{lfs} setstripe -c 4 wide && dd if=/dev/urandom of=wide bs=1M count=16 status=none && {lfs} mkdir -i 1 dir && echo text > dir/file"
    ));
    // Each host reports all targets; servers restart with their keys, and later mounts need no token.
    let status = hosts.nacre(&run, 1, &["status", text(&second)]).success().stdout;
    for target in ["MDT0000", "OST0000", "MDT0001", "OST0003"] {
        assert!(status.contains(target), "{target}: {status}");
    }
    hosts.nacre(&run, 3, &["umount", text(&mount)]).success();
    for (host, dir) in [(1, &second), (2, &third)] {
        hosts.nacre(&run, host, &["down", text(dir)]).success();
        hosts.nacre(&run, host, &["up", text(dir)]).success();
    }
    hosts.nacre(&run, 3, &["mount", &source, text(&mount)]).success();
    assert_eq!(work("grep -q text dir/file"), sum);
    hosts.nacre(&run, 3, &["umount", text(&mount)]).success();
    for (host, dir) in [(1, second), (2, third), (0, run.directory().join("fs"))] {
        hosts.nacre(&run, host, &["down", text(&dir)]).success();
    }
}

#[test]
fn a_key_that_is_revoked_is_refused_within_seconds_and_its_mount_is_cut_off() {
    let run = Run::new();
    let Some(hosts) = on_hosts(&run, 2) else { return };
    let source = format!("{}:/nacre", hosts.address(0));
    let data = run.directory().join("fs");
    let client = token(&hosts, &run, &["--role", "admin"]);
    let mount = run.make("far");
    let said = hosts.nacre(&run, 1, &["mount", "--token", &client, &source, text(&mount)]).success().stderr;
    let id = said.split(' ').nth(1).expect("key ID enrolled").to_owned();
    hosts.shell(&run, 1, &format!("echo text > {}/file", mount.display())).success();
    let list = hosts.nacre(&run, 0, &["key", "list", text(&data)]).success().stdout;
    let line = list.lines().find(|line| line.starts_with(&id)).expect("it is listed");
    assert!(line.contains("client+admin") && line.contains("valid"), "{line}");
    assert!(list.contains("mdt0000 on") && !list.contains(&client), "{list}");
    hosts.nacre(&run, 0, &["key", "revoke", &id, text(&data)]).success();
    let seen = Instant::now();
    wait::until(wait::SOON, "the mount is cut off", || {
        let log = fs::read_to_string(data.join("run/mdt0000.log")).expect("a log");
        log.contains(&format!("connection of key {id}")).then_some(())
    });
    assert!(seen.elapsed().as_secs() < 10);
    let second = run.make("again");
    let said = hosts.nacre(&run, 1, &["mount", &source, text(&second)]).fails_with(1).stderr;
    assert!(said.contains("is not accepted any more") && said.contains("EKEYREVOKED"), "{said}");
    let shown = hosts.nacre(&run, 0, &["key", "show", &id, text(&data)]).success().stdout;
    assert!(shown.contains("revoked"), "{shown}");
    let said = hosts.nacre(&run, 0, &["key", "revoke", "0000000000000001", text(&data)]).fails_with(1).stderr;
    assert!(said.contains("no key 0000000000000001"), "{said}");
    // Mounts on the host of the file system continue to work.
    fs::write(run.directory().join("mnt-is-elsewhere"), "").expect("written");
    hosts.shell(&run, 0, &format!("grep -q text {}/mnt/file", run.directory().display())).success();
    hosts.shell(&run, 1, &format!("umount -l {}", mount.display())).success();
    hosts.nacre(&run, 0, &["down", text(&data)]).success();
}

#[test]
fn tokens_are_bounded_in_time_and_number_and_to_their_file_system() {
    let run = Run::new();
    let Some(hosts) = on_hosts(&run, 2) else { return };
    let source = format!("{}:/nacre", hosts.address(0));
    let data = run.directory().join("fs");
    let mount = run.make("far");
    let enrol = |token: &str| hosts.nacre(&run, 1, &["mount", "--token", token, &source, text(&mount)]);
    let good = token(&hosts, &run, &["--expires", "10m"]);
    // A wrong character in the secret, in the number, and in the fingerprint.
    for at in [good.len() - 3, good.len() - 28, 12] {
        let other = if good.as_bytes()[at] == b'A' { "B" } else { "A" };
        let wrong = format!("{}{other}{}", &good[..at], &good[at + 1..]);
        let said = enrol(&wrong).fails_with(1).stderr;
        assert!(said.contains("does not take the token") || said.contains("enrols no key"), "{at}: {said}");
    }
    let late = token(&hosts, &run, &["--expires", "1s"]);
    let made = Instant::now();
    wait::until(wait::SOON, "the token has ended", || {
        (made.elapsed() > Duration::from_secs(2)).then_some(())
    });
    assert!(enrol(&late).fails_with(1).stderr.contains("does not take the token"));
    assert!(enrol("nacre1-nonsense").fails_with(2).stderr.contains("not a token"));
    for bad in [
        &["--role", "server", "--uid", "7"][..],
        &["--filesystem-root", "a/../b"],
        &["--expires", "0s"],
        &["--uses", "0"],
        &["--role", "mgs"],
    ] {
        let words = [&["key", "token", text(&data)], bad].concat();
        assert!(!hosts.nacre(&run, 0, &words).fails_with(2).stderr.is_empty(), "{bad:?}");
    }
    enrol(&good).success();
    // A client's key permits neither to create keys nor to list them.
    for words in [&["key", "token"][..], &["key", "list"]] {
        let words = [words, &[&source]].concat();
        let said = hosts.nacre(&run, 1, &words).fails_with(1).stderr;
        assert!(said.contains("keys with --role admin"), "{said}");
    }
    let pem = hosts.nacre(&run, 1, &["key", "export-authority", &source]).success().stdout;
    assert_eq!(pem, hosts.nacre(&run, 0, &["key", "export-authority", text(&data)]).success().stdout);
    assert!(pem.starts_with("-----BEGIN CERTIFICATE-----"), "{pem}");
    hosts.nacre(&run, 1, &["umount", text(&mount)]).success();
    let logs = hosts.shell(&run, 0, &format!("cat {}/run/*.log", data.display())).success().stdout;
    assert!(!logs.contains(&good[60..]), "secrets are in no log");
    hosts.nacre(&run, 0, &["down", text(&data)]).success();
}

#[test]
fn another_authority_ends_all_keys_of_the_one_before() {
    let run = Run::new();
    let Some(hosts) = on_hosts(&run, 2) else { return };
    let source = format!("{}:/nacre", hosts.address(0));
    let data = run.directory().join("fs");
    let (mount, second) = (run.make("far"), run.directory().join("second"));
    let client = token(&hosts, &run, &["--role", "admin"]);
    hosts.nacre(&run, 1, &["mount", "--token", &client, &source, text(&mount)]).success();
    hosts.shell(&run, 1, &format!("echo text > {0}/file && umount {0}", mount.display())).success();
    let server = token(&hosts, &run, &["--role", "server"]);
    let (address, server) = (hosts.address(1), ["--token", &server]);
    let join = [&["join"], &server[..], &[&source, text(&second), "--listen", &address]].concat();
    hosts.nacre(&run, 1, &join).success();
    let said = hosts.nacre(&run, 0, &["key", "rotate", text(&data)]).fails_with(1).stderr;
    assert!(said.contains("running") || said.contains("runs"), "{said}");
    hosts.nacre(&run, 1, &["down", text(&second)]).success();
    hosts.nacre(&run, 0, &["down", text(&data)]).success();
    hosts.nacre(&run, 0, &["key", "rotate", text(&data)]).success();
    hosts.nacre(&run, 0, &["up", text(&data)]).success();
    let said = hosts.nacre(&run, 1, &["mount", &source, text(&mount)]).fails_with(1).stderr;
    assert!(said.contains("serve no peer without a key"), "{said}");
    assert!(!hosts.nacre(&run, 1, &["up", text(&second)]).fails_with(1).stderr.is_empty());
    // With tokens of the new authority everything works again.
    let server = token(&hosts, &run, &["--role", "server"]);
    let none = ["join", "--token", &server, &source, text(&second), "--listen", &address, "--osts", "0"];
    hosts.nacre(&run, 1, &none).success();
    hosts.nacre(&run, 1, &["up", text(&second)]).success();
    let client = token(&hosts, &run, &[]);
    hosts.nacre(&run, 1, &["mount", "--token", &client, &source, text(&mount)]).success();
    hosts.shell(&run, 1, &format!("grep -q text {0}/file && umount {0}", mount.display())).success();
    hosts.nacre(&run, 1, &["down", text(&second)]).success();
    hosts.nacre(&run, 0, &["down", text(&data)]).success();
    // If the keys are lost, the servers do not start without security.
    fs::rename(data.join("keys"), run.directory().join("lost")).expect("moved");
    let said = hosts.nacre(&run, 0, &["up", text(&data)]).fails_with(1).stderr;
    assert!(said.contains("keys of the file system are missing"), "{said}");
    hosts.nacre(&run, 0, &["key", "init", text(&data)]).success();
    hosts.nacre(&run, 0, &["up", text(&data)]).success();
    hosts.nacre(&run, 0, &["down", text(&data)]).success();
}

#[test]
fn a_file_system_with_keys_changes_its_shape() {
    let Some(mut cluster) = with_keys("keyshape") else { return };
    let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
    fs::write(cluster.mount().join("file"), "data").expect("written");
    cluster.stop();
    let address = format!("127.0.0.1:{}@tcp", cluster.spare_port());
    let shapes: [&[&str]; 3] =
        [&["--one-process"], &["--one-process", "--listen", &address], &["--separate", "--listen", "none"]];
    for shape in shapes {
        let words = [&["up", &data, "--mount", &mount][..], shape].concat();
        cluster.nacre(&words).success();
        assert_eq!(fs::read(cluster.mount().join("file")).expect("read"), b"data", "{shape:?}");
        cluster.nacre(&["down", &data]).success();
    }
    cluster.stop_and_check();
}
