//! The files that are written, removed and rewritten, as a pure function of a seed.
//!
//! A level is filled with files of sizes drawn from [`SIZES`]: an octave with equal probability, then a size
//! inside it. A round of fragmentation removes files, chosen at random with equal probability, until a tenth
//! of the level's bytes is free, and fills the level again with files whose sizes are drawn afresh, so that
//! they do not fit into the gaps. BB percent of fragmentation are BB / 10 rounds: PaF:AA.20 does not depend
//! on whether PaF:AA.10 was measured before.

use std::collections::BTreeMap;

use super::ranges::UNIT;
use fastrand::Rng;

/// Size of the smallest file in bytes.
const FILE_MIN: u64 = 64 << 10;
/// Bounds in bytes of the largest file, which is a 256th of the capacity within them.
const FILE_MAX: std::ops::RangeInclusive<u64> = (1 << 20)..=(64 << 20);
/// A round replaces one byte in this many.
const ROUND_PART: u64 = 10;

/// Files by number, with their sizes in bytes.
pub(super) type Files = BTreeMap<u64, u64>;

/// Changes of one round, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Round {
    /// Files to remove.
    pub(super) removed: Vec<u64>,
    /// Files to write, with their sizes in bytes.
    pub(super) written: Vec<(u64, u64)>,
}

/// A level and its files, after some rounds.
#[derive(Debug, Clone)]
pub(super) struct Population {
    files: Files,
    /// Sum of the files' sizes in bytes, restored by each round.
    level: u64,
    largest: u64,
    next: u64,
    random: Rng,
}

impl Population {
    /// Returns the files of a level of `percent` of `capacity` bytes, before any round.
    pub(super) fn new(seed: u64, capacity: u64, percent: u8) -> Population {
        let level = level_of(capacity, percent);
        let largest = largest_file(capacity);
        let random = Rng::with_seed(seed ^ (u64::from(percent) << 32));
        let mut population = Population { files: Files::new(), level, largest, next: 1, random };
        population.fill();
        population
    }

    /// Returns the files of a level after this number of rounds.
    pub(super) fn after(seed: u64, capacity: u64, percent: u8, rounds: u8) -> Population {
        let mut population = Population::new(seed, capacity, percent);
        (0..rounds).for_each(|_| drop(population.round()));
        population
    }

    /// Returns the current files.
    pub(super) fn files(&self) -> &Files {
        &self.files
    }

    /// Advances by one round and returns its changes.
    pub(super) fn round(&mut self) -> Round {
        let mut order: Vec<u64> = self.files.keys().copied().collect();
        self.random.shuffle(&mut order);
        let wanted = self.level / ROUND_PART;
        let mut freed = 0;
        let chosen = order.into_iter().take_while(|number| {
            let goes_on = freed < wanted;
            freed += self.files[number];
            goes_on
        });
        let removed: Vec<u64> = chosen.collect();
        for number in &removed {
            self.files.remove(number);
        }
        Round { removed, written: self.fill() }
    }

    /// Adds files until the level is reached.
    fn fill(&mut self) -> Vec<(u64, u64)> {
        let mut left = self.level - self.files.values().sum::<u64>();
        let mut written = Vec::new();
        while left >= UNIT {
            // The last file is cut, so that the level is exact to the unit.
            let bytes = self.draw().min(left);
            left -= bytes;
            self.files.insert(self.next, bytes);
            written.push((self.next, bytes));
            self.next += 1;
        }
        written
    }

    fn draw(&mut self) -> u64 {
        let octaves = u64::from((self.largest / FILE_MIN).ilog2());
        let base = FILE_MIN << self.random.u64(..octaves);
        (base + self.random.u64(..base)) / UNIT * UNIT
    }
}

/// Returns the size of a level in bytes, in whole units.
pub(super) fn level_of(capacity: u64, percent: u8) -> u64 {
    // In 128 bits: dividing first would lose bytes, multiplying first overflow.
    let bytes = u128::from(capacity) * u128::from(percent) / 100;
    bytes as u64 / UNIT * UNIT
}

/// Returns the bound of file sizes: a power of two.
pub(super) fn largest_file(capacity: u64) -> u64 {
    1 << (capacity / 256).clamp(*FILE_MAX.start(), *FILE_MAX.end()).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_level_is_met_to_the_unit_and_stays_through_the_rounds() {
        for percent in [1, 10, 45, 90] {
            let capacity = 777 * MIB + 12_345;
            let mut population = Population::new(7, capacity, percent);
            let level = level_of(capacity, percent);
            assert!(level <= capacity * u64::from(percent) / 100);
            for _ in 0..7 {
                assert_eq!(population.files().values().sum::<u64>(), level);
                let before = population.files().clone();
                let round = population.round();
                let freed: u64 = round.removed.iter().map(|number| before[number]).sum();
                assert!(freed >= level / 10, "{freed} of {level}");
                assert!(freed < level / 10 + 2 * largest_file(capacity));
                assert_eq!(round.written.iter().map(|(_, bytes)| bytes).sum::<u64>(), freed);
            }
        }
    }

    #[test]
    fn rounds_from_the_same_seed_are_the_same_whatever_was_measured_between() {
        let mut stepwise = Population::new(3, 512 * MIB, 40);
        let rounds: Vec<Round> = (0..3).map(|_| stepwise.round()).collect();
        assert_eq!(Population::after(3, 512 * MIB, 40, 3).files(), stepwise.files());
        let mut again = Population::new(3, 512 * MIB, 40);
        assert_eq!((0..3).map(|_| again.round()).collect::<Vec<_>>(), rounds);
        assert_ne!(Population::new(4, 512 * MIB, 40).files(), Population::new(3, 512 * MIB, 40).files());
    }

    #[test]
    fn files_have_sizes_of_every_octave_and_none_is_written_twice() {
        let mut population = Population::new(1, 8192 * MIB, 50);
        let mut numbers: Vec<u64> = population.files().keys().copied().collect();
        for _ in 0..5 {
            numbers.extend(population.round().written.iter().map(|(number, _)| number));
        }
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
        let largest = largest_file(8192 * MIB);
        assert_eq!(largest, 32 * MIB);
        let mut base = FILE_MIN;
        while base < largest {
            let inside =
                population.files().values().filter(|&&bytes| (base..2 * base).contains(&bytes)).count();
            assert!(inside > 0, "no file of {base} bytes and more");
            base *= 2;
        }
        assert!(population.files().values().all(|bytes| bytes.is_multiple_of(UNIT) && *bytes < largest));
    }

    #[test]
    fn an_empty_level_has_no_files_and_rounds_of_it_do_nothing() {
        let mut population = Population::new(1, 100 * MIB, 0);
        assert!(population.files().is_empty());
        assert_eq!(population.round(), Round { removed: Vec::new(), written: Vec::new() });
    }
}
