//! The reply to statfs of a target.

use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_store::object::{ObjectError, ObjectStore, Space};
use nacre_wire::oss::Statfs;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Longest time for which a reply is reused.
pub const STATFS_AGE_MAX: Duration = Duration::from_secs(1);

/// State bits of [`Statfs`], as Lustre's `OS_STATFS_*`.
const STATE_READ_ONLY: u32 = 0x02;
const STATE_NO_SPACE: u32 = 0x20;
const STATE_NO_INODES: u32 = 0x40;
/// The target is on flash.
const STATE_NONROTATIONAL: u32 = 0x200;
/// Bits that an operator sets: degraded and no-create.
const STATE_OPERATOR: u32 = 0x01 | 0x04;

/// The reply to statfs: refreshed from the store at intervals, with the state bits set by an operator.
#[derive(Default)]
pub(crate) struct Room {
    answer: Mutex<Option<(Instant, Statfs)>>,
    /// Bits of [`STATE_OPERATOR`].
    operator_state: AtomicU32,
    /// The target is on flash.
    is_nonrotational: AtomicBool,
}

impl Room {
    /// Drops the last reply.
    pub(crate) fn look_again(&self) {
        *self.answer.lock() = None;
    }

    pub(crate) fn set_state(&self, is_degraded: bool, is_no_create: bool) {
        let state = u32::from(is_degraded) | (u32::from(is_no_create) << 2);
        self.operator_state.store(state & STATE_OPERATOR, Ordering::Relaxed);
        self.look_again();
    }

    pub(crate) fn is_nonrotational(&self) -> bool {
        self.is_nonrotational.load(Ordering::Relaxed)
    }

    pub(crate) fn set_nonrotational(&self, is_nonrotational: bool) {
        self.is_nonrotational.store(is_nonrotational, Ordering::Relaxed);
        self.look_again();
    }

    /// Returns the current reply.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) fn statfs(&self, store: &dyn ObjectStore) -> Result<Statfs, ObjectError> {
        // Held while the store is queried, so that many concurrent callers cost one query.
        let mut answer = self.answer.lock();
        let now = Instant::now();
        if let Some((when, statfs)) = &*answer
            && now.duration_since(*when) < STATFS_AGE_MAX
        {
            return Ok(*statfs);
        }
        let class = if self.is_nonrotational() { STATE_NONROTATIONAL } else { 0 };
        let statfs = statfs_of(&store.space()?, self.operator_state.load(Ordering::Relaxed) | class);
        *answer = Some((now, statfs));
        Ok(statfs)
    }
}

pub(crate) fn statfs_of(space: &Space, operator_state: u32) -> Statfs {
    let block_size = space.block_size.max(1);
    let blocks = |bytes: u64| bytes / u64::from(block_size);
    let mut state = operator_state;
    if space.is_read_only {
        state |= STATE_READ_ONLY;
    }
    if blocks(space.available) == 0 {
        state |= STATE_NO_SPACE;
    }
    if space.objects_free == 0 {
        state |= STATE_NO_INODES;
    }
    Statfs {
        block_size,
        blocks: blocks(space.total),
        blocks_free: blocks(space.free),
        blocks_available: blocks(space.available),
        files: space.objects,
        files_free: space.objects_free,
        state,
    }
}
