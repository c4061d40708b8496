//! The transactional key-value store under each MDT, and the small index of each OST.
//!
//! Owns one directory. Changes arrive as [`Batch`]es; each gets a transaction number (transno), is visible to
//! every thread when `commit` returns, survives a crash of the process from then on, and is durable against a
//! power cut after [`MetaStore::sync`] or at most `commit_interval_ms` later. After a power cut the store
//! holds a prefix of the transactions: everything up to some transno that is not below
//! [`MetaStore::last_committed`], nothing beyond.
//!
//! The store does not order operations that depend on each other: callers hold their own locks over read,
//! decide, commit. All calls block, take `&self` and may come from any thread.

mod base;
mod batch;
mod checkpoint;
mod engine;
mod error;
mod log;
mod map;
mod options;
mod overlay;
mod pages;
mod recovery;
mod report;
mod reserve;
mod salvage;
mod scan;
mod segment;
mod spin;
mod superblock;
mod tail;
#[doc(hidden)]
pub mod untrusted;
mod wal;
pub mod witness;

use nacre_env::thread::JoinHandle;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nacre_env::sync::Mutex;

use crate::exclusive::Exclusive;
use checkpoint::StopSignal;
use engine::Engine;

pub use batch::Batch;
pub use error::{MetaError, Result};
pub use nacre_types::TransNo;
pub use options::MetaStoreOptions;
pub use report::{MetaStoreStats, VerifyProblem, VerifyReport};
pub use scan::Visitor;
pub(crate) use wal::crc32c;

/// A name space of keys inside one store; callers define constants. All 256 values are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Table(pub u8);

/// Longest key in bytes: LMDB's limit (511) less the table byte. Empty keys are refused.
pub const KEY_LEN_MAX: usize = 510;
/// Longest value in bytes; leaves ample space for an extended attribute of 64 KiB.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// See the [module documentation](self).
pub struct MetaStore {
    engine: Arc<Engine>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stop: StopSignal,
    /// Last field: the lock is released after everything that uses the files.
    _lock: Option<Exclusive>,
}

impl MetaStore {
    /// Opens the store in `dir`, replaying the log after a crash; creates it if `options.create` is set and
    /// the directory is missing or empty.
    ///
    /// # Errors
    /// [`MetaError::InUse`] if another process has it open, [`MetaError::Missing`], [`MetaError::Foreign`],
    /// [`MetaError::TooNew`], [`MetaError::TooOld`], [`MetaError::Corrupt`] if durable bytes are damaged.
    pub fn open(dir: &Path, options: MetaStoreOptions) -> Result<Self> {
        let periodic_sync = options.commit_interval_ms > 0;
        let is_quiet = options.read_only;
        let (engine, lock) = recovery::open(dir, options)?;
        let store = MetaStore {
            engine: Arc::new(engine),
            threads: Mutex::default(),
            stop: StopSignal::default(),
            _lock: lock,
        };
        if is_quiet {
            return Ok(store);
        }
        let engine = store.engine.clone();
        store.spawn(dir, "nacre-ckpt", move || engine.run_checkpoints())?;
        if periodic_sync {
            let (engine, stop) = (store.engine.clone(), store.stop.clone());
            store.spawn(dir, "nacre-sync", move || engine.run_periodic_syncs(&stop))?;
        }
        Ok(store)
    }

    /// Repairs the damage in the store in `dir` that has exactly one right answer: superblocks, and the pages
    /// of the base that locate other pages. Returns the number of problems of [`MetaStore::verify`] repaired.
    /// Call it only after a check has found damage, as it rewrites the base.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// As [`MetaStore::open`].
    pub fn repair(dir: &Path, options: &MetaStoreOptions) -> Result<u64> {
        let looking = MetaStoreOptions { read_only: true, create: false, ..options.clone() };
        let report = MetaStore::open(dir, looking)?.verify(&mut |_| ())?;
        if report.problem_count == 0 || !report.keeps_entries() {
            return Ok(0);
        }
        if report.problems.iter().any(|problem| !matches!(problem, VerifyProblem::Copy { .. })) {
            recovery::rebuild_base(dir, options)?;
        }
        // Opening rewrites the superblock.
        MetaStore::open(dir, MetaStoreOptions { create: false, ..options.clone() })?.close()?;
        Ok(report.problem_count)
    }

    /// Calls `f` with the newest value of `key`, or `None`, without copying it.
    ///
    /// `f` runs under a read lock: it may call `get` and `scan`, but must not commit to this store, and
    /// should be short.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if the stored bytes do not match their checksum.
    pub fn get<R>(&self, table: Table, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.engine.get(table, key, f)
    }

    /// Calls `f` with each key that begins with `prefix` and follows `from`, in ascending order, until `f`
    /// breaks.
    ///
    /// `from` is a whole key (with the prefix). Each entry was current at some moment during the call;
    /// entries that do not change during the call are seen exactly once. With a prefix of 16 bytes or more (a
    /// FID) one shard is searched; with a shorter one, all shards. `f` may call `get`, `scan` and `commit`.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if stored bytes do not match their checksum.
    pub fn scan(&self, table: Table, prefix: &[u8], from: Bound<&[u8]>, f: &mut Visitor<'_>) -> Result<()> {
        self.engine.scan(table, prefix, from, f)
    }

    /// Applies a batch and returns its transaction number. An empty batch changes nothing and returns the
    /// newest number.
    ///
    /// # Durability
    /// On return the batch is visible and survives a crash of this process, not yet a power cut: see
    /// [`MetaStore::sync`].
    ///
    /// # Errors
    /// [`MetaError::NoSpace`], [`MetaError::KeyLength`], [`MetaError::ValueLength`] and
    /// [`MetaError::BatchLength`] leave everything unchanged; [`MetaError::Failed`] after a failed sync.
    pub fn commit(&self, batch: &Batch) -> Result<TransNo> {
        self.engine.commit(batch, TransNo(0))
    }

    /// Commits as [`MetaStore::commit`], with a number not below `floor`: replayed requests keep their
    /// transno.
    ///
    /// # Errors
    /// As [`MetaStore::commit`].
    pub fn commit_at_least(&self, batch: &Batch, floor: TransNo) -> Result<TransNo> {
        self.engine.commit(batch, floor)
    }

    /// Makes every transaction up to and including `upto` durable (group commit: concurrent callers share a
    /// flush).
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`MetaError::Failed`] if the medium reported an error; the store then accepts no more changes.
    pub fn sync(&self, upto: TransNo) -> Result<()> {
        self.engine.sync(upto)
    }

    /// Returns the longest time in milliseconds that a change stays volatile if no caller syncs; 0 if there is no periodic
    /// sync.
    pub fn commit_interval_ms(&self) -> u64 {
        self.engine.commit_interval_ms.load(Ordering::Relaxed)
    }

    /// Sets that time, at least 1 ms; it takes effect within a second. No effect on a store opened without a periodic
    /// sync.
    pub fn set_commit_interval_ms(&self, interval_ms: u64) {
        if self.commit_interval_ms() > 0 {
            self.engine.commit_interval_ms.store(interval_ms.max(1), Ordering::Relaxed);
        }
    }

    /// Returns the number of the newest transaction; `TransNo(0)` in a new store.
    pub fn last_transno(&self) -> TransNo {
        TransNo(self.engine.log.last_transno())
    }

    /// Returns the number of the newest durable transaction, which every reply carries to the client.
    pub fn last_committed(&self) -> TransNo {
        TransNo(self.engine.log.durable_transno())
    }

    /// Runs a checkpoint: moves all recent changes to the base and waits for the end.
    ///
    /// # Durability
    /// Everything committed before the call is durable on return.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] if the disk is full (nothing is lost, the checkpoint is retried later),
    /// [`MetaError::Failed`].
    pub fn checkpoint(&self) -> Result<()> {
        self.engine.check_open()?;
        nacre_env::blocking(|| self.engine.checkpoint())
    }

    /// Starts a checkpoint without waiting for its end, so that the pages of deleted entries become free.
    /// Does nothing while an earlier checkpoint is under way.
    pub fn begin_checkpoint(&self) {
        if !self.engine.options.read_only && !self.engine.log.latch().is_set() {
            self.engine.try_freeze();
        }
    }

    /// Returns the free space inside the file of the base, in bytes: its free pages, less those that serve as
    /// the reserve while the disk is too full for one. The file never shrinks, so a file system counts these
    /// bytes as used.
    pub fn free_inside(&self) -> u64 {
        self.engine.free_inside()
    }

    /// Returns the bytes of recent changes, which will take space in the base.
    pub fn recent_bytes(&self) -> u64 {
        self.engine.overlay.bytes()
    }

    /// Checkpoints and closes; later calls return [`MetaError::Closed`]. Dropping the store does the same,
    /// but without returning errors.
    ///
    /// # Errors
    /// As [`MetaStore::checkpoint`].
    pub fn close(&self) -> Result<()> {
        if self.engine.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Without the checkpoint thread (opening failed half-way) the wait would never end; the log keeps all
        // changes.
        let result = if self.threads.lock().is_empty() { Ok(()) } else { self.engine.checkpoint() };
        self.engine.stop_checkpoints();
        self.stop.set();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                ::log::error!("a thread of the metadata store panicked");
            }
        }
        result
    }

    /// Returns the counters.
    pub fn stats(&self) -> MetaStoreStats {
        self.engine.stats()
    }

    /// Reads all entries and compares checksums; `progress` is called from time to time with the number of
    /// entries read.
    ///
    /// # Errors
    /// Only if reading itself fails; damage is listed in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<VerifyReport> {
        self.engine.verify(progress)
    }

    /// Whether scans of a store opened read-only have skipped damage so far, or its log is incomplete: an
    /// entry that was not found may exist.
    pub fn is_partial(&self) -> bool {
        self.engine.is_partial()
    }

    fn spawn(&self, dir: &Path, name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let spawned = nacre_env::thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread = spawned.map_err(|source| MetaError::Io {
            action: "start a thread for",
            path: dir.to_owned(),
            source,
        })?;
        self.threads.lock().push(thread);
        Ok(())
    }
}

impl Drop for MetaStore {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            ::log::warn!("closing a metadata store: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
