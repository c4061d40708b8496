//! Caches of small writes in front of OSTs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::fill;
use nacre_testkit::program::Outcome;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};

const SIZE: usize = 4 << 20;
/// Pieces that are written over a file.
const PIECES: u64 = 60;

fn start(shape: Shape, fsname: &str) -> Option<Cluster> {
    let options = Options {
        osts: 1,
        fsname: fsname.to_owned(),
        ost_cache_size: Some("64M".to_owned()),
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    ready.then(|| Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Starts a file system with one OST that has no cache yet.
fn start_without(fsname: &str) -> Option<Cluster> {
    let options = Options { osts: 1, fsname: fsname.to_owned(), ..Options::default() };
    let ready = have(&["/dev/fuse"]) && have_root();
    ready.then(|| Cluster::start_with(Shape::Embedded, &options)).filter(|cluster| !cluster.is_foreign())
}

/// Runs `nacre up` in one process with only these options.
fn up(cluster: &Cluster, words: &[&str]) -> Outcome {
    let (data, mount) = (cluster.data().to_string_lossy(), cluster.mount().to_string_lossy());
    cluster.nacre(&[&["up", &*data, "--mount", &*mount], words].concat())
}

/// Returns a counter of the cache.
fn count(cluster: &Cluster, fsname: &str, name: &str) -> u64 {
    let stats = cluster.lctl(&["get_param", "-n", &format!("nxd.{fsname}-OST0000.stats")]).success().stdout;
    let mut fields = stats.lines().map(str::split_whitespace);
    let row = fields.find_map(|mut row| (row.next() == Some(name)).then(|| row.next()));
    row.flatten().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {stats}"))
}

fn set(cluster: &Cluster, fsname: &str, setting: &str) {
    cluster.lctl(&["set_param", &format!("nxd.{fsname}-OST0000.{setting}")]).success();
}

/// Writes a file on the OST in large pieces, which bypass a cache.
fn write_whole(cluster: &Cluster) -> (PathBuf, Vec<u8>) {
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", text(&directory)]).success();
    let path = directory.join("file");
    let mut bytes = vec![0; SIZE];
    fill(&mut Rng::with_seed(5), &mut bytes);
    fs::write(&path, &bytes).expect("written");
    File::open(&path).expect("opened").sync_all().expect("synced");
    (path, bytes)
}

/// Writes small pieces at the same offsets each time, each durable before the next one, with data from
/// `seed`.
fn write_pieces(path: &Path, bytes: &mut [u8], seed: u64) {
    let (mut places, mut random) = (Rng::with_seed(6), Rng::with_seed(seed));
    let file = OpenOptions::new().write(true).open(path).expect("opened");
    for _ in 0..PIECES {
        let at = places.usize(..SIZE / 4096) * 4096;
        fill(&mut random, &mut bytes[at..at + 4096]);
        file.write_all_at(&bytes[at..at + 4096], at as u64).expect("written");
        file.sync_all().expect("synced");
    }
}

/// Writes a file on the OST as a whole, and then in small pieces all over.
fn write_in_pieces(cluster: &Cluster) -> (PathBuf, Vec<u8>) {
    let (path, mut bytes) = write_whole(cluster);
    write_pieces(&path, &mut bytes, 7);
    (path, bytes)
}

/// Waits until the OST does not need its cache.
fn drain(cluster: &Cluster, fsname: &str) {
    set(cluster, fsname, "mode=drain");
    wait::until(wait::SOON, "the cache is not needed any more", || {
        (count(cluster, fsname, "needed") == 0).then_some(())
    });
    assert_eq!(count(cluster, fsname, "dirty_bytes"), 0);
}

fn check(path: &Path, bytes: &[u8]) {
    let found = fs::read(path).expect("read");
    let first = found.iter().zip(bytes).position(|(found, expected)| found != expected);
    assert_eq!((found.len(), first), (bytes.len(), None), "first difference in {}", path.display());
}

fn small_writes_survive_kills_and_reach_the_objects(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname) else { return };
    set(&cluster, fsname, "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    assert!(count(&cluster, fsname, "writes") >= PIECES * 5 / 6, "they went to the cache");
    assert_eq!(count(&cluster, fsname, "needed"), 1);
    cluster.kill_all();
    cluster.start_all();
    assert!(count(&cluster, fsname, "log_replayed") > 0);
    check(&path, &bytes);
    drain(&cluster, fsname);
    cluster.stop();
    // A missing empty cache is no error; another one takes its place.
    fs::remove_file(cluster.cache_of(0)).expect("removed");
    cluster.start_all();
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn small_writes_survive_kills_and_reach_the_objects_in_one_process() {
    small_writes_survive_kills_and_reach_the_objects(Shape::Embedded, "nxd0");
}

#[test]
fn small_writes_survive_kills_and_reach_the_objects_of_separate_processes() {
    small_writes_survive_kills_and_reach_the_objects(Shape::Separate, "nxd1");
}

#[test]
fn an_ost_whose_cache_is_missed_does_not_start() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd2") else { return };
    set(&cluster, "nxd2", "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    cluster.stop();
    let (cache, away) = (cluster.cache_of(0), cluster.cache_of(0).with_extension("away"));
    fs::rename(&cache, &away).expect("moved");
    let outcome = up(&cluster, &[]).fails_with(1);
    assert!(outcome.stderr.contains("without it they are lost"), "{}", outcome.stderr);
    let checked = cluster.nacre(&["check", text(cluster.data())]);
    assert_ne!(checked.code(), 0, "{checked}");
    let foreign = format!("{},size=64M", cluster.data().join("superblock").display());
    let outcome = up(&cluster, &["--ost-cache", &foreign]).fails_with(1);
    assert!(outcome.stderr.contains("superblock"), "{}", outcome.stderr);
    fs::rename(&away, &cache).expect("moved back");
    cluster.start_all();
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn after_a_drain_an_ost_starts_without_its_cache_and_what_it_wrote_meanwhile_stays_when_that_returns() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd3") else { return };
    set(&cluster, "nxd3", "idle_ms=3600000");
    let (path, mut bytes) = write_in_pieces(&cluster);
    drain(&cluster, "nxd3");
    cluster.stop();
    let (cache, away) = (cluster.cache_of(0), cluster.cache_of(0).with_extension("away"));
    fs::rename(&cache, &away).expect("moved");
    up(&cluster, &[]).success();
    check(&path, &bytes);
    let missing = cluster.lctl(&["get_param", "nxd.nxd3-OST0000.stats"]);
    assert_ne!(missing.code(), 0, "it has no cache now: {missing}");
    write_pieces(&path, &mut bytes, 8);
    cluster.stop_and_check();
    fs::rename(&away, &cache).expect("moved back");
    up(&cluster, &[]).success();
    check(&path, &bytes);
    write_pieces(&path, &mut bytes, 9);
    assert!(count(&cluster, "nxd3", "writes") >= PIECES * 5 / 6, "it is used again");
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn a_missing_cache_is_given_up_for_another_with_force_and_only_what_it_held_is_lost() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd4") else { return };
    set(&cluster, "nxd4", "idle_ms=3600000");
    let (path, whole) = write_whole(&cluster);
    // A client that is short of time or grants may have sent small pieces, which are in the cache.
    drain(&cluster, "nxd4");
    set(&cluster, "nxd4", "mode=on");
    let before = count(&cluster, "nxd4", "writes");
    let mut bytes = whole.clone();
    write_pieces(&path, &mut bytes, 7);
    assert_eq!(count(&cluster, "nxd4", "writes"), before + PIECES, "only the cache has them");
    assert_eq!(count(&cluster, "nxd4", "needed"), 1);
    cluster.stop();
    let (cache, away) = (cluster.cache_of(0), cluster.cache_of(0).with_extension("away"));
    fs::rename(&cache, &away).expect("moved");
    let other = format!("{},size=32M", cache.with_extension("other").display());
    let outcome = up(&cluster, &["--ost-cache", &other]).fails_with(1);
    assert!(outcome.stderr.contains("without it they are lost"), "{}", outcome.stderr);
    let outcome = up(&cluster, &["--ost-cache", &format!("{other},force")]).success();
    assert!(outcome.stderr.contains("OST0000: discarded as requested: the cache"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(text(&cache)), "{}", outcome.stderr);
    check(&path, &whole);
    assert_eq!(count(&cluster, "nxd4", "needed"), 0);
    bytes = whole;
    write_pieces(&path, &mut bytes, 8);
    assert!(count(&cluster, "nxd4", "writes") >= PIECES * 5 / 6);
    cluster.stop();
    // The old device belongs to no store now.
    fs::rename(&away, &cache).expect("moved back");
    let outcome = up(&cluster, &["--ost-cache", text(&cache)]).fails_with(1);
    assert!(outcome.stderr.contains("it belongs to another store"), "{}", outcome.stderr);
    up(&cluster, &[]).success();
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn another_cache_takes_the_place_of_one_that_is_there_and_nothing_is_lost() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd5") else { return };
    set(&cluster, "nxd5", "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    assert_eq!(count(&cluster, "nxd5", "needed"), 1);
    cluster.stop();
    let other = cluster.cache_of(0).with_extension("other");
    // The device has foreign data on it, for which `--force` exists.
    fs::write(&other, vec![7; 2 << 20]).expect("written");
    let outcome = up(&cluster, &["--ost-cache", text(&other)]).fails_with(1);
    assert!(outcome.stderr.contains("nothing was overwritten"), "{}", outcome.stderr);
    up(&cluster, &["--ost-cache", &format!("{},force", other.display())]).success();
    check(&path, &bytes);
    assert!(count(&cluster, "nxd5", "size_bytes") < 2 << 20, "it is the other one");
    cluster.stop();
    fs::remove_file(cluster.cache_of(0)).expect("removed");
    up(&cluster, &[]).success();
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn an_ost_that_is_there_gets_a_cache_while_it_is_stopped() {
    let Some(mut cluster) = start_without("nxd6") else { return };
    let (path, mut bytes) = write_in_pieces(&cluster);
    let cache = format!("{},size=32M", cluster.cache_of(0).display());
    let outcome = up(&cluster, &["--ost-cache", &cache]).fails_with(1);
    assert!(outcome.stderr.contains("no cache while it is in use"), "{}", outcome.stderr);
    cluster.stop();
    up(&cluster, &["--ost-cache", &cache]).success();
    check(&path, &bytes);
    set(&cluster, "nxd6", "idle_ms=3600000");
    write_pieces(&path, &mut bytes, 8);
    assert!(count(&cluster, "nxd6", "writes") >= PIECES * 5 / 6);
    cluster.kill_all();
    up(&cluster, &[]).success();
    assert!(count(&cluster, "nxd6", "log_replayed") > 0, "it is kept");
    check(&path, &bytes);
    cluster.stop_and_check();
}

fn up_with_the_same_words_starts_what_was_killed(shape: Shape, fsname: &str) {
    let options = Options {
        osts: 2,
        fsname: fsname.to_owned(),
        ost_cache_size: Some("32M".to_owned()),
        ..Options::default()
    };
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start_with(shape, &options);
    if cluster.is_foreign() {
        return;
    }
    let (path, bytes) = write_in_pieces(&cluster);
    cluster.start_all();
    check(&path, &bytes);
    if shape == Shape::Separate {
        cluster.kill("ost0001");
        cluster.start_all();
        assert!(cluster.servers().contains(&"ost0001".to_owned()));
    }
    check(&path, &bytes);
    cluster.stop_and_check();
}

#[test]
fn up_with_the_same_words_leaves_running_osts_and_their_caches_alone_in_one_process() {
    up_with_the_same_words_starts_what_was_killed(Shape::Embedded, "nxd7");
}

#[test]
fn up_with_the_same_words_starts_an_ost_that_was_killed_beside_running_ones() {
    up_with_the_same_words_starts_what_was_killed(Shape::Separate, "nxd8");
}

#[test]
fn a_new_file_system_has_the_caches_it_is_formatted_with_or_is_not_made() {
    let Some(mut cluster) = start_without("nxd9") else { return };
    let run = cluster.run().directory().to_owned();
    let (data, mount) = (run.join("formatted"), cluster.mount().to_owned());
    fs::write(run.join("taken"), vec![7; 4 << 20]).expect("written");
    let first = format!("--ost-cache={},size=32M", run.join("first").display());
    let second = format!("--ost-cache={},size=32M", run.join("second").display());
    let taken = format!("--ost-cache={}", run.join("taken").display());
    let shape = [text(&data), "--fsname=nxd10", "--osts=2", &first];
    cluster.stop_and_check();
    for command in [&["format"][..], &["up", "--mount", text(&mount)]] {
        let outcome = cluster.nacre(&[command, &shape, &[&*taken]].concat()).fails_with(1);
        assert!(outcome.stderr.contains("nothing was overwritten"), "{}", outcome.stderr);
        assert!(!data.join("superblock").exists(), "{command:?} made a file system without its caches");
    }
    cluster.nacre(&[&["format"], &shape[..], &[&*second]].concat()).success();
    cluster.nacre(&["up", text(&data), "--mount", text(&mount)]).success();
    let sizes = cluster.lctl(&["get_param", "-n", "nxd.nxd10-OST*.stats"]).success().stdout;
    assert_eq!(sizes.matches("size_bytes").count(), 2, "{sizes}");
    let (path, bytes) = write_in_pieces(&cluster);
    check(&path, &bytes);
    cluster.nacre(&["down", text(&data)]).success();
    cluster.nacre(&["check", text(&data)]).success();
}

/// Flips a bit of the cache's device.
fn flip(cluster: &Cluster, at: u64) {
    let device =
        OpenOptions::new().read(true).write(true).open(cluster.cache_of(0)).expect("the device opens");
    let mut byte = [0];
    device.read_exact_at(&mut byte, at).expect("read");
    device.write_all_at(&[byte[0] ^ 4], at).expect("written");
    device.sync_all().expect("synced");
}

#[test]
fn a_damaged_log_is_told_of_and_the_ost_does_not_start_until_what_is_lost_is_given_up() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd11") else { return };
    set(&cluster, "nxd11", "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    cluster.stop();
    let (data, cache) = (text(cluster.data()).to_owned(), cluster.cache_of(0));
    let ost = cluster.data().join("ost0000");
    cluster.nacre(&["check", &data]).success();
    let shown = cluster.nacre(&["inspect", text(&cache)]).success().stdout;
    assert!(shown.contains("batches with") && !shown.contains("damage"), "{shown}");
    // The header of the third batch: the earlier ones have two blocks each.
    let third = (1 + 2 * 2) * 4096;
    flip(&cluster, third + 100);
    let shown = cluster.nacre(&["inspect", text(&ost), "--cache"]).fails_with(1).stdout;
    assert!(shown.contains(&format!("2 blocks from {third} on were durable and cannot be read")), "{shown}");
    assert!(shown.contains("behind it the log has data of object"), "{shown}");
    let checked = cluster.nacre(&["check", &data]).fails_with(1).stdout;
    assert!(checked.contains("its cache only") && checked.contains(&format!("from {third} on")), "{checked}");
    let outcome = up(&cluster, &[]).fails_with(1);
    assert!(outcome.stderr.contains("were durable and cannot be read"), "{}", outcome.stderr);
    let outcome = cluster.nacre(&["target", "uncache", &data, "OST0000", "--drain"]).fails_with(1);
    assert!(outcome.stderr.contains("were durable and cannot be read"), "{}", outcome.stderr);
    // The device was not changed: with the bit restored all data is there.
    flip(&cluster, third + 100);
    up(&cluster, &[]).success();
    check(&path, &bytes);
    cluster.stop();
    let shown = cluster.nacre(&["inspect", text(&cache)]).success().stdout;
    assert!(shown.contains("batches with"), "{shown}");
    flip(&cluster, third + 100);
    let outcome = cluster.nacre(&["target", "uncache", &data, "OST0000", "--force"]).success();
    assert!(outcome.stderr.contains("discarded as requested"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("belongs to nobody"), "{}", outcome.stdout);
    fs::remove_file(&cache).expect("removed");
    up(&cluster, &[]).success();
    let found = fs::read(&path).expect("read");
    let changed = found.chunks(4096).zip(bytes.chunks(4096)).filter(|(found, bytes)| found != bytes).count();
    assert_eq!(changed, 1, "the batch of one piece is lost, and what lies behind it is not");
    cluster.stop_and_check();
}

#[test]
fn damaged_data_in_a_log_is_an_error_where_it_is_and_the_ost_starts() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd12") else { return };
    set(&cluster, "nxd12", "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    cluster.stop();
    let data = text(cluster.data()).to_owned();
    let second = (1 + 2) * 4096;
    flip(&cluster, second + 4096 + 9);
    let shown = cluster.nacre(&["inspect", text(&cluster.cache_of(0))]).fails_with(1).stdout;
    assert!(shown.contains(&format!("the batch at {second} of the cache: the data of object")), "{shown}");
    let checked = cluster.nacre(&["check", &data]).fails_with(1).stdout;
    assert!(checked.contains("the cache holds data at offset"), "{checked}");
    assert!(checked.contains("batches of the cache, 1 problems"), "it counts once: {checked}");
    up(&cluster, &[]).success();
    let file = File::open(&path).expect("opened");
    let mut damaged = 0;
    for (number, piece) in bytes.chunks(4096).enumerate() {
        let mut found = vec![0; 4096];
        match file.read_exact_at(&mut found, number as u64 * 4096) {
            Ok(()) => assert!(found == piece, "piece {number}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5), "{error}");
                damaged += 1;
            }
        }
    }
    assert!((1..=32).contains(&damaged), "{damaged}: what is read together with it fails, too");
    fs::remove_file(&path).expect("removed");
    drop(file);
    drain(&cluster, "nxd12");
    cluster.stop_and_check();
}

fn a_cache_is_taken_away_once_it_holds_nothing(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname) else { return };
    set(&cluster, fsname, "idle_ms=3600000");
    let (path, mut bytes) = write_in_pieces(&cluster);
    let (data, cache) = (text(cluster.data()).to_owned(), cluster.cache_of(0));
    let uncache = |words: &[&str]| cluster.nacre(&[&["target", "uncache", &data], words].concat());
    let outcome = uncache(&["OST0000"]).fails_with(1);
    assert!(outcome.stderr.contains("is running: stop it first"), "{}", outcome.stderr);
    uncache(&["MDT0000"]).fails_with(2);
    uncache(&["OST0007"]).fails_with(1);
    cluster.stop();
    let uncache = |words: &[&str]| cluster.nacre(&[&["target", "uncache", &data], words].concat());
    let outcome = uncache(&["OST0000"]).fails_with(1);
    assert!(outcome.stderr.contains("OST0000 keeps its cache"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("mode=drain"), "{}", outcome.stderr);
    // The refused command changed nothing.
    cluster.start_all();
    check(&path, &bytes);
    drain(&cluster, fsname);
    cluster.stop();
    cluster.nacre(&["target", "uncache", &data, "OST0000"]).success();
    fs::remove_file(&cache).expect("removed");
    let outcome = cluster.nacre(&["target", "uncache", &data, "0"]).fails_with(1);
    assert!(outcome.stderr.contains("has no cache"), "{}", outcome.stderr);
    cluster.nacre(&["check", &data]).success();
    let (data, mount) = (text(cluster.data()), text(cluster.mount()));
    let words: &[&str] = if shape == Shape::Separate { &["--separate"] } else { &[] };
    cluster.nacre(&[&["up", data, "--mount", mount], words].concat()).success();
    check(&path, &bytes);
    let missing = cluster.lctl(&["get_param", &format!("nxd.{fsname}-OST0000.stats")]);
    assert_ne!(missing.code(), 0, "it has no cache now: {missing}");
    write_pieces(&path, &mut bytes, 8);
    check(&path, &bytes);
    assert!(!cache.exists());
    cluster.stop_and_check();
}

#[test]
fn a_cache_is_taken_away_once_it_holds_nothing_in_one_process() {
    a_cache_is_taken_away_once_it_holds_nothing(Shape::Embedded, "nxd13");
}

#[test]
fn a_cache_is_taken_away_once_it_holds_nothing_with_separate_processes() {
    a_cache_is_taken_away_once_it_holds_nothing(Shape::Separate, "nxd14");
}

#[test]
fn a_cache_is_written_back_and_taken_away_at_once_and_its_device_is_anybodys() {
    let Some(mut cluster) = start(Shape::Embedded, "nxd15") else { return };
    set(&cluster, "nxd15", "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    cluster.stop();
    let (data, cache) = (text(cluster.data()).to_owned(), cluster.cache_of(0));
    cluster.nacre(&["target", "uncache", &data, "OST0000", "--drain"]).success();
    up(&cluster, &[]).success();
    check(&path, &bytes);
    cluster.stop();
    // No `--force` is needed to use it again.
    up(&cluster, &["--ost-cache", text(&cache)]).success();
    check(&path, &bytes);
    set(&cluster, "nxd15", "idle_ms=3600000");
    let mut newer = bytes.clone();
    write_pieces(&path, &mut newer, 9);
    assert_eq!(count(&cluster, "nxd15", "needed"), 1);
    cluster.stop();
    // Without its device only the data in the cache is lost, and that is reported.
    fs::remove_file(&cache).expect("removed");
    let outcome = cluster.nacre(&["target", "uncache", &data, "OST0000", "--drain"]).fails_with(1);
    assert!(outcome.stderr.contains("open the cache"), "{}", outcome.stderr);
    let outcome = cluster.nacre(&["target", "uncache", &data, "OST0000", "--force"]).success();
    assert!(outcome.stderr.contains("discarded as requested"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("without it they are lost"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("was left as it is"), "{}", outcome.stdout);
    up(&cluster, &[]).success();
    check(&path, &bytes);
    cluster.stop_and_check();
}
