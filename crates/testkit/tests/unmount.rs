//! The end of a mount.

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program, wait};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Copies, of which three in ten were cut short.
const ROUNDS: usize = 6;
const BYTES: usize = 200 << 20;
const LIMIT: Duration = Duration::from_secs(60);

/// Starts a file system of this name: `lctl` reaches all of this host.
fn start(fsname: &str) -> Option<Cluster> {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return None;
    }
    let options = Options { fsname: fsname.to_owned(), ..Options::default() };
    Some(Cluster::start_with(Shape::Separate, &options)).filter(|cluster| !cluster.is_foreign())
}

#[test]
fn what_was_copied_is_there_after_an_unmount_at_once() {
    let Some(mut cluster) = start("unmcp") else { return };
    let (source, copy) = (cluster.directory("source").join("file"), cluster.mount().join("copy"));
    let content: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    fs::write(&source, &content).expect("written");
    for round in 0..ROUNDS {
        program::run("cp", [&source, &copy]).success();
        cluster.nacre(&["umount".as_ref(), cluster.mount().as_os_str()]).success();
        cluster.start_all();
        assert!(fs::read(&copy).expect("read") == content, "round {round}");
        fs::remove_file(&copy).expect("removed");
    }
    cluster.stop_and_check();
}

#[test]
fn an_unmount_says_that_it_waits_for_a_server_and_its_data_is_there_then() {
    let Some(mut cluster) = start("unmlate") else { return };
    let (path, ost) = (cluster.mount().join("late"), cluster.pid("ost0001"));
    let create = |path: &Path| {
        cluster.lfs(&["setstripe".as_ref(), "-i".as_ref(), "1".as_ref(), path.as_os_str()]).success();
        File::options().write(true).open(path).expect("opened")
    };
    let (file, other) = (create(&path), create(&cluster.mount().join("other")));
    let content: Vec<u8> = (0..300_000).map(|at| (at % 251) as u8).collect();
    let parameter = format!("osc.{}-OST0001-osc-*.cur_dirty_bytes", cluster.fsname());
    let has_dirty = || cluster.lctl(&["get_param", "-n", &parameter]).success().stdout.trim() != "0";
    wait::until(LIMIT, "data is held back", || {
        cluster.signal(ost, Signal::CONT);
        // With its answers the server grants space.
        other.write_all_at(&content, 0).expect("written");
        other.sync_all().expect("synced");
        file.write_all_at(&content, 0).expect("written");
        cluster.signal(ost, Signal::STOP);
        has_dirty().then_some(())
    });
    cluster.kill("ost0001");
    drop((file, other));
    let mut command = cluster.command();
    command.arg("umount").arg(cluster.mount()).stderr(Stdio::piped());
    let mut unmount = command.spawn().expect("started");
    let mut said = String::new();
    let mut errors = BufReader::new(unmount.stderr.take().expect("a pipe"));
    errors.read_line(&mut said).expect("read");
    assert!(said.contains("waits for servers that have yet to store its data: see "), "{said}");
    cluster.start_all();
    assert!(unmount.wait().expect("ended").success());
    assert!(fs::read(&path).expect("read") == content);
    cluster.stop_and_check();
}
