//! `nacre bench mdt`: the engine of an MDT alone, without network, FUSE or client. Requests go directly to an
//! MDT that this process has opened in a directory of its own.
//!
//! CPU time is that of the whole process, so it includes flushes of the log and checkpoints; "per core" is
//! operations per second of CPU time. Changes count when they are durable: each phase ends with a commit. The
//! upper bound is the metadata store alone with the same keys and values in alternating runs, and the bound
//! of that is a hash map in memory.
//!
//! `--inodes N` fills an MDT instead, and measures its memory and the time to open it ([`inodes`]).

mod bare;
mod engine;
mod inodes;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use crate::error::Error;
use crate::machine::{own_cpu_us, thread_cpu_us};
use crate::options::Common;
use crate::report::{Against, Report, Row, Target, Unit};
use crate::sample::Samples;
use crate::worker::{Myself, turns};
use bare::{Bare, HashMaps};
use engine::{Engine, Files};

pub(crate) use inodes::serve;

/// Target: creates of empty files per core and second, and likewise stats.
const CREATES_PER_CORE: f64 = 100_000.0;
const STATS_PER_CORE: f64 = 400_000.0;
/// Target: rate of two threads relative to one.
const TWO_THREADS: f64 = 1.7;

/// `nacre bench mdt`
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: nacre bench mdt --dir /srv/disk --runs 5\n         nacre bench mdt --dir /srv/disk --inodes 10000000"
)]
pub struct MdtArguments {
    /// Directory on the disk for the MDT; its files are removed again
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Files to create, by all threads together: the store is as large with two threads as with one
    #[arg(long, default_value_t = 200_000)]
    files: u32,
    /// Scenes; all by default
    #[arg(long = "scene", value_delimiter = ',')]
    scenes: Vec<Scene>,
    /// Inode records that the MDT keeps in memory
    #[arg(long, value_name = "N", default_value_t = 256 << 10)]
    cached_inodes: usize,
    /// Instead, fill an MDT with this many inodes and measure memory and the time to open it
    #[arg(long, value_name = "N")]
    inodes: Option<u64>,
    /// Entries of each directory when an MDT is filled
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    entries: u64,
    /// Empty the kernel's caches before a filled MDT is opened (root only)
    #[arg(long)]
    cold: bool,
    /// How the figures are taken and printed.
    #[command(flatten)]
    pub common: Common,
}

/// Which threads create files, in which directories and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scene {
    /// One thread that creates files without opening them.
    One,
    /// Two threads, each in a directory of its own.
    Two,
    /// Two threads, each with an MDT of its own: the rate of two CPUs for independent MDTs that share the
    /// machine.
    Apart,
    /// Two threads in one directory.
    Shared,
    /// One thread that creates files and closes them, as open(2) and close(2) do.
    Opened,
    /// The same with reply slots for resends, as for clients over a network.
    Kept,
}

impl Scene {
    const ALL: [Scene; 6] = [Scene::One, Scene::Two, Scene::Apart, Scene::Shared, Scene::Opened, Scene::Kept];

    fn label(self) -> &'static str {
        match self {
            Scene::One => "1 thread",
            Scene::Two => "2 threads",
            Scene::Apart => "2 MDTs",
            Scene::Shared => "2 threads, one directory",
            Scene::Opened => "1 thread, open and close",
            Scene::Kept => "1 thread, open and close, answers kept",
        }
    }

    fn threads(self) -> usize {
        if matches!(self, Scene::Two | Scene::Apart | Scene::Shared) { 2 } else { 1 }
    }

    /// Returns the number of MDTs in use.
    fn mdts(self) -> usize {
        if self == Scene::Apart { 2 } else { 1 }
    }
}

/// Operations on all files, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Create,
    Stat,
    GetAttr,
    ReadDir,
    Unlink,
}

impl Phase {
    const ALL: [Phase; 5] = [Phase::Create, Phase::Stat, Phase::GetAttr, Phase::ReadDir, Phase::Unlink];

    fn label(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat by name",
            Phase::GetAttr => "stat by FID",
            Phase::ReadDir => "readdir with attributes (entries)",
            Phase::Unlink => "unlink",
        }
    }

    /// Returns the name of its threads.
    fn thread(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "lookup",
            Phase::GetAttr => "getattr",
            Phase::ReadDir => "readdir",
            Phase::Unlink => "unlink",
        }
    }
}

/// One phase of one run.
#[derive(Debug, Clone, Copy)]
struct Measured {
    ops: u64,
    seconds: f64,
    /// CPU time of all threads of the process, in microseconds.
    cpu_us: f64,
    /// CPU time of the threads that sent the requests, in microseconds.
    callers_us: f64,
}

/// Runs `act` on this many threads of this name, which start together, and `end` when all have finished. Both
/// are timed.
fn timed(
    name: &str,
    threads: usize,
    end: impl FnOnce() -> Result<(), Error>,
    act: impl Fn(usize) -> Result<u64, Error> + Sync,
) -> Result<Measured, Error> {
    let barrier = Barrier::new(threads + 1);
    let (act, barrier) = (&act, &barrier);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let body = move || {
                    barrier.wait();
                    let before = thread_cpu_us();
                    act(thread).map(|ops| (ops, thread_cpu_us() - before))
                };
                // The name tells phases apart in profiles.
                std::thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, body)
            })
            .collect::<std::io::Result<_>>()
            .map_err(|error| Error::Worker(error.to_string()))?;
        let cpu_before = own_cpu_us();
        barrier.wait();
        let start = Instant::now();
        let (mut ops, mut callers_us) = (0, 0.0);
        for worker in workers {
            let (done, spent) =
                worker.join().map_err(|_| Error::Worker("a thread has panicked".to_owned()))??;
            ops += done;
            callers_us += spent;
        }
        end()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Measured { ops, seconds, cpu_us: own_cpu_us() - cpu_before, callers_us })
    })
}

/// The runs of one phase.
#[derive(Debug, Clone, Default)]
struct Series {
    rates: Samples,
    cpu_us: Samples,
    callers_us: Samples,
    /// Operations per second of CPU time.
    per_core: Samples,
}

impl Series {
    fn push(&mut self, measured: Measured) {
        let ops = measured.ops as f64;
        self.rates.push(ops / measured.seconds);
        self.cpu_us.push(measured.cpu_us / ops);
        self.callers_us.push(measured.callers_us / ops);
        self.per_core.push(ops / (measured.cpu_us / 1e6));
    }

    fn row(&self, name: String) -> Row {
        let mut row = Row::new(name, Unit::OpsPerSecond, self.rates.clone());
        row.cpu_us = self.cpu_us.clone();
        row
    }
}

impl MdtArguments {
    /// Returns the number of files of each thread.
    fn files_of(&self, scene: Scene) -> u32 {
        (self.files / scene.threads() as u32).max(1)
    }
}

/// Takes all figures.
///
/// # Errors
///
/// When the directory cannot be used or a request fails.
pub fn measure(arguments: &MdtArguments, myself: &Myself) -> Result<Report, Error> {
    let place = tempfile::Builder::new()
        .prefix("bench-mdt")
        .tempdir_in(&arguments.dir)
        .map_err(Error::io("create a directory in", &arguments.dir))?;
    if let Some(count) = arguments.inodes {
        return inodes::measure(arguments, myself, place.path(), count);
    }
    let scenes = if arguments.scenes.is_empty() { Scene::ALL.to_vec() } else { arguments.scenes.clone() };
    let mut ours = vec![vec![Series::default(); Phase::ALL.len()]; scenes.len()];
    let mut bare = vec![vec![Series::default(); Phase::ALL.len()]; scenes.len()];
    let mut maps = vec![Series::default(); Phase::ALL.len()];
    for round in 0..arguments.common.runs.max(1) {
        for index in turns(round, scenes.len()) {
            eprintln!("bench mdt: {}", scenes[index].label());
            run_engine(arguments, place.path(), scenes[index], &mut ours[index])?;
            run_bare(arguments, place.path(), scenes[index], &mut bare[index])?;
        }
        run_phases(&HashMaps::new(arguments.files), 1, &mut maps)?;
    }
    Ok(report_of(arguments, &scenes, &ours, &bare, &maps))
}

/// A subject that runs through the phases.
trait Subject: Sync {
    /// Runs the part of a phase of one thread; returns the number of operations.
    fn act(&self, phase: Phase, thread: usize) -> Result<u64, Error>;

    /// Makes all changes durable.
    fn commit(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Runs all phases; those with changes end with a commit.
fn run_phases(subject: &impl Subject, threads: usize, series: &mut [Series]) -> Result<(), Error> {
    for (phase, series) in Phase::ALL.into_iter().zip(series) {
        let changes = matches!(phase, Phase::Create | Phase::Unlink);
        let end = || if changes { subject.commit() } else { Ok(()) };
        series.push(timed(phase.thread(), threads, end, |thread| subject.act(phase, thread))?);
    }
    Ok(())
}

fn remove(dir: &Path) -> Result<(), Error> {
    std::fs::remove_dir_all(dir).map_err(Error::io("remove", dir))
}

/// MDTs, each with its files.
struct Engines(Vec<(Engine, Files)>);

impl Subject for Engines {
    fn act(&self, phase: Phase, thread: usize) -> Result<u64, Error> {
        let (engine, files) = &self.0[thread % self.0.len()];
        match phase {
            Phase::Create => files.create(engine, thread),
            Phase::Stat => files.stat(engine, thread),
            Phase::GetAttr => files.get_attr(engine, thread),
            Phase::ReadDir => files.read_dir(engine, thread),
            Phase::Unlink => files.unlink(engine, thread),
        }
    }

    fn commit(&self) -> Result<(), Error> {
        self.0.iter().try_for_each(|(engine, _)| engine.commit())
    }
}

fn run_engine(
    arguments: &MdtArguments,
    place: &Path,
    scene: Scene,
    series: &mut [Series],
) -> Result<(), Error> {
    let dirs: Vec<PathBuf> = (0..scene.mdts()).map(|mdt| place.join(format!("mdt{mdt}"))).collect();
    let make = |dir: &PathBuf| {
        let engine = Engine::make(dir, arguments.cached_inodes / scene.mdts())?;
        let files = Files::new(&engine, scene, arguments.files_of(scene))?;
        Ok((engine, files))
    };
    let engines = Engines(dirs.iter().map(make).collect::<Result<_, Error>>()?);
    run_phases(&engines, scene.threads(), series)?;
    engines.0.into_iter().try_for_each(|(engine, _)| engine.stop())?;
    dirs.iter().try_for_each(|dir| remove(dir))
}

fn run_bare(
    arguments: &MdtArguments,
    place: &Path,
    scene: Scene,
    series: &mut [Series],
) -> Result<(), Error> {
    let dir = place.join("store");
    let bare = Bare::make(&dir, arguments.files_of(scene), scene == Scene::Shared)?;
    run_phases(&bare, scene.threads(), series)?;
    bare.close()?;
    remove(&dir)
}

/// Returns true for phases with a row of their own: results that do not depend on how files were created are
/// shown once.
fn shown(scene: Scene, phase: Phase) -> bool {
    match scene {
        Scene::One | Scene::Two | Scene::Apart => true,
        Scene::Shared => phase != Phase::ReadDir,
        Scene::Opened | Scene::Kept => matches!(phase, Phase::Create | Phase::Unlink),
    }
}

fn report_of(
    arguments: &MdtArguments,
    scenes: &[Scene],
    ours: &[Vec<Series>],
    bare: &[Vec<Series>],
    maps: &[Series],
) -> Report {
    let mut report = Report::new(format!("An MDT's engine alone, {} files", arguments.files));
    for (index, &scene) in scenes.iter().enumerate() {
        for (number, phase) in Phase::ALL.into_iter().enumerate() {
            if !shown(scene, phase) {
                continue;
            }
            let (found, bound) = (&ours[index][number], &bare[index][number]);
            let name = format!("{}, {}", phase.label(), scene.label());
            let mut row = found.row(name.clone());
            row.daemon_us = found.callers_us.clone();
            row.against = Some(Against {
                label: "store alone".to_owned(),
                samples: bound.rates.clone(),
                daemon_us: bound.callers_us.clone(),
            });
            report.rows.push(row);
            let mut per_core =
                Row::new(format!("{name}, per core"), Unit::OpsPerSecond, found.per_core.clone());
            per_core.target = match phase {
                Phase::Create => Some(Target::AtLeast(CREATES_PER_CORE)),
                Phase::Stat | Phase::GetAttr => Some(Target::AtLeast(STATS_PER_CORE)),
                Phase::ReadDir | Phase::Unlink => None,
            };
            report.rows.push(per_core);
        }
    }
    report.rows.extend(speed_ups(scenes, ours));
    for (phase, series) in Phase::ALL.into_iter().zip(maps) {
        report.rows.push(series.row(format!("{}, hash map in memory, 1 thread", phase.label())));
    }
    report.notes.push(
        "CPU us/op is that of this process with flushes and checkpoints; of daemons: the calling threads alone"
            .to_owned(),
    );
    report
}

/// Returns the rows of two threads against one, and against one MDT each.
fn speed_ups(scenes: &[Scene], ours: &[Vec<Series>]) -> Vec<Row> {
    let at = |wanted| scenes.iter().position(|&scene| scene == wanted);
    let Some(one) = at(Scene::One) else { return Vec::new() };
    let mut rows = Vec::new();
    for scene in [Scene::Two, Scene::Apart, Scene::Shared] {
        let Some(two) = at(scene) else { continue };
        for (number, phase) in Phase::ALL.into_iter().enumerate().filter(|&(_, phase)| shown(scene, phase)) {
            let mut row = ours[two][number].row(format!("{}, {} against 1", phase.label(), scene.label()));
            row.against = Some(Against::new("1 thread", ours[one][number].row(String::new())));
            row.target = (scene == Scene::Two && matches!(phase, Phase::Create | Phase::Stat))
                .then_some(Target::RatioAtLeast(TWO_THREADS));
            rows.push(row);
            let Some(apart) = at(Scene::Apart).filter(|_| scene == Scene::Two) else { continue };
            let mut row = ours[two][number].row(format!("{}, 2 threads against 2 MDTs", phase.label()));
            row.against = Some(Against::new("2 MDTs", ours[apart][number].row(String::new())));
            rows.push(row);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(dir: &Path) -> MdtArguments {
        MdtArguments {
            dir: dir.to_owned(),
            files: 300,
            scenes: Vec::new(),
            cached_inodes: 1000,
            inodes: None,
            entries: 100,
            cold: false,
            common: Common { runs: 1, seconds: 1.0, json: false },
        }
    }

    #[test]
    fn every_phase_does_what_it_says_in_every_scene() {
        let place = tempfile::tempdir().expect("a directory");
        let arguments = arguments(place.path());
        for scene in Scene::ALL {
            let mut ours = vec![Series::default(); Phase::ALL.len()];
            let mut bare = ours.clone();
            run_engine(&arguments, place.path(), scene, &mut ours).expect("runs");
            run_bare(&arguments, place.path(), scene, &mut bare).expect("runs");
            for series in ours.iter().chain(&bare) {
                assert!(series.rates.median() > 0.0 && series.per_core.median() > 0.0, "{scene:?}");
            }
        }
        assert_eq!(std::fs::read_dir(place.path()).expect("there").count(), 0, "nothing is left");
    }

    #[test]
    fn rows_name_their_bounds_and_targets() {
        let scenes = [Scene::One, Scene::Two, Scene::Apart];
        let series = |rate: f64| Series {
            rates: [rate].into_iter().collect(),
            per_core: [rate / 2.0].into_iter().collect(),
            ..Series::default()
        };
        let of = |rate| vec![series(rate); Phase::ALL.len()];
        let report = report_of(
            &arguments(Path::new("/")),
            &scenes,
            &[of(220_000.0), of(330_000.0), of(440_000.0)],
            &[of(440_000.0), of(440_000.0), of(440_000.0)],
            &of(1e6),
        );
        let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect("a row");
        assert_eq!(row("create, 1 thread").ratio(), Some(0.5));
        assert_eq!(row("create, 1 thread, per core").meets_target(), Some(true));
        assert_eq!(row("stat by name, 1 thread, per core").meets_target(), Some(false));
        assert_eq!(row("create, 2 threads against 1").meets_target(), Some(false));
        assert_eq!(row("create, 2 threads against 1").ratio(), Some(1.5));
        assert_eq!(row("create, 2 MDTs against 1").ratio(), Some(2.0));
        assert_eq!(row("create, 2 threads against 2 MDTs").ratio(), Some(0.75));
    }
}
