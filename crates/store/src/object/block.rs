//! The `block` back end: all objects on a raw device, or in one large file, with an allocator of its own.
//!
//! ```text
//! DIR/superblock  identity (nacre_ondisk::block::BlockLabel), the same as on the device
//! DIR/device      path of the device, relative to DIR or absolute
//! DIR/data        the device, if none was named: a sparse file
//! DIR/index/      a MetaStore: objects, maps of their blocks with checksums, sequences, state of the whole
//! ```
//!
//! Owns `DIR` and the device. Format and invariants: `docs/formats/block.md`. In short:
//!
//! - data is written to free blocks, around the page cache, and then one transaction of the index records its
//!   place. So no data is written twice, and a change is whole or absent after a crash of the process;
//! - up to 4 KiB of a small object are stored in its record in the index and cost no transfer of their own;
//! - a freed block is reused only when its release is durable ([`volume`]);
//! - after a power cut the index may refer to data that did not reach the device. Each map records the
//!   previous places of changed blocks; opening compares checksums and reverts blocks that do not match
//!   ([`recover`]);
//! - every read compares checksums: damaged data is an error, never a result.
//!
//! There is no cache of data. For a stream that waits for each read, the store reads ahead ([`ahead`]).

mod ahead;
mod allocator;
mod change;
mod check;
mod defrag;
pub mod device;
mod directory;
pub mod inspect;
mod label;
mod medium;
mod objects;
mod ops;
mod options;
mod read;
mod recover;
mod scrub;
mod shape;
mod space;
mod stop;
#[cfg(test)]
mod tests;
mod upkeep;
mod volume;
mod write;

pub use ahead::ReadAheadStats;
pub use defrag::{DefragSettings, DefragStats};
pub use directory::{device_of, is_block_store};
pub use label::DeviceProblem;
pub(in crate::object) use label::{found_on, wipe};
pub use options::BlockStoreOptions;

use crate::meta::{MetaError, MetaStore, MetaStoreOptions};
use crate::object::file::directory::{draw_identity, is_label};
use crate::object::file::{boot_identity, default_reserve};
use crate::object::records::Owned;
use crate::object::sequences::Sequences;
use crate::object::{ObjectError, Result};
use ahead::Ahead;
use allocator::Allocator;
use defrag::Defrag;
use device::model::SimulatedDevice;
use device::shadow::ShadowDevice;
use device::{BLOCK, BlockDevice, DirectDevice, DirectDeviceOptions};
use directory::Directory;
use medium::Medium;
use nacre_ondisk::block::{BlockLabel, BlockStoreRecord};
use nacre_types::Timestamp;
use objects::Objects;
use scrub::Scrub;
use space::SpaceBook;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use upkeep::Upkeep;
use volume::{STORE, STORE_KEY, Volume};

/// Time for which a device may still be in use by a process that was killed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// See the [module documentation](self). Dropping it closes it.
pub struct BlockStore {
    core: Arc<Core>,
    upkeep: Upkeep,
}

impl Deref for BlockStore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

/// State shared by the threads of a store.
pub struct Core {
    directory: Directory,
    objects: Objects,
    sequences: Sequences,
    /// Opening has finished.
    is_complete: AtomicBool,
    boot: u64,
    /// Blocks that opening reverted to their state before a power cut.
    recovered_blocks: u64,
    scrub: Scrub,
    defrag: Defrag,
    ahead: Ahead,
    /// See [`BlockStoreOptions`].
    gives_ids: bool,
}

/// Returns the settings of the index: its logs hold the small objects of a commit interval, and many maps.
fn default_index(device_bytes: u64) -> MetaStoreOptions {
    let usual =
        MetaStoreOptions { wal_segment_bytes: 32 << 20, overlay_bytes: 16 << 20, ..Default::default() };
    let usual = MetaStoreOptions { reserve_bytes: 48 << 20, ..usual };
    if device_bytes >= 64 << 30 {
        return usual;
    }
    if device_bytes >= 1 << 30 {
        return MetaStoreOptions::small();
    }
    MetaStoreOptions {
        wal_segment_bytes: 4 << 20,
        overlay_bytes: 2 << 20,
        reserve_bytes: 1 << 20,
        map_bytes: 64 << 30,
        ..usual
    }
}

impl BlockStore {
    /// Opens the store in `dir`; creates it if `options.create` is set and the directory is missing or empty.
    ///
    /// Reads the maps of all objects, each of 256 KiB; after a crash also the data that changed since the
    /// last flush.
    ///
    /// # Errors
    /// [`ObjectError::InUse`] if another process has it open, [`ObjectError::Missing`],
    /// [`ObjectError::Foreign`], [`ObjectError::OtherTarget`], [`ObjectError::OtherIndex`],
    /// [`ObjectError::Device`] if the device belongs to another store, or holds data.
    pub fn open(dir: &Path, options: BlockStoreOptions) -> Result<BlockStore> {
        let directory = Directory::open(dir, &options)?;
        let path = dir.join(&directory.device);
        let is_own = directory.device == Path::new(directory::OWN_DEVICE);
        let create = directory.label.is_none() && (is_own || options.size > 0);
        if options.read_only {
            let device = ShadowDevice::open(&path).map_err(|error| ObjectError::Device {
                device: path.display().to_string(),
                problem: DeviceProblem::Io(error),
            })?;
            return BlockStore::open_on(dir, options, directory, Arc::new(device));
        }
        let device_options = DirectDeviceOptions {
            create_bytes: create.then_some(options.size / BLOCK * BLOCK),
            // This process holds the lock of the directory: another user of the device is about to end, or is
            // not a store.
            timeout: TIMEOUT,
            ..DirectDeviceOptions::default()
        };
        let device = DirectDevice::open(&path, &device_options).map_err(|error| ObjectError::Device {
            device: path.display().to_string(),
            problem: DeviceProblem::Io(error),
        })?;
        BlockStore::open_on(dir, options, directory, Arc::new(device))
    }

    /// Opens the store as [`BlockStore::open`] does, on a device that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn open_with(
        dir: &Path,
        options: BlockStoreOptions,
        device: Arc<dyn BlockDevice>,
    ) -> Result<BlockStore> {
        let directory = Directory::open(dir, &options)?;
        BlockStore::open_on(dir, options, directory, device)
    }

    fn open_on(
        dir: &Path,
        options: BlockStoreOptions,
        mut directory: Directory,
        device: Arc<dyn BlockDevice>,
    ) -> Result<BlockStore> {
        let device = Arc::new(SimulatedDevice::new(device));
        if !is_label(&options.label) {
            return Err(ObjectError::Index(MetaError::Option {
                option: "label",
                requirement: "printable ASCII without spaces, up to 48 bytes",
            }));
        }
        let mut index_options = options.index.clone().unwrap_or_else(|| default_index(device.size()));
        if let Some(bytes) = options.index_reserve_bytes {
            index_options.reserve_bytes = bytes;
        }
        // This store controls durability: a record must not refer to data that the device lacks.
        let index_options = MetaStoreOptions {
            create: directory.label.is_none(),
            read_only: options.read_only,
            commit_interval_ms: 0,
            ..index_options
        };
        let open_index = || MetaStore::open(&dir.join(directory::INDEX), index_options);
        let (uuid, index) = match directory.label.clone() {
            None => {
                let label = new_label(dir, &options, device.size())?;
                label::format(&*device, &label, options.force)?;
                let index = open_index()?;
                put_state(&index, BlockStoreRecord { uuid: label.uuid, clean: true, generation: 0 })?;
                let uuid = label.uuid;
                directory.finish(dir, label)?;
                (uuid, index)
            }
            Some(own) => {
                let found = label::read(&*device, Some(own.size), !options.read_only)?;
                if found.uuid != own.uuid {
                    let problem = if found.label == own.label {
                        DeviceProblem::OtherStore
                    } else {
                        DeviceProblem::OtherTarget { found: found.label, wanted: own.label.clone() }
                    };
                    return Err(label::refused(&*device, problem));
                }
                match options.read_only {
                    true => label::check_size(&*device, &own)?,
                    false => {
                        label::grow(&*device, &own, &found, |label| directory.set_label(dir, label))?;
                    }
                }
                (own.uuid, open_index()?)
            }
        };
        let state = read_state(&index, dir, uuid)?;
        let core = Core::assemble(dir, &options, directory, device, index, state)?;
        let upkeep = match options.read_only {
            true => Upkeep::none(),
            false => Upkeep::start(&core, options.commit_interval_ms)?,
        };
        Ok(BlockStore { core, upkeep })
    }
}

impl Core {
    fn assemble(
        dir: &Path,
        options: &BlockStoreOptions,
        directory: Directory,
        device: Arc<SimulatedDevice>,
        index: MetaStore,
        state: BlockStoreRecord,
    ) -> Result<Arc<Core>> {
        let size = directory.label.as_ref().map_or(device.size(), |label| label.size);
        let scan = recover::scan(&index, &*device, state.generation, state.clean)?;
        let allocator = Allocator::new(1, size / BLOCK - 1, &scan.used);
        let reserve = options.reserve_bytes.unwrap_or_else(|| default_reserve(size)).div_ceil(BLOCK);
        let (medium, space) = (Medium::new(dir, device), SpaceBook::new(allocator, reserve));
        let volume = Volume::new(medium, index, space, &state, scan.newest);
        let core = Core {
            directory,
            objects: Objects::new(volume, options.maps_max)?,
            sequences: Sequences::default(),
            is_complete: AtomicBool::new(false),
            boot: boot_identity(),
            recovered_blocks: scan.blocks,
            scrub: Scrub::new(options.scrub_bytes_per_second),
            defrag: Defrag::new(options.defrag),
            ahead: Ahead::new(options.read_ahead_bytes),
            gives_ids: options.gives_ids,
        };
        recover::recover(&core.objects, scan)?;
        // Also records that the last run did not stop in order, until this one does.
        let volume = core.objects.volume();
        volume.complete(volume.generation())?;
        core.is_complete.store(true, Ordering::Release);
        Ok(Arc::new(core))
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &Path {
        self.objects.volume().dir()
    }

    /// Sets the check that runs before an object is created: a client's late write must not recreate the
    /// object of a removed file. Only the first call counts.
    pub fn set_owned(&self, owned: Box<Owned>) {
        self.objects.set_owned(owned);
    }

    /// Returns the device.
    pub fn device(&self) -> &dyn BlockDevice {
        self.simulated_device()
    }

    /// Returns the device, for setting simulated service times.
    pub fn simulated_device(&self) -> &SimulatedDevice {
        self.objects.volume().medium().device()
    }

    /// Returns the number of syncs of the index's log since the store was opened.
    pub fn index_syncs(&self) -> u64 {
        self.objects.index().stats().syncs
    }

    /// Returns the free extents as ranges of bytes of the device, in order, without those that need a sync
    /// before their reuse.
    pub fn free_pieces(&self) -> Vec<Range<u64>> {
        self.objects.volume().space().pieces()
    }

    /// Sets the memory in bytes for read-ahead of streams, 2 MiB each; 0 for none.
    pub fn set_read_ahead(&self, bytes: u64) {
        self.ahead.set_max(bytes);
    }

    /// Returns the memory for read-ahead, in bytes.
    pub fn read_ahead(&self) -> u64 {
        self.ahead.max()
    }

    /// Returns the counters of read-ahead.
    pub fn read_ahead_stats(&self) -> ReadAheadStats {
        self.ahead.stats()
    }

    /// Sets the rate of the scrub in bytes per second; 0 for none.
    pub fn set_scrub_rate(&self, bytes_per_second: u64) {
        self.scrub.set_rate(bytes_per_second);
    }

    /// Returns the rate of the scrub.
    pub fn scrub_rate(&self) -> u64 {
        self.scrub.rate()
    }

    /// Returns the settings of the background defragmenter.
    pub fn defrag_settings(&self) -> DefragSettings {
        self.defrag.settings()
    }

    /// Changes these settings. A new pass over all objects begins.
    pub fn set_defrag_settings(&self, settings: DefragSettings) {
        self.defrag.set_settings(settings);
    }

    /// Returns the counters of the defragmenter.
    pub fn defrag_stats(&self) -> DefragStats {
        self.defrag.stats()
    }

    /// Makes one pass over all objects and moves the parts that `settings` select, in this thread, without a
    /// rate or pauses. Returns the number of bytes moved.
    ///
    /// # Errors
    /// If the index cannot be read, or the store fails.
    pub fn defragment(&self, settings: &DefragSettings) -> Result<u64> {
        self.defrag.defragment(&self.objects, settings)
    }

    /// Refuses later changes and makes everything durable. Unless a change is still under way, the state on
    /// disk is then marked clean: a process need not drop its store before it ends.
    fn close_in_order(&self) -> Result<()> {
        let volume = self.objects.volume();
        volume.close();
        self.ahead.close();
        volume.complete(volume.generation())?;
        match volume.changing() {
            0 => volume.write_state(volume.completed(), true),
            _ => Ok(()),
        }
    }
}

impl Drop for BlockStore {
    /// No call can be in progress, so the state on disk can be marked clean if it is.
    fn drop(&mut self) {
        self.upkeep.stop();
        if !self.is_complete.load(Ordering::Acquire) {
            return;
        }
        let volume = self.objects.volume();
        let generation = volume.generation();
        let closed = volume
            .complete(generation)
            .and_then(|()| volume.write_state(generation, true))
            .and_then(|()| Ok(volume.index().close()?));
        if let Err(error) = closed {
            log::warn!("object store {} was not closed in order: {error}", self.dir().display());
        }
    }
}

fn new_label(dir: &Path, options: &BlockStoreOptions, size: u64) -> Result<BlockLabel> {
    Ok(BlockLabel {
        uuid: draw_identity(dir)?,
        created: Timestamp::from(nacre_env::clock::wall()),
        size,
        block_size: BLOCK as u32,
        label: options.label.clone(),
    })
}

fn put_state(index: &MetaStore, record: BlockStoreRecord) -> Result<()> {
    let mut batch = crate::meta::Batch::new();
    batch.put(STORE, STORE_KEY, &record.encode());
    let transno = index.commit(&batch)?;
    Ok(index.sync(transno)?)
}

fn read_state(index: &MetaStore, dir: &Path, uuid: [u8; 16]) -> Result<BlockStoreRecord> {
    match index.get(STORE, STORE_KEY, |value| value.map(BlockStoreRecord::decode))? {
        Some(Ok(record)) if record.uuid == uuid => Ok(record),
        Some(Ok(_)) => Err(ObjectError::OtherIndex { dir: dir.to_owned() }),
        _ => Err(ObjectError::IndexDamaged { what: "the record of the store cannot be read" }),
    }
}
