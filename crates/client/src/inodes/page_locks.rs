//! Requests about many inodes while there are other clients: the replies are pages whose entries have locks.
//!
//! This client caches such a page, the kernel does not: a name that the kernel takes from a listing gets the
//! epoch of the moment at which it is taken, so one whose lock was revoked in between would stay. A lookup
//! reads the epoch before its request. So the kernel gets names only, and the lookups that follow are
//! answered here ([`Inodes::found_under`]).

use crate::inodes::{Found, Inodes, Keep};
use crate::locks::inodes::{Granted, InodeSpace};
use crate::node::node_of;
use crate::open_dir::origin::EntryLocks;
use crate::validity::Validity;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid};
use nacre_wire::mds::{DirPage, LockRange};
use std::sync::Arc;

/// Handles reserved for the locks of one page; those that the reply does not use are released when this is
/// dropped.
pub(crate) struct PageHandles {
    space: Option<Arc<InodeSpace>>,
    range: LockRange,
}

impl Drop for PageHandles {
    fn drop(&mut self) {
        if let Some(space) = &self.space {
            space.forget(self.range.first);
        }
    }
}

impl PageHandles {
    /// Returns the handles for the request.
    pub fn range(&self) -> LockRange {
        self.range
    }

    /// Adopts the locks in the reply. Those that were revoked on the way, and those that the MDT took for
    /// held and are not held any more, prove unusable when the entries are used.
    pub fn adopt(&self, directory: Option<Fid>, page: &DirPage) {
        let Some(space) = &self.space else { return };
        let directory = directory.map(|fid| Granted { fid, handle: page.lock });
        let inodes = page.entries().map(|entry| Granted { fid: entry.fid, handle: entry.lock });
        space.adopt_page(self.range, directory, inodes);
    }
}

impl Inodes {
    /// True if listings and batches of names request locks.
    pub(crate) fn asks_with_page_locks(&self) -> bool {
        !self.lease.exclusive() && !self.requests.is_embedded() && self.tunables.statahead_max() > 0
    }

    /// Reserves handles for a request to the MDT of `fid` whose reply has at most this many entries; none
    /// while this client is the only one.
    pub(crate) fn page_handles(&self, fid: Fid, entries: usize) -> PageHandles {
        if !self.asks_with_page_locks() {
            return PageHandles { space: None, range: LockRange::default() };
        }
        let space = self.lease.inodes(fid);
        let range = space.reserve_page(entries as u32 + 1);
        PageHandles { space: Some(space), range }
    }

    /// Returns a name of a page that everybody may search, if the locks on it are still held; counts as a
    /// lookup.
    ///
    /// # Errors
    /// Those of requests that complete the attributes.
    pub(crate) fn found_under(&self, attr: Attr, locks: &EntryLocks) -> FailureResult<Option<Found>> {
        let node = node_of(attr.fid)?;
        let validity = Validity::Lock(locks.inode);
        let remember = || self.nodes.remember(node, &attr, validity, 1);
        if !self.lease.inodes(attr.fid).confirm(locks.inode, remember) {
            return Ok(None);
        }
        if !self.lease.inodes(locks.home).keep_name(locks.names) {
            self.nodes.forget(node, 1);
            return Ok(None);
        }
        let completed = self.sizes.complete_attr_to_keep(attr, 0);
        let (attr, is_sure) = completed.inspect_err(|_| self.nodes.forget(node, 1))?;
        // Attributes of a directory with shards change without its own lock.
        let keep = Keep { name: true, attr: is_sure && !attr.flags.contains(AttrFlags::STRIPED) };
        Ok(Some(Found { node, attr, public: true, keep }))
    }
}
