//! `lfs` as users call it: refused commands and their messages, FIDs and names, sizes on the MDT, tables of
//! targets.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::program::{LIMIT, run_command};
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, binary, on_each_shape_of, on_every_shape, wait};

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout
}

/// Refused commands (`DIR` stands for a directory of the test), exit code, first line of the message.
const REFUSED: &[(&str, i32, &str)] = &[
    ("setstripe -c 5000 DIR/q", 4, "lfs setstripe setstripe: invalid stripe count '5000'"),
    ("setstripe -c -33 DIR/q", 4, "lfs setstripe setstripe: invalid stripe count '-33'"),
    ("setstripe -c abc DIR/q", 4, "lfs setstripe setstripe: invalid stripe count 'abc'"),
    ("setstripe -S 1000 DIR/q", 4, "lfs setstripe setstripe: invalid stripe size '1000'"),
    ("setstripe -S 100000 DIR/q", 4, "lfs setstripe setstripe: invalid stripe size '100000'"),
    (
        "setstripe -S 5G DIR/q",
        22,
        "lfs setstripe: error: stripe size '5368709120' over 4GB limit: Invalid argument (22)",
    ),
    ("setstripe -i -2 DIR/q", 4, "lfs setstripe setstripe: invalid stripe offset '-2'"),
    ("setstripe -E 4M -E 2M DIR/q", 22, "Set extent [4194304, 2097152) failed. Invalid argument"),
    ("setstripe -E 100 DIR/q", 4, "lfs setstripe setstripe: invalid component end '100'"),
    ("setstripe -E 10E DIR/q", 4, "lfs setstripe setstripe: invalid component end '10E'"),
    (
        "setstripe -E 4M -c 1 -S 8M -E -1 DIR/q",
        1,
        "lfs setstripe: Invalid layout: The component end must be aligned by the stripe size",
    ),
    ("setstripe -L foo DIR/q", 22, "error: layout 'foo' is unknown, supported layouts are: 'mdt', 'raid0'"),
    (
        "setstripe -L mdt DIR/q",
        22,
        "lfs setstripe: Invalid pattern: '-L mdt', must be specified with -E: Invalid argument (22)",
    ),
    ("setstripe", 4, "lfs setstripe setstripe: FILE must be specified"),
    ("setstripe -c 1", 4, "lfs setstripe setstripe: FILE must be specified"),
    ("setstripe --bogus DIR/q", 4, "lfs setstripe: unrecognized option '--bogus'"),
    ("setstripe --mode 9 DIR/q", 4, "lfs setstripe setstripe: invalid mode '9'"),
    ("setstripe -d -c 1 DIR", 4, "lfs setstripe setstripe: cannot specify -d with other options"),
    (
        "setstripe --copy DIR/f1 -c 1 DIR/q",
        4,
        "lfs setstripe setstripe: cannot specify --copy with stripe options",
    ),
    (
        "setstripe --comp-flags bogus -E -1 DIR/q",
        4,
        "lfs setstripe setstripe: invalid component flags 'bogus'",
    ),
    ("setstripe --comp-add -E eof DIR/f1", 22, "lfs setstripe setstripe: 'DIR/f1' not a composite file"),
    (
        "setstripe --comp-del -I 1 DIR/pfl",
        1,
        "lfs setstripe setstripe: cannot delete component 0x1 from 'DIR/pfl': Invalid argument",
    ),
    ("setstripe -c 2 DIR/f1", 17, "lfs setstripe: setstripe error for 'DIR/f1': stripe already set"),
    ("setstripe -E 1M -L mdt -E 2M -L mdt -E -1 DIR/q", 22, "error: 'mdt' layout can be only the first one"),
    (
        "setstripe -E 1M -L mdt -c 2 -E -1 DIR/q",
        22,
        "Option 'stripe-count' can't be specified with Data-on-MDT component: 2",
    ),
    ("setstripe -E 2G -L mdt -E -1 DIR/q", 27, "error: 'mdt' layout size is too big"),
    ("setstripe -o 0,1 -c 3 DIR/q", 4, "stripe_count(3) != nr_tgts(2)"),
    (
        "setstripe -p toolongpoolname123 DIR/q",
        22,
        "lfs setstripe: Invalid Poolname 'toolongpoolname123': Invalid argument (22)",
    ),
    (
        "setstripe --comp-add -E eof -c 1 DIR/whole",
        1,
        "lfs setstripe: Invalid layout: Zero length components must be followed by extension",
    ),
    ("ladvise -a foo DIR/f1", 4, "lfs: invalid advice type 'foo'"),
    (
        "migrate",
        4,
        "lfs migrate migrate: at least one of FILE/--null/--files-from=LIST_FILE must be specified",
    ),
    ("mkdir -H foo DIR/q", 4, "lfs mkdir: bad directory hash type 'foo'"),
    ("mkdir -i 7 DIR/q", 22, "lfs mkdir: dirstripe error on 'DIR/q': Invalid argument"),
    ("getdirstripe DIR/none", 2, "lfs: getdirstripe for 'DIR/none' failed: No such file or directory"),
    ("unlink_foreign", 4, "lfs unlink_foreign: FILE must be specified"),
    (
        "unlink_foreign DIR/none",
        2,
        "lfs unlink_foreign: cannot remove 'DIR/none': No such file or directory (2)",
    ),
    ("getstripe", 4, "error: getstripe: no filename|pathname"),
    ("getstripe DIR/none", 2, "lfs: getstripe for 'DIR/none' failed: No such file or directory"),
    ("getstripe -O bogus DIR", 22, "lfs getstripe: unknown obduuid: bogus"),
    ("getstripe /proc", 25, "cb_getstripe: '/proc' not on a Lustre fs?: Inappropriate ioctl for device (25)"),
    ("df /proc", 95, "df:/proc Not a Lustre filesystem"),
    ("df -oX DIR", 4, "lfs df: invalid target index 'X'"),
    ("df -u bogus DIR", 4, "lfs df: unknown field 'bogus'"),
    ("foo", 1, "lfs: 'foo' is not a valid command. See 'lfs --list-commands'."),
    ("path2fid", 4, "lfs path2fid: PATH must be specified"),
    ("path2fid DIR/none", 2, "lfs path2fid: can't get FID for 'DIR/none': No such file or directory"),
    ("fid2path DIR", 4, "lfs fid2path: FID missing"),
    ("fid2path DIR bogus", 22, "lfs fid2path: bad FID format 'bogus', should be [seq:oid:ver]"),
    ("fid2path -l x DIR [0x1:0x2:0x0]", 4, "lfs fid2path: invalid link number 'x'"),
    ("rmfid DIR", 4, "lfs rmfid: FID missing"),
    ("rmfid DIR x", 22, "lfs rmfid: bad FID format 'x', should be [seq:oid:ver]"),
    ("getsom", 4, "lfs getsom: FILE must be specified"),
];

on_every_shape! {
    fn what_is_refused_is_refused_in_lustres_words(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        lfs(cluster, &["setstripe", "-c", "1", text(&root.join("f1"))]);
        fs::write(root.join("f1"), "x").expect("write");
        lfs(cluster, &["setstripe", "-E", "4M", "-c", "1", "-E", "64M", text(&root.join("pfl"))]);
        lfs(cluster, &["setstripe", "-E", "4M", "-c", "1", "-E", "-1", text(&root.join("whole"))]);
        for (line, code, message) in REFUSED {
            let line = line.replace("DIR", text(&root));
            let arguments: Vec<&str> = line.split_whitespace().collect();
            let outcome = cluster.lfs(&arguments).fails_with(*code);
            let expected = message.replace("DIR", text(&root));
            let mut told = outcome.stderr.lines().skip_while(|line| line.starts_with("See 'lfs "));
            assert_eq!(told.next(), Some(expected.as_str()), "{line}");
            assert!(!root.join("q").exists(), "{line} leaves no file behind");
        }
    }

    fn names_of_files_are_told_and_removed_by_fid(cluster) {
        if cluster.is_foreign() || !have_root() {
            return;
        }
        let root = cluster.directory("d");
        fs::create_dir(root.join("sub")).expect("mkdir");
        for name in ["one", "two", "three"] {
            fs::write(root.join(name), name).expect("write");
        }
        fs::hard_link(root.join("one"), root.join("sub/uno")).expect("link");
        let mount = text(cluster.mount()).to_owned();
        let fid = |name: &str| lfs(cluster, &["path2fid", text(&root.join(name))]).trim().to_owned();
        let (one, two, sub) = (fid("one"), fid("two"), fid("sub"));
        let parents = lfs(cluster, &["path2fid", "--parents", text(&root.join("one"))]);
        assert_eq!(parents, format!("{}/one\t{sub}/uno\n", fid("")));
        let both = lfs(cluster, &["path2fid", text(&root.join("one")), text(&root.join("two"))]);
        assert_eq!(both, format!("{}: {one}\n{}: {two}\n", text(&root.join("one")), text(&root.join("two"))));
        let told = lfs(cluster, &["fid2path", "-f", "-c", "-n", &mount, &one]);
        assert_eq!(told, format!("{one} 1 one\n{one} 1 uno\n"));
        assert_eq!(lfs(cluster, &["fid2path", "-c", "-n", "--link=1", &mount, &one]), "1 uno\n");
        let bare = one.trim_matches(['[', ']']);
        assert_eq!(lfs(cluster, &["fid2path", "-n", "-l", "0", "-0", &mount, bare]), "one\0");

        let gone = "[0x200000400:0xfffff:0x0]";
        let outcome = cluster.lfs(&["rmfid", &mount, &one, gone, &sub, &two]).fails_with(libc::ENOENT);
        let told: Vec<&str> = outcome.stderr.lines().collect();
        let expected = [
            format!("lfs rmfid: cannot remove {gone}: No such file or directory"),
            format!("lfs rmfid: cannot remove {sub}: Is a directory"),
        ];
        assert_eq!(told, expected);
        for name in ["one", "two", "sub/uno"] {
            assert!(!root.join(name).exists(), "{name}");
        }
        assert!(root.join("three").exists());
        let three = fid("three");
        let mut command = cluster.run().command(binary::nacre());
        command.args(["lfs", "rmfid", &mount, &three]);
        let outcome = Identity::user(65_534).act(move || run_command(command, LIMIT));
        let outcome = outcome.fails_with(libc::EPERM);
        assert!(outcome.stderr.contains("Operation not permitted"), "{outcome}");
        assert!(root.join("three").exists());
    }

    fn sizes_on_the_mdt_follow_closes(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let mut file = File::create(&path).expect("create");
        file.write_all(&[1; 5000]).expect("write");
        assert_eq!(lfs(cluster, &["getsom", "-f", text(&path)]), "4\n", "somebody writes");
        drop(file);
        // The MDT receives the close after the call has returned.
        wait::until(LIMIT, "the size is known", || (lfs(cluster, &["getsom", "-f", text(&path)]) == "1\n").then_some(()));
        assert_eq!(lfs(cluster, &["getsom", "-s", text(&path)]), "5000\n");
        let blocks = lfs(cluster, &["getsom", "-b", text(&path)]);
        assert_eq!(
            lfs(cluster, &["getsom", text(&path)]),
            format!("file: {} size: 5000 blocks: {} flags: 1\n", text(&path), blocks.trim())
        );
        assert_eq!(lfs(cluster, &["find", text(&path), "--lazy", "-size", "5000c", "-printf", "%s"]), "5000");
    }

    fn tables_of_targets_can_be_cut(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let mount = text(cluster.mount()).to_owned();
        let rows = |arguments: &[&str]| {
            let mut line = vec!["df"];
            line.extend(arguments);
            line.push(&mount);
            let shown = lfs(cluster, &line);
            shown.lines().filter(|line| line.contains("_UUID")).map(|line| line[..19].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(rows(&["-o2"]), ["nacre-OST0002_UUID "]);
        assert_eq!(rows(&["--mdt=0"]), ["nacre-MDT0000_UUID "]);
        assert_eq!(rows(&["-m0", "-o1"]), ["nacre-MDT0000_UUID ", "nacre-OST0001_UUID "]);
        assert_eq!(rows(&["-m"]).len(), 1);
        let columns = lfs(cluster, &["df", "-u", "source,pcent,target", "-o3", &mount]);
        assert!(columns.starts_with("nacre-OST0003_UUID ") && columns.ends_with(&format!("  {mount}[OST:3]\n")), "{columns}");
        assert_eq!(columns.lines().count(), 1, "one target has neither head nor sum");
        let columns = lfs(cluster, &["df", "-u", "source,pcent,target", &mount]);
        assert!(columns.starts_with("UUID                 Use%  Mounted on\nnacre-MDT0000_UUID "), "{columns}");
        let without = lfs(cluster, &["df", "-N", "-u", "source,pcent,target", &mount]);
        let last = columns.lines().rev().find(|line| !line.is_empty()).expect("a sum").to_owned();
        assert!(last.starts_with("filesystem_summary:  "), "{columns}");
        assert_eq!(without.lines().count() + 4, columns.lines().count(), "{columns}");
        assert!(lfs(cluster, &["df", "-s", &mount]).starts_with("filesystem_summary: "));
        let class = |letter| lfs(cluster, &["df", "-v", "-m0", &mount]).trim_end().ends_with(letter);
        let set = |value| {
            let name = format!("osd-*.{}-MDT0000.nonrotational={value}", cluster.fsname());
            cluster.lctl(&["set_param", &name]).success();
        };
        set(1);
        assert!(class("[MDT:0] f"), "on flash");
        set(0);
        assert!(class("[MDT:0]"), "on disk");
        let name = lfs(cluster, &["getname", "-n", &mount]);
        assert_eq!(name, "nacre\n");
        let instance = lfs(cluster, &["getname", "-i", &mount]);
        assert_eq!(lfs(cluster, &["getname", &mount]), format!("nacre-{instance}"));
    }

    fn what_has_no_layout_says_so_and_links_are_followed_in_a_listing(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let at = |name: &str| text(&root.join(name)).to_owned();
        lfs(cluster, &["setstripe", "-c", "2", &at("two")]);
        fs::create_dir(root.join("wide")).expect("made");
        lfs(cluster, &["setstripe", "-c", "3", &at("wide")]);
        for (target, name) in [("two", "link"), ("wide", "dirlink"), ("nowhere", "dangling"), ("/proc/self", "out")] {
            std::os::unix::fs::symlink(target, root.join(name)).expect("linked");
        }
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
        // As in Lustre, a symlink as an argument is not followed.
        for path in ["link", "pipe"].map(&at) {
            for options in [&[][..], &["-c"], &["-F"], &["--no-follow", "-c"]] {
                let line = [&["getstripe"], options, &[&*path]].concat();
                assert_eq!(lfs(cluster, &line), format!("{path} has no stripe info\n"), "{options:?}");
            }
        }
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-c", &at("dirlink")]).trim(), "3");
        let shown = |options: &[&str]| -> Vec<String> {
            let listed = lfs(cluster, &[&["getstripe", "-c", "-r"], options, &[text(&root)]].concat());
            let below = listed.replace(&at(""), "");
            let blocks = below.replace(" has no stripe info\n", "\n-\n\n");
            let mut found: Vec<String> = blocks
                .split("\n\n")
                .filter_map(|block| block.trim().split_once('\n'))
                .filter(|(name, _)| !name.starts_with('/'))
                .map(|(name, value)| format!("{name} {}", value.trim()))
                .collect();
            found.sort();
            found
        };
        assert_eq!(shown(&[]), ["dirlink 3", "link 2", "out -", "pipe -", "two 2", "wide 3"]);
        let unfollowed = ["dangling -", "dirlink -", "link -", "out -", "pipe -", "two 2", "wide 3"];
        assert_eq!(shown(&["--no-follow"]), unfollowed);
    }

    fn trees_show_the_layouts_that_files_show_alone(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        lfs(cluster, &["setstripe", "-c", "2", "-i", "1", text(&root.join("striped"))]);
        lfs(cluster, &["setstripe", "-E", "1M", "-c", "1", "-E", "-1", "-c", "2", text(&root.join("pfl"))]);
        fs::create_dir(root.join("sub")).expect("mkdir");
        lfs(cluster, &["setstripe", "-E", "1M", "-c", "1", "-E", "-1", "-c", "3", text(&root.join("sub"))]);
        for name in ["plain", "pfl", "sub/inherits"] {
            fs::write(root.join(name), "x").expect("write");
        }
        for name in ["empty", "sub/empty"] {
            File::create(root.join(name)).expect("create");
        }
        for options in [&[][..], &["-v"], &["-y"], &["-c"], &["-i", "-S"], &["-F"], &["-I1"], &["-R"], &["--hex-idx"], &["-O", "1"]] {
            let show = |more: &[&str], path: &Path| {
                let mut line = vec!["getstripe"];
                line.extend(options.iter().chain(more));
                line.push(text(path));
                lfs(cluster, &line)
            };
            let tree = show(&["-r"], &root);
            for name in ["plain", "striped", "pfl", "empty", "sub/inherits", "sub/empty"] {
                let alone = show(&[], &root.join(name));
                assert!(tree.contains(&alone), "{options:?} {name}: {alone} in {tree}");
            }
        }
        let level = lfs(cluster, &["getstripe", text(&root)]);
        let paths = level.lines().filter(|line| line.starts_with('/')).count();
        assert_eq!(paths, 6, "the directory and what is in it: {level}");
        let own = lfs(cluster, &["getstripe", "-c", text(&root)]);
        assert_eq!(own.split_whitespace().count(), 1, "itself alone: {own}");
        let path = root.join("pfl");
        fs::write(&path, vec![0; 2 << 20]).expect("write");
        for (options, expected) in [
            (&["-I", "-E"][..], "    lcme_id:             2\n    lcme_extent.e_end:   EOF"),
            (&["-c", "--component-flags=^init"], ""),
            (&["!", "--mirror-index=1", "-I"], "1\n\n2"),
            (&["--mirror-index=1", "-I"], ""),
            (&["-N", "-c"], "  lcm_mirror_count:  1\n      lmm_stripe_count:  2"),
            (&["-z"], ""),
            (&["-m", "--hex-idx"], "0"),
        ] {
            let line = [&["getstripe"], options, &[text(&path)]].concat();
            assert_eq!(lfs(cluster, &line).trim_end(), expected, "{options:?}");
        }
    }
}

#[test]
fn advice_reaches_the_osts_of_the_range() {
    on_each_shape_of("lad", 4, |cluster, fsname| {
        let root = cluster.directory("d");
        let path = root.join("f");
        lfs(cluster, &["setstripe", "-c", "2", "-S", "1M", "-i", "0", text(&path)]);
        let data: Vec<u8> = (0..4u32 << 20).map(|at| (at >> 9) as u8).collect();
        fs::write(&path, &data).expect("write");
        let counted = |cluster: &Cluster| -> u64 {
            let shown =
                cluster.lctl(&["get_param", "-n", &format!("obdfilter.{fsname}-*.stats")]).success().stdout;
            let rows = shown.lines().filter(|line| line.starts_with("ladvise "));
            rows.filter_map(|row| row.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
        };
        let before = counted(cluster);
        lfs(cluster, &["ladvise", "-a", "dontneed", text(&path)]);
        assert_eq!(counted(cluster) - before, 2, "both objects");
        lfs(cluster, &["ladvise", "-a", "willread", "-s", "1M", "-l", "4k", text(&path)]);
        assert_eq!(counted(cluster) - before, 3, "one of them");
        lfs(cluster, &["ladvise", "-a", "willread", "-s", "1G", "-e", "2G", text(&path)]);
        assert_eq!(counted(cluster) - before, 3, "nothing is there");
        assert!(fs::read(&path).expect("read") == data);
        let outcome = cluster.lfs(&["ladvise", "-a", "ahead", text(&path)]).fails_with(libc::EOPNOTSUPP);
        let expected =
            format!("lfs: cannot give advice 'ahead' to file '{}': Operation not supported", text(&path));
        assert_eq!(outcome.stderr.lines().next(), Some(expected.as_str()));
        cluster.lfs(&["ladvise", "-a", "willread", text(&root)]).fails_with(libc::EINVAL);
        cluster.lfs(&["ladvise", "-a", "willread", text(&root.join("none"))]).fails_with(libc::ENOENT);
    });
}

/// Advises a file to lock exactly what it uses (`LADVISE_LOCKNOEXPAND`), or with flag 2 withdraws the advice.
fn without_expansion(file: &fs::File, flag: u32) {
    use std::os::fd::AsRawFd;
    let mut call = [0u8; 64];
    call[..4].copy_from_slice(&0x1ADF_1CE0u32.to_le_bytes());
    call[4..8].copy_from_slice(&1u32.to_le_bytes());
    call[32..34].copy_from_slice(&3u16.to_le_bytes());
    call[36..40].copy_from_slice(&flag.to_le_bytes());
    // SAFETY: the call reads the header and one piece of advice behind it, which the array holds.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), 0x8020_66fa, call.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Two mounts alternately write pieces of a file, after each has locked just its pieces ahead: no lock is
/// revoked.
fn locks_ahead_stay(shape: Shape, fsname: &str) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    let options = Options { osts: 2, listen: true, fsname: fsname.to_owned(), ..Options::default() };
    let mut cluster = Cluster::start_with(shape, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.directory("d");
    let path = root.join("f");
    lfs(&cluster, &["setstripe", "-c", "2", "-S", "64K", "-i", "0", text(&path)]);
    fs::write(&path, vec![0; 1 << 20]).expect("write");
    lfs(&cluster, &["ladvise", "-a", "lockahead", "-m", "WRITE", "-l", "64K", text(&path)]);
    let stat = |cluster: &Cluster, row: &str| -> u64 {
        let name = format!("ldlm.namespaces.{fsname}-*-osc-*.lock_stats");
        let shown = cluster.lctl(&["get_param", "-n", &name]).success().stdout;
        let rows = shown.lines().filter_map(|line| line.strip_prefix(row));
        rows.filter_map(|row| row.split_whitespace().next()?.parse::<u64>().ok()).sum()
    };
    let other = cluster.add_mount().join("d/f");
    let mounts = [&path, &other].map(|path| path.to_str().expect("plain").to_owned());
    // With both mounts connected, locks are in use.
    assert_eq!(fs::read(&other).expect("read").len(), 1 << 20);
    fs::write(&path, vec![1; 1 << 20]).expect("write");
    let ahead = |place: u64, more: &[&str]| {
        let (start, path) = ((place * 65536).to_string(), &mounts[place as usize % 2]);
        let line = ["ladvise", "-a", "lockahead", "-m", "WRITE", "-s", &start, "-l", "65536", path];
        lfs(&cluster, &[&line[..], more].concat());
    };
    (0..16).for_each(|place| ahead(place, &[]));
    let (asked, called) = (stat(&cluster, "enqueued"), stat(&cluster, "callbacks"));
    let files = mounts.each_ref().map(|path| fs::OpenOptions::new().write(true).open(path).expect("open"));
    for place in 0..16u64 {
        let piece = vec![2 + place as u8; 65536];
        files[place as usize % 2].write_all_at(&piece, place * 65536).expect("write");
    }
    assert_eq!(stat(&cluster, "callbacks"), called, "nobody takes anything from the other");
    assert_eq!(stat(&cluster, "enqueued"), asked, "the locks are there already");
    // With advice against expansion no locks ahead are needed.
    fs::write(root.join("g"), vec![0; 1 << 20]).expect("write");
    let others = [root.join("g"), other.with_file_name("g")];
    let others = others.map(|path| fs::OpenOptions::new().write(true).open(path).expect("open"));
    others.iter().for_each(|file| without_expansion(file, 0));
    let turns = |round: u8| {
        for place in 0..16u64 {
            let piece = vec![round; 65536];
            others[place as usize % 2].write_all_at(&piece, place * 65536).expect("write");
        }
    };
    turns(1);
    let called = stat(&cluster, "callbacks");
    turns(2);
    assert_eq!(stat(&cluster, "callbacks"), called, "each has what it wrote before");
    others.iter().for_each(|file| without_expansion(file, 2));
    turns(3);
    // A request that does not wait leaves the other mount's locks alone.
    ahead(0, &["-b"]);
    lfs(&cluster, &["ladvise", "-a", "lockahead", "-m", "WRITE", "-b", "-s", "64K", "-l", "64K", &mounts[0]]);
    assert_eq!(stat(&cluster, "callbacks"), called);
    drop((files, others));
    let back = fs::read(&path).expect("read");
    assert!((0..16).all(|place| back[place * 65536..][..65536].iter().all(|byte| *byte == 2 + place as u8)));
    cluster.stop_and_check();
}

#[test]
fn locks_asked_for_ahead_are_for_their_range_and_stay_embedded() {
    locks_ahead_stay(Shape::Embedded, "lahe");
}

#[test]
fn locks_asked_for_ahead_are_for_their_range_and_stay_separate() {
    locks_ahead_stay(Shape::Separate, "lahs");
}

#[test]
fn a_file_that_is_exchanged_with_itself_stays_as_it_is() {
    on_each_shape_of("swself", 2, |cluster, _| {
        let path = cluster.directory("d").join("f");
        lfs(cluster, &["setstripe", "-c", "2", text(&path)]);
        fs::write(&path, b"content").expect("write");
        let before = lfs(cluster, &["getstripe", text(&path)]);
        // The only mount would wait for itself.
        for arguments in [["swap_layouts", "-n"], ["swap_layouts", "--"]] {
            lfs(cluster, &[arguments[0], arguments[1], text(&path), text(&path)]);
        }
        assert_eq!(lfs(cluster, &["getstripe", text(&path)]), before);
        assert_eq!(fs::read(&path).expect("read"), b"content");
    });
}

/// The file's own project is preserved, and the directory's is not inherited.
#[test]
fn a_file_of_another_project_than_its_directory_is_migrated() {
    on_each_shape_of("mgproj", 2, |cluster, _| {
        let directory = cluster.directory("d");
        lfs(cluster, &["setstripe", "-c", "1", text(&directory)]);
        let paths = [directory.join("own"), directory.join("none")];
        fs::write(&paths[0], b"content").expect("write");
        lfs(cluster, &["project", "-p", "7", text(&paths[0])]);
        lfs(cluster, &["project", "-s", "-p", "9", text(&directory)]);
        fs::write(&paths[1], b"content").expect("write");
        lfs(cluster, &["project", "-p", "0", text(&paths[1])]);
        for (path, project) in paths.iter().zip(["7 -", "0 -"]) {
            for how in ["-b", "-n"] {
                let count = if how == "-b" { "2" } else { "1" };
                lfs(cluster, &["migrate", how, "-c", count, text(path)]);
                assert_eq!(lfs(cluster, &["getstripe", "-c", text(path)]).trim(), count);
            }
            let shown = lfs(cluster, &["project", text(path)]);
            assert!(shown.trim_start().starts_with(project), "{shown}");
            assert_eq!(fs::read(path).expect("read"), b"content");
        }
    });
}
