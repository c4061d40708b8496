//! `lfs migrate -m`: trees move between MDTs with all their attributes, while they are in use and while MDTs
//! are killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::Outcome;
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, text, wait, work_in};
use rustix::fs::{FlockOperation, XattrFlags};

/// Names to keep: one of every 20, at most 100.
const KEPT: (usize, usize) = (20, 100);

fn migrate(cluster: &Cluster, options: &[&str], path: &Path) -> Outcome {
    cluster.lfs(&[&["migrate"], options, &[text(path)]].concat())
}

/// Returns the MDT of an inode, from its FID.
fn mdt_of(cluster: &Cluster, path: &Path) -> u64 {
    let fid = cluster.lfs(&["path2fid", text(path)]).success().stdout;
    let sequence = fid.trim().trim_start_matches("[0x").split(':').next().expect("a sequence");
    let sequence = u64::from_str_radix(sequence, 16).expect("a number");
    sequence.saturating_sub(0x2_0000_0400) / 0x4000_0000
}

/// Returns all paths below a directory.
fn paths_below(top: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (vec![top.to_owned()], vec![top.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).expect("listed") {
            let entry = entry.expect("an entry");
            if entry.file_type().expect("a type").is_dir() {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found
}

/// Attributes of an inode as programs see them, except its number.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    attributes: (u32, u32, u32, u64, u64, u64),
    times: [i64; 6],
    xattrs: BTreeMap<String, Vec<u8>>,
    content: Vec<u8>,
}

fn xattrs_of(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 4096];
    let length = rustix::fs::llistxattr(path, &mut names[..]).expect("listed");
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let name = String::from_utf8(name.to_vec()).expect("plain");
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name.as_str(), &mut value[..]).expect("read");
        value.truncate(length);
        (name, value)
    };
    // Layouts contain the FID of their file.
    names.map(value).filter(|(name, _)| !name.starts_with("lustre.")).collect()
}

fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let seen = |path: PathBuf| {
        let found = path.symlink_metadata().expect("there");
        let kind = found.file_type();
        let content = match (kind.is_file(), kind.is_symlink()) {
            (true, _) => fs::read(&path).expect("read"),
            (_, true) => fs::read_link(&path).expect("read").into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let size = if kind.is_dir() { 0 } else { found.size() };
        let attributes = (found.mode(), found.uid(), found.gid(), found.nlink(), found.rdev(), size);
        // Access times are left out: reading changes them.
        let times = [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec(), 0, 0];
        let place = path.strip_prefix(top).expect("below").to_owned();
        (place, Seen { attributes, times, xattrs: xattrs_of(&path), content })
    };
    paths_below(top).into_iter().map(seen).collect()
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).status().expect("it runs");
    assert!(done.success(), "{program} {arguments:?}");
}

/// Creates a tree of all kinds of inodes on MDT 0.
fn tree(cluster: &Cluster, name: &str) -> PathBuf {
    let top = cluster.directory(name).join("tree");
    cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
    let pattern = |length: usize| (0..length).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<u8>>();
    for (name, length) in [("empty", 0), ("small", 3000), ("head", 70_000), ("large", 3 << 20)] {
        fs::write(top.join(name), pattern(length)).expect("written");
    }
    let sparse = fs::File::create(top.join("sparse")).expect("made");
    sparse.write_all_at(b"end", 5 << 20).expect("written");
    let options = ["setstripe", "-E", "1M", "-L", "mdt", "-E", "-1", "-c", "2"];
    for (name, length) in [("dom", 200_000), ("dom and more", 2 << 20)] {
        let path = top.join(name);
        cluster.lfs(&[&options[..], &[text(&path)]].concat()).success();
        fs::write(&path, pattern(length)).expect("written");
    }
    let hole = fs::File::options().write(true).open(top.join("dom")).expect("opened");
    hole.write_all_at(b"behind a hole", 800_000).expect("written");
    drop((sparse, hole));
    fs::create_dir(top.join("sub")).expect("made");
    fs::write(top.join("sub/file"), b"inner").expect("written");
    fs::hard_link(top.join("small"), top.join("sub/link")).expect("linked");
    fs::hard_link(top.join("small"), top.join("second")).expect("linked");
    symlink("sub/file", top.join("symlink")).expect("made");
    run("mkfifo", &[text(&top.join("pipe"))]);
    run("mknod", &[text(&top.join("device")), "c", "1", "3"]);
    cluster.lfs(&["mkdir", "-c", "3", "-H", "crush", text(&top.join("striped"))]).success();
    for number in 0..40 {
        fs::write(top.join(format!("striped/file{number}")), format!("{number}")).expect("written");
    }
    let attribute = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(top.join(path), name, value, XattrFlags::empty()).expect("set");
    };
    attribute("small", "user.note", b"value");
    attribute("large", "trusted.long", &pattern(20_000));
    attribute("sub", "user.of directory", b"another");
    attribute("striped", "user.of striped", b"third");
    run("setfacl", &["-m", "u:1234:rw", text(&top.join("head"))]);
    run("setfacl", &["-m", "u:1234:rwx", "-m", "d:u:77:rx", text(&top.join("sub"))]);
    run("setfacl", &["-m", "d:u:78:rx", text(&top.join("striped"))]);
    cluster.lfs(&["setstripe", "-c", "2", "-S", "1M", text(&top.join("sub"))]).success();
    fs::set_permissions(top.join("empty"), fs::Permissions::from_mode(0o4751)).expect("set");
    std::os::unix::fs::chown(top.join("empty"), Some(12), Some(34)).expect("set");
    top
}

fn all_are_on(cluster: &Cluster, top: &Path, mdts: &[u64]) {
    for path in paths_below(top) {
        let mdt = mdt_of(cluster, &path);
        assert!(mdts.contains(&mdt), "{} is on MDT {mdt}", path.display());
    }
}

#[test]
fn a_tree_moves_with_all_that_belongs_to_it() {
    on_each_shape_with_mdts("miga", 3, |cluster, _| {
        let top = tree(cluster, "moves");
        let before = look(&top);
        let other = match cluster.shape() {
            Shape::Embedded => top.clone(),
            _ => cluster.add_mount().join(top.strip_prefix(cluster.mount()).expect("below the mount")),
        };
        assert_eq!(look(&other), before);
        let steps: [(&[&str], &[u64]); 5] = [
            (&["-m", "1"], &[1]),
            (&["-m", "2"], &[2]),
            (&["-m", "0,1", "-H", "fnv_1a_64"], &[0, 1]),
            (&["-m", "2,0", "-H", "crush2"], &[0, 2]),
            (&["-m", "0", "-c", "1"], &[0]),
        ];
        for (options, mdts) in steps {
            migrate(cluster, options, &top).success();
            for top in [&top, &other] {
                let now = look(top);
                for (path, seen) in &before {
                    assert_eq!(now.get(path), Some(seen), "{options:?} {}", path.display());
                }
                assert_eq!(now.len(), before.len(), "{options:?}");
            }
            all_are_on(cluster, &top, mdts);
            let count = cluster.lfs(&["getdirstripe", "-c", text(&top)]).success().stdout;
            assert_eq!(count.trim(), if mdts.len() == 1 { "0" } else { "2" });
            migrate(cluster, options, &top).success();
        }
        let path = cluster.lfs(&["path2fid", text(&top.join("sub/link"))]).success().stdout;
        let names = cluster.lfs(&["fid2path", text(cluster.mount()), path.trim()]).success().stdout;
        assert_eq!(names.lines().count(), 3, "{names}");
        fs::write(top.join("dom"), b"written after it moved").expect("written");
        fs::write(top.join("small"), b"new").expect("written");
        assert_eq!(fs::read(other.join("sub/link")).expect("read"), b"new");
        fs::remove_dir_all(&top).expect("removed");
    });
}

/// Migrates repeatedly, until no part of the tree is in use.
fn migrate_all(cluster: &Cluster, options: &[&str], top: &Path) {
    wait::until(wait::SOON * 4, "all has moved", || {
        let outcome = migrate(cluster, options, top);
        outcome.status.success().then_some(())
    });
}

#[test]
fn programs_work_in_a_tree_while_it_moves() {
    on_each_shape_with_mdts("migb", 3, |cluster, _| {
        let top = tree(cluster, "busy");
        let still = top.join("sub");
        let before = look(&still);
        let other = match cluster.shape() {
            Shape::Embedded => top.clone(),
            _ => cluster.add_mount().join(top.strip_prefix(cluster.mount()).expect("below the mount")),
        };
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let left = std::thread::scope(|scope| {
            let workers: Vec<_> = [&top, &other]
                .into_iter()
                .enumerate()
                .map(|(worker, dir)| {
                    let (stop, done) = (&stop, &done);
                    scope.spawn(move || work_in(dir, worker, KEPT, stop, done))
                })
                .collect();
            for options in [&["-m", "1"][..], &["-m", "2,0"], &["-m", "2"], &["-m", "0"]] {
                // Open files are skipped.
                let _ = migrate(cluster, options, &top);
                let before = done.load(Ordering::Relaxed);
                wait::until(wait::SOON, "work has gone on", || {
                    (done.load(Ordering::Relaxed) > before + 5).then_some(())
                });
            }
            stop.store(true, Ordering::Relaxed);
            let left = workers.into_iter().map(|worker| worker.join().expect("the work was done"));
            left.collect::<Vec<_>>()
        });
        migrate_all(cluster, &["-m", "1"], &top);
        all_are_on(cluster, &top, &[1]);
        for (path, seen) in look(&other.join("sub")) {
            assert_eq!(Some(&seen), before.get(&path), "{}", path.display());
        }
        for name in left.iter().flatten() {
            let content = fs::read_to_string(top.join(name)).expect("read");
            assert_eq!(content[1..], name[1..]);
        }
    });
}

#[test]
fn what_was_broken_off_by_killed_mdts_is_moved_by_the_next_call() {
    let options = Options { mdts: 3, osts: 2, fsname: "migc".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let top = tree(&cluster, "killed");
    for number in 0..150 {
        fs::write(top.join(format!("sub/many{number}")), vec![number as u8; 5000]).expect("written");
    }
    let before = look(&top);
    for (mdt, role) in [("1", "mdt0000"), ("2", "mdt0002"), ("0", "mdt0000"), ("1,2", "mdt0001")] {
        std::thread::scope(|scope| {
            let mut command = cluster.command();
            command.args(["lfs", "migrate", "-m", mdt, text(&top)]);
            scope.spawn(move || command.output().expect("it runs"));
            let number = mdt.split(',').next().expect("one").to_owned();
            wait::until(wait::SOON, "it has begun", || {
                let dir = cluster.lfs(&["getdirstripe", "-m", text(&top)]);
                (dir.stdout.trim() == number).then_some(())
            });
            cluster.kill(role);
            cluster.start_all();
        });
        migrate_all(&cluster, &["-m", mdt], &top);
        let mdts: Vec<u64> = mdt.split(',').map(|mdt| mdt.parse().expect("a number")).collect();
        let now = look(&top);
        for (path, seen) in &before {
            assert_eq!(now.get(path), Some(seen), "{mdt} {}", path.display());
        }
        all_are_on(&cluster, &top, &mdts);
    }
    cluster.stop_and_check();
}

#[test]
fn what_cannot_move_is_named_and_stays() {
    on_each_shape_with_mdts("migd", 2, |cluster, fsname| {
        let top = cluster.directory("refused").join("top");
        cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
        for name in ["open", "closed", "linked"] {
            fs::write(top.join(name), name).expect("written");
        }
        for number in 0..1000 {
            fs::hard_link(top.join("linked"), top.join(format!("link{number}"))).expect("linked");
        }
        let open = fs::File::options().append(true).open(top.join("open")).expect("opened");
        rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive).expect("locked");
        let outcome = migrate(cluster, &["-m", "1"], &top);
        assert!([libc::EBUSY, libc::EMLINK].contains(&outcome.code()), "the first that was found");
        let told: Vec<&str> = outcome.stderr.lines().collect();
        assert_eq!(told.len(), 1002, "{told:#?}");
        let is_told = |name: &str, reason: &str| {
            let line = format!("lfs migrate: {} migrate failed: {reason}", text(&top.join(name)));
            assert!(told.iter().any(|told| told.starts_with(&line)), "{line}: {told:#?}");
        };
        is_told("open", "Device or resource busy (-16)");
        is_told("linked", "Too many links (-31)");
        assert_eq!([mdt_of(cluster, &top), mdt_of(cluster, &top.join("closed"))], [1, 1]);
        assert_eq!([mdt_of(cluster, &top.join("open")), mdt_of(cluster, &top.join("linked"))], [0, 0]);
        let other = fs::File::open(top.join("open")).expect("opened");
        let theirs = rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared);
        assert_eq!(theirs, Err(rustix::io::Errno::WOULDBLOCK), "its lock stays, too");
        drop(other);
        (&open).write_more();
        drop(open);
        fs::remove_file(top.join("link0")).expect("removed");
        migrate(cluster, &["-m", "1"], &top).success();
        all_are_on(cluster, &top, &[1]);
        assert_eq!(fs::read(top.join("open")).expect("read"), b"open more");

        migrate(cluster, &["-m", "7"], &top).fails_with(libc::ENODEV);
        migrate(cluster, &["-m", "1"], cluster.mount()).fails_with(libc::EBUSY);
        let user = Identity::user(4321);
        let nacre = cluster.command();
        let denied = || {
            user.act(|| {
                let mut command = Command::new(nacre.get_program());
                command.args(["lfs", "migrate", "-m", "0", text(&top)]);
                command.output().expect("runs").status.code()
            })
        };
        assert_eq!(denied(), Some(libc::EPERM));
        cluster.lctl(&["set_param", &format!("mdt.{fsname}-MDT*.enable_remote_dir_gid=-1")]).success();
        assert_eq!(denied(), Some(libc::EPERM), "it belongs to somebody else");
        std::os::unix::fs::chown(&top, Some(4321), None).expect("set");
        assert_eq!(denied(), Some(libc::EPERM), "so do files in it");
        assert_eq!(mdt_of(cluster, &top), 0);
    });
}

#[test]
fn a_file_with_many_names_moves_with_all_of_them_while_they_change() {
    on_each_shape_with_mdts("migf", 3, |cluster, _| {
        let top = cluster.directory("linked").join("top");
        cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
        // Snapshots of a tree, as backup tools create them: hard links to each file.
        let dirs = [&["-i", "0"][..], &["-i", "1"], &["-i", "2"], &["-c", "3"]].map(|place| {
            let dir = top.join(place.concat());
            cluster.lfs(&[&["mkdir"], place, &[text(&dir)]].concat()).success();
            dir
        });
        let file = top.join("file");
        fs::write(&file, "content").expect("written");
        let name =
            |number: usize| dirs[number % dirs.len()].join(format!("{:04}{}", number, "n".repeat(200)));
        for number in 0..600 {
            fs::hard_link(&file, name(number)).expect("linked");
        }
        let busy = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let mut changed = 0;
                while busy.load(Ordering::Relaxed) {
                    let other = top.join("other");
                    fs::rename(name(changed % 8), &other).expect("renamed");
                    fs::rename(&other, name(changed % 8)).expect("renamed back");
                    changed += 1;
                }
                changed
            });
            for mdt in ["1", "2", "0", "1"] {
                migrate_all(cluster, &["-m", mdt], &file);
                assert_eq!(mdt_of(cluster, &file).to_string(), mdt);
            }
            busy.store(false, Ordering::Relaxed);
            assert!(worker.join().expect("no panic") > 0);
        });
        let seen = file.metadata().expect("there");
        assert_eq!(seen.nlink(), 601);
        for number in 0..600 {
            let found = name(number).metadata().expect("there");
            assert_eq!((found.ino(), found.nlink()), (seen.ino(), 601), "{number}");
        }
        assert_eq!(fs::read(name(77)).expect("read"), b"content");
        dirs.iter().for_each(|dir| fs::remove_dir_all(dir).expect("removed"));
        assert_eq!(file.metadata().expect("there").nlink(), 1);
    });
}

#[test]
fn an_mdt_is_emptied() {
    on_each_shape_with_mdts("mige", 3, |cluster, _| {
        let top = tree(cluster, "drained");
        migrate(cluster, &["-m", "1"], &top).success();
        cluster.lfs(&["mkdir", "-c", "3", "-i", "2", text(&top.join("over all"))]).success();
        for number in 0..60 {
            fs::write(top.join(format!("over all/{number}")), b"content").expect("written");
        }
        // More files than one batch, in a directory that does not move: one of them with hard links
        // elsewhere, one open.
        let many = top.join("many");
        cluster.lfs(&["mkdir", "-i", "1", text(&many)]).success();
        (0..100).for_each(|number| fs::write(many.join(number.to_string()), b"content").expect("written"));
        fs::hard_link(many.join("50"), top.join("second of 50")).expect("linked");
        migrate(cluster, &["-m", "2", "-d"], &many).success();
        let before = look(&top);
        let drain = |target: &str| cluster.nacre(&["target", "drain", text(cluster.mount()), target]);
        let refused = drain("MDT0000");
        assert!(refused.code() != 0 && refused.stderr.contains("root directory"), "{}", refused.stderr);
        assert!(drain("MDT0007").stderr.contains("there is no MDT0007"));

        let open = [top.join("small"), many.join("70")].map(|path| fs::File::open(path).expect("opened"));
        let some = drain("MDT0001");
        assert_eq!(some.code(), 1, "{} {}", some.stdout, some.stderr);
        let small = [top.join("small"), top.join("second"), top.join("sub/link")];
        let is_named = |path: &PathBuf| some.stdout.contains(&format!("{}: it is open", text(path)));
        assert!(some.stdout.contains("; 2 left") && small.iter().any(is_named), "{}", some.stdout);
        assert!(is_named(&many.join("70")), "{}", some.stdout);
        drop(open);
        let rest =
            wait::until(wait::SOON, "it is empty", || Some(drain("1")).filter(|rest| rest.code() == 0));
        assert!(rest.stdout.contains("; 0 left"), "{}", rest.stdout);
        all_are_on(cluster, &top, &[0, 2]);
        let count = cluster.lfs(&["getdirstripe", "-c", text(&top.join("over all"))]).success().stdout;
        assert_eq!(count.trim(), "3");
        let now = look(&top);
        for (path, seen) in &before {
            assert_eq!(now.get(path), Some(seen), "{}", path.display());
        }
        assert_ne!(mdt_of(cluster, &cluster.directory("new one")), 1, "it takes nothing new");
    });
}

trait WriteMore {
    fn write_more(self);
}

impl WriteMore for &fs::File {
    fn write_more(self) {
        use std::io::Write;
        let mut file = self;
        file.write_all(b" more").expect("written");
    }
}
