//! Several clients of one file system: names, attributes, and close-to-open consistency. Files that stay open
//! are in `sharing`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, Stopped, errno, wait};
use rustix::fs::XattrFlags;
use rustix::process::Signal;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `case` on each shape with two mounts.
fn with_two_mounts(shape: Shape, case: fn(&Path, &Path)) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start_with(shape, &Options { listen: true, ..Options::default() });
    if cluster.is_foreign() {
        return;
    }
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    case(&first, &second);
    cluster.stop_and_check();
}

macro_rules! with_two_mounts {
    ($(fn $name:ident($first:ident, $second:ident) $body:block)*) => {
        mod cases {
            use super::*;
            $(pub fn $name($first: &Path, $second: &Path) $body)*
        }
        mod embedded {
            $(#[test] fn $name() { super::with_two_mounts(super::Shape::Embedded, super::cases::$name); })*
        }
        mod separate {
            $(#[test] fn $name() { super::with_two_mounts(super::Shape::Separate, super::cases::$name); })*
        }
    };
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Returns the number of names that are left to read from an open directory.
fn list(directory: File) -> io::Result<usize> {
    let names = rustix::fs::Dir::new(directory)?.collect::<rustix::io::Result<Vec<_>>>()?;
    Ok(names.iter().filter(|entry| !matches!(entry.file_name().to_bytes(), b"." | b"..")).count())
}

with_two_mounts! {
    fn names_made_and_removed_are_seen_at_once(first, second) {
        for round in 0..50 {
            let (here, there) = if round % 2 == 0 { (first, second) } else { (second, first) };
            let name = format!("f{round}");
            assert!(!there.join(&name).exists(), "so that its absence could be cached");
            File::create_new(here.join(&name)).expect("create");
            assert!(there.join(&name).exists());
            assert_eq!(errno(File::create_new(there.join(&name))), libc::EEXIST);
            let moved = format!("g{round}");
            fs::rename(there.join(&name), there.join(&moved)).expect("rename");
            assert!(!here.join(&name).exists() && here.join(&moved).exists());
            fs::remove_file(here.join(&moved)).expect("unlink");
            assert_eq!(errno(fs::metadata(there.join(&moved))), libc::ENOENT);
            assert_eq!(fs::read_dir(there).expect("directory").count(), 0);
        }
    }

    fn a_directory_that_is_removed_is_stale_on_the_other_mount_and_empty_on_its_own(first, second) {
        for (here, there, listed) in [(first, second, false), (second, first, true)] {
            let (dir, name) = (here.join("gone"), "user.note");
            fs::create_dir(&dir).expect("mkdir");
            rustix::fs::setxattr(&dir, name, b"value", XattrFlags::empty()).expect("set");
            let theirs = [File::open(there.join("gone")), File::open(there.join("gone"))].map(|dir| dir.expect("open"));
            let own = File::open(&dir).expect("open");
            if listed {
                File::create_new(dir.join("file")).expect("create");
                assert_eq!(fs::read_dir(there.join("gone")).expect("list").count(), 1);
                fs::remove_file(dir.join("file")).expect("unlink");
            }
            fs::remove_dir(&dir).expect("rmdir");

            assert_eq!(errno(fs::metadata(there.join("gone"))), libc::ENOENT, "it has no name");
            let [stale, unread] = theirs;
            let through = PathBuf::from(format!("/proc/self/fd/{}", stale.as_raw_fd()));
            let inside = through.join("name");
            let mut room = vec![0; 256];
            let given = [
                ("stat", errno(stale.metadata())),
                ("list", errno(list(unread))),
                ("open", errno(fs::read_dir(&through))),
                ("look up", errno(fs::metadata(&inside))),
                ("create", errno(File::create(&inside))),
                ("mkdir", errno(fs::create_dir(&inside))),
                ("unlink", errno(fs::remove_file(&inside))),
                ("rename", errno(fs::rename(&inside, there.join("other")))),
                ("chmod", errno(stale.set_permissions(fs::Permissions::from_mode(0o700)))),
                ("get", errno(rustix::fs::fgetxattr(&stale, name, &mut room[..]))),
                ("attributes", errno(rustix::fs::flistxattr(&stale, &mut room[..]))),
                ("set", errno(rustix::fs::fsetxattr(&stale, name, b"other", XattrFlags::empty()))),
                ("remove", errno(rustix::fs::fremovexattr(&stale, name))),
            ];
            for (what, given) in given {
                assert_eq!(given, libc::ESTALE, "{what}");
            }

            assert_eq!(own.metadata().expect("stat").nlink(), 0);
            own.set_permissions(fs::Permissions::from_mode(0o700)).expect("chmod");
            assert_eq!(own.metadata().expect("stat").mode() & 0o777, 0o700);
            assert_eq!(errno(rustix::fs::fgetxattr(&own, name, &mut room[..])), libc::ENODATA);
            assert_eq!(rustix::fs::flistxattr(&own, &mut room[..]), Ok(0));
            assert_eq!(errno(rustix::fs::fsetxattr(&own, name, b"other", XattrFlags::empty())), libc::ESTALE);
            assert_eq!(list(own).expect("list"), 0);
        }
    }

    fn data_is_seen_after_close_and_open(first, second) {
        for round in 0..60u64 {
            let (here, there) = if round % 2 == 0 { (first, second) } else { (second, first) };
            let bytes = content(round, 1 + (round as usize * 77_777) % 3_000_000);
            fs::write(here.join("file"), &bytes).expect("write");
            assert_eq!(fs::metadata(there.join("file")).expect("stat").len(), bytes.len() as u64, "round {round}");
            assert!(fs::read(there.join("file")).expect("read") == bytes, "round {round}");
        }
    }

    fn a_reader_that_keeps_the_file_open_sees_what_is_appended(first, second) {
        let mut log = OpenOptions::new().append(true).create(true).open(first.join("log")).expect("open");
        let mut reader = File::open(second.join("log")).expect("open");
        let mut seen = String::new();
        for line in 0..100 {
            writeln!(log, "line {line}").expect("append");
            log.sync_data().expect("fdatasync");
            let text = wait::until(wait::SOON, "the line arrives", || {
                // tail -f reads the size too.
                reader.metadata().expect("fstat");
                reader.read_to_string(&mut seen).expect("read");
                seen.ends_with(&format!("line {line}\n")).then(|| seen.clone())
            });
            assert_eq!(text.lines().count(), line + 1);
        }
    }

    fn attributes_and_permissions_are_seen_by_the_next_call(first, second) {
        fs::write(first.join("file"), "text").expect("write");
        for mode in [0o600, 0o640, 0o000, 0o777] {
            fs::set_permissions(first.join("file"), fs::Permissions::from_mode(mode)).expect("chmod");
            assert_eq!(fs::metadata(second.join("file")).expect("stat").mode() & 0o7777, mode);
        }
        fs::hard_link(second.join("file"), second.join("link")).expect("link");
        assert_eq!(fs::metadata(first.join("file")).expect("stat").nlink(), 2);
        assert_eq!(
            fs::metadata(first.join("link")).expect("stat").ino(),
            fs::metadata(second.join("file")).expect("stat").ino(),
            "inode numbers are the same everywhere"
        );
        let user = nacre_testkit::identity::Identity::user(20_001);
        fs::create_dir(first.join("private")).expect("mkdir");
        fs::write(first.join("private/file"), "text").expect("write");
        assert!(user.act(|| fs::read(second.join("private/file"))).is_ok());
        fs::set_permissions(first.join("private"), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert_eq!(user.act(|| errno(fs::read(second.join("private/file")))), libc::EACCES);
    }

    fn a_file_removed_elsewhere_lives_while_it_is_open_here(first, second) {
        let bytes = content(9, 2_000_000);
        fs::write(first.join("file"), &bytes).expect("write");
        let mut open = File::open(second.join("file")).expect("open");
        fs::remove_file(first.join("file")).expect("unlink");
        assert!(!second.join("file").exists());
        let mut found = Vec::new();
        open.read_to_end(&mut found).expect("read");
        assert!(found == bytes);
        fs::write(first.join("file"), "new").expect("write");
        fs::rename(first.join("file"), first.join("other")).expect("rename");
        assert_eq!(fs::read(second.join("other")).expect("read"), b"new");
    }

    fn exclusive_creation_has_one_winner(first, second) {
        for round in 0..100 {
            let name = format!("lock-{round}");
            let attempts: Vec<PathBuf> = vec![first.join(&name), second.join(&name)];
            let winners = AtomicU64::new(0);
            let count = &winners;
            std::thread::scope(|scope| {
                for path in &attempts {
                    scope.spawn(move || match File::create_new(path) {
                        Ok(_) => drop(count.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EEXIST)),
                    });
                }
            });
            assert_eq!(winners.into_inner(), 1);
        }
    }

    fn appends_that_take_turns_are_all_there(first, second) {
        for line in 0..300 {
            let directory = if line % 3 == 0 { first } else { second };
            let options = OpenOptions::new().append(true).create(true).open(directory.join("log"));
            options.expect("open").write_all(format!("{line:08}\n").as_bytes()).expect("append");
        }
        let text = fs::read_to_string(first.join("log")).expect("read");
        let expected: String = (0..300).map(|line| format!("{line:08}\n")).collect();
        assert_eq!(text, expected);
    }

    fn disjoint_parts_of_one_file_are_written_by_both(first, second) {
        const BLOCK: usize = 64 << 10;
        const BLOCKS: usize = 64;
        File::create(first.join("file")).expect("create");
        std::thread::scope(|scope| {
            for (parity, directory) in [(0, first), (1, second)] {
                scope.spawn(move || {
                    let file = OpenOptions::new().write(true).open(directory.join("file")).expect("open");
                    for block in (parity..BLOCKS).step_by(2) {
                        let offset = (block * BLOCK) as u64;
                        std::os::unix::fs::FileExt::write_all_at(&file, &content(block as u64, BLOCK), offset)
                            .expect("write");
                    }
                    file.sync_all().expect("fsync");
                });
            }
        });
        for directory in [first, second] {
            let found = fs::read(directory.join("file")).expect("read");
            assert_eq!(found.len(), BLOCK * BLOCKS);
            for block in 0..BLOCKS {
                assert!(found[block * BLOCK..][..BLOCK] == content(block as u64, BLOCK), "block {block}");
            }
        }
    }

    fn the_exerciser_alternates_between_the_mounts(first, second) {
        let exercise = Exercise { aliases: vec![second.join("file")], ..Exercise::new(21, 3_000) };
        exercise.run(&first.join("file"));
    }

    fn appends_at_the_same_instant_are_all_there(first, second) {
        let append = |directory: PathBuf, name: u8| {
            std::thread::spawn(move || {
                let options = OpenOptions::new().append(true).create(true).open(directory.join("log"));
                let mut log = options.expect("open");
                for line in 0..300 {
                    log.write_all(format!("{}{line:06}\n", char::from(name)).as_bytes()).expect("append");
                }
            })
        };
        let writers = [(first, b'a'), (second, b'b'), (first, b'c'), (second, b'd')];
        let threads = writers.map(|(directory, name)| append(directory.to_owned(), name));
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let found = fs::read_to_string(first.join("log")).expect("read");
        let mut lines: Vec<&str> = found.lines().collect();
        lines.sort_unstable();
        let expected: Vec<String> =
            ["a", "b", "c", "d"].iter().flat_map(|n| (0..300).map(move |l| format!("{n}{l:06}"))).collect();
        assert!(lines == expected, "{} lines of {}", lines.len(), expected.len());
    }

    fn whole_file_locks_hold_between_clients(first, second) {
        use rustix::fs::{FlockOperation, flock};
        let here = File::create(first.join("file")).expect("create");
        let there = File::open(second.join("file")).expect("open");
        flock(&here, FlockOperation::LockExclusive).expect("lock");
        assert_eq!(errno(flock(&there, FlockOperation::NonBlockingLockShared)), libc::EWOULDBLOCK);
        let waiter = std::thread::spawn(move || flock(&there, FlockOperation::LockShared).map(|()| there));
        flock(&here, FlockOperation::Unlock).expect("unlock");
        wait::until(LIMIT, "the other client has the lock", || waiter.is_finished().then_some(()));
        let there = waiter.join().expect("no panic").expect("lock");
        assert_eq!(errno(flock(&here, FlockOperation::NonBlockingLockExclusive)), libc::EWOULDBLOCK);
        drop(there);
        wait::until(LIMIT, "closing lets go", || flock(&here, FlockOperation::NonBlockingLockExclusive).ok());
    }
}

/// A killed client delays others no longer than its eviction takes.
#[test]
fn a_killed_client_is_evicted_and_its_locks_are_free() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start(Shape::Separate);
    if cluster.is_foreign() {
        return;
    }
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    fs::write(first.join("file"), "text").expect("write");
    let path = second.join("file");
    let lock = File::open(&path).expect("open");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("lock");
    let victim =
        cluster.run().processes().into_iter().find(|(_, words)| {
            words.iter().any(|word| Path::new(word) == second.parent().expect("mount point"))
        });
    cluster.signal(victim.expect("the second mount has a process").0, Signal::KILL);
    let here = File::open(first.join("file")).expect("open");
    wait::until(LIMIT, "the lock of the dead client is free", || {
        rustix::fs::flock(&here, rustix::fs::FlockOperation::NonBlockingLockExclusive).ok()
    });
    wait::deadline(LIMIT, "work of the client that is left", move || {
        for index in 0..20 {
            fs::write(first.join(format!("f{index}")), "text").expect("write");
        }
    });
    drop(lock);
}

/// Starts a file system with a unique name, which its parameters are read and set by.
fn start_named(shape: Shape, name: &str) -> Option<Cluster> {
    let of_shape = if shape == Shape::Embedded { "e" } else { "s" };
    let options = Options { listen: true, fsname: format!("{name}{of_shape}"), ..Options::default() };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Sets parameters of this file system's inode locks so that contention never turns locks off.
fn let_them_fight(cluster: &Cluster) {
    let names = format!("ldlm.namespaces.mdt-{}-*.contended_locks=65535", cluster.fsname());
    cluster.lctl(&["set_param", "-n", &names]).success();
}

/// Returns the requests for names and attributes that the metadata server has answered.
fn asked(cluster: &Cluster) -> u64 {
    let text = cluster.lctl(&["get_param", "-n", &format!("mdt.{}-MDT0000.md_stats", cluster.fsname())]);
    let text = text.success().stdout;
    let line = text.lines().find(|line| line.starts_with("getattr"));
    line.and_then(|line| line.split_whitespace().nth(1)).map_or(0, |count| count.parse().expect("a count"))
}

fn names_and_attributes_are_kept_until_somebody_changes_them(shape: Shape) {
    let Some(mut cluster) = start_named(shape, "kept") else { return };
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    for number in 0..20 {
        fs::write(first.join(format!("f{number}")), b"content").expect("write");
    }
    let look = || {
        for number in 0..20 {
            let metadata = fs::metadata(second.join(format!("f{number}"))).expect("there");
            assert_eq!((metadata.len(), metadata.mode() & 0o777), (7, 0o644));
            assert!(!second.join(format!("absent{number}")).exists());
        }
    };
    // The writer's closes are asynchronous, and a file gets locks once its size is known.
    wait::until(LIMIT, "everything is kept", || {
        look();
        let before = asked(&cluster);
        look();
        (asked(&cluster) == before).then_some(())
    });
    let before = asked(&cluster);
    (0..50).for_each(|_| look());
    assert_eq!(asked(&cluster), before, "nobody has changed anything");
    what_is_kept_follows_the_parameters_of_locks(&cluster, &look);
    fs::set_permissions(first.join("f7"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::write(first.join("f8"), b"more content").expect("write");
    fs::rename(first.join("f9"), first.join("absent9")).expect("rename");
    assert_eq!(fs::metadata(second.join("f7")).expect("there").mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(second.join("f8")).expect("there").len(), 12);
    assert!(second.join("absent9").exists() && !second.join("f9").exists());
    new_names_in_an_own_directory_are_not_asked_for(&cluster, &first, &second);
    cluster.stop_and_check();
}

fn what_is_kept_follows_the_parameters_of_locks(cluster: &Cluster, look: &dyn Fn()) {
    let locks = |leaf: &str| format!("ldlm.namespaces.{}-*-mdc-*.{leaf}", cluster.fsname());
    let count = |name: &str| {
        let text = cluster.lctl(&["get_param", "-n", name]).success().stdout;
        text.lines().map(|line| line.trim().parse::<u64>().expect("a number")).max().expect("a mount")
    };
    assert!(count(&locks("lock_count")) > 20, "one for each file");
    assert!(count(&format!("ldlm.namespaces.mdt-{}-*.lock_count", cluster.fsname())) > 20);
    let before = asked(cluster);
    cluster.lctl(&["set_param", "-n", &locks("lru_size=clear")]).success();
    wait::until(LIMIT, "locks are given up", || (count(&locks("lock_count")) == 0).then_some(()));
    look();
    assert!(asked(cluster) >= before + 20, "what is not locked is asked for");
    cluster.lctl(&["set_param", "-n", &locks("lru_size=5")]).success();
    wait::until(LIMIT, "most are given up", || (count(&locks("lock_count")) <= 5).then_some(()));
    cluster.lctl(&["set_param", "-n", &locks("lru_size=0")]).success();
}

fn new_names_in_an_own_directory_are_not_asked_for(cluster: &Cluster, first: &Path, second: &Path) {
    let made = second.join("made");
    fs::create_dir(&made).expect("mkdir");
    let create = |number: u32| File::create_new(made.join(format!("c{number}"))).map(drop).expect("create");
    create(0);
    let before = asked(cluster);
    (1..30).for_each(create);
    assert_eq!(asked(cluster), before, "what is not there is known");
    File::create_new(first.join("made/c30")).expect("create");
    assert_eq!(errno(File::create_new(made.join("c30"))), libc::EEXIST);
    assert_eq!(fs::read_dir(&made).expect("directory").count(), 31);
    fs::remove_file(first.join("made/c5")).expect("unlink");
    create(5);
}

#[test]
fn names_and_attributes_are_kept_until_somebody_changes_them_embedded() {
    names_and_attributes_are_kept_until_somebody_changes_them(Shape::Embedded);
}

#[test]
fn names_and_attributes_are_kept_until_somebody_changes_them_separate() {
    names_and_attributes_are_kept_until_somebody_changes_them(Shape::Separate);
}

/// Changes on one mount, one after the other, while others look: a look never misses a change that was
/// complete before it began.
fn what_was_done_before_a_look_is_seen_by_it(shape: Shape) {
    const CHANGES: u64 = 400;
    let Some(mut cluster) = start_named(shape, "fight") else { return };
    let first = cluster.directory("d");
    let others = [cluster.add_mount().join("d"), cluster.add_mount().join("d"), first.clone()];
    let_them_fight(&cluster);
    let marked = File::create(first.join("marked")).expect("create");
    File::create(first.join("name0")).expect("create");
    let time = |number: u64| std::time::UNIX_EPOCH + Duration::from_secs(number);
    marked.set_modified(time(0)).expect("utimes");
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for directory in &others {
            let (done, open) = (&done, File::open(directory.join("marked")).expect("open"));
            scope.spawn(move || {
                let seconds = |metadata: fs::Metadata| metadata.mtime().unsigned_abs();
                while done.load(Ordering::SeqCst) < CHANGES {
                    let before = done.load(Ordering::SeqCst);
                    let by_name = seconds(fs::metadata(directory.join("marked")).expect("there"));
                    assert!(by_name >= before, "{by_name} < {before} by name");
                    let before = done.load(Ordering::SeqCst);
                    let by_handle = seconds(open.metadata().expect("open"));
                    assert!(by_handle >= before, "{by_handle} < {before} by handle");
                    let before = done.load(Ordering::SeqCst);
                    assert!(before == 0 || !directory.join(format!("name{}", before - 1)).exists());
                }
            });
        }
        for number in 1..=CHANGES {
            marked.set_modified(time(number)).expect("utimes");
            fs::rename(first.join(format!("name{}", number - 1)), first.join(format!("name{number}")))
                .expect("rename");
            done.store(number, Ordering::SeqCst);
        }
    });
    drop(marked);
    cluster.stop_and_check();
}

/// Returns the requests for names and attributes that all metadata servers have answered.
fn asked_all(cluster: &Cluster) -> u64 {
    let text = cluster.lctl(&["get_param", "-n", &format!("mdt.{}-MDT*.md_stats", cluster.fsname())]);
    let text = text.success().stdout;
    let counts = text.lines().filter(|line| line.starts_with("getattr"));
    let count = |line: &str| line.split_whitespace().nth(1).and_then(|count| count.parse::<u64>().ok());
    counts.map(|line| count(line).expect("a count")).sum()
}

/// Lists a directory and reads the attributes of each entry on the way, as `ls -l` does, which does not
/// request the time of birth. Returns names, sizes and modes.
fn list_long(directory: &Path) -> Vec<(String, u64, u32)> {
    let open = File::open(directory).expect("open");
    let look = |entry: io::Result<fs::DirEntry>| {
        let name = entry.expect("read").file_name().into_string().expect("plain");
        let stat = rustix::fs::statat(&open, &name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).expect("there");
        (name, stat.st_size as u64, stat.st_mode & 0o777)
    };
    let mut all: Vec<_> = fs::read_dir(directory).expect("listed").map(look).collect();
    all.sort();
    all
}

/// A listing on one of several mounts returns attributes with the names, and locks on them: for plain
/// directories, for striped ones, and for names whose inodes are on another MDT.
#[test]
fn listings_beside_other_clients_bring_attributes_that_are_kept() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { listen: true, mdts: 2, fsname: "longls".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.mount().to_path_buf();
    let (plain, striped, split) = (root.join("plain"), root.join("striped"), root.join("split"));
    cluster.lfs(&["mkdir".as_ref(), "-c".as_ref(), "2".as_ref(), striped.as_os_str()]).success();
    for directory in [&plain, &split] {
        cluster.lfs(&["mkdir".as_ref(), "-i".as_ref(), "0".as_ref(), directory.as_os_str()]).success();
    }
    const FILES: usize = 600;
    for directory in [&plain, &striped, &split] {
        (0..FILES).for_each(|number| fs::write(directory.join(format!("f{number}")), b"x").expect("written"));
    }
    cluster.lfs(&["setdirstripe".as_ref(), "-c".as_ref(), "2".as_ref(), split.as_os_str()]).success();
    wait::until(LIMIT, "names are split", || {
        let list = cluster.lfs(&["getdirstripe".as_ref(), "-H".as_ref(), split.as_os_str()]).success().stdout;
        (!list.contains("migrating")).then_some(())
    });
    for name in ["plain", "striped", "split"] {
        let second = cluster.add_mount();
        let (here, there) = (root.join(name), second.join(name));
        let before = asked_all(&cluster);
        let all = list_long(&there);
        assert_eq!(all.len(), FILES);
        assert!(all.iter().all(|(_, size, mode)| (*size, *mode) == (1, 0o644)));
        let first = asked_all(&cluster) - before;
        assert!(first < 60, "{name}: {first} requests for the first look at {FILES} files");
        let before = asked_all(&cluster);
        assert_eq!(list_long(&there), all);
        let again = asked_all(&cluster) - before;
        assert!(again < 20, "{name}: {again} requests for the second look");
        fs::set_permissions(here.join("f7"), fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::remove_file(here.join("f8")).expect("unlink");
        fs::rename(here.join("f9"), here.join("g9")).expect("rename");
        fs::write(here.join("f10"), b"longer").expect("write");
        fs::create_dir(here.join("new")).expect("mkdir");
        let listed = list_long(&there);
        let find =
            |wanted: &str| listed.iter().find(|(name, ..)| name == wanted).map(|found| (found.1, found.2));
        assert_eq!((find("f7"), find("f8"), find("f9")), (Some((1, 0o600)), None, None), "{name}");
        assert_eq!(
            (find("g9"), find("f10"), find("new").map(|new| new.1)),
            (Some((1, 0o644)), Some((6, 0o644)), Some(0o755)),
            "{name}"
        );
        let text = |number: usize| fs::read(there.join(format!("f{number}"))).expect("read");
        assert!((20..60).all(|number| text(number) == b"x"));
    }
    cluster.stop_and_check();
}

/// One mount makes changes while others list and read the attributes of each entry: no listing misses a
/// change that was complete before it began.
#[test]
fn what_was_done_before_a_listing_is_seen_by_it() {
    const CHANGES: u64 = 250;
    let Some(mut cluster) = start_named(Shape::Separate, "lists") else { return };
    let first = cluster.directory("d");
    let others = [cluster.add_mount().join("d"), cluster.add_mount().join("d"), first.clone()];
    let_them_fight(&cluster);
    for number in 0..40 {
        fs::write(first.join(format!("still{number}")), b"x").expect("write");
    }
    let marked = File::create(first.join("marked")).expect("create");
    File::create(first.join("name0")).expect("create");
    let time = |number: u64| std::time::UNIX_EPOCH + Duration::from_secs(number);
    marked.set_modified(time(0)).expect("utimes");
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for directory in &others {
            let done = &done;
            scope.spawn(move || {
                while done.load(Ordering::SeqCst) < CHANGES {
                    let before = done.load(Ordering::SeqCst);
                    let (mut seen, mut number) = (None, None);
                    for entry in fs::read_dir(directory).expect("listed").map(|entry| entry.expect("read")) {
                        let name = entry.file_name().into_string().expect("plain");
                        // An entry that was renamed meanwhile does not exist.
                        let Ok(metadata) = entry.metadata() else { continue };
                        match name.strip_prefix("name") {
                            Some(found) => number = number.max(found.parse::<u64>().ok()),
                            None if name == "marked" => seen = Some(metadata.mtime().unsigned_abs()),
                            None => assert_eq!(metadata.len(), 1),
                        }
                    }
                    assert!(seen.is_some_and(|seen| seen >= before), "{seen:?} < {before}");
                    let after = done.load(Ordering::SeqCst);
                    let is_missed = number.is_none_or(|number| number < before);
                    assert!(!is_missed || (number.is_none() && after + 1 > before), "{number:?} < {before}");
                }
            });
        }
        for number in 1..=CHANGES {
            marked.set_modified(time(number)).expect("utimes");
            let name = |number: u64| first.join(format!("name{number}"));
            fs::rename(name(number - 1), name(number)).expect("rename");
            if number % 10 == 0 {
                let gone = first.join(format!("still{}", number / 10));
                fs::remove_file(&gone).expect("unlink");
                assert!(others.iter().all(|other| !other.join(gone.file_name().expect("named")).exists()));
            }
            done.store(number, Ordering::SeqCst);
        }
    });
    drop(marked);
    cluster.stop_and_check();
}

#[test]
fn what_was_done_before_a_look_is_seen_by_it_embedded() {
    what_was_done_before_a_look_is_seen_by_it(Shape::Embedded);
}

#[test]
fn what_was_done_before_a_look_is_seen_by_it_separate() {
    what_was_done_before_a_look_is_seen_by_it(Shape::Separate);
}

/// A mount with cached names and attributes is stopped: changes by others wait for it no longer than the
/// configured timeout, and its cache is invalid when it resumes.
#[test]
fn a_stopped_mount_holds_changes_up_for_a_while_and_then_knows_nothing_old() {
    let Some(mut cluster) = start_named(Shape::Separate, "halt") else { return };
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    cluster.lctl(&["set_param", &format!("mdt.{}-*.ldlm_timeout=2", cluster.fsname())]).success();
    fs::write(second.join("f"), "content").expect("write");
    wait::until(LIMIT, "it is kept", || {
        let before = asked(&cluster);
        let metadata = fs::metadata(first.join("f")).expect("there");
        assert!(metadata.len() == 7 && !first.join("g").exists());
        (asked(&cluster) == before).then_some(())
    });
    let stopped = Stopped::begin(&cluster, cluster.pid_of_mount(cluster.mount()));
    let began = Instant::now();
    fs::set_permissions(second.join("f"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::rename(second.join("f"), second.join("g")).expect("rename");
    let waited = began.elapsed();
    drop(stopped);
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(20), "{waited:?}");
    // Until it learns of its eviction it may use its cache, but not for long.
    wait::until(LIMIT, "it finds out", || (!first.join("f").exists()).then_some(()));
    assert_eq!(fs::metadata(first.join("g")).expect("there").mode() & 0o777, 0o600);
    fs::set_permissions(first.join("g"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(second.join("g")).expect("there").mode() & 0o777, 0o640);
    cluster.stop_and_check();
}

/// A metadata server that was killed does not know the caches of its clients: it admits no change until they
/// have dropped them.
#[test]
fn a_metadata_server_that_restarts_lets_nothing_be_changed_that_others_still_keep() {
    let Some(mut cluster) = start_named(Shape::Separate, "again") else { return };
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    fs::write(second.join("f"), "content").expect("write");
    for round in 0..3u32 {
        let (here, there) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        let (old, new) = (here.join(format!("n{round}")), here.join(format!("n{}", round + 1)));
        if round == 0 {
            fs::rename(second.join("f"), second.join("n0")).expect("rename");
        }
        wait::until(LIMIT, "it is kept", || {
            let before = asked(&cluster);
            assert!(old.exists() && !new.exists());
            (asked(&cluster) == before).then_some(())
        });
        cluster.kill("mdt0000");
        cluster.start_all();
        let names = (there.join(format!("n{round}")), there.join(format!("n{}", round + 1)));
        fs::rename(&names.0, &names.1).expect("rename");
        assert!(!old.exists() && new.exists(), "in round {round}");
    }
    cluster.stop_and_check();
}
