//! Numbers of open files and directories, as the kernel and the MDT know them.

use crate::file::OpenFile;
use crate::node::IdMap;
use crate::ops::dir::OpenDir;
use nacre_types::{OpenHandle, Status, StatusResult};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 32;

#[derive(Clone)]
enum Handle {
    File(Arc<OpenFile>),
    Dir(Arc<OpenDir>),
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

    pub fn insert_file(&self, file: Arc<OpenFile>) {
        self.shard(file.handle.0).lock().insert(file.handle.0, Handle::File(file));
    }

    pub fn insert_dir(&self, number: u64, dir: Arc<OpenDir>) {
        self.shard(number).lock().insert(number, Handle::Dir(dir));
    }

    /// # Errors
    /// `EBADF` if the number is not that of an open file.
    pub fn file(&self, number: u64) -> StatusResult<Arc<OpenFile>> {
        match self.shard(number).lock().get(&number) {
            Some(Handle::File(file)) => Ok(file.clone()),
            _ => Err(Status::EBADF),
        }
    }

    /// # Errors
    /// `EBADF` if the number is not that of an open directory.
    pub fn dir(&self, number: u64) -> StatusResult<Arc<OpenDir>> {
        match self.shard(number).lock().get(&number) {
            Some(Handle::Dir(dir)) => Ok(dir.clone()),
            _ => Err(Status::EBADF),
        }
    }

    pub fn remove_file(&self, number: u64) -> StatusResult<Arc<OpenFile>> {
        match self.shard(number).lock().remove(&number) {
            Some(Handle::File(file)) => Ok(file),
            _ => Err(Status::EBADF),
        }
    }

    pub fn remove_dir(&self, number: u64) {
        self.shard(number).lock().remove(&number);
    }

    /// How many files and directories are open.
    pub fn count(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// All open files, for re-opening after a restart of the MDT.
    pub fn files(&self) -> Vec<Arc<OpenFile>> {
        let mut files = Vec::new();
        for shard in &self.shards {
            files.extend(shard.lock().values().filter_map(|handle| match handle {
                Handle::File(file) => Some(file.clone()),
                Handle::Dir(_) => None,
            }));
        }
        files
    }
}
