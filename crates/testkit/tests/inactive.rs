//! OSTs with files on them that an administrator deactivates.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, errno, on_each_shape_of, program, wait};
use rustix::process::Signal;

/// Timeout, far above the time of any operation here.
const LIMIT: Duration = Duration::from_secs(60);
/// Time limit, on a busy machine, for operations that fail without a wait.
const AT_ONCE: Duration = Duration::from_secs(20);
const STRIPE: usize = 65536;

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn get(cluster: &Cluster, name: &str) -> String {
    cluster.lctl(&["get_param", "-n", name]).success().stdout.trim().to_owned()
}

/// Creates a file with a stripe on each of three OSTs, the first one on OST 0.
fn striped(cluster: &Cluster, path: &Path) -> Vec<u8> {
    lfs(cluster, &["setstripe", "-c", "3", "-i", "0", "-S", "64K", text(path)]);
    let bytes: Vec<u8> = (0..3 * STRIPE).map(|at| (at / 100 % 251) as u8).collect();
    fs::write(path, &bytes).expect("write");
    bytes
}

/// Returns the logs of all processes.
fn logs(cluster: &Cluster) -> String {
    let entries = fs::read_dir(cluster.data().join("run")).expect("the directory of a cluster that runs");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "log"))
        .map(|path| fs::read_to_string(path).expect("text"))
        .collect()
}

/// Creates `count` files and returns their first OSTs.
fn placed(cluster: &Cluster, directory: &Path, name: &str, count: usize) -> Vec<String> {
    let first = |number: usize| {
        let path = directory.join(format!("{name}{number}"));
        fs::write(&path, b"x").expect("write");
        lfs(cluster, &["getstripe", "-i", text(&path)])
    };
    (0..count).map(first).collect()
}

/// Checks that every listing shows OST 1 as inactive, and the others as active.
fn listings_tell_it(cluster: &Cluster, root: &Path) {
    let gone = "OST0001             : inactive device";
    assert!(lfs(cluster, &["df", "-v", text(root)]).contains(gone));
    assert!(!lfs(cluster, &["df", text(root)]).contains("OST0001"), "it is no news");
    let fs = cluster.fsname();
    let osts = lfs(cluster, &["osts", text(root)]);
    let expected = format!(
        "OBDS:\n0: {fs}-OST0000_UUID ACTIVE\n1: {fs}-OST0001_UUID INACTIVE\n2: {fs}-OST0002_UUID ACTIVE"
    );
    assert_eq!(osts, expected);
    let checked = lfs(cluster, &["check", "osts", text(root)]);
    let states: Vec<&str> = checked.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(states, ["active.", "inactive.", "active."], "{checked}");
    let devices = cluster.lctl(&["dl"]).success().stdout;
    for kind in ["osc", "osp"] {
        let of_kind = devices.lines().filter(|line| line.contains(&format!(" {kind} {fs}-")));
        let states: Vec<&str> = of_kind.filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(states, ["UP", "IN", "UP"], "{devices}");
    }
}

/// Reads and writes of stripes on other OSTs work, those of stripes on OST 1 fail at once; the rest of the
/// file system works.
fn rest_goes_on(cluster: &Cluster, root: &Path, bytes: &[u8]) {
    let path = root.join("f");
    let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
    let begin = Instant::now();
    let mut piece = vec![0; 1000];
    file.read_exact_at(&mut piece, 10).expect("read of OST 0");
    assert!(piece == bytes[10..1010]);
    assert_eq!(errno(file.read_at(&mut piece, STRIPE as u64 + 5)), libc::EIO);
    file.write_all_at(&piece, 10).expect("write on OST 0");
    let written = file.write_at(&piece, STRIPE as u64 + 5).and_then(|_| file.sync_data());
    assert_eq!(errno(written), libc::EIO);
    assert_eq!(fs::metadata(&path).expect("stat").len(), bytes.len() as u64);
    drop(file);
    assert_eq!(fs::metadata(&path).expect("stat").len(), bytes.len() as u64);
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "3");
    listings_tell_it(cluster, root);
    let all = placed(cluster, root, "new", 6);
    assert!(all.iter().all(|index| index != "1"), "{all:?}");
    let exact = root.join("exact");
    let refused = cluster.lfs(&["setstripe", "-o", "1,2", text(&exact)]);
    assert!(
        refused.code() != 0 && refused.stderr.contains("inactive OST among your specified"),
        "{refused:?}"
    );
    let _ = fs::remove_file(&exact);
    fs::remove_file(root.join("goes")).expect("unlink");
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
}

#[test]
fn an_ost_is_taken_out_of_use_and_comes_back() {
    on_each_shape_of("inact", 3, |cluster, fs| {
        cluster.set_default(&["-d"]);
        let root = cluster.directory("d");
        let bytes = striped(cluster, &root.join("f"));
        striped(cluster, &root.join("goes"));
        cluster.lctl(&["conf_param", &format!("{fs}-OST0001.osc.active=0")]).success();
        let active = || get(cluster, &format!("os[cp].{fs}-OST0001-osc-*.active"));
        wait::until(LIMIT, "all know it", || (active() == "0\n0\n0").then_some(()));
        // A restart drops all caches.
        cluster.stop();
        cluster.start_all();
        let active = || get(cluster, &format!("os[cp].{fs}-OST0001-osc-*.active"));
        assert_eq!(active(), "0\n0\n0", "it lasts");
        rest_goes_on(cluster, &root, &bytes);
        assert_eq!(get(cluster, &format!("lov.{fs}-clilov-*.activeobd")), "2");
        assert!(logs(cluster).contains("on OST0001: input/output error (EIO): the target is out of use"));
        cluster.lctl(&["conf_param", &format!("{fs}-OST0001.osc.active=1")]).success();
        wait::until(LIMIT, "all know it", || (active() == "1\n1\n1").then_some(()));
        let back = fs::read(root.join("f")).expect("read");
        assert!(back[STRIPE..] == bytes[STRIPE..] && back.len() == bytes.len());
        let mut tries = 0;
        wait::until(LIMIT, "new files are there again", || {
            // Existing files keep their objects.
            tries += 1;
            let names = format!("back{tries}-");
            placed(cluster, &root, &names, 6).iter().any(|index| index == "1").then_some(())
        });
        // By the name of a device, for the MDT only: clients still read; and no new objects with
        // `max_create_count=0`, while all else works.
        let device = format!("{fs}-OST0002-osc-MDT0000");
        cluster.lctl(&["--device", &device, "deactivate"]).success();
        assert_eq!(get(cluster, &format!("osp.{device}.active")), "0");
        assert!(fs::read(root.join("f")).is_ok());
        cluster.lctl(&["--device", &device, "activate"]).success();
        cluster.lctl(&["--device", "3", "deactivate"]).fails_with(libc::EINVAL);
        cluster.lctl(&["set_param", &format!("osp.{fs}-OST0000-osc-MDT0000.max_create_count=0")]).success();
        assert!(placed(cluster, &root, "two", 6).iter().all(|index| index != "0"));
        cluster
            .lctl(&["set_param", &format!("osp.{fs}-OST0000-osc-MDT0000.max_create_count=20000")])
            .success();
        cluster
            .lctl(&["set_param", &format!("osp.{fs}-OST0000-osc-MDT0000.max_create_count=20001")])
            .fails_with(libc::ERANGE);
    });
}

/// An operation that waits for a dead OST fails once the OST is deactivated.
#[test]
fn waiting_for_a_dead_ost_ends_when_it_is_taken_out_of_use() {
    on_each_shape_of("inadd", 3, |cluster, fs| {
        if cluster.shape() != Shape::Separate {
            return;
        }
        let root = cluster.directory("d");
        let bytes = striped(cluster, &root.join("f"));
        cluster.stop();
        cluster.start_all();
        cluster.kill("ost0001");
        let path = root.join("f");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let file = fs::File::open(&path).expect("open");
                let mut piece = [0; 100];
                file.read_at(&mut piece, STRIPE as u64)
            });
            // The read may or may not have been sent yet; it fails in both cases.
            cluster.lctl(&["set_param", "-n", &format!("osc.{fs}-OST0001*.active=0")]).success();
            wait::until(LIMIT, "the reader gives up", || reader.is_finished().then_some(()));
            assert_eq!(errno(reader.join().expect("no panic")), libc::EIO);
        });
        let mut piece = vec![0; 100];
        fs::File::open(&path).expect("open").read_exact_at(&mut piece, 5).expect("the rest");
        assert!(piece == bytes[5..105]);
        cluster.start_all();
        cluster.lctl(&["set_param", "-n", &format!("osc.{fs}-OST0001*.active=1")]).success();
        assert!(fs::read(&path).expect("read") == bytes);
    });
}

/// Two mounts have locks, also on the OST that is deactivated: no operation waits for those, and the data is
/// consistent afterwards.
fn two_mounts_go_on_without_an_ost(shape: Shape, fsname: &str) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { osts: 3, listen: true, fsname: fsname.to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(shape, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    let other = cluster.add_mount().join("d");
    let mut bytes = striped(&cluster, &root.join("f"));
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path.join("f")).expect("open");
    let files = [open(&root), open(&other)];
    let at = |stripe: usize| (stripe * STRIPE + 100) as u64;
    let write = |bytes: &mut Vec<u8>, mount: usize, stripe: usize, value: u8| {
        let at = at(stripe) as usize;
        bytes[at..at + 50].fill(value);
        files[mount].write_all_at(&[value; 50], at as u64)
    };
    for (round, mount) in [0, 1, 0, 1].into_iter().enumerate() {
        (0..3).for_each(|stripe| write(&mut bytes, mount, stripe, round as u8).expect("write"));
    }
    let set = |active: u8| {
        cluster.lctl(&["set_param", "-n", &format!("osc.{fsname}-OST0001*.active={active}")]).success();
    };
    set(0);
    let begin = Instant::now();
    let mut piece = [0; 50];
    for (mount, file) in files.iter().enumerate() {
        for stripe in [0, 2] {
            write(&mut bytes, mount, stripe, 10 + mount as u8).expect("write elsewhere");
            files[1 - mount].read_exact_at(&mut piece, at(stripe)).expect("read elsewhere");
            assert_eq!(piece, [10 + mount as u8; 50]);
        }
        assert_eq!(errno(file.read_at(&mut piece, at(1))), libc::EIO);
        assert_eq!(file.metadata().expect("stat").len(), bytes.len() as u64);
    }
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    set(1);
    for (round, mount) in [0, 1, 0, 1].into_iter().enumerate() {
        (0..3).for_each(|stripe| write(&mut bytes, mount, stripe, 20 + round as u8).expect("write"));
        files.iter().for_each(|file| {
            let mut all = vec![0; bytes.len()];
            file.read_exact_at(&mut all, 0).expect("read");
            assert!(all == bytes);
        });
    }
    drop(files);
    cluster.stop_and_check();
}

/// Creates files of 1 MiB on OST 1, some on two OSTs; returns them with their contents.
fn on_the_second(cluster: &Cluster, root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let make = |number: usize| {
        let path = root.join(format!("f{number}"));
        let stripes: &[&str] =
            if number.is_multiple_of(2) { &["-i", "1"] } else { &["-o", "1,2", "-S", "64K"] };
        let arguments: Vec<&str> =
            ["setstripe"].iter().chain(stripes).copied().chain([text(&path)]).collect();
        lfs(cluster, &arguments);
        let bytes: Vec<u8> = (0..1 << 20).map(|at| (at / 64 * (number + 3) % 253) as u8).collect();
        fs::write(&path, &bytes).expect("write");
        (path, bytes)
    };
    (0..8).map(make).collect()
}

/// An OST that is inactive on the MDT only gets no new objects, while clients read from it: so it can be
/// emptied.
#[test]
fn an_ost_that_is_out_of_use_on_the_mdt_alone_is_emptied() {
    on_each_shape_of("inadr", 3, |cluster, fs| {
        cluster.set_default(&["-c", "1"]);
        let root = cluster.directory("d");
        let files = on_the_second(cluster, &root);
        let device = format!("osp.{fs}-OST0001-osc-MDT0000");
        cluster.lctl(&["set_param", &format!("{device}.active=0")]).success();
        let drained = cluster.nacre(&["rebalance", text(cluster.mount()), "--drain", "1"]).success();
        assert!(drained.stdout.contains("moved 8 files"), "{drained:?}");
        for (path, bytes) in &files {
            assert!(fs::read(path).expect("read") == *bytes, "{}", path.display());
            let on = lfs(cluster, &["getstripe", "-y", text(path)]);
            assert!(!on.contains("l_ost_idx: 1"), "{on}");
        }
        assert_eq!(get(cluster, &format!("{device}.active")), "0", "it stays out of use");
        assert!(placed(cluster, &root, "new", 6).iter().all(|index| index != "1"));
        cluster.lctl(&["set_param", &format!("{device}.active=1")]).success();
        cluster.stop_and_check();
    });
}

#[test]
fn two_mounts_go_on_without_an_ost_in_one_process() {
    two_mounts_go_on_without_an_ost(Shape::Embedded, "inat");
}

#[test]
fn two_mounts_go_on_without_an_ost_over_the_network() {
    two_mounts_go_on_without_an_ost(Shape::Separate, "inas");
}

/// Creates a file for each place that a file can have with two MDTs, each with an object on OST 0; returns
/// their paths.
fn everywhere(cluster: &Cluster) -> Vec<PathBuf> {
    let top = cluster.directory("d");
    let on = |name: &str, how: &[&str]| {
        let path = top.join(name);
        lfs(cluster, &[&["mkdir"], how, &[text(&path)]].concat());
        path
    };
    let (first, second) = (on("first", &["-i", "0"]), on("second", &["-i", "1"]));
    let striped = on("striped", &["-c", "2", "-i", "1"]);
    let mut files: Vec<PathBuf> = ["a", "b"].map(|name| first.join(name)).to_vec();
    files.extend(["a", "moves", "linked"].map(|name| second.join(name)));
    files.extend((0..6).map(|number| striped.join(format!("f{number}"))));
    for path in &files {
        lfs(cluster, &["setstripe", "-i", "0", "-c", "1", text(path)]);
        fs::write(path, path.as_os_str().as_encoded_bytes()).expect("write");
    }
    // Names whose inodes are on the other MDT.
    fs::rename(second.join("moves"), first.join("moved")).expect("rename");
    fs::hard_link(second.join("linked"), first.join("link")).expect("link");
    lfs(cluster, &["setstripe", "-i", "0", "-c", "1", text(&second.join("never written"))]);
    files.retain(|path| path.exists());
    files
}

/// Each MDT has files on an OST that is emptied; a file that cannot be examined does not count as moved.
#[test]
fn an_ost_is_emptied_of_the_files_of_all_mdts() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let fsname = "indra".to_owned();
    let options = Options { mdts: 2, osts: 2, listen: true, fsname, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let other = cluster.add_mount();
    let files = everywhere(&cluster);
    let moved = cluster.mount().join("d/first/moved");
    let content = fs::read(&moved).expect("read");
    let nameless = other.join("d/second/nameless");
    lfs(&cluster, &["setstripe", "-i", "0", "-c", "1", text(&nameless)]);
    fs::write(&nameless, b"open").expect("write");
    let open = fs::File::open(&nameless).expect("open");
    fs::remove_file(&nameless).expect("unlink");
    cluster.lctl(&["set_param", "-n", "obdfilter.indra-OST0000.no_create=1"]).success();
    let drain = || cluster.nacre(&["rebalance", text(cluster.mount()), "--drain", "0", "--rate", "0"]);
    let mdt = cluster.pid("mdt0001");
    cluster.signal(mdt, Signal::STOP);
    let refused = drain();
    cluster.signal(mdt, Signal::CONT);
    assert!(refused.code() != 0 && refused.stderr.contains("MDT0001 does not answer"), "{refused:?}");
    // The open file without a name is moved with the others.
    drain().success();
    for path in &files {
        let found = fs::read(path).expect("read");
        assert!(found == path.as_os_str().as_encoded_bytes(), "{}", path.display());
        assert_eq!(lfs(&cluster, &["getstripe", "-i", text(path)]), "1", "{}", path.display());
    }
    assert!(fs::read(&moved).expect("read") == content);
    let mut piece = [0; 4];
    open.read_exact_at(&mut piece, 0).expect("read");
    assert_eq!(&piece, b"open");
    // The OST can be removed permanently.
    cluster.kill("ost0000");
    assert!(fs::read(other.join("d/first/moved")).expect("read") == content);
    drop(open);
    cluster.start_all();
    cluster.stop_and_check();
}

/// Creates and writes new files on both MDTs, through both mounts; returns their OSTs.
fn new_files(cluster: &Cluster, mounts: [&Path; 2], name: &str) -> Vec<String> {
    let make = |number: usize| {
        let path = mounts[number % 2].join(format!("d/{}/{name}{number}", number / 2 % 2));
        fs::write(&path, b"data").expect("write");
        lfs(cluster, &["getstripe", "-i", text(&path)])
    };
    (0..12).map(make).collect()
}

/// Allocates objects for unwritten files on both MDTs; returns their OSTs.
fn given(cluster: &Cluster, round: &mut usize) -> Vec<String> {
    *round += 1;
    let give = |number: usize| {
        let path = cluster.mount().join(format!("d/{}/given{round}-{number}", number % 2));
        lfs(cluster, &["setstripe", "-c", "1", text(&path)]);
        lfs(cluster, &["getstripe", "-i", text(&path)])
    };
    (0..12).map(give).collect()
}

/// Time for which an OST counts as reachable after a reply: the condition is the passing of this time itself.
const JUST_NOW: Duration = Duration::from_millis(200);

/// A file on an OST that is being written, through two mounts.
struct Written {
    writer: fs::File,
    there: PathBuf,
}

impl Written {
    /// Verifies that, once the OST is back, the size is right and the writer continues.
    fn goes_on(self) {
        let size = || fs::metadata(&self.there).expect("stat").len();
        wait::until(LIMIT, "the size is the true one again", || (size() == 4).then_some(()));
        self.writer.write_all_at(b"more", 4).and_then(|()| self.writer.sync_all()).expect("write");
        assert_eq!(size(), 8);
    }
}

/// Checks the time right after `leave` makes an OST unreachable: files without data are written to other
/// OSTs, and listings complete although a file on the OST is being written.
fn right_after(cluster: &Cluster, mounts: [&Path; 2], gone: &str, leave: impl FnOnce()) -> Written {
    let on_it = |mount: &Path, mdt: usize, name: &str| {
        let path = mount.join(format!("d/{mdt}/{name}{gone}"));
        lfs(cluster, &["setstripe", "-c", "1", "-i", gone, text(&path)]);
        path
    };
    let path = on_it(mounts[0], 0, "written");
    let writer = OpenOptions::new().write(true).open(&path).expect("open");
    writer.write_all_at(b"data", 0).and_then(|()| writer.sync_all()).expect("write");
    let there = mounts[1].join(path.strip_prefix(mounts[0]).expect("below"));
    let given = [on_it(mounts[0], 0, "given"), on_it(mounts[1], 1, "given")];
    let create = |number: usize| {
        let path = mounts[number % 2].join(format!("d/{}/new{gone}-{number}", number / 2 % 2));
        (fs::File::create(&path).expect("open"), path)
    };
    let files: Vec<_> = (0..12).map(create).collect();
    let paths: Vec<PathBuf> = given.iter().chain(files.iter().map(|(_, path)| path)).cloned().collect();
    leave();
    std::thread::sleep(JUST_NOW);
    let begin = Instant::now();
    wait::deadline(LIMIT, "files without data are written", move || {
        files.iter().for_each(|(file, _)| file.write_all_at(b"data", 0).expect("write"));
        files.iter().for_each(|(file, _)| file.sync_all().expect("fsync"));
        given.iter().for_each(|path| fs::write(path, "data").expect("write"));
    });
    println!("writes: {:?}", begin.elapsed());
    for path in paths {
        assert_ne!(lfs(cluster, &["getstripe", "-i", text(&path)]), gone, "{}", path.display());
    }
    for mount in mounts {
        let begin = Instant::now();
        let listed = program::run("ls", ["-l", text(&mount.join("d/0"))]).success().stdout;
        println!("ls: {:?}", begin.elapsed());
        assert!(begin.elapsed() < LIMIT / 2, "it does not wait for the OST");
        assert!(listed.contains(&format!("written{gone}")), "{listed}");
    }
    Written { writer, there }
}

/// New files avoid an OST that is dead or hangs, whatever precreated ids the MDTs have, and use it when it
/// answers again.
#[test]
fn new_files_are_not_given_to_an_ost_that_does_not_answer() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let fsname = "inaway".to_owned();
    let options = Options { mdts: 2, osts: 3, listen: true, fsname, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    cluster.set_default(&["-c", "1"]);
    let other = cluster.add_mount();
    let (first, mut round) = (cluster.mount().to_owned(), 0);
    let root = cluster.directory("d");
    for mdt in ["0", "1"] {
        lfs(&cluster, &["mkdir", "-i", mdt, text(&root.join(mdt))]);
        // The other MDT learns the root's default up to a second later.
        lfs(&cluster, &["setstripe", "-c", "1", text(&root.join(mdt))]);
    }
    let of = |all: &[String], index: &str| all.iter().any(|found| found == index);
    let mut until_used = |cluster: &Cluster, index: &str, used: bool| {
        wait::until(LIMIT, "the MDTs know it", || {
            (of(&given(cluster, &mut round), index) == used).then_some(())
        });
    };
    until_used(&cluster, "1", true);
    new_files(&cluster, [&first, &other], "before");
    let written = right_after(&cluster, [&first, &other], "1", || cluster.kill("ost0001"));
    until_used(&cluster, "1", false);
    let begin = Instant::now();
    assert!(!of(&new_files(&cluster, [&first, &other], "dead"), "1"));
    let refused = cluster.lfs(&["setstripe", "-o", "1,2", text(&root.join("0/exact"))]);
    assert!(refused.code() != 0 && refused.stderr.contains("inactive OST"), "{refused:?}");
    let undrained = cluster.nacre(&["rebalance", text(&first), "--drain", "1"]);
    assert!(undrained.code() != 0 && undrained.stderr.contains("OST0001 does not answer"), "{undrained:?}");
    assert!(lfs(&cluster, &["df", "-v", text(&first)]).contains("OST0001             : inactive device"));
    assert!(begin.elapsed() < LIMIT / 2, "{:?}", begin.elapsed());
    let status = cluster.nacre(&["status", text(cluster.data())]).fails_with(1).stdout;
    assert!(status.contains("ost0001   does not run"), "{status}");
    let status = cluster.nacre(&["status", text(&other)]).stdout;
    assert!(status.contains("waits for OST0001: see 'lfs check all"), "{status}");
    cluster.start_all();
    until_used(&cluster, "1", true);
    written.goes_on();
    let hung = cluster.pid("ost0002");
    let stop = || cluster.signal(hung, Signal::STOP);
    let written = right_after(&cluster, [&first, &other], "2", stop);
    until_used(&cluster, "2", false);
    assert!(!of(&new_files(&cluster, [&first, &other], "hung"), "2"));
    cluster.signal(hung, Signal::CONT);
    until_used(&cluster, "2", true);
    written.goes_on();
    new_files(&cluster, [&first, &other], "after");
    cluster.stop_and_check();
}
