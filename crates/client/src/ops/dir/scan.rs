//! Directories read by programs that look at every entry.

use crate::caller::Caller;
use crate::client::Client;
use nacre_types::ioctl::ScanWanted;
use nacre_types::{Attr, AttrFlags, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{DirEntry, DirPage, ListedLayout, MdsReply, MdsRequest};

/// A page of a shard that a program's request is divided into has at least so many bytes.
const SHARD_PAGE_MIN: usize = 16 << 10;

/// The entries of all shards up to the position where the first of their pages ends, with `ask` for a page of one.
fn scan_shards(
    shards: &[Fid],
    max_bytes: usize,
    ask: impl Fn(Fid, usize) -> StatusResult<(DirPage, u64)>,
) -> StatusResult<(DirPage, u64)> {
    // All pages together fit, and one with a name of any length and its layout.
    let each = (max_bytes / shards.len().max(1)).max(SHARD_PAGE_MIN).min(max_bytes);
    let (mut pages, mut lease) = (Vec::with_capacity(shards.len()), None);
    for &shard in shards {
        let (page, under) = ask(shard, each)?;
        lease = Some(lease.map_or(under, |lease| if lease == under { lease } else { 0 }));
        pages.push(page);
    }
    let ends = pages.iter().filter(|page| !page.end);
    let bound = ends.filter_map(|page| page.entries().last().map(|entry| entry.cookie)).min();
    let mut entries: Vec<DirEntry<'_>> = pages.iter().flat_map(DirPage::entries).collect();
    entries.retain(|entry| bound.is_none_or(|bound| entry.cookie <= bound));
    entries.sort_by_key(|entry| entry.cookie);
    let public = pages.iter().all(|page| page.public);
    let mut merged = DirPage { bytes: Vec::with_capacity(max_bytes), end: bound.is_none(), public };
    for group in entries.chunk_by(|a, b| a.cookie == b.cookie) {
        let before = merged.bytes.len();
        if !group.iter().all(|entry| merged.push(entry, max_bytes as u32)) {
            merged.bytes.truncate(before);
            merged.end = false;
            break;
        }
    }
    if merged.is_empty() && !merged.end { Err(Status::E2BIG) } else { Ok((merged, lease.unwrap_or(0))) }
}

impl Client {
    /// The entries of a directory behind position `cookie` with their attributes, and with what is `wanted` beside them: at
    /// most `max_bytes` of them. Nothing of it is kept.
    ///
    /// # Errors
    /// `EACCES` without permission to search; `E2BIG` if names of equal hash do not fit; what the MDT answers; `EINTR`.
    pub fn scan(
        &self,
        caller: &Caller,
        fid: Fid,
        cookie: u64,
        max_bytes: usize,
        wanted: ScanWanted,
    ) -> StatusResult<DirPage> {
        let layouts = wanted.contains(ScanWanted::LAYOUTS);
        let ask = |fid: Fid, max_bytes: usize| {
            let request = MdsRequest::Scan { fid, cookie, max_bytes: max_bytes as u32, layouts };
            let answer = self.call(caller, fid, &request)?;
            match answer.reply {
                MdsReply::Directory(page) => Ok((page, answer.lease)),
                _ => Err(Status::EPROTO),
            }
        };
        let (mut page, lease) = self.at_home(fid, b"", |_| match self.shard_lists.get(fid) {
            Some(layout) => scan_shards(&layout.shards, max_bytes, ask),
            None => ask(fid, max_bytes),
        })?;
        if page.entries().any(|entry| entry.attr.is_none()) {
            page = self.with_those_elsewhere(&page, max_bytes as u32, layouts)?;
        }
        if wanted.contains(ScanWanted::SIZES) {
            page = self.with_sizes(page, lease);
        }
        if page.bytes.len() > max_bytes { Err(Status::E2BIG) } else { Ok(page) }
    }

    /// Puts in what lies on other MDTs than its name. The page may end earlier then.
    fn with_those_elsewhere(&self, page: &DirPage, max_bytes: u32, layouts: bool) -> StatusResult<DirPage> {
        let mut filled = DirPage { bytes: Vec::with_capacity(max_bytes as usize), ..*page };
        // Where the names begin that have the position of the last one.
        let (mut group, mut group_at) = (0, 0);
        for mut entry in page.entries() {
            let layout = match entry.attr {
                None => match self.ask_entry(entry.fid, layouts)? {
                    Some((attr, layout)) => {
                        entry.attr = Some(attr);
                        layout
                    }
                    // Removed meanwhile.
                    None => continue,
                },
                Some(_) => None,
            };
            if let Some(layout) = &layout {
                entry.layout = ListedLayout::Bytes(layout);
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
        if filled.is_empty() && !filled.end { Err(Status::E2BIG) } else { Ok(filled) }
    }

    /// What a listing says of an inode; `None` if it is gone.
    fn ask_entry(&self, fid: Fid, with_layout: bool) -> StatusResult<Option<(Attr, Option<Vec<u8>>)>> {
        let attr = match self.mdt_attr(fid) {
            Ok(attr) => attr,
            Err(Status::ENOENT) => return Ok(None),
            Err(status) => return Err(status),
        };
        if !with_layout || !(attr.is_regular() || attr.is_dir()) {
            return Ok(Some((attr, None)));
        }
        match self.call_system(fid, &MdsRequest::GetXattr { fid, name: b"lustre.lov" }) {
            Ok(answer) => Ok(Some((attr, Some(answer.bytes()?)))),
            Err(Status::ENODATA) => Ok(Some((attr, None))),
            Err(Status::ENOENT) => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Attributes as the MDT has them: size, space and times of data may be out of date.
    ///
    /// # Errors
    /// What the MDT answers.
    pub fn mdt_attr(&self, fid: Fid) -> StatusResult<Attr> {
        self.call_system(fid, &MdsRequest::GetAttr { fid })?.attr()
    }

    /// Puts in what this client knows better than the MDT.
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
            // The same length as before, so it fits.
            changed.push(&DirEntry { attr, ..entry }, u32::MAX);
        }
        changed
    }
}
