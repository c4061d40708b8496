//! Room on the MDT's own file system: statfs for clients, and the refusal of creates while there is still room to remove.

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

/// Bytes of store that one more file takes, to estimate how many fit: an inode, a name, and slack of the tree.
const BYTES_PER_FILE: u64 = 512;
/// Free inodes of the local file system below which creates are refused; the store itself needs few files.
const LOCAL_FILES_MIN: u64 = 16;
/// Bytes of store that one change takes at most, to know when to look again: a long name, and what a link leads to.
const BYTES_PER_CHANGE: u64 = 8 << 10;
/// Changes may take one part in so many of the usable bytes before the next measurement.
const LOOK_SHARE: u64 = 4;
/// With less usable than one in so many bytes, pages of what was removed are wanted back as soon as nothing more is changed.
const SCARCE_PART: u64 = 2;
/// Bits of a target's state, as Lustre numbers them.
const STATE_NO_CREATE: u32 = 4;
const STATE_NO_SPACE: u32 = 0x20;
const STATE_NONROTATIONAL: u32 = 0x200;

/// Inodes that are counted in one step.
const COUNT_STEP: i64 = 4096;

/// Places to count inodes in.
const COUNTS: usize = 8;

/// What is kept back at most.
const RESERVE_MOST_BYTES: u64 = 64 << 20;
/// Of a small file system it is the first part, though at least so many bytes if the second one allows it.
const RESERVE_PART: u64 = 24;
const RESERVE_LEAST_BYTES: u64 = 16 << 20;
const RESERVE_MOST_PART: u64 = 16;

/// What creates leave of the file system that holds `path`, if nothing else is said.
pub fn default_reserve(path: &Path) -> u64 {
    let total =
        rustix::fs::statvfs(path).map_or(u64::MAX, |stat| stat.f_blocks.saturating_mul(stat.f_frsize));
    (total / RESERVE_PART).clamp(RESERVE_LEAST_BYTES, RESERVE_MOST_BYTES).min(total / RESERVE_MOST_PART)
}

/// See the [module documentation](self).
pub struct SpaceGuard {
    path: PathBuf,
    /// Its free pages are room too.
    store: Arc<MetaStore>,
    reserve_bytes: u64,
    full: AtomicBool,
    /// Changes until the next measurement, which they bring forward before they can have taken what is left.
    until_look: AtomicI64,
    looking: Mutex<()>,
    /// Newest transaction at the last look.
    seen: AtomicU64,
    /// On flash.
    nonrotational: AtomicBool,
    /// No new directories are to be placed here.
    no_create: AtomicBool,
    last: Mutex<Statfs>,
    /// Inodes in the store, which threads count in places of their own: what one has removed another may have made.
    inodes: [InodeCount; COUNTS],
    /// The number of inodes is known.
    counted: AtomicBool,
}

/// Alone on the cache lines that CPUs fetch together.
#[derive(Default)]
#[repr(align(128))]
struct InodeCount(AtomicI64);

impl SpaceGuard {
    /// Looks at the file system that holds `path`, in which `store` lies; creates are refused below `reserve_bytes`, or
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

    /// Looks again. What cannot be found out stays as it was.
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
            // What was removed lately becomes free pages; where creates are refused, nothing else would lead to that.
            self.store.begin_checkpoint();
        }
        let files_free = usable / BYTES_PER_FILE;
        *self.last.lock() = Statfs {
            block_size: u32::try_from(unit).unwrap_or(4096),
            blocks: stat.f_blocks,
            blocks_free: stat.f_bfree.saturating_add(inside / unit).min(stat.f_blocks),
            blocks_available: usable / unit,
            // Those in use are added when somebody asks.
            files: files_free,
            files_free,
            // The class is added when somebody asks.
            state: if full { STATE_NO_SPACE } else { 0 },
        };
    }

    /// True if nothing more may be created. To be asked once for each change that takes room.
    pub fn is_full(&self) -> bool {
        if !self.full.load(Ordering::Relaxed)
            && self.until_look.fetch_sub(1, Ordering::Relaxed) <= 0
            && let Some(_looking) = self.looking.try_lock()
        {
            self.refresh();
        }
        self.full.load(Ordering::Relaxed)
    }

    /// For clients.
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

    /// Whether clients are asked to place no new directories here. What somebody wants here all the same is made.
    pub fn is_no_create(&self) -> bool {
        self.no_create.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub fn set_no_create(&self, no_create: bool) {
        self.no_create.store(no_create, Ordering::Relaxed);
    }

    /// Whether the target is on flash, which statfs tells.
    pub fn is_nonrotational(&self) -> bool {
        self.nonrotational.load(Ordering::Relaxed)
    }

    /// Says what the target is on.
    pub fn set_nonrotational(&self, is_nonrotational: bool) {
        self.nonrotational.store(is_nonrotational, Ordering::Relaxed);
    }

    /// Inodes in the store.
    pub fn inodes(&self) -> u64 {
        // Below 0 only for moments, when a removal is counted before the creation.
        self.inodes.iter().map(|count| count.0.load(Ordering::Relaxed)).sum::<i64>().try_into().unwrap_or(0)
    }

    /// There are so many inodes more, or fewer.
    pub fn count_inodes(&self, change: i64) {
        if change != 0 {
            self.inodes[thread_number() % COUNTS].0.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Begins with the number of inodes that the last run has left, or counts them in the background, in steps that hold nothing up. What is
    /// made or removed meanwhile may count twice or not at all. Gives the thread that counts.
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

    /// Inodes in the store, once they are counted.
    pub(crate) fn known_inodes(&self) -> Option<u64> {
        self.counted.load(Ordering::Acquire).then(|| self.inodes())
    }
}

/// Counts the next inodes after a key; gives the last key as long as there are more.
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
