//! A run: a cluster, programs, and the checks afterwards.

use crate::cluster::Cluster;
use crate::history::History;
use crate::linear;
use crate::model::{Model, Rules};
use crate::plan::Plan;
use crate::program::Program;
use nacre_types::Fid;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time after which threads that have nothing to do have ended.
const REST: Duration = Duration::from_secs(120);

/// Result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of calls.
    pub calls: usize,
    /// What is wrong, if anything is.
    pub problem: Option<String>,
}

/// Carries a plan out, with files below `scratch`. To be called in a simulation.
pub fn run(plan: &Plan, scratch: &Path) -> Report {
    let mut cluster = Cluster::start(plan.shape, scratch);
    let history = History::new();
    let mounts: Vec<_> =
        (0..plan.programs.len()).map(|number| cluster.mount(number).expect("mounted")).collect();
    nacre_env::thread::scope(|scope| {
        for (number, (mount, operations)) in mounts.iter().zip(&plan.programs).enumerate() {
            let history = history.clone();
            scope.spawn(move || {
                mount.process.run(|| {
                    let mut program = Program::new(number, mount.client.clone(), history);
                    operations.iter().for_each(|operation| program.run(operation));
                    program.end();
                });
            });
        }
    });
    audit(&mounts[0], &history, plan.programs.len());
    mounts.into_iter().for_each(crate::mount::Mount::stop);
    let stopped = cluster.stop();
    nacre_env::thread::sleep(REST);
    let (programs, incidents) = history.take();
    let calls = programs.iter().map(Vec::len).sum();
    let checked = linear::check(&programs, &incidents, Model::new(Rules::default()));
    Report { calls, problem: checked.and(stopped).err() }
}

/// Reads the whole tree.
fn audit(mount: &crate::mount::Mount, history: &Arc<History>, number: usize) {
    mount.process.run(|| Program::new(number, mount.client.clone(), history.clone()).audit(Fid::ROOT));
}
