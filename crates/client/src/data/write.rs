//! Writes to open files.

use crate::caller::Caller;
use crate::data::Data;
use crate::data_locks::cover::{Cover, Fill, Want};
use crate::file::guards::RangeGuard;
use crate::file::options::WriteOptions;
use crate::file::ranges::Use;
use crate::file::{FileInner, FileState, OpenFile, now};
use crate::layouts::LayoutUse;
use crate::layouts::head::HeadUse;
use crate::objects::transfer::{Notes, Placed, WriteHow};
use crate::validity::Validity;
use nacre_layout::Layout;
use nacre_lock::Mode;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::Verdict;
use nacre_types::{Caps, Explain, FailureResult, Fid, SetAttr, SetAttrValid, Status, StatusResult, perm};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::MdsRequest;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where a write goes, and under which lock.
struct Writing {
    at: u64,
    lock: IoLock,
    /// True if the write may be held back.
    may_cache: bool,
    /// True if the write is held back for a head that the MDT does not know of.
    holds_head: bool,
    /// [`FileState::lock_era`] of its locks; `None` while this client is the only one.
    era: Option<u64>,
}

/// Returns how many bytes of a write that begins at `at` are within the largest file size.
///
/// # Errors
/// `EFBIG` if none is.
fn writable_bytes(at: u64, len: u64) -> FailureResult<usize> {
    match len.min(FILE_SIZE_MAX.saturating_sub(at)) {
        0 => Err(Status::EFBIG.into()),
        len => Ok(len as usize),
    }
}

/// True if every byte of `[at, end)` within the largest file size has an object, and there is such a byte.
fn has_room(layout: &Layout, at: u64, end: u64) -> bool {
    at < layout.end() && layout.is_instantiated(at, end)
}

/// Returns the part of `data` at `at` that is before the end of the last component; the next write gets the
/// error.
fn inside<'a>(layout: &Layout, at: u64, data: &'a [u8]) -> &'a [u8] {
    let room = layout.end().saturating_sub(at);
    &data[..data.len().min(usize::try_from(room).unwrap_or(usize::MAX))]
}

impl Data {
    /// Writes `data` to open file `handle` at `offset` and returns how much was written: all, unless there
    /// was a failure after a part. The data is on its OSTs when this returns, or soon after while it is held
    /// back; durable only with [`WriteOptions::sync`].
    ///
    /// # Errors
    /// `EBADF`; `EFBIG` beyond the largest size; `EINTR`; `EBUSY` or `EAGAIN` because of a group; `EIO` if a
    /// file lock was lost under which the caller writes; the error of an OST, when nothing could be written.
    pub fn write(
        &self,
        caller: &Caller,
        handle: u64,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> StatusResult<usize> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("write", open.file.fid, || {
            if !open.writable() {
                return Err(Status::EBADF.into());
            }
            // In write-back of the kernel, the data was accepted earlier, and its writer is not known.
            if !options.from_cache {
                self.flocks.check_write(&open.file.fid, handle, options.owner)?;
            }
            self.write_open(caller, &open, offset, data, options)
        })
    }

    pub(crate) fn write_open(
        &self,
        caller: &Caller,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FailureResult<usize> {
        open.file.job.note();
        // Writes of the kernel's cache are the kernel's, which is not exempt.
        let options = WriteOptions { is_exempt: caller.uid == 0 && !options.from_cache, ..options };
        if options.kill_priv && open.file.lock().privileged {
            // The MDT may be waiting for a thread that waits for the pages of this request.
            let end = offset.saturating_add(data.len() as u64);
            let waiting = options.pages().map(|pages| Fill::begin(&open.file, offset..end, pages));
            let _ = waiting.as_ref().filter(|_| options.from_cache).map(Fill::waits);
            self.drop_privileges(caller, open.file.fid)?;
        }
        if data.is_empty() {
            return Ok(0);
        }
        loop {
            let outcome = match self.lease.exclusive() && !open.file.is_grouped() {
                true => self.write_alone(open, offset, data, options),
                false => self.write_shared(open, offset, data, options),
            };
            match outcome {
                Ok(Some(written)) => return Ok(written),
                Err(failure) if failure != Status::EVICTED => {
                    return Err(failure)
                        .explain(|context| context.action("write").fid(open.file.fid).offset(offset));
                }
                // Another client has connected, or the locks were lost meanwhile: the write is repeated,
                // without limit.
                _ if nacre_env::interrupted() => return Err(Status::EINTR.into()),
                _ => {}
            }
        }
    }

    /// Writes as the only client; `None` if it is not.
    fn write_alone(
        &self,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FailureResult<Option<usize>> {
        let file = &*open.file;
        if options.append {
            // The range that an append takes excludes this client's own appends.
            self.sizes.size_up_to(file, u64::MAX)?;
        }
        let len = data.len() as u64;
        let validity = Validity::Lease(self.lease.number());
        let who = options.who(open);
        let may_hold = !(options.direct || options.sync || options.from_cache || open.sync)
            && self.write_back.settings.is_enabled();
        let (range, (at, layout, may_cache, head)) = file.take_range(who, Use::Exclusive, |inner| {
            let at = if options.append { inner.size.bytes } else { offset };
            // An append holds everything from the end on, so that two appends never overlap.
            let end = if options.append { u64::MAX } else { at.saturating_add(len) };
            let ready = |layout: &&Arc<Layout>| has_room(layout, at, at.saturating_add(len));
            let may_cache = self.read_ahead.may_cache(file, inner).is_some();
            let head = self.layouts.use_head(inner, file.fid, at.saturating_add(len), may_hold && may_cache);
            let layout = inner.layout.as_ref().filter(|_| inner.layout_validity == validity).filter(ready);
            (at, end, (at, layout.cloned(), may_cache, head))
        })?;
        // Checked only under the range: the end of the lease waits for operations that have theirs.
        if !self.lease.exclusive() || file.is_grouped() {
            return Ok(None);
        }
        let data = &data[..writable_bytes(at, len)?];
        if head == HeadUse::Decide {
            drop(range);
            self.write_back.close_head(file, at + data.len() as u64)?;
            return Ok(None);
        }
        let used = match layout {
            Some(layout) => LayoutUse::from(layout),
            None => {
                let end = at + data.len() as u64;
                self.requests.with_space(file.fid, || self.layouts.use_layout_for_writing(file, at, end))?
            }
        };
        let layout = used.for_writing()?;
        let data = inside(layout, at, data);
        let how =
            Writing { at, lock: IoLock::Lease, may_cache, holds_head: head == HeadUse::Hold, era: None };
        let written = self.write_under(open, layout, data, &how, options, Some(range))?;
        // Before pages are dropped: they may be locked for a request that waits for the layout.
        drop(used);
        self.drop_pages(open, options, at, written as u64);
        Ok(Some(written))
    }

    /// Writes under locks, while there are other clients; `None` if the locks were lost.
    fn write_shared(
        &self,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> FailureResult<Option<usize>> {
        let file = &*open.file;
        let end = offset.saturating_add(data.len() as u64);
        self.write_back.close_head(file, end)?;
        let fill = options.pages().map(|pages| Fill::begin(file, offset..end, pages));
        let mut urgent = fill.as_ref().is_some_and(|fill| fill.urgent);
        let in_hand = match options.from_cache && !urgent {
            true => self.in_hand(file, offset..end)?,
            false => None,
        };
        if options.from_cache && in_hand.is_none() && !urgent {
            urgent = fill.as_ref().is_some_and(Fill::waits);
        }
        let who = options.who(open);
        let range = match (urgent || options.from_cache, options.append) {
            (true, _) => file.try_range(offset, end, Use::Exclusive),
            (false, true) => Some(file.take_range(who, Use::Exclusive, |_| (0, u64::MAX, ()))?.0),
            (false, false) => Some(file.take_range(who, Use::Exclusive, |_| (offset, end, ()))?.0),
        };
        let (at, used, cover) = match (options.append, in_hand) {
            (true, _) => self.cover_append(file, data.len() as u64)?,
            (false, Some((used, cover))) => (offset, used, Some(cover)),
            (false, None) => {
                let end = offset + writable_bytes(offset, data.len() as u64)? as u64;
                let ready = |layout: &Arc<Layout>| has_room(layout, offset, end);
                // As for reads: an urgent request waits for nothing.
                let old = if urgent { file.lock().layout.clone().filter(ready) } else { None };
                let used = match old {
                    Some(layout) => LayoutUse::from(layout),
                    None => self
                        .requests
                        .with_space(file.fid, || self.layouts.use_layout_for_writing(file, offset, end))?,
                };
                let cover = self.cover_write(file, used.for_writing()?, offset..end, &options, urgent)?;
                (offset, used, cover)
            }
        };
        let layout = used.for_writing()?;
        let data = inside(layout, at, &data[..writable_bytes(at, data.len() as u64)?]);
        if let Some(fill) = &fill {
            fill.goes_on();
        }
        let how = Writing {
            at,
            lock: cover.as_ref().map_or(IoLock::Lease, |cover| cover.io),
            may_cache: cover.as_ref().is_some_and(Cover::may_hold_back),
            holds_head: false,
            era: Some(file.lock_era.load(Ordering::Acquire)),
        };
        let outcome = self.write_under(open, layout, data, &how, options, range);
        let was_lost = outcome.is_err() && cover.as_ref().is_some_and(|cover| !cover.is_valid());
        // Before pages are dropped: they may be locked for a request that waits until these locks are
        // cancelled.
        drop(cover);
        drop(used);
        if was_lost {
            return Ok(None);
        }
        let written = outcome?;
        self.drop_pages(open, options, at, written as u64);
        Ok(Some(written))
    }

    /// Returns the layout and the locks with which a page that was stored to under a lock is written back, if
    /// all of them are still held: without waiting.
    fn in_hand(&self, file: &FileState, range: Range<u64>) -> FailureResult<Option<(LayoutUse, Cover<'_>)>> {
        if file.is_grouped() || range.end > FILE_SIZE_MAX {
            return Ok(None);
        }
        let ready = |layout: &Layout| has_room(layout, range.start, range.end);
        let Some(used) = self.layouts.layout_in_hand(file, ready) else { return Ok(None) };
        let cover = self.locks.cover(file, used.for_writing()?, range, Mode::Pw, Want::Now)?;
        Ok(cover.map(|cover| (used, cover)))
    }

    /// Takes the locks of a write. `None` if it has to run without: its pages are being dropped under a lock
    /// that is about to be cancelled, and they are dropped again after it.
    fn cover_write(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        range: Range<u64>,
        options: &WriteOptions,
        urgent: bool,
    ) -> FailureResult<Option<Cover<'_>>> {
        if urgent || options.from_cache {
            let now = self.locks.cover(file, layout, range.clone(), Mode::Pw, Want::Now)?;
            if now.is_some() || urgent {
                return Ok(now);
            }
        }
        let want = if options.through_cache || options.from_cache { Want::Lock } else { Want::LockOrServer };
        self.locks.cover(file, layout, range, Mode::Pw, want)
    }

    /// Locks all of a file for an append of `len` bytes, and returns where it begins.
    fn cover_append(&self, file: &FileState, len: u64) -> FailureResult<(u64, LayoutUse, Option<Cover<'_>>)> {
        let mut wanted = (0, 1);
        loop {
            let used = self.layouts.use_layout(file)?;
            if let Some(layout) = used.with_objects() {
                let cover = self.locks.cover_whole(file, layout, Mode::Pw)?;
                let at = self.sizes.size_under(file, layout, &cover, u64::MAX)?;
                let end = at.saturating_add(len).min(FILE_SIZE_MAX);
                if has_room(layout, at, end) {
                    return Ok((at, used, Some(cover)));
                }
                // The end is in a component without objects so far.
                wanted = (at, end);
            }
            drop(used);
            self.requests
                .with_space(file.fid, || self.layouts.use_layout_for_writing(file, wanted.0, wanted.1))?;
        }
    }

    /// Writes under a lock or the lease, and records the write.
    fn write_under(
        &self,
        open: &OpenFile,
        layout: &Arc<Layout>,
        data: &[u8],
        how: &Writing,
        options: WriteOptions,
        range: Option<RangeGuard<'_>>,
    ) -> FailureResult<usize> {
        let (file, at, len) = (&*open.file, how.at, data.len() as u64);
        let place = Placed { at, data };
        let sync = options.sync || open.sync;
        let is_worth_it = self.write_back.wants_cache(open, layout, place, options) || how.holds_head;
        let charge = file.charge(options.is_exempt);
        let has_room = !self.requests.quotas.is_near(charge.owners);
        let wants_cache = is_worth_it && how.may_cache && !sync && has_room;
        let mut notes = Notes::default();
        let hold = || self.write_back.cache_write(&open.file, layout, place, how.lock == IoLock::Lease);
        let cached = if wants_cache { hold() } else { 0 };
        let (outcome, touched) = match &data[cached..] {
            [] => (Ok(cached), &[][..]),
            rest => {
                let place = Placed { at: at + cached as u64, data: rest };
                // The data could not be held back.
                let decided = if how.holds_head { self.layouts.decide_head(file, at + len) } else { Ok(()) };
                let (through, touched) = match decided {
                    Ok(()) => {
                        let how = WriteHow { sync, lock: how.lock, charge };
                        self.write_back.write_through(file, layout, place, how, &mut notes)
                    }
                    Err(status) => (Err(status), &[][..]),
                };
                // Data that was cached before the failure stays: then less was written, and the next write
                // reports the reason.
                let outcome = through.map(|bytes| cached + bytes);
                (outcome.or_else(|status| if cached > 0 { Ok(cached) } else { Err(status) }), touched)
            }
        };
        let (now, lease, lock_era) = (now(), self.lease.number(), file.lock_era.load(Ordering::Acquire));
        let note = |inner: &mut FileInner| {
            let written = *outcome.as_ref().unwrap_or(&0) as u64;
            match how.era {
                _ if written == 0 => {}
                Some(era) => inner.on_written_beside(at, at + written, now, era),
                None => inner.on_written_alone(at, at + written, now, lease, lock_era),
            }
            if written < len {
                inner.on_written_in_part(at, at + len);
            }
            if !sync || written < len {
                touched.iter().for_each(|(stripe, epoch)| inner.mark_dirty(stripe, *epoch));
            }
            if written == len {
                touched.iter().for_each(|(stripe, _)| inner.news.written.note(stripe));
            }
        };
        match range {
            Some(range) => range.finish(note),
            None => {
                let mut inner = file.lock();
                inner.ranges.note_change();
                note(&mut inner)
            }
        };
        let written = outcome?;
        if sync {
            self.commit_file(file)?;
        }
        Ok(written)
    }

    /// Drops pages after a write around the kernel's cache: a read through the cache may have fetched the old
    /// data meanwhile.
    fn drop_pages(&self, open: &OpenFile, options: WriteOptions, at: u64, len: u64) {
        // The pages of a write through the cache are locked until the reply, and hold the new data anyway.
        let around = !options.from_cache && !open.cached.load(Ordering::Relaxed);
        if around
            && open.file.lock().users.cached
            && let Some(kernel) = self.lease.kernel()
        {
            kernel.drop_data(open.file.node, at, len);
        }
    }

    /// Drops set-id bits and capabilities because a user without rights to them changes the data.
    pub(crate) fn drop_privileges(&self, caller: &Caller, fid: Fid) -> FailureResult<()> {
        let valid = SetAttrValid::KILL_PRIV | SetAttrValid::OPEN_FOR_WRITE;
        let request = MdsRequest::SetAttr { fid, set: SetAttr { valid, ..SetAttr::default() } };
        let answer = self.requests.call(caller, fid, &request)?;
        let lease = answer.lease;
        self.nodes.learn(&answer.attr()?, lease);
        self.mode_changed(fid);
        Ok(())
    }

    /// As [`Data::drop_privileges`] if the kernel does not report whether the caller may keep them.
    pub(crate) fn drop_privileges_unless_allowed(&self, caller: &Caller, fid: Fid) -> FailureResult<()> {
        match perm::capable(&caller.full_cred(), Caps::FSETID) {
            Verdict::Granted => Ok(()),
            _ => self.drop_privileges(caller, fid),
        }
    }

    /// Invalidates attributes in the kernel after the mode was changed by an operation whose reply does not
    /// carry it.
    pub(crate) fn mode_changed(&self, fid: Fid) {
        if let Some(kernel) = self.lease.kernel() {
            kernel.drop_attributes(fid.inode_number());
        }
    }

    /// Makes durable what the MDT has recorded of a file.
    pub(crate) fn commit_file(&self, file: &FileState) -> FailureResult<()> {
        let transno = file.lock().transno;
        self.requests.commit(file.fid, transno)
    }

    /// Has the objects allocated that the first byte of an open file needs, if it is open for writing and has
    /// none: programs that write read the layout first, and on Lustre there is one by then.
    ///
    /// # Errors
    /// Those of a first write.
    pub fn give_objects(&self, handle: u64) -> StatusResult<()> {
        self.requests.faults.edge("give objects", || match self.handles.file(handle) {
            Ok(open) if open.writable() => self.layouts.use_layout_for_writing(&open.file, 0, 1).map(drop),
            _ => Ok(()),
        })
    }
}
