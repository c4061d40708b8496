//! Listings of directories.

use crate::base::Base;
use crate::caller::Caller;
use crate::handles::HandleTable;
use crate::inodes::dot_lustre;
use crate::inodes::dot_lustre::virtual_attr;
use crate::inodes::root::soon;
use crate::inodes::{Inodes, Keep};
use crate::node::{NodeTable, node_of};
use crate::open_dir::OpenDir;
use crate::open_dir::ahead::{Page, Wanted};
use crate::open_dir::merge::{Merge, room_of};
use crate::open_dir::origin::Origin;
use crate::pages::{ListedEntry, Pages};
use crate::requests::Requests;
use crate::shards::Shards;
use crate::statahead::Statahead;
use crate::tunables::Tunables;
use nacre_types::{AttrFlags, FailureResult, Fid, FileKind, Status, StatusResult, perm};
use nacre_wire::mds::{DirEntry, DirPage, MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Position behind `.`.
const AFTER_DOT: u64 = 1;
/// Position behind `..`, where the MDT's own positions begin.
const AFTER_DOT_DOT: u64 = 2;

/// Source of the names of a listing.
enum Source {
    Page(Page),
    /// The merged listings of the shards.
    Merge(Box<Merge>),
}

/// Open directories and their listings.
pub struct Listings {
    requests: Arc<Requests>,
    shards: Arc<Shards>,
    inodes: Arc<Inodes>,
    pages: Arc<Pages>,
    statahead: Arc<Statahead>,
    nodes: Arc<NodeTable>,
    handles: Arc<HandleTable>,
    tunables: Arc<Tunables>,
}

impl Listings {
    pub(crate) fn new(
        base: &Base,
        inodes: Arc<Inodes>,
        pages: Arc<Pages>,
        statahead: Arc<Statahead>,
    ) -> Listings {
        Listings {
            requests: base.requests.clone(),
            shards: base.shards.clone(),
            inodes,
            pages,
            statahead,
            nodes: base.nodes.clone(),
            handles: base.handles.clone(),
            tunables: base.tunables.clone(),
        }
    }

    /// Opens a directory for listing. The root is also opened while its MDT is unreachable: requests about
    /// the file system use it. [`Listings::check_listing`] checks later whether it may be listed.
    ///
    /// # Errors
    /// `EACCES` without read permission; `ENOTDIR`.
    pub fn opendir(&self, caller: &Caller, fid: Fid) -> StatusResult<u64> {
        self.requests.faults.edge("opendir", || {
            if self.is_listable(fid) {
                return Ok(self.insert_dir(caller, fid));
            }
            if let Some(verdict) = dot_lustre::access(caller, fid, perm::READ) {
                return Ok(verdict.map(|()| self.insert_dir(caller, fid))?);
            }
            let ask = || self.requests.call(caller, fid, &MdsRequest::Access { fid, mask: perm::READ });
            let attr = match if fid == self.inodes.root.fid() { soon(ask) } else { ask() } {
                Ok(answer) => {
                    let lease = answer.lease;
                    let attr = answer.attr()?;
                    self.nodes.learn(&attr, lease);
                    attr
                }
                Err(failure) if failure == Status::ETIMEDOUT && fid == self.inodes.root.fid() => {
                    let dir = OpenDir::new(fid, None, *caller);
                    dir.unchecked.store(true, Ordering::Release);
                    return Ok(self.insert_open_dir(dir));
                }
                Err(failure) => self.nodes.access_removed(caller, fid, perm::READ, failure)?,
            };
            if !attr.is_dir() {
                return Err(Status::ENOTDIR.into());
            }
            Ok(self.insert_dir(caller, fid))
        })
    }

    fn insert_dir(&self, caller: &Caller, fid: Fid) -> u64 {
        self.insert_open_dir(OpenDir::new(fid, None, *caller))
    }

    fn insert_open_dir(&self, dir: OpenDir) -> u64 {
        let handle = self.handles.fresh().0;
        self.handles.insert_dir(handle, Arc::new(dir));
        handle
    }

    /// True if everybody may list the directory, as far as is known: then no request to the MDT is needed, so
    /// that programs that only want the file system's statistics continue while it is unreachable.
    fn is_listable(&self, fid: Fid) -> bool {
        self.inodes.hints(fid).is_some_and(|hints| hints.listable)
    }

    /// Lists names behind position `offset` (0: the beginning), about `size` bytes of them. `take` returns
    /// whether it took an entry; after the first refusal the listing stops. With `plus` entries carry
    /// attributes, unless `statahead_max` is 0.
    ///
    /// A directory that was removed while open has no names left, not even `.` and `..`.
    ///
    /// The next page is fetched meanwhile ([`ahead`]); any page is valid when it is handed out, so attributes
    /// in it may be cached.
    ///
    /// # Errors
    /// `EBADF`; the error of the MDT; `EINTR`.
    pub fn readdir(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> StatusResult<()> {
        self.requests.faults.edge("readdir", || {
            let dir = self.handles.dir(handle)?;
            let fid = dir.fid;
            if virtual_attr(fid).is_some() {
                return Ok(dot_lustre::list(&self.inodes, fid, offset, take)?);
            }
            if self.nodes.removed(fid.inode_number()).is_some() {
                return Ok(());
            }
            if offset < AFTER_DOT_DOT && !self.list_dots(fid, offset, take)? {
                return Ok(());
            }
            let cookie = if offset <= AFTER_DOT_DOT { 0 } else { offset };
            let plus = plus && self.tunables.statahead_max() > 0;
            let wanted = Wanted { cookie, max_bytes: size, plus };
            let page = match self.source(&dir, &wanted)? {
                Source::Page(page) => page,
                Source::Merge(merge) => {
                    let dots = if offset < AFTER_DOT_DOT { room_of(1, plus) + room_of(2, plus) } else { 0 };
                    let room = (size as usize).saturating_sub(dots);
                    return self.list_merged(&dir, *merge, &wanted, room, take);
                }
            };
            if self.notes_names(plus, page.lease) {
                let mut listed =
                    self.statahead.listing(fid, page.lease, cookie, self.tunables.statahead_max());
                let DirPage { lock: names, public, .. } = page.page;
                let origin = Origin { home: fid, names, changes: page.changes, public };
                page.page.entries().for_each(|entry| listed.note(&entry, &origin));
                self.statahead.on_listed(listed);
            }
            let (next, whole) = self.list_page(&page.page, page.lease, plus, take)?;
            if let Some(cookie) = next {
                self.pages.page_handed_out(&dir, &page, Wanted { cookie, ..wanted }, whole);
            }
            Ok(())
        })
    }

    /// True if names that are listed without attributes are recorded for later lookups of the attributes.
    fn notes_names(&self, plus: bool, lease: u64) -> bool {
        let with_attributes = plus && lease != 0;
        !with_attributes && self.tunables.statahead_max() > 0 && !self.requests.is_embedded()
    }

    /// Returns the source of the next names of a directory, with shards or without.
    fn source(&self, dir: &OpenDir, wanted: &Wanted) -> FailureResult<Source> {
        self.shards.at_home(dir.fid, b"", |_| match self.shards.lists.get(dir.fid) {
            Some(layout) if layout.change().is_some() => {
                self.pages.moving_page(&dir.opener, &layout, wanted).map(Source::Page)
            }
            Some(layout) => Ok(Source::Merge(Box::new(self.pages.merge(dir, &layout, wanted)?))),
            None => self.pages.dir_page(dir, wanted).map(Source::Page),
        })
    }

    /// Hands a page out. Returns the position behind the last entry that was taken, and whether all were.
    fn list_page(
        &self,
        page: &DirPage,
        lease: u64,
        plus: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> FailureResult<(Option<u64>, bool)> {
        let mut next = None;
        for entry in page.entries() {
            let entry = DirEntry { attr: entry.attr.filter(|_| plus), ..entry };
            if !self.list_entry(&entry, lease, page.public, take)? {
                return Ok((next, false));
            }
            next = Some(entry.cookie);
        }
        Ok((next, true))
    }

    /// Hands an entry out, with its attributes if they are exact; false if it was not taken.
    #[inline]
    fn list_entry(
        &self,
        entry: &DirEntry<'_>,
        lease: u64,
        public: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> FailureResult<bool> {
        let node = node_of(entry.fid)?;
        // The attributes of a striped directory need those of its shards: a request of its own fetches them.
        // Attributes under a lock serve lookups.
        let attr = entry.attr.filter(|attr| !attr.flags.contains(AttrFlags::STRIPED) && entry.lock.0 == 0);
        let attr = attr.and_then(|attr| self.pages.sure_attr(attr, lease));
        let listed = ListedEntry {
            name: entry.name,
            node,
            kind: entry.kind,
            next: entry.cookie,
            attr,
            public,
            keep: self.inodes.keep_of(lease),
        };
        // Counted first: once the entry is taken, the kernel may forget it at any time.
        if let Some(attr) = &attr {
            self.nodes.remember(node, attr, lease.into(), 1);
        }
        let taken = take(&listed);
        if !taken && attr.is_some() {
            self.nodes.forget(node, 1);
        }
        Ok(taken)
    }

    /// Lists `.` and `..`; false if the receiver has no space left.
    fn list_dots(
        &self,
        fid: Fid,
        offset: u64,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> FailureResult<bool> {
        let mut dot = ListedEntry {
            name: b".",
            node: node_of(fid)?,
            kind: FileKind::Directory,
            next: AFTER_DOT,
            attr: None,
            public: false,
            keep: Keep::default(),
        };
        if offset == 0 && !take(&dot) {
            return Ok(false);
        }
        let parent = self.requests.call_system(fid, &MdsRequest::Lookup { parent: fid, name: b".." })?;
        match parent.reply {
            MdsReply::Entry { attr: Some(attr), .. } => dot.node = node_of(attr.fid)?,
            MdsReply::Remote { fid, .. } => dot.node = node_of(fid)?,
            _ => {}
        }
        (dot.name, dot.next) = (b"..", AFTER_DOT_DOT);
        Ok(take(&dot))
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: u64) {
        self.handles.remove_dir(handle);
    }

    /// Makes the changes of this client in a directory durable.
    ///
    /// # Errors
    /// `EBADF`; the error of the MDT.
    pub fn fsyncdir(&self, handle: u64) -> StatusResult<()> {
        self.shards.sync_namespace(self.handles.dir(handle)?.fid)
    }

    /// Hands names out until no more are taken, and keeps the rest for the next call.
    ///
    /// # Errors
    /// The errors of MDTs; `EINTR`; `EINVAL` for more names of one position than fit. Never after a name was
    /// taken: the next call reports the error.
    fn list_merged(
        &self,
        dir: &OpenDir,
        mut merge: Merge,
        wanted: &Wanted,
        room: usize,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> FailureResult<()> {
        let lease = merge.lease;
        let kept_max = self.tunables.statahead_max();
        let noted = || self.statahead.listing(dir.fid, lease, wanted.cookie, kept_max);
        let mut noted = self.notes_names(wanted.plus, lease).then(noted);
        let mut list = |entry: &DirEntry<'_>, origin: &Origin| {
            let taken = self.list_entry(entry, lease, origin.public, take)?;
            if let Some(noted) = noted.as_mut().filter(|_| taken) {
                noted.note(entry, origin);
            }
            Ok(taken)
        };
        let outcome = self.pages.hand_out(&mut merge, wanted, room, &mut list);
        noted.into_iter().for_each(|noted| self.statahead.on_listed(noted));
        match outcome {
            Ok(()) => *dir.merge.lock() = Some(merge),
            Err(_) if merge.cookie > wanted.cookie => {}
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Checks whether a directory may be listed that was opened while its MDT was unreachable. To be called
    /// before names of it are handed out.
    ///
    /// # Errors
    /// `EACCES` without read permission; the error of the MDT.
    pub fn check_listing(&self, caller: &Caller, handle: u64) -> StatusResult<()> {
        self.requests.faults.edge("check listing", || {
            if let Ok(dir) = self.handles.dir(handle)
                && dir.is_unchecked()
            {
                self.requests.call(
                    caller,
                    dir.fid,
                    &MdsRequest::Access { fid: dir.fid, mask: perm::READ },
                )?;
                dir.was_checked();
            }
            Ok(())
        })
    }
}
