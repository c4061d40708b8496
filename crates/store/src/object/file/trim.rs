//! Trim below a file store: its objects are files of a local file system, which alone knows its free space
//! and discards it on its device on request (`FITRIM`).

use super::local::Tree;
use crate::object::Trimmed;
use nacre_env::sync::Mutex;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `FITRIM` (`linux/fs.h`).
const FITRIM: libc::c_ulong = 0xc018_5879;
/// Least range of a request: a group of ext4, which it notes as trimmed only as a whole.
const RANGE_MIN: u64 = 128 << 20;

/// `struct fstrim_range` of `linux/fs.h`.
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    shortest: u64,
}

/// Makes a file system trim the free space in a range of it, and returns the number of bytes. `len` of
/// [`u64::MAX`] means everything after `start`.
///
/// # Errors
/// `EPERM` without root's privileges, `EOPNOTSUPP` and `ENOTTY` without support in file system or device,
/// those of the device.
pub fn trim_range(fd: impl AsFd, start: u64, len: u64) -> io::Result<u64> {
    let mut range = TrimRange { start, len: len.min(u64::MAX - start), shortest: 0 };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the request reads and writes one such structure, which lives across the call.
    match nacre_env::blocking(|| unsafe { libc::ioctl(fd, FITRIM as _, &raw mut range) }) {
        0 => Ok(range.len),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Estimate of the space freed since the last complete trim.
#[derive(Debug, Default)]
pub(super) struct FreedBook(Mutex<Freed>);

#[derive(Debug, Default)]
struct Freed {
    /// Free bytes at the last check.
    seen: Option<u64>,
    freed: u64,
}

impl Freed {
    /// Notes the free bytes at this moment, and returns the estimate. Space that was freed and reused does
    /// not count.
    fn look(&mut self, free: u64) -> u64 {
        let more = self.seen.map_or(0, |seen| free.saturating_sub(seen));
        self.seen = Some(free);
        self.freed = self.freed.saturating_add(more).min(free);
        self.freed
    }
}

/// Whether a directory is the mount point of a file system.
pub(super) fn is_mount_point(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.dev());
    device(dir) != device(&dir.join(".."))
}

impl FreedBook {
    /// Makes the file system below a store trim its free space, see
    /// [`Trim::trim`](crate::object::Trim::trim).
    pub(super) fn trim(&self, tree: &Tree, from: u64, max_bytes: u64) -> io::Result<Trimmed> {
        let fd = tree.kernel().ok_or(Errno::OPNOTSUPP)?;
        let total = tree.total()?;
        let len = max_bytes.max(RANGE_MIN);
        let end = from.saturating_add(len);
        // Some file systems have addresses beyond their size: the last range is open.
        let (len, next) = if end < total { (len, Some(end)) } else { (u64::MAX, None) };
        let bytes = match trim_range(fd, from, len) {
            // The file system became smaller meanwhile.
            Err(error) if from > 0 && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => 0,
            other => other?,
        };
        if next.is_none() {
            self.0.lock().freed = 0;
        }
        Ok(Trimmed { bytes, extents: None, next })
    }

    /// Notes that `free` bytes are free at this moment, and returns the estimate of the bytes freed.
    pub(super) fn look(&self, free: u64) -> u64 {
        self.0.lock().look(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{FileStore, FileStoreOptions, ObjectError, ObjectStore, Trim};

    #[test]
    fn what_was_freed_is_what_became_free_and_was_not_used_again() {
        let mut freed = Freed::default();
        assert_eq!(freed.look(1000), 0, "nothing is known of before");
        assert_eq!(freed.look(400), 0);
        assert_eq!(freed.look(700), 300);
        assert_eq!(freed.look(650), 300, "nobody knows which space was taken");
        assert_eq!(freed.look(750), 400);
        assert_eq!(freed.look(100), 100, "most was taken again");
    }

    #[test]
    fn a_store_in_a_directory_trims_by_order_only_and_says_what_does_not_work() {
        let dir = tempfile::tempdir().expect("a directory");
        let options = FileStoreOptions { reserve_bytes: Some(0), ..FileStoreOptions::create() };
        let store = FileStore::open(&dir.path().join("ost"), options).expect("opens");
        assert!(store.trim_caution().is_some_and(|why| why.contains("for itself")));
        assert!(is_mount_point(Path::new("/proc")));
        // The abilities of the file system below are unknown to the test.
        match store.trim(0, 1 << 20) {
            Ok(trimmed) => assert_eq!(trimmed.extents, None),
            Err(ObjectError::NoTrim { medium, .. }) => assert!(medium.ends_with("/ost"), "{medium}"),
            Err(other) => panic!("{other}"),
        }
        store.close().expect("closed");
    }
}
