//! Questions about many inodes beside other clients: the answers come as pages whose entries have locks.
//!
//! What such a page says is kept by this client, not by the kernel: a name that the kernel takes out of a listing gets the epoch
//! of the moment in which it is taken, so one whose lock was called back meanwhile would stay. A lookup reads the epoch before it
//! asks. So names go to the kernel alone, and the lookups that follow are answered here ([`Inodes::found_under`]).

use crate::inodes::{Found, Inodes, Keep};
use crate::locks::inodes::{Granted, InodeSpace};
use crate::node::node_of;
use crate::open_dir::origin::EntryLocks;
use crate::warrant::Warrant;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid};
use nacre_wire::mds::{DirPage, LockRange};
use std::sync::Arc;

/// Handles for the locks of one page; what the answer does not bring is given back when this goes.
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
    /// For the request.
    pub fn range(&self) -> LockRange {
        self.range
    }

    /// Makes what the answer brought locks of this client. Those that were called back on the way, or that it was said to have
    /// and has not any more, are found not to be usable when the entries are.
    pub fn adopt(&self, directory: Option<Fid>, page: &DirPage) {
        let Some(space) = &self.space else { return };
        let directory = directory.map(|fid| Granted { fid, handle: page.lock });
        let inodes = page.entries().map(|entry| Granted { fid: entry.fid, handle: entry.lock });
        space.adopt_page(self.range, directory, inodes);
    }
}

impl Inodes {
    /// True if listings and batches of names ask for locks.
    pub(crate) fn asks_with_page_locks(&self) -> bool {
        !self.lease.exclusive() && !self.requests.is_embedded() && self.tunables.statahead_max() > 0
    }

    /// Handles for a request to the MDT of `fid` whose answer has so many entries at most; none while this client is alone.
    pub(crate) fn page_handles(&self, fid: Fid, entries: usize) -> PageHandles {
        if !self.asks_with_page_locks() {
            return PageHandles { space: None, range: LockRange::default() };
        }
        let space = self.lease.inodes(fid);
        let range = space.reserve_page(entries as u32 + 1);
        PageHandles { space: Some(space), range }
    }

    /// A name of a page that everybody may search, if the locks on it are still there; counts as a lookup.
    ///
    /// # Errors
    /// What completing the attributes answers.
    pub(crate) fn found_under(&self, attr: Attr, locks: &EntryLocks) -> FailureResult<Option<Found>> {
        let node = node_of(attr.fid)?;
        let warrant = Warrant::Lock(locks.inode);
        let remember = || self.nodes.remember(node, &attr, warrant, 1);
        if !self.lease.inodes(attr.fid).confirm(locks.inode, remember) {
            return Ok(None);
        }
        if !self.lease.inodes(locks.home).keep_name(locks.names) {
            self.nodes.forget(node, 1);
            return Ok(None);
        }
        let completed = self.sizes.complete_attr_to_keep(attr, 0);
        let (attr, is_sure) = completed.inspect_err(|_| self.nodes.forget(node, 1))?;
        // Those of a directory with shards change without its own lock.
        let keep = Keep { name: true, attr: is_sure && !attr.flags.contains(AttrFlags::STRIPED) };
        Ok(Some(Found { node, attr, public: true, keep }))
    }
}
