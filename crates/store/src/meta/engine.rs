//! The parts of an open store, and the path of a batch through them.
//!
//! Order of locks: checkpoint state, then shards in ascending order, then the log's state. A commit holds the
//! locks of the shards it touches over append and apply, so the order of transnos is the order of visibility,
//! and a freeze, which takes all shards, never sees half a batch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::base::Base;
use super::batch::Batch;
use super::checkpoint::Checkpointer;
use super::error::{MetaError, Result};
use super::log::{Log, body_crc};
use super::options::MetaStoreOptions;
use super::overlay::{FullKey, Overlay, shard_of};
use super::report::{MetaStoreStats, VerifyProblem, VerifyReport};
use super::reserve::Reserve;
use super::spin::spin_then_block;
use super::{Table, TransNo};

/// Bytes of log between two checks of the overlay's size, which take a cache line of each shard from the CPU
/// that changed it last: rare enough to cost nothing, often enough to keep the bound.
const SIZE_CHECK_BYTES: u64 = 512 << 10;

/// State shared by all threads of a store.
pub(crate) struct Engine {
    pub(crate) overlay: Overlay,
    pub(crate) log: Log,
    pub(crate) base: Base,
    pub(crate) reserve: Reserve,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) uuid: [u8; 16],
    pub(crate) options: MetaStoreOptions,
    /// Current value of the option.
    pub(crate) commit_interval_ms: AtomicU64,
    pub(crate) is_closed: AtomicBool,
    pub(crate) stalls: AtomicU64,
    pub(crate) replayed: u64,
    /// Damage found while opening a store read-only.
    pub(crate) damage: Vec<VerifyProblem>,
}

impl Engine {
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(MetaError::Closed) } else { Ok(()) }
    }

    pub(crate) fn get<R>(&self, table: Table, key: &[u8], f: impl FnOnce(Option<&[u8]>) -> R) -> Result<R> {
        self.check_open()?;
        let Some(full_key) = FullKey::new(table, key) else { return Ok(f(None)) };
        let full_key = full_key.as_slice();
        {
            // Recursive, so that `f` may read again while a commit waits for the shard.
            let maps = &self.overlay.shard(shard_of(table, key)).maps;
            let maps = spin_then_block(|| maps.try_read_recursive(), || maps.read_recursive());
            if let Some(value) = maps.get(full_key) {
                return Ok(f(value));
            }
        }
        // Entries that a checkpoint removes from the overlay after this point are in the base already.
        self.base.get(full_key, f)
    }

    pub(crate) fn commit(&self, batch: &Batch, floor: TransNo) -> Result<TransNo> {
        if let Some(refused) = batch.refused {
            return Err(refused.error());
        }
        if batch.is_empty() {
            return Ok(TransNo(self.log.last_transno()));
        }
        let (len, max) = (batch.encoded_len(), self.log.body_len_max());
        if len > max {
            return Err(MetaError::BatchLength { len, max });
        }
        if self.options.read_only {
            let mut locked = self.overlay.lock(batch.shard_set);
            let transno = self.log.count(floor.0);
            for (op, &shard) in batch.ops().zip(&batch.shards) {
                locked.apply(shard, &op);
            }
            return Ok(TransNo(transno));
        }
        let crc = body_crc(batch);
        loop {
            self.check_open()?;
            self.log.latch().check()?;
            if self.reserve.is_full() && !batch.releasing {
                self.look_for_space()?;
            }
            let mut locked = self.overlay.lock(batch.shard_set);
            if let Some(appended) = self.log.append(batch, crc, floor.0)? {
                for (op, &shard) in batch.ops().zip(&batch.shards) {
                    locked.apply(shard, &op);
                }
                drop(locked);
                self.freeze_if_large(appended.end as u64, appended.len as u64);
                return Ok(TransNo(appended.transno));
            }
            drop(locked);
            self.make_room()?;
        }
    }

    /// Refuses a batch on a full disk, unless a check (made from time to time) finds free space again.
    fn look_for_space(&self) -> Result<()> {
        if self.reserve.is_look_due() {
            self.reserve.update(self.base.sizes()?.free_bytes);
            // Recent deletes become free pages; a store that refuses all other batches would never start a
            // checkpoint.
            self.try_freeze();
        }
        if self.reserve.is_full() { Err(MetaError::NoSpace) } else { Ok(()) }
    }

    /// Returns the bytes of free pages of the base, without those that serve as the reserve.
    pub(crate) fn free_inside(&self) -> u64 {
        let free = self.base.sizes().map_or(0, |sizes| sizes.free_bytes);
        free.saturating_sub(self.reserve.missing())
    }

    fn freeze_if_large(&self, end: u64, len: u64) {
        let step = SIZE_CHECK_BYTES.min(self.options.overlay_bytes / 16);
        if end / step != (end - len) / step && self.overlay.active_bytes() > self.options.overlay_bytes {
            self.try_freeze();
        }
    }

    pub(crate) fn sync(&self, upto: TransNo) -> Result<()> {
        self.check_open()?;
        if self.log.durable_transno() >= upto.0 || self.options.read_only {
            return Ok(());
        }
        nacre_env::blocking(|| self.log.sync(upto.0))
    }

    pub(crate) fn stats(&self) -> MetaStoreStats {
        let (commits, wal_bytes) = self.log.totals();
        let base = self.base.sizes().unwrap_or_default();
        let (checkpoints, checkpoint_failures) = self.checkpointer.totals();
        MetaStoreStats {
            commits,
            wal_bytes,
            syncs: self.log.syncs.load(Ordering::Relaxed),
            checkpoints,
            checkpoint_failures,
            stalls: self.stalls.load(Ordering::Relaxed),
            overlay_bytes: self.overlay.active_bytes(),
            base_entries: base.entries,
            base_bytes: base.file_bytes,
            base_free_bytes: base.free_bytes,
            replayed: self.replayed,
            last_transno: TransNo(self.log.last_transno()),
            last_committed: TransNo(self.log.durable_transno()),
            is_full: self.reserve.is_full(),
            has_failed: self.log.latch().is_set(),
        }
    }

    /// Whether reads may be incomplete: opening or a scan of a store opened read-only has skipped damage.
    pub(crate) fn is_partial(&self) -> bool {
        let is_harmless = |problem: &VerifyProblem| matches!(problem, VerifyProblem::Copy { .. });
        let base = matches!(&self.base, Base::Pages(pages) if pages.is_partial());
        base || !self.damage.iter().all(is_harmless)
    }

    pub(crate) fn verify(&self, progress: &mut dyn FnMut(u64)) -> Result<VerifyReport> {
        self.check_open()?;
        let mut report = VerifyReport::default();
        self.damage.iter().for_each(|problem| report.add(problem.clone()));
        self.base.verify(&mut report, progress)?;
        let (records, bad) = self.log.verify_active()?;
        report.wal_records = if self.options.read_only { self.replayed } else { records };
        if let Some((segment, offset)) = bad {
            report.add(VerifyProblem::Record { segment, offset });
        }
        Ok(report)
    }
}
