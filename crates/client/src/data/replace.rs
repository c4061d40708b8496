//! Replacement of a file's objects: layouts exchanged, components deleted; versions of data, and leases,
//! which show whether a file was left alone meanwhile.
//!
//! With other clients the MDT revokes all locks on the layout, including this client's
//! ([`crate::locks::layouts`]). With an exclusive lease there are none, so this client takes the range of the
//! whole file and drops the known layout ([`Data::replacing`]).
//!
//! A frozen file ([`LeaseKind::Frozen`]) is read through the handle that froze it, and all other operations
//! wait: those of this mount for their byte ranges, those of other mounts for the layout, on which the MDT
//! grants no locks.

use crate::caller::Caller;
use crate::data::Data;
use crate::file::guards::RangeGuard;
use crate::file::ranges::Use;
use crate::file::written::check_there;
use crate::file::{FileState, Frozen, OpenFile};
use nacre_layout::Layout;
use nacre_lock::Mode;
use nacre_types::{Explain, Failure, FailureResult, Fid, Status, StatusResult, perm};
use nacre_wire::mds::MdsRequest;
use nacre_wire::oss::{OssReply, OssRequest};
use std::sync::Arc;

/// What is written back before the version of a file's data is read (`lfs data_version -n`, `-r`, `-w`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionFlush {
    /// Nothing: the version of the data on the OSTs.
    Nothing,
    /// Held-back data of all clients.
    Dirty,
    /// Held-back data of all clients, which also drop everything they cache of the file.
    Everything,
}

/// Conditions of an exchange of layouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapConditions {
    /// Expected versions of the data of both files.
    pub versions: (Option<u64>, Option<u64>),
    /// True if times stay with the files.
    pub keep_times: bool,
    /// Handle of the first file whose lease must not be broken.
    pub lease: Option<u64>,
}

impl Data {
    /// Returns the version of an open file's data: another number after each change, 0 if there is none.
    ///
    /// # Errors
    /// `EBADF`; `EINTR`; the error of an OST.
    pub fn data_version(&self, handle: u64, flush: VersionFlush) -> StatusResult<u64> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("data version", open.file.fid, || {
            let file = &*open.file;
            if let Some(frozen) = file.frozen_by(&open) {
                return frozen.layout.as_ref().map_or(Ok(0), |layout| self.version_of(layout));
            }
            self.write_back.settle(file, 0, u64::MAX)?;
            let used = self.layouts.use_layout(file)?;
            let Some(layout) = used.with_objects() else { return Ok(0) };
            let mode = match flush {
                VersionFlush::Nothing => None,
                VersionFlush::Dirty => Some(Mode::Pr),
                VersionFlush::Everything => Some(Mode::Pw),
            };
            let _cover = match mode.filter(|_| !self.lease.exclusive()) {
                Some(mode) => Some(self.locks.cover_whole(file, layout, mode)?),
                None => None,
            };
            self.version_of(layout)
        })
    }

    /// Returns the size of an open file.
    ///
    /// # Errors
    /// `EBADF`; the error of an OST.
    pub fn size_of(&self, handle: u64) -> StatusResult<u64> {
        let open = self.handles.file(handle)?;
        self.requests
            .faults
            .edge_on("get the size", open.file.fid, || self.sizes.size_up_to(&open.file, u64::MAX))
    }

    /// Copies `(offset, len)` of an open file to the same place in another one that this mount has open for
    /// writing; returns the bytes copied. While a file is frozen, system calls that copy would wait for
    /// writes, which wait themselves.
    ///
    /// # Errors
    /// `EBADF` if one of them is not open; `EACCES`; as for [`Data::copy_range`].
    pub fn copy_to(
        &self,
        caller: &Caller,
        source: u64,
        target: Fid,
        (offset, len): (u64, u64),
    ) -> StatusResult<u64> {
        self.requests.faults.edge("copy", || {
            let is_target = |open: &Arc<OpenFile>| open.file.fid == target && open.writable();
            let open = self.handles.files().into_iter().find(is_target).ok_or(Status::EBADF)?;
            // The handle may belong to another program.
            self.requests.call(caller, target, &MdsRequest::Access { fid: target, mask: perm::WRITE })?;
            let copied = self.copy_range(caller, (source, offset), (open.handle.0, offset), len);
            copied.map_err(Failure::logged)
        })
    }

    fn version_of(&self, layout: &Layout) -> FailureResult<u64> {
        let requests = || {
            layout
                .objects()
                .map(|stripe| (stripe.ost_index, OssRequest::DataVersion { object: stripe.object }))
        };
        self.requests.on_objects("get the version", requests)?.into_iter().zip(layout.objects()).try_fold(
            0u64,
            |sum, (reply, stripe)| match reply {
                OssReply::Version { attr, version } => {
                    check_there(stripe, &attr).explain(self.requests.about_object(stripe))?;
                    Ok(sum.wrapping_add(version))
                }
                _ => Err(Status::EPROTO.into()),
            },
        )
    }

    /// Exchanges the objects of two files, durably and atomically for all clients. With one and the same file
    /// there is nothing to do.
    ///
    /// # Errors
    /// `EINVAL` for an inode that is no regular file, `EISDIR`; `EACCES`; `EPERM` for files of different
    /// owners; `EAGAIN` if a version differs; `EBUSY` if the lease is broken; the error of an OST.
    pub fn swap_layouts(
        &self,
        caller: &Caller,
        first: Fid,
        second: Fid,
        conditions: &SwapConditions,
    ) -> StatusResult<()> {
        self.requests.faults.edge("swap layouts", || {
            let lease = match conditions.lease {
                Some(handle) => Some(self.handles.file(handle)?.handle),
                None => None,
            };
            if first == second {
                return Ok(());
            }
            let SwapConditions { versions, keep_times, .. } = *conditions;
            let request = MdsRequest::SwapLayouts { first, second, versions, keep_times, lease };
            self.replacing(&[first, second], || self.requests.call(caller, first, &request).map(drop))?;
            if let (true, Some(file)) = (keep_times, self.nodes.file(first.inode_number())) {
                // The file was read to be copied, not by a program.
                file.lock().news.atime = None;
            }
            Ok(())
        })
    }

    /// Runs a request that replaces objects of files.
    ///
    /// # Errors
    /// `EINTR`; those of the request.
    pub(crate) fn replacing<R>(
        &self,
        fids: &[Fid],
        request: impl FnOnce() -> FailureResult<R>,
    ) -> FailureResult<R> {
        let mut fids = fids.to_vec();
        fids.sort();
        let pins: Vec<_> = fids.iter().map(|fid| self.nodes.pin(*fid)).collect();
        // Stores to mapped pages go to the objects they were meant for. The operation that has frozen a file
        // drops its pages when it ends.
        let dropped = || pins.iter().filter(|pin| pin.file.lock().frozen.is_none());
        if let Some(kernel) = self.lease.kernel() {
            for pin in dropped() {
                kernel.drop_inode(pin.file.node);
            }
        }
        let mut ranges = Vec::new();
        if self.lease.exclusive() {
            for pin in &pins {
                // Before the range is taken: pages dropped with the lock may belong to a request that waits
                // for the range.
                self.lease.locks().layouts(pin.file.fid.mdt_index()).give_up(pin.file.fid)?;
                ranges.push(pin.file.take_whole_even_frozen()?);
                self.write_back.settle(&pin.file, 0, u64::MAX)?;
            }
        }
        // Another client has connected: it is admitted only when the ranges are free, and then its locks are
        // revoked.
        if !self.lease.exclusive() {
            ranges.clear();
        }
        let outcome = request();
        fids.iter().for_each(|fid| self.layouts.relayouts.note(*fid));
        pins.iter().for_each(|pin| self.layouts.forget_layout(&pin.file));
        drop(ranges);
        if let Some(kernel) = self.lease.kernel() {
            for pin in dropped() {
                kernel.drop_inode(pin.file.node);
            }
        }
        outcome
    }

    /// Unfreezes the file.
    pub(crate) fn thaw(&self, file: &FileState) {
        file.lock().frozen = None;
        self.layouts.forget_layout(file);
        file.changed.notify_all();
        if let Some(kernel) = self.lease.kernel() {
            kernel.drop_inode(file.node);
        }
    }
}

impl FileState {
    /// Returns the state of the file that the handle sees that has frozen it; `None` for all others.
    pub(crate) fn frozen_by(&self, open: &OpenFile) -> Option<Frozen> {
        self.lock().frozen.as_ref().filter(|frozen| frozen.handle == open.handle).cloned()
    }

    /// Takes the whole file exclusively, for an operation that may run although the file is frozen.
    pub(crate) fn take_whole_even_frozen(&self) -> StatusResult<RangeGuard<'_>> {
        self.take_range_ungated(Use::Exclusive, |_| (0, u64::MAX, ())).map(|(range, ())| range)
    }
}
