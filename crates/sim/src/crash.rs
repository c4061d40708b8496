//! Crash enumeration (ACE, CrashMonkey): all short workloads, a power cut of all hosts at each persistence
//! point, and a check of what a new client finds.
//!
//! A run is one simulation: the workload with one client, during which a recorder copies all disks at each
//! persistence point; then, for each outcome of a cut there, a restart of all targets from what it leaves.
//! Cuts before the last operation of a workload are those of shorter workloads.

mod capture;
mod observe;
mod perform;
mod promise;
mod tree;
mod workload;

pub use workload::{Workload, workloads};

use crate::cluster::{Cluster, Shape};
use crate::disk::{Backend, Disk};
use crate::host::Host;
use crate::invariants;
use crate::model::Rules;
use crate::planted::Bug;
use crate::simulate;
use crate::target::NewTarget;
use capture::{Capture, Moment, Recorder};
use nacre_env::sim::ProcessNumber;
use nacre_layout::LayoutRequest;
use observe::{Observed, observe, remove_all};
use perform::Performer;
use promise::Story;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Time after which all logs are synced: twice the interval at which they are, and a flush.
const SYNCED: Duration = Duration::from_millis(2500);
/// Time from the beginning of a workload until its hosts have power again.
const AWAY: Duration = Duration::from_secs(60);
/// Number of the host that captures the disks.
const OBSERVER: u8 = 200;
/// End of the part of a file that may be on its MDT.
const HEAD_BYTES: u64 = 64 << 10;
/// Bytes of a segment of a log: each restart reads and writes all of them.
const WAL_SEGMENT_BYTES: u64 = 128 << 10;
/// Seed of the schedule of all runs.
const SEED: u64 = 1;

/// How workloads are explored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exploration {
    /// Where the data of files is: in the metadata store, up to 64 KiB of each file, or on an OST with this back end.
    pub data: Backend,
    /// Number of MDTs. With several, the directories are on different ones, and only cuts count after which nothing
    /// may be lost: the logs are independent.
    pub mdts: u8,
    /// Files stay open during a workload; else each operation closes its file.
    pub holds: bool,
    /// Outcomes of a cut with any mixture of unsynced sectors, in addition to all combinations of nothing and
    /// everything of each medium.
    pub mixtures: u64,
    /// Only one of the persistence operations that may end a workload: this one, modulo their number.
    pub end: Option<usize>,
    /// A planted bug, if there is one.
    pub bug: Option<Bug>,
}

/// What was explored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Runs: workloads, each with a persistence operation at its end.
    pub runs: u64,
    /// Power cuts: persistence points.
    pub cuts: u64,
    /// Outcomes of cuts that were checked.
    pub outcomes: u64,
    /// Different states of the disks among them, each of which was started from.
    pub states: u64,
    /// Violations, each with its workload.
    pub violations: Vec<String>,
}

impl Tally {
    /// Adds another one.
    pub fn add(&mut self, other: Tally) {
        self.runs += other.runs;
        self.cuts += other.cuts;
        self.outcomes += other.outcomes;
        self.states += other.states;
        self.violations.extend(other.violations);
    }
}

/// Runs a workload with each persistence operation that may end it, with power cuts at all persistence points
/// from the beginning of its last operation on.
pub fn explore(workload: &Workload, exploration: &Exploration) -> Tally {
    let mut tally = Tally::default();
    let ends = workload.ended();
    let chosen = exploration.end.map(|end| end % ends.len().max(1));
    for (number, ended) in
        ends.iter().enumerate().filter(|(number, _)| chosen.is_none_or(|end| end == *number))
    {
        // One of them has the cuts before the persistence operation, too.
        let is_first = number == chosen.unwrap_or(0);
        let from = workload.actions.len() - usize::from(is_first);
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        let scratch = tempfile::tempdir_in(parent).expect("a directory can be made");
        let run = Run { workload: ended, exploration, from, scratch: scratch.path() };
        let mut part = run.run();
        part.violations.iter_mut().for_each(|text| *text = format!("{ended} {exploration:?}\n  {text}"));
        part.runs = 1;
        tally.add(part);
    }
    tally
}

/// A run of one workload.
struct Run<'a> {
    workload: &'a Workload,
    exploration: &'a Exploration,
    /// Number of the operation from which on there are power cuts.
    from: usize,
    scratch: &'a Path,
}

/// What a restart from a state of the disks has shown.
struct Restarted {
    observed: Result<Observed, String>,
    /// Problem that no promise allows.
    problem: Option<String>,
}

impl Run<'_> {
    fn run(&self) -> Tally {
        let mut tally = Tally::default();
        let (cluster, captures) = match simulate(SEED, || self.capture()).result {
            Ok(captured) => captured,
            Err(problem) => {
                tally.violations.push(problem);
                return tally;
            }
        };
        let trees = self.workload.trees().expect("a workload succeeds");
        let seams: &[u64] = if self.exploration.data == Backend::Records { &[HEAD_BYTES] } else { &[] };
        let story = Story { actions: &self.workload.actions, trees: &trees, seams };
        let mut states: HashMap<u64, Restarted> = HashMap::new();
        let counts = |capture: &&Capture| self.exploration.mdts == 1 || story.is_settled(capture.moment);
        for capture in captures.iter().filter(counts) {
            tally.cuts += 1;
            for (key, outcome) in capture.outcomes(self.exploration.mixtures) {
                tally.outcomes += 1;
                let number = states.len();
                let restarted =
                    states.entry(key).or_insert_with(|| self.restart(&cluster, capture, &outcome, number));
                let found = restarted.observed.as_ref().map_err(Clone::clone);
                let checked = found.and_then(|observed| story.check(capture.moment, observed));
                let problem = restarted.problem.take().or(checked.err());
                let at = |problem| format!("cut at {:?}, left:{outcome}\n  {problem}", capture.moment);
                tally.violations.extend(problem.map(at));
            }
            capture.remove();
        }
        tally.states = states.len() as u64;
        tally
    }

    fn cluster(&self) -> Cluster {
        let Exploration { data, mdts, bug, .. } = *self.exploration;
        let ost = if data == Backend::Records { Backend::File } else { data };
        let mut cluster =
            Cluster::new(Shape { mdts, osts: 1, clients: 2 }, |_| ost, bug, &self.scratch.join("live"));
        let on_mdt = data == Backend::Records;
        let layout = if on_mdt { nacre_mds::first_layout() } else { LayoutRequest::default() };
        cluster.format(&NewTarget { layout, wal_segment_bytes: WAL_SEGMENT_BYTES });
        cluster
    }

    /// Carries the workload out, and returns the stopped file system and the captured disks.
    fn capture(&self) -> Result<(Cluster, Vec<Capture>), String> {
        let mut cluster = self.cluster();
        let observer = Host::new(OBSERVER).start_process().number;
        let recorder = Recorder::new(cluster.targets.len(), observer, self.scratch.join("captures"));
        for (disk, target) in cluster.targets.iter_mut().enumerate() {
            target.disk.log = recorder.witness(disk);
            target.disk.watcher = Some(recorder.watcher(disk));
        }
        cluster.start_targets()?;
        let mount = cluster.mount(0).map_err(|status| format!("cannot be mounted: {status}"))?;
        let running = cluster.targets.iter().filter_map(|target| target.running.as_ref());
        let mut processes: Vec<ProcessNumber> = running.map(|running| running.process.number).collect();
        processes.extend([mount.process.number, ProcessNumber::default()]);
        let disks = cluster.targets.iter().map(|target| target.disk.share()).collect();
        let mut performer = Performer::new(&mount, self.exploration);
        let performed = mount.process.run(|| self.perform(&mut performer, &recorder, (disks, processes)));
        let captures = recorder.end();
        drop(performer);
        mount.stop();
        let stopped = cluster.stop();
        performed.and(stopped).map(|()| (cluster, captures))
    }

    fn perform(
        &self,
        performer: &mut Performer,
        recorder: &Arc<Recorder>,
        (disks, processes): (Vec<Disk>, Vec<ProcessNumber>),
    ) -> Result<(), String> {
        performer.prepare(&self.workload.existing)?;
        nacre_env::thread::sleep(SYNCED);
        let trees = self.workload.trees().ok_or("a workload that cannot succeed")?;
        let mut watched = Some((disks, processes));
        for (number, action) in self.workload.actions.iter().enumerate() {
            recorder.at(Moment { began: number + 1, ended: number, is_idle: false });
            if number == self.from
                && let Some((disks, processes)) = watched.take()
            {
                recorder.begin(disks, processes);
            }
            performer.perform(action, number as u8 + 1, &trees[number])?;
            recorder.at(Moment { began: number + 1, ended: number + 1, is_idle: false });
            recorder.capture(None);
        }
        nacre_env::thread::sleep(SYNCED);
        let ended = self.workload.actions.len();
        recorder.at(Moment { began: ended, ended, is_idle: true });
        recorder.capture(None);
        performer.end();
        recorder.capture(None);
        nacre_env::thread::sleep(SYNCED);
        recorder.capture(None);
        Ok(())
    }

    /// Starts all targets from what a cut leaves, and looks at everything with a new client.
    fn restart(
        &self,
        cluster: &Cluster,
        capture: &Capture,
        outcome: &capture::Outcome,
        number: usize,
    ) -> Restarted {
        let dir = self.scratch.join("state").join(number.to_string());
        let disks = capture.cut(outcome, &dir).expect("the disks can be copied");
        let removes = number.is_multiple_of(2);
        let shown = simulate(SEED, || restart(cluster.after_power_cut(disks), removes)).result;
        // What is left goes with the scratch directory.
        let _ = std::fs::remove_dir_all(&dir);
        match shown {
            Ok((observed, problem)) => Restarted { observed: Ok(observed), problem },
            Err(problem) => Restarted { observed: Err(problem), problem: None },
        }
    }
}

/// Starts, reads everything, with `removes` removes it, stops, and checks the disks.
///
/// # Errors
/// Why nothing can be observed.
fn restart(mut cluster: Cluster, removes: bool) -> Result<(Observed, Option<String>), String> {
    // Clocks continue.
    nacre_env::thread::sleep(AWAY);
    cluster.start_targets()?;
    let mount = cluster.mount(1).map_err(|status| format!("cannot be mounted: {status}"))?;
    let observed = mount.process.run(|| observe(&mount));
    let removed = match &observed {
        Ok(observed) if removes => mount.process.run(|| remove_all(&mount, observed)),
        _ => Ok(()),
    };
    mount.stop();
    let stopped = cluster.stop();
    // Objects of files whose data was not synced may be lost; that of others, a read has shown.
    let rules = Rules { ost_power: true, ..Rules::default() };
    let checked = invariants::checked::check(&cluster, &rules);
    let owned = invariants::objects::check(&cluster, &rules);
    let problem = removed.and(stopped).and(checked).and(owned).err();
    Ok((observed?, problem))
}
