//! Staging: the writes of a plan or an update into a transaction.

mod names;

use crate::leaves::Leaves;
use crate::new_shards::MIRRORED;
use crate::plan::{Amendment, Change, NewInode, Place, Plan, XattrChange};
use crate::shards::{place_of, shards_of};
use crate::tables::{
    ACL_DEFAULT, LINKS, MOVES, ORPHANS, PRESENT, REPLIES, XATTRS, link_key, reply_key, xattr_key,
};
use crate::tx::Tx;
use nacre_layout::dir_layout::with_moved;
use nacre_layout::user;
use nacre_ondisk::{InodeRecord, LinkRecord, ReplyRecord, XattrRecord};
use nacre_rpc::ReplySlot;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, Owners, Status, StatusResult, Timestamp};
use nacre_wire::mds::MdsReply;
use nacre_wire::peer::{MovedName, Name, Part, RecordBytes, Update};
use smallvec::SmallVec;
use std::sync::Arc;

/// Inodes that a transaction changes, in their new state.
struct Changed<'a> {
    /// Their state before, if it was read under the same locks.
    known: &'a [&'a Arc<InodeRecord>],
    /// Few, so that a linear search is faster than a tree.
    records: SmallVec<[Arc<InodeRecord>; 2]>,
}

impl Changed<'_> {
    fn position(&self, fid: &Fid) -> Option<usize> {
        self.records.iter().position(|record| record.attr.fid == *fid)
    }
}

/// Copies the replicated attributes of `master` to a directory or a shard of it.
pub(crate) fn mirror(record: &mut InodeRecord, master: InodeRecord) {
    let (attr, from) = (&mut record.attr, &master.attr);
    (attr.mode, attr.uid, attr.gid, attr.projid) = (from.mode, from.uid, from.gid, from.projid);
    (attr.atime, attr.mtime, attr.ctime) = (from.atime, from.mtime, from.ctime);
    attr.flags = (attr.flags - MIRRORED) | (from.flags & MIRRORED);
    (record.acl, record.body, record.default_lmv) = (master.acl, master.body, master.default_lmv);
}

/// Sets an extended attribute, or removes it without a value.
fn stage_xattr(tx: &mut Tx, fid: &Fid, name: &[u8], value: Option<&[u8]>) {
    let key = xattr_key(fid, name);
    let Some(value) = value else { return tx.batch().delete(XATTRS, key.as_slice()) };
    let (scratch, batch) = tx.scratch();
    XattrRecord { value }.encode(scratch);
    batch.put(XATTRS, key.as_slice(), scratch);
}

/// Stores names of an inode beyond the first.
fn stage_links(tx: &mut Tx, fid: &Fid, links: &[Name]) {
    for Name { parent, name } in links {
        tx.batch().put(LINKS, link_key(fid, parent, name).as_slice(), &LinkRecord::encode());
    }
}

/// Copies the attributes of `master` in a message to a directory or shard that exists, and extended attributes;
/// an empty one is removed.
fn stage_mirror(
    tx: &mut Tx,
    record: Option<&mut InodeRecord>,
    master: &RecordBytes,
    xattrs: &[(Vec<u8>, Vec<u8>)],
) -> StatusResult<()> {
    let Some(record) = record else { return Ok(()) };
    let fid = record.attr.fid;
    mirror(record, InodeRecord::decode(fid, &master.0).map_err(|_| Status::EPROTO)?);
    for (name, value) in xattrs {
        stage_xattr(tx, &fid, name, Some(&**value).filter(|value| !value.is_empty()));
    }
    Ok(())
}

/// Records whether names have to move out of a shard, or the list of a directory has to be settled.
fn stage_moves(tx: &mut Tx, record: &InodeRecord) {
    let key = record.attr.fid.to_key();
    let is_moving = place_of(record).is_ok_and(|shard| shard.is_some_and(|shard| shard.is_moving()));
    let is_changing = || shards_of(record).is_ok_and(|list| list.is_some_and(|list| list.change().is_some()));
    match is_moving || is_changing() {
        true => {
            tx.batch().put(MOVES, &key, &PRESENT);
            tx.moves_names = true;
        }
        false => tx.batch().delete(MOVES, &key),
    }
}

/// See the [module documentation](self).
pub(crate) struct Staging {
    leaves: Arc<Leaves>,
}

impl Staging {
    pub fn new(leaves: &Arc<Leaves>) -> Staging {
        Staging { leaves: leaves.clone() }
    }

    /// Stages a plan, and sets the versions that the transaction stores in its reply. `known` are records that
    /// change, as they were read under the operation's locks.
    ///
    /// # Errors
    /// `EIO` if the store cannot be read.
    pub fn stage_plan(
        &self,
        tx: &mut Tx,
        plan: &mut Plan<'_>,
        known: &[&Arc<InodeRecord>],
        now: Timestamp,
    ) -> StatusResult<()> {
        if plan.is_releasing() {
            tx.batch().set_releasing(true);
        }
        let mut changed = Changed { known, records: SmallVec::new() };
        for change in &plan.changes {
            self.stage_change(tx, &mut changed, change, now)?;
        }
        for record in changed.records {
            tx.put_inode(record);
        }
        for NewInode { record, default_acl } in plan.inodes.drain(..) {
            let fid = record.attr.fid;
            self.check_part(&fid)?;
            if !record.lmv.is_empty() {
                stage_moves(tx, &record);
            }
            tx.put_new_inode(record);
            if !default_acl.is_empty() {
                stage_xattr(tx, &fid, ACL_DEFAULT, Some(&default_acl));
            }
        }
        set_versions(&mut plan.reply, tx);
        Ok(())
    }

    /// Stages the changed attributes of an inode; returns its new record.
    pub fn stage_amendment(&self, tx: &mut Tx, amendment: Amendment<'_>) -> Arc<InodeRecord> {
        let fid = amendment.record.attr.fid;
        if amendment.is_releasing {
            tx.batch().set_releasing(true);
        }
        for XattrChange { name, value } in &amendment.xattrs {
            stage_xattr(tx, &fid, name, value.as_deref());
        }
        tx.put_inode(amendment.record)
    }

    /// Stages the updates of a transaction's part. Their preconditions were checked while the inodes were
    /// locked. Only when a part is redone after a power loss may an inode be missing: then the other updates
    /// are staged.
    ///
    /// # Errors
    /// `EPROTO` for changes of inodes on other MDTs; `EIO` if the store cannot be read.
    pub fn stage(&self, tx: &mut Tx, part: &Part, now: Timestamp) -> StatusResult<()> {
        let mut changed = Changed { known: &[], records: SmallVec::new() };
        tx.batch().set_releasing(true);
        for update in &part.updates {
            self.stage_update(tx, &mut changed, update, now)?;
        }
        for record in changed.records {
            tx.put_inode(record);
        }
        Ok(())
    }

    fn stage_change(
        &self,
        tx: &mut Tx,
        changed: &mut Changed<'_>,
        change: &Change<'_>,
        now: Timestamp,
    ) -> StatusResult<()> {
        match *change {
            Change::PutName { home, name, fid, kind } => {
                self.check_part(&home)?;
                tx.put_dirent(&home, self.leaves.records.hash(name), name, fid, kind);
            }
            Change::DeleteName { home, name } => {
                self.check_part(&home)?;
                tx.delete_dirent(&home, self.leaves.records.hash(name), name);
            }
            Change::Directory { fid, entries, subdirs } => {
                let Some(record) = self.part_inode(changed, &fid)? else { return Ok(()) };
                record.attr.mtime = now;
                record.attr.ctime = now;
                record.attr.size = record.attr.size.saturating_add_signed(entries);
                let subdirs = i32::try_from(subdirs).map_err(|_| Status::EPROTO)?;
                record.attr.nlink = record.attr.nlink.saturating_add_signed(subdirs);
            }
            Change::AddName { fid, at } => {
                let Some(record) = self.part_inode(changed, &fid)? else { return Ok(()) };
                if record.attr.flags.contains(AttrFlags::ORPHAN) {
                    record.attr.flags -= AttrFlags::ORPHAN;
                    tx.batch().delete(ORPHANS, &fid.to_key());
                }
                record.attr.ctime = now;
                self.add_name(tx, record, at);
            }
            Change::MoveName { fid, from, to } => {
                let Some(record) = self.part_inode(changed, &fid)? else { return Ok(()) };
                record.attr.ctime = now;
                self.move_name(tx, record, from, to);
            }
            Change::DropName { fid, at, replaced } => {
                let Some(record) = self.take_part_inode(changed, &fid)? else { return Ok(()) };
                match record.attr.is_dir() {
                    true => self.destroy_inode(tx, &record)?,
                    false => self.drop_name(tx, record, at, replaced, now)?,
                }
            }
            Change::DropShard { fid } => {
                if let Some(record) = self.take_part_inode(changed, &fid)? {
                    self.destroy_inode(tx, &record)?;
                }
            }
        }
        Ok(())
    }

    fn stage_update(
        &self,
        tx: &mut Tx,
        changed: &mut Changed<'_>,
        update: &Update,
        now: Timestamp,
    ) -> StatusResult<()> {
        match update {
            Update::PutName { .. }
            | Update::DeleteName { .. }
            | Update::Directory { .. }
            | Update::AddName { .. }
            | Update::MoveName { .. }
            | Update::DropName { .. }
            | Update::DropShard { .. } => {
                Change::of(update).map_or(Ok(()), |change| self.stage_change(tx, changed, &change, now))?;
            }
            Update::NewInode { fid, record, xattrs } => self.stage_new_inode(tx, fid, record, xattrs)?,
            Update::KeepAnswer { client, tag, xid, answer } => {
                self.keep_answer(tx, &ReplySlot { client: *client, tag: *tag, xid: *xid }, &answer.0)?
            }
            Update::LogChange { record } => tx.log_change(|out| out.extend_from_slice(&record.0)),
            Update::NamesOut { fid, upto, subdirs, names } => {
                let Some(record) = self.part_inode(changed, fid)? else { return Ok(()) };
                record.attr.nlink = record.attr.nlink.saturating_sub(*subdirs);
                record.lmv = with_moved(&record.lmv, *upto).map_err(|_| Status::EPROTO)?;
                self.take_names(tx, record, names);
            }
            Update::NamesIn { fid, names } => {
                let Some(record) = self.part_inode(changed, fid)? else { return Ok(()) };
                self.add_names(tx, record, names);
            }
            Update::InodeIn { fid, record, xattrs, links } => {
                self.stage_new_inode(tx, fid, record, xattrs)?;
                stage_arrival(tx, fid, links);
            }
            Update::InodeOut { fid } => {
                let record = self.take_part_inode(changed, fid)?;
                record.map_or(Ok(()), |record| self.give_inode_away(tx, &record))?;
            }
            Update::Retarget { at, fid, kind } => {
                // Clients that cache the name's inode have to drop it.
                if self.part_inode(changed, &at.parent)?.is_some() {
                    tx.put_dirent(&at.parent, self.leaves.records.hash(&at.name), &at.name, *fid, *kind);
                }
            }
            Update::Mirror { fid, record: master, xattrs } => {
                stage_mirror(tx, self.part_inode(changed, fid)?, master, xattrs)?;
            }
            Update::SetShards { fid, lmv, is_master } => {
                let Some(record) = self.part_inode(changed, fid)? else { return Ok(()) };
                record.lmv = lmv.0.clone();
                record.attr.flags.set(AttrFlags::STRIPED, *is_master && !record.lmv.is_empty());
                stage_moves(tx, record);
            }
            Update::NewParent { fid, name, from, to } => {
                let Some(record) = self.part_inode(changed, fid)? else { return Ok(()) };
                let at = |parent: &Fid| Place { parent: *parent, name };
                self.move_name(tx, record, at(from), at(to));
            }
            Update::Replaced { fid, by, lmv } => {
                let Some(record) = self.part_inode(changed, fid)? else { return Ok(()) };
                tx.moves_directory = true;
                (record.parent, record.name, record.lmv) = (*by, Vec::new(), lmv.0.clone());
                record.attr.flags |= AttrFlags::STRIPED;
                stage_moves(tx, record);
            }
        }
        Ok(())
    }

    fn take_names(&self, tx: &mut Tx, record: &mut InodeRecord, names: &[Vec<u8>]) {
        record.attr.size = record.attr.size.saturating_sub(names.len() as u64);
        for name in names {
            tx.delete_dirent(&record.attr.fid, self.leaves.records.hash(name), name);
        }
    }

    fn add_names(&self, tx: &mut Tx, record: &mut InodeRecord, names: &[MovedName]) {
        let subdirs = names.iter().filter(|moved| moved.kind == FileKind::Directory).count();
        record.attr.size = record.attr.size.saturating_add(names.len() as u64);
        record.attr.nlink = record.attr.nlink.saturating_add(subdirs as u32);
        for MovedName { name, fid: lead, kind } in names {
            tx.put_dirent(&record.attr.fid, self.leaves.records.hash(name), name, *lead, *kind);
        }
    }

    /// Stores an answer, unless a later one of the slot is stored: the client may have been admitted before
    /// this MDT redid what it had lost.
    fn keep_answer(&self, tx: &mut Tx, slot: &ReplySlot, answer: &[u8]) -> StatusResult<()> {
        let (key, xid) = (reply_key(&slot.client, slot.tag), slot.xid);
        let is_later = |known: Option<&[u8]>| {
            known.and_then(|known| ReplyRecord::decode(known).ok()).is_some_and(|known| known.xid > xid)
        };
        if !self
            .leaves
            .store
            .get(REPLIES, key.as_slice(), is_later)
            .map_err(|error| self.leaves.records.store_failed(&error))?
        {
            let (scratch, batch) = tx.scratch();
            ReplyRecord { xid, opened: None, answer }.encode(scratch);
            batch.put(REPLIES, key.as_slice(), scratch);
        }
        Ok(())
    }

    fn stage_new_inode(
        &self,
        tx: &mut Tx,
        fid: &Fid,
        record: &RecordBytes,
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> StatusResult<()> {
        self.check_part(fid)?;
        let record = InodeRecord::decode(*fid, &record.0).map_err(|_| Status::EPROTO)?;
        if !record.lmv.is_empty() {
            stage_moves(tx, &record);
        }
        tx.put_new_inode(record);
        for (name, value) in xattrs {
            stage_xattr(tx, fid, name, Some(value));
        }
        Ok(())
    }

    fn check_part(&self, fid: &Fid) -> StatusResult<()> {
        self.leaves.records.check_local(fid).map_err(|_| Status::EPROTO)
    }

    /// Returns the current state of an inode that a part removes; `None` if it does not exist.
    fn take_part_inode(
        &self,
        changed: &mut Changed<'_>,
        fid: &Fid,
    ) -> StatusResult<Option<Arc<InodeRecord>>> {
        match changed.position(fid) {
            Some(at) => Ok(Some(changed.records.swap_remove(at))),
            None => self.read_part_inode(changed, fid),
        }
    }

    /// Returns an inode that a part changes; `None` if it does not exist.
    fn part_inode<'a>(
        &self,
        changed: &'a mut Changed<'_>,
        fid: &Fid,
    ) -> StatusResult<Option<&'a mut InodeRecord>> {
        let at = match changed.position(fid) {
            Some(at) => at,
            None => {
                let Some(record) = self.read_part_inode(changed, fid)? else { return Ok(None) };
                changed.records.push(record);
                changed.records.len() - 1
            }
        };
        Ok(changed.records.get_mut(at).map(Arc::make_mut))
    }

    /// Reads an inode of a part that the part has not changed so far; `None` if it does not exist.
    fn read_part_inode(&self, changed: &Changed<'_>, fid: &Fid) -> StatusResult<Option<Arc<InodeRecord>>> {
        if let Some(record) = changed.known.iter().find(|record| record.attr.fid == *fid) {
            return Ok(Some(Arc::clone(record)));
        }
        self.check_part(fid)?;
        let record = self.leaves.records.find_inode(fid)?;
        if record.is_none() {
            log::error!(
                "MDT{:04x}: {fid} is missing, and a distributed transaction changes it",
                self.leaves.index
            );
        }
        Ok(record)
    }
}

/// Sets the versions that a transaction stores in the attributes of a reply.
fn set_versions(reply: &mut MdsReply, tx: &Tx) {
    let stored = |attr: &mut Attr| {
        let of = |(fid, record): &(Fid, Option<Arc<InodeRecord>>)| {
            record
                .as_ref()
                .filter(|_| *fid == attr.fid)
                .map(|record| (record.attr.version, record.attr.size_stamp))
        };
        let known = (attr.version, attr.size_stamp);
        (attr.version, attr.size_stamp) = tx.cached().iter().find_map(of).unwrap_or(known);
    };
    match reply {
        MdsReply::Attr(attr) | MdsReply::Removed { attr: Some(attr), .. } => stored(attr),
        MdsReply::Created { attr, parent, .. } => {
            stored(attr);
            stored(parent);
        }
        _ => {}
    }
}
/// Stores the further names of an inode that moves here, and logs its objects: they belong to its new FID.
fn stage_arrival(tx: &mut Tx, fid: &Fid, links: &[Name]) {
    stage_links(tx, fid, links);
    if let Some(stored) = tx.stored(fid).filter(|stored| stored.attr.is_regular())
        && let Ok(layout) = user::decode_layout(&stored.body)
    {
        tx.log_owners(*fid, &layout, Owners::from(&stored.attr));
    }
}
