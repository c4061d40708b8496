//! Data on the MDT: small files without OSTs, growth beyond the MDT, clients that share a file, and an MDT
//! that dies or is full.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::run::Run;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, Stopped, errno, on_each_shape, on_every_shape, wait};
use rustix::fs::{FallocateFlags, SeekFrom};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Timeout, far above the time of any operation here: it detects those that hang.
const LIMIT: Duration = Duration::from_secs(100);
const HEAD: &[&str] = &["-E", "1M", "-L", "mdt", "-E", "-1", "-c", "2", "-S", "64K"];

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn setstripe(cluster: &Cluster, options: &[&str], path: &Path) {
    lfs(cluster, &[&["setstripe"], options, &[text(path)]].concat());
}

/// Returns the number of components that have objects.
fn instantiated(cluster: &Cluster, path: &Path) -> usize {
    let shown = lfs(cluster, &["getstripe", "--component-flags=init", "-I", text(path)]);
    shown.lines().filter(|line| !line.is_empty()).count()
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn random_bytes(seed: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0; length as usize];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Creates a directory whose files begin on the MDT.
fn dom_directory(cluster: &Cluster, name: &str) -> PathBuf {
    let root = cluster.directory(name);
    setstripe(cluster, HEAD, &root);
    root
}

fn get(cluster: &Cluster, pattern: &str) -> String {
    cluster.lctl(&["get_param", "-n", pattern]).success().stdout
}

/// Returns the sum of the counters of data requests, over all texts.
fn data_requests(text: &str) -> u64 {
    let quiet = [
        "snapshot_time",
        "start_time",
        "elapsed_time",
        "statfs",
        "ping",
        "create",
        "connect",
        "set_info",
        "get_info",
    ];
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let counts = rows.filter(|row| row.len() > 1 && !quiet.iter().any(|name| row[0].starts_with(name)));
    counts.filter_map(|row| row[1].parse::<u64>().ok()).sum()
}

on_every_shape! {
    fn a_file_grows_out_of_the_mdt_and_back(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = dom_directory(cluster, "d").join("grows");
        let bytes = random_bytes(7, 3 * MIB + 12_345);
        let file = read_write(&path);
        let mut written = 0;
        for (until, components) in [(100, 1), (4 * KIB, 1), (40 * KIB, 1), (MIB, 1), (MIB + 1, 2), (bytes.len() as u64, 2)] {
            file.write_all_at(&bytes[written as usize..until as usize], written).expect("write");
            written = until;
            assert_eq!(instantiated(cluster, &path), components, "{until} bytes");
            assert_eq!(fs::metadata(&path).expect("stat").len(), until);
        }
        assert!(fs::read(&path).expect("read") == bytes);
        file.sync_all().expect("fsync");
        for cut in [2 * MIB, MIB, 300 * KIB, 10] {
            file.set_len(cut).expect("cut");
            assert!(fs::read(&path).expect("read") == bytes[..cut as usize], "{cut}");
        }
        file.set_len(2 * MIB).expect("extend");
        drop(file);
        let found = fs::read(&path).expect("read");
        assert!(found[..10] == bytes[..10] && found[10..].iter().all(|byte| *byte == 0), "nothing shines through");
        assert_eq!(found.len() as u64, 2 * MIB);
    }

    fn holes_and_reservations_reach_the_mdt(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = dom_directory(cluster, "d").join("holes");
        let file = read_write(&path);
        file.write_all_at(&[7; 4096], MIB - 2048).expect("write over the border");
        let found = rustix::fs::seek(&file, SeekFrom::Data(0)).expect("data");
        assert!(found > MIB - 64 * KIB && found <= MIB - 2048, "data at {found}");
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)).expect("hole"), 0);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, MIB - 10, 20).expect("punch");
        let mut piece = vec![1; 40];
        file.read_exact_at(&mut piece, MIB - 20).expect("read");
        assert_eq!(piece, [&[7; 10][..], &[0; 20], &[7; 10]].concat());
        let reserved = path.with_file_name("reserved");
        let file = read_write(&reserved);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 300 * KIB).expect("allocate");
        let shown = file.metadata().expect("stat");
        assert_eq!((shown.len(), shown.blocks() >= 600, instantiated(cluster, &reserved)), (300 * KIB, true, 1));
        rustix::fs::fallocate(&file, punch, 0, 300 * KIB).expect("punch");
        assert_eq!(file.metadata().expect("stat").blocks(), 0);
    }

    fn a_file_that_ends_on_the_mdt_cannot_outgrow_it(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("short");
        setstripe(cluster, &["-E", "64K", "-L", "mdt"], &path);
        let file = read_write(&path);
        assert_eq!(file.write_at(&vec![1; 100_000], 0).expect("as much as there is room"), 65536);
        assert_eq!(errno(file.write_at(b"x", 65536)), libc::ENODATA);
        assert_eq!(file.metadata().expect("stat").len(), 65536);
    }

    fn layouts_on_the_mdt_are_shown_inherited_copied_and_replaced(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = dom_directory(cluster, "d");
        let path = root.join("sub").join("f");
        fs::create_dir(root.join("sub")).expect("mkdir");
        fs::write(&path, "small").expect("write");
        let shown = lfs(cluster, &["getstripe", text(&path)]);
        let head = "      lmm_stripe_count:  0\n      lmm_stripe_size:   1048576\n      lmm_pattern:       mdt\n      \
            lmm_layout_gen:    0\n      lmm_mdt_index:     0\n";
        assert!(shown.contains(head), "{shown}");
        assert_eq!(lfs(cluster, &["getstripe", "-L", text(&path)]), "mdt");
        let template = root.join("template");
        fs::write(&template, lfs(cluster, &["getstripe", "-y", text(&path)])).expect("write");
        for (name, how) in [("copy", ["--copy", text(&path)]), ("yaml", ["--yaml", text(&template)])] {
            let made = cluster.mount().join(name);
            setstripe(cluster, &how, &made);
            fs::write(&made, "text").expect("write");
            assert_eq!(lfs(cluster, &["getstripe", "-L", text(&made)]), "mdt", "{name}");
        }
        // A file with an explicit layout ignores the default of its directory.
        let plain = root.join("plain");
        setstripe(cluster, &["-c", "1"], &plain);
        assert_eq!(lfs(cluster, &["getstripe", "-L", text(&plain)]), "raid0");
        fs::write(&plain, "text").expect("write");
        assert_eq!(fs::read_to_string(&plain).expect("read"), "text");
        // A file with data keeps its layout.
        cluster.lfs(&["setstripe", "-c", "1", text(&path)]).fails_with(libc::EEXIST);
        // A file that was only opened for writing keeps its layout until another one is set.
        let empty = root.join("empty");
        drop(read_write(&empty));
        setstripe(cluster, &["-c", "1"], &empty);
        assert_eq!(lfs(cluster, &["getstripe", "-L", text(&empty)]), "raid0");
        fs::write(&empty, "text").expect("write");
        assert_eq!(fs::read_to_string(&empty).expect("read"), "text");
    }

    fn files_that_begin_on_the_mdt_are_flat_files_under_any_operations(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        setstripe(cluster, &["-E", "64K", "-L", "mdt", "-E", "192K", "-c", "2", "-S", "64K", "-E", "-1", "-c", "-1"], &root);
        Exercise::new(3, 1_000).run(&root.join("any"));
        let small = Exercise { size_max: 60_000, length_max: 20_000, ..Exercise::new(4, 1_000) };
        small.run(&root.join("small"));
    }

    fn data_is_there_after_a_restart(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = dom_directory(cluster, "d");
        let sizes = [1, 5000, 32 * KIB, 32 * KIB + 1, 400 * KIB, MIB + 7];
        for (seed, size) in sizes.iter().enumerate() {
            fs::write(root.join(seed.to_string()), random_bytes(seed as u64, *size)).expect("write");
        }
        cluster.stop_and_check();
        cluster.start_all();
        for (seed, size) in sizes.iter().enumerate() {
            let path = root.join(seed.to_string());
            assert!(fs::read(&path).expect("read") == random_bytes(seed as u64, *size), "{size}");
            fs::remove_file(path).expect("unlink");
        }
    }
}

/// Small files are created, read, looked up, truncated and removed without a request to an OST.
#[test]
fn small_files_ask_no_ost() {
    on_each_shape("domc", |cluster, fs| {
        let root = dom_directory(cluster, "d");
        let osts = format!("obdfilter.{fs}-OST*.stats");
        let before = data_requests(&get(cluster, &osts));
        for index in 0..20 {
            let path = root.join(index.to_string());
            fs::write(&path, vec![index; 4096]).expect("write");
            assert_eq!(fs::metadata(&path).expect("stat").len(), 4096);
            assert_eq!(fs::read(&path).expect("read"), vec![index; 4096]);
            let file = read_write(&path);
            file.set_len(100).expect("cut");
            file.sync_all().expect("fsync");
            drop(file);
            fs::remove_file(&path).expect("unlink");
        }
        assert_eq!(data_requests(&get(cluster, &osts)), before, "{}", get(cluster, &osts));
    });
}

/// The only client of a file system gets the data of a small file with the open, and still sees its own later
/// changes.
#[test]
fn small_files_come_with_their_open() {
    on_each_shape("domo", |cluster, fs| {
        let root = dom_directory(cluster, "d");
        (0..20).for_each(|index| fs::write(root.join(index.to_string()), vec![index; 3901]).expect("write"));
        fs::write(root.join("large"), vec![7; 40_000]).expect("write");
        // A restart, so that all caches are empty.
        cluster.stop();
        cluster.start_all();
        let reads = || {
            let text = get(cluster, &format!("mdt.{fs}-MDT0000.dom_stats"));
            let row = text.lines().find(|line| line.starts_with("read_bytes")).map(str::to_owned);
            row.map_or(0, |row| {
                row.split_whitespace().nth(1).map_or(0, |count| count.parse().expect("a number"))
            })
        };
        let before: u64 = reads();
        (0..20).for_each(|index| {
            assert_eq!(fs::read(root.join(index.to_string())).expect("read"), vec![index; 3901]);
        });
        if cluster.shape() == Shape::Separate {
            assert_eq!(reads(), before, "requests for data");
        }
        assert_eq!(fs::read(root.join("large")).expect("read"), vec![7; 40_000]);
        assert!(reads() > before);
        let path = root.join("3");
        let (reader, writer) = (File::open(&path).expect("open"), read_write(&path));
        writer.write_all_at(b"changed", 5).expect("write");
        let mut piece = [0; 14];
        reader.read_exact_at(&mut piece, 0).expect("read");
        assert_eq!(&piece, b"\x03\x03\x03\x03\x03changed\x03\x03");
        let cut = File::open(root.join("4")).expect("open");
        read_write(&root.join("4")).set_len(2).expect("cut");
        assert_eq!(cut.read_at(&mut piece, 0).expect("read"), 2);
    });
}

/// The size of components on the MDT is bounded by a parameter, and by the free space of the MDT.
#[test]
fn components_on_the_mdt_are_bounded_and_shrink_with_the_space() {
    on_each_shape("doml", |cluster, fs| {
        let lod = |leaf: &str| format!("lod.{fs}-MDT0000-mdtlov.{leaf}");
        let set = |leaf: &str, value: &str| {
            cluster.lctl(&["set_param", "-n", &format!("{}={value}", lod(leaf))]).success();
        };
        let root = cluster.directory("d");
        let end_of_head = |name: &str, options: &[&str]| {
            let path = root.join(name);
            setstripe(cluster, options, &path);
            let pattern = lfs(cluster, &["getstripe", "-I1", "-L", text(&path)]);
            (pattern, lfs(cluster, &["getstripe", "-I1", "-E", text(&path)]))
        };
        let mdt = |end: u64| ("mdt".to_owned(), end.to_string());
        set("dom_threshold_free_mb", "0");
        assert_eq!(get(cluster, &lod("dom_stripesize")).trim(), "1048576");
        let large = ["-E", "4M", "-L", "mdt", "-E", "-1", "-c", "1"];
        assert_eq!(end_of_head("cut", &large), mdt(MIB));
        set("dom_stripesize", "2M");
        assert_eq!(end_of_head("two", &large), mdt(2 * MIB));
        let bytes = random_bytes(3, 5 * MIB);
        fs::write(root.join("two"), &bytes).expect("write");
        assert!(fs::read(root.join("two")).expect("read") == bytes);
        // Simulates an almost full MDT: a threshold above any disk's free space.
        let free_mb =
            get(cluster, &format!("mdc.{fs}-MDT0000-mdc-*.kbytesavail")).trim().parse::<u64>().expect("KiB")
                >> 10;
        set("dom_threshold_free_mb", &(free_mb * 3).to_string());
        wait::until(wait::SOON, "the limit follows", || {
            (get(cluster, &lod("dom_stripesize_cur_kb")).trim() == "512").then_some(())
        });
        assert_eq!(end_of_head("quarter", &large), mdt(512 * KIB));
        set("dom_threshold_free_mb", "0");
        set("dom_stripesize", "0");
        assert_eq!(end_of_head("none", &large).0, "raid0");
        for (value, errno) in [("100000", libc::EINVAL), ("2G", libc::ERANGE), ("much", libc::EINVAL)] {
            cluster.lctl(&["set_param", &format!("{}={value}", lod("dom_stripesize"))]).fails_with(errno);
        }
    });
}

/// Runs `case` on a shape with two mounts of one directory whose files begin on the MDT.
fn with_two(shape: Shape, case: fn(&mut Cluster, &[PathBuf; 2])) {
    let Some(mut cluster) = Cluster::start_to_share(shape, "dt") else { return };
    let mounts = [dom_directory(&cluster, "d"), cluster.add_mount().join("d")];
    case(&mut cluster, &mounts);
    cluster.stop_and_check();
}

/// Each mount sees the writes of the other, for every kind of access and component.
fn both_see_the_same(cluster: &mut Cluster, mounts: &[PathBuf; 2]) {
    let [first, second] = mounts;
    fs::write(first.join("f"), "from the first").expect("write");
    assert_eq!(fs::read_to_string(second.join("f")).expect("read"), "from the first");
    let (here, there) = (read_write(&first.join("f")), read_write(&second.join("f")));
    let bytes = random_bytes(5, 2 * MIB);
    let steps =
        [(&here, 0, 1000), (&there, 1000, 70_000), (&here, 70_000, MIB - 1), (&there, MIB - 1, 2 * MIB)];
    for (writer, from, to) in steps {
        writer.write_all_at(&bytes[from as usize..to as usize], from).expect("write");
        for reader in [&here, &there] {
            assert_eq!(reader.metadata().expect("stat").len(), to.max(14));
            let mut all = vec![0; to as usize];
            reader.read_exact_at(&mut all, 0).expect("read");
            assert!(all == bytes[..to as usize], "up to {to}");
        }
    }
    there.set_len(500).expect("cut");
    assert_eq!(here.metadata().expect("stat").len(), 500);
    assert_eq!(fs::metadata(first.join("f")).expect("stat").len(), 500);
    drop((here, there));
    append_in_turn(mounts);
    fs::remove_file(second.join("f")).expect("unlink");
    assert_eq!(errno(File::open(first.join("f"))), libc::ENOENT);
    setstripe(
        cluster,
        &["-E", "64K", "-L", "mdt", "-E", "192K", "-c", "2", "-S", "64K", "-E", "-1", "-c", "-1"],
        first,
    );
    let aliases = vec![second.join("any")];
    Exercise { aliases, stay_open: true, ..Exercise::new(11, 700) }.run(&first.join("any"));
}

/// Appends of both mounts, most of them to the MDT, never overlap.
fn append_in_turn(mounts: &[PathBuf; 2]) {
    const RECORD: usize = 301;
    const EACH: usize = 200;
    std::thread::scope(|scope| {
        for (mount, name) in mounts.iter().zip([b'a', b'b']) {
            scope.spawn(move || {
                let open = OpenOptions::new().append(true).create(true).open(mount.join("log"));
                let mut log = open.expect("open");
                (0..EACH).for_each(|_| log.write_all(&[name; RECORD]).expect("append"));
            });
        }
    });
    for mount in mounts {
        let all = fs::read(mount.join("log")).expect("read");
        assert_eq!(all.len(), 2 * EACH * RECORD);
        assert!(all.chunks(RECORD).all(|record| record.iter().all(|byte| *byte == record[0])));
    }
}

#[test]
fn two_clients_share_data_on_the_mdt_in_one_process() {
    with_two(Shape::Embedded, both_see_the_same);
}

#[test]
fn two_clients_share_data_on_the_mdt_over_the_network() {
    with_two(Shape::Separate, both_see_the_same);
}

/// Starts separate servers, and creates a directory whose files begin on the MDT.
fn separate() -> Option<(Cluster, PathBuf)> {
    if !have(&["/dev/fuse"]) || !have_root() {
        return None;
    }
    let cluster = Cluster::start(Shape::Separate);
    (!cluster.is_foreign()).then(|| dom_directory(&cluster, "d")).map(|root| (cluster, root))
}

/// Writers continue while the MDT, which stores their data, is killed again and again: all written data is
/// there and whole.
#[test]
fn a_killed_mdt_loses_nothing_that_was_written() {
    let Some((mut cluster, root)) = separate() else { return };
    let (written, files) = (AtomicU32::new(0), 400);
    let content = |name: u32| random_bytes(u64::from(name), 1 + u64::from(name) * 997 % 90_000);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (root, written) = (&root, &written);
            scope.spawn(move || {
                for name in (0..files).filter(|name| name % 2 == half) {
                    let mut file = File::create(root.join(name.to_string())).expect("create");
                    file.write_all(&content(name)).expect("write");
                    if name % 3 == 0 {
                        file.sync_all().expect("fsync");
                    }
                    written.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for goal in [50, 150] {
            wait::until(LIMIT, "some files", || (written.load(Ordering::Relaxed) >= goal).then_some(()));
            cluster.kill("mdt0000");
            cluster.start_all();
        }
    });
    for name in 0..files {
        assert!(fs::read(root.join(name.to_string())).expect("read") == content(name), "{name}");
    }
    cluster.stop_and_check();
}

/// The MDT dies while files are being closed: data that travels with a close arrives after its restart.
#[test]
fn data_that_goes_with_a_close_survives_an_mdt_that_dies_under_it() {
    let Some((mut cluster, root)) = separate() else { return };
    let content = |name: u64| random_bytes(name, 1 + name * 997 % 20_000);
    for round in 0..2 {
        let names = round * 20..round * 20 + 20;
        let open = |name: u64| {
            let mut file = File::create(root.join(name.to_string())).expect("create");
            file.write_all(&content(name)[..1]).expect("write");
            if name.is_multiple_of(2) {
                file.sync_all().expect("fsync");
            }
            file.write_all(&content(name)[1..]).expect("write");
            file
        };
        let files: Vec<File> = names.clone().map(open).collect();
        let stopped = Stopped::begin(&cluster, cluster.pid("mdt0000"));
        drop(files);
        cluster.kill("mdt0000");
        drop(stopped);
        cluster.start_all();
        for name in names {
            let path = root.join(name.to_string());
            assert_eq!(fs::metadata(&path).expect("stat").len(), content(name).len() as u64, "{name}");
            assert!(fs::read(&path).expect("read") == content(name), "{name}");
        }
    }
    cluster.stop_and_check();
}

/// A disk full of data on the MDT refuses more with ENOSPC, keeps its data, and can be emptied.
#[test]
fn a_full_mdt_refuses_data_and_can_be_emptied() {
    if !have(&["/dev/fuse", "mkfs.ext4"]) || !have_root() {
        return;
    }
    let run = Run::new();
    let disk = run.small_disk(700);
    let (data, fsname) = (Some(disk.join("data")), "domf".to_owned());
    let options = Options { data, osts: 1, fsname, ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    // Otherwise files would move to OSTs when the disk becomes full.
    cluster.lctl(&["set_param", "lod.domf-MDT0000-mdtlov.dom_threshold_free_mb=0"]).success();
    setstripe(&cluster, &["-E", "1M", "-L", "mdt"], &root);
    let bytes = random_bytes(8, MIB);
    let mut kept = Vec::new();
    let error = loop {
        let path = root.join(kept.len().to_string());
        let written = fs::write(&path, &bytes).and_then(|()| File::open(&path)?.sync_all());
        match written {
            Ok(()) => kept.push(path),
            Err(error) => break error,
        }
        assert!(kept.len() < 700, "the disk is full at some time");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    assert!(kept.iter().all(|path| fs::read(path).expect("read") == bytes));
    fs::remove_dir_all(&root).expect("a full MDT can be emptied");
    cluster.stop_and_check();
}
