//! The origin of an entry of a listing, and the proof that the entry is valid.

use nacre_lock::LockHandle;
use nacre_types::Fid;
use nacre_wire::mds::DirEntry;

/// Locks that prove an entry of a page valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryLocks {
    /// The directory or shard that has the name, and the lock on its names.
    pub home: Fid,
    pub names: LockHandle,
    /// The lock on the inode.
    pub inode: LockHandle,
}

/// Origin of entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The directory or shard that has the names, and the lock on them; 0 if there is none.
    pub home: Fid,
    pub names: LockHandle,
    /// [`Requests::changes`](crate::requests::Requests) before the request for them.
    pub changes: u64,
    /// True if everybody may search the directory.
    pub public: bool,
}

impl Origin {
    /// Returns the locks that prove an entry valid, if it came with a lock.
    pub(crate) fn locks_of(&self, entry: &DirEntry<'_>) -> Option<EntryLocks> {
        let Origin { home, names, .. } = *self;
        (names.0 != 0 && entry.lock.0 != 0).then_some(EntryLocks { home, names, inode: entry.lock })
    }
}
