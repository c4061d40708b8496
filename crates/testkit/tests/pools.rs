//! OST pools on a running file system: created and changed by the administrator, used by files, kept over
//! restarts.

use std::fs;
use std::path::Path;

use nacre_testkit::program::Outcome;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_each_shape_of};

/// OSTs of each file system under test.
const OSTS: usize = 4;

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

/// Runs `lctl COMMAND FSNAME.POOL OST...`.
fn pool(cluster: &Cluster, command: &str, name: &str, osts: &[&str]) -> Outcome {
    cluster.lctl(&[&[command, name], osts].concat())
}

fn make(cluster: &Cluster, fs: &str, name: &str, osts: &[&str]) {
    let name = format!("{fs}.{name}");
    pool(cluster, "pool_new", &name, &[]).success();
    if !osts.is_empty() {
        pool(cluster, "pool_add", &name, osts).success();
    }
}

/// Destroys a pool in the steps that Lustre's tools require.
fn unmake(cluster: &Cluster, fs: &str, name: &str, osts: &[&str]) {
    let name = format!("{fs}.{name}");
    pool(cluster, "pool_remove", &name, osts).success();
    pool(cluster, "pool_destroy", &name, &[]).success();
}

/// Writes a byte at each of these offsets of a file, creating it if needed; returns its OSTs.
fn written(cluster: &Cluster, path: &Path, offsets: &[u64]) -> Vec<u32> {
    use std::os::unix::fs::FileExt;
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).expect("open");
    offsets.iter().for_each(|offset| file.write_all_at(b"x", *offset).expect("write"));
    drop(file);
    osts_of(cluster, path)
}

/// Returns the OSTs of all objects of a file, in order.
fn osts_of(cluster: &Cluster, path: &Path) -> Vec<u32> {
    let shown = lfs(cluster, &["getstripe", "-y", text(path)]);
    let index =
        |line: &str| line.split_once("l_ost_idx: ").map(|(_, index)| index.parse().expect("an index"));
    shown.lines().filter_map(index).collect()
}

fn pool_of(cluster: &Cluster, path: &Path) -> String {
    lfs(cluster, &["getstripe", "-d", "-p", text(path)])
}

#[test]
fn pools_are_made_filled_listed_and_taken_away() {
    on_each_shape_of("pool", OSTS, |cluster, fs| {
        let name = format!("{fs}.flash");
        assert_eq!(
            pool(cluster, "pool_new", &name, &[]).success().stderr.trim(),
            format!("Pool {name} created")
        );
        let again = pool(cluster, "pool_new", &name, &[]).fails_with(libc::EEXIST);
        assert_eq!(again.stderr.trim(), format!("Pool {name} already exists\npool_new: File exists"));
        let added =
            pool(cluster, "pool_add", &name, &["OST[0-2/2]", &format!("{fs}-OST0001_UUID")]).success();
        let line = |index: u32, what: &str| format!("OST {fs}-OST{index:04x}_UUID {what} pool {name}\n");
        let all = |what: &str, order: [u32; 3]| order.map(|index| line(index, what)).concat();
        assert_eq!(added.stderr, all("added to", [0, 2, 1]));
        let twice = pool(cluster, "pool_add", &name, &["1"]).fails_with(libc::EEXIST);
        assert!(
            twice.stderr.starts_with(&format!("OST {fs}-OST0001_UUID is already in pool {name}")),
            "{twice}"
        );
        let members = format!("Pool: {name}\n{fs}-OST0000_UUID\n{fs}-OST0002_UUID\n{fs}-OST0001_UUID\n");
        assert_eq!(cluster.lctl(&["pool_list", &name]).success().stdout, members);
        assert_eq!(cluster.lfs(&["pool_list", &name]).success().stdout, members);
        make(cluster, fs, "disk", &["1", "[2-3]"]);
        let names = format!("Pools from {fs}:\n{fs}.disk\n{name}\n");
        assert_eq!(cluster.lctl(&["pool_list", fs]).success().stdout, names);
        assert_eq!(cluster.lfs(&["pool_list", text(cluster.mount())]).success().stdout, names);
        let get = |pattern: String| cluster.lctl(&["get_param", "-n", &pattern]).success().stdout;
        let disk = format!("{fs}-OST0001_UUID\n{fs}-OST0002_UUID\n{fs}-OST0003_UUID\n");
        assert_eq!(get(format!("lov.{fs}-*.pools.disk")), disk);
        assert_eq!(get(format!("lod.{fs}-*.pools.disk")), disk);
        let df = lfs(cluster, &["df", "-p", "flash", text(cluster.mount())]);
        assert!(df.contains("OST:2]") && !df.contains("OST:3]"), "{df}");
        let df = lfs(cluster, &["df", "--pool", &format!("{fs}.disk"), text(cluster.mount())]);
        assert!(!df.contains("OST:0]") && df.contains("OST:3]"), "{df}");
        let full = pool(cluster, "pool_destroy", &name, &[]).fails_with(libc::ENOTEMPTY);
        assert!(full.stderr.contains("not empty, please remove all members"), "{full}");
        let removed = pool(cluster, "pool_remove", &name, &["[0-2]"]).success();
        assert_eq!(removed.stderr, all("removed from", [0, 1, 2]));
        let gone = pool(cluster, "pool_destroy", &name, &[]).success();
        assert_eq!(gone.stderr.trim(), format!("Pool {name} destroyed"));
        unmake(cluster, fs, "disk", &["1-3"]);
        assert_eq!(cluster.lfs(&["pool_list", fs]).success().stdout, format!("Pools from {fs}:\n"));
    });
}

#[test]
fn what_cannot_be_a_pool_is_refused() {
    on_each_shape_of("plbad", OSTS, |cluster, fs| {
        let refused = |command: &str, name: &str, osts: &[&str], code: i32, what: &str| {
            let outcome = pool(cluster, command, name, osts).fails_with(code);
            assert!(outcome.stderr.contains(what), "{outcome}");
        };
        let name = |pool: &str| format!("{fs}.{pool}");
        refused("pool_new", "flash", &[], libc::EINVAL, "must be <fsname>.<poolname>");
        refused("pool_new", &name("1234567890123456"), &[], libc::EINVAL, "longer than 15");
        refused("pool_new", &name("a b"), &[], libc::EINVAL, "' '");
        refused("pool_new", &name(""), &[], libc::EINVAL, "empty");
        for word in ["none", "ignore", "inherit"] {
            refused("pool_new", &name(word), &[], libc::EINVAL, "reserved");
        }
        refused("pool_new", "nosuchfs.a", &[], libc::ENODEV, "no management server");
        refused("pool_add", &name("a"), &["1"], libc::ENOENT, "not found");
        refused("pool_remove", &name("a"), &["1"], libc::ENOENT, "not found");
        refused("pool_destroy", &name("a"), &[], libc::ENOENT, "not found");
        refused("pool_list", &name("a"), &[], libc::ENOENT, "not found");
        make(cluster, fs, "a", &["0"]);
        refused("pool_add", &name("a"), &["9"], libc::ENOENT, &format!("is not part of the '{fs}' fs"));
        refused("pool_add", &name("a"), &["other-OST0001"], libc::EINVAL, "is not part of");
        refused("pool_add", &name("a"), &["OST[1-"], libc::EINVAL, "OST");
        refused("pool_remove", &name("a"), &["2"], libc::ENOENT, "not found in pool");
        cluster.lfs(&["pool_list", "nosuchfs"]).fails_with(libc::ENOENT);
        cluster.lfs(&["pool_list", &name("b")]).fails_with(libc::ENOENT);
        cluster.lfs(&["df", "-p", "b", text(cluster.mount())]).fails_with(libc::ENOENT);
        let file = cluster.mount().join("f");
        let set = |words: &[&str], what: &str| {
            let outcome =
                cluster.lfs(&[&["setstripe"], words, &[text(&file)]].concat()).fails_with(libc::EINVAL);
            assert_eq!(outcome.stderr.trim(), format!("lfs setstripe: {what}"));
        };
        let gone = format!("pool 'b fsname {fs}' does not exist: No such file or directory (2)");
        set(&["-p", "b"], &gone);
        set(&["-E", "1M", "-E", "-1", "-p", "b"], &gone);
        let other = format!("pools of file system 'other' are not in '{fs}': Invalid argument (22)");
        set(&["-p", "other.a"], &other);
        set(&["-p", "toolongpoolname123"], "Invalid Poolname 'toolongpoolname123': Invalid argument (22)");
        set(
            &["-p", "a", "-i", "1"],
            &format!("OST index 1 is not in pool 'a fsname {fs}': Invalid argument (22)"),
        );
        pool(cluster, "pool_remove", &name("a"), &["0"]).success();
        set(&["-p", "a"], &format!("pool 'a fsname {fs}' has no OSTs: Invalid argument (22)"));
        assert!(!file.exists(), "a bad argument leaves no file");
    });
}

#[test]
fn files_stay_in_the_pool_that_they_or_their_directories_name() {
    on_each_shape_of("plfil", OSTS, |cluster, fs| {
        make(cluster, fs, "flash", &["0", "1"]);
        make(cluster, fs, "disk", &["1-3"]);
        let root = cluster.directory("d");
        let set = |words: &[&str], path: &Path| {
            cluster.lfs(&[&["setstripe"], words, &[text(path)]].concat()).success();
        };
        let within = |osts: &[u32], pool: &[u32]| osts.iter().all(|ost| pool.contains(ost));
        set(&["-p", "disk", "-c", "-1"], &root.join("all"));
        let mut osts = osts_of(cluster, &root.join("all"));
        osts.sort_unstable();
        assert_eq!((osts, pool_of(cluster, &root.join("all"))), (vec![1, 2, 3], "disk".to_owned()));
        set(&["-p", &format!("{fs}.flash"), "-c", "4"], &root.join("four"));
        assert_eq!(osts_of(cluster, &root.join("four")).len(), 2, "as many as there are in it");
        let dir = root.join("flashy");
        fs::create_dir(&dir).expect("mkdir");
        set(&["-p", "flash"], &dir);
        fs::create_dir_all(dir.join("sub/sub")).expect("mkdir");
        for number in 0..6 {
            let file = dir.join(format!("sub/sub/{number}"));
            let osts = written(cluster, &file, &[0]);
            assert!(within(&osts, &[0, 1]), "{osts:?}");
            assert_eq!(pool_of(cluster, &file), "flash");
        }
        // A layout without a pool inherits the directory's pool; so do subdirectories.
        set(&["-c", "2"], &dir.join("two"));
        assert_eq!(pool_of(cluster, &dir.join("two")), "flash");
        fs::create_dir(dir.join("wide")).expect("mkdir");
        set(&["-c", "-1"], &dir.join("wide"));
        assert_eq!(pool_of(cluster, &dir.join("wide")), "flash");
        set(&["-c", "1", "-p", "ignore"], &dir.join("free"));
        assert_eq!(pool_of(cluster, &dir.join("free")), "");
        fs::create_dir(dir.join("none")).expect("mkdir");
        set(&["-p", "ignore"], &dir.join("none"));
        assert_eq!(pool_of(cluster, &dir.join("none")), "", "the word is no pool");
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-p", "-R", text(&dir.join("none"))]), "ignore");
        written(cluster, &dir.join("none/f"), &[0]);
        assert_eq!(pool_of(cluster, &dir.join("none/f")), "");
        set(&["-c", "1", "-p", "inherit"], &dir.join("heir"));
        assert_eq!(pool_of(cluster, &dir.join("heir")), "flash");
        // Each component of a file in a pool of its own.
        let tiers = root.join("tiers");
        set(&["-E", "1M", "-c", "2", "-p", "flash", "-E", "-1", "-c", "-1", "-p", "disk"], &tiers);
        let osts = written(cluster, &tiers, &[0, 2 << 20]);
        assert!(osts.len() == 5 && within(&osts[..2], &[0, 1]) && within(&osts[2..], &[1, 2, 3]), "{osts:?}");
        // The root's pool applies to files whose directories name none.
        set(&["-p", "disk"], cluster.mount());
        let late = root.join("late");
        assert!(within(&written(cluster, &late, &[0]), &[1, 2, 3]));
        assert_eq!(pool_of(cluster, &late), "disk");
        set(&["-d"], cluster.mount());
    });
}

#[test]
fn a_pool_that_goes_leaves_its_files_and_directories_usable_and_restarts_forget_none() {
    on_each_shape_of("plgon", OSTS, |cluster, fs| {
        make(cluster, fs, "flash", &["2"]);
        make(cluster, fs, "keep", &["3", "1"]);
        let root = cluster.directory("d");
        cluster.lfs(&["setstripe", "-p", "flash", text(&root)]).success();
        assert_eq!(written(cluster, &root.join("before"), &[0]), [2]);
        fs::write(root.join("before"), b"content").expect("write");
        if cluster.shape() == Shape::Separate {
            // A restarted metadata server knows the pools.
            cluster.kill("mdt0000");
            cluster.start_all();
            assert_eq!(written(cluster, &root.join("killed"), &[0]), [2]);
        }
        cluster.stop();
        cluster.start_all();
        assert_eq!(written(cluster, &root.join("restarted"), &[0]), [2]);
        assert_eq!(cluster.lctl(&["pool_list", &format!("{fs}.keep")]).success().stdout.lines().count(), 3);
        pool(cluster, "pool_remove", &format!("{fs}.flash"), &["2"]).success();
        // Emptied, then destroyed: new files are on any OST and still name the pool.
        let anywhere = |name: &str| {
            let osts: Vec<u32> =
                (0..12).flat_map(|i| written(cluster, &root.join(format!("{name}{i}")), &[0])).collect();
            assert!((0..4).all(|ost| osts.contains(&ost)), "{osts:?}");
        };
        anywhere("empty");
        pool(cluster, "pool_destroy", &format!("{fs}.flash"), &[]).success();
        anywhere("gone");
        assert_eq!(pool_of(cluster, &root.join("gone0")), "flash");
        assert_eq!(fs::read(root.join("before")).expect("read"), b"content");
        assert_eq!(pool_of(cluster, &root.join("before")), "flash");
    });
}
