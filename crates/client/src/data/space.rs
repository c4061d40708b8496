//! Changes of sizes, allocation and freeing of space, searches for data and holes, copies of ranges.

use crate::caller::Caller;
use crate::data::Data;
use crate::data::closes::wait_for_closes;
use crate::file::group::Who;
use crate::file::options::WriteOptions;
use crate::file::ranges::Use;
use crate::file::{FileState, KnownSize, ModifyTime, OpenFile, now};
use crate::inodes::inode_gone;
use crate::objects::placed;
use nacre_layout::{Component, Layout, StripeObject, object_ranges, object_sizes};
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::{Attr, FailureResult, Fid, SetAttr, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::{MdsRequest, OpenFlags};
use nacre_wire::oss::{FallocateKind, OssReply, OssRequest, SeekKind};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Bytes copied by one round of `copy_file_range`.
const COPY_CHUNK: usize = 1 << 20;
/// Bytes copied by one call, at most; programs repeat the call. So no request runs for minutes.
const COPY_MAX: u64 = 64 << 20;

impl Data {
    /// Sets the size (and any other attributes in `set`). The MDT records it first and answers "ask the
    /// objects" from then on; when the objects are truncated the new size is reported to the MDT. A crash in
    /// between leaves a part of the change, never old bytes behind the new end; so does `ESTALE`, if the file has
    /// been removed or moved meanwhile.
    pub(crate) fn truncate(
        &self,
        caller: &Caller,
        fid: Fid,
        set: SetAttr,
        who: Who,
    ) -> FailureResult<(Attr, u64)> {
        let size = set.size;
        if size > FILE_SIZE_MAX {
            return Err(Status::EFBIG.into());
        }
        let pin = self.nodes.pin(fid);
        let file = &*pin.file;
        self.opened.note_change();
        self.write_back.close_head(file, if size == 0 { 0 } else { size + 1 })?;
        let (range, ()) =
            file.take_range(who, Use::Exclusive, |inner| (size.min(inner.size.bytes), u64::MAX, ()))?;
        let era = file.lock_era.load(Ordering::Acquire);
        let turn = file.tell_unless_interrupted()?;
        wait_for_closes(&self.requests, &self.nodes, fid)?;
        // truncate(2) names a file that its caller may not have open.
        let _acting = self.requests.capabilities.act_for(fid, caller);
        let answer = self.requests.call(caller, fid, &MdsRequest::SetAttr { fid, set })?;
        let lease = answer.lease;
        let mut attr = answer.attr()?;
        // Another client may have removed the file since, or moved it to another MDT: the kernel looks its name up again.
        self.resize_objects(file, size).map_err(inode_gone)?;
        range.finish(|inner| {
            inner.learn(&attr, lease, false);
            inner.on_truncated(size, lease, true);
            if lease == 0 {
                inner.size.hangs_on_locks(era);
            }
            // The MDT has set the modification time, which is later than that of any write so far.
            inner.news.mtime = ModifyTime::Told;
        });
        drop(turn);
        let (writers, has_objects) = {
            let inner = file.lock();
            (inner.users.writers, inner.layout.as_ref().is_some_and(|layout| layout.has_objects()))
        };
        if writers == 0 && has_objects {
            match self.tell_size(caller, file, size) {
                Ok(told) => attr = told,
                // The file was removed, or moved, after it was truncated.
                Err(failure) if failure.status() == Status::ENOENT => {}
                Err(failure) => return Err(failure),
            }
        }
        attr.size = size;
        self.nodes.learn(&attr, lease);
        Ok((attr, lease))
    }

    /// Makes the objects agree with a new size: all of them are truncated, or the one with the last byte is
    /// extended. The caller holds the file from that offset on.
    pub(crate) fn resize_objects(&self, file: &FileState, size: u64) -> FailureResult<()> {
        if size > 0 {
            // The byte behind the last one counts too: a program that truncates or extends a file to the end
            // of a component will continue behind it.
            self.requests.with_space(file.fid, || {
                self.layouts.use_layout_for_writing(file, size - 1, (size + 1).min(FILE_SIZE_MAX))
            })?;
        }
        // All objects, including those that other clients have had allocated since.
        let used = self.layouts.use_layout(file)?;
        let Some(layout) = used.with_objects() else { return Ok(()) };
        let sizes = || object_sizes(layout, size);
        let epochs: Vec<_> = sizes().map(|(s, _)| (s, self.requests.epoch_of(s.ost_index))).collect();
        self.write_back.discard(file, size, u64::MAX)?;
        loop {
            // Servers lock each object for itself: a write of another client could come between two of them.
            let several = sizes().nth(1).is_some();
            let shared = several && !self.lease.exclusive() && !file.is_grouped();
            let cover = shared.then(|| self.locks.cover_end(file, layout, size)).transpose()?;
            let lock = cover.as_ref().map_or_else(|| self.locks.server_lock(file), |cover| cover.io);
            self.objects.cut_objects(file.fid, layout, size, lock, file.charge(false))?;
            // Without the locks, what another client had written may have arrived later.
            if cover.is_none_or(|cover| cover.is_valid()) {
                break;
            }
        }
        let mut inner = file.lock();
        epochs.into_iter().for_each(|(stripe, epoch)| inner.mark_dirty(&stripe, epoch));
        let sized = sizes().filter(|(_, size)| *size > 0);
        sized.for_each(|(stripe, _)| inner.news.written.note(&stripe));
        Ok(())
    }

    fn tell_size(&self, caller: &Caller, file: &FileState, size: u64) -> FailureResult<Attr> {
        let known = self.sizes.size_blocks(file)?;
        let update = file.lock().update_to_tell(Some(KnownSize { size, ..known }));
        let written = file.lock().news.written.take();
        let exact = self.lease.exclusive();
        let request = MdsRequest::UpdateData { fid: file.fid, update, exact, written: written.clone() };
        let answer = self
            .requests
            .call(caller, file.fid, &request)
            .inspect_err(|_| file.lock().news.written.add(written));
        let answer = answer?;
        let lease = answer.lease;
        let attr = answer.attr()?;
        let mut inner = file.lock();
        inner.was_told(&update, known.changes);
        inner.learn(&attr, lease, false);
        drop(inner);
        Ok(attr)
    }

    /// Allocates, frees or zeroes `[offset, offset + len)` of an open file.
    ///
    /// # Errors
    /// `EBADF` if it is not open for writing; `EINVAL` for an empty range; `EFBIG`; the error of an OST.
    pub fn fallocate(
        &self,
        caller: &Caller,
        handle: u64,
        kind: FallocateKind,
        offset: u64,
        len: u64,
    ) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        if !open.writable() {
            return Err(Status::EBADF);
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_SIZE_MAX).ok_or(Status::EFBIG)?;
        if len == 0 {
            return Err(Status::EINVAL);
        }
        self.flocks.check_write(&open.file.fid, handle, None)?;
        let allocate = || self.allocate(caller, &open, kind, offset..end);
        self.requests.faults.edge_on("allocate", open.file.fid, allocate)
    }

    fn allocate(
        &self,
        caller: &Caller,
        open: &OpenFile,
        kind: FallocateKind,
        range: Range<u64>,
    ) -> FailureResult<()> {
        let file = &*open.file;
        let Range { start: offset, end } = range;
        if file.lock().privileged {
            self.drop_privileges_unless_allowed(caller, file.fid)?;
        }
        let grows = matches!(kind, FallocateKind::Allocate | FallocateKind::Zero);
        self.write_back.close_head(file, end)?;
        let who = Who::Open(open.handle);
        let (taken, ()) = file.take_range(who, Use::Exclusive, |_| (offset, end, ()))?;
        let used = match kind {
            FallocateKind::Punch => self.layouts.use_layout(file)?,
            _ => self
                .requests
                .with_space(file.fid, || self.layouts.use_layout_for_writing(file, offset, end))?,
        };
        let Some(layout) = used.layout() else { return Ok(()) };
        if grows && end > layout.end() {
            return Err(Status::ENODATA.into());
        }
        let epochs: Vec<_> = object_ranges(layout, offset, end)
            .map(|range| (range.stripe, self.requests.epoch_of(range.stripe.ost_index)))
            .collect();
        self.write_back.settle(file, offset, end)?;
        let outcome = self.requests.with_space(file.fid, || {
            let lock = self.locks.server_lock(file);
            let charge = file.charge(caller.uid == 0);
            self.requests.on_objects("allocate", || {
                object_ranges(layout, offset, end).map(|range| {
                    let (object, offset, len) = (range.stripe.object, range.start, range.end - range.start);
                    let written = range.stripe.written;
                    let charge = placed(charge, (file.fid, layout), &range.stripe);
                    (
                        range.stripe.ost_index,
                        OssRequest::Fallocate { object, kind, offset, len, lock, written, charge },
                    )
                })
            })
        });
        let (now, lease, era) = (now(), self.lease.number(), file.lock_era.load(Ordering::Acquire));
        let alone = lease != 0;
        taken.finish(|inner| {
            inner.ahead.invalidate(offset, end);
            inner.size.on_allocated();
            inner.news.data_changed = true;
            inner.news.mtime = ModifyTime::Here(now);
            for (stripe, epoch) in &epochs {
                inner.mark_dirty(stripe, *epoch);
                if outcome.is_ok() && kind != FallocateKind::Punch {
                    inner.news.written.note(stripe);
                }
            }
            match &outcome {
                Ok(_) if grows && alone => inner.size.note_lower_bound(end, lease, era),
                // The next operation requests the size again.
                Ok(_) if grows => inner.size.locks_say_nothing(),
                Ok(_) => {}
                Err(_) => inner.size.hangs_on(0),
            }
        });
        outcome.map(drop)
    }

    /// Returns the next byte of data, or the next hole, at or after `offset` of an open file. The end of the
    /// file is a hole.
    ///
    /// # Errors
    /// `ENXIO` if `offset` is at or behind the end, or no data follows.
    pub fn seek(&self, handle: u64, offset: u64, kind: SeekKind) -> StatusResult<u64> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("seek", open.file.fid, || {
            let file = &*open.file;
            if let Some(frozen) = file.frozen_by(&open) {
                return match (frozen.layout, offset < frozen.seen.size) {
                    (Some(layout), true) => {
                        let found = self.seek_layout(
                            &layout,
                            offset..frozen.seen.size,
                            kind,
                            self.locks.server_lock(file),
                        )?;
                        position(found, frozen.seen.size, kind)
                    }
                    (None, true) if kind == SeekKind::Hole => Ok(offset),
                    _ => Err(Status::ENXIO.into()),
                };
            }
            let size = self.sizes.size_up_to(file, u64::MAX)?;
            if offset >= size {
                return Err(Status::ENXIO.into());
            }
            let (range, ()) = file.take_range(Who::Open(open.handle), Use::Shared, |_| (offset, size, ()))?;
            let used = self.layouts.use_layout(file)?;
            let Some(layout) = used.layout() else {
                return if kind == SeekKind::Hole { Ok(offset) } else { Err(Status::ENXIO.into()) };
            };
            let found = self
                .write_back
                .settle(file, offset, size)
                .and_then(|()| self.seek_layout(layout, offset..size, kind, self.locks.server_lock(file)));
            drop(range);
            position(found?, size, kind)
        })
    }

    fn seek_layout(
        &self,
        layout: &Layout,
        Range { start: offset, end: size }: Range<u64>,
        kind: SeekKind,
        lock: IoLock,
    ) -> FailureResult<Option<u64>> {
        for component in &layout.components {
            if !component.touches(offset, size) {
                continue;
            }
            let from = offset.max(component.extent.start);
            let Some(math) = component.math() else {
                if kind == SeekKind::Hole {
                    return Ok(Some(from));
                }
                continue;
            };
            let mut best: Option<u64> = None;
            for (index, stripe) in component.objects.iter().enumerate() {
                let start = math.object_size(index as u16, from);
                if let Some(found) = self.seek_object(stripe, start, kind, lock)? {
                    let position = math.file_offset(index as u16, found).max(from);
                    best = Some(best.map_or(position, |best| best.min(position)));
                }
            }
            if let Some(position) = best.filter(|&position| within(component, position)) {
                return Ok(Some(position));
            }
        }
        Ok(None)
    }

    /// Finds data or a hole in one object; behind its end there is only a hole.
    fn seek_object(
        &self,
        stripe: &StripeObject,
        offset: u64,
        kind: SeekKind,
        lock: IoLock,
    ) -> FailureResult<Option<u64>> {
        let StripeObject { ost_index, object, written } = *stripe;
        let request = OssRequest::Seek { object, offset, kind, lock, written };
        match self.requests.on_object("seek", ost_index, &request) {
            Ok(OssReply::Position(position)) => Ok(Some(position)),
            Ok(_) => Err(Status::EPROTO.into()),
            Err(failure) if failure == Status::ENXIO => Ok((kind == SeekKind::Hole).then_some(offset)),
            Err(status) => Err(status),
        }
    }

    /// Copies up to `len` bytes between two open files (or within one) and returns how many were copied.
    ///
    /// # Errors
    /// `EINVAL` if the ranges overlap in one file; `EBADF`; the error of reading or writing the first piece.
    pub fn copy_range(
        &self,
        caller: &Caller,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> StatusResult<u64> {
        self.requests.faults.edge("copy range", || {
            let (source, target) = (self.handles.file(from.0)?, self.handles.file(to.0)?);
            if !source.flags.contains(OpenFlags::READ) || !target.writable() {
                return Err(Status::EBADF.into());
            }
            self.flocks.check_write(&target.file.fid, to.0, None)?;
            let (mut from, mut to) = (from.1, to.1);
            let len =
                len.min(self.sizes.size_up_to(&source.file, from.saturating_add(len))?.saturating_sub(from));
            if source.file.fid == target.file.fid
                && from < to.saturating_add(len)
                && to < from.saturating_add(len)
            {
                return Err(Status::EINVAL.into());
            }
            let len = len.min(COPY_MAX);
            let mut buffer = vec![0; COPY_CHUNK.min(len as usize)];
            if target.file.lock().privileged {
                self.drop_privileges_unless_allowed(caller, target.file.fid)?;
            }
            let options = WriteOptions::default();
            let mut copied = 0;
            while copied < len && !(copied > 0 && nacre_env::interrupted()) {
                let want = buffer.len().min((len - copied) as usize);
                let piece = (|| {
                    let got = self.read_open(&source, from, &mut buffer[..want], Who::Open(source.handle))?;
                    self.write_open(caller, &target, to, &buffer[..got], options)
                })();
                match piece {
                    Ok(0) => break,
                    Ok(bytes) => {
                        (from, to, copied) = (from + bytes as u64, to + bytes as u64, copied + bytes as u64);
                    }
                    Err(status) if copied == 0 => return Err(status),
                    Err(_) => break,
                }
            }
            Ok(copied)
        })
    }
}

/// Returns the result of a seek that has found this position in a file of that size.
fn position(found: Option<u64>, size: u64, kind: SeekKind) -> FailureResult<u64> {
    match (found, kind) {
        (Some(position), _) if position < size => Ok(position),
        (_, SeekKind::Hole) => Ok(size),
        (_, SeekKind::Data) => Err(Status::ENXIO.into()),
    }
}

fn within(component: &Component, position: u64) -> bool {
    component.extent.contains(position)
}
