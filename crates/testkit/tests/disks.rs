//! The commands on a full or damaged disk.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::program::{LIMIT, Outcome, run_command, shell};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::wait;
use nacre_testkit::{Cluster, Shape, binary, text};

/// Fills a file system on a disk of `mib` MiB with files of `piece` bytes, and empties it.
fn fill_and_empty(mib: u64, osts: usize, piece: usize) {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(mib);
    let options = Options { data: Some(disk.join("data")), osts, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    let kept = vec![7u8; piece];
    fs::write(root.join("kept"), &kept).expect("there is room");
    fs::File::open(root.join("kept")).expect("open").sync_all().expect("fsync");
    let mut failed = None;
    for index in 0..400 {
        let path = root.join(format!("fill-{index}"));
        let result = fs::write(&path, vec![1u8; piece]).and_then(|()| fs::File::open(&path)?.sync_all());
        if let Err(error) = result {
            failed = Some(error);
            break;
        }
    }
    let error = failed.expect("the disk is full at some time");
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(fs::read(root.join("kept")).expect("read") == kept);
    let names: Vec<_> =
        fs::read_dir(&root).expect("directory").map(|entry| entry.expect("entry").path()).collect();
    for path in names.iter().filter(|path| !path.ends_with("kept")) {
        fs::remove_file(path).unwrap_or_else(|error| panic!("a full disk can be emptied: {error}"));
    }
    wait::until(Duration::from_secs(60), "there is room again", || {
        let path = root.join("again");
        let result = fs::write(&path, vec![2u8; 5 * piece]).and_then(|()| fs::File::open(&path)?.sync_all());
        result.ok()
    });
    assert!(fs::read(root.join("kept")).expect("read") == kept);
    cluster.stop_and_check();
}

#[test]
fn a_full_disk_is_an_error_to_the_writer_and_loses_nothing() {
    fill_and_empty(700, 2, 4 << 20);
}

#[test]
fn a_disk_of_50_mib_is_enough_for_a_file_system() {
    fill_and_empty(50, 1, 1 << 20);
}

/// Creates links in `dir` until an error, from number `first` on; returns the number after the last one.
fn fill_with_links(dir: &Path, first: u32) -> u32 {
    // Few links fill an MDT: it stores their targets.
    let target = "x".repeat(3_000);
    let mut made = first;
    let error = loop {
        match std::os::unix::fs::symlink(&target, dir.join(made.to_string())) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    made
}

#[test]
fn an_mdt_that_was_full_takes_as_much_again_once_it_is_empty() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(128);
    let options = Options { data: Some(disk.join("data")), osts: 1, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    let mount = cluster.mount().to_owned();
    let free = || rustix::fs::statvfs(&mount).expect("statfs").f_ffree;
    let dir = root.join("links");
    let files = free();
    let mut most = 0;
    for round in 0..3 {
        if round == 2 {
            cluster.stop();
            cluster.start_all();
        }
        wait::until(Duration::from_secs(60), "there is room for a name", || fs::create_dir(&dir).ok());
        let mut made = 0;
        wait::until(Duration::from_secs(60), "there is as much room as before", || {
            made = fill_with_links(&dir, made);
            (made >= most / 10 * 9).then_some(())
        });
        most = most.max(made);
        assert!(free() < files / 10, "{} of {files}", free());
        fs::remove_dir_all(&dir).expect("a full MDT can be emptied");
        wait::until(Duration::from_secs(60), "what was removed counts as free", || {
            // With more than half of the disk free: the rest is freed by the next checkpoint of the store.
            (free() >= files / 10 * 6).then_some(())
        });
    }
    assert!(most > 1_000, "{most} links fill it");
    cluster.stop_and_check();
}

/// A listing updates the access time of its directory. The store knows that the disk is full, the MDT does
/// not yet.
#[test]
fn a_directory_can_be_listed_when_the_disk_of_its_mdt_is_full() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(80);
    let options = Options { data: Some(disk.join("data")), osts: 1, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let dir = cluster.directory("d");
    let mut made = 0;
    let make =
        |path: &Path| rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0);
    let error = loop {
        match make(&dir.join(made.to_string())) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, rustix::io::Errno::NOSPC);
    let listed = fs::read_dir(&dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    assert_eq!(listed.expect("listed").len(), made);
    cluster.stop_and_check();
}

#[test]
fn a_disk_of_1_gib_has_800_mib_for_data_again_and_again() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(1024);
    let options = Options { data: Some(disk.join("data")), osts: 1, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let path = cluster.directory("d").join("large");
    let piece = vec![5u8; 8 << 20];
    for round in 0..3 {
        let write = || -> std::io::Result<()> {
            let mut file = fs::File::create(&path)?;
            for _ in 0..100 {
                file.write_all(&piece)?;
            }
            file.sync_all()
        };
        write().unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(fs::metadata(&path).expect("stat").len(), 800 << 20);
        fs::remove_file(&path).expect("removed");
    }
    cluster.stop_and_check();
}

/// Writes in small pieces until the disk is full; returns the acknowledged bytes.
fn fill(path: &Path, seed: u8) -> u64 {
    let mut file = fs::File::create(path).expect("create");
    let mut written = 0;
    let error = loop {
        match file.write(&[seed; 8_000]) {
            Ok(bytes) => written += bytes as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    file.sync_all().expect("nothing that was answered finds the disk full");
    written
}

#[test]
fn what_is_held_back_never_finds_the_disk_full() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    for shape in [Shape::Embedded, Shape::Separate] {
        let run = Run::new();
        let disk = run.make("disk");
        let script = r#"truncate -s 900M "$1/image"; mkfs.ext4 -q "$1/image"; mount -o loop "$1/image" "$2""#;
        shell(Path::new("/"), script, [run.directory(), &disk]).success();
        let options = Options { data: Some(disk.join("data")), osts: 2, ..Options::default() };
        let mut cluster = Cluster::start_with(shape, &options);
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let writers: Vec<_> = (1..=4)
            .map(|seed| {
                let path = root.join(seed.to_string());
                std::thread::spawn(move || (fill(&path, seed), path, seed))
            })
            .collect();
        for writer in writers {
            let (written, path, seed) = writer.join().expect("the writer does not panic");
            let found = fs::read(&path).expect("read");
            assert_eq!(found.len() as u64, written, "{path:?}");
            assert!(found.iter().all(|&byte| byte == seed), "{path:?}");
        }
        fs::remove_dir_all(&root).expect("a full disk can be emptied");
        cluster.stop_and_check();
    }
}

/// Returns the paths below a directory, with attributes that any change updates.
fn states(dir: &Path) -> BTreeMap<PathBuf, (u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let meta = fs::symlink_metadata(dir).expect("there");
    found.insert(dir.to_owned(), (meta.len(), meta.ctime(), meta.ctime_nsec()));
    if meta.is_dir() {
        for entry in fs::read_dir(dir).expect("listed") {
            found.append(&mut states(&entry.expect("listed").path()));
        }
    }
    found
}

/// Flips a bit.
fn flip(path: &Path, at: u64, bit: u8) {
    let file = fs::OpenOptions::new().read(true).write(true).open(path).expect("opened");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ bit], at).expect("written");
}

/// Starts a file system with every kind of target and kills it.
fn one_of_each() -> Option<Cluster> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    let options = Options {
        mdts: 2,
        osts: 2,
        fsname: "flips".to_owned(),
        mdt_backend: words(&["meta", "block,size=64M"]),
        ost_backend: words(&["file,checksums", "block,size=64M"]),
        ost_cache_size: Some("1M".to_owned()),
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(Shape::Embedded, &options))?;
    if cluster.is_foreign() {
        return None;
    }
    for (name, requested) in [("data", &["-c", "-1"][..]), ("small", &["-E", "64K", "-L", "mdt", "-E", "-1"])]
    {
        for mdt in ["0", "1"] {
            let dir = cluster.mount().join(format!("{name}{mdt}"));
            cluster.lfs(&["mkdir", "-i", mdt, text(&dir)]).success();
            cluster.lfs(&[&["setstripe"], requested, &[text(&dir)]].concat()).success();
            for number in 0..40u8 {
                let file = dir.join(format!("f{number}"));
                fs::write(file, vec![number; 3000 * usize::from(number)]).expect("written");
            }
        }
    }
    shell(Path::new("/"), r#"sync -f "$1""#, [cluster.mount()]).success();
    cluster.kill_all();
    Some(cluster)
}

/// Checks a file system and verifies that the check changes nothing.
fn check_only(cluster: &Cluster, dir: &Path) -> Outcome {
    let before = states(cluster.data());
    let outcome = cluster.nacre(&["check", text(dir)]);
    assert!((0..=1).contains(&outcome.code()) && !outcome.stderr.contains("panicked"), "{outcome}");
    assert_eq!(states(cluster.data()), before, "{outcome}");
    outcome
}

/// Whichever bit is damaged, a check ends in order, changes nothing, and reports all defects that it must
/// find.
#[test]
fn a_check_changes_nothing_and_goes_on_behind_damage() {
    let Some(mut cluster) = one_of_each() else { return };
    let data = cluster.data().to_owned();
    check_only(&cluster, &data).success();
    // It works on a read-only mount.
    let read_only = cluster.run().make("read-only");
    let script = r#"mount --bind "$1" "$2"; mount -o remount,bind,ro "$2""#;
    shell(Path::new("/"), script, [&data, &read_only]).success();
    let looked = check_only(&cluster, &read_only);
    shell(Path::new("/"), r#"umount "$1""#, [&read_only]).success();
    looked.success();
    let named = [
        ("superblock", 40, "superblock is damaged"),
        ("mgs/config.copy", 60, "config.copy is damaged"),
        ("mdt0000/meta/superblock", 20, "meta/superblock is damaged"),
        ("mdt0001/meta/base/data.mdb", 16, "page 0 of the base"),
        ("mdt0001/data/superblock.copy", 50, "superblock.copy is damaged"),
        ("ost0000/superblock", 20, "ost0000/superblock is damaged"),
        ("ost0000/index/superblock.copy", 20, "superblock.copy is damaged"),
        ("ost0001/index/wal.0", 20, "log segment header"),
        ("ost0001/data", 20, "the label in the first block of the device"),
    ];
    let flip_all = || named.iter().for_each(|(name, at, _)| flip(&data.join(name), *at, 1));
    flip_all();
    let found = check_only(&cluster, &data).fails_with(1).stdout;
    for (name, _, text) in named {
        assert!(found.contains(text), "{name}: {found}");
    }
    flip_all();
    flip_anywhere(&cluster, &data);
    check_only(&cluster, &data).success();
    cluster.start_all();
    let last = cluster.mount().join("small1/f39");
    assert!(fs::read(last).expect("read") == vec![39; 3000 * 39]);
    cluster.stop_and_check();
}

fn flip_anywhere(cluster: &Cluster, data: &Path) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let files: Vec<(PathBuf, u64)> = states(data)
        .into_iter()
        .filter(|(path, (len, ..))| path.is_file() && *len > 0 && !path.starts_with(data.join("run")))
        .map(|(path, (len, ..))| (path, len))
        .collect();
    let (mut random, mut found) = (Rng::with_seed(number("NACRE_FLIP_SEED").unwrap_or(3)), 0);
    for _ in 0..number("NACRE_FLIPS").unwrap_or(20) {
        // Several at once, as on a failing disk.
        let places: Vec<(&PathBuf, u64, u8)> = (0..1 + random.usize(..4))
            .map(|_| {
                let (path, len) = &files[random.usize(..files.len())];
                let span = if random.bool() { (*len).min(4096) } else { *len };
                (path, random.usize(..span as usize) as u64, 1 << random.usize(..8))
            })
            .collect();
        let flip_all = || places.iter().for_each(|(path, at, bit)| flip(path, *at, *bit));
        flip_all();
        found += check_only(cluster, data).code();
        flip_all();
    }
    assert!(found > 0);
}

/// The underlying file system can be unmounted at once.
#[test]
fn down_returns_when_all_files_are_closed() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(600);
    let mount = run.make("mnt");
    let nacre = |words: &[&str]| {
        let mut command = run.command(binary::nacre());
        command.args(words);
        run_command(command, LIMIT)
    };
    let dir = disk.join("fs");
    for shape in [&[][..], &["--separate"]] {
        for _ in 0..3 {
            let words = ["up", text(&dir), "--mount", text(&mount), "--osts", "2"];
            let backends = ["--ost-backend", "file", "--ost-backend", "block,size=64M"];
            nacre(&[&words, &backends[..], shape].concat()).success();
            fs::write(mount.join("file"), vec![1; 1 << 20]).expect("written");
            nacre(&["down", text(&dir)]).success();
            let image = run.directory().join("image");
            shell(Path::new("/"), r#"umount "$1"; mount -o loop "$2" "$1""#, [&disk, &image]).success();
        }
    }
}

/// Other files fill the disk of a stopped file system: it starts, reports that, and files can be read and
/// removed.
fn a_disk_that_others_filled(shape: &[&str]) {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let (disk, mount) = (run.small_disk(500), run.make("mnt"));
    let nacre = |words: &[&str]| {
        let mut command = run.command(binary::nacre());
        command.args(words);
        run_command(command, LIMIT)
    };
    let dir = disk.join("fs");
    let up = [&["up", text(&dir), "--mount", text(&mount), "--osts", "1"], shape].concat();
    nacre(&up).success();
    let file = |name: &str| mount.join(name);
    for name in ["kept", "removed"] {
        fs::write(file(name), vec![5; 200_000]).expect("written");
    }
    nacre(&["down", text(&dir)]).success();
    let script = r#"cat /dev/zero > "$1/others" || true; sync -f "$1""#;
    shell(Path::new("/"), script, [&disk]);
    let started = nacre(&up).success();
    assert!(started.stdout.contains("MDT0000 is full") && started.stdout.contains("mdt0000"), "{started}");
    assert!(fs::read(file("kept")).expect("read") == vec![5; 200_000]);
    let refused = fs::write(file("new"), vec![6; 200_000]).expect_err("no space");
    assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
    fs::remove_file(file("removed")).expect("removed");
    nacre(&["down", text(&dir)]).success();
    fs::remove_file(disk.join("others")).expect("freed");
    let started = nacre(&up).success();
    assert!(!started.stdout.contains("full"), "{started}");
    assert!(!file("removed").exists() && fs::read(file("kept")).expect("read") == vec![5; 200_000]);
    fs::write(file("new"), vec![6; 200_000]).expect("there is space again");
    nacre(&["down", text(&dir)]).success();
    nacre(&["check", text(&dir)]).success();
}

#[test]
fn a_file_system_starts_on_a_disk_that_others_filled_in_one_process() {
    a_disk_that_others_filled(&[]);
}

#[test]
fn a_file_system_starts_on_a_disk_that_others_filled_as_processes() {
    a_disk_that_others_filled(&["--separate"]);
}
