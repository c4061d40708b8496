//! A transaction under construction: the batch, and the changes of records in memory after its commit.

use crate::replay;
use crate::tables::{DESTROYS, DIRENTS, INODES, OWNER_CHANGES, PRESENT, destroy_key, dirent_key};
use nacre_layout::Layout;
use nacre_ondisk::{DirentRecord, InodeRecord, OpenedRecord, OwnerRecord};
use nacre_store::Batch;
use nacre_types::{Attr, Fid, FileKind, OpenHandle, Owners, Timestamp};
use nacre_wire::mds::OpenFlags;
use nacre_wire::oss::OwnedObject;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Default)]
struct Buffers {
    batch: Batch,
    scratch: Vec<u8>,
    cached: Vec<(Fid, Option<Arc<InodeRecord>>)>,
    /// Encoded changelog records, one after the other, and the ends of them.
    changes: Vec<u8>,
    change_ends: Vec<usize>,
}

thread_local! {
    /// Buffers of the last transaction of this thread, so that the next one allocates nothing.
    static SPARE: RefCell<Option<Buffers>> = const { RefCell::new(None) };
}

/// Largest number of changed inodes for which the buffer is kept.
const KEEP_RECORDS: usize = 64;
/// Largest buffer in bytes that is kept for the next transaction.
const KEEP_MAX: usize = 256 << 10;

/// Returns the server's time; the original time of a change that is replayed.
pub(crate) fn now() -> Timestamp {
    replay::time().unwrap_or_else(|| Timestamp::from(nacre_env::clock::wall()))
}

/// See the [module documentation](self).
pub struct Tx {
    buffers: Buffers,
    /// Version for changed inodes.
    version: u64,
    destroyed: Vec<(u16, Fid)>,
    /// Destroyed objects on this MDT.
    destroyed_here: Vec<Fid>,
    /// Objects whose owners change.
    owned: Vec<(u16, OwnedObject)>,
    /// Inodes that did not exist.
    new: SmallVec<[Fid; 1]>,
    /// Change of the number of inodes.
    inode_change: i64,
    /// True if the changes are redone after a restart: locks on them were revoked before it, or no client
    /// holds any, so the commit waits for no client.
    pub is_replay: bool,
    /// Handle that the request opens, to be stored with its answer.
    pub opened: Option<OpenedRecord>,
    /// True if a directory moves.
    pub moves_directory: bool,
    /// True if names have to move between shards after it.
    pub moves_names: bool,
}

/// Returns the stamp of a size that is stored with this version of its inode. A restart after a crash continues
/// with a version whose upper half differs.
fn stamp_of(version: u64) -> u32 {
    let stamp = (version ^ version >> 32) as u32;
    if stamp == Attr::NEW_STAMP { 1 } else { stamp }
}

impl Tx {
    /// Begins an empty transaction whose inodes get `version`.
    pub fn new(version: u64) -> Tx {
        let buffers = SPARE.with(|spare| spare.borrow_mut().take()).unwrap_or_default();
        Tx {
            buffers,
            version,
            destroyed: Vec::new(),
            destroyed_here: Vec::new(),
            owned: Vec::new(),
            new: SmallVec::new(),
            inode_change: 0,
            is_replay: false,
            moves_directory: false,
            moves_names: false,
            opened: None,
        }
    }

    /// Returns the batch, for records that have no method here.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.buffers.batch
    }

    /// Returns an empty buffer and the batch, to encode a record into.
    pub fn scratch(&mut self) -> (&mut Vec<u8>, &mut Batch) {
        self.buffers.scratch.clear();
        (&mut self.buffers.scratch, &mut self.buffers.batch)
    }

    /// Returns true if there are no changes.
    pub fn is_empty(&self) -> bool {
        self.buffers.batch.is_empty() && self.buffers.change_ends.is_empty()
    }

    /// Adds a changelog record, which `encode` appends to its argument.
    pub fn log_change(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.buffers.changes);
        self.buffers.change_ends.push(self.buffers.changes.len());
    }

    /// Returns true if there are changelog records.
    pub fn has_changes(&self) -> bool {
        !self.buffers.change_ends.is_empty()
    }

    /// Passes each changelog record to `put`, with the batch, and forgets it.
    pub fn put_changes(&mut self, mut put: impl FnMut(&mut [u8], &mut Batch)) {
        let Buffers { batch, changes, change_ends, .. } = &mut self.buffers;
        let mut from = 0;
        for end in change_ends.drain(..) {
            put(&mut changes[from..end], batch);
            from = end;
        }
        changes.clear();
    }

    /// Stores an inode under a new version; returns its new record.
    pub fn put_inode(&mut self, record: impl Into<Arc<InodeRecord>>) -> Arc<InodeRecord> {
        let mut record = record.into();
        let attr = &mut Arc::make_mut(&mut record).attr;
        attr.version = self.version;
        if attr.size_stamp == Attr::NEW_STAMP {
            attr.size_stamp = stamp_of(self.version);
        }
        let fid = record.attr.fid;
        let (scratch, batch) = self.scratch();
        record.encode(scratch);
        batch.put(INODES, &fid.to_key(), scratch);
        self.buffers.cached.push((fid, Some(record.clone())));
        record
    }

    /// Like [`Tx::put_inode`], for an inode that did not exist.
    pub fn put_new_inode(&mut self, record: impl Into<Arc<InodeRecord>>) -> Arc<InodeRecord> {
        self.inode_change += 1;
        let record = self.put_inode(record);
        self.new.push(record.attr.fid);
        record
    }

    /// Returns true if an inode did not exist before the transaction.
    pub fn is_new(&self, fid: &Fid) -> bool {
        self.new.contains(fid)
    }

    /// Adds the objects on OSTs of a file whose owners change, or which gets them from another file, to the log of
    /// such objects.
    pub fn log_owners(&mut self, file: Fid, layout: &Layout, owners: Owners) {
        for stripe in layout.objects().filter(|stripe| !stripe.is_on_mdt()) {
            let (object, place) = (stripe.object, layout.place_of(file, &stripe.object));
            let record = OwnerRecord { owners, counted: 0, is_active: false, place };
            let key = destroy_key(stripe.ost_index, &object);
            self.batch().put(OWNER_CHANGES, key.as_slice(), &record.encode());
            self.owned.push((stripe.ost_index, OwnedObject { object, owners, place }));
        }
    }

    /// Takes the objects whose owners change.
    pub fn take_owned(&mut self) -> Vec<(u16, OwnedObject)> {
        std::mem::take(&mut self.owned)
    }

    /// Returns the change of the number of inodes.
    pub fn inode_change(&self) -> i64 {
        self.inode_change
    }

    /// Removes an inode's record.
    pub fn delete_inode(&mut self, fid: &Fid) {
        self.inode_change -= 1;
        self.batch().delete(INODES, &fid.to_key());
        self.buffers.cached.push((*fid, None));
    }

    /// Stores a name.
    pub fn put_dirent(&mut self, directory: &Fid, hash: u64, name: &[u8], fid: Fid, kind: FileKind) {
        let value = DirentRecord { fid, kind }.encode();
        self.batch().put(DIRENTS, dirent_key(directory, hash, name).as_slice(), &value);
    }

    /// Removes a name.
    pub fn delete_dirent(&mut self, directory: &Fid, hash: u64, name: &[u8]) {
        self.batch().delete(DIRENTS, dirent_key(directory, hash, name).as_slice());
    }

    /// Records the handle that the request opens.
    pub fn note_opened(&mut self, fid: Fid, handle: OpenHandle, flags: OpenFlags) {
        self.opened = Some(OpenedRecord { fid, handle, flags: flags.bits() });
    }

    /// Adds an object on another target that belongs to no file to the destroy log.
    pub fn log_destroy(&mut self, ost_index: u16, object: Fid) {
        let key = destroy_key(ost_index, &object);
        self.batch().put(DESTROYS, key.as_slice(), &PRESENT);
        self.note_destroyed(ost_index, object);
    }

    /// Records an object whose destruction this batch logs.
    pub fn note_destroyed(&mut self, ost_index: u16, object: Fid) {
        self.destroyed.push((ost_index, object));
    }

    /// Records an object on this MDT that this batch destroys.
    pub fn note_destroyed_here(&mut self, object: Fid) {
        self.destroyed_here.push(object);
    }

    /// Takes the destroyed objects on this MDT.
    pub fn take_destroyed_here(&mut self) -> Vec<Fid> {
        std::mem::take(&mut self.destroyed_here)
    }

    /// Returns the changed inodes with their new records; `None` for removed ones.
    pub fn cached(&self) -> &[(Fid, Option<Arc<InodeRecord>>)] {
        &self.buffers.cached
    }

    /// Returns the new record of a changed inode; `None` if it is unchanged or removed.
    pub fn stored(&self, fid: &Fid) -> Option<Arc<InodeRecord>> {
        self.buffers.cached.iter().find(|(changed, _)| changed == fid).and_then(|(_, record)| record.clone())
    }

    /// Takes the changes for the cache after the commit.
    pub fn take_cached(&mut self) -> impl Iterator<Item = (Fid, Option<Arc<InodeRecord>>)> {
        self.buffers.cached.drain(..)
    }

    /// Takes the list of inodes that did not exist before.
    pub fn take_new(&mut self) -> SmallVec<[Fid; 1]> {
        std::mem::take(&mut self.new)
    }

    /// Takes the objects to be destroyed after the commit.
    pub fn take_destroyed(&mut self) -> Vec<(u16, Fid)> {
        std::mem::take(&mut self.destroyed)
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        let mut buffers = std::mem::take(&mut self.buffers);
        if buffers.batch.encoded_len() > KEEP_MAX
            || buffers.scratch.capacity() > KEEP_MAX
            || buffers.cached.capacity() > KEEP_RECORDS
        {
            return;
        }
        buffers.batch.clear();
        buffers.cached.clear();
        buffers.changes.clear();
        buffers.change_ends.clear();
        // A thread that is ending keeps no buffers.
        let _ = SPARE.try_with(|spare| *spare.borrow_mut() = Some(buffers));
    }
}
