//! Placement of new directories: defaults of `lfs setdirstripe -D`, the root's default for the whole file
//! system, and their commands.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_each_shape_with_mdts, program, wait};

/// Default of the root of a new file system.
const ROOT_DEFAULT: &str =
    "lmv_stripe_count: 1 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 3";
/// Output for a directory without a default.
const NO_DEFAULT: &str =
    "lmv_stripe_count: 0 lmv_stripe_offset: -1 lmv_hash_type: none lmv_max_inherit: -1 lmv_max_inherit_rr: 0";
const LMV_GETSTRIPE: u32 = 0xc030_66f1;
const LMV_SET_DEFAULT_STRIPE: u32 = 0xc030_66f6;
const DEFAULT_MAGIC: u32 = 0x0CD3_0CD0;

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

fn default_of(cluster: &Cluster, path: &Path) -> String {
    lfs(cluster, &["getdirstripe", "-D", text(path)])
}

fn set_default(cluster: &Cluster, options: &[&str], path: &Path) {
    cluster.lfs(&[&["setdirstripe", "-D"], options, &[text(path)]].concat()).success();
}

/// Returns the MDT of an inode, from the FID that its number encodes.
fn mdt_of(path: &Path) -> u64 {
    const SEQ_NORMAL: u64 = 0x2_0000_0400;
    let sequence = fs::metadata(path).expect("there").ino() >> 24;
    sequence.saturating_sub(SEQ_NORMAL) >> 30
}

/// Creates `count` directories in one; returns how many are on each of three MDTs.
fn spread(directory: &Path, name: &str, count: usize) -> [usize; 3] {
    let mut counts = [0; 3];
    for number in 0..count {
        let path = directory.join(format!("{name}{number}"));
        fs::create_dir(&path).expect("made");
        counts[mdt_of(&path) as usize] += 1;
    }
    counts
}

#[test]
fn directories_near_the_root_go_to_mdts_in_turn_and_those_below_stay_with_their_parents() {
    on_each_shape_with_mdts("dira", 3, |cluster, _| {
        let root = cluster.mount().to_path_buf();
        assert_eq!(default_of(cluster, &root), ROOT_DEFAULT);
        assert_eq!(spread(&root, "a", 6), [2; 3]);
        assert_eq!(spread(&root.join("a0"), "b", 6), [2; 3]);
        assert_eq!(spread(&root.join("a0/b1"), "c", 6), [2; 3]);
        let third = root.join("a0/b1/c2");
        let mut expected = [0; 3];
        expected[mdt_of(&third) as usize] = 6;
        assert_eq!(spread(&third, "d", 6), expected);
        // The inheritance of a default decreases with each level.
        for (below, left) in [("a0", 2), ("a0/b1", 1), ("a0/b1/c2", 0), ("a0/b1/c2/d3", 0)] {
            let shown = lfs(cluster, &["getdirstripe", "-D", "--max-inherit-rr", text(&root.join(below))]);
            assert_eq!(shown, left.to_string(), "{below}");
            assert_eq!(
                lfs(cluster, &["getdirstripe", "-D", "-R", text(&root.join(below))]),
                "",
                "not stored"
            );
        }
        for path in ["a0/b1/c2/d3/file", "a5/file"] {
            let path = root.join(path);
            fs::write(&path, b"data").expect("written");
            assert_eq!(
                mdt_of(&path),
                mdt_of(path.parent().expect("a parent")),
                "files stay with their directory"
            );
        }
        fs::remove_dir_all(root.join("a0")).expect("removed");
    });
}

#[test]
fn the_roots_default_can_be_changed_and_taken_away() {
    on_each_shape_with_mdts("dirb", 3, |cluster, _| {
        let root = cluster.mount().to_path_buf();
        set_default(cluster, &["-i", "2", "-X", "2"], &root);
        fs::create_dir_all(root.join("a/b/c")).expect("made");
        assert_eq!(["a", "a/b", "a/b/c"].map(|path| mdt_of(&root.join(path))), [2, 2, 2]);
        // The second level is the last to inherit it; below, there is no default.
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-X", text(&root.join("a"))]), "1");
        assert_eq!(default_of(cluster, &root.join("a/b")), NO_DEFAULT);
        cluster.lfs(&["setdirstripe", "-d", text(&root)]).success();
        assert_eq!(default_of(cluster, &root), NO_DEFAULT);
        assert_eq!(spread(&root, "here", 4), [4, 0, 0]);
        assert_eq!(spread(&root.join("a"), "there", 4), [0, 0, 4]);
        set_default(cluster, &["-i", "-1"], &root);
        assert_eq!(spread(&root, "turn", 6), [2; 3], "in the root itself they always go in turn");
        let plain = root.join("turn0");
        assert_eq!(spread(&plain, "stay", 3)[mdt_of(&plain) as usize], 3);
    });
}

#[test]
fn a_directorys_default_is_followed_and_handed_down_for_as_many_levels_as_it_says() {
    on_each_shape_with_mdts("dirc", 3, |cluster, _| {
        let top = cluster.directory("levels");
        set_default(cluster, &["-i", "1", "-X", "3"], &top);
        let shown = |levels| {
            format!(
                "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none lmv_max_inherit: {levels} lmv_max_inherit_rr: 0"
            )
        };
        assert_eq!(default_of(cluster, &top), shown(3));
        fs::create_dir_all(top.join("a/b/c")).expect("made");
        assert_eq!(["a", "a/b", "a/b/c"].map(|path| mdt_of(&top.join(path))), [1; 3]);
        assert_eq!(["a", "a/b"].map(|path| default_of(cluster, &top.join(path))), [shown(2), shown(1)]);
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-R", text(&top.join("a/b/c"))]), "");
        // A directory's own default has precedence.
        set_default(cluster, &["-i", "2"], &top.join("a"));
        fs::create_dir(top.join("a/other")).expect("made");
        assert_eq!(mdt_of(&top.join("a/other")), 2);
        let turns = top.join("turns");
        fs::create_dir(&turns).expect("made");
        set_default(cluster, &["-i", "-1", "--max-inherit-rr", "1"], &turns);
        assert_eq!(spread(&turns, "t", 6), [2; 3]);
        let below = turns.join("t0");
        assert_eq!(spread(&below, "b", 3)[mdt_of(&below) as usize], 3);
        cluster.lfs(&["setdirstripe", "-d", text(&top.join("a"))]).success();
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-R", text(&top.join("a"))]), "");
    });
}

#[test]
fn what_is_made_without_a_hash_has_the_one_of_the_file_system() {
    on_each_shape_with_mdts("dirh", 2, |cluster, fs| {
        let top = cluster.directory("hashes");
        let hash = |path: &Path| lfs(cluster, &["getdirstripe", "-H", text(path)]);
        let make = |name: &str, options: &[&str]| {
            let path = top.join(name);
            cluster.lfs(&[&["mkdir", "-c", "2"], options, &[text(&path)]].concat()).success();
            path
        };
        assert_eq!(hash(&make("as it comes", &[])), "crush");
        let name = format!("lod.{fs}-MDT0001-mdtlov.mdt_hash");
        cluster.lctl(&["set_param", &format!("{name}=fnv")]).fails_with(libc::EINVAL);
        cluster.lctl(&["set_param", &format!("{name}=crush2")]).success();
        let shown =
            cluster.lctl(&["get_param", "-n", &format!("lod.{fs}-MDT*-mdtlov.mdt_hash")]).success().stdout;
        assert_eq!(shown.lines().collect::<Vec<_>>(), ["crush2"; 2]);
        let mut count = 0;
        let strict = wait::until(wait::SOON, "the mount hears of it", || {
            count += 1;
            Some(make(&format!("strict{count}"), &[])).filter(|path| hash(path) == "crush2")
        });
        // Names in which crush treats everything behind the second dot as the suffix of a temporary file.
        for number in 100..140 {
            fs::write(strict.join(format!("file.mdtest.12.2.{number}")), "").expect("written");
        }
        let entries = fs::read_dir(&strict).expect("listed");
        let others = entries.filter(|entry| mdt_of(&entry.as_ref().expect("an entry").path()) == 1).count();
        assert!((8..=32).contains(&others), "{others} of 40");
        assert_eq!(hash(&make("said", &["-H", "fnv_1a_64"])), "fnv_1a_64");
        set_default(cluster, &["-c", "2"], &strict);
        let below = strict.join("below");
        fs::create_dir(&below).expect("made");
        assert_eq!(hash(&below), "crush2");
        let whole = cluster.directory("whole");
        cluster.lfs(&["setdirstripe", "-c", "2", text(&whole)]).success();
        assert_eq!(hash(&whole).split(',').next(), Some("crush2"));
    });
}

#[test]
fn a_default_can_spread_names_over_mdts() {
    on_each_shape_with_mdts("dirn", 3, |cluster, _| {
        let top = cluster.directory("spread");
        set_default(cluster, &["-c", "2", "-i", "1", "-H", "crush", "-X", "2"], &top);
        let user = Identity::user(12345);
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("opened");
        let path = top.join("many");
        user.act(|| fs::create_dir(&path)).expect("made by somebody who may not choose");
        let shown = cluster.lfs(&["getdirstripe", text(&path)]).success().stdout;
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "lmv_stripe_count: 2 lmv_stripe_offset: 1 lmv_hash_type: crush");
        assert_eq!((lines[1], lines.len()), ("mdtidx\t\t FID[seq:oid:ver]", 4));
        for (line, mdt) in lines[2..].iter().zip([1, 2]) {
            assert!(
                line.starts_with(&format!("     {mdt}\t\t [0x")) && line.ends_with(":0x0]\t\t"),
                "{line:?}"
            );
        }
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-X", text(&path)]), "1");
        // Names are on both MDTs; a new inode is on the MDT of its name or follows the default.
        user.act(|| {
            for number in 0..40 {
                fs::write(path.join(format!("f{number}")), b"data").expect("written");
            }
        });
        let mut counts = [0; 3];
        for entry in fs::read_dir(&path).expect("listed") {
            counts[mdt_of(&entry.expect("an entry").path()) as usize] += 1;
        }
        assert!(counts[0] == 0 && counts[1] > 5 && counts[2] > 5, "{counts:?}");
        let below = path.join("below");
        fs::create_dir(&below).expect("made");
        assert_eq!(
            lfs(cluster, &["getdirstripe", "-c", text(&below)]),
            "2",
            "the last level that it holds for"
        );
        fs::create_dir(below.join("plain")).expect("made");
        assert_eq!(lfs(cluster, &["getdirstripe", "-c", text(&below.join("plain"))]), "0");
        let find = |options: &[&str]| {
            let found = lfs(cluster, &[&["find", text(&top)], options].concat());
            let mut found: Vec<String> = found.lines().map(|path| path.replace(text(&top), "")).collect();
            found.sort();
            found
        };
        assert_eq!(find(&["-T", "2"]), ["/many", "/many/below"]);
        assert_eq!(find(&["-T", "0"]), ["", "/many/below/plain"]);
        assert_eq!(find(&["-H", "crush"]), ["/many", "/many/below"]);
        assert_eq!(find(&["-H", "fnv_1a_64"]), [""; 0]);
        assert_eq!(find(&["-H", "^crush"]), ["", "/many/below/plain"]);
        fs::remove_dir_all(&path).expect("removed");
    });
}

#[test]
fn names_are_spread_over_the_mdts_that_were_asked_for() {
    on_each_shape_with_mdts("diro", 3, |cluster, _| {
        let top = cluster.directory("asked");
        let mut number = 0;
        let mut made = |options: &[&str]| {
            number += 1;
            let path = top.join(format!("d{number}"));
            cluster.lfs(&[&["mkdir"], options, &[text(&path)]].concat()).success();
            let shown = cluster.lfs(&["getdirstripe", text(&path)]).success().stdout;
            let hash = lfs(cluster, &["getdirstripe", "-H", text(&path)]);
            let mdt = |line: &str| line.split_whitespace().next().map(str::to_owned);
            let mdts: Vec<String> = shown.lines().skip(2).filter_map(mdt).collect();
            (mdts.join(","), hash)
        };
        assert_eq!(made(&["-c", "2", "-i", "2", "-H", "fnv_1a_64"]), ("2,0".into(), "fnv_1a_64".into()));
        assert_eq!(made(&["-i", "2,0,1", "-H", "1"]), ("2,0,1".into(), "all_char".into()));
        assert_eq!(made(&["-i", "0-1", "-c", "2", "-H", "4"]), ("0,1".into(), "crush2".into()));
        assert_eq!(
            made(&["-c", "9", "-i", "1", "-H", "crush"]),
            ("1,2,0".into(), "crush".into()),
            "as many as there are"
        );
        assert_eq!(
            made(&["-C", "4", "-i", "1", "-H", "crush"]),
            ("1,2,0,1".into(), "crush,overstriped".into())
        );
        assert_eq!(
            made(&["-C", "2", "-i", "1", "-H", "crush"]),
            ("1,2".into(), "crush".into()),
            "not needed"
        );
        let (all, _) = made(&["-c", "-1"]);
        let mut all: Vec<&str> = all.split(',').collect();
        all.sort_unstable();
        assert_eq!(all, ["0", "1", "2"]);
        let (twice, hash) = made(&["-C", "-2", "-i", "0", "-H", "crush"]);
        assert_eq!((twice.as_str(), hash.as_str()), ("0,1,2,0,1,2", "crush,overstriped"));
        assert_eq!(made(&["-c", "1", "-i", "1"]), (String::new(), "none".into()));
        // A new entry of a striped directory has no default that keeps it on one MDT.
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-R", text(&top.join("d1"))]), "");
        cluster.lfs(&["mkdir", "-i", "0,7", text(&top.join("none"))]).fails_with(libc::EINVAL);
        let user = Identity::user(12345);
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("opened");
        let mut command = cluster.command();
        command.args(["lfs", "mkdir", "-c", "2", text(&top.join("none"))]);
        user.act(|| program::run_command(command, program::LIMIT)).fails_with(libc::EPERM);
        assert!(!top.join("none").exists());
    });
}

#[test]
fn a_default_that_gives_no_levels_is_not_followed() {
    on_each_shape_with_mdts("dird", 2, |cluster, _| {
        let top = cluster.directory("none");
        cluster.lfs(&["mkdir", "-i", "1", "-X", "0", text(&top.join("here"))]).success();
        let here = top.join("here");
        assert_eq!(
            (mdt_of(&here), lfs(cluster, &["getdirstripe", "-D", "-R", text(&here)])),
            (1, String::new())
        );
        set_default(cluster, &["-i", "0", "-X", "0"], &here);
        fs::create_dir(here.join("sub")).expect("made");
        assert_eq!(mdt_of(&here.join("sub")), 1);
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-X", text(&here)]), "0");
    });
}

#[test]
fn what_was_made_on_a_certain_mdt_keeps_what_is_made_in_it() {
    on_each_shape_with_mdts("dire", 3, |cluster, _| {
        let path = cluster.mount().join("kept");
        cluster.lfs(&["mkdir", "-i", "2", text(&path)]).success();
        assert_eq!(mdt_of(&path), 2);
        assert_eq!(
            spread(&path, "sub", 4),
            [0, 0, 4],
            "also where the root's default would place them in turn"
        );
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-i", text(&path)]), "2");
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-i", text(&path.join("sub1"))]), "2");
        let somewhere = cluster.mount().join("somewhere");
        cluster.lfs(&["mkdir", "-i", "-1", text(&somewhere)]).success();
        let index = mdt_of(&somewhere).to_string();
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-i", text(&somewhere)]), index);
    });
}

#[test]
fn who_may_not_choose_mdts_sets_no_default() {
    on_each_shape_with_mdts("dirf", 2, |cluster, fsname| {
        let top = cluster.directory("rights");
        fs::set_permissions(&top, fs::Permissions::from_mode(0o777)).expect("opened");
        let user = Identity::user(12345).with_groups(&[54321]);
        let own = top.join("own");
        user.act(|| fs::create_dir(&own)).expect("made");
        let own = &own;
        let as_user = |arguments: &[&str]| {
            let mut command = cluster.command();
            command.args(["lfs", "setdirstripe"]).args(arguments).arg(text(own));
            user.act(|| program::run_command(command, program::LIMIT))
        };
        let outcome = as_user(&["-D", "-i", "1"]).fails_with(libc::EPERM);
        assert!(outcome.stderr.contains("mdt.*.enable_remote_dir_gid"), "{outcome}");
        let mut command = cluster.command();
        command.args(["lfs", "mkdir", "-i", "1"]).arg(own.join("chosen"));
        let outcome = user.act(|| program::run_command(command, program::LIMIT)).fails_with(libc::EPERM);
        assert!(outcome.stderr.contains("mdt.*.enable_remote_dir_gid"), "{outcome}");
        as_user(&["-d"]).fails_with(libc::EPERM);
        assert_eq!(lfs(cluster, &["getdirstripe", "-D", "-R", text(own)]), "");
        for mdt in 0..2 {
            let parameter = format!("mdt.{fsname}-MDT000{mdt}.enable_remote_dir_gid=54321");
            cluster.lctl(&["set_param", &parameter]).success();
        }
        as_user(&["-D", "-i", "1"]).success();
        let sub = own.join("sub");
        user.act(|| fs::create_dir(&sub)).expect("made");
        assert_eq!((mdt_of(&sub), fs::metadata(&sub).expect("there").uid()), (1, 12345));
        as_user(&["-d"]).success();
        // A default that another user has set also places the directories of others.
        set_default(cluster, &["-i", "1"], own);
        for mdt in 0..2 {
            let parameter = format!("mdt.{fsname}-MDT000{mdt}.enable_remote_dir_gid=0");
            cluster.lctl(&["set_param", &parameter]).success();
        }
        let other = own.join("other");
        user.act(|| fs::create_dir(&other)).expect("made");
        assert_eq!(mdt_of(&other), 1);
    });
}

#[test]
fn wrong_calls_are_refused_with_lustres_words_and_numbers() {
    on_each_shape_with_mdts("dirg", 2, |cluster, _| {
        let top = cluster.directory("wrong");
        let missing = top.join("missing");
        let missing = text(&missing);
        let told = cluster.lfs(&["setdirstripe", "-D", "-c", "1", missing]).fails_with(libc::ENOENT).stderr;
        let expected = format!(
            "lfs setdirstripe: unable to open '{missing}': No such file or directory (2)\n\
             lfs setdirstripe: cannot set default stripe on dir '{missing}': No such file or directory\n"
        );
        assert_eq!(told, expected);
        fs::write(top.join("file"), b"").expect("written");
        cluster.lfs(&["setdirstripe", "-D", "-i", "1", text(&top.join("file"))]).fails_with(libc::ENOTDIR);
        for arguments in [
            &["mkdir", "-H", "foo", missing][..],
            &["mkdir", "-c", "2001", missing],
            &["mkdir", "-C", "-6", missing],
            &["mkdir", "-i", "1-0", missing],
            &["setdirstripe", "-D", "-i", "0,1", missing],
            &["setdirstripe", "-D", "-X", "251", missing],
            &["setdirstripe", "-D", "-i", "1", "--max-inherit-rr", "2", missing],
            &["mkdir", "--max-inherit-rr", "2", missing],
            &["setdirstripe", "-d", "-c", "2", missing],
        ] {
            let outcome = cluster.lfs(arguments).fails_with(4);
            let help = format!("See 'lfs mkdir --help'.\nlfs {}: ", arguments[0]);
            assert!(outcome.stderr.starts_with(&help), "what is wrong comes last: {outcome}");
        }
        let outcome = cluster.lfs(&["setdirstripe", "-D", "-i", "2", text(&top)]).fails_with(libc::EINVAL);
        assert!(outcome.stderr.contains("there is no MDT 2"), "{outcome}");
        cluster.lfs(&["mkdir", "-i", "2", missing]).fails_with(libc::EINVAL);
        assert!(fs::symlink_metadata(missing).is_err());
        fs::create_dir(missing).expect("made");
        let told = cluster.lfs(&["mkdir", "-i", "1", missing]).fails_with(libc::EEXIST).stderr;
        let expected = format!(
            "lfs mkdir: dirstripe error on '{missing}': stripe already set\n\
             lfs setdirstripe: cannot create dir '{missing}': File exists\n"
        );
        assert_eq!(told, expected);
    });
}

#[test]
fn directories_are_shown_in_all_forms() {
    on_each_shape_with_mdts("dirh", 2, |cluster, fsname| {
        let top = cluster.directory("shown");
        let (here, there) = (top.join("here"), top.join("there"));
        cluster.lfs(&["mkdir", "-i", "0", text(&here)]).success();
        cluster.lfs(&["mkdir", "-i", "1", text(&there)]).success();
        let show = |options: &[&str], path: &Path| {
            cluster.lfs(&[&["getdirstripe"], options, &[text(path)]].concat()).success().stdout
        };
        assert_eq!(show(&[], &there), "lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n");
        let fields = [("-c", "0"), ("-T", "0"), ("-i", "1"), ("-m", "1"), ("-H", "none")];
        for (option, value) in fields {
            assert_eq!(show(&[option], &there), format!("{value}\n"), "{option}");
        }
        let fid = lfs(cluster, &["path2fid", text(&there)]);
        let bare = fid.trim_matches(['[', ']']);
        assert_eq!(show(&["-F"], &there), format!("{bare}\n"));
        let verbose = show(&["-v"], &there);
        assert_eq!(
            verbose,
            format!(
                "lmv_fid: {bare} lmv_magic: 0xcd20cd0 lmv_stripe_count: 0 lmv_stripe_offset: 1 lmv_hash_type: none\n"
            )
        );
        let yaml = format!(
            "lmv_stripe_count:  0\nlmv_stripe_offset: 1\nlmv_hash_type:     none\nlmv_objects:\n      \
             - l_mdt_idx: 1\n        l_fid:     {bare}\n"
        );
        assert_eq!(show(&["-y"], &there), yaml);
        let uuid = format!("{fsname}-MDT0001_UUID");
        assert_eq!(show(&["-c", "-O", &uuid], &there), "0\n");
        assert_eq!(show(&["-c", "-O", &uuid], &here), "");
        cluster.lfs(&["getdirstripe", "-O", "nobody", text(&here)]).fails_with(libc::EINVAL);
        assert_eq!(show(&["-i", "--hex-idx"], &there), "0x1\n");
        let json = show(&["--json"], &there);
        let expected = format!(
            r#""fid":"{fid}","hash":null,"max_inherit":null,"max_inherit_rr":null,"mdt_count":0,"mdt_index":1"#
        );
        assert!(json.contains(&expected) && json.lines().count() == 1, "{json}");
        let mdts = lfs(cluster, &["mdts", "--json", text(&top)]);
        assert!(mdts.contains(&format!(r#""uuid": "{fsname}-MDT0001_UUID""#)), "{mdts}");
        let space = lfs(cluster, &["df", "--json", text(&top)]);
        for part in [r#""type": "OST""#, r#""type": "MDT""#, r#""available_bytes": "#, r#""free_inodes": "#] {
            assert!(space.contains(part), "{space}");
        }
        let layout = lfs(cluster, &["getstripe", "--json", "-d", text(&top)]);
        assert!(layout.contains(r#""type":"directory""#) && layout.lines().count() == 1, "{layout}");
        let all = show(&["-r", "-i"], &top);
        let expected = format!("{}\n1\n", text(&there));
        assert!(all.starts_with(text(&top)) && all.contains(&expected), "{all}");
        assert_eq!(all.lines().count(), 6);
    });
}

fn ioctl(directory: &Path, number: u32, bytes: &mut [u8; 48]) -> i32 {
    let file = fs::File::open(directory).expect("opened");
    // SAFETY: the number encodes 48 bytes, the length of the array.
    match unsafe { libc::ioctl(file.as_raw_fd(), number as _, bytes.as_mut_ptr()) } {
        -1 => std::io::Error::last_os_error().raw_os_error().expect("from the system"),
        _ => 0,
    }
}

#[test]
fn programs_set_and_read_defaults_by_lustres_calls() {
    on_each_shape_with_mdts("diri", 2, |cluster, _| {
        let top = cluster.directory("calls");
        let question = || {
            let mut bytes = [0u8; 48];
            bytes[..4].copy_from_slice(&DEFAULT_MAGIC.to_le_bytes());
            bytes
        };
        let mut default = question();
        (default[4], default[8], default[12], default[20]) = (2, 1, 3, 5);
        assert_eq!(ioctl(&top, LMV_SET_DEFAULT_STRIPE, &mut default), 0);
        let mut read = question();
        assert_eq!(ioctl(&top, LMV_GETSTRIPE, &mut read), 0);
        assert_eq!(read, default);
        let mut value = [0u8; 100];
        let len = rustix::fs::getxattr(&top, "trusted.dmv", &mut value[..]).expect("there");
        assert_eq!(&value[..len], &default[..]);
        default[12] = 9;
        assert_eq!(ioctl(&top, LMV_SET_DEFAULT_STRIPE, &mut default), libc::EINVAL);
        default[..4].copy_from_slice(&0x0CD2_0CD0_u32.to_le_bytes());
        assert_eq!(ioctl(&top, LMV_SET_DEFAULT_STRIPE, &mut default), libc::EINVAL);
        let mut removal = question();
        removal[8..12].fill(0xff);
        assert_eq!(ioctl(&top, LMV_SET_DEFAULT_STRIPE, &mut removal), 0);
        let mut raw = question();
        raw[16] = 1;
        assert_eq!(ioctl(&top, LMV_GETSTRIPE, &mut raw), libc::ENODATA);
        let mut inherited = question();
        assert_eq!((ioctl(&top, LMV_GETSTRIPE, &mut inherited), inherited[21]), (0, 2), "the root's");
    });
}

#[test]
fn making_a_directory_asks_nothing_more_while_its_parent_is_known() {
    on_each_shape_with_mdts("dirp", 2, |cluster, fsname| {
        let top = cluster.directory("asked");
        cluster.lfs(&["mkdir", "-i", "0", text(&top.join("own"))]).success();
        fs::create_dir_all(top.join("a/b/c")).expect("made");
        let asked = || -> u64 {
            let parameter = format!("mdt.{fsname}-MDT*.md_stats");
            let shown = cluster.lctl(&["get_param", "-n", &parameter]).success().stdout;
            let count = |line: &str| {
                let mut words = line.split_whitespace();
                let is_question =
                    words.next().is_some_and(|word| matches!(word, "getattr" | "getxattr" | "statfs"));
                words.next().filter(|_| is_question).and_then(|count| count.parse::<u64>().ok())
            };
            shown.lines().filter_map(count).sum()
        };
        // With a default of its own, with the root's round-robin, and below that.
        for directory in ["own", "a", "a/b/c"].map(|name| top.join(name)) {
            let counts = |name: &str| {
                for number in 0..20 {
                    fs::create_dir(directory.join(format!("{name}{number}"))).expect("made");
                }
                asked()
            };
            let (before, after) = (counts("before"), counts("after"));
            // The kernel looks each name up once.
            assert!(after < before + 30, "{}: {before} and {after}", directory.display());
        }
    });
}

#[test]
fn another_mount_follows_a_new_default_at_once() {
    on_each_shape_with_mdts("dirj", 2, |cluster, _| {
        if cluster.shape() == Shape::Embedded {
            return;
        }
        let top = cluster.directory("seen");
        cluster.lfs(&["mkdir", "-i", "0", text(&top.join("d"))]).success();
        let other = cluster.add_mount();
        let there = other.join("seen/d");
        for round in 0..10 {
            let mdt = round % 2;
            set_default(cluster, &["-i", &mdt.to_string()], &top.join("d"));
            let path = there.join(format!("n{round}"));
            fs::create_dir(&path).expect("made");
            assert_eq!(mdt_of(&path), mdt, "round {round}");
        }
    });
}

#[test]
fn an_mdt_that_is_away_gets_no_new_directories_until_it_is_back() {
    let options = Options { mdts: 3, osts: 1, fsname: "dirk".into(), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Separate, &options);
    if cluster.is_foreign() {
        return;
    }
    let root = cluster.mount().to_path_buf();
    cluster.lctl(&["set_param", "lmv.dirk-*.qos_maxage=0"]).success();
    let top = root.join("top");
    cluster.lfs(&["mkdir", "-i", "0", text(&top)]).success();
    set_default(&cluster, &["-i", "-1", "--max-inherit-rr", "-1"], &top);
    assert_eq!(spread(&top, "before", 6), [2; 3]);
    cluster.kill("mdt0001");
    let counts = spread(&top, "during", 8);
    assert_eq!(counts, [4, 0, 4]);
    cluster.start_all();
    let mut number = 0;
    wait::until(wait::SOON, "directories go there again", || {
        number += 1;
        (spread(&top, &format!("after{number}-"), 3)[1] > 0).then_some(())
    });
    cluster.stop_and_check();
}

#[test]
fn defaults_outlive_a_restart() {
    on_each_shape_with_mdts("dirl", 2, |cluster, _| {
        if cluster.is_foreign() {
            return;
        }
        let top = cluster.directory("kept");
        set_default(cluster, &["-i", "1", "-X", "5", "-H", "crush"], &top);
        let before = default_of(cluster, &top);
        cluster.stop_and_check();
        cluster.start_all();
        assert_eq!(default_of(cluster, &top), before);
        fs::create_dir(top.join("sub")).expect("made");
        assert_eq!(mdt_of(&top.join("sub")), 1);
    });
}

#[test]
fn rules_for_placement_are_parameters_of_the_mount() {
    on_each_shape_with_mdts("dirm", 2, |cluster, fsname| {
        let get = |leaf: &str| {
            cluster
                .lctl(&["get_param", "-n", &format!("lmv.{fsname}-*.{leaf}")])
                .success()
                .stdout
                .trim()
                .to_owned()
        };
        assert_eq!(["qos_threshold_rr", "qos_prio_free", "qos_maxage"].map(get), ["5%", "90%", "60"]);
        for (setting, shown) in
            [("qos_threshold_rr=17%", "17%"), ("qos_prio_free=50", "50%"), ("qos_maxage=7", "7")]
        {
            cluster.lctl(&["set_param", &format!("lmv.{fsname}-*.{setting}")]).success();
            let (leaf, _) = setting.split_once('=').expect("a setting");
            assert_eq!(get(leaf), shown);
        }
        for wrong in ["qos_threshold_rr=101", "qos_maxage=-1", "qos_prio_free=x"] {
            let outcome = cluster.lctl(&["set_param", &format!("lmv.{fsname}-*.{wrong}")]);
            assert!(outcome.status.code() != Some(0), "{wrong}");
        }
    });
}
