//! Several clients of one file system with the same files open: changes of data are visible to the others at
//! once.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::exerciser::{Exercise, Map, fill};
use nacre_testkit::{Cluster, Shape, wait};
use rustix::process::Signal;

/// Timeout, far above the time of any operation here: it detects those that hang.
const LIMIT: Duration = Duration::from_secs(150);

/// Runs `case` on a shape with `count` mounts of one directory.
fn with_mounts(shape: Shape, count: usize, case: fn(&mut Cluster, &[PathBuf])) {
    let Some(mut cluster) = Cluster::start_to_share(shape, "sh") else { return };
    let mut mounts = vec![cluster.directory("d")];
    // All data on OSTs; small files on the MDT have suites of their own (`heads`, `dom`).
    let plain = ["setstripe".as_ref(), "-c".as_ref(), "1".as_ref(), mounts[0].as_os_str()];
    cluster.lfs(&plain).success();
    for _ in 1..count {
        mounts.push(cluster.add_mount().join("d"));
    }
    case(&mut cluster, &mounts);
    cluster.stop_and_check();
}

macro_rules! with_mounts {
    ($(fn $name:ident($cluster:ident, [$($mount:ident),*]) $body:block)*) => {
        mod cases {
            use super::*;
            $(pub fn $name($cluster: &mut Cluster, mounts: &[PathBuf]) {
                let [$($mount),*] = mounts else { panic!("as many mounts as the case names") };
                $body
            })*
        }
        mod embedded {
            $(#[test] fn $name() {
                super::with_mounts(super::Shape::Embedded, [$(stringify!($mount)),*].len(), super::cases::$name);
            })*
        }
        mod separate {
            $(#[test] fn $name() {
                super::with_mounts(super::Shape::Separate, [$(stringify!($mount)),*].len(), super::cases::$name);
            })*
        }
    };
}

fn open(path: &Path) -> File {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    options.unwrap_or_else(|error| panic!("open {}: {error}", path.display()))
}

fn filled(length: usize, byte: u8) -> Vec<u8> {
    vec![byte; length]
}

fn read(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0xaa; length];
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], offset + done as u64).expect("read") {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    bytes
}

/// Sets the flag when dropped, also by a panic.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Starts the kernel's write-back of a file, without waiting for its end.
fn write_back(file: &File) {
    // SAFETY: the call takes numbers only, and the descriptor is open.
    let result = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    assert_eq!(result, 0);
}

/// Stripes a file over four OSTs in pieces of 64 KiB.
fn striped(cluster: &Cluster, path: &Path) {
    cluster
        .lfs(&[
            "setstripe".as_ref(),
            "-S".as_ref(),
            "64K".as_ref(),
            "-c".as_ref(),
            "2".as_ref(),
            path.as_os_str(),
        ])
        .success();
}

/// Loads bytes of a map that another client may have changed.
fn load(map: &Map, offset: usize) -> u64 {
    // SAFETY: the map extends beyond these bytes, and is aligned; others may store there at any time, hence
    // volatile.
    unsafe { map.bytes().as_ptr().add(offset).cast::<u64>().read_volatile() }
}

fn store(map: &mut Map, offset: usize, value: u64) {
    // SAFETY: as in `load`.
    unsafe { map.bytes_mut().as_mut_ptr().add(offset).cast::<u64>().write_volatile(value) }
}

with_mounts! {
    fn a_write_is_seen_by_the_next_read_of_a_file_that_stays_open(_cluster, [first, second]) {
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        let reader = File::open(second.join("f")).expect("open");
        let mut random = Rng::with_seed(3);
        for round in 0..300u64 {
            let (writer, other) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
            let (offset, length) = (random.usize(..300_000) as u64, 1 + random.usize(..40_000));
            let bytes = filled(length, round as u8);
            writer.write_all_at(&bytes, offset).expect("write");
            assert!(read(other, offset, length) == bytes, "round {round}");
            assert!(read(&reader, offset, length) == bytes, "round {round}, read-only");
            let size = other.metadata().expect("fstat").len();
            assert_eq!(size, writer.metadata().expect("fstat").len(), "round {round}");
            assert_eq!(size, fs::metadata(first.join("f")).expect("stat").len());
        }
    }

    fn a_stream_that_is_written_here_can_be_read_there_up_to_its_last_byte(_cluster, [first, second]) {
        let mut log = File::create_new(first.join("f")).expect("create");
        let mut reader = File::open(second.join("f")).expect("open");
        let mut expected = Vec::new();
        let mut found = Vec::new();
        for round in 0..400usize {
            let record = filled(1 + (round * 977) % 9_000, round as u8);
            log.write_all(&record).expect("write");
            expected.extend_from_slice(&record);
            assert_eq!(fs::metadata(second.join("f")).expect("stat").len(), expected.len() as u64);
            reader.read_to_end(&mut found).expect("read");
            assert!(found == expected, "round {round}: {} of {}", found.len(), expected.len());
        }
    }

    fn truncation_is_seen_at_once(_cluster, [first, second]) {
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        for round in 0..100u64 {
            let (one, other) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
            let size = 1 + (round * 7_919) % 200_000;
            one.write_all_at(&filled(200_000, 1 + round as u8), 0).expect("write");
            assert_eq!(read(other, 0, 300_000).len(), 200_000, "round {round}");
            one.set_len(size).expect("ftruncate");
            assert_eq!(read(other, 0, 300_000).len() as u64, size, "round {round}");
            assert_eq!(other.metadata().expect("fstat").len(), size);
            other.set_len(250_000).expect("ftruncate");
            let tail = read(one, size, 300_000);
            assert!(tail.len() as u64 == 250_000 - size && tail.iter().all(|byte| *byte == 0), "round {round}");
            one.set_len(0).expect("ftruncate");
        }
    }

    fn a_file_that_is_cut_at_its_open_is_empty_everywhere(_cluster, [first, second]) {
        let there = open(&second.join("f"));
        for round in 0..50u8 {
            let mut here = File::create(first.join("f")).expect("create");
            assert_eq!(read(&there, 0, 100), b"", "round {round}");
            here.write_all(&filled(100, round)).expect("write");
            assert_eq!(read(&there, 0, 100), filled(100, round));
        }
    }

    fn holes_are_seen_at_once(_cluster, [first, second]) {
        use rustix::fs::{FallocateFlags, fallocate};
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        for round in 0..50u8 {
            here.write_all_at(&filled(100_000, 1 + round), 0).expect("write");
            assert_eq!(read(&there, 50_000, 10), filled(10, 1 + round));
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&here, flags, 40_000, 20_000).expect("punch");
            assert!(read(&there, 40_000, 20_000) == filled(20_000, 0), "round {round}");
            assert_eq!(read(&there, 60_000, 10), filled(10, 1 + round));
        }
    }

    fn appends_of_all_clients_follow_each_other(cluster, [first, second, third]) {
        striped(cluster, &first.join("log"));
        let names = [b'a', b'b', b'c'];
        std::thread::scope(|scope| {
            for (mount, name) in [first, second, third].into_iter().zip(names) {
                scope.spawn(move || {
                    let options = OpenOptions::new().append(true).open(mount.join("log"));
                    let mut log = options.expect("open");
                    for line in 0..400 {
                        let text = format!("{}{line:06}{}\n", char::from(name), "x".repeat(line % 90));
                        log.write_all(text.as_bytes()).expect("append");
                    }
                });
            }
        });
        let text = fs::read_to_string(second.join("log")).expect("read");
        for name in names {
            let mine: Vec<&str> = text.lines().filter(|line| line.as_bytes()[0] == name).collect();
            assert_eq!(mine.len(), 400, "all of {}", char::from(name));
            for (line, found) in mine.iter().enumerate() {
                assert_eq!(**found, format!("{}{line:06}{}", char::from(name), "x".repeat(line % 90)));
            }
        }
        assert_eq!(text.lines().count(), 1200);
    }

    fn overlapping_writes_over_several_osts_are_never_mixed(cluster, [first, second]) {
        const LENGTH: usize = 300_000;
        striped(cluster, &first.join("f"));
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        here.write_all_at(&filled(LENGTH, 0), 0).expect("write");
        let done = AtomicBool::new(false);
        let (stop, writer_a, writer_b) = (&done, &here, &there);
        std::thread::scope(|scope| {
            let writers = [(writer_a, 1u8), (writer_b, 101)].map(|(file, base)| {
                scope.spawn(move || {
                    for round in 0..100 {
                        file.write_all_at(&filled(LENGTH, base + round), 0).expect("write");
                    }
                })
            });
            let readers = [writer_a, writer_b].map(|file| {
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let mut bytes = vec![0; LENGTH];
                        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), LENGTH);
                        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a mixture");
                    }
                })
            });
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        });
        assert_eq!(read(&here, 0, LENGTH), read(&there, 0, LENGTH));
    }

    fn stores_to_a_mapped_page_are_seen_by_loads_in_turns(_cluster, [first, second]) {
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        here.set_len(8192).expect("ftruncate");
        // Programs call fstat before they map; it updates the kernel's size.
        assert_eq!(there.metadata().expect("fstat").len(), 8192);
        let mut one = Map::new(&here, 8192).expect("mmap");
        let mut other = Map::new(&there, 8192).expect("mmap");
        for round in 1..300u64 {
            store(&mut one, 64, round);
            assert_eq!(load(&other, 64), round);
            store(&mut other, 128, round + 1);
            assert_eq!(load(&one, 128), round + 1);
            assert_eq!(load(&one, 64), round, "nobody else stored there");
        }
    }

    fn maps_reads_and_writes_agree(_cluster, [first, second]) {
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        let reader = File::open(second.join("f")).expect("open");
        here.set_len(65536).expect("ftruncate");
        let mut map = Map::new(&here, 65536).expect("mmap");
        for round in 1..200u64 {
            let offset = (round as usize * 4_104) % 65_000 / 8 * 8;
            store(&mut map, offset, round);
            assert_eq!(read(&there, offset as u64, 8), round.to_le_bytes(), "round {round}");
            assert_eq!(read(&reader, offset as u64, 8), round.to_le_bytes());
            there.write_all_at(&(round * 1000).to_le_bytes(), offset as u64).expect("write");
            assert_eq!(load(&map, offset), round * 1000, "round {round}");
        }
    }

    fn mapped_pages_go_with_their_lock_while_they_are_written_back(_cluster, [first, second]) {
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        here.set_len(65536).expect("ftruncate");
        let mut map = Map::new(&here, 65536).expect("mmap");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let over = Until(&is_over);
            // The kernel's write-back runs all the time.
            scope.spawn(|| while !is_over.load(Ordering::Relaxed) { write_back(&here) });
            for round in 1..500u64 {
                let offset = (round as usize * 4_104) % 65_000 / 8 * 8;
                store(&mut map, offset, round);
                // It may be running when the other mount needs the page.
                if round % 2 == 0 { write_back(&here) }
                assert_eq!(read(&there, offset as u64, 8), round.to_le_bytes(), "round {round}");
                there.write_all_at(&(round * 1000).to_le_bytes(), offset as u64).expect("write");
                assert_eq!(load(&map, offset), round * 1000, "round {round}");
            }
            drop(over);
        });
    }

    fn counters_in_mapped_pages_lose_no_increment(_cluster, [first, second, third]) {
        use rustix::fs::{FlockOperation, flock};
        const ROUNDS: u64 = 60;
        open(&first.join("f")).set_len(3 * 4096).expect("ftruncate");
        std::thread::scope(|scope| {
            for mount in [first, second, third] {
                scope.spawn(move || {
                    let file = open(&mount.join("f"));
                    let mut map = Map::new(&file, 3 * 4096).expect("mmap");
                    for round in 0..ROUNDS {
                        let offset = (round as usize % 3) * 4096;
                        flock(&file, FlockOperation::LockExclusive).expect("flock");
                        let value = load(&map, offset);
                        store(&mut map, offset, value + 1);
                        flock(&file, FlockOperation::Unlock).expect("flock");
                    }
                });
            }
        });
        let file = open(&second.join("f"));
        let map = Map::new(&file, 3 * 4096).expect("mmap");
        assert_eq!((0..3).map(|page| load(&map, page * 4096)).sum::<u64>(), 3 * ROUNDS);
    }

    fn pages_that_all_clients_map_and_write_at_once_hang_nobody(cluster, [first, second, third]) {
        const SIZE: usize = 512 << 10;
        striped(cluster, &first.join("f"));
        open(&first.join("f")).set_len(SIZE as u64).expect("ftruncate");
        let mounts = [first.clone(), second.clone(), third.clone()];
        wait::deadline(LIMIT, "everybody has written", move || {
            std::thread::scope(|scope| {
                for (number, mount) in mounts.iter().enumerate() {
                    for thread in 0..2 {
                        scope.spawn(move || hammer(mount, (number * 2 + thread) as u64, SIZE));
                    }
                }
            });
        });
        let expected = fs::read(first.join("f")).expect("read");
        assert!(fs::read(second.join("f")).expect("read") == expected);
        assert!(fs::read(third.join("f")).expect("read") == expected);
    }

    fn the_exerciser_finds_no_difference_between_mounts_that_stay_open(cluster, [first, second]) {
        for (seed, stripes) in [(31, false), (32, true)] {
            let path = first.join(format!("file{seed}"));
            let aliases = vec![second.join(format!("file{seed}"))];
            if stripes {
                cluster.lfs(&["setstripe".as_ref(), "-S".as_ref(), "64K".as_ref(), "-c".as_ref(), "-1".as_ref(), first.as_os_str()])
                    .success();
            }
            Exercise { aliases, stay_open: true, ..Exercise::new(seed, 1_500) }.run(&path);
        }
    }

    fn a_token_that_goes_round_is_seen_by_each_in_turn(_cluster, [first, second, third]) {
        let files = [first, second, third].map(|mount| open(&mount.join("token")));
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(third.join("token"));
        let direct = direct.expect("open");
        for round in 0..300u64 {
            let (giver, taker) = (&files[round as usize % 3], &files[(round as usize + 1) % 3]);
            giver.write_all_at(&round.to_le_bytes(), 5).expect("write");
            assert_eq!(read(taker, 5, 8), round.to_le_bytes());
            assert_eq!(read(&direct, 5, 8), round.to_le_bytes());
        }
    }

    fn locks_are_kept_and_given_up_as_parameters_say(cluster, [first, second]) {
        const FILES: usize = 24;
        let path = |mount: &Path, number: usize| mount.join(format!("f{number}"));
        for number in 0..FILES {
            fs::write(path(first, number), filled(5_000, number as u8)).expect("write");
        }
        let read_all = || (0..FILES).for_each(|number| {
            let file = File::open(path(second, number)).expect("open");
            assert_eq!(read(&file, 0, 9_000), filled(5_000, number as u8));
        });
        read_all();
        assert!(locks(cluster, "lock_count") > 0 && locks(cluster, "lock_unused_count") > 0);
        let asked = lock_stat(cluster, "enqueued");
        let matched = lock_stat(cluster, "matched");
        read_all();
        assert_eq!(lock_stat(cluster, "enqueued"), asked, "the locks are there");
        assert!(lock_stat(cluster, "matched") > matched);
        set_locks(cluster, "lru_size=clear");
        wait::until(wait::SOON, "all locks are gone", || (locks(cluster, "lock_count") == 0).then_some(()));
        read_all();
        assert!(lock_stat(cluster, "enqueued") > asked);
        set_locks(cluster, "lru_size=1");
        read_all();
        // Two mounts, four OSTs.
        wait::until(wait::SOON, "few are kept", || (locks(cluster, "lock_unused_count") <= 8).then_some(()));
        set_locks(cluster, "lru_size=0");
        read_all();
        assert!(locks(cluster, "lock_unused_count") > 8);
        set_locks(cluster, "lru_max_age=1");
        wait::until(wait::SOON, "old ones go", || (locks(cluster, "lock_count") == 0).then_some(()));
    }

    fn writers_that_fight_over_a_page_let_the_server_lock_as_parameters_say(cluster, [first, second]) {
        let enqueues = |file: &str, settings: [(&str, u32); 3]| {
            for (leaf, value) in settings {
                let name = format!("ldlm.namespaces.filter-{}-*.{leaf}", cluster.fsname());
                cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]).success();
                let shown = cluster.lctl(&["get_param", "-n", &name]).success().stdout;
                assert!(shown.lines().all(|line| line == value.to_string()), "{name}: {shown}");
            }
            let before = lock_stat(cluster, "enqueued");
            take_turns(&first.join(file), &second.join(file));
            lock_stat(cluster, "enqueued") - before
        };
        let (never, soon) = (("contended_locks", 65535), ("contended_locks", 4));
        let (long, none) = (("contention_seconds", 600), ("contention_seconds", 0));
        let (hold, forget) = (("contention_hold_seconds", 600), ("contention_hold_seconds", 0));
        // Every write but the first revokes the other client's lock.
        let many = TURNS - 1;
        // Four conflicts, one refusal for each client, and the enqueues of an open.
        let few = TURNS / 4;
        for (file, settings, expected) in [
            ("never", [never, long, hold], many..=u64::MAX),
            ("soon", [soon, long, hold], 1..=few),
            ("forgotten", [soon, long, forget], many..=u64::MAX),
            ("apart", [soon, none, hold], many..=u64::MAX),
        ] {
            let found = enqueues(file, settings);
            assert!(expected.contains(&found), "{file}: {found} enqueues");
        }
    }

    fn what_is_held_back_for_one_reaches_the_other_without_a_sync(_cluster, [first, second]) {
        let mut writer = File::create_new(first.join("f")).expect("create");
        let mut expected = Vec::new();
        let mut random = Rng::with_seed(77);
        for _ in 0..3_000 {
            let mut record = vec![0; 1 + random.usize(..4_000)];
            fill(&mut random, &mut record);
            writer.write_all(&record).expect("write");
            expected.extend_from_slice(&record);
        }
        let mut reader = File::open(second.join("f")).expect("open");
        assert_eq!(reader.seek(SeekFrom::End(0)).expect("lseek"), expected.len() as u64);
        assert!(fs::read(second.join("f")).expect("read") == expected);
        drop(writer);
    }
}

/// Number of writes of [`take_turns`].
const TURNS: u64 = 80;

/// Writes the same page of a file through two mounts alternately.
fn take_turns(one: &Path, other: &Path) {
    let files = [open(one), open(other)];
    for turn in 0..TURNS {
        files[turn as usize % 2].write_all_at(&filled(4096, turn as u8), 0).expect("write");
    }
    let last = filled(4096, (TURNS - 1) as u8);
    assert!(files.iter().all(|file| read(file, 0, 5000) == last));
}

/// Returns the sum of a parameter over all mounts and OSTs.
fn locks(cluster: &Cluster, leaf: &str) -> u64 {
    let text = cluster
        .lctl(&["get_param", "-n", &format!("ldlm.namespaces.{}-*-osc-*.{leaf}", cluster.fsname())])
        .success()
        .stdout;
    text.lines().map(|line| line.trim().parse::<u64>().expect("a number")).sum()
}

fn set_locks(cluster: &Cluster, setting: &str) {
    cluster
        .lctl(&["set_param", "-n", &format!("ldlm.namespaces.{}-*-osc-*.{setting}", cluster.fsname())])
        .success();
}

fn lock_stat(cluster: &Cluster, row: &str) -> u64 {
    let name = format!("ldlm.namespaces.{}-*-osc-*.lock_stats", cluster.fsname());
    let text = cluster.lctl(&["get_param", "-n", &name]).success().stdout;
    let rows = text.lines().filter_map(|line| line.strip_prefix(row));
    rows.map(|rest| rest.trim().parse::<u64>().expect("a number")).sum()
}

/// A killed OST restarts while clients have locks and unwritten data.
#[test]
fn an_ost_that_restarts_gets_its_locks_back_and_nothing_is_lost() {
    with_mounts(Shape::Separate, 2, |cluster, mounts| {
        let [first, second] = mounts else { panic!("two mounts") };
        striped(cluster, &first.join("f"));
        let (here, there) = (open(&first.join("f")), open(&second.join("f")));
        here.set_len(1 << 20).expect("ftruncate");
        let mut map = Map::new(&here, 4096).expect("mmap");
        store(&mut map, 8, 4711);
        let mut expected = Vec::new();
        let mut random = Rng::with_seed(5);
        for round in 0..400 {
            let mut record = vec![0; 1 + random.usize(..3_000)];
            fill(&mut random, &mut record);
            here.write_all_at(&record, 8192 + expected.len() as u64).expect("write");
            expected.extend_from_slice(&record);
            if round == 200 {
                for role in cluster.servers().iter().filter(|role| role.starts_with("ost")) {
                    cluster.kill(role);
                }
            }
        }
        let restarted = std::thread::scope(|scope| {
            let reader = scope.spawn(|| read(&there, 8192, expected.len()));
            cluster.start_all();
            reader.join().expect("no panic")
        });
        assert!(restarted == expected);
        assert_eq!(read(&there, 8, 8), 4711u64.to_le_bytes());
        there.write_all_at(&filled(100, 9), 8192).expect("write");
        assert_eq!(read(&here, 8192, 100), filled(100, 9));
    });
}

/// A client that is killed with locks and data blocks no other client; its unwritten data is lost.
#[test]
fn a_client_that_dies_with_locks_and_data_leaves_the_files_to_the_others() {
    with_mounts(Shape::Separate, 2, |cluster, mounts| {
        let [first, second] = mounts else { panic!("two mounts") };
        let here = open(&first.join("f"));
        here.write_all_at(&filled(100_000, 1), 0).expect("write");
        let mut there = OpenOptions::new().write(true).open(second.join("f")).expect("open");
        for _ in 0..50 {
            there.write_all(&filled(1_000, 2)).expect("write");
        }
        let mount_point = second.parent().expect("the mount point");
        let processes = cluster.run().processes();
        let victim =
            processes.iter().find(|(_, words)| words.iter().any(|word| Path::new(word) == mount_point));
        cluster.signal(victim.expect("the second mount has a process").0, Signal::KILL);
        let begin = std::time::Instant::now();
        let bytes = read(&here, 0, 100_000);
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        assert!(bytes.len() == 100_000 && bytes.iter().all(|byte| *byte == 1 || *byte == 2));
        here.write_all_at(&filled(100_000, 3), 0).expect("write");
        assert!(read(&here, 0, 100_000) == filled(100_000, 3));
        drop(there);
    });
}

/// Reads, writes, loads and stores at random offsets.
fn hammer(mount: &Path, seed: u64, size: usize) {
    let file = open(&mount.join("f"));
    let reader = File::open(mount.join("f")).expect("open");
    let mut map = Map::new(&file, size).expect("mmap");
    let mut random = Rng::with_seed(seed);
    for round in 0..250u64 {
        let offset = random.usize(..size - 70_000);
        let length = 1 + random.usize(..70_000);
        match random.usize(..5) {
            0 => file.write_all_at(&filled(length, round as u8), offset as u64).expect("write"),
            1 => assert_eq!(read(&file, offset as u64, length).len(), length),
            2 => assert_eq!(read(&reader, offset as u64, length).len(), length),
            3 => store(&mut map, offset / 8 * 8, round),
            _ => drop(load(&map, offset / 8 * 8)),
        }
    }
}
