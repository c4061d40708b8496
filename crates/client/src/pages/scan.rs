//! Scans of directories for programs that read every entry.

use crate::caller::Caller;
use crate::inodes::page_locks::PageHandles;
use crate::pages::Pages;
use crate::requests::mdt::Answer;
use nacre_layout::dir_layout::DirLayout;
use nacre_lock::LockHandle;
use nacre_types::ioctl::ScanWanted;
use nacre_types::{Attr, AttrFlags, FailureResult, Fid, SizeSource, Status, StatusResult};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{DirEntry, DirPage, LIST_INODES_MAX, ListedLayout, LockRange, MdsReply, MdsRequest};
use std::collections::{BTreeMap, HashMap};

/// Least size of a shard's page when a program's request is divided over shards, in bytes.
const SHARD_PAGE_MIN: usize = 16 << 10;

/// Entries for inodes of other MDTs, and the lease under which they were requested; 0 if under none.
struct ListedInodes {
    pages: Vec<DirPage>,
    lease: u64,
}

impl ListedInodes {
    fn by_fid(&self) -> HashMap<Fid, DirEntry<'_>> {
        self.pages.iter().flat_map(DirPage::entries).map(|entry| (entry.fid, entry)).collect()
    }
}

/// A page of a shard, and its validity.
pub(crate) struct ShardPage {
    pub page: DirPage,
    pub lease: u64,
    /// Position before which names may have left the shard until the page was read to its end.
    pub moved: u64,
}

impl ShardPage {
    /// Extracts the page from a reply about a shard in a list with a version.
    ///
    /// # Errors
    /// `WRONG_SHARD` if it is in another list; `EPROTO`.
    pub fn of(answer: Answer, expected: u32) -> FailureResult<ShardPage> {
        match answer.reply {
            MdsReply::Shard { page, version, moved } if version == expected => {
                Ok(ShardPage { page, lease: answer.lease, moved })
            }
            MdsReply::Shard { .. } | MdsReply::Directory(_) => Err(Status::WRONG_SHARD.into()),
            _ => Err(Status::EPROTO.into()),
        }
    }
}

/// Returns the entries of all shards behind position `cookie`, up to where the first of their pages ends;
/// `ask` requests a page of one shard.
///
/// While names move, one that moves from a shard whose page was read after it had left to one whose page was
/// read before would be missed. So the pages count only if no shard has passed their positions meanwhile; a
/// name that was seen twice is listed once.
///
/// # Errors
/// The error of `ask`; `E2BIG` if names of one position do not fit; `EINTR`.
pub(crate) fn scan_shards(
    layout: &DirLayout,
    cookie: u64,
    max_bytes: usize,
    ask: impl Fn(Fid, usize) -> FailureResult<ShardPage>,
) -> FailureResult<(DirPage, u64)> {
    // Sized so that all pages together fit, and each has space for a name of any length and its layout.
    let each = (max_bytes / layout.shards.len().max(1)).max(SHARD_PAGE_MIN).min(max_bytes);
    let mut before: Option<Vec<u64>> = None;
    loop {
        let pages =
            layout.shards.iter().map(|shard| ask(*shard, each)).collect::<FailureResult<Vec<ShardPage>>>()?;
        let ends = pages.iter().map(|shard| &shard.page).filter(|page| !page.end);
        let bound = ends.filter_map(|page| page.entries().last().map(|entry| entry.cookie)).min();
        let moved: Vec<u64> = pages.iter().map(|shard| shard.moved).collect();
        if layout.change().is_none() || is_sure(before.as_deref(), &moved, (cookie, bound)) {
            return join(&pages, bound, max_bytes);
        }
        before = Some(moved);
        if nacre_env::interrupted() {
            return Err(Status::EINTR.into());
        }
    }
}

/// True if no shard has moved names behind position `from` up to `bound` between two readings of its
/// progress.
pub(crate) fn is_sure(before: Option<&[u64]>, moved: &[u64], (from, bound): (u64, Option<u64>)) -> bool {
    let before = |place: usize| before.map_or(0, |before| before[place]);
    moved.iter().enumerate().all(|(place, &moved)| {
        let first = before(place).max(from.saturating_add(1));
        first >= moved || bound.is_some_and(|bound| first > bound)
    })
}

fn join(pages: &[ShardPage], bound: Option<u64>, max_bytes: usize) -> FailureResult<(DirPage, u64)> {
    let lease = pages.first().map_or(0, |page| page.lease);
    let lease = if pages.iter().all(|page| page.lease == lease) { lease } else { 0 };
    let mut entries: Vec<DirEntry<'_>> = pages.iter().flat_map(|shard| shard.page.entries()).collect();
    entries.retain(|entry| bound.is_none_or(|bound| entry.cookie <= bound));
    entries.sort_by(|a, b| (a.cookie, a.name).cmp(&(b.cookie, b.name)));
    entries.dedup_by(|a, b| (a.cookie, a.name) == (b.cookie, b.name));
    let public = pages.iter().all(|shard| shard.page.public);
    let bytes = Vec::with_capacity(max_bytes);
    let mut merged = DirPage { bytes, end: bound.is_none(), public, ..DirPage::default() };
    for group in entries.chunk_by(|a, b| a.cookie == b.cookie) {
        let before = merged.bytes.len();
        if !group.iter().all(|entry| merged.push(entry, max_bytes as u32)) {
            merged.bytes.truncate(before);
            merged.end = false;
            break;
        }
    }
    if merged.is_empty() && !merged.end { Err(Status::E2BIG.into()) } else { Ok((merged, lease)) }
}

impl Pages {
    /// Completes a page with inodes that are on other MDTs than their names. The page may end earlier then.
    fn with_those_elsewhere(&self, page: &DirPage, max_bytes: u32, layouts: bool) -> FailureResult<DirPage> {
        let missing = page.entries().filter(|entry| entry.attr.is_none()).map(|entry| entry.fid);
        let inodes = self.list_inodes(missing, layouts, false)?;
        let found = inodes.by_fid();
        let mut filled = DirPage { bytes: Vec::with_capacity(max_bytes as usize), ..*page };
        // Where the names with the position of the last one begin.
        let (mut group, mut group_at) = (0, 0);
        for mut entry in page.entries() {
            if entry.attr.is_none() {
                // An inode that was not found was removed meanwhile.
                let Some(inode) = found.get(&entry.fid) else { continue };
                (entry.attr, entry.layout) = (inode.attr, inode.layout);
                if entry.encoded_len() > max_bytes as usize {
                    entry.layout = ListedLayout::TooLong;
                }
            }
            if entry.cookie != group {
                (group, group_at) = (entry.cookie, filled.bytes.len());
            }
            if !filled.push(&entry, max_bytes) {
                filled.bytes.truncate(group_at);
                filled.end = false;
                break;
            }
        }
        if filled.is_empty() && !filled.end { Err(Status::E2BIG.into()) } else { Ok(filled) }
    }

    /// Does the same for a page of names of `home`, which was requested under a lease or with locks:
    /// attributes of inodes of other MDTs come under the same lease, or each with a lock, or not at all. The
    /// page may grow.
    ///
    /// # Errors
    /// The error of an MDT.
    pub(crate) fn with_attributes(&self, page: DirPage, home: Fid, lease: u64) -> FailureResult<DirPage> {
        let with_locks = page.lock.0 != 0;
        let is_elsewhere = |entry: &DirEntry<'_>| entry.fid.mdt_index() != home.mdt_index();
        let is_missing = |entry: &DirEntry<'_>| entry.attr.is_none() && is_elsewhere(entry);
        if (lease == 0 && !with_locks) || !page.entries().any(|entry| is_missing(&entry)) {
            return Ok(page);
        }
        let inodes =
            self.list_inodes(page.entries().filter(is_missing).map(|entry| entry.fid), false, with_locks)?;
        if !with_locks && inodes.lease != lease {
            return Ok(page);
        }
        let found = inodes.by_fid();
        let mut filled = DirPage { bytes: Vec::with_capacity(2 * page.bytes.len()), ..page };
        for mut entry in page.entries() {
            if let Some(found) = found.get(&entry.fid).filter(|_| is_missing(&entry)) {
                (entry.attr, entry.lock) = (found.attr, found.lock);
            }
            // Names of one position stay together: one that does not fit with its attributes comes without.
            if !filled.push(&entry, DIR_PAGE_MAX as u32)
                && !filled.push(&DirEntry { attr: None, lock: LockHandle(0), ..entry }, DIR_PAGE_MAX as u32)
            {
                return Ok(page);
            }
        }
        Ok(filled)
    }

    /// Requests entries for inodes from their MDTs, many at a time.
    fn list_inodes(
        &self,
        fids: impl Iterator<Item = Fid>,
        layouts: bool,
        with_locks: bool,
    ) -> FailureResult<ListedInodes> {
        let mut by_mdt: BTreeMap<u16, Vec<Fid>> = BTreeMap::new();
        fids.for_each(|fid| by_mdt.entry(fid.mdt_index()).or_default().push(fid));
        let (mut pages, mut lease) = (Vec::new(), None);
        for fids in by_mdt.values_mut() {
            // An inode with several names in the directory is requested once.
            fids.sort_unstable();
            fids.dedup();
            let mut rest = &fids[..];
            while let Some(first) = rest.first() {
                let some = rest[..rest.len().min(LIST_INODES_MAX)].to_vec();
                let asked = some.len();
                let handles = with_locks.then(|| self.inodes.page_handles(*first, asked));
                let locks = handles.as_ref().map_or(LockRange::default(), PageHandles::range);
                let request = MdsRequest::ListInodes { fids: some, layouts, locks };
                let answer = self.requests.call_system(*first, &request)?;
                let MdsReply::Directory(page) = answer.reply else { return Err(Status::EPROTO.into()) };
                handles.iter().for_each(|handles| handles.adopt(None, &page));
                let under = answer.lease;
                lease = Some(lease.map_or(under, |lease| if lease == under { lease } else { 0 }));
                let last = page.entries().last().map(|entry| entry.fid);
                rest = match (page.end, last) {
                    (true, _) => &rest[asked..],
                    // The inodes behind the last one did not fit.
                    (false, Some(last)) => &rest[rest.partition_point(|fid| *fid <= last)..],
                    (false, None) => return Err(Status::EPROTO.into()),
                };
                pages.push(page);
            }
        }
        Ok(ListedInodes { pages, lease: lease.unwrap_or(0) })
    }

    /// Puts in values that are newer at this client than at the MDT.
    fn with_sizes(&self, page: DirPage, lease: u64) -> DirPage {
        let unsure = |attr: &Attr| match attr.is_regular() {
            true => {
                attr.size_source == SizeSource::Objects || self.nodes.file(attr.fid.inode_number()).is_some()
            }
            false => attr.flags.contains(AttrFlags::STRIPED),
        };
        if !page.entries().filter_map(|entry| entry.attr).any(|attr| unsure(&attr)) {
            return page;
        }
        let mut changed = DirPage { bytes: Vec::with_capacity(page.bytes.len()), ..page };
        for entry in page.entries() {
            let attr = entry.attr.map(|attr| self.sure_attr(attr, lease).unwrap_or(attr));
            // Of the same length as the original, so it fits.
            changed.push(&DirEntry { attr, ..entry }, u32::MAX);
        }
        changed
    }

    /// Returns the entries of a directory behind position `cookie` with their attributes and the further data
    /// `wanted`: at most `max_bytes` of them. Nothing of it is cached.
    ///
    /// # Errors
    /// `EACCES` without permission to search; `E2BIG` if names of equal hash do not fit; the error of the
    /// MDT; `EINTR`.
    pub fn scan(
        &self,
        caller: &Caller,
        fid: Fid,
        cookie: u64,
        max_bytes: usize,
        wanted: ScanWanted,
    ) -> StatusResult<DirPage> {
        self.requests.faults.edge("scan", || {
            let layouts = wanted.contains(ScanWanted::LAYOUTS);
            let ask = |fid: Fid, max_bytes: usize| {
                let request = MdsRequest::Scan { fid, cookie, max_bytes: max_bytes as u32, layouts };
                self.requests.call(caller, fid, &request)
            };
            let (mut page, lease) = self.shards.at_home(fid, b"", |_| match self.shards.lists.get(fid) {
                Some(layout) => scan_shards(&layout, cookie, max_bytes, |shard, max_bytes| {
                    ShardPage::of(ask(shard, max_bytes)?, layout.version)
                }),
                None => {
                    let answer = ask(fid, max_bytes)?;
                    match answer.reply {
                        MdsReply::Directory(page) => Ok((page, answer.lease)),
                        MdsReply::Shard { .. } => Err(Status::WRONG_SHARD.into()),
                        _ => Err(Status::EPROTO.into()),
                    }
                }
            })?;
            if page.entries().any(|entry| entry.attr.is_none()) {
                page = self.with_those_elsewhere(&page, max_bytes as u32, layouts)?;
            }
            if wanted.contains(ScanWanted::SIZES) {
                page = self.with_sizes(page, lease);
            }
            if page.bytes.len() > max_bytes { Err(Status::E2BIG.into()) } else { Ok(page) }
        })
    }
}
