//! One transaction in the making: the batch, and what memory learns once it is committed.

use crate::tables::{DESTROYS, DIRENTS, INODES, PRESENT, destroy_key, dirent_key};
use nacre_ondisk::{DirentRecord, InodeRecord, OpenedRecord};
use nacre_store::Batch;
use nacre_types::{Fid, FileKind, OpenHandle, Timestamp};
use nacre_wire::mds::OpenFlags;
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Default)]
struct Buffers {
    batch: Batch,
    scratch: Vec<u8>,
    cached: Vec<(Fid, Option<Arc<InodeRecord>>)>,
}

thread_local! {
    /// Buffers of the last transaction of this thread, so that the next one allocates nothing.
    static SPARE: RefCell<Option<Buffers>> = const { RefCell::new(None) };
}

/// Most records of changed inodes that the buffer for them is kept with.
const KEEP_RECORDS: usize = 64;
/// Largest buffer that is kept for the next transaction, in bytes.
const KEEP_MAX: usize = 256 << 10;

/// The clock of the server.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(nacre_env::clock::wall())
}

/// See the [module documentation](self).
pub struct Tx {
    buffers: Buffers,
    /// Version that changed inodes get.
    version: u64,
    destroyed: Vec<(u16, Fid)>,
    /// The same of data on this MDT.
    destroyed_here: Vec<Fid>,
    /// By how much the number of inodes changes.
    inode_change: i64,
    /// What it changes was changed before the restart, and called back then, or nobody has kept it: nobody is waited for.
    pub is_replay: bool,
    /// Handle that the request opens, to be stored with its answer.
    pub opened: Option<OpenedRecord>,
    /// A directory gets another place.
    pub moves_directory: bool,
    /// Names have to move between shards because of it.
    pub moves_names: bool,
}

impl Tx {
    /// An empty transaction whose inodes get `version`.
    pub fn new(version: u64) -> Tx {
        let buffers = SPARE.with(|spare| spare.borrow_mut().take()).unwrap_or_default();
        Tx {
            buffers,
            version,
            destroyed: Vec::new(),
            destroyed_here: Vec::new(),
            inode_change: 0,
            is_replay: false,
            moves_directory: false,
            moves_names: false,
            opened: None,
        }
    }

    /// The batch, for records that have no method here.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.buffers.batch
    }

    /// An empty buffer and the batch, to encode a record into.
    pub fn scratch(&mut self) -> (&mut Vec<u8>, &mut Batch) {
        self.buffers.scratch.clear();
        (&mut self.buffers.scratch, &mut self.buffers.batch)
    }

    /// True if nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.buffers.batch.is_empty()
    }

    /// Stores an inode under a new version; gives the record as it will be.
    pub fn put_inode(&mut self, mut record: InodeRecord) -> Arc<InodeRecord> {
        record.attr.version = self.version;
        let fid = record.attr.fid;
        let (scratch, batch) = self.scratch();
        record.encode(scratch);
        batch.put(INODES, &fid.to_key(), scratch);
        let record = Arc::new(record);
        self.buffers.cached.push((fid, Some(record.clone())));
        record
    }

    /// Like [`Tx::put_inode`], for an inode that did not exist.
    pub fn put_new_inode(&mut self, record: InodeRecord) -> Arc<InodeRecord> {
        self.inode_change += 1;
        self.put_inode(record)
    }

    /// By how much the number of inodes changes.
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

    /// Notes the handle that the request opens.
    pub fn note_opened(&mut self, fid: Fid, handle: OpenHandle, flags: OpenFlags) {
        self.opened = Some(OpenedRecord { fid, handle, flags: flags.bits() });
    }

    /// An object on a target of its own belongs to no file any more: it goes to the destroy log.
    pub fn log_destroy(&mut self, ost_index: u16, object: Fid) {
        let key = destroy_key(ost_index, &object);
        self.batch().put(DESTROYS, key.as_slice(), &PRESENT);
        self.note_destroyed(ost_index, object);
    }

    /// Remembers an object whose destruction this batch logs.
    pub fn note_destroyed(&mut self, ost_index: u16, object: Fid) {
        self.destroyed.push((ost_index, object));
    }

    /// Remembers an object on this MDT that this batch destroys.
    pub fn note_destroyed_here(&mut self, object: Fid) {
        self.destroyed_here.push(object);
    }

    /// Objects on this MDT that are destroyed.
    pub fn take_destroyed_here(&mut self) -> Vec<Fid> {
        std::mem::take(&mut self.destroyed_here)
    }

    /// Inodes that are changed, with their records as they will be; `None` for those that go.
    pub fn cached(&self) -> &[(Fid, Option<Arc<InodeRecord>>)] {
        &self.buffers.cached
    }

    /// An inode that is changed, as it will be; `None` if it is not, or goes.
    pub fn stored(&self, fid: &Fid) -> Option<Arc<InodeRecord>> {
        self.buffers.cached.iter().find(|(changed, _)| changed == fid).and_then(|(_, record)| record.clone())
    }

    /// What the cache must learn after the commit.
    pub fn take_cached(&mut self) -> impl Iterator<Item = (Fid, Option<Arc<InodeRecord>>)> {
        self.buffers.cached.drain(..)
    }

    /// Objects to be destroyed after the commit.
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
        // A thread that is being torn down keeps nothing.
        let _ = SPARE.try_with(|spare| *spare.borrow_mut() = Some(buffers));
    }
}
