//! Data of files: reads, writes, maps, holes, copies, locks, limits.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use nacre_testkit::exerciser::{Map, fill};
use nacre_testkit::{errno, on_every_shape, program, wait};
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom as RawSeek};

/// Larger than any stripe of the default layout, and not a multiple of any size.
const LARGE: usize = (9 << 20) + 12_345;

fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fill(&mut Rng::with_seed(seed), &mut bytes);
    bytes
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

fn aligned(length: usize) -> (Vec<u8>, usize) {
    let memory = vec![0u8; length + 4096];
    let start = memory.as_ptr().align_offset(4096);
    (memory, start)
}

on_every_shape! {
    fn data_comes_back_in_pieces_of_any_size(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let bytes = random_bytes(1, LARGE);
        let mut file = File::create(&path).expect("create");
        let mut rest = bytes.as_slice();
        for size in [1, 4095, 4096, 4097, 65_536, 1_000_003, 1 << 20, usize::MAX].iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, next) = rest.split_at(rest.len().min(*size));
            file.write_all(piece).expect("write");
            rest = next;
        }
        drop(file);
        assert!(fs::read(&path).expect("read") == bytes);
        let file = File::open(&path).expect("open");
        for (start, length) in [(0, 1), (4_194_303, 2), (4_194_304, 4_194_304), (LARGE - 1, 1), (1_234_567, 3)] {
            let mut piece = vec![0; length];
            file.read_exact_at(&mut piece, start as u64).expect("read");
            assert!(piece == bytes[start..start + length], "{length} bytes at {start}");
        }
        assert_eq!(file.read_at(&mut [0; 10], LARGE as u64).expect("read"), 0, "nothing beyond the end");
        assert_eq!(file.read_at(&mut [0; 10], LARGE as u64 - 3).expect("read"), 3, "a short read at the end");
    }

    fn direct_and_buffered_io_see_each_other(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let buffered = read_write(&path);
        let direct = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
        buffered.write_all_at(&random_bytes(2, 1 << 20), 0).expect("write");
        let (mut memory, start) = aligned(64 << 10);
        let block = &mut memory[start..start + (64 << 10)];
        direct.read_exact_at(block, 128 << 10).expect("direct read of what was just written");
        assert!(*block == random_bytes(2, 1 << 20)[128 << 10..192 << 10]);
        block.copy_from_slice(&random_bytes(3, 64 << 10));
        direct.write_all_at(block, 256 << 10).expect("direct write");
        let mut piece = vec![0; 64 << 10];
        buffered.read_exact_at(&mut piece, 256 << 10).expect("buffered read");
        assert!(piece == *block);
        let length = direct.read_at(block, (1 << 20) - 4096).expect("direct read at the end");
        assert_eq!(length, 4096);
        buffered.set_len((1 << 20) - 100).expect("truncate");
        let length = direct.read_at(block, (1 << 20) - 4096).expect("direct read of a tail");
        assert_eq!(length, 3996);
    }

    fn appends_of_several_processes_do_not_overwrite_each_other(cluster) {
        let root = cluster.directory("d");
        let script = r#"for w in 1 2 3 4; do
            (for i in $(seq 500); do printf 'writer %d line %06d %0100d\n' $w $i 0; done >> "$1/log") &
        done; wait"#;
        program::shell(&root, script, [&root]).success();
        let text = fs::read_to_string(root.join("log")).expect("read");
        assert_eq!(text.lines().count(), 2000);
        for writer in 1..=4 {
            let start = format!("writer {writer} ");
            let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(&start)).collect();
            assert_eq!(lines.len(), 500);
            assert!(lines.is_sorted() && lines.iter().all(|line| line.len() == lines[0].len()));
        }
        let mut file = OpenOptions::new().append(true).read(true).open(root.join("log")).expect("open");
        let length = file.metadata().expect("fstat").len();
        file.write_all_at(b"X", 0).expect("pwrite with O_APPEND");
        assert_eq!(file.metadata().expect("fstat").len(), length + 1, "O_APPEND wins over an offset");
        file.seek(SeekFrom::Start(0)).expect("seek");
        file.write_all(b"Y").expect("write");
        assert!(fs::read_to_string(root.join("log")).expect("read").ends_with("XY"));
    }

    fn truncation_cuts_and_grows_with_zeros(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let bytes = random_bytes(4, LARGE);
        fs::write(&path, &bytes).expect("write");
        let file = read_write(&path);
        for size in [LARGE - 1, 5_000_001, 4_194_304, 4_194_303, 1, 0] {
            file.set_len(size as u64).expect("truncate");
            assert_eq!(fs::metadata(&path).expect("stat").len(), size as u64);
            assert!(fs::read(&path).expect("read") == bytes[..size], "cut to {size}");
        }
        fs::write(&path, &bytes[..5_000]).expect("write");
        let file = read_write(&path);
        file.set_len(1_000).expect("cut");
        file.set_len(6_000_000).expect("grow");
        let content = fs::read(&path).expect("read");
        assert!(content[..1_000] == bytes[..1_000] && content[1_000..].iter().all(|&byte| byte == 0));
        assert_eq!(content.len(), 6_000_000);
        assert!(File::options().write(true).truncate(true).open(&path).is_ok());
        assert_eq!(fs::metadata(&path).expect("stat").len(), 0, "O_TRUNC");
    }

    fn holes_are_zeros_that_seek_finds(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let file = read_write(&path);
        let data = random_bytes(5, 1 << 20);
        file.write_all_at(&data, 64 << 20).expect("far away");
        file.sync_all().expect("fsync");
        assert_eq!(file.metadata().expect("fstat").len(), 65 << 20);
        assert!(file.metadata().expect("fstat").blocks() * 512 < 16 << 20, "a hole takes no space");
        let mut zeros = vec![1; 1 << 20];
        file.read_exact_at(&mut zeros, 20 << 20).expect("read a hole");
        assert!(zeros.iter().all(|&byte| byte == 0));
        let seek = |from| rustix::fs::seek(&file, from);
        let first = seek(RawSeek::Data(0)).expect("data");
        assert!(first <= 64 << 20, "data is found: {first}");
        assert!(seek(RawSeek::Data(64 << 20)).expect("data") == 64 << 20);
        assert_eq!(seek(RawSeek::Hole(64 << 20)).expect("hole"), 65 << 20, "the end of the file is a hole");
        assert_eq!(errno(seek(RawSeek::Data(65 << 20))), libc::ENXIO);
        assert_eq!(errno(seek(RawSeek::Hole(66 << 20))), libc::ENXIO);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, (64 << 20) + 1000, 100_000).expect("punch");
        let content = fs::read(&path).expect("read");
        let tail = &content[64 << 20..];
        assert!(tail[..1000] == data[..1000] && tail[101_000..] == data[101_000..]);
        assert!(tail[1000..101_000].iter().all(|&byte| byte == 0));
        assert_eq!(content.len(), 65 << 20, "punching keeps the size");
    }

    fn preallocation_grows_only_when_asked(cluster) {
        let root = cluster.directory("d");
        let file = read_write(&root.join("file"));
        file.write_all_at(b"text", 0).expect("write");
        rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 5 << 20).expect("fallocate");
        assert_eq!(file.metadata().expect("fstat").len(), 4);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 6 << 20).expect("fallocate");
        assert_eq!(file.metadata().expect("fstat").len(), 6 << 20);
        let content = fs::read(root.join("file")).expect("read");
        assert!(&content[..4] == b"text" && content[4..].iter().all(|&byte| byte == 0));
        let read_only = File::open(root.join("file")).expect("open");
        assert_eq!(errno(rustix::fs::fallocate(&read_only, FallocateFlags::empty(), 0, 1)), libc::EBADF);
    }

    fn ranges_are_copied_between_files(cluster) {
        let root = cluster.directory("d");
        let bytes = random_bytes(6, LARGE);
        fs::write(root.join("a"), &bytes).expect("write");
        let source = File::open(root.join("a")).expect("open");
        let target = read_write(&root.join("b"));
        let (mut from, mut to, mut left) = (1_000_000u64, 77u64, 7_000_000usize);
        while left > 0 {
            let copied = rustix::fs::copy_file_range(&source, Some(&mut from), &target, Some(&mut to), left);
            match copied.expect("copy") {
                0 => panic!("copy ends early"),
                count => left -= count,
            }
        }
        let content = fs::read(root.join("b")).expect("read");
        assert_eq!(content.len(), 7_000_077);
        assert!(content[..77].iter().all(|&byte| byte == 0) && content[77..] == bytes[1_000_000..8_000_000]);
        fs::copy(root.join("a"), root.join("c")).expect("copy of a whole file");
        assert!(fs::read(root.join("c")).expect("read") == bytes);
        fs::copy(root.join("a"), "/dev/null").expect("to another file system");
        program::shell(&root, "cp --sparse=always a e && cmp a e && cp --reflink=auto a f && cmp a f", [""; 0]).success();
    }

    fn maps_are_shared_with_reads_and_writes(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, random_bytes(7, 300_000)).expect("write");
        let file = read_write(&path);
        let mut map = Map::new(&file, 300_000).expect("mmap");
        assert!(map.bytes() == random_bytes(7, 300_000));
        map.bytes_mut()[100_000..100_005].copy_from_slice(b"mmap!");
        let mut piece = [0; 5];
        file.read_exact_at(&mut piece, 100_000).expect("read");
        assert_eq!(&piece, b"mmap!", "a store is seen by read at once");
        file.write_all_at(b"write", 200_000).expect("write");
        assert_eq!(&map.bytes()[200_000..200_005], b"write", "a write is seen in the map at once");
        let second = File::open(&path).expect("another open file");
        second.read_exact_at(&mut piece, 100_000).expect("read");
        assert_eq!(&piece, b"mmap!");
        map.sync().expect("msync");
        drop(map);
        drop(file);
        assert_eq!(&fs::read(&path).expect("read")[100_000..100_005], b"mmap!");
        let file = read_write(&path);
        let mut map = Map::new(&file, 300_000).expect("mmap");
        drop(file);
        map.bytes_mut()[0..5].copy_from_slice(b"after");
        drop(map);
        assert_eq!(&fs::read(&path).expect("read")[0..5], b"after", "stores count after close and munmap, too");
    }

    fn private_maps_change_nothing(cluster) {
        let root = cluster.directory("d");
        let path = root.join("program");
        fs::copy("/bin/ls", &path).expect("copy");
        let before = fs::read(&path).expect("read");
        program::shell(&root, "chmod 755 program; ./program -l . > listing; grep -q program listing", [""; 0]).success();
        assert!(fs::read(&path).expect("read") == before);
    }

    fn offsets_beyond_the_limit_are_refused(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let file = read_write(&path);
        assert_eq!(errno(file.write_at(b"x", i64::MAX as u64 - 1)), libc::EFBIG);
        assert_eq!(errno(file.write_at(b"x", (i64::MAX as u64) + 1)), libc::EINVAL);
        assert_eq!(errno(rustix::fs::ftruncate(&file, i64::MAX as u64)), libc::EFBIG);
        assert_eq!(file.metadata().expect("fstat").len(), 0, "nothing of it was done");
        let far = (1u64 << 40) - 5;
        file.write_all_at(b"far out", far).expect("1 TiB is within the limit");
        let mut text = [0; 7];
        file.read_exact_at(&mut text, far).expect("read");
        assert_eq!(&text, b"far out");
        assert_eq!(file.metadata().expect("fstat").len(), far + 7);
        let script = "ulimit -f 1; trap '' XFSZ; ! dd if=/dev/zero of=limited bs=1000 count=3 2>message; grep -q 'too large' message";
        program::shell(&root, script, [""; 0]).success();
    }

    fn whole_file_locks_exclude_each_other(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let (first, second) = (read_write(&path), read_write(&path));
        let lock = |file: &File, operation| rustix::fs::flock(file, operation);
        lock(&first, FlockOperation::LockShared).expect("shared");
        lock(&second, FlockOperation::NonBlockingLockShared).expect("shared twice");
        assert_eq!(errno(lock(&second, FlockOperation::NonBlockingLockExclusive)), libc::EWOULDBLOCK);
        lock(&first, FlockOperation::Unlock).expect("unlock");
        lock(&second, FlockOperation::NonBlockingLockExclusive).expect("the other one has no lock");
        let waiting = read_write(&path);
        let thread = std::thread::spawn(move || {
            rustix::fs::flock(&waiting, FlockOperation::LockExclusive).expect("wait for the lock");
        });
        assert!(!thread.is_finished());
        lock(&second, FlockOperation::Unlock).expect("unlock");
        wait::until(wait::SOON, "the waiter has the lock", || thread.is_finished().then_some(()));
        thread.join().expect("no panic");
        lock(&second, FlockOperation::Unlock).expect("unlock");
        // In a process of its own: processes that other tests are just forking have copies of this one's
        // files.
        let script = "import fcntl,sys\nf,g=(open(sys.argv[1]) for i in range(2))\nfor i in range(20):\n fcntl.flock(f,fcntl.LOCK_EX)\n f.close()\n fcntl.flock(g,fcntl.LOCK_EX|fcntl.LOCK_NB)\n f,g=g,open(sys.argv[1])\n";
        if nacre_testkit::requirements::have(&["python3"]) {
            program::run("python3", ["-c", script, path.to_str().expect("UTF-8")]).success();
        }
    }

    fn record_locks_exclude_other_processes(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, [0; 100]).expect("write");
        let file = read_write(&path);
        let set = |kind: i32, start: i64, length: i64| {
            // SAFETY: flock is plain data for which all zeroes is valid.
            let mut record: libc::flock = unsafe { std::mem::zeroed() };
            record.l_type = kind as i16;
            record.l_whence = libc::SEEK_SET as i16;
            record.l_start = start;
            record.l_len = length;
            // SAFETY: the kernel reads `record`, which lives across the call.
            let result = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLK, &record) };
            if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        set(libc::F_WRLCK, 10, 10).expect("lock bytes 10 to 20");
        // Another process: record locks do not exclude threads of one.
        let attempt = |start: u64, length: u64| {
            let script = format!(
                "import fcntl,sys\nf=open(sys.argv[1],'r+b')\ntry:\n fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,{length},{start})\nexcept OSError as e:\n sys.exit(e.errno)\n"
            );
            program::run("python3", ["-c", &script, path.to_str().expect("UTF-8")]).code()
        };
        if nacre_testkit::requirements::have(&["python3"]) {
            assert!([libc::EAGAIN, libc::EACCES].contains(&attempt(15, 1)));
            assert_eq!(attempt(0, 10), 0);
            assert_eq!(attempt(20, 10), 0);
            set(libc::F_UNLCK, 12, 4).expect("unlock the middle");
            assert_eq!(attempt(12, 4), 0);
            assert!([libc::EAGAIN, libc::EACCES].contains(&attempt(11, 3)));
        }
        drop(file);
        assert_eq!(attempt(0, 100), 0, "closing lets go of everything");
    }

    fn locks_of_an_open_file_go_with_its_last_descriptor(cluster) {
        if !nacre_testkit::requirements::have(&["python3"]) {
            return;
        }
        let path = cluster.directory("d").join("file");
        fs::write(&path, [0; 100]).expect("write");
        // These locks belong to neither process nor thread, so one process is sufficient; a separate one for
        // the reason above.
        let script = r"
import fcntl, os, struct, sys
def lock(file, command, kind):
    record = struct.pack('hhqqi4x', kind, os.SEEK_SET, 0, 10, 0)
    return struct.unpack('hhqqi4x', fcntl.fcntl(file, command, record))[0]
for round in range(10):
    first, second = (os.open(sys.argv[1], os.O_RDWR) for _ in range(2))
    lock(first, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
    assert lock(second, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) == fcntl.F_WRLCK
    copy = os.dup(first)
    os.close(first)
    assert lock(second, fcntl.F_OFD_GETLK, fcntl.F_RDLCK) == fcntl.F_WRLCK, 'a copy keeps it'
    os.close(copy)
    if round % 2:
        assert lock(second, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) == fcntl.F_UNLCK
    lock(second, fcntl.F_OFD_SETLK, fcntl.F_WRLCK)
    os.close(second)
";
        program::run("python3", ["-c", script, path.to_str().expect("UTF-8")]).success();
    }

    fn a_blocked_lock_can_be_interrupted(cluster) {
        let root = cluster.directory("d");
        let path = root.join("file");
        let file = read_write(&path);
        rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("lock");
        let mut command = cluster.run().command("flock");
        let mut child = command.arg(&path).arg("true").spawn().expect("flock starts");
        wait::until(wait::SOON, "flock waits for the lock", || {
            let call = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
            call.starts_with(&format!("{} ", libc::SYS_flock)).then_some(())
        });
        child.kill().expect("kill");
        wait::until(wait::SOON, "the waiter has ended", || child.try_wait().expect("our child"));
        let second = read_write(&path);
        rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlock");
        wait::until(wait::SOON, "no lock is left of it", || {
            rustix::fs::flock(&second, FlockOperation::NonBlockingLockExclusive).ok()
        });
    }

    fn syncs_succeed_on_files_directories_and_the_file_system(cluster) {
        let root = cluster.directory("d");
        let mut file = File::create(root.join("file")).expect("create");
        for round in 0..50 {
            file.write_all(&[round; 1000]).expect("append");
            file.sync_data().expect("fdatasync");
        }
        file.sync_all().expect("fsync");
        let directory = File::open(&root).expect("open");
        directory.sync_all().expect("fsync of a directory");
        rustix::fs::syncfs(&directory).expect("syncfs");
        let mut file = OpenOptions::new().write(true).custom_flags(libc::O_SYNC).open(root.join("file")).expect("open");
        file.write_all(b"synchronous").expect("write with O_SYNC");
        File::open(root.join("file")).expect("read-only").sync_all().expect("fsync of what others wrote");
    }

    fn many_open_files_are_served_at_once(cluster) {
        let root = cluster.directory("d");
        let mut files: Vec<File> = (0..800).map(|index| read_write(&root.join(index.to_string()))).collect();
        for (index, file) in files.iter_mut().enumerate() {
            write!(file, "file {index}").expect("write");
        }
        for (index, file) in files.iter_mut().enumerate() {
            let mut text = String::new();
            file.seek(SeekFrom::Start(0)).expect("seek");
            file.read_to_string(&mut text).expect("read");
            assert_eq!(text, format!("file {index}"));
        }
        drop(files);
        fs::remove_dir_all(&root).expect("rm -r");
    }

    fn readers_and_writers_of_one_file_see_whole_blocks(cluster) {
        const BLOCK: usize = 64 << 10;
        let root = cluster.directory("d");
        let path = root.join("file");
        fs::write(&path, [1u8; BLOCK]).expect("write");
        wait::deadline(Duration::from_secs(120), "readers and writers", move || {
            std::thread::scope(|scope| {
                for value in 1..=2u8 {
                    let path = &path;
                    scope.spawn(move || {
                        let file = read_write(path);
                        for round in 0..300u32 {
                            file.write_all_at(&[value * 100 + (round % 50) as u8; BLOCK], 0).expect("write");
                        }
                    });
                }
                for _ in 0..2 {
                    let path = &path;
                    scope.spawn(move || {
                        let file = File::open(path).expect("open");
                        let mut block = vec![0; BLOCK];
                        for _ in 0..300 {
                            file.read_exact_at(&mut block, 0).expect("read");
                            assert!(block.iter().all(|byte| *byte != 0), "no zeros that nobody wrote");
                        }
                    });
                }
            });
        });
    }
}
