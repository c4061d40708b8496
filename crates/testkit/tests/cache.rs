//! Caches of small writes in front of OSTs.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::Random;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};

const SIZE: usize = 4 << 20;

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

/// A counter of the cache.
fn count(cluster: &Cluster, fsname: &str, name: &str) -> u64 {
    let stats = cluster.lctl(&["get_param", "-n", &format!("nxd.{fsname}-OST0000.stats")]).success().stdout;
    let mut fields = stats.lines().map(str::split_whitespace);
    let row = fields.find_map(|mut row| (row.next() == Some(name)).then(|| row.next()));
    row.flatten().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in {stats}"))
}

fn set(cluster: &Cluster, fsname: &str, setting: &str) {
    cluster.lctl(&["set_param", &format!("nxd.{fsname}-OST0000.{setting}")]).success();
}

/// A file on the OST, written as a whole and then in small pieces all over, each durable before the next one.
fn write_in_pieces(cluster: &Cluster) -> (PathBuf, Vec<u8>) {
    let directory = cluster.directory("files");
    cluster.lfs(&["setstripe", "-c", "1", text(&directory)]).success();
    let path = directory.join("file");
    let mut random = Random::new(5);
    let mut bytes = vec![0; SIZE];
    random.fill(&mut bytes);
    fs::write(&path, &bytes).expect("written");
    File::open(&path).expect("opened").sync_all().expect("synced");
    let file = OpenOptions::new().write(true).open(&path).expect("opened");
    for _ in 0..60 {
        let at = random.below(SIZE / 4096) * 4096;
        random.fill(&mut bytes[at..at + 4096]);
        file.write_all_at(&bytes[at..at + 4096], at as u64).expect("written");
        file.sync_all().expect("synced");
    }
    (path, bytes)
}

fn check(path: &Path, bytes: &[u8]) {
    assert!(fs::read(path).expect("read") == bytes, "{}", path.display());
}

fn small_writes_survive_kills_and_reach_the_objects(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname) else { return };
    set(&cluster, fsname, "idle_ms=3600000");
    let (path, bytes) = write_in_pieces(&cluster);
    assert!(count(&cluster, fsname, "writes") >= 50, "they went to the cache");
    assert_eq!(count(&cluster, fsname, "needed"), 1);
    cluster.kill_all();
    cluster.start_all();
    assert!(count(&cluster, fsname, "log_replayed") > 0);
    check(&path, &bytes);
    set(&cluster, fsname, "mode=drain");
    wait::until(wait::SOON, "the cache is not needed any more", || {
        (count(&cluster, fsname, "needed") == 0).then_some(())
    });
    assert_eq!(count(&cluster, fsname, "dirty_bytes"), 0);
    cluster.stop();
    // Nobody misses an empty one; another takes its place.
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
    let (data, mount) = (cluster.data().to_string_lossy(), cluster.mount().to_string_lossy());
    let words = ["up", &*data, "--mount", &*mount];
    let outcome = cluster.nacre(&words).fails_with(1);
    assert!(outcome.stderr.contains("without it they are lost"), "{}", outcome.stderr);
    let checked = cluster.nacre(&["check", &*data]);
    assert_ne!(checked.code(), 0, "{checked}");
    let foreign = format!("{},size=64M", cluster.data().join("superblock").display());
    let outcome = cluster.nacre(&[&words[..], &["--ost-cache", &foreign]].concat()).fails_with(1);
    assert!(outcome.stderr.contains("superblock"), "{}", outcome.stderr);
    fs::rename(&away, &cache).expect("moved back");
    cluster.start_all();
    check(&path, &bytes);
    cluster.stop_and_check();
}
