//! Unresponsive clients: others wait for them no longer than the configured timeout, and their unwritten data
//! is lost.

use std::fs::Permissions;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, errno, text, wait};
use rustix::fs::{Advice, fadvise};

/// Serialises the tests: a process that one of them forks has copies of the files of the other until it runs
/// exec, and closing those waits for a mount that is stopped, or consumes the error for lost data.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Far above the timeout that is set, far below the defaults: a longer wait is a wait for another timeout.
const LIMIT: Duration = Duration::from_secs(45);

/// Length of one write of a stream in the write-back cache; all pieces together exceed the windows that
/// gather it.
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
    // It continues as an ordinary client.
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

#[test]
fn a_mount_that_is_evicted_while_it_moves_a_file_changes_nothing_of_it_afterwards() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
    let options = Options { osts: 2, fsname: "evmove".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let set = |cluster: &Cluster, what: String| drop(cluster.lctl(&["set_param", "-n", &what]).success());
    for kind in ["mdt", "obdfilter"] {
        set(&cluster, format!("{kind}.evmove-*.ldlm_timeout=2"));
    }
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    let steps = [
        ("obdfilter.evmove-OST0001", "before Write"),
        ("mdt.evmove-MDT0000", "before SwapLayouts"),
        ("mdt.evmove-MDT0000", "after SwapLayouts"),
    ];
    for (number, (target, step)) in steps.into_iter().enumerate() {
        let [here, there] = [&first, &second].map(|mount| mount.join(number.to_string()));
        cluster.lfs(&["setstripe", "-c", "1", "-i", "0", text(&here)]).success();
        fs::write(&here, vec![b'a'; 3 << 20]).expect("written");
        set(&cluster, format!("{target}.hold_request={step}"));
        let words = ["lfs", "migrate", "-c", "1", "-i", "1", text(&here)];
        let mut moving = cluster.command().args(words).spawn().expect("lfs starts");
        wait::until(wait::SOON, "the step is reached", || {
            let shown =
                cluster.lctl(&["get_param", "-n", &format!("{target}.hold_request")]).success().stdout;
            shown.starts_with("held").then_some(())
        });
        let stopped = Stopped::begin(&cluster, cluster.pid_of_mount(cluster.mount()));
        set(&cluster, format!("{target}.hold_request=none"));
        let began = Instant::now();
        fs::write(&there, "anew").expect("others go on");
        assert!(began.elapsed() < LIMIT, "{step}: {:?}", began.elapsed());
        drop(stopped);
        moving.wait().expect("lfs ends");
        assert_eq!(fs::read_to_string(&there).expect("read"), "anew", "{step}");
        // The first reply of each server reports the eviction; until then the mount shows its cache.
        wait::until(wait::SOON, &format!("{step}: the evicted mount shows the file as it is"), || {
            fs::read(&here).is_ok_and(|data| data == b"anew").then_some(())
        });
        assert_eq!(fs::read_to_string(&there).expect("read"), "anew", "{step}");
    }
    cluster.stop_and_check();
}

/// A lock whose flush waits for an OST was neither cancelled nor used: its own OST and the MDT evicted the mount.
/// Waits until an OST holds a request, as its parameter `hold` says.
fn await_held(cluster: &Cluster, hold: &str) {
    wait::until(wait::SOON, "the request is held", || {
        let shown = cluster.lctl(&["get_param", "-n", hold]).success().stdout;
        shown.starts_with("held").then_some(())
    });
}

/// Waits until a timeout of two seconds has passed several times.
fn await_timeouts() {
    let began = Instant::now();
    wait::until(LIMIT, "the timeout has passed several times", || {
        (began.elapsed() > Duration::from_secs(7)).then_some(())
    });
}

#[test]
fn a_mount_that_waits_for_an_ost_with_a_revoked_lock_is_not_evicted() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
    let options = Options { osts: 2, fsname: "evbusy".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let set = |cluster: &Cluster, what: &str| drop(cluster.lctl(&["set_param", "-n", what]).success());
    for kind in ["mdt", "obdfilter"] {
        set(&cluster, &format!("{kind}.evbusy-*.ldlm_timeout=2"));
    }
    set(&cluster, "llite.evbusy-*.write_back_age_ms=600000");
    const HOLD: &str = "obdfilter.evbusy-OST0000.hold_request";
    let first = cluster.directory("d");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", text(&first)]).success();
    let second = cluster.add_mount().join("d");
    for name in ["read", "migrated"] {
        let mut file = File::create(first.join(name)).expect("made");
        // The first write of a stream is sent at once.
        for _ in 0..2 {
            file.write_all(&filled(RECORD, b'a')).expect("held back");
        }
        set(&cluster, &format!("{HOLD}=before Write"));
        let there = second.join(name);
        let mut other = if name == "read" {
            let mut cat = cluster.run().command("cat");
            cat.arg(&there);
            cat
        } else {
            let mut lfs = cluster.command();
            lfs.args(["lfs", "migrate", "-c", "1", "-i", "1", text(&there)]);
            lfs
        };
        let mut other = other.stdout(Stdio::null()).spawn().expect("it starts");
        await_held(&cluster, HOLD);
        await_timeouts();
        assert!(other.try_wait().expect("it is a child").is_none(), "{name}: it waits for the data");
        set(&cluster, &format!("{HOLD}=none"));
        assert!(other.wait().expect("it ends").success(), "{name}");
        assert_eq!(fs::read(&there).expect("read"), filled(2 * RECORD, b'a'), "{name}");
        file.sync_all().expect("nothing is lost");
        file.write_all(b"b").and_then(|()| file.sync_all()).expect("the file is still open");
    }
    cluster.stop_and_check();
}

#[test]
fn a_mount_that_is_alone_and_waits_for_an_ost_keeps_its_data_when_another_one_comes() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
    let options = Options { osts: 1, fsname: "evlone".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let set = |cluster: &Cluster, what: &str| drop(cluster.lctl(&["set_param", "-n", what]).success());
    set(&cluster, "mdt.evlone-*.ldlm_timeout=2");
    set(&cluster, "llite.evlone-*.write_back_age_ms=600000");
    const HOLD: &str = "obdfilter.evlone-OST0000.hold_request";
    let dir = cluster.directory("d");
    cluster.lfs(&["setstripe", "-c", "1", text(&dir)]).success();
    let mut file = File::create(dir.join("file")).expect("made");
    // The first write of a stream is sent at once.
    for _ in 0..2 {
        file.write_all(&filled(RECORD, b'a')).expect("held back");
    }
    let read = dir.join("read");
    fs::write(&read, filled(RECORD, b'c')).expect("written");
    let read = File::open(read).expect("opened");
    read.sync_all().expect("synced");
    fadvise(&read, 0, None, Advice::DontNeed).expect("dropped");
    set(&cluster, &format!("{HOLD}=before Read"));
    let reader = std::thread::spawn(move || self::read(&read, 0, RECORD));
    await_held(&cluster, HOLD);
    // The kernel drops the page when it is read.
    let (second, ()) = cluster.add_mount_while(|cluster| {
        await_timeouts();
        set(cluster, &format!("{HOLD}=none"));
    });
    assert_eq!(reader.join().expect("it reads"), filled(RECORD, b'c'));
    file.sync_all().expect("nothing is lost");
    assert_eq!(fs::read(second.join("d/file")).expect("read"), filled(2 * RECORD, b'a'));
    file.write_all(b"b").and_then(|()| file.sync_all()).expect("the file is still open");
    drop(file);
    cluster.stop_and_check();
}

/// Length of one write of the second test: a part of the window that gathers it.
const RECORD: usize = 4 << 10;
/// Length of its file.
const LENGTH: usize = 100 * RECORD;
/// Records in the write-back cache.
const HELD: usize = 25;

fn filled(length: usize, byte: u8) -> Vec<u8> {
    vec![byte; length]
}

/// Reads `length` bytes at `offset`.
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
    // The metadata server must not evict the mount first.
    cluster.lctl(&["set_param", "mdt.evost-*.ldlm_timeout=600"]).success();
    cluster.lctl(&["set_param", "llite.evost-*.write_back_age_ms=60000"]).success();
    let pid = cluster.pid("mount");
    let first = cluster.directory("d").join("file");
    let second = cluster.add_mount().join("d/file");
    fs::write(&first, filled(LENGTH, b'a')).expect("write");
    let open = |path| OpenOptions::new().read(true).write(true).open(path).expect("open");
    let (mut here, there) = (open(&first), open(&second));
    // The lease is shared, and this mount has a lock on the whole file: the records below are written under a
    // lock of the first mount.
    assert!(read(&there, 0, LENGTH) == filled(LENGTH, b'a'));
    // The first write of a stream is sent at once.
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

    // It continues with the same file.
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
    each_server_gives_up_who_has_said_nothing_for_long(&cluster, pid, [&first, &second]);
    cluster.stop_and_check();
}

/// A mount with locks at two OSTs and the MDT is stopped: the first server that needs a reply waits for its
/// deadline, the others see that the mount has been unresponsive for as long.
fn each_server_gives_up_who_has_said_nothing_for_long(cluster: &Cluster, pid: u32, mounts: [&Path; 2]) {
    const DEADLINE: Duration = Duration::from_secs(10);
    cluster
        .lctl(&["set_param", "obdfilter.evost-*.ldlm_timeout=10", "mdt.evost-*.ldlm_timeout=10"])
        .success();
    let [here, there] = mounts.map(|path| path.parent().expect("a directory"));
    for index in ["0", "1"] {
        cluster.lfs(&["setstripe", "-c", "1", "-i", index, text(&here.join(index))]).success();
        fs::write(here.join(index), "old").expect("write");
        assert_eq!(fs::read(there.join(index)).expect("read"), b"old");
        // From here on this mount has the lock.
        let file = OpenOptions::new().write(true).open(here.join(index)).expect("open");
        file.write_all_at(b"new", 0).and_then(|()| file.sync_all()).expect("write");
    }
    fs::create_dir(there.join("held")).expect("mkdir");
    fs::metadata(here.join("held")).expect("stat");
    let stopped = Stopped::begin(cluster, pid);
    let timed = |what: &dyn Fn()| {
        let began = Instant::now();
        what();
        began.elapsed()
    };
    let read = |index: &str| assert_eq!(fs::read(there.join(index)).expect("read"), b"new");
    let change = || fs::set_permissions(there.join("held"), Permissions::from_mode(0o700)).expect("chmod");
    let waits = [timed(&|| read("0")), timed(&|| read("1")), timed(&change)];
    drop(stopped);
    println!("{waits:?}");
    assert!(waits[0] < DEADLINE + LIMIT, "{waits:?}");
    assert!(waits[1..].iter().all(|wait| *wait < DEADLINE / 2), "{waits:?}");
    assert_eq!(fs::read(here.join("1")).expect("read"), b"new");
}

/// Mounts that stop at the same moment.
const MOUNTS: usize = 5;

#[test]
fn mounts_that_stop_at_once_hold_others_up_no_longer_than_one_does() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let _alone = alone();
    let options = Options { fsname: "evmany".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    cluster.lctl(&["set_param", "mdt.evmany-*.ldlm_timeout=12"]).success();
    let here = cluster.directory("d");
    let names: Vec<String> = (0..MOUNTS).map(|number| format!("f{number}")).collect();
    for name in &names {
        fs::write(here.join(name), "data").expect("write");
    }
    let points: Vec<_> = (0..MOUNTS).map(|_| cluster.add_mount()).collect();
    let pids: Vec<u32> = points.iter().map(|point| cluster.pid_of_mount(point)).collect();
    let mounts: Vec<_> = points.iter().map(|point| point.join("d")).collect();
    // Each has all files open and their attributes cached: the first client that is evicted has handles of
    // files that requests wait for.
    let mut open = Vec::new();
    for mount in &mounts {
        for name in &names {
            let file = File::open(mount.join(name)).expect("open");
            file.metadata().expect("stat");
            open.push(file);
        }
    }
    let stopped: Vec<Stopped> = pids.iter().map(|pid| Stopped::begin(&cluster, *pid)).collect();
    let began = Instant::now();
    std::thread::scope(|scope| {
        let change = |name: &String| {
            let path = here.join(name);
            scope.spawn(move || fs::set_permissions(path, Permissions::from_mode(0o600)).expect("chmod"));
        };
        change(&names[0]);
        // The first deadline passes while changes of files that the first mount has open wait for the others.
        std::thread::sleep(Duration::from_secs(2));
        names[1..].iter().for_each(change);
    });
    let listed = fs::read_dir(&here).expect("ls").count();
    fs::write(here.join("new"), "goes on").expect("touch");
    let waited = began.elapsed();
    drop(stopped);
    assert!(waited < LIMIT, "{waited:?}");
    assert_eq!(listed, MOUNTS);
    // They reconnect as ordinary clients.
    for mount in &mounts {
        assert_eq!(fs::read(mount.join("new")).expect("read"), b"goes on");
    }
    drop(open);
    cluster.stop_and_check();
}
