//! Losses that no descriptor has reported.
//!
//! Held-back data is written when its file is closed, and `close` has returned by then. If that fails, the
//! next open of the file by this mount reports it, at its first `fsync` or `close`: Linux's rule for
//! write-back errors that no descriptor has seen.

use nacre_env::sync::Mutex;
use nacre_types::Status;
use std::collections::BTreeMap;

/// Files that are recorded; losses of further files are only logged.
const FILES_MAX: usize = 1024;

/// Files without an open that have lost data, by node.
#[derive(Default)]
pub(crate) struct Untold {
    files: Mutex<BTreeMap<u64, Status>>,
}

impl Untold {
    /// Records the last loss that no open has reported.
    pub fn keep(&self, node: u64, status: Status) {
        let mut files = self.files.lock();
        if files.len() < FILES_MAX || files.contains_key(&node) {
            files.insert(node, status);
        }
    }

    /// Takes the loss that an open of a file is to report; it is reported once.
    pub fn take(&self, node: u64) -> Option<Status> {
        self.files.lock().remove(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_told_once() {
        let untold = Untold::default();
        (0..2 * FILES_MAX as u64).for_each(|node| untold.keep(node, Status::EIO));
        untold.keep(0, Status::ENOSPC);
        assert_eq!((untold.take(0), untold.take(0)), (Some(Status::ENOSPC), None));
        assert_eq!((untold.take(1), untold.take(FILES_MAX as u64)), (Some(Status::EIO), None));
    }
}
