//! What the records say of a file's data: where it goes, how large it is, and the defaults that directories, the root and the file system
//! help out with.

pub(crate) mod stored;
pub(crate) mod system;

pub(crate) use stored::{is_foreign_directory, stored_wish};

use crate::config::{AppendLayout, MdsConfig};
use crate::leaves::Leaves;
use nacre_env::sync::{Mutex, RwLock};
use nacre_layout::{Layout, LayoutSpec, Pattern, Wish, user};
use nacre_ondisk::InodeRecord;
use nacre_types::{Attr, AttrFlags, Fid, FileKind, SizeSource, Status, StatusResult};
use std::sync::Arc;
use stored::damaged;

/// See the [module documentation](self).
pub struct Layouts {
    leaves: Arc<Leaves>,
    /// The default layout of the root, if that is not on this MDT, as it was lately.
    root_default: RwLock<Wish>,
    /// Striping where neither a file nor its directories say anything; the configuration may change it at any time.
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

    /// The layout of a regular file; `None` if none is stored, or a foreign one.
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
        Ok(Some(self.wished_layout(record)?))
    }

    /// One past the last byte that a regular file can have.
    pub(crate) fn end_of_file(&self, record: &InodeRecord) -> StatusResult<u64> {
        self.layout_or_wished(record).map(|layout| layout.end())
    }

    /// The layout of a regular file, or what it will be.
    pub(crate) fn layout_or_wished(&self, record: &InodeRecord) -> StatusResult<Layout> {
        match self.layout_of(record)? {
            Some(layout) => Ok(layout),
            None => self.wished_layout(record),
        }
    }

    /// The layout that a file without objects is to get: its wishes, completed by the root's and the file system's defaults.
    ///
    /// # Errors
    /// `EBADF` for one with a foreign layout, which never gets any.
    pub(crate) fn wished_layout(&self, record: &InodeRecord) -> StatusResult<Layout> {
        if user::is_foreign(&record.body) {
            return Err(Status::EBADF);
        }
        let own = stored_wish(record)?;
        // Without wishes of its own a file gets all of the root's default; otherwise the default striping completes its wishes.
        let mut layout = match own.is_empty() {
            true => without_first(self.root_wish()?).to_layout(&self.default_layout()),
            false => own.to_layout(&self.default_striping()?),
        };
        self.leaves.data.limit(&mut layout);
        Ok(layout)
    }

    /// Gives a new file that is about to be written its place on this MDT, if its directory asks for that: then nothing has to be
    /// asked for before data is written. Where nobody has asked the first data decides ([`Layouts::is_undecided`]).
    pub(crate) fn place_data(&self, record: &mut InodeRecord) -> StatusResult<()> {
        if record.body.is_empty() {
            if self.begins_on_mdt()? {
                // Its first data may come with the close, which may be overtaken by questions.
                record.attr.size_source = SizeSource::Objects;
            }
            return Ok(());
        }
        let mut layout = self.wished_layout(record)?;
        layout.place_on_mdt(object_on_mdt(record));
        if layout.has_objects() {
            record.body = user::encode_layout(&record.attr.fid, &layout);
            record.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
            record.attr.size_source = SizeSource::Objects;
        }
        Ok(())
    }

    /// True for a file without data for whose layout nobody has asked but for the whole file system: if that begins on an MDT,
    /// the first data decides whether the file does ([`Layout::leave_out_head`]).
    pub(crate) fn is_undecided(&self, record: &InodeRecord) -> bool {
        record.attr.is_regular()
            && record.body.is_empty()
            && !record.attr.flags.contains(AttrFlags::HAS_OBJECTS)
    }

    /// True if files of which nobody says anything begin on an MDT when their first data is small.
    pub(crate) fn begins_on_mdt(&self) -> StatusResult<bool> {
        Ok(self.root_wish()?.specs().next().is_some_and(|first| first.pattern == Pattern::Mdt))
    }

    fn root_wish(&self) -> StatusResult<Wish> {
        match self.leaves.index {
            0 => stored_wish(&*self.leaves.records.inode(&Fid::ROOT)?),
            _ => Ok(self.root_default.read().clone()),
        }
    }

    /// Takes over what the root, which lies on another MDT, has for the whole file system.
    pub(crate) fn note_root(&self, root: &InodeRecord) -> StatusResult<()> {
        let wish = stored_wish(root)?;
        if *self.root_default.read() != wish {
            *self.root_default.write() = wish;
        }
        Ok(())
    }

    /// The striping that the root and the file system help out with.
    pub(crate) fn default_striping(&self) -> StatusResult<LayoutSpec> {
        Ok(self.root_wish()?.inherited().or(&self.default_layout()))
    }

    /// True if a wish breaks no rule and names nothing that does not exist.
    pub(crate) fn can_be_met(&self, wish: &Wish) -> bool {
        // A pool that does not exist is no reason to refuse: it may be gone since somebody took this layout down.
        let possible = |spec: &LayoutSpec| {
            spec.first_ost
                .iter()
                .chain(&spec.osts)
                .all(|index| self.leaves.osts.exists(*index, spec.real_pool()))
        };
        wish.check().is_ok() && wish.specs().all(possible)
    }

    /// What the wish of a file comes to, with what its record, the root and the file system say where it is silent.
    pub(crate) fn completed(&self, record: &InodeRecord, wish: &Wish) -> StatusResult<Layout> {
        let own = match record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
            true => Wish::default(),
            false => stored_wish(record)?,
        };
        Ok(wish.to_layout(&own.inherited().or(&self.default_striping()?)))
    }

    /// True if what is made in a directory gets a copy of its default. The root's is looked up when it is needed, as it stands for
    /// the whole file system; only a file's first OST is a matter of the directory itself. Source: reference 1.1, sanity 65n.
    pub(crate) fn hands_down(&self, directory: &InodeRecord, kind: FileKind) -> StatusResult<bool> {
        if directory.body.is_empty() || directory.attr.fid != Fid::ROOT || user::is_foreign(&directory.body) {
            return Ok(!directory.body.is_empty());
        }
        Ok(kind == FileKind::Regular && !self.begins_on_mdt()?)
    }

    /// A new file that is to be appended to has its own default.
    pub(crate) fn lay_out_for_appends(
        &self,
        directory: &InodeRecord,
        record: &mut InodeRecord,
    ) -> StatusResult<()> {
        if let Some(wish) = self.append_layout().wish(&stored_wish(directory)?) {
            record.body = user::encode_wish(&record.attr.fid, &wish);
            record.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        Ok(())
    }

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

    /// Attributes as clients are told them.
    pub(crate) fn told(&self, record: &Arc<InodeRecord>) -> StatusResult<Attr> {
        match record.attr.size_source {
            SizeSource::Exact => Ok(record.shown()),
            SizeSource::Objects => self.settled(record).map(|record| record.shown()),
        }
    }

    /// True if the MDT finds out by itself what the data of a file is.
    pub(crate) fn is_settled_by_itself(&self, record: &InodeRecord) -> StatusResult<bool> {
        Ok(self.is_undecided(record) || self.only_object_here(record)?.is_some())
    }

    /// What files that are made to be appended to get.
    pub fn append_layout(&self) -> AppendLayout {
        *self.append_layout.lock()
    }

    /// Changes that.
    pub fn change_append_layout(&self, change: impl FnOnce(&mut AppendLayout)) {
        change(&mut self.append_layout.lock());
    }

    /// Uses another striping from now on for files whose directories say nothing.
    pub fn set_default_layout(&self, spec: LayoutSpec) {
        *self.default_layout.write() = spec;
    }

    /// Striping where neither a file nor its directories say anything.
    pub(crate) fn default_layout(&self) -> LayoutSpec {
        self.default_layout.read().clone()
    }
}

/// Gives the file of `record` a layout whose only object, on this MDT, it has got with its first data.
pub(crate) fn place(record: &mut InodeRecord, layout: &mut Layout) {
    layout.generation = layout.generation.wrapping_add(1);
    record.body = user::encode_layout(&record.attr.fid, layout);
    record.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
    record.attr.size_source = SizeSource::Objects;
}

/// The object that a file gets on this MDT. Those that were made for it before may be other files' ([`super::relayout`]).
pub(crate) fn object_on_mdt(record: &InodeRecord) -> Fid {
    Fid { ver: record.data_generation, ..record.attr.fid }
}

/// A wish for a first OST holds for the file that was made with it, not for what inherits.
fn without_first(wish: Wish) -> Wish {
    match wish {
        Wish::Plain(spec) => Wish::Plain(LayoutSpec { first_ost: None, ..spec }),
        composite => composite,
    }
}

/// The object on an MDT of a layout that has no other.
pub(crate) fn only_object(layout: &Layout) -> Option<Fid> {
    layout.object_on_mdt().filter(|_| layout.objects().count() == 1).map(|object| object.object)
}
