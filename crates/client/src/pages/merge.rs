//! Merged listings of directories with shards.

use crate::caller::Caller;
use crate::open_dir::OpenDir;
use crate::open_dir::ahead::{Page, Wanted};
use crate::open_dir::merge::{Cursor, END, Least, Merge, Take, room_of};
use crate::pages::Pages;
use crate::pages::scan::{ShardPage, scan_shards};
use nacre_layout::dir_layout::DirLayout;
use nacre_types::{FailureResult, Fid, Status};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{LockRange, MdsRequest};
use std::sync::atomic::Ordering;

impl Pages {
    /// Returns the merge of a directory with shards, positioned where a page is wanted.
    ///
    /// # Errors
    /// The errors of MDTs; `WRONG_SHARD` if the list is outdated; `EINTR`.
    pub(crate) fn merge(&self, dir: &OpenDir, layout: &DirLayout, wanted: &Wanted) -> FailureResult<Merge> {
        // Taken out meanwhile: another reader begins a merge of its own, and need not wait for an MDT that
        // this one waits for.
        let goes_on = dir.merge.lock().take().filter(|merge| merge.leads_to(layout, wanted));
        let mut merge = goes_on.unwrap_or_else(|| Merge::new(dir.opener, layout, wanted));
        (merge.lease, merge.changes) = (self.lease.number(), self.requests.changes.load(Ordering::Acquire));
        if wanted.cookie < merge.cookie {
            for (cursor, head) in merge.cursors.iter_mut().zip(&mut merge.heads) {
                cursor.rewind(wanted.cookie);
                *head = cursor.head();
            }
        }
        (merge.began, merge.cookie) = (wanted.cookie, wanted.cookie);
        self.fill(&mut merge, wanted)?;
        Ok(merge)
    }

    /// Returns a page of a directory whose names move. Nothing in it may be cached.
    ///
    /// # Errors
    /// The errors of MDTs; `EINTR`; `EINVAL` for more names of one position than fit into any page;
    /// `WRONG_SHARD` if the list is outdated.
    pub(crate) fn moving_page(
        &self,
        opener: &Caller,
        layout: &DirLayout,
        wanted: &Wanted,
    ) -> FailureResult<Page> {
        let Wanted { cookie, max_bytes, .. } = *wanted;
        let ask = |fid: Fid, max_bytes: usize| {
            let request = MdsRequest::ReadDir {
                fid,
                cookie,
                max_bytes: max_bytes as u32,
                plus: false,
                locks: LockRange::default(),
            };
            ShardPage::of(self.requests.call(opener, fid, &request)?, layout.version)
        };
        let (page, _) = scan_shards(layout, cookie, (max_bytes as usize).min(DIR_PAGE_MAX), ask)?;
        Ok(Page { page, lease: 0, changes: 0 })
    }

    /// Fetches a page of each shard of which nothing is left; at the beginning all but one in the background.
    fn fill(&self, merge: &mut Merge, wanted: &Wanted) -> FailureResult<()> {
        // Readers switch between the kinds of listing on the way; one that wants attributes does without
        // where they were not fetched.
        let due = merge.cursors.iter().filter(|cursor| cursor.is_due());
        for cursor in due.skip(1).filter(|cursor| cursor.page.is_none()) {
            self.fetch_ahead(&cursor.dir, cursor.ask(cursor.passed, wanted));
        }
        for (cursor, head) in merge.cursors.iter_mut().zip(&mut merge.heads) {
            if !cursor.is_due() {
                continue;
            }
            let page = self.dir_page(&cursor.dir, &cursor.ask(cursor.passed, wanted))?;
            let ended = page.page.end;
            if page.page.is_empty() && !ended {
                return Err(Status::EPROTO.into());
            }
            cursor.take(page, wanted.max_bytes);
            *head = cursor.head();
            if !ended && !self.requests.is_embedded() {
                self.fetch_ahead(&cursor.dir, cursor.ask(cursor.last(), wanted));
            }
        }
        let is_public = |cursor: &Cursor| cursor.page.as_ref().is_some_and(|page| page.page.public);
        merge.public = merge.cursors.iter().all(is_public);
        Ok(())
    }

    /// Hands out entries from the least position on, as long as they are taken and there is space for them.
    pub(crate) fn hand_out(
        &self,
        merge: &mut Merge,
        wanted: &Wanted,
        mut room: usize,
        take: &mut Take<'_>,
    ) -> FailureResult<()> {
        loop {
            let Least { cookie, which, other } = Least::of(&merge.heads);
            if cookie == END {
                return Ok(());
            }
            let (entry, next) = merge.entry(which, wanted.plus)?;
            let is_due = if other == cookie || merge.cursors[which].cookie_at(next) == cookie {
                let Some(is_due) = merge.hand_out_group(cookie, wanted.plus, &mut room, take)? else {
                    return Ok(());
                };
                is_due
            } else {
                if !take(&entry, &merge.origin(which))? {
                    return Ok(());
                }
                room = room.saturating_sub(room_of(entry.name.len(), wanted.plus));
                merge.pass(which, cookie, next)
            };
            if is_due {
                self.fill(merge, wanted)?;
            }
        }
    }
}
