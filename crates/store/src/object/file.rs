//! The `file` back end: one sparse file per object, in a directory of any local file system.
//!
//! ```text
//! DIR/superblock            identity (nacre_ondisk::object::ObjectDirectoryHeader)
//! DIR/index/                a MetaStore: object -> slot, sequence -> last reserved id, state of the whole
//! DIR/objects/XX/NNNNNN     slot files, mode 0600
//! ```
//!
//! Owns `DIR`; another process that opens it is refused. Format and invariants: `docs/formats/ost.md`. In
//! short:
//!
//! - an object's record is committed before the first byte is written to its slot file;
//! - an object is durable when its file is (fdatasync) and its record is (group commit of the index); records
//!   become durable within the index's commit interval anyway, so a sync is usually one fdatasync;
//! - a slot gets a new owner only after its file was emptied and the emptying, and the removal of the old
//!   owner's record, are durable.
//!
//! Reads try the page cache first, without waiting; only if that fails, the thread reports that it will wait
//! (`nacre_env::blocking`). Write-out of streams starts early. Checksums of data are kept if the store was
//! created with them ([`sums`]). The store knows no quotas or clients.

mod ahead;
mod check;
pub(super) mod directory;
mod fetch;
mod handle;
mod io;
mod local;
pub mod memory;
pub(super) mod ops;
pub(super) mod options;
mod recover;
mod release;
mod slots;
pub(super) mod space;
mod stream;
mod sums;
#[cfg(test)]
mod tests;
mod transfer;
mod trim;

pub use ahead::AheadBook;
pub(super) use directory::INDEX;
pub use directory::{ADDRESS, CLASS, JOINING, LOCK_CLIENTS, has_checksums};
pub use options::{DirectIo, FileStoreOptions, default_reserve};
pub use release::Releaser;
pub use trim::trim_range;

use crate::meta::{Batch, MetaError, MetaStore, MetaStoreOptions, Table, TransNo};
use crate::object::in_memory::is_in_memory;
use crate::object::sequences::{OBJECTS, Sequences};
use crate::object::{ObjectError, Result};
use directory::{Directory, path_error};
use handle::{Handle, Handles};
use local::{SlotFile, Tree};
use nacre_env::thread::JoinHandle;
use nacre_ondisk::object::{ObjectRecord, ObjectStoreRecord};
use nacre_types::Fid;
use rustix::fs::OFlags;
use rustix::io::Errno;
use slots::Slots;
use space::Reserve;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use transfer::Transfers;

/// The one [`ObjectStoreRecord`], under [`STORE_KEY`].
const STORE: Table = Table(3);
const STORE_KEY: &[u8] = b"store";

/// See the [module documentation](self).
pub struct FileStore {
    dir: PathBuf,
    options: FileStoreOptions,
    directory: Directory,
    index: Arc<MetaStore>,
    slots: Arc<Slots>,
    reserve: Arc<Reserve>,
    releaser: Arc<Releaser>,
    ahead: Arc<AheadBook>,
    /// Checksums of data, if the store was created with them.
    sums: Option<Arc<sums::Book>>,
    transfers: Transfers,
    threads: Vec<JoinHandle<()>>,
    handles: Handles,
    /// Slots that the index assigns to two objects: damage. Their files are never emptied.
    shared_slots: HashSet<u32>,
    sequences: Sequences,
    is_closed: AtomicBool,
    /// The last run stopped in order.
    was_clean: bool,
    /// This run has cleared away what a crash left.
    is_recovered: bool,
    boot: u64,
    counters: Counters,
    freed: trim::FreedBook,
    /// Time ([`ops::coarse_ms`]) until which writes are expected to block, because one did recently.
    congested_until_ms: AtomicU64,
}

#[derive(Default)]
struct Counters {
    objects: AtomicU64,
    created: AtomicU64,
    destroyed: AtomicU64,
    refused_full: AtomicU64,
    sync_failures: AtomicU64,
    recovered_files: AtomicU64,
}

impl FileStore {
    /// Opens the store in `dir`; creates it if `options.create` is set and the directory is missing or empty.
    ///
    /// After a crash, files without owner are examined and emptied first.
    ///
    /// # Errors
    /// [`ObjectError::InUse`] if another process has it open, [`ObjectError::Missing`],
    /// [`ObjectError::Foreign`], [`ObjectError::Header`] for another format, [`ObjectError::OtherTarget`],
    /// [`ObjectError::OtherIndex`], [`ObjectError::Damaged`] if the index is inconsistent.
    pub fn open(dir: &Path, options: FileStoreOptions) -> Result<FileStore> {
        FileStore::open_on(dir, options, Tree::open, ahead::Shared::of)
    }

    /// Opens the store as [`FileStore::open`] does, with its slot files in memory; its index is in `dir`.
    ///
    /// # Errors
    /// As there.
    pub fn open_in_memory(
        dir: &Path,
        options: FileStoreOptions,
        files: &Arc<memory::Tree>,
    ) -> Result<FileStore> {
        FileStore::open_on(dir, options, |_, _| Ok(Tree::Memory(files.clone())), ahead::Shared::of)
    }

    /// Opens the store as [`FileStore::open`] does; `tree` opens the directory of its slot files, creating it
    /// if asked to, and `shared` returns the state shared with other stores on its file system.
    fn open_on(
        dir: &Path,
        options: FileStoreOptions,
        tree: impl FnOnce(&Path, bool) -> std::result::Result<Tree, Errno>,
        shared: fn(&Tree) -> Arc<ahead::Shared>,
    ) -> Result<FileStore> {
        if !directory::is_label(&options.label) {
            return Err(ObjectError::Index(MetaError::Option {
                option: "label",
                requirement: "printable ASCII without spaces, up to 48 bytes",
            }));
        }
        let directory = Directory::open(dir, &options)?;
        let read_only = options.read_only;
        let root = dir.join(directory::OBJECTS);
        let tree = tree(&root, !read_only)
            .map_err(|error| path_error("make the directories below", &root, error))?;
        let slots = Arc::new(Slots::new(root, tree, read_only));
        let (mut store, was_clean) = FileStore::assemble(dir, options, directory, slots, shared)?;
        store.was_clean = was_clean;
        if read_only {
            store.is_closed.store(true, Ordering::Relaxed);
            return Ok(store);
        }
        ahead::recover(&store.index, &store.slots, &store.shared_slots, dir)?;
        if !was_clean {
            let emptied = recover::empty_unowned(&store.slots, dir)?;
            store.counters.recovered_files.store(emptied, Ordering::Relaxed);
        }
        store.write_clean(false)?;
        store.is_recovered = true;
        let fail = |source| ObjectError::Path { action: "start a thread for", path: dir.to_owned(), source };
        store.threads.push(store.releaser.start().map_err(fail)?);
        store.threads.push(store.transfers.fetcher().start().map_err(fail)?);
        store.threads.push(store.ahead.start().map_err(fail)?);
        if let Some(sums) = &store.sums {
            store.threads.push(sums.start().map_err(fail)?);
        }
        Ok(store)
    }

    /// Opens or creates the parts of the store; also returns whether the last run stopped in order.
    fn assemble(
        dir: &Path,
        options: FileStoreOptions,
        mut directory: Directory,
        slots: Arc<Slots>,
        shared: fn(&Tree) -> Arc<ahead::Shared>,
    ) -> Result<(FileStore, bool)> {
        let is_new = directory.header.is_none();
        let total = slots.tree().total().map_err(|error| path_error("ask for the space of", dir, error))?;
        let index_options = options.index.clone().unwrap_or_else(|| options::default_index(total));
        let index_options =
            MetaStoreOptions { create: is_new, read_only: options.read_only, ..index_options };
        let index = Arc::new(MetaStore::open(&dir.join(directory::INDEX), index_options)?);
        let was_clean = if is_new {
            let header = directory::new_header(dir, &options.label, options.checksums)?;
            write_state(&index, header.uuid, false)?;
            directory.finish(dir, header)?;
            true
        } else {
            read_state(&index, dir, &directory)?
        };
        let reserve_bytes = options.reserve_bytes.unwrap_or_else(|| default_reserve(total));
        let reserve = Arc::new(Reserve::new(reserve_bytes, options.sharers));
        let releaser =
            Arc::new(Releaser::new(slots.clone(), index.clone(), reserve.clone(), options.spare_files));
        let ahead = AheadBook::new(
            slots.clone(),
            index.clone(),
            reserve.clone(),
            options.ahead_max_bytes,
            options.ahead_everywhere,
            shared(slots.tree()),
        );
        let known = recover::load(&index, &slots, dir)?;
        let has_sums = directory.header.as_ref().is_some_and(|header| header.checksums);
        let sums = has_sums.then(|| sums::Book::new(index.clone(), options.settle_ms));
        let store = FileStore {
            dir: dir.to_owned(),
            transfers: Transfers::new(&options, slots.tree().kernel().is_some_and(is_in_memory)),
            handles: Handles::new(handle::open_files_allowed(options.open_files_max)),
            freed: trim::FreedBook::default(),
            options,
            directory,
            index,
            slots,
            reserve,
            releaser,
            ahead,
            sums,
            threads: Vec::new(),
            shared_slots: known.shared_slots,
            sequences: Sequences::default(),
            is_closed: AtomicBool::new(false),
            was_clean: true,
            is_recovered: false,
            boot: boot_identity(),
            counters: Counters { objects: AtomicU64::new(known.objects), ..Counters::default() },
            congested_until_ms: AtomicU64::new(0),
        };
        Ok((store, was_clean))
    }

    /// Returns the directory of the store.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn write_clean(&self, clean: bool) -> Result<()> {
        match &self.directory.header {
            Some(header) => write_state(&self.index, header.uuid, clean),
            None => Ok(()),
        }
    }

    /// Returns the slot of an object; `None` if it does not exist.
    fn lookup(&self, object: Fid) -> Result<Option<u32>> {
        match self.index.get(OBJECTS, &object.to_key(), |value| value.map(ObjectRecord::decode))? {
            None => Ok(None),
            Some(Ok(record)) => Ok(Some(record.slot)),
            Some(Err(_)) => Err(ObjectError::Damaged { object, what: "its record cannot be read" }),
        }
    }

    /// Refuses changes after [`crate::object::ObjectStore::close`].
    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::Relaxed) { Err(ObjectError::Closed) } else { Ok(()) }
    }

    /// Returns the open object; `None` if it does not exist.
    fn find(&self, object: Fid) -> Result<Option<Arc<Handle>>> {
        if let Some(handle) = self.handles.get(object) {
            return Ok(Some(handle));
        }
        // Without a lock first: lookups of objects that do not exist are frequent.
        if self.lookup(object)?.is_none() {
            return Ok(None);
        }
        let _lock = self.handles.lock(object);
        self.find_locked(object)
    }

    fn find_locked(&self, object: Fid) -> Result<Option<Arc<Handle>>> {
        if let Some(handle) = self.handles.get(object) {
            return Ok(Some(handle));
        }
        let Some(slot) = self.lookup(object)? else { return Ok(None) };
        let file = match self.slots.open_file(slot, OFlags::empty()) {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.handles.shrink();
                self.slots.open_file(slot, OFlags::empty())
            }
            other => other,
        };
        let file = file.map_err(|error| match error {
            Errno::NOENT => ObjectError::Damaged { object, what: "its file is missing" },
            error => ObjectError::io("open file", object, error),
        })?;
        // The record was committed at some time before; its transaction is not known any more.
        let mapped_by = self.index.last_transno().0;
        Ok(Some(self.handles.insert(self.handle(object, slot, file, false, mapped_by))))
    }

    /// Returns the open object, created if it does not exist.
    fn find_or_create(&self, object: Fid) -> Result<Arc<Handle>> {
        let _lock = self.handles.lock(object);
        if let Some(handle) = self.find_locked(object)? {
            return Ok(handle);
        }
        let taken = self.slots.take().ok_or(ObjectError::NoSpace)?;
        let slot = taken.slot;
        let fresh = match self.slots.open_fresh(taken, object) {
            Err(ObjectError::Io { source, .. })
                if matches!(Errno::from_io_error(&source), Some(Errno::MFILE | Errno::NFILE)) =>
            {
                self.handles.shrink();
                self.slots.open_fresh(taken, object)
            }
            other => other,
        };
        let fresh = fresh.inspect_err(|_| self.slots.give_back_unused(slot, false))?;
        let mut batch = Batch::new();
        batch.put(OBJECTS, &object.to_key(), &ObjectRecord { slot }.encode());
        let committed = self.index.commit(&batch);
        let TransNo(mapped_by) =
            committed.inspect_err(|_| self.slots.give_back_unused(slot, fresh.is_new))?;
        self.counters.objects.fetch_add(1, Ordering::Relaxed);
        self.counters.created.fetch_add(1, Ordering::Relaxed);
        self.releaser.note_taken(taken.free_left);
        Ok(self.handles.insert(self.handle(object, slot, fresh.file, fresh.is_new, mapped_by)))
    }

    fn handle(&self, object: Fid, slot: u32, file: SlotFile, is_new_file: bool, mapped_by: u64) -> Handle {
        let (releaser, ahead) = (self.releaser.clone(), self.ahead.clone());
        Handle::new(object, slot, file, is_new_file, mapped_by, releaser, ahead)
    }

    /// Makes one object durable.
    fn sync_handle(&self, handle: &Handle) -> Result<()> {
        let mapped_by = handle.mapped_by.load(Ordering::Relaxed);
        let flush = || {
            handle.file.sync_data()?;
            if handle.is_new_file.load(Ordering::Relaxed) {
                self.slots.sync_name(handle.slot)?;
                handle.is_new_file.store(false, Ordering::Relaxed);
            }
            Ok(())
        };
        nacre_env::blocking(|| {
            flush().map_err(|error| self.sync_failed(handle.object, error))?;
            if mapped_by != 0 {
                if self.index.last_committed() < TransNo(mapped_by) {
                    self.index.sync(TransNo(mapped_by))?;
                }
                handle.mapped_by.store(0, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    fn sync_failed(&self, object: Fid, error: Errno) -> ObjectError {
        if error != Errno::INTR {
            // The kernel has dropped pages that it could not write, and will not report that again.
            self.counters.sync_failures.fetch_add(1, Ordering::Relaxed);
            log::error!("data of object {object} could not be made durable: {error}");
        }
        ObjectError::io("sync", object, error)
    }

    /// Removes the records of some objects and empties their files. Not durable yet, except with checksums.
    fn destroy_some(&self, objects: &[Fid]) -> Result<u64> {
        let locks = self.handles.lock_all(objects);
        if let Some(sums) = &self.sums {
            let forget = |object: &Fid| sums.forget_object(*object, self.handles.get(*object).as_deref());
            objects.iter().try_for_each(forget)?;
        }
        let mut batch = Batch::new();
        batch.set_releasing(true);
        let mut found = Vec::new();
        for &object in objects {
            // A second mention of an object is in the list already.
            if found.iter().any(|&(known, _)| known == object) {
                continue;
            }
            if let Some(slot) = self.lookup(object)? {
                batch.delete(OBJECTS, &object.to_key());
                found.push((object, slot));
            }
        }
        if found.is_empty() {
            return Ok(0);
        }
        let transno = self.index.commit(&batch)?;
        let mut gone = Vec::with_capacity(found.len());
        let mut unopened = Vec::new();
        for &(object, slot) in &found {
            match self.handles.remove(object) {
                _ if self.shared_slots.contains(&slot) => {}
                Some(handle) => {
                    handle.set_destroyed();
                    gone.push(handle);
                }
                None => unopened.push(slot),
            }
        }
        drop(locks);
        let count = found.len() as u64;
        self.counters.objects.fetch_sub(count, Ordering::Relaxed);
        self.counters.destroyed.fetch_add(count, Ordering::Relaxed);
        if self.sums.is_some() {
            // The emptying of a file may reach the disk first, and does not match its checksums.
            nacre_env::blocking(|| self.index.sync(transno))?;
        }
        // Dropping the handles empties the files, each by its last user: this thread, unless a call is in
        // progress.
        drop(gone);
        unopened.into_iter().for_each(|slot| self.release_unopened(slot));
        Ok(count)
    }

    fn release_unopened(&self, slot: u32) {
        match self.slots.open_file(slot, OFlags::empty()) {
            Ok(file) => self.releaser.release(slot, &file),
            // The object was damaged, and its file does not exist.
            Err(Errno::NOENT) => self.slots.give_back(&[slot]),
            Err(error) => self.releaser.lose(slot, error),
        }
    }
}

impl Drop for FileStore {
    /// No call can be in progress, so the state on disk can be marked clean if it is.
    fn drop(&mut self) {
        if self.options.read_only {
            return;
        }
        if let Some(sums) = &self.sums {
            sums.stop();
        }
        self.releaser.stop();
        self.transfers.fetcher().stop();
        self.ahead.stop();
        self.ahead.give_own_back();
        let ended: Vec<_> = self.threads.drain(..).map(JoinHandle::join).collect();
        if ended.iter().any(nacre_env::thread::Result::is_err) {
            log::error!("a thread of {} has panicked", self.dir.display());
            return;
        }
        if self.directory.header.is_none() || !self.is_recovered || self.releaser.lost() > 0 {
            return;
        }
        let closed = self
            .slots
            .tree()
            .sync_all()
            .map_err(|error| ObjectError::io("sync", Fid::ZERO, error))
            .and_then(|()| self.write_clean(true))
            .and_then(|()| Ok(self.index.close()?));
        if let Err(error) = closed {
            log::warn!("object store {} was not closed in order: {error}", self.dir.display());
        }
    }
}

fn write_state(index: &MetaStore, uuid: [u8; 16], clean: bool) -> Result<()> {
    let mut batch = Batch::new();
    // The record replaces itself: a store must also start on a disk that others have filled.
    batch.set_releasing(true);
    batch.put(STORE, STORE_KEY, &ObjectStoreRecord { uuid, clean }.encode());
    let transno = index.commit(&batch)?;
    index.sync(transno)?;
    Ok(())
}

/// Reads whether the last run stopped in order; checks that index and directory belong together.
fn read_state(index: &MetaStore, dir: &Path, directory: &Directory) -> Result<bool> {
    let record = index.get(STORE, STORE_KEY, |value| value.map(ObjectStoreRecord::decode))?;
    let uuid = directory.header.as_ref().map(|header| header.uuid);
    match record {
        Some(Ok(record)) if Some(record.uuid) == uuid => Ok(record.clean),
        Some(Ok(_)) | None => Err(ObjectError::OtherIndex { dir: dir.to_owned() }),
        Some(Err(_)) => Err(ObjectError::IndexDamaged { what: "the state of the store cannot be read" }),
    }
}

/// Returns a number that differs after each start of the host.
pub(super) fn boot_identity() -> u64 {
    // FNV-1a: it only matters that different identities give different numbers.
    let boot = nacre_env::own_process().boot;
    boot.into_iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
