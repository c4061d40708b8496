//! The next page of a listing, fetched while the kernel processes the one before.
//!
//! A listing is a chain: a page is requested with the position at which the page before ended. So a program
//! that lists a large directory would wait for the MDT once for each page, and the MDT for the program. Here
//! the next request is sent as soon as a page is handed over. The end of a directory, which kernels request
//! once more, costs no request either.
//!
//! # Validity
//!
//! A page that was fetched ahead is handed out only under the exclusive lease of its request, or with other
//! clients under the lock on the directory that came with it, and only if this client has changed nothing
//! since.
//!
//! # Bounds
//!
//! One page for each open directory, [`PAGES_MAX`] of them in a client, each of up to
//! [`nacre_wire::dir::DIR_PAGE_MAX`] bytes.

use nacre_env::sync::{Condvar, Mutex};
use nacre_types::{Status, StatusResult};
use nacre_wire::mds::DirPage;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Pages fetched ahead at a time, at most (as many as directories may have statahead).
const PAGES_MAX: usize = 16;
/// How often a wait checks for an interrupt.
const INTERRUPT_POLL: Duration = Duration::from_millis(10);

/// Describes a page of a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Position behind which it begins.
    pub cookie: u64,
    pub max_bytes: u32,
    pub plus: bool,
}

impl Wanted {
    /// True if a page of this kind also serves `other`: attributes can be left out, and a size is only a
    /// hint.
    fn serves(&self, other: &Wanted) -> bool {
        self.cookie == other.cookie && (self.plus || !other.plus)
    }
}

/// A page, and its validity.
pub(crate) struct Page {
    pub page: DirPage,
    /// Number of the lease under which it was requested, 0 if that was not exclusive.
    pub lease: u64,
    /// [`Requests::changes`](crate::requests::Requests) before the request.
    pub changes: u64,
}

impl Page {
    /// True if it can be checked later whether the page is still valid.
    pub(crate) fn can_be_kept(&self) -> bool {
        self.lease != 0 || self.page.lock.0 != 0
    }
}

/// One of [`PAGES_MAX`] places for pages fetched ahead.
pub(crate) struct Place(Arc<AtomicUsize>);

impl Place {
    pub fn take(places: &Arc<AtomicUsize>) -> Option<Place> {
        let more = |taken: usize| (taken < PAGES_MAX).then_some(taken + 1);
        places.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place(places.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
pub(crate) enum State {
    #[default]
    Idle,
    /// No thread has begun: a reader that needs the page requests it itself.
    Queued(Wanted, Place),
    Fetching(Wanted),
    Ready {
        kind: Wanted,
        page: Page,
        /// Held by a page with entries.
        _place: Option<Place>,
    },
}

/// The page fetched ahead for an open directory.
#[derive(Default)]
pub(crate) struct PageAhead {
    state: Mutex<State>,
    fetched: Condvar,
}

impl PageAhead {
    /// Takes the page, if it was fetched; waits if it is being fetched.
    ///
    /// # Errors
    /// `EINTR` if the program was interrupted meanwhile.
    pub fn take(&self, wanted: &Wanted) -> StatusResult<Option<Page>> {
        let mut state = self.state.lock();
        let is_coming = |state: &State| matches!(state, State::Fetching(coming) if coming.serves(wanted));
        if is_coming(&state) {
            nacre_env::blocking(|| {
                while is_coming(&state) {
                    if nacre_env::interrupted() {
                        return Err(Status::EINTR);
                    }
                    self.fetched.wait_for(&mut state, INTERRUPT_POLL);
                }
                Ok(())
            })?;
        }
        if matches!(*state, State::Fetching(_)) {
            return Ok(None);
        }
        match std::mem::take(&mut *state) {
            State::Ready { kind, page, .. } if kind.serves(wanted) => Ok(Some(page)),
            _ => Ok(None),
        }
    }

    /// Queues the page that will be wanted; false if another one is being fetched.
    pub fn queue(&self, wanted: Wanted, place: Place) -> bool {
        let mut state = self.state.lock();
        if matches!(*state, State::Fetching(_)) {
            return false;
        }
        *state = State::Queued(wanted, place);
        true
    }

    /// Fetches the queued page with `fetch`, unless another thread was faster.
    pub fn serve(&self, fetch: impl FnOnce(&Wanted) -> Option<Page>) {
        struct Ending<'a>(&'a PageAhead, State);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                *self.0.state.lock() = std::mem::take(&mut self.1);
                self.0.fetched.notify_all();
            }
        }
        let (wanted, place) = {
            let mut state = self.state.lock();
            match std::mem::take(&mut *state) {
                State::Queued(wanted, place) => {
                    *state = State::Fetching(wanted);
                    (wanted, place)
                }
                other => {
                    *state = other;
                    return;
                }
            }
        };
        let mut ending = Ending(self, State::Idle);
        if let Some(page) = fetch(&wanted) {
            ending.1 = State::Ready { kind: wanted, page, _place: Some(place) };
        }
    }

    /// Records that there is nothing behind `wanted`, which is as valid as `last` is.
    pub fn note_end(&self, wanted: Wanted, last: &Page) {
        let DirPage { public, lock, .. } = last.page;
        let page = DirPage { bytes: Vec::new(), end: true, public, lock };
        let mut state = self.state.lock();
        if !matches!(*state, State::Fetching(_)) {
            let end = Page { page, lease: last.lease, changes: last.changes };
            *state = State::Ready { kind: wanted, page: end, _place: None };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Wanted = Wanted { cookie: 10, max_bytes: 4096, plus: true };

    fn page(lease: u64) -> Page {
        Page { page: DirPage { public: true, ..DirPage::default() }, lease, changes: 0 }
    }

    fn place() -> Place {
        Place::take(&Arc::default()).expect("the first one")
    }

    #[test]
    fn a_page_serves_its_position_with_attributes_or_without() {
        let ahead = PageAhead::default();
        for (wanted, found) in [
            (FIRST, true),
            (Wanted { plus: false, max_bytes: 99, ..FIRST }, true),
            (Wanted { cookie: 11, ..FIRST }, false),
        ] {
            assert!(ahead.queue(FIRST, place()));
            ahead.serve(|wanted| Some(page(wanted.cookie)));
            let page = ahead.take(&wanted).expect("not interrupted");
            assert_eq!(page.map(|page| page.lease), found.then_some(10));
            assert!(ahead.take(&wanted).expect("not interrupted").is_none(), "only once");
        }
        assert!(ahead.queue(Wanted { plus: false, ..FIRST }, place()));
        ahead.serve(|_| Some(page(1)));
        assert!(ahead.take(&FIRST).expect("not interrupted").is_none(), "it has no attributes");
    }

    #[test]
    fn who_needs_a_page_before_a_thread_begins_does_not_wait() {
        let ahead = PageAhead::default();
        assert!(ahead.queue(FIRST, place()));
        assert!(ahead.take(&FIRST).expect("not interrupted").is_none());
        ahead.serve(|_| panic!("nobody wants it any more"));
    }

    #[test]
    fn a_page_on_its_way_is_waited_for_and_a_failed_one_is_not_there() {
        for fetched in [true, false] {
            let ahead = PageAhead::default();
            assert!(ahead.queue(FIRST, place()));
            nacre_env::thread::scope(|scope| {
                let (begun, has_begun) = nacre_env::sync::mpsc::channel();
                let (go, may_go) = nacre_env::sync::mpsc::channel::<()>();
                let ahead = &ahead;
                scope.spawn(move || {
                    ahead.serve(|_| {
                        begun.send(()).expect("waited for");
                        may_go.recv().expect("told");
                        fetched.then(|| page(5))
                    });
                });
                has_begun.recv().expect("begun");
                assert!(!ahead.queue(FIRST, place()), "one at a time");
                let other = Wanted { cookie: 99, ..FIRST };
                assert!(ahead.take(&other).expect("not interrupted").is_none());
                let reader = scope.spawn(|| ahead.take(&FIRST).expect("not interrupted").is_some());
                go.send(()).expect("waited for");
                assert_eq!(reader.join().expect("no panic"), fetched);
            });
        }
    }

    #[test]
    fn pages_are_bounded_and_given_back() {
        let places = Arc::default();
        let taken: Vec<Place> = (0..PAGES_MAX).map_while(|_| Place::take(&places)).collect();
        assert_eq!(taken.len(), PAGES_MAX);
        assert!(Place::take(&places).is_none());
        drop(taken);
        let ahead = PageAhead::default();
        assert!(ahead.queue(FIRST, Place::take(&places).expect("room")));
        ahead.serve(|_| Some(page(1)));
        assert_eq!(places.load(Ordering::Relaxed), 1);
        drop(ahead);
        assert_eq!(places.load(Ordering::Relaxed), 0);
    }
}
