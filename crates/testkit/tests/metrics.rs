//! Figures for Prometheus: `/metrics` of one process and of several, and what gathering them costs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Ports, Shape, binary, http, program, text, wait};

const LIMIT: Duration = Duration::from_secs(60);

fn cluster(shape: Shape) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { metrics: true, osts: 3, mdts: 2, ..Options::default() };
    Some(Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Returns the sum of the rows of a metric whose labels contain all of `labels`; `None` without any.
fn sum(text: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let rows = text.lines().filter(|line| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    });
    let values = rows
        .map(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number"));
    values.reduce(|a, b| a + b)
}

fn write(path: &Path, bytes: usize) {
    let mut file = File::create(path).expect("created");
    file.write_all(&vec![7; bytes]).expect("written");
    file.sync_all().expect("durable");
}

fn work(cluster: &Cluster) {
    let directory = cluster.directory("d");
    cluster.lfs(&["setstripe", "-c", "-1", text(&directory)]).success();
    write(&directory.join("file"), 12 << 20);
    assert_eq!(fs::read(directory.join("file")).expect("read").len(), 12 << 20);
}

fn figures_agree_with_what_was_done(shape: Shape, processes: usize) {
    let Some(mut cluster) = cluster(shape) else { return };
    work(&cluster);
    let metrics = http::get(cluster.metrics_port(), "/metrics");
    let all = |name: &str, labels: &[&str]| {
        sum(&metrics, name, labels).unwrap_or_else(|| panic!("no {name} with {labels:?} in\n{metrics}"))
    };
    assert_eq!(all("nacre_process_up", &[]), processes as f64);
    assert_eq!(all("nacre_target_up", &[]), 6.0, "MGT, two MDTs, three OSTs");
    assert!(metrics.ends_with("# EOF\n"));
    let written = "direction=\"write\"";
    assert!(all("nacre_ost_transferred_bytes_total", &[written]) >= f64::from(12 << 20));
    for ost in ["OST0000", "OST0001", "OST0002"] {
        let target = format!("target=\"{ost}\"");
        assert!(all("nacre_ost_transferred_bytes_total", &[&target, written]) >= f64::from(4 << 20), "{ost}");
        let writes = all("nacre_request_duration_seconds_count", &[&target, "operation=\"ost_write\""]);
        let in_time = ["operation=\"ost_write\"", "le=\"+Inf\"", &target];
        assert_eq!(all("nacre_request_duration_seconds_bucket", &in_time), writes, "{ost}");
        assert!(all("nacre_target_available_bytes", &[&target]) > 0.0);
    }
    assert!(all("nacre_mount_transferred_bytes_total", &[written]) >= f64::from(12 << 20));
    assert!(all("nacre_mdt_operations_total", &["operation=\"mkdir\""]) >= 1.0);
    assert!(all("nacre_process_resident_memory_bytes", &[]) > f64::from(1 << 20));
    assert!(!metrics.contains("lustre_"));
    let lustre = http::get(cluster.metrics_port(), "/metrics?names=lustre");
    let ost = ["component=\"ost\"", "target=\"nacre-OST0001\""];
    assert!(sum(&lustre, "lustre_write_bytes_total", &ost).expect("a row") >= f64::from(4 << 20));
    cluster.stop();
    cluster.start_all();
    http::get(cluster.metrics_port(), "/metrics");
    cluster.stop_and_check();
}

#[test]
fn figures_of_one_process_agree_with_what_was_done() {
    figures_agree_with_what_was_done(Shape::Embedded, 1);
}

#[test]
fn figures_of_separate_processes_agree_with_what_was_done() {
    figures_agree_with_what_was_done(Shape::Separate, 7);
}

#[test]
fn the_largest_owners_have_rows_with_their_limits_and_an_alert_above_a_soft_one() {
    let Some(mut cluster) = cluster(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    let file = directory.join("file");
    write(&file, 4 << 20);
    std::os::unix::fs::chown(&file, Some(4321), Some(4322)).expect("changed");
    cluster.lfs(&["setquota", "-u", "4321", "-b", "1M", "-B", "1G", text(&directory)]).success();
    let user = ["kind=\"user\"", "id=\"4321\""];
    let seen = wait::until(LIMIT, "the space of the owner is counted", || {
        let metrics = http::get(cluster.metrics_port(), "/metrics");
        (sum(&metrics, "nacre_owner_used_bytes", &user) >= Some(f64::from(4 << 20))).then_some(metrics)
    });
    let of = |name: &str, labels: &[&str]| sum(&seen, name, labels);
    assert_eq!(of("nacre_owner_soft_limit_bytes", &user), Some(f64::from(1 << 20)));
    assert_eq!(of("nacre_owner_hard_limit_bytes", &user), Some(f64::from(1 << 30)));
    assert_eq!(of("nacre_owner_inodes", &user), Some(1.0));
    assert_eq!(of("nacre_owner_soft_limit_inodes", &user), None, "no limit, no row");
    assert!(of("nacre_owner_used_bytes", &["kind=\"group\"", "id=\"4322\""]) >= Some(f64::from(4 << 20)));
    let lustre = http::get(cluster.metrics_port(), "/metrics?names=lustre");
    let rows = ["target=\"nacre-QMT0000\"", "accounting=\"user\"", "id=\"4321\""];
    assert!(sum(&lustre, "lustre_quota_used_kbytes", &rows) >= Some(4096.0));
    assert_eq!(sum(&lustre, "lustre_quota_soft", &[&rows[..], &["manager=\"dt\""]].concat()), Some(1024.0));
    let shown = wait::until(LIMIT, "nacre top shows the owner", || {
        let top = program::run(binary::nacre(), ["top", text(cluster.data()), "--once", "--interval", "1"])
            .success();
        let top = top.stdout;
        top.contains("user 4321*").then_some(top)
    });
    assert!(shown.contains("WARNING: The user 4321 is above a soft limit"), "{shown}");
    cluster.stop_and_check();
}

#[test]
fn a_killed_server_is_down_and_the_others_are_still_seen() {
    let Some(mut cluster) = cluster(Shape::Separate) else { return };
    cluster.kill("ost0001");
    let up =
        |metrics: &str, target: &str| sum(metrics, "nacre_target_up", &[&format!("target=\"{target}\"")]);
    let seen = wait::until(LIMIT, "the OST is down", || {
        let metrics = http::get(cluster.metrics_port(), "/metrics");
        (up(&metrics, "OST0001") == Some(0.0)).then_some(metrics)
    });
    assert_eq!((up(&seen, "OST0000"), up(&seen, "MDT0001")), (Some(1.0), Some(1.0)));
    let process = http::get(cluster.metrics_port(), "/metrics?process=ost0001");
    assert_eq!(sum(&process, "nacre_process_up", &[]), Some(0.0));
    assert_eq!(
        http::ask(cluster.metrics_port(), "GET", "/metrics?process=x", &[], "").expect("up").status,
        404
    );
    cluster.start_all();
    wait::until(LIMIT, "the OST is up", || {
        (up(&http::get(cluster.metrics_port(), "/metrics"), "OST0001") == Some(1.0)).then_some(())
    });
    cluster.stop_and_check();
}

#[test]
fn the_option_is_remembered_and_revoked_and_a_port_in_use_is_named() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let (run, ports) = (Run::new(), Ports::take());
    let (data, mount, port) = (run.directory().join("data"), run.make("mnt"), ports.first());
    let up = |words: &[&str]| {
        let mut command = run.command(binary::nacre());
        command.args(["up", text(&data), "--mount", text(&mount)]).args(words);
        program::run_command(command, LIMIT)
    };
    let down = || {
        let mut command = run.command(binary::nacre());
        command.args(["down", text(&data)]);
        program::run_command(command, LIMIT).success()
    };
    let serves = || http::ask(port, "GET", "/metrics", &[], "").map(|reply| reply.status);
    let taken = std::net::TcpListener::bind(("127.0.0.1", port)).expect("our port");
    let refused = up(&["--metrics", &port.to_string()]).fails_with(1);
    assert!(refused.stderr.contains(&format!("127.0.0.1:{port}")), "{}", refused.stderr);
    drop(taken);
    up(&["--metrics", &port.to_string()]).success();
    assert_eq!(serves(), Some(200));
    for host in ["evil.example", "127.0.0.1.evil.example"] {
        let reply = http::ask(port, "GET", "/metrics", &[&format!("Host: {host}:{port}")], "");
        assert_eq!(reply.map(|reply| reply.status), Some(403), "{host}");
    }
    let contradiction = up(&["--metrics", "none"]).fails_with(1);
    assert!(contradiction.stderr.contains("stop it with"), "{}", contradiction.stderr);
    down();
    assert_eq!(serves(), None);
    up(&[]).success();
    assert_eq!(serves(), Some(200), "it is remembered");
    down();
    up(&["--metrics", "none"]).success();
    assert_eq!(serves(), None);
    down();
}

#[test]
fn a_host_that_joined_serves_the_figures_of_all_its_targets() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let (run, ports) = (Run::new(), Ports::take());
    let (data, mount, far) = (run.directory().join("data"), run.make("mnt"), run.directory().join("far"));
    let [first, second] = [0, 1].map(|more| format!("127.0.0.1:{}@tcp", ports.first() + more));
    let port = ports.first() + 5;
    let nacre = |words: &[&str]| {
        let mut command = run.command(binary::nacre());
        command.args(words);
        program::run_command(command, LIMIT)
    };
    // A name of its own: with keys of another file system of this name on this host it would be asked with those.
    let listen = ["--listen", &first, "--security", "open", "--fsname", "metjoin"];
    nacre(&[&["up", text(&data), "--mount", text(&mount), "--osts", "1"], &listen[..]].concat()).success();
    let source = format!("{first}:/metjoin");
    let join = |metrics: &str| {
        nacre(&["join", &source, text(&far), "--listen", &second, "--osts", "2", "--metrics", metrics])
    };
    assert!(join("nine").fails_with(2).stderr.contains("nine"));
    assert!(!far.exists(), "nothing was created");
    let metrics = port.to_string();
    join(&metrics).success();
    let up = || {
        let reply = http::ask(port, "GET", "/metrics", &[], "").filter(|reply| reply.status == 200)?;
        let of = |process: &str| sum(&reply.body, "nacre_process_up", &[&format!("process=\"{process}\"")]);
        Some([of("ost0001"), of("ost0002")])
    };
    let both = Some([Some(1.0), Some(1.0)]);
    wait::until(LIMIT, "both are seen", || (up() == both).then_some(()));
    // The process that serves them.
    let pid = fs::read_to_string(far.join("run/ost0001.pid")).expect("it runs").trim().parse();
    let pid = rustix::process::Pid::from_raw(pid.expect("a number")).expect("not 0");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    nacre(&["target", "start", text(&far)]).success();
    wait::until(LIMIT, "both are seen again", || (up() == both).then_some(()));
    nacre(&["down", text(&far)]).success();
    nacre(&["up", text(&far), "--metrics", "none"]).success();
    assert_eq!(up(), None);
    let said = nacre(&["target", "start", text(&far), "--metrics", &metrics]).success().stderr;
    assert!(said.contains("applies from the next start"), "{said}");
    assert_eq!(up(), None);
    nacre(&["down", text(&far)]).success();
    nacre(&["up", text(&far)]).success();
    wait::until(LIMIT, "both are seen", || (up() == both).then_some(()));
    let said = nacre(&["up", text(&far), "--separate"]).fails_with(2).stderr;
    assert!(said.contains("no management server"), "{said}");
    nacre(&["down", text(&far)]).success();
    nacre(&["down", text(&data)]).success();
}

#[test]
fn clients_that_do_not_read_keep_no_operation_waiting() {
    let Some(mut cluster) = cluster(Shape::Embedded) else { return };
    let connect = || TcpStream::connect(("127.0.0.1", cluster.metrics_port())).expect("connected");
    // More than the server takes: some ask and never read, some never ask.
    let idle: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = connect();
            if number % 2 == 0 {
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
            }
            stream
        })
        .collect();
    let start = Instant::now();
    work(&cluster);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    // They are served or closed in time.
    wait::until(LIMIT, "others are served", || {
        http::ask(cluster.metrics_port(), "GET", "/metrics", &[], "").filter(|reply| reply.status == 200)
    });
    drop(idle);
    cluster.stop_and_check();
}

#[test]
fn a_hundred_targets_are_in_one_answer() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let (run, ports) = (Run::new(), Ports::take());
    let (data, mount, port) = (run.directory().join("data"), run.make("mnt"), ports.first());
    let nacre = |words: &[&str]| {
        let mut command = run.command(binary::nacre());
        command.args(words);
        program::run_command(command, Duration::from_secs(300)).success()
    };
    nacre(&["up", text(&data), "--mount", text(&mount), "--osts", "100", "--metrics", &port.to_string()]);
    nacre(&["lfs", "setstripe", "-c", "-1", text(&mount)]);
    write(&mount.join("file"), 200 << 20);
    assert_eq!(File::open(mount.join("file")).expect("open").read(&mut [0; 4096]).expect("read"), 4096);
    // Figures of a moment ago may be served.
    wait::until(wait::SOON, "all targets are there, with the write on each", || {
        let metrics = http::get(port, "/metrics");
        let written = sum(&metrics, "nacre_request_duration_seconds_count", &["operation=\"ost_write\""]);
        (written >= Some(100.0) && sum(&metrics, "nacre_target_up", &[]) == Some(102.0)).then_some(())
    });
    nacre(&["down", text(&data)]);
}
