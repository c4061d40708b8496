//! Notifications to the kernel: invalidation of its caches, and others.

use std::io;
use std::sync::{Arc, Weak};

use crate::abi::*;
use crate::device::Device;
use rustix::io::Errno;

/// Sends notifications of one mount. Cheap to clone; outlives the session, after which every call fails with
/// ENOTCONN.
///
/// # From where to call
///
/// Invalidations wait for locks that a request on the same inode holds in the kernel. Therefore
///
/// - [`Notifier::inval_inode`], [`Notifier::store`] and [`Notifier::retrieve`] must not be called by a thread
///   that is serving a READ, WRITE, SETATTR or other data request of that inode (it waits for pages which
///   only the answer unlocks), nor may the answer of such a request depend on the return of such a call;
/// - [`Notifier::inval_entry`] and [`Notifier::delete`] must not be called by a thread that is serving a
///   request on that directory (LOOKUP, CREATE, UNLINK, RENAME, ...): it waits for the directory's lock;
/// - [`Notifier::inc_epoch`] and [`Notifier::resend`] may be called from anywhere.
///
/// Use separate threads for calls that other clients cause (lock revocations), and do not make a request wait
/// for them.
///
/// ENOENT from the kernel means that the inode or name is not cached any more, which counts as success.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Weak<Device>,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>) -> Notifier {
        Notifier { device: Arc::downgrade(device) }
    }

    /// Drops attributes of `node`, and cached data in `[offset, offset + len)`; `len` 0: to the end; a
    /// negative `offset`: attributes only. Dirty pages of the range are written out first.
    pub fn inval_inode(&self, node: u64, offset: i64, len: i64) -> io::Result<()> {
        let out = NotifyInvalInodeOut { ino: node, off: offset, len };
        self.send(notify_code::INVAL_INODE, &[out.as_bytes()])
    }

    /// Drops the name from the cache (with everything below it, as far as unused). `expire_only`: keep it,
    /// but look it up again before the next use; cheaper, and never fails for names in use. Kernels before
    /// 6.2 treat that as a drop.
    pub fn inval_entry(&self, parent: u64, name: &[u8], expire_only: bool) -> io::Result<()> {
        let flags = if expire_only { EXPIRE_ONLY } else { 0 };
        let out = NotifyInvalEntryOut { parent, namelen: name_length(name)?, flags };
        self.send(notify_code::INVAL_ENTRY, &[out.as_bytes(), name, b"\0"])
    }

    /// Expires all cached names, which are looked up again before their next use (Linux 6.16; EINVAL before).
    pub fn inc_epoch(&self) -> io::Result<()> {
        self.send(notify_code::INC_EPOCH, &[])
    }

    /// Reports that another client removed `name`, which belonged to `child`: drops it and notifies watchers
    /// (inotify).
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> io::Result<()> {
        let out = NotifyDeleteOut { parent, child, namelen: name_length(name)?, padding: 0 };
        self.send(notify_code::DELETE, &[out.as_bytes(), name, b"\0"])
    }

    /// Puts `data` into the page cache at `offset`; if it ends after the end of the file, grows the kernel's
    /// size of the file.
    pub fn store(&self, node: u64, offset: u64, data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len()).map_err(|_| io::Error::from(Errno::INVAL))?;
        let out = NotifyStoreOut { nodeid: node, offset, size, padding: 0 };
        self.send(notify_code::STORE, &[out.as_bytes(), data])
    }

    /// Requests `size` bytes of cached data; they arrive as a `NotifyReply` request whose number is `unique`:
    /// even, not 0 and below 2^63.
    pub fn retrieve(&self, unique: u64, node: u64, offset: u64, size: u32) -> io::Result<()> {
        if unique == 0 || unique % 2 == 1 || unique >= 1 << 63 {
            return Err(io::Error::from(Errno::INVAL));
        }
        let out = NotifyRetrieveOut { notify_unique: unique, nodeid: node, offset, size, padding: 0 };
        self.send(notify_code::RETRIEVE, &[out.as_bytes()])
    }

    /// Drops those of `nodes` from the kernel's cache that are unused (Linux 6.18; EINVAL before). At most
    /// 1024.
    pub fn prune(&self, nodes: &[u64]) -> io::Result<()> {
        const NODES_MAX: usize = 1024;
        if nodes.is_empty() || nodes.len() > NODES_MAX {
            return Err(io::Error::from(Errno::INVAL));
        }
        let out = NotifyPruneOut { count: nodes.len() as u32, ..NotifyPruneOut::default() };
        let mut ids = [0u8; NODES_MAX * 8];
        for (slot, node) in ids.chunks_exact_mut(8).zip(nodes) {
            slot.copy_from_slice(&node.to_ne_bytes());
        }
        self.send(notify_code::PRUNE, &[out.as_bytes(), &ids[..nodes.len() * 8]])
    }

    /// Requests a resend of every request that was read but not answered (Linux 6.9; EINVAL before).
    pub fn resend(&self) -> io::Result<()> {
        self.send(notify_code::RESEND, &[])
    }

    fn send(&self, code: i32, body: &[&[u8]]) -> io::Result<()> {
        let Some(device) = self.device.upgrade() else {
            return Err(io::Error::from(Errno::NOTCONN));
        };
        match device.send(code, 0, body) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(()),
            outcome => outcome,
        }
    }
}

fn name_length(name: &[u8]) -> io::Result<u32> {
    if name.is_empty() || name.len() > 1024 || name.contains(&0) {
        return Err(io::Error::from(Errno::INVAL));
    }
    Ok(name.len() as u32)
}
