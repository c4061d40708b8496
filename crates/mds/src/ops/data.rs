//! Data on this MDT where it meets metadata: sizes that its objects tell, data that comes with a close; and size and times
//! of any data, told while a file stays open or after objects were cut.

use super::layout::{mark_written, object_on_mdt, place};
use super::open_close::Word;
use crate::locks::Want;
use crate::mds::Mds;
use crate::operations::decode_prepared;
use crate::service::Caller;
use crate::tables::{INODES, PREPARED};
use crate::tx::Tx;
use nacre_layout::Layout;
use nacre_ondisk::InodeRecord;
use nacre_store::object::{Edit, ObjectAttr, ObjectError};
use nacre_types::{Attr, AttrFlags, Fid, OpenHandle, SizeSource, Status, StatusResult};
use nacre_wire::mds::{CLOSING_DATA_MAX, ClosingData, DataUpdate, MdsAnswer, MdsReply};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

impl Mds {
    /// The object of a file that has no other, if it is on this MDT.
    fn only_object_here(&self, record: &InodeRecord) -> StatusResult<Option<Fid>> {
        if !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return Ok(None);
        }
        Ok(self.layout_of(record)?.and_then(|layout| only_object(&layout)))
    }

    /// The record with size, space and time as the file's data has them, if all of it is in an object here, whose word counts:
    /// nothing else is stored, and nobody has the file open to write, or its client died.
    pub(crate) fn settled(&self, record: &Arc<InodeRecord>) -> StatusResult<Arc<InodeRecord>> {
        let is_unsure = record.attr.size_source == SizeSource::Objects;
        if !is_unsure || self.opens.session(&record.attr.fid).is_some() {
            return Ok(record.clone());
        }
        if self.is_undecided(record) {
            let mut settled = InodeRecord::clone(record);
            settled.attr.size_source = SizeSource::Exact;
            return Ok(Arc::new(settled));
        }
        let Some(object) = self.only_object_here(record)? else { return Ok(record.clone()) };
        let data = self.data.store.attr(object).map_err(|error| self.data_failed(&error))?;
        let mut settled = InodeRecord::clone(record);
        let attr = &mut settled.attr;
        (attr.size, attr.blocks, attr.size_source) = (data.size, data.blocks, SizeSource::Exact);
        if let Some(mtime) = data.mtime {
            (attr.mtime, attr.ctime) = (attr.mtime.max(mtime), attr.ctime.max(mtime));
        }
        Ok(Arc::new(settled))
    }

    /// Attributes as clients are told them.
    pub(crate) fn told(&self, record: &Arc<InodeRecord>) -> StatusResult<Attr> {
        match record.attr.size_source {
            SizeSource::Exact => Ok(record.shown()),
            SizeSource::Objects => self.settled(record).map(|record| record.shown()),
        }
    }

    /// True if the MDT finds out by itself what the data of a file is.
    pub(super) fn is_settled_by_itself(&self, record: &InodeRecord) -> StatusResult<bool> {
        Ok(self.is_undecided(record) || self.only_object_here(record)?.is_some())
    }

    /// Fits components to the space that there is, and has the store of data ask whose an object is before it is made.
    pub(crate) fn begin_data(self: &Arc<Self>) {
        self.data.adapt(&self.statfs());
        let owner = Arc::downgrade(self);
        self.data.set_owned(Box::new(move |object| match owner.upgrade() {
            Some(mds) => mds.is_object_of_a_file(object),
            None => Err(ObjectError::Closed),
        }));
    }

    /// Whether data that is not there belongs to a file: to the one that it was made for. Who takes its place in another layout finds it
    /// there, if only empty ([`Mds::swap_layouts`]).
    ///
    /// # Errors
    /// Those of the store.
    fn is_object_of_a_file(&self, object: &Fid) -> nacre_store::object::Result<bool> {
        let own = Fid { ver: 0, ..*object };
        if self.store.get(INODES, &own.to_key(), |value| value.is_some())? {
            return Ok(true);
        }
        // What comes here from another MDT, before its file does.
        let mut is_found = false;
        self.store.scan(PREPARED, &[], Bound::Unbounded, &mut |_, value| {
            is_found |= decode_prepared(value).is_some_and(|(fids, _)| fids.contains(object));
            if is_found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(is_found)
    }

    /// A close with data that its client has held back. Data, size and times are one transaction, if data is where the metadata is;
    /// otherwise the file has the object first, then that has the data, then the file the size. The handle stays if that fails.
    pub(crate) fn close_with_data(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        handle: OpenHandle,
        (update, data): (&DataUpdate, &ClosingData<'_>),
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let closed = self.opens.closing(fid, &caller.client, handle).ok_or(Status::EBADF)?;
        let record = self.inode(fid)?;
        let is_alone = self.lease_of(&caller.client)?.exclusive && self.opens.frozen_by(fid).is_none();
        // The first data of a file that nobody has given another layout gives it its place here.
        let is_placed = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        let mut layout = self.layout_or_wished(&record)?;
        layout.place_on_mdt(object_on_mdt(&record));
        if !is_alone || only_object(&layout) != Some(data.object) {
            return Err(Status::EAGAIN);
        }
        let room = layout.components[0].extent.end;
        let end = data.offset.checked_add(data.bytes.len() as u64).ok_or(Status::EINVAL)?;
        if data.bytes.len() > CLOSING_DATA_MAX || end > room {
            return Err(Status::EINVAL);
        }
        let mut changed = InodeRecord::clone(&record);
        if !is_placed {
            self.call_back_layout(fid, false, Some(caller.export))?;
            place(&mut changed, &mut layout);
            if self.data.records().is_none() {
                let mut tx = self.begin();
                changed = InodeRecord::clone(&tx.put_inode(changed));
                self.commit_as(Some(caller.export), &mut tx)?;
            }
        }
        let mut tx = self.begin();
        let (told, edit) =
            self.store_closing_data(&mut tx, data).map_err(|error| self.data_failed(&error))?;
        Word::of(self.opens.session(fid), &caller.client, update).apply(&mut changed.attr, update);
        // Whatever the client says.
        (changed.attr.size, changed.attr.blocks) = (told.size, told.blocks);
        if closed.ended.is_some_and(|ended| !ended.shared) {
            changed.attr.size_source = SizeSource::Exact;
        }
        let record = tx.put_inode(changed);
        let answer = self.finish(caller, tx, MdsReply::Attr(record.shown()))?;
        drop(edit);
        self.data.note_written(data.object, data.bytes.len() as u64);
        self.opens.note_report(fid, update.order);
        self.opens.remove(fid, &caller.client, handle);
        if closed.last_of_client {
            self.flocks.release_file(fid, &caller.client);
        }
        if closed.last {
            self.destroy_orphan_locked(fid)?;
        }
        Ok(answer)
    }

    /// Stores data that comes with a close: with `tx`, and then nobody else may change the object until that is committed; or at
    /// once.
    fn store_closing_data(
        &self,
        tx: &mut Tx,
        data: &ClosingData<'_>,
    ) -> Result<(ObjectAttr, Option<Edit<'_>>), ObjectError> {
        let Some(records) = self.data.records() else {
            let store = &self.data.store;
            return match store.write_promised(data.object, data.offset, data.bytes)? {
                len if len == data.bytes.len() => Ok((store.attr(data.object)?, None)),
                _ => Err(ObjectError::NoSpace),
            };
        };
        let mut edit = records.edit(data.object)?;
        edit.write(data.offset, data.bytes)?;
        let told = edit.stage(tx.batch());
        Ok((told, Some(edit)))
    }

    pub(crate) fn update_data(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        (update, written): (&DataUpdate, &[Fid]),
        exact: bool,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let session = self.opens.session(fid);
        let word = Word::of(session, &caller.client, update);
        let mut update = *update;
        if exact && session.is_none() && record.attr.size_source == SizeSource::Exact {
            // What was found out by asking the objects is older than a writer's last word, the time too.
            (update.size_blocks, update.mtime) = (None, None);
        }
        let mut changed = InodeRecord::clone(&record);
        word.apply(&mut changed.attr, &update);
        mark_written(&mut changed, written)?;
        if changed.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            // While somebody writes, the truth stays in the objects whatever is said about it.
            if session.is_none() && update.size_blocks.is_some() {
                changed.attr.size_source = SizeSource::Exact;
            }
            if word != Word::Shared && update.size_blocks.is_some() {
                self.opens.note_report(fid, update.order);
            }
        }
        if changed == *record {
            return Ok(self.answer(MdsReply::Attr(record.shown())));
        }
        let mut tx = self.begin();
        let record = tx.put_inode(changed);
        self.finish(caller, tx, MdsReply::Attr(record.shown()))
    }
}

/// The object on an MDT of a layout that has no other.
fn only_object(layout: &Layout) -> Option<Fid> {
    layout.object_on_mdt().filter(|_| layout.objects().count() == 1).map(|object| object.object)
}
