//! Sizes and byte ranges of open files: what is known, who knows better, and telling the MDT.

use crate::client::Client;
use crate::file::{FileInner, FileState, KnownSize};
use crate::io::objects::Glimpse;
use crate::io::ranges::Use;
use crate::locks::cover::Cover;
use crate::locks::groups::{Admission, Who};
use nacre_layout::{Layout, StripeObject};
use nacre_types::{Attr, SizeSource, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::{DataUpdate, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often a wait asks whether it was interrupted.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);

/// Something of a file is on its way to the MDT, as long as this exists: one thing after the other.
pub(crate) struct Telling<'a>(&'a FileState);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.telling = false;
        if inner.ranges.waiters > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// A byte range of a file in use; given back when dropped.
pub(crate) struct RangeGuard<'a> {
    file: &'a FileState,
    ticket: u64,
}

impl RangeGuard<'_> {
    /// Gives the range back and changes the state in one step, so that nobody sees one without the other.
    pub fn finish<R>(self, change: impl FnOnce(&mut FileInner) -> R) -> R {
        let mut inner = self.file.lock();
        let result = change(&mut inner);
        self.give_back(&mut inner);
        std::mem::forget(self);
        result
    }

    fn give_back(&self, inner: &mut FileInner) {
        inner.ranges.release(self.ticket);
        if inner.ranges.waiters > 0 {
            self.file.changed.notify_all();
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        self.give_back(&mut inner);
    }
}

impl FileState {
    /// Waits until `ready` gives something, which is tried again after every change of the state.
    ///
    /// # Errors
    /// `EINTR` if the program was interrupted meanwhile.
    pub fn wait_for<R>(&self, mut ready: impl FnMut(&mut FileInner) -> Option<R>) -> StatusResult<R> {
        let mut inner = self.lock();
        if let Some(result) = ready(&mut inner) {
            return Ok(result);
        }
        nacre_env::blocking(|| {
            inner.ranges.waiters += 1;
            let outcome = loop {
                if nacre_env::interrupted() {
                    break Err(Status::EINTR);
                }
                self.changed.wait_for(&mut inner, INTERRUPT_POLL);
                if let Some(result) = ready(&mut inner) {
                    break Ok(result);
                }
            };
            inner.ranges.waiters -= 1;
            outcome
        })
    }

    /// Waits until the MDT has heard what it is being told ([`FileInner::telling`]).
    pub fn wait_until_told(&self) {
        drop(self.lock_untold());
    }

    /// The same; nothing more is told but by the caller until the result is dropped.
    pub fn tell(&self) -> Telling<'_> {
        self.lock_untold().telling = true;
        Telling(self)
    }

    /// The same for a program that may give up: what is being told waits for an MDT that is away.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn tell_unless_interrupted(&self) -> StatusResult<Telling<'_>> {
        self.wait_for(|inner| (!inner.telling).then(|| inner.telling = true))?;
        Ok(Telling(self))
    }

    fn lock_untold(&self) -> nacre_env::sync::MutexGuard<'_, FileInner> {
        let mut inner = self.lock();
        if inner.telling {
            nacre_env::blocking(|| {
                inner.ranges.waiters += 1;
                while inner.telling {
                    self.changed.wait(&mut inner);
                }
                inner.ranges.waiters -= 1;
            });
        }
        inner
    }

    /// Takes `[start, end)` if that is possible at once.
    pub fn try_range(&self, start: u64, end: u64, mode: Use) -> Option<RangeGuard<'_>> {
        let mut inner = self.lock();
        if inner.frozen.is_some() {
            return None;
        }
        let ticket = inner.ranges.try_take(start, end, mode)?;
        drop(inner);
        Some(RangeGuard { file: self, ticket })
    }

    /// Takes the range that `choose` names (it may depend on the size) and gives what else `choose` says. Waits while the file is
    /// frozen, or a group has it that does not admit `who`.
    ///
    /// # Errors
    /// `EBUSY` if the group's members would wait for this one; `EAGAIN` for who does not wait for groups; `EINTR`.
    pub fn take_range<R>(
        &self,
        who: Who,
        mode: Use,
        mut choose: impl FnMut(&mut FileInner) -> (u64, u64, R),
    ) -> StatusResult<(RangeGuard<'_>, R)> {
        self.wait_for(|inner| {
            if inner.frozen.is_some() {
                return None;
            }
            match inner.admission(who, mode) {
                Admission::Granted => {}
                Admission::Waits => return None,
                Admission::Refused(status) => return Some(Err(status)),
            }
            let (start, end, more) = choose(inner);
            Some(Ok((inner.ranges.try_take(start, end, mode)?, more)))
        })?
        .map(|(ticket, more)| (RangeGuard { file: self, ticket }, more))
    }

    /// The same for who does not touch the data, or is the one that has frozen the file.
    pub fn take_range_ungated<R>(
        &self,
        mode: Use,
        mut choose: impl FnMut(&mut FileInner) -> (u64, u64, R),
    ) -> StatusResult<(RangeGuard<'_>, R)> {
        self.wait_for(|inner| {
            let (start, end, more) = choose(inner);
            Some((inner.ranges.try_take(start, end, mode)?, more))
        })
        .map(|(ticket, more)| (RangeGuard { file: self, ticket }, more))
    }
}

impl Client {
    /// True if the size that is noted in `inner` is the truth: nobody else can have changed it.
    pub(crate) fn size_is_ours(&self, inner: &FileInner) -> bool {
        inner.size_lease != 0 && inner.size_lease == self.lease.number()
    }

    /// The size as far as it matters for a range that ends at `need`: from the noted one if it is the truth or reaches
    /// that far, otherwise from the objects.
    pub(crate) fn size_up_to(&self, file: &FileState, need: u64) -> StatusResult<u64> {
        {
            let inner = file.lock();
            let era = file.lock_era.load(Ordering::Acquire);
            let reaches = need <= inner.size && (self.is_alone() || inner.floor_era == era + 1);
            if self.size_is_ours(&inner) || reaches {
                return Ok(inner.size);
            }
        }
        self.refresh_size_to(file, need)
    }

    /// Asks the objects for the size, as far as it matters for a range that ends at `need`: those on OSTs that are out of use, and lost
    /// ones, need not say how much they have if the others reach that far.
    ///
    /// # Errors
    /// `EIO` if they do not; as for [`Client::refresh_size`].
    pub(crate) fn refresh_size_to(&self, file: &FileState, need: u64) -> StatusResult<u64> {
        match self.refresh_size(file) {
            Err(status @ (Status::EIO | Status::OBJECT_LOST)) => {
                let size = self.size_of_the_rest(file, status)?.size;
                if need > size {
                    return Err(status);
                }
                let mut inner = file.lock();
                inner.size = inner.size.max(size);
                Ok(size)
            }
            outcome => outcome.map(|glimpse| glimpse.size),
        }
    }

    /// What the objects say that are not on OSTs out of use and not lost, after asking all has failed with `status`.
    ///
    /// # Errors
    /// `EIO` if all are in use and none is lost: then something else is wrong.
    pub(crate) fn size_of_the_rest(&self, file: &FileState, status: Status) -> StatusResult<Glimpse> {
        let used = self.use_layout(file)?;
        let layout = used.layout().ok_or(Status::EIO)?;
        let is_out = |stripe: &StripeObject| self.is_out_of_use(stripe.ost_index);
        if status != Status::OBJECT_LOST && !layout.objects().any(is_out) {
            return Err(Status::EIO);
        }
        self.tell_of_inactive(file, layout, (0, u64::MAX));
        self.glimpse_some(layout, |stripe| !is_out(stripe))
    }

    /// The size as far as it matters for an operation that ends at `need` and has `cover`: what is known to be there cannot
    /// be cut off by others while its locks are held.
    pub(crate) fn size_under(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        cover: &Cover<'_>,
        need: u64,
    ) -> StatusResult<u64> {
        if cover.io == IoLock::Held {
            let era = file.lock_era.load(Ordering::Acquire);
            let inner = file.lock();
            let reaches = inner.floor_era == era + 1 && need <= inner.size;
            if reaches || inner.exact_era == era + 1 {
                return Ok(inner.size);
            }
        }
        let era = file.lock_era.load(Ordering::Acquire);
        let settled = self.settle(file, 0, u64::MAX);
        let size = match settled.and_then(|()| self.refresh_size_of(file, Some(layout))) {
            Err(status @ (Status::EIO | Status::OBJECT_LOST)) => {
                let size = self.size_of_the_rest(file, status)?.size;
                return if need <= size { Ok(size) } else { Err(status) };
            }
            outcome => outcome?.size,
        };
        if cover.io == IoLock::Held && self.is_locked_to_its_end(file) {
            let mut inner = file.lock();
            // Otherwise writes went on here meanwhile, and what they noted is a part of the size.
            if inner.floor_era == era + 1 && inner.size == size {
                inner.exact_era = era + 1;
            }
        }
        Ok(size)
    }

    /// Asks the objects for the size and notes it.
    pub(crate) fn refresh_size(&self, file: &FileState) -> StatusResult<Glimpse> {
        self.refresh_size_after(file, |file| self.settle(file, 0, u64::MAX))
    }

    /// The same; what was written here has arrived when `settle` returns.
    pub(crate) fn refresh_size_after(
        &self,
        file: &FileState,
        settle: impl Fn(&FileState) -> StatusResult<()>,
    ) -> StatusResult<Glimpse> {
        loop {
            if let Some(frozen) = &file.lock().frozen {
                return Ok(frozen.seen);
            }
            let changes = self.relayouts.count(file.fid);
            let used = self.use_layout(file)?;
            settle(file)?;
            let glimpse = self.refresh_size_of(file, used.layout())?;
            // Otherwise objects may have been asked that are not the file's any more.
            if changes == self.relayouts.count(file.fid) {
                return Ok(glimpse);
            }
        }
    }

    /// The same with a layout that is in use, for a file whose data has been settled.
    fn refresh_size_of(&self, file: &FileState, layout: Option<&Arc<Layout>>) -> StatusResult<Glimpse> {
        let lease = self.lease.number();
        let era = file.lock_era.load(Ordering::Acquire);
        // What was written here since is not in the objects yet.
        let changes = file.lock().changes().filter(|_| file.dirty.is_clean());
        let glimpse = match layout {
            Some(layout) => {
                let (glimpse, written) = self.glimpse(layout)?;
                file.lock().written.add(written.all());
                glimpse
            }
            None => Glimpse::default(),
        };
        let mut inner = file.lock();
        if changes.is_some() && inner.changes() == changes {
            inner.size = glimpse.size;
            inner.size_lease = lease;
            inner.known_since(era);
            inner.blocks = Some(glimpse.blocks);
        } else if lease == 0 {
            // Others may have cut the file since what is noted was true.
            let known = if inner.floor_era == era + 1 { inner.size } else { 0 };
            return Ok(Glimpse { size: glimpse.size.max(known), ..glimpse });
        } else {
            // Writes went on while the objects were asked: what they noted is newer.
            inner.size = inner.size.max(glimpse.size);
        }
        Ok(Glimpse { size: inner.size, ..glimpse })
    }

    /// Attributes as a program is to see them: with the size that this client or the objects know better.
    pub(crate) fn complete_attr(&self, mut attr: Attr, lease: u64) -> StatusResult<Attr> {
        if !attr.is_regular() {
            return self.with_shards(attr);
        }
        if let Some(file) = self.nodes.file(attr.fid.inode_number()) {
            self.overlay(&file, &mut attr, lease)?;
            return Ok(attr);
        }
        // In this order: who closes notes what he tells before the file counts as closed.
        self.nodes.show_told(&mut attr, self.lease.number(), true);
        if attr.size_source == SizeSource::Objects {
            self.recover_size(&mut attr)?;
        }
        Ok(attr)
    }

    /// Puts in the size if this client alone knows it; asks nobody.
    pub(crate) fn with_own_size(&self, mut attr: Attr) -> Attr {
        if let Some(file) = self.nodes.file(attr.fid.inode_number()) {
            let inner = file.lock();
            if let Some(blocks) = inner.known_blocks().filter(|_| self.size_is_ours(&inner)) {
                (attr.size, attr.blocks) = (inner.size, blocks);
                attr.size_source = SizeSource::Exact;
            }
        }
        attr
    }

    fn overlay(&self, file: &FileState, attr: &mut Attr, lease: u64) -> StatusResult<()> {
        let (known, mtime_is_ours) = {
            let mut inner = file.lock();
            inner.learn(attr, lease, false);
            // Looked up while nobody can take what is to be told out of the state, to note it there.
            let is_told = self.show_told_of(&inner, attr);
            let mtime_is_ours = is_told || inner.mtime.is_some() || inner.mtime_told;
            if let Some(atime) = inner.atime {
                attr.atime = attr.atime.max(atime);
            }
            if let Some(mtime) = inner.mtime {
                attr.mtime = mtime;
                attr.ctime = attr.ctime.max(mtime);
            }
            if attr.size_source == SizeSource::Exact && !inner.data_changed && inner.writers == 0 {
                return Ok(());
            }
            let size = inner.size;
            let known = inner.known_blocks().filter(|_| self.size_is_ours(&inner));
            (known.map(|blocks| (size, blocks)), mtime_is_ours)
        };
        if let Some((size, blocks)) = known {
            (attr.size, attr.blocks) = (size, blocks);
            return Ok(());
        }
        let (glimpse, _) = self.look_at_size(file, attr)?;
        (attr.size, attr.blocks) = (glimpse.size, glimpse.blocks);
        if !mtime_is_ours {
            show_written(attr, glimpse.mtime);
        }
        Ok(())
    }

    /// Shows in attributes of an open file what closes have told the MDT, as far as nothing was written since. True if a time of
    /// change was among it.
    pub(crate) fn show_told_of(&self, inner: &FileInner, attr: &mut Attr) -> bool {
        let with_size = inner.writers == 0 && !inner.data_changed;
        self.nodes.show_told(attr, self.lease.number(), with_size)
    }

    /// The MDT does not know the size, since somebody writes or a writer died: asks the objects. While nobody else is
    /// there it was the latter, so the MDT is told.
    fn recover_size(&self, attr: &mut Attr) -> StatusResult<()> {
        let lease = self.lease.number();
        let pin = self.pin(attr.fid);
        let (glimpse, is_whole) = self.look_at_size(&pin.file, attr)?;
        let written = pin.file.lock().written.take();
        drop(pin);
        (attr.size, attr.blocks) = (glimpse.size, glimpse.blocks);
        show_written(attr, glimpse.mtime);
        if is_whole
            && lease != 0
            && lease == self.lease.number()
            && self.nodes.file(attr.fid.inode_number()).is_none()
        {
            let size_blocks = Some((glimpse.size, glimpse.blocks));
            let update = DataUpdate { size_blocks, mtime: Some(attr.mtime), ..DataUpdate::default() };
            let request = MdsRequest::UpdateData { fid: attr.fid, update, exact: true, written };
            attr.version = self.call_system(attr.fid, &request)?.attr()?.version;
            attr.size_source = SizeSource::Exact;
        }
        Ok(())
    }

    /// Size and space to tell the MDT; space is asked for if it is not known.
    pub(crate) fn size_blocks(&self, file: &FileState) -> StatusResult<KnownSize> {
        let changes = {
            let inner = file.lock();
            let changes = inner.changes();
            if self.size_is_ours(&inner)
                && let Some(blocks) = inner.known_blocks()
            {
                return Ok(KnownSize { size: inner.size, blocks, changes });
            }
            changes
        };
        let glimpse = self.refresh_size(file)?;
        Ok(KnownSize { size: glimpse.size, blocks: glimpse.blocks, changes })
    }

    /// Tells the MDT what it does not know of a written file that stays open.
    pub(crate) fn push_size(&self, file: &FileState) -> StatusResult<()> {
        let _turn = file.tell();
        if !file.lock().data_changed {
            return Ok(());
        }
        let size = self.size_blocks(file)?;
        let update = file.lock().update_to_tell(Some(size));
        let written = file.lock().written.take();
        let (fid, exact) = (file.fid, false);
        let request = MdsRequest::UpdateData { fid, update, exact, written: written.clone() };
        let answer = self.call_system(fid, &request).inspect_err(|_| file.lock().written.add(written))?;
        let mut inner = file.lock();
        inner.was_told(&update, size.changes);
        inner.transno = inner.transno.max(answer.transno);
        // The MDT keeps "ask the objects" while the file is open for writing, so the last close tells it again.
        inner.data_changed |= inner.writers > 0;
        Ok(())
    }
}

/// Shows in attributes that a write at `time` has changed the file.
fn show_written(attr: &mut Attr, time: Option<nacre_types::Timestamp>) {
    if let Some(time) = time {
        attr.mtime = attr.mtime.max(time);
        attr.ctime = attr.ctime.max(attr.mtime);
    }
}
