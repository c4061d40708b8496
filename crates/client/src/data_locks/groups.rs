//! Group locks: programs that name the same number share a file, each with caches of its own, and exclude all
//! others from its data until the last of them leaves the group. The members of a group order their writes
//! among themselves.
//!
//! A descriptor belongs to a group; a lock of mode GROUP on each object stands for all its members in this
//! mount. All I/O on the file here runs under it ([`DataLocks::cover`]), also while this client is the only
//! one: a client that connects later finds the locks at the OSTs. All objects are allocated when the lock is
//! taken, so that none is allocated outside of the group; components added later are locked when a member
//! reaches them.
//!
//! # Other programs in the same mount
//!
//! They wait, as those of other mounts do at the OSTs; a descriptor with `O_NONBLOCK` gets `EAGAIN`. Two
//! exceptions come from the kernel. It holds the inode lock while a write, a truncation or an allocation
//! waits, so that a member could not write any more: these end with `EBUSY`, as long as a member's descriptor
//! is open for writing. And it has pages locked that it fills, which a member may want to read: they are
//! filled.
//!
//! When the file's objects are replaced the locks on the old ones end, and the next operation of a member
//! takes those on the new ones.

use crate::data_locks::DataLocks;
use crate::file::group::Held;
use crate::file::{FileInner, FileState};
use crate::locks::space::{EnqueueRequest, Home, Use};
use crate::write_back::table::Scope;
use nacre_env::clock::Instant;
use nacre_layout::{Layout, StripeObject};
use nacre_lock::{EnqueueFlags, LockHandle, Mode, Need, ResourceId};
use nacre_types::{Explain, FailureResult, OpenHandle, Status, StatusResult};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long an operation of this mount may take to end before a group is refused to a caller that does not
/// wait for other programs: an operation that takes longer waits for another mount.
const OWN_OPERATIONS_END: Duration = Duration::from_secs(5);

impl DataLocks {
    /// Makes the open file a member of group `gid`. Waits until no other group has the file and no operation
    /// uses it; with `no_wait` fails instead.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for group 0, and for a descriptor that belongs to a group; `EAGAIN`; `EINTR`; those
    /// of a write.
    pub fn join_group(&self, handle: u64, gid: u64, no_wait: bool) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("join group", open.file.fid, || {
            if gid == 0 {
                return Err(Status::EINVAL.into());
            }
            let file = &*open.file;
            let begin = |inner: &mut FileInner| match inner.begin_joining(open.handle, gid) {
                None if no_wait => Some(Err(Status::EAGAIN)),
                answer => answer,
            };
            file.wait_for(begin)??;
            file.grouped.store(true, Ordering::Release);
            let outcome = self.lock_for_group(file, gid, no_wait);
            let outcome = file.lock().end_joining(open.handle, open.writable(), outcome);
            if outcome.is_err() {
                self.end_unused_group(file);
            } else {
                open.group.store(gid, Ordering::Release);
            }
            file.changed.notify_all();
            outcome
        })
    }

    /// Ends the membership of the open file. With the last member the group's locks end.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` if it does not belong to this group.
    pub fn leave_group(&self, handle: u64, gid: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        self.requests.faults.edge_on("leave group", open.file.fid, || {
            if gid == 0 || open.group.compare_exchange(gid, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
                return Err(Status::EINVAL.into());
            }
            self.drop_member(&open.file, open.handle);
            Ok(())
        })
    }

    /// Returns the group that the open file belongs to, 0 if none.
    ///
    /// # Errors
    /// `EBADF` if the handle is not that of an open file.
    pub fn group_of(&self, handle: u64) -> StatusResult<u64> {
        Ok(self.handles.file(handle)?.group.load(Ordering::Acquire))
    }

    /// Ends the membership of a descriptor that is closed.
    pub(crate) fn drop_member(&self, file: &FileState, handle: OpenHandle) {
        // The OSTs have to have its writes before any other program may read.
        self.write_back.settle_unheard(file, &Scope::All);
        if let Some(group) = &mut file.lock().group {
            group.members.retain(|(member, _)| *member != handle);
        }
        self.end_unused_group(file);
        file.changed.notify_all();
    }

    fn end_unused_group(&self, file: &FileState) {
        let held = {
            let mut inner = file.lock();
            let held = inner.end_group();
            file.grouped.store(inner.group.is_some(), Ordering::Release);
            held
        };
        self.give_back(&held);
    }

    fn give_back(&self, held: &[Held]) {
        let locks = self.lease.locks();
        held.iter().for_each(|held| held.space.release(locks, held.handle));
    }

    /// Takes the group's locks on all objects, which are allocated first.
    fn lock_for_group(&self, file: &FileState, gid: u64, no_wait: bool) -> FailureResult<()> {
        // Operations of this mount in progress end, and from here on no others begin. Write-back that follows
        // the program's last write is one of them, so even a caller that does not wait for other programs
        // waits for these.
        let deadline = no_wait.then(|| Instant::now() + OWN_OPERATIONS_END);
        let is_idle = |inner: &mut FileInner| match inner.group_in_force().is_some() || inner.ranges.is_idle()
        {
            false if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Some(Err(Status::EAGAIN)),
            is_idle => is_idle.then_some(Ok(())),
        };
        file.wait_for(is_idle)??;
        self.write_back.settle(file, 0, u64::MAX)?;
        let used =
            self.requests.with_space(file.fid, || self.layouts.use_layout_for_writing(file, 0, u64::MAX))?;
        let layout = used.for_writing()?;
        let locks = self.lease.locks();
        for stripe in layout.objects() {
            let (space, resource) = (locks.space(stripe.ost_index), ResourceId::of_fid(&stripe.object));
            let has = |inner: &FileInner| inner.group.as_ref().is_some_and(|group| group.has(&resource));
            if has(&file.lock()) {
                continue;
            }
            // This client's own locks conflict like those of other clients.
            let mut cancelled = Vec::new();
            for mode in [Mode::Pr, Mode::Pw] {
                cancelled.extend(space.surrender(locks, &resource, mode)?);
            }
            self.lock_object(file, layout, stripe, gid, no_wait, &cancelled)?;
        }
        Ok(())
    }

    /// Takes the group's lock on an object, on which this client has cancelled the locks in `cancelled`.
    fn lock_object(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        stripe: &StripeObject,
        gid: u64,
        no_wait: bool,
        cancelled: &[LockHandle],
    ) -> FailureResult<()> {
        let locks = self.lease.locks();
        let (space, resource) = (locks.space(stripe.ost_index), ResourceId::of_fid(&stripe.object));
        let home = || Home { node: file.node, layout: layout.clone() };
        let flags = EnqueueFlags { no_wait, ..EnqueueFlags::default() };
        let endpoint = self.requests.ost(stripe.ost_index)?;
        let taken = space.acquire(
            locks,
            endpoint,
            EnqueueRequest { resource, need: Need::group(gid), flags, cancelled },
            home,
        );
        let taken = taken.explain(self.requests.about_object(stripe))?;
        let Use::Held(handle) = taken else { return Err(Status::EIO.into()) };
        let mut inner = file.lock();
        match &mut inner.group {
            Some(group) if group.gid == gid && !group.has(&resource) => {
                group.held.push(Held { space, resource, handle });
            }
            // Another thread was faster, or the group has ended.
            _ => {
                drop(inner);
                space.release(locks, handle);
            }
        }
        Ok(())
    }

    /// Returns the group lock under which an operation on this object runs, if a group has the file. The
    /// group keeps the lock.
    ///
    /// # Errors
    /// As for [`DataLocks::cover`].
    pub(crate) fn group_need(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        stripe: &StripeObject,
    ) -> FailureResult<Option<Need>> {
        if !file.is_grouped() {
            return Ok(None);
        }
        let resource = ResourceId::of_fid(&stripe.object);
        let (gid, is_held) = {
            let inner = file.lock();
            let Some(gid) = inner.group_in_force() else { return Ok(None) };
            (gid, inner.group.as_ref().is_some_and(|group| group.has(&resource)))
        };
        if !is_held {
            self.lock_object(file, layout, stripe, gid, false, &[])?;
        }
        Ok(Some(Need::group(gid)))
    }

    /// Releases the group's locks on objects that are being replaced.
    pub(crate) fn leave_grouped_objects(&self, file: &FileState) -> FailureResult<()> {
        let held = file.lock().group.as_mut().map_or_else(Vec::new, |group| std::mem::take(&mut group.held));
        self.give_back(&held);
        Ok(held.iter().try_for_each(|held| held.space.wait_gone(&held.resource, Mode::Group))?)
    }
}
