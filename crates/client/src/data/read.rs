//! Reads, and advice of programs about data that they will or will not use.

use crate::data::Data;
use crate::data_locks::cover::{Fill, LockedAhead, Want};
use crate::file::folios::Pages;
use crate::file::group::Who;
use crate::file::ranges::Use;
use crate::file::{FileInner, OpenFile, now};
use crate::objects::transfer::ReadHow;
use crate::sizes::Read;
use crate::validity::Validity;
use nacre_layout::{Layout, object_ranges};
use nacre_lock::Mode;
use nacre_types::{Explain, Failure, FailureResult, Fid, Status, StatusResult};
use nacre_wire::lock::IoLock;
use nacre_wire::oss::{Advice, OssRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A reader counts as sequential if it continues within this distance from where it stopped: the kernel's
/// read-ahead sends several requests at once, and they arrive in any order.
const SEQUENTIAL_SLACK: u64 = 2 << 20;
/// Bytes read sequentially from which on reads carry the read-ahead hint.
const SEQUENTIAL_FROM: u64 = 256 << 10;
/// How often a read is repeated because its locks were lost meanwhile.
const ATTEMPTS: usize = 8;
/// How often a read is made while the size of the file changes: one that finds a file growing all the time ends.
const SIZES: usize = 4;

/// The origin of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reader {
    /// A program, which waits for groups.
    Program,
    /// A program that does not wait for a group of this mount that has the file (`O_NONBLOCK`): `EAGAIN`.
    Hurried,
    /// The kernel, for pages that it caches, and keeps locked until the reply. `EAGAIN` if several pages
    /// cannot be served together at the moment, but would be one by one.
    Pages,
}

/// Known state of the file during a read.
#[derive(Clone, Copy)]
struct Known {
    /// Size of the file, in bytes.
    size: u64,
    /// Lock that excludes other clients.
    lock: IoLock,
    /// True if the range of the read is held.
    has_range: bool,
}

impl Data {
    /// Reads from open file `handle` at `offset` into `buffer`; returns the number of bytes, fewer than
    /// `buffer` holds only at the end of the file.
    ///
    /// # Errors
    /// `EBADF`; `EINTR`; the error of an OST, when nothing could be read; `EAGAIN` as for [`Reader`].
    pub fn read(&self, handle: u64, offset: u64, buffer: &mut [u8], reader: Reader) -> StatusResult<usize> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("read", open.file.fid, || {
            let who = match reader {
                Reader::Program => Who::Open(open.handle),
                Reader::Hurried => Who::Hurried(open.handle),
                Reader::Pages => Who::Pages,
            };
            self.read_open(&open, offset, buffer, who)
        })
    }

    pub(crate) fn read_open(
        &self,
        open: &OpenFile,
        offset: u64,
        buffer: &mut [u8],
        who: Who,
    ) -> FailureResult<usize> {
        let for_pages = who == Who::Pages;
        if let Some(frozen) = open.file.frozen_by(open) {
            let lock = self.locks.server_lock(&open.file);
            let known = Known { size: frozen.seen.size, lock, has_range: false };
            return self.read_known(open, frozen.layout.as_ref(), known, offset, buffer);
        }
        let is_large = !for_pages && self.tunables.is_large_read(buffer.len() as u64);
        if !is_large && open.data.is_none() && !open.file.is_in_windows(offset, buffer.len() as u64) {
            self.read_ahead.plan_ahead(open, offset, buffer.len() as u64);
        }
        let outcome = match self.read_alone(open, offset, buffer) {
            Ok(None) => self.read_shared(open, offset, buffer, who),
            Ok(Some(bytes)) => Ok(bytes),
            Err(failure) => Err(failure),
        };
        outcome.explain(|context| context.action("read").fid(open.file.fid).offset(offset))
    }

    /// Reads as the only client; `None` if it is not.
    fn read_alone(&self, open: &OpenFile, offset: u64, buffer: &mut [u8]) -> FailureResult<Option<usize>> {
        if !self.lease.exclusive() || open.file.is_grouped() {
            return Ok(None);
        }
        let (file, who) = (&*open.file, Who::Open(open.handle));
        let end = offset.saturating_add(buffer.len() as u64);
        let take = || {
            let lease = self.lease.number();
            let (validity, era) = (Validity::Lease(lease), file.lock_era.load(Ordering::Acquire));
            file.take_range(who, Use::Shared, |inner| {
                let sure = inner.size.is_of(lease) || end <= inner.size.lower_bound(lease, era);
                let layout = Some(inner.layout.clone()).filter(|_| inner.layout_validity == validity);
                (offset, end, (inner.size.bytes, sure, layout))
            })
        };
        let (mut range, (mut size, sure, mut layout)) = take()?;
        let lacks = |layout: &Arc<Layout>| !layout.is_instantiated(offset.min(size), end.min(size));
        if !sure || layout.iter().flatten().any(lacks) {
            drop(range);
            self.sizes.refresh_size_to(file, end)?;
            (range, (size, _, layout)) = take()?;
        }
        let used = match layout {
            Some(_) => None,
            None => Some(self.layouts.use_layout(file)?),
        };
        let layout = used.as_ref().map_or(layout.flatten(), |used| used.layout().cloned());
        // Checked only under the range: the end of the lease waits for operations that have theirs.
        if !self.lease.exclusive() || file.is_grouped() {
            return Ok(None);
        }
        let len = self.read_known(
            open,
            layout.as_ref(),
            Known { size, lock: IoLock::Lease, has_range: true },
            offset,
            buffer,
        )?;
        range.finish(|inner| self.note_read(open, inner, len));
        Ok(Some(len))
    }

    /// Reads under locks, while there are other clients.
    fn read_shared(&self, open: &OpenFile, offset: u64, buffer: &mut [u8], who: Who) -> FailureResult<usize> {
        let for_pages = who == Who::Pages;
        let file = &*open.file;
        let end = offset.saturating_add(buffer.len() as u64);
        for attempt in 0..ATTEMPTS {
            // Each attempt waits for locks, and so begins a request of its own.
            let fill = for_pages.then(|| Fill::begin(file, offset..end, Pages::Touched));
            let urgent = fill.as_ref().is_some_and(|fill| fill.urgent);
            let range = if urgent {
                file.try_range(offset, end, Use::Shared)
            } else {
                Some(file.take_range(who, Use::Shared, |_| (offset, end, ()))?.0)
            };
            // An urgent request waits for nothing, and its pages are dropped again before the layout lock is
            // cancelled.
            let old = if urgent { file.lock().layout.clone() } else { None };
            let used = if old.is_some() { None } else { Some(self.layouts.use_layout(file)?) };
            let layout = old.or_else(|| used.as_ref().and_then(|used| used.layout().cloned()));
            let Some(layout) = layout.filter(|layout| layout.has_objects()) else { return Ok(0) };
            // Pages that may be mapped and stored to need a write lock.
            let stored_to = for_pages && !urgent && file.lock().users.writers > 0;
            let mode = if stored_to { Mode::Pw } else { Mode::Pr };
            let want = match (urgent, for_pages) {
                (true, _) => Want::Now,
                (false, true) => Want::Lock,
                (false, false) => Want::LockOrServer,
            };
            let Some(cover) = self.locks.cover(file, &layout, offset..end, mode, want)? else {
                return Err(Status::EAGAIN.into());
            };
            if let Some(fill) = &fill {
                fill.goes_on();
            }
            let size = self.sizes.size_under(file, &layout, &cover, end)?;
            // There is never data in a component without objects, so other clients have had objects allocated
            // since, which are not locked yet.
            if !layout.is_instantiated(offset.min(size), end.min(size)) && !urgent {
                continue;
            }
            let known = Known { size, lock: cover.io, has_range: range.is_some() };
            let len = self.read_known(open, Some(&layout), known, offset, buffer);
            if !cover.is_valid() && !urgent {
                continue;
            }
            let len = len?;
            let read = Read { lock: cover.io, ends_early: size < end, data: &buffer[..len] };
            if attempt + 1 < SIZES
                && !urgent
                && self.sizes.is_of_several_moments(file, &layout, read)
                && self.sizes.size_under(file, &layout, &cover, end)? != size
            {
                continue;
            }
            match range {
                Some(range) => range.finish(|inner| self.note_read(open, inner, len)),
                None => self.note_read(open, &mut file.lock(), len),
            }
            return Ok(len);
        }
        Err(Status::EIO).explain(|context| context.cause("its locks were lost each time it began again"))
    }

    fn note_read(&self, open: &OpenFile, inner: &mut FileInner, len: usize) {
        if self.config.relatime && len > 0 && !open.keeps_access_time.load(Ordering::Relaxed) {
            inner.on_read(now);
        }
    }

    /// Reads the part before the end of the file, which is known; returns its length.
    fn read_known(
        &self,
        open: &OpenFile,
        layout: Option<&Arc<Layout>>,
        Known { size, lock, has_range }: Known,
        offset: u64,
        buffer: &mut [u8],
    ) -> FailureResult<usize> {
        if offset >= size || buffer.is_empty() {
            return Ok(0);
        }
        let len = (size - offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..len];
        match layout {
            Some(layout) if layout.has_objects() => {
                if has_range
                    && lock == IoLock::Lease
                    && open.reads_opened(self.lease.number(), offset, buffer)
                {
                    return Ok(len);
                }
                if has_range && open.file.dirty.read(layout, offset, buffer) {
                    return Ok(len);
                }
                self.write_back.settle(&open.file, offset, offset + len as u64)?;
                let done = self.read_ahead.take_ahead(open, layout, offset, buffer)?;
                if done < len {
                    let hint = self.read_ahead_hint(open, offset, len as u64);
                    let rest = &mut buffer[done..];
                    let how = ReadHow { ahead: hint, lock };
                    self.objects.read_layout(layout, offset + done as u64, rest, how)?;
                }
            }
            _ => buffer.fill(0),
        }
        Ok(len)
    }

    /// Returns how many bytes beyond this read the OSTs are to have ready. Requested in steps, so that most
    /// requests carry no hint.
    fn read_ahead_hint(&self, open: &OpenFile, offset: u64, len: u64) -> u32 {
        let window = u64::from(self.config.read_ahead_bytes_max);
        let expected = open.next_read.load(Ordering::Relaxed);
        let end = offset + len;
        if offset.abs_diff(expected) > SEQUENTIAL_SLACK || (expected == 0 && offset != 0) {
            open.next_read.store(end, Ordering::Relaxed);
            open.run.store(0, Ordering::Relaxed);
            open.ready_to.store(0, Ordering::Relaxed);
            return 0;
        }
        open.next_read.fetch_max(end, Ordering::Relaxed);
        let run = open.run.fetch_add(len, Ordering::Relaxed) + len;
        let wanted = window.min(run);
        if run < SEQUENTIAL_FROM || open.ready_to.load(Ordering::Relaxed) >= end + wanted / 2 {
            return 0;
        }
        open.ready_to.store(end + wanted, Ordering::Relaxed);
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }

    /// Advises the OSTs of a file how a program will use `[start, end)`. The part behind the end of the file
    /// is left out.
    ///
    /// # Errors
    /// `EINVAL` for an empty range and for an inode that is no regular file; the error of an OST.
    pub fn advise(&self, fid: Fid, advice: Advice, start: u64, end: u64) -> StatusResult<()> {
        self.requests.faults.edge("advise", || {
            let attr = self.inodes.getattr(fid).map_err(Failure::logged)?;
            if start >= end || !attr.is_regular() {
                return Err(Status::EINVAL.into());
            }
            let pin = self.nodes.pin(fid);
            let used = self.layouts.use_layout(&pin.file)?;
            let Some(layout) = used.layout() else { return Ok(()) };
            // Data on an MDT is small, and cached as its store decides.
            let ranges =
                || object_ranges(layout, start, end.min(attr.size)).filter(|range| !range.stripe.is_on_mdt());
            self.requests
                .on_objects("advise", || {
                    ranges().map(|range| {
                        let (object, offset, len) =
                            (range.stripe.object, range.start, range.end - range.start);
                        (range.stripe.ost_index, OssRequest::Advise { object, offset, len, advice })
                    })
                })
                .map(drop)
        })
    }

    /// Sets whether locks for the reads and writes of an open may be expanded, so that later operations need
    /// no other lock. Without expansion, clients that write interleaved ranges do not revoke each other's
    /// locks. It applies to all opens of the file here, as they share locks, until the last open that
    /// switched expansion off is closed or switches it on again.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn expand_locks(&self, handle: u64, expand: bool) -> StatusResult<()> {
        self.handles.file(handle)?.expand_locks(expand);
        Ok(())
    }

    /// Requests locks to read or write `[start, end)` of an open file before they are needed, and for exactly
    /// these bytes, so that clients that write interleaved ranges do not revoke each other's locks. With
    /// `no_wait` only where there is no conflicting lock. A file that is open for writing gets its objects in
    /// that range first, since locks are on objects. A file that is in a group needs no other lock.
    ///
    /// # Errors
    /// `EINVAL` for an empty range and for an inode that is no regular file; `EINTR`; the error of the MDT or
    /// an OST.
    pub fn lock_ahead(
        &self,
        handle: u64,
        (start, end): (u64, u64),
        write: bool,
        no_wait: bool,
    ) -> StatusResult<LockedAhead> {
        self.requests.faults.edge("lock ahead", || {
            let open = self.handles.file(handle).map_err(|_| Status::EINVAL)?;
            if start >= end {
                return Err(Status::EINVAL.into());
            }
            let file = &*open.file;
            if file.is_grouped() {
                return Ok(LockedAhead::Asked);
            }
            let used = if open.writable() {
                // Held-back data decides where the head of the file is stored.
                self.write_back.settle(file, 0, u64::MAX)?;
                self.requests
                    .with_space(file.fid, || self.layouts.use_layout_for_writing(file, start, end))?
            } else {
                self.layouts.use_layout(file)?
            };
            let Some(layout) = used.layout().filter(|layout| layout.has_objects()) else {
                return Ok(LockedAhead::Asked);
            };
            // A write lock may be requested through a read-only open: the caller's permissions decide, as for
            // a later open.
            let _acting = (write && !open.writable())
                .then(|| self.requests.capabilities.act_for(file.fid, &open.opener));
            // Pages of a file that is written may be stored to, which needs a write lock.
            let mode = if write || file.lock().users.writers > 0 { Mode::Pw } else { Mode::Pr };
            let found = self.locks.lock_exactly(file, layout, start..end, mode, no_wait)?;
            // The exclusive lease of a client counts as a lock on all bytes of the files that it has data of.
            let is_leased = found == LockedAhead::Asked
                && self.lease.exclusive()
                && self.inodes.getattr(file.fid).map_err(Failure::logged)?.size > 0;
            Ok(if is_leased { LockedAhead::Different } else { found })
        })
    }
}
