//! Several metadata targets under one namespace: directories on any of them, and names that link to inodes on
//! others.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nacre_store::{Batch, MetaStore, MetaStoreOptions, Table};
use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, program, wait};
use nacre_types::Fid;
use nacre_wire::Encode;
use nacre_wire::peer::Name;

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

/// Creates a directory on an MDT.
fn mkdir(cluster: &Cluster, path: &Path, mdt: u32) {
    cluster.lfs(&["mkdir", "-i", &mdt.to_string(), text(path)]).success();
}

/// Returns the MDT of an inode.
fn mdt_of(cluster: &Cluster, path: &Path) -> String {
    lfs(cluster, &["getstripe", "-m", "-d", text(path)])
}

/// Creates directories `d0`, `d1` and `d2` in a new directory, each on the MDT of its number.
fn three(cluster: &Cluster, name: &str) -> [PathBuf; 3] {
    let top = cluster.directory(name);
    std::array::from_fn(|mdt| {
        let path = top.join(format!("d{mdt}"));
        mkdir(cluster, &path, mdt as u32);
        path
    })
}

fn names_in(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).expect("listed");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("plain")).collect();
    names.sort();
    names
}

fn error_of<T: std::fmt::Debug>(outcome: std::io::Result<T>) -> i32 {
    outcome.expect_err("it fails").raw_os_error().expect("from the system")
}

#[test]
fn a_directory_lies_on_the_mdt_that_was_asked_for_and_so_do_its_files() {
    on_each_shape_with_mdts("dnea", 3, |cluster, fsname| {
        let dirs = three(cluster, "placed");
        for (mdt, dir) in dirs.iter().enumerate() {
            let mdt = mdt.to_string();
            assert_eq!(lfs(cluster, &["getdirstripe", "-i", text(dir)]), mdt);
            fs::create_dir(dir.join("sub")).expect("made");
            fs::write(dir.join("sub/file"), b"data").expect("written");
            for path in [dir.clone(), dir.join("sub"), dir.join("sub/file")] {
                assert_eq!(mdt_of(cluster, &path), mdt, "{}", path.display());
            }
            assert_eq!(fs::read(dir.join("sub/file")).expect("read"), b"data");
            assert_eq!(fs::metadata(dir).expect("there").nlink(), 3);
            assert_eq!(fs::canonicalize(dir.join("sub/..")).expect("there"), *dir);
        }
        let top = dirs[0].parent().expect("a parent");
        assert_eq!(names_in(top), ["d0", "d1", "d2"]);
        assert_eq!(fs::metadata(top).expect("there").nlink(), 5);
        let shown = lfs(cluster, &["df", text(cluster.mount())]);
        for mdt in 0..3 {
            assert!(shown.contains(&format!("{fsname}-MDT000{mdt}_UUID")), "{shown}");
        }
        let found = lfs(cluster, &["find", text(top), "-m", "2", "-type", "f"]);
        assert_eq!(found, text(&dirs[2].join("sub/file")));
        fs::remove_dir_all(top).expect("removed");
    });
}

#[test]
fn what_the_root_says_of_layouts_holds_on_every_mdt() {
    on_each_shape_with_mdts("dneg", 2, |cluster, _| {
        let top = cluster.directory("layouts");
        let there = top.join("there");
        mkdir(cluster, &there, 1);
        let small = there.join("small");
        fs::write(&small, b"small").expect("written");
        assert_eq!(lfs(cluster, &["getstripe", "--component-flags=init", "-L", text(&small)]), "mdt");
        lfs(cluster, &["setstripe", "-c", "2", "-S", "1M", text(cluster.mount())]);
        let mut number = 0;
        wait::until(wait::SOON, "MDT 1 has heard of it", || {
            number += 1;
            let path = there.join(format!("f{number}"));
            fs::write(&path, b"data").expect("written");
            let striped = lfs(cluster, &["getstripe", "-c", text(&path)]);
            (striped == "2" && lfs(cluster, &["getstripe", "-S", text(&path)]) == "1048576").then_some(())
        });
    });
}

#[test]
fn a_directory_takes_a_layout_and_its_parents_pool_also_from_another_mdt() {
    on_each_shape_with_mdts("dneh", 2, |cluster, fsname| {
        let top = cluster.mount().join("pooled");
        mkdir(cluster, &top, 0);
        cluster.lctl(&["pool_new", &format!("{fsname}.flash")]).success();
        cluster.lctl(&["pool_add", &format!("{fsname}.flash"), "OST0001"]).success();
        let there = top.join("there");
        mkdir(cluster, &there, 1);
        cluster.lfs(&["setstripe", "-c", "1", text(&there)]).success();
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-c", text(&there)]), "1");
        wait::until(wait::SOON, "MDT 0 knows the pool", || {
            (cluster.lfs(&["setstripe", "-p", "flash", text(&top)]).code() == 0).then_some(())
        });
        cluster.lfs(&["setstripe", "-c", "1", text(&there)]).success();
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-p", text(&there)]), "flash");
    });
}

#[test]
fn who_may_not_choose_an_mdt_is_refused_and_nothing_is_made() {
    on_each_shape_with_mdts("dneb", 2, |cluster, fsname| {
        let top = cluster.directory("chosen");
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("opened");
        let path = top.join("there");
        cluster.lfs(&["mkdir", "-i", "7", text(&path)]).fails_with(libc::EINVAL);
        cluster.lfs(&["migrate", "-m", "7", text(&top)]).fails_with(libc::ENODEV);
        cluster.lfs(&["migrate", "-m", "1", text(&top)]).success();
        cluster.lfs(&["migrate", "-m", "0", text(&top)]).success();
        let user = Identity::user(12345).with_groups(&[54321]);
        let path = &path;
        let as_user = || {
            let mut command = cluster.command();
            command.args(["lfs", "mkdir", "-i", "1", text(path)]);
            user.act(|| program::run_command(command, program::LIMIT))
        };
        as_user().fails_with(libc::EPERM);
        assert!(!path.exists());
        for allowed in ["-1", "54321"] {
            let parameter = format!("mdt.{fsname}-MDT0000.enable_remote_dir_gid={allowed}");
            cluster.lctl(&["set_param", &parameter]).success();
            as_user().success();
            assert_eq!(mdt_of(cluster, path), "1");
            assert_eq!(fs::metadata(path).expect("there").uid(), 12345);
            fs::remove_dir(path).expect("removed");
        }
        let again = || cluster.lfs(&["mkdir", "-i", "1", "-o", "1770", text(path)]);
        again().success();
        assert_eq!(fs::metadata(path).expect("there").mode() & 0o7777, 0o1770);
        again().fails_with(libc::EEXIST);
    });
}

#[test]
fn names_move_between_mdts_as_on_one() {
    on_each_shape_with_mdts("dnec", 3, |cluster, _| {
        let [here, there, third] = three(cluster, "moves");
        fs::write(here.join("file"), b"content").expect("written");
        let inode = fs::metadata(here.join("file")).expect("there").ino();
        fs::rename(here.join("file"), there.join("file")).expect("moved");
        assert_eq!(error_of(fs::metadata(here.join("file"))), libc::ENOENT);
        let moved = fs::metadata(there.join("file")).expect("there");
        assert_eq!((moved.ino(), moved.nlink()), (inode, 1));
        assert_eq!(mdt_of(cluster, &there.join("file")), "0", "files stay where they are");

        fs::hard_link(there.join("file"), third.join("link")).expect("linked");
        assert_eq!(fs::metadata(third.join("link")).expect("there").nlink(), 2);
        let fid = lfs(cluster, &["path2fid", text(&third.join("link"))]);
        let paths = lfs(cluster, &["fid2path", text(cluster.mount()), &fid]);
        let mut paths: Vec<&str> = paths.lines().map(str::trim).collect();
        paths.sort_unstable();
        assert_eq!(paths.len(), 2, "{paths:?}");
        assert!(paths[0].ends_with("moves/d1/file") && paths[1].ends_with("moves/d2/link"), "{paths:?}");
        fs::remove_file(there.join("file")).expect("removed");
        assert_eq!(fs::read(third.join("link")).expect("read"), b"content");

        fs::create_dir_all(there.join("dir/sub")).expect("made");
        fs::rename(there.join("dir"), third.join("dir")).expect("moved");
        assert_eq!(fs::canonicalize(third.join("dir/sub/../..")).expect("there"), third);
        assert_eq!(error_of(fs::rename(&third, third.join("dir/sub/in"))), libc::EINVAL);
        assert_eq!(error_of(fs::remove_dir(third.join("dir"))), libc::ENOTEMPTY);
        assert_eq!(error_of(fs::rename(third.join("link"), third.join("dir"))), libc::EISDIR);
        fs::create_dir(here.join("full")).expect("made");
        fs::write(here.join("full/x"), b"").expect("written");
        assert_eq!(error_of(fs::rename(third.join("dir"), here.join("full"))), libc::ENOTEMPTY);

        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let exchange = |a: &Path, b: &Path| renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE);
        exchange(&third.join("link"), &here.join("full")).expect("exchanged");
        assert_eq!(
            (names_in(&here), names_in(&third)),
            (vec!["full".to_owned()], vec!["dir".into(), "link".into()])
        );
        assert_eq!(fs::read(here.join("full")).expect("read"), b"content");
        assert_eq!(fs::metadata(&third).expect("there").nlink(), 4);
        let kept = renameat_with(CWD, here.join("full"), CWD, third.join("dir"), RenameFlags::NOREPLACE);
        assert_eq!(kept, Err(rustix::io::Errno::EXIST));
    });
}

#[test]
fn what_is_open_stays_readable_after_its_remote_name_is_gone() {
    use std::io::{Read, Seek, SeekFrom, Write};
    on_each_shape_with_mdts("dned", 2, |cluster, _| {
        let top = cluster.directory("open");
        let (here, there) = (top.join("here"), top.join("there"));
        mkdir(cluster, &here, 0);
        mkdir(cluster, &there, 1);
        fs::write(here.join("file"), b"before").expect("written");
        fs::rename(here.join("file"), there.join("file")).expect("moved");
        let path = there.join("file");
        let mut file = fs::OpenOptions::new().read(true).append(true).open(&path).expect("opened");
        fs::remove_file(&path).expect("removed");
        file.write_all(b" and after").expect("written");
        file.seek(SeekFrom::Start(0)).expect("back");
        let mut content = String::new();
        file.read_to_string(&mut content).expect("read");
        assert_eq!((content.as_str(), file.metadata().expect("there").nlink()), ("before and after", 0));
        fs::write(here.join("other"), b"other").expect("written");
        fs::rename(here.join("other"), there.join("other")).expect("moved");
        let directory = fs::File::open(&there).expect("opened");
        fs::remove_file(there.join("other")).expect("removed");
        fs::remove_dir(&there).expect("removed");
        assert_eq!(directory.metadata().expect("there").nlink(), 0);
    });
}

#[test]
fn a_second_mount_sees_what_moves_between_mdts_at_once() {
    on_each_shape_with_mdts("dnee", 2, |cluster, _| {
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let top = cluster.directory("seen");
        let [here, beside, there] = ["here", "beside", "there"].map(|name| top.join(name));
        mkdir(cluster, &here, 0);
        mkdir(cluster, &beside, 0);
        mkdir(cluster, &there, 1);
        let other = cluster.add_mount();
        let of_other = |path: &Path| other.join(path.strip_prefix(cluster.mount()).expect("below the mount"));
        for round in 0..30 {
            let there = if round % 2 == 0 { &there } else { &beside };
            let (from, to) = (here.join("file"), there.join(format!("file{round}")));
            fs::write(&from, round.to_string()).expect("written");
            assert_eq!(fs::read_to_string(of_other(&from)).expect("read"), round.to_string());
            fs::rename(&from, &to).expect("moved");
            assert_eq!(error_of(fs::metadata(of_other(&from))), libc::ENOENT);
            assert_eq!(fs::read_to_string(of_other(&to)).expect("read"), round.to_string());
            fs::rename(of_other(&to), of_other(&there.join("last"))).expect("moved");
            assert_eq!(names_in(there), ["last"]);
            assert_eq!(error_of(fs::metadata(&to)), libc::ENOENT);
        }
    });
}

/// Raises a flag when dropped, also by a panic.
struct Raised<'a>(&'a AtomicBool);

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Files move one by one. A program that has seen that a file has left the first directory finds it in the
/// second one, by a listing and by its name; once `rename` has returned, all programs do.
#[test]
fn a_listing_does_not_miss_what_moves_between_mdts() {
    const FILES: usize = 300;
    on_each_shape_with_mdts("dnej", 2, |cluster, _| {
        let top = cluster.directory("listed");
        let (here, there) = (top.join("here"), top.join("there"));
        mkdir(cluster, &here, 0);
        mkdir(cluster, &there, 1);
        let mut mounts = vec![cluster.mount().to_owned()];
        if cluster.shape() == Shape::Separate {
            mounts.push(cluster.add_mount());
        }
        let first = mounts[0].clone();
        let of = |mount: &Path, path: &Path| mount.join(path.strip_prefix(&first).expect("below the mount"));
        for (from, to) in [(&here, &there), (&there, &here)] {
            let names: Vec<String> = (0..FILES).map(|number| format!("f{number:03}")).collect();
            names.iter().for_each(|name| fs::write(from.join(name), b"").expect("written"));
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for mount in &mounts {
                    let (from, to, stop, names) = (of(mount, from), of(mount, to), &stop, &names);
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            let left = names_in(&from);
                            let came = names_in(&to);
                            let missed: Vec<_> = names
                                .iter()
                                .filter(|name| !left.contains(name) && !came.contains(name))
                                .collect();
                            assert!(missed.is_empty(), "neither here nor there: {missed:?}");
                        }
                    });
                }
                let end = Raised(&stop);
                for name in &names {
                    fs::rename(from.join(name), to.join(name)).expect("moved");
                    for mount in &mounts {
                        let (from, to) = (of(mount, from), of(mount, to));
                        assert!(!from.join(name).exists() && to.join(name).exists(), "{name}");
                        assert!(!names_in(&from).contains(name) && names_in(&to).contains(name), "{name}");
                    }
                }
                drop(end);
            });
            names.iter().for_each(|name| fs::remove_file(to.join(name)).expect("removed"));
        }
    });
}

/// Renames a file back and forth between two directories until stopped; returns the number of the last name.
fn to_and_fro(here: &Path, there: &Path, name: &str, stop: &AtomicBool, moves: &AtomicUsize) {
    let mut way = [here.join(name), there.join(name)];
    while !stop.load(Ordering::Relaxed) {
        fs::rename(&way[0], &way[1]).expect("moved, when all servers are there again");
        way.reverse();
        moves.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn moves_between_mdts_that_are_killed_are_whole() {
    const MOVERS: usize = 4;
    let options = Options { mdts: 2, osts: 2, fsname: "dnef".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let top = cluster.directory("killed");
    let (here, there) = (top.join("here"), top.join("there"));
    mkdir(&cluster, &here, 0);
    mkdir(&cluster, &there, 1);
    for mover in 0..MOVERS {
        fs::write(here.join(format!("f{mover}")), mover.to_string()).expect("written");
    }
    let (stop, moves) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for mover in 0..MOVERS {
            let (here, there, stop, moves) = (&here, &there, &stop, &moves);
            scope.spawn(move || to_and_fro(here, there, &format!("f{mover}"), stop, moves));
        }
        for role in ["mdt0001", "mdt0000", "mdt0001"] {
            let before = moves.load(Ordering::Relaxed);
            wait::until(wait::SOON, "files move", || {
                (moves.load(Ordering::Relaxed) > before + 20).then_some(())
            });
            cluster.kill(role);
            cluster.start_all();
        }
        let before = moves.load(Ordering::Relaxed);
        wait::until(wait::SOON, "files move", || (moves.load(Ordering::Relaxed) > before + 20).then_some(()));
        stop.store(true, Ordering::Relaxed);
    });
    let mut all = [names_in(&here), names_in(&there)].concat();
    all.sort();
    let expected: Vec<String> = (0..MOVERS).map(|mover| format!("f{mover}")).collect();
    assert_eq!(all, expected, "each file has one name");
    cluster.stop_and_check();
}

/// Files and directories can be read by their FID.
#[test]
fn administrators_reach_any_inode_by_its_fid() {
    on_each_shape_with_mdts("dnei", 3, |cluster, _| {
        let dirs = three(cluster, "fids");
        let by_fid = cluster.mount().join(".lustre/fid");
        for (mdt, dir) in dirs.iter().enumerate() {
            let file = dir.join("file");
            fs::write(&file, format!("data {mdt}")).expect("written");
            let fid = lfs(cluster, &["path2fid", text(&file)]);
            for name in [fid.clone(), fid.trim_matches(['[', ']']).to_owned()] {
                let path = by_fid.join(name);
                assert_eq!(fs::read_to_string(&path).expect("read"), format!("data {mdt}"));
                assert_eq!(
                    fs::metadata(&path).expect("there").ino(),
                    fs::metadata(&file).expect("there").ino()
                );
            }
            fs::write(by_fid.join(&fid), "changed").expect("written");
            assert_eq!(fs::read(&file).expect("read"), b"changed");
            let user = Identity::user(12345);
            assert_eq!(error_of(user.act(|| fs::metadata(by_fid.join(&fid)))), libc::EACCES);
            let dir_fid = lfs(cluster, &["path2fid", text(dir)]);
            assert_eq!(names_in(&by_fid.join(dir_fid)), ["file"]);
            fs::remove_file(&file).expect("removed");
            assert_eq!(error_of(fs::metadata(by_fid.join(&fid))), libc::ENOENT);
        }
        for nothing in ["[0x200000400:0xffff:0x0]", "nonsense", "[0x1:0x2]"] {
            assert_eq!(error_of(fs::metadata(by_fid.join(nothing))), libc::ENOENT, "{nothing}");
        }
        let top = by_fid.parent().expect("a parent");
        assert!(!names_in(cluster.mount()).contains(&".lustre".to_owned()), "nobody stumbles over it");
        let names = ["fid", "lost+found"].map(str::to_owned);
        assert_eq!((names_in(top), names_in(&by_fid).len()), (names.to_vec(), 0));
        assert_eq!(fs::canonicalize(by_fid.join("../..")).expect("there"), cluster.mount());
        assert_eq!(error_of(fs::create_dir(top)), libc::EEXIST);
        assert_eq!(error_of(fs::create_dir(top.join("new"))), libc::EPERM);
        assert_eq!(error_of(fs::write(by_fid.join("new"), b"")), libc::EPERM);
        assert_eq!(error_of(fs::remove_dir(top)), libc::EPERM);
        assert_eq!(error_of(fs::rename(&dirs[0], top)), libc::EPERM);
        assert_eq!(error_of(fs::set_permissions(top, fs::Permissions::from_mode(0o777))), libc::EPERM);
    });
}

/// Locks the root in the store of the stopped MDT 0, for distributed transactions whose coordinators `mdts`
/// have no record of them.
fn prepare_for_nobody(cluster: &Cluster, mdts: &[u16]) {
    let meta = cluster.data().join("mdt0000/meta");
    let store = MetaStore::open(&meta, MetaStoreOptions::default()).expect("opens");
    let mut batch = Batch::new();
    for mdt in mdts {
        let key = [&mdt.to_be_bytes()[..], &1u64.to_be_bytes(), &999u64.to_be_bytes()].concat();
        let mut record = vec![2];
        vec![Fid::ROOT].encode(&mut record);
        Vec::<Name>::new().encode(&mut record);
        batch.put(Table(12), &key, &record);
    }
    store.commit(&batch).expect("commits");
    store.close().expect("closes");
}

#[test]
fn what_is_prepared_for_nobody_is_named_by_check_removed_by_repair_and_holds_up_no_start() {
    on_each_shape_with_mdts("dnep", 2, |cluster, _| {
        let data = text(cluster.data()).to_owned();
        let root = cluster.mount().to_owned();
        fs::write(root.join("kept"), b"data").expect("written");
        cluster.stop();
        // One coordinator never existed, the other has no record of the transaction.
        prepare_for_nobody(cluster, &[7, 1]);
        let found = cluster.nacre(&["check", &data]).fails_with(1);
        let repaired = cluster.nacre(&["check", &data, "--repair"]).success();
        for mdt in ["MDT0007", "MDT0001"] {
            let text = format!("has no coordinator: {mdt} does not exist or has no record of it");
            assert!(found.stdout.contains(&text) && repaired.stdout.contains(&text), "{found}{repaired}");
        }
        cluster.check();
        prepare_for_nobody(cluster, &[7, 1]);
        cluster.start_all();
        assert_eq!(fs::read(root.join("kept")).expect("read"), b"data");
        let make = move || fs::create_dir(root.join("made"));
        wait::deadline(wait::SOON, "the root is let go", make).expect("made");
    });
}

/// Returns how often an MDT was asked to make its changes durable.
fn syncs(cluster: &Cluster, fsname: &str, mdt: u32) -> u64 {
    let name = format!("mdt.{fsname}-MDT{mdt:04x}.md_stats");
    let stats = cluster.lctl(&["get_param", "-n", &name]).success().stdout;
    let row = stats.lines().find(|line| line.starts_with("sync "));
    row.map_or(0, |row| row.split_whitespace().nth(1).and_then(|count| count.parse().ok()).expect("a count"))
}

#[test]
fn fsync_of_the_directory_that_got_a_name_covers_the_coordinator_of_the_rename() {
    on_each_shape_with_mdts("dnes", 3, |cluster, fsname| {
        let [from, to, _] = three(cluster, "synced");
        fs::write(from.join("file"), b"data").expect("written");
        fs::rename(from.join("file"), to.join("file")).expect("renamed");
        let before = syncs(cluster, fsname, 0);
        fs::File::open(&to).expect("opened").sync_all().expect("synced");
        assert!(syncs(cluster, fsname, 0) > before, "the MDT of the old name coordinates the rename");
        let before = syncs(cluster, fsname, 0);
        fs::File::open(&to).expect("opened").sync_all().expect("synced");
        assert_eq!(syncs(cluster, fsname, 0), before, "what is durable is not asked for again");
    });
}
