//! Components added to a file's layout and removed from it (`lfs setstripe --component-add`,
//! `--component-del`).
//!
//! Only the end of a layout changes. Clients' knowledge of objects stays valid when components are added, or
//! removed without having had objects. Removing a component with objects removes its data
//! ([`super::relayout`]).

use super::LayoutChanges;
use crate::locks::Want;
use crate::plan::may_set_layout;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_layout::user::Selector;
use nacre_layout::{ComponentSpec, Layout, LayoutForm, LayoutRequest, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{AttrFlags, Fid, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};

impl LayoutChanges {
    /// Appends components to a composite file.
    ///
    /// # Errors
    /// `EINVAL` if the file is not composite, has no end, or the result would break a rule; `EACCES`.
    pub fn add_components(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        added: Vec<ComponentSpec>,
    ) -> StatusResult<MdsAnswer> {
        self.edit_layout(caller, fid, |record, layout| {
            let LayoutRequest::Composite(mut all) = layout.to_request() else { return Err(Status::EINVAL) };
            all.extend_from_slice(&added);
            if !self.core.layouts.can_be_met(&LayoutRequest::Composite(all)) {
                return Err(Status::EINVAL);
            }
            for mut component in
                self.core.layouts.completed(record, &LayoutRequest::Composite(added))?.components
            {
                component.id = layout.free_id().ok_or(Status::EINVAL)?;
                layout.components.push(component);
                layout.generation = layout.generation.wrapping_add(1);
            }
            Ok(())
        })
    }

    /// Removes components from the end of a composite file, with their data.
    ///
    /// # Errors
    /// `EINVAL` if the file is not composite, the component is not its last one or its only one, or there is
    /// none; `EACCES`.
    pub fn delete_components(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        selector: Selector,
    ) -> StatusResult<MdsAnswer> {
        self.edit_layout(caller, fid, |_, layout| {
            let before = layout.components.len();
            match selector {
                Selector::Id(id) => {
                    // The component is removed with its extension.
                    let own = layout.components.len() - 1;
                    let own = if layout.components[own].is_extension() { own.saturating_sub(1) } else { own };
                    let id_of = |place: usize| layout.components.get(place).map(|c| c.id);
                    match id_of(own) == Some(id) {
                        true => layout.components.truncate(own),
                        // Only the extension is removed: a component that has grown stays as it is.
                        false if id_of(own + 1) == Some(id) && !layout.components[own].extent.is_empty() => {
                            layout.components.truncate(own + 1)
                        }
                        false => return Err(Status::EINVAL),
                    }
                }
                // Objects are allocated from the beginning, so the components without are the last ones.
                Selector::WithoutObjects => layout.components.retain(|c| c.is_instantiated()),
            }
            if layout.components.is_empty() || layout.components.len() == before {
                return Err(Status::EINVAL);
            }
            layout.generation = layout.generation.wrapping_add(1);
            Ok(())
        })
    }

    fn edit_layout(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        edit: impl FnOnce(&InodeRecord, &mut Layout) -> StatusResult<()>,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.leaves.records.inode(fid)?;
        may_set_layout(&record, caller.cred())?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let mut layout = self.core.layouts.layout_or_requested(&record)?;
        if layout.form != LayoutForm::Composite {
            return Err(Status::EINVAL);
        }
        let objects = layout.objects().count();
        edit(&record, &mut layout)?;
        if self.leaves.opens.frozen_by(fid).is_some() {
            return Err(Status::EBUSY);
        }
        if layout.objects().count() < objects {
            return self.drop_components(caller, &record, &layout);
        }
        self.core.client_locks.call_back_layout(fid, false, None)?;
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = now();
        changed.attr.flags |= AttrFlags::HAS_LAYOUT;
        changed.body = match record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            true => user::encode_layout(fid, &layout),
            false => user::encode_request(fid, &layout.to_request()),
        };
        let mut tx = self.leaves.records.begin();
        let record = tx.put_inode(changed);
        self.core.commits.finish(caller, tx, MdsReply::Attr(record.shown()))
    }
}
