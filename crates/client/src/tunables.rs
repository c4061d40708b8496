//! Parameters of a running client, under Lustre's names.

use nacre_types::{Status, StatusResult};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

const MIB: u64 = 1 << 20;
/// Default of `max_read_ahead_whole_mb`, in MiB: the largest window of one RPC.
const WHOLE_MB: u64 = 4;
/// Upper bounds of the parameters, as in Lustre.
const ASYNC_ACTIVE_MAX: u32 = 512;
const STATAHEAD_MAX: u32 = 2048;
const STATAHEAD_BATCH_MAX: u32 = 1024;
/// A write of this size is already an efficient request: gathering it costs a copy, which pays off only
/// sometimes.
const HYBRID_WRITE_BYTES: u64 = 512 << 10;
/// Lustre's default. Kernels read at most 1 MiB at a time, so this matters for smaller settings and for
/// programs that do not go through the kernel.
const HYBRID_READ_BYTES: u64 = 8 << 20;
/// Smallest piece of work that is divided, in bytes: it takes about 50 us to copy, 150 us to send.
pub(crate) const DIVIDE_MIN: u64 = 512 << 10;

/// When the work of one request is divided over CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum ParallelIo {
    /// Never: the thread that serves a request does all of its work.
    Off = 0,
    /// If the request is large and CPUs are idle.
    #[default]
    Auto = 1,
    /// If the request is large.
    On = 2,
}

impl ParallelIo {
    /// Names of the settings, in the order of their numbers.
    pub const NAMES: [&'static str; 3] = ["off", "auto", "on"];

    /// Returns the name of the setting.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Converts a number; unknown numbers count as `Auto`.
    pub(crate) fn from_number(number: u8) -> ParallelIo {
        match number {
            0 => ParallelIo::Off,
            2 => ParallelIo::On,
            _ => ParallelIo::Auto,
        }
    }

    /// Returns how many threads should help with `bytes`, on a machine whose CPUs were idle for
    /// `idle_per_cent` of the time.
    pub(crate) fn helpers(self, bytes: u64, cpus: usize, idle_per_cent: impl FnOnce() -> u32) -> usize {
        match self {
            _ if bytes < DIVIDE_MIN => 0,
            ParallelIo::Off => 0,
            ParallelIo::On => cpus.saturating_sub(1).max(1),
            // Half an idle CPU counts as one: its other work can wait.
            ParallelIo::Auto => ((idle_per_cent() as usize * cpus + 50) / 100).min(cpus.saturating_sub(1)),
        }
    }
}

impl std::str::FromStr for ParallelIo {
    type Err = Status;

    /// # Errors
    /// `EINVAL` for text that is none of the names.
    fn from_str(text: &str) -> StatusResult<ParallelIo> {
        let number = Self::NAMES.iter().position(|name| *name == text).ok_or(Status::EINVAL)?;
        Ok(ParallelIo::from_number(number as u8))
    }
}

/// The parameters. Every setter checks its value; operations that begin later see the change.
#[derive(Debug)]
pub struct Tunables {
    memory_mb: u64,
    max_read_ahead_mb: AtomicU64,
    max_read_ahead_per_file_mb: AtomicU64,
    max_read_ahead_whole_mb: AtomicU64,
    max_read_ahead_async_active: AtomicU32,
    statahead_max: AtomicU32,
    statahead_batch_max: AtomicU32,
    max_cached_mb: AtomicU64,
    /// Times that data read ahead was dropped to free memory.
    reclaims: AtomicU64,
    parallel_io: AtomicU8,
    /// Requests and copies that were divided.
    divided: AtomicU64,
    hybrid_io: AtomicBool,
    hybrid_write_bytes: AtomicU64,
    hybrid_read_bytes: AtomicU64,
}

impl Tunables {
    /// Returns the defaults for a host with `memory_mb` MiB and `cpus` CPUs.
    pub fn new(memory_mb: u64, cpus: u32) -> Tunables {
        let total = (memory_mb / 32).min(1024).max((memory_mb / 2).min(256)).max(1);
        let per_file = (total / 4).clamp(1, 256);
        Tunables {
            memory_mb,
            max_read_ahead_mb: AtomicU64::new(total),
            max_read_ahead_per_file_mb: AtomicU64::new(per_file),
            max_read_ahead_whole_mb: AtomicU64::new(WHOLE_MB.min(per_file)),
            max_read_ahead_async_active: AtomicU32::new((cpus / 2).max(1)),
            statahead_max: AtomicU32::new(128),
            statahead_batch_max: AtomicU32::new(64),
            max_cached_mb: AtomicU64::new((memory_mb / 2).max(1)),
            reclaims: AtomicU64::new(0),
            parallel_io: AtomicU8::new(ParallelIo::default() as u8),
            divided: AtomicU64::new(0),
            hybrid_io: AtomicBool::new(true),
            hybrid_write_bytes: AtomicU64::new(HYBRID_WRITE_BYTES),
            hybrid_read_bytes: AtomicU64::new(HYBRID_READ_BYTES),
        }
    }

    /// Returns the defaults for this host.
    pub(crate) fn of_host() -> Tunables {
        Tunables::new(memory_mb(), nacre_env::cpu_count() as u32)
    }

    /// Returns the memory for data read ahead, in MiB.
    pub fn max_read_ahead_mb(&self) -> u64 {
        self.max_read_ahead_mb.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::max_read_ahead_mb`], at most half of the memory: larger values are cut to that. 0
    /// switches read-ahead off.
    ///
    /// # Errors
    /// `ERANGE` for more than there is memory.
    pub fn set_max_read_ahead_mb(&self, mb: u64) -> StatusResult<()> {
        if mb > self.memory_mb {
            return Err(Status::ERANGE);
        }
        let mb = mb.min(self.memory_mb / 2);
        self.max_read_ahead_mb.store(mb, Ordering::Relaxed);
        self.max_read_ahead_per_file_mb.fetch_min(mb, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the largest window of one open file, in MiB.
    pub fn max_read_ahead_per_file_mb(&self) -> u64 {
        self.max_read_ahead_per_file_mb.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::max_read_ahead_per_file_mb`]; cut to [`Tunables::max_read_ahead_mb`]. 0 switches
    /// windows off.
    pub fn set_max_read_ahead_per_file_mb(&self, mb: u64) {
        let mb = mb.min(self.max_read_ahead_mb());
        self.max_read_ahead_per_file_mb.store(mb, Ordering::Relaxed);
    }

    /// Returns the size up to which files are fetched whole with their second read, in MiB.
    pub fn max_read_ahead_whole_mb(&self) -> u64 {
        self.max_read_ahead_whole_mb.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::max_read_ahead_whole_mb`].
    ///
    /// # Errors
    /// `ERANGE` for more than [`Tunables::max_read_ahead_per_file_mb`].
    pub fn set_max_read_ahead_whole_mb(&self, mb: u64) -> StatusResult<()> {
        if mb > self.max_read_ahead_per_file_mb() {
            return Err(Status::ERANGE);
        }
        self.max_read_ahead_whole_mb.store(mb, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how many threads fetch ahead at the same time, at most.
    pub fn max_read_ahead_async_active(&self) -> u32 {
        self.max_read_ahead_async_active.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::max_read_ahead_async_active`], 0 to 512. With 0 nothing is fetched ahead, since all
    /// read-ahead is asynchronous here.
    ///
    /// # Errors
    /// `ERANGE` for more than 512.
    pub fn set_max_read_ahead_async_active(&self, threads: u32) -> StatusResult<()> {
        if threads > ASYNC_ACTIVE_MAX {
            return Err(Status::ERANGE);
        }
        self.max_read_ahead_async_active.store(threads, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how many attributes of one directory statahead fetches ahead of the program, at most.
    pub fn statahead_max(&self) -> u32 {
        self.statahead_max.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::statahead_max`], 0 to 2048. With 0 listings carry no attributes either: each inode
    /// costs a request of its own.
    ///
    /// # Errors
    /// `ERANGE` for more than 2048.
    pub fn set_statahead_max(&self, entries: u32) -> StatusResult<()> {
        if entries > STATAHEAD_MAX {
            return Err(Status::ERANGE);
        }
        self.statahead_max.store(entries, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how many attributes one request of statahead fetches, at most.
    pub fn statahead_batch_max(&self) -> u32 {
        self.statahead_batch_max.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::statahead_batch_max`], 0 to 1024; 0 and 1 both mean one at a time.
    ///
    /// # Errors
    /// `ERANGE` for more than 1024.
    pub fn set_statahead_batch_max(&self, entries: u32) -> StatusResult<()> {
        if entries > STATAHEAD_BATCH_MAX {
            return Err(Status::ERANGE);
        }
        self.statahead_batch_max.store(entries, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the memory for data that the client caches, in MiB: read-ahead and write-back together. The
    /// kernel's page cache is not part of it.
    pub fn max_cached_mb(&self) -> u64 {
        self.max_cached_mb.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::max_cached_mb`]; see
    /// [`WriteBack::set_max_cached_mb`](crate::write_back::WriteBack::set_max_cached_mb).
    ///
    /// # Errors
    /// `ERANGE` for more than there is memory.
    pub(crate) fn set_max_cached_mb(&self, mb: u64) -> StatusResult<()> {
        if mb > self.memory_mb {
            return Err(Status::ERANGE);
        }
        self.max_cached_mb.store(mb, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn cached_bytes_max(&self) -> u64 {
        self.max_cached_mb().saturating_mul(MIB)
    }

    /// Returns how often data read ahead was dropped to keep within [`Tunables::max_cached_mb`].
    pub fn reclaims(&self) -> u64 {
        self.reclaims.load(Ordering::Relaxed)
    }

    pub(crate) fn count_reclaim(&self) {
        self.reclaims.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the work of one request is divided over CPUs.
    pub fn parallel_io(&self) -> ParallelIo {
        ParallelIo::from_number(self.parallel_io.load(Ordering::Relaxed))
    }

    /// Sets [`Tunables::parallel_io`].
    pub(crate) fn set_parallel_io(&self, setting: ParallelIo) {
        self.parallel_io.store(setting as u8, Ordering::Relaxed);
    }

    /// Returns whether large calls go to the servers directly, bypassing write-back and read-ahead
    /// (`hybrid_io`).
    pub fn hybrid_io(&self) -> bool {
        self.hybrid_io.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::hybrid_io`].
    pub fn set_hybrid_io(&self, on: bool) {
        self.hybrid_io.store(on, Ordering::Relaxed);
    }

    /// Returns the size from which writes are large, in bytes: they are held back only while a CPU is idle or
    /// servers keep writers waiting.
    pub fn hybrid_io_write_threshold_bytes(&self) -> u64 {
        self.hybrid_write_bytes.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::hybrid_io_write_threshold_bytes`]; with 0 all writes are large.
    pub fn set_hybrid_io_write_threshold_bytes(&self, bytes: u64) {
        self.hybrid_write_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Returns the size from which reads are large, in bytes: nothing is read ahead for them.
    pub fn hybrid_io_read_threshold_bytes(&self) -> u64 {
        self.hybrid_read_bytes.load(Ordering::Relaxed)
    }

    /// Sets [`Tunables::hybrid_io_read_threshold_bytes`]; with 0 all reads are large.
    pub fn set_hybrid_io_read_threshold_bytes(&self, bytes: u64) {
        self.hybrid_read_bytes.store(bytes, Ordering::Relaxed);
    }

    /// True if a write of `len` bytes is large.
    pub(crate) fn is_large_write(&self, len: u64) -> bool {
        self.hybrid_io() && len >= self.hybrid_io_write_threshold_bytes()
    }

    /// True if a read of `len` bytes is large.
    pub(crate) fn is_large_read(&self, len: u64) -> bool {
        self.hybrid_io() && len >= self.hybrid_io_read_threshold_bytes()
    }

    /// Returns how many requests and copies were divided since the start.
    pub fn divided(&self) -> u64 {
        self.divided.load(Ordering::Relaxed)
    }

    pub(crate) fn count_divided(&self) {
        self.divided.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read_ahead_bytes(&self) -> u64 {
        self.max_read_ahead_mb().saturating_mul(MIB)
    }

    pub(crate) fn window_bytes(&self) -> u64 {
        self.max_read_ahead_per_file_mb().saturating_mul(MIB)
    }

    pub(crate) fn whole_bytes(&self) -> u64 {
        self.max_read_ahead_whole_mb().saturating_mul(MIB)
    }
}

/// Returns the memory of this host in MiB; a small host's if it cannot be determined.
fn memory_mb() -> u64 {
    const UNKNOWN_MB: u64 = 512;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(UNKNOWN_MB, |kib| (kib >> 10).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_follow_memory_and_cpus() {
        let (small, large) = (Tunables::new(400, 1), Tunables::new(1 << 20, 64));
        assert_eq!((small.max_read_ahead_mb(), large.max_read_ahead_mb()), (200, 1024));
        assert_eq!((small.max_read_ahead_per_file_mb(), large.max_read_ahead_per_file_mb()), (50, 256));
        assert_eq!((small.max_read_ahead_async_active(), large.max_read_ahead_async_active()), (1, 32));
    }

    #[test]
    fn what_is_out_of_range_is_refused_and_changes_nothing() {
        let tunables = Tunables::new(10_000, 2);
        assert_eq!(tunables.set_max_read_ahead_mb(10_001), Err(Status::ERANGE));
        assert_eq!(tunables.set_max_read_ahead_whole_mb(79), Err(Status::ERANGE));
        assert_eq!(tunables.set_max_read_ahead_async_active(513), Err(Status::ERANGE));
        assert_eq!(tunables.set_statahead_max(2049), Err(Status::ERANGE));
        assert_eq!(tunables.set_statahead_batch_max(1025), Err(Status::ERANGE));
        assert_eq!((tunables.max_read_ahead_mb(), tunables.max_read_ahead_whole_mb()), (312, 4));
        assert_eq!((tunables.statahead_max(), tunables.statahead_batch_max()), (128, 64));
    }

    #[test]
    fn a_file_gets_no_more_than_all_files_together() {
        let tunables = Tunables::new(10_000, 2);
        assert_eq!(tunables.set_max_read_ahead_mb(8_000), Ok(()));
        assert_eq!(tunables.max_read_ahead_mb(), 5_000, "half of the memory");
        tunables.set_max_read_ahead_per_file_mb(9_999);
        assert_eq!(tunables.max_read_ahead_per_file_mb(), 5_000);
        assert_eq!(tunables.set_max_read_ahead_mb(10), Ok(()));
        assert_eq!(tunables.max_read_ahead_per_file_mb(), 10);
    }
}
