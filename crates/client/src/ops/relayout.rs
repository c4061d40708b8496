//! Files get other objects: layouts exchanged, components deleted; versions of data, and leases, which tell whether a file was left
//! alone meanwhile.
//!
//! Beside others the MDT calls all locks on the layout back, this client's too ([`crate::locks::layouts`]). Alone there are none, so
//! this client takes the whole file and forgets what it knows of the layout ([`Client::replacing`]).
//!
//! A frozen file ([`LeaseKind::Frozen`]) is read through the handle that froze it, and all others wait: those of this mount for
//! their byte ranges, those of other mounts for the layout, of which the MDT grants no locks.

use crate::caller::Caller;
use crate::client::Client;
use crate::file::{FileState, Frozen, OpenFile};
use crate::io::objects::Glimpse;
use crate::io::ranges::Use;
use crate::io::written::check_there;
use crate::ops::patience::ask_all;
use nacre_layout::Layout;
use nacre_lock::Mode;
use nacre_types::{Fid, Status, StatusResult, perm};
use nacre_wire::mds::{LeaseKind, MdsReply, MdsRequest};
use nacre_wire::oss::{OssReply, OssRequest};
use std::sync::Arc;

/// First part of the name under which Lustre makes a file without a name: ".", four control characters, a word.
const VOLATILE: &[u8] = b".\x0c\x13\x14\x12:VOLATILE:";

/// Word before the FID of the file beside which one without a name is to be.
const BESIDE: &[u8] = b":beside=";

/// Where a file without a name is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Volatile {
    /// The MDT, as Lustre's tools say it.
    pub mdt: Option<u16>,
    /// The file whose data it is for, as our own say it.
    pub beside: Option<Fid>,
}

/// What a name says that stands for no name; `None` for all others. Source: reference 3.4: the MDT and a
/// random number in hexadecimal follow.
pub(crate) fn volatile(name: &[u8]) -> Option<Volatile> {
    let rest = name.strip_prefix(VOLATILE)?;
    let mdt = rest.get(..4).and_then(|digits| std::str::from_utf8(digits).ok());
    let mdt = mdt.and_then(|digits| u16::from_str_radix(digits, 16).ok());
    let at = rest.windows(BESIDE.len()).position(|window| window == BESIDE);
    let fid = at.and_then(|at| std::str::from_utf8(&rest[at + BESIDE.len()..]).ok());
    Some(Volatile { mdt, beside: fid.and_then(|text| text.parse().ok()) })
}

/// What is written out before the version of a file's data is asked for (`lfs data_version -n`, `-r`, `-w`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VersionFlush {
    /// Nothing: the version of what is on the OSTs.
    Nothing,
    /// What clients hold back.
    Dirty,
    /// The same, and nobody keeps anything of the file cached.
    Everything,
}

/// Conditions of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwapConditions {
    /// Versions that the data of both is expected to have.
    pub versions: (Option<u64>, Option<u64>),
    /// Times stay with the files.
    pub keep_times: bool,
    /// A handle of the first file whose lease must be there.
    pub lease: Option<u64>,
}

impl Client {
    /// The version of an open file's data: another number after each change, 0 if there is none.
    ///
    /// # Errors
    /// `EBADF`; `EINTR`; what an OST answers.
    pub fn data_version(&self, handle: u64, flush: VersionFlush) -> StatusResult<u64> {
        let open = self.handles.file(handle)?;
        let file = &*open.file;
        if let Some(frozen) = file.frozen_by(&open) {
            return frozen.layout.as_ref().map_or(Ok(0), |layout| self.version_of(layout));
        }
        self.settle(file, 0, u64::MAX)?;
        let used = self.use_layout(file)?;
        let Some(layout) = used.with_objects() else { return Ok(0) };
        let mode = match flush {
            VersionFlush::Nothing => None,
            VersionFlush::Dirty => Some(Mode::Pr),
            VersionFlush::Everything => Some(Mode::Pw),
        };
        let _cover = match mode.filter(|_| !self.is_alone()) {
            Some(mode) => Some(self.cover_whole(file, layout, mode)?),
            None => None,
        };
        self.version_of(layout)
    }

    /// The size of an open file.
    ///
    /// # Errors
    /// `EBADF`; what an OST answers.
    pub fn size_of(&self, handle: u64) -> StatusResult<u64> {
        let open = self.handles.file(handle)?;
        self.size_up_to(&open.file, u64::MAX)
    }

    /// Copies `(offset, len)` of an open file to the same place in another one that this mount has open for writing; gives the bytes copied.
    /// While a file is frozen system calls that copy would wait for writes that wait.
    ///
    /// # Errors
    /// `EBADF` if one of them is not open; `EACCES`; as for [`Client::copy_range`].
    pub fn copy_to(
        &self,
        caller: &Caller,
        source: u64,
        target: Fid,
        (offset, len): (u64, u64),
    ) -> StatusResult<u64> {
        let is_target = |open: &Arc<OpenFile>| open.file.fid == target && open.writable();
        let open = self.handles.files().into_iter().find(is_target).ok_or(Status::EBADF)?;
        // The handle may be somebody else's.
        self.call(caller, target, &MdsRequest::Access { fid: target, mask: perm::WRITE })?;
        self.copy_range(caller, (source, offset), (open.handle.0, offset), len)
    }

    fn version_of(&self, layout: &Layout) -> StatusResult<u64> {
        let requests = layout
            .objects()
            .map(|stripe| (stripe.ost_index, OssRequest::DataVersion { object: stripe.object }));
        self.on_objects(requests)?.into_iter().zip(layout.objects()).try_fold(0u64, |sum, (reply, stripe)| {
            match reply {
                OssReply::Version { attr, version } => {
                    check_there(stripe, &attr)?;
                    Ok(sum.wrapping_add(version))
                }
                _ => Err(Status::EPROTO),
            }
        })
    }

    /// Exchanges the objects of two files, durably and at once for everybody. With one and the same file there is nothing to do.
    ///
    /// # Errors
    /// `EINVAL` for what is no regular file, `EISDIR`; `EACCES`; `EPERM` for files of different
    /// owners; `EAGAIN` if a version is another one; `EBUSY` if the lease is gone; what an OST answers.
    pub fn swap_layouts(
        &self,
        caller: &Caller,
        first: Fid,
        second: Fid,
        conditions: &SwapConditions,
    ) -> StatusResult<()> {
        let lease = match conditions.lease {
            Some(handle) => Some(self.handles.file(handle)?.handle),
            None => None,
        };
        if first == second {
            return Ok(());
        }
        let SwapConditions { versions, keep_times, .. } = *conditions;
        let request = MdsRequest::SwapLayouts { first, second, versions, keep_times, lease };
        self.replacing(&[first, second], || self.call(caller, first, &request).map(drop))?;
        if let (true, Some(file)) = (keep_times, self.nodes.file(first.inode_number())) {
            // It was read to be copied, not by a program.
            file.lock().atime = None;
        }
        Ok(())
    }

    /// Runs a request that gives files other objects.
    ///
    /// # Errors
    /// `EINTR`; those of the request.
    pub(crate) fn replacing<R>(
        &self,
        fids: &[Fid],
        request: impl FnOnce() -> StatusResult<R>,
    ) -> StatusResult<R> {
        let mut fids = fids.to_vec();
        fids.sort();
        let pins: Vec<_> = fids.iter().map(|fid| self.pin(*fid)).collect();
        // Stores to mapped pages go where they were meant to go. Who has frozen a file is followed by this when it ends.
        let dropped = || pins.iter().filter(|pin| pin.file.lock().frozen.is_none());
        if let Some(kernel) = self.kernel.get() {
            for pin in dropped() {
                kernel.drop_inode(pin.file.node);
            }
        }
        let mut ranges = Vec::new();
        if self.is_alone() {
            for pin in &pins {
                // Before the range: what is dropped with the lock may be waiting for it.
                self.lease.locks().layouts(pin.file.fid.mdt_index()).give_up(pin.file.fid)?;
                ranges.push(pin.file.take_whole_even_frozen()?);
                self.settle(&pin.file, 0, u64::MAX)?;
            }
        }
        // Somebody has come: he is let in only when the ranges are free, and his locks are called back.
        if !self.is_alone() {
            ranges.clear();
        }
        let outcome = request();
        fids.iter().for_each(|fid| self.relayouts.note(*fid));
        pins.iter().for_each(|pin| self.forget_layout(&pin.file));
        drop(ranges);
        if let Some(kernel) = self.kernel.get() {
            for pin in dropped() {
                kernel.drop_inode(pin.file.node);
            }
        }
        outcome
    }

    /// Takes a lease on an open file, gives it up ([`LeaseKind::None`]), or asks what there is (`None`). Gives what there was.
    ///
    /// # Errors
    /// `EBADF`; `EBUSY` if others have the file open in a way that the lease excludes, `EACCES`; `EINTR`.
    pub fn open_lease(
        &self,
        caller: &Caller,
        handle: u64,
        kind: Option<LeaseKind>,
    ) -> StatusResult<LeaseKind> {
        let open = self.handles.file(handle)?;
        let was_frozen = open.file.frozen_by(&open).is_some();
        match kind {
            Some(LeaseKind::Frozen) if !was_frozen => self.freeze(caller, &open),
            Some(LeaseKind::Frozen) => Ok(LeaseKind::Frozen),
            Some(kind) if was_frozen => {
                let before = self.ask_lease(caller, &open, Some(kind));
                self.thaw(&open.file);
                before
            }
            kind => self.ask_lease(caller, &open, kind),
        }
    }

    fn ask_lease(
        &self,
        caller: &Caller,
        open: &OpenFile,
        kind: Option<LeaseKind>,
    ) -> StatusResult<LeaseKind> {
        let fid = open.file.fid;
        let request = MdsRequest::OpenLease { fid, handle: open.handle, kind };
        match self.call(caller, fid, &request)?.reply {
            MdsReply::OpenLease(before) => Ok(before),
            _ => Err(Status::EPROTO),
        }
    }

    fn freeze(&self, caller: &Caller, open: &OpenFile) -> StatusResult<LeaseKind> {
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
                // Perhaps the MDT has heard of it.
                let _ = self.ask_lease(caller, open, Some(LeaseKind::None));
                self.thaw(file);
                Err(status)
            }
        }
    }

    /// Nobody of this mount begins to use the file: waits for those who do, then has the MDT keep the others away.
    fn freeze_begun(
        &self,
        caller: &Caller,
        open: &OpenFile,
    ) -> StatusResult<(LeaseKind, Option<Arc<Layout>>, Glimpse)> {
        let file = &*open.file;
        file.wait_for(|inner| inner.ranges.is_idle().then_some(()))?;
        if self.is_alone() {
            self.lease.locks().layouts(file.fid.mdt_index()).give_up(file.fid)?;
        }
        self.settle(file, 0, u64::MAX)?;
        let before = self.ask_lease(caller, open, Some(LeaseKind::Frozen))?;
        let reply = self.call_system(file.fid, &MdsRequest::GetLayout { fid: file.fid })?.reply;
        let MdsReply::Layout(layout) = reply else { return Err(Status::EPROTO) };
        let layout = layout.filter(|layout| layout.has_objects());
        let seen = match &layout {
            Some(layout) => self.glimpse(layout)?.0,
            None => Glimpse::default(),
        };
        Ok((before, layout, seen))
    }

    /// The file is everybody's again.
    pub(crate) fn thaw(&self, file: &FileState) {
        file.lock().frozen = None;
        self.forget_layout(file);
        file.changed.notify_all();
        if let Some(kernel) = self.kernel.get() {
            kernel.drop_inode(file.node);
        }
    }

    /// A page of the files that have objects on an OST, after `after`; and from where to go on. A FID names its MDT, so a page of one MDT
    /// after the other covers the file system.
    ///
    /// # Errors
    /// `EPERM` for others than administrators; `ETIMEDOUT` if the MDT does not answer soon; what it answers.
    pub fn files_on(
        &self,
        caller: &Caller,
        ost_index: u16,
        after: Fid,
        count_max: u32,
    ) -> StatusResult<(Vec<Fid>, Option<Fid>)> {
        let mdt = after.mdt_index();
        let place = Fid::new(Fid::first_sequence_of_mdt(mdt), 1, 0);
        if !self.has_mdt(mdt)? {
            return Err(Status::EINVAL);
        }
        let request = MdsRequest::FilesOn { ost_index, after, count_max };
        let answer = ask_all(&[place], |place| self.call(caller, *place, &request)).pop();
        let MdsReply::Files { fids, next } = answer.unwrap_or(Err(Status::EPROTO))?.reply else {
            return Err(Status::EPROTO);
        };
        let next = match next {
            None if self.has_mdt(mdt + 1)? => Some(Fid::new(Fid::first_sequence_of_mdt(mdt + 1), 0, 0)),
            next => next,
        };
        Ok((fids, next))
    }
}

impl FileState {
    /// What the handle sees that has frozen the file; `None` for all others.
    pub(crate) fn frozen_by(&self, open: &OpenFile) -> Option<Frozen> {
        self.lock().frozen.as_ref().filter(|frozen| frozen.handle == open.handle).cloned()
    }

    /// The whole file, exclusively, for who may go on although it is frozen.
    pub(crate) fn take_whole_even_frozen(&self) -> StatusResult<crate::io::size::RangeGuard<'_>> {
        self.take_range_ungated(Use::Exclusive, |_| (0, u64::MAX, ())).map(|(range, ())| range)
    }
}
