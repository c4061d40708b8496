//! One segment file of the log: allocated once, mapped shared for the life of the store, reused for ever.
//!
//! A store into the mapping is in the kernel's page cache at once, so it outlives the process; [`Segment::persist`] makes a
//! range durable. All blocks are written when the file is made, so that a store into the mapping never needs
//! new space (which would be a SIGBUS) on a file system that overwrites in place.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

use super::error::{MetaError, Result};

/// Name of segment file `slot`.
pub(crate) fn segment_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("wal.{slot}"))
}

/// A mapped segment file.
pub(crate) struct Segment {
    path: PathBuf,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping lives as long as the value and is not tied to a thread; writers are kept apart by the callers of
// `write`, whose contract says so.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes the file of `len` bytes, begins it with `header`, and makes it durable (but not its directory entry).
    pub(crate) fn create(path: &Path, len: usize, header: &[u8]) -> Result<()> {
        let io = |action| move |source| MetaError::Io { action, path: path.to_owned(), source };
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(path)
            .map_err(io("create"))?;
        let mut block = vec![0u8; 1 << 20];
        block[..header.len()].copy_from_slice(header);
        let mut left = len;
        while left > 0 {
            let part = left.min(block.len());
            file.write_all(&block[..part]).map_err(io("allocate"))?;
            left -= part;
            block[..header.len()].fill(0);
        }
        file.sync_all().map_err(io("sync"))
    }

    /// Maps an existing file, which must have exactly `len` bytes.
    pub(crate) fn open(path: &Path, len: usize) -> Result<Self> {
        let io = |action| move |source| MetaError::Io { action, path: path.to_owned(), source };
        let file: File = OpenOptions::new().read(true).write(true).open(path).map_err(io("open"))?;
        let found = file.metadata().map_err(io("stat"))?.len();
        if found != len as u64 {
            return Err(MetaError::Corrupt {
                what: "wrong length of a log segment",
                path: path.to_owned(),
                offset: found,
            });
        }
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        };
        let base = base.map_err(|errno| io("map")(errno.into()))?;
        let base = NonNull::new(base.cast()).expect("mmap without a fixed address never returns page 0");
        Ok(Segment { path: path.to_owned(), base, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// Nobody else writes or reads the range meanwhile.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    pub(crate) unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "write inside the segment");
        // SAFETY: the range was checked, the mapping is writable, the caller excludes other users.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// The whole segment.
    ///
    /// # Safety
    /// Nobody writes to the segment while the slice lives.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `len` readable bytes and lives as long as `self`; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }

    /// Makes `[from, to)` durable.
    pub(crate) fn persist(&self, from: usize, to: usize) -> io::Result<()> {
        assert!(from <= to && to <= self.len, "sync inside the segment");
        let start = from - from % rustix::param::page_size();
        // SAFETY: the range lies inside our mapping; msync neither moves nor invalidates it.
        unsafe { rustix::mm::msync(self.base.as_ptr().add(start).cast(), to - start, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `open` with this length, and nothing borrowed from it outlives `self`.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping");
    }
}
