//! Locks for the duration of one operation.

use crate::data_locks::DataLocks;
use crate::file::FileState;
use crate::file::folios::Pages;
use crate::locks::Locks;
use crate::locks::space::{EnqueueRequest, Home, Namespace, Use};
use nacre_layout::{Layout, StripeObject, object_ranges, object_sizes};
use nacre_lock::{EnqueueFlags, Extent, LockHandle, Mode, Need, ResourceId};
use nacre_types::{Explain, FailureResult, Status};
use nacre_wire::lock::IoLock;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Locks that exclude other clients while an operation runs; released when dropped.
pub(crate) struct Cover<'a> {
    locks: &'a Locks,
    /// How requests of the operation name the lock.
    pub io: IoLock,
    held: Vec<(Arc<Namespace>, LockHandle)>,
    /// Locks that it relies on without a reference ([`Want::Now`]).
    borrowed: Vec<(Arc<Namespace>, ResourceId, Need)>,
}

impl<'a> Cover<'a> {
    fn new(locks: &'a Locks, io: IoLock) -> Cover<'a> {
        Cover { locks, io, held: Vec::new(), borrowed: Vec::new() }
    }

    /// True if data written under it may be held back.
    pub fn may_hold_back(&self) -> bool {
        self.io == IoLock::Held && !self.held.is_empty()
    }

    /// False if a lock was lost: data read may be outdated, data written may have been rejected.
    pub fn is_valid(&self) -> bool {
        self.held.iter().all(|(space, handle)| space.is_valid(*handle))
            && self.borrowed.iter().all(|(space, resource, need)| space.is_still_held(resource, need))
    }
}

impl Drop for Cover<'_> {
    fn drop(&mut self) {
        for (space, handle) in self.held.drain(..) {
            space.release(self.locks, handle);
        }
    }
}

/// Largest read or write that a server locks for its duration, in bytes: it is one request.
const SERVER_LOCKED_MAX: u64 = 64 << 10;

/// What an operation needs of its locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// Locks are needed: the data read or written stays in a cache.
    Lock,
    /// If other clients contend for the same bytes, the server may lock instead.
    LockOrServer,
    /// Without waiting, under locks that may be about to be cancelled.
    Now,
}

/// Result of a request for locks ahead of their use, one of Lustre's `lockahead_results`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockedAhead {
    /// The locks were requested, or none are needed.
    Asked,
    /// There are cached locks that serve, and cover other bytes too.
    Different,
    /// There are cached locks on exactly these bytes.
    Same,
}

/// A request of the kernel for pages that it keeps locked until the reply.
pub(crate) struct Fill<'a> {
    file: &'a FileState,
    id: u64,
    /// True if the pages are being dropped under a lock that is about to be cancelled: the request must not
    /// wait.
    pub urgent: bool,
}

impl<'a> Fill<'a> {
    /// Records a request of the kernel for `[start, end)`.
    pub fn begin(file: &'a FileState, Range { start, end }: Range<u64>, pages: Pages) -> Fill<'a> {
        let (id, urgent) = file.folios.lock().enter((start, end), pages);
        Fill { file, id, urgent }
    }

    /// Records that a request that writes back is about to wait. True if it must not wait, as it is urgent by
    /// then.
    pub fn waits(&self) -> bool {
        self.file.folios.lock().waits(self.id)
    }

    /// Records that the request waits only for its data from then on.
    pub fn goes_on(&self) {
        self.file.folios.lock().goes_on(self.id);
    }
}

impl Drop for Fill<'_> {
    fn drop(&mut self) {
        self.file.folios.lock().leave(self.id);
    }
}

impl DataLocks {
    /// Returns the lock to name in a request while this client holds none.
    pub(crate) fn server_lock(&self, file: &FileState) -> IoLock {
        match self.lease.exclusive() {
            true => IoLock::Lease,
            // The group has a lock on every object, and a lock of the server itself would wait for other
            // members.
            false if file.is_grouped() => IoLock::Held,
            false => IoLock::Server,
        }
    }

    /// Locks `[start, end)` of a file. `None` if that needs waiting ([`Want::Now`]).
    ///
    /// # Errors
    /// `EINTR`; `ENOLCK`; the error of an OST.
    pub(crate) fn cover(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        Range { start, end }: Range<u64>,
        mode: Mode,
        want: Want,
    ) -> FailureResult<Option<Cover<'_>>> {
        let ranges = object_ranges(layout, start, end).filter_map(|range| {
            let extent = Extent::new(range.start, range.end - 1)?;
            Some((range.stripe, extent.aligned_to_pages()))
        });
        let want = match want {
            // A read or write of several requests would not be atomic under locks of servers.
            Want::LockOrServer if end.saturating_sub(start) > SERVER_LOCKED_MAX => Want::Lock,
            Want::LockOrServer if object_ranges(layout, start, end).count() > 1 => Want::Lock,
            want => want,
        };
        self.cover_extents(file, layout, ranges, mode, want)
    }

    /// Locks all objects of a file to their ends.
    ///
    /// # Errors
    /// As [`DataLocks::cover`].
    pub(crate) fn cover_whole(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        mode: Mode,
    ) -> FailureResult<Cover<'_>> {
        let ranges = layout.objects().map(|stripe| (*stripe, Extent::WHOLE));
        let cover = self.cover_extents(file, layout, ranges, mode, Want::Lock)?;
        Ok(cover.unwrap_or_else(|| Cover::new(self.lease.locks(), IoLock::Server)))
    }

    /// Locks all objects of a file behind its byte `size`: a change of the size that reaches several objects is
    /// atomic only under locks on all of them.
    ///
    /// # Errors
    /// As [`DataLocks::cover`].
    pub(crate) fn cover_end(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        size: u64,
    ) -> FailureResult<Cover<'_>> {
        let ends = object_sizes(layout, size)
            .filter_map(|(stripe, size)| Some((stripe, Extent::new(size, u64::MAX)?.aligned_to_pages())));
        let cover = self.cover_extents(file, layout, ends, Mode::Pw, Want::Lock)?;
        Ok(cover.unwrap_or_else(|| Cover::new(self.lease.locks(), IoLock::Server)))
    }

    fn cover_extents(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        extents: impl Iterator<Item = (StripeObject, Extent)>,
        mode: Mode,
        want: Want,
    ) -> FailureResult<Option<Cover<'_>>> {
        let locks = &**self.lease.locks();
        let mut cover = Cover::new(locks, IoLock::Held);
        let flags = EnqueueFlags {
            deny_on_contention: want == Want::LockOrServer,
            no_expansion: file.unexpanded.load(Ordering::Acquire) > 0,
            ..EnqueueFlags::default()
        };
        for (stripe, extent) in extents {
            let space = locks.space(stripe.ost_index);
            let group = self.group_need(file, layout, &stripe)?;
            let need = group.unwrap_or(Need::extent(mode, extent));
            let resource = ResourceId::of_fid(&stripe.object);
            if want == Want::Now {
                if !space.is_still_held(&resource, &need) {
                    return Ok(None);
                }
                cover.borrowed.push((space, resource, need));
                continue;
            }
            let home = || Home { node: file.node, layout: layout.clone() };
            let endpoint = self.requests.ost(stripe.ost_index)?;
            let requested = EnqueueRequest { resource, need, flags, cancelled: &[] };
            let acquired = space.acquire(locks, endpoint, requested, home);
            match acquired.explain(self.requests.about_object(&stripe))? {
                Use::Held(handle) => cover.held.push((space, handle)),
                Use::Server => return Ok(Some(Cover::new(locks, IoLock::Server))),
            }
        }
        Ok(Some(cover))
    }

    /// Locks `[start, end)` of a file as far as it has objects, exactly that range, and leaves the locks
    /// cached. With `no_wait` only where no other client holds a conflicting lock.
    ///
    /// # Errors
    /// `EINTR`; `ENOLCK`; the error of an OST.
    pub(crate) fn lock_exactly(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        Range { start, end }: Range<u64>,
        mode: Mode,
        no_wait: bool,
    ) -> FailureResult<LockedAhead> {
        let locks = &**self.lease.locks();
        let flags = EnqueueFlags { no_expansion: true, no_wait, ..EnqueueFlags::default() };
        let mut found = LockedAhead::Asked;
        for range in object_ranges(layout, start, end) {
            let Some(extent) = Extent::new(range.start, range.end - 1) else { continue };
            let need = Need::extent(mode, extent.aligned_to_pages());
            let resource = ResourceId::of_fid(&range.stripe.object);
            let space = locks.space(range.stripe.ost_index);
            if let Some(cached) = space.cached(&resource, &need) {
                // With several objects, one that differs decides.
                let one = if cached == need { LockedAhead::Same } else { LockedAhead::Different };
                found = if found == LockedAhead::Different { found } else { one };
                continue;
            }
            let home = || Home { node: file.node, layout: layout.clone() };
            let endpoint = self.requests.ost(range.stripe.ost_index)?;
            let requested = EnqueueRequest { resource, need, flags, cancelled: &[] };
            match space.acquire(locks, endpoint, requested, home) {
                Ok(Use::Held(handle)) => space.release(locks, handle),
                Ok(Use::Server) => {}
                // Another client holds it: a caller that does not wait gets it when an operation needs it.
                Err(failure) if failure == Status::EAGAIN && no_wait => {}
                Err(failure) => return Err(failure.explain(self.requests.about_object(&range.stripe))),
            }
        }
        Ok(found)
    }

    /// True if cached locks allow a read of `[start, end)` at this moment.
    pub(crate) fn is_covered(&self, layout: &Layout, Range { start, end }: Range<u64>, mode: Mode) -> bool {
        // Bytes without objects are under no lock.
        let mut ranges = object_ranges(layout, start, end);
        layout.is_instantiated(start, end)
            && ranges.all(|range| {
                let Some(extent) = Extent::new(range.start, range.end - 1) else { return false };
                let space = self.lease.locks().space(range.stripe.ost_index);
                let need = Need::extent(mode, extent.aligned_to_pages());
                space.is_covered(&ResourceId::of_fid(&range.stripe.object), &need)
            })
    }

    /// True if locks prevent other clients from changing the size.
    pub(crate) fn is_locked_to_its_end(&self, file: &FileState) -> bool {
        let Some(layout) = file.lock().layout.clone() else { return false };
        // A component without objects is under no lock: another client may have objects allocated and write
        // there.
        if !layout.is_complete() && !self.layouts.holds_components(file) {
            return false;
        }
        let need = Need::extent(Mode::Pr, Extent::WHOLE);
        layout.objects().all(|stripe| {
            let space = self.lease.locks().space(stripe.ost_index);
            space.is_covered(&ResourceId::of_fid(&stripe.object), &need)
        })
    }

    /// Cancels read locks, as a file is opened for writing: its pages may be mapped and stored to from then
    /// on, so none may be left under a read lock.
    ///
    /// # Errors
    /// `EINTR` if the caller was interrupted.
    pub(crate) fn give_up_read_locks(&self, layout: &Layout) -> FailureResult<()> {
        let locks = self.lease.locks();
        for stripe in layout.objects() {
            let space = locks.space(stripe.ost_index);
            space.surrender(locks, &ResourceId::of_fid(&stripe.object), Mode::Pr).map(drop)?;
        }
        Ok(())
    }
}
