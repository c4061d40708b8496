//! Lock growth: how far the server widens an extent beyond the request.
//!
//! A lock without conflicting holders covers the whole object, so a file that one client uses costs one
//! request. Next to other locks, it ends where they begin; under contention it stays near the request and
//! keeps the request's alignment, so that clients that write interleaved records get locks that do not touch
//! each other.

use crate::extent::{Extent, LOCK_PAGE_BYTES};
use crate::mode::Mode;
use crate::resource::{Need, Policy};
use crate::tree::IntervalTree;

/// Number of conflicting waiting requests above which a lock does not grow downwards. Lustre's number.
const WAITERS_FOR_DOWNWARD_GROWTH_MAX: usize = 4;
/// Number of conflicting locks above which a write lock grows by [`CROWDED_BYTES_MAX`] at most. Lustre's
/// number.
const CONFLICTS_BEFORE_CROWDED: usize = 32;
/// Bytes that a write lock covers among many conflicting ones. Lustre's number.
const CROWDED_BYTES_MAX: u64 = 32 << 20;

/// Returns the extent to grant for `requested` (whole pages) in `mode`. `granted` are the trees of the
/// resource, `waiting` the needs of all other requests in its queue.
pub(super) fn grown<'a>(
    mode: Mode,
    requested: Extent,
    granted: &[(Mode, IntervalTree)],
    waiting: impl Iterator<Item = &'a Need>,
) -> Extent {
    let in_the_way = |other: Mode| !mode.compatible().contains(other);
    let mut grown = Extent::WHOLE;
    let mut conflicts = 0;
    for (_, tree) in granted.iter().filter(|(held, tree)| in_the_way(*held) && !tree.is_empty()) {
        conflicts += tree.len();
        grown.start = requested.start;
        if let Some(next) = tree.first_start_above(requested.last) {
            grown.last = grown.last.min(next - 1);
        }
    }
    let mut waiters = 0;
    for waiter in waiting.filter(|waiter| in_the_way(waiter.mode)) {
        let Policy::Extent(wanted) = waiter.policy else { continue };
        waiters += 1;
        if waiters > WAITERS_FOR_DOWNWARD_GROWTH_MAX {
            grown.start = requested.start;
        }
        if wanted.last < requested.start {
            // Cannot overflow: the waiting request ends below the start of another extent.
            grown.start = grown.start.max(wanted.last + 1);
        } else if wanted.start > requested.last {
            grown.last = grown.last.min(wanted.start - 1);
        }
    }
    if conflicts + waiters > CONFLICTS_BEFORE_CROWDED && matches!(mode, Mode::Pw | Mode::Cw) {
        let crowded_last = requested.start.saturating_add(CROWDED_BYTES_MAX - 1);
        grown.last = grown.last.min(crowded_last).max(requested.last);
    }
    aligned_as(grown, requested)
}

/// Shrinks the grown ends to multiples of the largest power of two that divides both ends of the request, a
/// page at least. The whole object stays whole.
fn aligned_as(grown: Extent, requested: Extent) -> Extent {
    if grown == Extent::WHOLE {
        return grown;
    }
    // The end of the largest object, 2^64, is a multiple of every unit; it wraps to 0.
    let both = requested.start | requested.last.wrapping_add(1);
    let unit = match both.trailing_zeros() {
        64.. => return grown,
        zeros => (1u64 << zeros).max(LOCK_PAGE_BYTES),
    };
    // Neither end moves past the request: its ends are multiples of the unit. A start near 2^64 cannot be
    // rounded up past it.
    let start = grown.start.div_ceil(unit).saturating_mul(unit).min(requested.start);
    let end = grown.last.wrapping_add(1) & !(unit - 1);
    Extent { start, last: end.wrapping_sub(1).max(requested.last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn extent(start: u64, last: u64) -> Extent {
        Extent::new(start, last).expect("not empty")
    }

    fn held(mode: Mode, extents: &[Extent]) -> (Mode, IntervalTree) {
        let mut tree = IntervalTree::default();
        for (key, extent) in extents.iter().enumerate() {
            tree.insert(*extent, key as u32);
        }
        (mode, tree)
    }

    fn waiters(mode: Mode, extents: &[Extent]) -> Vec<Need> {
        extents.iter().map(|extent| Need::extent(mode, *extent)).collect()
    }

    #[test]
    fn alone_a_lock_covers_the_whole_object() {
        for mode in [Mode::Pr, Mode::Pw, Mode::Cw] {
            assert_eq!(grown(mode, extent(8192, 12287), &[], [].iter()), Extent::WHOLE);
        }
    }

    #[test]
    fn compatible_locks_do_not_limit() {
        let granted =
            [held(Mode::Pr, &[extent(0, 4095), extent(MIB, Extent::EOF)]), held(Mode::Nl, &[Extent::WHOLE])];
        assert_eq!(grown(Mode::Pr, extent(8192, 12287), &granted, [].iter()), Extent::WHOLE);
        let queue = waiters(Mode::Pr, &[extent(MIB, 2 * MIB - 1)]);
        assert_eq!(grown(Mode::Pr, extent(8192, 12287), &[], queue.iter()), Extent::WHOLE);
    }

    #[test]
    fn a_granted_conflict_pins_the_start_and_ends_the_lock_before_the_next_one() {
        let granted =
            [held(Mode::Pw, &[extent(0, 4095), extent(MIB, 2 * MIB - 1), extent(4 * MIB, Extent::EOF)])];
        assert_eq!(grown(Mode::Pw, extent(8192, 16383), &granted, [].iter()), extent(8192, MIB - 1));
        let above = extent(3 * MIB, 3 * MIB + 4095);
        assert_eq!(grown(Mode::Pr, above, &granted, [].iter()), extent(3 * MIB, 4 * MIB - 1));
    }

    #[test]
    fn a_granted_conflict_below_only_pins_the_start() {
        let granted = [held(Mode::Pw, &[extent(0, 4095)])];
        assert_eq!(grown(Mode::Pw, extent(MIB, MIB + 4095), &granted, [].iter()), extent(MIB, Extent::EOF));
    }

    #[test]
    fn waiters_limit_both_sides_unless_they_overlap_the_request() {
        let queue = waiters(
            Mode::Pw,
            &[extent(4096, 8191), extent(64 * 4096, 65 * 4096 - 1), extent(16 * 4096, 18 * 4096 - 1)],
        );
        let request = extent(16 * 4096, 17 * 4096 - 1);
        let result = grown(Mode::Pw, request, &[], queue.iter());
        assert_eq!(result, extent(2 * 4096, 64 * 4096 - 1));
    }

    #[test]
    fn five_waiters_end_downward_growth_and_four_do_not() {
        let above: Vec<Extent> = (0..5).map(|i| extent((100 + i) * 4096, (101 + i) * 4096 - 1)).collect();
        let request = extent(50 * 4096, 51 * 4096 - 1);
        let four = waiters(Mode::Pw, &above[..4]);
        assert_eq!(grown(Mode::Pw, request, &[], four.iter()), extent(0, 100 * 4096 - 1));
        let five = waiters(Mode::Pw, &above);
        assert_eq!(grown(Mode::Pw, request, &[], five.iter()), extent(50 * 4096, 100 * 4096 - 1));
    }

    #[test]
    fn among_more_than_32_conflicts_a_write_lock_grows_by_32_mib() {
        let page = |i: u64| extent(i * 4096, i * 4096 + 4095);
        let pages: Vec<Extent> = (0..33).map(page).collect();
        let request = extent(64 * MIB, 64 * MIB + 4095);
        let limited = extent(64 * MIB, 96 * MIB - 1);
        for mode in [Mode::Pw, Mode::Cw] {
            let crowd = [held(Mode::Pr, &pages)];
            assert_eq!(grown(mode, request, &crowd, [].iter()), limited, "{mode:?}");
            let few = [held(Mode::Pr, &pages[..32])];
            let free = extent(64 * MIB, Extent::EOF);
            assert_eq!(grown(mode, request, &few, [].iter()), free, "{mode:?}");
        }
        let crowd = [held(Mode::Pw, &pages)];
        assert_eq!(grown(Mode::Pr, request, &crowd, [].iter()), extent(64 * MIB, Extent::EOF));
        let long = extent(64 * MIB, 164 * MIB - 1);
        assert_eq!(grown(Mode::Pw, long, &[held(Mode::Pr, &pages)], [].iter()), long);
    }

    #[test]
    fn grown_ends_are_aligned_as_the_request_is() {
        // Interleaved records of 1 MiB: the neighbour above begins in the middle of a record.
        let granted = [held(Mode::Pw, &[extent(3 * MIB + 8192, 4 * MIB - 1)])];
        assert_eq!(grown(Mode::Pw, extent(MIB, 2 * MIB - 1), &granted, [].iter()), extent(MIB, 3 * MIB - 1));
        // A request of a page is aligned to pages only.
        let request = extent(MIB + 4096, MIB + 8191);
        assert_eq!(grown(Mode::Pw, request, &granted, [].iter()), extent(MIB + 4096, 3 * MIB + 8191));
        // Downwards: the waiter below ends at page 1, the request's unit is 16 pages.
        let queue = waiters(Mode::Pw, &[extent(0, 4095)]);
        let request = extent(32 * 4096, 48 * 4096 - 1);
        assert_eq!(grown(Mode::Pw, request, &[], queue.iter()), extent(16 * 4096, Extent::EOF));
    }

    #[test]
    fn requests_to_the_end_of_the_file_are_aligned_by_their_start() {
        let queue = waiters(Mode::Pw, &[extent(0, 4095)]);
        let request = extent(4 * MIB, Extent::EOF);
        assert_eq!(grown(Mode::Pw, request, &[], queue.iter()), extent(4 * MIB, Extent::EOF));
        let last_page = extent(u64::MAX - 4095, u64::MAX);
        let granted = [held(Mode::Pw, &[extent(0, 4095)])];
        assert_eq!(grown(Mode::Pw, last_page, &granted, [].iter()), last_page);
    }
}
