//! Quotas on real mounts: what users see of their use, and where it ends.

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::{self, Outcome};
use nacre_testkit::{Cluster, Shape, binary, errno, on_every_shape, text, wait};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const MIB: u64 = 1 << 20;
/// A user, and its group.
const USER: u32 = 4321;
const OTHER: u32 = 4322;

/// Use and limits as `lfs quota -q` shows them: KiB and inodes.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    kib: u64,
    block_limit: u64,
    files: u64,
    file_limit: u64,
}

fn number(word: &str) -> u64 {
    let digits = word.trim_matches(|other: char| !other.is_ascii_digit());
    digits.parse().unwrap_or_else(|_| panic!("a number: {word}"))
}

fn quota_of(cluster: &Cluster, kind: &str, id: u32) -> Shown {
    quota_with(cluster, &[kind, &id.to_string()])
}

fn quota_with(cluster: &Cluster, options: &[&str]) -> Shown {
    let mount = text(cluster.mount()).to_owned();
    let shown = cluster.lfs(&[&["quota", "-q"], options, &[&mount]].concat()).success().stdout;
    let words: Vec<&str> = shown.split_whitespace().collect();
    assert_eq!(words.len(), 9, "{shown}");
    Shown {
        kib: number(words[1]),
        block_limit: number(words[3]),
        files: number(words[5]),
        file_limit: number(words[7]),
    }
}

fn set(cluster: &Cluster, options: &[&str]) -> Outcome {
    cluster.lfs(&[&["setquota"], options, &[text(cluster.mount())]].concat())
}

/// Makes a directory that everybody may write to.
fn shared(cluster: &Cluster, name: &str) -> PathBuf {
    let directory = cluster.directory(name);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("permissions");
    directory
}

/// Writes to a file until it has `bytes`; returns how far it came, and the error that ended it.
fn fill(path: &Path, bytes: u64) -> (u64, Option<io::Error>) {
    let data = vec![7; 256 << 10];
    let file = match File::create(path) {
        Ok(file) => file,
        Err(error) => return (0, Some(error)),
    };
    let mut at = 0;
    while at < bytes {
        match file.write_at(&data, at) {
            Ok(written) => at += written as u64,
            Err(error) => return (at, Some(error)),
        }
    }
    (at, file.sync_all().err())
}

/// Whether two spaces in KiB are the same but for blocks that the file system below adds for its own records after a
/// file was closed.
fn is_about(one: u64, other: u64) -> bool {
    one.abs_diff(other) <= 64
}

/// Returns the space of all files below a directory in KiB, and their number with the directories'.
fn measured(directory: &Path) -> (u64, u64) {
    let (mut kib, mut count) = (0, 1);
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let meta = fs::symlink_metadata(&path).expect("there");
        if meta.is_dir() {
            let (more, entries) = measured(&path);
            (kib, count) = (kib + more, count + entries);
        } else {
            (kib, count) = (kib + meta.blocks() / 2, count + 1);
        }
    }
    (kib, count)
}

on_every_shape! {
    fn eight_writers_stop_at_the_limit_of_their_user(cluster) {
        let directory = shared(cluster, "full");
        set(cluster, &["-u", "4321", "-B", "96M"]).success();
        let ends: Vec<(u64, Option<io::Error>)> = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8).map(|number| {
                let path = directory.join(format!("file{number}"));
                scope.spawn(move || Identity::user(USER).act(|| fill(&path, 64 * MIB)))
            }).collect();
            writers.into_iter().map(|writer| writer.join().expect("no panic")).collect()
        });
        for (at, error) in &ends {
            let code = error.as_ref().and_then(io::Error::raw_os_error);
            assert_eq!(code, Some(libc::EDQUOT), "a writer came to {at}: {error:?}");
        }
        let shown = quota_of(cluster, "-u", USER);
        assert_eq!(shown.block_limit, 96 << 10);
        assert!(shown.kib <= (96 + 64) << 10, "{shown:?}");
        assert!(shown.kib >= 88 << 10, "nearly all of the limit is used: {shown:?}");
        // Root and other users are not concerned.
        assert!(fill(&directory.join("roots"), 8 * MIB).1.is_none());
        assert!(Identity::user(OTHER).act(|| fill(&directory.join("others"), 8 * MIB)).1.is_none());
        // An overwrite takes no space.
        let first = directory.join("file0");
        let rewritten = Identity::user(USER).act(|| {
            let file = File::options().write(true).open(&first)?;
            file.write_all_at(&[9; 4096], 0)?;
            file.sync_all()
        });
        assert!(rewritten.is_ok(), "{rewritten:?}");
        (0..8).for_each(|number| fs::remove_file(directory.join(format!("file{number}"))).expect("removed"));
        wait::until(LIMIT, "the space is free again", || (quota_of(cluster, "-u", USER).kib < 1024).then_some(()));
        assert!(Identity::user(USER).act(|| fill(&directory.join("again"), 16 * MIB)).1.is_none());
    }

    fn inodes_stop_at_their_limit(cluster) {
        let directory = shared(cluster, "many");
        set(cluster, &["-g", "4321", "-I", "200"]).success();
        let made = Identity::user(USER).act(|| {
            (0..1000).take_while(|number| File::create(directory.join(format!("file{number}"))).is_ok()).count()
        });
        assert_eq!(made, 200);
        let failed = Identity::user(USER).act(|| errno(File::create(directory.join("more"))));
        assert_eq!(failed, libc::EDQUOT);
        let shown = quota_of(cluster, "-g", USER);
        assert_eq!((shown.files, shown.file_limit), (200, 200));
        fs::remove_file(directory.join("file0")).expect("removed");
        assert!(Identity::user(USER).act(|| File::create(directory.join("more"))).is_ok());
        // A group that is full takes no files of others either.
        let theirs = directory.join("theirs");
        File::create(&theirs).expect("made");
        chown(&theirs, Some(OTHER), Some(OTHER)).expect("changed");
        let member = Identity { gid: OTHER, ..Identity::user(OTHER).with_groups(&[USER]) };
        assert_eq!(member.act(|| errno(chown(&theirs, None, Some(USER)))), libc::EDQUOT);
        chown(&theirs, None, Some(USER)).expect("root may");
    }

    fn use_follows_the_owner_of_a_file(cluster) {
        let directory = shared(cluster, "moved");
        for (number, mib) in [0, 1, 5, 9].into_iter().enumerate() {
            let path = directory.join(format!("file{number}"));
            assert!(fill(&path, mib * MIB).1.is_none());
            fs::write(directory.join(format!("small{number}")), vec![1; 3000]).expect("written");
        }
        let before = (quota_of(cluster, "-u", USER).kib, quota_of(cluster, "-g", OTHER).files);
        assert_eq!(before, (0, 0));
        for entry in fs::read_dir(&directory).expect("a directory") {
            chown(entry.expect("an entry").path(), Some(USER), Some(OTHER)).expect("changed");
        }
        let expected = measured(&directory).0;
        let is_there = || {
            let (user, group) = (quota_of(cluster, "-u", USER), quota_of(cluster, "-g", OTHER));
            let is_right = is_about(user.kib, expected) && is_about(group.kib, expected);
            (is_right && (user.files, group.files) == (8, 8)).then_some(())
        };
        if wait::within(LIMIT, is_there).is_none() {
            panic!("{expected} KiB: {:?} {:?}", quota_of(cluster, "-u", USER), quota_of(cluster, "-g", OTHER));
        }
        // A file that moves to other objects stays with its owners.
        let moved = directory.join("file3");
        cluster.lfs(&["migrate", "-c", "2", text(&moved)]).success();
        wait::until(LIMIT, "the moved file counts once", is_there);
        fs::remove_dir_all(&directory).expect("removed");
        wait::until(LIMIT, "nothing is used", || {
            let user = quota_of(cluster, "-u", USER);
            ((user.kib, user.files) == (0, 0)).then_some(())
        });
    }

    fn a_project_counts_what_is_below_its_directory(cluster) {
        let directory = shared(cluster, "project");
        cluster.lfs(&["project", "-p", "77", "-s", text(&directory)]).success();
        set(cluster, &["-p", "77", "-B", "24M", "-I", "50"]).success();
        let (at, error) = Identity::user(USER).act(|| fill(&directory.join("large"), 64 * MIB));
        assert_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT), "at {at}");
        let shown = quota_of(cluster, "-p", 77);
        assert!(shown.kib >= 16 << 10 && shown.kib <= (24 + 64) << 10, "{shown:?}");
        assert_eq!(shown.files, 2, "the directory and the file");
        let made = Identity::user(USER).act(|| {
            (0..100).take_while(|number| fs::create_dir(directory.join(format!("d{number}"))).is_ok()).count()
        });
        assert_eq!(made, 48);
    }
}

#[test]
fn use_is_the_same_after_servers_were_killed_and_limits_go_on() {
    for (mdt_backend, ost_backend) in [("", ""), ("", "block")] {
        let options = Options {
            mdts: 2,
            osts: 2,
            fsname: "quor".to_owned(),
            ost_backend: if ost_backend.is_empty() { Vec::new() } else { vec![ost_backend.to_owned()] },
            mdt_backend: if mdt_backend.is_empty() { Vec::new() } else { vec![mdt_backend.to_owned()] },
            ..Options::default()
        };
        let mut cluster = Cluster::start_with(Shape::Separate, &options);
        let directory = shared(&cluster, "kept");
        cluster.lfs(&["mkdir", "-i", "1", text(&directory.join("there"))]).success();
        fs::set_permissions(directory.join("there"), fs::Permissions::from_mode(0o777)).expect("permissions");
        set(&cluster, &["-u", "4321", "-B", "64M", "-I", "400"]).success();
        Identity::user(USER).act(|| {
            for number in 0..100 {
                let place = if number % 2 == 0 { &directory } else { &directory.join("there") };
                fs::write(place.join(format!("small{number}")), vec![1; 500 * (number + 1)])
                    .expect("written");
            }
            assert!(fill(&directory.join("large"), 20 * MIB).1.is_none());
        });
        rustix::fs::sync();
        let settled = || {
            let shown = quota_of(&cluster, "-u", USER);
            let expected = measured(&directory).0;
            (is_about(shown.kib, expected) && shown.files == 101).then_some(shown)
        };
        let before = wait::within(LIMIT, settled)
            .unwrap_or_else(|| panic!("{:?} of {:?}", quota_of(&cluster, "-u", USER), measured(&directory)));
        cluster.kill_all();
        cluster.start_all();
        let same = || {
            let now = quota_of(&cluster, "-u", USER);
            (is_about(now.kib, before.kib) && Shown { kib: before.kib, ..now } == before).then_some(())
        };
        if wait::within(LIMIT, same).is_none() {
            panic!("{:?} was {before:?}", quota_of(&cluster, "-u", USER));
        }
        let (at, error) = Identity::user(USER).act(|| fill(&directory.join("more"), 128 * MIB));
        assert_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT), "at {at}");
        let after = quota_of(&cluster, "-u", USER);
        assert!(after.kib <= (64 + 64) << 10, "{after:?}");
        cluster.stop_and_check();
    }
}

#[test]
fn users_see_their_own_use_and_change_nothing() {
    let options = Options { fsname: "quop".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    let mount = cluster.mount().to_owned();
    let as_user = |arguments: &[&str]| {
        let mut command = Command::new(binary::nacre());
        command.arg("lfs").args(arguments).arg(&mount).uid(USER).gid(USER);
        program::run_command(command, LIMIT)
    };
    let own = as_user(&["quota", "-u", "4321"]).success().stdout;
    assert!(own.contains("(uid 4321)"), "{own}");
    as_user(&["quota", "-g", "4321"]).success();
    as_user(&["quota", "-p", "5"]).success();
    let others = as_user(&["quota", "-u", "4322"]).fails_with(libc::EPERM);
    assert!(others.stderr.contains("4322"), "{}", others.stderr);
    as_user(&["setquota", "-u", "4321", "-B", "1G"]).fails_with(libc::EPERM);
    as_user(&["setquota", "-t", "-u", "-b", "1w"]).fails_with(libc::EPERM);
    cluster.stop_and_check();
}

#[test]
fn defaults_soft_limits_and_pools_limit_as_in_lustre() {
    let options = Options { fsname: "quod".to_owned(), osts: 3, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let directory = shared(&cluster, "limits");
    let ends_at = |name: &str, uid: u32, mib: u64| {
        let (at, error) = Identity::user(uid).act(|| fill(&directory.join(name), mib * MIB));
        (at / MIB, error.and_then(|error| error.raw_os_error()))
    };
    set(&cluster, &["-U", "-B", "32M"]).success();
    let (at, error) = ends_at("default", USER, 200);
    assert_eq!(error, Some(libc::EDQUOT), "at {at}");
    // Limits of its own, without any, free a user from the defaults.
    set(&cluster, &["-u", "4321", "-b", "0", "-B", "0", "-i", "0", "-I", "0"]).success();
    assert_eq!(ends_at("free", USER, 64), (64, None));
    set(&cluster, &["-u", "4321", "--default"]).success();
    assert_eq!(ends_at("again", USER, 1).1, Some(libc::EDQUOT));
    set(&cluster, &["-U", "-B", "0"]).success();
    assert_eq!(ends_at("none", USER, 8), (8, None));

    // A soft limit holds once its grace is over.
    set(&cluster, &["-t", "-u", "-b", "1", "-i", "1w"]).success();
    set(&cluster, &["-u", "4322", "-b", "4M"]).success();
    assert_eq!(ends_at("soft", OTHER, 8), (8, None));
    wait::until(LIMIT, "the grace is over", || {
        (ends_at("late", OTHER, 2).1 == Some(libc::EDQUOT)).then_some(())
    });
    let shown = cluster.lfs(&["quota", "-u", "4322", text(cluster.mount())]).success().stdout;
    assert!(shown.contains("expired") && shown.contains('*'), "{shown}");
    set(&cluster, &["-u", "4322", "--delete"]).success();
    assert_eq!(ends_at("later", OTHER, 8), (8, None));

    // A pool limits its OSTs.
    cluster.lctl(&["pool_new", "quod.fast"]).success();
    cluster.lctl(&["pool_add", "quod.fast", "OST0000"]).success();
    let fast = directory.join("fast");
    fs::create_dir(&fast).expect("made");
    fs::set_permissions(&fast, fs::Permissions::from_mode(0o777)).expect("permissions");
    wait::until(LIMIT, "the pool is known", || {
        (cluster.lfs(&["setstripe", "-p", "fast", "-c", "1", text(&fast)]).code() == 0).then_some(())
    });
    set(&cluster, &["-u", "4323", "-B", "16M", "--pool", "fast"]).success();
    let (at, error) = ends_at("fast/file", 4323, 200);
    assert_eq!(error, Some(libc::EDQUOT), "at {at}");
    let slow = directory.join("slow");
    cluster.lfs(&["setstripe", "-i", "1", "-c", "1", text(&slow)]).success();
    chown(&slow, Some(4323), Some(4323)).expect("changed");
    assert_eq!(ends_at("slow", 4323, 64), (64, None));
    cluster.stop_and_check();
}

#[test]
fn a_client_that_dies_leaves_what_it_has_written_and_no_more() {
    let mut options = Options { fsname: "quoc".to_owned(), osts: 2, ..Options::default() };
    options.mdts = 1;
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let first = cluster.pid("mount");
    let second = cluster.add_mount();
    let directory = shared(&cluster, "left");
    set(&cluster, &["-u", "4321", "-B", "100M"]).success();
    let theirs = second.join("left/theirs");
    Identity::user(USER).act(|| {
        let mut file = File::create(&theirs).expect("made");
        for _ in 0..20 {
            file.write_all(&vec![3; MIB as usize]).expect("written");
        }
        // Neither synced nor closed.
        std::mem::forget(file);
    });
    let dead = cluster.processes().into_iter().find(|(role, pid)| role == "mount" && *pid != first);
    cluster.signal(dead.expect("a second mount").1, Signal::KILL);
    wait::until(Duration::from_secs(90), "the dead client's file has a size", || {
        let (kib, _) = measured(&directory);
        is_about(quota_of(&cluster, "-u", USER).kib, kib).then_some(())
    });
    let (at, error) = Identity::user(USER).act(|| fill(&directory.join("mine"), 200 * MIB));
    assert_eq!(error.and_then(|error| error.raw_os_error()), Some(libc::EDQUOT), "at {at}");
    let shown = quota_of(&cluster, "-u", USER);
    assert!(shown.kib >= 90 << 10 && shown.kib <= (100 + 64) << 10, "{shown:?}");
    cluster.stop_and_check();
}

#[test]
fn a_file_goes_to_no_group_whose_limit_of_space_it_exceeds_on_any_mdt() {
    let options = Options { fsname: "quog".to_owned(), mdts: 2, osts: 2, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    let directory = shared(&cluster, "group");
    let there = directory.join("there");
    cluster.lfs(&["mkdir", "-i", "1", text(&there)]).success();
    fs::set_permissions(&there, fs::Permissions::from_mode(0o777)).expect("permissions");
    let member = Identity { gid: OTHER, ..Identity::user(OTHER).with_groups(&[USER]) };
    let files = [directory.join("file"), there.join("file")];
    for file in &files {
        assert!(member.act(|| fill(file, 8 * MIB)).1.is_none());
    }
    set(&cluster, &["-g", "4321", "-B", "4M"]).success();
    for file in &files {
        assert_eq!(member.act(|| errno(chown(file, None, Some(USER)))), libc::EDQUOT, "{}", file.display());
    }
    // One of them fits. Its space counts at once.
    set(&cluster, &["-g", "4321", "-B", "12M"]).success();
    member.act(|| chown(&files[1], None, Some(USER))).expect("it fits");
    assert_eq!(member.act(|| errno(chown(&files[0], None, Some(USER)))), libc::EDQUOT);
    chown(&files[0], None, Some(USER)).expect("root may");
    let mount = text(cluster.mount()).to_owned();
    let shown = cluster.lfs(&["quota", "-v", "-g", "4321", &mount]).success().stdout;
    let totals = shown.lines().find(|line| line.starts_with("Total allocated")).expect("totals");
    assert!(totals.starts_with("Total allocated inode limit: 0, total allocated block limit: "), "{shown}");
    assert!(number(totals.rsplit(' ').next().expect("a number")) > 0, "{shown}");
    cluster.stop_and_check();
}
