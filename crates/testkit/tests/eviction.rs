//! Clients that do not answer: others wait for them no longer than the operator says, and what they have not written is lost.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, errno};

/// One test at a time: a process that one of them starts has copies of the files of the other until it runs its program, and
/// closing those waits for a mount that is stopped, or is told of lost data in place of the test.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Far above the timeout that is set, far below those that are not: who waits so long waits for the wrong thing.
const LIMIT: Duration = Duration::from_secs(15);

/// What is written in one piece after the other and held back: more than the windows in which it is gathered.
const PIECE: usize = 256 << 10;
const PIECES: usize = 40;

#[test]
fn a_stopped_mount_is_fenced_off_and_goes_on_without_what_it_held_back() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
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
        let stopped = Stopped::begin(cluster, cluster.pid("mount"));
        (file, stopped, Instant::now())
    });
    let second = second.join("d");
    let mut there = OpenOptions::new().write(true).truncate(true).open(second.join("file")).expect("open");
    let waited = began.elapsed();
    there.write_all(&vec![b'b'; 3 * PIECE]).and_then(|()| there.sync_all()).expect("write");
    drop(stopped);
    assert!(waited < LIMIT, "{waited:?}");

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

/// What the second test writes in one piece: a part of the window in which it is gathered.
const RECORD: usize = 4 << 10;
/// Length of its file.
const LENGTH: usize = 100 * RECORD;
/// Records that are held back.
const HELD: usize = 25;

fn filled(length: usize, byte: u8) -> Vec<u8> {
    vec![byte; length]
}

/// `length` bytes at `offset`.
fn read(file: &File, offset: usize, length: usize) -> Vec<u8> {
    let mut bytes = filled(length, 0);
    file.read_exact_at(&mut bytes, offset as u64).expect("read");
    bytes
}

#[test]
fn an_ost_fences_off_a_stopped_mount_that_holds_a_lock_beside_others() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
    let options = Options { fsname: "evost".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    cluster.lctl(&["set_param", "obdfilter.evost-*.ldlm_timeout=2"]).success();
    // Nobody is to be helped by the metadata server.
    cluster.lctl(&["set_param", "mdt.evost-*.ldlm_timeout=600"]).success();
    cluster.lctl(&["set_param", "llite.evost-*.write_back_age_ms=60000"]).success();
    let pid = cluster.pid("mount");
    let first = cluster.directory("d").join("file");
    let second = cluster.add_mount().join("d/file");
    fs::write(&first, filled(LENGTH, b'a')).expect("write");
    let open = |path| OpenOptions::new().read(true).write(true).open(path).expect("open");
    let (mut here, there) = (open(&first), open(&second));
    // The lease is shared, and a lock on all of it is there: the records below come under one on this side.
    assert!(read(&there, 0, LENGTH) == filled(LENGTH, b'a'));
    // The beginning of a stream goes straight to the server.
    here.write_all(&filled(RECORD, b'a')).expect("write");
    for _ in 0..HELD {
        here.write_all(&filled(RECORD, b'b')).expect("held back");
    }

    let stopped = Stopped::begin(&cluster, pid);
    let began = Instant::now();
    let found = read(&there, 0, LENGTH);
    there.write_all_at(&filled(2 * RECORD, b'c'), RECORD as u64).expect("write");
    there.sync_all().expect("fsync");
    let waited = began.elapsed();
    drop(stopped);
    assert!(waited < LIMIT, "{waited:?}");
    let written = found.chunks(RECORD).position(|record| record[0] != b'a');
    assert_eq!(written, None, "all records were held back");

    assert_eq!(errno(here.sync_all()), libc::EIO, "what was held back is lost");
    assert_eq!(here.sync_all().map_err(|error| error.raw_os_error()), Ok(()), "told once");
    assert_eq!(here.sync_all().map_err(|error| error.raw_os_error()), Ok(()));
    let timeouts = || {
        let name = "ldlm.namespaces.filter-evost-*.lock_timeouts";
        let text = cluster.lctl(&["get_param", "-n", name]).success().stdout;
        text.lines().map(|line| line.trim().parse::<u64>().expect("a number")).sum::<u64>()
    };
    assert_eq!(timeouts(), 1, "it was the one OST of the file");

    // It goes on as before, with the same file.
    let mut expected = filled(LENGTH, b'a');
    expected[RECORD..3 * RECORD].fill(b'c');
    assert!(read(&here, 0, LENGTH) == expected);
    for record in 0..HELD {
        let at = (50 + record) * RECORD;
        here.write_all_at(&filled(RECORD, b'd'), at as u64).expect("write");
        expected[at..at + RECORD].fill(b'd');
    }
    assert!(read(&there, 0, LENGTH) == expected);
    there.write_all_at(&filled(RECORD, b'e'), 0).expect("write");
    expected[..RECORD].fill(b'e');
    assert!(read(&here, 0, LENGTH) == expected);
    here.sync_all().expect("fsync");
    assert_eq!(timeouts(), 1);
    drop((here, there));
    cluster.stop_and_check();
}
