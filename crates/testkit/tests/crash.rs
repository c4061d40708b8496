//! Killed servers and clients: no durable change is lost, no operation hangs.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::fill;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, PowerDisk, Shape, Stopped, errno, mounts, program, text, wait};
use rustix::process::Signal;

/// Time limit for a call around a crash: resends, recovery window, and a busy machine.
const LIMIT: Duration = Duration::from_secs(120);

fn start(shape: Shape) -> Option<Cluster> {
    start_named(shape, "nacre")
}

/// Starts a file system with a unique name for commands that reach all file systems of a host.
fn start_named(shape: Shape, fsname: &str) -> Option<Cluster> {
    let options = Options { fsname: fsname.to_owned(), ..Options::default() };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Waits until all write-back data has been sent, because of its age.
fn wait_until_old(cluster: &Cluster) {
    let name = format!("llite.{}-*.write_back_stats", cluster.fsname());
    wait::until(wait::SOON, "held back data got old", || {
        let text = cluster.lctl(&["get_param", "-n", &name]).success().stdout;
        // Counts data in memory until the server has replied.
        let held = text.lines().find_map(|line| line.strip_prefix("buffer_bytes"));
        (held.unwrap_or_else(|| panic!("{text}")).trim() == "0").then_some(())
    });
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Files that a writer has fsynced: names, with the seed and length of their content.
type Promises = BTreeMap<String, (u64, usize)>;

/// Creates files until it is stopped or the file system fails; a promise is a file that was fsynced, with its
/// directory.
struct Writer {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Promises>,
    written: Arc<AtomicU64>,
}

impl Writer {
    /// `patient`: an error fails the test, as the restart of a server must not be visible.
    fn start(directory: &Path, name: &str, patient: bool) -> Writer {
        let stop = Arc::new(AtomicBool::new(false));
        let written = Arc::new(AtomicU64::new(0));
        let (directory, name) = (directory.to_owned(), name.to_owned());
        let thread = std::thread::spawn({
            let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
            move || {
                let mut promises = Promises::new();
                let mut random = Rng::with_seed(name.len() as u64);
                for number in 0..u64::MAX {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let file = format!("{name}-{number}");
                    let length = 1 + random.usize(..400_000);
                    match write_durably(&directory, &file, &content(number, length)) {
                        Ok(()) => promises.insert(file, (number, length)),
                        Err(error) if patient => panic!("{file}: {error}"),
                        Err(_) => break,
                    };
                    written.fetch_add(1, Ordering::Relaxed);
                }
                promises
            }
        });
        Writer { stop, thread, written }
    }

    fn wait_for(&self, count: u64) {
        let goal = self.written.load(Ordering::Relaxed) + count;
        wait::until(LIMIT, "files are written", || {
            (self.written.load(Ordering::Relaxed) >= goal).then_some(())
        });
    }

    fn promises(self) -> Promises {
        self.stop.store(true, Ordering::Relaxed);
        wait::until(LIMIT, "the writer ends", || self.thread.is_finished().then_some(()));
        self.thread.join().expect("the writer does not panic")
    }
}

/// Writes a file under another name and renames it, as careful programs do.
fn write_durably(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = directory.join(format!("{name}.tmp"));
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    drop(file);
    fs::rename(&temporary, directory.join(name))?;
    File::open(directory)?.sync_all()
}

fn check_promises(directory: &Path, promises: &Promises) {
    for (name, &(seed, length)) in promises {
        let found = fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{name} was lost: {error}"));
        assert!(found == content(seed, length), "{name} of {length} bytes has changed");
        let metadata = fs::metadata(directory.join(name)).expect("stat");
        assert_eq!(metadata.len(), length as u64, "size of {name}");
    }
}

/// Removes all files, promised or not.
fn remove_everything(directory: &Path) {
    fs::remove_dir_all(directory).expect("everything can be removed");
    assert!(!directory.exists());
}

fn everything_is_killed_again_and_again(shape: Shape) {
    let Some(mut cluster) = start(shape) else { return };
    let directory = cluster.directory("d");
    let mut promises = Promises::new();
    for round in 0..4 {
        let writers: Vec<Writer> =
            (0..3).map(|n| Writer::start(&directory, &format!("r{round}w{n}"), false)).collect();
        writers.iter().for_each(|writer| writer.wait_for(15));
        cluster.kill_all();
        for writer in writers {
            promises.append(&mut writer.promises());
        }
        // The kernel lets the mount go after the process, and aborts calls that came in between; it cancels one that
        // a ring of the process was to get.
        let given = nacre_testkit::errno(fs::metadata(&directory));
        let is_dead = matches!(given, libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED);
        assert!(is_dead, "the mount is dead: {given}");
        if round % 2 == 1 {
            cluster.check();
        }
        cluster.start_all();
        check_promises(&directory, &promises);
    }
    assert!(promises.len() > 150, "{} promises", promises.len());
    remove_everything(&directory);
    cluster.stop_and_check();
}

#[test]
fn separate_fsynced_files_survive_kills_of_all_processes() {
    everything_is_killed_again_and_again(Shape::Separate);
}

#[test]
fn embedded_fsynced_files_survive_kills_of_the_process() {
    everything_is_killed_again_and_again(Shape::Embedded);
}

/// Names, and files written by one call, survive the death of processes even without fsync: only a crash of
/// the host may lose them. (Streams are held back for a second at most, see below.)
fn acknowledged_work_survives_without_fsync(shape: Shape) {
    let Some(mut cluster) = start(shape) else { return };
    let directory = cluster.directory("d");
    for index in 0..300 {
        fs::write(directory.join(format!("f{index}")), content(index, 5_000)).expect("write");
    }
    for index in 0..100 {
        fs::remove_file(directory.join(format!("f{index}"))).expect("unlink");
        let (from, to) = (directory.join(format!("f{}", index + 100)), directory.join(format!("g{index}")));
        fs::rename(from, to).expect("rename");
    }
    fs::create_dir_all(directory.join("a/b/c")).expect("mkdir");
    cluster.kill_all();
    cluster.start_all();
    for index in 0..100 {
        assert!(
            !directory.join(format!("f{index}")).exists()
                && !directory.join(format!("f{}", index + 100)).exists()
        );
        let found = fs::read(directory.join(format!("g{index}"))).expect("read");
        assert!(found == content(index + 100, 5_000), "g{index}: {} bytes", found.len());
        let found = fs::read(directory.join(format!("f{}", index + 200))).expect("read");
        assert!(found == content(index + 200, 5_000), "f{}", index + 200);
    }
    assert!(directory.join("a/b/c").is_dir());
    cluster.stop_and_check();
}

#[test]
fn separate_acknowledged_work_survives_kill_without_fsync() {
    acknowledged_work_survives_without_fsync(Shape::Separate);
}

/// The next mount does not wait for one that was killed, with or without its servers.
#[test]
fn who_mounts_after_a_kill_waits_for_nobody_that_is_dead() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    for all in [false, true] {
        let open = File::create(directory.join("file")).expect("create");
        fs::remove_file(directory.join("file")).expect("unlink");
        if all {
            cluster.kill_all()
        } else {
            cluster.kill("mount")
        }
        let began = Instant::now();
        cluster.start_all();
        let took = began.elapsed();
        // Measured on an idle machine: 0.05 s and 0.2 s. The recovery window is 30 s.
        assert!(took < Duration::from_secs(20), "all processes killed: {all}, ready after {took:?}");
        assert!(fs::read_dir(&directory).expect("the mount works").next().is_none());
        drop(open);
    }
    cluster.stop_and_check();
}

#[test]
fn embedded_acknowledged_work_survives_kill_without_fsync() {
    acknowledged_work_survives_without_fsync(Shape::Embedded);
}

/// A process with servers and a mount holds written data back for a moment. Older data survives its death,
/// and names always do; so does all data of a file that was closed and whose data the servers have
/// acknowledged.
#[test]
fn embedded_streams_survive_a_kill_once_they_are_old_and_names_at_once() {
    let Some(mut cluster) = start_named(Shape::Embedded, "olde") else { return };
    let directory = cluster.directory("d");
    let bytes = content(11, 3_500_000);
    let mut open = File::create(directory.join("open")).expect("create");
    for piece in bytes.chunks(3_000) {
        open.write_all(piece).expect("write");
        assert!(open.metadata().expect("stat").len() > 0);
    }
    let mut closed = File::create(directory.join("closed")).expect("create");
    bytes.chunks(40_000).for_each(|piece| closed.write_all(piece).expect("write"));
    drop(closed);
    wait_until_old(&cluster);
    let mut young = File::create(directory.join("young")).expect("create");
    bytes.chunks(3_000).for_each(|piece| young.write_all(piece).expect("write"));
    cluster.kill_all();
    drop((open, young));
    cluster.start_all();
    for name in ["open", "closed"] {
        assert!(fs::read(directory.join(name)).expect("read") == bytes, "{name} was older than the limit");
    }
    let young = fs::read(directory.join("young")).expect("its name is there");
    assert!(young.len() <= bytes.len());
    cluster.stop_and_check();
}

/// The same guarantees if the mount dies and the servers survive.
#[test]
fn separate_streams_survive_the_death_of_their_client_once_they_are_old() {
    let Some(mut cluster) = start_named(Shape::Separate, "olds") else { return };
    let directory = cluster.directory("d");
    let bytes = content(12, 3_500_000);
    let mut open = File::create(directory.join("open")).expect("create");
    bytes.chunks(3_000).for_each(|piece| open.write_all(piece).expect("write"));
    wait_until_old(&cluster);
    cluster.kill("mount");
    drop(open);
    cluster.start_all();
    assert!(fs::read(directory.join("open")).expect("read") == bytes);
    cluster.stop_and_check();
}

/// Dirty data waits for its server, and an fsync after that makes all of it durable.
#[test]
fn data_that_is_held_back_outlives_the_death_of_its_object_server() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    cluster.lfs(&["setstripe".as_ref(), "-c".as_ref(), "4".as_ref(), directory.as_os_str()]).success();
    let bytes = content(13, 9_000_000);
    let path = directory.join("file");
    let mut file = File::create(&path).expect("create");
    let (first, rest) = bytes.split_at(5_000_000);
    first.chunks(5_000).for_each(|piece| file.write_all(piece).expect("write"));
    cluster.kill("ost0002");
    cluster.start_all();
    let file = wait::deadline(LIMIT, "writing goes on", {
        let rest = rest.to_vec();
        move || {
            rest.chunks(5_000).for_each(|piece| file.write_all(piece).expect("write"));
            file.sync_all().expect("fsync");
            file
        }
    });
    cluster.kill_all();
    drop(file);
    cluster.start_all();
    assert!(fs::read(&path).expect("read") == bytes);
    cluster.stop_and_check();
}

/// Kills one server while clients work; they wait and continue without an error.
fn one_server_is_killed(role: &str) {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    cluster.lfs(&["setstripe".as_ref(), "-c".as_ref(), "2".as_ref(), directory.as_os_str()]).success();
    let mut open = File::create(directory.join("open")).expect("create");
    open.write_all(b"before").expect("write");
    let mut promises = Promises::new();
    for round in 0..3 {
        let writers: Vec<Writer> =
            (0..2).map(|n| Writer::start(&directory, &format!("r{round}w{n}"), true)).collect();
        writers.iter().for_each(|writer| writer.wait_for(10));
        cluster.kill(role);
        cluster.start_all();
        writers.iter().for_each(|writer| writer.wait_for(10));
        for writer in writers {
            promises.append(&mut writer.promises());
        }
    }
    wait::deadline(LIMIT, "a file that was open all the time", move || {
        open.write_all(b" and after").expect("write");
        open.sync_all().expect("fsync");
    });
    assert_eq!(fs::read(directory.join("open")).expect("read"), b"before and after");
    check_promises(&directory, &promises);
    remove_everything(&directory);
    cluster.stop_and_check();
}

#[test]
fn clients_go_on_when_the_mds_is_killed_and_comes_back() {
    one_server_is_killed("mdt0000");
}

#[test]
fn clients_go_on_when_an_oss_is_killed_and_comes_back() {
    one_server_is_killed("ost0001");
}

#[test]
fn clients_go_on_when_the_mgs_is_killed_and_comes_back() {
    one_server_is_killed("mgs");
}

#[test]
fn requests_wait_for_a_dead_server_can_be_interrupted_and_go_on() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    // A file with data on every OST.
    cluster
        .lfs(&[
            "setstripe".as_ref(),
            "-c".as_ref(),
            "4".as_ref(),
            "-S".as_ref(),
            "64K".as_ref(),
            directory.as_os_str(),
        ])
        .success();
    let path = directory.join("file");
    fs::write(&path, content(1, 1_000_000)).expect("write");
    let reads = "exec dd if=\"$1/file\" bs=1M of=/dev/null iflag=direct";
    for (role, line) in [("mdt0000", "exec touch \"$1/new\""), ("ost0000", reads)] {
        cluster.kill(role);
        let mut command = cluster.run().command("bash");
        let mut child = command.args(["-c", line, "bash"]).arg(&directory).spawn().expect("bash starts");
        let early = wait::within(Duration::from_millis(1500), || child.try_wait().expect("our child"));
        assert_eq!(early, None, "it waits for {role}");
        child.kill().expect("kill");
        let started = Instant::now();
        wait::until(LIMIT, "the waiting process has ended", || child.try_wait().expect("our child"));
        assert!(started.elapsed() < Duration::from_secs(10), "{role}: an interrupt is heeded at once");
        cluster.start_all();
        let next = directory.join(format!("after-{role}"));
        wait::deadline(LIMIT, "the next request", move || fs::write(next, "text").expect("write"));
    }
    assert!(fs::read(&path).expect("read") == content(1, 1_000_000));
    cluster.stop_and_check();
}

#[test]
fn a_stopped_server_delays_and_breaks_nothing() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    for role in cluster.servers() {
        let writer = Writer::start(&directory, &role, true);
        writer.wait_for(3);
        cluster.signal(cluster.pid(&role), Signal::STOP);
        // Long enough for requests to queue up: the condition is the passing of time itself.
        wait::within(Duration::from_millis(700), || None::<()>);
        cluster.signal(cluster.pid(&role), Signal::CONT);
        writer.wait_for(5);
        let promises = writer.promises();
        check_promises(&directory, &promises);
    }
    cluster.stop_and_check();
}

#[test]
fn a_file_unlinked_while_open_survives_the_crash_of_the_mds() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    let path = directory.join("file");
    let bytes = content(5, 3_000_000);
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
    file.write_all(&bytes).expect("write");
    fs::remove_file(&path).expect("unlink");
    cluster.kill("mdt0000");
    cluster.start_all();
    let file = wait::deadline(LIMIT, "reading and writing the orphan", move || {
        file.write_all(b"more").expect("write");
        let mut found = vec![0; 3_000_004];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found[..3_000_000] == bytes && &found[3_000_000..] == b"more");
        file
    });
    drop(file);
    assert!(!path.exists());
    cluster.stop_and_check();
}

/// One such test at a time: a command that another one starts closes copies of the files of this one, and losses are
/// reported to it.
static POWER: Mutex<()> = Mutex::new(());

/// Starts a file system whose MDT is on a disk that can lose power, and keeps changes volatile for long; if
/// `loses_shared`, also those that another mount sees.
fn power_cluster(fsname: &str, loses_shared: bool) -> Option<(Cluster, PowerDisk)> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { fsname: fsname.to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return None;
    }
    let disk = PowerDisk::under(&mut cluster, "mdt0000");
    cluster.lctl(&["set_param", "-n", "osd-file.*-MDT0000.commit_interval_ms=60000"]).success();
    if loses_shared {
        cluster.lctl(&["set_param", "-n", &format!("mdt.{fsname}-MDT0000.commit_on_sharing=0")]).success();
    }
    Some((cluster, disk))
}

#[test]
fn what_an_mdt_has_lost_with_its_host_is_replayed_by_its_clients() {
    let _alone = POWER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((mut cluster, mut disk)) = power_cluster("power", true) else { return };
    let other = cluster.add_mount();
    let path = cluster.directory("d");
    for name in ["removed", "renamed", "changed", "rewritten"] {
        fs::write(path.join(name), name).expect("write");
    }
    let open = |name: &str| File::open(path.join(name)).expect("open");
    let (directory, changed) = (File::open(&path).expect("open"), open("changed"));
    directory.sync_all().expect("fsync");

    // Changes of two mounts that depend on each other, and files with objects that the MDT does not know afterwards.
    let mut made = File::create(path.join("made")).expect("create");
    made.write_all(b"data").expect("write");
    fs::create_dir(path.join("sub")).expect("made");
    // More than a message takes.
    fs::create_dir(path.join("many")).expect("made");
    for number in 0..400 {
        fs::write(path.join(format!("many/{number}")), number.to_string()).expect("write");
    }
    fs::write(other.join("d/sub/below"), content(3, 3 << 20)).expect("write");
    fs::rename(path.join("sub"), path.join("moved")).expect("renamed");
    fs::remove_file(path.join("removed")).expect("unlink");
    fs::rename(path.join("renamed"), path.join("new name")).expect("renamed");
    fs::hard_link(other.join("d/moved/below"), other.join("d/link")).expect("linked");
    changed.set_permissions(fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(path.join("rewritten"), "again").expect("write");
    disk.cut(&mut cluster);

    assert_eq!(directory.sync_all().map_err(|error| error.raw_os_error()), Ok(()), "nothing is lost");
    assert!(made.sync_all().is_ok() && changed.sync_all().is_ok());
    for mount in [cluster.mount(), other.as_path()] {
        let at = |name: &str| mount.join("d").join(name);
        let mut names: Vec<_> = fs::read_dir(mount.join("d"))
            .expect("listed")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        names.sort();
        assert_eq!(names, ["changed", "link", "made", "many", "moved", "new name", "rewritten"]);
        for number in [0, 399] {
            let content = fs::read_to_string(at(&format!("many/{number}"))).expect("read");
            assert_eq!(content, number.to_string());
        }
        assert_eq!(fs::read(at("made")).expect("read"), b"data");
        assert_eq!(fs::read(at("rewritten")).expect("read"), b"again");
        assert!(fs::read(at("moved/below")).expect("read") == content(3, 3 << 20));
        assert_eq!(fs::metadata(at("link")).expect("there").nlink(), 2);
        assert_eq!(fs::metadata(at("changed")).expect("there").permissions().mode() & 0o777, 0o600);
    }
    let status = cluster.lctl(&["get_param", "-n", "mdt.power-MDT0000.recovery_status"]).success().stdout;
    let replayed = status.lines().find_map(|line| line.strip_prefix("replayed_requests: "));
    assert!(
        replayed.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count >= 10),
        "{status}"
    );
    assert!(status.contains("refused_requests: 0"), "{status}");
    drop((directory, made, changed));
    cluster.stop_and_check();
}

#[test]
fn fsync_and_close_tell_what_cannot_be_replayed() {
    let _alone = POWER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((mut cluster, mut disk)) = power_cluster("lost", true) else { return };
    let other = cluster.add_mount();
    let path = cluster.directory("d");
    let directory = File::open(&path).expect("open");
    directory.sync_all().expect("fsync");
    // The directory that the file is in was made by a mount that does not return.
    fs::create_dir(other.join("d/sub")).expect("made");
    let below = File::create(path.join("sub/below")).expect("create");
    let closed = File::create(path.join("sub/closed")).expect("create");
    fs::write(path.join("beside"), "beside").expect("write");
    let victim = cluster.run().processes().into_iter();
    let mut victim = victim.filter(|(_, words)| words.iter().any(|word| Path::new(word) == other));
    cluster.signal(victim.next().expect("the second mount has a process").0, Signal::KILL);
    disk.cut(&mut cluster);

    let fsync = |file: &File| file.sync_all().map_err(|error| error.raw_os_error());
    assert_eq!(errno(below.sync_all()), libc::EIO);
    assert_eq!(fsync(&below), Ok(()), "told once");
    // SAFETY: the descriptor is this function's own.
    let outcome = unsafe { libc::close(closed.into_raw_fd()) };
    assert_eq!((outcome, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EIO)));
    assert!(!path.join("sub").exists());
    assert_eq!(
        (fs::read(path.join("beside")).expect("read"), fsync(&directory)),
        (b"beside".to_vec(), Ok(()))
    );
    drop((below, directory));
    cluster.stop_and_check();
}

/// The mount that made the directory has not acknowledged its answer, and may not be there to replay it.
#[test]
fn what_a_mount_builds_on_a_change_of_another_that_dies_is_not_lost() {
    let _alone = POWER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((mut cluster, mut disk)) = power_cluster("builds", false) else { return };
    let other = cluster.add_mount();
    let path = cluster.directory("d");
    File::open(&path).expect("open").sync_all().expect("fsync");
    fs::create_dir(other.join("d/sub")).expect("made");
    let below = File::create(path.join("sub/below")).expect("create");
    let commits = cluster.lctl(&["get_param", "-n", "mdt.builds-MDT0000.shared_commits"]).success().stdout;
    assert!(commits.trim().parse::<u64>().is_ok_and(|count| count > 0), "{commits}");
    cluster.signal(cluster.pid_of_mount(&other), Signal::KILL);
    disk.cut(&mut cluster);
    below.sync_all().expect("nothing is lost");
    assert!(path.join("sub/below").exists());
    drop(below);
    cluster.stop_and_check();
}

/// The MDT has replied to an open, and the mount waits for an OST before it can use it: such a file too is
/// re-opened at a restarted MDT.
#[test]
fn a_file_that_is_being_opened_when_the_mds_is_killed_outlives_its_name() {
    let Some(mut cluster) = start_named(Shape::Separate, "opening") else { return };
    let directory = cluster.directory("d");
    let path = directory.join("file");
    let plain = path.to_str().expect("test directories have plain names");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", plain]).success();
    fs::write(&path, content(6, 3_000_000)).expect("write");
    let fid = cluster.lfs(&["path2fid", plain]).success().stdout;
    let is_open = |cluster: &Cluster| {
        let text = cluster.lctl(&["get_param", "-n", "mdt.opening-MDT0000.exports.*.open_files"]).success();
        text.stdout.contains(fid.trim()).then_some(())
    };
    wait::until(wait::SOON, "the file is closed", || is_open(&cluster).is_none().then_some(()));
    let stopped = Stopped::begin(&cluster, cluster.pid("ost0000"));
    let opening = std::thread::spawn({
        let path = path.clone();
        move || OpenOptions::new().read(true).write(true).truncate(true).open(path)
    });
    wait::until(wait::SOON, "the MDT has opened it", || is_open(&cluster));
    cluster.kill("mdt0000");
    // It starts the MDT, and names the server that does not answer.
    let up = cluster.nacre(&["up", text(cluster.data())]).fails_with(1);
    assert!(up.stderr.contains("ost0000") && up.stderr.contains("is not responding"), "{up}");
    wait::deadline(LIMIT, "the mount is back", {
        let other = directory.join("other");
        move || fs::create_dir(other).expect("mkdir")
    });
    assert!(!opening.is_finished(), "its objects are not cut yet");
    drop(stopped);
    let file = wait::deadline(LIMIT, "the open", move || opening.join().expect("no panic").expect("open"));
    fs::remove_file(&path).expect("unlink");
    let file = wait::deadline(LIMIT, "writing and reading the orphan", move || {
        let bytes = content(7, 2_000_000);
        file.write_all_at(&bytes, 0).expect("write");
        file.sync_all().expect("fsync");
        let mut found = vec![0; 2_000_000];
        file.read_exact_at(&mut found, 0).expect("read");
        assert!(found == bytes);
        file
    });
    assert_eq!(is_open(&cluster), Some(()));
    drop(file);
    wait::until(wait::SOON, "the file is gone", || is_open(&cluster).is_none().then_some(()));
    cluster.stop_and_check();
}

/// Returns the bytes on disk of all objects. Logs, indexes and directories have a constant size.
fn object_bytes(cluster: &Cluster) -> u64 {
    let script =
        "find ost*/objects -type f -printf '%b\\n' | awk '{ blocks += $1 } END { print blocks * 512 }'";
    let output = program::shell(cluster.data(), script, [""; 0]).success();
    output.stdout.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number")
}

/// Returns the resident memory of a process in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a row");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Writers and readers of more data than a mount may cache, an OST that is down for a while, and another
/// mount that reads the same files: no process grows beyond the limits of its parameters.
#[test]
fn memory_stays_within_its_bounds_under_load_and_while_a_server_is_away() {
    const BOUND_MB: u64 = 64;
    /// Requests in flight with their buffers, stacks and the allocator's reserve: 64 threads of 1 MiB.
    const WORKING_MB: u64 = 64;
    const FILES: usize = 6;
    let Some(mut cluster) = start_named(Shape::Separate, "bounds") else { return };
    let directory = cluster.directory("d");
    let other = cluster.add_mount().join("d");
    cluster.lctl(&["set_param", &format!("llite.bounds-*.max_cached_mb={BOUND_MB}")]).success();
    let pids: Vec<(String, u32)> =
        cluster.processes().into_iter().filter(|(role, _)| role != "ost0001").collect();
    let before: Vec<u64> = pids.iter().map(|(_, pid)| resident_bytes(*pid)).collect();
    let (done, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let work = {
        let (done, written) = (done.clone(), written.clone());
        std::thread::spawn(move || {
            let piece = vec![7; 1 << 20];
            for index in 0..FILES {
                let file = File::create(directory.join(index.to_string())).expect("create");
                for _ in 0..48 {
                    (&file).write_all(&piece).expect("write");
                    written.fetch_add(1, Ordering::Relaxed);
                }
                // Not synced: the other mount reads write-back data.
                let mut there = File::open(other.join(index.to_string())).expect("open");
                let mut found = Vec::new();
                there.read_to_end(&mut found).expect("read");
                assert!(found.len() == 48 << 20 && found.iter().all(|byte| *byte == 7));
            }
            done.store(true, Ordering::Relaxed);
        })
    };
    let mut most = before.clone();
    let mut killed = false;
    wait::until(LIMIT, "the work is done", || {
        for (most, (_, pid)) in most.iter_mut().zip(&pids) {
            *most = (*most).max(resident_bytes(*pid));
        }
        if !killed && written.load(Ordering::Relaxed) > 70 {
            killed = true;
            cluster.kill("ost0001");
            cluster.start_all();
        }
        (done.load(Ordering::Relaxed) || work.is_finished()).then_some(())
    });
    work.join().expect("everything was written and read");
    for ((role, _), (most, before)) in pids.iter().zip(most.iter().zip(&before)) {
        let grown_mb = most.saturating_sub(*before) >> 20;
        assert!(grown_mb <= BOUND_MB + WORKING_MB, "{role} has grown by {grown_mb} MiB");
        println!("{role}: {grown_mb} MiB");
    }
    cluster.stop_and_check();
}

#[test]
fn space_of_removed_files_comes_back_after_crashes() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    for index in 0..40 {
        fs::write(directory.join(index.to_string()), content(index, 1 << 20)).expect("write");
    }
    program::run("sync", ["-f", directory.to_str().expect("UTF-8")]).success();
    assert!(object_bytes(&cluster) >= 40 << 20);
    for index in 0..40 {
        fs::remove_file(directory.join(index.to_string())).expect("unlink");
        if index == 20 {
            cluster.kill("ost0001");
            cluster.start_all();
        }
    }
    cluster.kill("mdt0000");
    cluster.start_all();
    wait::until(LIMIT, "objects of removed files are destroyed", || {
        (object_bytes(&cluster) < 2 << 20).then_some(())
    });
    cluster.stop_and_check();
}

#[test]
fn the_embedded_process_killed_while_idle_comes_back_with_everything() {
    let Some(mut cluster) = start(Shape::Embedded) else { return };
    let directory = cluster.directory("d");
    fs::write(directory.join("file"), content(3, 1_000_000)).expect("write");
    for _ in 0..5 {
        cluster.kill("node");
        cluster.start_all();
        assert!(fs::read(directory.join("file")).expect("read") == content(3, 1_000_000));
    }
    cluster.stop_and_check();
}

#[test]
fn a_killed_client_leaves_a_mount_that_the_next_one_clears() {
    let Some(mut cluster) = start(Shape::Separate) else { return };
    let directory = cluster.directory("d");
    fs::write(directory.join("file"), "text").expect("write");
    let mut open = File::open(directory.join("file")).expect("open");
    cluster.kill("mount");
    assert!(mounts::at(cluster.mount()).is_some(), "the kernel keeps a dead mount");
    // The kernel removes io_uring queues after the end of their process, and returns ECANCELED until that is
    // done.
    wait::until(LIMIT, "the open file is cut off", || {
        (nacre_testkit::errno(open.read(&mut [0; 4])) == libc::ENOTCONN).then_some(())
    });
    cluster.start_all();
    assert_eq!(fs::read(directory.join("file")).expect("read"), b"text");
    drop(open);
    cluster.stop_and_check();
}
