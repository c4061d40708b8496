//! Free space of the MDT's own file system: statfs for clients, and the refusal of creates while there is
//! still space for removals.

use crate::error::MdsError;
use crate::records::Records;
use crate::signal::StopSignal;
use crate::tables::INODES;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_params::thread_number;
use nacre_store::{MetaError, MetaStore};
use nacre_wire::mds::Statfs;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Bytes of the store for one more file, to estimate how many fit: an inode, a name, and slack of the tree.
const BYTES_PER_FILE: u64 = 512;
/// Free inodes of the local file system below which creates are refused; the store itself needs few files.
const LOCAL_FILES_MIN: u64 = 16;
/// Largest number of bytes of the store for one change, which determines the next measurement: a long name,
/// and its inode.
const BYTES_PER_CHANGE: u64 = 8 << 10;
/// Changes may use the usable bytes divided by this number before the next measurement.
const LOOK_SHARE: u64 = 4;
/// If less than the total divided by this number is usable, freed pages are reclaimed as soon as changes
/// pause.
const SCARCE_PART: u64 = 2;
/// Bits of a target's state, as Lustre numbers them.
const STATE_NO_CREATE: u32 = 4;
const STATE_NO_SPACE: u32 = 0x20;
const STATE_NONROTATIONAL: u32 = 0x200;

/// Inodes counted in one step.
const COUNT_STEP: i64 = 4096;

/// Number of counters for inodes.
const COUNTS: usize = 8;

/// Largest reserve in bytes.
const RESERVE_MOST_BYTES: u64 = 64 << 20;
/// The reserve of a small file system is its size divided by this number, but at least `RESERVE_LEAST_BYTES`,
/// and at most its size divided by `RESERVE_MOST_PART`.
const RESERVE_PART: u64 = 24;
const RESERVE_LEAST_BYTES: u64 = 16 << 20;
const RESERVE_MOST_PART: u64 = 16;

/// Returns the bytes that creates leave free in the file system of `path`, unless configured.
pub fn default_reserve(path: &Path) -> u64 {
    let total =
        rustix::fs::statvfs(path).map_or(u64::MAX, |stat| stat.f_blocks.saturating_mul(stat.f_frsize));
    (total / RESERVE_PART).clamp(RESERVE_LEAST_BYTES, RESERVE_MOST_BYTES).min(total / RESERVE_MOST_PART)
}

/// See the [module documentation](self).
pub struct SpaceGuard {
    path: PathBuf,
    /// The metadata store, whose free pages count as free space.
    store: Arc<MetaStore>,
    reserve_bytes: u64,
    full: AtomicBool,
    /// Changes until the next measurement, which comes before they can have used the remaining space.
    until_look: AtomicI64,
    looking: Mutex<()>,
    /// Newest transno at the last measurement.
    seen: AtomicU64,
    /// True if the target is on flash.
    nonrotational: AtomicBool,
    /// True if clients are to place no new directories here.
    no_create: AtomicBool,
    last: Mutex<Statfs>,
    /// Counts of inodes, one counter for each group of threads: one thread may have removed what another has
    /// created.
    inodes: [InodeCount; COUNTS],
    /// True if the number of inodes is known.
    counted: AtomicBool,
}

/// A counter alone on the cache lines that CPUs fetch together.
#[derive(Default)]
#[repr(align(128))]
struct InodeCount(AtomicI64);

impl SpaceGuard {
    /// Measures the file system of `path`, with `store` in it; creates are refused below `reserve_bytes`, or
    /// [`default_reserve`].
    pub fn new(path: &Path, store: Arc<MetaStore>, reserve_bytes: Option<u64>) -> SpaceGuard {
        let guard = SpaceGuard {
            path: path.to_owned(),
            store,
            reserve_bytes: reserve_bytes.unwrap_or_else(|| default_reserve(path)),
            full: AtomicBool::new(false),
            until_look: AtomicI64::new(0),
            looking: Mutex::new(()),
            seen: AtomicU64::new(0),
            nonrotational: AtomicBool::new(false),
            no_create: AtomicBool::new(false),
            last: Mutex::new(Statfs::default()),
            inodes: Default::default(),
            counted: AtomicBool::new(false),
        };
        guard.refresh();
        guard
    }

    /// Measures again. Values that cannot be read stay unchanged.
    pub fn refresh(&self) {
        let Ok(stat) = rustix::fs::statvfs(&self.path) else { return };
        let unit = stat.f_frsize.max(1);
        let inside = self.store.free_inside();
        let available = stat.f_bavail.saturating_mul(unit).saturating_add(inside);
        let usable = available.saturating_sub(self.store.recent_bytes()).saturating_sub(self.reserve_bytes);
        let changes = usable / LOOK_SHARE / BYTES_PER_CHANGE;
        self.until_look.store(changes.try_into().unwrap_or(i64::MAX), Ordering::Relaxed);
        let local_files = stat.f_files == 0 || stat.f_favail > LOCAL_FILES_MIN;
        let full = usable == 0 || !local_files;
        self.full.store(full, Ordering::Relaxed);
        let last = self.store.last_transno().0;
        let is_idle = self.seen.swap(last, Ordering::Relaxed) == last;
        let is_scarce = usable < stat.f_blocks.saturating_mul(unit) / SCARCE_PART;
        if full || is_scarce && is_idle {
            // Recently freed entries become free pages; where creates are refused, nothing else would cause a
            // checkpoint.
            self.store.begin_checkpoint();
        }
        let files_free = usable / BYTES_PER_FILE;
        *self.last.lock() = Statfs {
            block_size: u32::try_from(unit).unwrap_or(4096),
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree.saturating_add(inside / unit).min(stat.f_blocks),
            blocks_available: usable / unit,
            // Used inodes are added on request.
            files: files_free,
            files_free,
            // The class is added on request.
            state: if full { STATE_NO_SPACE } else { 0 },
        };
    }

    /// Returns true if creates are refused. Called once for each change that needs space.
    pub fn is_full(&self) -> bool {
        if !self.full.load(Ordering::Relaxed)
            && self.until_look.fetch_sub(1, Ordering::Relaxed) <= 0
            && let Some(_looking) = self.looking.try_lock()
        {
            self.refresh();
        }
        self.full.load(Ordering::Relaxed)
    }

    /// Returns the space for clients.
    pub fn statfs(&self) -> Statfs {
        let mut statfs = *self.last.lock();
        statfs.files = statfs.files_free.saturating_add(self.inodes());
        if self.is_nonrotational() {
            statfs.state |= STATE_NONROTATIONAL;
        }
        if self.is_no_create() {
            statfs.state |= STATE_NO_CREATE;
        }
        statfs
    }

    /// Returns true if clients are asked to place no new directories here. Explicit requests are still
    /// executed.
    pub fn is_no_create(&self) -> bool {
        self.no_create.load(Ordering::Relaxed)
    }

    /// Sets that.
    pub fn set_no_create(&self, no_create: bool) {
        self.no_create.store(no_create, Ordering::Relaxed);
    }

    /// Returns true if the target is on flash, which statfs reports.
    pub fn is_nonrotational(&self) -> bool {
        self.nonrotational.load(Ordering::Relaxed)
    }

    /// Sets whether the target is on flash.
    pub fn set_nonrotational(&self, is_nonrotational: bool) {
        self.nonrotational.store(is_nonrotational, Ordering::Relaxed);
    }

    /// Returns the number of inodes in the store.
    pub fn inodes(&self) -> u64 {
        // Below 0 only for moments, when a removal is counted before the creation.
        self.inodes.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<i64>().try_into().unwrap_or(0)
    }

    /// Adds to the number of inodes.
    pub fn count_inodes(&self, change: i64) {
        if change != 0 {
            self.inodes[thread_number() % COUNTS].0.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Sets the number of inodes from the clean end of the last run, or counts them in the background, in
    /// steps that delay no request. Inodes created or removed meanwhile may count twice or not at all.
    /// Returns the counting thread.
    pub(crate) fn know_inodes(
        self: &Arc<Self>,
        inodes: Option<u64>,
        records: &Arc<Records>,
        signal: &Arc<StopSignal>,
    ) -> Result<Option<JoinHandle<()>>, MdsError> {
        if let Some(inodes) = inodes.and_then(|inodes| i64::try_from(inodes).ok()) {
            self.count_inodes(inodes);
            self.counted.store(true, Ordering::Release);
            return Ok(None);
        }
        let (space, records, signal) = (Arc::downgrade(self), Arc::downgrade(records), signal.clone());
        let count = move || {
            let mut last: Option<Vec<u8>> = None;
            while let Some((space, records)) = space.upgrade().zip(records.upgrade())
                && !signal.is_stopping()
            {
                match count_step(&space.store, last.as_deref()) {
                    Ok((count, next)) => {
                        space.count_inodes(count);
                        last = next;
                    }
                    Err(error) => {
                        records.store_failed(&error);
                        return;
                    }
                }
                if last.is_none() {
                    return space.counted.store(true, Ordering::Release);
                }
            }
        };
        nacre_env::thread::Builder::new()
            .name("mds-count".into())
            .spawn(count)
            .map(Some)
            .map_err(MdsError::Thread)
    }

    /// Returns the number of inodes in the store, once they are counted.
    pub(crate) fn known_inodes(&self) -> Option<u64> {
        self.counted.load(Ordering::Acquire).then(|| self.inodes())
    }
}

/// Counts the next inodes after a key; returns the last key if there are more.
fn count_step(store: &MetaStore, after: Option<&[u8]>) -> Result<(i64, Option<Vec<u8>>), MetaError> {
    let (mut count, mut last) = (0, None);
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    store.scan(INODES, &[], from, &mut |key, _| {
        count += 1;
        if count < COUNT_STEP {
            return ControlFlow::Continue(());
        }
        last = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok((count, last))
}
