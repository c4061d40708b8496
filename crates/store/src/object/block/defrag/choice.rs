//! The choice of parts of objects that are worth moving. Pure.
//!
//! A part is judged from a reader's point of view: `R` transfers of at most [`UNIT`] blocks, none across the
//! end of an extent, are needed to read it, and `R0` if it were in one piece, holes ending a transfer in
//! both. It is worth moving if `(R - R0) / R` is at least the threshold: the share of transfers that only
//! fragmentation causes, as `nacre frag` shows it.

use super::super::device::BLOCK;
use nacre_ondisk::block::Place;

/// Blocks of one large transfer: 1 MiB.
pub(super) const UNIT: u64 = (1 << 20) / BLOCK;

/// Placement of a part of an object. Blocks are pushed in the order of the object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// Blocks that have a place.
    pub(super) blocks: u64,
    /// Number of pieces that they are in.
    pub(super) extents: u64,
    /// Transfers for reading them.
    pub(super) transfers: u64,
    /// Transfers if they were in one piece.
    pub(super) least: u64,
    /// The last block: its number in the object and its place.
    last: Option<(u64, u64)>,
    /// Blocks of the current extent, and of the current run without a hole.
    in_extent: u64,
    in_run: u64,
}

impl Weight {
    /// Adds block `block` of the object at `place`.
    pub(super) fn push(&mut self, block: u64, place: Place) {
        let Some(at) = place.block() else { return };
        let follows = self.last.is_some_and(|(last, _)| last + 1 == block);
        let goes_on = follows && self.last.is_some_and(|(_, last)| last + 1 == at);
        self.in_run = if follows { self.in_run + 1 } else { 1 };
        self.in_extent = if goes_on { self.in_extent + 1 } else { 1 };
        self.blocks += 1;
        self.extents += u64::from(!goes_on);
        self.transfers += u64::from(self.in_extent % UNIT == 1);
        self.least += u64::from(self.in_run % UNIT == 1);
        self.last = Some((block, at));
    }

    /// Whether it is worth moving, with a share of needless transfers of at least `threshold_percent`.
    pub(super) fn is_worth(&self, threshold_percent: u8) -> bool {
        let spare = self.transfers - self.least;
        spare > 0 && spare * 100 >= self.transfers * u64::from(threshold_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weigh(places: &[(u64, u64)]) -> Weight {
        let mut weight = Weight::default();
        for (block, at) in places {
            weight.push(*block, Place::Data(*at, 0));
        }
        weight
    }

    #[test]
    fn one_piece_is_never_worth_moving() {
        let piece: Vec<(u64, u64)> = (0..700).map(|at| (at, 5000 + at)).collect();
        let weight = weigh(&piece);
        assert_eq!((weight.extents, weight.transfers, weight.least), (1, 3, 3));
        assert!(!weight.is_worth(0));
        assert!(!Weight::default().is_worth(0));
    }

    #[test]
    fn scattered_blocks_are_worth_it_and_few_cuts_of_large_pieces_are_not() {
        let scattered: Vec<(u64, u64)> = (0..256).map(|at| (at, 3 * at)).collect();
        let weight = weigh(&scattered);
        assert_eq!((weight.extents, weight.transfers, weight.least), (256, 256, 1));
        assert!(weight.is_worth(99));
        let cut: Vec<(u64, u64)> = (0..1024).map(|at| (at, if at < 512 { at } else { 9000 + at })).collect();
        let weight = weigh(&cut);
        assert_eq!((weight.extents, weight.transfers, weight.least), (2, 4, 4));
        assert!(!weight.is_worth(0), "no transfer less is to be had");
        let uneven: Vec<(u64, u64)> =
            (0..1024).map(|at| (at, if at < 500 { at } else { 9000 + at })).collect();
        let weight = weigh(&uneven);
        assert_eq!((weight.transfers, weight.least), (5, 4));
        assert!(weight.is_worth(20) && !weight.is_worth(21));
    }

    #[test]
    fn holes_end_transfers_wherever_the_data_lies() {
        let weight = weigh(&[(0, 100), (5, 101), (9, 102)]);
        assert_eq!((weight.extents, weight.transfers, weight.least), (3, 3, 3));
        assert!(!weight.is_worth(0), "moving leaves as many transfers");
        let mut weight = weigh(&[(0, 100), (1, 200)]);
        weight.push(2, Place::Hole);
        weight.push(3, Place::Reserved(300));
        assert_eq!((weight.blocks, weight.transfers, weight.least), (3, 3, 2));
        assert!(weight.is_worth(33) && !weight.is_worth(34));
    }
}
