//! Striped directories, whose names are in shards on several metadata targets: to programs they are like any
//! other.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, program, wait};
use nacre_testkit::{names_in, text};

/// Creates a directory with a shard on each MDT, its master on MDT 0.
fn striped(cluster: &Cluster, parent: &Path, name: &str) -> PathBuf {
    let path = parent.join(name);
    cluster.lfs(&["mkdir", "-c", "-1", "-i", "0", text(&path)]).success();
    path
}

fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.expect_err("it fails").raw_os_error().expect("from the system")
}

fn links(path: &Path) -> u64 {
    fs::metadata(path).expect("there").nlink()
}

/// Returns the MDTs of the inodes in a directory.
fn mdts_in(cluster: &Cluster, dir: &Path) -> BTreeSet<String> {
    let mdt = |name: String| {
        cluster.lfs(&["getstripe", "-m", "-d", text(&dir.join(name))]).success().stdout.trim().to_owned()
    };
    names_in(dir).into_iter().map(mdt).collect()
}

#[test]
fn names_are_spread_over_all_mdts_and_the_directory_is_one() {
    on_each_shape_with_mdts("stra", 3, |cluster, _| {
        let top = cluster.directory("one");
        let dir = striped(cluster, &top, "dir");
        assert_eq!((names_in(&dir).len(), links(&dir)), (0, 2));
        let expected: BTreeSet<String> = (0..300).map(|number| format!("file{number}")).collect();
        for name in &expected {
            fs::write(dir.join(name), name).expect("written");
        }
        assert_eq!(names_in(&dir), expected);
        assert_eq!(mdts_in(cluster, &dir).len(), 3, "each MDT has files");
        for name in &expected {
            assert_eq!(fs::read_to_string(dir.join(name)).expect("read"), *name);
        }
        for number in 0..12 {
            fs::create_dir(dir.join(format!("sub{number}"))).expect("made");
        }
        assert_eq!((links(&dir), links(&top)), (14, 3));
        for entry in fs::read_dir(&top).expect("listed").chain(fs::read_dir(&dir).expect("listed")) {
            let entry = entry.expect("an entry");
            let expected = match entry.file_name().to_str() {
                Some("dir") => 14,
                Some(name) if name.starts_with("sub") => 2,
                _ => 1,
            };
            assert_eq!(entry.metadata().expect("there").nlink(), expected, "{:?}", entry.file_name());
        }
        assert_eq!(fs::canonicalize(dir.join("sub3/..")).expect("there"), dir);
        assert_eq!(error_of(fs::remove_dir(&dir)), libc::ENOTEMPTY);
        let found = cluster.lfs(&["find", text(&dir), "-type", "f"]).success().stdout;
        assert_eq!(found.lines().count(), 300);
        let found = cluster.lfs(&["find", text(&top), "-type", "d"]).success().stdout;
        assert_eq!(found.lines().count(), 14);
        let fid = cluster.lfs(&["path2fid", text(&dir.join("file7"))]).success().stdout;
        let path = cluster.lfs(&["fid2path", text(cluster.mount()), fid.trim()]).success().stdout;
        assert!(path.trim().ends_with("one/dir/file7"), "{path}");
        cluster.lfs(&["rmfid", text(cluster.mount()), fid.trim()]).success();
        assert!(!names_in(&dir).contains("file7"));
        fs::remove_dir_all(&dir).expect("removed");
        assert_eq!((links(&top), names_in(&top).len()), (2, 0));
    });
}

#[test]
fn names_move_and_are_linked_in_between_and_out_of_shards() {
    on_each_shape_with_mdts("strb", 3, |cluster, _| {
        let top = cluster.directory("moves");
        let (dir, plain) = (striped(cluster, &top, "dir"), top.join("plain"));
        fs::create_dir(&plain).expect("made");
        fs::write(dir.join("n0"), b"content").expect("written");
        let inode = fs::metadata(dir.join("n0")).expect("there").ino();
        // Names of all shards, so that every pair of MDTs occurs.
        for number in 0..20 {
            let (from, to) = (dir.join(format!("n{number}")), dir.join(format!("n{}", number + 1)));
            fs::rename(&from, &to).expect("moved");
            assert_eq!(error_of(fs::metadata(&from)), libc::ENOENT);
            assert_eq!(fs::metadata(&to).expect("there").ino(), inode);
            fs::hard_link(&to, dir.join(format!("l{number}"))).expect("linked");
        }
        assert_eq!(fs::metadata(dir.join("n20")).expect("there").nlink(), 21);
        fs::rename(dir.join("n20"), plain.join("out")).expect("moved");
        fs::rename(plain.join("out"), dir.join("back")).expect("moved");
        assert_eq!(fs::read(dir.join("back")).expect("read"), b"content");
        for number in 0..6 {
            let (from, to) = (format!("a{number}"), format!("b{number}"));
            fs::create_dir_all(dir.join(&from).join("inner")).expect("made");
            fs::rename(dir.join(&from), dir.join(&to)).expect("moved");
            assert_eq!(fs::canonicalize(dir.join(&to).join("inner/../..")).expect("there"), dir);
            assert_eq!(error_of(fs::rename(&dir, dir.join(&to).join("in"))), libc::EINVAL);
        }
        assert_eq!(links(&dir), 8);
        fs::rename(dir.join("b0"), plain.join("b0")).expect("moved");
        assert_eq!((links(&dir), links(&plain)), (7, 3));
        assert_eq!(fs::canonicalize(plain.join("b0/..")).expect("there"), plain);
        // The directory itself can be renamed with its entries, and replaces another one only if that is
        // empty.
        let target = striped(cluster, &top, "target");
        fs::write(target.join("x"), b"").expect("written");
        assert_eq!(error_of(fs::rename(&dir, &target)), libc::ENOTEMPTY);
        fs::remove_file(target.join("x")).expect("removed");
        fs::rename(&dir, &target).expect("moved");
        assert_eq!(fs::read(target.join("back")).expect("read"), b"content");
        assert_eq!(error_of(fs::metadata(&dir)), libc::ENOENT);
    });
}

#[test]
fn owner_rights_times_and_defaults_hold_in_every_shard() {
    on_each_shape_with_mdts("strc", 3, |cluster, _| {
        let top = cluster.directory("rights");
        fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).expect("opened");
        let dir = striped(cluster, &top, "dir");
        let names: Vec<PathBuf> = (0..12).map(|number| dir.join(format!("n{number}"))).collect();
        let user = Identity::user(12345);
        for name in &names {
            assert_eq!(error_of(user.act(|| fs::write(name, b""))), libc::EACCES);
        }
        std::os::unix::fs::chown(&dir, Some(12345), Some(54321)).expect("given away");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o2700)).expect("closed");
        for name in &names {
            user.act(|| fs::write(name, b"mine")).expect("written");
            assert_eq!(fs::metadata(name).expect("there").gid(), 54321, "the group of the directory");
            assert_eq!(error_of(Identity::user(777).act(|| fs::metadata(name))), libc::EACCES);
        }
        let shown = fs::metadata(&dir).expect("there");
        assert_eq!((shown.uid(), shown.gid(), shown.mode() & 0o7777), (12345, 54321, 0o2700));

        let mut command = std::process::Command::new("setfacl");
        command.args(["-d", "-m", "u:777:rwx", text(&dir)]);
        program::run_command(command, program::LIMIT).success();
        let mut command = std::process::Command::new("setfacl");
        command.args(["-m", "u:777:rx", text(&dir)]);
        program::run_command(command, program::LIMIT).success();
        cluster.lfs(&["setstripe", "-S", "2M", "-c", "1", text(&dir)]).success();
        for (number, old) in names.iter().enumerate() {
            let name = dir.join(format!("later{number}"));
            fs::write(&name, b"data").expect("written");
            assert_eq!(Identity::user(777).act(|| fs::read(&name)).expect("read"), b"data");
            let size = cluster.lfs(&["getstripe", "-S", text(&name)]).success().stdout;
            assert_eq!(size.trim(), "2097152");
            fs::remove_file(old).expect("removed");
        }
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let opened = fs::File::open(&dir).expect("opened");
        opened.set_times(fs::FileTimes::new().set_modified(long_ago).set_accessed(long_ago)).expect("set");
        assert_eq!(fs::metadata(&dir).expect("there").modified().expect("a time"), long_ago);
        fs::write(dir.join("newest"), b"").expect("written");
        assert!(fs::metadata(&dir).expect("there").modified().expect("a time") > long_ago);
    });
}

#[test]
fn a_change_of_rights_or_defaults_leaves_the_times_of_the_last_change_of_names() {
    on_each_shape_with_mdts("strt", 3, |cluster, _| {
        let dir = striped(cluster, &cluster.directory("times"), "dir");
        let modified = || fs::metadata(&dir).expect("there").modified().expect("a time");
        let made = modified();
        for number in 0..12 {
            fs::write(dir.join(format!("n{number}")), b"").expect("written");
        }
        let last = modified();
        assert!(last > made);
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o711)).expect("chmod");
        assert_eq!(modified(), last, "chmod");
        std::os::unix::fs::chown(&dir, Some(12345), None).expect("chown");
        assert_eq!(modified(), last, "chown");
        let mut command = std::process::Command::new("setfacl");
        command.args(["-m", "u:777:rx", text(&dir)]);
        program::run_command(command, program::LIMIT).success();
        assert_eq!(modified(), last, "an ACL");
        cluster.lfs(&["setstripe", "-c", "1", text(&dir)]).success();
        assert_eq!(modified(), last, "a layout");
        cluster.lfs(&["setdirstripe", "-D", "-c", "1", text(&dir)]).success();
        assert_eq!(modified(), last, "a default");
    });
}

#[test]
fn another_mount_sees_names_and_counts_at_once() {
    on_each_shape_with_mdts("strd", 2, |cluster, _| {
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let top = cluster.directory("seen");
        let dir = striped(cluster, &top, "dir");
        let other = cluster.add_mount();
        let of_other = |path: &Path| other.join(path.strip_prefix(cluster.mount()).expect("below the mount"));
        for round in 0..40 {
            let (file, sub) = (dir.join(format!("f{round}")), dir.join(format!("d{round}")));
            assert_eq!(error_of(fs::metadata(of_other(&file))), libc::ENOENT);
            fs::write(&file, round.to_string()).expect("written");
            assert_eq!(fs::read_to_string(of_other(&file)).expect("read"), round.to_string());
            fs::create_dir(of_other(&sub)).expect("made");
            assert_eq!((links(&dir), links(&of_other(&dir))), (3 + round, 3 + round));
            let moved = dir.join(format!("m{round}"));
            fs::rename(of_other(&file), of_other(&moved)).expect("moved");
            assert_eq!(error_of(fs::metadata(&file)), libc::ENOENT);
            assert_eq!(fs::read_to_string(&moved).expect("read"), round.to_string());
            assert_eq!(names_in(&dir), names_in(&of_other(&dir)));
        }
        fs::set_permissions(of_other(&dir), fs::Permissions::from_mode(0o700)).expect("closed");
        let user = Identity::user(12345);
        assert_eq!(error_of(user.act(|| fs::metadata(dir.join("m3")))), libc::EACCES);
        fs::remove_dir_all(of_other(&dir)).expect("removed");
        assert_eq!(error_of(fs::metadata(&dir)), libc::ENOENT);
        // A new directory of that name is not mistaken for the old one.
        let again = striped(cluster, &top, "dir");
        assert_eq!(names_in(&of_other(&again)).len(), 0);
        fs::write(of_other(&again).join("x"), b"x").expect("written");
        assert_eq!(fs::read(again.join("x")).expect("read"), b"x");
    });
}

#[test]
fn a_listing_shows_each_name_that_stays_once_while_others_come_and_go() {
    on_each_shape_with_mdts("stre", 3, |cluster, _| {
        let top = cluster.directory("listed");
        let dir = striped(cluster, &top, "dir");
        let staying: BTreeSet<String> = (0..2000).map(|number| format!("stays{number}")).collect();
        for name in &staying {
            fs::write(dir.join(name), b"").expect("written");
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let path = dir.join(format!("goes{}", number % 50));
                    fs::write(&path, b"").expect("written");
                    fs::remove_file(&path).expect("removed");
                }
            });
            for _ in 0..10 {
                let found = names_in(&dir);
                let stayed: BTreeSet<String> =
                    found.into_iter().filter(|name| name.starts_with("stays")).collect();
                assert_eq!(stayed, staying);
            }
            stop.store(true, Ordering::Relaxed);
        });
        // All mounts list in the same order.
        let order = || {
            let entries = fs::read_dir(&dir).expect("listed");
            entries.map(|entry| entry.expect("an entry").file_name()).collect::<Vec<_>>()
        };
        assert_eq!(order(), order());
    });
}

/// Creates and removes files until stopped; returns the numbers of those that are left.
fn make_and_remove(dir: &Path, worker: usize, stop: &AtomicBool, done: &AtomicUsize) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("w{worker}-{number}");
        fs::write(dir.join(&name), name.as_bytes()).expect("written, when all servers are there again");
        if number % 3 == 0 {
            fs::remove_file(dir.join(&name)).expect("removed");
        } else {
            left.insert(name);
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    left
}

#[test]
fn files_of_a_directory_whose_mdts_are_killed_are_all_there() {
    let options = Options { mdts: 3, osts: 2, fsname: "strf".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let top = cluster.directory("killed");
    let dir = striped(&cluster, &top, "dir");
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let expected: BTreeSet<String> = std::thread::scope(|scope| {
        let worker = |worker| {
            let (dir, stop, done) = (&dir, &stop, &done);
            scope.spawn(move || make_and_remove(dir, worker, stop, done))
        };
        let workers: Vec<_> = (0..4).map(worker).collect();
        let go_on = || {
            let before = done.load(Ordering::Relaxed);
            wait::until(wait::SOON, "files are made", || {
                (done.load(Ordering::Relaxed) > before + 50).then_some(())
            });
        };
        for role in ["mdt0001", "mdt0000", "mdt0002"] {
            go_on();
            cluster.kill(role);
            cluster.start_all();
        }
        go_on();
        stop.store(true, Ordering::Relaxed);
        workers.into_iter().flat_map(|worker| worker.join().expect("ran")).collect()
    });
    assert_eq!(names_in(&dir), expected);
    for name in &expected {
        assert_eq!(fs::read_to_string(dir.join(name)).expect("read"), *name);
    }
    cluster.stop_and_check();
}

#[test]
fn an_mdt_that_is_away_holds_up_its_own_names_alone() {
    let options = Options { mdts: 2, osts: 1, fsname: "strg".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let top = cluster.mount().join("away");
    cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
    let dir = striped(&cluster, &top, "dir");
    for number in 0..20 {
        fs::write(dir.join(format!("f{number}")), b"x").expect("written");
    }
    let mdt_of = |name: &str| {
        cluster.lfs(&["getstripe", "-m", "-d", text(&dir.join(name))]).success().stdout.trim().to_owned()
    };
    let names: Vec<String> = (0..20).map(|number| format!("f{number}")).collect();
    let (here, there): (Vec<String>, Vec<String>) = names.into_iter().partition(|name| mdt_of(name) == "0");
    assert!(!here.is_empty() && !there.is_empty());
    cluster.kill("mdt0001");
    for name in &here {
        fs::rename(dir.join(name), dir.join(name)).expect("nothing to do");
        fs::write(dir.join(name), b"changed").expect("written");
    }
    let waiting = dir.join(&there[0]);
    let read = std::thread::spawn(move || fs::read(waiting));
    cluster.start_all();
    assert_eq!(read.join().expect("ran").expect("read"), b"x");
    cluster.stop_and_check();
}

#[test]
fn what_cannot_be_spread_is_refused_and_nothing_is_made() {
    on_each_shape_with_mdts("strh", 2, |cluster, fsname| {
        let top = cluster.directory("refused");
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("opened");
        let path = &top.join("dir");
        let user = Identity::user(12345);
        let as_user = || {
            let mut command = cluster.command();
            command.args(["lfs", "mkdir", "-c", "2", text(path)]);
            user.act(|| program::run_command(command, program::LIMIT))
        };
        as_user().fails_with(libc::EPERM);
        assert!(!path.exists());
        for mdt in 0..2 {
            let parameter = format!("mdt.{fsname}-MDT000{mdt}.enable_remote_dir_gid=-1");
            cluster.lctl(&["set_param", &parameter]).success();
        }
        as_user().success();
        assert_eq!(fs::metadata(path).expect("there").uid(), 12345);
        cluster.lfs(&["mkdir", "-c", "2", text(path)]).fails_with(libc::EEXIST);
        fs::remove_dir(path).expect("removed");
        // More shards than MDTs: it gets one on each.
        cluster.lfs(&["mkdir", "-c", "9", text(path)]).success();
        fs::write(path.join("x"), b"").expect("written");
        fs::remove_dir_all(path).expect("removed");
    });
}

#[test]
fn data_moves_of_files_that_lie_on_another_mdt_than_their_directory() {
    on_each_shape_with_mdts("stri", 3, |cluster, _| {
        let top = cluster.directory("data");
        let (dir, plain) = (striped(cluster, &top, "dir"), top.join("plain"));
        cluster.lfs(&["mkdir", "-i", "0", text(&plain)]).success();
        let mut paths: Vec<PathBuf> = (0..24).map(|number| dir.join(format!("f{number}"))).collect();
        for path in &paths {
            fs::write(path, text(path)).expect("written");
        }
        // Renames in whole directories too: a file stays on its MDT when its name moves.
        for path in paths.iter_mut().skip(18) {
            let moved = plain.join(path.file_name().expect("a name"));
            fs::rename(&*path, &moved).expect("moved");
            *path = moved;
        }
        assert_eq!(mdts_in(cluster, &dir).len(), 3, "each MDT has files");
        for (number, path) in paths.iter().enumerate() {
            let inode = fs::metadata(path).expect("there").ino();
            cluster.lfs(&["migrate", "-S", "2M", "-c", "2", text(path)]).success();
            assert_eq!(cluster.lfs(&["getstripe", "-c", text(path)]).success().stdout.trim(), "2");
            assert_eq!(fs::read_to_string(path).expect("read"), text(&dir.join(format!("f{number}"))));
            assert_eq!(fs::metadata(path).expect("there").ino(), inode);
        }
    });
}

#[test]
fn a_file_without_a_name_gets_one_in_any_shard() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::OpenOptionsExt;
    on_each_shape_with_mdts("strj", 3, |cluster, _| {
        let top = cluster.directory("unnamed");
        let dir = striped(cluster, &top, "dir");
        for number in 0..10 {
            let mut options = fs::OpenOptions::new();
            let mut file = options.write(true).custom_flags(libc::O_TMPFILE).open(&dir).expect("opened");
            file.write_all(b"content").expect("written");
            let path = dir.join(format!("n{number}"));
            let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let flags = rustix::fs::AtFlags::SYMLINK_FOLLOW;
            rustix::fs::linkat(rustix::fs::CWD, &link, rustix::fs::CWD, &path, flags).expect("named");
            drop(file);
            assert_eq!(fs::read(&path).expect("read"), b"content");
            assert_eq!(links(&path), 1);
        }
        assert_eq!(names_in(&dir).len(), 10);
    });
}

#[test]
fn a_listing_that_begins_again_shows_what_was_made_meanwhile() {
    on_each_shape_with_mdts("strk", 3, |cluster, _| {
        let top = cluster.directory("again");
        let dir = striped(cluster, &top, "dir");
        for number in 0..30 {
            fs::write(dir.join(format!("f{number}")), b"").expect("written");
        }
        let opened = fs::File::open(&dir).expect("opened");
        let mut listing = rustix::fs::Dir::read_from(&opened).expect("listed");
        for round in 0..3 {
            listing.read().expect("an entry").expect("read");
            fs::write(dir.join(format!("new{round}")), b"").expect("written");
            fs::remove_file(dir.join(format!("f{round}"))).expect("removed");
            listing.rewind();
            let names = listing.by_ref().map(|entry| entry.expect("read").file_name().to_owned());
            let names: BTreeSet<String> = names.map(|name| name.into_string().expect("plain")).collect();
            assert!(names.contains(&format!("new{round}")), "{names:?}");
            assert!(!names.contains(&format!("f{round}")), "{names:?}");
            assert_eq!(names.len(), 32, "{names:?}");
            listing.rewind();
        }
    });
}
