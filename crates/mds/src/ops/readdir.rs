//! Listing directories.

use super::xattr_system::System;
use crate::locks::Want;
use crate::mds::Mds;
use crate::service::Caller;
use crate::shards::place_of;
use crate::tables::{DIRENTS, split_dirent_key};
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_types::name::{COOKIE_FIRST, COOKIE_MAX};
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::dir::{ATTR_BYTES, DIR_PAGE_MAX};
use nacre_wire::mds::{DirEntry, DirPage, LIST_INODES_MAX, ListedLayout, MdsAnswer, MdsReply};
use std::ops::{Bound, ControlFlow};

/// Access times older than this many seconds are renewed even if nothing changed (as `relatime` of Linux does).
const ATIME_AGE_MAX: i64 = 24 * 3600;

/// Bytes of an entry without attributes and with a name of common length, to reserve memory for a page.
const ENTRY_BYTES: u64 = 28 + 20;

/// What a page says of each entry beside its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Details {
    Names,
    Attributes,
    Layouts,
}

/// A page in the making. Names of equal hash share a cookie, so they are never parted.
struct PageBuilder {
    page: DirPage,
    max_bytes: u32,
    /// Hash of the last entry, and where the entries with this hash begin.
    group: (u64, usize),
    full: bool,
}

impl PageBuilder {
    /// Adds an entry; false if the page is full.
    fn add(&mut self, entry: &DirEntry<'_>) -> bool {
        if entry.cookie != self.group.0 {
            self.group = (entry.cookie, self.page.bytes.len());
        }
        if self.page.push(entry, self.max_bytes) {
            return true;
        }
        if self.group.1 == 0 && !self.page.is_empty() {
            // All entries so far have one hash: they must go out together, so the page grows.
            return self.page.push(entry, DIR_PAGE_MAX as u32);
        }
        self.page.bytes.truncate(self.group.1);
        self.full = true;
        false
    }
}

impl Mds {
    /// A page with attributes, for a caller who may search the directory.
    pub(crate) fn scan(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        cookie: u64,
        max_bytes: u32,
        layouts: bool,
    ) -> StatusResult<MdsAnswer> {
        self.check_access(&*self.with_names(fid)?, caller.cred(), perm::EXEC)?;
        let details = if layouts { Details::Layouts } else { Details::Attributes };
        self.read_dir(fid, cookie, max_bytes, details)
    }

    pub(crate) fn read_dir(
        &self,
        fid: &Fid,
        cookie: u64,
        max_bytes: u32,
        details: Details,
    ) -> StatusResult<MdsAnswer> {
        let directory = self.with_names(fid)?;
        let place = place_of(&directory)?;
        if place.is_some() {
            // Names that have come to it according to the shard that they have left.
            self.await_decision(&Want::Still(*fid))?;
        }
        self.await_names(fid)?;
        let public = perm::searchable_by_all(&directory.attr);
        if cookie == 0 {
            self.touch_directory(&directory)?;
        }
        let each = match details {
            Details::Names => ENTRY_BYTES,
            Details::Attributes | Details::Layouts => ENTRY_BYTES + ATTR_BYTES as u64,
        };
        let capacity = (directory.entries().saturating_mul(each)).min(u64::from(max_bytes)) as usize;
        let capacity = capacity.min(DIR_PAGE_MAX);
        let page = DirPage { bytes: Vec::with_capacity(capacity), end: false, public };
        let mut builder = PageBuilder { page, max_bytes, group: (0, 0), full: false };
        let prefix = fid.to_key();
        if cookie < COOKIE_MAX {
            let from = crate::tables::dirent_key(fid, cookie + 1, b"");
            let mut failed = None;
            self.store
                .scan(DIRENTS, &prefix, Bound::Included(from.as_slice()), &mut |key, value| match self
                    .add_entry(&mut builder, key, value, details)
                {
                    Ok(true) => ControlFlow::Continue(()),
                    Ok(false) => ControlFlow::Break(()),
                    Err(status) => {
                        failed = Some(status);
                        ControlFlow::Break(())
                    }
                })
                .map_err(|error| self.store_failed(&error))?;
            if let Some(status) = failed {
                return Err(status);
            }
        }
        if builder.full && builder.page.is_empty() {
            return Err(Status::EINVAL);
        }
        builder.page.end = !builder.full;
        let page = builder.page;
        // What has left meanwhile is told of: a name goes from the store a moment before the record in memory says so.
        self.locks.await_commit(fid);
        let now = place_of(&*self.with_names(fid)?)?;
        match (place, now) {
            (None, None) => Ok(self.answer(MdsReply::Directory(page))),
            (Some(before), Some(now)) if before.version == now.version => {
                let (version, moved) = (now.version, now.moved());
                Ok(self.answer(MdsReply::Shard { page, version, moved }))
            }
            _ => Err(Status::WRONG_SHARD),
        }
    }

    /// What a listing says of inodes whose names lie on other MDTs.
    ///
    /// # Errors
    /// `EINVAL` for too many; `WRONG_TARGET` for one of another MDT; what the store says.
    pub(crate) fn list_inodes(&self, fids: &[Fid], layouts: bool) -> StatusResult<MdsAnswer> {
        if fids.len() > LIST_INODES_MAX {
            return Err(Status::EINVAL);
        }
        let mut page = DirPage { bytes: Vec::new(), end: true, public: false };
        for fid in fids {
            self.await_decision(&Want::Still(*fid))?;
            let Some(record) = self.find_inode(fid)? else { continue };
            let attr = self.told(&record)?;
            let layout = if layouts { self.system_xattr(&record, System::Lov)? } else { None };
            let mut entry = DirEntry {
                cookie: COOKIE_FIRST,
                fid: *fid,
                kind: attr.kind(),
                name: b".",
                attr: Some(attr),
                layout: layout.as_deref().map_or(ListedLayout::None, ListedLayout::Bytes),
            };
            if entry.encoded_len() > DIR_PAGE_MAX {
                entry.layout = ListedLayout::TooLong;
            }
            if !page.push(&entry, DIR_PAGE_MAX as u32) {
                page.end = false;
                break;
            }
        }
        Ok(self.answer(MdsReply::Directory(page)))
    }

    fn add_entry(
        &self,
        builder: &mut PageBuilder,
        key: &[u8],
        value: &[u8],
        details: Details,
    ) -> StatusResult<bool> {
        let entry = split_dirent_key(key).zip(DirentRecord::decode(value).ok());
        let Some(((directory, hash, name), found)) = entry else {
            log::error!("an entry of a directory is damaged: run a check");
            return Err(Status::EUCLEAN);
        };
        let (mut attr, mut layout) = (None, None);
        if details >= Details::Attributes && found.fid.mdt_index() == self.index {
            match self.find_inode(&found.fid)? {
                Some(record) => {
                    attr = Some(self.told(&record)?);
                    if details == Details::Layouts {
                        layout = self.system_xattr(&record, System::Lov)?;
                    }
                }
                None => log::debug!("a name in {directory} was removed while it was listed"),
            }
        }
        let mut entry = DirEntry {
            cookie: hash,
            fid: found.fid,
            kind: found.kind,
            name,
            attr,
            layout: layout.as_deref().map_or(ListedLayout::None, ListedLayout::Bytes),
        };
        // One that would not even fit into a page of its own.
        if layout.is_some() && entry.encoded_len() > builder.max_bytes as usize {
            entry.layout = ListedLayout::TooLong;
        }
        Ok(builder.add(&entry))
    }

    /// Renews a directory's access time, at most once per change or day.
    ///
    /// # Errors
    /// As [`Mds::with_names`]: a shard may be given up while its lock is waited for, which no program is to take for an empty directory.
    pub(crate) fn touch_directory(&self, seen: &InodeRecord) -> StatusResult<()> {
        let now = self.now();
        let due = |attr: &nacre_types::Attr| {
            attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= ATIME_AGE_MAX
        };
        if !due(&seen.attr) || self.space.is_full() {
            return Ok(());
        }
        let fid = seen.attr.fid;
        let _locked = self.locks.lock(&[Want::Still(fid)])?;
        let record = self.with_names(&fid)?;
        if !due(&record.attr) {
            return Ok(());
        }
        let mut tx = self.begin();
        let mut changed = InodeRecord::clone(&record);
        changed.attr.atime = now;
        tx.put_inode(changed);
        self.commit(&mut tx).map(|_| ())
    }
}
