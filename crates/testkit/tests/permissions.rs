//! Permissions and attributes.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, lchown, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use nacre_testkit::cluster::Options;
use nacre_testkit::identity::Identity;
use nacre_testkit::requirements::{have, have_root};
use nacre_testkit::{Cluster, Shape, errno, on_every_shape, program};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, Timestamps, XattrFlags, mknodat};

const ALICE: u32 = 20_001;
const BOB: u32 = 20_002;
const TEAM: u32 = 30_000;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("stat").mode() & 0o7777
}

fn alice() -> Identity {
    Identity::user(ALICE)
}

fn bob() -> Identity {
    Identity::user(BOB)
}

on_every_shape! {
    fn mode_bits_decide_by_owner_group_and_others(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        chown(&path, Some(ALICE), Some(TEAM)).expect("chown");
        let member = bob().with_groups(&[TEAM]);
        let can = |who: &Identity, path: &Path| {
            who.act(|| (File::open(path).is_ok(), File::options().write(true).open(path).is_ok()))
        };
        set_mode(&path, 0o640);
        assert_eq!(can(&alice(), &path), (true, true));
        assert_eq!(can(&member, &path), (true, false));
        assert_eq!(can(&bob(), &path), (false, false));
        set_mode(&path, 0o047);
        assert_eq!(can(&alice(), &path), (false, false), "the owner's bits count for the owner alone");
        assert_eq!(can(&member, &path), (true, false), "a supplementary group counts");
        assert_eq!(can(&bob(), &path), (true, true));
        set_mode(&path, 0o000);
        assert!(File::open(&path).is_ok(), "root reads everything");
        assert_eq!(bob().act(|| errno(File::open(&path))), libc::EACCES);
    }

    fn directories_guard_what_is_in_them(cluster) {
        let root = cluster.directory("d");
        let private = root.join("private");
        fs::create_dir(&private).expect("mkdir");
        fs::write(private.join("file"), "text").expect("write");
        set_mode(&private.join("file"), 0o666);
        chown(&private, Some(ALICE), Some(ALICE)).expect("chown");
        set_mode(&private, 0o700);
        fs::read(private.join("file")).expect("root has seen it, so the kernel may have it cached");
        assert_eq!(bob().act(|| errno(fs::read(private.join("file")))), libc::EACCES);
        assert_eq!(bob().act(|| errno(fs::read_dir(&private).map(drop))), libc::EACCES);
        set_mode(&private, 0o711);
        assert!(bob().act(|| fs::read(private.join("file")).is_ok()), "search is enough for a known name");
        assert_eq!(bob().act(|| errno(fs::read_dir(&private).map(drop))), libc::EACCES);
        set_mode(&private, 0o700);
        assert_eq!(bob().act(|| errno(fs::read(private.join("file")))), libc::EACCES, "taken away again");
        set_mode(&private, 0o755);
        assert_eq!(bob().act(|| errno(File::create_new(private.join("new")))), libc::EACCES);
        assert_eq!(bob().act(|| errno(fs::remove_file(private.join("file")))), libc::EACCES);
        assert_eq!(bob().act(|| errno(fs::rename(private.join("file"), root.join("x")))), libc::EACCES);
        // A file that was reachable, and cached, under its old name is not reachable in its new place.
        let moved = root.join("moved");
        fs::write(&moved, b"seen").expect("write");
        assert!(bob().act(|| fs::metadata(&moved).is_ok()));
        set_mode(&private, 0o700);
        fs::rename(&moved, private.join("moved")).expect("rename");
        assert_eq!(bob().act(|| errno(fs::metadata(private.join("moved")))), libc::EACCES);
        assert!(alice().act(|| fs::remove_file(private.join("file")).is_ok()), "the directory decides, not the file");
    }

    fn search_rights_are_checked_along_the_whole_path(cluster) {
        let root = cluster.directory("d");
        fs::create_dir_all(root.join("a/b/c")).expect("mkdir");
        fs::write(root.join("a/b/c/file"), "text").expect("write");
        for path in ["a", "a/b", "a/b/c"] {
            set_mode(&root.join(path), 0o755);
        }
        set_mode(&root.join("a/b/c/file"), 0o644);
        assert!(bob().act(|| fs::read(root.join("a/b/c/file")).is_ok()));
        set_mode(&root.join("a"), 0o700);
        assert_eq!(bob().act(|| errno(fs::read(root.join("a/b/c/file")))), libc::EACCES);
        assert_eq!(bob().act(|| errno(fs::metadata(root.join("a/b")))), libc::EACCES);
        chown(root.join("a"), None, Some(TEAM)).expect("chgrp");
        set_mode(&root.join("a"), 0o750);
        let member = bob().with_groups(&[TEAM]);
        assert!(member.act(|| fs::read(root.join("a/b/c/file")).is_ok()));
        assert_eq!(bob().act(|| errno(fs::read(root.join("a/b/c/file")))), libc::EACCES);
    }

    fn the_sticky_bit_protects_the_files_of_others(cluster) {
        let root = cluster.directory("d");
        set_mode(&root, 0o1777);
        alice().act(|| fs::write(root.join("hers"), "text").expect("write"));
        assert_eq!(fs::metadata(root.join("hers")).expect("stat").uid(), ALICE);
        assert_eq!(bob().act(|| errno(fs::remove_file(root.join("hers")))), libc::EPERM);
        assert_eq!(bob().act(|| errno(fs::rename(root.join("hers"), root.join("x")))), libc::EPERM);
        bob().act(|| fs::write(root.join("his"), "text").expect("write"));
        assert_eq!(bob().act(|| errno(fs::rename(root.join("his"), root.join("hers")))), libc::EPERM);
        alice().act(|| fs::remove_file(root.join("hers")).expect("her own"));
    }

    fn only_owners_change_modes_and_only_root_changes_owners(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        alice().act(|| fs::write(&path, "text").expect("write"));
        assert_eq!(bob().act(|| errno(fs::set_permissions(&path, Permissions::from_mode(0o777)))), libc::EPERM);
        assert_eq!(alice().act(|| errno(chown(&path, Some(BOB), None))), libc::EPERM);
        assert_eq!(alice().act(|| errno(chown(&path, None, Some(TEAM)))), libc::EPERM);
        let member = alice().with_groups(&[TEAM]);
        member.act(|| chown(&path, None, Some(TEAM)).expect("to a group of her own"));
        assert_eq!(fs::metadata(&path).expect("stat").gid(), TEAM);
        set_mode(&path, 0o6755);
        member.act(|| fs::write(&path, "more").expect("write"));
        assert_eq!(mode(&path), 0o755, "writing takes set-id bits away");
        set_mode(&path, 0o6755);
        alice().act(|| fs::set_permissions(&path, Permissions::from_mode(0o2755)).expect("her own file"));
        assert_eq!(mode(&path), 0o755, "a group that is not her own cannot be set-id");
        set_mode(&path, 0o4755);
        chown(&path, Some(BOB), None).expect("chown");
        assert_eq!(mode(&path), 0o755, "a new owner takes set-id bits away");
        symlink("file", root.join("link")).expect("symlink");
        lchown(root.join("link"), Some(ALICE), Some(ALICE)).expect("lchown");
        assert_eq!(fs::symlink_metadata(root.join("link")).expect("stat").uid(), ALICE);
        assert_eq!(fs::metadata(&path).expect("stat").uid(), BOB);
    }

    fn a_change_of_owner_that_names_nobody_is_a_change_all_the_same(cluster) {
        let root = cluster.directory("d");
        for name in ["file", "socket"] {
            let path = root.join(name);
            let kind = if name == "file" { FileType::RegularFile } else { FileType::Socket };
            mknodat(CWD, &path, kind, Mode::from_raw_mode(0o755), 0).expect("mknod");
            chown(&path, Some(ALICE), Some(ALICE)).expect("chown");
            let changed = || fs::symlink_metadata(&path).map(|m| (m.ctime(), m.ctime_nsec())).expect("stat");
            let before = changed();
            bob().act(|| chown(&path, None, None).expect("anybody may change nothing"));
            assert!(changed() > before, "{name}");
            set_mode(&path, 0o6755);
            assert_eq!(bob().act(|| errno(chown(&path, None, None))), libc::EPERM, "{name}");
            assert_eq!(mode(&path), 0o6755, "{name}");
            alice().act(|| chown(&path, None, None).expect("her own file"));
            assert_eq!(mode(&path), 0o755, "{name}: it takes set-id bits away");
        }
        set_mode(&root, 0o2755);
        chown(&root, None, None).expect("chown");
        assert_eq!(mode(&root), 0o2755, "a directory keeps its bits");
    }

    fn who_cannot_read_and_write_a_file_gives_it_no_names(cluster) {
        if fs::read("/proc/sys/fs/protected_hardlinks").is_ok_and(|text| text.first() != Some(&b'1')) {
            return;
        }
        let root = cluster.directory("d");
        set_mode(&root, 0o1777);
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        chown(&path, Some(ALICE), Some(TEAM)).expect("chown");
        for (bits, who, allowed) in [
            (0o600, bob(), false),
            (0o644, bob(), false),
            (0o660, bob(), false),
            (0o660, bob().with_groups(&[TEAM]), true),
            (0o666, bob(), true),
            (0o000, alice(), true),
        ] {
            set_mode(&path, bits);
            let name = root.join("another");
            match who.act(|| fs::hard_link(&path, &name)) {
                outcome if !allowed => assert_eq!(errno(outcome), libc::EPERM, "{bits:o}"),
                outcome => {
                    outcome.unwrap_or_else(|error| panic!("{bits:o}: {error}"));
                    fs::remove_file(&name).expect("unlink");
                }
            }
            assert_eq!(fs::metadata(&path).expect("stat").nlink(), 1, "{bits:o}");
        }
        set_mode(&path, 0o600);
        fs::hard_link(&path, root.join("another")).expect("root may");
    }

    fn reads_through_a_descriptor_with_noatime_are_no_accesses(cluster) {
        let path = cluster.directory("d").join("file");
        fs::write(&path, "text").expect("write");
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let accessed = || fs::metadata(&path).expect("stat").accessed().expect("a time");
        let set = || File::open(&path).and_then(|file| file.set_times(fs::FileTimes::new().set_accessed(long_ago)));
        set().expect("utimensat");
        let mut text = String::new();
        let mut quiet = File::options().read(true).custom_flags(libc::O_NOATIME).open(&path).expect("open");
        quiet.read_to_string(&mut text).expect("read");
        assert_eq!((text.as_str(), accessed()), ("text", long_ago));
        drop(quiet);
        assert_eq!(accessed(), long_ago);
        // The kernel does not report reads from its page cache: this one must reach the client.
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
        rustix::io::pread(&direct, &mut vec![0u8; 4096][..], 0).expect("read");
        drop(direct);
        assert!(accessed() > long_ago, "others count");
    }

    fn new_files_take_umask_and_set_gid_directories_pass_their_group_on(cluster) {
        let root = cluster.directory("d");
        let shared = root.join("shared");
        fs::create_dir(&shared).expect("mkdir");
        chown(&shared, Some(ALICE), Some(TEAM)).expect("chown");
        set_mode(&shared, 0o2777);
        let script = "umask 027; mkdir \"$1/sub\"; touch \"$1/sub/file\" \"$1/file\"";
        program::shell(Path::new("/"), script, [&shared]).success();
        assert_eq!(mode(&shared.join("file")), 0o640);
        assert_eq!(mode(&shared.join("sub")), 0o2750);
        for path in ["file", "sub", "sub/file"] {
            assert_eq!(fs::metadata(shared.join(path)).expect("stat").gid(), TEAM, "{path}");
        }
    }

    fn access_control_lists_decide_inherit_and_mask(cluster) {
        if !have(&["setfacl", "getfacl"]) {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        set_mode(&path, 0o600);
        assert_eq!(bob().act(|| errno(File::open(&path))), libc::EACCES);
        let setfacl = |arguments: &[&str], path: &Path| {
            let path = path.to_str().expect("UTF-8");
            program::run("setfacl", arguments.iter().copied().chain([path])).success();
        };
        let getfacl = |path: &Path| {
            let path = path.to_str().expect("UTF-8");
            program::run("getfacl", ["-cpnE", path]).success().stdout.trim().to_owned()
        };
        setfacl(&["-m", "u:20002:r"], &path);
        assert!(bob().act(|| File::open(&path).is_ok()));
        assert_eq!(bob().act(|| errno(File::options().write(true).open(&path))), libc::EACCES);
        assert_eq!(getfacl(&path), "user::rw-\nuser:20002:r--\ngroup::---\nmask::r--\nother::---");
        assert_eq!(mode(&path), 0o640, "the mask shows as the group's bits");
        set_mode(&path, 0o600);
        assert_eq!(bob().act(|| errno(File::open(&path))), libc::EACCES, "chmod sets the mask");
        setfacl(&["-b"], &path);
        assert_eq!(getfacl(&path), "user::rw-\ngroup::---\nother::---");
        let shared = root.join("shared");
        fs::create_dir(&shared).expect("mkdir");
        setfacl(&["-m", "d:u:20002:rwx,d:g::r-x,d:o::-"], &shared);
        program::shell(&shared, "umask 077; touch file; mkdir sub; touch sub/deep", [""; 0]).success();
        let expected = "user::rw-\nuser:20002:rwx\ngroup::r-x\nmask::rw-\nother::---";
        assert_eq!(getfacl(&shared.join("file")), expected, "a default list replaces the umask");
        assert_eq!(getfacl(&shared.join("sub/deep")), expected, "directories pass it on");
        assert!(getfacl(&shared.join("sub")).contains("default:user:20002:rwx"));
        setfacl(&["-m", "g:30000:rx"], &shared);
        set_mode(&shared, 0o750);
        assert!(bob().with_groups(&[TEAM]).act(|| fs::read_dir(&shared).is_ok()));
        assert_eq!(bob().act(|| errno(fs::read_dir(&shared).map(drop))), libc::EACCES);
    }

    fn extended_attributes_are_kept_listed_and_removed(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
        let get = |name: &str| {
            let mut buffer = vec![0u8; 65536];
            rustix::fs::getxattr(&path, name, &mut buffer).map(|length| buffer[..length].to_vec())
        };
        set("user.colour", b"mother of pearl", XattrFlags::CREATE).expect("set");
        set("user.empty", b"", XattrFlags::empty()).expect("set");
        set("trusted.secret", b"\0\xff", XattrFlags::empty()).expect("set");
        set("security.label", b"x", XattrFlags::empty()).expect("set");
        assert_eq!(errno(set("user.colour", b"x", XattrFlags::CREATE)), libc::EEXIST);
        assert_eq!(errno(set("user.none", b"x", XattrFlags::REPLACE)), libc::ENODATA);
        assert_eq!(get("user.colour").expect("get"), b"mother of pearl");
        assert_eq!(get("user.empty").expect("get"), b"");
        assert_eq!(get("trusted.secret").expect("get"), b"\0\xff");
        let mut small = [0u8; 3];
        assert_eq!(errno(rustix::fs::getxattr(&path, "user.colour", &mut small)), libc::ERANGE);
        assert_eq!(errno(get("user.none")), libc::ENODATA);
        let mut list = vec![0u8; 4096];
        let length = rustix::fs::listxattr(&path, &mut list).expect("list");
        let text = String::from_utf8(list[..length].to_vec()).expect("ASCII");
        let names: std::collections::BTreeSet<&str> = text.split_terminator('\0').collect();
        for name in ["user.colour", "user.empty", "trusted.secret"] {
            assert!(names.contains(name), "{names:?}");
        }
        rustix::fs::removexattr(&path, "user.colour").expect("remove");
        assert_eq!(errno(get("user.colour")), libc::ENODATA);
        assert_eq!(errno(rustix::fs::removexattr(&path, "user.colour")), libc::ENODATA);
        let big = vec![7u8; 3000];
        set("user.big", &big, XattrFlags::empty()).expect("3000 bytes");
        assert_eq!(get("user.big").expect("get"), big);
        assert_eq!(bob().act(|| errno(set("trusted.x", b"", XattrFlags::empty()))), libc::EPERM);
        set_mode(&path, 0o644);
        assert_eq!(bob().act(|| errno(set("user.x", b"", XattrFlags::empty()))), libc::EACCES);
        assert_eq!(bob().act(|| get("user.big").map(|value| value.len())).expect("readable"), 3000);
    }

    fn times_are_set_kept_and_moved_by_the_right_operations(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        let file = File::options().write(true).open(&path).expect("open");
        let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
        let before = fs::metadata(&path).expect("stat");
        file.set_times(fs::FileTimes::new().set_accessed(old).set_modified(old)).expect("utimens");
        let metadata = fs::metadata(&path).expect("stat");
        assert_eq!(metadata.modified().expect("mtime"), old);
        assert_eq!(metadata.accessed().expect("atime"), old);
        assert!((metadata.ctime(), metadata.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
        (&file).write_all(b"x").expect("write");
        assert!(fs::metadata(&path).expect("stat").modified().expect("mtime") > old, "writing moves mtime");
        assert_eq!(fs::metadata(&path).expect("stat").accessed().expect("atime"), old);
        let directory = fs::metadata(&root).expect("stat");
        let moved = |before: &fs::Metadata| {
            let now = fs::metadata(&root).expect("stat");
            (now.mtime(), now.mtime_nsec()) > (before.mtime(), before.mtime_nsec())
        };
        fs::hard_link(&path, root.join("second")).expect("link");
        assert!(moved(&directory), "a new name moves the directory's mtime");
        let directory = fs::metadata(&root).expect("stat");
        fs::rename(root.join("second"), root.join("third")).expect("rename");
        assert!(moved(&directory));
        let far = 0x7fff_ffff_i64 + 100_000_000;
        let times = Timestamps {
            last_access: rustix::fs::Timespec { tv_sec: -1_000, tv_nsec: 5 },
            last_modification: rustix::fs::Timespec { tv_sec: far, tv_nsec: 999_999_999 },
        };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).expect("utimensat");
        let metadata = fs::metadata(&path).expect("stat");
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (-1_000, 5), "before 1970");
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (far, 999_999_999), "after 2038");
        set_mode(&path, 0o644);
        assert_eq!(bob().act(|| errno(rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()))), libc::EPERM);
    }

    fn statx_tells_the_time_of_birth(cluster) {
        let root = cluster.directory("d");
        let before = SystemTime::now() - Duration::from_secs(2);
        fs::write(root.join("file"), "text").expect("write");
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let path = root.join("file");
        let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).expect("statx");
        assert!(StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME), "birth time is known");
        let start = before.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs() as i64;
        assert!(stat.stx_btime.tv_sec >= start);
        let birth = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
        fs::write(&path, "changed").expect("write");
        let stat = rustix::fs::statx(CWD, &path, AtFlags::empty(), wanted).expect("statx");
        assert_eq!((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec), birth);
    }

    fn the_file_system_tells_its_space_and_limits(cluster) {
        let root = cluster.directory("d");
        let before = rustix::fs::statvfs(&root).expect("statvfs");
        assert!(before.f_blocks > 0 && before.f_bfree > 0 && before.f_bavail > 0 && before.f_files > 0);
        assert_eq!(before.f_namemax, 255);
        fs::write(root.join("big"), vec![1u8; 32 << 20]).expect("write");
        File::open(root.join("big")).expect("open").sync_all().expect("fsync");
        let metadata = fs::metadata(root.join("big")).expect("stat");
        assert_eq!(metadata.size(), 32 << 20);
        assert!(metadata.blocks() * 512 >= 32 << 20, "data takes blocks: {}", metadata.blocks());
        let sparse = File::create(root.join("sparse")).expect("create");
        sparse.set_len(1 << 30).expect("truncate");
        assert_eq!(fs::metadata(root.join("sparse")).expect("stat").size(), 1 << 30);
        assert!(fs::metadata(root.join("sparse")).expect("stat").blocks() < 1000, "holes take none");
    }

    fn access_and_exec_obey_the_bits(cluster) {
        let root = cluster.directory("d");
        let path = root.join("script");
        // By processes of their own: any process that another test is just forking would have a copy of a
        // descriptor that is open for writing, and the file could not be executed meanwhile.
        program::shell(&root, r"printf '#!/bin/sh\necho ran as $(id -u)\n' >script; cp /bin/true true", [""; 0]).success();
        set_mode(&path, 0o644);
        let mut command = std::process::Command::new(&path);
        assert_eq!(errno(command.status().map(|status| status.code())), libc::EACCES, "no x bit, not even for root");
        set_mode(&path, 0o755);
        let outcome = program::run(&path, [""; 0]).success();
        assert_eq!(outcome.stdout, "ran as 0\n");
        set_mode(&path, 0o700);
        let name = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        let may = |what| {
            // SAFETY: `name` ends in a zero byte and lives across the call.
            bob().act(|| unsafe { libc::access(name.as_ptr(), what) } == 0)
        };
        assert!(may(libc::F_OK) && !may(libc::R_OK) && !may(libc::X_OK));
        set_mode(&path, 0o705);
        assert!(may(libc::R_OK | libc::X_OK) && !may(libc::W_OK));
        set_mode(&root.join("true"), 0o755);
        program::run(root.join("true"), [""; 0]).success();
    }

    fn an_open_file_keeps_its_rights_when_the_mode_changes(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, "text").expect("write");
        set_mode(&path, 0o644);
        let mut file = bob().act(|| File::open(&path)).expect("open");
        set_mode(&path, 0o000);
        let mut text = String::new();
        bob().act(|| file.read_to_string(&mut text)).expect("what was opened can be read");
        assert_eq!(text, "text");
        assert_eq!(bob().act(|| errno(File::open(&path))), libc::EACCES);
        let created = bob().act(|| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR;
            rustix::fs::openat(CWD, root.join("new"), flags, Mode::empty()).map(File::from)
        });
        let mut created = created.expect("mode 000 binds the next open, not this one");
        bob().act(|| created.write_all(b"written")).expect("write");
    }
}

fn make_node(path: &Path, kind: FileType, device: u64) {
    mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device).expect("mknod");
}

#[test]
fn device_nodes_do_not_open_unless_the_mount_allows_it() {
    if !have_root() {
        return;
    }
    for (option, expected) in [(None, libc::EACCES), (Some("dev"), 0)] {
        let options = Options { mount_options: option.map(str::to_owned), ..Options::default() };
        let mut cluster = Cluster::start_with(Shape::Embedded, &options);
        let node = cluster.directory("d").join("null");
        make_node(&node, FileType::CharacterDevice, rustix::fs::makedev(1, 3));
        let opened = File::open(&node).map(drop);
        assert_eq!(opened.map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0), expected);
        cluster.stop_and_check();
    }
}

#[test]
fn with_default_permissions_special_files_and_their_acls_are_checked_too() {
    if !have_root() || !have(&["setfacl"]) {
        return;
    }
    let options = Options { mount_options: Some("default_permissions,dev".to_owned()), ..Options::default() };
    let mut cluster = Cluster::start_with(Shape::Embedded, &options);
    let root = cluster.directory("d");
    let (fifo, null) = (root.join("fifo"), root.join("null"));
    make_node(&fifo, FileType::Fifo, 0);
    make_node(&null, FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    let reads = |who: &Identity, path: &Path| {
        who.act(|| rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).is_ok())
    };
    for path in [&fifo, &null] {
        assert!(!reads(&bob(), path), "{}", path.display());
        let words = ["-m", "u:20002:r"].map(std::ffi::OsStr::new).into_iter().chain([path.as_os_str()]);
        program::run("setfacl", words).success();
        assert!(reads(&bob(), path), "{}", path.display());
        assert!(!reads(&alice(), path), "{}", path.display());
    }
    fs::write(root.join("file"), "text").expect("write");
    set_mode(&root.join("file"), 0o640);
    assert_eq!(bob().act(|| errno(fs::read(root.join("file")))), libc::EACCES);
    cluster.stop_and_check();
}
