//! The plan of a run: everything that a seed decides before it begins.

use crate::cluster::Shape;
use crate::operation::Operation;
use fastrand::Rng;

/// A plan. The schedule of threads follows from the seed as well, but is decided during the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Seed of the schedule.
    pub seed: u64,
    /// Hosts.
    pub shape: Shape,
    /// Operations of each client's program.
    pub programs: Vec<Vec<Operation>>,
}

/// Sizes of runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Operations of each program.
    pub operations: usize,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { operations: 40 }
    }
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of_seed(seed: u64, sizes: Sizes) -> Plan {
        let mut random = Rng::with_seed(seed);
        let shape = Shape { mdts: random.u8(1..=3), osts: random.u8(1..=3), clients: random.u8(2..=3) };
        let program =
            |random: &mut Rng| (0..sizes.operations).map(|_| Operation::random(random, shape.mdts)).collect();
        let programs = (0..shape.clients).map(|_| program(&mut random)).collect();
        Plan { seed, shape, programs }
    }
}
