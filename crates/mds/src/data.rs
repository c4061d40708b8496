//! Data of files that lies on this MDT: where it is kept, and how large components for it may be.
//!
//! What is read and written there comes as requests for objects to a service beside this one, over the same
//! store (`docs/design/data-on-mdt.md`). Here are the parts in which a file's metadata and data change together.
//!
//! The store is either part of the metadata store ([`RecordStore`]), so that both change in one transaction; or it is apart, as
//! that of an OST (decision 0018). Then metadata comes first where something is made, and last where something goes: an object
//! belongs to a file that names it before it has data, and goes by the log of objects to destroy.

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
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Free space of an MDT in bytes below which components there shrink, if half of its file system is more. Lustre's MDTs
/// have devices of their own, where half of it means much; ours share disks, of which a small part is enough.
const THRESHOLD_BYTES: u64 = 4 << 30;
/// As a parameter: the threshold follows the size of the file system.
const BY_SIZE: u64 = u64::MAX;

/// Is told which object was written here, and how many bytes.
pub type DataWatch = Box<dyn Fn(Fid, u64) + Send + Sync>;

/// What writes of data leave of the file system of the MDT in `dir`, in bytes: more than creates do, so that one that is full of
/// data still takes names.
pub fn data_reserve(dir: &Path) -> u64 {
    default_reserve(dir) * 2
}

/// See the [module documentation](self).
pub(crate) struct DataPart {
    index: u16,
    pub store: Arc<dyn ObjectStore>,
    /// The same, if it is part of the metadata store.
    records: Option<Arc<RecordStore>>,
    /// The service that reads and writes objects here.
    watch: OnceLock<DataWatch>,
    /// Largest component in bytes while there is space.
    max_bytes: AtomicU64,
    /// Largest component in bytes with the space that there is now.
    now_bytes: AtomicU64,
    threshold_bytes: AtomicU64,
}

impl DataPart {
    /// The data part of the MDT in `dir`: in `data`, or in the metadata store.
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

    /// The data part of the MDT in `dir`, in the metadata store.
    ///
    /// # Errors
    /// [`MdsError::DataPlace`] if it was made with data apart; if `dir` cannot be opened.
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

    /// The data part in a store of its own.
    ///
    /// # Errors
    /// [`MdsError::DataPlace`] if the MDT was not made so.
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

    /// What an error of the store means to a client; told to the log too, since it is not the client's fault.
    pub fn failed(&self, error: &ObjectError) -> Status {
        if !matches!(error, ObjectError::NoSpace | ObjectError::Closed) {
            log::error!("MDT{:04x}: {error}", self.index);
        }
        error.status()
    }

    /// The store, if objects can be changed in transactions of the metadata.
    pub fn records(&self) -> Option<&Arc<RecordStore>> {
        self.records.as_ref()
    }

    /// All bytes of an object that holds at most `max` of them, for a caller who knows that nobody changes it; `None` if there are
    /// more or they take more than a look.
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

    /// Has an object end with a transaction, or once that is durable. Nobody may change it between this and the commit.
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

    /// Has `owned` asked before an object is made.
    pub fn set_owned(&self, owned: Box<Owned>) {
        match (&self.records, self.store.abilities().device_store) {
            (Some(records), _) => records.set_owned(owned),
            (None, Some(store)) => store.set_owned(owned),
            // One that cannot ask makes what it is sent.
            (None, None) => {}
        }
    }

    /// Removes an object that was made while its file was being removed. What is in a store of its own goes later, whenever it was made.
    ///
    /// # Errors
    /// Those of the store.
    pub fn destroy_left(&self, object: Fid) -> Result<(), ObjectError> {
        self.records.as_ref().map_or(Ok(()), |records| records.destroy_left(object))
    }

    /// Makes an empty object, if it does not exist, by a transaction of the caller's: its name is to tell no more whose it is. A store of its
    /// own is not part of that: there it is durable before.
    ///
    /// # Errors
    /// Those of the store.
    pub fn stage_empty(&self, object: Fid, tx: &mut Tx) -> Result<(), ObjectError> {
        if let Some(records) = &self.records {
            return records.stage_empty(object, tx.batch());
        }
        if self.store.attr(object)?.mtime.is_none() {
            // Making it shorter makes none.
            self.store.fallocate(object, Fallocate::Zero { keep_size: true }, 0, 1)?;
        }
        // Also one that was there: after a power cut nobody but its own file could make it anew.
        self.store.sync(object)
    }

    /// Has data end that was brought for a file which does not come. The same file may be brought again at once, so what is apart goes at once, too:
    /// the log of objects to destroy would take what came then.
    ///
    /// # Errors
    /// Those of the store.
    pub fn drop_brought(&self, tx: &mut Tx, fid: Fid) -> Result<(), ObjectError> {
        match self.records {
            Some(_) => self.destroy(tx, &StripeObject::on_mdt(fid)),
            None => self.store.destroy(&[fid]).map(drop),
        }
    }

    /// Makes an object durable that no transaction of the metadata does.
    ///
    /// # Errors
    /// Those of the store.
    pub fn sync_apart(&self, object: Fid) -> Result<(), ObjectError> {
        if self.records.is_some() { Ok(()) } else { self.store.sync(object) }
    }

    /// Room for clients: `metadata`, with the bytes of the store for data if that is apart.
    pub fn statfs(&self, metadata: Statfs) -> Statfs {
        let space = match self.records {
            Some(_) => return metadata,
            None => self.store.space(),
        };
        // What cannot be found out is left as that of the metadata.
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

    /// Names who is to be told of what is written without the service for objects; only the first one counts.
    pub fn set_watch(&self, watch: DataWatch) {
        // There is one service.
        let _ = self.watch.set(watch);
    }

    /// So many bytes were written to an object by the metadata server.
    pub fn note_written(&self, object: Fid, bytes: u64) {
        if let Some(watch) = self.watch.get() {
            watch(object, bytes);
        }
    }

    /// Largest component that a new layout may have on this MDT, in bytes: all of it, and with the space that there is now.
    pub fn limits(&self) -> (u64, u64) {
        (self.max_bytes.load(Ordering::Relaxed), self.now_bytes.load(Ordering::Relaxed))
    }

    /// Changes the limit; in force at once.
    pub fn set_max(&self, bytes: u64, space: &Statfs) {
        self.max_bytes.store(bytes, Ordering::Relaxed);
        self.adapt(space);
    }

    /// Free space below which components shrink, in bytes.
    pub fn threshold(&self, space: &Statfs) -> u64 {
        match self.threshold_bytes.load(Ordering::Relaxed) {
            BY_SIZE => (bytes(space, space.blocks) / 2).min(THRESHOLD_BYTES),
            set => set,
        }
    }

    /// Sets it; in force at once.
    pub fn set_threshold(&self, bytes: u64, space: &Statfs) {
        self.threshold_bytes.store(bytes.min(BY_SIZE - 1), Ordering::Relaxed);
        self.adapt(space);
    }

    /// Has the limit follow the space that is left.
    pub fn adapt(&self, space: &Statfs) {
        let available = bytes(space, space.blocks_available);
        let now = scaled(self.max_bytes.load(Ordering::Relaxed), available, self.threshold(space));
        self.now_bytes.store(now, Ordering::Relaxed);
    }

    /// A new layout with what is on the MDT cut to what may be there now. What is cut off goes to the next component; where there
    /// is none, the file ends earlier, but keeps at least something.
    pub fn limit(&self, layout: &mut Layout) {
        limit(layout, self.limits().1);
    }
}

fn bytes(space: &Statfs, blocks: u64) -> u64 {
    blocks.saturating_mul(u64::from(space.block_size))
}

/// The limit when `available` bytes are left: halved until it is no larger a part of `max` than `available` is of `threshold`,
/// and none below the smallest component. Source: reference 4.10.
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
        // As if it had not been asked for.
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
    use nacre_layout::{ComponentFlags, ComponentSpec, LayoutSpec, Wish};

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
            Wish::Composite(parts).to_layout(&LayoutSpec::default())
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
