//! Transfers of each task and their order. Pure.

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Transfers of a segment, over all tasks, that may be shuffled: each takes memory.
const RANDOM_TRANSFERS_MAX: u64 = 1 << 24;

/// Sizes of a run. Every task writes `segments` blocks in transfers of the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Size of a read or write in bytes.
    pub(super) transfer: u64,
    /// Contiguous bytes of a task.
    pub(super) block: u64,
    /// Number of blocks of each task.
    pub(super) segments: u64,
    /// Number of tasks.
    pub(super) tasks: u64,
    /// One file per task; otherwise the blocks of all tasks alternate in a common one.
    pub(super) file_per_task: bool,
    /// Seed of the order of a segment's transfers; in a common file, they are also redistributed over the
    /// tasks.
    pub(super) random: Option<u64>,
}

impl Plan {
    /// Rejects sizes that are not multiples of each other.
    pub(super) fn checked(self) -> Result<Plan, Error> {
        let usage = |text: &str| Err(Error::Usage(text.to_owned()));
        if self.transfer == 0 || self.block == 0 || self.segments == 0 || self.tasks == 0 {
            return usage("-t, -b, -s and -N are at least 1");
        }
        if !self.block.is_multiple_of(self.transfer) {
            return usage("the block (-b) is to be a whole number of transfers (-t)");
        }
        if self.transfer > 1 << 30 {
            return usage("a transfer (-t) has at most 1g");
        }
        let bytes = self.block.checked_mul(self.segments).and_then(|bytes| bytes.checked_mul(self.tasks));
        if bytes.is_none_or(|bytes| bytes > i64::MAX as u64) {
            return usage("files do not get that large: lower -b, -s or -N");
        }
        if self.random.is_some() && self.block / self.transfer * self.tasks > RANDOM_TRANSFERS_MAX {
            return usage("too many transfers in a block for a random order: lower -b and raise -s");
        }
        Ok(self)
    }

    /// Returns the size of all files together in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.block * self.segments * self.tasks
    }

    /// Returns the size in bytes of a task's file, or of the common one.
    pub(super) fn file_bytes(&self) -> u64 {
        if self.file_per_task { self.block * self.segments } else { self.bytes() }
    }

    /// Returns the offsets of a task's transfers within a segment.
    fn within(&self, rank: u64) -> Vec<u64> {
        let count = self.block / self.transfer;
        let offset = |number: u64| number * self.transfer;
        match (self.random, self.file_per_task) {
            (None, true) => (0..count).map(offset).collect(),
            (None, false) => (rank * count..(rank + 1) * count).map(offset).collect(),
            (Some(seed), true) => {
                let mut own: Vec<u64> = (0..count).map(offset).collect();
                Rng::with_seed(seed.wrapping_add(rank)).shuffle(&mut own);
                own
            }
            (Some(seed), false) => {
                let mut all: Vec<u64> = (0..count * self.tasks).map(offset).collect();
                Rng::with_seed(seed).shuffle(&mut all);
                all[(rank * count) as usize..((rank + 1) * count) as usize].to_vec()
            }
        }
    }

    /// Returns all offsets of a task in its order.
    pub(super) fn offsets(&self, rank: u64) -> impl Iterator<Item = u64> + use<> {
        let within = self.within(rank);
        let segment = if self.file_per_task { self.block } else { self.block * self.tasks };
        (0..self.segments).flat_map(move |number| {
            let base = number * segment;
            within.clone().into_iter().map(move |offset| base + offset)
        })
    }
}

/// Whose data each task reads: its own or another task's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reorder {
    /// Its own data.
    None,
    /// The data of the task this many ranks further on.
    Constant(u64),
    /// A random permutation of the tasks, from this seed.
    Random(u64),
}

impl Reorder {
    /// Returns, for every task, the task whose data it reads.
    pub(super) fn ranks(self, tasks: u64) -> Vec<u64> {
        match self {
            Reorder::None => (0..tasks).collect(),
            Reorder::Constant(distance) => (0..tasks).map(|rank| (rank + distance % tasks) % tasks).collect(),
            Reorder::Random(seed) => {
                let mut ranks: Vec<u64> = (0..tasks).collect();
                Rng::with_seed(seed).shuffle(&mut ranks);
                ranks
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(file_per_task: bool, random: Option<u64>) -> Plan {
        Plan { transfer: 10, block: 40, segments: 3, tasks: 2, file_per_task, random }
    }

    #[test]
    fn blocks_of_tasks_take_turns_in_a_common_file() {
        let offsets: Vec<u64> = plan(false, None).offsets(1).collect();
        assert_eq!(offsets, [40, 50, 60, 70, 120, 130, 140, 150, 200, 210, 220, 230]);
    }

    #[test]
    fn a_file_of_ones_own_has_no_holes() {
        let offsets: Vec<u64> = plan(true, None).offsets(1).collect();
        assert_eq!(offsets, (0..12).map(|number| number * 10).collect::<Vec<u64>>());
        assert_eq!((plan(true, None).file_bytes(), plan(false, None).file_bytes()), (120, 240));
    }

    #[test]
    fn random_orders_touch_every_transfer_once() {
        for file_per_task in [true, false] {
            let plan = plan(file_per_task, Some(5));
            let mut all: Vec<u64> = plan.offsets(0).collect();
            if !file_per_task {
                all.extend(plan.offsets(1));
            }
            assert!(!all.is_sorted());
            all.sort_unstable();
            assert_eq!(all, (0..plan.file_bytes() / 10).map(|number| number * 10).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn reading_is_shared_out_among_the_tasks() {
        assert_eq!(Reorder::None.ranks(3), [0, 1, 2]);
        assert_eq!(Reorder::Constant(1).ranks(3), [1, 2, 0]);
        let mut random = Reorder::Random(9).ranks(8);
        assert_ne!(random, Reorder::None.ranks(8));
        random.sort_unstable();
        assert_eq!(random, Reorder::None.ranks(8));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let good = plan(true, None);
        assert!(good.checked().is_ok());
        for bad in [
            Plan { transfer: 0, ..good },
            Plan { transfer: 7, ..good },
            Plan { segments: 0, ..good },
            Plan { segments: u64::MAX, ..good },
            Plan { block: 2 << 30, transfer: 2 << 30, ..good },
            Plan { block: 1 << 40, transfer: 1, random: Some(1), ..good },
        ] {
            assert!(bad.checked().is_err(), "{bad:?}");
        }
    }
}
