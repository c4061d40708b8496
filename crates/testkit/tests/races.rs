//! Concurrent renames of two mounts: of directories into each other, of one name by both, and in opposite
//! directions.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, wait};
use nacre_testkit::{names_in, text};

const ROUNDS: usize = 40;

/// Starts a file system with three MDTs and two mounts. The mount of an embedded process is not used, so that
/// both use the network.
fn start(shape: Shape, fsname: &str) -> Option<(Cluster, [PathBuf; 2])> {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return None;
    }
    let listen = shape == Shape::Embedded;
    let options = Options { mdts: 3, osts: 1, fsname: fsname.to_owned(), listen, ..Options::default() };
    let mut cluster = Cluster::start_with(shape, &options);
    if cluster.is_foreign() {
        return None;
    }
    let first = if listen { cluster.add_mount() } else { cluster.mount().to_owned() };
    let second = cluster.add_mount();
    Some((cluster, [first, second]))
}

fn on_both_shapes(name: &str, test: fn(&Cluster, &[PathBuf; 2])) {
    for (shape, letter) in [(Shape::Embedded, 'e'), (Shape::Separate, 's')] {
        let Some((mut cluster, mounts)) = start(shape, &format!("{name}{letter}")) else { return };
        test(&cluster, &mounts);
        cluster.stop_and_check();
    }
}

/// Creates a directory of each kind: `a` on MDT 0, `b` on MDT 1, and `c`, which is striped.
fn prepare(cluster: &Cluster, mount: &Path) -> PathBuf {
    let top = mount.join("races");
    cluster.lfs(&["mkdir", "-i", "2", text(&top)]).success();
    cluster.lfs(&["mkdir", "-i", "0", text(&top.join("a"))]).success();
    cluster.lfs(&["mkdir", "-i", "1", text(&top.join("b"))]).success();
    cluster.lfs(&["mkdir", "-c", "-1", "-i", "2", text(&top.join("c"))]).success();
    top
}

/// Runs both at the same moment; returns their errors.
fn at_once(
    first: impl FnOnce() -> io::Result<()> + Send,
    second: impl FnOnce() -> io::Result<()> + Send,
) -> [Option<i32>; 2] {
    let begin = Barrier::new(2);
    let number = |outcome: io::Result<()>| outcome.err().map(|error| error.raw_os_error().unwrap_or(-1));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            begin.wait();
            number(second())
        });
        begin.wait();
        [number(first()), other.join().expect("no panic")]
    })
}

fn below(mounts: &[PathBuf; 2], path: &str) -> [PathBuf; 2] {
    [mounts[0].join("races").join(path), mounts[1].join("races").join(path)]
}

#[test]
fn directories_that_are_moved_into_each_other_never_form_a_circle() {
    on_both_shapes("racea", |cluster, mounts| {
        let top = prepare(cluster, &mounts[0]);
        for round in 0..ROUNDS {
            let [one, other] = [["a", "b"], ["b", "c"], ["c", "a"]][round % 3];
            let (from, to) = (below(mounts, one), below(mounts, other));
            let into = |outer: &Path, inner: &str| outer.join(inner);
            let outcome = at_once(
                || fs::rename(&from[0], into(&to[0], one)),
                || fs::rename(&to[1], into(&from[1], other)),
            );
            let moved = match outcome {
                [None, Some(error)] => (into(&to[0], one), from[0].clone(), error),
                [Some(error), None] => (into(&from[0], other), to[0].clone(), error),
                other => panic!("exactly one of them moves: {other:?}"),
            };
            // The rename that looks its names up late finds one removed, or that the directory would move
            // below itself.
            assert!([libc::EINVAL, libc::ENOENT].contains(&moved.2), "{outcome:?}");
            for mount in mounts {
                assert_eq!(names_in(&mount.join("races")).len(), 2, "one lies in another");
            }
            // The kernel accepts the new place of a directory that it has cached elsewhere only outside a
            // rename (SEMANTICS).
            assert!(fs::metadata(&moved.0).expect("there").is_dir());
            fs::rename(&moved.0, &moved.1).expect("moved back");
        }
        assert_eq!(names_in(&top), BTreeSet::from(["a", "b", "c"].map(str::to_owned)));
    });
}

#[test]
fn a_name_that_two_mounts_move_goes_to_one_of_the_places() {
    on_both_shapes("raceb", |cluster, mounts| {
        let top = prepare(cluster, &mounts[0]);
        for round in 0..ROUNDS {
            let (from, first, second) =
                (top.join("a/file"), below(mounts, "b/file"), below(mounts, "c/file"));
            fs::write(&from, round.to_string()).expect("written");
            let source = below(mounts, "a/file");
            let outcome =
                at_once(|| fs::rename(&source[0], &first[0]), || fs::rename(&source[1], &second[1]));
            let target = match outcome {
                [None, Some(libc::ENOENT)] => &first,
                [Some(libc::ENOENT), None] => &second,
                other => panic!("exactly one of them moves it: {other:?}"),
            };
            for path in target {
                assert_eq!(fs::read_to_string(path).expect("read"), round.to_string());
            }
            let all: usize = ["a", "b", "c"].iter().map(|dir| names_in(&top.join(dir)).len()).sum();
            assert_eq!(all, 1, "one name");
            fs::remove_file(&target[1]).expect("removed");
        }
    });
}

/// Locks in inconsistent order would deadlock.
#[test]
fn renames_in_opposite_directions_do_not_wait_for_each_other() {
    on_both_shapes("racec", |cluster, mounts| {
        let top = prepare(cluster, &mounts[0]);
        let pairs = [("a", "b"), ("b", "c"), ("c", "a")];
        for (from, to) in pairs {
            fs::write(top.join(from).join(format!("{from}{to}")), from).expect("written");
            fs::create_dir(top.join(to).join(format!("{to}{from}"))).expect("made");
        }
        let mounts = mounts.clone();
        wait::deadline(std::time::Duration::from_secs(120), "renames", move || {
            std::thread::scope(|scope| {
                for (from, to) in pairs {
                    for (from, to, mount) in [(from, to, &mounts[0]), (to, from, &mounts[1])] {
                        let name = format!("{from}{to}");
                        let mut way = [from, to].map(|dir| mount.join("races").join(dir).join(&name));
                        scope.spawn(move || {
                            for _ in 0..ROUNDS {
                                fs::rename(&way[0], &way[1]).expect("moved");
                                way.reverse();
                            }
                        });
                    }
                }
            });
        });
        for (from, to) in pairs {
            assert_eq!(fs::read_to_string(top.join(from).join(format!("{from}{to}"))).expect("read"), from);
            assert!(top.join(to).join(format!("{to}{from}")).is_dir());
        }
    });
}

/// Each of two mounts exchanges the other's name, and replaces the other's.
#[test]
fn names_that_are_exchanged_and_replaced_by_two_mounts_lose_nothing_else() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    on_both_shapes("raced", |cluster, mounts| {
        let top = prepare(cluster, &mounts[0]);
        let (first, second) = (below(mounts, "a/x"), below(mounts, "c/y"));
        for round in 0..ROUNDS {
            fs::write(&first[0], "x").expect("written");
            fs::write(&second[0], "y").expect("written");
            let exchange = |mount: usize| {
                renameat_with(CWD, &first[mount], CWD, &second[mount], RenameFlags::EXCHANGE)
                    .map_err(io::Error::from)
            };
            let replace = || fs::rename(&second[1], &first[1]);
            let outcome = if round % 2 == 0 {
                at_once(|| exchange(0), || exchange(1))
            } else {
                at_once(|| exchange(0), replace)
            };
            let shown = |path: &Path| fs::read_to_string(path).ok();
            let found = [0, 1].map(|mount| (shown(&first[mount]), shown(&second[mount])));
            assert_eq!(found[0], found[1], "both mounts see the same");
            let [x, y] = ["x", "y"].map(|text| Some(text.to_owned()));
            let allowed = match (round % 2, outcome) {
                // If the other exchange runs between the lookups of the two names, the kernel finds the same
                // file twice and changes nothing.
                (0, [None, None]) => vec![(x.clone(), y.clone()), (y, x)],
                (1, [None, None]) => vec![(x.clone(), None), (y.clone(), None), (y, x)],
                // The exchange found one of the names removed.
                (1, [Some(libc::ENOENT), None]) => vec![(y, None)],
                other => panic!("{other:?}"),
            };
            assert!(allowed.contains(&found[0]), "{found:?} after {outcome:?}");
            fs::remove_file(&first[1]).expect("removed");
        }
        drop(top);
    });
}
