//! Directory listings.

use super::Lookups;
use crate::layouts::system::System;
use crate::locks::Want;
use crate::plan::check_access;
use crate::shards::place_of;
use crate::suspend::Caller;
use crate::tables::{DIRENTS, split_dirent_key};
use crate::tx::now;
use nacre_lock::LockHandle;
use nacre_ondisk::{DirentRecord, InodeRecord};
use nacre_rpc::Export;
use nacre_types::name::{COOKIE_FIRST, COOKIE_MAX};
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::dir::{ATTR_BYTES, DIR_PAGE_MAX, LOCK_BYTES};
use nacre_wire::mds::{DirEntry, DirPage, LIST_INODES_MAX, ListedLayout, LockRange, MdsAnswer, MdsReply};
use std::ops::{Bound, ControlFlow};

/// Age in seconds from which access times are updated even without a change (like Linux's `relatime`).
const ATIME_AGE_MAX: i64 = 24 * 3600;

/// Bytes of an entry without attributes and with a name of typical length, to reserve memory for a page.
const ENTRY_BYTES: u64 = 28 + 20;

/// The content of a page's entries in addition to their names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Details {
    Names,
    Attributes,
    Layouts,
}

/// The part of a directory to list, and the content of entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listing {
    pub fid: Fid,
    /// Position after which entries are listed.
    pub cookie: u64,
    pub max_bytes: u32,
    pub details: Details,
    /// Locks that the answer may grant. If there are any, entries have attributes only with a lock.
    pub locks: LockRange,
}

impl Listing {
    /// Requests names, and attributes with `plus`, on a page of at most `max_bytes` bytes after a position.
    pub fn of(fid: Fid, cookie: u64, max_bytes: u32, plus: bool, locks: LockRange) -> Listing {
        let details = if plus { Details::Attributes } else { Details::Names };
        Listing { fid, cookie, max_bytes, details, locks }
    }
}

/// A page under construction. Names with equal hashes share a cookie, so they are always on the same page.
struct PageBuilder {
    page: DirPage,
    max_bytes: u32,
    /// Bytes of each entry that are added afterwards, and the number of entries.
    later_bytes: u32,
    entries: u32,
    /// Hash of the last entry, and offset of the first entry with this hash.
    group: (u64, usize),
    full: bool,
}

impl PageBuilder {
    fn new(page: DirPage, max_bytes: u32, later_bytes: usize) -> PageBuilder {
        let later_bytes = later_bytes as u32;
        PageBuilder { page, max_bytes, later_bytes, entries: 0, group: (0, 0), full: false }
    }

    /// Adds an entry; returns false if the page is full.
    fn add(&mut self, entry: &DirEntry<'_>) -> bool {
        if entry.cookie != self.group.0 {
            self.group = (entry.cookie, self.page.bytes.len());
        }
        self.entries += 1;
        let later = self.later_bytes.saturating_mul(self.entries);
        if self.page.push(entry, self.max_bytes.saturating_sub(later)) {
            return true;
        }
        if self.group.1 == 0 && !self.page.is_empty() {
            // All entries so far have one hash: they must be on one page, so the page grows.
            return self.page.push(entry, DIR_PAGE_MAX as u32);
        }
        self.page.bytes.truncate(self.group.1);
        self.full = true;
        false
    }
}

/// Checks a range of locks.
///
/// # Errors
/// `EINVAL` for an invalid range of handles.
pub(super) fn check_range(locks: LockRange) -> StatusResult<()> {
    let is_sound = locks.first.0 > 0 && locks.first.0.checked_add(u64::from(locks.count)).is_some();
    if locks.count == 0 || is_sound { Ok(()) } else { Err(Status::EINVAL) }
}

impl Lookups {
    /// Returns a page with attributes, for a caller that may search the directory.
    pub fn scan(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        cookie: u64,
        max_bytes: u32,
        layouts: bool,
    ) -> StatusResult<MdsAnswer> {
        check_access(&*self.leaves.records.with_names(fid)?, caller.cred(), perm::EXEC)?;
        let details = if layouts { Details::Layouts } else { Details::Attributes };
        let (fid, locks) = (*fid, LockRange::default());
        self.read_dir(caller.export, &Listing { fid, cookie, max_bytes, details, locks })
    }

    /// Returns a page of a directory.
    ///
    /// # Errors
    /// `WRONG_SHARD` if names are elsewhere; `EINVAL` if not even one entry fits, or for an invalid range of
    /// locks.
    pub fn read_dir(&self, export: &Export, listing: &Listing) -> StatusResult<MdsAnswer> {
        let Listing { ref fid, cookie, max_bytes, details, locks } = *listing;
        check_range(locks)?;
        let with_locks = locks.count > 0;
        let mut directory = self.leaves.records.with_names(fid)?;
        let place = place_of(&directory)?;
        if place.is_some() {
            // Names may have moved here according to the shard that they left.
            self.leaves.locks.await_decision(&Want::Still(*fid))?;
        }
        self.core.participant.await_names(fid)?;
        if cookie == 0 {
            // The kernel reads the time again after a listing, so its client need not release its lock.
            self.touch_directory(&directory, Some(export).filter(|_| with_locks))?;
            directory = self.leaves.records.with_names(fid)?;
        }
        // With locks, attributes are read after the names, when the iteration over the store has ended: each
        // under the latch of its inode.
        let later_bytes = if with_locks && details > Details::Names { ATTR_BYTES + LOCK_BYTES } else { 0 };
        let each = match details {
            Details::Names => ENTRY_BYTES,
            Details::Attributes | Details::Layouts => ENTRY_BYTES + ATTR_BYTES as u64,
        };
        let capacity = (directory.entries().saturating_mul(each)).min(u64::from(max_bytes)) as usize;
        let capacity = capacity.min(DIR_PAGE_MAX);
        let public = perm::searchable_by_all(&directory.attr);
        let page = DirPage { bytes: Vec::with_capacity(capacity), public, ..DirPage::default() };
        let mut builder = PageBuilder::new(page, max_bytes, later_bytes);
        let while_walking = if with_locks { Details::Names } else { details };
        self.walk(&mut builder, fid, cookie, while_walking)?;
        if builder.full && builder.page.is_empty() {
            return Err(Status::EINVAL);
        }
        builder.page.end = !builder.full;
        let mut page = builder.page;
        // A name leaves the store a moment before the record in memory changes; after this wait the record
        // shows it.
        self.leaves.locks.await_commit(fid);
        let now = place_of(&*self.leaves.records.with_names(fid)?)?;
        if with_locks {
            let of_inodes = details > Details::Names;
            page =
                self.core.client_locks.page_with_locks(export, page, Some((&directory, of_inodes)), locks)?;
        }
        match (place, now) {
            (None, None) => Ok(self.core.commits.answer(MdsReply::Directory(page))),
            (Some(before), Some(now)) if before.version == now.version => {
                let (version, moved) = (now.version, now.moved());
                Ok(self.core.commits.answer(MdsReply::Shard { page, version, moved }))
            }
            _ => Err(Status::WRONG_SHARD),
        }
    }

    /// Adds entries after a position until there are no more, or the page is full.
    fn walk(&self, builder: &mut PageBuilder, fid: &Fid, cookie: u64, details: Details) -> StatusResult<()> {
        if cookie >= COOKIE_MAX {
            return Ok(());
        }
        let (prefix, from) = (fid.to_key(), crate::tables::dirent_key(fid, cookie + 1, b""));
        let mut failed = Ok(());
        self.leaves
            .store
            .scan(DIRENTS, &prefix, Bound::Included(from.as_slice()), &mut |key, value| match self
                .add_entry(builder, key, value, details)
            {
                Ok(true) => ControlFlow::Continue(()),
                Ok(false) => ControlFlow::Break(()),
                Err(status) => {
                    failed = Err(status);
                    ControlFlow::Break(())
                }
            })
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        failed
    }

    /// Returns the attributes for listings of inodes whose names are on other MDTs.
    ///
    /// # Errors
    /// `EINVAL` for too many; `WRONG_TARGET` for an inode of another MDT; those of the store.
    pub fn list_inodes(
        &self,
        caller: &Caller<'_>,
        fids: &[Fid],
        layouts: bool,
        locks: LockRange,
    ) -> StatusResult<MdsAnswer> {
        check_range(locks)?;
        if fids.len() > LIST_INODES_MAX {
            return Err(Status::EINVAL);
        }
        let with_locks = locks.count > 0;
        let later_bytes = if with_locks { ATTR_BYTES + LOCK_BYTES } else { 0 };
        let mut page = DirPage { end: true, ..DirPage::default() };
        for (number, fid) in fids.iter().enumerate() {
            self.leaves.locks.await_decision(&Want::Still(*fid))?;
            let Some(record) = self.leaves.records.find_inode(fid)? else { continue };
            let attr = if with_locks { None } else { Some(self.core.layouts.told(&record)?) };
            let layout = if layouts { self.core.layouts.system_xattr(&record, System::Lov)? } else { None };
            let mut entry = DirEntry {
                cookie: COOKIE_FIRST,
                fid: *fid,
                kind: record.attr.kind(),
                name: b".",
                attr,
                lock: LockHandle(0),
                layout: layout.as_deref().map_or(ListedLayout::None, ListedLayout::Bytes),
            };
            if entry.encoded_len() > DIR_PAGE_MAX {
                entry.layout = ListedLayout::TooLong;
            }
            if !page.push(&entry, (DIR_PAGE_MAX - later_bytes * (number + 1)) as u32) {
                page.end = false;
                break;
            }
        }
        if with_locks {
            page = self.core.client_locks.page_with_locks(caller.export, page, None, locks)?;
        }
        Ok(self.core.commits.answer(MdsReply::Directory(page)))
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
        if details >= Details::Attributes && found.fid.mdt_index() == self.leaves.index {
            match self.leaves.records.find_inode(&found.fid)? {
                Some(record) => {
                    attr = Some(self.core.layouts.told(&record)?);
                    if details == Details::Layouts {
                        layout = self.core.layouts.system_xattr(&record, System::Lov)?;
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
            lock: LockHandle(0),
            layout: layout.as_deref().map_or(ListedLayout::None, ListedLayout::Bytes),
        };
        // An entry that would not even fit a page of its own is sent without its layout.
        if layout.is_some() && entry.encoded_len() > builder.max_bytes as usize {
            entry.layout = ListedLayout::TooLong;
        }
        Ok(builder.add(&entry))
    }

    /// Updates a directory's access time, at most once per change or day; the client of `export` keeps its
    /// locks.
    ///
    /// # Errors
    /// As [`crate::records::Records::with_names`]: a shard may be removed during the wait for its lock, which
    /// a program must not see as an empty directory.
    pub fn touch_directory(&self, seen: &InodeRecord, export: Option<&Export>) -> StatusResult<()> {
        let now = now();
        let due = |attr: &nacre_types::Attr| {
            attr.atime <= attr.mtime || attr.atime <= attr.ctime || now.sec - attr.atime.sec >= ATIME_AGE_MAX
        };
        if !due(&seen.attr) || self.leaves.space.is_full() {
            return Ok(());
        }
        let fid = seen.attr.fid;
        let _locked = self.leaves.locks.lock(&[Want::Still(fid)])?;
        let record = self.leaves.records.with_names(&fid)?;
        if !due(&record.attr) {
            return Ok(());
        }
        let mut tx = self.leaves.records.begin();
        let mut changed = InodeRecord::clone(&record);
        changed.attr.atime = now;
        tx.put_inode(changed);
        match self.core.commits.commit_as(export, &mut tx) {
            // A full or broken disk does not prevent the listing.
            Err(status @ (Status::ENOSPC | Status::EIO | Status::EROFS)) => {
                log::debug!("the access time of {fid} is not renewed: {status}");
                Ok(())
            }
            outcome => outcome.map(drop),
        }
    }
}
