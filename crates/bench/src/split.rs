//! `nacre bench dne-split`: latency of creates in a large directory while its names move to more shards.
//!
//! One directory on one MDT is filled; then one thread keeps creating files in it before, during and after
//! `lfs setdirstripe -c`, which spreads it. Every create counts: the figure of interest is the longest.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::options::Common;
use crate::report::{Report, Row, Target, Unit};
use crate::sample::Samples;

/// Limit of the latency of a create while names move, in milliseconds.
const STALL_MS: f64 = 100.0;
/// Interval of polling whether the names have moved.
const LOOK: Duration = Duration::from_millis(100);

/// `nacre bench dne-split`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench dne-split --names 1000000 --mdts 4 --runs 1")]
pub struct SplitArguments {
    /// Directory on a disk: steps wait for it; needs 1.5 GiB for a million names
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// MDTs; the directory is spread over all
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..))]
    mdts: u16,
    /// Names in the directory
    #[arg(long, default_value_t = 1_000_000)]
    names: u64,
    /// Everything in one process instead of one process per server
    #[arg(long)]
    one_process: bool,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed; `--seconds` is the time before and after.
    #[command(flatten)]
    pub common: Common,
}

/// Phase in which a create began.
const PHASES: [&str; 3] = ["before", "while names move", "after"];

/// Latencies of one run's creates by phase, in milliseconds.
#[derive(Debug, Default)]
struct Creates([Vec<f64>; 3]);

/// One run: the creates, and the duration of each phase in seconds.
struct Run {
    creates: Creates,
    seconds: [f64; 3],
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &SplitArguments) -> Result<Report, Error> {
    let mut runs = Vec::new();
    for run in 0..arguments.common.runs.max(1) {
        eprintln!("bench dne-split: run {}, {} names", run + 1, arguments.names);
        runs.push(run_once(arguments)?);
    }
    Ok(report_of(arguments, &runs))
}

fn run_once(arguments: &SplitArguments) -> Result<Run, Error> {
    let program = arguments.nacre.find()?;
    let options = InstanceOptions {
        osts: 1,
        mdts: arguments.mdts.into(),
        separate: !arguments.one_process,
        ..InstanceOptions::default()
    };
    let instance = Instance::start(&program, &arguments.dir, "bench-split", options)?;
    instance.set_named_params(&[format!("mdt.{}-MDT*.enable_dir_auto_split=0", instance.fsname())])?;
    let directory = instance.mount().join("dir");
    instance.lfs(&["mkdir".as_ref(), "-i".as_ref(), "0".as_ref(), directory.as_os_str()])?;
    for number in 0..arguments.names {
        create(&directory.join(format!("name{number}")))?;
    }
    let (phase, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let calm = Duration::from_secs_f64(arguments.common.seconds.max(0.1));
    std::thread::scope(|scope| {
        let creator = scope.spawn(|| create_until(&directory, &phase, &stop));
        let outcome: Result<f64, Error> = (|| {
            std::thread::sleep(calm);
            phase.store(1, Ordering::SeqCst);
            let start = Instant::now();
            let count = arguments.mdts.to_string();
            let words = ["setdirstripe".as_ref(), "-c".as_ref(), count.as_ref(), directory.as_os_str()];
            instance.lfs(&words)?;
            while instance
                .lfs_text(&["getdirstripe".as_ref(), "-H".as_ref(), directory.as_os_str()])?
                .contains("migrating")
            {
                std::thread::sleep(LOOK);
            }
            let moved = start.elapsed().as_secs_f64();
            phase.store(2, Ordering::SeqCst);
            std::thread::sleep(calm);
            Ok(moved)
        })();
        stop.store(true, Ordering::SeqCst);
        let creates = match creator.join() {
            Ok(creates) => creates?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let calm = calm.as_secs_f64();
        Ok(Run { creates, seconds: [calm, outcome?, calm] })
    })
}

fn create(path: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map(drop).map_err(Error::io("create", path))
}

fn create_until(directory: &Path, phase: &AtomicUsize, stop: &AtomicBool) -> Result<Creates, Error> {
    let mut creates = Creates::default();
    let mut number = 0u64;
    while !stop.load(Ordering::SeqCst) {
        let (now, start) = (phase.load(Ordering::SeqCst), Instant::now());
        create(&directory.join(format!("more{number}")))?;
        creates.0[now].push(start.elapsed().as_secs_f64() * 1e3);
        number += 1;
    }
    creates.0.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    Ok(creates)
}

fn report_of(arguments: &SplitArguments, runs: &[Run]) -> Report {
    let shape = if arguments.one_process { "one process" } else { "a process for each server" };
    let (names, mdts) = (arguments.names, arguments.mdts);
    let mut report = Report::new(format!("A directory of {names} names is spread over {mdts} MDTs, {shape}"));
    let figure = |name: String, unit: Unit, of: &dyn Fn(&Run) -> f64| {
        let mut samples = Samples::new();
        runs.iter().for_each(|run| samples.push(of(run)));
        Row::new(name, unit, samples)
    };
    report.rows.push(figure("all names have moved after".to_owned(), Unit::Seconds, &|run| run.seconds[1]));
    for (at, phase) in PHASES.into_iter().enumerate() {
        let times = move |run: &Run| run.creates.0[at].clone();
        let rate = |run: &Run| times(run).len() as f64 / run.seconds[at];
        report.rows.push(figure(format!("creates {phase}"), Unit::OpsPerSecond, &rate));
        let late = |run: &Run| times(run).get(times(run).len() * 99 / 100).copied().unwrap_or(0.0);
        report.rows.push(figure(format!("create {phase}, 99 of 100 within"), Unit::Milliseconds, &late));
        let longest = |run: &Run| times(run).last().copied().unwrap_or(0.0);
        let mut row = figure(format!("longest create {phase}"), Unit::Milliseconds, &longest);
        row.target = (at == 1).then_some(Target::AtMost(STALL_MS));
        report.rows.push(row);
    }
    report
}
