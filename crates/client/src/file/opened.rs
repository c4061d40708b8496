//! Bytes of small files that came with the reply to their open.
//!
//! An MDT that holds a small file's data sends it along if the client is the only one. The bytes are true as
//! long as the same lease is in force and nothing was changed here: no file was opened for writing or
//! truncated between the request and the moment the open is entered ([`OpenedBytes::changes`]), and this file
//! was not changed since then.

use crate::file::FileState;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are kept for all opens together; files beyond that are read when programs ask. Guess: four
/// thousand small files.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Accounting of these bytes for all opens of a client.
#[derive(Default)]
pub(crate) struct OpenedBytes {
    /// Number of opens for writing and truncations of files.
    changes: AtomicU64,
    /// Bytes kept for all opens.
    kept: Arc<AtomicU64>,
}

/// Bytes that came with one open.
pub(crate) struct Opened {
    bytes: Vec<u8>,
    /// Lease under which they were requested.
    lease: u64,
    /// [`FileInner::changes`](crate::file::FileInner::changes) when the bytes were taken over.
    changes: u64,
    kept: Arc<AtomicU64>,
}

impl OpenedBytes {
    /// Records that a file is opened for writing or truncated.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number: between two equal ones no change of a file began here.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Takes over the bytes that came with an open of `file`, requested after `changes`, unless the file may
    /// have been changed since. The file is entered already, so that later changes are recorded there.
    pub fn keep(&self, file: &FileState, bytes: Vec<u8>, changes: u64, lease: u64) -> Option<Opened> {
        let of_file = file.lock().changes()?;
        let len = bytes.len() as u64;
        let fits = self.kept.load(Ordering::Relaxed) + len <= KEPT_BYTES_MAX;
        if !fits || self.changes() != changes {
            return None;
        }
        self.kept.fetch_add(len, Ordering::Relaxed);
        Some(Opened { bytes, lease, changes: of_file, kept: self.kept.clone() })
    }
}

impl Opened {
    /// Copies bytes, see [`OpenFile::reads_opened`](crate::file::OpenFile::reads_opened).
    pub fn read(&self, file: &FileState, lease: u64, at: u64, buffer: &mut [u8]) -> bool {
        if self.lease != lease || file.lock().changes() != Some(self.changes) {
            return false;
        }
        let found = usize::try_from(at).ok().and_then(|at| self.bytes.get(at..)?.get(..buffer.len()));
        found.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}
