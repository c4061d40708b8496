//! Group locks, requested in the form in which the preload library forwards them.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nacre_testkit::{Cluster, Shape, Stopped, errno, wait};
use rustix::process::Signal;

use super::ioctls::{ioctl, put, u32_at};
use super::{lfs, text};

const GROUP_LOCK: u32 = 0x4008_669e;
const GROUP_UNLOCK: u32 = 0x4008_669f;
const GETFLAGS: u32 = 0x8008_6697;
/// The preload library's own command: a call, and the number that it passes.
const BY_VALUE: u32 = 1 << 30 | 16 << 16 | (b'N' as u32) << 8 | 64;
/// Time in which an operation that has to wait does not end.
const A_WHILE: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

fn by_value(file: &File, command: u32, value: u64) -> i32 {
    let mut call = [0; 16];
    put(&mut call, 0, &u64::from(command).to_le_bytes());
    put(&mut call, 8, &value.to_le_bytes());
    ioctl(file, BY_VALUE, &mut call)
}

pub fn lock(file: &File, gid: u64) -> i32 {
    by_value(file, GROUP_LOCK, gid)
}

fn unlock(file: &File, gid: u64) -> i32 {
    by_value(file, GROUP_UNLOCK, gid)
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("open")
}

/// Opens a file for calls that do not wait.
fn open_impatient(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("open")
}

/// Reads a page past the kernel's cache, through a descriptor that does not wait.
fn hurried_read(path: &Path) -> std::io::Result<usize> {
    let flags = libc::O_DIRECT | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut page = vec![0u8; 8192];
    let skip = page.as_ptr().align_offset(4096);
    file.read_at(&mut page[skip..skip + 4096], 0)
}

/// Runs work on a thread; the result is received when it ends.
fn begin<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let _ = send.send(work());
    });
    receive
}

fn waits<T>(work: &Receiver<T>) -> bool {
    work.recv_timeout(A_WHILE).is_err()
}

fn end<T>(work: &Receiver<T>) -> T {
    work.recv_timeout(LONG).expect("it has nothing to wait for any more")
}

fn with_two(shape: Shape, case: fn(&mut Cluster, &[PathBuf; 2])) {
    let Some(mut cluster) = Cluster::start_to_share(shape, "gl") else { return };
    let first = cluster.directory("d");
    let second = cluster.add_mount().join("d");
    case(&mut cluster, &[first, second]);
    cluster.stop_and_check();
}

/// Members of one group write into the same pages from two mounts; all other access waits until the group
/// ends.
fn two_mounts(cluster: &mut Cluster, [first, second]: &[PathBuf; 2]) {
    let (here, there) = (first.join("f"), second.join("f"));
    lfs(cluster, &["setstripe", "-E", "1M", "-c", "2", "-S", "64K", "-E", "-1", "-c", "3", text(&here)]);
    let (a, b) = (open(&here), open(&there));
    assert_eq!((lock(&a, 7), lock(&b, 7)), (0, 0));
    for round in 0..50u64 {
        a.write_all_at(&[1; 100], 200 * round).expect("write");
        b.write_all_at(&[2; 100], 200 * round + 100).expect("write");
        // In a component that is new to both.
        a.write_all_at(&[3; 100], (3 << 20) + 200 * round).expect("write");
        b.write_all_at(&[4; 100], (3 << 20) + 200 * round + 100).expect("write");
    }
    assert_eq!(lock(&open_impatient(&there), 8), -libc::EAGAIN);
    let other = open(&there);
    let joined = begin(move || (lock(&other, 8), other));
    assert!(waits(&joined));
    assert_eq!(unlock(&b, 7), 0);
    assert!(waits(&joined), "the group ends with its last member");
    let (file, read) = (File::open(&there).expect("open"), [0; 10]);
    let reader = begin(move || {
        let mut read = read;
        file.read_exact_at(&mut read, 0).map(|()| read)
    });
    assert!(waits(&reader));
    a.write_all_at(&[9; 10], 0).expect("write");
    assert_eq!(unlock(&a, 7), 0);
    let (result, other) = end(&joined);
    assert_eq!(result, 0);
    // Another group holds the file: readers on its mount wait, and so do writers elsewhere.
    let writer = begin(move || a.write_all_at(&[5; 10], 0).map(|()| a));
    assert!(waits(&writer));
    assert_eq!(unlock(&other, 8), 0);
    let a = end(&writer).expect("write");
    assert!(matches!(end(&reader).expect("read"), [9, ..] | [5, ..]));
    let content = fs::read(&there).expect("read");
    assert_eq!(content.len(), (3 << 20) + 10_000);
    assert_eq!(content[..10], [5; 10]);
    for (place, byte) in content.iter().enumerate().skip(10) {
        let expected = match place {
            0..10_000 => 1 + u8::from(place % 200 >= 100),
            0x30_0000.. => 3 + u8::from((place - 0x30_0000) % 200 >= 100),
            _ => 0,
        };
        assert_eq!(*byte, expected, "at {place}");
    }
    drop(a);
}

/// A descriptor belongs to one group; other descriptors of its mount do not interfere.
fn one_mount(cluster: &mut Cluster, [first, _]: &[PathBuf; 2]) {
    cluster.set_default(&["-c", "1"]);
    let path = first.join("f");
    let (member, other) = (open(&path), open(&path));
    let flags = |file: &File| {
        let mut flags = [0; 8];
        assert_eq!(ioctl(file, GETFLAGS, &mut flags), 0);
        u32_at(&flags, 0)
    };
    assert_eq!(
        (lock(&member, 0), unlock(&member, 0), unlock(&member, 7)),
        (-libc::EINVAL, -libc::EINVAL, -libc::EINVAL)
    );
    assert_eq!((lock(&member, 7), flags(&member), flags(&other)), (0, 2, 0));
    assert_eq!(
        (lock(&member, 7), lock(&member, 8), unlock(&member, 8)),
        (-libc::EINVAL, -libc::EINVAL, -libc::EINVAL)
    );
    assert_eq!(lock(&File::open(first).expect("open"), 7), -libc::ENOTTY);
    assert_eq!(lock(&open_impatient(&path), 8), -libc::EAGAIN);
    // All operations of a member.
    member.write_all_at(&vec![1; 100_000], 0).expect("write");
    member.set_len(50_000).expect("ftruncate");
    rustix::fs::fallocate(&member, rustix::fs::FallocateFlags::empty(), 0, 60_000).expect("fallocate");
    assert_eq!(lfs(cluster, &["getstripe", "-c", text(&path)]), "1");
    let mut text = [0; 10];
    member.read_exact_at(&mut text, 10).expect("read");
    assert_eq!((text, member.metadata().expect("stat").len()), ([1; 10], 60_000));
    // Calls that do not wait get `EAGAIN`.
    let hurried = open_impatient(&path);
    assert_eq!(errno(hurried.write_at(b"x", 0)), libc::EAGAIN);
    assert_eq!(errno(hurried_read(&path)), libc::EAGAIN);
    // `EBUSY` instead of a wait: the kernel would let no member write while another write waits.
    assert_eq!(errno(other.write_at(b"x", 0)), libc::EBUSY);
    assert_eq!(errno(other.set_len(0)), libc::EBUSY);
    assert_eq!(errno(OpenOptions::new().write(true).truncate(true).open(&path)), libc::EBUSY);
    let reader = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path).expect("open");
    let reading = begin(move || {
        let mut page = vec![0u8; 8192];
        let skip = page.as_ptr().align_offset(4096);
        reader.read_at(&mut page[skip..skip + 4096], 0).map(|_| page[skip])
    });
    assert!(waits(&reading));
    member.write_all_at(&[2], 0).expect("write");
    // A second member joins, then the first leaves.
    let second = open(&path);
    assert_eq!((lock(&second, 7), unlock(&member, 7), flags(&member)), (0, 0, 0));
    assert_eq!(errno(member.write_at(b"x", 0)), libc::EBUSY);
    second.write_all_at(&[3], 0).expect("write");
    assert!(waits(&reading));
    drop(second);
    assert_eq!(end(&reading).expect("read"), 3, "a close ends it, too");
    hurried.write_all_at(&[4], 0).expect("write");
    assert_eq!(hurried_read(&path).expect("read"), 4096);
    assert_eq!(lock(&other, 9), 0);
    assert_eq!(unlock(&other, 9), 0);
}

/// A group of readers keeps writers on its mount waiting: it has nothing to write itself.
fn readers(cluster: &mut Cluster, [first, _]: &[PathBuf; 2]) {
    let path = first.join("f");
    fs::write(&path, [1; 5000]).expect("write");
    let member = File::open(&path).expect("open");
    assert_eq!(lock(&member, 7), 0);
    let (writer, shortener) = (open(&path), path.clone());
    let writing = begin(move || writer.write_all_at(&[2; 10], 0).map(|()| writer));
    assert!(waits(&writing));
    // No other operation waits with it.
    let mut byte = [0];
    member.read_exact_at(&mut byte, 0).expect("read");
    assert_eq!((byte, fs::metadata(&path).expect("stat").len()), ([1], 5000));
    fs::write(first.join("g"), b"x").expect("write of another file");
    assert_eq!(unlock(&member, 7), 0);
    let writer = end(&writing).expect("write");
    assert_eq!(lock(&member, 7), 0);
    let shortening = begin(move || OpenOptions::new().write(true).open(shortener)?.set_len(100));
    assert!(waits(&shortening));
    // A member that can write too: its writes would queue behind those that wait.
    assert_eq!(lock(&writer, 7), 0);
    assert_eq!(errno(end(&shortening)), libc::EBUSY);
    writer.write_all_at(&[3], 0).expect("write");
    assert_eq!((unlock(&member, 7), unlock(&writer, 7)), (0, 0));
    assert_eq!(fs::read(&path).expect("read")[..2], [3, 2]);
    // A wait can be interrupted.
    assert_eq!(lock(&member, 7), 0);
    let mut blocked = std::process::Command::new("sh");
    let mut blocked = blocked.args(["-c", "printf x >>\"$0\""]).arg(&path).spawn().expect("sh");
    let is_in_write = || {
        let call = fs::read_to_string(format!("/proc/{}/syscall", blocked.id())).expect("a child");
        call.starts_with(&format!("{} ", libc::SYS_write)).then_some(())
    };
    wait::until(LONG, "it waits in its write", is_in_write);
    cluster.signal(blocked.id(), Signal::TERM);
    wait::until(LONG, "it ends", || blocked.try_wait().expect("a child").map(drop));
    assert_eq!(fs::metadata(&path).expect("stat").len(), 5000);
    assert_eq!(unlock(&member, 7), 0);
}

/// The death of a group lock's holder releases the lock.
fn death(cluster: &mut Cluster, [first, second]: &[PathBuf; 2]) {
    let (here, there) = (first.join("f"), second.join("f"));
    let (a, b) = (open(&here), open(&there));
    b.write_all_at(&[1; 100], 0).expect("write");
    assert_eq!(lock(&b, 7), 0);
    let mine = lock(&open_impatient(&here), 8);
    assert_eq!(mine, -libc::EAGAIN);
    let writer = begin(move || a.write_all_at(&[2; 100], 0));
    assert!(waits(&writer));
    let mounts = cluster.processes().into_iter().filter(|(role, _)| role.contains("mount"));
    let (_, last) = mounts.max_by_key(|(_, pid)| *pid).expect("a process for the second mount");
    cluster.signal(last, Signal::KILL);
    end(&writer).expect("write");
    assert_eq!(fs::read(&here).expect("read"), [2; 100]);
    drop(b);
}

/// Objects that replace others belong to the group too.
fn replaced(cluster: &mut Cluster, [first, second]: &[PathBuf; 2]) {
    let (here, there) = (first.join("f"), second.join("f"));
    let a = open(&here);
    a.write_all_at(&[1; 100], 0).expect("write");
    fs::write(second.join("g"), [2; 100]).expect("write");
    assert_eq!(lock(&a, 7), 0);
    lfs(cluster, &["swap_layouts", "-n", text(&there), text(&second.join("g"))]);
    let mut byte = [0];
    a.read_exact_at(&mut byte, 0).expect("read");
    assert_eq!(byte, [2]);
    a.write_all_at(&[3], 0).expect("write");
    let file = open(&there);
    let writer = begin(move || file.write_all_at(&[4], 0));
    assert!(waits(&writer));
    assert_eq!(fs::read(second.join("g")).expect("nobody has this one")[0], 1);
    assert_eq!(unlock(&a, 7), 0);
    end(&writer).expect("write");
    assert_eq!(fs::read(&here).expect("read")[0], 4);
}

/// A caller that does not wait for other clients still waits for operations of its own mount.
fn own_writes(cluster: &mut Cluster, [first, _]: &[PathBuf; 2]) {
    cluster.set_default(&["-c", "1"]);
    let path = first.join("f");
    fs::write(&path, [1; 100]).expect("write");
    let index: u32 = lfs(cluster, &["getstripe", "-i", text(&path)]).parse().expect("an index");
    let direct =
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT | libc::O_SYNC).open(&path).expect("open");
    let role = format!("ost{index:04x}");
    let server = cluster.processes().into_iter().find(|(process, _)| *process == role);
    let stopped = server.map(|(_, pid)| Stopped::begin(cluster, pid));
    let writing = begin(move || {
        let mut pages = vec![2u8; 8192];
        let skip = pages.as_ptr().align_offset(4096);
        direct.write_all_at(&pages.split_off(skip)[..4096], 0)
    });
    // In one process the server cannot be stopped alone: there only the write-back data of `fs::write` is in
    // the way.
    match &stopped {
        Some(_) => assert!(waits(&writing)),
        None => end(&writing).expect("write"),
    }
    let joining = begin({
        let path = path.clone();
        move || {
            let member = open_impatient(&path);
            lock(&member, 7)
        }
    });
    assert!(stopped.is_none() || waits(&joining));
    if let Some(stopped) = stopped {
        drop(stopped);
        end(&writing).expect("write");
    }
    assert_eq!(end(&joining), 0);
}

macro_rules! cases {
    ($($name:ident: $case:ident,)*) => {
        mod embedded {
            $(#[test] fn $name() { super::with_two(super::Shape::Embedded, super::$case); })*
        }
        mod separate {
            $(#[test] fn $name() { super::with_two(super::Shape::Separate, super::$case); })*
        }
    };
}

cases! {
    members_of_a_group_write_beside_each_other_and_others_wait: two_mounts,
    others_of_the_same_mount_do_not_hold_a_member_up: one_mount,
    writers_of_a_mount_wait_for_a_group_that_only_reads: readers,
    a_group_lock_ends_with_its_client: death,
    a_group_follows_its_file_to_other_objects: replaced,
    who_does_not_wait_for_others_waits_for_writes_of_its_own_mount: own_writes,
}
