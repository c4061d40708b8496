//! Directories whose number of shards changes while they are in use: no name is lost, listed twice, or
//! unreachable meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, wait, work_in};
use nacre_testkit::{names_in, text};

/// Time limit for moving names on a busy machine.
const MOVED: Duration = Duration::from_secs(120);

/// Names to keep: one of every 3.
const KEPT: (usize, usize) = (3, usize::MAX);

fn field(cluster: &Cluster, option: &str, dir: &Path) -> String {
    cluster.lfs(&["getdirstripe", option, text(dir)]).success().stdout.trim().to_owned()
}

/// Waits until a directory has `count` shards, and no name is moving.
fn await_shards(cluster: &Cluster, dir: &Path, count: usize) {
    let expected = count.to_string();
    wait::until(MOVED, "the names have moved", || {
        let is_still = !field(cluster, "-H", dir).contains("migrating");
        (is_still && field(cluster, "-c", dir) == expected).then_some(())
    });
}

/// Changes the number of shards of a directory and waits until all names have moved.
fn restripe(cluster: &Cluster, dir: &Path, options: &[&str], count: usize) {
    cluster.lfs(&[&["setdirstripe"], options, &[text(dir)]].concat()).success();
    await_shards(cluster, dir, if count == 1 { 0 } else { count });
}

/// Creates a directory on MDT 0 with files and subdirectories.
fn filled(cluster: &Cluster, parent: &Path, files: usize) -> (PathBuf, BTreeSet<String>) {
    let dir = parent.join("dir");
    cluster.lfs(&["mkdir", "-i", "0", text(&dir)]).success();
    let mut names = BTreeSet::new();
    for number in 0..files {
        let name = format!("file{number}");
        fs::write(dir.join(&name), &name).expect("written");
        names.insert(name);
    }
    for number in 0..5 {
        let name = format!("sub{number}");
        fs::create_dir(dir.join(&name)).expect("made");
        fs::write(dir.join(&name).join("inner"), b"inner").expect("written");
        names.insert(name);
    }
    (dir, names)
}

fn check_all(dir: &Path, names: &BTreeSet<String>) {
    assert_eq!(names_in(dir), *names);
    for name in names {
        let path = dir.join(name);
        match name.starts_with("sub") {
            true => {
                assert_eq!(fs::read(path.join("inner")).expect("read"), b"inner");
                assert_eq!(fs::canonicalize(path.join("..")).expect("there"), dir);
            }
            false => assert_eq!(fs::read_to_string(path).expect("read"), *name),
        }
    }
}

#[test]
fn a_directory_gets_more_and_fewer_shards_another_hash_and_is_whole_again() {
    on_each_shape_with_mdts("resa", 4, |cluster, _| {
        let (dir, names) = filled(cluster, &cluster.directory("change"), 300);
        let inode = fs::metadata(&dir).expect("there").ino();
        let held = fs::File::open(&dir).expect("opened");
        let in_held = |name: &str| format!("/proc/self/fd/{}/{name}", held.as_raw_fd());
        let steps: [(&[&str], usize, &str); 6] = [
            (&["-c", "3"], 3, "crush"),
            (&["-c", "4", "-H", "fnv_1a_64"], 4, "fnv_1a_64"),
            (&["-c", "2", "-H", "crush"], 2, "crush"),
            (&["-c", "2", "-H", "all_char"], 2, "all_char"),
            (&["-C", "6"], 6, "all_char,overstriped"),
            (&["-c", "1"], 1, "none"),
        ];
        for (options, count, hash) in steps {
            restripe(cluster, &dir, options, count);
            assert_eq!(field(cluster, "-H", &dir), hash);
            check_all(&dir, &names);
            fs::write(in_held("new"), b"new").expect("written by the open directory");
            assert_eq!(fs::read(in_held("file7")).expect("read"), b"file7");
            fs::remove_file(dir.join("new")).expect("removed");
            let shown = fs::metadata(&dir).expect("there");
            assert_eq!((shown.ino(), shown.nlink()), (inode, 7), "{options:?}");
        }
        let found = cluster.lfs(&["find", text(&dir), "-type", "f"]).success().stdout;
        assert_eq!(found.lines().count(), 305);
        fs::remove_dir_all(&dir).expect("removed");
    });
}

/// Lists a directory until stopped; each listing must have all names that existed throughout.
fn watch(dir: &Path, names: &BTreeSet<String>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let found = names_in(dir);
        let missing: Vec<&String> = names.difference(&found).collect();
        assert!(missing.is_empty(), "not listed: {missing:?}");
    }
}

#[test]
fn names_are_made_renamed_listed_and_removed_on_two_mounts_while_they_move() {
    on_each_shape_with_mdts("resb", 3, |cluster, _| {
        let (dir, mut names) = filled(cluster, &cluster.directory("busy"), 500);
        // An embedded process has one mount.
        let other = match cluster.shape() {
            Shape::Embedded => dir.clone(),
            _ => cluster.add_mount().join(dir.strip_prefix(cluster.mount()).expect("below the mount")),
        };
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let kept = names.clone();
        std::thread::scope(|scope| {
            let workers: Vec<_> = [&dir, &other]
                .into_iter()
                .enumerate()
                .map(|(worker, dir)| {
                    let (stop, done) = (&stop, &done);
                    scope.spawn(move || work_in(dir, worker, KEPT, stop, done))
                })
                .collect();
            let watchers = [&dir, &other].map(|dir| scope.spawn(|| watch(dir, &kept, &stop)));
            for (options, count) in [
                (&["-c", "3"][..], 3),
                (&["-c", "2"], 2),
                (&["-c", "3", "-H", "fnv_1a_64"], 3),
                (&["-c", "1"], 1),
            ] {
                restripe(cluster, &dir, options, count);
                let before = done.load(Ordering::Relaxed);
                wait::until(wait::SOON, "work has gone on", || {
                    (done.load(Ordering::Relaxed) > before + 5).then_some(())
                });
            }
            stop.store(true, Ordering::Relaxed);
            for worker in workers {
                names.extend(worker.join().expect("the work was done"));
            }
            watchers.into_iter().for_each(|watcher| watcher.join().expect("all was listed"));
        });
        assert_eq!((names_in(&dir), names_in(&other)), (names.clone(), names));
    });
}

#[test]
fn names_go_on_moving_when_mdts_are_killed() {
    let options = Options { mdts: 3, osts: 1, fsname: "rese".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let (dir, mut names) = filled(&cluster, &cluster.directory("killed"), 3000);
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work_in(&dir, 0, KEPT, &stop, &done));
        for (count, role) in [("3", "mdt0000"), ("2", "mdt0001"), ("3", "mdt0002"), ("1", "mdt0001")] {
            cluster.lfs(&["setdirstripe", "-c", count, text(&dir)]).success();
            cluster.kill(role);
            cluster.start_all();
            let before = done.load(Ordering::Relaxed);
            wait::until(MOVED, "the killed MDT is back", || {
                (done.load(Ordering::Relaxed) > before + 5).then_some(())
            });
            await_shards(&cluster, &dir, if count == "1" { 0 } else { count.parse().expect("a number") });
        }
        stop.store(true, Ordering::Relaxed);
        names.extend(worker.join().expect("the work was done"));
    });
    assert_eq!(names_in(&dir), names);
    cluster.stop_and_check();
}

#[test]
fn a_directory_that_grows_is_split_by_itself_unless_it_is_turned_off() {
    on_each_shape_with_mdts("resc", 3, |cluster, fsname| {
        let top = cluster.directory("grown");
        let set = |name: &str, value: &str| {
            cluster.lctl(&["set_param", &format!("mdt.{fsname}-MDT*.{name}={value}")]).success();
        };
        let get = |name: &str| {
            cluster.lctl(&["get_param", "-n", &format!("mdt.{fsname}-MDT0000.{name}")]).success().stdout
        };
        assert_eq!(["enable_dir_restripe", "enable_dir_auto_split"].map(&get), ["1\n", "1\n"]);
        assert_eq!(["dir_split_count", "dir_split_delta"].map(&get), ["50000\n", "4\n"]);
        set("dir_split_count", "200");
        set("enable_dir_auto_split", "0");
        let fill = |name: &str, from: usize, to: usize| {
            let dir = top.join(name);
            if from == 0 {
                cluster.lfs(&["mkdir", "-i", "1", text(&dir)]).success();
            }
            (from..to).for_each(|number| fs::write(dir.join(format!("n{number}")), b"").expect("written"));
            dir
        };
        let dir = fill("off", 0, 400);
        assert_eq!(field(cluster, "-c", &dir), "0");
        set("enable_dir_auto_split", "1");
        set("dir_split_delta", "1");
        // The names in each shard after the first split are below the threshold of the next one.
        let dir = fill("on", 0, 300);
        await_shards(cluster, &dir, 2);
        let dir = fill("on", 300, 1000);
        await_shards(cluster, &dir, 3);
        assert_eq!(names_in(&dir).len(), 1000);
        assert_eq!(field(cluster, "-m", &dir), "1", "it stays where it is");
    });
}

#[test]
fn changes_that_may_not_be_are_refused() {
    on_each_shape_with_mdts("resd", 2, |cluster, fsname| {
        let (dir, names) = filled(cluster, &cluster.directory("refused"), 20);
        let refused = |options: &[&str], path: &Path, errno: i32, reason: &str| {
            let outcome =
                cluster.lfs(&[&["setdirstripe"], options, &[text(path)]].concat()).fails_with(errno);
            assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
        };
        refused(&["-c", "1"], &dir, libc::EEXIST, "already set");
        refused(&["-c", "2", "-i", "7,8"], &dir, libc::EINVAL, "Invalid argument");
        refused(&["-c", "2"], &dir.join("file1"), libc::EEXIST, "File exists");
        restripe(cluster, &dir, &["-c", "2"], 2);
        refused(&["-c", "2"], &dir, libc::EEXIST, "already set");
        // Without a count the command requests no change.
        refused(&["-i", "1"], &dir, libc::EEXIST, "File exists");
        let user = Identity::user(4321);
        let nacre = cluster.command();
        let denied = user.act(|| {
            let mut command = Command::new(nacre.get_program());
            command.args(["lfs", "setdirstripe", "-c", "1", text(&dir)]);
            command.output().expect("runs").status.code()
        });
        assert_eq!(denied, Some(libc::EPERM));
        cluster.lctl(&["set_param", &format!("mdt.{fsname}-MDT*.enable_dir_restripe=0")]).success();
        refused(&["-c", "1"], &dir, libc::EPERM, "Operation not permitted");
        check_all(&dir, &names);
    });
}
