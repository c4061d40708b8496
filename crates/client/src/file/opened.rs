//! Bytes of a small file that came with the answer to its open, see [`crate::data::opened`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the [module documentation](self).
pub(crate) struct Opened {
    pub bytes: Vec<u8>,
    /// Lease under which they were asked for.
    pub lease: u64,
    /// Changes of the file then.
    pub changes: u64,
    pub kept: Arc<AtomicU64>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes.len() as u64, Ordering::Relaxed);
    }
}
