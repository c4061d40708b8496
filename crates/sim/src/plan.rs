//! The plan of a run: everything that a seed decides before it begins.

use crate::cluster::Shape;
use crate::fault::{Fault, Node, Timed};
use crate::operation::{Operation, Profile};
use crate::planted::{Bug, Needs};
use fastrand::Rng;
use std::fmt::Write;
use std::time::Duration;

/// Faults for a planted bug that needs some.
const PLANTED_FAULTS: usize = 8;

/// A plan. The schedule of threads follows from the seed as well, but is decided during the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Seed of the schedule.
    pub seed: u64,
    /// Hosts.
    pub shape: Shape,
    /// Operations of each client's program.
    pub programs: Vec<Vec<Operation>>,
    /// Faults, in no particular order.
    pub faults: Vec<Timed>,
    /// Longest additional delay of messages.
    pub jitter: Duration,
    /// A planted bug, if there is one.
    pub bug: Option<Bug>,
}

/// Sizes of runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Operations of each program.
    pub operations: usize,
    /// Faults at most.
    pub faults: usize,
    /// Hosts of servers may lose power.
    pub power: bool,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { operations: 50, faults: 4, power: true }
    }
}

/// Adds operations on file locks to the programs of some seeds, unmounts to those of others, and moves of data and names.
/// The random numbers are others than those of the rest of the plan, which stays as it would be without them.
fn add_rare_operations(programs: &mut [Vec<Operation>], mdts: u8, seed: u64) {
    let mut random = Rng::with_seed(!seed);
    let (has_locks, has_mounts) = (random.u8(..3) == 0, random.u8(..5) == 0);
    for program in &mut *programs {
        let (locks, mounts) = (program.len() / 4, random.usize(..3));
        add_locks(program, if has_locks { locks } else { 0 }, &mut random);
        for _ in 0..if has_mounts { mounts } else { 0 } {
            let at = random.usize(..=program.len());
            program.insert(at, Operation::Remount);
        }
    }
    let has_moves = random.u8(..4) == 0;
    for program in programs {
        for _ in 0..if has_moves { program.len() / 6 } else { 0 } {
            let at = random.usize(..=program.len());
            program.insert(at, Operation::random_move(&mut random, mdts));
        }
    }
}

/// Adds operations on file locks to a program.
fn add_locks(program: &mut Vec<Operation>, count: usize, random: &mut Rng) {
    for _ in 0..count {
        let at = random.usize(..=program.len());
        program.insert(at, Operation::random_lock(random));
    }
}

impl Plan {
    /// Returns the plan of a seed.
    pub fn of_seed(seed: u64, sizes: Sizes) -> Plan {
        let mut random = Rng::with_seed(seed);
        let shape = Shape { mdts: random.u8(1..=3), osts: random.u8(1..=3), clients: random.u8(2..=3) };
        let profile = Profile::ALL[random.usize(..Profile::ALL.len())];
        let program = |random: &mut Rng| {
            let operation = |_| Operation::random(random, shape.mdts, profile);
            (0..sizes.operations).map(operation).collect()
        };
        let mut programs: Vec<Vec<Operation>> = (0..shape.clients).map(|_| program(&mut random)).collect();
        add_rare_operations(&mut programs, shape.mdts, seed);
        let jitter = Duration::from_micros([0, 0, 50, 2000][random.usize(..4)]);
        let span = Duration::from_millis([20, 300, 5000][random.usize(..3)]);
        let power = sizes.power && random.bool();
        let count = random.usize(..=sizes.faults);
        let mut faults: Vec<Timed> =
            (0..count).map(|_| Timed::random(&mut random, shape, span, power)).collect();
        if sizes.faults > 0 && random.u8(..5) == 0 {
            faults.push(Timed::death(&mut random, shape, span));
        }
        Plan { seed, shape, programs, faults, jitter, bug: None }
    }

    /// Plants a bug in the plan, with the faults and operations that it needs.
    pub fn plant(mut self, bug: Bug) -> Plan {
        let mut random = Rng::with_seed(self.seed);
        let fault = match bug.needs() {
            Needs::Nothing => None,
            Needs::MdtPower => Some(Fault::Power(Node::Mdt(0))),
            Needs::OstPower => Some(Fault::Power(Node::Ost(0))),
            Needs::MdtKills => Some(Fault::Kill(Node::Mdt(0))),
        };
        for _ in 0..fault.map_or(0, |_| PLANTED_FAULTS) {
            let at = Duration::from_millis(random.u64(5..100));
            let lasts = Duration::from_millis(5);
            self.faults.extend(fault.map(|fault| Timed { at, lasts, fault }));
        }
        if bug.is_of_file_locks() {
            for program in &mut self.programs {
                add_locks(program, program.len() / 4, &mut random);
            }
        }
        Plan { bug: Some(bug), ..self }
    }

    /// Returns the plan as text.
    pub fn describe(&self) -> String {
        let mut text = format!("{:?}, seed {}, delays up to {:?} more", self.shape, self.seed, self.jitter);
        for fault in &self.faults {
            let _ = write!(text, "\n  at {:?} for {:?}: {:?}", fault.at, fault.lasts, fault.fault);
        }
        for (number, program) in self.programs.iter().enumerate() {
            let operations: Vec<String> = program.iter().map(|operation| format!("{operation:?}")).collect();
            let _ = write!(text, "\n  program {number}:\n    {}", operations.join("\n    "));
        }
        text
    }
}
