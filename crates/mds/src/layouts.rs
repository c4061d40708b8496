//! Records of a file's data: its layout, its size, and the defaults of directories, the root and the file
//! system.

pub(crate) mod stored;
pub(crate) mod system;

pub(crate) use stored::{is_foreign_directory, stored_request};

use crate::config::{AppendLayout, MdsConfig};
use crate::leaves::Leaves;
use nacre_env::sync::{Mutex, RwLock};
use nacre_layout::{Layout, LayoutRequest, LayoutSpec, Pattern, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, SizeSource, Status, StatusResult};
use std::sync::Arc;
use stored::damaged;

/// See the [module documentation](self).
pub struct Layouts {
    leaves: Arc<Leaves>,
    /// Default layout of the root, as last read, if the root is on another MDT.
    root_default: RwLock<LayoutRequest>,
    /// Striping for files for which neither they nor their directories specify any; the configuration may
    /// change it at any time.
    default_layout: RwLock<LayoutSpec>,
    append_layout: Mutex<AppendLayout>,
}

impl Layouts {
    pub(crate) fn new(leaves: &Arc<Leaves>, config: &MdsConfig) -> Layouts {
        Layouts {
            leaves: leaves.clone(),
            root_default: RwLock::default(),
            default_layout: RwLock::new(config.default_layout.clone()),
            append_layout: Mutex::default(),
        }
    }

    /// Returns the layout of a regular file; `None` if none is stored, or a foreign one.
    pub(crate) fn layout_of(&self, record: &InodeRecord) -> StatusResult<Option<Layout>> {
        if !record.attr.is_regular() || record.body.is_empty() || user::is_foreign(&record.body) {
            return Ok(None);
        }
        if record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return match user::decode_layout(&record.body) {
                Ok(layout) => Ok(Some(layout)),
                Err(error) => Err(damaged(&record.attr.fid, &error)),
            };
        }
        Ok(Some(self.requested_layout(record)?))
    }

    /// Returns one past the last byte that a regular file can have.
    pub(crate) fn end_of_file(&self, record: &InodeRecord) -> StatusResult<u64> {
        self.layout_or_requested(record).map(|layout| layout.end())
    }

    /// Returns the layout of a regular file, or the one it will get.
    pub(crate) fn layout_or_requested(&self, record: &InodeRecord) -> StatusResult<Layout> {
        match self.layout_of(record)? {
            Some(layout) => Ok(layout),
            None => self.requested_layout(record),
        }
    }

    /// Returns the layout that a file without objects will get: its specification, completed by the root's
    /// and the file system's defaults.
    ///
    /// # Errors
    /// `EBADF` for a file with a foreign layout, which never gets objects.
    pub(crate) fn requested_layout(&self, record: &InodeRecord) -> StatusResult<Layout> {
        if user::is_foreign(&record.body) {
            return Err(Status::EBADF);
        }
        let own = stored_request(record)?;
        // A file without a specification of its own gets all of the root's default; otherwise the default
        // striping completes its specification.
        let mut layout = match own.is_empty() {
            true => without_first(self.root_request()?).to_layout(&self.default_layout()),
            false => own.to_layout(&self.default_striping()?),
        };
        self.leaves.data.limit(&mut layout);
        Ok(layout)
    }

    /// Places the data of a new file that is about to be written on this MDT, if its directory specifies
    /// that, so that the client needs no request before it writes. Without such a specification the first
    /// data decides ([`Layouts::is_undecided`]).
    pub(crate) fn place_data(&self, record: &mut InodeRecord) -> StatusResult<()> {
        if record.body.is_empty() {
            if self.begins_on_mdt()? {
                // Its first data may arrive with the close, which requests for its size may overtake.
                record.attr.size_source = SizeSource::Objects;
            }
            return Ok(());
        }
        let mut layout = self.requested_layout(record)?;
        layout.place_on_mdt(object_on_mdt(record));
        if layout.has_objects() {
            record.body = user::encode_layout(&record.attr.fid, &layout);
            record.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
            record.attr.size_source = SizeSource::Objects;
        }
        Ok(())
    }

    /// Returns true for a file without data and without a layout from its directory: if the file system's
    /// default begins on an MDT, the first data decides whether the file does ([`Layout::leave_out_head`]).
    pub(crate) fn is_undecided(&self, record: &InodeRecord) -> bool {
        record.attr.is_regular()
            && record.body.is_empty()
            && !record.attr.flags.contains(AttrFlags::HAS_OBJECTS)
    }

    /// Returns true if files without a specification begin on an MDT when their first data is small.
    pub(crate) fn begins_on_mdt(&self) -> StatusResult<bool> {
        Ok(self.root_request()?.specs().next().is_some_and(|first| first.pattern == Pattern::Mdt))
    }

    fn root_request(&self) -> StatusResult<LayoutRequest> {
        match self.leaves.index {
            0 => stored_request(&*self.leaves.records.inode(&Fid::ROOT)?),
            _ => Ok(self.root_default.read().clone()),
        }
    }

    /// Stores the defaults of the root, which is on another MDT, for the whole file system.
    pub(crate) fn note_root(&self, root: &InodeRecord) -> StatusResult<()> {
        let requested = stored_request(root)?;
        if *self.root_default.read() != requested {
            *self.root_default.write() = requested;
        }
        Ok(())
    }

    /// Returns the default striping of the root and the file system.
    pub(crate) fn default_striping(&self) -> StatusResult<LayoutSpec> {
        Ok(self.root_request()?.inherited().or(&self.default_layout()))
    }

    /// Returns true if a specification breaks no rule and names only OSTs that exist.
    pub(crate) fn can_be_met(&self, requested: &LayoutRequest) -> bool {
        // A pool that does not exist is no reason to refuse: it may have been removed since the user saved
        // this layout.
        let possible = |spec: &LayoutSpec| {
            spec.first_ost
                .iter()
                .chain(&spec.osts)
                .all(|index| self.leaves.osts.exists(*index, spec.real_pool()))
        };
        requested.check().is_ok() && requested.specs().all(possible)
    }

    /// Returns the layout for a file's specification, completed by its record, the root and the file system.
    pub(crate) fn completed(&self, record: &InodeRecord, requested: &LayoutRequest) -> StatusResult<Layout> {
        let own = match record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            true => LayoutRequest::default(),
            false => stored_request(record)?,
        };
        Ok(requested.to_layout(&own.inherited().or(&self.default_striping()?)))
    }

    /// Returns true if new inodes in a directory get a copy of its default. The root's is looked up on use,
    /// as it applies to the whole file system; only its first OST is restricted to files in the root itself.
    pub(crate) fn hands_down(&self, directory: &InodeRecord, kind: FileKind) -> StatusResult<bool> {
        if directory.body.is_empty() || directory.attr.fid != Fid::ROOT || user::is_foreign(&directory.body) {
            return Ok(!directory.body.is_empty());
        }
        Ok(kind == FileKind::Regular && !self.begins_on_mdt()?)
    }

    /// Sets the layout of a new file that is to be appended to, which has a default of its own.
    pub(crate) fn lay_out_for_appends(
        &self,
        directory: &InodeRecord,
        record: &mut InodeRecord,
    ) -> StatusResult<()> {
        if let Some(requested) = self.append_layout().requested(&stored_request(directory)?) {
            record.body = user::encode_request(&record.attr.fid, &requested);
            record.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        Ok(())
    }

    /// Returns the only object of a file, if it is on this MDT.
    fn only_object_here(&self, record: &InodeRecord) -> StatusResult<Option<Fid>> {
        if !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            return Ok(None);
        }
        Ok(self.layout_of(record)?.and_then(|layout| only_object(&layout)))
    }

    /// Returns the record with size, space and times of the file's data, if all of it is in an object here
    /// whose attributes are authoritative: no others are stored, and no client has the file open for writing,
    /// or its client died.
    pub(crate) fn settled(&self, record: &Arc<InodeRecord>) -> StatusResult<Arc<InodeRecord>> {
        let is_unsure = record.attr.size_source == SizeSource::Objects;
        if !is_unsure || self.leaves.opens.session(&record.attr.fid).is_some() {
            return Ok(record.clone());
        }
        if self.is_undecided(record) {
            let mut settled = InodeRecord::clone(record);
            settled.attr.size_source = SizeSource::Exact;
            return Ok(Arc::new(settled));
        }
        let Some(object) = self.only_object_here(record)? else { return Ok(record.clone()) };
        let data = self.leaves.data.store.attr(object).map_err(|error| self.leaves.data.failed(&error))?;
        let mut settled = InodeRecord::clone(record);
        let attr = &mut settled.attr;
        (attr.size, attr.blocks, attr.size_source) = (data.size, data.blocks, SizeSource::Exact);
        if let Some(mtime) = data.mtime {
            (attr.mtime, attr.ctime) = (attr.mtime.max(mtime), attr.ctime.max(mtime));
        }
        Ok(Arc::new(settled))
    }

    /// Returns the attributes for clients.
    pub(crate) fn told(&self, record: &Arc<InodeRecord>) -> StatusResult<Attr> {
        match record.attr.size_source {
            SizeSource::Exact => Ok(record.shown()),
            SizeSource::Objects => self.settled(record).map(|record| record.shown()),
        }
    }

    /// Returns true if the MDT determines the attributes of a file's data without a client.
    pub(crate) fn is_settled_by_itself(&self, record: &InodeRecord) -> StatusResult<bool> {
        Ok(self.is_undecided(record) || self.only_object_here(record)?.is_some())
    }

    /// Returns the layout of files created for appends.
    pub fn append_layout(&self) -> AppendLayout {
        *self.append_layout.lock()
    }

    /// Changes the layout of files created for appends.
    pub fn change_append_layout(&self, change: impl FnOnce(&mut AppendLayout)) {
        change(&mut self.append_layout.lock());
    }

    /// Sets the striping of files whose directories specify none.
    pub fn set_default_layout(&self, spec: LayoutSpec) {
        *self.default_layout.write() = spec;
    }

    /// Returns the striping of files whose directories specify none.
    pub(crate) fn default_layout(&self) -> LayoutSpec {
        self.default_layout.read().clone()
    }
}

/// Gives the file of `record` a layout whose only object is on this MDT and was created with its first data.
pub(crate) fn place(record: &mut InodeRecord, layout: &mut Layout) {
    layout.generation = layout.generation.wrapping_add(1);
    record.body = user::encode_layout(&record.attr.fid, layout);
    record.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
    record.attr.size_source = SizeSource::Objects;
}

/// Returns the FID of the object that a file gets on this MDT. Earlier objects of the file may belong to
/// other files ([`super::relayout`]).
pub(crate) fn object_on_mdt(record: &InodeRecord) -> Fid {
    Fid { ver: record.data_generation, ..record.attr.fid }
}

/// Removes the first OST, which applies to the file created with the specification and is not inherited.
fn without_first(requested: LayoutRequest) -> LayoutRequest {
    match requested {
        LayoutRequest::Plain(spec) => LayoutRequest::Plain(LayoutSpec { first_ost: None, ..spec }),
        composite => composite,
    }
}

/// Returns the object on an MDT of a layout that has no other object.
pub(crate) fn only_object(layout: &Layout) -> Option<Fid> {
    layout.object_on_mdt().filter(|_| layout.objects().count() == 1).map(|object| object.object)
}
