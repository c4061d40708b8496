//! Files get other objects while they are in use: migrated, swapped, truncated to some components, moved off
//! an OST. Readers see the right bytes at all times, and after the death of any process no object is lost or
//! leaked.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, program, wait};

const MIB: u64 = 1 << 20;

/// A test case on a file system that is mounted twice, with the test directory as both mounts see it.
type Case = fn(&Cluster, &Path, &Path);

/// Runs cases on a shape with two mounts, each case in a directory of its own. Start and stop of a file
/// system take longer than most cases, so those that do not interfere share one.
fn with_two(shape: Shape, cases: &[Case]) {
    let Some(mut cluster) = Cluster::start_to_share(shape, "rl") else { return };
    let second = cluster.add_mount();
    for (number, case) in cases.iter().enumerate() {
        let name = format!("d{number}");
        let first = cluster.directory(&name);
        case(&cluster, &first, &second.join(name));
    }
    cluster.stop_and_check();
}

macro_rules! on_both {
    ($($name:ident: $cases:expr;)*) => {
        mod embedded {
            $(#[test] fn $name() { super::with_two(super::Shape::Embedded, $cases); })*
        }
        mod separate {
            $(#[test] fn $name() { super::with_two(super::Shape::Separate, $cases); })*
        }
    };
}

on_both! {
    files_get_other_objects_while_they_are_in_use: &[
        super::a_file_that_one_writes_is_migrated_by_the_other,
        super::any_operations_go_on_while_a_file_is_moved_to_and_fro,
        super::swapped_files_have_each_others_data_everywhere,
        super::a_component_that_is_deleted_takes_its_data_along,
    ];
    whoever_changes_nothing_is_not_told_of_changes_and_others_are: &[
        super::migration_changes_nothing_but_the_objects,
        super::who_does_not_want_to_block_gives_up,
        super::the_version_of_data_changes_with_the_data_and_with_nothing_else,
        super::a_migration_that_is_interrupted_leaves_nothing_behind,
    ];
    rebalancing_empties_an_ost_under_load: &[super::an_ost_is_emptied_under_load];
}

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn version(cluster: &Cluster, path: &Path) -> String {
    lfs(cluster, &["data_version", text(path)])
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Writes records into a file and reads others back until stopped; returns the expected content.
fn write_and_verify(path: &Path, size: u64, stop: &AtomicBool, rounds: &AtomicU64) -> Vec<u8> {
    let file = read_write(path);
    let mut model = random_bytes(5, size as usize);
    file.write_all_at(&model, 0).expect("write");
    let mut random = Rng::with_seed(17);
    while !stop.load(Ordering::Relaxed) {
        let length = 1 + random.usize(..50_000);
        let at = random.usize(..size as usize - length);
        let mut piece = vec![0; length];
        if random.bool() {
            fill(&mut random, &mut piece);
            file.write_all_at(&piece, at as u64).expect("write");
            model[at..at + length].copy_from_slice(&piece);
        } else {
            file.read_exact_at(&mut piece, at as u64).expect("read");
            assert!(piece == model[at..at + length], "{length} bytes at {at}");
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    model
}

/// Sets the flag when dropped, also by a panic, so that threads that wait for it end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Layouts between which a file is moved.
const SHAPES: [&[&str]; 4] = [
    &["-c", "2", "-S", "64K"],
    &["-E", "1M", "-L", "mdt", "-E", "-1", "-c", "2", "-S", "1M"],
    &["-E", "1M", "-c", "1", "-E", "-1", "-c", "2", "-S", "1M"],
    &["-E", "256K", "-L", "mdt", "-E", "-1", "-c", "1"],
];

fn migrate(cluster: &Cluster, how: &[&str], path: &Path) -> program::Outcome {
    let mut arguments = vec!["migrate"];
    arguments.extend_from_slice(how);
    arguments.push(text(path));
    cluster.lfs(&arguments)
}

fn versions_follow_data(cluster: &Cluster, (path, there): (&Path, &Path), layout: &[&str]) {
    lfs(cluster, &[&["setstripe"], layout, &[text(path)]].concat());
    let file = read_write(path);
    assert_eq!(version(cluster, path), "0");
    let mut seen = std::collections::BTreeSet::from([version(cluster, path)]);
    let mut is_new = |cluster: &Cluster| seen.insert(version(cluster, path));
    file.write_all_at(b"data", 0).expect("write");
    assert!(is_new(cluster) && !is_new(cluster));
    // Write-back data of the other mount counts as a change.
    read_write(there).write_all_at(b"more", 1000).expect("write");
    assert!(is_new(cluster));
    for _ in 0..3 {
        file.write_all_at(b"same", 0).expect("write");
        assert!(is_new(cluster), "the same bytes, in a row");
    }
    file.set_len(3).expect("cut");
    assert!(is_new(cluster));
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    let other = path.with_extension("other");
    fs::rename(path, &other).expect("rename");
    fs::rename(other, path).expect("rename");
    fs::read(path).expect("read");
    assert!(!is_new(cluster));
    for flag in ["-n", "-r", "-w"] {
        let shown = lfs(cluster, &["data_version", flag, text(path)]);
        assert_eq!(shown, version(cluster, path), "{flag}");
    }
}

fn a_component_goes(cluster: &Cluster, (here, there): (&Path, &Path), head: [&str; 2]) {
    lfs(cluster, &[&["setstripe", "-E", "1M"], &head[..], &["-E", "-1", "-c", "2", text(here)]].concat());
    let bytes = random_bytes(8, (3 * MIB) as usize);
    let (writer, reader) = (read_write(here), read_write(there));
    writer.write_all_at(&bytes, 0).expect("write");
    let mut piece = vec![0; 100];
    reader.read_exact_at(&mut piece, 2 * MIB).expect("read");
    cluster.lfs(&["setstripe", "--comp-del", "-I", "1", text(here)]).fails_with(1);
    lfs(cluster, &["setstripe", "--comp-del", "-I", "2", text(here)]);
    for file in [&writer, &reader] {
        assert_eq!(file.metadata().expect("stat").len(), MIB);
        assert_eq!(file.read_at(&mut piece, 2 * MIB).expect("read"), 0);
    }
    assert!(fs::read(there).expect("read") == bytes[..MIB as usize]);
    // It can be added again, empty.
    lfs(cluster, &["setstripe", "--comp-add", "-E", "-1", "-c", "1", text(there)]);
    reader.write_all_at(b"new", 2 * MIB).expect("write");
    writer.read_exact_at(&mut piece, 2 * MIB - 97).expect("read");
    assert!(piece[..97] == [0; 97] && &piece[97..] == b"new");
}

fn a_file_that_one_writes_is_migrated_by_the_other(cluster: &Cluster, first: &Path, second: &Path) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let path = first.join("f");
    let model = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_and_verify(&path, 3 * MIB, &stop, &rounds));
        let ended = Stop(&stop);
        for round in 0..6 {
            let goal = rounds.load(Ordering::Relaxed) + 20;
            wait::until(wait::SOON, "the writer goes on", || {
                (rounds.load(Ordering::Relaxed) >= goal || writer.is_finished()).then_some(())
            });
            // Alternately from the other mount and the writer's own.
            let there = if round % 2 == 0 { second } else { first };
            migrate(cluster, SHAPES[round % SHAPES.len()], &there.join("f")).success();
        }
        drop(ended);
        writer.join().expect("every byte was right")
    });
    for mount in [first, second] {
        assert!(fs::read(mount.join("f")).expect("read") == model, "{}", mount.display());
    }
}

fn any_operations_go_on_while_a_file_is_moved_to_and_fro(cluster: &Cluster, first: &Path, second: &Path) {
    let path = first.join("any");
    let exercise = Exercise { stay_open: true, ..Exercise::new(23, 1000) };
    std::thread::scope(|scope| {
        let exerciser = scope.spawn(|| exercise.run(&path));
        let mut moved = 0;
        wait::until(wait::SOON, "the file is there", || path.exists().then_some(()));
        while !exerciser.is_finished() {
            migrate(cluster, SHAPES[moved % SHAPES.len()], &second.join("any")).success();
            moved += 1;
        }
        exerciser.join().expect("every byte was right");
        assert!(moved > 1);
    });
}

fn migration_changes_nothing_but_the_objects(cluster: &Cluster, first: &Path, second: &Path) {
    let path = first.join("f");
    let bytes = random_bytes(9, (2 * MIB + 77) as usize);
    let file = read_write(&path);
    file.write_all_at(&bytes, 0).expect("write");
    // A hole, and data behind it.
    file.write_all_at(b"end", 40 * MIB).expect("write");
    file.sync_all().expect("sync");
    drop(file);
    fs::hard_link(&path, first.join("link")).expect("link");
    rustix::fs::setxattr(&path, "user.a", b"b", rustix::fs::XattrFlags::empty()).expect("set");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("chown");
    let before = fs::metadata(&path).expect("stat");
    let fid = lfs(cluster, &["path2fid", text(&path)]);
    let objects = lfs(cluster, &["getstripe", "-y", text(&path)]);
    let data = version(cluster, &path);
    migrate(cluster, &["-c", "2", "-S", "1M"], &second.join("f")).success();
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "2");
    assert_ne!(lfs(cluster, &["getstripe", "-y", text(&path)]), objects);
    assert_ne!(version(cluster, &path), data);
    for mount in [first, second] {
        let path = mount.join("f");
        let after = fs::metadata(&path).expect("stat");
        let shown = |m: &fs::Metadata| {
            (m.ino(), m.mode(), m.uid(), m.gid(), m.nlink(), m.len(), (m.mtime(), m.mtime_nsec()))
        };
        assert_eq!(shown(&after), shown(&before), "{}", mount.display());
        assert!(after.blocks() * 512 < 10 * MIB, "the hole stays one: {}", after.blocks());
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(&path, "user.a", &mut value[..]).expect("get"), 1);
        let found = fs::read(mount.join("link")).expect("read");
        assert!(
            found[..bytes.len()] == bytes && found.ends_with(b"end") && found.len() as u64 == 40 * MIB + 3
        );
    }
    assert_eq!(lfs(cluster, &["path2fid", text(&path)]), fid);
    // Without options it keeps its layout and gets other objects; a bandwidth limit is obeyed.
    let began = Instant::now();
    let shown = migrate(cluster, &["-W", "2", "--stats-interval", "1", "-v"], &path).success().stdout;
    assert!(began.elapsed() > Duration::from_millis(800), "2 MiB at 2 MiB/s");
    assert!(shown.contains("pct: 100%") && shown.ends_with(&format!("{}\n", path.display())), "{shown}");
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "2");
    migrate(cluster, &["-c", "1"], first).fails_with(libc::EINVAL);
    migrate(cluster, &["-i", "99"], &path).fails_with(libc::EINVAL);
}

fn who_does_not_want_to_block_gives_up(cluster: &Cluster, first: &Path, second: &Path) {
    let path = first.join("f");
    fs::write(&path, random_bytes(3, 300_000)).expect("write");
    let writer = read_write(&second.join("f"));
    let objects = lfs(cluster, &["getstripe", "-y", text(&path)]);
    migrate(cluster, &["-n", "-c", "2"], &path).fails_with(libc::EBUSY);
    assert_eq!(lfs(cluster, &["getstripe", "-y", text(&path)]), objects);
    drop(writer);
    wait::until(wait::SOON, "the writer's close arrives", || {
        (migrate(cluster, &["-n", "-c", "2"], &path).code() == 0).then_some(())
    });
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "2");
    assert!(fs::read(second.join("f")).expect("read") == random_bytes(3, 300_000));
}

fn swapped_files_have_each_others_data_everywhere(cluster: &Cluster, first: &Path, second: &Path) {
    let (one, two) = (random_bytes(1, 700_000), random_bytes(2, 90_000));
    lfs(cluster, &["setstripe", "-c", "2", "-S", "64K", text(&first.join("a"))]);
    fs::write(first.join("a"), &one).expect("write");
    // One of them has its data on the MDT.
    lfs(cluster, &["setstripe", "-E", "64K", "-L", "mdt", "-E", "-1", "-c", "1", text(&second.join("b"))]);
    fs::write(second.join("b"), &two).expect("write");
    // Open and cached on both mounts.
    let open: Vec<File> = [first, second].iter().map(|mount| read_write(&mount.join("a"))).collect();
    let mut piece = vec![0; 1000];
    open.iter().for_each(|file| file.read_exact_at(&mut piece, 5000).expect("read"));
    for round in 0..4 {
        let mount = if round % 2 == 0 { first } else { second };
        lfs(cluster, &["swap_layouts", text(&mount.join("a")), text(&mount.join("b"))]);
        let (of_a, of_b) = if round % 2 == 0 { (&two, &one) } else { (&one, &two) };
        for mount in [first, second] {
            assert!(fs::read(mount.join("a")).expect("read") == **of_a, "round {round}");
            assert!(fs::read(mount.join("b")).expect("read") == **of_b, "round {round}");
            assert_eq!(fs::metadata(mount.join("a")).expect("stat").len(), of_a.len() as u64);
        }
        for file in &open {
            file.read_exact_at(&mut piece, 5000).expect("read");
            assert!(piece == of_a[5000..6000], "round {round}");
        }
    }
    let swap = |a: &Path, b: &Path| cluster.lfs(&["swap_layouts", text(a), text(b)]);
    swap(&first.join("a"), &first.join("a")).success();
    swap(&first.join("a"), first).fails_with(libc::EISDIR);
    std::os::unix::fs::chown(first.join("b"), Some(12), None).expect("chown");
    swap(&first.join("a"), &first.join("b")).fails_with(libc::EPERM);
}

fn the_version_of_data_changes_with_the_data_and_with_nothing_else(
    cluster: &Cluster,
    first: &Path,
    second: &Path,
) {
    for (name, layout) in [("ost", SHAPES[0]), ("mdt", SHAPES[1])] {
        versions_follow_data(cluster, (&first.join(name), &second.join(name)), layout);
    }
}

fn a_component_that_is_deleted_takes_its_data_along(cluster: &Cluster, first: &Path, second: &Path) {
    for (name, head) in [("ost", ["-c", "1"]), ("mdt", ["-L", "mdt"])] {
        a_component_goes(cluster, (&first.join(name), &second.join(name)), head);
    }
}

fn a_migration_that_is_interrupted_leaves_nothing_behind(cluster: &Cluster, first: &Path, second: &Path) {
    let path = first.join("f");
    let bytes = random_bytes(4, 4 * MIB as usize);
    File::create(&path).and_then(|mut file| file.write_all(&bytes)).expect("write");
    let slow = ["lfs", "migrate", "-W", "1", "-c", "2", text(&path)];
    let mut child = cluster.command().args(slow).spawn().expect("starts");
    wait::until(wait::SOON, "objects of the copy are there", || {
        fs::read_link(format!("/proc/{}/fd/4", child.id())).ok()
    });
    child.kill().expect("kill");
    child.wait().expect("ends");
    assert!(fs::read(second.join("f")).expect("read") == bytes);
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "1");
}

fn an_ost_is_emptied_under_load(cluster: &Cluster, first: &Path, second: &Path) {
    let mut files = Vec::new();
    for number in 0..12u64 {
        let path = first.join(format!("f{number}"));
        lfs(cluster, &["setstripe", "-i", if number % 3 == 2 { "1" } else { "0" }, text(&path)]);
        let bytes = random_bytes(number + 1, 100_000 + number as usize * 1000);
        fs::write(&path, &bytes).expect("write");
        files.push((path, bytes));
    }
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let busy = second.join("f0");
    let drain = || cluster.nacre(&["rebalance", text(first), "--drain", "0", "--rate", "0", "--json"]);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_and_verify(&busy, 200_000, &stop, &rounds));
        let ended = Stop(&stop);
        wait::until(wait::SOON, "the writer goes on", || {
            (rounds.load(Ordering::Relaxed) > 5 || writer.is_finished()).then_some(())
        });
        // An interrupted command has moved a part, and the next one moves the rest.
        let slow = ["rebalance", text(first), "--drain", "0", "--rate", "1"];
        let mut child = cluster.command().args(slow).spawn().expect("starts");
        wait::until(wait::SOON, "something was moved", || {
            let on = |path: &Path| lfs(cluster, &["getstripe", "-i", text(path)]);
            files[1..].iter().step_by(3).any(|(path, _)| on(path) != "0").then_some(())
        });
        child.kill().expect("kill");
        child.wait().expect("ends");
        let shown = drain();
        assert_eq!(shown.code(), 0, "the one that is written to waits in the end: {shown:?}");
        let moved = shown.stdout.split_once("\"moved_files\":").and_then(|(_, rest)| rest.split(',').next());
        let moved: u64 = moved.and_then(|number| number.parse().ok()).expect("a number");
        assert!((1..8).contains(&moved), "{shown:?}");
        drop(ended);
        files[0].1 = writer.join().expect("every byte was right");
    });
    for (path, bytes) in &files {
        assert!(fs::read(path).expect("read") == *bytes, "{}", path.display());
        let indexes = lfs(cluster, &["getstripe", "-i", text(path)]);
        assert_ne!(indexes, "0", "{}", path.display());
    }
}

#[test]
fn files_are_migrated_as_the_options_say() {
    let Some(mut cluster) = killed(Shape::Embedded, "rlo") else { return };
    let directory = cluster.directory("d");
    let path = directory.join("f");
    let bytes = random_bytes(6, 700_000);
    fs::write(&path, &bytes).expect("write");
    let shown = |field: &str| lfs(&cluster, &["getstripe", field, text(&path)]);
    let run = |how: &[&str]| migrate(&cluster, how, &path);
    run(&["-o", "2,0", "-S", "1M"]).success();
    assert_eq!((shown("-c"), shown("-i"), shown("-S")), ("2".into(), "2".into(), "1048576".into()));
    run(&["-C", "6"]).success();
    assert_eq!(shown("-c"), "6");
    let other = directory.join("other");
    lfs(&cluster, &["setstripe", "-E", "64M", "-L", "mdt", "-E", "-1", "-c", "3", text(&other)]);
    run(&["--copy", text(&other)]).success();
    assert_eq!(
        (shown("--component-count"), shown("-c")),
        ("2".into(), "0".into()),
        "only the head has objects"
    );
    let template = cluster.run().directory().join("t.yaml");
    fs::write(&template, lfs(&cluster, &["getstripe", "-y", text(&other)]).replace("64M", "1M"))
        .expect("write");
    run(&["-y", text(&template), "-D", "-b"]).success();
    // A small file has one stripe, however many OSTs there are.
    run(&["-A", "-M", "1", "-S", "64K"]).success();
    assert_eq!((shown("-c"), shown("-S")), ("1".into(), "65536".into()));
    run(&["-A", "-M", "1", "-X", "100000", "-K", "250"]).success();
    assert_eq!(shown("-c"), "2", "400 KiB per object at most");
    lfs(&cluster, &["setstripe", "-c", "3", text(&directory)]);
    run(&["--restripe"]).success();
    assert_eq!(shown("-c"), "3");
    let fid = lfs(&cluster, &["path2fid", text(&path)]);
    let told = cluster.lfs(&["migrate", "-v", "--fid", "--lustre-dir", text(&directory), "-c", "1", &fid]);
    assert_eq!(told.success().stdout.trim(), fid);
    assert_eq!(shown("-c"), "1");
    assert!(fs::read(&path).expect("read") == bytes);
    refusals_of_migrate(&cluster, &directory);
    cluster.stop_and_check();
}

fn refusals_of_migrate(cluster: &Cluster, directory: &Path) {
    let path = directory.join("f");
    let objects = lfs(cluster, &["getstripe", "-y", text(&path)]);
    let missing = migrate(cluster, &["-p", "nowhere"], &path).fails_with(libc::EINVAL).stderr.clone();
    assert!(missing.contains("pool 'nowhere fsname rlo' does not exist"), "{missing}");
    migrate(cluster, &["-i", "77"], &path).fails_with(libc::EINVAL);
    migrate(cluster, &["-c", "1"], directory).fails_with(libc::EINVAL);
    migrate(cluster, &["-c", "1"], &directory.join("none")).fails_with(libc::ENOENT);
    migrate(cluster, &["-c", "1", "--fid", "--lustre-dir", text(directory)], Path::new("x"))
        .fails_with(libc::EINVAL);
    std::os::unix::fs::symlink("f", directory.join("link")).expect("symlink");
    migrate(cluster, &["-c", "1"], &directory.join("link")).fails_with(libc::ELOOP);
    // Directories already are on the only MDT.
    migrate(cluster, &["-m", "0", "-c", "1", "-H", "crush"], directory).success();
    migrate(cluster, &["-m", "1"], directory).fails_with(libc::ENODEV);
    migrate(cluster, &["-m", "0"], &path).success();
    assert_eq!(lfs(cluster, &["getstripe", "-y", text(&path)]), objects);
    // A failure does not stop the other files; the exit code is that of the first failure.
    let list = cluster.run().directory().join("list");
    fs::write(&list, format!("{}\n{}\n", directory.join("none").display(), path.display())).expect("write");
    cluster.lfs(&["migrate", "-c", "4", "--files-from", text(&list)]).fails_with(libc::ENOENT);
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "4");
}

/// Starts a file system whose processes the test kills.
fn killed(shape: Shape, name: &str) -> Option<Cluster> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let options = Options { fsname: name.to_owned(), ..Options::default() };
    Some(Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Opened by the only client, so through the kernel's page cache: the kernel keeps a page locked while a part
/// of it is written, and that waits for the new layout while the pages of the old one are dropped.
fn write_parts_of_pages(path: &Path, model: &mut [u8], file: &File, stop: &AtomicBool) {
    let mut random = Rng::with_seed(31);
    let mut bytes = [0; 5000];
    while !stop.load(Ordering::Relaxed) {
        // From the middle of a page to the middle of it or of the next one.
        let at = random.usize(..model.len() - bytes.len());
        let piece = &mut bytes[..1 + random.usize(..5000)];
        fill(&mut random, piece);
        file.write_all_at(piece, at as u64).expect("write");
        model[at..at + piece.len()].copy_from_slice(piece);
        // A read caches the whole page, which is the other case.
        if random.usize(..64) == 0 {
            let mut found = [0; 1];
            let at = random.usize(..model.len());
            file.read_exact_at(&mut found, at as u64).expect("read");
            assert_eq!(found[0], model[at], "byte {at} of {}", path.display());
        }
    }
}

#[test]
fn parts_of_pages_are_written_through_the_cache_while_a_file_moves() {
    for (shape, name) in [(Shape::Embedded, "rlpe"), (Shape::Separate, "rlps")] {
        if !have(&["/dev/fuse"]) || !have_root() {
            return;
        }
        let options = Options { listen: true, fsname: name.to_owned(), ..Options::default() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return;
        }
        // Long timeouts, so that a deadlock is not resolved by eviction.
        let timeouts = ["mdt", "obdfilter"].map(|kind| format!("{kind}.{name}-*.ldlm_timeout=120"));
        cluster.lctl(&["set_param", &timeouts[0], &timeouts[1]]).success();
        let path = cluster.directory("d").join("f");
        let mut model = random_bytes(5, 64 * 4096);
        fs::write(&path, &model).expect("write");
        let file = read_write(&path);
        let there = cluster.add_mount().join("d").join("f");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_parts_of_pages(&path, &mut model, &file, &stop));
            let ended = Stop(&stop);
            for round in 0..4 {
                let began = Instant::now();
                migrate(&cluster, SHAPES[round % SHAPES.len()], &there).success();
                assert!(began.elapsed() < Duration::from_secs(60), "round {round}: {:?}", began.elapsed());
            }
            drop(ended);
            writer.join().expect("every byte was right");
        });
        assert!(fs::read(&there).expect("read") == model);
        drop(file);
        cluster.stop_and_check();
    }
}

#[test]
fn servers_that_are_killed_while_files_move_leave_the_old_or_the_new_content() {
    let Some(mut cluster) = killed(Shape::Separate, "rlk") else { return };
    let directory = cluster.directory("d");
    let (one, two) = (random_bytes(1, 2 * MIB as usize), random_bytes(2, MIB as usize));
    fs::write(directory.join("a"), &one).expect("write");
    fs::write(directory.join("b"), &two).expect("write");
    let stop = AtomicBool::new(false);
    let swaps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (a, b) = (directory.join("a"), directory.join("b"));
        let (stop, swaps) = (&stop, &swaps);
        let binary = cluster.command().get_program().to_owned();
        let mover = scope.spawn(move || {
            let run = |arguments: &[&str]| {
                std::process::Command::new(&binary)
                    .arg("lfs")
                    .args(arguments)
                    .status()
                    .expect("runs")
                    .success()
            };
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                run(&["migrate", "-c", if round % 2 == 0 { "2" } else { "1" }, text(&a)]);
                swaps.fetch_add(u64::from(run(&["swap_layouts", text(&a), text(&b)])), Ordering::Relaxed);
                round += 1;
            }
        });
        let ended = Stop(stop);
        let mut random = Rng::with_seed(41);
        for role in ["mdt0000", "ost0000"] {
            // After a restart too.
            let before = swaps.load(Ordering::Relaxed);
            wait::until(wait::SOON, "files move", || (swaps.load(Ordering::Relaxed) > before).then_some(()));
            // Waits for no condition: the kill is to hit any moment of the moves that follow.
            std::thread::sleep(Duration::from_millis(random.usize(..150) as u64));
            cluster.kill(role);
            cluster.start_all();
        }
        drop(ended);
        mover.join().expect("ends");
    });
    let found = [fs::read(directory.join("a")).expect("read"), fs::read(directory.join("b")).expect("read")];
    assert!(
        found == [one.clone(), two.clone()] || found == [two, one],
        "whole files, in one order or the other"
    );
    cluster.stop_and_check();
}
