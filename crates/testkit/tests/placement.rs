//! Placement of new files on OSTs: states that administrators set, pools that spill over, files created for
//! appending.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nacre_testkit::cluster::Options;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_each_shape_of, wait};

const OSTS: usize = 3;
/// Longer than metadata servers cache the state of OSTs.
const LIMIT: Duration = Duration::from_secs(30);

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn set(cluster: &Cluster, name: &str, value: impl std::fmt::Display) {
    cluster.lctl(&["set_param", "-n", &format!("{name}={value}")]).success();
}

fn get(cluster: &Cluster, name: &str) -> String {
    cluster.lctl(&["get_param", "-n", name]).success().stdout.trim().to_owned()
}

/// Creates `count` files in a directory and returns their first OSTs.
fn placed(cluster: &Cluster, directory: &Path, name: &str, count: usize) -> Vec<u32> {
    let first = |number: usize| {
        let path = directory.join(format!("{name}{number}"));
        fs::write(&path, b"x").expect("write");
        lfs(cluster, &["getstripe", "-i", text(&path)]).parse().expect("an index")
    };
    (0..count).map(first).collect()
}

#[test]
fn degraded_osts_are_avoided_and_those_without_creates_never_used() {
    on_each_shape_of("plcst", OSTS, |cluster, fs| {
        set(cluster, &format!("lod.{fs}-MDT0000-mdtlov.qos_maxage"), 1);
        cluster.set_default(&["-c", "1"]);
        let root = cluster.directory("d");
        let round = |cluster: &Cluster, name: &str| {
            let mut all = placed(cluster, &root, name, 2 * OSTS);
            all.sort_unstable();
            all.dedup();
            all
        };
        assert_eq!(round(cluster, "all"), [0, 1, 2]);
        let ost = |index: usize, leaf: &str| format!("obdfilter.{fs}-OST{index:04x}.{leaf}");
        set(cluster, &ost(1, "degraded"), 1);
        let number = std::cell::Cell::new(0);
        let next = || number.replace(number.get() + 1);
        let until = |cluster: &Cluster, wanted: &[u32]| {
            wait::until(LIMIT, "new files are where they belong", || {
                (round(cluster, &format!("r{}-", next())) == wanted).then_some(())
            });
        };
        until(cluster, &[0, 2]);
        assert!(lfs(cluster, &["df", text(cluster.mount())]).contains("[OST:1] D"));
        set(cluster, &ost(2, "no_create"), 1);
        until(cluster, &[0]);
        // A degraded OST is used if it is the only one; with none left, files are refused.
        set(cluster, &ost(0, "no_create"), 1);
        until(cluster, &[1]);
        set(cluster, &ost(1, "no_create"), 1);
        wait::until(LIMIT, "files are refused", || {
            let refused = fs::write(root.join(format!("none{}", next())), b"x");
            refused.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSPC)).then_some(())
        });
        (0..OSTS).for_each(|index| set(cluster, &ost(index, "no_create"), 0));
        set(cluster, &ost(1, "degraded"), 0);
        until(cluster, &[0, 1, 2]);
    });
}

#[test]
fn a_pool_that_is_too_full_spills_into_the_next() {
    on_each_shape_of("plspl", OSTS, |cluster, fs| {
        set(cluster, &format!("lod.{fs}-MDT0000-mdtlov.qos_maxage"), 1);
        for (pool, ost) in [("fast", "0"), ("slow", "1"), ("tape", "2")] {
            let name = format!("{fs}.{pool}");
            cluster.lctl(&["pool_new", &name]).success();
            cluster.lctl(&["pool_add", &name, ost]).success();
        }
        let leaf = |pool: &str, leaf: &str| format!("lod.{fs}-MDT0000-mdtlov.pool.{pool}.{leaf}");
        let root = cluster.directory("d");
        lfs(cluster, &["setstripe", "-p", "fast", text(&root)]);
        set(cluster, &leaf("fast", "spill_target"), "slow");
        set(cluster, &leaf("slow", "spill_target"), "tape");
        let refused = |name: String, value: &str, code: i32| {
            cluster.lctl(&["set_param", &format!("{name}={value}")]).fails_with(code);
        };
        refused(leaf("tape", "spill_target"), "fast", libc::ELOOP);
        refused(leaf("tape", "spill_target"), "nosuch", libc::ENOENT);
        refused(leaf("fast", "spill_threshold_pct"), "101", libc::ERANGE);
        refused(leaf("fast", "spill_hit"), "0", libc::EACCES);
        assert_eq!(placed(cluster, &root, "before", 2), [0, 0]);
        // Any used space exceeds this threshold.
        fs::write(root.join("content"), vec![7; 1 << 20]).expect("write");
        let used: u64 =
            get(cluster, &format!("obdfilter.{fs}-OST0000.kbytestotal")).parse().expect("a number");
        let free: u64 =
            get(cluster, &format!("obdfilter.{fs}-OST0000.kbytesfree")).parse().expect("a number");
        if (used - free) * 100 < used {
            return;
        }
        set(cluster, &leaf("fast", "spill_threshold_pct"), 1);
        let spilled = root.join("spilled");
        wait::until(LIMIT, "files spill over", || {
            let _ = fs::remove_file(&spilled);
            fs::write(&spilled, b"x").expect("write");
            (lfs(cluster, &["getstripe", "-p", text(&spilled)]) == "slow").then_some(())
        });
        assert_eq!(lfs(cluster, &["getstripe", "-i", text(&spilled)]), "1");
        assert_eq!(get(cluster, &leaf("fast", "spill_is_active")), "1");
        assert_ne!(get(cluster, &leaf("fast", "spill_hit")), "0");
        set(cluster, &leaf("slow", "spill_threshold_pct"), 1);
        assert_eq!(placed(cluster, &root, "far", 1), [2]);
        set(cluster, &leaf("fast", "spill_target"), "none");
        assert_eq!(placed(cluster, &root, "back", 1), [0]);
        // A setting for all nodes survives a restart.
        let lasting = format!("{}=slow", leaf("fast", "spill_target"));
        cluster.lctl(&["set_param", "-P", &lasting]).success();
        cluster.stop();
        cluster.start_all();
        assert_eq!(get(cluster, &leaf("fast", "spill_target")), "slow");
    });
}

#[test]
fn files_made_to_be_appended_to_have_their_own_default() {
    on_each_shape_of("plapp", OSTS, |cluster, fs| {
        cluster.lctl(&["pool_new", &format!("{fs}.logs")]).success();
        cluster.lctl(&["pool_add", &format!("{fs}.logs"), "2"]).success();
        let root = cluster.directory("d");
        lfs(cluster, &["setstripe", "-E", "1M", "-c", "2", "-E", "-1", "-c", "3", text(&root)]);
        let appended = |name: &str| {
            let path = root.join(name);
            let mut file = fs::OpenOptions::new().append(true).create(true).open(&path).expect("open");
            file.write_all(b"line\n").expect("write");
            path
        };
        let components = |path: &Path| lfs(cluster, &["getstripe", "--component-count", text(path)]);
        let count = |path: &Path| lfs(cluster, &["getstripe", "-c", text(path)]);
        let mdd = |leaf: &str| format!("mdd.{fs}-MDT0000.{leaf}");
        assert_eq!(get(cluster, &mdd("append_stripe_count")), "1");
        let one = appended("one");
        assert_eq!((components(&one), count(&one)), ("0".to_owned(), "1".to_owned()));
        set(cluster, &mdd("append_stripe_count"), 2);
        assert_eq!(count(&appended("two")), "2");
        set(cluster, &mdd("append_pool"), "logs");
        let pooled = appended("pooled");
        assert_eq!(lfs(cluster, &["getstripe", "-p", text(&pooled)]), "logs");
        assert_eq!(lfs(cluster, &["getstripe", "-i", text(&pooled)]), "2");
        set(cluster, &mdd("append_stripe_count"), 0);
        assert_eq!(components(&appended("as-the-directory")), "2");
        // Not for files opened without `O_APPEND`, nor for appends to existing files.
        set(cluster, &mdd("append_stripe_count"), 1);
        fs::write(root.join("written"), b"x").expect("write");
        assert_eq!(components(&appended("written")), "2");
        cluster
            .lctl(&["set_param", &format!("{}=2001", mdd("append_stripe_count"))])
            .fails_with(libc::ERANGE);
        cluster.lctl(&["set_param", &format!("{}=a.b", mdd("append_pool"))]).fails_with(libc::EINVAL);
    });
}

#[test]
fn lists_of_osts_and_overstriping_hold_data() {
    on_each_shape_of("plost", OSTS, |cluster, fs| {
        let root = cluster.directory("d");
        let make = |words: &[&str], name: &str| {
            let path = root.join(name);
            lfs(cluster, &[&["setstripe"], words, &[text(&path)]].concat());
            path
        };
        let show = |option: &str, path: &Path| lfs(cluster, &["getstripe", option, text(path)]);
        let bytes: Vec<u8> = (0..3_000_000u32).map(|number| (number % 251) as u8).collect();
        let list = make(&["-S", "64K", "-o", "2,0-1"], "list");
        assert_eq!(
            (show("-i", &list), show("-c", &list), show("-L", &list)),
            ("2".into(), "3".into(), "raid0".into())
        );
        let over = make(&["-S", "64K", "-C", "-2"], "over");
        assert_eq!((show("-c", &over), show("-L", &over)), ("6".into(), "raid0,overstriped".into()));
        let twice = make(&["-S", "64K", "-o", "1,1"], "twice");
        assert_eq!((show("-c", &twice), show("-L", &twice)), ("2".into(), "raid0,overstriped".into()));
        let not_over = make(&["-C", "3"], "not");
        assert_eq!(show("-L", &not_over), "raid0");
        let parts = make(&["-E", "1M", "-S", "64K", "-o", "1,0", "-E", "-1", "-C", "7"], "parts");
        for path in [&list, &over, &twice, &not_over, &parts] {
            fs::write(path, &bytes).expect("write");
            assert!(fs::read(path).expect("read") == bytes, "{}", path.display());
        }
        assert_eq!(lfs(cluster, &["getstripe", "-c", "--component-flags=init", text(&parts)]), "2\n\n7");
        let copy = make(&["--copy", text(&over)], "copy");
        assert_eq!(show("-c", &copy), "6");
        let dir = root.join("sub");
        fs::create_dir(&dir).expect("mkdir");
        lfs(cluster, &["setstripe", "-o", "2,1", text(&dir)]);
        assert_eq!(placed(cluster, &dir, "f", 3), [2, 2, 2]);
        // A file without objects shows its list, and a template passes it on.
        let template = root.join("template.lyl");
        fs::write(&template, lfs(cluster, &["getstripe", "-d", "-y", text(&dir)])).expect("write");
        let again = make(&["--yaml", text(&template)], "again");
        assert_eq!((show("-i", &again), show("-c", &again)), ("2".into(), "2".into()));
        let turned = make(&["-o", "2,0,1", "-i", "1"], "turned");
        assert_eq!((show("-i", &turned), show("-c", &turned)), ("1".into(), "3".into()));
        let refused =
            cluster.lfs(&["setstripe", "-o", "0,9", text(&root.join("bad"))]).fails_with(libc::EINVAL);
        assert!(refused.stderr.contains("OST index 9 does not exist"), "{refused}");
        cluster
            .lfs(&["setstripe", "-o", "0,1", "-i", "2", text(&root.join("bad2"))])
            .fails_with(libc::EINVAL);
        cluster.lctl(&["pool_new", &format!("{fs}.p")]).success();
        cluster.lctl(&["pool_add", &format!("{fs}.p"), "1"]).success();
        cluster.lfs(&["setstripe", "-p", "p", "-o", "0", text(&root.join("bad3"))]).fails_with(libc::EINVAL);
        assert!(!root.join("bad").exists() && !root.join("bad3").exists());
    });
}

#[test]
fn classes_of_osts_are_kept_and_shown() {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { osts: 2, fsname: "plcls".to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    if cluster.is_foreign() {
        return;
    }
    let class = |index: u32| format!("osd-file.plcls-OST{index:04x}.nonrotational");
    set(&cluster, &class(0), 1);
    set(&cluster, &class(1), 0);
    let shown = |cluster: &Cluster| lfs(cluster, &["df", "-v", text(cluster.mount())]);
    wait::until(LIMIT, "the letters follow", || {
        let df = shown(&cluster);
        (df.contains("[OST:0] f\n") && df.contains("[OST:1] \n")).then_some(())
    });
    cluster.stop();
    let (data, mount) = (cluster.data().to_path_buf(), cluster.mount().to_path_buf());
    let up =
        |class: &str, osts: &str| cluster.nacre(&["up", text(&data), "--mount", text(&mount), class, osts]);
    assert!(up("--flash", "7").code() != 0 && up("--disk", "x").code() != 0);
    up("--flash", "1").success();
    assert_eq!(get(&cluster, &class(1)), "1");
    assert!(shown(&cluster).contains("[OST:1] f\n"));
    cluster.nacre(&["down", text(&data)]).success();
    up("--disk", "0-1").success();
    assert_eq!((get(&cluster, &class(0)), get(&cluster, &class(1))), ("0".to_owned(), "0".to_owned()));
    cluster.nacre(&["down", text(&data)]).success();
    cluster.start_all();
    assert_eq!(get(&cluster, &class(1)), "0", "kept");
    cluster.stop_and_check();
}
