//! One segment file of the log: allocated once, reused for ever.
//!
//! A record goes into the kernel's page cache and so outlives the process; [`Segment::persist`] makes it durable. Where
//! the file system overwrites in place, the file is mapped and a record is a copy into the mapping: no system call, and
//! no SIGBUS, as all blocks were written when the file was made. Elsewhere (a copy-on-write file system may be full at any
//! write) a record is one `pwritev`, which can say so. Costs of both: decision 0001. A log that is flushed often is written by
//! calls everywhere ([`super::log`]).

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use super::error::{MetaError, Result};

/// Name of segment file `slot`.
pub(crate) fn segment_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("wal.{slot}"))
}

/// An open segment file.
pub(crate) struct Segment {
    path: PathBuf,
    file: File,
    len: usize,
    mapping: Option<Mapping>,
}

/// A shared, writable mapping of a whole file.
struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping lives as long as the value and is tied to no thread.
unsafe impl Send for Mapping {}
// SAFETY: `copy_in` is the only access, and its contract keeps callers apart.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses aliases nothing of ours.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).expect("mmap without a fixed address never returns page 0");
        Ok(Mapping { base, len })
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// The range is inside the mapping and nobody else writes to it meanwhile.
    unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller promises the range and exclusion, the mapping is writable, and nothing borrows from it.
        unsafe { self.base.as_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length, and nothing borrows from it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping");
    }
}

/// Whether the file system holding `file` overwrites written blocks in place, so that a mapped store cannot fail for space.
fn overwrites_in_place(file: &File) -> bool {
    // From statfs(2): ext2/3/4, XFS (files made here share no blocks), tmpfs.
    const IN_PLACE: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
    rustix::fs::fstatfs(file).is_ok_and(|fs| IN_PLACE.contains(&(fs.f_type as u64)))
}

impl Segment {
    /// Makes the file of `len` bytes, begins it with `header`, and makes it durable (but not its directory entry).
    pub(crate) fn create(path: &Path, len: usize, header: &[u8]) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let mut block = vec![0u8; 1 << 20];
        block[..header.len()].copy_from_slice(header);
        let mut left = len;
        while left > 0 {
            let part = left.min(block.len());
            file.write_all(&block[..part])?;
            left -= part;
            block[..header.len()].fill(0);
        }
        file.sync_all()
    }

    /// Opens an existing file, which must have exactly `len` bytes; `mapped` overrides the choice of how to write.
    pub(crate) fn open(path: &Path, len: usize, mapped: Option<bool>) -> Result<Self> {
        let io = |action| move |source| MetaError::Io { action, path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io("open"))?;
        let found = file.metadata().map_err(io("stat"))?.len();
        if found != len as u64 {
            let what = "wrong length of a log segment";
            return Err(MetaError::Corrupt { what, path: path.to_owned(), offset: found });
        }
        let maps = mapped.unwrap_or_else(|| overwrites_in_place(&file));
        let mapping = maps.then(|| Mapping::new(&file, len)).transpose().map_err(io("map"))?;
        Ok(Segment { path: path.to_owned(), file, len, mapping })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `parts` one after the other from `offset` on: by a system call where there is no mapping, or if `by_call` is set.
    /// Which way was taken before does not matter, as both reach the same pages of the kernel.
    ///
    /// # Safety
    /// Nobody else writes to the range meanwhile.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    pub(crate) unsafe fn write(&self, offset: usize, parts: &[&[u8]; 2], by_call: bool) -> io::Result<()> {
        let total = parts[0].len() + parts[1].len();
        assert!(offset <= self.len && total <= self.len - offset, "write inside the segment");
        if let Some(mapping) = self.mapping.as_ref().filter(|_| !by_call) {
            // SAFETY: the range was checked against the mapping's length, and the caller excludes other writers.
            unsafe {
                mapping.copy_in(offset, parts[0]);
                mapping.copy_in(offset + parts[0].len(), parts[1]);
            }
            return Ok(());
        }
        let slices = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        match rustix::io::pwritev(&self.file, &slices, offset as u64) {
            Ok(written) if written == total => Ok(()),
            Err(errno) if errno != rustix::io::Errno::INTR => Err(errno.into()),
            // Cut short, which regular files hardly do: write it all again in plain steps.
            _ => {
                self.file.write_all_at(parts[0], offset as u64)?;
                self.file.write_all_at(parts[1], (offset + parts[0].len()) as u64)
            }
        }
    }

    /// Reads the whole segment.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let io = |source| MetaError::Io { action: "read", path: self.path.clone(), source };
        let mut bytes = Vec::with_capacity(self.len);
        File::open(&self.path)
            .and_then(|file| file.take(self.len as u64).read_to_end(&mut bytes))
            .map_err(io)?;
        if bytes.len() < self.len {
            return Err(io(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(bytes)
    }

    /// Makes everything written durable.
    pub(crate) fn persist(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}
