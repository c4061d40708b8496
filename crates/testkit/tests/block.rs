//! OSTs that store their objects on block devices.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program, wait};

const BACKEND: &str = "block,size=2G";

fn start(shape: Shape, fsname: &str, backends: &[&str]) -> Option<Cluster> {
    let options = Options {
        osts: 2,
        fsname: fsname.to_owned(),
        ost_backend: backends.iter().map(|backend| (*backend).to_owned()).collect(),
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

fn data_of(cluster: &Cluster, ost: usize) -> PathBuf {
    cluster.data().join(format!("ost{ost:04x}")).join("data")
}

/// Writes files of several sizes and makes them durable.
fn write_files(directory: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let lengths = [0, 1, 100, 4096, 4097, 70_000, 1 << 20, 5_000_000];
    let mut files = Vec::new();
    for (number, length) in lengths.into_iter().cycle().take(40).enumerate() {
        let path = directory.join(format!("file{number}"));
        let bytes = content(number as u64, length);
        fs::write(&path, &bytes).expect("written");
        File::open(&path).expect("opened").sync_all().expect("synced");
        files.push((path, bytes));
    }
    files
}

fn check_files(files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        assert!(fs::read(path).expect("read") == *bytes, "{}", path.display());
    }
}

fn files_survive_stops_and_kills(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname, &[BACKEND]) else { return };
    let directory = cluster.directory("files");
    let files = write_files(&directory);
    Exercise::new(7, 400).run(&directory.join("exercised"));
    cluster.kill_all();
    cluster.start_all();
    check_files(&files);
    cluster.stop_and_check();
    cluster.start_all();
    check_files(&files);
    files.iter().for_each(|(path, _)| fs::remove_file(path).expect("removed"));
    cluster.stop_and_check();
}

#[test]
fn files_survive_stops_and_kills_in_one_process() {
    files_survive_stops_and_kills(Shape::Embedded, "blk0");
}

#[test]
fn files_survive_stops_and_kills_of_separate_processes() {
    files_survive_stops_and_kills(Shape::Separate, "blk1");
}

#[test]
fn damaged_data_is_an_error_and_the_check_names_it() {
    damage("blk2", BACKEND, |cluster| vec![data_of(cluster, 0)]);
}

#[test]
fn damaged_data_in_files_with_checksums_is_an_error_and_the_check_names_it() {
    damage("blk3", "file,checksums", |cluster| {
        let list = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir).expect("listed").map(|entry| entry.expect("listed").path()).collect()
        };
        list(&cluster.data().join("ost0000/objects")).iter().flat_map(|below| list(below)).collect()
    });
}

/// Flips a bit of a file on an OST of this back end, whose data is in the files that `images` returns.
fn damage(name: &str, backend: &str, images: impl Fn(&Cluster) -> Vec<PathBuf>) {
    let Some(mut cluster) = start(Shape::Embedded, name, &[backend]) else { return };
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let (good, bad) = (directory.join("good"), directory.join("bad"));
    let bytes = content(3, 300_000);
    fs::write(&good, &bytes).expect("written");
    fs::write(&bad, content(4, 300_000)).expect("written");
    cluster.stop();
    let wanted = &content(4, 300_000)[8192..8192 + 512];
    let place = |image: &PathBuf| {
        let bytes = fs::read(image).expect("read");
        let at = bytes.chunks(4096).position(|block| block.get(..512) == Some(wanted))?;
        Some((image.clone(), at * 4096))
    };
    let (image, at) = images(&cluster).iter().find_map(place).expect("the block is there");
    let file = OpenOptions::new().read(true).write(true).open(&image).expect("opened");
    file.write_all_at(&[wanted[100] ^ 1], at as u64 + 100).expect("flipped");
    drop(file);
    let outcome = cluster.nacre(&["check".as_ref(), cluster.data().as_os_str()]);
    assert_ne!(outcome.code(), 0);
    let text = outcome.stdout + &outcome.stderr;
    let named = match backend == BACKEND {
        true => format!("data at offset 8192 is damaged (block at {at} of the device)"),
        false => "data at offset 8192 is damaged".to_owned(),
    };
    assert!(text.contains(&named), "{text}");
    let other = if backend == BACKEND { "file,checksums" } else { "file" };
    let refused =
        cluster.nacre(&["up", nacre_testkit::text(cluster.data()), "--ost-backend", other]).fails_with(1);
    assert!(refused.stderr.contains("was made with --ost-backend"), "{refused}");
    cluster.start_all();
    assert!(fs::read(&good).expect("read") == bytes);
    let error = fs::read(&bad).expect_err("noticed");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let scrub = format!("obdfilter.{name}-OST0000.scrub");
    cluster.lctl(&["set_param", &format!("{scrub}=start")]).success();
    let state = wait::until(wait::SOON, "the scrub has read all data", || {
        let text = get(&cluster, &format!("{scrub}_state"));
        let state: serde_json::Value = serde_json::from_str(text.trim()).expect("JSON");
        (state["is_complete"] == true).then_some(state)
    });
    assert_eq!(
        (&state["found"], state["findings"].as_array().map(Vec::len)),
        (&1.into(), Some(1)),
        "{state}"
    );
    cluster.stop();
}

/// Reads a file of `content` in blocks of 4 KiB, at random offsets, by many threads past all caches. Returns
/// the number of blocks that could not be read.
fn read_by_many(path: &Path, content: &[u8], seed: u64) -> usize {
    const THREADS: u64 = 16;
    let read = |thread: u64| {
        let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).expect("opened");
        let mut memory = vec![0; 8192];
        let start = memory.as_ptr().align_offset(4096);
        let mut random = Rng::with_seed(seed * THREADS + thread);
        let mut refused = 0;
        for _ in 0..150 {
            let at = random.usize(..content.len() / 4096) * 4096;
            let buffer = &mut memory[start..start + 4096];
            match file.read_exact_at(buffer, at as u64) {
                Ok(()) => assert!(*buffer == content[at..at + 4096], "other data at {at}"),
                Err(error) if error.raw_os_error() == Some(libc::EIO) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        refused
    };
    let read = &read;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || read(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("read")).sum()
    })
}

#[test]
fn small_reads_of_many_threads_share_submissions_and_the_damage_of_one_is_no_error_of_others() {
    let Some(mut cluster) = start(Shape::Separate, "blk8", &[BACKEND]) else { return };
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let (path, bytes) = (directory.join("file"), content(5, 1 << 20));
    fs::write(&path, &bytes).expect("written");
    File::open(&path).expect("opened").sync_all().expect("synced");
    let did = |name: &str| count(&cluster, "blk8-OST0000", "device_stats", name);
    let before = ["reads", "ring_batches", "call_batches", "copied_reads"].map(did);
    assert_eq!(read_by_many(&path, &bytes, 1), 0);
    let after = ["reads", "ring_batches", "call_batches", "copied_reads"].map(did);
    let [reads, by_rings, by_calls, copied] = [0, 1, 2, 3].map(|row| after[row] - before[row]);
    // The kernel and the client may serve two reads of the same block with one request.
    assert!(reads >= 1000, "reads go to the device: {before:?} {after:?}");
    assert_eq!(copied, 0, "none is copied on its way to the network");
    assert!(by_rings + by_calls < reads, "some went together: {before:?} {after:?}");
    assert!(by_rings == 0 || did("ring_enters") > 0);
    let device = data_of(&cluster, 0);
    let file = OpenOptions::new().read(true).write(true).open(&device).expect("opened");
    let mut image = vec![0; 1 << 20];
    let found = (0..).find_map(|part: u64| {
        file.read_exact_at(&mut image, part << 20).expect("it is on the device");
        let at = image.chunks(4096).position(|block| *block == bytes[77 * 4096..78 * 4096]);
        at.map(|at| (part << 20) + at as u64 * 4096)
    });
    let at = found.expect("looked for until it was found");
    file.write_all_at(&[bytes[77 * 4096 + 9] ^ 1], at + 9).expect("flipped");
    file.sync_all().expect("synced");
    let refused = read_by_many(&path, &bytes, 2);
    assert!((1..200).contains(&refused), "{refused} of 2400");
    cluster.stop();
}

/// Returns a counter among the `name value` lines of a parameter of an OST.
fn count(cluster: &Cluster, ost: &str, leaf: &str, name: &str) -> u64 {
    let shown = get(cluster, &format!("obdfilter.{ost}.{leaf}"));
    let mut fields = shown.lines().map(str::split_whitespace);
    let row = fields.find_map(|mut row| (row.next() == Some(name)).then(|| row.next()));
    row.flatten().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {shown}"))
}

fn get(cluster: &Cluster, pattern: &str) -> String {
    cluster.lctl(&["get_param", "-n", pattern]).success().stdout
}

/// Returns the extents of the objects of the first OST, as `nacre frag` reports them.
fn extents(cluster: &Cluster) -> u64 {
    let shown =
        cluster.nacre(&["frag".as_ref(), cluster.data().join("ost0000").as_os_str()]).success().stdout;
    assert!(shown.contains("(store on a device)"), "{shown}");
    let after = shown.split_once(" in ").expect("a line of objects").1;
    after.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{shown}"))
}

fn scattered_objects_are_moved_together(shape: Shape, fsname: &str) {
    const BLOCKS: u64 = 512;
    let Some(mut cluster) = start(shape, fsname, &[BACKEND]) else { return };
    let ost = format!("{fsname}-OST0000");
    let set = |cluster: &Cluster, setting: &str| {
        cluster.lctl(&["set_param", &format!("obdfilter.{ost}.{setting}")]).success();
    };
    set(&cluster, "defrag_enable=0");
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let mut files = Vec::new();
    for number in 0..2u64 {
        let bytes = content(number, BLOCKS as usize * 4096);
        let path = directory.join(format!("file{number}"));
        let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path).expect("made");
        // In reverse, each made durable, so that writes are not merged.
        for at in (0..BLOCKS).rev().step_by(2).chain((0..BLOCKS).rev().skip(1).step_by(2)) {
            let range = at as usize * 4096..(at as usize + 1) * 4096;
            file.write_all_at(&bytes[range], at * 4096).expect("written");
            file.sync_data().expect("synced");
        }
        files.push((path, bytes));
    }
    let before = extents(&cluster);
    assert!(before > BLOCKS, "{before} extents while the OST runs");
    set(&cluster, "defrag_threshold_percent=10");
    set(&cluster, "defrag_bytes_per_second=1G");
    set(&cluster, "defrag_rest_seconds=0");
    set(&cluster, "defrag_idle_ms=10");
    set(&cluster, "defrag_enable=1");
    let stats = |cluster: &Cluster, name: &str| count(cluster, &ost, "defrag_stats", name);
    wait::until(wait::SOON, "both objects were moved", || {
        (stats(&cluster, "bytes") == 2 * BLOCKS * 4096).then_some(())
    });
    assert_eq!(stats(&cluster, "objects"), 2);
    assert!(stats(&cluster, "extents_before") > BLOCKS && stats(&cluster, "extents_after") <= 4);
    assert!(extents(&cluster) <= 4);
    check_files(&files);
    cluster.kill_all();
    cluster.start_all();
    check_files(&files);
    cluster.stop_and_check();
    assert!(extents(&cluster) <= 4, "of a target that is stopped");
}

#[test]
fn scattered_objects_are_moved_together_in_one_process() {
    scattered_objects_are_moved_together(Shape::Embedded, "blk4");
}

#[test]
fn scattered_objects_are_moved_together_by_separate_processes() {
    scattered_objects_are_moved_together(Shape::Separate, "blk5");
}

#[test]
fn parameters_show_what_a_store_and_its_device_did() {
    let Some(mut cluster) = start(Shape::Embedded, "blk6", &[BACKEND, "file"]) else { return };
    let names = |ost: &str| get(&cluster, &format!("obdfilter.blk6-{ost}.fstype"));
    assert_eq!((names("OST0000").trim(), names("OST0001").trim()), ("block", "file"));
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let path = directory.join("file");
    let bytes = content(9, 1 << 20);
    fs::write(&path, &bytes).expect("written");
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    file.sync_all().expect("synced");
    // Three blocks of the first 64 KiB are relocated.
    for at in [2u64, 5, 9] {
        file.write_all_at(&bytes[at as usize * 4096..][..4096], at * 4096).expect("written");
        file.sync_all().expect("synced");
    }
    let ost = "blk6-OST0000";
    assert_eq!(count(&cluster, ost, "store_stats", "objects"), 1);
    assert!(count(&cluster, ost, "store_stats", "flushes") >= 4);
    assert_eq!(count(&cluster, ost, "store_stats", "checksum_errors"), 0);
    assert!(count(&cluster, ost, "device_stats", "written_bytes") >= 1 << 20);
    assert!(count(&cluster, ost, "device_stats", "flushes") >= 4);
    cluster.lctl(&["set_param", &format!("obdfilter.{ost}.scrub_bytes_per_second=1G")]).success();
    assert_eq!(get(&cluster, &format!("obdfilter.{ost}.scrub_bytes_per_second")).trim(), "1073741824");
    wait::until(wait::SOON, "all data was read", || {
        (count(&cluster, ost, "store_stats", "scrubbed_bytes") >= 1 << 20).then_some(())
    });
    let read_ahead = format!("obdfilter.{ost}.read_ahead_bytes");
    assert_eq!(get(&cluster, &read_ahead).trim(), "16777216");
    cluster.lctl(&["set_param", &format!("{read_ahead}=5M")]).success();
    assert_eq!(get(&cluster, &read_ahead).trim(), "4194304", "whole streams");
    for outside in ["1M", "1025M", "1T"] {
        cluster.lctl(&["set_param", &format!("{read_ahead}={outside}")]).fails_with(libc::ERANGE);
    }
    assert_eq!(get(&cluster, &read_ahead).trim(), "4194304", "as it was");
    let mount_read_ahead = format!("llite.{}-*.max_read_ahead_mb=0", cluster.fsname());
    cluster.lctl(&["set_param", &mount_read_ahead]).success();
    let stream = directory.join("stream");
    let long = content(10, 12 << 20);
    fs::write(&stream, &long).expect("written");
    File::open(&stream).expect("opened").sync_all().expect("synced");
    let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&stream).expect("opened");
    let mut memory = vec![0; (1 << 20) + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[start..start + (1 << 20)];
    for piece in 0..12 {
        let at = piece << 20;
        direct.read_exact_at(buffer, at as u64).expect("read");
        assert!(*buffer == long[at..at + (1 << 20)]);
    }
    let used = count(&cluster, ost, "store_stats", "read_ahead_used");
    let device = get(&cluster, &format!("obdfilter.{ost}.device_stats"));
    let engine = device.lines().find_map(|line| line.strip_prefix("engine")).expect("a row").trim();
    match engine {
        "io_uring" => assert!(used > 0, "a stream that waits for each read"),
        // A kernel without io_uring.
        _ => assert_eq!((engine, used), ("system calls", 0)),
    }
    cluster.kill_all();
    cluster.start_all();
    assert!(fs::read(&path).expect("read") == bytes);
    let brw = get(&cluster, &format!("obdfilter.{ost}.brw_stats"));
    let (_, after) = brw.split_once("disk fragmented I/Os").expect("a table");
    let table = after.split("\n\n").next().expect("a table");
    let last = table.lines().last().expect("a row");
    let pieces: u64 = last.split(':').next().and_then(|word| word.parse().ok()).expect("a row");
    assert!(pieces >= 5, "the blocks lie apart: {brw}");
    cluster.stop_and_check();
}

#[test]
fn a_stopped_target_is_inspected_without_being_changed() {
    let Some(mut cluster) = start(Shape::Embedded, "blk7", &[BACKEND]) else { return };
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let bytes = content(11, 300_000);
    fs::write(directory.join("file"), &bytes).expect("written");
    fs::write(directory.join("small"), b"in its record").expect("written");
    let target = cluster.data().join("ost0000");
    let inspect = |cluster: &Cluster, more: &[&str]| {
        let words: Vec<&str> =
            ["inspect", target.to_str().expect("plain")].into_iter().chain(more.iter().copied()).collect();
        cluster.nacre(&words)
    };
    let used = inspect(&cluster, &[]).fails_with(1);
    assert!(used.stderr.contains("in use"), "{used}");
    cluster.stop();
    let state = || {
        let index =
            fs::read_dir(target.join("index")).expect("listed").map(|entry| entry.expect("listed").path());
        let mut files: Vec<PathBuf> = index.filter(|path| path.is_file()).collect();
        files.extend([target.join("superblock"), data_of(&cluster, 0)]);
        files.sort();
        files
            .iter()
            .map(|path| (path.clone(), fs::metadata(path).expect("there").mtime_nsec()))
            .collect::<Vec<_>>()
    };
    let before = state();
    let shown = inspect(&cluster, &[]).success().stdout;
    for text in ["blk7-OST0000", "that of this store", "2, 1 of them in their records", "; closed in order"] {
        assert!(shown.contains(text), "{text} in {shown}");
    }
    let json = inspect(&cluster, &["--json"]).success().stdout;
    assert!(json.contains(r#""closed_in_order": true"#) && json.contains(r#""damage": []"#), "{json}");
    let objects = inspect(&cluster, &["--objects"]).success().stdout;
    let fids: Vec<&str> = objects.lines().filter(|line| line.starts_with('[')).collect();
    assert_eq!(fids.len(), 2, "{objects}");
    let large = fids
        .iter()
        .find(|fid| inspect(&cluster, &["--object", fid]).success().stdout.contains("300000 bytes"));
    let large = large.expect("one of them");
    let good = inspect(&cluster, &["--object", large, "--checksums"]).success().stdout;
    assert!(good.contains("checksums match") && !good.contains("damage"), "{good}");
    let missing = inspect(&cluster, &["--object", "[0x100000000:0xfffff:0x0]"]).fails_with(1);
    assert!(missing.stderr.contains("has no object"), "{missing}");
    assert_eq!(state(), before, "nothing was changed");

    let image = fs::read(data_of(&cluster, 0)).expect("read");
    let at = image.chunks(4096).position(|block| block[..512] == bytes[8192..8704]).expect("there") * 4096;
    let device = OpenOptions::new().write(true).open(data_of(&cluster, 0)).expect("opened");
    device.write_all_at(&[bytes[8192] ^ 1], at as u64).expect("flipped");
    let bad = inspect(&cluster, &["--object", large]).fails_with(1);
    let named = format!("data at offset 8192 is damaged (block at {at} of the device)");
    assert!(bad.stdout.contains(&named), "{bad}");
    device.write_all_at(&[0; 512], 0).expect("label overwritten");
    let bad = inspect(&cluster, &[]).fails_with(1);
    assert!(bad.stdout.contains("the label in the first block of the device"), "{bad}");
    let files = inspect(&cluster, &["--scratch", "/nonexistent"]).fails_with(1);
    assert!(files.stderr.contains("make the directory"), "{files}");
}

#[test]
fn a_device_that_holds_something_is_left_alone() {
    if !have_root() {
        return;
    }
    let run = nacre_testkit::run::Run::new();
    let device = run.directory().join("device");
    let mut bytes = vec![0; 128 << 20];
    bytes[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    fs::write(&device, &bytes).expect("written");
    let format = |backends: &[String]| {
        let mut command = run.command(nacre_testkit::binary::nacre());
        command.arg("format").arg(run.directory().join("fs")).args(["--osts", "2"]);
        for backend in backends {
            command.args(["--ost-backend", backend]);
        }
        program::run_command(command, program::LIMIT)
    };
    let named = |suffix: &str| vec![format!("block:{}{suffix}", device.display()), BACKEND.to_owned()];
    let outcome = format(&named("")).fails_with(1);
    assert!(
        outcome.stderr.contains("an ext2, ext3 or ext4 file system; nothing was overwritten"),
        "{}",
        outcome.stderr
    );
    assert!(fs::read(&device).expect("read") == bytes);
    let outcome = format(&named("")[..1]).fails_with(2);
    assert!(outcome.stderr.contains("cannot belong to several OSTs"), "{}", outcome.stderr);
    format(&named(",force")).success();
    // The device is not mistaken for the former file system.
    assert!(fs::read(&device).expect("read")[0x438..0x43a] == [0, 0]);
}

#[test]
fn files_that_are_devices_share_what_is_available() {
    let Some(mut cluster) = start(Shape::Embedded, "blk9", &["block", "block"]) else { return };
    let sizes = [0, 1].map(|ost| fs::metadata(data_of(&cluster, ost)).expect("there").len());
    let available = rustix::fs::statvfs(cluster.data()).expect("asked");
    let available = available.f_bavail * available.f_frsize;
    assert!(sizes[0].abs_diff(sizes[1]) < sizes[0] / 10, "{sizes:?}: each has a half");
    assert!(sizes[0] + sizes[1] < available, "{sizes:?} of {available}");
    cluster.stop_and_check();
}

#[test]
fn each_ost_has_its_back_end_and_keeps_it() {
    let Some(mut cluster) = start(Shape::Embedded, "blk10", &[BACKEND, "file"]) else { return };
    let directory = cluster.directory("files");
    let files = write_files(&directory);
    assert!(data_of(&cluster, 0).exists() && cluster.data().join("ost0001/objects").exists());
    assert_eq!(fs::metadata(data_of(&cluster, 0)).expect("there").len(), 2 << 30);
    assert!(fs::metadata(data_of(&cluster, 0)).expect("there").blocks() > 0, "data lies there");
    let (data, mount) = (cluster.data().to_string_lossy(), cluster.mount().to_string_lossy());
    let wrong = ["up", &*data, "--mount", &*mount, "--ost-backend", "block", "--ost-backend", "block"];
    let outcome = cluster.nacre(&wrong).fails_with(1);
    assert!(outcome.stderr.contains("was made with --ost-backend file, not block"), "{}", outcome.stderr);
    check_files(&files);
    cluster.stop_and_check();
}
