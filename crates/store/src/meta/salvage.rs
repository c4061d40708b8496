//! A new store from what can be read of a damaged one.

use super::batch::Batch;
use super::error::{MetaError, Result};
use super::options::MetaStoreOptions;
use super::{MetaStore, Table};
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

/// Bytes of entries in one transaction of the new store.
const BATCH_BYTES: usize = 1 << 20;
/// Suffix of the directory of the new store until it is complete.
const NEW: &str = "salvaged";
/// Suffix of the directory that keeps the damaged store.
const OLD: &str = "damaged";
/// Most damaged stores that are kept next to each other.
const KEPT_MAX: u32 = 1000;

impl MetaStore {
    /// Replaces the store in `dir` by a new one with all entries that can be read; the damaged one stays next to it,
    /// in a directory whose name ends in `.damaged`. Returns the number of entries. Transaction numbers continue.
    ///
    /// # Durability
    /// Durable on return; a crash leaves the old store or the new one in `dir`, or none, and both next to it.
    ///
    /// # Errors
    /// As [`MetaStore::open`]; if the disk is full, `dir` stays as it is.
    pub fn salvage(dir: &Path, options: &MetaStoreOptions) -> Result<u64> {
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| MetaError::Io { action, path, source }
        };
        let fresh = sibling(dir, NEW);
        if fresh.exists() {
            fs::remove_dir_all(&fresh).map_err(io("remove", &fresh))?;
        }
        let looking = MetaStoreOptions { read_only: true, create: false, ..options.clone() };
        let damaged = MetaStore::open(dir, looking)?;
        let new =
            MetaStore::open(&fresh, MetaStoreOptions { create: true, read_only: false, ..options.clone() })?;
        let count = damaged.copy_to(&new)?;
        new.close()?;
        drop((new, damaged));
        let kept = (0..KEPT_MAX).map(|number| match number {
            0 => sibling(dir, OLD),
            number => sibling(dir, &format!("{OLD}.{number}")),
        });
        let kept = kept.into_iter().find(|path| !path.exists()).unwrap_or_else(|| sibling(dir, OLD));
        fs::rename(dir, &kept).map_err(io("rename", dir))?;
        fs::rename(&fresh, dir).map_err(io("rename", &fresh))?;
        let parent = dir.parent().unwrap_or(Path::new("/"));
        fs::File::open(parent).and_then(|parent| parent.sync_all()).map_err(io("sync", parent))?;
        ::log::info!("{} has {count} entries of the damaged store in {}", dir.display(), kept.display());
        Ok(count)
    }

    fn copy_to(&self, new: &MetaStore) -> Result<u64> {
        let (mut batch, mut count, mut outcome) = (Batch::new(), 0, Ok(()));
        let floor = self.last_transno();
        let flush = |batch: &mut Batch| {
            let committed = new.commit_at_least(batch, floor).map(drop);
            batch.clear();
            committed
        };
        for table in 0..=u8::MAX {
            self.scan(Table(table), &[], Bound::Unbounded, &mut |key, value| {
                batch.put(Table(table), key, value);
                count += 1;
                if batch.encoded_len() >= BATCH_BYTES {
                    outcome = flush(&mut batch);
                }
                if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            std::mem::replace(&mut outcome, Ok(()))?;
        }
        flush(&mut batch)?;
        new.sync(new.last_transno())?;
        Ok(count)
    }
}

fn sibling(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    dir.with_file_name(name)
}
