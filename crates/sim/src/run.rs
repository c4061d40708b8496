//! A run: a cluster, programs, faults, and the checks afterwards.

use crate::cluster::Cluster;
use crate::conduct::{Conductor, Deaths};
use crate::fault;
use crate::history::{Event, History, Incident};
use crate::invariants;
use crate::linear;
use crate::model::Model;
use crate::mount::Mount;
use crate::plan::Plan;
use crate::program::Program;
use nacre_env::clock::Instant;
use nacre_env::sync::Mutex;
use nacre_env::thread::JoinHandle;
use nacre_rpc::tcp::SimulatedNetwork;
use nacre_types::{ClientUuid, Fid};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

/// Time after which threads that have nothing to do have ended.
const REST: Duration = Duration::from_secs(120);
/// Time after the last fault within which all programs end: recovery windows, deadlines of locks and of evicted
/// clients, one after the other.
const HEALED: Duration = Duration::from_secs(400);
/// Longest time of all mounts together, without faults.
const MOUNTED: Duration = Duration::from_secs(5);
/// Interval at which the programs are looked at.
const POLL: Duration = Duration::from_millis(100);

/// Result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of calls.
    pub calls: usize,
    /// What is wrong, if anything is.
    pub problem: Option<String>,
    /// All calls in the order of their ends, with their answers.
    pub history: Vec<String>,
}

/// Panics of threads of simulations.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records panics of threads of simulations, in addition to printing them.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if nacre_env::sim::is_here() {
                let trace = std::backtrace::Backtrace::capture();
                PANICS.lock().push(format!("a thread panicked: {info}\n{trace}"));
            }
            before(info);
        }));
    });
}

/// Carries a plan out, with files below `scratch`. To be called in a simulation.
pub fn run(plan: &Plan, scratch: &Path) -> Report {
    watch_panics();
    let mut cluster = Cluster::start(plan.shape, plan.bug, scratch);
    let history = History::new();
    let start = |number| cluster.mount(number).expect("mounted");
    let begin = Instant::now();
    let mounts: Vec<Arc<Mount>> = (0..plan.programs.len()).map(start).map(Arc::new).collect();
    let mounting = begin.elapsed();
    cluster.network().jitter(plan.seed, plan.jitter);
    let deaths: Deaths = mounts.iter().map(|_| AtomicBool::new(false)).collect();
    let programs = start_programs(plan, &mounts, &deaths, &history, cluster.network());
    let clients = mounts.iter().map(|mount| mount.process).collect();
    let mut conductor = Conductor::new(&mut cluster, clients, deaths, history.clone(), plan.seed);
    conductor.conduct(&plan.faults);
    if let Err(problem) = await_all(programs, &mut conductor) {
        // Nothing can be stopped in order.
        let report = Report { calls: 0, problem: Some(problem), history: told(&history.take().0) };
        std::mem::forget((mounts, conductor));
        std::mem::forget(cluster);
        return report;
    }
    let mut problems = Problems::default();
    problems.add(match mounting {
        time if time > MOUNTED => Err(format!("the mounts took {time:?} without any fault")),
        _ => Ok(()),
    });
    problems.add(conductor.finish());
    problems.add(audit(&mounts[0], &history, plan.programs.len()));
    let dead: Vec<ClientUuid> =
        mounts.iter().filter(|mount| mount.is_dead()).map(|mount| mount.uuid).collect();
    mounts.into_iter().filter_map(Arc::into_inner).for_each(Mount::stop);
    dead.iter().for_each(|client| cluster.reap(client));
    problems.add(invariants::rest::await_rest(&cluster));
    problems.add(cluster.stop());
    nacre_env::thread::sleep(REST);
    problems.add(match cluster.network().connections() {
        0 => Ok(()),
        count => Err(format!("{count} connections are left")),
    });
    let rules = fault::rules(&plan.faults);
    problems.add(invariants::checked::check(&cluster, &rules));
    problems.add(invariants::objects::check(&cluster, &rules));
    let (programs, incidents) = history.take();
    problems.add(invariants::times::check(&programs, &plan.faults));
    problems.add(linear::check(&programs, &incidents, Model::new(rules)));
    std::mem::take(&mut *PANICS.lock()).into_iter().for_each(|panic| problems.add(Err(panic)));
    Report { calls: programs.iter().map(Vec::len).sum(), problem: problems.all(), history: told(&programs) }
}

/// What is wrong in a run.
#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, checked: Result<(), String>) {
        self.0.extend(checked.err());
    }

    fn all(self) -> Option<String> {
        (!self.0.is_empty()).then(|| self.0.join("\n"))
    }
}

fn told(programs: &[Vec<Event>]) -> Vec<String> {
    let mut all: Vec<&Event> = programs.iter().flatten().collect();
    all.sort_by_key(|event| event.ended);
    all.into_iter().map(linear::describe).collect()
}

fn start_programs(
    plan: &Plan,
    mounts: &[Arc<Mount>],
    deaths: &Deaths,
    history: &Arc<History>,
    network: &Arc<SimulatedNetwork>,
) -> Vec<JoinHandle<()>> {
    let start = |(number, mount): (usize, &Arc<Mount>)| {
        let (deaths, network, history) = (deaths.clone(), network.clone(), history.clone());
        let (operations, process, mount) = (plan.programs[number].clone(), mount.process, mount.clone());
        let work = move || {
            let mut program = Program::new(number, mount.client.clone(), history.clone());
            for operation in &operations {
                if deaths[number].load(Ordering::Relaxed) {
                    history.note(Incident::Death);
                    return mount.die(&network);
                }
                program.run(operation);
            }
            program.end();
        };
        let spawn = || nacre_env::thread::Builder::new().name(format!("program {number}")).spawn(work);
        process.run(spawn).expect("a thread starts")
    };
    mounts.iter().enumerate().map(start).collect()
}

/// Waits for the ends of all programs.
fn await_all(programs: Vec<JoinHandle<()>>, conductor: &mut Conductor<'_>) -> Result<(), String> {
    let until = Instant::now() + HEALED;
    while !programs.iter().all(JoinHandle::is_finished) {
        // A target that does not start keeps the programs waiting.
        if let Some(problem) = conductor.problem() {
            return Err(problem.clone());
        }
        if Instant::now() > until {
            let waiting = nacre_env::sim::describe();
            return Err(format!("programs wait {HEALED:?} after the last fault:{waiting}"));
        }
        conductor.pass(POLL);
    }
    // A panic was recorded when it happened.
    programs.into_iter().for_each(|program| drop(program.join()));
    Ok(())
}

/// Reads the whole tree.
fn audit(mount: &Mount, history: &Arc<History>, number: usize) -> Result<(), String> {
    mount.process.run(|| Program::new(number, mount.client.clone(), history.clone()).audit(Fid::ROOT))
}
