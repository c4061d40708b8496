//! A listing of a directory with shards: their listings merged by position.
//!
//! All MDTs hash names alike, so the order depends on nobody, and a name keeps its position when it moves to another shard. What was
//! fetched of a shard and does not fit into a page is kept for the next one; names in it may be as old as the page (POSIX lets a
//! listing show what was there when it began), attributes may not.

use super::OpenDir;
use super::ahead::{Page, Wanted};
use crate::client::Client;
use nacre_layout::dir_layout::DirLayout;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{DirEntry, DirPage};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the listing of one shard is.
struct Cursor {
    dir: Arc<OpenDir>,
    /// What was fetched last.
    page: Option<Page>,
    /// Position and bytes of its entries.
    entries: Vec<(u64, Range<usize>)>,
    /// The next one of them.
    next: usize,
    /// Position of the last entry of the page.
    cookie: u64,
}

/// Where a listing is.
pub(super) struct Merge {
    shards: Vec<Fid>,
    /// Position up to which names were given out.
    cookie: u64,
    plus: bool,
    cursors: Vec<Cursor>,
}

impl Cursor {
    fn new(fid: Fid, cookie: u64) -> Cursor {
        let dir = Arc::new(OpenDir::new(fid));
        Cursor { dir, page: None, entries: Vec::new(), next: 0, cookie }
    }

    fn is_at_end(&self) -> bool {
        self.next == self.entries.len() && self.page.as_ref().is_some_and(|page| page.page.end)
    }

    /// Takes a page in.
    fn take(&mut self, page: Page) {
        self.entries.clear();
        let mut at = 0;
        for entry in page.page.entries() {
            let end = at + entry.encoded_len();
            self.entries.push((entry.cookie, at..end));
            at = end;
        }
        if let Some((cookie, _)) = self.entries.last() {
            self.cookie = *cookie;
        }
        (self.next, self.page) = (0, Some(page));
    }

    fn next_cookie(&self) -> Option<u64> {
        self.entries.get(self.next).map(|(cookie, _)| *cookie)
    }

    /// The entries of the page with a position, from the next one on.
    fn group(&self, cookie: u64) -> impl Iterator<Item = DirEntry<'_>> {
        let bytes = self.page.as_ref().map_or(&[][..], |page| &page.page.bytes);
        let same = self.entries[self.next..].iter().take_while(move |(found, _)| *found == cookie);
        same.filter_map(|(_, range)| DirPage::entry_at(&bytes[range.clone()]))
    }
}

impl Client {
    /// A page of a directory with shards.
    ///
    /// # Errors
    /// What MDTs answer; `EINTR`; `EINVAL` if not even one name fits.
    pub(super) fn merged_page(
        &self,
        dir: &OpenDir,
        layout: &DirLayout,
        wanted: &Wanted,
    ) -> StatusResult<Page> {
        let mut held = dir.merge.lock();
        let goes_on = held.take().filter(|merge| {
            merge.cookie == wanted.cookie && merge.shards == layout.shards && (merge.plus || !wanted.plus)
        });
        let mut merge = goes_on.unwrap_or_else(|| Merge {
            shards: layout.shards.clone(),
            cookie: wanted.cookie,
            plus: wanted.plus,
            cursors: layout.shards.iter().map(|fid| Cursor::new(*fid, wanted.cookie)).collect(),
        });
        let page = self.merge_page(&mut merge, wanted)?;
        *held = Some(merge);
        Ok(page)
    }

    fn merge_page(&self, merge: &mut Merge, wanted: &Wanted) -> StatusResult<Page> {
        let limit = (wanted.max_bytes as usize).min(DIR_PAGE_MAX) as u32;
        let mut page = DirPage { bytes: Vec::with_capacity(limit as usize), end: false, public: true };
        let lease = self.lease.number();
        let changes = self.changes.load(Ordering::Acquire);
        self.fill(merge, wanted)?;
        loop {
            let Some(cookie) = merge.cursors.iter().filter_map(Cursor::next_cookie).min() else {
                page.end = true;
                break;
            };
            // Names of one position are never parted.
            let before = page.bytes.len();
            // One that grows beyond the wish: all names so far have one position.
            let room = if before == 0 { DIR_PAGE_MAX as u32 } else { limit };
            let mut fits = true;
            for cursor in &merge.cursors {
                let is_true = cursor
                    .page
                    .as_ref()
                    .is_some_and(|page| page.lease != 0 && page.lease == lease && page.changes == changes);
                for entry in cursor.group(cookie) {
                    let attr = entry.attr.filter(|_| is_true || lease == 0);
                    fits &= page.push(&DirEntry { attr, ..entry }, room);
                }
            }
            if !fits {
                page.bytes.truncate(before);
                break;
            }
            merge.cookie = cookie;
            for cursor in &mut merge.cursors {
                while cursor.next_cookie() == Some(cookie) {
                    cursor.next += 1;
                }
            }
            if page.bytes.len() >= limit as usize {
                break;
            }
            self.fill(merge, wanted)?;
        }
        page.public =
            merge.cursors.iter().all(|cursor| cursor.page.as_ref().is_some_and(|page| page.page.public));
        if page.is_empty() && !page.end {
            return Err(Status::EINVAL);
        }
        Ok(Page { page, lease, changes })
    }

    /// Fetches of each shard of which nothing is left; of all but one in the background.
    fn fill(&self, merge: &mut Merge, wanted: &Wanted) -> StatusResult<()> {
        let plus = merge.plus;
        let is_due = |cursor: &Cursor| cursor.next == cursor.entries.len() && !cursor.is_at_end();
        let ask = |cursor: &Cursor| Wanted { cookie: cursor.cookie, max_bytes: wanted.max_bytes, plus };
        let due = merge.cursors.iter().filter(|cursor| is_due(cursor));
        for cursor in due.skip(1).filter(|cursor| cursor.page.is_none()) {
            self.fetch_ahead(&cursor.dir, ask(cursor));
        }
        for cursor in merge.cursors.iter_mut().filter(|cursor| is_due(cursor)) {
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
