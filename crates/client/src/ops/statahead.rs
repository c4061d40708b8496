//! Attributes fetched before they are asked for: a program that lists a directory looks at its files next.
//!
//! While a program asks for attributes, listings carry them ([`Client::readdir`] with `plus`), and nothing is left to do
//! here. Kernels change to names alone when a program lists first and asks afterwards (`du` of a large directory, `stat` of
//! what a script has listed). Then each file would be a request. So names that were listed without attributes are
//! remembered by their position, and the first one that is looked up brings a batch: it, and those that were listed
//! behind it, in one request.
//!
//! # When it is true
//!
//! What was fetched is served only under the exclusive lease of its request, only if this client has changed nothing since,
//! and only in directories that everybody may search. Sizes that the MDT does not know, and files that are open, are left out.
//!
//! # Bounds
//!
//! Directories: [`DIRS_MAX`], the oldest goes. Names remembered: [`NAMES_MAX`] for each. Attributes kept: `statahead_max`
//! for each. Batches begin at [`WINDOW_MIN`] entries, double while they are used, and stop (reference 4.26) after
//! [`MISSES_MAX`] lookups in a row that found nothing ready, or when fewer than four of five do.

use crate::client::Client;
use crate::node::IdMap;
use crate::ops::namespace::Found;
use nacre_types::{Attr, Fid, SizeSource, StatusResult};
use nacre_wire::mds::{DirPage, MdsReply, MdsRequest};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Directories at a time (`statahead_running_max`).
const DIRS_MAX: usize = 16;
/// Names remembered of one directory: 4 MiB.
const NAMES_MAX: usize = 1 << 18;
/// Entries of the first batch.
const WINDOW_MIN: u32 = 8;
/// Lookups that found nothing ready, in a row or beside the fourfold of others, after which a directory is left alone.
const MISSES_MAX: u32 = 32;
/// Bytes of an entry with attributes and a name of common length.
const ENTRY_BYTES: u32 = 28 + nacre_wire::dir::ATTR_BYTES as u32 + 20;

/// What is known of one listed directory.
struct Listing {
    node: u64,
    lease: u64,
    /// Position before each name, by the name's hash.
    before: IdMap<u64>,
    ready: IdMap<Ready>,
    window: Window,
}

/// An entry that waits to be asked for.
struct Ready {
    name: Box<[u8]>,
    attr: Attr,
    /// [`Client::changes`] before it was fetched.
    changes: u64,
}

/// How much to fetch, from what became of it so far. Pure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Window {
    /// Entries of the next batch.
    size: u32,
    hits: u32,
    misses: u32,
    misses_in_row: u32,
}

impl Window {
    const NEW: Window = Window { size: WINDOW_MIN, hits: 0, misses: 0, misses_in_row: 0 };

    fn on_hit(&mut self) {
        self.hits += 1;
        self.misses_in_row = 0;
    }

    /// Nothing was ready: entries to fetch now, of which the first one is asked for; 0: none.
    fn on_miss(&mut self, limit: u32) -> u32 {
        let used = self.misses_in_row == 0 && self.misses > 0;
        self.misses += 1;
        self.misses_in_row += 1;
        let mostly_wrong = self.misses > MISSES_MAX && self.hits < self.misses.saturating_mul(4);
        if mostly_wrong || self.misses_in_row > MISSES_MAX {
            return 0;
        }
        if used {
            self.size = self.size.saturating_mul(2);
        } else if self.misses > 1 {
            self.size = WINDOW_MIN;
        }
        self.size = self.size.min(limit);
        self.size
    }
}

/// Statahead of a client.
#[derive(Default)]
pub(crate) struct Statahead {
    dirs: Mutex<VecDeque<Listing>>,
    /// Length of `dirs`, so that most lookups take no lock.
    count: AtomicUsize,
    hasher: RandomState,
    /// Pages of listings that are fetched ahead.
    pub pages: Arc<AtomicUsize>,
    /// Entries fetched.
    total: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    /// Directories given up.
    wrong: AtomicU64,
}

impl Statahead {
    fn hash(&self, name: &[u8]) -> u64 {
        self.hasher.hash_one(name)
    }

    /// A page of names alone goes out, which begins behind position `from`.
    pub fn on_listed(&self, dir: Fid, lease: u64, from: u64, page: &DirPage) {
        let node = dir.inode_number();
        let mut dirs = self.dirs.lock();
        let known = dirs.iter().position(|listing| listing.node == node && listing.lease == lease);
        let mut listing = known.and_then(|index| dirs.remove(index)).unwrap_or_else(|| Listing {
            node,
            lease,
            before: IdMap::default(),
            ready: IdMap::default(),
            window: Window::NEW,
        });
        if listing.window.misses_in_row > 0 || from == 0 {
            // It is listed once more: whatever follows may follow another order.
            listing.window = Window::NEW;
        }
        let mut before = from;
        for entry in page.entries() {
            if listing.before.len() >= NAMES_MAX {
                break;
            }
            listing.before.insert(self.hash(entry.name), before);
            before = entry.cookie;
        }
        dirs.retain(|listing| listing.node != node);
        if dirs.len() >= DIRS_MAX {
            dirs.pop_front();
        }
        dirs.push_back(listing);
        self.count.store(dirs.len(), Ordering::Relaxed);
    }

    /// Everything goes.
    pub fn clear(&self) {
        self.dirs.lock().clear();
        self.count.store(0, Ordering::Relaxed);
    }
}

impl Client {
    /// Answers a lookup from what was fetched, or fetches it together with its neighbours. `None`: ask for it alone.
    ///
    /// # Errors
    /// What completing the attributes of a found name answers.
    pub(crate) fn lookup_ahead(&self, parent: Fid, name: &[u8]) -> StatusResult<Option<Found>> {
        let (ahead, lease) = (&self.statahead, self.lease.number());
        if ahead.count.load(Ordering::Relaxed) == 0 || lease == 0 || !self.is_public(parent) {
            return Ok(None);
        }
        let limit = self.tunables.statahead_max().min(self.tunables.statahead_batch_max());
        let hash = ahead.hash(name);
        let (cookie, entries) = {
            let mut dirs = ahead.dirs.lock();
            let node = parent.inode_number();
            let found = dirs.iter_mut().find(|listing| listing.node == node && listing.lease == lease);
            let Some(listing) = found else { return Ok(None) };
            let changes = self.changes.load(Ordering::Acquire);
            let ready = listing.ready.remove(&hash);
            if let Some(ready) = ready.filter(|ready| *ready.name == *name && ready.changes == changes)
                && self.nodes.file(ready.attr.fid.inode_number()).is_none()
            {
                listing.window.on_hit();
                drop(dirs);
                ahead.hits.fetch_add(1, Ordering::Relaxed);
                return self.found(ready.attr, lease, true).map(Some);
            }
            let Some(&cookie) = listing.before.get(&hash) else { return Ok(None) };
            ahead.misses.fetch_add(1, Ordering::Relaxed);
            let entries = if limit > 1 { listing.window.on_miss(limit) } else { 0 };
            if entries == 0 {
                // Left alone from here on; listing it again gives it another chance.
                dirs.retain(|listing| listing.node != node);
                ahead.count.store(dirs.len(), Ordering::Relaxed);
                ahead.wrong.fetch_add(1, Ordering::Relaxed);
                return Ok(None);
            }
            (cookie, entries)
        };
        self.fetch_entries(parent, name, cookie, entries)
    }

    /// Fetches up to `entries` entries behind a position, keeps them, and gives the one called `name` if it is among them.
    fn fetch_entries(
        &self,
        parent: Fid,
        name: &[u8],
        cookie: u64,
        entries: u32,
    ) -> StatusResult<Option<Found>> {
        let ahead = &self.statahead;
        let changes = self.changes.load(Ordering::Acquire);
        let max_bytes = entries.saturating_mul(ENTRY_BYTES);
        let request = MdsRequest::ReadDir { fid: parent, cookie, max_bytes, plus: true };
        // A failure is the lookup's to find.
        let Ok(answer) = self.call_system(parent, &request) else { return Ok(None) };
        let (MdsReply::Directory(page), lease) = (answer.reply, answer.lease) else { return Ok(None) };
        if lease == 0 || !page.public {
            return Ok(None);
        }
        let mut wanted = None;
        let mut dirs = ahead.dirs.lock();
        let listing = dirs.iter_mut().find(|listing| listing.node == parent.inode_number());
        let Some(listing) = listing.filter(|listing| listing.lease == lease) else { return Ok(None) };
        let room = self.tunables.statahead_max() as usize;
        for entry in page.entries() {
            let exact = |attr: &Attr| attr.size_source == SizeSource::Exact;
            let Some(attr) = entry.attr.filter(exact) else { continue };
            if entry.name == name {
                wanted = Some(attr);
                continue;
            }
            if listing.ready.len() >= room {
                // What was not asked for so far will hardly be.
                listing.ready.clear();
            }
            let ready = Ready { name: entry.name.into(), attr, changes };
            listing.ready.insert(ahead.hash(entry.name), ready);
            ahead.total.fetch_add(1, Ordering::Relaxed);
        }
        drop(dirs);
        let is_closed = |attr: &Attr| self.nodes.file(attr.fid.inode_number()).is_none();
        wanted.filter(is_closed).map(|attr| self.found(attr, lease, true)).transpose()
    }

    /// `llite.*.statahead_stats`: entries fetched, directories given up, and lookups that found something ready or not.
    pub fn statahead_report(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ahead = &self.statahead;
        format!(
            "statahead total: {}\nstatahead wrong: {}\nhit_total: {}\nmiss_total: {}\n",
            count(&ahead.total),
            count(&ahead.wrong),
            count(&ahead.hits),
            count(&ahead.misses)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_double_while_they_are_used() {
        let mut window = Window::NEW;
        let sizes: Vec<u32> = (0..6)
            .map(|_| {
                let size = window.on_miss(64);
                (1..size).for_each(|_| window.on_hit());
                size
            })
            .collect();
        assert_eq!(sizes, [8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn batches_that_nobody_uses_stay_small_and_end() {
        let mut window = Window::NEW;
        let sizes: Vec<u32> = (0..MISSES_MAX + 1).map(|_| window.on_miss(64)).collect();
        assert!(sizes[..MISSES_MAX as usize].iter().all(|&size| size == WINDOW_MIN));
        assert_eq!(sizes[MISSES_MAX as usize], 0);
    }

    #[test]
    fn a_reader_that_uses_few_of_each_batch_is_given_up() {
        let mut window = Window::NEW;
        let given_up = (0..1000).position(|_| {
            window.on_hit();
            window.on_miss(64) == 0
        });
        assert_eq!(given_up, Some(MISSES_MAX as usize));
    }
}
