//! Lustre's ioctls as Lustre's programs call them: numbers, buffers and errors.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nacre_testkit::identity::Identity;
use nacre_testkit::{on_each_shape_with_mdts, on_every_shape, wait};

use super::{attribute, lfs, text};

const SETSTRIPE: u32 = 0x4008_669a;
pub const GETSTRIPE: u32 = 0x4008_669b;
const STATFS: u32 = 0xc008_66a4;
const COUNT: u32 = 0x8008_66a8;
const PATH2FID: u32 = 0x8008_66ad;
const MDTIDX: u32 = 0x8004_66af;
const FID2PATH: u32 = 0xc008_6696;
const GETPARENT: u32 = 0xc018_66f9;
const MKDIR: u32 = 0xc030_66f0;
const MIGRATE: u32 = 0x8004_66f7;
const DIRECTORY_LAYOUT: u32 = 0xc030_66f1;
const DIRECTORY_DEFAULT: u32 = 0xc030_66f6;
const FILESTRIPE: u32 = 0xc008_6915;
const FILEINFO: u32 = 0xc140_6916;
const DIRINFO: u32 = 0xc140_6917;
const DTNAME: u32 = 0x8080_667f;
const LOOKUP: u32 = 0xc008_6914;
/// Bytes that no call may change.
const FILL: u8 = 0x5a;

/// Returns the result, or the negated errno.
pub fn ioctl(file: &File, command: u32, buffer: &mut [u8]) -> i32 {
    // SAFETY: the buffer is at least as long as the tests request, and lives for the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, buffer.as_mut_ptr()) };
    if result >= 0 { result } else { -std::io::Error::last_os_error().raw_os_error().expect("errno") }
}

pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect("inside"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside"))
}

/// Returns a `lov_user_md_v1` without objects, followed by bytes that must not change.
fn requested(size: u32, count: u16, offset: u16) -> Vec<u8> {
    let mut bytes = vec![0; 32];
    put(&mut bytes, 0, &0x0BD1_0BD0u32.to_le_bytes());
    put(&mut bytes, 4, &1u32.to_le_bytes());
    put(&mut bytes, 24, &size.to_le_bytes());
    put(&mut bytes, 28, &count.to_le_bytes());
    put(&mut bytes, 30, &offset.to_le_bytes());
    bytes.resize(4096, FILL);
    bytes
}

/// Returns a packed `obd_ioctl_data` with two inline buffers and space for two results.
pub fn packed(kind: u32, inline: [&[u8]; 2], room: [&mut [u8]; 2]) -> Vec<u8> {
    let mut bytes = vec![0; 576];
    for field in inline {
        bytes.extend_from_slice(field);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let words = [
        (0, bytes.len() as u32),
        (4, 0x0001_0004),
        (476, kind),
        (512, inline[0].len() as u32),
        (528, inline[1].len() as u32),
    ];
    words.iter().for_each(|(at, word)| put(&mut bytes, *at, &word.to_le_bytes()));
    for (place, room) in room.into_iter().enumerate() {
        put(&mut bytes, 480 + 16 * place, &(room.len() as u32).to_le_bytes());
        put(&mut bytes, 488 + 16 * place, &(room.as_mut_ptr() as u64).to_le_bytes());
    }
    bytes
}

/// Creates a file as programs do that set the layout of a new file: without objects until then.
fn create_delayed(path: &Path) -> File {
    let flags = libc::O_NOCTTY | libc::O_ASYNC;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path)
        .expect("create")
}

on_every_shape! {
    fn layouts_are_set_and_shown_through_descriptors(cluster) {
        if cluster.is_foreign() {
            return;
        }
        cluster.set_default(&["-c", "1"]);
        let root = cluster.directory("d");
        let path = root.join("f");
        let file = create_delayed(&path);
        let mut buffer = requested(1 << 20, 2, 1);
        assert_eq!(ioctl(&file, SETSTRIPE, &mut buffer), 0);
        assert_eq!((u32_at(&buffer, 24), buffer[28], buffer[30]), (1 << 20, 2, 0), "what became of it");
        assert!(buffer[32..].iter().all(|&byte| byte == FILL), "no more than was passed");
        assert_eq!(ioctl(&file, SETSTRIPE, &mut requested(1 << 20, 1, 1)), -libc::EEXIST);
        let mut all = vec![FILL; 4096];
        assert_eq!(ioctl(&file, GETSTRIPE, &mut all), 0);
        let layout = attribute(&path, "lustre.lov").expect("get");
        assert_eq!((layout.len(), &all[..80]), (80, &layout[..]));
        assert!(all[80..].iter().all(|&byte| byte == FILL));
        assert_eq!((u32_at(&all, 32 + 20), u32_at(&all, 56 + 20)), (1, 2), "the OSTs");
        // Space for one object.
        let mut one = requested(0, 1, 0);
        assert_eq!(ioctl(&file, GETSTRIPE, &mut one), 0);
        assert_eq!((&one[..56], one[56]), (&layout[..56], FILL));
        for (size, count, offset) in [(100_000, 1, 0xffff), (65536, 2001, 0xffff), (65536, 1, 77)] {
            let other = create_delayed(&root.join("other"));
            assert_eq!(ioctl(&other, SETSTRIPE, &mut requested(size, count, offset)), -libc::EINVAL);
        }
        assert_eq!(ioctl(&file, SETSTRIPE, &mut vec![0xff; 4096]), -libc::EINVAL);
        // Directories.
        let directory = File::open(&root).expect("open");
        let of_root = attribute(cluster.mount(), "lustre.lov").expect("a default of the file system");
        assert_eq!((ioctl(&directory, GETSTRIPE, &mut all), &all[..of_root.len()]), (0, &of_root[..]), "none of its own");
        assert_eq!(ioctl(&directory, SETSTRIPE, &mut requested(131_072, 3, 0xffff)), 0);
        assert_eq!(lfs(cluster, &["getstripe", "-d", "-c", text(&root)]), "3");
        assert_eq!(ioctl(&directory, GETSTRIPE, &mut all), 0);
        assert_eq!((u32_at(&all, 24), all[28]), (131_072, 3));
        assert_eq!(ioctl(&directory, SETSTRIPE, &mut requested(0, 0, 0xffff)), 0);
        assert_eq!((ioctl(&directory, GETSTRIPE, &mut all), &all[..of_root.len()]), (0, &of_root[..]), "none any more");
        // A writer learns the layout before the first write; a reader sees that there is none yet.
        let fresh = create_delayed(&root.join("fresh"));
        let reader = File::open(root.join("fresh")).expect("open");
        assert_eq!(ioctl(&reader, GETSTRIPE, &mut all), -libc::ENODATA);
        assert_eq!(ioctl(&fresh, GETSTRIPE, &mut all), 0);
        assert_eq!(all[28], 1);
        assert_eq!(ioctl(&reader, GETSTRIPE, &mut all), 0);
    }

    fn programs_that_know_plain_layouts_see_one_of_a_composite_file(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let path = cluster.directory("d").join("f");
        lfs(cluster, &["setstripe", "-E", "1M", "-c", "1", "-E", "2M", "-c", "2", "-E", "-1", "-c", "3", text(&path)]);
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("open");
        let mut room = requested(0, 2000, 0);
        assert_eq!(ioctl(&file, GETSTRIPE, &mut room), 0);
        assert_eq!((u32_at(&room, 0), room[28]), (0x0BD1_0BD0, 3), "the last while the file is empty");
        fs::write(&path, vec![1; (1 << 20) + 1]).expect("write");
        let mut room = requested(0, 2000, 0);
        assert_eq!(ioctl(&file, GETSTRIPE, &mut room), 0);
        assert_eq!((u32_at(&room, 0), room[28]), (0x0BD1_0BD0, 2), "then the last with objects");
        let mut whole = vec![0; 4096];
        assert_eq!(ioctl(&file, GETSTRIPE, &mut whole), 0);
        assert_eq!(u32_at(&whole, 0), 0x0BD6_0BD0);
    }

    fn names_are_asked_about_through_their_directory(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("name");
        lfs(cluster, &["setstripe", "-c", "2", text(&path)]);
        fs::write(&path, vec![1; 12345]).expect("write");
        std::os::unix::fs::symlink("name", root.join("link")).expect("symlink");
        let directory = File::open(&root).expect("open");
        let named = |name: &[u8]| {
            let mut buffer = vec![FILL; 4096];
            put(&mut buffer, 0, name);
            buffer[name.len()] = 0;
            buffer
        };
        let mut buffer = named(b"name");
        assert_eq!(ioctl(&directory, FILESTRIPE, &mut buffer), 0);
        assert_eq!(buffer[..80], attribute(&path, "lustre.lov").expect("get")[..]);
        assert_eq!(ioctl(&directory, FILESTRIPE, &mut named(b"link")), -libc::ENODATA);
        assert_eq!(ioctl(&directory, FILESTRIPE, &mut named(b"nothing")), -libc::ENOENT);
        assert_eq!(ioctl(&directory, FILESTRIPE, &mut named(b"a/b")), -libc::EINVAL);
        assert_eq!(ioctl(&directory, FILESTRIPE, &mut [FILL; 4096]), -libc::EINVAL, "no end");
        let mut buffer = named(b"name");
        assert_eq!(ioctl(&directory, FILEINFO, &mut buffer), 0);
        let found = fs::metadata(&path).expect("stat");
        assert_eq!((u64_at(&buffer, 16 + 40), u64_at(&buffer, 16 + 32)), (12345, found.ino()));
        assert_eq!((u32_at(&buffer, 280), u32_at(&buffer, 288)), (80, 0x0BD1_0BD0));
        let mut buffer = named(b"link");
        assert_eq!((ioctl(&directory, FILEINFO, &mut buffer), u32_at(&buffer, 280)), (0, 0), "no layout is no error");
        assert_eq!(ioctl(&directory, DIRINFO, &mut buffer), 0);
        assert_eq!(u64_at(&buffer, 16 + 32), fs::metadata(&root).expect("stat").ino());
        assert_eq!(ioctl(&directory, LOOKUP, &mut packed(0, [b"name\0", b""], [&mut [], &mut []])), 0);
        assert_eq!(ioctl(&directory, LOOKUP, &mut packed(0, [b"none\0", b""], [&mut [], &mut []])), -libc::ENOENT);
        // Without search permission for the directory a call returns nothing, though root opened it.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).expect("chmod");
        Identity::user(1000).act(|| {
            assert_eq!(ioctl(&directory, FILEINFO, &mut named(b"name")), -libc::EACCES);
        });
    }

    fn fids_paths_and_directories(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = cluster.directory("d");
        let path = root.join("name");
        fs::write(&path, "").expect("write");
        fs::hard_link(&path, root.join("second")).expect("link");
        let file = File::open(&path).expect("open");
        let mut fid = [FILL; 32];
        assert_eq!(ioctl(&file, PATH2FID, &mut fid), 0);
        assert!(fid[16..].iter().all(|&byte| byte == FILL));
        let shown = format!("[{:#x}:{:#x}:{:#x}]", u64_at(&fid, 0), u32_at(&fid, 8), u32_at(&fid, 12));
        assert_eq!(lfs(cluster, &["path2fid", text(&path)]), shown);
        let path_of = |link: u32, room: u32| {
            let mut buffer = vec![FILL; 5000];
            put(&mut buffer, 0, &fid[..16]);
            put(&mut buffer, 16, &[0; 8]);
            put(&mut buffer, 24, &link.to_le_bytes());
            put(&mut buffer, 28, &room.to_le_bytes());
            let result = ioctl(&file, FID2PATH, &mut buffer);
            let end = buffer[32..].iter().position(|&byte| byte == 0).unwrap_or(0);
            (result, u32_at(&buffer, 24), String::from_utf8(buffer[32..32 + end].to_vec()).expect("ASCII"))
        };
        assert_eq!(path_of(0, 4096), (0, 1, "d/name".into()));
        assert_eq!(path_of(1, 4096), (0, 1, "d/second".into()), "the last");
        assert_eq!(path_of(2, 4096), (0, 2, "d/name".into()), "behind the last, as on Lustre");
        assert_eq!(path_of(0, 6).0, -libc::EOVERFLOW);
        assert_eq!(path_of(0, 5000).0, -libc::ENAMETOOLONG);
        Identity::user(1000).act(|| assert_eq!(path_of(0, 4096).0, -libc::EPERM));
        let mut parent = vec![FILL; 64];
        put(&mut parent, 16, &[1, 0, 0, 0, 10, 0, 0, 0]);
        assert_eq!(ioctl(&file, GETPARENT, &mut parent), 0);
        assert_eq!(&parent[24..31], b"second\0");
        let mut of_directory = [0; 16];
        let directory = File::open(&root).expect("open");
        assert_eq!(ioctl(&directory, PATH2FID, &mut of_directory), 0);
        assert_eq!(parent[..16], of_directory);
        assert_eq!(ioctl(&file, MDTIDX, &mut parent), 0);
        assert_eq!(u32_at(&parent, 0), 0);
        // A directory with a requested placement on MDTs.
        let mut requested = vec![0u8; 48];
        put(&mut requested, 0, &0x0CD3_0CD0u32.to_le_bytes());
        put(&mut requested, 4, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        let made = root.join("made");
        assert!(!made.exists());
        assert_eq!(ioctl(&directory, MKDIR, &mut packed(0o750, [b"made\0", &requested], [&mut [], &mut []])), 0);
        let found = fs::metadata(&made).expect("there at once");
        assert!(found.is_dir() && found.mode() & 0o700 == 0o700);
        assert_eq!(ioctl(&directory, MKDIR, &mut packed(0o755, [b"made\0", &requested], [&mut [], &mut []])), -libc::EEXIST);
        requested[8..12].fill(1);
        assert_eq!(ioctl(&directory, MKDIR, &mut packed(0o755, [b"other\0", &requested], [&mut [], &mut []])), -libc::EINVAL);
    }

    fn targets_are_counted_and_tell_their_space(cluster) {
        if cluster.is_foreign() {
            return;
        }
        let root = File::open(cluster.mount()).expect("open");
        let count = |kind: u32| {
            let mut buffer = kind.to_le_bytes().to_vec();
            buffer.resize(8, FILL);
            assert_eq!(ioctl(&root, COUNT, &mut buffer), 0);
            u32_at(&buffer, 0)
        };
        let osts = count(0);
        assert_eq!((osts, count(1)), (4, 1));
        let space = |kind: u32, index: u32| {
            let (mut space, mut uuid) = (vec![0; 144], vec![0; 40]);
            let inline = [&kind.to_le_bytes()[..], &index.to_le_bytes()[..]];
            let result = ioctl(&root, STATFS, &mut packed(0, inline, [&mut space, &mut uuid]));
            let end = uuid.iter().position(|&byte| byte == 0).unwrap_or(0);
            (result, u64_at(&space, 8), String::from_utf8(uuid[..end].to_vec()).expect("ASCII"))
        };
        let (result, blocks, uuid) = space(2, 1);
        assert_eq!((result, uuid), (0, format!("{}-OST0001_UUID", cluster.fsname())));
        assert!(blocks > 0);
        assert_eq!((space(1, 0).0, space(2, osts).0, space(1, 1).0), (0, -libc::ENODEV, -libc::ENODEV));
        let mut name = vec![FILL; 128];
        assert_eq!(ioctl(&root, DTNAME, &mut name), 0);
        let start = format!("{}-clilov-", cluster.fsname());
        assert!(name.starts_with(start.as_bytes()));
        assert!(name[40..].iter().all(|&byte| byte == FILL), "callers have 40 bytes");
        // Lustre's commands that NacreFS does not support are distinguished from unknown ones.
        assert_eq!(ioctl(&root, 0xc0b0_66a2, &mut [0; 256]), -libc::EOPNOTSUPP);
        assert_eq!(ioctl(&root, 0xc0b0_6600, &mut [0; 256]), -libc::ENOTTY);
        // An unmapped address.
        for command in [SETSTRIPE, STATFS] {
            // SAFETY: the kernel checks the address, which is not mapped.
            let result = unsafe { libc::ioctl(root.as_raw_fd(), command as libc::Ioctl, 8usize) };
            assert_eq!((result, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
        }
        let mut wrong = packed(0, [&[2, 0, 0, 0], &[0; 4]], [&mut [0; 144], &mut [0; 40]]);
        put(&mut wrong, 488, &8u64.to_le_bytes());
        assert_eq!(ioctl(&root, STATFS, &mut wrong), -libc::EFAULT);
        put(&mut wrong, 0, &u32::MAX.to_le_bytes());
        assert_eq!(ioctl(&root, STATFS, &mut wrong), -libc::EINVAL);
    }
}

/// Returns a `lmv_user_md` that names MDTs: one, or a list of them.
fn on_mdts(mdts: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; 48];
    let magic: u32 = if mdts.len() == 1 { 0x0CD3_0CD0 } else { 0x0CD4_0CD0 };
    put(&mut bytes, 0, &magic.to_le_bytes());
    put(&mut bytes, 4, &(mdts.len() as u32).to_le_bytes());
    put(&mut bytes, 8, &mdts[0].to_le_bytes());
    if mdts.len() > 1 {
        // Each entry has a FID, which is ignored, and the MDT.
        for mdt in mdts {
            bytes.extend([0; 20]);
            bytes.extend(mdt.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn what_has_a_name_moves_to_the_mdts_of_a_layout() {
    on_each_shape_with_mdts("abim", 3, |cluster, _| {
        let top = cluster.directory("d");
        let root = top.join("on the first");
        lfs(cluster, &["mkdir", "-i", "0", text(&root)]);
        fs::write(root.join("file"), "content").expect("write");
        let directory = File::open(&root).expect("open");
        let migrate = |name: &str, requested: &[u8]| {
            let name = format!("{name}\0");
            ioctl(&directory, MIGRATE, &mut packed(0, [name.as_bytes(), requested], [&mut [], &mut []]))
        };
        let mdt_of = |name: &str| {
            let opened = File::open(root.join(name)).expect("open");
            let mut index = [FILL; 8];
            assert_eq!(ioctl(&opened, MDTIDX, &mut index), 0);
            u32_at(&index, 0)
        };
        // The MDT may process a close a moment after it.
        let migrate_closed = |name: &str, requested: &[u8]| {
            wait::until(wait::SOON, "it is closed", || {
                Some(migrate(name, requested)).filter(|result| *result != -libc::EBUSY)
            })
        };
        // A file has been moved when the call returns.
        let inode = fs::metadata(root.join("file")).expect("stat").ino();
        assert_eq!((mdt_of("file"), migrate_closed("file", &on_mdts(&[1]))), (0, 0));
        assert_eq!(
            (mdt_of("file"), fs::read_to_string(root.join("file")).expect("read").as_str()),
            (1, "content")
        );
        assert_ne!(fs::metadata(root.join("file")).expect("stat").ino(), inode);
        assert_eq!(migrate("file", &on_mdts(&[1])), -libc::EALREADY);
        let open = File::open(root.join("file")).expect("open");
        assert_eq!(migrate("file", &on_mdts(&[2])), -libc::EBUSY);
        drop(open);
        // For a directory, the move of its names has started.
        let sub = root.join("sub");
        fs::create_dir(&sub).expect("mkdir");
        for number in 0..30 {
            fs::write(sub.join(format!("{number}")), "").expect("write");
        }
        for (mdts, count) in [(&[2][..], "0"), (&[1, 2], "2")] {
            assert_eq!(migrate("sub", &on_mdts(mdts)), 0, "{mdts:?}");
            assert_eq!(mdt_of("sub"), mdts[0]);
            wait::until(wait::SOON, "all names have moved", || {
                let told = lfs(cluster, &["getdirstripe", "-H", text(&sub)]);
                (!told.contains("migrating")).then_some(())
            });
            assert_eq!(lfs(cluster, &["getdirstripe", "-c", text(&sub)]), count);
            assert_eq!(fs::read_dir(&sub).expect("list").count(), 30);
        }
        for (name, requested, error) in [
            ("none", on_mdts(&[1]), libc::ENOENT),
            ("file", on_mdts(&[7]), libc::EINVAL),
            ("sub/0", on_mdts(&[1]), libc::EINVAL),
            ("", on_mdts(&[1]), libc::EINVAL),
            ("file", on_mdts(&[2])[..20].to_vec(), libc::EINVAL),
            ("file", vec![0xff; 48], libc::EINVAL),
        ] {
            assert_eq!(migrate(name, &requested), -error, "{name} {requested:?}");
        }
        Identity::user(1000).act(|| assert_eq!(migrate("file", &on_mdts(&[2])), -libc::EPERM));
        assert_eq!(mdt_of("file"), 1);
    });
}

#[test]
fn directories_are_spread_and_shown_and_get_defaults_with_several_mdts() {
    on_each_shape_with_mdts("abid", 3, |cluster, _| {
        let root = cluster.directory("d");
        let directory = File::open(&root).expect("open");
        let make = |name: &[u8], requested: &[u8]| {
            ioctl(&directory, MKDIR, &mut packed(0o755, [name, requested], [&mut [], &mut []]))
        };
        let layout = |name: &str, room: u32| {
            let mut buffer = vec![FILL; 1024];
            put(&mut buffer, 0, &0x0CD2_0CD0u32.to_le_bytes());
            put(&mut buffer, 4, &room.to_le_bytes());
            let result = ioctl(&File::open(root.join(name)).expect("open"), DIRECTORY_LAYOUT, &mut buffer);
            (result, u32_at(&buffer, 4), u32_at(&buffer, 8))
        };
        assert_eq!((make(b"spread\0", &on_mdts(&[2, 1])), layout("spread", 2)), (0, (0, 2, 2)));
        assert_eq!(layout("spread", 1), (-libc::E2BIG, 2, u32::from_le_bytes([FILL; 4])));
        assert_eq!((make(b"whole\0", &on_mdts(&[1])), layout("whole", 9).0), (0, -libc::ENODATA));
        assert_eq!(lfs(cluster, &["getdirstripe", "-m", text(&root.join("whole"))]), "1");
        assert_eq!(ioctl(&directory, DIRECTORY_DEFAULT, &mut on_mdts(&[2])), 0);
        fs::create_dir(root.join("by default")).expect("mkdir");
        assert_eq!(lfs(cluster, &["getdirstripe", "-m", text(&root.join("by default"))]), "2");
        assert_eq!(ioctl(&directory, DIRECTORY_DEFAULT, &mut [0xff; 48]), -libc::EINVAL);
    });
}
