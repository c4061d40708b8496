//! What a host of a target keeps when a process ends, or its power is cut.

use crate::watch::Watcher;
use nacre_store::meta::witness::{Medium, Witness};
use nacre_store::object::block::device::MemoryDevice;
use nacre_store::object::file::memory::Tree;
use std::hash::{DefaultHasher, Hash};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Back end of the objects of a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// In the metadata store: the data of an MDT.
    Records,
    /// Slot files in memory.
    File,
    /// A device in memory.
    Block,
}

/// Objects of a target.
pub(crate) enum Objects {
    Records,
    Files(Arc<Tree>),
    Device(Arc<MemoryDevice>),
}

/// Size of devices in bytes.
const DEVICE_BYTES: u64 = 64 << 20;

impl Objects {
    fn new(backend: Backend) -> Objects {
        match backend {
            Backend::Records => Objects::Records,
            Backend::File => Objects::Files(Arc::default()),
            Backend::Block => Objects::Device(Arc::new(MemoryDevice::new(DEVICE_BYTES))),
        }
    }

    fn share(&self) -> Objects {
        match self {
            Objects::Records => Objects::Records,
            Objects::Files(files) => Objects::Files(files.clone()),
            Objects::Device(device) => Objects::Device(device.clone()),
        }
    }

    fn copy(&self) -> Objects {
        match self {
            Objects::Records => Objects::Records,
            Objects::Files(files) => Objects::Files(Arc::new(files.copy())),
            Objects::Device(device) => Objects::Device(Arc::new(device.copy())),
        }
    }

    /// Returns what a power cut leaves, as [`Disk::after_power_cut`].
    pub(crate) fn after_power_cut(&self, choose: &mut dyn FnMut(usize) -> usize) -> Objects {
        match self {
            Objects::Records => Objects::Records,
            Objects::Files(files) => Objects::Files(Arc::new(files.after_power_cut(choose))),
            Objects::Device(device) => Objects::Device(Arc::new(device.after_power_cut(choose))),
        }
    }
}

/// The directory of a target, the medium of its log, and its objects.
///
/// A process that ended may leave threads that change them: its successor gets a copy, made at one moment.
pub(crate) struct Disk {
    pub(crate) dir: PathBuf,
    /// Directory of the metadata store, or of the index, below `dir`.
    store: &'static str,
    pub(crate) log: Arc<Witness>,
    pub(crate) objects: Objects,
    /// What watches its flushes.
    pub(crate) watcher: Option<Arc<dyn Watcher>>,
}

impl Disk {
    pub(crate) fn new(dir: PathBuf, backend: Backend) -> Disk {
        let store = if backend == Backend::Records { "meta" } else { "index" };
        Disk { dir, store, log: Witness::new(|_| {}), objects: Objects::new(backend), watcher: None }
    }

    /// Returns the directory of the store whose log has the witness.
    pub(crate) fn store_dir(&self) -> PathBuf {
        self.dir.join(self.store)
    }

    /// Returns the disk as the end of a process leaves it: everything that the kernel has.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn after_kill(&self, dir: PathBuf) -> io::Result<Disk> {
        copy_dir(&self.dir, &dir, &mut |name, bytes| std::fs::write(name, bytes))?;
        let log = Witness::of_medium(self.log.medium());
        Ok(Disk { dir, store: self.store, log, objects: self.objects.copy(), watcher: None })
    }

    /// Returns the same disk again.
    pub(crate) fn share(&self) -> Disk {
        let (dir, store, log) = (self.dir.clone(), self.store, self.log.clone());
        Disk { dir, store, log, objects: self.objects.share(), watcher: None }
    }

    /// Returns a copy with this state of the log's medium, without the log's files; `hasher` reads the others.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn copy_with(
        &self,
        dir: PathBuf,
        medium: Medium,
        hasher: &mut DefaultHasher,
    ) -> io::Result<Disk> {
        copy_dir(&self.dir, &dir, &mut |name, bytes| {
            if is_segment(name) {
                return Ok(());
            }
            bytes.hash(hasher);
            std::fs::write(name, bytes)
        })?;
        let log = Witness::of_medium(medium);
        Ok(Disk { dir, store: self.store, log, objects: self.objects.copy(), watcher: None })
    }

    /// Returns the disk as a power cut leaves it: of what was not synced `choose` picks one of so many
    /// versions, the first of which is the durable one.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn after_power_cut(
        &self,
        dir: PathBuf,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> io::Result<Disk> {
        let disk = self.without_log(dir, choose)?;
        self.log.medium().cut(&disk.store_dir(), choose)?;
        Ok(disk)
    }

    /// As [`Disk::after_power_cut`], with choices of their own for the log and the objects.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn after_cut(
        &self,
        dir: PathBuf,
        of_log: &mut dyn FnMut(usize) -> usize,
        of_objects: &mut dyn FnMut(usize) -> usize,
    ) -> io::Result<Disk> {
        let disk = self.without_log(dir, of_objects)?;
        self.log.medium().cut(&disk.store_dir(), of_log)?;
        Ok(disk)
    }

    fn without_log(&self, dir: PathBuf, choose: &mut dyn FnMut(usize) -> usize) -> io::Result<Disk> {
        copy_dir(&self.dir, &dir, &mut |name, bytes| {
            if is_segment(name) { Ok(()) } else { std::fs::write(name, bytes) }
        })?;
        let objects = self.objects.after_power_cut(choose);
        Ok(Disk { dir, store: self.store, log: Witness::new(|_| {}), objects, watcher: None })
    }
}

/// Returns true for a file of the log, whose content follows from the medium.
fn is_segment(file: &Path) -> bool {
    file.file_stem().is_some_and(|stem| stem == "wal")
}

/// Reads the files of a directory and below, and passes each with its new place to `write`.
fn copy_dir(from: &Path, to: &Path, write: &mut dyn FnMut(&Path, &[u8]) -> io::Result<()>) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target, write)?;
        } else {
            write(&target, &std::fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
