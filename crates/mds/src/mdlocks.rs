//! What clients cache of inodes and names, and how it is called back before it changes.
//!
//! While several clients share the lease, answers to lookups and to requests for attributes come with read locks on parts of
//! the inodes ([`ClientLocks::intend`]): on what the name stands for, and on the content of the directory that it was looked up in, so
//! that names that are not there may be remembered too. Such a lock is granted at once or not at all.
//!
//! A change calls back what clients have of the inodes that its transaction touches, right before the transaction is
//! committed ([`ClientLocks::call_back`]). So everybody sees the old state until then, and afterwards nobody has it cached. This is
//! the only place that calls clients back.
//!
//! Grants and changes of an inode exclude each other by the table of inode locks ([`crate::locks`]): both latch it, or the change keeps
//! it, on which nothing is granted. So a change that finds no lock of a client cannot miss one, none comes between its callbacks and its
//! commit, and what is read before a grant is what the lock stands for. A change waits for clients while it keeps inodes, so the answer to a callback must
//! need nothing of the table: it is a cancel.
//!
//! Layouts have locks of their own, on other parts of the inode, so that changes of attributes leave them alone. They come with
//! opens and with the layout ([`crate::layout_changes::LayoutChanges::layout_access`]), are called back by what changes the layout
//! ([`ClientLocks::call_back_layout`]), and are brought back after a restart: I/O goes on under them. See
//! `docs/design/layout-changes.md`.
//!
//! The thread that evicts clients must never wait for an answer itself, nor for the lock of an inode: its holder
//! may be waiting for an eviction. It takes what a client had in the lock server and leaves the rest to
//! [`crate::departed`].

use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::{Locked, Want};
use crate::plan::check_access;
use crate::records::Lead;
use crate::turn::Caller;
use crate::tx::Tx;
use nacre_lock::{InodeBits, LockHandle, Mode, Need, ResourceId};
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Attr, AttrFlags, Fid, SizeSource, Status, StatusResult, perm};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{DirEntry, DirPage, LockRange, MdsReply};
use std::sync::Arc;

/// What a lock on an inode covers, and what a change of it calls back. Locks on the content of a directory alone have UPDATE of it,
/// which every change of an inode touches: there is nothing that a client could keep.
const EVERYTHING: InodeBits =
    InodeBits::UPDATE.union(InodeBits::PERM).union(InodeBits::XATTR).union(InodeBits::LOOKUP);
/// What a lock on a layout covers: that the objects which it names stay, and that no others come.
pub(crate) const LAYOUT: InodeBits = InodeBits::LAYOUT.union(InodeBits::COMPONENTS);
/// "No lock" in an answer.
const NO_LOCK: LockHandle = LockHandle(0);

/// True if from now on the file changes without the MDT being asked: then the client that makes it so is called back too.
fn leaves_the_mdt(old: &InodeRecord, new: Option<&InodeRecord>) -> bool {
    let is_exact = |record: &InodeRecord| record.attr.size_source == SizeSource::Exact;
    is_exact(old) && new.is_some_and(|new| !is_exact(new))
}

/// See the [module documentation](self).
pub(crate) struct ClientLocks {
    leaves: Arc<Leaves>,
    layouts: Arc<Layouts>,
}

impl ClientLocks {
    pub fn new(leaves: &Arc<Leaves>, layouts: &Arc<Layouts>) -> ClientLocks {
        ClientLocks { leaves: leaves.clone(), layouts: layouts.clone() }
    }

    /// Looks a name up, or asks for the attributes of an inode, for a client that would like to keep the answer. The lock on
    /// the directory comes under `handle` and that on the inode under the next one, or under what the client has already. The
    /// answer is as good without locks, but nothing to be kept.
    ///
    /// # Errors
    /// Those of a lookup; `EINVAL` for `.`, `..` and no name at all.
    pub fn intend(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        name: Option<&[u8]>,
        handle: LockHandle,
    ) -> StatusResult<MdsReply> {
        let inode_handle = LockHandle(handle.0.checked_add(1).ok_or(Status::EINVAL)?);
        let Some(name) = name else {
            let locked = self.leaves.locks.lock(&[Want::Still(*fid)])?;
            let attr = self.layouts.told(&self.leaves.records.inode(fid)?)?;
            let inode = self.grant_on_inode(caller.export, inode_handle, &attr, &locked)?;
            let (attr, public, names, directory) = (Some(attr), false, None, NO_LOCK);
            return Ok(MdsReply::Intent { attr, public, names, directory, inode });
        };
        if matches!(name, b"" | b"." | b"..") {
            return Err(Status::EINVAL);
        }
        let (locked, record, lead) = self.find_locked(caller, fid, name)?;
        let (public, names) = (perm::searchable_by_all(&record.attr), Some(record.attr.size));
        let directory = self.grant(caller.export, handle, fid, InodeBits::UPDATE, &locked)?;
        let (attr, inode) = match lead {
            Lead::Nowhere => (None, NO_LOCK),
            Lead::Here(attr) => {
                (Some(attr), self.grant_on_inode(caller.export, inode_handle, &attr, &locked)?)
            }
            Lead::Elsewhere(fid) => {
                return Ok(MdsReply::Remote { fid, public, names, directory });
            }
        };
        Ok(MdsReply::Intent { attr, public, names, directory, inode })
    }

    /// A directory that the caller may search, what a name in it stands for, and the locks on both.
    fn find_locked(
        &self,
        caller: &Caller<'_>,
        directory: &Fid,
        name: &[u8],
    ) -> StatusResult<(Locked<'_>, Arc<InodeRecord>, Lead)> {
        if name.len() > NAME_MAX {
            return Err(Status::ENAMETOOLONG);
        }
        let (hash, mut child) = (self.leaves.records.hash(name), None);
        loop {
            let own = Want::Name(*directory, name);
            let mut locked = match child {
                None => self.leaves.locks.lock(&[own])?,
                Some(child) => self.leaves.locks.lock(&[own, child])?,
            };
            let record = self.leaves.records.home_of(directory, name)?;
            check_access(&record, caller.cred(), perm::EXEC)?;
            let Some(found) = self.leaves.records.find_name(directory, hash, name)? else {
                return Ok((locked, record, Lead::Nowhere));
            };
            if found.fid.mdt_index() != self.leaves.index {
                return Ok((locked, record, Lead::Elsewhere(found.fid)));
            }
            let lead = Want::Still(found.fid);
            if locked.add(&lead) {
                let attr = self.layouts.told(&self.leaves.records.inode(&found.fid)?)?;
                return Ok((locked, record, Lead::Here(attr)));
            }
            child = Some(lead);
        }
    }

    /// A lock on the names of a directory as they were read from this record, if they are still the same and it is to be had at once;
    /// 0 otherwise.
    pub fn lock_on_names(
        &self,
        export: &Export,
        seen: &InodeRecord,
        handle: LockHandle,
    ) -> StatusResult<LockHandle> {
        let fid = seen.attr.fid;
        let Some(locked) = self.leaves.locks.try_lock(&Want::Still(fid)) else { return Ok(NO_LOCK) };
        let now = self.leaves.records.find_inode(&fid)?;
        // Every change of a name gives the directory another version.
        if now.is_none_or(|now| now.attr.version != seen.attr.version) {
            return Ok(NO_LOCK);
        }
        self.grant(export, handle, &fid, InodeBits::UPDATE, &locked)
    }

    /// Attributes of an inode and the lock under which they may be kept, if it is to be had at once.
    pub fn attr_with_lock(
        &self,
        export: &Export,
        fid: &Fid,
        handle: LockHandle,
    ) -> StatusResult<Option<(Attr, LockHandle)>> {
        let Some(locked) = self.leaves.locks.try_lock(&Want::Still(*fid)) else { return Ok(None) };
        let Some(record) = self.leaves.records.find_inode(fid)? else { return Ok(None) };
        let attr = self.layouts.told(&record)?;
        let lock = self.grant_on_inode(export, handle, &attr, &locked)?;
        Ok(Some((attr, lock)).filter(|_| lock != NO_LOCK))
    }

    /// Puts the lock on a directory into a page of names of it that was read from the record that is given, and with `true`,
    /// or without a directory, attributes and locks of the inodes that lie here. An entry whose lock is not to be had stays without.
    ///
    /// Nothing here waits for anybody: a change may already be waiting for this client to give up a lock that was granted a moment
    /// ago, of which it hears by this answer.
    pub fn page_with_locks(
        &self,
        export: &Export,
        mut page: DirPage,
        directory: Option<(&InodeRecord, bool)>,
        locks: LockRange,
    ) -> StatusResult<DirPage> {
        if let Some((seen, of_inodes)) = directory {
            page.lock = self.lock_on_names(export, seen, locks.first)?;
            // Without it no name is worth anything, nor what it leads to.
            if page.lock.0 == 0 || !of_inodes {
                return Ok(page);
            }
        }
        let (mut at, mut handles) = (0, (1..locks.count).map(|number| locks.first.0 + u64::from(number)));
        let mut locked = DirPage { bytes: Vec::with_capacity(4 * page.bytes.len()), ..page };
        while let Some((entry, next)) = page.entry_from(at) {
            let is_here = entry.fid.mdt_index() == self.leaves.index;
            let handle = if is_here { handles.next() } else { None };
            let found = handle.map(|handle| self.attr_with_lock(export, &entry.fid, LockHandle(handle)));
            let found = found.transpose()?.flatten();
            let full = found.map(|(attr, lock)| DirEntry { attr: Some(attr), lock, ..entry });
            // The rest has to fit, too.
            let room = (DIR_PAGE_MAX - (page.bytes.len() - next)) as u32;
            if !full.is_some_and(|full| locked.push(&full, room)) && !locked.push(&entry, room) {
                return Err(Status::EIO);
            }
            at = next;
        }
        Ok(locked)
    }

    fn grant_on_inode(
        &self,
        export: &Export,
        handle: LockHandle,
        attr: &Attr,
        locked: &Locked<'_>,
    ) -> StatusResult<LockHandle> {
        // Only what stays true until it is changed here.
        let has_objects = attr.flags.contains(AttrFlags::HAS_OBJECTS);
        let is_written = has_objects && self.leaves.opens.session(&attr.fid).is_some();
        if attr.size_source != SizeSource::Exact || is_written {
            return Ok(NO_LOCK);
        }
        self.grant(export, handle, &attr.fid, EVERYTHING, locked)
    }

    fn grant(
        &self,
        export: &Export,
        handle: LockHandle,
        fid: &Fid,
        bits: InodeBits,
        locked: &Locked<'_>,
    ) -> StatusResult<LockHandle> {
        // Who keeps it may have called it back already, and is about to change it.
        if locked.is_kept(fid) {
            return Ok(NO_LOCK);
        }
        let (resource, need) = (ResourceId::of_fid(fid), Need::bits(Mode::Pr, bits));
        let granted = self.leaves.mdlocks.grant_now(export, handle, &resource, need)?;
        Ok(granted.unwrap_or(NO_LOCK))
    }

    /// A lock on the layout of an inode that the caller holds in the table, for a client that asked for one under `handle`: that
    /// one, or what the client has already; 0 if there is none to be had.
    pub fn grant_layout(
        &self,
        caller: &Caller<'_>,
        handle: LockHandle,
        fid: &Fid,
    ) -> StatusResult<LockHandle> {
        if handle == NO_LOCK {
            return Ok(NO_LOCK);
        }
        let (resource, need) = (ResourceId::of_fid(fid), Need::bits(Mode::Pr, LAYOUT));
        // Also where layouts change often: without the lock nothing can be read or written.
        let granted = self.leaves.mdlocks.grant_always(caller.export, handle, &resource, need)?;
        Ok(granted.unwrap_or(NO_LOCK))
    }

    /// Calls back locks on the layout of an inode before it changes, and waits until they are given up. With `replaced` the
    /// objects of the file change: then nobody reads or writes it any more when this returns, and nothing of it is cached. Otherwise
    /// components or objects are added, and what clients know stays true as far as it goes. `except` has its locks still, and
    /// learns of the change from the answer to its request.
    ///
    /// # Errors
    /// `EINTR`, `EVICTED`, `ESHUTDOWN`.
    pub fn call_back_layout(&self, fid: &Fid, replaced: bool, except: Option<&Export>) -> StatusResult<()> {
        if !self.leaves.mdlocks.has_locks() {
            return Ok(());
        }
        let bits = if replaced { LAYOUT } else { InodeBits::COMPONENTS };
        let resource = ResourceId::of_fid(fid);
        self.leaves.mdlocks.lock_local(&resource, Need::bits(Mode::Ex, bits), except).map(drop)
    }

    /// Calls back what clients cache of the inodes that a transaction changes, and waits until it is gone. The client that
    /// asked for the change keeps its locks: it learns from the answer what has changed.
    ///
    /// # Errors
    /// `EINTR`, `EVICTED`, `ESHUTDOWN`; what reading an inode gives.
    pub fn call_back(&self, tx: &Tx, export: Option<&Export>) -> StatusResult<()> {
        self.call_back_each(tx, export, &|record, except| self.call_back_all(record, except).map(|()| true))
            .map(drop)
    }

    /// The same if nobody has to give anything up; false if somebody has to.
    ///
    /// # Errors
    /// As for [`ClientLocks::call_back`].
    pub fn call_back_at_once(&self, tx: &Tx, export: &Export) -> StatusResult<bool> {
        self.call_back_each(tx, Some(export), &|record, except| {
            let resource = ResourceId::of_fid(&record.attr.fid);
            self.leaves.mdlocks.is_free(&resource, Need::bits(Mode::Ex, EVERYTHING), except)
        })
    }

    fn call_back_each(
        &self,
        tx: &Tx,
        export: Option<&Export>,
        call_back: &dyn Fn(&InodeRecord, Option<&Export>) -> StatusResult<bool>,
    ) -> StatusResult<bool> {
        if tx.is_replay || !self.leaves.mdlocks.has_locks() {
            return Ok(true);
        }
        for (fid, new) in tx.cached() {
            // One that did not exist is known to nobody.
            let Some(old) = self.leaves.records.find_inode(fid)? else { continue };
            // As clients were told it.
            let old = self.layouts.settled(&old)?;
            if new.is_some() || !old.attr.flags.contains(AttrFlags::ORPHAN) {
                let except = export.filter(|_| !leaves_the_mdt(&old, new.as_deref()));
                if !call_back(&old, except)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The same for a file that is about to get objects. Then it changes without the MDT being asked, so the client that asks
    /// for them is called back too.
    ///
    /// # Errors
    /// As for [`ClientLocks::call_back`].
    pub fn call_back_for_objects(&self, record: &InodeRecord) -> StatusResult<()> {
        if self.leaves.mdlocks.has_locks() { self.call_back_all(record, None) } else { Ok(()) }
    }

    fn call_back_all(&self, record: &InodeRecord, except: Option<&Export>) -> StatusResult<()> {
        let resource = ResourceId::of_fid(&record.attr.fid);
        self.leaves.mdlocks.lock_local(&resource, Need::bits(Mode::Ex, EVERYTHING), except).map(drop)
    }
}
