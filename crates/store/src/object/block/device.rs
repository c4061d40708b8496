//! The device interface of the `block` back end: transfers in batches at block boundaries, flush, discard.
//!
//! [`DirectDevice`] is the real one: a raw device or one large file, around the page cache. [`MemoryDevice`]
//! replaces it in tests: it loses, tears and reorders unflushed data when its power is cut, and fails on
//! request.

mod direct;
mod fetch;
mod memory;
pub mod model;
mod ring;
pub mod shadow;
#[cfg(test)]
mod tests;

pub use crate::aligned::AlignedBuffer;
pub use direct::{DirectDevice, DirectDeviceOptions};
pub use memory::{Fault, MemoryDevice};

use rustix::io::Errno;
use std::io;

/// Bytes of a block: the unit of allocation and of checksums. Offsets and lengths of transfers are multiples
/// of it.
pub const BLOCK: u64 = 4096;

/// A read of a batch.
#[derive(Debug)]
pub struct ReadOp<'a> {
    /// Offset on the device, in bytes; a multiple of [`BLOCK`].
    pub offset: u64,
    /// Memory to fill: a multiple of [`BLOCK`] bytes, at any address.
    pub buffer: &'a mut [u8],
}

/// A write of a batch.
#[derive(Debug)]
pub struct WriteOp<'a> {
    /// Offset on the device, in bytes; a multiple of [`BLOCK`].
    pub offset: u64,
    /// Data to write: a multiple of [`BLOCK`] bytes, at any address.
    pub data: &'a [u8],
}

/// Way of transfers to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// Batches through `io_uring`.
    IoUring,
    /// Single system calls, because the kernel refused rings.
    SystemCalls,
    /// Memory, without a device.
    Memory,
}

/// Properties of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// Path, or a name in its place.
    pub name: String,
    /// It is a device special file, not a regular one.
    pub is_raw: bool,
    /// It does not rotate.
    pub is_flash: bool,
    /// It is a file that had no holes when it was opened.
    pub is_allocated: bool,
    /// Way of transfers.
    pub engine: Engine,
}

/// Counters of a device; sums since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceStats {
    /// Read operations.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Bytes discarded.
    pub discarded_bytes: u64,
    /// Batches through a ring.
    pub ring_batches: u64,
    /// System calls of rings: transfers divided by this are the mean number per submission.
    pub ring_enters: u64,
    /// Reads, or parts of them, that were copied because their memory was not aligned. All others went
    /// directly to the caller's memory.
    pub copied_reads: u64,
    /// Batches through system calls: there are no rings, or all were in use.
    pub call_batches: u64,
    /// Short transfers, which were completed in parts.
    pub short: u64,
}

/// A device. Calls may come from any thread. Transfers report by [`nacre_env::blocking`] that they wait; all
/// other calls block. Of concurrent transfers that overlap, either leaves its data.
pub trait BlockDevice: Send + Sync {
    /// Reads all operations of a batch, in any order.
    ///
    /// # Errors
    /// That of the first operation that failed; the content of the other buffers is undefined then. `EINVAL`
    /// for an operation that is not aligned, `UnexpectedEof` beyond the end.
    fn read(&self, batch: &mut [ReadOp<'_>]) -> io::Result<()>;

    /// Reads the operations from `next`, which is called for more while earlier ones are under way, and
    /// passes each part that has arrived to `done`: number of the operation, from 0, offset of the part in
    /// it, and bytes. Both offset and length are multiples of [`BLOCK`].
    ///
    /// # Errors
    /// As [`BlockDevice::read`].
    fn read_each<'a>(
        &self,
        next: &mut dyn FnMut() -> Option<ReadOp<'a>>,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> io::Result<()> {
        read_batch(|batch| self.read(batch), next, done)
    }

    /// Returns memory for asynchronous reads; `None` if the device does not support them.
    fn fetcher(&self) -> Option<Box<dyn Fetch>> {
        None
    }

    /// Writes all operations of a batch, in any order. Later reads return the data, also after the end of
    /// this process; a power cut may lose or tear it until [`BlockDevice::flush`].
    ///
    /// # Errors
    /// That of the first operation that failed; any part of the batch may be on the medium then.
    fn write(&self, batch: &[WriteOp<'_>]) -> io::Result<()>;

    /// Makes every write durable that returned before the call.
    ///
    /// # Errors
    /// After an error, the state of data that was not durable before is unknown.
    fn flush(&self) -> io::Result<()>;

    /// Discards a range, whose bytes are not needed any more; reading them returns undefined data.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device does not support discards.
    fn discard(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns the size in bytes, a multiple of [`BLOCK`].
    fn size(&self) -> u64;

    /// Returns the properties of the device.
    fn info(&self) -> DeviceInfo;

    /// Returns the counters.
    fn stats(&self) -> DeviceStats;
}

/// Number of parts of a [`Fetch`].
pub const FETCH_PARTS: usize = 2;
/// Bytes of a part.
pub const FETCH_BYTES: usize = 1 << 20;

/// Memory for asynchronous reads of a device, in [`FETCH_PARTS`] parts. Dropping it waits for reads under
/// way.
pub trait Fetch: Send {
    /// Begins to read ranges, each an offset and a length, into a part, one after the other, over its earlier
    /// content. Waits only for reads still under way there. [`Fetch::finish`] reports errors.
    fn begin(&mut self, part: usize, ranges: &[(u64, usize)]);

    /// Whether no read is under way in a part.
    fn is_there(&mut self, part: usize) -> bool;

    /// Waits until a part is complete, and returns it.
    ///
    /// # Errors
    /// That of a range, as [`BlockDevice::read`]; the content of the part is undefined then. `EINVAL` if
    /// there were too many ranges, or too long ones.
    fn finish(&mut self, part: usize) -> io::Result<&[u8]>;
}

/// Implements [`BlockDevice::read_each`] with one batch.
pub(super) fn read_batch<'a>(
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
