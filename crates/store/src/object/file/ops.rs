//! System calls with the retries that they need.

use rustix::fs::{self, Stat};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Repeats a call that a signal ended, unless the request that this thread serves was called off.
pub(super) fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) if !nacre_env::interrupted() => continue,
            other => return other,
        }
    }
}

/// Writes all of `data`.
pub(super) fn write_all(fd: BorrowedFd<'_>, mut offset: u64, mut data: &[u8]) -> Result<(), Errno> {
    while !data.is_empty() {
        let written = retry(|| rustix::io::pwrite(fd, data, offset))?;
        if written == 0 {
            return Err(Errno::IO);
        }
        offset += written as u64;
        data = &data[written..];
    }
    Ok(())
}

/// Writes at `offset` and returns how much: all, unless the disk ran full after a part.
pub(super) fn write_most(fd: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match retry(|| rustix::io::pwrite(fd, &data[done..], offset + done as u64)) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => done += written,
            Err(Errno::NOSPC | Errno::DQUOT) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads until `buffer` is full or the file ends; returns the bytes read.
pub(super) fn read_full(fd: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        match retry(|| rustix::io::pread(fd, &mut buffer[done..], offset + done as u64))? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Starts to write dirty pages of a range out, without waiting for them. Advice only: a failure shows at the next sync.
pub(super) fn start_write_out(fd: BorrowedFd<'_>, start: u64, end: u64) {
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

/// Largest piece that the kernel fetches for one advice on any device: its read-ahead window may be smaller than the
/// piece asked for, and the rest would be dropped in silence.
const FETCH_PIECE: u64 = 512 << 10;

/// Starts to fetch a range into the page cache. Advice only.
pub(super) fn start_fetch(fd: impl AsFd, mut start: u64, end: u64) {
    while start < end {
        let piece = (end - start).min(FETCH_PIECE);
        let len = std::num::NonZeroU64::new(piece);
        if fs::fadvise(&fd, start, len, fs::Advice::WillNeed).is_err() {
            return;
        }
        start += piece;
    }
}

/// Milliseconds of a monotonic clock that is cheap to read and moves in steps of a few milliseconds.
pub(in crate::object) fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// True if a file holds neither bytes nor space.
pub(super) fn is_empty(stat: &Stat) -> bool {
    stat.st_size == 0 && stat.st_blocks == 0
}

/// Empties a file. Space that was allocated beyond its end goes too, which a truncation to the size it has may leave.
pub(super) fn empty(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = fs::fstat(fd)?;
    if is_empty(&stat) {
        return Ok(());
    }
    if stat.st_size == 0 {
        retry(|| fs::ftruncate(fd, 1))?;
    }
    retry(|| fs::ftruncate(fd, 0))
}
