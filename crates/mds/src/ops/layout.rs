//! Layouts: where a file's data goes, and the defaults of directories.

use crate::mds::Mds;
use crate::service::Caller;
use crate::tx::Tx;
use nacre_layout::{Layout, LayoutSpec, user};
use nacre_ondisk::InodeRecord;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::{self, Verdict};
use nacre_types::{AttrFlags, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{MdsAnswer, MdsReply};
use std::sync::Arc;

impl Mds {
    /// The layout of a regular file; `None` if none is stored.
    pub(super) fn layout_of(&self, record: &InodeRecord) -> StatusResult<Option<Layout>> {
        if !record.attr.is_regular() || record.body.is_empty() {
            return Ok(None);
        }
        if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return match user::decode_layout(&record.body) {
                Ok(layout) => Ok(Some(layout)),
                Err(error) => Err(damaged(&record.attr.fid, &error)),
            };
        }
        Ok(Some(self.effective_spec(record)?.to_layout()))
    }

    /// The wishes of a file that has no objects, completed by the root's and the file system's defaults.
    fn effective_spec(&self, record: &InodeRecord) -> StatusResult<LayoutSpec> {
        let own = stored_spec(record)?;
        let root = match self.index {
            0 => stored_spec(&*self.inode(&Fid::ROOT)?)?,
            _ => LayoutSpec::default(),
        };
        // A wish for a first OST holds for the file that was made with it, not for what inherits.
        let root = LayoutSpec { first_ost: None, ..root };
        Ok(own.or(&root).or(&self.default_layout()))
    }

    pub(crate) fn get_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.inode(fid)?;
        Ok(self.answer(MdsReply::Layout(self.layout_of(&record)?.map(Arc::new))))
    }

    pub(crate) fn get_default_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.directory(fid)?;
        let spec = if record.body.is_empty() { None } else { Some(stored_spec(&record)?) };
        Ok(self.answer(MdsReply::DefaultLayout(spec)))
    }

    pub(crate) fn layout_intent(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        start: u64,
        end: u64,
    ) -> StatusResult<MdsAnswer> {
        if start > end {
            return Err(Status::EINVAL);
        }
        if start >= FILE_SIZE_MAX || (end > FILE_SIZE_MAX && end != u64::MAX) {
            return Err(Status::EFBIG);
        }
        let _locked = self.locks.lock(&[*fid]);
        let record = self.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return Ok(self.answer(MdsReply::Layout(self.layout_of(&record)?.map(Arc::new))));
        }
        self.with_objects(&record, |mut changed, layout, mut tx| {
            changed.attr.size_source = SizeSource::Objects;
            tx.put_inode(changed);
            self.finish(caller.call, tx, MdsReply::Layout(Some(Arc::new(layout))))
        })
    }

    /// Gives objects to the file `record`, which has none, as it or its ancestors wish: `commit` gets the changed record,
    /// the layout, and a transaction in which the objects are marked as given out.
    fn with_objects(
        &self,
        record: &InodeRecord,
        commit: impl FnOnce(InodeRecord, Layout, Tx) -> StatusResult<MdsAnswer>,
    ) -> StatusResult<MdsAnswer> {
        let spec = self.effective_spec(record)?;
        self.osts.with_objects(&spec, self.config.object_wait, |objects, marks| {
            let mut layout = spec.to_layout();
            if let Some(component) = layout.components.first_mut() {
                component.stripe_count = objects.len() as u16;
                component.first_ost = objects.first().map(|object| object.ost_index);
                component.flags.instantiated = true;
                component.objects = objects;
            }
            let mut changed = record.clone();
            changed.body = user::encode_layout(&record.attr.fid, &layout);
            changed.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
            let mut tx = self.begin();
            marks.put(tx.batch());
            commit(changed, layout, tx)
        })
    }

    /// Sets the default of a directory, or gives objects to a file that has none, as Lustre does when a file is striped
    /// by name.
    pub(crate) fn set_layout(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        spec: &LayoutSpec,
    ) -> StatusResult<MdsAnswer> {
        // Pools do not exist yet, so no pool has this name.
        if spec.check().is_err() || spec.pool.is_some() {
            return Err(Status::EINVAL);
        }
        if spec.first_ost.is_some_and(|index| !self.osts.exists(index)) {
            return Err(Status::EINVAL);
        }
        let _locked = self.locks.lock(&[*fid]);
        let record = self.inode(fid)?;
        if !record.attr.is_regular() && !record.attr.is_dir() {
            return Err(Status::EINVAL);
        }
        match perm::owner_or_capable(&record.attr, caller.cred()) {
            Verdict::Granted => {}
            _ => self.check_access(&record, caller.cred(), perm::WRITE)?,
        }
        if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return Err(Status::EALREADY);
        }
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = self.now();
        if spec.is_empty() {
            changed.body.clear();
            changed.attr.flags -= AttrFlags::HAS_LAYOUT;
        } else {
            changed.body = user::encode_spec(fid, spec);
            changed.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        let store = |changed: InodeRecord, mut tx: Tx| {
            let record = tx.put_inode(changed);
            self.finish(caller.call, tx, MdsReply::Attr(record.shown()))
        };
        if changed.attr.is_regular() && !spec.is_empty() {
            return self.with_objects(&changed, |changed, _, tx| store(changed, tx));
        }
        store(changed, self.begin())
    }
}

/// The wishes stored in a directory, or in a file without objects.
fn stored_spec(record: &InodeRecord) -> StatusResult<LayoutSpec> {
    if record.body.is_empty() {
        return Ok(LayoutSpec::default());
    }
    user::decode_spec(&record.body).map_err(|error| damaged(&record.attr.fid, &error))
}

fn damaged(fid: &Fid, error: &user::UserMdError) -> Status {
    log::error!("layout of {fid}: {error}");
    Status::EUCLEAN
}
