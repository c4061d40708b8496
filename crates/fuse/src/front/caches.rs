//! The kernel's caches, as seen by the client.

use nacre_client::KernelCaches;
use nacre_types::Fid;
use rustix::io::Errno;

use crate::notify::Notifier;

/// Node id of the root of a mount in the kernel.
pub(super) const ROOT_NODE: u64 = 1;

/// The kernel's caches of a mount.
pub(super) struct Caches {
    notifier: Notifier,
    /// Node id of the directory that the kernel knows as the root.
    root: u64,
}

impl Caches {
    pub(super) fn new(notifier: Notifier, root: Option<Fid>) -> Caches {
        Caches { notifier, root: root.map_or(ROOT_NODE, |root| root.inode_number()) }
    }

    /// Invalidates an inode; returns false if the kernel does not know it: it has forgotten it, or has not
    /// seen it yet.
    fn invalidate(&self, node: u64, offset: i64, len: i64) -> bool {
        let node = if node == self.root { ROOT_NODE } else { node };
        match self.notifier.inval_inode(node, offset, len) {
            Ok(()) => true,
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => false,
            // The file system was unmounted.
            Err(error) => {
                log::debug!("node {node} could not be invalidated: {error}");
                true
            }
        }
    }
}

impl KernelCaches for Caches {
    fn expire_names(&self) {
        match self.notifier.inc_epoch() {
            Ok(()) => {}
            // Older kernels: names expire by their timeout.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => {}
            // The file system was unmounted, with all its names.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOTCONN) => {}
            Err(error) => log::warn!("the kernel did not drop cached names: {error}"),
        }
    }

    fn drop_inode(&self, node: u64) -> bool {
        self.invalidate(node, 0, 0)
    }

    fn drop_attributes(&self, node: u64) -> bool {
        // A negative offset spares the pages, which requests in flight may have locked.
        self.invalidate(node, -1, 0)
    }

    fn drop_data(&self, node: u64, offset: u64, len: u64) {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        // A page may be waiting for a read that another thread has to answer.
        nacre_env::blocking(|| self.invalidate(node, signed(offset), signed(len)));
    }
}
