//! Allocation of objects for files: for writes, and as a replacement when a file without data is opened for
//! writing and its objects are on an unresponsive OST.

use super::LayoutChanges;
use crate::layouts::object_on_mdt;
use crate::osts::{Marks, Need};
use crate::tables::{DESTROYS, PRESENT, destroy_key};
use crate::tx::Tx;
use nacre_layout::{ComponentFlags, Layout, LayoutForm, LayoutSpec, StripeObject, user};
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::{AttrFlags, SizeSource, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::sync::Arc;

impl LayoutChanges {
    /// Grows components and allocates objects for a write that ends at `end`: to all components before `end`
    /// without any, of the file `record` with this layout. `commit` gets the changed record, the layout, and
    /// a transaction that marks the objects as allocated. `informed` is the client that gets the layout with
    /// the answer.
    pub fn instantiate(
        &self,
        record: &InodeRecord,
        mut layout: Layout,
        end: u64,
        informed: Option<&Export>,
        commit: impl FnOnce(InodeRecord, Layout, Tx) -> StatusResult<MdsAnswer>,
    ) -> StatusResult<MdsAnswer> {
        // Before objects are reserved: other requests wait for those.
        self.core.client_locks.call_back_layout(&record.attr.fid, false, informed)?;
        self.core.client_locks.call_back_for_objects(record)?;
        layout.place_on_mdt(object_on_mdt(record));
        let grown = layout.grow(end, &mut &*self.leaves.osts);
        let places: Vec<usize> = layout.to_instantiate(end).collect();
        for &place in &places {
            let component = &mut layout.components[place];
            component.pool = self.leaves.osts.spilled(component.pool);
        }
        let wanted: Vec<Need> = places
            .iter()
            .map(|&place| {
                let component = &layout.components[place];
                let spec = LayoutSpec {
                    stripe_size: None,
                    stripe_count: Some(component.stripe_count),
                    first_ost: component.first_ost,
                    pool: component.pool,
                    pattern: component.pattern,
                    osts: component.osts.clone(),
                };
                Need { spec, stripes_max: layout.stripes_that_fit(place), free_bytes: grown.share(component) }
            })
            .collect();
        let used: Vec<u16> = layout.objects().map(|object| object.ost_index).collect();
        let store = |objects: Vec<Vec<StripeObject>>, marks: Option<&Marks>| {
            for (&place, objects) in places.iter().zip(objects) {
                layout.instantiate(place, objects);
            }
            if (grown.changed || !places.is_empty()) && layout.form == LayoutForm::Composite {
                layout.generation = layout.generation.wrapping_add(1);
            }
            let mut changed = record.clone();
            changed.body = user::encode_layout(&record.attr.fid, &layout);
            changed.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
            let mut tx = self.leaves.records.begin();
            if let Some(marks) = marks {
                marks.put(tx.batch());
            }
            commit(changed, layout, tx)
        };
        // Components on this MDT need no OST.
        if wanted.is_empty() {
            return store(Vec::new(), None);
        }
        let wait = self.wait;
        self.leaves.osts.with_objects(&wanted, &used, wait, |objects, marks| store(objects, Some(marks)))
    }

    /// Replaces objects of components if some are on unresponsive OSTs, the file was never written and no
    /// client has it open: then nothing is lost. Returns the new record; `None` if nothing changed. The
    /// caller has locked the inode.
    ///
    /// # Errors
    /// `EINTR`; those of the store.
    pub fn leave_silent_osts(&self, record: &Arc<InodeRecord>) -> StatusResult<Option<Arc<InodeRecord>>> {
        let (attr, fid) = (&record.attr, record.attr.fid);
        let is_empty = attr.size == 0 && attr.size_source == SizeSource::Exact;
        if !is_empty || !attr.flags.contains(AttrFlags::HAS_OBJECTS) || self.leaves.opens.is_open(&fid) {
            return Ok(None);
        }
        let Some(mut layout) = self.core.layouts.layout_of(record)? else { return Ok(None) };
        // The size of a growing component depends on the OSTs it is on.
        if layout.is_written() || layout.components.iter().any(|component| component.is_extension()) {
            return Ok(None);
        }
        let is_there =
            |object: &StripeObject| object.is_on_mdt() || !self.leaves.osts.is_silent(object.ost_index);
        let silent: Vec<u16> =
            layout.objects().filter(|object| !is_there(object)).map(|object| object.ost_index).collect();
        // A replacement needs an OST that answers.
        let mut others = self.leaves.osts.indexes().into_iter().filter(|index| !silent.contains(index));
        if silent.is_empty() || others.all(|index| self.leaves.osts.is_silent(index)) {
            return Ok(None);
        }
        let (left, end) = take_back(&mut layout, &silent);
        self.core.client_locks.call_back_layout(&fid, true, None)?;
        let moved = self.instantiate(record, layout, end, None, |changed, layout, mut tx| {
            if layout.objects().any(|object| silent.contains(&object.ost_index)) {
                return Err(Status::EAGAIN);
            }
            for object in &left {
                // The OSTs are notified below, since those that allocate objects are locked here.
                tx.batch().put(DESTROYS, destroy_key(object.ost_index, &object.object).as_slice(), &PRESENT);
            }
            tx.put_inode(changed);
            let transno = self.core.commits.commit(&mut tx)?;
            Ok(MdsAnswer { transno, ..self.core.commits.answer(MdsReply::Done) })
        });
        let answer = match moved {
            Ok(answer) => answer,
            // No OST has free space at present.
            Err(Status::EAGAIN | Status::ENOSPC | Status::EIO) => return Ok(None),
            Err(status) => return Err(status),
        };
        // An fsync of data in the new objects relies on the layout being durable.
        self.leaves.records.sync(answer.transno)?;
        for object in &left {
            self.leaves.osts.destroy_later(object.ost_index, answer.transno, object.object);
        }
        log::info!("MDT{:04x}: {fid} has no data and leaves OSTs that do not answer", self.leaves.index);
        self.leaves.records.inode(&fid).map(Some)
    }
}

/// Removes all objects from components that have any on one of these OSTs. Returns those objects, and one
/// past the first byte of the last of these components.
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
