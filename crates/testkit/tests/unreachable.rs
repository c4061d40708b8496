//! Servers that are down: figures of the file system cover the other servers, and wrong addresses are
//! reported soon.

use std::time::{Duration, Instant};

use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program};
use rustix::process::Signal;

/// Time limit for operations that must not wait. Measured on an idle machine: 1.1 s with dead servers, 2.1 s
/// with a stopped one.
const SOON: Duration = Duration::from_secs(20);

#[test]
fn figures_do_not_wait_for_servers_that_are_away() {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return;
    }
    let mut cluster = Cluster::start(Shape::Separate);
    if cluster.is_foreign() {
        return;
    }
    let mount = cluster.mount().to_owned();
    let figures = |dead: &[&str]| {
        let began = Instant::now();
        let found = cluster.lfs(&["df".as_ref(), mount.as_os_str()]).success().stdout;
        for target in ["MDT0000", "OST0000", "OST0001"] {
            let gone = found.lines().any(|line| line == format!("{target:<20}: inactive device"));
            let there = found.lines().any(|line| line.starts_with(&format!("nacre-{target}_UUID ")));
            assert_eq!((gone, there), (dead.contains(&target), !dead.contains(&target)), "{target}: {found}");
        }
        // Without any server there are no figures.
        assert_eq!(program::run("df", [&mount]).code(), i32::from(dead.len() == 3));
        assert!(began.elapsed() < SOON, "{dead:?}: {:?}", began.elapsed());
    };
    figures(&[]);
    cluster.signal(cluster.pid("ost0001"), Signal::STOP);
    figures(&["OST0001"]);
    cluster.signal(cluster.pid("ost0001"), Signal::CONT);
    figures(&[]);
    cluster.kill("ost0001");
    figures(&["OST0001"]);
    for server in cluster.servers().iter().filter(|name| *name != "ost0001") {
        cluster.kill(server);
    }
    figures(&["MDT0000", "OST0000", "OST0001"]);
    cluster.start_all();
    cluster.stop_and_check();
}

#[test]
fn an_address_where_nobody_listens_is_told_soon() {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return;
    }
    let run = nacre_testkit::run::Run::new();
    let began = Instant::now();
    let mut command = run.command(nacre_testkit::binary::nacre());
    command.args(["mount", "127.0.0.1:1@tcp:/nacre"]).arg(run.make("mnt"));
    let outcome = program::run_command(command, SOON).fails_with(1);
    assert!(outcome.stderr.contains("no management server answers at 127.0.0.1:1@tcp"), "{}", outcome.stderr);
    assert!(began.elapsed() < SOON);
}
