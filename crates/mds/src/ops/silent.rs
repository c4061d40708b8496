//! Files without data whose objects are on an OST that does not answer get other objects when they are opened for writing.

use crate::mds::Mds;
use crate::tables::{DESTROYS, PRESENT, destroy_key};
use nacre_layout::{ComponentFlags, Layout, StripeObject};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, SizeSource, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::sync::Arc;

impl Mds {
    /// Gives components of a file other objects if some of theirs are on OSTs that do not answer, nothing was ever written to it and
    /// nobody has it open: then nothing is lost. The record as it is then; `None` if it stays as it is. The caller has locked it.
    ///
    /// # Errors
    /// `EINTR`; what the store says.
    pub(super) fn leave_silent_osts(
        &self,
        record: &Arc<InodeRecord>,
    ) -> StatusResult<Option<Arc<InodeRecord>>> {
        let (attr, fid) = (&record.attr, record.attr.fid);
        let is_empty = attr.size == 0 && attr.size_source == SizeSource::Exact;
        if !is_empty || !attr.flags.contains(AttrFlags::HAS_OBJECTS) || self.opens.is_open(&fid) {
            return Ok(None);
        }
        let Some(mut layout) = self.layout_of(record)? else { return Ok(None) };
        // How far a component has grown is decided by the OSTs it is on.
        if layout.is_written() || layout.components.iter().any(|component| component.is_extension()) {
            return Ok(None);
        }
        let is_there = |object: &StripeObject| object.is_on_mdt() || !self.osts.is_silent(object.ost_index);
        let silent: Vec<u16> =
            layout.objects().filter(|object| !is_there(object)).map(|object| object.ost_index).collect();
        // Elsewhere is nowhere if no other answers.
        let mut others = self.osts.indexes().into_iter().filter(|index| !silent.contains(index));
        if silent.is_empty() || others.all(|index| self.osts.is_silent(index)) {
            return Ok(None);
        }
        let (left, end) = take_back(&mut layout, &silent);
        self.call_back_layout(&fid, true, None)?;
        let moved = self.instantiate(record, layout, (end, None), |changed, layout, mut tx| {
            if layout.objects().any(|object| silent.contains(&object.ost_index)) {
                return Err(Status::EAGAIN);
            }
            for object in &left {
                // The OSTs hear of it below: those that give objects are locked.
                tx.batch().put(DESTROYS, destroy_key(object.ost_index, &object.object).as_slice(), &PRESENT);
            }
            tx.put_inode(changed);
            let transno = self.commit(&mut tx)?;
            Ok(MdsAnswer { transno, ..self.answer(MdsReply::Done) })
        });
        let answer = match moved {
            Ok(answer) => answer,
            // There is no room for it now.
            Err(Status::EAGAIN | Status::ENOSPC | Status::EIO) => return Ok(None),
            Err(status) => return Err(status),
        };
        // An fsync of data in the new objects relies on the layout being durable.
        self.make_durable(&answer)?;
        for object in &left {
            self.osts.destroy_later(object.ost_index, answer.transno, object.object);
        }
        log::info!("MDT{:04x}: {fid} has no data and leaves OSTs that do not answer", self.index);
        self.inode(&fid).map(Some)
    }
}

/// Takes all objects from components that have some on one of these OSTs. Those objects, and the first byte of the last of the
/// components, or rather its end.
fn take_back(layout: &mut Layout, silent: &[u16]) -> (Vec<StripeObject>, u64) {
    let (mut left, mut end) = (Vec::new(), 0);
    for component in &mut layout.components {
        if component.objects.iter().any(|object| silent.contains(&object.ost_index)) {
            left.append(&mut component.objects);
            component.flags -= ComponentFlags::INIT;
            component.first_ost = None;
            end = component.extent.start + 1;
        }
    }
    (left, end)
}
