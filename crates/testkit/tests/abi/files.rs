//! Lustre's ioctls about the data of open files, about removal by FID and about projects.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;

use nacre_testkit::identity::Identity;
use nacre_testkit::{errno, on_every_shape, wait};

use super::groups::lock as group_lock;
use super::ioctls::{ioctl, packed, put, u32_at, u64_at};
use super::{attribute, lfs, text};

const DATA_VERSION: u32 = 0x8010_66da;
const SWAP: u32 = 0x4020_66db;
const SET_LEASE: u32 = 0xc00c_66f3;
const GET_LEASE: u32 = 0x0000_66f4;
const LADVISE: u32 = 0x8020_66fa;
const RMFID: u32 = 0x8010_66f2;
const PROJECT: u32 = 0x4110_66fd;
const GETFLAGS: u32 = 0x8008_6697;
const SETFLAGS: u32 = 0x4008_6698;
const CLRFLAGS: u32 = 0x4008_6699;
const PATH2FID: u32 = 0x8008_66ad;
const FID2PATH: u32 = 0xc008_6696;
const LMV_SETSTRIPE: u32 = 0xc030_66f0;
const LMV_GETSTRIPE: u32 = 0xc030_66f1;
const UNLOCK_FOREIGN: u32 = 0x0000_66f2;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Returns result and version; the flags are an input.
fn version(file: &File, flags: u32) -> (i32, u64) {
    let mut call = [0x5a; 16];
    put(&mut call, 12, &flags.to_le_bytes());
    (ioctl(file, DATA_VERSION, &mut call), u64_at(&call, 0))
}

fn swap(file: &File, flags: u64, fd: i32, versions: [u64; 2]) -> i32 {
    let mut call = [0; 32];
    put(&mut call, 0, &flags.to_le_bytes());
    put(&mut call, 8, &fd.to_le_bytes());
    put(&mut call, 16, &versions[0].to_le_bytes());
    put(&mut call, 24, &versions[1].to_le_bytes());
    ioctl(file, SWAP, &mut call)
}

/// Exchanges the data of two files on behalf of a group.
fn swap_as(file: &File, gid: u32, fd: i32) -> i32 {
    let mut call = [0; 32];
    put(&mut call, 8, &fd.to_le_bytes());
    put(&mut call, 12, &gid.to_le_bytes());
    ioctl(file, SWAP, &mut call)
}

fn lease(file: &File, mode: u32) -> i32 {
    let mut call = [0; 12];
    put(&mut call, 0, &mode.to_le_bytes());
    ioctl(file, SET_LEASE, &mut call)
}

fn advise(file: &File, magic: u32, flags: u64, advice: &[(u16, u64, u64)]) -> i32 {
    let mut call = vec![0; 32 + 32 * advice.len().max(1)];
    put(&mut call, 0, &magic.to_le_bytes());
    put(&mut call, 4, &(advice.len() as u32).to_le_bytes());
    put(&mut call, 8, &flags.to_le_bytes());
    for (place, (kind, start, end)) in advice.iter().enumerate() {
        let at = 32 + 32 * place;
        put(&mut call, at, &kind.to_le_bytes());
        put(&mut call, at + 8, &start.to_le_bytes());
        put(&mut call, at + 16, &end.to_le_bytes());
    }
    ioctl(file, LADVISE, &mut call)
}

/// Requests a lock on `[start, end)` for writing without a wait. Returns the outcome: 0 requested, 1 there is
/// also one on other bytes, 2 there is exactly this one.
fn locked_ahead(file: &File, (start, end): (u64, u64)) -> u32 {
    const MAGIC: u32 = 0x1ADF_1CE0;
    const WRITE: u16 = 2;
    let mut call = vec![0; 64];
    put(&mut call, 0, &MAGIC.to_le_bytes());
    put(&mut call, 4, &1u32.to_le_bytes());
    for (at, value) in [(32, 4u16), (34, WRITE), (36, 1)] {
        put(&mut call, at, &value.to_le_bytes());
    }
    put(&mut call, 40, &start.to_le_bytes());
    put(&mut call, 48, &end.to_le_bytes());
    put(&mut call, 56, &u32::MAX.to_le_bytes());
    assert_eq!(ioctl(file, LADVISE, &mut call), 0);
    u32_at(&call, 56)
}

fn fid_of(path: &Path) -> [u8; 16] {
    let mut fid = [0; 16];
    assert_eq!(ioctl(&File::open(path).expect("open"), PATH2FID, &mut fid), 0);
    fid
}

/// Returns the result for each FID, which programs find in the place of the version.
fn remove(directory: &File, fids: &[[u8; 16]]) -> Result<Vec<i32>, i32> {
    let mut call = vec![0; 16];
    put(&mut call, 0, &(fids.len() as u32).to_le_bytes());
    fids.iter().for_each(|fid| call.extend_from_slice(fid));
    match ioctl(directory, RMFID, &mut call) {
        0 => Ok((0..fids.len()).map(|place| u32_at(&call, 16 + 16 * place + 12) as i32).collect()),
        error => Err(error),
    }
}

/// Returns result, project and flags.
fn project(directory: &File, kind: u32, name: &str, (id, xflags): (u32, u32)) -> (i32, u32, u32) {
    let mut call = [0; 272];
    for (at, word) in [(0, kind), (4, id), (8, xflags)] {
        put(&mut call, at, &word.to_le_bytes());
    }
    put(&mut call, 16, name.as_bytes());
    let result = ioctl(directory, PROJECT, &mut call);
    (result, u32_at(&call, 4), u32_at(&call, 8))
}

on_every_shape! {
    fn versions_of_data_change_with_the_data(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let file = open(&path);
        assert_eq!(version(&file, 0), (0, 0), "no data yet");
        file.write_all_at(&[1; 100], 0).expect("write");
        let (first, second) = (version(&file, 1), version(&file, 2));
        assert_eq!((first.0, first), (0, second));
        assert_eq!(lfs(cluster, &["data_version", text(&path)]), first.1.to_string());
        file.write_all_at(&[2; 100], 0).expect("write");
        assert_ne!(version(&file, 1 | 4).1, first.1, "flags that are not known do not count");
        let directory = File::open(path.parent().expect("has one")).expect("open");
        assert_eq!(version(&directory, 0).0, -libc::ENOTTY);
    }

    fn layouts_are_exchanged_through_descriptors(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let (a, b) = (open(&root.join("a")), open(&root.join("b")));
        let content = |name: &str| fs::read(root.join(name)).expect("read")[0];
        a.write_all_at(&[1; 5000], 0).expect("write");
        b.write_all_at(&[2; 3000], 0).expect("write");
        let keep = 0x0c;
        assert_eq!(swap(&a, keep, b.as_raw_fd(), [0; 2]), 0);
        assert_eq!((content("a"), content("b")), (2, 1));
        assert_eq!(fs::metadata(root.join("a")).expect("stat").len(), 3000);
        let versions = [version(&a, 1).1, version(&b, 1).1];
        assert_eq!(swap(&a, 3, b.as_raw_fd(), [versions[0] + 1, versions[1]]), -libc::EAGAIN);
        assert_eq!(swap(&a, 3, b.as_raw_fd(), [versions[0], versions[1] + 1]), -libc::EAGAIN);
        assert_eq!(swap(&a, 3, b.as_raw_fd(), versions), 0);
        assert_eq!((content("a"), content("b")), (1, 2));
        assert_eq!(swap(&a, 0, a.as_raw_fd(), [0; 2]), 0, "with itself nothing is to be done");
        let (reader, directory) = (File::open(root.join("b")).expect("open"), File::open(&root).expect("open"));
        assert_eq!(swap(&a, 0, reader.as_raw_fd(), [0; 2]), -libc::EPERM);
        assert_eq!(swap(&reader, 0, a.as_raw_fd(), [0; 2]), -libc::EPERM);
        assert_eq!(swap(&a, 0, directory.as_raw_fd(), [0; 2]), -libc::EPERM, "open for reading, too");
        assert_eq!(swap(&a, 0, 1_000_000, [0; 2]), -libc::EBADF);
        assert_eq!(swap(&a, 0x20, b.as_raw_fd(), [0; 2]), -libc::EINVAL);
        let elsewhere = open(&cluster.run().directory().join("elsewhere"));
        assert_eq!(swap(&a, 0, elsewhere.as_raw_fd(), [0; 2]), -libc::EINVAL, "not on a mount of this kind");
        // With release of a lease.
        assert_eq!(swap(&a, 0x10, b.as_raw_fd(), [0; 2]), -libc::ENOLCK, "there is none");
        assert_eq!(lease(&a, 2), 0);
        assert_eq!(swap(&a, 0x10, b.as_raw_fd(), [0; 2]), 0);
        assert_eq!((ioctl(&a, GET_LEASE, &mut []), content("a")), (0, 2));
        assert_eq!(lease(&a, 4), -libc::ENOLCK, "the exchange has ended it");
        // A descriptor can be in one group at a time, and an exchange that names a group joins it.
        assert_eq!(group_lock(&a, 7), 0);
        assert_eq!(swap_as(&a, 9, b.as_raw_fd()), -libc::EINVAL);
        assert_eq!((swap_as(&a, 0, b.as_raw_fd()), content("a")), (0, 1));
    }

    fn locks_ahead_are_taken_on_a_file_without_objects(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let file = open(&path);
        let (first, second) = ((0, 1 << 20), (1 << 20, 2 << 20));
        assert_eq!((locked_ahead(&file, first), locked_ahead(&file, first)), (0, 2));
        assert_eq!((locked_ahead(&file, second), locked_ahead(&file, second)), (0, 2));
        assert_eq!(locked_ahead(&file, first), 2, "one does not replace the other");
        file.write_all_at(&[1; 100], 0).expect("write");
        assert_eq!(fs::read(&path).expect("read"), [1; 100]);
    }

    fn leases_are_taken_broken_and_given_up(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let file = open(&path);
        let held = |file: &File| ioctl(file, GET_LEASE, &mut []);
        assert_eq!((lease(&file, 4), held(&file)), (-libc::ENOLCK, 0));
        assert_eq!((lease(&file, 2), held(&file)), (0, 2));
        assert_eq!(lease(&file, 1), -libc::EBUSY, "one at a time");
        assert_eq!((lease(&file, 4), held(&file)), (2, 0), "which it was");
        assert_eq!((lease(&file, 2), held(&file)), (0, 2));
        let reader = File::open(&path).expect("open");
        assert_eq!((held(&file), lease(&file, 4)), (0, 0), "somebody opened the file");
        assert_eq!(lease(&file, 2), -libc::EBUSY);
        drop(file);
        assert_eq!((lease(&reader, 1), held(&reader)), (0, 1));
        let second = File::open(&path).expect("open");
        assert_eq!(held(&reader), 1, "readers do not break it");
        drop(open(&path));
        assert_eq!((lease(&reader, 4), lease(&second, 2)), (0, -libc::EPERM));
        assert_eq!((lease(&second, 3), lease(&second, 0)), (-libc::EINVAL, -libc::EINVAL));
        let mut resync = [0; 12];
        put(&mut resync, 0, &[2, 0, 0, 0, 1]);
        assert_eq!(ioctl(&second, SET_LEASE, &mut resync), -libc::EOPNOTSUPP, "there are no mirrors");
    }

    fn a_lease_waits_for_descriptors_that_are_closed_and_on_their_way_out(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        let (file, reader) = (open(&path), File::open(&path).expect("open"));
        // A process that is being forked has a copy of the reader's descriptor until it runs exec.
        let (mut begun, mut begins) = std::io::pipe().expect("a pipe");
        let (mut goes_on, mut go_on) = std::io::pipe().expect("a pipe");
        // SAFETY: gettid has no arguments.
        let asker = unsafe { libc::gettid() };
        let told_by = go_on.as_raw_fd();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut command = cluster.run().command("true");
                // SAFETY: close, read and write are async-signal-safe, so a forked process may call them; the
                // descriptor is its own copy.
                unsafe {
                    command.pre_exec(move || {
                        libc::close(told_by);
                        begins.write_all(b"x")?;
                        goes_on.read_exact(&mut [0])
                    });
                }
                assert!(command.status().expect("runs").success());
            });
            begun.read_exact(&mut [0]).expect("the process is there");
            scope.spawn(move || {
                // It stays alive until the request for the lease waits.
                let call = format!("{} ", libc::SYS_ioctl);
                let path = format!("/proc/self/task/{asker}/syscall");
                wait::until(wait::SOON, "the lease is asked for", || {
                    fs::read_to_string(&path).expect("a thread").starts_with(&call).then_some(())
                });
                go_on.write_all(b"x").expect("told");
            });
            drop(reader);
            assert_eq!(lease(&file, 2), 0);
        });
        let reader = File::open(&path).expect("open");
        assert_eq!(lease(&file, 4), 0, "it is broken");
        assert_eq!(lease(&file, 2), -libc::EBUSY, "this one stays open");
        drop(reader);
    }

    fn advice_reaches_the_objects(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        fs::write(&path, vec![1; 3 << 20]).expect("write");
        let file = File::open(&path).expect("open");
        const MAGIC: u32 = 0x1ADF_1CE0;
        let all = (1, 0, u64::MAX);
        assert_eq!(advise(&file, MAGIC, 0, &[all, (2, 0, 1 << 20)]), 0);
        assert_eq!(advise(&file, MAGIC, 1, &[all]), 0, "without waiting");
        assert_eq!(fs::read(&path).expect("read").len(), 3 << 20);
        let wrong = [
            (MAGIC + 1, 0, vec![all]),
            (MAGIC, 0, vec![]),
            (MAGIC, 0, vec![all; 1025]),
            (MAGIC, 2, vec![all]),
            (MAGIC, 0, vec![(1, 5, 5)]),
            (MAGIC, 0, vec![(0, 0, 5)]),
            (MAGIC, 0, vec![(6, 0, 5)]),
        ];
        for (magic, flags, advice) in wrong {
            assert_eq!(advise(&file, magic, flags, &advice), -libc::EINVAL, "{magic:x} {flags} {}", advice.len());
        }
        assert_eq!(advise(&file, MAGIC, 0, &[(4, 0, 5)]), -libc::EINVAL, "for what the lock is must be said");
        assert_eq!(advise(&file, MAGIC, 0, &[(5, 0, 5)]), -libc::EOPNOTSUPP);
        assert_eq!(advise(&file, MAGIC, 0, &[(3, 0, 0)]), 0, "it says something of the open file");
    }

    fn files_are_removed_by_fid_with_all_their_names(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let inner = root.join("inner");
        fs::create_dir(&inner).expect("mkdir");
        for name in ["a", "b", "stays"] {
            fs::write(root.join(name), name).expect("write");
        }
        fs::hard_link(root.join("a"), inner.join("second")).expect("link");
        let (a, b, of_inner) = (fid_of(&root.join("a")), fid_of(&root.join("b")), fid_of(&inner));
        let before = fs::metadata(&root).expect("stat").mtime();
        let directory = File::open(cluster.mount()).expect("open");
        Identity::user(1000).act(|| assert_eq!(remove(&directory, &[a]), Err(-libc::EPERM)));
        assert!(root.join("a").exists() && inner.join("second").exists());
        let kept = File::open(root.join("b")).expect("open");
        let gone = remove(&directory, &[a, b, of_inner, a]);
        assert_eq!(gone, Ok(vec![0, 0, -libc::EISDIR, -libc::ENOENT]));
        let left = |path: &Path| fs::read_dir(path).expect("list").count();
        assert_eq!((left(&root), left(&inner)), (2, 0));
        assert!(!root.join("a").exists() && !root.join("b").exists());
        assert!(fs::metadata(&root).expect("stat").mtime() >= before);
        let mut text = [0; 1];
        kept.read_exact_at(&mut text, 0).expect("an open file stays readable");
        assert_eq!((&text, kept.metadata().expect("stat").nlink()), (b"b", 0));
        assert_eq!(remove(&directory, &[fid_of(cluster.mount())]), Ok(vec![-libc::EBUSY]));
        let mut many = vec![0; 16];
        put(&mut many, 0, &4097u32.to_le_bytes());
        assert_eq!(ioctl(&directory, RMFID, &mut many), -libc::E2BIG);
        // Through the command, as each name is found and removed in one step.
        let stays = root.join("stays");
        let fid = lfs(cluster, &["path2fid", super::text(&stays)]);
        assert_eq!(lfs(cluster, &["rmfid", super::text(cluster.mount()), &fid]), "");
        assert_eq!(left(&root), 1);
        let again = cluster.lfs(&["rmfid", super::text(cluster.mount()), &fid]).fails_with(libc::ENOENT);
        assert_eq!(again.stderr, format!("lfs rmfid: cannot remove {fid}: No such file or directory\n"));
    }

    fn projects_are_set_by_name(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        fs::create_dir(root.join("inner")).expect("mkdir");
        std::os::unix::fs::symlink("nowhere", root.join("link")).expect("symlink");
        make_pipe(&root.join("pipe"));
        let directory = File::open(&root).expect("open");
        let (set, get, inherit) = (1, 2, 0x200);
        for (name, requested) in [("link", (7, 0)), ("pipe", (8, 0)), ("inner", (9, inherit)), ("", (10, inherit))] {
            assert_eq!(project(&directory, set, name, requested).0, 0, "{name}");
            assert_eq!(project(&directory, get, name, (0, 0)), (0, requested.0, requested.1), "{name}");
        }
        let listed = lfs(cluster, &["project", text(&root)]);
        let mut lines: Vec<_> = listed.lines().map(|line| line.trim_start().replace(text(&root), "")).collect();
        lines.sort();
        assert_eq!(lines, ["7 - /link", "8 - /pipe", "9 P /inner"]);
        lfs(cluster, &["project", "-p", "20", text(&root.join("link"))]);
        assert_eq!(project(&directory, get, "link", (0, 0)).1, 20);
        assert_eq!(project(&directory, get, "none", (0, 0)).0, -libc::ENOENT);
        assert_eq!(project(&directory, 3, "link", (0, 0)).0, -libc::EINVAL);
        assert_eq!(project(&directory, set, "a/b", (0, 0)).0, -libc::EINVAL);
        assert_eq!(project(&directory, set, "link", (0, 1)).0, -libc::EOPNOTSUPP);
        Identity::user(1000).act(|| assert_eq!(project(&directory, set, "link", (1, 0)).0, -libc::EPERM));
    }

    fn foreign_directories_are_made_shown_and_removed(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        // Defaults that children would inherit: a foreign directory has none of them.
        lfs(cluster, &["setstripe", "-c", "2", text(&root)]);
        let path = root.join("made");
        let made = text(&path);
        let options = ["mkdir", "--foreign=symlink", "--flags", "0xda08", "--xattr", "PUUID/CUUID", "-o", "751"];
        lfs(cluster, &[&options[..], &[made]].concat());
        let again = cluster.lfs(&[&options[..], &[made]].concat()).fails_with(libc::EEXIST);
        assert_eq!(
            again.stderr,
            format!("lfs mkdir: dirstripe error on '{made}': stripe already set\nlfs setdirstripe: cannot create dir '{made}': File exists\n")
        );
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o751);
        assert_eq!(lfs(cluster, &["getdirstripe", made]), "lfm_value:     'PUUID/CUUID'");
        let verbose = "lfm_magic:         0x0CD50CD0\nlfm_length:          11\nlfm_type:          0x0000DA05 (symlink)\n\
            lfm_flags:          0x0000DA08\nlfm_value:     'PUUID/CUUID'";
        assert_eq!(lfs(cluster, &["getdirstripe", "-v", made]), verbose);
        let plain = lfs(cluster, &["getdirstripe", text(&root)]);
        assert_eq!(plain, "lmv_stripe_count: 0 lmv_stripe_offset: 0 lmv_hash_type: none");
        // No name can be created or looked up in it; its own attributes can be changed.
        assert_eq!(errno(fs::write(path.join("f"), "")), libc::ENODATA);
        assert_eq!(errno(fs::create_dir(path.join("f"))), libc::ENODATA);
        assert_eq!(errno(fs::metadata(path.join("f"))), libc::ENODATA);
        assert!(fs::read_dir(&path).and_then(|mut list| list.next().transpose()).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
        // Through ioctls: one that they create, and buffers that are too small and large enough.
        let directory = File::open(&root).expect("open");
        let mut requested = attribute(&path, "lustre.lmv").expect("get");
        let value = requested.clone();
        put(&mut requested, 16, b"other");
        assert_eq!(ioctl(&directory, LMV_SETSTRIPE, &mut packed(0o755, [b"by ioctl\0", &requested], [&mut [], &mut []])), 0);
        let second = File::open(root.join("by ioctl")).expect("open");
        let mut buffer = vec![0x5a; 256];
        put(&mut buffer, 0, &0x0CD2_0CD0u32.to_le_bytes());
        put(&mut buffer, 4, &1u32.to_le_bytes());
        assert_eq!((ioctl(&second, LMV_GETSTRIPE, &mut buffer), u32_at(&buffer, 4)), (-libc::E2BIG, 2));
        assert_eq!(ioctl(&second, LMV_GETSTRIPE, &mut buffer), 0);
        assert_eq!((&buffer[..27], buffer[27]), (&requested[..], 0x5a));
        assert_eq!(ioctl(&directory, LMV_GETSTRIPE, &mut buffer), -libc::EINVAL, "not a question for a layout");
        put(&mut buffer, 0, &0x0CD2_0CD0u32.to_le_bytes());
        assert_eq!(ioctl(&directory, LMV_GETSTRIPE, &mut buffer), -libc::ENODATA);
        let mut wrong = value;
        wrong.truncate(20);
        assert_eq!(ioctl(&directory, LMV_SETSTRIPE, &mut packed(0o755, [b"wrong\0", &wrong], [&mut [], &mut []])), -libc::EINVAL);
        assert!(!root.join("wrong").exists());
        // Only a foreign directory can be unlocked, and removed by that name.
        let unlock = |file: &File| ioctl(file, UNLOCK_FOREIGN, &mut []);
        assert_eq!((unlock(&second), unlock(&directory)), (0, -libc::EOPNOTSUPP));
        let file = root.join("file");
        lfs(cluster, &["setstripe", "--foreign", "--xattr", "text", text(&file)]);
        assert_eq!(unlock(&File::open(&file).expect("open")), 0);
        fs::write(root.join("plain"), "").expect("write");
        let plain = root.join("plain");
        let refused = cluster.lfs(&["unlink_foreign", text(&plain)]).fails_with(libc::EOPNOTSUPP);
        assert!(refused.stderr.contains("Operation not supported (95)"), "{}", refused.stderr);
        drop(second);
        lfs(cluster, &["unlink_foreign", made, text(&file)]);
        fs::remove_dir(root.join("by ioctl")).expect("rmdir");
        assert_eq!(fs::read_dir(&root).expect("list").count(), 1);
    }

    fn flags_of_descriptors_and_deep_paths(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let file = open(&root.join("f"));
        let mut flags = [0; 8];
        assert_eq!((ioctl(&file, GETFLAGS, &mut flags), u32_at(&flags, 0)), (0, 0));
        for (command, word, expected) in [
            (SETFLAGS, 2, -libc::EINVAL),
            (CLRFLAGS, 2, -libc::EINVAL),
            (SETFLAGS, 1, -libc::EOPNOTSUPP),
            (CLRFLAGS, 1, 0),
        ] {
            flags[0] = word;
            assert_eq!(ioctl(&file, command, &mut flags), expected, "{command:x} {word}");
        }
        // The deepest path that fits, in one request to the MDT.
        let deep = (0..100).fold(root.join("p"), |path, _| path.join("p"));
        fs::create_dir_all(&deep).expect("mkdir");
        let fid = fid_of(&deep);
        let mut call = vec![0; 32 + 4096];
        put(&mut call, 0, &fid);
        put(&mut call, 28, &4096u32.to_le_bytes());
        assert_eq!(ioctl(&file, FID2PATH, &mut call), 0);
        let end = call[32..].iter().position(|&byte| byte == 0).expect("ends");
        let expected = deep.strip_prefix(cluster.mount()).expect("below");
        assert_eq!(&call[32..32 + end], text(expected).as_bytes());
        assert!(attribute(&deep, "trusted.link").is_ok());
    }
}

fn make_pipe(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .expect("mkfifo");
}
