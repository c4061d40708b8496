//! What the `block` back end needs of a device: transfers in batches at block boundaries, flush, discard.
//!
//! [`DirectDevice`] is the real one: a raw device or one large file, around the page cache. [`MemoryDevice`] stands in for it in
//! tests: it loses, tears and reorders what was not flushed when its power is cut, and fails to order.

mod direct;
mod fetch;
#[cfg(any(test, feature = "conformance"))]
mod memory;
pub mod model;
mod ring;
pub mod shadow;
#[cfg(test)]
mod tests;

pub use crate::aligned::AlignedBuffer;
pub use direct::{DirectDevice, DirectDeviceOptions};
#[cfg(any(test, feature = "conformance"))]
pub use memory::{Fault, MemoryDevice};

use rustix::io::Errno;
use std::io;

/// Bytes of a block: the unit of allocation and of checksums. Offsets and lengths of transfers are multiples of it.
pub const BLOCK: u64 = 4096;

/// A read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Where on the device, in bytes; a multiple of [`BLOCK`].
    pub offset: u64,
    /// What to fill: a multiple of [`BLOCK`] bytes, at any address.
    pub buffer: &'a mut [u8],
}

/// A write of a batch.
#[derive(Debug)]
pub struct WriteOp<'a> {
    /// Where on the device, in bytes; a multiple of [`BLOCK`].
    pub offset: u64,
    /// What to write: a multiple of [`BLOCK`] bytes, at any address.
    pub data: &'a [u8],
}

/// How transfers reach the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// Batches through `io_uring`.
    IoUring,
    /// One system call after the other, because the kernel refused rings.
    SystemCalls,
    /// It is only memory.
    Memory,
}

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Path, or what stands for it.
    pub name: String,
    /// A device special file, not a regular one.
    pub is_raw: bool,
    /// Nothing turns in it.
    pub is_flash: bool,
    /// A file without holes when it was opened.
    pub is_allocated: bool,
    /// How transfers reach it.
    pub engine: Engine,
}

/// Counters of a device; sums since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceStats {
    /// Reads of batches.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes of batches.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Batches that went through a ring.
    pub ring_batches: u64,
    /// System calls of rings: transfers by this are how many a submission carries.
    pub ring_enters: u64,
    /// Reads, or parts of them, that were copied because their memory was not aligned. All others went straight to the caller's.
    pub copied_reads: u64,
    /// Batches that went through system calls: there are no rings, or all were in use.
    pub call_batches: u64,
    /// Transfers that the device did in parts.
    pub short: u64,
}

/// A device. Calls may come from any thread. Transfers say by [`nacre_env::blocking`] when they wait; everything else blocks. Transfers that
/// overlap in time and place leave either data.
pub trait BlockDevice: Send + Sync {
    /// Reads all operations of a batch, in any order.
    ///
    /// # Errors
    /// Of the first operation that failed; nothing is known of the other buffers then. `EINVAL` for an operation that is
    /// not aligned, `UnexpectedEof` beyond the end.
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()>;

    /// Reads what `next` gives, which is asked for more while earlier operations are under way, and tells `done` of each part that has
    /// arrived: the number of the operation, from 0, where the part begins in it, and its bytes. Both multiples of [`BLOCK`].
    ///
    /// # Errors
    /// As [`BlockDevice::read`].
    fn read_each<'a>(
        &self,
        next: &mut dyn FnMut() -> Option<ReadOp<'a>>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        read_together(|batch| self.read(batch), next, done)
    }

    /// Memory for reads that nobody waits for yet; `None` if the device has no way to do that.
    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        None
    }

    /// Writes all operations of a batch, in any order. Whoever reads afterwards gets the data, also after the end of this
    /// process; a power cut may lose or tear it until [`BlockDevice::flush`].
    ///
    /// # Errors
    /// Of the first operation that failed; any part of the batch may be on the medium then.
    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()>;

    /// Makes everything durable whose write had returned before the call.
    ///
    /// # Errors
    /// After one, nothing is known of what was not durable before.
    fn flush(&self) -> io::Result<()>;

    /// Says that nobody needs the bytes of a range any more; reading them gives anything.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not want to know.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Size in bytes, a multiple of [`BLOCK`].
    fn size(&self) -> u64;

    /// What it is.
    fn info(&self) -> DeviceInfo;

    /// Counters.
    fn stats(&self) -> DeviceStats;
}

/// Parts of a [`Fetch`].
pub const FETCH_PARTS: usize = 2;
/// Bytes of a part.
pub const FETCH_BYTES: usize = 1 << 20;

/// Memory into which a device reads while nobody waits, in [`FETCH_PARTS`] parts. Dropping it waits for what is under way.
pub trait Fetch: Send {
    /// Begins to read ranges, each an offset and a length, into a part, one behind the other; what was there before is gone. Waits
    /// only for what is still under way there. What goes wrong is said by [`Fetch::finish`].
    fn begin(&mut self, part: usize, ranges: &[(u64, usize)]);

    /// Is nothing under way in a part?
    fn is_there(&mut self, part: usize) -> bool;

    /// Waits until all of a part is there, and gives it.
    ///
    /// # Errors
    /// Of a range, as [`BlockDevice::read`]; nothing is known of the part then. `EINVAL` if there were too many ranges, or too long ones.
    fn finish(&mut self, part: usize) -> io::Result<&[u8]>;
}

/// [`BlockDevice::read_each`] with one batch for all.
pub(super) fn read_together<'a>(
    read: impl FnOnce(&mut [ReadOp<'_>]) -> io::Result<()>,
    next: &mut dyn FnMut() -> Option<ReadOp<'a>>,
    done: &mut dyn FnMut(usize, usize, &[u8]),
) -> io::Result<()> {
    let mut batch: Vec<ReadOp<'a>> = std::iter::from_fn(next).collect();
    read(&mut batch)?;
    batch.iter().enumerate().for_each(|(number, op)| done(number, 0, op.buffer));
    Ok(())
}

/// Refuses transfers that are not aligned or end beyond the device.
pub(crate) fn check_range(size: u64, offset: u64, len: usize) -> io::Result<()> {
    if !offset.is_multiple_of(BLOCK) || !(len as u64).is_multiple_of(BLOCK) {
        return Err(io::Error::from(Errno::INVAL));
    }
    match offset.checked_add(len as u64) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}
