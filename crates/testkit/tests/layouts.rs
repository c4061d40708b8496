//! Composite layouts on a running file system: components get objects as a file grows, templates are
//! inherited, and several clients follow one file through its components.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, errno, on_every_shape, wait};
use rustix::fs::{FallocateFlags, SeekFrom};

const MIB: u64 = 1 << 20;
/// Timeout, far above the time of any operation here: it detects those that hang.
const LIMIT: Duration = Duration::from_secs(100);
/// Components with low ends, so that small files cross them: 1 MiB on one OST, up to 4 MiB on two, then all.
const PROGRESSIVE: &[&str] =
    &["-E", "1M", "-c", "1", "-S", "64K", "-E", "4M", "-c", "2", "-E", "-1", "-c", "-1"];

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn setstripe(cluster: &Cluster, options: &[&str], path: &Path) {
    let mut arguments = vec!["setstripe"];
    arguments.extend_from_slice(options);
    arguments.push(text(path));
    lfs(cluster, &arguments);
}

/// Returns the number of components that have objects.
fn instantiated(cluster: &Cluster, path: &Path) -> usize {
    let shown = lfs(cluster, &["getstripe", "--component-flags=init", "-I", text(path)]);
    shown.lines().filter(|line| !line.is_empty()).count()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

on_every_shape! {
    fn components_get_objects_as_a_file_grows_and_hold_its_data(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("grows");
        setstripe(cluster, PROGRESSIVE, &path);
        assert_eq!(lfs(cluster, &["getstripe", "--component-count", text(&path)]), "3");
        assert_eq!(instantiated(cluster, &path), 1);
        let bytes = random_bytes(7, (9 * MIB + 12_345) as usize);
        let file = read_write(&path);
        let mut written = 0;
        for (until, components) in [(100, 1), (MIB, 1), (MIB + 1, 2), (4 * MIB, 2), (bytes.len() as u64, 3)] {
            file.write_all_at(&bytes[written as usize..until as usize], written).expect("write");
            written = until;
            assert_eq!(instantiated(cluster, &path), components, "{until} bytes");
            assert_eq!(fs::metadata(&path).expect("stat").len(), until);
        }
        assert!(fs::read(&path).expect("read") == bytes);
        for at in [MIB - 5, 4 * MIB - 100_000, 2 * MIB] {
            let mut piece = vec![0; 300_000];
            file.read_exact_at(&mut piece, at).expect("read");
            assert!(piece == bytes[at as usize..][..300_000], "at {at}");
        }
        // Truncated within the second component: old data does not reappear when the file grows again.
        file.set_len(2 * MIB).expect("cut");
        file.set_len(6 * MIB).expect("extend");
        let mut expected = bytes[..(2 * MIB) as usize].to_vec();
        expected.resize((6 * MIB) as usize, 0);
        assert!(fs::read(&path).expect("read") == expected);
        drop(file);
        assert_eq!(fs::metadata(&path).expect("stat").len(), 6 * MIB);
    }

    fn truncation_and_writes_far_behind_reach_components(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let fresh = |name: &str| {
            let path = root.join(name);
            setstripe(cluster, PROGRESSIVE, &path);
            path
        };
        // An end exactly at the border instantiates the second component too.
        let cut = fresh("cut");
        let file = read_write(&cut);
        file.set_len(MIB - 1).expect("extend");
        assert_eq!(instantiated(cluster, &cut), 1);
        file.set_len(MIB).expect("extend");
        assert_eq!((instantiated(cluster, &cut), fs::metadata(&cut).expect("stat").len()), (2, MIB));
        let far = fresh("far");
        let file = read_write(&far);
        file.write_all_at(b"end", 100 * MIB).expect("write");
        assert_eq!(instantiated(cluster, &far), 3);
        let found = rustix::fs::seek(&file, SeekFrom::Data(0)).expect("data");
        assert!(found > 99 * MIB && found <= 100 * MIB, "data at {found}");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).expect("hole"), 0);
        let mut piece = [1; 10];
        assert_eq!(file.read_at(&mut piece, 3 * MIB + 5).expect("read"), 10);
        assert_eq!(piece, [0; 10]);
        let reserved = fresh("reserved");
        let file = read_write(&reserved);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), MIB - 100, 200).expect("allocate");
        assert_eq!((instantiated(cluster, &reserved), file.metadata().expect("stat").len()), (2, MIB + 100));
        file.write_all_at(&[7; 4096], MIB - 2048).expect("write");
        rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, MIB - 10, 20).expect("punch");
        let mut piece = vec![1; 40];
        file.read_exact_at(&mut piece, MIB - 20).expect("read");
        let expected: Vec<u8> = [&[7; 10][..], &[0; 20], &[7; 10]].concat();
        assert_eq!(piece, expected);
    }

    fn a_file_ends_where_its_last_component_ends(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("short");
        setstripe(cluster, &["-E", "1M", "-c", "1", "-E", "2M", "-c", "2"], &path);
        let file = read_write(&path);
        let bytes = random_bytes(3, (3 * MIB) as usize);
        let mut done = 0;
        while done < 2 * MIB {
            done += file.write_at(&bytes[done as usize..], done).expect("as much as there is room") as u64;
        }
        assert_eq!(done, 2 * MIB, "a write ends at the end of the last component");
        assert_eq!(errno(file.write_at(b"x", 2 * MIB)), libc::ENODATA);
        assert_eq!(errno(file.write_at(b"x", 5 * MIB)), libc::ENODATA);
        assert_eq!(errno(file.set_len(2 * MIB + 1)), libc::ENODATA);
        let mut append = OpenOptions::new().append(true).open(&path).expect("open");
        assert_eq!(errno(append.write(b"x")), libc::ENODATA);
        assert_eq!(file.read_at(&mut [0; 10], 2 * MIB).expect("read"), 0);
        assert!(fs::read(&path).expect("read") == bytes[..(2 * MIB) as usize]);
        assert_eq!(fs::metadata(&path).expect("stat").len(), 2 * MIB);
        append.set_len(2 * MIB - 1).expect("cut");
        append.write_all(b"y").expect("the last byte");
    }

    fn templates_are_inherited_copied_and_written_as_yaml(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        setstripe(cluster, PROGRESSIVE, &root);
        fs::create_dir(root.join("sub")).expect("mkdir");
        let file = root.join("sub/file");
        fs::write(&file, vec![5u8; (2 * MIB) as usize]).expect("write");
        let shown = lfs(cluster, &["getstripe", text(&file)]);
        for line in [
            "  lcm_entry_count:   3",
            "    lcme_id:             3",
            "    lcme_extent.e_end:   4194304",
            "      lmm_stripe_count:  -1",
            "      -   1: { l_ost_idx:",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        let directory = lfs(cluster, &["getstripe", "-d", text(&root.join("sub"))]);
        assert!(directory.contains("    lcme_id:             N/A"), "{directory}");
        // An unwritten file shows the layout that it will get.
        File::create(root.join("empty")).expect("create");
        assert_eq!(lfs(cluster, &["getstripe", "--component-count", text(&root.join("empty"))]), "3");
        assert_eq!(instantiated(cluster, &root.join("empty")), 0);
        let template = root.join("template.lyl");
        fs::write(&template, lfs(cluster, &["getstripe", "-y", text(&file)])).expect("write");
        let (from_yaml, copy) = (root.join("yaml"), root.join("copy"));
        setstripe(cluster, &["--yaml", text(&template)], &from_yaml);
        setstripe(cluster, &["--copy", text(&file)], &copy);
        for made in [&from_yaml, &copy] {
            for option in ["-E", "-c", "-S", "--component-start"] {
                let all = |path: &Path| lfs(cluster, &["getstripe", option, "--mirror-id=-9", text(path)]);
                assert_eq!(all(made), all(&file), "{option}");
            }
            assert_eq!(instantiated(cluster, made), 1);
        }
        // The root's default is looked up at the first write, not copied.
        setstripe(cluster, &["-d"], &root);
        let late = root.join("late");
        File::create(&late).expect("create");
        setstripe(cluster, &["-E", "1M", "-E", "eof", "-c", "3"], cluster.mount());
        fs::write(&late, vec![1u8; (MIB + 1) as usize]).expect("write");
        assert_eq!(lfs(cluster, &["getstripe", "-c", text(&late)]), "3");
        setstripe(cluster, &["-d"], cluster.mount());
        cluster.lfs(&["setstripe", "-E", "1M", "-E", "-1", text(&file)]).fails_with(libc::EEXIST);
        cluster.lfs(&["setstripe", "-E", "4M", "-E", "2M", text(&root.join("bad"))]).fails_with(libc::EINVAL);
        assert!(!root.join("bad").exists(), "a bad argument leaves no file");
    }

    fn components_are_added_to_files_that_are_open_and_deleted_again(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("f");
        let name = text(&path);
        setstripe(cluster, &["-E", "1M", "-c", "1"], &path);
        let file = read_write(&path);
        file.write_all_at(b"begin", 0).expect("write");
        assert_eq!(errno(file.write_at(b"x", MIB)), libc::ENODATA);
        setstripe(cluster, &["--component-add", "-E", "4M", "-c", "2", "-E", "-1"], &path);
        assert_eq!(lfs(cluster, &["getstripe", "--component-count", name]), "3");
        let refused = |options: &[&str], name: &str, exit: i32, message: &str| {
            let arguments: Vec<&str> = [&["setstripe"], options, &[name]].concat();
            let outcome = cluster.lfs(&arguments).fails_with(exit);
            assert_eq!(outcome.stderr.trim(), message);
        };
        let add = ["--comp-add", "-E", "eof", "-c", "1"];
        let zero = "lfs setstripe: Invalid layout: Zero length components must be followed by extension\n";
        refused(&add, name, 1, &format!("{zero}Add layout component(s) to {name} failed. Invalid argument"));
        let first = format!("lfs setstripe setstripe: cannot delete component 0x1 from '{name}': Invalid argument");
        refused(&["--comp-del", "-I", "1"], name, 1, &first);
        let flags = format!("lfs setstripe: cannot change the flags of component '0x1' of file '{name}': 6 / ^(0)");
        refused(&["--comp-set", "-I", "1", "--comp-flags=prefer"], name, 1, &flags);
        let plain = root.join("plain");
        setstripe(cluster, &["-c", "1"], &plain);
        fs::write(&plain, "x").expect("write");
        let not = format!(
            "lfs setstripe setstripe: '{}' not a composite file\nerror: lfs setstripe: invalid layout",
            text(&plain)
        );
        refused(&add, text(&plain), libc::EINVAL, &not);
        setstripe(cluster, &["--comp-del", "-I", "3"], &path);
        file.write_all_at(b"middle", 2 * MIB).expect("the added component");
        assert_eq!(errno(file.write_at(b"x", 4 * MIB)), libc::ENODATA);
        assert_eq!(fs::metadata(&path).expect("stat").len(), 2 * MIB + 6);
        setstripe(cluster, &["--comp-add", "-E", "-1", "-c", "-1"], &path);
        file.write_all_at(b"end", 4 * MIB).expect("the added component");
        drop(file);
        let bytes = fs::read(&path).expect("read");
        assert_eq!((&bytes[..5], &bytes[(2 * MIB) as usize..][..6]), (&b"begin"[..], &b"middle"[..]));
        assert_eq!((bytes.len() as u64, &bytes[(4 * MIB) as usize..]), (4 * MIB + 3, &b"end"[..]));
    }

    fn a_layout_of_many_components_and_stripes_is_read_and_written(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("many");
        let ends: Vec<String> = (1..=200).map(|i| format!("{}K", i * 64)).collect();
        let options: Vec<&str> = ends.iter().flat_map(|end| ["-E", end.as_str()]).chain(["-S", "64K"]).collect();
        setstripe(cluster, &options, &path);
        let bytes = random_bytes(9, 200 * 65536);
        fs::write(&path, &bytes).expect("write");
        assert_eq!(instantiated(cluster, &path), 200);
        assert!(fs::read(&path).expect("read") == bytes);
        assert_eq!(fs::metadata(&path).expect("stat").size(), bytes.len() as u64);
    }

    fn progressive_files_under_any_operations_are_flat_files(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        setstripe(cluster, &["-E", "64K", "-c", "1", "-E", "192K", "-c", "2", "-S", "64K", "-E", "-1", "-c", "-1"], &root);
        Exercise::new(3, 1_000).run(&root.join("any"));
    }
}

/// Runs `case` on a shape with two mounts of one directory.
fn with_two(shape: Shape, case: fn(&mut Cluster, &[PathBuf; 2])) {
    let Some(mut cluster) = Cluster::start_to_share(shape, "ly") else { return };
    let mounts = [cluster.directory("d"), cluster.add_mount().join("d")];
    case(&mut cluster, &mounts);
    cluster.stop_and_check();
}

/// One client writes into components that the other has only seen without objects.
fn components_that_one_client_makes_are_seen_by_the_other(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let [first, second] = mounts;
    setstripe(cluster, PROGRESSIVE, &first.join("f"));
    let (here, there) = (read_write(&first.join("f")), read_write(&second.join("f")));
    let bytes = random_bytes(5, (6 * MIB) as usize);
    here.write_all_at(&bytes[..1000], 0).expect("write");
    let mut piece = vec![0; 1000];
    there.read_exact_at(&mut piece, 0).expect("read");
    assert!(piece == bytes[..1000]);
    // Alternately, each over a border that the other has not crossed yet.
    let steps =
        [(&here, 1000, MIB + 70_000), (&there, MIB + 70_000, 4 * MIB + 5), (&here, 4 * MIB + 5, 6 * MIB)];
    for (writer, from, to) in steps {
        writer.write_all_at(&bytes[from as usize..to as usize], from).expect("write");
        for reader in [&here, &there] {
            assert_eq!(reader.metadata().expect("stat").len(), to);
            let mut all = vec![0; to as usize];
            reader.read_exact_at(&mut all, 0).expect("read");
            assert!(all == bytes[..to as usize], "up to {to}");
        }
    }
    there.set_len(MIB / 2).expect("cut");
    assert_eq!(here.metadata().expect("stat").len(), MIB / 2);
    assert_eq!(here.read_at(&mut [0; 10], 5 * MIB).expect("read"), 0);
    components_that_one_adds_are_seen_by_the_other(cluster, mounts);
    append_in_turn(cluster, mounts);
    let narrow = ["-E", "64K", "-c", "1", "-E", "192K", "-c", "2", "-S", "64K", "-E", "-1", "-c", "-1"];
    setstripe(cluster, &narrow, first);
    let aliases = vec![second.join("any")];
    Exercise { aliases, stay_open: true, ..Exercise::new(11, 1_000) }.run(&first.join("any"));
}

/// A file that both have open is extended beyond its last component.
fn components_that_one_adds_are_seen_by_the_other(cluster: &Cluster, mounts: &[PathBuf; 2]) {
    let [first, second] = mounts;
    setstripe(cluster, &["-E", "1M"], &first.join("short"));
    let (here, there) = (read_write(&first.join("short")), read_write(&second.join("short")));
    here.write_all_at(b"here", 0).expect("write");
    assert_eq!(there.metadata().expect("stat").len(), 4);
    setstripe(cluster, &["--comp-add", "-E", "-1", "-c", "2"], &first.join("short"));
    here.write_all_at(b"behind", 3 * MIB).expect("write");
    assert_eq!(there.metadata().expect("stat").len(), 3 * MIB + 6);
    let mut piece = [0; 6];
    there.read_exact_at(&mut piece, 3 * MIB).expect("read");
    assert_eq!(&piece, b"behind");
    there.write_all_at(b"there", 5 * MIB).expect("write");
    assert_eq!(here.metadata().expect("stat").len(), 5 * MIB + 5);
}

/// Appends of both mounts cross all borders and never overlap.
fn append_in_turn(cluster: &Cluster, mounts: &[PathBuf; 2]) {
    const RECORD: usize = 3001;
    const EACH: usize = 200;
    let options =
        ["-E", "64K", "-c", "1", "-E", "256K", "-c", "2", "-S", "64K", "-E", "512K", "-E", "-1", "-c", "-1"];
    setstripe(cluster, &options, &mounts[0].join("log"));
    std::thread::scope(|scope| {
        for (mount, name) in mounts.iter().zip([b'a', b'b']) {
            scope.spawn(move || {
                let mut log = OpenOptions::new().append(true).open(mount.join("log")).expect("open");
                (0..EACH).for_each(|_| log.write_all(&[name; RECORD]).expect("append"));
            });
        }
    });
    for mount in mounts {
        let all = fs::read(mount.join("log")).expect("read");
        assert_eq!(all.len(), 2 * EACH * RECORD);
        assert!(all.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])));
        assert_eq!(all.chunks(RECORD).filter(|record| record[0] == b'a').count(), EACH);
    }
    assert_eq!(instantiated(cluster, &mounts[1].join("log")), 4);
}

/// Writers cross borders while the MDT is killed; each component gets its objects once, and all written data
/// is there.
#[test]
fn components_are_instantiated_once_although_the_mds_is_killed() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let mut cluster = Cluster::start(Shape::Separate);
    if cluster.is_foreign() {
        return;
    }
    const PARTS: usize = 120;
    let root = cluster.directory("d");
    let ends: Vec<String> = (1..=PARTS).map(|i| format!("{}K", i * 64)).collect();
    let options: Vec<&str> = ["-S", "64K", "-c", "2"]
        .into_iter()
        .chain(ends.iter().flat_map(|end| ["-E", end.as_str()]))
        .collect();
    let bytes = random_bytes(4, PARTS * 65536);
    let paths: Vec<PathBuf> = (0..2).map(|i| root.join(i.to_string())).collect();
    paths.iter().for_each(|path| setstripe(&cluster, &options, path));
    let written = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for path in &paths {
            let (bytes, written) = (&bytes, &written);
            scope.spawn(move || {
                let file = read_write(path);
                for (place, piece) in bytes.chunks(65536).enumerate() {
                    file.write_all_at(piece, place as u64 * 65536).expect("write");
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for goal in [60, 150] {
            wait::until(LIMIT, "some components", || (written.load(Ordering::Relaxed) >= goal).then_some(()));
            cluster.kill("mdt0000");
            cluster.start_all();
        }
    });
    for path in &paths {
        assert!(fs::read(path).expect("read") == bytes);
        assert_eq!(instantiated(&cluster, path), PARTS);
    }
    // The check would find objects without a file, or with two.
    cluster.stop_and_check();
}

#[test]
fn two_clients_follow_one_file_through_its_components_in_one_process() {
    with_two(Shape::Embedded, components_that_one_client_makes_are_seen_by_the_other);
}

#[test]
fn two_clients_follow_one_file_through_its_components_over_the_network() {
    with_two(Shape::Separate, components_that_one_client_makes_are_seen_by_the_other);
}
