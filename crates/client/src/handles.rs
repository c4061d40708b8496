//! Numbers of open files and directories, as the kernel and the MDT know them.
//!
//! An MDT that has restarted knows only the open files that clients replay. So a number is in this table from
//! before the open is sent to the MDT until right before the close is sent: also while the reply to the open
//! is processed, and while written data is on its way.

use crate::file::{Asked, OpenFile};
use crate::node::IdMap;
use crate::open_dir::OpenDir;
use nacre_env::sync::Mutex;
use nacre_types::{OpenHandle, Status, StatusResult};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 32;

#[derive(Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Dir(Arc<OpenDir>),
    /// The MDT may have the file open, but no program does: it is being opened or closed.
    Pending(Asked),
}

/// Open files and directories by number. Numbers start at 1 and are never used again.
pub(crate) struct HandleTable {
    next: AtomicU64,
    shards: [Mutex<IdMap<Handle>>; SHARDS],
}

impl HandleTable {
    pub fn new() -> HandleTable {
        HandleTable { next: AtomicU64::new(1), shards: std::array::from_fn(|_| Mutex::new(IdMap::default())) }
    }

    pub fn fresh(&self) -> OpenHandle {
        OpenHandle(self.next.fetch_add(1, Ordering::Relaxed))
    }

    fn shard(&self, number: u64) -> &Mutex<IdMap<Handle>> {
        &self.shards[number as usize % SHARDS]
    }

    /// Enters an open that is about to be sent, as the MDT may have it from then on.
    pub fn insert_pending(&self, handle: OpenHandle, asked: Asked) {
        self.shard(handle.0).lock().insert(handle.0, Handle::Pending(asked));
    }

    pub fn insert_file(&self, file: Arc<OpenFile>) {
        self.shard(file.handle.0).lock().insert(file.handle.0, Handle::File(file));
    }

    pub fn insert_dir(&self, number: u64, dir: Arc<OpenDir>) {
        self.shard(number).lock().insert(number, Handle::Dir(dir));
    }

    /// Returns an open file.
    ///
    /// # Errors
    /// `EBADF` if the number is not that of an open file.
    pub fn file(&self, number: u64) -> StatusResult<Arc<OpenFile>> {
        match self.shard(number).lock().get(&number) {
            Some(Handle::File(file)) => Ok(file.clone()),
            _ => Err(Status::EBADF),
        }
    }

    /// Returns an open directory.
    ///
    /// # Errors
    /// `EBADF` if the number is not that of an open directory.
    pub fn dir(&self, number: u64) -> StatusResult<Arc<OpenDir>> {
        match self.shard(number).lock().get(&number) {
            Some(Handle::Dir(dir)) => Ok(dir.clone()),
            _ => Err(Status::EBADF),
        }
    }

    /// Takes an open file from its program. It stays pending.
    ///
    /// # Errors
    /// `EBADF` if the number is not that of an open file.
    pub fn take_file(&self, number: u64) -> StatusResult<Arc<OpenFile>> {
        let mut shard = self.shard(number).lock();
        match shard.get_mut(&number) {
            Some(Handle::File(file)) => {
                let file = file.clone();
                shard.insert(number, Handle::Pending(file.asked()));
                Ok(file)
            }
            _ => Err(Status::EBADF),
        }
    }

    /// Removes a handle that the MDT has not opened, or whose close is about to be sent.
    pub fn remove_pending(&self, handle: OpenHandle) {
        self.shard(handle.0).lock().remove(&handle.0);
    }

    pub fn remove_dir(&self, number: u64) {
        self.shard(number).lock().remove(&number);
    }

    /// Returns how many files and directories are open.
    pub fn count(&self) -> usize {
        let is_open = |handle: &&Handle| !matches!(handle, Handle::Pending(..));
        self.shards.iter().map(|shard| shard.lock().values().filter(is_open).count()).sum()
    }

    /// Returns the opens that MDTs may have, for replay after a restart.
    pub fn opens(&self) -> Vec<(OpenHandle, Asked)> {
        let mut opens = Vec::new();
        for shard in &self.shards {
            opens.extend(shard.lock().iter().filter_map(|(number, handle)| match handle {
                Handle::File(open) => Some((open.handle, open.asked())),
                Handle::Pending(asked) => Some((OpenHandle(*number), *asked)),
                Handle::Dir(_) => None,
            }));
        }
        opens
    }

    /// Returns all open files.
    pub fn files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            files.extend(shard.lock().values().filter_map(|handle| match handle {
                Handle::File(file) => Some(file.clone()),
                Handle::Dir(_) | Handle::Pending(..) => None,
            }));
        }
        files
    }
}
