//! A raw device or one large file, accessed by direct I/O.

use super::AlignedBuffer;
use super::fetch::RingFetch;
use super::ring::{Ring, Transfer, Way};
use super::{BLOCK, BlockDevice, DeviceInfo, DeviceStats, Engine, Fetch, ReadOp, WriteOp, check_range};
use crate::object::in_memory::{AT_ONCE, is_in_memory};
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use rustix::fs::{self, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Options of opening a [`DirectDevice`].
#[derive(Clone, Debug, Default)]
pub struct DirectDeviceOptions {
    /// Size in bytes of a sparse file to create if the path does not exist.
    pub create_bytes: Option<u64>,
    /// Never use rings.
    pub system_calls_only: bool,
    /// Time to wait for another user to release the device: after the end of a killed process the kernel
    /// takes a while to tear down its rings.
    pub timeout: Duration,
    /// Maximum number of rings; 0 chooses by the number of CPUs.
    pub rings_max: usize,
}

/// `BLKDISCARD` (`linux/fs.h`).
const BLKDISCARD: libc::c_ulong = 0x1277;
/// Bytes of the pieces in which unaligned memory is copied where there are no rings.
const COPY_PIECE: usize = 1 << 20;

/// See the [module documentation](self). Dropping it releases the device.
pub struct DirectDevice {
    // Dropped before the descriptor that they use.
    rings: Mutex<Rings>,
    fd: OwnedFd,
    path: PathBuf,
    size: u64,
    align: usize,
    is_raw: bool,
    is_flash: bool,
    is_allocated: bool,
    is_memory: bool,
    engine: Engine,
    counters: Arc<Counters>,
}

struct Rings {
    idle: Vec<Ring>,
    made: usize,
    max: usize,
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) reads: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
    discarded_bytes: AtomicU64,
    ring_batches: AtomicU64,
    ring_enters: AtomicU64,
    copied_reads: AtomicU64,
    call_batches: AtomicU64,
    short: AtomicU64,
}

fn add(counter: &AtomicU64, value: u64) {
    counter.fetch_add(value, Ordering::Relaxed);
}

impl DirectDevice {
    /// Opens a device or file for this process alone.
    ///
    /// # Errors
    /// `EBUSY` if the device is open elsewhere or mounted, `EINVAL` without support for direct I/O, if it is
    /// neither a device nor a regular file, or if the size is less than a block.
    pub fn open(path: &Path, options: &DirectDeviceOptions) -> io::Result<DirectDevice> {
        let fd = open_patiently(path, options)?;
        let stat = fs::fstat(&fd)?;
        let is_raw = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => return Err(Errno::INVAL.into()),
        };
        let size = fs::seek(&fd, fs::SeekFrom::End(0))? / BLOCK * BLOCK;
        if size < BLOCK {
            return Err(Errno::INVAL.into());
        }
        let align = memory_alignment(&fd)?;
        let is_memory = !is_raw && is_in_memory(&fd);
        let first = if options.system_calls_only { None } else { Ring::new(fd.as_raw_fd(), align).ok() };
        let engine = if first.is_some() { Engine::IoUring } else { Engine::SystemCalls };
        let max = match options.rings_max {
            0 => (nacre_env::cpu_count() * 4).clamp(8, 64),
            max => max,
        };
        let rings = Rings { made: usize::from(first.is_some()), idle: first.into_iter().collect(), max };
        Ok(DirectDevice {
            rings: Mutex::new(rings),
            path: path.to_owned(),
            size,
            align,
            is_raw,
            is_flash: is_flash(if is_raw { stat.st_rdev } else { stat.st_dev }),
            // In blocks of 512 bytes, whatever the file system's block size is.
            is_allocated: !is_raw && stat.st_blocks.unsigned_abs().saturating_mul(512) >= size,
            is_memory,
            engine,
            counters: Arc::default(),
            fd,
        })
    }

    /// Takes an idle ring; `None` if all are in use.
    fn take_ring(&self) -> Option<Ring> {
        if self.engine != Engine::IoUring {
            return None;
        }
        let mut rings = self.rings.lock();
        if let Some(ring) = rings.idle.pop() {
            return Some(ring);
        }
        if rings.made >= rings.max {
            return None;
        }
        rings.made += 1;
        drop(rings);
        let ring = Ring::new(self.fd.as_raw_fd(), self.align).ok();
        if ring.is_none() {
            self.rings.lock().made -= 1;
        }
        ring
    }

    /// Does a batch of transfers, and reports where it waits.
    ///
    /// # Safety
    /// As [`Ring::run`].
    unsafe fn run(
        &self,
        way: Way,
        next: &mut dyn FnMut() -> Option<Transfer>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        let mut first = next();
        if self.is_memory && way == Way::Read {
            // SAFETY: the caller's contract is the same.
            first = unsafe { self.copy_short(first, next, done) }?;
        }
        if first.is_none() {
            return Ok(());
        }
        let mut next = || first.take().or_else(&mut *next);
        // SAFETY: the caller's contract is the same.
        nacre_env::blocking(|| unsafe { self.run_waiting(way, &mut next, done) })
    }

    /// Reads short transfers of a file in memory by copies, beginning with `transfer`. Returns the first
    /// transfer that is not done: the thread has to report a wait for it.
    ///
    /// # Safety
    /// As [`Ring::run`].
    unsafe fn copy_short(
        &self,
        mut transfer: Option<Transfer>,
        next: &mut dyn FnMut() -> Option<Transfer>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<Option<Transfer>> {
        let (mut left, mut copy, mut is_used) = (AT_ONCE, None, false);
        while let Some(Transfer { op, offset, memory, len, .. }) = transfer {
            let Some(rest) = left.checked_sub(len) else { break };
            (left, is_used) = (rest, true);
            // SAFETY: the caller guarantees that the memory is writable.
            let buffer = unsafe { std::slice::from_raw_parts_mut(memory, len) };
            if let Err(error) = self.read_by_calls(offset, buffer, &mut copy) {
                add(&self.counters.call_batches, 1);
                return Err(error);
            }
            done(op, 0, buffer);
            transfer = next();
        }
        add(&self.counters.call_batches, u64::from(is_used));
        Ok(transfer)
    }

    /// Implements [`DirectDevice::run`] for a thread that has reported that it waits.
    ///
    /// # Safety
    /// As [`Ring::run`].
    unsafe fn run_waiting(
        &self,
        way: Way,
        next: &mut dyn FnMut() -> Option<Transfer>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        if let Some(mut ring) = self.take_ring() {
            // SAFETY: the caller's contract is the same.
            let result = unsafe { ring.run(way, next, done) };
            self.rings.lock().idle.push(ring);
            add(&self.counters.ring_batches, 1);
            return result.map(|cost| {
                add(&self.counters.short, cost.short);
                add(&self.counters.ring_enters, cost.enters);
                add(&self.counters.copied_reads, cost.copied_reads);
            });
        }
        add(&self.counters.call_batches, 1);
        let mut copy = None;
        while let Some(transfer) = next() {
            match way {
                Way::Read => {
                    // SAFETY: the caller guarantees that the memory is writable.
                    let buffer = unsafe { std::slice::from_raw_parts_mut(transfer.memory, transfer.len) };
                    self.read_by_calls(transfer.offset, buffer, &mut copy)?;
                    done(transfer.op, 0, buffer);
                }
                Way::Write => {
                    // SAFETY: the caller guarantees that the memory is valid.
                    let data = unsafe { std::slice::from_raw_parts(transfer.memory, transfer.len) };
                    self.write_by_calls(transfer.offset, data, &mut copy)?;
                }
            }
        }
        Ok(())
    }

    fn is_aligned(&self, memory: *const u8) -> bool {
        (memory as usize).is_multiple_of(self.align)
    }

    fn read_by_calls(
        &self,
        mut offset: u64,
        buffer: &mut [u8],
        copy: &mut Option<AlignedBuffer>,
    ) -> io::Result<()> {
        if self.is_aligned(buffer.as_ptr()) {
            return self.read_aligned(offset, buffer);
        }
        let copy = copy.get_or_insert_with(|| AlignedBuffer::zeroed(COPY_PIECE));
        for piece in buffer.chunks_mut(COPY_PIECE) {
            self.read_aligned(offset, &mut copy[..piece.len()])?;
            add(&self.counters.copied_reads, 1);
            piece.copy_from_slice(&copy[..piece.len()]);
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn read_aligned(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match rustix::io::pread(&self.fd, &mut buffer[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write_by_calls(
        &self,
        mut offset: u64,
        data: &[u8],
        copy: &mut Option<AlignedBuffer>,
    ) -> io::Result<()> {
        if self.is_aligned(data.as_ptr()) {
            return self.write_aligned(offset, data);
        }
        let copy = copy.get_or_insert_with(|| AlignedBuffer::zeroed(COPY_PIECE));
        for piece in data.chunks(COPY_PIECE) {
            copy[..piece.len()].copy_from_slice(piece);
            self.write_aligned(offset, &copy[..piece.len()])?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn write_aligned(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.fd, &data[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => done += written,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl BlockDevice for DirectDevice {
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()> {
        batch.iter().try_for_each(|op| check_range(self.size, op.offset, op.buffer.len()))?;
        let mut ops = batch.iter_mut().map(|op| ReadOp { offset: op.offset, buffer: &mut *op.buffer });
        self.read_each(&mut || ops.next(), &mut |_, _, _| {})
    }

    fn read_each<'a>(
        &self,
        next: &mut dyn FnMut() -> Option<ReadOp<'a>>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        let (mut reads, mut bytes, mut refused) = (0, 0, None);
        let mut numbered = std::iter::from_fn(next).enumerate().filter(|(_, op)| !op.buffer.is_empty());
        let mut next = || {
            let (number, op) = numbered.next()?;
            let (offset, len) = (op.offset, op.buffer.len());
            if let Err(error) = check_range(self.size, offset, len) {
                refused = Some(error);
                return None;
            }
            (reads, bytes) = (reads + 1, bytes + len as u64);
            Some(Transfer { op: number, at: 0, offset, memory: op.buffer.as_mut_ptr(), len })
        };
        // SAFETY: the buffers are borrowed exclusively for longer than the call takes.
        let result = unsafe { self.run(Way::Read, &mut next, done) };
        add(&self.counters.reads, reads);
        add(&self.counters.read_bytes, bytes);
        refused.map_or(result, Err)
    }

    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        if self.engine != Engine::IoUring {
            return None;
        }
        let fetch = RingFetch::new(self.fd.as_raw_fd(), self.size, self.counters.clone());
        fetch.ok().map(|fetch| Box::new(fetch) as Box<dyn Fetch>)
    }

    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()> {
        let mut bytes = 0;
        let mut transfers = Vec::with_capacity(batch.len());
        for (number, op) in batch.iter().enumerate().filter(|(_, op)| !op.data.is_empty()) {
            check_range(self.size, op.offset, op.data.len())?;
            bytes += op.data.len() as u64;
            transfers.push(Transfer {
                op: number,
                at: 0,
                offset: op.offset,
                memory: op.data.as_ptr().cast_mut(),
                len: op.data.len(),
            });
        }
        add(&self.counters.writes, transfers.len() as u64);
        add(&self.counters.written_bytes, bytes);
        let mut transfers = transfers.into_iter();
        // SAFETY: the data is borrowed for the whole call, and only read.
        unsafe { self.run(Way::Write, &mut || transfers.next(), &mut |_, _, _| {}) }
    }

    fn flush(&self) -> io::Result<()> {
        add(&self.counters.flushes, 1);
        loop {
            match fs::fdatasync(&self.fd) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        check_range(self.size, offset, 0)?;
        if !len.is_multiple_of(BLOCK) || len > self.size - offset {
            return Err(Errno::INVAL.into());
        }
        if self.is_raw {
            let range = [offset, len];
            // SAFETY: the kernel reads two numbers of 64 bits, which outlive the call.
            let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), BLKDISCARD as _, &range) };
            if result != 0 {
                return Err(io::Error::last_os_error());
            }
        } else {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fs::fallocate(&self.fd, punch, offset, len)?;
        }
        add(&self.counters.discarded_bytes, len);
        Ok(())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: self.path.display().to_string(),
            is_raw: self.is_raw,
            is_flash: self.is_flash,
            is_allocated: self.is_allocated,
            engine: self.engine,
        }
    }

    fn stats(&self) -> DeviceStats {
        let counters = &self.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStats {
            reads: read(&counters.reads),
            read_bytes: read(&counters.read_bytes),
            writes: read(&counters.writes),
            written_bytes: read(&counters.written_bytes),
            flushes: read(&counters.flushes),
            discarded_bytes: read(&counters.discarded_bytes),
            ring_batches: read(&counters.ring_batches),
            ring_enters: read(&counters.ring_enters),
            copied_reads: read(&counters.copied_reads),
            call_batches: read(&counters.call_batches),
            short: read(&counters.short),
        }
    }
}

/// Opens as [`open_exclusive`], and waits for a while if the device is in use.
fn open_patiently(path: &Path, options: &DirectDeviceOptions) -> io::Result<OwnedFd> {
    const POLL: Duration = Duration::from_millis(10);
    let deadline = Instant::now() + options.timeout;
    loop {
        match open_exclusive(path, options.create_bytes) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) && Instant::now() < deadline => {
                nacre_env::thread::sleep(POLL);
            }
            other => return other,
        }
    }
}

/// Opens a path for direct I/O, and keeps others out: a device by `O_EXCL`, a file by a lock.
fn open_exclusive(path: &Path, create_bytes: Option<u64>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let is_device = match fs::stat(path) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice,
        Err(Errno::NOENT) if create_bytes.is_some() => false,
        Err(error) => return Err(error.into()),
    };
    // Without O_CREAT, O_EXCL means: no other exclusive opener, no mount.
    let fd = match (is_device, create_bytes) {
        (true, _) => fs::open(path, flags | OFlags::EXCL, Mode::empty())?,
        (false, None) => fs::open(path, flags, Mode::empty())?,
        (false, Some(bytes)) => {
            match fs::open(path, flags | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => {
                    fs::ftruncate(&fd, bytes)?;
                    fs::fsync(&fd)?;
                    fd
                }
                Err(Errno::EXIST) => fs::open(path, flags, Mode::empty())?,
                Err(error) => return Err(error.into()),
            }
        }
    };
    if !is_device {
        match fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(Errno::BUSY.into()),
            other => other?,
        }
    }
    Ok(fd)
}

/// Returns the alignment that memory needs: 512 bytes if a read into such memory works.
fn memory_alignment(fd: impl AsFd) -> io::Result<usize> {
    let mut memory = AlignedBuffer::zeroed(2 * BLOCK as usize);
    let refused = rustix::io::pread(&fd, &mut memory[512..512 + BLOCK as usize], 0).is_err();
    if refused {
        rustix::io::pread(&fd, &mut memory[..BLOCK as usize], 0)?;
    }
    Ok(if refused { BLOCK as usize } else { 512 })
}

/// Whether the kernel reports a device as non-rotational. For a partition, its disk is examined.
fn is_flash(device: u64) -> bool {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    ["queue/rotational", "../queue/rotational"].iter().any(|file| {
        let path = format!("/sys/dev/block/{major}:{minor}/{file}");
        std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "0")
    })
}
