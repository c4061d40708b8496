//! A listing of a directory with shards: their listings merged by position.
//!
//! All MDTs hash names alike, so the order depends on nobody, and a name keeps its position when it moves to another shard. What was
//! fetched of a shard and does not fit into a page is kept for the next one; names in it may be as old as the page (POSIX lets a
//! listing show what was there when it began), attributes may not.

use super::OpenDir;
use super::ahead::{Page, Wanted};
use super::scan::{ShardPage, scan_shards};
use crate::client::Client;
use nacre_layout::dir_layout::DirLayout;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::dir::{DIR_PAGE_MAX, Place};
use nacre_wire::mds::{DirEntry, DirPage, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the listing of one shard is.
struct Cursor {
    dir: Arc<OpenDir>,
    /// What was fetched last.
    page: Option<Page>,
    entries: Vec<Place>,
    /// The next one of them.
    next: usize,
    /// Position behind which the page begins, and that of its last entry.
    began: u64,
    cookie: u64,
}

/// Where a listing is.
pub(super) struct Merge {
    /// Version of the list, and what it lists.
    version: u32,
    shards: Vec<Fid>,
    /// Positions behind which the last page began, and at which it ended.
    began: u64,
    cookie: u64,
    cursors: Vec<Cursor>,
}

impl Cursor {
    fn new(fid: Fid, version: Option<u32>, cookie: u64) -> Cursor {
        let dir = Arc::new(OpenDir::new(fid, version));
        Cursor { dir, page: None, entries: Vec::new(), next: 0, began: cookie, cookie }
    }

    /// There is something to fetch before the next entry is known.
    fn is_due(&self) -> bool {
        self.next == self.entries.len() && self.page.as_ref().is_none_or(|page| !page.page.end)
    }

    /// Takes a page in.
    fn take(&mut self, page: Page) {
        self.began = self.cookie;
        self.entries.clear();
        self.entries.extend(page.page.places());
        if let Some(last) = self.entries.last() {
            self.cookie = last.cookie;
        }
        (self.next, self.page) = (0, Some(page));
    }

    /// Goes back to a position: the reader has stopped before the end of a page.
    fn rewind(&mut self, cookie: u64) {
        if self.began <= cookie {
            self.next = self.entries.partition_point(|entry| entry.cookie <= cookie);
        } else {
            // What came before the page that is here has to be fetched again.
            *self = Cursor::new(self.dir.fid, self.dir.version, cookie);
        }
    }

    fn next_cookie(&self) -> Option<u64> {
        self.entries.get(self.next).map(|entry| entry.cookie)
    }

    /// Adds the entries with a position to a page, from the next one on; gives the room that they need. False if there is more than a
    /// page can hold.
    fn put_group(&self, cookie: u64, page: &mut DirPage, (is_true, plus): (bool, bool)) -> (usize, bool) {
        let (mut needed, mut fits) = (0, true);
        let bytes = self.page.as_ref().map_or(&[][..], |page| &page.page.bytes);
        for entry in self.entries[self.next..].iter().take_while(|entry| entry.cookie == cookie) {
            needed += room_of(entry.name_len, plus);
            let bytes = &bytes[entry.bytes.clone()];
            if is_true || !entry.has_attr {
                fits &= page.bytes.len() + bytes.len() <= DIR_PAGE_MAX;
                page.bytes.extend_from_slice(bytes);
            } else if let Some(entry) = DirPage::entry_at(bytes) {
                fits &= page.push(&DirEntry { attr: None, ..entry }, DIR_PAGE_MAX as u32);
            }
        }
        (needed, fits)
    }

    /// True if attributes in the page are still those of their inodes.
    fn is_true(&self, lease: u64, changes: u64) -> bool {
        let is_true = |page: &Page| page.lease == lease && page.changes == changes;
        lease != 0 && self.page.as_ref().is_some_and(is_true)
    }
}

impl Merge {
    fn new(layout: &DirLayout, wanted: &Wanted) -> Merge {
        let cursor = |fid: &Fid| Cursor::new(*fid, Some(layout.version), wanted.cookie);
        Merge {
            version: layout.version,
            shards: layout.shards.clone(),
            began: wanted.cookie,
            cookie: wanted.cookie,
            cursors: layout.shards.iter().map(cursor).collect(),
        }
    }

    /// True if the page that is wanted begins where the last one did, or where the reader has stopped in it.
    fn leads_to(&self, layout: &DirLayout, wanted: &Wanted) -> bool {
        // From the beginning everything is listed as it is now.
        let is_near = wanted.cookie != 0 && (self.began..=self.cookie).contains(&wanted.cookie);
        is_near && self.version == layout.version && self.shards == layout.shards
    }
}

/// Bytes that a name takes at the reader, with or without attributes: what the kernel's listings have. More would be fetched in vain.
fn room_of(name_len: usize, plus: bool) -> usize {
    let head = if plus { 152 } else { 24 };
    head + name_len.next_multiple_of(8)
}

impl Client {
    /// A page of a directory with shards.
    ///
    /// # Errors
    /// What MDTs answer; `EINTR`; `EINVAL` for more names of one position than fit into any page.
    pub(super) fn merged_page(
        &self,
        dir: &OpenDir,
        layout: &DirLayout,
        wanted: &Wanted,
    ) -> StatusResult<Page> {
        // Taken out meanwhile: another reader begins on his own, and need not wait for an MDT that this one waits for.
        let goes_on = dir.merge.lock().take().filter(|merge| merge.leads_to(layout, wanted));
        let mut merge = goes_on.unwrap_or_else(|| Merge::new(layout, wanted));
        if wanted.cookie < merge.cookie {
            merge.cursors.iter_mut().for_each(|cursor| cursor.rewind(wanted.cookie));
        }
        (merge.began, merge.cookie) = (wanted.cookie, wanted.cookie);
        let page = self.merge_page(&mut merge, wanted)?;
        *dir.merge.lock() = Some(merge);
        Ok(page)
    }

    /// A page of a directory whose names move. Nothing in it may be kept.
    ///
    /// # Errors
    /// As [`Client::merged_page`]; `WRONG_SHARD` if the list is old.
    pub(super) fn moving_page(&self, layout: &DirLayout, wanted: &Wanted) -> StatusResult<Page> {
        let Wanted { cookie, max_bytes, .. } = *wanted;
        let ask = |fid: Fid, max_bytes: usize| {
            let request = MdsRequest::ReadDir { fid, cookie, max_bytes: max_bytes as u32, plus: false };
            ShardPage::of(self.call_system(fid, &request)?, layout.version)
        };
        let (page, _) = scan_shards(layout, cookie, (max_bytes as usize).min(DIR_PAGE_MAX), ask)?;
        Ok(Page { page, lease: 0, changes: 0 })
    }

    fn merge_page(&self, merge: &mut Merge, wanted: &Wanted) -> StatusResult<Page> {
        let limit = (wanted.max_bytes as usize).min(DIR_PAGE_MAX);
        let mut page = DirPage { bytes: Vec::with_capacity(limit), end: false, public: true };
        let (lease, changes) = (self.lease.number(), self.changes.load(Ordering::Acquire));
        self.fill(merge, wanted)?;
        let mut room = limit;
        loop {
            let Some(cookie) = merge.cursors.iter().filter_map(Cursor::next_cookie).min() else {
                page.end = true;
                break;
            };
            // Names of one position are never parted: the first ones are given out however many they are.
            let (before, mut needed) = (page.bytes.len(), 0);
            for cursor in merge.cursors.iter().filter(|cursor| cursor.next_cookie() == Some(cookie)) {
                let is_true = cursor.is_true(lease, changes);
                let (more, fits) = cursor.put_group(cookie, &mut page, (is_true, wanted.plus));
                if !fits {
                    return Err(Status::EINVAL);
                }
                needed += more;
            }
            if needed > room && before > 0 {
                page.bytes.truncate(before);
                break;
            }
            room = room.saturating_sub(needed);
            merge.cookie = cookie;
            let mut is_due = false;
            for cursor in &mut merge.cursors {
                while cursor.next_cookie() == Some(cookie) {
                    cursor.next += 1;
                    is_due |= cursor.is_due();
                }
            }
            if is_due {
                self.fill(merge, wanted)?;
            }
        }
        let is_public = |cursor: &Cursor| cursor.page.as_ref().is_some_and(|page| page.page.public);
        page.public = merge.cursors.iter().all(is_public);
        Ok(Page { page, lease, changes })
    }

    /// Fetches of each shard of which nothing is left; at the beginning of all but one in the background.
    fn fill(&self, merge: &mut Merge, wanted: &Wanted) -> StatusResult<()> {
        // Readers change from one to the other on the way; who wants attributes does without where they were not fetched.
        let ask = |cursor: &Cursor| Wanted { cookie: cursor.cookie, ..*wanted };
        let due = merge.cursors.iter().filter(|cursor| cursor.is_due());
        for cursor in due.skip(1).filter(|cursor| cursor.page.is_none()) {
            self.fetch_ahead(&cursor.dir, ask(cursor));
        }
        for cursor in merge.cursors.iter_mut().filter(|cursor| cursor.is_due()) {
            let page = self.dir_page(&cursor.dir, &ask(cursor))?;
            let ended = page.page.end;
            cursor.take(page);
            if !ended {
                self.fetch_ahead(&cursor.dir, ask(cursor));
            }
        }
        Ok(())
    }
}
