//! A listing of a directory with shards: their listings merged by position.
//!
//! All MDTs use the same hash of names, so the order is the same for all readers, and a name keeps its
//! position when it moves to another shard. Fetched entries of a shard that do not fit into a page are kept
//! for the next one; names among them may be as old as the page (POSIX lets a listing show the names that
//! existed when it began), attributes may not.
//!
//! Entries go from the pages of the shards to the reader one by one, with no page in between.

use crate::caller::Caller;
use crate::open_dir::OpenDir;
use crate::open_dir::ahead::{Page, Wanted};
use crate::open_dir::origin::Origin;
use nacre_layout::dir_layout::DirLayout;
use nacre_lock::LockHandle;
use nacre_types::{FailureResult, Fid, Status};
use nacre_wire::mds::DirEntry;
use std::sync::Arc;

/// Least size of a shard's page: it has space for a name of any length.
const SHARD_PAGE_MIN: u32 = 4 << 10;
/// Position of a shard that has no more entries; behind all others.
pub(crate) const END: u64 = u64::MAX;

/// Progress of the listing of one shard.
pub(crate) struct Cursor {
    pub dir: Arc<OpenDir>,
    /// The page that was fetched last.
    pub page: Option<Page>,
    /// Offset of its next entry.
    pub at: usize,
    /// Position behind which the page begins, and that of the last entry that was passed.
    pub began: u64,
    pub passed: u64,
    /// Bytes of the next page. The first is the shard's share of the requested size: for a reader of few
    /// names, or one that wants attributes at the beginning and not later, the rest would have been fetched
    /// in vain.
    pub next_bytes: u32,
}

/// Progress of a merged listing.
pub(crate) struct Merge {
    /// Version of the list, and the shards in it.
    pub version: u32,
    pub shards: Vec<Fid>,
    /// Positions behind which the last page began, and at which it ended.
    pub began: u64,
    pub cookie: u64,
    pub cursors: Vec<Cursor>,
    /// Position of the next entry of each cursor, or [`END`]; in one array, as all are compared for each
    /// name.
    pub heads: Vec<u64>,
    /// Lease and number of changes of this client under which attributes are valid.
    pub lease: u64,
    pub changes: u64,
    /// True if everybody may search all shards.
    pub public: bool,
}

/// The next entry among all shards.
pub(crate) struct Least {
    pub cookie: u64,
    /// Index of its cursor, and the least position of the others.
    pub which: usize,
    pub other: u64,
}

impl Least {
    /// Finds it without branches that depend on the positions, which no processor can predict.
    #[inline]
    pub(crate) fn of(heads: &[u64]) -> Least {
        let mut least = Least { cookie: END, which: 0, other: END };
        for (which, &head) in heads.iter().enumerate() {
            let is_less = head < least.cookie;
            let larger = if is_less { least.cookie } else { head };
            least.other = least.other.min(larger);
            least.which = if is_less { which } else { least.which };
            least.cookie = least.cookie.min(head);
        }
        least
    }
}

impl Cursor {
    fn new(dir: OpenDir, cookie: u64, next_bytes: u32) -> Cursor {
        let dir = Arc::new(dir);
        Cursor { dir, page: None, at: 0, began: cookie, passed: cookie, next_bytes }
    }

    /// True if a page has to be fetched before the next entry is known.
    pub(crate) fn is_due(&self) -> bool {
        self.page.as_ref().is_none_or(|page| self.at >= page.page.bytes.len() && !page.page.end)
    }

    /// Returns the next page to fetch, behind a position.
    pub(crate) fn ask(&self, cookie: u64, wanted: &Wanted) -> Wanted {
        Wanted { cookie, max_bytes: self.next_bytes.min(wanted.max_bytes), ..*wanted }
    }

    /// Takes over a fetched page.
    pub(crate) fn take(&mut self, page: Page, max_bytes: u32) {
        (self.began, self.at, self.page) = (self.passed, 0, Some(page));
        self.next_bytes = self.next_bytes.saturating_mul(2).min(max_bytes).max(SHARD_PAGE_MIN);
    }

    /// Returns the position of the last entry of the page.
    pub(crate) fn last(&self) -> u64 {
        let last = self.page.as_ref().and_then(|page| page.page.places().last());
        last.map_or(self.passed, |(cookie, _)| cookie)
    }

    /// Moves back to a position: the reader has stopped before the end of a page.
    pub(crate) fn rewind(&mut self, cookie: u64) {
        if self.passed <= cookie {
            return;
        }
        match &self.page {
            Some(page) if self.began <= cookie => {
                let is_passed = |place: &(u64, usize)| place.0 <= cookie;
                let passed = page.page.places().take_while(is_passed).last();
                self.passed = passed.map_or(self.began, |(cookie, _)| cookie);
                let next = page.page.places().find(|place| !is_passed(place));
                self.at = next.map_or(page.page.bytes.len(), |(_, at)| at);
            }
            // Entries before the current page have to be fetched again.
            _ => {
                let dir = OpenDir::new(self.dir.fid, self.dir.version, self.dir.opener);
                *self = Cursor::new(dir, cookie, self.next_bytes);
            }
        }
    }

    /// Returns the position of the entry that begins at a byte of the page.
    #[inline]
    pub(crate) fn cookie_at(&self, at: usize) -> u64 {
        self.page.as_ref().and_then(|page| page.page.cookie_at(at)).unwrap_or(END)
    }

    pub(crate) fn head(&self) -> u64 {
        self.cookie_at(self.at)
    }
}

impl Merge {
    pub(crate) fn new(opener: Caller, layout: &DirLayout, wanted: &Wanted) -> Merge {
        let part = wanted.max_bytes / layout.shards.len().max(1) as u32;
        let first = (part + part / 2).max(SHARD_PAGE_MIN);
        let dir = |fid: &Fid| OpenDir::new(*fid, Some(layout.version), opener);
        let cursor = |fid: &Fid| Cursor::new(dir(fid), wanted.cookie, first);
        Merge {
            version: layout.version,
            shards: layout.shards.clone(),
            began: wanted.cookie,
            cookie: wanted.cookie,
            cursors: layout.shards.iter().map(cursor).collect(),
            heads: vec![END; layout.shards.len()],
            lease: 0,
            changes: 0,
            public: false,
        }
    }

    /// True if the wanted page begins where the last one did, or where the reader has stopped in it.
    pub(crate) fn leads_to(&self, layout: &DirLayout, wanted: &Wanted) -> bool {
        // A listing from the beginning shows the current state.
        let is_near = wanted.cookie != 0 && (self.began..=self.cookie).contains(&wanted.cookie);
        is_near && self.version == layout.version && self.shards == layout.shards
    }

    /// True if attributes in a page are still those of their inodes.
    fn is_true(&self, page: &Page) -> bool {
        self.lease != 0 && page.lease == self.lease && page.changes == self.changes
    }

    /// Returns the next entry of a cursor, with attributes if they are wanted and valid, and the offset of
    /// the one behind it.
    ///
    /// # Errors
    /// `EPROTO`: there is none, though pages were checked when they came.
    #[inline]
    pub(crate) fn entry(&self, which: usize, plus: bool) -> FailureResult<(DirEntry<'_>, usize)> {
        let cursor = &self.cursors[which];
        let page = cursor.page.as_ref().ok_or(Status::EPROTO)?;
        let (mut entry, next) = page.page.entry_from(cursor.at).ok_or(Status::EPROTO)?;
        // The lock of an entry shows whether the entry is still valid.
        if entry.attr.is_some() && !(plus && (entry.lock.0 != 0 || self.is_true(page))) {
            entry.attr = None;
        }
        Ok((entry, next))
    }

    /// Returns the origin of the entries of a cursor.
    #[inline]
    pub(crate) fn origin(&self, which: usize) -> Origin {
        let cursor = &self.cursors[which];
        let (names, changes) =
            cursor.page.as_ref().map_or((LockHandle(0), 0), |page| (page.page.lock, page.changes));
        Origin { home: cursor.dir.fid, names, changes, public: self.public }
    }

    /// Hands out the entries of one position, which are never separated: the first ones however many they
    /// are. Returns whether a page is due, or `None` if there is no space for them.
    ///
    /// # Errors
    /// `EINVAL` if they do not fit at all.
    #[cold]
    pub(crate) fn hand_out_group(
        &mut self,
        cookie: u64,
        plus: bool,
        room: &mut usize,
        take: &mut Take<'_>,
    ) -> FailureResult<Option<bool>> {
        let mut needed = 0;
        for page in self.cursors.iter().filter_map(|cursor| Some((cursor.page.as_ref()?, cursor.at))) {
            let entries = std::iter::successors(page.0.page.entry_from(page.1), |(_, next)| {
                page.0.page.entry_from(*next)
            });
            let group = entries.take_while(|(entry, _)| entry.cookie == cookie);
            needed += group.map(|(entry, _)| room_of(entry.name.len(), plus)).sum::<usize>();
        }
        if needed > *room && self.cookie > self.began {
            return Ok(None);
        }
        *room = room.saturating_sub(needed);
        let mut is_due = false;
        for which in 0..self.cursors.len() {
            while self.heads[which] == cookie {
                let (entry, next) = self.entry(which, plus)?;
                if !take(&entry, &self.origin(which))? {
                    return Err(Status::EINVAL.into());
                }
                is_due |= self.pass(which, cookie, next);
            }
        }
        Ok(Some(is_due))
    }

    /// Records that the next entry of a cursor was taken; true if its next page is due.
    #[inline]
    pub(crate) fn pass(&mut self, which: usize, cookie: u64, next: usize) -> bool {
        let cursor = &mut self.cursors[which];
        (cursor.passed, cursor.at) = (cookie, next);
        self.cookie = cookie;
        self.heads[which] = cursor.head();
        self.heads[which] == END && cursor.is_due()
    }
}

/// Returns the bytes of a name at the reader, with or without attributes: as in the kernel's listings.
pub(crate) fn room_of(name_len: usize, plus: bool) -> usize {
    let head = if plus { 152 } else { 24 };
    head + name_len.next_multiple_of(8)
}

/// Takes an entry; false if there is no space for it.
pub(crate) type Take<'a> = dyn FnMut(&DirEntry<'_>, &Origin) -> FailureResult<bool> + 'a;

#[cfg(test)]
mod tests {
    use super::*;
    use nacre_types::FileKind;
    use nacre_wire::dir::DIR_PAGE_MAX;
    use nacre_wire::mds::{DirPage, ListedLayout};

    /// Returns a merge of shards that have these names at these positions, all of them fetched.
    fn merge(shards: &[&[(u64, &str)]]) -> Merge {
        let fid = |place: usize| Fid::new(5, place as u32 + 1, 0);
        let cursor = |(place, names): (usize, &&[(u64, &str)])| {
            let mut page = DirPage { end: true, public: true, ..DirPage::default() };
            for &(cookie, name) in names.iter() {
                let (kind, lock, layout) = (FileKind::Regular, LockHandle(0), ListedLayout::None);
                let (fid, name) = (fid(place), name.as_bytes());
                let entry = DirEntry { cookie, fid, kind, name, attr: None, lock, layout };
                assert!(page.push(&entry, DIR_PAGE_MAX as u32));
            }
            let opener = Caller { uid: 0, gid: 0, pid: 0 };
            let dir = OpenDir::new(fid(place), Some(1), opener);
            let mut cursor = Cursor::new(dir, 0, SHARD_PAGE_MIN);
            cursor.take(Page { page, lease: 0, changes: 0 }, SHARD_PAGE_MIN);
            cursor
        };
        let cursors: Vec<Cursor> = shards.iter().enumerate().map(cursor).collect();
        let heads = cursors.iter().map(Cursor::head).collect();
        let fids = (0..shards.len()).map(fid).collect();
        let (began, cookie, lease, changes) = (0, 0, 0, 0);
        Merge { version: 1, shards: fids, began, cookie, cursors, heads, lease, changes, public: true }
    }

    /// Returns the names of a merge that fit into the space.
    fn list(merge: &mut Merge, mut room: usize) -> Vec<String> {
        let mut names = Vec::new();
        while let Least { cookie, .. } = Least::of(&merge.heads)
            && cookie != END
        {
            let mut take = |entry: &DirEntry<'_>, _: &Origin| {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
                Ok(true)
            };
            match merge.hand_out_group(cookie, false, &mut room, &mut take).expect("it fits") {
                Some(is_due) => assert!(!is_due, "everything is here"),
                None => break,
            }
        }
        names
    }

    #[test]
    fn the_least_of_heads_is_found_with_the_one_behind_it() {
        let mut random = fastrand::Rng::with_seed(1);
        for count in 1..12 {
            for _ in 0..200 {
                let heads: Vec<u64> = (0..count)
                    .map(|_| {
                        let number = random.u64(..);
                        [END, number >> 62, number >> 60, number >> 8][random.usize(..4)]
                    })
                    .collect();
                let mut sorted = heads.clone();
                sorted.sort_unstable();
                let Least { cookie, which, other } = Least::of(&heads);
                assert_eq!((cookie, other), (sorted[0], sorted.get(1).copied().unwrap_or(END)), "{heads:?}");
                assert_eq!(heads[which], cookie, "{heads:?}");
            }
        }
    }

    #[test]
    fn names_of_one_position_stay_together_wherever_they_lie() {
        let shards: [&[(u64, &str)]; 3] =
            [&[(10, "a"), (30, "d"), (30, "e")], &[(20, "c"), (30, "f"), (40, "g")], &[(10, "b")]];
        let all = ["a", "b", "c", "d", "e", "f", "g"];
        assert_eq!(list(&mut merge(&shards), 1000), all);
        // Each entry takes 32 bytes.
        for (room, names) in [(64, 2), (95, 2), (96, 3), (191, 3), (192, 6), (224, 7)] {
            let mut merge = merge(&shards);
            assert_eq!(list(&mut merge, room), all[..names], "{room}");
            merge.began = merge.cookie;
            assert_eq!(list(&mut merge, 1000), all[names..], "{room}");
        }
        let mut merge = merge(&shards);
        assert_eq!(list(&mut merge, 1), all[..2], "the first go out however many they are");
    }

    #[test]
    fn a_reader_that_goes_back_gets_the_same_names_again() {
        let shards: [&[(u64, &str)]; 2] = [&[(10, "a"), (30, "c"), (50, "e")], &[(20, "b"), (40, "d")]];
        for (position, names) in [(0, 0), (10, 1), (25, 2), (30, 3), (50, 5)] {
            let mut merge = merge(&shards);
            assert_eq!(list(&mut merge, 1000).len(), 5);
            for (cursor, head) in merge.cursors.iter_mut().zip(&mut merge.heads) {
                cursor.rewind(position);
                assert!(cursor.passed <= position && !cursor.is_due());
                *head = cursor.head();
            }
            merge.began = position;
            merge.cookie = position;
            assert_eq!(list(&mut merge, 1000), ["a", "b", "c", "d", "e"][names..], "{position}");
        }
        let mut merge = merge(&shards);
        merge.cursors[0].began = 20;
        list(&mut merge, 1000);
        merge.cursors[0].rewind(15);
        assert!(merge.cursors[0].is_due(), "what came before the page is fetched again");
    }
}
