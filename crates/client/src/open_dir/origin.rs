//! Where an entry of a listing comes from, and what says that it is true.

use nacre_lock::LockHandle;
use nacre_types::Fid;
use nacre_wire::mds::DirEntry;

/// What says that an entry of a page is true.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EntryLocks {
    /// The directory or shard that has the name, and the lock on its names.
    pub home: Fid,
    pub names: LockHandle,
    /// The lock on the inode.
    pub inode: LockHandle,
}

/// Where entries come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The directory or shard that has the names, and the lock on them; 0 if there is none.
    pub home: Fid,
    pub names: LockHandle,
    /// [`Requests::changes`](crate::requests::Requests) before they were fetched.
    pub changes: u64,
    /// Everybody may search the directory.
    pub public: bool,
}

impl Origin {
    /// What says that an entry is true, if it came with a lock.
    pub(crate) fn locks_of(&self, entry: &DirEntry<'_>) -> Option<EntryLocks> {
        let Origin { home, names, .. } = *self;
        (names.0 != 0 && entry.lock.0 != 0).then_some(EntryLocks { home, names, inode: entry.lock })
    }
}
