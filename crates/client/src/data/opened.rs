//! Bytes of small files that came with the answer to their open.
//!
//! A metadata server that holds a small file's data sends it along, if the client is the only one. The bytes are true as long as the
//! same lease is in force and nothing was changed here: no open for writing or cut of any file since the question was asked, until the
//! open is entered ([`Data::data_changes`](crate::data::Data)), and no change of this file since then.

use crate::data::Data;
use crate::file::opened::Opened;
use crate::file::{FileState, OpenFile};
use std::sync::atomic::Ordering;

/// Bytes that are kept for all opens together; what is more is read when it is asked for. Guess: four thousand small files.
const KEPT_BYTES_MAX: u64 = 64 << 20;

impl Data {
    /// Takes over what came with an open of `file`, unless it may have been changed since. The file is entered already, so that
    /// later changes are noted there.
    pub(crate) fn keep_opened(
        &self,
        file: &FileState,
        (bytes, before): (Vec<u8>, u64),
        lease: u64,
    ) -> Option<Opened> {
        let changes = file.lock().changes()?;
        let len = bytes.len() as u64;
        let fits = self.opened_bytes.load(Ordering::Relaxed) + len <= KEPT_BYTES_MAX;
        if !fits || self.data_changes.load(Ordering::Acquire) != before {
            return None;
        }
        self.opened_bytes.fetch_add(len, Ordering::Relaxed);
        Some(Opened { bytes, lease, changes, kept: self.opened_bytes.clone() })
    }

    /// Fills `buffer`, which lies before the end of the file, with what came with the open; false if that is not true any more. The
    /// caller holds the range.
    pub(crate) fn read_opened(&self, open: &OpenFile, at: u64, buffer: &mut [u8]) -> bool {
        let Some(opened) = &open.data else { return false };
        if opened.lease != self.lease.number() || open.file.lock().changes() != Some(opened.changes) {
            return false;
        }
        let found = usize::try_from(at).ok().and_then(|at| opened.bytes.get(at..)?.get(..buffer.len()));
        if let Some(bytes) = found {
            buffer.copy_from_slice(bytes);
        }
        found.is_some()
    }
}
