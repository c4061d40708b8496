//! Self-extending layouts: components grow as far as their OSTs have free space, then the next component or a
//! copy elsewhere does; all clients see it, and it is consistent after a crash.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, wait};
use rustix::fs::FallocateFlags;

const MIB: u64 = 1 << 20;
const STEP: u64 = 64 * MIB;
const OSTS: usize = 3;
/// Longer than metadata servers cache the state of OSTs, and than a restart takes.
const LIMIT: Duration = Duration::from_secs(60);

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn make(cluster: &Cluster, options: &[&str], path: &Path) -> PathBuf {
    lfs(cluster, &[&["setstripe"], options, &[text(path)]].concat());
    path.to_path_buf()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Starts a file system with a unique name and two mounts of one directory.
fn with_two(shape: Shape, fsname: &str, case: fn(&mut Cluster, &[PathBuf; 2])) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { osts: OSTS, listen: true, fsname: fsname.to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(shape, &options);
    if cluster.is_foreign() {
        return;
    }
    set(&cluster, &format!("lod.{fsname}-MDT0000-mdtlov.qos_maxage"), 0);
    let mounts = [cluster.directory("d"), cluster.add_mount().join("d")];
    case(&mut cluster, &mounts);
    cluster.stop_and_check();
}

fn set(cluster: &Cluster, name: &str, value: u32) {
    cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]).success();
}

/// Makes OSTs refuse or permit growth. The MDT queries them before each step.
fn refuse_growth(cluster: &Cluster, refusing: &[usize]) {
    for index in 0..OSTS {
        let value = u32::from(refusing.contains(&index));
        set(cluster, &format!("obdfilter.{}-OST{index:04x}.degraded", cluster.fsname()), value);
    }
}

/// Returns start and end in MiB (`EOF`), flags and first OST of each component.
fn shape(cluster: &Cluster, path: &Path) -> Vec<String> {
    let shown = lfs(cluster, &["getstripe", text(path)]);
    let mut all = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for line in shown.lines().map(str::trim) {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "lcme_flags" => words.push(value.to_owned()),
            "lcme_extent.e_start" | "lcme_extent.e_end" => {
                words.push(value.parse::<u64>().map_or(value.to_owned(), |bytes| (bytes / MIB).to_string()));
            }
            "lmm_stripe_offset" | "lmm_mdt_index" => {
                words.push(value.to_owned());
                all.push(std::mem::take(&mut words).join(" "));
            }
            _ => {}
        }
    }
    all
}

/// Returns the same without the OST.
fn extents(cluster: &Cluster, path: &Path) -> Vec<String> {
    let words = |one: &String| one.rsplit_once(' ').map(|(all, _)| all.to_owned()).unwrap_or_default();
    shape(cluster, path).iter().map(words).collect()
}

fn a_file_grows_and_both_mounts_follow(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let [first, second] = mounts;
    let path = make(cluster, &["-E", "-1", "-c", "1", "-i", "0", "-z", "64M"], &first.join("f"));
    assert_eq!(shape(cluster, &path), ["init 0 64 0", "extension 64 EOF -1"]);
    let shown = lfs(cluster, &["getstripe", text(&path)]);
    assert!(
        shown.contains("      lmm_stripe_count:  0\n      lmm_extension_size: 67108864\n      lmm_pattern")
    );
    assert_eq!(lfs(cluster, &["getstripe", "-z", text(&path)]), "67108864");
    assert_eq!(lfs(cluster, &["find", text(first), "-z", "64M"]), text(&path));
    assert_eq!(lfs(cluster, &["find", text(first), "--extension-size", "+64M"]), "");
    let (here, there) = (read_write(&path), read_write(&second.join("f")));
    here.write_all_at(b"here", 0).expect("write");
    let mut piece = [0; 4];
    there.read_exact_at(&mut piece, 0).expect("read");
    there.write_all_at(b"over", STEP - 2).expect("write over the border");
    assert_eq!(shape(cluster, &path), ["init 0 128 0", "extension 128 EOF -1"]);
    here.read_exact_at(&mut piece, STEP - 2).expect("read");
    assert_eq!((&piece, here.metadata().expect("stat").len()), (b"over", STEP + 2));
    here.set_len(3 * STEP).expect("extend to the end of a step");
    assert_eq!(shape(cluster, &path), ["init 0 256 0", "extension 256 EOF -1"]);
    there.write_all_at(b"last", 5 * STEP).expect("write");
    here.read_exact_at(&mut piece, 5 * STEP).expect("read");
    assert_eq!(&piece, b"last");
    // The copy continues where there is free space; if there is none anywhere, the file still grows.
    refuse_growth(cluster, &[0]);
    here.write_all_at(b"else", 6 * STEP).expect("write");
    let copied = shape(cluster, &path);
    assert_eq!((copied.len(), copied[0].as_str()), (3, "init 0 384 0"));
    assert!(copied[1].starts_with("init 384 448 ") && !copied[1].ends_with(" 0"), "{copied:?}");
    there.read_exact_at(&mut piece, 6 * STEP).expect("read");
    assert_eq!(&piece, b"else");
    refuse_growth(cluster, &[0, 1, 2]);
    there.write_all_at(b"full", 8 * STEP).expect("write");
    assert!(shape(cluster, &path)[1].starts_with("init 384 576 "));
    refuse_growth(cluster, &[]);
    for (at, expected) in [(0, b"here"), (STEP - 2, b"over"), (5 * STEP, b"last"), (8 * STEP, b"full")] {
        here.read_exact_at(&mut piece, at).expect("read");
        assert_eq!(&piece, expected, "at {at}");
    }
}

fn full_osts_spill_over_to_the_next_component(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let [first, second] = mounts;
    let layout =
        ["-E", "1G", "-c", "1", "-i", "0", "-z", "64M", "-E", "-1", "-c", "2", "-i", "1", "-z", "128M"];
    let path = make(cluster, &layout, &first.join("spills"));
    let before = ["init 0 64 0", "extension 64 1024 -1", "0 1024 1024 1", "extension 1024 EOF -1"];
    assert_eq!(shape(cluster, &path), before);
    let (here, there) = (read_write(&path), read_write(&second.join("spills")));
    here.write_all_at(&[1; 100], 10).expect("write");
    refuse_growth(cluster, &[0]);
    there.write_all_at(&[2; 100], STEP).expect("write");
    assert_eq!(shape(cluster, &path), ["init 0 64 0", "init 64 192 1", "extension 192 EOF -1"]);
    let mut piece = [0; 100];
    here.read_exact_at(&mut piece, STEP).expect("read");
    assert_eq!(piece, [2; 100]);
    // A component without data is skipped.
    let late = first.join("late");
    make(cluster, &["-E", "1G", "-o", "0", "-z", "64M", "-E", "-1", "-o", "1"], &late);
    assert_eq!(shape(cluster, &late), ["init 0 EOF 1"]);
    refuse_growth(cluster, &[]);
}

fn templates_copies_and_edits_keep_what_grows(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let root = &mounts[0];
    make(
        cluster,
        &["-E", "64K", "-L", "mdt", "-E", "1G", "-c", "1", "-z", "64M", "-E", "-1", "-c", "2"],
        root,
    );
    let shown = lfs(cluster, &["getstripe", "-d", text(root)]);
    assert!(
        shown.contains("stripe_count:  0       extension_size: 67108864       pattern:       raid0"),
        "{shown}"
    );
    let file = root.join("inherits");
    fs::write(&file, vec![3; 70_000]).expect("write");
    read_write(&file).write_all_at(b"x", 2 * STEP).expect("write");
    let ends = |path: &Path| extents(cluster, path);
    // Steps start at the end of the part on the MDT.
    let grown = lfs(cluster, &["getstripe", "-E", "--component-flags=init", text(&file)]);
    let border = (65536 + 2 * STEP).next_multiple_of(4 * MIB).to_string();
    assert!(grown.lines().any(|line| *line == border), "{grown}");
    let template = root.join("template.lyl");
    fs::write(&template, lfs(cluster, &["getstripe", "-y", text(&file)])).expect("write");
    let yaml = make(cluster, &["--yaml", text(&template)], &root.join("yaml"));
    let copy = make(cluster, &["--copy", text(&file)], &root.join("copy"));
    for made in [&yaml, &copy] {
        assert_eq!(ends(made), ["init 0 0", "0 0 0", "extension 0 1024", "0 1024 EOF"]);
        assert_eq!(lfs(cluster, &["getstripe", "-z", "--component-flags=extension", text(made)]), "67108864");
    }
    // Growing components can be added and deleted at the end.
    let short = make(cluster, &["-E", "64M", "-c", "1"], &root.join("short"));
    make(cluster, &["--component-add", "-E", "-1", "-c", "1", "-z", "64M"], &short);
    assert_eq!(ends(&short), ["init 0 64", "0 64 64", "extension 64 EOF"]);
    read_write(&short).write_all_at(b"x", STEP).expect("write");
    assert_eq!(ends(&short), ["init 0 64", "init 64 128", "extension 128 EOF"]);
    make(cluster, &["--component-del", "-I", "3"], &short);
    assert_eq!(ends(&short), ["init 0 64", "init 64 128"]);
    let full = read_write(&short).write_at(b"x", 2 * STEP).expect_err("it ends there");
    assert_eq!(full.raw_os_error(), Some(libc::ENODATA));
    make(cluster, &["--component-add", "-E", "-1", "-c", "1", "-z", "64M"], &short);
    make(cluster, &["--component-del", "-I", "3"], &short);
    assert_eq!(ends(&short), ["init 0 64", "init 64 128"], "with the room that it had");
    move_there_and_back(cluster, root);
    bad_sizes_are_refused(cluster, root);
}

fn move_there_and_back(cluster: &Cluster, root: &Path) {
    let ends = |path: &Path| extents(cluster, path);
    let moved = root.join("moved");
    lfs(cluster, &["setstripe", "-c", "1", text(&moved)]);
    let file = read_write(&moved);
    file.write_all_at(b"begin", 0).expect("write");
    file.write_all_at(b"end", 3 * STEP).expect("write");
    lfs(cluster, &["migrate", "-E", "-1", "-c", "2", "-z", "64M", text(&moved)]);
    assert_eq!(ends(&moved), ["init 0 256", "extension 256 EOF"]);
    lfs(cluster, &["migrate", "-c", "1", text(&moved)]);
    let mut piece = [0; 5];
    file.read_exact_at(&mut piece, 0).expect("read");
    assert_eq!((&piece, file.metadata().expect("stat").len()), (b"begin", 3 * STEP + 3));
}

fn bad_sizes_are_refused(cluster: &Cluster, root: &Path) {
    let refused = |options: &[&str], code: i32, message: &str| {
        let path = root.join("bad");
        let outcome = cluster.lfs(&[&["setstripe"], options, &[text(&path)]].concat()).fails_with(code);
        assert!(outcome.stderr.contains(message), "{outcome}");
        assert!(!path.exists());
    };
    let size = "Set stripe size 65536 failed: Invalid argument\nerror: lfs setstripe: invalid layout";
    refused(&["-E", "-1", "-z", "64K"], libc::EINVAL, size);
    refused(
        &["-E", "-1", "-z", "64M", "-S", "192K"],
        1,
        "extension size must be a multiple of the stripe size",
    );
    refused(&["-E", "1M", "-L", "mdt", "-z", "64M", "-E", "-1"], libc::EINVAL, "'-L mdt'");
    make(cluster, &["-z", "64M"], &root.join("ignored"));
}

/// Content of a file with large holes: the value of each written block.
#[derive(Default)]
struct Sparse(BTreeMap<u64, u8>);

/// Size of all operations; they are at the beginning or right before the end of steps.
const BLOCK: usize = 8192;

impl Sparse {
    fn check(&self, file: &File, size: u64) {
        assert_eq!(file.metadata().expect("stat").len(), size);
        let mut piece = [0; BLOCK];
        for (at, value) in &self.0 {
            file.read_exact_at(&mut piece, *at).expect("read");
            assert_eq!(piece, [*value; BLOCK], "at {at}");
        }
    }
}

/// Both mounts write, truncate and punch around the borders of steps, while OSTs refuse and permit growth.
fn any_operations_of_two_mounts_leave_a_flat_file(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let options = ["-E", "512M", "-c", "1", "-z", "64M", "-E", "-1", "-c", "2", "-S", "64K", "-z", "128M"];
    let path = make(cluster, &options, &mounts[0].join("any"));
    let files = [read_write(&path), read_write(&mounts[1].join("any"))];
    let (mut random, mut expected, mut size) = (Rng::with_seed(17), Sparse::default(), 0);
    for round in 1..=120u32 {
        if round % 50 == 0 {
            let all: Vec<usize> = (0..OSTS).filter(|_| random.bool()).collect();
            refuse_growth(cluster, &all);
        }
        let file = &files[random.usize(..2)];
        let border = STEP * random.usize(..24) as u64;
        let at = if random.bool() { border } else { border.saturating_sub(BLOCK as u64) };
        match random.usize(..8) {
            0 => {
                file.set_len(at).expect("cut");
                expected.0.retain(|block, _| *block < at);
                size = at;
            }
            1 if at < size => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(file, flags, at, BLOCK as u64).expect("punch");
                expected.0.remove(&at);
            }
            _ => {
                file.write_all_at(&[round as u8; BLOCK], at).expect("write");
                expected.0.insert(at, round as u8);
                size = size.max(at + BLOCK as u64);
            }
        }
        if round % 10 == 0 {
            files.iter().for_each(|file| expected.check(file, size));
        }
    }
    files.iter().for_each(|file| expected.check(file, size));
    let all = shape(cluster, &path);
    assert!(all.windows(2).all(|pair| pair[0].split(' ').nth(2) == pair[1].split(' ').nth(1)), "{all:?}");
}

#[test]
fn a_file_grows_and_both_mounts_follow_in_one_process() {
    with_two(Shape::Embedded, "selae", a_file_grows_and_both_mounts_follow);
}

#[test]
fn a_file_grows_and_both_mounts_follow_over_the_network() {
    with_two(Shape::Separate, "selas", a_file_grows_and_both_mounts_follow);
}

#[test]
fn full_osts_spill_over_in_one_process() {
    with_two(Shape::Embedded, "selbe", full_osts_spill_over_to_the_next_component);
}

#[test]
fn full_osts_spill_over_over_the_network() {
    with_two(Shape::Separate, "selbs", full_osts_spill_over_to_the_next_component);
}

#[test]
fn any_operations_of_two_mounts_leave_a_flat_file_in_one_process() {
    with_two(Shape::Embedded, "selce", any_operations_of_two_mounts_leave_a_flat_file);
}

#[test]
fn any_operations_of_two_mounts_leave_a_flat_file_over_the_network() {
    with_two(Shape::Separate, "selcs", any_operations_of_two_mounts_leave_a_flat_file);
}

#[test]
fn templates_copies_and_edits_keep_what_grows_in_one_process() {
    with_two(Shape::Embedded, "selde", templates_copies_and_edits_keep_what_grows);
}

#[test]
fn templates_copies_and_edits_keep_what_grows_over_the_network() {
    with_two(Shape::Separate, "selds", templates_copies_and_edits_keep_what_grows);
}

/// Writers take step after step while the MDT is killed: each step is taken once, and all written data is
/// there.
#[test]
fn steps_are_whole_although_the_mds_is_killed() {
    const STEPS: u64 = 400;
    with_two(Shape::Separate, "selfk", |cluster, mounts| {
        let options = ["-E", "4G", "-c", "1", "-z", "64M", "-E", "-1", "-c", "2", "-z", "64M"];
        let path = make(cluster, &options, &mounts[0].join("f"));
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for (own, mount) in mounts.iter().enumerate() {
                let written = &written;
                scope.spawn(move || {
                    let file = read_write(&mount.join("f"));
                    for step in (own as u64..STEPS).step_by(2) {
                        file.write_all_at(&step.to_le_bytes(), step * STEP).expect("write");
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for goal in [50, 200] {
                wait::until(LIMIT, "some steps", || (written.load(Ordering::Relaxed) >= goal).then_some(()));
                cluster.kill("mdt0000");
                cluster.start_all();
            }
        });
        let file = read_write(&path);
        for step in 0..STEPS {
            let mut found = [0; 8];
            file.read_exact_at(&mut found, step * STEP).expect("read");
            assert_eq!(u64::from_le_bytes(found), step);
        }
        let found = shape(cluster, &path);
        let last = format!("init 4096 {} ", STEPS * 64);
        assert!(
            found.len() == 3 && found[0].starts_with("init 0 4096 ") && found[1].starts_with(&last),
            "{found:?}"
        );
    });
}
