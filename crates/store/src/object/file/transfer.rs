//! Transfers: through the page cache or by direct I/O.
//!
//! Large writes bypass the cache by default for this reason, measured on a virtual machine with 2 CPUs, 1 GiB
//! in pieces of 1 MiB and a sync, each against the disk's own O_DIRECT speed (2.6-3.6 GB/s) in the same run:
//! around the page cache 0.92-1.05; through it with early write-out 0.15-0.58 while the cache grows into
//! memory that the host must first provide, up to 1.4 when the pages are warm; through it without early
//! write-out 0.1, because the kernel throttles the writer. It also spares the CPU a copy. Reads go through
//! the cache: with read-ahead they reach 1.0-1.6 of the disk's own speed when cold, and repeated reads hit
//! it.
//!
//! Both ways may be mixed on one object. The kernel writes out and drops cached pages around a direct
//! transfer, and a page that a direct transfer touches is covered by it entirely (offset and length are
//! multiples of the page size).

use super::fetch::Fetcher;
use super::handle::Handle;
use super::local::SlotFile;
use super::options::FileStoreOptions;
use crate::object::cache_policy::PolicyCell;
use crate::object::in_memory::CopyBudget;
use crate::object::{ObjectError, ObjectStoreStats, Result};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Alignment in bytes of offset and length of a direct transfer, the size of a page; larger if the file
/// system needs it.
pub(super) const DIRECT_ALIGN: u32 = 4096;

fn is_multiple(offset: u64, len: usize, of: u32) -> bool {
    (offset | len as u64).is_multiple_of(u64::from(of))
}

/// See the [module documentation](self).
pub(super) struct Transfers {
    policy: PolicyCell,
    /// Bytes of a stream after which write-out starts.
    write_out_bytes: u64,
    /// The files are in memory: reads of them are copies.
    is_memory: bool,
    fetcher: Arc<Fetcher>,
    /// The file system supports reads that must not wait.
    can_read_nowait: AtomicBool,
    reads_waited: AtomicU64,
    reads_direct: AtomicU64,
    writes_direct: AtomicU64,
}

impl Transfers {
    pub(super) fn new(options: &FileStoreOptions, is_memory: bool) -> Transfers {
        Transfers {
            policy: PolicyCell::new(options.cache_policy()),
            write_out_bytes: options.write_out_bytes,
            is_memory,
            fetcher: Arc::default(),
            can_read_nowait: AtomicBool::new(true),
            reads_waited: AtomicU64::new(0),
            reads_direct: AtomicU64::new(0),
            writes_direct: AtomicU64::new(0),
        }
    }

    pub(super) fn policy(&self) -> &PolicyCell {
        &self.policy
    }

    /// Returns the thread that reads ahead.
    pub(super) fn fetcher(&self) -> &Arc<Fetcher> {
        &self.fetcher
    }

    /// Adds its counters to `stats`.
    pub(super) fn count_into(&self, stats: &mut ObjectStoreStats) {
        stats.reads_waited = self.reads_waited.load(Ordering::Relaxed);
        stats.reads_direct = self.reads_direct.load(Ordering::Relaxed);
        stats.writes_direct = self.writes_direct.load(Ordering::Relaxed);
    }

    /// Returns the descriptor for direct I/O, if this transfer should and can use it.
    fn direct_for<'a>(
        &self,
        handle: &'a Handle,
        offset: u64,
        data: &[u8],
        is_write: bool,
    ) -> Option<&'a SlotFile> {
        let is_wanted = self.policy.goes_around(is_write, offset, data.len() as u64);
        if !is_wanted || !is_multiple(offset, data.len(), DIRECT_ALIGN) {
            return None;
        }
        let direct = handle.direct()?;
        let fits = is_multiple(offset, data.len(), direct.offset_align)
            && (data.as_ptr() as usize).is_multiple_of(direct.memory_align as usize);
        fits.then_some(&direct.file)
    }

    pub(super) fn write(
        &self,
        handle: &Handle,
        offset: u64,
        data: &[u8],
    ) -> std::result::Result<usize, Errno> {
        if let Some(direct) = self.direct_for(handle, offset, data, true) {
            // The file system refuses unsupported direct transfers with EINVAL.
            match direct.write_most(offset, data) {
                Err(Errno::INVAL) => {}
                other => {
                    self.writes_direct.fetch_add(1, Ordering::Relaxed);
                    return other;
                }
            }
        }
        let written = handle.file.write_most(offset, data)?;
        handle.note_write(offset, written as u64, self.write_out_bytes);
        Ok(written)
    }

    /// Reads from the page cache, without waiting. `Ok(None)` if the result is unknown without waiting.
    fn read_cached(&self, handle: &Handle, offset: u64, buffer: &mut [u8]) -> Result<Option<usize>> {
        if !self.can_read_nowait.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match handle.file.read_cached(offset, buffer) {
            Ok(read) => Ok(Some(read)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.can_read_nowait.store(false, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(ObjectError::io("read", handle.object, error)),
        }
    }

    pub(super) fn read(
        &self,
        handle: &Arc<Handle>,
        offset: u64,
        buffer: &mut [u8],
        ahead: u32,
    ) -> Result<usize> {
        let fail = |error| ObjectError::io("read", handle.object, error);
        let mut budget = CopyBudget::new(self.is_memory);
        if let Some(direct) = self.direct_for(handle, offset, buffer, false) {
            self.reads_waited.fetch_add(1, Ordering::Relaxed);
            match budget.transfer(buffer.len(), || read_direct(direct, offset, buffer)) {
                Err(Errno::INVAL) => {}
                other => {
                    self.reads_direct.fetch_add(1, Ordering::Relaxed);
                    return other.map_err(fail);
                }
            }
        }
        if ahead > 0
            && let Some(range) = handle.note_read(offset, buffer.len() as u64, ahead)
        {
            self.fetcher.fetch(handle, range);
        }
        let cached = self.read_cached(handle, offset, buffer)?.unwrap_or(0);
        if cached == buffer.len() {
            return Ok(cached);
        }
        // A short read may be the end of the object, which another attempt shows without waiting.
        let rest = offset + cached as u64;
        if cached > 0 && self.read_cached(handle, rest, &mut buffer[cached..])? == Some(0) {
            return Ok(cached);
        }
        self.reads_waited.fetch_add(1, Ordering::Relaxed);
        let missing = &mut buffer[cached..];
        let read = budget.transfer(missing.len(), || handle.file.read_full(rest, missing));
        Ok(cached + read.map_err(fail)?)
    }
}

fn read_direct(file: &SlotFile, offset: u64, buffer: &mut [u8]) -> std::result::Result<usize, Errno> {
    let mut done = 0;
    while done < buffer.len() {
        let read = file.read(offset + done as u64, &mut buffer[done..])?;
        done += read;
        // Only at the end of the file does a transfer end off a boundary.
        if read == 0 || !done.is_multiple_of(DIRECT_ALIGN as usize) {
            break;
        }
    }
    Ok(done)
}
