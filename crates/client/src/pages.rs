//! Pages of directories: fetched, fetched ahead, and completed with attributes from other MDTs.

pub(crate) mod merge;
pub(crate) mod scan;

use crate::base::Base;
use crate::inodes::{Inodes, Keep};
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::open_dir::OpenDir;
use crate::open_dir::ahead::{Page, Place, Wanted};
use crate::requests::Requests;
use crate::shards::Shards;
use crate::sizes::Sizes;
use crate::tasks::Tasks;
use crate::tunables::Tunables;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid, FileKind, SizeSource, Status};
use nacre_wire::dir::{ATTR_BYTES, LOCK_BYTES};
use nacre_wire::mds::{MdsReply, MdsRequest};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// One name of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedEntry<'a> {
    /// The name; `.` and `..` come first.
    pub name: &'a [u8],
    /// Node id of the inode, which is its inode number too.
    pub node: u64,
    /// Kind of the inode.
    pub kind: FileKind,
    /// Position at which the listing continues.
    pub next: u64,
    /// Attributes, if they were requested and are exact. An entry with attributes that the receiver takes
    /// counts as one lookup of its node.
    pub attr: Option<Attr>,
    /// True if everybody may search the directory.
    pub public: bool,
    /// What may be cached until it is revoked.
    pub keep: Keep,
}

/// Pages of directories: fetched, merged from shards, completed with attributes of other MDTs.
pub struct Pages {
    requests: Arc<Requests>,
    shards: Arc<Shards>,
    sizes: Arc<Sizes>,
    inodes: Arc<Inodes>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    tunables: Arc<Tunables>,
    tasks: Arc<Tasks>,
    /// Number of pages that are fetched ahead.
    places: Arc<AtomicUsize>,
    /// Handle to this, for pages that other threads fetch.
    me: Weak<Pages>,
}

impl Pages {
    pub(crate) fn new(base: &Base, sizes: Arc<Sizes>, inodes: Arc<Inodes>) -> Arc<Pages> {
        Arc::new_cyclic(|me| Pages {
            requests: base.requests.clone(),
            shards: base.shards.clone(),
            sizes,
            inodes,
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            tunables: base.tunables.clone(),
            tasks: base.tasks.clone(),
            places: Arc::default(),
            me: me.clone(),
        })
    }

    /// Returns attributes of a listed file, unless they would need a request to its objects for each file.
    pub(crate) fn sure_attr(&self, attr: Attr, lease: u64) -> Option<Attr> {
        let is_alone = !attr.flags.contains(AttrFlags::STRIPED);
        if is_alone
            && attr.size_source == SizeSource::Exact
            && self.nodes.file(attr.fid.inode_number()).is_none()
        {
            return Some(attr);
        }
        if attr.size_source == SizeSource::Objects && !self.lease.exclusive() {
            return None;
        }
        self.sizes.complete_attr_to_keep(attr, lease).ok().and_then(|(attr, is_sure)| is_sure.then_some(attr))
    }

    /// Returns a page of a directory: one that was fetched ahead, if it is still true, or else the MDT's.
    ///
    /// # Errors
    /// The error of the MDT; `EINTR`.
    pub(super) fn dir_page(&self, dir: &OpenDir, wanted: &Wanted) -> FailureResult<Page> {
        if let Some(page) = dir.ahead.take(wanted)?
            && self.is_true(dir.fid, &page)
        {
            return Ok(page);
        }
        self.fetch_page(dir, wanted)
    }

    fn is_true(&self, directory: Fid, page: &Page) -> bool {
        let nobody_else = match page.lease {
            0 => self.lease.inodes(directory).is_usable(page.page.lock),
            lease => lease == self.lease.number(),
        };
        nobody_else && page.changes == self.requests.changes.load(Ordering::Acquire)
    }

    fn fetch_page(&self, dir: &OpenDir, wanted: &Wanted) -> FailureResult<Page> {
        let changes = self.requests.changes.load(Ordering::Acquire);
        let Wanted { cookie, max_bytes, plus } = *wanted;
        let entries = if plus { max_bytes as usize / ENTRY_BYTES_MIN } else { 0 };
        let handles = self.inodes.page_handles(dir.fid, entries);
        let request = MdsRequest::ReadDir { fid: dir.fid, cookie, max_bytes, plus, locks: handles.range() };
        let answer = self.requests.call(&dir.opener, dir.fid, &request)?;
        let lease = answer.lease;
        let page = match (answer.reply, dir.version) {
            (MdsReply::Directory(page), None) => page,
            (MdsReply::Shard { page, version, .. }, Some(expected)) if version == expected => page,
            // The shard is in another list than the known one, or in none.
            (MdsReply::Directory(_) | MdsReply::Shard { .. }, _) => return Err(Status::WRONG_SHARD.into()),
            _ => return Err(Status::EPROTO.into()),
        };
        handles.adopt(Some(dir.fid), &page);
        let page = if plus { self.with_attributes(page, dir.fid, lease)? } else { page };
        Ok(Page { page, lease, changes })
    }

    /// Handles that `page` was handed out up to `next`, all of it if `whole`: fetches the page that will be
    /// requested next.
    pub(super) fn page_handed_out(&self, dir: &Arc<OpenDir>, page: &Page, next: Wanted, whole: bool) {
        if !page.can_be_kept() || self.requests.is_embedded() || self.tunables.statahead_max() == 0 {
            return;
        }
        if whole && page.page.end {
            return dir.ahead.note_end(next, page);
        }
        if self.shards.lists.get(dir.fid).is_none() {
            self.fetch_ahead(dir, next);
        }
    }

    /// Fetches a page on another thread.
    pub(super) fn fetch_ahead(&self, dir: &Arc<OpenDir>, next: Wanted) {
        if self.requests.is_embedded() || self.tunables.statahead_max() == 0 {
            return;
        }
        let Some(place) = Place::take(&self.places) else { return };
        if !dir.ahead.queue(next, place) {
            return;
        }
        let (me, dir) = (self.me.clone(), dir.clone());
        self.tasks.submit(move || {
            let Some(pages) = me.upgrade() else { return };
            dir.ahead.serve(|wanted| pages.fetch_page(&dir, wanted).ok().filter(Page::can_be_kept));
        });
    }
}

/// Bytes of the shortest entry with attributes and a lock.
const ENTRY_BYTES_MIN: usize = 28 + 1 + ATTR_BYTES + LOCK_BYTES;
