//! What a host of a target keeps when a process ends, or its power is cut.

use nacre_store::meta::witness::Witness;
use nacre_store::object::block::device::MemoryDevice;
use nacre_store::object::file::memory::Tree;
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
}

impl Disk {
    pub(crate) fn new(dir: PathBuf, backend: Backend) -> Disk {
        let store = if backend == Backend::Records { "meta" } else { "index" };
        Disk { dir, store, log: Witness::new(|_| {}), objects: Objects::new(backend) }
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
        copy_dir(&self.dir, &dir)?;
        let objects = match &self.objects {
            Objects::Records => Objects::Records,
            Objects::Files(files) => Objects::Files(Arc::new(files.copy())),
            Objects::Device(device) => Objects::Device(Arc::new(device.copy())),
        };
        Ok(Disk { dir, store: self.store, log: Witness::of_medium(self.log.medium()), objects })
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
        copy_dir(&self.dir, &dir)?;
        let objects = match &self.objects {
            Objects::Records => Objects::Records,
            Objects::Files(files) => Objects::Files(Arc::new(files.after_power_cut(choose))),
            Objects::Device(device) => Objects::Device(Arc::new(device.after_power_cut(choose))),
        };
        let disk = Disk { dir, store: self.store, log: Witness::new(|_| {}), objects };
        self.log.medium().cut(&disk.store_dir(), choose)?;
        Ok(disk)
    }
}

/// Copies a directory with everything below it.
fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
