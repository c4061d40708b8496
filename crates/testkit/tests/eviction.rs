//! Clients that do not answer: others wait for them no longer than the operator says, and what they have not written is lost.

use std::fs::{self, File};
use std::io::Write;
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, errno};

/// Lets a stopped process go on, also if the test ends early: closing a file waits for the mount that it is on.
struct Continue(u32);

impl Drop for Continue {
    fn drop(&mut self) {
        // SAFETY: kill touches no memory.
        unsafe { libc::kill(self.0 as libc::pid_t, libc::SIGCONT) };
    }
}

/// What is written in one piece after the other and held back: more than the windows in which it is gathered.
const PIECE: usize = 256 << 10;
const PIECES: usize = 40;

#[test]
fn a_stopped_mount_is_fenced_off_and_goes_on_without_what_it_held_back() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { fsname: "evict".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    cluster.lctl(&["set_param", "mdt.evict-*.ldlm_timeout=2"]).success();
    let shown = cluster.lctl(&["get_param", "-n", "mdt.evict-*.ldlm_timeout"]).success().stdout;
    assert_eq!(shown.trim(), "2");
    cluster.lctl(&["set_param", "llite.evict-*.write_back_age_ms=60000"]).success();
    let first = cluster.directory("d");
    fs::write(first.join("kept"), "synced before").expect("write");
    let (second, (file, stopped, began)) = cluster.add_mount_after(|cluster| {
        let mut file = File::create(first.join("file")).expect("create");
        file.write_all(&vec![b'a'; PIECE]).and_then(|()| file.sync_all()).expect("the beginning is synced");
        for _ in 0..PIECES {
            file.write_all(&vec![b'a'; PIECE]).expect("held back");
        }
        let stopped = Continue(cluster.pid("mount"));
        cluster.signal(stopped.0, libc::SIGSTOP);
        (file, stopped, Instant::now())
    });
    let second = second.join("d");
    let mut there =
        fs::OpenOptions::new().write(true).truncate(true).open(second.join("file")).expect("open");
    let waited = began.elapsed();
    there.write_all(&vec![b'b'; 3 * PIECE]).and_then(|()| there.sync_all()).expect("write");
    drop(stopped);
    assert!(waited < Duration::from_secs(15), "{waited:?}");

    assert_eq!(errno(file.sync_all()), libc::EIO, "what was held back is lost");
    assert_eq!(file.sync_all().map_err(|error| error.raw_os_error()), Ok(()), "told once");
    drop(file);
    // It goes on, as a client like any other.
    assert_eq!(fs::read(first.join("kept")).expect("read"), b"synced before");
    fs::write(first.join("new"), "after that").expect("write");
    assert_eq!(fs::read(second.join("new")).expect("read"), b"after that");
    drop(there);
    for mount in [&first, &second] {
        let found = fs::read(mount.join("file")).expect("read");
        assert!(found.len() == 3 * PIECE && found.iter().all(|byte| *byte == b'b'), "{}", mount.display());
    }
    cluster.stop_and_check();
}
