//! Disk space set aside, given up when the disk is full so that a checkpoint, and with it deletes, can still succeed.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// File name inside the store's directory.
pub(crate) const RESERVE_NAME: &str = "reserve";

/// The reserve of one store.
pub(crate) struct Reserve {
    path: PathBuf,
    bytes: u64,
    is_released: AtomicBool,
}

impl Reserve {
    /// Takes the reserve; if the disk has no room for it, begins in the released state.
    pub(crate) fn open(dir: &Path, bytes: u64) -> Self {
        let reserve = Reserve { path: dir.join(RESERVE_NAME), bytes, is_released: AtomicBool::new(true) };
        reserve.restore();
        reserve
    }

    /// Whether the disk was found full and the space is given up.
    pub(crate) fn is_released(&self) -> bool {
        self.is_released.load(Ordering::Relaxed)
    }

    /// Gives the space to whoever needs it now.
    pub(crate) fn release(&self) {
        if !self.is_released.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the disk of the metadata store is full; giving up the reserve {}",
                self.path.display()
            );
        }
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }

    /// Tries to set the space aside again, leaving as much again free, so that full and not full do not alternate.
    pub(crate) fn restore(&self) {
        if self.bytes > 0 && self.allocate(self.bytes * 2).and_then(|()| self.allocate(self.bytes)).is_err() {
            self.release();
            return;
        }
        self.is_released.store(false, Ordering::Relaxed);
    }

    fn allocate(&self, bytes: u64) -> std::io::Result<()> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        if file.metadata()?.len() > bytes {
            return file.set_len(bytes);
        }
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        Ok(())
    }
}
