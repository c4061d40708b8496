//! `lfs find` and `lfs project` on running file systems, compared with find(1) and the tools of other file
//! systems.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use nacre_testkit::cluster::Options;
use nacre_testkit::on_every_shape;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, text, wait};

/// Returns the lines of `lfs find` in `directory`, sorted.
fn lfs_find(cluster: &Cluster, directory: &Path, predicates: &str) -> Vec<String> {
    let mut arguments = vec!["find", text(directory)];
    arguments.extend(predicates.split_whitespace());
    sorted(&cluster.lfs(&arguments).success().stdout)
}

fn plain_find(directory: &Path, predicates: &str) -> Vec<String> {
    let out = Command::new("find").arg(directory).args(predicates.split_whitespace()).output().expect("find");
    assert!(out.status.success(), "{predicates}");
    sorted(&String::from_utf8(out.stdout).expect("plain names"))
}

fn sorted(lines: &str) -> Vec<String> {
    let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Creates a tree with files of every kind, size, age and mode.
fn make_tree(root: &Path) {
    let now = SystemTime::now();
    for (place, directory) in ["a", "a/b", "a/b/c", "d"].iter().enumerate() {
        let directory = root.join(directory);
        fs::create_dir(&directory).expect("mkdir");
        for i in 0..12usize {
            let path = directory.join(format!("f{i}.{}", ["txt", "dat", "x"][i % 3]));
            let file = File::create(&path).expect("create");
            let size = [0, 1, 511, 512, 513, 4096, 65536, 1 << 20, (1 << 20) + 1, 3 << 20, 100, 5][i];
            file.set_len(size).expect("truncate");
            let mode = [0o644, 0o600, 0o755, 0o4755, 0o444, 0o666][(i + place) % 6];
            file.set_permissions(fs::Permissions::from_mode(mode)).expect("chmod");
            // Half an hour away from every border of units.
            let age = Duration::from_secs((i as u64 * 5 + place as u64) * 4 * 3600 + 1800);
            let times = fs::FileTimes::new().set_modified(now - age).set_accessed(now - age / 2);
            file.set_times(times).expect("utimes");
        }
    }
    fs::write(root.join("d/written"), vec![1u8; 300_000]).expect("write");
    fs::hard_link(root.join("d/written"), root.join("a/linked")).expect("link");
    symlink("d/written", root.join("to-file")).expect("symlink");
    symlink("nowhere", root.join("a/dangling")).expect("symlink");
    symlink("d", root.join("to-dir")).expect("symlink");
    rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .expect("mkfifo");
    let chown = |path: &str, uid, gid| std::os::unix::fs::chown(root.join(path), uid, gid).expect("chown");
    chown("a/f1.dat", Some(1234), Some(4321));
    chown("d", Some(1234), None);
}

/// Predicates with the same meaning in both programs.
const SAME: &[&str] = &[
    "",
    "-type f",
    "-type d",
    "-type l",
    "-type p",
    "! -type f",
    "-name *.txt",
    "-name f[0-3].*",
    "! -name *.x -type f",
    "-size 1",
    "-size 0",
    "-size +1",
    "-size -2",
    "-size 1k",
    "-size +1M -type f",
    "-size -2M -type f",
    "-size 2M",
    "-size 5c",
    "! -size 0 -type f",
    "-size +1k -size -1M",
    "-mtime 0",
    "-mtime 1",
    "-mtime +1",
    "-mtime -2",
    "! -mtime -1 -type f",
    "-atime +0",
    "-ctime 0",
    "-perm 644",
    "-perm -600",
    "-perm /111 -type f",
    "-perm -u+s",
    "-perm u=rw,g=r,o=r",
    "-links 2 -type f",
    "-links +2",
    "-links -2",
    "-uid 1234",
    "-gid 4321",
    "-user root -type d",
    "-group root -type l",
    "-user 1234",
    "-maxdepth 1",
    "-maxdepth 0",
    "-mindepth 2 -type d",
    "-mindepth 2 -maxdepth 2",
    "-newermt 2020-01-01",
    "-newermt @1",
    "-type f -name *.dat -size -3 -perm -400",
];

/// Checks `-printf` of layouts: a striped file, a composite one, a directory.
fn layouts_are_printed(cluster: &Cluster, root: &Path) {
    let printed = |name: &str, format: &str| {
        let path = root.join(name);
        cluster.lfs(&["find", text(&path), "-maxdepth", "0", "-printf", format]).success().stdout
    };
    assert_eq!(printed("two", "%Lc %LS %Li %Lo [%Lp] %LP %Lh\n"), "2 1048576 1 [1,2] [] 0 \n");
    let shown = printed("pfl", "%Lc %Lo\n");
    assert!(shown.starts_with("1 [") && shown.ends_with("][?,?,?,?]\n"), "{shown}");
    assert_eq!(printed("wide", "%Lc %Lh %Li %Lo %LS\n"), "0 none 0 [0] \n");
    let fid = cluster.lfs(&["path2fid", text(&root.join("two"))]).success().stdout;
    assert_eq!(format!("[{}]\n", printed("two", "%LF")), fid);
    let json = |words: &[&str], name: &str| {
        let path = root.join(name);
        let line = cluster.lfs(&[words, &["--json", text(&path)]].concat()).success().stdout;
        assert_eq!(line.lines().count(), 1, "{line}");
        line
    };
    for name in ["two", "pfl", "wide/empty", "link"] {
        let found = json(&["find"], name);
        let layout = found.split_once(r#""layout":"#).and_then(|(_, rest)| rest.split_once(r#","links""#));
        let (layout, _) = layout.expect("a layout");
        let shown = json(&["getstripe"], name);
        assert!(shown.contains(&format!(r#""layout":{layout},"#)), "{found}{shown}");
    }
    let found = json(&["find"], "two");
    for part in [
        format!(r#""fid":"{}""#, fid.trim()),
        format!(r#""path":"{}""#, text(&root.join("two"))),
        r#""type":"file""#.to_owned(),
        r#""mode":"0644""#.to_owned(),
        r#""links":1,"#.to_owned(),
    ] {
        assert!(found.contains(&part), "{part}: {found}");
    }
    assert!(json(&["find"], "pfl").contains(r#""size":1,"#), "as it was written");
    assert!(json(&["find"], "link").contains(r#""type":"symlink""#));
    let directory = json(&["find", "-maxdepth", "0"], "wide");
    assert!(
        directory.contains(r#""stripe_count":3"#) && directory.contains(r#""shards_on_mdts":[]"#),
        "{directory}"
    );
}

on_every_shape! {
    fn what_find_lists_lfs_find_lists(cluster) {
        if cluster.is_foreign() || !have(&["find"]) {
            return;
        }
        let root = cluster.directory("tree");
        make_tree(&root);
        for predicates in SAME {
            assert_eq!(lfs_find(cluster, &root, predicates), plain_find(&root, predicates), "{predicates}");
        }
        let reference = root.join("a/f3.txt");
        for letters in ["", "am", "ac", "mm", "ca"] {
            let predicates = format!("-newer{letters} {}", text(&reference));
            assert_eq!(lfs_find(cluster, &root, &predicates), plain_find(&root, &predicates), "{letters}");
        }
        for format in ["%p|%s|%m|%M|%n|%u|%U|%g|%G|%i|%y|%b|%k\\n", "%10s|%-8m|%p\\n", "%%|%p\\t%s\\\\\\n"] {
            let predicates = format!("-printf {format}");
            assert_eq!(lfs_find(cluster, &root, &predicates), plain_find(&root, &predicates), "{format}");
        }
        let ones = cluster.lfs(&["find", text(&root.join("to-file")), text(&root.join("d/written")), "-print0"]);
        let expected = format!("{}\0{}\0", text(&root.join("to-file")), text(&root.join("d/written")));
        assert_eq!(ones.success().stdout, expected);
        assert_eq!(lfs_find(cluster, &root, "--threads 4"), plain_find(&root, ""), "in any order");
        let order = cluster.lfs(&["find", text(&root), "--threads", "1"]).success().stdout;
        let mut seen = BTreeSet::new();
        for line in order.lines() {
            let parent = Path::new(line).parent().expect("not the root of everything");
            assert!(seen.is_empty() || seen.contains(text(parent)), "{line} before its directory");
            seen.insert(line.to_owned());
        }
    }

    fn files_that_are_being_written_show_their_size(cluster) {
        if cluster.is_foreign() {
            return;
        }
        use std::io::Write;
        let root = cluster.directory("d");
        let mut open = File::create(root.join("open")).expect("create");
        open.write_all(&[1; 70_000]).expect("write");
        let printed = cluster.lfs(&["find", text(&root), "-size", "+68k", "-printf", "%s\\n"]).success().stdout;
        assert_eq!(printed, "70000\n");
    }

    fn layouts_choose_files(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let set = |arguments: &[&str], name: &str| {
            let path = root.join(name);
            let mut line = vec!["setstripe"];
            line.extend(arguments);
            line.push(text(&path));
            cluster.lfs(&line).success();
        };
        set(&["-c", "1", "-i", "0"], "one");
        // OSTs by index: otherwise placement may skip an OST that has no precreated objects yet.
        set(&["-o", "1,2", "-S", "1M"], "two");
        set(&["-E", "1M", "-c", "1", "-E", "-1", "-c", "4"], "pfl");
        fs::write(root.join("pfl"), "x").expect("write");
        fs::create_dir(root.join("wide")).expect("mkdir");
        set(&["-c", "3"], "wide");
        fs::write(root.join("wide/inherited"), "x").expect("write");
        File::create(root.join("wide/empty")).expect("create");
        symlink("one", root.join("link")).expect("symlink");
        let names = |predicates: &str| -> Vec<String> {
            let strip = |line: String| line.strip_prefix(text(&root)).expect("below").trim_start_matches('/').to_owned();
            lfs_find(cluster, &root, predicates).into_iter().map(strip).collect()
        };
        for (predicates, expected) in [
            ("-c 2", &["two"][..]),
            ("-stripe-count 3", &["wide", "wide/empty", "wide/inherited"]),
            ("--stripe-count -2 ! -type d", &["link", "one", "pfl"]),
            ("-c +1 -type f", &["two", "wide/empty", "wide/inherited"]),
            ("! -c 3 -type f", &["one", "pfl", "two"]),
            ("-S 1M -type f", &["pfl", "two"]),
            ("--component-count +1", &["", "pfl"]),
            ("--component-count 0 ! -type d", &["link", "one", "two", "wide/empty", "wide/inherited"]),
            ("--component-count 0 -type d", &["wide"]),
            ("--comp-start +0", &["", "pfl"]),
            ("--comp-end 1M -type f", &["pfl"]),
            ("--comp-end 1M --comp-flags init", &["pfl"]),
            ("--comp-start 1M --comp-flags init", &[]),
            ("--comp-flags ^init -type f", &["pfl", "wide/empty"]),
            ("-i 0 -name one", &["one"]),
            ("--ost 1-2 -name two", &["two"]),
            ("--ost 0,3 -name two", &[]),
            ("-O nacre-OST0001_UUID -name two", &["two"]),
            ("--layout mdt -type f", &[]),
            ("--layout raid0 -name t*", &["two"]),
            ("--mirror-count 1 -name pfl", &["pfl"]),
            ("--mirror-state ro", &[]),
            ("--pool flash", &[]),
            ("--foreign", &[]),
            ("-mdt 0 -name o*", &["one"]),
            ("-mdt 1", &[]),
            ("--mdt-count 0", &["", "wide"]),
            ("--mdt-hash crush", &[]),
            ("--attrs immutable", &[]),
            ("--skip 100", &[]),
        ] {
            assert_eq!(names(predicates), expected, "{predicates}");
        }
        layouts_are_printed(cluster, &root);
        rustix::fs::setxattr(root.join("two"), "user.job", b"17", rustix::fs::XattrFlags::empty()).expect("setxattr");
        assert_eq!(names("--xattr user\\.j.*"), ["two"]);
        assert_eq!(names("--xattr user.job=1."), ["two"]);
        assert_eq!(names("--xattr user.job=7"), [""; 0]);
        assert_eq!(names("-c 2 ! --xattr user.job"), [""; 0]);
    }

    fn wrong_questions_are_told_as_lustre_does(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let told = |arguments: &[&str], code: i32, message: &str| {
            let outcome = cluster.lfs(arguments).fails_with(code);
            assert_eq!(outcome.stderr.lines().last(), Some(message), "{arguments:?}");
        };
        told(&["find"], 4, "error: find: no filename|pathname");
        told(&["find", text(&root), "--bogus"], 4, "lfs find: unrecognized option '--bogus'");
        told(&["find", text(&root), "-type", "x"], 1, "error: find: bad type 'x'");
        let none = text(&root).to_owned() + "/none";
        told(&["find", &none], 2, &format!("lfs: failed for '{none}': No such file or directory"));
        told(&["find", "/proc"], 25, "lfs: failed for '/proc': Inappropriate ioctl for device");
    }

    fn projects_are_inherited_and_bound_names(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let dir = root.join("dir");
        fs::create_dir(&dir).expect("mkdir");
        fs::write(dir.join("before"), "x").expect("write");
        fs::create_dir(dir.join("sub")).expect("mkdir");
        let lfs = |arguments: &[&str]| cluster.lfs(arguments).success().stdout;
        lfs(&["project", "-p", "42", "-s", text(&dir)]);
        assert_eq!(lfs(&["project", "-d", text(&dir)]), format!("   42 P {}\n", text(&dir)));
        fs::write(dir.join("after"), "x").expect("write");
        assert_eq!(lfs(&["project", text(&dir.join("after"))]), format!("   42 - {}\n", text(&dir.join("after"))));
        let outliers = lfs(&["project", "-c", "-r", "-0", text(&dir)]);
        let mut outliers: Vec<&str> = outliers.split_terminator('\0').collect();
        outliers.sort_unstable();
        assert_eq!(outliers, [text(&dir.join("before")), text(&dir.join("sub"))]);
        lfs(&["project", "-p", "42", "-s", "-r", text(&dir)]);
        assert_eq!(lfs(&["project", "-c", "-r", text(&dir)]), "");
        assert_eq!(sorted(&lfs(&["find", text(&dir), "-projid", "42"])).len(), 4);
        fs::write(root.join("foreign"), "x").expect("write");
        let across = |result: std::io::Result<()>| assert_eq!(result.expect_err("refused").raw_os_error(), Some(libc::EXDEV));
        across(fs::rename(root.join("foreign"), dir.join("foreign")));
        across(fs::hard_link(root.join("foreign"), dir.join("foreign")));
        fs::rename(dir.join("after"), dir.join("sub/after")).expect("the same project");
        fs::rename(dir.join("sub/after"), root.join("after")).expect("out of it");
        lfs(&["project", "-C", "-k", text(&dir)]);
        assert_eq!(lfs(&["project", "-d", text(&dir)]), format!("   42 - {}\n", text(&dir)));
        lfs(&["project", "-C", "-r", text(&dir)]);
        assert_eq!(lfs(&["find", text(&dir), "!", "-projid", "0"]), "");
        cluster.lfs(&["project", "-p", "x y", text(&dir)]).fails_with(4);
        cluster.lfs(&["project", text(&root.join("none"))]).fails_with(libc::ENOENT);
        if have(&["lsattr", "chattr"]) {
            let run = |program: &str, arguments: &[&str]| {
                let out = Command::new(program).args(arguments).output().expect(program);
                assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
                String::from_utf8(out.stdout).expect("text")
            };
            run("chattr", &["+P", "-p", "9", text(&dir)]);
            assert_eq!(lfs(&["project", "-d", text(&dir)]), format!("    9 P {}\n", text(&dir)));
            let shown = run("lsattr", &["-pd", text(&dir)]);
            assert!(shown.trim_start().starts_with("9 ") && shown.contains('P'), "{shown}");
            run("chattr", &["-P", text(&dir)]);
            assert!(lfs(&["project", "-d", text(&dir)]).contains("    9 - "));
        }
    }
}

#[test]
fn a_directory_that_another_mount_removes_meanwhile_is_passed_over_in_silence() {
    if !have(&["/dev/fuse", "fusermount3"]) || !have_root() {
        return;
    }
    let options = Options { osts: 1, fsname: "fndgone".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let second = cluster.add_mount();
    let top = cluster.directory("top");
    fs::create_dir(top.join("gone")).expect("made");
    fs::write(top.join("gone/file"), "").expect("written");
    let parameter = "mdt.fndgone-MDT0000.hold_request";
    let hold =
        |what: &str| drop(cluster.lctl(&["set_param", "-n", &format!("{parameter}={what}")]).success());
    let is_held = || {
        let found = cluster.lctl(&["get_param", "-n", parameter]).success().stdout;
        (found.trim() == "held before Scan").then_some(())
    };
    hold("before Scan");
    let mut find = cluster.command();
    find.args(["lfs", "find", text(&top)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let find = find.spawn().expect("starts");
    wait::until(wait::SOON, "the top is asked for", is_held);
    // Releases that one and holds the next request, for names found in the top directory.
    hold("before Scan");
    wait::until(wait::SOON, "what is below is asked for", is_held);
    fs::remove_dir_all(second.join("top/gone")).expect("removed");
    hold("none");
    let ended = find.wait_with_output().expect("ends");
    let (said, found) = (String::from_utf8_lossy(&ended.stderr), String::from_utf8_lossy(&ended.stdout));
    assert!(ended.status.success() && said.is_empty(), "{}: {said}", ended.status);
    assert_eq!(sorted(&found), [text(&top), text(&top.join("gone"))]);
    cluster.stop_and_check();
}
