//! Files of one mount.

use super::support::{copy_program, on_servers};
use nacre_fuse::front::{CacheMode, FrontOptions};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn data_comes_back_through_every_cache_mode() {
    on_servers(3, |servers| {
        for cache in [CacheMode::Auto, CacheMode::Always, CacheMode::Never] {
            let mount = servers.mount_with(FrontOptions { cache, ..FrontOptions::default() });
            let path = mount.path("data");
            let data: Vec<u8> =
                (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            fs::write(&path, &data).expect("written");
            assert!(fs::read(&path).expect("read") == data, "{cache:?}");
            let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
            file.write_all_at(b"middle", 1_000_001).expect("written");
            let mut back = [0; 6];
            file.read_exact_at(&mut back, 1_000_001).expect("read");
            assert_eq!(&back, b"middle");
            file.set_len(100).expect("cut");
            file.set_len(200).expect("extended");
            let cut = fs::read(&path).expect("read");
            assert!(cut[..100] == data[..100] && cut[100..] == [0; 100], "{cache:?}");
            assert_eq!(file.metadata().expect("there").len(), 200);
            fs::remove_file(&path).expect("removed");
        }
    });
}

/// Reads through the page cache and writes around it must not leave old data in the cache, whatever their
/// order.
#[test]
fn writes_around_the_page_cache_leave_no_old_data_in_it() {
    on_servers(2, |servers| {
        let mount = servers.mount();
        let path = mount.path("data");
        fs::write(&path, vec![0; 256 << 10]).expect("written");
        let direct = OpenOptions::new().write(true).open(&path).expect("opened");
        let ended = AtomicBool::new(false);
        nacre_env::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let cached = File::open(&path).expect("opened");
                    let mut buffer = vec![0; 256 << 10];
                    while !ended.load(Ordering::Relaxed) {
                        cached.read_exact_at(&mut buffer, 0).expect("read");
                    }
                });
            }
            let cached = File::open(&path).expect("opened");
            let mut buffer = vec![0; 256 << 10];
            for round in 1..=100u8 {
                direct.write_all_at(&vec![round; 256 << 10], 0).expect("written");
                cached.read_exact_at(&mut buffer, 0).expect("read");
                assert!(buffer.iter().all(|&byte| byte == round), "round {round}");
            }
            ended.store(true, Ordering::Relaxed);
        });
    });
}

/// Two ways to write the same pages of a new file, each with other bytes: none is lost.
#[test]
fn stores_to_a_mapping_and_writes_beside_them_both_arrive() {
    on_servers(1, |servers| {
        const PAGES: usize = 512;
        let mount = servers.mount();
        let path = mount.path("data");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("opened");
        file.set_len((PAGES * 4096) as u64).expect("extended");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of a file that is long enough; nothing else in the process refers to it.
        let map = unsafe {
            libc::mmap(std::ptr::null_mut(), PAGES * 4096, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(map, libc::MAP_FAILED);
        let address = map as usize;
        nacre_env::thread::scope(|scope| {
            scope.spawn(|| {
                for page in 0..PAGES {
                    // SAFETY: within the mapping, which lives until the scope has ended.
                    unsafe { (address as *mut u8).add(page * 4096).write_volatile(1) };
                }
            });
            scope.spawn(|| {
                for page in 0..PAGES {
                    file.write_all_at(&[2], (page * 4096 + 8) as u64).expect("written");
                }
            });
        });
        // SAFETY: the mapping that was created above, without any other user.
        unsafe {
            assert_eq!(libc::msync(map, PAGES * 4096, libc::MS_SYNC), 0);
            assert_eq!(libc::munmap(map, PAGES * 4096), 0);
        }
        drop(file);
        let data = fs::read(&path).expect("read");
        for page in 0..PAGES {
            assert_eq!((data[page * 4096], data[page * 4096 + 8]), (1, 2), "page {page}");
        }
    });
}

#[test]
fn a_mapped_file_is_written_back() {
    on_servers(2, |servers| {
        let mount = servers.mount();
        let path = mount.path("mapped");
        fs::write(&path, vec![b'a'; 10_000]).expect("written");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("opened");
        // SAFETY: a fresh mapping of a file that is long enough; nothing else in the process refers to it.
        unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let map =
                libc::mmap(std::ptr::null_mut(), 10_000, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(map, libc::MAP_FAILED);
            map.cast::<u8>().add(5_000).write(b'z');
            assert_eq!(libc::msync(map, 10_000, libc::MS_SYNC), 0);
            assert_eq!(libc::munmap(map, 10_000), 0);
        }
        assert_eq!(fs::read(&path).expect("read")[4_999..5_002], *b"aza");
    });
}

#[test]
fn programs_run_from_the_mount() {
    on_servers(2, |servers| {
        let mount = servers.mount();
        let path = mount.path("program");
        copy_program("/bin/true", &path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o711)).expect("owner");
        assert!(std::process::Command::new(&path).status().expect("started").success());
    });
}

#[test]
fn a_running_program_is_not_truncated() {
    on_servers(2, |servers| {
        let mount = servers.mount();
        let path = mount.path("program");
        copy_program("/bin/sleep", &path);
        let length = fs::metadata(&path).expect("there").len();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("owner");
        let mut child = std::process::Command::new(&path).arg("60").spawn().expect("started");
        for flags in [libc::O_WRONLY, libc::O_RDWR | libc::O_TRUNC, libc::O_RDONLY | libc::O_TRUNC] {
            let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).expect("no NUL");
            // SAFETY: the name ends with NUL and lives through the call.
            let descriptor = unsafe { libc::open(name.as_ptr(), flags) };
            assert_eq!(
                (descriptor, std::io::Error::last_os_error().raw_os_error()),
                (-1, Some(libc::ETXTBSY))
            );
        }
        assert_eq!(fs::metadata(&path).expect("there").len(), length);
        child.kill().expect("ours");
        child.wait().expect("ours");
    });
}

#[test]
fn appends_of_several_descriptors_go_to_the_end() {
    on_servers(2, |servers| {
        let mount = servers.mount();
        let path = mount.path("log");
        let open = || OpenOptions::new().append(true).create(true).open(&path).expect("opened");
        let mut files = [open(), open(), open()];
        for round in 0..30 {
            for file in &mut files {
                writeln!(file, "{round}").expect("written");
            }
        }
        let text = fs::read_to_string(&path).expect("read");
        let numbers: Vec<i32> = text.lines().map(|line| line.parse().expect("a number")).collect();
        assert_eq!(numbers, (0..30).flat_map(|n| [n; 3]).collect::<Vec<_>>());
    });
}

#[test]
fn a_large_directory_is_listed_whole_while_it_is_being_changed() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let dir = mount.path("many");
        fs::create_dir(&dir).expect("made");
        for i in 0..3000 {
            File::create(dir.join(format!("stays{i}"))).expect("made");
        }
        let mut names = BTreeSet::new();
        for (i, entry) in fs::read_dir(&dir).expect("opened").enumerate() {
            let entry = entry.expect("listed");
            assert!(entry.metadata().is_ok());
            assert!(names.insert(entry.file_name()), "{:?} twice", entry.file_name());
            if i % 10 == 0 {
                File::create(dir.join(format!("comes{i}"))).expect("made");
            }
        }
        assert_eq!(names.iter().filter(|name| name.to_string_lossy().starts_with("stays")).count(), 3000);
    });
}

#[test]
fn attributes_in_a_listing_are_never_older_than_a_change() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        for i in 0..200 {
            fs::write(mount.path(&format!("f{i}")), b"x").expect("written");
        }
        let mut listing = fs::read_dir(&mount.dir).expect("opened");
        listing.next().expect("not empty").expect("listed");
        for i in 0..200 {
            fs::set_permissions(mount.path(&format!("f{i}")), fs::Permissions::from_mode(0o600))
                .expect("owner");
        }
        assert!(listing.all(|entry| entry.is_ok()));
        for i in 0..200 {
            let mode = fs::metadata(mount.path(&format!("f{i}"))).expect("there").mode();
            assert_eq!(mode & 0o777, 0o600);
        }
    });
}

#[test]
fn unnamed_files_vanish_or_get_a_name() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(&mount.dir)
            .expect("opened");
        file.write_all(b"unnamed").expect("written");
        assert_eq!(file.metadata().expect("open").nlink(), 0);
        assert_eq!(fs::read_dir(&mount.dir).expect("opened").count(), 0);
        let from = std::ffi::CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no NUL");
        let to = std::ffi::CString::new(mount.path("named").to_str().expect("UTF-8")).expect("no NUL");
        // SAFETY: both are strings that end with NUL and live through the call.
        let linked = unsafe {
            libc::linkat(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), libc::AT_SYMLINK_FOLLOW)
        };
        assert_eq!(linked, 0, "{}", std::io::Error::last_os_error());
        drop(file);
        assert_eq!(fs::read(mount.path("named")).expect("read"), b"unnamed");
    });
}

#[test]
fn holes_and_ranges_are_handled_by_the_kernels_calls() {
    on_servers(3, |servers| {
        let mount = servers.mount();
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(mount.path("sparse"))
            .expect("made");
        file.write_all_at(b"far", 1 << 20).expect("written");
        // SAFETY: plain numbers.
        let seek = |whence| unsafe { libc::lseek(file.as_raw_fd(), 0, whence) };
        assert_eq!(seek(libc::SEEK_HOLE), 0);
        assert_eq!(seek(libc::SEEK_DATA), 1 << 20);
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: plain numbers.
        assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), punch, 1 << 20, 4096) }, 0);
        assert_eq!(file.metadata().expect("open").len(), (1 << 20) + 3);
        let target = File::create(mount.path("copy")).expect("made");
        file.write_all_at(&[7; 5000], 0).expect("written");
        let (mut from, mut to) = (0i64, 100i64);
        // SAFETY: both offsets live through the call.
        let copied = unsafe {
            libc::copy_file_range(file.as_raw_fd(), &mut from, target.as_raw_fd(), &mut to, 5000, 0)
        };
        assert_eq!(copied, 5000, "{}", std::io::Error::last_os_error());
        let mut all = Vec::new();
        File::open(mount.path("copy")).expect("opened").read_to_end(&mut all).expect("read");
        assert!(all.len() == 5100 && all[..100] == [0; 100] && all[100..] == [7; 5000]);
        file.seek(SeekFrom::Start(0)).expect("seeked");
        file.sync_all().expect("synced");
    });
}

#[test]
fn times_are_kept_to_the_nanosecond_and_creation_is_known() {
    on_servers(1, |servers| {
        let mount = servers.mount();
        let file = File::create(mount.path("file")).expect("made");
        let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_001, 123_456_789);
        file.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).expect("set");
        drop(file);
        let meta = fs::metadata(mount.path("file")).expect("there");
        assert_eq!(meta.modified().expect("known"), time);
        assert!(meta.created().expect("known") > time);
    });
}
