//! Which pages of a file the kernel has locked for a request of its page cache, and which are being dropped.
//!
//! The kernel locks pages before it requests their content, and drops pages only when they are not locked. So
//! a drop of pages waits for requests. A request in turn may wait for a lock which another client releases
//! only after pages are dropped here: a deadlock. Three rules prevent it:
//!
//! - pages of a waiting request are left out: they hold nothing yet, and what they get is true under the lock
//!   that the request waits for;
//! - a request for pages that are being dropped is *urgent*: it is served under the lock that is being
//!   released, without waiting for anything, and its pages are dropped once more;
//! - the lock is released only after a round in which no urgent request came.
//!
//! Pages that are written back are different: they hold data that programs stored, under a lock that is still
//! held. Such a request avoids waiting where it can, so its pages are dropped, and the drop waits for the
//! request. If it cannot avoid waiting, it announces the wait as a separate step: if its pages are being
//! dropped at that moment it is urgent, otherwise they are in doubt from then on, as below.
//!
//! Pages are what counts, though requests name bytes: the kernel drops a page as a whole, and waits for it if
//! it is locked. A write that goes through the cache keeps only one page locked, its last, and only if it
//! writes a part of it and the rest is not known. The kernel does not report which is the case, so that page
//! is *in doubt*: a thread of its own drops it. If it is not locked that is done at once, and if it is, the
//! page holds nothing that could be outdated.

/// Bytes `[start, end)`.
pub(crate) type Range = (u64, u64);

/// The kernel's smallest page in bytes.
const PAGE_BYTES: u64 = 4096;

/// Which pages the kernel has locked for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// All pages that it touches, which hold nothing yet: the kernel reads them.
    Touched,
    /// All pages that it touches, which hold the data to write back.
    WrittenBack,
    /// Possibly the last page, if the request writes only a part of it.
    PerhapsLast,
}

impl Pages {
    /// Returns the pages that need not be dropped while the request waits, and those in doubt.
    fn of(self, range: Range) -> (Range, Option<Range>) {
        let (inside, touched) = ((page_after(range.0), page_of(range.1)), touched(range));
        match self {
            Pages::WrittenBack => return ((0, 0), Some(touched)),
            Pages::Touched => return (touched, None),
            Pages::PerhapsLast if range.0 >= range.1 => return (touched, None),
            Pages::PerhapsLast => {}
        }
        let last = page_of(range.1 - 1);
        let is_partial = !range.1.is_multiple_of(PAGE_BYTES) || range.0 > last;
        (inside, is_partial.then_some((last, touched.1)))
    }
}

fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES * PAGE_BYTES
}

fn page_after(offset: u64) -> u64 {
    offset.checked_next_multiple_of(PAGE_BYTES).unwrap_or(u64::MAX)
}

/// Returns the bytes of all pages of a range.
fn touched((start, end): Range) -> Range {
    (page_of(start), page_after(end))
}

#[derive(Debug)]
struct Request {
    id: u64,
    /// All pages that the request touches.
    touched: Range,
    /// Pages left out of drops while the request waits.
    held: Range,
    /// Pages that the kernel may have locked, see the [module documentation](self).
    in_doubt: Option<Range>,
    waiting: bool,
}

/// A round of drops.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// Number for [`Folios::end_drop`].
    pub id: u64,
    /// Ranges to be dropped.
    pub ranges: Vec<Range>,
    /// Pages to be dropped too, which a waiting request may have locked.
    pub in_doubt: Vec<Range>,
}

#[derive(Debug)]
struct Drop {
    id: u64,
    ranges: Vec<Range>,
    /// Pages of urgent requests that came meanwhile.
    served: Vec<Range>,
}

/// Requests for pages and drops of pages of one file.
#[derive(Debug, Default)]
pub(crate) struct Folios {
    next: u64,
    requests: Vec<Request>,
    drops: Vec<Drop>,
    /// Smallest range with everything that was ever requested, if anything.
    hull: Option<Range>,
}

fn overlap(a: Range, b: Range) -> bool {
    a.0 < b.1 && b.0 < a.1
}

impl Folios {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Enters a request for pages; returns its number, and whether it is urgent. One that is not urgent
    /// counts as waiting, unless it writes back: then [`Folios::waits`] is called before it waits.
    pub fn enter(&mut self, range: Range, pages: Pages) -> (u64, bool) {
        let id = self.fresh();
        let (held, in_doubt) = pages.of(range);
        let range = touched(range);
        self.hull = Some(self.hull.map_or(range, |hull| (hull.0.min(range.0), hull.1.max(range.1))));
        let urgent = self.joins_drops(range);
        let waiting = !urgent && pages != Pages::WrittenBack;
        self.requests.push(Request { id, touched: range, held, in_doubt, waiting });
        (id, urgent)
    }

    /// True if any of these pages are being dropped; they are dropped once more then.
    fn joins_drops(&mut self, range: Range) -> bool {
        let mut any = false;
        for drop in self.drops.iter_mut().filter(|drop| drop.ranges.iter().any(|&own| overlap(own, range))) {
            drop.served.push(range);
            any = true;
        }
        any
    }

    /// Records that a request that writes back is about to wait. True if it must not wait, as it is urgent by
    /// then.
    pub fn waits(&mut self, id: u64) -> bool {
        let Some(place) = self.requests.iter().position(|request| request.id == id) else { return false };
        let urgent = self.joins_drops(self.requests[place].touched);
        self.requests[place].waiting = !urgent;
        urgent
    }

    /// Records that a request has all that it waited for.
    pub fn goes_on(&mut self, id: u64) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == id) {
            request.waiting = false;
        }
    }

    /// Removes a request that is about to be answered.
    pub fn leave(&mut self, id: u64) {
        self.requests.retain(|request| request.id != id);
    }

    /// Returns the range of everything that may be cached, if anything.
    pub fn hull(&self) -> Option<Range> {
        self.hull
    }

    /// Begins a round that drops what may be cached of `ranges` and does not belong to waiting requests.
    /// `None` if there is nothing to drop.
    pub fn begin_drop(&mut self, ranges: &[Range]) -> Option<Round> {
        let hull = self.hull?;
        let mut left: Vec<Range> = Vec::new();
        for &range in ranges {
            let (start, end) = touched(range);
            let clipped = (start.max(hull.0), end.min(hull.1));
            if clipped.0 < clipped.1 {
                left.push(clipped);
            }
        }
        let mut in_doubt = Vec::new();
        for request in self.requests.iter().filter(|request| request.waiting) {
            left = left.into_iter().flat_map(|range| without(range, request.held)).collect();
            let Some(page) = request.in_doubt else { continue };
            if left.iter().any(|&range| overlap(range, page)) {
                left = left.into_iter().flat_map(|range| without(range, page)).collect();
                in_doubt.push(page);
            }
        }
        if left.is_empty() && in_doubt.is_empty() {
            return None;
        }
        let id = self.fresh();
        let all = left.iter().chain(&in_doubt).copied().collect();
        self.drops.push(Drop { id, ranges: all, served: Vec::new() });
        Some(Round { id, ranges: left, in_doubt })
    }

    /// Ends a round; returns the pages that urgent requests brought back.
    pub fn end_drop(&mut self, id: u64) -> Vec<Range> {
        let place = self.drops.iter().position(|drop| drop.id == id);
        place.map_or_else(Vec::new, |place| self.drops.swap_remove(place).served)
    }
}

/// Returns the parts of `range` outside of `hole`.
fn without(range: Range, hole: Range) -> impl Iterator<Item = Range> {
    let hole = if hole.0 < hole.1 { hole } else { (range.1, range.1) };
    let before = (range.0, range.1.min(hole.0));
    let after = (range.0.max(hole.1), range.1);
    [before, after].into_iter().filter(|piece| piece.0 < piece.1)
}

#[cfg(test)]
mod tests {
    use super::Pages::{PerhapsLast, Touched, WrittenBack};
    use super::*;

    /// Returns the range of pages `start` to `end`.
    const fn pages(start: u64, end: u64) -> Range {
        (start * PAGE_BYTES, end * PAGE_BYTES)
    }

    fn begin(folios: &mut Folios, ranges: &[Range]) -> Round {
        folios.begin_drop(ranges).expect("something may be cached")
    }

    #[test]
    fn nothing_is_dropped_of_a_file_that_was_never_cached() {
        let mut folios = Folios::default();
        assert_eq!(folios.begin_drop(&[(0, u64::MAX)]), None);
        let (id, urgent) = folios.enter((4096, 8192), Touched);
        assert!(!urgent);
        folios.leave(id);
        assert_eq!(begin(&mut folios, &[(0, u64::MAX)]).ranges, [(4096, 8192)]);
    }

    #[test]
    fn pages_of_requests_that_wait_are_left_out() {
        let mut folios = Folios::default();
        let (cached, _) = folios.enter(pages(0, 100), Touched);
        folios.leave(cached);
        let (waits, _) = folios.enter(pages(20, 30), Touched);
        let (runs, _) = folios.enter(pages(50, 60), Touched);
        folios.goes_on(runs);
        let round = begin(&mut folios, &[pages(0, 40), pages(45, 80)]);
        assert_eq!(round.ranges, [pages(0, 20), pages(30, 40), pages(45, 80)]);
        assert_eq!(folios.end_drop(round.id), []);
        folios.leave(waits);
    }

    #[test]
    fn who_comes_for_pages_that_are_being_dropped_is_urgent_and_makes_another_round() {
        let mut folios = Folios::default();
        let (cached, _) = folios.enter(pages(0, 100), Touched);
        folios.leave(cached);
        let round = begin(&mut folios, &[pages(0, 50)]);
        let (urgent, is_urgent) = folios.enter(pages(40, 60), Touched);
        let (other, is_other_urgent) = folios.enter(pages(60, 70), Touched);
        assert!(is_urgent && !is_other_urgent);
        let again = folios.end_drop(round.id);
        assert_eq!(again, [pages(40, 60)]);
        // The urgent one does not wait, so the drop waits for its pages.
        let round = begin(&mut folios, &again);
        assert_eq!(round.ranges, [pages(40, 60)]);
        folios.leave(urgent);
        assert_eq!(folios.end_drop(round.id), []);
        folios.leave(other);
    }

    #[test]
    fn a_page_of_which_a_waiting_request_has_a_part_is_not_waited_for() {
        let mut folios = Folios::default();
        let (cached, _) = folios.enter(pages(0, 10), Touched);
        folios.leave(cached);
        // The end of a file, read: its last page is locked as a whole.
        let (back, _) = folios.enter((2 * PAGE_BYTES, 3 * PAGE_BYTES + 77), Touched);
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!((round.ranges, round.in_doubt), (vec![pages(0, 2), pages(4, 10)], vec![]));
        folios.end_drop(round.id);
        folios.leave(back);
        // Through the cache: the first page is locked only if it is the last one too.
        let in_doubt = |write: Range| {
            let mut folios = Folios::default();
            let (cached, _) = folios.enter(pages(0, 10), Touched);
            folios.leave(cached);
            folios.enter(write, PerhapsLast);
            let round = begin(&mut folios, &[(0, u64::MAX)]);
            (round.ranges, round.in_doubt)
        };
        assert_eq!(in_doubt((5000, 3 * 4096)), (vec![pages(0, 2), pages(3, 10)], vec![]));
        assert_eq!(in_doubt((5000, 8192)), (vec![pages(0, 1), pages(2, 10)], vec![pages(1, 2)]));
        assert_eq!(in_doubt((4096, 8000)), (vec![pages(0, 1), pages(2, 10)], vec![pages(1, 2)]));
        assert_eq!(in_doubt((5000, 9000)), (vec![pages(0, 2), pages(3, 10)], vec![pages(2, 3)]));
        assert_eq!(in_doubt((4096, 8192)), (vec![pages(0, 1), pages(2, 10)], vec![]));
    }

    #[test]
    fn a_round_may_have_nothing_but_a_page_in_doubt() {
        let mut folios = Folios::default();
        folios.enter((10, 20), PerhapsLast);
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!((round.ranges, round.in_doubt), (vec![], vec![pages(0, 1)]));
    }

    #[test]
    fn pages_that_are_written_back_are_dropped_with_the_lock_that_they_were_stored_to_under() {
        let mut folios = Folios::default();
        let (back, urgent) = folios.enter((4096, 8000), WrittenBack);
        assert!(!urgent, "it goes on by itself, and dropping waits for it");
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!((round.ranges, round.in_doubt), (vec![pages(1, 2)], vec![]));
        assert!(folios.waits(back), "now it must not wait any more");
        assert_eq!(folios.end_drop(round.id), [pages(1, 2)]);
        // It is urgent, so the drop waits for it.
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!(round.ranges, [pages(1, 2)]);
        folios.end_drop(round.id);
        folios.leave(back);
        // A request that has begun to wait may wait for long; its pages are dropped when it has ended.
        let (waits, _) = folios.enter((4096, 8000), WrittenBack);
        assert!(!folios.waits(waits));
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!((round.ranges, round.in_doubt), (vec![], vec![pages(1, 2)]));
        folios.end_drop(round.id);
        folios.goes_on(waits);
        assert_eq!(begin(&mut folios, &[(0, u64::MAX)]).ranges, [pages(1, 2)]);
    }
}
