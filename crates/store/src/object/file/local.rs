//! The directory of slot files and the files in it, on a local file system.
//!
//! All operations of a store on its slot files go through this module: each is one system call, repeated if a
//! signal interrupted it. Simulations substitute files in memory, of which a power
//! cut loses unsynced data.

use super::memory;
use super::ops::retry;
use crate::object::fiemap;
use nacre_types::Timestamp;
use rustix::fs::{self, Advice, AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatVfs};
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSliceMut;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

type Result<T> = std::result::Result<T, Errno>;

/// Largest piece that the kernel fetches for one advice on any device: its read-ahead window may be smaller
/// than the requested piece, and the rest would be dropped without an error.
const FETCH_PIECE: u64 = 512 << 10;
/// Makes a range a hole; the size stays.
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Attributes of a file, read without its data.
#[derive(Clone, Copy)]
pub(super) struct FileStat {
    /// Size in bytes.
    pub(super) size: u64,
    /// Allocated space, in units of 512 bytes.
    pub(super) blocks: u64,
    /// Time of its last change.
    pub(super) mtime: Timestamp,
    /// It is a regular file, not another kind of entry with the same name.
    pub(super) is_file: bool,
}

impl FileStat {
    /// Whether a file has neither bytes nor space.
    pub(super) fn is_empty(&self) -> bool {
        self.size == 0 && self.blocks == 0
    }
}

impl From<fs::Stat> for FileStat {
    fn from(stat: fs::Stat) -> FileStat {
        FileStat {
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            mtime: Timestamp::new(stat.st_mtime, stat.st_mtime_nsec as u32),
            is_file: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        }
    }
}

/// An open slot file.
pub(super) enum SlotFile {
    Kernel(OwnedFd),
    Memory(memory::File),
}

impl SlotFile {
    /// Returns its descriptor; `None` for a file unknown to the kernel. Operations through the descriptor
    /// alone are advice, or may fail on any file system.
    pub(super) fn kernel(&self) -> Option<BorrowedFd<'_>> {
        match self {
            SlotFile::Kernel(fd) => Some(fd.as_fd()),
            SlotFile::Memory(_) => None,
        }
    }

    /// Writes at `offset`, at least a part of `data`.
    fn write(&self, offset: u64, data: &[u8]) -> Result<usize> {
        match self {
            SlotFile::Kernel(fd) => retry(|| rustix::io::pwrite(fd, data, offset)),
            SlotFile::Memory(file) => file.write(offset, data),
        }
    }

    /// Reads at `offset` and returns the number of bytes; 0 at the end.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self {
            SlotFile::Kernel(fd) => retry(|| rustix::io::pread(fd, &mut *buffer, offset)),
            SlotFile::Memory(file) => Ok(file.read(offset, buffer)),
        }
    }

    /// Reads from the page cache, without waiting: `EAGAIN` if nothing is cached, `EOPNOTSUPP` if the file
    /// system does not support it.
    pub(super) fn read_cached(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        match self {
            SlotFile::Kernel(fd) => {
                let mut slices = [IoSliceMut::new(buffer)];
                rustix::io::preadv2(fd, &mut slices, offset, ReadWriteFlags::NOWAIT)
            }
            SlotFile::Memory(file) => Ok(file.read(offset, buffer)),
        }
    }

    /// Writes at `offset` and returns the number of bytes: all, unless the disk became full after a part.
    pub(super) fn write_most(&self, offset: u64, data: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match self.write(offset + done as u64, &data[done..]) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => done += written,
                Err(Errno::NOSPC | Errno::DQUOT) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Reads until `buffer` is full or the file ends; returns the bytes read.
    pub(super) fn read_full(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read(offset + done as u64, &mut buffer[done..])? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    pub(super) fn stat(&self) -> Result<FileStat> {
        match self {
            SlotFile::Kernel(fd) => fs::fstat(fd).map(FileStat::from),
            SlotFile::Memory(file) => Ok(file.stat()),
        }
    }

    pub(super) fn set_size(&self, size: u64) -> Result<()> {
        match self {
            SlotFile::Kernel(fd) => retry(|| fs::ftruncate(fd, size)),
            SlotFile::Memory(file) => file.set_size(size),
        }
    }

    pub(super) fn allocate(&self, how: FallocateFlags, offset: u64, len: u64) -> Result<()> {
        match self {
            SlotFile::Kernel(fd) => retry(|| fs::fallocate(fd, how, offset, len)),
            SlotFile::Memory(file) => file.allocate(how, offset, len),
        }
    }

    /// Zeroes a range and frees its space; the size stays.
    pub(super) fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.allocate(PUNCH, offset, len)
    }

    /// Empties the file. Also frees space allocated beyond its end, which a truncation to its current size
    /// may leave.
    pub(super) fn empty(&self) -> Result<()> {
        let stat = self.stat()?;
        if stat.is_empty() {
            return Ok(());
        }
        if stat.size == 0 {
            self.set_size(1)?;
        }
        self.set_size(0)
    }

    /// Makes data and size durable.
    pub(super) fn sync_data(&self) -> Result<()> {
        match self {
            SlotFile::Kernel(fd) => retry(|| fs::fdatasync(fd)),
            SlotFile::Memory(file) => file.sync(),
        }
    }

    /// Makes data, size, space and times durable.
    pub(super) fn sync(&self) -> Result<()> {
        match self {
            SlotFile::Kernel(fd) => retry(|| fs::fsync(fd)),
            SlotFile::Memory(file) => file.sync(),
        }
    }

    /// Returns the next data or hole; `ENXIO` at the end.
    pub(super) fn seek(&self, from: SeekFrom) -> Result<u64> {
        match self {
            SlotFile::Kernel(fd) => fs::seek(fd, from),
            SlotFile::Memory(file) => file.seek(from),
        }
    }

    pub(super) fn set_mtime(&self, mtime: Timestamp) -> Result<()> {
        match self {
            SlotFile::Kernel(fd) => {
                let omit = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
                let mtime = fs::Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() };
                fs::futimens(fd, &fs::Timestamps { last_access: omit, last_modification: mtime })
            }
            SlotFile::Memory(file) => file.set_mtime(mtime),
        }
    }

    /// Whether every byte of `[offset, offset + len)` is allocated already, so that writing there needs no
    /// space.
    pub(super) fn is_allocated(&self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        match self.seek(SeekFrom::Hole(offset)) {
            Ok(hole) if hole >= end => true,
            Ok(_) => self.kernel().is_some_and(|fd| fiemap::cover(fd, offset, end)),
            Err(_) => false,
        }
    }

    /// Whether anything is allocated at or after `offset`; `None` if the file system cannot report it.
    pub(super) fn has_more(&self, offset: u64) -> Option<bool> {
        fiemap::has_more(self.kernel()?, offset)
    }

    /// Starts to write out dirty pages of a range, without waiting for them. Advice only: a failure is
    /// reported by the next sync.
    pub(super) fn start_write_out(&self, start: u64, end: u64) {
        let Some(fd) = self.kernel() else { return };
        // SAFETY: the descriptor is open for the length of the call; no memory is passed.
        unsafe {
            libc::sync_file_range(
                fd.as_raw_fd(),
                start as libc::off64_t,
                (end - start) as libc::off64_t,
                libc::SYNC_FILE_RANGE_WRITE,
            );
        }
    }

    /// Starts to fetch a range into the page cache. Advice only.
    pub(super) fn start_fetch(&self, mut start: u64, end: u64) {
        let Some(fd) = self.kernel() else { return };
        while start < end {
            let piece = (end - start).min(FETCH_PIECE);
            if fs::fadvise(fd, start, NonZeroU64::new(piece), Advice::WillNeed).is_err() {
                return;
            }
            start += piece;
        }
    }

    /// Drops the durable pages of a range from the page cache; a length of 0 means up to the end.
    pub(super) fn drop_pages(&self, offset: u64, len: u64) -> Result<()> {
        let Some(fd) = self.kernel() else { return Ok(()) };
        fs::fadvise(fd, offset, NonZeroU64::new(len), Advice::DontNeed)
    }
}

/// The directory above all slot files.
pub(super) enum Tree {
    Kernel(OwnedFd),
    Memory(std::sync::Arc<memory::Tree>),
}

impl Tree {
    /// Opens a directory, creating it first if `make` is on.
    pub(super) fn open(path: &Path, make: bool) -> Result<Tree> {
        if make {
            make_directory(fs::CWD, path)?;
        }
        open_directory(fs::CWD, path).map(Tree::Kernel)
    }

    /// Returns its descriptor, as [`SlotFile::kernel`].
    pub(super) fn kernel(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Tree::Kernel(fd) => Some(fd.as_fd()),
            Tree::Memory(_) => None,
        }
    }

    /// Opens the file at `path` below; `ENOENT` if it does not exist and `flags` do not create it.
    pub(super) fn open_file(&self, path: &str, flags: OFlags) -> Result<SlotFile> {
        match self {
            Tree::Kernel(fd) => {
                let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                fs::openat(fd, path, flags, Mode::RUSR | Mode::WUSR).map(SlotFile::Kernel)
            }
            Tree::Memory(tree) => tree.open_file(path, flags).map(SlotFile::Memory),
        }
    }

    /// Returns the attributes of the file at `path` below; `None` if it does not exist.
    pub(super) fn stat(&self, path: &str) -> Result<Option<FileStat>> {
        let found = match self {
            Tree::Kernel(fd) => fs::statat(fd, path, AtFlags::SYMLINK_NOFOLLOW).map(FileStat::from),
            Tree::Memory(tree) => tree.open_file(path, OFlags::empty()).map(|file| file.stat()),
        };
        match found {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Creates a directory below, unless it exists.
    pub(super) fn make_directory(&self, name: &str) -> Result<()> {
        match self {
            Tree::Kernel(fd) => make_directory(fd.as_fd(), Path::new(name)),
            Tree::Memory(tree) => tree.make_directory(name),
        }
    }

    /// Returns the names in a directory below; `None` if it does not exist.
    pub(super) fn names(&self, name: &str) -> Result<Option<Vec<Vec<u8>>>> {
        match self {
            Tree::Kernel(fd) => match open_directory(fd.as_fd(), Path::new(name)) {
                Err(Errno::NOENT) => Ok(None),
                other => names(&other?).map(Some),
            },
            Tree::Memory(tree) => Ok(tree.names(name)),
        }
    }

    /// Makes the names in a directory below durable.
    pub(super) fn sync_directory(&self, name: &str) -> Result<()> {
        match self {
            Tree::Kernel(fd) => {
                let directory = open_directory(fd.as_fd(), Path::new(name))?;
                retry(|| fs::fsync(&directory))
            }
            Tree::Memory(tree) => tree.sync_directory(name),
        }
    }

    /// Makes the names of the directories below durable.
    pub(super) fn sync_top(&self) -> Result<()> {
        match self {
            Tree::Kernel(fd) => retry(|| fs::fsync(fd)),
            Tree::Memory(tree) => tree.sync_top(),
        }
    }

    /// Makes everything on its file system durable.
    pub(super) fn sync_all(&self) -> Result<()> {
        match self {
            Tree::Kernel(fd) => retry(|| fs::syncfs(fd)),
            Tree::Memory(tree) => tree.sync_all(),
        }
    }

    /// Returns the space on its file system.
    pub(super) fn space(&self) -> Result<StatVfs> {
        match self {
            Tree::Kernel(fd) => fs::fstatvfs(fd),
            Tree::Memory(tree) => Ok(tree.space()),
        }
    }

    /// Returns the size of its file system in bytes.
    pub(super) fn total(&self) -> Result<u64> {
        let stat = self.space()?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }
}

/// Returns the names in a directory, without `.` and `..`.
pub(super) fn names(fd: impl AsFd) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in fs::Dir::read_from(fd.as_fd())? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

fn make_directory(parent: BorrowedFd<'_>, path: &Path) -> Result<()> {
    match fs::mkdirat(parent, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

fn open_directory(parent: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(parent, path, flags, Mode::empty())
}
