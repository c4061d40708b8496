//! What a program says of data that it will or will not read.

use crate::data::Data;
use crate::data_locks::cover::LockedAhead;
use crate::file::OpenFile;
use nacre_layout::object_ranges;
use nacre_lock::Mode;
use nacre_types::{Fid, Status, StatusResult};
use nacre_wire::oss::{Advice, OssRequest};
use std::sync::atomic::Ordering;

impl OpenFile {
    /// See [`Data::expand_locks`].
    pub(crate) fn expand_locks(&self, expand: bool) {
        match (self.unexpanded.swap(!expand, Ordering::AcqRel), !expand) {
            (false, true) => drop(self.file.unexpanded.fetch_add(1, Ordering::AcqRel)),
            (true, false) => drop(self.file.unexpanded.fetch_sub(1, Ordering::AcqRel)),
            _ => {}
        }
    }
}

impl Data {
    /// Tells the OSTs of a file what will become of `[start, end)`. What lies behind the end of the file is left out.
    ///
    /// # Errors
    /// `EINVAL` for an empty range and for what is no regular file; what an OST answers.
    pub fn advise(&self, fid: Fid, advice: Advice, start: u64, end: u64) -> StatusResult<()> {
        let attr = self.inodes.getattr(fid)?;
        if start >= end || !attr.is_regular() {
            return Err(Status::EINVAL);
        }
        let pin = self.nodes.pin(fid);
        let used = self.layouts.use_layout(&pin.file)?;
        let Some(layout) = used.layout() else { return Ok(()) };
        // What is on an MDT is small, and in its memory as its store decides.
        let ranges =
            object_ranges(layout, start, end.min(attr.size)).filter(|range| !range.stripe.is_on_mdt());
        let requests = ranges.map(|range| {
            let (object, offset, len) = (range.stripe.object, range.start, range.end - range.start);
            (range.stripe.ost_index, OssRequest::Advise { object, offset, len, advice })
        });
        self.requests.on_objects(requests).map(drop)
    }

    /// Says whether locks for what an open reads and writes may be on more than that, so that what comes next needs no other. Without
    /// it clients that write by turns do not take them from each other. It counts for all opens of the file here, as they share locks,
    /// until the last open that said so is closed or says otherwise.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn expand_locks(&self, handle: u64, expand: bool) -> StatusResult<()> {
        self.handles.file(handle)?.expand_locks(expand);
        Ok(())
    }

    /// Asks for locks to read or write `[start, end)` of an open file before they are needed, and for no byte more, so that clients
    /// that write by turns do not take them from each other. With `no_wait` only for what nobody has. A file that is open for writing
    /// gets its objects in that range first, since locks are on objects. A file that is in a group needs no other lock.
    ///
    /// # Errors
    /// `EINVAL` for an empty range and for what is no regular file; `EINTR`; what the MDT or an OST answers.
    pub fn lock_ahead(
        &self,
        handle: u64,
        (start, end): (u64, u64),
        write: bool,
        no_wait: bool,
    ) -> StatusResult<LockedAhead> {
        let open = self.handles.file(handle).map_err(|_| Status::EINVAL)?;
        if start >= end {
            return Err(Status::EINVAL);
        }
        let file = &*open.file;
        if file.is_grouped() {
            return Ok(LockedAhead::Asked);
        }
        let used = if open.writable() {
            // Held-back data decides where the head of the file lies.
            self.write_back.settle(file, 0, u64::MAX)?;
            self.requests.with_space(file.fid, || self.layouts.use_layout_for_writing(file, start, end))?
        } else {
            self.layouts.use_layout(file)?
        };
        let Some(layout) = used.layout().filter(|layout| layout.has_objects()) else {
            return Ok(LockedAhead::Asked);
        };
        // A lock to write may be asked for through a read-only open: the caller's permissions decide, as for a later open.
        let _acting =
            (write && !open.writable()).then(|| self.requests.capabilities.act_for(file.fid, &open.opener));
        // Pages of a file that is written may be stored to, which takes a lock for that.
        let mode = if write || file.lock().users.writers > 0 { Mode::Pw } else { Mode::Pr };
        let found = self.locks.lock_exactly(file, layout, (start, end), mode, no_wait)?;
        // The lease of a client that is alone is a lock on all bytes of the files that it has data of.
        let is_leased =
            found == LockedAhead::Asked && self.lease.exclusive() && self.inodes.getattr(file.fid)?.size > 0;
        Ok(if is_leased { LockedAhead::Different } else { found })
    }
}
