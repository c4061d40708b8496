//! System calls, with retries.

use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Repeats a call that a signal interrupted, unless the request that this thread serves was cancelled.
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

/// Returns the milliseconds of a monotonic clock that is cheap to read and advances in steps of a few
/// milliseconds.
pub(in crate::object) fn coarse_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}
