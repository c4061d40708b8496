//! `nacre bench restart`: how long a program waits when servers are killed and started again.
//!
//! One thread creates files and asks for the attributes of old ones, another one overwrites blocks of a file and syncs
//! each. The MDT is killed, and then all OSTs at once, while both threads work; `nacre up` starts what was killed. Every
//! call counts: the figure of interest is the longest.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;
use crate::instance::{Instance, InstanceOptions, NacreProgram};
use crate::options::Common;
use crate::report::{Report, Row, Target, Unit};
use crate::sample::Samples;

/// Limit of the longest call, in seconds.
const PAUSE_S: f64 = 2.0;
/// Files in each directory.
const PER_DIRECTORY: u64 = 10_000;
/// Size of a write, in bytes.
const BLOCK: usize = 64 << 10;
/// Blocks of the file that is overwritten.
const BLOCKS: u64 = 100;

/// `nacre bench restart`
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: nacre bench restart --files 1000000 --runs 3 --seconds 3")]
pub struct RestartArguments {
    /// Directory on a disk; needs 1 GiB for a million files
    #[arg(long, default_value = "/var/tmp")]
    dir: PathBuf,
    /// Files in the file system
    #[arg(long, default_value_t = 100_000)]
    files: u64,
    /// OSTs; all are killed at once
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    osts: u16,
    /// The program that starts file systems.
    #[command(flatten)]
    nacre: NacreProgram,
    /// How the figures are taken and printed; `--seconds` is the time before and after each kill.
    #[command(flatten)]
    pub common: Common,
}

/// Longest calls of both threads since this was last read, in microseconds.
#[derive(Default)]
struct Longest {
    names: AtomicU64,
    data: AtomicU64,
}

impl Longest {
    /// Does `work` and notes how long it took.
    fn time<R>(longest: &AtomicU64, work: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = work();
        longest.fetch_max(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        result
    }

    /// Returns both in seconds, names first, and begins again.
    fn take(&self) -> [f64; 2] {
        [&self.names, &self.data].map(|longest| longest.swap(0, Ordering::Relaxed) as f64 / 1e6)
    }
}

/// Seconds of one run.
struct Run {
    /// Longest calls while nothing was killed: names, data.
    quiet: [f64; 2],
    /// Longest call on names when the MDT was killed, and the time until it ran again.
    mdt: [f64; 2],
    /// Longest synced write when the OSTs were killed, and the time until they ran again.
    osts: [f64; 2],
}

/// Takes all figures.
///
/// # Errors
///
/// When a file system does not start or work on it fails; it is stopped first.
pub fn measure(arguments: &RestartArguments) -> Result<Report, Error> {
    let program = arguments.nacre.find()?;
    let options =
        InstanceOptions { osts: arguments.osts.into(), separate: true, ..InstanceOptions::default() };
    let instance = Instance::start(&program, &arguments.dir, "bench-restart", options)?;
    eprintln!("bench restart: {} files", arguments.files);
    for number in 0..arguments.files {
        let path = file(instance.mount(), number);
        if number % PER_DIRECTORY == 0 {
            let directory = path.parent().unwrap_or(instance.mount());
            std::fs::create_dir(directory).map_err(Error::io("create directory", directory))?;
        }
        create(&path)?;
    }
    let (stop, longest) = (AtomicBool::new(false), Longest::default());
    let runs = std::thread::scope(|scope| {
        let names = scope.spawn(|| use_names(arguments, &instance, &longest.names, &stop));
        let data = scope.spawn(|| use_data(&instance, &longest.data, &stop));
        let runs = (0..arguments.common.runs.max(1)).map(|_| run_once(arguments, &instance, &longest));
        let runs = runs.collect::<Result<Vec<Run>, Error>>();
        stop.store(true, Ordering::SeqCst);
        for thread in [names, data] {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        runs
    })?;
    Ok(report_of(arguments, &runs))
}

/// Returns the path of one of the files that the file system has.
fn file(mount: &Path, number: u64) -> PathBuf {
    mount.join(format!("d{}/f{}", number / PER_DIRECTORY, number % PER_DIRECTORY))
}

fn create(path: &Path) -> Result<(), Error> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map(drop).map_err(Error::io("create", path))
}

fn use_names(
    arguments: &RestartArguments,
    instance: &Instance,
    longest: &AtomicU64,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let directory = instance.work_directory("names")?;
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        Longest::time(longest, || create(&directory.join(number.to_string())))?;
        // Files far apart, most of which were used long ago.
        let old = file(instance.mount(), number * 7919 % arguments.files.max(1));
        Longest::time(longest, || std::fs::metadata(&old)).map_err(Error::io("stat", &old))?;
        number += 1;
    }
    Ok(())
}

fn use_data(instance: &Instance, longest: &AtomicU64, stop: &AtomicBool) -> Result<(), Error> {
    let path = instance.work_directory("data")?.join("file");
    let file = File::create(&path).map_err(Error::io("create", &path))?;
    let mut number = 0_u64;
    while !stop.load(Ordering::SeqCst) {
        let offset = number % BLOCKS * BLOCK as u64;
        let block = [number as u8; BLOCK];
        let write = || file.write_all_at(&block, offset).and_then(|()| file.sync_data());
        Longest::time(longest, write).map_err(Error::io("write", &path))?;
        number += 1;
    }
    Ok(())
}

fn run_once(arguments: &RestartArguments, instance: &Instance, longest: &Longest) -> Result<Run, Error> {
    let calm = Duration::from_secs_f64(arguments.common.seconds.max(0.1));
    let restart = |names: &[String]| -> Result<([f64; 2], f64), Error> {
        let processes =
            names.iter().map(|name| instance.process(name)).collect::<Result<Vec<u32>, Error>>()?;
        longest.take();
        let start = Instant::now();
        processes.into_iter().try_for_each(kill)?;
        instance.up()?;
        let up_s = start.elapsed().as_secs_f64();
        std::thread::sleep(calm);
        Ok((longest.take(), up_s))
    };
    std::thread::sleep(calm);
    let quiet = longest.take();
    let ([mdt, _], mdt_up) = restart(&["mdt0000".to_owned()])?;
    let osts: Vec<String> = (0..arguments.osts).map(|ost| format!("ost{ost:04x}")).collect();
    let ([_, osts], osts_up) = restart(&osts)?;
    Ok(Run { quiet, mdt: [mdt, mdt_up], osts: [osts, osts_up] })
}

fn kill(process: u32) -> Result<(), Error> {
    let killed =
        i32::try_from(process).ok().and_then(Pid::from_raw).map(|pid| kill_process(pid, Signal::KILL));
    match killed {
        Some(Ok(())) => Ok(()),
        _ => Err(Error::Server {
            what: format!("process {process}"),
            reason: "it cannot be killed".to_owned(),
        }),
    }
}

fn report_of(arguments: &RestartArguments, runs: &[Run]) -> Report {
    let (files, osts) = (arguments.files, arguments.osts);
    let mut report =
        Report::new(format!("Servers of {files} files, with {osts} OSTs, are killed and started again"));
    let mut add = |name: &str, target: Option<Target>, of: &dyn Fn(&Run) -> f64| {
        let mut samples = Samples::new();
        runs.iter().for_each(|run| samples.push(of(run)));
        report.rows.push(Row { target, ..Row::new(name.to_owned(), Unit::Seconds, samples) });
    };
    let pause = || Some(Target::AtMost(PAUSE_S));
    add("longest create or stat before", None, &|run| run.quiet[0]);
    add("longest create or stat, MDT killed", pause(), &|run| run.mdt[0]);
    add("until the MDT ran again", None, &|run| run.mdt[1]);
    add("longest write and sync before", None, &|run| run.quiet[1]);
    add("longest write and sync, all OSTs killed", pause(), &|run| run.osts[0]);
    add("until the OSTs ran again", None, &|run| run.osts[1]);
    report
}
