//! The names of an inode: the first is in its record, others in the links table; and the removal of the last
//! one.

use super::Staging;
use crate::plan::Place;
use crate::tables::{LINKS, MOVES, ORPHANS, OrphanKind, XATTRS, link_key};
use crate::tx::Tx;
use nacre_layout::{StripeObject, user};
use nacre_ondisk::{InodeRecord, LinkRecord};
use nacre_store::Table;
use nacre_types::{AttrFlags, Fid, Status, StatusResult, Timestamp};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

impl Staging {
    /// Adds a name; the caller has checked the number of links.
    pub(super) fn add_name(&self, tx: &mut Tx, record: &mut InodeRecord, place: Place<'_>) {
        if record.parent.is_zero() {
            record.parent = place.parent;
            record.name = place.name.to_vec();
        } else {
            let key = link_key(&record.attr.fid, &place.parent, place.name);
            tx.batch().put(LINKS, key.as_slice(), &LinkRecord::encode());
        }
        record.attr.nlink += 1;
    }

    /// Moves a name from one place to another.
    pub(super) fn move_name(&self, tx: &mut Tx, record: &mut InodeRecord, from: Place<'_>, to: Place<'_>) {
        tx.moves_directory |= record.attr.is_dir() && from.parent != to.parent;
        if record.is_first_link(&from.parent, from.name) {
            record.parent = to.parent;
            record.name = to.name.to_vec();
        } else {
            let fid = record.attr.fid;
            tx.batch().delete(LINKS, link_key(&fid, &from.parent, from.name).as_slice());
            let key = link_key(&fid, &to.parent, to.name);
            tx.batch().put(LINKS, key.as_slice(), &LinkRecord::encode());
        }
    }

    /// Removes a name of an inode that is not a directory. With its last name the inode is removed, or
    /// becomes an orphan while it is open, or for a moment after a rename has `replaced` it. The record is stored.
    ///
    /// # Errors
    /// `EIO` if the store cannot be read.
    pub(super) fn drop_name(
        &self,
        tx: &mut Tx,
        mut shared: Arc<InodeRecord>,
        place: Place<'_>,
        replaced: bool,
        now: Timestamp,
    ) -> StatusResult<()> {
        let fid = shared.attr.fid;
        let is_last = shared.attr.nlink <= 1;
        let is_kept = || {
            let leaves = &self.leaves;
            leaves.opens.is_open(&fid)
                || leaves.recovery.keeps(&fid)
                || (replaced && leaves.replaced.keep(fid))
        };
        if is_last && !is_kept() {
            return self.destroy_inode(tx, &shared);
        }
        let record = Arc::make_mut(&mut shared);
        record.attr.ctime = now;
        record.attr.nlink = record.attr.nlink.saturating_sub(1);
        if is_last {
            record.parent = Fid::ZERO;
            record.name.clear();
            record.attr.flags |= AttrFlags::ORPHAN;
            tx.batch().put(ORPHANS, &fid.to_key(), &OrphanKind::Unlinked.encode());
        } else {
            self.forget_link(tx, record, place)?;
        }
        tx.put_inode(shared);
        Ok(())
    }

    fn forget_link(&self, tx: &mut Tx, record: &mut InodeRecord, place: Place<'_>) -> StatusResult<()> {
        let fid = record.attr.fid;
        if !record.is_first_link(&place.parent, place.name) {
            tx.batch().delete(LINKS, link_key(&fid, &place.parent, place.name).as_slice());
            return Ok(());
        }
        // Another name becomes the first one.
        match self.leaves.records.extra_link(&fid, 0)? {
            Some((parent, name)) => {
                tx.batch().delete(LINKS, link_key(&fid, &parent, &name).as_slice());
                record.parent = parent;
                record.name = name;
                Ok(())
            }
            None => {
                log::error!("{fid} has {} more links than names: run a check", record.attr.nlink);
                record.parent = Fid::ZERO;
                record.name.clear();
                Ok(())
            }
        }
    }

    /// Adds an object that belongs to no file to the destroy log.
    ///
    /// # Errors
    /// Those of the store of data on this MDT.
    pub fn destroy_object(&self, tx: &mut Tx, object: &StripeObject) -> StatusResult<()> {
        if object.is_on_mdt() {
            // A client may write later without an open handle, for example after a truncation: the write then
            // looks for the file.
            return self.leaves.data.destroy(tx, object).map_err(|error| self.leaves.data.failed(&error));
        }
        tx.log_destroy(object.ost_index, object.object);
        Ok(())
    }

    /// Removes an inode with everything that belongs to it; its objects are added to the destroy log.
    pub fn destroy_inode(&self, tx: &mut Tx, record: &InodeRecord) -> StatusResult<()> {
        let fid = record.attr.fid;
        let flags = record.attr.flags;
        tx.batch().set_releasing(true);
        if flags.contains(AttrFlags::HAS_OBJECTS) {
            let layout = user::decode_layout(&record.body).map_err(|error| {
                log::error!("layout of {fid}: {error}");
                Status::EUCLEAN
            })?;
            for object in layout.objects() {
                self.destroy_object(tx, object)?;
            }
        }
        self.delete_records(tx, record)
    }

    /// Removes an inode that has moved to another MDT with another FID: its names refer to it there, and its
    /// objects on OSTs belong to it there. Its data on this MDT was copied.
    ///
    /// # Errors
    /// As [`Staging::destroy_inode`].
    pub(super) fn give_inode_away(&self, tx: &mut Tx, record: &InodeRecord) -> StatusResult<()> {
        let fid = record.attr.fid;
        tx.batch().set_releasing(true);
        if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            let layout = user::decode_layout(&record.body).map_err(|error| {
                log::error!("layout of {fid}: {error}");
                Status::EUCLEAN
            })?;
            layout.object_on_mdt().map(|object| self.destroy_object(tx, object)).transpose()?;
        }
        if record.attr.nlink > 1 && !record.attr.is_dir() {
            self.delete_all(tx, LINKS, &fid)?;
        }
        self.delete_records(tx, record)
    }

    /// Removes the record of an inode, and its records in other tables.
    fn delete_records(&self, tx: &mut Tx, record: &InodeRecord) -> StatusResult<()> {
        let (fid, flags) = (record.attr.fid, record.attr.flags);
        if flags.intersects(AttrFlags::HAS_XATTRS | AttrFlags::HAS_DEFAULT_ACL | AttrFlags::HAS_CAPABILITY) {
            self.delete_all(tx, XATTRS, &fid)?;
        }
        if flags.contains(AttrFlags::ORPHAN) {
            tx.batch().delete(ORPHANS, &fid.to_key());
        }
        if !record.lmv.is_empty() {
            tx.batch().delete(MOVES, &fid.to_key());
        }
        tx.delete_inode(&fid);
        Ok(())
    }

    /// Removes all records of an inode in a table.
    fn delete_all(&self, tx: &mut Tx, table: Table, fid: &Fid) -> StatusResult<()> {
        let mut keys = Vec::new();
        self.leaves
            .store
            .scan(table, &fid.to_key(), Bound::Unbounded, &mut |key, _| {
                keys.push(key.to_vec());
                ControlFlow::Continue(())
            })
            .map_err(|error| self.leaves.records.store_failed(&error))?;
        keys.iter().for_each(|key| tx.batch().delete(table, key));
        Ok(())
    }
}
