//! Attributes fetched ahead: a program that lists a directory probably reads the attributes of its files
//! next.
//!
//! While a program requests attributes, listings carry them
//! ([`Listings::readdir`](crate::listings::Listings::readdir) with `plus`). While this client is the only one
//! the kernel takes them, and nothing is left to do here; with other clients they wait here for the kernel's
//! lookups ([`page_locks`](crate::inodes::page_locks)). Kernels switch to names alone when a program lists
//! first and requests attributes afterwards (`du` of a large directory, `stat` of names that a script or a
//! shell has listed). Then each file would cost a request. So names that were listed without attributes are
//! recorded, and a lookup fetches a batch in one request: the name, and those that will follow.
//!
//! | names are looked up | the batch | from |
//! | --- | --- | --- |
//! | in the order of their listing, with gaps | a page of the directory with attributes | the first name on |
//! | sorted by their bytes, with gaps | names (`LookupMany`) | the second |
//! | numbered upwards, listed or not | names | the fourth |
//!
//! In any other order batches are pages, which are rarely used, and stop soon.
//!
//! # Validity
//!
//! Fetched attributes are served only under the exclusive lease of their request, or with other clients only
//! under the locks on the directory's names and on the inode that came with them; only if this client has
//! changed nothing since, and only in directories that everybody may search. Sizes that the MDT does not
//! know, and files that are open, are left out.
//!
//! # Bounds
//!
//! Directories: [`DIRS_MAX`], the oldest is dropped. Names recorded: see [`names`]. Attributes kept:
//! `statahead_max` for each directory, or for each of its shards, and those of the page that was listed last.
//! Locks that come along count towards `lru_size`. Batches begin at 8 entries, double while they are used,
//! and stop after 32 lookups in a row that found nothing ready, or when fewer than four of five find
//! something.

pub(crate) mod names;
pub(crate) mod series;
pub(crate) mod window;

use crate::base::Base;
use crate::inodes::{Found, Inodes};
use crate::lease::Lease;
use crate::node::{IdMap, NodeTable};
use crate::open_dir::origin::{EntryLocks, Origin};
use crate::pages::Pages;
use crate::requests::Requests;
use crate::shards::Shards;
use crate::statahead::names::{Follows, ListedNames};
use crate::statahead::series::Series;
use crate::statahead::window::Window;
use crate::tunables::Tunables;
use nacre_env::sync::Mutex;
use nacre_types::{Attr, FailureResult, Fid, SizeSource};
use nacre_wire::dir::{ATTR_BYTES, LOCK_BYTES};
use nacre_wire::mds::{DirEntry, DirPage, MdsReply, MdsRequest};
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Directories at a time, at most (`statahead_running_max`).
const DIRS_MAX: usize = 16;
/// Bytes of an entry with attributes and a name of common length, and of one with a lock.
const ENTRY_BYTES: u32 = 28 + ATTR_BYTES as u32 + 20;
const LOCKED_ENTRY_BYTES: u32 = ENTRY_BYTES + LOCK_BYTES as u32;

/// Names and attributes of one directory.
struct Listing {
    node: u64,
    /// Number of the exclusive lease, 0 with other clients.
    lease: u64,
    names: ListedNames,
    ready: IdMap<Ready>,
    window: Window,
}

impl Listing {
    fn new(node: u64, lease: u64) -> Listing {
        Listing { node, lease, names: ListedNames::default(), ready: IdMap::default(), window: Window::NEW }
    }
}

/// Records names of a directory while they are handed out, in their order, and keeps the attributes that came
/// with locks.
pub(crate) struct Listed {
    listing: Listing,
    /// Position of the last name.
    before: u64,
    /// How many attributes of earlier pages may stay; `None` once those of this one are entered.
    kept_max: Option<usize>,
    hasher: RandomState,
}

impl Listed {
    pub fn note(&mut self, entry: &DirEntry<'_>, origin: &Origin) {
        self.listing.names.push(entry.name, self.before);
        self.before = entry.cookie;
        let (Some(attr), Some(locks)) = (entry.attr, origin.locks_of(entry)) else { return };
        if !origin.public || attr.size_source != SizeSource::Exact {
            return;
        }
        let ready = &mut self.listing.ready;
        if self.kept_max.take().is_some_and(|max| ready.len() > max) {
            // Attributes that were not requested so far will hardly be.
            ready.clear();
        }
        let (name, changes) = (entry.name.into(), origin.changes);
        ready.insert(self.hasher.hash_one(entry.name), Ready { name, attr, changes, locks: Some(locks) });
    }
}

/// An entry that waits for its lookup.
struct Ready {
    name: Box<[u8]>,
    attr: Attr,
    /// [`Requests::changes`](crate::requests::Requests) before it was fetched.
    changes: u64,
    /// Locks that prove it valid, if the lease of the listing does not.
    locks: Option<EntryLocks>,
}

/// A page of a batch.
struct Fetched {
    page: DirPage,
    origin: Origin,
}

/// Statahead of a client.
pub struct Statahead {
    dirs: Mutex<VecDeque<Listing>>,
    /// Names found, by directory and lease; the directory that was used last is at the end.
    series: Mutex<VecDeque<(u64, u64, Series)>>,
    /// Length of `dirs`, so that most lookups take no lock.
    count: AtomicUsize,
    hasher: RandomState,
    /// Number of entries fetched.
    total: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Number of directories for which statahead has stopped.
    wrong: AtomicU64,
    requests: Arc<Requests>,
    shards: Arc<Shards>,
    inodes: Arc<Inodes>,
    pages: Arc<Pages>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    tunables: Arc<Tunables>,
}

impl Statahead {
    pub(crate) fn new(base: &Base, inodes: Arc<Inodes>, pages: Arc<Pages>) -> Arc<Statahead> {
        Arc::new(Statahead {
            dirs: Mutex::default(),
            series: Mutex::default(),
            count: AtomicUsize::default(),
            hasher: RandomState::default(),
            total: AtomicU64::default(),
            hits: AtomicU64::default(),
            misses: AtomicU64::default(),
            wrong: AtomicU64::default(),
            requests: base.requests.clone(),
            shards: base.shards.clone(),
            inodes,
            pages,
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            tunables: base.tunables.clone(),
        })
    }

    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// Begins a listing of names alone, from behind position `from` on: its names count once
    /// [`Statahead::on_listed`] returns them. Up to `kept_max` entries stay that are ready from earlier
    /// pages.
    pub(crate) fn listing(&self, dir: Fid, lease: u64, from: u64, kept_max: u32) -> Listed {
        let node = dir.inode_number();
        let mut dirs = self.dirs.lock();
        let known = dirs.iter().position(|listing| listing.node == node && listing.lease == lease);
        let known = known.and_then(|index| dirs.remove(index));
        let mut listing = known.unwrap_or_else(|| Listing::new(node, lease));
        if listing.window.misses_in_row > 0 || from == 0 {
            // It is listed once more: the lookups that follow may come in another order.
            listing.window = Window::NEW;
        }
        let (kept_max, hasher) = (Some(kept_max as usize), self.hasher.clone());
        Listed { listing, before: from, kept_max, hasher }
    }

    /// Enters the recorded names, which have been handed out.
    pub(crate) fn on_listed(&self, listed: Listed) {
        let mut dirs = self.dirs.lock();
        dirs.retain(|listing| listing.node != listed.listing.node);
        self.add(&mut dirs, listed.listing);
    }

    fn add(&self, dirs: &mut VecDeque<Listing>, listing: Listing) {
        if dirs.len() >= DIRS_MAX {
            dirs.pop_front();
        }
        dirs.push_back(listing);
        self.count.store(dirs.len(), Ordering::Relaxed);
    }

    /// Records that a name was found, in any way.
    fn on_found(&self, node: u64, lease: u64, name: &[u8]) {
        let mut all = self.series.lock();
        let known = all.iter().rposition(|(dir, under, _)| (*dir, *under) == (node, lease));
        let (.., mut series) = match known.and_then(|index| all.remove(index)) {
            Some(known) => known,
            None => {
                if all.len() >= DIRS_MAX {
                    all.pop_front();
                }
                (node, lease, Series::default())
            }
        };
        series.on_found(name);
        all.push_back((node, lease, series));
    }

    /// Calls `act` with the series of a directory, if `name` is the next one in it.
    fn with_series<R>(
        &self,
        node: u64,
        lease: u64,
        name: &[u8],
        act: impl FnOnce(&Series) -> R,
    ) -> Option<R> {
        let all = self.series.lock();
        let (.., series) = all.iter().rfind(|(dir, under, _)| (*dir, *under) == (node, lease))?;
        series.predicts(name).then(|| act(series))
    }

    /// Drops everything.
    pub(crate) fn clear(&self) {
        self.series.lock().clear();
        self.dirs.lock().clear();
        self.count.store(0, Ordering::Relaxed);
    }
}

/// What to request.
enum Batch {
    /// A page of entries behind a position.
    Page { cookie: u64, entries: u32 },
    /// These names, each terminated by NUL.
    Names(Vec<u8>),
}

impl Batch {
    /// Returns the most entries of a reply.
    fn entries(&self) -> usize {
        match self {
            // Names may be shorter than the common length.
            Batch::Page { entries, .. } => 2 * *entries as usize,
            Batch::Names(names) => names.iter().filter(|byte| **byte == 0).count(),
        }
    }
}

/// How to answer a lookup.
enum Verdict {
    Ready(Attr, Option<EntryLocks>),
    Fetch(Batch),
    /// Nothing is known: the name is looked up alone.
    Alone,
}

impl Statahead {
    /// Answers a lookup from fetched attributes, or fetches them together with those of the neighbours.
    /// `None`: the name has to be looked up alone.
    ///
    /// # Errors
    /// Those of requests that complete the attributes of a found name.
    pub(crate) fn lookup_ahead(&self, parent: Fid, name: &[u8]) -> FailureResult<Option<Found>> {
        let lease = self.lease.number();
        if !self.looks_ahead() {
            return Ok(None);
        }
        // An entry with locks does not need this: the lock on the names of its directory stands for it.
        let public = self.inodes.is_public(parent);
        if lease != 0 && !public {
            return Ok(None);
        }
        let found = match self.look_ahead(parent.inode_number(), lease, name, public) {
            Verdict::Ready(attr, locks) => Some((attr, locks, lease)),
            Verdict::Fetch(batch) => self.fetch_batch(parent, name, &batch),
            Verdict::Alone => None,
        };
        let Some((attr, locks, lease)) = found else { return Ok(None) };
        self.on_found(parent.inode_number(), lease, name);
        match locks {
            Some(locks) => self.inodes.found_under(attr, &locks),
            None => self.inodes.found(attr, lease, true).map(Some),
        }
    }

    fn looks_ahead(&self) -> bool {
        self.tunables.statahead_max() > 0 && !self.requests.is_embedded()
    }

    /// Records that a name was looked up alone, and found.
    pub(crate) fn note_looked_up(&self, parent: Fid, lease: u64, name: &[u8]) {
        if self.looks_ahead() {
            self.on_found(parent.inode_number(), lease, name);
        }
    }

    fn look_ahead(&self, node: u64, lease: u64, name: &[u8], may_fetch: bool) -> Verdict {
        let ahead = self;
        let numbered = ahead.with_series(node, lease, name, |_| ()).is_some();
        if !numbered && ahead.count.load(Ordering::Relaxed) == 0 {
            return Verdict::Alone;
        }
        let mut dirs = ahead.dirs.lock();
        let known = dirs.iter().position(|listing| listing.node == node && listing.lease == lease);
        if known.is_none() && numbered {
            ahead.add(&mut dirs, Listing::new(node, lease));
        }
        let index = known.or_else(|| dirs.len().checked_sub(1).filter(|_| numbered));
        let Some(listing) = index.and_then(|index| dirs.get_mut(index)) else { return Verdict::Alone };
        let follows = listing.names.on_asked(name);
        let changes = self.requests.changes.load(Ordering::Acquire);
        let ready = listing.ready.remove(&ahead.hash(name));
        if let Some(ready) = ready.filter(|ready| *ready.name == *name && ready.changes == changes)
            && self.nodes.file(ready.attr.fid.inode_number()).is_none()
        {
            listing.window.on_hit();
            ahead.hits.fetch_add(1, Ordering::Relaxed);
            return Verdict::Ready(ready.attr, ready.locks);
        }
        if !may_fetch || (follows.is_none() && !numbered) {
            return Verdict::Alone;
        }
        ahead.misses.fetch_add(1, Ordering::Relaxed);
        let limit = self.tunables.statahead_max().min(self.tunables.statahead_batch_max());
        let entries = if limit > 1 { listing.window.on_miss(limit) } else { 0 };
        if entries == 0 {
            // Statahead has stopped for the directory; another listing starts it again.
            dirs.retain(|listing| listing.node != node);
            ahead.count.store(dirs.len(), Ordering::Relaxed);
            ahead.wrong.fetch_add(1, Ordering::Relaxed);
            ahead.series.lock().retain(|(dir, ..)| *dir != node);
            return Verdict::Alone;
        }
        let numbers = || ahead.with_series(node, lease, name, |series| series.names(name, entries));
        let page = |position| Verdict::Fetch(Batch::Page { cookie: position, entries });
        match (follows, listing.names.position()) {
            (Some(Follows::Listing), Some(position)) => page(position),
            (Some(Follows::Sorted), _) => Verdict::Fetch(Batch::Names(listing.names.sorted_names(entries))),
            (unknown, position) => match numbers() {
                Some(names) => Verdict::Fetch(Batch::Names(names)),
                None => unknown.and(position).map_or(Verdict::Alone, page),
            },
        }
    }

    /// Fetches a batch from a directory that everybody may search, a page of each shard; also returns the
    /// lease under which it is valid; 0 if the entries have locks instead.
    fn fetch_pages(&self, parent: Fid, batch: &Batch) -> Option<(Vec<Fetched>, u64)> {
        let list = self.shards.lists.get(parent);
        if list.as_ref().is_some_and(|list| list.change().is_some()) {
            return None;
        }
        let shards = self.shards.parts_of(parent);
        let (mut pages, mut lease) = (Vec::with_capacity(shards.len()), None);
        for fid in shards.iter().copied() {
            let mut own = Vec::new();
            let handles = self.inodes.page_handles(fid, batch.entries());
            let locks = handles.range();
            let changes = self.requests.changes.load(Ordering::Acquire);
            let request = match batch {
                Batch::Page { cookie, entries } => {
                    let each = if locks.count > 0 { LOCKED_ENTRY_BYTES } else { ENTRY_BYTES };
                    let max_bytes = entries.saturating_mul(each);
                    MdsRequest::ReadDir { fid, cookie: *cookie, max_bytes, plus: true, locks }
                }
                Batch::Names(names) if fid == parent => MdsRequest::LookupMany { parent, names, locks },
                Batch::Names(names) => {
                    for name in names.split_inclusive(|&byte| byte == 0) {
                        if self.shards.home(parent, &name[..name.len() - 1]) == fid {
                            own.extend_from_slice(name);
                        }
                    }
                    if own.is_empty() {
                        continue;
                    }
                    MdsRequest::LookupMany { parent: fid, names: &own, locks }
                }
            };
            // The lookup itself will report the failure.
            let answer = self.requests.call_system(fid, &request).ok()?;
            let page = match answer.reply {
                MdsReply::Directory(page) => page,
                MdsReply::Shard { page, version, .. }
                    if list.as_ref().is_some_and(|list| list.version == version) =>
                {
                    page
                }
                _ => return None,
            };
            handles.adopt(Some(fid), &page);
            let can_be_kept = answer.lease != 0 || page.lock.0 != 0;
            if !can_be_kept || !page.public || lease.is_some_and(|lease| lease != answer.lease) {
                return None;
            }
            lease = Some(answer.lease);
            let page = self.pages.with_attributes(page, fid, answer.lease).ok()?;
            let origin = Origin { home: fid, names: page.lock, changes, public: true };
            pages.push(Fetched { page, origin });
        }
        Some((pages, lease?))
    }

    /// Fetches a batch, keeps it, and returns the entry called `name` if it is among them, with its proof of
    /// validity: its locks, or the lease of the request.
    fn fetch_batch(
        &self,
        parent: Fid,
        name: &[u8],
        batch: &Batch,
    ) -> Option<(Attr, Option<EntryLocks>, u64)> {
        let ahead = self;
        let (pages, lease) = self.fetch_pages(parent, batch)?;
        let mut wanted = None;
        let mut dirs = ahead.dirs.lock();
        let listing = dirs.iter_mut().find(|listing| listing.node == parent.inode_number());
        let listing = listing.filter(|listing| listing.lease == lease)?;
        // The limit is for each shard.
        let room = self.tunables.statahead_max() as usize * pages.len();
        let entries = pages.iter().flat_map(|own| own.page.entries().map(|entry| (entry, own.origin)));
        for (entry, origin) in entries {
            let exact = |attr: &Attr| attr.size_source == SizeSource::Exact;
            let (changes, locks) = (origin.changes, origin.locks_of(&entry));
            let is_sure = |attr: &Attr| exact(attr) && (lease != 0 || locks.is_some());
            let Some(attr) = entry.attr.filter(is_sure) else { continue };
            if entry.name == name {
                wanted = Some((attr, locks));
                continue;
            }
            if listing.ready.len() >= room {
                // Attributes that were not requested so far will hardly be.
                listing.ready.clear();
            }
            let ready = Ready { name: entry.name.into(), attr, changes, locks };
            listing.ready.insert(ahead.hash(entry.name), ready);
            ahead.total.fetch_add(1, Ordering::Relaxed);
        }
        drop(dirs);
        let is_closed = |attr: &Attr| self.nodes.file(attr.fid.inode_number()).is_none();
        let (attr, locks) = wanted.filter(|(attr, _)| is_closed(attr))?;
        Some((attr, locks, lease))
    }

    /// Returns the text of `llite.*.statahead_stats`: entries fetched, directories stopped, and lookups that
    /// found something ready or not.
    pub fn statahead_report(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ahead = self;
        format!(
            "statahead total: {}\nstatahead wrong: {}\nhit_total: {}\nmiss_total: {}\n",
            count(&ahead.total),
            count(&ahead.wrong),
            count(&ahead.hits),
            count(&ahead.misses)
        )
    }
}
