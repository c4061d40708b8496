//! Leases on open files, and freezing of files by one open.

use crate::caller::Caller;
use crate::data::closes::{Closes, await_closes};
use crate::file::{Frozen, Glimpse, OpenFile};
use crate::opens::Opens;
use nacre_layout::Layout;
use nacre_types::{Failure, FailureResult, Status, StatusResult};
use nacre_wire::mds::{LeaseKind, MdsReply, MdsRequest, OpenFlags};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long the release of a descriptor that was closed may take to arrive before a lease is refused: a
/// process that was just started has copies of descriptors until it runs its own program.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Opens {
    /// Takes a lease for an open file that has none. `closes_are_told`: the kernel reports when a descriptor
    /// is closed ([`Data::flush`](crate::data::Data::flush)).
    ///
    /// # Errors
    /// `EPERM` for a write lease on a file that is not open for writing, and a read lease on one that is not
    /// open for reading; `EBUSY` if there is one already, and as for [`Opens::open_lease`].
    pub fn take_lease(
        &self,
        caller: &Caller,
        handle: u64,
        kind: LeaseKind,
        closes_are_told: bool,
    ) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("take a lease", open.file.fid, || {
            let needed = if kind == LeaseKind::Read { OpenFlags::READ } else { OpenFlags::WRITE };
            if !open.flags.contains(needed) {
                return Err(Status::EPERM.into());
            }
            if open.leased.swap(true, Ordering::AcqRel) {
                return Err(Status::EBUSY.into());
            }
            let ask = || self.open_lease(caller, handle, Some(kind)).map(drop);
            let taken = match ask() {
                // The conflicting open may be one of this mount whose descriptor was closed before.
                Err(Status::EBUSY) => {
                    let closes = if closes_are_told { Closes::Told(Some(&open)) } else { Closes::Untold };
                    let waited =
                        await_closes(&self.requests, &self.nodes, open.file.fid, &closes, CLOSE_TIMEOUT);
                    let heard =
                        waited.and_then(|_| self.requests.mdt(open.file.fid)?.endpoint.wait_for_posts());
                    heard.and_then(|()| ask())
                }
                taken => taken,
            };
            let taken = taken.inspect_err(|_| open.leased.store(false, Ordering::Release));
            taken.map_err(Failure::logged)
        })
    }

    /// Releases the lease that [`Opens::take_lease`] has taken. Returns what was left of it: none if it was
    /// broken.
    ///
    /// # Errors
    /// `ENOLCK` if none was taken; as for [`Opens::open_lease`].
    pub fn end_lease(&self, caller: &Caller, handle: u64) -> StatusResult<LeaseKind> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("end a lease", open.file.fid, || {
            if !open.leased.swap(false, Ordering::AcqRel) {
                return Err(Status::ENOLCK.into());
            }
            self.open_lease(caller, handle, Some(LeaseKind::None)).map_err(Failure::logged)
        })
    }

    /// True if the open file has a lease, even one that was broken since.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn has_lease(&self, handle: u64) -> StatusResult<bool> {
        Ok(self.handles.file(handle)?.leased.load(Ordering::Acquire))
    }

    /// Takes a lease on an open file, releases it ([`LeaseKind::None`]), or reads it (`None`). Returns the
    /// previous one.
    ///
    /// # Errors
    /// `EBADF`; `EBUSY` if the file has other opens that the lease excludes, `EACCES`; `EINTR`.
    pub fn open_lease(
        &self,
        caller: &Caller,
        handle: u64,
        kind: Option<LeaseKind>,
    ) -> StatusResult<LeaseKind> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("change a lease", open.file.fid, || {
            let was_frozen = open.file.frozen_by(&open).is_some();
            match kind {
                Some(LeaseKind::Frozen) if !was_frozen => self.freeze(caller, &open),
                Some(LeaseKind::Frozen) => Ok(LeaseKind::Frozen),
                Some(kind) if was_frozen => {
                    let before = self.ask_lease(caller, &open, Some(kind));
                    self.data.thaw(&open.file);
                    before
                }
                kind => self.ask_lease(caller, &open, kind),
            }
        })
    }

    fn ask_lease(
        &self,
        caller: &Caller,
        open: &OpenFile,
        kind: Option<LeaseKind>,
    ) -> FailureResult<LeaseKind> {
        let fid = open.file.fid;
        let request = MdsRequest::OpenLease { fid, handle: open.handle, kind };
        match self.requests.call(caller, fid, &request)?.reply {
            MdsReply::OpenLease(before) => Ok(before),
            _ => Err(Status::EPROTO.into()),
        }
    }

    fn freeze(&self, caller: &Caller, open: &OpenFile) -> FailureResult<LeaseKind> {
        let file = &*open.file;
        let mine = Frozen { handle: open.handle, layout: None, seen: Glimpse::default() };
        file.wait_for(|inner| inner.frozen.is_none().then(|| inner.frozen = Some(mine.clone())))?;
        let outcome = self.freeze_begun(caller, open);
        match outcome {
            Ok((before, layout, seen)) => {
                file.lock().frozen = Some(Frozen { layout, seen, ..mine });
                Ok(before)
            }
            Err(status) => {
                // The request may have reached the MDT.
                let _ = self.ask_lease(caller, open, Some(LeaseKind::None));
                self.data.thaw(file);
                Err(status)
            }
        }
    }

    /// Freezes a file that no new operation of this mount uses: waits for those in progress, then has the MDT
    /// exclude other clients.
    fn freeze_begun(
        &self,
        caller: &Caller,
        open: &OpenFile,
    ) -> FailureResult<(LeaseKind, Option<Arc<Layout>>, Glimpse)> {
        let file = &*open.file;
        file.wait_for(|inner| inner.ranges.is_idle().then_some(()))?;
        if self.lease.exclusive() {
            self.lease.locks().layouts(file.fid.mdt_index()).give_up(file.fid)?;
        }
        self.write_back.settle(file, 0, u64::MAX)?;
        let before = self.ask_lease(caller, open, Some(LeaseKind::Frozen))?;
        let reply = self.requests.call_system(file.fid, &MdsRequest::GetLayout { fid: file.fid })?.reply;
        let MdsReply::Layout(layout) = reply else { return Err(Status::EPROTO.into()) };
        let layout = layout.filter(|layout| layout.has_objects());
        let seen = match &layout {
            Some(layout) => self.objects.glimpse(layout)?.0,
            None => Glimpse::default(),
        };
        Ok((before, layout, seen))
    }
}
