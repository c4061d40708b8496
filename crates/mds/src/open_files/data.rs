//! Data on this MDT in connection with metadata: sizes from its objects, data that arrives with a close; and
//! updates of size and times of any data, while a file stays open or after objects were truncated.

use super::{OpenFiles, Word, stamp_size};
use crate::changelog::events;
use crate::layouts::stored::mark_written;
use crate::layouts::{object_on_mdt, only_object, place};
use crate::locks::Want;
use crate::suspend::Caller;
use crate::tx::Tx;
use nacre_ondisk::InodeRecord;
use nacre_store::object::{Edit, ObjectAttr, ObjectError};
use nacre_types::{AttrFlags, Fid, OpenHandle, Owners, QuotaResource, SizeSource, Status, StatusResult};
use nacre_wire::mds::{CLOSING_DATA_MAX, ClosingData, DataUpdate, MdsAnswer, MdsReply};

impl OpenFiles {
    /// Closes a handle with data that its client has held back. Data, size and times are one transaction if
    /// the data is in the metadata store; otherwise the file gets the object first, then the object the data,
    /// then the file the size. On an error the handle stays open.
    pub fn close_with_data(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        handle: OpenHandle,
        update: &DataUpdate,
        data: &ClosingData<'_>,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        let closed = self.leaves.opens.closing(fid, &caller.client, handle).ok_or(Status::EBADF)?;
        let record = self.leaves.records.inode(fid)?;
        let is_alone = self.leaves.clients.lease_of(&caller.client)?.exclusive
            && self.leaves.opens.frozen_by(fid).is_none();
        // The first data of a file without a layout of its own places the file here.
        let is_placed = record.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        let mut layout = self.core.layouts.layout_or_requested(&record)?;
        layout.place_on_mdt(object_on_mdt(&record));
        if !is_alone || only_object(&layout) != Some(data.object) {
            return Err(Status::EAGAIN);
        }
        let room = layout.components[0].extent.end;
        let end = data.offset.checked_add(data.bytes.len() as u64).ok_or(Status::EINVAL)?;
        if data.bytes.len() > CLOSING_DATA_MAX || end > room {
            return Err(Status::EINVAL);
        }
        // The client then writes the data, and its program gets the error.
        let owners = Owners::from(&record.attr);
        self.leaves.quotas.admit_one(QuotaResource::Space, owners, data.bytes.len() as u64)?;
        let mut changed = InodeRecord::clone(&record);
        if !is_placed {
            self.core.client_locks.call_back_layout(fid, false, Some(caller.export))?;
            place(&mut changed, &mut layout);
            if self.leaves.data.records().is_none() {
                let mut tx = self.leaves.records.begin();
                changed = InodeRecord::clone(&tx.put_inode(changed));
                self.core.commits.commit_as(Some(caller.export), &mut tx)?;
            }
        }
        let mut tx = self.leaves.records.begin();
        let (told, edit) =
            self.store_closing_data(&mut tx, data).map_err(|error| self.leaves.data.failed(&error))?;
        let session = self.leaves.opens.session(fid);
        Word::of(session, &caller.client, update, &record.attr).apply(&mut changed.attr, update);
        // The object's attributes take precedence over the client's.
        (changed.attr.size, changed.attr.blocks) = (told.size, told.blocks);
        if closed.ended.is_some_and(|ended| !ended.shared) {
            changed.attr.size_source = SizeSource::Exact;
        }
        stamp_size(&record.attr, &mut changed.attr);
        let record = tx.put_inode(changed);
        self.leaves.changelog.note(caller, &mut tx, &events::of_close(*fid, closed.flags));
        let answer = self.core.commits.finish(caller, tx, MdsReply::Attr(record.shown()))?;
        drop(edit);
        self.leaves.data.note_written(data.object, data.bytes.len() as u64);
        self.leaves.opens.note_report(fid, update.order);
        self.leaves.opens.remove(fid, &caller.client, handle);
        if closed.last_of_client {
            self.leaves.flocks.release_file(fid, &caller.client);
        }
        if closed.last {
            self.destroy_orphan_locked(fid)?;
        }
        Ok(answer)
    }

    /// Stores data that arrives with a close: in `tx`, in which case the caller excludes changes of the
    /// object until the commit; or at once.
    fn store_closing_data(
        &self,
        tx: &mut Tx,
        data: &ClosingData<'_>,
    ) -> Result<(ObjectAttr, Option<Edit<'_>>), ObjectError> {
        let Some(records) = self.leaves.data.records() else {
            let store = &self.leaves.data.store;
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

    pub fn update_data(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        update: &DataUpdate,
        written: &[Fid],
        exact: bool,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.leaves.records.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let session = self.leaves.opens.session(fid);
        let word = Word::of(session, &caller.client, update, &record.attr);
        let mut update = *update;
        if exact && session.is_none() && record.attr.size_source == SizeSource::Exact {
            // A glimpse of the objects is older than a writer's last update, including the time.
            (update.size_blocks, update.mtime) = (None, None);
        }
        let mut changed = InodeRecord::clone(&record);
        word.apply(&mut changed.attr, &update);
        mark_written(&mut changed, written)?;
        if changed.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            // While a client writes, the objects remain authoritative, whatever an update says.
            if session.is_none() && update.size_blocks.is_some() && word != Word::Outdated {
                changed.attr.size_source = SizeSource::Exact;
            }
            match word {
                Word::Sole | Word::Late if update.size_blocks.is_some() => {
                    self.leaves.opens.note_report(fid, update.order);
                }
                // Also for a client that has opened the file to write and will write nothing.
                Word::Outdated => self.leaves.opens.note_unsure(fid),
                Word::Sole | Word::Late | Word::Shared => {}
            }
        }
        if changed == *record {
            return Ok(self.core.commits.answer(MdsReply::Attr(record.shown())));
        }
        stamp_size(&record.attr, &mut changed.attr);
        let mut tx = self.leaves.records.begin();
        let record = tx.put_inode(changed);
        self.core.commits.finish(caller, tx, MdsReply::Attr(record.shown()))
    }
}
