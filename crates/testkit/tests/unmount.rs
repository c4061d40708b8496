//! The end of a mount.

use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program};
use std::fs;

/// Copies, of which three in ten were cut short.
const ROUNDS: usize = 6;
const BYTES: usize = 200 << 20;

#[test]
fn what_was_copied_is_there_after_an_unmount_at_once() {
    if !(have(&["/dev/fuse"]) && have_root()) {
        return;
    }
    let mut cluster = Cluster::start(Shape::Separate);
    if cluster.is_foreign() {
        return;
    }
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
