//! Group locks: programs that name the same number share a file, each with caches of its own, and keep all others from its data
//! until the last of them lets go. Who belongs to a group orders his writes with the others' himself.
//!
//! A descriptor belongs to a group; a lock of mode GROUP on each object stands for all its members in this mount. Everything that
//! is done here in the file goes on under it ([`Client::cover`]), also while this client is alone: whoever comes then
//! finds the locks at the OSTs. All objects are made when the lock is taken, so that nobody makes them
//! outside of the group; components that come later are locked when a member gets to them.
//!
//! # Others in the same mount
//!
//! They wait, as those of other mounts do at the OSTs; whose descriptor has `O_NONBLOCK` gets `EAGAIN`. Two exceptions come from the
//! kernel. It holds the inode while a write, a truncation or an allocation waits, so that a member could not write any more:
//! they end with `EBUSY`, as long as a member's descriptor is open for writing. And it has pages locked that it fills, which a
//! member may want to read: they are filled.
//!
//! When the file's objects are replaced the locks on the old ones end, and the next operation of a member takes those on
//! the new ones.

use super::space::{Home, Namespace, Use};
use crate::client::Client;
use crate::file::{FileInner, FileState};
use crate::io::ranges;
use nacre_env::clock::Instant;
use nacre_layout::{Layout, StripeObject};
use nacre_lock::{EnqueueFlags, LockHandle, Mode, Need, ResourceId};
use nacre_types::{OpenHandle, Status, StatusResult};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long an operation of this mount may take to end before a group is refused to a caller that does not wait for others: one that waits
/// for another mount takes longer.
const OWN_OPERATIONS_END: Duration = Duration::from_secs(5);

/// A lock on an object that a group of this mount has.
struct Held {
    space: Arc<Namespace>,
    resource: ResourceId,
    handle: LockHandle,
}

/// The group that has a file in this mount.
pub(crate) struct Group {
    gid: u64,
    /// Descriptors that belong to it, and whether they may write; none while the first of them waits for its locks.
    members: Vec<(OpenHandle, bool)>,
    /// How many threads are taking its locks.
    joining: usize,
    held: Vec<Held>,
}

/// Who wants to read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// A program, through this handle.
    Open(OpenHandle),
    /// The same with `O_NONBLOCK`: it does not wait for groups.
    Hurried(OpenHandle),
    /// A program, by name.
    Name,
    /// The kernel, for pages of its cache.
    Pages,
}

/// What a group says to somebody who wants to use the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// Go on.
    Granted,
    /// Wait until it changes.
    Waits,
    /// Do not wait, but fail with this.
    Refused(Status),
}

impl Who {
    /// A program that uses this handle.
    pub fn of(handle: OpenHandle, hurried: bool) -> Who {
        if hurried { Who::Hurried(handle) } else { Who::Open(handle) }
    }
}

impl Group {
    fn is_taken(&self) -> bool {
        !self.members.is_empty()
    }

    fn admits(&self, who: Who, mode: ranges::Use) -> Admission {
        // The kernel keeps them out while somebody waits to write.
        let may_write = || self.members.iter().any(|(_, writes)| *writes);
        match who {
            Who::Pages => Admission::Granted,
            Who::Open(handle) | Who::Hurried(handle) if self.has_member(handle) => Admission::Granted,
            Who::Hurried(_) => Admission::Refused(Status::EAGAIN),
            _ if mode == ranges::Use::Exclusive && may_write() => Admission::Refused(Status::EBUSY),
            _ => Admission::Waits,
        }
    }

    fn has_member(&self, handle: OpenHandle) -> bool {
        self.members.iter().any(|(member, _)| *member == handle)
    }

    fn has(&self, resource: &ResourceId) -> bool {
        self.held.iter().any(|held| held.resource == *resource)
    }
}

impl FileInner {
    /// May this one use the file, as far as groups go?
    pub fn admission(&self, who: Who, mode: ranges::Use) -> Admission {
        self.group.as_ref().map_or(Admission::Granted, |group| group.admits(who, mode))
    }

    /// The group under whose locks everything is done here.
    fn group_in_force(&self) -> Option<u64> {
        self.group.as_ref().filter(|group| group.is_taken()).map(|group| group.gid)
    }

    /// One more thread takes locks for a group; `None` if another group has the file.
    fn begin_joining(&mut self, handle: OpenHandle, gid: u64) -> Option<StatusResult<()>> {
        if self.frozen.is_some() {
            return None;
        }
        let new = || Group { gid, members: Vec::new(), joining: 0, held: Vec::new() };
        let group = self.group.get_or_insert_with(new);
        if group.has_member(handle) {
            return Some(Err(Status::EINVAL));
        }
        if group.gid != gid {
            return None;
        }
        group.joining += 1;
        Some(Ok(()))
    }

    /// A thread has the locks, or could not get them.
    fn end_joining(
        &mut self,
        (handle, writes): (OpenHandle, bool),
        outcome: StatusResult<()>,
    ) -> StatusResult<()> {
        let Some(group) = &mut self.group else { return Err(Status::EINVAL) };
        group.joining -= 1;
        outcome?;
        // The same descriptor, by two threads at once.
        if group.has_member(handle) {
            return Err(Status::EINVAL);
        }
        group.members.push((handle, writes));
        Ok(())
    }

    /// The locks to give back, if nobody belongs to the group any more.
    fn end_group(&mut self) -> Vec<Held> {
        match self.group.take() {
            Some(group) if !group.is_taken() && group.joining == 0 => group.held,
            group => {
                self.group = group;
                Vec::new()
            }
        }
    }
}

impl FileState {
    /// True if a group has the file, or is about to.
    pub fn is_grouped(&self) -> bool {
        self.grouped.load(Ordering::Acquire)
    }
}

impl Client {
    /// The open file belongs to group `gid` from now on. Waits until no other group has the file and nobody uses it; with
    /// `no_wait` says so instead.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` for group 0, and for a descriptor that belongs to a group; `EAGAIN`; `EINTR`; those of a write.
    pub fn join_group(&self, handle: u64, gid: u64, no_wait: bool) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        if gid == 0 {
            return Err(Status::EINVAL);
        }
        let file = &*open.file;
        let begin = |inner: &mut FileInner| match inner.begin_joining(open.handle, gid) {
            None if no_wait => Some(Err(Status::EAGAIN)),
            answer => answer,
        };
        file.wait_for(begin)??;
        file.grouped.store(true, Ordering::Release);
        let outcome = self.lock_for_group(file, gid, no_wait);
        let outcome = file.lock().end_joining((open.handle, open.writable()), outcome);
        if outcome.is_err() {
            self.end_unused_group(file);
        } else {
            open.group.store(gid, Ordering::Release);
        }
        file.changed.notify_all();
        outcome
    }

    /// The open file does not belong to the group any more. With the last member its locks end.
    ///
    /// # Errors
    /// `EBADF`; `EINVAL` if it does not belong to this group.
    pub fn leave_group(&self, handle: u64, gid: u64) -> StatusResult<()> {
        let open = self.handles.file(handle)?;
        if gid == 0 || open.group.compare_exchange(gid, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(Status::EINVAL);
        }
        self.drop_member(&open.file, open.handle);
        Ok(())
    }

    /// The group that the open file belongs to, 0 if none.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn group_of(&self, handle: u64) -> StatusResult<u64> {
        Ok(self.handles.file(handle)?.group.load(Ordering::Acquire))
    }

    /// A descriptor of the group is gone.
    pub(crate) fn drop_member(&self, file: &FileState, handle: OpenHandle) {
        // The OSTs are to have what it wrote before anybody else may read.
        if let Err(status) = self.settle(file, 0, u64::MAX) {
            log::warn!("data of {} could not be written: {status}", file.fid);
        }
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

    /// Takes the group's locks on all objects, which are made first.
    fn lock_for_group(&self, file: &FileState, gid: u64, no_wait: bool) -> StatusResult<()> {
        // Operations of this mount that are under way come to an end, and from here on no others begin. Write-back that follows the
        // program's last write is one of them, so a caller that does not wait for others waits for these.
        let deadline = no_wait.then(|| Instant::now() + OWN_OPERATIONS_END);
        let is_idle = |inner: &mut FileInner| match inner.group_in_force().is_some() || inner.ranges.is_idle()
        {
            false if deadline.is_some_and(|deadline| Instant::now() >= deadline) => Some(Err(Status::EAGAIN)),
            is_idle => is_idle.then_some(Ok(())),
        };
        file.wait_for(is_idle)??;
        self.settle(file, 0, u64::MAX)?;
        let used = self.with_space(file.fid, || self.use_layout_for_writing(file, 0, u64::MAX))?;
        let layout = used.for_writing()?;
        let locks = self.lease.locks();
        for stripe in layout.objects() {
            let (space, resource) = (locks.space(stripe.ost_index), ResourceId::of_fid(&stripe.object));
            let has = |inner: &FileInner| inner.group.as_ref().is_some_and(|group| group.has(&resource));
            if has(&file.lock()) {
                continue;
            }
            // This client's own locks are in the way like others'.
            let mut cancelled = Vec::new();
            for mode in [Mode::Pr, Mode::Pw] {
                cancelled.extend(space.surrender(locks, &resource, mode)?);
            }
            self.lock_object(file, layout, stripe, (gid, no_wait), &cancelled)?;
        }
        Ok(())
    }

    /// Has the group keep a lock on an object, on which this client has given up the locks in `cancelled`.
    fn lock_object(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        stripe: &StripeObject,
        (gid, no_wait): (u64, bool),
        cancelled: &[LockHandle],
    ) -> StatusResult<()> {
        let locks = self.lease.locks();
        let (space, resource) = (locks.space(stripe.ost_index), ResourceId::of_fid(&stripe.object));
        let home = || Home { node: file.node, layout: layout.clone() };
        let flags = EnqueueFlags { no_wait, ..EnqueueFlags::default() };
        let endpoint = self.ost(stripe.ost_index)?;
        let taken = space.acquire(locks, endpoint, (&resource, &Need::group(gid)), flags, cancelled, home)?;
        let Use::Held(handle) = taken else { return Err(Status::EIO) };
        let mut inner = file.lock();
        match &mut inner.group {
            Some(group) if group.gid == gid && !group.has(&resource) => {
                group.held.push(Held { space, resource, handle });
            }
            // Somebody else was faster, or the group has ended.
            _ => {
                drop(inner);
                space.release(locks, handle);
            }
        }
        Ok(())
    }

    /// Under which group's locks an operation on this object goes on, if a group has the file. The group keeps the lock.
    ///
    /// # Errors
    /// As for [`Client::cover`].
    pub(crate) fn group_need(
        &self,
        file: &FileState,
        layout: &Arc<Layout>,
        stripe: &StripeObject,
    ) -> StatusResult<Option<Need>> {
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
            self.lock_object(file, layout, stripe, (gid, false), &[])?;
        }
        Ok(Some(Need::group(gid)))
    }

    /// The file's objects are replaced: its group has no locks on the old ones any more.
    pub(crate) fn leave_grouped_objects(&self, file: &FileState) -> StatusResult<()> {
        let held = file.lock().group.as_mut().map_or_else(Vec::new, |group| std::mem::take(&mut group.held));
        self.give_back(&held);
        held.iter().try_for_each(|held| held.space.wait_gone(&held.resource, Mode::Group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_go_on_and_others_wait_or_are_refused() {
        let (member, other) = (Who::Open(OpenHandle(1)), Who::Open(OpenHandle(2)));
        let (read, write) = (ranges::Use::Shared, ranges::Use::Exclusive);
        let mut inner = FileInner::default();
        assert_eq!(inner.admission(other, write), Admission::Granted);
        assert_eq!(inner.begin_joining(OpenHandle(1), 7), Some(Ok(())));
        assert_eq!(inner.group_in_force(), None);
        for who in [member, other, Who::Name] {
            assert_eq!(inner.admission(who, write), Admission::Waits, "its locks are on their way");
        }
        assert_eq!(inner.begin_joining(OpenHandle(2), 8), None, "another group waits");
        assert_eq!(inner.end_joining((OpenHandle(1), true), Ok(())), Ok(()));
        assert_eq!(inner.group_in_force(), Some(7));
        assert_eq!(
            (inner.admission(member, read), inner.admission(member, write)),
            (Admission::Granted, Admission::Granted)
        );
        assert_eq!(
            (inner.admission(other, read), inner.admission(other, write)),
            (Admission::Waits, Admission::Refused(Status::EBUSY))
        );
        assert_eq!(
            (inner.admission(Who::Name, write), inner.admission(Who::Pages, write)),
            (Admission::Refused(Status::EBUSY), Admission::Granted)
        );
        let hurried = Who::of(OpenHandle(2), true);
        assert_eq!(inner.admission(hurried, read), Admission::Refused(Status::EAGAIN));
        assert_eq!(inner.admission(Who::of(OpenHandle(1), true), write), Admission::Granted);
        assert_eq!(inner.begin_joining(OpenHandle(1), 7), Some(Err(Status::EINVAL)), "it belongs to one");
        // A second thread gives up; the group stays.
        assert_eq!(inner.begin_joining(OpenHandle(2), 7), Some(Ok(())));
        assert_eq!(inner.end_joining((OpenHandle(2), false), Err(Status::EINTR)), Err(Status::EINTR));
        inner.end_group();
        assert_eq!(inner.group_in_force(), Some(7));
        inner.group.as_mut().expect("there").members.clear();
        inner.end_group();
        assert!(inner.group.is_none());
    }

    #[test]
    fn others_wait_to_write_as_long_as_no_member_can() {
        let (reader, writer, other) = (OpenHandle(1), OpenHandle(2), OpenHandle(3));
        let mut inner = FileInner::default();
        let mut join = |handle, writes| {
            assert_eq!(inner.begin_joining(handle, 7), Some(Ok(())));
            assert_eq!(inner.end_joining((handle, writes), Ok(())), Ok(()));
            inner.admission(Who::Open(other), ranges::Use::Exclusive)
        };
        assert_eq!(join(reader, false), Admission::Waits);
        assert_eq!(join(writer, true), Admission::Refused(Status::EBUSY), "who waits now, too");
    }
}
