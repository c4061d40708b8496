//! A run: a cluster, programs, faults, and the checks afterwards.

use crate::cluster::Cluster;
use crate::conduct::Conductor;
use crate::fault;
use crate::history::{Event, History};
use crate::invariants;
use crate::linear;
use crate::model::Model;
use crate::plan::Plan;
use crate::program::Program;
use crate::seat::Seat;
use nacre_env::clock::Instant;
use nacre_env::thread::JoinHandle;
use nacre_types::{ClientUuid, Fid};
use std::path::Path;
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

/// Panics of threads of simulations. Its lock is not one of the simulation, which may itself have panicked.
static PANICS: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Records panics of threads of simulations, in addition to printing them.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if nacre_env::sim::is_here() {
                let trace = std::backtrace::Backtrace::capture();
                panics().push(format!("a thread panicked: {info}\n{trace}"));
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
    let begin = Instant::now();
    let seats: Vec<Arc<Seat>> =
        (0..plan.programs.len()).map(|number| Seat::take(&cluster, number).expect("mounted")).collect();
    let mounting = begin.elapsed();
    cluster.network().jitter(plan.seed, plan.jitter);
    let programs = start_programs(plan, &seats, &history);
    let mut conductor = Conductor::new(&mut cluster, seats.clone(), history.clone(), plan.seed);
    conductor.conduct(&plan.faults);
    let ended = match await_all(programs, &mut conductor) {
        Ok(()) => conductor.finish(),
        Err(problem) => {
            std::mem::forget(conductor);
            Err(problem)
        }
    };
    if let Err(problem) = ended {
        // Nothing can be stopped in order.
        let report = Report { calls: 0, problem: Some(problem), history: told(&history.take().0) };
        std::mem::forget((seats, cluster));
        return report;
    }
    let mut problems = Problems::default();
    problems.add(match mounting {
        time if time > MOUNTED => Err(format!("the mounts took {time:?} without any fault")),
        _ => Ok(()),
    });
    problems.add(audit(&seats[0], &history, plan.programs.len()));
    let dead: Vec<ClientUuid> = seats.iter().filter_map(|seat| seat.dead()).collect();
    seats.iter().for_each(|seat| seat.leave());
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
    let (mut programs, incidents) = history.take();
    cluster.map.aliases.enter_made(programs.iter_mut().flatten());
    programs.iter_mut().flatten().for_each(|event| cluster.map.aliases.replace(event));
    problems.add(invariants::times::check(&programs, plan));
    problems.add(linear::check(&programs, &incidents, Model::new(rules, cluster.map.aliases.moved())));
    std::mem::take(&mut *panics()).into_iter().for_each(|panic| problems.add(Err(panic)));
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

fn start_programs(plan: &Plan, seats: &[Arc<Seat>], history: &Arc<History>) -> Vec<JoinHandle<()>> {
    let start = |(number, seat): (usize, &Arc<Seat>)| {
        let (operations, history) = (plan.programs[number].clone(), history.clone());
        let (process, seat) = (seat.process().expect("mounted"), seat.clone());
        let work = move || seat.run(&operations, &history);
        let spawn = || nacre_env::thread::Builder::new().name(format!("program {number}")).spawn(work);
        process.run(spawn).expect("a thread starts")
    };
    seats.iter().enumerate().map(start).collect()
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
fn audit(seat: &Seat, history: &Arc<History>, number: usize) -> Result<(), String> {
    let (Some(process), Some(client)) = (seat.process(), seat.client()) else { return Ok(()) };
    process.run(|| Program::new(number, client, history.clone()).audit(Fid::ROOT))
}
