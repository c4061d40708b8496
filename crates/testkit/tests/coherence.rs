//! Several clients of one file system: names, attributes, and files that are opened and closed. Files that stay open are in
//! `sharing`.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, Random};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, errno, wait};

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `case` over each shape with two mounts.
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
    Random::new(seed).fill(&mut bytes);
    bytes
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
                // tail -f looks at the size, too.
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

/// A client that was killed holds nothing up for longer than it takes to evict it.
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
    cluster.signal(victim.expect("the second mount has a process").0, libc::SIGKILL);
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
