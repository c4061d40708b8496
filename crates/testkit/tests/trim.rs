//! Trim of freed space below the OSTs: by command and by policy.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::{Cluster, Shape, text, wait};

const MIB: u64 = 1 << 20;
/// Data that a test writes to each OST.
const SIZE: u64 = 48 * MIB;

/// Starts a file system with two OSTs on sparse files.
fn start(shape: Shape, fsname: &str) -> Option<Cluster> {
    let options = Options {
        osts: 2,
        fsname: fsname.to_owned(),
        ost_backend: vec!["block,size=1G".to_owned()],
        ..Options::default()
    };
    let ready = have(&["/dev/fuse"]) && have_root();
    ready.then(|| Cluster::start_with(shape, &options)).filter(|cluster| !cluster.is_foreign())
}

fn set(cluster: &Cluster, setting: &str) {
    cluster.lctl(&["set_param", &format!("obdfilter.{}-OST*.{setting}", cluster.fsname())]).success();
}

/// Returns a line of the statistics of an OST.
fn stat(cluster: &Cluster, ost: u16, name: &str) -> String {
    let param = format!("obdfilter.{}-OST{ost:04x}.trim_stats", cluster.fsname());
    let stats = cluster.lctl(&["get_param", "-n", &param]).success().stdout;
    let mut rows = stats.lines().filter_map(|line| line.split_once(char::is_whitespace));
    let row = rows.find(|(found, _)| *found == name);
    row.unwrap_or_else(|| panic!("no {name} in {stats}")).1.trim().to_owned()
}

fn count(cluster: &Cluster, ost: u16, name: &str) -> u64 {
    stat(cluster, ost, name).parse().expect("a number")
}

/// Returns the allocated bytes of a file below an OST.
fn used(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").blocks() * 512
}

fn device(cluster: &Cluster, ost: u16) -> PathBuf {
    cluster.data().join(format!("ost{ost:04x}/data"))
}

/// Creates a file over all OSTs and makes it durable.
fn fill(cluster: &Cluster, name: &str, osts: u64) -> PathBuf {
    let directory = cluster.directory(name);
    cluster.lfs(&["setstripe", "-c", "-1", text(&directory)]).success();
    let path = directory.join("file");
    let mut file = File::create(&path).expect("made");
    for round in 0..SIZE * osts / MIB {
        file.write_all(&vec![round as u8 + 1; MIB as usize]).expect("written");
    }
    file.sync_all().expect("synced");
    path
}

/// Trims until the space of a removed file has been freed, as its objects are destroyed a moment later.
fn until_trimmed(cluster: &Cluster, what: &str, limits: [u64; 2]) {
    wait::until(wait::SOON, "the space goes back", || {
        cluster.nacre(&["trim", what]).success();
        (0..2).all(|ost| used(&device(cluster, ost)) < limits[usize::from(ost)]).then_some(())
    });
}

fn space_goes_back_by_order(shape: Shape, fsname: &str) {
    let Some(mut cluster) = start(shape, fsname) else { return };
    set(&cluster, "trim_policy=off");
    let mount = text(cluster.mount()).to_owned();
    // A first trim covers all free space, so that the next ones only cover freed space.
    cluster.nacre(&["trim", &mount]).success();
    let before = [0, 1].map(|ost| used(&device(&cluster, ost)));
    let kept = fill(&cluster, "kept", 2);
    let path = fill(&cluster, "gone", 2);
    assert!((0..2).all(|ost| used(&device(&cluster, ost)) >= before[usize::from(ost)] + 2 * SIZE));
    fs::remove_file(&path).expect("removed");
    until_trimmed(&cluster, &mount, before.map(|before| before + SIZE + 8 * MIB));
    for ost in 0..2 {
        assert!(count(&cluster, ost, "trimmed_by_order") >= SIZE);
        assert!(count(&cluster, ost, "trimmed_extents") >= 1);
        assert_eq!(stat(&cluster, ost, "state"), "off");
    }
    let name = format!("{fsname}-OST0001");
    let line = cluster.nacre(&["trim", &name]).success().stdout;
    assert!(line.starts_with(&name) && line.contains("block  0B in 0 extents, "), "{line}");
    let missing = cluster.nacre(&["trim", &format!("{fsname}-OST0007")]).fails_with(1);
    assert!(missing.stderr.contains("no target with objects that runs here"), "{missing}");
    let inside = cluster.nacre(&["trim", text(&kept)]).fails_with(1);
    assert!(inside.stderr.contains("is on the mount"), "{inside}");
    // The directory of a stopped OST is trimmed too, as a whole.
    cluster.stop();
    let dir = cluster.data().join("ost0001");
    let json = cluster.nacre(&["trim", text(&dir), "--json"]).success().stdout;
    assert!(json.contains(&format!("\"target\": \"{name}\"")) && json.contains("\"error\": null"), "{json}");
    cluster.start_all();
    let bytes = fs::read(&kept).expect("read");
    assert!(
        bytes.len() as u64 == 2 * SIZE
            && bytes
                .chunks(MIB as usize)
                .enumerate()
                .all(|(at, piece)| { piece.iter().all(|byte| *byte == at as u8 + 1) })
    );
    cluster.stop_and_check();
}

#[test]
fn space_goes_back_by_order_in_one_process() {
    space_goes_back_by_order(Shape::Embedded, "trim0");
}

#[test]
fn space_goes_back_by_order_of_separate_processes() {
    space_goes_back_by_order(Shape::Separate, "trim1");
}

#[test]
fn space_goes_back_by_itself_when_nobody_works() {
    let Some(mut cluster) = start(Shape::Embedded, "trim2") else { return };
    assert_eq!(stat(&cluster, 0, "failures"), "0");
    // No run may start before the settings of this test are complete.
    set(&cluster, "trim_policy=off");
    set(&cluster, "trim_idle_ms=100");
    set(&cluster, "trim_start_percent=2");
    set(&cluster, "trim_rate=1G");
    cluster.lctl(&["set_param", "obdfilter.trim2-OST*.trim_rate=5"]).fails_with(libc::ERANGE);
    set(&cluster, "trim_policy=on");
    wait::until(wait::SOON, "all is told of the first time", || {
        (0..2).all(|ost| count(&cluster, ost, "untrimmed_bytes") < 20 * MIB).then_some(())
    });
    set(&cluster, "trim_stats=clear");
    assert_eq!(count(&cluster, 0, "trimmed_bytes"), 0);
    let path = fill(&cluster, "files", 2);
    let full = [0, 1].map(|ost| used(&device(&cluster, ost)));
    assert!(full.iter().all(|full| *full >= SIZE));
    fs::remove_file(&path).expect("removed");
    wait::until(wait::SOON, "the space goes back", || {
        (0..2).all(|ost| used(&device(&cluster, ost)) < full[usize::from(ost)] - SIZE + 4 * MIB).then_some(())
    });
    for ost in 0..2 {
        wait::until(wait::SOON, "the run ends", || (stat(&cluster, ost, "state") == "idle").then_some(()));
        assert!(count(&cluster, ost, "trimmed_bytes") >= SIZE);
        assert_eq!((count(&cluster, ost, "trimmed_by_order"), count(&cluster, ost, "failures")), (0, 0));
        assert!(count(&cluster, ost, "runs") >= 1);
    }
    cluster.stop_and_check();
}

#[test]
fn a_policy_that_is_off_leaves_space_where_it_is() {
    let Some(mut cluster) = start(Shape::Embedded, "trim3") else { return };
    set(&cluster, "trim_policy=off");
    set(&cluster, "trim_idle_ms=0");
    set(&cluster, "trim_start_percent=0");
    // A run may have started before.
    wait::until(wait::SOON, "it has stopped", || {
        (0..2).all(|ost| stat(&cluster, ost, "state") == "off").then_some(())
    });
    set(&cluster, "trim_stats=clear");
    let path = fill(&cluster, "files", 2);
    let full = [0, 1].map(|ost| used(&device(&cluster, ost)));
    let untrimmed = [0, 1].map(|ost| count(&cluster, ost, "untrimmed_bytes"));
    fs::remove_file(&path).expect("removed");
    wait::until(wait::SOON, "the space is free", || {
        let free = |ost: u16| count(&cluster, ost, "untrimmed_bytes") >= untrimmed[usize::from(ost)] + SIZE;
        (0..2).all(free).then_some(())
    });
    assert_eq!([0, 1].map(|ost| used(&device(&cluster, ost))), full);
    assert_eq!([0, 1].map(|ost| count(&cluster, ost, "trimmed_bytes")), [0, 0]);
    cluster.stop_and_check();
}

#[test]
fn a_simulated_device_takes_its_time_and_simulated_flash_hears_what_is_free() {
    let Some(mut cluster) = start(Shape::Embedded, "trim5") else { return };
    set(&cluster, "trim_policy=off");
    let medium = "osd-file.trim5-OST*.simulated_medium";
    let simulate = |value: &str| cluster.lctl(&["set_param", "-n", &format!("{medium}={value}")]);
    let get = || cluster.lctl(&["get_param", "-n", medium]).success().stdout;
    simulate("tape").fails_with(libc::EINVAL);
    simulate("throttle:latency=100ms").success();
    assert!(get().lines().all(|line| line == "throttle:latency=100000us"), "{}", get());
    let file = cluster.directory("slow").join("file");
    let start = Instant::now();
    let mut made = File::create(&file).expect("made");
    made.write_all(&[1; 64 << 10]).and_then(|()| made.sync_all()).expect("written");
    drop(made);
    assert!(start.elapsed() >= Duration::from_millis(100));
    simulate("flash:full=1:read=1us:program=1us:erase=1us:command=1us").success();
    let pages = |ost: u16, name: &str| {
        let param = format!("osd-file.trim5-OST{ost:04x}.simulated_flash");
        let text = cluster.lctl(&["get_param", "-n", &param]).success().stdout;
        let row =
            text.lines().find_map(|line| line.strip_prefix(name)).map(|count| count.trim().parse::<u64>());
        row.unwrap_or_else(|| panic!("no {name} in {text}")).expect("a number")
    };
    let all: u64 = (1 << 30) / 4096;
    assert_eq!([0, 1].map(|ost| pages(ost, "pages_used")), [all, all]);
    let path = fill(&cluster, "files", 2);
    assert!((0..2).all(|ost| pages(ost, "pages_written") >= SIZE / 4096));
    fs::remove_file(&path).expect("removed");
    wait::until(wait::SOON, "the flash hears of it", || {
        cluster.nacre(&["trim", text(cluster.mount())]).success();
        (0..2).all(|ost| pages(ost, "pages_discarded") >= SIZE / 4096).then_some(())
    });
    assert!((0..2).all(|ost| pages(ost, "pages_used") < all - SIZE / 4096 + 1));
    simulate("off").success();
    assert!(get().lines().all(|line| line == "off"), "{}", get());
    cluster.stop_and_check();
}

#[test]
fn an_ost_of_files_has_the_file_system_below_it_trimmed() {
    if !have(&["/dev/fuse", "mkfs.ext4", "losetup"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(700);
    let image = run.directory().join("image");
    let options = Options {
        osts: 2,
        fsname: "trim4".to_owned(),
        data: Some(disk.join("data")),
        ost_backend: vec!["file".to_owned()],
        ..Options::default()
    };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    assert_eq!(stat(&cluster, 0, "state"), "off");
    assert!(stat(&cluster, 0, "note").contains("for itself"));
    let simulated = "osd-file.trim4-OST0000.simulated_medium=flash";
    cluster.lctl(&["set_param", simulated]).fails_with(libc::EOPNOTSUPP);
    let path = fill(&cluster, "files", 2);
    let full = used(&image);
    assert!(full >= 2 * SIZE);
    fs::remove_file(&path).expect("removed");
    let data = text(cluster.data()).to_owned();
    let lines = wait::until(wait::SOON, "the space goes back", || {
        let lines = cluster.nacre(&["trim", &data]).success().stdout;
        (used(&image) < full - 2 * SIZE + 8 * MIB).then_some(lines)
    });
    assert!(lines.contains("trim4-OST0001    file   on the file system of trim4-OST0000"), "{lines}");
    // The same by policy, which tracks freed space.
    for setting in ["trim_idle_ms=100", "trim_start_percent=3", "trim_rate=1G", "trim_policy=on"] {
        set(&cluster, setting);
    }
    let path = fill(&cluster, "more", 2);
    let full = used(&image);
    fs::remove_file(&path).expect("removed");
    wait::until(wait::SOON, "the space goes back", || {
        (used(&image) < full - 2 * SIZE + 8 * MIB).then_some(())
    });
    cluster.stop_and_check();
}
