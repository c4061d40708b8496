//! Trimming below a file store: its objects are files of somebody else's file system, which alone knows what is free and tells
//! its device when it is asked to (`FITRIM`).

use super::local::Tree;
use crate::object::Trimmed;
use nacre_env::sync::Mutex;
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `FITRIM`. Source: linux/fs.h.
const FITRIM: libc::c_ulong = 0xc018_5879;
/// Least range that the file system is asked to look at: a group of ext4, which it notes as told of only as a whole.
const RANGE_MIN: u64 = 128 << 20;

/// `struct fstrim_range` of linux/fs.h.
#[repr(C)]
struct TrimRange {
    start: u64,
    len: u64,
    shortest: u64,
}

/// Has a file system tell its device of what is free in a range of it, and returns how many bytes those were. `len` of
/// [`u64::MAX`] is everything behind `start`.
///
/// # Errors
/// `EPERM` for anybody but root, `EOPNOTSUPP` and `ENOTTY` where file system or device cannot, those of the device.
pub fn trim_range(fd: impl AsFd, start: u64, len: u64) -> io::Result<u64> {
    let mut range = TrimRange { start, len: len.min(u64::MAX - start), shortest: 0 };
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the request reads and writes one such structure, which lives across the call.
    match nacre_env::blocking(|| unsafe { libc::ioctl(fd, FITRIM as _, &raw mut range) }) {
        0 => Ok(range.len),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How much became free since the last time that everything was told.
#[derive(Debug, Default)]
pub(super) struct FreedBook(Mutex<Freed>);

#[derive(Debug, Default)]
struct Freed {
    /// Free bytes at the last look.
    seen: Option<u64>,
    freed: u64,
}

impl Freed {
    /// So much is free now. What was freed and is in use again is not to be told of.
    fn look(&mut self, free: u64) -> u64 {
        let more = self.seen.map_or(0, |seen| free.saturating_sub(seen));
        self.seen = Some(free);
        self.freed = self.freed.saturating_add(more).min(free);
        self.freed
    }
}

/// Whether a directory is where a file system is mounted.
pub(super) fn is_mount_point(dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.dev());
    device(dir) != device(&dir.join(".."))
}

impl FreedBook {
    /// Has the file system below a store tell its device of what is free, see [`Trim::trim`](crate::object::Trim::trim).
    pub(super) fn trim(&self, tree: &Tree, from: u64, max_bytes: u64) -> io::Result<Trimmed> {
        let fd = tree.kernel().ok_or(Errno::OPNOTSUPP)?;
        let total = tree.total()?;
        let len = max_bytes.max(RANGE_MIN);
        let end = from.saturating_add(len);
        // Some have addresses beyond their size: the last range is open.
        let (len, next) = if end < total { (len, Some(end)) } else { (u64::MAX, None) };
        let bytes = match trim_range(fd, from, len) {
            // It became smaller meanwhile.
            Err(error) if from > 0 && error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => 0,
            other => other?,
        };
        if next.is_none() {
            self.0.lock().freed = 0;
        }
        Ok(Trimmed { bytes, extents: None, next })
    }

    /// How much became free, where `free` bytes are now.
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
        // What the file system below can do is not ours to say.
        match store.trim(0, 1 << 20) {
            Ok(trimmed) => assert_eq!(trimmed.extents, None),
            Err(ObjectError::NoTrim { medium, .. }) => assert!(medium.ends_with("/ost"), "{medium}"),
            Err(other) => panic!("{other}"),
        }
        store.close().expect("closed");
    }
}
