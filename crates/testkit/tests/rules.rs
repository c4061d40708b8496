//! Rules of layouts that Lustre's suites check: output before the first write, and how defaults of
//! directories, parents and the root are set, shown, inherited and removed (`docs/testing-lustre.md`).

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::text;
use nacre_testkit::{Cluster, Shape, on_every_shape};

fn lfs(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.lfs(arguments).success().stdout.trim().to_owned()
}

/// Returns a field of a directory's default, or of a file's layout.
fn field(cluster: &Cluster, option: &str, path: &Path) -> String {
    lfs(cluster, &["getstripe", "-d", option, text(path)])
}

on_every_shape! {
    fn a_file_that_was_never_written_has_no_stripes(cluster) {
        if cluster.is_foreign() {
            return;
        }
        cluster.set_default(&["-d"]);
        let root = cluster.directory("d");
        let path = root.join("node");
        let regular = rustix::fs::FileType::RegularFile;
        rustix::fs::mknodat(rustix::fs::CWD, &path, regular, rustix::fs::Mode::RUSR, 0).expect("mknod");
        let index = || lfs(cluster, &["getstripe", "-i", text(&path)]);
        assert_eq!(index(), "-1");
        assert!(!lfs(cluster, &["getstripe", text(&path)]).contains("obdidx"));
        drop(fs::File::open(&path).expect("open"));
        assert_eq!(index(), "-1", "reading changes nothing");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
        fs::write(&path, "x").expect("write");
        assert_ne!(index(), "-1");
        // A refused argument leaves nothing behind: a plain file is created afterwards as usual.
        let other = root.join("other");
        cluster.lfs(&["setstripe", "-S", "100", text(&other)]).fails_with(4);
        assert!(!other.exists());
        cluster.lfs(&["setstripe", "-i", "77", text(&other)]).fails_with(libc::EINVAL);
        fs::write(&other, "x").expect("write");
        assert_eq!(lfs(cluster, &["getstripe", "-c", text(&other)]), "1");
    }

    fn defaults_of_directories_are_set_shown_inherited_and_removed(cluster) {
        if cluster.is_foreign() {
            return;
        }
        cluster.set_default(&["-d"]);
        let root = cluster.directory("d");
        // Combinations of options, and the layout of a file in the directory.
        let cases: [(&[&str], [&str; 3]); 7] = [
            (&["-c", "2"], ["2", "4194304", "-1"]),
            (&["-c", "-1"], ["-1", "4194304", "-1"]),
            (&["-S", "128K"], ["1", "131072", "-1"]),
            (&["-i", "3"], ["1", "4194304", "3"]),
            (&["-c", "3", "-S", "1M"], ["3", "1048576", "-1"]),
            (&["-c", "2", "-i", "1"], ["2", "4194304", "1"]),
            (&["-S", "64K", "-i", "2", "-c", "4"], ["4", "65536", "2"]),
        ];
        for (place, (options, expected)) in cases.iter().enumerate() {
            let directory = root.join(place.to_string());
            fs::create_dir(&directory).expect("mkdir");
            lfs(cluster, &[&["setstripe"][..], options, &[text(&directory)]].concat());
            let [count, size, index] = ["-c", "-S", "-i"].map(|option| field(cluster, option, &directory));
            assert_eq!([count.as_str(), &size, &index], *expected, "{options:?}");
            // Subdirectories inherit the default, and keep it when the parent's is removed.
            let inner = directory.join("inner");
            fs::create_dir(&inner).expect("mkdir");
            lfs(cluster, &["setstripe", "-d", text(&directory)]);
            for (option, expected) in [("-c", expected[0]), ("-S", expected[1]), ("-i", expected[2])] {
                assert_eq!(field(cluster, option, &inner), expected, "{options:?} {option}");
            }
            let file = inner.join("file");
            fs::write(&file, "x").expect("write");
            let count = if expected[0] == "-1" { "4" } else { expected[0] };
            assert_eq!(lfs(cluster, &["getstripe", "-c", text(&file)]), count, "{options:?}");
            assert_eq!(lfs(cluster, &["getstripe", "-S", text(&file)]), expected[1], "{options:?}");
            if expected[2] != "-1" {
                assert_eq!(lfs(cluster, &["getstripe", "-i", text(&file)]), expected[2], "{options:?}");
            }
            // Without a default the directory shows the file system's, and with `--raw` that it has none.
            assert_eq!(field(cluster, "-c", &directory), "1");
            let raw = |option| lfs(cluster, &["getstripe", "-d", "--raw", option, text(&directory)]);
            assert_eq!(["-c", "-S", "-i"].map(raw), ["0", "0", "-1"]);
        }
        // A layout without any request is the same as none.
        lfs(cluster, &["setstripe", "-c", "2", text(&root)]);
        lfs(cluster, &["setstripe", "-c", "0", "-S", "0", "-i", "-1", text(&root)]);
        assert_eq!(field(cluster, "-c", &root), "1");
    }
}

fn with_own_root(shape: Shape, fsname: &str, case: fn(&mut Cluster)) {
    if !have(&["/dev/fuse"]) || !have_root() {
        return;
    }
    // All tests would share the default of the root, so this one has a file system of its own.
    let fsname = fsname.to_owned();
    let mut cluster = Cluster::start_with(shape, &Options { fsname, ..Options::default() });
    if !cluster.is_foreign() {
        case(&mut cluster);
        cluster.stop_and_check();
    }
}

fn parent_beats_root(cluster: &mut Cluster) {
    let root = cluster.mount().to_owned();
    let before = cluster.directory("before");
    lfs(cluster, &["setstripe", "-c", "3", "-S", "128K", text(&root)]);
    let after = cluster.directory("after");
    // The root's default applies to directories without one, existing ones too.
    for directory in [&before, &after] {
        assert_eq!(
            (field(cluster, "-c", directory), field(cluster, "-S", directory)),
            ("3".into(), "131072".into())
        );
        fs::write(directory.join("f"), "x").expect("write");
        assert_eq!(lfs(cluster, &["getstripe", "-c", text(&directory.join("f"))]), "3");
    }
    lfs(cluster, &["setstripe", "-c", "2", text(&after)]);
    fs::write(after.join("g"), "x").expect("write");
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&after.join("g"))]), "2");
    // It was not copied into them: they follow its changes.
    lfs(cluster, &["setstripe", "-c", "4", text(&root)]);
    fs::create_dir(before.join("inner")).expect("mkdir");
    fs::write(before.join("inner/f"), "x").expect("write");
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&before.join("inner/f"))]), "4");
    lfs(cluster, &["setstripe", "-d", text(&root)]);
    assert_eq!((field(cluster, "-c", &before), field(cluster, "-c", &after)), ("1".into(), "2".into()));
}

fn users_and_root(cluster: &mut Cluster) {
    cluster.set_default(&["-d"]);
    let root = cluster.mount().to_owned();
    let own = cluster.directory("own");
    for directory in [&root, &own] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
    let set = |path: &Path| {
        let mut requested = [0u8; 32];
        requested[..8].copy_from_slice(&[0xd0, 0x0b, 0xd1, 0x0b, 1, 0, 0, 0]);
        (requested[28], requested[30], requested[31]) = (2, 0xff, 0xff);
        rustix::fs::setxattr(path, "lustre.lov", &requested, rustix::fs::XattrFlags::empty())
    };
    Identity::user(1000).act(|| {
        assert_eq!(set(&root), Err(rustix::io::Errno::ACCESS));
        assert_eq!(set(&own), Err(rustix::io::Errno::ACCESS));
    });
    assert_eq!(field(cluster, "-c", &root), "1");
    chown(&own, Some(1000), Some(1000)).expect("chown");
    Identity::user(1000).act(|| set(&own).expect("one's own directory"));
    assert_eq!(field(cluster, "-c", &own), "2");
}

macro_rules! with_own_root {
    ($($name:ident: $case:ident, $fsname:literal;)*) => {
        mod own_root_embedded {
            $(#[test] fn $name() { super::with_own_root(super::Shape::Embedded, concat!($fsname, "e"), super::$case); })*
        }
        mod own_root_separate {
            $(#[test] fn $name() { super::with_own_root(super::Shape::Separate, concat!($fsname, "s"), super::$case); })*
        }
    };
}

with_own_root! {
    a_parents_default_beats_the_roots: parent_beats_root, "rule1";
    users_do_not_change_the_roots_default: users_and_root, "rule2";
}
