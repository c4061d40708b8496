//! Changes of layouts, and requests of clients for layouts with objects before they write.

mod edit;
mod objects;
mod swap;

pub(crate) use swap::Swap;

use crate::core::Core;
use crate::layouts::stored_request;
use crate::leaves::Leaves;
use crate::locks::{Locked, Want};
use crate::plan::{self, Amendment, Laid};
use crate::suspend::Caller;
use crate::tx::now;
use nacre_layout::user::Foreign;
use nacre_layout::{Layout, LayoutRequest, PoolName, user};
use nacre_lock::LockHandle;
use nacre_ondisk::InodeRecord;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::{AttrFlags, Fid, Nid, Owners, SizeSource, Status, StatusResult};
use nacre_wire::mds::{HEAD_DATA_MAX, MdsAnswer, MdsReply, MdsRequest};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// See the [module documentation](self).
pub(crate) struct LayoutChanges {
    leaves: Arc<Leaves>,
    core: Arc<Core>,
    /// How long a first write waits for object ids when no OST has any available.
    wait: Duration,
}

impl LayoutChanges {
    pub fn new(leaves: &Arc<Leaves>, core: &Arc<Core>, wait: Duration) -> LayoutChanges {
        LayoutChanges { leaves: leaves.clone(), core: core.clone(), wait }
    }

    /// Returns the pool that the parent directory sets for new files. Called without locks, since the MDT of
    /// that directory may wait for one of them.
    fn pool_of_parent(&self, record: &InodeRecord) -> StatusResult<Option<PoolName>> {
        if record.attr.fid == Fid::ROOT {
            return Ok(None);
        }
        match self.core.coordinator.record_anywhere(&record.parent)? {
            Some(parent) if parent.attr.is_dir() => Ok(stored_request(&parent)?.inherited().pool),
            _ => Ok(None),
        }
    }

    pub fn layout_intent(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        range: Range<u64>,
    ) -> StatusResult<MdsAnswer> {
        let locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        // A client that is alone knows the owners.
        self.layout_intent_locked(caller, fid, range, locked, &|_| true, &|layout| MdsReply::Layout(layout))
    }

    /// Returns the layout (with a range: a layout that has objects there), and a lock on it if one was
    /// requested: [`MdsRequest::LayoutAccess`].
    pub fn layout_access(&self, caller: &Caller<'_>, request: &MdsRequest<'_>) -> StatusResult<MdsAnswer> {
        let &MdsRequest::LayoutAccess { ref fid, range, lock, owners } = request else {
            return Err(Status::EPROTO);
        };
        let locked = self.leaves.locks.lock(&[Want::Whole(*fid)])?;
        // While the file is frozen, a request gets no lock, and the client sends it again.
        let is_frozen = self.leaves.opens.frozen_by(fid).is_some();
        let (range, lock) = if is_frozen { (None, LockHandle(0)) } else { (range, lock) };
        let Some((start, end)) = range else {
            let layout = self.core.layouts.layout_of(&*self.leaves.records.inode(fid)?)?.map(Arc::new);
            let lock = self.core.client_locks.grant_layout(caller, lock, fid)?;
            return Ok(self.core.commits.answer(MdsReply::LockedLayout { layout, lock }));
        };
        self.leaves.records.inode(fid)?;
        // Before the change: the answer is stored with the change, and the client's own locks stay.
        let lock = self.core.client_locks.grant_layout(caller, lock, fid)?;
        let reply = |layout| MdsReply::LockedLayout { layout, lock };
        let is_known = |stored: &Owners| *stored == owners;
        self.layout_intent_locked(caller, fid, start..end, locked, &is_known, &reply)
    }

    fn layout_intent_locked(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        Range { start, end }: Range<u64>,
        _locked: Locked<'_>,
        knows: &dyn Fn(&Owners) -> bool,
        reply: &dyn Fn(Option<Arc<Layout>>) -> MdsReply,
    ) -> StatusResult<MdsAnswer> {
        if start > end {
            return Err(Status::EINVAL);
        }
        if start >= FILE_SIZE_MAX || (end > FILE_SIZE_MAX && end != u64::MAX) {
            return Err(Status::EFBIG);
        }
        let record = self.leaves.records.inode(fid)?;
        if !record.attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let mut layout = self.core.layouts.layout_or_requested(&record)?;
        if end > HEAD_DATA_MAX && self.core.layouts.is_undecided(&record) {
            layout.leave_out_head();
        }
        if start >= layout.end() {
            return Err(Status::ENODATA);
        }
        if !layout.is_to_change(end) {
            let known = layout.has_objects().then(|| Arc::new(layout));
            return Ok(self.core.commits.answer(reply(known)));
        }
        self.instantiate(&record, layout, end, Some(caller.export), |mut changed, layout, mut tx| {
            changed.attr.size_source = SizeSource::Objects;
            let owners = Owners::from(&changed.attr);
            let maps_ids = caller.standing.is_some_and(|standing| standing.maps_ids());
            if maps_ids || !knows(&owners) {
                // Another client has changed them, or the client has other ids: the OST gets the right ones.
                tx.log_owners(changed.attr.fid, &layout, owners);
            }
            tx.put_inode(changed);
            self.core.commits.finish(caller, tx, reply(Some(Arc::new(layout))))
        })
    }

    /// Returns true if a file's only object is on this MDT and was never written, and no other client has the
    /// file open: then another layout loses nothing.
    fn is_unused(&self, caller: &Caller<'_>, record: &InodeRecord) -> StatusResult<bool> {
        let Some(layout) = self.core.layouts.layout_of(record)? else { return Ok(true) };
        for object in layout.objects() {
            let data = match object.is_on_mdt() {
                true => self
                    .leaves
                    .data
                    .store
                    .attr(object.object)
                    .map_err(|error| self.leaves.data.failed(&error))?,
                false => return Ok(false),
            };
            if data.mtime.is_some() {
                return Ok(false);
            }
        }
        Ok(!self.leaves.opens.is_open_elsewhere(&record.attr.fid, &caller.client))
    }

    /// Sets the default of a directory, or gives objects to a file that has none, as Lustre does when a file
    /// is striped explicitly.
    pub fn set_layout(
        &self,
        caller: &Caller<'_>,
        fid: &Fid,
        requested: &LayoutRequest,
    ) -> StatusResult<MdsAnswer> {
        if !self.core.layouts.can_be_met(requested) {
            return Err(Status::EINVAL);
        }
        let seen = self.leaves.records.inode(fid)?;
        let pool = match seen.attr.is_dir() && !requested.is_empty() {
            true => self.pool_of_parent(&seen)?,
            false => None,
        };
        let held = self.core.performer.lock_alike(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let laid = Laid {
            record: &record,
            shards: &held.shards_of(&record)?,
            has_it_for_good: self.has_layout_for_good(caller, &record)?,
        };
        let amendment = plan::set_layout(caller.cred(), &laid, requested, pool, now())?;
        if record.attr.is_regular() {
            // Clients may have cached the layout that followed from the old specification.
            self.core.client_locks.call_back_layout(fid, false, None)?;
        }
        let performer = &self.core.performer;
        if record.attr.is_regular() && !requested.is_empty() {
            let changed = &amendment.record;
            let layout = self.core.layouts.requested_layout(changed)?;
            let answer = self.instantiate(changed, layout, 1, None, |changed, _, tx| {
                performer.amend(caller, held, tx, Amendment::of(changed))
            })?;
            // A replay would give it other objects.
            if caller.export.nid != Nid::Lo {
                self.leaves.records.sync(answer.transno)?;
            }
            return Ok(answer);
        }
        performer.amend(caller, held, self.leaves.records.begin(), amendment)
    }

    /// Returns true if the layout of a file is final.
    fn has_layout_for_good(&self, caller: &Caller<'_>, record: &InodeRecord) -> StatusResult<bool> {
        if record.attr.is_regular() && user::is_foreign(&record.body) {
            return Ok(true);
        }
        Ok(record.attr.flags.contains(AttrFlags::HAS_OBJECTS) && !self.is_unused(caller, record)?)
    }

    /// Gives a file without objects a foreign layout.
    ///
    /// # Errors
    /// As [`plan::set_foreign`].
    pub fn set_foreign(&self, caller: &Caller<'_>, fid: &Fid, foreign: &Foreign) -> StatusResult<MdsAnswer> {
        let held = self.core.performer.lock_alone(caller, fid)?;
        let record = self.leaves.records.inode(fid)?;
        let has_it_for_good = self.has_layout_for_good(caller, &record)?;
        let laid = Laid { record: &record, shards: &[], has_it_for_good };
        let amendment = plan::set_foreign(caller.cred(), &laid, foreign, now())?;
        self.core.performer.amend(caller, held, self.leaves.records.begin(), amendment)
    }
}
