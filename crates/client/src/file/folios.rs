//! Which pages of a file the kernel has locked for a request of its page cache, and which are being dropped.
//!
//! The kernel locks pages before it asks for their content and drops pages only when they are not locked. So who drops pages
//! waits for requests, and a request that waits for a lock which another client gives up only when pages are dropped here
//! would wait for ever. Three rules prevent that:
//!
//! - pages of a request that waits are left out: they hold nothing yet, and what they get is true under the lock that it
//!   waits for;
//! - a request that comes for pages that are being dropped is *urgent*: it is served under the lock that is being given
//!   up, without waiting for anything, and its pages are dropped once more;
//! - the lock is given up only after a round in which no urgent request came.
//!
//! Pages that are written back are different: they hold what was stored, under a lock that is still there. Such a request does without
//! waiting where it can, so its pages are dropped, which waits for it. One that cannot begins to wait as a step of its own: if its pages
//! are being dropped then it is urgent, and if not they are in doubt from there on, as below.
//!
//! What counts are pages, though requests name bytes: the kernel drops a page as a whole, and waits for it if it is locked. A write that goes
//! through the cache keeps only one page locked, its last, and only if it writes a part of it and the rest is not known. Nobody tells
//! which is the case, so that page is *in doubt*: it is dropped by a thread of its own. If it is not locked that is done at once, and
//! if it is, the page holds nothing that could be old.

/// `[start, end)`.
pub(crate) type Range = (u64, u64);

/// The kernel's smallest page in bytes.
const PAGE_BYTES: u64 = 4096;

/// What the kernel has locked for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pages {
    /// All pages that it touches, which hold nothing yet: it reads them.
    Touched,
    /// All pages that it touches, which hold what it writes back.
    WrittenBack,
    /// Perhaps the last one, if it writes only a part of that.
    PerhapsLast,
}

impl Pages {
    /// Pages that need not be dropped while the request waits, and the one that is in doubt.
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

/// The bytes of all pages of a range.
fn touched((start, end): Range) -> Range {
    (page_of(start), page_after(end))
}

#[derive(Debug)]
struct Request {
    id: u64,
    /// All pages that it touches.
    touched: Range,
    /// Is left out of drops while the request waits.
    held: Range,
    /// See the [module documentation](self).
    in_doubt: Option<Range>,
    waiting: bool,
}

/// A round of dropping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    /// For [`Folios::end_drop`].
    pub id: u64,
    /// To be dropped.
    pub ranges: Vec<Range>,
    /// Pages that are to be dropped too, and that a request that waits may have locked.
    pub in_doubt: Vec<Range>,
}

#[derive(Debug)]
struct Drop {
    id: u64,
    ranges: Vec<Range>,
    /// Urgent requests that came meanwhile.
    served: Vec<Range>,
}

/// The table of one file.
#[derive(Debug, Default)]
pub(crate) struct Folios {
    next: u64,
    requests: Vec<Request>,
    drops: Vec<Drop>,
    /// Everything that was ever asked for, if anything.
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

    /// A request for pages has come; says its number, and whether it is urgent. One that is not counts as waiting, unless it writes
    /// back: then [`Folios::waits`] is called before it does.
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

    /// True if any of these pages are being dropped; then they are dropped once more.
    fn joins_drops(&mut self, range: Range) -> bool {
        let mut any = false;
        for drop in self.drops.iter_mut().filter(|drop| drop.ranges.iter().any(|&own| overlap(own, range))) {
            drop.served.push(range);
            any = true;
        }
        any
    }

    /// A request that writes back is about to wait for something. True if it must not, as it is urgent by now.
    pub fn waits(&mut self, id: u64) -> bool {
        let Some(place) = self.requests.iter().position(|request| request.id == id) else { return false };
        let urgent = self.joins_drops(self.requests[place].touched);
        self.requests[place].waiting = !urgent;
        urgent
    }

    /// A request has all that it waited for.
    pub fn goes_on(&mut self, id: u64) {
        if let Some(request) = self.requests.iter_mut().find(|request| request.id == id) {
            request.waiting = false;
        }
    }

    /// A request is about to be answered.
    pub fn leave(&mut self, id: u64) {
        self.requests.retain(|request| request.id != id);
    }

    /// Everything that may be cached, if anything.
    pub fn hull(&self) -> Option<Range> {
        self.hull
    }

    /// Begins a round of dropping what may be cached of `ranges` and does not belong to waiting requests. `None` if that is
    /// nothing.
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

    /// Ends a round; gives what was brought back by urgent requests.
    pub fn end_drop(&mut self, id: u64) -> Vec<Range> {
        let place = self.drops.iter().position(|drop| drop.id == id);
        place.map_or_else(Vec::new, |place| self.drops.swap_remove(place).served)
    }
}

/// What is left of a range.
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

    /// Pages from `start` to `end`.
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
        // The urgent one does not wait, so its pages are waited for.
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
        // Through the cache: the page of the beginning is locked only if it is the last one too.
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
        // Urgent, it is waited for.
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!(round.ranges, [pages(1, 2)]);
        folios.end_drop(round.id);
        folios.leave(back);
        // One that has begun to wait may have to for long; its pages go when it has ended.
        let (waits, _) = folios.enter((4096, 8000), WrittenBack);
        assert!(!folios.waits(waits));
        let round = begin(&mut folios, &[(0, u64::MAX)]);
        assert_eq!((round.ranges, round.in_doubt), (vec![], vec![pages(1, 2)]));
        folios.end_drop(round.id);
        folios.goes_on(waits);
        assert_eq!(begin(&mut folios, &[(0, u64::MAX)]).ranges, [pages(1, 2)]);
    }
}
