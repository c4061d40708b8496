//! Sizes of open files: the known ones, which party has a newer one, and reports to the MDT.

pub(crate) mod silent;

use crate::base::Base;
use crate::data_locks::DataLocks;
use crate::data_locks::cover::Cover;
use crate::file::{FileInner, FileState, Glimpse, KnownSize, ModifyTime};
use crate::layouts::Layouts;
use crate::lease::Lease;
use crate::node::NodeTable;
use crate::objects::Objects;
use crate::requests::Requests;
use crate::shards::Shards;
use crate::write_back::WriteBack;
use nacre_layout::{Layout, StripeObject};
use nacre_types::{Attr, Failure, FailureResult, SizeSource, Status};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::{DataUpdate, MdsRequest};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sizes and attributes of files: those of MDTs, combined with newer values of this client.
pub struct Sizes {
    requests: Arc<Requests>,
    layouts: Arc<Layouts>,
    objects: Arc<Objects>,
    write_back: Arc<WriteBack>,
    locks: Arc<DataLocks>,
    shards: Arc<Shards>,
    nodes: Arc<NodeTable>,
    lease: Arc<Lease>,
    /// How often a size was shown that may not be the true one.
    guesses: AtomicU64,
}

/// A read whose size and data are known.
pub(crate) struct Read<'a> {
    /// Lock that excludes other clients.
    pub lock: IoLock,
    /// True if the file ends before the read does.
    pub ends_early: bool,
    /// Bytes read.
    pub data: &'a [u8],
}

impl Sizes {
    pub(crate) fn new(base: &Base, write_back: Arc<WriteBack>, locks: Arc<DataLocks>) -> Arc<Sizes> {
        Arc::new(Sizes {
            requests: base.requests.clone(),
            layouts: base.layouts.clone(),
            objects: base.objects.clone(),
            write_back,
            locks,
            shards: base.shards.clone(),
            nodes: base.nodes.clone(),
            lease: base.lease.clone(),
            guesses: AtomicU64::new(0),
        })
    }

    /// Returns the size as far as it matters for a range that ends at `need`: the known one if it is exact or
    /// reaches that far, otherwise that of the objects.
    pub(crate) fn size_up_to(&self, file: &FileState, need: u64) -> FailureResult<u64> {
        {
            let inner = file.lock();
            let era = file.lock_era.load(Ordering::Acquire);
            let lease = self.lease.number();
            let reaches = need <= inner.size.bytes && inner.size.is_lower_bound(lease, era);
            if inner.size.is_of(lease) || reaches {
                return Ok(inner.size.bytes);
            }
        }
        self.refresh_size_to(file, need)
    }

    /// Requests the size from the objects, as far as it matters for a range that ends at `need`: those on
    /// OSTs that are out of use, and lost ones, need not report theirs if the others reach that far.
    ///
    /// # Errors
    /// `EIO` if the others do not; as for [`Sizes::refresh_size`].
    pub(crate) fn refresh_size_to(&self, file: &FileState, need: u64) -> FailureResult<u64> {
        match self.refresh_size(file) {
            Err(failure) if is_partial(&failure) => {
                let status = failure.status();
                let size = self.size_of_the_rest(file, failure)?.size;
                if need > size {
                    return Err(Failure::logged(status));
                }
                let (lease, era) = (self.lease.number(), file.lock_era.load(Ordering::Acquire));
                file.lock().size.note_lower_bound(size, lease, era);
                Ok(size)
            }
            outcome => outcome.map(|glimpse| glimpse.size),
        }
    }

    /// Returns the glimpse of objects that are not lost and not on OSTs out of use, after a request to all
    /// has failed, which goes to the log.
    ///
    /// # Errors
    /// `failure` if all OSTs are in use and no object is lost: then the failure has another reason.
    pub(crate) fn size_of_the_rest(&self, file: &FileState, failure: Failure) -> FailureResult<Glimpse> {
        let used = self.layouts.use_layout(file)?;
        let layout = used.layout().ok_or(Status::EIO)?;
        let is_out = |stripe: &StripeObject| self.requests.is_out_of_use(stripe.ost_index);
        if failure != Status::OBJECT_LOST && !layout.objects().any(is_out) {
            return Err(failure);
        }
        self.requests.faults.log(failure.explain(|context| context.fid(file.fid)));
        self.objects.glimpse_some(layout, |stripe| !is_out(stripe))
    }

    /// Returns the size as far as it matters for an operation that ends at `need` and has `cover`: other
    /// clients cannot truncate known data while its locks are held.
    pub(crate) fn size_under(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        cover: &Cover<'_>,
        need: u64,
    ) -> FailureResult<u64> {
        if cover.io == IoLock::Held {
            let era = file.lock_era.load(Ordering::Acquire);
            let inner = file.lock();
            let reaches = inner.size.is_floor(era) && need <= inner.size.bytes;
            if reaches || inner.size.is_exact(era) {
                return Ok(inner.size.bytes);
            }
        }
        let era = file.lock_era.load(Ordering::Acquire);
        let settled = self.write_back.settle(file, 0, u64::MAX);
        let size = match settled.and_then(|()| self.refresh_size_of(file, Some(layout))) {
            Err(failure) if is_partial(&failure) => {
                let status = failure.status();
                let size = self.size_of_the_rest(file, failure)?.size;
                return if need <= size { Ok(size) } else { Err(Failure::logged(status)) };
            }
            outcome => outcome?.size,
        };
        if cover.io == IoLock::Held && self.locks.is_locked_to_its_end(file) {
            let mut inner = file.lock();
            // Otherwise writes continued here meanwhile, and their end is a part of the size.
            if inner.size.is_floor(era) && inner.size.bytes == size {
                inner.size.is_all_locked(era);
            }
        }
        Ok(size)
    }

    /// Returns true if size and data of a read may be of several moments, as another client truncated the file
    /// meanwhile: each object reports its size at a moment of its own, and locks of servers last for one request.
    pub(crate) fn is_of_several_moments(&self, file: &FileState, layout: &Layout, read: Read<'_>) -> bool {
        match read.lock {
            IoLock::Held => read.ends_early && layout.objects().nth(1).is_some() && !self.is_exact(file),
            // An object that was cut reads as zeros from its end on.
            IoLock::Server => read.ends_early || read.data.last() == Some(&0),
            IoLock::Lease | IoLock::Replay(_) => false,
        }
    }

    fn is_exact(&self, file: &FileState) -> bool {
        file.lock().size.is_exact(file.lock_era.load(Ordering::Acquire))
    }

    /// Requests the size from the objects and records it.
    pub(crate) fn refresh_size(&self, file: &FileState) -> FailureResult<Glimpse> {
        self.refresh_size_after(file, |file| self.write_back.settle(file, 0, u64::MAX))
    }

    /// Does the same; `settle` flushes data written here to the objects first.
    pub(crate) fn refresh_size_after(
        &self,
        file: &FileState,
        settle: impl Fn(&FileState) -> FailureResult<()>,
    ) -> FailureResult<Glimpse> {
        loop {
            if let Some(frozen) = &file.lock().frozen {
                return Ok(frozen.seen);
            }
            let changes = self.layouts.relayouts.count(file.fid);
            let used = self.layouts.use_layout(file)?;
            settle(file)?;
            let glimpse = self.refresh_size_of(file, used.layout())?;
            // Otherwise the objects asked may not be the file's any more.
            if changes == self.layouts.relayouts.count(file.fid) {
                return Ok(glimpse);
            }
        }
    }

    /// Does the same with a layout in use, for a file whose data has been flushed.
    fn refresh_size_of(&self, file: &FileState, layout: Option<&Arc<Layout>>) -> FailureResult<Glimpse> {
        let lease = self.lease.number();
        let era = file.lock_era.load(Ordering::Acquire);
        // Data written here since then is not in the objects yet.
        let changes = file.lock().changes().filter(|_| file.dirty.is_clean());
        let glimpse = match layout {
            Some(layout) => {
                let (glimpse, written) = self.objects.glimpse(layout)?;
                file.lock().news.written.add(written.all());
                glimpse
            }
            None => Glimpse::default(),
        };
        let mut inner = file.lock();
        if changes.is_some() && inner.changes() == changes {
            inner.size.learn(glimpse.size, glimpse.blocks, lease);
            if lease == 0 {
                inner.size.hangs_on_locks(era);
            }
        } else if lease == 0 {
            // Other clients may have truncated the file since the recorded size was true.
            return Ok(Glimpse { size: glimpse.size.max(inner.size.lower_bound(0, era)), ..glimpse });
        } else {
            // Writes continued during the request to the objects: the size they recorded is newer.
            inner.size.note_lower_bound(glimpse.size, lease, era);
        }
        Ok(Glimpse { size: inner.size.bytes, ..glimpse })
    }

    /// Returns attributes as a program is to see them: with the newer size of this client or the objects.
    pub(crate) fn complete_attr(&self, mut attr: Attr, lease: u64) -> FailureResult<Attr> {
        if !attr.is_regular() {
            return self.shards.with_shards(attr);
        }
        if let Some(file) = self.nodes.file(attr.fid.inode_number()) {
            self.overlay(&file, &mut attr, lease)?;
            return Ok(attr);
        }
        // In this order: a close records its report before the file counts as closed.
        self.nodes.show_told(&mut attr, self.lease.number(), true);
        if attr.size_source == SizeSource::Objects {
            self.recover_size(&mut attr)?;
        }
        Ok(attr)
    }

    /// Puts in the size if this client alone knows it; sends no request.
    pub(crate) fn with_own_size(&self, mut attr: Attr) -> Attr {
        if let Some(file) = self.nodes.file(attr.fid.inode_number()) {
            let inner = file.lock();
            if let Some(blocks) = inner.known_blocks().filter(|_| inner.size.is_of(self.lease.number())) {
                (attr.size, attr.blocks) = (inner.size.bytes, blocks);
                attr.size_source = SizeSource::Exact;
            }
        }
        attr
    }

    fn overlay(&self, file: &FileState, attr: &mut Attr, lease: u64) -> FailureResult<()> {
        let (known, mtime_is_ours) = {
            let mut inner = file.lock();
            inner.learn(attr, lease, false);
            // Looked up under the lock of the state, so that no thread can move the values from the state to
            // the record of reports meanwhile.
            let is_told = self.show_told_of(&inner, attr);
            let mtime_is_ours = is_told || inner.news.mtime != ModifyTime::Elsewhere;
            if let Some(atime) = inner.news.atime {
                attr.atime = attr.atime.max(atime);
            }
            if let Some(mtime) = inner.news.mtime.to_tell() {
                attr.mtime = mtime;
                attr.ctime = attr.ctime.max(mtime);
            }
            if attr.size_source == SizeSource::Exact && !inner.news.data_changed && inner.users.writers == 0 {
                return Ok(());
            }
            let size = inner.size.bytes;
            let known = inner.known_blocks().filter(|_| inner.size.is_of(self.lease.number()));
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

    /// Overlays attributes of an open file with values that closes have reported to the MDT, as far as
    /// nothing was written since. True if a modification time was among them.
    pub(crate) fn show_told_of(&self, inner: &FileInner, attr: &mut Attr) -> bool {
        let with_size = inner.users.writers == 0 && !inner.news.data_changed;
        self.nodes.show_told(attr, self.lease.number(), with_size)
    }

    /// Requests the size from the objects if the MDT does not know it, since the file is being written or a
    /// writer died. While there is no other client the latter is the case, so the size is reported to the
    /// MDT.
    fn recover_size(&self, attr: &mut Attr) -> FailureResult<()> {
        let lease = self.lease.number();
        let pin = self.nodes.pin(attr.fid);
        let (glimpse, is_whole) = self.look_at_size(&pin.file, attr)?;
        let written = pin.file.lock().news.written.take();
        drop(pin);
        (attr.size, attr.blocks) = (glimpse.size, glimpse.blocks);
        show_written(attr, glimpse.mtime);
        if is_whole
            && lease != 0
            && lease == self.lease.number()
            && self.nodes.file(attr.fid.inode_number()).is_none()
        {
            let size_blocks = Some((glimpse.size, glimpse.blocks));
            let (mtime, size_stamp) = (Some(attr.mtime), attr.size_stamp);
            let update = DataUpdate { size_blocks, mtime, size_stamp, ..DataUpdate::default() };
            let request = MdsRequest::UpdateData { fid: attr.fid, update, exact: true, written };
            attr.version = self.requests.call_system(attr.fid, &request)?.attr()?.version;
            attr.size_source = SizeSource::Exact;
        }
        Ok(())
    }

    /// Returns size and space for a report to the MDT; space is requested if it is not known.
    pub(crate) fn size_blocks(&self, file: &FileState) -> FailureResult<KnownSize> {
        let (changes, stamp) = {
            let inner = file.lock();
            let (changes, stamp) = (inner.changes(), inner.size_stamp);
            if inner.size.is_of(self.lease.number())
                && let Some(blocks) = inner.known_blocks()
            {
                return Ok(KnownSize { size: inner.size.bytes, blocks, changes, stamp });
            }
            (changes, stamp)
        };
        let glimpse = self.refresh_size(file)?;
        Ok(KnownSize { size: glimpse.size, blocks: glimpse.blocks, changes, stamp })
    }

    /// Reports to the MDT the unreported changes of a written file that stays open.
    pub(crate) fn push_size(&self, file: &FileState) -> FailureResult<()> {
        let _turn = file.tell();
        if !file.lock().news.data_changed {
            return Ok(());
        }
        let size = self.size_blocks(file)?;
        let update = file.lock().update_to_tell(Some(size));
        let written = file.lock().news.written.take();
        let (fid, exact) = (file.fid, false);
        let request = MdsRequest::UpdateData { fid, update, exact, written: written.clone() };
        let answer = self
            .requests
            .call_system(fid, &request)
            .inspect_err(|_| file.lock().news.written.add(written))?;
        let (transno, lease) = (answer.transno, answer.lease);
        let attr = answer.attr()?;
        let mut inner = file.lock();
        inner.was_told(&update, size.changes);
        inner.learn(&attr, lease, false);
        inner.transno = inner.transno.max(transno);
        // The MDT keeps "ask the objects" while the file is open for writing, so the last close reports the
        // size again.
        inner.news.data_changed |= inner.users.writers > 0;
        Ok(())
    }
}

/// True if some objects may still report their size.
pub(crate) fn is_partial(failure: &Failure) -> bool {
    matches!(failure.status(), Status::EIO | Status::OBJECT_LOST)
}

/// Changes attributes as a write at `time` does.
fn show_written(attr: &mut Attr, time: Option<nacre_types::Timestamp>) {
    if let Some(time) = time {
        attr.mtime = attr.mtime.max(time);
        attr.ctime = attr.ctime.max(attr.mtime);
    }
}
