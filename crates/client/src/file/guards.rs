//! Guards of a file: byte ranges, and reports to its MDT one after the other.

use crate::file::group::{Admission, Who};
use crate::file::ranges::Use;
use crate::file::{FileInner, FileState};
use nacre_types::{Status, StatusResult};
use std::time::Duration;

/// How often a wait checks for an interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);

/// Guard of a report about a file to the MDT: at most one exists per file.
pub(crate) struct Telling<'a>(&'a FileState);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.news.telling = false;
        if inner.ranges.waiters > 0 {
            self.0.changed.notify_all();
        }
    }
}

/// A byte range of a file in use; released when dropped.
pub(crate) struct RangeGuard<'a> {
    file: &'a FileState,
    ticket: u64,
}

impl RangeGuard<'_> {
    /// Releases the range and changes the state in one step, so that no thread sees one without the other.
    pub fn finish<R>(self, change: impl FnOnce(&mut FileInner) -> R) -> R {
        let mut inner = self.file.lock();
        let result = change(&mut inner);
        self.give_back(&mut inner);
        std::mem::forget(self);
        result
    }

    fn give_back(&self, inner: &mut FileInner) {
        inner.ranges.release(self.ticket);
        if inner.ranges.waiters > 0 {
            self.file.changed.notify_all();
        }
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        self.give_back(&mut inner);
    }
}

impl FileState {
    /// Waits until `ready` returns a value; calls it again after every change of the state.
    ///
    /// # Errors
    /// `EINTR` if the program was interrupted meanwhile.
    pub fn wait_for<R>(&self, mut ready: impl FnMut(&mut FileInner) -> Option<R>) -> StatusResult<R> {
        let mut inner = self.lock();
        if let Some(result) = ready(&mut inner) {
            return Ok(result);
        }
        nacre_env::blocking(|| {
            inner.ranges.waiters += 1;
            let outcome = loop {
                if nacre_env::interrupted() {
                    break Err(Status::EINTR);
                }
                self.changed.wait_for(&mut inner, INTERRUPT_POLL);
                if let Some(result) = ready(&mut inner) {
                    break Ok(result);
                }
            };
            inner.ranges.waiters -= 1;
            outcome
        })
    }

    /// Waits until no report to the MDT is under way ([`FileInner::telling`]).
    pub fn wait_until_told(&self) {
        drop(self.lock_untold());
    }

    /// Does the same and excludes reports of other threads until the result is dropped.
    pub fn tell(&self) -> Telling<'_> {
        self.lock_untold().news.telling = true;
        Telling(self)
    }

    /// Does the same for a program that may be interrupted: a report under way may wait for an unreachable
    /// MDT.
    ///
    /// # Errors
    /// `EINTR` if the program was interrupted meanwhile.
    pub fn tell_unless_interrupted(&self) -> StatusResult<Telling<'_>> {
        self.wait_for(|inner| (!inner.news.telling).then(|| inner.news.telling = true))?;
        Ok(Telling(self))
    }

    fn lock_untold(&self) -> nacre_env::sync::MutexGuard<'_, FileInner> {
        let mut inner = self.lock();
        if inner.news.telling {
            nacre_env::blocking(|| {
                inner.ranges.waiters += 1;
                while inner.news.telling {
                    self.changed.wait(&mut inner);
                }
                inner.ranges.waiters -= 1;
            });
        }
        inner
    }

    /// Takes `[start, end)` if that is possible without waiting.
    pub fn try_range(&self, start: u64, end: u64, mode: Use) -> Option<RangeGuard<'_>> {
        let mut inner = self.lock();
        if inner.frozen.is_some() {
            return None;
        }
        let ticket = inner.ranges.try_take(start, end, mode)?;
        drop(inner);
        Some(RangeGuard { file: self, ticket })
    }

    /// Takes the range that `choose` returns (it may depend on the size), and returns the rest of its result.
    /// Waits while the file is frozen, or a group has it that does not admit `who`.
    ///
    /// # Errors
    /// `EBUSY` if the group's members would wait for this operation; `EAGAIN` for an operation that does not
    /// wait for groups; `EINTR`.
    pub fn take_range<R>(
        &self,
        who: Who,
        mode: Use,
        mut choose: impl FnMut(&mut FileInner) -> (u64, u64, R),
    ) -> StatusResult<(RangeGuard<'_>, R)> {
        self.wait_for(|inner| {
            if inner.frozen.is_some() {
                return None;
            }
            match inner.admission(who, mode) {
                Admission::Granted => {}
                Admission::Waits => return None,
                Admission::Refused(status) => return Some(Err(status)),
            }
            let (start, end, more) = choose(inner);
            Some(Ok((inner.ranges.try_take(start, end, mode)?, more)))
        })?
        .map(|(ticket, more)| (RangeGuard { file: self, ticket }, more))
    }

    /// Does the same for an operation that does not touch the data, or that belongs to the open that has
    /// frozen the file.
    pub fn take_range_ungated<R>(
        &self,
        mode: Use,
        mut choose: impl FnMut(&mut FileInner) -> (u64, u64, R),
    ) -> StatusResult<(RangeGuard<'_>, R)> {
        self.wait_for(|inner| {
            let (start, end, more) = choose(inner);
            Some((inner.ranges.try_take(start, end, mode)?, more))
        })
        .map(|(ticket, more)| (RangeGuard { file: self, ticket }, more))
    }
}
