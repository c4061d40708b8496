//! The group that has a file in this mount, see [`crate::data_locks::groups`].

use crate::file::{FileInner, FileState, ranges};
use crate::locks::space::Namespace;
use nacre_lock::{LockHandle, ResourceId};
use nacre_types::{FailureResult, OpenHandle, Status, StatusResult};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A lock on an object that a group of this mount holds.
pub(crate) struct Held {
    pub space: Arc<Namespace>,
    pub resource: ResourceId,
    pub handle: LockHandle,
}

/// The group that has a file in this mount.
pub(crate) struct Group {
    pub gid: u64,
    /// Descriptors that belong to it, and whether they may write; empty while the first of them waits for its
    /// locks.
    pub members: Vec<(OpenHandle, bool)>,
    /// Threads that are taking locks for it.
    pub joining: usize,
    pub held: Vec<Held>,
}

/// The origin of a read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    /// A program, through this handle.
    Open(OpenHandle),
    /// A program, through this handle with `O_NONBLOCK`: it does not wait for groups.
    Hurried(OpenHandle),
    /// A program, by the file's name.
    Name,
    /// The kernel, for pages of its cache.
    Pages,
}

/// Whether a group lets an operation use the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// The operation continues.
    Granted,
    /// The operation waits until the group changes.
    Waits,
    /// The operation does not wait, but fails with this status.
    Refused(Status),
}

impl Who {
    /// Returns the origin for a program that uses this handle.
    pub fn of(handle: OpenHandle, hurried: bool) -> Who {
        if hurried { Who::Hurried(handle) } else { Who::Open(handle) }
    }
}

impl Group {
    pub fn is_taken(&self) -> bool {
        !self.members.is_empty()
    }

    pub fn admits(&self, who: Who, mode: ranges::Use) -> Admission {
        // The kernel excludes members from writing while a writer waits, so the writer would wait for ever.
        let may_write = || self.members.iter().any(|(_, writes)| *writes);
        match who {
            Who::Pages => Admission::Granted,
            Who::Open(handle) | Who::Hurried(handle) if self.has_member(handle) => Admission::Granted,
            Who::Hurried(_) => Admission::Refused(Status::EAGAIN),
            _ if mode == ranges::Use::Exclusive && may_write() => Admission::Refused(Status::EBUSY),
            _ => Admission::Waits,
        }
    }

    pub fn has_member(&self, handle: OpenHandle) -> bool {
        self.members.iter().any(|(member, _)| *member == handle)
    }

    pub fn has(&self, resource: &ResourceId) -> bool {
        self.held.iter().any(|held| held.resource == *resource)
    }
}

impl FileInner {
    /// Decides whether an operation may use the file, as far as groups go.
    pub fn admission(&self, who: Who, mode: ranges::Use) -> Admission {
        self.group.as_ref().map_or(Admission::Granted, |group| group.admits(who, mode))
    }

    /// Returns the group under whose locks all operations run here.
    pub fn group_in_force(&self) -> Option<u64> {
        self.group.as_ref().filter(|group| group.is_taken()).map(|group| group.gid)
    }

    /// Counts one more thread that takes locks for a group; `None` if another group has the file.
    pub fn begin_joining(&mut self, handle: OpenHandle, gid: u64) -> Option<StatusResult<()>> {
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

    /// Records that a thread has the locks, or could not get them.
    pub fn end_joining(
        &mut self,
        handle: OpenHandle,
        writes: bool,
        outcome: FailureResult<()>,
    ) -> FailureResult<()> {
        let Some(group) = &mut self.group else { return Err(Status::EINVAL.into()) };
        group.joining -= 1;
        outcome?;
        // Two threads joined with the same descriptor at once.
        if group.has_member(handle) {
            return Err(Status::EINVAL.into());
        }
        group.members.push((handle, writes));
        Ok(())
    }

    /// Returns the locks to release, if the group has no members left.
    pub fn end_group(&mut self) -> Vec<Held> {
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
    /// True if a group has the file, or is about to have it.
    pub fn is_grouped(&self) -> bool {
        self.grouped.load(Ordering::Acquire)
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
        inner.end_joining(OpenHandle(1), true, Ok(())).expect("joined");
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
        // A second thread fails to join; the group stays.
        assert_eq!(inner.begin_joining(OpenHandle(2), 7), Some(Ok(())));
        let given_up = inner.end_joining(OpenHandle(2), false, Err(Status::EINTR.into()));
        assert_eq!(given_up.expect_err("given up"), Status::EINTR);
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
            inner.end_joining(handle, writes, Ok(())).expect("joined");
            inner.admission(Who::Open(other), ranges::Use::Exclusive)
        };
        assert_eq!(join(reader, false), Admission::Waits);
        assert_eq!(join(writer, true), Admission::Refused(Status::EBUSY), "a waiter, too");
    }
}
