//! Data of files on this MDT (DoM): where it is stored, and how large components on the MDT may be.
//!
//! A service for objects over the same store serves reads and writes of this data
//! (`docs/design/data-on-mdt.md`). This module has the operations in which a file's metadata and data change
//! together.
//!
//! The store is either part of the metadata store ([`RecordStore`]), so that both change in one transaction;
//! or it is separate, like that of an OST (decision 0018). With a separate store metadata is written first on
//! creation, and last on removal: a file names its object before the object has data, and an object is
//! removed through the log of objects to destroy.

use crate::config::MdsConfig;
use crate::error::MdsError;
use crate::space::default_reserve;
use crate::tables::DATA;
use crate::tx::Tx;
use nacre_layout::{Component, Extent, Layout, Pattern, StripeObject};
use nacre_ondisk::MdtRecord;
use nacre_store::MetaStore;
use nacre_store::object::records::Owned;
use nacre_store::object::{Fallocate, ObjectError, ObjectStore, RecordStore};
use nacre_types::limits::STRIPE_SIZE_MIN;
use nacre_types::{Fid, Status};
use nacre_wire::mds::Statfs;
use nacre_wire::oss::FallocateKind;
use nacre_wire::replay::DataChange;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Free space of an MDT in bytes below which components there shrink, where half of its file system is more.
/// Lustre's MDTs have dedicated devices, for which Lustre's threshold is half the space; ours share disks, of
/// which a small part is enough.
const THRESHOLD_BYTES: u64 = 4 << 30;
/// Value of the parameter: the threshold follows the size of the file system.
const BY_SIZE: u64 = u64::MAX;

/// Notified of each write here, with the object and the number of bytes.
pub type DataWatch = Box<dyn Fn(Fid, u64) + Send + Sync>;

/// Returns the bytes that writes of data leave free in the file system of the MDT in `dir`: more than creates
/// do, so that an MDT full of data still accepts names.
pub fn data_reserve(dir: &Path) -> u64 {
    default_reserve(dir) * 2
}

/// See the [module documentation](self).
pub(crate) struct DataPart {
    index: u16,
    pub store: Arc<dyn ObjectStore>,
    /// The same store, if it is part of the metadata store.
    records: Option<Arc<RecordStore>>,
    /// The service that reads and writes objects here, notified of writes by the metadata server.
    watch: OnceLock<DataWatch>,
    /// Largest component in bytes while there is enough space.
    max_bytes: AtomicU64,
    /// Largest component in bytes with the current free space.
    now_bytes: AtomicU64,
    threshold_bytes: AtomicU64,
}

impl DataPart {
    /// Opens the data part of the MDT in `dir`: in `data`, or in the metadata store.
    ///
    /// # Errors
    /// As [`DataPart::in_records`] and [`DataPart::apart`].
    pub fn open(
        data: Option<Arc<dyn ObjectStore>>,
        meta: &Arc<MetaStore>,
        dir: &Path,
        mdt: &MdtRecord,
        config: &MdsConfig,
    ) -> Result<DataPart, MdsError> {
        match data {
            Some(data) => DataPart::apart(data, mdt, config),
            None => DataPart::in_records(meta.clone(), dir, mdt, config),
        }
    }

    /// Opens the data part of the MDT in `dir`, in the metadata store.
    ///
    /// # Errors
    /// [`MdsError::DataPlace`] if the MDT was formatted with a separate store; an I/O error if `dir` cannot
    /// be opened.
    pub fn in_records(
        meta: Arc<MetaStore>,
        dir: &Path,
        mdt: &MdtRecord,
        config: &MdsConfig,
    ) -> Result<DataPart, MdsError> {
        if mdt.data_apart {
            return Err(MdsError::DataPlace(
                "the store for data of files, which it was made with, is missing",
            ));
        }
        let reserve_bytes = config.data_reserve_bytes.unwrap_or_else(|| data_reserve(dir));
        let records = Arc::new(RecordStore::new(meta, DATA, dir, reserve_bytes)?);
        Ok(DataPart::new(records.clone(), Some(records), config))
    }

    /// Builds the data part with a separate store.
    ///
    /// # Errors
    /// [`MdsError::DataPlace`] if the MDT was formatted without.
    fn apart(store: Arc<dyn ObjectStore>, mdt: &MdtRecord, config: &MdsConfig) -> Result<DataPart, MdsError> {
        match mdt.data_apart {
            true => Ok(DataPart::new(store, None, config)),
            false => Err(MdsError::DataPlace("there is a store for data of files that it was not made with")),
        }
    }

    fn new(store: Arc<dyn ObjectStore>, records: Option<Arc<RecordStore>>, config: &MdsConfig) -> DataPart {
        DataPart {
            index: config.index,
            store,
            records,
            watch: OnceLock::new(),
            max_bytes: AtomicU64::new(config.dom_stripe_bytes),
            now_bytes: AtomicU64::new(config.dom_stripe_bytes),
            threshold_bytes: AtomicU64::new(BY_SIZE),
        }
    }

    /// Returns the status of a store error for a client; also logs the error, since the client did not cause
    /// it.
    pub fn failed(&self, error: &ObjectError) -> Status {
        if !matches!(error, ObjectError::NoSpace | ObjectError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// Returns the store, if transactions of the metadata can change objects.
    pub fn records(&self) -> Option<&Arc<RecordStore>> {
        self.records.as_ref()
    }

    /// Returns all bytes of an object of at most `max`, for a caller that has excluded changes of it; `None`
    /// if there are more, or reading them would have to wait.
    ///
    /// # Errors
    /// Those of the store.
    pub fn small(&self, object: Fid, max: u64) -> Result<Option<Vec<u8>>, ObjectError> {
        if let Some(records) = &self.records {
            return records.small(object, max);
        }
        let attr = self.store.attr(object)?;
        if attr.mtime.is_none() || attr.size > max {
            return Ok(None);
        }
        let mut bytes = vec![0; usize::try_from(attr.size).unwrap_or(0)];
        let read = self.store.read(object, 0, &mut bytes, 0)?;
        Ok((read == bytes.len()).then_some(bytes))
    }

    /// Destroys an object with a transaction, or once that is durable. The caller excludes changes of the
    /// object until the commit.
    ///
    /// # Errors
    /// Those of the store.
    pub fn destroy(&self, tx: &mut Tx, object: &StripeObject) -> Result<(), ObjectError> {
        match &self.records {
            Some(records) => {
                tx.note_destroyed_here(object.object);
                records.stage_destroy(object.object, tx.batch()).map(drop)
            }
            None => {
                tx.log_destroy(object.ost_index, object.object);
                Ok(())
            }
        }
    }

    /// Sets the check for an owner that precedes the creation of an object.
    pub fn set_owned(&self, owned: Box<Owned>) {
        match (&self.records, self.store.abilities().device_store) {
            (Some(records), _) => records.set_owned(owned),
            (None, Some(store)) => store.set_owned(owned),
            // Without the check, writes create the object.
            (None, None) => {}
        }
    }

    /// Removes an object that was created while its file was being removed. A separate store removes it later
    /// in any case.
    ///
    /// # Errors
    /// Those of the store.
    pub fn destroy_left(&self, object: Fid) -> Result<(), ObjectError> {
        self.records.as_ref().map_or(Ok(()), |records| records.destroy_left(object))
    }

    /// Creates an empty object, if it does not exist, in the caller's transaction, since its name will not
    /// identify its file afterwards. In a separate store, which is not part of the transaction, the object is
    /// durable on return.
    ///
    /// # Errors
    /// Those of the store.
    pub fn stage_empty(&self, object: Fid, tx: &mut Tx) -> Result<(), ObjectError> {
        if let Some(records) = &self.records {
            return records.stage_empty(object, tx.batch());
        }
        if self.store.attr(object)?.mtime.is_none() {
            // The call creates the object and, since it has no such bytes, does nothing else.
            self.store.fallocate(object, Fallocate::Zero { keep_size: true }, 0, 1)?;
        }
        // Also an object that existed: after a power loss only a write of its own file could create it again.
        self.store.sync(object)
    }

    /// Removes data that was transferred for a file whose move was aborted. The same file may be moved again
    /// at once, so data in a separate store is also removed at once: the log of objects to destroy would
    /// remove the data of the next attempt.
    ///
    /// # Errors
    /// Those of the store.
    pub fn drop_brought(&self, tx: &mut Tx, fid: Fid) -> Result<(), ObjectError> {
        match self.records {
            Some(_) => self.destroy(tx, &StripeObject::on_mdt(fid)),
            None => self.store.destroy(&[fid]).map(drop),
        }
    }

    /// Syncs an object in a separate store, which transactions of the metadata do not cover.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync_apart(&self, object: Fid) -> Result<(), ObjectError> {
        if self.records.is_some() { Ok(()) } else { self.store.sync(object) }
    }

    /// Returns the space for clients: `metadata`, plus the bytes of a separate store for data.
    pub fn statfs(&self, metadata: Statfs) -> Statfs {
        let space = match self.records {
            Some(_) => return metadata,
            None => self.store.space(),
        };
        // On an error only the space of the metadata is reported.
        let Ok(space) = space else { return metadata };
        let unit = u64::from(space.block_size.max(1));
        Statfs {
            block_size: space.block_size,
            blocks: space.total / unit,
            blocks_free: space.free / unit,
            blocks_available: space.available / unit,
            ..metadata
        }
    }

    /// Sets the callback for writes that bypass the service for objects; only the first call has an effect.
    pub fn set_watch(&self, watch: DataWatch) {
        // There is one service, so a second call is ignored.
        let _ = self.watch.set(watch);
    }

    /// Carries out a change of an object again that this MDT lost with its host.
    ///
    /// # Errors
    /// [`ObjectError::Gone`] if the object belongs to no file; those of the store.
    pub fn change_again(&self, object: Fid, change: &DataChange) -> Result<(), ObjectError> {
        match change {
            DataChange::Write { offset, data } => {
                if self.store.write_promised(object, *offset, &data.0)? != data.0.len() {
                    return Err(ObjectError::NoSpace);
                }
                self.note_written(object, data.0.len() as u64);
            }
            DataChange::Truncate { size } => drop(self.store.truncate(object, *size)?),
            DataChange::Fallocate { kind, offset, len } => {
                let how = match kind {
                    FallocateKind::Allocate => Fallocate::Allocate { keep_size: false },
                    FallocateKind::AllocateKeepSize => Fallocate::Allocate { keep_size: true },
                    FallocateKind::Punch => Fallocate::Punch,
                    FallocateKind::Zero => Fallocate::Zero { keep_size: false },
                    FallocateKind::ZeroKeepSize => Fallocate::Zero { keep_size: true },
                };
                self.store.fallocate(object, how, *offset, *len)?;
            }
        }
        Ok(())
    }

    /// Reports a write of this many bytes to an object by the metadata server.
    pub fn note_written(&self, object: Fid, bytes: u64) {
        if let Some(watch) = self.watch.get() {
            watch(object, bytes);
        }
    }

    /// Returns the largest component in bytes that a new layout may have on this MDT: the configured limit,
    /// and the limit with the current free space.
    pub fn limits(&self) -> (u64, u64) {
        (self.max_bytes.load(Ordering::Relaxed), self.now_bytes.load(Ordering::Relaxed))
    }

    /// Sets the configured limit in bytes, effective at once.
    pub fn set_max(&self, bytes: u64, space: &Statfs) {
        self.max_bytes.store(bytes, Ordering::Relaxed);
        self.adapt(space);
    }

    /// Returns the free space in bytes below which components shrink.
    pub fn threshold(&self, space: &Statfs) -> u64 {
        match self.threshold_bytes.load(Ordering::Relaxed) {
            BY_SIZE => (bytes(space, space.blocks) / 2).min(THRESHOLD_BYTES),
            set => set,
        }
    }

    /// Sets the threshold in bytes, effective at once.
    pub fn set_threshold(&self, bytes: u64, space: &Statfs) {
        self.threshold_bytes.store(bytes.min(BY_SIZE - 1), Ordering::Relaxed);
        self.adapt(space);
    }

    /// Adapts the limit to the free space.
    pub fn adapt(&self, space: &Statfs) {
        let available = bytes(space, space.blocks_available);
        let now = scaled(self.max_bytes.load(Ordering::Relaxed), available, self.threshold(space));
        self.now_bytes.store(now, Ordering::Relaxed);
    }

    /// Cuts the component on the MDT of a new layout to the current limit. The next component takes the part
    /// cut off; without a next one the file's largest size shrinks, but not to 0.
    pub fn limit(&self, layout: &mut Layout) {
        limit(layout, self.limits().1);
    }
}

fn bytes(space: &Statfs, blocks: u64) -> u64 {
    blocks.saturating_mul(u64::from(space.block_size))
}

/// Returns the limit when `available` bytes are free: `max` halved until its share of `max` is no larger than
/// the share of `available` in `threshold`, and 0 below the smallest component.
fn scaled(max: u64, available: u64, threshold: u64) -> u64 {
    if available >= threshold {
        return max;
    }
    let share = u128::from(max) * u128::from(available) / u128::from(threshold.max(1));
    let halved =
        (0..u64::BITS).map(|times| max >> times).find(|bytes| u128::from(*bytes) <= share).unwrap_or(0);
    halved / u64::from(STRIPE_SIZE_MIN) * u64::from(STRIPE_SIZE_MIN)
}

fn limit(layout: &mut Layout, max_bytes: u64) {
    let [first, rest @ ..] = layout.components.as_mut_slice() else { return };
    if first.pattern != Pattern::Mdt || first.extent.end <= max_bytes {
        return;
    }
    if rest.is_empty() && max_bytes == 0 {
        return;
    }
    if max_bytes == 0 {
        // The layout is as if the component had not been requested.
        layout.leave_out_head();
        return;
    }
    layout.begin_at(1, max_bytes);
    let Component { extent, stripe_size, .. } = &mut layout.components[0];
    *extent = Extent { end: max_bytes, ..*extent };
    *stripe_size = max_bytes as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_layout::{ComponentFlags, ComponentSpec, LayoutRequest, LayoutSpec};

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_limit_halves_with_the_space_and_ends_at_the_smallest_component() {
        let at = |available| scaled(MIB, available, 1000);
        assert_eq!((at(5000), at(1000)), (MIB, MIB));
        assert_eq!((at(999), at(500), at(499)), (MIB / 2, MIB / 2, MIB / 4));
        assert_eq!((at(63), at(62), at(0)), (65536, 0, 0));
        assert_eq!(scaled(3 * 65536, 999, 1000), 65536);
        assert_eq!(scaled(0, 0, 0), 0);
    }

    #[test]
    fn what_is_too_large_for_the_mdt_goes_to_the_next_component() {
        let parts = |ends: &[u64]| {
            let mut start = 0;
            let part = |(place, &end): (usize, &u64)| {
                let extent = Extent { start, end };
                start = end;
                let spec = if place == 0 { LayoutSpec::ON_MDT } else { LayoutSpec::default() };
                ComponentSpec { extent, flags: ComponentFlags::default(), spec }
            };
            let parts = ends.iter().enumerate().map(part).collect();
            LayoutRequest::Composite(parts).to_layout(&LayoutSpec::default())
        };
        let limited = |ends: &[u64], max| {
            let mut layout = parts(ends);
            limit(&mut layout, max);
            assert!(layout.is_sound());
            let on_mdt = layout.components[0].pattern == Pattern::Mdt;
            (on_mdt, layout.components.iter().map(|c| c.extent.end).collect::<Vec<_>>())
        };
        assert_eq!(limited(&[MIB, Extent::EOF], MIB), (true, vec![MIB, Extent::EOF]));
        assert_eq!(limited(&[2 * MIB, Extent::EOF], MIB), (true, vec![MIB, Extent::EOF]));
        assert_eq!(limited(&[2 * MIB, 4 * MIB], 0), (false, vec![4 * MIB]));
        assert_eq!(limited(&[2 * MIB], MIB), (true, vec![MIB]));
        assert_eq!(limited(&[2 * MIB], 0), (true, vec![2 * MIB]));
    }
}
