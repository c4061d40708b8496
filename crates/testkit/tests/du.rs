//! `nacre du` on real mounts, compared with a walk.

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::{self, Outcome};
use nacre_testkit::{Cluster, Shape, binary, on_every_shape, text, wait};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
const USER: u32 = 4321;

/// Sums below a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sums {
    files: u64,
    directories: u64,
    others: u64,
    size: u64,
    space: u64,
}

/// Returns what a walk finds below a directory; a file counts once.
fn walked(directory: &Path) -> Sums {
    fn walk(directory: &Path, seen: &mut BTreeSet<u64>, sums: &mut Sums) {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("there");
            if meta.is_dir() {
                sums.directories += 1;
                walk(&path, seen, sums);
            } else if seen.insert(meta.ino()) {
                sums.space += meta.blocks() * 512;
                match meta.is_file() {
                    true => (sums.files, sums.size) = (sums.files + 1, sums.size + meta.size()),
                    false => sums.others += 1,
                }
            }
        }
    }
    let mut sums = Sums::default();
    walk(directory, &mut BTreeSet::new(), &mut sums);
    sums
}

/// Returns what the command prints, and whether it is complete.
fn shown(cluster: &Cluster, directory: &Path) -> (Sums, bool) {
    let outcome = cluster.nacre(&["du", "--json", text(directory)]).success();
    let json: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let number = |key: &str| json[key].as_u64().unwrap_or_else(|| panic!("{key} in {json}"));
    assert_eq!(json["directory"], text(directory));
    let sums = Sums {
        files: number("files"),
        directories: number("directories"),
        others: number("others"),
        size: number("size"),
        space: number("space"),
    };
    (sums, json["is_complete"] == true)
}

/// Waits until the command shows what a walk finds: closes of files are on their way for a moment, and file systems
/// below a target may add blocks of their own to the space of an object after its close.
fn agrees(cluster: &Cluster, directory: &Path) -> Sums {
    let is_same = || {
        let ((found, is_complete), expected) = (shown(cluster, directory), walked(directory));
        let is_about = found.space.abs_diff(expected.space) <= (64 << 10) * expected.files.min(64);
        (is_complete && is_about && Sums { space: expected.space, ..found } == expected).then_some(found)
    };
    wait::within(LIMIT, is_same)
        .unwrap_or_else(|| panic!("{:?} of {:?}", shown(cluster, directory), walked(directory)))
}

/// Makes, writes, links, moves and removes files and directories at random.
fn work(directory: &Path, seed: u64, steps: usize) {
    let mut dice = fastrand::Rng::with_seed(seed);
    let mut dirs: Vec<PathBuf> = vec![directory.to_owned()];
    for _ in 0..steps {
        let (at, to) = (dirs[dice.usize(..dirs.len())].clone(), dirs[dice.usize(..dirs.len())].clone());
        let (path, other) =
            (at.join(format!("n{}", dice.u32(..12))), to.join(format!("n{}", dice.u32(..12))));
        match dice.u32(..10) {
            0 | 1 if fs::create_dir(&path).is_ok() => dirs.push(path),
            2..=4 => drop(fs::write(&path, vec![7; dice.usize(..200_000)])),
            5 => drop(symlink("elsewhere", &path)),
            6 => drop(fs::hard_link(&path, &other)),
            7 => drop(fs::rename(&path, &other)),
            8 => drop(fs::remove_file(&path)),
            9 => drop(fs::remove_dir(&path)),
            _ => {}
        }
        dirs.retain(|dir| dir.is_dir());
    }
}

on_every_shape! {
    fn sums_equal_a_walk_after_random_operations(cluster) {
        let directory = cluster.directory("random");
        for seed in 0..3 {
            work(&directory, seed, 300);
            agrees(cluster, &directory);
        }
        let below = fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry").path());
        for subdirectory in below.filter(|path| path.is_dir() && !path.is_symlink()) {
            // A file with a name elsewhere may count there.
            let (found, expected) = (shown(cluster, &subdirectory).0, walked(&subdirectory));
            assert_eq!(found.directories, expected.directories);
        }
        fs::remove_dir_all(&directory).expect("removed");
        fs::create_dir(&directory).expect("made");
        assert_eq!(agrees(cluster, &directory), Sums::default());
    }

    fn lines_are_for_people_and_errors_name_the_directory(cluster) {
        let directory = cluster.directory("lines");
        fs::create_dir(directory.join("sub")).expect("made");
        fs::write(directory.join("sub/file"), vec![1; 5000]).expect("written");
        agrees(cluster, &directory);
        let words = |options: &[&str]| -> Vec<String> {
            let shown = cluster.nacre(&[&["du"], options, &[text(&directory)]].concat()).success().stdout;
            shown.split_whitespace().map(str::to_owned).collect()
        };
        let plain = words(&[]);
        assert_eq!(plain[1..], ["1", "1", text(&directory)]);
        assert_eq!(words(&["-b"])[0], "5000");
        assert_eq!(words(&["-b", "-h"])[0], "4.9KiB");
        assert!(words(&["--human"])[0].ends_with("iB"));
        // The others are shown although one fails.
        let missing = directory.join("missing");
        let both = cluster.nacre(&["du", text(&missing), text(&directory)]).fails_with(1);
        assert!(both.stderr.contains(text(&missing)) && both.stdout.contains(text(&directory)), "{both:?}");
        let file = cluster.nacre(&["du", text(&directory.join("sub/file"))]).fails_with(1);
        assert!(file.stderr.contains("sub/file is not a directory"), "{}", file.stderr);
        let elsewhere = cluster.nacre(&["du", text(cluster.data())]).fails_with(1);
        assert!(elsewhere.stderr.contains("is not on a mounted NacreFS"), "{}", elsewhere.stderr);
    }

    fn a_directory_that_its_caller_may_not_read_is_refused(cluster) {
        let directory = cluster.directory("private");
        fs::create_dir_all(directory.join("below/deeper")).expect("made");
        let as_user = |path: &Path| -> Outcome {
            let mut command = Command::new(binary::nacre());
            command.args(["du", text(path)]).uid(USER).gid(USER);
            program::run_command(command, LIMIT)
        };
        let mode = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).expect("mode");
        for closed in [0o700, 0o744, 0o711] {
            mode(closed);
            let refused = as_user(&directory).fails_with(1);
            assert!(refused.stderr.contains("Permission denied"), "{closed:o}: {}", refused.stderr);
        }
        mode(0o755);
        // What is below need not be readable.
        fs::set_permissions(directory.join("below"), fs::Permissions::from_mode(0o700)).expect("mode");
        let shown = as_user(&directory).success().stdout;
        assert_eq!(shown.split_whitespace().nth(2), Some("2"), "{shown}");
        let member = Identity::user(USER);
        assert!(member.act(|| fs::read_dir(directory.join("below")).is_err()));
        as_user(&directory.join("below")).fails_with(1);
    }
}

/// Alone on its file system: the switch is that of all directories.
#[test]
fn a_count_that_is_switched_off_is_refused_and_begins_again() {
    let options = Options { fsname: "duswitch".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let directory = cluster.directory("switched");
    work(&directory, 9, 100);
    agrees(&cluster, &directory);
    let switch = |on: &str| {
        cluster.lctl(&["set_param", &format!("mdt.duswitch-MDT*.dir_use={on}")]).success();
    };
    switch("0");
    let refused = cluster.nacre(&["du", text(&directory)]).fails_with(1);
    assert!(refused.stderr.contains("dir_use=1"), "{}", refused.stderr);
    work(&directory, 10, 100);
    switch("1");
    agrees(&cluster, &directory);
    cluster.stop_and_check();
}

#[test]
fn sums_over_three_mdts_are_right_after_kills_and_migrations() {
    let options = Options { mdts: 3, osts: 2, fsname: "dusum".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let directory = cluster.directory("several");
    let (striped, there) = (directory.join("striped"), directory.join("there"));
    cluster.lfs(&["mkdir", "-c", "3", text(&striped)]).success();
    cluster.lfs(&["mkdir", "-i", "2", text(&there)]).success();
    cluster.lfs(&["mkdir", "-i", "1", text(&there.join("back"))]).success();
    for number in 0..60 {
        fs::create_dir(striped.join(format!("dir{number}"))).expect("made");
        fs::write(striped.join(format!("dir{number}/file")), vec![1; 100 * number]).expect("written");
        fs::write(striped.join(format!("file{number}")), vec![1; 100]).expect("written");
        fs::write(there.join(format!("back/file{number}")), b"").expect("written");
    }
    work(&there, 3, 200);
    fs::rename(striped.join("dir0"), there.join("back/dir0")).expect("moved");
    fs::rename(striped.join("dir1/file"), there.join("moved")).expect("moved");
    for path in [&directory, &striped, &there] {
        agrees(&cluster, path);
    }
    fs::hard_link(striped.join("file7"), there.join("linked")).expect("linked");
    rustix::fs::sync();
    let before = agrees(&cluster, &directory);
    cluster.kill_all();
    cluster.start_all();
    let after = agrees(&cluster, &directory);
    assert_eq!(Sums { space: before.space, ..after }, before);
    // Directories get other FIDs, and shards.
    cluster.lfs(&["migrate", "-d", "-m", "0", text(&there)]).success();
    cluster.lfs(&["setdirstripe", "-c", "1", text(&striped)]).success();
    let moved = agrees(&cluster, &directory);
    assert_eq!(Sums { space: before.space, ..moved }, before);
    work(&striped, 5, 200);
    agrees(&cluster, &directory);
    drop(File::create(directory.join("last")).expect("made"));
    agrees(&cluster, &directory);
    cluster.stop_and_check();
}
