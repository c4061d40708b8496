//! One segment file of the log: allocated once, reused for ever. Its length is fixed. At first only a part of
//! it is filled, followed by a hole; the part grows with use ([`Segment::fill`]), and records are written to
//! it alone.
//!
//! A record is handed to the kernel and so outlives the process; [`Segment::persist`] makes it durable. There
//! are three ways to write, and the log chooses ([`super::log`]); costs: decision 0001. A mapping and
//! transfers around the page cache are used only where the file system overwrites in place: there all blocks
//! of the part were written before, so neither can run out of space, which for a mapping would be a SIGBUS. A
//! copy-on-write file system may be full at any write, and `pwrite` can report that.
//!
//! All ways reach the same file through the same kernel, which keeps page cache and device coherent; the log
//! uses one at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::{Advice, AtFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::error::{MetaError, Result};
use super::witness::{SegmentWitness, Way};

/// Returns the name of segment file `slot`.
pub(crate) fn segment_path(dir: &Path, slot: usize) -> PathBuf {
    dir.join(format!("wal.{slot}"))
}

/// Writes by system call begin and end at multiples of this: pages that a record shares with the previous one
/// are written again. So the page cache never has to fetch a page that it lacks.
pub(crate) const PAGE: usize = 4096;

/// Bytes of a segment that are filled when it is created: a transaction fits into them.
pub(crate) const FIRST_PART: usize = 4 << 20;

/// Size of the pieces in which durable records leave the mapping, so that a log takes memory for its end
/// alone; the page cache keeps them.
const FORGOTTEN_PIECE: usize = 4 << 20;

/// Bytes of a segment that are read at a time.
const READ_CHUNK: usize = 128 << 10;
static ZEROES: [u8; READ_CHUNK] = [0; READ_CHUNK];

/// An open segment file.
pub(crate) struct Segment {
    path: PathBuf,
    file: File,
    /// The same file opened for direct I/O.
    direct: Option<File>,
    len: usize,
    mapping: Option<Mapping>,
    witness: Option<SegmentWitness>,
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
        // SAFETY: a fresh mapping at an address chosen by the kernel aliases no other memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        let base = NonNull::new(base.cast()).expect("mmap without a fixed address never returns page 0");
        Ok(Mapping { base, len })
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    /// The range is inside the mapping and no other thread writes to it during the call.
    unsafe fn copy_in(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller promises the range and exclusion, the mapping is writable, and nothing borrows
        // from it.
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

/// Whether the file system of `file` overwrites blocks in place, so that a store to a mapping cannot fail for
/// space.
fn overwrites_in_place(file: &File) -> bool {
    // From statfs(2): ext2/3/4, XFS (the store's files share no blocks), tmpfs.
    const IN_PLACE: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
    rustix::fs::fstatfs(file).is_ok_and(|fs| IN_PLACE.contains(&(fs.f_type as u64)))
}

/// Opens the file for direct I/O, if its file system supports it at the granularity of [`PAGE`].
fn open_direct(path: &Path) -> Option<File> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path).ok()?;
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    // Kernels before 6.1 do not report the alignment, and a page satisfies nearly all.
    let tells = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN);
    let fits = |align: u32| (1..=PAGE as u32).contains(&align);
    (!tells || fits(stat.stx_dio_offset_align) && fits(stat.stx_dio_mem_align)).then_some(file)
}

fn write_zeros(file: &File, range: Range<usize>) -> io::Result<()> {
    let zeros = vec![0u8; range.len().min(1 << 20)];
    for at in range.clone().step_by(zeros.len().max(1)) {
        let part = zeros.len().min(range.end - at);
        file.write_all_at(&zeros[..part], at as u64)?;
    }
    Ok(())
}

/// Content of a segment.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) bytes: Vec<u8>,
    /// End of the last chunk that is not all zeroes: no record begins behind it.
    pub(crate) data_end: usize,
}

impl Loaded {
    /// Reads a file of `len` bytes. Zeroes, of which a new segment consists, take no memory, and holes are not read.
    pub(crate) fn read(file: &File, len: usize) -> io::Result<Loaded> {
        let mut loaded = Loaded { bytes: vec![0; len], data_end: 0 };
        let mut chunk = vec![0; READ_CHUNK];
        let mut at = 0;
        while at < len {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at as u64)) {
                Ok(start) => start,
                // Behind the last part.
                Err(Errno::NXIO) => break,
                // A file system that does not report holes is treated as having none.
                Err(_) => at as u64,
            };
            let end = rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(len as u64);
            let [start, end] = [start, end].map(|offset| offset.min(len as u64) as usize);
            for begin in (start..end).step_by(READ_CHUNK) {
                let chunk = &mut chunk[..READ_CHUNK.min(end - begin)];
                file.read_exact_at(chunk, begin as u64)?;
                if *chunk != ZEROES[..chunk.len()] {
                    loaded.data_end = begin + chunk.len();
                    loaded.bytes[begin..loaded.data_end].copy_from_slice(chunk);
                }
            }
            at = end.max(at + 1);
        }
        Ok(loaded)
    }
}

impl Segment {
    /// Creates the file of `len` bytes, fills its first part, which begins with `header`, and makes it
    /// durable (but not its directory entry).
    pub(crate) fn create(path: &Path, len: usize, header: &[u8]) -> io::Result<()> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        write_zeros(&file, 0..FIRST_PART.min(len))?;
        file.write_all_at(header, 0)?;
        file.set_len(len as u64)?;
        file.sync_all()
    }

    /// Opens an existing file, which must have exactly `len` bytes; `mapped` overrides the choice of how to
    /// write.
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
        let direct = maps.then(|| open_direct(path)).flatten();
        let witness = SegmentWitness::of_next(path);
        Ok(Segment { path: path.to_owned(), file, direct, len, mapping, witness })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes at the beginning without a hole.
    pub(crate) fn filled(&self) -> usize {
        // A file system that does not report holes is treated as having none.
        let hole = rustix::fs::seek(&self.file, SeekFrom::Hole(0)).unwrap_or(self.len as u64);
        hole.min(self.len as u64) as usize / PAGE * PAGE
    }

    /// Fills a range that holds no record, durably. Records may be written before the range meanwhile.
    ///
    /// # Errors
    /// Those of writing; part of the range may be filled then.
    pub(crate) fn fill(&self, range: Range<usize>) -> io::Result<()> {
        self.check(range.start, range.len());
        write_zeros(&self.file, range.clone())?;
        self.file.sync_all()?;
        // As single pages, see `load`.
        let (at, len) = (range.start as u64, std::num::NonZeroU64::new(range.len() as u64));
        let _ = rustix::fs::fadvise(&self.file, at, len, Advice::DontNeed);
        let mut bytes = vec![0; range.len()];
        self.read_at(range.start, &mut bytes)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Copies `parts` one after the other into the mapping, from `offset` on: no system call, but a flush
    /// makes each page fault again. Returns false if there is no mapping.
    ///
    /// # Safety
    /// No other thread writes to the range during the call.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    pub(crate) unsafe fn copy_in(&self, offset: usize, parts: [&[u8]; 2]) -> bool {
        self.check(offset, parts[0].len() + parts[1].len());
        let Some(mapping) = &self.mapping else { return false };
        // SAFETY: the range was checked against the mapping's length, and the caller excludes other writers.
        unsafe {
            mapping.copy_in(offset, parts[0]);
            mapping.copy_in(offset + parts[0].len(), parts[1]);
        }
        self.tell(Way::Mapping, offset, &parts);
        true
    }

    /// Writes `parts` one after the other through the page cache, from `offset` on.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    pub(crate) fn write(&self, offset: usize, parts: [&[u8]; 2]) -> io::Result<()> {
        let total = parts[0].len() + parts[1].len();
        self.check(offset, total);
        let slices = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
        match rustix::io::pwritev(&self.file, &slices, offset as u64) {
            Ok(written) if written == total => {}
            Err(errno) if errno != Errno::INTR => return Err(errno.into()),
            // A short write, which is rare on regular files: write everything again in plain steps.
            _ => {
                self.file.write_all_at(parts[0], offset as u64)?;
                self.file.write_all_at(parts[1], (offset + parts[0].len()) as u64)?;
            }
        }
        self.tell(Way::Call, offset, &parts);
        Ok(())
    }

    /// Writes whole pages around the page cache: afterwards the device has them, and a flush has nothing left
    /// to write. Returns false if direct I/O is not possible here, or the write was short.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// If the range is not inside the segment.
    pub(crate) fn write_direct(&self, offset: usize, pages: &[u8]) -> io::Result<bool> {
        self.check(offset, pages.len());
        let Some(direct) = &self.direct else { return Ok(false) };
        match rustix::io::pwrite(direct, pages, offset as u64) {
            Ok(written) if written == pages.len() => {}
            Err(errno @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) => return Err(errno.into()),
            // For example an alignment that the file system did not report. Direct I/O is only a faster way.
            Ok(_) | Err(_) => return Ok(false),
        }
        self.tell(Way::Direct, offset, &[pages]);
        Ok(true)
    }

    fn check(&self, offset: usize, len: usize) {
        assert!(offset <= self.len && len <= self.len - offset, "write inside the segment");
    }

    fn tell(&self, way: Way, offset: usize, parts: &[&[u8]]) {
        self.witness.iter().for_each(|witness| witness.wrote(way, offset, parts));
    }

    /// Reads the bytes at `offset`.
    pub(crate) fn read_at(&self, offset: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset as u64)
    }

    /// Reads the whole segment, so that the page cache has it in single pages afterwards.
    ///
    /// Pages from the creation of the file or from read-ahead may be in folios of 1 MiB: a record copied into
    /// a mapping then dirties a whole folio (1 MiB written for a flush of 4 KiB), and a call examines each of
    /// its blocks (24 us for 4 KiB instead of 10).
    pub(crate) fn load(&self) -> Result<Loaded> {
        let advise = |advice| rustix::fs::fadvise(&self.file, 0, None, advice);
        // Advice only: dirty pages stay as they are.
        let _ = advise(Advice::DontNeed).and_then(|()| advise(Advice::Random));
        self.read()
    }

    /// Reads the whole segment.
    pub(crate) fn read(&self) -> Result<Loaded> {
        let io = |source| MetaError::Io { action: "read", path: self.path.clone(), source };
        Loaded::read(&self.file, self.len).map_err(io)
    }

    /// Drops durable records from the mapping, whose pages count as memory of this process: those of the
    /// pieces that end between two offsets.
    pub(crate) fn forget(&self, durable: Range<usize>) {
        let Some(mapping) = &self.mapping else { return };
        let start = durable.start / FORGOTTEN_PIECE * FORGOTTEN_PIECE;
        let end = durable.end.min(mapping.len) / FORGOTTEN_PIECE * FORGOTTEN_PIECE;
        if start < end {
            // SAFETY: the range is in the mapping, which is shared: its content stays in the file, and is
            // mapped again on the next access.
            let _ = unsafe {
                let start_of_piece = mapping.base.as_ptr().add(start).cast();
                rustix::mm::madvise(start_of_piece, end - start, rustix::mm::Advice::LinuxDontNeed)
            };
        }
    }

    /// Makes everything written durable.
    pub(crate) fn persist(&self) -> io::Result<()> {
        if let Some(witness) = &self.witness {
            return witness.flushing(|| self.file.sync_data());
        }
        self.file.sync_data()
    }
}
