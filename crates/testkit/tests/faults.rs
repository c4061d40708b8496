//! Fault points over real mounts: for programs that are built with `NACRE_FAULT_POINTS=1`; with others these tests do
//! nothing.

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, binary, errno, program, text, wait};
use std::fs;
use std::time::Duration;

/// Time limit for each step.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts servers with fault points in processes of their own.
fn start(fsname: &str, mdts: usize) -> Option<Cluster> {
    if !(have(&["/dev/fuse", "fusermount3"]) && have_root()) {
        return None;
    }
    let listed = program::run(binary::nacre(), ["debug", "faults"]);
    if listed.code() != 0 {
        eprintln!("left out: {}", listed.stderr.trim());
        return None;
    }
    assert!(listed.stdout.lines().count() >= 25, "{}", listed.stdout);
    let options = Options { fsname: fsname.to_owned(), mdts, osts: 2, ..Options::default() };
    let cluster = Cluster::start_with(Shape::Separate, &options);
    (!cluster.is_foreign()).then_some(cluster)
}

/// Sets the fault of this file system's processes alone: another test has its own at the same time.
fn set(cluster: &Cluster, loc: &str) {
    set_param(cluster, &format!("fail_loc={loc}")).success();
}

fn set_param(cluster: &Cluster, setting: &str) -> program::Outcome {
    cluster.lctl(&["--fs", text(cluster.mount()), "set_param", "-n", setting])
}

#[test]
fn lost_requests_and_replies_are_repeated_and_errors_reach_the_program() {
    let Some(mut cluster) = start("faultnet", 1) else { return };
    let file = cluster.mount().join("file");
    for (number, loc) in
        ["mds_reint_net|once", "mds_reint_net_rep|once", "0x80000123", "ldlm_bl_callback_net|once"]
            .iter()
            .enumerate()
    {
        set(&cluster, loc);
        fs::create_dir(cluster.mount().join(format!("dir{number}")))
            .expect("made although a message was lost");
    }
    set(&cluster, "mds_enospc");
    assert_eq!(errno(fs::create_dir(cluster.mount().join("full"))), libc::ENOSPC);
    set(&cluster, "mds_enospc|once");
    fs::create_dir(cluster.mount().join("full")).expect("a client frees space with a sync, and tries again");
    set(&cluster, "ost_all_reply_net|once");
    fs::write(&file, b"data").expect("written although a reply was lost");
    set(&cluster, "0");
    assert_eq!(fs::read(&file).expect("read"), b"data");
    assert_eq!(set_param(&cluster, "fail_loc=nonsense").code(), libc::EINVAL);
    cluster.stop_and_check();
}

#[test]
fn an_mdt_that_ends_after_a_commit_answers_the_request_once_it_is_back() {
    let Some(mut cluster) = start("faultend", 1) else { return };
    let mdt = cluster.pid("mdt0000");
    let dir = cluster.mount().join("dir");
    set(&cluster, "mds_after_commit_crash|once");
    let made = std::thread::spawn({
        let dir = dir.clone();
        move || fs::create_dir(dir)
    });
    let has_ended = || (!std::path::Path::new(&format!("/proc/{mdt}")).exists()).then_some(());
    wait::until(LIMIT, "the MDT has ended", has_ended);
    cluster.start_all();
    made.join().expect("no panic").expect("made, by the request that is sent again");
    assert!(fs::metadata(dir).expect("there").is_dir());
    cluster.stop_and_check();
}
