//! Opens and closes of regular files.

mod data;

use crate::changelog::events;
use crate::core::Core;
use crate::layout_changes::LayoutChanges;
use crate::layouts::stored::{forget_written, mark_written};
use crate::leaves::Leaves;
use crate::locks::Want;
use crate::opens::WriteSession;
use crate::plan::{check_access, drop_privileges, has_privileges, valid_time};
use crate::replay;
use crate::suspend::Caller;
use crate::tables::{CAPABILITY, XATTRS, xattr_key};
use crate::tx::{Tx, now};
use nacre_layout::Layout;
use nacre_lock::LockHandle;
use nacre_ondisk::{InodeRecord, OpenedRecord};
use nacre_types::perm::Verdict;
use nacre_types::{
    Attr, AttrFlags, Caps, ChangeKind, ClientUuid, Cred, Fid, FileKind, Nid, OpenHandle, SizeSource, Status,
    StatusResult, perm,
};
use nacre_wire::mds::{DataUpdate, LeaseKind, MdsAnswer, MdsReply, OpenFlags};
use std::sync::Arc;

/// Largest file in bytes whose data comes with the answer to its open. Estimate: costs little more than the
/// answer alone; Lustre reserves 8 KiB and a page.
const READ_AT_OPEN_MAX: u64 = 16 << 10;

/// Outcome of [`OpenFiles::open_locked`].
pub(super) struct Opened {
    pub attr: Attr,
    pub layout: Option<Arc<Layout>>,
    /// True if the stored size was exact, and remains so unless a client writes.
    pub began_exact: bool,
}

/// See the [module documentation](self).
pub(crate) struct OpenFiles {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    layout_changes: Arc<LayoutChanges>,
}

/// Takes set-id bits and file capabilities from a file whose data changes.
fn strip(tx: &mut Tx, cred: &Cred, record: &mut InodeRecord) -> StatusResult<()> {
    let gid = record.attr.gid;
    if drop_privileges(cred, record, gid)? {
        tx.batch().delete(XATTRS, xattr_key(&record.attr.fid, CAPABILITY).as_slice());
    }
    Ok(())
}

impl OpenFiles {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>, layout_changes: &Arc<LayoutChanges>) -> OpenFiles {
        OpenFiles { leaves: leaves.clone(), core: core.clone(), layout_changes: layout_changes.clone() }
    }

    pub fn open_file(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        handle: OpenHandle,
        flags: OpenFlags,
        lock: LockHandle,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        self.may_open(caller, handle)?;
        let Some(record) = self.leaves.records.find_inode(fid)? else {
            let is_reopening = || self.leaves.recovery.is_reopening(|client| *client == caller.client);
            if !flags.contains(OpenFlags::REPLAY) || !self.leaves.replays.may_lack() || !is_reopening() {
                return Err(Status::ENOENT);
            }
            // Another client may be about to replay the creation of the file.
            self.note_open(caller, *fid, handle, flags, false);
            return Ok(self.core.commits.answer(MdsReply::Done));
        };
        match record.attr.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Status::EISDIR),
            _ => return Err(Status::EINVAL),
        }
        let orphan = record.attr.flags.contains(AttrFlags::ORPHAN);
        // It was open when a change that is executed again was executed first; clients open it again later.
        let is_there =
            || self.leaves.opens.is_open(fid) || self.leaves.replaced.contains(fid) || replay::is_running();
        if orphan && !flags.contains(OpenFlags::REPLAY) && !is_there() {
            return Err(Status::ENOENT);
        }
        let mut tx = self.leaves.records.begin();
        tx.is_replay = flags.contains(OpenFlags::REPLAY);
        let opened = self.open_locked(&mut tx, caller, &record, flags)?;
        tx.note_opened(*fid, handle, flags);
        let data = if tx.is_empty() { self.data_at_open(caller, &opened, flags) } else { None };
        self.log_open(caller, &mut tx, fid, flags);
        let lock = if self.leaves.opens.frozen_by(fid).is_some() { LockHandle(0) } else { lock };
        let lock = self.core.client_locks.grant_layout(caller, lock, fid)?;
        let reply = MdsReply::Opened { attr: opened.attr, layout: opened.layout, data, lock };
        let answer = self.core.commits.finish(caller, tx, reply)?;
        self.note_open(caller, *fid, handle, flags, opened.began_exact);
        Ok(answer)
    }

    /// Adds the changelog records of an open.
    pub fn log_open(&self, caller: &Caller<'_>, tx: &mut Tx, fid: &Fid, flags: OpenFlags) {
        let changelog = &self.leaves.changelog;
        if changelog.wanted().is_empty() || flags.contains(OpenFlags::REPLAY) {
            return;
        }
        changelog.note(caller, tx, &events::of_open(*fid, flags));
        if flags.contains(OpenFlags::TRUNCATE) {
            changelog.note(caller, tx, &events::of_truncation(*fid));
        }
    }

    /// Adds the changelog record of a close: if the file was open for writing and may have changed, or if opens are
    /// recorded too; otherwise of a new access time.
    fn log_close(
        &self,
        caller: &Caller<'_>,
        tx: &mut Tx,
        fid: &Fid,
        flags: OpenFlags,
        never_written: bool,
        is_read: bool,
    ) {
        let changelog = &self.leaves.changelog;
        let may_differ = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) && !never_written;
        if may_differ || changelog.wanted().contains(ChangeKind::Open) {
            changelog.note(caller, tx, &events::of_close(*fid, flags));
        } else if is_read {
            changelog.note(caller, tx, &events::of_access(*fid));
        }
    }

    /// Records a handle that was opened for a client; `exact`: the stored size is exact at this moment.
    /// Returns false if the client has closed the handle already.
    pub fn note_open(
        &self,
        caller: &Caller<'_>,
        fid: Fid,
        handle: OpenHandle,
        flags: OpenFlags,
        exact: bool,
    ) -> bool {
        let is_open = self.leaves.opens.add(fid, caller.client, handle, flags, exact);
        // An eviction first ends the export and then collects its handles, so one of the two sees the other.
        if caller.export.has_ended() && self.leaves.clients.export_of(&caller.client).is_none() {
            self.leaves.departed.close_all_of(&caller.client, self.leaves.opens.abandon(&caller.client));
        }
        is_open
    }

    /// Returns the bytes of a small file on this MDT, for a remote client that is about to read them and is
    /// the only client: then no other can change them. Errors are left to the read that follows.
    fn data_at_open(&self, caller: &Caller<'_>, opened: &Opened, flags: OpenFlags) -> Option<Vec<u8>> {
        let object = opened.layout.as_ref()?.object_on_mdt()?;
        let is_known = opened.attr.size > 0 && opened.attr.size_source == SizeSource::Exact;
        if caller.export.nid == Nid::Lo || !is_known || opened.attr.size > READ_AT_OPEN_MAX {
            return None;
        }
        if !flags.contains(OpenFlags::READ) || flags.intersects(OpenFlags::WRITE | OpenFlags::REPLAY) {
            return None;
        }
        self.leaves.clients.lease_of(&caller.client).ok().filter(|lease| lease.exclusive)?;
        let data = self.leaves.data.small(object.object, READ_AT_OPEN_MAX).ok()??;
        (data.len() as u64 == opened.attr.size).then_some(data)
    }

    /// Checks an open of a locked regular file and adds its changes to the transaction. The caller commits
    /// and then records the handle.
    pub fn open_locked(
        &self,
        tx: &mut Tx,
        caller: &Caller<'_>,
        record: &Arc<InodeRecord>,
        flags: OpenFlags,
    ) -> StatusResult<Opened> {
        let is_replay = flags.contains(OpenFlags::REPLAY);
        if !self.is_open_believed(caller, record, flags) {
            let right = |flag, right| if flags.intersects(flag) { right } else { 0 };
            let mask = right(OpenFlags::READ, perm::READ)
                | right(OpenFlags::WRITE | OpenFlags::TRUNCATE, perm::WRITE)
                | right(OpenFlags::EXEC, perm::EXEC);
            match check_access(record, caller.cred(), mask) {
                // In a replay the client vouches for the groups of its users.
                Err(Status::NEED_CREDENTIALS) if is_replay => {}
                outcome => outcome?,
            }
        }
        let moved = match flags.contains(OpenFlags::WRITE) && !is_replay {
            true => self.layout_changes.leave_silent_osts(record)?,
            false => None,
        };
        let record = moved.as_ref().unwrap_or(record);
        let truncates = flags.contains(OpenFlags::TRUNCATE) && !is_replay;
        let record = if is_replay { record.clone() } else { self.core.layouts.settled(record)? };
        let exact = record.attr.size_source == SizeSource::Exact;
        let has_objects = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        let unsure = exact && has_objects && (flags.contains(OpenFlags::WRITE) || truncates);
        let mut record = record;
        if truncates {
            forget_written(Arc::make_mut(&mut record))?;
        }
        let layout = self.core.layouts.layout_of(&record)?.map(Arc::new);
        let strips = caller.is_bounded()
            && match truncates {
                true => perm::capable(caller.cred(), Caps::FSETID) != Verdict::Granted,
                // Later writes are not checked.
                false => flags.contains(OpenFlags::WRITE) && caller.cred().uid != record.attr.uid,
            }
            && has_privileges(&record.attr);
        if !unsure && !truncates && !strips {
            return Ok(Opened { attr: record.shown(), layout, began_exact: exact });
        }
        let mut record = Arc::unwrap_or_clone(record);
        if unsure {
            // From here on the objects may change without a request to the MDT.
            record.attr.size_source = SizeSource::Objects;
        }
        if truncates {
            self.leaves.opens.note_unsure(&record.attr.fid);
            record.attr.size = 0;
            record.attr.blocks = 0;
            record.attr.size_stamp = Attr::NEW_STAMP;
            let now = now();
            record.attr.mtime = now;
            record.attr.ctime = now;
        }
        if strips || (truncates && flags.contains(OpenFlags::KILL_PRIV)) {
            strip(tx, caller.cred(), &mut record)?;
        }
        let record = tx.put_inode(record);
        let began_exact = exact && !(truncates && has_objects);
        let mut attr = record.shown();
        if began_exact {
            // The size was exact when the open was granted, which saves the client a glimpse.
            attr.size_source = SizeSource::Exact;
        }
        Ok(Opened { attr, layout, began_exact })
    }

    /// Returns true if an open needs no check: the client has just created the file, or had it open before.
    /// For untrusted clients that holds for the file's owner alone, which could grant itself the right by
    /// chmod.
    fn is_open_believed(&self, caller: &Caller<'_>, record: &InodeRecord, flags: OpenFlags) -> bool {
        flags.intersects(OpenFlags::REPLAY | OpenFlags::CREATED)
            && (!caller.is_bounded() || caller.cred().uid == record.attr.uid)
    }

    pub fn close(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        handle: OpenHandle,
        update: &DataUpdate,
        written: &[Fid],
    ) -> StatusResult<MdsAnswer> {
        let locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        let session = self.leaves.opens.session(fid);
        let Some(closed) = self.leaves.opens.remove(fid, &caller.client, handle) else {
            drop(locked);
            return self.close_unknown(caller, handle);
        };
        if closed.last_of_client {
            self.leaves.flocks.release_file(fid, &caller.client);
        }
        let Some(record) = self.leaves.records.find_inode(fid)? else {
            return Ok(self.core.commits.answer(MdsReply::Done));
        };
        let mut tx = self.leaves.records.begin();
        if closed.last && record.attr.flags.contains(AttrFlags::ORPHAN) && !self.leaves.recovery.keeps(fid) {
            self.core.staging.destroy_inode(&mut tx, &record)?;
            return self.core.commits.finish(caller, tx, MdsReply::Done);
        }
        let word = Word::of(session, &caller.client, update, &record.attr);
        let mut changed = InodeRecord::clone(&record);
        word.apply(&mut changed.attr, update);
        mark_written(&mut changed, written)?;
        if word == Word::Outdated {
            self.leaves.opens.note_unsure(fid);
        }
        if record.attr.size_source == SizeSource::Objects
            && let Some(ended) = closed.ended
        {
            // The last writer's update is authoritative if no other client wrote; without an update nothing
            // was written.
            let knows = update.size_blocks.is_some() || ended.reported > 0 || ended.began_exact;
            if !ended.shared && knows && word != Word::Outdated {
                changed.attr.size_source = SizeSource::Exact;
            }
        } else if update.size_blocks.is_some() && word != Word::Outdated {
            self.leaves.opens.note_report(fid, update.order);
        }
        // The creator wrote nothing: then no object exists, and the record needs no update.
        let is_unused = |ended: &WriteSession| {
            ended.is_first && ended.began_exact && !ended.shared && ended.reported == 0
        };
        let never_written = closed.ended.as_ref().is_some_and(is_unused)
            && update.mtime.is_none()
            && update.size_blocks.is_none_or(|known| known == (0, 0))
            && (changed.attr.size, changed.attr.atime) == (0, record.attr.atime);
        let is_unchanged =
            changed == *record || (never_written && self.core.layouts.is_settled_by_itself(&record)?);
        if !self.leaves.changelog.wanted().is_empty() {
            let is_read = closed.flags.contains(OpenFlags::READ) && changed.attr.atime != record.attr.atime;
            self.log_close(caller, &mut tx, fid, closed.flags, never_written, is_read);
        }
        if is_unchanged {
            // Without changelog records that commits nothing.
            return self.core.commits.finish(caller, tx, MdsReply::Attr(changed.shown()));
        }
        stamp_size(&record.attr, &mut changed.attr);
        let record = tx.put_inode(changed);
        self.core.commits.finish(caller, tx, MdsReply::Attr(record.shown()))
    }

    pub fn open_lease(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        handle: OpenHandle,
        kind: Option<LeaseKind>,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        let before = self.leaves.opens.lease(fid, &caller.client, handle);
        let Some(kind) = kind else { return Ok(self.core.commits.answer(MdsReply::OpenLease(before))) };
        if kind == LeaseKind::Frozen {
            let record = self.leaves.records.inode(fid)?;
            check_access(&record, caller.cred(), perm::WRITE)?;
            if self.leaves.opens.frozen_by(fid).is_some_and(|by| by != (caller.client, handle)) {
                return Err(Status::EBUSY);
            }
            self.core.client_locks.call_back_layout(fid, true, None)?;
        }
        self.leaves.opens.set_lease(fid, &caller.client, handle, kind)?;
        Ok(self.core.commits.answer(MdsReply::OpenLease(before)))
    }

    /// Closes a handle that its client does not know: the open was interrupted. That request may not have run
    /// yet, or have found another file under its name.
    fn close_unknown(&self, caller: &Caller<'_>, handle: OpenHandle) -> StatusResult<MdsAnswer> {
        let fid = self.leaves.opens.close_early(&caller.client, handle).ok_or(Status::EBADF)?;
        let _locked = self.leaves.locks.lock(&[Want::Whole(fid)])?;
        if self.leaves.opens.remove(&fid, &caller.client, handle).is_some_and(|closed| closed.last) {
            self.destroy_orphan_locked(&fid)?;
        }
        Ok(self.core.commits.answer(MdsReply::Done))
    }

    /// Checks that a handle may still be opened.
    ///
    /// # Errors
    /// `EBADF` if its client has closed it meanwhile, so that no program waits for it; `ENFILE` if it has too
    /// many.
    pub fn may_open(&self, caller: &Caller<'_>, handle: OpenHandle) -> StatusResult<()> {
        if self.leaves.opens.was_closed_early(&caller.client, handle) {
            return Err(Status::EBADF);
        }
        // Replays too: nothing is open after a restart, and every client can claim to replay.
        if !self.leaves.opens.has_room(&caller.client) {
            log::debug!("MDT{:04x}: client {} has too many files open", self.leaves.index, caller.client);
            return Err(Status::ENFILE);
        }
        Ok(())
    }

    /// Opens the handle that a request of an earlier run opened, since its client is about to get the stored
    /// answer.
    pub fn open_again(&self, client: &ClientUuid, opened: &OpenedRecord) {
        // Fails only while this MDT stops.
        let Ok(_locked) = self.leaves.locks.lock(&[Want::Whole(opened.fid)]) else { return };
        if let Ok(Some(_)) = self.leaves.records.find_inode(&opened.fid) {
            let flags = OpenFlags::from_bits_truncate(opened.flags);
            self.leaves.opens.add(opened.fid, *client, opened.handle, flags, false);
        }
    }

    /// Closes a handle of a removed client, unless the client has reconnected and reopened it. If it wrote,
    /// the size remains with the objects.
    pub fn close_abandoned(&self, client: &ClientUuid, fid: &Fid, handle: OpenHandle) -> StatusResult<()> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        match self.leaves.opens.remove_abandoned(fid, client, handle) {
            Some(closed) if closed.last => {
                self.log_abandoned(fid, closed.flags)?;
                self.destroy_orphan_locked(fid)
            }
            Some(closed) => self.log_abandoned(fid, closed.flags),
            None => Ok(()),
        }
    }

    /// Records the close of a handle of a removed client.
    fn log_abandoned(&self, fid: &Fid, flags: OpenFlags) -> StatusResult<()> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            let mut tx = self.leaves.records.begin();
            self.leaves.changelog.note_own(&mut tx, &events::of_close(*fid, flags));
            self.core.commits.commit(&mut tx)?;
        }
        Ok(())
    }

    /// Destroys an inode without names that no client has open.
    pub fn destroy_if_closed(&self, fid: &Fid) -> StatusResult<()> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        if self.leaves.opens.is_open(fid) { Ok(()) } else { self.destroy_orphan_locked(fid) }
    }

    /// Destroys an inode without names, unless a client of the last run may be about to open it again: then it stays
    /// until all of them have.
    pub fn destroy_orphan_locked(&self, fid: &Fid) -> StatusResult<()> {
        let Some(record) = self.leaves.records.find_inode(fid)? else { return Ok(()) };
        if !record.attr.flags.contains(AttrFlags::ORPHAN) || self.leaves.recovery.keeps(fid) {
            return Ok(());
        }
        let mut tx = self.leaves.records.begin();
        self.core.staging.destroy_inode(&mut tx, &record)?;
        self.core.commits.commit(&mut tx).map(|_| ())
    }
}

/// How far a client's update of a file's data is authoritative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Word {
    /// No other client writes: the update is final.
    Sole,
    /// Other clients write too: times only increase.
    Shared,
    /// The client has sent a newer update since: times only increase, and the size is outdated.
    Late,
    /// The MDT has recorded another change of the size since the client determined its own: which of them is newer
    /// only the objects know.
    Outdated,
}

/// Gives a size that was recorded a new stamp.
pub(super) fn stamp_size(old: &Attr, new: &mut Attr) {
    if (old.size, old.size_source) != (new.size, new.size_source) {
        new.size_stamp = Attr::NEW_STAMP;
    }
}

impl Word {
    pub fn of(session: Option<WriteSession>, client: &ClientUuid, update: &DataUpdate, attr: &Attr) -> Word {
        let is_sole = session.is_none_or(|session| !session.shared && session.client == *client);
        match session {
            Some(session) if is_sole && update.order < session.reported => Word::Late,
            _ if update.size_blocks.is_some() && update.size_stamp != attr.size_stamp => Word::Outdated,
            _ if is_sole => Word::Sole,
            _ => Word::Shared,
        }
    }

    /// Applies the client's update to the attributes.
    pub fn apply(self, attr: &mut Attr, update: &DataUpdate) {
        match (update.size_blocks, self) {
            (None, _) | (Some(_), Word::Late) => {}
            (Some(_), Word::Outdated) if attr.flags.contains(AttrFlags::HAS_OBJECTS) => {
                attr.size_source = SizeSource::Objects;
                // So that the report of the other change, if it is still on its way, does not count either.
                attr.size_stamp = Attr::NEW_STAMP;
            }
            (Some(_), Word::Outdated) => {}
            (Some((size, blocks)), Word::Sole | Word::Shared) => {
                attr.size = size.min(nacre_types::limits::FILE_SIZE_MAX);
                attr.blocks = blocks;
            }
        }
        if let Some(mtime) = update.mtime.map(valid_time) {
            attr.mtime = if self == Word::Sole { mtime } else { attr.mtime.max(mtime) };
            attr.ctime = attr.ctime.max(mtime);
        }
        if let Some(atime) = update.atime.map(valid_time) {
            attr.atime = attr.atime.max(atime);
        }
    }
}
