//! Layouts: where a file's data goes, and the defaults of directories.

use super::xattr_system::is_foreign_directory;
use crate::locks::{Locked, Want};
use crate::mds::Mds;
use crate::osts::Marks;
use crate::osts::Need;
use crate::plan::check_access;
use crate::service::Caller;
use crate::tx::Tx;
use nacre_layout::user::Foreign;
use nacre_layout::{Layout, LayoutForm, LayoutSpec, Pattern, PoolName, StripeObject, Wish, user};
use nacre_lock::LockHandle;
use nacre_ondisk::InodeRecord;
use nacre_rpc::Export;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::{self, Verdict};
use nacre_types::{AttrFlags, Fid, SizeSource, Status, StatusResult};
use nacre_wire::mds::{HEAD_DATA_MAX, MdsAnswer, MdsReply};
use std::sync::Arc;

impl Mds {
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
    pub(super) fn end_of_file(&self, record: &InodeRecord) -> StatusResult<u64> {
        self.layout_or_wished(record).map(|layout| layout.end())
    }

    /// The layout of a regular file, or what it will be.
    pub(super) fn layout_or_wished(&self, record: &InodeRecord) -> StatusResult<Layout> {
        match self.layout_of(record)? {
            Some(layout) => Ok(layout),
            None => self.wished_layout(record),
        }
    }

    /// The layout that a file without objects is to get: its wishes, completed by the root's and the file system's defaults.
    ///
    /// # Errors
    /// `EBADF` for one with a foreign layout, which never gets any.
    fn wished_layout(&self, record: &InodeRecord) -> StatusResult<Layout> {
        if user::is_foreign(&record.body) {
            return Err(Status::EBADF);
        }
        let own = stored_wish(record)?;
        // Who asks for nothing gets all that the root asks for; who asks for something is helped out with the rest.
        let mut layout = match own.is_empty() {
            true => without_first(self.root_wish()?).to_layout(&self.default_layout()),
            false => own.to_layout(&self.default_striping()?),
        };
        self.data.limit(&mut layout);
        Ok(layout)
    }

    /// Gives a new file that is about to be written its place on this MDT, if its directory asks for that: then nothing has to be
    /// asked for before data is written. Where nobody has asked the first data decides ([`Mds::is_undecided`]).
    pub(super) fn place_data(&self, record: &mut InodeRecord) -> StatusResult<()> {
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
    pub(super) fn is_undecided(&self, record: &InodeRecord) -> bool {
        record.attr.is_regular()
            && record.body.is_empty()
            && !record.attr.flags.contains(AttrFlags::HAS_OBJECTS)
    }

    /// True if files of which nobody says anything begin on an MDT when their first data is small.
    pub(super) fn begins_on_mdt(&self) -> StatusResult<bool> {
        Ok(self.root_wish()?.specs().next().is_some_and(|first| first.pattern == Pattern::Mdt))
    }

    fn root_wish(&self) -> StatusResult<Wish> {
        match self.index {
            0 => stored_wish(&*self.inode(&Fid::ROOT)?),
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
    pub(super) fn default_striping(&self) -> StatusResult<LayoutSpec> {
        Ok(self.root_wish()?.inherited().or(&self.default_layout()))
    }

    /// True if a wish breaks no rule and names nothing that does not exist.
    pub(super) fn can_be_met(&self, wish: &Wish) -> bool {
        // A pool that does not exist is no reason to refuse: it may be gone since somebody took this layout down.
        let possible = |spec: &LayoutSpec| {
            spec.first_ost.iter().chain(&spec.osts).all(|index| self.osts.exists(*index, spec.real_pool()))
        };
        wish.check().is_ok() && wish.specs().all(possible)
    }

    /// The pool that the directory above has for what is made in it. To be called without locks: the MDT of that directory may wait
    /// for one of them.
    fn pool_of_parent(&self, record: &InodeRecord) -> StatusResult<Option<PoolName>> {
        if record.attr.fid == Fid::ROOT {
            return Ok(None);
        }
        let parent = match record.parent.mdt_index() == self.index {
            true => self.find_inode(&record.parent)?,
            false => self.inode_elsewhere(&record.parent)?.map(Arc::new),
        };
        match parent {
            Some(parent) if parent.attr.is_dir() => Ok(stored_wish(&parent)?.inherited().pool),
            _ => Ok(None),
        }
    }

    /// Whether the caller may change the layout of an inode.
    pub(super) fn may_set_layout(&self, caller: &Caller<'_>, record: &InodeRecord) -> StatusResult<()> {
        match perm::owner_or_capable(&record.attr, caller.cred()) {
            Verdict::Granted => Ok(()),
            _ => check_access(record, caller.cred(), perm::WRITE),
        }
    }

    pub(crate) fn get_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.inode(fid)?;
        Ok(self.answer(MdsReply::Layout(self.layout_of(&record)?.map(Arc::new))))
    }

    pub(crate) fn get_default_layout(&self, fid: &Fid) -> StatusResult<MdsAnswer> {
        let record = self.directory(fid)?;
        let wish = if record.body.is_empty() { None } else { Some(stored_wish(&record)?) };
        Ok(self.answer(MdsReply::DefaultLayout(wish)))
    }

    pub(crate) fn layout_intent(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        (start, end): (u64, u64),
    ) -> StatusResult<MdsAnswer> {
        let locked = self.locks.lock(&[Want::Whole(*fid)])?;
        self.layout_intent_locked(caller, fid, (start, end), locked, &|layout| MdsReply::Layout(layout))
    }

    /// The layout, or with a range the layout that has objects there, and a lock on it if one was asked for.
    pub(crate) fn layout_access(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        range: Option<(u64, u64)>,
        lock: LockHandle,
    ) -> StatusResult<MdsAnswer> {
        let locked = self.locks.lock(&[Want::Whole(*fid)])?;
        // Who asks while the file is frozen gets no lock, and asks again.
        let is_frozen = self.opens.frozen_by(fid).is_some();
        let (range, lock) = if is_frozen { (None, LockHandle(0)) } else { (range, lock) };
        let Some(range) = range else {
            let layout = self.layout_of(&*self.inode(fid)?)?.map(Arc::new);
            let lock = self.grant_layout(caller, lock, fid)?;
            return Ok(self.answer(MdsReply::LockedLayout { layout, lock }));
        };
        self.inode(fid)?;
        // Before the change: the answer is stored with it, and the client's own locks stay.
        let lock = self.grant_layout(caller, lock, fid)?;
        let reply = |layout| MdsReply::LockedLayout { layout, lock };
        self.layout_intent_locked(caller, fid, range, locked, &reply)
    }

    fn layout_intent_locked(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        (start, end): (u64, u64),
        _locked: Locked<'_>,
        reply: &dyn Fn(Option<Arc<Layout>>) -> MdsReply,
    ) -> StatusResult<MdsAnswer> {
        if start > end {
            return Err(Status::EINVAL);
        }
        if start >= FILE_SIZE_MAX || (end > FILE_SIZE_MAX && end != u64::MAX) {
            return Err(Status::EFBIG);
        }
        let record = self.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let mut layout = self.layout_or_wished(&record)?;
        if end > HEAD_DATA_MAX && self.is_undecided(&record) {
            layout.leave_out_head();
        }
        if start >= layout.end() {
            return Err(Status::ENODATA);
        }
        if !layout.is_to_change(end) {
            let known = layout.has_objects().then(|| Arc::new(layout));
            return Ok(self.answer(reply(known)));
        }
        self.instantiate(&record, layout, (end, Some(caller.export)), |mut changed, layout, mut tx| {
            changed.attr.size_source = SizeSource::Objects;
            tx.put_inode(changed);
            self.finish(caller, tx, reply(Some(Arc::new(layout))))
        })
    }

    /// Has components grow that a write which ends at `end` goes behind, and gives objects to those before `end` that have none, of
    /// the file `record` with this layout: `commit` gets
    /// the changed record, the layout, and a transaction in which the objects are marked as given out. `informed` learns of the
    /// layout from the answer.
    pub(super) fn instantiate(
        &self,
        record: &InodeRecord,
        mut layout: Layout,
        (end, informed): (u64, Option<&Export>),
        commit: impl FnOnce(InodeRecord, Layout, Tx) -> StatusResult<MdsAnswer>,
    ) -> StatusResult<MdsAnswer> {
        // Before objects are set aside for it: others wait for those.
        self.call_back_layout(&record.attr.fid, false, informed)?;
        self.call_back_for_objects(record)?;
        layout.place_on_mdt(object_on_mdt(record));
        let grown = layout.grow(end, &mut &self.osts);
        let places: Vec<usize> = layout.to_instantiate(end).collect();
        for &place in &places {
            let component = &mut layout.components[place];
            component.pool = self.osts.spilled(component.pool);
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
            let mut tx = self.begin();
            if let Some(marks) = marks {
                marks.put(tx.batch());
            }
            commit(changed, layout, tx)
        };
        // What is on this MDT needs no OST.
        if wanted.is_empty() {
            return store(Vec::new(), None);
        }
        let wait = self.config.object_wait;
        self.osts.with_objects(&wanted, &used, wait, |objects, marks| store(objects, Some(marks)))
    }

    /// True if a file's only object is on this MDT and was never written, and nobody else has the file open: then another layout
    /// loses nothing.
    fn is_unused(&self, caller: &Caller<'_>, record: &InodeRecord) -> StatusResult<bool> {
        let Some(layout) = self.layout_of(record)? else { return Ok(true) };
        for object in layout.objects() {
            let data = match object.is_on_mdt() {
                true => self.data.store.attr(object.object).map_err(|error| self.data_failed(&error))?,
                false => return Ok(false),
            };
            if data.mtime.is_some() {
                return Ok(false);
            }
        }
        Ok(!self.opens.is_open_elsewhere(&record.attr.fid, &caller.client))
    }

    /// Sets the default of a directory, or gives objects to a file that has none, as Lustre does when a file is striped
    /// by name.
    pub(crate) fn set_layout(&self, caller: &Caller<'_>, fid: &Fid, wish: &Wish) -> StatusResult<MdsAnswer> {
        if !self.can_be_met(wish) {
            return Err(Status::EINVAL);
        }
        let seen = self.inode(fid)?;
        let pool = match seen.attr.is_dir() && !wish.is_empty() {
            true => self.pool_of_parent(&seen)?,
            false => None,
        };
        let held = self.lock_alike(caller, fid)?;
        let record = self.inode(fid)?;
        if !record.attr.is_regular() && !record.attr.is_dir() {
            return Err(Status::EINVAL);
        }
        self.may_set_layout(caller, &record)?;
        // Nothing can be made in it that would get the default.
        if is_foreign_directory(&record) {
            return Err(Status::EINVAL);
        }
        if self.has_layout_for_good(caller, &record)? {
            return Err(Status::EALREADY);
        }
        let mut changed = InodeRecord::clone(&record);
        held.take_latest_times(&mut changed)?;
        changed.attr.ctime = self.now();
        changed.attr.flags -= AttrFlags::HAS_OBJECTS;
        if wish.is_empty() {
            changed.attr.size_source = SizeSource::Exact;
            changed.body.clear();
            changed.attr.flags -= AttrFlags::HAS_LAYOUT;
        } else {
            let wish = match record.attr.is_regular() {
                // What a file was made with came from its directory, which helps out where the wish is silent.
                true => wish.clone().or(&stored_wish(&record)?.inherited()),
                false => wish.clone().with_pool(pool),
            };
            changed.body = user::encode_wish(fid, &wish);
            changed.attr.flags |= AttrFlags::HAS_LAYOUT;
        }
        if record.attr.is_regular() {
            // What they wish for instead, or no more.
            self.call_back_layout(fid, false, None)?;
        }
        let store = |changed: InodeRecord, mut tx: Tx| {
            let record = tx.put_inode(changed);
            self.finish_held(caller, held, tx, MdsReply::Attr(record.shown()))
        };
        if changed.attr.is_regular() && !wish.is_empty() {
            let layout = self.wished_layout(&changed)?;
            return self.instantiate(&changed, layout, (1, None), |changed, _, tx| store(changed, tx));
        }
        store(changed, self.begin())
    }
}

impl Mds {
    /// True if the layout of a file cannot be set any more.
    fn has_layout_for_good(&self, caller: &Caller<'_>, record: &InodeRecord) -> StatusResult<bool> {
        if record.attr.is_regular() && user::is_foreign(&record.body) {
            return Ok(true);
        }
        Ok(record.attr.flags.contains(AttrFlags::HAS_OBJECTS) && !self.is_unused(caller, record)?)
    }

    /// Gives a file without objects a foreign layout. It never gets any then: reading finds nothing, writing is refused.
    ///
    /// # Errors
    /// `EINVAL` for directories, `EALREADY` if the file has a layout for good, `EFBIG` if it has a size.
    pub(super) fn set_foreign(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        foreign: &Foreign,
    ) -> StatusResult<MdsAnswer> {
        let _locked = self.locks.lock(&[Want::Whole(*fid)])?;
        let record = self.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        self.may_set_layout(caller, &record)?;
        if self.has_layout_for_good(caller, &record)? {
            return Err(Status::EALREADY);
        }
        if record.attr.size != 0 {
            return Err(Status::EFBIG);
        }
        let mut changed = InodeRecord::clone(&record);
        changed.attr.ctime = self.now();
        changed.body = user::encode_foreign(foreign);
        changed.attr.flags -= AttrFlags::HAS_OBJECTS;
        changed.attr.flags |= AttrFlags::HAS_LAYOUT;
        changed.attr.size_source = SizeSource::Exact;
        let mut tx = self.begin();
        let record = tx.put_inode(changed);
        self.finish(caller, tx, MdsReply::Attr(record.shown()))
    }
}

/// The wish stored in a directory, or in a file without objects.
pub(super) fn stored_wish(record: &InodeRecord) -> StatusResult<Wish> {
    if record.body.is_empty() || user::is_foreign(&record.body) {
        return Ok(Wish::default());
    }
    user::decode_wish(&record.body).map_err(|error| damaged(&record.attr.fid, &error))
}

/// Gives the file of `record` a layout whose only object, on this MDT, it has got with its first data.
pub(super) fn place(record: &mut InodeRecord, layout: &mut Layout) {
    layout.generation = layout.generation.wrapping_add(1);
    record.body = user::encode_layout(&record.attr.fid, layout);
    record.attr.flags |= AttrFlags::HAS_LAYOUT | AttrFlags::HAS_OBJECTS;
    record.attr.size_source = SizeSource::Objects;
}

/// Records which objects of a file have been written to.
pub(super) fn mark_written(record: &mut InodeRecord, objects: &[Fid]) -> StatusResult<()> {
    edit_objects(record, !objects.is_empty(), |layout| layout.mark_written(objects))
}

/// Records that nothing is in the objects of a file: one that is not there is not missed.
pub(super) fn forget_written(record: &mut InodeRecord) -> StatusResult<()> {
    edit_objects(record, true, Layout::forget_written)
}

/// Changes the stored layout of a file, if it is wanted, the file has objects, and `edit` says that it has changed something.
fn edit_objects(
    record: &mut InodeRecord,
    is_wanted: bool,
    edit: impl FnOnce(&mut Layout) -> bool,
) -> StatusResult<()> {
    if !is_wanted || !record.attr.flags.contains(AttrFlags::HAS_OBJECTS) {
        return Ok(());
    }
    let fid = record.attr.fid;
    let mut layout = user::decode_layout(&record.body).map_err(|error| damaged(&fid, &error))?;
    if edit(&mut layout) {
        record.body = user::encode_layout(&fid, &layout);
    }
    Ok(())
}

/// The object that a file gets on this MDT. Those that were made for it before may be other files' ([`super::relayout`]).
pub(super) fn object_on_mdt(record: &InodeRecord) -> Fid {
    Fid { ver: record.data_generation, ..record.attr.fid }
}

/// A wish for a first OST holds for the file that was made with it, not for what inherits.
fn without_first(wish: Wish) -> Wish {
    match wish {
        Wish::Plain(spec) => Wish::Plain(LayoutSpec { first_ost: None, ..spec }),
        composite => composite,
    }
}

fn damaged(fid: &Fid, error: &user::UserMdError) -> Status {
    log::error!("layout of {fid}: {error}");
    Status::EUCLEAN
}
