//! Writing.

use crate::caller::Caller;
use crate::client::Client;
use crate::file::{FileState, OpenFile};
use crate::io::dirty::LARGE_BYTES;
use crate::io::ranges::Use;
use crate::ops::lock::AppendLock;
use nacre_layout::{Chunk, Layout, chunks};
use nacre_rpc::IoCall;
use nacre_types::limits::FILE_SIZE_MAX;
use nacre_types::perm::{self, Verdict};
use nacre_types::{Caps, Fid, SetAttr, SetAttrValid, Status, StatusResult, TransNo};
use nacre_wire::lock::IoLock;
use nacre_wire::mds::MdsRequest;
use nacre_wire::oss::{Bulk, OssReply, OssRequest};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How a write is done, beside where.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteOptions {
    /// At the end of the file, wherever that is; the offset does not count.
    pub append: bool,
    /// Durable when it returns.
    pub sync: bool,
    /// Set-id bits and capabilities are to be dropped.
    pub kill_priv: bool,
    /// The kernel writes back a page of its cache.
    pub from_cache: bool,
    /// Around all caches (`O_DIRECT`): on its OSTs when it returns.
    pub direct: bool,
}

/// An object that was written, with its OST's epoch before that.
type Touched = (u16, Fid, u64);

/// Where [`Client::write_layout`] notes what it wrote: usually one object, which then costs no allocation.
#[derive(Default)]
struct Notes {
    one: [Touched; 1],
    many: Vec<Touched>,
}

impl Client {
    /// Writes `data` to open file `handle` at `offset` and says how much was written: all, unless something failed
    /// after a part. The data is on its OSTs when this returns, or soon after while this client is the only one; durable
    /// only with [`WriteOptions::sync`].
    ///
    /// # Errors
    /// `EBADF`; `EFBIG` beyond the largest size; `EINTR`; what an OST answers, when nothing could be written.
    pub fn write(
        &self,
        caller: &Caller,
        handle: u64,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> StatusResult<usize> {
        let open = self.handles.file(handle)?;
        if !open.writable() {
            return Err(Status::EBADF);
        }
        self.write_open(caller, &open, offset, data, options)
    }

    pub(crate) fn write_open(
        &self,
        caller: &Caller,
        open: &OpenFile,
        offset: u64,
        data: &[u8],
        options: WriteOptions,
    ) -> StatusResult<usize> {
        let file = &*open.file;
        if options.kill_priv && file.lock().privileged {
            self.drop_privileges(caller, file.fid)?;
        }
        let appending = if options.append { self.begin_append(file)? } else { None };
        let len = data.len() as u64;
        let (range, (at, layout, may_cache)) = file.take_range(Use::Exclusive, |inner| {
            let at = if options.append { inner.size } else { offset };
            // An append owns everything from the end on, so that two of them never meet.
            let end = if options.append { u64::MAX } else { at.saturating_add(len) };
            let ready = |layout: &&Arc<Layout>| layout.is_instantiated(at, at.saturating_add(len));
            let may_cache = self.may_hold_back(inner, at, at.saturating_add(len));
            (at, end, (at, inner.layout.as_ref().filter(ready).cloned(), may_cache))
        })?;
        if options.append && appending.is_none() && !self.lease.exclusive() {
            // Somebody came. He is let in after appends that have their range, see `release_lease`; this one has to ask.
            drop(range);
            return self.write_open(caller, open, offset, data, options);
        }
        let len = len.min(FILE_SIZE_MAX.saturating_sub(at));
        if len == 0 {
            return if data.is_empty() { Ok(0) } else { Err(Status::EFBIG) };
        }
        let data = &data[..len as usize];
        let layout = match layout {
            Some(layout) => layout,
            None => self.with_space(file.fid, || self.layout_for_writing(file, at, at + len))?,
        };
        let sync = options.sync || open.sync;
        let wants_cache = self.wants_cache(open, &layout, (at, len), options) && may_cache && !sync;
        let mut notes = Notes::default();
        let (outcome, touched) = match wants_cache && self.cache_write(&open.file, &layout, at, data) {
            true => (Ok(data.len()), &[][..]),
            false => self.write_through(file, &layout, (at, data), sync, &mut notes),
        };
        let now = self.now();
        let has_cache = range.finish(|inner| {
            let written = *outcome.as_ref().unwrap_or(&0) as u64;
            if written > 0 {
                inner.on_written(at, at + written, now);
            }
            if written < len {
                inner.on_written_in_part(at, at + len);
            }
            if !sync || written < len {
                touched.iter().for_each(|&(ost, object, epoch)| inner.mark_dirty(ost, object, epoch));
            }
            inner.cached
        });
        let written = outcome?;
        if has_cache {
            self.drop_pages(open, options, at, written as u64);
        }
        if sync {
            self.commit_file(file)?;
        }
        Ok(written)
    }

    /// After a write around the kernel's cache: a read through the cache may have fetched the old data meanwhile.
    fn drop_pages(&self, open: &OpenFile, options: WriteOptions, at: u64, len: u64) {
        // The pages of a write through the cache are locked until it is answered, and hold the new data anyway.
        let around = !options.from_cache && !open.cached.load(Ordering::Relaxed);
        if around && let Some(kernel) = self.kernel.get() {
            kernel.drop_data(open.file.node, at, len);
        }
    }

    /// Keeps appends of other clients away, if there are others, and finds the end of the file. Alone, the range that an
    /// append takes keeps this client's own apart.
    fn begin_append(&self, file: &FileState) -> StatusResult<Option<AppendLock<'_>>> {
        let held = if self.lease.exclusive() { None } else { Some(self.lock_appends(file.fid)?) };
        self.size_up_to(file, u64::MAX)?;
        Ok(held)
    }

    /// Drops set-id bits and capabilities because somebody without rights to them changes the data.
    pub(crate) fn drop_privileges(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        let valid = SetAttrValid::KILL_PRIV | SetAttrValid::OPEN_FOR_WRITE;
        let request = MdsRequest::SetAttr { fid, set: SetAttr { valid, ..SetAttr::default() } };
        let answer = self.call(caller, fid, &request)?;
        let lease = answer.lease;
        self.note(&answer.attr()?, lease);
        self.mode_changed(fid);
        Ok(())
    }

    /// As [`Client::drop_privileges`] where the kernel does not say whether the caller may keep them.
    pub(crate) fn drop_privileges_unless_allowed(&self, caller: &Caller, fid: Fid) -> StatusResult<()> {
        match perm::capable(&caller.full_cred(), Caps::FSETID) {
            Verdict::Granted => Ok(()),
            _ => self.drop_privileges(caller, fid),
        }
    }

    /// The mode was changed by an operation whose answer does not carry it: the kernel has an old one.
    pub(crate) fn mode_changed(&self, fid: Fid) {
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_attributes(fid.inode_number());
        }
    }

    /// Runs `attempt` again if it finds no space, once the space of removed files has come back.
    pub(crate) fn with_space<R>(
        &self,
        fid: Fid,
        mut attempt: impl FnMut() -> StatusResult<R>,
    ) -> StatusResult<R> {
        match attempt() {
            Err(Status::ENOSPC) => {
                self.call_system(fid, &MdsRequest::Commit { upto: TransNo(u64::MAX) })?;
                attempt()
            }
            outcome => outcome,
        }
    }

    /// Writes to the objects, after older data of the same bytes, which must not arrive later.
    fn write_through<'t>(
        &self,
        file: &FileState,
        layout: &Layout,
        (at, data): (u64, &[u8]),
        sync: bool,
        notes: &'t mut Notes,
    ) -> (StatusResult<usize>, &'t [Touched]) {
        let len = data.len() as u64;
        if let Err(status) = self.settle(file, at, at + len) {
            return (Err(status), &[]);
        }
        let begin = (len >= LARGE_BYTES && !sync).then(Instant::now);
        let written = self.write_layout(file.fid, layout, (at, data), sync, notes);
        if let Some(begin) = begin {
            self.dirty.pace.note(len, begin.elapsed());
        }
        written
    }

    /// Writes `data` at an offset; gives the bytes that arrived without a gap, and the objects that were written.
    fn write_layout<'t>(
        &self,
        fid: Fid,
        layout: &Layout,
        (offset, data): (u64, &[u8]),
        sync: bool,
        notes: &'t mut Notes,
    ) -> (StatusResult<usize>, &'t [Touched]) {
        let Notes { one, many } = notes;
        let mut parts = chunks(layout, offset, data.len() as u64);
        match (parts.next(), parts.next()) {
            (Some(chunk), None) => {
                let Some(stripe) = chunk.object else { return (Err(Status::EIO), &[]) };
                one[0] = (stripe.ost_index, stripe.object, self.epoch_of(stripe.ost_index));
                // Durable writes stay whole: several would be several flushes of a disk.
                let pieces = if sync { None } else { self.divided(&chunk) };
                let outcome = self.with_space(fid, || match &pieces {
                    Some(pieces) => self.write_chunks(pieces, data, sync),
                    None => self.write_chunk(&chunk, data, sync),
                });
                (outcome, one)
            }
            (first, second) => {
                let parts: Vec<Chunk> = first.into_iter().chain(second).chain(parts).collect();
                for stripe in parts.iter().filter_map(|chunk| chunk.object) {
                    if !many.iter().any(|known: &Touched| known.1 == stripe.object) {
                        many.push((stripe.ost_index, stripe.object, self.epoch_of(stripe.ost_index)));
                    }
                }
                (self.with_space(fid, || self.write_chunks(&parts, data, sync)), many)
            }
        }
    }

    fn write_chunk(&self, chunk: &Chunk, data: &[u8], sync: bool) -> StatusResult<usize> {
        let stripe = chunk.object.ok_or(Status::EIO)?;
        let request = OssRequest::Write {
            object: stripe.object,
            offset: chunk.object_offset,
            sync,
            granted: false,
            lock: IoLock::Lease,
            incarnation: 0,
        };
        let data = &data[..chunk.len as usize];
        written(self.ost(stripe.ost_index)?.call(&request, Bulk::Send(data))?)
    }

    fn write_chunks(&self, parts: &[Chunk], data: &[u8], sync: bool) -> StatusResult<usize> {
        let mut calls = Vec::with_capacity(parts.len());
        let mut rest = data;
        for chunk in parts {
            let (mine, after) = rest.split_at(chunk.len as usize);
            rest = after;
            let stripe = chunk.object.ok_or(Status::EIO)?;
            calls.push(IoCall {
                endpoint: self.ost(stripe.ost_index)?,
                request: OssRequest::Write {
                    object: stripe.object,
                    offset: chunk.object_offset,
                    sync,
                    granted: false,
                    lock: IoLock::Lease,
                    incarnation: 0,
                },
                bulk: Bulk::Send(mine),
            });
        }
        let mut total = 0;
        for (reply, chunk) in self.run_calls(calls, data.len() as u64).into_iter().zip(parts) {
            match reply.and_then(written) {
                Ok(bytes) if bytes as u64 == chunk.len => total += bytes,
                Ok(bytes) => return Ok(total + bytes),
                Err(status) if total == 0 => return Err(status),
                Err(_) => break,
            }
        }
        Ok(total)
    }

    /// Makes durable what the MDT knows of a file.
    pub(crate) fn commit_file(&self, file: &FileState) -> StatusResult<()> {
        let transno = file.lock().transno;
        self.commit(file.fid, transno)
    }
}

/// How much an OST says it has written.
pub(crate) fn written(reply: OssReply) -> StatusResult<usize> {
    match reply {
        OssReply::Written(bytes) => Ok(bytes as usize),
        _ => Err(Status::EPROTO),
    }
}
