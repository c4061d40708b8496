//! The memory of a program that waits in an ioctl.
//!
//! The kernel copies as many bytes as the ioctl's number says, which for many of Lustre's is the size of a
//! pointer; the rest is read and written where the pointer points. That is done for the calling thread only:
//! according to the kernel, it must be in exactly this system call when its memory is read and again when it
//! is written. It stays there until it is answered, so no other thread can reuse its id meanwhile, unless the
//! mount is aborted.
//!
//! A daemon that may not inspect the caller (another user's, a foreign PID namespace) gets EPERM from the
//! kernel, and so does the caller.

use nacre_env::clock::Instant;
use rustix::fs::OFlags;
use std::fs;
use std::io::IoSliceMut;
use std::time::Duration;

use nacre_client::Caller;
use nacre_types::{Status, StatusResult};

use crate::abi::IOCTL_COMPAT;
use crate::request::Ioctl;

/// Unit in bytes of which all page sizes are multiples.
const PAGE_BYTES: u64 = 4096;
/// Time limit for a thread that has sent its request to fall asleep, far above the usual moment.
const ASLEEP_WITHIN: Duration = Duration::from_secs(1);
/// File system type of nacre mounts in mount tables.
const MOUNT_TYPE: &str = "fuse.nacre";

/// Memory of the thread behind a request.
pub(super) struct Memory {
    pid: libc::pid_t,
    uid: u32,
    command: u32,
    argument: u64,
}

/// A file that the caller has open, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpenFile {
    /// Number of the inode.
    pub inode: u64,
    /// Device number of its file system.
    pub device: (u32, u32),
    /// It is on a mount of this program, in this process or another.
    pub is_ours: bool,
    /// Open for writing.
    pub is_writable: bool,
    /// Open with `O_NONBLOCK`.
    pub is_nonblocking: bool,
}

impl Memory {
    /// Creates the access to the memory behind a request.
    ///
    /// # Errors
    /// `ENOTTY` for 32-bit programs, whose structures differ; `EPERM` if the caller cannot be inspected.
    pub(super) fn of(caller: &Caller, call: &Ioctl<'_>) -> StatusResult<Memory> {
        if call.flags & IOCTL_COMPAT != 0 {
            return Err(Status::ENOTTY);
        }
        let pid = libc::pid_t::try_from(caller.pid).ok().filter(|pid| *pid > 0).ok_or(Status::EPERM)?;
        let memory = Memory { pid, uid: caller.uid, command: call.cmd, argument: call.arg };
        memory.check()?;
        Ok(memory)
    }

    /// Returns the argument of the ioctl: an address.
    pub(super) fn argument(&self) -> u64 {
        self.argument
    }

    /// Returns the caller's umask; all bits if it is unknown.
    pub(super) fn umask(&self) -> u32 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        umask_in(&status).unwrap_or(0o777)
    }

    /// Returns the file that the call was made on.
    ///
    /// # Errors
    /// `EPERM` if the caller cannot be inspected.
    pub(super) fn own_file(&self) -> StatusResult<OpenFile> {
        let line = fs::read_to_string(format!("/proc/{}/syscall", self.pid)).map_err(|_| Status::EPERM)?;
        self.file(first_argument(&line).ok_or(Status::EPERM)? as u32)
    }

    /// Returns the file that the caller has open under a descriptor number.
    ///
    /// # Errors
    /// `EBADF` if there is none.
    pub(super) fn file(&self, fd: u32) -> StatusResult<OpenFile> {
        let pid = self.pid;
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).map_err(|_| Status::EBADF)?;
        let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).map_err(|_| Status::EPERM)?;
        open_file(&info, &mounts).ok_or(Status::EBADF)
    }

    /// Checks that the thread waits in this very call, and acts for the user of the request.
    fn check(&self) -> StatusResult<()> {
        let pid = self.pid;
        let deadline = Instant::now() + ASLEEP_WITHIN;
        let asleep = loop {
            let now = fs::read_to_string(format!("/proc/{pid}/syscall")).map_err(|_| Status::EPERM)?;
            // A thread that has not fallen asleep yet shows no call.
            if now.trim_end() != "running" {
                break now;
            }
            if Instant::now() > deadline {
                return Err(Status::EPERM);
            }
            nacre_env::thread::yield_now();
        };
        let status = fs::read_to_string(format!("/proc/{pid}/status")).map_err(|_| Status::EPERM)?;
        match is_call(&asleep, self.command, self.argument) && fs_user(&status) == Some(self.uid) {
            true => Ok(()),
            false => Err(Status::EPERM),
        }
    }

    /// Fills `out` with the bytes at `address`.
    ///
    /// # Errors
    /// `EFAULT` if not all of it can be read.
    pub(super) fn read(&self, address: u64, out: &mut [u8]) -> StatusResult<()> {
        if self.read_some(address, out)? == out.len() { Ok(()) } else { Err(Status::EFAULT) }
    }

    /// Returns `length` bytes at `address`.
    pub(super) fn read_vec(&self, address: u64, length: usize) -> StatusResult<Vec<u8>> {
        let mut out = vec![0; length];
        self.read(address, &mut out)?;
        Ok(out)
    }

    /// Returns at most `length` bytes at `address`, fewer if the next page is not mapped: for text that may
    /// end earlier.
    pub(super) fn read_text(&self, address: u64, length: usize) -> StatusResult<Vec<u8>> {
        let mut out = vec![0; length];
        let to_page_end = (PAGE_BYTES - address % PAGE_BYTES) as usize;
        let mut done = 0;
        for end in [to_page_end.min(length), length] {
            let from = address.checked_add(done as u64).ok_or(Status::EFAULT)?;
            match self.read_some(from, &mut out[done..end]) {
                Ok(read) if done + read == end => done = end,
                Err(status) if done == 0 => return Err(status),
                _ => break,
            }
        }
        out.truncate(done);
        Ok(out)
    }

    fn read_some(&self, address: u64, out: &mut [u8]) -> StatusResult<usize> {
        let there = [remote(address, out.len())?];
        let mut here = [IoSliceMut::new(out)];
        // SAFETY: an IoSliceMut has the layout of an iovec and borrows `out` mutably for the call; the other
        // range is in another process, where the kernel checks it.
        let read =
            unsafe { libc::process_vm_readv(self.pid, here.as_mut_ptr().cast(), 1, there.as_ptr(), 1, 0) };
        usize::try_from(read).map_err(|_| Status::from_io(&std::io::Error::last_os_error()))
    }

    /// Writes these bytes at `address`.
    ///
    /// # Errors
    /// `EFAULT` if not all of it can be written; `EPERM` if the thread has left its call.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) -> StatusResult<()> {
        self.check()?;
        let here = [libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }];
        let there = [remote(address, bytes.len())?];
        // SAFETY: the kernel only reads from `bytes`, which lives for the call; the other range is in another
        // process, where the kernel checks it.
        let written = unsafe { libc::process_vm_writev(self.pid, here.as_ptr(), 1, there.as_ptr(), 1, 0) };
        match usize::try_from(written) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(Status::EFAULT),
            Err(_) => Err(Status::from_io(&std::io::Error::last_os_error())),
        }
    }
}

fn remote(address: u64, length: usize) -> StatusResult<libc::iovec> {
    let start = usize::try_from(address).map_err(|_| Status::EFAULT)?;
    Ok(libc::iovec { iov_base: std::ptr::without_provenance_mut(start), iov_len: length })
}

/// Returns true if this line of `/proc/PID/syscall` is the given ioctl. It has the call's number, six
/// arguments, and two registers.
fn is_call(line: &str, command: u32, argument: u64) -> bool {
    let mut words = line.split_ascii_whitespace();
    let number = words.next().and_then(|word| word.parse::<i64>().ok());
    let mut register = |skip| {
        let word = words.nth(skip)?.strip_prefix("0x")?;
        u64::from_str_radix(word, 16).ok()
    };
    // The number of an ioctl is an int: the upper half of the register is undefined.
    number == Some(libc::SYS_ioctl)
        && register(1).map(|value| value as u32) == Some(command)
        && register(0) == Some(argument)
}

/// Returns the first argument of the call in a line of `/proc/PID/syscall`.
fn first_argument(line: &str) -> Option<u64> {
    let word = line.split_ascii_whitespace().nth(1)?.strip_prefix("0x")?;
    u64::from_str_radix(word, 16).ok()
}

/// Parses an open file from `/proc/PID/fdinfo/FD` and `/proc/PID/mountinfo`.
fn open_file(info: &str, mounts: &str) -> Option<OpenFile> {
    let field = |name| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let flags = OFlags::from_bits_retain(u32::from_str_radix(field("flags:")?, 8).ok()?);
    let mount = field("mnt_id:")?;
    let line = mounts.lines().find(|line| line.split_ascii_whitespace().next() == Some(mount))?;
    let (major, minor) = line.split_ascii_whitespace().nth(2)?.split_once(':')?;
    // The type follows a lone dash, which ends the optional fields.
    let kind = line.split_once(" - ")?.1.split_ascii_whitespace().next()?;
    Some(OpenFile {
        inode: field("ino:")?.parse().ok()?,
        device: (major.parse().ok()?, minor.parse().ok()?),
        is_ours: kind == MOUNT_TYPE,
        is_writable: !(flags & OFlags::ACCMODE).is_empty(),
        is_nonblocking: flags.contains(OFlags::NONBLOCK),
    })
}

/// Returns the user id for file systems, from `/proc/PID/status`.
fn fs_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_ascii_whitespace().nth(3)?.parse().ok()
}

/// Returns the umask, from `/proc/PID/status`.
fn umask_in(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_call_is_recognized() {
        let line = format!("{} 0x3 0xffffffffc0086915 0x7ffd10 0x0 0x0 0x0 0x7ffc 0x7f00\n", libc::SYS_ioctl);
        assert!(is_call(&line, 0xc008_6915, 0x7ffd10));
        assert!(!is_call(&line, 0xc008_6916, 0x7ffd10));
        assert!(!is_call(&line, 0xc008_6915, 0x7ffd11));
        for other in ["running", "", "-1 0x7ffc 0x7f00", "0 0x3 0xc0086915 0x7ffd10", "x 0x3 zz 0x7ffd10"] {
            assert!(!is_call(other, 0xc008_6915, 0x7ffd10), "{other}");
        }
    }

    #[test]
    fn users_and_umasks_are_read_from_the_status_file() {
        assert_eq!(fs_user("Name:\ta\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n"), Some(4));
        assert_eq!(fs_user("Uid:\t1\n"), None);
        assert_eq!(umask_in("Name:\ta\nUmask:\t0027\nState:\tR\n"), Some(0o27));
    }

    #[test]
    fn open_files_are_found_in_what_the_kernel_tells() {
        let mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 21 0:52 / /mnt rw - fuse.nacre lo:/n rw\n";
        let info = "pos:\t0\nflags:\t0100002\nmnt_id:\t36\nino:\t144115205\n";
        let found = OpenFile {
            inode: 144_115_205,
            device: (0, 52),
            is_ours: true,
            is_writable: true,
            is_nonblocking: false,
        };
        assert_eq!(open_file(info, mounts), Some(found));
        let elsewhere = open_file(&info.replace("36", "21"), mounts).expect("mounted");
        assert_eq!((elsewhere.device, elsewhere.is_ours), ((8, 1), false));
        let waits_not = info.replace("0100002", "0104002");
        assert_eq!(open_file(&waits_not, mounts), Some(OpenFile { is_nonblocking: true, ..found }));
        let reads = info.replace("0100002", "0100000");
        assert_eq!(open_file(&reads, mounts).map(|file| file.is_writable), Some(false));
        assert_eq!(open_file(&info.replace("36", "37"), mounts), None);
        assert_eq!(open_file("", mounts), None);
        assert_eq!((first_argument("16 0x3 0x5"), first_argument("running")), (Some(3), None));
    }

    #[test]
    fn memory_is_read_up_to_where_it_ends() {
        let own = Memory { pid: std::process::id() as libc::pid_t, uid: 0, command: 0, argument: 0 };
        let bytes = [7u8; 300];
        let address = bytes.as_ptr() as u64;
        assert_eq!(own.read_vec(address, 300), Ok(bytes.to_vec()));
        assert_eq!(own.read_vec(8, 4), Err(Status::EFAULT));
        assert_eq!(own.read_text(8, 4), Err(Status::EFAULT));
        assert_eq!(own.read_text(address, 300), Ok(bytes.to_vec()));
        assert_eq!(own.write(address, &[1]), Err(Status::EPERM), "this thread is in another call");
    }
}
