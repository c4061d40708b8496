//! The resources below objects: device, free space and index, and the durability of their changes.
//!
//! Every change of blocks belongs to the generation in which it was committed. A flush ends the current
//! generation, flushes the device, and then commits and syncs a record of that in the index. Because the
//! index is recovered as a prefix of its transactions, that record proves that the data of the generation is
//! on the medium, and that all blocks that the generation freed may be reused.
//!
//! Group commit: many callers share one flush.

use super::allocator::Extent;
use super::device::{BLOCK, BlockDevice};
use super::medium::Medium;
use super::space::{Share, SpaceBook, Wanted, WriteStream};
use crate::group_commit::GroupCommit;
use crate::meta::{Batch, MetaStore, Table, TransNo};
use crate::object::{ObjectError, Result, Trim, Trimmed};
use nacre_env::sync::{Mutex, RwLock, RwLockReadGuard};
use nacre_ondisk::block::BlockStoreRecord;
use nacre_types::Fid;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The one [`BlockStoreRecord`], under [`STORE_KEY`].
pub(super) const STORE: Table = Table(3);
pub(super) const STORE_KEY: &[u8] = b"store";
/// Maximum blocks of one discard, 64 MiB: devices take long for large ones.
const DISCARD_MAX: u64 = (64 << 20) / BLOCK;
/// Discards of one call, so that the trimming thread checks its other conditions often enough.
const DISCARDS_AT_ONCE: u64 = 256;

/// See the [module documentation](self).
pub(super) struct Volume {
    uuid: [u8; 16],
    medium: Medium,
    index: MetaStore,
    space: SpaceBook,
    /// Held shared while a change is committed, exclusively while the generation changes: so no change of an
    /// old generation is committed after its end.
    gate: RwLock<()>,
    generation: AtomicU64,
    completed: AtomicU64,
    group_commit: GroupCommit,
    /// Flushes that failed.
    failures: AtomicU64,
    /// Modifying calls in progress.
    changing: AtomicUsize,
    is_closed: AtomicBool,
}

/// A modifying call in progress, see [`Volume::change`].
pub(super) struct Changing<'a>(&'a AtomicUsize);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The current generation, which does not end during the lifetime of this guard.
pub(super) struct Present<'a> {
    _gate: RwLockReadGuard<'a, ()>,
    pub(super) generation: u64,
    /// Last durable generation.
    pub(super) completed: u64,
}

impl Volume {
    /// Creates a volume on which everything up to the generation of `state` is durable, with changes up to
    /// generation `newest`.
    pub(super) fn new(
        medium: Medium,
        index: MetaStore,
        space: SpaceBook,
        state: &BlockStoreRecord,
        newest: u64,
    ) -> Volume {
        Volume {
            uuid: state.uuid,
            medium,
            index,
            space,
            gate: RwLock::new(()),
            generation: AtomicU64::new(newest.max(state.generation) + 1),
            completed: AtomicU64::new(state.generation),
            group_commit: GroupCommit::default(),
            failures: AtomicU64::new(0),
            changing: AtomicUsize::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Returns the directory of the store.
    pub(super) fn dir(&self) -> &Path {
        self.medium.dir()
    }

    pub(super) fn medium(&self) -> &Medium {
        &self.medium
    }

    pub(super) fn index(&self) -> &MetaStore {
        &self.index
    }

    pub(super) fn space(&self) -> &SpaceBook {
        &self.space
    }

    /// Returns the current generation.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the last durable generation.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Acquire)
    }

    /// Returns the number of flushes that failed.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Refuses changes after [`Volume::close`].
    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(ObjectError::Closed) } else { Ok(()) }
    }

    /// Registers a modifying call, until the guard is dropped.
    pub(super) fn change(&self) -> Result<Changing<'_>> {
        // In this order: the closing thread sees the call, or the call sees the closing.
        self.changing.fetch_add(1, Ordering::SeqCst);
        let changing = Changing(&self.changing);
        self.check_open().map(|()| changing)
    }

    /// Returns the number of modifying calls in progress.
    pub(super) fn changing(&self) -> usize {
        self.changing.load(Ordering::SeqCst)
    }

    /// Refuses later changes.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Keeps the current generation from ending while a change is prepared and committed.
    pub(super) fn present(&self) -> Present<'_> {
        let gate = self.gate.read();
        Present { _gate: gate, generation: self.generation(), completed: self.completed() }
    }

    /// Commits a change that frees the blocks `freed`.
    pub(super) fn commit(&self, present: Present<'_>, batch: &Batch, freed: Vec<Extent>) -> Result<TransNo> {
        let transno = self.index.commit(batch)?;
        self.space.free(present.generation, freed);
        Ok(transno)
    }

    /// Takes blocks as [`SpaceBook::take`] does.
    pub(super) fn take_blocks(
        &self,
        owner: Fid,
        stream: &Mutex<WriteStream>,
        first: u64,
        blocks: u64,
        share: Share,
    ) -> Result<Vec<Extent>> {
        self.space.take(owner, stream, first, Wanted { blocks, share }, || self.complete(self.generation()))
    }

    /// Makes the index durable up to `transno`.
    pub(super) fn sync_index(&self, transno: TransNo) -> Result<()> {
        Ok(nacre_env::blocking(|| self.index.sync(transno))?)
    }

    /// Makes all generations up to `upto` durable, with everything else in the index.
    pub(super) fn complete(&self, upto: u64) -> Result<()> {
        if self.completed() >= upto {
            return Ok(());
        }
        nacre_env::blocking(|| self.group_commit.until(upto, || self.completed(), || self.flush()))
    }

    fn flush(&self) -> Result<()> {
        let (ended, is_dirty) = {
            let _gate = self.gate.write();
            (self.generation.fetch_add(1, Ordering::AcqRel), self.medium.begin_flush())
        };
        let flushed = if is_dirty { self.medium.flush() } else { Ok(()) };
        flushed.and_then(|()| self.write_state(ended, false)).inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::Relaxed);
        })?;
        debug_assert!(ended > self.completed(), "generations become durable in their order");
        self.completed.store(ended, Ordering::Release);
        self.space.complete(ended);
        Ok(())
    }

    /// Records durably that `generation` is durable.
    pub(super) fn write_state(&self, generation: u64, clean: bool) -> Result<()> {
        let mut batch = Batch::new();
        batch.set_releasing(true);
        batch.put(STORE, STORE_KEY, &BlockStoreRecord { uuid: self.uuid, clean, generation }.encode());
        let transno = self.index.commit(&batch)?;
        Ok(self.index.sync(transno)?)
    }
}

impl Trim for Volume {
    fn trim(&self, from: u64, max_bytes: u64) -> Result<Trimmed> {
        let _changing = self.change()?;
        let mut left = max_bytes / BLOCK;
        let mut trimmed = Trimmed { extents: Some(0), ..Trimmed::default() };
        let mut at = from / BLOCK;
        for extents in 1..=DISCARDS_AT_ONCE {
            let Some(extent) = self.space.take_untold(at, left.min(DISCARD_MAX)) else { break };
            let Extent { start, len } = extent;
            let result = nacre_env::blocking(|| self.medium.device().discard(start * BLOCK, len * BLOCK));
            self.space.told(extent, result.is_ok());
            if let Err(source) = result {
                return Err(ObjectError::trim(&self.medium.name(), source));
            }
            at = extent.end();
            left -= len;
            trimmed.bytes += len * BLOCK;
            trimmed.extents = Some(extents);
        }
        trimmed.next = self.space.has_untold(at).then_some(at * BLOCK);
        Ok(trimmed)
    }

    fn untrimmed(&self) -> u64 {
        self.space.untold_blocks() * BLOCK
    }

    fn trim_caution(&self) -> Option<&'static str> {
        let is_allocated = self.medium.device().info().is_allocated;
        is_allocated.then_some("the file that is the device was allocated in advance, which trimming undoes")
    }

    fn trims_beside_work(&self) -> bool {
        // Writing to a file is no faster for its holes, and its file system delays transfers while it creates
        // them.
        self.medium.device().info().is_raw
    }
}
