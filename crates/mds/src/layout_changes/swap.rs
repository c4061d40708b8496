//! Exchange and removal of a file's objects (`lfs swap_layouts`, `lfs migrate`, deleted components), and
//! leases that detect whether a file changed meanwhile. `docs/design/layout-changes.md` has the design.
//!
//! An operation that removes objects from a file first revokes the layout locks of all clients: then no
//! client reads or writes the objects, and all writes have reached them. At that moment their versions are
//! compared and their sizes read. The change is durable before any client gets the new layout, because a
//! client that then writes and syncs relies on it.

use super::LayoutChanges;
use crate::locks::Want;
use crate::plan::check_access;
use crate::suspend::Caller;
use crate::tx::now;
use nacre_layout::{Layout, LayoutForm, user};
use nacre_ondisk::{ChangeRecord, InodeRecord};
use nacre_types::{
    Attr, AttrFlags, ChangeKind, Fid, OpenHandle, Owners, SizeSource, Status, StatusResult, perm,
};
use nacre_wire::mds::{LeaseKind, MdsAnswer, MdsReply};

/// The combined attributes of a file's objects.
#[derive(Clone, Default)]
struct Content {
    size: u64,
    /// Allocated space in units of 512 bytes.
    blocks: u64,
    version: u64,
    /// Objects that exist.
    written: Vec<Fid>,
}

/// The files to exchange, and the conditions.
pub(crate) struct Swap {
    pub files: [Fid; 2],
    pub versions: [Option<u64>; 2],
    pub keep_times: bool,
    pub lease: Option<OpenHandle>,
}

impl Swap {
    pub fn of(
        files: [Fid; 2],
        versions: (Option<u64>, Option<u64>),
        keep_times: bool,
        lease: Option<OpenHandle>,
    ) -> Swap {
        Swap { files, versions: [versions.0, versions.1], keep_times, lease }
    }
}

impl LayoutChanges {
    pub fn swap_layouts(&self, caller: &Caller<'_>, swap: &Swap) -> StatusResult<MdsAnswer> {
        let [first, second] = swap.files;
        if first == second {
            return Err(Status::EINVAL);
        }
        let _locked = self.leaves.locks.lock(&swap.files.map(Want::Whole))?;
        // With the times of the objects, which leave the file with them.
        let records = [
            self.core.layouts.settled(&self.leaves.records.inode(&first)?)?,
            self.core.layouts.settled(&self.leaves.records.inode(&second)?)?,
        ];
        for record in &records {
            if record.attr.is_dir() {
                return Err(Status::EISDIR);
            }
            if !record.attr.is_regular() {
                return Err(Status::EINVAL);
            }
            check_access(record, caller.cred(), perm::WRITE)?;
        }
        // Space is charged to the owner: it must not move to another one.
        let owner = |record: &InodeRecord| (record.attr.uid, record.attr.gid, record.attr.projid);
        if owner(&records[0]) != owner(&records[1]) {
            return Err(Status::EPERM);
        }
        self.check_not_frozen(caller, swap)?;
        for fid in &swap.files {
            self.core.client_locks.call_back_layout(fid, true, None)?;
        }
        self.check_not_frozen(caller, swap)?;
        let mut contents = [Content::default(), Content::default()];
        for (index, record) in records.iter().enumerate() {
            contents[index] = self.content_of(record)?;
            if swap.versions[index].is_some_and(|expected| expected != contents[index].version) {
                return Err(Status::EAGAIN);
            }
        }
        let mut tx = self.leaves.records.begin();
        for record in &records {
            // The FID of the object does not identify its file afterwards.
            if let Some(object) =
                self.core.layouts.layout_of(record)?.and_then(|layout| layout.object_on_mdt().copied())
            {
                let staged = self.leaves.data.stage_empty(object.object, &mut tx);
                staged.map_err(|error| self.leaves.data.failed(&error))?;
            }
        }
        for (own, other) in [(0, 1), (1, 0)] {
            tx.put_inode(self.with_objects_of(&records[own], &records[other], &contents[other], swap)?);
        }
        for (fid, record) in swap.files.iter().zip(&records) {
            self.core.commits.log_owners(&mut tx, fid, Owners::from(&record.attr))?;
        }
        for fid in swap.files {
            self.leaves.changelog.note(caller, &mut tx, &ChangeRecord::new(ChangeKind::Layout, fid));
        }
        let answer = self.core.commits.finish(caller, tx, MdsReply::Done)?;
        swap.files.iter().for_each(|fid| self.leaves.opens.note_exact(fid));
        self.leaves.records.sync(answer.transno)?;
        Ok(answer)
    }

    /// Returns `own` with the layout of `other` and the attributes of its objects.
    fn with_objects_of(
        &self,
        own: &InodeRecord,
        other: &InodeRecord,
        content: &Content,
        swap: &Swap,
    ) -> StatusResult<InodeRecord> {
        const LAYOUT: AttrFlags = AttrFlags::HAS_LAYOUT.union(AttrFlags::HAS_OBJECTS);
        let mut changed = own.clone();
        let fid = own.attr.fid;
        changed.body = match (other.attr.flags.contains(AttrFlags::HAS_OBJECTS), other.body.is_empty()) {
            (true, _) => {
                let mut layout = self.core.layouts.layout_or_requested(other)?;
                if layout.form == LayoutForm::Composite {
                    layout.generation = layout.generation.wrapping_add(1);
                }
                layout.mark_written(&content.written);
                user::encode_layout(&fid, &layout)
            }
            (false, true) => Vec::new(),
            (false, false) => user::encode_request(&fid, &crate::layouts::stored_request(other)?),
        };
        if self.core.layouts.layout_of(own)?.is_some_and(|layout| layout.object_on_mdt().is_some()) {
            // An object named after this file belongs to the other file from here on.
            changed.data_generation = own.data_generation.checked_add(1).ok_or(Status::EOVERFLOW)?;
        }
        changed.attr.flags = (own.attr.flags - LAYOUT) | (other.attr.flags & LAYOUT);
        (changed.attr.size, changed.attr.blocks) = (content.size, content.blocks);
        changed.attr.size_stamp = Attr::NEW_STAMP;
        let is_written = self.leaves.opens.session(&fid).is_some();
        let has_objects = changed.attr.flags.contains(AttrFlags::HAS_OBJECTS);
        changed.attr.size_source =
            if is_written && has_objects { SizeSource::Objects } else { SizeSource::Exact };
        if !swap.keep_times {
            changed.attr.mtime = other.attr.mtime;
            changed.attr.ctime = now();
        }
        Ok(changed)
    }

    /// Reads the attributes of a file's objects, which no client uses at this point.
    ///
    /// # Errors
    /// Those of the OSTs.
    fn content_of(&self, record: &InodeRecord) -> StatusResult<Content> {
        let layout = match record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            true => self.core.layouts.layout_or_requested(record)?,
            // A file without objects may have been extended by a truncation.
            false => return Ok(Content { size: record.attr.size, ..Content::default() }),
        };
        self.content_of_layout(&layout)
    }

    fn content_of_layout(&self, layout: &Layout) -> StatusResult<Content> {
        let (mut content, mut sizes) = (Content::default(), Vec::new());
        let mut add = |size, blocks, version| {
            sizes.push(size);
            content.blocks += blocks;
            content.version = content.version.wrapping_add(version);
        };
        // The object on the MDT is the first one.
        if let Some(object) = layout.object_on_mdt() {
            let store = &self.leaves.data.store;
            let attr = store.attr(object.object).map_err(|error| self.leaves.data.failed(&error))?;
            add(attr.size, attr.blocks, store.abilities().version_in(&attr).unwrap_or(0));
        }
        let on_osts = || layout.objects().filter(|object| !object.is_on_mdt());
        let mut written = Vec::new();
        for (stripe, (attr, version)) in on_osts().zip(self.leaves.osts.ask(on_osts())?) {
            add(attr.size, attr.blocks, version);
            written.extend(attr.mtime.map(|_| stripe.object));
        }
        content.written = written;
        content.size = layout.file_size(&sizes);
        Ok(content)
    }

    /// Checks that the caller's lease is valid, and that no other client has frozen one of the files.
    fn check_not_frozen(&self, caller: &Caller<'_>, swap: &Swap) -> StatusResult<()> {
        let own = swap.lease.map(|handle| (caller.client, handle));
        if own.is_some_and(|(client, handle)| {
            self.leaves.opens.lease(&swap.files[0], &client, handle) == LeaseKind::None
        }) {
            return Err(Status::EBUSY);
        }
        let is_foreign = |fid: &Fid| self.leaves.opens.frozen_by(fid).is_some_and(|by| Some(by) != own);
        if swap.files.iter().any(is_foreign) { Err(Status::EBUSY) } else { Ok(()) }
    }

    /// Removes the objects of components from a file whose layout locks were revoked. `layout` is the
    /// remaining layout.
    pub fn drop_components(
        &self,
        caller: &Caller<'_>,
        record: &InodeRecord,
        layout: &Layout,
    ) -> StatusResult<MdsAnswer> {
        let fid = record.attr.fid;
        self.core.client_locks.call_back_layout(&fid, true, None)?;
        let content = self.content_of_layout(layout)?;
        let mut changed = record.clone();
        let mut tx = self.leaves.records.begin();
        for object in self.core.layouts.layout_or_requested(record)?.objects() {
            if !layout.objects().any(|kept| kept == object) {
                self.core.staging.destroy_object(&mut tx, object)?;
            }
        }
        let now = now();
        changed.attr.ctime = now;
        changed.attr.mtime = now;
        (changed.attr.size, changed.attr.blocks) = (content.size, content.blocks);
        changed.attr.size_stamp = Attr::NEW_STAMP;
        let is_written = self.leaves.opens.session(&fid).is_some();
        changed.attr.size_source = SizeSource::Exact;
        changed.body = match layout.has_objects() {
            true => user::encode_layout(&fid, layout),
            false => {
                changed.attr.flags -= AttrFlags::HAS_OBJECTS;
                user::encode_request(&fid, &layout.to_request())
            }
        };
        if is_written && layout.has_objects() {
            changed.attr.size_source = SizeSource::Objects;
        }
        let record = tx.put_inode(changed);
        let answer = self.core.commits.finish(caller, tx, MdsReply::Attr(record.shown()))?;
        self.leaves.opens.note_exact(&fid);
        self.leaves.records.sync(answer.transno)?;
        Ok(answer)
    }
}
