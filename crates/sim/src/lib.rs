//! A simulator of a whole file system: several MDTs, OSTs and clients in one process, with one running thread
//! that a seed chooses.

mod aliases;
mod cluster;
mod conduct;
mod crash;
mod disk;
mod fault;
mod history;
mod host;
mod invariants;
mod linear;
mod model;
mod mount;
mod moves;
mod operation;
mod plan;
mod planted;
mod program;
mod random;
mod run;
mod seat;
mod shrink;
mod target;
mod watch;

pub use cluster::{Cluster, Shape};
pub use crash::{Exploration, Tally, Workload, explore, workloads};
pub use disk::Backend;
pub use fault::{Fault, Node, Timed};
pub use host::Host;
pub use mount::Mount;
pub use operation::{Operation, Path, Place, Region};
pub use plan::{Plan, Sizes};
pub use planted::{BUGS, Bug, Needs};
pub use run::{Report, run};
pub use shrink::shrink;

use nacre_env::sim::{Options, Outcome};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Longest simulated duration of a run.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs `work` as the first thread of a simulation with this seed, on a thread of its own: the keys of hash
/// maps of a thread follow from the seed only if the thread has drawn none before.
///
/// # Panics
/// As `work` does, or if all threads wait for each other.
pub fn simulate<R: Send>(seed: u64, work: impl FnOnce() -> R + Send) -> Outcome<R> {
    nacre_env::thread::scope(|scope| {
        let run = || {
            random::seed(seed);
            nacre_env::sim::run(Options { seed, limit: LIMIT }, work)
        };
        match scope.spawn(run).join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Returns a hash of the steps of a simulation: equal for equal runs.
pub fn trace_hash<R>(outcome: &Outcome<R>) -> u64 {
    let mut hasher = DefaultHasher::new();
    for step in &outcome.steps {
        (step.thread, step.at.file(), step.at.line(), step.time).hash(&mut hasher);
    }
    hasher.finish()
}

/// Runs the plan of a seed, and returns the report and the hash of the trace.
pub fn run_plan(plan: &Plan) -> (Report, Outcome<()>) {
    // Files of metadata stores are the kernel's: in memory where that is possible.
    let shared = std::path::Path::new("/dev/shm");
    let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
    let scratch = tempfile::tempdir_in(parent).expect("a directory can be made");
    let outcome = simulate(plan.seed, || run(plan, scratch.path()));
    let Outcome { mut result, steps, time, left } = outcome;
    if result.problem.is_none() && !left.is_empty() {
        result.problem = Some(format!("threads do not end: {}", left.join(", ")));
    }
    (result, Outcome { result: (), steps, time, left })
}
