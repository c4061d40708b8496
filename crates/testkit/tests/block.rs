//! OSTs that keep their objects on devices of their own.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, Random};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, program};

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
    Random::new(seed).fill(&mut bytes);
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
    let Some(mut cluster) = start(Shape::Embedded, "blk2", &[BACKEND]) else { return };
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", "-i", "0", &directory.to_string_lossy()]).success();
    let (good, bad) = (directory.join("good"), directory.join("bad"));
    let bytes = content(3, 300_000);
    fs::write(&good, &bytes).expect("written");
    fs::write(&bad, content(4, 300_000)).expect("written");
    cluster.stop();
    let device = data_of(&cluster, 0);
    let image = fs::read(&device).expect("read");
    let wanted = &content(4, 300_000)[8192..8192 + 512];
    let at = image.chunks(4096).position(|block| &block[..512] == wanted).expect("the block is there") * 4096;
    let file = OpenOptions::new().read(true).write(true).open(&device).expect("opened");
    file.write_all_at(&[wanted[100] ^ 1], at as u64 + 100).expect("flipped");
    drop(file);
    let outcome = cluster.nacre(&["check".as_ref(), cluster.data().as_os_str()]);
    assert_ne!(outcome.code(), 0);
    let text = outcome.stdout + &outcome.stderr;
    assert!(
        text.contains(&format!("data at offset 8192 is damaged (block at {at} of the device)")),
        "{text}"
    );
    cluster.start_all();
    assert!(fs::read(&good).expect("read") == bytes);
    let error = fs::read(&bad).expect_err("noticed");
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    cluster.stop();
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
    // Nobody takes it for what it was.
    assert!(fs::read(&device).expect("read")[0x438..0x43a] == [0, 0]);
}

#[test]
fn each_ost_has_its_back_end_and_keeps_it() {
    let Some(mut cluster) = start(Shape::Embedded, "blk3", &[BACKEND, "file"]) else { return };
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
