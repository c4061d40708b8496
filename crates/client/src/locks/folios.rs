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

/// `[start, end)`.
pub(crate) type Range = (u64, u64);

#[derive(Debug)]
struct Request {
    id: u64,
    range: Range,
    waiting: bool,
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

    /// A request for pages has come; says its number, and whether it is urgent. One that is not counts as waiting.
    pub fn enter(&mut self, range: Range) -> (u64, bool) {
        let id = self.fresh();
        self.hull = Some(self.hull.map_or(range, |hull| (hull.0.min(range.0), hull.1.max(range.1))));
        let mut urgent = false;
        for drop in self.drops.iter_mut().filter(|drop| drop.ranges.iter().any(|&own| overlap(own, range))) {
            drop.served.push(range);
            urgent = true;
        }
        self.requests.push(Request { id, range, waiting: !urgent });
        (id, urgent)
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

    /// Begins a round of dropping: gives its number and what is to be dropped of `ranges`, which is what may be cached
    /// and does not belong to waiting requests. `None` if that is nothing.
    pub fn begin_drop(&mut self, ranges: &[Range]) -> Option<(u64, Vec<Range>)> {
        let hull = self.hull?;
        let mut left: Vec<Range> = Vec::new();
        for &(start, end) in ranges {
            let clipped = (start.max(hull.0), end.min(hull.1));
            if clipped.0 < clipped.1 {
                left.push(clipped);
            }
        }
        for request in self.requests.iter().filter(|request| request.waiting) {
            left = left.into_iter().flat_map(|range| without(range, request.range)).collect();
        }
        if left.is_empty() {
            return None;
        }
        let id = self.fresh();
        self.drops.push(Drop { id, ranges: left.clone(), served: Vec::new() });
        Some((id, left))
    }

    /// Ends a round; gives what was brought back by urgent requests.
    pub fn end_drop(&mut self, id: u64) -> Vec<Range> {
        let place = self.drops.iter().position(|drop| drop.id == id);
        place.map_or_else(Vec::new, |place| self.drops.swap_remove(place).served)
    }
}

/// What is left of a range.
fn without(range: Range, hole: Range) -> impl Iterator<Item = Range> {
    let before = (range.0, range.1.min(hole.0));
    let after = (range.0.max(hole.1), range.1);
    [before, after].into_iter().filter(|piece| piece.0 < piece.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_dropped_of_a_file_that_was_never_cached() {
        let mut folios = Folios::default();
        assert_eq!(folios.begin_drop(&[(0, u64::MAX)]), None);
        let (id, urgent) = folios.enter((4096, 8192));
        assert!(!urgent);
        folios.leave(id);
        let (_, ranges) = folios.begin_drop(&[(0, u64::MAX)]).expect("something may be cached");
        assert_eq!(ranges, [(4096, 8192)]);
    }

    #[test]
    fn pages_of_requests_that_wait_are_left_out() {
        let mut folios = Folios::default();
        let (cached, _) = folios.enter((0, 100));
        folios.leave(cached);
        let (waits, _) = folios.enter((20, 30));
        let (runs, _) = folios.enter((50, 60));
        folios.goes_on(runs);
        let (id, ranges) = folios.begin_drop(&[(0, 40), (45, 80)]).expect("something is left");
        assert_eq!(ranges, [(0, 20), (30, 40), (45, 80)]);
        assert_eq!(folios.end_drop(id), []);
        folios.leave(waits);
    }

    #[test]
    fn who_comes_for_pages_that_are_being_dropped_is_urgent_and_makes_another_round() {
        let mut folios = Folios::default();
        let (cached, _) = folios.enter((0, 100));
        folios.leave(cached);
        let (id, _) = folios.begin_drop(&[(0, 50)]).expect("something may be cached");
        let (urgent, is_urgent) = folios.enter((40, 60));
        let (other, is_other_urgent) = folios.enter((60, 70));
        assert!(is_urgent && !is_other_urgent);
        let again = folios.end_drop(id);
        assert_eq!(again, [(40, 60)]);
        // The urgent one does not wait, so its pages are waited for.
        let (id, ranges) = folios.begin_drop(&again).expect("once more");
        assert_eq!(ranges, [(40, 60)]);
        folios.leave(urgent);
        assert_eq!(folios.end_drop(id), []);
        folios.leave(other);
    }
}
