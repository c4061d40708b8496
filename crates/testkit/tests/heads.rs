//! Files without an explicit layout in a new file system: small ones begin on the MDT, others do not.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use nacre_testkit::cluster::Options;
use nacre_testkit::exerciser::{Exercise, fill};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_every_shape};

const KIB: usize = 1 << 10;

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

/// Returns the patterns of a file's components that have objects.
fn patterns(cluster: &Cluster, path: &Path) -> String {
    let shown = cluster.lfs(&["getstripe", "--component-flags=init", "-L", text(path)]).success().stdout;
    shown.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Creates a file by writes of `piece` bytes.
fn write_by(path: &Path, bytes: &[u8], piece: usize) {
    let mut file = File::create(path).expect("create");
    bytes.chunks(piece.max(1)).for_each(|piece| file.write_all(piece).expect("write"));
}

on_every_shape! {
    fn the_first_data_decides_where_a_file_begins(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let cases = [
            (1, 1, "mdt"),
            (32 * KIB, 32 * KIB, "mdt"),
            (32 * KIB + 1, 32 * KIB + 1, "raid0"),
            (100 * KIB, 100 * KIB, "raid0"),
            (32 * KIB, 4 * KIB, "mdt"),
            (36 * KIB, 4 * KIB, "raid0"),
            (3000 * KIB, 1000, "raid0"),
        ];
        let path = |number: usize| root.join(number.to_string());
        for (number, (length, piece, _)) in cases.iter().enumerate() {
            write_by(&path(number), &random_bytes(number as u64, *length), *piece);
        }
        cluster.stop();
        cluster.start_all();
        for (number, (length, piece, expected)) in cases.iter().enumerate() {
            assert!(fs::read(path(number)).expect("read") == random_bytes(number as u64, *length), "{length}");
            assert_eq!(patterns(cluster, &path(number)), *expected, "{length} by {piece}");
        }
        // A file whose data is on the MDT keeps its head there, and grows behind it.
        let file = OpenOptions::new().append(true).open(path(0)).expect("open");
        (&file).write_all(&[7; 100_000]).expect("append");
        assert_eq!(patterns(cluster, &path(0)), "mdt raid0");
        // An operation that allocates objects without data decides the layout too.
        let cut = root.join("cut");
        File::create(&cut).expect("create").set_len(1 << 20).expect("extend");
        assert_eq!(patterns(cluster, &cut), "raid0");
    }

    fn an_open_file_shows_what_it_has(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("create");
        file.write_all_at(b"held back", 0).expect("write");
        assert_eq!(fs::metadata(&path).expect("stat").len(), 9);
        assert_eq!(patterns(cluster, &path), "mdt");
        assert_eq!(fs::read(&path).expect("read"), b"held back");
        cluster.lfs(&["setstripe", "-c", "1", text(&path)]).fails_with(libc::EEXIST);
        file.write_all_at(&[1; 70_000], 9).expect("write");
        assert_eq!(patterns(cluster, &path), "mdt raid0", "it was shown, so it was there");
        // One command changes the default, for existing directories too.
        cluster.set_default(&["-c", "2"]);
        let wide = path.with_file_name("wide");
        fs::write(&wide, "text").expect("write");
        assert_eq!(patterns(cluster, &wide), "raid0");
        cluster.lfs(&["setstripe", "-d", text(cluster.mount())]).success();
        let plain = path.with_file_name("plain");
        fs::write(&plain, "text").expect("write");
        assert_eq!(patterns(cluster, &plain), "raid0");
    }

    fn files_by_default_are_flat_files_under_any_operations(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        for seed in 0..12 {
            let small = Exercise { size_max: 70_000, length_max: 12_000, ..Exercise::new(seed, 60) };
            small.run(&root.join(format!("small{seed}")));
        }
        Exercise::new(20, 500).run(&root.join("any"));
    }
}

/// Runs `case` with two mounts of one file system.
fn with_two(shape: Shape, fsname: &str, case: fn(&Cluster, [PathBuf; 2])) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let fsname = fsname.to_owned();
    let mut cluster = Cluster::start_with(shape, &Options { listen: true, fsname, ..Options::default() });
    if cluster.is_foreign() {
        return;
    }
    let mounts = [cluster.directory("d"), cluster.add_mount().join("d")];
    case(&cluster, mounts);
    cluster.stop_and_check();
}

/// Each mount writes into files that the other creates, from their first byte on.
fn both_write_at_once(cluster: &Cluster, mounts: [PathBuf; 2]) {
    for round in 0..30usize {
        let (name, length) = (round.to_string(), 1000 + round * 3000);
        let made = OpenOptions::new().write(true).create_new(true).open(mounts[round % 2].join(&name));
        let files = [
            made.expect("create"),
            OpenOptions::new().write(true).open(mounts[1 - round % 2].join(&name)).expect("open"),
        ];
        let bytes = random_bytes(round as u64, 2 * length);
        std::thread::scope(|scope| {
            for (file, half) in files.iter().zip(0..) {
                let (bytes, at) = (&bytes[half * length..][..length], half * length);
                scope.spawn(move || {
                    for (piece, number) in bytes.chunks(5000).zip(0..) {
                        file.write_all_at(piece, (at + number * 5000) as u64).expect("write");
                    }
                });
            }
        });
        for mount in &mounts {
            assert!(fs::read(mount.join(&name)).expect("read") == bytes, "{length}");
        }
        let shown = patterns(cluster, &mounts[0].join(&name));
        assert!(["mdt", "raid0", "mdt raid0"].contains(&shown.as_str()), "{shown}");
    }
    let aliases = vec![mounts[1].join("any")];
    let exercise =
        Exercise { aliases, stay_open: true, size_max: 70_000, length_max: 12_000, ..Exercise::new(3, 200) };
    exercise.run(&mounts[0].join("any"));
}

#[test]
fn two_mounts_write_new_files_at_once_in_one_process() {
    with_two(Shape::Embedded, "heade", both_write_at_once);
}

#[test]
fn two_mounts_write_new_files_at_once_over_the_network() {
    with_two(Shape::Separate, "heads", both_write_at_once);
}
