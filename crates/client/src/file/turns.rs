//! Byte ranges of a file, and turns to tell its MDT something: taken, waited for, and given back.

use crate::file::group::{Admission, Who};
use crate::file::ranges::Use;
use crate::file::{FileInner, FileState};
use nacre_types::{Status, StatusResult};
use std::time::Duration;

/// How often a wait asks whether it was interrupted.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);

/// Something of a file is on its way to the MDT, as long as this exists: one thing after the other.
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

/// A byte range of a file in use; given back when dropped.
pub(crate) struct RangeGuard<'a> {
    file: &'a FileState,
    ticket: u64,
}

impl RangeGuard<'_> {
    /// Gives the range back and changes the state in one step, so that nobody sees one without the other.
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
    /// Waits until `ready` gives something, which is tried again after every change of the state.
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

    /// Waits until the MDT has heard what it is being told ([`FileInner::telling`]).
    pub fn wait_until_told(&self) {
        drop(self.lock_untold());
    }

    /// The same; nothing more is told but by the caller until the result is dropped.
    pub fn tell(&self) -> Telling<'_> {
        self.lock_untold().news.telling = true;
        Telling(self)
    }

    /// The same for a program that may give up: what is being told waits for an MDT that is away.
    ///
    /// # Errors
    /// `EINTR`.
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

    /// Takes `[start, end)` if that is possible at once.
    pub fn try_range(&self, start: u64, end: u64, mode: Use) -> Option<RangeGuard<'_>> {
        let mut inner = self.lock();
        if inner.frozen.is_some() {
            return None;
        }
        let ticket = inner.ranges.try_take(start, end, mode)?;
        drop(inner);
        Some(RangeGuard { file: self, ticket })
    }

    /// Takes the range that `choose` names (it may depend on the size) and gives what else `choose` says. Waits while the file is
    /// frozen, or a group has it that does not admit `who`.
    ///
    /// # Errors
    /// `EBUSY` if the group's members would wait for this one; `EAGAIN` for who does not wait for groups; `EINTR`.
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

    /// The same for who does not touch the data, or is the one that has frozen the file.
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
