//! Reserved disk space, released when the disk is full so that a checkpoint, and with it deletes, can still
//! succeed.

use nacre_env::clock::Instant;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nacre_env::sync::Mutex;

/// File name inside the store's directory.
pub(crate) const RESERVE_NAME: &str = "reserve";

/// Least time between two checks whether others have freed space, made on behalf of refused commits.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The reserve of one store, and with it the decision whether the disk counts as full.
///
/// Space is regained in two ways: others free some, and the file is allocated again; or deletes free pages
/// inside the base, whose file never shrinks, and those pages serve as the reserve.
pub(crate) struct Reserve {
    path: PathBuf,
    is_full: AtomicBool,
    state: Mutex<State>,
}

struct State {
    bytes: u64,
    is_held: bool,
    /// A log message has reported that the disk is full.
    has_told: bool,
    looked_at: Instant,
}

impl Reserve {
    /// Allocates the reserve if the disk has space for it; `free_inside` as for [`Reserve::update`].
    pub(crate) fn open(dir: &Path, bytes: u64, free_inside: u64) -> Self {
        let state = Mutex::new(State { bytes, is_held: false, has_told: false, looked_at: Instant::now() });
        let reserve = Reserve { path: dir.join(RESERVE_NAME), is_full: AtomicBool::new(false), state };
        reserve.update(free_inside);
        reserve
    }

    /// Whether only batches that free space are accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Returns the bytes that free pages of the base have to provide, as the disk had no space for the
    /// reserve.
    pub(crate) fn missing(&self) -> u64 {
        let state = self.state.lock();
        if state.is_held { 0 } else { state.bytes }
    }

    /// Releases the space, on a full disk, to the checkpoint that needs it.
    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        if !self.is_full.swap(true, Ordering::Relaxed) {
            log::warn!(
                "the disk of the metadata store is full; giving up the reserve {}",
                self.path.display()
            );
        }
        self.remove(&mut state);
    }

    fn remove(&self, state: &mut State) {
        state.is_held = false;
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            log::warn!("cannot remove {}: {error}", self.path.display());
        }
    }

    /// Decides again, given the bytes of free pages in the base. Called after each checkpoint.
    pub(crate) fn update(&self, free_inside: u64) {
        let mut state = self.state.lock();
        state.looked_at = Instant::now();
        if state.is_held {
            return;
        }
        state.is_held = self.take(state.bytes).is_ok();
        if !state.is_held {
            self.remove(&mut state);
        }
        let needed = state.bytes * if self.is_full() { 2 } else { 1 };
        let is_full = !state.is_held && free_inside < needed;
        let was_full = self.is_full.swap(is_full, Ordering::Relaxed);
        if is_full && !std::mem::replace(&mut state.has_told, true) {
            log::warn!(
                "{}: its file system is full, and only files can be removed: free {} MiB there",
                self.path.parent().unwrap_or(&self.path).display(),
                (state.bytes * 2).div_ceil(1 << 20)
            );
        } else if !is_full && was_full {
            state.has_told = false;
            log::info!("{}: there is space again", self.path.parent().unwrap_or(&self.path).display());
        }
    }

    /// Enlarges the reserve, for more changes that may have to move to the base. False if the disk has no
    /// space for it: the reserve keeps its size.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        if bytes <= state.bytes {
            return true;
        }
        if !state.is_held {
            return false;
        }
        if let Err(error) = self.take(bytes) {
            log::debug!("{} does not grow: {error}", self.path.display());
            state.is_held = self.allocate(state.bytes).is_ok();
            return false;
        }
        state.bytes = bytes;
        true
    }

    /// Twice the space must be free at first, so that the state does not alternate between full and not full.
    fn take(&self, bytes: u64) -> io::Result<()> {
        self.allocate(bytes * 2).and_then(|()| self.allocate(bytes))
    }

    /// Whether another check on behalf of a refused commit is due.
    pub(crate) fn is_look_due(&self) -> bool {
        self.state.lock().looked_at.elapsed() >= RETRY_INTERVAL
    }

    fn allocate(&self, bytes: u64) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(0o600).open(&self.path)?;
        if file.metadata()?.len() > bytes {
            return file.set_len(bytes);
        }
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
        Ok(())
    }
}
