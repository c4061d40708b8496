//! Added OSTs with a back end, a cache and a class of their own; devices whose size changes.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::fill;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};

fn start(shape: Shape, fsname: &str, backend: &str) -> Option<Cluster> {
    let options = Options {
        osts: 1,
        fsname: fsname.to_owned(),
        ost_backend: vec![backend.to_owned()],
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    let cluster = ready.then(|| Cluster::start_with(shape, &options));
    cluster.filter(|cluster| !cluster.is_foreign())
}

/// Writes a file on one OST and makes it durable.
fn write_on(cluster: &Cluster, ost: usize) -> (PathBuf, Vec<u8>) {
    let path = cluster.mount().join(format!("on{ost}"));
    cluster.lfs(&["setstripe", "-i", &ost.to_string(), "-c", "1", text(&path)]).success();
    let mut bytes = vec![0; 3 << 20];
    fill(&mut Rng::with_seed(ost as u64 + 1), &mut bytes);
    fs::write(&path, &bytes).expect("written");
    File::open(&path).expect("opened").sync_all().expect("synced");
    (path, bytes)
}

fn check((path, bytes): &(PathBuf, Vec<u8>)) {
    assert!(fs::read(path).expect("read") == *bytes, "{}", path.display());
}

fn osts(cluster: &Cluster) -> usize {
    let text = cluster.lfs(&["osts", text(cluster.mount())]).success().stdout;
    text.lines().filter(|line| line.contains("-OST")).count()
}

fn await_osts(cluster: &Cluster, count: usize) {
    wait::until(wait::SOON, "the mount knows all OSTs", || (osts(cluster) == count).then_some(()));
}

fn parameter(cluster: &Cluster, name: &str) -> String {
    cluster.lctl(&["get_param", "-n", name]).success().stdout.trim().to_owned()
}

/// Adds an OST with invalid options; returns the error message.
fn refused(cluster: &Cluster, options: &[&str]) -> String {
    let outcome = cluster.add_target("ost", options);
    assert_ne!(outcome.code(), 0, "{options:?}: {outcome:?}");
    let message = outcome.stderr.trim().to_owned();
    assert_eq!(message.lines().count(), 1, "one sentence: {message}");
    assert!(!cluster.data().join("ost0001").exists(), "nothing is left of it: {message}");
    message
}

fn foreign(path: &Path) -> Vec<u8> {
    let mut bytes = vec![0; 96 << 20];
    bytes[..4].copy_from_slice(b"XFSB");
    fs::write(path, &bytes).expect("written");
    bytes
}

fn an_ost_is_added_with_all_that_it_is_wished_to_have(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname, "block,size=256M") else { return };
    let beside = |name: &str| cluster.data().with_file_name(name);
    let (xfs, device, cache) = (beside("xfs"), beside("device"), beside("cache"));
    let bytes = foreign(&xfs);
    let word = |path: &Path, rest: &str| format!("{}{rest}", path.display());
    let block = |path: &Path, rest: &str| format!("block:{}{rest}", path.display());

    let message = refused(&cluster, &["--ost-backend", &block(&xfs, "")]);
    assert!(
        message.contains("an XFS file system") && message.contains("nothing was overwritten"),
        "{message}"
    );
    let new = block(&device, ",size=256M");
    let message = refused(&cluster, &["--ost-backend", &new, "--ost-cache", &word(&xfs, "")]);
    assert!(message.contains("an XFS file system"), "{message}");
    assert!(!device.exists(), "the cache is looked at before the device is made");
    assert!(fs::read(&xfs).expect("read") == bytes, "nothing was overwritten");
    let others = block(&cluster.data().join("ost0000/data"), ",force");
    let message = refused(&cluster, &["--ost-backend", &others]);
    assert!(message.contains("busy"), "{message}");
    assert!(refused(&cluster, &["--ost-backend", "zfs"]).contains("no such back end"));
    let mdt = cluster.add_target("mdt", &["--flash"]);
    assert!(mdt.code() != 0 && mdt.stderr.contains("are for OSTs"), "{mdt:?}");

    let options = ["--ost-backend", &new, "--ost-cache", &word(&cache, ",size=32M"), "--flash"];
    cluster.add_target("ost", &options).success();
    await_osts(&cluster, 2);
    assert_eq!(parameter(&cluster, &format!("osd-file.{fsname}-OST0001.nonrotational")), "1");
    assert_eq!(parameter(&cluster, &format!("obdfilter.{fsname}-OST0001.fstype")), "block");
    assert!(parameter(&cluster, &format!("nxd.{fsname}-OST0001.stats")).contains("needed"));
    let files = [write_on(&cluster, 0), write_on(&cluster, 1)];
    cluster.kill_all();
    cluster.start_all();
    files.iter().for_each(check);
    cluster.stop_and_check();

    // The next one is added while no server runs.
    cluster.add_target("ost", &["--ost-backend", "block,size=128M", "--disk"]).success();
    cluster.start_all();
    await_osts(&cluster, 3);
    assert_eq!(parameter(&cluster, &format!("osd-file.{fsname}-OST0002.nonrotational")), "0");
    assert_eq!(parameter(&cluster, &format!("obdfilter.{fsname}-OST0002.fstype")), "block");
    let third = write_on(&cluster, 2);
    files.iter().chain([&third]).for_each(check);
    cluster.stop_and_check();
}

#[test]
fn an_ost_is_added_with_all_that_it_is_wished_to_have_in_one_process() {
    an_ost_is_added_with_all_that_it_is_wished_to_have(Shape::Embedded, "addo0");
}

#[test]
fn an_ost_is_added_with_all_that_it_is_wished_to_have_in_a_process_of_its_own() {
    an_ost_is_added_with_all_that_it_is_wished_to_have(Shape::Separate, "addo1");
}

/// Returns the total bytes that `lfs df` reports for the OST.
fn total(cluster: &Cluster) -> u64 {
    let kib = parameter(cluster, &format!("obdfilter.{}-OST0000.kbytestotal", cluster.fsname()));
    kib.parse::<u64>().expect("a number") << 10
}

#[test]
fn an_ost_whose_device_grew_has_the_space_and_one_whose_device_shrank_does_not_start() {
    let Some(mut cluster) = start(Shape::Embedded, "grow0", "block,size=256M") else { return };
    let file = write_on(&cluster, 0);
    assert_eq!(total(&cluster), (256 << 20) - 8192);
    cluster.stop_and_check();
    let device = cluster.data().join("ost0000/data");
    let set_size = |bytes: u64| {
        OpenOptions::new().write(true).open(&device).expect("opened").set_len(bytes).expect("sized");
    };
    set_size(512 << 20);
    // Runs a check before the first use too.
    cluster.check();
    cluster.start_all();
    assert_eq!(total(&cluster), (512 << 20) - 8192);
    check(&file);
    cluster.kill_all();
    cluster.start_all();
    check(&file);
    cluster.stop_and_check();
    set_size(500 << 20);
    let (data, mount) = (text(cluster.data()).to_owned(), text(cluster.mount()).to_owned());
    let outcome = cluster.nacre(&["up", &data, "--mount", &mount]);
    assert_ne!(outcome.code(), 0, "{outcome:?}");
    assert!(outcome.stderr.contains("524288000 bytes, but had 536870912"), "{outcome:?}");
    set_size(512 << 20);
    cluster.start_all();
    check(&file);
    cluster.stop_and_check();
}
