//! Directories read.

mod ahead;
mod merge;
mod scan;

use crate::caller::Caller;
use crate::client::Client;
use crate::node::node_of;
use crate::ops::dot_lustre::virtual_attr;
use crate::ops::namespace::Keep;
use crate::ops::statahead::Origin;
use ahead::{Page, PageAhead, Wanted};
use merge::{Merge, room_of};
use nacre_env::sync::Mutex;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, SizeSource, Status, StatusResult, perm};
use nacre_wire::mds::{DirEntry, DirPage, MdsReply, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Position behind `.`.
const AFTER_DOT: u64 = 1;
/// Position behind `..`, where the MDT's own positions begin.
const AFTER_DOT_DOT: u64 = 2;

/// An open directory.
pub(crate) struct OpenDir {
    /// Version of the list of shards that it is in, if it stands for a shard.
    version: Option<u32>,
    pub fid: Fid,
    /// Credentials of the open; an MDT that does not trust this client checks them again for each page.
    opener: Caller,
    ahead: PageAhead,
    /// Of a directory with shards.
    merge: Mutex<Option<Merge>>,
    /// Nobody knows yet whether it may be listed.
    unchecked: AtomicBool,
}

impl OpenDir {
    fn new(fid: Fid, version: Option<u32>, opener: Caller) -> OpenDir {
        let (ahead, merge) = (PageAhead::default(), Mutex::new(None));
        OpenDir { fid, version, opener, ahead, merge, unchecked: AtomicBool::new(false) }
    }

    pub fn is_unchecked(&self) -> bool {
        self.unchecked.load(Ordering::Acquire)
    }

    pub fn was_checked(&self) {
        self.unchecked.store(false, Ordering::Release);
    }
}

/// Where names come from.
enum Source {
    Page(Page),
    /// The shards.
    Merge(Box<Merge>),
}

/// One name of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedEntry<'a> {
    /// The name; `.` and `..` come first.
    pub name: &'a [u8],
    /// Node id of the inode, which is its inode number too.
    pub node: u64,
    /// Its kind.
    pub kind: FileKind,
    /// Position with which the listing goes on.
    pub next: u64,
    /// Attributes, if they were asked for and are known for sure. An entry with attributes that the receiver takes counts
    /// as one lookup of its node.
    pub attr: Option<Attr>,
    /// Everybody may search the directory.
    pub public: bool,
    /// What may be cached until it is called back.
    pub keep: Keep,
}

impl Client {
    /// Opens a directory for listing. The root is also opened while its MDT is away: what is asked about the file system goes that
    /// way. Whether it may be listed is then found out by [`Client::check_listing`].
    ///
    /// # Errors
    /// `EACCES` without read permission; `ENOTDIR`.
    pub fn opendir(&self, caller: &Caller, fid: Fid) -> StatusResult<u64> {
        if self.is_listable(fid) {
            return Ok(self.insert_dir(caller, fid));
        }
        if let Some(verdict) = self.access_virtual(caller, fid, perm::READ) {
            return verdict.map(|()| self.insert_dir(caller, fid));
        }
        let ask = || self.call(caller, fid, &MdsRequest::Access { fid, mask: perm::READ });
        let attr = match if fid == self.root() { self.soon(ask) } else { ask() } {
            Ok(answer) => {
                let lease = answer.lease;
                let attr = answer.attr()?;
                self.note(&attr, lease);
                attr
            }
            Err(Status::ETIMEDOUT) if fid == self.root() => {
                let dir = OpenDir::new(fid, None, *caller);
                dir.unchecked.store(true, Ordering::Release);
                return Ok(self.insert_open_dir(dir));
            }
            Err(status) => self.access_removed(caller, fid, perm::READ, status)?,
        };
        if !attr.is_dir() {
            return Err(Status::ENOTDIR);
        }
        Ok(self.insert_dir(caller, fid))
    }

    fn insert_dir(&self, caller: &Caller, fid: Fid) -> u64 {
        self.insert_open_dir(OpenDir::new(fid, None, *caller))
    }

    fn insert_open_dir(&self, dir: OpenDir) -> u64 {
        let handle = self.handles.fresh().0;
        self.handles.insert_dir(handle, Arc::new(dir));
        handle
    }

    /// True if everybody may list the directory, as far as is known: then the MDT need not be asked, which also lets
    /// programs that only want the file system's figures go on while it is away.
    fn is_listable(&self, fid: Fid) -> bool {
        self.hints(fid).is_some_and(|hints| hints.listable)
    }

    /// Lists names behind position `offset` (0: the beginning), about `size` bytes of them. `take` says whether it took an
    /// entry; after the first refusal the listing stops. With `plus` entries carry attributes,
    /// unless `statahead_max` is 0.
    ///
    /// A directory that was removed while open has no names left, `.` and `..` included.
    ///
    /// The next page is fetched meanwhile ([`ahead`]); any page is true when it is handed out, so attributes in it may be
    /// cached.
    ///
    /// # Errors
    /// `EBADF`; what the MDT answers; `EINTR`.
    pub fn readdir(
        &self,
        handle: u64,
        offset: u64,
        size: u32,
        plus: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> StatusResult<()> {
        let dir = self.handles.dir(handle)?;
        let fid = dir.fid;
        if virtual_attr(fid).is_some() {
            return self.list_virtual(fid, offset, take);
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
                return self.list_merged(&dir, *merge, (&wanted, room), take);
            }
        };
        if self.notes_names(plus, page.lease) {
            let mut listed = self.statahead.listing(fid, page.lease, cookie, self.tunables.statahead_max());
            let DirPage { lock: names, public, .. } = page.page;
            let origin = Origin { home: fid, names, changes: page.changes, public };
            page.page.entries().for_each(|entry| listed.note(&entry, &origin));
            self.statahead.on_listed(listed);
        }
        let (next, whole) = self.list_page(&page.page, page.lease, plus, take)?;
        if let Some(cookie) = next {
            self.page_handed_out(&dir, &page, Wanted { cookie, ..wanted }, whole);
        }
        Ok(())
    }

    /// True if names that are listed without attributes are remembered for later requests for the attributes.
    fn notes_names(&self, plus: bool, lease: u64) -> bool {
        let with_attributes = plus && lease != 0;
        !with_attributes && self.tunables.statahead_max() > 0 && !self.is_embedded()
    }

    /// Where the next names of a directory come from, with shards or without.
    fn source(&self, dir: &OpenDir, wanted: &Wanted) -> StatusResult<Source> {
        self.at_home(dir.fid, b"", |_| match self.shard_lists.get(dir.fid) {
            Some(layout) if layout.change().is_some() => {
                self.moving_page(&dir.opener, &layout, wanted).map(Source::Page)
            }
            Some(layout) => Ok(Source::Merge(Box::new(self.merge(dir, &layout, wanted)?))),
            None => self.dir_page(dir, wanted).map(Source::Page),
        })
    }

    /// Hands a page out. Gives the position behind the last entry that was taken, and whether all were.
    fn list_page(
        &self,
        page: &DirPage,
        lease: u64,
        plus: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> StatusResult<(Option<u64>, bool)> {
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

    /// Hands an entry out, with the attributes that it has if they are known for sure; false if it was not taken.
    #[inline]
    fn list_entry(
        &self,
        entry: &DirEntry<'_>,
        lease: u64,
        public: bool,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> StatusResult<bool> {
        let node = node_of(entry.fid)?;
        // The attributes of a striped directory need those of its shards: that is left to a request. Attributes under a lock serve lookups.
        let attr = entry.attr.filter(|attr| !attr.flags.contains(AttrFlags::STRIPED) && entry.lock.0 == 0);
        let attr = attr.and_then(|attr| self.sure_attr(attr, lease));
        let listed = ListedEntry {
            name: entry.name,
            node,
            kind: entry.kind,
            next: entry.cookie,
            attr,
            public,
            keep: self.keep_of(lease),
        };
        // Counted first: once taken, the entry may come back as a forget at any time.
        if let Some(attr) = &attr {
            self.nodes.remember(node, attr, lease.into(), 1);
        }
        let taken = take(&listed);
        if !taken && attr.is_some() {
            self.nodes.forget(node, 1);
        }
        Ok(taken)
    }

    /// Attributes of a listed file, unless its objects would have to be asked one file at a time.
    fn sure_attr(&self, attr: Attr, lease: u64) -> Option<Attr> {
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
        self.complete_attr_to_keep(attr, lease).ok().and_then(|(attr, is_sure)| is_sure.then_some(attr))
    }

    /// Lists `.` and `..`; false if the receiver has no room left.
    fn list_dots(
        &self,
        fid: Fid,
        offset: u64,
        take: &mut dyn FnMut(&ListedEntry<'_>) -> bool,
    ) -> StatusResult<bool> {
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
        let parent = self.call_system(fid, &MdsRequest::Lookup { parent: fid, name: b".." })?;
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
    /// `EBADF`; what the MDT answers.
    pub fn fsyncdir(&self, handle: u64) -> StatusResult<()> {
        self.sync_namespace(self.handles.dir(handle)?.fid)
    }
}
