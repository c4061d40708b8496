//! MDTs that store data of files on separate devices.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program, text, wait};

const BACKEND: &str = "block,size=256M";
const MIB: usize = 1 << 20;

fn start(shape: Shape, fsname: &str, mdts: usize, backends: &[&str]) -> Option<Cluster> {
    let options = Options {
        mdts,
        osts: 1,
        fsname: fsname.to_owned(),
        mdt_backend: backends.iter().map(|backend| (*backend).to_owned()).collect(),
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Creates a directory whose files are on the MDT up to 1 MiB.
fn directory(cluster: &Cluster, name: &str) -> PathBuf {
    let root = cluster.directory(name);
    cluster.lfs(&["setstripe", "-E", "1M", "-L", "mdt", "-E", "-1", text(&root)]).success();
    root
}

fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

fn get(cluster: &Cluster, pattern: &str) -> String {
    cluster.lctl(&["get_param", "-n", pattern]).success().stdout
}

/// Returns a counter of the store of an MDT.
fn count(cluster: &Cluster, mdt: &str, leaf: &str, name: &str) -> u64 {
    let shown = get(cluster, &format!("obdfilter.{mdt}-data.{leaf}"));
    let mut rows = shown.lines().map(str::split_whitespace);
    let row = rows.find_map(|mut row| (row.next() == Some(name)).then(|| row.next()));
    row.flatten().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {shown}"))
}

fn await_objects(cluster: &Cluster, mdt: &str, objects: u64) {
    wait::until(wait::SOON, "the data of removed files goes", || {
        (count(cluster, mdt, "store_stats", "objects") == objects).then_some(())
    });
}

/// Creates files of several sizes and makes them durable.
fn write_files(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let lengths = [1, 100, 4096, 4097, 20_000, 70_000, MIB, MIB + 7];
    let write = |(number, length): (usize, usize)| {
        let path = root.join(number.to_string());
        let bytes = content(number as u64, length);
        fs::write(&path, &bytes).expect("written");
        File::open(&path).expect("opened").sync_all().expect("synced");
        (path, bytes)
    };
    lengths.into_iter().cycle().take(24).enumerate().map(write).collect()
}

fn check_files(files: &[(PathBuf, Vec<u8>)]) {
    for (path, bytes) in files {
        assert!(fs::read(path).expect("read") == *bytes, "{}", path.display());
    }
}

fn data_lies_on_the_device_and_survives_stops_and_kills(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname, 1, &[BACKEND]) else { return };
    let mdt = format!("{fsname}-MDT0000");
    let root = directory(&cluster, "d");
    let files = write_files(&root);
    assert_eq!(count(&cluster, &mdt, "store_stats", "objects"), files.len() as u64);
    let written: u64 = files.iter().map(|(_, bytes)| bytes.len().min(MIB) as u64).sum();
    assert!(count(&cluster, &mdt, "device_stats", "written_bytes") > written / 2, "not in the metadata");
    assert_eq!(get(&cluster, &format!("obdfilter.{mdt}-data.fstype")).trim(), "block");
    match shape {
        Shape::Embedded => cluster.kill_all(),
        Shape::Separate => cluster.kill("mdt0000"),
    }
    cluster.start_all();
    check_files(&files);
    cluster.stop_and_check();
    cluster.start_all();
    check_files(&files);
    Exercise { size_max: 60_000, length_max: 20_000, ..Exercise::new(5, 400) }.run(&root.join("small"));
    Exercise::new(6, 300).run(&root.join("large"));
    cluster.kill_all();
    cluster.start_all();
    check_files(&files);
    // The device is not damaged, as a scrub shows.
    cluster.lctl(&["set_param", &format!("obdfilter.{mdt}-data.scrub_bytes_per_second=1G")]).success();
    wait::until(wait::SOON, "all data was read", || {
        (count(&cluster, &mdt, "store_stats", "scrubbed_bytes") >= written / 2).then_some(())
    });
    assert_eq!(count(&cluster, &mdt, "store_stats", "checksum_errors"), 0);
    cluster.stop_and_check();
}

#[test]
fn data_lies_on_the_device_and_survives_stops_and_kills_in_one_process() {
    data_lies_on_the_device_and_survives_stops_and_kills(Shape::Embedded, "mdd0");
}

#[test]
fn data_lies_on_the_device_and_survives_stops_and_kills_of_separate_processes() {
    data_lies_on_the_device_and_survives_stops_and_kills(Shape::Separate, "mdd1");
}

fn removed_files_give_their_space_back(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname, 1, &[BACKEND]) else { return };
    let mdt = format!("{fsname}-MDT0000");
    // Otherwise files would move to OSTs when the device becomes full.
    cluster.lctl(&["set_param", &format!("lod.{mdt}-mdtlov.dom_threshold_free_mb=0")]).success();
    let root = cluster.directory("d");
    cluster.lfs(&["setstripe", "-E", "1M", "-L", "mdt", text(&root)]).success();
    let free = |cluster: &Cluster| {
        get(cluster, &format!("obdfilter.{mdt}-data.kbytesfree")).trim().parse::<u64>().expect("a number")
    };
    let before = free(&cluster);
    let bytes = content(8, MIB);
    let mut kept = Vec::new();
    let error = loop {
        let path = root.join(kept.len().to_string());
        match fs::write(&path, &bytes).and_then(|()| File::open(&path)?.sync_all()) {
            Ok(()) => kept.push(path),
            Err(error) => break error,
        }
        assert!(kept.len() < 300, "the device is full at some time");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(kept.len() > 150, "{} MiB of 256", kept.len());
    assert!(kept.iter().all(|path| fs::read(path).expect("read") == bytes));
    let shown = cluster.lfs(&["df", text(cluster.mount())]).success().stdout;
    let row = shown.lines().find(|line| line.contains("MDT0000")).expect("a row");
    let fields: Vec<u64> = row.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    assert!(fields[0] > 250 << 10 && fields[0] <= 256 << 10, "the size is that of the device: {row}");
    assert!(fields[1] >= (kept.len() as u64) << 10, "{row}");
    // A full store still accepts names, and frees the space of removed files, even if the MDT dies before it
    // has destroyed their objects.
    File::create(root.join("empty")).expect("a name");
    fs::remove_dir_all(&root).expect("emptied");
    cluster.kill_all();
    cluster.start_all();
    await_objects(&cluster, &mdt, 0);
    wait::until(wait::SOON, "the space comes back", || (free(&cluster) == before).then_some(()));
    let outcome = cluster.nacre(&["trim".as_ref(), cluster.data().join("mdt0000").as_os_str()]).success();
    assert!(outcome.stdout.contains("block"), "{outcome}");
    let device = cluster.data().join("mdt0000/data/data");
    let allocated = fs::metadata(&device).expect("there").blocks() * 512;
    assert!(allocated < 16 << 20, "{allocated} bytes of an empty device");
    cluster.stop_and_check();
}

#[test]
fn removed_files_give_their_space_back_in_one_process() {
    removed_files_give_their_space_back(Shape::Embedded, "mdd2");
}

#[test]
fn removed_files_give_their_space_back_with_separate_processes() {
    removed_files_give_their_space_back(Shape::Separate, "mdd3");
}

#[test]
fn objects_that_no_file_names_are_found_and_repaired_and_damage_is_named() {
    let Some(mut cluster) = start(Shape::Embedded, "mdd4", 1, &[BACKEND]) else { return };
    let root = directory(&cluster, "d");
    let files = write_files(&root);
    let bad = root.join("bad");
    let bytes = content(77, 300_000);
    fs::write(&bad, &bytes).expect("written");
    cluster.stop_and_check();
    let target = cluster.data().join("mdt0000");
    let shown = cluster.nacre(&["inspect".as_ref(), target.as_os_str()]).success().stdout;
    assert!(shown.contains("mdd4-MDT0000-data") && shown.contains("closed in order"), "{shown}");
    let shown = cluster.nacre(&["frag".as_ref(), target.as_os_str()]).success().stdout;
    assert!(shown.contains("MDT0000-data") && shown.contains("(store on a device)"), "{shown}");
    let device = target.join("data/data");
    let image = fs::read(&device).expect("read");
    let at = image.chunks(4096).position(|block| block[..512] == bytes[8192..8704]).expect("there") * 4096;
    let file = OpenOptions::new().write(true).open(&device).expect("opened");
    file.write_all_at(&[bytes[8192] ^ 1], at as u64).expect("flipped");
    let outcome = cluster.nacre(&["check".as_ref(), cluster.data().as_os_str()]);
    let named = format!("data at offset 8192 is damaged (block at {at} of the device)");
    assert!(outcome.code() != 0 && outcome.stdout.contains(&named), "{outcome}");
    cluster.start_all();
    assert_eq!(fs::read(&bad).expect_err("noticed").raw_os_error(), Some(libc::EIO));
    check_files(&files);
    fs::remove_file(&bad).expect("removed");
    cluster.stop();
    file.write_all_at(&[bytes[8192]], at as u64).expect("put back");
    cluster.check();
    // The metadata store of another file system refers to none of these objects.
    let Some(mut other) = start(Shape::Embedded, "mdd5", 1, &[BACKEND]) else { return };
    other.stop();
    let meta = target.join("meta");
    fs::rename(&meta, target.join("meta.old")).expect("moved");
    fs::rename(other.data().join("mdt0000/meta"), &meta).expect("moved");
    let check = |more: &[&str]| {
        let words: Vec<&str> =
            ["check", text(cluster.data())].into_iter().chain(more.iter().copied()).collect();
        cluster.nacre(&words)
    };
    let found = check(&[]);
    assert!(found.code() != 0 && found.stdout.contains("belongs to no file"), "{found}");
    assert!(check(&["--repair"]).stdout.contains("found and repaired"));
    check(&[]).success();
}

#[test]
fn wrong_devices_and_other_back_ends_are_refused() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let run = nacre_testkit::run::Run::new();
    let device = run.directory().join("device");
    let mut bytes = vec![0; 128 << 20];
    bytes[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    fs::write(&device, &bytes).expect("written");
    let format = |name: &str, words: &[&str]| {
        let mut command = run.command(nacre_testkit::binary::nacre());
        command.arg("format").arg(run.directory().join(name)).args(["--osts", "1"]).args(words);
        program::run_command(command, program::LIMIT)
    };
    let named = format!("block:{}", device.display());
    let refused = format("fs", &["--mdt-backend", &named]).fails_with(1);
    assert!(refused.stderr.contains("nothing was overwritten"), "{refused}");
    assert!(fs::read(&device).expect("read") == bytes);
    for words in [
        &["--mdts", "2", "--mdt-backend", &named][..],
        &["--mdt-backend", &named, "--ost-backend", &named],
        &["--mdt-backend", "file"],
        &["--mdt-backend", "block,size=1M"],
    ] {
        format("fs", words).fails_with(2);
    }
    format("fs", &["--mdt-backend", &format!("{named},force")]).success();
    // The device belongs to that file system now.
    let refused = format("other", &["--mdt-backend", &named]).fails_with(1);
    assert!(refused.stderr.contains("nothing was overwritten"), "{refused}");
    let check = |name: &str| {
        let mut command = run.command(nacre_testkit::binary::nacre());
        command.arg("check").arg(run.directory().join(name));
        program::run_command(command, program::LIMIT)
    };
    check("fs").success();
    let size = fs::metadata(&device).expect("there").len();
    let file = OpenOptions::new().write(true).open(&device).expect("opened");
    file.set_len(size / 2).expect("cut");
    let refused = check("fs").fails_with(1);
    assert_eq!(refused.stderr.trim().lines().count(), 1, "{refused}");
    file.set_len(size).expect("as before");
    // An MDT keeps the back end with which it was formatted.
    let mount = run.make("mnt");
    let mut command = run.command(nacre_testkit::binary::nacre());
    command
        .arg("up")
        .arg(run.directory().join("fs"))
        .arg("--mount")
        .arg(&mount)
        .args(["--mdt-backend", "meta"]);
    let refused = program::run_command(command, program::LIMIT).fails_with(1);
    assert!(refused.stderr.contains("was made with --mdt-backend block, not meta"), "{refused}");
}

fn an_mdt_is_added_with_a_device_of_its_own(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname, 1, &["meta"]) else { return };
    let device = cluster.data().join("device");
    let backend = format!("block:{},size=256M", device.display());
    let refused = cluster.add_target("ost", &["--mdt-backend", &backend]).fails_with(2);
    assert!(refused.stderr.contains("is for MDTs"), "{refused}");
    fs::write(&device, [7; 8192]).expect("written");
    let refused = cluster.add_target("mdt", &["--mdt-backend", &format!("block:{}", device.display())]);
    assert_ne!(refused.code(), 0, "{refused}");
    assert!(!cluster.data().join("mdt0001").exists(), "nothing is left of it: {refused}");
    assert_eq!(fs::read(&device).expect("read"), [7; 8192]);
    fs::remove_file(&device).expect("removed");
    cluster.add_target("mdt", &["--mdt-backend", &backend]).success();
    let root = cluster.mount().join("on1");
    wait::until(wait::SOON, "the mount knows the MDT", || {
        (cluster.lfs(&["mkdir", "-i", "1", text(&root)]).code() == 0).then_some(())
    });
    cluster.lfs(&["setstripe", "-E", "1M", "-L", "mdt", "-E", "-1", text(&root)]).success();
    let files = write_files(&root);
    let mdt = format!("{fsname}-MDT0001");
    assert_eq!(count(&cluster, &mdt, "store_stats", "objects"), files.len() as u64);
    // Data moves with its files from one kind of store to the other.
    let away = root.join("away");
    fs::create_dir(&away).expect("made");
    fs::write(away.join("f"), &files[4].1).expect("written");
    for mdt in ["0", "1"] {
        cluster.lfs(&["migrate", "-m", mdt, text(&away)]).success();
        assert!(fs::read(away.join("f")).expect("read") == files[4].1, "on MDT {mdt}");
    }
    fs::remove_dir_all(&away).expect("removed");
    await_objects(&cluster, &mdt, files.len() as u64);
    cluster.kill_all();
    cluster.start_all();
    check_files(&files);
    files.iter().for_each(|(path, _)| fs::remove_file(path).expect("removed"));
    await_objects(&cluster, &mdt, 0);
    cluster.stop_and_check();
}

#[test]
fn an_mdt_is_added_with_a_device_of_its_own_in_one_process() {
    an_mdt_is_added_with_a_device_of_its_own(Shape::Embedded, "mdd6");
}

#[test]
fn an_mdt_is_added_with_a_device_of_its_own_as_a_process() {
    an_mdt_is_added_with_a_device_of_its_own(Shape::Separate, "mdd7");
}
