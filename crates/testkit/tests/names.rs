//! Names, directories and links, as a program sees them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nacre_testkit::{errno, on_every_shape, program};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, mknodat, openat, renameat_with};

fn names(directory: &Path) -> BTreeSet<Vec<u8>> {
    let entries = fs::read_dir(directory).expect("directory");
    entries.map(|entry| entry.expect("entry").file_name().as_bytes().to_vec()).collect()
}

fn inode(path: &Path) -> u64 {
    fs::symlink_metadata(path).expect("stat").ino()
}

on_every_shape! {
    fn files_and_directories_come_and_go(cluster) {
        let root = cluster.directory("d");
        fs::create_dir(root.join("sub")).expect("mkdir");
        fs::write(root.join("sub/file"), "text").expect("write");
        assert_eq!(fs::read(root.join("sub/file")).expect("read"), b"text");
        assert_eq!(errno(fs::create_dir(root.join("sub"))), libc::EEXIST);
        assert_eq!(errno(File::create_new(root.join("sub/file"))), libc::EEXIST);
        assert_eq!(errno(fs::remove_dir(root.join("sub"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::remove_file(root.join("sub"))), libc::EISDIR);
        assert_eq!(errno(fs::remove_dir(root.join("sub/file"))), libc::ENOTDIR);
        assert_eq!(errno(fs::metadata(root.join("sub/file/x"))), libc::ENOTDIR);
        assert_eq!(errno(fs::read(root.join("none"))), libc::ENOENT);
        fs::remove_file(root.join("sub/file")).expect("unlink");
        fs::remove_dir(root.join("sub")).expect("rmdir");
        assert!(names(&root).is_empty());
        assert_eq!(errno(fs::metadata(root.join("sub"))), libc::ENOENT);
    }

    fn link_counts_follow_names_and_subdirectories(cluster) {
        let root = cluster.directory("d");
        assert_eq!(fs::metadata(&root).expect("stat").nlink(), 2);
        fs::create_dir(root.join("a")).expect("mkdir");
        fs::create_dir(root.join("b")).expect("mkdir");
        assert_eq!(fs::metadata(&root).expect("stat").nlink(), 4);
        fs::rename(root.join("a"), root.join("b/a")).expect("rename");
        assert_eq!(fs::metadata(&root).expect("stat").nlink(), 3);
        assert_eq!(fs::metadata(root.join("b")).expect("stat").nlink(), 3);
        File::create(root.join("f")).expect("create");
        fs::hard_link(root.join("f"), root.join("b/g")).expect("link");
        assert_eq!(fs::metadata(root.join("f")).expect("stat").nlink(), 2);
        assert_eq!(inode(&root.join("f")), inode(&root.join("b/g")));
        fs::remove_file(root.join("f")).expect("unlink");
        assert_eq!(fs::metadata(root.join("b/g")).expect("stat").nlink(), 1);
        assert_eq!(errno(fs::hard_link(root.join("b"), root.join("c"))), libc::EPERM);
    }

    fn names_may_have_255_bytes_of_anything_but_slash_and_zero(cluster) {
        let root = cluster.directory("d");
        let long = "n".repeat(255);
        fs::write(root.join(&long), "x").expect("255 bytes are a name");
        assert_eq!(errno(fs::write(root.join("n".repeat(256)), "x")), libc::ENAMETOOLONG);
        assert_eq!(errno(fs::metadata(root.join("n".repeat(256)))), libc::ENAMETOOLONG);
        assert_eq!(errno(fs::create_dir(root.join("n".repeat(256)))), libc::ENAMETOOLONG);
        let odd: Vec<u8> = (1..=255u8).filter(|&byte| byte != b'/').collect();
        assert_eq!(odd.len(), 254);
        fs::write(root.join(OsStr::from_bytes(&odd)), "odd").expect("any bytes are a name");
        fs::create_dir(root.join(OsStr::from_bytes(b"\xff\xfe"))).expect("no UTF-8");
        assert_eq!(fs::read(root.join(OsStr::from_bytes(&odd))).expect("read"), b"odd");
        let expected = BTreeSet::from([long.clone().into_bytes(), odd.clone(), b"\xff\xfe".to_vec()]);
        assert_eq!(names(&root), expected);
        fs::rename(root.join(OsStr::from_bytes(&odd)), root.join(OsStr::from_bytes(b"\xff\xfe/\xf0"))).expect("mv");
    }

    fn symbolic_links_keep_any_target(cluster) {
        let root = cluster.directory("d");
        let target = "t/".repeat(2047);
        symlink(&target, root.join("long")).expect("4094 bytes");
        assert_eq!(fs::read_link(root.join("long")).expect("readlink"), Path::new(&target));
        assert_eq!(fs::symlink_metadata(root.join("long")).expect("stat").size(), 4094);
        symlink("loop", root.join("loop")).expect("symlink");
        assert_eq!(errno(fs::metadata(root.join("loop"))), libc::ELOOP);
        fs::write(root.join("file"), "text").expect("write");
        symlink("file", root.join("link")).expect("symlink");
        assert_eq!(fs::read(root.join("link")).expect("read"), b"text");
        fs::remove_file(root.join("link")).expect("unlink");
        assert!(root.join("file").exists());
        symlink(OsStr::from_bytes(b"\xff"), root.join("odd")).expect("symlink");
        assert_eq!(fs::read_link(root.join("odd")).expect("readlink").as_os_str().as_bytes(), b"\xff");
    }

    fn special_files_have_their_type_and_device(cluster) {
        let root = cluster.directory("d");
        let make = |name: &str, kind, device| {
            mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(0o640), device).expect("mknod");
            fs::symlink_metadata(root.join(name)).expect("stat")
        };
        assert!(make("fifo", FileType::Fifo, 0).file_type().is_fifo());
        assert!(make("socket", FileType::Socket, 0).file_type().is_socket());
        let device = rustix::fs::makedev(1, 3);
        let null = make("null", FileType::CharacterDevice, device);
        assert!(null.file_type().is_char_device());
        assert_eq!(null.rdev(), device);
        assert!(make("block", FileType::BlockDevice, rustix::fs::makedev(7, 250)).file_type().is_block_device());
        assert!(make("file", FileType::RegularFile, 0).is_file());
        let path = root.join("fifo");
        let writer = std::thread::spawn(move || fs::write(path, "through the pipe"));
        assert_eq!(fs::read(root.join("fifo")).expect("read"), b"through the pipe");
        writer.join().expect("no panic").expect("write");
        let listener = std::os::unix::net::UnixListener::bind(root.join("listener")).expect("bind");
        std::os::unix::net::UnixStream::connect(root.join("listener")).expect("connect");
        drop(listener);
    }

    fn an_unlinked_file_lives_while_it_is_open(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let mut file = File::create_new(&path).expect("create");
        file.write_all(&[1; 100_000]).expect("write");
        let mut second = File::open(&path).expect("open");
        fs::remove_file(&path).expect("unlink");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        fs::write(&path, "another").expect("the name is free");
        file.write_all(&[2; 100_000]).expect("write on");
        drop(file);
        let mut content = Vec::new();
        second.read_to_end(&mut content).expect("read");
        assert_eq!(content.len(), 200_000);
        assert!(content[..100_000].iter().all(|&byte| byte == 1) && content[100_000..].iter().all(|&b| b == 2));
        second.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("fchmod");
        assert_eq!(fs::read(&path).expect("read"), b"another");
    }

    fn a_removed_directory_that_is_open_is_empty_and_stays_so(cluster) {
        let root = cluster.directory("d");
        for (name, replaced) in [("gone", false), ("replaced", true)] {
            fs::create_dir(root.join(name)).expect("mkdir");
            let directory = File::open(root.join(name)).expect("open");
            if replaced {
                fs::create_dir(root.join("other")).expect("mkdir");
                fs::rename(root.join("other"), root.join(name)).expect("rename");
            } else {
                fs::remove_dir(root.join(name)).expect("rmdir");
            }
            assert_eq!(directory.metadata().expect("fstat").nlink(), 0);
            let result = openat(&directory, "new", OFlags::CREATE | OFlags::WRONLY, Mode::from_raw_mode(0o600));
            assert_eq!(errno(result.map(drop)), libc::ENOENT);
            let result = rustix::fs::unlinkat(&directory, "new", AtFlags::REMOVEDIR);
            assert_eq!(errno(result), libc::ENOENT);
            let mut entries = rustix::fs::Dir::read_from(&directory).expect("a directory");
            assert!(entries.next().is_none_or(|entry| entry.is_err_and(|error| error == rustix::io::Errno::NOENT)));
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700)).expect("fchmod");
            directory.set_modified(std::time::UNIX_EPOCH).expect("futimens");
            let found = directory.metadata().expect("fstat");
            assert_eq!((found.mode() & 0o7777, found.nlink(), found.mtime()), (0o700, 0, 0));
            directory.sync_all().expect("fsync");
        }
    }

    fn what_is_only_held_by_a_working_directory_or_a_path_descriptor_can_be_asked(cluster) {
        let root = cluster.directory("d");
        fs::create_dir(root.join("here")).expect("mkdir");
        let script = "cd \"$1\"; rmdir \"$1\"; stat -c '%h %F' . && ls -A . ; : > new; echo $?";
        let output = program::run("bash", ["-c".as_ref(), script.as_ref(), "bash".as_ref(), root.join("here").as_os_str()]);
        assert_eq!(output.stdout, "0 directory\n1\n", "{}", output.stderr);
        let mut file = File::create(root.join("file")).expect("create");
        file.write_all(b"text").expect("write");
        file.sync_all().expect("fsync");
        drop(file);
        let held = openat(CWD, root.join("file"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).expect("open");
        fs::remove_file(root.join("file")).expect("unlink");
        let found = rustix::fs::fstat(&held).expect("fstat");
        assert_eq!((found.st_nlink, found.st_size), (0, 4));
    }

    fn rename_replaces_and_refuses_as_posix_says(cluster) {
        let root = cluster.directory("d");
        let at = |name: &str| root.join(name);
        fs::write(at("a"), "a").expect("write");
        fs::write(at("b"), "b").expect("write");
        let mut open = File::open(at("b")).expect("open");
        let number = inode(&at("a"));
        fs::rename(at("a"), at("b")).expect("rename over a file");
        assert_eq!(inode(&at("b")), number);
        let mut old = String::new();
        open.read_to_string(&mut old).expect("the replaced file lives while it is open");
        assert_eq!(old, "b");
        fs::create_dir_all(at("dir/sub")).expect("mkdir");
        fs::create_dir(at("empty")).expect("mkdir");
        assert_eq!(errno(fs::rename(at("b"), at("dir"))), libc::EISDIR);
        assert_eq!(errno(fs::rename(at("dir"), at("b"))), libc::ENOTDIR);
        assert_eq!(errno(fs::rename(at("empty"), at("dir"))), libc::ENOTEMPTY);
        assert_eq!(errno(fs::rename(at("dir"), at("dir/sub/x"))), libc::EINVAL);
        assert_eq!(errno(fs::rename(at("none"), at("x"))), libc::ENOENT);
        fs::rename(at("dir"), at("empty")).expect("rename over an empty directory");
        assert!(at("empty/sub").exists());
        fs::hard_link(at("b"), at("c")).expect("link");
        fs::rename(at("b"), at("c")).expect("two names of one file");
        assert!(at("b").exists() && at("c").exists(), "renaming a file to another name of itself does nothing");
        let parent = |path: &Path| inode(&path.join(".."));
        fs::create_dir(at("new")).expect("mkdir");
        fs::rename(at("empty/sub"), at("new/sub")).expect("rename a directory to another parent");
        assert_eq!(parent(&at("new/sub")), inode(&at("new")));
    }

    fn rename_flags_exchange_and_do_not_replace(cluster) {
        let root = cluster.directory("d");
        let rename = |from: &str, to: &str, flags| renameat_with(CWD, root.join(from), CWD, root.join(to), flags);
        fs::write(root.join("a"), "a").expect("write");
        fs::create_dir_all(root.join("dir/sub")).expect("mkdir");
        assert_eq!(errno(rename("a", "dir", RenameFlags::NOREPLACE)), libc::EEXIST);
        rename("a", "b", RenameFlags::NOREPLACE).expect("to a free name");
        rename("b", "dir", RenameFlags::EXCHANGE).expect("file and directory");
        assert_eq!(fs::read(root.join("dir")).expect("read"), b"a");
        assert!(root.join("b/sub").is_dir());
        assert_eq!(errno(rename("b", "none", RenameFlags::EXCHANGE)), libc::ENOENT);
        assert_eq!(errno(rename("b", "b/sub", RenameFlags::EXCHANGE)), libc::EINVAL);
        assert_eq!(fs::metadata(&root).expect("stat").nlink(), 3);
    }

    fn unnamed_files_get_a_name_by_link(cluster) {
        let root = cluster.directory("d");
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = File::from(openat(CWD, &root, flags, Mode::from_raw_mode(0o640)).expect("O_TMPFILE"));
        (&file).write_all(b"secret").expect("write");
        assert_eq!(file.metadata().expect("fstat").nlink(), 0);
        assert!(names(&root).is_empty());
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        linkat(CWD, own.as_str(), CWD, root.join("named"), AtFlags::SYMLINK_FOLLOW).expect("linkat");
        assert_eq!(file.metadata().expect("fstat").nlink(), 1);
        assert_eq!(fs::read(root.join("named")).expect("read"), b"secret");
        assert_eq!(fs::metadata(root.join("named")).expect("stat").mode() & 0o777, 0o640);
        let exclusive = flags | OFlags::EXCL;
        let file = File::from(openat(CWD, &root, exclusive, Mode::from_raw_mode(0o600)).expect("O_TMPFILE"));
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let result = linkat(CWD, own.as_str(), CWD, root.join("never"), AtFlags::SYMLINK_FOLLOW);
        assert_eq!(errno(result), libc::ENOENT);
    }

    fn listing_a_large_directory_is_complete_while_it_changes(cluster) {
        let root = cluster.directory("d");
        const STABLE: usize = 100_000;
        for index in 0..STABLE {
            mknodat(CWD, root.join(format!("stable-{index}")), FileType::RegularFile, Mode::RUSR, 0).expect("mknod");
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let path = root.join(format!("passing-{}", round % 500));
                    File::create(&path).expect("create");
                    if round % 3 != 0 {
                        fs::remove_file(&path).expect("unlink");
                    }
                    round += 1;
                }
            });
            for _ in 0..3 {
                let mut seen = BTreeSet::new();
                for entry in fs::read_dir(&root).expect("directory") {
                    let name = entry.expect("entry").file_name();
                    let new = seen.insert(name.clone());
                    let stable = name.as_bytes().starts_with(b"stable-");
                    assert!(new || !stable, "{name:?} appears twice");
                }
                let stable = seen.iter().filter(|name| name.as_bytes().starts_with(b"stable-")).count();
                assert_eq!(stable, STABLE, "names that exist all the time are all listed");
            }
            stop.store(true, Ordering::Relaxed);
        });
        // Removing while listing, as rm -r does, must reach every name.
        fs::remove_dir_all(&root).expect("rm -r");
        assert!(!root.exists());
    }

    fn inode_numbers_and_types_of_a_listing_are_those_of_stat(cluster) {
        let root = cluster.directory("d");
        fs::write(root.join("file"), "x").expect("write");
        fs::create_dir(root.join("dir")).expect("mkdir");
        symlink("file", root.join("link")).expect("symlink");
        mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RUSR, 0).expect("mknod");
        for entry in fs::read_dir(&root).expect("directory") {
            let entry = entry.expect("entry");
            let metadata = fs::symlink_metadata(entry.path()).expect("stat");
            assert_eq!(std::os::unix::fs::DirEntryExt::ino(&entry), metadata.ino());
            assert_eq!(entry.file_type().expect("type"), metadata.file_type());
        }
        let device = fs::metadata(&root).expect("stat").dev();
        assert_eq!(fs::metadata(root.join("file")).expect("stat").dev(), device);
        assert_eq!(inode(&root.join("dir/..")), inode(&root));
    }
}
