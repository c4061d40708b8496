//! Locks under which clients cache inodes and names, and their revocation before a change.
//!
//! While several clients share the lease, answers to lookups and to requests for attributes come with read
//! locks on parts of the inodes ([`ClientLocks::intend`]): on the inode that the name refers to, and on the
//! content of the directory of the lookup, so that clients can cache negative entries too. Such a lock is
//! granted at once or not at all.
//!
//! A change revokes clients' locks on the inodes of its transaction right before the commit
//! ([`ClientLocks::call_back`]). So all clients see the old state until then, and afterwards none has it
//! cached. This is the only module that sends blocking callbacks.
//!
//! Grants and changes of an inode exclude each other by the table of inode locks ([`crate::locks`]): both
//! latch it, or the change keeps it, and no lock is granted on a kept inode. So a change misses no client's
//! lock, none is granted between its callbacks and its commit, and the state read before a grant is the state
//! that the lock protects. A change waits for clients while it keeps inodes, so the answer to a callback must
//! not need the table: it is a cancel.
//!
//! Layout locks cover other parts of the inode, so that changes of attributes leave them alone. They are
//! granted with opens and with the layout ([`crate::layout_changes::LayoutChanges::layout_access`]), revoked
//! before changes of the layout, and replayed after a restart, since I/O continues under them. See
//! `docs/design/layout-changes.md`.
//!
//! The thread that evicts clients must never wait for an answer itself, nor for the lock of an inode, whose
//! holder may be waiting for an eviction. It takes the client's locks in the lock server and leaves the rest
//! to [`crate::departed`].

use crate::layouts::Layouts;
use crate::leaves::Leaves;
use crate::locks::{Locked, Want};
use crate::plan::check_access;
use crate::records::Resolved;
use crate::replay;
use crate::suspend::Caller;
use crate::tx::Tx;
use nacre_lock::{InodeBits, LockHandle, Mode, Need, ResourceId};
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::limits::NAME_MAX;
use nacre_types::{Attr, AttrFlags, Fid, SizeSource, Status, StatusResult, perm};
use nacre_wire::dir::DIR_PAGE_MAX;
use nacre_wire::mds::{DirEntry, DirPage, LockRange, MdsReply};
use std::sync::Arc;

/// Parts that a lock on an inode covers, and that a change of it revokes. Locks on the content of a directory
/// alone include its UPDATE, which every change of an inode touches, so no client could keep one across a
/// change.
const EVERYTHING: InodeBits =
    InodeBits::UPDATE.union(InodeBits::PERM).union(InodeBits::XATTR).union(InodeBits::LOOKUP);
/// Parts that a layout lock covers: the objects in the layout stay, and no others are added.
pub(crate) const LAYOUT: InodeBits = InodeBits::LAYOUT.union(InodeBits::COMPONENTS);
/// "No lock" in an answer.
const NO_LOCK: LockHandle = LockHandle(0);

/// Returns true if the file will change without a request to the MDT: then the locks of the client that
/// causes this are revoked too.
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

    /// Looks up a name, or reads the attributes of an inode, for a client that wants to cache the answer. The
    /// lock on the directory gets `handle` and that on the inode the next one, unless the client already has
    /// a lock. Without locks the answer is just as correct, but cannot be cached.
    ///
    /// # Errors
    /// Those of a lookup; `EINVAL` for `.`, `..` and an empty name.
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
            Resolved::Nowhere => (None, NO_LOCK),
            Resolved::Here(attr) => {
                (Some(attr), self.grant_on_inode(caller.export, inode_handle, &attr, &locked)?)
            }
            Resolved::Elsewhere(fid) => {
                return Ok(MdsReply::Remote { fid, public, names, directory });
            }
        };
        Ok(MdsReply::Intent { attr, public, names, directory, inode })
    }

    /// Returns a directory that the caller may search, the inode of a name in it, and the locks on both.
    fn find_locked(
        &self,
        caller: &Caller<'_>,
        directory: &Fid,
        name: &[u8],
    ) -> StatusResult<(Locked<'_>, Arc<InodeRecord>, Resolved)> {
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
                return Ok((locked, record, Resolved::Nowhere));
            };
            if found.fid.mdt_index() != self.leaves.index {
                return Ok((locked, record, Resolved::Elsewhere(found.fid)));
            }
            let lead = Want::Still(found.fid);
            if locked.add(&lead) {
                let attr = self.layouts.told(&self.leaves.records.inode(&found.fid)?)?;
                return Ok((locked, record, Resolved::Here(attr)));
            }
            child = Some(lead);
        }
    }

    /// Grants a lock on the names of a directory as read from this record, if they are still the same and the
    /// lock is available at once; 0 otherwise.
    pub fn lock_on_names(
        &self,
        export: &Export,
        seen: &InodeRecord,
        handle: LockHandle,
    ) -> StatusResult<LockHandle> {
        let fid = seen.attr.fid;
        let Some(locked) = self.leaves.locks.try_lock(&Want::Still(fid)) else { return Ok(NO_LOCK) };
        let now = self.leaves.records.find_inode(&fid)?;
        // Every change of a name changes the version of the directory.
        if now.is_none_or(|now| now.attr.version != seen.attr.version) {
            return Ok(NO_LOCK);
        }
        self.grant(export, handle, &fid, InodeBits::UPDATE, &locked)
    }

    /// Returns the attributes of an inode and the lock under which they may be cached, if it is available at
    /// once.
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

    /// Adds the lock on a directory to a page of its names read from the given record and, with `true` or
    /// without a directory, attributes and locks of the inodes on this MDT. An entry whose lock is not
    /// available at once gets none.
    ///
    /// Nothing here waits: a change may already be waiting for this client to release a lock that was just
    /// granted, of which the client learns only by this answer.
    pub fn page_with_locks(
        &self,
        export: &Export,
        mut page: DirPage,
        directory: Option<(&InodeRecord, bool)>,
        locks: LockRange,
    ) -> StatusResult<DirPage> {
        if let Some((seen, of_inodes)) = directory {
            page.lock = self.lock_on_names(export, seen, locks.first)?;
            // Without the lock neither a name nor its inode can be cached.
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
            // The rest of the page has to fit too.
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
        // Only attributes that stay valid until the MDT changes them.
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
        // The operation that keeps it may have sent its callbacks already, and is about to change it.
        if locked.is_locked_long(fid) {
            return Ok(NO_LOCK);
        }
        let (resource, need) = (ResourceId::of_fid(fid), Need::bits(Mode::Pr, bits));
        let granted = self.leaves.mdlocks.grant_now(export, handle, &resource, need)?;
        Ok(granted.unwrap_or(NO_LOCK))
    }

    /// Grants a lock on the layout of an inode that the caller has locked in the table, for a client that
    /// requested one under `handle`. Returns that handle, or that of the client's existing lock; 0 if none is
    /// available.
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
        // Also where layouts change often: without the lock the client can neither read nor write.
        let granted = self.leaves.mdlocks.grant_always(caller.export, handle, &resource, need)?;
        Ok(granted.unwrap_or(NO_LOCK))
    }

    /// Revokes locks on the layout of an inode before it changes, and waits for their release. With
    /// `replaced` the objects of the file change: on return no client reads, writes or caches the file.
    /// Otherwise components or objects are added, and clients' copies stay valid but incomplete. `except`
    /// keeps its locks, and gets the change with the answer to its request.
    ///
    /// # Errors
    /// `EINTR`, `EVICTED`, `ESHUTDOWN`.
    pub fn call_back_layout(&self, fid: &Fid, replaced: bool, except: Option<&Export>) -> StatusResult<()> {
        if !self.has_locks_to_revoke() {
            return Ok(());
        }
        let bits = if replaced { LAYOUT } else { InodeBits::COMPONENTS };
        let resource = ResourceId::of_fid(fid);
        self.leaves.mdlocks.lock_local(&resource, Need::bits(Mode::Ex, bits), except).map(drop)
    }

    /// Revokes clients' locks on the inodes that a transaction changes, and waits for their release. The
    /// client that requested the change keeps its locks: the answer carries the change.
    ///
    /// # Errors
    /// `EINTR`, `EVICTED`, `ESHUTDOWN`; errors of reading an inode.
    pub fn call_back(&self, tx: &Tx, export: Option<&Export>) -> StatusResult<()> {
        self.call_back_each(tx, export, &|record, except| self.call_back_all(record, except).map(|()| true))
            .map(drop)
    }

    /// Does the same if no client has to release a lock; returns false otherwise.
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
        if tx.is_replay || !self.has_locks_to_revoke() {
            return Ok(true);
        }
        for (fid, new) in tx.cached() {
            // A new inode is cached by no client.
            let Some(old) = self.leaves.records.find_inode(fid)? else { continue };
            // With the attributes that clients got.
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

    /// Does the same for a file that is about to get objects. After that it changes without requests to the
    /// MDT, so the locks of the requesting client are revoked too.
    ///
    /// # Errors
    /// As for [`ClientLocks::call_back`].
    pub fn call_back_for_objects(&self, record: &InodeRecord) -> StatusResult<()> {
        if self.has_locks_to_revoke() { self.call_back_all(record, None) } else { Ok(()) }
    }

    /// Returns true if clients may hold locks that a change by this thread has to revoke. Clients that replay lost
    /// changes after a restart hold none, and others wait for them.
    fn has_locks_to_revoke(&self) -> bool {
        let locks = &self.leaves.mdlocks;
        locks.has_locks() && !(replay::is_running() && locks.is_recovering())
    }

    fn call_back_all(&self, record: &InodeRecord, except: Option<&Export>) -> StatusResult<()> {
        let resource = ResourceId::of_fid(&record.attr.fid);
        self.leaves.mdlocks.lock_local(&resource, Need::bits(Mode::Ex, EVERYTHING), except).map(drop)
    }
}
